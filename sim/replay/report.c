#include "sim/replay/report.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- values as text */

const json_t *
oct_report_at(const json_t *report, const char *path) {
  const json_t *at = report;
  while (at != NULL && *path != '\0') {
    char name[64];
    gsize n = strcspn(path, ".");
    g_strlcpy(name, path, MIN(n + 1, sizeof name));
    at = json_object_get(at, name);
    path += n + (path[n] == '.');
  }
  return at == NULL || json_is_null(at) ? NULL : at;
}

double
oct_report_number(const json_t *report, const char *path) {
  const json_t *at = oct_report_at(report, path);
  return at != NULL && json_is_number(at) ? json_number_value(at) : NAN;
}

static const char *
string_at(const json_t *report, const char *path) {
  const json_t *at = oct_report_at(report, path);
  return at != NULL && json_is_string(at) ? json_string_value(at) : "-";
}

static gboolean
is_true(const json_t *report, const char *path) {
  const json_t *at = oct_report_at(report, path);
  return at != NULL && json_is_true(at);
}

static char *
next_buffer(gsize *size) {
  static char buffers[16][32];
  static guint turn;
  *size = sizeof buffers[0];
  return buffers[turn++ % G_N_ELEMENTS(buffers)];
}

/* Three significant digits, as plain as they can be. */
static void
three_digits(char *buffer, gsize size, double value, const char *unit) {
  double magnitude = fabs(value);
  int decimals = magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2;
  g_snprintf(buffer, (gulong)size, "%.*f %s", decimals, value, unit);
}

const char *
oct_report_seconds(double s) {
  gsize size;
  char *buffer = next_buffer(&size);
  double magnitude = fabs(s);
  if (isnan(s))
    g_strlcpy(buffer, "-", size);
  else if (magnitude == 0)
    g_strlcpy(buffer, "0 s", size);
  else if (magnitude < 0.9995e-3)
    three_digits(buffer, size, s * 1e6, "us");
  else if (magnitude < 0.9995)
    three_digits(buffer, size, s * 1e3, "ms");
  else if (magnitude < 9999.5)
    three_digits(buffer, size, s, "s");
  else
    three_digits(buffer, size, s / 3600, "h");
  return buffer;
}

const char *
oct_report_count(double n) {
  gsize size;
  char *buffer = next_buffer(&size), digits[32];
  if (isnan(n) || fabs(n) > 1e15) {
    g_strlcpy(buffer, "-", size);
    return buffer;
  }
  if (fabs(n) < 99.95 && n != floor(n)) {
    g_snprintf(buffer, (gulong)size, fabs(n) < 9.995 ? "%.2f" : "%.1f", n);
    return buffer;
  }
  int length = g_snprintf(digits, sizeof digits, "%.0f", n);
  gsize out = 0;
  for (int i = 0; i < length; i++) {
    int left = length - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-')
      buffer[out++] = ',';
    buffer[out++] = digits[i];
  }
  buffer[out] = '\0';
  return buffer;
}

const char *
oct_report_share(double share) {
  gsize size;
  char *buffer = next_buffer(&size);
  if (fabs(share) < 5e-5) /* no "-0.00%" */
    share = 0;
  if (isnan(share))
    g_strlcpy(buffer, "-", size);
  else
    g_snprintf(buffer, (gulong)size, "%.*f%%", fabs(share) < 0.0995 ? 2 : 1, 100 * share);
  return buffer;
}

/* `text` broken between words, `label` in front of the first line. */
void
oct_report_print_wrapped(FILE *out, const char *label, const char *text) {
  enum { INDENT = 12 };
  fprintf(out, "%-*s", INDENT, label);
  int column = INDENT;
  g_auto(GStrv) words = g_strsplit(text, " ", -1);
  for (char **word = words; *word != NULL; word++) {
    int n = (int)g_utf8_strlen(*word, -1);
    if (column > INDENT && column + 1 + n > OCT_REPORT_COLUMNS) {
      fprintf(out, "\n%*s", INDENT, "");
      column = INDENT;
    }
    fprintf(out, "%s%s", column > INDENT ? " " : "", *word);
    column += n + (column > INDENT);
  }
  fputc('\n', out);
}

/* ---------------------------------------------------------------- one run */

