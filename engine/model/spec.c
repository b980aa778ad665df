/* Storage types, finding and reading a config, the zoo's folders. */
#include "engine/model/spec.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/model/fields.h"
#include "engine/model/files/model.h"

G_DEFINE_QUARK(oct - model - error - quark, oct_model_error)

const char *
oct_dtype_name(oct_dtype type) {
  static const char *const names[OCT_DTYPE_COUNT] = {
      [OCT_DTYPE_NONE] = "none",
      [OCT_DTYPE_F32] = "float32",
      [OCT_DTYPE_BF16] = "bfloat16",
      [OCT_DTYPE_F16] = "float16",
      [OCT_DTYPE_FP8] = "fp8",
      [OCT_DTYPE_FP8_BLOCK] = "fp8-block128",
      [OCT_DTYPE_MXFP4] = "mxfp4",
      [OCT_DTYPE_NVFP4] = "nvfp4",
      [OCT_DTYPE_INT4_G128] = "int4-g128",
      [OCT_DTYPE_INT4_G64] = "int4-g64",
      [OCT_DTYPE_INT4_G32] = "int4-g32",
      [OCT_DTYPE_Q4_0] = "q4_0",
      [OCT_DTYPE_Q4_1] = "q4_1",
      [OCT_DTYPE_Q5_0] = "q5_0",
      [OCT_DTYPE_Q5_1] = "q5_1",
      [OCT_DTYPE_Q8_0] = "q8_0",
      [OCT_DTYPE_Q4_K] = "q4_k",
      [OCT_DTYPE_Q5_K] = "q5_k",
      [OCT_DTYPE_Q6_K] = "q6_k",
  };
  oct_assert((guint)type < OCT_DTYPE_COUNT);
  return names[type];
}

static guint64
blocks_of(guint64 n, guint64 block) {
  return (n + block - 1) / block;
}

guint32
oct_dtype_int4_group(oct_dtype type) {
  return type == OCT_DTYPE_INT4_G128  ? 128
         : type == OCT_DTYPE_INT4_G64 ? 64
         : type == OCT_DTYPE_INT4_G32 ? 32
                                      : 0;
}

guint64
oct_storage_bytes(oct_dtype type, guint64 rows, guint64 columns) {
  switch (type) {
  case OCT_DTYPE_F32:
    return rows * columns * 4;
  case OCT_DTYPE_BF16:
  case OCT_DTYPE_F16:
    return rows * columns * 2;
  case OCT_DTYPE_FP8:
    return rows * columns;
  case OCT_DTYPE_FP8_BLOCK:
    return rows * columns + 4 * blocks_of(rows, 128) * blocks_of(columns, 128);
  case OCT_DTYPE_MXFP4:
    return rows * (blocks_of(columns, 2) + blocks_of(columns, 32));
  case OCT_DTYPE_NVFP4:
    return rows * (blocks_of(columns, 2) + blocks_of(columns, 16));
  case OCT_DTYPE_INT4_G128:
  case OCT_DTYPE_INT4_G64:
  case OCT_DTYPE_INT4_G32: {
    guint64 groups = rows * blocks_of(columns, oct_dtype_int4_group(type));
    return rows * blocks_of(columns, 2) + 2 * groups + blocks_of(groups, 2);
  }
  case OCT_DTYPE_Q4_0:
    return rows * blocks_of(columns, 32) * 18;
  case OCT_DTYPE_Q4_1:
    return rows * blocks_of(columns, 32) * 20;
  case OCT_DTYPE_Q5_0:
    return rows * blocks_of(columns, 32) * 22;
  case OCT_DTYPE_Q5_1:
    return rows * blocks_of(columns, 32) * 24;
  case OCT_DTYPE_Q8_0:
    return rows * blocks_of(columns, 32) * 34;
  case OCT_DTYPE_Q4_K:
    return rows * blocks_of(columns, 256) * 144;
  case OCT_DTYPE_Q5_K:
    return rows * blocks_of(columns, 256) * 176;
  case OCT_DTYPE_Q6_K:
    return rows * blocks_of(columns, 256) * 210;
  case OCT_DTYPE_NONE:
  case OCT_DTYPE_COUNT:
    break;
  }
  oct_assert_failed(__FILE__, __LINE__, "a tensor has a storage type");
}

