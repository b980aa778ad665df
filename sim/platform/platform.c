/* Derives resources and routes from a profile (platform.h). All of them are made at once, because
 * SimGrid seals a platform when it is loaded: a node of 8 GPUs has 88 resources and 104 routes. */
#include "sim/platform/platform.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

GQuark
oct_platform_error_quark(void) {
  return g_quark_from_static_string("oct-platform-error");
}

/* Resources of one GPU stand together, in the order of their kinds. */
enum { GPU_RESOURCES = OCT_RESOURCE_PCIE_DUPLEX + 1 };

/* Hosts of the SimGrid platform: "kernels", where SM routes begin, then the GPUs, then the sockets'
 * memories. */
enum { HOST_KERNELS, HOST_GPU0 };

struct oct_platform {
  guint n_gpus, n_sockets, n_switches, n_roots;
  guint8 gpu_socket[OCT_PROFILE_GPUS_MAX];
  guint8 gpu_switch[OCT_PROFILE_GPUS_MAX];
  guint8 gpu_root[OCT_PROFILE_GPUS_MAX];
  gboolean switched;
  guint first_switch, first_root, first_dram, first_socket, first_nic; /* resources */
  GArray *resources;                                                   /* oct_resource */
  GArray *routes;                                                      /* oct_route */
  guint first_peer, first_h2d, first_d2h;                              /* routes */
  GPtrArray *hosts;                                                    /* char * */
};

static void add_resource(oct_platform *p, oct_resource_kind kind, guint index, guint peer,
                         double per_s, const char *format, ...) G_GNUC_PRINTF(6, 7);

static void
add_resource(oct_platform *p, oct_resource_kind kind, guint index, guint peer, double per_s,
             const char *format, ...) {
  oct_resource r = {.kind = kind, .index = (guint16)index, .peer = (guint16)peer, .per_s = per_s};
  va_list list;
  va_start(list, format);
  g_vsnprintf(r.name, sizeof r.name, format, list);
  va_end(list);
  g_array_append_val(p->resources, r);
}

static void
add_gpu_resources(oct_platform *p, const oct_profile *profile) {
  const oct_profile_nvlink *nv = &profile->nvlink;
  const oct_profile_pcie *pcie = &profile->pcie;
  /* Without NVLink no route uses these two; a link of no capacity would not load. */
  double nvlink = nv->topology == OCT_NVLINK_NONE ? 1 : nv->bytes_per_s;
  for (guint g = 0; g < p->n_gpus; g++) {
    add_resource(p, OCT_RESOURCE_SM, g, 0, OCT_PLATFORM_SM_PER_S, "gpu%u-sm", g);
    add_resource(p, OCT_RESOURCE_HBM, g, 0, profile->gpu.hbm_bytes_per_s, "gpu%u-hbm", g);
    add_resource(p, OCT_RESOURCE_NV_UP, g, 0, nvlink, "gpu%u-nv-up", g);
    add_resource(p, OCT_RESOURCE_NV_DOWN, g, 0, nvlink, "gpu%u-nv-down", g);
    add_resource(p, OCT_RESOURCE_PCIE_UP, g, 0, pcie->d2h_bytes_per_s, "gpu%u-pcie-up", g);
    add_resource(p, OCT_RESOURCE_PCIE_DOWN, g, 0, pcie->h2d_bytes_per_s, "gpu%u-pcie-down", g);
    add_resource(p, OCT_RESOURCE_PCIE_DUPLEX, g, 0, pcie->duplex_bytes_per_s, "gpu%u-pcie-duplex",
                 g);
  }
}