char *
oct_report_title(const json_t *r) {
  GString *title = g_string_new(NULL);
  if (oct_report_at(r, "configuration.url") != NULL) {
    g_string_append_printf(title, "%s at %s", string_at(r, "configuration.model"),
                           string_at(r, "configuration.url"));
    return g_string_free(title, FALSE);
  }
  g_string_append_printf(title, "%s on ", string_at(r, "configuration.model"));
  if (oct_report_at(r, "configuration.node") != NULL)
    g_string_append(title, string_at(r, "configuration.node"));
  else
    g_string_append(title, "mock");
  double nodes = oct_report_number(r, "configuration.nodes");
  if (nodes > 1)
    g_string_append_printf(title, " x %.0f nodes", nodes);
  double replicas = oct_report_number(r, "configuration.replicas");
  if (replicas > 1)
    g_string_append_printf(title, ", %.0f replicas", replicas);
  static const struct {
    const char *path, *name;
  } sizes[] = {{"configuration.tensor_parallel_size", "TP"},
               {"configuration.pipeline_parallel_size", "PP"},
               {"configuration.data_parallel_size", "DP"},
               {"configuration.decode_context_parallel_size", "DCP"}};
  for (gsize i = 0; i < G_N_ELEMENTS(sizes); i++)
    if (oct_report_number(r, sizes[i].path) > 1)
      g_string_append_printf(title, ", %s%.0f", sizes[i].name, oct_report_number(r, sizes[i].path));
  if (is_true(r, "configuration.enable_expert_parallel"))
    g_string_append(title, ", EP");
  g_string_append_printf(title, ", %s", string_at(r, "configuration.policy"));
  return g_string_free(title, FALSE);
}

static void
print_head(FILE *out, const json_t *r) {
  g_autofree char *title = oct_report_title(r);
  g_autoptr(GString) trace = g_string_new(NULL);
  fprintf(out, "%s\n", title);
  g_string_append_printf(trace, "%s (%s), %s requests", string_at(r, "trace.name"),
                         string_at(r, "trace.format"),
                         oct_report_count(oct_report_number(r, "trace.requests_sent")));
  if (oct_report_number(r, "trace.rate") > 0)
    g_string_append_printf(trace, ", %s sessions/s (own rate %s, %s)",
                           oct_report_count(oct_report_number(r, "trace.rate")),
                           oct_report_count(oct_report_number(r, "trace.own_rate")),
                           string_at(r, "trace.rate_mode"));
  if (is_true(r, "trace.closed_loop"))
    g_string_append_printf(trace, ", closed loop of %.0f slots",
                           oct_report_number(r, "trace.concurrency"));
  oct_report_print_wrapped(out, "trace", trace->str);
  g_autofree char *limits = g_strdup_printf(
      "max-num-seqs %.0f, max-num-batched-tokens %.0f, max-model-len %s, block-size %.0f, KV %s, "
      "prefix caching %s, run-ahead %s, seed %.0f",
      oct_report_number(r, "configuration.max_num_seqs"),
      oct_report_number(r, "configuration.max_num_batched_tokens"),
      oct_report_count(oct_report_number(r, "configuration.max_model_len")),
      oct_report_number(r, "configuration.block_size"),
      string_at(r, "configuration.kv_cache_dtype"),
      is_true(r, "configuration.prefix_caching") ? "on" : "off",
      is_true(r, "configuration.async_scheduling") ? "on" : "off",
      oct_report_number(r, "configuration.seed"));
  oct_report_print_wrapped(out, "engine", limits);
  if (oct_report_at(r, "host_times") == NULL)
    return;
  g_autofree char *host = g_strdup_printf(
      "preset %s: %s per step, %s per sequence, %s per request in, %s per token out",
      string_at(r, "configuration.engine_preset"),
      oct_report_seconds(oct_report_number(r, "host_times.step_s")),
      oct_report_seconds(oct_report_number(r, "host_times.step_per_sequence_s")),
      oct_report_seconds(oct_report_number(r, "host_times.request_in_s")),
      oct_report_seconds(oct_report_number(r, "host_times.request_out_per_token_s")));
  oct_report_print_wrapped(out, "host", host);
}

