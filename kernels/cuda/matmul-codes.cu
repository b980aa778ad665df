/* Matrix products with weights of eight and four bits on Hopper, any number of rows of x, experts
 * too: the weight goes through shared memory as it is stored, and each warp turns the codes that
 * its part of wgmma's first operand needs into bf16 in its registers; x is the second operand.
 *
 * A block has one warp that copies and up to four groups of four warps that multiply, 64 weight
 * rows each by N rows of x (tokens). It goes over tiles of so many weight rows, and over a tile's
 * inputs in units of some chunks of 64 bytes a row, by the tensor copy engine into a ring that is
 * most of the shared memory. Weights are sent for before the predecessors have ended, as they do
 * not depend on them; x follows when they have. Warps need nothing of each other: one may be at the
 * end of a tile while others are in the next.
 *
 * With few tiles the blocks of a cluster share the inputs of one out and add their sums up through
 * their shared memory.
 *
 * Sums of groups of integers and of blocks of fp8 are apart and scaled in float32 where there are
 * few tokens; with more, weights are scaled, and rounded to bf16, before they are multiplied.
 */
#include <atomic>
#include <type_traits>

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/matmul-codes.cuh"
#include "kernels/cuda/matmul-halves.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* ---------------------------------------------------------------- products */

/* Registers that wgmma reads: not used for others before what stands above. */
OCT_DEVICE void
hold(const uint32_t (&a)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; k++)
    asm volatile("" ::"r"(a[k][0]), "r"(a[k][1]), "r"(a[k][2]), "r"(a[k][3]) : "memory");
}

OCT_DEVICE uint32_t
load_shared_short(uint32_t from) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from));
  return v;
}

