/* The player: a world that answers from a recording, and holds the engine to its calls. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <glib/gstdio.h>

#include "backends/dump.h"
#include "backends/flat.h"
#include "backends/record/format.h"
#include "backends/record/record.h"
#include "engine/base/assert.h"

typedef struct replay_world {
  oct_world base;
  oct_world_ops ops;
  FILE *file;
  char *path;
  guint8 *buffer; /* the current entry */
  gsize room;
  guint64 n_calls;
  gboolean ended, told;
  char *difference;
  oct_fault fault;
} replay_world;

static replay_world *
from_base(const oct_world *world) {
  return (replay_world *)(void *)world;
}

static const char *
kind_name(guint32 kind) {
  static const char *const names[RECORD_KINDS] = {"open", "close", "submit",  "copy",
                                                  "mask", "next",  "forward", "pull"};
  return kind < RECORD_KINDS ? names[kind] : "?";
}

/* ---------------------------------------------------------------- reading */

static void differs(replay_world *w, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Keeps the first difference. */
static void
differs(replay_world *w, const char *format, ...) {
  if (w->difference != NULL)
    return;
  va_list args;
  va_start(args, format);
  g_autofree char *what = g_strdup_vprintf(format, args);
  va_end(args);
  w->difference = g_strdup_printf("call %" G_GUINT64_FORMAT ": %s", w->n_calls, what);
}

/* Room for the whole entry, whose first `have` bytes are in the buffer. */
static gboolean
make_room(replay_world *w, gsize bytes) {
  if (bytes <= w->room)
    return TRUE;
  guint8 *larger = g_try_realloc(w->buffer, bytes);
  if (larger == NULL)
    return FALSE;
  w->buffer = larger;
  w->room = bytes;
  return TRUE;
}

/* The next entry, checked; NULL when there is none, or a difference was found. */
static const record_entry *
read_entry(replay_world *w) {
  w->n_calls++;
  if (w->difference != NULL)
    return NULL;
  (void)make_room(w, sizeof(record_entry));
  gsize got = fread(w->buffer, 1, sizeof(record_entry), w->file);
  if (got != sizeof(record_entry)) {
    w->ended = got == 0;
    differs(w, got == 0 ? "the recording ends here" : "the recording is torn here");
    return NULL;
  }
  record_entry head;
  memcpy(&head, w->buffer, sizeof head);
  guint64 wanted = (guint64)sizeof head + ((guint64)head.body_bytes + 7) / 8 * 8 +
                   ((guint64)head.reply_bytes + 7) / 8 * 8 +
                   ((guint64)head.error_bytes + 7) / 8 * 8;
  if (head.bytes != wanted || head.bytes > RECORD_BYTES_MAX || !make_room(w, head.bytes)) {
    differs(w, "the recording is damaged: an entry of %u bytes, its parts have %" G_GUINT64_FORMAT,
            head.bytes, wanted);
    return NULL;
  }
  gsize rest = head.bytes - sizeof head;
  if (rest > 0 && fread(w->buffer + sizeof head, rest, 1, w->file) != 1) {
    differs(w, "the recording is torn here");
    return NULL;
  }
  const record_entry *e = (const record_entry *)(const void *)w->buffer;
  if (record_checksum(e) != e->checksum || e->serial != w->n_calls || e->kind >= RECORD_KINDS) {
    differs(w,
            "the recording is damaged: entry %" G_GUINT64_FORMAT " of kind %u fails its checksum",
            e->serial, e->kind);
    return NULL;
  }
  return e;
}

static const guint8 *
entry_body(const record_entry *e) {
  return (const guint8 *)e + sizeof *e;
}

static const guint8 *
entry_reply(const record_entry *e) {
  return entry_body(e) + record_padded(e->body_bytes);
}

static const char *
entry_error(const record_entry *e) {
  return (const char *)entry_reply(e) + record_padded(e->reply_bytes);
}

/* ---------------------------------------------------------------- comparing */

static void
dump_body(GString *out, guint32 kind, const void *body, guint32 bytes) {
  if (kind == RECORD_SUBMIT)
    oct_dump_step(out, body);
  else if (kind == RECORD_COPY || kind == RECORD_PULL)
    oct_dump_copies(out, body, bytes / (guint32)sizeof(oct_copy));
  else if (kind == RECORD_OPEN)
    g_string_append_len(out, body, bytes);
  else if (kind == RECORD_MASK)
    for (guint32 i = 0; i < bytes / 8; i++)
      g_string_append_printf(out, "word %u: %016" G_GINT64_MODIFIER "x\n", i,
                             ((const guint64 *)body)[i]);
}

/* Names the first line in which the two bodies differ. */
static void
compare_texts(replay_world *w, guint32 kind, const void *called, guint32 called_bytes,
              const void *recorded, guint32 recorded_bytes) {
  g_autoptr(GString) a = g_string_new(NULL);
  g_autoptr(GString) b = g_string_new(NULL);
  if (kind == RECORD_SUBMIT && !oct_step_layout_check(recorded, recorded_bytes, NULL)) {
    differs(w, "the recording is damaged: its step is malformed");
    return;
  }
  dump_body(a, kind, called, called_bytes);
  dump_body(b, kind, recorded, recorded_bytes);
  g_auto(GStrv) lines_a = g_strsplit(a->str, "\n", -1);
  g_auto(GStrv) lines_b = g_strsplit(b->str, "\n", -1);
  guint i = 0;
  while (lines_a[i] != NULL && lines_b[i] != NULL && strcmp(lines_a[i], lines_b[i]) == 0)
    i++;
  const char *mine = lines_a[i] != NULL ? g_strstrip(lines_a[i]) : "nothing more";
  const char *theirs = lines_b[i] != NULL ? g_strstrip(lines_b[i]) : "nothing more";
  if (lines_a[i] == NULL && lines_b[i] == NULL)
    differs(w, "%s differs in bytes that say nothing", kind_name(kind));
  else
    differs(w, "%s says \"%s\", recorded \"%s\"", kind_name(kind), mine, theirs);
}

/* The entry that answers this call, or NULL at the first difference. */
static const record_entry *
answer(replay_world *w, const record_entry *call, const void *body, guint32 body_bytes) {
  const record_entry *e = read_entry(w);
  if (e == NULL)
    return NULL;
  if (e->kind != call->kind) {
    differs(w, "%s was called, recorded is %s", kind_name(call->kind), kind_name(e->kind));
    return NULL;
  }
  if (e->instance != call->instance && call->kind != RECORD_OPEN) {
    differs(w, "%s of instance %u, recorded %u", kind_name(call->kind), call->instance,
            e->instance);
    return NULL;
  }
  if (e->a != call->a || e->b != call->b) {
    differs(w,
            "%s (%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT "), recorded (%" G_GINT64_FORMAT
            ", %" G_GINT64_FORMAT ")",
            kind_name(call->kind), (gint64)call->a, (gint64)call->b, (gint64)e->a, (gint64)e->b);
    return NULL;
  }
  if (e->body_bytes != body_bytes ||
      (body_bytes > 0 && memcmp(entry_body(e), body, body_bytes) != 0)) {
    compare_texts(w, call->kind, body, body_bytes, entry_body(e), e->body_bytes);
    return NULL;
  }
  return e;
}

/* The recorded error, or the difference, as *error. */
static void
set_error(replay_world *w, const record_entry *e, GError **error) {
  if (e == NULL)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "replay: %s", w->difference);
  else if (e->error_code != 0 && e->error_bytes > 0)
    g_set_error(error, OCT_BACKEND_ERROR, (int)e->error_code - 1, "%.*s", (int)e->error_bytes,
                entry_error(e));
}

