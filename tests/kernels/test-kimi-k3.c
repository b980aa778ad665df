/* The operators of Kimi K3 on the goldens of tests/golden/kimi-k3/ops, which its float64 reference
 * computed. Errors are the largest difference over the largest value. */
#include <math.h>
#include <string.h>

#include "engine/model/files/dequant.h"
#include "engine/model/files/tensors.h"
#include "tests/kernels/data.h"

#define LIMIT 5e-6

static oct_checkpoint *file;

static const void *
find(const char *group, const char *name, oct_stored_type type, gsize n) {
  g_autofree char *full = g_strdup_printf("%s.%s", group, name);
  const oct_file_tensor *t = oct_checkpoint_find(file, full);
  if (t == NULL || t->type != type || (n > 0 && oct_file_tensor_elements(t) != n))
    g_error("%s is not what was expected", full);
  return t->data;
}

static const float *
floats(const char *group, const char *name, gsize n) {
  return find(group, name, OCT_STORED_F32, n);
}

static void
expect(const char *group, const char *name, const float *is, gsize n) {
  const float *wanted = floats(group, name, n);
  double most = 0, off = 0;
  for (gsize i = 0; i < n; i++) {
    most = MAX(most, fabs(wanted[i]));
    off = MAX(off, fabs((double)is[i] - wanted[i]));
    g_assert_false(isnan(is[i]));
  }
  g_test_message("%s.%s: %.2e", group, name, off / most);
  g_assert_cmpfloat(off, <=, LIMIT * most);
}

static void
mxfp4(void) {
  float out[12 * 256], product[12], scratch[OCT_REF_MATMUL_ROWS * 256];
  oct_dequant_mxfp4(find("mxfp4", "packed", OCT_STORED_U8, 12 * 128),
                    find("mxfp4", "scale", OCT_STORED_U8, 12 * 8), 12 * 256, out);
  g_assert_cmpmem(out, sizeof out, floats("mxfp4", "out", 12 * 256), sizeof out);
  const oct_matrix weight = {.format = OCT_MATRIX_F32, .rows = 12, .columns = 256, .data = out};
  const oct_matmul call = {.weight = &weight,
                           .x = floats("mxfp4", "x", 256),
                           .x_stride = 256,
                           .m = 1,
                           .y = product,
                           .y_stride = 12};
  oct_ref_matmul(&call, 0, 12, scratch);
  expect("mxfp4", "matvec", product, 12);
  oct_dequant_mxfp4(find("mxfp4_edge", "packed", OCT_STORED_U8, 128),
                    find("mxfp4_edge", "scale", OCT_STORED_U8, 8), 256, out);
  g_assert_cmpmem(out, 256 * sizeof *out, floats("mxfp4_edge", "out", 256), 256 * sizeof *out);
}

static void
situ(void) {
  float out[259];
  oct_glu_params params = {.kind = OCT_GLU_SITU, .alpha = 4, .limit = 25};
  const float *gate = floats("situ", "gate", 259), *up = floats("situ", "up", 259);
  oct_ref_glu(&params, gate, up, 1, 259, out);
  expect("situ", "out", out, 259);
  params.kind = OCT_GLU_SWIGLU;
  oct_ref_glu(&params, gate, up, 1, 259, out);
  expect("situ", "silu_out", out, 259);
}

static void
residual_mix(gconstpointer group) {
  enum { TOKENS = 5, WIDTH = 192 };
  guint32 n = g_str_equal(group, "attnres_2") ? 2 : 9;
  const float *all = floats(group, "sources", (gsize)n * TOKENS * WIDTH), *sources[9];
  const oct_residual_mix mix = {floats(group, "norm", WIDTH), floats(group, "proj", WIDTH), WIDTH,
                                1e-5f};
  float out[TOKENS * WIDTH], weights[9 * TOKENS], one[9], scratch[2 * WIDTH];
  for (guint32 t = 0; t < TOKENS; t++) {
    for (guint32 i = 0; i < n; i++)
      sources[i] = all + ((gsize)i * TOKENS + t) * WIDTH;
    oct_ref_residual_mix(&mix, sources, n, out + t * WIDTH, one, scratch);
    for (guint32 i = 0; i < n; i++)
      weights[i * TOKENS + t] = one[i];
  }
  expect(group, "out", out, TOKENS * WIDTH);
  expect(group, "weights", weights, (gsize)n * TOKENS);
}

