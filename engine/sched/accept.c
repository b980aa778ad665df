/* What is accepted: a configuration, a memory plan, a request, each against its limits. A message
 * names the thing, its value and the limit. No record that a request can cause may exceed the
 * seam's limits, since a refused record loses the instance: what could is refused here, or spread
 * over steps (plan.c). */
#include <math.h>

#include "engine/sched/internal.h"

#define REFUSE(code, ...)                                                                          \
  do {                                                                                             \
    g_set_error(error, OCT_ENGINE_ERROR, code, __VA_ARGS__);                                       \
    return FALSE;                                                                                  \
  } while (0)

/* What one step's record may hold at most, over all domains. */
static gboolean
check_record(const oct_engine_config *c, GError **error) {
  guint64 domains = c->instance.parallel.data;
  if (domains * c->max_num_seqs > OCT_STEP_SLICES_MAX)
    REFUSE(OCT_ENGINE_ERROR_CONFIG,
           "max-num-seqs %u in %u KV domains make %" G_GUINT64_FORMAT
           " sequences in a step; it takes %u",
           c->max_num_seqs, c->instance.parallel.data, domains * c->max_num_seqs,
           OCT_STEP_SLICES_MAX);
  if (domains * c->max_num_batched_tokens > OCT_STEP_TOKENS_MAX)
    REFUSE(OCT_ENGINE_ERROR_CONFIG,
           "max-num-batched-tokens %u in %u KV domains make %" G_GUINT64_FORMAT
           " tokens in a step; it takes %u",
           c->max_num_batched_tokens, c->instance.parallel.data,
           domains * c->max_num_batched_tokens, OCT_STEP_TOKENS_MAX);
  return TRUE;
}

static gboolean
check_times(const oct_engine_config *c, GError **error) {
  const struct {
    const char *name;
    gint64 ns;
  } times[] = {{"submit-lead", c->submit_lead_ns},
               {"decode-gap-max", c->decode_gap_max_ns},
               {"step-deadline", c->step_deadline_ns},
               {"open-deadline", c->open_deadline_ns},
               {"mask-deadline", c->mask_deadline_ns}};
  for (gsize i = 0; i < G_N_ELEMENTS(times); i++)
    if (times[i].ns < 0)
      REFUSE(OCT_ENGINE_ERROR_CONFIG, "%s %" G_GINT64_FORMAT " ns is below 0", times[i].name,
             times[i].ns);
  return TRUE;
}

static gboolean
check_draft_model(const oct_engine_config *c, GError **error) {
  const oct_instance_config *d = &c->speculation.draft;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  if (d->spec == NULL)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "speculation: no draft model is given");
  if (d->spec->vocab != c->instance.spec->vocab)
    REFUSE(OCT_ENGINE_ERROR_CONFIG,
           "draft model %s has a vocabulary of %u tokens, the model of %u: they must be one",
           d->spec->name, d->spec->vocab, c->instance.spec->vocab);
  if (!oct_parallel_check(d->spec, &d->parallel, error))
    return FALSE;
  if (d->parallel.data > 1 || d->parallel.pipeline > 1 ||
      oct_parallel_world(&d->parallel) > oct_parallel_world(&c->instance.parallel))
    REFUSE(OCT_ENGINE_ERROR_CONFIG,
           "draft model: %u ranks in %u stages and %u KV domains; it takes one stage, one domain "
           "and at most the model's %u ranks",
           oct_parallel_world(&d->parallel), d->parallel.pipeline, d->parallel.data,
           oct_parallel_world(&c->instance.parallel));
  guint n = oct_model_groups(d->spec, d->kv_dtype, groups);
  for (guint g = 0; g < n; g++)
    if (groups[g].kind == OCT_ATTENTION_KDA)
      REFUSE(OCT_ENGINE_ERROR_CONFIG,
             "draft model %s has recurrent state, which drafts cannot be taken out of",
             d->spec->name);
  if (d->memory.n_groups != n || !oct_limit_check(OCT_LIMIT_BLOCK_SIZE, d->block_size, error))
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "the draft model's memory plan has %u groups, the model %u",
           d->memory.n_groups, n);
  return TRUE;
}

