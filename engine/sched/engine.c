/* The engine's outside: configuration, requests in, events in, the turn. */
#include <string.h>

#include "engine/sched/internal.h"

/* ---------------------------------------------------------------- configuration */

void
oct_engine_config_default(oct_engine_config *config) {
  *config = (oct_engine_config){
      .instance = {.parallel = OCT_PARALLEL_DEFAULT, .kv_dtype = OCT_DTYPE_BF16, .block_size = 16},
      .max_num_seqs = (guint32)oct_limit_get(OCT_LIMIT_MAX_NUM_SEQS)->standard,
      .max_num_batched_tokens = (guint32)oct_limit_get(OCT_LIMIT_MAX_NUM_BATCHED_TOKENS)->standard,
      .max_model_len = 0,
      .run_ahead = 1,
      /* On an H200 a step begins 0.3 ms after it was submitted, 0.4 to 0.7 in one of ten. */
      .submit_lead_ns = 700000,
      .policy = "decode-first",
      .prefix_caching = TRUE,
      .decode_gap_max_ns = G_GINT64_CONSTANT(1000000000),
      .retries_max = 3,
      .mask_deadline_ns = G_GINT64_CONSTANT(5000000000),
      .speculation = {.proposal_rate = 1},
  };
  config->speculation.draft.parallel = OCT_PARALLEL_DEFAULT;
}

