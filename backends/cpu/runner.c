#include "backends/cpu/runner.h"

#include <stdarg.h>
#include <string.h>

#include "engine/base/assert.h"

/* Logits that are kept at a time, in rows; what is sampled beyond them is computed piece by piece.
 */
#define LOGIT_ROWS_MIN 64
#define LOGIT_ROWS_MAX 1024

typedef struct table {
  guint32 *pages; /* [room]; OCT_NO_INDEX: none */
  guint32 n, room, first_live;
} table;

typedef struct slot {
  gboolean open, failed;
  guint16 domain;
  guint32 next_position; /* OCT_NO_INDEX: not known yet */
  guint32 last_token;    /* accepted last; OCT_NO_INDEX: none */
  oct_sampling sampling;
  guint32 *counts; /* [vocab] for penalties, or NULL */
  table *tables;   /* [groups] */
} slot;

/* One slice, resolved. */
typedef struct part {
  const oct_slice *slice;
  slot *slot;
  guint32 position, view;
  guint32 first_row, n_rows; /* of hidden, for what is sampled */
  guint32 n_accepted;
  gboolean ended, failed; /* no more tokens are accepted; none is */
  guint32 first_token;    /* in tokens[] of the batch */
  guint32 backup;         /* of its states; OCT_NO_INDEX: none */
} part;

struct oct_cpu_runner {
  const oct_instance_config *config;
  const oct_cpu_model *model;
  oct_cpu_memory *memory;
  oct_team *team;
  oct_cpu_forward *forward;
  guint32 n_groups, page_tokens, max_context, first_state; /* group; n_groups: none */
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  gsize state_bytes; /* of all state groups of a sequence */
  slot *slots;
  float *hidden, *logits;                    /* [max tokens, hidden], [logit_rows, vocab] */
  guint32 logit_rows, first_logit, n_logits; /* rows that logits[] holds */
  oct_token_logprob **scratch;               /* [threads][vocab] */
  /* The step. */
  const oct_step *step;
  guint32 n_parts, n_tokens, n_rows, n_backups;
  part *parts;
  oct_cpu_view *views;
  oct_cpu_token *tokens;
  guint8 *backups;
  gsize backups_room;
  const guint64 *const *masks;
  guint32 *sampled;            /* [rows] */
  oct_token_logprob *logprobs; /* [rows, 1 + most wanted of a slice] */
  gsize logprobs_room;
  guint32 most_logprobs;
  GArray *failed; /* guint32 */
};

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
  return s->sample == OCT_SAMPLE_NONE ? 0 : s->sample == OCT_SAMPLE_LAST ? 1 : s->n_tokens;
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
  r->n_tokens = r->n_rows = r->n_backups = 0;
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
  if (!oct_cpu_forward_run(r->forward, r->views, r->tokens, r->n_tokens, stop, r->hidden))
    return OCT_CPU_STOPPED;
  compute_logits(r, 0);
  return OCT_CPU_DONE;
}

/* ---------------------------------------------------------------- sampling */

static gboolean
is_eos(const oct_cpu_runner *r, guint32 token) {
  const oct_model_spec *spec = r->model->spec;
  for (guint32 i = 0; i < spec->n_eos_tokens; i++)
    if (spec->eos_tokens[i] == token)
      return TRUE;
  return FALSE;
}

/* Samples row `i` of the part. Drafts go on only while they are what is sampled. */
static void
sample_row(oct_cpu_runner *r, part *p, guint32 i, guint32 thread) {
  const oct_slice *s = p->slice;
  guint32 row = p->first_row + i, vocab = r->model->spec->vocab;
  const float *logits = r->logits + (gsize)(row - r->first_logit) * vocab;
  guint32 index = s->n_tokens - p->n_rows + i; /* of the token whose successor this is */
  const guint64 *mask = r->masks != NULL ? r->masks[p - r->parts] : NULL;
  const oct_sample_input input = {.logits = logits,
                                  .vocab = vocab,
                                  .position = p->position + index + 1,
                                  .counts = p->slot->counts,
                                  .mask = mask};
  guint32 token = oct_ref_sample(&p->slot->sampling, &input, r->scratch[thread]);
  if (token == OCT_REF_NO_TOKEN) {
    p->failed = p->ended = TRUE;
    return;
  }
  r->sampled[row] = token;
  p->n_accepted = i + 1;
  if (s->n_logprobs > 0)
    oct_ref_logprobs(logits, vocab, token, s->n_logprobs,
                     r->logprobs + (gsize)row * (1 + r->most_logprobs));
  gboolean verify = (s->flags & OCT_SLICE_VERIFY) != 0;
  if (p->slot->counts != NULL && (verify || i + 1 == p->n_rows))
    p->slot->counts[token]++;
  if (verify && i + 1 < p->n_rows)
    p->ended = token != r->tokens[p->first_token + index + 1].id || is_eos(r, token);
}

/* The part's rows that logits[] holds. */
static void
sample_item(void *context, guint32 item, guint32 thread) {
  oct_cpu_runner *r = context;
  part *p = &r->parts[item];
  guint32 last = r->first_logit + r->n_logits;
  for (guint32 i = 0; i < p->n_rows && !p->ended && !p->slot->failed; i++)
    if (p->first_row + i >= r->first_logit && p->first_row + i < last)
      sample_row(r, p, i, thread);
}

