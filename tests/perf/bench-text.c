/* What text costs: encoding, decoding, rendering a prompt, and masks of structured output. With
 * OCT_SMOLLM2 naming SmolLM2-135M-Instruct's GGUF file over its 49,152 tokens, else over a small
 * vocabulary of the tests. CPU time of one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/text/chat.h"
#include "engine/text/detokenizer.h"
#include "engine/text/guide.h"

static double
now_us(void) {
  return (double)clock() * 1e6 / CLOCKS_PER_SEC;
}

static oct_tokenizer *
open_tokenizer(void) {
  const char *path = getenv("OCT_SMOLLM2"), *source = getenv("OCT_SRCDIR");
  g_autofree char *small = g_build_filename(source == NULL ? OCT_SOURCE_DIR : source,
                                            "tests/golden/text/vocab/llama3.json", NULL);
  g_autoptr(GError) error = NULL;
  double begin = now_us();
  oct_tokenizer *tokenizer = oct_tokenizer_open(path == NULL || *path == 0 ? small : path, &error);
  if (tokenizer == NULL) {
    fprintf(stderr, "%s\n", error->message);
    exit(1);
  }
  printf("open a tokenizer of %u tokens: %.1f ms\n", oct_tokenizer_n_tokens(tokenizer),
         (now_us() - begin) / 1e3);
  return tokenizer;
}

static void
bench_encode(const oct_tokenizer *tokenizer) {
  static const char *const texts[][2] = {
      {"English prose", "The scheduler that a planner replays is the very object code that serves; "
                        "only the forward pass is replaced. "},
      {"C code", "for (gsize i = 0; i < size; i++)\n    if (text[i] == '\\n')\n      n += 1;\n"},
      {"Chinese", "调度器是同一份代码，只有前向传播被替换。"}};
  for (guint t = 0; t < G_N_ELEMENTS(texts); t++) {
    g_autoptr(GString) text = g_string_new(NULL);
    while (text->len < 4u << 20)
      g_string_append(text, texts[t][1]);
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    double begin = now_us();
    if (!oct_tokenizer_encode(tokenizer, text->str, text->len, ids, NULL))
      exit(1);
    double encoded = now_us();
    g_autoptr(GString) back = g_string_sized_new(text->len);
    oct_detokenize(tokenizer, (const guint32 *)(const void *)ids->data, ids->len, TRUE, back);
    double decoded = now_us();
    printf("%s: encode %.1f MB/s, %.2f M tokens/s; decode %.1f M tokens/s\n", texts[t][0],
           (double)text->len / (encoded - begin), ids->len / (encoded - begin),
           ids->len / (decoded - encoded));
  }
}

static void
bench_chat(const oct_tokenizer *tokenizer) {
  const char *own = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + "
                    "'<|im_end|>\\n' }}{% endfor %}";
  const char *const choices[] = {"chatml", own};
  json_t *messages = json_array();
  for (guint i = 0; i < 20; i++)
    json_array_append_new(messages, json_pack("{s:s,s:s}", "role", i % 2 ? "assistant" : "user",
                                              "content", "What is simulated is what serves."));
  for (guint c = 0; c < 2; c++) {
    g_autoptr(oct_chat_renderer) renderer = oct_chat_renderer_new(tokenizer, choices[c], NULL);
    double begin = now_us();
    guint rounds = 500;
    for (guint i = 0; i < rounds; i++) {
      g_autoptr(oct_chat) chat = oct_chat_new(messages, NULL, NULL);
      g_autoptr(oct_prompt) prompt = oct_prompt_new();
      oct_chat_options options = {.generation_prompt = TRUE};
      if (!oct_chat_render(renderer, chat, &options, prompt, NULL))
        exit(1);
    }
    printf("a prompt of 20 messages, %s: %.0f us\n", c == 0 ? "in C" : "interpreted",
           (now_us() - begin) / rounds);
  }
  json_decref(messages);
}

/* The masks of one answer, first while positions are new, then again. */
static void
bench_guide(const oct_tokenizer *tokenizer) {
  const char *source =
      "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":"
      "{\"type\":\"integer\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":"
      "\"string\"}}},\"required\":[\"name\",\"age\",\"tags\"]}";
  const char *answer = "{\"name\": \"Ada Lovelace\", \"age\": 36, \"tags\": [\"mathematics\", "
                       "\"engines\", \"poetry\"]}";
  double begin = now_us();
  g_autoptr(oct_guide_vocab) vocab = oct_guide_vocab_new(tokenizer);
  printf("tree of the vocabulary: %.1f ms\n", (now_us() - begin) / 1e3);
  json_t *schema = json_loads(source, 0, NULL);
  begin = now_us();
  g_autoptr(oct_guide) guide = oct_guide_new_schema(vocab, schema, NULL);
  printf("compile a schema: %.0f us\n", now_us() - begin);
  json_decref(schema);
  g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
  g_autofree guint32 *bits = g_new(guint32, oct_guide_vocab_words(vocab));
  if (!oct_tokenizer_encode(tokenizer, answer, strlen(answer), ids, NULL))
    exit(1);
  for (guint round = 0; round < 2; round++) {
    oct_guide_state state = {0};
    double worst = 0, total = 0;
    for (guint i = 0; i < ids->len; i++) {
      begin = now_us();
      if (!oct_guide_mask(guide, &state, bits, NULL))
        exit(1);
      double us = now_us() - begin;
      worst = MAX(worst, us);
      total += us;
      if (!oct_guide_advance(guide, &state, g_array_index(ids, guint32, i)))
        exit(1);
    }
    printf("masks of %u tokens, %s: %.1f us each, at most %.0f us\n", ids->len,
           round == 0 ? "first" : "again", total / ids->len, worst);
  }
}

int
main(void) {
  g_autoptr(oct_tokenizer) tokenizer = open_tokenizer();
  bench_encode(tokenizer);
  bench_chat(tokenizer);
  bench_guide(tokenizer);
  return 0;
}
