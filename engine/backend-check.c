/* What a record, a list of copies and a config may say (the checks of engine/backend.h).
 *
 * The records may come from another process, so no field is believed before it is checked: first
 * the layout (counts within limits, every offset the one that the counts give), then each array
 * against the config. Every message names the field, its value and the limit. Nothing is allocated.
 */
#include "engine/backend.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

typedef struct checker {
  const oct_step *step; /* NULL for copies outside a step */
  const oct_instance_config *config;
  guint32 n_domains, n_groups;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  gboolean has_state;
  GError **error;
} checker;

static gboolean refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
refuse(GError **error, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (error != NULL)
    *error = g_error_new_valist(OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD, format, args);
  va_end(args);
  return FALSE;
}

static gboolean
is_state(const checker *c, guint32 group) {
  return c->groups[group].kind == OCT_ATTENTION_KDA;
}

static void
start(checker *c, const oct_instance_config *config, GError **error) {
  memset(c, 0, sizeof *c);
  c->config = config;
  c->error = error;
  c->n_domains = config->parallel.data;
  c->n_groups = oct_model_groups(config->spec, config->kv_dtype, c->groups);
  for (guint32 g = 0; g < c->n_groups; g++)
    c->has_state |= is_state(c, g);
}

/* Tokens that one page of the instance holds. */
static guint32
page_tokens(const checker *c) {
  return c->config->block_size * MAX(c->config->parallel.decode_context, 1);
}

static gboolean
is_moe_layer(const checker *c, guint32 layer) {
  const oct_model_spec *spec = c->config->spec;
  return layer < spec->n_layers && spec->ffn[spec->layers[layer].ffn].n_experts > 0;
}

static guint32
layer_experts(const checker *c, guint32 layer) {
  const oct_model_spec *spec = c->config->spec;
  return spec->ffn[spec->layers[layer].ffn].n_experts;
}

/* ---------------------------------------------------------------- layout */

/* Takes the array at *offset: its own offset must be the one that the arrays before it give. */
static gboolean
check_array(const oct_step *step, const char *name, guint32 n, guint32 limit, guint32 at,
            gsize item_bytes, guint64 *offset, GError **error) {
  if (n > limit)
    return refuse(error, "step.n_%s is %u, limit %u", name, n, limit);
  if (at != *offset)
    return refuse(error, "step.%s is %u, must be %" G_GUINT64_FORMAT, name, at, *offset);
  guint64 used = (guint64)n * item_bytes, end = *offset + ((used + 7) & ~(guint64)7);
  if (end > step->bytes)
    return refuse(error, "step.n_%s is %u: the array ends at %" G_GUINT64_FORMAT ", record %u",
                  name, n, end, step->bytes);
  const guint8 *padding = (const guint8 *)step + *offset + used;
  for (guint64 i = 0; i < end - *offset - used; i++)
    if (padding[i] != 0)
      return refuse(error, "step.%s: padding byte %u is %u, must be 0", name, (guint)i, padding[i]);
  *offset = end;
  return TRUE;
}

