/* Runs an automaton over the vocabulary.
 *
 * A thread is a state and a stack of states to return to; stacks are shared lists, numbered. A
 * position is a set of threads, those that read nothing followed to where they do. Positions are
 * made when a byte first leads to them and found again by their threads, so that a text that comes
 * back to where it was (inside a string, at the next item) costs nothing new. Bytes that no edge
 * tells apart are one class, and lead to one position. Position 0 is the beginning, 1 is the dead
 * end.
 */
#include "engine/text/guide.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"
#include "engine/text/guide-internal.h"
#include "engine/text/trie.h"

#define DEAD 1u
#define UNKNOWN                                                                                    \
  0u /* in a table of transitions: not computed; nothing leads back to the beginning */

struct oct_guide_vocab {
  const oct_tokenizer *tokenizer;
  oct_trie *trie; /* of tokens that are text; values are indexes of `same` */
  GArray *same;   /* guint32: ids, those with equal bytes in a row that ends with OCT_NO_TOKEN */
  guint words;
};

typedef struct oct_thread {
  guint32 state, stack;
} oct_thread;

typedef struct oct_stack {
  guint32 state, below; /* where it returns to, and the stack then */
  guint16 nested;
} oct_stack;

typedef struct oct_position {
  oct_thread *threads; /* sorted */
  guint32 n;
  gboolean may_end;
  guint32 *next; /* of each class of bytes, or NULL: none computed */
  guint32 *mask; /* or NULL */
  gboolean mask_empty;
} oct_position;

/* Threads that have been visited: those of the current stamp. Emptied by the next stamp. */
typedef struct oct_seen {
  guint64 *keys;
  guint32 *stamps;
  guint32 size, n, stamp; /* size: a power of two, above twice n */
} oct_seen;

struct oct_guide {
  const oct_guide_vocab *vocab;
  oct_automaton automaton;
  guint8 classes[256]; /* of bytes */
  guint n_classes;
  GArray *stacks;            /* oct_stack; index 0 is the empty one */
  GHashTable *stack_ids;     /* of a stack's 64-bit key; never walked */
  GArray *positions;         /* oct_position */
  GHashTable *by_threads;    /* hash of threads to the first position with it; never walked */
  GArray *threads, *pending; /* scratch */
  oct_seen seen;
  guint n_masks;
  gboolean exhausted;
};

/* --- vocabulary
 * -------------------------------------------------------------------------------------- */

oct_guide_vocab *
oct_guide_vocab_new(const oct_tokenizer *tokenizer) {
  oct_guide_vocab *v = g_new0(oct_guide_vocab, 1);
  guint32 n = oct_tokenizer_n_tokens(tokenizer);
  v->tokenizer = tokenizer;
  v->trie = oct_trie_new();
  v->same = g_array_new(FALSE, FALSE, sizeof(guint32));
  v->words = (n + 31) / 32;
  /* First each text's first id; tokens with the same bytes are chained behind it. */
  g_autofree guint32 *next = g_new(guint32, MAX(n, 1u));
  g_autoptr(GArray) heads = g_array_new(FALSE, FALSE, sizeof(guint32));
  for (guint32 id = n; id > 0; id--) {
    oct_text text = oct_tokenizer_bytes(tokenizer, id - 1);
    oct_token_kind kind = oct_vocab_kind(oct_tokenizer_vocab(tokenizer), id - 1);
    next[id - 1] = OCT_NO_TOKEN;
    if (text.size == 0 || kind == OCT_TOKEN_CONTROL || kind == OCT_TOKEN_UNKNOWN)
      continue;
    guint32 slot = oct_trie_add(v->trie, text.bytes, text.size, heads->len), first = id - 1;
    if (slot == heads->len)
      g_array_append_val(heads, first);
    else {
      next[id - 1] = g_array_index(heads, guint32, slot);
      g_array_index(heads, guint32, slot) = id - 1;
    }
  }
  /* `same` begins with where each text's row begins. */
  g_array_set_size(v->same, heads->len);
  for (guint i = 0; i < heads->len; i++) {
    g_array_index(v->same, guint32, i) = v->same->len;
    for (guint32 id = g_array_index(heads, guint32, i); id != OCT_NO_TOKEN; id = next[id])
      g_array_append_val(v->same, id);
    guint32 end = OCT_NO_TOKEN;
    g_array_append_val(v->same, end);
  }
  return v;
}

