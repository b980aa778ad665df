/* An audit as a whole: groups, checks across groups, and the report. */
#include "sim/audit/audit.h"

#include <string.h>

#include "sim/audit/internal.h"

#define REPORT "report"

const char *
oct_claim_verdict_name(oct_claim_verdict verdict) {
  static const char *const names[] = {"unchecked", "consistent", "inconsistent", "impossible"};
  return names[verdict];
}

/* ---------------------------------------------------------------- across groups */

static gboolean
same_conditions(const oct_audit_group *a, const oct_audit_group *b) {
  for (int k = 0; k < OCT_AUDIT_SETTINGS; k++)
    if ((a->entries[k] == NULL) != (b->entries[k] == NULL) || a->values[k] != b->values[k])
      return FALSE;
  for (int w = OCT_AUDIT_MODEL; w < OCT_AUDIT_WORDS; w++)
    if (g_strcmp0(a->words[w], b->words[w]) != 0)
      return FALSE;
  return TRUE;
}

/* Two groups that state one quantity under the same conditions should state the same. */
static void
check_across(GArray *groups) {
  for (guint i = 1; i < groups->len; i++)
    for (guint j = 0; j < i; j++) {
      oct_audit_group *g = &g_array_index(groups, oct_audit_group, i);
      const oct_audit_group *other = &g_array_index(groups, oct_audit_group, j);
      if (!same_conditions(g, other))
        continue;
      for (int k = OCT_AUDIT_SETTINGS; k < OCT_AUDIT_KEYS; k++) {
        if (!oct_audit_owns(g, (oct_audit_key)k) || !oct_audit_owns(other, (oct_audit_key)k) ||
            oct_audit_agree(g->values[k], other->values[k]))
          continue;
        g_autofree char *here = oct_audit_format((oct_audit_key)k, g->values[k]);
        g_autofree char *there = oct_audit_format((oct_audit_key)k, other->values[k]);
        oct_audit_note(g, g->entries[k], "one quantity", OCT_CLAIM_INCONSISTENT,
                       "%s here and %s in [%s], under the same conditions", here, there,
                       other->text->name);
      }
    }
}

/* ---------------------------------------------------------------- the report */

static json_t *
claim_json(const oct_audit_group *g, const oct_ini_entry *entry, oct_claim_verdict *worst) {
  json_t *checks = json_array();
  oct_claim_verdict verdict = OCT_CLAIM_UNCHECKED;
  for (guint i = 0; i < g->checks->len; i++) {
    const oct_audit_check *check = &g_array_index(g->checks, oct_audit_check, i);
    if (check->entry != entry)
      continue;
    verdict = MAX(verdict, check->verdict);
    json_array_append_new(checks, json_pack("{s:s, s:s, s:s}", "check", check->name, "verdict",
                                            oct_claim_verdict_name(check->verdict), "arithmetic",
                                            check->text));
  }
  *worst = MAX(*worst, verdict);
  return json_pack("{s:s, s:s, s:i, s:s, s:o}", "key", entry->key, "value", entry->value, "line",
                   (int)entry->line, "verdict", oct_claim_verdict_name(verdict), "checks", checks);
}

/* Conditions are claims too where a check had something to say of them. */
static gboolean
is_claim(const oct_audit_group *g, const oct_ini_entry *entry) {
  for (guint i = 0; i < g->checks->len; i++)
    if (g_array_index(g->checks, oct_audit_check, i).entry == entry)
      return TRUE;
  for (int k = OCT_AUDIT_SETTINGS; k < OCT_AUDIT_KEYS; k++)
    if (g->entries[k] == entry)
      return TRUE;
  return g->word_entries[OCT_AUDIT_NVLINK] == entry;
}

static json_t *
group_json(const oct_audit_group *g, oct_claim_verdict *worst) {
  json_t *claims = json_array(), *conditions = json_object();
  oct_claim_verdict verdict = OCT_CLAIM_UNCHECKED;
  for (guint i = 0; i < g->text->entries->len; i++) {
    const oct_ini_entry *entry = &g_array_index(g->text->entries, oct_ini_entry, i);
    if (is_claim(g, entry))
      json_array_append_new(claims, claim_json(g, entry, &verdict));
    else
      json_object_set_new(conditions, entry->key, json_string(entry->value));
  }
  *worst = MAX(*worst, verdict);
  return json_pack("{s:s, s:s, s:o, s:o}", "group", g->text->name, "verdict",
                   oct_claim_verdict_name(verdict), "conditions", conditions, "claims", claims);
}

static json_t *
report_json(const oct_ini *ini, GArray *groups) {
  json_t *list = json_array();
  oct_claim_verdict worst = OCT_CLAIM_UNCHECKED;
  int counts[OCT_CLAIM_IMPOSSIBLE + 1] = {0};
  for (guint i = 0; i < groups->len; i++) {
    json_t *group = group_json(&g_array_index(groups, oct_audit_group, i), &worst), *claim;
    gsize c;
    json_array_foreach(json_object_get(group, "claims"), c, claim) {
      const char *name = json_string_value(json_object_get(claim, "verdict"));
      for (int v = 0; v <= OCT_CLAIM_IMPOSSIBLE; v++)
        counts[v] += strcmp(name, oct_claim_verdict_name((oct_claim_verdict)v)) == 0;
    }
    json_array_append_new(list, group);
  }
  return json_pack("{s:s, s:s, s:s, s:{s:i, s:i, s:i, s:i}, s:o}", "schema", OCT_AUDIT_SCHEMA,
                   "file", oct_ini_label(ini), "verdict", oct_claim_verdict_name(worst), "claims",
                   "consistent", counts[OCT_CLAIM_CONSISTENT], "inconsistent",
                   counts[OCT_CLAIM_INCONSISTENT], "impossible", counts[OCT_CLAIM_IMPOSSIBLE],
                   "unchecked", counts[OCT_CLAIM_UNCHECKED], "groups", list);
}

