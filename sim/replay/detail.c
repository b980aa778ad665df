#include "sim/replay/detail.h"

#include <math.h>
#include <string.h>

#include "sim/replay/measured-json.h"

/* ---------------------------------------------------------------- resources over time */

/* What is drawn together: kinds of resources whose names a reader knows. */
typedef struct family {
  const char *name;
  guint kinds; /* 1 << oct_resource_kind */
} family;

static const family families[] = {
    {"hbm", 1 << OCT_RESOURCE_HBM},
    {"compute", 1 << OCT_RESOURCE_SM},
    {"nvlink", 1 << OCT_RESOURCE_NV_UP | 1 << OCT_RESOURCE_NV_DOWN},
    {"pcie", 1 << OCT_RESOURCE_PCIE_UP | 1 << OCT_RESOURCE_PCIE_DOWN |
                 1 << OCT_RESOURCE_PCIE_DUPLEX | 1 << OCT_RESOURCE_SWITCH_UP |
                 1 << OCT_RESOURCE_SWITCH_DOWN | 1 << OCT_RESOURCE_SWITCH_DUPLEX},
    {"nic", 1 << OCT_RESOURCE_NIC_UP | 1 << OCT_RESOURCE_NIC_DOWN},
    {"host", 1 << OCT_RESOURCE_ROOT_UP | 1 << OCT_RESOURCE_ROOT_DOWN | 1 << OCT_RESOURCE_DRAM |
                 1 << OCT_RESOURCE_SOCKET},
};

/* Work counts when it has ended: shorter rows than these would be steps, not load. */
#define ROWS_MAX 128

/* The busiest resource of the family between two samples: share of its capacity. */
static double
family_share(const oct_measured *m, const oct_setup *s, const family *f, guint first, guint last) {
  double most = 0;
  const double *at = m->moved + (gsize)last * m->n_moved;
  const double *before = m->moved + (gsize)first * m->n_moved;
  double seconds = (double)(m->samples[last].time_ns - m->samples[first].time_ns) / 1e9;
  for (guint i = 0; i < m->n_moved; i++) {
    const oct_resource *r = oct_platform_resource(s->platform, i);
    if ((f->kinds & 1u << r->kind) != 0)
      most = MAX(most, (at[i] - before[i]) / (r->per_s * seconds));
  }
  return most;
}

static json_t *
loads_json(const oct_measured *m, const oct_setup *s) {
  if (m->n_moved == 0 || s->platform == NULL)
    return json_null();
  json_t *columns = json_pack("[s]", "time_s"), *rows = json_array();
  for (gsize f = 0; f < G_N_ELEMENTS(families); f++)
    json_array_append_new(columns, json_string(families[f].name));
  const guint stride = (m->n_samples + ROWS_MAX - 1) / ROWS_MAX;
  for (guint i = stride; i < m->n_samples; i += stride) {
    json_t *row = json_pack("[o]", oct_json_seconds(m->samples[i].time_ns));
    for (gsize f = 0; f < G_N_ELEMENTS(families); f++)
      json_array_append_new(row, json_real(family_share(m, s, &families[f], i - stride, i)));
    json_array_append_new(rows, row);
  }
  return json_pack("{s:o, s:o}", "columns", columns, "rows", rows);
}

/* ---------------------------------------------------------------- the node */

static json_t *
gpu_json(const oct_profile *p, const oct_setup *s, guint gpu) {
  json_t *out = json_pack("{s:I, s:I, s:I, s:I, s:I}", "gpu", (json_int_t)gpu, "node",
                          (json_int_t)oct_profile_node_of(p, gpu), "pcie_switch",
                          (json_int_t)p->topology.gpu_switch[gpu], "root_complex",
                          (json_int_t)p->topology.gpu_root_complex[gpu], "socket",
                          (json_int_t)p->topology.gpu_socket[gpu]);
  const guint32 ranks = oct_parallel_world(&s->engine.instance.parallel);
  json_t *replica = json_null(), *rank = json_null();
  for (guint32 i = 0; i < ranks * s->options.n_replicas; i++)
    if (s->devices[i] == gpu && json_is_null(replica)) {
      replica = json_integer(i / ranks);
      rank = json_integer(i % ranks);
    }
  json_object_set_new(out, "replica", replica);
  json_object_set_new(out, "rank", rank);
  gboolean paired = p->nvlink.topology == OCT_NVLINK_PAIRS && p->nvlink.gpu_pair[gpu] != gpu;
  json_object_set_new(out, "pair", paired ? json_integer(p->nvlink.gpu_pair[gpu]) : json_null());
  return out;
}

static json_t *
topology_json(const oct_setup *s) {
  if (s->platform == NULL || s->devices == NULL)
    return json_null();
  json_t *gpus = json_array();
  for (guint i = 0; i < oct_platform_gpus(s->platform); i++)
    json_array_append_new(gpus, gpu_json(s->profile, s, i));
  return json_pack("{s:b, s:I, s:o}", "nvswitch", oct_platform_switched(s->platform), "sockets",
                   (json_int_t)oct_platform_sockets(s->platform), "gpus", gpus);
}

/* ---------------------------------------------------------------- the whole */

json_t *
oct_detail_json(const oct_replay_result *r) {
  const oct_measured *m = &r->drive.measured;
  json_t *picture = r->drive.picture != NULL ? json_incref(r->drive.picture) : json_null();
  json_t *out = json_object();
  json_object_set_new(out, "cdf", oct_cdf_json(m));
  json_object_set_new(out, "course", oct_course_json(m));
  json_object_set_new(out, "batch_sizes", oct_batch_sizes_json(m));
  json_object_set_new(out, "loads", loads_json(m, &r->setup));
  json_object_set_new(out, "topology", topology_json(&r->setup));
  json_object_set_new(out, "stretch", picture);
  json_object_set_new(out, "kept_requests", oct_kept_json(m));
  return out;
}
