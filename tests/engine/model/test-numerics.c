/* The numerics of a config: what the models of the zoo say, and what is refused. */
#include <string.h>

#include "engine/model/spec.h"

static oct_model_spec *
zoo(const char *name) {
  g_autoptr(GError) error = NULL;
  oct_model_spec *spec = oct_model_spec_load(name, NULL, &error);
  g_assert_no_error(error);
  return spec;
}

static void
rope_scaling_is_read(void) {
  g_autoptr(oct_model_spec) plain = zoo("smollm2-135m"), llama = zoo("llama-3.1-8b");
  g_autoptr(oct_model_spec) deepseek = zoo("deepseek-v3"), gpt = zoo("gpt-oss-120b");
  g_assert_cmpint(plain->numerics.rope_scaling, ==, OCT_ROPE_SCALING_NONE);
  const oct_numerics *n = &llama->numerics;
  g_assert_cmpint(n->rope_scaling, ==, OCT_ROPE_SCALING_LLAMA3);
  g_assert_cmpfloat(n->rope_factor, ==, 8);
  g_assert_cmpfloat(n->rope_original, ==, 8192);
  g_assert_cmpfloat(n->rope_low_freq, ==, 1);
  g_assert_cmpfloat(n->rope_high_freq, ==, 4);
  g_assert_false(n->rope_interleaved);
  n = &deepseek->numerics;
  g_assert_cmpint(n->rope_scaling, ==, OCT_ROPE_SCALING_YARN);
  g_assert_true(n->rope_interleaved);
  g_assert_true(n->rope_truncate);
  g_assert_cmpfloat(n->rope_factor, ==, 40);
  g_assert_cmpfloat(n->rope_beta_fast, ==, 32);
  g_assert_cmpfloat(n->rope_mscale_all_dim, ==, 1);
  g_assert_cmpfloat(n->latent_norm_eps, ==, 1e-6);
  n = &gpt->numerics;
  g_assert_false(n->rope_truncate);
  g_assert_cmpfloat(n->rope_mscale, ==, 0);
  g_assert_cmpfloat(n->glu_limit, ==, 7);
}

static void
routers_are_read(void) {
  g_autoptr(oct_model_spec) mixtral = zoo("mixtral-8x7b"), qwen = zoo("qwen3-30b-a3b");
  g_autoptr(oct_model_spec) deepseek = zoo("deepseek-v3"), k3 = zoo("kimi-k3");
  g_assert_false(mixtral->numerics.router_sigmoid);
  g_assert_true(mixtral->numerics.router_renormalise);
  g_assert_true(qwen->numerics.router_renormalise);
  g_assert_true(deepseek->numerics.router_sigmoid);
  g_assert_true(deepseek->numerics.router_renormalise);
  g_assert_cmpuint(deepseek->numerics.router_groups, ==, 8);
  g_assert_cmpuint(deepseek->numerics.router_top_groups, ==, 4);
  g_assert_true(k3->numerics.router_sigmoid);
  g_assert_cmpfloat(k3->numerics.decay_bound, ==, -5);
}

/* The zoo's DeepSeek-V3 with one field's text replaced. */
static void
expect_refused(const char *from, const char *to, const char *message) {
  g_autofree char *json = NULL,
                  *path = g_build_filename(oct_model_zoo_dirs()[0], "deepseek-v3.json", NULL);
  g_autoptr(GError) error = NULL;
  g_assert_true(g_file_get_contents(path, &json, NULL, &error));
  g_auto(GStrv) parts = g_strsplit(json, from, 2);
  g_assert_cmpuint(g_strv_length(parts), ==, 2);
  g_autofree char *changed = g_strjoinv(to, parts);
  g_autoptr(oct_model_spec) spec =
      oct_model_spec_parse("changed", changed, strlen(changed), &error);
  g_assert_null(spec);
  g_assert_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_FIELD);
  g_assert_nonnull(strstr(error->message, message));
}

static void
what_cannot_be_is_refused(void) {
  expect_refused("\"topk_group\": 4", "\"topk_group\": 9", "topk_group");
  expect_refused("\"n_group\": 8", "\"n_group\": 7", "topk_group");
  expect_refused("\"scoring_func\": \"sigmoid\"", "\"scoring_func\": \"tanh\"", "scoring_func");
  expect_refused("\"factor\": 40", "\"factor\": -40", "factor");
  expect_refused("\"n_group\": 8", "\"n_group\": 8, \"latent_norm_eps\": 0", "latent_norm_eps");
  expect_refused("\"n_group\": 8", "\"n_group\": 8, \"latent_norm_eps\": 1.5", "latent_norm_eps");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/model/numerics/rope-scaling-is-read", rope_scaling_is_read);
  g_test_add_func("/model/numerics/routers-are-read", routers_are_read);
  g_test_add_func("/model/numerics/what-cannot-be-is-refused", what_cannot_be_is_refused);
  return g_test_run();
}
