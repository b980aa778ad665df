#include "engine/base/limits.h"

#include "engine/base/assert.h"
#include "engine/base/error.h"

#define ROW(id, flag, unit, min, standard, max) {flag, unit, min, standard, max},
static const oct_limit_row rows[] = {OCT_LIMITS(ROW)};
#undef ROW

const oct_limit_row *
oct_limit_get(oct_limit which) {
  oct_assert(which < OCT_LIMIT_COUNT);
  return &rows[which];
}

gboolean
oct_limit_check(oct_limit which, gint64 value, GError **error) {
  const oct_limit_row *row = oct_limit_get(which);
  if (value >= row->min && value <= row->max)
    return TRUE;
  gboolean low = value < row->min;
  g_set_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_LIMIT,
              "--%s: %" G_GINT64_FORMAT " %s is %s the limit of %" G_GINT64_FORMAT, row->flag,
              value, row->unit, low ? "below" : "above", low ? row->min : row->max);
  return FALSE;
}
