/* Expert residency: hit rates of LRU and pins under routing that does and does not drift; and what
 * goes to the device, against a naive model of it that knows what every unfinished step can read.
 */
#include <math.h>
#include <string.h>

#include "engine/base/rng.h"
#include "engine/sched/engine.h"
#include "engine/sched/experts.h"

static oct_model_spec *
load(const char *name) {
  g_autoptr(GError) error = NULL;
  oct_model_spec *spec = oct_model_spec_load(name, NULL, &error);
  g_assert_no_error(error);
  return spec;
}

static oct_experts *
experts_new(const oct_model_spec *spec, const oct_parallel *p, guint32 n_slots,
            const oct_expert_options *options) {
  g_autoptr(GError) error = NULL;
  oct_experts *x = oct_experts_new(spec, p, n_slots, options, &error);
  g_assert_no_error(error);
  return x;
}

static void
check(const oct_experts *x) {
  g_autoptr(GError) error = NULL;
  gboolean good = oct_experts_check(x, &error);
  g_assert_no_error(error);
  g_assert_true(good);
}

/* ---------------------------------------------------------------- routing */

#define LAYERS  3 /* of the model's: the others get no tokens */
#define EXPERTS 128
#define TOP_K   8

typedef struct routing {
  oct_rng rng;
  double cumulative[EXPERTS];      /* by popularity rank */
  guint32 expert[LAYERS][EXPERTS]; /* popularity rank -> expert */
} routing;

static void
routing_init(routing *r, guint64 seed, double exponent) {
  oct_rng_seed(&r->rng, seed, 1);
  double sum = 0;
  for (guint32 i = 0; i < EXPERTS; i++)
    r->cumulative[i] = sum += pow(i + 1.0, -exponent);
  for (guint32 i = 0; i < EXPERTS; i++)
    r->cumulative[i] /= sum;
  for (guint32 l = 0; l < LAYERS; l++)
    for (guint32 i = 0; i < EXPERTS; i++) {
      guint32 j = (guint32)oct_rng_below(&r->rng, i + 1);
      r->expert[l][i] = r->expert[l][j];
      r->expert[l][j] = i;
    }
}

/* Two experts of each layer change places in popularity. */
static void
drift(routing *r) {
  for (guint32 l = 0; l < LAYERS; l++) {
    guint32 a = (guint32)oct_rng_below(&r->rng, EXPERTS);
    guint32 b = (guint32)oct_rng_below(&r->rng, EXPERTS);
    guint32 swap = r->expert[l][a];
    r->expert[l][a] = r->expert[l][b];
    r->expert[l][b] = swap;
  }
}

static guint32
draw(routing *r, guint32 layer) {
  double u = oct_rng_uniform(&r->rng);
  guint32 low = 0, high = EXPERTS - 1;
  while (low < high) {
    guint32 middle = (low + high) / 2;
    if (r->cumulative[middle] < u)
      low = middle + 1;
    else
      high = middle;
  }
  return r->expert[layer][low];
}

/* Experts that `tokens` tokens use, misses as `x` has its map. */
static guint32
route(routing *r, const oct_experts *x, guint32 tokens, oct_expert_use *uses) {
  guint32 n = 0;
  for (guint32 l = 0; l < LAYERS; l++) {
    guint32 used[EXPERTS] = {0};
    for (guint32 t = 0; t < tokens; t++) {
      gboolean chosen[EXPERTS] = {FALSE};
      for (guint32 k = 0; k < TOP_K;) {
        guint32 e = draw(r, l);
        k += !chosen[e];
        used[e] += !chosen[e];
        chosen[e] = TRUE;
      }
    }
    for (guint32 e = 0; e < EXPERTS; e++)
      if (used[e] > 0)
        uses[n++] = (oct_expert_use){.layer = (guint16)l,
                                     .expert = e,
                                     .tokens = used[e],
                                     .missed = oct_experts_slot(x, l, e) == OCT_NO_INDEX};
  }
  return n;
}

/* ---------------------------------------------------------------- hit rates */

typedef struct trial {
  oct_expert_policy policy;
  oct_expert_warmup warmup;
  double exponent; /* of the routing */
  guint32 drift_every;
  guint32 half_life;
} trial;

