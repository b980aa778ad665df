/* Parsing and drawing. Every kind is an inverse or a standard draw of engine/base/rng.h; tables
 * (histograms, quantiles) are searched by halves in their cumulative probabilities. */
#include "traces/dist.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "traces/lines.h"
#include "traces/trace.h"

#define Z99 2.3263478740408408 /* 99th percentile of the standard normal */

typedef enum kind {
  KIND_FIXED,
  KIND_UNIFORM,
  KIND_EXPONENTIAL,
  KIND_LOGNORMAL,
  KIND_GEOMETRIC,
  KIND_WEIGHTS,
  KIND_QUANTILES,
  KIND_TRUE,
} kind;

struct oct_dist {
  gatomicrefcount refs;
  kind kind;
  char *text;
  double a, b; /* fixed: a; uniform: a, b; lognormal: mu, sigma; else: mean or factor in a */
  double mean;
  double min, max;
  oct_dist_point *points; /* [n]: cumulative probability, value */
  gsize n;
};

static oct_dist *
dist_new(kind of, const char *text) {
  oct_dist *dist = g_new0(oct_dist, 1);
  g_atomic_ref_count_init(&dist->refs);
  dist->kind = of;
  dist->text = g_strdup(text);
  dist->min = -INFINITY;
  dist->max = INFINITY;
  return dist;
}

oct_dist *
oct_dist_ref(oct_dist *dist) {
  g_atomic_ref_count_inc(&dist->refs);
  return dist;
}

void
oct_dist_unref(oct_dist *dist) {
  if (dist == NULL || !g_atomic_ref_count_dec(&dist->refs))
    return;
  g_free(dist->points);
  g_free(dist->text);
  g_free(dist);
}

oct_dist *
oct_dist_from_quantiles(const oct_dist_point *points, gsize n) {
  oct_assert(n >= 2 && points[0].probability == 0 && points[n - 1].probability == 1);
  oct_dist *dist = dist_new(KIND_QUANTILES, "quantiles");
  dist->points = g_memdup2(points, n * sizeof *points);
  dist->n = n;
  for (gsize i = 1; i < n; i++) {
    double width = points[i].probability - points[i - 1].probability;
    oct_assert(width >= 0 && points[i].value >= points[i - 1].value);
    dist->mean += width * (points[i].value + points[i - 1].value) / 2;
  }
  return dist;
}

oct_dist *
oct_dist_from_weights(const double *values, const double *weights, gsize n) {
  oct_dist *dist = dist_new(KIND_WEIGHTS, "hist");
  double sum = 0, so_far = 0;
  for (gsize i = 0; i < n; i++) {
    oct_assert(weights[i] >= 0);
    sum += weights[i];
  }
  oct_assert(sum > 0);
  dist->points = g_new(oct_dist_point, n);
  for (gsize i = 0; i < n; i++) {
    so_far += weights[i];
    dist->points[i] = (oct_dist_point){so_far / sum, values[i]};
    dist->mean += weights[i] / sum * values[i];
  }
  dist->n = n;
  return dist;
}

/* --- draw ------------------------------------------------------------------------------------- */

