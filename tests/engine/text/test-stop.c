#include <string.h>

#include "engine/base/rng.h"
#include "engine/text/error.h"
#include "engine/text/stop.h"

/* The rule by its words: the first end, of these the longest. Writes the text, returns which. */
static int
by_definition(const char *const *strings, guint n, const char *text, gboolean include,
              GString *out) {
  gsize size = strlen(text);
  for (gsize end = 1; end <= size; end++) {
    int best = -1;
    for (guint i = 0; i < n; i++) {
      gsize k = strlen(strings[i]);
      if (k <= end && memcmp(text + end - k, strings[i], k) == 0 &&
          (best < 0 || k > strlen(strings[best])))
        best = (int)i;
    }
    if (best >= 0) {
      g_string_append_len(out, text, (gssize)(include ? end : end - strlen(strings[best])));
      return best;
    }
  }
  g_string_append(out, text);
  return -1;
}

/* The text in pieces whose ends are the bits of `cuts`. */
static int
in_pieces(const oct_stop_set *set, const char *text, guint64 cuts, gboolean include, GString *out) {
  oct_stop_matcher matcher = {0};
  int found = -1;
  gsize size = strlen(text), begin = 0;
  for (gsize at = 1; at <= size && found < 0; at++)
    if (at == size || (cuts >> (at - 1) & 1) != 0) {
      found = oct_stop_push(set, &matcher, text + begin, at - begin, TRUE, include, out);
      begin = at;
    }
  if (found < 0)
    oct_stop_finish(&matcher, out);
  oct_stop_clear(&matcher);
  return found;
}

static void
every_split_gives_the_same(void) {
  static const char *const strings[] = {"END", "\n\n", "ND", "abab", "b\n"};
  static const char *const texts[] = {"xEND y", "ababab",  "aEEND", "a\n\nb", "abaxab\n\n", "",
                                      "EN",     "no stop", "aba",   "\n",     "ENEND"};
  g_autoptr(oct_stop_set) set = oct_stop_set_new(strings, G_N_ELEMENTS(strings), NULL);
  for (guint i = 0; i < G_N_ELEMENTS(texts); i++)
    for (int include = 0; include < 2; include++) {
      g_autoptr(GString) expected = g_string_new(NULL);
      int which = by_definition(strings, G_N_ELEMENTS(strings), texts[i], include, expected);
      gsize size = strlen(texts[i]);
      for (guint64 cuts = 0; cuts < G_GUINT64_CONSTANT(1) << (size > 0 ? size - 1 : 0); cuts++) {
        g_autoptr(GString) got = g_string_new(NULL);
        g_assert_cmpint(in_pieces(set, texts[i], cuts, include, got), ==, which);
        g_assert_cmpstr(got->str, ==, expected->str);
      }
    }
}

static void
random_strings_and_splits_agree_with_the_rule(void) {
  oct_rng rng;
  oct_rng_seed(&rng, 7, 0);
  g_test_message("seed 7");
  for (guint round = 0; round < 3000; round++) {
    char buffers[4][6], text[40];
    const char *strings[4];
    guint n = 1 + (guint)oct_rng_below(&rng, 4);
    for (guint i = 0; i < n; i++) {
      gsize size = 1 + oct_rng_below(&rng, 5);
      for (gsize k = 0; k < size; k++)
        buffers[i][k] = (char)('a' + oct_rng_below(&rng, 2));
      buffers[i][size] = 0;
      strings[i] = buffers[i];
    }
    gsize size = oct_rng_below(&rng, 39);
    for (gsize k = 0; k < size; k++)
      text[k] = (char)('a' + oct_rng_below(&rng, 3));
    text[size] = 0;
    g_autoptr(oct_stop_set) set = oct_stop_set_new(strings, n, NULL);
    g_autoptr(GString) expected = g_string_new(NULL), got = g_string_new(NULL);
    int which = by_definition(strings, n, text, FALSE, expected);
    int found = in_pieces(set, text, oct_rng_u64(&rng), FALSE, got);
    g_assert_cmpstr(got->str, ==, expected->str);
    g_assert_cmpint(found < 0, ==, which < 0);
    if (which >= 0)
      g_assert_cmpstr(strings[found], ==, strings[which]);
  }
}