static void
add_host_resources(oct_platform *p, const oct_profile *profile) {
  p->first_switch = p->resources->len;
  for (guint s = 0; s < p->n_switches; s++) {
    double per_s = profile->pcie.switch_uplink_bytes_per_s;
    /* Both directions at once lose as much on the uplink as they are measured to on a GPU's port.
     */
    double duplex = profile->pcie.duplex_bytes_per_s * per_s /
                    MAX(profile->pcie.h2d_bytes_per_s, profile->pcie.d2h_bytes_per_s);
    add_resource(p, OCT_RESOURCE_SWITCH_UP, s, 0, per_s, "switch%u-up", s);
    add_resource(p, OCT_RESOURCE_SWITCH_DOWN, s, 0, per_s, "switch%u-down", s);
    add_resource(p, OCT_RESOURCE_SWITCH_DUPLEX, s, 0, duplex, "switch%u-duplex", s);
  }
  p->first_root = p->resources->len;
  for (guint r = 0; r < p->n_roots; r++) {
    guint gpus = 0;
    for (guint g = 0; g < p->n_gpus; g++)
      gpus += p->gpu_root[g] == r;
    /* The profile has the node's aggregate: each root complex has the share of its GPUs. */
    double per_s = profile->pcie.host_link_aggregate_bytes_per_s * MAX(gpus, 1) / p->n_gpus;
    add_resource(p, OCT_RESOURCE_ROOT_UP, r, 0, per_s, "root%u-up", r);
    add_resource(p, OCT_RESOURCE_ROOT_DOWN, r, 0, per_s, "root%u-down", r);
  }
  p->first_dram = p->resources->len;
  double dram = profile->host.memory_bytes_per_s_per_socket * profile->host.memory_efficiency;
  for (guint s = 0; s < p->n_sockets; s++)
    add_resource(p, OCT_RESOURCE_DRAM, s, 0, dram, "dram%u", s);
  p->first_socket = p->resources->len;
  for (guint i = 0; i < p->n_sockets; i++) {
    for (guint j = 0; j < p->n_sockets; j++) {
      if (i != j)
        add_resource(p, OCT_RESOURCE_SOCKET, i, j, profile->host.intersocket_bytes_per_s,
                     "socket%u-to-%u", i, j);
    }
  }
}

/* Nodes are joined by their NICs; a network that blocks is not modelled. */
static void
add_nics(oct_platform *p, const oct_profile *profile) {
  p->first_nic = p->resources->len;
  for (guint g = 0; g < p->n_gpus && profile->n_nodes > 1; g++) {
    double per_s = profile->pcie.nic_bytes_per_s_per_gpu;
    add_resource(p, OCT_RESOURCE_NIC_UP, g, 0, per_s, "gpu%u-nic-up", g);
    add_resource(p, OCT_RESOURCE_NIC_DOWN, g, 0, per_s, "gpu%u-nic-down", g);
  }
}

static guint
gpu_resource(guint gpu, oct_resource_kind kind) {
  return gpu * GPU_RESOURCES + (guint)kind;
}

static guint
socket_link(const oct_platform *p, guint from, guint to) {
  return p->first_socket + from * (p->n_sockets - 1) + (to < from ? to : to - 1);
}

static void
cross(oct_route *route, guint resource) {
  oct_assert(route->n < OCT_ROUTE_LINKS_MAX);
  route->resources[route->n++] = (guint16)resource;
}

/* From the GPU up to its root complex, and down again. */
static void
cross_up(const oct_platform *p, oct_route *route, guint gpu, gboolean to_root) {
  cross(route, gpu_resource(gpu, OCT_RESOURCE_PCIE_UP));
  cross(route, gpu_resource(gpu, OCT_RESOURCE_PCIE_DUPLEX));
  if (to_root) {
    cross(route, p->first_switch + 3 * p->gpu_switch[gpu]);
    cross(route, p->first_switch + 3 * p->gpu_switch[gpu] + 2);
    cross(route, p->first_root + 2 * p->gpu_root[gpu]);
  }
}

static void
cross_down(const oct_platform *p, oct_route *route, guint gpu, gboolean from_root) {
  if (from_root) {
    cross(route, p->first_root + 2 * p->gpu_root[gpu] + 1);
    cross(route, p->first_switch + 3 * p->gpu_switch[gpu] + 1);
    cross(route, p->first_switch + 3 * p->gpu_switch[gpu] + 2);
  }
  cross(route, gpu_resource(gpu, OCT_RESOURCE_PCIE_DOWN));
  cross(route, gpu_resource(gpu, OCT_RESOURCE_PCIE_DUPLEX));
}

