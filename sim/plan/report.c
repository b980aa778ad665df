/* A plan for people, from its JSON. */
#include <math.h>
#include <string.h>

#include "sim/plan/plan.h"
#include "sim/replay/report.h"

/* Of layouts that are not simulated so many a fate are listed, unless all are asked for. */
#define LISTED_MAX 6

static const char *
text_at(const json_t *object, const char *path) {
  const json_t *value = oct_report_at(object, path);
  return value != NULL && json_is_string(value) ? json_string_value(value) : "-";
}

static const char *
rate_text(double rate) {
  static char buffers[8][24];
  static guint next;
  char *text = buffers[next++ % G_N_ELEMENTS(buffers)];
  if (isfinite(rate))
    g_snprintf(text, sizeof buffers[0], "%.4g", rate);
  else
    g_strlcpy(text, "-", sizeof buffers[0]);
  return text;
}

/* A name in a column; one that is too long gets a line of its own. */
static void
print_name(FILE *out, const json_t *layout, const char *indent, int width) {
  g_autofree char *name =
      g_strdup_printf("%s%s: %s", indent, text_at(layout, "node"), text_at(layout, "label"));
  if (strlen(name) > (gsize)width)
    fprintf(out, "%s\n%-*s", name, width, "");
  else
    fprintf(out, "%-*s", width, name);
}

static void
print_question(FILE *out, const json_t *plan) {
  const json_t *q = json_object_get(plan, "question"), *item;
  g_autoptr(GString) text = g_string_new(NULL);
  gsize i;
  g_string_append_printf(text, "%s of %s", text_at(q, "goal"), text_at(q, "model"));
  if (oct_report_at(q, "wanted_rate") != NULL)
    g_string_append_printf(text, " for %s sessions/s",
                           rate_text(oct_report_number(q, "wanted_rate")));
  g_string_append(text, ", under ");
  json_array_foreach(json_object_get(q, "slo"), i, item)
      g_string_append_printf(text, "%s%s <= %s", i > 0 ? ", " : "", text_at(item, "name"),
                             oct_report_seconds(oct_report_number(item, "limit_s")));
  oct_report_print_wrapped(out, "question", text->str);
  g_string_printf(text, "%s: %s tokens in and %s out in the mean, %s requests a session",
                  text_at(q, "trace"),
                  oct_report_count(round(oct_report_number(q, "mean_input_tokens"))),
                  oct_report_count(round(oct_report_number(q, "mean_output_tokens"))),
                  rate_text(oct_report_number(q, "requests_per_start")));
  oct_report_print_wrapped(out, "traffic", text->str);
}

/* How much is to be served, and why so much. */
static void
print_demand(FILE *out, const json_t *plan) {
  const json_t *d = json_object_get(plan, "demand"), *w = json_object_get(d, "worst_window");
  if (!json_is_object(d))
    return;
  g_autoptr(GString) text = g_string_new(NULL);
  g_string_printf(text, "%s sessions/s in the mean", rate_text(oct_report_number(d, "mean_rate")));
  if (oct_report_number(d, "growth") != 1)
    g_string_append_printf(text, ", growing %s times", rate_text(oct_report_number(d, "growth")));
  if (oct_report_number(d, "peak") != 1)
    g_string_append_printf(text, ", %s times at the peak", rate_text(oct_report_number(d, "peak")));
  if (json_is_object(w))
    g_string_append_printf(text,
                           " (tokens of the worst %s, from %s s on; sessions start %s times "
                           "as often)",
                           oct_report_seconds(oct_report_number(w, "seconds")),
                           oct_report_count(floor(oct_report_number(w, "from_s"))),
                           rate_text(oct_report_number(w, "session_starts")));
  g_string_append_printf(text, ": %s sessions/s are to be served",
                         rate_text(oct_report_number(d, "rate")));
  if (isfinite(oct_report_number(d, "lasts_until_growth")))
    g_string_append_printf(text, "; the first layout lasts until growth %s",
                           rate_text(oct_report_number(d, "lasts_until_growth")));
  oct_report_print_wrapped(out, "demand", text->str);
}

