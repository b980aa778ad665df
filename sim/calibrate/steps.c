#include "sim/calibrate/steps.h"

#include <string.h>

#include "engine/base/assert.h"

#define LONG_STEP    1024 /* tokens */
#define CHUNK        1024 /* tokens of a prompt in a step of several */
#define MIXED_SHARE  4    /* at most one token of so many is a decode, in a mixed step */
#define MIXED_DECODE 64

typedef struct run {
  const oct_steps_options *options;
  const oct_profile *profile;
  oct_step_timings *out;
  oct_drive *drive;
  oct_cost *cost;
  GError **error;
} run;

static guint32
tokens_of(const oct_drive_step *step) {
  return step->n_decode + step->n_prefill * step->tokens;
}

/* Times a step, and prices it without ratios of steps. */
static gboolean
add(run *r, const oct_drive_step *step, gboolean fits) {
  oct_step_timings *out = r->out;
  oct_step_shape shape;
  oct_step_price price;
  /* Long steps take long. */
  const guint32 repeats =
      tokens_of(step) > LONG_STEP ? (r->options->repeats + 1) / 2 : r->options->repeats;
  if (!oct_drive_fits(&r->options->drive, step, repeats) || out->n == OCT_STEP_TIMINGS_MAX)
    return TRUE;
  gint64 ns = oct_drive_time(r->drive, step, repeats, r->error);
  if (ns < 0)
    return FALSE;
  oct_drive_shape(r->drive, step, &shape);
  oct_cost_step(r->cost, &shape, &price);
  gint64 priced = 0;
  for (guint32 s = 0; s < price.n_stages; s++)
    priced += price.stages[s].ns + price.stages[s].send_ns;
  out->timings[out->n++] = (oct_step_timing){
      .step = *step, .graph = price.graph, .fits = fits, .measured_ns = ns, .priced_ns = priced};
  return TRUE;
}

static gboolean
add_decodes(run *r) {
  static const guint32 batches[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};
  const guint32 context = r->options->context;
  for (guint i = 0; i < G_N_ELEMENTS(batches); i++)
    if (!add(r, &(oct_drive_step){.n_decode = batches[i], .context = context}, TRUE))
      return FALSE;
  /* Other contexts are checks: the ratio is a matter of tokens. */
  for (guint32 n = 1; n <= 64; n *= 8)
    if (!add(r, &(oct_drive_step){.n_decode = n, .context = 2 * context}, FALSE) ||
        !add(r, &(oct_drive_step){.n_decode = n, .context = context / 4}, FALSE))
      return FALSE;
  return TRUE;
}

static gboolean
add_prompts(run *r) {
  static const guint32 tokens[] = {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  for (guint i = 0; i < G_N_ELEMENTS(tokens); i++) {
    const guint32 n = MAX(1, tokens[i] / CHUNK);
    const guint32 decodes = MIN(MIXED_DECODE, tokens[i] / MIXED_SHARE);
    oct_drive_step step = {.n_prefill = n, .tokens = tokens[i] / n};
    if (!add(r, &step, TRUE))
      return FALSE;
    step = (oct_drive_step){.n_decode = decodes,
                            .context = r->options->context,
                            .n_prefill = n,
                            .tokens = (tokens[i] - decodes) / n};
    if (!add(r, &step, TRUE))
      return FALSE;
  }
  return add(r, &(oct_drive_step){.n_prefill = 1, .tokens = 1024, .before = 1024}, FALSE) &&
         add(r, &(oct_drive_step){.n_prefill = 1, .tokens = 2048}, FALSE) &&
         add(r, &(oct_drive_step){.n_prefill = 8, .tokens = 128}, FALSE);
}

static int
time_all(oct_world *world, void *arg) {
  run *r = arg;
  r->drive = oct_drive_new(world, &r->options->drive, r->error);
  if (r->drive == NULL)
    return 1;
  r->out->graph_max_batch = oct_drive_capabilities(r->drive)->graph_max_batch;
  r->out->open_s = (double)world->now_ns * 1e-9;
  gboolean fine = add_decodes(r) && add_prompts(r);
  oct_drive_free(r->drive);
  return fine ? 0 : 1;
}

gboolean
oct_calibrate_steps(oct_world *world, const oct_steps_options *options, const oct_profile *profile,
                    oct_step_timings *out, GError **error) {
  const oct_cost_options cost_options = {.kv_dtype = options->drive.kv_dtype,
                                         .eager = options->drive.eager};
  oct_profile plain = *profile;
  memset(out, 0, sizeof *out);
  memset(&plain.step_ratio, 0, sizeof plain.step_ratio);
  g_autoptr(oct_cost) cost = oct_cost_new(options->drive.spec, &options->drive.parallel, NULL,
                                          &plain, &cost_options, error);
  if (cost == NULL)
    return FALSE;
  run r = {.options = options, .profile = &plain, .out = out, .cost = cost, .error = error};
  return oct_world_run(world, time_all, &r) == 0;
}

/* ---------------------------------------------------------------- ratios */

/* By tokens, rising; steps of equal tokens are averaged. */
static void
curve_of(const oct_step_timings *timings, gboolean graph, oct_curve *curve) {
  guint32 counts[OCT_PROFILE_POINTS_MAX] = {0};
  curve->n = 0;
  for (guint32 i = 0; i < timings->n; i++) {
    const oct_step_timing *t = &timings->timings[i];
    const double tokens = tokens_of(&t->step);
    if (!t->fits || t->graph != graph || t->priced_ns <= 0)
      continue;
    guint32 at = 0;
    while (at < curve->n && curve->x[at] < tokens * 0.97)
      at++;
    if (at == curve->n || curve->x[at] > tokens * 1.03) {
      memmove(&curve->x[at + 1], &curve->x[at], (curve->n - at) * sizeof *curve->x);
      memmove(&curve->y[at + 1], &curve->y[at], (curve->n - at) * sizeof *curve->y);
      memmove(&counts[at + 1], &counts[at], (curve->n - at) * sizeof *counts);
      curve->x[at] = tokens;
      curve->y[at] = 0;
      counts[at] = 0;
      curve->n++;
    }
    const double ratio = (double)t->measured_ns / (double)t->priced_ns;
    curve->y[at] += (ratio - curve->y[at]) / ++counts[at];
  }
}

void
oct_calibrate_set_ratios(oct_calibration *calibration, const oct_step_timings *timings) {
  static const struct {
    const char *tokens, *ratio;
  } keys[2] = {{"eager_tokens", "eager"}, {"graph_tokens", "graph"}};
  oct_curve curves[2];
  curve_of(timings, FALSE, &curves[0]);
  curve_of(timings, TRUE, &curves[1]);
  if (curves[0].n < 2 || curves[1].n < 2)
    return;
  for (int graph = 0; graph < 2; graph++) {
    const oct_curve *c = &curves[graph];
    oct_calibration_set_list(calibration, "step_ratio", keys[graph].tokens, NULL, c->x, c->n);
    oct_calibration_set_list(calibration, "step_ratio", keys[graph].ratio,
                             "whole steps over the sum of their kernels", c->y, c->n);
  }
}

double
oct_calibrate_ratio_of(const oct_step_timings *timings, const oct_step_timing *timing) {
  oct_curve curve;
  curve_of(timings, timing->graph, &curve);
  return curve.n < 2 ? 1 : oct_step_ratio_at(&curve, tokens_of(&timing->step));
}
