/* Scenarios as dated actions, and arrivals at another pace. */
#include "sim/scenario/scenario.h"

#include <math.h>
#include <string.h>

#define S G_GINT64_CONSTANT(1000000000)

typedef struct node {
  oct_profile *profile;
  oct_platform *platform;
  oct_scenario_options options;
} node;

static void
node_init(node *n, const char *name) {
  g_autoptr(GError) error = NULL;
  n->profile = oct_profile_load(name, NULL, NULL, &error);
  g_assert_no_error(error);
  n->platform = oct_platform_new(n->profile, &error);
  g_assert_no_error(error);
  n->options = (oct_scenario_options){
      .platform = n->platform, .profile = n->profile, .n_replicas = 2, .seed = 7};
}

static void
node_clear(node *n) {
  oct_platform_free(n->platform);
  oct_profile_free(n->profile);
}

static oct_scenario *
parse(const node *n, const char *text) {
  g_autoptr(GError) error = NULL;
  oct_scenario *s = oct_scenario_parse("x.ini", text, strlen(text), &n->options, &error);
  g_assert_no_error(error);
  return s;
}

/* The factor that a resource has at a time. */
static double
factor_at(const oct_scenario *s, const node *n, const char *resource, oct_time at) {
  gint index = oct_platform_find(n->platform, resource);
  double factor = 1;
  for (guint i = 0; i < s->actions->len; i++) {
    const oct_action *a = &g_array_index(s->actions, oct_action, i);
    if (a->kind == OCT_ACTION_SCALE && (gint)a->index == index && a->at_ns <= at)
      factor = a->factor;
  }
  return factor;
}

static void
test_overlap(void) {
  node n;
  node_init(&n, "b300-hgx8");
  g_autoptr(oct_scenario) s =
      parse(&n, "[event a]\nkind=throttle\nat=10 s\nfor=20 s\nfactor=0.5\n"
                "[event b]\nkind=throttle\nat=20 s\nfor=20 s\nfactor=0.8\ngpus=1,3\n");
  g_assert_cmpfloat(factor_at(s, &n, "gpu0-sm", 9 * S), ==, 1);
  g_assert_cmpfloat(factor_at(s, &n, "gpu0-sm", 25 * S), ==, 0.5);
  g_assert_cmpfloat(factor_at(s, &n, "gpu3-sm", 25 * S), ==, 0.4);
  g_assert_cmpfloat(factor_at(s, &n, "gpu3-sm", 35 * S), ==, 0.8);
  g_assert_cmpfloat(factor_at(s, &n, "gpu0-sm", 30 * S), ==, 1);
  g_assert_cmpfloat(factor_at(s, &n, "gpu3-sm", 40 * S), ==, 1);
  g_assert_cmpfloat(factor_at(s, &n, "gpu3-hbm", 25 * S), ==, 1);
  node_clear(&n);
}

static void
test_links(void) {
  node n;
  node_init(&n, "pairs-4rc");
  g_autoptr(oct_scenario) s =
      parse(&n, "[event a]\nkind=link\nlink=nvlink\ngpus=2\nat=1 s\nfactor=0.25\n"
                "[event b]\nkind=link\nlink=switch1-up\nat=1 s\nfactor=0.5\n"
                "[event c]\nkind=host-tier\nat=2 s\nfactor=0.1\n");
  g_assert_cmpfloat(factor_at(s, &n, "gpu2-nv-up", S), ==, 0.25);
  g_assert_cmpfloat(factor_at(s, &n, "gpu3-nv-up", S), ==, 1);
  g_assert_cmpfloat(factor_at(s, &n, "switch1-up", S), ==, 0.5);
  g_assert_cmpfloat(factor_at(s, &n, "dram0", S), ==, 1);
  g_assert_cmpfloat(factor_at(s, &n, "dram0", 2 * S), ==, 0.1);
  g_assert_cmpfloat(factor_at(s, &n, "gpu5-pcie-down", 2 * S), ==, 0.1);
  node_clear(&n);
}

/* 600 W of 1,100, 190 idle: (410 / 910) ^ (1 / 1.42) = 0.57, the clock that was measured. */
static void
test_cap(void) {
  node n;
  node_init(&n, "b300-hgx8");
  g_autoptr(oct_scenario) s =
      parse(&n, "[event cap]\nkind=power-cap\nat=1 s\nfor=1 s\nwatts=600 W\n");
  double clock = factor_at(s, &n, "gpu7-sm", S);
  g_assert_cmpfloat_with_epsilon(clock, 0.57, 0.001);
  g_assert_cmpfloat_with_epsilon(190 + 910 * pow(clock, OCT_SCENARIO_POWER_EXPONENT), 600, 1e-9);
  g_assert_true(s->has_caps);
  guint caps = 0;
  for (guint i = 0; i < s->actions->len; i++) {
    const oct_action *a = &g_array_index(s->actions, oct_action, i);
    caps += a->kind == OCT_ACTION_CAP && a->watts == (a->at_ns == S ? 600 : 0);
  }
  g_assert_cmpuint(caps, ==, 16);
  node_clear(&n);
}