gboolean
oct_step_layout_check(const oct_step *s, gsize size, GError **error) {
  if (size < sizeof *s || s->bytes < sizeof *s)
    return refuse(error, "step.bytes is %u of %" G_GSIZE_FORMAT ", at least %u",
                  size < sizeof s->bytes ? 0 : s->bytes, size, (guint)sizeof *s);
  if (s->bytes > size)
    return refuse(error, "step.bytes is %u, limit %" G_GSIZE_FORMAT, s->bytes, size);
  if (s->abi != OCT_BACKEND_ABI)
    return refuse(error, "step.abi is %u, must be %u", s->abi, OCT_BACKEND_ABI);
  if (s->number == 0)
    return refuse(error, "step.number is 0, must be at least 1");
  if (s->reserved != 0)
    return refuse(error, "step.reserved is %u, must be 0", s->reserved);
  guint64 at = sizeof *s;
  if (!check_array(s, "slices", s->n_slices, OCT_STEP_SLICES_MAX, s->slices, sizeof(oct_slice), &at,
                   error) ||
      !check_array(s, "tokens", s->n_tokens, OCT_STEP_IDS_MAX, s->tokens, sizeof(guint32), &at,
                   error) ||
      !check_array(s, "opens", s->n_opens, OCT_STEP_SLICES_MAX, s->opens, sizeof(oct_slot_open),
                   &at, error) ||
      !check_array(s, "biases", s->n_biases, OCT_STEP_BIASES_MAX, s->biases, sizeof(oct_token_bias),
                   &at, error) ||
      !check_array(s, "changes", s->n_changes, OCT_STEP_CHANGES_MAX, s->changes,
                   sizeof(oct_page_change), &at, error) ||
      !check_array(s, "copies", s->n_copies, OCT_STEP_COPIES_MAX, s->copies, sizeof(oct_copy), &at,
                   error) ||
      !check_array(s, "experts", s->n_experts, OCT_STEP_COPIES_MAX, s->experts,
                   sizeof(oct_expert_change), &at, error) ||
      !check_array(s, "domains", s->n_domains, OCT_STEP_DOMAINS_MAX, s->domains,
                   sizeof(oct_domain_part), &at, error))
    return FALSE;
  if (at != s->bytes)
    return refuse(error, "step.bytes is %u, the arrays end at %" G_GUINT64_FORMAT, s->bytes, at);
  return TRUE;
}

/* ---------------------------------------------------------------- slices */

/* A set of slots, for "at most once": open addressing over twice the most slices that a step has.
 */
#define SLOT_SET_SIZE (2 * OCT_STEP_SLICES_MAX)

/* Its memory is cleared as far as it is used, not whole on every call, which is what hardening
 * flags do to locals. */
#if defined(__has_attribute)
#if __has_attribute(uninitialized)
#define SLOT_SET_AS_IT_IS __attribute__((uninitialized))
#endif
#endif
#ifndef SLOT_SET_AS_IT_IS
#define SLOT_SET_AS_IT_IS
#endif

typedef struct slot_set {
  guint32 mask;
  guint32 used[SLOT_SET_SIZE]; /* slot + 1, 0 = free */
} slot_set;

static void
slot_set_clear(slot_set *set, guint32 n) {
  guint32 size = 16;
  while (size < 2 * n)
    size *= 2;
  oct_assert(size <= SLOT_SET_SIZE);
  set->mask = size - 1;
  memset(set->used, 0, size * sizeof set->used[0]);
}

static gboolean
slot_set_add(slot_set *set, guint32 slot) {
  guint32 i = (slot * 0x9e3779b1u) & set->mask;
  while (set->used[i] != 0 && set->used[i] != slot + 1)
    i = (i + 1) & set->mask;
  if (set->used[i] != 0)
    return FALSE;
  set->used[i] = slot + 1;
  return TRUE;
}

/* n ids at tokens[first], each in the vocabulary. */
static gboolean
check_ids(const checker *c, const char *array, guint32 i, const char *field, guint32 first,
          guint32 n) {
  if (n == 0) {
    if (first != OCT_NO_INDEX)
      return refuse(c->error, "%s[%u].%s is %u, must be OCT_NO_INDEX: it takes no ids", array, i,
                    field, first);
    return TRUE;
  }
  if (first > c->step->n_tokens || n > c->step->n_tokens - first)
    return refuse(c->error, "%s[%u].%s is %u for %u ids, step.n_tokens is %u", array, i, field,
                  first, n, c->step->n_tokens);
  const guint32 *ids = oct_step_tokens(c->step) + first;
  for (guint32 k = 0; k < n; k++)
    if (ids[k] >= c->config->spec->vocab)
      return refuse(c->error, "%s[%u].%s: tokens[%u] is %u, vocabulary %u", array, i, field,
                    first + k, ids[k], c->config->spec->vocab);
  return TRUE;
}

