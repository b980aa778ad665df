#include "engine/base/file.h"

#include <glib/gstdio.h>
#include <string.h>

#include "engine/base/error.h"

typedef struct bed {
  char *folder, *path;
} bed;

static void
set_up(bed *b, gconstpointer unused) {
  (void)unused;
  b->folder = g_dir_make_tmp("octet-XXXXXX", NULL);
  b->path = g_build_filename(b->folder, "file", NULL);
}

static void
tear_down(bed *b, gconstpointer unused) {
  (void)unused;
  g_unlink(b->path);
  g_rmdir(b->folder);
  g_free(b->folder);
  g_free(b->path);
}

static void
write_bytes(const bed *b, gsize n) {
  g_autofree char *text = g_malloc(n + 1);
  memset(text, 'x', n);
  g_assert_true(g_file_set_contents(b->path, text, (gssize)n, NULL));
}

/* Around the limit, and around the room that a read has. */
static void
test_reads(bed *b, gconstpointer unused) {
  static const gsize sizes[] = {0, 1, 65535, 65536, 65537, 200000};
  (void)unused;
  for (gsize i = 0; i < G_N_ELEMENTS(sizes); i++) {
    g_autofree char *text = NULL;
    gsize size = 1;
    write_bytes(b, sizes[i]);
    g_assert_true(oct_file_read(b->path, 200000, &text, &size, NULL));
    g_assert_cmpuint(size, ==, sizes[i]);
    g_assert_cmpuint(strlen(text), ==, sizes[i]);
  }
}

static void
refuses(const char *path, gsize limit, int code, const char *why) {
  g_autofree char *text = NULL;
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_file_read(path, limit, &text, NULL, &error));
  g_assert_error(error, OCT_BASE_ERROR, code);
  g_assert_nonnull(strstr(error->message, why));
  g_assert_null(text);
}

static void
test_limit(bed *b, gconstpointer unused) {
  (void)unused;
  write_bytes(b, 1001);
  refuses(b->path, 1000, OCT_BASE_ERROR_LIMIT, "more bytes than the limit of 1000");
  refuses("/dev/zero", 1000000, OCT_BASE_ERROR_LIMIT, "more bytes than the limit of 1000000");
}

static void
test_none(bed *b, gconstpointer unused) {
  (void)unused;
  refuses(b->path, 1000, OCT_BASE_ERROR_IO, "No such file");
  refuses(b->folder, 1000, OCT_BASE_ERROR_IO, "directory");
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add("/base/file/a-file-comes-whole", bed, NULL, set_up, test_reads, tear_down);
  g_test_add("/base/file/what-has-no-end-is-refused", bed, NULL, set_up, test_limit, tear_down);
  g_test_add("/base/file/what-cannot-be-read-says-why", bed, NULL, set_up, test_none, tear_down);
  return g_test_run();
}
