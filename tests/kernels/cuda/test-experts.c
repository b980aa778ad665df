/* Products of experts, of every format by every kernel, and which kernel has which. */
#include <string.h>

#include "kernels/cuda/launches.h"
#include "tests/kernels/cuda/weights.h"

typedef struct expert_case {
  weight_variant variant;
  guint32 n, n_experts, top_k, first, local, rows, columns;
  gboolean gather, bias, gated;
  guint n_paths;
  oct_cuda_path paths[5];
  gboolean uneven; /* half of the tokens choose the first experts */
} expert_case;

static void
check_experts(const oct_cuda_queue *queue, const expert_case *c) {
  oct_cuda_type type = c->variant.format == OCT_CUDA_MATRIX_F32 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
  guint32 n_pairs = c->n * c->top_k;
  g_autofree guint32 *experts = g_new(guint32, n_pairs);
  for (guint32 i = 0; i < c->n; i++) {
    g_autofree guint32 *some = data_pages(c->top_k, c->n_experts);
    for (guint32 k = 0; c->uneven && i % 2 == 0 && k < c->top_k; k++)
      some[k] = k;
    memcpy(experts + (gsize)i * c->top_k, some, c->top_k * sizeof *some);
  }
  oct_cuda_pairs pairs = {.n = c->n,
                          .top_k = c->top_k,
                          .n_experts = c->n_experts,
                          .first_expert = c->first,
                          .n_local = c->local,
                          .experts = device_copy(experts, n_pairs * sizeof *experts),
                          .starts = device_room((c->local + 1) * 4),
                          .pair_of = device_room(n_pairs * 4),
                          .row_of = device_room(n_pairs * 4)};
  device_check(oct_cuda_sort_pairs(queue, &pairs));
  g_auto(weight) w = {0};
  weight_make(queue, &w, c->variant, c->local, c->rows, c->columns);
  guint32 x_rows = c->gather ? c->n : n_pairs;
  g_autofree float *x = data_normal((gsize)x_rows * c->columns, 1);
  g_autofree float *bias = data_normal((gsize)c->local * c->rows, 5);
  void *d_bias = device_put(type, bias, (gsize)c->local * c->rows);
  g_autofree guint32 *slots = data_pages(c->local, c->local);
  oct_cuda_type y_type = c->bias ? OCT_CUDA_F32 : type;
  oct_cuda_expert_matmul call = {.type = type,
                                 .y_type = y_type,
                                 .weight = w.matrix,
                                 .slots = device_copy(slots, c->local * sizeof *slots),
                                 .n_matrices = c->local,
                                 .pairs = &pairs,
                                 .gather = c->gather,
                                 .bias = c->bias ? d_bias : NULL,
                                 .x = device_put(type, x, (gsize)x_rows * c->columns),
                                 .x_stride = c->columns,
                                 .y_stride = c->rows};
  g_autofree guint32 *starts = g_new(guint32, c->local + 1), *pair_of = g_new(guint32, n_pairs);
  device_read(starts, pairs.starts, (c->local + 1) * 4);
  device_read(pair_of, pairs.pair_of, n_pairs * 4);
  guint32 here = starts[c->local];
  g_autofree float *want = g_new(float, (gsize)n_pairs * c->rows + 1);
  for (guint32 e = 0; e < c->local; e++)
    for (guint32 r = starts[e]; r < starts[e + 1]; r++) {
      g_assert_cmpuint(experts[pair_of[r]], ==, c->first + e);
      weight_multiply(&w, slots[e], x + (gsize)(c->gather ? pair_of[r] / c->top_k : r) * c->columns,
                      1, c->bias ? bias + (gsize)e * c->rows : NULL, want + (gsize)r * c->rows, 1);
    }
  const oct_glu_params glu = {.kind = OCT_GLU_SITU, .alpha = 4, .limit = 25};
  gsize rows = c->rows;
  if (c->gated) {
    weight_activate(&glu, here, c->rows, want);
    call.glu = &glu;
    call.y_stride = rows /= 2;
  }
  for (guint i = 0; i < c->n_paths; i++) {
    call.path = c->paths[i];
    call.y = device_room_of(y_type, n_pairs * rows);
    device_check(oct_cuda_expert_multiply(queue, &call));
    g_autofree float *out = device_get(y_type, call.y, n_pairs * rows);
    g_autofree char *name =
        g_strdup_printf("experts, format %d/%u path %d, %u tokens, %u x %u", c->variant.format,
                        c->variant.group, call.path, c->n, c->rows, c->columns);
    device_expect(name, out, want, here * rows,
                  weight_limit(y_type, c->variant, call.path, 1, TRUE));
  }
}

