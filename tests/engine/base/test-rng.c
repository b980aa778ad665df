#include "engine/base/rng.h"

#include <math.h>

#include "tests/stats.h"

/* Seeds are fixed: the verdicts below are facts about these seeds. Bounds leave a true generator a
 * chance of 1e-4 to fail for a seed drawn at random. */
#define N        100000
#define KS_BOUND 2.23

/* First outputs of the published algorithm from the state 1, 2, 3, 4 (rand_xoshiro and NumPy test
 * the same numbers). */
static void
is_xoshiro(void) {
  static const guint64 wanted[] = {
      11520u,
      0u,
      1509978240u,
      1215971899390074240u,
      1216172134540287360u,
      607988272756665600u,
      16172922978634559625u,
      8476171486693032832u,
      10595114339597558777u,
      2904607092377533576u,
  };
  oct_rng rng = {.s = {1, 2, 3, 4}};
  for (gsize i = 0; i < G_N_ELEMENTS(wanted); i++)
    g_assert_cmpuint(oct_rng_u64(&rng), ==, wanted[i]);
}

/* oct_mix64(x) is splitmix64's first output from the state x. */
static void
mix_is_splitmix(void) {
  static const guint64 wanted[] = {
      6457827717110365317u, 3203168211198807973u,  9817491932198370423u,
      4593380528125082431u, 16408922859458223821u,
  };
  guint64 state = 1234567;
  for (gsize i = 0; i < G_N_ELEMENTS(wanted); i++, state += 0x9e3779b97f4a7c15u)
    g_assert_cmpuint(oct_mix64(state), ==, wanted[i]);
}

static void
seed_and_stream_decide(void) {
  oct_rng a, b, c, d;
  oct_rng_seed(&a, 7, 1);
  oct_rng_seed(&b, 7, 1);
  oct_rng_seed(&c, 7, 2);
  oct_rng_seed(&d, 8, 1);
  guint same_stream = 0, same_seed = 0;
  for (int i = 0; i < 1000; i++) {
    guint64 x = oct_rng_u64(&a);
    g_assert_cmpuint(x, ==, oct_rng_u64(&b));
    same_stream += x == oct_rng_u64(&c);
    same_seed += x == oct_rng_u64(&d);
  }
  g_assert_cmpuint(same_stream + same_seed, ==, 0);
}

/* Seeding starts everything anew: no half of a pair of normals is left from before. */
static void
seeding_forgets(void) {
  oct_rng a, b;
  oct_rng_seed(&a, 1, 1);
  oct_rng_normal(&a);
  oct_rng_seed(&a, 2, 1);
  oct_rng_seed(&b, 2, 1);
  for (int i = 0; i < 9; i++)
    g_assert_cmpfloat(oct_rng_normal(&a), ==, oct_rng_normal(&b));
}

/* Bytes at every place of the word, and pairs of successive top bytes, fall evenly. */
static void
bytes_are_uniform(void) {
  g_autofree guint64 *single = g_new0(guint64, 8 * 256);
  g_autofree guint64 *pair = g_new0(guint64, 4096);
  oct_rng rng;
  oct_rng_seed(&rng, 42, 0);
  guint64 previous = oct_rng_u64(&rng);
  for (int i = 0; i < N; i++) {
    guint64 x = oct_rng_u64(&rng);
    for (guint k = 0; k < 8; k++)
      single[256 * k + ((x >> (8 * k)) & 255)]++;
    pair[(previous >> 58) << 6 | x >> 58]++;
    previous = x;
  }
  for (guint k = 0; k < 8; k++) {
    double tail = oct_test_chi2_tail(oct_test_chi2_equal(single + 256 * k, 256), 255);
    g_assert_cmpfloat(tail, >, 1e-4);
    g_assert_cmpfloat(tail, <, 1 - 1e-4); /* evener than chance is wrong too */
  }
  double tail = oct_test_chi2_tail(oct_test_chi2_equal(pair, 4096), 4095);
  g_assert_cmpfloat(tail, >, 1e-4);
  g_assert_cmpfloat(tail, <, 1 - 1e-4);
}

