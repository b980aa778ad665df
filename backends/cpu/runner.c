#include "backends/cpu/runner-internal.h"

#include <stdarg.h>
#include <string.h>

#include "engine/base/assert.h"

/* Logits that are kept at a time, in rows; what is sampled beyond them is computed piece by piece.
 */
#define LOGIT_ROWS_MIN 64
#define LOGIT_ROWS_MAX 1024

/* ---------------------------------------------------------------- life cycle */

static void *
try_alloc(gsize n, gsize bytes) {
  gsize all;
  return g_size_checked_mul(&all, n, bytes) ? g_try_malloc(MAX(all, 1)) : NULL;
}

static gboolean
make_buffers(oct_cpu_runner *r, GError **error) {
  gsize tokens = (gsize)r->config->max_batched_tokens * r->config->parallel.data;
  gsize vocab = r->model->spec->vocab;
  guint32 threads = oct_team_threads(r->team);
  r->logit_rows = (guint32)MIN(tokens, CLAMP(r->config->max_slots, LOGIT_ROWS_MIN, LOGIT_ROWS_MAX));
  r->hidden = try_alloc(tokens, r->model->spec->hidden * sizeof(float));
  r->logits = try_alloc(r->logit_rows, vocab * sizeof(float));
  r->tokens = try_alloc(tokens, sizeof *r->tokens);
  r->sampled = try_alloc(tokens, sizeof *r->sampled);
  r->scratch = g_new0(oct_token_logprob *, threads);
  gboolean ok = r->hidden != NULL && r->logits != NULL && r->tokens != NULL && r->sampled != NULL;
  for (guint32 i = 0; i < threads; i++) {
    r->scratch[i] = try_alloc(vocab, sizeof **r->scratch);
    ok &= r->scratch[i] != NULL;
  }
  if (!ok)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "no memory for steps of %" G_GSIZE_FORMAT " tokens", tokens);
  return ok;
}

static guint32
longest_context(const oct_cpu_runner *r) {
  /* A sequence has no more pages than the pool. */
  guint64 pages = 0;
  for (guint32 g = 0; g < r->n_groups; g++)
    if (r->groups[g].kind != OCT_ATTENTION_KDA && r->groups[g].kind != OCT_ATTENTION_WINDOW)
      pages = MAX(pages, r->config->memory.groups[g].n_device);
  guint64 tokens = pages > 0 ? pages * r->page_tokens : r->model->spec->max_position;
  return (guint32)MIN(tokens, r->model->spec->max_position);
}

static void
find_groups(oct_cpu_runner *r) {
  r->n_groups = oct_model_groups(r->model->spec, r->config->kv_dtype, r->groups);
  r->first_state = r->n_groups;
  for (guint32 g = r->n_groups; g-- > 0;)
    if (r->groups[g].kind == OCT_ATTENTION_KDA) {
      r->first_state = g;
      r->state_bytes += oct_cpu_memory_unit_bytes(r->memory, g);
    }
}

oct_cpu_runner *
oct_cpu_runner_new(const oct_cpu_runner_options *o, GError **error) {
  g_autoptr(oct_cpu_runner) r = g_new0(oct_cpu_runner, 1);
  r->config = o->config;
  r->model = o->model;
  r->failed = g_array_new(FALSE, FALSE, sizeof(guint32));
  r->memory = oct_cpu_memory_new(o->config, o->model, o->kv, error);
  if (r->memory == NULL)
    return NULL;
  r->page_tokens = oct_cpu_memory_page_tokens(r->memory);
  find_groups(r);
  r->team = oct_team_new(o->threads);
  guint32 slots = o->config->max_slots;
  r->slots = g_new0(slot, slots);
  for (guint32 i = 0; i < slots; i++)
    r->slots[i].tables = g_new0(table, r->n_groups);
  r->parts = g_new0(part, slots);
  r->views = g_new0(oct_cpu_view, slots);
  r->max_context = longest_context(r);
  const oct_cpu_forward_options forward = {.model = o->model,
                                           .memory = r->memory,
                                           .team = r->team,
                                           .max_tokens = o->config->max_batched_tokens *
                                                         o->config->parallel.data,
                                           .max_context = r->max_context,
                                           .count_experts = o->config->report_experts,
                                           .expanded_latents = o->expanded_latents};
  r->forward = oct_cpu_forward_new(&forward, error);
  return r->forward != NULL && make_buffers(r, error) ? g_steal_pointer(&r) : NULL;
}

