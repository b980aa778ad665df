/* Routes, keys, heads; answers that are known at once. */
#include <string.h>

#include "engine/api/internal.h"
#include "tests/engine/api/rig.h"

static const char *const keys[] = {"sk-one", "sk-two"};
static const rig_options guarded = {.keys = keys, .n_keys = 2, .tokenizer_info = TRUE};

static const struct {
  const char *method, *path;
  gboolean open;
} routes[] = {
    {"POST", "/v1/completions", FALSE},
    {"POST", "/v1/chat/completions", FALSE},
    {"GET", "/v1/models", FALSE},
    {"GET", "/v1/models/tiny", FALSE},
    {"POST", "/v1/embeddings", FALSE},
    {"POST", "/v1/messages", FALSE},
    {"POST", "/v1/messages/count_tokens", FALSE},
    {"POST", "/v1/responses", FALSE},
    {"POST", "/tokenize", FALSE},
    {"POST", "/detokenize", FALSE},
    {"GET", "/tokenizer_info", FALSE},
    {"GET", "/version", FALSE},
    {"GET", "/load", FALSE},
    {"GET", "/no/such/path", FALSE},
    {"GET", "/", FALSE},
    {"GET", "/health", TRUE},
    {"GET", "/livez", TRUE},
    {"GET", "/readyz", TRUE},
    {"GET", "/ping", TRUE},
    {"POST", "/ping", TRUE},
    {"GET", "/metrics", TRUE},
};

static guint
status_of(rig *r, const char *method, const char *path, const char *fields) {
  g_autofree char *bytes =
      g_str_equal(method, "POST")
          ? g_strdup_printf("POST %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: 2\r\n\r\n{}", path,
                            fields)
          : g_strdup_printf("%s %s HTTP/1.1\r\nHost: a\r\n%s\r\n", method, path, fields);
  g_auto(rig_reply) reply = rig_send(r, bytes);
  return reply.status;
}

/* Other spellings of a path: each is the same path, or none. */
static GPtrArray *
spellings(const char *path) {
  GPtrArray *all = g_ptr_array_new_with_free_func(g_free);
  const char *rest = path + 1;
  g_ptr_array_add(all, g_strdup(path));
  g_ptr_array_add(all, g_strdup_printf("%s/", path));
  g_ptr_array_add(all, g_strdup_printf("/%s", path));
  g_ptr_array_add(all, g_strdup_printf("/./%s", rest));
  g_ptr_array_add(all, g_strdup_printf("/x/../%s", rest));
  g_ptr_array_add(all, g_strdup_printf("/%%2e/%s", rest));
  g_ptr_array_add(all, g_strdup_printf("/health/%%2e%%2e/%s", rest));
  g_ptr_array_add(all, g_strdup_printf("/health/../%s", rest));
  g_ptr_array_add(all, g_strdup_printf("/health/..%%2f%s", rest));
  g_ptr_array_add(all, g_strdup_printf("/health%%2f..%%2F%s", rest));
  g_ptr_array_add(all, g_strdup_printf("http://a%s", path));
  g_ptr_array_add(all, g_strdup_printf("HTTP://a%s", path));
  g_ptr_array_add(all, g_strdup_printf("%s?a=b", path));
  g_ptr_array_add(all, g_strdup_printf("%s?/health", path));
  if (rest[0] != '\0')
    g_ptr_array_add(all, g_strdup_printf("/%%%02x%s", rest[0], rest + 1));
  g_ptr_array_add(all, g_ascii_strup(path, -1));
  return all;
}

