/* Which kernel makes a matrix product; and cuBLASLt, which is loaded when it is first needed, so
 * that a program starts where it is not installed. */
#include "kernels/cuda/matmul.cuh"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define SKINNY_ROWS_MAX 64
#define NARROW_ROWS_MAX 64
/* BF16: the own kernel is quicker than cuBLASLt up to so many rows, for weights of so many bytes.
 */
#define SKINNY_BF16_MAX   8
#define SKINNY_BF16_BYTES (24u << 20)
/* Of larger ones the narrow kernel up to so many, by whole steps. */
#define NARROW_BF16_MAX 64
/* The same with the activation, against cuBLASLt and a kernel for that. */
#define NARROW_GATED_MAX 16
/* Rows of a tall weight; rows of x with which cuBLASLt's second way serves it. */
#define TALL_ROWS       16384
#define SECOND_ROWS_MIN 32
#define SECOND_ROWS_MAX 64
#define PLANS           4096 /* a power of two; over two thirds full, all are made anew */

/* ---------------------------------------------------------------- the library */

#define OCT_BLAS_FUNCTIONS(X)                                                                      \
  X(cublasLtCreate)                                                                                \
  X(cublasLtDestroy)                                                                               \
  X(cublasLtMatmul)                                                                                \
  X(cublasLtMatmulAlgoGetHeuristic)                                                                \
  X(cublasLtMatmulDescCreate)                                                                      \
  X(cublasLtMatmulDescDestroy)                                                                     \
  X(cublasLtMatmulDescSetAttribute)                                                                \
  X(cublasLtMatrixLayoutCreate)                                                                    \
  X(cublasLtMatrixLayoutDestroy)                                                                   \
  X(cublasLtMatrixLayoutSetAttribute)                                                              \
  X(cublasLtMatmulPreferenceCreate)                                                                \
  X(cublasLtMatmulPreferenceDestroy)                                                               \
  X(cublasLtMatmulPreferenceSetAttribute)

struct blas_library {
  void *handle;
#define OCT_BLAS_MEMBER(name) decltype(&::name) name;
  OCT_BLAS_FUNCTIONS(OCT_BLAS_MEMBER)
#undef OCT_BLAS_MEMBER
};

static bool
open_library(blas_library *l) {
  static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                      "/usr/local/cuda/lib64/libcublasLt.so"};
  for (size_t i = 0; l->handle == NULL && i < sizeof names / sizeof *names; i++)
    l->handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (l->handle == NULL)
    return false;
#define OCT_BLAS_FIND(name)                                                                        \
  l->name = (decltype(l->name))dlsym(l->handle, #name);                                            \
  if (l->name == NULL)                                                                             \
    return false;
  OCT_BLAS_FUNCTIONS(OCT_BLAS_FIND)
#undef OCT_BLAS_FIND
  return true;
}

/* ---------------------------------------------------------------- plans */

/* What a plan depends on; zeroed before it is filled in, as it is compared bytewise. */
struct plan_key {
  uint32_t m, rows, columns, batch;
  size_t x_stride, w_stride, y_stride, x_batch, w_batch, y_batch;
  uint8_t w_type, x_type, y_type, transposed, has_bias, alignment[3];
};

