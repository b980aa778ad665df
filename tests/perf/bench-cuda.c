/* Whole decode steps of the cuda backend: time per step at several batch sizes and one context,
 * with the next step submitted before the last is read, against the floor of reading weights (of
 * experts those that the step used) and cache once; how long the device is idle between two steps,
 * by its own clock; and prompts of 8192 tokens. All against what this card does: reading and
 * products are timed first, before the model takes memory.
 *
 *   bench-cuda [--backend TEXT] [--tensor N] [--context N] [--slots N] [--batch N]
 *              [--bandwidth TB/S] [--rate TFLOP/S] [--eager] [--pipeline N] [--host-pages N]
 *              [--decode-context N] [--chunk N] [--layers] [MODEL]
 *
 * MODEL is what oct_model_spec_load() takes (default llama-3.1-8b; llama-3.1-70b+fp8); weights are
 * made up. The floor of a step is the sum over weight matrices and attention of max(bytes /
 * bandwidth, flops / rate), of the contexts that the timed steps read. Both limits are measured on
 * the first GPU (kernels/bench/bench.h), or given; the first line says which. With --host-pages so
 * many pages go to the host tier and back: alone, and while decodes run. CSV on stdout. With
 * --layers the halves of layers are timed too, by kind, on the device itself: between stamps that
 * take some 2 us each; what a step has over its floor in them, and in what is no layer (embedding,
 * head, sampling); of steps of prompts as well, from 64 tokens to a whole chunk. Operators one by
 * one: kernels/bench/bench-cuda --family step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/cuda.h"
#include "backends/registry.h"
#include "engine/base/assert.h"
#include "engine/base/rng.h"
#include "kernels/bench/bench.h"

#define BLOCK   16
#define SLOTS   256
#define CHUNK   8192
#define STEPS   64
#define WARM_UP 8
/* Steps of prompts by layer, and the time before each. */
#define PROMPT_STEPS 5
#define REST_US      50000

static char *backend = "cuda";
static gint tensor = 1, pipeline = 1, decode_context = 1, context = 1024, n_slots = SLOTS, only,
            host_pages, chunk = CHUNK;
static double bandwidth, rate; /* TB/s, TFLOP/s; 0 = to be measured */
static gboolean eager, by_layers;

typedef struct trial {
  oct_world *world;
  oct_instance_config config;
  guint32 instance, slot_pages, page_tokens;
  guint64 number;
  oct_step_builder *builder;
  guint32 position[SLOTS];
  guint16 devices[8];
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  oct_cuda_stamps stamps;
} trial;

/* ---------------------------------------------------------------- limits */

/* FALSE: they cannot be measured, which was said. Another process may have the world's devices, so
 * all that is taken here is given back. */
static gboolean
measure_limits(void) {
  bench b = {.quiet = true};
  gboolean reads = bandwidth <= 0, products = rate <= 0;
  gint64 began = g_get_monotonic_time();
  int n = 0;
  if (reads || products) {
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
      fprintf(stderr, "bench-cuda: no GPU whose limits could be measured: give both\n");
      return FALSE;
    }
    bench_open(&b);
    if (b.blas != NULL)
      bench_limits(&b);
    bench_close(&b);
    bandwidth = reads ? b.read_rate * 1e-12 : bandwidth;
    rate = products ? b.bf16_rate * 1e-12 : rate;
  }
  if (bandwidth <= 0 || rate <= 0) {
    fprintf(stderr, "bench-cuda: no cuBLASLt for products: give the limits\n");
    return FALSE;
  }
  printf("limits,read %.3f TB/s %s,bf16 products %.1f TFLOP/s %s,%.2f s\n", bandwidth,
         reads ? "measured (4 GiB of random bytes; first GPU)" : "given", rate,
         products ? "measured (random; side 8192; first GPU)" : "given",
         (double)(g_get_monotonic_time() - began) * 1e-6);
  return TRUE;
}

/* ---------------------------------------------------------------- steps */

