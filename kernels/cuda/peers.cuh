/* What kernels over peers' memory share: where rows, packets and flags are, and how they are
 * awaited.
 *
 * A block has rows b, b + grid, …: block b of a rank only waits for block b of others, and blocks
 * start in order, so that the first unfinished one of all is running everywhere.
 *
 * Buffers have two halves, used by calls in turn. A rank may be one call ahead of another and then
 * writes to the half that the other does not read; it cannot be two ahead, since it waited in
 * between for a flag that the other sets after its earlier call has ended. The number of the call
 * is kept on the device, so that a graph may be replayed.
 *
 * A block that only large calls have may not have raised its flag for days. So flags only ever
 * grow, in 64 bits, and none has to be told from one that has wrapped.
 *
 * Packets have two halves of their own, in front, where nothing but packets is written: what an
 * earlier call left has another number. The number has 32 bits and is never 0, as the room is at
 * first; it comes again in the same half after 2^32 calls. */
#ifndef OCT_KERNELS_CUDA_PEERS_CUH
#define OCT_KERNELS_CUDA_PEERS_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/peers.h"

#define BLOCKS_MAX 896
#define ROUNDS_MAX 64 /* rows of a block in a call */
#define FLAGS      (BLOCKS_MAX * OCT_CUDA_PEERS_MAX)

/* In a rank's signals: flags of pushed rows [block, from], flags of sums [block], then these. */
struct peer_state {
  uint64_t call;
  uint32_t done;
};

static_assert(2 * FLAGS == OCT_CUDA_SIGNAL_CALLS &&
                  2 * FLAGS * sizeof(uint64_t) + sizeof(peer_state) <= OCT_CUDA_SIGNAL_BYTES,
              "where the state is");

OCT_DEVICE peer_state *
peer_state_of(const oct_cuda_peers &p) {
  return (peer_state *)(p.signals[p.rank] + OCT_CUDA_SIGNAL_CALLS);
}

/* A rank's flag of the rows that `from` pushes for this block, and of sums for it. */
OCT_DEVICE uint64_t *
rows_flag(const oct_cuda_peers &p, uint32_t to, uint32_t from) {
  return p.signals[to] + blockIdx.x * OCT_CUDA_PEERS_MAX + from;
}

OCT_DEVICE uint64_t *
sums_flag(const oct_cuda_peers &p, uint32_t to) {
  return p.signals[to] + FLAGS + blockIdx.x;
}

/* What a flag says after the rows of all calls before this one: each row adds one. */
OCT_DEVICE uint64_t
flag_before(uint64_t call) {
  return call * ROUNDS_MAX;
}

/* Rank `to`'s half for pushed rows in a call, and for packets. */
OCT_DEVICE char *
pushed_at(const oct_cuda_peers &p, size_t half_bytes, uint32_t to, uint64_t call) {
  return (char *)p.buffers[to] + 2 * OCT_CUDA_PACKET_BYTES + half_bytes * (call % 2);
}

OCT_DEVICE uint4 *
packets_at(const oct_cuda_peers &p, uint32_t to, uint64_t call) {
  return (uint4 *)((char *)p.buffers[to] + OCT_CUDA_PACKET_BYTES * (call % 2));
}

/* The same for two calls that follow each other, whose halves differ. */
OCT_DEVICE uint32_t
packet_number(uint64_t call) {
  return (uint32_t)call | 1;
}

OCT_DEVICE void
raise_flag(uint64_t *flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

#define PATIENCE (1 << 20) /* cycles, half a millisecond */

/* Whether a wait that began at `start` has lasted too long, which the host then knows; or the host
 * says that nobody will come. Its memory is far away: it is not looked at before PATIENCE. */
OCT_DEVICE bool
is_late(const oct_cuda_peers &p, long long start) {
  uint64_t waited = (uint64_t)(clock64() - start);
  if (waited < PATIENCE)
    return false;
  if (*(volatile uint32_t *)p.failed != 0)
    return true;
  if (p.timeout_cycles == 0 || waited <= p.timeout_cycles)
    return false;
  *(volatile uint32_t *)p.failed = 1;
  __threadfence_system();
  return true;
}

/* Waits until the flag has reached the value. */
OCT_DEVICE void
await_flag(const oct_cuda_peers &p, const uint64_t *flag, uint64_t value) {
  long long start = clock64();
  for (;;) {
    uint64_t seen;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
    if (seen >= value || is_late(p, start))
      return;
  }
}

/* A packet: two words, and behind each the number of its call. 8 bytes of it arrive as a whole. */
OCT_DEVICE void
store_packet(uint4 *to, uint32_t x, uint32_t y, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(x), "r"(number),
               "r"(y)
               : "memory");
}

OCT_DEVICE uint4
load_packet(const uint4 *from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

/* Every block, last. */
OCT_DEVICE void
end_call(peer_state *state, uint64_t call) {
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&state->done, 1u) == gridDim.x - 1) {
    state->done = 0;
    state->call = call + 1;
  }
}

static inline size_t
peer_half_bytes(const oct_cuda_peers *peers) {
  size_t packets = 2 * OCT_CUDA_PACKET_BYTES;
  return peers->buffer_bytes < packets ? 0 : (peers->buffer_bytes - packets) / 2 / 16 * 16;
}

#endif
