/* The simulated node: a world whose devices, links and host memory are those of a node profile,
 * shared through SimGrid, and whose clock is virtual.
 *
 * A step takes what sim/cost says it takes, alone; copies take bytes over the route's rate, alone;
 * whoever claims more of a link, an HBM or a GPU's SMs than there is, shares it. doc/simulation.md
 * says how each is modelled and how far it is off.
 *
 * One world per process, ever: SimGrid has one engine. A second one is an error; run it in a child.
 * Tokens come from a keyed hash (backends/shadow.h), the same that the mock backend gives.
 */
#ifndef OCT_BACKENDS_SIMGRID_SIMGRID_H
#define OCT_BACKENDS_SIMGRID_SIMGRID_H

#include "backends/shadow.h"
#include "engine/backend.h"
#include "sim/cost/cost.h"
#include "sim/platform/platform.h"
#include "sim/profile.h"

/* What a kernel does that needs an expert which is not on the device. */
typedef enum oct_expert_miss {
  OCT_EXPERT_MISS_READ, /* reads it in place, over PCIe, while it computes */
  OCT_EXPERT_MISS_LOAD, /* waits for a copy of it first: one copy latency per layer that misses */
} oct_expert_miss;

typedef struct oct_simgrid_options {
  const oct_profile *profile; /* borrowed until the world is freed */
  guint64 seed;               /* of token streams and routing */
  gboolean exact;             /* every step and copy through the solver; no fast-forward */
  oct_moe_kernel moe_kernel;
  double routing_alpha; /* popularity of experts, as in oct_cost_options, and the next three */
  gboolean routing_balanced;
  guint32 n_routing_weights;
  const double *routing_weights; /* borrowed until the world is freed */
  oct_expert_miss expert_miss;
  double cost_scale;  /* of steps, as in oct_cost_options */
  gboolean nccl_only; /* likewise, and the next four */
  gboolean shared_beside, fused_norms, whole_norms;
  double expert_time;
  gboolean load_weights; /* an instance opens once its weights have come over PCIe; else at once */
  gboolean reload_weights; /* the same, but those that are opened at time 0 open at once */
  double
      load_bytes_per_s;   /* and not before storage has sent them, so fast into the node; 0 = any */
  gboolean trust_records; /* no oct_step_check() on submission */
  gint host_socket;       /* socket of every host buffer; -1 = of the GPU that copies */
  const oct_shadow_options *shadow; /* NULL = defaults; its seed and expert_skew are replaced */
} oct_simgrid_options;

#define OCT_SIMGRID_OPTIONS_DEFAULT ((oct_simgrid_options){.host_socket = -1})

/* NULL with *error (OCT_BACKEND_ERROR_CONFIG, OCT_PLATFORM_ERROR). */
oct_world *oct_simgrid_world_new(const oct_simgrid_options *options,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The world frees the profile when it is freed itself (takes it). */
void oct_simgrid_own_profile(oct_world *world, oct_profile *profile);

/* ---- scenario: at a time, or at once when it has passed. Before or inside oct_world_run(). */

/* Sets a resource ("gpu3-sm", "switch0-up", …: sim/platform) to `factor` of the profile's capacity,
 * 0 < factor <= 1. FALSE with *error when there is no such resource. */
gboolean oct_simgrid_scale(oct_world *world, const char *resource, double factor, oct_time at_ns,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The GPU is lost: its instances get a FAULT of severity INSTANCE, later ones do not open on it. */
gboolean oct_simgrid_lose(oct_world *world, guint gpu, oct_time at_ns,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The GPU reaches no other one any more: instances of several ranks with it are lost and do not
 * open again; one of a rank alone goes on. */
gboolean oct_simgrid_isolate(oct_world *world, guint gpu, oct_time at_ns,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* A GPU that was lost or isolated can be opened on again. */
gboolean oct_simgrid_restore(oct_world *world, guint gpu, oct_time at_ns,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Traffic of others: bytes from one place to another, as one copy that queues behind nothing. KV
 * sent from a prefill to a decode instance is GPU to GPU. */
typedef enum oct_place_kind { OCT_PLACE_GPU, OCT_PLACE_MEMORY } oct_place_kind;
typedef struct oct_simgrid_place {
  oct_place_kind kind;
  guint index; /* GPU, or socket */
} oct_simgrid_place;
/* Returns a number for oct_simgrid_sent(), or 0 with *error. */
guint oct_simgrid_send(oct_world *world, oct_simgrid_place from, oct_simgrid_place to, double bytes,
                       oct_time at_ns, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* How long the transfer took; -1 while it has not ended. */
gint64 oct_simgrid_sent(const oct_world *world, guint transfer);

/* ---- accounting, since the world began; work in flight counts when it has ended */

typedef struct oct_simgrid_use {
  const char *name; /* borrowed from the world */
  oct_resource_kind kind;
  guint index;
  double capacity_per_s; /* the profile's: bytes, SM: nanoseconds */
  double moved;          /* bytes; SM: nanoseconds of arithmetic */
  double busy_s;         /* moved at full capacity: seconds */
  double utilisation;    /* moved over what the capacity allowed: 0..1 */
  gint64 delayed_ns;     /* steps and copies were late by this much because it was short */
} oct_simgrid_use;
guint oct_simgrid_resources(const oct_world *world);
void oct_simgrid_usage(const oct_world *world, guint resource, oct_simgrid_use *use);
/* Time of all finished steps of an instance by part (OCT_PART_…), fast-forwarded ones included. */
void oct_simgrid_parts(const oct_world *world, guint32 instance, gint64 part_ns[OCT_PART_COUNT]);
/* The part that takes most of the steps' time: what binds. */
guint oct_simgrid_binding_part(const oct_world *world, guint32 instance);
/* SimGrid activities so far: 0 means that nothing has contended. */
guint64 oct_simgrid_activities(const oct_world *world);
const oct_platform *oct_simgrid_platform(const oct_world *world);

#endif
