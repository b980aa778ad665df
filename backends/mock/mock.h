/* The mock backend: a world without a device. It keeps every rule of doc/backend-contract.md, runs
 * in virtual or real time, samples deterministic tokens and takes its times from a small table. The
 * one to copy when a backend is written, and the one that the engine's tests run on.
 *
 * Streams are FIFO per pipeline stage: one for compute, one each for copies to and from the device.
 * Step n on stage s ends at C[s][n] = max(C[s-1][n] + send, C[s][n-1]) + t; it begins no earlier
 * than its submission plus the host's time, than the copies that it names as before it, and than
 * the tokens it needs from unfinished steps. Instances do not slow each other down, whatever
 * devices they share.
 *
 * What an engine must not do (backends/shadow.h) ends the world with a FATAL fault that says what
 * it was.
 */
#ifndef OCT_BACKENDS_MOCK_H
#define OCT_BACKENDS_MOCK_H

#include "backends/shadow.h"
#include "engine/backend.h"

#define OCT_MOCK_PHASES_MAX 8

typedef struct oct_mock_phase {
  const char *name; /* borrowed for the life of the world */
  gint64 ns;
} oct_mock_phase;

typedef struct oct_mock_options {
  oct_clock_kind clock;
  oct_shadow_options shadow; /* seed, drafts, routing, double use */

  /* Time of one stage for one step: of the KV domain that takes longest,
   * fixed + token x tokens + sequence x slices + context x sum of (position + tokens). An idle
   * domain counts as one slice of one token. */
  gint64 fixed_ns, token_ns, sequence_ns;
  double context_ns;
  /* In place of that table: the time of `stage` for the step, >= 0. Rules out fast-forward. */
  gint64 (*step_time)(const oct_step *step, guint32 stage, void *user);
  void *user;
  gint64 send_ns;                                     /* between two stages */
  gint64 host_ns;                                     /* from submission until the step may begin */
  gint64 copy_page_ns, copy_state_ns, copy_expert_ns; /* one unit on one stream */
  gint64 expert_miss_ns; /* per expert used that is not resident, on its stage */

  guint32 n_phases; /* of opening; 0 = one of no time */
  oct_mock_phase phases[OCT_MOCK_PHASES_MAX];
  guint32 n_open_failures; /* the first so many opens fail at the end of their phases */

  /* Limits. 0 = none. */
  guint32 n_devices;
  guint32 depth_max;
  guint32 fits[OCT_MODEL_GROUPS_MAX]; /* pages or state slots per domain */
  gboolean no_masks, no_speculation, no_adapters, no_forward, no_pooling;
  gboolean trust_records; /* no oct_step_check() on submission */
} oct_mock_options;

/* Virtual clock; 1 ms + 1 us per token + 10 us per sequence, no host time, copies of 10 us. */
void oct_mock_options_default(oct_mock_options *options);

gboolean oct_mock_options_check(const oct_mock_options *options,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A new world; options NULL = default. NULL with *error (CONFIG) names the option that is wrong. */
oct_world *oct_mock_world_new(const oct_mock_options *options,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Inspect, for tests: the token that a sequence with `key` gets at `position` in this instance. */
guint32 oct_mock_token(const oct_world *world, guint32 instance, guint64 key, guint32 adapter,
                       guint32 position);

#endif
