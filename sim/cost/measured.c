/* Prices through tables measured on the machine itself (groups [measured …] of its profile).
 *
 * A table's point is the time of a kernel; the fitted model says what that kernel should take;
 * their quotient corrects the model for this machine and these kernels. For the very shape that was
 * measured, between its points, the price is the table's, linear in both axes; beyond its last
 * point, and for other shapes (the nearest by logarithm is taken), the model carries it on. No
 * price falls below its own roofline.
 */
#include <math.h>

#include "engine/base/assert.h"
#include "sim/cost/internal.h"

/* ---------------------------------------------------------------- finding a table */

static double
distance(const oct_timed *table, const guint32 *shape) {
  const guint32 n = oct_timed_form_of(table->kind)->n_shape;
  double sum = 0;
  for (guint32 i = 0; i < n; i++)
    if (table->shape[i] != shape[i]) {
      double d = log(((double)table->shape[i] + 1) / ((double)shape[i] + 1));
      sum += d * d;
    }
  return sum;
}

const oct_timed *
oct_timed_find(const oct_profile *profile, oct_timed_kind kind, oct_dtype type,
               const guint32 *shape) {
  const oct_timed *best = NULL;
  double least = INFINITY;
  for (guint32 i = 0; i < profile->n_measured; i++) {
    const oct_timed *table = &profile->measured[i];
    if (table->kind != kind || table->type != type)
      continue;
    double d = distance(table, shape);
    if (d < least) {
      least = d;
      best = table;
      if (d == 0)
        break;
    }
  }
  return best;
}

/* ---------------------------------------------------------------- between points */

static guint32
interval(const double *axis, guint32 n, double *at, double *t) {
  *at = CLAMP(*at, axis[0], axis[n - 1]);
  guint32 i = 0;
  while (i + 2 < n && axis[i + 1] <= *at)
    i++;
  *t = n > 1 ? (*at - axis[i]) / (axis[i + 1] - axis[i]) : 0;
  return i;
}

static double
along_y(const oct_timed *table, guint32 i, guint32 j, double t) {
  const double *row = &table->seconds[i * table->n_y];
  return t > 0 ? row[j] + (row[j + 1] - row[j]) * t : row[j];
}

double
oct_timed_at(const oct_timed *table, double *x, double *y) {
  double tx, ty = 0;
  guint32 j = 0;
  guint32 i = interval(table->x, table->n_x, x, &tx);
  if (table->n_y > 1)
    j = interval(table->y, table->n_y, y, &ty);
  double a = along_y(table, i, j, ty);
  return tx > 0 ? a + (along_y(table, i + 1, j, ty) - a) * tx : a;
}

/* ---------------------------------------------------------------- correcting a price */

/* `peak` of the arithmetic that the kernel runs with. */
static void
correct(const oct_profile *profile, oct_price *price, double measured_s, double model_s,
        double peak) {
  if (!(model_s > 0))
    return;
  const double ratio = measured_s / model_s;
  const double floor_s = MAX(price->flops / peak, price->hbm_bytes / profile->gpu.hbm_bytes_per_s);
  price->seconds = MAX(price->seconds * ratio, floor_s);
  price->fixed_s = MIN(price->fixed_s * ratio, price->seconds - floor_s);
}

oct_price
oct_price_product(const oct_profile *profile, oct_dtype type, double m, double n, double k,
                  double weight_bytes) {
  const oct_math math = oct_price_math(profile, type);
  oct_price price = oct_price_gemm(profile, math, m, n, k, weight_bytes);
  const guint32 shape[2] = {(guint32)n, (guint32)k};
  const oct_timed *table =
      m > 0 && n > 0 && k > 0 ? oct_timed_find(profile, OCT_TIMED_PRODUCT, type, shape) : NULL;
  if (table == NULL)
    return price;
  double at = m, none = 0;
  double measured_s = oct_timed_at(table, &at, &none), model_s = price.seconds;
  if (at != m || table->shape[0] != shape[0] || table->shape[1] != shape[1]) {
    double bytes = (double)oct_storage_bytes(type, table->shape[0], table->shape[1]);
    model_s = oct_price_gemm(profile, math, at, table->shape[0], table->shape[1], bytes).seconds;
  }
  correct(profile, &price, measured_s, model_s, profile->gpu.flops[math]);
  return price;
}

/* The call that a table's point was measured with. */
static oct_attention_shape
measured_attention(const oct_timed *table, double x, double y) {
  const gboolean mla = table->kind == OCT_TIMED_MLA_DECODE;
  oct_attention_shape s = {.mla = mla,
                           .prefill = table->kind == OCT_TIMED_PREFILL,
                           .n_sequences = 1,
                           .n_heads = table->shape[0],
                           .n_kv_heads = mla ? 1 : table->shape[1],
                           .key_dim = mla ? table->shape[1] + table->shape[2] : table->shape[2],
                           .value_dim = mla ? table->shape[1] : table->shape[2],
                           .kv_element_bytes = table->type == OCT_DTYPE_FP8 ? 1 : 2,
                           .tokens = (guint64)x};
  if (table->kind == OCT_TIMED_VERIFY) {
    s.n_sequences = (guint32)x;
    s.tokens = (guint64)(x * y);
    s.context = (guint64)x * table->shape[3];
    s.pairs = (guint64)(x * y * (table->shape[3] - (y - 1) / 2));
  } else if (s.prefill) {
    s.context = (guint64)(x + y);
    s.pairs = oct_shape_pairs((guint64)y, (guint64)x, 0);
  } else {
    s.n_sequences = (guint32)x;
    s.context = s.pairs = (guint64)(x * y);
  }
  return s;
}

