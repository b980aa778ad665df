/* Another laboratory's measurements of H100: products of four models' layers and all-reduce (Vidur,
 * MIT). No row of them was fitted to; the machine's own constants are, to aiconfigurator's rows. */
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
  return TRUE;
}
