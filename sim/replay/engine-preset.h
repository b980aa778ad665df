/* Engines that planners run today, as files: sim/engines/NAME.ini says how an engine schedules,
 * what its host costs, and how its kernels differ from the prices of sim/cost. `--engine NAME`
 * imitates it: the scheduler is Octet's own under that engine's policy and limits, not its code.
 *
 * The files are GKeyFile text; each figure's comment begins with its origin, and a missing,
 * unknown or out-of-range key is an error that names it.
 */
#ifndef OCT_SIM_REPLAY_ENGINE_PRESET_H
#define OCT_SIM_REPLAY_ENGINE_PRESET_H

#include "engine/sched/engine.h"
#include "sim/profile.h"

#define OCT_ENGINE_PRESET_NAME_MAX 40

/* Plain data: copied freely. */
typedef struct oct_engine_preset {
  char name[OCT_ENGINE_PRESET_NAME_MAX + 1]; /* "vllm-0.24" */
  char policy[OCT_ENGINE_PRESET_NAME_MAX + 1];
  oct_preemption preemption;
  guint32 run_ahead;
  gboolean graphs;
  guint32 max_num_seqs, max_num_batched_tokens; /* 0 = by the GPU */
  double gpu_memory_utilization;
  gboolean nccl_only;                  /* all-reduce by NCCL alone */
  gboolean shared_beside, fused_norms; /* as in oct_cost_options */
  double expert_time;                  /* routed experts take so many times their price; 0 = 1 */
  double expert_time_int4;             /* likewise, on top, of 4-bit integers */
  double step_time;                    /* steps likewise; 0 = 1 */
  gboolean has_host;                   /* host times of its own; else the profile's */
  oct_engine_times host;               /* without its name */
} oct_engine_preset;

/* `name`: of sim/engines, or a path ("x.ini", or with a '/'). FALSE with *error
 * (OCT_REPLAY_ERROR_OPTION): file, key, value, limit. */
gboolean oct_engine_preset_load(const char *name, oct_engine_preset *out,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* From the text of a file that errors call `label`. */
gboolean oct_engine_preset_parse(const char *label, const char *text, oct_engine_preset *out,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Names, sorted. Owned: g_strfreev(). */
char **oct_engine_preset_list(void);

#endif
