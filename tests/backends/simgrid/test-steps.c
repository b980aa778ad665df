/* Steps on a simulated node: their price, host time, stages, masks, fast-forward. */
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/rng.h"
#include "tests/backends/simgrid/sim-rig.h"

#define SEED 20261129

static oct_parallel
layout(guint32 tensor, guint32 pipeline) {
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = tensor;
  p.pipeline = pipeline;
  return p;
}

static oct_cost *
cost_of(const sim_rig *rig) {
  g_autoptr(GError) error = NULL;
  oct_cost_options options = OCT_COST_OPTIONS_DEFAULT;
  oct_cost *cost = oct_cost_new(rig->spec, &rig->config.parallel, rig->config.devices,
                                sim_rig_profile(), &options, &error);
  g_assert_no_error(error);
  return cost;
}

/* ---------------------------------------------------------------- price */

typedef struct random_steps {
  sim_rig rig;
  oct_rng rng;
  guint32 left[SIM_RIG_SLOTS]; /* prompt tokens that are still to come */
  gboolean open[SIM_RIG_SLOTS];
} random_steps;

/* Opens, prefills and decodes at random, with at least one slice. */
static void
random_slices(random_steps *r, guint32 *positions) {
  guint32 n = 0;
  for (guint32 slot = 0; slot < r->rig.config.max_slots; slot++) {
    if (!r->open[slot] && oct_rng_below(&r->rng, 3) == 0) {
      r->left[slot] = 1 + (guint32)oct_rng_below(&r->rng, 3000);
      r->open[slot] = TRUE;
      sim_rig_slot(&r->rig, slot, r->left[slot], 0);
    }
    if (!r->open[slot] || (n > 0 && oct_rng_below(&r->rng, 4) == 0))
      continue;
    positions[n++] = r->rig.position[slot];
    if (r->left[slot] > 0) {
      guint32 chunk = 1 + (guint32)oct_rng_below(&r->rng, 512);
      chunk = MIN(chunk, r->left[slot]);
      r->left[slot] -= chunk;
      (void)sim_rig_prefill(&r->rig, slot, chunk, r->left[slot] == 0);
    } else {
      (void)sim_rig_decode(&r->rig, slot);
      r->open[slot] = r->rig.position[slot] < 4000;
    }
  }
}

static void
price_body(oct_world *world, gpointer out) {
  static random_steps r;
  sim_rig_options options = {.model = "kimi-k3", .parallel = layout(8, 1), .slots = 48};
  sim_rig_init(&r.rig, world, &options);
  sim_rig_open(&r.rig);
  g_autoptr(oct_cost) cost = cost_of(&r.rig);
  oct_rng_seed(&r.rng, SEED, 1);
  gint64 worst = 0;
  for (guint i = 0; i < 1000; i++) {
    static oct_step_shape shape;
    static oct_step_price price;
    guint32 positions[SIM_RIG_SLOTS];
    sim_rig_begin(&r.rig);
    random_slices(&r, positions);
    g_autoptr(GError) error = NULL;
    const oct_step *step = oct_step_end(r.rig.builder);
    sim_rig_shape(step, positions, 0, &shape);
    oct_cost_step(cost, &shape, &price);
    g_assert_cmpint(price.stages[0].ns, >, 0);
    oct_submit answer = oct_world_submit(world, r.rig.instance, step, &error);
    g_assert_no_error(error);
    g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
    sim_rig_done done = sim_rig_wait(&r.rig, r.rig.number);
    gint64 sum = 0;
    for (guint p = 0; p < OCT_PART_COUNT; p++)
      sum += done.part_ns[p];
    g_assert_cmpint(sum, ==, done.end_ns - done.start_ns);
    worst = MAX(worst, ABS(done.end_ns - done.start_ns - price.stages[0].ns));
  }
  sim_rig_check_usage(world);
  ((gint64 *)out)[0] = worst;
  ((gint64 *)out)[1] = (gint64)oct_simgrid_activities(world);
  sim_rig_close(&r.rig);
  sim_rig_clear(&r.rig);
}

