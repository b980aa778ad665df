/* safetensors: one file and shards; what is read, what is refused. */
#include <string.h>
#include <unistd.h>

#include "tests/engine/model/files/maker.h"

static void
expect_message(GError **error, int code, const char *part) {
  g_assert_error(*error, OCT_FILES_ERROR, code);
  if (strstr((*error)->message, part) == NULL)
    g_error("'%s' does not contain '%s'", (*error)->message, part);
  g_clear_error(error);
}

static void
reads(void) {
  g_autoptr(maker) m = maker_new();
  g_autofree void *copy = NULL;
  g_autoptr(GError) error = NULL;
  maker_safetensors(m,
                    "{\"__metadata__\":{\"format\":\"pt\",\"x\\u00e9\":\"\\ud83d\\ude00\\n\"},"
                    "\"b\":{\"data_offsets\":[24,24],\"shape\":[0,7],\"dtype\":\"U8\"},"
                    " \"a\" : {\"dtype\":\"BF16\" , \"shape\":[3,4],\"data_offsets\":[0,24]},"
                    "\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]}} ",
                    32);
  g_autoptr(oct_checkpoint) c = maker_open(m, &copy, &error);
  g_assert_no_error(error);
  g_assert_cmpint(oct_checkpoint_format(c), ==, OCT_LOAD_SAFETENSORS);
  g_assert_cmpuint(oct_checkpoint_n_tensors(c), ==, 3);
  const oct_file_tensor *a = oct_checkpoint_find(c, "a"), *b = oct_checkpoint_find(c, "b");
  g_assert_cmpint(a->type, ==, OCT_STORED_BF16);
  g_assert_cmpuint(a->bytes, ==, 24);
  g_assert_cmpuint(b->bytes, ==, 0);
  g_assert_cmpuint(oct_file_tensor_elements(b), ==, 0);
  g_assert_cmpuint(oct_file_tensor_elements(oct_checkpoint_find(c, "s")), ==, 1);
  oct_text text = {0};
  g_assert_true(oct_checkpoint_text(c, "x\xc3\xa9", &text, &error));
  g_assert_cmpmem(text.bytes, text.size, "\xf0\x9f\x98\x80\n", 5);
}

