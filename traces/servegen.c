/* Each client is a renewal process in its own unit time; the source takes the earliest of all. */
#include "traces/servegen.h"

#include <math.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "traces/dist.h"
#include "traces/lines.h"
#include "traces/trace.h"

#define SUFFIX           "-trace.csv"
#define CLIENTS_MAX      4096u
#define WINDOWS_MAX      (1u << 20)
#define LENGTHS_MAX      (1u << 20)  /* entries of one probability table */
#define DATASET_SIZE_MAX (64u << 20) /* bytes */

typedef struct window {
  double from_s, rate, shape;
  gboolean weibull;
} window;

typedef struct lengths {
  gint64 from_s;
  oct_dist *input, *output; /* NULL: silent */
} lengths;

typedef struct client {
  char *name;
  GArray *windows;  /* window, by time */
  GArray *datasets; /* lengths, by time */
  guint at;         /* window that next_s lies in */
  double next_s;    /* of the next arrival; INFINITY: none */
  oct_rng gaps, tokens;
} client;

struct oct_servegen {
  GPtrArray *clients;
  double from_s, until_s, scale;
};

static void
clear_lengths(gpointer data) {
  lengths *l = data;
  oct_dist_unref(l->input);
  oct_dist_unref(l->output);
}

static void
client_free(gpointer data) {
  client *c = data;
  g_array_unref(c->windows);
  g_array_unref(c->datasets);
  g_free(c->name);
  g_free(c);
}

void
oct_servegen_free(oct_servegen *servegen) {
  if (servegen == NULL)
    return;
  g_ptr_array_unref(servegen->clients);
  g_free(servegen);
}

/* --- X-trace.csv ------------------------------------------------------------------------------ */

static gboolean
number_from_0(const char *text, double *out) {
  char *end = NULL;
  *out = g_ascii_strtod(text, &end);
  return end != text && *end == 0 && isfinite(*out) && *out >= 0;
}

static const char *
parse_window(char *line, const GArray *windows, window *out) {
  g_auto(GStrv) fields = g_strsplit(line, ",", 7);
  double cv;
  if (g_strv_length(fields) != 6)
    return "six fields are expected: start_s,rate,cv,law,shape,scale";
  if (!number_from_0(fields[0], &out->from_s) || !number_from_0(fields[1], &out->rate) ||
      !number_from_0(fields[2], &cv) || !number_from_0(fields[4], &out->shape))
    return "start, rate, cv and shape must be numbers from 0";
  if (windows->len > 0 && out->from_s <= g_array_index(windows, window, windows->len - 1).from_s)
    return "the windows must follow one another in time";
  if (windows->len == WINDOWS_MAX)
    return "more windows than 2^20, the limit";
  out->weibull = strcmp(fields[3], "Weibull") == 0;
  if (fields[3][0] == 0)
    out->rate = 0;
  else if (!out->weibull && strcmp(fields[3], "Gamma") != 0)
    return "the law must be Gamma, Weibull or empty";
  if (out->rate > 0 && out->shape < 1e-3)
    return "the shape must be at least 0.001";
  return NULL;
}

static gboolean
read_windows(client *c, const char *path, GError **error) {
  g_autoptr(oct_lines) lines = oct_lines_open(path, error);
  if (lines == NULL)
    return FALSE;
  char *line;
  gsize size;
  GError *failed = NULL;
  while (oct_lines_next(lines, &line, &size, &failed)) {
    window w;
    const char *fault = size > 0 ? parse_window(line, c->windows, &w) : NULL;
    if (fault != NULL) {
      g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_SYNTAX,
                  "%s:%" G_GUINT64_FORMAT ": \"%.80s\": %s", path, oct_lines_number(lines), line,
                  fault);
      return FALSE;
    }
    if (size > 0)
      g_array_append_val(c->windows, w);
  }
  if (failed == NULL && c->windows->len == 0)
    g_set_error(&failed, OCT_TRACE_ERROR, OCT_TRACE_ERROR_SYNTAX, "%s: no windows", path);
  if (failed != NULL)
    g_propagate_error(error, failed);
  return failed == NULL;
}

/* --- X-dataset.json --------------------------------------------------------------------------- */

