/* From options to what can run: layout, memory, placement, defaults, and what the profile assumes.
 */
#include "sim/replay/setup.h"

#include <string.h>

#include <glib/gstdio.h>

#include "sim/replay/replay.h"
#include "sim/replay/residency.h"

static void
options_for(oct_setup_options *o, const char *model, const char *node) {
  oct_setup_options_default(o);
  o->model = model;
  o->node = node;
}

static void
make(oct_setup *s, const oct_setup_options *o) {
  g_autoptr(GError) error = NULL;
  gboolean good = oct_setup_make(o, s, &error);
  g_assert_no_error(error);
  g_assert_true(good);
}

static void
test_layout(void) {
  oct_setup_options o;
  oct_setup s;
  options_for(&o, "kimi-k3", "b300-hgx8");
  make(&s, &o);
  g_assert_cmpuint(s.engine.instance.parallel.tensor, ==, 8);
  g_assert_cmpuint(s.engine.max_num_seqs, ==, 256);
  g_assert_cmpuint(s.engine.max_num_batched_tokens, ==, 8192);
  g_assert_false(s.engine.prefix_caching); /* recurrent state */
  g_assert_cmpuint(s.engine.instance.memory.n_groups, ==, 2);
  g_assert_cmpint(s.engine.submit_lead_ns, ==, 300000);
  for (int i = 0; i < 8; i++)
    g_assert_cmpuint(s.devices[i], ==, i);
  oct_setup_clear(&s);
  options_for(&o, "llama-3.1-8b", "h200-hgx8");
  o.n_replicas = 2;
  o.engine.instance.parallel.pipeline = 2;
  make(&s, &o);
  g_assert_cmpuint(s.engine.instance.parallel.tensor, ==, 2);
  g_assert_true(s.engine.prefix_caching);
  guint used = 0;
  for (int i = 0; i < 8; i++)
    used |= 1u << s.devices[i];
  g_assert_cmpuint(used, ==, 0xff); /* each device once */
  oct_setup_clear(&s);
  options_for(&o, "llama-3.1-8b", "h200x1");
  make(&s, &o);
  g_assert_cmpuint(s.engine.instance.parallel.tensor, ==, 1);
  oct_setup_clear(&s);
}

/* Without a profile: GPUs of so many bytes, as a driver tells them. */
static void
test_device_bytes(void) {
  oct_setup_options o;
  oct_setup known, told;
  options_for(&o, "llama-3.1-8b", "h200x1");
  o.backend = OCT_REPLAY_MOCK;
  make(&known, &o);
  o.node = NULL;
  o.device_bytes = (guint64)known.profile->gpu.hbm_bytes;
  make(&told, &o);
  g_assert_true(told.has_ledger);
  g_assert_cmpuint(told.engine.max_num_seqs, ==, 256);
  g_assert_cmpuint(told.engine.instance.memory.groups[0].n_device, ==,
                   known.engine.instance.memory.groups[0].n_device);
  oct_setup_clear(&told);
  oct_setup_clear(&known);
}

static void
test_context(void) {
  oct_setup_options o;
  oct_setup s;
  options_for(&o, "llama-3.1-8b", "h200x1");
  o.num_gpu_blocks_override = 500;
  make(&s, &o);
  g_assert_cmpuint(s.engine.instance.memory.groups[0].n_device, ==, 500);
  g_assert_cmpuint(s.engine.max_model_len, ==, 8000); /* what the cache holds */
  oct_setup_clear(&s);
  o.num_gpu_blocks_override = 0;
  make(&s, &o);
  g_assert_cmpuint(s.engine.max_model_len, ==, 131072); /* what the model allows */
  oct_setup_clear(&s);
}

static void
test_swap_space(void) {
  oct_setup_options o;
  oct_setup s;
  options_for(&o, "llama-3.1-8b", "h200-hgx8");
  o.swap_space_bytes = G_GUINT64_CONSTANT(2) << 30;
  make(&s, &o);
  g_assert_cmpuint(s.options.kv_offloading_bytes, ==, G_GUINT64_CONSTANT(16) << 30);
  g_assert_cmpuint(s.warnings->len, ==, 1);
  g_assert_cmpuint(s.engine.instance.memory.groups[0].n_host, >, 0);
  oct_setup_clear(&s);
}

static void
refused(const oct_setup_options *o, const char *part) {
  oct_setup s;
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_setup_make(o, &s, &error));
  g_assert_nonnull(error);
  if (strstr(error->message, part) == NULL)
    g_error("\"%s\" does not say \"%s\"", error->message, part);
}

