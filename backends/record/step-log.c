/* The step log: steps wait in the order of their submission until their results come, because only
 * those say how many drafts were accepted, from which the next positions follow. */
#include "backends/record/step-log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <glib/gstdio.h>

#include "engine/base/assert.h"

typedef struct logged_step {
  guint64 number;
  oct_time known_ns;
  guint32 n_domains;
  GArray *slices; /* oct_slice */
} logged_step;

typedef struct logged_instance {
  guint32 id;
  oct_instance_config config;                  /* its pointers are not kept */
  guint32 stage_ends[OCT_PARALLEL_STAGES_MAX]; /* the layer behind each stage's last one */
  char *label;
  GQueue steps;      /* logged_step, unfinished, in order */
  GArray *positions; /* guint32 by slot: where its next token goes */
  oct_time last_end_ns;
} logged_instance;

struct oct_step_log {
  FILE *file;
  int write_errno;
  GPtrArray *instances; /* logged_instance */
  GQueue spare;         /* logged_step */
};

static void
step_free(gpointer data) {
  logged_step *s = data;
  g_array_unref(s->slices);
  g_free(s);
}

static void
instance_free(gpointer data) {
  logged_instance *in = data;
  g_queue_clear_full(&in->steps, step_free);
  g_array_unref(in->positions);
  g_free(in->label);
  g_free(in);
}

static logged_instance *
find(const oct_step_log *log, guint32 id) {
  for (guint i = 0; i < log->instances->len; i++) {
    logged_instance *in = log->instances->pdata[i];
    if (in->id == id)
      return in;
  }
  return NULL;
}

static void
G_GNUC_PRINTF(2, 3) put(oct_step_log *log, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  errno = 0;
  if (log->write_errno == 0 && vfprintf(log->file, format, arguments) < 0)
    log->write_errno = errno != 0 ? errno : EIO;
  va_end(arguments);
}

/* ---------------------------------------------------------------- life cycle */

oct_step_log *
oct_step_log_new(const char *path, oct_clock_kind clock, GError **error) {
  FILE *file = g_fopen(path, "w");
  if (file == NULL) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "record: steps: %s: %s", path,
                g_strerror(errno));
    return NULL;
  }
  oct_step_log *log = g_new0(oct_step_log, 1);
  log->file = file;
  log->instances = g_ptr_array_new_with_free_func(instance_free);
  put(log, "{\"octet_steps\":%d,\"clock\":\"%s\"}\n", OCT_STEP_LOG_VERSION,
      clock == OCT_CLOCK_REAL ? "real" : "virtual");
  return log;
}

void
oct_step_log_free(oct_step_log *log) {
  if (log == NULL)
    return;
  fclose(log->file);
  g_ptr_array_unref(log->instances);
  g_queue_clear_full(&log->spare, step_free);
  g_free(log);
}

int
oct_step_log_flush(oct_step_log *log) {
  if (fflush(log->file) != 0 && log->write_errno == 0)
    log->write_errno = errno;
  return log->write_errno;
}

/* ---------------------------------------------------------------- what a caller did */

void
oct_step_log_opened(oct_step_log *log, guint32 instance, const oct_instance_config *config) {
  logged_instance *in = g_new0(logged_instance, 1);
  in->id = instance;
  in->config = *config;
  for (guint32 s = 0; s < config->parallel.pipeline; s++) {
    guint32 first, count;
    oct_parallel_stage(config->spec, &config->parallel, s, &first, &count);
    in->stage_ends[s] = first + count;
  }
  in->label = g_strdup(config->label != NULL ? config->label : "");
  in->positions = g_array_new(FALSE, TRUE, sizeof(guint32));
  g_array_set_size(in->positions, config->max_slots);
  in->last_end_ns = -1;
  g_ptr_array_add(log->instances, in);
}

void
oct_step_log_closed(oct_step_log *log, guint32 instance) {
  logged_instance *in = find(log, instance);
  if (in != NULL)
    g_ptr_array_remove(log->instances, in);
}

