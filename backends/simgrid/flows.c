/* Jobs alone and in the solver (flows.h).
 *
 *   IDLE --start--> ALONE --timer--> IDLE (done)
 *                     |  ^
 *    a demand passes  |  | a round has ended and all demands fit (never when exact)
 *    a capacity       v  |
 *                    SHARED --last group--> IDLE (done)
 *
 * Demands are integers in billionths of the nominal capacity, so that adding and removing a job
 * leaves nothing behind. Rates inside a job are its groups' averages; its demand on a resource is
 * the largest over its groups, summed over its bundles.
 */
#include "backends/simgrid/flows.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

#define PARTS 1000000000 /* a demand of this fills the nominal capacity */
/* Demands are rounded to nearest: a job that fills a link alone may come out a little above. What
 * fits within this slack would slow by less than 1e-8. */
#define SLACK 10

/* A step that shares with another job goes in rounds of about this, but not more than ROUNDS_MAX.
 */
#define ROUND_NS   250000
#define ROUNDS_MAX 16

typedef struct resource_state {
  double nominal, per_ns; /* capacity per nanosecond: the profile's, and now */
  gint64 demand, limit;   /* of live jobs, in PARTS of nominal; what the capacity allows */
  gint32 users;           /* bundles of live jobs that cross it */
  double moved;           /* by bundles that are gone */
  double could;           /* capacity up to since_ns */
  oct_time since_ns;
  gint64 delayed_ns;
} resource_state;

struct oct_flows {
  const oct_platform *platform;
  oct_solver *solver;
  oct_timers *timers;
  const oct_time *now_ns;
  gboolean exact;
  gboolean stale; /* demands are to be summed again */
  guint n_resources;
  resource_state *resources;
  GPtrArray *live;    /* oct_job, in order of their start */
  GPtrArray *bundles; /* oct_bundle, owned */
};

oct_flows *
oct_flows_new(const oct_platform *platform, oct_solver *solver, oct_timers *timers,
              const oct_time *now_ns, gboolean exact) {
  oct_flows *f = g_new0(oct_flows, 1);
  *f = (oct_flows){.platform = platform,
                   .solver = solver,
                   .timers = timers,
                   .now_ns = now_ns,
                   .exact = exact,
                   .n_resources = oct_platform_resource_count(platform)};
  f->resources = g_new0(resource_state, f->n_resources);
  for (guint r = 0; r < f->n_resources; r++) {
    double per_ns = oct_platform_resource(platform, r)->per_s * 1e-9;
    f->resources[r] = (resource_state){.nominal = per_ns, .per_ns = per_ns, .limit = PARTS + SLACK};
  }
  f->live = g_ptr_array_sized_new(64);
  f->bundles = g_ptr_array_new();
  return f;
}

static void
free_bundle(oct_bundle *bundle) {
  g_free(bundle->routes);
  g_free(bundle->touched);
  g_free(bundle);
}

void
oct_flows_free(oct_flows *flows) {
  oct_assert(flows->live->len == 0);
  for (guint i = 0; i < flows->bundles->len; i++)
    free_bundle(g_ptr_array_index(flows->bundles, i));
  g_ptr_array_unref(flows->bundles);
  g_ptr_array_unref(flows->live);
  g_free(flows->resources);
  g_free(flows);
}

/* ---------------------------------------------------------------- bundles */

oct_bundle *
oct_flows_bundle(oct_flows *flows, const guint16 *routes, guint n) {
  g_autofree guint16 *times = g_new0(guint16, flows->n_resources);
  oct_bundle *b = g_new0(oct_bundle, 1);
  b->n_routes = n;
  b->routes = g_memdup2(routes, n * sizeof *routes);
  for (guint i = 0; i < n; i++) {
    const oct_route *route = oct_platform_route(flows->platform, routes[i]);
    for (guint l = 0; l < route->n; l++)
      b->n_touched += times[route->resources[l]]++ == 0;
  }
  b->touched = g_new0(struct oct_touched, b->n_touched);
  guint next = 0;
  b->per_ns = HUGE_VAL;
  for (guint r = 0; r < flows->n_resources; r++) {
    if (times[r] == 0)
      continue;
    b->touched[next++] = (struct oct_touched){.resource = (guint16)r, .times = times[r]};
    b->per_ns = MIN(b->per_ns, flows->resources[r].nominal / times[r]);
  }
  g_ptr_array_add(flows->bundles, b);
  return b;
}

