#include "sim/scenario/scenario.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"
#include "sim/units.h"

#define SECOND_NS 1000000000.0

typedef enum event_kind {
  EVENT_THROTTLE,
  EVENT_POWER_CAP,
  EVENT_LINK,
  EVENT_CUT_LINK,
  EVENT_LOSE,
  EVENT_HOST_TIER,
  EVENT_ARRIVALS,
  EVENT_PERIOD,
  EVENT_RELOAD,
  EVENT_KINDS
} event_kind;

typedef enum event_key {
  KEY_AT,
  KEY_FOR,
  KEY_RATE,
  KEY_FACTOR,
  KEY_WATTS,
  KEY_EXPONENT,
  KEY_PERIOD,
  KEY_AMPLITUDE,
  KEY_PEAK,
  KEY_NUMBERS,
  KEY_KIND = KEY_NUMBERS,
  KEY_GPUS,
  KEY_LINK,
  KEY_REPLICA,
  KEY_COUNT
} event_key;

static const struct {
  const char *name;
  const oct_dimension *dimension; /* NULL: a word */
  double min, max;
} keys[KEY_COUNT] = {
    [KEY_AT] = {"at", &oct_dimension_seconds, 0, 1e8},
    [KEY_FOR] = {"for", &oct_dimension_seconds, 1e-9, 1e8},
    [KEY_RATE] = {"rate", &oct_dimension_per_s, 1e-12, 1e3},
    [KEY_FACTOR] = {"factor", &oct_dimension_number, 0, OCT_WARP_FACTOR_MAX},
    [KEY_WATTS] = {"watts", &oct_dimension_watts, 1, 1e5},
    [KEY_EXPONENT] = {"exponent", &oct_dimension_number, 0.5, 4},
    [KEY_PERIOD] = {"period", &oct_dimension_seconds, 1e-3, 1e8},
    [KEY_AMPLITUDE] = {"amplitude", &oct_dimension_number, 0, 1},
    [KEY_PEAK] = {"peak", &oct_dimension_seconds, 0, 1e8},
    [KEY_KIND] = {"kind", NULL, 0, 0},
    [KEY_GPUS] = {"gpus", NULL, 0, 0},
    [KEY_LINK] = {"link", NULL, 0, 0},
    [KEY_REPLICA] = {"replica", NULL, 0, 0},
};

#define BIT(key) (1u << (key))
#define WHEN     (BIT(KEY_AT) | BIT(KEY_RATE))

static const struct {
  const char *name;
  guint32 needed, allowed; /* beside kind and when */
} kinds[EVENT_KINDS] = {
    [EVENT_THROTTLE] = {"throttle", BIT(KEY_FACTOR), BIT(KEY_FOR) | BIT(KEY_GPUS)},
    [EVENT_POWER_CAP] = {"power-cap", BIT(KEY_WATTS),
                         BIT(KEY_FOR) | BIT(KEY_GPUS) | BIT(KEY_EXPONENT)},
    [EVENT_LINK] = {"link", BIT(KEY_FACTOR) | BIT(KEY_LINK), BIT(KEY_FOR) | BIT(KEY_GPUS)},
    [EVENT_CUT_LINK] = {"cut-link", BIT(KEY_LINK) | BIT(KEY_GPUS), BIT(KEY_FOR)},
    [EVENT_LOSE] = {"lose-gpu", BIT(KEY_GPUS), BIT(KEY_FOR)},
    [EVENT_HOST_TIER] = {"host-tier", BIT(KEY_FACTOR), BIT(KEY_FOR)},
    [EVENT_ARRIVALS] = {"arrivals", BIT(KEY_FACTOR), BIT(KEY_FOR)},
    [EVENT_PERIOD] = {"period", BIT(KEY_PERIOD) | BIT(KEY_AMPLITUDE), BIT(KEY_PEAK)},
    [EVENT_RELOAD] = {"reload", 0, BIT(KEY_REPLICA)},
};

/* An event as its group says it. */
typedef struct event {
  const oct_ini_group *group;
  event_kind kind;
  guint32 given;
  double number[KEY_NUMBERS];
  const oct_ini_entry *entry[KEY_COUNT];
  guint32 gpus; /* bits */
  gboolean any; /* one GPU, drawn each time */
  guint32 replica;
  const char *name; /* owned by the scenario */
} event;

