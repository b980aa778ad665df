/* Options and what they make of each number (fate.h). */
#include "backends/fault/fate.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"

static const char *const names[OCT_INJECT_COUNT] = {
    "request", "step",   "step-final", "instance", "device",    "fatal",  "delay", "late",
    "hang",    "number", "full",       "copy",     "copy-late", "ticket", "open"};

const char *
oct_inject_name(oct_inject kind) {
  oct_assert(kind < OCT_INJECT_COUNT);
  return names[kind];
}

oct_inject
oct_inject_from_name(const char *name) {
  guint kind = 0;
  while (kind < OCT_INJECT_COUNT && strcmp(names[kind], name) != 0)
    kind++;
  return (oct_inject)kind;
}

void
oct_fault_options_default(oct_fault_options *options) {
  *options =
      (oct_fault_options){.seed = 1, .delay_ns = 1000000, .late_ns = 10 * (gint64)1000000000};
}

gboolean
fault_options_check(const oct_fault_options *o, GError **error) {
  gboolean fine = o->rate >= 0 && o->rate <= 1 && o->delay_ns >= 0 && o->late_ns >= 0 &&
                  o->n_script <= OCT_INJECT_SCRIPT_MAX && o->kinds < 1u << OCT_INJECT_COUNT;
  for (guint32 i = 0; fine && i < o->n_script; i++)
    fine = o->script[i].kind < OCT_INJECT_COUNT && o->script[i].at >= 1;
  if (!fine)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "fault: rate is %g (0 to 1), delay_ns %" G_GINT64_FORMAT
                ", late_ns %" G_GINT64_FORMAT
                " (>= 0), kinds %#x, %u script lines (limit %u, from 1)",
                o->rate, o->delay_ns, o->late_ns, o->kinds, o->n_script, OCT_INJECT_SCRIPT_MAX);
  return fine;
}

static guint32
scope_mask(fault_scope scope) {
  guint32 opens = 1u << OCT_INJECT_OPEN;
  guint32 copies = 1u << OCT_INJECT_COPY | 1u << OCT_INJECT_COPY_LATE | 1u << OCT_INJECT_TICKET;
  return scope == FAULT_OF_STEP ? OCT_INJECT_ALL_STEPS : scope == FAULT_OF_COPY ? copies : opens;
}

oct_inject
fault_fate(const oct_fault_options *o, fault_scope scope, guint32 id, guint64 number) {
  guint32 allowed = scope_mask(scope);
  for (guint32 i = 0; i < o->n_script; i++)
    if ((allowed >> o->script[i].kind & 1) != 0 && o->script[i].at == number &&
        (o->script[i].instance == 0 || o->script[i].instance == id))
      return o->script[i].kind;
  allowed &= o->kinds;
  if (allowed == 0 || o->rate <= 0)
    return OCT_INJECT_COUNT;
  guint64 x = oct_mix64(oct_mix64(oct_mix64(o->seed) + id) + number * 4 + scope);
  if ((double)(x >> 11) * 0x1p-53 >= o->rate)
    return OCT_INJECT_COUNT;
  guint32 n = (guint32)(oct_mix64(x) % (guint32)__builtin_popcount(allowed));
  for (guint kind = 0; kind < OCT_INJECT_COUNT; kind++)
    if ((allowed >> kind & 1) != 0 && n-- == 0)
      return (oct_inject)kind;
  return OCT_INJECT_COUNT;
}
