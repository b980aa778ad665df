/* octet eval: perplexity of a checkpoint on a text, and its divergence from a reference.
 *
 * The text is cut into windows of --context tokens, --stride apart. Each is computed from its
 * start, and the tokens that no window before it has judged are judged there, all but the window's
 * first. With a reference both models compute every window. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/direct.h"
#include "backends/cpu/threads.h"
#include "cli/cli.h"
#include "engine/base/file.h"
#include "engine/model/quantise/divergence.h"
#include "engine/text/tokenizer.h"

#define THREADS_DEFAULT 2
#define CONTEXT_DEFAULT 512
#define ROWS            16 /* positions whose logits are computed together */

typedef struct options {
  char *text, *reference, *kv, *reference_kv, *tokenizer, *json;
  gint context, stride, threads, max_tokens;
} options;

typedef struct evaluation {
  const options *o;
  oct_cpu_direct *model, *reference; /* reference NULL: none */
  GArray *ids;                       /* of the whole text */
  guint n_before;                    /* ids that begin every window, such as BOS */
  guint32 *window;                   /* [context] */
  float *logits, *reference_logits;  /* [ROWS, vocab] */
  oct_divergence *divergence;
  guint n_windows;
} evaluation;

/* --- models and text -----------------------------------------------------------------------------
 */

static gboolean
parse_kv(const char *name, oct_kv_format *kv) {
  static const struct {
    const char *name;
    oct_kv_format format;
  } rows[] = {{"float32", OCT_KV_F32}, {"bfloat16", OCT_KV_BF16}};
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++)
    if (g_str_equal(rows[i].name, name)) {
      *kv = rows[i].format;
      return TRUE;
    }
  return FALSE;
}

static oct_cpu_direct *
open_model(const options *o, const char *path, const char *kv_name, GError **error) {
  oct_cpu_direct_options direct = {
      .path = path, .threads = (guint32)o->threads, .context = (guint32)o->context};
  if (!parse_kv(kv_name, &direct.kv)) {
    g_set_error(error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE,
                "a cache of type '%s': allowed are float32 and bfloat16", kv_name);
    return NULL;
  }
  return oct_cpu_direct_new(&direct, error);
}

static guint32
vocab_of(const oct_cpu_direct *model) {
  return oct_cpu_direct_model(model)->spec->vocab;
}