/* A factor on a resource for a while. */
typedef struct stretch {
  oct_time start_ns, end_ns;
  guint32 resource;
  double factor;
  const char *event;
} stretch;

typedef struct reader {
  const oct_ini *ini;
  const oct_scenario_options *options;
  oct_scenario *scenario;
  GArray *stretches;
  const char *set[8]; /* values of [scenario]'s keys that some file has given */
  double until_ns;    /* of events by a rate; 0 = not given */
} reader;

/* ---------------------------------------------------------------- [scenario] */

static gboolean
read_choice(const reader *r, const oct_ini_entry *entry, const char *first, const char *second,
            gboolean *is_second, GError **error) {
  *is_second = strcmp(entry->value, second) == 0;
  if (*is_second || strcmp(entry->value, first) == 0)
    return TRUE;
  return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error, "must be %s or %s", first,
                        second);
}

static gboolean
read_quantity(const reader *r, const oct_ini_entry *entry, const oct_dimension *dimension,
              double min, double max, double *value, GError **error) {
  g_autoptr(GError) reason = NULL;
  if (!oct_quantity_read(entry->value, dimension, value, &reason))
    return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error, "%s", reason->message);
  if (*value >= min && *value <= max)
    return TRUE;
  g_autofree char *low = oct_quantity_format(min, dimension);
  g_autofree char *high = oct_quantity_format(max, dimension);
  return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error, "must be from %s to %s", low,
                        high);
}

static gboolean
read_option(reader *r, const oct_ini_entry *entry, GError **error) {
  static const char *const names[] = {"title",      "until",      "load_rate",
                                      "cold_start", "after_loss", "while_down"};
  oct_scenario *s = r->scenario;
  gboolean second;
  guint k = 0;
  while (k < G_N_ELEMENTS(names) && strcmp(names[k], entry->key) != 0)
    k++;
  if (k == G_N_ELEMENTS(names))
    return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_UNKNOWN, error, "no such key of [scenario]");
  if (k > 0 && r->set[k] != NULL && strcmp(r->set[k], entry->value) != 0)
    return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error, "another file says %s",
                          r->set[k]);
  r->set[k] = entry->value;
  switch (k) {
  case 0: {
    char *joined = s->title != NULL ? g_strdup_printf("%s; %s", s->title, entry->value)
                                    : g_strdup(entry->value);
    g_free(s->title);
    s->title = joined;
    return TRUE;
  }
  case 1:
    if (!read_quantity(r, entry, &oct_dimension_seconds, 1e-3, 1e8, &r->until_ns, error))
      return FALSE;
    r->until_ns *= SECOND_NS;
    return TRUE;
  case 2:
    return read_quantity(r, entry, &oct_dimension_bytes_per_s, 1e3, 1e15, &s->load_rate, error);
  case 3:
    return read_choice(r, entry, "false", "true", &s->cold_start, error);
  case 4:
    if (!read_choice(r, entry, "recompute", "fail", &second, error))
      return FALSE;
    s->after_loss = second ? OCT_AFTER_LOSS_FAIL : OCT_AFTER_LOSS_RECOMPUTE;
    return TRUE;
  default:
    return read_choice(r, entry, "wait", "refuse", &s->refuse_while_down, error);
  }
}

/* ---------------------------------------------------------------- events */

static guint32
gpu_count(const reader *r) {
  return r->options->platform != NULL ? oct_platform_gpus(r->options->platform) : 0;
}

static gboolean
read_index(const reader *r, const oct_ini_entry *entry, const char *text, guint32 count,
           const char *what, guint32 *index, GError **error) {
  guint64 value;
  if (g_ascii_string_to_unsigned(text, 10, 0, G_MAXUINT16, &value, NULL) && value < count) {
    *index = (guint32)value;
    return TRUE;
  }
  return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error,
                        "\"%s\" is none of the %u %s (from 0)", text, count, what);
}

static gboolean
read_gpus(const reader *r, const oct_ini_entry *entry, event *e, GError **error) {
  if (strcmp(entry->value, "all") == 0) {
    e->gpus = (1u << gpu_count(r)) - 1;
    return TRUE;
  }
  if (strcmp(entry->value, "any") == 0) {
    e->any = TRUE;
    return TRUE;
  }
  g_auto(GStrv) list = g_strsplit(entry->value, ",", -1);
  if (list[0] == NULL)
    return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error,
                          "must be all, any or a list of GPUs (from 0)");
  for (char **item = list; *item != NULL; item++) {
    guint32 gpu;
    if (!read_index(r, entry, g_strstrip(*item), gpu_count(r), "GPUs", &gpu, error))
      return FALSE;
    e->gpus |= 1u << gpu;
  }
  return TRUE;
}

