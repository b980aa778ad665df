/* The bytes of a connection, one phase at a time:
 *
 *   LINE --CR LF--> FIELDS --empty line--+--> DONE                         no body
 *                                        +--> LENGTH --n bytes--> DONE     Content-Length: n
 *                                        +--> SIZE                         chunked
 *   SIZE --';'--> EXTENSION --CR--> SIZE_LF        SIZE --CR--> SIZE_LF
 *   SIZE_LF --n--> DATA --n bytes--> DATA_CR --> DATA_LF --> SIZE
 *   SIZE_LF --0--> LAST_CR --> LAST_LF --> DONE
 *   any --fault--> REFUSED
 *
 * 1. A phase's function reads at least one byte or refuses. What it decides follows from the bytes
 *    before and the one in hand, so that cuts do not matter.
 * 2. The head is kept in one buffer and addressed by offsets until it is whole, since the buffer
 *    moves as it grows.
 * 3. Buffers at least double up to what the limits allow: copying them is linear in the bytes. */
#include "engine/http/parser.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/limits.h"
#include "engine/http/head.h"

typedef enum phase {
  LINE,
  FIELDS,
  LENGTH,
  SIZE,
  EXTENSION,
  SIZE_LF,
  DATA,
  DATA_CR,
  DATA_LF,
  LAST_CR,
  LAST_LF,
  DONE,
  REFUSED,
  PHASE_COUNT
} phase;

/* Places in ;name=value;name="quoted" behind a chunk's size. */
typedef enum place {
  NAME_FIRST,
  NAME_REST,
  VALUE_FIRST,
  VALUE_REST,
  QUOTED,
  ESCAPED,
  QUOTED_END,
  NO_PLACE
} place;

/* Headers that decide something and must therefore come once. */
enum {
  HOST = 1 << 0,
  LENGTH_HEADER = 1 << 1,
  CODING = 1 << 2,
  EXPECT = 1 << 3,
  AUTHORIZATION = 1 << 4,
  TYPE = 1 << 5
};

static const struct {
  const char *name;
  guint bit;
} single[] = {
    {"Host", HOST},     {"Content-Length", LENGTH_HEADER}, {"Transfer-Encoding", CODING},
    {"Expect", EXPECT}, {"Authorization", AUTHORIZATION},  {"Content-Type", TYPE},
};

typedef struct buffer {
  char *bytes;
  gsize used, size;
} buffer;

/* Of a slice of the head. */
typedef struct span {
  gsize at, size;
} span;

struct oct_http_parser {
  oct_http_limits limits;
  oct_budget *budget;
  phase phase;
  guint status; /* when REFUSED */
  const char *reason;
  guint64 work;

  buffer head;
  gsize line_at, fields_at; /* offsets of the line in hand, and of the first header line */
  gboolean after_cr;        /* the head's last byte is a CR */
  span *spans;              /* name and value of each header */
  oct_http_header *headers; /* the same as slices, once the head is whole */
  guint seen;               /* bits of `single` */
  oct_http_request request; /* its slices of the head are set when that is whole */
  span path, query, host, authority, coding, expect;
  gboolean has_query, has_authority, path_is_implied;
  gboolean close, stay; /* words of Connection */

  buffer body;
  gsize left;      /* bytes of the body or the chunk still to come */
  gsize body_wire; /* bytes of a chunked body that were read, framing included */
  gsize chunks, extension;
  guint digits; /* of the chunk size in hand */
  place place;  /* in EXTENSION */
};

static gsize
standard(oct_limit which) {
  return (gsize)oct_limit_get(which)->standard;
}

oct_http_limits
oct_http_limits_standard(void) {
  return (oct_http_limits){
      .request_line_bytes = standard(OCT_LIMIT_REQUEST_LINE_BYTES),
      .header_bytes = standard(OCT_LIMIT_HEADER_BYTES),
      .headers = standard(OCT_LIMIT_HEADERS),
      .body_bytes = standard(OCT_LIMIT_BODY_BYTES),
      .chunks = standard(OCT_LIMIT_CHUNKS),
      .extension_bytes = standard(OCT_LIMIT_CHUNK_EXTENSION_BYTES),
  };
}

/* --- memory ----------------------------------------------------------------------------------- */

static void
refuse(oct_http_parser *p, guint status, const char *reason) {
  p->phase = REFUSED;
  p->status = status;
  p->reason = reason;
}

