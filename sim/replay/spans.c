#include "sim/replay/spans.h"

#include <string.h>

#include "engine/base/assert.h"
#include "sim/replay/measured-json.h"

typedef struct span_request {
  guint32 replica, input_tokens, output_tokens;
  guint64 index;
  oct_time due_ns, admitted_ns, first_ns, last_ns; /* -1 = never */
} span_request;

typedef struct stretch {
  oct_time from_ns, until_ns; /* until: an upper bound while it is being seen */
  gboolean whole;
  guint n_steps, n_copies, n_requests;
  oct_tap_step steps[OCT_SPANS_STEPS_MAX]; /* of these two `instance` is the replica */
  oct_tap_copy copies[OCT_SPANS_COPIES_MAX];
  span_request requests[OCT_SPANS_REQUESTS_MAX];
} stretch;

/* Steps of a replica with stages overlap: lanes that are free again after a time. */
#define LANES_MAX 64

struct oct_spans {
  oct_spans_config config;
  stretch *shown, *seen; /* the last whole one, and the one that is looked at or comes next */
  guint64 n_events, n_dropped;
  oct_time lanes[OCT_SPANS_REPLICAS_MAX][LANES_MAX];
  oct_time copy_lanes[OCT_SPANS_REPLICAS_MAX][OCT_TAP_WAYS][LANES_MAX];
};

/* ---------------------------------------------------------------- the file */

/* Microseconds with three decimals: exact. */
#define US_FORMAT     "%" G_GINT64_FORMAT ".%03d"
#define US_VALUES(ns) ((gint64)(ns) / 1000), ((int)((gint64)(ns) % 1000))

enum { TID_STEPS = 1, TID_COPIES = 1000, PID_REQUESTS = 1, PID_GPU = 100, PID_REPLICA = 10000 };

/* Where the next event goes; NULL when there is no room for more. */
static FILE *
next_event(oct_spans *s) {
  if (s->n_events >= OCT_SPANS_EVENTS_MAX) {
    s->n_dropped++;
    return NULL;
  }
  fputs(s->n_events++ > 0 ? ",\n" : "\n", s->config.chrome);
  return s->config.chrome;
}

static void
write_name(oct_spans *s, const char *what, guint pid, guint tid, const char *name) {
  FILE *file = next_event(s);
  if (file != NULL)
    fprintf(file, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"%s\"}}",
            what, pid, tid, name);
}

static gboolean
by_gpu(const oct_spans *s) {
  return s->config.stages <= 1;
}

/* Processes on which the replica's steps are drawn. */
static guint
n_tracks(const oct_spans *s) {
  return by_gpu(s) ? s->config.ranks : 1;
}

static guint
track_pid(const oct_spans *s, guint32 replica, guint32 rank) {
  if (!by_gpu(s))
    return PID_REPLICA + replica;
  return PID_GPU + s->config.devices[(gsize)replica * s->config.ranks + rank];
}

static void
write_head(oct_spans *s) {
  fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", s->config.chrome);
  write_name(s, "process_name", PID_REQUESTS, 0, "requests");
  write_name(s, "thread_name", PID_REQUESTS, 1, "arrivals");
  for (guint32 r = 0; r < s->config.n_replicas; r++) {
    for (guint32 i = 0; i < n_tracks(s); i++) {
      guint pid = track_pid(s, r, i);
      g_autofree char *name = by_gpu(s)
                                  ? g_strdup_printf("GPU %u (replica %u)", pid - PID_GPU, r)
                                  : g_strdup_printf("replica %u, %u stages", r, s->config.stages);
      write_name(s, "process_name", pid, 0, name);
      write_name(s, "thread_name", pid, TID_STEPS, by_gpu(s) ? "steps" : "steps, lane 1");
    }
  }
}

