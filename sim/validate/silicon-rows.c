/* Rows of published end-to-end runs: what they are in this simulation's words. */
#include <math.h>
#include <string.h>

#include "sim/validate/silicon.h"

#ifndef OCT_SOURCE_DIR
#define OCT_SOURCE_DIR "."
#endif

/* ---------------------------------------------------------------- reading */

static const char *const columns[] = {"mode",
                                      "backend",
                                      "backend_version",
                                      "model_path",
                                      "system",
                                      "precision",
                                      "isl",
                                      "osl",
                                      "gemm_quant_mode",
                                      "moe_quant_mode",
                                      "batch_size",
                                      "concurrency",
                                      "tp_size",
                                      "pp_size",
                                      "attention_dp_size",
                                      "moe_tp_size",
                                      "moe_ep_size",
                                      "source_kind",
                                      "ttft_ms",
                                      "tpot_ms",
                                      "measured",
                                      NULL};

enum {
  MODE,
  BACKEND,
  VERSION,
  MODEL,
  SYSTEM,
  PRECISION,
  ISL,
  OSL,
  GEMM,
  MOE,
  BATCH,
  CONCURRENCY,
  TP,
  PP,
  DP,
  MOE_TP,
  MOE_EP,
  SOURCE,
  TTFT,
  TPOT,
  DATE,
  N_COLUMNS
};

typedef struct reader {
  oct_silicon_rows *out;
  GHashTable *seen; /* all cells as one text -> index + 1 */
} reader;

static guint
count_or(const char *cell, guint standard) {
  double value = oct_measured_number(cell);
  return value >= 1 && value <= 1e7 ? (guint)value : standard;
}

static gboolean
read_row(char **cells, gpointer user, GError **error) {
  reader *r = user;
  oct_silicon_row row = {
      .system = oct_measured_system_find(cells[SYSTEM]), .tpot_spread = NAN, .ttft_spread = NAN};
  (void)error;
  r->out->read++;
  if (strcmp(cells[MODE], "agg") != 0) {
    r->out->disaggregated++;
    return TRUE;
  }
  if (row.system == OCT_MEASURED_SYSTEMS)
    return TRUE;
  g_strlcpy(row.backend, cells[BACKEND], sizeof row.backend);
  g_strlcpy(row.version, cells[VERSION], sizeof row.version);
  g_strlcpy(row.model, cells[MODEL], sizeof row.model);
  g_strlcpy(row.precision, cells[PRECISION], sizeof row.precision);
  g_strlcpy(row.gemm, cells[GEMM], sizeof row.gemm);
  g_strlcpy(row.moe, cells[MOE], sizeof row.moe);
  g_strlcpy(row.source, cells[SOURCE], sizeof row.source);
  row.isl = count_or(cells[ISL], 0);
  row.osl = count_or(cells[OSL], 0);
  row.concurrency = count_or(cells[CONCURRENCY], count_or(cells[BATCH], 0));
  row.tp = count_or(cells[TP], 1) * count_or(cells[PP], 1);
  row.dp = count_or(cells[DP], 1);
  row.moe_tp = count_or(cells[MOE_TP], 1);
  row.moe_ep = count_or(cells[MOE_EP], 1);
  row.ttft_s = oct_measured_number(cells[TTFT]) / 1e3;
  row.tpot_s = oct_measured_number(cells[TPOT]) / 1e3;
  row.vague = *row.version == '\0' || *row.precision == '\0';
  if (row.isl == 0 || row.osl < 2 || row.concurrency == 0 || !(row.ttft_s > 0) || !(row.tpot_s > 0))
    return TRUE;
  g_autofree char *all =
      g_strjoinv(",", (char *[]){cells[BACKEND], cells[VERSION], cells[MODEL], cells[SYSTEM],
                                 cells[PRECISION], cells[ISL], cells[OSL], cells[GEMM], cells[MOE],
                                 cells[CONCURRENCY], cells[TP], cells[PP], cells[DP], cells[MOE_TP],
                                 cells[MOE_EP], cells[TTFT], cells[TPOT], NULL});
  guint index = GPOINTER_TO_UINT(g_hash_table_lookup(r->seen, all));
  if (index > 0) {
    g_array_index(r->out->rows, oct_silicon_row, index - 1).duplicates++;
    r->out->duplicates++;
    return TRUE;
  }
  g_array_append_val(r->out->rows, row);
  g_hash_table_insert(r->seen, g_steal_pointer(&all), GUINT_TO_POINTER(r->out->rows->len));
  return TRUE;
}

/* ---------------------------------------------------------------- repeats */