void
oct_cpu_runner_free(oct_cpu_runner *r) {
  if (r == NULL)
    return;
  oct_cpu_forward_free(r->forward);
  for (guint32 i = 0; r->slots != NULL && i < r->config->max_slots; i++) {
    for (guint32 g = 0; g < r->n_groups; g++)
      g_free(r->slots[i].tables[g].pages);
    g_free(r->slots[i].tables);
    g_free(r->slots[i].counts);
    g_free(r->slots[i].biases);
    g_free(r->slots[i].stops);
    g_free(r->slots[i].sum);
  }
  for (guint32 i = 0; r->scratch != NULL && i < oct_team_threads(r->team); i++)
    g_free(r->scratch[i]);
  g_free(r->scratch);
  oct_team_free(r->team);
  oct_cpu_memory_free(r->memory);
  g_free(r->slots);
  g_free(r->parts);
  g_free(r->views);
  g_free(r->hidden);
  g_free(r->logits);
  g_free(r->tokens);
  g_free(r->sampled);
  g_free(r->logprobs);
  g_free(r->pooled);
  g_free(r->backups);
  g_array_unref(r->failed);
  g_free(r);
}

const oct_cpu_memory *
oct_cpu_runner_memory(const oct_cpu_runner *r) {
  return r->memory;
}

/* ---------------------------------------------------------------- breaches */

static gboolean breach(const oct_cpu_runner *r, oct_fault *fault, const char *format, ...)
    G_GNUC_PRINTF(3, 4);

static gboolean
breach(const oct_cpu_runner *r, oct_fault *fault, const char *format, ...) {
  *fault = (oct_fault){
      .severity = OCT_SEVERITY_FATAL, .device = OCT_NO_INDEX, .number = r->step->number};
  va_list args;
  va_start(args, format);
  (void)g_vsnprintf(fault->message, sizeof fault->message, format, args);
  va_end(args);
  return FALSE;
}

/* ---------------------------------------------------------------- slots and tables */

static void
count_history(const oct_cpu_runner *r, slot *s, const oct_slot_open *o) {
  gboolean penalties =
      o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
  if (!penalties) {
    g_clear_pointer(&s->counts, g_free);
    return;
  }
  guint32 vocab = r->model->spec->vocab;
  if (s->counts == NULL)
    s->counts = g_new(guint32, vocab);
  memset(s->counts, 0, vocab * sizeof *s->counts);
  for (guint32 i = 0; i < o->n_history; i++) {
    guint32 *count = &s->counts[oct_step_tokens(r->step)[o->history + i]];
    if (i < o->prompt_tokens)
      *count |= OCT_REF_COUNT_PROMPT;
    else
      (*count)++;
  }
}

/* What is added to logits, and what is not sampled at first. */
static void
take_biases(const oct_cpu_runner *r, slot *s, const oct_slot_open *o) {
  s->prompt_tokens = o->prompt_tokens;
  s->min_tokens = o->min_tokens;
  s->n_biases = o->n_biases;
  s->n_stops = o->n_stops;
  s->n_summed = 0;
  g_free(s->biases);
  g_free(s->stops);
  s->biases = o->n_biases > 0 ? g_new(oct_logit_bias, o->n_biases) : NULL;
  for (guint32 i = 0; i < o->n_biases; i++) {
    const oct_token_bias *b = &oct_step_biases(r->step)[o->biases + i];
    s->biases[i] = (oct_logit_bias){b->token, b->bias};
  }
  s->stops = NULL;
  if (o->n_stops > 0)
    s->stops = g_memdup2(oct_step_tokens(r->step) + o->stops, o->n_stops * sizeof *s->stops);
}

