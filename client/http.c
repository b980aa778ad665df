/* libcurl tells which sockets it waits for and when it wants to be called; this file keeps both in
 * one epoll set: the sockets, and a timer that is armed for the earlier of libcurl's time and the
 * caller's. Easy handles are kept and used again; connections are kept by the multi handle.
 */
#include "client/http.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <curl/curl.h>

#include "engine/base/assert.h"

#define EVENTS_PER_TURN 256
#define SPARE_MAX       4096 /* easy handles kept */
#define NS_PER_MS       G_GINT64_CONSTANT(1000000)
#define NS_PER_S        G_GINT64_CONSTANT(1000000000)

struct oct_exchange {
  oct_client *client;
  CURL *easy;
  oct_call call; /* the body is owned */
  char *url;
  gboolean told_head, ended_here;
  gint64 started_ns;
  char message[CURL_ERROR_SIZE];
  oct_exchange *previous, *next; /* of those that are out */
};

struct oct_client {
  CURLM *multi;
  CURLU *base;
  char *url, *socket_path; /* the latter NULL but for unix: */
  struct curl_slist *headers, *stream_headers;
  oct_client_options options; /* its texts are not used */
  int epoll_fd, timer_fd;
  gint64 curl_due_ns, armed_ns; /* G_MAXINT64 = none */
  oct_exchange *out;
  guint32 n_open;
  gboolean in_callback;
  GPtrArray *spare;
  gint64 made_ns, waited_ns;
};

G_DEFINE_QUARK(oct - client - error, oct_client_error)

gint64
oct_client_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (gint64)now.tv_sec * NS_PER_S + now.tv_nsec;
}

void
oct_client_options_default(oct_client_options *options) {
  *options = (oct_client_options){.connect_timeout_ms = 10000};
}

/* ---------------------------------------------------------------- the address */

static gboolean
refuse_url(const char *url, const char *why, GError **error) {
  g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_OPTION, "URL \"%s\": %s", url, why);
  return FALSE;
}

static char *
url_part(CURLU *url, CURLUPart part) {
  char *text = NULL;
  if (curl_url_get(url, part, &text, 0) != CURLUE_OK)
    return NULL;
  char *copy = g_strdup(text);
  curl_free(text);
  return copy;
}

/* What is in front of /v1, without a slash at its end. */
static void
trim_prefix(char *path) {
  gsize n = strlen(path);
  while (n > 0 && path[n - 1] == '/')
    path[--n] = '\0';
  if (g_str_has_suffix(path, "/v1"))
    path[n - 3] = '\0';
}

static gboolean
read_url(oct_client *c, const char *text, GError **error) {
  if (g_str_has_prefix(text, "unix:")) {
    const char *path = text + 5;
    while (path[0] == '/' && path[1] == '/')
      path++;
    if (*path == '\0')
      return refuse_url(text, "names no socket", error);
    c->socket_path = g_strdup(path);
    c->url = g_strdup("http://localhost");
    return TRUE;
  }
  g_autofree char *with_scheme =
      strstr(text, "://") != NULL ? g_strdup(text) : g_strconcat("http://", text, NULL);
  CURLUcode code = curl_url_set(c->base, CURLUPART_URL, with_scheme, 0);
  if (code != CURLUE_OK)
    return refuse_url(text, curl_url_strerror(code), error);
  g_autofree char *scheme = url_part(c->base, CURLUPART_SCHEME);
  if (g_strcmp0(scheme, "http") != 0 && g_strcmp0(scheme, "https") != 0)
    return refuse_url(text, "only http, https and unix are spoken", error);
  static const CURLUPart unwanted[] = {CURLUPART_USER, CURLUPART_QUERY, CURLUPART_FRAGMENT};
  for (gsize i = 0; i < G_N_ELEMENTS(unwanted); i++) {
    g_autofree char *part = url_part(c->base, unwanted[i]);
    if (part != NULL)
      return refuse_url(text, "has a user, a query or a fragment", error);
  }
  c->url = url_part(c->base, CURLUPART_URL);
  if (c->url == NULL)
    return refuse_url(text, "names no host", error);
  trim_prefix(c->url);
  return TRUE;
}

/* ---------------------------------------------------------------- headers */