/* ---------------------------------------------------------------- the audit */

static gboolean
read_groups(const oct_ini *ini, const char *zoo_dir, GArray *groups, GError **error) {
  if (oct_ini_n_groups(ini) == 0 || strcmp(oct_ini_group_at(ini, 0)->name, REPORT) != 0) {
    g_set_error(error, OCT_INI_ERROR, OCT_INI_ERROR_MISSING,
                "%s: the first group must be [%s], with what holds for all claims",
                oct_ini_label(ini), REPORT);
    return FALSE;
  }
  for (guint i = 0; i < oct_ini_n_groups(ini); i++) {
    g_array_set_size(groups, i + 1);
    const oct_audit_group *report = i > 0 ? &g_array_index(groups, oct_audit_group, 0) : NULL;
    if (!oct_audit_read(ini, oct_ini_group_at(ini, i), report, zoo_dir,
                        &g_array_index(groups, oct_audit_group, i), error))
      return FALSE;
  }
  return TRUE;
}

static json_t *
audit(const oct_ini *ini, const char *zoo_dir, GError **error) {
  g_autoptr(GArray) groups = g_array_new(FALSE, TRUE, sizeof(oct_audit_group));
  g_array_set_clear_func(groups, oct_audit_group_clear);
  if (!read_groups(ini, zoo_dir, groups, error))
    return NULL;
  for (guint i = 0; i < groups->len; i++) {
    oct_audit_group *g = &g_array_index(groups, oct_audit_group, i);
    oct_audit_check_traffic(g);
    oct_audit_check_machine(g);
    oct_audit_check_memory(g);
    oct_audit_check_floor(g);
  }
  check_across(groups);
  return report_json(ini, groups);
}

json_t *
oct_audit_run(const char *path, const char *zoo_dir, GError **error) {
  g_autoptr(oct_ini) ini = oct_ini_load(path, error);
  return ini != NULL ? audit(ini, zoo_dir, error) : NULL;
}

json_t *
oct_audit_text(const char *label, const char *text, gsize size, const char *zoo_dir,
               GError **error) {
  g_autoptr(oct_ini) ini = oct_ini_parse(label, text, size, error);
  return ini != NULL ? audit(ini, zoo_dir, error) : NULL;
}

/* ---------------------------------------------------------------- for people */

static const char *
text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text != NULL ? text : "";
}

/* A paragraph behind an indent, broken between words. */
static void
print_folded(FILE *out, const char *text, guint indent, guint columns) {
  g_auto(GStrv) parts = g_strsplit(text, " ", -1);
  guint at = indent;
  fprintf(out, "%*s", (int)indent, "");
  for (char **word = parts; *word != NULL; word++) {
    guint length = (guint)g_utf8_strlen(*word, -1);
    if (at > indent && at + 1 + length > columns) {
      fprintf(out, "\n%*s", (int)indent, "");
      at = indent;
    }
    fprintf(out, "%s%s", at > indent ? " " : "", *word);
    at += length + (at > indent);
  }
  fputc('\n', out);
}

static void
print_group(FILE *out, const json_t *group) {
  gsize i, k;
  const char *key;
  json_t *claim, *check, *value;
  fprintf(out, "\n[%s]\n", text_of(group, "group"));
  json_object_foreach(json_object_get(group, "conditions"), key, value)
      fprintf(out, "  %-28s %s\n", key, json_string_value(value));
  json_array_foreach(json_object_get(group, "claims"), i, claim) {
    fprintf(out, "  %-28s %-16s %s\n", text_of(claim, "key"), text_of(claim, "value"),
            text_of(claim, "verdict"));
    json_array_foreach(json_object_get(claim, "checks"), k, check) {
      g_autofree char *line =
          g_strdup_printf("%s (%s): %s", text_of(check, "verdict"), text_of(check, "check"),
                          text_of(check, "arithmetic"));
      print_folded(out, line, 6, 100);
    }
  }
}

void
oct_audit_print(FILE *out, const json_t *report) {
  gsize i;
  json_t *group;
  const json_t *counts = json_object_get(report, "claims");
  fprintf(out, "%s: %s\n", text_of(report, "file"), text_of(report, "verdict"));
  json_array_foreach(json_object_get(report, "groups"), i, group) print_group(out, group);
  fprintf(out, "\n%d consistent, %d inconsistent, %d impossible, %d unchecked\n",
          (int)json_integer_value(json_object_get(counts, "consistent")),
          (int)json_integer_value(json_object_get(counts, "inconsistent")),
          (int)json_integer_value(json_object_get(counts, "impossible")),
          (int)json_integer_value(json_object_get(counts, "unchecked")));
}
