/* The ledger's figures: those that others have measured or computed, and properties over random
 * layouts. */
#include <math.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/sched/engine.h"
#include "engine/sched/ledger.h"

#define B300_BYTES G_GUINT64_CONSTANT(288400343040)
#define GIB        ((double)(1 << 30))

static oct_model_spec *
load(const char *name) {
  g_autoptr(GError) error = NULL;
  oct_model_spec *spec = oct_model_spec_load(name, NULL, &error);
  g_assert_no_error(error);
  return spec;
}

/* Kimi K3 on the GPUs of one node, as deployments run it. */
static oct_ledger_config
k3_config(const oct_model_spec *spec, guint32 tensor) {
  oct_ledger_config c;
  oct_ledger_config_default(&c);
  c.spec = spec;
  c.device_bytes = B300_BYTES;
  c.parallel.tensor = tensor;
  c.kv_dtype = OCT_DTYPE_FP8;
  c.max_num_batched_tokens = 8192;
  return c;
}

static void
make(const oct_ledger_config *c, oct_ledger *l) {
  g_autoptr(GError) error = NULL;
  gboolean made = oct_ledger_make(c, l, &error);
  g_assert_no_error(error);
  g_assert_true(made);
}

static void
assert_refused(const oct_ledger_config *c, GQuark domain, int code, const char *part) {
  g_autoptr(GError) error = NULL;
  oct_ledger l;
  if (oct_ledger_make(c, &l, &error))
    g_error("not refused: \"%s\"", part);
  g_assert_error(error, domain, code);
  if (strstr(error->message, part) == NULL)
    g_error("no \"%s\" in \"%s\"", part, error->message);
}

/* Bytes of `full` pages of full attention on a stage, by hand: what one more would cost. */
static guint64
full_page_bytes(const oct_ledger *l, guint32 stage) {
  guint64 bytes = 0;
  for (guint32 g = 0; g < l->plan.n_groups; g++)
    if (l->groups[g].kind != OCT_ATTENTION_KDA && l->groups[g].window == 0)
      bytes += l->stages[stage].unit_bytes[g];
  return bytes;
}

/* Every column adds up to the device, the cache fits on every stage, and one more page would not on
 * the tightest. */
static void
check_sums(const oct_ledger *l) {
  guint64 left = G_MAXUINT64;
  for (guint32 s = 0; s < l->n_stages; s++) {
    const oct_ledger_stage *stage = &l->stages[s];
    guint64 sum = 0, groups = 0;
    for (int t = 0; t < OCT_LEDGER_TERMS; t++)
      sum += stage->terms[t];
    g_assert_cmpuint(sum, ==, l->config.device_bytes);
    oct_weights w;
    oct_model_rank_weights(l->config.spec, &l->config.parallel, s, &w);
    if (l->plan.n_expert_slots == 0)
      g_assert_cmpuint(oct_ledger_weights(l, s), ==, oct_weights_total(&w).bytes);
    else /* and what steps bring, of one layer */
      g_assert_cmpuint(oct_ledger_weights(l, s), <,
                       oct_weights_total(&w).bytes +
                           oct_model_expert(l->config.spec, l->config.spec->n_layers - 1).bytes *
                               l->rank_experts);
    for (guint32 g = 0; g < l->plan.n_groups; g++) {
      g_assert_cmpuint(stage->group_bytes[g], ==,
                       l->plan.groups[g].n_device * stage->unit_bytes[g]);
      groups += stage->group_bytes[g];
    }
    g_assert_cmpuint(groups, ==, stage->terms[OCT_LEDGER_PAGES] + stage->terms[OCT_LEDGER_STATES]);
    guint64 unused = stage->terms[OCT_LEDGER_UNUSED], page = full_page_bytes(l, s);
    if (page > 0)
      left = MIN(left, unused / page);
    if (s == l->tightest && l->config.num_gpu_blocks_override == 0 && page > 0)
      for (guint32 g = 0; g < l->plan.n_groups; g++)
        if (l->groups[g].window > 0)
          page += stage->unit_bytes[g]; /* its pages may grow by one too */
    if (s == l->tightest && l->config.num_gpu_blocks_override == 0)
      g_assert_cmpuint(unused, <, page);
  }
}