struct plan {
  bool used;
  plan_key key;
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

struct oct_cuda_blas {
  blas_library library;
  cublasLtHandle_t handle;
  void *workspace;
  size_t workspace_bytes;
  int status;
  uint32_t n_plans;
  plan plans[PLANS];
};

oct_cuda_blas *
oct_cuda_blas_new(void *workspace, size_t workspace_bytes) {
  oct_cuda_blas *blas = (oct_cuda_blas *)calloc(1, sizeof *blas);
  if (blas == NULL)
    return NULL;
  blas->workspace = workspace;
  blas->workspace_bytes = workspace_bytes;
  if (!open_library(&blas->library) ||
      blas->library.cublasLtCreate(&blas->handle) != CUBLAS_STATUS_SUCCESS) {
    oct_cuda_blas_free(blas);
    return NULL;
  }
  return blas;
}

static void
free_plan(oct_cuda_blas *blas, plan *p) {
  const blas_library *l = &blas->library;
  if (p->operation != NULL)
    l->cublasLtMatmulDescDestroy(p->operation);
  if (p->a != NULL)
    l->cublasLtMatrixLayoutDestroy(p->a);
  if (p->b != NULL)
    l->cublasLtMatrixLayoutDestroy(p->b);
  if (p->d != NULL)
    l->cublasLtMatrixLayoutDestroy(p->d);
  memset(p, 0, sizeof *p);
}

static void
free_plans(oct_cuda_blas *blas) {
  for (uint32_t i = 0; blas->n_plans > 0 && i < PLANS; i++)
    if (blas->plans[i].used)
      free_plan(blas, &blas->plans[i]);
  blas->n_plans = 0;
}

void
oct_cuda_blas_free(oct_cuda_blas *blas) {
  if (blas == NULL)
    return;
  if (blas->handle != NULL) {
    free_plans(blas);
    blas->library.cublasLtDestroy(blas->handle);
  }
  if (blas->library.handle != NULL)
    dlclose(blas->library.handle);
  free(blas);
}

int
oct_cuda_blas_status(const oct_cuda_blas *blas) {
  return blas->status;
}

static uint64_t
hash_key(const plan_key *key) {
  const uint8_t *bytes = (const uint8_t *)key;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < sizeof *key; i++)
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash ^ hash >> 32;
}

static cudaDataType_t
blas_type(uint8_t type) {
  return type == OCT_CUDA_F32 ? CUDA_R_32F : type == OCT_CUDA_BF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
}

static cublasStatus_t
make_layout(const blas_library *l, cublasLtMatrixLayout_t *layout, uint8_t type, uint64_t rows,
            uint64_t columns, size_t stride, uint32_t batch, size_t distance) {
  cublasStatus_t s =
      l->cublasLtMatrixLayoutCreate(layout, blas_type(type), rows, columns, (int64_t)stride);
  if (s != CUBLAS_STATUS_SUCCESS || batch == 1)
    return s;
  int32_t count = (int32_t)batch;
  int64_t offset = (int64_t)distance;
  s = l->cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof count);
  if (s == CUBLAS_STATUS_SUCCESS)
    s = l->cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                            &offset, sizeof offset);
  return s;
}

/* Of the ways that cuBLASLt proposes for a few rows of x and a tall weight, the second is the
 * quicker one, by steps on an H200: its tiles are smaller, so that more of them are under way. */
static bool
takes_second(const plan_key *k) {
  return k->w_type == OCT_CUDA_BF16 && k->rows >= TALL_ROWS && k->m > SECOND_ROWS_MIN &&
         k->m <= SECOND_ROWS_MAX && k->batch == 1 && !k->transposed;
}

static cublasStatus_t
choose_algorithm(oct_cuda_blas *blas, plan *p) {
  const blas_library *l = &blas->library;
  cublasLtMatmulPreference_t preference;
  cublasStatus_t s = l->cublasLtMatmulPreferenceCreate(&preference);
  if (s != CUBLAS_STATUS_SUCCESS)
    return s;
  uint64_t bytes = blas->workspace_bytes;
  l->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                          &bytes, sizeof bytes);
  static const cublasLtMatmulPreferenceAttributes_t sides[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  for (int i = 0; i < 3; i++) {
    uint32_t alignment = p->key.alignment[i];
    l->cublasLtMatmulPreferenceSetAttribute(preference, sides[i], &alignment, sizeof alignment);
    if (i == 2)
      l->cublasLtMatmulPreferenceSetAttribute(
          preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &alignment, sizeof alignment);
  }
  cublasLtMatmulHeuristicResult_t results[2];
  int found = 0;
  s = l->cublasLtMatmulAlgoGetHeuristic(blas->handle, p->operation, p->a, p->b, p->d, p->d,
                                        preference, takes_second(&p->key) ? 2 : 1, results, &found);
  l->cublasLtMatmulPreferenceDestroy(preference);
  if (s == CUBLAS_STATUS_SUCCESS && found == 0)
    s = CUBLAS_STATUS_NOT_SUPPORTED;
  if (s == CUBLAS_STATUS_SUCCESS)
    p->algorithm = results[found - 1].algo;
  return s;
}

