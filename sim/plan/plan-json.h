/* A plan's outcome as JSON: doc/plan.md describes each field. */
#ifndef OCT_SIM_PLAN_PLAN_JSON_H
#define OCT_SIM_PLAN_PLAN_JSON_H

#include "sim/plan/race.h"
#include "sim/replay/trend.h"

#define OCT_PLAN_SEEDS_MAX   (OCT_TREND_DEGREES_MAX + 1)
#define OCT_PLAN_CHANGES_MAX 5
#define OCT_PLAN_CHANGED     2 /* finals that are tried with changes */

typedef struct oct_plan_final {
  guint layout;
  json_t *searches[OCT_PLAN_SEEDS_MAX]; /* borrowed from the state */
  oct_plan_estimate rate;
  double healthy; /* its coarse rate without a loss; NAN = no loss is asked for */
  double score;
  /* The first of its searches whose highest rate is not known (oct_plan_search()), borrowed; NULL =
   * all were judged, or serve what is wanted. */
  const json_t *unjudged;
} oct_plan_final;

typedef struct oct_plan_whatifs {
  guint n, n_layouts;
  oct_plan_change changes[OCT_PLAN_CHANGES_MAX];
  double rates[OCT_PLAN_CHANGES_MAX][OCT_PLAN_CHANGED]; /* one node's, of finals 0, 1 */
  /* The first final's rate with all its replicas behind the router, one coarse run, where one
   * replica stood for all; borrowed from the state, NULL = they were never apart. */
  const json_t *together;
} oct_plan_whatifs;

/* Why no layout can be recommended: the first final whose rate is not known, or, where there is no
 * final, the first coarse search that its length kept from any; owned. NULL = one can, or none
 * serves anything. */
char *oct_plan_no_verdict(const oct_plan_race *race, const oct_plan_final *finals, guint n);

/* Finals in order, the best first; `no_verdict` as above. Owned. */
json_t *oct_plan_json(const oct_plan_race *race, const oct_plan_final *finals, guint n_finals,
                      const oct_plan_whatifs *whatifs, const char *no_verdict);

#endif
