/* SimGrid 3.32 behind solver.h. Facts about it that shape this file:
 * - A process has one engine, whose platform is sealed once loaded.
 * - sg_exec_wait_any() releases the handle of the exec that it returns; sg_exec_cancel() releases
 *   the one it is given. Neither handle may be touched afterwards.
 * - sg_exec_wait_any_for() frees every handle when it times out, and simgrid_run_until() may return
 *   10 us early. So neither is used: a limit is an exec on the host "clock", in the same wait.
 * - Execs on one host share it: at most one clock exec lives.
 * - simgrid_init() replaces the handlers of SIGINT and SIGSEGV.
 */
#define _GNU_SOURCE 1
#include "backends/simgrid/solver.h"

#include <math.h>
#include <signal.h>
#include <simgrid/actor.h>
#include <simgrid/engine.h>
#include <simgrid/exec.h>
#include <simgrid/host.h>
#include <simgrid/link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/base/assert.h"

/* Hosts of one ptask: its lane, "kernels", GPUs and memories. */
#define PTASK_HOSTS_MAX (2 + OCT_PROFILE_GPUS_MAX + OCT_PLATFORM_SOCKETS_MAX)

typedef struct activity {
  sg_exec_t exec;
  gpointer owner;
} activity;

struct oct_solver {
  const oct_platform *platform;
  guint n_lanes, n_live;
  guint64 n_started;
  sg_host_t clock_host;
  sg_host_t *lane_hosts; /* [n_lanes] */
  sg_host_t *hosts;      /* [oct_platform_host_count()] */
  sg_link_t *links;      /* [oct_platform_resource_count()] */
  activity *lanes;       /* [n_lanes]; exec NULL = free */
  guint16 *live;         /* [n_lanes] lanes in use, in order of their start */
  sg_exec_t *waiting;    /* [n_lanes + 1] argument of sg_exec_wait_any() */
  sg_exec_t clock_exec;  /* ends at clock_limit_ns; NULL = none */
  gint64 clock_limit_ns;
  gint8 *host_place; /* [host count] scratch of oct_solver_start(): index in the ptask, or -1 */
  int (*fn)(void *arg);
  gpointer arg;
  int value;
};

static gboolean engine_taken; /* SimGrid's engine is a singleton of the process */

/* SimGrid reads a platform from a file name only. */
static gboolean
load_platform(const char *xml, GError **error) {
  int fd = memfd_create("octet-platform.xml", MFD_CLOEXEC);
  if (fd < 0) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "memfd_create: %s",
                g_strerror(errno));
    return FALSE;
  }
  gsize size = strlen(xml), done = 0;
  while (done < size) {
    ssize_t n = write(fd, xml + done, size - done);
    if (n <= 0) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE,
                  "cannot write the platform of %zu bytes: %s", size, g_strerror(errno));
      close(fd);
      return FALSE;
    }
    done += (gsize)n;
  }
  g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", fd);
  simgrid_load_platform(path);
  close(fd);
  return TRUE;
}

static void
start_engine(void) {
  char *arguments[] = {(char *)"octet", (char *)"--cfg=host/model:ptask_L07",
                       (char *)"--cfg=network/TCP-gamma:1e30", (char *)"--log=root.thresh:warning",
                       NULL};
  int count = 4;
  struct sigaction interrupt, fault;
  sigaction(SIGINT, NULL, &interrupt);
  sigaction(SIGSEGV, NULL, &fault);
  simgrid_init(&count, arguments);
  sigaction(SIGINT, &interrupt, NULL);
  sigaction(SIGSEGV, &fault, NULL);
}

static void
find_hosts(oct_solver *s) {
  char name[32];
  s->clock_host = sg_host_by_name("clock");
  for (guint i = 0; i < s->n_lanes; i++) {
    g_snprintf(name, sizeof name, "lane%u", i);
    s->lane_hosts[i] = sg_host_by_name(name);
  }
  for (guint i = 0; i < oct_platform_host_count(s->platform); i++)
    s->hosts[i] = sg_host_by_name(oct_platform_host_name(s->platform, i));
  for (guint i = 0; i < oct_platform_resource_count(s->platform); i++)
    s->links[i] = sg_link_by_name(oct_platform_resource(s->platform, i)->name);
}