/* ---------------------------------------------------------------- figures */

static void
test_k3_weights(void) {
  g_autoptr(oct_model_spec) spec = load("kimi-k3");
  oct_ledger_config c = k3_config(spec, 8);
  oct_ledger l;
  make(&c, &l);
  check_sums(&l);
  g_assert_cmpfloat_with_epsilon((double)oct_ledger_weights(&l, 0) / 1e9, 195.75, 0.005);
  c.parallel.shard_latent = FALSE;
  make(&c, &l);
  g_assert_cmpfloat_with_epsilon((double)oct_ledger_weights(&l, 0) / 1e9, 205.1, 0.05);
  c.parallel.expert_parallel = c.parallel.replicate_shared = TRUE;
  make(&c, &l);
  g_assert_cmpfloat_with_epsilon((double)oct_ledger_weights(&l, 0) / 1e9, 226.4, 0.1);
  c = k3_config(spec, 4);
  c.parallel.pipeline = 2;
  make(&c, &l);
  check_sums(&l);
  g_assert_cmpfloat_with_epsilon((double)oct_ledger_weights(&l, 0) / 1e9, 195.70, 0.01);
  g_assert_cmpfloat_with_epsilon((double)oct_ledger_weights(&l, 1) / 1e9, 194.94, 0.01);
}

/* 449,372,160 B of state per sequence and 13,824 B of FP8 latents per token; state is sharded by
 * head, latents are not, unless decode-context parallelism cuts them by token. */
static void
test_k3_cache(void) {
  g_autoptr(oct_model_spec) spec = load("kimi-k3");
  oct_ledger_config c = k3_config(spec, 8);
  oct_ledger l;
  make(&c, &l);
  g_assert_cmpuint(l.plan.n_groups, ==, 2);
  guint32 states = l.groups[0].kind == OCT_ATTENTION_KDA ? 0 : 1, pages = 1 - states;
  g_assert_cmpuint(l.stages[0].unit_bytes[states], ==, 449372160 / 8);
  g_assert_cmpuint(l.stages[0].unit_bytes[pages], ==, 16 * 13824);
  g_assert_cmpuint(l.live_slots, ==, 128 + 8);
  g_assert_cmpuint(l.plan.groups[states].n_device, ==, l.live_slots + l.snapshot_slots);
  guint64 replicated = l.cache_tokens;
  /* One snapshot for every 8,192 tokens of pages. */
  g_assert_cmpfloat_with_epsilon((double)l.cache_tokens / l.snapshot_slots, 8192, 80);
  c.parallel.decode_context = 8;
  c.gpu_memory_utilization = 0.9;
  make(&c, &l);
  check_sums(&l);
  g_assert_cmpuint(l.page_tokens, ==, 128);
  g_assert_cmpuint(l.stages[0].unit_bytes[pages], ==, 128 * 13824 / 8);
  g_test_message("K3 on 8 B300, fp8: %" G_GUINT64_FORMAT
                 " tokens, with DCP 8 at 0.90 %" G_GUINT64_FORMAT " (a deployment has 21.6 M)",
                 replicated, l.cache_tokens);
  /* That deployment keeps its snapshots elsewhere; with as few of them here it would come close. */
  g_assert_cmpuint(l.cache_tokens, >, 14000000);
  g_assert_cmpuint(l.cache_tokens, <, 22000000);
  c.prefix_caching = FALSE;
  make(&c, &l);
  g_assert_cmpuint(l.snapshot_slots, ==, 0);
  g_assert_cmpuint(l.cache_tokens, >, 21600000);
}

