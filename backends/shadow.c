/* Slots, tokens and outcomes of the shadow. shadow.h says what it is for; shadow-memory.c has pages
 * and state, shadow-content.c tokens and what is made of them, shadow-experts.c the experts.
 */
#include "backends/shadow.h"

#include <string.h>

#include "backends/shadow-internal.h"
#include "engine/base/assert.h"
#include "engine/base/rng.h"

/* ---------------------------------------------------------------- life cycle */

void
oct_shadow_options_default(oct_shadow_options *options) {
  *options =
      (oct_shadow_options){.seed = 1, .accept_rate = -1, .check_leases = TRUE, .track_pages = TRUE};
}

oct_shadow *
oct_shadow_new(const oct_instance_config *config, const oct_shadow_options *options) {
  oct_shadow *s = g_new0(oct_shadow, 1);
  s->config = *config;
  s->options = *options;
  s->token_key = oct_mix64(options->seed ^ 0x736861646f770000u);
  s->n_groups = oct_model_groups(config->spec, config->kv_dtype, s->groups);
  s->n_domains = config->parallel.data;
  s->page_tokens = config->block_size * config->parallel.decode_context;
  for (guint32 g = 0; g < s->n_groups; g++)
    s->has_state |= s->groups[g].kind == OCT_ATTENTION_KDA;
  shadow_pools_new(s);
  shadow_experts_new(s);
  s->slots = g_new0(slot, config->max_slots);
  s->tables = g_new0(page_table, (gsize)config->max_slots * s->n_groups);
  s->looks_at_pages = s->has_state || s->tracks_pages || config->check_tags;
  s->next_owner = SHADOW_NO_OWNER + 1;
  s->ring_size = config->depth + 1;
  s->ring = g_new(step_entry *, s->ring_size);
  for (guint32 i = 0; i < s->ring_size; i++)
    s->ring[i] = g_new0(step_entry, 1);
  return s;
}

void
oct_shadow_free(oct_shadow *s) {
  if (s == NULL)
    return;
  shadow_pools_free(s);
  shadow_experts_free(s);
  for (gsize i = 0; i < (gsize)s->config.max_slots * s->n_groups; i++)
    g_free(s->tables[i].pages);
  for (guint32 i = 0; i < s->config.max_slots; i++)
    shadow_sequence_free(&s->slots[i]);
  for (guint32 i = 0; i < s->ring_size; i++) {
    g_free(s->ring[i]->step.scored);
    g_free(s->ring[i]->step.floats);
    g_free(s->ring[i]->step.slices);
    g_free(s->ring[i]->step.tokens);
    g_free(s->ring[i]->step.experts);
    g_free(s->ring[i]);
  }
  g_free(s->ring);
  g_free(s->tables);
  g_free(s->slots);
  g_free(s->chains);
  g_free(s->fed);
  g_free(s->allowed);
  g_free(s);
}

static step_entry *
entry_of(const oct_shadow *s, guint64 number) {
  return s->ring[number % s->ring_size];
}

/* ---------------------------------------------------------------- a step's slices */

static void
open_slots(oct_shadow *s, const oct_step *step) {
  const oct_slot_open *opens = oct_step_opens(step);
  for (guint32 i = 0; i < step->n_opens; i++) {
    const oct_slot_open *o = &opens[i];
    if (s->next_owner == SHADOW_NO_OWNER)
      s->next_owner++;
    shadow_sequence_open(s, &s->slots[o->slot], step, o);
    for (guint32 g = 0; g < s->n_groups; g++) {
      page_table *t = &s->tables[o->slot * s->n_groups + g];
      t->n = t->first_set = t->first_live = 0;
    }
  }
}