const char *const *
oct_model_zoo_dirs(void) {
  static const char *const dirs[] = {OCT_SOURCE_DIR "/engine/model/zoo", OCT_DATA_DIR "/zoo", NULL};
  return dirs;
}

static int
compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static void
add_names(GPtrArray *names, const char *dir) {
  g_autoptr(GDir) folder = g_dir_open(dir, 0, NULL);
  const char *entry;
  while (folder != NULL && (entry = g_dir_read_name(folder)) != NULL) {
    if (!g_str_has_suffix(entry, ".json"))
      continue;
    g_autofree char *name = g_strndup(entry, strlen(entry) - strlen(".json"));
    if (!g_ptr_array_find_with_equal_func(names, name, g_str_equal, NULL))
      g_ptr_array_add(names, g_steal_pointer(&name));
  }
}

char **
oct_model_zoo_names(const char *zoo_dir) {
  const char *const given[] = {zoo_dir, NULL};
  GPtrArray *names = g_ptr_array_new();
  for (const char *const *dir = zoo_dir != NULL ? given : oct_model_zoo_dirs(); *dir != NULL; dir++)
    add_names(names, *dir);
  g_ptr_array_sort(names, compare_names);
  g_ptr_array_add(names, NULL);
  return (char **)g_ptr_array_free(names, FALSE);
}

/* A zoo name is a file name: no separators, and no way out of the folder. */
static gboolean
is_zoo_name(const char *name) {
  if (!g_ascii_isalnum(name[0]) || strlen(name) > 64)
    return FALSE;
  for (const char *c = name; *c != '\0'; c++)
    if (!g_ascii_isalnum(*c) && *c != '.' && *c != '-' && *c != '_')
      return FALSE;
  return TRUE;
}

/* The config file that `name` means, or NULL; owned. */
static char *
find_config(const char *name, const char *zoo_dir) {
  const char *const given[] = {zoo_dir, NULL};
  if (is_zoo_name(name)) {
    g_autofree char *file = g_strconcat(name, ".json", NULL);
    for (const char *const *dir = zoo_dir != NULL ? given : oct_model_zoo_dirs(); *dir != NULL;
         dir++) {
      g_autofree char *path = g_build_filename(*dir, file, NULL);
      if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
        return g_steal_pointer(&path);
    }
  }
  if (g_file_test(name, G_FILE_TEST_IS_DIR)) {
    g_autofree char *path = g_build_filename(name, "config.json", NULL);
    return g_file_test(path, G_FILE_TEST_EXISTS) ? g_steal_pointer(&path) : NULL;
  }
  return g_file_test(name, G_FILE_TEST_EXISTS) ? g_strdup(name) : NULL;
}

/* The whole of a regular file of at most OCT_FIELDS_BYTES_MAX bytes; owned. Never blocks on a pipe
 * or a device. */
static char *
read_config(const char *path, gsize *size, GError **error) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0) {
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_NOT_FOUND, "%s: %s", path,
                g_strerror(errno));
    if (fd >= 0)
      close(fd);
    return NULL;
  }
  if (!S_ISREG(status.st_mode)) {
    close(fd);
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE, "%s: not a regular file", path);
    return NULL;
  }
  /* One byte more than is allowed tells a file that is too long. */
  g_autofree char *text = g_malloc(OCT_FIELDS_BYTES_MAX + 1);
  gsize length = 0;
  ssize_t n = 1;
  while (n > 0 && length <= OCT_FIELDS_BYTES_MAX) {
    n = read(fd, text + length, OCT_FIELDS_BYTES_MAX + 1 - length);
    if (n < 0 && errno == EINTR)
      n = 1;
    else if (n > 0)
      length += (gsize)n;
  }
  int failed = n < 0 ? errno : 0;
  close(fd);
  if (failed != 0) {
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_PARSE, "%s: %s", path, g_strerror(failed));
    return NULL;
  }
  *size = length;
  return g_steal_pointer(&text);
}