static void
below_is_uniform(void) {
  static const guint64 bounds[] = {2, 3, 10, 1000};
  oct_rng rng;
  for (gsize b = 0; b < G_N_ELEMENTS(bounds); b++) {
    guint64 seen[1000] = {0};
    oct_rng_seed(&rng, 5, b);
    for (int i = 0; i < N; i++) {
      guint64 x = oct_rng_below(&rng, bounds[b]);
      g_assert_cmpuint(x, <, bounds[b]);
      seen[x]++;
    }
    double tail = oct_test_chi2_tail(oct_test_chi2_equal(seen, bounds[b]), (double)bounds[b] - 1);
    g_assert_cmpfloat(tail, >, 1e-4);
  }
  /* 3/4 of the range: taking the remainder alone would hit the lower third twice as often. */
  guint64 bound = 3 * (G_GUINT64_CONSTANT(1) << 62), thirds[3] = {0};
  for (int i = 0; i < N; i++)
    thirds[oct_rng_below(&rng, bound) / (bound / 3)]++;
  g_assert_cmpfloat(oct_test_chi2_tail(oct_test_chi2_equal(thirds, 3), 2), >, 1e-4);
  g_assert_cmpuint(oct_rng_below(&rng, 1), ==, 0);
}

typedef struct law_case {
  const char *name;
  guint kind; /* which of draw()'s cases */
  oct_test_cdf cdf;
  double a, b;
} law_case;

static double
draw(oct_rng *rng, const law_case *law) {
  switch (law->kind) {
  case 0:
    return oct_rng_uniform(rng);
  case 1:
    return oct_rng_exponential(rng, law->a);
  case 2:
    return oct_rng_normal(rng);
  case 3:
    return oct_rng_gamma(rng, law->a, law->b);
  default:
    return oct_rng_weibull(rng, law->a, law->b);
  }
}

static double
ks_of(const law_case *law, double a) {
  g_autofree double *sample = g_new(double, N);
  oct_rng rng;
  oct_rng_seed(&rng, 2024, (guint64)(1000 * law->a) + law->kind);
  for (int i = 0; i < N; i++)
    sample[i] = draw(&rng, law);
  return oct_test_ks(sample, N, law->cdf, a, law->b);
}

static void
follows(gconstpointer data) {
  const law_case *law = data;
  double d = ks_of(law, law->a);
  g_test_message("D sqrt(n) = %.3f", d);
  g_assert_cmpfloat(d, <, KS_BOUND);
  /* The test sees a parameter that is 3 % off, so a pass means something. */
  g_assert_cmpfloat(ks_of(law, law->a == 0 ? 0.03 : law->a * 1.03), >, KS_BOUND);
}

static void
uniform_stays_inside(void) {
  oct_rng rng;
  oct_rng_seed(&rng, 3, 3);
  for (int i = 0; i < N; i++) {
    double x = oct_rng_uniform(&rng);
    g_assert_true(x > 0 && x < 1);
  }
  /* The extreme words, which no test would wait for: the next outputs of these states are 0 and
   * 2^64 - 1. */
  oct_rng zeros = {.s = {1, 0, 0, 0}}, ones = {.s = {0, 0x4fc71c71c71c71c7u, 0, 0}};
  oct_rng peek = ones;
  g_assert_cmphex(oct_rng_u64(&peek), ==, G_MAXUINT64);
  g_assert_cmpfloat(oct_rng_uniform(&zeros), >, 0);
  g_assert_cmpfloat(oct_rng_uniform(&ones), <, 1);
}

int
main(int argc, char **argv) {
  static const law_case laws[] = {
      {"uniform", 0, oct_test_cdf_uniform, 0, 1},
      {"exponential", 1, oct_test_cdf_exponential, 2.5, 0},
      {"normal", 2, oct_test_cdf_normal, 0, 1},
      {"gamma-shape-0.25", 3, oct_test_cdf_gamma, 0.25, 4},
      {"gamma-shape-1", 3, oct_test_cdf_gamma, 1, 1},
      {"gamma-shape-7.5", 3, oct_test_cdf_gamma, 7.5, 0.1},
      {"weibull-shape-0.6", 4, oct_test_cdf_weibull, 0.6, 2},
      {"weibull-shape-3", 4, oct_test_cdf_weibull, 3, 1},
  };
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/base/rng/is-xoshiro256-starstar", is_xoshiro);
  g_test_add_func("/base/rng/mix64-is-splitmix64", mix_is_splitmix);
  g_test_add_func("/base/rng/seed-and-stream-decide-the-numbers", seed_and_stream_decide);
  g_test_add_func("/base/rng/seeding-forgets-what-was-before", seeding_forgets);
  g_test_add_func("/base/rng/bytes-and-pairs-are-uniform", bytes_are_uniform);
  g_test_add_func("/base/rng/below-is-uniform-without-bias", below_is_uniform);
  g_test_add_func("/base/rng/uniform-is-never-0-or-1", uniform_stays_inside);
  for (gsize i = 0; i < G_N_ELEMENTS(laws); i++) {
    g_autofree char *path = g_strdup_printf("/base/rng/follows-its-law/%s", laws[i].name);
    g_test_add_data_func(path, &laws[i], follows);
  }
  return g_test_run();
}