/* The slice's position as a number, and whether the slot can run it. */
static gboolean
resolve(oct_shadow *s, const oct_step *step, guint32 i, oct_shadow_slice *out, oct_fault *fault) {
  const oct_slice *in = &oct_step_slices(step)[i];
  slot *sl = &s->slots[in->slot];
  if (!sl->open || sl->domain != in->domain)
    return shadow_breach(fault, step->number, "slice %u: slot %u is not open in domain %u", i,
                         in->slot, in->domain);
  guint32 position = in->position;
  if (position == OCT_POSITION_AFTER) {
    if (!sl->ran)
      return shadow_breach(fault, step->number, "slice %u: slot %u has run nothing to be AFTER", i,
                           in->slot);
    position = sl->position;
  }
  if ((guint64)position + in->n_tokens > s->config.spec->max_position)
    return shadow_breach(fault, step->number, "slice %u: slot %u goes past position %u", i,
                         in->slot, s->config.spec->max_position);
  if (sl->ran && position > sl->position)
    return shadow_breach(fault, step->number, "slice %u: slot %u is at %u, the slice at %u", i,
                         in->slot, sl->position, position);
  if (in->source == OCT_SOURCE_DEVICE && (!sl->has_token || position != sl->position))
    return shadow_breach(fault, step->number, "slice %u: slot %u has accepted no token for %u", i,
                         in->slot, position);
  gboolean needs_token = in->source == OCT_SOURCE_DEVICE || in->position == OCT_POSITION_AFTER ||
                         (in->source == OCT_SOURCE_ABSENT && sl->has_token);
  *out = (oct_shadow_slice){
      .slot = in->slot,
      .domain = in->domain,
      .sample = in->sample,
      .n_logprobs = in->n_logprobs,
      .n_prompt_logprobs = in->n_prompt_logprobs,
      .floats = OCT_NO_INDEX,
      .flags = in->flags,
      .adapter = in->adapter,
      .position = position,
      .n_tokens = in->n_tokens,
      .prompt_tokens = sl->prompt_tokens,
      .end_position = sl->end_position,
      .eos_token = sl->eos_token,
      .key = sl->key,
      .feeds_on = needs_token && sl->sampled_step > s->last_done ? sl->sampled_step : 0,
  };
  return TRUE;
}

/* The slice's tokens: ids of the record, the token on the device, or not known. */
static const guint32 *
fed_tokens(oct_shadow *s, const oct_step *step, const oct_slice *in) {
  if (in->source == OCT_SOURCE_IDS)
    return oct_step_tokens(step) + in->tokens;
  guint32 n = 0;
  if (in->source == OCT_SOURCE_DEVICE)
    s->fed[n++] = s->slots[in->slot].last_token;
  for (guint32 i = 0; n < in->n_tokens; i++)
    s->fed[n++] =
        in->source == OCT_SOURCE_DEVICE ? oct_step_tokens(step)[in->tokens + i] : TOKEN_UNKNOWN;
  return s->fed;
}

static guint32
sampled_token(oct_shadow *s, const oct_shadow_slice *sl, guint32 position) {
  return shadow_choose(s, sl, position, shadow_stream_token(s, sl, position), NULL);
}

/* The chance of the draft at this place of its slice. */
static double
acceptance(const oct_shadow *s, guint32 place) {
  const oct_shadow_options *o = &s->options;
  return o->n_accept_at > 0 ? o->accept_at[MIN(place, o->n_accept_at - 1)] : o->accept_rate;
}

/* How many of a VERIFY slice's sampled tokens are accepted: drafts up to the first wrong one, and
 * the token sampled there; none after the end of the sequence. */
static guint32
count_accepted(oct_shadow *s, const oct_shadow_slice *sl, const guint32 *fed) {
  guint32 n = 1;
  if (s->options.n_accept_script > 0) {
    guint32 wanted = s->options.accept_script[s->script_at++ % s->options.n_accept_script];
    n = CLAMP(wanted, 1, sl->n_tokens);
  } else if (s->options.accept_rate >= 0 || s->options.n_accept_at > 0) {
    guint64 x = oct_mix64(sl->key ^ s->options.seed ^ 0x61636365707473u);
    for (; n < sl->n_tokens; n++)
      if ((double)(oct_mix64(x + sl->position + n) >> 11) * 0x1p-53 >= acceptance(s, n - 1))
        break;
  } else {
    while (n < sl->n_tokens && fed[n] == sampled_token(s, sl, sl->position + n))
      n++;
  }
  for (guint32 k = 1; k < n; k++)
    if (sl->end_position != 0 && sl->position + k + 1 == sl->end_position)
      return k;
  return n;
}

static inline void
reserve_tokens(step_entry *entry, guint32 n) {
  if (entry->step.n_tokens + n <= entry->tokens_room)
    return;
  entry->tokens_room = MAX(entry->step.n_tokens + n, 2 * entry->tokens_room);
  entry->step.tokens = g_renew(guint32, entry->step.tokens, entry->tokens_room);
}

static void
sample(oct_shadow *s, step_entry *entry, oct_shadow_slice *sl, const guint32 *fed) {
  gboolean verify = (sl->flags & OCT_SLICE_VERIFY) != 0;
  sl->tokens = entry->step.n_tokens;
  sl->n_accepted = sl->sample == OCT_SAMPLE_NONE   ? 0
                   : sl->sample == OCT_SAMPLE_LAST ? 1
                   : verify                        ? count_accepted(s, sl, fed)
                                                   : sl->n_tokens;
  reserve_tokens(entry, sl->n_accepted);
  guint32 first = sl->sample == OCT_SAMPLE_LAST ? sl->position + sl->n_tokens : sl->position + 1;
  for (guint32 k = 0; k < sl->n_accepted; k++) {
    /* An accepted draft is the token, whatever made it so. */
    gboolean draft = verify && k + 1 < sl->n_accepted && fed[k + 1] != TOKEN_UNKNOWN;
    entry->step.tokens[entry->step.n_tokens++] =
        draft ? fed[k + 1] : sampled_token(s, sl, first + k);
  }
}