static gboolean
check_slice_position(const checker *c, guint32 i, const oct_slice *s) {
  guint32 longest = c->config->spec->max_position;
  if (s->position == OCT_POSITION_AFTER) {
    if (s->source == OCT_SOURCE_IDS)
      return refuse(c->error, "slices[%u].position is AFTER, but its source is IDS", i);
  } else if ((guint64)s->position + s->n_tokens > longest) {
    return refuse(c->error, "slices[%u].position is %u with %u tokens, limit %u", i, s->position,
                  s->n_tokens, longest);
  }
  guint32 state = c->has_state ? s->position : OCT_NO_INDEX;
  if (s->state_position != state)
    return refuse(c->error, "slices[%u].state_position is %u, must be %u", i, s->state_position,
                  state);
  if (s->tag != 0 && (!c->config->check_tags || s->position == OCT_POSITION_AFTER))
    return refuse(c->error, "slices[%u].tag is %" G_GUINT64_FORMAT ", must be 0", i, s->tag);
  return TRUE;
}

/* What a prompt is scored and pooled with. */
static gboolean
check_slice_prompt(const checker *c, guint32 i, const oct_slice *s) {
  if (s->pooling > OCT_POOLING_MEAN)
    return refuse(c->error, "slices[%u].pooling is %u, limit %u", i, s->pooling, OCT_POOLING_MEAN);
  if (s->n_prompt_logprobs >= c->config->spec->vocab)
    return refuse(c->error, "slices[%u].n_prompt_logprobs is %u, vocabulary %u", i,
                  s->n_prompt_logprobs, c->config->spec->vocab);
  if (s->n_prompt_logprobs != 0 &&
      (s->source != OCT_SOURCE_IDS || s->sample == OCT_SAMPLE_ALL || s->pooling != 0))
    return refuse(c->error,
                  "slices[%u].n_prompt_logprobs is %u: source must be IDS, sample not ALL, pooling "
                  "NONE",
                  i, s->n_prompt_logprobs);
  if (s->pooling != OCT_POOLING_NONE && s->sample != OCT_SAMPLE_NONE)
    return refuse(c->error, "slices[%u].pooling is %u, but it samples", i, s->pooling);
  gboolean pooled = (s->flags & OCT_SLICE_POOLED) != 0;
  if (pooled ? s->pooling == OCT_POOLING_NONE : s->pooling == OCT_POOLING_LAST)
    return refuse(c->error, "slices[%u].flags is %u with pooling %u", i, s->flags, s->pooling);
  return TRUE;
}

static gboolean
check_slice_kind(const checker *c, guint32 i, const oct_slice *s) {
  const guint8 known =
      OCT_SLICE_NEEDS_MASK | OCT_SLICE_PREFILL | OCT_SLICE_VERIFY | OCT_SLICE_POOLED;
  if (s->source > OCT_SOURCE_ABSENT)
    return refuse(c->error, "slices[%u].source is %u, limit %u", i, s->source, OCT_SOURCE_ABSENT);
  if (s->sample > OCT_SAMPLE_ALL)
    return refuse(c->error, "slices[%u].sample is %u, limit %u", i, s->sample, OCT_SAMPLE_ALL);
  if ((s->flags & ~known) != 0)
    return refuse(c->error, "slices[%u].flags is %u, known %u", i, s->flags, known);
  if (s->sample == OCT_SAMPLE_NONE && (s->flags & OCT_SLICE_NEEDS_MASK) != 0)
    return refuse(c->error, "slices[%u].flags has NEEDS_MASK, but it samples nothing", i);
  if (s->sample == OCT_SAMPLE_NONE && s->n_logprobs != 0)
    return refuse(c->error, "slices[%u].n_logprobs is %u, but it samples nothing", i,
                  s->n_logprobs);
  if (s->n_logprobs >= c->config->spec->vocab)
    return refuse(c->error, "slices[%u].n_logprobs is %u, vocabulary %u", i, s->n_logprobs,
                  c->config->spec->vocab);
  if ((s->flags & OCT_SLICE_VERIFY) != 0) {
    if ((s->flags & OCT_SLICE_PREFILL) != 0 || s->sample != OCT_SAMPLE_ALL)
      return refuse(c->error, "slices[%u].flags has VERIFY: sample must be ALL, PREFILL off", i);
    if (s->n_tokens > OCT_VERIFY_TOKENS_MAX)
      return refuse(c->error, "slices[%u].n_tokens is %u in a VERIFY slice, limit %u", i,
                    s->n_tokens, OCT_VERIFY_TOKENS_MAX);
  } else if (s->source == OCT_SOURCE_DEVICE && s->n_tokens != 1) {
    return refuse(c->error, "slices[%u].n_tokens is %u from the device without VERIFY, must be 1",
                  i, s->n_tokens);
  }
  return check_slice_prompt(c, i, s);
}