static void
wait_for(trial *t, oct_event_kind kind, oct_event *event) {
  do {
    gboolean there = oct_world_next(t->world, OCT_TIME_NEVER, event);
    oct_assert(there);
    if (event->kind == OCT_EVENT_OPEN_FAILED || event->kind == OCT_EVENT_FAULT) {
      fprintf(stderr, "bench-cuda: %s\n", event->fault->message);
      exit(1);
    }
  } while (event->kind != kind);
}

static void
submit(trial *t) {
  g_autoptr(GError) error = NULL;
  if (oct_world_submit(t->world, t->instance, oct_step_end(t->builder), &error) != OCT_SUBMIT_OK) {
    fprintf(stderr, "bench-cuda: %s\n", error != NULL ? error->message : "full");
    exit(1);
  }
}

/* ---------------------------------------------------------------- prompts */

static void
add_prompt(trial *t, guint32 slot, guint32 first, guint32 n, guint32 end) {
  if (first == 0) {
    oct_slot_open *o = oct_step_add_open(t->builder);
    o->slot = slot;
    o->prompt_tokens = end;
    o->temperature = 0;
    for (guint g = 0; g < t->config.memory.n_groups; g++) {
      guint32 n_pages = t->groups[g].state_bytes > 0 ? 1 : t->slot_pages;
      for (guint32 i = 0; i < n_pages; i++)
        *oct_step_add_change(t->builder) = (oct_page_change){
            .slot = slot, .group = (guint16)g, .index = i, .page = slot * n_pages + i};
    }
  }
  guint32 *ids;
  guint32 at = oct_step_add_tokens(t->builder, NULL, n, &ids);
  for (guint32 i = 0; i < n; i++)
    ids[i] = (guint32)(oct_mix64((guint64)slot << 32 | (first + i)) % t->config.spec->vocab);
  oct_slice *s = oct_step_add_slice(t->builder);
  s->slot = slot;
  s->source = OCT_SOURCE_IDS;
  s->sample = first + n == end ? OCT_SAMPLE_LAST : OCT_SAMPLE_NONE;
  s->flags = OCT_SLICE_PREFILL;
  s->n_tokens = n;
  s->tokens = at;
  s->position = first;
  if (oct_model_has_state(t->config.spec))
    s->state_position = first;
}

/* Every slot's prompt of `context` tokens; time of the steps, of `chunk` tokens each. */
static void
fill(trial *t) {
  guint32 each = MAX(1, (guint32)(chunk / context)), n = (guint32)MIN(context, chunk);
  oct_time began = 0, last = 0;
  guint64 tokens = 0;
  for (guint32 slot = 0; slot < (guint32)n_slots; slot += each)
    for (guint32 first = 0; first < (guint32)context; first += n) {
      oct_event event;
      oct_step_begin(t->builder, ++t->number, 1);
      for (guint32 i = slot; i < MIN(slot + each, (guint32)n_slots); i++)
        add_prompt(t, i, first, MIN(n, (guint32)context - first), (guint32)context);
      submit(t);
      wait_for(t, OCT_EVENT_STEP_DONE, &event);
      if (began == 0)
        began = event.time_ns; /* the first one warms up */
      else
        tokens += (guint64)MIN(each, (guint32)n_slots - slot) * n;
      last = event.time_ns;
    }
  for (guint32 i = 0; i < (guint32)n_slots; i++)
    t->position[i] = (guint32)context;
  double seconds = (double)(last - began) * 1e-9;
  if (tokens == 0)
    return;
  /* The head has a row per prompt, not per token. */
  oct_weights w;
  oct_model_weights(t->config.spec, &w);
  guint64 head = w.head.parameters > 0 ? w.head.parameters : w.embedding.parameters;
  double each_flops = 2.0 * (double)(oct_model_active_parameters(t->config.spec) - head);
  double flops = each_flops * (double)tokens;
  printf(
      "prefill,%u tokens a step in prompts of %d,%.0f tokens/s,%.1f TFLOP/s in weights,%.1f %% of "
      "the ranks' rate\n",
      (guint)chunk, context, (double)tokens / seconds, flops / seconds * 1e-12,
      flops / seconds * 1e-10 / (rate * tensor * pipeline));
}

