/* Prefill and decode pools with the real engine on a simulated node: the cache that one engine has
 * computed is pulled over NVLink by the other, which computes one token of each prompt. */
#include <stdio.h>
#include <string.h>

#include "backends/simgrid/simgrid.h"
#include "tests/backends/simgrid/child.h"
#include "tests/engine/sched/rig.h"

#define N 12

typedef struct pools {
  const char *model, *node;
  guint32 tensor[2]; /* of the prefill and the decode instance, which begins at GPU 4 */
  gboolean exact, recompute;
  rig r;
  GPtrArray *decodes; /* rig_request, parallel to the prefills, or NULL: not sent yet */
} pools;

static guint32
prompt_tokens(guint i) {
  return 1500 + 217 * i;
}

/* When a prefill has ended its decode request is added: the prompt and the token it gave. */
static gboolean
hand_over(rig *r, const oct_event *event G_GNUC_UNUSED, void *user) {
  pools *p = user;
  for (guint i = 0; i < N; i++) {
    rig_request *prefill = rig_request_at(r, i);
    if (prefill->n_ends == 0 || g_ptr_array_index(p->decodes, i) != NULL ||
        prefill->record.reason != OCT_END_LENGTH)
      continue;
    oct_request_params d = prefill->params;
    g_autofree guint32 *ids = g_new(guint32, d.prompt_tokens + 1);
    memcpy(ids, d.prompt_ids, d.prompt_tokens * sizeof *ids);
    ids[d.prompt_tokens] = g_array_index(prefill->tokens[0], guint32, 0);
    d.prompt_ids = ids;
    d.prompt_tokens++;
    d.arrival_ns = r->now;
    d.max_tokens = 30;
    d.export_cache = FALSE;
    d.import_engine = p->recompute ? NULL : r->engines[0];
    d.import_id = prefill->id;
    if (p->recompute)
      g_assert_true(oct_engine_release_export(r->engines[0], prefill->id));
    p->decodes->pdata[i] = rig_add(r, 1, &d);
  }
  return TRUE;
}

static void
add_engines(pools *p, const oct_model_spec *spec) {
  static const guint16 devices[] = {0, 1, 2, 3, 4, 5, 6, 7};
  oct_engine_config c;
  rig_config(&c, spec, 0, 0);
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(spec, c.instance.kv_dtype, groups);
  for (guint g = 0; g < n; g++)
    c.instance.memory.groups[g].n_device = groups[g].kind == OCT_ATTENTION_KDA ? 40 : 2000;
  c.max_model_len = 8192;
  for (guint e = 0; e < 2; e++) {
    c.instance.devices = devices + 4 * e;
    c.instance.parallel.tensor = p->tensor[e];
    rig_add_engine(&p->r, &c);
  }
}

static void
add_prefills(pools *p, const oct_model_spec *spec) {
  for (guint i = 0; i < N; i++) {
    oct_request_params q;
    oct_request_params_default(&q);
    q.prompt_tokens = prompt_tokens(i);
    q.max_tokens = 1;
    q.export_cache = TRUE;
    q.seed = i + 1;
    q.arrival_ns = (oct_time)i * 30000000;
    g_autofree guint32 *ids = rig_prompt(spec, i, q.prompt_tokens);
    q.prompt_ids = ids;
    rig_add(&p->r, 0, &q);
  }
}

/* What crossed from one pool to the other over NVLink, beyond what each says to itself: rings stay
 * inside their group, and send what they receive. */
static double
crossed(const oct_world *world) {
  double sum = 0;
  for (guint i = 0; i < oct_simgrid_resources(world); i++) {
    oct_simgrid_use use;
    oct_simgrid_usage(world, i, &use);
    if (use.index >= 4 && use.kind == OCT_RESOURCE_NV_DOWN)
      sum += use.moved;
    if (use.index >= 4 && use.kind == OCT_RESOURCE_NV_UP)
      sum -= use.moved;
  }
  return sum;
}

