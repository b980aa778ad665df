#include "engine/http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/http/server.h"

#define BACKLOG 1024

G_DEFINE_QUARK(oct - http - error - quark, oct_http_error)

/* Takes `fd` (may be -1); errno says why. */
static int
fail(int fd, const char *name, const char *what, GError **error) {
  int why = errno;
  if (fd >= 0)
    close(fd);
  g_set_error(error, OCT_HTTP_ERROR, OCT_HTTP_ERROR_ADDRESS, "%s: cannot %s: %s", name, what,
              g_strerror(why));
  return -1;
}

/* --- addresses of the network ----------------------------------------------------------------- */

typedef union endpoint {
  struct sockaddr any;
  struct sockaddr_in four;
  struct sockaddr_in6 six;
} endpoint;

/* Returns the size of what it fills in, 0 for no address. */
static socklen_t
read_address(const char *address, guint16 port, endpoint *out) {
  memset(out, 0, sizeof *out);
  if (g_ascii_strcasecmp(address, "localhost") == 0)
    address = "127.0.0.1";
  if (inet_pton(AF_INET, address, &out->four.sin_addr) == 1) {
    out->four.sin_family = AF_INET;
    out->four.sin_port = htons(port);
    return sizeof out->four;
  }
  if (inet_pton(AF_INET6, address, &out->six.sin6_addr) == 1) {
    out->six.sin6_family = AF_INET6;
    out->six.sin6_port = htons(port);
    return sizeof out->six;
  }
  return 0;
}

int
oct_http_listen_tcp(const char *address, guint16 port, guint16 *bound, GError **error) {
  endpoint at;
  socklen_t size = read_address(address, port, &at);
  g_autofree char *name = g_strdup_printf("%s port %u", address, port);
  const int on = 1, off = 0;
  if (size == 0) {
    g_set_error(error, OCT_HTTP_ERROR, OCT_HTTP_ERROR_ADDRESS,
                "%s: neither an IPv4 nor an IPv6 address, nor localhost: names are not looked up",
                address);
    return -1;
  }
  int fd = socket(at.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return fail(fd, name, "make a socket", error);
  /* A restart does not wait for the last run's connections; "::" takes IPv4 clients too. */
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      (at.any.sa_family == AF_INET6 &&
       setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0))
    return fail(fd, name, "set the socket's options", error);
  if (bind(fd, &at.any, size) != 0 || listen(fd, BACKLOG) != 0)
    return fail(fd, name, "listen", error);
  if (getsockname(fd, &at.any, &size) != 0)
    return fail(fd, name, "tell the port", error);
  if (bound != NULL)
    *bound = ntohs(at.any.sa_family == AF_INET ? at.four.sin_port : at.six.sin6_port);
  return fd;
}

/* --- Unix sockets ----------------------------------------------------------------------------- */

/* A socket file that nobody listens at is what a process that was killed has left. */
static gboolean
is_stale(const struct sockaddr_un *at) {
  struct stat info;
  if (lstat(at->sun_path, &info) != 0 || !S_ISSOCK(info.st_mode))
    return FALSE;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return FALSE;
  gboolean stale =
      connect(fd, (const struct sockaddr *)at, sizeof *at) != 0 && errno == ECONNREFUSED;
  close(fd);
  return stale;
}

int
oct_http_listen_unix(const char *path, GError **error) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof at.sun_path) {
    g_set_error(error, OCT_HTTP_ERROR, OCT_HTTP_ERROR_ADDRESS,
                "%s: %" G_GSIZE_FORMAT " bytes, a socket's path has at most %" G_GSIZE_FORMAT, path,
                strlen(path), sizeof at.sun_path - 1);
    return -1;
  }
  g_strlcpy(at.sun_path, path, sizeof at.sun_path);
  if (is_stale(&at) && unlink(path) != 0)
    return fail(-1, path, "remove the old socket", error);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return fail(fd, path, "make a socket", error);
  /* The mode is set before anybody can connect: nobody listens yet. */
  if (bind(fd, (const struct sockaddr *)&at, sizeof at) != 0 || chmod(path, 0600) != 0 ||
      listen(fd, BACKLOG) != 0)
    return fail(fd, path, "listen", error);
  return fd;
}

/* --- peers ------------------------------------------------------------------------------------ */

void
oct_http_name_peer(const struct sockaddr_storage *from, char *text, gsize size,
                   oct_http_address *address) {
  char name[INET6_ADDRSTRLEN] = "?";
  memset(address, 0, sizeof *address);
  if (from->ss_family == AF_INET) {
    const struct sockaddr_in *four = (const struct sockaddr_in *)from;
    inet_ntop(AF_INET, &four->sin_addr, name, sizeof name);
    address->bytes[10] = address->bytes[11] = 0xff;
    memcpy(address->bytes + 12, &four->sin_addr, 4);
    g_snprintf(text, size, "%s:%u", name, ntohs(four->sin_port));
  } else if (from->ss_family == AF_INET6) {
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)from;
    inet_ntop(AF_INET6, &six->sin6_addr, name, sizeof name);
    memcpy(address->bytes, &six->sin6_addr, 16);
    g_snprintf(text, size, "[%s]:%u", name, ntohs(six->sin6_port));
  } else {
    g_strlcpy(text, "unix", size);
  }
}