/* What is left after a loss, of each final. */
static void
print_loss(FILE *out, const json_t *finals) {
  gsize i;
  const json_t *f;
  json_array_foreach(finals, i, f) {
    if (!json_is_string(json_object_get(f, "after_loss")))
      return;
    g_autofree char *text = g_strdup_printf(
        "%s: rates are those of %s, with one GPU lost; whole it serves %s/s (coarse)",
        text_at(f, "label"), text_at(f, "after_loss"),
        rate_text(oct_report_number(f, "healthy_rate")));
    oct_report_print_wrapped(out, i == 0 ? "loss" : "", text);
  }
}

static void
print_method(FILE *out, const json_t *plan) {
  const json_t *m = json_object_get(plan, "method");
  g_autoptr(GString) text = g_string_new(NULL);
  double illegal = oct_report_number(m, "layouts.illegal"), others = 0;
  static const char *const names[] = {"layouts.bounded", "layouts.outpaced", "layouts.simulated",
                                      "layouts.finalist"};
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
    others += oct_report_number(m, names[i]);
  g_string_printf(text,
                  "%s legal (%s bounded by the roofline, %s outpaced by estimate, %s simulated, of "
                  "them %s in full), %s illegal",
                  oct_report_count(others), oct_report_count(oct_report_number(m, names[0])),
                  oct_report_count(oct_report_number(m, names[1])),
                  oct_report_count(oct_report_number(m, names[2]) + oct_report_number(m, names[3])),
                  oct_report_count(oct_report_number(m, names[3])), oct_report_count(illegal));
  oct_report_print_wrapped(out, "layouts", text->str);
  g_string_printf(
      text,
      "%s runs; coarse: %s requests of an engine or five residence times, one stream; final: ",
      oct_report_count(oct_report_number(m, "runs")),
      oct_report_count(oct_report_number(m, "coarse_requests")));
  const double seconds = oct_report_number(m, "full_seconds");
  const double most = oct_report_number(m, "full_seconds_most");
  if (isfinite(seconds)) {
    g_string_append_printf(text, "%s of load, ", oct_report_seconds(seconds));
    if (most > seconds)
      g_string_append_printf(text, "up to %s where that was too short to judge, ",
                             oct_report_seconds(most));
  } else
    g_string_append_printf(text, "the trace's %s requests, ",
                           oct_report_count(oct_report_number(m, "full_requests")));
  g_string_append(text, json_is_true(json_object_get(m, "one_stream"))
                            ? "one stream (a recorded trace has no other: no interval)"
                            : "each seed a stream of its own, the same for all layouts");
  oct_report_print_wrapped(out, "method", text->str);
}

static void
print_finals(FILE *out, const json_t *finals, gboolean priced) {
  gsize i;
  const json_t *f;
  fprintf(out, "\n%-34s %5s %16s %2s %9s %9s %9s%s\n", "", "GPUs", "rate /s (95 %)", "n",
          "TTFT p99", "TPOT p99", "/s a GPU", priced ? "  per 1M" : "");
  json_array_foreach(finals, i, f) {
    double half = oct_report_number(f, "rate_half");
    /* A recorded trace has one stream, and no interval. */
    g_autofree char *rate =
        isfinite(half)
            ? g_strdup_printf("%s +- %s", rate_text(oct_report_number(f, "rate")), rate_text(half))
            : g_strdup(rate_text(oct_report_number(f, "rate")));
    double gpus = oct_report_number(f, "gpus_per_node") * oct_report_number(f, "nodes");
    print_name(out, f, "", 34);
    /* No nodes: as many as are allowed do not serve the rate wanted. */
    fprintf(out, " %5s %16s %2s %9s %9s %9s", gpus > 0 ? oct_report_count(gpus) : "-", rate,
            oct_report_count(oct_report_number(f, "n")),
            oct_report_seconds(oct_report_number(f, "ttft_p99_s")),
            oct_report_seconds(oct_report_number(f, "tpot_p99_s")),
            rate_text(oct_report_number(f, "rate_per_gpu")));
    if (priced)
      fprintf(out, "  %s", rate_text(oct_report_number(f, "price_per_million_tokens")));
    fputc('\n', out);
  }
  f = json_array_get(finals, 0);
  if (f != NULL) {
    g_autoptr(GString) text = g_string_new(NULL);
    if (json_is_true(json_object_get(f, "p99_thin")))
      g_string_append_printf(text,
                             "the first one's p99 rest on %s requests a stream, fewer than 10,000",
                             oct_report_count(oct_report_number(f, "requests_least")));
    if (json_is_true(json_object_get(f, "warmup_short")))
      g_string_append_printf(text,
                             "%sthe warm-up is shorter than five mean residence times: a longer "
                             "load may serve less",
                             text->len > 0 ? "; " : "");
    if (json_is_false(json_object_get(f, "wanted_is_sure")))
      g_string_append_printf(text, "%sthe lower end of its interval does not reach the rate wanted",
                             text->len > 0 ? "; " : "");
    if (text->len > 0)
      oct_report_print_wrapped(out, "note", text->str);
  }
}