/* Share of pairs that hit over the second half of `steps` steps; loads per step in *loads. */
static double
hit_rate(const trial *t, guint32 steps, double *loads) {
  g_autoptr(oct_model_spec) spec = load("qwen3-30b-a3b");
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  routing r;
  routing_init(&r, 7, t->exponent);
  g_autofree double *histogram = g_new0(double, spec->n_layers *EXPERTS);
  for (guint32 l = 0; l < LAYERS; l++)
    for (guint32 i = 0; i < EXPERTS; i++)
      histogram[l * EXPERTS + r.expert[l][i]] = pow(i + 1.0, -t->exponent);
  oct_expert_options options = {.policy = t->policy,
                                .warmup = t->warmup,
                                .histogram = histogram,
                                .half_life_steps = t->half_life};
  g_autoptr(oct_experts) x = experts_new(spec, &p, 32, &options);
  g_autoptr(oct_step_builder) builder = oct_step_builder_new();
  oct_expert_use uses[LAYERS * EXPERTS];
  oct_copy copies[OCT_EXPERT_LOADS_MAX];
  oct_expert_stats half = {0}, end;
  guint32 n;
  while ((n = oct_experts_loads(x, 0, copies, OCT_EXPERT_LOADS_MAX)) > 0)
    oct_experts_loaded(x, copies, n, FALSE);
  g_assert_true(oct_experts_warm(x));
  for (guint64 step = 1; step <= steps; step++) {
    oct_step_begin(builder, step, 1);
    oct_experts_plan(x, step, builder);
    g_assert_true(oct_experts_used(x, uses, route(&r, x, 8, uses)));
    n = oct_experts_loads(x, step, copies, OCT_EXPERT_LOADS_MAX);
    oct_experts_loaded(x, copies, n, FALSE);
    if (t->drift_every > 0 && step % t->drift_every == 0)
      drift(&r);
    if (step == steps / 2)
      oct_experts_get_stats(x, &half);
  }
  check(x);
  oct_experts_get_stats(x, &end);
  *loads = (double)(end.loads - half.loads) / (steps - steps / 2);
  g_assert_cmpuint(end.loaded_bytes, ==, end.loads * oct_model_expert(spec, 0).bytes);
  g_assert_cmpuint(end.used_pairs, ==, (guint64)steps * LAYERS * 8 * TOP_K);
  return (double)(end.hit_pairs - half.hit_pairs) / (double)(end.used_pairs - half.used_pairs);
}

static double
report(const char *what, trial t, guint32 steps) {
  double loads, rate = hit_rate(&t, steps, &loads);
  g_test_message("%-44s %5.1f %% of pairs hit, %.2f loads a step", what, 100 * rate, loads);
  return rate;
}

static void
test_steady(void) {
  trial pins = {.policy = OCT_EXPERT_PINNED, .warmup = OCT_EXPERT_WARM_HISTOGRAM, .exponent = 1};
  trial lru = {.warmup = OCT_EXPERT_WARM_HISTOGRAM, .exponent = 1};
  trial cold = {.warmup = OCT_EXPERT_WARM_UNIFORM, .exponent = 1};
  trial blind = {.policy = OCT_EXPERT_PINNED, .warmup = OCT_EXPERT_WARM_UNIFORM, .exponent = 1};
  double best = report("fixed routing, pinned by histogram", pins, 4000);
  double known = report("fixed routing, LRU warmed by histogram", lru, 4000);
  double learned = report("fixed routing, LRU that knew nothing", cold, 4000);
  double none = report("fixed routing, pins that knew nothing", blind, 4000);
  /* 32 of 128 experts take 0.75 of a power law's draws; top-k without repeats flattens it. */
  g_assert_cmpfloat(best, >, 0.55);
  g_assert_cmpfloat(known, >, best - 0.02);
  g_assert_cmpfloat(learned, >, best - 0.03);
  g_assert_cmpfloat(none, <, 0.35);
}