/* ---------------------------------------------------------------- decodes */

/* The first group that has pages; those with states take none as a sequence grows. */
static guint16
paged_group(const trial *t) {
  guint16 g = 0;
  while (g + 1u < t->config.memory.n_groups && t->groups[g].state_bytes > 0)
    g++;
  return g;
}

static void
submit_decodes(trial *t, guint32 batch) {
  guint16 group = paged_group(t);
  oct_step_begin(t->builder, ++t->number, 1);
  for (guint32 i = 0; i < batch; i++) {
    guint32 page = t->position[i] / t->page_tokens;
    /* As a sequence takes a page when it needs one, and sequences begin apart from each other. */
    if ((t->position[i] + i) % t->page_tokens == 0 && t->groups[group].state_bytes == 0)
      *oct_step_add_change(t->builder) = (oct_page_change){
          .slot = i, .group = group, .index = page, .page = i * t->slot_pages + page};
    oct_slice *s = oct_step_add_slice(t->builder);
    s->slot = i;
    s->source = OCT_SOURCE_DEVICE;
    s->sample = OCT_SAMPLE_LAST;
    s->n_tokens = 1;
    s->position = t->position[i];
    if (oct_model_has_state(t->config.spec))
      s->state_position = t->position[i];
    t->position[i]++;
  }
  submit(t);
}

/* Experts: those that a step used, each of them read once, and the flops of all its pairs. */
static double
experts_floor_us(const trial *t, const oct_step_result *result) {
  double bytes = 0, flops = 0;
  const oct_expert_use *uses = oct_result_experts(result);
  for (guint32 i = 0; i < result->n_experts; i++) {
    oct_weight_sum one = oct_model_expert(t->config.spec, uses[i].layer);
    bytes += uses[i].tokens > 0 ? (double)one.bytes / tensor : 0;
    flops += 2 * (double)one.parameters / tensor * uses[i].tokens;
  }
  return MAX(bytes / (bandwidth * 1e6), flops / (rate * 1e6));
}

/* Reading weights once, or the flops of a batch with them, in us; every rank has its share. */
static double
weights_us(oct_weight_sum sum, guint32 batch) {
  return MAX((double)sum.bytes / (bandwidth * 1e6),
             2.0 * (double)sum.parameters * batch / (rate * 1e6)) /
         tensor;
}

/* Tokens that the timed steps of a batch read of a sequence, in the mean: the first of them has
 * WARM_UP before it. */
static double
mean_context(const trial *t, guint32 batch) {
  guint64 sum = 0;
  for (guint32 i = 0; i < batch; i++)
    sum += t->position[i];
  return (double)sum / batch + WARM_UP + (STEPS + 1) / 2.0;
}

/* Reading a batch's cache of a layer of group g once, of so many tokens each, or reading and
 * writing its state. Latents are whole on every rank, or shared out among those of a context group.
 */
static double
cache_us(const trial *t, guint g, guint32 batch, double tokens) {
  double seen = t->groups[g].window > 0 ? MIN(tokens, t->groups[g].window) : tokens;
  double bytes = (double)t->groups[g].token_bytes * seen + 2.0 * (double)t->groups[g].state_bytes;
  oct_attention_kind kind = t->config.spec->attention[t->groups[g].attention].kind;
  gint parts = kind == OCT_ATTENTION_MLA ? decode_context : tensor;
  return bytes / t->groups[g].n_layers / parts * batch / (bandwidth * 1e6);
}

/* Σ over products and attention of the larger of bytes / bandwidth and flops / rate, in us. */
static double
floor_us(const trial *t, guint32 batch, double tokens) {
  oct_weights w;
  oct_model_weights(t->config.spec, &w);
  const oct_weight_sum sums[] = {w.attention,      w.dense_ffn,
                                 w.shared_experts, w.router,
                                 w.latent,         w.head.parameters > 0 ? w.head : w.embedding};
  double us = 0;
  for (gsize i = 0; i < G_N_ELEMENTS(sums); i++)
    us += weights_us(sums[i], batch);
  for (guint g = 0; g < t->config.memory.n_groups; g++)
    us += cache_us(t, g, batch, tokens) * t->groups[g].n_layers;
  return us;
}

