#include "tests/engine/sched/scene.h"

#include <string.h>

static void
step_free(gpointer data) {
  scene_step *step = data;
  g_free(step->text);
  g_free(step);
}

/* Called once per step and stage as it is submitted: notes the step, returns its time. */
static gint64
note_step(const oct_step *step, guint32 stage, void *user) {
  scene *s = user;
  guint32 n_tokens = 0;
  const oct_slice *slices = oct_step_slices(step);
  for (guint32 i = 0; i < step->n_slices; i++)
    n_tokens += slices[i].n_tokens;
  gint64 ns = s->fixed_ns + s->token_ns * n_tokens;
  if (stage > 0)
    return ns;
  const oct_slot_open *opens = oct_step_opens(step);
  for (guint32 i = 0; i < step->n_opens; i++)
    s->seeds[opens[i].slot] = opens[i].seed;
  scene_step *note = g_new0(scene_step, 1);
  note->instance_step = (guint32)step->number;
  note->n_slices = step->n_slices;
  note->n_tokens = n_tokens;
  note->n_copies = step->n_copies;
  GString *text = g_string_new(NULL);
  for (guint32 i = 0; i < step->n_slices; i++) {
    note->n_decodes += (slices[i].flags & OCT_SLICE_PREFILL) == 0;
    g_string_append_printf(text, "%s%" G_GUINT64_FORMAT "@%u+%u%s", i > 0 ? " " : "",
                           s->seeds[slices[i].slot], slices[i].position, slices[i].n_tokens,
                           slices[i].sample != OCT_SAMPLE_NONE ? "*" : "");
  }
  note->text = g_string_free(text, FALSE);
  const oct_engine *e = s->rig.engines[0];
  note->unfinished = e != NULL ? e->n_flights : 0;
  g_ptr_array_add(s->steps, note);
  return ns;
}

void
scene_init(scene *s, const char *kind, guint32 pages, guint32 host) {
  *s = (scene){.fixed_ns = MS, .token_ns = 10000};
  s->spec = rig_spec(kind);
  s->steps = g_ptr_array_new_with_free_func(step_free);
  rig_config(&s->config, s->spec, pages, host);
  s->config.max_num_seqs = 16;
  s->config.max_num_batched_tokens = 64;
  s->config.submit_lead_ns = 200000;
  oct_mock_options_default(&s->mock);
  s->mock.shadow.check_leases = TRUE;
  s->mock.copy_page_ns = s->mock.copy_state_ns = 100000;
  oct_fault_options_default(&s->fault);
  rig_init(&s->rig, NULL);
}

rig_request *
scene_ask(scene *s, guint64 family, guint32 prompt, guint32 max_tokens) {
  oct_request_params p;
  oct_request_params_default(&p);
  g_autofree guint32 *ids = rig_prompt(s->spec, family, prompt);
  p.prompt_ids = ids;
  p.prompt_tokens = prompt;
  p.max_tokens = max_tokens;
  p.ignore_eos = TRUE;
  p.seed = s->seed_base + ++s->n_asked;
  return rig_add(&s->rig, 0, &p);
}

static void
check_nothing_held(const scene *s) {
  const oct_engine_stats *stats = scene_stats(s);
  guint64 ends = 0;
  for (int i = 0; i < OCT_END_COUNT; i++)
    ends += stats->ended[i];
  g_assert_cmpuint(ends, ==, stats->accepted);
  g_assert_cmpuint(stats->running + stats->waiting, ==, 0);
  for (guint g = 0; g < OCT_MODEL_GROUPS_MAX; g++)
    g_assert_cmpuint(stats->pages_used[g], ==, 0);
}

void
scene_run(scene *s) {
  g_autoptr(GError) error = NULL;
  /* Twice max_num_seqs per domain; asked for generously, since tests may change the numbers. */
  s->seeds = g_new0(guint64, 1 << 16);
  s->mock.step_time = note_step;
  s->mock.user = s;
  oct_world *world = oct_mock_world_new(&s->mock, &error);
  g_assert_no_error(error);
  if (s->fault.n_script > 0 || s->fault.rate > 0)
    world = oct_fault_world_new(world, &s->fault, &error);
  g_assert_no_error(error);
  s->rig.world = world;
  if (s->rig.n_engines == 0)
    rig_add_engine(&s->rig, &s->config);
  rig_run(&s->rig);
  g_assert_cmpstr(s->rig.failure, ==, NULL);
  if (!s->keeps)
    check_nothing_held(s);
}

void
scene_clear(scene *s) {
  rig_clear(&s->rig);
  g_ptr_array_unref(s->steps);
  g_free(s->seeds);
  oct_model_spec_free(s->spec);
}

const scene_step *
scene_step_at(const scene *s, guint i) {
  g_assert_cmpuint(i, <, s->steps->len);
  return g_ptr_array_index(s->steps, i);
}

const oct_engine_stats *
scene_stats(const scene *s) {
  return &s->rig.stats[0];
}

oct_request *
scene_find(const scene *s, const rig_request *q) {
  oct_engine *e = s->rig.engines[q->engine];
  for (oct_request *r = e != NULL ? e->first : NULL; r != NULL; r = r->next)
    if (r->id == q->id && q->id != 0)
      return r;
  return NULL;
}

oct_seq_state
scene_state(const scene *s, const rig_request *q) {
  const oct_request *r = scene_find(s, q);
  return r != NULL ? r->seqs[0]->state : OCT_SEQ_ENDED;
}

gboolean
scene_same_tokens(const rig_request *a, const rig_request *b) {
  for (int c = 0; c < 8; c++)
    if (a->tokens[c]->len != b->tokens[c]->len ||
        (a->tokens[c]->len > 0 && /* memcmp() takes no NULL, whatever the length */
         memcmp(a->tokens[c]->data, b->tokens[c]->data, a->tokens[c]->len * sizeof(guint32)) != 0))
      return FALSE;
  return TRUE;
}
