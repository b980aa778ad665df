/* Streams of answers: what counts as a token, how an answer ends, and every way in which it fails.
 */
#include <string.h>

#include "client/ask.h"
#include "tests/client/canned.h"

#define LONG_NS (G_GINT64_CONSTANT(20000000000)) /* a test that waits so long has failed */

typedef struct row {
  const char *name, *stream; /* sent as text/event-stream */
  oct_failure failure;
  const char *told;   /* the pieces: text/reasoning*n; */
  const char *detail; /* part of the message */
  guint32 output_tokens;
} row;

#define DONE           "data: [DONE]\n\n"
#define TEXT(t)        "data: {\"choices\":[{\"index\":0,\"text\":\"" t "\"}]}\n\n"
#define DELTA(members) "data: {\"choices\":[{\"index\":0,\"delta\":{" members "}}]}\n\n"
#define END(reason)                                                                                \
  "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"" reason "\"}]}\n\n"
#define USAGE                                                                                      \
  "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9,"                  \
  "\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"

static const row rows[] = {
    {"text", TEXT("a") TEXT(" b") END("stop") USAGE DONE, 0, "a/*1; b/*1;", "", 9},
    {"without-usage", TEXT("a") TEXT("b") END("stop") DONE, 0, "a/*1;b/*1;", "", 2},
    {"end-with-text",
     "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"length\"}]}\n\n" DONE, 0, "a/*1;", "",
     1},
    {"chat-role-is-no-token",
     DELTA("\"role\":\"assistant\",\"content\":\"\"") DELTA("\"content\":\"hi\"") DONE, 0, "hi/*1;",
     "", 1},
    {"nul-is-text", TEXT("\\u0000") TEXT("a\\u0000") DONE, 0, "/*1;a/*1;", "", 2},
    {"reasoning", DELTA("\"reasoning_content\":\"hm\"") DELTA("\"reasoning\":\"so\"") DONE, 0,
     "/hm*1;/so*1;", "", 2},
    {"tool-calls", DELTA("\"tool_calls\":[{\"index\":0}]") DONE, 0, "/*1;", "", 1},
    {"token-ids-are-counted",
     "data: {\"choices\":[{\"text\":\"\",\"token_ids\":[5,6,7]}]}\n\n" DONE, 0, "/*3;", "", 3},
    {"comments-and-types", ": ping\n\nevent: x\n" TEXT("a") DONE, 0, "a/*1;", "", 1},
    {"nothing", DONE, 0, "", "", 0},
    {"no-done", TEXT("a") END("stop"), OCT_FAILURE_TRUNCATED, "a/*1;", "[DONE]", 1},
    {"empty", ": nothing\n\n", OCT_FAILURE_TRUNCATED, "", "[DONE]", 0},
    {"error-object",
     TEXT("a") "data: {\"error\":{\"message\":\"out of luck\",\"code\":500}}\n\n" DONE,
     OCT_FAILURE_ERROR, "a/*1;", "out of luck", 1},
    {"error-text", "data: {\"error\":\"bad\"}\n\n" DONE, OCT_FAILURE_ERROR, "", "bad", 0},
    {"error-without-words", "data: {\"error\":{}}\n\n" DONE, OCT_FAILURE_ERROR, "",
     "without a message", 0},
    {"no-json", TEXT("a") "data: {\"choices\"\n\n" DONE, OCT_FAILURE_CONTENT, "a/*1;", "", 1},
    {"no-object", "data: [1]\n\n" DONE, OCT_FAILURE_CONTENT, "", "no JSON object", 0},
    {"fields-of-other-types",
     "data: {\"choices\":[{\"text\":5}],\"usage\":7,\"metrics\":[]}\n\n" DONE, 0, "", "", 0},
};

typedef struct heard {
  GString *told;
  gboolean ended;
  oct_ask_end end;
  char *message;
} heard;

static void
on_piece(void *user, const oct_ask_piece *piece) {
  heard *h = user;
  g_assert_cmpint(piece->at_ns, >, 0);
  g_string_append_printf(h->told, "%s/%s*%u;", piece->text, piece->reasoning, piece->n_tokens);
}

