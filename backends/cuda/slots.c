#include "backends/cuda/slots.h"

#include <stdarg.h>
#include <string.h>

#include "engine/base/assert.h"

static gboolean breach(const oct_step *step, oct_fault *fault, const char *format, ...)
    G_GNUC_PRINTF(3, 4);

static gboolean
breach(const oct_step *step, oct_fault *fault, const char *format, ...) {
  *fault =
      (oct_fault){.severity = OCT_SEVERITY_FATAL, .device = OCT_NO_INDEX, .number = step->number};
  char *to = fault->message;
  gsize room = sizeof fault->message;
  gsize n = (gsize)g_snprintf(to, room, "step %" G_GUINT64_FORMAT " ", step->number);
  va_list args;
  va_start(args, format);
  (void)g_vsnprintf(to + n, room - n, format, args);
  va_end(args);
  return FALSE;
}

/* ---------------------------------------------------------------- life cycle */

/* Of all ranks that share a sequence's tokens out. */
static guint32
page_tokens_of(const oct_instance_config *c) {
  return c->block_size * c->parallel.decode_context;
}

/* Of a sequence, which has no more pages than the pool. */
static guint32
longest_context(const oct_cuda_slots_state *state) {
  const oct_instance_config *c = state->config;
  guint64 pages = 0;
  for (guint32 g = 0; g < state->n_groups; g++)
    if (state->groups[g].kind == OCT_ATTENTION_GQA || state->groups[g].kind == OCT_ATTENTION_MLA)
      pages = MAX(pages, c->memory.groups[g].n_device);
  guint64 tokens = pages > 0 ? pages * page_tokens_of(c) : c->spec->max_position;
  return (guint32)MIN(tokens, c->spec->max_position);
}

static void
open_experts(oct_cuda_slots_state *state) {
  const oct_model_spec *spec = state->config->spec;
  if (state->config->memory.n_expert_slots == 0)
    return;
  for (guint32 i = 0; i < spec->n_ffn; i++)
    state->n_layer_experts = MAX(state->n_layer_experts, spec->ffn[i].n_experts);
  gsize n = (gsize)spec->n_layers * state->n_layer_experts;
  state->expert_at = g_new(guint32, n);
  memset(state->expert_at, 0xff, n * sizeof *state->expert_at);
  state->n_words = (n + 63) / 64;
  state->resident = g_new0(guint64, state->n_words);
}

void
oct_cuda_slots_open(oct_cuda_slots_state *state, const oct_instance_config *config) {
  memset(state, 0, sizeof *state);
  state->config = config;
  state->n_groups = oct_model_groups(config->spec, config->kv_dtype, state->groups);
  state->max_context = longest_context(state);
  for (guint32 g = 0; g < state->n_groups; g++) {
    gboolean is_state = state->groups[g].kind == OCT_ATTENTION_KDA;
    state->strides[g] =
        is_state ? 1 : (state->max_context + page_tokens_of(config) - 1) / page_tokens_of(config);
    state->firsts[g] = state->n_entries;
    state->n_entries += state->strides[g] * config->max_slots;
  }
  state->slots = g_new0(oct_cuda_slot, config->max_slots);
  for (guint32 i = 0; i < config->max_slots; i++)
    state->slots[i].tables = g_new0(oct_cuda_table, state->n_groups);
  open_experts(state);
}

void
oct_cuda_slots_close(oct_cuda_slots_state *state) {
  for (guint32 i = 0; state->slots != NULL && i < state->config->max_slots; i++) {
    for (guint32 g = 0; g < state->n_groups; g++)
      g_free(state->slots[i].tables[g].pages);
    g_free(state->slots[i].tables);
  }
  g_clear_pointer(&state->slots, g_free);
  g_clear_pointer(&state->expert_at, g_free);
  g_clear_pointer(&state->resident, g_free);
}

/* ---------------------------------------------------------------- opens and changes */

static void
open_slot(oct_cuda_slots_state *state, const oct_step *step, const oct_slot_open *o) {
  oct_cuda_slot *s = &state->slots[o->slot];
  s->open = TRUE;
  s->has_token = FALSE;
  s->domain = o->domain;
  s->epoch = step->number;
  s->next_position = OCT_NO_INDEX;
  s->verify_step = s->last_step = 0;
  s->n_summed = 0;
  s->prompt_tokens = o->prompt_tokens;
  s->min_tokens = o->min_tokens;
  s->n_biases = o->n_biases;
  s->n_stops = o->n_stops;
  s->penalties =
      o->repetition_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0;
  s->sampling = (oct_sampling){.temperature = o->temperature,
                               .top_p = o->top_p,
                               .min_p = o->min_p,
                               .repetition = o->repetition_penalty,
                               .presence = o->presence_penalty,
                               .frequency = o->frequency_penalty,
                               .top_k = o->top_k,
                               .seed = o->seed};
  for (guint32 g = 0; g < state->n_groups; g++)
    s->tables[g].n = s->tables[g].first_live = 0;
}

static gboolean
change_table(oct_cuda_slots_state *state, const oct_step *step, const oct_page_change *c,
             oct_fault *fault) {
  oct_cuda_table *t = &state->slots[c->slot].tables[c->group];
  if (c->op == OCT_PAGE_FIRST_LIVE) {
    t->first_live = c->index;
    return TRUE;
  }
  if (c->index >= state->strides[c->group])
    return breach(step, fault, "slot %u group %u: page %u is beyond the longest context", c->slot,
                  c->group, c->index);
  if (c->index >= t->room) {
    t->room = MAX(c->index + 1, MAX(16, 2 * t->room));
    t->pages = g_renew(guint32, t->pages, t->room);
  }
  for (; t->n <= c->index; t->n++)
    t->pages[t->n] = OCT_NO_INDEX;
  t->pages[c->index] = c->page;
  return TRUE;
}