/* Moves the slot past the slice. */
static void
advance_slot(oct_shadow *s, guint64 number, const oct_shadow_slice *sl, const guint32 *tokens) {
  slot *to = &s->slots[sl->slot];
  gboolean verify = (sl->flags & OCT_SLICE_VERIFY) != 0;
  to->ran = TRUE;
  to->position = sl->position + (verify ? sl->n_accepted : sl->n_tokens);
  to->has_token = sl->n_accepted > 0;
  if (!to->has_token)
    return;
  to->sampled_step = number;
  gboolean waits = (sl->flags & OCT_SLICE_NEEDS_MASK) != 0;
  to->last_token = waits ? TOKEN_UNKNOWN : tokens[sl->tokens + sl->n_accepted - 1];
}

/* A decode of one token of whose content nothing is asked, which is nearly every slice of a long
 * run, and which its slot can run. */
static gboolean
is_plain_decode(const oct_shadow *s, const oct_slice *in) {
  const slot *sl = &s->slots[in->slot];
  return in->n_tokens == 1 && in->sample == OCT_SAMPLE_LAST && in->source == OCT_SOURCE_DEVICE &&
         (in->flags | in->n_logprobs | in->n_prompt_logprobs | in->pooling) == 0 && sl->open &&
         sl->domain == in->domain && sl->ran && sl->has_token && in->position == sl->position &&
         in->position < s->config.spec->max_position && sl->n_biases + sl->n_stops == 0 &&
         !s->config.check_tags;
}

/* Whether the slot's pages are in order for a token at `position`; if not, shadow_check_slice()
 * says why. */
static inline gboolean
pages_reach(const oct_shadow *s, guint32 slot_id, guint32 position) {
  for (guint32 g = 0; g < s->n_groups; g++) {
    const page_table *t = &s->tables[slot_id * s->n_groups + g];
    const guint32 window = s->groups[g].window;
    if ((guint64)t->n * s->page_tokens <= position || t->first_set > t->first_live ||
        (window > 0 && t->first_live > 0))
      return FALSE;
  }
  return TRUE;
}

/* run_slice() of a plain decode. */
static gboolean
run_decode(oct_shadow *s, const oct_step *step, guint32 i, step_entry *entry, oct_fault *fault) {
  const oct_slice *in = &oct_step_slices(step)[i];
  slot *sl = &s->slots[in->slot];
  const guint32 position = in->position;
  guint64 chain = 0;
  if (s->looks_at_pages || !pages_reach(s, in->slot, position)) {
    if (!shadow_check_slice(s, step->number, in->slot, position, 1, &chain, fault) ||
        !shadow_write_slice(s, step->number, in->slot, position, 1, 1, NULL, fault))
      return FALSE;
  }
  entry->step.slices[i] = (oct_shadow_slice){
      .slot = in->slot,
      .domain = in->domain,
      .sample = OCT_SAMPLE_LAST,
      .floats = OCT_NO_INDEX,
      .adapter = in->adapter,
      .position = position,
      .n_tokens = 1,
      .n_accepted = 1,
      .tokens = entry->step.n_tokens,
      .scored = entry->step.n_scored,
      .prompt_tokens = sl->prompt_tokens,
      .end_position = sl->end_position,
      .eos_token = sl->eos_token,
      .key = sl->key,
      .feeds_on = sl->sampled_step > s->last_done ? sl->sampled_step : 0,
  };
  sl->position = position + 1;
  sl->sampled_step = step->number;
  sl->last_token = shadow_next_token(s, sl, in->adapter, position + 1);
  reserve_tokens(entry, 1);
  entry->step.tokens[entry->step.n_tokens++] = sl->last_token;
  return TRUE;
}

