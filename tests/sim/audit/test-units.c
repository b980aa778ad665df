/* Quantities with units, and key files whose errors name the line. */
#include "sim/ini.h"
#include "sim/units.h"

#include <string.h>

typedef struct row {
  const char *text;
  const oct_dimension *dimension;
  double value;
} row;

static void
test_read(void) {
  const row rows[] = {
      {"1.6 TB/s", &oct_dimension_bytes_per_s, 1.6e12},
      {"192 GiB", &oct_dimension_bytes, 192 * 1073741824.0},
      {"100000 tok/s", &oct_dimension_tokens_per_s, 1e5},
      {"16 B/tok", &oct_dimension_bytes_per_token, 16},
      {"850 ns", &oct_dimension_seconds, 850e-9},
      {"1.5 min", &oct_dimension_seconds, 90},
      {"2 /h", &oct_dimension_per_s, 2.0 / 3600},
      {"900 req/min", &oct_dimension_requests_per_s, 15},
      {"200 users", &oct_dimension_requests, 200},
      {"200", &oct_dimension_requests, 200},
      {"1200", &oct_dimension_tokens, 1200},
      {"2.25 Pflop/s", &oct_dimension_flops, 2.25e15},
      {"600 W", &oct_dimension_watts, 600},
      {"1.1 kW", &oct_dimension_watts, 1100},
      {"50 %", &oct_dimension_number, 0.5},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autoptr(GError) error = NULL;
    double value;
    g_assert_true(oct_quantity_read(rows[i].text, rows[i].dimension, &value, &error));
    g_assert_cmpfloat_with_epsilon(value, rows[i].value, rows[i].value * 1e-12);
  }
}

static void
test_refuse(void) {
  const struct {
    const char *text;
    const oct_dimension *dimension;
    const char *says;
  } rows[] = {
      {"1.6 TB", &oct_dimension_bytes_per_s, "is in bytes, must be in bytes/s"},
      {"150", &oct_dimension_requests_per_s, "is in numbers without unit, must be in requests/s"},
      {"3 tok/s", &oct_dimension_requests_per_s, "is in tokens/s"},
      {"fast", &oct_dimension_seconds, "wants a number"},
      {"nan s", &oct_dimension_seconds, "wants a number"},
      {"100,000 tok/s", &oct_dimension_tokens_per_s, "without commas"},
      {"3 parsec", &oct_dimension_seconds, "\"parsec\" is not known"},
      {"3 Kis", &oct_dimension_seconds, "\"Kis\" is not known"},
      {"1 B/s/s/s", &oct_dimension_bytes_per_s, "more than two"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autoptr(GError) error = NULL;
    double value;
    g_assert_false(oct_quantity_read(rows[i].text, rows[i].dimension, &value, &error));
    g_assert_nonnull(strstr(error->message, rows[i].says));
  }
}

static void
test_format(void) {
  const row rows[] = {
      {"1.6 MB/s", &oct_dimension_bytes_per_s, 1.6e6},
      {"17.12 GB", &oct_dimension_bytes, 17.12e9},
      {"1.779 s", &oct_dimension_seconds, 1.7791},
      {"183.5 s", &oct_dimension_seconds, 183.5},
      {"120 ns", &oct_dimension_seconds, 120e-9},
      {"100000 tok/s", &oct_dimension_tokens_per_s, 1e5},
      {"1 GB", &oct_dimension_bytes, 999.99e6},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autofree char *text = oct_quantity_format(rows[i].value, rows[i].dimension);
    g_assert_cmpstr(text, ==, rows[i].text);
  }
}

static void
test_lines(void) {
  static const char text[] = "# a comment\n[one]\nfirst = 1 \n\n[two]\nsecond=2\n";
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_ini) ini = oct_ini_parse("x.ini", text, strlen(text), &error);
  g_assert_no_error(error);
  g_assert_cmpuint(oct_ini_n_groups(ini), ==, 2);
  g_assert_cmpuint(oct_ini_group_at(ini, 1)->line, ==, 5);
  const oct_ini_entry *entry = oct_ini_find(oct_ini_group_at(ini, 0), "first");
  g_assert_cmpstr(entry->value, ==, "1");
  g_assert_cmpuint(entry->line, ==, 3);
  g_assert_null(oct_ini_find(oct_ini_group_at(ini, 0), "second"));
  g_assert_false(oct_ini_refuse(ini, entry, OCT_INI_ERROR_VALUE, &error, "limit %d", 5));
  g_assert_cmpstr(error->message, ==, "x.ini:3: [one] first = 1: limit 5");
}

static void
test_bad_files(void) {
  const struct {
    const char *text, *says;
  } rows[] = {
      {"", "x.ini:1: empty file"},
      {"[a]\nb=1\nb=2\n", "x.ini:3: [a] b is there twice"},
      {"[a]\nb=1\n[a]\nc=2\n", "x.ini:3: [a] is there twice"},
      {"b=1\n", "x.ini:1: "},
      {"[a]\nnothing\n", "x.ini:1: "},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autoptr(GError) error = NULL;
    g_assert_null(oct_ini_parse("x.ini", rows[i].text, strlen(rows[i].text), &error));
    g_assert_true(g_str_has_prefix(error->message, rows[i].says));
  }
  g_autoptr(GError) error = NULL;
  g_autofree char *large = g_strnfill(OCT_INI_BYTES_MAX + 1, 'x');
  g_assert_null(oct_ini_parse("x.ini", large, OCT_INI_BYTES_MAX + 1, &error));
  g_assert_nonnull(strstr(error->message, "limit of 1048576"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/units/read-in-si", test_read);
  g_test_add_func("/units/another-kind-of-quantity-is-refused", test_refuse);
  g_test_add_func("/units/written-with-a-fitting-prefix", test_format);
  g_test_add_func("/ini/entries-know-their-lines", test_lines);
  g_test_add_func("/ini/what-is-not-clear-is-refused", test_bad_files);
  return g_test_run();
}