static void
test_refuses(void) {
  oct_setup_options o;
  options_for(&o, "kimi-k3", "h100-hgx8");
  refused(&o, "GB");
  options_for(&o, "kimi-k3", "b300-hgx8");
  o.engine.instance.parallel.tensor = 7;
  refused(&o, "96 attention heads");
  options_for(&o, "llama-3.1-8b", "h200-hgx8");
  o.n_replicas = 3;
  o.engine.instance.parallel.tensor = 4;
  refused(&o, "replica 3 of 3");
  options_for(&o, "llama-3.1-8b", NULL);
  refused(&o, "which machine");
  options_for(&o, "llama-3.1-8b", "h200-hgx8");
  o.preset = "nobody";
  refused(&o, "nobody");
  options_for(&o, "llama-3.1-8b", "h200-hgx8");
  o.expert_cache_bytes = 1 << 30;
  refused(&o, "no routed experts");
}

static gboolean
has_key(const GPtrArray *keys, const char *key) {
  for (guint i = 0; i < keys->len; i++)
    if (strcmp(keys->pdata[i], key) == 0)
      return TRUE;
  return FALSE;
}

static void
test_assumed(void) {
  g_autofree char *folder = g_dir_make_tmp("octet-setup-XXXXXX", NULL);
  g_autofree char *base = g_build_filename(folder, "low.ini", NULL);
  g_autofree char *top = g_build_filename(folder, "high.ini", NULL);
  g_assert_true(g_file_set_contents(base,
                                    "[a]\n# assumed: nobody knows\n# (really)\nx=1\ny=2\n"
                                    "# measured; z is assumed too\nz=3\n# assumed\nw=4\n",
                                    -1, NULL));
  g_assert_true(g_file_set_contents(top,
                                    "[profile]\nbase=low\n[a]\n# measured here\nx=5\n"
                                    "[b]\n#assumed\nx=1\n",
                                    -1, NULL));
  g_autoptr(GPtrArray) keys = oct_profile_assumed_keys(top);
  g_assert_cmpuint(keys->len, ==, 2);
  g_assert_true(has_key(keys, "a/w"));
  g_assert_true(has_key(keys, "b/x")); /* and a/x is measured in the file that counts */
  g_autoptr(GPtrArray) low = oct_profile_assumed_keys(base);
  g_assert_cmpuint(low->len, ==, 2);
  g_assert_true(has_key(low, "a/x"));
  g_remove(base);
  g_remove(top);
  g_rmdir(folder);
}

static void
read_histogram(const oct_model_spec *spec, const char *text, const char *part) {
  g_autofree char *path = NULL;
  g_autoptr(GError) error = NULL;
  int fd = g_file_open_tmp("octet-hist-XXXXXX", &path, NULL);
  g_close(fd, NULL);
  g_assert_true(g_file_set_contents(path, text, -1, NULL));
  g_autofree double *histogram = oct_residency_read(path, spec, &error);
  g_remove(path);
  if (part == NULL) {
    g_assert_no_error(error);
    g_assert_cmpfloat(histogram[0], ==, 0); /* the first layer is dense */
    g_assert_cmpfloat(histogram[spec->ffn[1].n_experts], ==, 3);
    g_assert_cmpfloat(histogram[spec->ffn[1].n_experts + 1], ==, 0.5);
    return;
  }
  g_assert_null(histogram);
  if (strstr(error->message, part) == NULL)
    g_error("\"%s\" does not say \"%s\"", error->message, part);
}

static void
test_histogram(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_model_spec) spec = oct_model_spec_load("kimi-linear-48b-a3b", NULL, &error);
  g_assert_no_error(error);
  guint32 n = spec->ffn[spec->layers[1].ffn].n_experts;
  g_autoptr(GString) line = g_string_new("3, 0.5");
  for (guint32 i = 2; i < n; i++)
    g_string_append(line, " 1");
  g_autoptr(GString) text = g_string_new("# recorded\n\n"); /* layer 0 has none */
  for (guint32 l = 1; l < spec->n_layers; l++)
    g_string_append_printf(text, "%s\n", line->str);
  read_histogram(spec, text->str, NULL);
  g_autofree char *long_text = g_strdup_printf("%s%s\n", text->str, line->str);
  read_histogram(spec, long_text, "more lines than");
  g_autofree char *wide = g_strdup_printf("\n%s 7\n", line->str);
  read_histogram(spec, wide, "more than the layer's");
  read_histogram(spec, "\n1 2 3\n", "3 values for");
  read_histogram(spec, "\n1 -2\n", ":2: \"-2\"");
  read_histogram(spec, "\n1 nan\n", "\"nan\"");
  read_histogram(spec, "\n", "fewer lines");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/replay/setup/layout-follows-the-node-and-the-model", test_layout);
  g_test_add_func("/replay/setup/memory-may-be-told-without-a-profile", test_device_bytes);
  g_test_add_func("/replay/setup/context-is-what-model-and-cache-allow", test_context);
  g_test_add_func("/replay/setup/swap-space-is-the-host-tier-per-gpu", test_swap_space);
  g_test_add_func("/replay/setup/refuses-with-the-reason", test_refuses);
  g_test_add_func("/replay/setup/finds-what-a-profile-assumes", test_assumed);
  g_test_add_func("/replay/setup/reads-recorded-popularity", test_histogram);
  return g_test_run();
}