static void
test_keys(void) {
  static const char *const bad[] = {"",
                                    "Authorization: Bearer sk-on\r\n",
                                    "Authorization: Bearer sk-onee\r\n",
                                    "Authorization: Bearer SK-ONE\r\n",
                                    "Authorization: Bearer\r\n",
                                    "Authorization: Bearer sk-one, sk-two\r\n",
                                    "Authorization: Basic sk-one\r\n",
                                    "Authorization: sk-one\r\n",
                                    "x-api-key: sk-on\r\n",
                                    "x-api-key:\r\n",
                                    "Cookie: sk-one\r\n"};
  g_autoptr(rig) r = rig_new(&guarded);
  for (guint i = 0; i < G_N_ELEMENTS(routes); i++) {
    g_autoptr(GPtrArray) all = spellings(routes[i].path);
    for (guint s = 0; s < all->len; s++) {
      const char *path = g_ptr_array_index(all, s);
      gboolean exact = s == 0;
      for (guint b = 0; b < G_N_ELEMENTS(bad); b++) {
        guint status = status_of(r, routes[i].method, path, bad[b]);
        if (routes[i].open ? exact && status != 200 : status != 401)
          g_error("%s %s with '%s': %u", routes[i].method, path, bad[b], status);
      }
      guint status = status_of(r, routes[i].method, path, "Authorization: Bearer sk-two\r\n");
      g_assert_cmpuint(status, !=, 401);
    }
  }
  g_assert_cmpuint(status_of(r, "GET", "/v1/models", "x-api-key: sk-one\r\n"), ==, 200);
  g_assert_cmpuint(status_of(r, "GET", "/v1/models", "authorization: bearer sk-one\r\n"), ==, 200);
  static const char *const methods[] = {"PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"};
  for (guint i = 0; i < G_N_ELEMENTS(methods); i++)
    g_assert_cmpuint(status_of(r, methods[i], "/v1/models", ""), ==, 401);
  g_assert_cmpuint(status_of(r, "OPTIONS", "*", ""), ==, 401);
}

/* Every spelling of a route that there is leads to it, but for the case. */
static void
test_spellings(void) {
  g_autoptr(rig) r = rig_new(NULL);
  g_autoptr(GPtrArray) all = spellings("/v1/models");
  for (guint s = 0; s < all->len; s++) {
    guint status = status_of(r, "GET", g_ptr_array_index(all, s), "");
    gboolean upper = s + 1 == all->len;
    if (status != (upper ? 404 : 200))
      g_error("%s: %u", (char *)g_ptr_array_index(all, s), status);
  }
}

static void
normalises(const char *from, const char *to) {
  g_autofree char *path = oct_api_path((oct_http_slice){from, strlen(from)});
  g_assert_cmpstr(path, ==, to);
}

static void
test_paths(void) {
  normalises("/", "/");
  normalises("//", "/");
  normalises("/a//b/", "/a/b");
  normalises("/a/./b/..", "/a");
  normalises("/../../a", "/a");
  normalises("/a/..", "/");
  normalises("/a%2Fb%2e", "/a/b.");
  normalises("/%252e%252e/a", "/%2e%2e/a");
  normalises("/...", "/...");
  normalises("/a%00b", NULL);
  normalises("/a%0d%0ab", NULL);
  normalises("/%ff", NULL);
  normalises("/%c3%a9", "/\xc3\xa9");
  normalises("*", "*");
  for (guint n = OCT_API_PATH_MAX - 1; n <= OCT_API_PATH_MAX + 1; n++) {
    g_autofree char *path = g_strnfill(n, 'a');
    path[0] = '/';
    normalises(path, n <= OCT_API_PATH_MAX ? path : NULL);
  }
}

static void
test_methods(void) {
  g_autoptr(rig) r = rig_new(NULL);
  g_auto(rig_reply) get = rig_get(r, "/v1/chat/completions");
  g_assert_cmpuint(get.status, ==, 405);
  g_assert_nonnull(strstr(get.head, "\r\nAllow: POST"));
  g_auto(rig_reply) post = rig_post(r, "/v1/models", "{}");
  g_assert_cmpuint(post.status, ==, 405);
  g_assert_nonnull(strstr(post.head, "\r\nAllow: GET, HEAD"));
  g_auto(rig_reply) put = rig_send(r, "DELETE /ping HTTP/1.1\r\nHost: a\r\n\r\n");
  g_assert_nonnull(strstr(put.head, "\r\nAllow: GET, HEAD, POST"));
  g_auto(rig_reply) none = rig_post(r, "/v1/nothing", "{}");
  g_assert_cmpuint(none.status, ==, 404);
}

static guint
typed(rig *r, const char *fields) {
  return status_of(r, "POST", "/v1/completions", fields);
}

