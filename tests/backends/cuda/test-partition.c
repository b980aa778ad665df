/* How the cuda backend divides a model over ranks, without a GPU. Every byte of a checkpoint is
 * read by as many ranks as hold it, and by no other; what the ranks of a layout compute from their
 * parts, added up where the backend's all-reduce is, are the unsharded model's logits. */
#include <math.h>
#include <string.h>

#include "engine/base/rng.h"
#include "tests/backends/cuda/ranks.h"
#include "tests/backends/cuda/wide.h"

typedef struct layout {
  const char *name;
  guint32 tensor, pipeline, data;
  gboolean experts, whole_latents;
} layout;

static const layout layouts[] = {
    {"tp2", 2, 1, 1, FALSE, FALSE},        {"tp8", 8, 1, 1, FALSE, FALSE},
    {"tp4-pp2", 4, 2, 1, FALSE, FALSE},    {"tp2-pp4", 2, 4, 1, FALSE, FALSE},
    {"ep8", 8, 1, 1, TRUE, FALSE},         {"dp8-ep8", 1, 1, 8, TRUE, FALSE},
    {"dp2-tp4-ep8", 4, 1, 2, TRUE, FALSE}, {"tp8-whole-latents", 8, 1, 1, FALSE, TRUE}};

static oct_parallel
parallel_of(const layout *l) {
  oct_parallel p = OCT_PARALLEL_DEFAULT;
  p.tensor = l->tensor;
  p.pipeline = l->pipeline;
  p.data = l->data;
  p.expert_parallel = l->experts;
  p.shard_latent = !l->whole_latents;
  return p;
}

/* ---------------------------------------------------------------- wide models */

#define VOCAB  133 /* does not divide */
#define HIDDEN 256
#define TOKENS 22
#define CHUNK  17 /* then one by one */

static oct_model_spec
wide(guint32 n_layers) {
  static char name[] = "wide";
  static oct_layer_spec plain[4];
  return wide_base(name, VOCAB, HIDDEN, plain, n_layers);
}

static oct_model_spec
dense(void) {
  oct_model_spec s = wide(4);
  s.attention[0] = (oct_attention_spec){.kind = OCT_ATTENTION_GQA,
                                        .n_heads = 16,
                                        .n_kv_heads = 8,
                                        .head_dim = 128,
                                        .qk_norm = TRUE,
                                        .qkv_bias = TRUE,
                                        .o_bias = TRUE};
  s.ffn[0] = (oct_ffn_spec){.kind = OCT_FFN_DENSE, .intermediate = 1024};
  s.tied_embeddings = TRUE;
  return s;
}

/* Fewer KV heads than ranks, sinks, windows, experts with biases and a switch. */
static oct_model_spec
few_kv_heads(void) {
  static oct_layer_spec mixed[4] = {{0, 0}, {1, 0}, {0, 0}, {1, 0}};
  oct_model_spec s = wide(4);
  s.layers = mixed;
  s.n_attention = 2;
  s.attention[0] = (oct_attention_spec){
      .kind = OCT_ATTENTION_GQA, .n_heads = 16, .n_kv_heads = 2, .head_dim = 128, .sinks = TRUE};
  s.attention[1] = s.attention[0];
  s.attention[1].kind = OCT_ATTENTION_WINDOW;
  s.attention[1].window = 8;
  s.ffn[0] = wide_experts(256);
  s.ffn[0].expert_bias = s.ffn[0].shared_gate = TRUE;
  s.types.expert = OCT_DTYPE_MXFP4;
  return s;
}

static oct_model_spec
latent(void) {
  oct_model_spec s = wide(4);
  s.attention[0] = (oct_attention_spec){.kind = OCT_ATTENTION_MLA,
                                        .n_heads = 16,
                                        .q_lora = 192,
                                        .kv_lora = 512,
                                        .qk_nope = 128,
                                        .qk_rope = 64,
                                        .v_head = 128};
  s.ffn[0] = wide_experts(256);
  s.ffn[0].moe_intermediate = 1024; /* a block of 128 on each of 8 ranks */
  s.ffn[0].shared_intermediate = 1024;
  s.ffn[0].router_bias = TRUE;
  s.types.expert = s.types.shared_expert = s.types.attention = OCT_DTYPE_FP8_BLOCK;
  s.numerics.router_sigmoid = s.numerics.router_renormalise = TRUE;
  return s;
}