void
oct_report_print_verdict(FILE *out, const json_t *r) {
  g_autoptr(GString) text = g_string_new(NULL);
  const char *verdict = string_at(r, "verdict.verdict");
  for (const char *c = verdict; *c != '\0'; c++)
    g_string_append_c(text, g_ascii_toupper(*c));
  if (oct_report_at(r, "verdict.backlog_tokens_per_s") != NULL)
    g_string_append_printf(
        text, ": backlog %s%s tokens/s (95 %%: %s to %s) while %s tokens/s arrive: %s unserved",
        oct_report_number(r, "verdict.backlog_tokens_per_s") >= 0 ? "+" : "",
        oct_report_count(oct_report_number(r, "verdict.backlog_tokens_per_s")),
        oct_report_count(oct_report_number(r, "verdict.backlog_tokens_per_s_low")),
        oct_report_count(oct_report_number(r, "verdict.backlog_tokens_per_s_high")),
        oct_report_count(oct_report_number(r, "verdict.offered_tokens_per_s")),
        oct_report_share(MAX(0, oct_report_number(r, "verdict.unserved_share"))));
  else if (is_true(r, "window.extended"))
    g_string_append(text, ": all was sent within one residence time, too soon to tell whether the "
                          "load is served; more requests tell, in a replay --find-capacity too");
  if (is_true(r, "window.too_short") && !is_true(r, "window.extended") &&
      strcmp(verdict, "undecided") == 0)
    g_string_append(text, ": the window is too short for the mean residence time to say that the "
                          "load is served");
  const double measured = oct_report_number(r, "requests.measured");
  const double answered = oct_report_number(r, "requests.answered");
  if (measured > answered)
    g_string_append_printf(text, "; %s of the requests were refused or failed",
                           oct_report_share((measured - answered) / measured));
  oct_report_print_wrapped(out, "verdict", text->str);
  g_autofree char *window = g_strdup_printf(
      "%s to %s (warm-up: %s); mean residence %s; load until %s",
      oct_report_seconds(oct_report_number(r, "window.from_s")),
      oct_report_seconds(oct_report_number(r, "window.end_s")), string_at(r, "window.warmup"),
      oct_report_seconds(oct_report_number(r, "window.residence_mean_s")),
      oct_report_seconds(oct_report_number(r, "window.load_end_s")));
  oct_report_print_wrapped(out, "window", window);
  g_autofree char *requests = g_strdup_printf(
      "%s measured: %s answered, %s refused as busy, %s refused otherwise, %s failed; %s cut short",
      oct_report_count(oct_report_number(r, "requests.measured")),
      oct_report_count(oct_report_number(r, "requests.answered")),
      oct_report_count(oct_report_number(r, "requests.busy")),
      oct_report_count(oct_report_number(r, "requests.refused")),
      oct_report_count(oct_report_number(r, "requests.failed")),
      oct_report_count(oct_report_number(r, "requests.cut")));
  oct_report_print_wrapped(out, "requests", requests);
  if (oct_report_at(r, "requests.first_refusal") != NULL)
    oct_report_print_wrapped(out, "", string_at(r, "requests.first_refusal"));
}

static const char *const latency_columns[] = {"mean", "p50", "p90", "p95", "p99", "max"};

void
oct_report_print_distribution(FILE *out, const char *name, const json_t *distribution) {
  fprintf(out, "  %-12s", name);
  for (gsize c = 0; c < G_N_ELEMENTS(latency_columns); c++)
    fprintf(out, "%11s", oct_report_seconds(oct_report_number(distribution, latency_columns[c])));
  fputc('\n', out);
}

void
oct_report_print_latency(FILE *out, const json_t *r, const char *const *only) {
  static const char *const rows[][2] = {{"ttft", "TTFT"},   {"tpot", "TPOT"},
                                        {"itl", "ITL"},     {"e2e", "E2E"},
                                        {"queue", "queue"}, {"longest_gap", "longest gap"}};
  const json_t *latencies = oct_report_at(r, "latency_s");
  double at = oct_report_number(latencies, "at_s");
  g_autofree char *label = isnan(at) ? g_strdup("latency") : g_strdup_printf("at T = %.0f s", at);
  fprintf(out, "\n%-14s", label);
  for (gsize c = 0; c < G_N_ELEMENTS(latency_columns); c++)
    fprintf(out, "%11s", latency_columns[c]);
  fputc('\n', out);
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++)
    if (only == NULL || g_strv_contains(only, rows[i][0]))
      oct_report_print_distribution(out, rows[i][1], oct_report_at(latencies, rows[i][0]));
  if (!isnan(at))
    oct_report_print_wrapped(out, "",
                             "The run falls behind: its latencies grow for as long as it lasts.");
  fputc('\n', out);
}

