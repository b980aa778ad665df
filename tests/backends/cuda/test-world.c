/* What a cuda world says where it cannot be, and the parts that need no GPU: how ranks meet, which
 * GPU a device is, what the machine does not tell. With a GPU: waits that outlast their deadline,
 * and devices and workers that fail in the middle of a step.
 */
#include "config.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/cuda/group.h"
#include "backends/cuda/numa.h"
#include "backends/cuda/nvml.h"
#include "backends/registry.h"
#include "backends/remote/remote.h"
#include "tests/contract/fixture.h"

static void
where_it_cannot_be_it_says_why(void) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new("cuda", &error);
  if (world != NULL) {
    oct_world_free(world);
    g_test_skip("there is a GPU");
    return;
  }
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE);
  g_test_message("%s", error->message);
  if (strstr(error->message, "without CUDA") != NULL)
    return;
  g_assert_nonnull(strstr(error->message, "no GPU"));
  /* The driver brings its library. */
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
  g_assert_cmpint(strstr(error->message, "no NVIDIA driver is installed") != NULL, ==,
                  driver == NULL);
  if (driver != NULL)
    (void)dlclose(driver);
}

static void
wrong_options_are_refused(void) {
  static const char *const wrong[] = {
      "cuda:devices=65",    "cuda:dtype=float16", "cuda:fixed_order=2", "cuda:deadline_ns=0",
      "cuda:format=pickle", "cuda:overlap=-1",    "cuda:threads=4",     "cuda:fault_hang=2"};
  for (gsize i = 0; i < G_N_ELEMENTS(wrong); i++) {
    g_autoptr(GError) error = NULL;
    oct_world *world = oct_backend_world_new(wrong[i], &error);
    g_assert_null(world);
    g_test_message("%s", error->message);
    if (strstr(error->message, "without CUDA") == NULL)
      g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  }
}

/* NCCL asks the environment, once. */
static void
multicast_is_off_unless_asked_for(void) {
  static const char *const texts[] = {"cuda:nvls=1", "cuda", "cuda:nvls=0"};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_true(g_setenv("NCCL_NVLS_ENABLE", "1", TRUE));
    oct_world *world = oct_backend_world_new(texts[i], &error);
    if (world != NULL)
      oct_world_free(world);
    if (error != NULL && strstr(error->message, "without CUDA") != NULL)
      g_test_skip(error->message);
    else
      g_assert_cmpstr(g_getenv("NCCL_NVLS_ENABLE"), ==, i == 0 ? "1" : "0");
  }
}

/* ---------------------------------------------------------------- groups */

#define RANKS 4

typedef struct party {
  oct_cuda_group group;
  gint round[RANKS]; /* atomic */
  gboolean early;    /* atomic: somebody went on alone */
  gboolean met[RANKS];
} party;

typedef struct guest {
  party *party;
  guint32 index, rounds;
} guest;

static void *
meet_often(void *data) {
  guest *g = data;
  for (guint32 i = 1; i <= g->rounds; i++) {
    g_atomic_int_set(&g->party->round[g->index], (gint)i);
    g->party->met[g->index] = oct_cuda_group_meet(&g->party->group);
    for (guint32 r = 0; r < RANKS; r++)
      if (g->party->met[g->index] && g_atomic_int_get(&g->party->round[r]) < (gint)i)
        g_atomic_int_set(&g->party->early, TRUE);
  }
  return NULL;
}

static void
party_open(party *p, oct_instance_config *config, const oct_cuda_options *options) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.tensor = 2;
  parallel.pipeline = 2;
  memset(p, 0, sizeof *p);
  *config = fixture_config(fixture_dense(), parallel);
  oct_cuda_group_init(&p->group, config, options, 2);
}

static void
ranks_meet_before_any_goes_on(void) {
  party p;
  oct_instance_config config;
  const oct_cuda_options options = {.deadline_ns = 1};
  pthread_t threads[RANKS];
  guest guests[RANKS];
  party_open(&p, &config, &options);
  g_assert_cmpuint(p.group.n_ranks, ==, RANKS);
  for (guint32 i = 0; i < RANKS; i++) {
    guests[i] = (guest){&p, i, 200};
    g_assert_cmpint(pthread_create(&threads[i], NULL, meet_often, &guests[i]), ==, 0);
  }
  for (guint32 i = 0; i < RANKS; i++) {
    pthread_join(threads[i], NULL);
    g_assert_true(p.met[i]);
  }
  g_assert_false(g_atomic_int_get(&p.early));
  oct_cuda_group_clear(&p.group);
}

