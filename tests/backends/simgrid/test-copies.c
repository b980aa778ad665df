/* Copies on a simulated node: their time, their order, what they move and where. */
#include <stdio.h>
#include <string.h>

#include "tests/backends/simgrid/sim-rig.h"

static oct_parallel
tensor(guint32 n) {
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = n;
  return p;
}

/* kimi-k3 over 8 GPUs: group 0 is state, group 1 latent pages that every rank holds whole. */
enum { STATE, PAGES };

static void
k3(sim_rig *rig, oct_world *world) {
  sim_rig_options options = {.model = "kimi-k3", .parallel = tensor(8)};
  sim_rig_init(rig, world, &options);
  g_assert_cmpint(rig->groups[STATE].kind, ==, OCT_ATTENTION_KDA);
  g_assert_cmpint(rig->groups[PAGES].kind, ==, OCT_ATTENTION_MLA);
  sim_rig_open(rig);
}

static oct_copy
beside(const sim_rig *rig, guint32 group, oct_tier from, oct_tier to, guint32 from_index,
       guint32 to_index) {
  return (oct_copy){.kind = rig->groups[group].kind == OCT_ATTENTION_KDA ? OCT_COPY_STATE
                                                                         : OCT_COPY_PAGE,
                    .order = OCT_COPY_BESIDE,
                    .from_tier = (guint8)from,
                    .to_tier = (guint8)to,
                    .group = (guint16)group,
                    .from = from_index,
                    .to = to_index};
}

static void
submit_copy(sim_rig *rig, guint64 ticket, const oct_copy *copies, guint32 n) {
  g_autoptr(GError) error = NULL;
  oct_submit answer = oct_world_copy(rig->world, rig->instance, ticket, copies, n, &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
}

/* One step of one sequence with `n` tokens of prompt; returns when it began and ended. */
static sim_rig_done
prefill(sim_rig *rig, guint32 slot, guint32 n) {
  sim_rig_begin(rig);
  sim_rig_slot(rig, slot, n, 0);
  (void)sim_rig_prefill(rig, slot, n, TRUE);
  sim_rig_submit(rig);
  return sim_rig_wait(rig, rig->number);
}

static void
end(sim_rig *rig) {
  sim_rig_check_usage(rig->world);
  sim_rig_close(rig);
  sim_rig_clear(rig);
}

/* ---------------------------------------------------------------- bytes */

/* A latent page lies on all eight ranks; the host gets it once, and gives it once: each rank moves
 * its eighth over PCIe and gathers the rest over NVLink. */
static void
once_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  k3(&rig, world);
  (void)prefill(&rig, 0, 64);
  double page = 64.0 * (double)rig.groups[PAGES].token_bytes;
  oct_copy away = beside(&rig, PAGES, OCT_TIER_DEVICE, OCT_TIER_HOST, 0, 3);
  double before = sim_rig_moved(world, "dram0") + sim_rig_moved(world, "dram1");
  submit_copy(&rig, 1, &away, 1);
  (void)sim_rig_wait_copy(&rig, 1);
  double host = sim_rig_moved(world, "dram0") + sim_rig_moved(world, "dram1") - before;
  g_assert_cmpfloat_with_epsilon(host, page, 1);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "gpu5-pcie-up"), page / 8, 1);
  double nv = sim_rig_moved(world, "gpu5-nv-down"), hbm = sim_rig_moved(world, "gpu5-hbm");
  oct_copy back = beside(&rig, PAGES, OCT_TIER_HOST, OCT_TIER_DEVICE, 3,
                         rig.config.memory.groups[PAGES].n_device - 1);
  submit_copy(&rig, 2, &back, 1);
  (void)sim_rig_wait_copy(&rig, 2);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "gpu5-pcie-down"), page / 8, 1);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "gpu5-nv-down") - nv, page * 7 / 8, 1);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "gpu5-hbm") - hbm, page, 1);
  end(&rig);
}

static void
test_once(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, once_body, NULL, 0);
}

/* Without an NVSwitch every rank loads the whole page by itself. */
static void
pairs_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  k3(&rig, world);
  double page = 64.0 * (double)rig.groups[PAGES].token_bytes;
  (void)prefill(&rig, 0, 64);
  oct_copy away = beside(&rig, PAGES, OCT_TIER_DEVICE, OCT_TIER_HOST, 0, 3);
  submit_copy(&rig, 1, &away, 1);
  (void)sim_rig_wait_copy(&rig, 1);
  double down = sim_rig_moved(world, "gpu5-pcie-down"); /* the step's collectives cross it too */
  oct_copy back = beside(&rig, PAGES, OCT_TIER_HOST, OCT_TIER_DEVICE, 3,
                         rig.config.memory.groups[PAGES].n_device - 1);
  submit_copy(&rig, 2, &back, 1);
  (void)sim_rig_wait_copy(&rig, 2);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "gpu5-pcie-down") - down, page, 1);
  end(&rig);
}