static void
short_convolution(void) {
  enum { TOKENS = 6, CHANNELS = 40, STATE = 3 * CHANNELS };
  float state[STATE], out[TOKENS * CHANNELS];
  const float *x = floats("conv", "x", TOKENS * CHANNELS);
  const float *weight = floats("conv", "weight", CHANNELS * 4);
  memcpy(state, floats("conv", "state", STATE), sizeof state);
  for (guint t = 0; t < TOKENS; t++) {
    oct_ref_short_conv(weight, 4, state, CHANNELS, x + t * CHANNELS, CHANNELS, out + t * CHANNELS);
    if (t == 0)
      expect("conv", "new_state_1", state, STATE);
  }
  expect("conv", "out_1", out, CHANNELS);
  expect("conv", "out", out, TOKENS * CHANNELS);
  expect("conv", "new_state", state, STATE);
}

static void
decay_gates(void) {
  enum { TOKENS = 8, HEADS = 3, WIDTH = 16, ALL = TOKENS * HEADS * WIDTH };
  float bounded[ALL], open[ALL];
  const float *z = floats("kda_gate", "z", ALL), *a = floats("kda_gate", "A_log", HEADS);
  for (guint i = 0; i < ALL; i++) {
    bounded[i] = oct_ref_kda_log_decay(-5, a[i / WIDTH % HEADS], z[i]);
    open[i] = oct_ref_kda_log_decay(0, a[i / WIDTH % HEADS], z[i]);
  }
  expect("kda_gate", "bounded", bounded, ALL);
  expect("kda_gate", "softplus", open, ALL);
}

typedef struct delta_case {
  const char *group;
  guint32 heads, width, tokens;
} delta_case;

static void
delta(gconstpointer data) {
  const delta_case *c = data;
  gsize width = c->width, channels = c->heads * width, n = c->tokens * channels;
  gsize state_floats = channels * width;
  const float *q = floats(c->group, "q_raw", n), *k = floats(c->group, "k_raw", n);
  const float *v = floats(c->group, "v", n), *z = floats(c->group, "z_raw", n);
  const float *bias = floats(c->group, "dt_bias", channels);
  const float *a = floats(c->group, "A_log", c->heads);
  const float *beta = floats(c->group, "beta_raw", (gsize)c->tokens * c->heads);
  g_autofree float *state =
      g_memdup2(floats(c->group, "S0", state_floats), state_floats * sizeof(float));
  g_autofree float *out = g_new(float, n), *decays = g_new(float, n);
  g_autofree float *scratch = g_new(float, 4 * width);
  for (guint32 t = 0; t < c->tokens; t++)
    for (guint32 h = 0; h < c->heads; h++) {
      gsize at = (gsize)t * channels + h * width;
      for (guint32 d = 0; d < width; d++)
        decays[at + d] = oct_ref_kda_log_decay(-5, a[h], z[at + d] + bias[h * width + d]);
      const oct_kda_head head = {q + at, k + at, v + at, decays + at, beta[t * c->heads + h]};
      oct_ref_kda_recur(&head, c->width, state + h * width * width, out + at, scratch);
    }
  expect(c->group, "log_decay", decays, n);
  expect(c->group, "out", out, n);
  expect(c->group, "S1", state, state_floats);
}

/* The same in chunks, the last one in part where 16 does not divide the tokens. */
static void
delta_in_chunks(gconstpointer data) {
  const delta_case *c = data;
  gsize width = c->width, channels = c->heads * width, n = c->tokens * channels;
  gsize state_floats = channels * width;
  g_autofree float *state =
      g_memdup2(floats(c->group, "S0", state_floats), state_floats * sizeof(float));
  g_autofree float *out = g_new(float, n);
  g_autofree float *scratch = g_new(float, 4 * OCT_REF_KDA_CHUNK * width);
  const oct_kda_head whole = {floats(c->group, "q_raw", n), floats(c->group, "k_raw", n),
                              floats(c->group, "v", n), floats(c->group, "log_decay", n), 0};
  const float *beta = floats(c->group, "beta_raw", (gsize)c->tokens * c->heads);
  for (guint32 t = 0; t < c->tokens; t += OCT_REF_KDA_CHUNK)
    for (guint32 h = 0; h < c->heads; h++) {
      gsize at = (gsize)t * channels + h * width;
      const oct_kda_chunk chunk = {
          .first = {whole.q + at, whole.k + at, whole.v + at, whole.log_decay + at, 0},
          .beta = beta + (gsize)t * c->heads + h,
          .stride = channels,
          .beta_stride = c->heads,
          .n = MIN(OCT_REF_KDA_CHUNK, c->tokens - t)};
      oct_ref_kda_chunk(&chunk, c->width, state + h * width * width, out + at, scratch);
    }
  expect(c->group, "out", out, n);
  expect(c->group, "S1", state, state_floats);
}