static void
test_drift(void) {
  trial pins = {.policy = OCT_EXPERT_PINNED,
                .warmup = OCT_EXPERT_WARM_HISTOGRAM,
                .exponent = 1,
                .drift_every = 20};
  trial lru = pins;
  lru.policy = OCT_EXPERT_LRU;
  double pinned = report("drifting routing, pinned by histogram", pins, 6000);
  double followed = report("drifting routing, LRU", lru, 6000);
  g_assert_cmpfloat(followed, >, pinned + 0.15);
  /* Too short a memory follows noise, too long a one follows late: the default is between. */
  lru.half_life = 4;
  report("drifting routing, LRU of half-life 4", lru, 6000);
  lru.half_life = 4096;
  report("drifting routing, LRU of half-life 4096", lru, 6000);
}

/* Nothing pays when every expert is as likely as any other. */
static void
test_uniform(void) {
  trial t = {.warmup = OCT_EXPERT_WARM_UNIFORM, .exponent = 0};
  double loads, rate = hit_rate(&t, 4000, &loads);
  g_test_message("uniform routing: %.1f %% hit, %.2f loads a step", 100 * rate, loads);
  g_assert_cmpfloat_with_epsilon(rate, 0.25, 0.03);
  g_assert_cmpfloat(loads, <, 3);
}

/* ---------------------------------------------------------------- what the device sees */

#define DEPTH   3
#define HOLD    256 /* copies on their way at most */
#define D_SLOTS 3

/* Layer 0 to LAYERS - 1 of a layout with R ranks: what is in each slot, and the map as each
 * unfinished step has it. Failed steps change nothing. */
typedef struct device {
  guint32 n_ranks;
  guint32 content[LAYERS][EXPERTS * D_SLOTS]; /* [rank x slots + slot] expert, OCT_NO_INDEX */
  guint32 map[LAYERS][EXPERTS];               /* after the last submitted step: expert -> slot */
  struct {
    guint64 number;
    gboolean fails;
    guint32 map[LAYERS][EXPERTS];
  } steps[DEPTH]; /* oldest first */
  guint32 n_steps;
  oct_copy copies[HOLD];
  guint32 n_copies;
  guint64 submitted, completed, n_maps, n_failed;
} device;

static guint32 *
content_of(device *d, guint32 layer, guint32 expert, guint32 slot) {
  return &d->content[layer][expert / (EXPERTS / d->n_ranks) * D_SLOTS + slot];
}

static void
device_submit(device *d, const oct_step *step, gboolean fails) {
  const oct_expert_change *changes = oct_step_experts(step);
  guint32 before[LAYERS][EXPERTS];
  memcpy(before, d->map, sizeof before);
  for (guint32 i = 0; i < step->n_experts; i++) {
    const oct_expert_change *c = &changes[i];
    if (c->layer >= LAYERS)
      continue;
    d->map[c->layer][c->expert] = c->slot;
    if (c->slot != OCT_NO_INDEX && !fails) {
      /* It is there, and nothing is being written over it. */
      g_assert_cmpuint(*content_of(d, c->layer, c->expert, c->slot), ==, c->expert);
      d->n_maps++;
    }
  }
  if (fails)
    memcpy(d->map, before, sizeof before);
  d->steps[d->n_steps].number = step->number;
  d->steps[d->n_steps].fails = fails;
  memcpy(d->steps[d->n_steps].map, d->map, sizeof d->map);
  d->n_steps++;
}

static void
device_copy(device *d, const oct_copy *c) {
  g_assert_cmpuint(c->to, <, D_SLOTS);
  if (c->group >= LAYERS)
    return;
  guint32 rank = c->from / (EXPERTS / d->n_ranks);
  /* Nobody reads the slot: not the steps in flight, not those to come. */
  for (guint32 i = 0; i <= d->n_steps; i++)
    for (guint32 e = rank * (EXPERTS / d->n_ranks); e < (rank + 1) * (EXPERTS / d->n_ranks); e++) {
      guint32 at = i < d->n_steps ? d->steps[i].map[c->group][e] : d->map[c->group][e];
      g_assert_cmpuint(at, !=, c->to);
    }
  *content_of(d, c->group, c->from, c->to) = OCT_NO_INDEX;
}