/* Adds bytes, within `max`, which the caller has checked. FALSE after a refusal. */
static gboolean
append(oct_http_parser *p, buffer *b, const void *bytes, gsize size, gsize max) {
  oct_assert(size <= max - b->used);
  if (size > b->size - b->used) {
    gsize wanted = MAX(b->used + size, b->size <= max / 2 ? 2 * b->size : max);
    wanted = MIN(MAX(wanted, 512), max);
    char *grown = oct_budget_resize(p->budget, b->bytes, wanted, 1, NULL);
    if (grown == NULL) {
      refuse(p, 503, "there is no memory for this request");
      return FALSE;
    }
    b->bytes = grown;
    b->size = wanted;
    p->work += wanted;
  }
  if (size > 0)
    memcpy(b->bytes + b->used, bytes, size);
  b->used += size;
  p->work += size;
  return TRUE;
}

static void
release(oct_http_parser *p, buffer *b) {
  oct_budget_release(p->budget, b->bytes);
  *b = (buffer){NULL, 0, 0};
}

oct_http_parser *
oct_http_parser_new(const oct_http_limits *limits, oct_budget *budget, GError **error) {
  oct_http_parser *p = oct_budget_alloc(budget, 1, sizeof *p, error);
  if (p == NULL)
    return NULL;
  p->limits = *limits;
  p->budget = budget;
  p->spans = oct_budget_alloc(budget, limits->headers, 2 * sizeof *p->spans, error);
  if (p->spans != NULL)
    p->headers = oct_budget_alloc(budget, limits->headers, sizeof *p->headers, error);
  if (p->headers == NULL) {
    oct_http_parser_free(p);
    return NULL;
  }
  return p;
}

void
oct_http_parser_free(oct_http_parser *parser) {
  if (parser == NULL)
    return;
  release(parser, &parser->head);
  release(parser, &parser->body);
  oct_budget_release(parser->budget, parser->spans);
  oct_budget_release(parser->budget, parser->headers);
  oct_budget_release(parser->budget, parser);
}

/* --- the head --------------------------------------------------------------------------------- */

static gsize
head_max(const oct_http_parser *p) {
  return p->limits.request_line_bytes + 2 + p->limits.header_bytes;
}

static span
span_of(const oct_http_parser *p, oct_http_slice slice) {
  return (span){slice.bytes == NULL ? 0 : (gsize)(slice.bytes - p->head.bytes), slice.size};
}

static oct_http_slice
slice_of(const oct_http_parser *p, span s) {
  return (oct_http_slice){p->head.bytes + s.at, s.size};
}

static void
read_line(oct_http_parser *p, oct_http_slice line) {
  oct_http_request_line read = {0};
  oct_http_fault fault = oct_http_read_request_line(line, &read);
  if (fault.status != 0) {
    refuse(p, fault.status, fault.reason);
    return;
  }
  p->request.method = read.method;
  p->request.minor = read.minor;
  p->has_query = read.query.bytes != NULL;
  p->has_authority = read.authority.bytes != NULL;
  p->path_is_implied = read.path.bytes == NULL;
  p->path = span_of(p, read.path);
  p->query = span_of(p, read.query);
  p->authority = span_of(p, read.authority);
  p->phase = FIELDS;
  p->fields_at = p->head.used;
}

/* Headers that frame or route the message; what they mean together is judged in end_head(). */
static void
note_header(oct_http_parser *p, guint bit, oct_http_slice value) {
  switch (bit) {
  case HOST:
    if (!oct_http_host_is_valid(value))
      refuse(p, 400, "Host is not a name or address with at most a port");
    p->host = span_of(p, value);
    break;
  case LENGTH_HEADER:
    if (!oct_http_read_length(value, &p->request.content_length))
      refuse(p, 400, "Content-Length is not one number of digits only");
    break;
  case CODING:
    if (!oct_http_slice_is(value, "chunked"))
      refuse(p, 400, "Transfer-Encoding is not chunked alone");
    p->request.chunked = TRUE;
    break;
  case EXPECT:
    if (!oct_http_slice_is(value, "100-continue"))
      refuse(p, 417, "Expect is not 100-continue");
    p->request.expect_continue = TRUE;
    break;
  default:
    break;
  }
}