static void
open_slot(const oct_cpu_runner *r, const oct_slot_open *o) {
  slot *s = &r->slots[o->slot];
  s->open = TRUE;
  s->failed = FALSE;
  s->domain = o->domain;
  s->next_position = s->last_token = OCT_NO_INDEX;
  s->sampling = (oct_sampling){.temperature = o->temperature,
                               .top_p = o->top_p,
                               .min_p = o->min_p,
                               .repetition = o->repetition_penalty,
                               .presence = o->presence_penalty,
                               .frequency = o->frequency_penalty,
                               .top_k = o->top_k,
                               .seed = o->seed};
  for (guint32 g = 0; g < r->n_groups; g++)
    s->tables[g].n = s->tables[g].first_live = 0;
  count_history(r, s, o);
  take_biases(r, s, o);
}

static void
change_table(const oct_cpu_runner *r, const oct_page_change *c) {
  table *t = &r->slots[c->slot].tables[c->group];
  if (c->op == OCT_PAGE_FIRST_LIVE) {
    t->first_live = c->index;
    return;
  }
  if (c->index >= t->room) {
    t->room = MAX(c->index + 1, MAX(16, 2 * t->room));
    t->pages = g_renew(guint32, t->pages, t->room);
  }
  for (; t->n <= c->index; t->n++)
    t->pages[t->n] = OCT_NO_INDEX;
  t->pages[c->index] = c->page;
}

/* Whether the tables hold what n tokens at `position` see and write. */
static gboolean
is_covered(const oct_cpu_runner *r, const part *p, oct_fault *fault) {
  guint32 end = p->position + p->slice->n_tokens;
  for (guint32 g = 0; g < r->n_groups; g++) {
    const table *t = &p->slot->tables[g];
    guint32 first = 0, last = (end - 1) / r->page_tokens, window = r->groups[g].window;
    if (r->groups[g].kind == OCT_ATTENTION_KDA)
      last = 0;
    else if (window > 0 && p->position + 1 > window)
      first = (p->position + 1 - window) / r->page_tokens;
    if (first < t->first_live)
      return breach(r, fault, "step %" G_GUINT64_FORMAT " slot %u group %u: page %u was given up",
                    r->step->number, p->slice->slot, g, first);
    for (guint32 i = first; i <= last; i++)
      if (i >= t->n || t->pages[i] == OCT_NO_INDEX)
        return breach(r, fault, "step %" G_GUINT64_FORMAT " slot %u group %u: no page %u",
                      r->step->number, p->slice->slot, g, i);
  }
  return TRUE;
}

/* ---------------------------------------------------------------- slices */

static guint32
rows_of(const oct_slice *s) {
  guint32 n_sampled = s->sample == OCT_SAMPLE_NONE   ? 0
                      : s->sample == OCT_SAMPLE_LAST ? 1
                                                     : s->n_tokens;
  return oct_slice_scored(s) + n_sampled;
}

static gboolean
resolve(oct_cpu_runner *r, part *p, oct_fault *fault) {
  const oct_slice *s = p->slice;
  guint64 number = r->step->number;
  p->slot = &r->slots[s->slot];
  if (!p->slot->open || p->slot->domain != s->domain)
    return breach(r, fault, "step %" G_GUINT64_FORMAT " slot %u is not open in domain %u", number,
                  s->slot, s->domain);
  p->position = s->position == OCT_POSITION_AFTER ? p->slot->next_position : s->position;
  if (p->position == OCT_NO_INDEX || (guint64)p->position + s->n_tokens > r->max_context)
    return breach(r, fault, "step %" G_GUINT64_FORMAT " slot %u: no position for %u tokens", number,
                  s->slot, s->n_tokens);
  if (s->source == OCT_SOURCE_DEVICE && p->slot->last_token == OCT_NO_INDEX)
    return breach(r, fault, "step %" G_GUINT64_FORMAT " slot %u has no token on the device", number,
                  s->slot);
  if (!is_covered(r, p, fault))
    return FALSE;
  p->view = (guint32)(p - r->parts);
  p->first_row = r->n_rows;
  p->n_rows = rows_of(s);
  p->n_scored = oct_slice_scored(s);
  if (s->pooling == OCT_POOLING_MEAN && p->position != 0 && p->slot->n_summed != p->position)
    return breach(r, fault, "step %" G_GUINT64_FORMAT " slot %u: a mean of %u tokens goes on at %u",
                  number, s->slot, p->slot->n_summed, p->position);
  p->first_token = r->n_tokens;
  p->backup = OCT_NO_INDEX;
  p->n_accepted = 0;
  p->ended = p->failed = FALSE;
  return TRUE;
}

