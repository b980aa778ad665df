#include "sim/validate/laws.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/validate/simplex.h"

/* ---------------------------------------------------------------- constants */

/* Where a search begins says nothing about any machine: round figures of a fair kernel. Bounds keep
 * fractions below one, so that no price beats its roofline. */
static const oct_constant gemm_constants[] = {
    {"peak fraction", 0.2, 1, 0.8, FALSE, 0},
    {"bandwidth fraction", 0.2, 1, 0.8, FALSE, 0},
    {"fixed s", 5e-7, 3e-5, 4e-6, TRUE, 0},
    {"s per k", 1e-11, 3e-9, 3e-10, TRUE, 0},
    {"split-k s", 1e-8, 2e-5, 2e-6, TRUE, 0},
    {"extra s of one row", 1e-7, 3e-5, 1e-6, TRUE, 2e-6},
    {"slowdown of long kernels", 0, 0.8, 0.2, FALSE, 0},
    {"half of it at s", 1e-5, 3e-2, 1e-3, TRUE, 0},
    {"wave rounding", 0, 1, 0.3, FALSE, 0},
    {"quantise fraction", 0.02, 1, 0.4, TRUE, 0},
};
static const oct_constant decode_constants[] = {
    {"fixed s", 5e-7, 5e-5, 8e-6, TRUE, 0},
    {"wave s", 1e-8, 3e-5, 2e-6, TRUE, 0},
    {"bandwidth fraction", 0.3, 1, 0.85, FALSE, 0},
    {"not hidden", 0, 1, 0.5, FALSE, 0},
    {"share of L2", 0.05, 1, 0.5, FALSE, 0},
    {"time in L2", 0.1, 1, 0.6, FALSE, 0},
    {"split-KV s", 1e-8, 5e-5, 5e-6, TRUE, 0},
    {"half of it at tokens", 10, 1e5, 2000, TRUE, 0},
    {"wave rounding", 0, 1, 0.5, FALSE, 0},
};
static const oct_constant prefill_constants[] = {
    {"fixed s", 5e-7, 5e-5, 1e-5, TRUE, 0},
    {"peak fraction", 0.2, 1, 0.7, FALSE, 0},
    {"extra pairs per token", 0, 300, 60, FALSE, 0},
    {"s per wave", 1e-10, 1e-5, 5e-8, TRUE, 0},
    {"bandwidth fraction", 0.05, 1, 0.5, FALSE, 0},
    {"slowdown of long kernels", 0, 0.8, 0.1, FALSE, 0},
    {"half of it at s", 1e-5, 3e-2, 1e-3, TRUE, 0},
    {"lone tile", 0.2, 3, 1, TRUE, 0},
};
static const oct_constant moe_constants[] = {
    {"peak fraction", 0.1, 1, 0.6, FALSE, 0},
    {"bandwidth fraction", 0.1, 1, 0.7, FALSE, 0},
    {"fixed s", 1e-6, 1e-4, 2.5e-5, TRUE, 0},
    {"s per expert", 1e-9, 2e-6, 5e-8, TRUE, 0},
    {"row tile", 1, 256, 32, TRUE, 0},
    {"s per k", 1e-13, 2e-8, 1e-9, TRUE, 0},
    {"activation fraction", 0.03, 1, 0.5, TRUE, 0},
    {"s per pair", 1e-12, 3e-8, 1e-9, TRUE, 0},
};
static const oct_constant collective_constants[] = {
    {"fixed, link latencies", 0.1, 60, 6, TRUE, 0},
    {"link latencies per GPU", 1e-3, 6, 0.6, TRUE, 0},
    {"bandwidth fraction", 0.1, 1, 0.8, FALSE, 0},
    {"its loss at few GPUs", 0, 1, 0.2, FALSE, 0},
    {"ramp", 0.001, 10, 0.7, TRUE, 0},
    {"ramp, link latencies", 0.1, 400, 12, TRUE, 0},
    {"bandwidth fraction in the switch", 0.1, 1, 0.8, FALSE, 0},
    {"ramp in the switch", 0.001, 10, 0.7, TRUE, 0},
    {"it, link latencies", 0.1, 400, 12, TRUE, 0},
};

/* ---------------------------------------------------------------- prices */

