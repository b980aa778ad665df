/* Codes of four bits as checkpoints store them, to the packed rows that products read. */
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/common.cuh"

#define THREADS 256

/* The code of an input of a row, 0 beyond the last. */
OCT_DEVICE uint32_t
code_at(const oct_cuda_packing &c, uint32_t row, uint32_t column) {
  if (column >= c.columns)
    return 0;
  if (c.kind == OCT_CUDA_CODES_ROWS)
    return ((const uint8_t *)c.codes)[row * c.stride + column / 2] >> (4 * (column % 2)) & 15;
  const uint32_t *words = (const uint32_t *)c.codes;
  if (c.kind == OCT_CUDA_CODES_GPTQ)
    return words[column / 8 * c.stride + row] >> (4 * (column % 8)) & 15;
  uint32_t place = row % 2 * 4 + row % 8 / 2;
  return words[column * c.stride + row / 8] >> (4 * place) & 15;
}

/* A thread has one word; neighbours have neighbouring rows where codes of those lie together. */
static __global__ void
pack(oct_cuda_packing c, uint32_t words) {
  admit_successor();
  await_predecessors();
  bool by_rows = c.kind == OCT_CUDA_CODES_ROWS;
  size_t all = (size_t)c.rows * words;
  for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < all;
       i += (size_t)gridDim.x * THREADS) {
    uint32_t row = (uint32_t)(by_rows ? i / words : i % c.rows);
    uint32_t word = (uint32_t)(by_rows ? i % words : i / c.rows), packed = 0;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
      packed |=
          place_code(c.floats, code_at(c, row, input_of_pair(word, k / 2) + k % 2), k / 2, k % 2);
    ((uint32_t *)c.data)[(size_t)row * words + word] = packed;
  }
}

int
oct_cuda_pack(const oct_cuda_queue *queue, const oct_cuda_packing *call) {
  if (call->rows == 0 || call->columns == 0)
    return OCT_CUDA_OK;
  if (call->columns % 8 != 0 || (call->kind == OCT_CUDA_CODES_AWQ && call->rows % 8 != 0))
    return OCT_CUDA_UNSUPPORTED;
  uint32_t words = round_up(call->columns, 128) / 8;
  size_t blocks = ((size_t)call->rows * words + THREADS - 1) / THREADS;
  return launch(queue, pack, dim3((unsigned)(blocks < 65536 ? blocks : 65536)), dim3(THREADS), 0,
                *call, words);
}