typedef struct latent_case {
  const char *group;
  guint32 heads, lora, nope, rope, value, tokens;
} latent_case;

static void
store_latents(const latent_case *c, const oct_kv_layer *kv, const guint32 *pages) {
  const float *latent = floats(c->group, "latent", (gsize)c->tokens * c->lora);
  const float *kpe = floats(c->group, "kpe", (gsize)c->tokens * c->rope);
  g_autofree float *row = g_new(float, c->lora + c->rope);
  for (guint32 t = 0; t < c->tokens; t++) {
    memcpy(row, latent + (gsize)t * c->lora, c->lora * sizeof *row);
    memcpy(row + c->lora, kpe + (gsize)t * c->rope, c->rope * sizeof *row);
    oct_ref_kv_store(kv, pages, t, row, NULL);
  }
}

/* One token after tokens - 1 others, absorbed and expanded. */
static void
latent_attention(gconstpointer data) {
  enum { PAGE = 16, PAGES = 8 };
  const latent_case *c = data;
  guint32 width = c->lora + c->rope, per_head = c->nope + c->value, last = c->tokens - 1;
  guint32 pages[PAGES];
  const float *q = floats(c->group, "q", (gsize)c->heads * (c->nope + c->rope));
  const oct_matrix kv_b = {
      .format = OCT_MATRIX_BF16,
      .rows = c->heads * per_head,
      .columns = c->lora,
      .data = find(c->group, "kv_b", OCT_STORED_BF16, (gsize)c->heads * per_head * c->lora)};
  g_autofree float *pool = g_new0(float, (gsize)PAGES *PAGE *width);
  oct_mla call = {.kv = {.format = OCT_KV_F32,
                         .base = pool,
                         .page_stride = (gsize)PAGE * width * sizeof(float),
                         .page_tokens = PAGE,
                         .n_heads = 1,
                         .width = width},
                  .n_heads = c->heads,
                  .kv_lora = c->lora,
                  .nope = c->nope,
                  .rope = c->rope,
                  .value = c->value,
                  .scale = (float)(1 / sqrt(c->nope + c->rope)),
                  .kv_b = &kv_b};
  for (guint32 i = 0; i < PAGES; i++)
    pages[i] = (i * 3 + 1) % PAGES;
  store_latents(c, &call.kv, pages);
  g_autofree float *scratch =
      g_new(float, (gsize)c->tokens *(c->heads + 1 + per_head) +
                       (gsize)MAX(per_head, OCT_REF_MATMUL_ROWS) * c->lora + PAGE * width);
  g_autofree float *absorbed = g_new(float, c->heads *width), *mid = g_new(float, c->heads *width);
  g_autofree float *out = g_new(float, c->heads * c->value);
  g_autofree float *q_lat = g_new(float, c->heads * c->lora);
  for (guint32 h = 0; h < c->heads; h++) {
    oct_ref_mla_absorb(&call, h, 1, q, absorbed, scratch);
    memcpy(q_lat + (gsize)h * c->lora, absorbed + (gsize)h * width, c->lora * sizeof *q_lat);
  }
  expect(c->group, "q_lat", q_lat, (gsize)c->heads * c->lora);
  oct_ref_mla_latent(&call, pages, last, 0, c->heads, absorbed, mid, scratch);
  expect(c->group, "o_lat", mid, (gsize)c->heads * c->lora);
  for (guint32 h = 0; h < c->heads; h++)
    oct_ref_mla_values(&call, h, 1, mid, out, scratch);
  expect(c->group, "out", out, (gsize)c->heads * c->value);
  for (guint32 h = 0; h < c->heads; h++)
    oct_ref_mla_expanded(&call, pages, last, h, q, out, scratch);
  expect(c->group, "out", out, (gsize)c->heads * c->value);
  oct_ref_sigmoid_gate(out, floats(c->group, "gate_raw", (gsize)c->heads * c->value),
                       (gsize)c->heads * c->value);
  expect(c->group, "gated", out, (gsize)c->heads * c->value);
}

