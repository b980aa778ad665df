/* A step on its way: host, stages, masks, end; and fast-forward over it.
 *
 *   submitted --host time--> waits for stage 0 --> runs on stage s --send--> waits for stage s + 1
 * … … runs on the last stage --> [waits for masks] --> done (STEP_DONE)
 *
 * Steps pass every stage in the order of their numbers, one at a time. Stage s begins step n when
 *   - step n has arrived: stage 0: the host is done with it, and the unfinished steps whose tokens
 * it needs are done; stage s > 0: the send from stage s - 1 has ended;
 *   - step n - 1 has left the stage and its AFTER copies there have ended;
 *   - its own BEFORE copies there have ended. Those from the host begin when the host is done with
 * the step; those inside the GPU begin when the stage would. so that without copies C[s][n] =
 * max(C[s-1][n] + send, C[s][n-1]) + t.
 */
#include "backends/simgrid/internal.h"

#include <string.h>

#include "engine/base/assert.h"

static void stage_ended(oct_job *job);
static void send_ended(oct_job *job);
static void host_done(oct_timer *timer);

void
sim_step_init(sim_step *step, sim_instance *instance) {
  step->instance = instance;
  step->host_timer.fire = host_done;
  step->host_timer.owner = step;
  step->send_job.done = send_ended;
  step->send_job.owner = step;
  for (guint32 s = 0; s < instance->n_stages && step == instance->steps; s++) {
    instance->stages[s].job.done = stage_ended;
    instance->stages[s].job.owner = &instance->stages[s];
  }
}

/* The unfinished step of that number (0: a free record), NULL when there is none. */
static sim_step *
step_of(sim_instance *instance, guint64 number) {
  for (guint32 i = 0; i < instance->config.depth; i++) {
    if (instance->steps[i].number == number)
      return &instance->steps[i];
  }
  return NULL;
}

/* ---------------------------------------------------------------- jobs */

/* Stage s begins: its price becomes that of a chip as warm as its GPUs are. */
static void
warm(sim_step *step, guint32 s, oct_time begin_ns) {
  const oct_heat_law *law = oct_cost_heat(step->instance->cost);
  if (law == NULL || step->n_warm > s)
    return;
  oct_heat_price(law, &step->instance->stages[s].heat, begin_ns, step->price.graph,
                 &step->price.stages[s]);
  step->n_warm = s + 1;
}

/* Prices what the step's shape has become, of a cold chip. */
static void
price_step(sim_step *step) {
  oct_cost_step(step->instance->cost, &step->shape, &step->price);
  step->n_warm = 0;
}

/* Puts the stage's price into its job: times as priced, bytes cut to what the links carry in that
 * time, so that a step alone takes its price. */
static void
fill_stage_job(sim_stage *stage, const oct_stage_price *price) {
  oct_job *job = &stage->job;
  memcpy(job->bundles, stage->bundles, sizeof job->bundles);
  job->n_groups = OCT_COST_GROUPS;
  for (guint g = 0; g < OCT_COST_GROUPS; g++) {
    const oct_cost_group *from = &price->groups[g];
    oct_job_group *to = &job->groups[g];
    to->ns = from->ns;
    to->amount[SIM_SM] = g == OCT_PART_COMPUTE ? (double)from->ns : 0;
    to->amount[SIM_HOST] = from->host_bytes;
    to->amount[SIM_HBM] = from->hbm_bytes;
    to->amount[SIM_NV] = from->nvlink_bytes;
    for (guint b = 0; b < OCT_JOB_BUNDLES; b++) {
      if (to->amount[b] > 0)
        to->amount[b] = stage->bundles[b] == NULL
                            ? 0
                            : MIN(to->amount[b], oct_bundle_limit(stage->bundles[b], from->ns));
    }
    /* What comes from the host crosses the HBM too. */
    if (to->amount[SIM_HOST] > 0)
      to->amount[SIM_HBM] =
          CLAMP(to->amount[SIM_HBM], 0,
                oct_bundle_limit(stage->bundles[SIM_HBM], from->ns) - to->amount[SIM_HOST]);
  }
}

