/* gpt-oss, for which there is no golden checkpoint: small models with random weights against a
 * float64 forward pass of the whole sequence written down here (windows and full layers in turn,
 * sinks, YaRN without truncation, biases everywhere, clamped activation), and greedy tokens through
 * the real engine. */
#include <math.h>
#include <string.h>

#include "backends/cpu/forward.h"
#include "backends/registry.h"
#include "engine/base/rng.h"
#include "tests/backends/cpu/golden.h"
#include "tests/engine/sched/rig.h"

#define PROMPT    37
#define GENERATED 24
#define TOKENS    (PROMPT + GENERATED)

static const char config[] =
    "{\"model_type\": \"gpt_oss\", \"vocab_size\": 203, \"hidden_size\": 64, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 6, \"num_key_value_heads\": 2, "
    "\"head_dim\": 12, \"intermediate_size\": 96, \"num_local_experts\": 7, "
    "\"num_experts_per_tok\": 3, \"sliding_window\": 9, \"max_position_embeddings\": 256, "
    "\"rms_norm_eps\": 1e-5, \"eos_token_id\": 0, \"tie_word_embeddings\": false, "
    "\"attention_bias\": true, \"hidden_act\": \"silu\", \"swiglu_limit\": 0.8, %s"
    "\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0, "
    "\"original_max_position_embeddings\": 64, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
    "\"truncate\": false}}";

static const char *const kinds[] = {
    "", "\"quantization_config\": {\"quant_method\": \"mxfp4\", \"modules_to_not_convert\": "
        "[\"model.layers.*.self_attn\", \"model.layers.*.mlp.router\", \"model.embed_tokens\", "
        "\"lm_head\"]}, "};

static oct_model_spec *
make_spec(guint kind) {
  g_autoptr(GError) error = NULL;
  g_autoptr(GString) text = g_string_new(config);
  g_string_replace(text, "%s", kinds[kind], 0);
  oct_model_spec *spec = oct_model_spec_parse("small gpt-oss", text->str, text->len, &error);
  g_assert_no_error(error);
  g_assert_cmpint(spec->types.expert, ==, kind == 0 ? OCT_DTYPE_BF16 : OCT_DTYPE_MXFP4);
  return spec;
}

/* ---------------------------------------------------------------- float64 */

/* y[rows] = W x + b, in float64. */
static void
product(const oct_matrix *w, const float *bias, const double *x, double *y) {
  g_autofree float *values = g_new(float, (gsize)w->rows * w->columns);
  oct_ref_rows(w, 0, w->rows, values);
  for (guint32 r = 0; r < w->rows; r++) {
    y[r] = bias != NULL ? bias[r] : 0;
    for (guint32 c = 0; c < w->columns; c++)
      y[r] += values[(gsize)r * w->columns + c] * x[c];
  }
}

static void
norm(const oct_cpu_model *m, const float *weight, const double *x, double *y) {
  guint32 n = m->spec->hidden;
  double sum = 0;
  for (guint32 c = 0; c < n; c++)
    sum += x[c] * x[c];
  for (guint32 c = 0; c < n; c++)
    y[c] = x[c] / sqrt(sum / n + m->spec->rms_norm_eps) * weight[c];
}

/* YaRN: pairs (i, i + half), frequency by the ramp between 32 turns and 1 turn of 64 positions. */
static void
rotate(const oct_model_spec *spec, double *head, guint32 width, guint32 position) {
  double base = spec->rope_theta, half = width / 2.0, scale = 0.1 * log(32) + 1;
  double low = half * log(64 / (32 * 6.283185307179586)) / log(base);
  double high = half * log(64 / (1 * 6.283185307179586)) / log(base);
  low = MAX(low, 0);
  high = MIN(high, width - 1.0);
  for (guint32 i = 0; i < width / 2; i++) {
    double plain = pow(base, -2.0 * i / width), t = CLAMP((i - low) / (high - low), 0, 1);
    /* As float32, in which models are published. */
    double angle = (float)position * (float)(plain * (1 - t) + plain / 32 * t);
    double a = head[i], b = head[i + width / 2];
    head[i] = scale * (a * cos(angle) - b * sin(angle));
    head[i + width / 2] = scale * (b * cos(angle) + a * sin(angle));
  }
}

