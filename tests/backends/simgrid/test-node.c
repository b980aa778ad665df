/* The node under load: who slows whom, scenario, accounting, and what a coarse step leaves out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/rng.h"
#include "tests/backends/simgrid/sim-rig.h"

#define SEED 20261129

static oct_parallel
tensor(guint32 n) {
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = n;
  return p;
}

static sim_rig_done
prefill(sim_rig *rig, guint32 slot, guint32 n) {
  sim_rig_begin(rig);
  sim_rig_slot(rig, slot, n, 0);
  (void)sim_rig_prefill(rig, slot, n, TRUE);
  sim_rig_submit(rig);
  return sim_rig_wait(rig, rig->number);
}

static sim_rig_done
decode(sim_rig *rig, guint32 slot) {
  sim_rig_begin(rig);
  (void)sim_rig_decode(rig, slot);
  sim_rig_submit(rig);
  return sim_rig_wait(rig, rig->number);
}

static gint64
length(sim_rig_done done) {
  return done.end_ns - done.start_ns;
}

static void
end(sim_rig *rig) {
  sim_rig_check_usage(rig->world);
  sim_rig_close(rig);
  sim_rig_clear(rig);
}

static guint
send(oct_world *world, oct_place_kind from_kind, guint from, oct_place_kind to_kind, guint to,
     double bytes, oct_time at) {
  g_autoptr(GError) error = NULL;
  guint id = oct_simgrid_send(world, (oct_simgrid_place){from_kind, from},
                              (oct_simgrid_place){to_kind, to}, bytes, at, &error);
  g_assert_no_error(error);
  return id;
}

static void
scale(oct_world *world, const char *resource, double factor, oct_time at) {
  g_autoptr(GError) error = NULL;
  gboolean taken = oct_simgrid_scale(world, resource, factor, at, &error);
  g_assert_no_error(error);
  g_assert_true(taken);
}

/* ---------------------------------------------------------------- PCIe */

/* The instance on GPU 1 offloads 20 pages; out[0] alone, out[1] while weights come to GPU 0. */
static void
weights_body(oct_world *world, gpointer out) {
  gint64 *took = out;
  sim_rig rig, other;
  g_autoptr(GError) error = NULL;
  oct_copy copies[20];
  oct_event event;
  sim_rig_options options = {.model = "llama-3.1-8b", .first_device = 1};
  sim_rig_init(&rig, world, &options);
  oct_time opening = rig.now;
  sim_rig_open(&rig);
  /* Opening takes as long as the weights over PCIe. */
  oct_weights weights;
  oct_model_rank_weights(rig.spec, &rig.config.parallel, 0, &weights);
  double seconds =
      (double)oct_weights_total(&weights).bytes / sim_rig_profile()->pcie.h2d_bytes_per_s +
      sim_rig_profile()->pcie.copy_latency_s;
  g_assert_cmpint(ABS(rig.now - opening - oct_cost_ns(seconds)), <=, 2);
  (void)prefill(&rig, 0, 20 * 64);
  for (guint32 i = 0; i < 20; i++)
    copies[i] = (oct_copy){.kind = OCT_COPY_PAGE,
                           .order = OCT_COPY_BESIDE,
                           .to_tier = OCT_TIER_HOST,
                           .from = sim_rig_page(&rig, 0, i),
                           .to = i};
  for (guint i = 0; i < 2; i++) {
    if (i == 1) {
      sim_rig_options second = {.model = "llama-3.1-8b"};
      sim_rig_init(&other, world, &second);
      gboolean taken = oct_world_open(world, &other.config, &other.instance, &error);
      g_assert_no_error(error);
      g_assert_true(taken);
      g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
      g_assert_cmpint(event.kind, ==, OCT_EVENT_OPEN_PROGRESS);
      g_assert_cmpuint(event.instance, ==, other.instance);
    }
    oct_time begin = rig.now;
    oct_submit answer = oct_world_copy(world, rig.instance, 1 + i, copies, 20, &error);
    g_assert_no_error(error);
    g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
    took[i] = sim_rig_wait_copy(&rig, 1 + i) - begin;
  }
  sim_rig_close(&other);
  sim_rig_clear(&other);
  end(&rig);
}