static void
test_price(gconstpointer data) {
  gint64 out[2];
  sim_rig_world world = {.profile = "b300-hgx8", .exact = GPOINTER_TO_INT(data)};
  sim_rig_run(&world, price_body, out, sizeof out);
  printf("# %s: 1000 mixed steps, worst difference %d ns, %d activities\n",
         world.exact ? "exact" : "coarse", (int)out[0], (int)out[1]);
  g_assert_cmpint(out[0], <=, world.exact ? 1 : 0);
  if (!world.exact)
    g_assert_cmpint(out[1], ==, 0);
}

/* ---------------------------------------------------------------- host time and run-ahead */

static void
host_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  sim_rig_options options = {.model = "llama-3.1-8b"};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  g_autoptr(oct_cost) cost = cost_of(&rig);
  gint64 host_ns = oct_cost_step_host_ns(cost, 1);
  g_assert_cmpint(host_ns, >, 0);
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 0, 100, 0);
  (void)sim_rig_prefill(&rig, 0, 100, TRUE);
  sim_rig_submit(&rig);
  oct_time submitted = rig.now;
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0);
  sim_rig_submit(&rig);
  sim_rig_done first = sim_rig_wait(&rig, 1), second = sim_rig_wait(&rig, 2);
  g_assert_cmpint(first.start_ns, ==, submitted + host_ns);
  g_assert_cmpint(first.event_ns, ==, first.end_ns);
  /* The second was on the host while the first ran: nothing lies between them. */
  g_assert_cmpint(second.start_ns, ==, MAX(first.end_ns, submitted + 2 * host_ns));
  g_assert_cmpint(second.start_ns, ==, first.end_ns);
  /* Without running ahead the host's time lies between two steps. */
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0);
  sim_rig_submit(&rig);
  sim_rig_done third = sim_rig_wait(&rig, 3);
  g_assert_cmpint(third.start_ns, ==, second.end_ns + host_ns);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_host(void) {
  sim_rig_world world = {.profile = "h200-hgx8"};
  sim_rig_run(&world, host_body, NULL, 0);
}

/* ---------------------------------------------------------------- stages */

#define PIPE_STEPS 60

/* What left GPU 0 over NVLink: its collectives, and what stage 0 sent on. */
static void
check_sends(oct_world *world, const oct_step_price *prices, guint n) {
  double sent = 0, collectives = 0;
  for (guint i = 1; i <= n; i++) {
    sent += prices[i].stages[0].send_bytes;
    for (guint g = 0; g < OCT_COST_GROUPS; g++)
      collectives += prices[i].stages[0].groups[g].nvlink_bytes;
  }
  for (guint r = 0; r < oct_simgrid_resources(world); r++) {
    oct_simgrid_use use;
    oct_simgrid_usage(world, r, &use);
    if (use.kind != OCT_RESOURCE_NV_UP || use.index != 0)
      continue;
    /* Sends are a fortieth of it: without them the sum would be off by more than this. */
    g_assert_cmpfloat(sent, >, 0.02 * (sent + collectives));
    g_assert_cmpfloat(ABS(use.moved - (sent + collectives)), <, 0.005 * (sent + collectives));
    return;
  }
  g_assert_not_reached();
}