typedef struct cache {
  double k[TOKENS][2 * 12], v[TOKENS][2 * 12];
} cache;

/* Adds the attention of token `t` to x. */
static void
attend(const oct_cpu_model *m, const oct_cpu_layer *l, cache *c, guint32 t, double *x) {
  const oct_attention_spec *a = l->attention;
  guint32 width = a->head_dim, group = a->n_heads / a->n_kv_heads;
  double h[64], q[72], out[72] = {0}, y[64];
  norm(m, l->vectors[OCT_WEIGHT_ATTN_NORM], x, h);
  product(&l->matrices[OCT_WEIGHT_Q], l->vectors[OCT_WEIGHT_Q_BIAS], h, q);
  product(&l->matrices[OCT_WEIGHT_K], l->vectors[OCT_WEIGHT_K_BIAS], h, c->k[t]);
  product(&l->matrices[OCT_WEIGHT_V], l->vectors[OCT_WEIGHT_V_BIAS], h, c->v[t]);
  for (guint32 n = 0; n < a->n_heads; n++)
    rotate(m->spec, q + n * width, width, t);
  for (guint32 n = 0; n < a->n_kv_heads; n++)
    rotate(m->spec, c->k[t] + n * width, width, t);
  for (guint32 n = 0; n < a->n_heads; n++) {
    double p[TOKENS], sum = exp(l->vectors[OCT_WEIGHT_SINKS][n]);
    guint32 from = a->kind == OCT_ATTENTION_WINDOW && t >= a->window ? t - a->window + 1 : 0;
    for (guint32 s = from; s <= t; s++) {
      p[s] = 0;
      for (guint32 d = 0; d < width; d++)
        p[s] += q[n * width + d] * c->k[s][n / group * width + d];
      p[s] = exp(p[s] / sqrt(width));
      sum += p[s];
    }
    for (guint32 s = from; s <= t; s++)
      for (guint32 d = 0; d < width; d++)
        out[n * width + d] += p[s] / sum * c->v[s][n / group * width + d];
  }
  product(&l->matrices[OCT_WEIGHT_O], l->vectors[OCT_WEIGHT_O_BIAS], out, y);
  for (guint32 i = 0; i < m->spec->hidden; i++)
    x[i] += y[i];
}

/* Adds the three experts with the largest router logits to x, their weights a softmax over the
 * three. */
static void
mix(const oct_cpu_model *m, const oct_cpu_layer *l, double *x) {
  double h[64], logits[7], gate[96], up[96], y[64], chosen[3], sum = 0;
  guint32 best[3];
  norm(m, l->vectors[OCT_WEIGHT_FFN_NORM], x, h);
  product(&l->matrices[OCT_WEIGHT_ROUTER], l->vectors[OCT_WEIGHT_ROUTER_BIAS], h, logits);
  for (int k = 0; k < 3; k++) {
    best[k] = 0;
    for (guint32 e = 1; e < 7; e++)
      if (logits[e] > logits[best[k]])
        best[k] = e;
    chosen[k] = exp(logits[best[k]]);
    sum += chosen[k];
    logits[best[k]] = -INFINITY;
  }
  for (int k = 0; k < 3; k++) {
    const oct_cpu_experts *e = &l->experts;
    product(&e->gate[best[k]], e->gate_bias[best[k]], h, gate);
    product(&e->up[best[k]], e->up_bias[best[k]], h, up);
    for (int i = 0; i < 96; i++) {
      double g = MIN(gate[i], 0.8), u = CLAMP(up[i], -0.8, 0.8);
      gate[i] = g / (1 + exp(-1.702 * g)) * (u + 1);
    }
    product(&e->down[best[k]], e->down_bias[best[k]], gate, y);
    for (guint32 i = 0; i < m->spec->hidden; i++)
      x[i] += chosen[k] / sum * y[i];
  }
}