template <int F, int N> struct multiplier : tile_sums<F, N> {
  using traits = kind_traits<F>;
  using sizes = shape<F, N>;
  using base = tile_sums<F, N>;
  using base::acc;
  using base::g;
  using base::place;
  using base::row;
  using base::s;
  using base::t;
  /* Arrays of sums: of groups of 64 inputs, or of both halves of as many. */
  static constexpr int PARTS = sizes::SYNC || traits::SIDES == 4 ? 2 : 1;
  static_assert(!(sizes::SINGLE && (sizes::EXACT || sizes::SYNC)), "they have two operands");
  static constexpr bool AHEAD = traits::PACKED && sizes::CHUNKS == 2 && traits::SIDES == 1;
  const ring &r;
  int adds;
  uint32_t held; /* the stage that is not given back yet, or OCT_CUDA_NONE */
  float part[PARTS][N / 2];
  uint32_t codes[2][4], later[2][4]; /* of this chunk and, AHEAD, of the next one of the unit */
  uint32_t side[2][traits::SIDES], later_side[2][traits::SIDES];
  float scale[2]; /* of fp8 blocks */
  uint32_t a[sizes::SINGLE ? 1 : 2][4][4];

  __device__ multiplier(const codes_args &args, const ring &the_ring) : base(args), r(the_ring) {
    held = OCT_CUDA_NONE;
  }

  /* ---- codes to operands */

  /* Chunks of a unit in order. */
  __device__ void next_chunk(uint32_t room, uint32_t chunk) {
    if (chunk == 0 || !AHEAD)
      base::load_codes(room, chunk, codes, side);
    if (AHEAD && chunk == 0)
      base::load_codes(room, 1, later, later_side);
    if constexpr (AHEAD)
#pragma unroll
      for (int h = 0; h < 2 && chunk > 0; h++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
          codes[h][i] = later[h][i];
        side[h][0] = later_side[h][0];
      }
  }

  /* Words 2 HALF and 2 HALF + 1 of a packed chunk: four steps of 16 inputs. */
  template <int HALF> __device__ void expand_packed(uint32_t (&to)[4][4]) const {
#pragma unroll
    for (int w = 0; w < 2; w++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint32_t pairs[4];
        if constexpr (sizes::GROUPED && !sizes::EXACT)
          expand_scaled<F>(codes[h][2 * HALF + w], side[h], 2 * HALF + w, pairs);
        else
          expand_word<F>(codes[h][2 * HALF + w], side[h], 2 * HALF + w, pairs);
        to[2 * w][h] = pairs[0];
        to[2 * w][2 + h] = pairs[1];
        to[2 * w + 1][h] = pairs[2];
        to[2 * w + 1][2 + h] = pairs[3];
      }
  }

  /* A chunk of e4m3, whose runs of 16 bytes lie as copies of 64 bytes swizzle them. */
  __device__ void expand_bytes(uint32_t room, uint32_t chunk, uint32_t (&to)[4][4]) const {
    uint32_t from = room + sizes::X_BYTES + chunk * s.halves * s.tile_rows * 64;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          uint32_t at = from + place[h] * 64 + 8 * i + 2 * t;
          uint32_t v = __byte_perm(load_shared_short(at + ((uint32_t)k ^ (place[h] / 2 % 4)) * 16),
                                   0, 0x1404);
          v = multiply_pairs((v & 0x80008000u) | ((v & 0x7f007f00u) >> 4), 0x7b807b80u);
          if constexpr (F == KIND_FP8_BLOCK && !sizes::EXACT) {
            __nv_bfloat162 both = __float2bfloat162_rn(scale[h]);
            v = multiply_pairs(v, *reinterpret_cast<uint32_t *>(&both));
          }
          to[k][2 * i + h] = v;
        }
  }

  /* ---- operands to sums */

  __device__ void give_back() {
    if (held != OCT_CUDA_NONE && arrives_for_warp(threadIdx.x % 32))
      barrier_arrive(r.empty(held));
  }

  /* 64 inputs by mma.sync, to one array of sums or to one for each half. */
  template <int P>
  __device__ void add_sync(float (*sums)[N / 2], const uint32_t (&now)[4][4], uint32_t x) const {
    uint32_t token = threadIdx.x % 8, run = threadIdx.x % 32 / 8;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
      for (int q = 0; q < 2; q++) {
        uint32_t b[4];
        load_matrices(b, x + (8 * n + token) * 128 + ((4 * q + run) ^ token) * 16);
#pragma unroll
        for (int k = 0; k < 2; k++) {
          const uint32_t(&w)[4] = now[2 * q + k];
          mma<bf16>(*reinterpret_cast<float(*)[4]>(sums[q * P / 2] + 4 * n), w[0], w[1], w[2], w[3],
                    b[2 * k], b[2 * k + 1]);
        }
      }
  }
  /* 64 inputs; their predecessors' are done afterwards. */
  __device__ void add(const uint32_t (&now)[4][4], const uint32_t (&before)[4][4], uint32_t x) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      wgmma_weights(acc, now[k], x + 2 * k, adds);
      adds = 1;
    }
    wgmma_commit();
    wgmma_wait<sizes::SINGLE ? 0 : 1>();
    hold(before);
  }

  /* The same, all done afterwards; sums of groups to `part`, from zero when they begin there. */
  __device__ void add_apart(const uint32_t (&now)[4][4], uint32_t x, bool begins) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; k++)
      wgmma_weights(part[k * PARTS / 4], now[k], x + 2 * k, PARTS == 2 ? k % 2 : !begins || k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    hold(now);
#pragma unroll
    for (int p = 0; p < PARTS; p++)
      keep_behind(part[p]);
  }
  __device__ void add_part(int p, float low, float high) {
#pragma unroll
    for (int i = 0; i < N / 2; i++)
      acc[i] += (i % 4 < 2 ? low : high) * part[p][i];
  }
  __device__ float scale_of(int h, int word) const {
    return F == KIND_FP8_BLOCK ? scale[h] : int4_scale(side_of_word<F>(side[h], word));
  }
  /* After half `half` of 128 inputs: the groups that end there. */
  __device__ void end_groups(int half) {
    if (traits::SIDES == 1 && half == 0)
      return;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
      add_part(p, scale_of(0, 2 * half + p), scale_of(1, 2 * half + p));
  }

  /* A unit in the ring, of so many chunks. */
  __device__ void run_unit(uint32_t stage, uint32_t n_chunks) {
    uint32_t room = __shfl_sync(0xffffffffu, r.base + stage * s.stage_bytes, 0);
#pragma unroll
    for (uint32_t b = 0; b < sizes::BATCHES; b++) {
      constexpr uint32_t BLOCKS = sizes::BLOCKS;
      if (traits::PACKED && b / BLOCKS >= n_chunks)
        break;
      if constexpr (traits::PACKED) {
        if (b % 2 == 0) {
          next_chunk(room, b / 2);
          expand_packed<0>(a[0]);
        } else {
          expand_packed<1>(a[!sizes::SINGLE]);
        }
      } else {
        expand_bytes(room, b, a[sizes::SINGLE ? 0 : b % 2]);
      }
      uint32_t block = room + b * sizes::X_BLOCK, x = block / 16;
      bool begins = traits::SIDES > 1 || b % 2 == 0;
      if constexpr (sizes::SYNC && sizes::EXACT) {
#pragma unroll
        for (int p = 0; p < PARTS && begins; p++)
          base::clear(part[p]);
        add_sync<PARTS>(part, a[b % 2], block);
        end_groups(b % 2);
      } else if constexpr (sizes::SYNC) {
        add_sync<PARTS>(part, a[b % 2], block);
      } else if constexpr (sizes::EXACT) {
        add_apart(a[b % 2], x, begins);
        end_groups(b % 2);
      } else {
        constexpr int TWO = sizes::SINGLE ? 1 : 2;
        add(a[b % TWO], a[(b + 1) % TWO], x);
        if (b == 0 && !sizes::SINGLE)
          give_back();
      }
    }
    held = stage;
    if (sizes::EXACT || sizes::SYNC || sizes::SINGLE) {
      __syncwarp();
      give_back();
      held = OCT_CUDA_NONE;
    }
  }

  __device__ void begin_tile() {
    adds = 0;
    if (sizes::EXACT || sizes::SYNC)
      base::clear(acc);
    if (sizes::SYNC && !sizes::EXACT)
#pragma unroll
      for (int p = 0; p < PARTS; p++)
        base::clear(part[p]);
  }
  __device__ void end_tile() {
    if (sizes::SYNC && !sizes::EXACT)
#pragma unroll
      for (int p = 0; p < PARTS; p++)
        add_part(p, 1, 1);
    if (sizes::EXACT || sizes::SYNC)
      return;
    wgmma_wait<0>();
    keep_behind(acc);
    hold(a[0]);
    hold(a[!sizes::SINGLE]);
    __syncwarp();
    give_back();
    held = OCT_CUDA_NONE;
  }

  /* The scales of fp8 blocks for the thread's rows and unit k, which has the inputs of one. */
  __device__ void load_scales(const cursor<N> &c, uint32_t k) {
    uint32_t across = (s.a.columns + 127) / 128, down = (s.a.rows + 127) / 128;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t first = c.first_row + row + g + (s.halves == 2 ? h * s.rows : 8 * h);
      scale[h] =
          ((const float *)s.a
               .scales)[(c.now.slot * (size_t)down + min(first, s.a.rows - 1) / 128) * across + k];
    }
  }
};