static oct_model_spec
four_bits(void) {
  oct_model_spec s = dense();
  s.attention[0].qkv_bias = s.attention[0].o_bias = FALSE;
  s.tied_embeddings = FALSE;
  s.types.attention = s.types.dense_ffn = OCT_DTYPE_INT4_G128;
  return s;
}

/* Kimi K3 with everything that it has, 13 layers in blocks of 4. */
static oct_model_spec
k3(void) {
  return wide_k3(VOCAB, HIDDEN, 512, 128);
}

typedef struct model {
  const char *name;
  oct_model_spec (*spec)(void);
} model;

static const model models[] = {{"dense", dense},
                               {"few-kv-heads", few_kv_heads},
                               {"latent", latent},
                               {"four-bits", four_bits},
                               {"k3", k3}};

typedef struct test {
  const model *model;
  const layout *layout;
} test;

/* ---------------------------------------------------------------- what ranks compute */

static double
difference(const float *a, const float *b, gsize n) {
  double d = 0, size = 0;
  for (gsize i = 0; i < n; i++) {
    d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    size += (double)b[i] * b[i];
  }
  g_assert_cmpfloat(size, >, 0);
  return sqrt(d / size);
}

static void
ranks_equal_the_whole(gconstpointer data) {
  const test *t = data;
  oct_model_spec spec = t->model->spec();
  oct_parallel parallel = parallel_of(t->layout);
  guint32 ids[TOKENS];
  for (guint32 i = 0; i < TOKENS; i++)
    ids[i] = (guint32)(oct_mix64(i + 1) % VOCAB);
  g_autoptr(ranks) s = ranks_new(&spec, &parallel, TOKENS);
  double worst = 0;
  for (guint32 first = 0, n = CHUNK; first < TOKENS; first += n, n = 1) {
    g_autofree float *whole = ranks_logits(s, ids + first, first, n, FALSE);
    g_autofree float *parts = ranks_logits(s, ids + first, first, n, TRUE);
    worst = MAX(worst, difference(parts, whole, (gsize)n * VOCAB));
  }
  g_test_message("%s on %s: relative L2 %.1e", t->model->name, t->layout->name, worst);
  g_assert_cmpfloat(worst, <=, 1e-5);
  const oct_attention_spec *a = &spec.attention[spec.layers[0].attention];
  if (a->kind != OCT_ATTENTION_GQA)
    return;
  g_assert_cmpuint(ranks_kv_heads(s, 0, 0), ==, MAX(a->n_kv_heads / parallel.tensor, 1));
}

/* ---------------------------------------------------------------- bytes */

static const char *const published[] = {"llama-3.1-70b", "qwen3-30b-a3b",       "deepseek-v3",
                                        "gpt-oss-120b",  "kimi-linear-48b-a3b", "kimi-k3"};

/* Elements of a weight that belong to somebody: a decay's padding does not. */
static guint64
rows_of(const oct_model_spec *spec, const oct_weight *w) {
  return w->kind == OCT_WEIGHT_A_LOG ? spec->attention[spec->layers[w->layer].attention].n_heads
                                     : w->rows;
}

/* Bytes of scales that two ranks need because a group of codes is cut at `at`. */
static guint64
shared_scales(const oct_weight *w, gboolean by_rows, guint64 at) {
  guint64 scale = oct_stored_get(w->scale_type)->bytes;
  if (w->layout == OCT_LAYOUT_FP8)
    return w->row_scales ? 0 : scale; /* one for all */
  if (w->layout == OCT_LAYOUT_FP8_BLOCK && at % 128 != 0)
    return (((by_rows ? w->columns : w->rows) + 127) / 128) * scale;
  if (w->layout == OCT_LAYOUT_MXFP4 && !by_rows && at % 32 != 0)
    return w->rows;
  if (w->layout == OCT_LAYOUT_NVFP4 && !by_rows && at % 16 != 0)
    return w->rows;
  g_assert_true(w->layout != OCT_LAYOUT_AWQ || at % (by_rows ? 8 : w->group) == 0);
  return 0;
}