static void
pipeline_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  static oct_step_price prices[PIPE_STEPS + 1];
  static oct_step_shape shape;
  oct_time submitted[PIPE_STEPS + 1], end[PIPE_STEPS + 1];
  oct_rng rng;
  sim_rig_options options = {
      .model = "llama-3.1-70b", .parallel = layout(2, 4), .depth = 6, .slots = PIPE_STEPS};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  g_autoptr(oct_cost) cost = cost_of(&rig);
  oct_rng_seed(&rng, SEED, 2);
  /* Steps of different sequences: nothing but the stages holds them. */
  for (guint n = 1, waited = 0; waited < PIPE_STEPS;) {
    if (n <= PIPE_STEPS && n - waited <= 6) {
      guint32 zero = 0, tokens = 1 + (guint32)oct_rng_below(&rng, 2000);
      sim_rig_begin(&rig);
      sim_rig_slot(&rig, n - 1, tokens, 0);
      (void)sim_rig_prefill(&rig, n - 1, tokens, TRUE);
      sim_rig_shape(oct_step_end(rig.builder), &zero, 0, &shape);
      oct_cost_step(cost, &shape, &prices[n]);
      rig.number--; /* builds the same step again, as end() closed it */
      sim_rig_begin(&rig);
      sim_rig_slot(&rig, n - 1, tokens, 0);
      (void)sim_rig_prefill(&rig, n - 1, tokens, TRUE);
      sim_rig_submit(&rig);
      submitted[n++] = rig.now;
    } else {
      waited++;
      end[waited] = sim_rig_wait(&rig, waited).end_ns;
    }
  }
  oct_time c[4] = {0}, host = 0;
  for (guint n = 1; n <= PIPE_STEPS; n++) {
    host = MAX(host, submitted[n]) + oct_cost_step_host_ns(cost, 1);
    oct_time arrived = host;
    for (guint s = 0; s < 4; s++) {
      c[s] = MAX(arrived, c[s]) + prices[n].stages[s].ns;
      arrived = c[s] + prices[n].stages[s].send_ns;
    }
    g_assert_cmpint(ABS(end[n] - c[3]), <=, n); /* where a send meets a collective: 1 ns a step */
  }
  check_sends(world, prices, PIPE_STEPS);
  sim_rig_check_usage(world);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_pipeline(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, pipeline_body, NULL, 0);
}

/* A sequence in two unfinished steps: the second begins with the first one's token. */
static void
feeds_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  sim_rig_options options = {.model = "llama-3.1-70b", .parallel = layout(2, 4), .depth = 5};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 0, 64, 0);
  (void)sim_rig_prefill(&rig, 0, 64, TRUE);
  sim_rig_submit(&rig);
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 1, 64, 0);
  (void)sim_rig_prefill(&rig, 1, 64, TRUE);
  sim_rig_submit(&rig);
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0);
  sim_rig_submit(&rig);
  sim_rig_done first = sim_rig_wait(&rig, 1), other = sim_rig_wait(&rig, 2),
               second = sim_rig_wait(&rig, 3);
  g_assert_cmpint(other.start_ns, <, first.end_ns);
  g_assert_cmpint(second.start_ns, ==, first.end_ns);
  g_assert_cmpint(second.end_ns, >, other.end_ns);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_feeds(void) {
  sim_rig_world world = {.profile = "b300-hgx8"};
  sim_rig_run(&world, feeds_body, NULL, 0);
}

/* ---------------------------------------------------------------- masks */

static void
mask_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  oct_event event;
  g_autoptr(GError) error = NULL;
  sim_rig_options options = {.model = "llama-3.1-8b"};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 0, 10, 0);
  sim_rig_prefill(&rig, 0, 10, TRUE)->flags |= OCT_SLICE_NEEDS_MASK;
  sim_rig_submit(&rig);
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 1, 10, 0);
  (void)sim_rig_prefill(&rig, 1, 10, TRUE);
  sim_rig_submit(&rig);
  g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_MASK_WANTED);
  g_assert_cmpuint(event.number, ==, 1);
  g_assert_cmpuint(event.slice, ==, 0);
  oct_time wanted = event.time_ns;
  sim_rig_sleep(&rig, wanted + 5000000);
  guint32 n_words = (rig.spec->vocab + 63) / 64;
  g_autofree guint64 *bits = g_new0(guint64, n_words);
  bits[3] = 1u << 7; /* only token 199 */
  gboolean taken = oct_world_mask(world, rig.instance, 1, 0, bits, n_words, &error);
  g_assert_no_error(error);
  g_assert_true(taken);
  g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_STEP_DONE);
  g_assert_cmpint(event.result->end_ns, ==, wanted + 5000000);
  g_assert_cmpint(event.result->part_ns[OCT_PART_WAIT], ==, 5000000);
  g_assert_cmpuint(oct_result_tokens(event.result)[0], ==, 199);
  sim_rig_done next = sim_rig_wait(&rig, 2);
  g_assert_cmpint(next.start_ns, ==, wanted + 5000000);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_mask(void) {
  sim_rig_world world = {.profile = "h200-hgx8"};
  sim_rig_run(&world, mask_body, NULL, 0);
}

