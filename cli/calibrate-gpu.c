#include "cli/calibrate-gpu.h"

#include <math.h>
#include <string.h>

#include "config.h"

#define VERSION_FILE "/proc/driver/nvidia/version"

void
oct_calibrate_card_clear(oct_calibrate_card *card) {
  g_clear_pointer(&card->name, g_free);
  g_clear_pointer(&card->driver, g_free);
  g_clear_pointer(&card->numa_nodes, g_free);
}

#ifndef HAVE_CUDA

#include "engine/backend.h"

gboolean
oct_calibrate_card_read(oct_calibrate_card *card, GError **error) {
  memset(card, 0, sizeof *card);
  g_set_error_literal(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE,
                      "this program was built without CUDA, so that it has no kernels to time: "
                      "configure --with-cuda=DIR, on a machine with an NVIDIA GPU");
  return FALSE;
}

void
oct_calibrate_gpu(oct_calibration *calibration, GArray *tables, guint gpus, double cache_bytes,
                  double hbm_peak, oct_calibrate_told told, void *user) {
  (void)hbm_peak;
  (void)calibration;
  (void)tables;
  (void)gpus;
  (void)cache_bytes;
  (void)told;
  (void)user;
}

#else

#include "backends/cuda/cuda.h"
#include "backends/cuda/numa.h"
#include "kernels/bench/bench.h"
#include "kernels/bench/machine.h"

/* Passes of a figure: enough for a median, few enough for hundreds of points. */
#define PASSES      7
#define LONG_PASSES 3 /* of kernels that take milliseconds and vary little */

typedef struct gpu {
  bench b;
  oct_calibration *out;
  double cache_bytes;
  double hbm_peak;
} gpu;

/* "580.159.04" of the kernel module's line, else the version of CUDA. Owned. */
static char *
driver_version(int cuda_version) {
  g_autofree char *text = NULL;
  if (g_file_get_contents(VERSION_FILE, &text, NULL, NULL)) {
    g_auto(GStrv) words = g_strsplit_set(text, " \n", -1);
    for (guint i = 0; words[i] != NULL; i++)
      if (g_ascii_isdigit(words[i][0]) && strchr(words[i], '.') != NULL)
        return g_strdup(words[i]);
  }
  return g_strdup_printf("CUDA %d.%d", cuda_version / 1000, cuda_version % 1000 / 10);
}