static void
test_weights(void) {
  gint64 shared[2], own[2];
  sim_rig_world world = {.profile = "pairs-4rc", .load_weights = TRUE};
  sim_rig_run(&world, weights_body, shared, sizeof shared);
  world.profile = "b300-hgx8";
  sim_rig_run(&world, weights_body, own, sizeof own);
  printf("# offload of 168 MB beside another GPU's weights: pairs-4rc %.3f -> %.3f ms, "
         "b300-hgx8 %.3f -> %.3f ms\n",
         (double)shared[0] * 1e-6, (double)shared[1] * 1e-6, (double)own[0] * 1e-6,
         (double)own[1] * 1e-6);
  g_assert_cmpint(own[1], ==, own[0]);
  g_assert_cmpint(shared[1], >, shared[0] * 11 / 10);
}

/* ---------------------------------------------------------------- NVLink */

/* out: prefill of 8192 tokens alone and beside a KV send, then a decode alone and beside it. Four
 * GPUs reduce in a ring, which takes two thirds of NVLink; a link is shared in equal parts. */
static void
kv_body(oct_world *world, gpointer out) {
  gint64 *took = out;
  sim_rig rig;
  sim_rig_options options = {
      .model = "llama-3.1-70b", .parallel = tensor(4), .tokens = 10000, .slots = 8};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  took[0] = length(prefill(&rig, 0, 8192));
  (void)send(world, OCT_PLACE_GPU, 0, OCT_PLACE_GPU, 1, 777e9, 0); /* a second of it */
  took[1] = length(prefill(&rig, 1, 8192));
  took[3] = length(decode(&rig, 1)); /* an all-reduce of 16 KiB, 160 times */
  sim_rig_sleep(&rig, rig.now + 2000000000);
  (void)prefill(&rig, 2, 8192);
  took[2] = length(decode(&rig, 2));
  end(&rig);
}

static void
test_kv(void) {
  gint64 took[4];
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, kv_body, took, sizeof took);
  printf("# beside a KV send: prefill %.3f -> %.3f ms, decode %.3f -> %.3f ms\n",
         (double)took[0] * 1e-6, (double)took[1] * 1e-6, (double)took[2] * 1e-6,
         (double)took[3] * 1e-6);
  g_assert_cmpint(took[1], >, took[0] * 102 / 100);
  g_assert_cmpint(took[3], ==, took[2]);
}

/* ---------------------------------------------------------------- throttling */

static void
throttle_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig group, other;
  sim_rig_options options = {.model = "llama-3.1-8b", .parallel = tensor(4)};
  sim_rig_init(&group, world, &options);
  options.first_device = 4;
  sim_rig_init(&other, world, &options);
  sim_rig_open(&group);
  sim_rig_open(&other);
  sim_rig_done before = prefill(&group, 0, 4000), before_other = prefill(&other, 0, 4000);
  scale(world, "gpu2-sm", 0.5, 0);
  sim_rig_done after = prefill(&group, 1, 4000), after_other = prefill(&other, 1, 4000);
  gint64 compute = before.part_ns[OCT_PART_COMPUTE];
  g_assert_cmpint(compute, >, length(before) / 4);
  g_assert_cmpint(ABS(after.part_ns[OCT_PART_COMPUTE] - 2 * compute), <=, 20);
  g_assert_cmpint(ABS(length(after) - length(before) - compute), <=, 20);
  g_assert_cmpint(length(after_other), ==, length(before_other));
  scale(world, "gpu2-sm", 1, 0);
  g_assert_cmpint(length(prefill(&group, 2, 4000)), ==, length(before));
  oct_simgrid_use use;
  guint sm = (guint)oct_platform_find(oct_simgrid_platform(world), "gpu2-sm");
  oct_simgrid_usage(world, sm, &use);
  g_assert_cmpint(use.delayed_ns, >=, compute - 20);
  sim_rig_close(&other);
  sim_rig_clear(&other);
  end(&group);
}

static void
test_throttle(void) {
  sim_rig_world world = {.profile = "h200-hgx8"};
  sim_rig_run(&world, throttle_body, NULL, 0);
}

/* ---------------------------------------------------------------- two instances */