typedef struct harness {
  device device;
  oct_experts *experts;
  oct_step_builder *builder;
  routing routing;
  oct_rng rng;
} harness;

static void
submit(harness *h) {
  device *d = &h->device;
  guint64 number = ++d->submitted;
  oct_step_begin(h->builder, number, 1);
  oct_experts_plan(h->experts, number, h->builder);
  /* After a failed step, those behind it fail too. */
  gboolean fails = oct_rng_below(&h->rng, 12) == 0;
  for (guint32 i = 0; i < d->n_steps; i++)
    fails |= d->steps[i].fails;
  device_submit(d, oct_step_end(h->builder), fails);
}

static void
finish_step(harness *h) {
  device *d = &h->device;
  oct_expert_use uses[LAYERS * EXPERTS];
  guint64 number = d->steps[0].number;
  d->completed = number;
  if (d->steps[0].fails) {
    d->n_failed++;
    oct_experts_step_failed(h->experts, number);
  } else {
    guint32 n = route(&h->routing, h->experts, 2, uses);
    for (guint32 i = 0; i < n; i++) /* what that step really missed */
      uses[i].missed = d->steps[0].map[uses[i].layer][uses[i].expert] == OCT_NO_INDEX;
    g_assert_true(oct_experts_used(h->experts, uses, n));
  }
  memmove(&d->steps[0], &d->steps[1], --d->n_steps * sizeof d->steps[0]);
}

static void
begin_copies(harness *h) {
  device *d = &h->device;
  guint32 max = 1 + (guint32)oct_rng_below(&h->rng, 8);
  max = MIN(max, HOLD - d->n_copies);
  guint32 n = oct_experts_loads(h->experts, d->completed, d->copies + d->n_copies, max);
  for (guint32 i = 0; i < n; i++)
    device_copy(d, &d->copies[d->n_copies + i]);
  d->n_copies += n;
}

static void
end_copy(harness *h) {
  device *d = &h->device;
  if (d->n_copies == 0)
    return;
  guint32 i = (guint32)oct_rng_below(&h->rng, d->n_copies);
  oct_copy c = d->copies[i];
  d->copies[i] = d->copies[--d->n_copies];
  gboolean failed = oct_rng_below(&h->rng, 10) == 0;
  if (!failed && c.group < LAYERS)
    *content_of(d, c.group, c.from, c.to) = c.from;
  oct_experts_loaded(h->experts, &c, 1, failed);
}

/* With nothing in flight, the device's map is what the engine believes. */
static void
compare_maps(const harness *h) {
  for (guint32 l = 0; l < LAYERS; l++)
    for (guint32 e = 0; e < EXPERTS; e++)
      g_assert_cmpuint(h->device.map[l][e], ==, oct_experts_slot(h->experts, l, e));
}

static void
run_device(guint64 seed, guint32 tensor, guint32 n_ops) {
  g_autoptr(oct_model_spec) spec = load("qwen3-30b-a3b");
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = tensor;
  p.expert_parallel = tensor > 1;
  oct_expert_options options = {.warmup = OCT_EXPERT_WARM_POWER_LAW, .half_life_steps = 8};
  harness *h = g_new0(harness, 1);
  h->experts = experts_new(spec, &p, D_SLOTS, &options);
  h->builder = oct_step_builder_new();
  h->device.n_ranks = tensor;
  memset(h->device.content, 0xff, sizeof h->device.content);
  memset(h->device.map, 0xff, sizeof h->device.map);
  routing_init(&h->routing, seed, 1);
  oct_rng_seed(&h->rng, seed, 2);
  g_test_message("seed %" G_GUINT64_FORMAT ", %u ranks", seed, tensor);
  for (guint32 op = 0; op < n_ops; op++) {
    switch (oct_rng_below(&h->rng, 5)) {
    case 0:
      if (h->device.n_steps < DEPTH)
        submit(h);
      break;
    case 1:
      if (h->device.n_steps > 0)
        finish_step(h);
      break;
    case 2:
      begin_copies(h);
      break;
    case 3:
      end_copy(h);
      break;
    default:
      drift(&h->routing);
    }
    if (h->device.n_steps == 0)
      compare_maps(h);
    if (op % 101 == 0)
      check(h->experts);
  }
  g_assert_cmpuint(h->device.n_maps, >, n_ops / 50);
  g_assert_cmpuint(h->device.n_failed, >, n_ops / 200);
  oct_expert_stats stats;
  oct_experts_get_stats(h->experts, &stats);
  g_assert_cmpuint(stats.evictions, >, n_ops / 50);
  /* A reopened instance has nothing, and asks for what was hot. */
  oct_experts_reset(h->experts);
  g_assert_false(oct_experts_warm(h->experts));
  for (guint32 e = 0; e < EXPERTS; e++)
    g_assert_cmpuint(oct_experts_slot(h->experts, 0, e), ==, OCT_NO_INDEX);
  check(h->experts);
  oct_step_builder_free(h->builder);
  oct_experts_free(h->experts);
  g_free(h);
}

