/* A request trace: who asked when, with how many tokens, sharing which prefix.
 *
 * One record for every source: the readers of recorded formats (this header), the generators
 * (traces/gen.h) and Octet's own JSONL all yield oct_trace_request through oct_trace_next().
 * Reading is a stream: memory holds one line (a window of lines with `sort_window` or `spread`), a
 * few bytes per session in formats that link turns, never the file. No rewinding.
 *
 * Spreading. Some recorders round times to ticks (Mooncake's conversation trace: 3 s), which a
 * literal replay turns into bursts. With `spread`, k rows of one recorded time T arrive at T + i/k
 * of the tick, i = 0 … k - 1, in file order; facts.spread remembers it.
 *
 * Order. Rows come in the order of arrival. A row that arrives before the one before it is an
 * error that says so, unless `sort_window` lets the reader put a bounded number of rows in order.
 *
 * Kinds of arrival (arrival_ns, parent):
 *   >= 0            open loop: at that time after the start of the trace, whatever happened before;
 *                   `parent` may still name the previous turn.
 *   -1, parent > 0  dependent turn: think_ns after the end of request parent - 1. It comes later in
 *                   the stream than its parent; generators place it right behind, before the next
 *                   session, so that a consumer holds the turns of live sessions only. A consumer
 *                   that meets it when it is overdue sends it at once.
 *   -1, parent 0    closed loop: think_ns after a slot gets free; slots are facts.concurrency (0:
 *                   not stated, ask the user). All are free at the start. A session (session > 0,
 *                   its rows together) holds its slot from its first turn to the end of its last;
 *                   a row without session holds it until it ends.
 *
 * Prefix content. hash_ids[k] names the content of tokens [k, k+1) * block_size of the prompt; the
 * last block may be partial (ceil) or left out (floor), both occur. Equal ids in equal places mean
 * equal tokens. n_hash_ids may be smaller than the prompt: the rest is private to the request.
 * block_size 0: lengths only, prefix reuse is not modelled. output_hash_ids continue hash_ids
 * over the prompt followed by the output, starting at block floor(input_tokens / block_size): a
 * partial last prompt block is named again there, as the full block it becomes. traces/blocks.h
 * maps blocks to KV pages.
 *
 * One thread at a time per reader. All times are int64 nanoseconds.
 */
#ifndef OCT_TRACES_TRACE_H
#define OCT_TRACES_TRACE_H

#include <glib.h>

#define OCT_TRACE_LINE_BYTES_MAX  (16u << 20) /* a longer line is an error, not an allocation */
#define OCT_TRACE_TOKENS_MAX      (1u << 30)  /* per request, input and output each */
#define OCT_TRACE_TIME_MAX_NS     (G_MAXINT64 / 4) /* 73 years; later arrivals are an error */
#define OCT_TRACE_CLASSES_MAX     4096u            /* distinct class names in one trace */
#define OCT_TRACE_CLASS_BYTES_MAX 64u
#define OCT_TRACE_WINDOW_MAX      (1u << 16) /* rows held for sorting or spreading */

#define OCT_TRACE_ERROR (oct_trace_error_quark())
GQuark oct_trace_error_quark(void);

typedef enum oct_trace_error {
  OCT_TRACE_ERROR_IO,     /* the file cannot be opened or read */
  OCT_TRACE_ERROR_FORMAT, /* format unknown or not told by the content */
  OCT_TRACE_ERROR_SYNTAX, /* a line is not what its format says */
  OCT_TRACE_ERROR_VALUE,  /* a field is missing or out of range, or rows out of order */
  OCT_TRACE_ERROR_LIMIT,  /* one of the limits above */
  OCT_TRACE_ERROR_OPTION, /* an option or generator parameter makes no sense */
} oct_trace_error;

typedef enum oct_trace_format {
  OCT_TRACE_FORMAT_AUTO,
  OCT_TRACE_FORMAT_OCTET,    /* Octet's JSONL (traces/write.h has the fields) */
  OCT_TRACE_FORMAT_AZURE,    /* CSV TIMESTAMP,ContextTokens,GeneratedTokens (2023 and 2024) */
  OCT_TRACE_FORMAT_MOONCAKE, /* JSONL, ms, 512-token hash_ids; AIPerf's session_id and delay too */
  OCT_TRACE_FORMAT_TIMED,    /* vllm bench timed_trace: Mooncake's fields in seconds */
  OCT_TRACE_FORMAT_BAILIAN,  /* JSONL, seconds, 16-token hash_ids, chat_id, parent_chat_id */
  OCT_TRACE_FORMAT_BURSTGPT, /* CSV Timestamp,…,Request tokens,Response tokens,… (seconds) */
  OCT_TRACE_FORMAT_VIDUR,    /* CSV arrived_at,num_prefill_tokens,num_decode_tokens (seconds) */
  OCT_TRACE_FORMAT_GENERATED /* no file: traces/gen.h */
} oct_trace_format;

