/* What the files of the simgrid backend share.
 *
 * world.c   the world: its loop, events, scenario, accounting
 * instance.c opening and closing, what an instance may do and how its ranks lie on the node
 * step.c    a step on its way through host, stages and masks; fast-forward
 * copy.c    copies: their bytes, queues and order     pull.c  copies between instances
 * flows.c   jobs and their contention     solver.c  SimGrid     timers.c  what is due
 */
#ifndef OCT_BACKENDS_SIMGRID_INTERNAL_H
#define OCT_BACKENDS_SIMGRID_INTERNAL_H

#include "backends/simgrid/flows.h"
#include "backends/simgrid/simgrid.h"
#include "backends/simgrid/solver.h"
#include "backends/simgrid/timers.h"
#include "sim/cost/heat.h"

/* Live jobs at most: four queues per GPU, a stage's step and a step's send, transfers. */
#define SIM_JOBS_MAX      256 /* of open instances: stages, and with several of them sends */
#define SIM_TRANSFERS_MAX 64  /* at one time */
#define SIM_LANES         (4 * OCT_PROFILE_GPUS_MAX + SIM_JOBS_MAX + SIM_TRANSFERS_MAX)

typedef struct sim_world sim_world;
typedef struct sim_instance sim_instance;
typedef struct sim_step sim_step;
typedef struct sim_op sim_op;

/* ---------------------------------------------------------------- copies */

/* PEER: from another GPU; the queue is the receiving GPU's. */
typedef enum sim_direction { SIM_H2D, SIM_D2H, SIM_D2D, SIM_PEER, SIM_DIRECTIONS } sim_direction;

/* What one op moves on one rank in one direction. */
typedef struct sim_part {
  struct sim_part *next; /* in its queue, or in the list of free parts */
  sim_op *op;
  guint32 rank;
  guint16 source;    /* PEER: the GPU that it comes from; else 0 */
  double link_bytes; /* over PCIe; D2D, PEER: 0 */
  double
      full_bytes; /* that the rank has in the end: above link_bytes when NVLink gathers the rest */
} sim_part;

/* One per GPU and direction: FIFO, one part at a time. */
typedef struct sim_queue {
  oct_job job;
  sim_world *world;
  sim_direction direction;
  sim_part *first, *last; /* first is in flight when the job is not idle */
} sim_queue;

typedef enum sim_op_kind { SIM_OP_BESIDE, SIM_OP_BEFORE, SIM_OP_AFTER, SIM_OP_WEIGHTS } sim_op_kind;

/* Copies that start together and whose common end matters. */
struct sim_op {
  sim_op *next; /* in the instance's list, in order of submission, or in the list of free ops */
  sim_op_kind kind;
  sim_instance *instance;
  guint64 serial;     /* of the world */
  guint64 ticket;     /* BESIDE */
  sim_step *step;     /* BEFORE, AFTER */
  guint32 stage;      /* BEFORE, AFTER */
  guint64 after_step; /* that must have ended; 0 = none */
  guint64 after_op;   /* AFTER ops up to this serial must have ended; 0 = none */
  gboolean chained;   /* BESIDE: an earlier BESIDE op writes what it reads */
  guint32 n_copies;   /* BESIDE: for the shadow */
  guint32 copies_room;
  oct_copy *copies;
  sim_instance *peer; /* BESIDE: whose pages are pulled; NULL = its own are copied */
  guint32 peer_domain;
  gboolean dropped; /* its parts leave their queues */
  gboolean held;    /* BEFORE, AFTER: its moment has not come */
  gboolean writes_host;
  gboolean queued;
  guint32 n_left;  /* parts that have not ended */
  sim_part *parts; /* before it is queued */
};

/* ---------------------------------------------------------------- instances */

typedef enum sim_bundle { SIM_SM, SIM_HBM, SIM_NV, SIM_HOST } sim_bundle; /* of a stage's job */

/* One rank of the instance and what its copies use. */
typedef struct sim_rank {
  guint16 device;
  guint8 socket; /* of its host buffers */
  oct_bundle *h2d, *d2h, *hbm;
  oct_bundle *gather; /* to the next rank of its domain; NULL = it loads all by itself */
} sim_rank;