void
oct_report_print_throughput(FILE *out, const json_t *r) {
  gboolean goals = oct_report_at(r, "slo.met") != NULL;
  g_autofree char *text = g_strdup_printf(
      "%s requests/s of %s offered%s%s; tokens/s: %s in (%s computed), %s out",
      oct_report_count(oct_report_number(r, "throughput.requests_per_s")),
      oct_report_count(oct_report_number(r, "throughput.offered_requests_per_s")),
      goals ? ", goodput " : "",
      goals ? oct_report_count(oct_report_number(r, "throughput.good_requests_per_s")) : "",
      oct_report_count(oct_report_number(r, "throughput.input_tokens_per_s")),
      oct_report_count(oct_report_number(r, "throughput.computed_input_tokens_per_s")),
      oct_report_count(oct_report_number(r, "throughput.output_tokens_per_s")));
  double each = oct_report_number(r, "throughput.output_tokens_per_s_per_gpu");
  g_autofree char *per_gpu = isnan(each)
                                 ? g_strdup(text)
                                 : g_strdup_printf("%s (%s per GPU)", text, oct_report_count(each));
  oct_report_print_wrapped(out, "throughput", per_gpu);
  const json_t *objectives = oct_report_at(r, "slo.objectives");
  if (json_array_size(objectives) == 0)
    return;
  g_autoptr(GString) slo = g_string_new(NULL);
  gsize i;
  const json_t *item;
  json_array_foreach(objectives, i, item)
      g_string_append_printf(slo, "%s %s of %s: %s; ", string_at(item, "name"),
                             oct_report_seconds(oct_report_number(item, "value_s")),
                             oct_report_seconds(oct_report_number(item, "limit_s")),
                             is_true(item, "met") ? "met" : "MISSED");
  g_string_append_printf(slo, "%s of requests within all limits",
                         oct_report_share(oct_report_number(r, "slo.attainment")));
  oct_report_print_wrapped(out, "slo", slo->str);
}

static void
print_steps(FILE *out, const json_t *r) {
  g_autofree char *text = g_strdup_printf(
      "%s of %s mean, with %s sequences (p99 %s) and %s tokens (p99 %s) each; device busy %s",
      oct_report_count(oct_report_number(r, "scheduler.steps")),
      oct_report_seconds(oct_report_number(r, "steps.time.mean")),
      oct_report_count(oct_report_number(r, "steps.sequences.mean")),
      oct_report_count(oct_report_number(r, "steps.sequences.p99")),
      oct_report_count(oct_report_number(r, "steps.tokens.mean")),
      oct_report_count(oct_report_number(r, "steps.tokens.p99")),
      oct_report_share(oct_report_number(r, "steps.busy_share")));
  oct_report_print_wrapped(out, "steps", text);
  if (oct_report_at(r, "steps.bound_by") == NULL)
    return;
  static const char *const parts[][2] = {{"compute", "arithmetic"}, {"memory", "HBM"},
                                         {"collective", "links"},   {"fixed", "launches"},
                                         {"copy", "copies"},        {"wait", "waits"}};
  const char *most = string_at(r, "steps.bound_by");
  g_autoptr(GString) bound = g_string_new("bound by ");
  for (gsize i = 0; i < G_N_ELEMENTS(parts); i++)
    if (strcmp(parts[i][0], most) == 0)
      g_string_append_printf(bound, "%s: ", parts[i][1]);
  for (gsize i = 0; i < G_N_ELEMENTS(parts); i++) {
    g_autofree char *path = g_strdup_printf("steps.parts.%s", parts[i][0]);
    if (oct_report_number(r, path) > 0)
      g_string_append_printf(bound, "%s%s %s", bound->str[bound->len - 2] == ':' ? "" : ", ",
                             parts[i][1], oct_report_share(oct_report_number(r, path)));
  }
  oct_report_print_wrapped(out, "", bound->str);
}

