/* Moves the bytes: listeners, connections and their moments around one epoll descriptor.
 *
 * A turn reads what has come, expires what is late, then settles every connection that was marked:
 * sends what it has, lets it go on, and arms what it waits for. Handlers mark connections by
 * answering; whatever they append within one turn leaves in one send().
 *
 * 1. A connection that has ended is closed at once and freed at the turn's end: events in hand may
 *    still point to it.
 * 2. A turn settles those that were marked when it came to them. One that has more to do is marked
 *    again and waits for the next turn, so that no client can hold the loop.
 * 3. Nothing is allocated per event of a stream: queues keep their size while they are in use. */
#include "config.h"

#include "engine/http/server.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/http/connection.h"
#include "engine/http/listen.h"
#include "engine/http/timers.h"

#define EVENTS_MAX  256
#define ACCEPTS_MAX 64 /* of one listener in one turn */
#define READ_BYTES  65536
#define SEND_BUFFER 65536 /* of the kernel: what a client that does not read can hold of it */
#define UNREAD_BYTES                                                                               \
  32768 /* pipelined, in the kernel: a window that is full lets no end through                     \
         */
#define PAUSE_NS      (100 * G_GINT64_CONSTANT(1000000))
#define LISTENERS_MAX 16

typedef enum source_kind { LISTENER, WIRE } source_kind;

typedef struct listener {
  source_kind kind;
  int fd;
  char *path;       /* of a Unix socket */
  gint64 resume_ns; /* G_MAXINT64: it is not paused */
} listener;

/* A connection and its socket. */
typedef struct wire {
  source_kind kind;
  oct_http_exchange x;
  oct_http_server *server;
  int fd;
  guint32 interest; /* as epoll knows it */
  gboolean marked, blocked, shut;
  oct_http_timer timer;
  GList in_all, in_marked; /* the first in `closed` once the socket is closed */
  guint64 address;         /* its first 8 bytes that tell clients apart, 0: not counted */
} wire;

struct oct_http_server {
  oct_http_shared shared;
  int epoll, spare;
  listener listeners[LISTENERS_MAX];
  guint n_listeners;
  GQueue all, marked, closed; /* of wire */
  oct_http_timers timers;
  GHashTable *addresses; /* address to number of connections */
  gboolean turning;
  char buffer[READ_BYTES];
};

static wire *
wire_of(oct_http_exchange *x) {
  return (wire *)((char *)x - G_STRUCT_OFFSET(wire, x));
}

static gint64
now(const oct_http_server *server) {
  return server->shared.config.now_ns(server->shared.config.clock);
}

/* --- marks and ends --------------------------------------------------------------------------- */

static void
mark(wire *w) {
  if (w->marked || w->fd < 0)
    return;
  w->marked = TRUE;
  g_queue_push_tail_link(&w->server->marked, &w->in_marked);
}

static void
unmark(wire *w) {
  if (w->marked)
    g_queue_unlink(&w->server->marked, &w->in_marked);
  w->marked = FALSE;
}

static void
wake(oct_http_exchange *x) {
  mark(wire_of(x));
}

static void
count_address(oct_http_server *server, guint64 address, int change) {
  if (address == 0 || server->addresses == NULL)
    return;
  guint n = GPOINTER_TO_UINT(g_hash_table_lookup(server->addresses, &address));
  n = change > 0 ? n + 1 : n - 1;
  if (n == 0)
    g_hash_table_remove(server->addresses, &address);
  else
    g_hash_table_insert(server->addresses, g_memdup2(&address, sizeof address),
                        GUINT_TO_POINTER(n));
}

