/* Node profiles: the seven that come with Octet, inheritance, and everything that a file can have
 * wrong. */
#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

#include "sim/profile.h"

static oct_profile *
load(const char *name) {
  g_autoptr(GError) error = NULL;
  oct_profile *profile = oct_profile_load(name, NULL, NULL, &error);
  g_assert_no_error(error);
  return profile;
}

static char *
text_of(const char *name) {
  g_autofree char *file = g_strconcat(name, ".ini", NULL);
  g_autofree char *path = g_build_filename(oct_profile_dirs()[0], file, NULL);
  g_autoptr(GError) error = NULL;
  char *text = NULL;
  g_file_get_contents(path, &text, NULL, &error);
  g_assert_no_error(error);
  return text;
}

/* b300-hgx8 with the constants that it is based on in the same text, but for those of collectives,
 * which it has tables of. */
static char *
whole_text(void) {
  g_autofree char *own = text_of("b300-hgx8"), *fits = text_of(OCT_PROFILE_FITS "/b300");
  const char *from = strstr(fits, "[gemm_fit]"), *end = strstr(fits, "[collective_fit]");
  g_autoptr(GString) text = g_string_new(own);
  g_assert_true(from != NULL && end != NULL && from < end);
  g_assert_cmpuint(g_string_replace(text, "\nbase=b300\n", "\n", 1), ==, 1);
  g_string_append_c(text, '\n');
  g_string_append_len(text, from, end - from);
  return g_string_free(g_steal_pointer(&text), FALSE);
}

/* Parsing `text` must fail with `code` and a message that has `part` (NULL: any). */
static void
expect_refused(const char *text, gsize size, int code, const char *part) {
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) profile = oct_profile_parse("test.ini", text, size, NULL, NULL, &error);
  g_assert_null(profile);
  g_assert_nonnull(error);
  g_assert_true(error->domain == OCT_PROFILE_ERROR);
  if (code >= 0)
    g_assert_cmpint(error->code, ==, code);
  g_assert_nonnull(strstr(error->message, ".ini"));
  if (part != NULL && strstr(error->message, part) == NULL)
    g_error("'%s' lacks '%s'", error->message, part);
}

/* ---------------------------------------------------------------- what comes with Octet */

static void
shipped(void) {
  g_auto(GStrv) names = oct_profile_list(NULL);
  const char *const expected[] = {"b200-hgx8", "b300-hgx8", "h100-hgx8", "h200-hgx8",
                                  "h200x1",    "h200x2",    "pairs-4rc"};
  for (guint i = 0; i < G_N_ELEMENTS(expected); i++)
    g_assert_true(g_strv_contains((const char *const *)names, expected[i]));
  for (guint i = 0; names[i] != NULL; i++) {
    g_autoptr(oct_profile) profile = load(names[i]);
    g_assert_cmpstr(profile->name, ==, names[i]);
    g_assert_cmpuint(profile->gpu.count, >=, 1);
    g_assert_cmpfloat(profile->gpu.hbm_bytes_per_s, >, 1e12);
  }
}

static void
figures(void) {
  g_autoptr(oct_profile) p = load("b300-hgx8");
  g_assert_cmpuint(p->gpu.count, ==, 8);
  g_assert_cmpfloat(p->gpu.hbm_bytes, ==, 288400343040.0);
  g_assert_cmpfloat(p->gpu.hbm_bytes_per_s, ==, 7.7e12);
  g_assert_cmpfloat(p->gpu.flops[OCT_MATH_FP4], ==, 13.5e15);
  g_assert_cmpfloat(p->gpu.flops[OCT_MATH_FP8_BLOCK], ==, 4.5e15);
  g_assert_cmpint(p->nvlink.topology, ==, OCT_NVLINK_SWITCH);
  g_assert_cmpuint(p->topology.n_switches, ==, 8);
  g_assert_cmpuint(p->topology.gpu_socket[5], ==, 1);
  g_assert_cmpfloat(p->pcie.h2d_bytes_per_s, ==, 57.7e9);
  /* A table's unit is microseconds in the file, seconds in memory. */
  const oct_curve *curve = &p->collectives.nccl[OCT_COLLECTIVE_ALL_REDUCE][2];
  g_assert_cmpfloat_with_epsilon(oct_curve_at(curve, 16384), 25.97e-6, 1e-12);
  g_assert_cmpuint(p->moe[OCT_MOE_K3_W4A16][OCT_MOE_TP8][OCT_MOE_BALANCED].n, ==, 27);
  g_assert_false(p->fictional);
}