static void
fill_send_job(sim_step *step, guint32 stage) {
  const oct_stage_price *price = &step->price.stages[stage];
  oct_bundle *bundle = step->instance->stages[stage].send;
  double limit = oct_bundle_limit(bundle, price->send_ns);
  memset(step->send_job.bundles, 0, sizeof step->send_job.bundles);
  step->send_job.bundles[0] = bundle;
  step->send_job.n_groups = 1;
  step->send_job.groups[0] =
      (oct_job_group){.ns = price->send_ns, .amount = {MIN(price->send_bytes, limit)}};
}

/* ---------------------------------------------------------------- the way through the stages */

static void
arrive(sim_step *step, guint32 stage) {
  step->stage = stage;
  step->arrived = TRUE;
  step->arrived_ns = step->instance->world->now_ns;
  step->ready_ns = -1;
  sim_stage_try(&step->instance->stages[stage]);
}

static void
host_done(oct_timer *timer) {
  sim_step *step = timer->owner;
  sim_instance *instance = step->instance;
  for (guint32 s = 0; s < instance->n_stages; s++) {
    if (step->before_in[s] != NULL)
      step->before_in[s]->held = FALSE;
  }
  sim_ops_try(instance);
  sim_stage_try(&instance->stages[0]);
}

/* Whether step n has arrived at the stage; at stage 0 this is where it does. */
static gboolean
has_arrived(sim_stage *stage, sim_step *step) {
  sim_instance *instance = stage->instance;
  oct_time now = instance->world->now_ns;
  if (stage->index > 0)
    return step->stage == stage->index && step->arrived;
  if (step->arrived)
    return TRUE;
  if (step->after_step > instance->last_done)
    return FALSE;
  if (now < step->host_ns) {
    if (!oct_timer_armed(&step->host_timer))
      oct_timers_arm(&instance->world->timers, &step->host_timer, step->host_ns);
    return FALSE;
  }
  step->arrived = TRUE;
  step->arrived_ns = now;
  step->ready_ns = -1;
  return TRUE;
}

void
sim_stage_try(sim_stage *stage) {
  sim_instance *instance = stage->instance;
  oct_time now = instance->world->now_ns;
  sim_step *step = step_of(instance, stage->next);
  if (instance->lost || stage->step != NULL || stage->after != NULL || step == NULL ||
      !has_arrived(stage, step))
    return;
  guint32 s = stage->index;
  if (step->before_in[s] != NULL)
    return;
  if (step->ready_ns < 0) {
    step->ready_ns = now;
    if (s == 0)
      step->begin_ns = now;
    else
      step->part_ns[OCT_PART_WAIT] += now - step->arrived_ns;
  }
  if (step->before_own[s] != NULL) {
    if (!step->before_own[s]->queued)
      sim_op_queue(step->before_own[s]); /* comes back here when it has ended */
    return;
  }
  step->part_ns[OCT_PART_COPY] += now - step->ready_ns;
  stage->step = step;
  warm(step, s, now);
  fill_stage_job(stage, &step->price.stages[s]);
  oct_flows_start(instance->world->flows, &stage->job);
}

void
sim_step_before_ended(sim_op *op) {
  sim_op **list =
      op->step->before_own[op->stage] == op ? op->step->before_own : op->step->before_in;
  oct_assert(list[op->stage] == op);
  list[op->stage] = NULL;
  sim_stage_try(&op->instance->stages[op->stage]);
}

/* The step leaves the stage: its AFTER copies begin there, and the next step may come. */
static void
leave(sim_stage *stage, sim_step *step) {
  guint32 s = stage->index;
  stage->step = NULL;
  stage->next++;
  stage->after = step->after[s];
  step->after[s] = NULL;
  if (stage->after != NULL)
    sim_op_queue(stage->after);
}

static void
step_ended(sim_step *step) {
  sim_instance *instance = step->instance;
  sim_stage *last = &instance->stages[instance->n_stages - 1];
  step->end_ns = instance->world->now_ns;
  instance->last_done = step->number;
  for (guint p = 0; p < OCT_PART_COUNT; p++)
    instance->part_ns[p] += step->part_ns[p];
  sim_event *event = sim_emit(instance, OCT_EVENT_STEP_DONE);
  event->number = step->number;
  event->step = step;
  leave(last, step);
  sim_ops_try(instance);
  sim_stage_try(last);
  if (instance->n_stages > 1)
    sim_stage_try(&instance->stages[0]);
}

