/* Single values of a node profile: each with its type and range checked, each error naming file,
 * group, key and value. */
#include <math.h>
#include <string.h>

#include "sim/profile-read.h"

#define PROFILE_STRING_MAX 256

gboolean
oct_profile_missing(const oct_profile_chain *chain, const char *group, const char *key,
                    GError **error) {
  g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_MISSING, "%s: [%s] %s is missing",
              chain->files[0].label, group, key);
  return FALSE;
}

static gboolean
parse_number(const char *label, const char *group, const char *key, const char *text, double min,
             double max, double *out, GError **error) {
  char *end = NULL;
  double value = g_ascii_strtod(text, &end);
  while (end != NULL && g_ascii_isspace(*end))
    end++;
  /* strtod reads "nan", "inf" and hexadecimal too; a profile has plain decimal numbers. */
  if (end == text || *end != '\0' || !isfinite(value) || strpbrk(text, "xXnN") != NULL) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE,
                "%s: [%s] %s: '%.60s' is not a number", label, group, key, text);
    return FALSE;
  }
  if (value < min || value > max) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                "%s: [%s] %s: %g is not within %g and %g", label, group, key, value, min, max);
    return FALSE;
  }
  *out = value;
  return TRUE;
}

char *
oct_profile_take_value(const oct_profile_chain *chain, const char *group, const char *key,
                       const char **label) {
  const oct_profile_file *file = oct_profile_chain_find(chain, group, key);
  if (file == NULL)
    return NULL;
  *label = file->label;
  return g_strstrip(g_key_file_get_value(file->keys, group, key, NULL));
}

gboolean
oct_profile_read_string(const oct_profile_chain *chain, const char *group, const char *key,
                        char **out, GError **error) {
  const char *label;
  g_autofree char *text = oct_profile_take_value(chain, group, key, &label);
  if (text == NULL)
    return oct_profile_missing(chain, group, key, error);
  if (*text == '\0' || strlen(text) > PROFILE_STRING_MAX) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                "%s: [%s] %s: %" G_GSIZE_FORMAT " characters are not within 1 and %d", label, group,
                key, strlen(text), PROFILE_STRING_MAX);
    return FALSE;
  }
  g_free(*out);
  *out = g_steal_pointer(&text);
  return TRUE;
}

gboolean
oct_profile_read_double(const oct_profile_chain *chain, const char *group, const char *key,
                        double min, double max, double *out, GError **error) {
  const char *label;
  g_autofree char *text = oct_profile_take_value(chain, group, key, &label);
  if (text == NULL)
    return oct_profile_missing(chain, group, key, error);
  return parse_number(label, group, key, text, min, max, out, error);
}

gboolean
oct_profile_read_u32(const oct_profile_chain *chain, const char *group, const char *key, double min,
                     double max, guint32 *out, GError **error) {
  double value;
  if (!oct_profile_read_double(chain, group, key, min, max, &value, error))
    return FALSE;
  if (value != floor(value)) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE,
                "%s: [%s] %s: %g is not a whole number",
                oct_profile_chain_find(chain, group, key)->label, group, key, value);
    return FALSE;
  }
  *out = (guint32)value;
  return TRUE;
}

gboolean
oct_profile_read_list(const oct_profile_chain *chain, const char *group, const char *key,
                      double min, double max, guint32 n_min, guint32 n_max, double *out, guint32 *n,
                      GError **error) {
  const char *label;
  g_autofree char *text = oct_profile_take_value(chain, group, key, &label);
  if (text == NULL)
    return oct_profile_missing(chain, group, key, error);
  g_auto(GStrv) parts = g_strsplit(text, ";", (gint)n_max + 2);
  guint32 count = g_strv_length(parts);
  if (count > 0 && *g_strstrip(parts[count - 1]) == '\0')
    count--; /* the list's closing ';' */
  if (count < n_min || count > n_max) {
    g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                "%s: [%s] %s: %s%u values are not within %u and %u", label, group, key,
                count > n_max ? "at least " : "", count, n_min, n_max);
    return FALSE;
  }
  for (guint32 i = 0; i < count; i++)
    if (!parse_number(label, group, key, g_strstrip(parts[i]), min, max, &out[i], error))
      return FALSE;
  *n = count;
  return TRUE;
}

gboolean
oct_profile_read_bytes(const oct_profile_chain *chain, const char *group, const char *key,
                       double max, guint32 n_min, guint32 n_max, guint8 *out, guint32 *n,
                       GError **error) {
  double values[OCT_PROFILE_POINTS_MAX];
  if (!oct_profile_read_list(chain, group, key, 0, max, n_min, n_max, values, n, error))
    return FALSE;
  for (guint32 i = 0; i < *n; i++) {
    if (values[i] != floor(values[i])) {
      g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_PARSE,
                  "%s: [%s] %s: %g is not a whole number",
                  oct_profile_chain_find(chain, group, key)->label, group, key, values[i]);
      return FALSE;
    }
    out[i] = (guint8)values[i];
  }
  return TRUE;
}
