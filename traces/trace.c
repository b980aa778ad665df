/* The front of every source: counts, checks what all traces promise, remembers the first error.
 * The reader of files is traces/reader.c, the generators are traces/gen.c. */
#include "traces/trace.h"

#include <string.h>

#include "engine/base/assert.h"
#include "traces/source.h"

#define QUANTISED_TICK_NS 100000000 /* 0.1 s */

GQuark
oct_trace_error_quark(void) {
  return g_quark_from_static_string("oct-trace-error-quark");
}

struct oct_trace {
  char *name;
  const oct_trace_source_ops *ops;
  void *source;
  oct_trace_facts facts;
  guint64 limit;
  gboolean has_open_roots;
  gboolean block_size_varies;
  GError *failed; /* the first error; every later call repeats it */
};

static const char *const format_names[] = {
    [OCT_TRACE_FORMAT_AUTO] = "auto",           [OCT_TRACE_FORMAT_OCTET] = "octet",
    [OCT_TRACE_FORMAT_AZURE] = "azure",         [OCT_TRACE_FORMAT_MOONCAKE] = "mooncake",
    [OCT_TRACE_FORMAT_TIMED] = "timed",         [OCT_TRACE_FORMAT_BAILIAN] = "bailian",
    [OCT_TRACE_FORMAT_BURSTGPT] = "burstgpt",   [OCT_TRACE_FORMAT_VIDUR] = "vidur",
    [OCT_TRACE_FORMAT_GENERATED] = "generated",
};

oct_trace *
oct_trace_new(const char *name, const oct_trace_source_ops *ops, void *source,
              const oct_trace_facts *facts, guint64 limit) {
  oct_trace *trace = g_new0(oct_trace, 1);
  trace->name = g_strdup(name);
  trace->ops = ops;
  trace->source = source;
  trace->facts = *facts;
  trace->limit = limit;
  return trace;
}

void
oct_trace_close(oct_trace *trace) {
  if (trace == NULL)
    return;
  trace->ops->free(trace->source);
  g_clear_error(&trace->failed);
  g_free(trace->name);
  g_free(trace);
}

/* What the request shows of the trace as a whole. */
static void
note(oct_trace *trace, const oct_trace_request *r) {
  oct_trace_facts *f = &trace->facts;
  if (r->arrival_ns >= 0) {
    if (!trace->has_open_roots)
      f->first_arrival_ns = r->arrival_ns;
    f->last_arrival_ns = r->arrival_ns;
    f->n_timed++;
    trace->has_open_roots = TRUE;
  } else if (r->parent > 0) {
    f->has_dependents = TRUE;
  } else {
    f->has_closed_loop = TRUE;
  }
  if (r->n_hash_ids > 0 || r->n_output_hash_ids > 0) {
    trace->block_size_varies |= f->has_hash_ids && f->block_size != r->block_size;
    f->block_size = trace->block_size_varies ? 0 : r->block_size;
    f->has_hash_ids = TRUE;
  }
  f->has_sessions |= r->session != 0;
  f->has_priorities |= r->priority != 0;
  f->has_classes |= r->class_name[0] != 0;
  f->has_max_tokens |= r->max_tokens != 0;
  f->n_requests++;
  f->quantised = f->tick_ns >= QUANTISED_TICK_NS && f->n_distinct_arrivals > 1 &&
                 f->n_timed >= 2 * f->n_distinct_arrivals;
}

static gboolean
check_arrival(const oct_trace *trace, const oct_trace_request *r, GError **error) {
  if (r->arrival_ns < 0 && r->parent > 0)
    return TRUE;
  if (r->arrival_ns >= 0 ? !trace->facts.has_closed_loop : !trace->has_open_roots)
    return TRUE;
  g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_VALUE,
              "%s:%" G_GUINT64_FORMAT ": the row has %s arrival time, the rows before have %s: a "
              "trace is open loop or closed loop, not both",
              trace->name, r->line, r->arrival_ns >= 0 ? "an" : "no",
              r->arrival_ns >= 0 ? "none" : "one");
  return FALSE;
}

gboolean
oct_trace_next(oct_trace *trace, oct_trace_request *out, GError **error) {
  if (trace->failed == NULL) {
    if (trace->limit > 0 && trace->facts.n_requests == trace->limit)
      return FALSE;
    memset(out, 0, sizeof *out);
    out->class_name = "";
    if (trace->ops->next(trace->source, &trace->facts, out, &trace->failed) &&
        check_arrival(trace, out, &trace->failed)) {
      out->index = trace->facts.n_requests;
      oct_assert(out->parent <= out->index);
      note(trace, out);
      return TRUE;
    }
    if (trace->failed == NULL)
      return FALSE;
  }
  if (error != NULL)
    *error = g_error_copy(trace->failed);
  return FALSE;
}

const oct_trace_facts *
oct_trace_get_facts(const oct_trace *trace) {
  return &trace->facts;
}

const char *
oct_trace_get_name(const oct_trace *trace) {
  return trace->name;
}

const char *
oct_trace_format_name(oct_trace_format format) {
  oct_assert((gsize)format < G_N_ELEMENTS(format_names));
  return format_names[format];
}

gboolean
oct_trace_format_from_name(const char *name, oct_trace_format *out, GError **error) {
  for (gsize i = 0; i < OCT_TRACE_FORMAT_GENERATED; i++)
    if (strcmp(name, format_names[i]) == 0) {
      *out = (oct_trace_format)i;
      return TRUE;
    }
  g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION,
              "trace format \"%s\" is unknown: auto, octet, azure, mooncake, timed, bailian, "
              "burstgpt or vidur",
              name);
  return FALSE;
}

oct_trace_request *
oct_trace_request_copy(const oct_trace_request *request) {
  /* One block: the record, then both arrays of ids. */
  gsize n = (gsize)request->n_hash_ids + request->n_output_hash_ids;
  oct_trace_request *copy = g_malloc(sizeof *copy + n * sizeof(guint64));
  guint64 *ids = (guint64 *)(copy + 1);
  *copy = *request;
  copy->hash_ids = ids;
  copy->output_hash_ids = ids + request->n_hash_ids;
  if (request->n_hash_ids > 0)
    memcpy(ids, request->hash_ids, request->n_hash_ids * sizeof *ids);
  if (request->n_output_hash_ids > 0)
    memcpy(ids + request->n_hash_ids, request->output_hash_ids,
           request->n_output_hash_ids * sizeof *ids);
  return copy;
}

void
oct_trace_request_free(oct_trace_request *request) {
  g_free(request);
}