static void
test_experts(void) {
  for (guint f = 0; f < WEIGHT_VARIANTS; f++)
    for (guint k = 0; k < 5; k++) {
      const oct_cuda_queue *queue = device_queue(k == 4 ? OCT_CUDA_FIXED_ORDER : 0);
      if (queue == NULL)
        return;
      static const guint32 tokens[] = {1, 5, 100, 700, 30};
      if (device_quick() && k == 3)
        continue;
      gboolean is_plain = f <= 1;
      check_experts(queue, &(expert_case){.variant = weight_variants[f],
                                          .n = tokens[k],
                                          .n_experts = 8,
                                          .top_k = 3,
                                          .first = k == 2 ? 2 : 0,
                                          .local = k == 2 ? 4 : 8,
                                          .rows = 48 + 20 * (k % 2),
                                          .columns = is_plain ? 72 : 384,
                                          .gather = k % 2 == 0,
                                          .bias = k > 2,
                                          .n_paths = 1,
                                          .paths = {OCT_CUDA_PATH_AUTO}});
    }
}

/* Each own kernel for experts, with few tokens and with more than its tiles take; experts without
 * tokens between others, and many tokens of some. */
static void
test_expert_paths(void) {
  static const guint32 tokens[] = {1, 9, 90, 400};
  for (guint f = 1; f < WEIGHT_VARIANTS; f++)
    for (guint i = 0; i < G_N_ELEMENTS(tokens); i++) {
      const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
      if (queue == NULL)
        return;
      if (device_quick() && i == 1)
        continue;
      expert_case c = {.variant = weight_variants[f],
                       .n = tokens[i],
                       .n_experts = i == 3 ? 6 : 40,
                       .top_k = 4,
                       .local = i == 3 ? 6 : 40,
                       .rows = i == 1 ? 140 : 108,
                       .columns = i % 2 == 0 ? 384 : 640,
                       .gather = i % 2 == 0,
                       .bias = i == 2,
                       .paths = {OCT_CUDA_PATH_SKINNY, OCT_CUDA_PATH_TILE}};
      c.n_paths = 2;
      if (queue->capability == 90 && f < WEIGHT_PLAIN) {
        c.paths[c.n_paths++] = OCT_CUDA_PATH_STREAM;
        c.paths[c.n_paths++] = OCT_CUDA_PATH_WIDE;
      }
      if (queue->capability == 90 && f > 1)
        c.paths[c.n_paths++] = OCT_CUDA_PATH_CODES;
      check_experts(queue, &c);
      if (queue->capability != 90 || f < 2)
        continue;
      c.rows = i == 1 ? 136 : 112;
      c.gated = TRUE;
      c.n_paths = 1;
      c.paths[0] = OCT_CUDA_PATH_CODES;
      queue = device_queue(OCT_CUDA_OVERLAP);
      check_experts(queue, &c);
    }
}

/* Experts in bf16 of up to eight tokens in the mean go through the kernel for few rows, whose
 * passes have as many columns as each needs; those of more through the one for many. */
static void
test_expert_choice(void) {
  static const guint32 tokens[] = {3, 12, 160, 161};
  for (guint i = 0; i < 2 * G_N_ELEMENTS(tokens); i++) {
    const oct_cuda_queue *queue = device_queue(OCT_CUDA_OVERLAP);
    if (queue == NULL)
      return;
    if (queue->capability != 90) {
      g_test_skip("no Hopper GPU");
      return;
    }
    g_autofree oct_cuda_launches *launches = g_new0(oct_cuda_launches, 1);
    oct_cuda_queue counted = *queue;
    counted.launches = launches;
    guint32 n = tokens[i / 2];
    check_experts(&counted, &(expert_case){.variant = weight_variants[1],
                                           .n = n,
                                           .n_experts = 60,
                                           .top_k = 3,
                                           .local = 60,
                                           .rows = 264,
                                           .columns = 320,
                                           .gather = TRUE,
                                           .uneven = i % 2 == 1,
                                           .n_paths = 1,
                                           .paths = {OCT_CUDA_PATH_AUTO}});
    g_assert_cmpuint(oct_cuda_launches_of(launches, "multiply_stream"), ==, n <= 160 ? 1 : 0);
    g_assert_cmpuint(oct_cuda_launches_of(launches, "multiply_wide"), ==, n > 160 ? 1 : 0);
    device_tell_launches(launches);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/cuda/experts/of-every-format", test_experts);
  g_test_add_func("/cuda/experts/by-every-kernel", test_expert_paths);
  g_test_add_func("/cuda/experts/of-few-tokens-by-the-kernel-for-few", test_expert_choice);
  return g_test_run();
}