static void
a_broken_group_lets_everybody_go(void) {
  party p;
  oct_instance_config config;
  const oct_cuda_options options = {.deadline_ns = 1};
  pthread_t threads[RANKS - 1];
  guest guests[RANKS - 1];
  party_open(&p, &config, &options);
  for (guint32 i = 0; i + 1 < RANKS; i++) {
    guests[i] = (guest){&p, i, 1};
    p.met[i] = TRUE;
    g_assert_cmpint(pthread_create(&threads[i], NULL, meet_often, &guests[i]), ==, 0);
  }
  oct_cuda_group_break(&p.group, 3, "rank 3 is lost");
  oct_cuda_group_break(&p.group, 1, "a consequence");
  for (guint32 i = 0; i + 1 < RANKS; i++) {
    pthread_join(threads[i], NULL);
    g_assert_false(p.met[i]);
  }
  g_assert_true(oct_cuda_group_is_broken(&p.group));
  g_assert_cmpuint(p.group.device, ==, 3);
  g_assert_cmpstr(p.group.message, ==, "rank 3 is lost");
  oct_cuda_group_clear(&p.group);
}

static void
devices_beyond_the_gpus_share_them(void) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  const oct_cuda_options options = {.deadline_ns = 1};
  parallel.tensor = 2;
  oct_instance_config config = fixture_config(fixture_dense(), parallel);
  for (guint32 n_gpus = 1; n_gpus <= 2; n_gpus++) {
    oct_cuda_group group;
    oct_cuda_group_init(&group, &config, &options, n_gpus);
    g_assert_cmpint(group.shared_gpus, ==, n_gpus == 1);
    g_assert_cmpuint(oct_cuda_group_gpu(&group, 5), ==, n_gpus == 1 ? 0 : 1);
    oct_cuda_group_clear(&group);
  }
}

/* Ranks of other domains meet where experts are shared out over all of them. */
static void
domains_meet_for_their_experts(void) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  const oct_cuda_options options = {.deadline_ns = 1};
  parallel.data = 2;
  for (guint32 i = 0; i < 4; i++) {
    parallel.expert_parallel = i % 2 == 1;
    oct_instance_config config = fixture_config(fixture_hybrid(), parallel);
    oct_cuda_group group;
    oct_cuda_group_init(&group, &config, &options, 1 + i / 2);
    g_assert_cmpint(group.joint, ==, parallel.expert_parallel);
    g_assert_cmpint(group.shared_gpus, ==, parallel.expert_parallel && i / 2 == 0);
    oct_cuda_group_clear(&group);
  }
}

/* ---------------------------------------------------------------- the machine */

static void
what_is_not_told_is_unknown(void) {
  oct_nvml_health health;
  g_assert_false(oct_nvml_health_read("ffff:ff:1f.7", &health));
  g_assert_cmpuint(health.sm_mhz, ==, OCT_NVML_UNKNOWN);
  g_assert_cmpuint(health.throttle, ==, OCT_NVML_UNKNOWN);
  g_assert_cmpint(oct_nvml_path_between("ffff:ff:1f.7", "ffff:ff:1f.6"), ==, OCT_NVML_PATH_UNKNOWN);
  g_assert_cmpint(oct_numa_node_of("ffff:ff:1f.7"), ==, -1);
  g_assert_false(oct_numa_bind(-1));
  g_assert_false(oct_numa_bind(1000000));
}