static void
print_use(FILE *out, const json_t *r) {
  g_autoptr(GString) text = g_string_new(NULL);
  g_string_append_printf(text, "KV pages %s used (max %s), %s cached",
                         oct_report_share(oct_report_number(r, "use.kv_used.mean")),
                         oct_report_share(oct_report_number(r, "use.kv_used.max")),
                         oct_report_share(oct_report_number(r, "use.kv_cached.mean")));
  if (oct_report_at(r, "use.state_used") != NULL)
    g_string_append_printf(text, "; state slots %s used (max %s), %s cached",
                           oct_report_share(oct_report_number(r, "use.state_used.mean")),
                           oct_report_share(oct_report_number(r, "use.state_used.max")),
                           oct_report_share(oct_report_number(r, "use.state_cached.mean")));
  if (oct_report_at(r, "use.host_used") != NULL)
    g_string_append_printf(text, "; host tier %s used",
                           oct_report_share(oct_report_number(r, "use.host_used.mean")));
  g_string_append_printf(text, "; running %s (max %s), waiting %s (max %s)",
                         oct_report_count(oct_report_number(r, "use.running.mean")),
                         oct_report_count(oct_report_number(r, "use.running.max")),
                         oct_report_count(oct_report_number(r, "use.waiting.mean")),
                         oct_report_count(oct_report_number(r, "use.waiting.max")));
  oct_report_print_wrapped(out, "memory", text->str);
  g_autofree char *lost = g_strdup_printf(
      "preemptions %s (offloaded %s), recomputed %s of prompt tokens; prefix hits: %s",
      oct_report_count(oct_report_number(r, "scheduler.preemptions")),
      oct_report_count(oct_report_number(r, "scheduler.offloads")),
      oct_report_share(oct_report_number(r, "scheduler.recomputed_share")),
      oct_report_at(r, "scheduler.prefix_hit_share") != NULL
          ? oct_report_share(oct_report_number(r, "scheduler.prefix_hit_share"))
      : is_true(r, "trace.prefix_ids") ? "caching is off"
                                       : "not modelled");
  oct_report_print_wrapped(out, "", lost);
}

static void
print_experts(FILE *out, const json_t *r) {
  if (oct_report_at(r, "experts") == NULL)
    return;
  g_autofree char *text = g_strdup_printf(
      "%s of %s a layer on each GPU; %s of uses found (%s of token-expert pairs), %s loaded at %s "
      "GB/s; break-even batch %s",
      oct_report_count(oct_report_number(r, "experts.slots_per_layer")),
      oct_report_count(oct_report_number(r, "experts.experts_per_layer")),
      oct_report_share(oct_report_number(r, "experts.hit_share")),
      oct_report_share(oct_report_number(r, "experts.pair_hit_share")),
      oct_report_count(oct_report_number(r, "experts.loads")),
      oct_report_count(oct_report_number(r, "experts.loaded_bytes_per_s") / 1e9),
      oct_report_count(oct_report_number(r, "experts.break_even_batch")));
  oct_report_print_wrapped(out, "experts", text);
}

static void
print_speculation(FILE *out, const json_t *r) {
  if (oct_report_at(r, "speculation") == NULL)
    return;
  const json_t *places = oct_report_at(r, "speculation.accepted_share_by_place"), *place;
  const char *model = string_at(r, "speculation.draft_model");
  gboolean drafts = strcmp(model, "-") != 0;
  g_autoptr(GString) text = g_string_new(NULL);
  gsize i;
  g_string_append_printf(
      text, "%s%s%s, %s drafts of %s: %s accepted, %s tokens a verified slice; by place",
      string_at(r, "speculation.method"), drafts ? " " : "", drafts ? model : "",
      oct_report_count(oct_report_number(r, "speculation.draft_tokens")),
      oct_report_count(oct_report_number(r, "speculation.num_speculative_tokens")),
      oct_report_share(oct_report_number(r, "speculation.acceptance_share")),
      oct_report_count(oct_report_number(r, "speculation.tokens_per_slice")));
  json_array_foreach(places, i, place) {
    g_string_append_printf(
        text, " %s", oct_report_share(json_is_number(place) ? json_number_value(place) : NAN));
  }
  if (drafts)
    g_string_append_printf(text, "; %s steps of the draft model",
                           oct_report_count(oct_report_number(r, "speculation.draft_model_steps")));
  oct_report_print_wrapped(out, "drafts", text->str);
}

