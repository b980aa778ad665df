/* Columns of all ranks put together, in one kernel: every rank pushes its rows to all others, by
 * packets or in one shot (peers.cuh), and places what it gets. A thread has 8 bytes of a row. */
#include "kernels/cuda/gather.h"
#include "kernels/cuda/peers.cuh"

#define UNIT        8 /* bytes of a packet */
#define THREADS_MAX 1024

struct gather_args {
  oct_cuda_peers peers;
  oct_cuda_gather_parts call;
  size_t half_bytes;
};

struct gather_sources {
  const void *x[OCT_CUDA_PEERS_MAX];
};

/* Unit `at` of row `row` of a rank to where it belongs. */
OCT_DEVICE void
place_unit(const oct_cuda_gather_parts &c, uint32_t rank, uint32_t row, uint32_t at, uint2 unit) {
  for (uint32_t i = 0; i < c.n_pieces; i++) {
    const oct_cuda_gather_piece &p = c.pieces[i];
    uint32_t byte = at * UNIT;
    if (byte < p.at || byte >= p.at + p.bytes)
      continue;
    uint32_t *out =
        (uint32_t *)((char *)p.out + row * p.pitch + (size_t)rank * p.bytes + (byte - p.at));
    out[0] = unit.x;
    if (byte + UNIT / 2 < p.at + p.bytes)
      out[1] = unit.y;
  }
}

OCT_DEVICE uint2
await_packet(const oct_cuda_peers &p, const uint4 *from, uint32_t number) {
  long long start = clock64();
  for (;;) {
    uint4 v = load_packet(from);
    if ((v.y == number && v.w == number) || is_late(p, start))
      return make_uint2(v.x, v.z);
  }
}

template <bool PACKETS>
static __global__ void
__launch_bounds__(THREADS_MAX) gather_columns(gather_args a) {
  admit_successor();
  await_predecessors();
  peer_state *state = peer_state_of(a.peers);
  uint64_t call = state->call, value = flag_before(call);
  uint32_t number = packet_number(call);
  uint32_t rank = a.peers.rank, n = a.peers.n, units = a.call.row_bytes / UNIT;
  for (uint32_t row = blockIdx.x; row < a.call.n; row += gridDim.x) {
    const uint2 *x = (const uint2 *)((const char *)a.call.x + (size_t)row * a.call.row_bytes);
    value++;
    for (uint32_t at = threadIdx.x; at < units; at += blockDim.x) {
      uint2 unit = x[at];
      size_t place = ((size_t)rank * a.call.n + row) * units + at;
      for (uint32_t r = 0; r < n; r++)
        if (r == rank)
          place_unit(a.call, rank, row, at, unit);
        else if (PACKETS)
          store_packet(packets_at(a.peers, r, call) + place, unit.x, unit.y, number);
        else
          ((uint2 *)pushed_at(a.peers, a.half_bytes, r, call))[place] = unit;
    }
    if (!PACKETS) {
      __syncthreads();
      if (threadIdx.x < n && threadIdx.x != rank) {
        raise_flag(rows_flag(a.peers, threadIdx.x, rank), value);
        await_flag(a.peers, rows_flag(a.peers, rank, threadIdx.x), value);
      }
      __syncthreads();
    }
    for (uint32_t at = threadIdx.x; at < units; at += blockDim.x)
      for (uint32_t r = 0; r < n; r++) {
        size_t place = ((size_t)r * a.call.n + row) * units + at;
        if (r == rank)
          continue;
        uint2 unit =
            PACKETS ? await_packet(a.peers, packets_at(a.peers, rank, call) + place, number)
                    : __ldcv((const uint2 *)pushed_at(a.peers, a.half_bytes, rank, call) + place);
        place_unit(a.call, r, row, at, unit);
      }
  }
  end_call(state, call);
}

static __global__ void
place_columns(gather_sources sources, uint32_t n_ranks, oct_cuda_gather_parts call) {
  admit_successor();
  await_predecessors();
  uint32_t row = blockIdx.x, units = call.row_bytes / UNIT;
  for (uint32_t r = 0; r < n_ranks; r++) {
    const uint2 *x = (const uint2 *)((const char *)sources.x[r] + (size_t)row * call.row_bytes);
    for (uint32_t at = threadIdx.x; at < units; at += blockDim.x)
      place_unit(call, r, row, at, x[at]);
  }
}

/* ---------------------------------------------------------------- launches */

static bool
is_whole(const oct_cuda_gather_parts *c) {
  bool whole = c->row_bytes % UNIT == 0 && c->n_pieces <= OCT_CUDA_GATHER_PIECES;
  for (uint32_t i = 0; whole && i < c->n_pieces; i++)
    whole = c->pieces[i].at % UNIT == 0 && c->pieces[i].bytes % 4 == 0 &&
            c->pieces[i].pitch % 4 == 0 && c->pieces[i].at + c->pieces[i].bytes <= c->row_bytes;
  return whole;
}

/* Small runs by packets, which take twice the bytes and no acknowledgement. */
static bool
by_packets(const oct_cuda_peers *peers, uint32_t n, uint32_t row_bytes) {
  size_t bytes = (size_t)n * row_bytes;
  return bytes <= (peers->n == 2 ? 256u << 10 : 64u << 10) &&
         2 * bytes * peers->n <= OCT_CUDA_PACKET_BYTES;
}

bool
oct_cuda_gather_can(const oct_cuda_peers *peers, uint32_t n, uint32_t row_bytes) {
  size_t half = peer_half_bytes(peers);
  return peers->n > 0 && peers->n <= OCT_CUDA_PEERS_MAX && half > 0 && row_bytes % UNIT == 0 &&
         n <= BLOCKS_MAX * ROUNDS_MAX &&
         (by_packets(peers, n, row_bytes) || (size_t)n * row_bytes * peers->n <= half);
}

static dim3
threads_of(uint32_t row_bytes) {
  uint32_t threads = round_up(row_bytes / UNIT, 32);
  return dim3(threads > THREADS_MAX ? THREADS_MAX : threads);
}

int
oct_cuda_gather_columns(const oct_cuda_queue *queue, const oct_cuda_peers *peers,
                        const oct_cuda_gather_parts *call) {
  if (call->n == 0)
    return OCT_CUDA_OK;
  if (!is_whole(call) || !oct_cuda_gather_can(peers, call->n, call->row_bytes))
    return OCT_CUDA_UNSUPPORTED;
  gather_args a = {*peers, *call, peer_half_bytes(peers)};
  dim3 grid(call->n < BLOCKS_MAX ? call->n : BLOCKS_MAX), block = threads_of(call->row_bytes);
  if (by_packets(peers, call->n, call->row_bytes))
    return launch(queue, gather_columns<true>, grid, block, 0, a);
  return launch(queue, gather_columns<false>, grid, block, 0, a);
}

int
oct_cuda_gather_place(const oct_cuda_queue *queue, const void *const *sources, uint32_t n_ranks,
                      const oct_cuda_gather_parts *call) {
  gather_sources all = {};
  if (call->n == 0)
    return OCT_CUDA_OK;
  if (!is_whole(call) || n_ranks > OCT_CUDA_PEERS_MAX)
    return OCT_CUDA_UNSUPPORTED;
  for (uint32_t r = 0; r < n_ranks; r++)
    all.x[r] = sources[r];
  return launch(queue, place_columns, dim3(call->n), threads_of(call->row_bytes), 0, all, n_ranks,
                *call);
}