static gboolean
is_hardware(event_kind kind) {
  return kind <= EVENT_HOST_TIER;
}

static gboolean
read_kind(const reader *r, const oct_ini_group *group, event *e, GError **error) {
  const oct_ini_entry *entry = oct_ini_find(group, "kind");
  if (entry == NULL)
    return oct_ini_refuse_group(r->ini, group, OCT_INI_ERROR_MISSING, error, "kind is missing");
  for (int k = 0; k < EVENT_KINDS; k++)
    if (strcmp(kinds[k].name, entry->value) == 0) {
      e->kind = (event_kind)k;
      if (is_hardware(e->kind) && r->options->platform == NULL)
        return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error,
                              "wants a simulated node (backend simgrid)");
      return TRUE;
    }
  g_autoptr(GString) list = g_string_new(NULL);
  for (int k = 0; k < EVENT_KINDS; k++)
    g_string_append_printf(list, "%s%s", k > 0 ? ", " : "", kinds[k].name);
  return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error, "must be one of %s", list->str);
}

static gboolean
read_key(const reader *r, const oct_ini_entry *entry, event *e, GError **error) {
  guint k = 0;
  while (k < KEY_COUNT && strcmp(keys[k].name, entry->key) != 0)
    k++;
  if (k == KEY_COUNT)
    return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_UNKNOWN, error, "no such key of an event");
  guint32 when = e->kind == EVENT_PERIOD ? 0 : WHEN;
  if (k != KEY_KIND && !((kinds[e->kind].needed | kinds[e->kind].allowed | when) & BIT(k)))
    return oct_ini_refuse(r->ini, entry, OCT_INI_ERROR_VALUE, error, "has no meaning for %s",
                          kinds[e->kind].name);
  e->given |= BIT(k);
  e->entry[k] = entry;
  if (k < KEY_NUMBERS)
    return read_quantity(r, entry, keys[k].dimension, keys[k].min, keys[k].max, &e->number[k],
                         error);
  if (k == KEY_GPUS)
    return read_gpus(r, entry, e, error);
  if (k == KEY_REPLICA && strcmp(entry->value, "all") != 0)
    return read_index(r, entry, entry->value, r->options->n_replicas, "replicas", &e->replica,
                      error);
  return TRUE;
}

/* Values that only the kind of event can judge. */
static gboolean
check_values(const reader *r, const event *e, GError **error) {
  const oct_ini_entry *factor = e->entry[KEY_FACTOR], *watts = e->entry[KEY_WATTS];
  double f = e->number[KEY_FACTOR];
  if (factor != NULL && is_hardware(e->kind) && !(f >= OCT_SCENARIO_FACTOR_MIN && f <= 1))
    return oct_ini_refuse(r->ini, factor, OCT_INI_ERROR_VALUE, error,
                          "must be from %g to 1 (cut-link cuts a link)", OCT_SCENARIO_FACTOR_MIN);
  if (e->kind == EVENT_ARRIVALS && f == 0 && !(e->given & BIT(KEY_FOR)))
    return oct_ini_refuse(r->ini, factor, OCT_INI_ERROR_VALUE, error,
                          "for ever nothing would come: how long? (for)");
  if (watts != NULL) {
    const oct_profile_thermal *t = &r->options->profile->thermal;
    if (e->number[KEY_WATTS] < t->min_power_limit_w || e->number[KEY_WATTS] > t->tdp_w)
      return oct_ini_refuse(r->ini, watts, OCT_INI_ERROR_VALUE, error,
                            "%s takes limits from %.0f to %.0f W", r->options->profile->name,
                            t->min_power_limit_w, t->tdp_w);
  }
  return TRUE;
}