/* "{347: 0.0179, 348: 0.0239}" as a distribution; *out NULL when it is empty. FALSE: malformed. */
static gboolean
parse_table(const char *text, oct_dist **out) {
  g_autoptr(GArray) values = g_array_new(FALSE, FALSE, sizeof(double));
  g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(double));
  double sum = 0;
  const char *c = text + strspn(text, " ");
  *out = NULL;
  if (*c++ != '{')
    return FALSE;
  for (c += strspn(c, " "); *c != '}';) {
    char *end = NULL;
    double value = g_ascii_strtod(c, &end);
    if (end == c || *end != ':' || !(value >= 0 && value <= OCT_TRACE_TOKENS_MAX))
      return FALSE;
    c = end + 1;
    double weight = g_ascii_strtod(c, &end);
    if (end == c || !(weight >= 0 && isfinite(weight)) || values->len == LENGTHS_MAX)
      return FALSE;
    g_array_append_val(values, value);
    g_array_append_val(weights, weight);
    sum += weight;
    c = end + strspn(end, " ");
    if (*c == ',')
      c += 1 + strspn(c + 1, " ");
    else if (*c != '}')
      return FALSE;
  }
  if (sum > 0)
    *out = oct_dist_from_weights((double *)(void *)values->data, (double *)(void *)weights->data,
                                 values->len);
  return c[1 + strspn(c + 1, " ")] == 0;
}

static gboolean
parse_dataset(const char *key, const json_t *fields, lengths *out) {
  const char *input = json_string_value(json_object_get(fields, "input_tokens"));
  const char *output = json_string_value(json_object_get(fields, "output_tokens"));
  return g_ascii_string_to_signed(key, 10, 0, G_MAXINT32, &out->from_s, NULL) && input != NULL &&
         output != NULL && parse_table(input, &out->input) && parse_table(output, &out->output);
}

static gint
by_time(gconstpointer a, gconstpointer b) {
  const lengths *x = a, *y = b;
  return (x->from_s > y->from_s) - (x->from_s < y->from_s);
}

static json_t *
load_json(const char *path, GError **error) {
  g_autofree char *text = NULL;
  gsize size = 0;
  g_autoptr(GError) failed = NULL;
  if (!oct_file_read(path, DATASET_SIZE_MAX, &text, &size, &failed)) {
    const gboolean too_long = g_error_matches(failed, OCT_BASE_ERROR, OCT_BASE_ERROR_LIMIT);
    g_set_error(error, OCT_TRACE_ERROR, too_long ? OCT_TRACE_ERROR_LIMIT : OCT_TRACE_ERROR_IO,
                "%s: %s", path, failed->message);
    return NULL;
  }
  json_error_t why;
  json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
  if (root == NULL)
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_SYNTAX, "%s:%d: %s", path, why.line,
                why.text);
  return root;
}

static gboolean
read_datasets(client *c, const char *path, GError **error) {
  json_t *root = load_json(path, error);
  if (root == NULL)
    return FALSE;
  gboolean good = json_is_object(root);
  const char *key = "";
  json_t *fields;
  json_object_foreach(root, key, fields) {
    lengths l = {0, NULL, NULL};
    good = parse_dataset(key, fields, &l);
    if (good && l.input != NULL && l.output != NULL)
      g_array_append_val(c->datasets, l); /* one without lengths leaves the one before in force */
    else
      clear_lengths(&l);
    if (!good)
      break;
  }
  if (!good)
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_SYNTAX,
                "%s: window \"%.40s\": input_tokens and output_tokens must be strings of "
                "\"{length: probability, …}\"",
                path, key);
  json_decref(root);
  g_array_sort(c->datasets, by_time);
  return good;
}

static client *
read_client(const char *path, GError **error) {
  if (!g_str_has_suffix(path, SUFFIX)) {
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION,
                "%s: a ServeGen client is named X" SUFFIX, path);
    return NULL;
  }
  client *c = g_new0(client, 1);
  c->windows = g_array_new(FALSE, FALSE, sizeof(window));
  c->datasets = g_array_new(FALSE, FALSE, sizeof(lengths));
  g_array_set_clear_func(c->datasets, clear_lengths);
  g_autofree char *stem = g_strndup(path, strlen(path) - strlen(SUFFIX));
  g_autofree char *dataset = g_strconcat(stem, "-dataset.json", NULL);
  c->name = g_path_get_basename(stem);
  if (!read_windows(c, path, error) || !read_datasets(c, dataset, error)) {
    client_free(c);
    return NULL;
  }
  return c;
}

/* --- arrivals --------------------------------------------------------------------------------- */

/* The lengths in force at second s; NULL: silent. */
static const lengths *
lengths_at(const client *c, double s) {
  const lengths *found = NULL;
  for (guint i = 0; i < c->datasets->len; i++)
    if ((double)g_array_index(c->datasets, lengths, i).from_s <= s)
      found = &g_array_index(c->datasets, lengths, i);
  return found;
}

/* A window ends where the next begins; the last is as long as the one before it. */
static double
window_end(const client *c, guint i) {
  const window *w = (const window *)(const void *)c->windows->data;
  if (i + 1 < c->windows->len)
    return w[i + 1].from_s;
  return w[i].from_s + (i > 0 ? w[i].from_s - w[i - 1].from_s : 600);
}