/* An RTX 4090 that serves Llama 3.1 8B in vLLM 0.19 has 2,588 blocks of 16 tokens. */
static void
test_rtx4090(void) {
  g_autoptr(oct_model_spec) spec = load("llama-3.1-8b");
  oct_ledger_config c;
  oct_ledger_config_default(&c);
  c.spec = spec;
  c.device_bytes = G_GUINT64_CONSTANT(25250627584);
  c.gpu_memory_utilization = 0.9;
  c.max_num_seqs = 256;
  c.max_num_batched_tokens = 2048;
  c.max_model_len = 32768;
  oct_ledger l;
  make(&c, &l);
  check_sums(&l);
  g_test_message("RTX 4090, Llama 3.1 8B: %u blocks, vLLM has 2588", l.plan.groups[0].n_device);
  g_assert_cmpuint(l.plan.groups[0].n_device, >, 2588 * 93 / 100);
  g_assert_cmpuint(l.plan.groups[0].n_device, <, 2588 * 107 / 100);
}

/* ---------------------------------------------------------------- refusals */

static void
test_refusals(void) {
  g_autoptr(oct_model_spec) spec = load("kimi-k3");
  GQuark engine = OCT_ENGINE_ERROR;
  oct_ledger_config c = k3_config(spec, 1);
  c.parallel.data = 8;
  c.parallel.expert_parallel = TRUE;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "weights 294.317 GB + activations");
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG,
                 "288.400 GB x gpu-memory-utilization 0.92 = 265.328 GB may be used (over by");
  /* The model fits and its cache does not. */
  c = k3_config(spec, 8);
  c.gpu_memory_utilization = 0.7009;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "at least 513 pages of 16 tokens");
  c = k3_config(spec, 8);
  c.state_memory_ratio = 0;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "state slot");
  c = k3_config(spec, 8);
  c.num_gpu_blocks_override = 1000000;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "num-gpu-blocks-override 1000000");
  c.num_gpu_blocks_override = 0;
  c.kv_offloading_bytes = 400000000;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "kv-offloading-size 0.400 GB over 1 KV");
  c.kv_offloading_bytes = 3000ULL << 30;
  c.host_bytes = 2048ULL << 30;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "the node has 2199.023 GB");
  c = k3_config(spec, 8);
  c.expert_cache_bytes = 1000000;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "expert-cache-size of 0.001 GB");
  c = k3_config(spec, 7);
  assert_refused(&c, OCT_MODEL_ERROR, OCT_MODEL_ERROR_LAYOUT, "96 attention heads");
  c = k3_config(spec, 8);
  c.block_size = 0;
  assert_refused(&c, OCT_BASE_ERROR, OCT_BASE_ERROR_LIMIT, "block-size");
  const double bad[] = {0, -1, 1.01, NAN, INFINITY};
  for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
    c = k3_config(spec, 8);
    c.gpu_memory_utilization = bad[i];
    assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "gpu-memory-utilization");
  }
  c = k3_config(spec, 8);
  c.state_memory_ratio = NAN;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "state-memory-ratio");
  g_autoptr(oct_model_spec) dense = load("llama-3.1-8b");
  c = k3_config(dense, 1);
  c.expert_cache_bytes = 1 << 30;
  assert_refused(&c, engine, OCT_ENGINE_ERROR_CONFIG, "no routed experts");
}

/* ---------------------------------------------------------------- options */

static void
test_override(void) {
  g_autoptr(oct_model_spec) spec = load("llama-3.1-70b");
  oct_ledger_config c = k3_config(spec, 8);
  oct_ledger l;
  c.num_gpu_blocks_override = 12345;
  make(&c, &l);
  check_sums(&l);
  g_assert_cmpuint(l.plan.groups[0].n_device, ==, 12345);
  g_assert_cmpuint(l.cache_tokens, ==, 12345 * 16);
  /* Below what one chunk needs, which only an override may ask for. */
  c.num_gpu_blocks_override = 2;
  make(&c, &l);
  g_assert_cmpuint(l.plan.groups[0].n_device, ==, 2);
}

