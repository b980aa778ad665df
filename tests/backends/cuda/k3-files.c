#include "tests/backends/cuda/k3-files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/files/formats.h"

#define H      7168
#define P      12288 /* heads x width of a head */
#define LATENT 3584
#define WIDTH  3072 /* of an expert */
#define TEXT   "language_model."

/* What a rank of a tensor group needs. */
typedef enum need { DIVIDED, WHOLE, EXPERT, HEADS_OF_PADDED } need;

typedef struct row {
  const char *name; /* behind "model.layers.N." */
  oct_stored_type type;
  guint32 shape[3]; /* ends at the first 0 */
  need need;
} row;

#define BF16 OCT_STORED_BF16
#define F32  OCT_STORED_F32
#define U8   OCT_STORED_U8

static const row every[] = {{"input_layernorm.weight", BF16, {H}, WHOLE},
                            {"post_attention_layernorm.weight", BF16, {H}, WHOLE},
                            {"self_attention_res_norm.weight", BF16, {H}, WHOLE},
                            {"self_attention_res_proj.weight", BF16, {1, H}, WHOLE},
                            {"mlp_res_norm.weight", BF16, {H}, WHOLE},
                            {"mlp_res_proj.weight", BF16, {1, H}, WHOLE}};
static const row kda[] = {{"self_attn.q_proj.weight", BF16, {P, H}, DIVIDED},
                          {"self_attn.k_proj.weight", BF16, {P, H}, DIVIDED},
                          {"self_attn.v_proj.weight", BF16, {P, H}, DIVIDED},
                          {"self_attn.g_proj.weight", BF16, {P, H}, DIVIDED},
                          {"self_attn.q_conv1d.weight", F32, {P, 1, 4}, DIVIDED},
                          {"self_attn.k_conv1d.weight", F32, {P, 1, 4}, DIVIDED},
                          {"self_attn.v_conv1d.weight", F32, {P, 1, 4}, DIVIDED},
                          {"self_attn.f_a_proj.weight", BF16, {128, H}, WHOLE},
                          {"self_attn.f_b_proj.weight", BF16, {P, 128}, DIVIDED},
                          {"self_attn.b_proj.weight", BF16, {96, H}, DIVIDED},
                          {"self_attn.A_log", F32, {128}, HEADS_OF_PADDED},
                          {"self_attn.dt_bias", F32, {P}, DIVIDED},
                          {"self_attn.o_norm.weight", F32, {128}, WHOLE},
                          {"self_attn.o_proj.weight", BF16, {H, P}, DIVIDED}};
static const row mla[] = {{"self_attn.q_a_proj.weight", BF16, {1536, H}, WHOLE},
                          {"self_attn.q_a_layernorm.weight", BF16, {1536}, WHOLE},
                          {"self_attn.q_b_proj.weight", BF16, {18432, 1536}, DIVIDED},
                          {"self_attn.kv_a_proj_with_mqa.weight", BF16, {576, H}, WHOLE},
                          {"self_attn.kv_a_layernorm.weight", BF16, {512}, WHOLE},
                          {"self_attn.kv_b_proj.weight", BF16, {24576, 512}, DIVIDED},
                          {"self_attn.g_proj.weight", BF16, {P, H}, DIVIDED},
                          {"self_attn.o_proj.weight", BF16, {H, P}, DIVIDED}};
static const row dense[] = {{"mlp.gate_proj.weight", BF16, {33792, H}, DIVIDED},
                            {"mlp.up_proj.weight", BF16, {33792, H}, DIVIDED},
                            {"mlp.down_proj.weight", BF16, {H, 33792}, DIVIDED}};
#define MOE "block_sparse_moe."
static const row moe[] = {{MOE "gate.weight", BF16, {K3_EXPERTS, H}, DIVIDED},
                          {MOE "gate.e_score_correction_bias", F32, {K3_EXPERTS}, WHOLE},
                          {MOE "routed_expert_down_proj.weight", BF16, {LATENT, H}, DIVIDED},
                          {MOE "routed_expert_norm.weight", BF16, {LATENT}, WHOLE},
                          {MOE "routed_expert_up_proj.weight", BF16, {H, LATENT}, DIVIDED},
                          {MOE "shared_experts.gate_proj.weight", BF16, {6144, H}, DIVIDED},
                          {MOE "shared_experts.up_proj.weight", BF16, {6144, H}, DIVIDED},
                          {MOE "shared_experts.down_proj.weight", BF16, {H, 6144}, DIVIDED}};