static void
read_field(oct_http_parser *p, oct_http_slice line) {
  oct_http_header header;
  if (p->request.n_headers == p->limits.headers) {
    refuse(p, 431, "there are too many headers");
    return;
  }
  oct_http_fault fault = oct_http_read_header(line, &header);
  if (fault.status != 0) {
    refuse(p, fault.status, fault.reason);
    return;
  }
  span *spans = p->spans + 2 * p->request.n_headers++;
  spans[0] = span_of(p, header.name);
  spans[1] = span_of(p, header.value);
  for (gsize i = 0; i < G_N_ELEMENTS(single); i++)
    if (oct_http_slice_is(header.name, single[i].name)) {
      if (p->seen & single[i].bit) {
        refuse(p, 400, "a header that decides something comes twice");
        return;
      }
      p->seen |= single[i].bit;
      note_header(p, single[i].bit, header.value);
    }
  if (oct_http_slice_is(header.name, "Connection")) {
    p->close |= oct_http_list_has(header.value, "close");
    p->stay |= oct_http_list_has(header.value, "keep-alive");
  }
}

/* Turns offsets into slices: the head does not move any more. */
static void
publish_head(oct_http_parser *p) {
  oct_http_request *r = &p->request;
  for (guint i = 0; i < r->n_headers; i++)
    p->headers[i] =
        (oct_http_header){slice_of(p, p->spans[2 * i]), slice_of(p, p->spans[2 * i + 1])};
  r->headers = p->headers;
  r->path = p->path_is_implied ? (oct_http_slice){"/", 1} : slice_of(p, p->path);
  if (p->has_query)
    r->query = slice_of(p, p->query);
  if (p->has_authority)
    r->host = slice_of(p, p->authority);
  else if (p->seen & HOST)
    r->host = slice_of(p, p->host);
  r->keep_alive = !p->close && (r->minor > 0 || p->stay);
  /* Nobody waits for 100 when there is no body to send, and 1.0 does not know it. */
  r->expect_continue = r->expect_continue && r->minor > 0 && (r->chunked || r->content_length > 0);
}

static gboolean
same_host(const oct_http_parser *p) {
  oct_http_slice a = slice_of(p, p->authority), b = slice_of(p, p->host);
  return a.size == b.size && g_ascii_strncasecmp(a.bytes, b.bytes, a.size) == 0;
}

static void
end_head(oct_http_parser *p) {
  const oct_http_request *r = &p->request;
  if (r->minor > 0 && !(p->seen & HOST))
    refuse(p, 400, "there is no Host");
  else if (p->has_authority && (p->seen & HOST) && !same_host(p))
    refuse(p, 400, "Host and target name different hosts");
  else if (r->chunked && r->minor == 0)
    refuse(p, 400, "HTTP/1.0 has no Transfer-Encoding");
  else if (r->chunked && (p->seen & LENGTH_HEADER))
    refuse(p, 400, "there are Content-Length and Transfer-Encoding");
  else if (r->content_length > p->limits.body_bytes)
    refuse(p, 413, "the body is too long");
  if (p->phase == REFUSED)
    return;
  publish_head(p);
  p->left = r->content_length;
  p->phase = r->chunked ? SIZE : p->left > 0 ? LENGTH : DONE;
}

/* Judges the line that ends with the buffer. */
static void
end_line(oct_http_parser *p) {
  oct_http_slice line = {p->head.bytes + p->line_at, p->head.used - p->line_at - 2};
  p->work += line.size;
  p->line_at = p->head.used;
  if (p->phase == LINE)
    read_line(p, line);
  else if (line.size > 0)
    read_field(p, line);
  else
    end_head(p);
}

/* Refuses what no line of a head may have at this place; `n` bytes of the head precede it. */
static void
check_head_byte(oct_http_parser *p, guint8 c, gsize n) {
  if (p->after_cr ? c != '\n' : c == '\n')
    refuse(p, 400, "a line does not end in CR LF");
  else if ((c < ' ' && c != '\t' && c != '\r' && c != '\n') || c == 0x7f)
    refuse(p, 400, "there is a control character in the head");
  else if (p->phase == LINE && c != '\r' && c != '\n' &&
           n - p->line_at == p->limits.request_line_bytes)
    refuse(p, 414, "the request line is too long");
  else if (p->phase == FIELDS && n - p->fields_at == p->limits.header_bytes)
    refuse(p, 431, "the headers are too long");
  p->after_cr = c == '\r';
}

