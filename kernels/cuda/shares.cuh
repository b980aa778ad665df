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

/* What a block has of its heads once its warps are joined: rows of D in place of the first warp's,
 * and top and sum of each head behind everything else. */
template <int D>
OCT_DEVICE float
join_warps(const float *room, uint32_t heads, uint32_t h, uint32_t c, float *top, float *sum) {
  const float *tops = room + WARPS * heads * D, *sums = tops + WARPS * heads;
  float x = 0;
  *top = -INFINITY;
  *sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++)
    *top = fmaxf(*top, tops[w * heads + h]);
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    float factor = tops[w * heads + h] > -INFINITY ? exp2f(tops[w * heads + h] - *top) : 0;
    *sum += sums[w * heads + h] * factor;
    x += factor > 0 ? room[(w * heads + h) * D + c] * factor : 0;
  }
  return x;
}

/* A head's element to memory. */
template <int D>
OCT_DEVICE void
put_element(const attend_args &a, uint32_t row, uint32_t head, uint32_t c, float x, float top,
            float sum) {
  if (c == 0)
    put_ends(a, row, head, top, sum);
  put_elements<1>(a, row, head, c, {x * end_factor(a, head, top, sum)});
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

/* A warp per head, four elements a lane. What other blocks wrote is read past the L1 cache. */
template <int D>
OCT_DEVICE void
join_parts(const attend_args &a, const parts &p, uint32_t heads, uint32_t n, uint32_t first_head,
           uint32_t row) {
  uint32_t lane = threadIdx.x % 32;
  for (uint32_t h = threadIdx.x / 32; h < n; h += WARPS) {
    float top = -INFINITY, sum = 0;
    for (uint32_t i = lane; i < p.n; i += 32)
      top = fmaxf(top, __ldcg(part_at<D>(a, heads, place_of(p, i)) + heads * D + 2 * h));
    top = warp_max(top);
    for (uint32_t i = lane; i < p.n; i += 32) {
      const float *ends = part_at<D>(a, heads, place_of(p, i)) + heads * D + 2 * h;
      sum += __ldcg(ends + 1) * power2(__ldcg(ends) - (top == -INFINITY ? 0 : top));
    }
    sum = warp_sum(sum);
    for (uint32_t c = 4 * lane; c < D; c += 128) {
      float x[4] = {};
#pragma unroll 4
      for (uint32_t i = 0; i < p.n; i++) {
        const float *part = part_at<D>(a, heads, place_of(p, i));
        float one = __ldcg(part + heads * D + 2 * h);
        float4 v = __ldcg((const float4 *)(part + h * D + c));
        float factor = power2(one - (top == -INFINITY ? 0 : top));
        x[0] += v.x * factor;
        x[1] += v.y * factor;
        x[2] += v.z * factor;
        x[3] += v.w * factor;
      }
#pragma unroll
      for (int k = 0; k < 4; k++)
        put_element<D>(a, row, first_head + h, c + k, x[k], top, sum);
    }
  }
}

/* The block's part to its place; the last of them joins all. */
template <int D>
OCT_DEVICE void
leave_part(const attend_args &a, const parts &p, const float *room, uint32_t heads, uint32_t n,
           uint32_t first_head, uint32_t row, uint32_t place) {
  __shared__ uint32_t before;
  float *part = part_at<D>(a, heads, place);
  for (uint32_t i = threadIdx.x; i < n * D; i += blockDim.x) {
    float top, sum, x = join_warps<D>(room, heads, i / D, i % D, &top, &sum);
    part[i] = x;
    if (i % D == 0) {
      part[heads * D + 2 * (i / D)] = top;
      part[heads * D + 2 * (i / D) + 1] = sum;
    }
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
  for (uint32_t i = threadIdx.x; i < n * D; i += blockDim.x) {
    float top, sum, x = join_warps<D>(room, heads, i / D, i % D, &top, &sum);
    put_element<D>(a, row, first_head + i / D, i % D, x, top, sum);
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
