/* Linear probing; key 0 marks an empty slot and is kept apart. */
#include "traces/idmap.h"

#include "engine/base/rng.h"

#define SLOTS_MIN 64u

typedef struct slot {
  guint64 key, value;
} slot;

struct oct_idmap {
  slot *slots; /* [n_slots], a power of two */
  gsize n_slots, n_used;
  gboolean has_zero;
  guint64 zero_value;
};

oct_idmap *
oct_idmap_new(void) {
  oct_idmap *map = g_new0(oct_idmap, 1);
  map->n_slots = SLOTS_MIN;
  map->slots = g_new0(slot, map->n_slots);
  return map;
}

void
oct_idmap_free(oct_idmap *map) {
  if (map == NULL)
    return;
  g_free(map->slots);
  g_free(map);
}

/* The slot of `key`, or the empty one where it belongs. */
static slot *
find(slot *slots, gsize n_slots, guint64 key) {
  gsize i = oct_mix64(key) & (n_slots - 1);
  while (slots[i].key != 0 && slots[i].key != key)
    i = (i + 1) & (n_slots - 1);
  return &slots[i];
}

static void
grow(oct_idmap *map) {
  gsize n_slots = map->n_slots * 2;
  slot *slots = g_new0(slot, n_slots);
  for (gsize i = 0; i < map->n_slots; i++)
    if (map->slots[i].key != 0)
      *find(slots, n_slots, map->slots[i].key) = map->slots[i];
  g_free(map->slots);
  map->slots = slots;
  map->n_slots = n_slots;
}

void
oct_idmap_set(oct_idmap *map, guint64 key, guint64 value) {
  if (key == 0) {
    map->has_zero = TRUE;
    map->zero_value = value;
    return;
  }
  slot *at = find(map->slots, map->n_slots, key);
  if (at->key == 0) {
    if ((map->n_used + 1) * 3 > map->n_slots * 2) {
      grow(map);
      at = find(map->slots, map->n_slots, key);
    }
    map->n_used++;
    at->key = key;
  }
  at->value = value;
}

gboolean
oct_idmap_get(const oct_idmap *map, guint64 key, guint64 *value) {
  const slot *at = find(map->slots, map->n_slots, key);
  gboolean found = key == 0 ? map->has_zero : at->key != 0;
  if (found && value != NULL)
    *value = key == 0 ? map->zero_value : at->value;
  return found;
}

gsize
oct_idmap_count(const oct_idmap *map) {
  return map->n_used + (map->has_zero ? 1 : 0);
}