/* LINE and FIELDS: up to the end of a line. */
static gsize
take_head(oct_http_parser *p, const guint8 *bytes, gsize size) {
  gsize n = 0;
  gboolean ended = FALSE;
  while (n < size && !ended) {
    check_head_byte(p, bytes[n], p->head.used + n);
    p->work++;
    if (p->phase == REFUSED)
      return n;
    ended = bytes[n++] == '\n';
  }
  if (append(p, &p->head, bytes, n, head_max(p)) && ended)
    end_line(p);
  return n;
}

/* --- the body --------------------------------------------------------------------------------- */

static gsize
take_length(oct_http_parser *p, const guint8 *bytes, gsize size) {
  gsize n = MIN(size, p->left);
  if (!append(p, &p->body, bytes, n, p->request.content_length))
    return 0;
  p->left -= n;
  if (p->left == 0)
    p->phase = DONE;
  return n;
}

static gsize
take_size(oct_http_parser *p, const guint8 *bytes, gsize size) {
  (void)size;
  int digit = g_ascii_xdigit_value((char)bytes[0]);
  if (digit >= 0) {
    if (++p->digits > 16)
      refuse(p, 400, "a chunk's size has more than 16 digits");
    p->left = p->left << 4 | (gsize)digit;
  } else if (p->digits == 0 || (bytes[0] != '\r' && bytes[0] != ';'))
    refuse(p, 400, "a chunk's size is not hexadecimal digits only");
  else if (bytes[0] == ';' && ++p->extension > p->limits.extension_bytes)
    refuse(p, 400, "the chunk extensions are too long");
  else {
    p->phase = bytes[0] == '\r' ? SIZE_LF : EXTENSION;
    p->place = NAME_FIRST;
  }
  return 1;
}

/* Where c leads to; NO_PLACE where it may not stand. */
static place
after(place at, char c) {
  gboolean token = oct_http_is_token(c), text = c == '\t' || g_ascii_isprint(c);
  switch (at) {
  case NAME_FIRST:
    return token ? NAME_REST : NO_PLACE;
  case NAME_REST:
    return token ? NAME_REST : c == '=' ? VALUE_FIRST : c == ';' ? NAME_FIRST : NO_PLACE;
  case VALUE_FIRST:
    return token ? VALUE_REST : c == '"' ? QUOTED : NO_PLACE;
  case VALUE_REST:
    return token ? VALUE_REST : c == ';' ? NAME_FIRST : NO_PLACE;
  case QUOTED:
    return c == '"' ? QUOTED_END : c == '\\' ? ESCAPED : text ? QUOTED : NO_PLACE;
  case ESCAPED:
    return text ? QUOTED : NO_PLACE;
  case QUOTED_END:
    return c == ';' ? NAME_FIRST : NO_PLACE;
  case NO_PLACE:
    break;
  }
  return NO_PLACE;
}

static gsize
take_extension(oct_http_parser *p, const guint8 *bytes, gsize size) {
  (void)size;
  if (bytes[0] == '\r' &&
      (p->place == NAME_REST || p->place == VALUE_REST || p->place == QUOTED_END)) {
    p->phase = SIZE_LF;
    return 1;
  }
  p->place = after(p->place, (char)bytes[0]);
  if (p->place == NO_PLACE)
    refuse(p, 400, "a chunk extension is malformed");
  else if (++p->extension > p->limits.extension_bytes)
    refuse(p, 400, "the chunk extensions are too long");
  return 1;
}

static gsize
take_size_lf(oct_http_parser *p, const guint8 *bytes, gsize size) {
  (void)size;
  p->digits = 0;
  if (bytes[0] != '\n')
    refuse(p, 400, "a chunk's size does not end in CR LF");
  else if (p->left == 0)
    p->phase = LAST_CR;
  else if (p->chunks++ == p->limits.chunks)
    refuse(p, 413, "there are too many chunks");
  else if (p->left > p->limits.body_bytes - p->body_wire)
    refuse(p, 413, "the body is too long");
  else
    p->phase = DATA;
  return 1;
}

static gsize
take_data(oct_http_parser *p, const guint8 *bytes, gsize size) {
  gsize n = MIN(size, p->left);
  if (!append(p, &p->body, bytes, n, p->limits.body_bytes))
    return 0;
  p->left -= n;
  if (p->left == 0)
    p->phase = DATA_CR;
  return n;
}

