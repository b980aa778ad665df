/* The API on the real service and a world in virtual time, over sockets: all requests at once. */
#ifndef OCT_TESTS_API_MOCK_FRONT_H
#define OCT_TESTS_API_MOCK_FRONT_H

#include "engine/api/api.h"
#include "tests/engine/api/reply.h"
#include "tests/engine/serve/serve-rig.h"

#define FRONT_ASKS_MAX 64

typedef struct front_ask {
  int fd;
  GString *got;
  rig_reply reply;
  gboolean done;
} front_ask;

typedef struct front {
  oct_budget *budget;
  oct_chat_renderer *renderer;
  oct_http_server *server;
  oct_api *api;
  oct_time now, abort_ns; /* when the service gives up what is left; 0: never */
  const char *const *paths, *const *bodies, *chat;
  guint n;
  front_ask asks[FRONT_ASKS_MAX];
} front;

/* Sends bodies[i], with ' for ", to paths[i], and runs until each is answered. Takes the world. The
 * answers are front->asks[i].reply. `chat`: a template's family, NULL: the tokenizer's own. */
void front_run(front *front, oct_world *world, const char *const *paths, const char *const *bodies,
               guint n, const char *chat, oct_time abort_ns);
void front_clear(front *front);
/* The data of a stream's frames that have any: events too. */
json_t *front_frames(const char *body);

#endif