/* Behind "experts.E.". */
static const row expert[] = {{"w1.weight_packed", U8, {WIDTH, LATENT / 2}, EXPERT},
                             {"w1.weight_scale", U8, {WIDTH, LATENT / 32}, EXPERT},
                             {"w2.weight_packed", U8, {LATENT, WIDTH / 2}, EXPERT},
                             {"w2.weight_scale", U8, {LATENT, WIDTH / 32}, EXPERT},
                             {"w3.weight_packed", U8, {WIDTH, LATENT / 2}, EXPERT},
                             {"w3.weight_scale", U8, {WIDTH, LATENT / 32}, EXPERT}};
static const row end[] = {{"model.norm.weight", BF16, {H}, WHOLE},
                          {"model.output_attn_res_norm.weight", BF16, {H}, WHOLE},
                          {"model.output_attn_res_proj.weight", BF16, {1, H}, WHOLE},
                          {"lm_head.weight", BF16, {163840, H}, DIVIDED}};

typedef struct maker {
  const char *folder;
  GString *header, *index;
  guint64 bytes, before; /* of this shard; of those before it */
  guint shard;           /* from 1 */
  GError *error;         /* the first */
} maker;

static void
fail(maker *m, const char *path, const char *what) {
  int reason = errno;
  if (m->error == NULL)
    g_set_error(&m->error, G_FILE_ERROR, g_file_error_from_errno(reason), "%s: %s: %s", path, what,
                g_strerror(reason));
}

/* Length of the header, the header, and a hole. */
static void
end_shard(maker *m) {
  g_autofree char *path =
      g_strdup_printf("%s/model-%05u-of-%06u.safetensors", m->folder, m->shard, K3_SHARDS);
  g_string_append_c(m->header, '}');
  while (m->header->len % 8 != 0)
    g_string_append_c(m->header, ' ');
  guint64 length = GUINT64_TO_LE(m->header->len), size = 8 + m->header->len + m->bytes;
  g_string_prepend_len(m->header, (const char *)&length, 8);
  int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, m->header->str, m->header->len) != (gssize)m->header->len)
    fail(m, path, "not written");
  else if (ftruncate(fd, (off_t)size) != 0)
    fail(m, path, "no file with a hole");
  if (fd >= 0 && close(fd) != 0)
    fail(m, path, "not closed");
  g_string_assign(m->header, "{");
  m->before += m->bytes;
  m->bytes = 0;
  m->shard++;
}

static guint64
add(maker *m, const char *name, const row *r) {
  const oct_stored_info *info = oct_stored_get(r->type);
  guint64 bytes = info->bytes;
  g_string_append_printf(m->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                         m->bytes > 0 ? "," : "", name, info->name);
  for (guint i = 0; i < G_N_ELEMENTS(r->shape) && r->shape[i] > 0; i++) {
    g_string_append_printf(m->header, "%s%u", i > 0 ? "," : "", r->shape[i]);
    bytes *= r->shape[i];
  }
  g_string_append_printf(m->header,
                         "],\"data_offsets\":[%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT "]}",
                         m->bytes, m->bytes + bytes);
  g_string_append_printf(m->index, "%s\"%s\":\"model-%05u-of-%06u.safetensors\"",
                         m->index->str[m->index->len - 1] == '{' ? "" : ",", name, m->shard,
                         K3_SHARDS);
  m->bytes += bytes;
  return bytes;
}

/* The text model is in all shards but the last two, in equal parts. */
static void
add_text(maker *m, const char *prefix, const row *rows, gsize n, k3_bytes *to) {
  for (gsize i = 0; i < n; i++) {
    g_autofree char *name = g_strconcat(TEXT, prefix, rows[i].name, NULL);
    guint64 bytes = add(m, name, &rows[i]);
    switch (rows[i].need) {
    case DIVIDED:
      to->divided += bytes;
      break;
    case WHOLE:
      to->whole += bytes;
      break;
    case EXPERT:
      to->experts += bytes;
      break;
    case HEADS_OF_PADDED:
      to->divided += bytes / 128 * 96;
      to->padding += bytes / 128 * 32;
      break;
    }
  }
  if (m->before + m->bytes >= K3_TEXT_BYTES / (K3_SHARDS - 2) * m->shard &&
      m->shard < K3_SHARDS - 2)
    end_shard(m);
}

