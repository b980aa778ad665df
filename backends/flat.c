#include "backends/flat.h"

#include <math.h>
#include <string.h>

static gboolean refuse(GError **error, const char *format, ...) G_GNUC_PRINTF(2, 3);

static gboolean
refuse(GError **error, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (error != NULL)
    *error = g_error_new_valist(OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD, format, args);
  va_end(args);
  return FALSE;
}

static void
append(GByteArray *to, const void *bytes, gsize n) {
  if (n > 0)
    g_byte_array_append(to, bytes, (guint)n);
}

static void
pad(GByteArray *to) {
  static const guint8 zeros[8] = {0};
  append(to, zeros, -(gsize)to->len & 7);
}

/* ---------------------------------------------------------------- results */

/* Takes the array at *at: its offset must be the one that the arrays before it give. */
static gboolean
check_array(const oct_step_result *r, const char *name, guint32 n, guint32 offset, gsize item_bytes,
            guint64 *at, GError **error) {
  if (offset != *at)
    return refuse(error, "result.%s is %u, must be %" G_GUINT64_FORMAT, name, offset, *at);
  *at += ((guint64)n * item_bytes + 7) & ~(guint64)7;
  if (*at > r->bytes)
    return refuse(error, "result.n_%s is %u: the array ends at %" G_GUINT64_FORMAT ", record %u",
                  name, n, *at, r->bytes);
  return TRUE;
}

gboolean
oct_step_result_check(const oct_step_result *r, gsize size, GError **error) {
  if (size < sizeof *r || r->bytes < sizeof *r || r->bytes > size)
    return refuse(error, "result.bytes is %u of %" G_GSIZE_FORMAT, size < 4 ? 0 : r->bytes, size);
  if (r->n_slices > OCT_STEP_SLICES_MAX)
    return refuse(error, "result.n_slices is %u, limit %u", r->n_slices, OCT_STEP_SLICES_MAX);
  guint64 at = sizeof *r;
  if (!check_array(r, "slices", r->n_slices, r->slices, sizeof(oct_slice_result), &at, error) ||
      !check_array(r, "tokens", r->n_tokens, r->tokens, sizeof(guint32), &at, error) ||
      !check_array(r, "logprobs", r->n_logprobs, r->logprobs, sizeof(oct_logprob), &at, error) ||
      !check_array(r, "experts", r->n_experts, r->experts, sizeof(oct_expert_use), &at, error) ||
      !check_array(r, "floats", r->n_floats, r->floats, sizeof(float), &at, error))
    return FALSE;
  if (at != r->bytes || r->reserved != 0)
    return refuse(error, "result.bytes is %u, the arrays end at %" G_GUINT64_FORMAT ", reserved %u",
                  r->bytes, at, r->reserved);
  if (r->start_ns < 0 || r->end_ns < r->start_ns)
    return refuse(error, "result is from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, r->start_ns,
                  r->end_ns);
  for (guint32 i = 0; i < r->n_slices; i++) {
    const oct_slice_result *s = &oct_result_slices(r)[i];
    if (s->n_accepted > r->n_tokens || s->tokens > r->n_tokens - s->n_accepted)
      return refuse(error, "result.slices[%u] has %u tokens from %u of %u", i, s->n_accepted,
                    s->tokens, r->n_tokens);
    if ((s->flags & ~(guint32)OCT_RESULT_FAILED) != 0)
      return refuse(error, "result.slices[%u].flags is %u", i, s->flags);
    if (s->logprobs != OCT_NO_INDEX && s->logprobs >= r->n_logprobs)
      return refuse(error, "result.slices[%u].logprobs is %u of %u", i, s->logprobs, r->n_logprobs);
    if ((s->floats != OCT_NO_INDEX && s->floats >= r->n_floats) || s->reserved != 0)
      return refuse(error, "result.slices[%u].floats is %u of %u, reserved %u", i, s->floats,
                    r->n_floats, s->reserved);
  }
  return TRUE;
}

/* ---------------------------------------------------------------- events */

typedef struct flat_event {
  guint32 bytes; /* with what follows */
  guint32 kind, instance, slice, failed;
  guint32 payload; /* bytes that follow, before padding */
  oct_time time_ns;
  guint64 number;
  double fraction;
} flat_event;

