/* All-reduce over peers' memory, with the residual and the norm that follow it.
 *
 * Every rank pushes: it writes its rows into the other ranks' buffers, then a flag, and waits at
 * its own memory only. One shot: each row goes to everybody, and everybody adds up. Two shots: row
 * r goes to rank r mod n, which adds up and pushes the sum to everybody. Packets: one shot whose
 * flag is in every 8 bytes, which arrive as a whole, so that no rank waits for its writes to be
 * acknowledged before it says that they are there.
 */
#include "kernels/cuda/peers.cuh"

#define RUNS_MAX    4 /* of 16 bytes that a thread has of a row */
#define THREADS_MAX 1024

struct reduce_args {
  oct_cuda_peers peers;
  uint32_t n, width, row_bytes;
  const void *x;
  void *residual;
  const void *weight;
  float eps;
  void *out;
  size_t half_bytes;
};

/* The row that `from` pushed into rank `to`'s buffer; sums are in the place after all ranks'. */
OCT_DEVICE uint4 *
pushed_row(const reduce_args &a, uint32_t to, uint32_t from, uint32_t row, uint64_t call) {
  return (uint4 *)(pushed_at(a.peers, a.half_bytes, to, call) +
                   ((size_t)from * a.n + row) * a.row_bytes);
}

OCT_DEVICE uint4 *
packets_of(const reduce_args &a, uint32_t to, uint32_t from, uint32_t row, uint64_t call) {
  return packets_at(a.peers, to, call) + ((size_t)from * a.n + row) * (a.row_bytes / 8);
}

/* 16 bytes of data, of which the second half stands `runs` packets behind the first. */
OCT_DEVICE uint4
await_packets(const reduce_args &a, const uint4 *from, uint32_t runs, uint32_t number) {
  long long start = clock64();
  for (;;) {
    uint4 first = load_packet(from), second = load_packet(from + runs);
    bool there = first.y == number && first.w == number && second.y == number && second.w == number;
    if (there || is_late(a.peers, start))
      return make_uint4(first.x, first.z, second.x, second.z);
  }
}

/* 16 bytes of T, added up as floats. */
template <typename T>
OCT_DEVICE void
add_run(uint4 raw, float (&sum)[16 / sizeof(T)]) {
  const T *v = (const T *)&raw;
#pragma unroll
  for (int i = 0; i < 16 / (int)sizeof(T); i++)
    sum[i] += to_float(v[i]);
}