/* The first lane that is free at `from`; those that overlap so many others share the last. */
static guint
take_lane(oct_time lanes[LANES_MAX], oct_time from, oct_time to) {
  guint lane = 0;
  while (lane + 1 < LANES_MAX && lanes[lane] > from)
    lane++;
  lanes[lane] = MAX(lanes[lane], to);
  return lane;
}

static const char *
step_kind(const oct_tap_step *step) {
  return step->n_prefills == 0 ? "decode" : step->n_prefills < step->n_slices ? "mixed" : "prefill";
}

static void
write_step(oct_spans *s, guint32 replica, const oct_tap_step *step) {
  static const char *const parts[OCT_PART_COUNT] = {"compute", "memory", "collective",
                                                    "fixed",   "copy",   "wait"};
  guint lane = by_gpu(s) ? 0 : take_lane(s->lanes[replica], step->start_ns, step->end_ns);
  for (guint32 i = 0; i < n_tracks(s); i++) {
    FILE *file = next_event(s);
    if (file == NULL)
      return;
    fprintf(file,
            "{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":" US_FORMAT
            ",\"dur\":" US_FORMAT ",\"args\":{\"step\":%" G_GUINT64_FORMAT
            ",\"sequences\":%u,\"prefills\":%u,\"tokens\":%u,\"prefill_tokens\":%u",
            step_kind(step), track_pid(s, replica, i), TID_STEPS + lane, US_VALUES(step->start_ns),
            US_VALUES(step->end_ns - step->start_ns), step->number, step->n_slices,
            step->n_prefills, step->n_tokens, step->n_prefill_tokens);
    for (int p = 0; i == 0 && p < OCT_PART_COUNT; p++)
      fprintf(file, ",\"%s_us\":" US_FORMAT, parts[p], US_VALUES(step->part_ns[p]));
    fputs("}}", file);
  }
}

static void
write_copy(oct_spans *s, guint32 replica, const oct_tap_copy *copy) {
  guint lane = take_lane(s->copy_lanes[replica][copy->way], copy->submit_ns, copy->end_ns);
  guint pid = track_pid(s, replica, 0), tid = TID_COPIES * (1 + copy->way) + lane;
  FILE *file = next_event(s);
  if (file == NULL)
    return;
  fprintf(
      file,
      "{\"ph\":\"X\",\"cat\":\"copy\",\"name\":\"copy %s\",\"pid\":%u,\"tid\":%u,\"ts\":" US_FORMAT
      ",\"dur\":" US_FORMAT ",\"args\":{\"ticket\":%" G_GUINT64_FORMAT
      ",\"items\":%u,\"failed\":%s}}",
      oct_tap_way_name(copy->way), pid, tid, US_VALUES(copy->submit_ns),
      US_VALUES(copy->end_ns - copy->submit_ns), copy->ticket, copy->n_items,
      copy->failed ? "true" : "false");
}

/* One stretch of a request's life, begun and ended. */
static void
write_phase(oct_spans *s, guint64 id, const char *name, oct_time from, oct_time to,
            const char *args) {
  for (int end = 0; end < 2; end++) {
    FILE *file = next_event(s);
    if (file == NULL)
      return;
    fprintf(file,
            "{\"ph\":\"%s\",\"cat\":\"request\",\"name\":\"%s\",\"id\":%" G_GUINT64_FORMAT
            ",\"pid\":%d,\"tid\":1,\"ts\":" US_FORMAT "%s}",
            end ? "e" : "b", name, id, PID_REQUESTS, US_VALUES(end ? to : from), end ? "" : args);
  }
}