static void
test_device(void) {
  for (guint64 seed = 1; seed <= 6; seed++)
    run_device(seed, seed % 2 == 0 ? 8 : 1, 8000);
}

/* One slot of one layer of Mixtral, by hand. */
typedef struct single {
  oct_model_spec *spec;
  oct_experts *experts;
  oct_step_builder *builder;
} single;

static single
single_new(void) {
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  oct_expert_options options = {.half_life_steps = 1000};
  single s = {.spec = load("mixtral-8x7b"), .builder = oct_step_builder_new()};
  s.experts = experts_new(s.spec, &p, 1, &options);
  oct_copy copies[64];
  guint32 n = oct_experts_loads(s.experts, 0, copies, 64);
  g_assert_cmpuint(n, ==, 32);
  oct_experts_loaded(s.experts, copies, n, FALSE);
  return s;
}

static void
single_free(single *s) {
  oct_experts_free(s->experts);
  oct_step_builder_free(s->builder);
  oct_model_spec_free(s->spec);
}

/* What the record of step `number` says of `expert` in layer 2: its slot, OCT_NO_INDEX = gone, -1 =
 * nothing. */
static gint64
plan(single *s, guint64 number, guint32 expert) {
  oct_step_begin(s->builder, number, 1);
  oct_experts_plan(s->experts, number, s->builder);
  const oct_step *step = oct_step_end(s->builder);
  gint64 slot = -1;
  for (guint32 i = 0; i < step->n_experts; i++)
    if (oct_step_experts(step)[i].layer == 2 && oct_step_experts(step)[i].expert == expert)
      slot = oct_step_experts(step)[i].slot;
  check(s->experts);
  return slot;
}

static void
use(single *s, guint32 expert, guint32 times) {
  for (guint32 i = 0; i < times; i++) {
    oct_expert_use u = {.layer = 2, .expert = expert, .tokens = 1};
    u.missed = oct_experts_slot(s->experts, 2, expert) == OCT_NO_INDEX;
    g_assert_true(oct_experts_used(s->experts, &u, 1));
  }
}

/* Steps 1, which maps expert 0, and 2, which takes it off again, both fail: it is mapped by step 3.
 */
static void
test_failed(void) {
  single s = single_new();
  oct_copy copy;
  g_assert_cmpint(plan(&s, 1, 0), ==, 0);
  use(&s, 5, 3); /* what earlier steps did */
  g_assert_cmpint(plan(&s, 2, 0), ==, OCT_NO_INDEX);
  g_assert_cmpuint(oct_experts_loads(s.experts, 1, &copy, 1), ==, 0);
  oct_experts_step_failed(s.experts, 1);
  oct_experts_step_failed(s.experts, 2);
  check(s.experts);
  g_assert_cmpuint(oct_experts_loads(s.experts, 2, &copy, 1), ==, 0);
  g_assert_cmpint(plan(&s, 3, 0), ==, 0);
  /* Asked for again, expert 5 comes when the step that took 0 off has ended. */
  use(&s, 5, 1);
  g_assert_cmpint(plan(&s, 4, 0), ==, OCT_NO_INDEX);
  g_assert_cmpuint(oct_experts_loads(s.experts, 3, &copy, 1), ==, 0);
  g_assert_cmpuint(oct_experts_loads(s.experts, 4, &copy, 1), ==, 1);
  g_assert_cmpuint(copy.from, ==, 5);
  oct_experts_loaded(s.experts, &copy, 1, FALSE);
  g_assert_cmpint(plan(&s, 5, 5), ==, 0);
  g_assert_cmpuint(oct_experts_slot(s.experts, 2, 5), ==, 0);
  single_free(&s);
}

