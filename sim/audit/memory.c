/* Does it fit? Exact bytes of weights and cache from engine/model, the rest from the engine's own
 * ledger, which would refuse to start with the same sum. */
#include <string.h>

#include "engine/base/limits.h"
#include "engine/sched/ledger.h"
#include "sim/audit/internal.h"

/* KV and state of one request over the whole instance: each counted once, and as its ranks hold
 * it, copies included. */
typedef struct request_bytes {
  double once, held;
} request_bytes;

static request_bytes
request_of(const oct_audit_group *g, double context, oct_dtype kv) {
  request_bytes r = {0, 0};
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(g->spec, kv, groups);
  for (guint i = 0; i < n; i++) {
    double tokens = groups[i].window > 0 ? MIN(context, groups[i].window) : context;
    r.once += tokens * (double)groups[i].token_bytes + (double)groups[i].state_bytes;
    for (guint32 s = 0; s < g->parallel.pipeline; s++)
      r.held += g->parallel.tensor *
                (tokens * (double)oct_model_rank_token_bytes(g->spec, &g->parallel, s, kv, i) +
                 (double)oct_model_rank_state_bytes(g->spec, &g->parallel, s, i));
  }
  return r;
}

static double
total_weights(const oct_audit_group *g) {
  oct_weights w;
  oct_model_weights(g->spec, &w);
  return (double)oct_weights_total(&w).bytes;
}

/* What a rank of a stage holds. */
typedef void (*weights_fn)(const oct_model_spec *spec, const oct_parallel *parallel, guint32 stage,
                           oct_weights *out);

/* Of the fullest rank. */
static double
most_weights(const oct_audit_group *g, weights_fn weights_of) {
  double most = 0;
  for (guint32 s = 0; s < g->parallel.pipeline; s++) {
    oct_weights w;
    weights_of(g->spec, &g->parallel, s, &w);
    most = MAX(most, (double)oct_weights_total(&w).bytes);
  }
  return most;
}

static double
rank_weights(const oct_audit_group *g) {
  return most_weights(g, oct_model_rank_weights);
}

/* No software has less on its fullest rank. */
static double
even_weights(const oct_audit_group *g) {
  return most_weights(g, oct_cost_even_weights);
}

static void
compare(oct_audit_group *g, oct_audit_key key, double actual, const char *what) {
  if (!oct_audit_owns(g, key))
    return;
  g_autofree char *is = oct_audit_format(key, actual);
  g_autofree char *said = oct_audit_format(key, g->values[key]);
  gboolean good = oct_audit_agree(actual, g->values[key]);
  oct_audit_note(g, g->entries[key], "weights",
                 good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT, "%s of %s: %s; claimed %s",
                 what, g->spec->name, is, said);
}

/* ---------------------------------------------------------------- cache of a request */

static void
check_request(oct_audit_group *g) {
  if (!oct_audit_owns(g, OCT_AUDIT_KV_PER_REQUEST) || !oct_audit_has(g, OCT_AUDIT_CONTEXT))
    return;
  const double claimed = g->values[OCT_AUDIT_KV_PER_REQUEST];
  const request_bytes r =
      request_of(g, g->values[OCT_AUDIT_CONTEXT], oct_audit_kv_dtype(g->words[OCT_AUDIT_KV_TYPE]));
  gboolean good = oct_audit_agree(claimed, r.once) || oct_audit_agree(claimed, r.held);
  g_autofree char *once = oct_audit_format(OCT_AUDIT_KV_PER_REQUEST, r.once);
  g_autofree char *held = oct_audit_format(OCT_AUDIT_KV_PER_REQUEST, r.held);
  g_autofree char *said = oct_audit_format(OCT_AUDIT_KV_PER_REQUEST, claimed);
  oct_audit_note(
      g, g->entries[OCT_AUDIT_KV_PER_REQUEST], "cache",
      good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
      "%.0f tokens of %s are %s, with the copies that the ranks hold %s; claimed are %s, "
      "%.3g and %.3g times that",
      g->values[OCT_AUDIT_CONTEXT], g->spec->name, once, held, said, claimed / r.once,
      claimed / r.held);
}

