/* A key file (GKeyFile) whose errors name the line: what audits and scenarios are written in.
 *
 * GKeyFile reads the text; this module adds where each key stands, refuses what GKeyFile lets pass
 * (a group or a key that is there twice, of which it would keep the last), and limits sizes. Groups
 * and keys keep the order of the file. Plain data once read: any thread.
 */
#ifndef OCT_SIM_INI_H
#define OCT_SIM_INI_H

#include <glib.h>

/* Limits: beyond them loading fails with an error that names the value and the limit. */
#define OCT_INI_BYTES_MAX  (1u << 20)
#define OCT_INI_GROUPS_MAX 256u
#define OCT_INI_KEYS_MAX   128u /* of a group */

#define OCT_INI_ERROR (oct_ini_error_quark())
GQuark oct_ini_error_quark(void);
typedef enum oct_ini_error {
  OCT_INI_ERROR_READ,    /* the file cannot be read */
  OCT_INI_ERROR_SYNTAX,  /* not a key file, too large, or something is there twice */
  OCT_INI_ERROR_UNKNOWN, /* a group or key that does not exist */
  OCT_INI_ERROR_VALUE,   /* a value of the wrong kind or out of range */
  OCT_INI_ERROR_MISSING, /* a key that must be there */
} oct_ini_error;

typedef struct oct_ini_entry {
  const char *group, *key, *value; /* borrowed from the file; the value without blanks around it */
  guint line;                      /* from 1 */
} oct_ini_entry;

typedef struct oct_ini_group {
  const char *name;
  guint line;
  GArray *entries; /* of oct_ini_entry */
} oct_ini_group;

typedef struct oct_ini oct_ini;

/* Life cycle. NULL with *error. `label` names the text in errors. */
oct_ini *oct_ini_load(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_ini *oct_ini_parse(const char *label, const char *text, gsize size,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_ini_free(oct_ini *ini); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_ini, oct_ini_free)

/* Inspect. */
const char *oct_ini_label(const oct_ini *ini);
guint oct_ini_n_groups(const oct_ini *ini);
const oct_ini_group *oct_ini_group_at(const oct_ini *ini, guint index);
/* NULL when there is none. */
const oct_ini_entry *oct_ini_find(const oct_ini_group *group, const char *key);

/* Sets *error to "FILE:LINE: [group] key = value: what is wrong"; always FALSE. */
gboolean oct_ini_refuse(const oct_ini *ini, const oct_ini_entry *entry, oct_ini_error code,
                        GError **error, const char *format, ...) G_GNUC_PRINTF(5, 6);
/* The same of a group as a whole: "FILE:LINE: [group]: what is wrong". */
gboolean oct_ini_refuse_group(const oct_ini *ini, const oct_ini_group *group, oct_ini_error code,
                              GError **error, const char *format, ...) G_GNUC_PRINTF(5, 6);

#endif