/* Per kind the mean utilisation and the busiest, kinds under 0.1 % left out. */
static void
print_resources(FILE *out, const json_t *r) {
  const json_t *list = oct_report_at(r, "resources"), *item;
  g_autoptr(GString) text = g_string_new(NULL);
  gsize i = 0, n = json_array_size(list);
  while (i < n) {
    const char *kind = string_at(json_array_get(list, i), "kind");
    double sum = 0, most = 0, late = 0;
    guint members = 0;
    gsize j;
    json_array_foreach(list, j, item) {
      if (strcmp(string_at(item, "kind"), kind) != 0)
        continue;
      double use = oct_report_number(item, "utilisation");
      sum += isnan(use) ? 0 : use;
      most = MAX(most, isnan(use) ? 0 : use);
      late += oct_report_number(item, "delayed_s");
      members++;
      i = MAX(i, j + 1);
    }
    if (most < 0.001 && late == 0)
      continue;
    g_string_append_printf(text, "%s%s %s", text->len > 0 ? ", " : "", kind,
                           oct_report_share(sum / members));
    if (most > 1.05 * sum / members)
      g_string_append_printf(text, " (max %s)", oct_report_share(most));
    if (late > 0)
      g_string_append_printf(text, " [late by %s]", oct_report_seconds(late));
  }
  if (text->len > 0)
    oct_report_print_wrapped(out, "use", text->str);
}

static void
print_step_times(FILE *out, const json_t *r) {
  const json_t *rows = oct_report_at(r, "step_times.rows"), *row;
  if (json_array_size(rows) == 0)
    return;
  gboolean two = oct_report_at(json_array_get(rows, 0), "target_s") != NULL;
  gboolean own = oct_report_at(json_array_get(rows, 0), "own_s") != NULL;
  fprintf(out, "\ndecode step at %s tokens of context each\n",
          oct_report_count(oct_report_number(r, "step_times.context_tokens")));
  fprintf(out, "  %-8s%16s%16s", "batch", two ? "measured MoE" : "step", two ? "target MoE" : "");
  if (own)
    fprintf(out, "%16s", "own kernels");
  fprintf(out, "%16s\n", "roofline floor");
  gsize i;
  json_array_foreach(rows, i, row) {
    fprintf(out, "  %-8s%16s%16s", oct_report_count(oct_report_number(row, "batch")),
            oct_report_seconds(oct_report_number(row, "measured_s")),
            two ? oct_report_seconds(oct_report_number(row, "target_s")) : "");
    if (own)
      fprintf(out, "%16s", oct_report_seconds(oct_report_number(row, "own_s")));
    fprintf(out, "%16s%s\n", oct_report_seconds(oct_report_number(row, "floor_s")),
            i + 1 == json_array_size(rows) ? "  (this run's mean)" : "");
  }
}

static double
part_ms(const json_t *row, const char *part) {
  g_autofree char *path = g_strdup_printf("parts_s.%s", part);
  return 1e3 * oct_report_number(row, path);
}