/* Capacity of the narrowest resource of the route. */
static double
narrowest(const oct_platform *p, const oct_route *route) {
  double per_s = HUGE_VAL;
  for (guint i = 0; i < route->n; i++)
    per_s = MIN(per_s, g_array_index(p->resources, oct_resource, route->resources[i]).per_s);
  return per_s;
}

static gint64
to_ns(double seconds) {
  return (gint64)(seconds * 1e9 + 0.5);
}

/* GPU to GPU: NVLink where there is one, else PCIe peer-to-peer through switch or root complexes.
 */
static oct_route
peer_route(const oct_platform *p, const oct_profile *profile, guint from, guint to) {
  const oct_profile_nvlink *nv = &profile->nvlink;
  const oct_profile_pcie *pcie = &profile->pcie;
  oct_route route = {.from = (guint16)(HOST_GPU0 + from), .to = (guint16)(HOST_GPU0 + to)};
  if (oct_profile_node_of(profile, from) != oct_profile_node_of(profile, to)) {
    cross(&route, p->first_nic + 2 * from);
    cross(&route, p->first_nic + 2 * to + 1);
    route.bytes_per_s = pcie->nic_bytes_per_s_per_gpu;
    route.latency_ns = to_ns(profile->nic_latency_s);
    return route;
  }
  gboolean linked = nv->topology == OCT_NVLINK_SWITCH ||
                    (nv->topology == OCT_NVLINK_PAIRS && nv->gpu_pair[from] == to);
  if (linked) {
    cross(&route, gpu_resource(from, OCT_RESOURCE_NV_UP));
    cross(&route, gpu_resource(to, OCT_RESOURCE_NV_DOWN));
    route.bytes_per_s = MIN(nv->achieved_bytes_per_s, nv->bytes_per_s);
    route.latency_ns = to_ns(nv->copy_latency_s);
    return route;
  }
  guint a = p->gpu_socket[from], b = p->gpu_socket[to];
  gboolean through_root = p->gpu_switch[from] != p->gpu_switch[to];
  cross_up(p, &route, from, through_root);
  if (a != b)
    cross(&route, socket_link(p, a, b));
  cross_down(p, &route, to, through_root);
  double per_s = a != b ? pcie->cross_socket_bytes_per_s : pcie->cross_pair_bytes_per_s;
  double latency_s = a != b ? pcie->cross_socket_latency_s : pcie->cross_pair_latency_s;
  if (per_s <= 0) { /* a profile without such figures: staged through host memory */
    per_s = profile->host.staged_p2p_bytes_per_s;
    latency_s = profile->host.staged_p2p_latency_s;
  }
  route.bytes_per_s = MIN(per_s, narrowest(p, &route));
  route.latency_ns = to_ns(latency_s);
  return route;
}

static oct_route
host_route(const oct_platform *p, const oct_profile *profile, guint socket, guint gpu,
           gboolean to_gpu) {
  guint16 memory = (guint16)(HOST_GPU0 + p->n_gpus + socket), device = (guint16)(HOST_GPU0 + gpu);
  oct_route route = {.from = to_gpu ? memory : device, .to = to_gpu ? device : memory};
  guint near = p->gpu_socket[gpu];
  if (to_gpu) {
    cross(&route, p->first_dram + socket);
    if (socket != near)
      cross(&route, socket_link(p, socket, near));
    cross_down(p, &route, gpu, TRUE);
    cross(&route, gpu_resource(gpu, OCT_RESOURCE_HBM));
  } else {
    cross(&route, gpu_resource(gpu, OCT_RESOURCE_HBM));
    cross_up(p, &route, gpu, TRUE);
    if (socket != near)
      cross(&route, socket_link(p, near, socket));
    cross(&route, p->first_dram + socket);
  }
  double per_s = to_gpu ? profile->pcie.h2d_bytes_per_s : profile->pcie.d2h_bytes_per_s;
  route.bytes_per_s = MIN(per_s, narrowest(p, &route));
  route.latency_ns = to_ns(profile->pcie.copy_latency_s +
                           (socket != near ? profile->host.intersocket_latency_s : 0));
  return route;
}

