#include "engine/model/quantise/inputs.h"

#include <math.h>

#include "engine/base/assert.h"

/* Sums in float64: a calibration text has many rows. */
typedef struct channel {
  double size, square;
} channel;

typedef struct seen {
  guint64 rows;
  channel *channels; /* NULL before the first row */
} seen;

struct oct_inputs {
  const oct_weight_map *map;
  seen *weights; /* by position in the map */
};

oct_inputs *
oct_inputs_new(const oct_weight_map *map) {
  oct_inputs *inputs = g_new0(oct_inputs, 1);
  inputs->map = map;
  inputs->weights = g_new0(seen, oct_weight_map_n(map));
  return inputs;
}

void
oct_inputs_free(oct_inputs *inputs) {
  if (inputs == NULL)
    return;
  for (guint i = 0; i < oct_weight_map_n(inputs->map); i++)
    g_free(inputs->weights[i].channels);
  g_free(inputs->weights);
  g_free(inputs);
}

static seen *
seen_of(const oct_inputs *inputs, const oct_weight *w) {
  oct_weight_kind kind = w->kind == OCT_WEIGHT_UP          ? OCT_WEIGHT_GATE
                         : w->kind == OCT_WEIGHT_SHARED_UP ? OCT_WEIGHT_SHARED_GATE
                         : w->kind == OCT_WEIGHT_EXPERT_UP ? OCT_WEIGHT_EXPERT_GATE
                                                           : w->kind;
  const oct_weight *its = oct_weight_map_get(inputs->map, kind, w->layer, w->expert);
  oct_assert(its != NULL && its->columns == w->columns);
  return &inputs->weights[its - oct_weight_map_at(inputs->map, 0)];
}

void
oct_inputs_add(oct_inputs *inputs, const oct_weight *w, const float *x, gsize stride, guint32 n) {
  seen *s = seen_of(inputs, w);
  if (s->channels == NULL)
    s->channels = g_new0(channel, w->columns);
  s->rows += n;
  for (guint32 i = 0; i < n; i++)
    for (guint64 c = 0; c < w->columns; c++) {
      double value = (double)x[i * stride + c];
      s->channels[c].size += fabs(value);
      s->channels[c].square += value * value;
    }
}

guint64
oct_inputs_rows(const oct_inputs *inputs, const oct_weight *w) {
  return seen_of(inputs, w)->rows;
}

void
oct_inputs_sizes(const oct_inputs *inputs, const oct_weight *w, float *out) {
  const seen *s = seen_of(inputs, w);
  oct_assert(s->rows > 0);
  for (guint64 c = 0; c < w->columns; c++)
    out[c] = (float)(s->channels[c].size / (double)s->rows);
}

void
oct_inputs_squares(const oct_inputs *inputs, const oct_weight *w, float *out) {
  const seen *s = seen_of(inputs, w);
  oct_assert(s->rows > 0);
  for (guint64 c = 0; c < w->columns; c++)
    out[c] = (float)(s->channels[c].square / (double)s->rows);
}