/* From the arrival to the step whose end gave the first token. */
static void
write_arrow(oct_spans *s, const span_request *r, oct_time given_ns) {
  FILE *file = next_event(s);
  if (file == NULL)
    return;
  fprintf(file,
          "{\"ph\":\"X\",\"cat\":\"arrival\",\"name\":\"arrival\",\"pid\":%d,\"tid\":1,"
          "\"ts\":" US_FORMAT ",\"dur\":0.001,\"args\":{\"request\":%" G_GUINT64_FORMAT "}}",
          PID_REQUESTS, US_VALUES(r->due_ns), r->index);
  if (given_ns < s->config.chrome_from_ns ||
      given_ns > s->config.chrome_from_ns + s->config.chrome_for_ns)
    return;
  for (int end = 0; end < 2 && (file = next_event(s)) != NULL; end++)
    fprintf(
        file,
        "{\"ph\":\"%s\",\"cat\":\"first token\",\"name\":\"first token\",\"id\":%" G_GUINT64_FORMAT
        ",\"pid\":%u,\"tid\":%u,\"ts\":" US_FORMAT "%s}",
        end ? "f" : "s", r->index, end ? track_pid(s, r->replica, 0) : PID_REQUESTS, 1,
        US_VALUES(end ? given_ns - 1 : r->due_ns), end ? ",\"bp\":\"e\"" : "");
}

static void
write_request(oct_spans *s, const span_request *r, const oct_request_record *record) {
  g_autofree char *args = g_strdup_printf(
      ",\"args\":{\"replica\":%u,\"prompt_tokens\":%u,\"cached_tokens\":%u,\"output_tokens\":%u,"
      "\"preemptions\":%u,\"end\":\"%s\"}",
      r->replica, record->prompt_tokens, record->cached_tokens, record->output_tokens,
      record->preemptions, oct_end_reason_name(record->reason));
  oct_time end = MAX(record->ended_ns, r->due_ns);
  write_phase(s, r->index, "request", r->due_ns, end, args);
  write_phase(s, r->index, "queue", r->due_ns, r->admitted_ns >= 0 ? r->admitted_ns : end, "");
  if (r->admitted_ns >= 0)
    write_phase(s, r->index, "prefill", r->admitted_ns, r->first_ns >= 0 ? r->first_ns : end, "");
  if (r->first_ns >= 0) {
    write_phase(s, r->index, "decode", r->first_ns, end, "");
    write_arrow(s, r, r->first_ns);
  }
}

/* Whether the file wants what went on from `from` to `to`. */
static gboolean
in_file(const oct_spans *s, oct_time from, oct_time to) {
  return s->config.chrome != NULL && to > s->config.chrome_from_ns &&
         from < s->config.chrome_from_ns + s->config.chrome_for_ns;
}

/* ---------------------------------------------------------------- the picture */

static void
begin_stretch(stretch *x, oct_time from) {
  x->from_ns = from;
  x->until_ns = from + OCT_SPANS_STRETCH_NS;
  x->whole = FALSE;
  x->n_steps = x->n_copies = x->n_requests = 0;
}

/* It is whole: shown from now on unless it is empty, and the next one begins at twice its time, or
 * later when that has passed. */
static void
show_stretch(oct_spans *s, oct_time until) {
  stretch *old = s->shown;
  oct_time next = s->seen->from_ns * 2;
  while (next < until)
    next *= 2;
  if (s->seen->n_steps > 0) {
    s->seen->whole = TRUE;
    s->seen->until_ns = until;
    s->shown = s->seen;
    s->seen = old;
  }
  begin_stretch(s->seen, next);
}

static gboolean
within(const stretch *x, oct_time from, oct_time to) {
  return x != NULL && to > x->from_ns && from < x->until_ns;
}

static void
picture_step(oct_spans *s, guint32 replica, const oct_tap_step *step) {
  if (step->start_ns >= s->seen->until_ns)
    show_stretch(s, s->seen->until_ns);
  stretch *x = s->seen;
  if (!within(x, step->start_ns, step->end_ns))
    return;
  x->steps[x->n_steps] = *step;
  x->steps[x->n_steps++].instance = replica;
  if (x->n_steps == OCT_SPANS_STEPS_MAX)
    show_stretch(s, MAX(step->end_ns, x->from_ns + 1));
}

