/* The probes through the parser: whole, byte by byte, and cut in two at every position. */
#include <string.h>

#include "tests/engine/http/http-drive.h"
#include "tests/engine/http/probes.h"

/* Cuts at every position cost the square of the length. */
#define CUT_BYTES_MAX 400

static void
run(gconstpointer data) {
  const oct_http_probe *p = data;
  oct_http_limits limits = oct_http_limits_standard();
  limits.body_bytes = OCT_HTTP_PROBE_BODY_MAX;
  g_autoptr(GString) text = oct_http_probe_spell(p);
  g_autoptr(GString) short_form = g_string_new(NULL);
  g_autoptr(GString) whole = g_string_new(NULL);
  oct_http_drive(&limits, text->str, text->len, text->len, 1, FALSE, short_form);
  g_assert_cmpstr(short_form->str, ==, p->expected);
  oct_http_drive(&limits, text->str, text->len, text->len, 1, TRUE, whole);
  gsize cuts = text->len <= CUT_BYTES_MAX ? text->len : 1;
  for (gsize first = 0; first < cuts; first++) {
    g_autoptr(GString) cut = g_string_new(NULL);
    oct_http_drive(&limits, text->str, text->len, first, text->len, TRUE, cut);
    g_assert_cmpstr(cut->str, ==, whole->str);
  }
  g_autoptr(GString) bytewise = g_string_new(NULL);
  oct_http_drive(&limits, text->str, text->len, 1, 1, TRUE, bytewise);
  g_assert_cmpstr(bytewise->str, ==, whole->str);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < oct_http_n_probes; i++) {
    g_autofree char *path = g_strdup_printf("/http/probes/%s", oct_http_probes[i].name);
    g_test_add_data_func(path, &oct_http_probes[i], run);
  }
  return g_test_run();
}
