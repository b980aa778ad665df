/* Merging rules on small vocabularies, and that no text makes merging slow. */
#include <string.h>
#include <time.h>

#include "engine/text/bpe.h"
#include "engine/text/unigram.h"
#include "tests/engine/text/text-golden.h"

/* Tokens 0, 1, 2… with these texts and scores. */
static oct_vocab *
vocab_of(const char *const *texts, const float *scores, guint n) {
  oct_vocab *vocab = oct_vocab_new(n);
  for (guint i = 0; i < n; i++)
    g_assert_true(oct_vocab_set(vocab, i, texts[i], strlen(texts[i]), OCT_TOKEN_NORMAL,
                                scores == NULL ? 0 : scores[i], NULL));
  return vocab;
}

static char *
merged(const oct_vocab *vocab, const oct_bpe_rules *rules, const char *text) {
  g_autoptr(oct_bpe_scratch) scratch = oct_bpe_scratch_new();
  g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_assert_true(oct_bpe_encode(vocab, rules, scratch, text, strlen(text), ids, NULL));
  return text_ids(ids);
}

static void
lowest_rank_first_then_leftmost(void) {
  static const char *const texts[] = {"a", "b", "c", "ab", "bc", "aa"};
  g_autoptr(oct_vocab) vocab = vocab_of(texts, NULL, 6);
  oct_vocab_add_merge(vocab, 1, 2, (oct_merge){0, 4});
  oct_vocab_add_merge(vocab, 0, 1, (oct_merge){1, 3});
  oct_vocab_add_merge(vocab, 0, 0, (oct_merge){2, 5});
  oct_bpe_rules rules = {.order = OCT_BPE_BY_MERGES, .unknown = OCT_NO_TOKEN};
  g_autofree char *a = merged(vocab, &rules, "abc"), *b = merged(vocab, &rules, "abab"),
                  *c = merged(vocab, &rules, "aaaaa"), *d = merged(vocab, &rules, "");
  g_assert_cmpstr(a, ==, "0 4");
  g_assert_cmpstr(b, ==, "3 3");
  g_assert_cmpstr(c, ==, "5 5 0");
  g_assert_cmpstr(d, ==, "");
}

static void
by_id_needs_no_list_of_merges(void) {
  static const char *const texts[] = {"a", "b", "c", "bc", "ab", "abc"};
  g_autoptr(oct_vocab) vocab = vocab_of(texts, NULL, 6);
  oct_bpe_rules rules = {.order = OCT_BPE_BY_ID, .unknown = OCT_NO_TOKEN};
  g_autofree char *a = merged(vocab, &rules, "abc"), *b = merged(vocab, &rules, "abb");
  g_assert_cmpstr(a, ==, "5");
  g_assert_cmpstr(b, ==, "4 1");
}

static void
highest_score_first(void) {
  static const char *const texts[] = {"a", "b", "c", "ab", "bc"};
  static const float scores[] = {0, 0, 0, -2, -1};
  g_autoptr(oct_vocab) vocab = vocab_of(texts, scores, 5);
  oct_bpe_rules rules = {.order = OCT_BPE_BY_SCORE, .chars = TRUE, .unknown = OCT_NO_TOKEN};
  g_autofree char *a = merged(vocab, &rules, "abc");
  g_assert_cmpstr(a, ==, "0 4");
}

static void
a_whole_token_is_not_merged_again(void) {
  static const char *const texts[] = {"a", "b", "ab"};
  g_autoptr(oct_vocab) vocab = vocab_of(texts, NULL, 3);
  oct_bpe_rules rules = {.order = OCT_BPE_BY_MERGES, .unknown = OCT_NO_TOKEN};
  g_autofree char *apart = merged(vocab, &rules, "ab");
  rules.whole_first = TRUE;
  g_autofree char *whole = merged(vocab, &rules, "ab");
  g_assert_cmpstr(apart, ==, "0 1");
  g_assert_cmpstr(whole, ==, "2");
}

