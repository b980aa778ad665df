/* Node profiles: which files a profile is read from, and its life cycle. What the keys mean is in
 * sim/profile-fields.c. */
#include "sim/profile.h"

#include <math.h>
#include <string.h>

#include "engine/base/file.h"
#include "sim/profile-read.h"

#ifndef OCT_SOURCE_DIR
#define OCT_SOURCE_DIR "."
#endif
#ifndef OCT_DATA_DIR
#define OCT_DATA_DIR "/usr/local/share/octet"
#endif

G_DEFINE_QUARK(oct - profile - error - quark, oct_profile_error)

/* ---------------------------------------------------------------- curves */

double
oct_curve_at(const oct_curve *curve, double x) {
  const guint32 n = curve->n;
  if (n == 0)
    return 0;
  if (!(x > curve->x[0]))
    return curve->y[0];
  if (x >= curve->x[n - 1])
    return curve->y[n - 1] * (x / curve->x[n - 1]);
  guint32 low = 0, high = n - 1; /* x[low] < x < x[high] */
  while (high - low > 1) {
    guint32 middle = (low + high) / 2;
    if (curve->x[middle] <= x)
      low = middle;
    else
      high = middle;
  }
  double slope = log(curve->y[high] / curve->y[low]) / log(curve->x[high] / curve->x[low]);
  return curve->y[low] * pow(x / curve->x[low], slope);
}

double
oct_profile_copy_s(const oct_profile *profile, gboolean to_device, double bytes) {
  const oct_curve *curve = to_device ? &profile->copy_to_device : &profile->copy_from_device;
  const oct_profile_pcie *pcie = &profile->pcie;
  if (curve->n > 0)
    return oct_curve_at(curve, bytes);
  return pcie->copy_latency_s + bytes / (to_device ? pcie->h2d_bytes_per_s : pcie->d2h_bytes_per_s);
}

const char *
oct_math_name(oct_math math) {
  static const char *const names[OCT_MATH_COUNT] = {"bfloat16", "fp8", "fp8_block", "fp4"};
  return (guint)math < OCT_MATH_COUNT ? names[math] : "?";
}

/* ---------------------------------------------------------------- the chain of files */

const oct_profile_file *
oct_profile_chain_find(const oct_profile_chain *chain, const char *group, const char *key) {
  for (guint32 i = 0; i < chain->n; i++)
    if (g_key_file_has_key(chain->files[i].keys, group, key, NULL))
      return &chain->files[i];
  return NULL;
}

gboolean
oct_profile_chain_has_group(const oct_profile_chain *chain, const char *group) {
  for (guint32 i = 0; i < chain->n; i++)
    if (g_key_file_has_group(chain->files[i].keys, group))
      return TRUE;
  return FALSE;
}

static void
chain_clear(oct_profile_chain *chain) {
  for (guint32 i = 0; i < chain->n; i++) {
    g_free(chain->files[i].label);
    g_key_file_unref(chain->files[i].keys);
  }
  chain->n = 0;
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(oct_profile_chain, chain_clear)

/* Appends one file's text to the chain. */
static gboolean
chain_add(oct_profile_chain *chain, const char *label, const char *text, gsize size,
          GError **error) {
  if (chain->n > OCT_PROFILE_BASES_MAX) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                "%s: more than %d profiles based on each other", chain->files[0].label,
                OCT_PROFILE_BASES_MAX);
    return FALSE;
  }
  if (size > OCT_PROFILE_FILE_MAX) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE,
                "%s: %" G_GSIZE_FORMAT " bytes are more than a profile's limit of %d", label, size,
                OCT_PROFILE_FILE_MAX);
    return FALSE;
  }
  if (memchr(text, '\0', size) != NULL || !g_utf8_validate(text, (gssize)size, NULL)) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE, "%s: not a text file", label);
    return FALSE;
  }
  g_autoptr(GKeyFile) keys = g_key_file_new();
  g_autoptr(GError) reason = NULL;
  if (size == 0 || !g_key_file_load_from_data(keys, text, size, G_KEY_FILE_NONE, &reason)) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE, "%s: %s", label,
                reason != NULL ? reason->message : "empty file");
    return FALSE;
  }
  chain->files[chain->n].label = g_strdup(label);
  chain->files[chain->n].keys = g_steal_pointer(&keys);
  chain->n++;
  return TRUE;
}

static gboolean
chain_add_file(oct_profile_chain *chain, const char *path, GError **error) {
  g_autofree char *text = NULL;
  gsize size = 0;
  g_autoptr(GError) reason = NULL;
  if (!oct_file_read(path, OCT_PROFILE_FILE_MAX, &text, &size, &reason)) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_NOT_FOUND, "%s: %s", path,
                reason->message);
    return FALSE;
  }
  return chain_add(chain, path, text, size, error);
}

/* A profile's name is a file name without a folder: no way out of the folders it is looked for in.
 */
static gboolean
is_plain_name(const char *name) {
  if (*name == '\0' || *name == '.' || strlen(name) > 100)
    return FALSE;
  for (const char *c = name; *c != '\0'; c++)
    if (!g_ascii_isalnum(*c) && strchr("-_.", *c) == NULL)
      return FALSE;
  return TRUE;
}

/* NULL when the folder has no such file, alone or among its fits. */
static char *
find_in(const char *folder, const char *name) {
  g_autofree char *file = g_strconcat(name, ".ini", NULL);
  g_autofree char *path = g_build_filename(folder, file, NULL);
  g_autofree char *fit = g_build_filename(folder, OCT_PROFILE_FITS, file, NULL);
  if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
    return g_steal_pointer(&path);
  return g_file_test(fit, G_FILE_TEST_IS_REGULAR) ? g_steal_pointer(&fit) : NULL;
}