static gboolean
check_event(const reader *r, event *e, GError **error) {
  const oct_ini_group *g = e->group;
  for (guint k = 0; k < KEY_COUNT; k++)
    if ((kinds[e->kind].needed & BIT(k)) && !(e->given & BIT(k)))
      return oct_ini_refuse_group(r->ini, g, OCT_INI_ERROR_MISSING, error, "%s wants %s",
                                  kinds[e->kind].name, keys[k].name);
  if (e->kind != EVENT_PERIOD && !(e->given & WHEN))
    return oct_ini_refuse_group(r->ini, g, OCT_INI_ERROR_MISSING, error,
                                "when? at = TIME, or rate = N /h");
  if ((e->given & WHEN) == WHEN)
    return oct_ini_refuse(r->ini, e->entry[KEY_RATE], OCT_INI_ERROR_VALUE, error,
                          "either at a time or by a rate");
  if ((e->given & BIT(KEY_RATE)) && r->until_ns == 0)
    return oct_ini_refuse(r->ini, e->entry[KEY_RATE], OCT_INI_ERROR_VALUE, error,
                          "by a rate until when? [scenario] until = TIME");
  if (!(e->given & BIT(KEY_GPUS)))
    e->gpus = (1u << gpu_count(r)) - 1;
  if (!(e->given & BIT(KEY_REPLICA)) || strcmp(e->entry[KEY_REPLICA]->value, "all") == 0)
    e->replica = OCT_ACTION_ALL;
  return check_values(r, e, error);
}

/* ---------------------------------------------------------------- actions */

static gboolean
add_action(const reader *r, oct_action action, const event *e, GError **error) {
  GArray *actions = r->scenario->actions;
  if (actions->len >= OCT_SCENARIO_ACTIONS_MAX)
    return oct_ini_refuse_group(r->ini, e->group, OCT_INI_ERROR_VALUE, error,
                                "the scenario has more than %u actions", OCT_SCENARIO_ACTIONS_MAX);
  action.event = e->name;
  g_array_append_val(actions, action);
  return TRUE;
}

static oct_time
end_of(const event *e, oct_time start) {
  if (!(e->given & BIT(KEY_FOR)))
    return OCT_TIME_NEVER;
  return start + MAX(1, (oct_time)llround(e->number[KEY_FOR] * SECOND_NS));
}

static void
add_stretch(const reader *r, const event *e, oct_time start, guint32 resource, double factor) {
  stretch s = {start, end_of(e, start), resource, factor, e->name};
  g_array_append_val(r->stretches, s);
}

static gboolean
belongs(const oct_resource *resource, const event *e, guint32 gpus) {
  static const struct {
    const char *link;
    guint32 kinds;
  } links[] = {
      {"nvlink", BIT(OCT_RESOURCE_NV_UP) | BIT(OCT_RESOURCE_NV_DOWN)},
      {"pcie",
       BIT(OCT_RESOURCE_PCIE_UP) | BIT(OCT_RESOURCE_PCIE_DOWN) | BIT(OCT_RESOURCE_PCIE_DUPLEX)},
      {"hbm", BIT(OCT_RESOURCE_HBM)},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(links); i++)
    if (strcmp(links[i].link, e->entry[KEY_LINK]->value) == 0)
      return (links[i].kinds & BIT(resource->kind)) && (gpus & (1u << resource->index));
  return strcmp(resource->name, e->entry[KEY_LINK]->value) == 0;
}

static gboolean
scale_links(const reader *r, const event *e, oct_time start, guint32 gpus, GError **error) {
  const oct_platform *p = r->options->platform;
  guint found = 0;
  for (guint i = 0; i < oct_platform_resource_count(p); i++)
    if (belongs(oct_platform_resource(p, i), e, gpus)) {
      add_stretch(r, e, start, i, e->number[KEY_FACTOR]);
      found++;
    }
  if (found > 0)
    return TRUE;
  return oct_ini_refuse(r->ini, e->entry[KEY_LINK], OCT_INI_ERROR_VALUE, error,
                        "must be nvlink, pcie, hbm or a resource of %s such as gpu0-pcie-up, "
                        "switch0-up, dram0",
                        r->options->profile->name);
}

static void
scale_kind(const reader *r, const event *e, oct_time start, guint32 kinds_of, guint32 gpus,
           double factor) {
  const oct_platform *p = r->options->platform;
  for (guint i = 0; i < oct_platform_resource_count(p); i++) {
    const oct_resource *resource = oct_platform_resource(p, i);
    gboolean of_gpu = resource->kind <= OCT_RESOURCE_PCIE_DUPLEX;
    if ((kinds_of & BIT(resource->kind)) && (!of_gpu || (gpus & (1u << resource->index))))
      add_stretch(r, e, start, i, factor);
  }
}