static gboolean
check_slice(const checker *c, guint32 i, const oct_slice *s, slot_set *slots) {
  if (s->slot >= c->config->max_slots)
    return refuse(c->error, "slices[%u].slot is %u, max_slots %u", i, s->slot,
                  c->config->max_slots);
  if (!slot_set_add(slots, s->slot))
    return refuse(c->error, "slices[%u].slot is %u, which an earlier slice has", i, s->slot);
  if (s->n_tokens == 0 || s->n_tokens > c->config->max_batched_tokens)
    return refuse(c->error, "slices[%u].n_tokens is %u, must be 1 to %u", i, s->n_tokens,
                  c->config->max_batched_tokens);
  if (!check_slice_kind(c, i, s) || !check_slice_position(c, i, s))
    return FALSE;
  return check_ids(c, "slices", i, "tokens", s->tokens, oct_slice_ids(s));
}

static gboolean
check_slices(const checker *c) {
  const oct_slice *slices = oct_step_slices(c->step);
  const oct_domain_part *parts = oct_step_domains(c->step);
  slot_set slots SLOT_SET_AS_IT_IS;
  slot_set_clear(&slots, c->step->n_slices);
  guint32 next = 0;
  guint64 logprobs = 0, floats = 0;
  for (guint32 d = 0; d < c->step->n_domains; d++) {
    const oct_domain_part *p = &parts[d];
    if (p->reserved != 0)
      return refuse(c->error, "domains[%u].reserved is %u, must be 0", d, p->reserved);
    if (p->first_slice != next)
      return refuse(c->error, "domains[%u].first_slice is %u, must be %u", d, p->first_slice, next);
    if (p->n_slices > c->step->n_slices - next)
      return refuse(c->error, "domains[%u].n_slices is %u, left %u", d, p->n_slices,
                    c->step->n_slices - next);
    guint64 n_tokens = 0;
    for (guint32 i = next; i < next + p->n_slices; i++) {
      if (slices[i].domain != d)
        return refuse(c->error, "slices[%u].domain is %u, must be %u", i, slices[i].domain, d);
      if (!check_slice(c, i, &slices[i], &slots))
        return FALSE;
      n_tokens += slices[i].n_tokens;
      guint32 n_sampled = slices[i].sample == OCT_SAMPLE_ALL    ? slices[i].n_tokens
                          : slices[i].sample == OCT_SAMPLE_LAST ? 1
                                                                : 0;
      logprobs += oct_slice_logprobs(&slices[i], n_sampled);
      floats += (slices[i].flags & OCT_SLICE_POOLED) != 0 ? c->config->spec->hidden : 0;
    }
    if (p->n_tokens != n_tokens || n_tokens > c->config->max_batched_tokens)
      return refuse(c->error,
                    "domains[%u].n_tokens is %u, its slices have %" G_GUINT64_FORMAT ", limit %u",
                    d, p->n_tokens, n_tokens, c->config->max_batched_tokens);
    next += p->n_slices;
  }
  if (next != c->step->n_slices)
    return refuse(c->error, "step.n_slices is %u, the domains have %u", c->step->n_slices, next);
  if (logprobs > OCT_STEP_LOGPROBS_MAX || floats > OCT_STEP_FLOATS_MAX)
    return refuse(c->error,
                  "slices want %" G_GUINT64_FORMAT " logprobs, limit %u, and %" G_GUINT64_FORMAT
                  " floats, limit %u",
                  logprobs, OCT_STEP_LOGPROBS_MAX, floats, OCT_STEP_FLOATS_MAX);
  return TRUE;
}