static void
on_end(void *user, const oct_ask_end *end) {
  heard *h = user;
  g_assert_false(h->ended);
  h->ended = TRUE;
  h->end = *end;
  h->message = g_strdup(end->message);
}

static void
answer_text(void *user, const char *request, guint number, canned_step *steps) {
  (void)number;
  g_assert_nonnull(strstr(request, "\r\nAccept: text/event-stream\r\n"));
  memcpy(steps, user, CANNED_STEPS_MAX * sizeof *steps);
}

/* Asks a server that answers with these steps. */
static void
ask(const canned_step *script, heard *h) {
  canned_step steps[CANNED_STEPS_MAX] = {0};
  memcpy(steps, script, sizeof steps);
  g_autoptr(canned) server = canned_new(NULL, answer_text, steps);
  oct_client_options o;
  oct_client_options_default(&o);
  o.url = canned_url(server);
  g_autoptr(oct_client) client = oct_client_new(&o, NULL);
  *h = (heard){.told = g_string_new(NULL)};
  oct_ask_start(client, &(oct_question){.path = "/v1/completions",
                                        .body = g_strdup("{}"),
                                        .body_bytes = 2,
                                        .user = h,
                                        .piece = on_piece,
                                        .end = on_end});
  gint64 end = oct_client_now_ns() + LONG_NS;
  while (!h->ended && oct_client_now_ns() < end)
    oct_client_poll(client, end);
  g_assert_true(h->ended);
}

static void
drop(heard *h) {
  g_string_free(h->told, TRUE);
  g_free(h->message);
}

static void
test_row(gconstpointer data) {
  const row *r = data;
  for (gsize cut = 0; cut <= 64; cut = cut < 3 ? cut + 1 : cut * 2) {
    g_autofree char *bytes = canned_chunked("text/event-stream; charset=utf-8", r->stream, cut);
    canned_step steps[CANNED_STEPS_MAX] = {{CANNED_SEND, bytes}};
    heard h;
    ask(steps, &h);
    g_assert_cmpstr(h.told->str, ==, r->told);
    g_assert_cmpstr(oct_failure_name(h.end.failure), ==, oct_failure_name(r->failure));
    g_assert_nonnull(strstr(h.message, r->detail));
    g_assert_cmpuint(h.end.output_tokens, ==, r->output_tokens);
    g_assert_cmpint(h.end.status, ==, 200);
    drop(&h);
  }
}

static void
test_usage_and_times(void) {
  g_autofree char *bytes = canned_chunked(
      "text/event-stream",
      TEXT("a") TEXT("b") END("length") USAGE
      "data: {\"choices\":[],\"metrics\":{\"queue_time_ms\":1.5,\"time_to_first_token_ms\":4,"
      "\"generation_time_ms\":10}}\n\n" DONE,
      0);
  canned_step steps[CANNED_STEPS_MAX] = {{CANNED_SEND, bytes}};
  heard h;
  ask(steps, &h);
  const oct_ask_end *e = &h.end;
  g_assert_true(e->has_usage);
  g_assert_cmpuint(e->prompt_tokens, ==, 7);
  g_assert_cmpuint(e->cached_tokens, ==, 4);
  g_assert_cmpuint(e->n_pieces, ==, 2);
  g_assert_cmpstr(e->finish_reason, ==, "length");
  g_assert_cmpint(e->started_ns, <, e->first_ns);
  g_assert_cmpint(e->first_ns, <=, e->last_ns);
  g_assert_cmpint(e->last_ns, <=, e->ended_ns);
  g_assert_cmpint(e->longest_gap_ns, ==, e->last_ns - e->first_ns);
  g_assert_cmpint(e->server.queue_ns, ==, 1500000);
  g_assert_cmpint(e->server.ttft_ns, ==, 4000000);
  g_assert_cmpint(e->server.e2e_ns, ==, 14000000);
  drop(&h);
}

/* ---------------------------------------------------------------- answers that are no stream */

