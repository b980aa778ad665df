/* Placement on the nodes of all profiles, for all models of the zoo and many layouts. */
#include <string.h>

#include "engine/sched/engine.h"
#include "engine/sched/ledger.h"
#include "engine/sched/placement.h"
#include "sim/profile.h"

static oct_profile *
load_profile(const char *name) {
  g_autoptr(GError) error = NULL;
  oct_profile *profile = oct_profile_load(name, NULL, NULL, &error);
  g_assert_no_error(error);
  return profile;
}

static oct_model_spec *
load_model(const char *name) {
  g_autoptr(GError) error = NULL;
  oct_model_spec *spec = oct_model_spec_load(name, NULL, &error);
  g_assert_no_error(error);
  return spec;
}

static oct_node_shape
shape_of(const oct_profile *p) {
  oct_node_shape node = {.n_devices = p->gpu.count, .memory_bytes = (guint64)p->gpu.hbm_bytes};
  for (guint32 d = 0; d < node.n_devices; d++) {
    node.socket[d] = p->topology.gpu_socket[d];
    node.pcie_switch[d] = p->topology.gpu_switch[d];
    node.nvlink_group[d] = (guint8)d;
    if (p->nvlink.topology == OCT_NVLINK_SWITCH)
      node.nvlink_group[d] = 0;
    else if (p->nvlink.topology == OCT_NVLINK_PAIRS)
      node.nvlink_group[d] = (guint8)MIN(d, p->nvlink.gpu_pair[d]);
  }
  return node;
}

static oct_parallel
layout(guint32 tensor, guint32 pipeline, guint32 data) {
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = tensor;
  p.pipeline = pipeline;
  p.data = data;
  return p;
}

/* Devices of one island: NVLink group, socket. */
static guint32
count_free(const oct_node_shape *node, const gboolean *used, guint32 like, gboolean by_socket) {
  guint32 n = 0;
  for (guint32 d = 0; d < node->n_devices; d++)
    n += !used[d] && node->nvlink_group[d] == node->nvlink_group[like] &&
         (!by_socket || node->socket[d] == node->socket[like]);
  return n;
}

/* No tensor-parallel group is split although, when its turn came, an island could have held it. */
static void
check_groups(const oct_node_shape *node, const oct_parallel *p, const guint16 *devices,
             gboolean warned) {
  gboolean used[OCT_NODE_DEVICES_MAX] = {FALSE}, any_split = FALSE;
  for (guint32 g = 0; g < p->pipeline * p->data; g++) {
    const guint16 *group = devices + (gsize)g * p->tensor;
    gboolean split_links = FALSE, split_sockets = FALSE, fits_links = FALSE, fits_sockets = FALSE;
    for (guint32 d = 0; d < node->n_devices; d++) {
      fits_links |= !used[d] && count_free(node, used, d, FALSE) >= p->tensor;
      fits_sockets |= !used[d] && count_free(node, used, d, TRUE) >= p->tensor;
    }
    for (guint32 t = 0; t < p->tensor; t++) {
      split_links |= node->nvlink_group[group[t]] != node->nvlink_group[group[0]];
      split_sockets |= node->socket[group[t]] != node->socket[group[0]];
    }
    g_assert_false(split_links && fits_links);
    g_assert_false(split_sockets && fits_sockets);
    any_split |= split_links;
    for (guint32 t = 0; t < p->tensor; t++) {
      g_assert_cmpuint(group[t], <, node->n_devices);
      g_assert_false(used[group[t]]); /* a device has one rank */
      used[group[t]] = TRUE;
    }
  }
  g_assert_true(!any_split || warned);
}

static void
check_one(const oct_model_spec *spec, const oct_node_shape *node, const oct_parallel *p,
          guint *n_placed, guint *n_refused) {
  guint16 devices[OCT_NODE_DEVICES_MAX], again[OCT_NODE_DEVICES_MAX];
  g_autoptr(GError) error = NULL, why = NULL;
  g_autofree char *warning = NULL;
  gboolean legal = oct_parallel_check(spec, p, &why);
  if (!oct_place(spec, p, node, devices, &warning, &error)) {
    g_assert_nonnull(error);
    g_assert_null(warning);
    if (legal)
      g_assert_cmpuint(oct_parallel_world(p), >, node->n_devices);
    else
      g_assert_cmpstr(error->message, ==, why->message);
    (*n_refused)++;
    return;
  }
  g_assert_true(legal);
  g_assert_cmpuint(oct_parallel_world(p), <=, node->n_devices);
  check_groups(node, p, devices, warning != NULL);
  g_assert_true(oct_place(spec, p, node, again, NULL, &error));
  g_assert_cmpmem(devices, oct_parallel_world(p) * sizeof *devices, again,
                  oct_parallel_world(p) * sizeof *again);
  (*n_placed)++;
}