static void
router(void) {
  enum { TOKENS = 9, EXPERTS = 24, TOP = 5 };
  oct_routing routing = {.score = OCT_ROUTER_SIGMOID,
                         .n_experts = EXPERTS,
                         .top_k = TOP,
                         .renormalise = true,
                         .scaling = 1,
                         .bias = floats("router", "bias", EXPERTS)};
  const float *logits = floats("router", "logits", TOKENS * EXPERTS);
  const guint32 *wanted = find("router", "idx", OCT_STORED_I32, TOKENS * TOP);
  float weights[TOKENS * TOP], scaled[TOKENS * TOP], scratch[2 * EXPERTS + 1];
  guint32 chosen[TOKENS * TOP];
  for (guint t = 0; t < TOKENS; t++) {
    routing.scaling = 2.446f;
    oct_ref_route(&routing, logits + t * EXPERTS, chosen + t * TOP, scaled + t * TOP, scratch);
    routing.scaling = 1;
    oct_ref_route(&routing, logits + t * EXPERTS, chosen + t * TOP, weights + t * TOP, scratch);
  }
  g_assert_cmpmem(chosen, sizeof chosen, wanted, sizeof chosen);
  expect("router", "weight", weights, TOKENS * TOP);
  expect("router", "weight_scaled", scaled, TOKENS * TOP);
}

static void
norm(void) {
  float out[4 * 96];
  const float *x = floats("rmsnorm", "x", 4 * 96), *weight = floats("rmsnorm", "weight", 96);
  oct_ref_rms_norm(x, weight, 4, 96, 96, 1e-5f, out);
  expect("rmsnorm", "out_1em5", out, 4 * 96);
  oct_ref_rms_norm(x, weight, 4, 96, 96, 1e-6f, out);
  expect("rmsnorm", "out_1em6", out, 4 * 96);
}

int
main(int argc, char **argv) {
  static const delta_case deltas[] = {{"kda_h3_d32_t16", 3, 32, 16},
                                      {"kda_h2_d128_t16", 2, 128, 16},
                                      {"kda_h2_d32_t41", 2, 32, 41},
                                      {"kda_h2_d32_t64", 2, 32, 64}};
  static const latent_case latents[] = {{"mla_h6_l56", 6, 56, 16, 8, 24, 37},
                                        {"mla_h2_l512", 2, 512, 128, 64, 128, 70}};
  g_autoptr(GError) error = NULL;
  g_test_init(&argc, &argv, NULL);
  g_autofree char *path =
      g_test_build_filename(G_TEST_DIST, "golden", "kimi-k3", "ops", "golden.safetensors", NULL);
  file = oct_checkpoint_open(path, OCT_LOAD_SAFETENSORS, &error);
  g_assert_no_error(error);
  g_test_add_func("/kernels/kimi-k3/mxfp4", mxfp4);
  g_test_add_func("/kernels/kimi-k3/situ", situ);
  g_test_add_data_func("/kernels/kimi-k3/residual-mix-of-2", "attnres_2", residual_mix);
  g_test_add_data_func("/kernels/kimi-k3/residual-mix-of-9", "attnres_9", residual_mix);
  g_test_add_func("/kernels/kimi-k3/short-convolution", short_convolution);
  g_test_add_func("/kernels/kimi-k3/decay-gates", decay_gates);
  for (gsize i = 0; i < G_N_ELEMENTS(deltas); i++) {
    g_autofree char *name = g_strdup_printf("/kernels/kimi-k3/%s", deltas[i].group);
    g_autofree char *chunks = g_strdup_printf("%s/in-chunks", name);
    g_test_add_data_func(name, &deltas[i], delta);
    g_test_add_data_func(chunks, &deltas[i], delta_in_chunks);
  }
  for (gsize i = 0; i < G_N_ELEMENTS(latents); i++) {
    g_autofree char *name = g_strdup_printf("/kernels/kimi-k3/%s", latents[i].group);
    g_test_add_data_func(name, &latents[i], latent_attention);
  }
  g_test_add_func("/kernels/kimi-k3/router", router);
  g_test_add_func("/kernels/kimi-k3/norm", norm);
  int status = g_test_run();
  oct_checkpoint_close(file);
  return status;
}
