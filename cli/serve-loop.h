/* The front's loop of `octet serve`: sockets, what the engines have done, signals; and the way out.
 *
 *   SERVING --signal--> LAME --grace--> DRAINING --all answered--> STOPPING --> exit
 *                                          \--time-out--> ABORTING --/
 *
 * LAME: /readyz says no, requests are still taken. DRAINING: nobody new; what is being answered
 * goes on. ABORTING: each stream is told. A second signal exits at once. */
#ifndef OCT_CLI_SERVE_LOOP_H
#define OCT_CLI_SERVE_LOOP_H

#include "engine/api/api.h"

/* All borrowed. */
typedef struct oct_serve_loop {
  oct_http_server *server;
  oct_service *service;
  guint32 n_replicas; /* of the service */
  oct_api *api;
  int notify_fd, signal_fd; /* an eventfd; a signalfd of SIGTERM and SIGINT */
  gint64 shutdown_ns, grace_ns;
  gint64 (*now_ns)(void *clock);
  const char *uds; /* removed at a second signal; NULL: none */
  /* A line for the operator; `ready` once, when requests are computed. */
  void (*say)(void *user, const char *line);
  void (*ready)(void *user);
  void (*flush)(void *user); /* before an exit at once: what was said last is to be seen */
  void *user;
} oct_serve_loop;

/* Serves until it is told to end. TRUE when every request that was taken has been answered. When it
 * returns, the service's threads have ended. */
gboolean oct_serve_loop_run(const oct_serve_loop *loop);

#endif
