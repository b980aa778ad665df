#include "config.h" /* GNU extensions: F_SETPIPE_SZ */

#include "engine/base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <glib/gstdio.h>

#include "engine/base/error.h"

typedef struct fixture {
  char *folder, *path;
} fixture;

static void
set_up(fixture *f, gconstpointer unused G_GNUC_UNUSED) {
  g_autoptr(GError) error = NULL;
  f->folder = g_dir_make_tmp("octet-test-log-XXXXXX", &error);
  g_assert_no_error(error);
  f->path = g_build_filename(f->folder, "events.log", NULL);
}

static void
tear_down(fixture *f, gconstpointer unused G_GNUC_UNUSED) {
  g_unlink(f->path);
  g_assert_cmpint(g_rmdir(f->folder), ==, 0);
  g_free(f->path);
  g_free(f->folder);
}

static void
close_well(oct_log *log) {
  g_autoptr(GError) error = NULL;
  gboolean closed = oct_log_close(log, &error);
  g_assert_no_error(error);
  g_assert_true(closed);
}

static void
assert_holds(const char *path, const char *wanted) {
  g_autofree char *text = NULL;
  g_autoptr(GError) error = NULL;
  g_file_get_contents(path, &text, NULL, &error);
  g_assert_no_error(error);
  g_assert_cmpstr(text, ==, wanted);
}

static oct_log *
open_file(fixture *f) {
  g_autoptr(GError) error = NULL;
  oct_log *log = oct_log_new_file(f->path, &error);
  g_assert_no_error(error);
  return log;
}

static void
writes_lines(fixture *f, gconstpointer unused G_GNUC_UNUSED) {
  oct_log *log = open_file(f);
  oct_log_printf(log, "%d step %s", -5, "one");
  static const gint64 values[] = {0, 7, -7, 10, 1234567890123, G_MAXINT64, G_MININT64};
  for (gsize i = 0; i < G_N_ELEMENTS(values); i++) {
    oct_log_text(log, "v ");
    oct_log_i64(log, values[i]);
    oct_log_end(log);
  }
  oct_log_hex(log, 0x0123456789abcdefu);
  oct_log_end(log);
  oct_log_end(log);
  g_assert_cmpuint(oct_log_lines(log), ==, 10);
  close_well(log);
  assert_holds(f->path, "-5 step one\nv 0\nv 7\nv -7\nv 10\nv 1234567890123\n"
                        "v 9223372036854775807\nv -9223372036854775808\n0123456789abcdef\n\n");
}

/* Many times the buffer, with lines of all lengths: what arrives is what was written. */
static void
fills_the_buffer(fixture *f, gconstpointer unused G_GNUC_UNUSED) {
  oct_log *log = open_file(f);
  g_autoptr(GString) wanted = g_string_new(NULL);
  for (gint64 i = 0; i < 20000; i++) {
    g_autofree char *word = g_strnfill((gsize)(i * 7919 % 61), 'x');
    oct_log_i64(log, i);
    oct_log_text(log, word);
    oct_log_end(log);
    g_string_append_printf(wanted, "%" G_GINT64_FORMAT "%s\n", i, word);
  }
  close_well(log);
  assert_holds(f->path, wanted->str);
}

typedef struct slow_reader {
  int fd;
  pthread_t writer;
  GString *text;
} slow_reader;

static void
on_signal(int unused G_GNUC_UNUSED) {
}

/* Reads a little at a time and interrupts the writer, whose write() then ends in the middle. */
static void *
read_slowly(void *data) {
  slow_reader *reader = data;
  char piece[3000];
  ssize_t n;
  while ((n = read(reader->fd, piece, sizeof piece)) > 0) {
    g_string_append_len(reader->text, piece, n);
    pthread_kill(reader->writer, SIGUSR1);
  }
  return NULL;
}

static void
goes_on_after_short_writes(void) {
  int ends[2];
  g_assert_cmpint(pipe(ends), ==, 0);
  g_assert_cmpint(fcntl(ends[1], F_SETPIPE_SZ, 4096), >=, 0); /* so that every write waits */
  struct sigaction action = {.sa_handler = on_signal}, old; /* without SA_RESTART */
  g_assert_cmpint(sigaction(SIGUSR1, &action, &old), ==, 0);
  slow_reader reader = {ends[0], pthread_self(), g_string_new(NULL)};
  pthread_t thread;
  g_assert_cmpint(pthread_create(&thread, NULL, read_slowly, &reader), ==, 0);
  g_autoptr(GString) wanted = g_string_new(NULL);
  oct_log *log = oct_log_new_fd(ends[1]);
  for (int i = 0; i < 100000; i++) {
    oct_log_printf(log, "line %d", i);
    g_string_append_printf(wanted, "line %d\n", i);
  }
  close_well(log);
  g_assert_cmpint(close(ends[1]), ==, 0);
  g_assert_cmpint(pthread_join(thread, NULL), ==, 0);
  g_assert_cmpint(sigaction(SIGUSR1, &old, NULL), ==, 0);
  g_assert_true(g_string_equal(reader.text, wanted));
  g_string_free(reader.text, TRUE);
  close(ends[0]);
}

