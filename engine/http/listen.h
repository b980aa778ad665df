/* Sockets that listen, and the names of peers. Internal to engine/http. */
#ifndef OCT_HTTP_LISTEN_H
#define OCT_HTTP_LISTEN_H

#include <sys/socket.h>

#include <glib.h>

/* Who has connected: 16 bytes of an IPv6 address (IPv4: mapped), zeros for a Unix socket. */
typedef struct oct_http_address {
  guint8 bytes[16];
} oct_http_address;

/* A descriptor that listens without blocking, -1 with *error; the rules are in
 * engine/http/server.h. */
int oct_http_listen_tcp(const char *address, guint16 port, guint16 *bound, GError **error);
int oct_http_listen_unix(const char *path, GError **error);

/* "127.0.0.1:40000", "[::1]:40000" or "unix" into `text`. */
void oct_http_name_peer(const struct sockaddr_storage *from, char *text, gsize size,
                        oct_http_address *address);

#endif