static gboolean
run_slice(oct_shadow *s, const oct_step *step, guint32 i, step_entry *entry, oct_fault *fault) {
  const oct_slice *in = &oct_step_slices(step)[i];
  oct_shadow_slice *out = &entry->step.slices[i];
  if (is_plain_decode(s, in))
    return run_decode(s, step, i, entry, fault);
  if (!resolve(s, step, i, out, fault))
    return FALSE;
  slot *sl = &s->slots[in->slot];
  const guint32 *fed = fed_tokens(s, step, in);
  guint64 chain = 0;
  if (s->config.check_tags) {
    chain = out->position == 0 ? OCT_TAG_EMPTY : in->tag;
    guint64 slot_chain = sl->ran && out->position == sl->position ? sl->chain : 0;
    if (in->tag != 0 && in->tag != chain)
      return shadow_breach(fault, step->number, "slice %u: the tag of no tokens is not EMPTY", i);
    if (chain == 0)
      chain = slot_chain;
    else if (slot_chain != 0 && slot_chain != chain)
      return shadow_breach(fault, step->number, "slice %u: slot %u ran other tokens than its tag's",
                           i, in->slot);
  }
  if (!shadow_check_slice(s, step->number, in->slot, out->position, in->n_tokens, &chain, fault))
    return FALSE;
  sample(s, entry, out, fed);
  shadow_score(entry, out, step, in);
  if (!shadow_add_pooled(s, step->number, entry, out, in, fed, fault))
    return FALSE;
  if ((in->flags & OCT_SLICE_NEEDS_MASK) != 0)
    entry->step.n_masks++;
  if (s->config.check_tags) {
    sl->chain = chain;
    for (guint32 k = 0; k < in->n_tokens; k++) {
      chain = chain == 0 || fed[k] == TOKEN_UNKNOWN ? 0 : oct_tag_next(chain, fed[k]);
      s->chains[k] = chain;
    }
  }
  guint32 kept = (in->flags & OCT_SLICE_VERIFY) != 0 ? out->n_accepted : in->n_tokens;
  if (!shadow_write_slice(s, step->number, in->slot, out->position, in->n_tokens, kept,
                          s->config.check_tags ? s->chains : NULL, fault))
    return FALSE;
  advance_slot(s, step->number, out, entry->step.tokens);
  return TRUE;
}

/* Whether the step is nothing but one-token decodes, and how often it can be repeated one token
 * further before a sequence ends in it. */
static void
find_stretch(oct_shadow *s, const oct_step *step, oct_shadow_step *out) {
  out->plain = FALSE;
  if (s->config.check_tags || s->expert_use != NULL || step->n_copies > 0 || step->n_experts > 0 ||
      step->n_slices == 0)
    return;
  out->forward_left = G_MAXUINT32;
  for (guint32 i = 0; i < out->n_slices; i++) {
    const oct_shadow_slice *sl = &out->slices[i];
    if (sl->n_tokens != 1 || sl->sample != OCT_SAMPLE_LAST || sl->flags != 0 ||
        sl->n_logprobs != 0 || oct_step_slices(step)[i].source == OCT_SOURCE_IDS)
      return;
    guint32 next = sl->position + 1;
    guint32 left = s->config.spec->max_position - next;
    if (sl->end_position != 0) {
      if (next >= sl->end_position)
        return; /* rides along after its end */
      left = MIN(left, sl->end_position - 1 - next);
    }
    out->forward_left = MIN(out->forward_left, left);
  }
  out->plain = TRUE;
}

/* Tells the slots of a forwarded step how far they have come. */
void
shadow_settle(oct_shadow *s) {
  if (s->shift == 0)
    return;
  step_entry *entry = entry_of(s, s->last_number);
  for (guint32 i = 0; i < entry->step.n_slices; i++) {
    oct_shadow_slice *sl = &entry->step.slices[i];
    slot *to = &s->slots[sl->slot];
    sl->position += s->shift;
    sl->feeds_on = 0;
    to->position += s->shift;
    to->sampled_step = s->last_number;
    to->last_token = entry->step.tokens[sl->tokens] = sampled_token(s, sl, sl->position + 1);
    shadow_advance_state(s, s->last_number, sl->slot, s->shift);
  }
  s->shift = 0;
}

static void
make_room(oct_shadow *s, const oct_step *step, step_entry *entry) {
  guint32 most = 1;
  for (guint32 i = 0; i < step->n_slices; i++)
    most = MAX(most, oct_step_slices(step)[i].n_tokens);
  if (most > s->scratch_room) {
    s->scratch_room = most;
    s->chains = g_renew(guint64, s->chains, most);
    s->fed = g_renew(guint32, s->fed, most);
  }
  if (step->n_slices > entry->slices_room) {
    entry->slices_room = MAX(step->n_slices, 2 * entry->slices_room);
    entry->step.slices = g_renew(oct_shadow_slice, entry->step.slices, entry->slices_room);
  }
}

