#include "tests/backends/cuda/script.h"

#include <string.h>

#include "backends/cuda/instance.h"

#define RING_MAX 8
#define ROWS_MAX 512

/* Which the sanitizer of threads knows. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static gboolean held[SCRIPT_RANKS][SCRIPT_CALLS];  /* under the lock */
static guint inside[SCRIPT_RANKS][SCRIPT_CALLS];   /* likewise: who is held */
static gint stopped[SCRIPT_RANKS], copies_stopped; /* atomic, as what follows */
static gint fails[SCRIPT_RANKS], spoils[SCRIPT_RANKS], restless[SCRIPT_RANKS];
static gint n_events, n_closed, n_kept;

void
script_reset(void) {
  pthread_mutex_lock(&lock);
  memset(held, 0, sizeof held);
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
  for (guint32 i = 0; i < SCRIPT_RANKS; i++) {
    g_atomic_int_set(&stopped[i], 0);
    g_atomic_int_set(&fails[i], 0);
    g_atomic_int_set(&spoils[i], 0);
    g_atomic_int_set(&restless[i], 0);
  }
  g_atomic_int_set(&copies_stopped, 0);
  g_atomic_int_set(&n_closed, 0);
  g_atomic_int_set(&n_kept, 0);
}

static void
set_held(guint32 rank, script_call call, gboolean is_held) {
  pthread_mutex_lock(&lock);
  held[rank][call] = is_held;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
}

void
script_hold(guint32 rank, script_call call) {
  set_held(rank, call, TRUE);
}

void
script_release(guint32 rank, script_call call) {
  set_held(rank, call, FALSE);
}

void
script_await(guint32 rank, script_call call) {
  pthread_mutex_lock(&lock);
  while (inside[rank][call] == 0)
    pthread_cond_wait(&moved, &lock);
  pthread_mutex_unlock(&lock);
}

void
script_stop(guint32 rank, gboolean is_stopped) {
  g_atomic_int_set(&stopped[rank], is_stopped);
}

void
script_fail_opening(guint32 rank) {
  g_atomic_int_set(&fails[rank], 1);
}

void
script_unrest(guint32 rank) {
  g_atomic_int_set(&restless[rank], 1);
}

void
script_spoil(guint32 rank) {
  g_atomic_int_set(&spoils[rank], 1);
}

void
script_stop_copies(gboolean is_stopped) {
  g_atomic_int_set(&copies_stopped, is_stopped);
}

gint
script_events(void) {
  return g_atomic_int_get(&n_events);
}

gint
script_closed(void) {
  return g_atomic_int_get(&n_closed);
}

gint
script_kept(void) {
  return g_atomic_int_get(&n_kept);
}

static void
visit(const oct_cuda_rank *r, script_call call) {
  g_thread_yield();
  pthread_mutex_lock(&lock);
  inside[r->index][call]++;
  pthread_cond_broadcast(&moved);
  while (held[r->index][call])
    pthread_cond_wait(&moved, &lock);
  inside[r->index][call]--;
  pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- CUDA's runtime */

cudaError_t
cudaGetDeviceCount(int *n) {
  *n = SCRIPT_RANKS;
  return cudaSuccess;
}

cudaError_t
cudaDriverGetVersion(int *version) {
  *version = 13000;
  return cudaSuccess;
}

const char *
cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error";
}