/* Experts that a step used, in the mean of its layers that have some. */
static double
used_experts(const trial *t, const oct_step_result *result) {
  const oct_expert_use *uses = oct_result_experts(result);
  guint32 layers = 0, used = 0;
  for (guint32 l = 0; l < t->config.spec->n_layers; l++)
    layers += t->config.spec->ffn[t->config.spec->layers[l].ffn].kind != OCT_FFN_DENSE;
  for (guint32 i = 0; i < result->n_experts; i++)
    used += uses[i].tokens > 0;
  return (double)used / MAX(layers, 1);
}

static int
compare_times(const void *a, const void *b) {
  oct_time x = *(const oct_time *)a, y = *(const oct_time *)b;
  return x < y ? -1 : x > y;
}

static void
decode(trial *t, guint32 batch) {
  oct_event event;
  oct_time times[STEPS], idle[STEPS], last = 0;
  double experts_us = 0, experts = 0, tokens = mean_context(t, batch);
  guint64 first = t->number + 1;
  for (guint32 i = 0; i < t->config.depth - 1; i++)
    submit_decodes(t, batch);
  for (guint32 i = 0; i < WARM_UP + STEPS; i++) {
    submit_decodes(t, batch);
    wait_for(t, OCT_EVENT_STEP_DONE, &event);
    oct_assert(event.number == first + i);
    if (i >= WARM_UP) {
      times[i - WARM_UP] = event.result->end_ns - last;
      idle[i - WARM_UP] = event.result->start_ns - last;
      experts_us += experts_floor_us(t, event.result) / STEPS;
      experts += used_experts(t, event.result) / STEPS;
    }
    last = event.result->end_ns;
  }
  for (guint32 i = 0; i < t->config.depth - 1; i++)
    wait_for(t, OCT_EVENT_STEP_DONE, &event);
  qsort(times, STEPS, sizeof *times, compare_times);
  qsort(idle, STEPS, sizeof *idle, compare_times);
  double us = (double)times[STEPS / 2] * 1e-3, least = floor_us(t, batch, tokens) + experts_us;
  printf("decode,batch %u,context %.0f,%.1f us (%.1f to %.1f),floor %.1f us,ratio %.3f,"
         "%.0f tokens/s,idle %.1f us between steps (%.1f to %.1f)",
         batch, tokens, us, (double)times[0] * 1e-3, (double)times[STEPS * 9 / 10] * 1e-3, least,
         us / least, batch / us * 1e6, (double)idle[STEPS / 2] * 1e-3, (double)idle[0] * 1e-3,
         (double)idle[STEPS * 9 / 10] * 1e-3);
  if (experts > 0)
    printf(",%.1f experts a layer,floor of them %.1f us", experts, experts_us);
  printf("\n");
}

/* ---------------------------------------------------------------- layers */

/* Times of what is of one kind, n in all: halves of layers, or what is no layer, once a step. */
typedef struct part {
  guint n;
  double us, floor_us;
} part;

typedef struct parts {
  part attention[OCT_ATTENTION_COUNT], ffn[OCT_FFN_COUNT], rest;
  oct_time rest_ns[STEPS]; /* [rest.n] */
} parts;

/* Of a step: each of its sequences has `context` tokens to read. */
typedef struct shape {
  guint32 tokens, sequences;
  double context;
} shape;

static const char *const attention_names[] = {[OCT_ATTENTION_GQA] = "attention",
                                              [OCT_ATTENTION_WINDOW] = "windows",
                                              [OCT_ATTENTION_MLA] = "latent attention",
                                              [OCT_ATTENTION_KDA] = "delta attention"};
static const char *const ffn_names[] = {[OCT_FFN_DENSE] = "dense feed-forward",
                                        [OCT_FFN_MOE] = "experts",
                                        [OCT_FFN_LATENT_MOE] = "experts on a latent"};

