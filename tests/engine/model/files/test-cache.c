/* Scales of a cache: one for all heads or one each, under every name, and what is refused. */
#include "engine/model/files/cache.h"

#include <math.h>
#include <string.h>

#include "tests/engine/model/files/writer.h"

#define HEADS 4

/* What is found of layer 3 in a file with one tensor, besides another layer's. */
static gboolean
read_one(const char *name, oct_stored_type type, const void *data, gint64 n, float *k, float *v,
         gboolean *found, GError **error) {
  static const float other = 77;
  g_autoptr(writer) w = writer_new();
  g_autofree guint8 *memory = NULL;
  writer_add(w, "model.layers.33.self_attn.k_scale", OCT_STORED_F32, &other, (gint64)1, (gint64)-1);
  writer_add(w, name, type, data, n, (gint64)-1);
  g_autoptr(oct_checkpoint) checkpoint = writer_open(w, &memory);
  return oct_cache_scales(checkpoint, 3, HEADS, k, v, found, error);
}

static void
finds_every_name(void) {
  static const char *const names[] = {
      "model.layers.3.self_attn.k_scale", "model.layers.3.self_attn.attn.k_scale",
      "model.layers.3.self_attn.k_proj.k_scale", "language_model.model.layers.3.self_attn.k_scale"};
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autoptr(GError) error = NULL;
    static const float one = 0.25f, each[HEADS] = {1, 2, 3, 4};
    float k[HEADS], v[HEADS];
    gboolean found;
    g_assert_true(read_one(names[i], OCT_STORED_F32, &one, 1, k, v, &found, &error));
    g_assert_no_error(error);
    g_assert_true(found);
    for (guint h = 0; h < HEADS; h++) {
      g_assert_cmpfloat(k[h], ==, 0.25f);
      g_assert_cmpfloat(v[h], ==, 1);
    }
    g_assert_true(read_one(names[i], OCT_STORED_F32, each, HEADS, k, v, &found, &error));
    g_assert_cmpmem(k, sizeof k, each, sizeof each);
  }
}

static void
finds_values_in_bfloat16(void) {
  static const guint16 half = 0x3f00;
  float k[HEADS], v[HEADS];
  gboolean found;
  g_assert_true(read_one("model.layers.3.self_attn.v_proj.v_scale", OCT_STORED_BF16, &half, 1, k, v,
                         &found, NULL));
  g_assert_true(found);
  g_assert_cmpfloat(v[HEADS - 1], ==, 0.5f);
  g_assert_cmpfloat(k[0], ==, 1);
}

static void
has_ones_where_there_is_none(void) {
  static const float one = 5;
  float k[HEADS], v[HEADS];
  gboolean found;
  g_assert_true(
      read_one("model.layers.4.self_attn.v_scale", OCT_STORED_F32, &one, 1, k, v, &found, NULL));
  g_assert_false(found);
  for (guint h = 0; h < HEADS; h++)
    g_assert_cmpfloat(k[h] + v[h], ==, 2);
}

static void
refuses_what_is_no_scale(void) {
  static const float numbers[] = {0, -1, NAN, INFINITY, 1, 1};
  static const struct {
    guint at;
    gint64 n;
    oct_stored_type type;
    const char *part;
  } cases[] = {{0, 1, OCT_STORED_F32, "a scale of 0"},     {1, 1, OCT_STORED_F32, "a scale of -1"},
               {2, 1, OCT_STORED_F32, "wanted is a pos"},  {3, 1, OCT_STORED_F32, "a scale of inf"},
               {4, 2, OCT_STORED_F32, "2 scales, wanted"}, {4, 1, OCT_STORED_I32, "of type I32"}};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(GError) error = NULL;
    float k[HEADS], v[HEADS];
    gboolean found;
    g_assert_false(read_one("model.layers.3.self_attn.k_scale", cases[i].type,
                            numbers + cases[i].at, cases[i].n, k, v, &found, &error));
    g_assert_error(error, OCT_FILES_ERROR, OCT_FILES_ERROR_TENSOR);
    g_assert_nonnull(strstr(error->message, "model.layers.3.self_attn.k_scale"));
    g_assert_nonnull(strstr(error->message, cases[i].part));
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/files/cache/finds-every-name", finds_every_name);
  g_test_add_func("/files/cache/finds-values-in-bfloat16", finds_values_in_bfloat16);
  g_test_add_func("/files/cache/has-ones-where-there-is-none", has_ones_where_there_is_none);
  g_test_add_func("/files/cache/refuses-what-is-no-scale", refuses_what_is_no_scale);
  return g_test_run();
}