static void
test_state_ratio(void) {
  g_autoptr(oct_model_spec) spec = load("kimi-k3");
  oct_ledger_config c = k3_config(spec, 8);
  oct_ledger l;
  make(&c, &l);
  guint64 cache = l.stages[0].terms[OCT_LEDGER_PAGES] + l.stages[0].terms[OCT_LEDGER_STATES] +
                  l.stages[0].terms[OCT_LEDGER_UNUSED];
  for (int tenths = 1; tenths <= 9; tenths++) {
    c.state_memory_ratio = tenths / 10.0;
    make(&c, &l);
    check_sums(&l);
    double share = (double)l.stages[0].terms[OCT_LEDGER_STATES] / (double)cache;
    g_assert_cmpfloat_with_epsilon(share, tenths / 10.0, 0.001);
  }
  /* More sequences than half of the cache can hold: as many as it can, and the table says so. */
  c.state_memory_ratio = -1;
  c.max_num_seqs = 1024;
  make(&c, &l);
  check_sums(&l);
  g_assert_cmpuint(l.live_slots, <, 1024);
  double half = (double)l.live_slots * (double)l.stages[0].unit_bytes[0];
  g_assert_cmpfloat_with_epsilon(half / (double)(cache / 2), 1, 0.05);
  g_autofree char *table = oct_ledger_format(&l);
  g_assert_nonnull(strstr(table, "fewer than max-num-seqs 1024"));
}

static void
test_host(void) {
  g_autoptr(oct_model_spec) spec = load("kimi-k3");
  oct_ledger_config c = k3_config(spec, 8);
  c.kv_offloading_bytes = 512ULL << 30;
  oct_ledger l;
  make(&c, &l);
  guint32 states = l.groups[0].kind == OCT_ATTENTION_KDA ? 0 : 1, pages = 1 - states;
  /* Latents are the same on all ranks: once. State is cut by head: all of it. */
  g_assert_cmpuint(l.host_unit_bytes[pages], ==, 16 * 13824);
  g_assert_cmpuint(l.host_unit_bytes[states], ==, 449372160);
  guint64 used = l.plan.groups[pages].n_host * l.host_unit_bytes[pages] +
                 l.plan.groups[states].n_host * l.host_unit_bytes[states];
  g_assert_cmpuint(used, ==, l.host_cache_bytes);
  g_assert_cmpuint(used, <=, c.kv_offloading_bytes);
  g_assert_cmpuint(used + 16 * 13824, >, c.kv_offloading_bytes);
  /* Eight times the ranks, the same host memory: half for each of two domains. */
  g_autoptr(oct_model_spec) deepseek = load("deepseek-v3");
  c = k3_config(deepseek, 4);
  c.parallel.data = 2;
  c.parallel.expert_parallel = TRUE;
  c.kv_offloading_bytes = 512ULL << 30;
  make(&c, &l);
  g_assert_cmpfloat_with_epsilon(
      (double)l.plan.groups[0].n_host * (double)l.host_unit_bytes[0] / GIB, 256, 0.01);
  /* KV heads that tensor parallelism replicates go to the host once too. */
  g_autoptr(oct_model_spec) qwen = load("qwen3-30b-a3b");
  c = k3_config(qwen, 8);
  c.kv_offloading_bytes = 64ULL << 30;
  make(&c, &l);
  g_assert_cmpuint(l.host_unit_bytes[0] * 2, ==, l.stages[0].unit_bytes[0] * 8);
}

