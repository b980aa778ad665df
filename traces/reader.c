/* Files as a source of requests.
 *
 *   lines -> parse -> sort (sort_window > 0) -> spread (spread) -> link parents -> caller
 *
 * Each stage pulls from the one before. Without sorting and spreading one row is reused for the
 * whole file. A row that waits in a window owns its ids.
 *
 * Invariants: rows leave the sort stage in order of arrival, or the read fails; the spread stage
 * never moves a row past the next recorded time, so order survives it; parents are looked up as
 * rows leave, so that their numbers are those the caller sees.
 */
#include <string.h>

#include "traces/gen.h"
#include "traces/idmap.h"
#include "traces/json.h"
#include "traces/lines.h"
#include "traces/parser.h"
#include "traces/source.h"

typedef struct reader {
  oct_lines *lines;
  oct_trace_options options;
  oct_trace_parser parser;
  char *pending; /* the first line, read to know the format */
  gsize pending_size;
  gboolean at_end; /* of the lines */

  oct_trace_row *row; /* the one lent to the caller */
  GPtrArray *heap;    /* sort stage: rows by (sort_ns, sequence), smallest first */
  oct_idmap *roots;   /* sort stage: session -> arrival of its last row with a time */
  guint64 latest_sequence;
  gboolean has_base;
  gint64 base_ns;    /* what rebasing subtracts */
  gint64 ordered_ns; /* arrival of the last row that left the sort stage; -1: none */

  GQueue group;        /* spread stage: rows of one recorded time, those without a time between */
  GQueue ready;        /* spread stage: rows with their final time */
  gboolean group_done; /* the stage before has ended */

  oct_idmap *last_of;    /* session or chat -> its last index */
  oct_idmap *session_of; /* chat -> session */
} reader;

/* --- parse ------------------------------------------------------------------------------------ */

static void
reset_row(oct_trace_row *row) {
  guint64 *ids = row->ids;
  gsize capacity = row->ids_capacity;
  memset(row, 0, sizeof *row);
  row->ids = ids;
  row->ids_capacity = capacity;
  row->request.class_name = "";
  row->request.arrival_ns = -1;
}

/* The next line that is not blank: the one kept from opening, else from the file. */
static gboolean
next_line(reader *r, char **line, gsize *size, GError **error) {
  if (r->pending != NULL) {
    *line = r->pending;
    *size = r->pending_size;
    return TRUE;
  }
  while (!r->at_end) {
    if (!oct_lines_next(r->lines, line, size, error)) {
      r->at_end = TRUE;
      return FALSE;
    }
    if ((*line)[strspn(*line, " \t")] != 0)
      return TRUE;
  }
  return FALSE;
}

static gboolean
parse_next(reader *r, oct_trace_facts *facts, oct_trace_row *row, GError **error) {
  char *line;
  gsize size;
  while (next_line(r, &line, &size, error)) {
    reset_row(row);
    r->parser.facts = facts;
    r->parser.line = oct_lines_number(r->lines);
    oct_trace_parsed parsed = r->parser.ops->parse(&r->parser, line, size, row, error);
    g_clear_pointer(&r->pending, g_free);
    if (parsed == OCT_TRACE_PARSED_ERROR)
      return FALSE;
    facts->n_skipped += parsed == OCT_TRACE_PARSED_SKIPPED;
    if (parsed != OCT_TRACE_PARSED_REQUEST)
      continue;
    row->request.line = r->parser.line;
    row->sequence = r->parser.n_rows++;
    facts->block_size_inferred |= r->parser.inferred_block_size > 0;
    return TRUE;
  }
  return FALSE;
}

/* --- sort ------------------------------------------------------------------------------------- */

static gboolean
before(const oct_trace_row *a, const oct_trace_row *b) {
  return a->sort_ns != b->sort_ns ? a->sort_ns < b->sort_ns : a->sequence < b->sequence;
}

