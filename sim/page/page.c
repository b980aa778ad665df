#include "sim/page/page.h"

#include <stdlib.h>
#include <string.h>

#include "sim/replay/slo.h"

#define CHART_VARIABLE "OCT_CHART_JS"
#define CHART_PACKAGE  "libjs-chart.js"

/* Where Debian and its kin keep it. */
static const char *const chart_paths[] = {"/usr/share/javascript/chart.js/chart.min.js",
                                          "/usr/share/javascript/chart.js/Chart.min.js"};

static const char *
chart_path(void) {
  const char *given = g_getenv(CHART_VARIABLE);
  if (given != NULL)
    return g_file_test(given, G_FILE_TEST_IS_REGULAR) ? given : NULL;
  for (gsize i = 0; i < G_N_ELEMENTS(chart_paths); i++)
    if (g_file_test(chart_paths[i], G_FILE_TEST_IS_REGULAR))
      return chart_paths[i];
  return NULL;
}

gboolean
oct_page_check(GError **error) {
  const char *given = g_getenv(CHART_VARIABLE);
  if (chart_path() != NULL)
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
              "html: the plot library is not there: %s (install the package " CHART_PACKAGE
              ", or name its chart.min.js in " CHART_VARIABLE ")",
              given != NULL ? given : chart_paths[0]);
  return FALSE;
}

/* ---------------------------------------------------------------- parts */

/* A file of this folder, where the source is or where it was installed. */
static char *
read_own(const char *name, GError **error) {
  static const char *const dirs[] = {OCT_SOURCE_DIR "/sim/page", OCT_DATA_DIR "/page"};
  char *text = NULL;
  for (gsize i = 0; i < G_N_ELEMENTS(dirs); i++) {
    g_autofree char *path = g_build_filename(dirs[i], name, NULL);
    if (g_file_get_contents(path, &text, NULL, NULL))
      return text;
  }
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO, "html: no %s in %s or %s", name,
              dirs[0], dirs[1]);
  return NULL;
}

/* What the simulating machine took is no part of the answer, and never twice the same. */
static json_t *
without_run(const json_t *report) {
  json_t *copy = json_deep_copy(report), *list = json_object_get(copy, "reports"), *item;
  static const char *const within[] = {"at_own_rate", "at_load"};
  gsize i;
  json_object_del(copy, "run");
  json_array_foreach(list, i, item) json_object_del(item, "run");
  for (i = 0; i < G_N_ELEMENTS(within); i++)
    if ((item = json_object_get(copy, within[i])) != NULL)
      json_object_del(item, "run");
  return copy;
}

/* In a page, "</script>" inside a text would end the data. */
static char *
data_text(const json_t *report) {
  json_t *copy = without_run(report);
  char *text = json_dumps(copy, JSON_COMPACT | JSON_REAL_PRECISION(10));
  json_decref(copy);
  g_auto(GStrv) parts = g_strsplit(text, "<", -1);
  free(text);
  return g_strjoinv("\\u003c", parts);
}

static char *
library_text(GError **error) {
  char *text = NULL;
  if (!oct_page_check(error))
    return NULL;
  if (!g_file_get_contents(chart_path(), &text, NULL, error))
    return NULL;
  if (strstr(text, "</script") != NULL) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_IO,
                "html: %s holds </script and cannot stand in a page", chart_path());
    g_free(text);
    return NULL;
  }
  return text;
}

/* ---------------------------------------------------------------- the whole */

/* Puts `text` where the page has the mark. */
static char *
put(char *page, const char *mark, const char *text) {
  char *at = page != NULL ? strstr(page, mark) : NULL;
  if (at == NULL)
    return page;
  *at = '\0';
  char *whole = g_strconcat(page, text, at + strlen(mark), NULL);
  g_free(page);
  return whole;
}

char *
oct_page_make(const json_t *report, GError **error) {
  g_autofree char *library = library_text(error);
  g_autofree char *style = library != NULL ? read_own("page.css", error) : NULL;
  g_autofree char *draw = style != NULL ? read_own("draw.js", error) : NULL;
  g_autofree char *script = draw != NULL ? read_own("page.js", error) : NULL;
  char *page = script != NULL ? read_own("page.html", error) : NULL;
  if (page == NULL)
    return NULL;
  g_autofree char *data = data_text(report);
  page = put(page, "/*STYLE*/", style);
  page = put(page, "/*LIBRARY*/", library);
  page = put(page, "/*DRAW*/", draw);
  page = put(page, "/*PAGE*/", script);
  return put(page, "/*DATA*/", data);
}
