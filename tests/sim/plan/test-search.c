/* The search for the highest rate, against probes whose capacity is known. */
#include "sim/plan/search.h"

#include <string.h>
#include <sys/mman.h>

#include "sim/replay/slo.h"

typedef struct server {
  double capacity;
  double decided_at; /* horizon from which a probe near the capacity can be judged */
  double long_at;    /* shorter ones are too short */
  gboolean broken;
  guint *n_served; /* shared with the children; NULL = not counted */
} server;

static json_t *
ask(void *user, double rate, double stretch, GError **error) {
  const server *s = user;
  if (s->broken) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "out of order");
    return NULL;
  }
  gboolean undecided = stretch < s->decided_at;
  if (s->n_served != NULL)
    *s->n_served += rate <= s->capacity;
  const gboolean is_short = stretch < s->long_at;
  return json_pack("{s:b, s:b, s:b, s:f, s:f}", "served",
                   !is_short && !undecided && rate <= s->capacity, "undecided", undecided,
                   "too_short", is_short, "rate", rate, "stretch", stretch);
}

static oct_plan_search_options
options_of(server *s, double guess) {
  return (oct_plan_search_options){.probe = ask,
                                   .user = s,
                                   .guess = guess,
                                   .widen = 1.3,
                                   .tolerance = 0.02,
                                   .stretch_max = 1,
                                   .stretch_short_max = 1};
}

static double
rate_of(const json_t *found, const char *name) {
  return json_number_value(json_object_get(found, name));
}

static void
test_finds(void) {
  static const double guesses[] = {1, 9.9, 10, 10.1, 300};
  for (gsize i = 0; i < G_N_ELEMENTS(guesses); i++) {
    server s = {.capacity = 10};
    oct_plan_search_options o = options_of(&s, guesses[i]);
    g_autoptr(GError) error = NULL;
    json_t *found = oct_plan_search(&o, &error);
    g_assert_no_error(error);
    g_assert_cmpfloat(rate_of(found, "rate"), <=, 10);
    g_assert_cmpfloat(rate_of(found, "too_high"), >, 10);
    g_assert_cmpfloat(rate_of(found, "too_high"), <=, 1.02 * rate_of(found, "rate"));
    const json_t *at = json_object_get(found, "at");
    g_assert_cmpfloat(rate_of(at, "rate"), ==, rate_of(found, "rate"));
    g_assert_cmpfloat(rate_of(found, "probes"), <=, 16); /* far away its steps are wider */
    json_decref(found);
  }
}

/* Below a guess that is too high it goes down in short steps, so that few probes are served: those
 * are the ones that run to their end. */