static void
test_types(void) {
  g_autoptr(rig) r = rig_new(NULL);
  /* 400: the body is read, and lacks its prompt. */
  g_assert_cmpuint(typed(r, ""), ==, 400);
  g_assert_cmpuint(typed(r, "Content-Type: application/json\r\n"), ==, 400);
  g_assert_cmpuint(typed(r, "Content-Type: Application/JSON ; charset=utf-8\r\n"), ==, 400);
  g_assert_cmpuint(typed(r, "Content-Type: application/vnd.api+json\r\n"), ==, 400);
  g_assert_cmpuint(typed(r, "Content-Type: text/plain\r\n"), ==, 415);
  g_assert_cmpuint(typed(r, "Content-Type: multipart/form-data\r\n"), ==, 415);
  g_assert_cmpuint(typed(r, "Content-Type: application/jsonx\r\n"), ==, 415);
  g_auto(rig_reply) form =
      rig_send(r, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
                  "Content-Type: application/x-www-form-urlencoded\r\n\r\n{}");
  g_assert_nonnull(strstr(form.body, "Content-Type: application/json"));
  g_assert_cmpuint(typed(r, "Content-Encoding: gzip\r\n"), ==, 415);
  g_assert_cmpuint(typed(r, "Content-Encoding: identity\r\n"), ==, 400);
  g_assert_cmpuint(status_of(r, "GET", "/v1/models?a=1&b=2&", ""), ==, 200);
  g_assert_cmpuint(status_of(r, "GET", "/v1/models?a=1&a=2", ""), ==, 400);
  g_assert_cmpuint(status_of(r, "GET", "/v1/models?a&b&a", ""), ==, 400);
}

static void
test_status(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.tokenizer_info = TRUE});
  g_auto(rig_reply) models = rig_get(r, "/v1/models");
  g_assert_cmpstr(
      models.body, ==,
      "{\"object\":\"list\",\"data\":[{\"id\":\"tiny\",\"object\":\"model\",\"created\":"
      "1700000000,\"owned_by\":\"octet\",\"root\":\"tiny\",\"parent\":null,"
      "\"max_model_len\":512},{\"id\":\"org/tiny\",\"object\":\"model\",\"created\":"
      "1700000000,\"owned_by\":\"octet\",\"root\":\"tiny\",\"parent\":null,"
      "\"max_model_len\":512}]}");
  json_decref(rig_json(r, 200, "/v1/models/org/tiny", NULL));
  json_decref(rig_json(r, 200, "/v1/models/org%2Ftiny", NULL));
  json_decref(rig_json(r, 404, "/v1/models/other", NULL));
  g_auto(rig_reply) version = rig_get(r, "/version");
  g_assert_cmpstr(version.body, ==, "{\"version\":\"1.2.3\"}");
  g_auto(rig_reply) load = rig_get(r, "/load");
  g_assert_cmpstr(load.body, ==, "{\"server_load\":0}");
  g_auto(rig_reply) metrics = rig_get(r, "/metrics");
  g_assert_cmpstr(metrics.body, ==, "vllm:num_requests_running 0\n");
  g_assert_nonnull(strstr(metrics.head, "\r\nContent-Type: text/plain; version=0.0.4"));
  json_t *info = rig_json(r, 200, "/tokenizer_info", NULL);
  g_assert_cmpint(rig_int(info, "vocab_size"), ==, oct_tokenizer_n_tokens(r->tokenizer));
  json_decref(info);
  g_autoptr(rig) plain = rig_new(NULL);
  json_decref(rig_json(plain, 404, "/tokenizer_info", NULL));
}

static void
test_health(void) {
  static const struct {
    oct_health health;
    gboolean ready;
    guint of_health, of_ready;
  } rows[] = {{OCT_HEALTH_OPENING, FALSE, 503, 503}, {OCT_HEALTH_OK, TRUE, 200, 200},
              {OCT_HEALTH_OK, FALSE, 200, 503},      {OCT_HEALTH_BUSY, TRUE, 200, 200},
              {OCT_HEALTH_STALLED, FALSE, 503, 503}, {OCT_HEALTH_DEAD, FALSE, 503, 503}};
  g_autoptr(rig) r = rig_new(NULL);
  for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
    r->service->status.health = rows[i].health;
    r->service->status.ready = rows[i].ready;
    g_strlcpy(r->service->status.reason, "because", sizeof r->service->status.reason);
    json_t *a = rig_json(r, rows[i].of_health, "/health", NULL);
    g_assert_cmpstr(rig_text(a, "status"), ==, oct_health_name(rows[i].health));
    g_assert_cmpstr(rig_text(a, "reason"), ==, "because");
    json_decref(a);
    json_decref(rig_json(r, rows[i].of_ready, "/readyz", NULL));
    json_decref(rig_json(r, rows[i].of_health, "/ping", NULL));
    json_decref(rig_json(r, 200, "/livez", NULL));
  }
}

