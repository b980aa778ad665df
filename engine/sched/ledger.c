/* The ledger, in this order: the fixed terms of every stage; what is left for the cache; state
 * slots; then pages, as many as all stages can hold, by bisection over the one number that decides
 * all page groups; last the host tier, the same way. */
#include "engine/sched/ledger.h"

#include "engine/base/assert.h"
#include "engine/base/limits.h"
#include "engine/sched/engine.h"

#define COUNT_MAX (G_MAXUINT32 / 2)
/* Sliding windows with prefix caching: at least this part of the full groups' pages. */
#define WINDOW_SHARE 4

static gboolean refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
refuse(GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  g_autofree char *message = g_strdup_vprintf(format, arguments);
  va_end(arguments);
  g_set_error_literal(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG, message);
  return FALSE;
}

static double
gb(guint64 bytes) {
  return (double)bytes / 1e9;
}

static guint64
divide_up(guint64 a, guint64 b) {
  return (a + b - 1) / b;
}

void
oct_ledger_config_default(oct_ledger_config *config) {
  *config = (oct_ledger_config){
      .parallel = OCT_PARALLEL_DEFAULT,
      .kv_dtype = OCT_DTYPE_BF16,
      .block_size = (guint32)oct_limit_get(OCT_LIMIT_BLOCK_SIZE)->standard,
      .max_num_seqs = (guint32)oct_limit_get(OCT_LIMIT_MAX_NUM_SEQS)->standard,
      .max_num_batched_tokens = (guint32)oct_limit_get(OCT_LIMIT_MAX_NUM_BATCHED_TOKENS)->standard,
      .depth = 2,
      .graph_max_batch = 512,
      .prefix_caching = TRUE,
      .gpu_memory_utilization = 0.92,
      .state_memory_ratio = -1,
  };
}

const char *
oct_ledger_term_name(oct_ledger_term term) {
  static const char *const names[OCT_LEDGER_TERMS] = {
      "attention",     "dense FFN", "routed experts", "shared experts", "router", "latent",
      "norms",         "embedding", "head",           "activations",    "logits", "graphs",
      "communication", "context",   "KV pages",       "state slots",    "unused", "reserve",
  };
  oct_assert(term < OCT_LEDGER_TERMS);
  return names[term];
}

/* ---------------------------------------------------------------- checks */

static gboolean
check_config(const oct_ledger_config *c, GError **error) {
  const struct {
    oct_limit limit;
    guint32 value;
  } limited[] = {{OCT_LIMIT_BLOCK_SIZE, c->block_size},
                 {OCT_LIMIT_MAX_NUM_SEQS, c->max_num_seqs},
                 {OCT_LIMIT_MAX_NUM_BATCHED_TOKENS, c->max_num_batched_tokens}};
  for (guint i = 0; i < G_N_ELEMENTS(limited); i++)
    if (!oct_limit_check(limited[i].limit, limited[i].value, error))
      return FALSE;
  if (!(c->gpu_memory_utilization > 0 && c->gpu_memory_utilization <= 1))
    return refuse(error, "gpu-memory-utilization %g is not above 0 and at most 1",
                  c->gpu_memory_utilization);
  if (!(c->state_memory_ratio < 1))
    return refuse(error, "state-memory-ratio %g is not below 1", c->state_memory_ratio);
  if (c->device_bytes == 0 || c->device_bytes > G_GUINT64_CONSTANT(1) << 50)
    return refuse(error, "a GPU of %" G_GUINT64_FORMAT " bytes: allowed are 1 to 2^50",
                  c->device_bytes);
  if (c->kv_offloading_bytes > G_GUINT64_CONSTANT(1) << 56)
    return refuse(error, "kv-offloading-size of %" G_GUINT64_FORMAT " bytes is above 2^56",
                  c->kv_offloading_bytes);
  if (c->num_gpu_blocks_override > COUNT_MAX)
    return refuse(error, "num-gpu-blocks-override %u is above %u", c->num_gpu_blocks_override,
                  COUNT_MAX);
  return oct_parallel_check(c->spec, &c->parallel, error);
}