/* Closes the socket; the rest is freed by bury(). */
static void
close_wire(wire *w) {
  oct_http_server *server = w->server;
  const struct linger at_once = {1, 0};
  if (w->x.reset)
    (void)setsockopt(w->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(w->fd);
  w->fd = -1;
  unmark(w);
  oct_http_timers_remove(&server->timers, &w->timer);
  count_address(server, w->address, -1);
  g_queue_unlink(&server->all, &w->in_all);
  g_queue_push_tail_link(&server->closed, &w->in_all);
}

static void
bury(oct_http_server *server) {
  for (GList *node; (node = g_queue_pop_head_link(&server->closed)) != NULL;) {
    wire *w = node->data;
    oct_http_connection_clear(&w->x);
    oct_budget_release(server->shared.config.budget, w);
  }
}

/* --- connections ------------------------------------------------------------------------------ */

static void
send_pending(wire *w) {
  oct_http_slice pending;
  w->blocked = FALSE;
  while ((pending = oct_http_connection_pending(&w->x)).size > 0) {
    ssize_t n = send(w->fd, pending.bytes, pending.size, MSG_NOSIGNAL);
    if (n > 0) {
      oct_http_connection_sent(&w->x, (gsize)n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      w->blocked = TRUE;
      return;
    } else if (n == 0 || errno != EINTR) {
      oct_http_connection_broken(&w->x);
      return;
    }
  }
}

/* From within an answer: what fails here is seen again by the turn. */
static void
push(oct_http_exchange *x) {
  wire *w = wire_of(x);
  oct_http_slice pending = oct_http_connection_pending(x);
  ssize_t n = send(w->fd, pending.bytes, pending.size, MSG_NOSIGNAL);
  if (n > 0)
    oct_http_connection_sent(x, (gsize)n);
}

/* What epoll is to watch for. Pipelined bytes that have to wait are seen arriving (EPOLLET), since
 * too many of them would keep the client's end from being seen. */
static void
arm(wire *w) {
  guint32 wanted = w->blocked ? EPOLLOUT : 0;
  if (!w->x.half) {
    wanted |= EPOLLRDHUP | EPOLLIN;
    if (oct_http_connection_room(&w->x) == 0)
      wanted |= EPOLLET;
  }
  if (wanted == w->interest)
    return;
  w->interest = wanted;
  struct epoll_event event = {.events = wanted, .data.ptr = w};
  if (epoll_ctl(w->server->epoll, EPOLL_CTL_MOD, w->fd, &event) != 0)
    oct_http_connection_broken(&w->x);
}

static void
settle(wire *w) {
  unmark(w);
  if (w->x.phase != OCT_HTTP_OVER)
    send_pending(w);
  oct_http_connection_settle(&w->x);
  if (w->x.phase == OCT_HTTP_LINGERING && !w->shut) {
    w->shut = TRUE;
    (void)shutdown(w->fd, SHUT_WR);
  }
  if (w->x.phase != OCT_HTTP_OVER)
    arm(w);
  if (w->x.phase == OCT_HTTP_OVER) {
    close_wire(w);
    return;
  }
  if (!w->blocked && oct_http_connection_pending(&w->x).size > 0)
    mark(w);
  gint64 at = oct_http_connection_deadline(&w->x);
  if (at < w->timer.at_ns)
    oct_http_timers_set(&w->server->timers, &w->timer, at);
}

static void
read_wire(wire *w) {
  gsize room = oct_http_connection_room(&w->x);
  if (room == 0) {
    int unread = 0;
    if (ioctl(w->fd, FIONREAD, &unread) == 0 && unread > UNREAD_BYTES)
      oct_http_connection_broken(&w->x);
    return;
  }
  char *buffer = w->server->buffer;
  ssize_t n = recv(w->fd, buffer, MIN(room, READ_BYTES), 0);
  if (n > 0)
    oct_http_connection_receive(&w->x, buffer, (gsize)n);
  else if (n == 0)
    oct_http_connection_hung_up(&w->x);
  else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
    oct_http_connection_broken(&w->x);
}

static void
on_wire(wire *w, guint32 events) {
  if (w->fd < 0)
    return;
  /* A hang-up may be an end in order, of a client that has still to read what was sent. */
  if (events & EPOLLERR || (events & EPOLLHUP && w->x.half))
    oct_http_connection_broken(&w->x);
  else if (events & (EPOLLHUP | EPOLLRDHUP) && !w->x.half)
    oct_http_connection_hung_up(&w->x);
  else if (events & EPOLLIN)
    read_wire(w);
  mark(w);
}

/* --- arrivals --------------------------------------------------------------------------------- */

/* An answer that costs no memory, if the kernel takes it. Takes `fd`. */
static void
turn_away(oct_http_server *server, int fd) {
  static const char answer[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                               "Content-Length: 0\r\nConnection: close\r\n\r\n";
  server->shared.counts.turned_away++;
  (void)!send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  close(fd);
}

static wire *
new_wire(oct_http_server *server, int fd, const char *peer) {
  oct_budget *budget = server->shared.config.budget;
  if (!oct_http_timers_reserve(&server->timers, NULL))
    return NULL;
  wire *w = oct_budget_alloc(budget, 1, sizeof *w, NULL);
  if (w == NULL)
    return NULL;
  w->kind = WIRE;
  w->server = server;
  w->fd = fd;
  w->interest = EPOLLIN | EPOLLRDHUP;
  w->in_all.data = w->in_marked.data = w;
  struct epoll_event event = {.events = w->interest, .data.ptr = w};
  if (!oct_http_connection_init(&w->x, &server->shared, peer, NULL)) {
    oct_budget_release(budget, w);
    return NULL;
  }
  if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    oct_http_connection_clear(&w->x);
    oct_budget_release(budget, w);
    return NULL;
  }
  oct_http_timers_set(&server->timers, &w->timer, oct_http_connection_deadline(&w->x));
  return w;
}

/* What is counted as one client: an IPv4 address, or a network of 64 bits of IPv6. */
static guint64
client_of(const oct_http_address *address) {
  static const guint8 mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  guint64 client = 0;
  memcpy(&client, address->bytes, sizeof client);
  if (memcmp(address->bytes, mapped, sizeof mapped) == 0)
    memcpy(&client, address->bytes + 8, sizeof client);
  return client;
}

/* Takes `fd`. */
static void
welcome(oct_http_server *server, int fd, const struct sockaddr_storage *from) {
  const oct_http_server_limits *limits = &server->shared.config.limits;
  const int on = 1, send_buffer = SEND_BUFFER;
  char peer[OCT_HTTP_PEER_BYTES_MAX];
  oct_http_address address;
  oct_http_name_peer(from, peer, sizeof peer, &address);
  guint64 client = client_of(&address);
  gsize same = 0;
  if (server->addresses != NULL && client != 0)
    same = GPOINTER_TO_UINT(g_hash_table_lookup(server->addresses, &client));
  if (server->all.length >= limits->connections ||
      (server->addresses != NULL && same >= limits->connections_per_address)) {
    turn_away(server, fd);
    return;
  }
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
  if (from->ss_family != AF_UNIX)
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  wire *w = new_wire(server, fd, peer);
  if (w == NULL) {
    turn_away(server, fd);
    return;
  }
  w->address = client;
  count_address(server, client, 1);
  server->shared.counts.accepted++;
  g_queue_push_tail_link(&server->all, &w->in_all);
}

static void
watch_listener(oct_http_server *server, listener *at, gboolean accepting) {
  struct epoll_event event = {.events = accepting ? EPOLLIN : 0, .data.ptr = at};
  (void)epoll_ctl(server->epoll, EPOLL_CTL_MOD, at->fd, &event);
  at->resume_ns = accepting ? G_MAXINT64 : now(server) + PAUSE_NS;
}

/* There are no descriptors: the spare one makes room to take the connection and close it, since
 * one that stays in the queue would wake the loop for ever. FALSE, and errno, when there is none
 * (EAGAIN), or that does not work either. */
static gboolean
shed(oct_http_server *server, const listener *at) {
  if (server->spare < 0) {
    errno = EMFILE;
    return FALSE;
  }
  close(server->spare);
  int fd = accept4(at->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), why = errno;
  if (fd >= 0)
    turn_away(server, fd);
  server->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
  errno = why;
  return fd >= 0;
}

static void
on_listener(oct_http_server *server, listener *at) {
  for (int i = 0; i < ACCEPTS_MAX && at->fd >= 0; i++) {
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    int fd = accept4(at->fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      welcome(server, fd, &from);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (shed(server, at))
        continue;
      if (errno != EAGAIN)
        watch_listener(server, at, FALSE);
      return;
    } /* else the connection has failed before it was taken: the next one */
  }
}

static gboolean
add_listener(oct_http_server *server, int fd, const char *path, GError **error) {
  if (fd < 0)
    return FALSE;
  oct_assert(server->n_listeners < LISTENERS_MAX);
  listener *at = &server->listeners[server->n_listeners];
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = at};
  if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
    g_set_error(error, OCT_HTTP_ERROR, OCT_HTTP_ERROR_SOCKET, "cannot wait for connections: %s",
                g_strerror(errno));
    close(fd);
    return FALSE;
  }
  *at = (listener){LISTENER, fd, g_strdup(path), G_MAXINT64};
  server->n_listeners++;
  return TRUE;
}

