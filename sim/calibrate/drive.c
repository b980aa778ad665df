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

/* The i-th step. Prompts take two sets of slots in turn: one may still be running. */
static void
build(oct_drive *d, const oct_drive_step *step, guint32 first_position, guint32 i) {
  oct_step_begin(d->builder, ++d->number, 1);
  for (guint32 k = 0; k < step->n_decode; k++) {
    oct_slice *slice = oct_step_add_slice(d->builder);
    slice->slot = k;
    slice->source = OCT_SOURCE_DEVICE;
    slice->n_tokens = 1;
    slice->position = first_position + i;
    slice->sample = OCT_SAMPLE_LAST;
  }
  for (guint32 k = 0; k < step->n_prefill; k++)
    add_prompt(d, step->n_decode + (i % 2) * step->n_prefill + k, step->tokens, step->before);
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
compare_times(const void *a, const void *b) {
  gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;
  return (x > y) - (x < y);
}

gboolean
oct_drive_fits(const oct_drive_options *o, const oct_drive_step *step, guint32 repeats) {
  const guint32 steps = WARM_UP + repeats;
  return step->n_decode + 2 * step->n_prefill <= o->max_slots &&
         step->n_decode + step->n_prefill * step->tokens <= o->max_tokens &&
         step->before + step->tokens <= o->max_context &&
         (step->n_decode == 0 ||
          (step->context + steps / 2 <= o->max_context && step->context > steps / 2 + 1));
}

gint64
oct_drive_time(oct_drive *d, const oct_drive_step *step, guint32 repeats, GError **error) {
  gint64 times[REPEATS_MAX];
  oct_time last = 0;
  const guint32 all = WARM_UP + repeats;
  oct_assert(repeats >= 1 && repeats <= REPEATS_MAX && oct_drive_fits(&d->options, step, repeats));
  /* Sequences grow by a token a step: in the middle they are at the context. */
  const guint32 first = step->n_decode > 0 ? step->context - 1 - all / 2 : 0;
  if (step->n_decode > 0 && !begin_decodes(d, step->n_decode, first, error))
    return -1;
  for (guint32 i = 0; i < all + DEPTH - 1; i++) {
    oct_event event;
    if (i < all) {
      build(d, step, first, i);
      if (!submit(d, error))
        return -1;
    }
    if (i < DEPTH - 1)
      continue;
    if (!wait_for(d, OCT_EVENT_STEP_DONE, &event, error))
      return -1;
    guint32 done = i - (DEPTH - 1);
    if (done >= WARM_UP)
      times[done - WARM_UP] = event.result->end_ns - last;
    last = event.result->end_ns;
  }
  qsort(times, repeats, sizeof *times, compare_times);
  return times[repeats / 2];
}

void
oct_drive_shape(const oct_drive *d, const oct_drive_step *step, oct_step_shape *shape) {
  const guint32 window = oct_cost_window(d->options.spec);
  memset(shape, 0, sizeof *shape);
  shape->n_domains = 1;
  oct_slice slice = {.n_tokens = 1, .sample = OCT_SAMPLE_LAST};
  for (guint32 i = 0; i < step->n_decode; i++)
    oct_domain_shape_add(&shape->domains[0], &slice, step->context - 1, window);
  slice.n_tokens = step->tokens;
  slice.flags = OCT_SLICE_PREFILL;
  for (guint32 i = 0; i < step->n_prefill; i++)
    oct_domain_shape_add(&shape->domains[0], &slice, step->before, window);
  if (d->options.eager)
    shape->flags |= OCT_SHAPE_EAGER;
}
