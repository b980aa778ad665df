#include "cli/serve-parser.h"

#include <string.h>

#include "sim/replay/metrics.h"

static const struct {
  const char *name;
  gboolean tools, reasoning;
  oct_parse_family family;
} parsers[] = {
    {"none", TRUE, FALSE, OCT_PARSE_PLAIN},         {"hermes", TRUE, FALSE, OCT_PARSE_HERMES},
    {"llama3_json", TRUE, FALSE, OCT_PARSE_LLAMA3}, {"mistral", TRUE, TRUE, OCT_PARSE_MISTRAL},
    {"kimi_k2", TRUE, TRUE, OCT_PARSE_KIMI_K2},     {"kimi_k3", TRUE, TRUE, OCT_PARSE_KIMI_K3},
    {"qwen3", FALSE, TRUE, OCT_PARSE_HERMES},       {"deepseek_r1", FALSE, TRUE, OCT_PARSE_PLAIN},
};

static gboolean
find_parser(const char *flag, const char *name, gboolean reasoning, oct_parse_family *family,
            GError **error) {
  g_autoptr(GString) known = g_string_new(NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(parsers); i++) {
    if (!(reasoning ? parsers[i].reasoning : parsers[i].tools))
      continue;
    if (strcmp(parsers[i].name, name) == 0) {
      *family = parsers[i].family;
      return TRUE;
    }
    g_string_append_printf(known, " %s", parsers[i].name);
  }
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION, "%s: \"%s\" is not one of:%s", flag,
              name, known->str);
  return FALSE;
}

/* One parser takes reasoning and tool calls out of an answer; tags of thinking are read by all but
 * Kimi's. */
gboolean
oct_serve_parser_choose(const char *tools, const char *reasoning, oct_parse_family *family,
                        GError **error) {
  oct_parse_family thinks;
  if (tools != NULL && !find_parser("tool-call-parser", tools, FALSE, family, error))
    return FALSE;
  if (reasoning == NULL)
    return TRUE;
  if (!find_parser("reasoning-parser", reasoning, TRUE, &thinks, error))
    return FALSE;
  if (tools == NULL)
    *family = thinks;
  gboolean kimi = thinks >= OCT_PARSE_KIMI_K2;
  if (kimi == (*family >= OCT_PARSE_KIMI_K2) && (!kimi || thinks == *family))
    return TRUE;
  g_set_error(error, OCT_REPLAY_ERROR, OCT_REPLAY_ERROR_OPTION,
              "reasoning-parser: \"%s\" does not go with tool-call-parser \"%s\"", reasoning,
              tools);
  return FALSE;
}
