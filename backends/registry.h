/* Worlds by name: what --backend takes.
 *
 *     mock
 *     mock:clock=real,fixed_ns=2000000
 *     fault:rate=0.01,kinds=step+request,seed=7@mock
 *     record:file=run.oct@fault:script=hang/12@mock
 *     replay:file=run.oct
 *     remote@mock:clock=real
 *     simgrid:node=b300-hgx8,exact=1
 *
 * A name, then after ":" its options as key=value with commas between; a wrapper names the world
 * that it wraps behind "@". Names, keys and values that are not known are refused, and the error
 * lists those that are.
 */
#ifndef OCT_BACKENDS_REGISTRY_H
#define OCT_BACKENDS_REGISTRY_H

#include "engine/backend.h"

#define OCT_BACKEND_TEXT_MAX  4096 /* of a description */
#define OCT_BACKEND_DEPTH_MAX 8    /* worlds within worlds */

/* A new world. NULL with *error (CONFIG). */
oct_world *oct_backend_world_new(const char *description, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What oct_backend_world_new() would refuse without making a world: names and keys that are not
 * known (CONFIG), a backend that was not built in (DEVICE). Values are looked at by the maker. */
gboolean oct_backend_check(const char *description, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- inspect, for octet help backends */

typedef struct oct_backend_key {
  const char *name, *meaning; /* with the range and the default */
} oct_backend_key;

typedef struct oct_backend_info {
  const char *name, *summary;
  gboolean wraps;              /* needs "@" and another world */
  const oct_backend_key *keys; /* ends with a NULL name */
} oct_backend_info;

/* The i-th backend by name, NULL past the last. Static. */
const oct_backend_info *oct_backend_info_at(guint i);

#endif