static void
bases(void) {
  g_autoptr(oct_profile) own = load("h200x2");
  g_autoptr(oct_profile) base = load("h200-hgx8");
  g_assert_cmpuint(own->gpu.count, ==, 2);
  g_assert_cmpfloat(own->gpu.hbm_bytes_per_s, ==, base->gpu.hbm_bytes_per_s);
  g_assert_cmpfloat(own->gpu.l2_bytes, !=, base->gpu.l2_bytes);
  g_assert_cmpmem(&own->gemm_fit, sizeof own->gemm_fit, &base->gemm_fit, sizeof base->gemm_fit);
  g_assert_cmpuint(own->all_reduce_probe.n, ==, 11);
  g_assert_cmpuint(base->all_reduce_probe.n, ==, 0);
  /* Tables of groups that the machine cannot form stay out. */
  g_assert_cmpuint(own->collectives.nccl[OCT_COLLECTIVE_ALL_REDUCE][0].n, >, 0);
  g_assert_cmpuint(own->collectives.nccl[OCT_COLLECTIVE_ALL_REDUCE][2].n, ==, 0);
  g_autoptr(oct_profile) pairs = load("pairs-4rc");
  g_assert_true(pairs->fictional);
  g_assert_cmpint(pairs->nvlink.topology, ==, OCT_NVLINK_PAIRS);
  g_assert_cmpuint(pairs->nvlink.gpu_pair[6], ==, 7);
  g_assert_cmpuint(pairs->nvlink.gpu_pair[1], ==, 0);
  g_assert_cmpuint(pairs->topology.n_root_complexes, ==, 4);
  g_assert_true(pairs->collectives.analytic_ring);
}

static void
copies(void) {
  static const char own[] = "[profile]\nschema=1\nname=mine\nbase=b300-hgx8\n[copies]\n"
                            "bytes=4096;1048576;\nto_device_us=8;32;\nfrom_device_us=9;36;\n";
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_profile) base = load("b300-hgx8");
  g_autoptr(oct_profile) mine = oct_profile_parse("mine.ini", own, strlen(own), NULL, NULL, &error);
  g_assert_no_error(error);
  g_assert_cmpfloat_with_epsilon(oct_profile_copy_s(mine, TRUE, 4096), 8e-6, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_profile_copy_s(mine, TRUE, 65536), 16e-6, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_profile_copy_s(mine, FALSE, 2 * 1048576), 72e-6, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_profile_copy_s(base, TRUE, 57.7e9),
                                 base->pcie.copy_latency_s + 1, 1e-9);
  g_assert_cmpfloat_with_epsilon(oct_profile_copy_s(base, FALSE, base->pcie.d2h_bytes_per_s),
                                 base->pcie.copy_latency_s + 1, 1e-9);
}

static void
presets(void) {
  g_autoptr(GError) error = NULL;
  g_auto(GStrv) names = oct_profile_presets("b300-hgx8", NULL, &error);
  g_assert_no_error(error);
  g_assert_true(g_strv_contains((const char *const *)names, "octet"));
  g_autoptr(oct_profile) octet = load("b300-hgx8");
  g_assert_cmpstr(octet->engine.preset, ==, "octet");
  static const char own[] = "[profile]\nschema=1\nname=mine\nbase=b300-hgx8\n"
                            "[engine]\npresets=octet;slow;\n[engine slow]\nstep_host_us=7000\n"
                            "step_host_per_seq_us=1\nrequest_in_us=15600\n"
                            "request_out_per_token_us=9\nsubmit_lead_us=1\ngraph_max_batch=8\n";
  g_autoptr(oct_profile) slow =
      oct_profile_parse("mine.ini", own, strlen(own), NULL, "slow", &error);
  g_assert_no_error(error);
  g_assert_cmpstr(slow->engine.preset, ==, "slow");
  g_assert_cmpint(slow->engine.request_in_ns, ==, 15600000);
  g_assert_cmpint(slow->engine.request_in_ns, >, octet->engine.request_in_ns);
  g_assert_null(oct_profile_load("b300-hgx8", NULL, "fast", &error));
  g_assert_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_NOT_FOUND);
  g_assert_nonnull(strstr(error->message, "it has octet"));
}

