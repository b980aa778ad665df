/* The figures of each preset, as text for oct_trace_gen_set(). Quantile tables were taken from the
 * sources named in the table at the end; each reproduces the mean within 5 % and, where the law is
 * smooth, the coefficient of variation within 2 %. tests/traces/test-presets.c compares what they
 * generate with the figures below. */
#include "traces/presets.h"

#include <string.h>

typedef struct setting {
  const char *key, *value;
} setting;

#define SETTINGS_MAX 12

typedef struct preset {
  oct_trace_preset doc;
  setting settings[SETTINGS_MAX]; /* ends at the first without key */
} preset;

/* Azure LLM inference 2023, conversation: 19,366 requests, 3,502 s, gaps of cv 1.09; input mean
 * 1155, output mean 211. Gamma shape = 1 / 1.094^2. */
#define AZURE_CONV_INPUT                                                                           \
  "quantiles:0=2,0.01=29,0.05=181,0.1=207,0.15=372,0.2=387,0.25=396,0.3=403,0.35=414,0.4=703,"     \
  "0.45=984,0.5=1020,0.55=1045,0.6=1071,0.65=1097,0.7=1130,0.75=1189,0.8=1315,0.85=1877,0.9=2735," \
  "0.925=4075,0.95=4083,0.975=4092,0.99=4142,0.995=4831,0.999=6212,1=14050"
#define AZURE_CONV_OUTPUT                                                                          \
  "quantiles:0=7,0.01=16,0.05=41,0.1=54,0.15=67,0.2=77,0.25=85,0.3=91,0.35=96,0.4=103,0.45=113,"   \
  "0.5=129,0.55=151,0.6=177,0.65=217,0.7=384,0.75=395,0.8=400,0.85=411,0.9=424,0.925=430,"         \
  "0.95=451,0.975=522,0.99=601,0.995=644,0.999=954,1=1000"

/* Azure LLM inference 2023, code: 8,819 requests, 3,436 s. The gaps (mean 0.390 s, cv 13.15) are
 * long silences between bursts: no gamma law has both their median of 64 ms and their cv, so they
 * are a table. Drawn independently, they keep the cv and lose the order of bursts. */
#define AZURE_CODE_GAPS                                                                            \
  "quantiles:0=0,0.05=0.0001,0.1=0.0002,0.2=0.0012,0.3=0.0033,0.4=0.0151,0.5=0.0638,0.6=0.095,"    \
  "0.7=0.1001,0.8=0.1601,0.85=0.1989,0.9=0.273,0.925=0.3022,0.95=0.4008,0.96=0.4894,0.97=0.5979,"  \
  "0.975=0.6753,0.98=0.7988,0.985=1.0999,0.99=2.2052,0.993=3.701,0.995=10.1244,0.997=28.0908,"     \
  "0.998=43.3192,0.999=82.7522,0.9995=138.7208,1=217.169"
#define AZURE_CODE_INPUT                                                                           \
  "quantiles:0=3,0.01=17,0.05=75,0.1=147,0.15=232,0.2=385,0.25=578,0.3=770,0.35=938,0.4=1075,"     \
  "0.45=1261,0.5=1469,0.55=1690,0.6=1909,0.65=2164,0.7=2433,0.75=2745,0.8=3193,0.85=3923,"         \
  "0.9=5194,0.925=6097,0.95=7315,0.975=7435,0.99=7436,1=7437"
#define AZURE_CODE_OUTPUT                                                                          \
  "quantiles:0=6,0.05=6,0.1=7,0.15=7,0.2=8,0.25=9,0.3=9,0.35=10,0.4=11,0.45=12,0.5=13,0.55=14,"    \
  "0.6=16,0.65=18,0.7=20,0.75=24,0.8=29,0.85=39,0.9=55,0.925=69,0.95=90,0.975=145,0.99=252,"       \
  "0.995=361,0.999=831,1=1899"

/* Mooncake conversation: 12,031 requests, 3,537 s. A request that begins with all full blocks of an
 * earlier prompt, and with more than the block common to all, continues it: 8,072 sessions of 1.49
 * turns. (699 requests share a part of an earlier prompt, a third of theirs on average; here they
 * share the common block only.) New tokens of a turn are input - (input + output of the turn
 * before), at least 1; the pause is the gap between the arrivals of two turns. Counts per 3 s tick
 * have variance / mean = 1.1: Poisson. */