void
oct_flows_unbundle(oct_flows *flows, oct_bundle *bundle) {
  for (guint i = 0; i < bundle->n_touched; i++)
    flows->resources[bundle->touched[i].resource].moved += bundle->moved * bundle->touched[i].times;
  oct_assert(g_ptr_array_remove(flows->bundles, bundle));
  free_bundle(bundle);
}

/* ---------------------------------------------------------------- demands */

/* Adds (sign 1) or removes (-1) the job's demand. */
static void
count_demand(oct_flows *f, const oct_job *job, gint64 sign) {
  for (guint b = 0; b < OCT_JOB_BUNDLES; b++) {
    const oct_bundle *bundle = job->bundles[b];
    for (guint i = 0; job->rate[b] > 0 && i < bundle->n_touched; i++) {
      resource_state *r = &f->resources[bundle->touched[i].resource];
      double demand = job->rate[b] * bundle->touched[i].times / r->nominal;
      r->demand += sign * (gint64)(demand * PARTS + 0.5);
      r->users += (gint32)sign;
    }
  }
}

static void
refresh(oct_flows *f) {
  if (!f->stale)
    return;
  f->stale = FALSE;
  for (guint r = 0; r < f->n_resources; r++)
    f->resources[r].demand = f->resources[r].users = 0;
  for (guint i = 0; i < f->live->len; i++)
    count_demand(f, g_ptr_array_index(f->live, i), 1);
}

/* The resource of the job that is asked for most beyond its capacity, -1 when all fit. */
static gint
contended(const oct_flows *f, const oct_job *job) {
  gint worst = -1;
  gint64 excess = 0;
  for (guint b = 0; b < OCT_JOB_BUNDLES; b++) {
    const oct_bundle *bundle = job->bundles[b];
    for (guint i = 0; job->rate[b] > 0 && i < bundle->n_touched; i++) {
      const resource_state *r = &f->resources[bundle->touched[i].resource];
      if (r->demand - r->limit > excess) {
        excess = r->demand - r->limit;
        worst = bundle->touched[i].resource;
      }
    }
  }
  return worst;
}

static gint32
own_uses(const oct_job *job, guint16 resource) {
  gint32 n = 0;
  for (guint b = 0; b < OCT_JOB_BUNDLES; b++) {
    for (guint i = 0; job->rate[b] > 0 && i < job->bundles[b]->n_touched; i++)
      n += job->bundles[b]->touched[i].resource == resource;
  }
  return n;
}

/* Whether another job contends with it, rather than a lowered capacity alone. */
static gboolean
crowded(const oct_flows *f, const oct_job *job) {
  for (guint b = 0; b < OCT_JOB_BUNDLES; b++) {
    for (guint i = 0; job->rate[b] > 0 && i < job->bundles[b]->n_touched; i++) {
      guint16 resource = job->bundles[b]->touched[i].resource;
      const resource_state *r = &f->resources[resource];
      if (r->demand > r->limit && r->users > own_uses(job, resource))
        return TRUE;
    }
  }
  return FALSE;
}

/* ---------------------------------------------------------------- books */

/* Books `part` (of the whole) of group g as done. */
static void
book(oct_job *job, guint g, double part) {
  for (guint b = 0; b < OCT_JOB_BUNDLES; b++) {
    if (job->bundles[b] != NULL)
      job->bundles[b]->moved += job->groups[g].amount[b] * part;
  }
}

void
oct_flows_book(oct_flows *flows G_GNUC_UNUSED, oct_job *job) {
  for (guint g = 0; g < job->n_groups; g++)
    book(job, g, 1);
}

static double
left_ns(const oct_job *job) {
  double sum = 0;
  for (guint g = 0; g < job->n_groups; g++)
    sum += job->left[g] * (double)job->groups[g].ns;
  return sum;
}