/* The first point whose cumulative probability is at least u. */
static gsize
find_point(const oct_dist *dist, double u) {
  gsize low = 0, high = dist->n - 1;
  while (low < high) {
    gsize middle = low + (high - low) / 2;
    if (dist->points[middle].probability >= u)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static double
draw_quantiles(const oct_dist *dist, double u) {
  gsize i = MAX(find_point(dist, u), 1);
  const oct_dist_point *from = &dist->points[i - 1], *to = &dist->points[i];
  double width = to->probability - from->probability;
  double share = width > 0 ? (u - from->probability) / width : 1;
  return from->value + share * (to->value - from->value);
}

double
oct_dist_draw(const oct_dist *dist, oct_rng *rng) {
  double value = 0;
  switch (dist->kind) {
  case KIND_FIXED:
    value = dist->a;
    break;
  case KIND_UNIFORM:
    value = dist->a + (double)oct_rng_below(rng, (guint64)(dist->b - dist->a) + 1);
    break;
  case KIND_EXPONENTIAL:
    value = oct_rng_exponential(rng, dist->a);
    break;
  case KIND_LOGNORMAL:
    value = exp(dist->a + dist->b * oct_rng_normal(rng));
    break;
  case KIND_GEOMETRIC: /* inversion; a mean of 1 is the constant 1 */
    value = dist->a > 1 ? 1 + floor(log(oct_rng_uniform(rng)) / log1p(-1 / dist->a)) : 1;
    break;
  case KIND_WEIGHTS:
    value = dist->points[find_point(dist, oct_rng_uniform(rng))].value;
    break;
  case KIND_QUANTILES:
    value = draw_quantiles(dist, oct_rng_uniform(rng));
    break;
  case KIND_TRUE:
    oct_assert(dist->kind != KIND_TRUE);
  }
  return CLAMP(value, dist->min, dist->max);
}

guint32
oct_dist_draw_tokens(const oct_dist *dist, oct_rng *rng, guint32 true_tokens) {
  double value = dist->kind == KIND_TRUE ? CLAMP(ceil(dist->a * true_tokens), dist->min, dist->max)
                                         : round(oct_dist_draw(dist, rng));
  return (guint32)CLAMP(value, 1, (double)OCT_TRACE_TOKENS_MAX);
}

double
oct_dist_mean(const oct_dist *dist) {
  return dist->mean;
}

gboolean
oct_dist_is_true(const oct_dist *dist) {
  return dist->kind == KIND_TRUE;
}

const char *
oct_dist_text(const oct_dist *dist) {
  return dist->text;
}

/* --- parse ------------------------------------------------------------------------------------ */

#define GRAMMAR                                                                                    \
  "N, fixed:N, uniform:A:B, exponential:MEAN, lognormal:MEAN:P99-or-SIGMA, geometric:MEAN, "       \
  "hist:FILE, quantiles:P=V,…, true*K; then :min=V, :max=V"

static gboolean
fail(GError **error, const char *text, const char *what) {
  g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION,
              "distribution \"%s\": %s (" GRAMMAR ")", text, what);
  return FALSE;
}

static gboolean
number(const char *text, double *out) {
  char *end = NULL;
  *out = g_ascii_strtod(text, &end);
  return end != text && *end == 0 && isfinite(*out);
}

/* All of `parts` from the second on as numbers >= 0 into values[]; FALSE when not `n` of them. */
static gboolean
numbers(char **parts, double *values, gsize n) {
  if (g_strv_length(parts) != n + 1)
    return FALSE;
  for (gsize i = 0; i < n; i++)
    if (!number(parts[i + 1], &values[i]) || values[i] < 0)
      return FALSE;
  return TRUE;
}

static gboolean
parse_lognormal(oct_dist *dist, char **parts, const char *text, GError **error) {
  double mean = 0, spread = 0;
  if (g_strv_length(parts) != 3 || !number(parts[1], &mean) || mean <= 0)
    return fail(error, text, "wants a mean above 0 and a 99th percentile or sigma");
  const char *last = parts[2];
  gboolean is_p99 = g_str_has_prefix(last, "p99="), is_sigma = g_str_has_prefix(last, "sigma=");
  last += is_p99 ? 4 : is_sigma ? 6 : 0;
  if (!number(last, &spread) || spread < 0)
    return fail(error, text, "wants a 99th percentile or sigma that is a number from 0");
  if (!is_p99 && !is_sigma)
    is_p99 = spread > mean;
  if (is_p99) {
    /* p99 / mean = exp(z s - s^2 / 2), whose smaller root is the usual one. */
    double under = Z99 * Z99 - 2 * log(spread / mean);
    if (spread < mean || under < 0)
      return fail(error, text,
                  "no log-normal has this 99th percentile: it must be 1 to 14.96 "
                  "times the mean");
    spread = Z99 - sqrt(under);
  }
  dist->kind = KIND_LOGNORMAL;
  dist->a = log(mean) - spread * spread / 2;
  dist->b = spread;
  dist->mean = mean;
  return TRUE;
}

static gboolean
parse_true(oct_dist *dist, const char *head, const char *text, GError **error) {
  dist->kind = KIND_TRUE;
  dist->a = 1;
  if (head[4] == '*' && (!number(head + 5, &dist->a) || dist->a < 1 || dist->a > 1e9))
    return fail(error, text, "the factor must be a number from 1 to 1e9");
  return TRUE;
}

static gboolean
parse_uniform(oct_dist *dist, char **parts, const char *text, GError **error) {
  double v[2];
  if (!numbers(parts, v, 2) || v[0] > v[1] || v[1] > OCT_TRACE_TOKENS_MAX || v[0] != floor(v[0]) ||
      v[1] != floor(v[1]))
    return fail(error, text, "wants two whole numbers, the smaller first, up to 2^30");
  dist->kind = KIND_UNIFORM;
  dist->a = v[0];
  dist->b = v[1];
  dist->mean = (v[0] + v[1]) / 2;
  return TRUE;
}

static gboolean
parse_mean(oct_dist *dist, kind of, char **parts, double least, const char *text, GError **error) {
  if (!numbers(parts, &dist->a, 1) || dist->a < least || dist->a <= 0)
    return fail(error, text,
                of == KIND_GEOMETRIC ? "wants a mean of at least 1" : "wants a mean above 0");
  dist->kind = of;
  dist->mean = dist->a;
  return TRUE;
}

static gboolean
parse_fixed(oct_dist *dist, const char *value, const char *text, GError **error) {
  if (!number(value, &dist->a) || dist->a < 0)
    return fail(error, text, "wants a number from 0");
  dist->kind = KIND_FIXED;
  dist->mean = dist->a;
  return TRUE;
}

/* Takes the table of `from`, keeping text and clamps. */
static void
adopt(oct_dist *dist, oct_dist *from) {
  dist->kind = from->kind;
  dist->points = g_steal_pointer(&from->points);
  dist->n = from->n;
  dist->mean = from->mean;
  oct_dist_unref(from);
}

static gboolean
parse_quantiles(oct_dist *dist, char **parts, const char *text, GError **error) {
  g_autoptr(GArray) points = g_array_new(FALSE, FALSE, sizeof(oct_dist_point));
  g_auto(GStrv) pairs = g_strsplit(parts[1] != NULL ? parts[1] : "", ",", -1);
  oct_dist_point last = {0, 0};
  for (gsize i = 0; pairs[i] != NULL; i++) {
    oct_dist_point point;
    char *equals = strchr(pairs[i], '=');
    if (equals != NULL)
      *equals = 0;
    if (equals == NULL || !number(pairs[i], &point.probability) ||
        !number(equals + 1, &point.value) || point.value < last.value ||
        point.probability < last.probability || point.probability > 1 ||
        (i == 0 && point.probability != 0))
      return fail(error, text, "wants P=V pairs, both rising, P from 0 to 1");
    g_array_append_val(points, point);
    last = point;
  }
  if (parts[1] == NULL || parts[2] != NULL || points->len < 2 || last.probability != 1)
    return fail(error, text, "wants P=V pairs, both rising, P from 0 to 1");
  adopt(dist, oct_dist_from_quantiles((oct_dist_point *)(void *)points->data, points->len));
  return TRUE;
}

/* One line of a histogram; FALSE when it is not two numbers from 0. */
static gboolean
parse_bin(char *line, GArray *values, GArray *weights) {
  double pair[2];
  char *rest = line;
  for (int i = 0; i < 2; i++) {
    char *end = NULL;
    rest += strspn(rest, i == 0 ? " \t" : " \t,");
    pair[i] = g_ascii_strtod(rest, &end);
    if (end == rest || !isfinite(pair[i]) || pair[i] < 0)
      return FALSE;
    rest = end;
  }
  if (rest[strspn(rest, " \t")] != 0)
    return FALSE;
  g_array_append_val(values, pair[0]);
  g_array_append_val(weights, pair[1]);
  return TRUE;
}

static gboolean
read_bins(oct_lines *lines, GArray *values, GArray *weights, GError **error) {
  char *line;
  gsize size;
  GError *failed = NULL;
  double sum = 0;
  while (oct_lines_next(lines, &line, &size, &failed)) {
    line[strcspn(line, "#")] = 0;
    if (line[strspn(line, " \t")] == 0)
      continue;
    if (values->len == OCT_DIST_POINTS_MAX || !parse_bin(line, values, weights)) {
      g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_SYNTAX,
                  "%s:%" G_GUINT64_FORMAT ": \"%.40s\" is not \"value weight\", both from 0, on at "
                  "most %u lines",
                  oct_lines_name(lines), oct_lines_number(lines), line, OCT_DIST_POINTS_MAX);
      return FALSE;
    }
    sum += g_array_index(weights, double, weights->len - 1);
  }
  if (failed != NULL) {
    g_propagate_error(error, failed);
    return FALSE;
  }
  if (!(sum > 0) || !isfinite(sum)) {
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_VALUE,
                "%s: the weights of a histogram must have a sum above 0", oct_lines_name(lines));
    return FALSE;
  }
  return TRUE;
}