static cublasStatus_t
set_scales(const blas_library *l, plan *p, const oct_cuda_matmul *c) {
  cublasStatus_t s =
      l->cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                        &c->weight.scales, sizeof c->weight.scales);
  if (s != CUBLAS_STATUS_SUCCESS)
    return s;
  return l->cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                           &c->x_scale, sizeof c->x_scale);
}

/* cuBLASLt's matrices are column by column: the weight is A, x is B, and y comes transposed. */
static cublasStatus_t
make_plan(oct_cuda_blas *blas, plan *p, const oct_cuda_matmul *c) {
  const blas_library *l = &blas->library;
  const plan_key *k = &p->key;
  cublasStatus_t s = l->cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasOperation_t turn = k->transposed ? CUBLAS_OP_N : CUBLAS_OP_T;
  if (s == CUBLAS_STATUS_SUCCESS)
    s = l->cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA, &turn,
                                          sizeof turn);
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  if (s == CUBLAS_STATUS_SUCCESS && k->has_bias)
    s = l->cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                          sizeof epilogue);
  /* Of fp8 operands each row has a scale. */
  int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  if (s == CUBLAS_STATUS_SUCCESS && k->x_type == OCT_CUDA_FP8)
    s = l->cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode,
                                          sizeof mode);
  if (s == CUBLAS_STATUS_SUCCESS && k->x_type == OCT_CUDA_FP8)
    s = l->cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode,
                                          sizeof mode);
  /* What serves scales of rows is found only where they are. */
  if (s == CUBLAS_STATUS_SUCCESS && k->x_type == OCT_CUDA_FP8)
    s = set_scales(l, p, c);
  uint64_t outputs = k->transposed ? k->columns : k->rows;
  uint64_t inputs = k->transposed ? k->rows : k->columns;
  if (s == CUBLAS_STATUS_SUCCESS)
    s = make_layout(l, &p->a, k->w_type, k->columns, k->rows, k->w_stride, k->batch, k->w_batch);
  if (s == CUBLAS_STATUS_SUCCESS)
    s = make_layout(l, &p->b, k->x_type, inputs, k->m, k->x_stride, k->batch, k->x_batch);
  if (s == CUBLAS_STATUS_SUCCESS)
    s = make_layout(l, &p->d, k->y_type, outputs, k->m, k->y_stride, k->batch, k->y_batch);
  if (s == CUBLAS_STATUS_SUCCESS)
    s = choose_algorithm(blas, p);
  return s;
}

static uint8_t
alignment_of(const void *pointer) {
  uint8_t n = 16;
  while (n > 1 && (uintptr_t)pointer % n != 0)
    n /= 2;
  return n;
}

/* The plan for a call, made when there is none; NULL with blas->status. */
static plan *
find_plan(oct_cuda_blas *blas, const plan_key *key, const oct_cuda_matmul *c) {
  if (blas->n_plans > PLANS / 3 * 2)
    free_plans(blas);
  uint32_t at = (uint32_t)hash_key(key) % PLANS;
  while (blas->plans[at].used && memcmp(&blas->plans[at].key, key, sizeof *key) != 0)
    at = (at + 1) % PLANS;
  plan *p = &blas->plans[at];
  if (p->used)
    return p;
  p->key = *key;
  cublasStatus_t s = make_plan(blas, p, c);
  if (s != CUBLAS_STATUS_SUCCESS) {
    blas->status = (int)s;
    free_plan(blas, p);
    return NULL;
  }
  p->used = true;
  blas->n_plans++;
  return p;
}

