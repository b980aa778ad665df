#include "engine/base/hash.h"

#include <string.h>

/* SipHash's state, fed by whole 8-byte words and one tail. Little-endian hosts only, as the rest of
 * Octet's flat records; configure refuses others. */
typedef struct sip {
  guint64 v0, v1, v2, v3;
} sip;

static inline guint64
rotl(guint64 x, int b) {
  return (x << b) | (x >> (64 - b));
}

static inline void
sip_round(sip *s) {
  s->v0 += s->v1;
  s->v1 = rotl(s->v1, 13) ^ s->v0;
  s->v0 = rotl(s->v0, 32);
  s->v2 += s->v3;
  s->v3 = rotl(s->v3, 16) ^ s->v2;
  s->v0 += s->v3;
  s->v3 = rotl(s->v3, 21) ^ s->v0;
  s->v2 += s->v1;
  s->v1 = rotl(s->v1, 17) ^ s->v2;
  s->v2 = rotl(s->v2, 32);
}

static inline void
sip_word(sip *s, guint64 m) {
  s->v3 ^= m;
  sip_round(s);
  sip_round(s);
  s->v0 ^= m;
}

static sip
sip_start(oct_hash_key key) {
  return (sip){key.k0 ^ 0x736f6d6570736575u, key.k1 ^ 0x646f72616e646f6du,
               key.k0 ^ 0x6c7967656e657261u, key.k1 ^ 0x7465646279746573u};
}

/* Feeds the bytes and the last word, which carries the total length (prefix included). */
static void
sip_feed(sip *s, const guint8 *p, gsize size, gsize prefix) {
  gsize whole = size / 8;
  for (gsize i = 0; i < whole; i++) {
    guint64 m;
    memcpy(&m, p + 8 * i, 8);
    sip_word(s, m);
  }
  guint64 tail = (guint64)(size + prefix) << 56;
  for (gsize i = 0; i < size % 8; i++)
    tail |= (guint64)p[8 * whole + i] << (8 * i);
  sip_word(s, tail);
}

static guint64
sip_finish(sip *s) {
  for (int i = 0; i < 4; i++)
    sip_round(s);
  return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

static oct_hash128
sip_finish128(sip *s) {
  oct_hash128 h;
  s->v2 ^= 0xee;
  h.lo = sip_finish(s);
  s->v1 ^= 0xdd;
  h.hi = sip_finish(s);
  return h;
}

guint64
oct_hash64(oct_hash_key key, const void *data, gsize size) {
  sip s = sip_start(key);
  sip_feed(&s, data, size, 0);
  s.v2 ^= 0xff;
  return sip_finish(&s);
}

oct_hash128
oct_hash128_of(oct_hash_key key, const void *data, gsize size) {
  sip s = sip_start(key);
  s.v1 ^= 0xee;
  sip_feed(&s, data, size, 0);
  return sip_finish128(&s);
}

oct_hash128
oct_hash128_chain(oct_hash_key key, oct_hash128 previous, const void *data, gsize size) {
  sip s = sip_start(key);
  s.v1 ^= 0xee;
  sip_word(&s, previous.lo);
  sip_word(&s, previous.hi);
  sip_feed(&s, data, size, 16);
  return sip_finish128(&s);
}