/* out: a prefill on GPU 0 alone; two at once on GPUs 0 and 1; two at once on GPU 0. */
static void
two_body(oct_world *world, gpointer out) {
  gint64 *took = out;
  sim_rig rigs[3];
  for (guint i = 0; i < 3; i++) {
    sim_rig_options options = {.model = "llama-3.1-8b", .first_device = i == 1};
    sim_rig_init(&rigs[i], world, &options);
    sim_rig_open(&rigs[i]);
    g_assert_cmpuint(rigs[i].instance, ==, i + 1);
  }
  took[0] = length(prefill(&rigs[0], 0, 4000));
  for (guint k = 1; k < 3; k++) {
    sim_rig *pair[2] = {&rigs[0], &rigs[k]};
    for (guint i = 0; i < 2; i++) {
      pair[i]->now = MAX(rigs[0].now, rigs[k].now);
      sim_rig_begin(pair[i]);
      sim_rig_slot(pair[i], k, 4000, 0);
      (void)sim_rig_prefill(pair[i], k, 4000, TRUE);
      sim_rig_submit(pair[i]);
    }
    oct_time last[2] = {0};
    for (guint i = 0; i < 2; i++) {
      oct_event event;
      g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
      g_assert_cmpint(event.kind, ==, OCT_EVENT_STEP_DONE);
      guint which = event.instance == pair[0]->instance ? 0 : 1;
      last[which] = event.result->end_ns - event.result->start_ns;
      pair[which]->now = event.time_ns;
    }
    g_assert_cmpint(ABS(last[0] - last[1]), <=, last[0] / 100);
    took[k] = last[0];
  }
  sim_rig_check_usage(world);
  for (guint i = 0; i < 3; i++) {
    sim_rig_close(&rigs[i]);
    sim_rig_clear(&rigs[i]);
  }
}

static void
test_two(void) {
  gint64 took[3];
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, two_body, took, sizeof took);
  printf("# prefill alone %.3f ms, beside one on another GPU %.3f, beside one on its GPU %.3f\n",
         (double)took[0] * 1e-6, (double)took[1] * 1e-6, (double)took[2] * 1e-6);
  g_assert_cmpint(took[1], ==, took[0]);
  g_assert_cmpint(took[2], >, took[0] * 3 / 2);
}

/* ---------------------------------------------------------------- anything at all */

#define RUN_STEPS 150

static guint64 run_seed;

/* Two instances with what the run draws for them. */
typedef struct random_run {
  sim_rig rigs[2];
  oct_rng rng;
  guint32 left[2], unfinished[2];
  guint64 ticket, digest;
} random_run;

/* Sends and changes of capacity at random times. */
static void
random_scenario(random_run *r, oct_world *world) {
  for (guint i = 0; i < 12; i++) {
    guint from = (guint)oct_rng_below(&r->rng, 8), to = (guint)oct_rng_below(&r->rng, 8);
    oct_time at = (oct_time)oct_rng_below(&r->rng, 2000000000);
    double bytes = oct_rng_exponential(&r->rng, 20e9);
    if (i % 3 == 0 && from != to)
      (void)send(world, OCT_PLACE_GPU, from, OCT_PLACE_GPU, to, bytes, at);
    else if (i % 3 == 1)
      (void)send(world, OCT_PLACE_GPU, from, OCT_PLACE_MEMORY, to % 2, bytes, at);
    else
      (void)send(world, OCT_PLACE_MEMORY, to % 2, OCT_PLACE_GPU, from, bytes, at);
    guint resource = (guint)oct_rng_below(&r->rng, oct_simgrid_resources(world));
    oct_simgrid_use use;
    oct_simgrid_usage(world, resource, &use);
    scale(world, use.name, 0.2 + 0.8 * oct_rng_uniform(&r->rng), at);
  }
}

