#include "sim/replay/rows.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"
#include "traces/gen.h"

/* One pass over the trace, and what is to be done with its rows. */
typedef struct copy {
  guint number;
  oct_trace *trace;
  gint64 offset_ns;     /* rows of sessions that start from here on come first */
  gboolean second_pass; /* reading those before it */
  double keep;          /* share of sessions that are kept */
  GHashTable *starts;   /* session -> its start, gint64 *; of sessions with recorded turns */
  gboolean dropping;    /* the rows that follow without a time belong to a dropped session */
  gboolean pending;     /* `row` waits to be given out */
  oct_trace_request row;
} copy;

/* A row that waits until nothing unread can come before it. */
typedef struct held {
  gint64 key_ns; /* its new time; without a time, its session's */
  oct_trace_request *row;
} held;

struct oct_rows {
  char *path;
  oct_trace_options trace_options;
  double own_rate, factor; /* times are multiplied by it */
  double output_scale, prefix_share;
  gint64 span_ns; /* superpose: period of a copy */
  guint n_copies;
  copy *copies;
  GArray *heap; /* compress: held, the earliest on top */
  oct_trace_request *given;
  gint64 read_ns; /* compress: arrival of the last row read */
  gboolean (*deal)(void *user, const oct_trace_request *start);
  void *deal_user;
  guint64 n_kept, kept_max;
  GHashTable *dealt; /* sessions that were kept, as gint64 */
  gboolean last_dealt;
  const oct_warp *warp;
  gint64 least_shift_ns; /* warped: the least that a session's start has been moved by */
  gboolean ended;
  oct_trace_facts facts; /* of copy 0, once it is closed */
};

/* ---------------------------------------------------------------- the trace's own rate */

static gboolean
refuse(GError **error, const char *why) {
  g_set_error_literal(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, why);
  return FALSE;
}

static gboolean
generator_rate(const char *text, double *rate, GError **error) {
  g_auto(oct_trace_gen_spec) spec;
  oct_trace_gen_spec_init(&spec);
  if (!oct_trace_gen_parse(&spec, text, error))
    return FALSE;
  if (spec.arrivals == OCT_TRACE_ARRIVALS_CLOSED)
    return refuse(error, "rate: a closed loop sends when an answer comes, at no rate");
  if (spec.arrivals == OCT_TRACE_ARRIVALS_SERVEGEN && !spec.rate_given)
    return refuse(error,
                  "rate: ServeGen clients have their own rates; put rate= into the generator");
  *rate = spec.ramp != OCT_TRACE_RAMP_NONE ? (spec.start_rate + spec.end_rate) / 2 : spec.rate;
  if (!isfinite(*rate))
    return refuse(error, "rate: the generator sends everything at once");
  return TRUE;
}

static gboolean
file_rate(oct_rows *rows, GError **error) {
  g_autoptr(oct_trace) trace = oct_trace_open(rows->path, &rows->trace_options, error);
  if (trace == NULL)
    return FALSE;
  oct_trace_request row;
  GError *failed = NULL;
  guint64 starts = 0;
  gint64 first = -1, last = 0;
  while (oct_trace_next(trace, &row, &failed)) {
    if (row.arrival_ns < 0 && row.parent == 0)
      return refuse(error, "rate: the trace is a closed loop, which sends when an answer comes");
    if (row.arrival_ns < 0 || row.parent > 0)
      continue;
    starts++;
    first = first < 0 ? row.arrival_ns : first;
    last = row.arrival_ns;
  }
  if (failed != NULL) {
    g_propagate_error(error, failed);
    return FALSE;
  }
  if (starts < 2 || last <= first)
    return refuse(error, "rate: the trace's own rate is not known: it has fewer than two times");
  rows->own_rate = (double)(starts - 1) / ((double)(last - first) / 1e9);
  rows->span_ns = last - first + (last - first) / (gint64)(starts - 1);
  return TRUE;
}

/* ---------------------------------------------------------------- life cycle */

static gboolean
open_copy(oct_rows *rows, copy *c, GError **error) {
  g_clear_pointer(&c->trace, oct_trace_close);
  c->trace = oct_trace_open(rows->path, &rows->trace_options, error);
  return c->trace != NULL;
}