gboolean
oct_calibrate_card_read(oct_calibrate_card *card, GError **error) {
  memset(card, 0, sizeof *card);
  if (!oct_cuda_count_gpus(&card->count, error)) {
    g_prefix_error(error, "kernels are timed on the machine that they are for: ");
    return FALSE;
  }
  bench_card read;
  bench_card_read(&read);
  card->name = g_strdup(read.name);
  card->driver = driver_version(read.cuda_version);
  card->numa_nodes = g_new(gint, card->count);
  for (guint i = 0; i < card->count; i++) {
    char bus_id[32] = "";
    card->numa_nodes[i] = cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, (int)i) == cudaSuccess
                              ? oct_numa_node_of(bus_id)
                              : -1;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- the machine */

static void
put_card(gpu *g, guint gpus) {
  bench_card card;
  bench_card_read(&card);
  oct_calibration_set(g->out, "gpu", "count", NULL, gpus);
  oct_calibration_set(g->out, "gpu", "sm_count", NULL, card.sm_count);
  oct_calibration_set(g->out, "gpu", "l2_bytes", NULL, card.l2_bytes);
  oct_calibration_set(g->out, "gpu", "hbm_bytes", "what CUDA tells", card.memory_bytes);
}

static void
put_copy_times(gpu *g, const bench_copies *c) {
  double to_us[BENCH_COPY_SIZES], from_us[BENCH_COPY_SIZES];
  for (int i = 0; i < BENCH_COPY_SIZES; i++) {
    to_us[i] = c->h2d_s[i] * 1e6;
    from_us[i] = c->d2h_s[i] * 1e6;
  }
  oct_calibration_set_list(g->out, "copies", "bytes", NULL, c->bytes, BENCH_COPY_SIZES);
  oct_calibration_set_list(g->out, "copies", "to_device_us", "pinned, waited for", to_us,
                           BENCH_COPY_SIZES);
  oct_calibration_set_list(g->out, "copies", "from_device_us", "pinned, waited for", from_us,
                           BENCH_COPY_SIZES);
}

static void
put_copies(gpu *g) {
  bench_copies c;
  bench_copies_run(&g->b, &c);
  put_copy_times(g, &c);
  oct_calibration_set(g->out, "pcie", "h2d_bytes_per_s", "pinned, 256 MiB", c.h2d_rate);
  oct_calibration_set(g->out, "pcie", "d2h_bytes_per_s", "pinned, 256 MiB", c.d2h_rate);
  oct_calibration_set(g->out, "pcie", "duplex_bytes_per_s", "both at once", c.duplex_rate);
  oct_calibration_set(g->out, "pcie", "pageable_bytes_per_s", "to the device", c.pageable_rate);
  oct_calibration_set(g->out, "pcie", "kernel_read",
                      "of h2d_bytes_per_s: experts of 16 MiB, by the kernel that fetches them",
                      MIN(1, c.kernel_read_rate / c.h2d_rate));
  oct_calibration_set(g->out, "pcie", "copy_latency_s", "4 KiB to the device, waited for",
                      c.h2d_s[0] - c.bytes[0] / c.h2d_rate);
  oct_calibration_set(g->out, "efficiency", "hbm_copy", "of the peak, read and written",
                      MIN(1, c.device_copy_rate / g->hbm_peak));
}

static void
put_launches(gpu *g) {
  bench_launches l;
  bench_launches_run(&g->b, &l);
  oct_calibration_set(g->out, "launch", "cpu_enqueue_s", NULL, l.enqueue_s);
  oct_calibration_set(g->out, "launch", "kernel_pipelined_s", NULL, l.pipelined_s);
  oct_calibration_set(g->out, "launch", "launch_and_sync_s", NULL, l.launch_and_sync_s);
  oct_calibration_set(g->out, "launch", "graph_launch_s", "of one node, waited for",
                      l.graph_launch_s);
  oct_calibration_set(g->out, "launch", "graph_node_s", NULL, l.graph_node_s);
  oct_calibration_set(g->out, "launch", "event_sync_s", NULL, l.event_sync_s);
}

static void
put_peer(gpu *g) {
  bench_peer p;
  if (!bench_peer_run(&g->b, 1, &p))
    return;
  oct_calibration_set(g->out, "nvlink", "achieved_bytes_per_s_per_direction", "256 MiB to GPU 1",
                      p.rate);
  oct_calibration_set(g->out, "nvlink", "copy_latency_s", "4 KiB to GPU 1, waited for",
                      p.latency_s);
}

/* ---------------------------------------------------------------- collectives */

#define SIZES_MAX 17 /* 1 KiB to 64 MiB */

/* Microseconds of one collective by size; FALSE: it cannot be timed. */
static gboolean
put_curve(gpu *g, const char *key, guint n, bench_collective_kind kind, double *us, guint points) {
  g_autofree char *name = g_strdup_printf("nccl_%s_us_n%u", key, n);
  for (guint i = 0; i < points; i++) {
    us[i] = 1e6 * bench_collective(kind, OCT_CUDA_REDUCE_NONE, (size_t)1024 << i);
    if (us[i] <= 0)
      return FALSE;
  }
  oct_calibration_set_list(g->out, "collectives", name, "NCCL in a graph", us, points);
  return TRUE;
}

/* The quickest of this project's kernels; NCCL's times where they have none. */
static void
put_own(gpu *g, guint n, const double *nccl_us, double *us, guint points) {
  g_autofree char *name = g_strdup_printf("oneshot_all_reduce_us_n%u", n);
  for (guint i = 0; i < points; i++) {
    us[i] = nccl_us[i];
    for (int way = OCT_CUDA_REDUCE_NONE + 1; way <= OCT_CUDA_REDUCE_TWO_SHOT; way++) {
      double seconds = bench_collective(BENCH_SUM, (oct_cuda_reduce_way)way, (size_t)1024 << i);
      if (seconds > 0)
        us[i] = MIN(us[i], seconds * 1e6);
    }
  }
  oct_calibration_set_list(g->out, "collectives", name, "the quickest of own kernels and NCCL", us,
                           points);
}

/* All of a group of n or nothing: the curves share their grid. */
static gboolean
put_group(gpu *g, guint n, double *nccl_us, double *own_us) {
  static const struct {
    const char *key;
    bench_collective_kind kind;
  } others[] = {{"all_gather", BENCH_GATHER},
                {"reduce_scatter", BENCH_SCATTER},
                {"alltoall", BENCH_ALL_TO_ALL}};
  double us[SIZES_MAX];
  if (!put_curve(g, "all_reduce", n, BENCH_SUM, nccl_us, SIZES_MAX))
    return FALSE;
  put_own(g, n, nccl_us, own_us, SIZES_MAX);
  for (gsize i = 0; i < G_N_ELEMENTS(others); i++)
    if (!put_curve(g, others[i].key, n, others[i].kind, us, SIZES_MAX))
      return FALSE;
  return TRUE;
}

/* Groups of 2, 4 and 8 GPUs; with any of them missing the base's tables stay. */
static void
put_collectives(gpu *g, guint gpus) {
  double bytes[SIZES_MAX], nccl_us[SIZES_MAX], own_us[SIZES_MAX], best_us[SIZES_MAX];
  gboolean fine = TRUE;
  for (guint i = 0; i < SIZES_MAX; i++)
    bytes[i] = (double)(1024u << i);
  for (guint n = 2; n <= gpus && n <= OCT_CUDA_PEERS_MAX && fine; n *= 2) {
    fine = bench_group_open(n);
    if (!fine)
      break;
    fine = put_group(g, n, nccl_us, own_us);
    bench_group_close();
    for (guint i = 0; n == 2 && i < SIZES_MAX; i++)
      best_us[i] = MIN(nccl_us[i], own_us[i]);
  }
  if (!fine) {
    oct_calibration_drop(g->out, "collectives");
    return;
  }
  oct_calibration_set_list(g->out, "collectives", "bytes", NULL, bytes, SIZES_MAX);
  oct_calibration_set_list(g->out, "collectives", "oneshot_bytes", NULL, bytes, SIZES_MAX);
  oct_calibration_set_list(g->out, "collectives_probe", "bytes", NULL, bytes, SIZES_MAX);
  oct_calibration_set_list(g->out, "collectives_probe", "all_reduce_us_n2",
                           "the quickest, as the backend takes it without graphs too", best_us,
                           SIZES_MAX);
}

/* ---------------------------------------------------------------- kernels */

static gboolean
format_of(oct_dtype type, oct_cuda_format *format) {
  static const struct {
    oct_dtype type;
    oct_cuda_format format;
  } known[] = {
      {OCT_DTYPE_F32, OCT_CUDA_MATRIX_F32},     {OCT_DTYPE_BF16, OCT_CUDA_MATRIX_BF16},
      {OCT_DTYPE_FP8, OCT_CUDA_MATRIX_FP8},     {OCT_DTYPE_FP8_BLOCK, OCT_CUDA_MATRIX_FP8_BLOCK},
      {OCT_DTYPE_MXFP4, OCT_CUDA_MATRIX_MXFP4}, {OCT_DTYPE_INT4_G128, OCT_CUDA_MATRIX_INT4}};
  for (gsize i = 0; i < G_N_ELEMENTS(known); i++)
    if (known[i].type == type) {
      *format = known[i].format;
      return TRUE;
    }
  return FALSE;
}

static double
time_decode(gpu *g, const oct_timed *t, guint32 n, guint32 context) {
  const oct_cuda_type cache = t->type == OCT_DTYPE_FP8 ? OCT_CUDA_FP8 : OCT_CUDA_BF16;
  if (t->kind == OCT_TIMED_MLA_DECODE) {
    double bytes = (double)n * context * (t->shape[1] + t->shape[2]) * 2;
    gboolean known = t->shape[1] == 512 && t->shape[2] == 64;
    return known && bytes <= g->cache_bytes ? bench_latents(&g->b, t->shape[0], n, context, cache)
                                            : 0;
  }
  const double bytes = 4.0 * n * context * t->shape[1] * t->shape[2];
  const bench_attention_shape shape = {"decode", t->shape[0], t->shape[1], t->shape[2], n,
                                       1,        context,     cache,       0,           false};
  return bytes <= g->cache_bytes ? bench_attend(&g->b, &shape) : 0;
}

static double
time_prefill(gpu *g, const oct_timed *t, guint32 tokens, guint32 before) {
  const bench_attention_shape shape = {.name = "prefill",
                                       .heads = t->shape[0],
                                       .kv_heads = t->shape[1],
                                       .width = t->shape[2],
                                       .n = 1,
                                       .n_tokens = tokens,
                                       .context = before + tokens,
                                       .cache =
                                           t->type == OCT_DTYPE_FP8 ? OCT_CUDA_FP8 : OCT_CUDA_BF16};
  return bench_attend(&g->b, &shape);
}

static double
time_verify(gpu *g, const oct_timed *t, guint32 n, guint32 tokens) {
  const oct_cuda_type cache = t->type == OCT_DTYPE_FP8 ? OCT_CUDA_FP8 : OCT_CUDA_BF16;
  const double bytes = 4.0 * n * t->shape[3] * t->shape[1] * t->shape[2];
  const bench_attention_shape shape = {"verify", t->shape[0], t->shape[1], t->shape[2], n,
                                       tokens,   t->shape[3], cache,       0,           false};
  return bytes <= g->cache_bytes ? bench_attend(&g->b, &shape) : 0;
}

/* Seconds of one point; 0 or less: it cannot be timed. */
static double
time_point(gpu *g, const oct_timed *t, guint32 x, guint32 y) {
  const oct_sampling usual = {.temperature = 1, .top_p = 1, .repetition = 1, .top_k = -1};
  const guint32 *s = t->shape;
  oct_cuda_format format = OCT_CUDA_MATRIX_BF16;
  guint32 distinct;
  gboolean weights = t->kind == OCT_TIMED_PRODUCT || t->kind == OCT_TIMED_EXPERTS;
  if (weights && !format_of(t->type, &format))
    return 0;
  switch (t->kind) {
  case OCT_TIMED_PRODUCT:
    return bench_product(&g->b, "m", x, s[0], s[1], format, OCT_CUDA_PATH_AUTO);
  case OCT_TIMED_DECODE:
  case OCT_TIMED_MLA_DECODE:
    return time_decode(g, t, x, y);
  case OCT_TIMED_PREFILL:
    return time_prefill(g, t, x, y);
  case OCT_TIMED_VERIFY:
    return time_verify(g, t, x, y);
  case OCT_TIMED_EXPERTS:
    return bench_expert_block(&g->b, x, s[0], s[1], s[2], s[3], format, &distinct);
  case OCT_TIMED_NORM:
    return bench_norm(&g->b, x, s[0]);
  case OCT_TIMED_ROTATE:
    return bench_rope(&g->b, x, s[0], s[1], s[2]);
  case OCT_TIMED_ACTIVATION:
    return bench_glu(&g->b, x, s[0]);
  case OCT_TIMED_SAMPLE:
    return bench_sample(&g->b, "usual", x, s[0], usual);
  case OCT_TIMED_ROUTE:
    return bench_route(&g->b, x, s[0], s[1]);
  case OCT_TIMED_KINDS:
    break;
  }
  return 0;
}

static void
time_table(gpu *g, oct_timed *t) {
  for (guint32 i = 0; i < t->n_x; i++)
    for (guint32 j = 0; j < t->n_y; j++)
      t->seconds[i * t->n_y + j] =
          MAX(0, time_point(g, t, (guint32)t->x[i], t->n_y > 1 ? (guint32)t->y[j] : 0));
  oct_calibration_add(g->out, t);
}

/* The smallest kernel's time: the floor under small ones. */
static void
put_floor(gpu *g, const GArray *tables) {
  double least = INFINITY;
  for (guint i = 0; i < tables->len; i++) {
    const oct_timed *t = &g_array_index(tables, oct_timed, i);
    if (t->kind == OCT_TIMED_NORM && t->seconds[0] > 0)
      least = MIN(least, t->seconds[0]);
  }
  if (isfinite(least))
    oct_calibration_set(g->out, "efficiency", "kernel_floor_s", "norm of one row", least);
}

void
oct_calibrate_gpu(oct_calibration *calibration, GArray *tables, guint gpus, double cache_bytes,
                  double hbm_peak, oct_calibrate_told told, void *user) {
  gpu g = {.out = calibration, .cache_bytes = cache_bytes, .hbm_peak = hbm_peak};
  g.b.quiet = true;
  g.b.passes = PASSES;
  g.b.long_passes = LONG_PASSES;
  bench_program = "octet calibrate";
  bench_open(&g.b);
  told(user, "limits of the card");
  bench_ceilings(&g.b);
  put_card(&g, gpus);
  oct_calibration_set(calibration, "efficiency", "hbm_read", "of the peak",
                      MIN(1, g.b.read_rate / hbm_peak));
  told(user, "copies and launches");
  put_copies(&g);
  put_launches(&g);
  if (gpus > 1) {
    put_peer(&g);
    told(user, "collectives");
    put_collectives(&g, gpus);
  }
  for (guint i = 0; i < tables->len; i++) {
    oct_timed *t = &g_array_index(tables, oct_timed, i);
    g_autofree char *group = oct_timed_group(t);
    told(user, group);
    time_table(&g, t);
  }
  put_floor(&g, tables);
  bench_close(&g.b);
}

#endif