static void
add_layer(maker *m, guint32 layer, k3_bytes *to) {
  g_autofree char *prefix = g_strdup_printf("model.layers.%u.", layer);
  gboolean full = layer % 4 == 3 || layer == K3_LAYERS - 1;
  add_text(m, prefix, every, G_N_ELEMENTS(every), to);
  add_text(m, prefix, full ? mla : kda, full ? G_N_ELEMENTS(mla) : G_N_ELEMENTS(kda), to);
  if (layer == 0) {
    add_text(m, prefix, dense, G_N_ELEMENTS(dense), to);
    return;
  }
  add_text(m, prefix, moe, G_N_ELEMENTS(moe), to);
  /* The six tensors of an expert stand together, the experts in no order. */
  for (guint32 i = 0; i < K3_EXPERTS; i++) {
    g_autofree char *one = g_strdup_printf("%s" MOE "experts.%u.", prefix, i * 37 % K3_EXPERTS);
    add_text(m, one, expert, G_N_ELEMENTS(expert), to);
  }
}

static void
add_vision(maker *m) {
  const guint64 all = (K3_BYTES - K3_TEXT_BYTES) / 2;
  row flat = {NULL, BF16, {(guint32)(all / K3_VISION)}, WHOLE};
  for (guint i = 0; i < K3_VISION; i++) {
    g_autofree char *name = i < K3_VISION - 3 ? g_strdup_printf("vision_tower.blocks.%u.weight", i)
                                              : g_strdup_printf("mm_projector.%u.weight", i);
    if (i == K3_VISION - 1)
      flat.shape[0] = (guint32)(all - all / K3_VISION * (K3_VISION - 1));
    add(m, name, &flat);
    if (i == K3_VISION / 2)
      end_shard(m);
  }
  end_shard(m);
}

static void
add_side_files(maker *m) {
  g_autofree char *zoo = g_build_filename(g_getenv("G_TEST_SRCDIR"), "..", "engine", "model", "zoo",
                                          "kimi-k3.json", NULL);
  g_autofree char *config = g_build_filename(m->folder, "config.json", NULL);
  g_autofree char *index = g_build_filename(m->folder, "model.safetensors.index.json", NULL);
  g_autofree char *text = NULL;
  gsize size;
  g_string_append(m->index, "}}");
  if (m->error == NULL && g_file_get_contents(zoo, &text, &size, &m->error) &&
      g_file_set_contents(config, text, (gssize)size, &m->error))
    (void)g_file_set_contents(index, m->index->str, (gssize)m->index->len, &m->error);
}

gboolean
k3_files_write(const char *folder, k3_files *out, GError **error) {
  static const row embedding = {"model.embed_tokens.weight", BF16, {163840, H}, DIVIDED};
  maker m = {.folder = folder, .shard = 1};
  k3_bytes start = {0};
  m.header = g_string_new("{");
  m.index = g_string_new(NULL);
  g_string_append_printf(
      m.index, "{\"metadata\":{\"total_size\":%" G_GUINT64_FORMAT "},\"weight_map\":{", K3_BYTES);
  memset(out, 0, sizeof *out);
  add_text(&m, "", &embedding, 1, &start);
  out->embedding = start.divided;
  for (guint32 layer = 0; layer < K3_LAYERS && m.error == NULL; layer++)
    add_layer(&m, layer, &out->layer[layer]);
  add_text(&m, "", end, G_N_ELEMENTS(end), &out->end);
  end_shard(&m);
  add_vision(&m);
  add_side_files(&m);
  g_assert_true(m.error != NULL || m.shard == K3_SHARDS + 1);
  g_string_free(m.header, TRUE);
  g_string_free(m.index, TRUE);
  if (m.error == NULL)
    return TRUE;
  g_propagate_error(error, m.error);
  return FALSE;
}