static void
test_rate(void) {
  node n;
  node_init(&n, "h200-hgx8");
  const char *text = "[scenario]\nuntil=1000 h\n"
                     "[event loss]\nkind=lose-gpu\nrate=0.5 /h\ngpus=any\nfor=1 min\n";
  g_autoptr(oct_scenario) a = parse(&n, text);
  g_autoptr(oct_scenario) b = parse(&n, text);
  n.options.seed = 8;
  g_autoptr(oct_scenario) other = parse(&n, text);
  g_assert_cmpuint(a->actions->len, ==, b->actions->len);
  gboolean differs = a->actions->len != other->actions->len;
  guint losses = 0, gpus = 0;
  for (guint i = 0; i < a->actions->len; i++) {
    const oct_action *x = &g_array_index(a->actions, oct_action, i);
    const oct_action *y = &g_array_index(b->actions, oct_action, i);
    g_assert_cmpint(x->at_ns, ==, y->at_ns);
    g_assert_cmpuint(x->index, ==, y->index);
    g_assert_cmpint(x->kind, ==, y->kind);
    losses += x->kind == OCT_ACTION_LOSE;
    gpus |= 1u << x->index;
    differs |=
        i < other->actions->len && x->at_ns != g_array_index(other->actions, oct_action, i).at_ns;
  }
  g_assert_true(differs);
  g_assert_cmphex(gpus, ==, 0xff);
  /* 500 expected: within 4 standard deviations. */
  g_assert_cmpuint(losses, >, 500 - 90);
  g_assert_cmpuint(losses, <, 500 + 90);
  node_clear(&n);
}

/* ---------------------------------------------------------------- arrivals */

static void
test_warp_factor(void) {
  node n;
  node_init(&n, "h200x1");
  g_autoptr(oct_scenario) s =
      parse(&n, "[event rush]\nkind=arrivals\nat=10 s\nfor=10 s\nfactor=2\n"
                "[event lull]\nkind=arrivals\nat=30 s\nfor=5 s\nfactor=0\n");
  /* Usual seconds 0-10, then 20 of them in 10, 10 as usual, and none for 5. */
  g_assert_cmpint(oct_warp_at(s->warp, 5 * S), ==, 5 * S);
  g_assert_cmpint(oct_warp_at(s->warp, 20 * S), ==, 15 * S);
  g_assert_cmpint(oct_warp_at(s->warp, 30 * S), ==, 20 * S);
  g_assert_cmpint(oct_warp_at(s->warp, 35 * S), ==, 25 * S);
  g_assert_cmpint(oct_warp_at(s->warp, 41 * S), ==, 36 * S);
  g_assert_cmpfloat(oct_warp_integral(s->warp, 33 * S), ==, 40.0 * S);
  node_clear(&n);
}

/* The integral of 1 + a cos is t + a T / 2 pi sin: whole periods are as usual, the quarters about
 * the peak have a / pi T more. */
static void
test_warp_period(void) {
  g_autoptr(oct_warp) w = oct_warp_new();
  const double period = 600.0 * S;
  oct_warp_set_period(w, 600 * S, 0.5, 300 * S);
  for (int k = 0; k < 5; k++)
    g_assert_cmpint(llabs(oct_warp_at(w, k * 600 * S) - k * 600 * S), <=, 1);
  double about_peak = oct_warp_integral(w, 450 * S) - oct_warp_integral(w, 150 * S);
  g_assert_cmpfloat_with_epsilon(about_peak, period / 2 + 0.5 * period / G_PI, 10);
  gint64 before = -1;
  for (int i = 0; i <= 1000; i++) {
    gint64 usual = i * S, at = oct_warp_at(w, usual);
    g_assert_cmpfloat_with_epsilon(oct_warp_integral(w, at), (double)usual, 2);
    g_assert_cmpint(at, >, before);
    before = at;
  }
}

/* ---------------------------------------------------------------- errors */