static gboolean
check_speculation(const oct_engine_config *c, GError **error) {
  const oct_speculation *s = &c->speculation;
  if (s->method == OCT_DRAFT_NONE)
    return TRUE;
  if (s->n_tokens < 1 || s->n_tokens > OCT_DRAFTS_MAX)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "num_speculative_tokens %u is not between 1 and %u",
           s->n_tokens, OCT_DRAFTS_MAX);
  if (!(s->acceptance_min >= 0 && s->acceptance_min <= 1) ||
      !(s->proposal_rate >= 0 && s->proposal_rate <= 1))
    REFUSE(OCT_ENGINE_ERROR_CONFIG,
           "speculation: min_acceptance %g and proposal_rate %g are not between 0 and 1",
           s->acceptance_min, s->proposal_rate);
  if (s->method == OCT_DRAFT_MODEL)
    return check_draft_model(c, error);
  if (s->ngram_min < 1 || s->ngram_min > s->ngram_max || s->ngram_max > OCT_NGRAM_MAX)
    REFUSE(OCT_ENGINE_ERROR_CONFIG,
           "prompt_lookup_min %u and prompt_lookup_max %u: 1 to %u, the first no larger",
           s->ngram_min, s->ngram_max, OCT_NGRAM_MAX);
  return TRUE;
}

gboolean
oct_accept_config(const oct_engine_config *c, GError **error) {
  if (c->instance.spec == NULL)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "no model is given");
  if (c->instance.devices == NULL)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "no devices are given");
  if (!oct_limit_check(OCT_LIMIT_MAX_NUM_SEQS, c->max_num_seqs, error) ||
      !oct_limit_check(OCT_LIMIT_MAX_NUM_BATCHED_TOKENS, c->max_num_batched_tokens, error) ||
      !oct_limit_check(OCT_LIMIT_BLOCK_SIZE, c->instance.block_size, error) ||
      !oct_parallel_check(c->instance.spec, &c->instance.parallel, error))
    return FALSE;
  if ((c->queue_max != 0 && !oct_limit_check(OCT_LIMIT_QUEUE_REQUESTS, c->queue_max, error)) ||
      (c->queue_tokens_max != 0 &&
       !oct_limit_check(OCT_LIMIT_QUEUE_TOKENS, (gint64)MIN(c->queue_tokens_max, G_MAXINT64),
                        error)) ||
      !check_record(c, error) || !check_times(c, error))
    return FALSE;
  if (c->max_num_batched_tokens < c->max_num_seqs)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "max-num-batched-tokens %u is below max-num-seqs %u",
           c->max_num_batched_tokens, c->max_num_seqs);
  if (c->run_ahead > 1)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "run-ahead %u is not 0 or 1", c->run_ahead);
  if (c->instance.parallel.pipeline + c->run_ahead > OCT_DEPTH_MAX)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "%u pipeline stages need a depth beyond %u",
           c->instance.parallel.pipeline, OCT_DEPTH_MAX);
  if (oct_policy_find(c->policy) == NULL)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "policy \"%s\" is not known", c->policy);
  if (c->max_model_len > c->instance.spec->max_position)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "max-model-len %u is above the model's %u", c->max_model_len,
           c->instance.spec->max_position);
  guint32 page = c->instance.block_size * c->instance.parallel.decode_context;
  if (c->state_snapshot_interval % page != 0)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "state-snapshot-interval %u is not a multiple of the page, %u",
           c->state_snapshot_interval, page);
  if (c->instance.check_tags && !c->carry_ids)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "tags are checked only where token ids are carried");
  return check_speculation(c, error);
}

