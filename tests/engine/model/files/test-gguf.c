/* GGUF: what is read, what is refused, and every number of a header at the values that break
 * arithmetic. */
#include <string.h>

#include "tests/engine/model/files/maker.h"

enum { F32 = 0, Q8_0 = 8, Q4_K = 12 };
enum { UINT8 = 0, INT16 = 3, FLOAT32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, UINT64 = 10 };

/* A file with every kind of thing in it. */
static maker *
whole(guint32 version) {
  maker *m = maker_new();
  const gint16 numbers[] = {-1, 2, -32768};
  const float reals[] = {0.5f, -2};
  maker_gguf(m, version, 3, 8);
  maker_key_text(m, "general.architecture", "llama");
  maker_key_u32(m, "general.alignment", 64);
  maker_key_u64(m, "big", G_MAXUINT64);
  maker_key_f32(m, "eps", 0.25f);
  maker_key_bool(m, "flag", TRUE);
  maker_key_array(m, "words", STRING, 3);
  maker_text(m, "word 0 length", "the");
  maker_text(m, "word 1 length", "");
  maker_text(m, "word 2 length", "\xff\xfe end");
  maker_key_array(m, "numbers", INT16, 3);
  maker_raw(m, numbers, sizeof numbers);
  maker_key_array(m, "reals", FLOAT32, 2);
  maker_raw(m, reals, sizeof reals);
  maker_tensor(m, "b", F32, 0, (const guint64[]){3, 2}, 2);
  maker_tensor(m, "a", Q8_0, 64, (const guint64[]){64, 2, 3}, 3);
  maker_tensor(m, "c", Q4_K, 512, (const guint64[]){256}, 1);
  maker_pad(m, 64);
  for (guint i = 0; i < 656; i++)
    maker_raw(m, &(guint8){(guint8)i}, 1);
  return m;
}

static void
reads(gconstpointer version) {
  g_autoptr(maker) m = whole(GPOINTER_TO_UINT(version));
  g_autofree void *copy = NULL;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_checkpoint) c = maker_open(m, &copy, &error);
  g_assert_no_error(error);
  g_assert_cmpint(oct_checkpoint_format(c), ==, OCT_LOAD_GGUF);
  g_assert_cmpuint(oct_checkpoint_n_tensors(c), ==, 3);
  g_assert_cmpuint(oct_checkpoint_bytes(c), ==, 24 + 408 + 144);
  const oct_file_tensor *a = oct_checkpoint_tensor(c, 0);
  g_assert_cmpstr(a->name, ==, "a");
  g_assert_true(a == oct_checkpoint_find(c, "a"));
  g_assert_null(oct_checkpoint_find(c, "d"));
  g_assert_cmpint(a->type, ==, OCT_STORED_Q8_0);
  g_autofree char *shape = oct_file_tensor_shape(a);
  g_assert_cmpstr(shape, ==, "[3, 2, 64]");
  g_assert_cmpuint(oct_file_tensor_elements(a), ==, 384);
  g_assert_cmpuint(a->bytes, ==, 12 * 34);
  g_assert_cmpuint(a->data[0], ==, 64);
  g_assert_cmpuint(oct_checkpoint_find(c, "b")->data[1], ==, 1);
  g_assert_true(oct_checkpoint_find(c, "c")->data + 144 == (guint8 *)copy + m->bytes->len);
}

static void
reads_metadata(void) {
  g_autoptr(maker) m = whole(3);
  g_autofree void *copy = NULL;
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_checkpoint) c = maker_open(m, &copy, &error);
  guint64 integer = 0;
  double real = 0;
  gboolean flag = FALSE;
  oct_text text = {0};
  g_assert_no_error(error);
  g_assert_cmpuint(oct_checkpoint_n_meta(c), ==, 8);
  g_assert_cmpstr(oct_checkpoint_meta_at(c, 0)->key, ==, "big");
  g_assert_true(oct_checkpoint_uint(c, "big", 0, G_MAXUINT64, &integer, &error));
  g_assert_cmpuint(integer, ==, G_MAXUINT64);
  g_assert_true(oct_checkpoint_real(c, "eps", 0, 1, &real, &error));
  g_assert_cmpfloat(real, ==, 0.25);
  g_assert_true(oct_checkpoint_boolean(c, "flag", &flag, &error) && flag);
  g_assert_true(oct_checkpoint_text(c, "general.architecture", &text, &error));
  g_assert_cmpmem(text.bytes, text.size, "llama", 5);
  const oct_meta *words = oct_checkpoint_array(c, "words", OCT_META_TEXT, 3, &error);
  const oct_meta *numbers = oct_checkpoint_array(c, "numbers", OCT_META_UINT, 3, &error);
  const oct_meta *reals = oct_checkpoint_array(c, "reals", OCT_META_REAL, 3, &error);
  g_assert_no_error(error);
  text = oct_meta_item_text(words, 2);
  g_assert_cmpmem(text.bytes, text.size, "\xff\xfe end", 6);
  g_assert_cmpuint(oct_meta_item_text(words, 1).size, ==, 0);
  g_assert_cmpint(oct_meta_item_int(numbers, 0), ==, -1);
  g_assert_cmpint(oct_meta_item_int(numbers, 2), ==, -32768);
  g_assert_cmpfloat(oct_meta_item_real(reals, 1), ==, -2);
}

