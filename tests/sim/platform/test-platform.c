/* Resources and routes of a node, and SimGrid's file of every profile. */
#include <string.h>

#include "sim/platform/platform.h"

static oct_platform *
load(const char *name, oct_profile **profile) {
  g_autoptr(GError) error = NULL;
  *profile = oct_profile_load(name, NULL, NULL, &error);
  g_assert_no_error(error);
  oct_platform *platform = oct_platform_new(*profile, &error);
  g_assert_no_error(error);
  return platform;
}

/* Compares with the golden file, or rewrites it when OCT_GOLDEN is set. */
static void
compare(const char *name, const char *text) {
  g_autofree char *file = g_strdup_printf("%s.xml", name);
  g_autofree char *path = g_test_build_filename(G_TEST_DIST, "golden", "platform", file, NULL);
  g_autofree char *wanted = NULL;
  if (g_getenv("OCT_GOLDEN") != NULL)
    g_assert_true(g_file_set_contents(path, text, -1, NULL));
  g_assert_true(g_file_get_contents(path, &wanted, NULL, NULL));
  g_auto(GStrv) a = g_strsplit(wanted, "\n", -1), b = g_strsplit(text, "\n", -1);
  for (guint i = 0; a[i] != NULL && b[i] != NULL; i++)
    g_assert_cmpstr(a[i], ==, b[i]);
  g_assert_cmpstr(wanted, ==, text);
}

static void
test_golden(void) {
  g_auto(GStrv) names = oct_profile_list(NULL);
  g_assert_cmpuint(g_strv_length(names), >=, 7);
  for (guint i = 0; names[i] != NULL; i++) {
    g_autoptr(oct_profile) profile = NULL;
    g_autoptr(oct_platform) platform = load(names[i], &profile);
    g_autofree char *xml = oct_platform_xml(platform, 2);
    compare(names[i], xml);
  }
}

static gboolean
crosses(const oct_platform *platform, guint route, const char *resource) {
  const oct_route *r = oct_platform_route(platform, route);
  gint index = oct_platform_find(platform, resource);
  g_assert_cmpint(index, >=, 0);
  for (guint i = 0; i < r->n; i++) {
    if (r->resources[i] == index)
      return TRUE;
  }
  return FALSE;
}

static double
capacity(const oct_platform *platform, const char *resource) {
  gint index = oct_platform_find(platform, resource);
  g_assert_cmpint(index, >=, 0);
  return oct_platform_resource(platform, (guint)index)->per_s;
}

static void
test_switched(void) {
  g_autoptr(oct_profile) profile = NULL;
  g_autoptr(oct_platform) p = load("b300-hgx8", &profile);
  g_assert_true(oct_platform_switched(p));
  guint peer = oct_platform_route_peer(p, 1, 6);
  g_assert_cmpuint(oct_platform_route(p, peer)->n, ==, 2);
  g_assert_true(crosses(p, peer, "gpu1-nv-up"));
  g_assert_true(crosses(p, peer, "gpu6-nv-down"));
  g_assert_cmpfloat(oct_platform_route(p, peer)->bytes_per_s, ==,
                    profile->nvlink.achieved_bytes_per_s);
  g_assert_cmpint(oct_platform_find(p, "nvswitch"), ==, -1);
}

static void
test_host_routes(void) {
  g_autoptr(oct_profile) profile = NULL;
  g_autoptr(oct_platform) p = load("b300-hgx8", &profile);
  guint near = oct_platform_route_h2d(p, 0, 2), far = oct_platform_route_h2d(p, 1, 2);
  static const char *const down[] = {"gpu2-pcie-down", "gpu2-pcie-duplex", "gpu2-hbm",
                                     "switch2-down"};
  for (guint i = 0; i < G_N_ELEMENTS(down); i++) {
    g_assert_true(crosses(p, near, down[i]));
    g_assert_true(crosses(p, far, down[i]));
  }
  g_assert_true(crosses(p, near, "dram0"));
  g_assert_false(crosses(p, near, "socket1-to-0"));
  g_assert_true(crosses(p, far, "dram1"));
  g_assert_true(crosses(p, far, "socket1-to-0"));
  g_assert_false(crosses(p, far, "socket0-to-1"));
  guint up = oct_platform_route_d2h(p, 5, 0);
  g_assert_true(crosses(p, up, "gpu5-pcie-up"));
  g_assert_true(crosses(p, up, "socket1-to-0"));
  g_assert_false(crosses(p, up, "gpu5-pcie-down"));
  g_assert_cmpfloat(oct_platform_route(p, up)->bytes_per_s, ==, profile->pcie.d2h_bytes_per_s);
  g_assert_cmpint(oct_platform_route(p, up)->latency_ns, ==, 3700); /* copy + socket */
}

