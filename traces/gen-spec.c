/* The parameters of a generator from text: one table of keys, used by the command line and by
 * "gen:" sources alike. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "traces/gen.h"
#include "traces/presets.h"

void
oct_trace_gen_spec_init(oct_trace_gen_spec *spec) {
  memset(spec, 0, sizeof *spec);
  spec->seed = 1;
  spec->rate = 1;
  spec->burstiness = 1;
  spec->weibull_shape = 1;
  spec->input = oct_dist_parse("1024", NULL);
  spec->output = oct_dist_parse("128", NULL);
}

void
oct_trace_gen_spec_clear(oct_trace_gen_spec *spec) {
  g_clear_pointer(&spec->name, g_free);
  g_clear_pointer(&spec->class_name, g_free);
  g_clear_pointer(&spec->servegen, g_strfreev);
  g_clear_pointer(&spec->gaps, oct_dist_unref);
  g_clear_pointer(&spec->input, oct_dist_unref);
  g_clear_pointer(&spec->output, oct_dist_unref);
  g_clear_pointer(&spec->followup, oct_dist_unref);
  g_clear_pointer(&spec->max_tokens, oct_dist_unref);
  g_clear_pointer(&spec->turns, oct_dist_unref);
  g_clear_pointer(&spec->think, oct_dist_unref);
}

typedef enum key_kind {
  KEY_COUNT,    /* guint64 in [low, high] */
  KEY_COUNT32,  /* guint32 in [low, high] */
  KEY_PRIORITY, /* gint32 */
  KEY_REAL,     /* double in (low, high], or [low when low is 0 and `zero` */
  KEY_DIST,
  KEY_WORD, /* one of the words, by place, into an int-sized enum */
  KEY_TEXT,
  KEY_FILES, /* appends */
} key_kind;

typedef struct key_rule {
  oct_trace_gen_key doc;
  key_kind kind;
  gsize offset;
  double low, high;
  gboolean zero; /* KEY_REAL: 0 is allowed */
  const char *words;
} key_rule;

#define AT(member) offsetof(oct_trace_gen_spec, member)