static oct_math
math_of(oct_law_id id) {
  static const oct_math of[OCT_LAW_COUNT] = {
      [OCT_LAW_GEMM_BF16] = OCT_MATH_BF16, [OCT_LAW_GEMM_FP8] = OCT_MATH_FP8,
      [OCT_LAW_GEMM_FP4] = OCT_MATH_FP4,   [OCT_LAW_MOE_BF16] = OCT_MATH_BF16,
      [OCT_LAW_MOE_FP8] = OCT_MATH_FP8,    [OCT_LAW_MOE_FP8_BLOCK] = OCT_MATH_FP8_BLOCK,
      [OCT_LAW_MOE_FP4] = OCT_MATH_FP4};
  return of[id];
}

static double
gemm_s(const oct_profile *profile, oct_law_id id, const oct_law_row *row) {
  return 1e-9 * oct_cost_gemm_ns(profile, math_of(id), (guint64)row->u.gemm.m,
                                 (guint64)row->u.gemm.n, (guint64)row->u.gemm.k);
}

static double
attention_s(const oct_profile *profile, oct_law_id id, const oct_law_row *row) {
  (void)id;
  return 1e-9 * oct_cost_attention_ns(profile, &row->u.attention);
}

static double
moe_s(const oct_profile *profile, oct_law_id id, const oct_law_row *row) {
  return 1e-9 * oct_cost_moe_ns(profile, math_of(id), &row->u.moe);
}

static double
collective_s(const oct_profile *profile, oct_law_id id, const oct_law_row *row) {
  oct_collective op = (oct_collective)(id - OCT_LAW_ALL_REDUCE);
  return oct_cost_collective_law_s(profile, id == OCT_LAW_ONESHOT ? NULL : &op,
                                   (guint32)row->u.collective.n, row->u.collective.bytes);
}

/* ---------------------------------------------------------------- the table */

#define AT(member) G_STRUCT_OFFSET(oct_profile, member)
#define LIST(list) G_N_ELEMENTS(list), list
#define GEMM_BANDS                                                                                 \
  { "m <= 16", "17 … 256", "257 … 2048", "> 2048" }
#define DECODE_BANDS                                                                               \
  { "KV <= 1 MiB", "<= 16 MiB", "<= 256 MiB", "> 256 MiB" }
#define PREFILL_BANDS                                                                              \
  { "<= 1k tokens", "<= 8k", "<= 64k", "> 64k" }
#define MOE_BANDS                                                                                  \
  { "<= 16 tokens", "<= 256", "<= 4096", "> 4096" }
#define SIZE_BANDS                                                                                 \
  { "<= 64 KiB", "<= 1 MiB", "<= 32 MiB", "> 32 MiB" }
#define GEMM(name, math)                                                                           \
  {                                                                                                \
    "GEMM " name, "gemm_fit", NULL, "(n, k)", GEMM_BANDS, AT(gemm_fit[math]),                      \
        LIST(gemm_constants), gemm_s                                                               \
  }
#define MOE(name, math)                                                                            \
  {                                                                                                \
    "experts " name, "moe_fit", NULL, "model and layout", MOE_BANDS, AT(moe_fit[math]),            \
        LIST(moe_constants), moe_s                                                                 \
  }
#define COLLECTIVE(name, key, member)                                                              \
  {                                                                                                \
    name, "collective_fit", key, "size", SIZE_BANDS, AT(member), LIST(collective_constants),       \
        collective_s                                                                               \
  }

static const oct_law laws[OCT_LAW_COUNT] = {
    GEMM("BF16", OCT_MATH_BF16),
    GEMM("FP8", OCT_MATH_FP8),
    GEMM("NVFP4", OCT_MATH_FP4),
    {"decode attention", "attention_fit", "decode", "head layout", DECODE_BANDS, AT(decode_fit),
     LIST(decode_constants), attention_s},
    {"prefill attention", "attention_fit", "prefill", "head layout", PREFILL_BANDS, AT(prefill_fit),
     LIST(prefill_constants), attention_s},
    MOE("BF16", OCT_MATH_BF16),
    MOE("FP8", OCT_MATH_FP8),
    MOE("FP8 block", OCT_MATH_FP8_BLOCK),
    MOE("NVFP4", OCT_MATH_FP4),
    COLLECTIVE("all-reduce", "all_reduce", collective_fit[OCT_COLLECTIVE_ALL_REDUCE]),
    COLLECTIVE("all-gather", "all_gather", collective_fit[OCT_COLLECTIVE_ALL_GATHER]),
    COLLECTIVE("reduce-scatter", "reduce_scatter", collective_fit[OCT_COLLECTIVE_REDUCE_SCATTER]),
    COLLECTIVE("all-to-all", "alltoall", collective_fit[OCT_COLLECTIVE_ALL_TO_ALL]),
    COLLECTIVE("graph all-reduce", "oneshot_all_reduce", oneshot_fit),
};