typedef struct sum {
  guint64 file, read, copied, scales;
  guint32 copies;
} sum;

/* All ranks' parts of a weight: they lie side by side, each as often as it is said to be held. */
static void
add_weight(const oct_model_spec *spec, const oct_parallel *parallel, const oct_weight *w,
           oct_weight_kind kind, guint64 *per_rank, sum *to) {
  guint32 n = oct_parallel_world(parallel), copies = 0, seen = 0;
  guint64 end = 0, bytes = 0, shared = 0, all = rows_of(spec, w);
  while (end < (all == w->rows ? w->rows * w->columns : all)) {
    oct_cuda_piece here = {0};
    guint64 next = G_MAXUINT64;
    guint32 holders = 0;
    for (guint32 i = 0; i < n; i++) {
      oct_cuda_share place = oct_cuda_share_of(spec, parallel, i);
      oct_cuda_piece part =
          oct_cuda_piece_of(&place, kind, w->layer, w->expert, w->rows, w->columns);
      if (part.rows == 0)
        continue;
      gboolean by_rows = part.columns == w->columns;
      g_assert_true(by_rows || part.rows == w->rows);
      guint64 first = by_rows ? part.row * w->columns : part.column * w->rows;
      if (first != end)
        continue;
      here = part;
      next = first + part.rows * part.columns;
      holders++;
      copies = oct_cuda_piece_copies(&place, kind, w->layer);
      bytes += oct_cuda_piece_bytes(w, &part);
      per_rank[i] += oct_cuda_piece_bytes(w, &part);
    }
    g_assert_cmpuint(holders, ==, copies);
    gboolean by_rows = here.columns == w->columns;
    if (end > 0)
      shared += copies * shared_scales(w, by_rows, by_rows ? here.row : here.column);
    end = next;
    seen += holders;
  }
  guint64 file = all == w->rows ? w->bytes : all * oct_stored_get(w->type)->bytes;
  g_assert_cmpuint(bytes, ==, file * copies + shared);
  to->file += file;
  to->read += bytes;
  to->copied += file * (copies - 1);
  to->scales += shared;
  to->copies = MAX(to->copies, copies);
  g_assert_cmpuint(seen, >, 0);
}

/* The memory ledger counts what the busiest rank of a stage reads, but for whole tensors' scales
 * and the words of groups that are cut. */
static void
check_counted(const char *name, const oct_model_spec *spec, const oct_parallel *parallel,
              const guint64 *per_rank) {
  guint32 n = oct_parallel_world(parallel), each = n / parallel->pipeline;
  for (guint32 stage = 0; stage < parallel->pipeline; stage++) {
    oct_weights weights;
    guint64 most = 0;
    oct_model_rank_weights(spec, parallel, stage, &weights);
    double counted = (double)oct_weights_total(&weights).bytes;
    for (guint32 i = stage * each; i < (stage + 1) * each; i++)
      most = MAX(most, per_rank[i]);
    if (fabs((double)most - counted) > 5e-3 * counted)
      g_test_message("%s: stage %u: %.6f GB are counted, %.6f read", name, stage, counted * 1e-9,
                     (double)most * 1e-9);
    g_assert_cmpfloat_with_epsilon((double)most, counted, 5e-3 * counted);
  }
}