static void
processors_are_those_of_the_list(void) {
  static const struct {
    const char *text;
    guint n;
    guint32 first, last;
  } lists[] = {{"0", 1, 0, 0},
               {"0-3", 4, 0, 3},
               {"0-31,128-159", 64, 0, 159},
               {"7,5", 2, 7, 5},
               {"3-3", 1, 3, 3},
               {"0-63", 64, 0, 63},
               {"0-64", 0, 0, 0}, /* more than there is room for */
               {"0-62,1-2", 0, 0, 0},
               {"", 0, 0, 0},
               {"3-1", 0, 0, 0},
               {"1-", 0, 0, 0},
               {"-1", 0, 0, 0},
               {"0,", 0, 0, 0},
               {",0", 0, 0, 0},
               {"0,,2", 0, 0, 0},
               {"0 1", 0, 0, 0},
               {"1-2-3", 0, 0, 0},
               {"x", 0, 0, 0},
               {"0-x", 0, 0, 0},
               {"0-999999999", 0, 0, 0},
               {"4294967296", 0, 0, 0},
               {"99999999999999999999-99999999999999999999", 0, 0, 0}};
  for (gsize i = 0; i < G_N_ELEMENTS(lists); i++) {
    guint32 processors[64];
    guint n = oct_numa_processors(lists[i].text, processors, G_N_ELEMENTS(processors));
    g_test_message("\"%s\": %u", lists[i].text, n);
    g_assert_cmpuint(n, ==, lists[i].n);
    if (n == 0)
      continue;
    g_assert_cmpuint(processors[0], ==, lists[i].first);
    g_assert_cmpuint(processors[n - 1], ==, lists[i].last);
  }
}

/* What a thread finds that has bound itself to node 0. */
typedef struct bound {
  gboolean fine;
  cpu_set_t processors;
  gint policy;
  gulong nodes[16]; /* of 1024 */
} bound;

static void *
bind_to_the_first_node(void *data) {
  bound *b = data;
  b->fine = oct_numa_bind(0);
  g_assert_cmpint(sched_getaffinity(0, sizeof b->processors, &b->processors), ==, 0);
  if (syscall(SYS_get_mempolicy, &b->policy, b->nodes, 8 * sizeof b->nodes, NULL, 0) != 0)
    b->policy = -1;
  return NULL;
}

/* In a thread of its own, which alone is bound. */
static void
a_bound_thread_runs_on_its_node(void) {
  g_autofree char *list = NULL;
  guint32 processors[CPU_SETSIZE];
  bound b = {0};
  cpu_set_t before, after, node;
  pthread_t thread;
  if (!g_file_get_contents("/sys/devices/system/node/node0/cpulist", &list, NULL, NULL)) {
    g_test_skip("the machine does not tell its nodes");
    return;
  }
  guint n = oct_numa_processors(g_strstrip(list), processors, CPU_SETSIZE);
  g_assert_cmpuint(n, >, 0);
  g_assert_cmpint(sched_getaffinity(0, sizeof before, &before), ==, 0);
  CPU_ZERO(&node);
  for (guint i = 0; i < n; i++)
    CPU_SET(processors[i], &node);
  g_assert_cmpint(pthread_create(&thread, NULL, bind_to_the_first_node, &b), ==, 0);
  pthread_join(thread, NULL);
  g_test_message("node 0 has %u processors; the thread is bound to %d, policy %d", n,
                 CPU_COUNT(&b.processors), b.policy);
  g_assert_cmpint(sched_getaffinity(0, sizeof after, &after), ==, 0);
  g_assert_true(CPU_EQUAL(&before, &after));
  if (!b.fine) {
    g_test_skip("the system lets no thread be bound");
    return;
  }
  /* A container may have fewer processors than the node. */
  cpu_set_t shared;
  CPU_AND(&shared, &b.processors, &node);
  g_assert_true(CPU_EQUAL(&shared, &b.processors));
  g_assert_cmpint(CPU_COUNT(&b.processors), >, 0);
  g_assert_cmpint(b.policy, ==, 1); /* MPOL_PREFERRED */
  g_assert_cmpuint(b.nodes[0], ==, 1);
}

static void
throttling_has_its_reasons(void) {
  g_autofree char *none = oct_nvml_throttle_text(0);
  g_autofree char *two = oct_nvml_throttle_text(OCT_NVML_POWER_CAP | OCT_NVML_SW_THERMAL);
  g_autofree char *unknown = oct_nvml_throttle_text(OCT_NVML_UNKNOWN);
  g_assert_cmpstr(none, ==, "none");
  g_assert_cmpstr(two, ==, "SW power cap, SW thermal slowdown");
  g_assert_cmpstr(unknown, ==, "unknown");
}

/* ---------------------------------------------------------------- deadlines */

/* The first event that is no progress. */
static void
next(oct_world *world, oct_event *event) {
  do
    g_assert_true(oct_world_next(world, OCT_TIME_NEVER, event));
  while (event->kind == OCT_EVENT_OPEN_PROGRESS);
}

/* Opening may find all that it waits for done; a step never is at once. arg: counts the times that
 * a deadline passed; else, a worker was met that had ended before it. */
