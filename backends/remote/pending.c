#include "backends/remote/pending.h"

#include <string.h>

#include "engine/base/assert.h"

#define DEPTH_MAX 64

typedef struct pending_slice {
  oct_slice asked;
  gboolean masked; /* its mask was handed on */
  gboolean wanted; /* and was asked for */
} pending_slice;

typedef struct pending_step {
  guint64 number;
  guint32 n_slices, room;
  pending_slice *slices;
} pending_step;

struct oct_pending {
  const oct_instance_config *config;
  gboolean open;
  oct_capabilities capabilities;
  guint64 last_number;
  pending_step steps[DEPTH_MAX]; /* ring, oldest at first */
  guint32 first, n;
  GArray *tickets; /* guint64 */
};

static gboolean refuse(GError **error, int code, const char *format, ...) G_GNUC_PRINTF(3, 4);

static gboolean
refuse(GError **error, int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (error != NULL)
    *error = g_error_new_valist(OCT_BACKEND_ERROR, code, format, args);
  va_end(args);
  return FALSE;
}

oct_pending *
oct_pending_new(const oct_instance_config *config) {
  oct_pending *p = g_new0(oct_pending, 1);
  p->config = config;
  p->tickets = g_array_new(FALSE, FALSE, sizeof(guint64));
  return p;
}

void
oct_pending_free(oct_pending *p) {
  if (p == NULL)
    return;
  for (guint32 i = 0; i < DEPTH_MAX; i++)
    g_free(p->steps[i].slices);
  g_array_unref(p->tickets);
  g_free(p);
}

static pending_step *
step_at(const oct_pending *p, guint32 i) {
  return (pending_step *)&p->steps[(p->first + i) % DEPTH_MAX];
}

static pending_step *
find_step(const oct_pending *p, guint64 number) {
  for (guint32 i = 0; i < p->n; i++)
    if (step_at(p, i)->number == number)
      return step_at(p, i);
  return NULL;
}

/* ---------------------------------------------------------------- what is asked */

static gboolean
check_open(const oct_pending *p, GError **error) {
  if (p->open)
    return TRUE;
  return refuse(error, OCT_BACKEND_ERROR_DEVICE, "the instance is not open yet");
}

gboolean
oct_pending_is_full(const oct_pending *p) {
  return p->open && p->n >= p->capabilities.depth;
}

gboolean
oct_pending_check_step(const oct_pending *p, const oct_step *step, GError **error) {
  if (!check_open(p, error) || !oct_step_check(step, step->bytes, p->config, error))
    return FALSE;
  if (step->number != p->last_number + 1)
    return refuse(error, OCT_BACKEND_ERROR_RECORD,
                  "step.number is %" G_GUINT64_FORMAT ", must be %" G_GUINT64_FORMAT, step->number,
                  p->last_number + 1);
  const oct_capabilities *c = &p->capabilities;
  for (guint32 i = 0; i < step->n_slices; i++) {
    const oct_slice *s = &oct_step_slices(step)[i];
    const char *what = (s->flags & OCT_SLICE_NEEDS_MASK) != 0 && !c->masks     ? "masks"
                       : (s->flags & OCT_SLICE_VERIFY) != 0 && !c->speculation ? "speculation"
                       : s->pooling != 0 && !c->pooling                        ? "pooling"
                       : s->adapter != 0 && !c->adapters                       ? "adapters"
                       : s->source == OCT_SOURCE_ABSENT && c->token_ids        ? "absent content"
                                                                               : NULL;
    if (what != NULL)
      return refuse(error, OCT_BACKEND_ERROR_UNSUPPORTED,
                    "slices[%u] needs %s, which this instance lacks", i, what);
  }
  return TRUE;
}

static gboolean
check_ticket(const oct_pending *p, guint64 ticket, GError **error) {
  for (guint32 i = 0; i < p->tickets->len; i++)
    if (g_array_index(p->tickets, guint64, i) == ticket)
      return refuse(error, OCT_BACKEND_ERROR_RECORD,
                    "copy: ticket %" G_GUINT64_FORMAT " is in flight", ticket);
  return TRUE;
}

gboolean
oct_pending_check_pull(const oct_pending *p, const oct_pending *peer, guint32 peer_domain,
                       guint64 ticket, const oct_copy *copies, guint32 n, GError **error) {
  return check_open(p, error) && check_open(peer, error) &&
         oct_pull_check(copies, n, p->config, peer->config, peer_domain, error) &&
         check_ticket(p, ticket, error);
}

gboolean
oct_pending_check_copy(const oct_pending *p, guint64 ticket, const oct_copy *copies, guint32 n,
                       GError **error) {
  if (!check_open(p, error) || !oct_copies_check(copies, n, p->config, error) ||
      !check_ticket(p, ticket, error))
    return FALSE;
  for (guint32 i = 0; i < n; i++)
    if (!p->capabilities.host_tier && copies[i].kind != OCT_COPY_EXPERT &&
        (copies[i].from_tier == OCT_TIER_HOST || copies[i].to_tier == OCT_TIER_HOST))
      return refuse(error, OCT_BACKEND_ERROR_UNSUPPORTED,
                    "copies[%u] needs a host tier, which this instance lacks", i);
  return TRUE;
}