/* The path of profile `name`: in `dir` if given, else in the folder of the file that names it as
 * its base (may be NULL), then in the built-in folders. */
static char *
find_path(const char *name, const char *dir, const char *beside, GError **error) {
  if (!is_plain_name(name)) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_NOT_FOUND,
                "'%.100s' is not a profile's name (letters, digits, '-', '_', '.')", name);
    return NULL;
  }
  char *path = NULL;
  if (dir != NULL)
    path = find_in(dir, name);
  else if (beside != NULL) {
    g_autofree char *folder = g_path_get_dirname(beside);
    path = find_in(folder, name);
  }
  const char *const *dirs = oct_profile_dirs();
  for (guint i = 0; dir == NULL && path == NULL && dirs[i] != NULL; i++)
    path = find_in(dirs[i], name);
  if (path == NULL) {
    g_autofree char *folders = dir != NULL ? g_strdup(dir) : g_strjoinv(", ", (char **)dirs);
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_NOT_FOUND, "no node profile '%s' in %s",
                name, folders);
  }
  return path;
}

/* Adds the base of the chain's last file, and its base, until there is none. */
static gboolean
chain_add_bases(oct_profile_chain *chain, const char *dir, GError **error) {
  for (;;) {
    const oct_profile_file *last = &chain->files[chain->n - 1];
    g_autofree char *base = g_key_file_get_value(last->keys, "profile", "base", NULL);
    if (base == NULL)
      return TRUE;
    g_autoptr(GError) reason = NULL;
    g_autofree char *path = find_path(g_strstrip(base), dir, last->label, &reason);
    if (path == NULL) {
      g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_NOT_FOUND, "%s: [profile] base: %s",
                  last->label, reason->message);
      return FALSE;
    }
    if (!chain_add_file(chain, path, error))
      return FALSE;
  }
}

/* Starts the chain from a name or a path. */
static gboolean
chain_open(oct_profile_chain *chain, const char *name, const char *dir, GError **error) {
  gboolean is_path = strchr(name, '/') != NULL || g_str_has_suffix(name, ".ini");
  g_autofree char *path = is_path ? g_strdup(name) : find_path(name, dir, NULL, error);
  return path != NULL && chain_add_file(chain, path, error) && chain_add_bases(chain, dir, error);
}

/* ---------------------------------------------------------------- life cycle */

static oct_profile *
read_chain(const oct_profile_chain *chain, const char *preset, GError **error) {
  g_autoptr(oct_profile) profile = g_new0(oct_profile, 1);
  profile->path = g_strdup(chain->files[0].label);
  profile->n_nodes = 1;
  if (!oct_profile_read_fields(profile, chain, preset, error))
    return NULL;
  return g_steal_pointer(&profile);
}

oct_profile *
oct_profile_load(const char *name, const char *dir, const char *preset, GError **error) {
  g_auto(oct_profile_chain) chain = {0};
  if (!chain_open(&chain, name, dir, error))
    return NULL;
  return read_chain(&chain, preset, error);
}

oct_profile *
oct_profile_parse(const char *label, const char *text, gsize size, const char *dir,
                  const char *preset, GError **error) {
  g_auto(oct_profile_chain) chain = {0};
  if (!chain_add(&chain, label, text, size, error) || !chain_add_bases(&chain, dir, error))
    return NULL;
  return read_chain(&chain, preset, error);
}

void
oct_profile_free(oct_profile *profile) {
  if (profile == NULL)
    return;
  g_free(profile->path);
  g_free(profile->name);
  g_free(profile->title);
  g_free(profile->measured);
  g_free(profile->gpu.name);
  g_free(profile->gpu.compute_capability);
  g_free(profile->gpu.gencode);
  g_free(profile->host.cpu);
  g_free(profile->engine.preset);
  g_free(profile);
}

/* ---------------------------------------------------------------- inspect */

const char *const *
oct_profile_dirs(void) {
  static const char *const dirs[] = {OCT_SOURCE_DIR "/sim/profiles", OCT_DATA_DIR "/profiles",
                                     NULL};
  return dirs;
}

static gint
compare_names(gconstpointer a, gconstpointer b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char **
oct_profile_list(const char *dir) {
  const char *one[] = {dir, NULL};
  const char *const *dirs = dir != NULL ? one : oct_profile_dirs();
  g_autoptr(GPtrArray) names = g_ptr_array_new();
  for (guint i = 0; dirs[i] != NULL; i++) {
    g_autoptr(GDir) folder = g_dir_open(dirs[i], 0, NULL);
    const char *file;
    while (folder != NULL && (file = g_dir_read_name(folder)) != NULL)
      if (g_str_has_suffix(file, ".ini"))
        g_ptr_array_add(names, g_strndup(file, strlen(file) - strlen(".ini")));
  }
  g_ptr_array_sort(names, compare_names);
  for (guint i = 1; i < names->len;)
    if (strcmp(names->pdata[i - 1], names->pdata[i]) == 0)
      g_free(g_ptr_array_remove_index(names, i));
    else
      i++;
  g_ptr_array_add(names, NULL);
  return (char **)g_ptr_array_free(g_steal_pointer(&names), FALSE);
}

char **
oct_profile_presets(const char *name, const char *dir, GError **error) {
  g_auto(oct_profile_chain) chain = {0};
  if (!chain_open(&chain, name, dir, error))
    return NULL;
  return oct_profile_read_presets(&chain, error);
}