/* Logits [n, vocab] of the sequence, owned. When `generate`, ids from PROMPT on are filled in with
 * the largest; *margin is the least distance between the two largest then. */
static float *
exact_logits(const oct_cpu_model *m, guint32 *ids, guint32 n, gboolean generate, double *margin) {
  guint32 hidden = m->spec->hidden, vocab = m->spec->vocab;
  float *all = g_new(float, (gsize)n *vocab);
  g_autofree cache *caches = g_new0(cache, m->spec->n_layers);
  g_autofree double *logits = g_new(double, vocab);
  for (guint32 t = 0; t < n; t++) {
    float row[64];
    double x[64], h[64];
    oct_ref_embed(&m->embedding, &ids[t], 1, row);
    for (guint32 c = 0; c < hidden; c++)
      x[c] = row[c];
    for (guint32 l = 0; l < m->spec->n_layers; l++) {
      attend(m, &m->layers[l], &caches[l], t, x);
      mix(m, &m->layers[l], x);
    }
    norm(m, m->final_norm, x, h);
    product(&m->head, NULL, h, logits);
    guint32 best = 0;
    double second = -INFINITY;
    for (guint32 i = 0; i < vocab; i++) {
      all[(gsize)t * vocab + i] = (float)logits[i];
      if (logits[i] > logits[best])
        best = i;
    }
    for (guint32 i = 0; i < vocab; i++)
      if (i != best)
        second = MAX(second, logits[i]);
    if (generate && t + 1 >= PROMPT && t + 1 < n) {
      ids[t + 1] = best;
      *margin = MIN(*margin, logits[best] - second);
    }
  }
  return all;
}

static void
fill_prompt(guint32 *ids) {
  for (guint32 i = 0; i < PROMPT; i++)
    ids[i] = (guint32)(oct_mix64(900 + i) % 203);
}

static oct_cpu_model *
load(const oct_model_spec *spec) {
  g_autoptr(GError) error = NULL;
  const oct_cpu_model_options options = {.spec = spec, .seed = 1};
  oct_cpu_model *m = oct_cpu_model_load(&options, NULL, NULL, &error);
  g_assert_no_error(error);
  return m;
}

/* ---------------------------------------------------------------- tests */

static void
equals_float64(gconstpointer data) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = make_spec(GPOINTER_TO_UINT(data));
  g_autoptr(oct_cpu_model) m = load(spec);
  guint32 ids[TOKENS], pages[TOKENS], vocab = spec->vocab;
  double margin = INFINITY;
  fill_prompt(ids);
  g_autofree float *exact = exact_logits(m, ids, TOKENS, TRUE, &margin);
  oct_instance_config c = {.spec = spec, .parallel = OCT_PARALLEL_DEFAULT, .block_size = 4};
  c.memory.n_groups = 2;
  c.memory.groups[0].n_device = c.memory.groups[1].n_device = 32;
  g_autoptr(oct_cpu_memory) memory = oct_cpu_memory_new(&c, m, OCT_KV_F32, &error);
  g_assert_no_error(error);
  g_autoptr(oct_team) team = oct_team_new(2);
  const oct_cpu_forward_options options = {
      .model = m, .memory = memory, .team = team, .max_tokens = TOKENS, .max_context = TOKENS};
  g_autoptr(oct_cpu_forward) f = oct_cpu_forward_new(&options, &error);
  g_assert_no_error(error);
  g_autofree float *hidden = g_new(float, TOKENS * spec->hidden);
  g_autofree float *logits = g_new(float, (gsize)TOKENS *vocab);
  oct_cpu_view view = {.tables = {pages, pages}};
  for (guint32 i = 0; i < TOKENS; i++)
    pages[i] = (i * 5 + 3) % 32;
  static const guint32 cuts[] = {0, 1, 12, PROMPT, PROMPT + 1, TOKENS};
  for (gsize i = 0; i + 1 < G_N_ELEMENTS(cuts); i++) {
    oct_cpu_token tokens[TOKENS];
    guint32 n = cuts[i + 1] - cuts[i];
    for (guint32 k = 0; k < n; k++)
      tokens[k] = (oct_cpu_token){.id = ids[cuts[i] + k], .position = cuts[i] + k, .row = k};
    g_assert_true(oct_cpu_forward_run(f, &view, tokens, n, NULL, hidden));
    oct_cpu_forward_logits(f, hidden, n, logits + (gsize)cuts[i] * vocab);
  }
  double wrong = golden_error(logits, exact, (gsize)TOKENS * vocab);
  g_test_message("logits: relative L2 %.2e, limit 1e-4; margin %.2e", wrong, margin);
  g_assert_cmpfloat(wrong, <=, 1e-4);
}