gboolean
oct_http_server_listen(oct_http_server *server, const char *address, guint16 port, guint16 *bound,
                       GError **error) {
  return add_listener(server, oct_http_listen_tcp(address, port, bound, error), NULL, error);
}

gboolean
oct_http_server_listen_unix(oct_http_server *server, const char *path, GError **error) {
  return add_listener(server, oct_http_listen_unix(path, error), path, error);
}

void
oct_http_server_adopt(oct_http_server *server, int fd) {
  struct sockaddr_storage from = {0};
  socklen_t size = sizeof from;
  if (getpeername(fd, (struct sockaddr *)&from, &size) != 0 ||
      fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
    close(fd);
    return;
  }
  welcome(server, fd, &from);
}

/* --- life cycle ------------------------------------------------------------------------------- */

oct_http_server *
oct_http_server_new(const oct_http_server_config *config, GError **error) {
  oct_http_server *server = g_new0(oct_http_server, 1);
  server->shared.config = *config;
  server->shared.wake = wake;
  server->shared.push = push;
  server->timers.budget = config->budget;
  server->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
  server->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (config->limits.connections_per_address > 0)
    server->addresses = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
  if (server->epoll < 0 || server->spare < 0) {
    g_set_error(error, OCT_HTTP_ERROR, OCT_HTTP_ERROR_SOCKET, "cannot make descriptors: %s",
                g_strerror(errno));
    oct_http_server_free(server);
    return NULL;
  }
  return server;
}