static void
digest_ignores_the_target(fixture *f, gconstpointer unused G_GNUC_UNUSED) {
  oct_log *file = open_file(f);
  g_autoptr(oct_log) digest = oct_log_new_digest();
  g_autoptr(oct_log) other = oct_log_new_digest();
  for (int i = 0; i < 30000; i++) {
    oct_log_printf(file, "line %d", i);
    oct_log_text(digest, "line ");
    oct_log_i64(digest, i);
    oct_log_end(digest);
    oct_log_printf(other, "line %d", i == 20000 ? 0 : i);
    if (i < 20000)
      g_assert_true(oct_hash128_equal(oct_log_digest(digest), oct_log_digest(other)));
    else
      g_assert_false(oct_hash128_equal(oct_log_digest(digest), oct_log_digest(other)));
  }
  g_assert_true(oct_hash128_equal(oct_log_digest(digest), oct_log_digest(file)));
  close_well(file);
}

/* "a" + newline + "b" is not "ab" in two lines cut elsewhere. */
static void
digest_sees_line_ends(void) {
  g_autoptr(oct_log) one = oct_log_new_digest();
  g_autoptr(oct_log) two = oct_log_new_digest();
  oct_log_printf(one, "ab");
  oct_log_printf(one, "c");
  oct_log_printf(two, "a");
  oct_log_printf(two, "bc");
  g_assert_false(oct_hash128_equal(oct_log_digest(one), oct_log_digest(two)));
}

static void
write_long(oct_log *log, gsize bytes, gboolean formatted) {
  g_autofree char *text = g_strnfill(bytes, 'y');
  if (formatted) {
    oct_log_printf(log, "%s", text);
  } else {
    oct_log_text(log, text);
    oct_log_end(log);
  }
}

static void
long_lines(fixture *f, gconstpointer formatted) {
  /* The newline counts. */
  for (gsize bytes = OCT_LOG_LINE_BYTES_MAX - 2; bytes <= OCT_LOG_LINE_BYTES_MAX; bytes++) {
    oct_log *log = open_file(f);
    for (int i = 0; i < 9; i++) {
      oct_log_printf(log, "before");
      write_long(log, bytes, formatted != NULL);
    }
    oct_log_printf(log, "after");
    g_autoptr(GError) error = NULL;
    if (bytes < OCT_LOG_LINE_BYTES_MAX) {
      close_well(log);
      continue;
    }
    g_assert_false(oct_log_close(log, &error));
    g_assert_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_LIMIT);
    g_assert_nonnull(strstr(error->message, "line 2 "));
    g_assert_nonnull(strstr(error->message, "16384"));
  }
}

static void
full_disk(void) {
  int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (fd < 0) {
    g_test_skip("no /dev/full");
    return;
  }
  oct_log *log = oct_log_new_fd(fd);
  g_autoptr(oct_log) twin = oct_log_new_digest();
  for (int i = 0; i < 50000; i++) {
    oct_log_printf(log, "line %d", i);
    oct_log_printf(twin, "line %d", i);
  }
  g_assert_true(oct_hash128_equal(oct_log_digest(log), oct_log_digest(twin)));
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_log_close(log, &error));
  g_assert_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_IO);
  g_assert_cmpint(close(fd), ==, 0); /* borrowed: the log left it open */
}

static void
no_such_folder(void) {
  g_autoptr(GError) error = NULL;
  g_assert_null(oct_log_new_file("/no/such/folder/events.log", &error));
  g_assert_error(error, OCT_BASE_ERROR, OCT_BASE_ERROR_IO);
  g_assert_nonnull(strstr(error->message, "/no/such/folder/events.log"));
}

#define ADD(path, data, function) g_test_add(path, fixture, data, set_up, function, tear_down)

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  ADD("/base/log/writes-the-lines-it-is-given", NULL, writes_lines);
  ADD("/base/log/keeps-every-byte-past-its-buffer", NULL, fills_the_buffer);
  g_test_add_func("/base/log/goes-on-after-short-writes", goes_on_after_short_writes);
  ADD("/base/log/digest-does-not-depend-on-the-target", NULL, digest_ignores_the_target);
  g_test_add_func("/base/log/digest-sees-where-lines-end", digest_sees_line_ends);
  ADD("/base/log/refuses-a-line-past-its-limit/appended", NULL, long_lines);
  ADD("/base/log/refuses-a-line-past-its-limit/formatted", GINT_TO_POINTER(1), long_lines);
  g_test_add_func("/base/log/reports-a-full-disk-at-close", full_disk);
  g_test_add_func("/base/log/names-the-file-it-cannot-create", no_such_folder);
  return g_test_run();
}