/* An expert that is used twice does not replace one that was used ten times; one that is, does. */
static void
test_pays(void) {
  single s = single_new();
  (void)plan(&s, 1, 0);
  use(&s, 0, 10);
  use(&s, 5, 11);
  g_assert_cmpint(plan(&s, 2, 0), ==, -1);
  use(&s, 5, 1);
  g_assert_cmpint(plan(&s, 3, 0), ==, OCT_NO_INDEX);
  single_free(&s);
}

/* ---------------------------------------------------------------- warm-up, options */

static void
test_warmup(void) {
  g_autoptr(oct_model_spec) spec = load("kimi-k3");
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = 8;
  p.expert_parallel = TRUE;
  g_autofree double *histogram = g_new0(double, 93 * 896);
  for (guint32 i = 0; i < 93 * 896; i++)
    histogram[i] = i % 7 == 3 ? 5 : 1;
  oct_expert_options options = {.warmup = OCT_EXPERT_WARM_HISTOGRAM, .histogram = histogram};
  g_autoptr(oct_experts) x = experts_new(spec, &p, 16, &options);
  g_autofree oct_copy *copies = g_new(oct_copy, 92 * 8 * 16 + 1);
  guint32 n = oct_experts_loads(x, 0, copies, 92 * 8 * 16 + 1);
  /* 16 of the 112 of each rank, in each of the 92 layers with experts: the seventh that are hot. */
  g_assert_cmpuint(n, ==, 92 * 8 * 16);
  guint32 per_rank[8] = {0};
  for (guint32 i = 0; i < n; i++) {
    g_assert_cmpfloat(histogram[copies[i].group * 896 + copies[i].from], ==, 5);
    g_assert_cmpuint(copies[i].group, >=, 1); /* layer 0 is dense */
    g_assert_cmpint(copies[i].kind, ==, OCT_COPY_EXPERT);
    g_assert_cmpint(copies[i].order, ==, OCT_COPY_BESIDE);
    per_rank[copies[i].from / 112]++;
  }
  for (guint32 r = 0; r < 8; r++)
    g_assert_cmpuint(per_rank[r], ==, 92 * 16);
  g_assert_false(oct_experts_warm(x));
  oct_experts_loaded(x, copies, n, FALSE);
  g_assert_true(oct_experts_warm(x));
  check(x);
}

static void
test_options(void) {
  g_autoptr(oct_model_spec) dense = load("llama-3.1-8b");
  g_autoptr(oct_model_spec) spec = load("mixtral-8x7b");
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  oct_expert_options options = {0};
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_experts_new(dense, &p, 1, &options, &error));
  g_assert_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG);
  g_clear_error(&error);
  g_assert_null(oct_experts_new(spec, &p, 0, &options, &error));
  g_clear_error(&error);
  g_autofree double *histogram = g_new0(double, spec->n_layers * 8);
  const double bad[] = {-1, NAN, INFINITY};
  options.warmup = OCT_EXPERT_WARM_HISTOGRAM;
  options.histogram = histogram;
  for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
    histogram[5 * 8 + 3] = bad[i];
    g_assert_null(oct_experts_new(spec, &p, 2, &options, &error));
    g_assert_nonnull(strstr(error->message, "layer 5 expert 3"));
    g_clear_error(&error);
  }
  options = (oct_expert_options){.warmup = OCT_EXPERT_WARM_POWER_LAW, .exponent = NAN};
  g_assert_null(oct_experts_new(spec, &p, 2, &options, &error));
  g_clear_error(&error);
  oct_experts_free(NULL);
}