oct_solver *
oct_solver_new(const oct_platform *platform, guint n_lanes, GError **error) {
  oct_assert(n_lanes >= 1 && n_lanes <= G_MAXUINT16);
  if (engine_taken) {
    g_set_error_literal(
        error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
        "this process has had its one SimGrid world: run another in a child process");
    return NULL;
  }
  engine_taken = TRUE;
  start_engine();
  g_autofree char *xml = oct_platform_xml(platform, n_lanes);
  if (!load_platform(xml, error))
    return NULL;
  oct_solver *s = g_new0(oct_solver, 1);
  s->platform = platform;
  s->n_lanes = n_lanes;
  s->lane_hosts = g_new0(sg_host_t, n_lanes);
  s->hosts = g_new0(sg_host_t, oct_platform_host_count(platform));
  s->links = g_new0(sg_link_t, oct_platform_resource_count(platform));
  s->lanes = g_new0(activity, n_lanes);
  s->live = g_new0(guint16, n_lanes);
  s->waiting = g_new0(sg_exec_t, n_lanes + 1);
  s->host_place = g_new(gint8, oct_platform_host_count(platform));
  memset(s->host_place, -1, oct_platform_host_count(platform));
  find_hosts(s);
  return s;
}

void
oct_solver_free(oct_solver *solver) {
  oct_assert(solver->n_live == 0 && solver->clock_exec == NULL);
  g_free(solver->lane_hosts);
  g_free(solver->hosts);
  g_free(solver->links);
  g_free(solver->lanes);
  g_free(solver->live);
  g_free(solver->waiting);
  g_free(solver->host_place);
  g_free(solver);
}

/* The actor's body; SimGrid hands over no pointer but an argument vector of strings. */
static oct_solver *running;

static void
actor_body(int argc G_GNUC_UNUSED, char **argv G_GNUC_UNUSED) {
  oct_solver *s = running;
  s->value = s->fn(s->arg);
}

static void
drop_clock(oct_solver *s) {
  if (s->clock_exec != NULL)
    sg_exec_cancel(s->clock_exec);
  s->clock_exec = NULL;
}

int
oct_solver_run(oct_solver *solver, int (*fn)(void *arg), void *arg) {
  oct_assert(running == NULL);
  running = solver;
  solver->fn = fn;
  solver->arg = arg;
  sg_actor_create_("octet", solver->clock_host, actor_body, 0, NULL);
  simgrid_run();
  oct_assert(solver->n_live == 0 && solver->clock_exec == NULL);
  running = NULL;
  return solver->value;
}

/* ---------------------------------------------------------------- time */

static sg_exec_t
start_clock(oct_solver *s, double flops) {
  sg_exec_t exec = sg_actor_exec_init(flops);
  sg_exec_set_host(exec, s->clock_host);
  sg_exec_start(exec);
  return exec;
}

/* Nanoseconds from SimGrid's clock to engine time t. */
static double
ns_until(gint64 t) {
  return MAX((double)t - simgrid_get_clock() * 1e9, 0);
}

/* Catches up with engine time while nothing lives. Less than half a nanosecond is left alone. */
static void
catch_up(oct_solver *s, gint64 now_ns) {
  drop_clock(s);
  double flops = ns_until(now_ns);
  if (flops < 0.5)
    return;
  sg_exec_t exec = start_clock(s, flops);
  oct_assert(sg_exec_wait(exec) == SG_OK);
}

/* ---------------------------------------------------------------- activities */

/* The index of a platform host in the ptask under construction. */
static guint
place(oct_solver *s, guint host, sg_host_t *hosts, guint16 *used, guint *n) {
  if (s->host_place[host] < 0) {
    oct_assert(*n < PTASK_HOSTS_MAX);
    s->host_place[host] = (gint8)*n;
    used[*n] = (guint16)host;
    hosts[(*n)++] = s->hosts[host];
  }
  return (guint)s->host_place[host];
}

