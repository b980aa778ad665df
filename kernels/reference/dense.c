/* Rows of weights, norms, matrix products and gated activations. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "kernels/reference/vector.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* ---------------------------------------------------------------- MXFP8 */

static float
round_to_e4m3(float x) {
  float size = fminf(fabsf(x), 448), step = ldexpf(1, (size < 0x1p-6f ? -6 : ilogbf(size)) - 3);
  return copysignf(fminf(nearbyintf(size / step) * step, 448), x);
}

void
oct_ref_quantise_mx(const float *x, size_t n, float *out, uint8_t *scales) {
  for (size_t at = 0; at < n; at += 32) {
    float most = 0;
    for (size_t i = at; i < at + 32; i++)
      most = fmaxf(most, fabsf(x[i]));
    int exponent = most < 0x1p-118f ? -127 : ilogbf(most) - 8;
    exponent += exponent > -127 && most > ldexpf(448, exponent);
    for (size_t i = at; i < at + 32; i++)
      out[i] = ldexpf(round_to_e4m3(ldexpf(x[i], -exponent)), exponent);
    scales[at / 32] = (uint8_t)(exponent + 127);
  }
}

/* ---------------------------------------------------------------- rows */

void
oct_ref_rows(const oct_matrix *w, uint32_t first, uint32_t n, float *out) {
  size_t at = (size_t)first * w->columns, count = (size_t)n * w->columns;
  switch (w->format) {
  case OCT_MATRIX_F32:
    memcpy(out, (const float *)w->data + at, count * sizeof *out);
    break;
  case OCT_MATRIX_BF16:
    oct_ref_expand_bf16((const uint16_t *)w->data + at, count, out);
    break;
  case OCT_MATRIX_ROWS:
    w->read(w->data, first, n, out);
    break;
  }
}

void
oct_ref_embed(const oct_matrix *table, const uint32_t *ids, uint32_t n, float *out) {
  for (uint32_t i = 0; i < n; i++)
    oct_ref_rows(table, ids[i], 1, out + (size_t)i * table->columns);
}

void
oct_ref_rms_norm(const float *x, const float *weight, uint32_t n, uint32_t width, size_t stride,
                 float eps, float *out) {
  for (uint32_t i = 0; i < n; i++, x += stride, out += stride) {
    float squares;
    oct_ref_dots(x, width, 1, x, width, 1, width, &squares, 1);
    float scale = 1 / sqrtf(squares / (float)width + eps);
    for (uint32_t c = 0; c < width; c++)
      out[c] = x[c] * scale * (weight != NULL ? weight[c] : 1);
  }
}

/* ---------------------------------------------------------------- products */

/* Up to OCT_REF_MATMUL_ROWS rows as float32, in place where they are stored so. */
static const float *
rows_of(const oct_matrix *w, uint32_t first, uint32_t n, float *scratch) {
  if (w->format == OCT_MATRIX_F32)
    return (const float *)w->data + (size_t)first * w->columns;
  oct_ref_rows(w, first, n, scratch);
  return scratch;
}

void
oct_ref_matmul(const oct_matmul *call, uint32_t first, uint32_t n, float *scratch) {
  const oct_matrix *w = call->weight;
  for (uint32_t done = 0; done < n; done += OCT_REF_MATMUL_ROWS) {
    uint32_t row = first + done, count = MIN(n - done, OCT_REF_MATMUL_ROWS);
    const float *rows = rows_of(w, row, count, scratch);
    float *y = call->y + (row - call->y_first);
    oct_ref_dots(call->x, call->x_stride, call->m, rows, w->columns, count, w->columns, y,
                 call->y_stride);
    for (uint32_t i = 0; call->bias != NULL && i < call->m; i++)
      for (uint32_t r = 0; r < count; r++)
        y[i * call->y_stride + r] += call->bias[row + r];
  }
}

void
oct_ref_matmul_transposed(const oct_matmul *call, uint32_t first, uint32_t n, float *scratch) {
  const oct_matrix *w = call->weight;
  for (uint32_t i = 0; i < call->m; i++)
    memset(call->y + i * call->y_stride, 0, w->columns * sizeof *call->y);
  for (uint32_t done = 0; done < n; done += OCT_REF_MATMUL_ROWS) {
    uint32_t count = MIN(n - done, OCT_REF_MATMUL_ROWS);
    const float *rows = rows_of(w, first + done, count, scratch);
    oct_ref_combine(call->x + done, call->x_stride, call->m, rows, w->columns, count, w->columns,
                    call->y, call->y_stride);
  }
}

