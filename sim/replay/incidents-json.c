/* What happened on the way, as JSON. */
#include "sim/replay/measured-json.h"
#include "sim/replay/replay.h"

static json_t *
events_json(const oct_incidents *i) {
  json_t *list = json_array();
  for (guint k = 0; i->events != NULL && k < i->events->len; k++) {
    const oct_incident *incident = &g_array_index(i->events, oct_incident, k);
    json_array_append_new(list, json_pack("{s:o, s:s}", "at_s", oct_json_seconds(incident->at_ns),
                                          "event", incident->text));
  }
  return list;
}

/* Of the GPUs, over the whole run; null where nobody counted. */
static json_t *
energy_json(const oct_incidents *i, const oct_drive_result *d) {
  double span = (double)d->span_ns / 1e9, tokens = (double)d->stats.generated_tokens;
  if (!(i->energy_high_j > 0))
    return json_null();
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "joules_low", oct_json_real(i->energy_low_j),
                   "joules_high", oct_json_real(i->energy_high_j), "watts_low",
                   oct_json_share(i->energy_low_j, span), "watts_high",
                   oct_json_share(i->energy_high_j, span), "joules_per_token_low",
                   oct_json_share(i->energy_low_j, tokens), "joules_per_token_high",
                   oct_json_share(i->energy_high_j, tokens));
}

json_t *
oct_incidents_json(const oct_replay_config *config, const oct_replay_result *r) {
  const oct_scenario *scenario = r->setup.scenario;
  const oct_drive_result *d = &r->drive;
  const oct_incidents *i = &d->incidents;
  if (scenario == NULL && config->client.timeout_ns == 0 && config->client.retries == 0)
    return json_null();
  json_t *out = json_object();
  json_object_set_new(out, "title", oct_json_text(scenario != NULL ? scenario->title : NULL));
  json_object_set_new(out, "events", events_json(i));
  json_object_set_new(out, "client_retries", oct_json_count(i->retries));
  json_object_set_new(out, "client_timeouts", oct_json_count(i->timeouts));
  json_object_set_new(out, "lost_requests", oct_json_count(i->lost_requests));
  json_object_set_new(out, "resumed", oct_json_count(i->resumed));
  json_object_set_new(out, "resumed_tokens", oct_json_count(i->resumed_tokens));
  json_object_set_new(out, "parked", oct_json_count(i->parked));
  json_object_set_new(out, "down_s", oct_json_seconds(i->down_ns));
  json_object_set_new(out, "energy", energy_json(i, d));
  return out;
}
