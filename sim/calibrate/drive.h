/* Drives a world with equal steps and says how long one takes: what `octet calibrate` compares with
 * the sum of kernels measured one by one.
 *
 * Steps are submitted as an engine that runs ahead does, the next before the last has ended, and a
 * time is the median of the gaps between their ends. Contents do not matter: a prompt is begun
 * again in every step, what is before it counts as cached, and decodes go on from token to token.
 * Any world will do; a simulated one gives the times that it was told.
 *
 * All calls are made on the world's thread (oct_world_run()).
 */
#ifndef OCT_SIM_CALIBRATE_DRIVE_H
#define OCT_SIM_CALIBRATE_DRIVE_H

#include "engine/backend.h"
#include "sim/cost/cost.h"

#define OCT_CALIBRATE_ERROR (oct_calibrate_error_quark())
GQuark oct_calibrate_error_quark(void);
typedef enum oct_calibrate_error {
  OCT_CALIBRATE_ERROR_WORLD, /* it could not be opened, or failed on the way */
  OCT_CALIBRATE_ERROR_MODEL, /* a model that cannot be driven like this */
} oct_calibrate_error;

/* A step: decodes at `context` (their own token included) on average, each of which may verify
 * `drafts` as well, and prompts of `tokens` tokens each after `before` cached ones. Between two of
 * them `rest` steps of its decodes alone, or of one sequence where it has none: a chip that has
 * just computed prompts runs hotter, and slower, than one that decoded. */
typedef struct oct_drive_step {
  guint32 n_decode, context, drafts;
  guint32 n_prefill, tokens, before;
  guint32 rest;
} oct_drive_step;

typedef struct oct_drive_options {
  const oct_model_spec *spec;
  oct_parallel parallel;
  oct_dtype kv_dtype;
  guint32 max_slots;   /* the most sequences of a step */
  guint32 max_context; /* of a sequence */
  guint32 max_tokens;  /* of a step */
  gboolean eager;
} oct_drive_options;

typedef struct oct_drive oct_drive;

/* Opens an instance on `world` (borrowed). NULL with *error. A model with
 * recurrent state is refused (MODEL): its sequences cannot stay where they are. */
oct_drive *oct_drive_new(oct_world *world, const oct_drive_options *options,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_drive_free(oct_drive *drive); /* accepts NULL; closes the instance */
/* What the instance said of itself. Borrowed. */
const oct_capabilities *oct_drive_capabilities(const oct_drive *drive);

/* Whether a step is within the limits of an instance; each prompt needs two slots. */
gboolean oct_drive_fits(const oct_drive_options *options, const oct_drive_step *step,
                        guint32 repeats);
/* Nanoseconds of one such step, which must fit: the median of `repeats`, after a few that do not
 * count; below 0 with *error. Steps with drafts, behind which nothing is submitted before their
 * ends, have no prompts and are timed by what the world says of each. */
gint64 oct_drive_time(oct_drive *drive, const oct_drive_step *step, guint32 repeats,
                      GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Runs n steps, which must fit, each submitted ahead: the step itself where whole[i], elsewhere its
 * decodes alone. times[i] becomes the nanoseconds between the end of the i-th and of the one
 * before; the first has 0. The mean context goes up by one a step and is the step's in the middle;
 * the second function tells it. No drafts; step->rest does not count. FALSE with *error. */
gboolean oct_drive_load_fits(const oct_drive_options *options, const oct_drive_step *step,
                             guint32 n);
guint32 oct_drive_load_context(const oct_drive_step *step, guint32 n, guint32 i);
gboolean oct_drive_load(oct_drive *drive, const oct_drive_step *step, const gboolean *whole,
                        guint32 n, gint64 *times, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Computes prompts of so many tokens in every slot, so that the cache that decodes read has keys
 * and values as they are served with: memory full of zeros draws less power. */
gboolean oct_drive_fill(oct_drive *drive, guint32 tokens, GError **error);
/* The upper median of n > 0 values, which are sorted for it. */
double oct_drive_median(double *values, guint32 n);
/* The same step as the cost model knows it. */
void oct_drive_shape(const oct_drive *drive, const oct_drive_step *step, oct_step_shape *shape);

#endif