static int
run_in_no_time(oct_world *world, void *arg) {
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_step_builder) builder = oct_step_builder_new();
  oct_event event;
  guint32 instance;
  guint *passed = arg;
  config.check_tags = FALSE;
  g_assert_true(oct_world_open(world, &config, &instance, &error));
  next(world, &event);
  gboolean opened = event.kind == OCT_EVENT_OPENED;
  if (opened) {
    oct_step_begin(builder, 1, 1);
    oct_step_add_open(builder)->prompt_tokens = 1;
    *oct_step_add_change(builder) = (oct_page_change){0};
    oct_slice *s = oct_step_add_slice(builder);
    s->n_tokens = 1;
    s->tokens = oct_step_add_tokens(builder, &(guint32){3}, 1, NULL);
    oct_submit answer = oct_world_submit(world, instance, oct_step_end(builder), &error);
    g_assert_no_error(error);
    g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
    next(world, &event);
  }
  g_assert_cmpint(event.kind, ==, opened ? OCT_EVENT_FAULT : OCT_EVENT_OPEN_FAILED);
  g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_INSTANCE);
  g_test_message("%s", event.fault->message);
  if (strstr(event.fault->message, "takes longer than") != NULL)
    (*passed)++;
  else
    g_assert_nonnull(strstr(event.fault->message, "worker exited"));
  oct_world_close(world, instance);
  return 0;
}

static void
a_wait_beyond_its_deadline_is_a_fault(void) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new("cuda:deadline_ns=1", &error);
  if (world == NULL) {
    g_test_skip(error->message);
    return;
  }
  guint passed = 0;
  (void)oct_world_run(world, run_in_no_time, &passed);
  g_assert_cmpuint(passed, ==, 1);
  oct_world_free(world);
}

/* The opening behind a loss may still meet the worker that is about to end. */
static int
run_often(oct_world *world, void *arg) {
  for (guint i = 0; i < 3; i++)
    (void)run_in_no_time(world, arg);
  return 0;
}

static void
a_worker_ends_with_its_lost_instance(void) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new("remote@cuda:deadline_ns=1,exit_on_loss=1", &error);
  if (world == NULL) {
    g_test_skip(error->message);
    return;
  }
  guint passed = 0;
  (void)oct_world_run(world, run_often, &passed);
  g_assert_cmpuint(passed, >=, 2);
  oct_world_free(world);
}

/* ---------------------------------------------------------------- failing devices */

#define LARGE_HIDDEN 4096
#define LARGE_PROMPT 1536 /* of such rows, more than kernels over peers' memory take */

typedef struct failure {
  guint32 tensor, times; /* instances, one after another */
  gboolean kill;         /* the worker, in step 3 */
  gboolean large;        /* each step is a prompt whose sums on GPUs of their own go by NCCL */
  double told_s[4];      /* from the step's submission to its fault */
  double opened_s[4];    /* the next one, from the fault on */
  char message[96];
} failure;

static void
submit(oct_world *world, guint32 instance, oct_step_builder *builder) {
  g_autoptr(GError) error = NULL;
  oct_submit answer = oct_world_submit(world, instance, oct_step_end(builder), &error);
  g_assert_no_error(error);
  g_assert_cmpint(answer, ==, OCT_SUBMIT_OK);
}

static void
submit_prompt(oct_world *world, guint32 instance, guint64 number) {
  g_autoptr(oct_step_builder) builder = oct_step_builder_new();
  guint32 *ids, slot = (guint32)number - 1, pages = LARGE_PROMPT / 16;
  oct_step_begin(builder, number, 1);
  oct_slot_open *o = oct_step_add_open(builder);
  o->slot = slot;
  o->prompt_tokens = LARGE_PROMPT;
  for (guint32 i = 0; i < pages; i++)
    *oct_step_add_change(builder) =
        (oct_page_change){.slot = slot, .index = i, .page = slot * pages + i};
  guint32 at = oct_step_add_tokens(builder, NULL, LARGE_PROMPT, &ids);
  for (guint32 i = 0; i < LARGE_PROMPT; i++)
    ids[i] = 3 + i % 500;
  oct_slice *s = oct_step_add_slice(builder);
  s->slot = slot;
  s->source = OCT_SOURCE_IDS;
  s->sample = OCT_SAMPLE_LAST;
  s->n_tokens = LARGE_PROMPT;
  s->tokens = at;
  submit(world, instance, builder);
}