void
oct_step_log_submitted(oct_step_log *log, guint32 instance, const oct_step *step,
                       oct_time known_ns) {
  logged_instance *in = find(log, instance);
  logged_step *s = g_queue_pop_head(&log->spare);
  if (in == NULL) {
    if (s != NULL)
      g_queue_push_head(&log->spare, s);
    return;
  }
  if (s == NULL) {
    s = g_new0(logged_step, 1);
    s->slices = g_array_new(FALSE, FALSE, sizeof(oct_slice));
  }
  s->number = step->number;
  s->known_ns = known_ns;
  s->n_domains = step->n_domains;
  g_array_set_size(s->slices, 0);
  g_array_append_vals(s->slices, oct_step_slices(step), step->n_slices);
  g_queue_push_tail(&in->steps, s);
}

/* ---------------------------------------------------------------- what it was told */

/* A name's bytes as JSON: control characters, quotes and backslashes have no place in a label. */
static char *
plain_text(const char *text) {
  char *plain = g_strdup(text);
  for (char *c = plain; *c != '\0'; c++)
    if ((guchar)*c < ' ' || *c == '"' || *c == '\\')
      *c = '_';
  return plain;
}

static void
put_opened(oct_step_log *log, const logged_instance *in, const oct_capabilities *capabilities) {
  const oct_instance_config *c = &in->config;
  g_autofree char *label = plain_text(in->label);
  put(log,
      "{\"opened\":%u,\"tensor\":%u,\"pipeline\":%u,\"data\":%u,\"decode_context\":%u,"
      "\"expert_parallel\":%s,\"kv_dtype\":\"%s\",\"block_size\":%u,\"eager\":%s,"
      "\"graph_max_batch\":%u,\"label\":\"%s\"}\n",
      in->id, c->parallel.tensor, c->parallel.pipeline, c->parallel.data,
      c->parallel.decode_context, c->parallel.expert_parallel ? "true" : "false",
      oct_dtype_name(c->kv_dtype), c->block_size, c->eager ? "true" : "false",
      capabilities->graph_max_batch, label);
}

typedef enum slice_kind { SLICE_PREFILL, SLICE_DECODE, SLICE_VERIFY, SLICE_KINDS } slice_kind;

static slice_kind
kind_of(const oct_slice *slice) {
  if (slice->flags & OCT_SLICE_PREFILL)
    return SLICE_PREFILL;
  return slice->n_tokens > 1 ? SLICE_VERIFY : SLICE_DECODE;
}

static void
put_slices(oct_step_log *log, const logged_step *s, guint32 domain, slice_kind kind) {
  static const char *const names[SLICE_KINDS] = {"prefill", "decode", "verify"};
  gboolean first = TRUE;
  for (guint32 i = 0; i < s->slices->len; i++) {
    const oct_slice *slice = &g_array_index(s->slices, oct_slice, i);
    if (slice->domain != domain || kind_of(slice) != kind)
      continue;
    if (first)
      put(log, ",\"%s\":[", names[kind]);
    put(log, kind == SLICE_DECODE ? "%s%u" : "%s[%u,", first ? "" : ",",
        kind == SLICE_DECODE ? slice->position : slice->n_tokens);
    if (kind != SLICE_DECODE)
      put(log, "%u]", slice->position);
    first = FALSE;
  }
  if (!first)
    put(log, "]");
}

/* The stage of a layer of the model. */
static guint32
stage_of(const logged_instance *in, guint32 layer) {
  guint32 s = 0;
  while (s + 1 < in->config.parallel.pipeline && layer >= in->stage_ends[s])
    s++;
  return s;
}

static void
put_list(oct_step_log *log, const char *key, const guint32 *values, guint32 n) {
  put(log, ",\"%s\":", key);
  for (guint32 i = 0; i < n; i++)
    put(log, "%c%u", i == 0 ? '[' : ',', values[i]);
  put(log, "]");
}