/* Halving the bytes of a token cannot do more than double what fits. */
static void
check_types(oct_audit_group *g) {
  if (!oct_audit_has(g, OCT_AUDIT_REQUESTS) || !oct_audit_has(g, OCT_AUDIT_REQUESTS_BEFORE) ||
      !oct_audit_owns(g, OCT_AUDIT_REQUESTS) || !oct_audit_has(g, OCT_AUDIT_CONTEXT) ||
      g->words[OCT_AUDIT_KV_TYPE_BEFORE] == NULL)
    return;
  double context = g->values[OCT_AUDIT_CONTEXT];
  const char *after = g->words[OCT_AUDIT_KV_TYPE], *before = g->words[OCT_AUDIT_KV_TYPE_BEFORE];
  double from = request_of(g, context, oct_audit_kv_dtype(before)).once;
  double to = request_of(g, context, oct_audit_kv_dtype(after)).once;
  double claimed = g->values[OCT_AUDIT_REQUESTS] / g->values[OCT_AUDIT_REQUESTS_BEFORE];
  double most = from / to;
  g_autofree char *was = oct_audit_format(OCT_AUDIT_KV_PER_REQUEST, from);
  g_autofree char *is = oct_audit_format(OCT_AUDIT_KV_PER_REQUEST, to);
  gboolean good = claimed <= most * (1 + OCT_AUDIT_TOLERANCE);
  oct_audit_note(g, g->entries[OCT_AUDIT_REQUESTS], "KV type",
                 good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
                 "%s to %s takes a request from %s to %s: at most %.3g times as many (2 without "
                 "state); claimed are %.0f / %.0f = %.3g times",
                 before, after != NULL ? after : "bf16", was, is, most,
                 g->values[OCT_AUDIT_REQUESTS], g->values[OCT_AUDIT_REQUESTS_BEFORE], claimed);
}

/* ---------------------------------------------------------------- the whole node */

/* Requests of `context` tokens that the engine's ledger has room for; 0 with the reason. */
static double
ledger_requests(const oct_audit_group *g, double n, double context, oct_dtype kv, char **why) {
  oct_ledger_config c;
  oct_ledger ledger;
  g_autoptr(GError) error = NULL;
  oct_ledger_config_default(&c);
  c.spec = g->spec;
  c.parallel = g->parallel;
  c.kv_dtype = kv;
  c.max_num_seqs = (guint32)CLAMP(n, 1, (double)oct_limit_get(OCT_LIMIT_MAX_NUM_SEQS)->standard);
  c.max_num_batched_tokens = (guint32)oct_limit_get(OCT_LIMIT_MAX_NUM_BATCHED_TOKENS)->standard;
  c.depth = g->parallel.pipeline + 1;
  c.prefix_caching = FALSE;
  c.device_bytes = (guint64)g->profile->gpu.hbm_bytes;
  if (!oct_ledger_make(&c, &ledger, &error)) {
    *why = g_strdup(error->message);
    return 0;
  }
  if (ledger.cache_tokens == 0)
    return (double)ledger.live_slots * g->parallel.data;
  return (double)ledger.cache_tokens * g->parallel.data / context;
}

/* Bytes without any overhead against the bytes that the GPUs have: what no software can change. */
static void
check_fit(oct_audit_group *g, oct_audit_key key, oct_dtype kv) {
  if (!oct_audit_owns(g, key) || !oct_audit_has(g, OCT_AUDIT_CONTEXT))
    return;
  double n = g->values[key], context = g->values[OCT_AUDIT_CONTEXT];
  double gpus = oct_parallel_world(&g->parallel);
  double has = gpus * g->profile->gpu.hbm_bytes, weights = total_weights(g);
  double cache = n * request_of(g, context, kv).once;
  g_autofree char *weights_text = oct_audit_format(OCT_AUDIT_WEIGHTS, weights);
  g_autofree char *cache_text = oct_audit_format(OCT_AUDIT_WEIGHTS, cache);
  g_autofree char *has_text = oct_audit_format(OCT_AUDIT_WEIGHTS, has);
  g_autofree char *why = NULL;
  double most = ledger_requests(g, n, context, kv, &why);
  gboolean fits = weights + cache <= has;
  oct_audit_note(g, g->entries[key], "memory", fits ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
                 "weights %s and the cache of %.0f requests %s; %.0f GPUs have %s", weights_text, n,
                 cache_text, gpus, has_text);
  if (!fits)
    return;
  if (why != NULL)
    oct_audit_note(g, g->entries[key], "memory", OCT_CLAIM_INCONSISTENT, "the engine refuses: %s",
                   why);
  else
    oct_audit_note(
        g, g->entries[key], "memory", n <= most ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
        "the engine's ledger, with its workspace and copies, holds %.0f such requests", most);
}

