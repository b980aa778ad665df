/* The profile that a calibration becomes. Every figure has its origin above it. */
#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "sim/calibrate/calibration.h"

typedef struct entry {
  char *group, *key, *note, *text;
} entry;

struct oct_calibration {
  char *name, *title, *base, *stamp;
  GPtrArray *entries; /* entry */
  GArray *tables;     /* oct_timed, whole */
};

static void
entry_free(gpointer data) {
  entry *e = data;
  g_free(e->group);
  g_free(e->key);
  g_free(e->note);
  g_free(e->text);
  g_free(e);
}

oct_calibration *
oct_calibration_new(const char *name, const char *title, const char *base, const char *stamp) {
  oct_calibration *c = g_new0(oct_calibration, 1);
  c->name = g_strdup(name);
  c->title = g_strdup(title);
  c->base = g_strdup(base);
  c->stamp = g_strdup(stamp);
  c->entries = g_ptr_array_new_with_free_func(entry_free);
  c->tables = g_array_new(FALSE, FALSE, sizeof(oct_timed));
  return c;
}

void
oct_calibration_free(oct_calibration *calibration) {
  if (calibration == NULL)
    return;
  g_free(calibration->name);
  g_free(calibration->title);
  g_free(calibration->base);
  g_free(calibration->stamp);
  g_ptr_array_unref(calibration->entries);
  g_array_unref(calibration->tables);
  g_free(calibration);
}

/* ---------------------------------------------------------------- values */

void
oct_calibration_set_text(oct_calibration *c, const char *group, const char *key, const char *note,
                         const char *text) {
  entry *e = NULL;
  for (guint i = 0; i < c->entries->len && e == NULL; i++) {
    entry *old = c->entries->pdata[i];
    if (strcmp(old->group, group) == 0 && strcmp(old->key, key) == 0)
      e = old;
  }
  if (e == NULL) {
    e = g_new0(entry, 1);
    e->group = g_strdup(group);
    e->key = g_strdup(key);
    g_ptr_array_add(c->entries, e);
  }
  g_free(e->note);
  g_free(e->text);
  e->note = g_strdup(note);
  e->text = g_strdup(text);
}

static void
append_number(GString *text, double value) {
  char buffer[G_ASCII_DTOSTR_BUF_SIZE];
  g_string_append(
      text, g_ascii_formatd(buffer, sizeof buffer, fabs(value) >= 1e6 ? "%.0f" : "%.6g", value));
}

void
oct_calibration_set(oct_calibration *c, const char *group, const char *key, const char *note,
                    double value) {
  g_autoptr(GString) text = g_string_new(NULL);
  append_number(text, value);
  oct_calibration_set_text(c, group, key, note, text->str);
}

void
oct_calibration_set_list(oct_calibration *c, const char *group, const char *key, const char *note,
                         const double *values, guint n) {
  g_autoptr(GString) text = g_string_new(NULL);
  for (guint i = 0; i < n; i++) {
    append_number(text, values[i]);
    g_string_append_c(text, ';');
  }
  oct_calibration_set_text(c, group, key, note, text->str);
}

gboolean
oct_calibration_set_numa(oct_calibration *c, const gint *nodes, guint n) {
  double values[OCT_PROFILE_GPUS_MAX];
  for (guint i = 0; i < n; i++) {
    if (nodes[i] < 0 || nodes[i] >= OCT_PROFILE_GPUS_MAX)
      return FALSE;
    values[i] = nodes[i];
  }
  oct_calibration_set_list(c, "topology", "gpu_numa_node", "as the system tells", values, n);
  return TRUE;
}

void
oct_calibration_drop(oct_calibration *c, const char *group) {
  for (guint i = c->entries->len; i-- > 0;)
    if (strcmp(((const entry *)c->entries->pdata[i])->group, group) == 0)
      g_ptr_array_remove_index(c->entries, i);
}

/* ---------------------------------------------------------------- tables */

/* Whether the first n_x by n_y points have times. */
static gboolean
is_whole(const oct_timed *table, guint32 n_x, guint32 n_y) {
  for (guint32 i = 0; i < n_x; i++)
    for (guint32 j = 0; j < n_y; j++)
      if (!(table->seconds[i * table->n_y + j] > 0))
        return FALSE;
  return TRUE;
}

void
oct_calibration_add(oct_calibration *c, const oct_timed *table) {
  guint32 best_x = 0, best_y = 0;
  for (guint32 x = 1; x <= table->n_x; x++)
    for (guint32 y = 1; y <= table->n_y; y++)
      if (x * y > best_x * best_y && is_whole(table, x, y)) {
        best_x = x;
        best_y = y;
      }
  if (best_x * best_y == 0)
    return;
  oct_timed cut = *table;
  cut.n_x = best_x;
  cut.n_y = best_y;
  for (guint32 i = 0; i < best_x; i++)
    memmove(&cut.seconds[i * best_y], &table->seconds[i * table->n_y],
            best_y * sizeof *cut.seconds);
  g_array_append_val(c->tables, cut);
}

static void
write_axis(GString *out, const char *name, const double *values, guint32 n, double scale) {
  g_string_append_printf(out, "%s=", name);
  for (guint32 i = 0; i < n; i++) {
    append_number(out, values[i] * scale);
    g_string_append_c(out, ';');
  }
  g_string_append_c(out, '\n');
}

static void
write_table(const oct_calibration *c, GString *out, const oct_timed *table) {
  const oct_timed_form *form = oct_timed_form_of(table->kind);
  g_autofree char *group = oct_timed_group(table);
  g_string_append_printf(out, "\n# %s\n[%s]\n", c->stamp, group);
  write_axis(out, form->x, table->x, table->n_x, 1);
  if (form->y != NULL)
    write_axis(out, form->y, table->y, table->n_y, 1);
  write_axis(out, "us", table->seconds, table->n_x * table->n_y, 1e6);
}

/* ---------------------------------------------------------------- the file */

static void
write_group(const oct_calibration *c, GString *out, guint first) {
  const entry *head = c->entries->pdata[first];
  g_string_append_printf(out, "\n[%s]\n", head->group);
  for (guint i = first; i < c->entries->len; i++) {
    const entry *e = c->entries->pdata[i];
    if (strcmp(e->group, head->group) == 0)
      g_string_append_printf(out, "# %s%s%s\n%s=%s\n", c->stamp, e->note != NULL ? ": " : "",
                             e->note != NULL ? e->note : "", e->key, e->text);
  }
}

char *
oct_calibration_text(const oct_calibration *c) {
  GString *out =
      g_string_new("# Node profile, written by octet calibrate. GKeyFile syntax: comments "
                   "stand on their own lines, lists\n# end in ';', units end the key "
                   "names. What is not here is as in the base.\n\n[profile]\n");
  g_string_append_printf(out,
                         "# version of this layout\nschema=1\n# profile id\nname=%s\n# free text\n"
                         "title=%s\n# what is not here is as in that profile\nbase=%s\n",
                         c->name, c->title, c->base);
  for (guint i = 0; i < c->entries->len; i++) {
    const entry *e = c->entries->pdata[i];
    gboolean first = TRUE;
    for (guint k = 0; k < i; k++)
      first &= strcmp(((const entry *)c->entries->pdata[k])->group, e->group) != 0;
    if (first)
      write_group(c, out, i);
  }
  for (guint i = 0; i < c->tables->len; i++)
    write_table(c, out, &g_array_index(c->tables, oct_timed, i));
  return g_string_free(out, FALSE);
}