/* ---------------------------------------------------------------- fast-forward */

#define FORWARD_SLOTS 12

/* What a run of decodes came to: everything that a log would have. */
typedef struct forward_out {
  guint64 digest; /* of start and end of every step, and of every token that was told */
  gint64 part_ns[OCT_PART_COUNT];
  gint64 n_forwarded;
  double moved[OCT_PROFILE_GPUS_MAX * 8];
} forward_out;

typedef struct forward_case {
  const char *model;
  oct_parallel parallel;
  gboolean ahead; /* submit before the last step has ended */
} forward_case;
static forward_case which;
static gboolean stepping;

static void
digest(forward_out *out, guint64 value) {
  out->digest = oct_mix64(out->digest ^ value);
}

static void
decode_all(sim_rig *rig, gboolean opens) {
  sim_rig_begin(rig);
  for (guint32 slot = 0; slot < FORWARD_SLOTS; slot++) {
    if (opens) {
      sim_rig_slot(rig, slot, 90 + 13 * slot, slot < 6 ? 300 + 17 * slot : 0);
      (void)sim_rig_prefill(rig, slot, 90 + 13 * slot, TRUE);
    } else {
      (void)sim_rig_decode(rig, slot);
    }
  }
  sim_rig_submit(rig);
}

static void
take(forward_out *out, const oct_event *event) {
  digest(out, (guint64)event->result->start_ns);
  digest(out, (guint64)event->result->end_ns);
}

/* 400 steps of the same sequences; the sixth part is told at the end of each stretch only, as an
 * engine would see it. */
