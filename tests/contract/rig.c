#include "tests/contract/rig.h"

#include <string.h>

#include "backends/dump.h"
#include "engine/base/rng.h"

/* ---------------------------------------------------------------- life cycle */

void
rig_init(rig *r, oct_world *world, const oct_instance_config *config) {
  memset(r, 0, sizeof *r);
  r->world = world;
  r->config = *config;
  r->no_tags = !config->check_tags;
  r->n_groups = oct_model_groups(config->spec, config->kv_dtype, r->groups);
  for (guint32 g = 0; g < r->n_groups; g++)
    r->has_state |= r->groups[g].kind == OCT_ATTENTION_KDA;
  r->builder = oct_step_builder_new();
  for (guint32 i = 0; i < RIG_SLOTS; i++)
    r->ids[i] = g_array_new(FALSE, FALSE, sizeof(guint32));
}

void
rig_clear(rig *r) {
  oct_step_builder_free(r->builder);
  for (guint32 i = 0; i < RIG_SLOTS; i++)
    g_array_unref(r->ids[i]);
}

void
rig_open(rig *r) {
  g_autoptr(GError) error = NULL;
  gboolean accepted = oct_world_open(r->world, &r->config, &r->instance, &error);
  g_assert_no_error(error);
  g_assert_true(accepted);
  r->number = r->n_flights = 0;
  if (r->log != NULL) {
    g_string_append_printf(r->log, "open instance %u: ", r->instance);
    oct_dump_config(r->log, &r->config);
  }
  for (;;) {
    oct_event event;
    g_assert_true(rig_next(r, OCT_TIME_NEVER, &event));
    if (event.kind == OCT_EVENT_OPEN_PROGRESS)
      continue;
    if (event.instance != r->instance)
      continue;
    g_assert_cmpstr(oct_event_name(event.kind), ==, "OPENED");
    r->capabilities = *event.capabilities;
    return;
  }
}

void
rig_close(rig *r) {
  if (r->log != NULL)
    g_string_append_printf(r->log, "close instance %u\n", r->instance);
  oct_world_close(r->world, r->instance);
  r->instance = 0;
  r->n_flights = 0;
}

typedef struct run_call {
  const oct_instance_config *config;
  void (*fn)(rig *r);
  gboolean open;
} run_call;

static int
run_inside(oct_world *world, void *arg) {
  const run_call *call = arg;
  rig r;
  rig_init(&r, world, call->config);
  if (call->open)
    rig_open(&r);
  call->fn(&r);
  if (r.instance != 0)
    rig_close(&r);
  rig_clear(&r);
  return 7;
}

static void
run(oct_world *world, const oct_instance_config *config, void (*fn)(rig *r), gboolean open) {
  run_call call = {config, fn, open};
  g_assert_nonnull(world);
  g_assert_cmpint(oct_world_run(world, run_inside, &call), ==, 7);
  oct_world_free(world);
}

void
rig_run(oct_world *world, const oct_instance_config *config, void (*fn)(rig *r)) {
  run(world, config, fn, TRUE);
}

void
rig_run_closed(oct_world *world, const oct_instance_config *config, void (*fn)(rig *r)) {
  run(world, config, fn, FALSE);
}

/* ---------------------------------------------------------------- building */

guint32
rig_prompt_id(guint64 key, guint32 position) {
  return 3 + (guint32)(oct_mix64(key * 0x10001 + position) % (FIXTURE_VOCAB - 3));
}

guint64
rig_tag(const rig *r, guint32 slot, guint32 n) {
  if (n > r->ids[slot]->len)
    return 0;
  guint64 tag = OCT_TAG_EMPTY;
  for (guint32 i = 0; i < n; i++)
    tag = oct_tag_next(tag, g_array_index(r->ids[slot], guint32, i));
  return tag;
}

void
rig_begin(rig *r) {
  oct_step_begin(r->builder, ++r->number, (guint16)r->config.parallel.data);
}

/* Slots are spread over the domains in equal runs. */
static guint16
domain_of(const rig *r, guint32 slot) {
  return (guint16)(slot * r->config.parallel.data / r->config.max_slots);
}

oct_slot_open *
rig_slot(rig *r, guint32 slot, guint64 key, guint32 prompt, guint32 output) {
  g_array_set_size(r->ids[slot], 0);
  for (guint32 i = 0; i < prompt; i++) {
    guint32 id = rig_prompt_id(key, i);
    g_array_append_val(r->ids[slot], id);
  }
  oct_slot_open *open = oct_step_add_open(r->builder);
  open->slot = slot;
  open->domain = domain_of(r, slot);
  open->key = key;
  open->prompt_tokens = prompt;
  open->oracle_tokens = output;
  open->eos_token = FIXTURE_EOS;
  return open;
}

