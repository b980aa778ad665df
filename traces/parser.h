/* What the formats of traces/ share; internal to this folder.
 *
 * A format turns one line into one oct_trace_row. traces/trace.c owns everything that spans rows:
 * order, spreading, parents, facts. A parser never keeps a line.
 */
#ifndef OCT_TRACES_PARSER_H
#define OCT_TRACES_PARSER_H

#include <glib.h>

#include "traces/trace.h"

/* How a row names its previous turn. */
typedef enum oct_trace_link {
  OCT_TRACE_LINK_NONE,
  OCT_TRACE_LINK_INDEX,   /* request.parent is final */
  OCT_TRACE_LINK_SESSION, /* the last row of request.session before this one */
  OCT_TRACE_LINK_CHAT,    /* the row whose chat is `parent_chat`; request.session comes from it */
} oct_trace_link;

/* A request on its way from the line to the caller; the ids belong to the row. */
typedef struct oct_trace_row {
  oct_trace_request request; /* arrival_ns: as recorded, >= 0, before rebasing; -1: none */
  guint64 *ids;              /* [ids_capacity]: hash_ids, then output_hash_ids */
  gsize ids_capacity;
  oct_trace_link link;
  gboolean has_parent_chat;
  guint64 chat, parent_chat;
  gint64 sort_ns;   /* arrival, or that of the session's root */
  guint64 sequence; /* order in the file */
} oct_trace_row;

oct_trace_row *oct_trace_row_new(void);
void oct_trace_row_free(oct_trace_row *row); /* accepts NULL */
/* Room for n ids in all (input and output); keeps those present. */
void oct_trace_row_reserve(oct_trace_row *row, gsize n);

typedef enum oct_trace_parsed {
  OCT_TRACE_PARSED_ERROR,
  OCT_TRACE_PARSED_REQUEST,
  OCT_TRACE_PARSED_SKIPPED, /* a row without input or without output tokens: counted, left out */
  OCT_TRACE_PARSED_OTHER,   /* no row: a header */
} oct_trace_parsed;

#define OCT_TRACE_COLUMNS_MAX 64

typedef struct oct_trace_parser oct_trace_parser;

typedef struct oct_trace_format_ops {
  oct_trace_format format;
  const char *name;
  gint64 time_unit_ns; /* of a numeric time */
  guint32 block_size;  /* tokens per hash block where the rows agree; 0: never assumed */
  gboolean rebase;     /* times are dates or epochs: the first row is time 0 */
  gboolean csv;        /* the first line is the header */
  /* The parser sees every line but blank ones; `line` is writable and zero-terminated. */
  oct_trace_parsed (*parse)(oct_trace_parser *parser, char *line, gsize size, oct_trace_row *row,
                            GError **error);
} oct_trace_format_ops;

struct oct_trace_parser {
  const oct_trace_format_ops *ops;
  const char *name; /* of the file */
  guint64 line;     /* number of the line being parsed */
  guint64 n_rows;   /* requests parsed before it */
  const oct_trace_options *options;
  oct_trace_facts *facts;
  gint64 time_unit_ns;
  gboolean has_header;                 /* csv: columns are known; octet: the header was seen */
  guint32 header_block_size;           /* octet */
  int columns[8];                      /* csv: place of each wanted column, -1 when absent */
  guint32 inferred_block_size;         /* 0: not yet */
  GHashTable *classes;                 /* const char * -> itself, owned */
  char *fields[OCT_TRACE_COLUMNS_MAX]; /* csv: of the line being parsed */
  gsize n_fields;
};

extern const oct_trace_format_ops oct_trace_azure_ops, oct_trace_burstgpt_ops, oct_trace_vidur_ops,
    oct_trace_mooncake_ops, oct_trace_timed_ops, oct_trace_bailian_ops, oct_trace_octet_ops;

/* The format that the first line of a trace shows; NULL with error when none. */
const oct_trace_format_ops *oct_trace_detect(oct_trace_parser *parser, const char *line, gsize size,
                                             GError **error);
/* Whether the header line of a CSV has all of `names` ("|" between them). */
gboolean oct_trace_csv_has(const char *line, const char *names);

/* Sets "FILE:LINE: field "F": value V: <what>"; `value` is cut to a readable length, NULL: absent.
 */
void oct_trace_set_error(GError **error, const oct_trace_parser *parser, oct_trace_error code,
                         const char *field, const char *value, const char *format, ...)
    G_GNUC_PRINTF(6, 7);

/* The class name's one copy, owned by the parser; NULL with error past the limits. */
const char *oct_trace_class(oct_trace_parser *parser, const char *name, GError **error);

/* A session of a textual id: a hash that is never 0; 0 for "". */
guint64 oct_trace_session_of(const char *text);

/* Decimal text times `unit_ns`, exactly where the text has no exponent. FALSE when it is no number,
 * negative, not finite or above OCT_TRACE_TIME_MAX_NS. */
gboolean oct_trace_parse_time(const char *text, gint64 unit_ns, gint64 *out);

/* Sets request.block_size from the stated size, the format and the counts; checks the counts. */
gboolean oct_trace_fit_blocks(oct_trace_parser *parser, oct_trace_row *row, guint32 stated,
                              GError **error);

#endif