static void
test_pairs(void) {
  sim_rig_world world = {.profile = "pairs-4rc"};
  sim_rig_run(&world, pairs_body, NULL, 0);
}

/* A state is cut over the ranks: each writes its part. */
static void
state_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  k3(&rig, world);
  (void)prefill(&rig, 0, 64);
  const oct_profile *profile = sim_rig_profile();
  double part = (double)oct_model_rank_state_bytes(rig.spec, &rig.config.parallel, 0, STATE);
  oct_copy away = beside(&rig, STATE, OCT_TIER_DEVICE, OCT_TIER_HOST, 0, 5);
  oct_time begin = rig.now;
  submit_copy(&rig, 1, &away, 1);
  oct_time took = sim_rig_wait_copy(&rig, 1) - begin;
  gint64 wanted =
      oct_cost_ns(profile->pcie.copy_latency_s) + oct_cost_ns(part / profile->pcie.d2h_bytes_per_s);
  g_assert_cmpint(ABS(took - wanted), <=, 2);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "gpu7-pcie-up"), part, 1);
  end(&rig);
}

static void
test_state(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, state_body, NULL, 0);
}

/* ---------------------------------------------------------------- order */

/* Copies of one direction follow one another; those of the other do not wait for them. */
static void
fifo_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  sim_rig_options options = {.model = "llama-3.1-8b"};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  (void)prefill(&rig, 0, 640);
  oct_copy away[3], back;
  for (guint32 i = 0; i < 3; i++)
    away[i] = beside(&rig, 0, OCT_TIER_DEVICE, OCT_TIER_HOST, sim_rig_page(&rig, 0, i), i);
  oct_time begin = rig.now;
  submit_copy(&rig, 1, &away[0], 1);
  submit_copy(&rig, 2, &away[1], 1);
  oct_time one = sim_rig_wait_copy(&rig, 1) - begin, two = sim_rig_wait_copy(&rig, 2) - begin;
  g_assert_cmpint(ABS(two - 2 * one), <=, 1);
  begin = rig.now;
  submit_copy(&rig, 3, &away[2], 1);
  back =
      beside(&rig, 0, OCT_TIER_HOST, OCT_TIER_DEVICE, 0, rig.config.memory.groups[0].n_device - 1);
  submit_copy(&rig, 4, &back, 1);
  oct_time out_ns = 0, in_ns = 0;
  for (guint i = 0; i < 2; i++) {
    oct_event event;
    g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
    g_assert_cmpint(event.kind, ==, OCT_EVENT_COPY_DONE);
    *(event.number == 3 ? &out_ns : &in_ns) = event.time_ns - begin;
  }
  /* Both directions share the port: 115.1 GB/s are wanted, 99 there (times 1.16). */
  g_assert_cmpint(MAX(out_ns, in_ns), <, one * 3 / 2);
  g_assert_cmpint(MAX(out_ns, in_ns), >, one * 11 / 10);
  end(&rig);
}

static void
test_fifo(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, fifo_body, NULL, 0);
}

/* BEFORE copies end before the step's kernels begin, AFTER copies before the next step's. */
static void
order_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  k3(&rig, world);
  const oct_profile *profile = sim_rig_profile();
  double part = (double)oct_model_rank_state_bytes(rig.spec, &rig.config.parallel, 0, STATE);
  guint32 spare = rig.config.memory.groups[STATE].n_device - 1;
  gint64 d2d =
      oct_cost_ns(profile->efficiency.kernel_floor_s) +
      oct_cost_ns(2 * part / (profile->gpu.hbm_bytes_per_s * profile->efficiency.hbm_copy));
  gint64 d2h =
      oct_cost_ns(profile->pcie.copy_latency_s) + oct_cost_ns(part / profile->pcie.d2h_bytes_per_s);
  gint64 h2d =
      oct_cost_ns(profile->pcie.copy_latency_s) + oct_cost_ns(part / profile->pcie.h2d_bytes_per_s);
  /* 1: a snapshot after it. 2: runs ahead, its own copy away after it. 3: comes back before it. */
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 0, 64, 0);
  (void)sim_rig_prefill(&rig, 0, 64, TRUE);
  (void)sim_rig_copy(&rig, OCT_COPY_AFTER, STATE, OCT_TIER_DEVICE, OCT_TIER_DEVICE, 0, spare);
  sim_rig_submit(&rig);
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0);
  (void)sim_rig_copy(&rig, OCT_COPY_AFTER, STATE, OCT_TIER_DEVICE, OCT_TIER_HOST, spare, 7);
  sim_rig_submit(&rig);
  sim_rig_done first = sim_rig_wait(&rig, 1);
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0);
  (void)sim_rig_copy(&rig, OCT_COPY_BEFORE, STATE, OCT_TIER_HOST, OCT_TIER_DEVICE, 7, spare - 1);
  (void)sim_rig_copy(&rig, OCT_COPY_BEFORE, STATE, OCT_TIER_DEVICE, OCT_TIER_DEVICE, spare,
                     spare - 2);
  sim_rig_submit(&rig);
  sim_rig_done second = sim_rig_wait(&rig, 2), third = sim_rig_wait(&rig, 3);
  g_assert_cmpint(second.start_ns, ==, first.end_ns + d2d);
  /* The third reads on the host what the second's AFTER copy writes there. */
  g_assert_cmpint(ABS(third.start_ns - (second.end_ns + d2h + h2d)), <=, 2);
  g_assert_cmpint(ABS(third.part_ns[OCT_PART_COPY] - d2d), <=, 1);
  end(&rig);
}