static void
expect_key_error(gboolean result, GError **error, const char *part) {
  g_assert_false(result);
  g_assert_error(*error, OCT_FILES_ERROR, OCT_FILES_ERROR_KEY);
  if (strstr((*error)->message, part) == NULL)
    g_error("'%s' does not contain '%s'", (*error)->message, part);
  g_clear_error(error);
}

static void
checks_metadata(void) {
  g_autoptr(maker) m = whole(3);
  g_autofree void *copy = NULL;
  GError *error = NULL;
  g_autoptr(oct_checkpoint) c = maker_open(m, &copy, &error);
  guint64 integer;
  double real;
  gboolean flag;
  oct_text text;
  expect_key_error(oct_checkpoint_uint(c, "none", 0, 1, &integer, &error), &error,
                   "test: metadata key none is missing");
  expect_key_error(oct_checkpoint_uint(c, "big", 0, 7, &integer, &error), &error,
                   "big is 18446744073709551615: allowed are 0 to 7");
  expect_key_error(oct_checkpoint_uint(c, "eps", 0, 7, &integer, &error), &error,
                   "eps is a number: wanted is an integer");
  expect_key_error(oct_checkpoint_real(c, "eps", 1, 7, &real, &error), &error,
                   "eps is 0.25: allowed are 1 to 7");
  expect_key_error(oct_checkpoint_boolean(c, "eps", &flag, &error), &error, "wanted is a boolean");
  expect_key_error(oct_checkpoint_text(c, "flag", &text, &error), &error, "wanted is text");
  expect_key_error(oct_checkpoint_array(c, "flag", OCT_META_TEXT, 9, &error) != NULL, &error,
                   "wanted is an array");
  expect_key_error(oct_checkpoint_array(c, "words", OCT_META_TEXT, 2, &error) != NULL, &error,
                   "has 3 elements, at most 2");
  expect_key_error(oct_checkpoint_array(c, "words", OCT_META_UINT, 9, &error) != NULL, &error,
                   "elements are text each: wanted is an integer");
}

/* Everything that an open checkpoint offers lies in its file. */
static void
assert_sound(const oct_checkpoint *c, const guint8 *bytes, gsize size) {
  for (guint i = 0; i < oct_checkpoint_n_tensors(c); i++) {
    const oct_file_tensor *t = oct_checkpoint_tensor(c, i);
    g_assert_true(t->data >= bytes && t->bytes <= size && t->data + t->bytes <= bytes + size);
    guint64 expected = 0;
    g_assert_true(oct_stored_bytes(t->type, oct_file_tensor_elements(t), &expected));
    g_assert_cmpuint(t->bytes, ==, expected);
  }
  for (guint i = 0; i < oct_checkpoint_n_meta(c); i++) {
    const oct_meta *meta = oct_checkpoint_meta_at(c, i);
    if (meta->kind == OCT_META_ARRAY)
      g_assert_cmpuint(meta->array.count, <=, size);
  }
}

/* Each number of the header at each value that overflows something, and at zero: the file is
 * refused, or what is offered is sound. */
static void
survives_every_number(void) {
  const guint64 two32 = G_GUINT64_CONSTANT(1) << 32, two63 = G_GUINT64_CONSTANT(1) << 63;
  const guint64 values[] = {
      0,          1,         two32 - 1, two32,          two32 + 1,        two63 - 1,
      two63,      two63 + 1, two63 / 2, two63 / 32 + 1, G_MAXUINT64 - 63, G_MAXUINT64 - 1,
      G_MAXUINT64};
  g_autoptr(maker) m = whole(3);
  guint n_refused = 0;
  for (guint i = 0; i < m->marks->len; i++) {
    const maker_mark *mark = &g_array_index(m->marks, maker_mark, i);
    guint64 before = maker_get(m, mark);
    for (guint k = 0; k < G_N_ELEMENTS(values); k++) {
      g_autoptr(GError) error = NULL;
      g_autofree void *copy = NULL;
      maker_set(m, mark, values[k]);
      g_autoptr(oct_checkpoint) c = maker_open(m, &copy, &error);
      g_assert_true((c == NULL) == (error != NULL));
      if (c != NULL)
        assert_sound(c, copy, m->bytes->len);
      n_refused += c == NULL;
      maker_set(m, mark, before);
    }
  }
  /* Nearly all of them are wrong. */
  g_assert_cmpuint(n_refused * 10, >, m->marks->len * G_N_ELEMENTS(values) * 8);
}

