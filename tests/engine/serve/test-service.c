/* The service in virtual time on one thread: what clients get, and when the engine lets go. */
#include <string.h>

#include "backends/mock/mock.h"
#include "engine/text/detokenizer.h"
#include "tests/engine/serve/serve-rig.h"

static oct_world *
mock(void) {
  oct_world *world = oct_mock_world_new(NULL, NULL);
  g_assert_nonnull(world);
  return world;
}

static void
test_text_of_tokens(void) {
  serve_rig r;
  serve_rig_init(&r, mock());
  serve_ask *a = serve_add(&r, 5 * MS, "Hello");
  serve_run(&r);
  g_assert_no_error(r.error);
  g_assert_no_error(a->error);
  g_assert_cmpuint(a->n_ends, ==, 1);
  g_assert_cmpuint(a->prompt->len, ==, 5);
  g_assert_cmpuint(g_array_index(a->prompt, guint32, 0), ==, 'H');
  g_assert_cmpuint(a->choices[0].ids->len, ==, 16);
  g_autoptr(GString) text = g_string_new(NULL);
  oct_detokenize(r.tokenizer, (const guint32 *)(const void *)a->choices[0].ids->data, 16, TRUE,
                 text);
  g_assert_cmpstr(a->choices[0].text->str, ==, text->str);
  g_assert_cmpint(a->choices[0].finish.reason, ==, OCT_FINISH_LENGTH);
  g_test_message("text: %s", a->choices[0].text->str);
  g_assert_cmpint(a->end.received_ns, ==, 5 * MS);
  g_assert_cmpint(a->end.queued_ns, >=, a->end.received_ns);
  g_assert_cmpint(a->end.admitted_ns, >=, a->end.queued_ns);
  g_assert_cmpint(a->end.first_token_ns, >, a->end.admitted_ns);
  g_assert_cmpint(a->end.last_token_ns, >, a->end.first_token_ns);
  g_assert_cmpint(a->end.ended_ns, >=, a->end.last_token_ns);
  g_assert_cmpuint(a->end.output_tokens, ==, 16);
  serve_rig_clear(&r);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/serve/service/text-is-the-text-of-the-tokens", test_text_of_tokens);
  return g_test_run();
}
