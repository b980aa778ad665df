/* Fuzz target: any text as a value that has a grammar of its own: lengths, a duration, objectives,
 * a quantity, drafts, an engine's preset. The first byte says which. What is accepted is finite and
 * within its limits; else the error says why.
 */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/replay/engine-preset.h"
#include "sim/replay/slo.h"
#include "sim/replay/speculation.h"
#include "sim/units.h"
#include "tests/fuzz/replay.h"
#include "traces/dist.h"
#include "traces/trace.h"

static gboolean
read_lengths(const char *text, GError **error) {
  g_autoptr(oct_dist) dist = oct_dist_parse(text, error);
  if (dist == NULL)
    return FALSE;
  oct_rng rng;
  oct_rng_seed(&rng, 1, 0);
  oct_assert(isfinite(oct_dist_mean(dist)) && oct_dist_text(dist) != NULL);
  for (guint i = 0; i < 20; i++) {
    guint32 n = oct_dist_draw_tokens(dist, &rng, 100);
    oct_assert(n >= 1 && n <= OCT_TRACE_TOKENS_MAX);
  }
  return TRUE;
}

static gboolean
read_duration(const char *text, GError **error) {
  gint64 ns, positive_ns;
  gboolean good = oct_duration_parse("duration", text, FALSE, &ns, error);
  oct_assert(!good || ns >= 0);
  oct_assert(oct_duration_parse("duration", text, TRUE, &positive_ns, NULL) == (good && ns > 0));
  return good;
}

static gboolean
read_objectives(const char *text, GError **error) {
  oct_slo slo;
  if (!oct_slo_parse(&slo, text, error))
    return FALSE;
  oct_assert(slo.n_items >= 1 && slo.n_items <= OCT_SLO_ITEMS_MAX);
  for (guint i = 0; i < slo.n_items; i++) {
    const oct_slo_item *item = &slo.items[i];
    oct_assert(item->limit_ns > 0 && item->percent > 0 && item->percent <= 100);
    oct_assert(item->is_mean || slo.each_ns[item->latency] <= item->limit_ns);
  }
  return TRUE;
}

static gboolean
read_quantity(const char *text, GError **error) {
  double value;
  oct_dimension dimension;
  gboolean good = oct_quantity_parse(text, &value, &dimension, error);
  oct_assert(!good || isfinite(value));
  return good;
}

static gboolean
read_drafts(const char *text, GError **error) {
  oct_speculative s = {0};
  if (!oct_speculative_parse(text, &s, error))
    return FALSE;
  oct_assert(s.n_tokens >= 1 && s.n_tokens <= OCT_DRAFTS_MAX && s.ngram_min <= s.ngram_max);
  oct_assert(s.n_acceptance <= OCT_DRAFTS_MAX && s.proposal_rate <= 1);
  for (guint32 i = 0; i < s.n_acceptance; i++)
    oct_assert(s.acceptance[i] >= 0 && s.acceptance[i] <= 1);
  g_autofree char *rates = oct_speculative_rates(&s), *server = oct_speculative_of_server(text);
  oct_assert((rates != NULL) == (s.n_acceptance > 0) && server != NULL);
  oct_speculative_clear(&s);
  return TRUE;
}

static gboolean
read_preset(const char *text, GError **error) {
  oct_engine_preset preset;
  if (!oct_engine_preset_parse("fuzz.ini", text, &preset, error))
    return FALSE;
  oct_assert(preset.gpu_memory_utilization > 0 && preset.gpu_memory_utilization <= 1);
  oct_assert(isfinite(preset.expert_time) && isfinite(preset.step_time));
  return TRUE;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static gboolean (*const readers[])(const char *, GError **) = {
      read_lengths, read_duration, read_objectives, read_quantity, read_drafts, read_preset};
  if (size == 0)
    return 0;
  guint which = data[0] % G_N_ELEMENTS(readers);
  g_autofree char *text = g_strndup((const char *)data + 1, size - 1);
  /* Lengths and drafts may name a file, which would be read. */
  if ((which == 0 || which == 4) && strchr(text, '/') != NULL)
    return 0;
  g_autoptr(GError) error = NULL;
  oct_assert(readers[which](text, &error) == (error == NULL));
  oct_assert(error == NULL || error->message[0] != '\0');
  return 0;
}