void
oct_flat_event_write(GByteArray *to, const oct_event *event) {
  const void *payload = NULL;
  gsize n = 0;
  if (event->kind == OCT_EVENT_STEP_DONE) {
    payload = event->result;
    n = event->result->bytes;
  } else if (event->kind == OCT_EVENT_OPENED) {
    payload = event->capabilities;
    n = sizeof *event->capabilities;
  } else if (event->kind == OCT_EVENT_FAULT || event->kind == OCT_EVENT_OPEN_FAILED) {
    payload = event->fault;
    n = sizeof *event->fault;
  } else if (event->kind == OCT_EVENT_OPEN_PROGRESS) {
    payload = event->phase;
    n = strlen(event->phase) + 1;
  }
  flat_event flat = {
      .bytes = (guint32)(sizeof flat + ((n + 7) & ~(gsize)7)),
      .kind = event->kind,
      .instance = event->instance,
      .slice = event->slice,
      .failed = event->failed,
      .payload = (guint32)n,
      .time_ns = event->time_ns,
      .number = event->number,
      .fraction = event->fraction,
  };
  append(to, &flat, sizeof flat);
  append(to, payload, n);
  pad(to);
}

static gboolean
check_fault(const oct_fault *f, GError **error) {
  if (f->severity > OCT_SEVERITY_FATAL)
    return refuse(error, "fault.severity is %u", f->severity);
  if (memchr(f->message, '\0', sizeof f->message) == NULL)
    return refuse(error, "fault.message does not end");
  return TRUE;
}

static gboolean
check_capabilities(const oct_capabilities *c, GError **error) {
  if (c->depth < 1 || c->depth > 64 || c->n_groups > OCT_MODEL_GROUPS_MAX ||
      c->clock > OCT_CLOCK_REAL)
    return refuse(error, "capabilities: depth is %u, n_groups %u, clock %u", c->depth, c->n_groups,
                  c->clock);
  return TRUE;
}

gboolean
oct_flat_event_read(const guint8 *bytes, gsize size, oct_event *event, GError **error) {
  const flat_event *flat = (const flat_event *)(const void *)bytes;
  memset(event, 0, sizeof *event);
  if (size < sizeof *flat || flat->bytes > size || flat->bytes < sizeof *flat ||
      flat->payload > flat->bytes - sizeof *flat)
    return refuse(error, "event of %u bytes with %u more, %" G_GSIZE_FORMAT " are there",
                  size < sizeof *flat ? 0 : flat->bytes, size < sizeof *flat ? 0 : flat->payload,
                  size);
  if (flat->kind > OCT_EVENT_FAULT)
    return refuse(error, "event.kind is %u", flat->kind);
  if (flat->time_ns < 0 || !(flat->fraction >= 0 && flat->fraction <= 1))
    return refuse(error, "event at %" G_GINT64_FORMAT ", fraction %g", flat->time_ns,
                  flat->fraction);
  const void *payload = bytes + sizeof *flat;
  gsize wanted = 0;
  switch ((oct_event_kind)flat->kind) {
  case OCT_EVENT_STEP_DONE:
    event->result = payload;
    wanted = flat->payload;
    if (!oct_step_result_check(payload, flat->payload, error))
      return FALSE;
    break;
  case OCT_EVENT_OPENED:
    event->capabilities = payload;
    wanted = sizeof *event->capabilities;
    break;
  case OCT_EVENT_FAULT:
  case OCT_EVENT_OPEN_FAILED:
    event->fault = payload;
    wanted = sizeof *event->fault;
    break;
  case OCT_EVENT_OPEN_PROGRESS:
    event->phase = payload;
    wanted = flat->payload;
    if (wanted == 0 || wanted > OCT_FLAT_PHASE_MAX || memchr(payload, '\0', wanted) == NULL)
      return refuse(error, "event.phase of %u bytes does not end", flat->payload);
    break;
  case OCT_EVENT_TIMER:
  case OCT_EVENT_WAKE:
  case OCT_EVENT_COPY_DONE:
  case OCT_EVENT_MASK_WANTED:
    break;
  }
  if (flat->payload != wanted)
    return refuse(error, "event.payload is %u, must be %" G_GSIZE_FORMAT, flat->payload, wanted);
  if ((event->fault != NULL && !check_fault(event->fault, error)) ||
      (event->capabilities != NULL && !check_capabilities(event->capabilities, error)))
    return FALSE;
  event->kind = (oct_event_kind)flat->kind;
  event->instance = flat->instance;
  event->time_ns = flat->time_ns;
  event->number = flat->number;
  event->slice = flat->slice;
  event->failed = flat->failed;
  event->fraction = flat->fraction;
  return TRUE;
}

