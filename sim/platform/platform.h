/* The links of a node: what can be shared, how fast each is, and which of them a transfer crosses.
 *
 * From a node profile this module derives *resources* (a GPU's SMs, its HBM, each direction of its
 * NVLink and PCIe, PCIe switch uplinks, root complexes, DRAM of a socket, the link between sockets)
 * and *routes* (what an H2D copy, a peer send, a kernel's memory traffic crosses). The simgrid
 * backend loads them into SimGrid as an XML platform, in which every resource is one shared link
 * without latency and every route joins two hosts; the accounting of utilisation uses the same
 * lists. NVSwitch has no resource of its own: it does not block.
 *
 * Knows nothing of SimGrid's library: it only writes its file format. A platform never changes once
 * made: any thread may read it.
 */
#ifndef OCT_SIM_PLATFORM_H
#define OCT_SIM_PLATFORM_H

#include <glib.h>

#include "sim/profile.h"

#define OCT_PLATFORM_SOCKETS_MAX 4
#define OCT_ROUTE_LINKS_MAX      12
#define OCT_RESOURCE_NAME_MAX    24

#define OCT_PLATFORM_ERROR (oct_platform_error_quark())
GQuark oct_platform_error_quark(void);
typedef enum oct_platform_error {
  OCT_PLATFORM_ERROR_TOPOLOGY, /* a profile whose parts do not fit together: the message says which
                                */
} oct_platform_error;

typedef enum oct_resource_kind {
  OCT_RESOURCE_SM,          /* per GPU; its unit is a nanosecond of the GPU's SMs, see below */
  OCT_RESOURCE_HBM,         /* per GPU, reads and writes together */
  OCT_RESOURCE_NV_UP,       /* per GPU: out of the GPU over NVLink */
  OCT_RESOURCE_NV_DOWN,     /* per GPU: into the GPU */
  OCT_RESOURCE_PCIE_UP,     /* per GPU: out of the GPU */
  OCT_RESOURCE_PCIE_DOWN,   /* per GPU: into the GPU */
  OCT_RESOURCE_PCIE_DUPLEX, /* per GPU: both directions together */
  OCT_RESOURCE_SWITCH_UP,   /* per PCIe switch: towards the host */
  OCT_RESOURCE_SWITCH_DOWN,
  OCT_RESOURCE_SWITCH_DUPLEX, /* per PCIe switch: both directions of its uplink together */
  OCT_RESOURCE_ROOT_UP,       /* per root complex: towards memory */
  OCT_RESOURCE_ROOT_DOWN,
  OCT_RESOURCE_DRAM,     /* per socket, reads and writes together, sustained */
  OCT_RESOURCE_SOCKET,   /* from socket `index` to socket `peer` */
  OCT_RESOURCE_NIC_UP,   /* per GPU, in several nodes: out of the node */
  OCT_RESOURCE_NIC_DOWN, /* per GPU: into it */
  OCT_RESOURCE_KIND_COUNT
} oct_resource_kind;

/* Units of OCT_RESOURCE_SM per second: a kernel bound by arithmetic occupies its GPU's SMs for as
 * long as it runs, whatever fraction of the peak it reaches; so a clock throttled to a fraction f
 * makes it take 1/f, and two of them on one GPU share it. */
#define OCT_PLATFORM_SM_PER_S 1e9

typedef struct oct_resource {
  char name[OCT_RESOURCE_NAME_MAX]; /* "gpu0-hbm", "switch1-up", "socket0-to-1" … */
  oct_resource_kind kind;
  guint16 index; /* GPU, switch, root complex or socket */
  guint16 peer;  /* SOCKET: the other end; else 0 */
  double per_s;  /* capacity: bytes per second; SM: OCT_PLATFORM_SM_PER_S */
} oct_resource;

/* What a transfer crosses. The numbers are indices of resources; `from` and `to` are hosts of the
 * SimGrid platform (oct_platform_host_name()). */
typedef struct oct_route {
  guint16 from, to;
  guint16 n;
  guint16 resources[OCT_ROUTE_LINKS_MAX];
  double bytes_per_s; /* what a transfer alone reaches; 0 = not a transfer (SM, HBM) */
  gint64 latency_ns;  /* of a transfer alone, before its first byte */
} oct_route;

typedef struct oct_platform oct_platform;

/* Life cycle. The profile is read during the call only. */
oct_platform *oct_platform_new(const oct_profile *profile,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_platform_free(oct_platform *platform); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_platform, oct_platform_free)

/* Use: routes, by number. A number that does not exist is a programmer's error.
 * SM and HBM of a GPU; GPU to another GPU; memory of a socket to a GPU and back. Routes to and from
 * the host include the GPU's HBM; a route between GPUs does not, because collectives count their
 * memory traffic apart. */
guint oct_platform_route_sm(const oct_platform *platform, guint gpu);
guint oct_platform_route_hbm(const oct_platform *platform, guint gpu);
guint oct_platform_route_peer(const oct_platform *platform, guint from, guint to);
guint oct_platform_route_h2d(const oct_platform *platform, guint socket, guint gpu);
guint oct_platform_route_d2h(const oct_platform *platform, guint gpu, guint socket);
/* Borrowed until the platform is freed. */
const oct_route *oct_platform_route(const oct_platform *platform, guint route);
guint oct_platform_route_count(const oct_platform *platform);

/* Inspect. */
guint oct_platform_gpus(const oct_platform *platform);
guint oct_platform_sockets(const oct_platform *platform);
guint oct_platform_gpu_socket(const oct_platform *platform, guint gpu);
gboolean oct_platform_switched(const oct_platform *platform); /* NVLink joins all GPUs equally */
guint oct_platform_resource_count(const oct_platform *platform);
const oct_resource *oct_platform_resource(const oct_platform *platform, guint resource);
/* Index of the resource of that name, or -1. */
gint oct_platform_find(const oct_platform *platform, const char *name);
guint oct_platform_host_count(const oct_platform *platform);
/* Name of a SimGrid host; borrowed. */
const char *oct_platform_host_name(const oct_platform *platform, guint host);

/* The platform as a SimGrid 3.32 file. Besides the hosts of the routes it has `n_lanes` hosts
 * "lane0" … and a host "clock", each of 1 flop per ns: a ptask's lane bounds it to its time alone.
 * Owned. (sim/platform/xml.c) */
char *oct_platform_xml(const oct_platform *platform, guint n_lanes);

#endif