static gboolean fail(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
fail(GError **error, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (error != NULL)
    *error = g_error_new_valist(G_FILE_ERROR, G_FILE_ERROR_INVAL, format, arguments);
  va_end(arguments);
  return FALSE;
}

/* The text's ids, and those that begin a window, at the start of window[]. */
static gboolean
read_text(evaluation *e, const char *tokenizer_path, GError **error) {
  g_autoptr(oct_tokenizer) tokenizer = oct_tokenizer_open(tokenizer_path, error);
  g_autofree char *text = NULL;
  gsize size;
  if (tokenizer == NULL)
    return FALSE;
  if (!oct_file_read(e->o->text, OCT_TEXT_BYTES_MAX, &text, &size, error)) {
    g_prefix_error(error, "%s: ", e->o->text);
    return FALSE;
  }
  if (!oct_tokenizer_encode(tokenizer, text, size, e->ids, error))
    return FALSE;
  const guint32 *before = oct_tokenizer_before(tokenizer, &e->n_before);
  if (e->n_before + 2 > (guint)e->o->context)
    return fail(error, "--context %d: at least %u is wanted", e->o->context, e->n_before + 2);
  for (guint i = 0; i < e->n_before; i++) /* before is NULL when there are none */
    e->window[i] = before[i];
  if (e->o->max_tokens > 0 && e->ids->len > (guint)e->o->max_tokens)
    g_array_set_size(e->ids, (guint)e->o->max_tokens);
  for (guint i = 0; i < e->ids->len; i++)
    if (g_array_index(e->ids, guint32, i) >= vocab_of(e->model))
      return fail(error, "token %u of the tokenizer is beyond the model's vocabulary of %u",
                  g_array_index(e->ids, guint32, i), vocab_of(e->model));
  return e->ids->len >= 2 ||
         fail(error, "%s has %u tokens: at least 2 are wanted", e->o->text, e->ids->len);
}

static gboolean
open_all(evaluation *e, const char *path, GError **error) {
  const options *o = e->o;
  e->model = open_model(o, path, o->kv != NULL ? o->kv : "float32", error);
  if (e->model == NULL)
    return FALSE;
  if (o->reference != NULL) {
    e->reference =
        open_model(o, o->reference, o->reference_kv != NULL ? o->reference_kv : "float32", error);
    if (e->reference == NULL)
      return FALSE;
    if (vocab_of(e->model) != vocab_of(e->reference))
      return fail(error, "vocabularies of %u and %u tokens cannot be compared", vocab_of(e->model),
                  vocab_of(e->reference));
  }
  e->ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  e->window = g_new(guint32, (gsize)o->context);
  e->logits = g_new(float, (gsize)ROWS *vocab_of(e->model));
  e->reference_logits = g_new(float, (gsize)ROWS *vocab_of(e->model));
  e->divergence = oct_divergence_new(vocab_of(e->model));
  return read_text(e, o->tokenizer != NULL ? o->tokenizer : path, error);
}

static void
close_all(evaluation *e) {
  oct_cpu_direct_free(e->model);
  oct_cpu_direct_free(e->reference);
  oct_divergence_free(e->divergence);
  if (e->ids != NULL)
    g_array_unref(e->ids);
  g_free(e->window);
  g_free(e->logits);
  g_free(e->reference_logits);
}

/* --- windows -------------------------------------------------------------------------------------
 */

/* Judges the window's tokens from..n - 1, each by the logits of the position before it. */
static void
judge(evaluation *e, guint from, guint n) {
  guint32 vocab = vocab_of(e->model);
  for (guint first = from - 1; first + 1 < n; first += ROWS) {
    guint rows = MIN(ROWS, n - 1 - first);
    oct_cpu_direct_logits(e->model, first, rows, e->logits);
    if (e->reference != NULL)
      oct_cpu_direct_logits(e->reference, first, rows, e->reference_logits);
    for (guint i = 0; i < rows; i++)
      oct_divergence_add(e->divergence, e->logits + (gsize)i * vocab,
                         e->reference != NULL ? e->reference_logits + (gsize)i * vocab : NULL,
                         e->window[first + i + 1]);
  }
}

static void
evaluate(evaluation *e) {
  guint room = (guint)e->o->context - e->n_before, stride = MIN((guint)e->o->stride, room);
  guint judged = e->n_before > 0 ? 0 : 1; /* the text's first token follows nothing */
  for (guint start = 0; judged < e->ids->len; start += stride) {
    guint n = MIN(room, e->ids->len - start);
    /* A window's first token follows nothing in it. */
    guint from = MAX(judged, start + (e->n_before > 0 ? 0 : 1));
    memcpy(e->window + e->n_before, &g_array_index(e->ids, guint32, start), n * sizeof(guint32));
    judged = start + n;
    if (from >= judged)
      continue;
    oct_cpu_direct_run(e->model, e->window, e->n_before + n);
    if (e->reference != NULL)
      oct_cpu_direct_run(e->reference, e->window, e->n_before + n);
    judge(e, e->n_before + from - start, e->n_before + n);
    e->n_windows++;
    if (isatty(STDERR_FILENO) != 0)
      fprintf(stderr, "\r%u of %u tokens", judged, e->ids->len);
  }
  if (isatty(STDERR_FILENO) != 0)
    fprintf(stderr, "\r%40s\r", "");
}

/* --- what it says --------------------------------------------------------------------------------
 */

static json_t *
json_report(const evaluation *e, const char *path, const oct_divergence_result *r) {
  json_t *out = json_pack("{s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:i, s:f, s:f}", "model", path,
                          "kv_cache_dtype", e->o->kv != NULL ? e->o->kv : "float32", "text",
                          e->o->text, "context", e->o->context, "stride", e->o->stride, "tokens",
                          (json_int_t)e->ids->len, "judged", (json_int_t)r->positions, "windows",
                          (int)e->n_windows, "nll", r->nll, "perplexity", r->perplexity);
  if (r->has_reference)
    json_object_set_new(out, "reference",
                        json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f}", "model",
                                  e->o->reference, "kv_cache_dtype",
                                  e->o->reference_kv != NULL ? e->o->reference_kv : "float32",
                                  "nll", r->reference_nll, "perplexity", r->reference_perplexity,
                                  "kl_mean", r->kl_mean, "kl_p99", r->kl_p99, "kl_max", r->kl_max,
                                  "top1_agreement", r->top1_agreement));
  return out;
}

static void
print_report(const evaluation *e, const char *path, const oct_divergence_result *r) {
  printf("%s on %s: %" G_GUINT64_FORMAT " of %u tokens judged in %u windows\n", path, e->o->text,
         r->positions, e->ids->len, e->n_windows);
  printf("perplexity      %12.5f   (%.6f nats a token)\n", r->perplexity, r->nll);
  if (!r->has_reference)
    return;
  printf("reference       %12.5f   (%.6f nats a token) %s\n", r->reference_perplexity,
         r->reference_nll, e->o->reference);
  printf("KL divergence   %12.6f   mean, %.6f p99, %.6f max\n", r->kl_mean, r->kl_p99, r->kl_max);
  printf("same top token  %12.2f %%\n", 100 * r->top1_agreement);
}