gboolean
oct_pending_check_mask(const oct_pending *p, guint64 number, guint32 slice, const guint64 *bits,
                       guint32 n_words, gboolean *awaited, GError **error) {
  *awaited = FALSE;
  if (!check_open(p, error))
    return FALSE;
  if (number > p->last_number)
    return refuse(error, OCT_BACKEND_ERROR_RECORD,
                  "mask of step %" G_GUINT64_FORMAT ", submitted so far %" G_GUINT64_FORMAT, number,
                  p->last_number);
  const pending_step *step = find_step(p, number);
  if (step == NULL)
    return TRUE;
  if (slice >= step->n_slices || (step->slices[slice].asked.flags & OCT_SLICE_NEEDS_MASK) == 0)
    return refuse(error, OCT_BACKEND_ERROR_RECORD,
                  "mask of step %" G_GUINT64_FORMAT ": slice is %u, which needs no mask", number,
                  slice);
  guint32 vocab = p->config->spec->vocab;
  if (n_words != (vocab + 63) / 64)
    return refuse(error, OCT_BACKEND_ERROR_RECORD, "mask: n_words is %u, must be %u", n_words,
                  (vocab + 63) / 64);
  guint64 any = 0;
  for (guint32 i = 0; i < n_words; i++) {
    gboolean last = i + 1 == n_words && vocab % 64 != 0;
    any |= last ? bits[i] & (((guint64)1 << (vocab % 64)) - 1) : bits[i];
  }
  if (any == 0)
    return refuse(error, OCT_BACKEND_ERROR_RECORD,
                  "mask of step %" G_GUINT64_FORMAT " slice %u allows no token", number, slice);
  *awaited = !step->slices[slice].masked;
  return TRUE;
}

void
oct_pending_add_step(oct_pending *p, const oct_step *step) {
  oct_assert(p->n < DEPTH_MAX);
  pending_step *to = step_at(p, p->n++);
  p->last_number = to->number = step->number;
  to->n_slices = step->n_slices;
  if (step->n_slices > to->room) {
    to->room = MAX(step->n_slices, 2 * to->room);
    to->slices = g_renew(pending_slice, to->slices, to->room);
  }
  for (guint32 i = 0; i < step->n_slices; i++)
    to->slices[i] = (pending_slice){.asked = oct_step_slices(step)[i]};
}

void
oct_pending_add_copy(oct_pending *p, guint64 ticket) {
  g_array_append_val(p->tickets, ticket);
}

void
oct_pending_add_mask(oct_pending *p, guint64 number, guint32 slice) {
  pending_step *step = find_step(p, number);
  oct_assert(step != NULL && slice < step->n_slices);
  step->slices[slice].masked = TRUE;
}

/* ---------------------------------------------------------------- what is told */

static gboolean
cannot_be(GError **error, const oct_event *event, const char *why) {
  return refuse(error, OCT_BACKEND_ERROR_RECORD,
                "event %d number %" G_GUINT64_FORMAT " slice %u: %s", (int)event->kind,
                event->number, event->slice, why);
}

static gboolean
check_slice(const oct_pending *p, const oct_step_result *r, guint32 i, const pending_slice *s,
            const char **why) {
  const oct_slice_result *got = &oct_result_slices(r)[i];
  const oct_slice *asked = &s->asked;
  gboolean failed = (got->flags & OCT_RESULT_FAILED) != 0;
  guint32 low = 0, high = 0;
  if (asked->sample == OCT_SAMPLE_LAST)
    low = high = 1;
  else if (asked->sample == OCT_SAMPLE_ALL) {
    high = asked->n_tokens;
    low = (asked->flags & OCT_SLICE_VERIFY) != 0 ? 1 : asked->n_tokens;
  }
  if (failed ? got->n_accepted != 0 : got->n_accepted < low || got->n_accepted > high) {
    *why = "accepts more or less than it can";
    return FALSE;
  }
  for (guint32 k = 0; k < got->n_accepted; k++)
    if (oct_result_tokens(r)[got->tokens + k] >= p->config->spec->vocab) {
      *why = "has a token outside the vocabulary";
      return FALSE;
    }
  guint64 wanted = failed ? 0 : oct_slice_logprobs(asked, got->n_accepted);
  if ((got->logprobs == OCT_NO_INDEX) != (wanted == 0) ||
      (wanted > 0 && got->logprobs + wanted > r->n_logprobs)) {
    *why = "has other logprobs than were asked for";
    return FALSE;
  }
  for (guint64 k = 0; k < wanted; k++)
    if (oct_result_logprobs(r)[got->logprobs + k].token >= p->config->spec->vocab) {
      *why = "has the logprob of a token outside the vocabulary";
      return FALSE;
    }
  guint64 floats = failed || !(asked->flags & OCT_SLICE_POOLED) ? 0 : p->config->spec->hidden;
  if ((got->floats == OCT_NO_INDEX) != (floats == 0) ||
      (floats > 0 && got->floats + floats > r->n_floats)) {
    *why = "has another pooled vector than was asked for";
    return FALSE;
  }
  return TRUE;
}

