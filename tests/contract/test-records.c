/* Builds and runs what doc/backend-contract.md shows, and compares the text with the golden file
 * and with the document. OCT_GOLDEN=1 rewrites both. */
#include <string.h>

#include "backends/registry.h"
#include "tests/contract/records.h"

static char *
document_path(void) {
  return g_test_build_filename(G_TEST_DIST, "..", "doc", "backend-contract.md", NULL);
}

static char *
golden_path(const char *name) {
  g_autofree char *file = g_strconcat(name, ".txt", NULL);
  return g_test_build_filename(G_TEST_DIST, "golden", "contract", file, NULL);
}

static char *
read_text(const char *path) {
  g_autoptr(GError) error = NULL;
  char *text = NULL;
  g_file_get_contents(path, &text, NULL, &error);
  g_assert_no_error(error);
  return text;
}

static void
write_text(const char *path, const char *text) {
  g_autoptr(GError) error = NULL;
  g_file_set_contents(path, text, -1, &error);
  g_assert_no_error(error);
}

/* Fails with the first line that differs. */
static void
compare(const char *what, const char *got, const char *wanted) {
  if (strcmp(got, wanted) == 0)
    return;
  g_auto(GStrv) a = g_strsplit(got, "\n", -1);
  g_auto(GStrv) b = g_strsplit(wanted, "\n", -1);
  guint i = 0;
  while (a[i] != NULL && b[i] != NULL && strcmp(a[i], b[i]) == 0)
    i++;
  g_test_message("%s differs in line %u", what, i + 1);
  g_test_message("got:    %s", a[i] != NULL ? a[i] : "(end)");
  g_test_message("wanted: %s", b[i] != NULL ? b[i] : "(end)");
  g_test_fail();
}

/* ---------------------------------------------------------------- the document */

/* The block of the document under "<!-- golden: NAME -->", between its fences. */
static gboolean
find_block(const char *document, const char *name, const char **begin, const char **end) {
  g_autofree char *marker = g_strdup_printf("<!-- golden: %s -->\n```text\n", name);
  const char *at = strstr(document, marker);
  if (at == NULL)
    return FALSE;
  *begin = at + strlen(marker);
  *end = strstr(*begin, "```\n");
  return *end != NULL;
}

static void
compare_document(const char *name, const char *text, gboolean rewrite) {
  g_autofree char *path = document_path();
  g_autofree char *document = read_text(path);
  const char *begin, *end;
  if (!find_block(document, name, &begin, &end)) {
    g_test_message("doc/backend-contract.md has no block <!-- golden: %s -->", name);
    g_test_fail();
    return;
  }
  g_autofree char *block = g_strndup(begin, (gsize)(end - begin));
  if (rewrite && strcmp(block, text) != 0) {
    g_autofree char *head = g_strndup(document, (gsize)(begin - document));
    g_autofree char *changed = g_strconcat(head, text, end, NULL);
    write_text(path, changed);
    return;
  }
  compare("doc/backend-contract.md", block, text);
}

/* ---------------------------------------------------------------- the cases */

static int
run_inside(oct_world *world, void *arg) {
  const record_case *c = ((void **)arg)[0];
  oct_instance_config config = c->config();
  rig r;
  rig_init(&r, world, &config);
  r.log = ((void **)arg)[1];
  c->fn(&r);
  rig_clear(&r);
  return 0;
}

static void
run_case(gconstpointer data) {
  const record_case *c = data;
  g_autoptr(GString) log = g_string_new(NULL);
  g_autoptr(GError) error = NULL;
  oct_world *world = oct_backend_world_new(c->backend, &error);
  g_assert_no_error(error);
  void *arg[2] = {(void *)(gsize)c, log};
  oct_world_run(world, run_inside, arg);
  oct_world_free(world);
  gboolean rewrite = g_getenv("OCT_GOLDEN") != NULL;
  g_autofree char *path = golden_path(c->name);
  if (rewrite)
    write_text(path, log->str);
  g_autofree char *golden = read_text(path);
  compare(path, log->str, golden);
  compare_document(c->name, log->str, rewrite);
}

int
main(int argc, char **argv) {
  static const record_case *const lists[] = {record_cases_steps, record_cases_memory,
                                             record_cases_faults};
  g_test_init(&argc, &argv, NULL);
  for (gsize l = 0; l < G_N_ELEMENTS(lists); l++)
    for (const record_case *c = lists[l]; c->name != NULL; c++) {
      g_autofree char *path = g_strdup_printf("/records/%s/is-golden", c->name);
      g_test_add_data_func(path, c, run_case);
    }
  return g_test_run();
}
