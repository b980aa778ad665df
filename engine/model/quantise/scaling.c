#include "engine/model/quantise/scaling.h"

#include <math.h>

#include "engine/base/assert.h"
#include "engine/model/files/quantise.h"

#define STEPS       20 /* exponents r = 0, 1/20 … 19/20 */
#define READERS_MAX 3
#define SIZE_MIN    1e-4f /* of an input: channels that are never used get no huge factor */
#define ROWS        16    /* of a weight that are read at a time */

struct oct_scaling {
  const oct_weight_map *map;
  float **inputs, **outputs; /* by position in the map; NULL: all 1 */
};

/* The matrices that read some channels, and what writes them. */
typedef struct link {
  const oct_weight *readers[READERS_MAX];
  guint n_readers;
  const oct_weight *writers[2]; /* a matrix or norm, and its bias; NULL: none */
  guint64 n;                    /* channels as they are written */
  guint64 repeat, block;        /* channel c of a reader is c / (block repeat) block + c % block */
} link;

static guint
position_of(const oct_scaling *s, const oct_weight *w) {
  return (guint)(w - oct_weight_map_at(s->map, 0));
}

static guint64
channel_of(const link *l, guint64 c) {
  return c / (l->block * l->repeat) * l->block + c % l->block;
}

/* --- the search ----------------------------------------------------------------------------------
 */

/* Mean size of each written channel's input, over those of a reader that share it. */
static void
mean_sizes(const link *l, const oct_inputs *inputs, float *out) {
  guint64 columns = l->readers[0]->columns;
  g_autofree float *sizes = g_new(float, columns);
  oct_inputs_sizes(inputs, l->readers[0], sizes);
  for (guint64 c = 0; c < l->n; c++)
    out[c] = 0;
  for (guint64 c = 0; c < columns; c++)
    out[channel_of(l, c)] += sizes[c] / (float)l->repeat;
}

/* factors[n] of exponent r, whose largest and smallest multiply to 1. */
static void
factors_of(const float *sizes, guint64 n, double r, float *factors) {
  float least = INFINITY, most = 0;
  for (guint64 c = 0; c < n; c++) {
    factors[c] = powf(fmaxf(sizes[c], SIZE_MIN), (float)r);
    least = fminf(least, factors[c]);
    most = fmaxf(most, factors[c]);
  }
  float middle = sqrtf(least * most);
  for (guint64 c = 0; c < n; c++)
    factors[c] /= middle;
}

/* Adds what rounding a reader's weights with these factors costs. */
static double
cost_of_rows(const link *l, const float *rows, guint64 n_rows, guint64 columns, guint32 group,
             const float *squares, const float *factors, float *scaled, float *costs) {
  double cost = 0;
  for (guint64 c = 0; c < columns; c++) {
    float factor = factors[channel_of(l, c)];
    costs[c] = squares[c] / (factor * factor);
  }
  for (guint64 row = 0; row < n_rows; row++) {
    for (guint64 c = 0; c < columns; c++)
      scaled[c] = rows[row * columns + c] * factors[channel_of(l, c)];
    for (guint64 c = 0; c < columns; c += group)
      cost += oct_quant_awq_cost(scaled + c, costs + c, group);
  }
  return cost;
}

/* costs[STEPS] of one reader. */
static void
add_costs(const link *l, const oct_weight *w, const oct_inputs *inputs, guint32 group,
          const float *factors, double costs[STEPS]) {
  g_autofree float *squares = g_new(float, w->columns), *scaled = g_new(float, w->columns);
  g_autofree float *weighted = g_new(float, w->columns), *rows = g_new(float, ROWS * w->columns);
  oct_inputs_squares(inputs, w, squares);
  for (guint64 row = 0; row < w->rows; row += ROWS) {
    guint64 n = MIN(ROWS, w->rows - row);
    oct_weight_read(w, row, n, rows);
    for (guint i = 0; i < STEPS; i++)
      costs[i] += cost_of_rows(l, rows, n, w->columns, group, squares, factors + i * l->n, scaled,
                               weighted);
  }
}

/* The best factors of a link; NULL when none are better than 1. */
static float *
search(const link *l, const oct_inputs *inputs, guint32 group) {
  g_autofree float *sizes = g_new(float, l->n), *factors = g_new(float, STEPS * l->n);
  double costs[STEPS] = {0};
  guint best = 0;
  mean_sizes(l, inputs, sizes);
  for (guint i = 0; i < STEPS; i++)
    factors_of(sizes, l->n, (double)i / STEPS, factors + i * l->n);
  for (guint i = 0; i < l->n_readers; i++)
    add_costs(l, l->readers[i], inputs, group, factors, costs);
  for (guint i = 1; i < STEPS; i++)
    if (costs[i] < costs[best])
      best = i;
  return best > 0 ? g_memdup2(factors + best * l->n, l->n * sizeof *factors) : NULL;
}

/* --- links ---------------------------------------------------------------------------------------
 */

static void
add_reader(link *l, const oct_weight *w) {
  if (w != NULL)
    l->readers[l->n_readers++] = w;
}