/* --- the command ---------------------------------------------------------------------------------
 */

static int
check_options(options *o) {
  if (o->text == NULL)
    return oct_cli_refuse("eval", "--text FILE is missing");
  if (o->context < 2 || o->context > (gint)OCT_CPU_DIRECT_CONTEXT_MAX)
    return oct_cli_refuse("eval", "--context %d: allowed are 2 to %u", o->context,
                          OCT_CPU_DIRECT_CONTEXT_MAX);
  if (o->stride == 0)
    o->stride = o->context;
  if (o->stride < 1 || o->stride > o->context)
    return oct_cli_refuse("eval", "--stride %d: allowed are 1 to the context, %d", o->stride,
                          o->context);
  if (o->threads < 1 || o->threads > OCT_TEAM_THREADS_MAX)
    return oct_cli_refuse("eval", "--threads %d: allowed are 1 to %d", o->threads,
                          OCT_TEAM_THREADS_MAX);
  if (o->max_tokens < 0)
    return oct_cli_refuse("eval", "--max-tokens %d: at least 0 is wanted", o->max_tokens);
  if (o->reference_kv != NULL && o->reference == NULL)
    return oct_cli_refuse("eval", "--reference-kv-cache-dtype without --reference");
  return OCT_CLI_GO_ON;
}

static int
run(const options *o, const char *path) {
  GError *error = NULL;
  evaluation e = {.o = o};
  gboolean ok = open_all(&e, path, &error);
  if (ok) {
    oct_divergence_result r;
    evaluate(&e);
    oct_divergence_get(e.divergence, &r);
    if (o->json == NULL || !g_str_equal(o->json, "-"))
      print_report(&e, path, &r);
    ok = o->json == NULL || oct_cli_write_json(o->json, json_report(&e, path, &r), &error);
  }
  close_all(&e);
  return ok ? OCT_EXIT_OK : oct_cli_fail("eval", error);
}

int
oct_cmd_eval(int argc, char **argv) {
  options o = {.context = CONTEXT_DEFAULT, .threads = THREADS_DEFAULT};
  const GOptionEntry entries[] = {
      {"text", 0, 0, G_OPTION_ARG_FILENAME, &o.text, "The text to predict", "FILE"},
      {"reference", 0, 0, G_OPTION_ARG_FILENAME, &o.reference,
       "Compare the predictions with this model's", "MODEL"},
      {"kv-cache-dtype", 0, 0, G_OPTION_ARG_STRING, &o.kv,
       "How keys and values are kept: float32 (default) or bfloat16", "TYPE"},
      {"reference-kv-cache-dtype", 0, 0, G_OPTION_ARG_STRING, &o.reference_kv,
       "The same of the reference (default float32)", "TYPE"},
      {"context", 0, 0, G_OPTION_ARG_INT, &o.context, "Tokens of a window (default 512)", "N"},
      {"stride", 0, 0, G_OPTION_ARG_INT, &o.stride,
       "Tokens from one window's start to the next's (default: the context)", "N"},
      {"max-tokens", 0, 0, G_OPTION_ARG_INT, &o.max_tokens,
       "Of the text that are used (default 0: all)", "N"},
      {"tokenizer", 0, 0, G_OPTION_ARG_FILENAME, &o.tokenizer, "Default: the model's own", "PATH"},
      {"threads", 0, 0, G_OPTION_ARG_INT, &o.threads, "Default 2", "N"},
      {"json", 0, 0, G_OPTION_ARG_FILENAME, &o.json, "Write the figures to a file, - for stdout",
       "FILE"},
      G_OPTION_ENTRY_NULL,
  };
  const oct_cli_usage usage = {
      .command = "eval",
      .arguments = "MODEL",
      .summary = "Measures how well a model predicts a text, and how far its predictions are from "
                 "a reference's.",
      .details = "MODEL is a checkpoint, in any format that octet reads. For a cache's type name "
                 "the model twice:\n  octet eval M --kv-cache-dtype bfloat16 --reference M --text "
                 "FILE",
      .entries = entries,
      .min_arguments = 1,
      .max_arguments = 1,
  };
  int status = oct_cli_parse(&usage, &argc, &argv);
  if (status == OCT_CLI_GO_ON)
    status = check_options(&o);
  if (status == OCT_CLI_GO_ON)
    status = run(&o, argv[1]);
  g_free(o.text);
  g_free(o.reference);
  g_free(o.kv);
  g_free(o.reference_kv);
  g_free(o.tokenizer);
  g_free(o.json);
  return status;
}