/* The same where a request's cache is as large as the report says. */
static void
check_claimed_cache(oct_audit_group *g, oct_audit_key key, double share) {
  if (!oct_audit_owns(g, key) || !oct_audit_has(g, OCT_AUDIT_KV_PER_REQUEST))
    return;
  double gpus = oct_parallel_world(&g->parallel), n = g->values[key];
  double has = gpus * g->profile->gpu.hbm_bytes, weights = total_weights(g);
  double each = g->values[OCT_AUDIT_KV_PER_REQUEST] * share;
  gboolean fits = weights + n * each <= has;
  g_autofree char *each_text = oct_audit_format(OCT_AUDIT_WEIGHTS, each);
  g_autofree char *sum = oct_audit_format(OCT_AUDIT_WEIGHTS, weights + n * each);
  g_autofree char *weights_text = oct_audit_format(OCT_AUDIT_WEIGHTS, weights);
  g_autofree char *has_text = oct_audit_format(OCT_AUDIT_WEIGHTS, has);
  oct_audit_note(g, g->entries[key], "memory as claimed",
                 fits ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "%.0f requests of the claimed %s and weights of %s are %s; %.0f GPUs have %s", n,
                 each_text, weights_text, sum, gpus, has_text);
}

/* Weights alone in as much memory as the report gives a GPU. */
static void
check_weights_fit(oct_audit_group *g) {
  double each = oct_audit_has(g, OCT_AUDIT_MEMORY) ? g->values[OCT_AUDIT_MEMORY]
                : g->profile != NULL               ? g->profile->gpu.hbm_bytes
                                                   : 0;
  const oct_ini_entry *entry = oct_audit_owns(g, OCT_AUDIT_MEMORY) ? g->entries[OCT_AUDIT_MEMORY]
                               : oct_audit_owns(g, OCT_AUDIT_GPUS) ? g->entries[OCT_AUDIT_GPUS]
                                                                   : NULL;
  if (each <= 0 || entry == NULL)
    return;
  double rank = even_weights(g);
  g_autofree char *rank_text = oct_audit_format(OCT_AUDIT_MEMORY, rank);
  g_autofree char *each_text = oct_audit_format(OCT_AUDIT_MEMORY, each);
  gboolean fits = rank <= each;
  oct_audit_note(g, entry, "memory", fits ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
                 "weights of %s in TP%u x PP%u take %s of a GPU, which has %s", g->spec->name,
                 g->parallel.tensor, g->parallel.pipeline, rank_text, each_text);
}

void
oct_audit_check_memory(oct_audit_group *g) {
  if (g->spec == NULL)
    return;
  oct_dtype kv = oct_audit_kv_dtype(g->words[OCT_AUDIT_KV_TYPE]);
  const char *before = g->words[OCT_AUDIT_KV_TYPE_BEFORE];
  compare(g, OCT_AUDIT_WEIGHTS, total_weights(g), "weights");
  compare(g, OCT_AUDIT_WEIGHTS_PER_GPU, rank_weights(g), "weights on a GPU");
  check_weights_fit(g);
  check_request(g);
  check_types(g);
  if (g->profile == NULL)
    return;
  check_fit(g, OCT_AUDIT_REQUESTS, kv);
  check_fit(g, OCT_AUDIT_REQUESTS_BEFORE, before != NULL ? oct_audit_kv_dtype(before) : kv);
  check_claimed_cache(g, OCT_AUDIT_REQUESTS_BEFORE, 1);
  check_claimed_cache(g, OCT_AUDIT_REQUESTS,
                      before != NULL && oct_audit_kv_dtype(before) != kv ? 0.5 : 1);
}
