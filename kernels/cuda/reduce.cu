/* All-reduce over peers' memory, with the residual and the norm that follow it.
 *
 * Every rank pushes: it writes its rows into the other ranks' buffers, then a flag, and waits at
 * its own memory only. One shot: each row goes to everybody, and everybody adds up. Two shots: row
 * r goes to rank r mod n, which adds up and pushes the sum to everybody.
 *
 * A block has rows b, b + grid, …: block b of a rank only waits for block b of others, and blocks
 * start in order, so that the first unfinished one of all is running everywhere.
 *
 * Buffers have two halves, used by calls in turn. A rank may be one call ahead of another and then
 * writes to the half that the other does not read; it cannot be two ahead, since it waited in
 * between for a flag that the other sets after its earlier call has ended. The number of the call
 * is kept on the device, so that a graph may be replayed. */
#include "kernels/cuda/common.cuh"

#define BLOCKS_MAX  896
#define ROUNDS_MAX  64 /* rows of a block in a call */
#define FLAGS       (BLOCKS_MAX * OCT_CUDA_PEERS_MAX)
#define RUNS        4 /* of 16 bytes that a thread has of a row */
#define THREADS_MAX 1024

/* In a rank's signals: flags of pushed rows [block, from], flags of sums [block], then these. */
struct reduce_state {
  uint32_t call, done;
};

static_assert((2 * FLAGS) * sizeof(uint32_t) + sizeof(reduce_state) <= OCT_CUDA_SIGNAL_BYTES,
              "signals are too small");

struct reduce_args {
  oct_cuda_peers peers;
  uint32_t n, width, row_bytes;
  const void *x;
  void *residual;
  const void *weight;
  float eps;
  void *out;
};

OCT_DEVICE reduce_state *
state_of(const reduce_args &a) {
  return (reduce_state *)(a.peers.signals[a.peers.rank] + 2 * FLAGS);
}

/* The row that `from` pushed into rank `to`'s buffer; sums are in the place after all ranks'. */
OCT_DEVICE uint4 *
pushed_row(const reduce_args &a, uint32_t to, uint32_t from, uint32_t row, uint32_t call) {
  size_t half = a.peers.buffer_bytes / 2 / 16 * 16 * (call % 2);
  return (uint4 *)((char *)a.peers.buffers[to] + half + ((size_t)from * a.n + row) * a.row_bytes);
}