/* ---------------------------------------------------------------- opens, changes, copies, experts
 */

static gboolean
check_float(const checker *c, guint32 i, const char *field, float value, float low, float high) {
  if (isfinite(value) && value >= low && value <= high)
    return TRUE;
  return refuse(c->error, "opens[%u].%s is %g, must be %g to %g", i, field, (double)value,
                (double)low, (double)high);
}

static gboolean
check_biases(const checker *c, guint32 i, const oct_slot_open *o) {
  if (o->n_biases == 0) {
    if (o->biases != OCT_NO_INDEX)
      return refuse(c->error, "opens[%u].biases is %u, must be OCT_NO_INDEX: it has none", i,
                    o->biases);
    return TRUE;
  }
  if (o->n_biases > OCT_BIASES_MAX)
    return refuse(c->error, "opens[%u].n_biases is %u, limit %u", i, o->n_biases, OCT_BIASES_MAX);
  if (o->biases > c->step->n_biases || o->n_biases > c->step->n_biases - o->biases)
    return refuse(c->error, "opens[%u].biases is %u for %u of them, step.n_biases is %u", i,
                  o->biases, o->n_biases, c->step->n_biases);
  const oct_token_bias *biases = oct_step_biases(c->step) + o->biases;
  for (guint32 k = 0; k < o->n_biases; k++)
    if (biases[k].token >= c->config->spec->vocab || !isfinite(biases[k].bias) ||
        fabsf(biases[k].bias) > OCT_BIAS_MAX)
      return refuse(c->error, "opens[%u].biases: biases[%u] is %g for token %u, vocabulary %u", i,
                    o->biases + k, (double)biases[k].bias, biases[k].token, c->config->spec->vocab);
  return TRUE;
}

static gboolean
check_open(const checker *c, guint32 i, const oct_slot_open *o, slot_set *slots) {
  if (o->slot >= c->config->max_slots)
    return refuse(c->error, "opens[%u].slot is %u, max_slots %u", i, o->slot, c->config->max_slots);
  if (!slot_set_add(slots, o->slot))
    return refuse(c->error, "opens[%u].slot is %u, which an earlier open has", i, o->slot);
  if (o->domain >= c->n_domains)
    return refuse(c->error, "opens[%u].domain is %u, domains %u", i, o->domain, c->n_domains);
  if (o->reserved != 0 || o->reserved2 != 0)
    return refuse(c->error, "opens[%u].reserved is %u, %u, must be 0", i, o->reserved,
                  o->reserved2);
  if (o->prompt_tokens == 0 || o->prompt_tokens > c->config->spec->max_position)
    return refuse(c->error, "opens[%u].prompt_tokens is %u, must be 1 to %u", i, o->prompt_tokens,
                  c->config->spec->max_position);
  if (o->oracle_tokens != 0 && o->eos_token >= c->config->spec->vocab)
    return refuse(c->error, "opens[%u].eos_token is %u, vocabulary %u", i, o->eos_token,
                  c->config->spec->vocab);
  if (o->top_k == 0 || o->top_k < -1)
    return refuse(c->error, "opens[%u].top_k is %d, must be -1 or at least 1", i, o->top_k);
  if (!check_float(c, i, "temperature", o->temperature, 0, OCT_TEMPERATURE_MAX) ||
      !check_float(c, i, "top_p", o->top_p, OCT_TOP_P_MIN, 1) ||
      !check_float(c, i, "min_p", o->min_p, 0, 1) ||
      !check_float(c, i, "repetition_penalty", o->repetition_penalty, OCT_REPETITION_PENALTY_MIN,
                   OCT_PENALTY_MAX) ||
      !check_float(c, i, "presence_penalty", o->presence_penalty, -OCT_PENALTY_MAX,
                   OCT_PENALTY_MAX) ||
      !check_float(c, i, "frequency_penalty", o->frequency_penalty, -OCT_PENALTY_MAX,
                   OCT_PENALTY_MAX))
    return FALSE;
  if (o->min_tokens > c->config->spec->max_position)
    return refuse(c->error, "opens[%u].min_tokens is %u, limit %u", i, o->min_tokens,
                  c->config->spec->max_position);
  return check_ids(c, "opens", i, "history", o->history, o->n_history) && check_biases(c, i, o) &&
         check_ids(c, "opens", i, "stops", o->stops, o->n_stops);
}