#define MOONCAKE_INPUT                                                                             \
  "quantiles:0=379,0.01=382,0.05=386,0.1=396,0.15=464,0.2=666,0.25=977,0.3=1702,0.35=3042,"        \
  "0.4=3887,0.45=4599,0.5=5477,0.55=6673,0.6=8109,0.65=9705,0.7=11650,0.75=13845,0.8=16523,"       \
  "0.85=20017,0.9=25989,0.925=30374,0.95=38152,0.975=57695,0.99=86766,0.995=108697,0.999=120124,"  \
  "1=125683"
#define MOONCAKE_FOLLOWUP                                                                          \
  "quantiles:0=1,0.1=1,0.15=6,0.2=7,0.25=9,0.3=11,0.35=13,0.4=16,0.45=20,0.5=26,0.55=33,0.6=52,"   \
  "0.65=88,0.7=172,0.75=356,0.8=695,0.85=2547,0.9=4203,0.925=5335,0.95=6922,0.975=10332,"          \
  "0.99=16705,0.995=22478,0.999=38787,1=91467"
#define MOONCAKE_OUTPUT                                                                            \
  "quantiles:0=1,0.01=3,0.05=10,0.1=24,0.15=46,0.2=100,0.25=156,0.3=213,0.35=256,0.4=291,"         \
  "0.45=322,0.5=350,0.55=375,0.6=399,0.65=423,0.7=447,0.75=472,0.8=504,0.85=543,0.9=597,"          \
  "0.925=639,0.95=698,0.975=836,0.99=1120,0.995=1570,0.999=2000,1=2000"
#define MOONCAKE_PAUSE                                                                             \
  "quantiles:0=0,0.01=12,0.05=27,0.1=39,0.2=57,0.3=75,0.4=96,0.5=123,0.6=162,0.7=225,0.8=318,"     \
  "0.9=474,0.95=606,0.98=972,0.99=1458,1=3030"
#define MOONCAKE_TURNS                                                                             \
  "quantiles:0=0.5,0.7472=1.5,0.9023=2.5,0.9519=3.5,0.9731=4.5,0.9836=5.5,0.9893=6.5,0.9942=8.5,"  \
  "0.9965=10.5,0.9988=15.5,1=27"

/* ShareGPT, 300 conversations with Llama-3.1 tokens and outputs of 512 and more: 268 sessions. */
#define SHAREGPT_INPUT                                                                             \
  "quantiles:0=262,0.01=264,0.05=305,0.1=359,0.15=377,0.2=399,0.25=460,0.3=502,0.35=531,0.4=587,"  \
  "0.45=624,0.5=654,0.55=730,0.6=790,0.65=824,0.7=877,0.75=974,0.8=1111,0.85=1213,0.9=1379,"       \
  "0.925=1479,0.95=1747,0.975=2357,0.99=2884,1=3998"
#define SHAREGPT_OUTPUT                                                                            \
  "quantiles:0=512,0.01=513,0.05=523,0.1=530,0.15=539,0.2=550,0.25=561,0.3=574,0.35=583,0.4=592,"  \
  "0.45=606,0.5=631,0.55=667,0.6=698,0.65=724,0.7=751,0.75=767,0.9=770,0.975=776,0.99=784,1=1021"
#define SHAREGPT_FOLLOWUP                                                                          \
  "quantiles:0=1,0.1=1,0.2=3,0.3=4,0.4=9,0.5=13,0.6=16,0.7=31,0.8=42,0.9=107,0.95=323,1=475"
#define SHAREGPT_PAUSE                                                                             \
  "quantiles:0=0,0.1=0.6,0.2=2.3,0.3=3,0.4=5.1,0.5=6.1,0.6=9.2,0.7=12.3,0.8=13.4,0.9=14.5,1=18.6"