static gboolean
set_up_copies(oct_rows *rows, double scale, GError **error) {
  double whole = floor(scale + 1e-9), rest = MAX(scale - whole, 0);
  if (whole >= OCT_ROWS_COPIES_MAX) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                "rate: %.0f copies of the trace are above the limit of %d", whole,
                OCT_ROWS_COPIES_MAX);
    return FALSE;
  }
  rows->n_copies = (guint)whole + (rest > 1e-9);
  rows->copies = g_new0(copy, rows->n_copies);
  for (guint i = 0; i < rows->n_copies; i++) {
    copy *c = &rows->copies[i];
    c->number = i;
    c->keep = i < (guint)whole ? 1 : rest;
    /* Multiples of the golden ratio lie evenly for any number of copies. */
    c->offset_ns = (gint64)(fmod(i * 0.6180339887498949, 1) * (double)rows->span_ns);
    c->starts = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    if (!open_copy(rows, c, error))
      return FALSE;
  }
  return TRUE;
}

/* The generator's text with another seed. */
static char *
seeded_path(const char *path, guint64 seed) {
  if (seed == 0 || !g_str_has_prefix(path, "gen:"))
    return g_strdup(path);
  return g_strdup_printf("%s%sseed=%" G_GUINT64_FORMAT, path, path[4] != '\0' ? "," : "", seed);
}

static gboolean
set_up(oct_rows *rows, const oct_rows_options *options, GError **error) {
  gboolean generated = g_str_has_prefix(rows->path, "gen:");
  double scale = 1;
  if (options->rate > 0) {
    if (strcmp(rows->path, "-") == 0)
      return refuse(error, "rate: standard input can be read once only, and its rate is not known");
    if (!(generated ? generator_rate(rows->path + 4, &rows->own_rate, error)
                    : file_rate(rows, error)))
      return FALSE;
    scale = options->rate / rows->own_rate;
  }
  if (options->warp != NULL && options->mode == OCT_RATE_SUPERPOSE)
    return refuse(error,
                  "rate-mode: superposed copies and a scenario's arrivals do not go together");
  if (options->rate > 0 && !generated && options->mode == OCT_RATE_SUPERPOSE)
    return set_up_copies(rows, scale, error);
  rows->factor = 1 / scale;
  rows->n_copies = 1;
  rows->copies = g_new0(copy, 1);
  rows->copies[0].keep = 1;
  if (!generated)
    rows->copies[0].starts = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
  return open_copy(rows, &rows->copies[0], error);
}

oct_rows *
oct_rows_open(const oct_rows_options *options, GError **error) {
  g_autoptr(oct_rows) rows = g_new0(oct_rows, 1);
  rows->path = seeded_path(options->path, options->seed);
  rows->heap = g_array_new(FALSE, FALSE, sizeof(held));
  if (options->trace != NULL)
    rows->trace_options = *options->trace;
  else
    oct_trace_options_init(&rows->trace_options);
  rows->output_scale = options->output_scale;
  rows->prefix_share = options->prefix_share;
  rows->deal = options->deal;
  rows->deal_user = options->deal_user;
  rows->kept_max = options->kept_max;
  if (rows->deal != NULL)
    rows->dealt = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
  rows->warp = options->warp;
  if (!set_up(rows, options, error))
    return NULL;
  return g_steal_pointer(&rows);
}

void
oct_rows_free(oct_rows *rows) {
  if (rows == NULL)
    return;
  for (guint i = 0; i < rows->n_copies && rows->copies != NULL; i++) {
    oct_trace_close(rows->copies[i].trace);
    g_clear_pointer(&rows->copies[i].starts, g_hash_table_unref);
  }
  g_free(rows->copies);
  oct_trace_request_free(rows->given);
  for (guint i = 0; i < rows->heap->len; i++)
    oct_trace_request_free(g_array_index(rows->heap, held, i).row);
  g_array_unref(rows->heap);
  g_clear_pointer(&rows->dealt, g_hash_table_unref);
  g_free(rows->path);
  g_free(rows);
}

/* ---------------------------------------------------------------- superposed */

static gint64
session_start(copy *c, const oct_trace_request *row) {
  gint64 key = (gint64)row->session;
  gint64 *start = row->session > 0 ? g_hash_table_lookup(c->starts, &key) : NULL;
  if (start != NULL && row->parent > 0)
    return *start;
  if (row->session > 0 && start == NULL) {
    gint64 *at = g_new(gint64, 1);
    *at = row->arrival_ns;
    g_hash_table_insert(c->starts, g_memdup2(&key, sizeof key), at);
  }
  return row->arrival_ns;
}

static gboolean
is_kept(const copy *c, const oct_trace_request *row) {
  guint64 name = row->session > 0 ? row->session : ~row->index;
  return (double)oct_mix64(oct_mix64(name) + c->number) * 0x1p-64 < c->keep;
}