/* ---------------------------------------------------------------- fixed terms */

/* MoE layers of a stage, and the bytes of one of the rank's experts in all of them together: a slot
 * is one expert in every layer. */
static guint32
stage_experts(const oct_ledger_config *c, guint32 stage, guint64 *slot_bytes) {
  const oct_model_spec *spec = c->spec;
  guint32 first, count, n_layers = 0, rank_experts = 0;
  oct_weights weights;
  oct_parallel_stage(spec, &c->parallel, stage, &first, &count);
  for (guint32 l = first; l < first + count; l++) {
    const oct_ffn_spec *f = &spec->ffn[spec->layers[l].ffn];
    n_layers += f->n_experts > 0;
    guint32 ranks = c->parallel.expert_parallel ? c->parallel.tensor * c->parallel.data : 1;
    rank_experts = MAX(rank_experts, (f->n_experts + ranks - 1) / ranks);
  }
  oct_model_rank_weights(spec, &c->parallel, stage, &weights);
  *slot_bytes = rank_experts > 0 ? weights.experts.bytes / rank_experts : 0;
  return n_layers;
}

static gboolean
plan_experts(oct_ledger *l, GError **error) {
  const oct_ledger_config *c = &l->config;
  for (guint32 i = 0; i < c->spec->n_ffn; i++)
    l->rank_experts = MAX(l->rank_experts, c->spec->ffn[i].n_experts);
  if (c->parallel.expert_parallel)
    l->rank_experts /= c->parallel.tensor * c->parallel.data;
  if (c->expert_cache_bytes == 0)
    return TRUE;
  if (l->rank_experts == 0)
    return refuse(error, "expert-cache-size: %s has no routed experts", c->spec->name);
  guint64 slots = G_MAXUINT32;
  for (guint32 s = 0; s < l->n_stages; s++) {
    guint64 slot_bytes;
    if (stage_experts(c, s, &slot_bytes) == 0)
      continue;
    slots = MIN(slots, c->expert_cache_bytes / slot_bytes);
    if (slots == 0)
      return refuse(error,
                    "expert-cache-size of %.3f GB per GPU holds no expert: one in each MoE layer "
                    "of stage %u takes %.3f GB",
                    gb(c->expert_cache_bytes), s, gb(slot_bytes));
  }
  if (slots >= l->rank_experts)
    return TRUE; /* all are resident */
  l->plan.n_expert_slots = (guint32)slots;
  oct_weights all;
  oct_model_weights(c->spec, &all);
  l->host_expert_bytes = all.experts.bytes;
  return TRUE;
}

/* Experts of one layer that a step may have to bring along beside those in slots: as many as it can
 * choose, once for all layers. */
static guint32
scratch_experts(const oct_ledger *l) {
  const oct_ledger_config *c = &l->config;
  guint64 tokens = MAX(c->max_num_batched_tokens, c->max_num_seqs), top_k = 0;
  if (c->parallel.expert_parallel)
    tokens *= c->parallel.data;
  for (guint32 i = 0; i < c->spec->n_ffn; i++)
    top_k = MAX(top_k, c->spec->ffn[i].top_k);
  return (guint32)MIN(tokens * top_k, l->rank_experts);
}