/* Every model x profile x layout: placed when legal and there are devices, else refused with the
 * reason; and the ledger then says whether it fits. */
static void
test_all(void) {
  static const guint32 sizes[] = {1, 2, 3, 4, 6, 8};
  g_auto(GStrv) models = oct_model_zoo_names(NULL), profiles = oct_profile_list(NULL);
  guint n_placed = 0, n_refused = 0, n_fit = 0;
  g_assert_cmpuint(g_strv_length(models), >=, 13);
  g_assert_cmpuint(g_strv_length(profiles), >=, 7);
  for (guint i = 0; profiles[i] != NULL; i++) {
    g_autoptr(oct_profile) profile = load_profile(profiles[i]);
    oct_node_shape node = shape_of(profile);
    for (guint m = 0; models[m] != NULL; m++) {
      g_autoptr(oct_model_spec) spec = load_model(models[m]);
      for (guint t = 0; t < G_N_ELEMENTS(sizes); t++)
        for (guint s = 0; s < G_N_ELEMENTS(sizes); s++)
          for (guint d = 0; d < G_N_ELEMENTS(sizes); d++)
            for (int ep = 0; ep < 2; ep++) {
              oct_parallel p = layout(sizes[t], sizes[s], sizes[d]);
              p.expert_parallel = ep == 1;
              guint before = n_placed;
              check_one(spec, &node, &p, &n_placed, &n_refused);
              oct_ledger_config c;
              oct_ledger ledger;
              oct_ledger_config_default(&c);
              c.spec = spec;
              c.parallel = p;
              c.device_bytes = node.memory_bytes;
              if (n_placed > before)
                n_fit += oct_ledger_make(&c, &ledger, NULL);
            }
    }
  }
  g_test_message("%u layouts placed, %u of them fit, %u refused", n_placed, n_fit, n_refused);
  g_assert_cmpuint(n_fit, >, 500);
  g_assert_cmpuint(n_placed, >, n_fit);
  g_assert_cmpuint(n_refused, >, 1000);
}

static void
assert_devices(const oct_node_shape *node, const oct_model_spec *spec, const oct_parallel *p,
               const char *expected, const char *warned) {
  guint16 devices[OCT_NODE_DEVICES_MAX];
  g_autoptr(GError) error = NULL;
  g_autofree char *warning = NULL;
  gboolean placed = oct_place(spec, p, node, devices, &warning, &error);
  g_assert_no_error(error);
  g_assert_true(placed);
  GString *text = g_string_new(NULL);
  for (guint32 r = 0; r < oct_parallel_world(p); r++)
    g_string_append_printf(text, "%s%u", r > 0 ? " " : "", devices[r]);
  g_assert_cmpstr(text->str, ==, expected);
  g_string_free(text, TRUE);
  if (warned == NULL)
    g_assert_null(warning);
  else if (warning == NULL || strstr(warning, warned) == NULL)
    g_error("no \"%s\" in \"%s\"", warned, warning != NULL ? warning : "");
}

static void
test_b300(void) {
  g_autoptr(oct_profile) profile = load_profile("b300-hgx8");
  g_autoptr(oct_model_spec) k3 = load_model("kimi-k3");
  oct_node_shape node = shape_of(profile);
  oct_parallel p = layout(8, 1, 1);
  assert_devices(&node, k3, &p, "0 1 2 3 4 5 6 7", NULL);
  /* A stage per socket. */
  p = layout(4, 2, 1);
  assert_devices(&node, k3, &p, "0 1 2 3 4 5 6 7", NULL);
  /* Three on each socket, rather than a group over both; 3 and 6 divide no latent. */
  p = layout(3, 2, 1);
  p.shard_latent = FALSE;
  assert_devices(&node, k3, &p, "0 1 2 4 5 6", NULL);
  /* The tightest island first: with two devices of socket 0 gone, a pair takes the other two. */
  node.taken[0] = node.taken[2] = TRUE;
  p = layout(2, 1, 1);
  assert_devices(&node, k3, &p, "1 3", NULL);
  p = layout(4, 1, 1);
  assert_devices(&node, k3, &p, "4 5 6 7", NULL);
  p = layout(6, 1, 1);
  p.shard_latent = FALSE;
  assert_devices(&node, k3, &p, "1 3 4 5 6 7", NULL);
  g_autoptr(GError) error = NULL;
  guint16 devices[OCT_NODE_DEVICES_MAX];
  p = layout(8, 1, 1);
  g_assert_false(oct_place(k3, &p, &node, devices, NULL, &error));
  g_assert_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG);
  g_assert_nonnull(strstr(error->message, "8 devices are needed; the node has 8, of which 6"));
}