OCT_DEVICE void
raise_flag(uint32_t *flag, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

/* Waits until the flag has reached the value, which only grows, and may wrap. */
OCT_DEVICE void
await_flag(const reduce_args &a, const uint32_t *flag, uint32_t value) {
  long long start = clock64();
  for (;;) {
    uint32_t seen;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if ((int32_t)(seen - value) >= 0)
      return;
    if (a.peers.timeout_cycles != 0 && (uint64_t)(clock64() - start) > a.peers.timeout_cycles) {
      *(volatile uint32_t *)a.peers.failed = 1;
      __threadfence_system();
      return;
    }
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

template <typename T> struct reducer {
  static constexpr int N = 16 / sizeof(T);
  float sums[RUNS][N];

  /* Row `row` of x to the ranks [first, end), which learn of it. */
  __device__ void push(const reduce_args &a, uint32_t row, uint32_t call, uint32_t value,
                       uint32_t first, uint32_t end) {
    const uint4 *x = (const uint4 *)((const T *)a.x + (size_t)row * a.width);
    uint32_t rank = a.peers.rank, runs = a.width / N;
    for (uint32_t i = threadIdx.x; i < runs; i += blockDim.x) {
      uint4 v = x[i];
      for (uint32_t r = first; r < end; r++)
        pushed_row(a, r, rank, row, call)[i] = v;
    }
    __syncthreads();
    if (threadIdx.x >= first && threadIdx.x < end)
      raise_flag(a.peers.signals[threadIdx.x] + blockIdx.x * OCT_CUDA_PEERS_MAX + rank, value);
  }

  /* Adds up what all ranks have pushed here, in their order. */
  __device__ void collect(const reduce_args &a, uint32_t row, uint32_t call, uint32_t value) {
    uint32_t rank = a.peers.rank, runs = a.width / N;
    if (threadIdx.x < a.peers.n)
      await_flag(a, a.peers.signals[rank] + blockIdx.x * OCT_CUDA_PEERS_MAX + threadIdx.x, value);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
#pragma unroll
      for (int i = 0; i < N; i++)
        sums[k][i] = 0;
      uint32_t at = k * blockDim.x + threadIdx.x;
      for (uint32_t r = 0; at < runs && r < a.peers.n; r++)
        add_run<T>(__ldcv(pushed_row(a, rank, r, row, call) + at), sums[k]);
    }
  }

  /* The sums of a row, rounded, to every rank. */
  __device__ void push_sums(const reduce_args &a, uint32_t row, uint32_t call, uint32_t value) {
    uint32_t runs = a.width / N;
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
      uint32_t at = k * blockDim.x + threadIdx.x;
      if (at >= runs)
        break;
      vec<T, N> v;
#pragma unroll
      for (int i = 0; i < N; i++)
        v.at[i] = from_float<T>(sums[k][i]);
      for (uint32_t r = 0; r < a.peers.n; r++)
        pushed_row(a, r, a.peers.n, row, call)[at] = *reinterpret_cast<uint4 *>(&v);
    }
    __syncthreads();
    if (threadIdx.x < a.peers.n)
      raise_flag(a.peers.signals[threadIdx.x] + FLAGS + blockIdx.x, value);
  }

  __device__ void take_sums(const reduce_args &a, uint32_t row, uint32_t call, uint32_t value) {
    uint32_t rank = a.peers.rank, runs = a.width / N;
    if (threadIdx.x == 0)
      await_flag(a, a.peers.signals[rank] + FLAGS + blockIdx.x, value);
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
    if (a.residual != NULL) {
      R *residual = (R *)a.residual + (size_t)row * a.width;
#pragma unroll
      for (int k = 0; k < RUNS; k++) {
        uint32_t at = k * blockDim.x + threadIdx.x;
        if (at >= runs)
          break;
        float old[N];
        load_floats<R, N>(residual + at * N, old);
#pragma unroll
        for (int i = 0; i < N; i++) {
          sums[k][i] += old[i];
          squares += sums[k][i] * sums[k][i];
        }
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
        sums[k][i] *= factor * (a.residual != NULL && a.weight != NULL ? weight[i] : 1);
      store_floats<T, N>((T *)a.out + (size_t)row * a.width + at * N, sums[k]);
    }
  }
};

template <typename T, typename R, bool TWO_SHOT>
static __global__ void
__launch_bounds__(THREADS_MAX) all_reduce(reduce_args a) {
  __shared__ float room[32];
  admit_successor();
  await_predecessors();
  reduce_state *state = state_of(a);
  uint32_t call = state->call, n = a.peers.n;
  uint32_t value = call * ROUNDS_MAX;
  reducer<T> r;
  for (uint32_t row = blockIdx.x; row < a.n; row += gridDim.x) {
    value++;
    uint32_t owner = row % n;
    if (TWO_SHOT) {
      r.push(a, row, call, value, owner, owner + 1);
      if (owner == a.peers.rank) {
        r.collect(a, row, call, value);
        r.push_sums(a, row, call, value);
      }
      r.take_sums(a, row, call, value);
    } else {
      r.push(a, row, call, value, 0, n);
      r.collect(a, row, call, value);
    }
    r.template finish<R>(a, row, room);
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&state->done, 1u) == gridDim.x - 1) {
    state->done = 0;
    state->call = call + 1;
  }
}

size_t
oct_cuda_all_reduce_limit(const oct_cuda_peers *peers, bool two_shot) {
  /* Below the first, latency decides; above the second, bandwidth does, and NCCL has more of it. */
  size_t wanted = two_shot ? (size_t)8 << 20 : (size_t)256 << 10;
  size_t most = peers->buffer_bytes / 2 / 16 * 16 / (peers->n + 1);
  return wanted < most ? wanted : most;
}

template <typename T, typename R>
static int
launch_reduce(const oct_cuda_queue *queue, const reduce_args &a, bool two_shot) {
  uint32_t threads = round_up(ceil_div(a.width, 16 / sizeof(T)), 32);
  threads = threads > THREADS_MAX ? THREADS_MAX : threads;
  dim3 grid(a.n < BLOCKS_MAX ? a.n : BLOCKS_MAX);
  if (two_shot)
    return launch(queue, all_reduce<T, R, true>, grid, dim3(threads), 0, a);
  return launch(queue, all_reduce<T, R, false>, grid, dim3(threads), 0, a);
}

int
oct_cuda_all_reduce_norm(const oct_cuda_queue *queue, const oct_cuda_peers *peers,
                         const oct_cuda_all_reduce *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  size_t element = oct_cuda_type_bytes(call->type);
  reduce_args a = {*peers,   call->n,        call->width,  (uint32_t)(call->width * element),
                   call->x,  call->residual, call->weight, call->eps,
                   call->out};
  if (!is_activation(call->type) || a.row_bytes % 16 != 0 ||
      a.row_bytes > 16 * RUNS * THREADS_MAX || call->n > BLOCKS_MAX * ROUNDS_MAX ||
      peers->n > OCT_CUDA_PEERS_MAX || peers->n == 0 ||
      (size_t)a.row_bytes * call->n * (peers->n + 1) > peers->buffer_bytes / 2 / 16 * 16)
    return OCT_CUDA_UNSUPPORTED;
  oct_cuda_type residual = call->residual != NULL ? call->residual_type : call->type;
  return OCT_BY_TYPE(call->type, T,
                     OCT_BY_TYPE(residual, R, launch_reduce<T, R>(queue, a, call->two_shot)));
}