static void
fix_terms(oct_ledger *l, guint32 stage) {
  const oct_ledger_config *c = &l->config;
  oct_ledger_stage *s = &l->stages[stage];
  oct_weights w;
  oct_parallel_stage(c->spec, &c->parallel, stage, &s->first_layer, &s->n_layers);
  oct_model_rank_weights(c->spec, &c->parallel, stage, &w);
  if (l->plan.n_expert_slots > 0) {
    guint64 slot_bytes;
    guint32 n_layers = stage_experts(c, stage, &slot_bytes);
    w.experts.bytes = l->plan.n_expert_slots * slot_bytes;
    if (n_layers > 0)
      w.experts.bytes += scratch_experts(l) * (slot_bytes / n_layers);
  }
  const guint64 terms[] = {
      w.attention.bytes,
      w.dense_ffn.bytes,
      w.experts.bytes,
      w.shared_experts.bytes,
      w.router.bytes,
      w.latent.bytes,
      w.norms.bytes,
      w.embedding.bytes,
      w.head.bytes,
      oct_ledger_activations(c, stage),
      oct_ledger_logits(c, stage),
      oct_ledger_graphs(c, stage),
      oct_ledger_communication(c, stage),
      OCT_LEDGER_CONTEXT_BYTES,
  };
  G_STATIC_ASSERT(G_N_ELEMENTS(terms) == OCT_LEDGER_FIRST_CACHE_TERM);
  for (guint i = 0; i < G_N_ELEMENTS(terms); i++)
    s->terms[i] = terms[i];
  s->terms[OCT_LEDGER_RESERVE] =
      c->device_bytes - (guint64)((double)c->device_bytes * c->gpu_memory_utilization);
  for (guint32 g = 0; g < l->plan.n_groups; g++)
    s->unit_bytes[g] =
        l->page_tokens * oct_model_rank_token_bytes(c->spec, &c->parallel, stage, c->kv_dtype, g) +
        oct_model_rank_state_bytes(c->spec, &c->parallel, stage, g);
}

guint64
oct_ledger_weights(const oct_ledger *l, guint32 stage) {
  guint64 bytes = 0;
  for (int t = OCT_LEDGER_ATTENTION; t <= OCT_LEDGER_HEAD; t++)
    bytes += l->stages[stage].terms[t];
  return bytes;
}

guint64
oct_ledger_fixed(const oct_ledger *l, guint32 stage) {
  guint64 bytes = 0;
  for (int t = 0; t < OCT_LEDGER_FIRST_CACHE_TERM; t++)
    bytes += l->stages[stage].terms[t];
  return bytes;
}

static guint64
usable(const oct_ledger *l, guint32 stage) {
  return l->config.device_bytes - l->stages[stage].terms[OCT_LEDGER_RESERVE];
}

/* Bytes of a stage that the cache may take; 0 when the fixed terms take more. */
static guint64
cache_bytes(const oct_ledger *l, guint32 stage) {
  guint64 fixed = oct_ledger_fixed(l, stage), all = usable(l, stage);
  return all > fixed ? all - fixed : 0;
}

/* The sum that every refusal shows. */
static gboolean
refuse_sum(const oct_ledger *l, guint32 stage, GError **error, const char *what, guint64 needed) {
  const guint64 *t = l->stages[stage].terms;
  double over = gb(oct_ledger_fixed(l, stage)) + gb(needed) - gb(usable(l, stage));
  g_autofree char *more =
      needed > 0 ? g_strdup_printf("; %s takes %.3f GB", what, gb(needed)) : g_strdup("");
  return refuse(
      error,
      "%s does not fit: on each GPU of stage %u of %u, weights %.3f GB + activations %.3f + logits "
      "%.3f + graphs %.3f + communication %.3f + context %.3f = %.3f GB%s, while %.3f GB x "
      "gpu-memory-utilization %g = %.3f GB may be used (over by %.3f GB)",
      l->config.spec->name, stage, l->n_stages, gb(oct_ledger_weights(l, stage)),
      gb(t[OCT_LEDGER_ACTIVATIONS]), gb(t[OCT_LEDGER_LOGITS]), gb(t[OCT_LEDGER_GRAPHS]),
      gb(t[OCT_LEDGER_COMMUNICATION]), gb(t[OCT_LEDGER_CONTEXT]), gb(oct_ledger_fixed(l, stage)),
      more, gb(l->config.device_bytes), l->config.gpu_memory_utilization, gb(usable(l, stage)),
      over);
}

/* ---------------------------------------------------------------- groups */

static gboolean
is_state(const oct_ledger *l, guint32 g) {
  return l->groups[g].kind == OCT_ATTENTION_KDA;
}

static gboolean
has_state(const oct_ledger *l) {
  for (guint32 g = 0; g < l->plan.n_groups; g++)
    if (is_state(l, g))
      return TRUE;
  return FALSE;
}