static gboolean
parse_hist(oct_dist *dist, const char *path, const char *text, GError **error) {
  if (path == NULL || path[0] == 0)
    return fail(error, text, "wants a file");
  g_autoptr(oct_lines) lines = oct_lines_open(path, error);
  g_autoptr(GArray) values = g_array_new(FALSE, FALSE, sizeof(double));
  g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(double));
  if (lines == NULL || !read_bins(lines, values, weights, error))
    return FALSE;
  adopt(dist, oct_dist_from_weights((double *)(void *)values->data, (double *)(void *)weights->data,
                                    values->len));
  return TRUE;
}

/* Takes ":min=V" and ":max=V" off the end of `parts`. */
static gboolean
parse_clamps(oct_dist *dist, char **parts, const char *text, GError **error) {
  for (guint n = g_strv_length(parts); n > 1; n--) {
    char *last = parts[n - 1];
    double *limit = g_str_has_prefix(last, "min=")   ? &dist->min
                    : g_str_has_prefix(last, "max=") ? &dist->max
                                                     : NULL;
    if (limit == NULL)
      break;
    if (!number(last + 4, limit) || *limit < 0)
      return fail(error, text, "min and max want a number from 0");
    g_clear_pointer(&parts[n - 1], g_free);
  }
  return dist->min <= dist->max || fail(error, text, "min is above max");
}