static void
submit_token(oct_world *world, guint32 instance, guint64 number, guint32 token) {
  g_autoptr(oct_step_builder) builder = oct_step_builder_new();
  oct_step_begin(builder, number, 1);
  if (number == 1) {
    oct_step_add_open(builder)->prompt_tokens = 1;
    *oct_step_add_change(builder) = (oct_page_change){0};
  }
  oct_slice *s = oct_step_add_slice(builder);
  s->source = number == 1 ? OCT_SOURCE_IDS : OCT_SOURCE_DEVICE;
  s->sample = OCT_SAMPLE_LAST;
  s->n_tokens = 1;
  s->position = (guint32)number - 1;
  if (number == 1)
    s->tokens = oct_step_add_tokens(builder, &token, 1, NULL);
  submit(world, instance, builder);
}

/* The first try may meet the worker that is about to end. */
static void
open_again(oct_world *world, const oct_instance_config *config, guint32 *instance,
           oct_event *event) {
  for (guint tries = 0; tries < 3; tries++) {
    g_autoptr(GError) error = NULL;
    g_assert_true(oct_world_open(world, config, instance, &error));
    next(world, event);
    if (event->kind == OCT_EVENT_OPENED)
      return;
    g_assert_cmpint(event->kind, ==, OCT_EVENT_OPEN_FAILED);
    g_test_message("opening: %s", event->fault->message);
    g_assert_nonnull(strstr(event->fault->message, "worker"));
  }
  g_assert_not_reached();
}

/* Steps until one is lost: the world says so, once, with what happened; then another instance. */
static int
run_into_a_fault(oct_world *world, void *arg) {
  failure *f = arg;
  static const guint16 devices[] = {0, 1};
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  oct_model_spec spec = *fixture_dense();
  parallel.tensor = f->tensor;
  spec.hidden = f->large ? LARGE_HIDDEN : spec.hidden;
  for (guint32 i = 0; i < f->times; i++) {
    oct_instance_config config = fixture_config(&spec, parallel);
    oct_event event;
    guint32 instance;
    config.devices = devices;
    config.check_tags = FALSE;
    if (f->large) {
      config.max_batched_tokens = LARGE_PROMPT;
      config.memory.groups[0].n_device = 3 * LARGE_PROMPT / 16;
    }
    gint64 began = g_get_monotonic_time();
    open_again(world, &config, &instance, &event);
    f->opened_s[i] = (double)(g_get_monotonic_time() - began) * 1e-6;
    for (guint64 number = 1; event.kind != OCT_EVENT_FAULT; number++) {
      g_assert_cmpuint(number, <=, 3);
      began = g_get_monotonic_time();
      if (f->large)
        submit_prompt(world, instance, number);
      else
        submit_token(world, instance, number, 3);
      if (f->kill && number == 3)
        g_assert_cmpint(kill(oct_remote_worker(world), SIGKILL), ==, 0);
      next(world, &event);
    }
    f->told_s[i] = (double)(g_get_monotonic_time() - began) * 1e-6;
    g_assert_cmpint(event.fault->severity, ==, OCT_SEVERITY_INSTANCE);
    g_strlcpy(f->message, event.fault->message, sizeof f->message);
    g_test_message("told after %.4f s: %s; opened in %.2f s", f->told_s[i], f->message,
                   f->opened_s[i]);
    oct_world_close(world, instance);
  }
  return 0;
}

/* FALSE: skipped. */
static gboolean
fail(const char *text, failure *f) {
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new(text, &error);
  if (world == NULL) {
    g_test_skip(error->message);
    return FALSE;
  }
  (void)oct_world_run(world, run_into_a_fault, f);
  oct_world_free(world);
  return TRUE;
}

static void
an_illegal_access_is_told_at_once(void) {
  failure f = {.tensor = 1, .times = 2};
  if (!fail("remote@cuda:exit_on_loss=1,fault_step=3", &f))
    return;
  g_assert_nonnull(strstr(f.message, "illegal memory access"));
  g_assert_cmpfloat(f.told_s[0], <, 2);
}

/* The first rank waits for the second, which is lost. */
static void
the_other_ranks_do_not_wait_for_a_lost_one(void) {
  failure f = {.tensor = 2, .times = 2};
  if (!fail("remote@cuda:exit_on_loss=1,fault_step=3,fault_rank=1,devices=2", &f))
    return;
  g_assert_nonnull(strstr(f.message, "illegal memory access"));
  g_assert_cmpfloat(f.told_s[0], <, 2);
}