/* Every weight of a model; prints what is in the file once and on ranks more often. */
static void
add_model(const char *name, const oct_model_spec *spec, const layout *l) {
  g_autoptr(GError) error = NULL;
  oct_parallel parallel = parallel_of(l);
  if (!oct_parallel_check(spec, &parallel, &error)) {
    g_test_message("%s: %s", name, error->message);
    return;
  }
  g_autoptr(oct_weight_map) map = oct_weight_map_new_dummy(spec, 1, &error);
  g_assert_no_error(error);
  sum total = {0}, kinds[OCT_WEIGHT_KINDS] = {0};
  guint64 read = 0, most = 0;
  g_autofree guint64 *per_rank = g_new0(guint64, oct_parallel_world(&parallel));
  for (guint i = 0; i < oct_weight_map_n(map); i++) {
    const oct_weight *w = oct_weight_map_at(map, i);
    add_weight(spec, &parallel, w, w->kind, per_rank, &kinds[w->kind]);
    if (w->kind == OCT_WEIGHT_EMBEDDING && spec->tied_embeddings) {
      sum head = {0}; /* the same bytes again */
      add_weight(spec, &parallel, w, OCT_WEIGHT_HEAD, per_rank, &head);
      kinds[OCT_WEIGHT_EMBEDDING].read += head.read;
      kinds[OCT_WEIGHT_EMBEDDING].copied += head.read;
    }
  }
  for (guint k = 0; k < OCT_WEIGHT_KINDS; k++) {
    total.file += kinds[k].file;
    total.copied += kinds[k].copied;
    total.scales += kinds[k].scales;
    total.read += kinds[k].read;
    if (kinds[k].copied + kinds[k].scales > 100000000)
      g_test_message("%s: %s on %u ranks: %.3f GB of the file, %.3f GB more copied, %.3f of scales",
                     name, oct_weight_kind_name((oct_weight_kind)k), kinds[k].copies,
                     (double)kinds[k].file * 1e-9, (double)kinds[k].copied * 1e-9,
                     (double)kinds[k].scales * 1e-9);
  }
  for (guint32 i = 0; i < oct_parallel_world(&parallel); i++) {
    read += per_rank[i];
    most = MAX(most, per_rank[i]);
  }
  g_assert_cmpuint(read, ==, total.read);
  g_assert_cmpuint(total.read, ==, total.file + total.copied + total.scales);
  check_counted(name, spec, &parallel, per_rank);
  g_test_message("%s on %s: %.3f GB in the file, %.3f read by all, %.3f by the busiest rank", name,
                 l->name, (double)total.file * 1e-9, (double)read * 1e-9, (double)most * 1e-9);
}

static void
each_byte_is_read_by_those_that_hold_it(gconstpointer data) {
  for (gsize i = 0; i < G_N_ELEMENTS(published); i++) {
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_model_spec) spec = oct_model_spec_load(published[i], NULL, &error);
    g_assert_no_error(error);
    add_model(published[i], spec, data);
  }
  for (gsize i = 0; i < G_N_ELEMENTS(models); i++) {
    oct_model_spec spec = models[i].spec();
    add_model(models[i].name, &spec, data);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (gsize k = 0; k < G_N_ELEMENTS(layouts); k++) {
    g_autofree char *path = g_strdup_printf(
        "/cuda/partition/%s/each-byte-is-read-by-those-that-hold-it", layouts[k].name);
    g_test_add_data_func(path, &layouts[k], each_byte_is_read_by_those_that_hold_it);
  }
  for (gsize i = 0; i < G_N_ELEMENTS(models); i++)
    for (gsize k = 0; k < G_N_ELEMENTS(layouts); k++) {
      oct_model_spec spec = models[i].spec();
      oct_parallel parallel = parallel_of(&layouts[k]);
      if ((layouts[k].experts && !oct_model_has_experts(&spec)) ||
          (layouts[k].whole_latents && !oct_parallel_check(&spec, &parallel, NULL)))
        continue;
      test *t = g_new(test, 1);
      *t = (test){&models[i], &layouts[k]};
      g_autofree char *path = g_strdup_printf("/cuda/partition/%s/ranks-of-%s-equal-the-whole",
                                              models[i].name, layouts[k].name);
      g_test_add_data_func_full(path, t, ranks_equal_the_whole, g_free);
    }
  return g_test_run();
}
