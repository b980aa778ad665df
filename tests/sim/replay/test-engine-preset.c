/* Engines as files: what they set, what overrides them, what is refused. */
#include <string.h>

#include "sim/replay/setup.h"
#include "sim/replay/slo.h"

static const char engine_text[] =
    "[engine]\ntitle=T\npolicy=vllm-v1\npreemption=recompute\nasync_scheduling=false\n"
    "graphs=true\nall_reduce=nccl\nmax_num_seqs=64\nmax_num_batched_tokens=2048\n"
    "gpu_memory_utilization=0.5\nexpert_time=1.5\n"
    "expert_time_int4=2\nstep_time=1.25\nshared_experts=beside\nnorms=fused\n";
static const char host_text[] =
    "[host]\nstep_us=700\nstep_per_seq_us=2\nrequest_in_us=9000\nrequest_out_per_token_us=4\n"
    "submit_lead_us=10\ngraph_max_batch=32\n";

static void
make(oct_setup *setup, const oct_engine_preset *preset) {
  g_autoptr(GError) error = NULL;
  oct_setup_options options;
  oct_setup_options_default(&options);
  options.model = "llama-3.1-8b";
  options.node = "h100-hgx8";
  options.engine.instance.parallel.tensor = 1;
  oct_setup_imitate(&options, preset);
  g_assert_true(oct_setup_make(&options, setup, &error));
  g_assert_no_error(error);
}

static void
sets_scheduler_host_and_kernels(void) {
  g_autoptr(GError) error = NULL;
  g_autofree char *text = g_strconcat(engine_text, host_text, NULL);
  oct_engine_preset preset;
  g_assert_true(oct_engine_preset_parse("some/mine.ini", text, &preset, &error));
  g_assert_no_error(error);
  g_assert_cmpstr(preset.name, ==, "mine");
  oct_setup setup;
  make(&setup, &preset);
  g_assert_cmpstr(setup.engine.policy, ==, "vllm-v1");
  g_assert_cmpint(setup.engine.preemption, ==, OCT_PREEMPT_RECOMPUTE);
  g_assert_cmpuint(setup.engine.run_ahead, ==, 0);
  g_assert_cmpuint(setup.engine.max_num_seqs, ==, 64);
  g_assert_cmpuint(setup.engine.max_num_batched_tokens, ==, 2048);
  g_assert_cmpint(setup.profile->engine.step_host_ns, ==, 700000);
  g_assert_cmpint(setup.profile->engine.request_in_ns, ==, 9000000);
  g_assert_cmpuint(setup.profile->engine.graph_max_batch, ==, 32);
  g_assert_cmpstr(setup.profile->engine.preset, ==, "mine");
  oct_cost_options prices = OCT_COST_OPTIONS_DEFAULT;
  setup.options.cost_scale = 2;
  oct_setup_cost_options(&setup, &prices);
  g_assert_cmpfloat(prices.scale, ==, 2.5);
  g_assert_cmpfloat(prices.expert_time, ==, 1.5);
  g_assert_true(prices.nccl_only && prices.shared_beside && prices.fused_norms);
  setup.spec->types.expert = OCT_DTYPE_INT4_G32;
  oct_setup_cost_options(&setup, &prices);
  g_assert_cmpfloat(prices.expert_time, ==, 3);
  oct_setup_clear(&setup);
}

/* Without [host] the profile's own times stand. */
static void
leaves_the_profiles_host_times(void) {
  g_autoptr(GError) error = NULL;
  oct_engine_preset preset;
  g_assert_true(oct_engine_preset_parse("mine.ini", engine_text, &preset, &error));
  oct_setup setup;
  make(&setup, &preset);
  g_autoptr(oct_profile) profile = oct_profile_load("h100-hgx8", NULL, NULL, &error);
  g_assert_cmpint(setup.profile->engine.step_host_ns, ==, profile->engine.step_host_ns);
  oct_setup_clear(&setup);
}

