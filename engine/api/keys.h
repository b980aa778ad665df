/* Who may use the server: API keys, and paths in one spelling before anybody looks at them.
 *
 * Keys are kept as SHA-256 and compared all, in constant time, whichever fits. Constant once made.
 */
#ifndef OCT_API_KEYS_H
#define OCT_API_KEYS_H

#include "engine/http/parser.h"

#define OCT_API_KEYS_MAX 1024u
#define OCT_API_KEY_MAX  4096u /* bytes of a key; longer ones fit none */
#define OCT_API_PATH_MAX 512u  /* bytes of a path that a route can have */

typedef struct oct_api_keys oct_api_keys;

/* Life cycle. `keys` are not kept. n 0: everybody may. */
oct_api_keys *oct_api_keys_new(const char *const *keys, guint n);
void oct_api_keys_free(oct_api_keys *keys); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_api_keys, oct_api_keys_free)
gboolean oct_api_keys_needed(const oct_api_keys *keys);

/* Whether a request brings one of the keys, in `Authorization: Bearer KEY` or in Anthropic's
 * `x-api-key: KEY`. */
gboolean oct_api_keys_accept(const oct_api_keys *keys, const oct_http_request *request);

/* A path with %XX decoded, once, runs of '/' as one, . and .. resolved, and without the last '/'.
 * Owned; NULL when it is no route's: too long, or with a control character or what is not UTF-8 in
 * it. Case counts. */
char *oct_api_path(oct_http_slice path);

#endif