/* ---------------------------------------------------------------- the table */

static gboolean
replay_open(oct_world *world, const oct_instance_config *config, guint32 *instance,
            GError **error) {
  replay_world *w = from_base(world);
  g_autoptr(GString) text = g_string_new(NULL);
  oct_dump_config(text, config);
  const record_entry *e =
      answer(w, &(record_entry){.kind = RECORD_OPEN}, text->str, (guint32)text->len);
  set_error(w, e, error);
  if (e == NULL || e->answer == 0 || e->instance == 0)
    return FALSE;
  *instance = e->instance;
  return TRUE;
}

static void
replay_close(oct_world *world, guint32 instance) {
  (void)answer(from_base(world), &(record_entry){.kind = RECORD_CLOSE, .instance = instance}, NULL,
               0);
}

static oct_submit
to_submit(replay_world *w, const record_entry *e, GError **error) {
  set_error(w, e, error);
  return e == NULL || e->answer > OCT_SUBMIT_REFUSED ? OCT_SUBMIT_REFUSED : (oct_submit)e->answer;
}

static oct_submit
replay_submit(oct_world *world, guint32 instance, const oct_step *step, GError **error) {
  replay_world *w = from_base(world);
  record_entry call = {.kind = RECORD_SUBMIT, .instance = instance, .a = step->number};
  return to_submit(w, answer(w, &call, step, step->bytes), error);
}

static oct_submit
replay_copy(oct_world *world, guint32 instance, guint64 ticket, const oct_copy *copies,
            guint32 n_copies, GError **error) {
  replay_world *w = from_base(world);
  record_entry call = {.kind = RECORD_COPY, .instance = instance, .a = ticket};
  guint32 bytes = MIN(n_copies, OCT_STEP_COPIES_MAX) * (guint32)sizeof *copies;
  return to_submit(w, answer(w, &call, copies, bytes), error);
}

static oct_submit
replay_pull(oct_world *world, guint32 instance, guint32 peer, guint32 peer_domain, guint64 ticket,
            const oct_copy *copies, guint32 n_copies, GError **error) {
  replay_world *w = from_base(world);
  record_entry call = {.kind = RECORD_PULL,
                       .instance = instance,
                       .a = ticket,
                       .b = record_source(peer, peer_domain)};
  guint32 bytes = MIN(n_copies, OCT_STEP_COPIES_MAX) * (guint32)sizeof *copies;
  return to_submit(w, answer(w, &call, copies, bytes), error);
}