/* Chunks, a short pool of pages with preemption, prefix hits: float64's greedy tokens each time. */
static void
engine_gives_the_tokens(gconstpointer data) {
  g_autoptr(oct_model_spec) spec = make_spec(GPOINTER_TO_UINT(data));
  g_autoptr(oct_cpu_model) m = load(spec);
  guint32 ids[TOKENS];
  double margin = INFINITY;
  fill_prompt(ids);
  g_free(exact_logits(m, ids, TOKENS, TRUE, &margin));
  g_assert_cmpfloat(margin, >, 1e-4);
  static const guint32 chunks[] = {3, 16, 64};
  guint64 cached = 0, preempted = 0;
  for (gsize i = 0; i < G_N_ELEMENTS(chunks); i++) {
    g_autoptr(GError) error = NULL;
    rig r;
    oct_engine_config c;
    rig_request *asked[3];
    oct_world *world = oct_backend_world_new("cpu:threads=2,clock=virtual", &error);
    g_assert_no_error(error);
    rig_init(&r, world);
    rig_config(&c, spec, i == 1 ? 60 : 19, 0);
    c.instance.block_size = 4;
    c.max_model_len = 128;
    c.max_num_seqs = 3;
    c.policy = "vllm-v1"; /* admits all that fits for a moment, and preempts */
    c.max_num_batched_tokens = chunks[i];
    for (guint k = 0; k < 3; k++) {
      oct_request_params p;
      oct_request_params_default(&p);
      p.prompt_ids = ids;
      p.prompt_tokens = PROMPT;
      p.temperature = 0;
      p.max_tokens = GENERATED;
      p.ignore_eos = TRUE;
      p.arrival_ns = (oct_time)k * 12000000;
      asked[k] = rig_add(&r, 0, &p);
    }
    rig_add_engine(&r, &c);
    rig_run(&r);
    g_assert_cmpstr(r.failure, ==, NULL);
    for (guint k = 0; k < 3; k++)
      g_assert_cmpmem(asked[k]->tokens[0]->data, asked[k]->tokens[0]->len * sizeof(guint32),
                      ids + PROMPT, GENERATED * sizeof(guint32));
    cached += r.stats[0].cached_prompt_tokens;
    preempted += r.stats[0].preemptions;
    rig_clear(&r);
  }
  g_test_message("%" G_GUINT64_FORMAT " prompt tokens from the cache, %" G_GUINT64_FORMAT
                 " preemptions",
                 cached, preempted);
  g_assert_cmpuint(cached, >, 0);
  g_assert_cmpuint(preempted, >, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (guint i = 0; i < G_N_ELEMENTS(kinds); i++) {
    const char *name = i == 0 ? "bfloat16" : "mxfp4";
    g_autofree char *first = g_strdup_printf("/cpu/gpt-oss/%s/equals-float64", name);
    g_autofree char *second = g_strdup_printf("/cpu/gpt-oss/%s/engine-gives-the-tokens", name);
    g_test_add_data_func(first, GUINT_TO_POINTER(i), equals_float64);
    g_test_add_data_func(second, GUINT_TO_POINTER(i), engine_gives_the_tokens);
  }
  return g_test_run();
}
