#include "sim/calibrate/drive.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"

#define BLOCK       16
#define DEPTH       2
#define WARM_UP     3
#define REPEATS_MAX 256

G_DEFINE_QUARK(oct - calibrate - error - quark, oct_calibrate_error)

struct oct_drive {
  oct_world *world;
  oct_drive_options options;
  oct_capabilities capabilities;
  oct_instance_config config;
  guint16 devices[OCT_PROFILE_GPUS_MAX];
  guint32 instance, n_groups, slot_pages;
  guint64 number;
  oct_step_builder *builder;
};

/* The next event of this kind; FALSE with *error when the world fails instead. */
static gboolean
wait_for(oct_drive *d, oct_event_kind kind, oct_event *event, GError **error) {
  do {
    if (!oct_world_next(d->world, OCT_TIME_NEVER, event)) {
      g_set_error_literal(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD,
                          "the world is at rest where a step was due");
      return FALSE;
    }
    if (event->kind == OCT_EVENT_OPEN_FAILED || event->kind == OCT_EVENT_FAULT) {
      g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_WORLD, "%s",
                  event->fault->message);
      return FALSE;
    }
  } while (event->kind != kind);
  return TRUE;
}

static gboolean
submit(oct_drive *d, GError **error) {
  oct_submit answer = oct_world_submit(d->world, d->instance, oct_step_end(d->builder), error);
  oct_assert(answer != OCT_SUBMIT_FULL);
  return answer == OCT_SUBMIT_OK;
}

/* ---------------------------------------------------------------- life cycle */

static gboolean
check_groups(oct_drive *d, GError **error) {
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  d->n_groups = oct_model_groups(d->options.spec, d->options.kv_dtype, groups);
  for (guint32 g = 0; g < d->n_groups; g++) {
    if (groups[g].kind == OCT_ATTENTION_KDA) {
      g_set_error(error, OCT_CALIBRATE_ERROR, OCT_CALIBRATE_ERROR_MODEL,
                  "a model with recurrent state cannot be timed step by step");
      return FALSE;
    }
    d->config.memory.groups[g].n_device = d->options.max_slots * d->slot_pages;
  }
  d->config.memory.n_groups = d->n_groups;
  return TRUE;
}

oct_drive *
oct_drive_new(oct_world *world, const oct_drive_options *options, GError **error) {
  oct_drive *d = g_new0(oct_drive, 1);
  oct_event event;
  d->world = world;
  d->options = *options;
  d->builder = oct_step_builder_new();
  d->slot_pages = (options->max_context + BLOCK - 1) / BLOCK;
  d->config = (oct_instance_config){.label = "calibrate",
                                    .spec = options->spec,
                                    .parallel = options->parallel,
                                    .devices = d->devices,
                                    .kv_dtype = options->kv_dtype,
                                    .block_size = BLOCK,
                                    .depth = DEPTH,
                                    .max_slots = options->max_slots,
                                    .max_batched_tokens = options->max_tokens,
                                    .seed = 1,
                                    .eager = options->eager};
  for (guint16 i = 0; i < OCT_PROFILE_GPUS_MAX; i++)
    d->devices[i] = i;
  if (check_groups(d, error) && oct_world_open(world, &d->config, &d->instance, error) &&
      wait_for(d, OCT_EVENT_OPENED, &event, error)) {
    d->capabilities = *event.capabilities;
    return d;
  }
  oct_drive_free(d);
  return NULL;
}

void
oct_drive_free(oct_drive *drive) {
  if (drive == NULL)
    return;
  if (drive->instance != 0)
    oct_world_close(drive->world, drive->instance);
  oct_step_builder_free(drive->builder);
  g_free(drive);
}

const oct_capabilities *
oct_drive_capabilities(const oct_drive *drive) {
  return &drive->capabilities;
}

/* ---------------------------------------------------------------- steps */

/* A sequence takes a slot: its pages are the slot's own. */
static void
open_slot(oct_drive *d, guint32 slot, guint32 prompt_tokens) {
  oct_slot_open *open = oct_step_add_open(d->builder);
  open->slot = slot;
  open->prompt_tokens = prompt_tokens;
  open->temperature = 1; /* what a request has that says nothing */
  open->key = d->number << 16 | slot;
  for (guint32 g = 0; g < d->n_groups; g++)
    for (guint32 i = 0; i < d->slot_pages; i++)
      *oct_step_add_change(d->builder) = (oct_page_change){
          .slot = slot, .group = (guint16)g, .index = i, .page = slot * d->slot_pages + i};
}

