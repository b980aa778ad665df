#include "engine/base/budget.h"

#include <stdatomic.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/error.h"

struct oct_budget {
  char *name;
  gsize bytes_max;
  _Atomic gsize used, peak;
  _Atomic guint64 fail_in; /* 0 = off */
};

/* Stands before each piece of memory and keeps it aligned to 16 bytes. */
typedef struct header {
  gsize bytes; /* that the caller asked for */
  const oct_budget *owner;
} header;
G_STATIC_ASSERT(sizeof(header) == 16);

oct_budget *
oct_budget_new(const char *name, gsize bytes_max) {
  oct_budget *budget = g_new0(oct_budget, 1);
  budget->name = g_strdup(name);
  budget->bytes_max = bytes_max;
  return budget;
}

void
oct_budget_free(oct_budget *budget) {
  if (!budget)
    return;
  oct_assert(atomic_load(&budget->used) == 0);
  g_free(budget->name);
  g_free(budget);
}

/* Counts `more` bytes as used, or leaves the count and returns FALSE. */
static gboolean
take(oct_budget *budget, gsize more) {
  gsize used = atomic_load(&budget->used);
  do
    if (more > budget->bytes_max - used)
      return FALSE;
  while (!atomic_compare_exchange_weak(&budget->used, &used, used + more));
  gsize peak = atomic_load(&budget->peak);
  while (peak < used + more && !atomic_compare_exchange_weak(&budget->peak, &peak, used + more))
    ;
  return TRUE;
}

static gboolean
made_to_fail(oct_budget *budget) {
  guint64 left = atomic_load(&budget->fail_in);
  while (left > 0 && !atomic_compare_exchange_weak(&budget->fail_in, &left, left - 1))
    ;
  return left == 1;
}

void *
oct_budget_resize(oct_budget *budget, void *memory, gsize count, gsize size, GError **error) {
  header *old = memory ? (header *)memory - 1 : NULL;
  gsize before = old ? old->bytes : 0, bytes, total;
  oct_assert(!old || old->owner == budget);
  if (!g_size_checked_mul(&bytes, count, size) || !g_size_checked_add(&total, bytes, sizeof *old)) {
    g_set_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_MEMORY,
                "%s: %" G_GSIZE_FORMAT " elements of %" G_GSIZE_FORMAT " bytes overflow",
                budget->name, count, size);
    return NULL;
  }
  if (bytes > before && !take(budget, bytes - before)) {
    g_set_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_MEMORY,
                "%s: %" G_GSIZE_FORMAT " bytes asked for, %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT
                " in use",
                budget->name, bytes, atomic_load(&budget->used), budget->bytes_max);
    return NULL;
  }
  header *now = made_to_fail(budget) ? NULL : g_try_realloc(old, total);
  if (!now) {
    if (bytes > before)
      atomic_fetch_sub(&budget->used, bytes - before);
    g_set_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_MEMORY,
                "%s: the machine has no %" G_GSIZE_FORMAT " bytes left", budget->name, bytes);
    return NULL;
  }
  if (bytes < before)
    atomic_fetch_sub(&budget->used, before - bytes);
  else
    memset((guint8 *)(now + 1) + before, 0, bytes - before);
  *now = (header){bytes, budget};
  return now + 1;
}

void *
oct_budget_alloc(oct_budget *budget, gsize count, gsize size, GError **error) {
  return oct_budget_resize(budget, NULL, count, size, error);
}

void
oct_budget_release(oct_budget *budget, void *memory) {
  if (!memory)
    return;
  header *old = (header *)memory - 1;
  oct_assert(old->owner == budget);
  atomic_fetch_sub(&budget->used, old->bytes);
  g_free(old);
}

gsize
oct_budget_used(const oct_budget *budget) {
  return atomic_load(&budget->used);
}

gsize
oct_budget_peak(const oct_budget *budget) {
  return atomic_load(&budget->peak);
}

void
oct_budget_fail_at(oct_budget *budget, guint64 nth) {
  atomic_store(&budget->fail_in, nth);
}