/* The file cut off at every byte. */
static void
refuses_every_prefix(void) {
  g_autoptr(maker) m = whole(3);
  guint size = m->bytes->len;
  for (guint n = 0; n < size; n++) {
    g_autoptr(GError) error = NULL;
    g_autofree void *copy = g_memdup2(m->bytes->data, MAX(n, 1));
    g_assert_null(oct_checkpoint_open_bytes("test", copy, n, &error));
    g_assert_nonnull(error);
  }
}

static void
refuses_a_number(const char *name, guint64 value, int code, const char *part) {
  g_autoptr(maker) m = whole(3);
  maker_set(m, maker_find(m, name), value);
  maker_refused(m, code, part);
}

static void
names_what_is_wrong(void) {
  const guint64 huge = G_GUINT64_CONSTANT(1) << 63;
  refuses_a_number("version", 1, OCT_FILES_ERROR_UNSUPPORTED, "GGUF version 1");
  refuses_a_number("version", 0x03000000, OCT_FILES_ERROR_UNSUPPORTED, "big-endian");
  refuses_a_number("tensors", huge, OCT_FILES_ERROR_LIMIT, "9223372036854775808 tensors: at most");
  refuses_a_number("keys", huge, OCT_FILES_ERROR_LIMIT, "9223372036854775808 metadata keys");
  refuses_a_number("key big: length", huge, OCT_FILES_ERROR_FORMAT, "wants 9223372036854775808");
  refuses_a_number("key big: kind", 13, OCT_FILES_ERROR_FORMAT, "big: a value of kind 13");
  refuses_a_number("key words: element kind", ARRAY, OCT_FILES_ERROR_UNSUPPORTED, "kind 9");
  refuses_a_number("key words: count", huge, OCT_FILES_ERROR_FORMAT, "words: an array of 92233");
  refuses_a_number("word 1 length", G_MAXUINT64, OCT_FILES_ERROR_FORMAT, "words: a text");
  for (guint i = 0; i < 5; i++)
    refuses_a_number("key general.alignment: value",
                     ((const guint64[]){0, 4, 24, 131072, G_MAXUINT32})[i], OCT_FILES_ERROR_LIMIT,
                     "general.alignment is");
  refuses_a_number("tensor a: dimensions", 0, OCT_FILES_ERROR_LIMIT, "tensor a: 0 dimensions");
  refuses_a_number("tensor a: dimensions", 5, OCT_FILES_ERROR_LIMIT, "tensor a: 5 dimensions");
  refuses_a_number("tensor a: size 1", huge, OCT_FILES_ERROR_LIMIT, "tensor a: its shape");
  refuses_a_number("tensor a: size 0", 65, OCT_FILES_ERROR_FORMAT, "not a whole number of Q8_0");
  refuses_a_number("tensor a: size 2", 4, OCT_FILES_ERROR_FORMAT, "overlap");
  refuses_a_number("tensor a: type", 20, OCT_FILES_ERROR_UNSUPPORTED, "type 20, IQ4_NL");
  refuses_a_number("tensor a: type", 77, OCT_FILES_ERROR_UNSUPPORTED, "tensor a: type 77 is");
  refuses_a_number("tensor c: offset", 513, OCT_FILES_ERROR_FORMAT, "not a multiple of the align");
  refuses_a_number("tensor c: offset", 576, OCT_FILES_ERROR_FORMAT,
                   "tensor c: 144 bytes at offset 576 reach past the end");
  refuses_a_number("tensor c: offset", G_MAXUINT64 - 63, OCT_FILES_ERROR_FORMAT, "past the end");
  refuses_a_number("tensor c: offset", 448, OCT_FILES_ERROR_FORMAT, "tensors a and c overlap");
}

static void
refuses_doubles(void) {
  g_autoptr(maker) keys = maker_new(), tensors = maker_new();
  maker_gguf(keys, 3, 0, 2);
  maker_key_u32(keys, "a", 1);
  maker_key_u32(keys, "a", 2);
  maker_refused(keys, OCT_FILES_ERROR_FORMAT, "metadata key a is there twice");
  maker_gguf(tensors, 3, 2, 0);
  maker_tensor(tensors, "t", F32, 0, (const guint64[]){1}, 1);
  maker_tensor(tensors, "t", F32, 32, (const guint64[]){1}, 1);
  maker_pad(tensors, 32);
  for (guint i = 0; i < 5; i++)
    maker_u64(tensors, NULL, 0);
  maker_refused(tensors, OCT_FILES_ERROR_FORMAT, "tensor t is there twice");
}