/* An installed tree has the profiles in one folder and nothing else of the source. */
static void
installed(void) {
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-profiles-XXXXXX", &error);
  g_assert_no_error(error);
  const char *const names[] = {"h200-hgx8", "h200x1", OCT_PROFILE_FITS "/h200"};
  g_autofree char *fits = g_build_filename(folder, OCT_PROFILE_FITS, NULL);
  g_assert_cmpint(g_mkdir(fits, 0700), ==, 0);
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *text = text_of(names[i]);
    g_autofree char *file = g_strconcat(names[i], ".ini", NULL);
    g_autofree char *path = g_build_filename(folder, file, NULL);
    g_assert_true(g_file_set_contents(path, text, -1, &error));
  }
  g_autoptr(oct_profile) by_folder = oct_profile_load("h200x1", folder, NULL, &error);
  g_assert_no_error(error);
  g_assert_true(g_str_has_prefix(by_folder->path, folder));
  g_autofree char *path = g_build_filename(folder, "h200x1.ini", NULL);
  /* By path: its base is found beside it. */
  g_autoptr(oct_profile) by_path = oct_profile_load(path, NULL, NULL, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(by_path->gpu.count, ==, 1);
  g_assert_null(oct_profile_load("b300-hgx8", folder, NULL, &error));
  g_assert_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_NOT_FOUND);
  /* Constants are none by themselves. */
  g_auto(GStrv) listed = oct_profile_list(folder);
  g_assert_cmpuint(g_strv_length(listed), ==, 2);
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *file = g_strconcat(names[i], ".ini", NULL);
    g_autofree char *gone = g_build_filename(folder, file, NULL);
    g_assert_cmpint(g_unlink(gone), ==, 0);
  }
  g_assert_cmpint(g_rmdir(fits), ==, 0);
  g_assert_cmpint(g_rmdir(folder), ==, 0);
}

static void
curves(void) {
  oct_curve curve = {.n = 3, .x = {1, 10, 100}, .y = {2, 20, 20}};
  g_assert_cmpfloat(oct_curve_at(&curve, 0.5), ==, 2);
  g_assert_cmpfloat_with_epsilon(oct_curve_at(&curve, 3), 6, 1e-12); /* slope 1 in log-log */
  g_assert_cmpfloat_with_epsilon(oct_curve_at(&curve, 50), 20, 1e-12);
  g_assert_cmpfloat_with_epsilon(oct_curve_at(&curve, 200), 40, 1e-12);
  g_assert_cmpfloat(oct_curve_at(&curve, NAN), ==, 2);
  curve.n = 0;
  g_assert_cmpfloat(oct_curve_at(&curve, 1), ==, 0);
}

/* ---------------------------------------------------------------- what is refused */

/* Calls fn for every "key=value" line of the text: with its group, and where the line is. */
typedef void (*line_fn)(const char *text, const char *group, const char *key, gsize line,
                        gsize end);

static void
each_line(const char *text, line_fn fn) {
  g_autofree char *group = g_strdup("");
  for (gsize line = 0; text[line] != '\0';) {
    gsize end = line + strcspn(text + line, "\n");
    if (text[line] == '[') {
      g_free(group);
      group = g_strndup(text + line + 1, end - line - 2);
    } else if (text[line] != '#' && end > line) {
      g_autofree char *key = g_strndup(text + line, strcspn(text + line, "="));
      fn(text, group, key, line, end);
    }
    line = text[end] == '\0' ? end : end + 1;
  }
}

static gboolean
is_text(const char *group, const char *key) {
  static const char *const keys[] = {"name",           "title",    "cpu",     "compute_capability",
                                     "gencode",        "base",     "presets", "fictional",
                                     "default_preset", "topology", "model",   "pairs"};
  return (strcmp(group, "topology") != 0 || strcmp(key, "topology") == 0) &&
         g_strv_contains((const char *const[]){keys[0], keys[1], keys[2], keys[3], keys[4], keys[5],
                                               keys[6], keys[7], keys[8], keys[9], keys[10],
                                               keys[11], NULL},
                         key);
}

static guint n_lines;

static void
without_line(const char *text, const char *group, const char *key, gsize line, gsize end) {
  /* The one key that may be left out of this file. */
  if (strcmp(key, "fp8_block_us_n8192_k8192") == 0)
    return;
  g_autoptr(GString) cut = g_string_new(text);
  g_string_erase(cut, (gssize)line, (gssize)(end - line));
  g_autofree char *part = g_strdup_printf("[%s] %s", group, key);
  expect_refused(cut->str, cut->len, OCT_PROFILE_ERROR_MISSING, part);
  n_lines++;
}

