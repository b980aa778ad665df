/* From what `octet serve` is asked for to what can serve it: the model's files, its tokenizer and
 * template, the engines' configuration, and the world that they run in. */
#ifndef OCT_CLI_SERVE_MODEL_H
#define OCT_CLI_SERVE_MODEL_H

#include "cli/serve-options.h"
#include "engine/api/api.h"

/* A zoo name that stands for the model that mock does not have. */
#define OCT_SERVE_MOCK_MODEL "smollm2-135m"

typedef struct oct_serve_model {
  char *name; /* as asked for; "mock" without */
  char *path; /* a file, a folder, or a name of the zoo */
  char *root; /* for /v1/models: the path, or the name of the zoo */
  gboolean in_zoo;
  char *draft_path; /* of the draft model, as `path`; NULL without one */
  gboolean seeded;  /* --seed was given */
  oct_setup setup;
  gboolean has_setup;
  char *world_text; /* what the world is made from, for the log */
  oct_world *world;
  gboolean imitates;  /* the world needs no weights, and makes its tokens up */
  gboolean on_gpus;   /* of this machine */
  gboolean on_thread; /* no world yet: SimGrid's is made from world_text on the engines' thread */
  oct_tokenizer *tokenizer;    /* NULL: token ids only */
  gboolean bytes;              /* each byte is a token: the model has no tokenizer */
  oct_chat_renderer *renderer; /* NULL: no chat, and no_chat says why */
  char *no_chat;
  oct_parse_family family;
  oct_api_pooling pooling;
} oct_serve_model;

/* What takes time is told, as "tokenizer" and what came of it. */
typedef void (*oct_serve_told)(void *user, const char *phase, const char *what);

/* FALSE with *error; clear in any case. */
gboolean oct_serve_model_open(oct_serve_model *model, const oct_serve_options *options,
                              oct_serve_told told, void *user,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_serve_model_clear(oct_serve_model *model);

#endif