static void
stop_listening(oct_http_server *server) {
  for (guint i = 0; i < server->n_listeners; i++) {
    listener *at = &server->listeners[i];
    if (at->fd < 0)
      continue;
    close(at->fd);
    at->fd = -1;
    at->resume_ns = G_MAXINT64;
    if (at->path != NULL)
      (void)unlink(at->path);
    g_clear_pointer(&at->path, g_free);
  }
}

void
oct_http_server_free(oct_http_server *server) {
  if (server == NULL)
    return;
  oct_http_server_abort(server);
  stop_listening(server);
  oct_http_timers_clear(&server->timers);
  if (server->epoll >= 0)
    close(server->epoll);
  if (server->spare >= 0)
    close(server->spare);
  g_clear_pointer(&server->addresses, g_hash_table_unref);
  g_free(server);
}

void
oct_http_server_drain(oct_http_server *server) {
  server->shared.draining = TRUE;
  stop_listening(server);
  for (GList *node = server->all.head; node != NULL; node = node->next)
    mark(node->data);
}

void
oct_http_server_abort(oct_http_server *server) {
  oct_assert(!server->turning);
  server->turning = TRUE;
  for (GList *node; (node = server->all.head) != NULL;) {
    wire *w = node->data;
    oct_http_connection_abort(&w->x);
    close_wire(w);
  }
  bury(server);
  server->turning = FALSE;
}

/* --- loop ------------------------------------------------------------------------------------- */

int
oct_http_server_fd(const oct_http_server *server) {
  return server->epoll;
}

static void
expire_due(oct_http_server *server) {
  gint64 at = now(server);
  for (oct_http_timer *timer;
       (timer = oct_http_timers_first(&server->timers)) != NULL && timer->at_ns <= at;) {
    wire *w = (wire *)((char *)timer - G_STRUCT_OFFSET(wire, timer));
    oct_http_connection_expire(&w->x, at);
    oct_http_timers_set(&server->timers, timer, oct_http_connection_deadline(&w->x));
    mark(w);
  }
  for (guint i = 0; i < server->n_listeners; i++)
    if (server->listeners[i].resume_ns <= at)
      watch_listener(server, &server->listeners[i], TRUE);
}

void
oct_http_server_turn(oct_http_server *server) {
  struct epoll_event events[EVENTS_MAX];
  oct_assert(!server->turning);
  server->turning = TRUE;
  int n = epoll_wait(server->epoll, events, EVENTS_MAX, 0);
  for (int i = 0; i < n; i++) {
    source_kind *source = events[i].data.ptr;
    if (*source == WIRE)
      on_wire(events[i].data.ptr, events[i].events);
    else
      on_listener(server, events[i].data.ptr);
  }
  expire_due(server);
  for (guint rest = server->marked.length; rest > 0 && server->marked.length > 0; rest--)
    settle(g_queue_peek_head(&server->marked));
  bury(server);
  server->turning = FALSE;
}

gint64
oct_http_server_deadline(const oct_http_server *server) {
  gint64 at = G_MAXINT64;
  if (server->marked.length > 0)
    return now(server);
  const oct_http_timer *first = oct_http_timers_first(&server->timers);
  if (first != NULL)
    at = first->at_ns;
  for (guint i = 0; i < server->n_listeners; i++)
    at = MIN(at, server->listeners[i].resume_ns);
  return at;
}

/* --- exchanges -------------------------------------------------------------------------------- */

const oct_http_request *
oct_http_exchange_request(const oct_http_exchange *x) {
  return oct_http_parser_request(x->parser);
}

const char *
oct_http_exchange_id(const oct_http_exchange *x) {
  return x->id;
}

const char *
oct_http_exchange_peer(const oct_http_exchange *x) {
  return x->peer;
}

gint64
oct_http_exchange_started_ns(const oct_http_exchange *x) {
  return x->started_ns;
}

void
oct_http_exchange_set_user(oct_http_exchange *x, void *user) {
  x->user = user;
}

void *
oct_http_exchange_user(const oct_http_exchange *x) {
  return x->user;
}

oct_http_counts
oct_http_server_counts(const oct_http_server *server) {
  return server->shared.counts;
}