/* Pages that sliding-window group g gets beside `full` pages of full attention. */
static guint64
window_pages(const oct_ledger *l, guint32 g, guint64 full) {
  const oct_ledger_config *c = &l->config;
  guint64 page = l->page_tokens;
  /* A sequence's window begins and ends inside a page, and its next page is taken ahead. */
  guint64 need = c->max_num_seqs * (divide_up(l->groups[g].window, page) + 2) +
                 c->depth * divide_up(c->max_num_batched_tokens, page);
  if (c->prefix_caching)
    need = MAX(need, full / WINDOW_SHARE);
  return MIN(need, full);
}

static guint64
group_pages(const oct_ledger *l, guint32 g, guint64 full) {
  return l->groups[g].window > 0 ? window_pages(l, g, full) : full;
}

/* n x unit; a config may name widths whose product no machine has: then the largest number. */
static guint64
times(guint64 n, guint64 unit) {
  guint64 bytes;
  return __builtin_mul_overflow(n, unit, &bytes) ? G_MAXUINT64 : bytes;
}

/* Bytes of `states` state slots and of the page groups at `full` pages. */
static guint64
units_bytes(const oct_ledger *l, const guint64 *unit_bytes, guint64 states, guint64 full) {
  guint64 sum = 0;
  for (guint32 g = 0; g < l->plan.n_groups; g++) {
    guint64 bytes = times(is_state(l, g) ? states : group_pages(l, g, full), unit_bytes[g]);
    if (__builtin_add_overflow(sum, bytes, &sum))
      return G_MAXUINT64;
  }
  return sum;
}

