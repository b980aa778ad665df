/* Clients of ServeGen (alibaba/ServeGen) as a source of arrivals and lengths.
 *
 * A client is two files: X-trace.csv, one line per window "start_s,rate,cv,law,shape,scale" (law
 * Gamma, Weibull or empty: silent), and X-dataset.json, per 6-hour window a probability for each
 * input and each output length. Windows without lengths are silent, as in ServeGen.
 *
 * The rate of a window and the law's shape are used; cv and scale are not, because they do not
 * agree with the rate (a law of the stated shape is stretched to the mean 1/rate, as ServeGen's own
 * generator does). A gap that a window's end cuts goes on in the next at the next one's rate.
 */
#ifndef OCT_TRACES_SERVEGEN_H
#define OCT_TRACES_SERVEGEN_H

#include <glib.h>

typedef struct oct_servegen oct_servegen;

typedef struct oct_servegen_event {
  gint64 arrival_ns; /* from from_s on */
  guint32 input_tokens, output_tokens;
  const char *client; /* file name without "-trace.csv"; lives as long as the source */
} oct_servegen_event;

/* Life cycle. The clients of `paths` (NULL-terminated) run side by side from second from_s of their
 * week for duration_s (0: to the end of their windows). rate > 0: all rates are multiplied by one
 * number, so that their mean over that time is `rate`; 0: as recorded. Errors name file and line.
 */
oct_servegen *oct_servegen_new(char *const *paths, double from_s, double duration_s, double rate,
                               guint64 seed, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_servegen_free(oct_servegen *servegen); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_servegen, oct_servegen_free)

/* Use. FALSE: the end. */
gboolean oct_servegen_next(oct_servegen *servegen, oct_servegen_event *out);

#endif
