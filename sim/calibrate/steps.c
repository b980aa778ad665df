#include "sim/calibrate/steps.h"

#include <string.h>

#include "engine/base/assert.h"

#define LONG_STEP   1024 /* tokens */
#define CHUNK       1024 /* tokens of a prompt in a step of several */
#define SHORT_SHARE 8    /* contexts over short ones */
/* Prompts up to that are served between decodes, more stand in a queue. */
#define REST_TOKENS 2048
#define REST        4 /* steps of decodes */
/* What comes alone finds a chip that has rested. */
#define LONE_REST 16

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
  return step->n_decode * (1 + step->drafts) + step->n_prefill * step->tokens;
}

static oct_step_curve
curve_for(const run *r, const oct_drive_step *step, gboolean graph, gboolean fits) {
  const gboolean is_short = step->n_decode > 0 && step->context == r->out->short_context;
  if (!fits || (!graph && is_short))
    return OCT_STEP_CHECK;
  if (step->drafts > 0)
    return OCT_STEP_VERIFY;
  if (!graph && step->n_decode > 0 && step->n_prefill > 0)
    return OCT_STEP_MIXED;
  return !graph ? OCT_STEP_EAGER : is_short ? OCT_STEP_GRAPH_SHORT : OCT_STEP_GRAPH;
}

static gint64
price_of(const run *r, const oct_drive_step *step, oct_step_price *price) {
  oct_step_shape shape;
  gint64 ns = 0;
  oct_drive_shape(r->drive, step, &shape);
  oct_cost_step(r->cost, &shape, price);
  for (guint32 s = 0; s < price->n_stages; s++)
    ns += price->stages[s].ns + price->stages[s].send_ns;
  return ns;
}

/* By how much the step took longer for what ran before it: itself, and its rests. */
static double
heat_of(const run *r, const oct_drive_step *step, const oct_step_price *price, gint64 ns) {
  const oct_drive_step rest = {.n_decode = MAX(step->n_decode, 1),
                               .context = step->n_decode > 0 ? step->context : step->rest + 1};
  oct_step_price resting;
  double rest_s = 0, load = 0;
  if (step->rest > 0 && oct_heat_is_known(&r->out->heat)) {
    rest_s = (double)price_of(r, &rest, &resting) * 1e-9;
    load = oct_heat_load(&r->out->heat, oct_heat_flops(&resting.stages[0]), rest_s);
  }
  return oct_calibrate_heat_factor(&r->out->heat, price, (double)ns * 1e-9, rest_s * step->rest,
                                   load);
}

/* Times a step, and prices it without ratios of steps. */
static gboolean
add(run *r, const oct_drive_step *step, gboolean fits) {
  oct_step_timings *out = r->out;
  oct_step_price price;
  /* Long steps take long. */
  const guint32 repeats = tokens_of(step) > LONG_STEP || step->rest > REST
                              ? (r->options->repeats + 1) / 2
                              : r->options->repeats;
  if (!oct_drive_fits(&r->options->drive, step, repeats) || out->n == OCT_STEP_TIMINGS_MAX)
    return TRUE;
  gint64 ns = oct_drive_time(r->drive, step, repeats, r->error);
  if (ns < 0)
    return FALSE;
  const double priced = (double)price_of(r, step, &price);
  out->timings[out->n++] =
      (oct_step_timing){.step = *step,
                        .graph = price.graph,
                        .curve = curve_for(r, step, price.graph, fits),
                        .measured_ns = ns,
                        .priced_ns = (gint64)(priced * heat_of(r, step, &price, ns))};
  return TRUE;
}

static gboolean
add_decodes(run *r) {
  static const guint32 batches[] = {1,  2,  4,  8,  12,  16,  20,  24,  28,  32,  40,  48,
                                    56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512};
  static const guint32 checked[] = {1, 16, 64, 256};
  const guint32 context = r->out->context;
  for (guint i = 0; i < G_N_ELEMENTS(batches); i++)
    if (!add(r, &(oct_drive_step){.n_decode = batches[i], .context = context}, TRUE) ||
        !add(r, &(oct_drive_step){.n_decode = batches[i], .context = r->out->short_context}, TRUE))
      return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS(checked); i++)
    if (!add(r, &(oct_drive_step){.n_decode = checked[i], .context = context / 4}, FALSE) ||
        !add(r, &(oct_drive_step){.n_decode = checked[i], .context = context * 3 / 2}, FALSE))
      return FALSE;
  return TRUE;
}