template <int F, int N>
OCT_DEVICE void
multiply(const codes_args &s, const ring &r, const first_job &found, float *room) {
  using sizes = shape<F, N>;
  typename std::conditional_t<sizes::HALVES, halves_multiplier<F, N>, multiplier<F, N>> m(s, r);
  cursor<N> c(s, found);
  const unit_range units(s);
  uint32_t stage = 0, turn = 0, all = (s.a.columns + sizes::EACH - 1) / sizes::EACH;
  for (; c.at < c.end; c.next()) {
    m.begin_tile();
    for (uint32_t k = units.begin; k < units.end; k++) {
      if constexpr (F == KIND_FP8_BLOCK)
        m.load_scales(c, k);
      barrier_wait(r.full(stage), turn % 2);
      if (!sizes::SYNC && !sizes::HALVES && !s.x_in_boxes)
        fence_async(); /* x came by ordinary copies */
      m.run_unit(stage, min(sizes::CHUNKS, all - k * sizes::CHUNKS));
      if (++stage == s.stages) {
        stage = 0;
        turn++;
      }
    }
    m.end_tile();
    if (s.split == 1)
      m.store(c);
  }
  if (s.split > 1) {
    named_barrier(1, blockDim.x - COPIERS); /* the room is the ring's */
    m.spill(room, s.halves * s.tile_rows + 4);
  }
}

/* All blocks' floats at a place; the loads are on their way together. */
OCT_DEVICE float
add_of_blocks(const float *own, uint32_t blocks) {
  float v[SPLIT_MAX], sum = 0;
#pragma unroll
  for (uint32_t b = 0; b < SPLIT_MAX; b++)
    v[b] = b < blocks ? load_there(own, b) : 0;
#pragma unroll
  for (uint32_t b = 0; b < SPLIT_MAX; b++)
    sum += v[b];
  return sum;
}