/* The group of a layer's attention. */
static guint
group_of(const trial *t, guint32 layer) {
  guint g = 0;
  while (t->groups[g].attention != t->config.spec->layers[layer].attention)
    g++;
  return g;
}

/* Experts that a step used, of one layer. */
static double
used_us(const trial *t, const oct_step_result *result, guint32 layer) {
  const oct_expert_use *uses = oct_result_experts(result);
  oct_weight_sum one = oct_model_expert(t->config.spec, layer), sum = {0};
  for (guint32 i = 0; i < result->n_experts; i++)
    if (uses[i].layer == layer && uses[i].tokens > 0) {
      sum.bytes += one.bytes;
      sum.parameters += one.parameters * uses[i].tokens;
    }
  return weights_us(sum, 1);
}

static void
add_part(part *to, guint64 ns, double least_us) {
  to->n++;
  to->us += (double)ns * 1e-3;
  to->floor_us += least_us;
}

static void
add_parts(const trial *t, const oct_step_result *result, shape s, parts *to) {
  const oct_model_spec *spec = t->config.spec;
  const guint64 *at = t->stamps.at;
  guint32 n = t->stamps.n_layers;
  oct_weights w;
  for (guint32 l = 0; l < n; l++) {
    oct_model_layer_weights(spec, l, &w);
    add_part(
        &to->attention[spec->attention[spec->layers[l].attention].kind], at[2 * l + 1] - at[2 * l],
        weights_us(w.attention, s.tokens) + cache_us(t, group_of(t, l), s.sequences, s.context));
    add_part(&to->ffn[spec->ffn[spec->layers[l].ffn].kind], at[2 * l + 2] - at[2 * l + 1],
             weights_us(w.dense_ffn, s.tokens) + weights_us(w.shared_experts, s.tokens) +
                 weights_us(w.router, s.tokens) + weights_us(w.latent, s.tokens) +
                 used_us(t, result, l));
  }
  oct_model_weights(spec, &w);
  if (pipeline > 1) /* the stamps are of the first stage alone */
    return;
  /* A step begins and ends by the host's clock, which a busy host reads late. */
  to->rest_ns[to->rest.n] = result->end_ns - result->start_ns - (oct_time)(at[2 * n] - at[0]);
  add_part(&to->rest, 0, weights_us(w.head.parameters > 0 ? w.head : w.embedding, s.sequences));
}

static void
tell_part(const char *step, const char *name, const part *p, guint n_steps) {
  if (p->n > 0)
    printf("layer,%s,%s,%.1f us,floor %.1f us,ratio %.3f,%u a step,gap of all %.1f us\n", step,
           name, p->us / p->n, p->floor_us / p->n, p->us / p->floor_us, p->n / n_steps,
           (p->us - p->floor_us) / n_steps);
}

/* `step` says which steps: "batch 8,context 1024". */
static void
tell_parts(const char *step, parts *p, guint n_steps) {
  for (guint i = 0; i < OCT_ATTENTION_COUNT; i++)
    tell_part(step, attention_names[i], &p->attention[i], n_steps);
  for (guint i = 0; i < OCT_FFN_COUNT; i++)
    tell_part(step, ffn_names[i], &p->ffn[i], n_steps);
  qsort(p->rest_ns, p->rest.n, sizeof *p->rest_ns, compare_times);
  p->rest.us = (double)p->rest_ns[p->rest.n / 2] * 1e-3 * p->rest.n; /* of the median */
  tell_part(step, "embedding + head + sampling", &p->rest, n_steps);
}

/* Steps one at a time, so that their stamps stay. */
static void
time_layers(trial *t, guint32 batch) {
  parts all = {0};
  shape s = {batch, batch, mean_context(t, batch)};
  for (guint32 i = 0; i < WARM_UP + STEPS; i++) {
    oct_event event;
    submit_decodes(t, batch);
    wait_for(t, OCT_EVENT_STEP_DONE, &event);
    if (i >= WARM_UP)
      add_parts(t, event.result, s, &all);
  }
  g_autofree char *step = g_strdup_printf("batch %u,context %.0f", batch, s.context);
  tell_parts(step, &all, STEPS);
}

