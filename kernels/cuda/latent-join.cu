/* Joins what blocks found of parts of contexts, for latent-hopper.cu. */
#include "kernels/cuda/latent.cuh"

#define JOIN_THREADS 512

/* Where the parts of a group's run are. */
struct latent_parts {
  uint32_t n, first, later, step;

  __device__ const float *of(const latent_args &h, uint32_t rows, uint32_t i) const {
    return latent_part(h, rows, i == 0 ? first : later + (i - 1) * step);
  }
};

/* What all groups cost, and those before `group`; the units of the longest; all threads. */
OCT_DEVICE uint3
count_units(const latent_args &h, uint32_t group) {
  __shared__ uint3 room[JOIN_THREADS / 32];
  uint3 n = make_uint3(0, 0, 0);
  for (uint32_t i = threadIdx.x; i < h.a.n_seqs; i += JOIN_THREADS) {
    uint32_t units = latent_cost(h, i);
    n.x += units;
    n.y += i < group ? units : 0;
    n.z = max(n.z, latent_units(h, i));
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    n.x += __shfl_xor_sync(0xffffffffu, n.x, d);
    n.y += __shfl_xor_sync(0xffffffffu, n.y, d);
  }
  n.z = __reduce_max_sync(0xffffffffu, n.z);
  if (threadIdx.x % 32 == 0)
    room[threadIdx.x / 32] = n;
  __syncthreads();
  n = make_uint3(0, 0, 0);
#pragma unroll
  for (int i = 0; i < JOIN_THREADS / 32; i++) {
    n.x += room[i].x;
    n.y += room[i].y;
    n.z = max(n.z, room[i].z);
  }
  return n;
}

/* How many parts a group was cut into, and by which blocks, for its first run. */
OCT_DEVICE latent_parts
find_parts(const latent_args &h, uint32_t group) {
  uint32_t units = latent_units(h, group);
  if (h.deal == LATENT_CHUNKS) {
    uint32_t each = fixed_chunk(h.a, find_group(h, group).length) / LATENT_KEYS;
    return {(units + each - 1) / each, group * h.runs * h.a.n_splits,
            group * h.runs * h.a.n_splits + 1, 1};
  }
  uint3 n = count_units(h, group);
  if (units == 0)
    return {};
  uint32_t own = own_shares(h, h.a.n_shares, n.x, n.z);
  if (own > 0)
    return {min(own, units), latent_place(h, group * own, 0, true),
            latent_place(h, group * own + 1, 0, false), 2 * h.runs};
  share s = {};
  s.all = n.x;
  s.blocks = max(1u, min(n.x, h.a.n_shares));
  uint32_t begin = owner_of(s, n.y + h.cost), end = owner_of(s, n.y + h.cost + units - 1);
  return {end - begin + 1, latent_place(h, begin, 0, true), latent_place(h, begin + 1, 0, false),
          2 * h.runs};
}

/* Joins a row's parts `from`, `from` + `step` …: four elements a thread. */
OCT_DEVICE float4
join_row(const latent_args &h, const latent_parts &p, uint32_t rows, uint32_t column, float base,
         uint32_t from, uint32_t step) {
  float4 x = make_float4(0, 0, 0, 0);
  uint32_t c = 4 * (threadIdx.x % 128);
#pragma unroll 8
  for (uint32_t i = from; i < p.n; i += step) {
    const float *part = p.of(h, rows, i);
    float factor = power2(part[rows * LATENT_LORA + 2 * column] - base);
    float4 v = *(const float4 *)(part + column * LATENT_LORA + c);
    x.x += v.x * factor;
    x.y += v.y * factor;
    x.z += v.z * factor;
    x.w += v.w * factor;
  }
  return x;
}

/* A block has `each` rows of a group, and four teams of 128 threads: many parts are dealt out to
 * the teams, of few each has a row of its own. */
static __global__ void
__launch_bounds__(JOIN_THREADS)
    join_latents(const __grid_constant__ latent_args h, uint32_t n, uint32_t each) {
  __shared__ float4 sums[JOIN_THREADS];
  admit_successor();
  await_predecessors();
  uint32_t group = blockIdx.y, lane = threadIdx.x % 32, team = threadIdx.x / 128;
  latent_group g = find_group(h, group);
  const latent_parts found = find_parts(h, group);
  if (found.n <= 1)
    return;
  bool together = found.n > 4;
  uint32_t end = min(rows_of(h, g), (blockIdx.x + 1) * each);
  for (uint32_t first = blockIdx.x * each; first < end; first += together ? 1 : 4) {
    uint32_t r = min(first + (together ? 0 : team), end - 1), run = r / n, column = r % n;
    latent_parts p = found;
    p.first += run * (h.deal == LATENT_CHUNKS ? h.a.n_splits : 2);
    p.later += run * (h.deal == LATENT_CHUNKS ? h.a.n_splits : 2);
    float top = -INFINITY, total = 0;
    for (uint32_t i = lane; i < p.n; i += 32)
      top = fmaxf(top, p.of(h, n, i)[n * LATENT_LORA + 2 * column]);
    top = warp_max(top);
    float base = top == -INFINITY ? 0 : top;
    for (uint32_t i = lane; i < p.n; i += 32) {
      const float *ends = p.of(h, n, i) + n * LATENT_LORA + 2 * column;
      total += ends[1] * power2(ends[0] - base);
    }
    total = warp_sum(total);
    float4 x = join_row(h, p, n, column, base, together ? team : 0, together ? 4 : 1);
    if (together) {
      sums[threadIdx.x] = x;
      __syncthreads();
      x = make_float4(0, 0, 0, 0);
      for (uint32_t i = threadIdx.x % 128; i < JOIN_THREADS; i += 128)
        x = make_float4(x.x + sums[i].x, x.y + sums[i].y, x.z + sums[i].z, x.w + sums[i].w);
      __syncthreads();
    }
    if (together ? team > 0 : first + team >= end)
      continue;
    latent_row of = find_row(h, g, r);
    float factor = end_factor(h.a, of.head, top, total);
    if (threadIdx.x % 128 == 0)
      put_ends(h.a, of.token, of.head, top, total);
    put_elements<4>(h.a, of.token, of.head, 4 * (threadIdx.x % 128),
                    {x.x * factor, x.y * factor, x.z * factor, x.w * factor});
  }
}

int
oct_latent_join(const oct_cuda_queue *queue, const latent_args &h, uint32_t n) {
  /* Blocks for two a multiprocessor, unless rows would be too many for one. */
  uint32_t each = ceil_div(h.rows * h.a.n_seqs, 2 * queue->sm_count);
  each = each < 32 ? each : 32;
  return launch(queue, join_latents, dim3(ceil_div(h.rows, each), h.a.n_seqs), dim3(JOIN_THREADS),
                0, h, n, each);
}