static void
forward_body(oct_world *world, gpointer result) {
  sim_rig rig;
  forward_out *out = result;
  oct_event event;
  sim_rig_options options = {.model = which.model, .parallel = which.parallel, .slots = 16};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  decode_all(&rig, TRUE);
  decode_all(&rig, FALSE);
  while (rig.number < 400) {
    g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
    g_assert_cmpint(event.kind, ==, OCT_EVENT_STEP_DONE);
    take(out, &event);
    /* One step is unfinished. Submission of the next: now, or when that one has ended. */
    oct_time now = event.time_ns;
    for (;;) {
      oct_forwarded forwarded;
      oct_forward ask = {.limit_ns = OCT_TIME_NEVER, .submit_ns = now};
      if (stepping || !which.ahead || rig.number >= 390 ||
          !oct_world_forward(world, rig.instance, &ask, &forwarded))
        break;
      digest(out, (guint64)forwarded.start_ns);
      digest(out, (guint64)forwarded.end_ns);
      now = forwarded.end_ns;
      rig.number++;
      out->n_forwarded++;
      for (guint32 slot = 0; slot < FORWARD_SLOTS; slot++)
        rig.position[slot]++;
    }
    decode_all(&rig, FALSE);
  }
  for (guint i = 0; i < 2; i++) {
    g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
    take(out, &event);
  }
  for (guint i = 0; i < event.result->n_tokens; i++)
    digest(out, oct_result_tokens(event.result)[i]);
  oct_simgrid_parts(world, rig.instance, out->part_ns);
  for (guint i = 0; i < MIN(oct_simgrid_resources(world), G_N_ELEMENTS(out->moved)); i++) {
    oct_simgrid_use use;
    oct_simgrid_usage(world, i, &use);
    out->moved[i] = use.moved;
  }
  sim_rig_check_usage(world);
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_forward(void) {
  static const forward_case cases[] = {
      {"llama-3.1-8b", {.tensor = 1, .pipeline = 1, .data = 1, .decode_context = 1}, TRUE},
      {"kimi-k3", {.tensor = 8, .pipeline = 1, .data = 1, .decode_context = 1}, TRUE},
      {"llama-3.1-70b", {.tensor = 2, .pipeline = 4, .data = 1, .decode_context = 1}, TRUE},
      {"gpt-oss-120b", {.tensor = 4, .pipeline = 1, .data = 1, .decode_context = 1}, TRUE},
  };
  static const oct_heat_law warm = {
      .time_constant_s = 0.04, .prompts = 0.2, .decodes = 0.1, .flops_per_s = 1e14};
  guint64 cold = 0;
  for (guint i = 0; i < 2 * G_N_ELEMENTS(cases); i++) {
    sim_rig_world world = {.profile = "b300-hgx8"};
    forward_out fast = {0}, slow = {0};
    which = cases[i / 2];
    if (i % 2 == 1) /* steps that depend on what ran before them */
      world.heat = warm;
    which.parallel.shard_latent = TRUE;
    stepping = FALSE;
    sim_rig_run(&world, forward_body, &fast, sizeof fast);
    stepping = TRUE;
    sim_rig_run(&world, forward_body, &slow, sizeof slow);
    printf("# %s: %d of 400 steps forwarded\n", which.model, (int)fast.n_forwarded);
    g_assert_cmpint(fast.n_forwarded, >, 250);
    g_assert_cmpint(slow.n_forwarded, ==, 0);
    g_assert_cmpuint(fast.digest, ==, slow.digest);
    if (i % 2 == 1)
      g_assert_cmpuint(fast.digest, !=, cold);
    cold = fast.digest;
    g_assert_cmpmem(fast.part_ns, sizeof fast.part_ns, slow.part_ns, sizeof slow.part_ns);
    g_assert_cmpmem(fast.moved, sizeof fast.moved, slow.moved, sizeof slow.moved);
  }
}

/* What must stop a stretch: a limit, a sequence that ends, a timer of the world, exact mode. */
static void
forward_stops_body(oct_world *world, gpointer out G_GNUC_UNUSED) {
  sim_rig rig;
  oct_forwarded forwarded;
  g_autoptr(GError) error = NULL;
  sim_rig_options options = {.model = "llama-3.1-8b"};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 0, 10, 6);
  (void)sim_rig_prefill(&rig, 0, 10, TRUE); /* token 1 of 6 */
  sim_rig_submit(&rig);
  oct_forward ask = {.limit_ns = OCT_TIME_NEVER, .submit_ns = 0};
  g_assert_false(oct_world_forward(world, rig.instance, &ask, &forwarded)); /* prefill */
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0); /* token 2 */
  sim_rig_submit(&rig);
  g_assert_false(oct_world_forward(world, rig.instance, &ask, &forwarded)); /* two unfinished */
  (void)sim_rig_wait(&rig, 1);
  ask.limit_ns = rig.now;
  g_assert_false(oct_world_forward(world, rig.instance, &ask, &forwarded)); /* the limit */
  ask.limit_ns = OCT_TIME_NEVER;
  ask.submit_ns = rig.now;
  gboolean scaled = oct_simgrid_scale(world, "gpu7-sm", 0.5, rig.now + 1, &error);
  g_assert_no_error(error);
  g_assert_true(scaled);
  g_assert_false(oct_world_forward(world, rig.instance, &ask, &forwarded)); /* the world's timer */
  sim_rig_sleep(&rig, rig.now + 2);
  oct_world_wake(world);
  g_assert_false(oct_world_forward(world, rig.instance, &ask, &forwarded)); /* a wake-up */
  oct_event event;
  g_assert_true(oct_world_next(world, OCT_TIME_NEVER, &event));
  g_assert_cmpint(event.kind, ==, OCT_EVENT_WAKE);
  guint n = 0;
  while (oct_world_forward(world, rig.instance, &ask, &forwarded)) {
    ask.submit_ns = forwarded.end_ns;
    n++;
  }
  g_assert_cmpuint(n, ==, 4); /* tokens 2 to 5; the sixth ends the sequence */
  (void)oct_world_next(world, OCT_TIME_NEVER, &event);
  g_assert_cmpint(event.kind, ==, OCT_EVENT_STEP_DONE);
  g_assert_cmpuint(event.number, ==, 6);
  g_assert_cmpuint(oct_result_tokens(event.result)[0], ==, 1); /* eos */
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_forward_stops(void) {
  sim_rig_world world = {.profile = "h200-hgx8"};
  sim_rig_run(&world, forward_stops_body, NULL, 0);
}