static void
unknown_characters_fuse_or_fall_back_to_bytes(void) {
  g_autoptr(oct_vocab) vocab = oct_vocab_new(5);
  g_assert_true(oct_vocab_set(vocab, 0, "<unk>", 5, OCT_TOKEN_UNKNOWN, 0, NULL));
  g_assert_true(oct_vocab_set(vocab, 1, "a", 1, OCT_TOKEN_NORMAL, 0, NULL));
  g_assert_true(oct_vocab_set(vocab, 2, "\xc3", 1, OCT_TOKEN_BYTE, 0, NULL));
  g_assert_true(oct_vocab_set(vocab, 3, "\xa9", 1, OCT_TOKEN_BYTE, 0, NULL));
  oct_bpe_rules rules = {.order = OCT_BPE_BY_SCORE, .chars = TRUE, .unknown = 0};
  g_autofree char *apart = merged(vocab, &rules, "aéüa");
  rules.fuse_unknown = TRUE;
  g_autofree char *fused = merged(vocab, &rules, "aéüa");
  rules.byte_fallback = TRUE;
  g_autofree char *bytes = merged(vocab, &rules, "aéüa");
  g_assert_cmpstr(apart, ==, "1 0 0 1");
  g_assert_cmpstr(fused, ==, "1 0 1");
  g_assert_cmpstr(bytes, ==, "1 2 3 0 1");
}

static void
unigram_takes_the_best_cut(void) {
  static const char *const texts[] = {"a", "b", "ab", "aba", "c"};
  static const float scores[] = {-1, -1, -1.5f, -4, -9};
  g_autoptr(oct_vocab) vocab = vocab_of(texts, scores, 5);
  oct_bpe_rules rules = {.chars = TRUE, .unknown = 4};
  g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_assert_true(oct_unigram_encode(vocab, &rules, -20, "abab", 4, ids, NULL));
  g_autofree char *best = text_ids(ids);
  g_assert_cmpstr(best, ==, "2 2");
  g_array_set_size(ids, 0);
  g_assert_true(oct_unigram_encode(vocab, &rules, -20, "a?b", 3, ids, NULL));
  g_autofree char *unknown = text_ids(ids);
  g_assert_cmpstr(unknown, ==, "0 4 1");
}

/* --- doubling: twice the text may cost little more than twice the CPU time ---------------------
 */

static double
seconds(const oct_tokenizer *tokenizer, const char *text, gsize size) {
  double best = 1e9;
  for (guint i = 0; i < 3; i++) {
    clock_t begin = clock();
    g_autoptr(GArray) ids = text_encode(tokenizer, text, size);
    g_assert_cmpuint(ids->len, >, 0);
    best = MIN(best, (double)(clock() - begin) / CLOCKS_PER_SEC);
  }
  return best;
}

static void
no_text_is_slow(gconstpointer name) {
  static const char *const units[] = {"a",  " ",  "\n",           "A",   "Aa",
                                      "1",  "!",  "\xe6\xbc\xa2", "ab",  "\xff",
                                      "<|", "' ", "\xe0\xb8\xb1", " \n", "\xc3\xa9"};
  const gsize small = 1 << 16;
  g_autoptr(oct_tokenizer) tokenizer = text_tokenizer(name);
  g_autofree char *text = g_malloc(2 * small);
  for (guint u = 0; u < G_N_ELEMENTS(units); u++) {
    gsize n = strlen(units[u]);
    for (gsize at = 0; at < 2 * small; at++)
      text[at] = units[u][at % n];
    double once = seconds(tokenizer, text, small), twice = seconds(tokenizer, text, 2 * small);
    g_autofree char *shown = g_strescape(units[u], NULL);
    g_test_message("'%s': %.1f ms, twice: %.1f ms", shown, once * 1e3, twice * 1e3);
    /* 20 ms of slack for other programs on the machine; quadratic would be seconds. */
    g_assert_cmpfloat(twice, <, 3 * once + 0.02);
  }
}

int
main(int argc, char **argv) {
  static const char *const names[] = {"gpt2", "llama3",     "deepseek",
                                      "kimi", "gguf-llama", "gguf-unigram"};
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/text/bpe/lowest-rank-first-then-leftmost", lowest_rank_first_then_leftmost);
  g_test_add_func("/text/bpe/by-id-needs-no-list-of-merges", by_id_needs_no_list_of_merges);
  g_test_add_func("/text/bpe/highest-score-first", highest_score_first);
  g_test_add_func("/text/bpe/a-whole-token-is-not-merged-again", a_whole_token_is_not_merged_again);
  g_test_add_func("/text/bpe/unknown-characters-fuse-or-fall-back-to-bytes",
                  unknown_characters_fuse_or_fall_back_to_bytes);
  g_test_add_func("/text/bpe/unigram-takes-the-best-cut", unigram_takes_the_best_cut);
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *path = g_strdup_printf("/text/bpe/%s/no-text-is-slow", names[i]);
    g_test_add_data_func(path, names[i], no_text_is_slow);
  }
  return g_test_run();
}