static void
refuses_names(void) {
  const char *const names[] = {"a\xff", "a"};
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autoptr(maker) m = maker_new();
    maker_gguf(m, 3, 0, 1);
    maker_u64(m, NULL, i == 0 ? 2 : 3);
    maker_raw(m, i == 0 ? names[0] : "a\0b", i == 0 ? 2 : 3);
    maker_u32(m, NULL, UINT8);
    maker_raw(m, "\1", 1);
    maker_raw(m, "padding", 7);
    maker_refused(m, OCT_FILES_ERROR_FORMAT, "is not UTF-8, or has a NUL");
  }
  g_autoptr(maker) m = maker_new();
  g_autofree char *name = g_strnfill(OCT_FILE_NAME_MAX + 1, 'n');
  maker_gguf(m, 3, 1, 0);
  maker_tensor(m, name, F32, 0, (const guint64[]){1}, 1);
  maker_pad(m, 32);
  maker_u32(m, NULL, 0);
  maker_refused(m, OCT_FILES_ERROR_LIMIT, "a tensor name of 1025 bytes: allowed are 1 to 1024");
  g_autoptr(maker) nameless = maker_new();
  maker_gguf(nameless, 3, 1, 0);
  maker_tensor(nameless, "", F32, 0, (const guint64[]){1}, 1);
  maker_pad(nameless, 32);
  maker_u32(nameless, NULL, 0);
  maker_refused(nameless, OCT_FILES_ERROR_LIMIT, "a tensor name of 0 bytes: allowed are 1");
}

static void
refuses_booleans(void) {
  g_autoptr(maker) one = maker_new(), many = maker_new();
  maker_gguf(one, 3, 0, 1);
  maker_key(one, "flag", BOOL);
  maker_raw(one, "\2", 1);
  maker_refused(one, OCT_FILES_ERROR_FORMAT, "flag: a boolean of 2");
  maker_gguf(many, 3, 0, 1);
  maker_key_array(many, "flags", BOOL, 3);
  maker_raw(many, "\0\1\3", 3);
  maker_refused(many, OCT_FILES_ERROR_FORMAT, "flags: a boolean of 3");
}

static void
refuses_parts(void) {
  for (guint32 n = 0; n < 3; n++) {
    g_autoptr(maker) m = maker_new();
    g_autoptr(GError) error = NULL;
    g_autofree void *copy = NULL;
    maker_gguf(m, 3, 0, 1);
    maker_key_u32(m, "split.count", n);
    g_autoptr(oct_checkpoint) c = maker_open(m, &copy, &error);
    g_assert_true((c == NULL) == (n > 1));
    if (n > 1)
      maker_refused(m, OCT_FILES_ERROR_UNSUPPORTED, "one of 2 files of a model");
  }
}

/* A file may end before its padding when no tensor has data. */
static void
reads_a_file_of_keys_only(void) {
  g_autoptr(maker) m = maker_new();
  g_autoptr(GError) error = NULL;
  g_autofree void *copy = NULL;
  maker_gguf(m, 3, 0, 1);
  maker_key_u64(m, "a", 5);
  g_autoptr(oct_checkpoint) c = maker_open(m, &copy, &error);
  g_assert_no_error(error);
  g_assert_cmpuint(oct_checkpoint_n_tensors(c), ==, 0);
  g_assert_null(oct_checkpoint_find(c, "a"));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_data_func("/files/gguf/reads-version-2", GUINT_TO_POINTER(2), reads);
  g_test_add_data_func("/files/gguf/reads-version-3", GUINT_TO_POINTER(3), reads);
  g_test_add_func("/files/gguf/reads-metadata", reads_metadata);
  g_test_add_func("/files/gguf/checks-kind-and-range-of-keys", checks_metadata);
  g_test_add_func("/files/gguf/survives-every-number-at-every-limit", survives_every_number);
  g_test_add_func("/files/gguf/refuses-every-prefix", refuses_every_prefix);
  g_test_add_func("/files/gguf/names-what-is-wrong", names_what_is_wrong);
  g_test_add_func("/files/gguf/refuses-names-that-are-there-twice", refuses_doubles);
  g_test_add_func("/files/gguf/refuses-names-that-are-no-names", refuses_names);
  g_test_add_func("/files/gguf/refuses-booleans-that-are-none", refuses_booleans);
  g_test_add_func("/files/gguf/refuses-a-part-of-a-model", refuses_parts);
  g_test_add_func("/files/gguf/reads-a-file-of-keys-only", reads_a_file_of_keys_only);
  return g_test_run();
}