static void
heap_push(GPtrArray *heap, oct_trace_row *row) {
  g_ptr_array_add(heap, row);
  guint i = heap->len - 1;
  while (i > 0 && before(row, heap->pdata[(i - 1) / 2])) {
    heap->pdata[i] = heap->pdata[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  heap->pdata[i] = row;
}

static oct_trace_row *
heap_pop(GPtrArray *heap) {
  oct_trace_row *top = heap->pdata[0];
  oct_trace_row *row = heap->pdata[heap->len - 1];
  g_ptr_array_steal_index(heap, heap->len - 1);
  if (heap->len == 0)
    return top;
  guint i = 0;
  for (guint child = 1; child < heap->len; child = 2 * i + 1) {
    if (child + 1 < heap->len && before(heap->pdata[child + 1], heap->pdata[child]))
      child++;
    if (!before(heap->pdata[child], row))
      break;
    heap->pdata[i] = heap->pdata[child];
    i = child;
  }
  heap->pdata[i] = row;
  return top;
}

/* A dependent turn sorts with the last row of its session that has a time. */
static void
set_sort_key(reader *r, oct_trace_row *row) {
  guint64 session = row->link == OCT_TRACE_LINK_SESSION ? row->request.session : 0;
  guint64 root = 0;
  row->sort_ns = row->request.arrival_ns;
  if (session == 0)
    return;
  if (row->sort_ns >= 0)
    oct_idmap_set(r->roots, session, (guint64)row->sort_ns);
  else if (oct_idmap_get(r->roots, session, &root))
    row->sort_ns = (gint64)root;
}

/* The next row in order of arrival, owned by the caller; NULL at the end or with error. Without a
 * window it is `r->row` itself, taken back into use. */
static oct_trace_row *
sort_next(reader *r, oct_trace_facts *facts, GError **error) {
  if (r->options.sort_window == 0) {
    oct_trace_row *row = r->row != NULL ? g_steal_pointer(&r->row) : oct_trace_row_new();
    if (parse_next(r, facts, row, error))
      return row;
    oct_trace_row_free(row);
    return NULL;
  }
  while (r->heap->len <= r->options.sort_window) {
    oct_trace_row *row = oct_trace_row_new();
    GError *failed = NULL;
    if (!parse_next(r, facts, row, &failed)) {
      oct_trace_row_free(row);
      if (failed == NULL)
        break;
      g_propagate_error(error, failed);
      return NULL;
    }
    set_sort_key(r, row);
    heap_push(r->heap, row);
  }
  if (r->heap->len == 0)
    return NULL;
  oct_trace_row *row = heap_pop(r->heap);
  facts->n_sorted += row->sequence < r->latest_sequence;
  r->latest_sequence = MAX(r->latest_sequence, row->sequence);
  return row;
}

/* --- order ------------------------------------------------------------------------------------ */

static gboolean
fail_order(reader *r, const oct_trace_row *row, GError **error) {
  gint64 back_ns = r->ordered_ns - row->request.arrival_ns;
  r->parser.line = row->request.line;
  oct_trace_set_error(error, &r->parser, OCT_TRACE_ERROR_VALUE, NULL, NULL,
                      "the row arrives %.6f s before the one it follows: %s (--sort-window N)",
                      (double)back_ns / 1e9,
                      r->options.sort_window > 0
                          ? "the window that puts rows in order is too small"
                          : "rows must be in order of arrival, or be sorted while reading");
  return FALSE;
}

/* Rebases the time, checks the order, and keeps count of distinct times. */
static gboolean
put_in_order(reader *r, oct_trace_facts *facts, oct_trace_row *row, GError **error) {
  gint64 at_ns = row->request.arrival_ns;
  if (at_ns < 0)
    return TRUE;
  if (!r->has_base) {
    r->base_ns = r->parser.ops->rebase ? at_ns : 0;
    r->has_base = TRUE;
  }
  at_ns -= r->base_ns;
  row->request.arrival_ns = at_ns;
  if (at_ns < MAX(r->ordered_ns, 0))
    return fail_order(r, row, error);
  if (at_ns > OCT_TRACE_TIME_MAX_NS) {
    r->parser.line = row->request.line;
    oct_trace_set_error(error, &r->parser, OCT_TRACE_ERROR_LIMIT, NULL, NULL,
                        "the row arrives more than 73 years after the first, the limit");
    return FALSE;
  }
  if (r->ordered_ns < 0 || at_ns > r->ordered_ns) {
    gint64 gap_ns = at_ns - r->ordered_ns;
    if (r->ordered_ns >= 0 && (facts->tick_ns == 0 || gap_ns < facts->tick_ns))
      facts->tick_ns = gap_ns;
    facts->n_distinct_arrivals++;
  }
  r->ordered_ns = at_ns;
  return TRUE;
}

static oct_trace_row *
ordered_next(reader *r, oct_trace_facts *facts, GError **error) {
  oct_trace_row *row = sort_next(r, facts, error);
  if (row != NULL && !put_in_order(r, facts, row, error))
    g_clear_pointer(&row, oct_trace_row_free);
  return row;
}

/* --- spread ----------------------------------------------------------------------------------- */

/* Gives the rows of the group their place in the tick, which ends at the next recorded time
 * `next_ns` (-1: there is none) or earlier. */
static void
close_group(reader *r, const oct_trace_facts *facts, gint64 next_ns) {
  gint64 tick_ns = r->options.spread_tick_ns > 0 ? r->options.spread_tick_ns : facts->tick_ns;
  gint64 n_timed = 0, i = 0;
  for (GList *at = r->group.head; at != NULL; at = at->next)
    n_timed += ((oct_trace_row *)at->data)->request.arrival_ns >= 0;
  oct_trace_row *row;
  while ((row = g_queue_pop_head(&r->group)) != NULL) {
    gint64 *arrival_ns = &row->request.arrival_ns;
    if (*arrival_ns >= 0) {
      gint64 gap_ns = next_ns >= 0 ? next_ns - *arrival_ns : tick_ns;
      /* Recorded ticks jitter by some milliseconds: half a tick more is still the same tick. */
      gint64 span_ns = gap_ns <= tick_ns + tick_ns / 2 ? gap_ns : tick_ns;
      *arrival_ns += (gint64)((__int128)span_ns * i++ / n_timed);
    }
    g_queue_push_tail(&r->ready, row);
  }
}

/* Fills `ready` by one group. FALSE with error. */
static gboolean
spread_group(reader *r, oct_trace_facts *facts, GError **error) {
  GError *failed = NULL;
  gint64 group_ns = -1;
  for (GList *at = r->group.head; at != NULL; at = at->next)
    group_ns = MAX(group_ns, ((oct_trace_row *)at->data)->request.arrival_ns);
  while (!r->group_done) {
    oct_trace_row *row = ordered_next(r, facts, &failed);
    if (row == NULL) {
      r->group_done = TRUE;
      if (failed != NULL) {
        g_propagate_error(error, failed);
        return FALSE;
      }
      break;
    }
    gint64 at_ns = row->request.arrival_ns;
    if (group_ns < 0 && at_ns < 0) {
      g_queue_push_tail(&r->ready, row);
      return TRUE;
    }
    if (group_ns >= 0 && at_ns > group_ns) {
      close_group(r, facts, at_ns);
      g_queue_push_tail(&r->group, row);
      return TRUE;
    }
    group_ns = MAX(group_ns, at_ns);
    g_queue_push_tail(&r->group, row);
    if (r->group.length > OCT_TRACE_WINDOW_MAX) {
      r->parser.line = row->request.line;
      oct_trace_set_error(error, &r->parser, OCT_TRACE_ERROR_LIMIT, NULL, NULL,
                          "more than %u rows at one time, the limit for spreading",
                          OCT_TRACE_WINDOW_MAX);
      return FALSE;
    }
  }
  close_group(r, facts, -1);
  return TRUE;
}

static oct_trace_row *
spread_next(reader *r, oct_trace_facts *facts, GError **error) {
  if (!r->options.spread)
    return ordered_next(r, facts, error);
  if (g_queue_is_empty(&r->ready) && !spread_group(r, facts, error))
    return NULL;
  return g_queue_pop_head(&r->ready);
}

/* --- link ------------------------------------------------------------------------------------- */

/* Sets parent and session from what came before, and remembers this row for what follows. */
static void
link_row(reader *r, const oct_trace_facts *facts, oct_trace_row *row) {
  oct_trace_request *q = &row->request;
  guint64 last = 0;
  if (row->link == OCT_TRACE_LINK_SESSION) {
    if (oct_idmap_get(r->last_of, q->session, &last))
      q->parent = last + 1;
    oct_idmap_set(r->last_of, q->session, facts->n_requests);
  } else if (row->link == OCT_TRACE_LINK_CHAT) {
    q->session = row->chat + 1;
    if (row->has_parent_chat && oct_idmap_get(r->last_of, row->parent_chat, &last)) {
      q->parent = last + 1;
      oct_idmap_get(r->session_of, row->parent_chat, &q->session);
    }
    oct_idmap_set(r->last_of, row->chat, facts->n_requests);
    oct_idmap_set(r->session_of, row->chat, q->session);
  }
}

static gboolean
reader_next(void *source, oct_trace_facts *facts, oct_trace_request *out, GError **error) {
  reader *r = source;
  oct_trace_row *row = spread_next(r, facts, error);
  if (row == NULL)
    return FALSE;
  /* Only without windows is the lent row still here to be reused; see sort_next(). */
  oct_trace_row_free(r->row);
  r->row = row;
  link_row(r, facts, row);
  *out = row->request;
  out->hash_ids = row->ids;
  out->output_hash_ids = row->ids != NULL ? row->ids + out->n_hash_ids : NULL;
  return TRUE;
}

/* --- life cycle ------------------------------------------------------------------------------- */

static void
free_row(gpointer row) {
  oct_trace_row_free(row);
}

static void
reader_free(void *source) {
  reader *r = source;
  oct_lines_free(r->lines);
  oct_trace_row_free(r->row);
  g_ptr_array_free(r->heap, TRUE);
  g_queue_clear_full(&r->group, free_row);
  g_queue_clear_full(&r->ready, free_row);
  oct_idmap_free(r->roots);
  oct_idmap_free(r->last_of);
  oct_idmap_free(r->session_of);
  g_hash_table_destroy(r->parser.classes);
  g_free(r->pending);
  g_free(r);
}

static const oct_trace_source_ops reader_ops = {.next = reader_next, .free = reader_free};

static const oct_trace_format_ops *
ops_of(oct_trace_format format) {
  static const oct_trace_format_ops *const all[] = {
      &oct_trace_octet_ops, &oct_trace_azure_ops,   &oct_trace_mooncake_ops,
      &oct_trace_timed_ops, &oct_trace_bailian_ops, &oct_trace_burstgpt_ops,
      &oct_trace_vidur_ops,
  };
  for (gsize i = 0; i < G_N_ELEMENTS(all); i++)
    if (all[i]->format == format)
      return all[i];
  return NULL;
}

static const oct_trace_format_ops *
detect_json(const oct_trace_parser *parser, const char *line, gsize size, GError **error) {
  g_autoptr(json_t) object = oct_trace_json_line(parser, line, size, error);
  if (object == NULL)
    return NULL;
  if (json_object_get(object, "octet_trace") != NULL ||
      json_object_get(object, "input_tokens") != NULL)
    return &oct_trace_octet_ops;
  if (json_object_get(object, "chat_id") != NULL)
    return &oct_trace_bailian_ops;
  if (json_object_get(object, "input_length") != NULL)
    return &oct_trace_mooncake_ops;
  oct_trace_set_error(error, parser, OCT_TRACE_ERROR_FORMAT, NULL, line,
                      "no trace format has these fields (input_tokens: octet, chat_id: bailian, "
                      "input_length: mooncake)");
  return NULL;
}

const oct_trace_format_ops *
oct_trace_detect(oct_trace_parser *parser, const char *line, gsize size, GError **error) {
  if (line[strspn(line, " \t")] == '{')
    return detect_json(parser, line, size, error);
  if (oct_trace_csv_has(line, "TIMESTAMP|ContextTokens|GeneratedTokens"))
    return &oct_trace_azure_ops;
  if (oct_trace_csv_has(line, "Timestamp|Request tokens|Response tokens"))
    return &oct_trace_burstgpt_ops;
  if (oct_trace_csv_has(line, "num_prefill_tokens|num_decode_tokens"))
    return &oct_trace_vidur_ops;
  oct_trace_set_error(error, parser, OCT_TRACE_ERROR_FORMAT, NULL, line,
                      "the first line is neither JSON nor the CSV header of a known trace format");
  return NULL;
}

/* Reads the first line and picks the format. */
static gboolean
start(reader *r, GError **error) {
  char *line;
  gsize size;
  GError *failed = NULL;
  if (!next_line(r, &line, &size, &failed)) {
    if (failed == NULL)
      g_set_error(&failed, OCT_TRACE_ERROR, OCT_TRACE_ERROR_FORMAT, "%s: the trace is empty",
                  oct_lines_name(r->lines));
    g_propagate_error(error, failed);
    return FALSE;
  }
  r->pending = g_strndup(line, size);
  r->pending_size = size;
  r->parser.line = oct_lines_number(r->lines);
  r->parser.ops = r->options.format == OCT_TRACE_FORMAT_AUTO
                      ? oct_trace_detect(&r->parser, line, size, error)
                      : ops_of(r->options.format);
  if (r->parser.ops == NULL)
    return FALSE;
  r->parser.time_unit_ns =
      r->options.time_unit_ns > 0 ? r->options.time_unit_ns : r->parser.ops->time_unit_ns;
  return TRUE;
}

/* A header line of Octet's format speaks before the first request does. */
static gboolean
read_header_line(reader *r, oct_trace_facts *facts, GError **error) {
  if (r->parser.ops != &oct_trace_octet_ops || strstr(r->pending, "\"octet_trace\"") == NULL)
    return TRUE;
  g_autofree char *line = g_steal_pointer(&r->pending);
  oct_trace_row *row = oct_trace_row_new();
  r->parser.facts = facts;
  oct_trace_parsed parsed = r->parser.ops->parse(&r->parser, line, r->pending_size, row, error);
  oct_trace_row_free(row);
  if (parsed == OCT_TRACE_PARSED_REQUEST) /* a string of that text in a row: leave it to reading */
    r->pending = g_steal_pointer(&line);
  return parsed != OCT_TRACE_PARSED_ERROR;
}

static gboolean
check_options(const oct_trace_options *o, GError **error) {
  const char *what = NULL;
  if (o->format == OCT_TRACE_FORMAT_GENERATED)
    what = "a generated trace has no file";
  else if (o->block_size > OCT_TRACE_TOKENS_MAX)
    what = "the hash block size is above 2^30 tokens";
  else if (o->sort_window > OCT_TRACE_WINDOW_MAX)
    what = "the sort window is above 65536 rows";
  else if (o->time_unit_ns < 0 || o->spread_tick_ns < 0)
    what = "a time unit and a tick are positive";
  if (what != NULL)
    g_set_error_literal(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION, what);
  return what == NULL;
}

/* Takes `lines`. */
static oct_trace *
open_lines(oct_lines *lines, const oct_trace_options *options, GError **error) {
  reader *r = g_new0(reader, 1);
  r->lines = lines;
  if (options != NULL)
    r->options = *options;
  r->parser.name = oct_lines_name(lines);
  r->parser.options = &r->options;
  r->parser.classes = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  r->heap = g_ptr_array_new_with_free_func(free_row);
  r->roots = oct_idmap_new();
  r->last_of = oct_idmap_new();
  r->session_of = oct_idmap_new();
  r->ordered_ns = -1;
  g_queue_init(&r->group);
  g_queue_init(&r->ready);
  oct_trace_facts facts = {.concurrency = r->options.concurrency, .spread = r->options.spread};
  if (!check_options(&r->options, error) || !start(r, error) ||
      !read_header_line(r, &facts, error)) {
    reader_free(r);
    return NULL;
  }
  facts.format = r->parser.ops->format;
  return oct_trace_new(r->parser.name, &reader_ops, r, &facts, r->options.limit);
}

/* "gen:…": a generator in the place of a file. Of the options only the limit has a meaning. */
static oct_trace *
open_generated(const char *text, const oct_trace_options *options, GError **error) {
  g_auto(oct_trace_gen_spec) spec;
  oct_trace_gen_spec_init(&spec);
  if (!oct_trace_gen_parse(&spec, text, error))
    return NULL;
  if (options != NULL && options->limit > 0 &&
      (spec.n_requests == 0 || options->limit < spec.n_requests))
    spec.n_requests = options->limit;
  return oct_trace_gen_open(&spec, error);
}

oct_trace *
oct_trace_open(const char *path, const oct_trace_options *options, GError **error) {
  if (g_str_has_prefix(path, "gen:"))
    return open_generated(path + 4, options, error);
  oct_lines *lines = oct_lines_open(path, error);
  return lines != NULL ? open_lines(lines, options, error) : NULL;
}

oct_trace *
oct_trace_open_bytes(const char *name, const void *data, gsize size,
                     const oct_trace_options *options, GError **error) {
  return open_lines(oct_lines_over(name, data, size), options, error);
}
