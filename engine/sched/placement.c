/* Greedy, one tensor-parallel group after the other: each takes the tightest island of devices that
 * holds it whole, so that large islands stay whole for the next. Islands, best first: devices of
 * one NVLink group and socket, of one NVLink group, of one socket, all. */
#include "engine/sched/placement.h"

#include "engine/base/assert.h"
#include "engine/sched/engine.h"

typedef enum island_kind {
  ISLAND_LINKED_SOCKET, /* one NVLink group on one socket */
  ISLAND_LINKED,
  ISLAND_SOCKET,
  ISLAND_ALL,
  ISLAND_KINDS
} island_kind;

typedef struct place_state {
  const oct_node_shape *node;
  gboolean used[OCT_NODE_DEVICES_MAX];
} place_state;

static gboolean
on_island(const oct_node_shape *node, island_kind kind, guint32 a, guint32 b) {
  gboolean linked = node->nvlink_group[a] == node->nvlink_group[b];
  gboolean near = node->socket[a] == node->socket[b];
  switch (kind) {
  case ISLAND_LINKED_SOCKET:
    return linked && near;
  case ISLAND_LINKED:
    return linked;
  case ISLAND_SOCKET:
    return near;
  case ISLAND_ALL:
  case ISLAND_KINDS:
    break;
  }
  return TRUE;
}

static guint32
free_on_island(const place_state *s, island_kind kind, guint32 device) {
  guint32 n = 0;
  for (guint32 d = 0; d < s->node->n_devices; d++)
    n += !s->used[d] && on_island(s->node, kind, device, d);
  return n;
}

/* Devices sort so that linked ones, then those of a switch, follow each other. */
static gboolean
device_before(const oct_node_shape *node, guint32 a, guint32 b) {
  if (node->socket[a] != node->socket[b])
    return node->socket[a] < node->socket[b];
  if (node->nvlink_group[a] != node->nvlink_group[b])
    return node->nvlink_group[a] < node->nvlink_group[b];
  if (node->pcie_switch[a] != node->pcie_switch[b])
    return node->pcie_switch[a] < node->pcie_switch[b];
  return a < b;
}

/* Takes n devices of the island around `device`, in that order. */
static void
take_from_island(place_state *s, island_kind kind, guint32 device, guint32 n, guint16 *out) {
  for (guint32 i = 0; i < n; i++) {
    guint32 best = G_MAXUINT32;
    for (guint32 d = 0; d < s->node->n_devices; d++)
      if (!s->used[d] && on_island(s->node, kind, device, d) &&
          (best == G_MAXUINT32 || device_before(s->node, d, best)))
        best = d;
    oct_assert(best != G_MAXUINT32);
    s->used[best] = TRUE;
    out[i] = (guint16)best;
  }
}

/* One tensor-parallel group; there are enough free devices. */
static void
place_group(place_state *s, guint32 n, guint16 *out) {
  for (int kind = 0; kind < ISLAND_KINDS; kind++) {
    guint32 best = G_MAXUINT32, best_free = G_MAXUINT32;
    for (guint32 d = 0; d < s->node->n_devices; d++) {
      if (s->used[d])
        continue;
      guint32 n_free = free_on_island(s, (island_kind)kind, d);
      if (n_free >= n && n_free < best_free) {
        best = d;
        best_free = n_free;
      }
    }
    if (best == G_MAXUINT32)
      continue;
    take_from_island(s, (island_kind)kind, best, n, out);
    return;
  }
  oct_assert_failed(__FILE__, __LINE__, "there are enough free devices");
}

/* NVLink groups that n ranks lie on. */
static guint32
count_links(const oct_node_shape *node, const guint16 *devices, guint32 n) {
  guint32 count = 0;
  for (guint32 i = 0; i < n; i++) {
    gboolean seen = FALSE;
    for (guint32 j = 0; j < i; j++)
      seen |= node->nvlink_group[devices[j]] == node->nvlink_group[devices[i]];
    count += !seen;
  }
  return count;
}

static char *
find_warning(const oct_parallel *p, const oct_node_shape *node, const guint16 *devices) {
  for (guint32 g = 0; g < p->pipeline * p->data; g++) {
    guint32 links = count_links(node, devices + (gsize)g * p->tensor, p->tensor);
    if (links > 1)
      return g_strdup_printf("tensor parallel size %u spans %u NVLink groups: every all-reduce "
                             "crosses PCIe",
                             p->tensor, links);
  }
  guint32 ranks = p->data * p->tensor;
  for (guint32 s = 0; p->expert_parallel && s < p->pipeline; s++) {
    guint32 links = count_links(node, devices + (gsize)s * ranks, ranks);
    if (links > 1)
      return g_strdup_printf("expert parallelism over %u ranks spans %u NVLink groups: every "
                             "exchange of tokens crosses PCIe",
                             ranks, links);
  }
  return NULL;
}

gboolean
oct_place(const oct_model_spec *spec, const oct_parallel *parallel, const oct_node_shape *node,
          guint16 *devices, char **warning, GError **error) {
  if (warning != NULL)
    *warning = NULL;
  if (node->n_devices < 1 || node->n_devices > OCT_NODE_DEVICES_MAX) {
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG,
                "a node of %u devices: allowed are 1 to %u", node->n_devices, OCT_NODE_DEVICES_MAX);
    return FALSE;
  }
  if (!oct_parallel_check(spec, parallel, error))
    return FALSE;
  place_state s = {.node = node};
  guint32 n_free = 0, world = oct_parallel_world(parallel);
  for (guint32 d = 0; d < node->n_devices; d++) {
    s.used[d] = node->taken[d];
    n_free += !s.used[d];
  }
  if (world > n_free) {
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG,
                "tensor %u x pipeline %u x data %u = %u devices are needed; the node has %u, of "
                "which %u are free",
                parallel->tensor, parallel->pipeline, parallel->data, world, node->n_devices,
                n_free);
    return FALSE;
  }
  for (guint32 g = 0; g < parallel->pipeline * parallel->data; g++)
    place_group(&s, parallel->tensor, devices + (gsize)g * parallel->tensor);
  if (warning != NULL)
    *warning = find_warning(parallel, node, devices);
  return TRUE;
}
