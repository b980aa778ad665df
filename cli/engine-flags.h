/* The flags of an engine, under the names that users of vLLM know: one table for every command that
 * starts engines.
 *
 * A flag that takes a value may be given several, separated by commas: `--policy
 * decode-first,stage-aware`. Each combination is a variant, numbered from 0; commands that run one
 * engine refuse more than one.
 */
#ifndef OCT_CLI_ENGINE_FLAGS_H
#define OCT_CLI_ENGINE_FLAGS_H

#include <glib.h>

#include "sim/replay/setup.h"

#define OCT_ENGINE_FLAGS_MAX    64 /* entries, their end included */
#define OCT_ENGINE_VARIANTS_MAX 16

typedef struct oct_engine_flags oct_engine_flags;

/* ---- life cycle */
oct_engine_flags *oct_engine_flags_new(void);
/* A copy of `flags`, in which what `over` (may be NULL) was given replaces what it has. */
oct_engine_flags *oct_engine_flags_copy(const oct_engine_flags *flags,
                                        const oct_engine_flags *over);
void oct_engine_flags_free(oct_engine_flags *flags); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_engine_flags, oct_engine_flags_free)

/* ---- use */
/* -tp, -pp and -dp, which GOption cannot parse, into their long names, in place; with or without
 * "=N" behind them. Strings that replace others are kept by `flags`. */
void oct_engine_flags_expand(oct_engine_flags *flags, int argc, char **argv);
/* Appends an entry for each flag to `entries`, which has room for OCT_ENGINE_FLAGS_MAX; returns how
 * many. They write into `flags`. */
guint oct_engine_flags_entries(oct_engine_flags *flags, GOptionEntry *entries);

/* How many combinations the values make; 0 with *error when above OCT_ENGINE_VARIANTS_MAX. */
guint oct_engine_flags_variants(const oct_engine_flags *flags, GError **error);
/* FALSE with *error: a flag that has several values, where one engine runs. */
gboolean oct_engine_flags_single(const oct_engine_flags *flags,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Writes variant `variant` over *options, which oct_setup_options_default() has filled and whose
 * strings are then borrowed from `flags`. `label` (may be NULL) gets "policy stage-aware, …": the
 * flags that have several values, but for the one named `unlabelled` (may be NULL), which is said
 * elsewhere. FALSE with *error: flag, value, limit. */
gboolean oct_engine_flags_apply(const oct_engine_flags *flags, guint variant,
                                oct_setup_options *options, GString *label, const char *unlabelled,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* --model, given as an argument. FALSE when the flag was given too. */
gboolean oct_engine_flags_set_model(oct_engine_flags *flags, const char *model);

/* Lists the policies, for help texts. Owned. */
char *oct_engine_flags_details(void);

#endif
