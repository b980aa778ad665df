/* The set is a trie with a failure link at each node: the node of the longest proper tail that is
 * also a prefix of some string. A node's depth is how much of the text is held back there. */
#include "engine/text/stop.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/text/error.h"
#include "engine/text/trie.h"

typedef struct oct_stop_node {
  guint32 fail;
  guint16 depth;
  gint16 ends; /* the longest string that ends here, itself or along the failure links; -1 */
} oct_stop_node;

struct oct_stop_set {
  oct_trie *trie;
  oct_stop_node *nodes;
  guint16 sizes[OCT_STOP_STRINGS_MAX];
};

static guint32
step(const oct_stop_set *set, guint32 node, guint8 byte) {
  for (;;) {
    guint32 next = oct_trie_step(set->trie, node, byte);
    if (next != OCT_TRIE_NONE)
      return next;
    if (node == OCT_TRIE_ROOT)
      return OCT_TRIE_ROOT;
    node = set->nodes[node].fail;
  }
}

/* Breadth first: a node's failure link is shorter than the node. */
static void
link_nodes(oct_stop_set *set) {
  const oct_trie_node *tree = oct_trie_nodes(set->trie);
  guint n = oct_trie_n_nodes(set->trie), head = 0, tail = 0;
  g_autofree guint32 *queue = g_new(guint32, n);
  queue[tail++] = OCT_TRIE_ROOT;
  set->nodes[OCT_TRIE_ROOT] = (oct_stop_node){OCT_TRIE_ROOT, 0, -1};
  while (head < tail) {
    guint32 parent = queue[head++];
    for (guint32 at = tree[parent].child; at != OCT_TRIE_NONE; at = tree[at].sibling) {
      oct_stop_node *node = &set->nodes[at];
      node->depth = (guint16)(set->nodes[parent].depth + 1);
      node->fail = parent == OCT_TRIE_ROOT
                       ? OCT_TRIE_ROOT
                       : step(set, set->nodes[parent].fail, (guint8)tree[at].byte);
      node->ends =
          tree[at].value != OCT_TRIE_NONE ? (gint16)tree[at].value : set->nodes[node->fail].ends;
      queue[tail++] = at;
    }
  }
}

oct_stop_set *
oct_stop_set_new(const char *const *strings, guint n, GError **error) {
  if (n > OCT_STOP_STRINGS_MAX) {
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT, "%u stop strings: at most %u", n,
                OCT_STOP_STRINGS_MAX);
    return NULL;
  }
  g_autoptr(oct_stop_set) set = g_new0(oct_stop_set, 1);
  set->trie = oct_trie_new();
  for (guint i = 0; i < n; i++) {
    gsize size = strlen(strings[i]);
    if (size == 0 || size > OCT_STOP_BYTES_MAX) {
      g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT,
                  "a stop string of %" G_GSIZE_FORMAT " bytes: 1 to %u are possible", size,
                  OCT_STOP_BYTES_MAX);
      return NULL;
    }
    set->sizes[i] = (guint16)size;
    oct_trie_add(set->trie, strings[i], size, i);
  }
  set->nodes = g_new0(oct_stop_node, oct_trie_n_nodes(set->trie));
  link_nodes(set);
  return g_steal_pointer(&set);
}

void
oct_stop_set_free(oct_stop_set *set) {
  if (set == NULL)
    return;
  oct_trie_free(set->trie);
  g_free(set->nodes);
  g_free(set);
}

void
oct_stop_clear(oct_stop_matcher *matcher) {
  if (matcher->held != NULL)
    g_string_free(matcher->held, TRUE);
  *matcher = (oct_stop_matcher){0};
}

/* Moves all but the last `keep` bytes of what is held to `out`. */
static void
release(oct_stop_matcher *matcher, gsize keep, GString *out) {
  gsize n = matcher->held->len - keep;
  g_string_append_len(out, matcher->held->str, (gssize)n);
  g_string_erase(matcher->held, 0, (gssize)n);
}

static int
scan(const oct_stop_set *set, oct_stop_matcher *matcher, const char *text, gsize size,
     gboolean armed, gboolean include, gsize *taken, GString *out) {
  if (matcher->held == NULL)
    matcher->held = g_string_new(NULL);
  for (gsize i = 0; i < size; i++) {
    matcher->node = step(set, matcher->node, (guint8)text[i]);
    gint16 ends = armed ? set->nodes[matcher->node].ends : -1;
    if (ends < 0)
      continue;
    g_string_append_len(matcher->held, text, (gssize)i + 1);
    release(matcher, include ? 0 : set->sizes[ends], out);
    g_string_truncate(matcher->held, 0);
    matcher->node = OCT_TRIE_ROOT;
    *taken = i + 1;
    return ends;
  }
  g_string_append_len(matcher->held, text, (gssize)size);
  release(matcher, set->nodes[matcher->node].depth, out);
  *taken = size;
  return -1;
}

int
oct_stop_push(const oct_stop_set *set, oct_stop_matcher *matcher, const char *text, gsize size,
              gboolean armed, gboolean include, GString *out) {
  gsize taken;
  return scan(set, matcher, text, size, armed, include, &taken, out);
}

int
oct_stop_scan(const oct_stop_set *set, oct_stop_matcher *matcher, const char *text, gsize size,
              gsize *taken, GString *out) {
  return scan(set, matcher, text, size, TRUE, FALSE, taken, out);
}

void
oct_stop_finish(oct_stop_matcher *matcher, GString *out) {
  if (matcher->held != NULL)
    release(matcher, 0, out);
  matcher->node = OCT_TRIE_ROOT;
}
