/* Another laboratory's measurements of H100: products of four models' layers and all-reduce (Vidur,
 * MIT). No row of them was fitted to; the machine's own constants are, to aiconfigurator's rows.
 * And experts' exchange on H200 by kernels of another release than the profile's table is of. */
#include <math.h>
#include <string.h>

#include "sim/validate/fit-file.h"
#include "sim/validate/report.h"
#include "sim/validate/validate.h"

#define MIB  1048576.0
#define HEAD 128.0

enum { PRE, POST, UP, DOWN, N_PRODUCTS };
enum { ROWS_FEW, ROWS_MANY, N_BANDS };
#define ROWS_FEW_MAX 256

typedef struct shape {
  const char *model;
  double hidden, heads, kv_heads, inner;
} shape;
static const shape shapes[] = {
    {"meta-llama/Llama-2-7b-hf", 4096, 32, 32, 11008},
    {"meta-llama/Llama-2-70b-hf", 8192, 64, 8, 28672},
    {"codellama/CodeLlama-34b-Instruct-hf", 8192, 64, 8, 22016},
    {"Qwen/Qwen-72B", 8192, 64, 64, 24576},
};

typedef struct reader {
  const oct_profile *profile;
  oct_score products[N_PRODUCTS][N_BANDS], all_reduce[2];
} reader;

static gboolean
read_products(char **cells, gpointer user, GError **error) {
  reader *r = user;
  const double tokens = oct_measured_number(cells[1]), tp = oct_measured_number(cells[2]);
  const shape *s = NULL;
  (void)error;
  for (gsize i = 0; i < G_N_ELEMENTS(shapes); i++)
    if (strcmp(shapes[i].model, cells[0]) == 0)
      s = &shapes[i];
  if (s == NULL || !(tokens >= 1 && tp >= 1))
    return TRUE;
  const double nk[N_PRODUCTS][2] = {
      [PRE] = {(s->heads + 2 * s->kv_heads) * HEAD / tp, s->hidden},
      [POST] = {s->hidden, s->heads * HEAD / tp},
      [UP] = {2 * s->inner / tp, s->hidden},
      [DOWN] = {s->hidden, s->inner / tp},
  };
  for (guint p = 0; p < N_PRODUCTS; p++) {
    double measured = oct_measured_number(cells[3 + p]);
    double ns = oct_cost_gemm_ns(r->profile, OCT_MATH_BF16, (guint64)tokens, (guint64)nk[p][0],
                                 (guint64)nk[p][1]);
    if (measured > 0)
      oct_score_add(&r->products[p][tokens > ROWS_FEW_MAX ? ROWS_MANY : ROWS_FEW], ns / 1e6,
                    measured);
  }
  return TRUE;
}

static gboolean
read_all_reduce(char **cells, gpointer user, GError **error) {
  reader *r = user;
  const double n = oct_measured_number(cells[1]), bytes = oct_measured_number(cells[2]);
  const double measured = oct_measured_number(cells[3]);
  (void)error;
  if (strcmp(cells[0], "all_reduce") != 0 || !(measured > 0) || !(bytes >= 1024))
    return TRUE;
  double ns =
      oct_cost_collective_ns(r->profile, OCT_COLLECTIVE_ALL_REDUCE, (guint32)n, bytes, FALSE);
  oct_score_add(&r->all_reduce[bytes > MIB], ns / 1e6, measured);
  return TRUE;
}

static void
add_row(json_t *table, const char *what, const char *band, oct_score *score) {
  json_t *row = oct_validate_row(table);
  oct_validate_text(row, "%s", what);
  oct_validate_text(row, "%s", band);
  oct_validate_cells(row, score);
  oct_score_clear(score);
}

/* ---------------------------------------------------------------- experts' exchange */

enum { OUT, BACK, N_WAYS };
enum { TOKENS_FEW, TOKENS_MANY, N_TOKEN_BANDS };
#define TOKENS_FEW_MAX 128
#define DEEPEP_RANKS   8 /* of a node */

typedef struct exchange {
  const oct_profile *profile;
  gboolean normal; /* the kernels of prompts: two parts a way */
  oct_score scores[N_WAYS][N_TOKEN_BANDS];
  guint across; /* rows of several nodes: no price */
} exchange;

/* Nodes, width, tokens, top-k, then the times of both ways in us. */
static gboolean
read_exchange(char **cells, gpointer user, GError **error) {
  exchange *x = user;
  double n[8];
  (void)error;
  for (guint i = 0; i < (x->normal ? 8 : 6); i++)
    n[i] = oct_measured_number(cells[i]);
  if (n[0] > 1) {
    x->across++;
    return TRUE;
  }
  for (guint way = 0; way < N_WAYS; way++) {
    double measured = x->normal ? n[4 + 2 * way] + n[5 + 2 * way] : n[4 + way];
    double ns = oct_cost_dispatch_ns(x->profile, DEEPEP_RANKS, n[2], n[1], n[3], way == BACK);
    if (measured > 0)
      oct_score_add(&x->scores[way][n[2] > TOKENS_FEW_MAX ? TOKENS_MANY : TOKENS_FEW], ns / 1e3,
                    measured);
  }
  return TRUE;
}