static void
each_key_missing(void) {
  g_autofree char *text = whole_text();
  n_lines = 0;
  each_line(text, without_line);
  g_assert_cmpuint(n_lines, >, 130);
}

static void
bad_values(const char *text, const char *group, const char *key, gsize line, gsize end) {
  static const char *const values[] = {"nan", "inf",  "-inf", "-1e99",    "1e99", "abc",
                                       "",    "0x10", "1 2",  "NaN;NaN;", "1;;1;"};
  if (is_text(group, key))
    return;
  gsize value = line + strlen(key) + 1;
  for (guint i = 0; i < G_N_ELEMENTS(values); i++) {
    g_autoptr(GString) bad = g_string_new(text);
    g_string_erase(bad, (gssize)value, (gssize)(end - value));
    g_string_insert(bad, (gssize)value, values[i]);
    expect_refused(bad->str, bad->len, -1, key);
    n_lines++;
  }
}

static void
each_value_bad(void) {
  g_autofree char *text = whole_text();
  n_lines = 0;
  each_line(text, bad_values);
  g_assert_cmpuint(n_lines, >, 1400);
}

static void
too_many_values(const char *text, const char *group, const char *key, gsize line, gsize end) {
  (void)group;
  (void)line;
  if (text[end - 1] != ';' || strcmp(key, "presets") == 0)
    return;
  g_autoptr(GString) longer = g_string_new(text);
  g_autoptr(GString) tail = g_string_new(NULL);
  for (int i = 0; i < 70; i++)
    g_string_append(tail, "1e18;");
  g_string_insert(longer, (gssize)end, tail->str);
  expect_refused(longer->str, longer->len, OCT_PROFILE_ERROR_RANGE, "values are not within");
  n_lines++;
}

static void
each_list_too_long(void) {
  g_autofree char *text = whole_text();
  n_lines = 0;
  each_line(text, too_many_values);
  g_assert_cmpuint(n_lines, >, 30);
}

static void
cut_files(void) {
  g_autofree char *text = whole_text();
  gsize size = strlen(text);
  for (gsize cut = 0; cut + 20 < size; cut += 211)
    expect_refused(text, cut, -1, NULL);
}

static void
unknown_names(void) {
  g_autofree char *text = whole_text();
  g_autofree char *group = g_strconcat(text, "\n[turbo]\nx=1\n", NULL);
  expect_refused(group, strlen(group), OCT_PROFILE_ERROR_UNKNOWN, "[turbo]");
  g_autofree char *key = g_strconcat(text, "\n[gpu]\nhbm_byte=1\n", NULL);
  expect_refused(key, strlen(key), OCT_PROFILE_ERROR_UNKNOWN, "[gpu] hbm_byte");
  g_autofree char *preset = g_strconcat(text, "\n[engine tgi]\nstep_host_us=1\n", NULL);
  expect_refused(preset, strlen(preset), OCT_PROFILE_ERROR_UNKNOWN, "[engine tgi]");
  g_autofree char *time = g_strconcat(text, "\n[engine octet]\nstep_us=1\n", NULL);
  expect_refused(time, strlen(time), OCT_PROFILE_ERROR_UNKNOWN, "[engine octet] step_us");
}

static void
not_text(void) {
  expect_refused("", 0, OCT_PROFILE_ERROR_PARSE, NULL);
  expect_refused("[profile]\n\0", 11, OCT_PROFILE_ERROR_PARSE, NULL);
  expect_refused("\x89PNG\r\n\x1a\n", 8, OCT_PROFILE_ERROR_PARSE, NULL);
  expect_refused("schema=1\n", 9, OCT_PROFILE_ERROR_PARSE, NULL);
  g_autofree char *huge = g_strnfill(OCT_PROFILE_FILE_MAX + 1, '#');
  expect_refused(huge, OCT_PROFILE_FILE_MAX + 1, OCT_PROFILE_ERROR_PARSE, "limit");
}

static void
bad_bases(void) {
  const char *away = "[profile]\nbase=../../etc/passwd\n";
  expect_refused(away, strlen(away), OCT_PROFILE_ERROR_NOT_FOUND, "[profile] base");
  const char *none = "[profile]\nbase=no-such-node\n";
  expect_refused(none, strlen(none), OCT_PROFILE_ERROR_NOT_FOUND, "no-such-node");
  g_autoptr(GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp("octet-profiles-XXXXXX", &error);
  g_autofree char *path = g_build_filename(folder, "ring.ini", NULL);
  g_assert_true(g_file_set_contents(path, "[profile]\nbase=ring\n", -1, &error));
  g_assert_null(oct_profile_load("ring", folder, NULL, &error));
  g_assert_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE);
  g_assert_cmpint(g_unlink(path), ==, 0);
  g_assert_cmpint(g_rmdir(folder), ==, 0);
  g_clear_error(&error);
  g_assert_null(oct_profile_load("../b300-hgx8", NULL, NULL, &error));
  g_assert_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_NOT_FOUND);
}