static gboolean
is_header(const char *text) {
  const char *colon = strchr(text, ':');
  if (colon == NULL || colon == text)
    return FALSE;
  for (const char *c = text; *c != '\0'; c++)
    if ((c < colon && *c == ' ') || *c == '\r' || *c == '\n')
      return FALSE;
  return TRUE;
}

static void
add_header(oct_client *c, const char *text) {
  c->headers = curl_slist_append(c->headers, text);
  c->stream_headers = curl_slist_append(c->stream_headers, text);
}

static gboolean
make_headers(oct_client *c, const oct_client_options *o, GError **error) {
  add_header(c, "Content-Type: application/json");
  add_header(c, "Expect:"); /* a body is sent at once */
  c->headers = curl_slist_append(c->headers, "Accept: application/json");
  c->stream_headers = curl_slist_append(c->stream_headers, "Accept: text/event-stream");
  for (const char *const *h = o->headers; h != NULL && *h != NULL; h++) {
    if (!is_header(*h)) {
      g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_OPTION,
                  "header \"%s\": must be \"Name: value\"", *h);
      return FALSE;
    }
    add_header(c, *h);
  }
  if (o->api_key != NULL) {
    g_autofree char *bearer = g_strconcat("Authorization: Bearer ", o->api_key, NULL);
    if (!is_header(bearer)) {
      g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_OPTION, "the API key breaks its line");
      return FALSE;
    }
    add_header(c, bearer);
  }
  return TRUE;
}

/* ---------------------------------------------------------------- the loop */

/* What libcurl waits for on a socket; `known` is what was assigned to the socket before. */
static int
watch(CURL *easy, curl_socket_t fd, int what, void *user, void *known) {
  oct_client *c = user;
  (void)easy;
  if (what == CURL_POLL_REMOVE) {
    (void)epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    return 0;
  }
  struct epoll_event event = {.data.fd = fd};
  event.events = ((what & CURL_POLL_IN) ? EPOLLIN : 0u) | ((what & CURL_POLL_OUT) ? EPOLLOUT : 0u);
  if (epoll_ctl(c->epoll_fd, known != NULL ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0)
    return -1;
  if (known == NULL)
    curl_multi_assign(c->multi, fd, c);
  return 0;
}

static int
set_timer(CURLM *multi, long ms, void *user) {
  oct_client *c = user;
  (void)multi;
  c->curl_due_ns = ms < 0 ? G_MAXINT64 : oct_client_now_ns() + ms * NS_PER_MS;
  return 0;
}

static void
arm(oct_client *c, gint64 due_ns) {
  if (due_ns == c->armed_ns)
    return;
  struct itimerspec when = {0};
  if (due_ns != G_MAXINT64) {
    due_ns = MAX(due_ns, 1); /* 0 would disarm it */
    when.it_value.tv_sec = due_ns / NS_PER_S;
    when.it_value.tv_nsec = due_ns % NS_PER_S;
  }
  int status = timerfd_settime(c->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
  oct_assert(status == 0);
  c->armed_ns = due_ns;
}

static gboolean
open_loop(oct_client *c, GError **error) {
  c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  c->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  c->curl_due_ns = c->armed_ns = G_MAXINT64;
  struct epoll_event event = {.events = EPOLLIN, .data.fd = c->timer_fd};
  if (c->epoll_fd < 0 || c->timer_fd < 0 ||
      epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->timer_fd, &event) != 0) {
    g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_SYSTEM, "epoll: %s", g_strerror(errno));
    return FALSE;
  }
  c->multi = curl_multi_init();
  if (c->multi == NULL) {
    g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_SYSTEM, "libcurl: out of memory");
    return FALSE;
  }
  curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, watch);
  curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
  curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, set_timer);
  curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
  curl_multi_setopt(c->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
  curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)SPARE_MAX);
  return TRUE;
}

/* ---------------------------------------------------------------- life cycle */

oct_client *
oct_client_new(const oct_client_options *options, GError **error) {
  static gsize initialised;
  if (g_once_init_enter(&initialised)) {
    CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
    oct_assert(code == CURLE_OK);
    g_once_init_leave(&initialised, 1);
  }
  g_autoptr(oct_client) c = g_new0(oct_client, 1);
  c->epoll_fd = c->timer_fd = -1;
  c->options = *options;
  c->base = curl_url();
  c->spare = g_ptr_array_new_with_free_func(curl_easy_cleanup);
  c->made_ns = oct_client_now_ns();
  if (!read_url(c, options->url, error) || !make_headers(c, options, error) || !open_loop(c, error))
    return NULL;
  return g_steal_pointer(&c);
}