/* Reads the copy's next row into c->row, at its own time. FALSE at the end or with *error. */
static gboolean
advance(oct_rows *rows, copy *c, GError **error) {
  GError *failed = NULL;
  for (;;) {
    if (!oct_trace_next(c->trace, &c->row, &failed)) {
      if (failed != NULL) {
        g_propagate_error(error, failed);
        return FALSE;
      }
      if (c->second_pass || c->offset_ns == 0)
        return FALSE;
      c->second_pass = TRUE;
      g_hash_table_remove_all(c->starts);
      if (!open_copy(rows, c, error))
        return FALSE;
      continue;
    }
    if (c->row.arrival_ns < 0) {
      if (c->dropping)
        continue;
      break;
    }
    gboolean early = session_start(c, &c->row) < c->offset_ns;
    c->dropping = early != c->second_pass || !is_kept(c, &c->row);
    if (c->dropping)
      continue;
    c->row.arrival_ns += c->second_pass ? rows->span_ns - c->offset_ns : -c->offset_ns;
    break;
  }
  guint64 n = rows->n_copies;
  c->row.index = c->row.index * n + c->number;
  c->row.session = c->row.session > 0 ? c->row.session * n + c->number : 0;
  c->row.parent = c->row.parent > 0 ? (c->row.parent - 1) * n + c->number + 1 : 0;
  c->pending = TRUE;
  return TRUE;
}

static gboolean
next_superposed(oct_rows *rows, oct_trace_request *out, guint64 *salt, GError **error) {
  copy *first = NULL;
  GError *failed = NULL;
  for (guint i = 0; i < rows->n_copies; i++) {
    copy *c = &rows->copies[i];
    if (!c->pending && c->trace != NULL && !advance(rows, c, &failed)) {
      if (i == 0)
        rows->facts = *oct_trace_get_facts(c->trace);
      g_clear_pointer(&c->trace, oct_trace_close);
      if (failed != NULL) {
        g_propagate_error(error, failed);
        return FALSE;
      }
    }
    /* A row without a time follows its parent at once. */
    if (c->pending && (first == NULL || c->row.arrival_ns < first->row.arrival_ns))
      first = c;
  }
  if (first == NULL)
    return FALSE;
  first->pending = FALSE;
  *out = first->row;
  *salt = first->number;
  return TRUE;
}

/* ---------------------------------------------------------------- compressed */

static gboolean
is_before(held a, held b) {
  if (a.key_ns != b.key_ns)
    return a.key_ns < b.key_ns;
  return a.row->index < b.row->index;
}

static void
heap_push(GArray *heap, held item) {
  g_array_append_val(heap, item);
  held *at = &g_array_index(heap, held, 0);
  guint i = heap->len - 1;
  for (; i > 0 && is_before(item, at[(i - 1) / 2]); i = (i - 1) / 2)
    at[i] = at[(i - 1) / 2];
  at[i] = item;
}

static oct_trace_request *
heap_pop(GArray *heap) {
  held *at = &g_array_index(heap, held, 0);
  oct_trace_request *top = at[0].row;
  guint n = heap->len - 1, i = 0;
  held last = at[n];
  for (guint child = 1; child < n; child = 2 * i + 1) {
    child += child + 1 < n && is_before(at[child + 1], at[child]);
    if (is_before(last, at[child]))
      break;
    at[i] = at[child];
    i = child;
  }
  at[i] = last;
  g_array_set_size(heap, n);
  return top;
}

static gint64
scaled(const oct_rows *rows, gint64 ns) {
  gint64 at = (gint64)llround((double)ns * rows->factor);
  return rows->warp != NULL ? oct_warp_at(rows->warp, at) : at;
}

/* No row that is still unread comes before this. */
static gint64
read_bound(const oct_rows *rows) {
  if (rows->ended)
    return G_MAXINT64;
  gint64 moved = scaled(rows, rows->read_ns);
  /* A later turn of a session that began long ago may move less than session starts do. */
  gboolean turns = oct_trace_get_facts(rows->copies[0].trace)->has_sessions;
  if (turns && rows->warp != NULL)
    return MIN(moved, rows->read_ns + rows->least_shift_ns);
  return turns ? MIN(moved, rows->read_ns) : moved;
}