/* What can be said where finals cannot be judged. */
static void
print_bounds(FILE *out, const json_t *finals) {
  gsize i;
  const json_t *f;
  if (json_array_size(finals) == 0)
    return;
  fprintf(out, "\n%-34s %5s %16s %16s\n", "rate /s of a node", "GPUs", "at least",
          "roofline: at most");
  json_array_foreach(finals, i, f) {
    print_name(out, f, "", 34);
    fprintf(out, " %5s %16s %16s\n", oct_report_count(oct_report_number(f, "gpus_per_node")),
            rate_text(oct_report_number(f, "rate")), rate_text(oct_report_number(f, "floor_rate")));
  }
}

/* What one replica that stood for all says of the router. */
static void
print_together(FILE *out, const json_t *plan) {
  const json_t *best = json_array_get(json_object_get(plan, "finals"), 0);
  const json_t *at = oct_report_at(plan, "what_if.together");
  if (at == NULL)
    return;
  g_autofree char *text = g_strdup_printf(
      "one of the %s replicas stood for all, with what a router to the least loaded would send it "
      "by "
      "estimate. All of them behind that router at the first one's rate (%s requests measured, "
      "coarse): %s, TTFT p99 %s, TPOT p99 %s",
      oct_report_count(oct_report_number(best, "replicas")),
      oct_report_count(oct_report_number(at, "measured")),
      json_is_true(json_object_get(at, "served")) ? "served" : "NOT served",
      oct_report_seconds(oct_report_number(at, "ttft_p99_s")),
      oct_report_seconds(oct_report_number(at, "tpot_p99_s")));
  oct_report_print_wrapped(out, "router", text);
}

static void
print_whatifs(FILE *out, const json_t *plan) {
  const json_t *w = json_object_get(plan, "what_if"), *change;
  gsize i;
  g_autoptr(GString) text = g_string_new(NULL);
  double error = oct_report_number(w, "cost_error");
  fprintf(out, "\n%-34s %9s %6s %12s\n", "the first again (coarse), if", "rate /s", "GPUs",
          "runner-up /s");
  json_array_foreach(json_object_get(w, "changes"), i, change) {
    g_autofree char *name =
        strstr(text_at(change, "change"), "step costs") != NULL
            ? g_strdup_printf("%s %.3g %%", text_at(change, "change"), 100 * error)
            : g_strdup(text_at(change, "change"));
    fprintf(out, "  %-32s %9s %6s %12s%s\n", name, rate_text(oct_report_number(change, "rate")),
            oct_report_count(oct_report_number(change, "gpus")),
            rate_text(oct_report_number(change, "runner_up_rate")),
            json_is_true(json_object_get(change, "flips")) ? "  the ranking flips" : "");
  }
  g_string_printf(text, "%s to %s sessions/s a node", rate_text(oct_report_number(w, "rate_low")),
                  rate_text(oct_report_number(w, "rate_high")));
  if (oct_report_at(w, "gpus_fewest") != NULL)
    g_string_append_printf(text, ", %s to %s GPUs%s",
                           oct_report_count(oct_report_number(w, "gpus_fewest")),
                           oct_report_count(oct_report_number(w, "gpus_most")),
                           json_is_true(json_object_get(w, "nodes_suffice"))
                               ? ""
                               : "; in some cases the nodes allowed do not suffice");
  g_string_append(text, json_is_true(json_object_get(w, "flips"))
                            ? ". The ranking of the first two FLIPS under one of these changes"
                            : ". The first stays ahead of the second under each of these changes");
  if (error > 0 && json_is_false(json_object_get(w, "apart")))
    g_string_append(text, ", and prices that are wrong for one of them alone could turn it");
  g_string_append_printf(text,
                         ". Each is a ratio of two coarse rates, told to %.2g %% each: smaller "
                         "differences say nothing.",
                         100 * oct_report_number(plan, "method.coarse_tolerance"));
  oct_report_print_wrapped(out, "range", text->str);
  if (error > 0)
    oct_report_print_wrapped(out, "error", text_at(w, "cost_error_from"));
}