static const struct {
  const char *header;
  gsize n_data;
  int code;
  const char *part;
} bad_headers[] = {
    {"", 0, OCT_FILES_ERROR_FORMAT, "wanted is '{'"},
    {"[]", 0, OCT_FILES_ERROR_FORMAT, "wanted is '{'"},
    {"{}x", 0, OCT_FILES_ERROR_FORMAT, "something follows the end"},
    {"{}", 1, OCT_FILES_ERROR_FORMAT, "1 bytes at the end belong to no tensor"},
    {"{\"a\":{}}", 0, OCT_FILES_ERROR_FORMAT, "wanted is a string"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 0, OCT_FILES_ERROR_FORMAT,
     "tensor a: it has no data_offsets"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, OCT_FILES_ERROR_FORMAT,
     "tensor a: it has no shape"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, OCT_FILES_ERROR_FORMAT,
     "tensor a: it has no dtype"},
    {"{\"a\":{\"dtype\":\"U9\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     OCT_FILES_ERROR_UNSUPPORTED, "tensor a: dtype \"U9\""},
    {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3,
     OCT_FILES_ERROR_UNSUPPORTED, "F6_E2M3"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     OCT_FILES_ERROR_FORMAT, "tensor a: dtype is there twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1,
     OCT_FILES_ERROR_FORMAT, "tensor a: an unknown field 'x'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, OCT_FILES_ERROR_FORMAT,
     "tensor a: 2 bytes at offset 0 reach past the end"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2, OCT_FILES_ERROR_FORMAT,
     "tensor a: data_offsets 0 to 2 for a shape that takes 1 bytes"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, OCT_FILES_ERROR_FORMAT,
     "tensor a: data_offsets 1 to 0 run backwards"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
     OCT_FILES_ERROR_LIMIT, "tensor a: a shape of more than 8 dimensions"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
     OCT_FILES_ERROR_LIMIT, "more elements than any file"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775808],\"data_offsets\":[0,0]}}", 0,
     OCT_FILES_ERROR_LIMIT, "more elements than any file"},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0,
     OCT_FILES_ERROR_LIMIT, "tensor a"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}", 0,
     OCT_FILES_ERROR_LIMIT, "a number of more than 64 bits"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, OCT_FILES_ERROR_FORMAT,
     "wanted is a whole number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, OCT_FILES_ERROR_FORMAT,
     "wanted is a whole number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1, OCT_FILES_ERROR_FORMAT,
     "wanted is a whole number"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
     1, OCT_FILES_ERROR_FORMAT, "overlap"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
     3, OCT_FILES_ERROR_FORMAT, "no tensor has the 1 bytes before it"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
     2, OCT_FILES_ERROR_FORMAT, "tensor a is there twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", 1, OCT_FILES_ERROR_FORMAT,
     "wanted is ',' or '}'"},
    {"{\"a\\u0000\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     OCT_FILES_ERROR_FORMAT, "broken escape"},
    {"{\"\\ud83d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     OCT_FILES_ERROR_FORMAT, "broken escape"},
    {"{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     OCT_FILES_ERROR_FORMAT, "not UTF-8"},
    {"{\"a\t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, OCT_FILES_ERROR_FORMAT,
     "control character"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, OCT_FILES_ERROR_LIMIT,
     "a tensor name of 0 bytes"},
    {"{\"a", 0, OCT_FILES_ERROR_FORMAT, "a string that does not end"},
    {"{\"a\\", 0, OCT_FILES_ERROR_FORMAT, "a string that does not end"},
    {"{\"__metadata__\":{\"a\":1}}", 0, OCT_FILES_ERROR_FORMAT, "wanted is a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, OCT_FILES_ERROR_FORMAT,
     "__metadata__ is there twice"},
    {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, OCT_FILES_ERROR_FORMAT,
     "metadata key a is there twice"},
};

static void
refuses_headers(void) {
  for (guint i = 0; i < G_N_ELEMENTS(bad_headers); i++) {
    g_autoptr(maker) m = maker_new();
    maker_safetensors(m, bad_headers[i].header, bad_headers[i].n_data);
    maker_refused(m, bad_headers[i].code, bad_headers[i].part);
  }
}

static void
refuses_misalignment(void) {
  g_autoptr(maker) m = maker_new();
  maker_safetensors(m, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
  maker_refused(m, OCT_FILES_ERROR_UNSUPPORTED, "not a multiple of the 4 that F32 needs");
}

static void
refuses_header_sizes(void) {
  const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
  const guint64 sizes[] = {0,
                           1,
                           strlen(header) - 1,
                           strlen(header) + 1,
                           strlen(header) + 2,

                           G_GUINT64_CONSTANT(1) << 32,
                           (G_GUINT64_CONSTANT(1) << 32) - 1,
                           (G_GUINT64_CONSTANT(1) << 32) + 1,
                           G_GUINT64_CONSTANT(1) << 63,
                           G_MAXUINT64 - 8,
                           G_MAXUINT64};
  g_autoptr(maker) m = maker_new();
  maker_safetensors(m, header, 1);
  for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
    g_autoptr(GError) error = NULL;
    g_autofree void *copy = NULL;
    maker_set(m, maker_find(m, "header size"), sizes[i]);
    g_assert_null(maker_open(m, &copy, &error));
    g_assert_nonnull(error);
  }
  maker_set(m, maker_find(m, "header size"), OCT_FILE_HEADER_MAX + 1ull);
  maker_refused(m, OCT_FILES_ERROR_LIMIT, "a header of 100000001 bytes, at most 100000000");
  maker_set(m, maker_find(m, "header size"), OCT_FILE_HEADER_MAX);
  maker_refused(m, OCT_FILES_ERROR_FORMAT, "a header of 100000000 bytes in a file of");
  maker_set(m, maker_find(m, "header size"), strlen(header));
  g_autofree void *copy = NULL;
  g_autoptr(oct_checkpoint) c = maker_open(m, &copy, NULL);
  g_assert_nonnull(c);
}

/* Each number of a header that has them all, replaced by each value. */
static void
survives_every_number(void) {
  const char *const values[] = {"0",
                                "1",
                                "4294967295",
                                "4294967296",
                                "4294967297",
                                "2147483648",
                                "9223372036854775807",
                                "9223372036854775808",
                                "9223372036854775809",
                                "18446744073709551615",
                                "18446744073709551616",
                                "-1",
                                "1e3",
                                "99999999999999999999999999"};
  const char *const parts[] = {"{\"a\":{\"dtype\":\"F16\",\"shape\":[",
                               ",",
                               "],\"data_offsets\":[",
                               ",",
                               "]},\"b\":{\"dtype\":\"U8\",\"shape\":[",
                               "],\"data_offsets\":[",
                               ",",
                               "]}}"};
  const char *const right[] = {"2", "3", "0", "12", "4", "12", "16"};
  for (guint field = 0; field < G_N_ELEMENTS(right); field++)
    for (guint k = 0; k < G_N_ELEMENTS(values); k++) {
      g_autoptr(maker) m = maker_new();
      g_autoptr(GError) error = NULL;
      g_autofree void *copy = NULL;
      g_autoptr(GString) header = g_string_new(NULL);
      for (guint i = 0; i < G_N_ELEMENTS(right); i++) {
        g_string_append(header, parts[i]);
        g_string_append(header, i == field ? values[k] : right[i]);
      }
      g_string_append(header, parts[G_N_ELEMENTS(right)]);
      while (header->len % 8 != 0)
        g_string_append_c(header, ' ');
      maker_safetensors(m, header->str, 16);
      g_autoptr(oct_checkpoint) c = maker_open(m, &copy, &error);
      gboolean same = g_str_equal(values[k], right[field]);
      g_assert_true((c != NULL) == same && (error == NULL) == same);
    }
}

/* --- folders and shards --------------------------------------------------------------------------
 */

/* A one-tensor file called `file`. */
static void
write_file(const char *folder, const char *file, const char *tensor) {
  g_autoptr(maker) m = maker_new();
  g_autofree char *header =
      g_strdup_printf("{\"%s\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", tensor);
  maker_safetensors(m, header, 2);
  scratch_write(folder, file, m->bytes->data, m->bytes->len);
}

static void
write_index(const char *folder, const char *map) {
  g_autofree char *text = g_strdup_printf("{\"metadata\":{\"total_size\":4,\"x\":[{},[1.5e3,null,"
                                          "\"\\\"]\"],{\"y\":[]}]},\"weight_map\":%s}",
                                          map);
  scratch_write(folder, "model.safetensors.index.json", text, -1);
}

static void
reads_shards(void) {
  g_autoptr(GError) error = NULL;
  char *folder = scratch_new();
  write_file(folder, "model-1.safetensors", "a");
  write_file(folder, "model-2.safetensors", "b");
  write_index(folder, "{\"b\":\"model-2.safetensors\",\"a\":\"model-1.safetensors\"}");
  g_autofree char *index = g_build_filename(folder, "model.safetensors.index.json", NULL);
  const char *const paths[] = {folder, index};
  for (guint i = 0; i < G_N_ELEMENTS(paths); i++) {
    g_autoptr(oct_checkpoint) c = oct_checkpoint_open(paths[i], OCT_LOAD_AUTO, &error);
    g_assert_no_error(error);
    g_assert_cmpuint(oct_checkpoint_n_tensors(c), ==, 2);
    g_assert_cmpuint(oct_checkpoint_n_files(c), ==, 2);
    const oct_file_tensor *b = oct_checkpoint_find(c, "b");
    g_assert_true(g_str_has_suffix(oct_checkpoint_file(c, b->file), "/model-2.safetensors"));
  }
  scratch_remove(folder);
}

static void
refuses_indexes(void) {
  const struct {
    const char *map;
    int code;
    const char *part;
  } cases[] = {
      {"{\"a\":\"../x.safetensors\"}", OCT_FILES_ERROR_FORMAT, "shard '../x.safetensors' is not"},
      {"{\"a\":\"/etc/passwd\"}", OCT_FILES_ERROR_FORMAT, "shard '/etc/passwd' is not the name"},
      {"{\"a\":\"..\"}", OCT_FILES_ERROR_FORMAT, "shard '..' is not"},
      {"{\"a\":\"\"}", OCT_FILES_ERROR_FORMAT, "shard '' is not"},
      {"{\"a\":\"model-1.safetensors\",\"b\":\"model-3.safetensors\"}", OCT_FILES_ERROR_NOT_FOUND,
       "shard model-3.safetensors is missing"},
      {"{\"c\":\"model-1.safetensors\"}", OCT_FILES_ERROR_TENSOR,
       "tensor c is not in its shard model-1.safetensors"},
      {"{\"a\":\"model-2.safetensors\",\"b\":\"model-1.safetensors\"}", OCT_FILES_ERROR_TENSOR,
       "is not in its shard"},
      {"{\"a\":\"model-1.safetensors\",\"b\":\"model-1b.safetensors\"}", OCT_FILES_ERROR_FORMAT,
       "tensor a is there twice"},
      {"{}", OCT_FILES_ERROR_FORMAT, "the weight_map is empty"},
      {"[]", OCT_FILES_ERROR_FORMAT, "wanted is '{'"},
      {"{\"a\":3}", OCT_FILES_ERROR_FORMAT, "wanted is a string"},
      {"{\"a\":\"model-1.safetensors\"},\"weight_map\":{}", OCT_FILES_ERROR_FORMAT,
       "weight_map is there twice"},
  };
  char *folder = scratch_new();
  write_file(folder, "model-1.safetensors", "a");
  write_file(folder, "model-1b.safetensors", "a");
  write_file(folder, "model-2.safetensors", "b");
  for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
    GError *error = NULL;
    write_index(folder, cases[i].map);
    g_assert_null(oct_checkpoint_open(folder, OCT_LOAD_AUTO, &error));
    expect_message(&error, cases[i].code, cases[i].part);
  }
  scratch_remove(folder);
}

static void
refuses_deep_indexes(void) {
  for (guint depth = OCT_FILE_DIMS_MAX; depth < 1000000; depth *= 8) {
    GError *error = NULL;
    g_autoptr(GString) text = g_string_new("{\"metadata\":");
    for (guint i = 0; i < depth; i++)
      g_string_append_c(text, '[');
    char *folder = scratch_new();
    scratch_write(folder, "model.safetensors.index.json", text->str, (gssize)text->len);
    g_assert_null(oct_checkpoint_open(folder, OCT_LOAD_AUTO, &error));
    expect_message(&error, depth <= 64 ? OCT_FILES_ERROR_FORMAT : OCT_FILES_ERROR_LIMIT,
                   depth <= 64 ? "wanted is a value" : "more than 64 levels");
    scratch_remove(folder);
  }
}

static void
chooses_in_a_folder(void) {
  GError *error = NULL;
  char *folder = scratch_new();
  g_assert_null(oct_checkpoint_open(folder, OCT_LOAD_AUTO, &error));
  expect_message(&error, OCT_FILES_ERROR_NOT_FOUND, "no checkpoint in this folder");
  scratch_write(folder, "a.gguf", "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
  oct_checkpoint *c = oct_checkpoint_open(folder, OCT_LOAD_AUTO, &error);
  g_assert_no_error(error);
  g_assert_cmpint(oct_checkpoint_format(c), ==, OCT_LOAD_GGUF);
  oct_checkpoint_close(c);
  write_file(folder, "model.safetensors", "a");
  c = oct_checkpoint_open(folder, OCT_LOAD_AUTO, &error);
  g_assert_no_error(error);
  g_assert_cmpint(oct_checkpoint_format(c), ==, OCT_LOAD_SAFETENSORS);
  oct_checkpoint_close(c);
  c = oct_checkpoint_open(folder, OCT_LOAD_GGUF, &error);
  g_assert_no_error(error);
  g_assert_cmpint(oct_checkpoint_format(c), ==, OCT_LOAD_GGUF);
  oct_checkpoint_close(c);
  scratch_write(folder, "b.gguf", "GGUF", 4);
  g_assert_null(oct_checkpoint_open(folder, OCT_LOAD_GGUF, &error));
  expect_message(&error, OCT_FILES_ERROR_NOT_FOUND, "there are several");
  g_autofree char *file = g_build_filename(folder, "model.safetensors", NULL);
  g_assert_null(oct_checkpoint_open(file, OCT_LOAD_GGUF, &error));
  expect_message(&error, OCT_FILES_ERROR_FORMAT, "this is not a GGUF file");
  g_autofree char *gguf = g_build_filename(folder, "a.gguf", NULL);
  g_assert_null(oct_checkpoint_open(gguf, OCT_LOAD_SAFETENSORS, &error));
  expect_message(&error, OCT_FILES_ERROR_FORMAT, "this is a GGUF file");
  scratch_remove(folder);
}

static void
refuses_what_is_no_file(void) {
  GError *error = NULL;
  g_assert_null(oct_checkpoint_open("/nonexistent/model.safetensors", OCT_LOAD_AUTO, &error));
  expect_message(&error, OCT_FILES_ERROR_NOT_FOUND, "/nonexistent/model.safetensors: No such file");
  g_assert_null(oct_checkpoint_open("/dev/zero", OCT_LOAD_AUTO, &error));
  expect_message(&error, OCT_FILES_ERROR_FORMAT, "/dev/zero: not a regular file");
  char *folder = scratch_new();
  scratch_write(folder, "empty.gguf", "", 0);
  g_autofree char *empty = g_build_filename(folder, "empty.gguf", NULL);
  g_assert_null(oct_checkpoint_open(empty, OCT_LOAD_AUTO, &error));
  expect_message(&error, OCT_FILES_ERROR_FORMAT, "not a regular file with something in it");
  scratch_remove(folder);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/files/safetensors/reads", reads);
  g_test_add_func("/files/safetensors/names-what-is-wrong-in-a-header", refuses_headers);
  g_test_add_func("/files/safetensors/refuses-data-that-is-not-aligned", refuses_misalignment);
  g_test_add_func("/files/safetensors/refuses-header-sizes", refuses_header_sizes);
  g_test_add_func("/files/safetensors/survives-every-number-at-every-limit", survives_every_number);
  g_test_add_func("/files/safetensors/reads-shards", reads_shards);
  g_test_add_func("/files/safetensors/refuses-indexes", refuses_indexes);
  g_test_add_func("/files/safetensors/refuses-deep-indexes", refuses_deep_indexes);
  g_test_add_func("/files/safetensors/chooses-in-a-folder", chooses_in_a_folder);
  g_test_add_func("/files/safetensors/refuses-what-is-no-file", refuses_what_is_no_file);
  return g_test_run();
}
