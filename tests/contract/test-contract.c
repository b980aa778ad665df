/* Runs every case of the contract against every backend. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/contract/contract.h"

typedef struct run {
  const contract_world *world;
  const contract_case *c;
  const char *script; /* what goes wrong, NULL = nothing */
  char *path;
  const char *lacking; /* why the case was not run; NULL = it was. Static text */
} run;

static oct_instance_config
config_for(contract_model model) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  if (model == CONTRACT_DATA2 || model == CONTRACT_JOINT)
    parallel.data = 2;
  parallel.expert_parallel = model == CONTRACT_JOINT;
  if (model == CONTRACT_PIPE2)
    parallel.pipeline = 2;
  if (model == CONTRACT_CONTEXT2)
    parallel.tensor = parallel.decode_context = 2;
  gboolean hybrid =
      model == CONTRACT_HYBRID || model == CONTRACT_EXPERTS || model == CONTRACT_JOINT;
  oct_instance_config config = fixture_config(hybrid                       ? fixture_hybrid()
                                              : model == CONTRACT_CONTEXT2 ? fixture_latent()
                                                                           : fixture_dense(),
                                              parallel);
  config.report_experts = model == CONTRACT_JOINT;
  if (model == CONTRACT_PIPE2)
    config.depth = 3;
  if (model == CONTRACT_BARE)
    config.check_tags = FALSE;
  if (model == CONTRACT_EXPERTS) {
    config.memory.n_expert_slots = 8;
    config.report_experts = TRUE;
  }
  return config;
}

/* What the world lacks for the case, NULL when nothing. */
static const char *
lacking(const contract_world *cw, const oct_world *world, const oct_capabilities *c, guint flags) {
  if ((flags & NEEDS_VIRTUAL) != 0 && world->ops->clock != OCT_CLOCK_VIRTUAL)
    return "no virtual clock";
  if ((flags & NEEDS_SIMULATED) != 0 && !cw->simulated)
    return "not simulated";
  if ((flags & NEEDS_PULL) != 0 && !oct_world_can_pull(world))
    return "no pull";
  if ((flags & CLOSED) != 0)
    return NULL;
  if ((flags & NEEDS_MASKS) != 0 && !c->masks)
    return "no masks";
  if ((flags & NEEDS_SPECULATION) != 0 && !c->speculation)
    return "no speculation";
  if ((flags & NEEDS_ADAPTERS) != 0 && !c->adapters)
    return "no adapters";
  if ((flags & NEEDS_EXPERTS) != 0 && !c->expert_slots)
    return "no expert slots";
  if ((flags & NEEDS_HOST) != 0 && !c->host_tier)
    return "no host tier";
  if ((flags & NEEDS_POOLING) != 0 && !c->pooling)
    return "no pooling";
  if ((flags & NEEDS_FORWARD) != 0 && !c->forward)
    return "no fast-forward";
  return NULL;
}

static int
run_inside(oct_world *world, void *arg) {
  run *it = arg;
  oct_instance_config config = config_for(it->c->model);
  rig r;
  rig_init(&r, world, &config);
  r.simulated = it->world->simulated;
  if ((it->c->flags & CLOSED) == 0)
    rig_open(&r);
  it->lacking = lacking(it->world, world, &r.capabilities, it->c->flags);
  if (it->lacking == NULL)
    it->c->fn(&r);
  if (r.instance != 0)
    rig_close(&r);
  rig_clear(&r);
  return 42;
}

static void
run_here(run *it) {
  g_autoptr(GError) error = NULL;
  oct_world *world = contract_world_new(it->world, it->script, &error);
  if (it->world->needs_gpu && world == NULL &&
      (strstr(error->message, "no GPU") != NULL ||
       strstr(error->message, "without CUDA") != NULL)) {
    it->lacking = "no GPU";
    contract_world_done();
    return;
  }
  g_assert_no_error(error);
  g_assert_nonnull(world);
  g_assert_cmpint(oct_world_run(world, run_inside, it), ==, 42); /* rule 1 */
  oct_world_free(world);
  contract_world_done();
}

/* Runs the case in a child, which fails when the child does. What it lacks is static text, at one
 * address in both. */
static void
run_in_child(run *it) {
  const char **lack =
      mmap(NULL, sizeof *lack, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  g_assert_true(lack != MAP_FAILED);
  fflush(NULL);
  pid_t pid = fork();
  g_assert_cmpint(pid, >=, 0);
  if (pid == 0) {
    alarm(60);
    run_here(it);
    *lack = it->lacking;
    fflush(NULL);
    _exit(0);
  }
  int status;
  g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
  it->lacking = *lack;
  munmap(lack, sizeof *lack);
  g_assert_true(WIFEXITED(status));
  g_assert_cmpint(WEXITSTATUS(status), ==, 0);
}

static void
run_case(gconstpointer data) {
  run *it = (run *)(gsize)data;
  if (it->world->own_process)
    run_in_child(it);
  else
    run_here(it);
  if (it->lacking != NULL)
    g_test_skip(it->lacking);
}

static void
add_run(GPtrArray *runs, const contract_world *world, const contract_case *c, const char *script) {
  run *it = g_new0(run, 1);
  it->world = world;
  it->c = c;
  it->script = script;
  it->path = g_strdup_printf("/contract/%s/%s", world->name, c->name);
  g_ptr_array_add(runs, it);
  g_test_add_data_func(it->path, it, run_case);
}

static void
free_run(gpointer data) {
  run *it = data;
  g_free(it->path);
  g_free(it);
}

int
main(int argc, char **argv) {
  static const contract_case *const lists[] = {contract_world_cases,  contract_step_cases,
                                               contract_memory_cases, contract_extra_cases,
                                               contract_pull_cases,   contract_prompt_cases};
  g_test_init(&argc, &argv, NULL);
  g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func(free_run);
  for (guint w = 0; w < n_contract_worlds; w++) {
    for (gsize l = 0; l < G_N_ELEMENTS(lists); l++)
      for (const contract_case *c = lists[l]; c->name != NULL; c++)
        add_run(runs, &contract_worlds[w], c, NULL);
    for (const contract_fault_case *f = contract_fault_cases; f->c.name != NULL; f++)
      add_run(runs, &contract_worlds[w], &f->c, f->script);
  }
  return g_test_run();
}
