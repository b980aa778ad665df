#include "sim/calibrate/heat.h"

#include <math.h>
#include <string.h>

#define BUSY    6
#define REST    24
#define ROUNDS  8
#define TOKENS  1024 /* of a prompt */
#define DECODES 16   /* beside it, and in the rest */

#define LEAST_S  2e-3 /* time constants that are tried */
#define MOST_S   0.5
#define STEPS    120
#define LEAST    0.01 /* of a slope that is worth a law */
#define SETTLING 8    /* rounds until the level is that of all further ones */

/* A line through (x, y) of one kind of step, scaled to 1 at x = 0: its slope, and what is left. */
typedef struct line {
  guint32 n;
  double x, y, xx, xy, yy;
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

/* Returns the squares that are left, relative to the line's height. */
static double
fit_line(const line *l, double *slope) {
  const double n = l->n, spread = n * l->xx - l->x * l->x;
  const double b = spread > 1e-12 ? (n * l->xy - l->x * l->y) / spread : 0;
  const double a = (l->y - b * l->x) / n;
  *slope = a > 0 ? b / a : 0;
  return a > 0 ? (l->yy - 2 * a * l->y - 2 * b * l->xy + n * a * a + 2 * a * b * l->x +
                  b * b * l->xx) /
                     (a * a)
               : INFINITY;
}

/* The mean level during each step, once rounds have gone on for long. */
static void
levels_of(const oct_heat_round *round, const oct_heat_law *law, double *levels) {
  double level = 0;
  for (guint32 k = 0; k < SETTLING; k++)
    for (guint32 p = 0; p < round->rest + round->busy; p++) {
      const double seconds = (double)round->times[p] * 1e-9;
      const double flops = p < round->rest ? round->decode_flops : round->prompt_flops;
      level = oct_heat_after(law, level, MIN(1, flops / (seconds * law->flops_per_s)), seconds,
                             &levels[p]);
    }
}

/* The slopes at this time constant; what they do not explain. */
static double
fit_at(const oct_heat_round *round, double time_constant_s, oct_heat_law *law) {
  double levels[OCT_HEAT_ROUND_MAX];
  line decodes = {0}, prompts = {0};
  law->time_constant_s = time_constant_s;
  levels_of(round, law, levels);
  for (guint32 p = 0; p < round->rest + round->busy; p++)
    add_point(p < round->rest ? &decodes : &prompts, levels[p], (double)round->times[p]);
  return fit_line(&decodes, &law->decodes) + fit_line(&prompts, &law->prompts);
}

gboolean
oct_calibrate_heat_fit(const oct_heat_round *round, oct_heat_law *law) {
  double least = INFINITY, longest_s = 0;
  memset(law, 0, sizeof *law);
  if (round->busy < 2 || round->rest < 2)
    return FALSE;
  for (guint32 p = round->rest; p < round->rest + round->busy; p++)
    longest_s = MAX(longest_s, (double)round->times[p] * 1e-9);
  if (!(longest_s > 0) || !(round->prompt_flops > 0))
    return FALSE;
  oct_heat_law best = {0}, one = {.flops_per_s = round->prompt_flops / longest_s};
  for (guint k = 0; k <= STEPS; k++) {
    const double left = fit_at(round, LEAST_S * pow(MOST_S / LEAST_S, (double)k / STEPS), &one);
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

static double
flops_of(const oct_cost *cost, const oct_drive *drive, const oct_drive_step *step) {
  oct_step_shape shape;
  oct_step_price price;
  double flops = 0;
  oct_drive_shape(drive, step, &shape);
  oct_cost_step(cost, &shape, &price);
  for (guint g = 0; g < OCT_COST_GROUPS; g++)
    flops += price.stages[0].groups[g].flops;
  return flops;
}

gboolean
oct_calibrate_heat(oct_drive *drive, const oct_drive_options *options, const oct_cost *cost,
                   guint32 context, oct_heat_law *law, GError **error) {
  const oct_drive_step step = {
      .n_decode = DECODES, .context = context, .n_prefill = 1, .tokens = TOKENS, .rest = REST};
  const oct_drive_step decodes = {.n_decode = DECODES, .context = context};
  oct_heat_round round = {.rest = REST, .busy = BUSY};
  memset(law, 0, sizeof *law);
  G_STATIC_ASSERT(REST + BUSY <= OCT_HEAT_ROUND_MAX);
  if (options->parallel.pipeline > 1 || !oct_drive_rounds_fit(options, &step, BUSY, ROUNDS))
    return TRUE;
  if (!oct_drive_rounds(drive, &step, BUSY, ROUNDS, round.times, error))
    return FALSE;
  round.decode_flops = flops_of(cost, drive, &decodes);
  round.prompt_flops = flops_of(cost, drive, &step);
  (void)oct_calibrate_heat_fit(&round, law);
  return TRUE;
}

double
oct_calibrate_heat_factor(const oct_heat_law *law, const oct_step_price *price, double measured_s,
                          double rest_s, double rest_load) {
  double level = 0, mean = 0, load = 0;
  if (!oct_heat_is_known(law))
    return 1;
  load = oct_heat_load(law, &price->stages[0], measured_s);
  for (guint k = 0; k < SETTLING * (1 + (guint)(law->time_constant_s / measured_s)); k++) {
    level = oct_heat_after(law, level, rest_load, rest_s, NULL);
    level = oct_heat_after(law, level, load, measured_s, &mean);
  }
  return oct_heat_factor(law, price->graph, load, mean);
}
