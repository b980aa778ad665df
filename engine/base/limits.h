/* The engine's limits: one table of what may be asked for, and one way to refuse the rest.
 *
 * A row's name is the flag that sets the value, so that the message of a refusal names what the
 * user wrote. Limits of records and files stand with their format (engine/backend.h,
 * engine/model/spec.h, traces/trace.h). The table is constant: any thread.
 */
#ifndef OCT_BASE_LIMITS_H
#define OCT_BASE_LIMITS_H

#include <glib.h>

/* clang-format off */
#define OCT_LIMITS(ROW)                                                                            \
  /*  id                      flag                      unit           min  standard        max */ \
  ROW(MAX_NUM_SEQS,           "max-num-seqs",           "sequences",     1,      128,      4096)   \
  ROW(MAX_NUM_BATCHED_TOKENS, "max-num-batched-tokens", "tokens",        1,     2048,   1 << 20)   \
  ROW(BLOCK_SIZE,             "block-size",             "tokens",        1,       16,      4096)   \
  ROW(QUEUE_REQUESTS,         "max-queued-requests",    "requests",      1,     4096,   1 << 20)   \
  ROW(QUEUE_TOKENS,           "max-queued-tokens",      "prompt tokens", 1, 64 << 20, 1LL << 36)   \
  /* what one HTTP request may have: engine/http/parser.h */                                       \
  ROW(REQUEST_LINE_BYTES,     "max-request-line-bytes", "bytes",        64,  8 << 10,   1 << 20)   \
  ROW(HEADER_BYTES,           "max-header-bytes",       "bytes",       256, 32 << 10,   1 << 20)   \
  ROW(HEADERS,                "max-headers",            "headers",       1,       64,      4096)   \
  ROW(BODY_BYTES,             "max-body-bytes",         "bytes",         1,  8 << 20, 1LL << 32)   \
  ROW(CHUNKS,                 "max-chunks",             "chunks",        1,  1 << 16,   1 << 20)   \
  ROW(CHUNK_EXTENSION_BYTES,  "max-chunk-extension-bytes", "bytes",      0,      256,   1 << 16)   \
  /* what one client may take of the server: engine/http/server.h */                               \
  ROW(CONNECTIONS,            "max-connections",        "connections",   1,     8192,   1 << 16)   \
  ROW(CONNECTIONS_PER_ADDRESS, "max-connections-per-address", "connections", 0,    0,   1 << 16)   \
  ROW(STREAM_QUEUE_BYTES,     "max-stream-queue-bytes", "bytes",      4096, 256 << 10,  1 << 30)   \
  ROW(HEADER_TIMEOUT,         "header-timeout-ms",      "ms",           10,    10000,86400000)     \
  ROW(BODY_TIMEOUT,           "body-timeout-ms",        "ms",           10,    10000,86400000)     \
  ROW(BODY_GRACE,             "body-grace-ms",          "ms",            0,     5000,86400000)     \
  ROW(BODY_RATE,              "min-body-rate",          "bytes/s",       1,     1024,   1 << 30)   \
  ROW(STALL_TIMEOUT,          "stall-timeout-ms",       "ms",           10,    30000,86400000)     \
  ROW(KEEP_ALIVE_TIMEOUT,     "keep-alive-timeout-ms",  "ms",            0,   900000,86400000)
/* clang-format on */

typedef enum oct_limit {
#define OCT_LIMIT_ID(id, flag, unit, min, standard, max) OCT_LIMIT_##id,
  OCT_LIMITS(OCT_LIMIT_ID)
#undef OCT_LIMIT_ID
      OCT_LIMIT_COUNT
} oct_limit;

typedef struct oct_limit_row {
  const char *flag, *unit; /* static */
  gint64 min, standard, max;
} oct_limit_row;

const oct_limit_row *oct_limit_get(oct_limit which);

/* FALSE with *error (LIMIT) when the value is below min or above max; the message names the flag,
 * the value and the limit. */
gboolean oct_limit_check(oct_limit which, gint64 value, GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
