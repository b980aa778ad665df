/* The table of stored types. ggml's numbers are those of GGUF's specification. */
#include "engine/model/files/formats.h"

#include "engine/base/assert.h"

static const oct_stored_info infos[OCT_STORED_COUNT] = {
    [OCT_STORED_F64] = {"F64", 1, 8, 8, TRUE, 28, "F64"},
    [OCT_STORED_F32] = {"F32", 1, 4, 4, TRUE, 0, "F32"},
    [OCT_STORED_F16] = {"F16", 1, 2, 2, TRUE, 1, "F16"},
    [OCT_STORED_BF16] = {"BF16", 1, 2, 2, TRUE, 30, "BF16"},
    [OCT_STORED_F8_E4M3] = {"F8_E4M3", 1, 1, 1, TRUE, -1, "F8_E4M3"},
    [OCT_STORED_F8_E5M2] = {"F8_E5M2", 1, 1, 1, TRUE, -1, "F8_E5M2"},
    [OCT_STORED_F8_E8M0] = {"F8_E8M0", 1, 1, 1, TRUE, -1, "F8_E8M0"},
    [OCT_STORED_I64] = {"I64", 1, 8, 8, FALSE, 27, "I64"},
    [OCT_STORED_I32] = {"I32", 1, 4, 4, FALSE, 26, "I32"},
    [OCT_STORED_I16] = {"I16", 1, 2, 2, FALSE, 25, "I16"},
    [OCT_STORED_I8] = {"I8", 1, 1, 1, FALSE, 24, "I8"},
    [OCT_STORED_U64] = {"U64", 1, 8, 8, FALSE, -1, "U64"},
    [OCT_STORED_U32] = {"U32", 1, 4, 4, FALSE, -1, "U32"},
    [OCT_STORED_U16] = {"U16", 1, 2, 2, FALSE, -1, "U16"},
    [OCT_STORED_U8] = {"U8", 1, 1, 1, FALSE, -1, "U8"},
    [OCT_STORED_BOOL] = {"BOOL", 1, 1, 1, FALSE, -1, "BOOL"},
    [OCT_STORED_Q4_0] = {"Q4_0", 32, 18, 2, TRUE, 2, NULL},
    [OCT_STORED_Q4_1] = {"Q4_1", 32, 20, 2, TRUE, 3, NULL},
    [OCT_STORED_Q5_0] = {"Q5_0", 32, 22, 2, TRUE, 6, NULL},
    [OCT_STORED_Q5_1] = {"Q5_1", 32, 24, 2, TRUE, 7, NULL},
    [OCT_STORED_Q8_0] = {"Q8_0", 32, 34, 2, TRUE, 8, NULL},
    [OCT_STORED_Q4_K] = {"Q4_K", 256, 144, 2, TRUE, 12, NULL},
    [OCT_STORED_Q5_K] = {"Q5_K", 256, 176, 2, TRUE, 13, NULL},
    [OCT_STORED_Q6_K] = {"Q6_K", 256, 210, 2, TRUE, 14, NULL},
    [OCT_STORED_MXFP4] = {"MXFP4", 32, 17, 1, TRUE, 39, NULL},
};

/* The others of ggml's types, so that a refusal can name them. */
static const struct {
  guint32 number;
  const char *name;
} refused[] = {
    {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"},
    {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
    {22, "IQ2_S"},  {23, "IQ4_XS"},  {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},
};

const oct_stored_info *
oct_stored_get(oct_stored_type type) {
  oct_assert((guint)type < OCT_STORED_COUNT);
  return &infos[type];
}

gboolean
oct_stored_from_gguf(guint32 number, oct_stored_type *type) {
  for (guint i = 0; i < OCT_STORED_COUNT; i++)
    if (infos[i].gguf >= 0 && (guint32)infos[i].gguf == number) {
      *type = (oct_stored_type)i;
      return TRUE;
    }
  return FALSE;
}

gboolean
oct_stored_from_safetensors(const char *name, oct_stored_type *type) {
  for (guint i = 0; i < OCT_STORED_COUNT; i++)
    if (infos[i].safetensors != NULL && g_str_equal(infos[i].safetensors, name)) {
      *type = (oct_stored_type)i;
      return TRUE;
    }
  return FALSE;
}

const char *
oct_stored_gguf_name(guint32 number) {
  for (guint i = 0; i < G_N_ELEMENTS(refused); i++)
    if (refused[i].number == number)
      return refused[i].name;
  return NULL;
}

gboolean
oct_stored_bytes(oct_stored_type type, guint64 n, guint64 *bytes) {
  const oct_stored_info *info = oct_stored_get(type);
  return n % info->block == 0 && g_uint64_checked_mul(bytes, n / info->block, info->bytes);
}
