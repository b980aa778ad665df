/* Groups [measured KIND (TYPE) SHAPE…] of a node profile: times of kernels on this very machine.
 * The group's name says what was timed, its keys are the axes and the microseconds, of two axes row
 * by row. */
#include <string.h>

#include "engine/base/assert.h"
#include "sim/profile-read.h"

#define PREFIX    "measured "
#define AXIS_MAX  1e9
#define US_MIN    1e-3
#define US_MAX    1e9
#define SHAPE_TOP (1u << 24)

static const oct_timed_form forms[OCT_TIMED_KINDS] = {
    [OCT_TIMED_PRODUCT] = {"product", TRUE, 2, "m", NULL},
    [OCT_TIMED_DECODE] = {"decode", TRUE, 3, "batch", "context"},
    [OCT_TIMED_MLA_DECODE] = {"mla-decode", TRUE, 3, "batch", "context"},
    [OCT_TIMED_PREFILL] = {"prefill", TRUE, 3, "tokens", "before"},
    [OCT_TIMED_VERIFY] = {"verify", TRUE, 4, "batch", "tokens"},
    [OCT_TIMED_EXPERTS] = {"experts", TRUE, 4, "tokens", NULL},
    [OCT_TIMED_NORM] = {"norm", FALSE, 1, "rows", NULL},
    [OCT_TIMED_ROTATE] = {"rotate", FALSE, 3, "tokens", NULL},
    [OCT_TIMED_ACTIVATION] = {"activation", FALSE, 1, "rows", NULL},
    [OCT_TIMED_SAMPLE] = {"sample", FALSE, 1, "rows", NULL},
    [OCT_TIMED_ROUTE] = {"route", FALSE, 2, "tokens", NULL},
};

const oct_timed_form *
oct_timed_form_of(oct_timed_kind kind) {
  oct_assert((guint)kind < OCT_TIMED_KINDS);
  return &forms[kind];
}

char *
oct_timed_group(const oct_timed *table) {
  const oct_timed_form *form = oct_timed_form_of(table->kind);
  GString *name = g_string_new(PREFIX);
  g_string_append(name, form->name);
  if (form->typed)
    g_string_append_printf(name, " %s", oct_dtype_name(table->type));
  for (guint32 i = 0; i < form->n_shape; i++)
    g_string_append_printf(name, " %u", table->shape[i]);
  return g_string_free(name, FALSE);
}

gboolean
oct_profile_is_measured(const char *group) {
  return g_str_has_prefix(group, PREFIX);
}

double
oct_step_ratio_at(const oct_curve *curve, double tokens) {
  const guint32 n = curve->n;
  if (n == 0)
    return 1;
  if (tokens <= curve->x[0])
    return curve->y[0];
  guint32 i = 0;
  while (i + 1 < n && curve->x[i + 1] <= tokens)
    i++;
  if (i + 1 == n)
    return curve->y[i];
  double t = (tokens - curve->x[i]) / (curve->x[i + 1] - curve->x[i]);
  return curve->y[i] + (curve->y[i + 1] - curve->y[i]) * t;
}

/* Of a graph's step of so many tokens, at the mean context of its decodes. */
static double
graph_ratio(const oct_step_ratio *r, double tokens, double context) {
  const double there = oct_step_ratio_at(&r->graph, tokens);
  if (r->graph_short.n == 0 || context >= r->graph_context)
    return there;
  const double near = oct_step_ratio_at(&r->graph_short, tokens);
  const double span = r->graph_context - r->graph_short_context;
  return near + (there - near) * MAX(0, (context - r->graph_short_context) / span);
}

double
oct_step_ratio_of(const oct_step_ratio *r, const oct_ratio_step *step) {
  if (step->verifies && r->verify.n > 0)
    return oct_step_ratio_at(&r->verify, step->tokens);
  if (step->graph)
    return graph_ratio(r, step->tokens, step->context);
  return oct_step_ratio_at(step->mixed && r->mixed.n > 0 ? &r->mixed : &r->eager, step->tokens);
}

/* ---------------------------------------------------------------- reading */

static gboolean
bad_name(const char *label, const char *group, const char *why, GError **error) {
  g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_UNKNOWN, "%s: [%.80s]: %s", label, group,
              why);
  return FALSE;
}

static gboolean
parse_type(const char *word, oct_dtype *type) {
  for (int t = OCT_DTYPE_F32; word != NULL && t < OCT_DTYPE_COUNT; t++)
    if (strcmp(oct_dtype_name((oct_dtype)t), word) == 0) {
      *type = (oct_dtype)t;
      return TRUE;
    }
  return FALSE;
}