static plan_key
make_key(const oct_cuda_matmul *c) {
  plan_key k;
  memset(&k, 0, sizeof k);
  k.m = c->m;
  k.rows = c->weight.rows;
  k.columns = c->weight.columns;
  k.batch = c->batch > 1 ? c->batch : 1;
  k.x_stride = c->x_stride;
  k.w_stride = c->w_stride > 0 ? c->w_stride : c->weight.columns;
  k.y_stride = c->y_stride;
  if (k.batch > 1) {
    k.x_batch = c->x_batch;
    k.w_batch = c->w_batch;
    k.y_batch = c->y_batch;
  }
  k.w_type = c->weight.format == OCT_CUDA_MATRIX_F32    ? OCT_CUDA_F32
             : c->weight.format == OCT_CUDA_MATRIX_BF16 ? OCT_CUDA_BF16
                                                        : OCT_CUDA_FP8;
  k.x_type = (uint8_t)c->x_type;
  k.y_type = (uint8_t)c->y_type;
  k.transposed = c->transposed;
  k.has_bias = c->bias != NULL;
  k.alignment[0] = alignment_of(c->weight.data);
  k.alignment[1] = alignment_of(c->x);
  k.alignment[2] = alignment_of(c->y);
  return k;
}

static int
multiply_blas(const oct_cuda_queue *queue, oct_cuda_blas *blas, const oct_cuda_matmul *c) {
  if (blas == NULL)
    return OCT_CUDA_UNSUPPORTED;
  const blas_library *l = &blas->library;
  plan_key key = make_key(c);
  plan *p = find_plan(blas, &key, c);
  if (p == NULL)
    return OCT_CUDA_BLAS;
  cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
  if (c->bias != NULL)
    s = l->cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias,
                                          sizeof c->bias);
  if (s == CUBLAS_STATUS_SUCCESS && c->x_type == OCT_CUDA_FP8)
    s = set_scales(l, p, c);
  if (queue->launches != NULL)
    oct_cuda_count_launch(queue->launches, NULL, "cublasLtMatmul");
  float one = 1, keep = c->accumulate ? 1 : 0;
  if (s == CUBLAS_STATUS_SUCCESS)
    s = l->cublasLtMatmul(blas->handle, p->operation, &one, c->weight.data, p->a, c->x, p->b, &keep,
                          c->y, p->d, c->y, p->d, &p->algorithm, blas->workspace,
                          blas->workspace_bytes, queue->stream);
  blas->status = (int)s;
  return s == CUBLAS_STATUS_SUCCESS ? OCT_CUDA_OK : OCT_CUDA_BLAS;
}

/* ---------------------------------------------------------------- the choice */

static matmul_args
make_args(const oct_cuda_matmul *c) {
  matmul_args a = {};
  a.w = c->weight.data;
  a.scales = c->weight.scales;
  a.group = c->weight.group;
  a.rows = c->weight.rows;
  a.columns = c->weight.columns;
  a.w_stride = c->w_stride > 0 ? c->w_stride : c->weight.columns;
  a.x = c->x;
  a.x_stride = c->x_stride;
  a.bias = c->bias;
  a.y = c->y;
  a.y_stride = c->y_stride;
  a.m = c->m;
  a.y_is_float = c->y_type == OCT_CUDA_F32;
  a.accumulate = c->accumulate;
  a.glu = c->glu;
  a.batch = c->batch > 1 ? c->batch : 1;
  if (a.batch > 1) {
    a.x_batch = c->x_batch;
    a.w_batch = c->w_batch;
    a.y_batch = c->y_batch;
  }
  a.n_matrices = 1;
  a.transposed = c->transposed;
  if (c->transposed) {
    a.rows = c->weight.columns;
    a.columns = c->weight.rows;
  }
  return a;
}

