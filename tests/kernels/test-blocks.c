/* Expanded blocks equal, bit by bit, what the readers of model files give, for every kind of
 * processor that this one has. The source is included to reach them all. */
#include "kernels/reference/blocks.c"

#include <math.h>

#include <glib.h>

#include "engine/model/files/dequant.h"

static const struct {
  const char *name;
  oct_stored_type stored;
} formats[OCT_BLOCK_FORMATS] = {
    [OCT_BLOCK_Q4_0] = {"Q4_0", OCT_STORED_Q4_0}, [OCT_BLOCK_Q4_1] = {"Q4_1", OCT_STORED_Q4_1},
    [OCT_BLOCK_Q5_0] = {"Q5_0", OCT_STORED_Q5_0}, [OCT_BLOCK_Q5_1] = {"Q5_1", OCT_STORED_Q5_1},
    [OCT_BLOCK_Q8_0] = {"Q8_0", OCT_STORED_Q8_0}, [OCT_BLOCK_Q4_K] = {"Q4_K", OCT_STORED_Q4_K},
    [OCT_BLOCK_Q5_K] = {"Q5_K", OCT_STORED_Q5_K}, [OCT_BLOCK_Q6_K] = {"Q6_K", OCT_STORED_Q6_K},
};

static void
compare(oct_block_format format, expander expand, const char *kind) {
  enum { BLOCKS = 37 };
  gsize bytes = oct_ref_block_bytes(format), n = BLOCKS * oct_ref_block_weights(format);
  g_assert_cmpuint(bytes, ==, oct_stored_get(formats[format].stored)->bytes);
  g_assert_cmpuint(n, ==, BLOCKS * (gsize)oct_stored_get(formats[format].stored)->block);
  g_autofree guint8 *blocks = g_malloc(BLOCKS * bytes), *moved = g_malloc(BLOCKS * bytes + 1);
  g_autofree float *got = g_new(float, n), *wanted = g_new(float, n);
  for (gsize i = 0; i < BLOCKS * bytes; i++)
    blocks[i] = (guint8)g_test_rand_int();
  memcpy(moved + 1, blocks, BLOCKS * bytes); /* without alignment */
  if (expand != NULL)
    expand(moved + 1, BLOCKS, got);
  else
    oct_ref_expand_blocks(format, moved + 1, BLOCKS, got);
  oct_dequant_row(formats[format].stored, blocks, n, wanted);
  gsize numbers = 0;
  for (gsize i = 0; i < n; i++) {
    if (isnan(wanted[i])) {
      g_assert_true(isnan(got[i]));
      continue;
    }
    guint32 a, b;
    memcpy(&a, &got[i], sizeof a);
    memcpy(&b, &wanted[i], sizeof b);
    if (a != b)
      g_error("%s for %s: weight %" G_GSIZE_FORMAT " is %g, must be %g", formats[format].name, kind,
              i, (double)got[i], (double)wanted[i]);
    numbers++;
  }
  g_assert_cmpuint(numbers, >, n / 2);
}

static void
equals_the_files_reader(gconstpointer data) {
  oct_block_format format = (oct_block_format)GPOINTER_TO_UINT(data);
  for (int round = 0; round < 20; round++) {
    compare(format, expanders_any[format], "any processor");
    compare(format, NULL, "this processor");
#ifdef __x86_64__
    if (oct_ref_target() >= OCT_TARGET_IS_AVX2)
      compare(format, expanders_avx2[format], "AVX2");
    if (oct_ref_target() >= OCT_TARGET_IS_AVX512)
      compare(format, expanders_avx512[format], "AVX-512");
#endif
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (guint i = 0; i < OCT_BLOCK_FORMATS; i++) {
    g_autofree char *path =
        g_strdup_printf("/kernels/blocks/%s-equals-the-files-reader", formats[i].name);
    g_test_add_data_func(path, GUINT_TO_POINTER(i), equals_the_files_reader);
  }
  return g_test_run();
}
