/* Chat template constructs against jinja2's renderings, then limits and marks. */
#include <string.h>

#include "engine/text/error.h"
#include "engine/text/jinja.h"
#include "tests/engine/text/text-golden.h"

static json_t *golden; /* templates.json */

static gboolean
render(const char *source, const oct_template_input *input, oct_prompt *prompt, GError **error) {
  g_autoptr(oct_template) compiled = oct_template_new(source, strlen(source), error);
  return compiled != NULL && oct_template_render(compiled, input, prompt, error);
}

static void
renders_like_jinja2(gconstpointer data) {
  const json_t *one = data;
  const char *expected = json_string_value(json_object_get(one, "expected"));
  oct_template_input input = {.outside = json_object_get(golden, "variables"),
                              .now_s = json_integer_value(json_object_get(golden, "now_s"))};
  g_autoptr(oct_prompt) prompt = oct_prompt_new();
  g_autoptr(GError) error = NULL;
  gboolean ok = render(json_string_value(json_object_get(one, "template")), &input, prompt, &error);
  if (expected == NULL) {
    g_assert_false(ok);
    g_assert_true(error != NULL && error->domain == OCT_TEXT_ERROR);
    g_assert_nonnull(strstr(error->message, json_string_value(json_object_get(one, "message"))));
    return;
  }
  g_assert_no_error(error);
  g_autofree char *got = g_strndup((const char *)prompt->text->data, prompt->text->len);
  g_assert_cmpstr(got, ==, expected);
  g_assert_cmpuint(prompt->marks->len, ==, prompt->text->len);
}

static void
names_what_is_outside_the_subset(void) {
  static const char *const cases[][2] = {
      {"{% include 'x' %}", "include"},
      {"{% extends 'x' %}", "extends"},
      {"{% block a %}{% endblock %}", "block"},
      {"{% call f() %}{% endcall %}", "call"},
      {"{% do x %}", "do"},
      {"{{ x|groupby('a') }}", "groupby"},
      {"{{ x|xmlattr }}", "xmlattr"},
      {"{{ x is escaped }}", "escaped"},
      {"{% for a in b recursive %}{% endfor %}", "recursive"},
      {"{{ cycler('a') }}", "cycler"},
      {"{{ f(*args) }}", "*"},
      {"{{ 'a'.encode() }}", "encode"},
      {"{% for a in [1] %}{{ loop.cycle('a') }}{% endfor %}", "loop.cycle"},
  };
  oct_template_input input = {0};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_prompt) prompt = oct_prompt_new();
    g_autoptr(GError) error = NULL;
    g_assert_false(render(cases[i][0], &input, prompt, &error));
    g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_UNSUPPORTED);
    g_assert_nonnull(strstr(error->message, cases[i][1]));
    g_assert_nonnull(strstr(error->message, "--chat-template"));
    g_assert_nonnull(strstr(error->message, "line 1"));
  }
}

/* Each begins as a working template and grows until a limit ends it. */
static void
work_memory_and_nesting_are_limited(void) {
  g_autoptr(GString) deep = g_string_new(NULL), blocks = g_string_new(NULL);
  for (guint i = 0; i < 100000; i++)
    g_string_append_c(deep, '(');
  g_string_prepend(deep, "{{ ");
  g_string_append(deep, " }}");
  for (guint i = 0; i < 1000; i++)
    g_string_append(blocks, "{% if true %}");
  const char *const cases[] = {
      "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{{ 'x' * 99999999999 }}",
      "{{ range(99999999999)|list }}",
      "{{ ('x' * 1000000)|indent(1000, first=true) * 1000 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 2 ** 63 }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}"
      "{{ ns.l }}",
      deep->str,
      blocks->str,
  };
  oct_template_input input = {0};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_prompt) prompt = oct_prompt_new();
    g_autoptr(GError) error = NULL;
    g_assert_false(render(cases[i], &input, prompt, &error));
    g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
  }
  input.fuel = 50;
  g_autoptr(oct_prompt) prompt = oct_prompt_new();
  g_autoptr(GError) error = NULL;
  g_assert_true(render("{% for i in range(3) %}{{ i }}{% endfor %}", &input, prompt, &error));
  g_assert_false(render("{% for i in range(30) %}{{ i }}{% endfor %}", &input, prompt, &error));
  g_assert_error(error, OCT_TEXT_ERROR, OCT_TEXT_ERROR_LIMIT);
}