const oct_law *
oct_law_get(oct_law_id id) {
  oct_assert(id < OCT_LAW_COUNT);
  return &laws[id];
}

/* ---------------------------------------------------------------- fitting */

static gboolean
is_chosen(const oct_law_row *row, const oct_law_choice *c) {
  return (c->systems >> row->system & 1) != 0 && (c->fold < 0 || (row->fold == c->fold) == c->only);
}

guint
oct_law_count(const oct_law_rows *rows, oct_law_id id, const oct_law_choice *choice) {
  guint n = 0;
  for (guint i = 0; i < rows->of[id]->len; i++)
    n += is_chosen(&g_array_index(rows->of[id], oct_law_row, i), choice);
  return n;
}

void
oct_law_set(oct_profile *profile, oct_law_id id, const double *constants) {
  memcpy(G_STRUCT_MEMBER_P(profile, laws[id].offset), constants, laws[id].n * sizeof *constants);
}

typedef struct search {
  oct_law_id id;
  oct_profile *const *profiles;
  const oct_law_row **rows; /* [n] */
  guint n;
} search;

/* A point of the unit cube to constants. */
static void
unfold(oct_law_id id, const double *x, double *constants) {
  for (guint i = 0; i < laws[id].n; i++) {
    const oct_constant *c = &laws[id].constants[i];
    double value =
        c->logarithmic ? c->low * pow(c->high / c->low, x[i]) : c->low + x[i] * (c->high - c->low);
    constants[i] = value < c->zero_below ? 0 : value;
  }
}

static double
mean_error(const double *x, gpointer user) {
  const search *s = user;
  double constants[OCT_LAW_CONSTANTS_MAX], sum = 0;
  unfold(s->id, x, constants);
  for (guint i = 0; i < OCT_MEASURED_SYSTEMS; i++)
    oct_law_set(s->profiles[i], s->id, constants);
  for (guint i = 0; i < s->n; i++) {
    const oct_law_row *row = s->rows[i];
    double predicted = laws[s->id].price_s(s->profiles[row->system], s->id, row);
    sum += fabs(predicted / row->measured_s - 1);
  }
  return sum / s->n;
}

double
oct_law_fit(const oct_law_rows *rows, oct_law_id id, const oct_law_choice *choice,
            oct_profile *const *profiles, guint evaluations_max, double *constants) {
  static const double zero[OCT_LAW_CONSTANTS_MAX] = {0};
  static const double one[OCT_LAW_CONSTANTS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const oct_law *law = &laws[id];
  g_autofree const oct_law_row **chosen = g_new(const oct_law_row *, rows->of[id]->len + 1);
  search s = {.id = id, .profiles = profiles, .rows = chosen};
  double x[OCT_LAW_CONSTANTS_MAX];
  for (guint i = 0; i < rows->of[id]->len; i++) {
    const oct_law_row *row = &g_array_index(rows->of[id], oct_law_row, i);
    if (is_chosen(row, choice))
      chosen[s.n++] = row;
  }
  oct_assert(s.n > 0);
  for (guint i = 0; i < law->n; i++) {
    const oct_constant *c = &law->constants[i];
    x[i] = c->logarithmic ? log(c->start / c->low) / log(c->high / c->low)
                          : (c->start - c->low) / (c->high - c->low);
  }
  oct_simplex_options options = {
      .n = law->n, .low = zero, .high = one, .step = 0.2, .evaluations_max = evaluations_max};
  double error = oct_simplex(&options, mean_error, &s, x);
  unfold(id, x, constants);
  return error;
}

void
oct_law_score(const oct_law_rows *rows, oct_law_id id, const oct_law_choice *choice, int band,
              oct_profile *const *profiles, oct_score *score) {
  for (guint i = 0; i < rows->of[id]->len; i++) {
    const oct_law_row *row = &g_array_index(rows->of[id], oct_law_row, i);
    if (is_chosen(row, choice) && (band < 0 || row->band == band))
      oct_score_add(score, laws[id].price_s(profiles[row->system], id, row), row->measured_s);
  }
}
