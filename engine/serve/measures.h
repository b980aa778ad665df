/* What the service measures: vllm:* metrics (names and buckets as vLLM's dashboards expect them),
 * the log line of a request. The front's alone: histograms are fed by what passes through it,
 * counters of the engines are read from the bulletin when somebody asks.
 */
#ifndef OCT_SERVE_MEASURES_H
#define OCT_SERVE_MEASURES_H

#include "engine/serve/internal.h"

oct_measures *oct_measures_new(const oct_service_config *config);
void oct_measures_free(oct_measures *measures); /* accepts NULL */

/* A choice has had n more tokens of a replica at now_ns; choice->last_ns is when the ones before
 * came. */
void oct_measures_tokens(oct_measures *measures, guint32 replica, oct_choice *choice, guint32 n,
                         gint64 now_ns);
/* A step of a replica computed and sampled so many tokens. */
void oct_measures_step(oct_measures *measures, guint32 replica, guint32 n_tokens);
/* It has ended for its client, or would have if that had not left: generation->end is filled. */
void oct_measures_ended(oct_measures *measures, const oct_generation *generation);
/* Refused at once, or by the engine's queue. */
void oct_measures_refused(oct_measures *measures);
void oct_measures_write(oct_measures *measures, const oct_service *service, GString *out);

/* The log's line of a generation that has ended, without newline. Owned. */
char *oct_measures_line(const oct_generation *generation);

#endif