static sg_exec_t
make_ptask(oct_solver *s, guint lane, double ns, const oct_move *moves, guint n_moves) {
  sg_host_t hosts[PTASK_HOSTS_MAX];
  guint16 used[PTASK_HOSTS_MAX];
  double flops[PTASK_HOSTS_MAX] = {ns};
  double bytes[PTASK_HOSTS_MAX * PTASK_HOSTS_MAX];
  guint n = 1;
  hosts[0] = s->lane_hosts[lane];
  for (guint i = 0; i < n_moves; i++) {
    const oct_route *route = oct_platform_route(s->platform, moves[i].route);
    (void)place(s, route->from, hosts, used, &n);
    (void)place(s, route->to, hosts, used, &n);
  }
  memset(bytes, 0, (gsize)n * n * sizeof *bytes);
  for (guint i = 0; i < n_moves; i++) {
    const oct_route *route = oct_platform_route(s->platform, moves[i].route);
    guint from = (guint)s->host_place[route->from], to = (guint)s->host_place[route->to];
    bytes[from * n + to] += moves[i].amount;
  }
  for (guint i = 1; i < n; i++)
    s->host_place[used[i]] = -1;
  return sg_actor_parallel_exec_init((int)n, hosts, flops, n > 1 ? bytes : NULL);
}

gint
oct_solver_start(oct_solver *solver, gint64 now_ns, double ns, const oct_move *moves, guint n_moves,
                 gpointer owner) {
  oct_assert(owner != NULL && ns >= 0);
  guint lane = 0;
  while (lane < solver->n_lanes && solver->lanes[lane].exec != NULL)
    lane++;
  if (lane == solver->n_lanes)
    return -1;
  if (solver->n_live == 0)
    catch_up(solver, now_ns);
  sg_exec_t exec = make_ptask(solver, lane, ns, moves, n_moves);
  sg_exec_start(exec);
  solver->lanes[lane] = (activity){.exec = exec, .owner = owner};
  solver->live[solver->n_live++] = (guint16)lane;
  solver->n_started++;
  return (gint)lane;
}

static activity *
activity_of(oct_solver *s, gint lane) {
  oct_assert(lane >= 0 && (guint)lane < s->n_lanes && s->lanes[lane].exec != NULL);
  return &s->lanes[lane];
}

static void
forget(oct_solver *s, guint position) {
  s->lanes[s->live[position]] = (activity){0};
  s->n_live--;
  memmove(&s->live[position], &s->live[position + 1], (s->n_live - position) * sizeof *s->live);
  if (s->n_live == 0)
    drop_clock(s);
}

double
oct_solver_left(oct_solver *solver, gint lane) {
  return CLAMP(sg_exec_get_remaining_ratio(activity_of(solver, lane)->exec), 0.0, 1.0);
}

void
oct_solver_cancel(oct_solver *solver, gint lane) {
  sg_exec_cancel(activity_of(solver, lane)->exec);
  guint position = 0;
  while (solver->live[position] != lane)
    position++;
  forget(solver, position);
}

void
oct_solver_set_capacity(oct_solver *solver, guint resource, double per_s) {
  sg_link_set_bandwidth(solver->links[resource], per_s);
}

gpointer
oct_solver_wait(oct_solver *solver, gint64 limit_ns, gint64 *now_ns) {
  oct_assert(solver->n_live > 0);
  guint n = solver->n_live;
  for (guint i = 0; i < n; i++)
    solver->waiting[i] = solver->lanes[solver->live[i]].exec;
  if (limit_ns != G_MAXINT64) {
    if (solver->clock_exec != NULL && solver->clock_limit_ns != limit_ns)
      drop_clock(solver);
    if (solver->clock_exec == NULL)
      solver->clock_exec = start_clock(solver, ns_until(limit_ns));
    solver->clock_limit_ns = limit_ns;
    solver->waiting[n++] = solver->clock_exec;
  }
  ssize_t which = sg_exec_wait_any(solver->waiting, n);
  oct_assert(which >= 0 && (gsize)which < n);
  if ((guint)which == solver->n_live) {
    solver->clock_exec = NULL;
    *now_ns = limit_ns;
    return NULL;
  }
  gpointer owner = solver->lanes[solver->live[which]].owner;
  forget(solver, (guint)which);
  gint64 now = (gint64)llround(simgrid_get_clock() * 1e9);
  *now_ns = MIN(now, limit_ns);
  return owner;
}

guint
oct_solver_live(const oct_solver *solver) {
  return solver->n_live;
}

guint64
oct_solver_started(const oct_solver *solver) {
  return solver->n_started;
}