static void
free_exchange(oct_exchange *x) {
  oct_client *c = x->client;
  if (x->previous != NULL)
    x->previous->next = x->next;
  else
    c->out = x->next;
  if (x->next != NULL)
    x->next->previous = x->previous;
  c->n_open--;
  curl_multi_remove_handle(c->multi, x->easy);
  if (c->spare->len < SPARE_MAX) {
    curl_easy_reset(x->easy);
    g_ptr_array_add(c->spare, x->easy);
  } else {
    curl_easy_cleanup(x->easy);
  }
  g_free(x->call.body);
  g_free(x->url);
  g_free(x);
}

void
oct_client_free(oct_client *c) {
  if (c == NULL)
    return;
  oct_assert(!c->in_callback);
  while (c->out != NULL)
    free_exchange(c->out);
  g_ptr_array_unref(c->spare);
  curl_multi_cleanup(c->multi);
  curl_slist_free_all(c->headers);
  curl_slist_free_all(c->stream_headers);
  curl_url_cleanup(c->base);
  if (c->epoll_fd >= 0)
    close(c->epoll_fd);
  if (c->timer_fd >= 0)
    close(c->timer_fd);
  g_free(c->url);
  g_free(c->socket_path);
  g_free(c);
}

/* ---------------------------------------------------------------- an exchange */

static size_t
take_body(char *bytes, size_t size, size_t n, void *user) {
  oct_exchange *x = user;
  gint64 now = oct_client_now_ns();
  (void)size; /* 1 */
  if (!x->told_head) {
    long status = 0;
    const char *type = NULL;
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(x->easy, CURLINFO_CONTENT_TYPE, &type);
    x->told_head = TRUE;
    x->ended_here =
        x->call.head != NULL && !x->call.head(x->call.user, (int)status, type != NULL ? type : "");
  }
  x->ended_here = x->ended_here || !x->call.data(x->call.user, bytes, n, now);
  return x->ended_here ? CURL_WRITEFUNC_ERROR : n;
}

static void
set_options(oct_exchange *x) {
  const oct_client_options *o = &x->client->options;
  CURL *e = x->easy;
  curl_easy_setopt(e, CURLOPT_URL, x->url);
  curl_easy_setopt(e, CURLOPT_PRIVATE, x);
  curl_easy_setopt(e, CURLOPT_ERRORBUFFER, x->message);
  curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take_body);
  curl_easy_setopt(e, CURLOPT_WRITEDATA, x);
  curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(e, CURLOPT_PROXY, ""); /* none from the environment: times are the server's */
  curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(e, CURLOPT_HTTPHEADER,
                   x->call.wants_stream ? x->client->stream_headers : x->client->headers);
  curl_easy_setopt(e, CURLOPT_TCP_NODELAY, 1L);
  if (x->client->socket_path != NULL)
    curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, x->client->socket_path);
  if (x->call.body != NULL) {
    curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)x->call.body_bytes);
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, x->call.body);
  }
  /* 0 stands for libcurl's own limit of 5 minutes. */
  curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS,
                   o->connect_timeout_ms > 0 ? (long)o->connect_timeout_ms : (long)G_MAXINT32);
  curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)o->total_timeout_ms);
  if (o->idle_timeout_ms > 0) {
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)(o->idle_timeout_ms + 999) / 1000);
  }
}

oct_exchange *
oct_client_start(oct_client *c, const oct_call *call) {
  oct_exchange *x = g_new0(oct_exchange, 1);
  x->client = c;
  x->call = *call;
  x->url = g_strconcat(c->url, call->path, NULL);
  x->easy = c->spare->len > 0 ? g_ptr_array_steal_index_fast(c->spare, c->spare->len - 1)
                              : curl_easy_init();
  oct_assert(x->easy != NULL);
  set_options(x);
  x->next = c->out;
  if (c->out != NULL)
    c->out->previous = x;
  c->out = x;
  c->n_open++;
  x->started_ns = oct_client_now_ns();
  CURLMcode code = curl_multi_add_handle(c->multi, x->easy);
  oct_assert(code == CURLM_OK);
  return x;
}

/* ---------------------------------------------------------------- how it ended */