void
oct_ref_add(float *y, const float *x, size_t n) {
  for (size_t i = 0; i < n; i++)
    y[i] += x[i];
}

/* ---------------------------------------------------------------- activations */

static inline float
sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

void
oct_ref_glu(const oct_glu_params *params, const float *gate, const float *up, size_t step,
            uint32_t n, float *out) {
  if (params->kind == OCT_GLU_SWIGLU) {
    for (uint32_t i = 0; i < n; i++) {
      float g = gate[i * step];
      out[i] = g * sigmoid(g) * up[i * step];
    }
    return;
  }
  if (params->kind == OCT_GLU_SITU) {
    float alpha = params->alpha, limit = params->limit;
    for (uint32_t i = 0; i < n; i++) {
      float g = gate[i * step], u = up[i * step];
      out[i] = alpha * tanhf(g / alpha) * sigmoid(g) * (limit * tanhf(u / limit));
    }
    return;
  }
  for (uint32_t i = 0; i < n; i++) {
    float g = fminf(gate[i * step], params->limit);
    float u = fminf(fmaxf(up[i * step], -params->limit), params->limit);
    out[i] = g * sigmoid(params->alpha * g) * (u + 1);
  }
}

void
oct_ref_mlp(const oct_mlp *mlp, const float *x, uint32_t m, float *out, float *scratch) {
  size_t inner = mlp->inner, width = 2 * inner;
  float *both = scratch, *rest = scratch + m * width;
  oct_matmul call = {.x = x, .x_stride = mlp->outer, .m = m, .y = both, .y_stride = width};
  if (mlp->gate_up != NULL) {
    call.weight = mlp->gate_up;
    call.bias = mlp->gate_up_bias;
    oct_ref_matmul(&call, 0, (uint32_t)width, rest);
  } else {
    call.weight = mlp->gate;
    call.bias = mlp->gate_bias;
    oct_ref_matmul(&call, 0, mlp->inner, rest);
    call.weight = mlp->up;
    call.bias = mlp->up_bias;
    call.y = both + inner;
    oct_ref_matmul(&call, 0, mlp->inner, rest);
  }
  for (uint32_t i = 0; i < m; i++) {
    float *row = both + i * width;
    if (mlp->gate_up != NULL)
      oct_ref_glu(&mlp->glu, row, row + 1, 2, mlp->inner, row);
    else
      oct_ref_glu(&mlp->glu, row, row + inner, 1, mlp->inner, row);
  }
  call = (oct_matmul){.weight = mlp->down,
                      .bias = mlp->down_bias,
                      .x = both,
                      .x_stride = width,
                      .m = m,
                      .y = out,
                      .y_stride = mlp->outer};
  oct_ref_matmul(&call, 0, mlp->outer, rest);
}

/* ---------------------------------------------------------------- attention residuals */

void
oct_ref_residual_mix(const oct_residual_mix *mix, const float *const *sources, uint32_t n,
                     float *out, float *weights, float *scratch) {
  uint32_t width = mix->width;
  float *sum = scratch + width, most = -INFINITY;
  double total = 0;
  for (uint32_t i = 0; i < n; i++) {
    oct_ref_rms_norm(sources[i], mix->norm, 1, width, width, mix->eps, scratch);
    oct_ref_dots(scratch, width, 1, mix->proj, width, 1, width, &weights[i], 1);
    most = fmaxf(most, weights[i]);
  }
  for (uint32_t i = 0; i < n; i++) {
    weights[i] = expf(weights[i] - most);
    total += weights[i];
  }
  memset(sum, 0, width * sizeof *sum);
  for (uint32_t i = 0; i < n; i++) {
    weights[i] = (float)(weights[i] / total);
    oct_ref_combine(&weights[i], 1, 1, sources[i], width, 1, width, sum, width);
  }
  memcpy(out, sum, width * sizeof *out);
}
