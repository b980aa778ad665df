/* The entries of a recording: what the writer and the player share. Little endian, as all records.
 */
#ifndef OCT_BACKENDS_RECORD_FORMAT_H
#define OCT_BACKENDS_RECORD_FORMAT_H

#include "engine/backend.h"
#include "engine/base/hash.h"

#define RECORD_MAGIC     "OCTREC\r\n"
#define RECORD_VERSION   2
#define RECORD_BYTES_MAX (1u << 28) /* of one entry */

typedef struct record_header {
  char magic[8];
  guint32 version, abi;
  guint32 clock; /* oct_clock_kind */
  guint32 has;   /* RECORD_HAS_… */
} record_header;

enum { RECORD_HAS_MASK = 1 << 0, RECORD_HAS_FORWARD = 1 << 1, RECORD_HAS_PULL = 1 << 2 };

typedef enum record_kind {
  RECORD_OPEN,    /* a: - ; body: the config as text; answer: opened; instance */
  RECORD_CLOSE,   /* - */
  RECORD_SUBMIT,  /* a: step; body: the step; answer: oct_submit */
  RECORD_COPY,    /* a: ticket; body: copies; answer: oct_submit */
  RECORD_MASK,    /* a: step, b: slice; body: words; answer: taken */
  RECORD_NEXT,    /* a: until; answer: there is one; reply: the event (flat) */
  RECORD_FORWARD, /* a: limit, b: submit; answer: done; reply: oct_forwarded */
  RECORD_PULL,    /* a: ticket, b: peer and, from bit 32 on, its domain; body and answer as COPY */
  RECORD_KINDS
} record_kind;

/* One call. The body is what went in, the reply what came out, then the error's message; each is
 * padded to 8 bytes. The checksum covers the entry from `bytes` on, padding included. */
typedef struct record_entry {
  guint64 checksum;
  guint32 bytes; /* with all that follows */
  guint32 kind;
  guint64 serial; /* 1, 2, 3 … */
  guint64 a, b;
  guint32 instance;
  guint32 answer;
  guint32 error_code; /* oct_backend_error + 1, 0 = none */
  guint32 body_bytes, reply_bytes, error_bytes;
} record_entry;

static inline guint64
record_checksum(const record_entry *entry) {
  const guint8 *from = (const guint8 *)entry + sizeof entry->checksum;
  return oct_hash64((oct_hash_key){0x6f637465745f7265u, 0x636f7264696e675fu}, from,
                    entry->bytes - sizeof entry->checksum);
}

/* `b` of a pull. */
static inline guint64
record_source(guint32 peer, guint32 peer_domain) {
  return (guint64)peer_domain << 32 | peer;
}

static inline guint32
record_padded(guint32 bytes) {
  return (bytes + 7) & ~7u;
}

#endif