void
oct_guide_vocab_free(oct_guide_vocab *v) {
  if (v == NULL)
    return;
  oct_trie_free(v->trie);
  g_array_unref(v->same);
  g_free(v);
}

guint
oct_guide_vocab_words(const oct_guide_vocab *v) {
  return v->words;
}

/* --- threads and stacks
 * --------------------------------------------------------------------------------- */

/* The stack with one more return; OCT_NO_TOKEN when it is too deep. */
static guint32
push_stack(oct_guide *g, guint32 state, guint32 below, gboolean nest) {
  guint16 nested = g_array_index(g->stacks, oct_stack, below).nested;
  if (nest && nested >= OCT_GUIDE_DEPTH_MAX)
    return OCT_NO_TOKEN;
  gint64 key = (gint64)((guint64)below << 33 | (guint64)state << 1 | (nest ? 1u : 0u));
  gpointer found = g_hash_table_lookup(g->stack_ids, &key);
  if (found != NULL)
    return GPOINTER_TO_UINT(found);
  oct_stack stack = {state, below, (guint16)(nested + (nest ? 1 : 0))};
  g_array_append_val(g->stacks, stack);
  guint32 id = g->stacks->len - 1;
  g_hash_table_insert(g->stack_ids, g_memdup2(&key, sizeof key), GUINT_TO_POINTER(id));
  return id;
}

static int
compare_threads(gconstpointer x, gconstpointer y) {
  const oct_thread *a = x, *b = y;
  if (a->state != b->state)
    return a->state < b->state ? -1 : 1;
  return a->stack < b->stack ? -1 : a->stack > b->stack;
}

static void
add_pending(oct_guide *g, guint32 state, guint32 stack) {
  oct_thread thread = {state, stack};
  if (stack != OCT_NO_TOKEN && g->pending->len < OCT_GUIDE_THREADS_MAX)
    g_array_append_val(g->pending, thread);
  else if (stack != OCT_NO_TOKEN)
    g->exhausted = TRUE;
}

static void seen_grow(oct_seen *seen);

/* FALSE: it was there. */
static gboolean
seen_add(oct_seen *seen, guint64 key) {
  if (2 * seen->n >= seen->size)
    seen_grow(seen);
  guint32 at = (guint32)oct_mix64(key) & (seen->size - 1);
  for (; seen->stamps[at] == seen->stamp; at = (at + 1) & (seen->size - 1))
    if (seen->keys[at] == key)
      return FALSE;
  seen->stamps[at] = seen->stamp;
  seen->keys[at] = key;
  seen->n++;
  return TRUE;
}

static void
seen_grow(oct_seen *seen) {
  oct_seen old = *seen;
  *seen = (oct_seen){.size = MAX(2 * old.size, 64u), .stamp = 1};
  seen->keys = g_new(guint64, seen->size);
  seen->stamps = g_new0(guint32, seen->size);
  for (guint32 i = 0; i < old.size; i++)
    if (old.stamps[i] == old.stamp)
      (void)seen_add(seen, old.keys[i]);
  g_free(old.keys);
  g_free(old.stamps);
}

static void
seen_empty(oct_seen *seen) {
  seen->n = 0;
  if (++seen->stamp == 0) { /* it has come round: old stamps would count again */
    memset(seen->stamps, 0, seen->size * sizeof *seen->stamps);
    seen->stamp = 1;
  }
}

/* Follows pending threads through what reads nothing; each is visited once. */
static gboolean
close_threads(oct_guide *g) {
  gboolean may_end = FALSE;
  seen_empty(&g->seen);
  g_array_set_size(g->threads, 0);
  for (guint i = 0; i < g->pending->len && !g->exhausted; i++) {
    oct_thread thread = g_array_index(g->pending, oct_thread, i);
    if (!seen_add(&g->seen, (guint64)thread.state << 32 | thread.stack))
      continue;
    if (thread.state == 0) {
      oct_stack top = g_array_index(g->stacks, oct_stack, thread.stack);
      may_end = may_end || thread.stack == 0;
      if (thread.stack != 0)
        add_pending(g, top.state, top.below);
      continue;
    }
    gboolean reads = FALSE;
    for (guint32 e = g_array_index(g->automaton.first, guint32, thread.state); e != 0;) {
      const oct_edge *edge = &g_array_index(g->automaton.edges, oct_edge, e);
      reads = reads || edge->kind == OCT_EDGE_BYTES;
      if (edge->kind == OCT_EDGE_FREE)
        add_pending(g, edge->to, thread.stack);
      else if (edge->kind != OCT_EDGE_BYTES)
        add_pending(g, edge->call,
                    push_stack(g, edge->to, thread.stack, edge->kind == OCT_EDGE_NEST));
      e = edge->next;
    }
    if (reads)
      g_array_append_val(g->threads, thread);
  }
  g_array_sort(g->threads, compare_threads);
  return may_end;
}

