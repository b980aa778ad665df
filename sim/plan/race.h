/* The inside of a plan: its layouts, the jobs that search them, and the file that keeps what they
 * found. */
#ifndef OCT_SIM_PLAN_RACE_H
#define OCT_SIM_PLAN_RACE_H

#include "sim/plan/plan.h"
#include "sim/plan/demand.h"
#include "sim/plan/score.h"

/* What was changed in a what-if; the plain one changes nothing. */
typedef struct oct_plan_change {
  const char *name;                              /* "", "step costs +12 %" … */
  double cost_scale, output_scale, prefix_share; /* 0 = as it is */
} oct_plan_change;

/* One search: a layout, a stream, a horizon. */
typedef struct oct_plan_job {
  guint layout; /* index */
  guint seed;   /* 0 … seeds - 1 */
  gboolean full;
  gboolean healthy; /* the layout itself, also where others run what is left after a loss */
  /* No search: one coarse run at `guess` with all replicas behind the router. */
  gboolean together;
  double guess, least, widen; /* as in oct_plan_search_options */
  /* The rate that the coarse horizon is made for; 0 = `guess`. Searches that are compared have one
   * horizon: on a recorded trace another one is other traffic. */
  double horizon_rate;
  oct_plan_change change;
} oct_plan_job;

typedef struct oct_plan_race {
  const oct_plan_options *options;
  oct_plan_demand demand;
  oct_plan_workload workload;
  GArray *layouts;    /* oct_plan_layout */
  double *coarse;     /* [layouts]: rate of the coarse search, NAN = none; owned */
  json_t **coarse_at; /* [layouts]: its probe, borrowed from the state; NULL = none */
  /* [layouts]: the coarse search of an engine, under its first layout (oct_plan_layout.engine),
   * borrowed from the state, and as which layout it was made; owned arrays. */
  json_t **searches;
  guint *searched_as;
  json_t *state;  /* {"key": …, "done": {job: search}} */
  guint64 probes; /* runs that the searches took */
} oct_plan_race;

/* Runs the jobs, those that the state has not got, and sets results[n], the caller's array of what
 * the state owns. */
gboolean oct_plan_run_jobs(oct_plan_race *race, const char *phase, const oct_plan_job *jobs,
                           guint n, json_t **results, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Readies job i: FALSE = it waits for others, and is asked again when one has ended. TRUE = it may
 * begin, with what this has written into the caller's jobs[i]. It may look at the caller's
 * `results`, which are cleared at first and filled one by one: NULL = has not ended. */
typedef gboolean (*oct_plan_prepare_fn)(void *user, guint i);
/* The same for jobs of which some wait for others, each as soon as it may. `jobs` and `results` are
 * the caller's, and stay where they are until this returns. */
gboolean oct_plan_run_ready(oct_plan_race *race, const char *phase, const oct_plan_job *jobs,
                            guint n, oct_plan_prepare_fn prepare, void *user, json_t **results,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Reads the state's file where there is one that belongs to these options, else begins anew. FALSE
 * with *error when it is another plan's, or cannot be read. */
gboolean oct_plan_open_state(oct_plan_race *race, GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
