/* Keys and values of prompts out of their pages into larger ones, which the tensor copy engine
 * brings in one piece: worth it where a context is read many times. */
#include "kernels/cuda/attend.cuh"

#define PAGE    128 /* tokens of the larger pages */
#define THREADS 256
/* Contexts from which the copy pays. */
#define CONTEXT_MIN 4096

/* Pages of a sequence at most. */
static uint32_t
pages_of(uint32_t max_context) {
  return ceil_div(max_context, PAGE);
}

static size_t
page_bytes_of(const attend_args &a) {
  return (size_t)2 * a.kv.n_heads * PAGE * a.kv.width * sizeof(bf16);
}

/* Tables stand first: of pages, by sequence, and which sequence has which row of it. */
static size_t
table_bytes(const attend_args &a, uint32_t max_context) {
  size_t words = (size_t)a.n_seqs * pages_of(max_context) + a.batch.n_seqs;
  return (words * sizeof(uint32_t) + 255) / 256 * 256;
}

size_t
oct_attend_gather_bytes(const attend_args &a, uint32_t max_context) {
  if (a.n_seqs == 0 || a.n_seqs > OCT_GRID_MOST || a.window != 0 || a.kv.type != OCT_CUDA_BF16 ||
      a.kv.page_tokens >= PAGE || max_context < CONTEXT_MIN)
    return 0;
  return table_bytes(a, max_context) + a.n_seqs * pages_of(max_context) * page_bytes_of(a);
}

/* A block per larger page, and keys or values of a head. */
static __global__ void
gather_pages(attend_args a, uint32_t *table, uint32_t *rows, char *to, size_t page_bytes) {
  admit_successor();
  await_predecessors();
  uint32_t nth = blockIdx.z, seq = a.first_seq + nth, at = nth * gridDim.x + blockIdx.x;
  uint32_t n = a.batch.seq_first[seq + 1] - a.batch.seq_first[seq], first = blockIdx.x * PAGE;
  if (threadIdx.x == 0 && blockIdx.y == 0) {
    table[at] = at;
    rows[seq] = nth;
  }
  if (n == 0 || first >= a.batch.seq_start[seq] + n)
    return;
  uint32_t end = min(a.batch.seq_start[seq] + n - first, (uint32_t)PAGE);
  page_reader pages =
      open_pages(a.kv, a.tables, a.batch.seq_slot[seq], blockIdx.y % a.kv.n_heads, sizeof(bf16));
  size_t half = blockIdx.y < a.kv.n_heads ? 0 : pages.half_bytes;
  uint32_t runs = pages.row_bytes / 16;
  uint4 *out = (uint4 *)(to + at * page_bytes + (size_t)blockIdx.y * PAGE * pages.row_bytes);
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < end * runs; i += THREADS)
    out[i] = *(const uint4 *)(key_row(pages, first + i / runs) + half + i % runs * 16);
}

int
oct_attend_gather(const oct_cuda_queue *queue, attend_args *a, uint32_t max_context, void *room) {
  uint32_t *table = (uint32_t *)room;
  uint32_t *rows = table + (size_t)a->n_seqs * pages_of(max_context);
  char *to = (char *)room + table_bytes(*a, max_context);
  size_t page_bytes = page_bytes_of(*a);
  int error = launch(queue, gather_pages, dim3(pages_of(max_context), 2 * a->kv.n_heads, a->n_seqs),
                     dim3(THREADS), 0, *a, table, rows, to, page_bytes);
  a->kv.base = to;
  a->kv.page_bytes = page_bytes;
  a->kv.page_tokens = PAGE;
  a->tables.pages = table;
  a->tables.stride = pages_of(max_context);
  a->batch.seq_slot = rows;
  return error;
}