/* The row's time after rescaling, and where it stands in the order. */
static held
moved(oct_rows *rows, copy *c, const oct_trace_request *row) {
  held item = {scaled(rows, rows->read_ns), oct_trace_request_copy(row)};
  gint64 session = (gint64)row->session;
  gint64 *start = row->session > 0 ? g_hash_table_lookup(c->starts, &session) : NULL;
  if (row->arrival_ns < 0) {
    if (start != NULL)
      item.key_ns = scaled(rows, *start);
    return item;
  }
  gint64 began = session_start(c, row);
  rows->read_ns = row->arrival_ns;
  gint64 start_ns = scaled(rows, began);
  rows->least_shift_ns = MIN(rows->least_shift_ns, start_ns - began);
  item.key_ns = item.row->arrival_ns = start_ns + (row->arrival_ns - began);
  return item;
}

static gboolean
next_compressed(oct_rows *rows, oct_trace_request *out, GError **error) {
  copy *c = &rows->copies[0];
  g_clear_pointer(&rows->given, oct_trace_request_free);
  while (rows->heap->len == 0 || g_array_index(rows->heap, held, 0).key_ns > read_bound(rows)) {
    GError *failed = NULL;
    oct_trace_request row;
    if (rows->ended)
      return FALSE;
    if (oct_trace_next(c->trace, &row, &failed)) {
      heap_push(rows->heap, moved(rows, c, &row));
      continue;
    }
    rows->ended = TRUE;
    if (failed != NULL) {
      g_propagate_error(error, failed);
      return FALSE;
    }
  }
  rows->given = heap_pop(rows->heap);
  *out = *rows->given;
  return TRUE;
}

static gboolean
next_timed(oct_rows *rows, oct_trace_request *out, guint64 *salt, GError **error) {
  *salt = 0;
  if (rows->factor == 0)
    return next_superposed(rows, out, salt, error);
  if (rows->factor == 1 && rows->warp == NULL)
    return oct_trace_next(rows->copies[0].trace, out, error);
  if (rows->copies[0].starts != NULL)
    return next_compressed(rows, out, error);
  if (!oct_trace_next(rows->copies[0].trace, out, error))
    return FALSE;
  if (out->arrival_ns > 0)
    out->arrival_ns = scaled(rows, out->arrival_ns);
  return TRUE;
}

static guint32
scaled_tokens(guint32 tokens, double scale) {
  return (guint32)CLAMP(floor(tokens * scale + 0.5), 1, G_MAXINT32);
}

/* Whether the row's session is kept. */
static gboolean
is_dealt(oct_rows *rows, const oct_trace_request *row) {
  gint64 session = (gint64)row->session;
  if (row->parent == 0) {
    rows->last_dealt = rows->deal(rows->deal_user, row);
    if (rows->last_dealt && session > 0)
      g_hash_table_add(rows->dealt, g_memdup2(&session, sizeof session));
  } else if (session > 0) {
    return g_hash_table_contains(rows->dealt, &session);
  }
  return rows->last_dealt; /* without a session's name a turn stands behind its start */
}

gboolean
oct_rows_next(oct_rows *rows, oct_trace_request *out, guint64 *salt, GError **error) {
  if (rows->kept_max > 0 && rows->n_kept == rows->kept_max)
    return FALSE;
  do {
    if (!next_timed(rows, out, salt, error))
      return FALSE;
  } while (rows->deal != NULL && !is_dealt(rows, out));
  rows->n_kept++;
  if (rows->output_scale > 0) {
    out->output_tokens = scaled_tokens(out->output_tokens, rows->output_scale);
    if (out->max_tokens > 0)
      out->max_tokens = scaled_tokens(out->max_tokens, rows->output_scale);
  }
  if (rows->prefix_share > 0) {
    out->n_hash_ids = (guint32)floor(out->n_hash_ids * MIN(rows->prefix_share, 1));
    out->n_output_hash_ids = 0;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- inspect */

const oct_trace_facts *
oct_rows_facts(const oct_rows *rows) {
  return rows->copies[0].trace != NULL ? oct_trace_get_facts(rows->copies[0].trace) : &rows->facts;
}

const char *
oct_rows_name(const oct_rows *rows) {
  return rows->path;
}

double
oct_rows_own_rate(const oct_rows *rows) {
  return rows->own_rate;
}

gboolean
oct_rows_find_own_rate(const oct_rows_options *options, double *rate, GError **error) {
  oct_rows_options asked = *options;
  asked.rate = 1; /* the own rate is looked for when another is asked for */
  asked.mode = OCT_RATE_COMPRESS;
  g_autoptr(oct_rows) rows = oct_rows_open(&asked, error);
  if (rows == NULL)
    return FALSE;
  *rate = oct_rows_own_rate(rows);
  return TRUE;
}