/* The sums of a cluster's blocks to y: each writes some. */
template <int F, int N>
OCT_DEVICE void
join(const codes_args &s, const float *room) {
  const cursor<N> c(s, {});
  uint32_t rows = min(s.tile_rows, s.rows - c.first_row), pitch = s.halves * s.tile_rows + 4;
  const bf16 *bias = (const bf16 *)s.a.bias;
  cluster_barrier();
  for (uint32_t i = blockIdx.x % s.split * blockDim.x + threadIdx.x; i < c.now.n_tokens * rows;
       i += s.split * blockDim.x) {
    uint32_t token = i / rows, r = i % rows, at = c.first_row + r;
    const float *own = room + token * pitch + r;
    float sum = add_of_blocks(own, s.split), up = 0;
    sum = sum * row_scale<F>(s.a, 0, at) + (bias != NULL ? to_float(bias[at]) : 0);
    if (s.halves == 2) {
      up = add_of_blocks(own + s.tile_rows, s.split);
      up =
          up * row_scale<F>(s.a, 0, at + s.rows) + (bias != NULL ? to_float(bias[at + s.rows]) : 0);
      sum = glu(s.glu, sum, up);
    }
    store_sum(s.a, c.now.first_token + token, at, sum, NULL);
  }
  cluster_barrier(); /* the others may still read here */
}

/* The copiers. Which weights of experts are needed their predecessors say; others depend on none.
 */
template <int F, int N>
OCT_DEVICE void
copy(const codes_args &s, const ring &r, const first_job &found, const CUtensorMap *weights,
     const CUtensorMap *inputs, uint32_t lane) {
  cursor<N> c(s, found);
  fetcher<F, N> f = {s, r, c, weights, inputs, unit_range(s), lane, {}};
  uint32_t early = s.a.starts != NULL ? 0 : f.begin();
  await_predecessors();
  if constexpr (shape<F, N>::HALVES) {
    halver<F, N> h = {s, r, c, lane / 32 - 1, lane % 32};
    if (lane < 32)
      f.run_raw(early);
    else
      h.run();
  } else {
    f.run(early);
  }
}

#endif

template <int F, int N>
static __global__ void
__launch_bounds__(shape<F, N>::THREADS, 1)
    multiply_codes(const __grid_constant__ codes_args s,
                   const __grid_constant__ CUtensorMap weights,
                   const __grid_constant__ CUtensorMap inputs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t barriers[3 * STAGES_MAX];
  __shared__ first_job found;
  __shared__ uint32_t groups_of_warps[shape<F, N>::THREADS / 32];
  admit_successor();
  uint32_t consumers = blockDim.x - COPIERS, address = shared_address(shared);
  uint32_t base = (address + 1023) & ~1023u;
  const ring r = {base, shared_address(barriers)};
  float *room = (float *)(shared + (base - address));
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < s.stages; i++) {
      barrier_init(r.full(i), shape<F, N>::HALVES ? arrivals_of(COPIERS / 32)
                              : s.x_in_boxes      ? 1
                                                  : 1 + COPIERS);
      barrier_init(r.empty(i), arrivals_of(consumers / 32));
      barrier_init(r.raw(i), 1);
    }
    fence_async();
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (s.a.starts != NULL) {
    await_predecessors();
    find_first<N>(s, groups_of_warps, &found);
  }
  if (threadIdx.x < consumers) {
    if constexpr (shape<F, N>::MOVES)
      take_registers<shape<F, N>::REGISTERS>();
    await_predecessors();
    multiply<F, N>(s, r, found, room);
  } else {
    if constexpr (shape<F, N>::MOVES)
      give_registers<shape<F, N>::COPY_REGISTERS>();
    copy<F, N>(s, r, found, &weights, &inputs, threadIdx.x - consumers);
  }
  __syncwarp();
  if (s.split > 1)
    join<F, N>(s, room);
#endif
}

/* ---------------------------------------------------------------- launch */

/* Clusters of so many blocks that the device runs at a time: its parts have odd numbers of
 * multiprocessors. All devices of a process are of one kind, so whichever rank's thread asks first
 * learns the same. */