static oct_failure
failure_of_connect(long os_error) {
  switch (os_error) {
  case ECONNREFUSED:
  case ENOENT: /* a Unix socket that is not there */
    return OCT_FAILURE_REFUSED;
  case ECONNRESET:
    return OCT_FAILURE_RESET;
  case ETIMEDOUT:
    return OCT_FAILURE_CONNECT_TIMEOUT;
  default:
    return OCT_FAILURE_CONNECT;
  }
}

static oct_failure
failure_of_timeout(CURL *easy) {
  curl_off_t connected = 0;
  curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &connected);
  return connected == 0 ? OCT_FAILURE_CONNECT_TIMEOUT : OCT_FAILURE_TIMEOUT;
}

/* libcurl has one code for broken connections and for chunks that are none. */
static oct_failure
failure_of_read(CURL *easy, const char *message) {
  long os_error = 0;
  curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &os_error);
  if (os_error == ECONNRESET || os_error == EPIPE || strstr(message, "reset") != NULL)
    return OCT_FAILURE_RESET;
  return os_error == 0 ? OCT_FAILURE_PROTOCOL : OCT_FAILURE_RESET;
}

static oct_failure
failure_of(const oct_exchange *x, CURLcode code) {
  long os_error = 0;
  if (code == CURLE_OK)
    return OCT_FAILURE_NONE;
  if (x->ended_here)
    return OCT_FAILURE_CANCELLED;
  curl_easy_getinfo(x->easy, CURLINFO_OS_ERRNO, &os_error);
  switch ((int)code) {
  case CURLE_COULDNT_RESOLVE_HOST:
    return OCT_FAILURE_RESOLVE;
  case CURLE_COULDNT_CONNECT:
    return failure_of_connect(os_error);
  case CURLE_OPERATION_TIMEDOUT:
    return failure_of_timeout(x->easy);
  case CURLE_GOT_NOTHING:
    return OCT_FAILURE_EMPTY;
  case CURLE_PARTIAL_FILE:
    return OCT_FAILURE_TRUNCATED;
  case CURLE_RECV_ERROR:
  case CURLE_SEND_ERROR:
    return failure_of_read(x->easy, x->message);
  case CURLE_SSL_CONNECT_ERROR:
  case CURLE_PEER_FAILED_VERIFICATION:
  case CURLE_SSL_CERTPROBLEM:
  case CURLE_SSL_CIPHER:
  case CURLE_SSL_CACERT_BADFILE:
    return OCT_FAILURE_TLS;
  case CURLE_UNSUPPORTED_PROTOCOL: /* a body without a head */
  case CURLE_WEIRD_SERVER_REPLY:
  case CURLE_HTTP2:
  case CURLE_BAD_CONTENT_ENCODING:
    return OCT_FAILURE_PROTOCOL;
  default:
    return OCT_FAILURE_OTHER;
  }
}

static void
finish(oct_exchange *x, CURLcode code) {
  long status = 0;
  curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
  oct_exchange_end end = {.failure = failure_of(x, code),
                          .status = (int)status,
                          .started_ns = x->started_ns,
                          .ended_ns = oct_client_now_ns()};
  if (end.failure != OCT_FAILURE_NONE && *x->message == '\0')
    g_strlcpy(x->message, curl_easy_strerror(code), sizeof x->message);
  end.message = end.failure != OCT_FAILURE_NONE ? x->message : "";
  void (*done)(void *, const oct_exchange_end *) = x->call.done;
  void *user = x->call.user;
  char message[CURL_ERROR_SIZE];
  g_strlcpy(message, end.message, sizeof message);
  end.message = message;
  free_exchange(x); /* first: its connection is free for what `done` starts */
  done(user, &end);
}

void
oct_client_cancel(oct_client *c, oct_exchange *x) {
  oct_assert(!c->in_callback && x->client == c);
  x->ended_here = TRUE;
  g_strlcpy(x->message, "cancelled by the client", sizeof x->message);
  finish(x, CURLE_ABORTED_BY_CALLBACK);
}

/* TRUE when there was one. */
static gboolean
tell_ends(oct_client *c) {
  int left;
  gboolean any = FALSE;
  CURLMsg *message;
  while ((message = curl_multi_info_read(c->multi, &left)) != NULL) {
    char *private = NULL;
    CURLcode code = message->data.result;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &private);
    finish((oct_exchange *)(void *)private, code);
    any = TRUE;
  }
  return any;
}