/* --- positions
 * ---------------------------------------------------------------------------------------------- */

/* The position of the scratch threads, made when it is new. */
static guint32
intern_position(oct_guide *g, gboolean may_end) {
  static const oct_hash_key key = {0x6775696465, 0x706f73};
  gsize size = g->threads->len * sizeof(oct_thread);
  if (g->threads->len == 0 && !may_end && g->positions->len > DEAD)
    return DEAD;
  gint64 hash = (gint64)(oct_hash64(key, g->threads->data, size) << 1 | (may_end ? 1u : 0u));
  guint32 found = GPOINTER_TO_UINT(g_hash_table_lookup(g->by_threads, &hash));
  if (found != 0) {
    const oct_position *old = &g_array_index(g->positions, oct_position, found);
    if (old->n == g->threads->len && memcmp(old->threads, g->threads->data, size) == 0)
      return found;
  }
  if (g->positions->len >= OCT_GUIDE_POSITIONS_MAX) {
    g->exhausted = TRUE;
    return DEAD;
  }
  oct_position position = {.threads = g_memdup2(g->threads->data, MAX(size, 1u)),
                           .n = g->threads->len,
                           .may_end = may_end};
  g_array_append_val(g->positions, position);
  if (found == 0 && g->positions->len > 1)
    g_hash_table_insert(g->by_threads, g_memdup2(&hash, sizeof hash),
                        GUINT_TO_POINTER(g->positions->len - 1));
  return g->positions->len - 1;
}

static guint32
step(oct_guide *g, guint32 from, guint8 byte) {
  oct_position *position = &g_array_index(g->positions, oct_position, from);
  if (from == DEAD || g->exhausted)
    return DEAD;
  guint class = g->classes[byte];
  if (position->next == NULL)
    position->next = g_new0(guint32, g->n_classes);
  if (position->next[class] != UNKNOWN)
    return position->next[class];
  g_array_set_size(g->pending, 0);
  for (guint32 i = 0; i < position->n; i++) {
    oct_thread thread = position->threads[i];
    for (guint32 e = g_array_index(g->automaton.first, guint32, thread.state); e != 0;) {
      const oct_edge *edge = &g_array_index(g->automaton.edges, oct_edge, e);
      if (edge->kind == OCT_EDGE_BYTES && edge->low <= byte && byte <= edge->high)
        add_pending(g, edge->to, thread.stack);
      e = edge->next;
    }
  }
  gboolean may_end = close_threads(g);
  guint32 to = g->exhausted ? DEAD : intern_position(g, may_end);
  if (!g->exhausted) /* positions may have moved */
    g_array_index(g->positions, oct_position, from).next[class] = to;
  return to;
}

static oct_guide *
guide_new(const oct_guide_vocab *vocab, GError **error) {
  oct_guide *g = g_new0(oct_guide, 1);
  g->vocab = vocab;
  oct_automaton_init(&g->automaton, error);
  g->stacks = g_array_new(FALSE, TRUE, sizeof(oct_stack));
  g_array_set_size(g->stacks, 1);
  g->stack_ids = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
  g->positions = g_array_new(FALSE, TRUE, sizeof(oct_position));
  g->by_threads = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
  g->threads = g_array_new(FALSE, FALSE, sizeof(oct_thread));
  g->pending = g_array_new(FALSE, FALSE, sizeof(oct_thread));
  return g;
}

static void
find_classes(oct_guide *g) {
  gboolean begins[257] = {FALSE};
  for (guint i = 1; i < g->automaton.edges->len; i++) {
    const oct_edge *edge = &g_array_index(g->automaton.edges, oct_edge, i);
    if (edge->kind == OCT_EDGE_BYTES)
      begins[edge->low] = begins[edge->high + 1] = TRUE;
  }
  guint class = 0;
  for (guint byte = 0; byte < 256; byte++) {
    class += byte > 0 && begins[byte];
    g->classes[byte] = (guint8) class;
  }
  g->n_classes = class + 1;
}