static gboolean
change_expert(oct_cuda_slots_state *state, const oct_step *step, const oct_expert_change *c,
              oct_fault *fault) {
  if (state->expert_at == NULL)
    return breach(step, fault, "layer %u expert %u moves, but every expert is resident", c->layer,
                  c->expert);
  gsize at = (gsize)c->layer * state->n_layer_experts + c->expert;
  guint64 bit = (guint64)1 << at % 64;
  state->expert_at[at] = c->slot;
  if (c->slot != OCT_NO_INDEX)
    state->resident[at / 64] |= bit;
  else
    state->resident[at / 64] &= ~bit;
  return TRUE;
}

gboolean
oct_cuda_slots_apply(oct_cuda_slots_state *state, const oct_step *step, oct_fault *fault) {
  for (guint32 i = 0; i < step->n_opens; i++)
    open_slot(state, step, &oct_step_opens(step)[i]);
  for (guint32 i = 0; i < step->n_changes; i++)
    if (!change_table(state, step, &oct_step_changes(step)[i], fault))
      return FALSE;
  for (guint32 i = 0; i < step->n_experts; i++)
    if (!change_expert(state, step, &oct_step_experts(step)[i], fault))
      return FALSE;
  return TRUE;
}

/* ---------------------------------------------------------------- slices */

/* Whether the tables hold what tokens of positions [position, end) see and write. */
static gboolean
is_covered(const oct_cuda_slots_state *state, const oct_step *step, guint32 slot, guint32 position,
           guint32 end, oct_fault *fault) {
  guint32 page_tokens = page_tokens_of(state->config);
  for (guint32 g = 0; g < state->n_groups; g++) {
    const oct_cuda_table *t = &state->slots[slot].tables[g];
    guint32 first = 0, last = (end - 1) / page_tokens, window = state->groups[g].window;
    if (state->groups[g].kind == OCT_ATTENTION_KDA)
      last = 0;
    else if (window > 0 && position + 1 > window)
      first = (position + 1 - window) / page_tokens;
    if (first < t->first_live)
      return breach(step, fault, "slot %u group %u: page %u was given up", slot, g, first);
    for (guint32 i = first; i <= last; i++)
      if (i >= t->n || t->pages[i] == OCT_NO_INDEX)
        return breach(step, fault, "slot %u group %u: no page %u", slot, g, i);
  }
  return TRUE;
}

gboolean
oct_cuda_slots_resolve(const oct_cuda_slots_state *state, const oct_step *step, const oct_slice *s,
                       guint32 n_tokens, guint32 *position, guint32 *end, oct_fault *fault) {
  const oct_cuda_slot *slot = &state->slots[s->slot];
  if (!slot->open || slot->domain != s->domain)
    return breach(step, fault, "slot %u is not open in domain %u", s->slot, s->domain);
  gboolean after = s->position == OCT_POSITION_AFTER;
  gboolean unknown = after && slot->verify_step != 0;
  *position = !after ? s->position : unknown ? OCT_NO_INDEX : slot->next_position;
  guint32 least = unknown ? slot->least : *position, most = unknown ? slot->most : *position;
  if (least == OCT_NO_INDEX || (guint64)most + n_tokens > state->max_context)
    return breach(step, fault, "slot %u: no position for %u tokens", s->slot, n_tokens);
  *end = most + n_tokens;
  if (s->pooling == OCT_POOLING_MEAN && *position != 0 && slot->n_summed != *position)
    return breach(step, fault, "slot %u: a mean of %u tokens goes on at %u", s->slot,
                  slot->n_summed, *position);
  if (s->source == OCT_SOURCE_DEVICE && !slot->has_token)
    return breach(step, fault, "slot %u has no token on the device", s->slot);
  return is_covered(state, step, s->slot, least, *end, fault);
}

void
oct_cuda_slots_advance(oct_cuda_slots_state *state, const oct_step *step, const oct_slice *s,
                       guint32 n_tokens, guint32 position, gboolean verify) {
  oct_cuda_slot *slot = &state->slots[s->slot];
  guint32 least = position != OCT_NO_INDEX ? position : slot->least;
  guint32 most = position != OCT_NO_INDEX ? position : slot->most;
  gboolean unsure = verify || position == OCT_NO_INDEX;
  slot->next_position = unsure ? OCT_NO_INDEX : position + n_tokens;
  slot->least = least + (verify ? 1 : n_tokens);
  slot->most = most + n_tokens;
  slot->verify_step = unsure ? step->number : 0;
  if (s->sample != OCT_SAMPLE_NONE) {
    slot->has_token = TRUE;
    slot->last_step = step->number;
  }
  if (s->pooling == OCT_POOLING_MEAN)
    slot->n_summed = slot->next_position;
}

void
oct_cuda_slots_settle(oct_cuda_slots_state *state, guint32 slot, guint64 epoch, guint64 step,
                      guint32 position, guint32 kept) {
  oct_cuda_slot *s = &state->slots[slot];
  if (s->epoch != epoch)
    return;
  s->settled = (position != OCT_NO_INDEX ? position : s->settled) + kept;
  if (s->verify_step != step)
    return;
  s->verify_step = 0;
  s->next_position = s->settled;
}