static void
ask_masks(sim_step *step) {
  const oct_shadow_step *content = step->content;
  for (guint32 i = 0; i < content->n_slices; i++) {
    if ((content->slices[i].flags & OCT_SLICE_NEEDS_MASK) && !content->slices[i].masked) {
      sim_event *event = sim_emit(step->instance, OCT_EVENT_MASK_WANTED);
      event->number = step->number;
      event->slice = i;
    }
  }
}

static void
stage_ended(oct_job *job) {
  sim_stage *stage = job->owner;
  sim_instance *instance = stage->instance;
  sim_step *step = stage->step;
  for (guint g = 0; g < OCT_COST_GROUPS; g++)
    step->part_ns[g] += job->spent_ns[g];
  if (stage->index + 1 == instance->n_stages) {
    if (step->content->n_masks == 0) {
      step_ended(step);
    } else { /* holds its last stage until the masks have come */
      step->ready_ns = instance->world->now_ns;
      ask_masks(step);
    }
    return;
  }
  step->arrived = FALSE;
  step->stage = stage->index + 1;
  fill_send_job(step, stage->index);
  leave(stage, step);
  oct_flows_start(instance->world->flows, &step->send_job);
  sim_stage_try(stage);
}

static void
send_ended(oct_job *job) {
  sim_step *step = job->owner;
  step->part_ns[OCT_PART_COLLECTIVE] += job->spent_ns[0];
  arrive(step, step->stage);
}

gboolean
sim_mask(oct_world *world, guint32 instance, guint64 number, guint32 slice, const guint64 *bits,
         guint32 n_words, GError **error) {
  sim_instance *in = sim_usable(sim_world_of(world), instance, error);
  if (in == NULL)
    return FALSE;
  g_autoptr(GError) wrong = NULL;
  if (!oct_shadow_mask(in->shadow, number, slice, bits, n_words, &wrong)) {
    if (wrong == NULL)
      return TRUE; /* it is not awaited */
    g_propagate_error(error, g_steal_pointer(&wrong));
    return FALSE;
  }
  sim_step *step = step_of(in, number);
  sim_stage *last = &in->stages[in->n_stages - 1];
  oct_assert(step != NULL); /* only an unfinished step takes a mask */
  if (step->content->n_masks == 0 && last->step == step && last->job.state == OCT_JOB_IDLE) {
    step->part_ns[OCT_PART_WAIT] += in->world->now_ns - step->ready_ns;
    step_ended(step);
  }
  return TRUE;
}

/* ---------------------------------------------------------------- submission */

/* Expert weights that the heaviest rank of each stage reads from the host. */
static void
set_misses(sim_step *step) {
  const sim_instance *instance = step->instance;
  memset(step->shape.expert_miss_bytes, 0, sizeof step->shape.expert_miss_bytes);
  for (guint32 s = 0; s < instance->n_stages; s++)
    if (step->content->missed[s] > 0)
      step->shape.expert_miss_bytes[s] =
          oct_cost_miss_bytes(instance->cost, s, step->content->missed[s]);
}

/* OCT_EXPERT_MISS_LOAD: every layer that misses waits for a copy to begin. */
static void
add_miss_latency(sim_step *step) {
  const sim_instance *instance = step->instance;
  const oct_simgrid_options *options = &instance->world->options;
  const oct_shadow_step *content = step->content;
  if (options->expert_miss != OCT_EXPERT_MISS_LOAD)
    return;
  gint64 latency_ns = oct_cost_ns(options->profile->pcie.copy_latency_s);
  guint32 layer = OCT_NO_INDEX, stage = 0, end = 0, first;
  for (guint32 i = 0; i < content->n_experts; i++) {
    if (!content->experts[i].missed || content->experts[i].layer == layer)
      continue;
    layer = content->experts[i].layer;
    for (stage = 0; stage < instance->n_stages; stage++) {
      oct_parallel_stage(instance->config.spec, &instance->config.parallel, stage, &first, &end);
      if (layer < first + end)
        break;
    }
    step->price.stages[stage].groups[OCT_PART_COPY].ns += latency_ns;
    step->price.stages[stage].ns += latency_ns;
  }
}