static void
test_experts(void) {
  g_autoptr(oct_model_spec) spec = load("kimi-k3");
  oct_ledger_config c = k3_config(spec, 8);
  c.device_bytes = G_GUINT64_CONSTANT(150754820096); /* H200: the model does not fit */
  assert_refused(&c, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG, "does not fit");
  oct_ledger tp, ep;
  c.expert_cache_bytes = 60000000000;
  make(&c, &tp);
  check_sums(&tp);
  c.parallel.expert_parallel = TRUE;
  make(&c, &ep);
  check_sums(&ep);
  /* An eighth of an expert in 92 layers, or a whole one. */
  guint64 slot = 92 * G_GUINT64_CONSTANT(17547264);
  g_assert_cmpuint(ep.plan.n_expert_slots, ==, c.expert_cache_bytes / slot);
  g_assert_cmpuint(ep.rank_experts, ==, 112);
  g_assert_cmpuint(tp.plan.n_expert_slots, ==, c.expert_cache_bytes / (slot / 8));
  g_assert_cmpuint(tp.rank_experts, ==, 896);
  /* And one layer's, which a step of many tokens may bring. */
  g_assert_cmpuint(ep.stages[0].terms[OCT_LEDGER_EXPERTS], ==,
                   ep.plan.n_expert_slots * slot + 112 * G_GUINT64_CONSTANT(17547264));
  g_assert_cmpuint(tp.stages[0].terms[OCT_LEDGER_EXPERTS], ==,
                   tp.plan.n_expert_slots * (slot / 8) + 112 * G_GUINT64_CONSTANT(17547264));
  g_assert_cmpuint(ep.host_expert_bytes, ==, 896 * slot);
  /* Room for all of them: none needs to be moved. */
  c = k3_config(spec, 8);
  c.expert_cache_bytes = G_GUINT64_CONSTANT(190000000000);
  make(&c, &tp);
  g_assert_cmpuint(tp.plan.n_expert_slots, ==, 0);
  g_assert_cmpuint(tp.host_expert_bytes, ==, 0);
}

/* gpt-oss: 128-token windows in half of the layers. */
static void
test_windows(void) {
  g_autoptr(oct_model_spec) spec = load("gpt-oss-120b");
  oct_ledger_config c = k3_config(spec, 1);
  c.prefix_caching = FALSE;
  oct_ledger l;
  make(&c, &l);
  check_sums(&l);
  guint32 window = l.groups[0].window > 0 ? 0 : 1, full = 1 - window;
  g_assert_cmpuint(l.groups[window].window, ==, 128);
  /* 128 sequences of 8 + 2 pages, and two chunks of 8,192 tokens. */
  g_assert_cmpuint(l.plan.groups[window].n_device, ==, 128 * 10 + 2 * 512);
  g_assert_cmpuint(l.plan.groups[full].n_device, >, 10 * l.plan.groups[window].n_device);
  c.prefix_caching = TRUE;
  make(&c, &l);
  check_sums(&l);
  g_assert_cmpuint(l.plan.groups[window].n_device, ==, l.plan.groups[full].n_device / 4);
  /* Never more of them than of full pages. */
  c.num_gpu_blocks_override = 600;
  make(&c, &l);
  g_assert_cmpuint(l.plan.groups[window].n_device, ==, 600);
}

static void
test_table(void) {
  g_autoptr(oct_model_spec) spec = load("kimi-k3");
  oct_ledger_config c = k3_config(spec, 4);
  c.parallel.pipeline = 2;
  c.kv_offloading_bytes = 512ULL << 30;
  oct_ledger l;
  make(&c, &l);
  g_autofree char *table = oct_ledger_format(&l);
  const oct_ledger_stage *s = &l.stages[l.tightest];
  for (int t = 0; t < OCT_LEDGER_TERMS; t++) {
    if (s->terms[t] == 0)
      continue;
    g_autofree char *number = g_strdup_printf("%.3f", (double)s->terms[t] / 1e9);
    if (strstr(table, oct_ledger_term_name((oct_ledger_term)t)) == NULL ||
        strstr(table, number) == NULL)
      g_error("no %s of %s in:\n%s", oct_ledger_term_name((oct_ledger_term)t), number, table);
  }
  g_assert_nonnull(strstr(table, "stage 1: weights 194.9"));
  g_assert_nonnull(strstr(table, "host: cache"));
}

/* ---------------------------------------------------------------- properties */

