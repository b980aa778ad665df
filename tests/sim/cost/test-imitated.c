/* What an imitated engine does to prices: each option alone against the step without it. */
#include <math.h>
#include <string.h>

#include "sim/cost/internal.h"
#include "tests/sim/cost/fixture.h"

#define BATCH   16
#define CONTEXT 2000

/* The step's nanoseconds with the rig's options; operators of the name in *count. */
static gint64
priced(rig *r, const char *name, guint *count) {
  oct_step_shape shape;
  oct_cost_operator list[256];
  rig_make(r);
  shape_decode(&shape, BATCH, CONTEXT, 0);
  guint n = oct_cost_operators(r->cost, &shape, list, G_N_ELEMENTS(list));
  g_assert_cmpuint(n, <=, G_N_ELEMENTS(list));
  *count = 0;
  for (guint i = 0; i < n; i++)
    if (strcmp(list[i].name, name) == 0)
      *count += list[i].count;
  return step_ns(r, &shape);
}

static void
fused_norms(void) {
  guint count;
  g_auto(rig) r = {0};
  rig_load(&r, "llama-3.1-8b", "h200-hgx8");
  for (guint32 tensor = 1; tensor <= 2; tensor++) {
    r.parallel.tensor = tensor;
    r.options.fused_norms = FALSE;
    gint64 apart = priced(&r, "norm", &count);
    g_assert_cmpuint(count, >, 32);
    r.options.fused_norms = TRUE;
    gint64 fused = priced(&r, "norm", &count);
    /* Without ranks there is no all-reduce that could take them along. */
    if (tensor == 1) {
      g_assert_cmpint(fused, ==, apart);
    } else {
      g_assert_cmpuint(count, ==, 0);
      g_assert_cmpint(fused, <, apart);
    }
  }
}

static void
shared_beside(void) {
  guint count;
  g_auto(rig) r = {0};
  rig_load(&r, "deepseek-v3", "h200-hgx8");
  r.parallel.tensor = 8;
  gint64 serial = priced(&r, "moe.shared_down", &count);
  g_assert_cmpuint(count, ==, 58);
  r.options.shared_beside = TRUE;
  gint64 beside = priced(&r, "moe.shared_down", &count);
  /* The launches of three kernels in each of 58 layers are hidden, not their bytes. */
  g_assert_cmpuint(count, ==, 58);
  g_assert_cmpint(beside, <, serial);
  g_assert_cmpint(serial - beside, <, 58 * 3 * 20000);
}

static void
expert_time(void) {
  guint count;
  g_auto(rig) r = {0};
  rig_load(&r, "qwen3-30b-a3b", "h200-hgx8");
  gint64 once = priced(&r, "moe.experts", &count);
  r.options.expert_time = 2;
  gint64 twice = priced(&r, "moe.experts", &count);
  r.options.expert_time = 3;
  gint64 thrice = priced(&r, "moe.experts", &count);
  g_assert_cmpint(twice, >, once);
  g_assert_cmpint(ABS((thrice - twice) - (twice - once)), <=, 4);
}

static void
whole_norms(void) {
  guint count;
  g_auto(rig) r = {0};
  rig_load(&r, "qwen3-30b-a3b", "h200-hgx8");
  r.parallel.tensor = 2;
  gint64 before = priced(&r, "gqa.qk_all_reduce", &count);
  g_assert_cmpuint(count, ==, 0);
  r.options.whole_norms = TRUE;
  gint64 after = priced(&r, "gqa.qk_all_reduce", &count);
  g_assert_cmpuint(count, ==, 48);
  /* Two kernels and a small all-reduce in each layer: some 10 us. */
  g_assert_cmpint(after - before, >, 48 * 6000);
  g_assert_cmpint(after - before, <, 48 * 20000);
  r.parallel.tensor = 1;
  priced(&r, "gqa.qk_all_reduce", &count);
  g_assert_cmpuint(count, ==, 0);
}

static void
nccl_only(void) {
  guint count;
  g_auto(rig) r = {0};
  rig_load(&r, "llama-3.1-70b", "h200-hgx8");
  r.parallel.tensor = 8;
  gint64 own = priced(&r, "norm", &count);
  r.options.nccl_only = TRUE;
  g_assert_cmpint(priced(&r, "norm", &count), >, own);
}

/* A node with a switch and no tables: its laws are near the tables of the machine that they were
 * fitted to, rise with bytes, and price whole steps. */
static void
collectives_without_tables(void) {
  static const char text[] = "[profile]\nschema=1\nname=mine\nbase=h200-hgx8\n"
                             "[collectives]\nmodel=fitted\n";
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) laws =
      oct_profile_parse("mine.ini", text, strlen(text), NULL, NULL, &error);
  g_assert_no_error(error);
  g_autoptr(oct_profile) tables = oct_profile_load("h200-hgx8", NULL, NULL, &error);
  g_assert_no_error(error);
  for (int op = 0; op < OCT_COLLECTIVE_COUNT; op++)
    for (guint32 n = 2; n <= 8; n *= 2) {
      double before = 0;
      for (double bytes = 1 << 20; bytes <= 1 << 29; bytes *= 2) {
        double law = oct_cost_collective_ns(laws, (oct_collective)op, n, bytes, FALSE);
        double table = oct_cost_collective_ns(tables, (oct_collective)op, n, bytes, FALSE);
        g_assert_cmpfloat(law, >, before);
        g_assert_cmpfloat(fabs(law / table - 1), <, 0.5);
        before = law;
      }
    }
  double own = oct_cost_collective_ns(laws, OCT_COLLECTIVE_ALL_REDUCE, 8, 4096, TRUE);
  g_assert_cmpfloat(own, <,
                    oct_cost_collective_ns(laws, OCT_COLLECTIVE_ALL_REDUCE, 8, 4096, FALSE));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/cost/imitated/norms-go-with-the-all-reduce", fused_norms);
  g_test_add_func("/sim/cost/imitated/shared-experts-hide-their-launches", shared_beside);
  g_test_add_func("/sim/cost/imitated/experts-take-a-multiple", expert_time);
  g_test_add_func("/sim/cost/imitated/norms-over-all-ranks-cost-an-all-reduce", whole_norms);
  g_test_add_func("/sim/cost/imitated/nccl-alone-is-slower-in-a-graph", nccl_only);
  g_test_add_func("/sim/cost/imitated/collectives-have-laws-without-tables",
                  collectives_without_tables);
  return g_test_run();
}