static void
act(oct_client *c, curl_socket_t fd, int what) {
  int running;
  c->in_callback = TRUE;
  CURLMcode code = curl_multi_socket_action(c->multi, fd, what, &running);
  c->in_callback = FALSE;
  oct_assert(code == CURLM_OK);
}

static int
what_of(guint32 events) {
  int what = 0;
  if (events & EPOLLIN)
    what |= CURL_CSELECT_IN;
  if (events & EPOLLOUT)
    what |= CURL_CSELECT_OUT;
  if (events & (EPOLLERR | EPOLLHUP))
    what |= CURL_CSELECT_ERR;
  return what;
}

/* What libcurl wants done by now. */
static void
act_when_due(oct_client *c) {
  if (c->curl_due_ns > oct_client_now_ns())
    return;
  c->curl_due_ns = G_MAXINT64; /* it says when it wants more */
  act(c, CURL_SOCKET_TIMEOUT, 0);
}

void
oct_client_poll(oct_client *c, gint64 until_ns) {
  struct epoll_event events[EVENTS_PER_TURN];
  act_when_due(c); /* begins what was started since; some of it may have failed at once */
  if (tell_ends(c))
    return;
  arm(c, MIN(until_ns, c->curl_due_ns));
  gint64 before = oct_client_now_ns();
  int n = epoll_wait(c->epoll_fd, events, EVENTS_PER_TURN, -1);
  c->waited_ns += oct_client_now_ns() - before;
  oct_assert(n >= 0 || errno == EINTR);
  for (int i = 0; i < n; i++) {
    guint64 times;
    if (events[i].data.fd != c->timer_fd)
      act(c, events[i].data.fd, what_of(events[i].events));
    else if (read(c->timer_fd, &times, sizeof times) == (gssize)sizeof times)
      c->armed_ns = G_MAXINT64; /* it has fired and is not armed any more */
  }
  act_when_due(c);
  (void)tell_ends(c);
}

/* ---------------------------------------------------------------- a GET that waits */

typedef struct get {
  GString *body;
  gboolean done, too_long;
  oct_failure failure;
  int status;
  char *message;
} get;

static gboolean
get_data(void *user, const char *bytes, gsize n, gint64 now_ns) {
  get *g = user;
  (void)now_ns;
  g->too_long = g->body->len + n > OCT_CLIENT_BODY_MAX;
  if (!g->too_long)
    g_string_append_len(g->body, bytes, (gssize)n);
  return !g->too_long;
}

static void
get_done(void *user, const oct_exchange_end *end) {
  get *g = user;
  g->done = TRUE;
  g->failure = end->failure;
  g->status = end->status;
  g->message = g_strdup(end->message);
}

char *
oct_client_get(oct_client *c, const char *path, gint64 until_ns, GError **error) {
  get g = {.body = g_string_new(NULL)};
  oct_exchange *x = oct_client_start(
      c, &(oct_call){.path = path, .user = &g, .data = get_data, .done = get_done});
  while (!g.done && oct_client_now_ns() < until_ns)
    oct_client_poll(c, until_ns);
  if (!g.done)
    oct_client_cancel(c, x);
  g_autofree char *message = g.message;
  if (g.failure == OCT_FAILURE_NONE && g.status == 200)
    return g_string_free(g.body, FALSE);
  if (g.failure == OCT_FAILURE_NONE)
    g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER, "%s%s: status %d", c->url, path,
                g.status);
  else if (g.too_long)
    g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER,
                "%s%s: an answer of more than %u bytes", c->url, path, OCT_CLIENT_BODY_MAX);
  else
    g_set_error(error, OCT_CLIENT_ERROR, OCT_CLIENT_ERROR_ANSWER, "%s%s: %s: %s", c->url, path,
                oct_failure_name(g.failure), message);
  g_string_free(g.body, TRUE);
  return NULL;
}

/* ---------------------------------------------------------------- inspect */

guint32
oct_client_n_open(const oct_client *c) {
  return c->n_open;
}

const char *
oct_client_url(const oct_client *c) {
  return c->socket_path != NULL ? c->socket_path : c->url;
}

gint64
oct_client_busy_ns(const oct_client *c) {
  return oct_client_now_ns() - c->made_ns - c->waited_ns;
}