static void
every_engine_is_whole(void) {
  g_auto(GStrv) names = oct_engine_preset_list();
  g_assert_cmpuint(g_strv_length(names), >=, 4);
  for (guint i = 0; names[i] != NULL; i++) {
    g_autoptr(GError) error = NULL;
    oct_engine_preset preset;
    g_assert_true(oct_engine_preset_load(names[i], &preset, &error));
    g_assert_no_error(error);
    g_assert_cmpstr(preset.name, ==, names[i]);
  }
}

/* Every figure of every engine says where it is from, and README.md what it means. */
static void
figures_have_origins(void) {
  static const char *const origins[] = {"# published", "# derived", "# assumed", "# no fit",
                                        "# own"};
  g_auto(GStrv) names = oct_engine_preset_list();
  g_autofree char *readme = NULL;
  g_assert_true(g_file_get_contents(OCT_SOURCE_DIR "/sim/engines/README.md", &readme, NULL, NULL));
  for (guint i = 0; names[i] != NULL; i++) {
    g_autofree char *path = g_strdup_printf(OCT_SOURCE_DIR "/sim/engines/%s.ini", names[i]);
    g_autofree char *text = NULL;
    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    guint n = 0;
    for (guint l = 1; lines[l] != NULL; l++) {
      char *equals = strchr(lines[l], '=');
      if (*lines[l] == '#' || equals == NULL)
        continue;
      *equals = '\0';
      g_autofree char *explained = g_strdup_printf("`%s`", lines[l]);
      gboolean found = strcmp(lines[l], "title") == 0;
      for (guint o = 0; o < G_N_ELEMENTS(origins); o++)
        found |= g_str_has_prefix(lines[l - 1], origins[o]);
      if (!found || strstr(readme, explained) == NULL)
        g_error("%s: %s has no origin, or README.md does not explain it", path, lines[l]);
      n++;
    }
    g_assert_cmpuint(n, >=, 13);
  }
}

static void
refuse(const char *from, const char *to, const char *why) {
  g_autoptr(GError) error = NULL;
  g_autofree char *whole = g_strconcat(engine_text, host_text, NULL);
  g_autoptr(GString) text = g_string_new(whole);
  oct_engine_preset preset;
  g_assert_cmpuint(g_string_replace(text, from, to, 1), ==, 1);
  g_assert_false(oct_engine_preset_parse("x.ini", text->str, &preset, &error));
  g_assert_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION);
  if (strstr(error->message, why) == NULL || strstr(error->message, "x.ini") == NULL)
    g_error("'%s' lacks '%s'", error->message, why);
}

static void
refuses_what_it_does_not_know(void) {
  refuse("policy=vllm-v1", "policy=fair", "policy");
  refuse("policy=vllm-v1\n", "", "policy: is missing");
  refuse("graphs=true", "graphs=maybe", "none of false, true");
  refuse("all_reduce=nccl", "all_reduce=mpi", "one-shot, nccl");
  refuse("max_num_seqs=64", "max_num_seqs=6.5", "whole number");
  refuse("expert_time=1.5", "expert_time=0", "0.1 and 10");
  refuse("step_us=700", "step_us=nan", "[host] step_us");
  refuse("step_us=700\n", "", "[host] step_us: is missing");
  refuse("title=T", "colour=red", "not a key");
  refuse("[host]", "[guest]", "not a group");
  refuse("[engine]", "engine", "x.ini");
  g_autoptr(GError) error = NULL;
  oct_engine_preset preset;
  g_assert_false(oct_engine_preset_load("tgi", &preset, &error));
  g_assert_nonnull(strstr(error->message, "vllm-0.24"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/replay/engine-preset/sets-scheduler-host-and-kernels",
                  sets_scheduler_host_and_kernels);
  g_test_add_func("/sim/replay/engine-preset/leaves-the-profiles-host-times",
                  leaves_the_profiles_host_times);
  g_test_add_func("/sim/replay/engine-preset/every-engine-is-whole", every_engine_is_whole);
  g_test_add_func("/sim/replay/engine-preset/figures-have-origins", figures_have_origins);
  g_test_add_func("/sim/replay/engine-preset/refuses-what-it-does-not-know",
                  refuses_what_it_does_not_know);
  return g_test_run();
}