/* --- tokenizer, embeddings ---------------------------------------------------------------------
 */

static void
test_tokenize(void) {
  g_autoptr(rig) r = rig_new(NULL);
  json_t *a = rig_json(r, 200, "/tokenize", "{'prompt':'Hi <|im_end|>','return_token_strs':true}");
  gsize n = json_array_size(rig_at(a, "tokens"));
  g_assert_cmpint(rig_int(a, "count"), ==, (gint64)n);
  g_assert_cmpint(rig_int(a, "max_model_len"), ==, 512);
  g_autoptr(GString) text = g_string_new(NULL), ids = g_string_new(NULL);
  for (gsize i = 0; i < n; i++) {
    g_string_append(text, json_string_value(json_array_get(rig_at(a, "token_strs"), i)));
    g_string_append_printf(ids, "%s%" G_GINT64_FORMAT, i > 0 ? "," : "",
                           (gint64)json_integer_value(json_array_get(rig_at(a, "tokens"), i)));
  }
  g_assert_cmpstr(text->str, ==, "Hi <|im_end|>");
  json_decref(a);
  g_autofree char *body = g_strdup_printf("{'tokens':[%s]}", ids->str);
  a = rig_json(r, 200, "/detokenize", body);
  g_assert_cmpstr(rig_text(a, "prompt"), ==, "Hi <|im_end|>");
  json_decref(a);
  a = rig_json(r, 200, "/tokenize", "{'messages':[{'role':'user','content':'Hi'}]}");
  g_assert_cmpint(rig_int(a, "count"), ==, 20);
  g_assert_true(json_is_null(rig_at(a, "token_strs")));
  json_decref(a);
  rig_refuses(r, "/tokenize", "{}", 400, "prompt");
  rig_refuses(r, "/tokenize", "{'prompt':['a']}", 400, "prompt");
  rig_refuses(r, "/detokenize", "{}", 400, "tokens");
  rig_refuses(r, "/detokenize", "{'tokens':[-1]}", 400, "tokens");
  json_decref(rig_json(r, 200, "/tokenize", "{'prompt':''}"));
  json_decref(rig_json(r, 200, "/detokenize", "{'tokens':[]}"));
}

static void
test_embeddings(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.pooling = OCT_API_POOL_MEAN});
  json_t *a = rig_json(r, 200, "/v1/embeddings", "{'input':['a','b']}");
  g_assert_cmpuint(r->service->params.sampling.pooling, ==, OCT_POOLING_MEAN);
  g_assert_cmpuint(json_array_size(rig_at(a, "data")), ==, 2);
  g_assert_cmpint(rig_int(a, "data.1.index"), ==, 1);
  char *vector = json_dumps(rig_at(a, "data.0.embedding"), JSON_COMPACT | JSON_REAL_PRECISION(4));
  g_assert_cmpstr(vector, ==, "[0.6,0,-0.8,0]");
  free(vector);
  g_assert_cmpint(rig_int(a, "usage.prompt_tokens"), ==, 2);
  json_decref(a);
  a = rig_json(r, 200, "/v1/embeddings", "{'input':[1,2],'dimensions':1}");
  g_assert_cmpuint(json_array_size(rig_at(a, "data.0.embedding")), ==, 1);
  g_assert_cmpfloat(json_number_value(rig_at(a, "data.0.embedding.0")), ==, 1);
  json_decref(a);
  a = rig_json(r, 200, "/v1/embeddings", "{'input':'a','encoding_format':'base64'}");
  gsize size;
  g_autofree guchar *bytes = g_base64_decode(rig_text(a, "data.0.embedding"), &size);
  float values[4];
  g_assert_cmpuint(size, ==, sizeof values);
  memcpy(values, bytes, size);
  g_assert_cmpfloat_with_epsilon(values[2], -0.8f, 1e-6f);
  json_decref(a);
  rig_refuses(r, "/v1/embeddings", "{'input':'a','dimensions':5}", 400, "dimensions");
  rig_refuses(r, "/v1/embeddings", "{'input':'a','dimensions':0}", 400, "dimensions");
  rig_refuses(r, "/v1/embeddings", "{'input':'a','encoding_format':'int8'}", 400,
              "encoding_format");
  rig_refuses(r, "/v1/embeddings", "{}", 400, "input");
  g_autoptr(rig) none = rig_new(NULL);
  json_decref(rig_json(none, 404, "/v1/embeddings", "{'input':'a'}"));
}

