/* Claims against each other: products of quantities, Little's law, percentiles. Needs no model. */
#include <string.h>

#include "sim/audit/internal.h"

/* The first of the keys that this group itself states: the claim that a check judges. NULL: none,
 * all was said, and judged, in [report]. */
static const oct_ini_entry *
subject(const oct_audit_group *g, const oct_audit_key *keys, guint n) {
  for (guint i = 0; i < n; i++)
    if (oct_audit_owns(g, keys[i]))
      return g->entries[keys[i]];
  return NULL;
}

static gboolean
has_all(const oct_audit_group *g, const oct_audit_key *keys, guint n) {
  for (guint i = 0; i < n; i++)
    if (!oct_audit_has(g, keys[i]))
      return FALSE;
  return TRUE;
}

static char *
show(const oct_audit_group *g, oct_audit_key key) {
  return oct_audit_format(key, g->values[key]);
}

/* ---------------------------------------------------------------- products */

static void
check_byte_rate(oct_audit_group *g) {
  const oct_audit_key keys[] = {OCT_AUDIT_BYTE_RATE, OCT_AUDIT_BYTES_PER_TOKEN,
                                OCT_AUDIT_OUTPUT_RATE};
  const oct_ini_entry *entry = subject(g, keys, 3);
  if (!has_all(g, keys, 3) || entry == NULL)
    return;
  double product = g->values[OCT_AUDIT_OUTPUT_RATE] * g->values[OCT_AUDIT_BYTES_PER_TOKEN];
  double claimed = g->values[OCT_AUDIT_BYTE_RATE];
  g_autofree char *rate = show(g, OCT_AUDIT_OUTPUT_RATE);
  g_autofree char *each = show(g, OCT_AUDIT_BYTES_PER_TOKEN);
  g_autofree char *is = oct_audit_format(OCT_AUDIT_BYTE_RATE, product);
  g_autofree char *said = show(g, OCT_AUDIT_BYTE_RATE);
  if (oct_audit_agree(product, claimed))
    oct_audit_note(g, entry, "product", OCT_CLAIM_CONSISTENT, "%s x %s = %s, as claimed", rate,
                   each, is);
  else
    oct_audit_note(g, entry, "product", OCT_CLAIM_INCONSISTENT,
                   "%s x %s = %s; %s is %.3g times that", rate, each, is, said, claimed / product);
}

static void
check_demand(oct_audit_group *g) {
  const oct_audit_key keys[] = {OCT_AUDIT_OUTPUT_RATE, OCT_AUDIT_RATE, OCT_AUDIT_OUTPUT};
  const oct_ini_entry *entry = subject(g, keys, 3);
  if (!has_all(g, keys, 3) || entry == NULL)
    return;
  double demand = g->values[OCT_AUDIT_RATE] * g->values[OCT_AUDIT_OUTPUT];
  double served = g->values[OCT_AUDIT_OUTPUT_RATE];
  g_autofree char *rate = show(g, OCT_AUDIT_RATE), *each = show(g, OCT_AUDIT_OUTPUT);
  g_autofree char *wants = oct_audit_format(OCT_AUDIT_OUTPUT_RATE, demand);
  g_autofree char *said = show(g, OCT_AUDIT_OUTPUT_RATE);
  if (oct_audit_agree(demand, served))
    oct_audit_note(g, entry, "demand", OCT_CLAIM_CONSISTENT, "%s x %s = %s, as claimed", rate, each,
                   wants);
  else if (served < demand)
    oct_audit_note(g, entry, "demand", OCT_CLAIM_INCONSISTENT,
                   "%s x %s ask for %s; at %s the queue grows without end, %.1f %% stay unserved",
                   rate, each, wants, said, 100 * (1 - served / demand));
  else
    oct_audit_note(g, entry, "demand", OCT_CLAIM_INCONSISTENT,
                   "%s x %s give only %s: %s cannot be reached in a steady state", rate, each,
                   wants, said);
}

/* ---------------------------------------------------------------- Little's law */

/* The mean that Little's law asks for, beside a percentile: above it only the slow rest can make up
 * for all the others. */
static void
check_little_percentile(oct_audit_group *g, oct_audit_key key, double share, double mean_s) {
  const oct_audit_key keys[] = {key, OCT_AUDIT_RATE, OCT_AUDIT_CONCURRENCY};
  const oct_ini_entry *entry = subject(g, keys, 3);
  if (!oct_audit_has(g, key) || entry == NULL)
    return;
  double at = g->values[key];
  g_autofree char *mean = oct_audit_format(key, mean_s), *limit = show(g, key);
  g_autofree char *users = show(g, OCT_AUDIT_CONCURRENCY), *rate = show(g, OCT_AUDIT_RATE);
  if (mean_s <= at) {
    oct_audit_note(g, entry, "little's law", OCT_CLAIM_CONSISTENT,
                   "%s / %s = %s on average, within %s", users, rate, mean, limit);
    return;
  }
  g_autofree char *rest = oct_audit_format(key, (mean_s - share * at) / (1 - share));
  oct_audit_note(g, entry, "little's law", OCT_CLAIM_INCONSISTENT,
                 "%s / %s = %s on average, which is above the %gth percentile, %s: the slowest "
                 "%g %% would have to take %s on average",
                 users, rate, mean, share * 100, limit, 100 - share * 100, rest);
}