static void
sum_shape(sim_step *step, const oct_step *record) {
  const sim_instance *instance = step->instance;
  const oct_slice *slices = oct_step_slices(record);
  const oct_shadow_step *content = step->content;
  step->shape.n_domains = record->n_domains;
  step->shape.flags = 0;
  memset(step->shape.domains, 0, record->n_domains * sizeof *step->shape.domains);
  step->plain = content->plain;
  step->after_step = 0;
  for (guint32 i = 0; i < record->n_slices; i++) {
    const oct_shadow_slice *resolved = &content->slices[i];
    oct_domain_shape_add(&step->shape.domains[slices[i].domain], &slices[i], resolved->position,
                         instance->window);
    step->after_step = MAX(step->after_step, resolved->feeds_on);
    if (slices[i].n_logprobs > 0)
      step->plain = FALSE;
  }
  for (guint32 d = 0; d < record->n_domains; d++)
    step->plain &= oct_domain_shape_is_decode(&step->shape.domains[d]);
  step->lag = 0;
  if (instance->window == 0)
    return;
  if (step->slices_room < record->n_slices) {
    step->slices_room = MAX(record->n_slices, 2 * step->slices_room);
    step->slices = g_renew(oct_slice, step->slices, step->slices_room);
  }
  for (guint32 i = 0; i < record->n_slices; i++) {
    step->slices[i] = slices[i];
    step->slices[i].position = content->slices[i].position;
  }
}

/* A slice has filled its window: sums afresh, `lag` tokens further than submitted. */
static void
sum_shape_again(sim_step *step) {
  memset(step->shape.domains, 0, step->shape.n_domains * sizeof *step->shape.domains);
  for (guint32 i = 0; i < step->content->n_slices; i++)
    oct_domain_shape_add(&step->shape.domains[step->slices[i].domain], &step->slices[i],
                         step->slices[i].position + step->lag, step->instance->window);
}

static gboolean
may_submit(sim_instance *instance, const oct_step *record, GError **error) {
  if (!instance->world->options.trust_records &&
      !oct_step_check(record, record->bytes, &instance->config, error))
    return FALSE;
  if (record->number != instance->last_submitted + 1) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD,
                "step.number is %" G_GUINT64_FORMAT ", must be %" G_GUINT64_FORMAT, record->number,
                instance->last_submitted + 1);
    return FALSE;
  }
  const oct_slice *slices = oct_step_slices(record);
  for (guint32 i = 0; i < record->n_slices; i++) {
    if (G_UNLIKELY(slices[i].adapter != 0)) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED,
                  "slice %u: adapter %u: backend simgrid has no price for adapters", i,
                  slices[i].adapter);
      return FALSE;
    }
  }
  return TRUE;
}

/* The host takes steps one after the other; returns when it is done with this one. */
static oct_time
charge_host(sim_instance *instance, oct_time submit_ns, guint32 n_slices) {
  instance->host_free_ns =
      MAX(instance->host_free_ns, submit_ns) + oct_cost_step_host_ns(instance->cost, n_slices);
  return instance->host_free_ns;
}

/* The last unfinished step that uses what the BEFORE copies from the host read or write. */
static guint64
copies_wait_for(const sim_instance *instance, const oct_step *record) {
  const oct_copy *copies = oct_step_copies(record);
  guint64 number = 0;
  for (guint32 i = 0; i < record->n_copies; i++) {
    if (copies[i].order == OCT_COPY_BEFORE && copies[i].from_tier == OCT_TIER_HOST)
      number = MAX(number, oct_shadow_copy_waits_for(instance->shadow, &copies[i]));
  }
  return number;
}

