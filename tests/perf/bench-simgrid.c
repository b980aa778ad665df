/* What the simulated node costs: steps and skipped steps per second of CPU time, on one core, for
 * kimi-k3 over 8 B300, without a scheduler. Copies: every GPU has one in flight in each direction.
 */
#include <malloc.h>
#include <stdio.h>
#include <time.h>

#include "tests/backends/simgrid/sim-rig.h"

typedef struct bench {
  const char *what, *model;
  guint32 slots;
  gboolean copies, forward;
  gboolean slow; /* half the memory rate: what each step moves contends with the copies */
  gint64 n;
} bench;
static bench now;

static double
cpu_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void
decode(sim_rig *rig, guint32 slots, gboolean opens) {
  sim_rig_begin(rig);
  for (guint32 slot = 0; slot < slots; slot++) {
    if (opens) {
      sim_rig_slot(rig, slot, 64, 0);
      (void)sim_rig_prefill(rig, slot, 16, FALSE);
    } else {
      (void)sim_rig_decode(rig, slot);
    }
  }
  sim_rig_submit(rig);
}

static void
slow_memory(oct_world *world) {
  for (guint gpu = 0; gpu < 8; gpu++) {
    g_autofree char *name = g_strdup_printf("gpu%u-hbm", gpu);
    if (!oct_simgrid_scale(world, name, 0.4, 0, NULL))
      g_error("no %s", name);
  }
}

static void
keep_copying(oct_world *world) {
  for (guint gpu = 0; gpu < 8; gpu++) {
    for (guint direction = 0; direction < 2; direction++) {
      oct_simgrid_place device = {OCT_PLACE_GPU, gpu}, memory = {OCT_PLACE_MEMORY, gpu / 4};
      if (oct_simgrid_send(world, direction == 0 ? device : memory,
                           direction == 0 ? memory : device, 1e15, 0, NULL) == 0)
        g_error("no copy");
    }
  }
}

static void
body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  static sim_rig rig;
  sim_rig_options options = {.model = now.model, .slots = now.slots, .tokens = 8192};
  options.parallel = OCT_PARALLEL_DEFAULT;
  options.parallel.tensor = 8;
  sim_rig_init(&rig, world, &options);
  for (guint g = 0; g < rig.n_groups; g++) /* the bench is about time: any number of pages fits */
    rig.config.memory.groups[g].n_host = 0;
  sim_rig_open(&rig);
  decode(&rig, now.slots, TRUE);
  decode(&rig, now.slots, FALSE);
  (void)sim_rig_wait(&rig, 1);
  if (now.copies)
    keep_copying(world);
  if (now.slow)
    slow_memory(world);
  for (guint i = 0; i < 200 && !now.forward; i++) { /* until every table has its size */
    decode(&rig, now.slots, FALSE);
    (void)sim_rig_wait(&rig, rig.number - 1);
  }
  struct mallinfo2 before = mallinfo2();
  double start = cpu_s();
  guint64 activities = oct_simgrid_activities(world);
  oct_forward ask = {.limit_ns = OCT_TIME_NEVER, .submit_ns = rig.now};
  oct_forwarded forwarded;
  gint64 done = 0;
  for (; done < now.n; done++) {
    if (now.forward) {
      if (!oct_world_forward(world, rig.instance, &ask, &forwarded))
        g_error("not forwarded");
      ask.submit_ns = forwarded.end_ns;
      continue;
    }
    decode(&rig, now.slots, FALSE);
    (void)sim_rig_wait(&rig, rig.number - 1);
  }
  double took = cpu_s() - start;
  struct mallinfo2 after = mallinfo2();
  printf("%-52s %10.0f /s  (%.2f us; %.1f activities a step; heap %+td B)\n", now.what,
         (double)done / took, took / (double)done * 1e6,
         (double)(oct_simgrid_activities(world) - activities) / (double)done,
         (gssize)after.uordblks - (gssize)before.uordblks);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

int
main(int argc, char **argv) {
  static const bench all[] = {
      {.what = "steps, 16 slices", .model = "kimi-k3", .slots = 16, .n = 7500},
      {.what = "steps, 256 slices", .model = "kimi-k3", .slots = 256, .n = 7000},
      {.what = "steps, 256 slices, llama-3.1-70b",
       .model = "llama-3.1-70b",
       .slots = 256,
       .n = 7000},
      {.what = "skipped steps, 256 slices",
       .model = "kimi-k3",
       .slots = 256,
       .forward = TRUE,
       .n = 1000000},
      {.what = "skipped steps, 256 slices, llama-3.1-70b",
       .model = "llama-3.1-70b",
       .slots = 256,
       .forward = TRUE,
       .n = 100000},
      {.what = "steps, 16 slices, 16 copies in flight",
       .model = "kimi-k3",
       .slots = 16,
       .copies = TRUE,
       .n = 4000},
      {.what = "steps, 256 slices, 16 copies in flight",
       .model = "kimi-k3",
       .slots = 256,
       .copies = TRUE,
       .n = 4000},
      {.what = "steps, 16 slices, on slow memory",
       .model = "kimi-k3",
       .slots = 16,
       .slow = TRUE,
       .n = 4000},
      {.what = "steps, 16 slices, that share it with 16 copies",
       .model = "kimi-k3",
       .slots = 16,
       .copies = TRUE,
       .slow = TRUE,
       .n = 1000},
  };
  (void)argc;
  (void)argv;
  for (guint i = 0; i < G_N_ELEMENTS(all); i++) {
    sim_rig_world world = {.profile = "b300-hgx8"};
    now = all[i];
    sim_rig_run(&world, body, NULL, 0);
  }
  return 0;
}
