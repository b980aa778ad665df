/* The rows of a trace at the rate that a replay asks for, in order of arrival.
 *
 * Without a rate the trace's own rows. With one, session starts (rows without parent) are rescaled
 * so that their mean rate is the asked one, and never think times:
 *
 *   compress   times of session starts are multiplied by own rate / rate. A later turn that has a
 * recorded time keeps its distance from its session's start. superpose  floor(rate / own rate)
 * copies of the trace, and a thinned one for the rest, run on top of each other at their own pace.
 * Each copy starts at another place of the trace and wraps round (sessions stay whole), with its
 * own prefix content (`salt`).
 *
 * The own rate of a file is found by reading it once before; of a generator it is its parameter,
 * and superposing a generator is compressing it: its law has no time scale but its rate. A trace
 * without arrival times (closed loop) has no rate: an error.
 *
 * Memory: one row, in superpose one per copy, and in compress the recorded turns whose session
 * moved later than what was read. One thread.
 */
#ifndef OCT_SIM_REPLAY_ROWS_H
#define OCT_SIM_REPLAY_ROWS_H

#include "sim/replay/slo.h"
#include "sim/scenario/warp.h"
#include "traces/trace.h"

#define OCT_ROWS_COPIES_MAX 256

typedef enum oct_rate_mode { OCT_RATE_COMPRESS, OCT_RATE_SUPERPOSE } oct_rate_mode;

typedef struct oct_rows_options {
  const char *path;               /* as oct_trace_open() takes it */
  const oct_trace_options *trace; /* NULL = defaults; the limit counts rows before superposing */
  guint64 seed;                   /* generators: replaces their seed when above 0 */
  double rate;                    /* session starts per second; 0 = the trace's own */
  oct_rate_mode mode;
  /* What-ifs. Output tokens are multiplied (at least one stays; a stated max_tokens grows with
   * them); only the first share of each row's prefix ids is kept. 0 = as they are. */
  double output_scale, prefix_share;
  /* Which sessions are kept, with all their turns: asked of each session start after any rescaling,
   * in order. NULL = all. */
  gboolean (*deal)(void *user, const oct_trace_request *start);
  void *deal_user;
  guint64 kept_max; /* ends after so many rows; 0 = with the trace */
  /* Another pace over time, of session starts after any rescaling; borrowed. NULL = none. Not with
   * superposed copies. */
  const oct_warp *warp;
} oct_rows_options;

typedef struct oct_rows oct_rows;

/* Session starts per second of what `options` name, before any rescaling: reads a file once. FALSE
 * with *error, also for a trace without arrival times. */
gboolean oct_rows_find_own_rate(const oct_rows_options *options, double *rate,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Life cycle. The options are copied. NULL with *error (OCT_TRACE_ERROR, OCT_REPLAY_ERROR). */
oct_rows *oct_rows_open(const oct_rows_options *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_rows_free(oct_rows *rows); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_rows, oct_rows_free)

/* Use: as oct_trace_next(). index, parent and session are unique over copies; *salt is 0 without
 * copies, else the copy's number. */
gboolean oct_rows_next(oct_rows *rows, oct_trace_request *out, guint64 *salt,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Inspect. */
const oct_trace_facts *oct_rows_facts(const oct_rows *rows);
const char *oct_rows_name(const oct_rows *rows);
/* Session starts per second in the trace itself; 0 = not known (no rate was asked for), or none. */
double oct_rows_own_rate(const oct_rows *rows);

#endif
