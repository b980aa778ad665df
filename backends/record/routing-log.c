#include "backends/record/routing-log.h"

#include <string.h>

#include "engine/model/expert-counts.h"

typedef struct counted_instance {
  guint32 id;
  const oct_model_spec *spec;
} counted_instance;

struct oct_routing_log {
  char *path, *model;                    /* NULL until the first instance */
  guint32 n_layers, width, first, top_k; /* first: a layer with experts; and its choices */
  double *counts;                        /* [n_layers][width] */
  GArray *instances;                     /* counted_instance */
  oct_time written_ns;
};

oct_routing_log *
oct_routing_log_new(const char *path) {
  oct_routing_log *log = g_new0(oct_routing_log, 1);
  log->path = g_strdup(path);
  log->instances = g_array_new(FALSE, FALSE, sizeof(counted_instance));
  return log;
}

void
oct_routing_log_free(oct_routing_log *log) {
  if (log == NULL)
    return;
  g_array_unref(log->instances);
  g_free(log->counts);
  g_free(log->model);
  g_free(log->path);
  g_free(log);
}

/* Tokens: of the pairs of one layer, each token has top_k. */
static gboolean
write_counts(const oct_routing_log *log, const oct_model_spec *spec, GError **error) {
  double pairs = 0;
  for (guint32 e = 0; e < log->width; e++)
    pairs += log->counts[(gsize)log->first * log->width + e];
  return oct_expert_counts_write(log->path, spec, log->counts, (guint64)(pairs / log->top_k),
                                 error);
}

static gboolean
take_model(oct_routing_log *log, const oct_model_spec *spec, GError **error) {
  g_autoptr(GError) why = NULL;
  log->n_layers = spec->n_layers;
  log->width = oct_expert_counts_width(spec);
  if (log->width == 0) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "record: routing: %s has no experts to count", spec->name);
    return FALSE;
  }
  while (spec->ffn[spec->layers[log->first].ffn].n_experts == 0)
    log->first++;
  log->top_k = spec->ffn[spec->layers[log->first].ffn].top_k;
  log->counts = g_new0(double, (gsize)log->n_layers * log->width);
  log->model = g_strdup(spec->name);
  if (write_counts(log, spec, &why))
    return TRUE;
  g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG, "record: routing: %s",
              why->message);
  return FALSE;
}

gboolean
oct_routing_log_opens(oct_routing_log *log, const oct_instance_config *config, gboolean *counted,
                      GError **error) {
  const oct_model_spec *spec = config->spec;
  if (log->model == NULL && !take_model(log, spec, error))
    return FALSE;
  *counted = g_str_equal(log->model, spec->name) && log->n_layers == spec->n_layers &&
             log->width == oct_expert_counts_width(spec);
  return TRUE;
}

void
oct_routing_log_opened(oct_routing_log *log, guint32 instance, const oct_model_spec *spec) {
  const counted_instance in = {instance, spec};
  g_array_append_val(log->instances, in);
}

static gint
find(const oct_routing_log *log, guint32 id) {
  for (guint i = 0; i < log->instances->len; i++)
    if (g_array_index(log->instances, counted_instance, i).id == id)
      return (gint)i;
  return -1;
}

gboolean
oct_routing_log_closes(oct_routing_log *log, guint32 instance) {
  gint at = find(log, instance);
  if (at < 0)
    return TRUE;
  gboolean written =
      write_counts(log, g_array_index(log->instances, counted_instance, at).spec, NULL);
  g_array_remove_index(log->instances, (guint)at);
  return written;
}

gboolean
oct_routing_log_event(oct_routing_log *log, const oct_event *event, oct_time now_ns) {
  gint at = event->kind == OCT_EVENT_STEP_DONE ? find(log, event->instance) : -1;
  if (at < 0 || event->result == NULL)
    return TRUE;
  const oct_expert_use *uses = oct_result_experts(event->result);
  for (guint32 i = 0; i < event->result->n_experts; i++)
    if (uses[i].layer < log->n_layers && uses[i].expert < log->width)
      log->counts[(gsize)uses[i].layer * log->width + uses[i].expert] += uses[i].tokens;
  if (now_ns - log->written_ns < OCT_ROUTING_WRITE_NS)
    return TRUE;
  log->written_ns = now_ns;
  return write_counts(log, g_array_index(log->instances, counted_instance, at).spec, NULL);
}
