/* Cutting a text: the modes, the dialects, what is refused. */
#include <string.h>

#include "engine/text/error.h"
#include "engine/text/split.h"
#include "tests/engine/text/text-golden.h"

/* The pieces of a text, joined by |. */
static char *
pieces(const oct_splitter *splitter, const char *text) {
  g_autoptr(oct_split_scratch) scratch = oct_split_scratch_new();
  g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(oct_span));
  g_assert_true(oct_splitter_run(splitter, scratch, text, strlen(text), spans, NULL));
  GString *out = g_string_new(NULL);
  for (guint i = 0; i < spans->len; i++) {
    oct_span span = g_array_index(spans, oct_span, i);
    g_string_append_printf(out, "%s%.*s", i > 0 ? "|" : "", (int)(span.end - span.start),
                           text + span.start);
  }
  return g_string_free(out, FALSE);
}

static void
each_mode_places_its_matches(void) {
  static const struct {
    oct_split_mode mode;
    gboolean invert;
    const char *expected;
  } cases[] = {
      {OCT_SPLIT_ISOLATED, FALSE, "-|a|-|-|b|c|-"},
      {OCT_SPLIT_REMOVED, FALSE, "a|b|c"},
      {OCT_SPLIT_REMOVED, TRUE, "-|-|-|-"},
      {OCT_SPLIT_MERGED_PREVIOUS, FALSE, "-|a-|-|b|c|-"},
      {OCT_SPLIT_MERGED_NEXT, FALSE, "-a|-|-b|c|-"},
      {OCT_SPLIT_CONTIGUOUS, FALSE, "-|a|--|b|c|-"},
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_splitter) splitter = oct_splitter_new();
    g_assert_true(oct_splitter_add(splitter, "c", 1, TRUE, OCT_SPLIT_ISOLATED, FALSE, NULL));
    g_assert_true(oct_splitter_add(splitter, "-", 1, TRUE, cases[i].mode, cases[i].invert, NULL));
    g_autofree char *got = pieces(splitter, "-a--bc-");
    g_assert_cmpstr(got, ==, cases[i].expected);
  }
}

static void
dialects_are_rewritten(void) {
  static const struct {
    const char *pattern, *text, *expected;
  } cases[] = {
      {"\\p{Han}+", "ab\xe4\xb8\x80\xe3\x80\x81", "ab|\xe4\xb8\x80|\xe3\x80\x81"},
      {"\\p{Script=Greek}+", "a\xce\xb1\xce\xb2", "a|\xce\xb1\xce\xb2"},
      {"\\s",
       "a\xe1\xa0\x8e"
       "b c",
       "a\xe1\xa0\x8e"
       "b| |c"},
      {"[\\s]",
       "a\xc2\x85"
       "b",
       "a|\xc2\x85|b"},
      {"[^\\s]+", " a\xe1\xa0\x8e ", " |a\xe1\xa0\x8e| "},
      {"[a-z&&[^cd]]+", "abcde", "ab|cd|e"},
      {"[]a]+", "x]a", "x|]a"},
      {"\\[+", "a[[", "a|[["},
      {"(?i:'s)", "a'S", "a|'S"},
      {"x*", "axxb", "a|xx|b"}, /* empty matches cut nothing */
  };
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_splitter) splitter = oct_splitter_new();
    g_autoptr(GError) error = NULL;
    gboolean ok = oct_splitter_add(splitter, cases[i].pattern, strlen(cases[i].pattern), FALSE,
                                   OCT_SPLIT_ISOLATED, FALSE, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    g_autofree char *got = pieces(splitter, cases[i].text);
    g_assert_cmpstr(got, ==, cases[i].expected);
  }
}

static void
refuses_what_it_cannot_rewrite(void) {
  static const char *const patterns[] = {"[a[b]]",          "[a&&b]",           "[a", "\\", "(",
                                         "[a&&[^b]&&[^c]]", "\\p{NoSuchScript}"};
  for (guint i = 0; i < G_N_ELEMENTS(patterns); i++) {
    g_autoptr(oct_splitter) splitter = oct_splitter_new();
    g_autoptr(GError) error = NULL;
    g_assert_false(oct_splitter_add(splitter, patterns[i], strlen(patterns[i]), FALSE,
                                    OCT_SPLIT_ISOLATED, FALSE, &error));
    g_assert_true(error != NULL && error->domain == OCT_TEXT_ERROR);
  }
  g_autoptr(oct_splitter) splitter = oct_splitter_new();
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_splitter_add_named(splitter, "viking", &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED);
  g_assert_nonnull(strstr(error->message, "viking"));
}

/* A pattern that backtracks without end is a file's doing: it ends as an error. */
static void
work_is_limited(void) {
  g_autoptr(oct_splitter) splitter = oct_splitter_new();
  const char *pattern = "(a+)+(a+)+(a+)+b";
  g_assert_true(
      oct_splitter_add(splitter, pattern, strlen(pattern), FALSE, OCT_SPLIT_ISOLATED, FALSE, NULL));
  g_autoptr(oct_split_scratch) scratch = oct_split_scratch_new();
  g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(oct_span));
  g_autoptr(GError) error = NULL;
  g_autofree char *text = g_strnfill(200, 'a');
  text[150] = 'b';
  text[0] = 'c';
  memset(text + 150, 'c', 50);
  text[199] = 'b';
  g_assert_false(oct_splitter_run(splitter, scratch, text, 200, spans, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/text/split/each-mode-places-its-matches", each_mode_places_its_matches);
  g_test_add_func("/text/split/dialects-are-rewritten", dialects_are_rewritten);
  g_test_add_func("/text/split/refuses-what-it-cannot-rewrite", refuses_what_it_cannot_rewrite);
  g_test_add_func("/text/split/work-is-limited", work_is_limited);
  return g_test_run();
}