static void
draw(oct_rng *rng, const oct_model_spec *spec, oct_ledger_config *c) {
  static const guint64 devices[] = {B300_BYTES, 150754820096, 85520809984, 25250627584};
  oct_ledger_config_default(c);
  c->spec = spec;
  c->device_bytes = devices[oct_rng_below(rng, G_N_ELEMENTS(devices))];
  c->parallel.tensor = 1u << oct_rng_below(rng, 4);
  c->parallel.pipeline = (guint32)oct_rng_below(rng, 4) + 1;
  c->parallel.data = 1u << oct_rng_below(rng, 2);
  c->parallel.decode_context = 1u << oct_rng_below(rng, 2);
  c->parallel.expert_parallel = oct_rng_below(rng, 2) == 0;
  c->kv_dtype = oct_rng_below(rng, 2) == 0 ? OCT_DTYPE_FP8 : OCT_DTYPE_BF16;
  c->block_size = 1u << oct_rng_below(rng, 8);
  c->max_num_seqs = (guint32)oct_rng_below(rng, 1024) + 1;
  c->max_num_batched_tokens = (guint32)oct_rng_below(rng, 16384) + 1;
  c->depth = c->parallel.pipeline + (guint32)oct_rng_below(rng, 2);
  c->prefix_caching = oct_rng_below(rng, 2) == 0;
  c->gpu_memory_utilization = 0.5 + 0.5 * oct_rng_uniform(rng);
  if (oct_rng_below(rng, 4) == 0)
    c->state_memory_ratio = oct_rng_uniform(rng);
  if (oct_rng_below(rng, 4) == 0)
    c->expert_cache_bytes = oct_rng_below(rng, c->device_bytes);
  if (oct_rng_below(rng, 2) == 0)
    c->kv_offloading_bytes = oct_rng_below(rng, 1ULL << 40);
}

static void
test_random(void) {
  g_auto(GStrv) names = oct_model_zoo_names(NULL);
  oct_rng rng;
  guint n_made = 0, n_refused = 0;
  oct_rng_seed(&rng, 1, 1);
  for (guint m = 0; names[m] != NULL; m++) {
    g_autoptr(oct_model_spec) spec = load(names[m]);
    for (int i = 0; i < 60; i++) {
      oct_ledger_config c;
      oct_ledger l, more;
      g_autoptr(GError) error = NULL;
      draw(&rng, spec, &c);
      if (!oct_ledger_make(&c, &l, &error)) {
        g_assert_nonnull(error);
        n_refused++;
        continue;
      }
      n_made++;
      check_sums(&l);
      g_assert_cmpuint(l.host_cache_bytes, <=, c.kv_offloading_bytes);
      for (guint32 g = 0; g < l.plan.n_groups; g++) {
        g_assert_cmpuint(l.plan.groups[g].n_device, >, 0);
        g_assert_cmpint(l.plan.groups[g].n_host > 0, ==, c.kv_offloading_bytes > 0);
      }
      /* More memory never gives fewer tokens. */
      c.device_bytes += 1 << 30;
      make(&c, &more);
      g_assert_cmpuint(more.cache_tokens, >=, l.cache_tokens);
    }
  }
  g_test_message("%u ledgers made, %u refused", n_made, n_refused);
  g_assert_cmpuint(n_made, >, 100);
  g_assert_cmpuint(n_refused, >, 100);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/ledger/gives-kimi-k3-the-weights-of-its-deployments", test_k3_weights);
  g_test_add_func("/sched/ledger/gives-kimi-k3-a-cache-like-its-deployments", test_k3_cache);
  g_test_add_func("/sched/ledger/is-within-7-percent-of-a-measured-block-count", test_rtx4090);
  g_test_add_func("/sched/ledger/refuses-with-the-whole-sum", test_refusals);
  g_test_add_func("/sched/ledger/takes-a-page-count-from-the-user", test_override);
  g_test_add_func("/sched/ledger/splits-by-the-state-memory-ratio", test_state_ratio);
  g_test_add_func("/sched/ledger/counts-replicated-groups-once-on-the-host", test_host);
  g_test_add_func("/sched/ledger/counts-expert-slots-for-all-moe-layers", test_experts);
  g_test_add_func("/sched/ledger/gives-windows-what-sequences-can-use", test_windows);
  g_test_add_func("/sched/ledger/prints-every-term", test_table);
  g_test_add_func("/sched/ledger/adds-up-for-random-layouts", test_random);
  return g_test_run();
}