size_t
oct_cuda_matrix_bytes(const oct_cuda_matrix *m) {
  size_t n = (size_t)m->rows * m->columns;
  if (m->format <= OCT_CUDA_MATRIX_BF16)
    return m->format == OCT_CUDA_MATRIX_F32 ? 4 * n : 2 * n;
  return m->format < OCT_CUDA_MATRIX_MXFP4 ? n : (size_t)m->rows * round_up(m->columns, 128) / 2;
}

size_t
oct_cuda_matrix_scale_bytes(const oct_cuda_matrix *m) {
  size_t chunks = ceil_div(m->columns, 128);
  if (m->format == OCT_CUDA_MATRIX_FP8)
    return m->rows * sizeof(float);
  if (m->format == OCT_CUDA_MATRIX_FP8_BLOCK)
    return ceil_div(m->rows, 128) * chunks * sizeof(float);
  if (m->format == OCT_CUDA_MATRIX_MXFP4 || m->format == OCT_CUDA_MATRIX_MXFP4_ROWS)
    return chunks * m->rows * 4;
  return m->format == OCT_CUDA_MATRIX_INT4 ? chunks * m->rows * (128 / m->group) * 4 : 0;
}

bool
oct_matmul_is_even(const matmul_args &a, oct_cuda_format format) {
  static const uint32_t step[] = {
      [OCT_CUDA_MATRIX_F32] = 4,        [OCT_CUDA_MATRIX_BF16] = 8,   [OCT_CUDA_MATRIX_FP8] = 16,
      [OCT_CUDA_MATRIX_FP8_BLOCK] = 16, [OCT_CUDA_MATRIX_MXFP4] = 32, [OCT_CUDA_MATRIX_INT4] = 32};
  return format < OCT_CUDA_MATRIX_MXFP4_ROWS && a.columns % step[format] == 0 &&
         a.x_stride % 8 == 0 && (format != OCT_CUDA_MATRIX_BF16 || a.w_stride % 8 == 0) &&
         (uintptr_t)a.x % 16 == 0 && (uintptr_t)a.w % 16 == 0;
}

/* Where the kernel for codes is the quicker one, by kernels/bench on an H200: for weights of many
 * rows from more than `tall` rows of x on, for others from more than `low`, or `small`, on. */
#define SMALL_WEIGHTS (20u << 20)

static bool
prefers_codes(const oct_cuda_matmul *c) {
  static const struct {
    uint32_t tall, low, small;
  } of[] = {/* from FP8 on */ {8, 16, 16}, {0, 16, 16}, {0, 4, 8}, {0, 4, 8}};
  if (c->weight.format < OCT_CUDA_MATRIX_FP8 || c->weight.format > OCT_CUDA_MATRIX_INT4)
    return false;
  uint32_t i = c->weight.format - OCT_CUDA_MATRIX_FP8;
  bool is_small = (size_t)c->weight.rows * c->weight.columns < SMALL_WEIGHTS;
  return c->m > (c->weight.rows >= TALL_ROWS ? of[i].tall : is_small ? of[i].small : of[i].low);
}

/* Large weights for a few rows of x: the narrow kernel begins to read them while its predecessors
 * end, as cuBLASLt's do not. */
static bool
prefers_narrow(const oct_cuda_queue *queue, const oct_cuda_matmul *c, const matmul_args &a) {
  bool in_parts = a.batch > 1;
  return c->m <= (a.glu != NULL ? NARROW_GATED_MAX : NARROW_BF16_MAX) &&
         (size_t)a.batch * a.rows * a.columns * 2 > SKINNY_BF16_BYTES &&
         c->y_type == (in_parts ? OCT_CUDA_F32 : OCT_CUDA_BF16) &&
         oct_matmul_narrow_can(queue, c->weight.format, a) && oct_matmul_narrow_fills(queue, a);
}

/* Whatever the number of rows of x, each sum goes over the inputs in one order. The narrow and the
 * wide kernel have the same one, of the same instruction. */