static const preset presets[] = {
    {{"chat-150",
      "150 requests a second, Poisson; 1200 tokens in and 800 out in the mean. The log-normal "
      "spread of lengths (sigma 0.8) is assumed",
      "a load given as rate and means"},
     {{"rate", "150"},
      {"input", "lognormal:1200:sigma=0.8"},
      {"output", "lognormal:800:sigma=0.8"}}},
    {{"azure-conv-2023",
      "chat of an hour in Azure: 5.53 requests a second, gaps of cv 1.09; no prefix ids",
      "Azure/AzurePublicDataset AzureLLMInferenceTrace_conv.csv (CC-BY-4.0; Splitwise, ISCA 2024)"},
     {{"rate", "5.53"},
      {"burstiness", "0.835"},
      {"input", AZURE_CONV_INPUT},
      {"output", AZURE_CONV_OUTPUT}}},
    {{"azure-code-2023",
      "code completion of an hour in Azure: 2.57 requests a second in bursts, gaps of cv 13; no "
      "prefix ids",
      "Azure/AzurePublicDataset AzureLLMInferenceTrace_code.csv (CC-BY-4.0; Splitwise, ISCA 2024)"},
     {{"rate", "2.567"},
      {"gaps", AZURE_CODE_GAPS},
      {"input", AZURE_CODE_INPUT},
      {"output", AZURE_CODE_OUTPUT}}},
    {{"mooncake-conversation",
      "long chat of Kimi: 2.28 sessions a second of 1.49 turns, one common block of 512 tokens. "
      "Poisson is assumed below the 3 s ticks of the record; the pause counts from the end of a "
      "turn, in the record from its arrival; prompts come out 5 to 8 % longer in the mean than "
      "recorded, whose long sessions have short prompts",
      "kvcache-ai/Mooncake FAST25-release/traces/conversation_trace.jsonl (Apache-2.0)"},
     {{"rate", "2.282"},
      {"input", MOONCAKE_INPUT},
      {"followup", MOONCAKE_FOLLOWUP},
      {"output", MOONCAKE_OUTPUT},
      {"turns", MOONCAKE_TURNS},
      {"think", MOONCAKE_PAUSE},
      {"prefix-tokens", "512"},
      {"block-size", "512"}}},
    {{"sharegpt",
      "conversations of ShareGPT with long answers (512 tokens and more), 10 requests a second, "
      "Poisson",
      "casys-kaist/LLMServingSim workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl (MIT), 300 "
      "requests"},
     {{"rate", "9.2"},
      {"input", SHAREGPT_INPUT},
      {"followup", SHAREGPT_FOLLOWUP},
      {"output", SHAREGPT_OUTPUT},
      {"turns", "quantiles:0=0.5,0.888=1.5,0.9925=2.5,1=3.49"},
      {"think", SHAREGPT_PAUSE},
      {"block-size", "16"}}},
    /* Published: 610 sessions, median 33 turns, 80 K tokens of context by turn 30, 131 input tokens
     * per output token, 94.2 % of the prompt cached, pauses of median 5.2 s and p99 81.4 s. With a
     * first prompt c and g new tokens per turn, c + 29 g = 80,000 and
     * (c + 32 g) / 33 = (1 - 0.942) (c + 16 g) give c = 4,000 and g = 2,620 (c + 16 g = 46,000, so
     * 350 output tokens a turn and 2,270 of tools). Assumed: the spread of these two (log-normal
     * with the mean-to-median ratios that TraceLab prints for Codex: 5,283 / 886 appended, 415 /
     * 184 out), of the first prompt and of the turns (sigma 0.25: contexts above 180 K are rare),
     * and the rate. */
    {{"agentic",
      "coding agents with long contexts: sessions of about 34 turns growing by 2,620 tokens each, "
      "94 % of the prompt cached. The spread of lengths and the rate (0.1 sessions a second) are "
      "assumed",
      "vLLM blog 2026-05-06, Serving Agentic Workloads at Scale with vLLM x Mooncake (Codex on "
      "SWE-bench Pro); TraceLab, arXiv 2606.30560, table of token lengths"},
     {{"rate", "0.1"},
      {"input", "lognormal:4000:sigma=0.5"},
      {"followup", "lognormal:2270:sigma=1.89:max=100000"},
      {"output", "lognormal:350:sigma=1.275:max=32768"},
      {"turns", "lognormal:34:sigma=0.25"},
      {"think", "lognormal:10.46:sigma=1.1826"},
      {"max-context", "262144"},
      {"block-size", "64"}}},
};

const oct_trace_preset *
oct_trace_preset_at(gsize i) {
  return i < G_N_ELEMENTS(presets) ? &presets[i].doc : NULL;
}

static const preset *
find(const char *name) {
  for (gsize i = 0; i < G_N_ELEMENTS(presets); i++)
    if (strcmp(presets[i].doc.name, name) == 0)
      return &presets[i];
  return NULL;
}

gboolean
oct_trace_preset_apply(const char *name, oct_trace_gen_spec *spec, GError **error) {
  const preset *found = find(name);
  if (found == NULL) {
    GString *names = g_string_new(NULL);
    for (gsize i = 0; i < G_N_ELEMENTS(presets); i++)
      g_string_append_printf(names, "%s%s", i > 0 ? ", " : "", presets[i].doc.name);
    g_set_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION,
                "traffic preset \"%s\" is unknown: %s", name, names->str);
    g_string_free(names, TRUE);
    return FALSE;
  }
  for (gsize i = 0; i < SETTINGS_MAX && found->settings[i].key != NULL; i++)
    if (!oct_trace_gen_set(spec, found->settings[i].key, found->settings[i].value, error))
      return FALSE;
  spec->rate_given = FALSE;
  g_free(spec->name);
  spec->name = g_strdup(name);
  return TRUE;
}