/* DATA_CR, DATA_LF, LAST_CR and LAST_LF: the one byte that may stand there. */
static gsize
take_end(oct_http_parser *p, const guint8 *bytes, gsize size) {
  (void)size;
  gboolean cr = p->phase == DATA_CR || p->phase == LAST_CR;
  if (bytes[0] == (cr ? '\r' : '\n'))
    p->phase = p->phase == DATA_CR   ? DATA_LF
               : p->phase == DATA_LF ? SIZE
               : p->phase == LAST_CR ? LAST_LF
                                     : DONE;
  else if (p->phase == LAST_CR)
    refuse(p, 400, "there are trailers");
  else
    refuse(p, 400, "a chunk does not end in CR LF");
  return 1;
}

/* --- use -------------------------------------------------------------------------------------- */

static gsize (*const take[PHASE_COUNT])(oct_http_parser *, const guint8 *, gsize) = {
    [LINE] = take_head,   [FIELDS] = take_head,         [LENGTH] = take_length,
    [SIZE] = take_size,   [EXTENSION] = take_extension, [SIZE_LF] = take_size_lf,
    [DATA] = take_data,   [DATA_CR] = take_end,         [DATA_LF] = take_end,
    [LAST_CR] = take_end, [LAST_LF] = take_end,
};

oct_http_state
oct_http_parser_state(const oct_http_parser *parser) {
  if (parser->phase <= FIELDS)
    return OCT_HTTP_IN_HEAD;
  if (parser->phase < DONE)
    return OCT_HTTP_IN_BODY;
  return parser->phase == DONE ? OCT_HTTP_DONE : OCT_HTTP_REFUSED;
}

/* The wire bytes of a chunked body are counted here, framing and all, and their limit with them:
 * what a phase may still read is what the limit leaves. */
static gsize
take_chunked(oct_http_parser *p, const guint8 *bytes, gsize size) {
  gsize room = p->limits.body_bytes - p->body_wire;
  if (room == 0) {
    refuse(p, 413, "the body is too long with its chunks' framing");
    return 0;
  }
  gsize n = take[p->phase](p, bytes, MIN(size, room));
  p->body_wire += n;
  p->work += n;
  return n;
}

oct_http_state
oct_http_parser_feed(oct_http_parser *parser, const void *bytes, gsize size, gsize *used) {
  oct_http_state before = oct_http_parser_state(parser), state = before;
  const guint8 *from = bytes;
  gsize at = 0;
  while (at < size && state == before && parser->phase < DONE) {
    if (parser->phase >= SIZE)
      at += take_chunked(parser, from + at, size - at);
    else
      at += take[parser->phase](parser, from + at, size - at);
    state = oct_http_parser_state(parser);
  }
  parser->request.body = (oct_http_slice){parser->body.bytes, parser->body.used};
  *used = at;
  return state;
}

void
oct_http_parser_next(oct_http_parser *parser) {
  oct_assert(parser->phase == DONE);
  release(parser, &parser->body);
  parser->head.used = 0;
  *parser = (oct_http_parser){
      .limits = parser->limits,
      .budget = parser->budget,
      .work = parser->work,
      .head = parser->head,
      .spans = parser->spans,
      .headers = parser->headers,
  };
}

/* --- inspect ---------------------------------------------------------------------------------- */

oct_http_verdict
oct_http_parser_verdict(const oct_http_parser *parser) {
  if (parser->phase == REFUSED)
    return (oct_http_verdict){parser->status, parser->reason, TRUE};
  return (oct_http_verdict){0, NULL, parser->phase == DONE && !parser->request.keep_alive};
}

const oct_http_request *
oct_http_parser_request(const oct_http_parser *parser) {
  oct_assert(parser->request.path.bytes != NULL);
  return &parser->request;
}

gboolean
oct_http_slice_is(oct_http_slice slice, const char *text) {
  gsize n = strlen(text);
  return slice.size == n && (n == 0 || g_ascii_strncasecmp(slice.bytes, text, n) == 0);
}

const oct_http_slice *
oct_http_request_header(const oct_http_request *request, const char *name) {
  for (guint i = 0; i < request->n_headers; i++)
    if (oct_http_slice_is(request->headers[i].name, name))
      return &request->headers[i].value;
  return NULL;
}

guint64
oct_http_parser_work(const oct_http_parser *parser) {
  return parser->work;
}