static void
add_tokens(oct_cpu_runner *r, const part *p) {
  const oct_slice *s = p->slice;
  const guint32 *ids = s->tokens != OCT_NO_INDEX ? oct_step_tokens(r->step) + s->tokens : NULL;
  guint32 skip = s->source == OCT_SOURCE_DEVICE ? 1 : 0;
  for (guint32 i = 0; i < s->n_tokens; i++) {
    oct_cpu_token *t = &r->tokens[r->n_tokens++];
    t->id = i < skip ? p->slot->last_token : ids[i - skip];
    t->position = p->position + i;
    t->view = p->view;
    t->row = i + p->n_rows >= s->n_tokens ? r->n_rows++ : OCT_NO_INDEX;
  }
  oct_cpu_view *view = &r->views[p->view];
  view->domain = s->domain;
  for (guint32 g = 0; g < r->n_groups; g++)
    view->tables[g] = p->slot->tables[g].pages;
}

/* Rows for the hidden states that are pooled, behind those that get logits. */
static void
add_pooled(oct_cpu_runner *r, part *p) {
  guint32 n = p->slice->pooling == OCT_POOLING_MEAN   ? p->slice->n_tokens
              : p->slice->pooling == OCT_POOLING_LAST ? 1
                                                      : 0;
  p->first_pooled = r->n_rows + r->n_pooled;
  for (guint32 i = p->slice->n_tokens - n; i < p->slice->n_tokens; i++)
    r->tokens[p->first_token + i].row = r->n_rows + r->n_pooled++;
}

/* States that rejected drafts will have to be taken out of. */
static void
copy_states(const oct_cpu_runner *r, const part *p, guint32 backup, gboolean back) {
  guint8 *at = r->backups + backup * r->state_bytes;
  for (guint32 g = r->first_state; g < r->n_groups; g++) {
    if (r->groups[g].kind != OCT_ATTENTION_KDA)
      continue;
    gsize bytes = oct_cpu_memory_unit_bytes(r->memory, g);
    guint8 *state = oct_cpu_memory_item(r->memory, p->slice->domain, g, OCT_TIER_DEVICE,
                                        p->slot->tables[g].pages[0]);
    memcpy(back ? state : at, back ? at : state, bytes);
    at += bytes;
  }
}

static void
back_up(oct_cpu_runner *r, part *p) {
  if (r->first_state == r->n_groups || (p->slice->flags & OCT_SLICE_VERIFY) == 0 ||
      p->slice->n_tokens == 1)
    return;
  p->backup = r->n_backups++;
  gsize bytes = r->n_backups * r->state_bytes;
  if (bytes > r->backups_room) {
    r->backups_room = 2 * bytes;
    r->backups = g_realloc(r->backups, r->backups_room);
  }
  copy_states(r, p, p->backup, FALSE);
}

/* ---------------------------------------------------------------- the first half */

static void
make_copies(const oct_cpu_runner *r, oct_copy_order order) {
  const oct_copy *copies = oct_step_copies(r->step);
  for (guint32 i = 0; i < r->step->n_copies; i++)
    if (copies[i].order == order)
      oct_cpu_memory_copy(r->memory, &copies[i]);
}

static void
compute_logits(oct_cpu_runner *r, guint32 first) {
  r->first_logit = first;
  r->n_logits = MIN(r->logit_rows, r->n_rows - first);
  if (r->n_logits > 0)
    oct_cpu_forward_logits(r->forward, r->hidden + (gsize)first * r->model->spec->hidden,
                           r->n_logits, r->logits);
}