static void
test_pairs(void) {
  g_autoptr(oct_profile) profile = NULL;
  g_autoptr(oct_platform) p = load("pairs-4rc", &profile);
  g_assert_false(oct_platform_switched(p));
  guint pair = oct_platform_route_peer(p, 4, 5), cross = oct_platform_route_peer(p, 1, 2),
        far = oct_platform_route_peer(p, 3, 4);
  g_assert_true(crosses(p, pair, "gpu4-nv-up"));
  g_assert_false(crosses(p, cross, "gpu1-nv-up"));
  g_assert_true(crosses(p, cross, "switch0-up"));
  g_assert_true(crosses(p, cross, "root1-down"));
  g_assert_true(crosses(p, cross, "gpu2-pcie-down"));
  g_assert_false(crosses(p, cross, "socket0-to-1"));
  g_assert_true(crosses(p, far, "socket0-to-1"));
  g_assert_cmpfloat(oct_platform_route(p, far)->bytes_per_s, ==,
                    profile->pcie.cross_socket_bytes_per_s);
  /* Two GPUs share a switch: its uplink carries one of them. */
  g_assert_true(crosses(p, oct_platform_route_h2d(p, 0, 0), "switch0-down"));
  g_assert_true(crosses(p, oct_platform_route_h2d(p, 0, 1), "switch0-down"));
  g_assert_cmpfloat(capacity(p, "switch0-down"), <, 2 * capacity(p, "gpu0-pcie-down"));
}

/* Every route begins and ends where its links are, and no transfer is promised more than its
 * narrowest link has. */
static void
test_routes_hold(void) {
  g_auto(GStrv) names = oct_profile_list(NULL);
  for (guint n = 0; names[n] != NULL; n++) {
    g_autoptr(oct_profile) profile = NULL;
    g_autoptr(oct_platform) p = load(names[n], &profile);
    for (guint i = 0; i < oct_platform_route_count(p); i++) {
      const oct_route *route = oct_platform_route(p, i);
      g_assert_cmpuint(route->n, >=, 1);
      for (guint l = 0; l < route->n; l++) {
        double per_s = oct_platform_resource(p, route->resources[l])->per_s;
        g_assert_cmpfloat(per_s, >, 0);
        g_assert_cmpfloat(route->bytes_per_s, <=, per_s);
        for (guint k = 0; k < l; k++)
          g_assert_cmpuint(route->resources[k], !=, route->resources[l]);
      }
    }
  }
}

static void
test_refuses(void) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) profile = oct_profile_load("b300-hgx8", NULL, NULL, &error);
  g_assert_no_error(error);
  profile->topology.gpu_socket[3] = 7;
  g_assert_null(oct_platform_new(profile, &error));
  g_assert_error(error, OCT_PLATFORM_ERROR, OCT_PLATFORM_ERROR_TOPOLOGY);
  g_assert_nonnull(strstr(error->message, "GPU 3 is on socket 7 of 2"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/platform/xml-of-every-profile-is-golden", test_golden);
  g_test_add_func("/platform/nvswitch-joins-all-gpus-and-has-no-link", test_switched);
  g_test_add_func("/platform/host-routes-cross-sockets-only-when-they-must", test_host_routes);
  g_test_add_func("/platform/pairs-cross-the-root-complexes-outside-a-pair", test_pairs);
  g_test_add_func("/platform/no-route-is-faster-than-its-links", test_routes_hold);
  g_test_add_func("/platform/refuses-a-gpu-on-a-socket-that-is-not-there", test_refuses);
  return g_test_run();
}