typedef struct sim_stage {
  oct_bundle *bundles[OCT_JOB_BUNDLES];
  oct_bundle *send; /* to the next stage; NULL for the last */
  oct_job job;
  guint32 index;
  sim_instance *instance;
  sim_step *step; /* that occupies the stage, masks included */
  guint64 next;   /* number of the step that comes next */
  sim_op *after;  /* AFTER copies that the next step waits for */
  oct_heat heat;  /* of its GPUs, by the steps of this instance */
} sim_stage;

struct sim_step {
  guint64 number; /* 0 = free */
  sim_instance *instance;
  oct_shadow_step *content;
  oct_step_shape shape;
  oct_step_price price;
  guint32 n_warm; /* stages whose price has the heat that they begin with */
  oct_timer host_timer;
  oct_job send_job;
  oct_time host_ns;                        /* the host is done with it */
  guint64 after_step;                      /* whose tokens it needs; 0 = none */
  guint32 stage;                           /* at which it is, or waits to be */
  gboolean arrived;                        /* at that stage */
  sim_op *before_in[OCT_COST_STAGES_MAX];  /* BEFORE copies from the host that have not ended */
  sim_op *before_own[OCT_COST_STAGES_MAX]; /* the other BEFORE copies */
  sim_op *after[OCT_COST_STAGES_MAX];      /* not queued yet */
  oct_time begin_ns, end_ns;
  oct_time arrived_ns, ready_ns; /* at its stage: came; turn came, -1 = not yet */
  gint64 part_ns[OCT_PART_COUNT];
  gboolean plain;    /* what fast-forward needs, apart from the world */
  guint32 lag;       /* tokens by which it was forwarded */
  oct_slice *slices; /* [n_slices] only for models with a window */
  guint32 slices_room;
};

struct sim_instance {
  sim_world *world;
  guint32 id;
  gboolean opened, lost;
  oct_time loaded_ns;         /* storage has sent its weights */
  oct_instance_config config; /* label, devices, spec: owned, owned, borrowed */
  oct_shadow *shadow;
  oct_cost *cost;
  guint32 window;
  guint32 n_groups, n_ranks, n_stages;
  /* Bytes of one page or state slot on one rank of a stage, and what of it goes over PCIe. */
  double unit_bytes[OCT_MODEL_GROUPS_MAX][OCT_COST_STAGES_MAX];
  double link_bytes[OCT_MODEL_GROUPS_MAX][OCT_COST_STAGES_MAX];
  /* Of all ranks of a stage together, what several hold counted once. */
  double once_bytes[OCT_MODEL_GROUPS_MAX][OCT_COST_STAGES_MAX];
  double device_bytes; /* of the fullest rank: weights and pools */
  sim_rank *ranks;
  sim_stage *stages;
  sim_step *steps; /* [depth] */
  guint32 n_unfinished;
  guint64 last_submitted, last_done;
  oct_time host_free_ns;
  sim_op *ops; /* that have not ended, in order of submission */
  gint64 part_ns[OCT_PART_COUNT];
  oct_timer open_timer;
  oct_capabilities capabilities;
  guint8 *result;
  gsize result_room;
};

/* ---------------------------------------------------------------- the world */

/* An event that waits to be fetched. */
typedef struct sim_event {
  oct_event_kind kind;
  sim_instance *instance;
  guint32 instance_id;
  guint64 number;
  guint32 slice, failed;
  double fraction;
  const char *phase;
  sim_step *step;
  oct_fault fault;
} sim_event;

typedef struct sim_transfer {
  oct_job job;
  oct_timer timer;
  sim_world *world;
  gint64 took_ns; /* -1 = not ended */
  guint16 route;
  double bytes;
} sim_transfer;

/* What crosses from one GPU to another; made when first used, and kept. */
typedef struct sim_peer_link {
  oct_bundle *route, *memories; /* memories: HBM of both */
} sim_peer_link;

struct sim_world {
  oct_world base;
  oct_simgrid_options options;
  oct_shadow_options shadow_options;
  oct_profile *owned_profile;
  oct_platform *platform;
  oct_solver *solver;
  oct_timers timers;
  oct_flows *flows;
  oct_time now_ns;
  gint woken;                /* atomic */
  gboolean dead;             /* an engine has broken the contract */
  GPtrArray *instances;      /* by id - 1; NULL = closed */
  guint32 n_jobs;            /* that open instances may have at one time */
  sim_queue *queues;         /* [gpus * SIM_DIRECTIONS] */
  sim_peer_link *peer_links; /* [from * gpus + to] */
  guint32 n_pulls;           /* ops that pull */
  sim_part *free_parts;
  sim_op *free_ops;
  guint64 op_serial;
  gboolean *lost;       /* [gpus] */
  gboolean *isolated;   /* [gpus] */
  GPtrArray *scenario;  /* owned entries */
  GPtrArray *transfers; /* sim_transfer, owned */
  guint n_transferring;
  sim_event *events; /* ring */
  guint32 events_first, events_n, events_room;
  oct_fault fault; /* of the event that was fetched last */
  oct_world_fn run_fn;
  void *run_arg;
};

