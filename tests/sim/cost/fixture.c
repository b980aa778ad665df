#include "tests/sim/cost/fixture.h"

#include <string.h>

void
rig_load(rig *r, const char *model, const char *node) {
  g_autoptr(GError) error = NULL;
  *r = (rig){.parallel = OCT_PARALLEL_DEFAULT, .options = OCT_COST_OPTIONS_DEFAULT};
  r->spec = oct_model_spec_load(model, NULL, &error);
  g_assert_no_error(error);
  r->profile = oct_profile_load(node, NULL, NULL, &error);
  g_assert_no_error(error);
}

void
rig_make(rig *r) {
  g_autoptr(GError) error = NULL;
  g_clear_pointer(&r->cost, oct_cost_free);
  r->cost = oct_cost_new(r->spec, &r->parallel, NULL, r->profile, &r->options, &error);
  g_assert_no_error(error);
}

void
rig_init(rig *r, const char *model, const char *node, guint32 tensor) {
  rig_load(r, model, node);
  r->parallel.tensor = tensor;
  rig_make(r);
}

void
rig_clear(rig *r) {
  g_clear_pointer(&r->cost, oct_cost_free);
  g_clear_pointer(&r->profile, oct_profile_free);
  g_clear_pointer(&r->spec, oct_model_spec_free);
}

static void
add(oct_domain_shape *domain, guint32 tokens, guint32 position, guint8 flags, oct_sample sample,
    guint32 window) {
  oct_slice slice = {.n_tokens = tokens, .flags = flags, .sample = (guint8)sample};
  oct_domain_shape_add(domain, &slice, position, window);
}

void
shape_decode(oct_step_shape *shape, guint32 batch, guint32 context, guint32 window) {
  memset(shape, 0, sizeof *shape);
  shape->n_domains = 1;
  for (guint32 i = 0; i < batch; i++)
    add(&shape->domains[0], 1, context - 1, 0, OCT_SAMPLE_LAST, window);
}

void
shape_prefill(oct_step_shape *shape, guint32 n, guint32 tokens, guint32 position, guint32 window) {
  memset(shape, 0, sizeof *shape);
  shape->n_domains = 1;
  for (guint32 i = 0; i < n; i++)
    add(&shape->domains[0], tokens, position, OCT_SLICE_PREFILL, OCT_SAMPLE_LAST, window);
}

void
shape_random(oct_step_shape *shape, oct_rng *rng, guint32 domains, guint32 window) {
  memset(shape, 0, sizeof *shape);
  shape->n_domains = domains;
  for (guint32 d = 0; d < domains; d++) {
    oct_domain_shape *domain = &shape->domains[d];
    guint32 decodes = (guint32)(oct_rng_below(rng, 3) == 0 ? 0 : oct_rng_below(rng, 400));
    guint32 chunks = (guint32)(oct_rng_below(rng, 2) == 0 ? 0 : oct_rng_below(rng, 6));
    guint32 verify = oct_rng_below(rng, 4) == 0 ? 1 + (guint32)oct_rng_below(rng, 8) : 1;
    for (guint32 i = 0; i < decodes; i++)
      add(domain, verify, (guint32)oct_rng_below(rng, 60000), verify > 1 ? OCT_SLICE_VERIFY : 0,
          verify > 1 ? OCT_SAMPLE_ALL : OCT_SAMPLE_LAST, window);
    for (guint32 i = 0; i < chunks; i++)
      add(domain, 1 + (guint32)oct_rng_below(rng, 4096), (guint32)oct_rng_below(rng, 30000),
          OCT_SLICE_PREFILL, oct_rng_below(rng, 2) == 0 ? OCT_SAMPLE_NONE : OCT_SAMPLE_LAST,
          window);
  }
}

gint64
step_ns(const rig *r, const oct_step_shape *shape) {
  oct_step_price price;
  oct_cost_step(r->cost, shape, &price);
  gint64 ns = 0;
  for (guint32 s = 0; s < price.n_stages; s++)
    ns += price.stages[s].ns + price.stages[s].send_ns;
  return ns;
}

char *
shared_or_skip(const char *path) {
  const char *root = g_getenv("OCT_SHARED"), *tests = g_getenv("G_TEST_SRCDIR");
  g_autofree char *beside =
      g_build_filename(tests != NULL ? tests : ".", "..", "..", "shared", NULL);
  g_autofree char *full = g_build_filename(root != NULL ? root : beside, path, NULL);
  if (g_file_test(full, G_FILE_TEST_IS_REGULAR))
    return g_steal_pointer(&full);
  g_autofree char *why = g_strdup_printf("no %s: set OCT_SHARED to the folder of recordings", path);
  g_test_skip(why);
  return NULL;
}