/* The host takes longer than a step: the device idles in between, forwarded as stepped. Each step
 * is submitted when the one before begins. */
static void
host_bound_body(oct_world *world, gpointer out) {
  sim_rig rig;
  gint64 *times = out;
  oct_forwarded forwarded;
  sim_rig_options options = {.model = "smollm2-135m"};
  sim_rig_init(&rig, world, &options);
  sim_rig_open(&rig);
  sim_rig_begin(&rig);
  sim_rig_slot(&rig, 0, 10, 0);
  (void)sim_rig_prefill(&rig, 0, 10, TRUE);
  sim_rig_submit(&rig);
  sim_rig_begin(&rig);
  (void)sim_rig_decode(&rig, 0);
  sim_rig_submit(&rig);
  oct_time last = sim_rig_wait(&rig, 1).end_ns;
  for (guint i = 0; i < 50; i++) {
    if (stepping) {
      sim_rig_begin(&rig);
      (void)sim_rig_decode(&rig, 0);
      sim_rig_submit(&rig);
      sim_rig_done done = sim_rig_wait(&rig, rig.number - 1);
      times[2 * i] = done.start_ns;
      times[2 * i + 1] = done.end_ns;
      continue;
    }
    oct_forward ask = {.limit_ns = OCT_TIME_NEVER, .submit_ns = last};
    g_assert_true(oct_world_forward(world, rig.instance, &ask, &forwarded));
    times[2 * i] = forwarded.start_ns;
    times[2 * i + 1] = last = forwarded.end_ns;
  }
  sim_rig_close(&rig);
  sim_rig_clear(&rig);
}

static void
test_host_bound(void) {
  gint64 slow[100] = {0}, fast[100] = {0};
  sim_rig_world world = {.profile = "h200-hgx8", .step_host_ns = 20000000};
  stepping = TRUE;
  sim_rig_run(&world, host_bound_body, slow, sizeof slow);
  stepping = FALSE;
  sim_rig_run(&world, host_bound_body, fast, sizeof fast);
  g_assert_cmpmem(slow, sizeof slow, fast, sizeof fast);
  for (guint i = 1; i < 50; i++)
    g_assert_cmpint(slow[2 * i], >, slow[2 * i - 1]);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_data_func("/simgrid/steps/alone-takes-its-price", GINT_TO_POINTER(0), test_price);
  g_test_add_data_func("/simgrid/steps/alone-takes-its-price-in-the-solver", GINT_TO_POINTER(1),
                       test_price);
  g_test_add_func("/simgrid/steps/host-time-overlaps-when-a-step-runs-ahead", test_host);
  g_test_add_func("/simgrid/steps/pipeline-follows-its-recurrence", test_pipeline);
  g_test_add_func("/simgrid/steps/a-sequence-waits-for-its-own-token", test_feeds);
  g_test_add_func("/simgrid/steps/a-late-mask-holds-sampling-and-the-next-step", test_mask);
  g_test_add_func("/simgrid/steps/forward-equals-stepping", test_forward);
  g_test_add_func("/simgrid/steps/forward-stops-where-something-happens", test_forward_stops);
  g_test_add_func("/simgrid/steps/forward-equals-stepping-when-the-host-binds", test_host_bound);
  return g_test_run();
}