/* One action for each GPU, and its opposite at the end. */
static gboolean
each_gpu(const reader *r, const event *e, oct_time start, guint32 gpus, oct_action_kind begin,
         oct_action_kind end, double watts, GError **error) {
  oct_time stop = end_of(e, start);
  /* A cap is told of with the clock that it leaves. */
  gboolean first = begin != OCT_ACTION_CAP;
  for (guint32 g = 0; g < gpu_count(r); g++) {
    if (!(gpus & (1u << g)))
      continue;
    oct_action action = {.at_ns = start, .kind = begin, .index = g, .watts = watts, .first = first};
    if (!add_action(r, action, e, error))
      return FALSE;
    action.kind = end;
    action.watts = 0;
    action.at_ns = stop;
    if (stop < OCT_TIME_NEVER && !add_action(r, action, e, error))
      return FALSE;
    first = FALSE;
  }
  return TRUE;
}

static gboolean
lose(const reader *r, const event *e, oct_time start, guint32 gpus, GError **error) {
  gboolean isolate = e->kind == EVENT_CUT_LINK && strcmp(e->entry[KEY_LINK]->value, "nvlink") == 0;
  if (e->kind == EVENT_CUT_LINK && !isolate && strcmp(e->entry[KEY_LINK]->value, "pcie") != 0)
    return oct_ini_refuse(r->ini, e->entry[KEY_LINK], OCT_INI_ERROR_VALUE, error,
                          "must be nvlink or pcie");
  return each_gpu(r, e, start, gpus, isolate ? OCT_ACTION_ISOLATE : OCT_ACTION_LOSE,
                  OCT_ACTION_RESTORE, 0, error);
}

static oct_warp *
warp_of(const reader *r) {
  if (r->scenario->warp == NULL)
    r->scenario->warp = oct_warp_new();
  return r->scenario->warp;
}

static gboolean
change_arrivals(const reader *r, const event *e, oct_time start, GError **error) {
  oct_time end = end_of(e, start);
  oct_warp_add(warp_of(r), start, end, e->number[KEY_FACTOR]);
  return add_action(r, (oct_action){.at_ns = start, .kind = OCT_ACTION_TELL, .first = TRUE}, e,
                    error) &&
         (end == OCT_TIME_NEVER ||
          add_action(r, (oct_action){.at_ns = end, .kind = OCT_ACTION_TELL, .first = TRUE}, e,
                     error));
}

static gboolean
occur(const reader *r, const event *e, oct_time at, guint32 gpus, GError **error) {
  double factor = e->number[KEY_FACTOR], watts = e->number[KEY_WATTS];
  switch (e->kind) {
  case EVENT_THROTTLE:
    scale_kind(r, e, at, BIT(OCT_RESOURCE_SM), gpus, factor);
    return TRUE;
  case EVENT_POWER_CAP: {
    double exponent =
        (e->given & BIT(KEY_EXPONENT)) ? e->number[KEY_EXPONENT] : OCT_SCENARIO_POWER_EXPONENT;
    r->scenario->has_caps = TRUE;
    scale_kind(r, e, at, BIT(OCT_RESOURCE_SM), gpus,
               oct_scenario_capped_clock(r->options->profile, watts, exponent));
    return each_gpu(r, e, at, gpus, OCT_ACTION_CAP, OCT_ACTION_CAP, watts, error);
  }
  case EVENT_LINK:
    return scale_links(r, e, at, gpus, error);
  case EVENT_CUT_LINK:
  case EVENT_LOSE:
    return lose(r, e, at, gpus, error);
  case EVENT_HOST_TIER:
    scale_kind(r, e, at,
               BIT(OCT_RESOURCE_DRAM) | BIT(OCT_RESOURCE_PCIE_UP) | BIT(OCT_RESOURCE_PCIE_DOWN) |
                   BIT(OCT_RESOURCE_PCIE_DUPLEX),
               (1u << gpu_count(r)) - 1, factor);
    return TRUE;
  case EVENT_ARRIVALS:
    return change_arrivals(r, e, at, error);
  case EVENT_RELOAD:
    return add_action(
        r, (oct_action){.at_ns = at, .kind = OCT_ACTION_DRAIN, .index = e->replica, .first = TRUE},
        e, error);
  case EVENT_PERIOD:
  case EVENT_KINDS:
    break;
  }
  oct_assert(FALSE);
  return FALSE;
}