static const key_rule rules[] = {
    {{"requests", "N", "stop after N requests"}, KEY_COUNT, AT(n_requests), 1, 1e15, 0, NULL},
    {{"duration", "S", "start sessions for S seconds"}, KEY_REAL, AT(duration_s), 0, 2e9, 0, NULL},
    {{"rate", "R", "session starts per second; inf: all at once"},
     KEY_REAL,
     AT(rate),
     0,
     INFINITY,
     0,
     NULL},
    {{"arrivals", "LAW", "poisson, gamma, weibull, constant, gaps or closed"},
     KEY_WORD,
     AT(arrivals),
     0,
     0,
     0,
     "poisson|gamma|weibull|constant|gaps|closed"},
    {{"burstiness", "K", "gamma shape of the gaps, as vllm bench: cv = 1/sqrt(K)"},
     KEY_REAL,
     AT(burstiness),
     0,
     1e6,
     0,
     NULL},
    {{"weibull-shape", "K", "Weibull shape of the gaps"},
     KEY_REAL,
     AT(weibull_shape),
     0.05,
     1e3,
     0,
     NULL},
    {{"gaps", "DIST", "distribution of the gaps, stretched to the rate"},
     KEY_DIST,
     AT(gaps),
     0,
     0,
     0,
     NULL},
    {{"concurrency", "N", "closed loop of N slots"},
     KEY_COUNT32,
     AT(concurrency),
     1,
     OCT_TRACE_GEN_CONCURRENCY_MAX,
     0,
     NULL},
    {{"ramp", "SHAPE", "none, linear or exponential, from start-rate to end-rate"},
     KEY_WORD,
     AT(ramp),
     0,
     0,
     0,
     "none|linear|exponential"},
    {{"start-rate", "R", "session starts per second at the start of the ramp"},
     KEY_REAL,
     AT(start_rate),
     0,
     1e9,
     TRUE,
     NULL},
    {{"end-rate", "R", "session starts per second at its end"},
     KEY_REAL,
     AT(end_rate),
     0,
     1e9,
     0,
     NULL},
    {{"input", "DIST", "prompt tokens of a first turn, prefix not counted"},
     KEY_DIST,
     AT(input),
     0,
     0,
     0,
     NULL},
    {{"output", "DIST", "output tokens"}, KEY_DIST, AT(output), 0, 0, 0, NULL},
    {{"followup", "DIST", "tokens that a later turn adds to the context; default: input"},
     KEY_DIST,
     AT(followup),
     0,
     0,
     0,
     NULL},
    {{"max-tokens", "DIST", "what clients allow, e.g. true*2 or 4096; default: not stated"},
     KEY_DIST,
     AT(max_tokens),
     0,
     0,
     0,
     NULL},
    {{"turns", "DIST", "turns of a session"}, KEY_DIST, AT(turns), 0, 0, 0, NULL},
    {{"think", "DIST", "seconds between a turn's end and the next"},
     KEY_DIST,
     AT(think),
     0,
     0,
     0,
     NULL},
    {{"prefix-tokens", "N", "length of the shared prefixes"},
     KEY_COUNT32,
     AT(prefix_tokens),
     1,
     OCT_TRACE_TOKENS_MAX - 2,
     0,
     NULL},
    {{"prefix-count", "N", "different prefixes"},
     KEY_COUNT32,
     AT(prefix_count),
     1,
     OCT_TRACE_GEN_PREFIXES_MAX,
     0,
     NULL},
    {{"prefix-zipf", "S", "popularity of prefix k goes as k^-S; 0: equal"},
     KEY_REAL,
     AT(prefix_zipf),
     0,
     20,
     TRUE,
     NULL},
    {{"block-size", "N", "tokens per hash block; default 64 when prefixes or turns are shared"},
     KEY_COUNT32,
     AT(block_size),
     1,
     OCT_TRACE_TOKENS_MAX,
     0,
     NULL},
    {{"max-context", "N", "a session ends before prompt + output pass N tokens"},
     KEY_COUNT32,
     AT(max_context),
     3,
     OCT_TRACE_TOKENS_MAX,
     0,
     NULL},
    {{"priority", "N", "of every request; lower is served first"},
     KEY_PRIORITY,
     AT(priority),
     G_MININT32,
     G_MAXINT32,
     0,
     NULL},
    {{"class", "NAME", "of every request"}, KEY_TEXT, AT(class_name), 0, 0, 0, NULL},
    {{"servegen", "X-trace.csv", "a ServeGen client (with X-dataset.json beside it); repeatable"},
     KEY_FILES,
     AT(servegen),
     0,
     0,
     0,
     NULL},
    {{"servegen-from", "S", "second of the clients' week to start at"},
     KEY_REAL,
     AT(servegen_from_s),
     0,
     1e9,
     TRUE,
     NULL},
    {{"seed", "N", "seed of everything drawn"}, KEY_COUNT, AT(seed), 0, 1.8e19, 0, NULL},
};

static gboolean
fail(GError **error, const key_rule *rule, const char *value, const char *what) {
  g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION, "%s: value \"%s\": %s", rule->doc.key,
              value, what);
  return FALSE;
}

static gboolean
set_count(const key_rule *rule, void *at, const char *value, GError **error) {
  guint64 number = 0;
  if (!g_ascii_string_to_unsigned(value, 10, (guint64)rule->low, (guint64)rule->high, &number,
                                  NULL)) {
    g_autofree char *what =
        g_strdup_printf("must be a whole number from %.0f to %.0f", rule->low, rule->high);
    return fail(error, rule, value, what);
  }
  if (rule->kind == KEY_COUNT)
    *(guint64 *)at = number;
  else
    *(guint32 *)at = (guint32)number;
  return TRUE;
}

static gboolean
set_real(const key_rule *rule, void *at, const char *value, GError **error) {
  char *end = NULL;
  double number = g_ascii_strtod(value, &end);
  gboolean high_enough = number > rule->low || (rule->zero && number == 0);
  if (end == value || *end != 0 || isnan(number) || !high_enough || number > rule->high) {
    g_autofree char *highest =
        isinf(rule->high) ? g_strdup(", or inf") : g_strdup_printf(" and at most %g", rule->high);
    g_autofree char *what = g_strdup_printf("must be a number %s %g%s",
                                            rule->zero ? "from" : "above", rule->low, highest);
    return fail(error, rule, value, what);
  }
  *(double *)at = number;
  return TRUE;
}

static gboolean
set_word(const key_rule *rule, void *at, const char *value, GError **error) {
  g_auto(GStrv) words = g_strsplit(rule->words, "|", -1);
  for (int i = 0; words[i] != NULL; i++)
    if (strcmp(words[i], value) == 0) {
      memcpy(at, &(unsigned){(unsigned)i}, sizeof(unsigned)); /* enums here are unsigned int */
      return TRUE;
    }
  return fail(error, rule, value, rule->doc.help);
}