oct_submit
sim_submit(oct_world *world, guint32 instance, const oct_step *record, GError **error) {
  sim_world *w = sim_world_of(world);
  sim_instance *in = sim_usable(w, instance, error);
  if (in == NULL)
    return OCT_SUBMIT_REFUSED;
  if (in->n_unfinished >= in->config.depth)
    return OCT_SUBMIT_FULL;
  if (!may_submit(in, record, error))
    return OCT_SUBMIT_REFUSED;
  sim_step *step = step_of(in, 0);
  oct_assert(step != NULL); /* fewer than `depth` are unfinished */
  oct_fault fault = {.device = OCT_NO_INDEX};
  guint64 after_step = copies_wait_for(in, record);
  in->last_submitted = record->number;
  if (!oct_shadow_submit(in->shadow, record, &step->content, &fault)) {
    sim_lose(in, &fault);
    return OCT_SUBMIT_OK; /* it was taken; the fault says what came of it */
  }
  step->number = record->number;
  in->n_unfinished++;
  sum_shape(step, record);
  set_misses(step);
  price_step(step);
  add_miss_latency(step);
  step->stage = 0;
  step->arrived = FALSE;
  step->end_ns = -1;
  memset(step->part_ns, 0, sizeof step->part_ns);
  step->host_ns = charge_host(in, w->now_ns, record->n_slices);
  if (record->n_copies > 0) {
    step->plain = FALSE;
    sim_step_copies(step, oct_step_copies(record), record->n_copies, after_step);
    oct_timers_arm(&w->timers, &step->host_timer, step->host_ns);
  }
  sim_stage_try(&in->stages[0]);
  return OCT_SUBMIT_OK;
}

const oct_step_result *
sim_step_fetched(sim_step *step) {
  sim_instance *instance = step->instance;
  oct_step_result *result =
      oct_shadow_result(instance->shadow, step->content, &instance->result, &instance->result_room);
  result->start_ns = step->begin_ns;
  result->end_ns = step->end_ns;
  memcpy(result->part_ns, step->part_ns, sizeof result->part_ns);
  oct_shadow_step_done(instance->shadow, step->number);
  step->number = 0;
  instance->n_unfinished--;
  return result;
}

void
sim_steps_stop(sim_instance *instance) {
  sim_world *world = instance->world;
  for (guint32 i = 0; i < instance->config.depth; i++) {
    sim_step *step = &instance->steps[i];
    oct_timers_disarm(&world->timers, &step->host_timer);
    oct_flows_cancel(world->flows, &step->send_job);
    step->number = 0;
    memset(step->before_in, 0, sizeof step->before_in);
    memset(step->before_own, 0, sizeof step->before_own);
    memset(step->after, 0, sizeof step->after);
  }
  for (guint32 s = 0; s < instance->n_stages; s++) {
    oct_flows_cancel(world->flows, &instance->stages[s].job);
    instance->stages[s].step = NULL;
    instance->stages[s].after = NULL;
  }
  instance->n_unfinished = 0;
}

/* ---------------------------------------------------------------- fast-forward */

/* What stage s will take when it begins then. */
static gint64
stage_ns(const sim_step *step, guint32 s, oct_time begin_ns) {
  const oct_heat_law *law = oct_cost_heat(step->instance->cost);
  if (law == NULL || step->n_warm > s)
    return step->price.stages[s].ns;
  oct_heat heat = step->instance->stages[s].heat;
  oct_stage_price price = step->price.stages[s];
  oct_heat_price(law, &heat, begin_ns, step->price.graph, &price);
  return price.ns;
}

/* When the instance's lone unfinished step, which is plain, ends if nothing comes between: from
 * where it is, through the stages that are left. FALSE when that cannot be told. */
static gboolean
lone_end(const sim_step *step, oct_time *begin_ns, oct_time *end_ns) {
  const sim_instance *instance = step->instance;
  const oct_step_price *price = &step->price;
  const sim_stage *at = &instance->stages[step->stage];
  oct_time end;
  if (step->stage == 0 && !step->arrived) {
    *begin_ns = step->host_ns;
    end = step->host_ns + stage_ns(step, 0, step->host_ns);
  } else if (at->step == step && at->job.state == OCT_JOB_ALONE &&
             at->job.since_ns == at->job.start_ns) { /* it has never shared */
    *begin_ns = step->begin_ns;
    end = at->job.timer.at_ns;
  } else {
    return FALSE;
  }
  for (guint32 s = step->stage + 1; s < price->n_stages; s++) {
    end += price->stages[s - 1].send_ns;
    end += stage_ns(step, s, end);
  }
  *end_ns = end;
  return TRUE;
}

/* Books a run of the step's stages from its own on, as stepping would; part_ns[] is what its result
 * would have said. */
