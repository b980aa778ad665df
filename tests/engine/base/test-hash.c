#include "engine/base/hash.h"

/* The published vectors: key 00 01 … 0f, message 00 01 … n-1 (SipHash reference code, vectors.h). */
static const oct_hash_key key = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};

static void
empty_message(void) {
  g_assert_cmphex(oct_hash64(key, NULL, 0), ==, 0x726fdb47dd0e0e31u);
}

static void
fifteen_bytes(void) {
  guint8 m[15];
  for (guint i = 0; i < 15; i++)
    m[i] = (guint8)i;
  g_assert_cmphex(oct_hash64(key, m, sizeof m), ==, 0xa129ca6149be45e5u);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/base/hash/siphash-64-of-nothing", empty_message);
  g_test_add_func("/base/hash/siphash-64-of-15-bytes", fifteen_bytes);
  return g_test_run();
}
