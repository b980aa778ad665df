#include "sim/replay/slo.h"

#include <math.h>
#include <string.h>

G_DEFINE_QUARK(oct - replay - error - quark, oct_replay_error)

static const char *const names[OCT_LATENCY_COUNT] = {"ttft", "tpot", "itl", "e2e", "queue"};

const char *
oct_latency_name(oct_latency latency) {
  return names[latency];
}

void
oct_slo_init(oct_slo *slo) {
  memset(slo, 0, sizeof *slo);
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    slo->each_ns[i] = OCT_SLO_NONE;
}

gboolean
oct_duration_parse(const char *what, const char *text, gboolean positive, gint64 *ns,
                   GError **error) {
  static const struct {
    const char *unit;
    double ns;
  } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}};
  /* The longest is a quarter of the clock's range: sums of a few stay in it. */
  char *end = NULL;
  double number = g_ascii_strtod(text, &end);
  for (gsize i = 0; i < G_N_ELEMENTS(units) && end != text; i++) {
    double value = number * units[i].ns;
    if (strcmp(end, units[i].unit) != 0 || !isfinite(value))
      continue;
    if (value < 0 || (positive && value < 0.5))
      break;
    if (value > (double)(G_MAXINT64 / 4)) {
      g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                  "%s: \"%s\" is beyond the longest time, 73 years", what, text);
      return FALSE;
    }
    *ns = llround(value);
    return TRUE;
  }
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
              "%s: \"%s\" is no time %s with a unit (ns, us, ms, s, min, h)", what, text,
              positive ? "above 0" : "of at least 0");
  return FALSE;
}

/* "ttft_p99" of `name`. */
static gboolean
parse_name(oct_slo_item *item, const char *name) {
  const char *mark = strchr(name, '_');
  gsize length = mark != NULL ? (gsize)(mark - name) : strlen(name);
  int which = 0;
  while (which < OCT_LATENCY_COUNT &&
         (strlen(names[which]) != length || strncmp(names[which], name, length) != 0))
    which++;
  if (which == OCT_LATENCY_COUNT || strlen(name) >= sizeof item->name)
    return FALSE;
  item->latency = (oct_latency)which;
  item->percent = 100;
  g_strlcpy(item->name, name, sizeof item->name);
  if (mark == NULL)
    return TRUE;
  item->is_mean = strcmp(mark, "_mean") == 0;
  if (item->is_mean)
    return TRUE;
  char *end = NULL;
  if (mark[1] != 'p' || !g_ascii_isdigit(mark[2]))
    return FALSE;
  item->percent = g_ascii_strtod(mark + 2, &end);
  return *end == '\0' && item->percent > 0 && item->percent <= 100;
}

static gboolean
is_there(const oct_slo *slo, const char *name, GError **error) {
  for (guint i = 0; i < slo->n_items; i++)
    if (strcmp(slo->items[i].name, name) == 0) {
      g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "slo: %s is there twice", name);
      return TRUE;
    }
  return FALSE;
}

gboolean
oct_slo_parse(oct_slo *slo, const char *text, GError **error) {
  g_auto(GStrv) parts = g_strsplit(text, ",", -1);
  oct_slo_init(slo);
  if (parts[0] == NULL) {
    g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "slo: no objective is given");
    return FALSE;
  }
  for (char **part = parts; *part != NULL; part++) {
    char *equals = strchr(*part, '=');
    oct_slo_item item = {0};
    if (slo->n_items == OCT_SLO_ITEMS_MAX) {
      g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "slo: more than %d objectives",
                  OCT_SLO_ITEMS_MAX);
      return FALSE;
    }
    if (equals != NULL)
      *equals = '\0';
    if (equals == NULL || !parse_name(&item, *part)) {
      g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
                  "slo: \"%s\" is no objective: ttft, tpot, itl, e2e or queue, then _p1 to _p100, "
                  "_mean or nothing, then =TIME",
                  *part);
      return FALSE;
    }
    if (!oct_duration_parse(item.name, equals + 1, TRUE, &item.limit_ns, error) ||
        is_there(slo, item.name, error))
      return FALSE;
    slo->items[slo->n_items++] = item;
    if (!item.is_mean)
      slo->each_ns[item.latency] = MIN(slo->each_ns[item.latency], item.limit_ns);
  }
  return TRUE;
}

gboolean
oct_slo_is_good(const oct_slo *slo, const gint64 value_ns[OCT_LATENCY_COUNT]) {
  for (int i = 0; i < OCT_LATENCY_COUNT; i++)
    if (value_ns[i] > slo->each_ns[i])
      return FALSE;
  return TRUE;
}
