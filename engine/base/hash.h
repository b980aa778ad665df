/* Keyed hashing: SipHash-2-4 with 64- and 128-bit output (Aumasson and Bernstein).
 *
 * The 128-bit form chains the prefix index: page n's hash covers page n-1's hash and the tokens of
 * page n, so equal hashes mean equal prefixes up to a chance of about 2^-128 per pair against
 * anyone who does not know the key. The key is drawn per engine (in virtual time: from the seed).
 */
#ifndef OCT_BASE_HASH_H
#define OCT_BASE_HASH_H

#include <glib.h>

typedef struct oct_hash128 {
  guint64 lo, hi;
} oct_hash128;

typedef struct oct_hash_key {
  guint64 k0, k1;
} oct_hash_key;

static inline gboolean
oct_hash128_equal(oct_hash128 a, oct_hash128 b) {
  return a.lo == b.lo && a.hi == b.hi;
}

/* Hash of `size` bytes at `data` (borrowed; may be NULL when size is 0). Any thread. */
guint64 oct_hash64(oct_hash_key key, const void *data, gsize size);
oct_hash128 oct_hash128_of(oct_hash_key key, const void *data, gsize size);
/* One link of a chain: hash of the 16 bytes of `previous`, then the `size` bytes at `data`. */
oct_hash128 oct_hash128_chain(oct_hash_key key, oct_hash128 previous, const void *data, gsize size);

#endif
