/* The writer: a world that hands every call on and notes what was asked and answered. */
#include "backends/record/record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <glib/gstdio.h>

#include "backends/dump.h"
#include "backends/flat.h"
#include "backends/record/format.h"
#include "backends/record/routing-log.h"
#include "backends/record/step-log.h"
#include "engine/base/assert.h"

typedef struct record_world {
  oct_world base;
  oct_world_ops ops;
  oct_world *inner;
  FILE *file;               /* NULL: no recording */
  oct_step_log *steps;      /* NULL: no step log */
  oct_routing_log *routing; /* NULL: no counts of experts */
  char *path;
  gboolean flush;
  int write_errno; /* of the first write that failed, 0 = none */
  guint64 serial;
  GByteArray *entry, *reply;
  GString *text;
} record_world;

static record_world *
from_base(const oct_world *world) {
  return (record_world *)(void *)world;
}

static void
append_padded(GByteArray *to, const void *bytes, guint32 n) {
  static const guint8 zeros[8] = {0};
  if (n > 0)
    g_byte_array_append(to, bytes, n);
  g_byte_array_append(to, zeros, record_padded(n) - n);
}

/* Writes one call; `call` holds kind, a, b, instance and answer. */
static void
note(record_world *w, const record_entry *call, const void *body, guint32 body_bytes,
     const GByteArray *reply, const GError *error) {
  if (w->file == NULL)
    return;
  record_entry e = *call;
  e.serial = ++w->serial;
  e.body_bytes = body_bytes;
  e.reply_bytes = reply != NULL ? reply->len : 0;
  e.error_code = error != NULL ? (guint32)error->code + 1 : 0;
  e.error_bytes = error != NULL ? (guint32)strlen(error->message) + 1 : 0;
  e.bytes = (guint32)sizeof e + record_padded(e.body_bytes) + record_padded(e.reply_bytes) +
            record_padded(e.error_bytes);
  g_byte_array_set_size(w->entry, 0);
  append_padded(w->entry, &e, sizeof e);
  append_padded(w->entry, body, e.body_bytes);
  append_padded(w->entry, reply != NULL ? reply->data : NULL, e.reply_bytes);
  append_padded(w->entry, error != NULL ? error->message : NULL, e.error_bytes);
  oct_assert(w->entry->len == e.bytes);
  record_entry *written = (record_entry *)(void *)w->entry->data;
  written->checksum = record_checksum(written);
  gboolean fine = w->write_errno == 0 && fwrite(w->entry->data, e.bytes, 1, w->file) == 1;
  if (fine && w->flush)
    fine = fflush(w->file) == 0;
  if (!fine && w->write_errno == 0)
    w->write_errno = errno != 0 ? errno : EIO;
}

/* ---------------------------------------------------------------- the table */

/* Opens with experts reported where they are counted. */
static gboolean
open_inner(record_world *w, const oct_instance_config *config, guint32 *instance, GError **error) {
  oct_instance_config reporting = *config;
  gboolean counted = FALSE;
  if (w->routing != NULL && !oct_routing_log_opens(w->routing, config, &counted, error))
    return FALSE;
  reporting.report_experts = config->report_experts || counted;
  if (!oct_world_open(w->inner, &reporting, instance, error))
    return FALSE;
  if (counted)
    oct_routing_log_opened(w->routing, *instance, config->spec);
  return TRUE;
}

/* The counts of experts are written as a whole, later again: EIO stands for whatever it was. */
static void
note_routing(record_world *w, gboolean written) {
  if (!written && w->write_errno == 0)
    w->write_errno = EIO;
}

static gboolean
record_open(oct_world *world, const oct_instance_config *config, guint32 *instance,
            GError **error) {
  record_world *w = from_base(world);
  GError *why = NULL;
  gboolean opened = open_inner(w, config, instance, &why);
  if (opened && w->steps != NULL)
    oct_step_log_opened(w->steps, *instance, config);
  g_string_truncate(w->text, 0);
  oct_dump_config(w->text, config);
  note(w, &(record_entry){.kind = RECORD_OPEN, .instance = *instance, .answer = (guint32)opened},
       w->text->str, (guint32)w->text->len, NULL, why);
  if (why != NULL)
    g_propagate_error(error, why);
  return opened;
}