/* ---------------------------------------------------------------- configs */

struct oct_flat_config {
  oct_instance_config config;
  oct_model_spec spec;
  oct_layer_spec *layers;
  guint16 *devices;
  char *label, *name, *architecture, *weights;
};

/* Lengths of what follows the header, in this order, each padded to 8 bytes. */
typedef struct flat_config {
  guint32 bytes, label_bytes, name_bytes, architecture_bytes, weights_bytes, layers_bytes,
      devices_bytes;
  oct_instance_config config; /* pointers mean nothing */
  oct_model_spec spec;
} flat_config;

#define CONFIG_PARTS    6
#define CONFIG_TEXTS    4 /* the first of them */
#define CONFIG_TEXT_MAX 4096

void
oct_flat_config_write(GByteArray *to, const oct_instance_config *config) {
  const oct_model_spec *spec = config->spec;
  const char *label = config->label != NULL ? config->label : "";
  const char *weights = config->weights != NULL ? config->weights : ""; /* no path is empty */
  const void *parts[CONFIG_PARTS] = {label,   spec->name,   spec->architecture,
                                     weights, spec->layers, config->devices};
  const gsize sizes[CONFIG_PARTS] = {strlen(label) + 1,
                                     strlen(spec->name) + 1,
                                     strlen(spec->architecture) + 1,
                                     strlen(weights) + 1,
                                     spec->n_layers * sizeof *spec->layers,
                                     oct_parallel_world(&config->parallel) *
                                         sizeof *config->devices};
  flat_config flat;
  memset(&flat, 0, sizeof flat);
  gsize bytes = sizeof flat;
  for (int i = 0; i < CONFIG_PARTS; i++)
    bytes += (sizes[i] + 7) & ~(gsize)7;
  flat.bytes = (guint32)bytes;
  flat.label_bytes = (guint32)sizes[0];
  flat.name_bytes = (guint32)sizes[1];
  flat.architecture_bytes = (guint32)sizes[2];
  flat.weights_bytes = (guint32)sizes[3];
  flat.layers_bytes = (guint32)sizes[4];
  flat.devices_bytes = (guint32)sizes[5];
  flat.config = *config;
  flat.spec = *spec;
  flat.config.label = flat.config.weights = NULL;
  flat.config.spec = NULL;
  flat.config.devices = NULL;
  flat.spec.name = flat.spec.architecture = NULL;
  flat.spec.layers = NULL;
  append(to, &flat, sizeof flat);
  for (int i = 0; i < CONFIG_PARTS; i++) {
    append(to, parts[i], sizes[i]);
    pad(to);
  }
}

static gboolean
check_spec(const oct_model_spec *spec, const oct_layer_spec *layers, GError **error) {
  if (spec->n_attention > OCT_ATTENTION_COUNT || spec->n_ffn > OCT_FFN_COUNT || spec->vocab == 0 ||
      spec->n_eos_tokens > G_N_ELEMENTS(spec->eos_tokens))
    return refuse(error, "spec: n_attention is %u, n_ffn %u, vocab %u, n_eos_tokens %u",
                  spec->n_attention, spec->n_ffn, spec->vocab, spec->n_eos_tokens);
  for (guint32 i = 0; i < spec->n_attention; i++)
    if (spec->attention[i].kind >= OCT_ATTENTION_COUNT)
      return refuse(error, "spec.attention[%u].kind is %u", i, spec->attention[i].kind);
  for (guint32 i = 0; i < spec->n_layers; i++)
    if (layers[i].attention >= spec->n_attention || layers[i].ffn >= spec->n_ffn)
      return refuse(error, "spec.layers[%u] is %u, %u of %u, %u", i, layers[i].attention,
                    layers[i].ffn, spec->n_attention, spec->n_ffn);
  return TRUE;
}