static void
a_device_that_hangs_is_told_at_the_deadline(void) {
  failure f = {.tensor = 2, .times = 2};
  if (!fail("remote@cuda:exit_on_loss=1,fault_step=3,fault_rank=1,fault_hang=1,devices=2,"
            "deadline_ns=2000000000",
            &f))
    return;
  g_assert_nonnull(strstr(f.message, "takes longer than"));
  g_assert_cmpfloat(f.told_s[0], >=, 1.5);
  g_assert_cmpfloat(f.told_s[0], <, 6);
}

/* The others of such sums wait in NCCL, which is aborted. */
static void
nor_do_ranks_with_large_sums(void) {
  failure lost = {.tensor = 2, .times = 2, .large = TRUE}, hangs = lost;
  if (!fail("remote@cuda:exit_on_loss=1,fault_step=3,fault_rank=1,devices=2", &lost) ||
      !fail("remote@cuda:exit_on_loss=1,fault_step=3,fault_rank=1,fault_hang=1,devices=2,"
            "deadline_ns=2000000000",
            &hangs))
    return;
  g_assert_nonnull(strstr(lost.message, "illegal memory access"));
  g_assert_cmpfloat(lost.told_s[0], <, 2);
  g_assert_nonnull(strstr(hangs.message, "takes longer than"));
  g_assert_cmpfloat(hangs.told_s[0], >=, 1.5);
  g_assert_cmpfloat(hangs.told_s[0], <, 6);
}

static void
a_killed_worker_is_told_at_once(void) {
  failure f = {.tensor = 1, .times = 3, .kill = TRUE};
  if (!fail("remote@cuda:fault_step=3,fault_hang=1,deadline_ns=20000000000", &f))
    return;
  g_assert_nonnull(strstr(f.message, "worker"));
  g_assert_cmpfloat(f.told_s[0], <, 2);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  /* The first: a process that has used a GPU cannot start another that does. */
  g_test_add_func("/cuda/world/a-worker-ends-with-its-lost-instance",
                  a_worker_ends_with_its_lost_instance);
  g_test_add_func("/cuda/world/a-killed-worker-is-told-at-once", a_killed_worker_is_told_at_once);
  g_test_add_func("/cuda/world/an-illegal-access-is-told-at-once",
                  an_illegal_access_is_told_at_once);
  g_test_add_func("/cuda/world/the-other-ranks-do-not-wait-for-a-lost-one",
                  the_other_ranks_do_not_wait_for_a_lost_one);
  g_test_add_func("/cuda/world/a-device-that-hangs-is-told-at-the-deadline",
                  a_device_that_hangs_is_told_at_the_deadline);
  g_test_add_func("/cuda/world/nor-do-ranks-with-large-sums", nor_do_ranks_with_large_sums);
  g_test_add_func("/cuda/world/where-it-cannot-be-it-says-why", where_it_cannot_be_it_says_why);
  g_test_add_func("/cuda/world/wrong-options-are-refused", wrong_options_are_refused);
  g_test_add_func("/cuda/world/multicast-is-off-unless-asked-for",
                  multicast_is_off_unless_asked_for);
  g_test_add_func("/cuda/world/ranks-meet-before-any-goes-on", ranks_meet_before_any_goes_on);
  g_test_add_func("/cuda/world/a-broken-group-lets-everybody-go", a_broken_group_lets_everybody_go);
  g_test_add_func("/cuda/world/devices-beyond-the-gpus-share-them",
                  devices_beyond_the_gpus_share_them);
  g_test_add_func("/cuda/world/domains-meet-for-their-experts", domains_meet_for_their_experts);
  g_test_add_func("/cuda/world/what-is-not-told-is-unknown", what_is_not_told_is_unknown);
  g_test_add_func("/cuda/world/processors-are-those-of-the-list", processors_are_those_of_the_list);
  g_test_add_func("/cuda/world/a-bound-thread-runs-on-its-node", a_bound_thread_runs_on_its_node);
  g_test_add_func("/cuda/world/throttling-has-its-reasons", throttling_has_its_reasons);
  g_test_add_func("/cuda/world/a-wait-beyond-its-deadline-is-a-fault",
                  a_wait_beyond_its_deadline_is_a_fault);
  return g_test_run();
}