gboolean
oct_shadow_submit(oct_shadow *s, const oct_step *step, oct_shadow_step **out, oct_fault *fault) {
  oct_assert(step->number == s->last_number + 1 && step->number - s->last_done < s->ring_size);
  shadow_settle(s);
  step_entry *entry = entry_of(s, step->number);
  make_room(s, step, entry);
  oct_shadow_step *o = *out = &entry->step;
  o->number = s->last_number = step->number;
  o->n_slices = step->n_slices;
  o->n_tokens = o->n_experts = o->n_masks = o->n_scored = o->n_floats = 0;
  memset(o->missed, 0, sizeof o->missed);
  open_slots(s, step);
  if (!shadow_apply_changes(s, step, fault) ||
      !shadow_step_copies(s, step, OCT_COPY_BEFORE, fault) || !shadow_apply_experts(s, step, fault))
    return FALSE;
  for (guint32 i = 0; i < step->n_slices; i++)
    if (!run_slice(s, step, i, entry, fault)) {
      fault->slice = i;
      return FALSE;
    }
  if (!shadow_step_copies(s, step, OCT_COPY_AFTER, fault))
    return FALSE;
  shadow_route(s, entry);
  find_stretch(s, step, o);
  return TRUE;
}

static gboolean
allows_something(const oct_shadow *s, const guint64 *bits) {
  guint32 vocab = s->config.spec->vocab, rest = vocab % 64;
  for (guint32 w = 0; w < vocab / 64; w++)
    if (bits[w] != 0)
      return TRUE;
  return rest > 0 && (bits[vocab / 64] & (((guint64)1 << rest) - 1)) != 0;
}

gboolean
oct_shadow_mask(oct_shadow *s, guint64 number, guint32 slice, const guint64 *bits, guint32 n_words,
                GError **error) {
  if (number <= s->last_done)
    return FALSE;
  if (number > s->last_number) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "mask of step %" G_GUINT64_FORMAT ", submitted so far %" G_GUINT64_FORMAT, number,
                s->last_number);
    return FALSE;
  }
  oct_shadow_step *step = &entry_of(s, number)->step;
  guint32 wanted_words = (s->config.spec->vocab + 63) / 64;
  if (slice >= step->n_slices || (step->slices[slice].flags & OCT_SLICE_NEEDS_MASK) == 0) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "mask of step %" G_GUINT64_FORMAT ": slice is %u, which needs no mask", number,
                slice);
    return FALSE;
  }
  if (n_words != wanted_words) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "mask: n_words is %u, must be %u", n_words, wanted_words);
    return FALSE;
  }
  oct_shadow_slice *sl = &step->slices[slice];
  if (sl->masked)
    return FALSE;
  if (!allows_something(s, bits)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "mask of step %" G_GUINT64_FORMAT " slice %u allows no token", number, slice);
    return FALSE;
  }
  guint32 first = sl->sample == OCT_SAMPLE_LAST ? sl->position + sl->n_tokens : sl->position + 1;
  for (guint32 k = 0; k < sl->n_accepted; k++) {
    guint32 *token = &step->tokens[sl->tokens + k];
    *token = shadow_choose(s, sl, first + k, *token, bits);
  }
  sl->masked = TRUE;
  step->n_masks--;
  slot *to = &s->slots[sl->slot];
  if (to->sampled_step == number && to->key == sl->key)
    to->last_token = step->tokens[sl->tokens + sl->n_accepted - 1];
  return TRUE;
}

void
oct_shadow_step_done(oct_shadow *s, guint64 number) {
  oct_assert(number == s->last_done + 1 && number <= s->last_number);
  shadow_settle(s);
  s->last_done = number;
}

void
oct_shadow_forward(oct_shadow *s, oct_shadow_step *step) {
  oct_assert(step->plain && step->forward_left > 0 && s->last_number == s->last_done + 1 &&
             step->number == s->last_number);
  step_entry **old = &s->ring[s->last_number % s->ring_size];
  step_entry **next = &s->ring[(s->last_number + 1) % s->ring_size];
  step_entry *entry = *old;
  *old = *next;
  *next = entry;
  s->last_done++;
  step->number = ++s->last_number;
  step->forward_left--;
  s->shift++;
}

guint64
oct_shadow_unit_bytes(const oct_instance_config *config, guint32 group) {
  const oct_parallel *p = &config->parallel;
  guint64 tokens = (guint64)config->block_size * p->decode_context, bytes = 0;
  for (guint32 stage = 0; stage < p->pipeline; stage++)
    bytes += p->tensor *
             (tokens * oct_model_rank_token_bytes(config->spec, p, stage, config->kv_dtype, group) +
              oct_model_rank_state_bytes(config->spec, p, stage, group));
  return bytes;
}