/* A job alone has run for a while: all its groups have advanced alike. `whole`: to its end. */
static void
advance_alone(oct_flows *f, oct_job *job, gboolean whole) {
  gint64 ran = *f->now_ns - job->since_ns;
  double rest = left_ns(job);
  double part = whole ? 1 : (rest > 0 ? MIN((double)ran / rest, 1) : 1);
  double share = 0;
  gint64 told = 0;
  for (guint g = 0; g < job->n_groups; g++) {
    double done = job->left[g] * part;
    share += job->left[g] * (double)job->groups[g].ns;
    gint64 until = rest > 0 ? (gint64)((double)ran * (share / rest) + 0.5) : 0;
    if (g + 1 == job->n_groups)
      until = ran;
    job->spent_ns[g] += until - told;
    told = until;
    book(job, g, done);
    job->left[g] -= done;
  }
  job->since_ns = *f->now_ns;
}

/* ---------------------------------------------------------------- in the solver */

/* Starts the current group's part in the solver. */
static void
share_group(oct_flows *f, oct_job *job) {
  oct_move moves[OCT_JOB_BUNDLES * OCT_PROFILE_GPUS_MAX];
  const oct_job_group *group = &job->groups[job->group];
  guint n = 0;
  job->take = job->left[job->group] / (job->rounds + 1);
  for (guint b = 0; b < OCT_JOB_BUNDLES; b++) {
    if (job->bundles[b] == NULL || !(group->amount[b] > 0))
      continue;
    for (guint i = 0; i < job->bundles[b]->n_routes; i++)
      moves[n++] = (oct_move){job->bundles[b]->routes[i], group->amount[b] * job->take};
  }
  job->since_ns = *f->now_ns;
  job->lane = oct_solver_start(f->solver, *f->now_ns, (double)group->ns * job->take, moves, n, job);
  oct_assert(job->lane >= 0); /* the world opens no more than the lanes carry */
}

static void
finish(oct_flows *f, oct_job *job) {
  refresh(f);
  count_demand(f, job, -1);
  oct_assert(g_ptr_array_remove(f->live, job));
  gint64 late = *f->now_ns - job->start_ns - job->ns;
  if (job->worst >= 0 && late > 0)
    f->resources[job->worst].delayed_ns += late;
  job->state = OCT_JOB_IDLE;
  job->done(job);
}

static void
run_alone(oct_flows *f, oct_job *job) {
  job->state = OCT_JOB_ALONE;
  job->since_ns = *f->now_ns;
  oct_timers_arm(f->timers, &job->timer, *f->now_ns + (gint64)(left_ns(job) + 0.5));
}

/* Takes the next group that has anything left, from `group` on, or the next round. FALSE when the
 * job has ended or runs alone again. */
static gboolean
next_group(oct_flows *f, oct_job *job, guint group) {
  for (;;) {
    for (; group < job->n_groups; group++) {
      if (job->left[group] > 0 && job->groups[group].ns > 0) {
        job->group = group;
        share_group(f, job);
        return TRUE;
      }
    }
    if (job->rounds == 0)
      return FALSE;
    job->rounds--;
    group = 0;
    if (!crowded(f, job)) {
      job->whole = TRUE;
      job->rounds = 0;
      if (!f->exact && contended(f, job) < 0) {
        run_alone(f, job);
        return TRUE;
      }
    }
  }
}

/* Puts the job, of which left[] remains, into the solver. */
static void
put_in(oct_flows *f, oct_job *job) {
  gint worst = contended(f, job);
  guint busy = 0;
  for (guint g = 0; g < job->n_groups; g++)
    busy += job->left[g] > 0 && job->groups[g].ns > 0;
  job->state = OCT_JOB_SHARED;
  job->worst = worst >= 0 ? worst : job->worst;
  job->whole = busy > 1 && !crowded(f, job);
  job->rounds = 0;
  if (busy > 1 && !job->whole)
    job->rounds = (guint)CLAMP(left_ns(job) / ROUND_NS, 1, ROUNDS_MAX) - 1;
  if (!next_group(f, job, 0)) { /* of no length: ends at once, but not from within start */
    job->state = OCT_JOB_ALONE;
    job->since_ns = *f->now_ns;
    oct_timers_arm(f->timers, &job->timer, *f->now_ns);
  }
}

