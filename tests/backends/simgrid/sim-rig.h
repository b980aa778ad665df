/* Drives a simulated instance without an engine: sequences without token ids, pages given once. */
#ifndef OCT_TESTS_SIM_RIG_H
#define OCT_TESTS_SIM_RIG_H

#include "backends/simgrid/simgrid.h"

#define SIM_RIG_SLOTS 1024

typedef struct sim_rig {
  oct_world *world;
  oct_instance_config config;
  oct_model_spec *spec; /* owned */
  guint16 devices[OCT_PROFILE_GPUS_MAX];
  guint32 instance;
  oct_capabilities capabilities;
  oct_step_builder *builder;
  guint64 number; /* of the step begun last */
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint32 n_groups;
  gboolean has_state;
  guint32 pages_per_slot;
  guint32 position[SIM_RIG_SLOTS];
  oct_time now;
} sim_rig;

/* What a finished step said. */
typedef struct sim_rig_done {
  oct_time start_ns, end_ns, event_ns;
  gint64 part_ns[OCT_PART_COUNT];
} sim_rig_done;

typedef struct sim_rig_options {
  const char *model;
  oct_parallel parallel; /* tensor 0 = OCT_PARALLEL_DEFAULT */
  guint first_device;
  guint32 depth;      /* 0 = 2 */
  guint32 slots;      /* 0 = 64 */
  guint32 tokens;     /* of a sequence at most; 0 = 4096 */
  guint32 host_pages; /* per group; 0 = 64 */
} sim_rig_options;

/* Fills in the rig and its config; opens nothing. */
void sim_rig_init(sim_rig *rig, oct_world *world, const sim_rig_options *options);
void sim_rig_open(sim_rig *rig); /* and waits for OPENED */
void sim_rig_close(sim_rig *rig);
void sim_rig_clear(sim_rig *rig);

/* A step. open() gives the slot its pages and state; it ends after `output` tokens, 0 = never. */
void sim_rig_begin(sim_rig *rig);
void sim_rig_slot(sim_rig *rig, guint32 slot, guint32 prompt, guint32 output);
oct_slice *sim_rig_prefill(sim_rig *rig, guint32 slot, guint32 n, gboolean last);
oct_slice *sim_rig_decode(sim_rig *rig, guint32 slot);
oct_copy *sim_rig_copy(sim_rig *rig, oct_copy_order order, guint32 group, oct_tier from,
                       oct_tier to, guint32 from_index, guint32 to_index);
void sim_rig_submit(sim_rig *rig);
/* Page `i` of a slot in the pools of all page groups; state slot of a slot. */
guint32 sim_rig_page(const sim_rig *rig, guint32 slot, guint32 i);

/* Waits for the step to end; other events of any instance are passed over. */
sim_rig_done sim_rig_wait(sim_rig *rig, guint64 number);
oct_time sim_rig_wait_copy(sim_rig *rig, guint64 ticket);
void sim_rig_sleep(sim_rig *rig, oct_time until);

/* The shape of the step that a single domain's slices make, for pricing it apart. */
void sim_rig_shape(const oct_step *step, const guint32 *positions, guint32 window,
                   oct_step_shape *shape);

/* No resource has moved more than it could. */
void sim_rig_check_usage(oct_world *world);
double sim_rig_moved(oct_world *world, const char *resource);

/* Runs body in a child process, inside a world of that profile. */
typedef struct sim_rig_world {
  const char *profile;
  gint64 step_host_ns; /* 0 = the profile's */
  oct_heat_law heat;   /* zeroed = the profile's */
  gboolean exact, load_weights;
  gint host_socket; /* + 1; 0 = each GPU's own */
  oct_expert_miss expert_miss;
} sim_rig_world;
typedef void (*sim_rig_fn)(oct_world *world, gpointer out);
void sim_rig_run(const sim_rig_world *options, sim_rig_fn body, gpointer out, gsize out_size);
/* The profile of the world that runs. */
const oct_profile *sim_rig_profile(void);

#endif