/* Tokens of a prompt from `position` on; what is before counts as cached. */
static void
add_prompt(oct_drive *d, guint32 slot, guint32 n, guint32 position) {
  guint32 *ids;
  open_slot(d, slot, position + n);
  guint32 at = oct_step_add_tokens(d->builder, NULL, n, &ids);
  for (guint32 i = 0; i < n; i++)
    ids[i] = (guint32)(oct_mix64((guint64)slot << 32 | (position + i)) % d->options.spec->vocab);
  oct_slice *slice = oct_step_add_slice(d->builder);
  slice->slot = slot;
  slice->n_tokens = n;
  slice->position = position;
  slice->flags = OCT_SLICE_PREFILL;
  slice->sample = OCT_SAMPLE_LAST;
  slice->tokens = at;
}

/* Sequences that decode, in the step or while it rests. */
static guint32
n_decoding(const oct_drive_step *step) {
  return step->n_decode > 0 ? step->n_decode : MIN(step->rest, 1);
}

static void
add_decodes(oct_drive *d, guint32 n, guint32 position) {
  for (guint32 k = 0; k < n; k++) {
    oct_slice *slice = oct_step_add_slice(d->builder);
    slice->slot = k;
    slice->source = OCT_SOURCE_DEVICE;
    slice->n_tokens = 1;
    slice->position = position;
    slice->sample = OCT_SAMPLE_LAST;
  }
}

/* The i-th step, or decodes alone where it `rests`. Prompts take two sets of slots in turn: one may
 * still be running. */
static void
build(oct_drive *d, const oct_drive_step *step, gboolean rests, guint32 position, guint32 i) {
  oct_step_begin(d->builder, ++d->number, 1);
  add_decodes(d, rests ? n_decoding(step) : step->n_decode, position);
  for (guint32 k = 0; !rests && k < step->n_prefill; k++)
    add_prompt(d, n_decoding(step) + (i % 2) * step->n_prefill + k, step->tokens, step->before);
}

/* The step before decodes at `position`: it gives every sequence a token. */
static gboolean
begin_decodes(oct_drive *d, guint32 n, guint32 position, GError **error) {
  for (guint32 first = 0; first < n; first += d->options.max_tokens) {
    oct_event event;
    oct_step_begin(d->builder, ++d->number, 1);
    for (guint32 slot = first; slot < MIN(n, first + d->options.max_tokens); slot++)
      add_prompt(d, slot, 1, position - 1);
    if (!submit(d, error) || !wait_for(d, OCT_EVENT_STEP_DONE, &event, error))
      return FALSE;
  }
  return TRUE;
}

static int
compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double
oct_drive_median(double *values, guint32 n) {
  oct_assert(n > 0);
  qsort(values, n, sizeof *values, compare_doubles);
  return values[n / 2];
}

/* Steps of decodes: with those that are timed, and of the rest between. */
static guint32
decode_steps(const oct_drive_step *step, guint32 repeats) {
  return (WARM_UP + repeats) * ((step->n_decode > 0) + step->rest);
}

/* Where the first decode stands, so that they are at the context in the middle of `all` steps. */
static guint32
first_position(const oct_drive_step *step, guint32 all) {
  return step->n_decode > 0 ? step->context - 1 - all / 2 : 1;
}

/* One step of sequences that verify drafts of their last token, at the same place each time. */
static void
build_verified(oct_drive *d, const oct_drive_step *step) {
  oct_step_begin(d->builder, ++d->number, 1);
  for (guint32 k = 0; k < step->n_decode; k++) {
    guint32 *ids;
    guint32 at = oct_step_add_tokens(d->builder, NULL, 1 + step->drafts, &ids);
    for (guint32 i = 0; i <= step->drafts; i++)
      ids[i] = (guint32)(oct_mix64(d->number << 32 | k << 8 | i) % d->options.spec->vocab);
    oct_slice *slice = oct_step_add_slice(d->builder);
    slice->slot = k;
    slice->source = OCT_SOURCE_IDS;
    slice->n_tokens = 1 + step->drafts;
    slice->position = step->context - 1;
    slice->flags = OCT_SLICE_VERIFY;
    slice->sample = OCT_SAMPLE_ALL;
    slice->tokens = at;
  }
}

static gint64
time_verified(oct_drive *d, const oct_drive_step *step, guint32 repeats, GError **error) {
  double times[REPEATS_MAX];
  if (!begin_decodes(d, step->n_decode, step->context - 1, error))
    return -1;
  for (guint32 i = 0; i < WARM_UP + repeats; i++) {
    oct_event event;
    build_verified(d, step);
    if (!submit(d, error) || !wait_for(d, OCT_EVENT_STEP_DONE, &event, error))
      return -1;
    if (i >= WARM_UP)
      times[i - WARM_UP] = (double)(event.result->end_ns - event.result->start_ns);
  }
  return (gint64)oct_drive_median(times, repeats);
}

