#include "sim/plan/probe.h"

#include <math.h>
#include <string.h>

#include "sim/plan/dealer.h"
#include "sim/replay/measured-json.h"
#include "sim/replay/report.h"

/* Load behind the horizon lasts at most such a share of it; rows are allowed for what both have on
 * average, and some more for what is drawn. */
#define AFTER_MAX 0.25
#define ROWS_MORE 200
/* A value is a sure miss when it is above the limit by more than the histogram can hide. */
#define SURE_MISS 1.002
/* Of requests that arrived, so many may be turned away. */
#define TURNED_AWAY_MAX 0.005
/* A coarse run need not have settled, but of requests that stay longer than its window it says
 * nothing. */
#define COARSE_RESIDENCES_LEAST 1

typedef struct watch {
  const oct_slo *slo;
  oct_time from_ns;
  guint64 rows_max; /* that can be in the window */
  guint64 missed[OCT_SLO_ITEMS_MAX];
  gboolean hopeless;
} watch;

static void
see_outcome(void *user, guint64 index, const oct_outcome *outcome) {
  watch *w = user;
  (void)index;
  if (outcome->arrival_ns < w->from_ns)
    w->rows_max--;
  if (outcome->arrival_ns < w->from_ns || outcome->fate != OCT_FATE_ANSWERED)
    return;
  for (guint i = 0; i < w->slo->n_items; i++) {
    const oct_slo_item *item = &w->slo->items[i];
    /* Of gaps there are more than requests, and a mean can be mended by the rest. */
    if (item->is_mean || item->latency == OCT_LATENCY_ITL)
      continue;
    w->missed[i] += (double)outcome->value_ns[item->latency] > SURE_MISS * (double)item->limit_ns;
    double n = (double)w->rows_max;
    w->hopeless |= (double)w->missed[i] > n - ceil(n * item->percent / 100);
  }
}

static gboolean
is_hopeless(void *user) {
  return ((const watch *)user)->hopeless;
}

static void
set_latency(json_t *out, const char *name, const oct_hist *hist, double percent) {
  gboolean any = oct_hist_count(hist) > 0;
  json_object_set_new(
      out, name, any ? json_real((double)oct_hist_percentile(hist, percent) / 1e9) : json_null());
}

/* Whether the window says nothing of the load: for as long as the first requests stay the engine
 * fills up, and a backlog that grows then proves nothing either. What waits for a place makes a run
 * that is overloaded no shorter. */
static gboolean
is_short(const oct_plan_probe *probe, const oct_measured *m, double window_s) {
  double stays_s = m->residence_mean_s;
  const oct_hist *queue = m->latency[OCT_LATENCY_QUEUE];
  if (m->verdict == OCT_VERDICT_SATURATED && oct_hist_count(queue) > 0)
    stays_s -= oct_hist_mean(queue) / 1e9;
  const double times = probe->strict ? OCT_METRICS_RESIDENCES : COARSE_RESIDENCES_LEAST;
  return m->requests == 0 || window_s < times * stays_s;
}

