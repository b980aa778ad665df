#include "engine/base/budget.h"

#include <string.h>

#include "engine/base/error.h"

static void
assert_refused(void *memory, GError **error, const char *part) {
  g_assert_null(memory);
  g_assert_error(*error, OCT_BASE_ERROR, OCT_BASE_ERROR_MEMORY);
  g_assert_nonnull(strstr((*error)->message, "trace reader"));
  g_assert_nonnull(strstr((*error)->message, part));
  g_clear_error(error);
}

static void
counts(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("trace reader", 100);
  g_autoptr(GError) error = NULL;
  guint8 *a = oct_budget_alloc(budget, 20, 3, &error);
  g_assert_no_error(error);
  g_assert_cmpuint((gsize)a % 16, ==, 0);
  for (guint i = 0; i < 60; i++)
    g_assert_cmpuint(a[i], ==, 0);
  g_assert_cmpuint(oct_budget_used(budget), ==, 60);
  assert_refused(oct_budget_alloc(budget, 1, 41, &error), &error, "41 bytes asked for, 60 of 100");
  void *b = oct_budget_alloc(budget, 1, 40, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(oct_budget_used(budget), ==, 100);
  oct_budget_release(budget, a);
  g_assert_cmpuint(oct_budget_used(budget), ==, 40);
  oct_budget_release(budget, b);
  oct_budget_release(budget, NULL);
  g_assert_cmpuint(oct_budget_used(budget), ==, 0);
  g_assert_cmpuint(oct_budget_peak(budget), ==, 100);
}

static void
nothing_is_valid(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("trace reader", 0);
  g_autoptr(GError) error = NULL;
  void *nothing = oct_budget_alloc(budget, 0, 8, &error);
  g_assert_no_error(error);
  g_assert_nonnull(nothing);
  oct_budget_release(budget, nothing);
}

static void
overflow(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("trace reader", G_MAXSIZE);
  g_autoptr(GError) error = NULL;
  assert_refused(oct_budget_alloc(budget, G_MAXSIZE / 2, 3, &error), &error, "overflow");
  assert_refused(oct_budget_alloc(budget, G_MAXSIZE, 1, &error), &error, "overflow");
  g_assert_cmpuint(oct_budget_used(budget), ==, 0);
}

static void
resize(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("trace reader", 64);
  g_autoptr(GError) error = NULL;
  guint8 *a = oct_budget_resize(budget, NULL, 8, 1, &error);
  memset(a, 7, 8);
  a = oct_budget_resize(budget, a, 64, 1, &error);
  g_assert_no_error(error);
  for (guint i = 0; i < 64; i++)
    g_assert_cmpuint(a[i], ==, i < 8 ? 7 : 0);
  assert_refused(oct_budget_resize(budget, a, 65, 1, &error), &error, "64 of 64");
  g_assert_cmpuint(a[7], ==, 7);
  a = oct_budget_resize(budget, a, 4, 1, &error);
  g_assert_cmpuint(oct_budget_used(budget), ==, 4);
  g_assert_cmpuint(a[3], ==, 7);
  oct_budget_release(budget, a);
  g_assert_cmpuint(oct_budget_peak(budget), ==, 64);
}

static void
made_to_fail(void) {
  g_autoptr(oct_budget) budget = oct_budget_new("trace reader", 1000);
  g_autoptr(GError) error = NULL;
  oct_budget_fail_at(budget, 2);
  void *first = oct_budget_alloc(budget, 1, 10, &error);
  g_assert_no_error(error);
  assert_refused(oct_budget_alloc(budget, 1, 20, &error), &error, "no 20 bytes");
  g_assert_cmpuint(oct_budget_used(budget), ==, 10);
  void *third = oct_budget_alloc(budget, 1, 20, &error);
  g_assert_no_error(error);
  oct_budget_fail_at(budget, 1);
  oct_budget_fail_at(budget, 0);
  void *fourth = oct_budget_alloc(budget, 1, 20, &error);
  g_assert_no_error(error);
  oct_budget_release(budget, first);
  oct_budget_release(budget, third);
  oct_budget_release(budget, fourth);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* The machine itself says no: 2^62 bytes are in the budget, but nowhere else. */
static void
machine_refuses(void) {
#ifdef SANITIZED
  g_test_skip("sanitizers stop at a request of this size");
#else
  g_autoptr(oct_budget) budget = oct_budget_new("trace reader", G_MAXSIZE);
  g_autoptr(GError) error = NULL;
  assert_refused(oct_budget_alloc(budget, (gsize)1 << 31, (gsize)1 << 31, &error), &error,
                 "the machine has no");
  g_assert_cmpuint(oct_budget_used(budget), ==, 0);
#endif
}

static void
leak(void) {
  if (g_test_subprocess()) {
    oct_budget *budget = oct_budget_new("leaky", 10);
    void *lost = oct_budget_alloc(budget, 1, 1, NULL);
    g_assert_nonnull(lost);
    oct_budget_free(budget);
    return;
  }
  g_test_trap_subprocess(NULL, 0, 0);
  g_test_trap_assert_failed();
  g_test_trap_assert_stderr("*internal error*used*");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/base/budget/counts-what-is-out", counts);
  g_test_add_func("/base/budget/nothing-is-a-valid-size", nothing_is_valid);
  g_test_add_func("/base/budget/refuses-a-size-that-overflows", overflow);
  g_test_add_func("/base/budget/resize-keeps-content-and-count", resize);
  g_test_add_func("/base/budget/fails-when-a-test-asks", made_to_fail);
  g_test_add_func("/base/budget/reports-that-the-machine-is-out", machine_refuses);
  g_test_add_func("/base/budget/asserts-that-all-came-back", leak);
  return g_test_run();
}