static void
test_pairs(void) {
  g_autoptr(oct_profile) profile = load_profile("pairs-4rc");
  g_autoptr(oct_model_spec) k3 = load_model("kimi-k3");
  oct_node_shape node = shape_of(profile);
  for (guint32 d = 0; d < 8; d++) /* the profile has pairs of neighbours */
    g_assert_cmpuint(node.nvlink_group[d], ==, d & ~1u);
  oct_parallel p = layout(2, 4, 1);
  assert_devices(&node, k3, &p, "0 1 2 3 4 5 6 7", NULL);
  /* A pair is not broken while another device is alone. */
  node.taken[2] = TRUE;
  p = layout(1, 1, 1);
  assert_devices(&node, k3, &p, "3", NULL);
  p = layout(2, 1, 1);
  assert_devices(&node, k3, &p, "0 1", NULL);
  node.taken[2] = FALSE;
  p = layout(4, 2, 1);
  assert_devices(&node, k3, &p, "0 1 2 3 4 5 6 7", "tensor parallel size 4 spans 2 NVLink groups");
  p = layout(2, 1, 4);
  p.expert_parallel = TRUE;
  assert_devices(&node, k3, &p, "0 1 2 3 4 5 6 7", "over 8 ranks spans 4 NVLink groups");
}

static void
test_refusals(void) {
  static const struct {
    guint32 tensor, pipeline, data, dcp;
    gboolean ep;
    const char *model, *reason;
  } cases[] = {
      {5, 1, 1, 1, FALSE, "kimi-k3", "does not divide the 96 attention heads"},
      {1, 16, 1, 1, FALSE, "smollm2-135m", "16 devices are needed"},
      {8, 1, 1, 1, FALSE, "smollm2-135m", "does not divide the 9 attention heads"},
      {6, 1, 1, 1, FALSE, "kimi-k3", "does not divide the latent of 3584"},
      {1, 1, 3, 1, TRUE, "kimi-k3", "does not divide the 896 experts"},
      {1, 1, 1, 1, TRUE, "llama-3.1-8b", "has no experts"},
      {8, 1, 1, 3, FALSE, "kimi-k3", "decode context parallel size 3"},
      {16, 1, 1, 1, FALSE, "kimi-k3", "16 devices are needed; the node has 8"},
  };
  g_autoptr(oct_profile) profile = load_profile("b300-hgx8");
  oct_node_shape node = shape_of(profile);
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_model_spec) spec = load_model(cases[i].model);
    g_autoptr(GError) error = NULL;
    guint16 devices[OCT_NODE_DEVICES_MAX];
    oct_parallel p = layout(cases[i].tensor, cases[i].pipeline, cases[i].data);
    p.decode_context = cases[i].dcp;
    p.expert_parallel = cases[i].ep;
    g_assert_false(oct_place(spec, &p, &node, devices, NULL, &error));
    if (strstr(error->message, cases[i].reason) == NULL)
      g_error("no \"%s\" in \"%s\"", cases[i].reason, error->message);
  }
  g_autoptr(oct_model_spec) spec = load_model("llama-3.1-8b");
  g_autoptr(GError) error = NULL;
  guint16 device;
  oct_parallel p = layout(1, 1, 1);
  node.n_devices = 0;
  g_assert_false(oct_place(spec, &p, &node, &device, NULL, &error));
  g_assert_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sched/placement/places-what-is-legal-on-every-profile", test_all);
  g_test_add_func("/sched/placement/keeps-to-a-socket-of-b300", test_b300);
  g_test_add_func("/sched/placement/keeps-to-nvlink-pairs-and-warns-beyond", test_pairs);
  g_test_add_func("/sched/placement/refuses-with-the-reason", test_refusals);
  return g_test_run();
}