static gboolean
take_step_done(oct_pending *p, const oct_event *event, GError **error) {
  const pending_step *step = p->n > 0 ? step_at(p, 0) : NULL;
  if (step == NULL || step->number != event->number)
    return cannot_be(error, event, "is not the oldest step in flight");
  const oct_step_result *r = event->result;
  if (r->n_slices != step->n_slices)
    return cannot_be(error, event, "has another number of slices");
  const char *why = NULL;
  for (guint32 i = 0; i < r->n_slices; i++)
    if (!check_slice(p, r, i, &step->slices[i], &why))
      return cannot_be(error, event, why);
  const oct_model_spec *spec = p->config->spec;
  for (guint32 i = 0; i < r->n_experts; i++) {
    const oct_expert_use *use = &oct_result_experts(r)[i];
    if (use->layer >= spec->n_layers ||
        use->expert >= spec->ffn[spec->layers[use->layer].ffn].n_experts)
      return cannot_be(error, event, "uses an expert that is not there");
  }
  p->first = (p->first + 1) % DEPTH_MAX;
  p->n--;
  return TRUE;
}

static gboolean
take_copy_done(oct_pending *p, const oct_event *event, GError **error) {
  for (guint32 i = 0; i < p->tickets->len; i++)
    if (g_array_index(p->tickets, guint64, i) == event->number) {
      g_array_remove_index_fast(p->tickets, i);
      return TRUE;
    }
  return cannot_be(error, event, "is of no copy in flight");
}

static gboolean
take_mask_wanted(oct_pending *p, const oct_event *event, GError **error) {
  pending_step *step = find_step(p, event->number);
  if (step == NULL || event->slice >= step->n_slices ||
      (step->slices[event->slice].asked.flags & OCT_SLICE_NEEDS_MASK) == 0 ||
      step->slices[event->slice].wanted)
    return cannot_be(error, event, "waits for no mask");
  step->slices[event->slice].wanted = TRUE;
  return TRUE;
}

static gboolean
take_opened(oct_pending *p, const oct_event *event, GError **error) {
  const oct_capabilities *c = event->capabilities;
  if (c->depth > p->config->depth || c->n_groups != p->config->memory.n_groups ||
      c->clock != OCT_CLOCK_REAL)
    return cannot_be(error, event, "has capabilities that were not asked for");
  p->open = TRUE;
  p->capabilities = *c;
  return TRUE;
}

static gboolean
take_fault(oct_pending *p, const oct_event *event, GError **error) {
  const oct_fault *f = event->fault;
  const pending_step *step = find_step(p, f->number);
  if (f->severity == OCT_SEVERITY_REQUEST && (step == NULL || f->slice >= step->n_slices))
    return cannot_be(error, event, "fails a slice that is not in flight");
  if (f->severity != OCT_SEVERITY_STEP)
    return TRUE;
  if (step == NULL || step != step_at(p, 0))
    return cannot_be(error, event, "fails a step that is not the oldest in flight");
  p->first = (p->first + 1) % DEPTH_MAX;
  p->n--;
  return TRUE;
}

gboolean
oct_pending_take_event(oct_pending *p, const oct_event *event, GError **error) {
  gboolean opening = event->kind == OCT_EVENT_OPEN_PROGRESS || event->kind == OCT_EVENT_OPENED ||
                     event->kind == OCT_EVENT_OPEN_FAILED;
  if (opening == p->open && event->kind != OCT_EVENT_FAULT)
    return cannot_be(error, event, p->open ? "opens it again" : "comes before it is open");
  switch (event->kind) {
  case OCT_EVENT_OPEN_PROGRESS:
  case OCT_EVENT_OPEN_FAILED:
    return TRUE;
  case OCT_EVENT_OPENED:
    return take_opened(p, event, error);
  case OCT_EVENT_STEP_DONE:
    return take_step_done(p, event, error);
  case OCT_EVENT_COPY_DONE:
    return take_copy_done(p, event, error);
  case OCT_EVENT_MASK_WANTED:
    return take_mask_wanted(p, event, error);
  case OCT_EVENT_FAULT:
    return take_fault(p, event, error);
  case OCT_EVENT_TIMER:
  case OCT_EVENT_WAKE:
    break;
  }
  return cannot_be(error, event, "is not an instance's");
}