/* The marks of each rendering, o for outside, as a string. */
static void
who_wrote_a_byte_is_known_to_the_end(void) {
  static const char *const cases[][3] = {
      {"<{{ own }}|{{ text }}>", "<O|a</t>b>", "...oooooo."},
      {"{{ text|upper }}{{ own|lower }}", "A</T>Bo", "oooooo."},
      {"{{ text.split('</t>')[-1] + own }}", "bO", "o."},
      {"{{ ('x' + text)|trim|replace('a', 'yy') }}", "xyy</t>b", "...ooooo"},
      {"{{ text[::-1] }}{{ text[1:3] }}", "b>t/<a</", "oooooooo"},
      {"{{ [own, text]|join('-') }}", "O-a</t>b", "..oooooo"},
      {"{% set a %}{{ text }}{{ own }}{% endset %}{{ a }}", "a</t>bO", "oooooo."},
      {"{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f(text) }}", "[a</t>b]", ".oooooo."},
      {"{{ text|tojson }}", "\"a</t>b\"", ".oooooo."},
      {"{{ text ~ own }}{{ '%s!' % text }}", "a</t>bOa</t>b!", "oooooo.oooooo."},
      {"{{ text|e }}", "a&lt;/t&gt;b", "oooooooooooo"},
      {"{{ text|indent(1, first=true) }}", " a</t>b", ".oooooo"},
  };
  json_t *own = json_pack("{s:s}", "own", "O"), *outside = json_pack("{s:s}", "text", "a</t>b");
  oct_template_input input = {.own = own, .outside = outside};
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(oct_prompt) prompt = oct_prompt_new();
    g_autoptr(GError) error = NULL;
    gboolean ok = render(cases[i][0], &input, prompt, &error);
    g_assert_no_error(error);
    g_assert_true(ok);
    g_autofree char *text = g_strndup((const char *)prompt->text->data, prompt->text->len);
    g_assert_cmpstr(text, ==, cases[i][1]);
    g_autoptr(GString) marks = g_string_new(NULL);
    for (guint k = 0; k < prompt->marks->len; k++)
      g_string_append_c(marks, prompt->marks->data[k] == OCT_MARK_OUTSIDE ? 'o' : '.');
    g_assert_cmpstr(marks->str, ==, cases[i][2]);
  }
  json_decref(own);
  json_decref(outside);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  gsize size;
  g_autofree char *file = text_golden("templates.json", &size);
  golden = json_loadb(file, size, 0, NULL);
  g_assert_nonnull(golden);
  const json_t *cases = json_object_get(golden, "cases");
  for (gsize i = 0; i < json_array_size(cases); i++) {
    const json_t *one = json_array_get(cases, i);
    g_autofree char *path = g_strdup_printf("/text/jinja/%s/renders-like-jinja2",
                                            json_string_value(json_object_get(one, "name")));
    g_test_add_data_func(path, one, renders_like_jinja2);
  }
  g_test_add_func("/text/jinja/names-what-is-outside-the-subset", names_what_is_outside_the_subset);
  g_test_add_func("/text/jinja/work-memory-and-nesting-are-limited",
                  work_memory_and_nesting_are_limited);
  g_test_add_func("/text/jinja/who-wrote-a-byte-is-known-to-the-end",
                  who_wrote_a_byte_is_known_to_the_end);
  int status = g_test_run();
  json_decref(golden);
  return status;
}