/* What is known of a request that arrived in the stretch, when it has ended. */
static void
picture_request(stretch *x, const span_request *r) {
  for (guint i = 0; x != NULL && i < x->n_requests; i++)
    if (x->requests[i].index == r->index && x->requests[i].due_ns == r->due_ns)
      x->requests[i] = *r;
}

/* ---------------------------------------------------------------- life cycle */

oct_spans *
oct_spans_new(const oct_spans_config *config) {
  oct_spans *s = g_new0(oct_spans, 1);
  oct_assert(config->n_replicas <= OCT_SPANS_REPLICAS_MAX);
  s->config = *config;
  if (config->picture) {
    s->shown = g_new0(stretch, 1);
    s->seen = g_new0(stretch, 1);
    begin_stretch(s->seen, OCT_SPANS_FIRST_NS);
  }
  if (config->chrome != NULL)
    write_head(s);
  return s;
}

void
oct_spans_free(oct_spans *s) {
  if (s == NULL)
    return;
  g_free(s->shown);
  g_free(s->seen);
  g_free(s);
}

/* ---------------------------------------------------------------- use */

gboolean
oct_spans_looks(const oct_spans *s, oct_time now) {
  if (in_file(s, now, now + 1))
    return TRUE;
  return s->seen != NULL && now >= s->seen->from_ns && now < s->seen->until_ns;
}

static oct_time
later(oct_time next, oct_time edge, oct_time now) {
  return edge > now ? MIN(next, edge) : next;
}

oct_time
oct_spans_next(const oct_spans *s, oct_time now) {
  oct_time next = OCT_TIME_NEVER;
  if (s->config.chrome != NULL)
    next = later(next, s->config.chrome_from_ns, now);
  if (s->seen != NULL)
    next = later(next, s->seen->from_ns, now);
  return next;
}

void
oct_spans_step(oct_spans *s, guint32 replica, const oct_tap_step *step) {
  if (in_file(s, step->start_ns, step->end_ns))
    write_step(s, replica, step);
  if (s->seen != NULL)
    picture_step(s, replica, step);
}

void
oct_spans_copy(oct_spans *s, guint32 replica, const oct_tap_copy *copy) {
  if (in_file(s, copy->submit_ns, copy->end_ns))
    write_copy(s, replica, copy);
  stretch *x = within(s->seen, copy->submit_ns, copy->end_ns) ? s->seen : NULL;
  if (x == NULL || x->n_copies == OCT_SPANS_COPIES_MAX)
    return;
  x->copies[x->n_copies] = *copy;
  x->copies[x->n_copies++].instance = replica;
}

void
oct_spans_arrival(oct_spans *s, guint32 replica, guint64 index, oct_time due_ns,
                  guint32 input_tokens) {
  stretch *x = s->seen;
  if (x != NULL && x->n_requests < OCT_SPANS_REQUESTS_MAX && due_ns >= x->from_ns &&
      due_ns < x->until_ns)
    x->requests[x->n_requests++] = (span_request){.replica = replica,
                                                  .input_tokens = input_tokens,
                                                  .index = index,
                                                  .due_ns = due_ns,
                                                  .admitted_ns = -1,
                                                  .first_ns = -1,
                                                  .last_ns = -1};
}

void
oct_spans_request(oct_spans *s, guint32 replica, guint64 index, oct_time due_ns,
                  const oct_request_record *record) {
  const span_request r = {.replica = replica,
                          .input_tokens = record->prompt_tokens,
                          .output_tokens = record->output_tokens,
                          .index = index,
                          .due_ns = due_ns,
                          .admitted_ns = record->admitted_ns,
                          .first_ns = record->first_token_ns,
                          .last_ns = record->ended_ns};
  if (in_file(s, due_ns, record->ended_ns))
    write_request(s, &r, record);
  picture_request(s->shown, &r);
  picture_request(s->seen, &r);
}