static void
add_change(rig *r, guint32 slot, guint32 group, oct_page_op op, guint32 index, guint32 page) {
  oct_page_change *c = oct_step_add_change(r->builder);
  c->slot = slot;
  c->group = (guint16)group;
  c->op = (guint16)op;
  c->index = index;
  c->page = page;
}

void
rig_pages(rig *r, guint32 slot, guint32 group, guint32 index, guint32 n, guint32 first_page) {
  for (guint32 i = 0; i < n; i++)
    add_change(r, slot, group, OCT_PAGE_SET, index + i, first_page + i);
}

void
rig_state(rig *r, guint32 slot, guint32 group, guint32 state) {
  add_change(r, slot, group, OCT_PAGE_SET, 0, state);
}

void
rig_first_live(rig *r, guint32 slot, guint32 group, guint32 index) {
  add_change(r, slot, group, OCT_PAGE_FIRST_LIVE, index, 0);
}

oct_slot_open *
rig_sequence(rig *r, guint32 slot, guint64 key, guint32 prompt, guint32 output) {
  for (guint32 g = 0; g < r->n_groups; g++)
    if (r->groups[g].kind == OCT_ATTENTION_KDA)
      rig_state(r, slot, g, slot);
    else
      rig_pages(r, slot, g, 0, 8, 8 * slot);
  return rig_slot(r, slot, key, prompt, output);
}

oct_copy *
rig_copy(rig *r, oct_copy_kind kind, oct_copy_order order, guint32 group, guint32 from,
         guint32 to) {
  oct_copy *c = oct_step_add_copy(r->builder);
  c->kind = (guint8)kind;
  c->order = (guint8)order;
  c->group = (guint16)group;
  c->from = from;
  c->to = to;
  return c;
}

static oct_slice *
add_slice(rig *r, guint32 slot, guint32 position, guint32 n, oct_token_source source,
          oct_sample sample) {
  oct_slice *s = oct_step_add_slice(r->builder);
  s->slot = slot;
  s->domain = domain_of(r, slot);
  s->source = (guint8)source;
  s->sample = (guint8)sample;
  s->n_tokens = n;
  s->position = position;
  s->state_position = r->has_state ? position : OCT_NO_INDEX;
  if (!r->no_tags && position != OCT_POSITION_AFTER)
    s->tag = rig_tag(r, slot, position);
  return s;
}

oct_slice *
rig_prefill(rig *r, guint32 slot, guint32 position, guint32 n, oct_sample sample) {
  g_assert_cmpuint(position + n, <=, r->ids[slot]->len);
  guint32 at =
      oct_step_add_tokens(r->builder, &g_array_index(r->ids[slot], guint32, position), n, NULL);
  oct_slice *s = add_slice(r, slot, position, n, OCT_SOURCE_IDS, sample);
  s->tokens = at;
  s->flags = OCT_SLICE_PREFILL;
  return s;
}

oct_slice *
rig_score(rig *r, guint32 slot, guint32 position, guint32 n, oct_sample sample, guint8 n_logprobs) {
  oct_slice *s = rig_prefill(r, slot, position, n, sample);
  s->n_prompt_logprobs = n_logprobs;
  if (sample == OCT_SAMPLE_NONE) {
    g_assert_cmpuint(position + n, <, r->ids[slot]->len);
    (void)oct_step_add_tokens(r->builder, &g_array_index(r->ids[slot], guint32, position + n), 1,
                              NULL);
  }
  return s;
}

oct_slice *
rig_decode(rig *r, guint32 slot, guint32 position) {
  return add_slice(r, slot, position, 1, OCT_SOURCE_DEVICE, OCT_SAMPLE_LAST);
}

oct_slice *
rig_verify(rig *r, guint32 slot, guint32 position, const guint32 *drafts, guint32 n) {
  guint32 at = oct_step_add_tokens(r->builder, drafts, n - 1, NULL);
  oct_slice *s = add_slice(r, slot, position, n, OCT_SOURCE_DEVICE, OCT_SAMPLE_ALL);
  s->tokens = n > 1 ? at : OCT_NO_INDEX;
  s->flags = OCT_SLICE_VERIFY;
  return s;
}

const oct_step *
rig_end(rig *r) {
  const oct_step *step = oct_step_end(r->builder);
  g_autoptr(GError) error = NULL;
  gboolean fine = oct_step_check(step, step->bytes, &r->config, &error);
  g_assert_no_error(error);
  g_assert_true(fine);
  return step;
}