/* By tokens from 2 to 576; some numbers of sequences and drafts give the same. */
static gboolean
add_verified(run *r) {
  static const guint32 sizes[][2] = {{1, 1},  {1, 4},  {16, 1}, {16, 3}, {16, 4}, {16, 8}, {64, 1},
                                     {64, 2}, {64, 3}, {64, 4}, {64, 5}, {64, 6}, {64, 7}, {64, 8}};
  for (guint i = 0; i < G_N_ELEMENTS(sizes); i++)
    if (!add(r,
             &(oct_drive_step){
                 .n_decode = sizes[i][0], .drafts = sizes[i][1], .context = r->out->context},
             TRUE))
      return FALSE;
  return TRUE;
}

static gboolean
add_prompts(run *r) {
  static const guint32 tokens[] = {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  for (guint i = 0; i < G_N_ELEMENTS(tokens); i++) {
    const guint32 n = MAX(1, tokens[i] / CHUNK);
    const oct_drive_step step = {
        .n_prefill = n, .tokens = tokens[i] / n, .rest = tokens[i] <= REST_TOKENS ? REST : 0};
    if (!add(r, &step, TRUE))
      return FALSE;
  }
  static const oct_drive_step checks[] = {
      {.n_prefill = 1, .tokens = 1024, .before = 1024, .rest = REST},
      {.n_prefill = 1, .tokens = 1024},
      {.n_prefill = 1, .tokens = 2048, .rest = REST},
      {.n_prefill = 8, .tokens = 128, .rest = REST}};
  for (guint i = 0; i < G_N_ELEMENTS(checks); i++)
    if (!add(r, &checks[i], FALSE))
      return FALSE;
  return TRUE;
}

/* Decodes and the prompts beside them: by tokens of the step. One decode already makes another row
 * of tiles of a prompt's products. */
static gboolean
add_mixed(run *r) {
  static const guint32 sizes[][2] = {{4, 16},    {16, 64},   {32, 128},   {64, 256},   {64, 512},
                                     {1, 1024},  {16, 1024}, {64, 1024},  {128, 1024}, {224, 1024},
                                     {16, 2048}, {64, 2048}, {192, 2048}, {64, 4096},  {64, 8192}};
  const guint32 room = r->options->drive.max_tokens;
  for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
    const guint32 n = MAX(1, sizes[i][1] / CHUNK);
    /* Decodes come on top of prompts while a step has room for them. */
    const guint32 tokens =
        sizes[i][0] + sizes[i][1] <= room ? sizes[i][1] : sizes[i][1] - sizes[i][0];
    const oct_drive_step step = {.n_decode = sizes[i][0],
                                 .context = r->options->context,
                                 .n_prefill = n,
                                 .tokens = tokens / n,
                                 .rest = tokens <= REST_TOKENS ? REST : 0};
    if (!add(r, &step, TRUE))
      return FALSE;
  }
  return add(r,
             &(oct_drive_step){
                 .n_decode = 64, .context = r->options->context, .n_prefill = 1, .tokens = 1024},
             FALSE);
}