static gboolean
set_dist(void *at, const char *value, GError **error) {
  oct_dist **slot = at;
  oct_dist *dist = oct_dist_parse(value, error);
  if (dist == NULL)
    return FALSE;
  oct_dist_unref(*slot);
  *slot = dist;
  return TRUE;
}

static gboolean
set_priority(const key_rule *rule, void *at, const char *value, GError **error) {
  gint64 number = 0;
  if (!g_ascii_string_to_signed(value, 10, G_MININT32, G_MAXINT32, &number, NULL))
    return fail(error, rule, value, "must be a 32-bit whole number");
  *(gint32 *)at = (gint32)number;
  return TRUE;
}

static gboolean
set_text(const key_rule *rule, void *at, const char *value, GError **error) {
  char **slot = at;
  if (strlen(value) > OCT_TRACE_CLASS_BYTES_MAX || !g_utf8_validate(value, -1, NULL))
    return fail(error, rule, value, "must be UTF-8 of at most 64 bytes");
  g_free(*slot);
  *slot = g_strdup(value);
  return TRUE;
}

static void
append_file(void *at, const char *value) {
  char ***slot = at;
  gsize n = *slot != NULL ? g_strv_length(*slot) : 0;
  *slot = g_renew(char *, *slot, n + 2);
  (*slot)[n] = g_strdup(value);
  (*slot)[n + 1] = NULL;
}

static gboolean
set_by_rule(oct_trace_gen_spec *spec, const key_rule *rule, const char *value, GError **error) {
  void *at = (char *)spec + rule->offset;
  switch (rule->kind) {
  case KEY_COUNT:
  case KEY_COUNT32:
    return set_count(rule, at, value, error);
  case KEY_PRIORITY:
    return set_priority(rule, at, value, error);
  case KEY_REAL:
    return set_real(rule, at, value, error);
  case KEY_DIST:
    return set_dist(at, value, error);
  case KEY_WORD:
    return set_word(rule, at, value, error);
  case KEY_TEXT:
    return set_text(rule, at, value, error);
  case KEY_FILES:
    append_file(at, value);
    return TRUE;
  }
  return FALSE;
}

/* Some parameters name the law that they belong to. */
static void
imply(oct_trace_gen_spec *spec, const char *key) {
  if (strcmp(key, "burstiness") == 0)
    spec->arrivals = OCT_TRACE_ARRIVALS_GAMMA;
  else if (strcmp(key, "weibull-shape") == 0)
    spec->arrivals = OCT_TRACE_ARRIVALS_WEIBULL;
  else if (strcmp(key, "gaps") == 0)
    spec->arrivals = OCT_TRACE_ARRIVALS_GAPS;
  else if (strcmp(key, "concurrency") == 0)
    spec->arrivals = OCT_TRACE_ARRIVALS_CLOSED;
  else if (strcmp(key, "servegen") == 0)
    spec->arrivals = OCT_TRACE_ARRIVALS_SERVEGEN;
  else if (strcmp(key, "rate") == 0)
    spec->rate_given = TRUE;
}

gboolean
oct_trace_gen_set(oct_trace_gen_spec *spec, const char *key, const char *value, GError **error) {
  for (gsize i = 0; i < G_N_ELEMENTS(rules); i++)
    if (strcmp(rules[i].doc.key, key) == 0) {
      if (!set_by_rule(spec, &rules[i], value, error))
        return FALSE;
      imply(spec, key);
      return TRUE;
    }
  g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION,
              "\"%s\" is no parameter of a generator (octet trace gen --help lists them)", key);
  return FALSE;
}

gboolean
oct_trace_gen_parse(oct_trace_gen_spec *spec, const char *text, GError **error) {
  g_auto(GStrv) parts = g_strsplit(text, ",", -1);
  for (gsize i = 0; parts[i] != NULL; i++) {
    char *equals = strchr(parts[i], '=');
    if (equals == NULL && i == 0) {
      if (!oct_trace_preset_apply(parts[0], spec, error))
        return FALSE;
      continue;
    }
    if (equals == NULL) {
      g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION, "gen:%s: \"%s\" is not key=value",
                  text, parts[i]);
      return FALSE;
    }
    *equals = 0;
    if (!oct_trace_gen_set(spec, parts[i], equals + 1, error))
      return FALSE;
  }
  return TRUE;
}

const oct_trace_gen_key *
oct_trace_gen_key_at(gsize i) {
  return i < G_N_ELEMENTS(rules) ? &rules[i].doc : NULL;
}
