/* What kernels over peers' memory share: where rows, packets and flags are, and how they are
 * awaited.
 *
 * A block has rows b, b + grid, …: block b of a rank only waits for block b of others, and blocks
 * start in order, so that the first unfinished one of all is running everywhere.
 *
 * Buffers have two halves, used by calls in turn. A rank may be one call ahead of another and then
 * writes to the half that the other does not read; it cannot be two ahead, since it waited in
 * between for a flag that the other sets after its earlier call has ended. The number of the call
 * is kept on the device, so that a graph may be replayed. Packets have two halves of their own, in
 * front, where nothing but packets is written: what an earlier call left has another number. */
#ifndef OCT_KERNELS_CUDA_PEERS_CUH
#define OCT_KERNELS_CUDA_PEERS_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/peers.h"

#define BLOCKS_MAX 896
#define ROUNDS_MAX 64 /* rows of a block in a call */
#define FLAGS      (BLOCKS_MAX * OCT_CUDA_PEERS_MAX)

/* In a rank's signals: flags of pushed rows [block, from], flags of sums [block], then these. */
struct peer_state {
  uint32_t call, done;
};

static_assert((2 * FLAGS) * sizeof(uint32_t) + sizeof(peer_state) <= OCT_CUDA_SIGNAL_BYTES,
              "signals are too small");

OCT_DEVICE peer_state *
peer_state_of(const oct_cuda_peers &p) {
  return (peer_state *)(p.signals[p.rank] + 2 * FLAGS);
}

/* Rank `to`'s half for pushed rows in a call, and for packets. */
OCT_DEVICE char *
pushed_at(const oct_cuda_peers &p, size_t half_bytes, uint32_t to, uint32_t call) {
  return (char *)p.buffers[to] + 2 * OCT_CUDA_PACKET_BYTES + half_bytes * (call % 2);
}

OCT_DEVICE uint4 *
packets_at(const oct_cuda_peers &p, uint32_t to, uint32_t call) {
  return (uint4 *)((char *)p.buffers[to] + OCT_CUDA_PACKET_BYTES * (call % 2));
}

OCT_DEVICE void
raise_flag(uint32_t *flag, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
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

/* Waits until the flag has reached the value, which only grows, and may wrap. */
OCT_DEVICE void
await_flag(const oct_cuda_peers &p, const uint32_t *flag, uint32_t value) {
  long long start = clock64();
  for (;;) {
    uint32_t seen;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    if ((int32_t)(seen - value) >= 0 || is_late(p, start))
      return;
  }
}

/* A packet: two words, and behind each the number of the call that sent it. 8 bytes of it arrive as
 * a whole. */
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
end_call(peer_state *state, uint32_t call) {
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