static int
time_all(oct_world *world, void *arg) {
  run *r = arg;
  r->drive = oct_drive_new(world, &r->options->drive, r->error);
  if (r->drive == NULL)
    return 1;
  r->out->graph_max_batch = oct_drive_capabilities(r->drive)->graph_max_batch;
  r->out->open_s = (double)world->now_ns * 1e-9;
  const oct_drive_options *o = &r->options->drive;
  gboolean fine =
      oct_drive_fill(r->drive, MIN(o->max_context, r->options->context * 3 / 2), r->error) &&
      oct_calibrate_heat(r->drive, o, r->cost, r->options->context, &r->out->load, r->error);
  if (fine)
    (void)oct_calibrate_heat_fit(&r->out->load, &r->out->heat);
  fine = fine && add_decodes(r) &&
         (!oct_drive_capabilities(r->drive)->speculation || add_verified(r)) && add_prompts(r) &&
         add_mixed(r);
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
  out->context = options->context;
  out->short_context = options->context / SHORT_SHARE;
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
curve_of(const oct_step_timings *timings, oct_step_curve which, oct_curve *curve) {
  guint32 counts[OCT_PROFILE_POINTS_MAX] = {0};
  curve->n = 0;
  for (guint32 i = 0; i < timings->n; i++) {
    const oct_step_timing *t = &timings->timings[i];
    const double tokens = tokens_of(&t->step);
    /* Of prompts beside decodes a token more may be another row of tiles. */
    const double near = which == OCT_STEP_MIXED ? 0.005 : 0.03;
    if (t->curve != which || t->priced_ns <= 0)
      continue;
    guint32 at = 0;
    while (at < curve->n && curve->x[at] < tokens * (1 - near))
      at++;
    if (at == curve->n || curve->x[at] > tokens * (1 + near)) {
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

static void
ratios_of(const oct_step_timings *timings, oct_step_ratio *out) {
  oct_curve *const curves[] = {&out->eager, &out->graph, &out->graph_short, &out->verify,
                               &out->mixed};
  for (guint i = 0; i < G_N_ELEMENTS(curves); i++) {
    curve_of(timings, OCT_STEP_EAGER + i, curves[i]);
    if (curves[i]->n < 2)
      curves[i]->n = 0;
  }
  out->graph_context = timings->context;
  out->graph_short_context = timings->short_context;
}

static void
set_curve(oct_calibration *calibration, const char *key, const char *note, const oct_curve *curve) {
  g_autofree char *tokens = g_strdup_printf("%s_tokens", key);
  oct_calibration_set_list(calibration, "step_ratio", tokens, NULL, curve->x, curve->n);
  oct_calibration_set_list(calibration, "step_ratio", key, note, curve->y, curve->n);
}

static void
set_heat(oct_calibration *calibration, const oct_heat_law *law) {
  if (!oct_heat_is_known(law))
    return;
  oct_calibration_set(calibration, "heat", "time_constant_s",
                      "how soon the clock follows what is computed", law->time_constant_s);
  oct_calibration_set(calibration, "heat", "threshold", "the level from which it falls",
                      law->threshold);
  oct_calibration_set(calibration, "heat", "prompts",
                      "how much longer steps with prompts take behind others for long",
                      law->prompts);
  oct_calibration_set(calibration, "heat", "decodes", "and decodes", law->decodes);
  oct_calibration_set(calibration, "heat", "flops_per_s", "of those prompts", law->flops_per_s);
}

void
oct_calibrate_set_ratios(oct_calibration *calibration, const oct_step_timings *timings) {
  oct_step_ratio ratio;
  ratios_of(timings, &ratio);
  if (ratio.eager.n == 0 || ratio.graph.n == 0)
    return;
  set_curve(calibration, "eager", "whole steps over the sum of their kernels", &ratio.eager);
  set_curve(calibration, "graph", "the same in graphs", &ratio.graph);
  if (ratio.verify.n > 0)
    set_curve(calibration, "verify", "the same of steps that verify drafts", &ratio.verify);
  if (ratio.mixed.n > 0)
    set_curve(calibration, "mixed", "the same of prompts beside decodes", &ratio.mixed);
  set_heat(calibration, &timings->heat);
  if (ratio.graph_short.n == 0)
    return;
  oct_calibration_set(calibration, "step_ratio", "graph_context", "of those", ratio.graph_context);
  set_curve(calibration, "graph_short", "the same at a short context", &ratio.graph_short);
  oct_calibration_set(calibration, "step_ratio", "graph_short_context", "which is this",
                      ratio.graph_short_context);
}

double
oct_calibrate_ratio_of(const oct_step_timings *timings, const oct_step_timing *timing) {
  const oct_drive_step *s = &timing->step;
  const oct_ratio_step step = {.graph = timing->graph,
                               .verifies = s->drafts > 0,
                               .mixed = s->n_decode > 0 && s->n_prefill > 0,
                               .tokens = tokens_of(s),
                               .context = s->context};
  oct_step_ratio ratio;
  ratios_of(timings, &ratio);
  return oct_step_ratio_of(&ratio, &step);
}
