#include "sim/calibrate/heat.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"

#define TOKENS  1024 /* of a prompt */
#define DECODES 16   /* beside it, and alone */
#define BLOCK   60   /* steps of one frequency of prompts */
#define LEADING 40   /* decodes first, in which the chip cools; they do not count */
#define SEED    1

#define LEAST_S    2e-3 /* time constants that are tried */
#define MOST_S     0.5
#define STEPS      80
#define THRESHOLDS 17   /* from 0 on, 0.05 apart */
#define LEAST      0.01 /* of a slope that is worth a law */
#define OUTLIER    1.4  /* times the median: something else ran */
#define SETTLING   8    /* rounds until the level is that of all further ones */

/* Straight lines y = a (1 + slope x) through the points of one kind of step. */
typedef struct line {
  double n, x, y, xx, xy, yy;
} line;

static void
add_point(line *l, double x, double y) {
  l->n++;
  l->x += x;
  l->y += y;
  l->xx += x * x;
  l->xy += x * y;
  l->yy += y * y;
}

/* Returns the mean square that is left, relative to a. */
static double
fit_line(const line *l, double *slope) {
  const double spread = l->n * l->xx - l->x * l->x;
  const double b = spread > 1e-12 ? (l->n * l->xy - l->x * l->y) / spread : 0;
  const double a = (l->y - b * l->x) / l->n;
  *slope = a > 0 ? b / a : 0;
  if (!(a > 0))
    return INFINITY;
  const double left =
      l->yy - 2 * a * l->y - 2 * b * l->xy + l->n * a * a + 2 * a * b * l->x + b * b * l->xx;
  return left / (l->n * a * a);
}

static double
ratio_of(const oct_heat_step *step) {
  return step->priced_s > 0 ? step->seconds / step->priced_s : 0;
}

/* Of a kind's times over their prices. */
static double
median_of(const oct_heat_trial *load, gboolean prompt) {
  double ratios[OCT_HEAT_LOAD_MAX];
  guint n = 0;
  for (guint i = LEADING; i < load->n; i++)
    if (load->steps[i].prompt == prompt && ratio_of(&load->steps[i]) > 0)
      ratios[n++] = ratio_of(&load->steps[i]);
  return n > 1 ? oct_drive_median(ratios, n) : 0;
}

/* The slopes at this time constant and threshold; what they do not explain. */
static double
fit_at(const oct_heat_trial *load, const double medians[2], oct_heat_law *law) {
  line lines[2] = {{0}};
  double level = 0;
  for (guint i = 0; i < load->n; i++) {
    const oct_heat_step *s = &load->steps[i];
    double excess = 0;
    if (s->seconds > 0)
      level =
          oct_heat_after(law, level, oct_heat_load(law, s->flops, s->seconds), s->seconds, &excess);
    const double y = ratio_of(s), usual = medians[s->prompt];
    if (i >= LEADING && y > 0 && y < usual * OUTLIER)
      add_point(&lines[s->prompt], excess, y);
  }
  return fit_line(&lines[FALSE], &law->decodes) + fit_line(&lines[TRUE], &law->prompts);
}

gboolean
oct_calibrate_heat_fit(const oct_heat_trial *load, oct_heat_law *law) {
  const double medians[2] = {median_of(load, FALSE), median_of(load, TRUE)};
  double least = INFINITY;
  memset(law, 0, sizeof *law);
  if (!(medians[FALSE] > 0) || !(medians[TRUE] > 0))
    return FALSE;
  oct_heat_law best = {0}, one = {0};
  /* What the slowest prompt reaches: all of them are the highest load. */
  one.flops_per_s = INFINITY;
  for (guint i = LEADING; i < load->n; i++) {
    const oct_heat_step *s = &load->steps[i];
    if (s->prompt && s->seconds > 0 && ratio_of(s) < OUTLIER * medians[TRUE])
      one.flops_per_s = MIN(one.flops_per_s, s->flops / s->seconds);
  }
  if (!(one.flops_per_s > 0) || !isfinite(one.flops_per_s))
    return FALSE;
  for (guint k = 0; k <= STEPS; k++)
    for (guint j = 0; j < THRESHOLDS; j++) {
      one.time_constant_s = LEAST_S * pow(MOST_S / LEAST_S, (double)k / STEPS);
      one.threshold = 0.05 * j;
      const double left = fit_at(load, medians, &one);
      if (left < least) {
        least = left;
        best = one;
      }
    }
  if (best.prompts < LEAST)
    return FALSE;
  best.decodes = CLAMP(best.decodes, 0, best.prompts);
  *law = best;
  return TRUE;
}

/* Which steps have prompts: decodes first, then blocks of rare, frequent, and again rare ones. */
static void
draw_load(gboolean whole[OCT_HEAT_LOAD_MAX]) {
  static const double frequency[] = {0.05, 0.2, 0.5, 0.1, 0.8, 0.15, 0.35, 0.1};
  oct_rng rng;
  oct_rng_seed(&rng, SEED, 0);
  for (guint i = 0; i < OCT_HEAT_LOAD_MAX; i++)
    whole[i] =
        oct_rng_uniform(&rng) < frequency[i / BLOCK % G_N_ELEMENTS(frequency)] && i >= LEADING;
}

static void
price_step(const oct_cost *cost, const oct_drive *drive, const oct_drive_step *step,
           oct_heat_step *out) {
  oct_step_shape shape;
  oct_step_price price;
  oct_drive_shape(drive, step, &shape);
  oct_cost_step(cost, &shape, &price);
  out->priced_s = (double)price.stages[0].ns * 1e-9;
  out->flops = oct_heat_flops(&price.stages[0]);
}

gboolean
oct_calibrate_heat(oct_drive *drive, const oct_drive_options *options, const oct_cost *cost,
                   guint32 context, oct_heat_trial *load, GError **error) {
  oct_drive_step step = {.n_decode = DECODES, .context = context, .n_prefill = 1, .tokens = TOKENS};
  gboolean whole[OCT_HEAT_LOAD_MAX];
  gint64 times[OCT_HEAT_LOAD_MAX];
  memset(load, 0, sizeof *load);
  if (options->parallel.pipeline > 1 || !oct_drive_load_fits(options, &step, OCT_HEAT_LOAD_MAX))
    return TRUE;
  draw_load(whole);
  if (!oct_drive_load(drive, &step, whole, OCT_HEAT_LOAD_MAX, times, error))
    return FALSE;
  load->n = OCT_HEAT_LOAD_MAX;
  for (guint32 i = 0; i < load->n; i++) {
    oct_drive_step one = step;
    one.context = oct_drive_load_context(&step, load->n, i);
    one.n_prefill = whole[i];
    load->steps[i] = (oct_heat_step){.prompt = whole[i], .seconds = (double)times[i] * 1e-9};
    price_step(cost, drive, &one, &load->steps[i]);
  }
  return TRUE;
}

double
oct_calibrate_heat_factor(const oct_heat_law *law, const oct_step_price *price, double measured_s,
                          double rest_s, double rest_load) {
  double level = 0, excess = 0, load = 0;
  if (!oct_heat_is_known(law))
    return 1;
  load = oct_heat_load(law, oct_heat_flops(&price->stages[0]), measured_s);
  for (guint k = 0; k < SETTLING * (1 + (guint)(law->time_constant_s / measured_s)); k++) {
    level = oct_heat_after(law, level, rest_load, rest_s, NULL);
    level = oct_heat_after(law, level, load, measured_s, &excess);
  }
  return oct_heat_factor(law, price->graph, load, excess);
}
