/* Inside the profile reader: the chain of files that a profile is read from, and the table of keys.
 * Only sim/profile*.c include this. */
#ifndef OCT_SIM_PROFILE_READ_H
#define OCT_SIM_PROFILE_READ_H

#include "sim/profile.h"

/* One file of the chain: the profile itself first, then its base, the base's base … */
typedef struct oct_profile_file {
  char *label; /* what errors call it */
  GKeyFile *keys;
} oct_profile_file;

typedef struct oct_profile_chain {
  guint32 n;
  oct_profile_file files[OCT_PROFILE_BASES_MAX + 1];
} oct_profile_chain;

/* The file that gives [group] key, NULL when none does. Borrowed. */
const oct_profile_file *oct_profile_chain_find(const oct_profile_chain *chain, const char *group,
                                               const char *key);
gboolean oct_profile_chain_has_group(const oct_profile_chain *chain, const char *group);

/* Sets *error to "[group] key is missing"; always FALSE. */
gboolean oct_profile_missing(const oct_profile_chain *chain, const char *group, const char *key,
                             GError **error);
/* The text of a key and the label of its file; NULL when there is none. Owned. */
char *oct_profile_take_value(const oct_profile_chain *chain, const char *group, const char *key,
                             const char **label);
/* One value, which must be there: into *out (a string replaces and frees what it held). */
gboolean oct_profile_read_string(const oct_profile_chain *chain, const char *group, const char *key,
                                 char **out, GError **error);
gboolean oct_profile_read_double(const oct_profile_chain *chain, const char *group, const char *key,
                                 double min, double max, double *out, GError **error);
gboolean oct_profile_read_u32(const oct_profile_chain *chain, const char *group, const char *key,
                              double min, double max, guint32 *out, GError **error);
/* A list of n_min to n_max values; *n is how many. */
gboolean oct_profile_read_list(const oct_profile_chain *chain, const char *group, const char *key,
                               double min, double max, guint32 n_min, guint32 n_max, double *out,
                               guint32 *n, GError **error);
gboolean oct_profile_read_bytes(const oct_profile_chain *chain, const char *group, const char *key,
                                double max, guint32 n_min, guint32 n_max, guint8 *out, guint32 *n,
                                GError **error);

/* Reads every key of the table into *profile (zeroed before). `preset` as in oct_profile_load(). */
gboolean oct_profile_read_fields(oct_profile *profile, const oct_profile_chain *chain,
                                 const char *preset, GError **error);
/* Tables of groups [measured …]: the first file of the chain that has a group gives it. A group's
 * keys are checked as well. TRUE for names of such groups. */
gboolean oct_profile_read_measured(oct_profile *profile, const oct_profile_chain *chain,
                                   GError **error);
gboolean oct_profile_is_measured(const char *group);
/* Presets that the chain offers; NULL with *error. Owned: g_strfreev(). */
char **oct_profile_read_presets(const oct_profile_chain *chain, GError **error);

#endif