static gboolean
occur_by_rate(const reader *r, const event *e, GError **error) {
  oct_rng rng;
  double at = 0;
  oct_rng_seed(&rng, r->options->seed, g_str_hash(e->name));
  for (;;) {
    at += oct_rng_exponential(&rng, SECOND_NS / e->number[KEY_RATE]);
    if (at >= r->until_ns)
      return TRUE;
    guint32 gpus = e->gpus;
    if (e->any)
      gpus = 1u << oct_rng_below(&rng, gpu_count(r));
    if (!occur(r, e, (oct_time)llround(at), gpus, error))
      return FALSE;
  }
}

static gboolean
read_event(reader *r, const oct_ini_group *group, GError **error) {
  event e = {.group = group};
  if (!g_str_has_prefix(group->name, "event ") || group->name[6] == '\0')
    return oct_ini_refuse_group(r->ini, group, OCT_INI_ERROR_UNKNOWN, error,
                                "groups are [scenario] and [event NAME]");
  char *name = g_strdup(group->name + 6);
  g_ptr_array_add(r->scenario->texts, name);
  e.name = name;
  if (!read_kind(r, group, &e, error))
    return FALSE;
  for (guint i = 0; i < group->entries->len; i++)
    if (!read_key(r, &g_array_index(group->entries, oct_ini_entry, i), &e, error))
      return FALSE;
  if (!check_event(r, &e, error))
    return FALSE;
  r->scenario->has_hardware |= is_hardware(e.kind);
  if (e.kind == EVENT_PERIOD) {
    if (r->scenario->warp != NULL && oct_warp_has_period(r->scenario->warp))
      return oct_ini_refuse_group(r->ini, group, OCT_INI_ERROR_VALUE, error,
                                  "there is one period already");
    oct_warp_set_period(warp_of(r), (gint64)llround(e.number[KEY_PERIOD] * SECOND_NS),
                        e.number[KEY_AMPLITUDE], (gint64)llround(e.number[KEY_PEAK] * SECOND_NS));
    return TRUE;
  }
  if (e.given & BIT(KEY_RATE))
    return occur_by_rate(r, &e, error);
  if (e.any) {
    oct_rng rng;
    oct_rng_seed(&rng, r->options->seed, g_str_hash(e.name));
    e.gpus = 1u << oct_rng_below(&rng, gpu_count(r));
  }
  return occur(r, &e, (oct_time)llround(e.number[KEY_AT] * SECOND_NS), e.gpus, error);
}