static void
holds_back_only_what_may_become_a_stop_string(void) {
  static const char *const strings[] = {"</think>", "STOP"};
  g_autoptr(oct_stop_set) set = oct_stop_set_new(strings, 2, NULL);
  oct_stop_matcher matcher = {0};
  g_autoptr(GString) out = g_string_new(NULL);
  g_assert_cmpint(oct_stop_push(set, &matcher, "abc ST", 6, TRUE, FALSE, out), ==, -1);
  g_assert_cmpstr(out->str, ==, "abc ");
  g_assert_cmpint(oct_stop_push(set, &matcher, "</", 2, TRUE, FALSE, out), ==, -1);
  g_assert_cmpstr(out->str, ==, "abc ST");
  g_assert_cmpint(oct_stop_push(set, &matcher, "th", 2, TRUE, FALSE, out), ==, -1);
  g_assert_cmpstr(out->str, ==, "abc ST");
  g_assert_cmpint(oct_stop_push(set, &matcher, "e", 1, TRUE, FALSE, out), ==, -1);
  g_assert_cmpstr(out->str, ==, "abc ST</the");
  oct_stop_clear(&matcher);
}

static void
before_min_tokens_a_stop_string_is_text(void) {
  static const char *const strings[] = {"END"};
  g_autoptr(oct_stop_set) set = oct_stop_set_new(strings, 1, NULL);
  oct_stop_matcher matcher = {0};
  g_autoptr(GString) out = g_string_new(NULL);
  g_assert_cmpint(oct_stop_push(set, &matcher, "xEND", 4, FALSE, FALSE, out), ==, -1);
  g_assert_cmpint(oct_stop_push(set, &matcher, "yEN", 3, FALSE, FALSE, out), ==, -1);
  g_assert_cmpint(oct_stop_push(set, &matcher, "Dz", 2, TRUE, FALSE, out), ==, 0);
  g_assert_cmpstr(out->str, ==, "xENDy");
  oct_stop_clear(&matcher);
}

static void
limits_are_limits(void) {
  const char *many[17];
  for (guint i = 0; i < 17; i++)
    many[i] = "x";
  g_autofree char *most = g_strnfill(256, 'y'), *more = g_strnfill(257, 'y');
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_stop_set) at = oct_stop_set_new(many, 16, &error);
  g_assert_no_error(error);
  g_assert_nonnull(at);
  g_assert_null(oct_stop_set_new(many, 17, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT);
  g_clear_error(&error);
  const char *one[] = {most};
  g_autoptr(oct_stop_set) longest = oct_stop_set_new(one, 1, &error);
  g_assert_no_error(error);
  g_assert_nonnull(longest);
  one[0] = more;
  g_assert_null(oct_stop_set_new(one, 1, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT);
  g_clear_error(&error);
  one[0] = "";
  g_assert_null(oct_stop_set_new(one, 1, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_INPUT);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/text/stop/every-split-gives-the-same", every_split_gives_the_same);
  g_test_add_func("/text/stop/random-strings-and-splits-agree-with-the-rule",
                  random_strings_and_splits_agree_with_the_rule);
  g_test_add_func("/text/stop/holds-back-only-what-may-become-a-stop-string",
                  holds_back_only_what_may_become_a_stop_string);
  g_test_add_func("/text/stop/before-min-tokens-a-stop-string-is-text",
                  before_min_tokens_a_stop_string_is_text);
  g_test_add_func("/text/stop/limits-are-limits", limits_are_limits);
  return g_test_run();
}
