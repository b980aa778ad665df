/* What the decode kernels share: equal shares of all contexts for blocks, and how parts of a
 * context are joined, of warps and of blocks. Whoever includes this says how many WARPS a block
 * has. */
#ifndef OCT_KERNELS_CUDA_SHARES_CUH
#define OCT_KERNELS_CUDA_SHARES_CUH

#include "kernels/cuda/decoder.cuh"
#include "kernels/cuda/units.cuh"

#define TILE 16 /* keys */
#define UNIT OCT_ATTEND_UNIT

/* ---------------------------------------------------------------- of warps */

/* What is seen of a context of `length` positions: from *from on, and the tiles begin at *base. */
OCT_DEVICE void
seen_range(const attend_args &a, uint32_t length, uint32_t *from, uint32_t *base) {
  *from = a.window != 0 && length > a.window ? length - a.window : 0;
  *base = *from / TILE * TILE;
}

/* Elements of a head that a thread joins at a time. */
#define RUN 8

/* What a block has of elements [c, c + RUN) of head h once its warps are joined, and the head's top
 * and sum: warps left rows of D, and their tops and sums behind all rows. */
template <int D>
OCT_DEVICE void
join_warps(const float *room, uint32_t heads, uint32_t h, uint32_t c, float (&x)[RUN], float *top,
           float *sum) {
  const float *tops = room + WARPS * heads * D, *sums = tops + WARPS * heads;
  *top = -INFINITY;
  *sum = 0;
#pragma unroll
  for (int i = 0; i < RUN; i++)
    x[i] = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++)
    *top = fmaxf(*top, tops[w * heads + h]);
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    float factor = tops[w * heads + h] > -INFINITY ? exp2f(tops[w * heads + h] - *top) : 0, v[RUN];
    load_floats<float, 4>(room + (w * heads + h) * D + c, *(float(*)[4])v);
    load_floats<float, 4>(room + (w * heads + h) * D + c + 4, *(float(*)[4])(v + 4));
    *sum += sums[w * heads + h] * factor;
#pragma unroll
    for (int i = 0; i < RUN; i++)
      x[i] += factor > 0 ? v[i] * factor : 0;
  }
}