/* Steps of n prompts of `each` tokens; the first two, which make graphs, warm up. The device rests
 * before each: prompts behind one another are slower, as its clock goes down. */
static void
time_prompts(trial *t, guint32 n, guint32 each) {
  parts all = {0};
  oct_time times[PROMPT_STEPS];
  double experts = 0;
  for (guint32 i = 0; i < 2 + PROMPT_STEPS; i++) {
    oct_event event;
    oct_step_begin(t->builder, ++t->number, 1);
    for (guint32 slot = 0; slot < n; slot++)
      add_prompt(t, slot, 0, each, each);
    g_usleep(REST_US);
    submit(t);
    wait_for(t, OCT_EVENT_STEP_DONE, &event);
    if (i < 2)
      continue;
    times[i - 2] = event.result->end_ns - event.result->start_ns;
    experts = used_experts(t, event.result);
    add_parts(t, event.result, (shape){n * each, n, each}, &all);
  }
  qsort(times, PROMPT_STEPS, sizeof *times, compare_times);
  printf("prompts,%u of %u,%.1f us,experts %.1f\n", n, each, (double)times[PROMPT_STEPS / 2] * 1e-3,
         experts);
  g_autofree char *step = g_strdup_printf("prompts %u of %u", n, each);
  tell_parts(step, &all, PROMPT_STEPS);
}

/* ---------------------------------------------------------------- the host tier */

/* Pages [0, host_pages) of the first group to the host tier or back, in one call. */
static void
copy_pages(trial *t, guint64 ticket, gboolean to_host) {
  g_autoptr(GError) error = NULL;
  g_autofree oct_copy *copies = g_new0(oct_copy, host_pages);
  for (guint32 i = 0; i < (guint32)host_pages; i++)
    copies[i] = (oct_copy){.kind = OCT_COPY_PAGE,
                           .order = OCT_COPY_BESIDE,
                           .from_tier = to_host ? OCT_TIER_DEVICE : OCT_TIER_HOST,
                           .to_tier = to_host ? OCT_TIER_HOST : OCT_TIER_DEVICE,
                           .from = i,
                           .to = i};
  if (oct_world_copy(t->world, t->instance, ticket, copies, (guint32)host_pages, &error) !=
      OCT_SUBMIT_OK) {
    fprintf(stderr, "bench-cuda: %s\n", error != NULL ? error->message : "full");
    exit(1);
  }
}

static void
tell_rate(const char *what, const char *beside, double bytes, double ns, double step_us) {
  printf("pages,%s%s,%.2f GB/s", what, beside, bytes / ns);
  if (step_us > 0)
    printf(",steps of %.1f us", step_us);
  printf("\n");
}

/* Copies alone: one after another in each direction, then both at once. */
static void
copy_alone(trial *t, double bytes) {
  static const char *const names[] = {"to the host", "to the device"};
  oct_event event;
  oct_time last = 0;
  guint64 ticket = 0;
  for (guint way = 0; way < 2; way++)
    for (guint i = 0; i < 3; i++) {
      copy_pages(t, ++ticket, way == 0);
      wait_for(t, OCT_EVENT_COPY_DONE, &event);
      if (i == 2)
        tell_rate(names[way], "", bytes, (double)(event.time_ns - last), 0);
      last = event.time_ns;
    }
  copy_pages(t, ++ticket, TRUE);
  copy_pages(t, ++ticket, FALSE);
  wait_for(t, OCT_EVENT_COPY_DONE, &event);
  wait_for(t, OCT_EVENT_COPY_DONE, &event);
  tell_rate("both ways", "", 2 * bytes, (double)(event.time_ns - last), 0);
}