template <int F, int N>
static uint32_t
count_places(const oct_cuda_queue *queue, uint32_t split) {
  static std::atomic<int> known[SPLIT_MAX + 1];
  if (split == 1)
    return queue->sm_count;
  int places = known[split].load(std::memory_order_relaxed);
  if (places == 0) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {split, 1, 1};
    config.gridDim = dim3(queue->sm_count / split * split);
    config.blockDim = dim3(shape<F, N>::THREADS);
    config.dynamicSmemBytes = shape<F, N>::RING_BYTES + 1024;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&places, multiply_codes<F, N>, &config) != cudaSuccess ||
        places < 1)
      places = 1;
    known[split].store(places, std::memory_order_relaxed);
  }
  return (uint32_t)places;
}

/* Rows of a tile and blocks that share one, so that what the most loaded block moves is least: the
 * codes, x, and sums between blocks, each in bytes. `busy`: experts that have tokens, at most. */
template <int F, int N>
static void
choose_tiles(const oct_cuda_queue *queue, codes_args *s, uint32_t busy) {
  using sizes = shape<F, N>;
  uint64_t least = UINT64_MAX;
  for (uint32_t split = 1; split <= SPLIT_MAX && split <= s->units; split *= 2) {
    if (split > 1 && s->a.starts != NULL)
      break;
    uint32_t places = count_places<F, N>(queue, split);
    for (uint32_t r = 16 / s->halves; r <= sizes::ROWS_MAX / s->halves; r += 16 / s->halves) {
      uint64_t tiles = (uint64_t)ceil_div(s->rows, r) * s->token_groups * busy;
      uint64_t turns = (tiles + places - 1) / places;
      uint64_t unit = sizes::CHUNKS * s->halves * r * (64 + sizes::SIDE_BYTES) + sizes::X_BYTES;
      uint64_t each = ceil_div(s->units, split) * unit + 4096;
      if (split > 1)
        each += 8192 + (uint64_t)N * s->halves * r * 8;
      if (turns * each <= least) {
        least = turns * each;
        s->tile_rows = r;
        s->split = split;
      }
    }
  }
  s->tiles = ceil_div(s->rows, s->tile_rows);
}

/* Stages of the ring: what there is room for, or all that a block ever needs. */
template <int F, int N>
static void
choose_stages(codes_args *s) {
  using sizes = shape<F, N>;
  s->stage_bytes = round_up(
      sizes::X_BYTES + sizes::CHUNKS * s->halves * s->tile_rows * (64 + sizes::SIDE_BYTES), 1024);
  s->stages = sizes::RING_BYTES / s->stage_bytes;
  s->stages = s->stages < STAGES_MAX ? s->stages : STAGES_MAX;
  uint32_t each = ceil_div(s->units, s->split);
  if (s->split > 1 && each < s->stages)
    s->stages = each;
}

template <int F, int N>
static int
launch_codes(const oct_cuda_queue *queue, const matmul_args &a) {
  using sizes = shape<F, N>;
  codes_args s = {};
  s.a = a;
  s.halves = a.glu != NULL ? 2 : 1;
  if (a.glu != NULL)
    s.glu = *a.glu;
  s.rows = a.rows / s.halves;
  s.units = ceil_div(a.columns, sizes::INPUTS);
  s.token_groups = a.starts != NULL ? 1 : ceil_div(a.m, N);
  s.x_in_boxes = !a.gather && (N > 32 || sizes::HALVES);
  /* As much as any call of this kernel needs. */
  int error = allow_large(queue, multiply_codes<F, N>, 1, sizes::RING_BYTES + 1024);
  if (error != OCT_CUDA_OK)
    return error;
  uint32_t busy = a.starts == NULL ? 1 : a.likely < a.n_experts ? a.likely : a.n_experts;
  choose_tiles<F, N>(queue, &s, busy);
  choose_stages<F, N>(&s);
  constexpr bool PACKED = kind_traits<F>::PACKED;
  size_t bytes = PACKED ? round_up(a.columns, 128) / 2 : a.columns;
  CUtensorMap weights = {}, inputs = {};
  if (!make_map(&weights, CU_TENSOR_MAP_DATA_TYPE_UINT8, a.w,
                {bytes, (uint64_t)a.rows * a.n_matrices}, {bytes}, {64, s.tile_rows},
                PACKED ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_64B))
    return OCT_CUDA_UNSUPPORTED;
  if (s.x_in_boxes &&
      !make_map(&inputs, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, a.x, {a.columns, a.m}, {a.x_stride * 2},
                {sizes::HALVES ? sizes::INPUTS : 64, N},
                sizes::HALVES ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B))
    return OCT_CUDA_UNSUPPORTED;
  uint64_t jobs = (uint64_t)s.tiles * (a.starts == NULL ? s.token_groups : a.m);
  uint32_t blocks = jobs < queue->sm_count ? (uint32_t)jobs : queue->sm_count;
  if (s.split > 1)
    blocks = (uint32_t)jobs * s.split;
  size_t ring = (size_t)s.stages * s.stage_bytes;
  size_t room = s.split > 1 ? (size_t)N * (s.halves * s.tile_rows + 4) * sizeof(float) : 0;
  return launch_cluster(queue, multiply_codes<F, N>, s.split, dim3(blocks),
                        dim3(128 * ceil_div(s.halves * s.tile_rows, 64) + COPIERS),
                        (ring > room ? ring : room) + 1024, s, weights, inputs);
}