static void
put_experts(oct_step_log *log, const logged_instance *in, const oct_step_result *result) {
  guint32 used[OCT_PARALLEL_STAGES_MAX] = {0}, missed[OCT_PARALLEL_STAGES_MAX] = {0};
  const oct_expert_use *uses = oct_result_experts(result);
  if (result->n_experts == 0)
    return;
  for (guint32 i = 0; i < result->n_experts; i++) {
    const guint32 stage = stage_of(in, uses[i].layer);
    used[stage] += uses[i].tokens > 0;
    missed[stage] += uses[i].missed;
  }
  put_list(log, "used", used, in->config.parallel.pipeline);
  if (in->config.memory.n_expert_slots > 0)
    put_list(log, "missed", missed, in->config.parallel.pipeline);
}

static void
put_step(oct_step_log *log, const logged_instance *in, const logged_step *s,
         const oct_step_result *result) {
  gint64 gap = in->last_end_ns < 0 ? 0 : result->start_ns - in->last_end_ns;
  put(log,
      "{\"step\":%" G_GUINT64_FORMAT ",\"instance\":%u,\"known_ns\":%" PRId64
      ",\"start_ns\":%" PRId64 ",\"end_ns\":%" PRId64 ",\"gap_ns\":%" PRId64 ",\"domains\":[",
      s->number, in->id, s->known_ns, result->start_ns, result->end_ns, MAX(gap, 0));
  for (guint32 d = 0; d < s->n_domains; d++) {
    guint32 rows = 0;
    for (guint32 i = 0; i < s->slices->len; i++) {
      const oct_slice *slice = &g_array_index(s->slices, oct_slice, i);
      if (slice->domain == d)
        rows += slice->sample == OCT_SAMPLE_ALL ? slice->n_tokens
                                                : (slice->sample == OCT_SAMPLE_LAST ? 1 : 0);
    }
    put(log, "%s{\"rows\":%u", d > 0 ? "," : "", rows);
    for (int kind = 0; kind < SLICE_KINDS; kind++)
      put_slices(log, s, d, (slice_kind)kind);
    put(log, "}");
  }
  put(log, "]");
  put_experts(log, in, result);
  put(log, "}\n");
}

/* Positions that the record left to the device, and where each slot's next token goes. */
static void
resolve(logged_instance *in, logged_step *s, const oct_step_result *result) {
  const oct_slice_result *results = oct_result_slices(result);
  for (guint32 i = 0; i < s->slices->len && i < result->n_slices; i++) {
    oct_slice *slice = &g_array_index(s->slices, oct_slice, i);
    if (slice->slot >= in->positions->len)
      continue;
    guint32 *next = &g_array_index(in->positions, guint32, slice->slot);
    if (slice->position == OCT_POSITION_AFTER)
      slice->position = *next;
    *next = slice->position +
            (slice->flags & OCT_SLICE_VERIFY ? results[i].n_accepted : slice->n_tokens);
  }
}

static logged_step *
take_step(logged_instance *in, guint64 number) {
  logged_step *s = g_queue_peek_head(&in->steps);
  return s != NULL && s->number == number ? g_queue_pop_head(&in->steps) : NULL;
}

void
oct_step_log_event(oct_step_log *log, const oct_event *event) {
  logged_instance *in = find(log, event->instance);
  logged_step *s = NULL;
  if (in == NULL)
    return;
  if (event->kind == OCT_EVENT_OPENED) {
    put_opened(log, in, event->capabilities);
  } else if (event->kind == OCT_EVENT_STEP_DONE) {
    s = take_step(in, event->number);
    if (s != NULL) {
      resolve(in, s, event->result);
      put_step(log, in, s, event->result);
      in->last_end_ns = event->result->end_ns;
    }
  } else if (event->kind == OCT_EVENT_FAULT && event->fault->severity == OCT_SEVERITY_STEP) {
    s = take_step(in, event->fault->number);
  }
  if (s != NULL)
    g_queue_push_head(&log->spare, s);
}