static inline sim_world *
sim_world_of(oct_world *world) {
  return (sim_world *)world;
}

/* world.c */
sim_event *sim_emit(sim_instance *instance, oct_event_kind kind); /* the caller fills in the rest */
sim_instance *sim_instance_of(const sim_world *world, guint32 id); /* NULL when there is none */
void sim_forget_events(sim_instance *instance);
/* The instance when it takes calls, else NULL with *error. */
sim_instance *sim_usable(const sim_world *world, guint32 id, GError **error);
/* The engine of this instance has broken the contract: the world is lost, and *fault says why. */
void sim_lose(sim_instance *instance, const oct_fault *fault);

/* instance.c */
gboolean sim_open(oct_world *world, const oct_instance_config *config, guint32 *instance,
                  GError **error);
void sim_close(oct_world *world, guint32 instance);
void sim_instance_opened(sim_instance *instance); /* the weights have come */
void sim_instance_stop(sim_instance *instance);   /* cancels all that it does, events included */
void sim_instance_fail(sim_instance *instance, const oct_fault *fault); /* stops it and says why */
void sim_instance_free(sim_instance *instance);

/* step.c */
oct_submit sim_submit(oct_world *world, guint32 instance, const oct_step *step, GError **error);
gboolean sim_mask(oct_world *world, guint32 instance, guint64 number, guint32 slice,
                  const guint64 *bits, guint32 n_words, GError **error);
gboolean sim_forward(oct_world *world, guint32 instance, const oct_forward *forward,
                     oct_forwarded *forwarded);
void sim_stage_try(sim_stage *stage); /* starts the stage's next step if nothing holds it */
void sim_step_before_ended(sim_op *op);
const oct_step_result *sim_step_fetched(sim_step *step); /* its STEP_DONE is being fetched */
void sim_steps_stop(sim_instance *instance);
void sim_step_init(sim_step *step, sim_instance *instance);

/* copy.c */
void sim_queues_init(sim_world *world);
oct_submit sim_copy(oct_world *world, guint32 instance, guint64 ticket, const oct_copy *copies,
                    guint32 n_copies, GError **error);
/* A step's copies: hangs its ops into step->before_… and step->after. Those from the host wait for
 * step `after_step`. */
void sim_step_copies(sim_step *step, const oct_copy *copies, guint32 n_copies, guint64 after_step);
/* Puts an op's parts into their queues; it may end at once (when it has none). */
void sim_op_queue(sim_op *op);
sim_op *sim_op_new(sim_instance *instance, sim_op_kind kind);
void sim_op_add(sim_op *op, guint32 rank, sim_direction direction, double link_bytes,
                double full_bytes);
void sim_op_add_from(sim_op *op, guint32 rank, guint16 source, double bytes); /* PEER */
/* A BESIDE op, with the copies that its end tells the shadow; its parts are the caller's to add. */
sim_op *sim_op_beside(sim_instance *instance, guint64 ticket, const oct_copy *copies,
                      guint32 n_copies);
gboolean sim_ticket_is_new(const sim_instance *instance, guint64 ticket, GError **error);
void sim_ops_try(sim_instance *instance); /* queues the ops that nothing holds any more */
void sim_ops_stop(sim_instance *instance);
/* Takes the parts of ops that are marked as dropped out of their queues. */
void sim_ops_purge(sim_world *world);
void sim_op_free(sim_op *op);
gint64 sim_transfer_ns(double bytes, double bytes_per_s, gint64 latency_ns);

/* pull.c */
oct_submit sim_pull(oct_world *world, guint32 instance, guint32 peer, guint32 peer_domain,
                    guint64 ticket, const oct_copy *copies, guint32 n_copies, GError **error);
void sim_pull_fill_job(sim_queue *queue, const sim_part *part);
void sim_pulls_try(sim_instance *peer);  /* those that read from the instance: sim_ops_try() */
void sim_pulls_fail(sim_instance *peer); /* the instance is gone: they fail now */

#endif
