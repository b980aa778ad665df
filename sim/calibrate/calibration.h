/* What a calibration measures and finds: the kernels that models ask for, and the values that go
 * into a profile.
 *
 * Life: new; plan (tables of the kernels that a model needs, without times); the caller times each
 * point; set and add; text (write.c). Not thread-safe.
 */
#ifndef OCT_SIM_CALIBRATE_CALIBRATION_H
#define OCT_SIM_CALIBRATE_CALIBRATION_H

#include "sim/cost/cost.h"
#include "sim/profile.h"

typedef struct oct_calibration oct_calibration;

/* A profile `name` with `title` that is `base` but for what is set here. `stamp` goes into the
 * origin of every figure: "measured(octet calibrate, 2026-11-30, driver 580.1, NVIDIA H200)". */
oct_calibration *oct_calibration_new(const char *name, const char *title, const char *base,
                                     const char *stamp);
void oct_calibration_free(oct_calibration *calibration); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_calibration, oct_calibration_free)

/* One value of the profile; `note` follows the stamp in its comment (NULL: nothing). What is set
 * again replaces. */
void oct_calibration_set(oct_calibration *calibration, const char *group, const char *key,
                         const char *note, double value);
void oct_calibration_set_text(oct_calibration *calibration, const char *group, const char *key,
                              const char *note, const char *text);
void oct_calibration_set_list(oct_calibration *calibration, const char *group, const char *key,
                              const char *note, const double *values, guint n);
/* Which NUMA node each GPU of the profile is at. FALSE: one of them is not known (-1), or no node
 * that a profile can name, and nothing was set. */
gboolean oct_calibration_set_numa(oct_calibration *calibration, const gint *nodes, guint n);
/* Takes back all that was set of a group. */
void oct_calibration_drop(oct_calibration *calibration, const char *group);
/* Points without a time (0) are cut off from the end of the axes; a table without any is left out.
 * Copied. */
void oct_calibration_add(oct_calibration *calibration, const oct_timed *table);

/* The profile's text, GKeyFile. Owned. */
char *oct_calibration_text(const oct_calibration *calibration);

/* Axes of a plan: how far it goes. */
typedef struct oct_calibration_limits {
  guint32 max_tokens;  /* of a step */
  guint32 max_batch;   /* sequences of a decode step */
  guint32 max_context; /* of a decode */
  gboolean quick;      /* fewer points */
} oct_calibration_limits;

/* Appends to `tables` (oct_timed) what one rank of this layout runs, with axes and without
 * times, unless a table of that shape is there. Products are those that the cost model names. */
void oct_calibration_plan(const oct_cost *cost, const oct_model_spec *spec,
                          const oct_parallel *parallel, oct_dtype kv_dtype,
                          const oct_calibration_limits *limits, GArray *tables);

#endif
