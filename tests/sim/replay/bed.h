/* A test bed of replays: a mock world, a small model, and every outcome kept by index.
 *
 *   bed b;  bed_init(&b);  b.mock.fixed_ns = …;  b.drive.engine.max_num_seqs = 1; …
 *   bed_run(&b, "gen:rate=…,requests=…");  b.result …, bed_outcome(&b, i) …;  bed_clear(&b);
 */
#ifndef OCT_TESTS_SIM_REPLAY_BED_H
#define OCT_TESTS_SIM_REPLAY_BED_H

#include "backends/mock/mock.h"
#include "sim/replay/drive.h"

typedef struct bed {
  oct_mock_options mock;
  oct_drive_config drive;
  oct_rows_options rows;
  guint32 concurrency;
  gboolean digest_log;  /* keep a digest of the event log */
  oct_model_spec *spec; /* a dense model of two layers */
  GArray *outcomes;     /* oct_outcome by index; arrival_ns -1 = not seen */
  oct_drive_result result;
  oct_hash128 digest; /* of the event log, and its lines */
  guint64 log_lines;
} bed;

/* Defaults: no host time, room for everything, exact lengths. */
void bed_init(bed *b);
/* `path` as oct_trace_open() takes it. May be called again: the result is replaced. */
gboolean bed_run(bed *b, const char *path, GError **error);
const oct_outcome *bed_outcome(const bed *b, guint64 index);
void bed_clear(bed *b);

#endif
