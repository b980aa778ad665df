#include "sim/calibrate/heat.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

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
levels_of(const oct_heat_rounds *r, const oct_heat_round *round, const oct_heat_law *law,
          double *levels) {
  double level = 0;
  for (guint32 k = 0; k < SETTLING; k++)
    for (guint32 p = 0; p < round->rest + round->busy; p++) {
      const double seconds = (double)round->times[p] * 1e-9;
      const double flops = p < round->rest ? r->decode_flops : r->prompt_flops;
      level = oct_heat_after(law, level, MIN(1, flops / (seconds * law->flops_per_s)), seconds,
                             &levels[p]);
    }
}

/* The slopes at this time constant; what they do not explain. */
static double
fit_at(const oct_heat_rounds *r, double time_constant_s, oct_heat_law *law) {
  line decodes = {0}, prompts = {0};
  law->time_constant_s = time_constant_s;
  for (guint i = 0; i < r->n; i++) {
    const oct_heat_round *round = &r->rounds[i];
    double levels[OCT_HEAT_ROUND_MAX];
    levels_of(r, round, law, levels);
    for (guint32 p = 0; p < round->rest + round->busy; p++)
      add_point(p < round->rest ? &decodes : &prompts, levels[p], (double)round->times[p]);
  }
  return fit_line(&decodes, &law->decodes) + fit_line(&prompts, &law->prompts);
}

/* Of a step with prompts, in seconds; 0: there are too few of them. */
static double
longest_prompt(const oct_heat_rounds *r) {
  gint64 longest = 0;
  guint32 n = 0;
  for (guint i = 0; i < r->n; i++) {
    const oct_heat_round *round = &r->rounds[i];
    for (guint32 p = round->rest; p < round->rest + round->busy; p++, n++)
      longest = MAX(longest, round->times[p]);
  }
  return n > 1 ? (double)longest * 1e-9 : 0;
}

gboolean
oct_calibrate_heat_fit(const oct_heat_rounds *rounds, oct_heat_law *law) {
  const double longest_s = longest_prompt(rounds);
  double least = INFINITY;
  memset(law, 0, sizeof *law);
  if (!(longest_s > 0) || !(rounds->prompt_flops > 0))
    return FALSE;
  oct_heat_law best = {0}, one = {.flops_per_s = rounds->prompt_flops / longest_s};
  for (guint k = 0; k <= STEPS; k++) {
    const double left = fit_at(rounds, LEAST_S * pow(MOST_S / LEAST_S, (double)k / STEPS), &one);
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
                   guint32 context, oct_heat_rounds *rounds, GError **error) {
  /* How many decodes, prompts, and rounds. */
  static const guint32 kinds[OCT_HEAT_ROUNDS_MAX][3] = {
      {24, 6, 6}, {16, 1, 10}, {8, 2, 10}, {4, 1, 12}, {2, 1, 16}};
  oct_drive_step step = {.n_decode = DECODES, .context = context, .n_prefill = 1, .tokens = TOKENS};
  const oct_drive_step decodes = {.n_decode = DECODES, .context = context};
  *rounds = (oct_heat_rounds){.decode_flops = flops_of(cost, drive, &decodes),
                              .prompt_flops = flops_of(cost, drive, &step)};
  for (guint i = 0; i < OCT_HEAT_ROUNDS_MAX; i++) {
    oct_heat_round *r = &rounds->rounds[i];
    step.rest = r->rest = kinds[i][0];
    r->busy = kinds[i][1];
    oct_assert(r->rest + r->busy <= OCT_HEAT_ROUND_MAX);
    if (options->parallel.pipeline > 1 ||
        !oct_drive_rounds_fit(options, &step, r->busy, kinds[i][2]))
      return TRUE;
    if (!oct_drive_rounds(drive, &step, r->busy, kinds[i][2], r->times, error))
      return FALSE;
    rounds->n++;
  }
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