static oct_cuda_path
choose_fixed(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  if (a.glu != NULL || !oct_matmul_narrow_can(queue, format, a) ||
      !oct_matmul_wide_can(queue, format, a))
    return OCT_CUDA_PATH_TILE;
  return a.m <= NARROW_ROWS_MAX ? OCT_CUDA_PATH_NARROW : OCT_CUDA_PATH_WIDE;
}

oct_cuda_path
oct_cuda_matmul_path(const oct_cuda_queue *queue, const oct_cuda_matmul *c) {
  if (c->path != OCT_CUDA_PATH_AUTO)
    return c->path;
  if (c->x_type == OCT_CUDA_FP8)
    return OCT_CUDA_PATH_BLAS;
  matmul_args a = make_args(c);
  if ((queue->flags & OCT_CUDA_FIXED_ORDER) != 0)
    return choose_fixed(queue, c->weight.format, a);
  if (prefers_narrow(queue, c, a))
    return OCT_CUDA_PATH_NARROW;
  if (c->batch > 1 || c->transposed)
    return OCT_CUDA_PATH_BLAS;
  if (prefers_codes(c) && oct_matmul_codes_can(queue, c->weight.format, a))
    return OCT_CUDA_PATH_CODES;
  if (c->weight.format == OCT_CUDA_MATRIX_BF16 && c->m <= SKINNY_BF16_MAX &&
      (size_t)a.rows * a.columns * 2 <= SKINNY_BF16_BYTES &&
      oct_matmul_is_even(a, c->weight.format))
    return OCT_CUDA_PATH_SKINNY;
  if (c->weight.format <= OCT_CUDA_MATRIX_BF16)
    return OCT_CUDA_PATH_BLAS;
  if (c->m <= SKINNY_ROWS_MAX)
    return OCT_CUDA_PATH_SKINNY;
  return oct_matmul_wide_can(queue, c->weight.format, a) ? OCT_CUDA_PATH_WIDE : OCT_CUDA_PATH_TILE;
}

/* The epilogue of cuBLASLt adds a bias of y's type only, and none beside scales of rows. */
static int
multiply_then_add(const oct_cuda_queue *queue, oct_cuda_blas *blas, const oct_cuda_matmul *c) {
  oct_cuda_matmul bare = *c;
  bare.bias = NULL;
  int error = multiply_blas(queue, blas, &bare);
  if (error != OCT_CUDA_OK)
    return error;
  oct_cuda_add add = {};
  add.type = c->weight.format == OCT_CUDA_MATRIX_F32 ? OCT_CUDA_F32 : OCT_CUDA_BF16;
  add.y_type = c->y_type;
  add.n = c->m;
  add.width = c->transposed ? c->weight.columns : c->weight.rows;
  add.bias = c->bias;
  add.y = c->y;
  add.y_stride = c->y_stride;
  return oct_cuda_add_rows(queue, &add);
}

