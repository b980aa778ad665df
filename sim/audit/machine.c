/* Claims about the machine against its profile: what each GPU has, and how GPUs are joined. */
#include <string.h>

#include "sim/audit/internal.h"

/* One figure of the profile beside the claimed one. */
static void
compare(oct_audit_group *g, oct_audit_key key, double actual, const char *what) {
  if (!oct_audit_owns(g, key))
    return;
  double claimed = g->values[key];
  g_autofree char *is = oct_audit_format(key, actual), *said = oct_audit_format(key, claimed);
  if (oct_audit_agree(claimed, actual))
    oct_audit_note(g, g->entries[key], "machine", OCT_CLAIM_CONSISTENT, "%s of %s: %s", what,
                   g->profile->name, is);
  else
    oct_audit_note(g, g->entries[key], "machine", OCT_CLAIM_INCONSISTENT,
                   "%s of %s: %s; %s is %.3g times that", what, g->profile->name, is, said,
                   claimed / actual);
}

static void
check_nvlink(oct_audit_group *g) {
  static const char *const names[] = {
      [OCT_NVLINK_NONE] = "none", [OCT_NVLINK_SWITCH] = "switch", [OCT_NVLINK_PAIRS] = "pairs"};
  static const char *const says[] = {[OCT_NVLINK_NONE] = "no NVLink joins its GPUs",
                                     [OCT_NVLINK_SWITCH] =
                                         "a switch joins every GPU to every other at the full rate",
                                     [OCT_NVLINK_PAIRS] = "NVLink joins pairs of GPUs"};
  const oct_ini_entry *entry = g->word_entries[OCT_AUDIT_NVLINK];
  if (entry == NULL || entry->group != g->text->name)
    return;
  oct_nvlink_topology topology = g->profile->nvlink.topology;
  gboolean good = strcmp(names[topology], entry->value) == 0;
  oct_audit_note(g, entry, "topology", good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "%s: %s%s", g->profile->name, says[topology],
                 g->profile->fictional ? " (an imagined machine)" : "");
}

/* Nothing crosses a link in less time than the profile's; more is slow, not impossible. */
static void
check_latency(oct_audit_group *g, oct_audit_key key, double actual, const char *what) {
  if (!oct_audit_owns(g, key))
    return;
  if (actual <= 0) {
    oct_audit_note(g, g->entries[key], "topology", OCT_CLAIM_INCONSISTENT,
                   "%s has no such link: %s", g->profile->name, what);
    return;
  }
  double claimed = g->values[key];
  g_autofree char *is = oct_audit_format(key, actual), *said = oct_audit_format(key, claimed);
  gboolean good = claimed >= actual * (1 - OCT_AUDIT_TOLERANCE);
  oct_audit_note(
      g, g->entries[key], "topology", good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
      "%s of %s: %s; %s is %.3g times that", what, g->profile->name, is, said, claimed / actual);
}

static void
check_power(oct_audit_group *g) {
  const oct_profile_thermal *t = &g->profile->thermal;
  if (!oct_audit_owns(g, OCT_AUDIT_POWER))
    return;
  double claimed = g->values[OCT_AUDIT_POWER];
  gboolean good = claimed >= t->idle_w && claimed <= t->tdp_w * (1 + OCT_AUDIT_TOLERANCE);
  oct_audit_note(g, g->entries[OCT_AUDIT_POWER], "power",
                 good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "a GPU of %s draws %.0f W idle and at most %.0f W; claimed are %.0f W",
                 g->profile->name, t->idle_w, t->tdp_w, claimed);
}

/* Ranks of the layout against the GPUs of the node. */
static void
check_gpus(oct_audit_group *g) {
  if (!oct_audit_owns(g, OCT_AUDIT_GPUS))
    return;
  double replicas = oct_audit_has(g, OCT_AUDIT_REPLICAS) ? g->values[OCT_AUDIT_REPLICAS] : 1;
  double wants = oct_parallel_world(&g->parallel) * replicas, has = g->values[OCT_AUDIT_GPUS];
  gboolean good = wants <= has;
  oct_audit_note(g, g->entries[OCT_AUDIT_GPUS], "layout",
                 good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_IMPOSSIBLE,
                 "TP%u x PP%u x DP%u x %.0f replicas = %.0f GPUs, claimed are %.0f",
                 g->parallel.tensor, g->parallel.pipeline, g->parallel.data, replicas, wants, has);
}

void
oct_audit_check_machine(oct_audit_group *g) {
  check_gpus(g);
  if (g->profile == NULL)
    return;
  const oct_profile *p = g->profile;
  compare(g, OCT_AUDIT_GPUS, p->gpu.count, "GPUs");
  compare(g, OCT_AUDIT_MEMORY, p->gpu.hbm_bytes, "memory of a GPU");
  compare(g, OCT_AUDIT_BANDWIDTH, p->gpu.hbm_bytes_per_s, "memory bandwidth of a GPU");
  compare(g, OCT_AUDIT_SOCKETS, p->host.sockets, "sockets");
  compare(g, OCT_AUDIT_ROOT_COMPLEXES, p->topology.n_root_complexes, "root complexes");
  check_nvlink(g);
  check_latency(g, OCT_AUDIT_LINK_LATENCY, p->nvlink.load_latency_s, "latency of NVLink");
  check_latency(g, OCT_AUDIT_FAR_LATENCY, p->pcie.cross_pair_latency_s,
                "latency between GPUs that no NVLink joins");
  check_power(g);
}