/* "kimi-k3" of zoo/kimi-k3.json and of kimi-k3/config.json; owned. */
static char *
name_of(const char *path) {
  g_autofree char *base = g_path_get_basename(path);
  if (g_str_equal(base, "config.json")) {
    g_autofree char *absolute = g_canonicalize_filename(path, NULL);
    g_autofree char *folder = g_path_get_dirname(absolute);
    return g_path_get_basename(folder);
  }
  if (g_str_has_suffix(base, ".json"))
    base[strlen(base) - strlen(".json")] = '\0';
  return g_steal_pointer(&base);
}

/* A .gguf file, or a folder without a config.json that holds one. */
static gboolean
is_gguf(const char *name, const char *config) {
  if (g_file_test(name, G_FILE_TEST_IS_DIR))
    return config == NULL && oct_checkpoint_has_gguf(name);
  return g_str_has_suffix(name, ".gguf") && g_file_test(name, G_FILE_TEST_EXISTS);
}

static oct_model_spec *
load_gguf(const char *path, GError **error) {
  g_autoptr(oct_checkpoint) checkpoint = oct_checkpoint_open(path, OCT_LOAD_GGUF, error);
  return checkpoint != NULL ? oct_model_spec_from_gguf(checkpoint, error) : NULL;
}

/* A type that follows the last plus of `name` is taken off it; NONE: there is none. */
static oct_dtype
take_format(char *name) {
  char *plus = strrchr(name, '+');
  for (guint type = OCT_DTYPE_FP8; plus != NULL && type <= OCT_DTYPE_INT4_G32; type++)
    if (g_str_equal(plus + 1, oct_dtype_name((oct_dtype)type))) {
      *plus = '\0';
      return (oct_dtype)type;
    }
  return OCT_DTYPE_NONE;
}

/* Likewise a number of layers, "+8layers"; 0: there is none. */
static guint32
take_layers(char *name) {
  char *plus = strrchr(name, '+'), *end = NULL;
  if (plus == NULL || !g_ascii_isdigit(plus[1]) || plus[1] == '0')
    return 0;
  guint64 n = g_ascii_strtoull(plus + 1, &end, 10);
  if (!g_str_equal(end, "layers") || n > OCT_MODEL_LAYERS_MAX)
    return 0;
  *plus = '\0';
  return (guint32)n;
}

static void
add_to_name(oct_model_spec *spec, const char *what) {
  char *name = g_strdup_printf("%s+%s", spec->name, what);
  g_free(spec->name);
  spec->name = name;
}

/* The same model with the weights that quantising schemes cover in another type. */
static void
change_format(oct_model_spec *spec, oct_dtype type) {
  oct_weight_types *t = &spec->types;
  t->attention = t->dense_ffn = t->expert = t->shared_expert = type;
  add_to_name(spec, oct_dtype_name(type));
}

/* Drops the kinds of feed-forward, or of attention, that no layer has any more. */
static void
drop_unused(oct_model_spec *spec) {
  guint8 attention[OCT_ATTENTION_COUNT] = {0}, ffn[OCT_FFN_COUNT] = {0};
  guint32 n_attention = 0, n_ffn = 0;
  for (guint32 l = 0; l < spec->n_layers; l++) {
    attention[spec->layers[l].attention] = 1;
    ffn[spec->layers[l].ffn] = 1;
  }
  for (guint8 i = 0; i < spec->n_attention; i++)
    if (attention[i] != 0) {
      spec->attention[n_attention] = spec->attention[i];
      attention[i] = (guint8)n_attention++;
    }
  for (guint8 i = 0; i < spec->n_ffn; i++)
    if (ffn[i] != 0) {
      spec->ffn[n_ffn] = spec->ffn[i];
      ffn[i] = (guint8)n_ffn++;
    }
  spec->n_attention = n_attention;
  spec->n_ffn = n_ffn;
  for (guint32 l = 0; l < spec->n_layers; l++)
    spec->layers[l] =
        (oct_layer_spec){attention[spec->layers[l].attention], ffn[spec->layers[l].ffn]};
}