/* Replaces the first `from` by `to` and expects a refusal. */
static void
refuse_changed(const char *profile, const char *from, const char *to, int code, const char *part) {
  g_autofree char *text = strcmp(profile, "b300-hgx8") == 0 ? whole_text() : text_of(profile);
  g_autoptr(GString) changed = g_string_new(text);
  g_assert_cmpuint(g_string_replace(changed, from, to, 1), ==, 1);
  expect_refused(changed->str, changed->len, code, part);
}

static void
contradictions(void) {
  refuse_changed("b300-hgx8", "gpu_socket=0;0;0;0;1;", "gpu_socket=0;0;0;0;2;",
                 OCT_PROFILE_ERROR_RANGE, "gpu_socket");
  refuse_changed("b300-hgx8", "gpu_pcie_switch=0;1;", "gpu_pcie_switch=0;9;",
                 OCT_PROFILE_ERROR_RANGE, "gpu_pcie_switch");
  refuse_changed("b300-hgx8", "intersocket_bytes_per_s=170000000000", "intersocket_bytes_per_s=0",
                 OCT_PROFILE_ERROR_RANGE, "intersocket_bytes_per_s");
  refuse_changed("b300-hgx8", "m=1;8;16;", "m=1;16;8;", OCT_PROFILE_ERROR_RANGE, "must rise");
  refuse_changed("b300-hgx8", "topology=switch", "topology=torus", OCT_PROFILE_ERROR_PARSE,
                 "torus");
  refuse_changed("b300-hgx8", "schema=1", "schema=2", OCT_PROFILE_ERROR_RANGE, "schema");
  refuse_changed("b300-hgx8", "default_preset=octet", "default_preset=fast",
                 OCT_PROFILE_ERROR_NOT_FOUND, "fast");
  refuse_changed("b300-hgx8", "decode=7.43e-06;1.53e-06;0.9294;", "decode=7.43e-06;1.53e-06;1.2;",
                 OCT_PROFILE_ERROR_RANGE, "bandwidth");
  refuse_changed("pairs-4rc", "pairs=0-1;2-3;", "pairs=0-1;1-3;", OCT_PROFILE_ERROR_RANGE, "1-3");
  refuse_changed("pairs-4rc", "pairs=0-1;", "pairs=0-8;", OCT_PROFILE_ERROR_RANGE, "0-8");
  refuse_changed("pairs-4rc", "pairs=0-1;", "pairs=0;", OCT_PROFILE_ERROR_RANGE, "pairs");
  refuse_changed("pairs-4rc", "cross_pair_bytes_per_s=57700000000", "# gone",
                 OCT_PROFILE_ERROR_MISSING, "cross_pair_bytes_per_s");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/sim/profile/ships-profiles-that-load", shipped);
  g_test_add_func("/sim/profile/has-the-figures-of-b300-in-si-units", figures);
  g_test_add_func("/sim/profile/inherits-from-its-base-key-by-key", bases);
  g_test_add_func("/sim/profile/copies-take-what-was-measured-by-size", copies);
  g_test_add_func("/sim/profile/chooses-host-times-by-preset", presets);
  g_test_add_func("/sim/profile/is-found-in-any-folder-by-name-or-path", installed);
  g_test_add_func("/sim/profile/interpolates-curves-log-log", curves);
  g_test_add_func("/sim/profile/names-each-missing-key", each_key_missing);
  g_test_add_func("/sim/profile/names-the-key-of-each-bad-value", each_value_bad);
  g_test_add_func("/sim/profile/refuses-lists-that-are-too-long", each_list_too_long);
  g_test_add_func("/sim/profile/refuses-cut-files", cut_files);
  g_test_add_func("/sim/profile/refuses-unknown-groups-and-keys", unknown_names);
  g_test_add_func("/sim/profile/refuses-what-is-not-text", not_text);
  g_test_add_func("/sim/profile/refuses-bases-that-lead-away-or-in-a-ring", bad_bases);
  g_test_add_func("/sim/profile/refuses-parts-that-contradict-each-other", contradictions);
  return g_test_run();
}