/* By a table of attention of this shape, at x and y. */
static void
correct_by(const oct_profile *profile, const oct_timed *table, double x, double y,
           oct_price *price) {
  double measured_s = oct_timed_at(table, &x, &y);
  const oct_attention_shape point = measured_attention(table, x, y);
  double model_s = oct_price_attention_model(profile, &point).seconds;
  correct(profile, price, measured_s, model_s, profile->gpu.flops[OCT_MATH_BF16]);
}

/* Slices of several tokens each, which verify drafts; between one token, whose price is given, and
 * the fewest that were measured, in proportion. */
static void
correct_verified(const oct_profile *profile, const oct_attention_shape *s, oct_dtype type,
                 const oct_price *model, oct_price *price) {
  const double n = s->n_sequences, each = (double)s->tokens / n;
  const guint32 shape[4] = {s->n_heads, s->n_kv_heads, s->key_dim,
                            (guint32)((double)s->context / n)};
  const oct_timed *table = oct_timed_find(profile, OCT_TIMED_VERIFY, type, shape);
  if (table == NULL)
    return;
  const double share = MIN(1, (each - 1) / (table->y[0] - 1));
  oct_price whole = *model;
  correct_by(profile, table, n, each, &whole);
  price->seconds += share * (whole.seconds - price->seconds);
  price->fixed_s += share * (whole.fixed_s - price->fixed_s);
}

void
oct_timed_correct_attention(const oct_profile *profile, const oct_attention_shape *s,
                            oct_price *price) {
  const oct_dtype type = s->kv_element_bytes == 1 ? OCT_DTYPE_FP8 : OCT_DTYPE_BF16;
  const oct_timed_kind kind = s->prefill ? OCT_TIMED_PREFILL
                              : s->mla   ? OCT_TIMED_MLA_DECODE
                                         : OCT_TIMED_DECODE;
  const guint32 shape[3] = {s->n_heads, s->mla ? s->value_dim : s->n_kv_heads,
                            s->mla ? s->key_dim - s->value_dim : s->key_dim};
  /* A benchmark's loop is not what was measured here. */
  const oct_timed *table = s->warm_l2 ? NULL : oct_timed_find(profile, kind, type, shape);
  if (table == NULL)
    return;
  const oct_price model = *price;
  const double n = s->n_sequences, mean = (double)s->context / n;
  correct_by(profile, table, s->prefill ? (double)s->tokens : n,
             s->prefill ? MAX(mean - (double)s->tokens / n, 0) : mean, price);
  if (!s->prefill && !s->mla && s->tokens > s->n_sequences)
    correct_verified(profile, s, type, &model, price);
}

void
oct_timed_correct_experts(const oct_profile *profile, oct_dtype type, const guint32 shape[4],
                          double bandwidth, double tokens, oct_price *price) {
  const oct_timed *table = oct_timed_find(profile, OCT_TIMED_EXPERTS, type, shape);
  if (table == NULL || tokens <= 0)
    return;
  const oct_math math = oct_price_math(profile, type);
  const double n_experts = table->shape[0], top_k = table->shape[1];
  double at = tokens, none = 0;
  double measured_s = oct_timed_at(table, &at, &none);
  const oct_moe_shape point = {
      .pairs = at * top_k,
      .all_pairs = at * top_k,
      .distinct = n_experts * (1 - pow(1 - top_k / n_experts, at)),
      .outer = table->shape[2],
      .inner = table->shape[3],
      .expert_bytes =
          (double)oct_storage_bytes(type, 3 * (guint64)table->shape[3], table->shape[2]),
  };
  correct(profile, price, measured_s, oct_price_moe(profile, math, bandwidth, &point).seconds,
          profile->gpu.flops[math]);
}

/* Bytes of a row as the operators count them. */
static double
row_bytes(const oct_timed *table) {
  const double a = table->shape[0], b = table->shape[1], c = table->shape[2];
  if (table->kind == OCT_TIMED_NORM || table->kind == OCT_TIMED_ACTIVATION)
    return a * 3 * 2;
  if (table->kind == OCT_TIMED_ROTATE)
    return (a + 2 * b) * c * 2 * 2;
  if (table->kind == OCT_TIMED_SAMPLE)
    return a * 3 * 4;
  oct_assert(table->kind == OCT_TIMED_ROUTE);
  return a * 4;
}

oct_price
oct_price_rows(const oct_profile *profile, oct_timed_kind kind, const guint32 *shape,
               double bytes) {
  oct_price price = oct_price_memory(profile, bytes, 0);
  const oct_timed *table = oct_timed_find(profile, kind, OCT_DTYPE_BF16, shape);
  if (table == NULL)
    return price;
  double at = bytes / row_bytes(table), none = 0;
  double measured_s = oct_timed_at(table, &at, &none);
  double model_s = oct_price_memory(profile, at * row_bytes(table), 0).seconds;
  price.seconds *= measured_s / model_s;
  price.fixed_s *= measured_s / model_s;
  return price;
}