static void
add_routes(oct_platform *p, const oct_profile *profile) {
  for (guint g = 0; g < p->n_gpus; g++) {
    oct_route sm = {.from = HOST_KERNELS, .to = (guint16)(HOST_GPU0 + g)};
    cross(&sm, gpu_resource(g, OCT_RESOURCE_SM));
    g_array_append_val(p->routes, sm);
    oct_route hbm = {.from = (guint16)(HOST_GPU0 + g), .to = (guint16)(HOST_GPU0 + g)};
    cross(&hbm, gpu_resource(g, OCT_RESOURCE_HBM));
    g_array_append_val(p->routes, hbm);
  }
  p->first_peer = p->routes->len;
  for (guint i = 0; i < p->n_gpus; i++) {
    for (guint j = 0; j < p->n_gpus; j++) {
      if (i == j)
        continue;
      oct_route route = peer_route(p, profile, i, j);
      g_array_append_val(p->routes, route);
    }
  }
  p->first_h2d = p->routes->len;
  for (guint pass = 0; pass < 2; pass++) {
    if (pass == 1)
      p->first_d2h = p->routes->len;
    for (guint g = 0; g < p->n_gpus; g++) {
      for (guint s = 0; s < p->n_sockets; s++) {
        oct_route route = host_route(p, profile, s, g, pass == 0);
        g_array_append_val(p->routes, route);
      }
    }
  }
}

static void
add_hosts(oct_platform *p) {
  g_ptr_array_add(p->hosts, g_strdup("kernels"));
  for (guint g = 0; g < p->n_gpus; g++)
    g_ptr_array_add(p->hosts, g_strdup_printf("gpu%u", g));
  for (guint s = 0; s < p->n_sockets; s++)
    g_ptr_array_add(p->hosts, g_strdup_printf("memory%u", s));
}

/* The profile's reader has checked ranges; here is what concerns several keys at once. */
static gboolean
check(const oct_profile *profile, GError **error) {
  const oct_profile_topology *t = &profile->topology;
  guint n = profile->gpu.count;
  if (n < 1 || n > OCT_PROFILE_GPUS_MAX || t->n_sockets < 1 ||
      t->n_sockets > OCT_PLATFORM_SOCKETS_MAX) {
    g_set_error(error, OCT_PLATFORM_ERROR, OCT_PLATFORM_ERROR_TOPOLOGY,
                "profile %s: %u GPUs on %u sockets (limits: 1 to %d and 1 to %d)", profile->name, n,
                t->n_sockets, OCT_PROFILE_GPUS_MAX, OCT_PLATFORM_SOCKETS_MAX);
    return FALSE;
  }
  for (guint g = 0; g < n; g++) {
    if (t->gpu_socket[g] >= t->n_sockets || t->gpu_switch[g] >= t->n_switches ||
        t->gpu_root_complex[g] >= t->n_root_complexes) {
      g_set_error(
          error, OCT_PLATFORM_ERROR, OCT_PLATFORM_ERROR_TOPOLOGY,
          "profile %s: GPU %u is on socket %u of %u, switch %u of %u, root complex %u of %u",
          profile->name, g, t->gpu_socket[g], t->n_sockets, t->gpu_switch[g], t->n_switches,
          t->gpu_root_complex[g], t->n_root_complexes);
      return FALSE;
    }
  }
  if (t->n_sockets > 1 && !(profile->host.intersocket_bytes_per_s > 0)) {
    g_set_error(error, OCT_PLATFORM_ERROR, OCT_PLATFORM_ERROR_TOPOLOGY,
                "profile %s: %u sockets but intersocket_bytes_per_s is %g", profile->name,
                t->n_sockets, profile->host.intersocket_bytes_per_s);
    return FALSE;
  }
  return TRUE;
}