static void
test_errors(void) {
  const struct {
    const char *text, *says;
  } rows[] = {
      {"[other]\nx=1\n", "x.ini:1: [other]: groups are [scenario] and [event NAME]"},
      {"[event a]\nat=1 s\n", "x.ini:1: [event a]: kind is missing"},
      {"[event a]\nkind=melt\n", "x.ini:2: [event a] kind = melt: must be one of throttle"},
      {"[event a]\nkind=throttle\nfactor=0.5\n", "x.ini:1: [event a]: when?"},
      {"[event a]\nkind=throttle\nat=1 s\n", "x.ini:1: [event a]: throttle wants factor"},
      {"[event a]\nkind=throttle\nat=1 s\nfactor=1.5\n",
       "x.ini:4: [event a] factor = 1.5: must be from 0.001 to 1"},
      {"[event a]\nkind=throttle\nat=1\nfactor=0.5\n",
       "x.ini:3: [event a] at = 1: is in numbers without unit, must be in seconds"},
      {"[event a]\nkind=lose-gpu\nat=1 s\ngpus=\n",
       "x.ini:4: [event a] gpus = : must be all, any or a list of GPUs (from 0)"},
      {"[event a]\nkind=lose-gpu\nat=1 s\ngpus=8\n",
       "x.ini:4: [event a] gpus = 8: \"8\" is none of the 8 GPUs (from 0)"},
      {"[event a]\nkind=lose-gpu\nat=1 s\ngpus=1\nfactor=0.5\n",
       "x.ini:5: [event a] factor = 0.5: has no meaning for lose-gpu"},
      {"[event a]\nkind=lose-gpu\nrate=1 /h\ngpus=1\n", "by a rate until when?"},
      {"[event a]\nkind=lose-gpu\nat=1 s\nrate=1 /h\ngpus=1\n", "either at a time or by a rate"},
      {"[event a]\nkind=power-cap\nat=1 s\nwatts=100 W\n",
       "x.ini:4: [event a] watts = 100 W: h200-hgx8 takes limits from 200 to 700 W"},
      {"[event a]\nkind=link\nlink=ethernet\nat=1 s\nfactor=0.5\n", "must be nvlink, pcie, hbm"},
      {"[event a]\nkind=arrivals\nat=1 s\nfactor=0\n", "for ever nothing would come"},
      {"[event a]\nkind=reload\nat=1 s\nreplica=2\n", "\"2\" is none of the 2 replicas"},
      {"[event a]\nkind=throttle\nat=1 s\nfactor=1\ncolour=red\n", "no such key of an event"},
      {"[scenario]\nspeed=1\n", "x.ini:2: [scenario] speed = 1: no such key of [scenario]"},
      {"[scenario]\nafter_loss=pray\n", "must be recompute or fail"},
      {"[event a]\nkind=period\nperiod=1 h\namplitude=2\n", "must be from 0 to 1"},
  };
  node n;
  node_init(&n, "h200-hgx8");
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(
        oct_scenario_parse("x.ini", rows[i].text, strlen(rows[i].text), &n.options, &error));
    if (strstr(error->message, rows[i].says) == NULL)
      g_error("\"%s\" does not say \"%s\"", error->message, rows[i].says);
  }
  n.options.platform = NULL;
  g_autoptr(GError) error = NULL;
  const char *text = "[event a]\nkind=throttle\nat=1 s\nfactor=0.5\n";
  g_assert_null(oct_scenario_parse("x.ini", text, strlen(text), &n.options, &error));
  g_assert_nonnull(strstr(error->message, "wants a simulated node"));
  node_clear(&n);
}

static void
test_shipped(void) {
  node n;
  node_init(&n, "b300-hgx8");
  g_autofree char *folder =
      g_test_build_filename(G_TEST_DIST, "..", "sim", "scenarios", (char *)NULL);
  g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
  guint count = 0;
  for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
    if (!g_str_has_suffix(name, ".ini"))
      continue;
    g_autofree char *path = g_build_filename(folder, name, (char *)NULL);
    char *const paths[] = {path, NULL};
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_scenario) s = oct_scenario_load(paths, &n.options, &error);
    g_assert_no_error(error);
    g_assert_nonnull(s->title);
    count++;
  }
  g_assert_cmpuint(count, >=, 8);
  node_clear(&n);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/scenario/overlapping-factors-multiply", test_overlap);
  g_test_add_func("/scenario/links-by-kind-and-by-name", test_links);
  g_test_add_func("/scenario/a-power-cap-leaves-the-measured-clock", test_cap);
  g_test_add_func("/scenario/a-rate-is-drawn-from-the-seed", test_rate);
  g_test_add_func("/scenario/arrivals/factors", test_warp_factor);
  g_test_add_func("/scenario/arrivals/a-period-has-its-integral", test_warp_period);
  g_test_add_func("/scenario/errors-name-line-key-value-limit", test_errors);
  g_test_add_func("/scenario/shipped-files-are-good", test_shipped);
  return g_test_run();
}
