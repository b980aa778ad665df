#include "engine/text/trie.h"

#include "engine/base/assert.h"

struct oct_trie {
  GArray *nodes; /* oct_trie_node */
};

#define NODE(trie, index) (&g_array_index((trie)->nodes, oct_trie_node, index))

oct_trie *
oct_trie_new(void) {
  oct_trie *trie = g_new(oct_trie, 1);
  trie->nodes = g_array_new(FALSE, FALSE, sizeof(oct_trie_node));
  oct_trie_node root = {OCT_TRIE_NONE, OCT_TRIE_NONE, OCT_TRIE_NONE, 0};
  g_array_append_val(trie->nodes, root);
  return trie;
}

void
oct_trie_free(oct_trie *trie) {
  if (trie == NULL)
    return;
  g_array_unref(trie->nodes);
  g_free(trie);
}

static guint32
add_child(oct_trie *trie, guint32 parent, guint8 byte) {
  guint32 before = OCT_TRIE_NONE, at = NODE(trie, parent)->child;
  while (at != OCT_TRIE_NONE && NODE(trie, at)->byte < byte) {
    before = at;
    at = NODE(trie, at)->sibling;
  }
  if (at != OCT_TRIE_NONE && NODE(trie, at)->byte == byte)
    return at;
  guint32 index = trie->nodes->len;
  oct_trie_node node = {OCT_TRIE_NONE, at, OCT_TRIE_NONE, byte};
  g_array_append_val(trie->nodes, node);
  if (before == OCT_TRIE_NONE)
    NODE(trie, parent)->child = index;
  else
    NODE(trie, before)->sibling = index;
  return index;
}

guint32
oct_trie_add(oct_trie *trie, const void *bytes, gsize size, guint32 value) {
  oct_assert(size > 0 && value != OCT_TRIE_NONE);
  guint32 at = OCT_TRIE_ROOT;
  for (gsize i = 0; i < size; i++)
    at = add_child(trie, at, ((const guint8 *)bytes)[i]);
  if (NODE(trie, at)->value == OCT_TRIE_NONE)
    NODE(trie, at)->value = value;
  return NODE(trie, at)->value;
}

guint
oct_trie_n_nodes(const oct_trie *trie) {
  return trie->nodes->len;
}

const oct_trie_node *
oct_trie_nodes(const oct_trie *trie) {
  return (const oct_trie_node *)(const void *)trie->nodes->data;
}

guint32
oct_trie_step(const oct_trie *trie, guint32 node, guint8 byte) {
  guint32 at = NODE(trie, node)->child;
  while (at != OCT_TRIE_NONE && NODE(trie, at)->byte < byte)
    at = NODE(trie, at)->sibling;
  return at != OCT_TRIE_NONE && NODE(trie, at)->byte == byte ? at : OCT_TRIE_NONE;
}