static gboolean
check_opens(const checker *c) {
  slot_set slots SLOT_SET_AS_IT_IS;
  slot_set_clear(&slots, c->step->n_opens);
  for (guint32 i = 0; i < c->step->n_opens; i++)
    if (!check_open(c, i, &oct_step_opens(c->step)[i], &slots))
      return FALSE;
  return TRUE;
}

static gboolean
check_change(const checker *c, guint32 i, const oct_page_change *p) {
  if (p->slot >= c->config->max_slots)
    return refuse(c->error, "changes[%u].slot is %u, max_slots %u", i, p->slot,
                  c->config->max_slots);
  if (p->group >= c->n_groups)
    return refuse(c->error, "changes[%u].group is %u, groups %u", i, p->group, c->n_groups);
  if (p->op > OCT_PAGE_FIRST_LIVE)
    return refuse(c->error, "changes[%u].op is %u, limit %u", i, p->op, OCT_PAGE_FIRST_LIVE);
  gboolean state = is_state(c, p->group);
  if (state && p->op == OCT_PAGE_FIRST_LIVE)
    return refuse(c->error, "changes[%u].op is FIRST_LIVE for state group %u", i, p->group);
  guint32 pages = c->config->spec->max_position / page_tokens(c) + 1;
  guint32 limit = state ? 1 : p->op == OCT_PAGE_FIRST_LIVE ? pages + 1 : pages;
  if (p->index >= limit)
    return refuse(c->error, "changes[%u].index is %u, limit %u", i, p->index, limit - 1);
  guint32 pool = p->op == OCT_PAGE_SET ? c->config->memory.groups[p->group].n_device : 1;
  if (p->page >= pool)
    return refuse(c->error, "changes[%u].page is %u, pool of group %u has %u", i, p->page, p->group,
                  pool);
  return TRUE;
}

static gboolean
check_expert_copy(const checker *c, guint32 i, const oct_copy *p) {
  if (p->from_tier != OCT_TIER_HOST || p->to_tier != OCT_TIER_DEVICE)
    return refuse(c->error, "copies[%u].from_tier, to_tier are %u, %u: experts go HOST to DEVICE",
                  i, p->from_tier, p->to_tier);
  if (!is_moe_layer(c, p->group))
    return refuse(c->error, "copies[%u].group is %u, not a layer with experts", i, p->group);
  if (p->from >= layer_experts(c, p->group))
    return refuse(c->error, "copies[%u].from is %u, experts %u", i, p->from,
                  layer_experts(c, p->group));
  if (p->to >= c->config->memory.n_expert_slots)
    return refuse(c->error, "copies[%u].to is %u, expert slots %u", i, p->to,
                  c->config->memory.n_expert_slots);
  return TRUE;
}

