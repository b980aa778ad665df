/* Byte strings in a tree of bytes: longest match at a place, and walking a vocabulary together with
 * an automaton. Filled by one thread, constant after that. */
#ifndef OCT_TEXT_TRIE_H
#define OCT_TEXT_TRIE_H

#include <glib.h>

#define OCT_TRIE_NONE G_MAXUINT32
#define OCT_TRIE_ROOT 0u

typedef struct oct_trie_node {
  guint32 child;   /* the first; OCT_TRIE_NONE: none */
  guint32 sibling; /* the next with a greater byte */
  guint32 value;   /* of the string that ends here; OCT_TRIE_NONE: none does */
  guint32 byte;
} oct_trie_node;

typedef struct oct_trie oct_trie;

/* Life cycle. */
oct_trie *oct_trie_new(void);
void oct_trie_free(oct_trie *trie); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_trie, oct_trie_free)

/* Adds a string of at least one byte. The first value of a string stays; returns the value it has.
 */
guint32 oct_trie_add(oct_trie *trie, const void *bytes, gsize size, guint32 value);

/* Inspect. Nodes by index; the root is OCT_TRIE_ROOT. */
guint oct_trie_n_nodes(const oct_trie *trie);
const oct_trie_node *oct_trie_nodes(const oct_trie *trie);
/* The child of `node` by `byte`, else OCT_TRIE_NONE. */
guint32 oct_trie_step(const oct_trie *trie, guint32 node, guint8 byte);

#endif