static double
rate_in(const client *c, guint i) {
  const window *w = &g_array_index(c->windows, window, i);
  return lengths_at(c, w->from_s) != NULL ? w->rate : 0;
}

static double
unit_gap(client *c) {
  const window *w = &g_array_index(c->windows, window, c->at);
  if (!(w->rate > 0))
    return oct_rng_exponential(&c->gaps, 1); /* the clock starts in a silent window */
  return w->weibull ? oct_rng_weibull(&c->gaps, w->shape, 1 / tgamma(1 + 1 / w->shape))
                    : oct_rng_gamma(&c->gaps, w->shape, 1 / w->shape);
}

/* Moves next_s on by one gap from second `from`, through the windows that it crosses. */
static void
advance(const oct_servegen *s, client *c, double from) {
  double left = unit_gap(c);
  for (; c->at < c->windows->len; c->at++) {
    double end = window_end(c, c->at), rate = rate_in(c, c->at) * s->scale;
    double held = rate * MAX(end - from, 0);
    if (left <= held && rate > 0) {
      c->next_s = from + left / rate;
      return;
    }
    left -= held;
    from = MAX(from, end);
  }
  c->next_s = INFINITY;
}

/* Requests that the recorded rates expect from from_s to until_s. */
static double
expected(const oct_servegen *s) {
  double sum = 0;
  for (guint k = 0; k < s->clients->len; k++) {
    const client *c = s->clients->pdata[k];
    for (guint i = 0; i < c->windows->len; i++) {
      double from = MAX(g_array_index(c->windows, window, i).from_s, s->from_s);
      sum += rate_in(c, i) * MAX(MIN(window_end(c, i), s->until_s) - from, 0);
    }
  }
  return sum;
}

static void
start_clients(oct_servegen *s, guint64 seed) {
  enum { STREAM_CLIENTS = 16 };
  for (guint k = 0; k < s->clients->len; k++) {
    client *c = s->clients->pdata[k];
    oct_rng_seed(&c->gaps, seed, STREAM_CLIENTS + 2 * (guint64)k);
    oct_rng_seed(&c->tokens, seed, STREAM_CLIENTS + 2 * (guint64)k + 1);
    while (c->at + 1 < c->windows->len && window_end(c, c->at) <= s->from_s)
      c->at++;
    advance(s, c, MAX(s->from_s, g_array_index(c->windows, window, c->at).from_s));
  }
}

oct_servegen *
oct_servegen_new(char *const *paths, double from_s, double duration_s, double rate, guint64 seed,
                 GError **error) {
  g_autoptr(oct_servegen) s = g_new0(oct_servegen, 1);
  s->clients = g_ptr_array_new_with_free_func(client_free);
  s->from_s = from_s;
  s->scale = 1;
  double last = 0;
  for (gsize i = 0; paths[i] != NULL; i++) {
    client *c = i < CLIENTS_MAX ? read_client(paths[i], error) : NULL;
    if (i == CLIENTS_MAX)
      g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_LIMIT, "more than %u clients, the limit",
                  CLIENTS_MAX);
    if (c == NULL)
      return NULL;
    g_ptr_array_add(s->clients, c);
    last = MAX(last, window_end(c, c->windows->len - 1));
  }
  s->until_s = duration_s > 0 ? from_s + duration_s : last;
  double requests = expected(s);
  if (!(requests > 0)) {
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION,
                "the ServeGen clients send nothing from second %g to %g", from_s, s->until_s);
    return NULL;
  }
  if (rate > 0)
    s->scale = rate * (s->until_s - from_s) / requests;
  start_clients(s, seed);
  return g_steal_pointer(&s);
}

gboolean
oct_servegen_next(oct_servegen *s, oct_servegen_event *out) {
  client *first = s->clients->pdata[0];
  for (guint k = 1; k < s->clients->len; k++) {
    client *c = s->clients->pdata[k];
    if (c->next_s < first->next_s)
      first = c;
  }
  if (!(first->next_s < s->until_s))
    return FALSE;
  const lengths *l = lengths_at(first, g_array_index(first->windows, window, first->at).from_s);
  oct_assert(l != NULL); /* where there are no lengths the rate is 0 */
  out->arrival_ns = llround((first->next_s - s->from_s) * 1e9);
  out->input_tokens = oct_dist_draw_tokens(l->input, &first->tokens, 0);
  out->output_tokens = oct_dist_draw_tokens(l->output, &first->tokens, 0);
  out->client = first->name;
  advance(s, first, first->next_s);
  return TRUE;
}
