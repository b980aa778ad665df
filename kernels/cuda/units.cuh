/* Equal shares of several contexts for blocks: contexts are cut into units, and all units are dealt
 * out in order, so that a share may end within one sequence and begin within another. */
#ifndef OCT_KERNELS_CUDA_UNITS_CUH
#define OCT_KERNELS_CUDA_UNITS_CUH

#include "kernels/cuda/common.cuh"

struct share {
  uint32_t begin, end;           /* of the units of all */
  uint32_t seq, seq_begin, each; /* the sequence there, its first unit of one run of heads, and how
                                    many it has */
  uint32_t all, blocks;          /* blocks that have any: each has one at least */
};

/* Share `index` of `count`, by all of the block's W warps. units(i) of sequence i < n, times
 * `runs`. room: W + 3 words of shared memory. */
template <int W, typename F>
OCT_DEVICE void
find_share(uint32_t n, uint32_t runs, uint32_t index, uint32_t count, const F &units,
           uint32_t *room, share *s) {
  uint32_t *sums = room, *found = room + W;
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t per = (n + 32 * W - 1) / (32 * W), first = threadIdx.x * per, mine = 0;
  uint32_t last = min(n, first + per);
  for (uint32_t i = first; i < last; i++)
    mine += units(i);
  uint32_t until = mine;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    uint32_t before = __shfl_up_sync(0xffffffffu, until, d);
    until += lane >= d ? before : 0;
  }
  if (lane == 31)
    sums[warp] = until;
  __syncthreads();
  uint32_t all = 0, before = until - mine;
#pragma unroll
  for (uint32_t w = 0; w < W; w++) {
    before += w < warp ? sums[w] : 0;
    all += sums[w];
  }
  s->all = all * runs;
  s->blocks = max(1u, min(s->all, count));
  s->begin = (uint32_t)((uint64_t)s->all * min(index, s->blocks) / s->blocks);
  s->end = (uint32_t)((uint64_t)s->all * min(index + 1, s->blocks) / s->blocks);
  uint32_t wanted = s->begin / runs;
  if (before <= wanted && wanted < before + mine)
    for (uint32_t i = first; i < last; i++) {
      uint32_t here = units(i);
      if (wanted < before + here) {
        found[0] = i;
        found[1] = before;
        found[2] = here;
        break;
      }
      before += here;
    }
  __syncthreads();
  s->seq = found[0];
  s->seq_begin = found[1];
  s->each = found[2];
}

/* The block whose share a unit is in. */
OCT_DEVICE uint32_t
owner_of(const share &s, uint32_t unit) {
  uint32_t b = (uint32_t)((uint64_t)unit * s.blocks / s.all);
  while ((uint64_t)s.all * (b + 1) / s.blocks <= unit)
    b++;
  return b;
}

#endif