void
oct_request_params_default(oct_request_params *params) {
  *params = (oct_request_params){
      .max_tokens = 16, .n = 1, .top_k = -1, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
}

static void
set_up_groups(oct_engine *e) {
  e->n_groups = oct_model_groups(e->spec, e->config.instance.kv_dtype, e->groups);
  e->first_page_group = e->first_state_group = -1;
  for (guint32 g = 0; g < e->n_groups; g++) {
    e->is_state[g] = e->groups[g].kind == OCT_ATTENTION_KDA;
    e->has_windows |= e->groups[g].window > 0;
    e->has_host |= e->config.instance.memory.groups[g].n_host > 0;
    if (e->is_state[g] && e->first_state_group < 0)
      e->first_state_group = (gint32)g;
    if (!e->is_state[g] && e->first_page_group < 0)
      e->first_page_group = (gint32)g;
  }
}

static void
set_up_steps(oct_engine *e) {
  guint32 max_slices = e->n_domains * e->config.max_num_seqs;
  e->builder = oct_step_builder_new();
  for (guint32 i = 0; i < OCT_DEPTH_MAX; i++)
    e->flights[i].slices = g_new0(oct_flight_slice, max_slices);
  /* Twice: a zombie keeps its slot while its successor already runs. */
  e->n_slots = 2 * max_slices;
  e->free_slots = g_new(guint32, e->n_slots);
  for (guint32 i = 0; i < e->n_slots; i++)
    e->free_slots[e->n_free_slots++] = e->n_slots - 1 - i;
  e->config.instance.max_slots = e->n_slots;
  e->config.instance.max_batched_tokens = e->config.max_num_batched_tokens;
  e->config.instance.depth = e->config.instance.parallel.pipeline + e->config.run_ahead;
  e->config.instance.seed = e->config.seed;
  /* A record holds the ids of all slices, and a few page changes of each beside those of openings.
   */
  e->history_max = OCT_STEP_TOKENS_MAX - e->n_domains * e->config.max_num_batched_tokens;
  e->changes_max = OCT_STEP_CHANGES_MAX / 2;
  e->bucket_seqs = g_new0(oct_seq *, max_slices);
  e->bucket_first = g_new0(guint32, e->page_tokens + 1);
  e->transfers = g_ptr_array_new();
  e->copies = g_array_new(FALSE, FALSE, sizeof(oct_copy));
  for (int h = 0; h < OCT_HIST_COUNT; h++)
    e->hists[h] = oct_hist_new();
}

oct_engine *
oct_engine_new(oct_world *world, const oct_engine_config *config, GError **error) {
  if (!oct_accept_config(config, error))
    return NULL;
  g_autoptr(oct_engine) e = g_new0(oct_engine, 1);
  e->world = world;
  e->config = *config;
  /* A lost instance is reopened, long after the caller's have gone. */
  e->label = g_strdup(config->instance.label);
  e->devices = g_memdup2(config->instance.devices,
                         oct_parallel_world(&config->instance.parallel) * sizeof(guint16));
  e->config.instance.label = e->label;
  e->config.instance.devices = e->devices;
  e->spec = config->instance.spec;
  e->policy = oct_policy_find(config->policy);
  if (e->config.max_model_len == 0)
    e->config.max_model_len = e->spec->max_position;
  if (e->config.queue_max == 0)
    e->config.queue_max = (guint32)oct_limit_get(OCT_LIMIT_QUEUE_REQUESTS)->standard;
  if (e->config.queue_tokens_max == 0)
    e->config.queue_tokens_max = (guint64)oct_limit_get(OCT_LIMIT_QUEUE_TOKENS)->standard;
  e->n_domains = config->instance.parallel.data;
  e->page_tokens = config->instance.block_size * config->instance.parallel.decode_context;
  e->next_id = e->next_number = e->next_ticket = 1;
  e->mask_due_ns = OCT_TIME_NEVER;
  oct_deadlines_init(e);
  e->now = world != NULL ? world->now_ns : 0;
  e->last_done_ns = 0;
  e->hash_key = (oct_hash_key){oct_mix64(config->seed), oct_mix64(config->seed + 1)};
  e->by_id = g_hash_table_new(g_int64_hash, g_int64_equal);
  e->exports = g_hash_table_new(g_int64_hash, g_int64_equal);
  set_up_groups(e);
  set_up_steps(e);
  if (!oct_accept_memory(e, error) || !oct_residency_new(e, error))
    return NULL;
  oct_kv_init(e);
  e->state = OCT_ENGINE_OPENING;
  if (e->config.speculation.method == OCT_DRAFT_MODEL)
    e->drafter = oct_draft_new(e);
  if (!oct_instance_open(e, error))
    return NULL;
  return g_steal_pointer(&e);
}

static void
transfer_free(oct_transfer *t) {
  g_array_unref(t->items);
  g_free(t);
}

void
oct_engine_free(oct_engine *e) {
  if (e == NULL)
    return;
  oct_assert(e->calls == 0);
  oct_engine_enter(e);
  if (e->instance != 0)
    oct_world_close(e->world, e->instance);
  e->instance = 0;
  if (e->drafter != NULL)
    oct_draft_close(e);
  if (e->domains != NULL) /* else it was refused before it had any */
    oct_transfer_drop_all(e);
  e->draining = TRUE;
  for (oct_request *r = e->first; r != NULL; r = r->next)
    if (r->n_ended < r->n)
      oct_request_end(e, r, OCT_END_CANCELLED);
  for (oct_request *r = e->first, *next; r != NULL; r = next) {
    next = r->next;
    oct_request_free(r);
  }
  for (guint i = 0; e->transfers != NULL && i < e->transfers->len; i++)
    transfer_free(g_ptr_array_index(e->transfers, i));
  g_clear_pointer(&e->transfers, g_ptr_array_unref);
  g_clear_pointer(&e->copies, g_array_unref);
  oct_residency_free(e);
  oct_draft_free(e);
  oct_kv_free(e);
  oct_step_builder_free(e->builder);
  for (guint32 i = 0; i < OCT_DEPTH_MAX; i++)
    g_free(e->flights[i].slices);
  for (int h = 0; h < OCT_HIST_COUNT; h++)
    oct_hist_free(e->hists[h]);
  g_free(e->label);
  g_free(e->devices);
  g_free(e->free_slots);
  g_free(e->every_token);
  g_free(e->bucket_seqs);
  g_free(e->bucket_first);
  g_clear_pointer(&e->by_id, g_hash_table_unref);
  g_clear_pointer(&e->exports, g_hash_table_unref);
  oct_deadlines_free(e);
  g_clear_pointer(&e->shares, g_hash_table_unref);
  g_free(e);
}

/* ---------------------------------------------------------------- requests */

static guint32
least_loaded_domain(const oct_engine *e) {
  guint32 best = 0;
  for (guint32 d = 1; d < e->n_domains; d++)
    if (e->domains[d].weight + e->domains[d].queue.n <
        e->domains[best].weight + e->domains[best].queue.n)
      best = d;
  return best;
}

gboolean
oct_engine_submit(oct_engine *e, const oct_request_params *params, oct_request_id *id,
                  GError **error) {
  if (!oct_accept_request(e, params, error)) {
    e->stats.refused++;
    return FALSE;
  }
  /* Whatever becomes of it, even at once, is not before it came. */
  e->now = MAX(e->now, params->arrival_ns);
  oct_request *r = oct_request_new(e, params);
  e->stats.accepted++;
  e->stats.speculation.undrafted += e->config.speculation.method != OCT_DRAFT_NONE && r->guided;
  oct_deadline_add(e, r);
  r->seqs[0]->domain = least_loaded_domain(e);
  oct_queue_push(e, r->seqs[0], FALSE);
  if (e->config.log != NULL)
    oct_log_printf(e->config.log,
                   "%" G_GINT64_FORMAT " arrive %" G_GUINT64_FORMAT " prompt %u max %u",
                   r->arrival_ns, r->id, r->prompt, r->max_tokens);
  *id = r->id;
  return TRUE;
}

gboolean
oct_engine_cancel(oct_engine *e, oct_request_id id, oct_time now) {
  oct_request *r = g_hash_table_lookup(e->by_id, &id);
  if (r == NULL)
    return FALSE;
  oct_engine_enter(e);
  e->now = MAX(e->now, now);
  oct_request_end(e, r, OCT_END_CANCELLED);
  oct_request_reap(e, r);
  oct_engine_leave(e);
  return TRUE;
}

gboolean
oct_engine_stop(oct_engine *e, oct_request_id id, guint32 choice, oct_time now) {
  oct_request *r = g_hash_table_lookup(e->by_id, &id);
  if (r == NULL || choice >= r->n || r->seqs[choice] == NULL ||
      r->seqs[choice]->state == OCT_SEQ_ENDED || !r->forked)
    return FALSE;
  oct_engine_enter(e);
  e->now = MAX(e->now, now);
  oct_seq_end(e, r->seqs[choice], OCT_END_STOP);
  oct_request_reap(e, r);
  oct_engine_leave(e);
  return TRUE;
}

void
oct_engine_drain(oct_engine *e) {
  e->draining = TRUE;
}

/* ---------------------------------------------------------------- events */

/* Why this engine cannot run on an instance with these capabilities, NULL when it can. */
static const char *
misfit(const oct_engine *e, const oct_capabilities *c) {
  const oct_memory_plan *plan = &e->config.instance.memory;
  for (guint32 g = 0; g < e->n_groups; g++)
    if (c->fits[g] < plan->groups[g].n_device)
      return "the device holds fewer pages than the memory plan";
  if (c->depth == 0)
    return "the backend takes no step";
  if (c->token_ids && !e->config.carry_ids)
    return "the backend needs token ids, which this run does not carry";
  if (e->has_host && !c->host_tier)
    return "the backend has no host tier, which the memory plan uses";
  if (e->config.speculation.method != OCT_DRAFT_NONE && !c->speculation)
    return e->first_state_group >= 0
               ? "the backend verifies no drafts of a model with recurrent state"
               : "the backend verifies no drafts";
  if (e->residency != NULL && !c->expert_slots)
    return "the backend keeps every expert on the device, it has no expert slots";
  return NULL;
}

/* All that is to be open is. */
static void
begin_to_serve(oct_engine *e) {
  const oct_capabilities *c = &e->capabilities;
  e->state = OCT_ENGINE_SERVING;
  e->last_done_ns = e->now;
  /* Accepted before this was known. */
  for (oct_request *r = e->first; r != NULL; r = r->next) {
    gboolean lacks = (r->adapter != 0 && !c->adapters) || (r->guided && !c->masks) ||
                     (r->pooling != OCT_POOLING_NONE && !c->pooling);
    if (lacks && r->n_ended < r->n) {
      oct_request_end(e, r, OCT_END_FAILED);
      oct_request_reap(e, r);
    }
  }
}

static void
opened(oct_engine *e, const oct_capabilities *c) {
  e->capabilities = *c;
  const char *why = misfit(e, c);
  if (why != NULL) {
    oct_instance_lost(e, why);
    e->lost_fatal = TRUE;
  }
  e->is_open = why == NULL;
}

static void
take_event(oct_engine *e, const oct_event *event) {
  switch (event->kind) {
  case OCT_EVENT_OPENED:
    opened(e, event->capabilities);
    break;
  case OCT_EVENT_OPEN_FAILED:
    e->instance = 0;
    oct_instance_lost(e, event->fault != NULL ? event->fault->message : "opening failed");
    break;
  case OCT_EVENT_STEP_DONE:
    oct_commit_step(e, event);
    if (e->lost[0] == '\0')
      e->reopen_attempts = 0;
    break;
  case OCT_EVENT_COPY_DONE:
    e->copies_out -= e->copies_out > 0;
    e->copy_progress_ns = e->now;
    if (!oct_residency_copied(e, event->number, event->failed != 0))
      oct_transfer_done(e, event->number, event->failed != 0);
    break;
  case OCT_EVENT_FAULT:
    oct_fault_handle(e, event->fault);
    break;
  case OCT_EVENT_OPEN_PROGRESS:
    e->open_progress_ns = e->now;
    break;
  case OCT_EVENT_MASK_WANTED:
    oct_mask_wanted(e, event->number, event->slice);
    break;
  case OCT_EVENT_TIMER:
  case OCT_EVENT_WAKE:
    break;
  }
}

void
oct_engine_event(oct_engine *e, const oct_event *event) {
  oct_engine_enter(e);
  e->now = MAX(e->now, event->time_ns);
  if (e->drafter != NULL && oct_draft_owns(e, event->instance))
    oct_draft_event(e, event);
  else
    take_event(e, event);
  gboolean opens = e->state == OCT_ENGINE_OPENING || e->state == OCT_ENGINE_RECOVERING;
  if (opens && e->is_open && e->lost[0] == '\0' && (e->drafter == NULL || oct_draft_is_settled(e)))
    begin_to_serve(e);
  if (e->lost[0] != '\0')
    oct_instance_recover(e, e->lost_fatal);
  oct_engine_leave(e);
}

/* ---------------------------------------------------------------- the turn */

/* Every wait on the device has its deadline (invariant 6): when the earliest passes, and in *what,
 * which that is. A step's and a copy's time counts from when the one before it ended, opening's
 * from when it last told of its progress. */
static oct_time
device_deadline(oct_engine *e, const char **what) {
  oct_time first = OCT_TIME_NEVER;
  gint64 limit = e->config.step_deadline_ns;
  /* While it waits for a mask that was asked for it is the mask that has a deadline. */
  gboolean waits = e->mask_due_ns != OCT_TIME_NEVER;
  if (e->state == OCT_ENGINE_SERVING && limit > 0 && e->n_flights > 0 && !waits) {
    *what = "a step has not ended by its deadline";
    oct_time since = MAX(oct_flight_at(e, 0)->submit_ns, e->last_done_ns);
    first = MAX(since, e->mask_progress_ns) + limit;
  }
  if (e->state == OCT_ENGINE_SERVING && limit > 0 && e->copies_out > 0 &&
      e->copy_progress_ns + limit < first) {
    *what = "a copy has not ended by its deadline";
    first = e->copy_progress_ns + limit;
  }
  gboolean opens = e->state == OCT_ENGINE_OPENING || e->state == OCT_ENGINE_RECOVERING;
  if (opens && e->config.open_deadline_ns > 0) {
    *what = "opening has not gone on by its deadline";
    first = e->open_progress_ns + e->config.open_deadline_ns;
  }
  if (e->drafter != NULL && limit > 0 && oct_draft_deadline(e) < first) {
    *what = "a step of the draft model has not ended by its deadline";
    first = oct_draft_deadline(e);
  }
  return first;
}

/* What follows a step in flight is not known before it ends: not even ahead of others. */
static gboolean
holds_back(oct_engine *e) {
  for (guint32 i = e->n_flights >= e->config.instance.parallel.pipeline ? 0 : e->n_flights;
       i < e->n_flights; i++)
    if (oct_flight_at(e, i)->speculates)
      return TRUE;
  return FALSE;
}

/* Submits what may be submitted. Returns when more may be. */
static oct_time
submit_steps(oct_engine *e, oct_time horizon) {
  guint32 depth = MIN(e->capabilities.depth, e->config.instance.depth);
  for (;;) {
    oct_forward_stretch(e, horizon);
    if (e->n_flights >= depth || holds_back(e))
      return OCT_TIME_NEVER;
    oct_time pace = oct_pace(e);
    if (pace > e->now)
      return pace;
    if (e->drafter != NULL && oct_draft_round(e))
      return OCT_TIME_NEVER;
    if (!oct_plan_step(e))
      return OCT_TIME_NEVER;
    if (e->drafter != NULL)
      oct_draft_used(e);
  }
}

oct_time
oct_engine_turn(oct_engine *e, oct_time now, oct_time horizon) {
  oct_engine_enter(e);
  e->now = MAX(e->now, now);
  oct_time wake = MIN(oct_deadlines_take(e), oct_mask_time_out(e));
  const char *what = NULL;
  if (device_deadline(e, &what) <= e->now)
    oct_instance_lost(e, what);
  if (e->state == OCT_ENGINE_SERVING && e->lost[0] == '\0') {
    oct_transfer_retry(e);
    if (e->lost[0] == '\0' && oct_residency_ready(e))
      wake = MIN(wake, submit_steps(e, MIN(horizon, wake)));
    oct_residency_turn(e);
    if (e->has_host && e->lost[0] == '\0')
      oct_transfer_spill(e);
  }
  if (e->lost[0] != '\0')
    oct_instance_recover(e, e->lost_fatal);
  wake = MIN(wake, MIN(device_deadline(e, &what), e->mask_due_ns));
  oct_engine_leave(e);
  return wake;
}

/* ---------------------------------------------------------------- inspect */

void
oct_engine_get_stats(const oct_engine *e, oct_engine_stats *stats) {
  *stats = e->stats;
  oct_residency_get_stats(e, &stats->experts);
  stats->state = e->state;
  stats->unfinished_steps = e->n_flights;
  for (guint32 d = 0; d < e->n_domains; d++) {
    const oct_kv_domain *domain = &e->domains[d];
    stats->running += domain->n_running;
    stats->waiting += domain->queue.n;
    for (guint32 g = 0; g < e->n_groups; g++) {
      stats->pages_total[g] += oct_pool_total(domain->device[g]);
      stats->pages_used[g] += oct_pool_count(domain->device[g], OCT_ITEM_HELD) +
                              oct_pool_count(domain->device[g], OCT_ITEM_DRAINING);
      stats->pages_cached[g] += oct_pool_count(domain->device[g], OCT_ITEM_CACHED);
      if (domain->host[g] == NULL)
        continue;
      stats->host_total[g] += oct_pool_total(domain->host[g]);
      stats->host_used[g] +=
          oct_pool_total(domain->host[g]) - oct_pool_count(domain->host[g], OCT_ITEM_FREE);
    }
  }
}

const oct_hist *
oct_engine_get_hist(const oct_engine *e, oct_engine_hist which) {
  oct_assert(which < OCT_HIST_COUNT);
  return e->hists[which];
}

guint32
oct_engine_instance(const oct_engine *e) {
  return e->instance;
}

gboolean
oct_engine_owns(const oct_engine *e, guint32 instance) {
  return instance != 0 &&
         (instance == e->instance || (e->drafter != NULL && oct_draft_owns(e, instance)));
}

const char *
oct_engine_down_reason(const oct_engine *e) {
  return e->state == OCT_ENGINE_DEAD || e->state == OCT_ENGINE_RECOVERING ? e->down_reason : "";
}

const char *
oct_engine_lost_reason(const oct_engine *e) {
  return e->down_reason;
}

guint64
oct_engine_load_tokens(const oct_engine *e) {
  guint64 tokens = e->queued_tokens;
  for (guint32 d = 0; d < e->n_domains; d++)
    for (guint32 i = 0; i < e->domains[d].n_running; i++) {
      const oct_seq *s = e->domains[d].running[i];
      tokens += (s->target > s->sched ? s->target - s->sched : 0) + 1;
    }
  return tokens;
}