int
oct_cuda_multiply(const oct_cuda_queue *queue, oct_cuda_blas *blas, const oct_cuda_matmul *call) {
  if (call->m == 0)
    return OCT_CUDA_OK;
  oct_cuda_format format = call->weight.format;
  bool is_float = format == OCT_CUDA_MATRIX_F32;
  if (format >= OCT_CUDA_MATRIX_MXFP4_ROWS || is_float != (call->x_type == OCT_CUDA_F32) ||
      call->y_type == OCT_CUDA_FP8 || (is_float && call->y_type != OCT_CUDA_F32) ||
      (call->bias != NULL && call->batch > 1))
    return OCT_CUDA_UNSUPPORTED;
  oct_cuda_path path = oct_cuda_matmul_path(queue, call);
  if (path == OCT_CUDA_PATH_STREAM) {
    matmul_args a = make_args(call);
    if (call->x_type != OCT_CUDA_BF16 || !oct_matmul_stream_can(queue, format, a))
      return OCT_CUDA_UNSUPPORTED;
    return oct_matmul_stream(queue, format, a);
  }
  if (path == OCT_CUDA_PATH_CODES) {
    matmul_args a = make_args(call);
    if (call->x_type != OCT_CUDA_BF16 || !oct_matmul_codes_can(queue, format, a))
      return OCT_CUDA_UNSUPPORTED;
    return oct_matmul_codes(queue, format, a);
  }
  if (path == OCT_CUDA_PATH_NARROW && call->x_type != OCT_CUDA_FP8 &&
      (call->glu != NULL || call->batch > 1)) {
    matmul_args a = make_args(call);
    return oct_matmul_narrow_can(queue, format, a) ? oct_matmul_narrow(queue, a)
                                                   : OCT_CUDA_UNSUPPORTED;
  }
  if (call->glu != NULL)
    return OCT_CUDA_UNSUPPORTED;
  if (path == OCT_CUDA_PATH_BLAS) {
    oct_cuda_type bias = is_float ? OCT_CUDA_F32 : OCT_CUDA_BF16;
    bool is_alien = bias != call->y_type || call->x_type == OCT_CUDA_FP8;
    if (call->bias != NULL && is_alien)
      return multiply_then_add(queue, blas, call);
    if (call->x_type == OCT_CUDA_FP8 && format != OCT_CUDA_MATRIX_FP8)
      return OCT_CUDA_UNSUPPORTED;
    return multiply_blas(queue, blas, call);
  }
  if (call->x_type == OCT_CUDA_FP8)
    return OCT_CUDA_UNSUPPORTED;
  matmul_args a = make_args(call);
  if (is_float || a.batch > 1 || a.transposed || !oct_matmul_is_even(a, format))
    return oct_matmul_plain(queue, format, a);
  if (path == OCT_CUDA_PATH_WIDE)
    return oct_matmul_wide_can(queue, format, a) ? oct_matmul_wide(queue, format, a)
                                                 : OCT_CUDA_UNSUPPORTED;
  if (path == OCT_CUDA_PATH_NARROW)
    return oct_matmul_narrow_can(queue, format, a) ? oct_matmul_narrow(queue, a)
                                                   : OCT_CUDA_UNSUPPORTED;
  return path == OCT_CUDA_PATH_SKINNY ? oct_matmul_skinny(queue, format, a)
                                      : oct_matmul_tile(queue, format, a);
}

/* ---------------------------------------------------------------- experts */

/* Tokens of an expert on average up to which the stream kernel is the quicker one, by kernels/bench
 * on an H200; and from which tiles pay where there is none. With 8 of bf16 it is quicker than the
 * wide kernel where choices are even and about as quick where they are uneven; with 16 the wide one
 * is a little quicker where they are even and a quarter where they are not. */
#define EXPERT_STREAM_BF16 8
#define EXPERT_STREAM      32
#define EXPERT_TILE_TOKENS 16

static bool
prefers_codes_of_experts(oct_cuda_format format, const matmul_args &a) {
  if (format == OCT_CUDA_MATRIX_FP8_BLOCK)
    return a.likely > a.n_experts / 2 && a.likely <= a.n_experts * 64;
  return format >= OCT_CUDA_MATRIX_MXFP4;
}

static oct_cuda_path
choose_expert_path(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  if ((queue->flags & OCT_CUDA_FIXED_ORDER) != 0)
    return OCT_CUDA_PATH_TILE;
  if (prefers_codes_of_experts(format, a) && oct_matmul_codes_can(queue, format, a))
    return OCT_CUDA_PATH_CODES;
  uint32_t streamed = format == OCT_CUDA_MATRIX_BF16 ? EXPERT_STREAM_BF16 : EXPERT_STREAM;
  if (a.likely <= a.n_experts * streamed && oct_matmul_stream_can(queue, format, a))
    return OCT_CUDA_PATH_STREAM;
  if (oct_matmul_wide_can(queue, format, a))
    return OCT_CUDA_PATH_WIDE;
  return a.likely <= a.n_experts * EXPERT_TILE_TOKENS ? OCT_CUDA_PATH_SKINNY : OCT_CUDA_PATH_TILE;
}