/* A head's run of N elements to memory. */
template <int N>
OCT_DEVICE void
put_run(const attend_args &a, uint32_t row, uint32_t head, uint32_t c, float (&x)[N], float top,
        float sum) {
  float factor = end_factor(a, head, top, sum);
  if (c == 0)
    put_ends(a, row, head, top, sum);
#pragma unroll
  for (int i = 0; i < N; i++)
    x[i] *= factor;
  if (N > 1 && a.out_stride % N == 0 && (uintptr_t)a.out % (2 * N) == 0) {
    put_elements<N>(a, row, head, c, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    put_elements<1>(a, row, head, c + i, {x[i]});
}

/* ---------------------------------------------------------------- parts of a context */

/* Parts that several blocks have of a sequence and run of heads: place `place` of the workspace has
 * [heads, D] and then top and sum of each head. Whoever comes last joins them, in the order of
 * places; the count of those that have come is zero again then. */
struct parts {
  uint32_t *arrived; /* of this sequence and run of heads */
  uint32_t first,
      later; /* place of the first part, and of the second: the others follow by `step` */
  uint32_t step, n;
};

template <int D>
OCT_DEVICE float *
part_at(const attend_args &a, uint32_t heads, uint32_t place) {
  return a.partial + (size_t)place * heads * (D + 2);
}

OCT_DEVICE uint32_t
place_of(const parts &p, uint32_t i) {
  return i == 0 ? p.first : p.later + (i - 1) * p.step;
}

/* What other blocks wrote is read past the L1 cache, and as much of it at once as there is: it is
 * far away. */
template <int D>
OCT_DEVICE void
join_parts(const attend_args &a, const parts &p, uint32_t heads, uint32_t n, uint32_t first_head,
           uint32_t row) {
  for (uint32_t i = threadIdx.x; i < n * D / RUN; i += blockDim.x) {
    uint32_t h = i / (D / RUN), c = i % (D / RUN) * RUN;
    float top = -INFINITY, sum = 0, x[RUN] = {};
#pragma unroll 4
    for (uint32_t k = 0; k < p.n; k++)
      top = fmaxf(top, __ldcg(part_at<D>(a, heads, place_of(p, k)) + heads * D + 2 * h));
    float base = top == -INFINITY ? 0 : top;
#pragma unroll 4
    for (uint32_t k = 0; k < p.n; k++) {
      const float *part = part_at<D>(a, heads, place_of(p, k));
      float2 ends = __ldcg((const float2 *)(part + heads * D + 2 * h));
      float4 low = __ldcg((const float4 *)(part + h * D + c));
      float4 high = __ldcg((const float4 *)(part + h * D + c + 4));
      const float v[RUN] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      float factor = power2(ends.x - base);
      sum += ends.y * factor;
#pragma unroll
      for (int e = 0; e < RUN; e++)
        x[e] += v[e] * factor;
    }
    put_run<RUN>(a, row, first_head + h, c, x, top, sum);
  }
}

/* The block's part to its place; the last of them joins all. */
template <int D>
OCT_DEVICE void
leave_part(const attend_args &a, const parts &p, const float *room, uint32_t heads, uint32_t n,
           uint32_t first_head, uint32_t row, uint32_t place) {
  __shared__ uint32_t before;
  float *part = part_at<D>(a, heads, place);
  for (uint32_t i = threadIdx.x; i < n * D / RUN; i += blockDim.x) {
    uint32_t h = i / (D / RUN), c = i % (D / RUN) * RUN;
    float top, sum, x[RUN];
    join_warps<D>(room, heads, h, c, x, &top, &sum);
    store_floats<float, 4>(part + h * D + c, *(float(*)[4])x);
    store_floats<float, 4>(part + h * D + c + 4, *(float(*)[4])(x + 4));
    if (c == 0)
      store_floats<float, 2>(part + heads * D + 2 * h, {top, sum});
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    before = atomicAdd(p.arrived, 1u);
    if (before + 1 == p.n)
      *p.arrived = 0;
  }
  __syncthreads();
  if (before + 1 != p.n)
    return;
  __threadfence();
  join_parts<D>(a, p, heads, n, first_head, row);
}

/* A block that has all of its heads' context. */
template <int D>
OCT_DEVICE void
leave_whole(const attend_args &a, const float *room, uint32_t heads, uint32_t n,
            uint32_t first_head, uint32_t row) {
  for (uint32_t i = threadIdx.x; i < n * D / RUN; i += blockDim.x) {
    uint32_t h = i / (D / RUN), c = i % (D / RUN) * RUN;
    float top, sum, x[RUN];
    join_warps<D>(room, heads, h, c, x, &top, &sum);
    put_run<RUN>(a, row, first_head + h, c, x, top, sum);
  }
}

/* Padding tokens are as many as padding sequences in a batch of decodes. */
OCT_DEVICE void
clear_padding(const attend_args &a, uint32_t token, uint32_t head, uint32_t n) {
  if (token < a.batch.n_tokens && sees_nothing(a, token))
    for (uint32_t i = 0; i < n; i++)
      put_nothing(a, token, head + i);
}

/* ---------------------------------------------------------------- shares of all contexts */

/* Runs of UNIT keys that a sequence has. */
OCT_DEVICE uint32_t
units_of(const attend_args &a, uint32_t seq) {
  uint32_t length = decode_length(a, seq), from, base;
  seen_range(a, length, &from, &base);
  return (length - base + UNIT - 1) / UNIT;
}

/* All units, sequence by sequence and in each run of heads by run of heads, are shared out evenly
 * over the blocks. */
OCT_DEVICE void
find_own_share(const attend_args &a, uint32_t runs, share *s) {
  __shared__ uint32_t room[WARPS + 3];
  find_share<WARPS>(
      a.n_seqs, runs, blockIdx.x, gridDim.x,
      [&](uint32_t i) { return units_of(a, a.first_seq + i); }, room, s);
}

/* A block has a place for a part that it begins with and one for a part that it ends with: the
 * first part of a sequence and run of heads is the last of its block, the others are the first of
 * theirs. */
OCT_DEVICE parts
parts_of(const attend_args &a, const share &s, uint32_t first_unit, uint32_t pair) {
  uint32_t begin = owner_of(s, first_unit), end = owner_of(s, first_unit + s.each - 1);
  return {a.arrived + pair, 2 * begin + 1, 2 * (begin + 1), 2, end - begin + 1};
}

#endif