static gboolean
replay_mask(oct_world *world, guint32 instance, guint64 number, guint32 slice, const guint64 *bits,
            guint32 n_words, GError **error) {
  replay_world *w = from_base(world);
  record_entry call = {.kind = RECORD_MASK, .instance = instance, .a = number, .b = slice};
  const record_entry *e = answer(w, &call, bits, MIN(n_words, 1u << 20) * (guint32)sizeof *bits);
  set_error(w, e, error);
  return e != NULL && e->answer != 0;
}

static gboolean
replay_next(oct_world *world, oct_time until_ns, oct_event *event) {
  replay_world *w = from_base(world);
  const record_entry *e =
      answer(w, &(record_entry){.kind = RECORD_NEXT, .a = (guint64)until_ns}, NULL, 0);
  if (e != NULL && e->answer == 0)
    return FALSE;
  g_autoptr(GError) error = NULL;
  if (e != NULL) {
    if (!oct_flat_event_read(entry_reply(e), e->reply_bytes, event, &error))
      differs(w, "the recording is damaged: %s", error->message);
    else if (event->time_ns < world->now_ns)
      differs(w, "the recording is damaged: time goes back to %" G_GINT64_FORMAT, event->time_ns);
    else
      return TRUE;
  }
  if (w->told)
    return FALSE;
  w->told = TRUE;
  memset(event, 0, sizeof *event);
  w->fault = (oct_fault){.severity = OCT_SEVERITY_FATAL, .device = OCT_NO_INDEX};
  g_snprintf(w->fault.message, sizeof w->fault.message, "replay: %s", w->difference);
  event->kind = OCT_EVENT_FAULT;
  event->time_ns = world->now_ns;
  event->fault = &w->fault;
  return TRUE;
}

static gboolean
replay_forward(oct_world *world, guint32 instance, const oct_forward *forward,
               oct_forwarded *forwarded) {
  replay_world *w = from_base(world);
  const record_entry *e = answer(w,
                                 &(record_entry){.kind = RECORD_FORWARD,
                                                 .instance = instance,
                                                 .a = (guint64)forward->limit_ns,
                                                 .b = (guint64)forward->submit_ns},
                                 NULL, 0);
  if (e == NULL || e->answer == 0 || e->reply_bytes != sizeof *forwarded)
    return FALSE;
  memcpy(forwarded, entry_reply(e), sizeof *forwarded);
  return forwarded->end_ns <= forward->limit_ns && forward->submit_ns <= forwarded->end_ns &&
         forwarded->end_ns >= world->now_ns;
}

static int
replay_run(oct_world *world, oct_world_fn fn, void *arg) {
  return fn(world, arg);
}

/* Wake-ups come from the recording. */
static void
replay_wake(oct_world *world) {
  (void)world;
}

static void
replay_free(oct_world *world) {
  replay_world *w = from_base(world);
  fclose(w->file);
  g_free(w->path);
  g_free(w->buffer);
  g_free(w->difference);
  g_free(w);
}

oct_world *
oct_replay_world_new(const char *path, GError **error) {
  FILE *file = g_fopen(path, "rb");
  if (file == NULL) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "replay: %s: %s", path,
                g_strerror(errno));
    return NULL;
  }
  record_header header;
  if (fread(&header, sizeof header, 1, file) != 1 ||
      memcmp(header.magic, RECORD_MAGIC, sizeof header.magic) != 0 ||
      header.version != RECORD_VERSION || header.abi != OCT_BACKEND_ABI ||
      header.clock > OCT_CLOCK_REAL) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "replay: %s is not a recording of version %d with ABI %d", path, RECORD_VERSION,
                OCT_BACKEND_ABI);
    fclose(file);
    return NULL;
  }
  gboolean forward = (header.has & RECORD_HAS_FORWARD) != 0 && header.clock == OCT_CLOCK_VIRTUAL;
  replay_world *w = g_new0(replay_world, 1);
  w->ops = (oct_world_ops){
      .name = "replay",
      .abi = OCT_BACKEND_ABI,
      .clock = (oct_clock_kind)header.clock,
      .free = replay_free,
      .run = replay_run,
      .wake = replay_wake,
      .open = replay_open,
      .close = replay_close,
      .submit = replay_submit,
      .copy = replay_copy,
      .pull = (header.has & RECORD_HAS_PULL) != 0 ? replay_pull : NULL,
      .mask = (header.has & RECORD_HAS_MASK) != 0 ? replay_mask : NULL,
      .next = replay_next,
      .forward = forward ? replay_forward : NULL,
  };
  oct_world_init(&w->base, &w->ops);
  w->file = file;
  w->path = g_strdup(path);
  return &w->base;
}

const char *
oct_replay_difference(const oct_world *world) {
  return from_base(world)->difference;
}

guint64
oct_replay_calls(const oct_world *world, gboolean *at_end) {
  replay_world *w = from_base(world);
  if (at_end != NULL) {
    int c = fgetc(w->file);
    if (c != EOF)
      ungetc(c, w->file);
    *at_end = c == EOF;
  }
  return w->n_calls;
}