/* Makes the beginning and the dead end. Takes the guide; NULL with *error when the constraint
 * failed. */
static oct_guide *
guide_begin(oct_guide *g, GError **error) {
  if (!g->automaton.failed) {
    find_classes(g);
    add_pending(g, g->automaton.start, 0);
    gboolean may_end = close_threads(g);
    (void)intern_position(g, may_end);
    g_array_set_size(g->threads, 0);
    oct_position dead = {0};
    g_array_append_val(g->positions, dead);
    if (!g->exhausted)
      return g;
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                "the constraint has more than %u ways to begin", OCT_GUIDE_THREADS_MAX);
  }
  oct_guide_free(g);
  return NULL;
}

void
oct_guide_free(oct_guide *g) {
  if (g == NULL)
    return;
  for (guint i = 0; i < g->positions->len; i++) {
    oct_position *position = &g_array_index(g->positions, oct_position, i);
    g_free(position->threads);
    g_free(position->next);
    g_free(position->mask);
  }
  oct_automaton_clear(&g->automaton);
  g_array_unref(g->stacks);
  g_hash_table_unref(g->stack_ids);
  g_array_unref(g->positions);
  g_hash_table_unref(g->by_threads);
  g_array_unref(g->threads);
  g_array_unref(g->pending);
  g_free(g->seen.keys);
  g_free(g->seen.stamps);
  g_free(g);
}

oct_guide *
oct_guide_new_regex(const oct_guide_vocab *vocab, const char *pattern, GError **error) {
  oct_guide *g = guide_new(vocab, error);
  g->automaton.start = oct_automaton_state(&g->automaton);
  guint32 end = oct_automaton_regex(&g->automaton, g->automaton.start, pattern, FALSE, FALSE);
  oct_automaton_free(&g->automaton, end, 0);
  return guide_begin(g, error);
}

oct_guide *
oct_guide_new_choice(const oct_guide_vocab *vocab, const char *const *choices, guint n,
                     GError **error) {
  oct_guide *g = guide_new(vocab, error);
  gsize total = 0;
  g->automaton.start = oct_automaton_state(&g->automaton);
  if (n == 0)
    oct_automaton_fail(&g->automaton, OCT_TEXT_ERROR_INPUT, "there is no choice");
  for (guint i = 0; i < n && !g->automaton.failed; i++) {
    gsize size = strlen(choices[i]);
    total += size;
    if (size == 0 || total > OCT_GUIDE_BYTES_MAX || !g_utf8_validate(choices[i], -1, NULL))
      oct_automaton_fail(&g->automaton, OCT_TEXT_ERROR_INPUT,
                         "choice %u is empty, not UTF-8, or all have more than %u bytes", i,
                         OCT_GUIDE_BYTES_MAX);
    guint32 end = oct_automaton_text(&g->automaton, g->automaton.start, choices[i], size);
    oct_automaton_free(&g->automaton, end, 0);
  }
  return guide_begin(g, error);
}

oct_guide *
oct_guide_new_json(const oct_guide_vocab *vocab, GError **error) {
  oct_guide *g = guide_new(vocab, error);
  oct_automaton_json_object(&g->automaton);
  return guide_begin(g, error);
}

oct_guide *
oct_guide_new_schema(const oct_guide_vocab *vocab, const json_t *schema, GError **error) {
  oct_guide *g = guide_new(vocab, error);
  oct_automaton_schema(&g->automaton, schema);
  return guide_begin(g, error);
}

/* --- masks --------------------------------------------------------------------------------- */

typedef struct oct_visit {
  guint32 node, position;
} oct_visit;

static void
set_bits(const oct_guide_vocab *vocab, guint32 slot, guint32 *bits) {
  for (guint32 at = g_array_index(vocab->same, guint32, slot);; at++) {
    guint32 id = g_array_index(vocab->same, guint32, at);
    if (id == OCT_NO_TOKEN)
      return;
    bits[id / 32] |= 1u << (id % 32);
  }
}

