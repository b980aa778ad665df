#include "tests/sim/replay/bed.h"

#include <string.h>

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 1000, \"hidden_size\": 256, "
    "\"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64,"
    " \"intermediate_size\": 512, \"max_position_embeddings\": 100000, \"rms_norm_eps\": 1e-5,"
    " \"rope_theta\": 10000, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\","
    " \"torch_dtype\": \"bfloat16\", \"bos_token_id\": 1, \"eos_token_id\": 2}";

static const guint16 devices[OCT_REPLICAS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7};

static void
keep(void *user, guint64 index, const oct_outcome *outcome) {
  bed *b = user;
  const oct_outcome none = {.arrival_ns = -1};
  while (b->outcomes->len <= index)
    g_array_append_val(b->outcomes, none);
  g_array_index(b->outcomes, oct_outcome, index) = *outcome;
}

void
bed_init(bed *b) {
  memset(b, 0, sizeof *b);
  g_autoptr(GError) error = NULL;
  b->spec = oct_model_spec_parse("bed", config, strlen(config), &error);
  g_assert_no_error(error);
  oct_mock_options_default(&b->mock);
  b->mock.trust_records = TRUE;
  oct_engine_config *e = &b->drive.engine;
  oct_engine_config_default(e);
  e->instance.spec = b->spec;
  e->instance.memory = (oct_memory_plan){.n_groups = 1, .groups = {{.n_device = 60000}}};
  e->max_model_len = 100000;
  e->queue_max = 1 << 20;
  e->queue_tokens_max = G_GUINT64_CONSTANT(1) << 36;
  e->submit_lead_ns = 0;
  oct_slo_init(&b->drive.slo);
  b->drive.n_replicas = 1;
  b->drive.devices = devices;
  b->drive.exact_lengths = TRUE;
  b->drive.warmup_ns = -1;
  b->drive.seed = 1;
  b->drive.outcome = keep;
  b->drive.user = b;
  b->outcomes = g_array_new(FALSE, FALSE, sizeof(oct_outcome));
}

gboolean
bed_run(bed *b, const char *path, GError **error) {
  oct_drive_result_clear(&b->result);
  g_array_set_size(b->outcomes, 0);
  g_autoptr(oct_world) world = oct_mock_world_new(&b->mock, error);
  if (world == NULL)
    return FALSE;
  b->rows.path = path;
  g_autoptr(oct_rows) rows = oct_rows_open(&b->rows, error);
  if (rows == NULL)
    return FALSE;
  g_autoptr(oct_log) log = b->digest_log ? oct_log_new_digest() : NULL;
  b->drive.engine.log = log;
  gboolean good = oct_drive(world, rows, b->concurrency, &b->drive, &b->result, error);
  if (log != NULL) {
    b->digest = oct_log_digest(log);
    b->log_lines = oct_log_lines(log);
  }
  return good;
}

const oct_outcome *
bed_outcome(const bed *b, guint64 index) {
  g_assert_cmpuint(index, <, b->outcomes->len);
  return &g_array_index(b->outcomes, oct_outcome, index);
}

void
bed_clear(bed *b) {
  oct_drive_result_clear(&b->result);
  g_array_unref(b->outcomes);
  oct_model_spec_free(b->spec);
}