static gboolean
read_file(reader *r, const oct_ini *ini, GError **error) {
  r->ini = ini;
  for (guint i = 0; i < oct_ini_n_groups(ini); i++) {
    const oct_ini_group *group = oct_ini_group_at(ini, i);
    if (strcmp(group->name, "scenario") != 0)
      continue;
    for (guint k = 0; k < group->entries->len; k++)
      if (!read_option(r, &g_array_index(group->entries, oct_ini_entry, k), error))
        return FALSE;
  }
  for (guint i = 0; i < oct_ini_n_groups(ini); i++) {
    const oct_ini_group *group = oct_ini_group_at(ini, i);
    if (strcmp(group->name, "scenario") != 0 && !read_event(r, group, error))
      return FALSE;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- factors over time */

static int
compare_times(gconstpointer a, gconstpointer b) {
  oct_time x = *(const oct_time *)a, y = *(const oct_time *)b;
  return x < y ? -1 : x > y;
}

/* What a resource has left at each border of its stretches: the product of those that last. */
static gboolean
scale_resource(const reader *r, guint32 resource, GError **error) {
  g_autoptr(GArray) borders = g_array_new(FALSE, FALSE, sizeof(oct_time));
  for (guint i = 0; i < r->stretches->len; i++) {
    const stretch *s = &g_array_index(r->stretches, stretch, i);
    if (s->resource != resource)
      continue;
    g_array_append_val(borders, s->start_ns);
    if (s->end_ns < OCT_TIME_NEVER)
      g_array_append_val(borders, s->end_ns);
  }
  g_array_sort(borders, compare_times);
  for (guint b = 0; b < borders->len; b++) {
    oct_time at = g_array_index(borders, oct_time, b);
    if (b > 0 && at == g_array_index(borders, oct_time, b - 1))
      continue;
    oct_action action = {.at_ns = at, .kind = OCT_ACTION_SCALE, .index = resource, .factor = 1};
    for (guint i = 0; i < r->stretches->len; i++) {
      const stretch *s = &g_array_index(r->stretches, stretch, i);
      if (s->resource != resource)
        continue;
      if (s->start_ns <= at && at < s->end_ns)
        action.factor *= s->factor;
      if (s->start_ns == at || s->end_ns == at)
        action.event = s->event;
    }
    action.factor = MAX(action.factor, OCT_SCENARIO_FACTOR_MIN);
    if (r->scenario->actions->len >= OCT_SCENARIO_ACTIONS_MAX) {
      g_set_error(error, OCT_INI_ERROR, OCT_INI_ERROR_VALUE,
                  "%s: the scenario has more than %u actions", oct_ini_label(r->ini),
                  OCT_SCENARIO_ACTIONS_MAX);
      return FALSE;
    }
    g_array_append_val(r->scenario->actions, action);
  }
  return TRUE;
}

static int
compare_actions(gconstpointer a, gconstpointer b) {
  const oct_action *x = a, *y = b;
  if (x->at_ns != y->at_ns)
    return x->at_ns < y->at_ns ? -1 : 1;
  if (x->kind != y->kind)
    return x->kind < y->kind ? -1 : 1;
  return x->index < y->index ? -1 : x->index > y->index;
}

static gboolean
finish(const reader *r, GError **error) {
  guint n = r->options->platform != NULL ? oct_platform_resource_count(r->options->platform) : 0;
  GArray *actions = r->scenario->actions;
  for (guint32 i = 0; i < n; i++)
    if (!scale_resource(r, i, error))
      return FALSE;
  g_array_sort(actions, compare_actions);
  for (guint i = 0; i < actions->len; i++) {
    oct_action *action = &g_array_index(actions, oct_action, i);
    const oct_action *before = i > 0 ? action - 1 : NULL;
    if (action->kind == OCT_ACTION_SCALE)
      action->first =
          before == NULL || before->at_ns != action->at_ns || before->event != action->event;
  }
  return TRUE;
}

/* ---------------------------------------------------------------- life cycle */

static oct_scenario *
scenario_new(void) {
  oct_scenario *s = g_new0(oct_scenario, 1);
  s->actions = g_array_new(FALSE, FALSE, sizeof(oct_action));
  s->texts = g_ptr_array_new_with_free_func(g_free);
  return s;
}

void
oct_scenario_free(oct_scenario *s) {
  if (s == NULL)
    return;
  g_free(s->title);
  g_array_unref(s->actions);
  g_ptr_array_unref(s->texts);
  oct_warp_free(s->warp);
  g_free(s);
}

oct_scenario *
oct_scenario_parse(const char *label, const char *text, gsize size,
                   const oct_scenario_options *options, GError **error) {
  g_autoptr(oct_scenario) scenario = scenario_new();
  g_autoptr(GArray) stretches = g_array_new(FALSE, FALSE, sizeof(stretch));
  reader r = {.options = options, .scenario = scenario, .stretches = stretches};
  g_autoptr(oct_ini) ini = oct_ini_parse(label, text, size, error);
  if (ini == NULL || !read_file(&r, ini, error) || !finish(&r, error))
    return NULL;
  return g_steal_pointer(&scenario);
}

oct_scenario *
oct_scenario_load(char *const *paths, const oct_scenario_options *options, GError **error) {
  g_autoptr(oct_scenario) scenario = scenario_new();
  g_autoptr(GArray) stretches = g_array_new(FALSE, FALSE, sizeof(stretch));
  g_autoptr(GPtrArray) files = g_ptr_array_new_with_free_func((GDestroyNotify)oct_ini_free);
  reader r = {.options = options, .scenario = scenario, .stretches = stretches};
  for (; *paths != NULL; paths++) {
    oct_ini *ini = oct_ini_load(*paths, error);
    if (ini == NULL)
      return NULL;
    g_ptr_array_add(files, ini);
    if (!read_file(&r, ini, error))
      return NULL;
  }
  if (!finish(&r, error))
    return NULL;
  return g_steal_pointer(&scenario);
}

double
oct_scenario_capped_clock(const oct_profile *profile, double watts, double exponent) {
  const oct_profile_thermal *t = &profile->thermal;
  double share = (watts - t->idle_w) / (t->tdp_w - t->idle_w);
  return CLAMP(pow(MAX(share, 0), 1 / exponent), OCT_SCENARIO_FACTOR_MIN, 1);
}
