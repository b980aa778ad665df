/* What the hot functions of engine/base cost, in ns a call on one core: the best of five runs,
 * which other work on the machine disturbs least. */
#include <stdio.h>

#include "engine/base/hash.h"
#include "engine/base/hist.h"
#include "engine/base/log.h"
#include "engine/base/ring.h"
#include "engine/base/rng.h"

#define N 1000000

static oct_rng rng;
static oct_hist *hist;
static oct_log *log_digest;
static oct_ring *ring;
static guint8 page[64];
static guint64 sink; /* keeps the compiler from dropping the work */

static void
draw(void) {
  for (int i = 0; i < N; i++)
    sink += oct_rng_u64(&rng);
}

static void
draw_exponential(void) {
  double sum = 0;
  for (int i = 0; i < N; i++)
    sum += oct_rng_exponential(&rng, 1);
  sink += (guint64)sum;
}

static void
chain_page(void) {
  oct_hash128 h = {0, 0};
  for (int i = 0; i < N; i++)
    h = oct_hash128_chain((oct_hash_key){1, 2}, h, page, sizeof page);
  sink += h.lo;
}

static void
record_value(void) {
  for (int i = 0; i < N; i++)
    oct_hist_add(hist, (gint64)i * 7919);
}

static void
log_line(void) {
  for (int i = 0; i < N; i++) {
    oct_log_i64(log_digest, 1234567890123 + i);
    oct_log_text(log_digest, " step ");
    oct_log_i64(log_digest, i);
    oct_log_text(log_digest, " slices ");
    oct_log_i64(log_digest, 256);
    oct_log_end(log_digest);
  }
}

static void
log_line_printf(void) {
  for (int i = 0; i < N; i++)
    oct_log_printf(log_digest, "%" G_GINT64_FORMAT " step %d slices %d",
                   G_GINT64_CONSTANT(1234567890123) + i, i, 256);
}

static void
pass_record(void) {
  for (int i = 0; i < N; i++) {
    guint8 out[64];
    sink += (guint64)(oct_ring_push(ring, page) && oct_ring_pop(ring, out));
  }
}

static void
measure(const char *what, void (*work)(void)) {
  gint64 best_us = G_MAXINT64;
  for (int run = 0; run < 5; run++) {
    gint64 start_us = g_get_monotonic_time();
    work();
    best_us = MIN(best_us, g_get_monotonic_time() - start_us);
  }
  printf("%-46s %8.1f ns\n", what, (double)best_us * 1000 / N);
}

int
main(void) {
  oct_rng_seed(&rng, 1, 1);
  hist = oct_hist_new();
  log_digest = oct_log_new_digest();
  ring = oct_ring_new(1024, sizeof page);
  measure("oct_rng_u64", draw);
  measure("oct_rng_exponential", draw_exponential);
  measure("oct_hash128_chain, 64 bytes (16 tokens)", chain_page);
  measure("oct_hist_add", record_value);
  measure("event log line, appended, digest only", log_line);
  measure("event log line, printf, digest only", log_line_printf);
  measure("oct_ring push and pop, 64 bytes, one thread", pass_record);
  oct_ring_free(ring);
  oct_log_free(log_digest);
  oct_hist_free(hist);
  return sink == 0;
}