static matmul_args
make_expert_args(const oct_cuda_expert_matmul *call) {
  const oct_cuda_pairs *pairs = call->pairs;
  matmul_args a = {};
  a.w = call->weight.data;
  a.scales = call->weight.scales;
  a.group = call->weight.group;
  a.rows = call->weight.rows;
  a.columns = a.w_stride = call->weight.columns;
  a.x = call->x;
  a.x_stride = call->x_stride;
  a.bias = call->bias;
  a.y = call->y;
  a.y_stride = call->y_stride;
  a.m = pairs->n * pairs->top_k;
  a.y_is_float = call->y_type == OCT_CUDA_F32;
  a.starts = pairs->starts;
  a.slots = call->slots;
  a.pair_of = pairs->pair_of;
  a.n_experts = pairs->n_local;
  a.likely = (uint32_t)(((uint64_t)a.m * a.n_experts + pairs->n_experts - 1) / pairs->n_experts);
  a.n_matrices = call->slots != NULL ? call->n_matrices : pairs->n_local;
  a.w_batch = (size_t)a.rows * a.columns;
  a.top_k = pairs->top_k;
  a.gather = call->gather;
  a.glu = call->glu;
  return a;
}

static oct_cuda_path
expert_path(const oct_cuda_queue *queue, const oct_cuda_expert_matmul *call, const matmul_args &a) {
  return call->path != OCT_CUDA_PATH_AUTO ? call->path
                                          : choose_expert_path(queue, call->weight.format, a);
}

bool
oct_cuda_expert_gates(const oct_cuda_queue *queue, const oct_cuda_expert_matmul *call) {
  matmul_args a = make_expert_args(call);
  return call->type == OCT_CUDA_BF16 && a.rows % 8 == 0 &&
         oct_matmul_codes_can(queue, call->weight.format, a) &&
         expert_path(queue, call, a) == OCT_CUDA_PATH_CODES;
}

int
oct_cuda_expert_multiply(const oct_cuda_queue *queue, const oct_cuda_expert_matmul *call) {
  matmul_args a = make_expert_args(call);
  if (a.m == 0 || a.n_experts == 0)
    return OCT_CUDA_OK;
  oct_cuda_format format = call->weight.format;
  if (format >= OCT_CUDA_MATRIX_MXFP4_ROWS ||
      (format == OCT_CUDA_MATRIX_F32) != (call->type == OCT_CUDA_F32) ||
      (call->type == OCT_CUDA_F32 && call->y_type != OCT_CUDA_F32) || !is_activation(call->y_type))
    return OCT_CUDA_UNSUPPORTED;
  oct_cuda_path path = expert_path(queue, call, a);
  if (call->glu != NULL && path != OCT_CUDA_PATH_CODES)
    return OCT_CUDA_UNSUPPORTED;
  if (format == OCT_CUDA_MATRIX_F32 || !oct_matmul_is_even(a, format))
    return oct_matmul_plain(queue, format, a);
  if (path == OCT_CUDA_PATH_STREAM)
    return oct_matmul_stream_can(queue, format, a) ? oct_matmul_stream(queue, format, a)
                                                   : OCT_CUDA_UNSUPPORTED;
  if (path == OCT_CUDA_PATH_WIDE)
    return oct_matmul_wide_can(queue, format, a) ? oct_matmul_wide(queue, format, a)
                                                 : OCT_CUDA_UNSUPPORTED;
  if (path == OCT_CUDA_PATH_CODES)
    return oct_matmul_codes_can(queue, format, a) ? oct_matmul_codes(queue, format, a)
                                                  : OCT_CUDA_UNSUPPORTED;
  if (path == OCT_CUDA_PATH_SKINNY)
    return oct_matmul_skinny(queue, format, a);
  return path == OCT_CUDA_PATH_TILE ? oct_matmul_tile(queue, format, a) : OCT_CUDA_UNSUPPORTED;
}