/* The first n of the model's layers, between the same embedding and head. */
static gboolean
cut_layers(oct_model_spec *spec, guint32 n, GError **error) {
  if (n > spec->n_layers) {
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_FIELD,
                "%s: %u layers are wanted, it has %u", spec->name, n, spec->n_layers);
    return FALSE;
  }
  spec->n_layers = n;
  drop_unused(spec);
  g_autofree char *what = g_strdup_printf("%ulayers", n);
  add_to_name(spec, what);
  return TRUE;
}

static oct_model_spec *
load_as_it_is(const char *name, const char *zoo_dir, GError **error) {
  g_autofree char *path = find_config(name, zoo_dir);
  if (is_gguf(name, path))
    return load_gguf(name, error);
  if (path == NULL) {
    g_auto(GStrv) names = oct_model_zoo_names(zoo_dir);
    g_autofree char *known = g_strjoinv(", ", names);
    const char *plus = strrchr(name, '+'); /* one that said something was taken off */
    g_autofree char *about_plus =
        plus == NULL ? g_strdup("")
                     : g_strdup_printf(": '%s' is neither +Nlayers, N from 1 to %d, nor a weight "
                                       "format behind that",
                                       plus, OCT_MODEL_LAYERS_MAX);
    g_set_error(error, OCT_MODEL_ERROR, OCT_MODEL_ERROR_NOT_FOUND,
                "model '%s' is neither a config.json or .gguf file, nor a folder with one, nor in "
                "the zoo (%s)%s",
                name, *known != '\0' ? known : "which is empty", about_plus);
    return NULL;
  }
  gsize size = 0;
  g_autofree char *text = read_config(path, &size, error);
  if (text == NULL)
    return NULL;
  oct_model_spec *spec = oct_model_spec_parse(path, text, size, error);
  if (spec != NULL) {
    g_free(spec->name);
    spec->name = name_of(path);
  }
  return spec;
}

oct_model_spec *
oct_model_spec_load(const char *name, const char *zoo_dir, GError **error) {
  g_autofree char *base = g_strdup(name);
  gboolean is_file = g_file_test(name, G_FILE_TEST_EXISTS);
  oct_dtype type = is_file ? OCT_DTYPE_NONE : take_format(base);
  guint32 n_layers = is_file ? 0 : take_layers(base);
  g_autoptr(oct_model_spec) spec = load_as_it_is(base, zoo_dir, error);
  if (spec == NULL || (n_layers > 0 && !cut_layers(spec, n_layers, error)))
    return NULL;
  if (type != OCT_DTYPE_NONE)
    change_format(spec, type);
  return g_steal_pointer(&spec);
}

gboolean
oct_model_has_experts(const oct_model_spec *spec) {
  for (guint32 i = 0; i < spec->n_ffn; i++)
    if (spec->ffn[i].n_experts > 0)
      return TRUE;
  return FALSE;
}

gboolean
oct_model_has_state(const oct_model_spec *spec) {
  for (guint32 i = 0; i < spec->n_attention; i++)
    if (spec->attention[i].kind == OCT_ATTENTION_KDA)
      return TRUE;
  return FALSE;
}

void
oct_model_spec_free(oct_model_spec *spec) {
  if (spec == NULL)
    return;
  g_free(spec->name);
  g_free(spec->architecture);
  g_free(spec->layers);
  g_free(spec);
}