/* The next part of `n` bytes at *at; NULL when it is not there. */
static const guint8 *
take_part(const guint8 *bytes, gsize size, gsize *at, gsize n) {
  gsize padded = (n + 7) & ~(gsize)7;
  if (*at > size || padded > size - *at)
    return NULL;
  const guint8 *part = bytes + *at;
  *at += padded;
  return part;
}

oct_flat_config *
oct_flat_config_read(const guint8 *bytes, gsize size, GError **error) {
  const flat_config *flat = (const flat_config *)(const void *)bytes;
  if (size < sizeof *flat || flat->bytes != size) {
    refuse(error, "config of %u bytes, %" G_GSIZE_FORMAT " are there",
           size < sizeof *flat ? 0 : flat->bytes, size);
    return NULL;
  }
  const guint32 sizes[CONFIG_PARTS] = {flat->label_bytes,        flat->name_bytes,
                                       flat->architecture_bytes, flat->weights_bytes,
                                       flat->layers_bytes,       flat->devices_bytes};
  const guint8 *parts[CONFIG_PARTS];
  gsize at = sizeof *flat;
  for (int i = 0; i < CONFIG_PARTS; i++) {
    parts[i] = take_part(bytes, size, &at, sizes[i]);
    gboolean text = i < CONFIG_TEXTS;
    if (parts[i] == NULL ||
        (text && (sizes[i] == 0 || sizes[i] > CONFIG_TEXT_MAX || parts[i][sizes[i] - 1] != '\0'))) {
      refuse(error, "config: part %d of %u bytes does not fit or does not end", i, sizes[i]);
      return NULL;
    }
  }
  const oct_parallel *p = &flat->config.parallel;
  guint64 n_ranks = 0;
  if (p->tensor <= G_MAXUINT16 && p->pipeline <= G_MAXUINT16 && p->data <= G_MAXUINT16)
    n_ranks = (guint64)p->tensor * p->pipeline * p->data;
  if (flat->spec.n_layers == 0 || flat->spec.n_layers > OCT_MODEL_LAYERS_MAX ||
      flat->layers_bytes != flat->spec.n_layers * sizeof(oct_layer_spec) || n_ranks == 0 ||
      flat->devices_bytes != n_ranks * sizeof(guint16)) {
    refuse(error, "config: %u layers in %u bytes, %" G_GUINT64_FORMAT " ranks in %u bytes",
           flat->spec.n_layers, flat->layers_bytes, n_ranks, flat->devices_bytes);
    return NULL;
  }
  if (!check_spec(&flat->spec, (const oct_layer_spec *)(const void *)parts[4], error))
    return NULL;
  oct_flat_config *c = g_new0(oct_flat_config, 1);
  c->config = flat->config;
  c->spec = flat->spec;
  c->label = g_strdup((const char *)parts[0]);
  c->name = g_strdup((const char *)parts[1]);
  c->architecture = g_strdup((const char *)parts[2]);
  c->weights = *parts[3] != '\0' ? g_strdup((const char *)parts[3]) : NULL;
  c->layers = g_memdup2(parts[4], sizes[4]);
  c->devices = g_memdup2(parts[5], sizes[5]);
  c->spec.name = c->name;
  c->spec.architecture = c->architecture;
  c->spec.layers = c->layers;
  c->config.label = c->label;
  c->config.weights = c->weights;
  c->config.spec = &c->spec;
  c->config.devices = c->devices;
  return c;
}

void
oct_flat_config_free(oct_flat_config *c) {
  if (c == NULL)
    return;
  g_free(c->label);
  g_free(c->name);
  g_free(c->architecture);
  g_free(c->weights);
  g_free(c->layers);
  g_free(c->devices);
  g_free(c);
}

const oct_instance_config *
oct_flat_config_get(const oct_flat_config *c) {
  return &c->config;
}