static void
print_front(FILE *out, const json_t *front) {
  gsize i;
  const json_t *l;
  fprintf(out, "\n%-44s %5s %10s %10s %10s\n", "Pareto front (coarse)", "GPUs", "/s a GPU",
          "TTFT p99", "TPOT p99");
  json_array_foreach(front, i, l) {
    print_name(out, l, "  ", 44);
    fprintf(out, " %5s %10s %10s %10s\n", oct_report_count(oct_report_number(l, "gpus")),
            rate_text(oct_report_number(l, "rate_per_gpu")),
            oct_report_seconds(oct_report_number(l, "ttft_p99_s")),
            oct_report_seconds(oct_report_number(l, "tpot_p99_s")));
  }
}

static void
print_layouts(FILE *out, const json_t *layouts, gboolean all) {
  for (int f = 0; f < OCT_PLAN_FATE_COUNT; f++) {
    const char *fate = oct_plan_fate_name((oct_plan_fate)f);
    guint n = 0;
    gsize i;
    const json_t *l;
    json_array_foreach(layouts, i, l) {
      if (strcmp(text_at(l, "fate"), fate) != 0)
        continue;
      if (n++ == 0)
        fprintf(out, "\n%s\n", fate);
      if (n > LISTED_MAX && !all)
        continue;
      g_autofree char *name = g_strdup_printf("%s: %s", text_at(l, "node"), text_at(l, "label"));
      g_autofree char *why = oct_report_at(l, "why") != NULL
                                 ? g_strdup(text_at(l, "why"))
                                 : g_strdup_printf("%s/s coarse (priced %s, roofline %s)",
                                                   rate_text(oct_report_number(l, "coarse_rate")),
                                                   rate_text(oct_report_number(l, "priced_rate")),
                                                   rate_text(oct_report_number(l, "floor_rate")));
      g_autofree char *line = g_strdup_printf("%s: %s", name, why);
      oct_report_print_wrapped(out, "", line);
    }
    if (n > LISTED_MAX && !all)
      fprintf(out, "            … and %u more (--all, --json)\n", n - LISTED_MAX);
  }
}

/* A command line that a shell takes as it is printed: broken before a flag where it grows too long.
 */
static void
print_command(FILE *out, const char *command) {
  gsize column = 2;
  fputs("  ", out);
  while (*command != '\0') {
    const char *next = strstr(command + 1, " --");
    gsize n = next != NULL ? (gsize)(next - command) : strlen(command);
    if (column > 2 && column + n > 98) {
      fputs(" \\\n   ", out);
      column = 3;
    }
    fprintf(out, "%.*s", (int)n, command);
    column += n;
    command += n;
  }
  fputc('\n', out);
}

void
oct_plan_print(FILE *out, const json_t *plan, gboolean all) {
  const json_t *finals = json_object_get(plan, "finals"), *best = json_array_get(finals, 0);
  print_question(out, plan);
  print_demand(out, plan);
  print_method(out, plan);
  if (oct_report_at(plan, "no_verdict") != NULL) {
    fputs("\nNo verdict is possible, and no layout is recommended.\n", out);
    oct_report_print_wrapped(out, "why", text_at(plan, "no_verdict"));
    print_bounds(out, finals);
  } else if (best == NULL) {
    fputs("\nNo layout serves this under these objectives.\n", out);
  }
  if (best == NULL || oct_report_at(plan, "no_verdict") != NULL) {
    print_layouts(out, json_object_get(plan, "layouts"), all);
    return;
  }
  print_finals(out, finals, oct_report_at(best, "price_per_million_tokens") != NULL);
  print_loss(out, finals);
  print_together(out, plan);
  print_whatifs(out, plan);
  print_front(out, json_object_get(plan, "pareto"));
  print_layouts(out, json_object_get(plan, "layouts"), all);
  fprintf(out, "\nrecommended on %s: %s\n", text_at(best, "node"), text_at(best, "label"));
  print_command(out, text_at(plan, "serve"));
  if (oct_report_at(plan, "serve_needs") != NULL)
    oct_report_print_wrapped(out, "  needs", text_at(plan, "serve_needs"));
  double nodes = oct_report_number(best, "nodes");
  if (nodes > 1)
    fprintf(out, "  on each of %s nodes, behind a router to the least loaded\n",
            oct_report_count(nodes));
}