static void
check_little(oct_audit_group *g) {
  const oct_audit_key keys[] = {OCT_AUDIT_LATENCY_MEAN, OCT_AUDIT_RATE, OCT_AUDIT_CONCURRENCY};
  if (!oct_audit_has(g, OCT_AUDIT_RATE) || !oct_audit_has(g, OCT_AUDIT_CONCURRENCY))
    return;
  double mean_s = g->values[OCT_AUDIT_CONCURRENCY] / g->values[OCT_AUDIT_RATE];
  check_little_percentile(g, OCT_AUDIT_LATENCY_P50, 0.5, mean_s);
  check_little_percentile(g, OCT_AUDIT_LATENCY_P99, 0.99, mean_s);
  const oct_ini_entry *entry = subject(g, keys, 3);
  if (!oct_audit_has(g, OCT_AUDIT_LATENCY_MEAN) || entry == NULL)
    return;
  gboolean good = oct_audit_agree(mean_s, g->values[OCT_AUDIT_LATENCY_MEAN]);
  g_autofree char *users = show(g, OCT_AUDIT_CONCURRENCY), *rate = show(g, OCT_AUDIT_RATE);
  g_autofree char *mean = oct_audit_format(OCT_AUDIT_LATENCY_MEAN, mean_s);
  g_autofree char *said = show(g, OCT_AUDIT_LATENCY_MEAN);
  oct_audit_note(g, entry, "little's law", good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "%s / %s = %s on average, claimed is %s", users, rate, mean, said);
}

/* As many tokens a second as there are sequences, each with one every TPOT. */
static void
check_token_rate(oct_audit_group *g) {
  const oct_audit_key keys[] = {OCT_AUDIT_OUTPUT_RATE, OCT_AUDIT_TPOT_MEAN, OCT_AUDIT_CONCURRENCY};
  const oct_ini_entry *entry = subject(g, keys, 3);
  if (!has_all(g, keys, 3) || entry == NULL)
    return;
  double most = g->values[OCT_AUDIT_CONCURRENCY] / g->values[OCT_AUDIT_TPOT_MEAN];
  gboolean good = g->values[OCT_AUDIT_OUTPUT_RATE] <= most * (1 + OCT_AUDIT_TOLERANCE);
  g_autofree char *users = show(g, OCT_AUDIT_CONCURRENCY), *tpot = show(g, OCT_AUDIT_TPOT_MEAN);
  g_autofree char *rate = oct_audit_format(OCT_AUDIT_OUTPUT_RATE, most);
  g_autofree char *said = show(g, OCT_AUDIT_OUTPUT_RATE);
  oct_audit_note(g, entry, "little's law", good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "%s, each with a token every %s, are at most %s; claimed are %s", users, tpot,
                 rate, said);
}

/* ---------------------------------------------------------------- latencies among themselves */

static void
check_order(oct_audit_group *g, oct_audit_key low, oct_audit_key high, const char *what) {
  const oct_audit_key keys[] = {high, low};
  const oct_ini_entry *entry = subject(g, keys, 2);
  if (!has_all(g, keys, 2) || entry == NULL)
    return;
  gboolean good = g->values[low] <= g->values[high];
  g_autofree char *below = show(g, low), *above = show(g, high);
  oct_audit_note(g, entry, "order", good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "%s: %s %s %s", what, below, good ? "<=" : ">", above);
}

static void
check_sum(oct_audit_group *g) {
  const oct_audit_key keys[] = {OCT_AUDIT_LATENCY_MEAN, OCT_AUDIT_TTFT_MEAN, OCT_AUDIT_TPOT_MEAN,
                                OCT_AUDIT_OUTPUT};
  const oct_ini_entry *entry = subject(g, keys, 4);
  if (!has_all(g, keys, 4) || entry == NULL)
    return;
  double sum = g->values[OCT_AUDIT_TTFT_MEAN] +
               (g->values[OCT_AUDIT_OUTPUT] - 1) * g->values[OCT_AUDIT_TPOT_MEAN];
  gboolean good = oct_audit_agree(sum, g->values[OCT_AUDIT_LATENCY_MEAN]);
  g_autofree char *ttft = show(g, OCT_AUDIT_TTFT_MEAN), *tpot = show(g, OCT_AUDIT_TPOT_MEAN);
  g_autofree char *is = oct_audit_format(OCT_AUDIT_LATENCY_MEAN, sum);
  g_autofree char *said = show(g, OCT_AUDIT_LATENCY_MEAN);
  oct_audit_note(g, entry, "sum", good ? OCT_CLAIM_CONSISTENT : OCT_CLAIM_INCONSISTENT,
                 "%s + %.0f x %s = %s, claimed is %s", ttft, g->values[OCT_AUDIT_OUTPUT] - 1, tpot,
                 is, said);
}

void
oct_audit_check_traffic(oct_audit_group *g) {
  check_byte_rate(g);
  check_demand(g);
  check_little(g);
  check_token_rate(g);
  check_order(g, OCT_AUDIT_LATENCY_P50, OCT_AUDIT_LATENCY_P99, "median and 99th percentile");
  check_order(g, OCT_AUDIT_TTFT_P50, OCT_AUDIT_TTFT_P99, "median and 99th percentile");
  check_order(g, OCT_AUDIT_TPOT_P50, OCT_AUDIT_TPOT_P99, "median and 99th percentile");
  check_order(g, OCT_AUDIT_TTFT_P99, OCT_AUDIT_LATENCY_P99, "first token and last token");
  check_sum(g);
}