/* For so many tokens of an expert, or rows in all: the columns that take least, of which a pass
 * over a weight takes so long (us for gate+up of llama-3.1-8b, by kernels/bench on an H200). An
 * expert with more tokens than there is room for is read again, from the L2 cache. */
template <int F>
static int
by_width(const oct_cuda_queue *queue, const matmul_args &a, float tokens) {
  static const struct {
    uint32_t width, cost;
  } of[] = {{16, 33}, {32, 37}, {48, 41}, {64, 44}, {96, 50}, {128, 54}, {160, 76}};
  uint32_t best = 0, least = UINT32_MAX;
  for (uint32_t i = 0; i < sizeof of / sizeof *of; i++) {
    uint32_t cost = (uint32_t)ceilf(tokens / (float)of[i].width) * of[i].cost;
    if (cost < least) {
      least = cost;
      best = of[i].width;
    }
  }
  switch (best) {
  case 16:
    return launch_codes<F, 16>(queue, a);
  case 32:
    return launch_codes<F, 32>(queue, a);
  case 48:
    return launch_codes<F, 48>(queue, a);
  case 64:
    return launch_codes<F, 64>(queue, a);
  case 96:
    return launch_codes<F, 96>(queue, a);
  case 128:
    return launch_codes<F, 128>(queue, a);
  default:
    return launch_codes<F, 160>(queue, a);
  }
}

/* FP8: experts of many tokens have other kernels. */
template <int F>
static int
by_rows(const oct_cuda_queue *queue, const matmul_args &a) {
  uint32_t m = a.m;
  if (a.starts != NULL) {
    /* So many that an expert with more tokens than most is not often read twice. */
    uint32_t mean = ceil_div(a.likely, a.n_experts), more = 1;
    while (more * more < 4 * mean)
      more++;
    m = mean + more;
  }
  if (m <= 8)
    return launch_codes<F, 8>(queue, a);
  if (m <= 16)
    return launch_codes<F, 16>(queue, a);
  if (m <= 32)
    return launch_codes<F, 32>(queue, a);
  return m <= 64 ? launch_codes<F, 64>(queue, a) : launch_codes<F, 128>(queue, a);
}

template <int F>
static int
by_tokens(const oct_cuda_queue *queue, const matmul_args &a) {
  if constexpr (kind_traits<F>::PACKED) {
    float tokens = (float)a.m;
    if (a.starts != NULL) {
      float mean = (float)a.likely / (float)a.n_experts;
      tokens = mean + 1.5f * sqrtf(mean);
    }
    if (tokens <= 4)
      return launch_codes<F, 4>(queue, a);
    return tokens <= 8 ? launch_codes<F, 8>(queue, a) : by_width<F>(queue, a, tokens);
  } else {
    return by_rows<F>(queue, a);
  }
}

bool
oct_matmul_codes_can(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  return queue->capability == 90 && format >= OCT_CUDA_MATRIX_FP8 && a.batch <= 1 &&
         !a.transposed && oct_matmul_is_even(a, format) &&
         (format < OCT_CUDA_MATRIX_MXFP4 || a.rows % 4 == 0) && (a.glu == NULL || a.rows % 8 == 0);
}

int
oct_matmul_codes(const oct_cuda_queue *queue, oct_cuda_format format, const matmul_args &a) {
  if (format == OCT_CUDA_MATRIX_BF16)
    return OCT_CUDA_UNSUPPORTED;
  return OCT_BY_KIND(format, a.group, F, by_tokens < F == KIND_BF16 ? KIND_FP8 : F > (queue, a));
}
