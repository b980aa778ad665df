/* Barriers in shared memory that also count the bytes of copies, and copies that count there: for
 * architectures from 9.0 on. */
#ifndef OCT_KERNELS_CUDA_BARRIER_CUH
#define OCT_KERNELS_CUDA_BARRIER_CUH

#include "kernels/cuda/common.cuh"

OCT_DEVICE uint32_t
shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

OCT_DEVICE void
barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

OCT_DEVICE void
barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* A warp arrives once, by one lane, for what all of its lanes did before. compute-sanitizer's
 * racecheck takes what that lane did to be ordered, but not what the others did: a build for it has
 * OCT_FOR_RACECHECK, where each lane arrives for itself. */
#ifdef OCT_FOR_RACECHECK
#define OCT_WARP_ARRIVALS 32
#else
#define OCT_WARP_ARRIVALS 1
#endif

/* What a barrier begins with at which so many warps arrive. */
OCT_DEVICE uint32_t
arrivals_of(uint32_t warps) {
  return warps * OCT_WARP_ARRIVALS;
}

/* Whether the lane arrives for its warp, behind what all lanes take part in together. */
OCT_DEVICE bool
arrives_for_warp(uint32_t lane) {
  return lane < OCT_WARP_ARRIVALS;
}

OCT_DEVICE void
arrive_by_warp(uint32_t barrier, uint32_t lane = threadIdx.x % 32) {
  __syncwarp();
  if (arrives_for_warp(lane))
    barrier_arrive(barrier);
}

/* An arrival when the thread's copies of cp.async so far are done. */
OCT_DEVICE void
arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/* An arrival that also waits for so many bytes of copies. */
OCT_DEVICE void
barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

OCT_DEVICE void
barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
               "@done bra over;\n"
               "bra again;\n"
               "over:\n"
               "}\n" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

/* Of `threads` threads, a multiple of 32, that name it: of these some arrive only. */
OCT_DEVICE void
named_wait(uint32_t name, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/* The same where all of them wait. racecheck loses a warp of such a barrier now and then, but none
 * where it stands twice, which orders nothing that it does not order once. */
OCT_DEVICE void
named_barrier(uint32_t name, uint32_t threads) {
  named_wait(name, threads);
#ifdef OCT_FOR_RACECHECK
  named_wait(name, threads);
#endif
}

/* An arrival there that waits for nobody. */
OCT_DEVICE void
named_arrive(uint32_t name, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/* Ordinary stores to shared memory before what the tensor cores or the copy engine do next. */
OCT_DEVICE void
fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Bytes, a multiple of 16, from memory to shared memory. */
OCT_DEVICE void
copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
               "[%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/* 16 bytes from memory to shared memory, zeros when not `here`. */
OCT_DEVICE void
copy_async(uint32_t to, const void *from, bool here) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(here ? 16 : 0)
               : "memory");
}

/* ---------------------------------------------------------------- rings */

/* Stages in shared memory that are filled and emptied in turn: shared addresses. */
template <uint32_t STAGES> struct stage_ring {
  uint32_t base, barriers;

  __device__ uint32_t full(uint32_t s) const {
    return barriers + 8 * s;
  }
  __device__ uint32_t empty(uint32_t s) const {
    return barriers + 8 * (STAGES + s);
  }
  /* Barriers beside these. */
  __device__ uint32_t other(uint32_t i) const {
    return barriers + 8 * (2 * STAGES + i);
  }
};

#endif