void
rig_submit(rig *r) {
  const oct_step *step = rig_end(r);
  g_autoptr(GError) error = NULL;
  oct_submit answer = oct_world_submit(r->world, r->instance, step, &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
  if (r->log != NULL) {
    g_string_append_printf(r->log, "submit to instance %u: ", r->instance);
    oct_dump_step(r->log, step);
  }
  g_assert_cmpuint(r->n_flights, <, G_N_ELEMENTS(r->flights));
  r->flights[r->n_flights].number = step->number;
  r->flights[r->n_flights].n = step->n_slices;
  for (guint32 i = 0; i < step->n_slices; i++)
    r->flights[r->n_flights].slots[i] = oct_step_slices(step)[i].slot;
  r->n_flights++;
}

void
rig_beside(rig *r, guint64 ticket, const oct_copy *copies, guint32 n) {
  g_autoptr(GError) error = NULL;
  oct_submit answer = oct_world_copy(r->world, r->instance, ticket, copies, n, &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
  if (r->log != NULL) {
    g_string_append_printf(r->log, "copy in instance %u: ticket %" G_GUINT64_FORMAT "\n",
                           r->instance, ticket);
    oct_dump_copies(r->log, copies, n);
  }
}

void
rig_mask(rig *r, guint64 number, guint32 slice, const guint32 *tokens, guint32 n) {
  guint64 bits[(FIXTURE_VOCAB + 63) / 64] = {0};
  for (guint32 i = 0; i < n; i++)
    bits[tokens[i] / 64] |= (guint64)1 << (tokens[i] % 64);
  g_autoptr(GError) error = NULL;
  gboolean taken =
      oct_world_mask(r->world, r->instance, number, slice, bits, G_N_ELEMENTS(bits), &error);
  g_assert_no_error(error);
  g_assert_true(taken);
  if (r->log == NULL)
    return;
  g_string_append_printf(r->log, "mask to instance %u: step %" G_GUINT64_FORMAT " slice %u allows",
                         r->instance, number, slice);
  for (guint32 i = 0; i < n; i++)
    g_string_append_printf(r->log, " %u", tokens[i]);
  g_string_append_c(r->log, '\n');
}

/* ---------------------------------------------------------------- events */

const guint32 *
rig_accepted(const oct_event *event, guint32 slice, guint32 *n) {
  g_assert_cmpuint(slice, <, event->result->n_slices);
  const oct_slice_result *s = &oct_result_slices(event->result)[slice];
  *n = s->n_accepted;
  return oct_result_tokens(event->result) + s->tokens;
}

static void
take_step(rig *r, const oct_event *event) {
  guint32 at = 0;
  while (at < r->n_flights && r->flights[at].number != event->number)
    at++;
  if (at == r->n_flights || event->instance != r->instance)
    return;
  g_assert_cmpuint(event->result->n_slices, ==, r->flights[at].n);
  for (guint32 i = 0; i < r->flights[at].n; i++) {
    guint32 n;
    const guint32 *tokens = rig_accepted(event, i, &n);
    g_array_append_vals(r->ids[r->flights[at].slots[i]], tokens, n);
  }
  r->n_flights--;
  memmove(&r->flights[at], &r->flights[at + 1], (r->n_flights - at) * sizeof r->flights[0]);
}

gboolean
rig_next(rig *r, oct_time until, oct_event *event) {
  if (!oct_world_next(r->world, until, event))
    return FALSE;
  if (r->log != NULL) {
    g_string_append(r->log, "event ");
    oct_dump_event(r->log, event);
  }
  if (event->kind == OCT_EVENT_STEP_DONE)
    take_step(r, event);
  return TRUE;
}

void
rig_expect(rig *r, oct_event_kind kind, guint64 number, oct_event *event) {
  oct_event unused;
  if (event == NULL)
    event = &unused;
  g_assert_true(rig_next(r, OCT_TIME_NEVER, event));
  if (event->kind == OCT_EVENT_FAULT && kind != OCT_EVENT_FAULT)
    g_test_message("fault: %s", event->fault->message);
  g_assert_cmpstr(oct_event_name(event->kind), ==, oct_event_name(kind));
  g_assert_cmpuint(event->instance, ==, r->instance);
  if (number != 0)
    g_assert_cmpuint(event->number, ==, number);
}

void
rig_until(rig *r, oct_event_kind kind, guint64 number, oct_event *event) {
  oct_event unused;
  if (event == NULL)
    event = &unused;
  do {
    g_assert_true(rig_next(r, OCT_TIME_NEVER, event));
    if (event->kind == OCT_EVENT_FAULT && kind != OCT_EVENT_FAULT) {
      g_test_message("fault: %s", event->fault->message);
      g_assert_cmpstr(oct_event_name(event->kind), ==, oct_event_name(kind));
    }
  } while (event->kind != kind || (number != 0 && event->number != number) ||
           (event->instance != 0 && event->instance != r->instance));
}