/* A row of a block, RUNS times 16 bytes of it to a thread. */
template <typename T, int RUNS> struct reducer {
  static constexpr int N = 16 / sizeof(T);
  float sums[RUNS][N];

  /* Row `row` of x to the other ranks of [first, end), which learn of it. */
  __device__ void push(const reduce_args &a, uint32_t row, uint64_t call, uint64_t value,
                       uint32_t first, uint32_t end) {
    const uint4 *x = (const uint4 *)((const T *)a.x + (size_t)row * a.width);
    uint32_t rank = a.peers.rank, runs = a.width / N;
    for (uint32_t i = threadIdx.x; i < runs; i += blockDim.x) {
      uint4 v = x[i];
      for (uint32_t r = first; r < end; r++)
        if (r != rank)
          pushed_row(a, r, rank, row, call)[i] = v;
    }
    __syncthreads();
    if (threadIdx.x >= first && threadIdx.x < end && threadIdx.x != rank)
      raise_flag(rows_flag(a.peers, threadIdx.x, rank), value);
  }

  /* Adds up what the others have pushed here and the own row, in the order of ranks. */
  __device__ void collect(const reduce_args &a, uint32_t row, uint64_t call, uint64_t value) {
    const uint4 *x = (const uint4 *)((const T *)a.x + (size_t)row * a.width);
    uint32_t rank = a.peers.rank, runs = a.width / N;
    if (threadIdx.x < a.peers.n && threadIdx.x != rank)
      await_flag(a.peers, rows_flag(a.peers, rank, threadIdx.x), value);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
#pragma unroll
      for (int i = 0; i < N; i++)
        sums[k][i] = 0;
      uint32_t at = k * blockDim.x + threadIdx.x;
      for (uint32_t r = 0; at < runs && r < a.peers.n; r++)
        add_run<T>(r == rank ? x[at] : __ldcv(pushed_row(a, rank, r, row, call) + at), sums[k]);
    }
  }

  /* Both of these at once, by packets. */
  __device__ void exchange(const reduce_args &a, uint32_t row, uint64_t call) {
    const uint4 *x = (const uint4 *)((const T *)a.x + (size_t)row * a.width);
    uint32_t rank = a.peers.rank, runs = a.width / N, number = packet_number(call);
    uint4 own[RUNS];
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
      uint32_t at = k * blockDim.x + threadIdx.x;
      if (at >= runs)
        break;
      own[k] = x[at];
      for (uint32_t r = 0; r < a.peers.n; r++)
        if (r != rank) {
          uint4 *to = packets_of(a, r, rank, row, call) + at;
          store_packet(to, own[k].x, own[k].y, number);
          store_packet(to + runs, own[k].z, own[k].w, number);
        }
    }
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
#pragma unroll
      for (int i = 0; i < N; i++)
        sums[k][i] = 0;
      uint32_t at = k * blockDim.x + threadIdx.x;
      for (uint32_t r = 0; at < runs && r < a.peers.n; r++)
        add_run<T>(r == rank
                       ? own[k]
                       : await_packets(a, packets_of(a, rank, r, row, call) + at, runs, number),
                   sums[k]);
    }
  }

  /* The sums of a row, rounded, to every other rank. */
  __device__ void push_sums(const reduce_args &a, uint32_t row, uint64_t call, uint64_t value) {
    uint32_t rank = a.peers.rank, runs = a.width / N;
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
      uint32_t at = k * blockDim.x + threadIdx.x;
      if (at >= runs)
        break;
      vec<T, N> v;
#pragma unroll
      for (int i = 0; i < N; i++) {
        v.at[i] = from_float<T>(sums[k][i]);
        sums[k][i] = to_float(v.at[i]);
      }
      for (uint32_t r = 0; r < a.peers.n; r++)
        if (r != rank)
          pushed_row(a, r, a.peers.n, row, call)[at] = *reinterpret_cast<uint4 *>(&v);
    }
    __syncthreads();
    if (threadIdx.x < a.peers.n && threadIdx.x != rank)
      raise_flag(sums_flag(a.peers, threadIdx.x), value);
  }

  __device__ void take_sums(const reduce_args &a, uint32_t row, uint64_t call, uint64_t value) {
    uint32_t rank = a.peers.rank, runs = a.width / N;
    if (threadIdx.x == 0)
      await_flag(a.peers, sums_flag(a.peers, rank), value);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
#pragma unroll
      for (int i = 0; i < N; i++)
        sums[k][i] = 0;
      uint32_t at = k * blockDim.x + threadIdx.x;
      if (at < runs)
        add_run<T>(__ldcv(pushed_row(a, rank, a.peers.n, row, call) + at), sums[k]);
    }
  }

  /* Residual and norm, or the sums as they are. R: residual. */
  template <typename R> __device__ void finish(const reduce_args &a, uint32_t row, float *room) {
    uint32_t runs = a.width / N;
    float squares = 0, factor = 1;
    if (a.residual != NULL || a.weight != NULL) {
      R *residual = (R *)a.residual + (size_t)row * a.width;
#pragma unroll
      for (int k = 0; k < RUNS; k++) {
        uint32_t at = k * blockDim.x + threadIdx.x;
        if (at >= runs)
          break;
        float old[N] = {};
        if (a.residual != NULL)
          load_floats<R, N>(residual + at * N, old);
#pragma unroll
        for (int i = 0; i < N; i++) {
          sums[k][i] += old[i];
          squares += sums[k][i] * sums[k][i];
        }
        if (a.residual != NULL)
          store_floats<R, N>(residual + at * N, sums[k]);
      }
      factor = rsqrtf(block_sum(squares, room) / a.width + a.eps);
    }
    if (a.out == NULL)
      return;
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
      uint32_t at = k * blockDim.x + threadIdx.x;
      if (at >= runs)
        break;
      float weight[N];
      if (a.weight != NULL)
        load_floats<T, N>((const T *)a.weight + at * N, weight);
#pragma unroll
      for (int i = 0; i < N; i++)
        sums[k][i] *= factor * (a.weight != NULL ? weight[i] : 1);
      store_floats<T, N>((T *)a.out + (size_t)row * a.width + at * N, sums[k]);
    }
  }
};

template <typename T, typename R, int RUNS, oct_cuda_reduce_way WAY>
static __global__ void
__launch_bounds__(THREADS_MAX) all_reduce(reduce_args a) {
  __shared__ float room[32];
  admit_successor();
  await_predecessors();
  peer_state *state = peer_state_of(a.peers);
  uint64_t call = state->call, value = flag_before(call);
  uint32_t n = a.peers.n;
  reducer<T, RUNS> r;
  for (uint32_t row = blockIdx.x; row < a.n; row += gridDim.x) {
    value++;
    uint32_t owner = row % n;
    if (WAY == OCT_CUDA_REDUCE_PACKETS) {
      r.exchange(a, row, call);
    } else if (WAY == OCT_CUDA_REDUCE_ONE_SHOT) {
      r.push(a, row, call, value, 0, n);
      r.collect(a, row, call, value);
    } else {
      r.push(a, row, call, value, owner, owner + 1);
      if (owner == a.peers.rank) {
        r.collect(a, row, call, value);
        r.push_sums(a, row, call, value);
      } else {
        r.take_sums(a, row, call, value);
      }
    }
    r.template finish<R>(a, row, room);
  }
  end_call(state, call);
}

