/* The replay against queueing theory, where it gives exact answers: one server, and a server of
 * unlimited batches. The times come from mock, through the engine that serves; nothing here knows
 * how a step is scheduled. */
#include <math.h>

#include "engine/base/rng.h"
#include "tests/sim/replay/bed.h"

#define N       1000000
#define BATCHES 50

/* Service times by step: with one sequence and one output token, step n serves request n. */
typedef struct service {
  gint64 ns[N];
} service;

static gint64
serve(const oct_step *step, guint32 stage, void *user) {
  const service *s = user;
  (void)stage;
  g_assert_cmpuint(step->n_slices, ==, 1);
  g_assert_cmpuint(step->number, <=, N);
  return s->ns[step->number - 1];
}

static void
one_server(bed *b, service *s, double rho, guint32 run_ahead, guint64 seed) {
  oct_rng rng;
  bed_init(b);
  oct_rng_seed(&rng, seed, 77);
  for (guint i = 0; i < N; i++)
    s->ns[i] = MAX(1, (gint64)llround(oct_rng_exponential(&rng, rho * 1e6)));
  b->mock.step_time = serve;
  b->mock.user = s;
  b->drive.engine.max_num_seqs = 1;
  b->drive.engine.run_ahead = run_ahead;
  g_autofree char *trace = g_strdup_printf(
      "gen:rate=1000,input=1,output=1,requests=%d,seed=%" G_GUINT64_FORMAT, N, seed);
  g_autoptr(GError) error = NULL;
  gboolean good = bed_run(b, trace, &error);
  g_assert_no_error(error);
  g_assert_true(good);
  g_assert_cmpuint(b->outcomes->len, ==, N);
}

/* W(n + 1) = max(0, W(n) + S(n) - (A(n + 1) - A(n))), in whole nanoseconds. */
static void
test_lindley(gconstpointer data) {
  guint32 run_ahead = (guint32)GPOINTER_TO_UINT(data);
  static service s;
  bed b;
  one_server(&b, &s, 0.9, run_ahead, 11);
  gint64 wait = 0;
  for (guint i = 0; i < N; i++) {
    const oct_outcome *o = bed_outcome(&b, i);
    gint64 got = o->value_ns[OCT_LATENCY_TTFT] - s.ns[i];
    if (ABS(got - wait) > 1) {
      g_test_message("request %u waited %" G_GINT64_FORMAT " ns, Lindley says %" G_GINT64_FORMAT, i,
                     got, wait);
      g_test_fail();
      break;
    }
    if (i + 1 < N)
      wait = MAX(0, wait + s.ns[i] - (bed_outcome(&b, i + 1)->arrival_ns - o->arrival_ns));
  }
  bed_clear(&b);
}

/* M/M/1: W = rho / (1 - rho) x mean service. */
static void
test_pollaczek_khinchine(void) {
  static const double rhos[] = {0.3, 0.5, 0.7, 0.9};
  static service s;
  for (guint r = 0; r < G_N_ELEMENTS(rhos); r++) {
    bed b;
    one_server(&b, &s, rhos[r], 1, 100 + r);
    double means[BATCHES] = {0}, mean = 0, variance = 0;
    for (guint i = 0; i < N; i++)
      means[i / (N / BATCHES)] +=
          (double)(bed_outcome(&b, i)->value_ns[OCT_LATENCY_TTFT] - s.ns[i]) / (N / BATCHES);
    for (guint k = 0; k < BATCHES; k++)
      mean += means[k] / BATCHES;
    for (guint k = 0; k < BATCHES; k++)
      variance += (means[k] - mean) * (means[k] - mean) / (BATCHES - 1);
    double error = sqrt(variance / BATCHES), wanted = rhos[r] * rhos[r] * 1e6 / (1 - rhos[r]);
    g_test_message(
        "rho %.1f: mean wait %.1f us, Pollaczek-Khinchine %.1f us, standard error %.1f us", rhos[r],
        mean / 1e3, wanted / 1e3, error / 1e3);
    g_assert_cmpfloat(fabs(mean - wanted), <=, 3 * error);
    bed_clear(&b);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_data_func("/replay/queueing/every-wait-is-lindleys-without-run-ahead",
                       GUINT_TO_POINTER(0), test_lindley);
  g_test_add_data_func("/replay/queueing/every-wait-is-lindleys-with-run-ahead",
                       GUINT_TO_POINTER(1), test_lindley);
  g_test_add_func("/replay/queueing/mean-wait-is-pollaczek-khinchines", test_pollaczek_khinchine);
  return g_test_run();
}