static char *
configuration_of(const oct_silicon_row *r) {
  return g_strdup_printf("%s,%s,%s,%u,%s,%u,%u,%s,%s,%u,%u,%u,%u,%u", r->backend, r->version,
                         r->model, r->system, r->precision, r->isl, r->osl, r->gemm, r->moe,
                         r->concurrency, r->tp, r->dp, r->moe_tp, r->moe_ep);
}

typedef struct repeats {
  guint n;
  double ttft_s, tpot_s; /* sums */
} repeats;

static void
find_spread(GArray *rows) {
  g_autoptr(GHashTable) all = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
  for (guint pass = 0; pass < 2; pass++)
    for (guint i = 0; i < rows->len; i++) {
      oct_silicon_row *row = &g_array_index(rows, oct_silicon_row, i);
      g_autofree char *key = configuration_of(row);
      repeats *found = g_hash_table_lookup(all, key);
      if (found == NULL) {
        found = g_new0(repeats, 1);
        g_hash_table_insert(all, g_steal_pointer(&key), found);
      }
      if (pass == 0) {
        found->n++;
        found->ttft_s += row->ttft_s;
        found->tpot_s += row->tpot_s;
      } else if (found->n > 1) {
        row->ttft_spread = fabs(row->ttft_s * found->n / found->ttft_s - 1);
        row->tpot_spread = fabs(row->tpot_s * found->n / found->tpot_s - 1);
      }
    }
}

gboolean
oct_silicon_read(oct_silicon_rows *rows, const char *folder, GError **error) {
  *rows = (oct_silicon_rows){.rows = g_array_new(FALSE, FALSE, sizeof(oct_silicon_row))};
  reader r = {.out = rows, .seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL)};
  gboolean good = oct_measured_read(folder, "aic_silicon_e2e.csv", columns, read_row, &r, error);
  g_hash_table_unref(r.seen);
  if (!good) {
    oct_silicon_clear(rows);
    return FALSE;
  }
  find_spread(rows->rows);
  return TRUE;
}

void
oct_silicon_clear(oct_silicon_rows *rows) {
  g_clear_pointer(&rows->rows, g_array_unref);
}

/* ---------------------------------------------------------------- models and engines */

typedef struct known_model {
  const char *path, *zoo, *folder;
  gboolean own_types; /* stored as its own configuration says, whatever the row's modes */
  gboolean block; /* its published FP8 checkpoint has block scales, also where a row says "fp8" */
  gboolean whole_norms; /* of queries and keys, over all ranks */
  gboolean experts;
} known_model;
#define BESIDE OCT_SOURCE_DIR "/sim/validate/models"
static const known_model models[] = {
    {"meta-llama/Llama-3.1-70B", "llama-3.1-70b", NULL, FALSE, FALSE, FALSE, FALSE},
    {"meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", NULL, FALSE, FALSE, FALSE, FALSE},
    {"nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b", NULL, FALSE, FALSE, FALSE, FALSE},
    {"Qwen/Qwen3-32B", "qwen3-32b", NULL, FALSE, FALSE, FALSE, FALSE},
    {"nvidia/Qwen3-32B-NVFP4", "qwen3-32b", NULL, FALSE, FALSE, FALSE, FALSE},
    {"Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", NULL, FALSE, TRUE, FALSE, TRUE},
    {"deepseek-ai/DeepSeek-R1", "deepseek-v3", NULL, FALSE, TRUE, FALSE, TRUE},
    {"deepseek-ai/DeepSeek-V3", "deepseek-v3", NULL, FALSE, TRUE, FALSE, TRUE},
    {"nvidia/DeepSeek-R1-NVFP4", "deepseek-v3", NULL, FALSE, FALSE, FALSE, TRUE},
    {"nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3", NULL, FALSE, FALSE, FALSE, TRUE},
    {"moonshotai/Kimi-K2.5", "kimi-k2", NULL, FALSE, FALSE, FALSE, TRUE},
    {"openai/gpt-oss-120b", "gpt-oss-120b", NULL, TRUE, FALSE, FALSE, TRUE},
    {"MiniMaxAI/MiniMax-M2.5", "minimax-m2", BESIDE, FALSE, TRUE, TRUE, TRUE},
};

static const known_model *
model_of(const oct_silicon_row *row) {
  for (gsize i = 0; i < G_N_ELEMENTS(models); i++)
    if (strcmp(models[i].path, row->model) == 0)
      return &models[i];
  return NULL;
}

gboolean
oct_silicon_has_experts(const oct_silicon_row *row) {
  const known_model *model = model_of(row);
  return model != NULL && model->experts;
}