static const struct {
  const char *name, *status, *type, *body;
  oct_failure failure;
  const char *detail;
} refusals[] = {
    {"bad-request", "400 Bad Request", "application/json",
     "{\"error\":{\"message\":\"max_tokens: 0 is below 1\",\"type\":\"invalid_request_error\"}}",
     OCT_FAILURE_STATUS, "max_tokens: 0 is below 1"},
    {"error-text", "401 Unauthorized", "application/json", "{\"error\":\"Unauthorized\"}",
     OCT_FAILURE_STATUS, "Unauthorized"},
    {"detail", "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}",
     OCT_FAILURE_STATUS, "Not Found"},
    {"page", "502 Bad Gateway", "text/html", "<h1>Bad Gateway</h1>", OCT_FAILURE_STATUS, "<h1>Bad"},
    {"status-with-stream-type", "500 Oops", "text/event-stream", "data: {}\n\n", OCT_FAILURE_STATUS,
     "data:"},
    {"no-words", "503 Busy", "text/plain", "", OCT_FAILURE_STATUS, ""},
    {"json-instead", "200 OK", "application/json", "{\"choices\":[{\"text\":\"a\"}]}",
     OCT_FAILURE_TYPE, "choices"},
    {"nothing-instead", "200 OK", "text/event-stream", "", OCT_FAILURE_TYPE, "without a body"},
};

static void
test_refusal(gconstpointer data) {
  gsize i = GPOINTER_TO_SIZE(data);
  g_autofree char *bytes = canned_plain(refusals[i].status, refusals[i].type, refusals[i].body);
  canned_step steps[CANNED_STEPS_MAX] = {{CANNED_SEND, bytes}};
  heard h;
  ask(steps, &h);
  g_assert_cmpstr(oct_failure_name(h.end.failure), ==, oct_failure_name(refusals[i].failure));
  g_assert_cmpint(h.end.status, ==, (int)g_ascii_strtoll(refusals[i].status, NULL, 10));
  g_assert_nonnull(strstr(h.message, refusals[i].detail));
  g_assert_cmpint(h.end.first_ns, ==, -1);
  drop(&h);
}

#define HEAD                                                                                       \
  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
#define ONE "1a\r\ndata: {\"choices\":[{\"text\":\r\n7\r\n\"a\"}]}\n\r\n1\r\n\n\r\n"

static void
test_broken(gconstpointer data) {
  const canned_step reset[CANNED_STEPS_MAX] = {
      {CANNED_SEND, HEAD ONE}, {CANNED_PAUSE, NULL}, {CANNED_RESET, NULL}};
  const canned_step cut[CANNED_STEPS_MAX] = {{CANNED_SEND, HEAD ONE}, {CANNED_CLOSE, NULL}};
  heard h;
  ask(data != NULL ? reset : cut, &h);
  g_assert_cmpstr(h.told->str, ==, "a/*1;");
  g_assert_cmpint(h.end.failure, ==, data != NULL ? OCT_FAILURE_RESET : OCT_FAILURE_TRUNCATED);
  drop(&h);
}

/* A message that is too long ends within a character of its own. */
static void
test_long_message(void) {
  char message[OCT_ASK_MESSAGE_MAX];
  g_autoptr(GString) body = g_string_new("{\"error\":\"x");
  for (guint i = 0; i < OCT_ASK_MESSAGE_MAX; i++)
    g_string_append(body, "é");
  g_string_append(body, "\"}");
  oct_ask_error_text(body->str, body->len, message);
  g_assert_true(g_utf8_validate(message, -1, NULL));
  g_assert_cmpuint(strlen(message), ==, OCT_ASK_MESSAGE_MAX - 1);
  oct_ask_error_text("\xff\xfe", 2, message);
  g_assert_true(g_utf8_validate(message, -1, NULL));
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
    g_autofree char *path = g_strconcat("/ask/stream/", rows[i].name, NULL);
    g_test_add_data_func(path, &rows[i], test_row);
  }
  for (gsize i = 0; i < G_N_ELEMENTS(refusals); i++) {
    g_autofree char *path = g_strconcat("/ask/refused/", refusals[i].name, NULL);
    g_test_add_data_func(path, GSIZE_TO_POINTER(i), test_refusal);
  }
  g_test_add_func("/ask/usage-and-times", test_usage_and_times);
  g_test_add_data_func("/ask/broken/cut", NULL, test_broken);
  g_test_add_data_func("/ask/broken/reset", "x", test_broken);
  g_test_add_func("/ask/long-messages-stay-text", test_long_message);
  return g_test_run();
}