oct_cpu_outcome
oct_cpu_runner_begin(oct_cpu_runner *r, const oct_step *step, const gboolean *stop,
                     oct_fault *fault) {
  r->step = step;
  r->n_parts = step->n_slices;
  r->n_tokens = r->n_rows = r->n_backups = r->n_pooled = 0;
  oct_cpu_forward_clear_experts(r->forward);
  for (guint32 i = 0; i < step->n_opens; i++)
    open_slot(r, &oct_step_opens(step)[i]);
  for (guint32 i = 0; i < step->n_changes; i++)
    change_table(r, &oct_step_changes(step)[i]);
  make_copies(r, OCT_COPY_BEFORE);
  for (guint32 i = 0; i < step->n_slices; i++) {
    part *p = &r->parts[i];
    p->slice = &oct_step_slices(step)[i];
    if (!resolve(r, p, fault))
      return OCT_CPU_BREACH;
    add_tokens(r, p);
    back_up(r, p);
  }
  for (guint32 i = 0; i < step->n_slices; i++)
    add_pooled(r, &r->parts[i]);
  if (!oct_cpu_forward_run(r->forward, r->views, r->tokens, r->n_tokens, stop, r->hidden))
    return OCT_CPU_STOPPED;
  compute_logits(r, 0);
  return OCT_CPU_DONE;
}

/* ---------------------------------------------------------------- the second half */

static void
settle(oct_cpu_runner *r, part *p) {
  const oct_slice *s = p->slice;
  slot *of = p->slot;
  if (of->failed)
    oct_cpu_sample_nothing(r, p);
  if (p->failed) {
    guint32 index = (guint32)(p - r->parts);
    g_array_append_val(r->failed, index);
    of->failed = TRUE;
    p->n_accepted = 0;
    of->last_token = 0;
  }
  guint32 kept = (s->flags & OCT_SLICE_VERIFY) != 0 && !p->failed ? p->n_accepted : s->n_tokens;
  of->next_position = p->position + kept;
  if (p->n_accepted > 0)
    of->last_token = r->sampled[p->first_row + p->n_scored + p->n_accepted - 1];
  if (p->backup == OCT_NO_INDEX || kept == s->n_tokens)
    return;
  /* The states take in the accepted tokens only. */
  copy_states(r, p, p->backup, TRUE);
  for (guint32 i = 0; i < kept; i++)
    r->tokens[p->first_token + i].row = OCT_NO_INDEX;
  gboolean ran =
      oct_cpu_forward_run(r->forward, r->views, r->tokens + p->first_token, kept, NULL, r->hidden);
  oct_assert(ran);
}

void
oct_cpu_runner_finish(oct_cpu_runner *r, const guint64 *const *masks) {
  r->masks = masks;
  r->most_logprobs = 0;
  g_array_set_size(r->failed, 0);
  for (guint32 i = 0; i < r->n_parts; i++) {
    const oct_slice *s = r->parts[i].slice;
    r->most_logprobs = MAX(r->most_logprobs, MAX(s->n_logprobs, s->n_prompt_logprobs));
  }
  gsize room = (gsize)r->n_rows * (1 + r->most_logprobs);
  if (room > r->logprobs_room) {
    r->logprobs_room = 2 * room;
    r->logprobs = g_renew(oct_token_logprob, r->logprobs, r->logprobs_room);
  }
  gsize vectors = r->n_pooled > 0 ? (gsize)r->n_parts * r->model->spec->hidden : 0;
  if (vectors > r->pooled_room) {
    r->pooled_room = 2 * vectors;
    r->pooled = g_renew(float, r->pooled, r->pooled_room);
  }
  for (guint32 i = 0; i < r->n_parts && r->n_pooled > 0; i++)
    oct_cpu_pool(r, &r->parts[i]);
  for (;;) {
    oct_team_run(r->team, oct_cpu_sample_item, r, r->n_parts);
    guint32 next = r->first_logit + r->n_logits;
    if (next >= r->n_rows)
      break;
    compute_logits(r, next);
  }
  for (guint32 i = 0; i < r->n_parts; i++)
    settle(r, &r->parts[i]);
  make_copies(r, OCT_COPY_AFTER);
}

const guint32 *
oct_cpu_runner_failed(const oct_cpu_runner *r, guint32 *n, const char **reason) {
  *n = r->failed->len;
  *reason = "sampling: a logit is not a number, or the mask leaves nothing";
  return r->failed->len > 0 ? &g_array_index(r->failed, guint32, 0) : NULL;
}