/* Most pages of full attention that go into `room` bytes beside the states. */
static guint64
most_pages(const oct_ledger *l, const guint64 *unit_bytes, guint64 states, guint64 room) {
  guint64 low = 0, high = COUNT_MAX; /* low fits */
  if (units_bytes(l, unit_bytes, states, 0) > room)
    return 0;
  while (low < high) {
    guint64 middle = (low + high + 1) / 2;
    if (units_bytes(l, unit_bytes, states, middle) <= room)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

static guint64
state_unit(const oct_ledger *l, const guint64 *unit_bytes) {
  guint64 bytes = 0;
  for (guint32 g = 0; g < l->plan.n_groups; g++)
    if (is_state(l, g))
      bytes += unit_bytes[g];
  return bytes;
}

/* Snapshots that go with the pages of `room` bytes. */
static guint64
snapshots_in(const oct_ledger *l, const guint64 *unit_bytes, guint64 room) {
  guint64 state = state_unit(l, unit_bytes), pages = 0;
  if (state == 0)
    return COUNT_MAX;
  for (guint32 g = 0; g < l->plan.n_groups; g++)
    if (!is_state(l, g))
      pages += unit_bytes[g] * divide_up(OCT_LEDGER_SNAPSHOT_TOKENS, l->page_tokens);
  return room / MAX(state + pages, 2 * state);
}

/* ---------------------------------------------------------------- device */

/* Slots for live sequences, and for snapshots, of the least roomy stage. */
static void
plan_states(oct_ledger *l) {
  const oct_ledger_config *c = &l->config;
  guint64 live = c->max_num_seqs + divide_up(c->max_num_seqs, OCT_LEDGER_DRAIN);
  guint64 snapshots = c->prefix_caching ? COUNT_MAX : 0, half = COUNT_MAX, share = COUNT_MAX;
  for (guint32 s = 0; s < l->n_stages; s++) {
    guint64 unit = state_unit(l, l->stages[s].unit_bytes), room = cache_bytes(l, s);
    if (unit == 0)
      continue;
    half = MIN(half, room / 2 / unit);
    share = MIN(share, (guint64)(MAX(c->state_memory_ratio, 0) * (double)room) / unit);
  }
  if (c->state_memory_ratio >= 0) {
    l->live_slots = (guint32)MIN(live, share);
    l->snapshot_slots = (guint32)share - l->live_slots;
    return;
  }
  live = MIN(live, half);
  for (guint32 s = 0; s < l->n_stages && snapshots > 0; s++) {
    const oct_ledger_stage *stage = &l->stages[s];
    guint64 used = live * state_unit(l, stage->unit_bytes);
    if (c->num_gpu_blocks_override > 0)
      used += units_bytes(l, stage->unit_bytes, 0, c->num_gpu_blocks_override);
    guint64 room = cache_bytes(l, s) > used ? cache_bytes(l, s) - used : 0;
    snapshots = MIN(snapshots, snapshots_in(l, stage->unit_bytes, room));
  }
  l->live_slots = (guint32)live;
  l->snapshot_slots = (guint32)snapshots;
}

static gboolean
plan_pages(oct_ledger *l, guint64 *full, GError **error) {
  const oct_ledger_config *c = &l->config;
  guint64 states = (guint64)l->live_slots + l->snapshot_slots;
  *full = COUNT_MAX;
  for (guint32 s = 0; s < l->n_stages; s++) {
    guint64 fit = most_pages(l, l->stages[s].unit_bytes, states, cache_bytes(l, s));
    if (fit < *full) {
      *full = fit;
      l->tightest = s;
    }
  }
  const guint64 *unit_bytes = l->stages[l->tightest].unit_bytes;
  if (c->num_gpu_blocks_override > 0) {
    if (c->num_gpu_blocks_override > *full) {
      g_autofree char *what =
          g_strdup_printf("num-gpu-blocks-override %u with %" G_GUINT64_FORMAT " state slots",
                          c->num_gpu_blocks_override, states);
      return refuse_sum(l, l->tightest, error, what,
                        units_bytes(l, unit_bytes, states, c->num_gpu_blocks_override));
    }
    *full = c->num_gpu_blocks_override;
    return TRUE;
  }
  guint64 least = divide_up(MIN(c->max_num_batched_tokens, c->max_model_len), l->page_tokens) + 1;
  if (*full >= least)
    return TRUE;
  g_autofree char *what = g_strdup_printf(
      "a cache of at least %" G_GUINT64_FORMAT
      " pages of %u tokens for one chunk, beside %" G_GUINT64_FORMAT " state slots,",
      least, l->page_tokens, states);
  return refuse_sum(l, l->tightest, error, what, units_bytes(l, unit_bytes, states, least));
}

static gboolean
plan_device(oct_ledger *l, GError **error) {
  for (guint32 s = 0; s < l->n_stages; s++)
    if (oct_ledger_fixed(l, s) > usable(l, s))
      return refuse_sum(l, s, error, NULL, 0);
  guint64 full;
  if (has_state(l)) {
    plan_states(l);
    if (l->live_slots + l->snapshot_slots == 0)
      return refuse_sum(l, 0, error,
                        "a cache of twice a state slot, or the state-memory-ratio for one,",
                        2 * state_unit(l, l->stages[0].unit_bytes));
  }
  if (!plan_pages(l, &full, error))
    return FALSE;
  for (guint32 g = 0; g < l->plan.n_groups; g++) {
    guint32 n =
        is_state(l, g) ? l->live_slots + l->snapshot_slots : (guint32)group_pages(l, g, full);
    l->plan.groups[g].n_device = n;
    if (!is_state(l, g) && l->groups[g].window == 0)
      l->cache_tokens = full * l->page_tokens;
    for (guint32 s = 0; s < l->n_stages; s++) {
      oct_ledger_stage *stage = &l->stages[s];
      stage->group_bytes[g] = n * stage->unit_bytes[g];
      stage->terms[is_state(l, g) ? OCT_LEDGER_STATES : OCT_LEDGER_PAGES] += stage->group_bytes[g];
    }
  }
  for (guint32 s = 0; s < l->n_stages; s++) {
    guint64 *t = l->stages[s].terms;
    t[OCT_LEDGER_UNUSED] = cache_bytes(l, s) - t[OCT_LEDGER_PAGES] - t[OCT_LEDGER_STATES];
  }
  return TRUE;
}

/* ---------------------------------------------------------------- host */

static gboolean
plan_host(oct_ledger *l, GError **error) {
  const oct_ledger_config *c = &l->config;
  guint64 room = c->kv_offloading_bytes / c->parallel.data, states = 0;
  guint64 *unit = l->host_unit_bytes;
  guint64 asked = c->kv_offloading_bytes + l->host_expert_bytes;
  if (c->host_bytes > 0 && asked > c->host_bytes)
    return refuse(error,
                  "host memory: kv-offloading-size %.3f GB + routed experts %.3f GB = %.3f GB, the "
                  "node has %.3f GB",
                  gb(c->kv_offloading_bytes), gb(l->host_expert_bytes), gb(asked),
                  gb(c->host_bytes));
  for (guint32 g = 0; g < l->plan.n_groups; g++)
    unit[g] = l->page_tokens * l->groups[g].token_bytes + l->groups[g].state_bytes;
  if (c->kv_offloading_bytes == 0)
    return TRUE;
  if (has_state(l)) {
    states = snapshots_in(l, unit, room);
    if (c->state_memory_ratio >= 0)
      states = (guint64)(c->state_memory_ratio * (double)room) / state_unit(l, unit);
    states = MAX(states, 1);
  }
  guint64 full = most_pages(l, unit, states, room);
  if (full == 0)
    return refuse(error,
                  "kv-offloading-size %.3f GB over %u KV domains is too small: one page of %u "
                  "tokens and one state take %.3f GB in each",
                  gb(c->kv_offloading_bytes), c->parallel.data, l->page_tokens,
                  gb(units_bytes(l, unit, states > 0, 1)));
  for (guint32 g = 0; g < l->plan.n_groups; g++)
    l->plan.groups[g].n_host = (guint32)(is_state(l, g) ? states : MAX(group_pages(l, g, full), 1));
  l->host_cache_bytes = c->parallel.data * units_bytes(l, unit, states, full);
  return TRUE;
}

gboolean
oct_ledger_make(const oct_ledger_config *config, oct_ledger *ledger, GError **error) {
  *ledger = (oct_ledger){.config = *config};
  oct_ledger_config *c = &ledger->config;
  if (c->max_model_len == 0)
    c->max_model_len = c->spec->max_position;
  if (!check_config(c, error))
    return FALSE;
  ledger->n_stages = c->parallel.pipeline;
  ledger->page_tokens = c->block_size * c->parallel.decode_context;
  ledger->plan.n_groups = oct_model_groups(c->spec, c->kv_dtype, ledger->groups);
  if (!plan_experts(ledger, error))
    return FALSE;
  for (guint32 s = 0; s < ledger->n_stages; s++)
    fix_terms(ledger, s);
  return plan_device(ledger, error) && plan_host(ledger, error);
}

/* ---------------------------------------------------------------- the table */

static const char *
group_name(const oct_layer_group *group) {
  static const char *const names[OCT_ATTENTION_COUNT] = {
      [OCT_ATTENTION_GQA] = "gqa",
      [OCT_ATTENTION_WINDOW] = "window",
      [OCT_ATTENTION_MLA] = "mla",
      [OCT_ATTENTION_KDA] = "kda",
  };
  return names[group->kind];
}

static void
format_terms(const oct_ledger *l, GString *out) {
  const oct_ledger_stage *s = &l->stages[l->tightest];
  for (int t = 0; t < OCT_LEDGER_FIRST_CACHE_TERM; t++) {
    if (s->terms[t] == 0)
      continue;
    const char *kind = t <= OCT_LEDGER_HEAD ? "weights: " : "";
    g_autofree char *name = g_strconcat(kind, oct_ledger_term_name((oct_ledger_term)t), NULL);
    g_string_append_printf(out, "  %-26s %9.3f", name, gb(s->terms[t]));
    if (t == OCT_LEDGER_EXPERTS && l->plan.n_expert_slots > 0)
      g_string_append_printf(out,
                             "  %u of %u experts in each layer, and room for %u that steps bring",
                             l->plan.n_expert_slots, l->rank_experts, scratch_experts(l));
    g_string_append_c(out, '\n');
  }
}

static void
format_groups(const oct_ledger *l, GString *out) {
  const oct_ledger_stage *s = &l->stages[l->tightest];
  for (guint32 g = 0; g < l->plan.n_groups; g++) {
    g_autofree char *name = g_strdup_printf("%s (%s)", is_state(l, g) ? "state slots" : "KV pages",
                                            group_name(&l->groups[g]));
    guint32 n = l->plan.groups[g].n_device;
    g_string_append_printf(out, "  %-26s %9.3f  ", name, gb(s->group_bytes[g]));
    if (is_state(l, g))
      g_string_append_printf(out, "%u of %.3f MB: %u live, %u snapshots\n", n,
                             (double)s->unit_bytes[g] / 1e6, l->live_slots, l->snapshot_slots);
    else
      g_string_append_printf(out, "%u of %u tokens, %.3f MB\n", n, l->page_tokens,
                             (double)s->unit_bytes[g] / 1e6);
  }
}

static void
format_host(const oct_ledger *l, GString *out) {
  if (l->host_expert_bytes > 0)
    g_string_append_printf(out, "host: routed experts %.3f GB\n", gb(l->host_expert_bytes));
  if (l->host_cache_bytes == 0)
    return;
  g_string_append_printf(out, "host: cache %.3f of %.3f GB:", gb(l->host_cache_bytes),
                         gb(l->config.kv_offloading_bytes));
  for (guint32 g = 0; g < l->plan.n_groups; g++)
    g_string_append_printf(out, "%s %u %s (%s) of %.3f MB", g > 0 ? "," : "",
                           l->plan.groups[g].n_host, is_state(l, g) ? "states" : "pages",
                           group_name(&l->groups[g]), (double)l->host_unit_bytes[g] / 1e6);
  g_string_append_printf(out, "%s\n", l->config.parallel.data > 1 ? ", in each KV domain" : "");
}

char *
oct_ledger_format(const oct_ledger *l) {
  const oct_ledger_config *c = &l->config;
  const oct_ledger_stage *s = &l->stages[l->tightest];
  GString *out = g_string_new(NULL);
  g_string_append_printf(out, "memory of one GPU in GB (1e9 bytes): %s, TP %u x PP %u x DP %u",
                         c->spec->name, c->parallel.tensor, c->parallel.pipeline, c->parallel.data);
  if (l->n_stages > 1)
    g_string_append_printf(out, "; stage %u, layers %u to %u, is the tightest", l->tightest,
                           s->first_layer, s->first_layer + s->n_layers - 1);
  g_string_append_c(out, '\n');
  format_terms(l, out);
  format_groups(l, out);
  g_string_append_printf(out, "  %-26s %9.3f\n", "unused", gb(s->terms[OCT_LEDGER_UNUSED]));
  g_string_append_printf(out, "  %-26s %9.3f  1 - gpu-memory-utilization %g\n", "reserve",
                         gb(s->terms[OCT_LEDGER_RESERVE]), c->gpu_memory_utilization);
  g_string_append_printf(out, "  %-26s %9.3f\n", "sum", gb(c->device_bytes));
  if (l->cache_tokens > 0)
    g_string_append_printf(out,
                           "KV cache: %" G_GUINT64_FORMAT " tokens%s, %.1f x max-model-len %u\n",
                           l->cache_tokens, c->parallel.data > 1 ? " in each KV domain" : "",
                           (double)l->cache_tokens / c->max_model_len, c->max_model_len);
  if (l->cache_tokens > 0 && l->cache_tokens < c->max_model_len)
    g_string_append_printf(out,
                           "note: requests of more than %" G_GUINT64_FORMAT " tokens are refused\n",
                           l->cache_tokens);
  if (has_state(l) && l->live_slots < c->max_num_seqs)
    g_string_append_printf(out,
                           "note: state slots for %u live sequences, fewer than max-num-seqs %u\n",
                           l->live_slots, c->max_num_seqs);
  for (guint32 i = 0; i < l->n_stages && l->n_stages > 1; i++)
    g_string_append_printf(out, "stage %u: weights %.3f, all but cache %.3f, unused %.3f\n", i,
                           gb(oct_ledger_weights(l, i)), gb(oct_ledger_fixed(l, i)),
                           gb(l->stages[i].terms[OCT_LEDGER_UNUSED]));
  format_host(l, out);
  return g_string_free(out, FALSE);
}