static void
record_close(oct_world *world, guint32 instance) {
  record_world *w = from_base(world);
  oct_world_close(w->inner, instance);
  if (w->steps != NULL)
    oct_step_log_closed(w->steps, instance);
  if (w->routing != NULL)
    note_routing(w, oct_routing_log_closes(w->routing, instance));
  note(w, &(record_entry){.kind = RECORD_CLOSE, .instance = instance}, NULL, 0, NULL, NULL);
}

static oct_submit
record_submit(oct_world *world, guint32 instance, const oct_step *step, GError **error) {
  record_world *w = from_base(world);
  GError *why = NULL;
  oct_submit answer = oct_world_submit(w->inner, instance, step, &why);
  if (answer == OCT_SUBMIT_OK && w->steps != NULL)
    oct_step_log_submitted(w->steps, instance, step, w->inner->now_ns);
  note(w,
       &(record_entry){.kind = RECORD_SUBMIT,
                       .instance = instance,
                       .a = step->number,
                       .answer = (guint32)answer},
       step, step->bytes, NULL, why);
  if (why != NULL)
    g_propagate_error(error, why);
  return answer;
}

static oct_submit
record_copy(oct_world *world, guint32 instance, guint64 ticket, const oct_copy *copies,
            guint32 n_copies, GError **error) {
  record_world *w = from_base(world);
  GError *why = NULL;
  oct_submit answer = oct_world_copy(w->inner, instance, ticket, copies, n_copies, &why);
  note(w,
       &(record_entry){
           .kind = RECORD_COPY, .instance = instance, .a = ticket, .answer = (guint32)answer},
       copies, MIN(n_copies, OCT_STEP_COPIES_MAX) * (guint32)sizeof *copies, NULL, why);
  if (why != NULL)
    g_propagate_error(error, why);
  return answer;
}

static oct_submit
record_pull(oct_world *world, guint32 instance, guint32 peer, guint32 peer_domain, guint64 ticket,
            const oct_copy *copies, guint32 n_copies, GError **error) {
  record_world *w = from_base(world);
  GError *why = NULL;
  oct_submit answer =
      oct_world_pull(w->inner, instance, peer, peer_domain, ticket, copies, n_copies, &why);
  note(w,
       &(record_entry){.kind = RECORD_PULL,
                       .instance = instance,
                       .a = ticket,
                       .b = record_source(peer, peer_domain),
                       .answer = (guint32)answer},
       copies, MIN(n_copies, OCT_STEP_COPIES_MAX) * (guint32)sizeof *copies, NULL, why);
  if (why != NULL)
    g_propagate_error(error, why);
  return answer;
}

static gboolean
record_mask(oct_world *world, guint32 instance, guint64 number, guint32 slice, const guint64 *bits,
            guint32 n_words, GError **error) {
  record_world *w = from_base(world);
  GError *why = NULL;
  gboolean taken = oct_world_mask(w->inner, instance, number, slice, bits, n_words, &why);
  note(w,
       &(record_entry){.kind = RECORD_MASK,
                       .instance = instance,
                       .a = number,
                       .b = slice,
                       .answer = (guint32)taken},
       bits, MIN(n_words, 1u << 20) * (guint32)sizeof *bits, NULL, why);
  if (why != NULL)
    g_propagate_error(error, why);
  return taken;
}

static gboolean
record_next(oct_world *world, oct_time until_ns, oct_event *event) {
  record_world *w = from_base(world);
  gboolean there = oct_world_next(w->inner, until_ns, event);
  if (there && w->steps != NULL)
    oct_step_log_event(w->steps, event);
  if (there && w->routing != NULL)
    note_routing(w, oct_routing_log_event(w->routing, event, w->inner->now_ns));
  g_byte_array_set_size(w->reply, 0);
  if (there)
    oct_flat_event_write(w->reply, event);
  note(w, &(record_entry){.kind = RECORD_NEXT, .a = (guint64)until_ns, .answer = (guint32)there},
       NULL, 0, w->reply, NULL);
  return there;
}

static gboolean
record_forward(oct_world *world, guint32 instance, const oct_forward *forward,
               oct_forwarded *forwarded) {
  record_world *w = from_base(world);
  /* A step that is retired in silence would be missing from the log and the counts. */
  gboolean done = w->steps == NULL && w->routing == NULL &&
                  oct_world_forward(w->inner, instance, forward, forwarded);
  g_byte_array_set_size(w->reply, 0);
  if (done)
    g_byte_array_append(w->reply, (const guint8 *)forwarded, sizeof *forwarded);
  note(w,
       &(record_entry){.kind = RECORD_FORWARD,
                       .instance = instance,
                       .a = (guint64)forward->limit_ns,
                       .b = (guint64)forward->submit_ns,
                       .answer = (guint32)done},
       NULL, 0, w->reply, NULL);
  return done;
}

