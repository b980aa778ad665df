/* Expert residency in the loop: hands what steps used to experts.c, its map changes to the step
 * being built, its copies to the world.
 *
 * Loads go as BESIDE copies in batches, a ticket each. Until warm-up has brought the first experts
 * no step is submitted, as on a server that loads its weights before it is ready. */
#include "engine/sched/internal.h"

#define TICKETS   4
#define BATCH_MAX 256 /* copies of one ticket: its experts can be used when all have ended */

typedef struct batch {
  guint64 ticket;   /* 0 = unused */
  gboolean pending; /* not taken by the backend yet */
  guint32 n;
  oct_copy copies[BATCH_MAX];
} batch;

struct oct_residency {
  oct_experts *experts;
  batch batches[TICKETS];
};

gboolean
oct_residency_new(oct_engine *engine, GError **error) {
  const oct_instance_config *c = &engine->config.instance;
  if (c->memory.n_expert_slots == 0)
    return TRUE;
  oct_experts *experts = oct_experts_new(engine->spec, &c->parallel, c->memory.n_expert_slots,
                                         &engine->config.experts, error);
  if (experts == NULL)
    return FALSE;
  engine->residency = g_new0(oct_residency, 1);
  engine->residency->experts = experts;
  engine->config.experts.histogram = NULL; /* was borrowed */
  engine->config.instance.report_experts = TRUE;
  return TRUE;
}

void
oct_residency_free(oct_engine *engine) {
  if (engine->residency == NULL)
    return;
  oct_experts_free(engine->residency->experts);
  g_clear_pointer(&engine->residency, g_free);
}

void
oct_residency_reset(oct_engine *engine) {
  oct_residency *r = engine->residency;
  if (r == NULL)
    return;
  for (guint i = 0; i < TICKETS; i++)
    r->batches[i].ticket = 0;
  oct_experts_reset(r->experts);
}

gboolean
oct_residency_ready(const oct_engine *engine) {
  return engine->residency == NULL || oct_experts_warm(engine->residency->experts);
}

void
oct_residency_plan(oct_engine *engine) {
  if (engine->residency != NULL)
    oct_experts_plan(engine->residency->experts, engine->next_number, engine->builder);
}

void
oct_residency_used(oct_engine *engine, const oct_step_result *result) {
  if (engine->residency != NULL &&
      !oct_experts_used(engine->residency->experts, oct_result_experts(result), result->n_experts))
    oct_instance_lost(engine, "a result names an expert that the model does not have");
}

void
oct_residency_step_failed(oct_engine *engine, guint64 number) {
  if (engine->residency != NULL)
    oct_experts_step_failed(engine->residency->experts, number);
}

static void
start(oct_engine *engine, batch *b) {
  g_autoptr(GError) error = NULL;
  oct_submit submit =
      oct_world_copy(engine->world, engine->instance, b->ticket, b->copies, b->n, &error);
  b->pending = submit == OCT_SUBMIT_FULL;
  if (submit == OCT_SUBMIT_OK)
    oct_transfer_sent(engine);
  if (submit == OCT_SUBMIT_REFUSED)
    oct_instance_lost(engine, error->message);
}

void
oct_residency_turn(oct_engine *engine) {
  oct_residency *r = engine->residency;
  for (guint i = 0; r != NULL && i < TICKETS && engine->lost[0] == '\0'; i++) {
    batch *b = &r->batches[i];
    if (b->ticket == 0) {
      b->n = oct_experts_loads(r->experts, engine->completed, b->copies, BATCH_MAX);
      if (b->n == 0)
        continue;
      b->ticket = engine->next_ticket++;
      b->pending = TRUE;
      if (engine->config.log != NULL)
        oct_log_printf(engine->config.log, "%" G_GINT64_FORMAT " experts %u", engine->now, b->n);
    }
    if (b->pending)
      start(engine, b);
  }
}

gboolean
oct_residency_copied(oct_engine *engine, guint64 ticket, gboolean failed) {
  oct_residency *r = engine->residency;
  for (guint i = 0; r != NULL && i < TICKETS; i++) {
    batch *b = &r->batches[i];
    if (b->ticket != ticket || ticket == 0)
      continue;
    b->ticket = 0;
    oct_experts_loaded(r->experts, b->copies, b->n, failed);
    return TRUE;
  }
  return FALSE;
}

void
oct_residency_get_stats(const oct_engine *engine, oct_expert_stats *stats) {
  if (engine->residency != NULL)
    oct_experts_get_stats(engine->residency->experts, stats);
}

gboolean
oct_residency_check(const oct_engine *engine, GError **error) {
  return engine->residency == NULL || oct_experts_check(engine->residency->experts, error);
}
