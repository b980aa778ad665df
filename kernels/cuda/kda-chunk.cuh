/* Delta attention of many tokens, 16 at a time: what the kernel that makes chunks hands to the one
 * that takes them into states.
 *
 * With G_i the sums of log decays up to and with token i of a chunk, S the state before it and
 * (I + L) the lower triangle of L_ij = beta_i (k_i . k_j e^(G_i - G_j)), j < i:
 *   U = T (V - (K e^G) S), T = (I + L)^-1 diag(beta),
 *   O = (Q e^G) S + M U,   M_ij = q_i . k_j e^(G_i - G_j), j <= i,
 *   S = e^G_last S + (K e^(G_last - G))' U.
 * All but the products with S and U depends on the chunk alone: these are made for all chunks at
 * once and written as records, of bfloat16 where they become operands. T and M are pairs of
 * bfloat16 whose sum is what is meant: rounded to one they would make a third of the whole error.
 * For float32 all operands are such pairs: parts (P) are 2, and products leave out that of both
 * small parts.
 *
 * Rows of 128 in a record have their units of 16 bytes in the order u ^ (row % 8), so that matrix
 * loads meet no bank twice. */
#ifndef OCT_KERNELS_CUDA_KDA_CHUNK_CUH
#define OCT_KERNELS_CUDA_KDA_CHUNK_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/kda.cuh"

#define CHUNK 16

typedef bf16 chunk_rows[CHUNK][KDA_WIDTH];
typedef bf16 chunk_pair[2][CHUNK][CHUNK]; /* what is rounded, and what that leaves */

template <int P> struct chunk_record {
  chunk_rows k[P], q[P], k_last[P], v[P]; /* k e^G, q e^G, k e^(G_last - G), v */
  chunk_pair t, m;
  float decay[KDA_WIDTH]; /* e^G_last */
};

/* Chunks are numbered over all sequences that are not decodes: sequence s (of those) whose first
 * token is f (of theirs) has numbers from f / 16 + s on. No two chunks have the same number, some
 * numbers have no chunk, and nothing needs to be counted. A pass takes numbers [first, end). */
struct chunk_pass {
  uint32_t first_seq, first, end;
};

/* Tokens of a sequence in the batch, and its first chunk's number. */
struct chunk_run {
  uint32_t token, n_tokens, first;
};

OCT_DEVICE chunk_run
run_of(const oct_cuda_batch &b, const chunk_pass &pass, uint32_t seq) {
  uint32_t token = b.seq_first[seq], origin = b.seq_first[pass.first_seq];
  return {token, b.seq_first[seq + 1] - token, (token - origin) / CHUNK + seq - pass.first_seq};
}

/* Parts of operands where activations are T. */
template <typename T> constexpr int parts_of = sizeof(T) / sizeof(bf16);

/* x and y as the parts of two operands side by side: what is rounded, then what that leaves. */
template <int P>
OCT_DEVICE void
split_pair(float x, float y, uint32_t (&parts)[P]) {
#pragma unroll
  for (int p = 0; p < P; p++) {
    parts[p] = pack<bf16>(x, y);
    float2 whole = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&parts[p]));
    x -= whole.x;
    y -= whole.y;
  }
}

/* Where element c of a row is. */
OCT_DEVICE uint32_t
swizzled(uint32_t row, uint32_t c) {
  return (c / 8 ^ (row % 8)) * 8 + c % 8;
}

/* A lane's address for a load of four 8 x 8 matrices of such rows: two of 8 rows by two of 8
 * columns from column 8 * unit on. by_rows: the second matrix is below the first, else beside it.
 */
OCT_DEVICE uint32_t
matrix_address(const chunk_rows &rows, uint32_t unit, bool by_rows) {
  uint32_t lane = threadIdx.x % 32, matrix = lane / 8;
  uint32_t row = lane % 8 + 8 * (by_rows ? matrix % 2 : matrix / 2);
  unit += by_rows ? matrix / 2 : matrix % 2;
  return shared_address(rows[row]) + ((unit ^ (row % 8)) * 16);
}

OCT_DEVICE uint32_t
matrix_address(const bf16 (&square)[CHUNK][CHUNK]) {
  uint32_t lane = threadIdx.x % 32, matrix = lane / 8;
  return shared_address(&square[lane % 8 + 8 * (matrix / 2)][8 * (matrix % 2)]);
}

/* Records of the pass's chunks, [end - first, heads]; and the states, from their records. */
int oct_kda_make_chunks(const oct_cuda_queue *queue, const oct_cuda_kda *call,
                        const chunk_pass *pass);
int oct_kda_take_chunks(const oct_cuda_queue *queue, const oct_cuda_kda *call,
                        const chunk_pass *pass);

#endif