gboolean
oct_accept_memory(const oct_engine *e, GError **error) {
  const oct_memory_plan *plan = &e->config.instance.memory;
  guint32 states = 0;
  if (plan->n_groups != e->n_groups)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "the memory plan has %u groups, the model %u", plan->n_groups,
           e->n_groups);
  for (guint32 g = 0; g < e->n_groups; g++) {
    states += e->is_state[g];
    if (plan->groups[g].n_device == 0)
      REFUSE(OCT_ENGINE_ERROR_CONFIG,
             "layer group %u has no pages: no memory is left for the cache", g);
    if ((plan->groups[g].n_host > 0) != (plan->groups[0].n_host > 0))
      REFUSE(OCT_ENGINE_ERROR_CONFIG, "layer group %u and group 0 differ in having a host tier", g);
  }
  /* Pages that slices append: half of a record's entries, the other half is for openings. */
  guint64 entries =
      (guint64)e->n_domains * e->n_groups *
      (e->config.max_num_batched_tokens / e->page_tokens + 2 * e->config.max_num_seqs);
  if (entries > OCT_STEP_CHANGES_MAX / 2)
    REFUSE(OCT_ENGINE_ERROR_CONFIG,
           "max-num-batched-tokens %u in pages of %u make %" G_GUINT64_FORMAT
           " page entries in a step; it takes %u",
           e->config.max_num_batched_tokens, e->page_tokens, entries, OCT_STEP_CHANGES_MAX / 2);
  if (states > 1)
    REFUSE(OCT_ENGINE_ERROR_CONFIG, "%u groups of recurrent state: at most 1 is supported", states);
  return TRUE;
}

/* ---------------------------------------------------------------- requests */

/* Prefill and decode pools (pull.c). */
static gboolean
check_pools(const oct_engine *e, const oct_request_params *p, GError **error) {
  if (p->export_cache && (p->max_tokens != 1 || p->n != 1))
    REFUSE(OCT_ENGINE_ERROR_INVALID, "export_cache needs max_tokens 1 and n 1, not %u and %u",
           p->max_tokens, p->n);
  const oct_engine *from = p->import_engine;
  if (from != NULL && (p->n != 1 || from == e || from->world != e->world || from->spec != e->spec ||
                       from->page_tokens != e->page_tokens || !oct_world_can_pull(e->world) ||
                       from->config.instance.kv_dtype != e->config.instance.kv_dtype))
    REFUSE(OCT_ENGINE_ERROR_INVALID,
           "import_engine: not another engine of this world with the same model, KV type and page, "
           "or n is %u",
           p->n);
  return TRUE;
}

/* Finite, and in [low, high]; NaN is neither. */
static gboolean
check_float(const char *name, float value, float low, float high, GError **error) {
  if (isfinite(value) && value >= low && value <= high)
    return TRUE;
  REFUSE(OCT_ENGINE_ERROR_INVALID, "%s %g is not between %g and %g", name, (double)value,
         (double)low, (double)high);
}

static gboolean
check_biases(const oct_engine *e, const oct_request_params *p, GError **error) {
  if (p->n_logit_bias > OCT_BIASES_MAX)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "logit_bias has %u tokens; at most %u", p->n_logit_bias,
           OCT_BIASES_MAX);
  for (guint32 i = 0; i < p->n_logit_bias; i++) {
    const oct_token_bias *b = &p->logit_bias[i];
    if (b->token >= e->spec->vocab)
      REFUSE(OCT_ENGINE_ERROR_INVALID, "logit_bias is for token %u; the vocabulary has %u",
             b->token, e->spec->vocab);
    if (!check_float("logit_bias", b->bias, -OCT_BIAS_MAX, OCT_BIAS_MAX, error))
      return FALSE;
    for (guint32 k = 0; k < i; k++)
      if (p->logit_bias[k].token == b->token)
        REFUSE(OCT_ENGINE_ERROR_INVALID, "logit_bias has token %u twice", b->token);
  }
  return TRUE;
}

/* What a request wants besides tokens. What the backend can is not known before the instance has
 * opened: opened() looks again. */
