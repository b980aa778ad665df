/* Defaults and limits of the mock's options, and what they allow of an instance. */
#include "backends/mock/limits.h"

#define OPTION_NS_MAX (3600 * (gint64)1000000000)

void
oct_mock_options_default(oct_mock_options *options) {
  *options = (oct_mock_options){
      .clock = OCT_CLOCK_VIRTUAL,
      .fixed_ns = 1000000,
      .token_ns = 1000,
      .sequence_ns = 10000,
      .copy_page_ns = 10000,
      .copy_state_ns = 10000,
      .copy_expert_ns = 10000,
      .expert_miss_ns = 10000,
  };
  oct_shadow_options_default(&options->shadow);
}

gboolean
oct_mock_options_check(const oct_mock_options *o, GError **error) {
  const struct {
    const char *name;
    gint64 ns;
  } times[] = {
      {"fixed_ns", o->fixed_ns},
      {"token_ns", o->token_ns},
      {"sequence_ns", o->sequence_ns},
      {"send_ns", o->send_ns},
      {"host_ns", o->host_ns},
      {"copy_page_ns", o->copy_page_ns},
      {"copy_state_ns", o->copy_state_ns},
      {"copy_expert_ns", o->copy_expert_ns},
      {"expert_miss_ns", o->expert_miss_ns},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(times); i++)
    if (times[i].ns < 0 || times[i].ns > OPTION_NS_MAX) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "mock: %s is %" G_GINT64_FORMAT ", must be 0 to %" G_GINT64_FORMAT, times[i].name,
                  times[i].ns, OPTION_NS_MAX);
      return FALSE;
    }
  if (!(o->context_ns >= 0 && o->context_ns <= 1e6)) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "mock: context_ns is %g, must be 0 to 1e6", o->context_ns);
    return FALSE;
  }
  gboolean phases = o->n_phases <= OCT_MOCK_PHASES_MAX;
  for (guint32 i = 0; phases && i < o->n_phases; i++)
    phases = o->phases[i].ns >= 0 && o->phases[i].name != NULL;
  if (!phases || o->shadow.n_accept_script > OCT_SHADOW_SCRIPT_MAX) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                "mock: %u phases (limit %u, none negative), %u accept counts (limit %u)",
                o->n_phases, OCT_MOCK_PHASES_MAX, o->shadow.n_accept_script, OCT_SHADOW_SCRIPT_MAX);
    return FALSE;
  }
  return TRUE;
}

gboolean
oct_mock_config_check(const oct_mock_options *o, const oct_instance_config *config,
                      GError **error) {
  if (!oct_parallel_check(config->spec, &config->parallel, error))
    return FALSE;
  for (guint32 r = 0; r < oct_parallel_world(&config->parallel); r++)
    if (o->n_devices != 0 && config->devices[r] >= o->n_devices) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "rank %u is on device %u, the world has %u", r, config->devices[r], o->n_devices);
      return FALSE;
    }
  for (guint32 g = 0; g < config->memory.n_groups; g++)
    if (o->fits[g] != 0 && config->memory.groups[g].n_device > o->fits[g]) {
      g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG,
                  "memory.groups[%u].n_device is %u, %u fit", g, config->memory.groups[g].n_device,
                  o->fits[g]);
      return FALSE;
    }
  return TRUE;
}

oct_capabilities
oct_mock_capabilities(const oct_mock_options *o, const oct_instance_config *config) {
  oct_capabilities c = {
      .depth = config->depth,
      .n_groups = config->memory.n_groups,
      .masks = !o->no_masks,
      .speculation = !o->no_speculation,
      .adapters = !o->no_adapters,
      .expert_slots = TRUE,
      .host_tier = TRUE,
      .pooling = !o->no_pooling,
      .clock = o->clock,
  };
  for (guint32 g = 0; g < c.n_groups; g++) {
    c.page_bytes[g] = oct_shadow_unit_bytes(config, g);
    c.fits[g] = o->fits[g] != 0 ? o->fits[g] : config->memory.groups[g].n_device;
  }
  /* Unseen steps cannot be checked, and their experts cannot be told. */
  c.forward = o->clock == OCT_CLOCK_VIRTUAL && !o->no_forward && o->step_time == NULL &&
              !config->check_tags && !config->report_experts && config->memory.n_expert_slots == 0;
  return c;
}