typedef struct oct_trace_request {
  gint64 arrival_ns; /* from the start of the trace; -1: see "Kinds of arrival" */
  gint64 think_ns;   /* meaningful when arrival_ns is -1 */
  guint32 input_tokens;
  guint32 output_tokens; /* the true length; the scheduler must not see it */
  guint32 max_tokens;    /* what the client allowed; 0: not stated */
  guint32 block_size;    /* tokens per hash block; 0: no prefix ids */
  guint32 n_hash_ids;
  guint32 n_output_hash_ids;
  const guint64 *hash_ids;        /* [n_hash_ids], borrowed until the next oct_trace_next() */
  const guint64 *output_hash_ids; /* [n_output_hash_ids], same life */
  guint64 session;                /* 0: none */
  guint64 parent;                 /* index of the previous turn's request + 1; 0: none */
  guint64 index;                  /* 0, 1, 2 … in the order of oct_trace_next() */
  guint64 line;                   /* line in the file, from 1; generated: index + 1 */
  gint32 priority;                /* lower is served first, 0 the default (as vLLM) */
  const char *class_name;         /* "" when none; lives as long as the reader */
} oct_trace_request;

typedef struct oct_trace_options {
  oct_trace_format format; /* AUTO: from the first line */
  gboolean spread;         /* spread the rows of one tick evenly over that tick */
  gint64 spread_tick_ns;   /* length of the tick; 0: the smallest gap between ticks so far */
  guint32 block_size;      /* tokens per hash block, overrides; 0: from the format and the rows */
  gint64 time_unit_ns;     /* of numeric times, overrides; 0: the format's */
  guint32 sort_window;     /* rows that may be held to put arrivals in order; 0: none */
  guint32 concurrency;     /* for rows without arrival; 0: what the trace states */
  guint64 limit;           /* stop after so many rows; 0: all */
} oct_trace_options;

/* What is known of a trace. Grows while reading; complete after the last row. */
typedef struct oct_trace_facts {
  oct_trace_format format;
  guint64 n_requests; /* yielded so far */
  guint64 n_skipped;  /* rows with no input or no output token (failed requests in the log) */
  guint64 n_sorted;   /* rows that came late and were put in order */
  guint64 n_timed;    /* yielded with an arrival time of their own */
  guint64 n_distinct_arrivals;
  gint64 first_arrival_ns, last_arrival_ns; /* of rows with a time; 0, 0 when none */
  gint64 tick_ns;     /* smallest gap between distinct recorded arrivals; 0: fewer than two */
  gboolean quantised; /* tick >= 100 ms and on average two or more timed rows per arrival */
  gboolean spread;    /* arrivals were spread over ticks: reports must say so */
  gboolean has_hash_ids, has_sessions, has_dependents, has_closed_loop, has_priorities;
  gboolean has_classes, has_max_tokens;
  gboolean block_size_inferred; /* from counts and lengths, not stated */
  guint32 block_size;           /* of the rows so far; 0: none, or it varies by row */
  guint32 concurrency;          /* closed-loop slots; 0: not stated */
} oct_trace_facts;

typedef struct oct_trace oct_trace; /* a source of requests: a file, standard input, a generator */

/* Life cycle. */
void oct_trace_options_init(oct_trace_options *options);
/* Sets one option from text, as commands name it: format NAME, spread auto|SECONDS, hash-block-size
 * N, time-unit ns|us|ms|s, sort-window N, concurrency N, limit N. */
gboolean oct_trace_options_set(oct_trace_options *options, const char *key, const char *value,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Opens `path` and reads as far as the first data line to know the format. "-" is standard input;
 * "gen:PRESET,key=value,…" is no file but a generator (traces/gen.h), of which the limit is taken.
 * `options` may be NULL (all defaults). NULL with error: OCT_TRACE_ERROR. */
oct_trace *oct_trace_open(const char *path, const oct_trace_options *options,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same over `size` bytes at `data`, borrowed until oct_trace_close(); `name` is for errors. */
oct_trace *oct_trace_open_bytes(const char *name, const void *data, gsize size,
                                const oct_trace_options *options,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_trace_close(oct_trace *trace); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_trace, oct_trace_close)

/* Use. TRUE: *out is the next request. FALSE: the end (no error set), or an error that carries
 * file, line, field and value; after an error every further call fails with the same error. */
gboolean oct_trace_next(oct_trace *trace, oct_trace_request *out,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Inspect. */
const oct_trace_facts *oct_trace_get_facts(const oct_trace *trace);
const char *oct_trace_get_name(const oct_trace *trace); /* the path, or the generator's name */
const char *oct_trace_format_name(oct_trace_format format);
/* FALSE with error when `name` is no format ("auto" is one). */
gboolean oct_trace_format_from_name(const char *name, oct_trace_format *out,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* An owned copy, ids included, that outlives the next read; class_name still belongs to the
 * reader. Freed by oct_trace_request_free(). */
oct_trace_request *oct_trace_request_copy(const oct_trace_request *request);
void oct_trace_request_free(oct_trace_request *request); /* accepts NULL */

#endif