static gboolean
score_exchange(const char *folder, json_t *part, GError **error) {
  static const char *const columns[] = {"operator", "band", OCT_VALIDATE_SCORE_COLUMNS, NULL};
  static const char *const low[] = {"node_num", "hidden_size",       "num_token",
                                    "num_topk", "dispatch_avg_t_us", "combine_avg_t_us",
                                    NULL};
  static const char *const normal[] = {"node_num",
                                       "hidden_size",
                                       "num_token",
                                       "num_topk",
                                       "dispatch_transmit_us",
                                       "dispatch_notify_us",
                                       "combine_transmit_us",
                                       "combine_notify_us",
                                       NULL};
  static const char *const names[2][N_WAYS] = {{"dispatch, low latency", "combine, low latency"},
                                               {"dispatch, normal", "combine, normal"}};
  static const char *const bands[] = {"<= 128 tokens a GPU", "> 128 tokens a GPU"};
  g_autoptr(oct_profile) profile = oct_profile_load("h200-hgx8", NULL, NULL, error);
  exchange x[2] = {{.profile = profile}, {.profile = profile, .normal = TRUE}};
  if (profile == NULL ||
      !oct_measured_read(folder, "aic_deepep_ll_h200_multinode_sglang0.5.6.csv", low, read_exchange,
                         &x[0], error) ||
      !oct_measured_read(folder, "aic_deepep_normal_h200_multinode_sglang0.5.6.csv", normal,
                         read_exchange, &x[1], error))
    return FALSE;
  json_t *table = oct_validate_table(
      part, "Experts' exchange: DeepEP within a node of 8 H200, top-8 of 256 (SGLang 0.5.6)",
      columns);
  for (guint k = 0; k < G_N_ELEMENTS(x); k++)
    for (guint way = 0; way < N_WAYS; way++)
      for (guint band = 0; band < N_TOKEN_BANDS; band++)
        add_row(table, names[k][way], bands[band], &x[k].scores[way][band]);
  g_autofree char *note = g_strdup_printf(
      "h200-hgx8 as it is: its table is of low-latency kernels of another release (SGLang 0.5.12, "
      "top-8 of 384), which it prices every exchange by. %u rows of low-latency and %u of normal "
      "kernels over 2, 4 and 8 nodes have no price (expert parallelism stays within a node) and "
      "are not scored.",
      x[0].across, x[1].across);
  oct_validate_note(table, "%s", note);
  return TRUE;
}

gboolean
oct_validate_others(const char *folder, json_t *part, GError **error) {
  static const char *const columns[] = {"operator", "band", OCT_VALIDATE_SCORE_COLUMNS, NULL};
  static const char *const products[] = {
      "model",          "num_tokens",       "tp", "attn_pre_proj_ms", "attn_post_proj_ms",
      "mlp_up_proj_ms", "mlp_down_proj_ms", NULL};
  static const char *const sizes[] = {"op", "num_workers", "size_bytes", "median_ms", NULL};
  static const char *const names[] = {"GEMM qkv", "GEMM o", "GEMM gate, up", "GEMM down"};
  g_autoptr(oct_profile) profile = oct_profile_load("h100-hgx8", NULL, NULL, error);
  reader r = {.profile = profile};
  if (profile == NULL ||
      !oct_measured_read(folder, "vidur_h100_mlp.csv", products, read_products, &r, error) ||
      !oct_measured_read(folder, "vidur_h100_dgx_comm.csv", sizes, read_all_reduce, &r, error))
    return FALSE;
  json_t *table = oct_validate_table(
      part, "Another laboratory: H100, BF16, Llama-2, CodeLlama and Qwen layers (Vidur)", columns);
  for (guint p = 0; p < N_PRODUCTS; p++) {
    add_row(table, names[p], "m <= 256", &r.products[p][ROWS_FEW]);
    add_row(table, names[p], "m > 256", &r.products[p][ROWS_MANY]);
  }
  add_row(table, "all-reduce, NCCL", "<= 1 MiB", &r.all_reduce[0]);
  add_row(table, "all-reduce, NCCL", "> 1 MiB", &r.all_reduce[1]);
  oct_validate_note(table, "h100-hgx8 as it is; nothing of it was fitted to these rows. Libraries "
                           "of 2023, kernel times alone: no launch in them.");
  return score_exchange(folder, part, error);
}