/* What a slot that failed earlier gives: anything, until it is opened again. */
static void
sample_nothing(oct_cpu_runner *r, part *p) {
  p->n_accepted = p->n_rows > 0 ? 1 : 0;
  for (guint32 i = 0; i < p->n_accepted; i++) {
    r->sampled[p->first_row + i] = 0;
    memset(r->logprobs + (gsize)(p->first_row + i) * (1 + r->most_logprobs), 0,
           (1 + r->most_logprobs) * sizeof *r->logprobs);
  }
}

static void
settle(oct_cpu_runner *r, part *p) {
  const oct_slice *s = p->slice;
  slot *of = p->slot;
  if (of->failed)
    sample_nothing(r, p);
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
    of->last_token = r->sampled[p->first_row + p->n_accepted - 1];
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
  for (guint32 i = 0; i < r->n_parts; i++)
    r->most_logprobs = MAX(r->most_logprobs, r->parts[i].slice->n_logprobs);
  gsize room = (gsize)r->n_rows * (1 + r->most_logprobs);
  if (room > r->logprobs_room) {
    r->logprobs_room = 2 * room;
    r->logprobs = g_renew(oct_token_logprob, r->logprobs, r->logprobs_room);
  }
  for (;;) {
    oct_team_run(r->team, sample_item, r, r->n_parts);
    guint32 next = r->first_logit + r->n_logits;
    if (next >= r->n_rows)
      break;
    compute_logits(r, next);
  }
  for (guint32 i = 0; i < r->n_parts; i++)
    settle(r, &r->parts[i]);
  make_copies(r, OCT_COPY_AFTER);
}

/* ---------------------------------------------------------------- the result */

static guint32
count_experts(const oct_cpu_runner *r) {
  guint32 n = 0;
  for (guint32 l = 0; l < r->model->spec->n_layers; l++) {
    const guint32 *counts = oct_cpu_forward_experts(r->forward, l);
    for (guint32 e = 0; counts != NULL && e < r->model->layers[l].ffn->n_experts; e++)
      n += counts[e] > 0;
  }
  return n;
}

static void
fill_experts(const oct_cpu_runner *r, oct_expert_use *to) {
  for (guint32 l = 0; l < r->model->spec->n_layers; l++) {
    const guint32 *counts = oct_cpu_forward_experts(r->forward, l);
    for (guint32 e = 0; counts != NULL && e < r->model->layers[l].ffn->n_experts; e++)
      if (counts[e] > 0)
        *to++ = (oct_expert_use){.layer = (guint16)l, .expert = e, .tokens = counts[e]};
  }
}

/* The header's array at `field` begins at *end. */
static void *
place(guint8 *buffer, guint32 *field, gsize bytes, gsize *end) {
  void *at = buffer + *end;
  *field = (guint32)*end;
  *end += (bytes + 7) & ~(gsize)7;
  return at;
}

oct_step_result *
oct_cpu_runner_result(const oct_cpu_runner *r, guint8 **buffer, gsize *room) {
  oct_step_result h = {.n_slices = r->n_parts, .n_experts = count_experts(r)};
  for (guint32 i = 0; i < r->n_parts; i++) {
    const part *p = &r->parts[i];
    h.n_tokens += p->n_accepted;
    h.n_logprobs += p->slice->n_logprobs > 0 ? p->n_accepted * (1u + p->slice->n_logprobs) : 0;
  }
  gsize bytes = sizeof h + h.n_slices * sizeof(oct_slice_result) + h.n_tokens * sizeof(guint32) +
                h.n_logprobs * sizeof(oct_logprob) + h.n_experts * sizeof(oct_expert_use) + 32;
  if (bytes > *room) {
    *room = 2 * bytes;
    *buffer = g_realloc(*buffer, *room);
  }
  memset(*buffer, 0, bytes);
  gsize end = sizeof h;
  oct_slice_result *slices = place(*buffer, &h.slices, h.n_slices * sizeof(oct_slice_result), &end);
  guint32 *tokens = place(*buffer, &h.tokens, h.n_tokens * sizeof(guint32), &end);
  oct_logprob *logprobs = place(*buffer, &h.logprobs, h.n_logprobs * sizeof(oct_logprob), &end);
  fill_experts(r, place(*buffer, &h.experts, h.n_experts * sizeof(oct_expert_use), &end));
  h.bytes = (guint32)end;
  guint32 next_token = 0, next_logprob = 0;
  for (guint32 i = 0; i < r->n_parts; i++) {
    const part *p = &r->parts[i];
    guint32 each = p->slice->n_logprobs > 0 && p->n_accepted > 0 ? 1u + p->slice->n_logprobs : 0;
    slices[i] = (oct_slice_result){.n_accepted = p->n_accepted,
                                   .tokens = next_token,
                                   .flags = p->failed ? OCT_RESULT_FAILED : 0,
                                   .logprobs = each > 0 ? next_logprob : OCT_NO_INDEX};
    for (guint32 k = 0; k < p->n_accepted; k++) {
      gsize row = p->first_row + k;
      tokens[next_token++] = r->sampled[row];
      for (guint32 j = 0; j < each; j++) {
        const oct_token_logprob *from = &r->logprobs[row * (1 + r->most_logprobs) + j];
        logprobs[next_logprob++] = (oct_logprob){from->token, from->logprob};
      }
    }
  }
  memcpy(*buffer, &h, sizeof h);
  return (oct_step_result *)(void *)*buffer;
}

const guint32 *
oct_cpu_runner_failed(const oct_cpu_runner *r, guint32 *n, const char **reason) {
  *n = r->failed->len;
  *reason = "sampling: a logit is not a number, or the mask leaves nothing";
  return r->failed->len > 0 ? &g_array_index(r->failed, guint32, 0) : NULL;
}