static void
test_order(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, order_body, NULL, 0);
}

/* A BESIDE copy of what an unfinished step writes begins when that step has ended, and of nothing
 * else waits; a step goes on beside it. */
static void
beside_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  sim_rig_options options = {.model = "llama-3.1-8b"};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  (void)prefill(&rig, 0, 64);
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 1, 4000, 0);
  (void)sim_rig_prefill(&rig, 1, 4000, TRUE);
  sim_rig_submit(&rig);
  oct_copy old = beside(&rig, 0, OCT_TIER_DEVICE, OCT_TIER_HOST, sim_rig_page(&rig, 0, 0), 0);
  oct_copy fresh = beside(&rig, 0, OCT_TIER_DEVICE, OCT_TIER_HOST, sim_rig_page(&rig, 1, 0), 1);
  oct_time begin = rig.now;
  submit_copy(&rig, 10, &old, 1);
  submit_copy(&rig, 11, &fresh, 1);
  oct_time done = sim_rig_wait_copy(&rig, 10);
  sim_rig_done step = sim_rig_wait(&rig, 2);
  g_assert_cmpint(done, <, step.end_ns);
  oct_time alone = done - begin;
  oct_time written = sim_rig_wait_copy(&rig, 11);
  g_assert_cmpint(ABS(written - (step.end_ns + alone)), <=, 1);
  /* 11 has written host page 1; a copy back from it waits for it. */
  oct_copy back =
      beside(&rig, 0, OCT_TIER_HOST, OCT_TIER_DEVICE, 1, rig.config.memory.groups[0].n_device - 1);
  begin = rig.now;
  submit_copy(&rig, 12, &fresh, 1);
  submit_copy(&rig, 13, &back, 1);
  oct_time wrote = sim_rig_wait_copy(&rig, 12), read = sim_rig_wait_copy(&rig, 13);
  g_assert_cmpint(read - wrote, >=, alone * 9 / 10);
  end(&rig);
}

static void
test_beside(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, beside_body, NULL, 0);
}

/* ---------------------------------------------------------------- the host's sockets */

static guint sender_count;

/* Reads from the far socket at one time; `out` is what the first took. */
static void
far_body(oct_world *world, gpointer out) {
  g_autoptr(GError) error = NULL;
  guint ids[8];
  double bytes = sim_rig_profile()->pcie.h2d_bytes_per_s * 0.01; /* 10 ms alone */
  gboolean scaled = oct_simgrid_scale(world, "socket1-to-0",
                                      sim_rig_profile()->pcie.h2d_bytes_per_s /
                                          sim_rig_profile()->host.intersocket_bytes_per_s,
                                      0, &error);
  g_assert_true(scaled);
  for (guint i = 0; i < sender_count; i++)
    ids[i] = oct_simgrid_send(world, (oct_simgrid_place){OCT_PLACE_MEMORY, 1},
                              (oct_simgrid_place){OCT_PLACE_GPU, i}, bytes, 1000, &error);
  guint local = oct_simgrid_send(world, (oct_simgrid_place){OCT_PLACE_MEMORY, 0},
                                 (oct_simgrid_place){OCT_PLACE_GPU, 3}, bytes, 1000, &error);
  g_assert_no_error(error);
  oct_event event;
  g_assert_false(oct_world_next(world, OCT_TIME_NEVER, &event));
  gint64 latency = oct_cost_ns(sim_rig_profile()->pcie.copy_latency_s);
  g_assert_cmpint(ABS(oct_simgrid_sent(world, local) - 10000000 - latency), <=, 1);
  *(gint64 *)out = oct_simgrid_sent(world, ids[0]);
  sim_rig_check_usage(world);
}