/* Decodes of `batch` with copies of one direction always under way: two calls. */
static void
copy_beside(trial *t, guint32 batch, gboolean to_host, double bytes) {
  oct_time began = 0, ended = 0, first_copy = 0, last_copy = 0;
  guint64 ticket = 100, n_steps = 0, n_copies = 0;
  oct_event event;
  for (guint32 i = 0; i < t->config.depth; i++)
    submit_decodes(t, batch);
  copy_pages(t, ++ticket, to_host);
  copy_pages(t, ++ticket, to_host);
  while (n_steps < STEPS + WARM_UP) {
    gboolean there = oct_world_next(t->world, OCT_TIME_NEVER, &event);
    oct_assert(there);
    if (event.kind == OCT_EVENT_COPY_DONE) {
      first_copy = first_copy == 0 ? event.time_ns : first_copy;
      n_copies += event.time_ns > first_copy;
      last_copy = event.time_ns;
      copy_pages(t, ++ticket, to_host);
    } else if (event.kind == OCT_EVENT_STEP_DONE) {
      began = n_steps == WARM_UP ? event.result->end_ns : began;
      ended = event.result->end_ns;
      n_steps++;
      submit_decodes(t, batch);
    } else {
      fprintf(stderr, "bench-cuda: %s\n",
              event.kind == OCT_EVENT_FAULT ? event.fault->message : "?");
      exit(1);
    }
  }
  for (guint32 i = 0; i < t->config.depth; i++)
    wait_for(t, OCT_EVENT_STEP_DONE, &event);
  tell_rate(to_host ? "to the host" : "to the device", " beside decodes", bytes * (double)n_copies,
            (double)MAX(last_copy - first_copy, 1), (double)(ended - began) * 1e-3 / (STEPS - 1));
}

static void
host_tier(trial *t, double page_bytes) {
  double bytes = page_bytes * host_pages;
  guint32 batch = MIN(64, (guint32)n_slots);
  copy_alone(t, bytes);
  decode(t, batch);
  copy_beside(t, batch, TRUE, bytes);
}

static int
run(oct_world *world, void *arg) {
  static const guint32 batches[] = {1, 8, 16, 64, 128, 256};
  trial *t = arg;
  g_autoptr(GError) error = NULL;
  oct_event event;
  t->world = world;
  t->builder = oct_step_builder_new();
  if (!oct_world_open(world, &t->config, &t->instance, &error)) {
    fprintf(stderr, "bench-cuda: %s\n", error->message);
    return 1;
  }
  wait_for(t, OCT_EVENT_OPENED, &event);
  printf("open,%.2f s,graphs up to %u\n", (double)event.time_ns * 1e-9,
         event.capabilities->graph_max_batch);
  double page_bytes = (double)event.capabilities->page_bytes[0];
  for (guint32 n = 64; by_layers && n <= (guint32)chunk; n *= 2) {
    guint32 each = MIN(n, (guint32)context);
    time_prompts(t, MIN(n / each, (guint32)n_slots), each);
  }
  fill(t);
  for (gsize i = 0; i < G_N_ELEMENTS(batches) && batches[i] <= (guint32)n_slots; i++)
    if (only == 0 || batches[i] == (guint32)only) {
      decode(t, batches[i]);
      if (by_layers)
        time_layers(t, batches[i]);
    }
  if (host_pages > 0)
    host_tier(t, page_bytes);
  oct_world_close(world, t->instance);
  oct_step_builder_free(t->builder);
  return 0;
}

static oct_world *
make_world(oct_cuda_stamps *stamps, GError **error) {
  oct_cuda_options o;
  if (!by_layers)
    return oct_backend_world_new(backend, error);
  oct_cuda_options_default(&o);
  o.stamps = stamps;
  return oct_cuda_world_new(&o, error);
}

static gboolean
in_range(void) {
  return tensor >= 1 && pipeline >= 1 && tensor * pipeline <= 8 && host_pages >= 0 &&
         decode_context >= 1 && tensor % decode_context == 0 && context >= 1 && context <= CHUNK &&
         n_slots >= 1 && n_slots <= SLOTS && chunk >= n_slots && chunk <= CHUNK &&
         (!by_layers || g_str_equal(backend, "cuda"));
}