/* Heats are scaled down once in a long while: choices go on as before. */
static void
test_long(void) {
  g_autoptr(oct_model_spec) spec = load("mixtral-8x7b");
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  oct_expert_options options = {.half_life_steps = 1, .warmup = OCT_EXPERT_WARM_UNIFORM};
  g_autoptr(oct_experts) x = experts_new(spec, &p, 2, &options);
  g_autoptr(oct_step_builder) builder = oct_step_builder_new();
  oct_copy copies[OCT_EXPERT_LOADS_MAX];
  for (guint64 step = 1; step <= 2000; step++) {
    guint32 n = oct_experts_loads(x, step - 1, copies, OCT_EXPERT_LOADS_MAX);
    oct_experts_loaded(x, copies, n, FALSE);
    oct_step_begin(builder, step, 1);
    oct_experts_plan(x, step, builder);
    /* Ten steps one expert, ten steps another: with a half-life of one step the last is in. */
    guint32 e = (guint32)(step / 10 % 8);
    oct_expert_use use = {.layer = 4, .expert = e, .tokens = 1};
    use.missed = oct_experts_slot(x, 4, e) == OCT_NO_INDEX;
    if (step % 10 == 9)
      g_assert_false(use.missed);
    g_assert_true(oct_experts_used(x, &use, 1));
  }
  check(x);
}

/* ---------------------------------------------------------------- break-even batch */

static void
test_break_even(void) {
  /* Kimi K3, EP 8 on H200 (4.8 TB/s, 55 GB/s per GPU), a third of 112 experts per layer resident.
   */
  oct_expert_balance b = {.n_layers = 92,
                          .n_experts = 112,
                          .n_resident = 37,
                          .top_k = 2,
                          .hit_share = 37.0 / 112,
                          .expert_bytes = 17547264,
                          .other_bytes = 14e9,
                          .memory_bytes_per_s = 4.8e12,
                          .link_bytes_per_s = 55e9};
  /* 1.33 of the 2 experts per token and layer miss: 92 x 1.33 x 17.5 MB at 55 GB/s is 39 ms,
   * against 3 ms of memory. */
  g_assert_cmpuint(oct_experts_break_even(&b), ==, 0);
  b.hit_share = 0.98;
  guint32 batch = oct_experts_break_even(&b);
  g_test_message("K3 on H200, 37 of 112 experts, 98 %% of pairs hit: break-even at %u tokens",
                 batch);
  /* By hand, one by one. */
  guint32 by_hand = 0;
  for (guint32 n = 1; n < 1000; n++) {
    double missed = 75 * (1 - pow(1 - 2 * 0.02 / 75, n));
    double touched = 37 * (1 - pow(1 - 2 * 0.98 / 37, n));
    double link = 92 * missed * 17547264 / 55e9, memory = (14e9 + 92 * touched * 17547264) / 4.8e12;
    if (link > memory)
      break;
    by_hand = n;
  }
  g_assert_cmpuint(batch, ==, by_hand);
  g_assert_cmpuint(batch, >, 1);
  /* A faster link moves it up; with everything on the device it never binds. */
  b.link_bytes_per_s *= 4;
  g_assert_cmpuint(oct_experts_break_even(&b), >, batch);
  b.n_resident = 112;
  b.hit_share = 1;
  g_assert_cmpuint(oct_experts_break_even(&b), ==, OCT_EXPERT_BATCH_MAX);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/experts/lru-comes-near-to-the-best-pins", test_steady);
  g_test_add_func("/sched/experts/lru-follows-a-drift-that-pins-do-not", test_drift);
  g_test_add_func("/sched/experts/uniform-routing-causes-few-loads", test_uniform);
  g_test_add_func("/sched/experts/writes-no-slot-that-a-step-can-read", test_device);
  g_test_add_func("/sched/experts/says-again-what-a-failed-step-said", test_failed);
  g_test_add_func("/sched/experts/loads-only-what-pays", test_pays);
  g_test_add_func("/sched/experts/warms-the-most-popular-of-each-rank", test_warmup);
  g_test_add_func("/sched/experts/refuses-options-by-name-and-value", test_options);
  g_test_add_func("/sched/experts/goes-on-when-heats-are-scaled", test_long);
  g_test_add_func("/sched/experts/break-even-is-where-link-meets-memory", test_break_even);
  return g_test_run();
}