/* Takes what has run of the current group out of the solver. */
static void
take_out(oct_flows *f, oct_job *job) {
  double done = job->take * (1 - oct_solver_left(f->solver, job->lane));
  oct_solver_cancel(f->solver, job->lane);
  job->lane = -1;
  book(job, job->group, done);
  job->left[job->group] -= done;
  job->spent_ns[job->group] += *f->now_ns - job->since_ns;
  job->since_ns = *f->now_ns;
}

void
oct_flows_group_ended(oct_flows *flows, oct_job *job) {
  oct_assert(job->state == OCT_JOB_SHARED);
  guint g = job->group;
  job->lane = -1;
  book(job, g, job->take);
  job->left[g] = job->rounds == 0 ? 0 : job->left[g] - job->take;
  job->spent_ns[g] += *flows->now_ns - job->since_ns;
  job->since_ns = *flows->now_ns;
  refresh(flows);
  if (!next_group(flows, job, g + 1))
    finish(flows, job);
}

/* A job that went group by group counts as if all its groups had advanced alike, which is what a
 * job alone is taken to do. */
static void
equalise(oct_job *job) {
  double sum = 0, rest = left_ns(job);
  gint64 spent = 0, told = 0;
  for (guint g = 0; g < job->n_groups; g++)
    spent += job->spent_ns[g];
  for (guint g = 0; g < job->n_groups; g++) {
    sum += (double)job->groups[g].ns;
    gint64 until = (gint64)((double)spent * (sum / (double)job->ns) + 0.5);
    job->spent_ns[g] = until - told;
    told = until;
    book(job, g, job->left[g] - rest / (double)job->ns);
    job->left[g] = rest / (double)job->ns;
  }
}

/* A job that is in the solver in one piece goes on as if all its groups had advanced alike. */
static void
put_in_again(oct_flows *f, oct_job *job) {
  take_out(f, job);
  equalise(job);
  if (!f->exact && contended(f, job) < 0)
    run_alone(f, job);
  else
    put_in(f, job);
}

/* After demands grew or a capacity changed: whoever does not fit any more enters the solver. A job
 * that is there in one piece, because no other contended, is cut into rounds. */
static void
share_contended(oct_flows *f) {
  for (guint i = 0; i < f->live->len; i++) {
    oct_job *job = g_ptr_array_index(f->live, i);
    if (contended(f, job) < 0)
      continue;
    if (job->state == OCT_JOB_ALONE) {
      oct_timers_disarm(f->timers, &job->timer);
      advance_alone(f, job, FALSE);
      put_in(f, job);
    } else if (job->whole && job->lane >= 0 && crowded(f, job)) {
      put_in_again(f, job);
    }
  }
}

/* ---------------------------------------------------------------- use */

static void
alone_ended(oct_timer *timer) {
  oct_job *job = timer->owner;
  advance_alone(job->flows, job, TRUE);
  finish(job->flows, job);
}

static void
make_whole(oct_job *job) {
  job->ns = 0;
  memset(job->rate, 0, sizeof job->rate);
  for (guint g = 0; g < job->n_groups; g++) {
    const oct_job_group *group = &job->groups[g];
    oct_assert(group->ns >= 0);
    job->ns += group->ns;
    job->left[g] = 1;
    job->spent_ns[g] = 0;
    for (guint b = 0; group->ns > 0 && b < OCT_JOB_BUNDLES; b++) {
      if (job->bundles[b] != NULL)
        job->rate[b] = MAX(job->rate[b], group->amount[b] / (double)group->ns);
    }
  }
}