static gboolean
check_extras(const oct_engine *e, const oct_request_params *p, GError **error) {
  gboolean open = e->state == OCT_ENGINE_SERVING, elsewhere = p->export_cache || p->import_engine;
  if (p->n_logprobs > OCT_LOGPROBS_MAX || p->n_prompt_logprobs > OCT_LOGPROBS_MAX)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "logprobs %u is above %u",
           MAX(p->n_logprobs, p->n_prompt_logprobs), OCT_LOGPROBS_MAX);
  if (MAX(p->n_logprobs, p->n_prompt_logprobs) >= e->spec->vocab)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "logprobs %u; the vocabulary has %u",
           MAX(p->n_logprobs, p->n_prompt_logprobs), e->spec->vocab);
  if (p->n_prompt_logprobs > 0 && (!e->config.carry_ids || elsewhere))
    REFUSE(OCT_ENGINE_ERROR_INVALID, "prompt_logprobs: %s",
           elsewhere ? "the prompt is not computed here alone" : "token ids are not carried");
  if (p->guided && e->config.listener.mask == NULL)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "guided: nobody is there to give masks");
  if (p->guided && open && !e->capabilities.masks)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "guided: this backend takes no masks");
  if (p->pooling > OCT_POOLING_MEAN)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "pooling %d is not known", (int)p->pooling);
  if (p->pooling == OCT_POOLING_NONE)
    return TRUE;
  if (e->spec->hidden > OCT_STEP_FLOATS_MAX)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "pooling: hidden states of %u numbers, a step gives %u",
           e->spec->hidden, OCT_STEP_FLOATS_MAX);
  if (open && !e->capabilities.pooling)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "pooling: this backend gives no hidden states");
  if (p->n != 1 || p->guided || p->n_logprobs > 0 || p->n_prompt_logprobs > 0 || elsewhere)
    REFUSE(OCT_ENGINE_ERROR_INVALID,
           "pooling gives no text: n must be 1, without guidance, logprobs and caches of others");
  return TRUE;
}

static gboolean
check_sampling(const oct_engine *e, const oct_request_params *p, GError **error) {
  if (p->n < 1 || p->n > OCT_CHOICES_MAX || p->n > e->config.max_num_seqs)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "n %u is not between 1 and %u", p->n,
           MIN(OCT_CHOICES_MAX, e->config.max_num_seqs));
  if (p->max_tokens < 1)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "max_tokens %u is below 1", p->max_tokens);
  if (p->min_tokens > p->max_tokens)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "min_tokens %u is above max_tokens %u", p->min_tokens,
           p->max_tokens);
  if (p->n_stop_tokens > G_N_ELEMENTS(p->stop_tokens))
    REFUSE(OCT_ENGINE_ERROR_INVALID, "%u stop tokens: at most %u", p->n_stop_tokens,
           (guint)G_N_ELEMENTS(p->stop_tokens));
  for (guint32 i = 0; i < p->n_stop_tokens; i++)
    if (p->stop_tokens[i] >= e->spec->vocab)
      REFUSE(OCT_ENGINE_ERROR_INVALID, "stop token %u is %u; the vocabulary has %u", i,
             p->stop_tokens[i], e->spec->vocab);
  if (p->top_k < -1)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "top_k %d is below -1", p->top_k);
  /* Before the instance has opened it is not known: oct_engine_event() looks again. */
  if (p->adapter != 0 && e->state == OCT_ENGINE_SERVING && !e->capabilities.adapters)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "adapter %u: this backend has none", p->adapter);
  if (p->n > 1 && p->prompt_tokens < 2)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "n %u needs a prompt of at least 2 tokens, not %u", p->n,
           p->prompt_tokens);
  return TRUE;
}

static gboolean
check_floats(const oct_request_params *p, GError **error) {
  return check_float("temperature", p->temperature, 0, OCT_TEMPERATURE_MAX, error) &&
         check_float("top_p", p->top_p, OCT_TOP_P_MIN, 1, error) &&
         check_float("min_p", p->min_p, 0, 1, error) &&
         check_float("repetition_penalty", p->repetition_penalty, OCT_REPETITION_PENALTY_MIN,
                     OCT_PENALTY_MAX, error) &&
         check_float("presence_penalty", p->presence_penalty, -2, 2, error) &&
         check_float("frequency_penalty", p->frequency_penalty, -2, 2, error);
}

/* What opening a slot for the request puts into a step's record. */
static gboolean
check_opening(const oct_engine *e, const oct_request_params *p, guint64 tokens, GError **error) {
  guint64 changes = 0;
  for (guint32 g = 0; g < e->n_groups; g++)
    changes += e->is_state[g] ? 1 : (tokens + e->page_tokens - 1) / e->page_tokens + 1;
  if (changes > e->changes_max)
    REFUSE(OCT_ENGINE_ERROR_TOO_LONG,
           "prompt of %u and max_tokens %u need %" G_GUINT64_FORMAT
           " page entries; a step takes %u",
           p->prompt_tokens, p->max_tokens, changes, e->changes_max);
  gboolean penalties =
      p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
  if (penalties && e->config.carry_ids && tokens > e->history_max)
    REFUSE(OCT_ENGINE_ERROR_TOO_LONG,
           "prompt of %u and max_tokens %u with penalties make a history of %" G_GUINT64_FORMAT
           " tokens; a step takes %u",
           p->prompt_tokens, p->max_tokens, tokens, e->history_max);
  return TRUE;
}

