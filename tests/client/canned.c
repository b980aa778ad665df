#include "tests/client/canned.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct connection {
  int fd;
  GString *in;
  gboolean hangs;
} connection;

struct canned {
  int listener, wake[2];
  char *url, *path;
  canned_fn answer;
  void *user;
  GThread *thread;
  GPtrArray *connections;
  gint n_connections, n_requests; /* atomic */
};

static void
free_connection(gpointer data) {
  connection *c = data;
  close(c->fd);
  g_string_free(c->in, TRUE);
  g_free(c);
}

static void
send_all(int fd, const char *text) {
  gsize n = strlen(text);
  while (n > 0) {
    gssize sent = send(fd, text, n, MSG_NOSIGNAL);
    if (sent <= 0)
      return; /* the client has left: the test sees what it sees */
    text += sent;
    n -= (gsize)sent;
  }
}

/* The length of the first whole request; 0 when there is none. */
static gsize
whole_request(const GString *in) {
  const char *end = strstr(in->str, "\r\n\r\n"), *length = strstr(in->str, "Content-Length: ");
  if (end == NULL)
    return 0;
  gsize head = (gsize)(end + 4 - in->str), body = 0;
  if (length != NULL && length < end)
    body = (gsize)g_ascii_strtoull(length + 16, NULL, 10);
  return in->len >= head + body ? head + body : 0;
}

/* FALSE: the connection is over. */
static gboolean
run_script(connection *c, const canned_step *steps) {
  for (; steps->kind != CANNED_END; steps++) {
    switch (steps->kind) {
    case CANNED_SEND:
      send_all(c->fd, steps->text);
      break;
    case CANNED_PAUSE:
      g_usleep(2000);
      break;
    case CANNED_RESET: {
      struct linger now = {.l_onoff = 1, .l_linger = 0};
      (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
      return FALSE;
    }
    case CANNED_CLOSE:
      return FALSE;
    case CANNED_HANG:
      c->hangs = TRUE;
      return TRUE;
    case CANNED_END:
      break;
    }
  }
  return TRUE;
}

static gboolean
serve(canned *s, connection *c) {
  char bytes[65536];
  gssize n = recv(c->fd, bytes, sizeof bytes, 0);
  if (n <= 0)
    return FALSE;
  g_string_append_len(c->in, bytes, n);
  gsize length;
  while (!c->hangs && (length = whole_request(c->in)) > 0) {
    g_autofree char *request = g_strndup(c->in->str, length);
    canned_step steps[CANNED_STEPS_MAX] = {0};
    g_string_erase(c->in, 0, (gssize)length);
    s->answer(s->user, request, (guint)g_atomic_int_add(&s->n_requests, 1), steps);
    if (!run_script(c, steps))
      return FALSE;
  }
  return TRUE;
}

static gpointer
run(gpointer data) {
  canned *s = data;
  for (;;) {
    guint n = s->connections->len;
    g_autofree struct pollfd *set = g_new0(struct pollfd, n + 2);
    set[0] = (struct pollfd){.fd = s->wake[0], .events = POLLIN};
    set[1] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    for (guint i = 0; i < n; i++)
      set[i + 2] =
          (struct pollfd){.fd = ((connection *)s->connections->pdata[i])->fd, .events = POLLIN};
    if (poll(set, n + 2, -1) < 0 && errno != EINTR)
      return NULL;
    if (set[0].revents != 0)
      return NULL;
    for (guint i = n; i-- > 0;)
      if (set[i + 2].revents != 0 && !serve(s, s->connections->pdata[i]))
        g_ptr_array_remove_index(s->connections, i);
    if (set[1].revents != 0) {
      connection *c = g_new0(connection, 1);
      c->fd = accept(s->listener, NULL, NULL);
      c->in = g_string_new(NULL);
      g_ptr_array_add(s->connections, c);
      g_atomic_int_inc(&s->n_connections);
    }
  }
}

static void
listen_at(canned *s, const char *path) {
  if (path != NULL) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    g_strlcpy(a.sun_path, path, sizeof a.sun_path);
    s->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    g_assert_cmpint(bind(s->listener, (struct sockaddr *)&a, sizeof a), ==, 0);
    s->url = g_strconcat("unix:", path, NULL);
    s->path = g_strdup(path);
  } else {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    s->listener = socket(AF_INET, SOCK_STREAM, 0);
    g_assert_cmpint(bind(s->listener, (struct sockaddr *)&a, sizeof a), ==, 0);
    g_assert_cmpint(getsockname(s->listener, (struct sockaddr *)&a, &n), ==, 0);
    s->url = g_strdup_printf("http://127.0.0.1:%u", ntohs(a.sin_port));
  }
  g_assert_cmpint(listen(s->listener, 1024), ==, 0);
}

canned *
canned_new(const char *path, canned_fn answer, void *user) {
  canned *s = g_new0(canned, 1);
  s->answer = answer;
  s->user = user;
  s->connections = g_ptr_array_new_with_free_func(free_connection);
  g_assert_cmpint(pipe(s->wake), ==, 0);
  listen_at(s, path);
  s->thread = g_thread_new("canned", run, s);
  return s;
}

void
canned_free(canned *s) {
  if (s == NULL)
    return;
  g_assert_cmpint(write(s->wake[1], "x", 1), ==, 1);
  g_thread_join(s->thread);
  g_ptr_array_unref(s->connections);
  close(s->listener);
  close(s->wake[0]);
  close(s->wake[1]);
  if (s->path != NULL)
    unlink(s->path);
  g_free(s->path);
  g_free(s->url);
  g_free(s);
}

const char *
canned_url(const canned *s) {
  return s->url;
}

guint
canned_n_connections(const canned *s) {
  return (guint)g_atomic_int_get(&s->n_connections);
}

guint
canned_n_requests(const canned *s) {
  return (guint)g_atomic_int_get(&s->n_requests);
}

char *
canned_chunked(const char *type, const char *body, gsize cut) {
  GString *out = g_string_new(NULL);
  g_string_printf(out, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n",
                  type);
  gsize n = strlen(body);
  cut = cut > 0 ? cut : n;
  for (gsize at = 0; at < n; at += cut)
    g_string_append_printf(out, "%zx\r\n%.*s\r\n", MIN(cut, n - at), (int)MIN(cut, n - at),
                           body + at);
  g_string_append(out, "0\r\n\r\n");
  return g_string_free(out, FALSE);
}

char *
canned_plain(const char *status, const char *type, const char *body) {
  return g_strdup_printf("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s", status,
                         type, strlen(body), body);
}