oct_platform *
oct_platform_new(const oct_profile *profile, GError **error) {
  if (!check(profile, error))
    return NULL;
  const oct_profile_topology *t = &profile->topology;
  oct_platform *p = g_new0(oct_platform, 1);
  p->n_gpus = profile->gpu.count;
  p->n_sockets = t->n_sockets;
  p->n_switches = t->n_switches;
  p->n_roots = t->n_root_complexes;
  memcpy(p->gpu_socket, t->gpu_socket, sizeof p->gpu_socket);
  memcpy(p->gpu_switch, t->gpu_switch, sizeof p->gpu_switch);
  memcpy(p->gpu_root, t->gpu_root_complex, sizeof p->gpu_root);
  p->switched = profile->nvlink.topology == OCT_NVLINK_SWITCH;
  p->resources = g_array_new(FALSE, TRUE, sizeof(oct_resource));
  p->routes = g_array_new(FALSE, TRUE, sizeof(oct_route));
  p->hosts = g_ptr_array_new_with_free_func(g_free);
  add_gpu_resources(p, profile);
  add_host_resources(p, profile);
  add_nics(p, profile);
  add_routes(p, profile);
  add_hosts(p);
  return p;
}

void
oct_platform_free(oct_platform *platform) {
  if (platform == NULL)
    return;
  g_array_unref(platform->resources);
  g_array_unref(platform->routes);
  g_ptr_array_unref(platform->hosts);
  g_free(platform);
}

guint
oct_platform_route_sm(const oct_platform *platform, guint gpu) {
  oct_assert(gpu < platform->n_gpus);
  return 2 * gpu;
}

guint
oct_platform_route_hbm(const oct_platform *platform, guint gpu) {
  oct_assert(gpu < platform->n_gpus);
  return 2 * gpu + 1;
}

guint
oct_platform_route_peer(const oct_platform *platform, guint from, guint to) {
  oct_assert(from < platform->n_gpus && to < platform->n_gpus && from != to);
  return platform->first_peer + from * (platform->n_gpus - 1) + (to < from ? to : to - 1);
}

guint
oct_platform_route_h2d(const oct_platform *platform, guint socket, guint gpu) {
  oct_assert(gpu < platform->n_gpus && socket < platform->n_sockets);
  return platform->first_h2d + gpu * platform->n_sockets + socket;
}

guint
oct_platform_route_d2h(const oct_platform *platform, guint gpu, guint socket) {
  oct_assert(gpu < platform->n_gpus && socket < platform->n_sockets);
  return platform->first_d2h + gpu * platform->n_sockets + socket;
}

const oct_route *
oct_platform_route(const oct_platform *platform, guint route) {
  oct_assert(route < platform->routes->len);
  return &g_array_index(platform->routes, oct_route, route);
}

guint
oct_platform_route_count(const oct_platform *platform) {
  return platform->routes->len;
}

guint
oct_platform_gpus(const oct_platform *platform) {
  return platform->n_gpus;
}

guint
oct_platform_sockets(const oct_platform *platform) {
  return platform->n_sockets;
}

guint
oct_platform_gpu_socket(const oct_platform *platform, guint gpu) {
  oct_assert(gpu < platform->n_gpus);
  return platform->gpu_socket[gpu];
}

gboolean
oct_platform_switched(const oct_platform *platform) {
  return platform->switched;
}

guint
oct_platform_resource_count(const oct_platform *platform) {
  return platform->resources->len;
}

const oct_resource *
oct_platform_resource(const oct_platform *platform, guint resource) {
  oct_assert(resource < platform->resources->len);
  return &g_array_index(platform->resources, oct_resource, resource);
}

gint
oct_platform_find(const oct_platform *platform, const char *name) {
  for (guint i = 0; i < platform->resources->len; i++) {
    if (strcmp(g_array_index(platform->resources, oct_resource, i).name, name) == 0)
      return (gint)i;
  }
  return -1;
}

guint
oct_platform_host_count(const oct_platform *platform) {
  return platform->hosts->len;
}

const char *
oct_platform_host_name(const oct_platform *platform, guint host) {
  oct_assert(host < platform->hosts->len);
  return g_ptr_array_index(platform->hosts, host);
}
