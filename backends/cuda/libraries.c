#include "backends/cuda/libraries.h"

#include <dlfcn.h>
#include <string.h>

#include "engine/backend.h"

static GMutex lock;

/* Where the toolkit puts them when the loader's own path has none. */
static void *
open_library(const char *name, GError **error) {
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  g_autofree char *why = library == NULL ? g_strdup(dlerror()) : NULL;
  static const char *const folders[] = {"/usr/local/cuda/lib64", "/usr/local/cuda/lib"};
  for (gsize i = 0; library == NULL && i < G_N_ELEMENTS(folders); i++) {
    g_autofree char *path = g_build_filename(folders[i], name, NULL);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == NULL)
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "cuda: cannot load %s: %s",
                name, why);
  return library;
}

typedef struct entry {
  const char *name;
  gsize offset; /* of the pointer in the table */
} entry;

static gboolean
load(const char *name, const entry *entries, gsize n, void *table, GError **error) {
  void *library = open_library(name, error);
  if (library == NULL)
    return FALSE;
  for (gsize i = 0; i < n; i++) {
    void *function = dlsym(library, entries[i].name);
    if (function == NULL) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE, "cuda: %s has no %s", name,
                  entries[i].name);
      return FALSE;
    }
    memcpy((char *)table + entries[i].offset, &function, sizeof function);
  }
  return TRUE;
}

const oct_nccl *
oct_nccl_get(GError **error) {
#define ENTRY(name) {#name, G_STRUCT_OFFSET(oct_nccl, name)},
  static const entry entries[] = {OCT_NCCL_CALLS(ENTRY)};
#undef ENTRY
  static oct_nccl table;
  static gboolean loaded;
  g_mutex_lock(&lock);
  if (!loaded)
    loaded = load("libnccl.so.2", entries, G_N_ELEMENTS(entries), &table, error);
  const oct_nccl *found = loaded ? &table : NULL;
  g_mutex_unlock(&lock);
  return found;
}