/* With so many steps in which decodes go on. */
static gboolean
fits(const oct_drive_options *o, const oct_drive_step *step, guint32 steps) {
  return n_decoding(step) + 2 * step->n_prefill <= o->max_slots &&
         step->n_decode * (1 + step->drafts) + step->n_prefill * step->tokens <= o->max_tokens &&
         step->before + step->tokens <= o->max_context &&
         (step->n_decode == 0 || step->context > steps / 2 + 1) &&
         MAX(step->context, 1) + steps + step->drafts <= o->max_context;
}

gboolean
oct_drive_fits(const oct_drive_options *options, const oct_drive_step *step, guint32 repeats) {
  return fits(options, step, decode_steps(step, repeats));
}

gboolean
oct_drive_load_fits(const oct_drive_options *options, const oct_drive_step *step, guint32 n) {
  return fits(options, step, n);
}

guint32
oct_drive_load_context(const oct_drive_step *step, guint32 n, guint32 i) {
  return first_position(step, n) + i + 1;
}

gboolean
oct_drive_load(oct_drive *d, const oct_drive_step *step, const gboolean *whole, guint32 n,
               gint64 *times, GError **error) {
  guint32 position = first_position(step, n), n_prompts = 0;
  oct_time last = 0;
  oct_assert(oct_drive_load_fits(&d->options, step, n) && step->drafts == 0);
  if (n_decoding(step) > 0 && !begin_decodes(d, n_decoding(step), position, error))
    return FALSE;
  for (guint32 i = 0; i < n + DEPTH - 1; i++) {
    oct_event event;
    if (i < n) {
      build(d, step, !whole[i], position, n_prompts);
      n_prompts += whole[i];
      position += !whole[i] || step->n_decode > 0;
      if (!submit(d, error))
        return FALSE;
    }
    if (i < DEPTH - 1)
      continue;
    if (!wait_for(d, OCT_EVENT_STEP_DONE, &event, error))
      return FALSE;
    times[i - (DEPTH - 1)] = last > 0 ? event.result->end_ns - last : 0;
    last = event.result->end_ns;
  }
  return TRUE;
}

gint64
oct_drive_time(oct_drive *d, const oct_drive_step *step, guint32 repeats, GError **error) {
  const guint32 every = step->rest + 1, n = (WARM_UP + repeats) * every;
  oct_assert(repeats >= 1 && repeats <= REPEATS_MAX && oct_drive_fits(&d->options, step, repeats));
  if (step->drafts > 0)
    return time_verified(d, step, repeats, error);
  g_autofree gint64 *times = g_new(gint64, n);
  g_autofree gboolean *whole = g_new(gboolean, n);
  double own[REPEATS_MAX];
  for (guint32 i = 0; i < n; i++)
    whole[i] = i % every == step->rest;
  if (!oct_drive_load(d, step, whole, n, times, error))
    return -1;
  for (guint32 i = 0; i < repeats; i++)
    own[i] = (double)times[(WARM_UP + i) * every + step->rest];
  return (gint64)oct_drive_median(own, repeats);
}

gboolean
oct_drive_fill(oct_drive *d, guint32 tokens, GError **error) {
  const guint32 room = d->options.max_tokens;
  oct_event event;
  for (guint32 slot = 0, at = 0; slot < d->options.max_slots;) {
    guint32 left = room;
    oct_step_begin(d->builder, ++d->number, 1);
    while (left > 0 && slot < d->options.max_slots) {
      const guint32 n = MIN(left, tokens - at);
      add_prompt(d, slot, n, at);
      left -= n;
      at += n;
      if (at < tokens)
        break; /* the next step goes on with it */
      slot++;
      at = 0;
    }
    if (!submit(d, error) || !wait_for(d, OCT_EVENT_STEP_DONE, &event, error))
      return FALSE;
  }
  return TRUE;
}

void
oct_drive_shape(const oct_drive *d, const oct_drive_step *step, oct_step_shape *shape) {
  const guint32 window = oct_cost_window(d->options.spec);
  memset(shape, 0, sizeof *shape);
  shape->n_domains = 1;
  oct_slice slice = {.n_tokens = 1 + step->drafts,
                     .sample = step->drafts > 0 ? OCT_SAMPLE_ALL : OCT_SAMPLE_LAST,
                     .flags = step->drafts > 0 ? OCT_SLICE_VERIFY : 0};
  for (guint32 i = 0; i < step->n_decode; i++)
    oct_domain_shape_add(&shape->domains[0], &slice, step->context - 1, window);
  slice.n_tokens = step->tokens;
  slice.sample = OCT_SAMPLE_LAST;
  slice.flags = OCT_SLICE_PREFILL;
  for (guint32 i = 0; i < step->n_prefill; i++)
    oct_domain_shape_add(&shape->domains[0], &slice, step->before, window);
  if (d->options.eager)
    shape->flags |= OCT_SHAPE_EAGER;
}