/* Bytes that the pulls of all prompts move. */
static double
pulled_bytes(const pools *p, const oct_model_spec *spec) {
  const oct_instance_config *c = &p->r.configs[0].instance;
  oct_layer_group groups[OCT_MODEL_GROUPS_MAX];
  guint n = oct_model_groups(spec, c->kv_dtype, groups);
  double bytes = 0;
  for (guint i = 0; i < N; i++) {
    guint32 pages = (prompt_tokens(i) + c->block_size - 1) / c->block_size;
    for (guint g = 0; g < n; g++) {
      /* Latent pages are whole on every rank. */
      double ranks = groups[g].kind == OCT_ATTENTION_MLA ? p->tensor[1] : 1;
      bytes += groups[g].kind == OCT_ATTENTION_KDA
                   ? (double)groups[g].state_bytes
                   : ranks * pages * c->block_size * (double)groups[g].token_bytes;
    }
  }
  return bytes;
}

static void
check(pools *p, const oct_model_spec *spec) {
  guint64 prompts = 0;
  gint64 wait_ns = 0;
  double bytes = p->recompute ? 0 : pulled_bytes(p, spec);
  for (guint i = 0; i < N; i++) {
    const rig_request *d = g_ptr_array_index(p->decodes, i);
    g_assert_cmpuint(d->record.output_tokens, ==, 30);
    g_assert_cmpuint(d->record.recomputed_tokens, ==, 0);
    wait_ns += d->record.first_token_ns - d->record.arrival_ns;
    prompts += prompt_tokens(i);
  }
  g_assert_cmpuint(p->r.stats[0].prompt_tokens, ==, prompts);
  g_assert_cmpuint(p->r.stats[0].exports, ==, N);
  /* Of each prompt the decode engine has computed one token: the one the prefill gave. */
  g_assert_cmpuint(p->r.stats[1].pulls, ==, p->recompute ? 0 : N);
  g_assert_cmpuint(p->r.stats[1].prompt_tokens, ==, p->recompute ? prompts + N : N);
  g_assert_cmpfloat_with_epsilon(crossed(p->r.world), bytes, 1 + bytes * 1e-6);
  for (guint e = 0; e < 2; e++)
    for (guint g = 0; g < OCT_MODEL_GROUPS_MAX; g++)
      g_assert_cmpuint(p->r.stats[e].pages_used[g], ==, 0);
  printf("# %s on %s%s: %d prompts of %u tokens on average, %.2f GB pulled, %.3f ms to a decode's "
         "first token\n",
         p->model, p->node, p->exact ? ", exact" : "", N, (guint)(prompts / N), bytes * 1e-9,
         (double)wait_ns / N * 1e-6);
}

static void
body(gpointer arg, gpointer out G_GNUC_UNUSED) {
  pools *p = arg;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) profile = oct_profile_load(p->node, NULL, NULL, &error);
  g_assert_no_error(error);
  oct_model_spec *spec = oct_model_spec_load(p->model, NULL, &error);
  g_assert_no_error(error);
  oct_simgrid_options options = OCT_SIMGRID_OPTIONS_DEFAULT;
  options.profile = profile;
  options.exact = p->exact;
  oct_world *world = oct_simgrid_world_new(&options, &error);
  g_assert_no_error(error);
  rig_init(&p->r, world);
  p->r.on_event = hand_over;
  p->r.user = p;
  p->decodes = g_ptr_array_new();
  g_ptr_array_set_size(p->decodes, N);
  add_engines(p, spec);
  add_prefills(p, spec);
  rig_run(&p->r);
  g_assert_cmpstr(p->r.failure, ==, NULL);
  check(p, spec);
  rig_clear(&p->r);
  oct_model_spec_free(spec);
  g_ptr_array_unref(p->decodes);
}

static void
test_pools(gconstpointer data) {
  for (int mode = 0; mode < 3; mode++) {
    pools p = *(const pools *)data;
    p.exact = mode == 1;
    p.recompute = mode == 2; /* for comparison: nothing is pulled */
    child_run(body, &p, NULL, 0);
  }
}

int
main(int argc, char **argv) {
  static const pools dense = {"llama-3.1-70b", "h200-hgx8", {4, 4}, .exact = FALSE};
  static const pools hybrid = {"kimi-linear-48b-a3b", "b300-hgx8", {2, 4}, .exact = FALSE};
  g_test_init(&argc, &argv, NULL);
  g_test_add_data_func("/simgrid/pools/decode-computes-one-prompt-token/pages", &dense, test_pools);
  g_test_add_data_func("/simgrid/pools/decode-computes-one-prompt-token/state-and-other-layout",
                       &hybrid, test_pools);
  return g_test_run();
}