/* Where the time of a step goes, how many users that makes, and why. */
static void
print_step_parts(FILE *out, const json_t *r) {
  static const char *const names[] = {"kda",   "mla",   "attention",   "moe",
                                      "dense", "other", "collectives", "launch"};
  const json_t *p = oct_report_at(r, "step_parts"), *rows = oct_report_at(p, "rows"), *item;
  const json_t *last = json_array_get(rows, json_array_size(rows) - 1);
  gsize i;
  if (json_array_size(rows) == 0)
    return;
  fputs("\na decode step by part, ms\n  batch ", out);
  for (gsize k = 0; k < G_N_ELEMENTS(names); k++)
    if (part_ms(last, names[k]) > 0)
      fprintf(out, " %11s", names[k]);
  fputs("        step   per token  bound by\n", out);
  json_array_foreach(rows, i, item) {
    fprintf(out, "  %-6s", oct_report_count(oct_report_number(item, "batch")));
    for (gsize k = 0; k < G_N_ELEMENTS(names); k++)
      if (part_ms(last, names[k]) > 0)
        fprintf(out, " %11.3g", part_ms(item, names[k]));
    fprintf(out, " %11.3g %11.3g  %s\n", 1e3 * oct_report_number(item, "step_s"),
            1e3 * oct_report_number(item, "token_s"), string_at(item, "bound_by"));
  }
  g_autoptr(GString) text = g_string_new(NULL);
  g_string_printf(
      text,
      "the step, and what prompts take of the time: each of %s tokens adds %s to a step "
      "of one sequence, %s to the last",
      oct_report_count(oct_report_number(p, "input_tokens")),
      oct_report_seconds(oct_report_number(json_array_get(rows, 0), "prompt_s")),
      oct_report_seconds(oct_report_number(last, "prompt_s")));
  oct_report_print_wrapped(out, "per token", text->str);
  g_string_truncate(text, 0);
  json_array_foreach(oct_report_at(p, "takes_over"), i, item) g_string_append_printf(
      text, "%s%s from batch %s", i > 0 ? ", " : "", string_at(item, "bound_by"),
      oct_report_count(oct_report_number(item, "batch")));
  static const char *const bounds[] = {"HBM", "links", "compute"};
  for (gsize k = 0; k < G_N_ELEMENTS(bounds); k++)
    if (strstr(text->str, bounds[k]) == NULL)
      g_string_append_printf(text, ", %s never", bounds[k]);
  g_string_append_printf(text, " (to %s)", oct_report_count(oct_report_number(p, "batch_most")));
  oct_report_print_wrapped(out, "most time", text->str);
  const json_t *u = oct_report_at(p, "users");
  g_string_printf(text,
                  "%s at once, of %s tokens each at their end: %s (KV memory holds %s, state %s, ",
                  oct_report_count(oct_report_number(u, "users")),
                  oct_report_count(oct_report_number(p, "user_tokens")), string_at(u, "why"),
                  oct_report_count(oct_report_number(u, "by_kv_pages")),
                  oct_report_count(oct_report_number(u, "by_state_slots")));
  g_string_append_printf(text, "max-num-seqs %s",
                         oct_report_count(oct_report_number(u, "by_max_num_seqs")));
  if (oct_report_at(u, "limit_s") != NULL)
    g_string_append_printf(text, ", %s per token: %s",
                           oct_report_seconds(oct_report_number(u, "limit_s")),
                           oct_report_count(oct_report_number(u, "by_time_per_token")));
  g_string_append_c(text, ')');
  oct_report_print_wrapped(out, "users", text->str);
}

void
oct_report_print(FILE *out, const json_t *r) {
  print_head(out, r);
  oct_report_print_verdict(out, r);
  oct_report_print_latency(out, r, NULL);
  oct_report_print_throughput(out, r);
  oct_report_print_parts(out, r);
  print_steps(out, r);
  print_use(out, r);
  print_speculation(out, r);
  print_experts(out, r);
  oct_report_print_incidents(out, r);
  print_resources(out, r);
  print_step_times(out, r);
  print_step_parts(out, r);
  fputc('\n', out);
  gsize i;
  const json_t *item;
  json_array_foreach(oct_report_at(r, "assumptions"), i, item)
      oct_report_print_wrapped(out, i == 0 ? "assumed" : "", json_string_value(item));
  json_array_foreach(oct_report_at(r, "warnings"), i, item)
      oct_report_print_wrapped(out, "warning", json_string_value(item));
  g_autofree char *run = g_strdup_printf(
      "%s of wall time, %.0f MB; %s steps (%s fast-forwarded), %s steps/s, %s requests/s",
      oct_report_seconds(oct_report_number(r, "run.wall_s")),
      oct_report_number(r, "run.peak_rss_bytes") / 1e6,
      oct_report_count(oct_report_number(r, "run.steps")),
      oct_report_share(oct_report_number(r, "run.forwarded_steps") /
                       oct_report_number(r, "run.steps")),
      oct_report_count(oct_report_number(r, "run.steps_per_s")),
      oct_report_count(oct_report_number(r, "run.requests_per_s")));
  oct_report_print_wrapped(out, "run", run);
}