static void
test_served_probes(void) {
  server s = {.capacity = 10};
  s.n_served =
      mmap(NULL, sizeof *s.n_served, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  g_assert_true(s.n_served != MAP_FAILED);
  for (double guess = 10; guess < 11.6; guess += 0.05) {
    oct_plan_search_options o = options_of(&s, guess);
    o.widen = 1.03;
    *s.n_served = 0;
    json_t *found = oct_plan_search(&o, NULL);
    g_assert_cmpuint(*s.n_served, <=, 2);
    g_assert_cmpfloat(rate_of(found, "rate"), >, 10 / 1.02);
    json_decref(found);
  }
  munmap(s.n_served, sizeof *s.n_served);
}

static void
test_none(void) {
  server s = {.capacity = 0};
  oct_plan_search_options o = options_of(&s, 10);
  json_t *found = oct_plan_search(&o, NULL);
  g_assert_cmpfloat(rate_of(found, "rate"), ==, 0);
  g_assert_true(json_is_null(json_object_get(found, "at")));
  g_assert_cmpfloat(rate_of(found, "too_high"), >, 0);
  json_decref(found);
}

/* A layout that cannot beat the others is dropped as soon as that is known. */
static void
test_least(void) {
  server s = {.capacity = 1};
  oct_plan_search_options o = options_of(&s, 10);
  o.least = 9.5;
  json_t *found = oct_plan_search(&o, NULL);
  g_assert_cmpint(json_integer_value(json_object_get(found, "probes")), ==, 2);
  g_assert_cmpfloat(rate_of(found, "rate"), ==, 0);
  g_assert_cmpfloat(rate_of(found, "too_high"), <=, 9.5);
  json_decref(found);
}

static void
test_stretches(void) {
  server s = {.capacity = 10, .decided_at = 4};
  oct_plan_search_options o = options_of(&s, 10);
  o.stretch_max = 4;
  json_t *found = oct_plan_search(&o, NULL);
  g_assert_cmpfloat(rate_of(json_object_get(found, "at"), "stretch"), ==, 4);
  g_assert_cmpfloat(rate_of(found, "rate"), >, 9.8);
  json_decref(found);
  /* What cannot be judged at the longest horizon is not served. */
  o.stretch_max = 2;
  found = oct_plan_search(&o, NULL);
  g_assert_cmpfloat(rate_of(found, "rate"), ==, 0);
  json_decref(found);
}

/* What is too short is not judged: it goes on, once for all probes, or the answer says so. */
static void
test_too_short(void) {
  server s = {.capacity = 10, .long_at = 7};
  oct_plan_search_options o = options_of(&s, 10);
  o.stretch_short_max = 16;
  json_t *found = oct_plan_search(&o, NULL);
  g_assert_cmpfloat(rate_of(json_object_get(found, "at"), "stretch"), ==, 8);
  g_assert_true(json_is_null(json_object_get(found, "unjudged")));
  g_assert_cmpfloat(rate_of(found, "rate"), >, 9.8);
  const json_int_t lengthened = json_integer_value(json_object_get(found, "probes"));
  json_decref(found);
  s.long_at = 0;
  found = oct_plan_search(&o, NULL);
  g_assert_cmpint(json_integer_value(json_object_get(found, "probes")) + 3, ==, lengthened);
  json_decref(found);
  s.long_at = 7;
  o.stretch_short_max = 4;
  found = oct_plan_search(&o, NULL);
  g_assert_cmpfloat(rate_of(found, "rate"), ==, 0);
  g_assert_cmpfloat(rate_of(json_object_get(found, "unjudged"), "stretch"), ==, 4);
  json_decref(found);
}

/* Undecided above a rate that is served is not served; where nothing is, it says nothing. */
static void
test_unjudged(void) {
  server s = {.capacity = 10, .decided_at = 4};
  oct_plan_search_options o = options_of(&s, 10);
  json_t *found = oct_plan_search(&o, NULL);
  g_assert_cmpfloat(rate_of(found, "rate"), ==, 0);
  g_assert_true(json_is_object(json_object_get(found, "unjudged")));
  json_decref(found);
  s.decided_at = 0;
  found = oct_plan_search(&o, NULL);
  g_assert_true(json_is_null(json_object_get(found, "unjudged")));
  json_decref(found);
}

static void
test_error(void) {
  server s = {.broken = TRUE};
  oct_plan_search_options o = options_of(&s, 10);
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_plan_search(&o, &error));
  g_assert_nonnull(strstr(error->message, "out of order"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/plan/search/the-bracket-holds-the-capacity", test_finds);
  g_test_add_func("/plan/search/at-most-two-probes-are-served-below-a-high-guess",
                  test_served_probes);
  g_test_add_func("/plan/search/a-server-of-nothing-has-no-rate", test_none);
  g_test_add_func("/plan/search/stops-below-what-is-worth-it", test_least);
  g_test_add_func("/plan/search/undecided-probes-are-repeated-longer", test_stretches);
  g_test_add_func("/plan/search/too-short-probes-go-on-once-for-all", test_too_short);
  g_test_add_func("/plan/search/what-was-not-judged-is-said", test_unjudged);
  g_test_add_func("/plan/search/a-failing-probe-is-an-error", test_error);
  return g_test_run();
}