static gboolean
check_copy(const checker *c, guint32 i, const oct_copy *p) {
  if (p->kind > OCT_COPY_EXPERT)
    return refuse(c->error, "copies[%u].kind is %u, limit %u", i, p->kind, OCT_COPY_EXPERT);
  gboolean beside = c->step == NULL;
  if (p->order > OCT_COPY_BESIDE || (p->order == OCT_COPY_BESIDE) != beside)
    return refuse(c->error, "copies[%u].order is %u, must be %s", i, p->order,
                  beside ? "BESIDE" : "BEFORE or AFTER in a step");
  if (p->from_tier > OCT_TIER_HOST || p->to_tier > OCT_TIER_HOST)
    return refuse(c->error, "copies[%u].from_tier, to_tier are %u, %u, limit %u", i, p->from_tier,
                  p->to_tier, OCT_TIER_HOST);
  if (p->domain >= c->n_domains)
    return refuse(c->error, "copies[%u].domain is %u, domains %u", i, p->domain, c->n_domains);
  if (p->kind == OCT_COPY_EXPERT)
    return check_expert_copy(c, i, p);
  if (p->group >= c->n_groups)
    return refuse(c->error, "copies[%u].group is %u, groups %u", i, p->group, c->n_groups);
  if (is_state(c, p->group) != (p->kind == OCT_COPY_STATE))
    return refuse(c->error, "copies[%u].kind is %u, group %u holds %s", i, p->kind, p->group,
                  is_state(c, p->group) ? "state" : "pages");
  if (p->from_tier == OCT_TIER_HOST && p->to_tier == OCT_TIER_HOST)
    return refuse(c->error, "copies[%u].from_tier, to_tier are both HOST", i);
  const oct_pool_plan *pool = &c->config->memory.groups[p->group];
  guint32 from_limit = p->from_tier == OCT_TIER_HOST ? pool->n_host : pool->n_device;
  guint32 to_limit = p->to_tier == OCT_TIER_HOST ? pool->n_host : pool->n_device;
  if (p->from >= from_limit)
    return refuse(c->error, "copies[%u].from is %u, pool has %u", i, p->from, from_limit);
  if (p->to >= to_limit)
    return refuse(c->error, "copies[%u].to is %u, pool has %u", i, p->to, to_limit);
  if (p->from_tier == p->to_tier && p->from == p->to)
    return refuse(c->error, "copies[%u].to is %u, which is its source", i, p->to);
  return TRUE;
}

static gboolean
check_expert(const checker *c, guint32 i, const oct_expert_change *e) {
  if (e->reserved != 0)
    return refuse(c->error, "experts[%u].reserved is %u, must be 0", i, e->reserved);
  if (!is_moe_layer(c, e->layer))
    return refuse(c->error, "experts[%u].layer is %u, not a layer with experts", i, e->layer);
  if (e->expert >= layer_experts(c, e->layer))
    return refuse(c->error, "experts[%u].expert is %u, experts %u", i, e->expert,
                  layer_experts(c, e->layer));
  if (e->slot != OCT_NO_INDEX && e->slot >= c->config->memory.n_expert_slots)
    return refuse(c->error, "experts[%u].slot is %u, expert slots %u", i, e->slot,
                  c->config->memory.n_expert_slots);
  return TRUE;
}

gboolean
oct_step_check(const oct_step *step, gsize size, const oct_instance_config *config,
               GError **error) {
  checker c;
  start(&c, config, error);
  c.step = step;
  if (!oct_step_layout_check(step, size, error))
    return FALSE;
  if (step->n_domains != c.n_domains)
    return refuse(error, "step.n_domains is %u, must be %u", step->n_domains, c.n_domains);
  if (!check_slices(&c) || !check_opens(&c))
    return FALSE;
  for (guint32 i = 0; i < step->n_changes; i++)
    if (!check_change(&c, i, &oct_step_changes(step)[i]))
      return FALSE;
  for (guint32 i = 0; i < step->n_copies; i++)
    if (!check_copy(&c, i, &oct_step_copies(step)[i]))
      return FALSE;
  for (guint32 i = 0; i < step->n_experts; i++)
    if (!check_expert(&c, i, &oct_step_experts(step)[i]))
      return FALSE;
  return TRUE;
}

gboolean
oct_copies_check(const oct_copy *copies, guint32 n_copies, const oct_instance_config *config,
                 GError **error) {
  checker c;
  start(&c, config, error);
  if (n_copies == 0 || n_copies > OCT_STEP_COPIES_MAX)
    return refuse(error, "n_copies is %u, must be 1 to %u", n_copies, OCT_STEP_COPIES_MAX);
  for (guint32 i = 0; i < n_copies; i++)
    if (!check_copy(&c, i, &copies[i]))
      return FALSE;
  return TRUE;
}