/* The kind, type and shape that a group's name says. */
static gboolean
parse_name(const char *label, const char *group, oct_timed *table, GError **error) {
  g_auto(GStrv) words = g_strsplit(group + strlen(PREFIX), " ", 0);
  guint kind = 0, at = 1;
  const guint n = g_strv_length(words);
  while (kind < OCT_TIMED_KINDS && (n == 0 || strcmp(forms[kind].name, words[0]) != 0))
    kind++;
  if (kind == OCT_TIMED_KINDS)
    return bad_name(label, group, "no such kind of kernel is known", error);
  const oct_timed_form *form = &forms[kind];
  table->kind = (oct_timed_kind)kind;
  table->type = OCT_DTYPE_BF16;
  if (form->typed && !parse_type(words[at++], &table->type))
    return bad_name(label, group, "its second word is not a type", error);
  if (n != at + form->n_shape)
    return bad_name(label, group, "its name has too few or too many words", error);
  for (guint32 i = 0; i < form->n_shape; i++) {
    guint64 value;
    if (!g_ascii_string_to_unsigned(words[at + i], 10, 0, SHAPE_TOP, &value, NULL))
      return bad_name(label, group, "a shape is of whole numbers up to 16777216", error);
    table->shape[i] = (guint32)value;
  }
  return TRUE;
}

static gboolean
read_axis(const oct_profile_chain *chain, const char *group, const char *key, double *out,
          guint32 *n, GError **error) {
  if (!oct_profile_read_list(chain, group, key, 0, AXIS_MAX, 1, OCT_TIMED_POINTS_MAX, out, n,
                             error))
    return FALSE;
  for (guint32 i = 1; i < *n; i++)
    if (out[i] <= out[i - 1]) {
      g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                  "%s: [%s] %s: %g after %g: an axis must rise",
                  oct_profile_chain_find(chain, group, key)->label, group, key, out[i], out[i - 1]);
      return FALSE;
    }
  return TRUE;
}

static gboolean
check_keys(const oct_profile_file *file, const char *group, const oct_timed_form *form,
           GError **error) {
  g_auto(GStrv) keys = g_key_file_get_keys(file->keys, group, NULL, NULL);
  for (guint k = 0; keys != NULL && keys[k] != NULL; k++)
    if (strcmp(keys[k], "us") != 0 && strcmp(keys[k], form->x) != 0 &&
        (form->y == NULL || strcmp(keys[k], form->y) != 0)) {
      g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_UNKNOWN,
                  "%s: [%s] %.60s is not a key of a measured table", file->label, group, keys[k]);
      return FALSE;
    }
  return TRUE;
}

static gboolean
read_table(const oct_profile_chain *chain, const oct_profile_file *file, const char *group,
           oct_timed *table, GError **error) {
  if (!parse_name(file->label, group, table, error))
    return FALSE;
  const oct_timed_form *form = &forms[table->kind];
  guint32 n = 0;
  table->n_y = 1;
  if (!check_keys(file, group, form, error) ||
      !read_axis(chain, group, form->x, table->x, &table->n_x, error) ||
      (form->y != NULL && !read_axis(chain, group, form->y, table->y, &table->n_y, error)))
    return FALSE;
  const guint32 points = table->n_x * table->n_y;
  if (!oct_profile_read_list(chain, group, "us", US_MIN, US_MAX, points, points, table->seconds, &n,
                             error))
    return FALSE;
  for (guint32 i = 0; i < n; i++)
    table->seconds[i] *= 1e-6;
  return TRUE;
}

static gboolean
check_ratio(const oct_profile *p, const oct_profile_chain *chain, GError **error) {
  const oct_step_ratio *r = &p->step_ratio;
  if (r->graph_short.n == 0 || r->graph_short_context < r->graph_context)
    return TRUE;
  g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
              "%s: [step_ratio] graph_short_context: %g is not below %g, which is graph_context",
              oct_profile_chain_find(chain, "step_ratio", "graph_short_context")->label,
              r->graph_short_context, r->graph_context);
  return FALSE;
}

gboolean
oct_profile_read_measured(oct_profile *profile, const oct_profile_chain *chain, GError **error) {
  g_autoptr(GArray) tables = g_array_new(FALSE, TRUE, sizeof(oct_timed));
  for (guint32 f = 0; f < chain->n; f++) {
    g_auto(GStrv) groups = g_key_file_get_groups(chain->files[f].keys, NULL);
    for (guint g = 0; groups[g] != NULL; g++) {
      gboolean overridden = FALSE;
      for (guint32 i = 0; i < f; i++)
        overridden |= g_key_file_has_group(chain->files[i].keys, groups[g]);
      if (!oct_profile_is_measured(groups[g]) || overridden)
        continue;
      if (tables->len == OCT_TIMED_MAX) {
        g_set_error(error, OCT_PROFILE_ERROR, OCT_PROFILE_ERROR_RANGE,
                    "%s: more than %d measured tables", chain->files[f].label, OCT_TIMED_MAX);
        return FALSE;
      }
      g_array_set_size(tables, tables->len + 1);
      if (!read_table(chain, &chain->files[f], groups[g],
                      &g_array_index(tables, oct_timed, tables->len - 1), error))
        return FALSE;
    }
  }
  profile->n_measured = tables->len;
  profile->measured = (oct_timed *)(void *)g_array_free(g_steal_pointer(&tables), FALSE);
  return check_ratio(profile, chain, error);
}