static void
test_log(void) {
  g_autoptr(rig) r = rig_new(NULL);
  g_auto(rig_reply) a =
      rig_post_with(r, "/v1/completions", "X-Request-Id: me\r\n", "{\"prompt\":\"secret\"}");
  g_assert_true(g_str_has_prefix(r->log->str, "me "));
  g_assert_nonnull(strstr(r->log->str, " POST /v1/completions 200 "));
  g_assert_null(strstr(r->log->str, "secret"));
  g_assert_nonnull(strstr(a.head, "\r\nX-Request-Id: me"));
}

/* A body that is read on another thread is answered as any other. */
static void
test_long(void) {
  g_autoptr(rig) r = rig_new(&(rig_options){.context = 100000});
  for (gsize n = OCT_API_SHORT_BYTES - 64; n <= OCT_API_SHORT_BYTES + 64; n += 64) {
    g_autofree char *text = g_strnfill(n, 'x');
    g_autofree char *body =
        g_strdup_printf("{'messages':[{'role':'user','content':'%s'}],'max_tokens':2}", text);
    g_autofree char *bad = g_strdup_printf("{'prompt':'%s','max_tokens':-1}", text);
    json_decref(rig_json(r, 200, "/v1/chat/completions", body));
    rig_refuses(r, "/v1/completions", bad, 400, "max_tokens");
    rig_leave(r, "/v1/chat/completions", body, 0, RIG_CLOSES);
    while (fake_service_step(r->service))
      ;
    g_assert_cmpuint(r->service->live->len, ==, 0);
  }
}

/* Whoever leaves, in whatever state, leaves nothing behind. */
static void
test_gone(void) {
  static const struct {
    const char *path, *body;
  } asks[] = {
      {"/v1/completions", "{'prompt':'Hi'}"},
      {"/v1/completions", "{'prompt':['a','b'],'n':3,'stream':true}"},
      {"/v1/chat/completions", "{'messages':[{'role':'user','content':'Hi'}]}"},
      {"/v1/chat/completions", "{'stream':true,'messages':[{'role':'user','content':'Hi'}]}"},
      {"/v1/messages",
       "{'max_tokens':20,'stream':true,'messages':[{'role':'user','content':'Hi'}]}"},
      {"/v1/responses", "{'stream':true,'input':'Hi'}"},
      {"/v1/embeddings", "{'input':'Hi'}"},
      {"/tokenize", "{'prompt':'Hi'}"},
  };
  static const rig_options options = {.pooling = OCT_API_POOL_LAST};
  for (guint i = 0; i < G_N_ELEMENTS(asks); i++)
    for (guint steps = 0; steps < 5; steps++)
      for (guint how = RIG_CLOSES; how <= RIG_IS_ABORTED; how++) {
        g_autoptr(rig) r = rig_new(&options);
        rig_leave(r, asks[i].path, asks[i].body, steps, how);
        g_assert_cmpuint(r->service->live->len, ==, 0);
        g_assert_cmpint(oct_api_deadline(r->api), ==, G_MAXINT64);
        while (fake_service_step(r->service))
          ;
        gboolean answered = strstr(r->log->str, " 200 ") != NULL;
        g_assert_true(answered || strstr(r->log->str, " 499 ") != NULL);
      }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/api/routes/nothing-without-a-key-in-any-spelling", test_keys);
  g_test_add_func("/api/routes/spellings-lead-to-the-route", test_spellings);
  g_test_add_func("/api/routes/paths-have-one-spelling", test_paths);
  g_test_add_func("/api/routes/methods-are-allowed-or-listed", test_methods);
  g_test_add_func("/api/routes/bodies-are-json", test_types);
  g_test_add_func("/api/routes/status", test_status);
  g_test_add_func("/api/routes/health-has-its-status", test_health);
  g_test_add_func("/api/routes/tokenize-and-back", test_tokenize);
  g_test_add_func("/api/routes/embeddings", test_embeddings);
  g_test_add_func("/api/routes/long-bodies-are-read-elsewhere", test_long);
  g_test_add_func("/api/routes/who-leaves-leaves-nothing-behind", test_gone);
  g_test_add_func("/api/routes/requests-are-logged-without-their-text", test_log);
  return g_test_run();
}
