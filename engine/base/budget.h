/* Memory whose size somebody else decides: a client, a file, a flag.
 *
 * g_malloc() aborts the process when memory runs out, which is right for small fixed sizes and
 * wrong for these. A budget has a limit in bytes, counts what is out, and answers with an error
 * that names the budget. Any thread.
 */
#ifndef OCT_BASE_BUDGET_H
#define OCT_BASE_BUDGET_H

#include <glib.h>

typedef struct oct_budget oct_budget;

/* Life cycle. `name` is for messages and copied, as in "trace reader". */
oct_budget *oct_budget_new(const char *name, gsize bytes_max);
/* Accepts NULL. Everything must have been given back (asserted). */
void oct_budget_free(oct_budget *budget);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_budget, oct_budget_free)

/* Use. `count` elements of `size` bytes (the product is checked), zeroed, aligned to 16 bytes. NULL
 * with *error (OCT_BASE_ERROR_MEMORY) when the budget or the machine cannot give it. 0 bytes give a
 * valid pointer. */
void *oct_budget_alloc(oct_budget *budget, gsize count, gsize size,
                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Like realloc: keeps the common part, zeroes what is added. `memory` may be NULL. On failure
 * `memory` stays valid and NULL is returned. */
void *oct_budget_resize(oct_budget *budget, void *memory, gsize count, gsize size,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Gives memory of this budget back; accepts NULL. */
void oct_budget_release(oct_budget *budget, void *memory);

/* Inspect: bytes that are out, and the most that ever were. */
gsize oct_budget_used(const oct_budget *budget);
gsize oct_budget_peak(const oct_budget *budget);

/* For tests: the `nth` request from here (1 = the next) fails as if the machine had no memory; 0
 * turns this off. */
void oct_budget_fail_at(oct_budget *budget, guint64 nth);

#endif
