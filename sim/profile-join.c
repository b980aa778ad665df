/* Several equal nodes as one profile: what NICs join. */
#include "sim/profile.h"

static void
repeat(guint8 *list, guint32 n, guint32 times, guint32 step) {
  for (guint32 k = 1; k < times; k++)
    for (guint32 i = 0; i < n; i++)
      list[k * n + i] = (guint8)(list[i] + k * step);
}

gboolean
oct_profile_join(oct_profile *p, guint32 n_nodes, double nic_latency_s, GError **error) {
  oct_profile_topology *t = &p->topology;
  const guint32 gpus = p->gpu.count, switches = t->n_switches;
  p->n_nodes = MAX(1, n_nodes);
  if (n_nodes <= 1)
    return TRUE;
  if (!(p->pcie.nic_bytes_per_s_per_gpu > 0)) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                "profile %s: %u nodes, but its GPUs have no NIC (nic_bytes_per_s_per_gpu)", p->name,
                n_nodes);
    return FALSE;
  }
  if (n_nodes > OCT_PROFILE_GPUS_MAX / gpus || n_nodes > OCT_PROFILE_GPUS_MAX / switches) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                "profile %s: %u nodes of %u GPUs and %u PCIe switches, limit %d of each", p->name,
                n_nodes, gpus, switches, OCT_PROFILE_GPUS_MAX);
    return FALSE;
  }
  repeat(t->gpu_socket, gpus, n_nodes, t->n_sockets);
  repeat(t->gpu_numa_node, gpus, n_nodes, 0);
  repeat(t->gpu_switch, gpus, n_nodes, switches);
  repeat(t->gpu_root_complex, gpus, n_nodes, t->n_root_complexes);
  repeat(t->switch_socket, switches, n_nodes, t->n_sockets);
  repeat(t->switch_root_complex, switches, n_nodes, t->n_root_complexes);
  repeat(p->nvlink.gpu_pair, gpus, n_nodes, gpus);
  t->n_sockets *= n_nodes;
  t->n_switches *= n_nodes;
  t->n_root_complexes *= n_nodes;
  p->gpu.count *= n_nodes;
  p->host.sockets *= n_nodes;
  p->host.memory_bytes *= n_nodes;
  p->pcie.host_link_aggregate_bytes_per_s *= n_nodes;
  p->thermal.node_power_w *= n_nodes;
  p->nic_latency_s = nic_latency_s;
  return TRUE;
}
