/* Service-level objectives: limits on latency, as text and as a test of one request.
 *
 *   ttft_p99=2s,tpot_p99=50ms,e2e=30s,queue_mean=100ms
 *
 * A metric (ttft, tpot, itl, e2e, queue), what of its distribution (_p50, _p99.9, _mean; nothing =
 * every request, the maximum), and a limit with its unit (ns, us, ms, s, min, h). An objective is
 * met when the measured value is at or below the limit. A request is *good* when each of its own
 * values is at or below the smallest limit of its metric (itl: its longest decode gap); goodput
 * counts good requests.
 *
 * Plain data, no ownership; any thread.
 */
#ifndef OCT_SIM_REPLAY_SLO_H
#define OCT_SIM_REPLAY_SLO_H

#include <glib.h>

#define OCT_SLO_ITEMS_MAX 16

#define OCT_REPLAY_ERROR (oct_replay_error_quark())
GQuark oct_replay_error_quark(void);
typedef enum oct_replay_error {
  OCT_REPLAY_ERROR_OPTION,    /* an option that makes no sense, alone or with another */
  OCT_REPLAY_ERROR_IO,        /* a file could not be written */
  OCT_REPLAY_ERROR_STUCK,     /* requests are left that no event will ever end */
  OCT_REPLAY_ERROR_CHILD,     /* a child process failed */
  OCT_REPLAY_ERROR_UNDECIDED, /* there is too little of the traffic to tell */
} oct_replay_error;

typedef enum oct_latency {
  OCT_LATENCY_TTFT,
  OCT_LATENCY_TPOT,
  OCT_LATENCY_ITL,
  OCT_LATENCY_E2E,
  OCT_LATENCY_QUEUE,
  OCT_LATENCY_COUNT
} oct_latency;
const char *oct_latency_name(oct_latency latency); /* "ttft" …; static */

typedef struct oct_slo_item {
  oct_latency latency;
  gboolean is_mean;
  double percent; /* 100 = every request */
  gint64 limit_ns;
  char name[24]; /* "ttft_p99" */
} oct_slo_item;

typedef struct oct_slo {
  guint n_items; /* 0 = no objective: every answered request is good */
  oct_slo_item items[OCT_SLO_ITEMS_MAX];
  gint64 each_ns[OCT_LATENCY_COUNT]; /* per request, OCT_SLO_NONE without one */
} oct_slo;
#define OCT_SLO_NONE G_MAXINT64

void oct_slo_init(oct_slo *slo);
/* FALSE with *error (OPTION), which names the part that is wrong. */
gboolean oct_slo_parse(oct_slo *slo, const char *text, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* value_ns[]: -1 = the request has none (one output token has no TPOT), which passes. */
gboolean oct_slo_is_good(const oct_slo *slo, const gint64 value_ns[OCT_LATENCY_COUNT]);

/* "1.5s" into ns, at least 0 (or above 0 when `positive`). `what` names the option in *error
 * (OPTION). */
gboolean oct_duration_parse(const char *what, const char *text, gboolean positive, gint64 *ns,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