int
main(int argc, char **argv) {
  g_autoptr(GError) error = NULL;
  const GOptionEntry entries[] = {
      {"backend", 0, 0, G_OPTION_ARG_STRING, &backend, "world (default cuda)", "TEXT"},
      {"tensor", 0, 0, G_OPTION_ARG_INT, &tensor, "ranks of the tensor group, 1 to 8", "N"},
      {"pipeline", 0, 0, G_OPTION_ARG_INT, &pipeline, "stages, 1 to 8", "N"},
      {"decode-context", 0, 0, G_OPTION_ARG_INT, &decode_context,
       "ranks of the group that share a sequence's tokens out (1)", "N"},
      {"host-pages", 0, 0, G_OPTION_ARG_INT, &host_pages, "pages of the host tier", "N"},
      {"context", 0, 0, G_OPTION_ARG_INT, &context, "tokens, up to 8192 (default 1024)", "N"},
      {"slots", 0, 0, G_OPTION_ARG_INT, &n_slots, "sequences, 1 to 256 (default 256)", "N"},
      {"batch", 0, 0, G_OPTION_ARG_INT, &only, "only 1, 8, 16, 64 or 256 (default all)", "N"},
      {"chunk", 0, 0, G_OPTION_ARG_INT, &chunk, "tokens of a step, up to 8192 (default)", "N"},
      {"layers", 0, 0, G_OPTION_ARG_NONE, &by_layers, "time halves of layers too", NULL},
      {"bandwidth", 0, 0, G_OPTION_ARG_DOUBLE, &bandwidth, "of reads (default measured)", "TB/S"},
      {"rate", 0, 0, G_OPTION_ARG_DOUBLE, &rate, "of products (default measured)", "TFLOP/S"},
      {"eager", 0, 0, G_OPTION_ARG_NONE, &eager, "no graphs", NULL},
      {NULL}};
  GOptionContext *options = g_option_context_new("[MODEL]");
  g_option_context_add_main_entries(options, entries, NULL);
  gboolean parsed = g_option_context_parse(options, &argc, &argv, &error);
  g_option_context_free(options);
  g_autoptr(oct_model_spec) spec =
      parsed ? oct_model_spec_load(argc > 1 ? argv[1] : "llama-3.1-8b", NULL, &error) : NULL;
  trial t = {0};
  oct_world *world = spec != NULL && in_range() ? make_world(&t.stamps, &error) : NULL;
  if (world == NULL) {
    fprintf(stderr, "bench-cuda: %s\n", error != NULL ? error->message : "options out of range");
    return error != NULL && strstr(error->message, "no GPU") != NULL ? 0 : 1;
  }
  if (!measure_limits()) {
    oct_world_free(world);
    return 1;
  }
  t.config = (oct_instance_config){.label = "bench",
                                   .spec = spec,
                                   .parallel = OCT_PARALLEL_DEFAULT,
                                   .kv_dtype = OCT_DTYPE_BF16,
                                   .block_size = BLOCK,
                                   .depth = 1 + (guint32)pipeline,
                                   .max_slots = (guint32)n_slots,
                                   .max_batched_tokens = (guint32)chunk,
                                   .seed = 1,
                                   .eager = eager,
                                   .report_experts = TRUE};
  t.config.parallel.tensor = (guint32)tensor;
  t.config.parallel.pipeline = (guint32)pipeline;
  t.config.parallel.decode_context = (guint32)decode_context;
  t.page_tokens = BLOCK * (guint32)decode_context;
  t.slot_pages = ((guint32)context + 10 * (WARM_UP + STEPS + 4)) / t.page_tokens + 1;
  t.config.memory.n_groups = oct_model_groups(spec, OCT_DTYPE_BF16, t.groups);
  for (guint g = 0; g < t.config.memory.n_groups; g++) {
    gboolean states = t.groups[g].state_bytes > 0;
    t.config.memory.groups[g].n_device = (guint32)n_slots * (states ? 1 : t.slot_pages);
    t.config.memory.groups[g].n_host = states ? 0 : (guint32)host_pages;
  }
  for (guint16 i = 0; i < 8; i++)
    t.devices[i] = i;
  t.config.devices = t.devices;
  int result = oct_world_run(world, run, &t);
  oct_world_free(world);
  return result;
}