/* ---------------------------------------------------------------- launches */

static bool
fits(const oct_cuda_peers *peers, oct_cuda_reduce_way way, uint32_t n, size_t row_bytes) {
  size_t bytes = n * row_bytes;
  if (peers->n == 0 || peers->n > OCT_CUDA_PEERS_MAX || row_bytes % 16 != 0 ||
      row_bytes > 16 * RUNS_MAX * THREADS_MAX || n > BLOCKS_MAX * ROUNDS_MAX)
    return false;
  if (way == OCT_CUDA_REDUCE_PACKETS)
    return 2 * bytes * peers->n <= OCT_CUDA_PACKET_BYTES && peer_half_bytes(peers) > 0;
  return way != OCT_CUDA_REDUCE_NONE && bytes * (peers->n + 1) <= peer_half_bytes(peers);
}

oct_cuda_reduce_way
oct_cuda_all_reduce_way(const oct_cuda_peers *peers, uint32_t n, size_t row_bytes) {
  /* Up to these sizes, by kernels/bench on two H200 (its README). There both shots move as much and
   * one waits and rounds once less: it is as fast as NCCL and a norm up to 16 MiB at least. */
  bool two = peers->n == 2;
  const struct {
    oct_cuda_reduce_way way;
    size_t bytes;
  } ways[] = {{OCT_CUDA_REDUCE_PACKETS, (size_t)(two ? 256 : 64) << 10},
              {OCT_CUDA_REDUCE_ONE_SHOT, (size_t)(two ? 16384 : 256) << 10},
              {OCT_CUDA_REDUCE_TWO_SHOT, (size_t)8 << 20}};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
    if (n * row_bytes <= ways[i].bytes && fits(peers, ways[i].way, n, row_bytes))
      return ways[i].way;
  return OCT_CUDA_REDUCE_NONE;
}

oct_cuda_reduce_way
oct_cuda_all_reduce_fixed(const oct_cuda_peers *peers, uint32_t *n, size_t row_bytes) {
  if (oct_cuda_all_reduce_way(peers, *n, row_bytes) == OCT_CUDA_REDUCE_PACKETS)
    return OCT_CUDA_REDUCE_PACKETS;
  while (*n > 0 && !fits(peers, OCT_CUDA_REDUCE_ONE_SHOT, *n, row_bytes))
    *n = *n / 2;
  return *n > 0 ? OCT_CUDA_REDUCE_ONE_SHOT : OCT_CUDA_REDUCE_NONE;
}

template <typename T, typename R, int RUNS>
static int
launch_reduce(const oct_cuda_queue *queue, const reduce_args &a, oct_cuda_reduce_way way) {
  uint32_t threads = round_up(ceil_div(a.width, 16 / sizeof(T)), 32);
  dim3 grid(a.n < BLOCKS_MAX ? a.n : BLOCKS_MAX);
  dim3 block(threads > THREADS_MAX ? THREADS_MAX : threads);
  if (way == OCT_CUDA_REDUCE_PACKETS)
    return launch(queue, all_reduce<T, R, RUNS, OCT_CUDA_REDUCE_PACKETS>, grid, block, 0, a);
  if (way == OCT_CUDA_REDUCE_TWO_SHOT)
    return launch(queue, all_reduce<T, R, RUNS, OCT_CUDA_REDUCE_TWO_SHOT>, grid, block, 0, a);
  return launch(queue, all_reduce<T, R, RUNS, OCT_CUDA_REDUCE_ONE_SHOT>, grid, block, 0, a);
}

int
oct_cuda_all_reduce_norm(const oct_cuda_queue *queue, const oct_cuda_peers *peers,
                         const oct_cuda_all_reduce *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  size_t element = oct_cuda_type_bytes(call->type);
  reduce_args a = {*peers,       call->n,
                   call->width,  (uint32_t)(call->width * element),
                   call->x,      call->residual,
                   call->weight, call->eps,
                   call->out,    peer_half_bytes(peers)};
  if (!is_activation(call->type) || !fits(peers, call->way, call->n, a.row_bytes))
    return OCT_CUDA_UNSUPPORTED;
  oct_cuda_type residual = call->residual != NULL ? call->residual_type : call->type;
  if (a.row_bytes <= 16 * THREADS_MAX)
    return OCT_BY_TYPE(call->type, T,
                       OCT_BY_TYPE(residual, R, launch_reduce<T, R, 1>(queue, a, call->way)));
  return OCT_BY_TYPE(call->type, T,
                     OCT_BY_TYPE(residual, R, launch_reduce<T, R, RUNS_MAX>(queue, a, call->way)));
}