static json_t *
answer(const oct_plan_probe *probe, const oct_replay_config *config, const oct_replay_result *r,
       double rate, double seconds, guint32 deal) {
  const oct_measured *m = &r->drive.measured;
  json_t *report = oct_replay_brief_json(config, r);
  const double turned_away = (double)(m->requests - m->fates[OCT_FATE_ANSWERED]);
  const double unserved = oct_report_number(report, "verdict.unserved_share");
  const json_t *met = oct_report_at(report, "slo.met");
  const gboolean cut = r->drive.cut_short;
  const gboolean slo_met = !cut && (met == NULL || json_is_true(met));
  const double window_s = (double)(m->end_ns - m->from_ns) / 1e9;
  const gboolean too_short = slo_met && is_short(probe, m, window_s);
  gboolean stable = m->verdict == OCT_VERDICT_STABLE && !(unserved > OCT_UNSERVED_SATURATED);
  if (!probe->strict)
    stable = m->verdict != OCT_VERDICT_SATURATED && !too_short;
  const gboolean served =
      slo_met && stable && m->requests > 0 && turned_away <= TURNED_AWAY_MAX * (double)m->requests;
  const gboolean undecided = probe->strict && slo_met && m->verdict == OCT_VERDICT_UNDECIDED;
  json_t *out =
      json_pack("{s:f, s:f, s:f, s:f, s:b, s:b, s:b, s:s, s:b, s:b, s:I}", "rate", rate, "seconds",
                seconds, "window_s", window_s, "residence_mean_s", m->residence_mean_s, "too_short",
                too_short, "served", served, "undecided", undecided, "verdict",
                cut ? "misses the SLO" : oct_verdict_name(m->verdict), "cut_short", cut, "slo_met",
                slo_met, "measured", (json_int_t)m->requests);
  const struct {
    const char *name, *path;
    double times;
  } copied[] = {{"requests_per_s", "throughput.requests_per_s", deal},
                {"output_tokens_per_s", "throughput.output_tokens_per_s", deal},
                {"input_tokens_per_s", "throughput.input_tokens_per_s", deal},
                {"unserved_share", "verdict.unserved_share", 1},
                {"prefix_hit_share", "scheduler.prefix_hit_share", 1}};
  for (gsize i = 0; i < G_N_ELEMENTS(copied); i++) {
    const double value = oct_report_number(report, copied[i].path);
    json_object_set_new(out, copied[i].name, oct_json_real(value * copied[i].times));
  }
  json_object_set_new(out, "simulated", json_integer((json_int_t)config->setup.n_replicas));
  set_latency(out, "ttft_p50_s", m->latency[OCT_LATENCY_TTFT], 50);
  set_latency(out, "ttft_p99_s", m->latency[OCT_LATENCY_TTFT], 99);
  set_latency(out, "tpot_p50_s", m->latency[OCT_LATENCY_TPOT], 50);
  set_latency(out, "tpot_p99_s", m->latency[OCT_LATENCY_TPOT], 99);
  if (probe->assumptions) {
    json_t *assumptions = json_array();
    oct_replay_assumptions(config, r, assumptions);
    json_object_set_new(out, "assumptions", assumptions);
  }
  json_object_set_new(
      out, "warmup_short",
      json_boolean(5 * m->residence_mean_s > (double)(m->from_ns > 0 ? m->from_ns : 0) / 1e9));
  json_decref(report);
  return out;
}

static oct_plan_dealer *
make_dealer(const oct_plan_probe *probe, guint32 n, double dealt) {
  const double requests = dealt * probe->requests_per_start;
  if (probe->config->setup.router == OCT_ROUTE_ROUND_ROBIN)
    return oct_plan_dealer_new(n, 0, 0);
  return oct_plan_dealer_new(n, probe->alone->prompt_token_s,
                             oct_plan_pace_token_s(probe->alone, probe->workload, requests));
}

json_t *
oct_plan_probe_run(const oct_plan_probe *probe, double rate, double stretch, GError **error) {
  oct_replay_config config = *probe->config;
  const guint32 deal = probe->alone != NULL ? config.setup.n_replicas : 1;
  const double dealt = rate / deal; /* session starts per second of those that are simulated */
  double starts = (double)probe->requests * stretch / probe->requests_per_start;
  double seconds = probe->requests > 0 ? starts / dealt : probe->seconds * stretch;
  g_autoptr(oct_plan_dealer) dealer = NULL;
  if (deal > 1) {
    dealer = make_dealer(probe, deal, dealt);
    config.rows.deal = oct_plan_dealer_deal;
    config.rows.deal_user = dealer;
    config.setup.n_replicas = 1;
    config.setup.router = OCT_ROUTE_LEAST_LOADED;
  }
  oct_trace_options trace;
  if (config.rows.trace != NULL)
    trace = *config.rows.trace;
  else
    oct_trace_options_init(&trace);
  if (trace.limit == 0)
    trace.limit = G_MAXUINT64; /* a generator is asked for an end: kept_max is it */
  config.setup.unchecked = TRUE;
  config.rows.rate = rate;
  config.rows.mode = OCT_RATE_COMPRESS;
  config.warmup_ns = (oct_time)(seconds * OCT_PLAN_WARMUP_SHARE * 1e9);
  config.duration_ns = (oct_time)(seconds * 1e9);
  const double after_s =
      probe->after_s > 0 ? MIN(probe->after_s, AFTER_MAX * seconds) : AFTER_MAX * seconds;
  const guint64 rows_max =
      (guint64)ceil((seconds + after_s) * dealt * probe->requests_per_start) + ROWS_MORE;
  config.rows.kept_max = rows_max;
  config.rows.trace = &trace;
  config.requests_path = config.timeline_path = config.log_path = NULL;
  watch w = {.slo = &config.slo, .from_ns = config.warmup_ns, .rows_max = rows_max};
  config.user = &w;
  config.progress = NULL;
  config.outcome = see_outcome;
  config.enough = probe->no_abort ? NULL : is_hopeless;
  oct_replay_result result;
  if (!oct_replay_run(&config, &result, error))
    return NULL;
  json_t *out = answer(probe, &config, &result, rate, seconds, deal);
  oct_replay_result_clear(&result);
  return out;
}