/* Searches for a link's factors, where all that it needs is there, and notes them. */
static void
take_link(oct_scaling *s, const link *l, const oct_inputs *inputs, guint32 group) {
  if (l->n_readers == 0 || l->writers[0] == NULL || l->writers[0]->rows != l->n)
    return;
  for (guint i = 0; i < l->n_readers; i++)
    if (oct_inputs_rows(inputs, l->readers[i]) == 0 || l->readers[i]->columns % group != 0 ||
        l->readers[i]->columns != l->n * l->repeat)
      return;
  float *factors = search(l, inputs, group);
  if (factors == NULL)
    return;
  for (guint i = 0; i < l->n_readers; i++) {
    const oct_weight *w = l->readers[i];
    float **at = &s->inputs[position_of(s, w)];
    oct_assert(*at == NULL);
    *at = g_new(float, w->columns);
    for (guint64 c = 0; c < w->columns; c++)
      (*at)[c] = factors[channel_of(l, c)];
  }
  for (guint i = 0; i < G_N_ELEMENTS(l->writers) && l->writers[i] != NULL; i++) {
    float **at = &s->outputs[position_of(s, l->writers[i])];
    oct_assert(*at == NULL);
    *at = g_memdup2(factors, l->n * sizeof *factors);
  }
  g_free(factors);
}

static link
link_of(guint64 n) {
  return (link){.n = n, .repeat = 1, .block = n};
}

static void
take_attention(oct_scaling *s, const oct_model_spec *spec, guint32 layer, const oct_inputs *inputs,
               guint32 group) {
  const oct_attention_spec *a = &spec->attention[spec->layers[layer].attention];
  if ((a->kind != OCT_ATTENTION_GQA && a->kind != OCT_ATTENTION_WINDOW) || a->output_gate)
    return;
  link norm = link_of(spec->hidden);
  norm.writers[0] = oct_weight_map_get(s->map, OCT_WEIGHT_ATTN_NORM, layer, 0);
  add_reader(&norm, oct_weight_map_get(s->map, OCT_WEIGHT_Q, layer, 0));
  add_reader(&norm, oct_weight_map_get(s->map, OCT_WEIGHT_K, layer, 0));
  add_reader(&norm, oct_weight_map_get(s->map, OCT_WEIGHT_V, layer, 0));
  take_link(s, &norm, inputs, group);
  link values = {.n = (guint64)a->n_kv_heads * a->head_dim,
                 .repeat = a->n_heads / a->n_kv_heads,
                 .block = a->head_dim};
  values.writers[0] = oct_weight_map_get(s->map, OCT_WEIGHT_V, layer, 0);
  values.writers[1] = oct_weight_map_get(s->map, OCT_WEIGHT_V_BIAS, layer, 0);
  add_reader(&values, oct_weight_map_get(s->map, OCT_WEIGHT_O, layer, 0));
  take_link(s, &values, inputs, group);
}

/* up -> down, of kind `gate` + 1 and + 2. The activation is a product with up, so up's rows may be
 * divided; gpt-oss clamps up and adds to it, so its may not. */
static void
take_inner(oct_scaling *s, guint gate, guint32 layer, guint32 expert, const oct_inputs *inputs,
           guint32 group) {
  const oct_weight *up = oct_weight_map_get(s->map, (oct_weight_kind)(gate + 1), layer, expert);
  if (up == NULL)
    return;
  link inner = link_of(up->rows);
  inner.writers[0] = up;
  add_reader(&inner, oct_weight_map_get(s->map, (oct_weight_kind)(gate + 2), layer, expert));
  take_link(s, &inner, inputs, group);
}

static void
take_ffn(oct_scaling *s, const oct_model_spec *spec, guint32 layer, const oct_inputs *inputs,
         guint32 group) {
  const oct_ffn_spec *ffn = &spec->ffn[spec->layers[layer].ffn];
  if (spec->activation != OCT_ACTIVATION_SWIGLU)
    return;
  take_inner(s, OCT_WEIGHT_GATE, layer, 0, inputs, group);
  take_inner(s, OCT_WEIGHT_SHARED_GATE, layer, 0, inputs, group);
  for (guint32 e = 0; e < ffn->n_experts; e++)
    take_inner(s, OCT_WEIGHT_EXPERT_GATE, layer, e, inputs, group);
  if (ffn->kind != OCT_FFN_DENSE)
    return;
  link norm = link_of(spec->hidden);
  norm.writers[0] = oct_weight_map_get(s->map, OCT_WEIGHT_FFN_NORM, layer, 0);
  add_reader(&norm, oct_weight_map_get(s->map, OCT_WEIGHT_GATE, layer, 0));
  add_reader(&norm, oct_weight_map_get(s->map, OCT_WEIGHT_UP, layer, 0));
  take_link(s, &norm, inputs, group);
}

/* --- life cycle ----------------------------------------------------------------------------------
 */

oct_scaling *
oct_scaling_new(const oct_model_spec *spec, const oct_weight_map *map, const oct_inputs *inputs,
                guint32 group, void (*progress)(void *user, double fraction), void *user) {
  oct_scaling *s = g_new0(oct_scaling, 1);
  s->map = map;
  s->inputs = g_new0(float *, oct_weight_map_n(map));
  s->outputs = g_new0(float *, oct_weight_map_n(map));
  for (guint32 layer = 0; layer < spec->n_layers; layer++) {
    take_attention(s, spec, layer, inputs, group);
    take_ffn(s, spec, layer, inputs, group);
    if (progress != NULL)
      progress(user, (double)(layer + 1) / spec->n_layers);
  }
  return s;
}

void
oct_scaling_free(oct_scaling *s) {
  if (s == NULL)
    return;
  for (guint i = 0; i < oct_weight_map_n(s->map); i++) {
    g_free(s->inputs[i]);
    g_free(s->outputs[i]);
  }
  g_free(s->inputs);
  g_free(s->outputs);
  g_free(s);
}

const float *
oct_scaling_inputs(const oct_scaling *s, const oct_weight *w) {
  return s->inputs[position_of(s, w)];
}

const float *
oct_scaling_outputs(const oct_scaling *s, const oct_weight *w) {
  return s->outputs[position_of(s, w)];
}
