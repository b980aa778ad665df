/* Fuzz target: any bytes as a trace, read plainly, sorted and spread, and as each format that the
 * content cannot show; or, behind "gen:" or "dist:", as the text of a generator or a distribution.
 * A row that is accepted must keep what traces/trace.h promises; an error must be of the domain. */
#include <string.h>

#include "engine/base/assert.h"
#include "tests/fuzz/replay.h"
#include "traces/blocks.h"
#include "traces/dist.h"
#include "traces/gen.h"
#include "traces/stats.h"

#define ROWS_MAX 2000

static void
check_row(const oct_trace_request *r, const oct_trace_facts *facts, gint64 last_ns) {
  oct_assert(r->input_tokens >= 1 && r->input_tokens <= OCT_TRACE_TOKENS_MAX);
  oct_assert(r->output_tokens >= 1 && r->output_tokens <= OCT_TRACE_TOKENS_MAX);
  oct_assert(r->arrival_ns >= -1 && r->arrival_ns <= OCT_TRACE_TIME_MAX_NS);
  oct_assert(r->arrival_ns < 0 || r->arrival_ns >= last_ns);
  oct_assert(r->think_ns >= 0 && r->parent <= r->index && r->index + 1 == facts->n_requests);
  oct_assert(r->session <= G_MAXINT64 && strlen(r->class_name) <= OCT_TRACE_CLASS_BYTES_MAX);
  guint64 named = oct_trace_known_tokens(r), total = (guint64)r->input_tokens + r->output_tokens;
  oct_assert(named <= total && (r->block_size > 0 || r->n_hash_ids + r->n_output_hash_ids == 0));
  if (r->block_size > 0)
    oct_assert((guint64)r->n_hash_ids <= (total + r->block_size - 1) / r->block_size);
  guint64 last = MIN(named / 16, 4096);
  oct_assert(oct_trace_page_id(r, last, 16) != oct_trace_page_id(r, last + 1, 16));
}

/* Takes both. `count`: also the statistics, which are slow to allocate. */
static void
drain(oct_trace *trace, GError *error, gboolean count) {
  oct_assert((trace == NULL) == (error != NULL));
  g_autoptr(oct_trace_stats) stats = count ? oct_trace_stats_new() : NULL;
  oct_trace_request row;
  gint64 last_ns = 0;
  for (guint n = 0; trace != NULL && n < ROWS_MAX && oct_trace_next(trace, &row, &error); n++) {
    check_row(&row, oct_trace_get_facts(trace), last_ns);
    last_ns = MAX(last_ns, row.arrival_ns);
    if (stats != NULL)
      oct_trace_stats_add(stats, &row);
  }
  if (stats != NULL) {
    oct_trace_summary s = oct_trace_stats_summary(stats);
    oct_assert(s.n_hit_blocks <= s.n_hit_blocks_outputs && s.n_hit_blocks_outputs <= s.n_blocks);
  }
  oct_assert(error == NULL || error->domain == OCT_TRACE_ERROR);
  g_clear_error(&error);
  oct_trace_close(trace);
}

static void
run_reader(const void *data, size_t size, oct_trace_format format, guint32 window) {
  oct_trace_options options;
  GError *error = NULL;
  oct_trace_options_init(&options);
  options.format = format;
  options.sort_window = window;
  options.spread = window > 0;
  oct_trace *trace = oct_trace_open_bytes("fuzz", data, size, &options, &error);
  drain(trace, error, format == OCT_TRACE_FORMAT_AUTO && window == 0);
}

/* Files are none of this target's business. */
static gboolean
names_files(const char *text) {
  return strstr(text, "hist") != NULL || strstr(text, "servegen") != NULL;
}

static void
run_generator(const char *text) {
  g_auto(oct_trace_gen_spec) spec;
  GError *error = NULL;
  oct_trace *trace = NULL;
  oct_trace_gen_spec_init(&spec);
  if (oct_trace_gen_parse(&spec, text, &error)) {
    /* Small blocks under long contexts are slow, not wrong. */
    if (spec.block_size > 0 && spec.block_size < 16)
      spec.block_size = 16;
    spec.max_context = CLAMP(spec.max_context, 4, 100000);
    trace = oct_trace_gen_open(&spec, &error);
  }
  drain(trace, error, FALSE);
}

static void
run_distribution(const char *text) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_dist) dist = oct_dist_parse(text, &error);
  oct_rng rng;
  oct_rng_seed(&rng, 1, 1);
  oct_assert((dist == NULL) == (error != NULL));
  for (int i = 0; dist != NULL && i < 32; i++) {
    guint32 tokens = oct_dist_draw_tokens(dist, &rng, 7);
    oct_assert(tokens >= 1 && tokens <= OCT_TRACE_TOKENS_MAX);
  }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  g_autofree char *text = g_strndup(size > 0 ? (const char *)data : "", size);
  if (g_str_has_prefix(text, "gen:") || g_str_has_prefix(text, "dist:")) {
    if (!names_files(text))
      text[0] == 'g' ? run_generator(text + 4) : run_distribution(text + 5);
    return 0;
  }
  run_reader(data, size, OCT_TRACE_FORMAT_AUTO, 0);
  run_reader(data, size, OCT_TRACE_FORMAT_AUTO, 8);
  run_reader(data, size, OCT_TRACE_FORMAT_TIMED, 0);
  return 0;
}