static void
book_rest(sim_step *step, oct_time begin_ns, gint64 part_ns[OCT_PART_COUNT]) {
  sim_instance *instance = step->instance;
  const oct_step_price *price = &step->price;
  oct_flows *flows = instance->world->flows;
  oct_time at_ns = begin_ns;
  for (guint32 s = step->stage; s < price->n_stages; s++) {
    sim_stage *stage = &instance->stages[s];
    if (stage->step != step) {
      warm(step, s, at_ns);
      fill_stage_job(stage, &price->stages[s]);
      at_ns += price->stages[s].ns;
    } else {
      at_ns = stage->job.timer.at_ns;
    }
    oct_flows_book(flows, &stage->job);
    for (guint g = 0; g < OCT_COST_GROUPS; g++)
      step->part_ns[g] += price->stages[s].groups[g].ns;
    if (s + 1 < price->n_stages) {
      fill_send_job(step, s);
      oct_flows_book(flows, &step->send_job);
      step->part_ns[OCT_PART_COLLECTIVE] += price->stages[s].send_ns;
      at_ns += price->stages[s].send_ns;
    }
    stage->next++;
  }
  for (guint p = 0; p < OCT_PART_COUNT; p++) {
    instance->part_ns[p] += step->part_ns[p];
    part_ns[p] = step->part_ns[p];
  }
}

/* Turns the record of step m into that of m + 1, one token further. */
static void
advance_record(sim_step *step) {
  sim_instance *instance = step->instance;
  gboolean again = FALSE;
  step->lag++;
  for (guint32 d = 0; d < step->shape.n_domains; d++)
    again |= !oct_domain_shape_advance(&step->shape.domains[d], instance->window);
  if (again)
    sum_shape_again(step);
  price_step(step);
  oct_shadow_forward(instance->shadow, step->content);
  memset(step->part_ns, 0, sizeof step->part_ns);
}

/* Puts m + 1 in flight on stage 0, at the end of m or when the host is done with it. */
static void
begin_again(sim_step *step) {
  sim_instance *instance = step->instance;
  sim_world *world = instance->world;
  sim_stage *first = &instance->stages[0];
  gboolean running = first->step == step;
  if (!running) { /* it was further down the pipeline, or waited for the host */
    if (step->arrived) {
      sim_stage *at = &instance->stages[step->stage];
      oct_flows_drop(world->flows, &at->job);
      at->step = NULL;
    }
    oct_timers_disarm(&world->timers, &step->host_timer);
  }
  step->stage = 0;
  if (running && step->host_ns <= world->now_ns) {
    step->begin_ns = step->arrived_ns = step->ready_ns = world->now_ns;
    warm(step, 0, world->now_ns);
    fill_stage_job(first, &step->price.stages[0]);
    oct_flows_again(world->flows, &first->job);
    return;
  }
  if (running) {
    oct_flows_drop(world->flows, &first->job);
    first->step = NULL;
  }
  step->arrived = FALSE;
  sim_stage_try(first);
}

gboolean
sim_forward(oct_world *world, guint32 instance, const oct_forward *forward,
            oct_forwarded *forwarded) {
  sim_world *w = sim_world_of(world);
  sim_instance *in = sim_instance_of(w, instance);
  if (in == NULL || w->dead || in->n_unfinished != 1 || in->lost || w->options.exact ||
      w->events_n > 0 || g_atomic_int_get(&w->woken))
    return FALSE;
  sim_step *step = step_of(in, in->last_submitted);
  if (step == NULL || !step->plain || step->content->forward_left == 0 || in->ops != NULL)
    return FALSE;
  /* The step's own timer is the world's next, and after the step nothing else is due. */
  oct_timer *own = step->arrived ? &in->stages[step->stage].job.timer : &step->host_timer;
  if (own->place != 1 || oct_flows_live(w->flows) != (step->arrived ? 1u : 0u))
    return FALSE;
  oct_time begin_ns, end_ns;
  if (!lone_end(step, &begin_ns, &end_ns) || end_ns > forward->limit_ns ||
      oct_timers_second(&w->timers) <= end_ns || forward->submit_ns > end_ns)
    return FALSE;
  *forwarded = (oct_forwarded){.start_ns = begin_ns, .end_ns = end_ns};
  w->now_ns = end_ns;
  book_rest(step, begin_ns, forwarded->part_ns);
  in->last_done++;
  in->last_submitted++;
  step->number = in->last_submitted;
  guint32 n_slices = step->content->n_slices;
  advance_record(step);
  step->host_ns = charge_host(in, forward->submit_ns, n_slices);
  begin_again(step);
  return TRUE;
}