static oct_dtype
type_of(const char *mode, gboolean block) {
  static const struct {
    const char *mode;
    oct_dtype type;
  } types[] = {{"fp8", OCT_DTYPE_FP8},
               {"fp8_block", OCT_DTYPE_FP8_BLOCK},
               {"nvfp4", OCT_DTYPE_NVFP4},
               {"int4_wo", OCT_DTYPE_INT4_G32}};
  for (gsize i = 0; i < G_N_ELEMENTS(types); i++)
    if (strcmp(types[i].mode, mode) == 0)
      return block && types[i].type == OCT_DTYPE_FP8 ? OCT_DTYPE_FP8_BLOCK : types[i].type;
  return OCT_DTYPE_BF16;
}

const char *
oct_silicon_unsupported(const oct_silicon_row *row) {
  const guint ranks = row->tp * row->dp;
  if (model_of(row) == NULL)
    return "architecture without a price (gated delta net, sparse attention)";
  if (ranks > 8)
    return "more than one node";
  if (row->moe_tp > 1 && row->moe_ep > 1)
    return "experts cut both ways";
  if (row->moe_ep > 1 && row->moe_ep != ranks)
    return "experts over some of the ranks";
  if (row->dp > 1 && row->moe_ep == 1)
    return "data-parallel attention with experts cut by width";
  return NULL;
}

const char *
oct_silicon_engine(const oct_silicon_row *row) {
  if (strcmp(row->backend, "sglang") == 0)
    return "sglang-0.5";
  if (strcmp(row->backend, "trtllm") == 0)
    return g_str_has_prefix(row->version, "1.0") || g_str_has_prefix(row->version, "gpt-oss")
               ? "trtllm-1.0"
               : "trtllm-1.2";
  /* Asynchronous scheduling became the default in 0.14. */
  return g_str_has_prefix(row->version, "0.11") || g_str_has_prefix(row->version, "0.12")
             ? "vllm-0.12"
             : "vllm-0.24";
}

/* Tokens that the caches hold, of all KV domains; 0 when the setup cannot be made. */
static guint64
cache_tokens(const oct_setup_options *options, GError **error) {
  oct_setup setup;
  if (!oct_setup_make(options, &setup, error))
    return 0;
  guint64 tokens = setup.ledger.cache_tokens * setup.engine.instance.parallel.data;
  oct_setup_clear(&setup);
  return tokens;
}

/* The run was measured at this concurrency, so its caches held it. */
static gboolean
choose_kv(const oct_silicon_row *row, oct_setup_options *o, GError **error) {
  const guint64 needed = (guint64)row->concurrency * (row->isl + row->osl);
  guint64 tokens = cache_tokens(o, error);
  if (tokens > 0 && tokens < needed && o->engine.instance.kv_dtype != OCT_DTYPE_FP8) {
    o->engine.instance.kv_dtype = OCT_DTYPE_FP8;
    tokens = cache_tokens(o, error);
  }
  if (tokens > 0 && tokens < needed)
    g_set_error(error, OCT_VALIDATE_ERROR, OCT_VALIDATE_ERROR_DATA,
                "caches of %" G_GUINT64_FORMAT
                " tokens, also in FP8, do not hold %" G_GUINT64_FORMAT,
                tokens, needed);
  return tokens >= needed;
}

gboolean
oct_silicon_setup(const oct_silicon_row *row, oct_setup_options *o, GError **error) {
  const known_model *model = model_of(row);
  oct_engine_preset preset;
  oct_setup_options_default(o);
  if (!oct_engine_preset_load(oct_silicon_engine(row), &preset, error))
    return FALSE;
  oct_setup_imitate(o, &preset);
  o->model = model->zoo;
  o->zoo_dir = model->folder;
  o->node = oct_measured_systems[row->system].node;
  o->prefix_caching = 0;
  o->whole_norms = model->whole_norms;
  o->engine.instance.parallel.tensor = row->tp;
  o->engine.instance.parallel.data = row->dp;
  o->engine.instance.parallel.expert_parallel = row->moe_ep > 1;
  o->engine.max_num_seqs = MAX(256, (row->concurrency + row->dp - 1) / row->dp);
  o->engine.max_model_len = row->isl + row->osl + 16;
  if (!model->own_types) {
    o->weight_type = type_of(row->gemm, model->block);
    o->expert_type = type_of(row->moe, model->block);
  }
  /* TensorRT-LLM's quantised checkpoints keep KV in FP8; the others' default is BF16. */
  if (strcmp(row->backend, "trtllm") == 0 && o->weight_type != OCT_DTYPE_BF16 &&
      o->weight_type != OCT_DTYPE_NONE)
    o->engine.instance.kv_dtype = OCT_DTYPE_FP8;
  return choose_kv(row, o, error);
}
