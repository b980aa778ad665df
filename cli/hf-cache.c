#include "cli/hf-cache.h"

#include <string.h>

/* A part of a path that stays where it is put. */
static gboolean
is_name(const char *text, gsize size, const char *more) {
  gboolean dots = TRUE;
  for (gsize i = 0; i < size; i++) {
    char c = text[i];
    if (!g_ascii_isalnum(c) && (c == '\0' || strchr(more, c) == NULL))
      return FALSE;
    dots = dots && c == '.';
  }
  return size > 0 && !dots;
}

gboolean
oct_hf_is_id(const char *name) {
  const char *slash = strchr(name, '/');
  if (slash == NULL)
    return is_name(name, strlen(name), "-_.");
  return is_name(name, (gsize)(slash - name), "-_.") &&
         is_name(slash + 1, strlen(slash + 1), "-_.");
}

char *
oct_hf_hub(void) {
  const char *hub = g_getenv("HF_HUB_CACHE"), *home = g_getenv("HF_HOME");
  if (hub != NULL && *hub != '\0')
    return g_strdup(hub);
  if (home != NULL && *home != '\0')
    return g_build_filename(home, "hub", NULL);
  return g_build_filename(g_get_user_cache_dir(), "huggingface", "hub", NULL);
}

/* The commit that refs/REVISION names, NULL without such a file. Owned. */
static char *
read_ref(const char *folder, const char *revision) {
  g_autofree char *path = g_build_filename(folder, "refs", revision, NULL);
  char *commit = NULL;
  if (!g_file_get_contents(path, &commit, NULL, NULL))
    return NULL;
  g_strstrip(commit);
  if (!is_name(commit, strlen(commit), "-_."))
    g_clear_pointer(&commit, g_free);
  return commit;
}

char *
oct_hf_find(const char *hub, const char *id, const char *revision, GError **error) {
  revision = revision != NULL ? revision : "main";
  /* A revision may have slashes (refs/pr/1), but no part that is only dots. */
  g_auto(GStrv) parts = g_strsplit(revision, "/", -1);
  gboolean good = oct_hf_is_id(id) && parts[0] != NULL;
  for (char **part = parts; good && *part != NULL; part++)
    good = is_name(*part, strlen(*part), "-_.");
  if (!good) {
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
                "\"%s\" of revision \"%s\": no name and revision of a model", id, revision);
    return NULL;
  }
  g_auto(GStrv) names = g_strsplit(id, "/", -1);
  g_autofree char *joined = g_strjoinv("--", names);
  g_autofree char *model = g_strconcat("models--", joined, NULL);
  g_autofree char *folder = g_build_filename(hub, model, NULL);
  g_autofree char *commit = read_ref(folder, revision);
  char *snapshot = g_build_filename(folder, "snapshots", commit != NULL ? commit : revision, NULL);
  if (g_file_test(snapshot, G_FILE_TEST_IS_DIR))
    return snapshot;
  gboolean known = g_file_test(folder, G_FILE_TEST_IS_DIR);
  g_set_error(
      error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
      "%s: not a file, not in the zoo, and not downloaded: there is no %s (%s%s/refs/%s%s); "
      "nothing is fetched here",
      id, snapshot, known ? "" : "no ", folder, revision,
      commit != NULL ? " names it"
      : known        ? " does not exist"
                     : " either");
  g_free(snapshot);
  return NULL;
}