static gboolean
check_prompt(const oct_engine *e, const oct_request_params *p, GError **error) {
  if (p->prompt_tokens < 1)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "the prompt is empty");
  gboolean pools = p->pooling != OCT_POOLING_NONE;
  if (p->prompt_tokens >= e->config.max_model_len + pools)
    REFUSE(OCT_ENGINE_ERROR_TOO_LONG,
           "the prompt has %u tokens; max-model-len %u leaves room for %u", p->prompt_tokens,
           e->config.max_model_len, e->config.max_model_len - !pools);
  if (e->config.carry_ids && p->prompt_ids == NULL)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "the prompt has no token ids");
  for (guint32 i = 0; e->config.carry_ids && i < p->prompt_tokens; i++)
    if (p->prompt_ids[i] >= e->spec->vocab)
      REFUSE(OCT_ENGINE_ERROR_INVALID, "prompt token %u is %u; the vocabulary has %u", i,
             p->prompt_ids[i], e->spec->vocab);
  if (p->arrival_ns < 0 || p->deadline_ns < 0)
    REFUSE(OCT_ENGINE_ERROR_INVALID, "%s %" G_GINT64_FORMAT " ns is below 0",
           p->arrival_ns < 0 ? "arrival" : "deadline",
           p->arrival_ns < 0 ? p->arrival_ns : p->deadline_ns);
  guint64 tokens =
      MIN((guint64)p->prompt_tokens + (pools ? 0 : p->max_tokens), e->config.max_model_len);
  if (!check_opening(e, p, tokens, error))
    return FALSE;
  for (guint32 g = 0; g < e->n_groups; g++) {
    if (e->is_state[g])
      continue;
    guint64 span = tokens;
    if (e->groups[g].window > 0)
      span = MIN(span, (guint64)e->groups[g].window + e->config.max_num_batched_tokens +
                           2 * e->page_tokens);
    /* Each further choice needs its own last page while it forks. */
    guint64 pages = (span + e->page_tokens - 1) / e->page_tokens + (p->n > 1 ? p->n : 0);
    guint32 have = oct_pool_total(e->domains[0].device[g]);
    if (pages > have)
      REFUSE(OCT_ENGINE_ERROR_TOO_LONG,
             "prompt of %u and max_tokens %u need %" G_GUINT64_FORMAT
             " pages of %u tokens; the cache has %u",
             p->prompt_tokens, p->max_tokens, pages, e->page_tokens, have);
  }
  if (e->first_state_group >= 0 &&
      p->n > oct_pool_total(e->domains[0].device[e->first_state_group]))
    REFUSE(OCT_ENGINE_ERROR_TOO_LONG, "n %u needs as many state slots; the cache has %u", p->n,
           oct_pool_total(e->domains[0].device[e->first_state_group]));
  return TRUE;
}

gboolean
oct_accept_request(const oct_engine *e, const oct_request_params *p, GError **error) {
  if (e->draining || e->state == OCT_ENGINE_DEAD)
    REFUSE(OCT_ENGINE_ERROR_DOWN, "the engine %s", e->draining ? "is draining" : "is down");
  if (!check_pools(e, p, error) || !check_sampling(e, p, error) || !check_floats(p, error) ||
      !check_extras(e, p, error) || !check_biases(e, p, error) || !check_prompt(e, p, error))
    return FALSE;
  if (e->queued_requests >= e->config.queue_max)
    REFUSE(OCT_ENGINE_ERROR_BUSY, "%" G_GUINT64_FORMAT " requests wait; the queue takes %u",
           e->queued_requests, e->config.queue_max);
  if (e->queued_tokens + p->prompt_tokens > e->config.queue_tokens_max)
    REFUSE(OCT_ENGINE_ERROR_BUSY,
           "%" G_GUINT64_FORMAT " prompt tokens wait; the queue takes %" G_GUINT64_FORMAT,
           e->queued_tokens, e->config.queue_tokens_max);
  return TRUE;
}