/* A step of six sequences and a copy beside it. */
static void
random_step(random_run *r, oct_world *world, guint i) {
  sim_rig *rig = &r->rigs[i];
  r->left[i]--;
  r->unfinished[i]++;
  sim_rig_begin(rig);
  for (guint32 slot = 0; slot < 6; slot++) {
    guint32 n = 1 + (guint32)oct_rng_below(&r->rng, 900);
    if (rig->position[slot] == 0 || rig->position[slot] + n > 4000) {
      sim_rig_slot(rig, slot, n, 0);
      (void)sim_rig_prefill(rig, slot, n, TRUE);
    } else {
      (void)sim_rig_decode(rig, slot);
    }
  }
  if (i == 0 && r->unfinished[i] == 1 && oct_rng_below(&r->rng, 3) == 0)
    (void)sim_rig_copy(rig, OCT_COPY_AFTER, 0, OCT_TIER_DEVICE, OCT_TIER_DEVICE, 0,
                       rig->config.memory.groups[0].n_device - 1);
  sim_rig_submit(rig);
  g_autoptr(GError) error = NULL;
  oct_copy copy = {.kind = OCT_COPY_PAGE,
                   .order = OCT_COPY_BESIDE,
                   .to_tier = OCT_TIER_HOST,
                   .group = i == 0 ? 1 : 0,
                   .from = sim_rig_page(rig, 63, 0),
                   .to = (guint32)(r->ticket % 64)};
  oct_submit answer = oct_world_copy(world, rig->instance, ++r->ticket, &copy, 1, &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
}

static void
random_event(random_run *r, oct_world *world) {
  oct_event event;
  g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
  if (event.kind == OCT_EVENT_FAULT)
    g_error("fault: %s", event.fault->message);
  if (event.kind == OCT_EVENT_STEP_DONE) {
    r->unfinished[event.instance - 1]--;
    gint64 sum = 0;
    for (guint p = 0; p < OCT_PART_COUNT; p++)
      sum += event.result->part_ns[p];
    g_assert_cmpint(sum, ==, event.result->end_ns - event.result->start_ns);
  }
  r->digest = oct_mix64(r->digest ^ (guint64)event.time_ns ^ ((guint64)event.kind << 60) ^
                        (event.number << 40) ^ event.instance);
}

/* Everything at random; tells a digest of every event. */
static void
random_body(oct_world *world, gpointer out) {
  static random_run r;
  oct_rng_seed(&r.rng, SEED, run_seed);
  for (guint i = 0; i < 2; i++) {
    sim_rig_options options = {.model = i == 0 ? "kimi-linear-48b-a3b" : "llama-3.1-70b",
                               .parallel = tensor(4),
                               .first_device = (guint)oct_rng_below(&r.rng, 5)};
    sim_rig_init(&r.rigs[i], world, &options);
    sim_rig_open(&r.rigs[i]);
    r.left[i] = RUN_STEPS;
  }
  random_scenario(&r, world);
  while (r.left[0] + r.left[1] + r.unfinished[0] + r.unfinished[1] > 0) {
    for (guint i = 0; i < 2; i++) {
      if (r.left[i] > 0 && r.unfinished[i] < 2)
        random_step(&r, world, i);
    }
    random_event(&r, world);
  }
  sim_rig_check_usage(world);
  for (guint i = 0; i < 2; i++) {
    sim_rig_close(&r.rigs[i]);
    sim_rig_clear(&r.rigs[i]);
  }
  ((guint64 *)out)[0] = r.digest;
  ((guint64 *)out)[1] = oct_simgrid_activities(world);
}

static void
test_random(void) {
  static const char *const profiles[] = {"b300-hgx8", "pairs-4rc"};
  guint64 activities = 0;
  for (run_seed = 1; run_seed <= 6; run_seed++) {
    guint64 once[2], again[2];
    sim_rig_world world = {.profile = profiles[run_seed % 2]};
    sim_rig_run(&world, random_body, once, sizeof once);
    sim_rig_run(&world, random_body, again, sizeof again);
    g_assert_cmpmem(once, sizeof once, again, sizeof again);
    activities += once[1];
  }
  printf("# seed %d, 6 runs of 300 steps: %d activities in the solver\n", SEED, (int)activities);
  g_assert_cmpuint(activities, >, 1000);
}

/* ---------------------------------------------------------------- both modes */

#define MODE_STEPS 40

/* Prefill and decode steps beside copies, KV sends and changes, all at fixed times; tells when each
 * step ended. */
static void
modes_body(oct_world *world, gpointer out) {
  sim_rig rig;
  gint64 *ended = out;
  sim_rig_options options = {.model = "llama-3.1-70b", .parallel = tensor(4)};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  for (guint i = 0; i < 12; i++) {
    oct_time at = (oct_time)i * 130000000;
    (void)send(world, OCT_PLACE_GPU, i % 4, OCT_PLACE_GPU, (i + 1) % 4, 20e9, at);
    (void)send(world, OCT_PLACE_MEMORY, i % 2, OCT_PLACE_GPU, i % 4, 3e9, at + 40000000);
    (void)send(world, OCT_PLACE_GPU, i % 4, OCT_PLACE_MEMORY, 0, 3e9, at + 50000000);
    scale(world, "gpu1-hbm", i % 2 == 0 ? 0.6 : 1, at + 70000000);
    scale(world, "gpu3-sm", i % 3 == 0 ? 0.7 : 1, at + 90000000);
  }
  for (guint n = 1; n <= MODE_STEPS; n++) {
    sim_rig_begin(&rig);
    if (n % 2 == 1) {
      sim_rig_slot(&rig, n / 2, 100 * n, 0);
      (void)sim_rig_prefill(&rig, n / 2, 100 * n, TRUE);
    }
    for (guint32 slot = 0; slot < n / 2; slot++)
      (void)sim_rig_decode(&rig, slot);
    sim_rig_submit(&rig);
    if (n > 1)
      ended[n - 2] = sim_rig_wait(&rig, n - 1).end_ns;
  }
  ended[MODE_STEPS - 1] = sim_rig_wait(&rig, MODE_STEPS).end_ns;
  ended[MODE_STEPS] = (gint64)oct_simgrid_activities(world);
  end(&rig);
}

static void
test_modes(void) {
  static const char *const profiles[] = {"b300-hgx8", "pairs-4rc"};
  for (guint p = 0; p < 2; p++) {
    gint64 coarse[MODE_STEPS + 1], exact[MODE_STEPS + 1], worst = 0;
    sim_rig_world world = {.profile = profiles[p]};
    sim_rig_run(&world, modes_body, coarse, sizeof coarse);
    world.exact = TRUE;
    sim_rig_run(&world, modes_body, exact, sizeof exact);
    for (guint n = 0; n < MODE_STEPS; n++) {
      gint64 off = ABS(coarse[n] - exact[n]);
      /* On pairs-4rc collectives cross many shared links, and what each gets there depends a little
       * on jobs that do not contend (flows.h). */
      g_assert_cmpint(off, <=, p == 0 ? n + 1 : coarse[n] / 10000);
      worst = MAX(worst, off);
    }
    printf("# %s: %d steps beside other traffic, %d and %d activities, worst difference %d ns\n",
           profiles[p], MODE_STEPS, (int)coarse[MODE_STEPS], (int)exact[MODE_STEPS], (int)worst);
    g_assert_cmpint(coarse[MODE_STEPS], >, 500);
  }
}

/* ---------------------------------------------------------------- what binds */

static void
binds_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  sim_rig_options options = {.model = "llama-3.1-8b"};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  (void)prefill(&rig, 0, 4000);
  g_assert_cmpuint(oct_simgrid_binding_part(world, rig.instance), ==, OCT_PART_COMPUTE);
  gint64 parts[OCT_PART_COUNT], sum = 0;
  oct_simgrid_parts(world, rig.instance, parts);
  for (guint p = 0; p < OCT_PART_COUNT; p++)
    sum += parts[p];
  oct_simgrid_use use;
  oct_simgrid_usage(world, (guint)oct_platform_find(oct_simgrid_platform(world), "gpu0-sm"), &use);
  g_assert_cmpfloat_with_epsilon(use.moved, (double)parts[OCT_PART_COMPUTE], 1);
  g_assert_cmpfloat(use.utilisation, >, 0.5);
  g_assert_cmpint(sum, >=, parts[OCT_PART_COMPUTE]);
  for (guint i = 0; i < 60; i++)
    (void)decode(&rig, 0);
  g_assert_cmpuint(oct_simgrid_binding_part(world, rig.instance), ==, OCT_PART_MEMORY);
  end(&rig);
}

static void
test_binds(void) {
  sim_rig_world world = {.profile = "h200-hgx8"};
  sim_rig_run(&world, binds_body, NULL, 0);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/simgrid/node/weights-slow-an-offload-on-a-shared-switch-only", test_weights);
  g_test_add_func("/simgrid/node/a-kv-send-slows-a-large-all-reduce-only", test_kv);
  g_test_add_func("/simgrid/node/a-throttled-gpu-slows-its-whole-group", test_throttle);
  g_test_add_func("/simgrid/node/instances-share-a-gpu-not-a-node", test_two);
  g_test_add_func("/simgrid/node/any-load-stays-within-capacity-and-repeats", test_random);
  g_test_add_func("/simgrid/node/exact-agrees-within-1-ns-a-step", test_modes);
  g_test_add_func("/simgrid/node/says-what-binds", test_binds);
  return g_test_run();
}