static gboolean
same_groups(const oct_layer_group *a, const oct_layer_group *b, guint32 n) {
  for (guint32 g = 0; g < n; g++)
    if (a[g].kind != b[g].kind || a[g].n_layers != b[g].n_layers || a[g].window != b[g].window ||
        a[g].token_bytes != b[g].token_bytes || a[g].state_bytes != b[g].state_bytes)
      return FALSE;
  return TRUE;
}

gboolean
oct_pull_check(const oct_copy *copies, guint32 n_copies, const oct_instance_config *config,
               const oct_instance_config *peer, guint32 peer_domain, GError **error) {
  checker c, theirs;
  start(&c, config, error);
  start(&theirs, peer, error);
  if (n_copies == 0 || n_copies > OCT_STEP_COPIES_MAX)
    return refuse(error, "n_copies is %u, must be 1 to %u", n_copies, OCT_STEP_COPIES_MAX);
  if (peer_domain >= peer->parallel.data)
    return refuse(error, "peer_domain is %u, the peer has %u", peer_domain, peer->parallel.data);
  if (c.n_groups != theirs.n_groups || !same_groups(c.groups, theirs.groups, c.n_groups) ||
      config->kv_dtype != peer->kv_dtype || page_tokens(&c) != page_tokens(&theirs))
    return refuse(error, "the peer's pages are not this instance's");
  for (guint32 i = 0; i < n_copies; i++) {
    const oct_copy *p = &copies[i];
    if (p->kind > OCT_COPY_STATE || p->order != OCT_COPY_BESIDE ||
        p->from_tier != OCT_TIER_DEVICE || p->to_tier != OCT_TIER_DEVICE)
      return refuse(error, "copies[%u] is no page or state from device to device, beside", i);
    if (p->group >= c.n_groups || p->domain >= c.n_domains)
      return refuse(error, "copies[%u] is to group %u of domain %u", i, p->group, p->domain);
    if (is_state(&c, p->group) != (p->kind == OCT_COPY_STATE))
      return refuse(error, "copies[%u].kind is %u, group %u holds %s", i, p->kind, p->group,
                    is_state(&c, p->group) ? "state" : "pages");
    if (p->from >= peer->memory.groups[p->group].n_device ||
        p->to >= config->memory.groups[p->group].n_device)
      return refuse(error, "copies[%u] is from %u to %u, beyond the pools", i, p->from, p->to);
  }
  return TRUE;
}

/* ---------------------------------------------------------------- config */

static gboolean
config_range(GError **error, const char *field, guint32 value, guint32 low, guint32 high) {
  if (value >= low && value <= high)
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
              "config.%s is %u, must be %u to %u", field, value, low, high);
  return FALSE;
}

gboolean
oct_instance_config_check(const oct_instance_config *config, GError **error) {
  oct_assert(config->spec != NULL && config->devices != NULL);
  const oct_parallel *p = &config->parallel;
  /* Bounds each factor first, so that no product below overflows. */
  if (!config_range(error, "parallel.tensor", p->tensor, 1, 1024) ||
      !config_range(error, "parallel.pipeline", p->pipeline, 1, G_N_ELEMENTS(p->stage_layers)) ||
      !config_range(error, "parallel.data", p->data, 1, OCT_STEP_DOMAINS_MAX) ||
      !config_range(error, "parallel.decode_context", p->decode_context, 1, p->tensor) ||
      !config_range(error, "block_size", config->block_size, 1, 1u << 16) ||
      !config_range(error, "depth", config->depth, 1, 64) ||
      !config_range(error, "max_slots", config->max_slots, 1, 1u << 20) ||
      !config_range(error, "max_batched_tokens", config->max_batched_tokens, 1,
                    OCT_STEP_TOKENS_MAX))
    return FALSE;
  if (config->kv_dtype != OCT_DTYPE_BF16 && config->kv_dtype != OCT_DTYPE_FP8) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "config.kv_dtype is %d, must be bfloat16 or fp8", config->kv_dtype);
    return FALSE;
  }
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint32 n_groups = oct_model_groups(config->spec, config->kv_dtype, groups);
  return config_range(error, "memory.n_groups", config->memory.n_groups, n_groups, n_groups);
}