typedef struct run_call {
  record_world *w;
  oct_world_fn fn;
  void *arg;
} run_call;

static int
run_inner(oct_world *inner, void *arg) {
  run_call *call = arg;
  (void)inner;
  return call->fn(&call->w->base, call->arg);
}

static int
record_run(oct_world *world, oct_world_fn fn, void *arg) {
  record_world *w = from_base(world);
  run_call call = {w, fn, arg};
  int value = oct_world_run(w->inner, run_inner, &call);
  if (w->file != NULL && fflush(w->file) != 0 && w->write_errno == 0)
    w->write_errno = errno;
  int steps_errno = w->steps != NULL ? oct_step_log_flush(w->steps) : 0;
  if (steps_errno != 0 && w->write_errno == 0)
    w->write_errno = steps_errno;
  return value;
}

static void
record_wake(oct_world *world) {
  oct_world_wake(from_base(world)->inner);
}

static void
record_free(oct_world *world) {
  record_world *w = from_base(world);
  oct_world_free(w->inner);
  if (w->file != NULL)
    fclose(w->file);
  oct_step_log_free(w->steps);
  oct_routing_log_free(w->routing);
  g_byte_array_unref(w->entry);
  g_byte_array_unref(w->reply);
  g_string_free(w->text, TRUE);
  g_free(w->path);
  g_free(w);
}

oct_world *
oct_record_world_new(oct_world *inner, const oct_record_options *options, GError **error) {
  const char *path = options->path;
  FILE *file = path != NULL ? g_fopen(path, "wb") : NULL;
  record_header header = {
      .magic = RECORD_MAGIC,
      .version = RECORD_VERSION,
      .abi = OCT_BACKEND_ABI,
      .clock = inner->ops->clock,
      .has = (inner->ops->mask != NULL ? RECORD_HAS_MASK : 0u) |
             (inner->ops->forward != NULL ? RECORD_HAS_FORWARD : 0u) |
             (inner->ops->pull != NULL ? RECORD_HAS_PULL : 0u),
  };
  oct_step_log *steps = NULL;
  if (options->steps_path != NULL) {
    steps = oct_step_log_new(options->steps_path, inner->ops->clock, error);
    if (steps == NULL) {
      if (file != NULL)
        fclose(file);
      oct_world_free(inner);
      return NULL;
    }
  }
  if (path != NULL && (file == NULL || fwrite(&header, sizeof header, 1, file) != 1)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "record: %s: %s", path,
                g_strerror(errno));
    if (file != NULL)
      fclose(file);
    oct_step_log_free(steps);
    oct_world_free(inner);
    return NULL;
  }
  record_world *w = g_new0(record_world, 1);
  w->ops = (oct_world_ops){
      .name = "record",
      .abi = OCT_BACKEND_ABI,
      .clock = inner->ops->clock,
      .free = record_free,
      .run = record_run,
      .wake = record_wake,
      .open = record_open,
      .close = record_close,
      .submit = record_submit,
      .copy = record_copy,
      .pull = inner->ops->pull != NULL ? record_pull : NULL,
      .mask = inner->ops->mask != NULL ? record_mask : NULL,
      .next = record_next,
      .forward = inner->ops->forward != NULL ? record_forward : NULL,
  };
  oct_world_init(&w->base, &w->ops);
  w->inner = inner;
  w->file = file;
  w->steps = steps;
  if (options->routing_path != NULL)
    w->routing = oct_routing_log_new(options->routing_path);
  w->path = g_strdup(path != NULL                  ? path
                     : options->steps_path != NULL ? options->steps_path
                                                   : options->routing_path);
  w->flush = options->flush;
  w->entry = g_byte_array_new();
  w->reply = g_byte_array_new();
  w->text = g_string_new(NULL);
  return &w->base;
}

gboolean
oct_record_world_check(const oct_world *world, GError **error) {
  const record_world *w = from_base(world);
  if (w->write_errno == 0)
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "record: %s is incomplete: %s",
              w->path, g_strerror(w->write_errno));
  return FALSE;
}