void
oct_flows_start(oct_flows *flows, oct_job *job) {
  oct_assert(job->state == OCT_JOB_IDLE && job->n_groups <= OCT_JOB_GROUPS);
  job->flows = flows;
  job->timer.fire = alone_ended;
  job->timer.owner = job;
  job->start_ns = *flows->now_ns;
  job->worst = -1;
  job->lane = -1;
  make_whole(job);
  refresh(flows);
  count_demand(flows, job, 1);
  g_ptr_array_add(flows->live, job);
  gboolean fits = contended(flows, job) < 0;
  if (fits && !flows->exact)
    run_alone(flows, job);
  else
    put_in(flows, job);
  if (!fits)
    share_contended(flows);
}

void
oct_flows_cancel(oct_flows *flows, oct_job *job) {
  if (job->state == OCT_JOB_IDLE)
    return;
  if (job->state == OCT_JOB_ALONE) {
    oct_timers_disarm(flows->timers, &job->timer);
    advance_alone(flows, job, FALSE);
  } else if (job->lane >= 0) {
    take_out(flows, job);
  }
  refresh(flows);
  count_demand(flows, job, -1);
  oct_assert(g_ptr_array_remove(flows->live, job));
  job->state = OCT_JOB_IDLE;
}

void
oct_flows_scale(oct_flows *flows, guint resource, double factor) {
  oct_assert(resource < flows->n_resources && factor > 0 && factor <= 1);
  resource_state *r = &flows->resources[resource];
  r->could += r->per_ns * (double)(*flows->now_ns - r->since_ns);
  r->since_ns = *flows->now_ns;
  r->per_ns = r->nominal * factor;
  r->limit = (gint64)(factor * PARTS) + SLACK;
  oct_solver_set_capacity(flows->solver, resource, r->per_ns * 1e9);
  refresh(flows);
  for (guint i = 0; i < flows->live->len; i++) {
    oct_job *job = g_ptr_array_index(flows->live, i);
    if (job->state == OCT_JOB_SHARED && job->whole && job->lane >= 0 &&
        own_uses(job, (guint16)resource) > 0)
      put_in_again(flows, job);
  }
  share_contended(flows);
}

void
oct_flows_again(oct_flows *flows, oct_job *job) {
  oct_assert(job->state == OCT_JOB_ALONE && flows->live->len == 1);
  flows->stale = TRUE;
  job->start_ns = job->since_ns = *flows->now_ns;
  make_whole(job);
  oct_timers_arm(flows->timers, &job->timer, job->start_ns + job->ns);
}

void
oct_flows_drop(oct_flows *flows, oct_job *job) {
  oct_assert(job->state == OCT_JOB_ALONE && flows->live->len == 1);
  flows->stale = TRUE;
  oct_timers_disarm(flows->timers, &job->timer);
  g_ptr_array_set_size(flows->live, 0);
  job->state = OCT_JOB_IDLE;
}

/* ---------------------------------------------------------------- between runs */

void
oct_flows_park(oct_flows *flows) {
  for (guint i = 0; i < flows->live->len; i++) {
    oct_job *job = g_ptr_array_index(flows->live, i);
    if (job->state == OCT_JOB_SHARED)
      take_out(flows, job);
  }
}

void
oct_flows_resume(oct_flows *flows) {
  for (guint i = 0; i < flows->live->len; i++) {
    oct_job *job = g_ptr_array_index(flows->live, i);
    if (job->state == OCT_JOB_SHARED && job->lane < 0)
      put_in(flows, job);
  }
}

/* ---------------------------------------------------------------- inspect */

guint
oct_flows_live(const oct_flows *flows) {
  return flows->live->len;
}

gboolean
oct_flows_exact(const oct_flows *flows) {
  return flows->exact;
}

void
oct_flows_usage(const oct_flows *flows, guint resource, oct_flows_use *use) {
  oct_assert(resource < flows->n_resources);
  const resource_state *r = &flows->resources[resource];
  use->moved = r->moved;
  use->could = r->could + r->per_ns * (double)(*flows->now_ns - r->since_ns);
  use->delayed_ns = r->delayed_ns;
  for (guint i = 0; i < flows->bundles->len; i++) {
    const oct_bundle *b = g_ptr_array_index(flows->bundles, i);
    for (guint t = 0; t < b->n_touched; t++) {
      if (b->touched[t].resource == resource)
        use->moved += b->moved * b->touched[t].times;
    }
  }
}