static gboolean
parse_parts(oct_dist *dist, char **parts, const char *text, GError **error) {
  const char *head = parts[0] != NULL ? parts[0] : "";
  gsize n = g_strv_length(parts);
  if (strcmp(head, "hist") == 0)
    return parse_hist(dist, n == 2 ? parts[1] : NULL, text, error);
  if (strcmp(head, "fixed") == 0 && n == 2)
    return parse_fixed(dist, parts[1], text, error);
  if (strcmp(head, "uniform") == 0)
    return parse_uniform(dist, parts, text, error);
  if (strcmp(head, "exponential") == 0)
    return parse_mean(dist, KIND_EXPONENTIAL, parts, 0, text, error);
  if (strcmp(head, "lognormal") == 0)
    return parse_lognormal(dist, parts, text, error);
  if (strcmp(head, "geometric") == 0)
    return parse_mean(dist, KIND_GEOMETRIC, parts, 1, text, error);
  if (strcmp(head, "quantiles") == 0)
    return parse_quantiles(dist, parts, text, error);
  if (n == 1 && (strcmp(head, "true") == 0 || g_str_has_prefix(head, "true*")))
    return parse_true(dist, head, text, error);
  if (n == 1 && g_ascii_isdigit(head[0]))
    return parse_fixed(dist, head, text, error);
  return fail(error, text, "not understood");
}

oct_dist *
oct_dist_parse(const char *text, GError **error) {
  g_autoptr(oct_dist) dist = dist_new(KIND_FIXED, text);
  g_auto(GStrv) parts = g_strsplit(text, ":", -1);
  if (!parse_clamps(dist, parts, text, error) || !parse_parts(dist, parts, text, error))
    return NULL;
  return g_steal_pointer(&dist);
}
