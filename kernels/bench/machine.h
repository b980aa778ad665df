/* The machine round the kernels, measured on the current device: what the card is, copies over
 * PCIe and to a peer, launches. Times are of the host's clock, from the call to the end of the
 * wait. */
#ifndef OCT_KERNELS_BENCH_MACHINE_H
#define OCT_KERNELS_BENCH_MACHINE_H

#include "kernels/bench/bench.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench_card {
  char name[64];
  int count;        /* GPUs there are */
  int cuda_version; /* that the driver knows: 13000 */
  uint32_t capability, sm_count;
  double l2_bytes, memory_bytes;
} bench_card;
void bench_card_read(bench_card *card);

#define BENCH_COPY_SIZES 9 /* 4 KiB to 256 MiB by factors of 4 */
typedef struct bench_copies {
  double bytes[BENCH_COPY_SIZES], h2d_s[BENCH_COPY_SIZES], d2h_s[BENCH_COPY_SIZES]; /* pinned */
  double h2d_rate, d2h_rate, duplex_rate, pageable_rate; /* bytes/s of the largest copies */
  double device_copy_rate;                               /* read and written */
  double kernel_read_rate; /* bytes/s of a kernel that reads experts of 16 MiB in pinned memory */
} bench_copies;
void bench_copies_run(const bench *b, bench_copies *out);

typedef struct bench_peer {
  double latency_s; /* of 4 KiB */
  double rate;      /* bytes/s, one direction */
} bench_peer;
/* To GPU `peer`; false: it cannot be reached directly. */
bool bench_peer_run(const bench *b, int peer, bench_peer *out);

typedef struct bench_launches {
  double enqueue_s;         /* of the host, per kernel */
  double pipelined_s;       /* per kernel when many follow each other */
  double launch_and_sync_s; /* of one, waited for */
  double event_sync_s;      /* recording an event and waiting for it */
  double graph_launch_s;    /* a graph of one node, waited for, less the node */
  double graph_node_s;      /* a node more */
} bench_launches;
void bench_launches_run(const bench *b, bench_launches *out);

#ifdef __cplusplus
}
#endif

#endif