static void
test_far(void) {
  gint64 alone, shared;
  sim_rig_world world = {.profile = "b300-hgx8"};
  sender_count = 1;
  sim_rig_run(&world, far_body, &alone, sizeof alone);
  sender_count = 2;
  sim_rig_run(&world, far_body, &shared, sizeof shared);
  printf("# a remote buffer alone %.3f ms, with another on the full link %.3f ms\n",
         (double)alone * 1e-6, (double)shared * 1e-6);
  g_assert_cmpfloat_with_epsilon((double)shared / (double)alone, 2, 0.001);
}

/* Host buffers all on socket 1: what GPUs 0-3 write crosses to it. */
static void
placed_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  k3(&rig, world);
  (void)prefill(&rig, 0, 64);
  double part = (double)oct_model_rank_state_bytes(rig.spec, &rig.config.parallel, 0, STATE);
  oct_copy away = beside(&rig, STATE, OCT_TIER_DEVICE, OCT_TIER_HOST, 0, 5);
  submit_copy(&rig, 1, &away, 1);
  (void)sim_rig_wait_copy(&rig, 1);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "socket0-to-1"), 4 * part, 1);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "dram1"), 8 * part, 1);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "dram0"), 0, 1);
  end(&rig);
}

static void
test_placed(void) {
  sim_rig_world world = {.profile = "b300-hgx8", .host_socket = 2};
  sim_rig_run(&world, placed_body, NULL, 0);
}

/* ---------------------------------------------------------------- experts */

static void
expert_body(oct_world *world, gpointer out) {
  sim_rig rig;
  sim_rig_options options = {.model = "qwen3-30b-a3b", .parallel = tensor(4)};
  options.parallel.expert_parallel = TRUE;
  sim_rig_init(&rig, world, &options);
  rig.config.memory.n_expert_slots = 8; /* of 32 on each rank */
  rig.config.report_experts = TRUE;
  sim_rig_open(&rig);
  g_assert_false(rig.capabilities.forward);
  /* An expert is loaded on the rank that has it. */
  double bytes = (double)oct_model_expert(rig.spec, 3).bytes;
  oct_copy load = {.kind = OCT_COPY_EXPERT,
                   .order = OCT_COPY_BESIDE,
                   .from_tier = OCT_TIER_HOST,
                   .to_tier = OCT_TIER_DEVICE,
                   .group = 3,
                   .from = 70,
                   .to = 2};
  submit_copy(&rig, 1, &load, 1);
  (void)sim_rig_wait_copy(&rig, 1);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "gpu2-pcie-down"), bytes, 1);
  g_assert_cmpfloat_with_epsilon(sim_rig_moved(world, "gpu1-pcie-down"), 0, 1);
  /* Nothing else is resident: a step reads what it uses over PCIe. */
  sim_rig_done step = prefill(&rig, 0, 4);
  g_assert_cmpint(step.part_ns[OCT_PART_COPY], >, 0);
  double read = sim_rig_moved(world, "gpu1-pcie-down");
  g_assert_cmpfloat(read, >, 10 * bytes);
  *(gint64 *)out = step.part_ns[OCT_PART_COPY];
  end(&rig);
}

static void
test_experts(void) {
  gint64 read, load;
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, expert_body, &read, sizeof read);
  world.expert_miss = OCT_EXPERT_MISS_LOAD;
  sim_rig_run(&world, expert_body, &load, sizeof load);
  /* One copy latency for each of the 48 layers, all of which miss. */
  g_assert_cmpint(load - read, ==, 48 * 3600);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/simgrid/copies/replicated-pages-go-to-the-host-once", test_once);
  g_test_add_func("/simgrid/copies/without-nvswitch-each-rank-loads-all", test_pairs);
  g_test_add_func("/simgrid/copies/state-goes-in-parts", test_state);
  g_test_add_func("/simgrid/copies/queue-per-gpu-and-direction", test_fifo);
  g_test_add_func("/simgrid/copies/before-and-after-keep-their-order", test_order);
  g_test_add_func("/simgrid/copies/beside-waits-for-its-writer-only", test_beside);
  g_test_add_func("/simgrid/copies/a-remote-buffer-halves-when-the-link-is-full", test_far);
  g_test_add_func("/simgrid/copies/host-buffers-lie-where-they-are-put", test_placed);
  g_test_add_func("/simgrid/copies/experts-load-on-their-rank-and-misses-cost", test_experts);
  return g_test_run();
}