void
oct_spans_end_picture(oct_spans *s, oct_time now) {
  if (s->seen != NULL && s->shown->whole && s->seen->from_ns >= now)
    g_clear_pointer(&s->seen, g_free);
}

void
oct_spans_end(oct_spans *s, oct_time now) {
  if (s->seen != NULL && (now >= s->seen->until_ns || !s->shown->whole))
    show_stretch(s, MIN(now, s->seen->until_ns));
  if (s->config.chrome == NULL)
    return;
  fprintf(s->config.chrome,
          "\n],\"otherData\":{\"from_s\":%.9f,\"for_s\":%.9f,\"dropped_events\":%" G_GUINT64_FORMAT
          "}}\n",
          (double)s->config.chrome_from_ns / 1e9, (double)s->config.chrome_for_ns / 1e9,
          s->n_dropped);
}

/* ---------------------------------------------------------------- as JSON */

static json_t *
time_or_null(oct_time ns) {
  return ns >= 0 ? oct_json_seconds(ns) : json_null();
}

static json_t *
steps_json(const stretch *x) {
  json_t *rows = json_array();
  for (guint i = 0; i < x->n_steps; i++) {
    const oct_tap_step *step = &x->steps[i];
    json_t *parts = json_array();
    for (int p = 0; p < OCT_PART_COUNT; p++)
      json_array_append_new(parts, oct_json_seconds(step->part_ns[p]));
    json_array_append_new(
        rows, json_pack("[I, o, o, I, I, I, I, o]", (json_int_t)step->instance,
                        oct_json_seconds(step->start_ns), oct_json_seconds(step->end_ns),
                        (json_int_t)step->n_slices, (json_int_t)step->n_prefills,
                        (json_int_t)step->n_tokens, (json_int_t)step->n_prefill_tokens, parts));
  }
  return json_pack("{s:[s, s, s, s, s, s, s, s], s:o}", "columns", "replica", "start_s", "end_s",
                   "sequences", "prefills", "tokens", "prefill_tokens", "parts_s", "rows", rows);
}

static json_t *
copies_json(const stretch *x) {
  json_t *rows = json_array();
  for (guint i = 0; i < x->n_copies; i++) {
    const oct_tap_copy *copy = &x->copies[i];
    json_array_append_new(rows, json_pack("[I, o, o, s, I]", (json_int_t)copy->instance,
                                          oct_json_seconds(copy->submit_ns),
                                          oct_json_seconds(copy->end_ns),
                                          oct_tap_way_name(copy->way), (json_int_t)copy->n_items));
  }
  return json_pack("{s:[s, s, s, s, s], s:o}", "columns", "replica", "start_s", "end_s", "way",
                   "items", "rows", rows);
}

static json_t *
requests_json(const stretch *x) {
  json_t *rows = json_array();
  for (guint i = 0; i < x->n_requests; i++) {
    const span_request *r = &x->requests[i];
    json_array_append_new(rows, json_pack("[I, I, o, o, o, o, I, I]", (json_int_t)r->index,
                                          (json_int_t)r->replica, time_or_null(r->due_ns),
                                          time_or_null(r->admitted_ns), time_or_null(r->first_ns),
                                          time_or_null(r->last_ns), (json_int_t)r->input_tokens,
                                          (json_int_t)r->output_tokens));
  }
  return json_pack("{s:[s, s, s, s, s, s, s, s], s:o}", "columns", "index", "replica", "arrival_s",
                   "admitted_s", "first_token_s", "end_s", "input_tokens", "output_tokens", "rows",
                   rows);
}

json_t *
oct_spans_json(const oct_spans *s) {
  const stretch *x = s->shown;
  if (x == NULL || !x->whole)
    return json_null();
  return json_pack("{s:o, s:o, s:o, s:o, s:o}", "from_s", oct_json_seconds(x->from_ns), "until_s",
                   oct_json_seconds(x->until_ns), "steps", steps_json(x), "copies", copies_json(x),
                   "requests", requests_json(x));
}
