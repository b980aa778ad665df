/* What a group of latent-group.cuh does at the end of a work of latent-hopper.cu: sums to memory.
 *
 * A work ends once in thousands of instructions of multiplying, and code that runs once comes from
 * memory: what would be long without a loop goes by way of shared memory. */
#ifndef OCT_KERNELS_CUDA_LATENT_END_CUH
#define OCT_KERNELS_CUDA_LATENT_END_CUH

#include "kernels/cuda/latent-group.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <typename C, int N> struct latent_end {
  typedef shape<C, N> S;
  static constexpr uint32_t ROW = 128 + 8; /* words: so that columns are in banks of their own */
  static_assert(S::GROUPS * N * ROW * 4 <= S::WEIGHTS_AT, "sums have no room");

  latent_group_of_warps<C, N> &t;
  const latent_args &h;
  const latent_item &w;

  __device__ void close_work() const {
    end_columns();
    if constexpr (!S::SHARED_SUMS) {
      hand_over<0>(1, 0);
      hand_over<4>(0, 1);
      if (t.group == 0)
        store<0>();
      else
        store<4>();
    } else {
      store<0>();
    }
  }

  __device__ void meet() const {
    named_barrier(EVERYBODY, S::CONSUMERS);
  }

  /* The groups' ends together, by a thread of each column; what its sums are multiplied by. */
  __device__ void end_columns() const {
#pragma unroll
    for (int c = 0; c < N / 4; c++) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2)
        t.sum[c] += __shfl_xor_sync(0xffffffffu, t.sum[c], d);
      if (t.lane / 4 == 0)
        t.sums()[t.warp * N + t.column_of(c)] = t.sum[c];
    }
    meet();
    if (threadIdx.x < N)
      end_column(threadIdx.x);
    meet();
    t.rescale(t.group);
  }

  __device__ void end_column(uint32_t i) const {
    uint32_t r = w.run * N + i;
    float factors[S::GROUPS], total = 0, *base = t.small(S::BASES_AT + i), top = base[0];
#pragma unroll
    for (uint32_t k = 1; k < S::GROUPS && !S::SHARED_SUMS; k++)
      top = fmaxf(top, base[k * N]);
#pragma unroll
    for (uint32_t k = 0; k < S::GROUPS; k++) {
      const float *of = t.small(k * 4 * N + i);
      factors[k] = S::SHARED_SUMS ? 1 : base[k * N] > -INFINITY ? power2(base[k * N] - top) : 0;
      total += factors[k] * (of[0] + of[N] + of[2 * N] + of[3 * N]);
    }
    float finish = 1;
    if (r < rows_of(h, w.group)) {
      latent_row of = find_row(h, w.group, r);
      if (w.place == LATENT_WHOLE) {
        finish = end_factor(h.a, of.head, top, total);
        put_ends(h.a, of.token, of.head, top, total);
      } else {
        float *ends = latent_part(h, N, w.place) + N * LATENT_LORA + 2 * i;
        ends[0] = top;
        ends[1] = total;
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < S::GROUPS; k++)
      t.keeps(k)[i] = factors[k] * finish;
  }

  /* What group `from` has of half of the dimensions to group `to`, by way of the queries' room. */
  template <int FIRST> __device__ void hand_over(uint32_t from, uint32_t to) const {
    float *room = (float *)t.shared + threadIdx.x % 128;
    if (t.group == from)
#pragma unroll
      for (int i = 0; i < 4 * (N / 2); i++)
        room[128 * i] = t.acc[FIRST + i / (N / 2)][i % (N / 2)];
    meet();
    if (t.group == to)
#pragma unroll
      for (int i = 0; i < 4 * (N / 2); i++)
        t.acc[FIRST + i / (N / 2)][i % (N / 2)] += room[128 * i];
    meet();
  }

  /* Tiles [FIRST, FIRST + 4) of the sums to memory, dimensions from 256 group on, by way of the
   * queries' room, where rows follow one another. */
  template <int FIRST> __device__ void store() const {
    store_two<FIRST>(256 * t.group);
    store_two<FIRST + 2>(256 * t.group + 128);
  }

  /* Dimensions [dim, dim + 128). */
  template <int FIRST> __device__ void store_two(uint32_t dim) const {
    float *room = (float *)t.shared + t.group * N * ROW;
    uint32_t g = t.lane / 4;
    t.meet_group();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int c = 0; c < N / 4; c++) {
        float *to = room + t.column_of(c) * ROW + 64 * m + 16 * t.warp;
        int at = c / 2 * 4 + c % 2;
        const float x = t.acc[FIRST + m][at], y = t.acc[FIRST + m][at + 2];
        if constexpr (S::COPIES) {
          to[g] = x;
          to[g + 8] = y;
        } else {
          *(float2 *)(to + 2 * g) = make_float2(x, y);
        }
      }
    t.meet_group();
    store_rows(room + 4 * t.lane, dim + 4 * t.lane);
  }

  /* Four dimensions of every fourth row. */
  __device__ void store_rows(const float *room, uint32_t dim) const {
    uint32_t n_rows = min(rows_of(h, w.group) - w.run * N, (uint32_t)N);
    float *part = w.place != LATENT_WHOLE ? latent_part(h, N, w.place) + dim : NULL;
#pragma unroll 1
    for (uint32_t row = t.warp; row < n_rows; row += 4) {
      float4 x = *(const float4 *)(room + row * ROW);
      if (part != NULL) {
        *(float4 *)(part + row * LATENT_LORA) = x;
      } else {
        latent_row of = find_row(h, w.group, w.run * N + row);
        put_elements<4>(h.a, of.token, of.head, dim, {x.x, x.y, x.z, x.w});
      }
    }
  }
};

#endif
#endif
