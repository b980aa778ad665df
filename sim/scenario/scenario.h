/* A scenario: what happens to a node and its traffic, and when.
 *
 * Key files (doc/scenarios.md, sim/scenarios/) say so in events, each at a time or by a rate; here
 * they become dated actions in one order. Events by a rate are drawn from the seed, each event from
 * a stream of its own name: equal files and seeds give equal actions. Factors of events that
 * overlap on one resource are multiplied.
 *
 * Knows the node's resources (sim/platform) and profile; what an action does is the replay's
 * business (sim/replay/scenario.c). Never changes once read: any thread may read it.
 */
#ifndef OCT_SIM_SCENARIO_SCENARIO_H
#define OCT_SIM_SCENARIO_SCENARIO_H

#include "engine/backend.h"
#include "sim/ini.h"
#include "sim/platform/platform.h"
#include "sim/scenario/warp.h"

/* Limits: beyond them reading fails with an error that names the value and the limit. */
#define OCT_SCENARIO_ACTIONS_MAX 100000u
#define OCT_SCENARIO_FACTOR_MIN  0.001

/* The dynamic power of a GPU falls with its clock to this power: a B300 held at 600 W of 1100 (190
 * idle) loses up to 43 % of its FP8 rate (measured, doc/scenarios.md), (600 - 190) / (1100 - 190) =
 * 0.57 ^ 1.42. */
#define OCT_SCENARIO_POWER_EXPONENT 1.42

typedef enum oct_action_kind {
  OCT_ACTION_SCALE,   /* a resource has `factor` of its capacity from now on */
  OCT_ACTION_CAP,     /* the GPU draws at most `watts` from now on; 0 = its own limit */
  OCT_ACTION_LOSE,    /* the GPU is gone, and what ran on it */
  OCT_ACTION_ISOLATE, /* it reaches no other GPU any more */
  OCT_ACTION_RESTORE, /* it is back, alone and with others */
  OCT_ACTION_DRAIN,   /* the replica takes nothing new, ends what it has, and is opened again */
  OCT_ACTION_TELL,    /* nothing by itself: arrivals change */
} oct_action_kind;

#define OCT_ACTION_ALL G_MAXUINT32

typedef struct oct_action {
  oct_time at_ns;
  oct_action_kind kind;
  guint32 index; /* SCALE: resource; CAP, LOSE, ISOLATE, RESTORE: GPU; DRAIN: replica, or ALL, one
                    after another */
  double factor, watts;
  const char *event; /* its name; borrowed from the scenario */
  gboolean first;    /* of an event's actions at one time, the one that is told of */
} oct_action;

typedef enum oct_after_loss {
  OCT_AFTER_LOSS_RECOMPUTE, /* requests go on elsewhere: prompt and output are computed again */
  OCT_AFTER_LOSS_FAIL,
} oct_after_loss;

typedef struct oct_scenario {
  char *title;         /* of the files, joined; NULL = none stated */
  GArray *actions;     /* of oct_action, in order */
  oct_warp *warp;      /* NULL: arrivals are as usual */
  double load_rate;    /* bytes/s of weights from storage into a node; 0 = as fast as PCIe takes */
  gboolean cold_start; /* weights are loaded at the beginning too */
  gboolean has_caps;   /* some event caps power */
  gboolean has_hardware; /* some event is of GPUs or links */
  oct_after_loss after_loss;
  gboolean refuse_while_down; /* else requests wait until a replica is back */
  GPtrArray *texts;           /* inside */
} oct_scenario;

typedef struct oct_scenario_options {
  const oct_platform *platform; /* NULL: events of hardware are refused */
  const oct_profile *profile;   /* likewise */
  guint32 n_replicas;
  guint64 seed;
} oct_scenario_options;

/* Reads files (NULL-terminated). NULL with *error (OCT_INI_ERROR), which names file, line, key,
 * value and limit. */
oct_scenario *oct_scenario_load(char *const *paths, const oct_scenario_options *options,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same of one text. */
oct_scenario *oct_scenario_parse(const char *label, const char *text, gsize size,
                                 const oct_scenario_options *options,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_scenario_free(oct_scenario *scenario); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_scenario, oct_scenario_free)

/* The share of its clock that a GPU keeps under a cap. */
double oct_scenario_capped_clock(const oct_profile *profile, double watts, double exponent);

#endif