/* Walks the tree of tokens and the positions together, depth first. */
static void
fill_mask(oct_guide *g, guint32 position, guint32 *bits) {
  const oct_trie_node *nodes = oct_trie_nodes(g->vocab->trie);
  g_autoptr(GArray) open = g_array_new(FALSE, FALSE, sizeof(oct_visit));
  oct_visit visit = {OCT_TRIE_ROOT, position};
  g_array_append_val(open, visit);
  while (open->len > 0 && !g->exhausted) {
    visit = g_array_index(open, oct_visit, open->len - 1);
    g_array_set_size(open, open->len - 1);
    for (guint32 child = nodes[visit.node].child; child != OCT_TRIE_NONE;
         child = nodes[child].sibling) {
      guint32 to = step(g, visit.position, (guint8)nodes[child].byte);
      if (to == DEAD)
        continue;
      if (nodes[child].value != OCT_TRIE_NONE)
        set_bits(g->vocab, nodes[child].value, bits);
      oct_visit deeper = {child, to};
      if (nodes[child].child != OCT_TRIE_NONE)
        g_array_append_val(open, deeper);
    }
  }
}

/* Drops the kept masks when they are too many; positions stay. */
static void
drop_masks(oct_guide *g) {
  for (guint i = 0; i < g->positions->len; i++)
    g_clear_pointer(&g_array_index(g->positions, oct_position, i).mask, g_free);
  g->n_masks = 0;
}

static void
set_ends(const oct_guide *g, guint32 *bits) {
  guint n;
  const guint32 *ends = oct_tokenizer_ends(g->vocab->tokenizer, &n);
  for (guint i = 0; i < n; i++)
    bits[ends[i] / 32] |= 1u << (ends[i] % 32);
}

gboolean
oct_guide_mask(oct_guide *g, const oct_guide_state *state, guint32 *bits, GError **error) {
  guint words = g->vocab->words;
  oct_assert(state->position < g->positions->len);
  if (state->ended) {
    memset(bits, 0, words * sizeof *bits);
    set_ends(g, bits);
    return TRUE;
  }
  guint32 *mask = g_array_index(g->positions, oct_position, state->position).mask;
  if (mask == NULL) {
    if (g->n_masks >= OCT_GUIDE_MASKS_MAX)
      drop_masks(g);
    mask = g_new0(guint32, MAX(words, 1u));
    fill_mask(g, state->position, mask);
    oct_position *position = &g_array_index(g->positions, oct_position, state->position);
    if (position->may_end)
      set_ends(g, mask);
    position->mask = mask;
    position->mask_empty = TRUE;
    for (guint i = 0; i < words && position->mask_empty; i++)
      position->mask_empty = mask[i] == 0;
    g->n_masks++;
  }
  memcpy(bits, mask, words * sizeof *bits);
  gboolean empty = g_array_index(g->positions, oct_position, state->position).mask_empty;
  if (g->exhausted || empty)
    g_set_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT,
                g->exhausted ? "the constraint needs more work than its limit"
                             : "no token of the vocabulary can go on in the constraint");
  return !g->exhausted && !empty;
}

double
oct_guide_used(const oct_guide *guide) {
  return guide->exhausted ? 1 : (double)guide->positions->len / OCT_GUIDE_POSITIONS_MAX;
}

gboolean
oct_guide_may_end(oct_guide *g, const oct_guide_state *state) {
  return state->ended || g_array_index(g->positions, oct_position, state->position).may_end;
}

gboolean
oct_guide_advance(oct_guide *g, oct_guide_state *state, guint32 token) {
  guint n;
  const guint32 *ends = oct_tokenizer_ends(g->vocab->tokenizer, &n);
  for (guint i = 0; i < n; i++)
    if (ends[i] == token) {
      gboolean may_end = oct_guide_may_end(g, state);
      state->ended = state->ended || may_end;
      return may_end;
    }
  oct_text text = oct_tokenizer_bytes(g->vocab->tokenizer, token);
  oct_token_kind kind = oct_vocab_kind(oct_tokenizer_vocab(g->vocab->tokenizer), token);
  if (state->ended || text.size == 0 || kind == OCT_TOKEN_CONTROL || kind == OCT_TOKEN_UNKNOWN)
    return FALSE;
  guint32 position = state->position;
  for (gsize i = 0; i < text.size && position != DEAD; i++)
    position = step(g, position, (guint8)text.bytes[i]);
  if (position == DEAD)
    return FALSE;
  state->position = position;
  return TRUE;
}