cudaError_t
cudaEventQuery(cudaEvent_t event) {
  g_assert_nonnull(event);
  return g_atomic_int_get(&copies_stopped) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t
cudaStreamQuery(cudaStream_t stream) {
  (void)stream;
  return g_atomic_int_get(&copies_stopped) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t
cudaEventDestroy(cudaEvent_t event) {
  (void)g_atomic_int_dec_and_test(&n_events);
  g_free(event);
  return cudaSuccess;
}

cudaEvent_t
oct_cuda_event_new(oct_cuda_rank *r) {
  (void)r;
  g_atomic_int_inc(&n_events);
  return g_malloc0(16);
}

void
oct_cuda_fail(oct_cuda_rank *r, const char *message) {
  oct_cuda_group_break(r->group, r->device, message);
}

gboolean
oct_cuda_note(oct_cuda_rank *r, int result, const char *what) {
  if (result != 0)
    oct_cuda_fail(r, what);
  return result == 0;
}

/* ---------------------------------------------------------------- what ranks share */

struct oct_cuda_circle {
  gint n_aborted;
};

oct_cuda_circle *
oct_cuda_circle_new(oct_cuda_group *group, oct_cuda_circle_kind kind) {
  (void)group, (void)kind;
  return g_new0(oct_cuda_circle, 1);
}

void
oct_cuda_circle_free(oct_cuda_circle *c) {
  g_free(c);
}

void
oct_cuda_circle_release(oct_cuda_circle *c) {
  (void)c;
}

void
oct_cuda_circle_abort(oct_cuda_circle *c) {
  g_atomic_int_inc(&c->n_aborted);
}

oct_cuda_mail *
oct_cuda_mail_new(oct_cuda_group *group, guint32 ring) {
  (void)group, (void)ring;
  return NULL;
}

void
oct_cuda_mail_free(oct_cuda_mail *m) {
  g_assert_null(m);
}

void
oct_cuda_mail_leave(oct_cuda_mail *m, const oct_cuda_stepper *s) {
  (void)m, (void)s;
}

gboolean
oct_cuda_model_supports(const oct_instance_config *c, GError **error) {
  return oct_parallel_check(c->spec, &c->parallel, error);
}

gboolean
oct_cuda_source_open(oct_cuda_source *s, const oct_cuda_options *o, const oct_model_spec *spec,
                     GError **error) {
  (void)o, (void)error;
  *s = (oct_cuda_source){.spec = spec};
  return TRUE;
}

void
oct_cuda_source_close(oct_cuda_source *s) {
  *s = (oct_cuda_source){0};
}

/* ---------------------------------------------------------------- ranks */

struct oct_cuda_stepper {
  oct_cuda_stepper_options options;
  oct_cuda_rank rank;
  oct_cuda_memory memory;
  oct_cuda_padding padding;
  guint64 number; /* of the step begun last */
  gint ended[RING_MAX];
  oct_cuda_output output;
  oct_cuda_span span;
  guint32 tokens[ROWS_MAX];
};

oct_cuda_stepper *
oct_cuda_stepper_new(const oct_cuda_stepper_options *options) {
  oct_cuda_stepper *s = g_new0(oct_cuda_stepper, 1);
  oct_cuda_group *g = options->group;
  guint32 place = options->index / g->n_tensor;
  s->options = *options;
  s->rank = (oct_cuda_rank){.group = g,
                            .index = options->index,
                            .tensor = options->index % g->n_tensor,
                            .domain = place % g->n_domains,
                            .stage = place / g->n_domains,
                            .device = g->config->devices[options->index]};
  s->rank.is_first = s->rank.stage == 0;
  s->rank.is_last = s->rank.stage + 1 == g->n_stages;
  s->output.span = &s->span;
  s->output.tokens = s->tokens;
  for (guint32 i = 0; i < ROWS_MAX; i++)
    s->tokens[i] = SCRIPT_TOKEN;
  for (guint32 i = 0; i < OCT_MODEL_GROUPS_MAX; i++)
    s->memory.pools[i].unit_bytes = 256;
  g_assert_cmpuint(options->ring, <=, RING_MAX);
  return s;
}

gboolean
oct_cuda_stepper_open(oct_cuda_stepper *s) {
  if (!s->options.progress(s->options.user, 0.5)) {
    oct_cuda_fail(&s->rank, "loading was stopped");
    return FALSE;
  }
  visit(&s->rank, SCRIPT_OPEN);
  if (g_atomic_int_get(&fails[s->rank.index]))
    oct_cuda_fail(&s->rank, "as was wanted");
  return !oct_cuda_group_is_broken(s->rank.group) && oct_cuda_group_meet(s->rank.group);
}

gboolean
oct_cuda_stepper_rest(oct_cuda_stepper *s) {
  visit(&s->rank, SCRIPT_REST);
  return !g_atomic_int_get(&restless[s->rank.index]);
}

gboolean
oct_cuda_stepper_close(oct_cuda_stepper *s, gboolean give_back) {
  g_atomic_int_inc(&n_closed);
  (void)g_atomic_int_add(&n_kept, !give_back);
  visit(&s->rank, SCRIPT_CLOSE);
  gboolean usable = !g_atomic_int_get(&spoils[s->rank.index]);
  g_free(s);
  return usable;
}

gboolean
oct_cuda_stepper_begin(oct_cuda_stepper *s, const oct_cuda_plan *plan, guint32 at) {
  g_assert_cmpuint(plan->step->number, ==, s->number + 1);
  s->number = plan->step->number;
  g_atomic_int_set(&s->ended[at], 0);
  visit(&s->rank, SCRIPT_BEGIN);
  return !oct_cuda_group_is_broken(s->rank.group);
}

gboolean
oct_cuda_stepper_wait_logits(oct_cuda_stepper *s) {
  visit(&s->rank, SCRIPT_LOGITS);
  return !oct_cuda_group_is_broken(s->rank.group);
}

gboolean
oct_cuda_stepper_finish(oct_cuda_stepper *s, const oct_cuda_plan *plan, guint32 at,
                        const guint64 *const *masks) {
  for (guint32 i = 0; i < plan->n_parts && s->rank.is_last; i++) {
    const oct_slice *slice = &oct_step_slices(plan->step)[i];
    if ((slice->flags & OCT_SLICE_NEEDS_MASK) != 0)
      g_assert_cmpuint(masks[i][0] | masks[i][1], !=, 0);
  }
  g_atomic_int_set(&s->ended[at], 1);
  return TRUE;
}

gboolean
oct_cuda_stepper_copy(oct_cuda_stepper *s, const oct_cuda_beside *b) {
  visit(&s->rank, SCRIPT_COPY);
  for (guint32 i = 0; i < b->n && b->peer != NULL; i++)
    g_assert_cmpuint(b->peer->pools[b->copies[i].group].unit_bytes, ==, 256);
  return TRUE;
}

gboolean
oct_cuda_stepper_has_ended(oct_cuda_stepper *s, guint32 at) {
  return g_atomic_int_get(&s->ended[at]) && !g_atomic_int_get(&stopped[s->rank.index]);
}

const oct_cuda_output *
oct_cuda_stepper_output(const oct_cuda_stepper *s, guint32 at) {
  (void)at;
  return &s->output;
}

oct_cuda_rank *
oct_cuda_stepper_rank(oct_cuda_stepper *s) {
  return &s->rank;
}

const oct_cuda_memory *
oct_cuda_stepper_memory(const oct_cuda_stepper *s) {
  return &s->memory;
}

guint32
oct_cuda_stepper_graph_most(const oct_cuda_stepper *s) {
  (void)s;
  return 0;
}

const oct_cuda_padding *
oct_cuda_stepper_padding(const oct_cuda_stepper *s) {
  return &s->padding;
}

guint64
oct_cuda_stepper_free_bytes(oct_cuda_stepper *s) {
  (void)s;
  return (guint64)1 << 30;
}
