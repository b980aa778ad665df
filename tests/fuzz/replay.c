/* Runs a fuzz target without libFuzzer: over its corpus (OCT_CORPUS names its folder in
 * tests/fuzz/corpus), then over mutants of the corpus, which are a function of the seed (--seed N;
 * the default is fixed, so that make check is the same every time;
 * --mutants N says how many). An input that crashes is written to crash-OCT_CORPUS in the current
 * folder first. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <glib.h>

#include "engine/base/rng.h"
#include "tests/fuzz/replay.h"

#define INPUT_BYTES_MAX 65536
#define CRASH_TEXT      "the input is in ./crash-" OCT_CORPUS "\n"

typedef struct input {
  char *name;
  guint8 *bytes;
  gsize size;
} input;

static GPtrArray *corpus; /* of input */
static gint64 seed = 1, n_mutants = 5000;

/* What is being run, for the signal handler. */
static const guint8 *running;
static gsize running_size;

static void
on_crash(int signal_number) {
  int fd = open("crash-" OCT_CORPUS, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0) {
    if (write(fd, running, running_size) == (ssize_t)running_size)
      (void)!write(STDERR_FILENO, CRASH_TEXT, strlen(CRASH_TEXT));
    close(fd);
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

/* Runs on a copy of exactly the input's size, so that sanitizers see a read past its end. */
static void
run_one(const guint8 *bytes, gsize size) {
  guint8 *copy = g_malloc(MAX(size, 1));
  if (size > 0)
    memcpy(copy, bytes, size);
  running = copy;
  running_size = size;
  g_assert_cmpint(LLVMFuzzerTestOneInput(copy, size), ==, 0);
  g_free(copy);
}

static void
run_file(gconstpointer data) {
  const input *file = data;
  run_one(file->bytes, file->size);
}

/* Text that parsers stumble over. */
static const char *const dictionary[] = {
    "0",    "-1",   "1e999", "-1e999", "NaN",  "4294967296",  "18446744073709551616", "0.5",
    "null", "true", "\"\"",  "[]",     "{}",   "[[[[[[[[",    "{\"a\":{\"a\":",       "\\u0000",
    ",",    ",,",   "\r\n",  "\n",     "\xff", "\xef\xbb\xbf"};

static gsize
mutate(oct_rng *rng, guint8 *bytes, gsize size) {
  gsize at = oct_rng_below(rng, size + 1), rest = size - at;
  gsize n = 1 + oct_rng_below(rng, 16);
  n = MIN(n, rest);
  switch (oct_rng_below(rng, 6)) {
  case 0: /* change a byte */
    if (rest > 0)
      bytes[at] = (guint8)oct_rng_u64(rng);
    return size;
  case 1: /* flip a bit */
    if (rest > 0)
      bytes[at] ^= (guint8)(1u << oct_rng_below(rng, 8));
    return size;
  case 2: /* cut off the end */
    return oct_rng_below(rng, 4) == 0 ? at : size;
  case 3: /* leave out a piece */
    memmove(bytes + at, bytes + at + n, rest - n);
    return size - n;
  case 4: /* repeat a piece */
    if (size + n > INPUT_BYTES_MAX)
      return size;
    memmove(bytes + at + n, bytes + at, rest);
    return size + n;
  default: { /* put a word in */
    const char *word = dictionary[oct_rng_below(rng, G_N_ELEMENTS(dictionary))];
    n = strlen(word);
    if (size + n > INPUT_BYTES_MAX)
      return size;
    memmove(bytes + at + n, bytes + at, rest);
    memcpy(bytes + at, word, n);
    return size + n;
  }
  }
}

static void
run_mutants(void) {
  g_test_message("seed %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT " mutants", seed, n_mutants);
  oct_rng rng;
  oct_rng_seed(&rng, (guint64)seed, 0);
  g_autofree guint8 *bytes = g_malloc(INPUT_BYTES_MAX);
  for (gint64 i = 0; i < n_mutants; i++) {
    const input *parent = g_ptr_array_index(corpus, oct_rng_below(&rng, corpus->len));
    gsize size = MIN(parent->size, INPUT_BYTES_MAX);
    memcpy(bytes, parent->bytes, size);
    for (guint64 k = 1 + oct_rng_below(&rng, 4); k > 0; k--)
      size = mutate(&rng, bytes, size);
    run_one(bytes, size);
  }
}

static int
by_name(gconstpointer a, gconstpointer b) {
  return strcmp((*(const input *const *)a)->name, (*(const input *const *)b)->name);
}

static void
read_corpus(void) {
  g_autofree char *folder = g_test_build_filename(G_TEST_DIST, "fuzz", "corpus", OCT_CORPUS, NULL);
  g_autoptr(GError) error = NULL;
  g_autoptr(GDir) dir = g_dir_open(folder, 0, &error);
  g_assert_no_error(error);
  corpus = g_ptr_array_new();
  for (const char *name; (name = g_dir_read_name(dir)) != NULL;) {
    g_autofree char *path = g_build_filename(folder, name, NULL);
    input *file = g_new0(input, 1);
    file->name = g_strdup(name);
    g_file_get_contents(path, (char **)&file->bytes, &file->size, &error);
    g_assert_no_error(error);
    g_ptr_array_add(corpus, file);
  }
  g_assert_cmpuint(corpus->len, >, 0);
  g_ptr_array_sort(corpus, by_name);
}

static void
free_corpus(void) {
  for (guint i = 0; i < corpus->len; i++) {
    input *file = g_ptr_array_index(corpus, i);
    g_free(file->name);
    g_free(file->bytes);
    g_free(file);
  }
  g_ptr_array_free(corpus, TRUE);
}

/* Takes --seed N and --mutants N out of argv before GLib sees it. */
static void
take_options(int *argc, char **argv) {
  int kept = 1;
  for (int i = 1; i < *argc; i++) {
    gint64 *value = g_str_equal(argv[i], "--seed")      ? &seed
                    : g_str_equal(argv[i], "--mutants") ? &n_mutants
                                                        : NULL;
    if (value && i + 1 < *argc)
      *value = g_ascii_strtoll(argv[++i], NULL, 10);
    else
      argv[kept++] = argv[i];
  }
  *argc = kept;
  argv[kept] = NULL;
}

int
main(int argc, char **argv) {
  take_options(&argc, argv);
  g_test_init(&argc, &argv, NULL);
  read_corpus();
  static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE};
  for (gsize i = 0; i < G_N_ELEMENTS(signals); i++)
    signal(signals[i], on_crash);
  for (guint i = 0; i < corpus->len; i++) {
    input *file = g_ptr_array_index(corpus, i);
    g_autofree char *path = g_strdup_printf("/fuzz/" OCT_CORPUS "/survives/%s", file->name);
    g_test_add_data_func(path, file, run_file);
  }
  g_test_add_func("/fuzz/" OCT_CORPUS "/survives-mutants-of-its-corpus", run_mutants);
  int status = g_test_run();
  free_corpus();
  return status;
}
