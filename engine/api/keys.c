#include "engine/api/keys.h"

#include <string.h>

#define DIGEST_BYTES 32

struct oct_api_keys {
  guint n;
  guint8 digests[][DIGEST_BYTES];
};

static void
digest_of(const char *key, gsize size, guint8 *digest) {
  gsize n = DIGEST_BYTES;
  g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
  g_checksum_update(sum, (const guchar *)key, (gssize)size);
  g_checksum_get_digest(sum, digest, &n);
}

oct_api_keys *
oct_api_keys_new(const char *const *list, guint n) {
  oct_api_keys *keys = g_malloc0(sizeof *keys + (gsize)n * DIGEST_BYTES);
  keys->n = n;
  for (guint i = 0; i < n; i++)
    digest_of(list[i], strlen(list[i]), keys->digests[i]);
  return keys;
}

void
oct_api_keys_free(oct_api_keys *keys) {
  g_free(keys);
}

gboolean
oct_api_keys_needed(const oct_api_keys *keys) {
  return keys->n > 0;
}

/* Looks at every byte of every key. */
static gboolean
one_of(const oct_api_keys *keys, const char *key, gsize size) {
  guint8 digest[DIGEST_BYTES];
  guint found = 0;
  digest_of(key, size, digest);
  for (guint i = 0; i < keys->n; i++) {
    guint differs = 0;
    for (guint b = 0; b < DIGEST_BYTES; b++)
      differs |= (guint)(digest[b] ^ keys->digests[i][b]);
    found |= (differs - 1) >> 31; /* 1 when differs is 0 */
  }
  return found != 0;
}

gboolean
oct_api_keys_accept(const oct_api_keys *keys, const oct_http_request *request) {
  static const char scheme[] = "bearer ";
  const gsize n = sizeof scheme - 1;
  if (keys->n == 0)
    return TRUE;
  const oct_http_slice *header = oct_http_request_header(request, "authorization");
  if (header != NULL && header->size > n && header->size <= n + OCT_API_KEY_MAX &&
      g_ascii_strncasecmp(header->bytes, scheme, n) == 0 &&
      one_of(keys, header->bytes + n, header->size - n))
    return TRUE;
  header = oct_http_request_header(request, "x-api-key");
  return header != NULL && header->size <= OCT_API_KEY_MAX &&
         one_of(keys, header->bytes, header->size);
}

/* --- paths ------------------------------------------------------------------------------------ */

/* The parser has seen to it that two hexadecimal digits follow a '%'. */
static char
decode(const char *at) {
  return (char)(g_ascii_xdigit_value(at[1]) << 4 | g_ascii_xdigit_value(at[2]));
}

/* Ends the segment that begins at `begin`: . and .. are taken out again. */
static void
end_segment(GString *out, gsize begin) {
  const char *segment = out->str + begin;
  if (g_str_equal(segment, "."))
    g_string_truncate(out, begin);
  else if (g_str_equal(segment, "..")) {
    g_string_truncate(out, begin > 0 ? begin - 1 : 0);
    char *slash = strrchr(out->str, '/');
    g_string_truncate(out, slash != NULL ? (gsize)(slash - out->str) + 1 : 0);
  }
}

char *
oct_api_path(oct_http_slice path) {
  g_autoptr(GString) out = g_string_new(NULL);
  gsize begin = 0; /* of the segment */
  if (path.size > 3 * OCT_API_PATH_MAX)
    return NULL;
  for (gsize i = 0; i < path.size; i++) {
    char c = path.bytes[i];
    if (c == '%') {
      c = decode(path.bytes + i);
      i += 2;
    }
    if ((guchar)c < 0x20 || c == 0x7f)
      return NULL;
    if (c != '/') {
      g_string_append_c(out, c);
      continue;
    }
    end_segment(out, begin);
    if (out->len == 0 || out->str[out->len - 1] != '/')
      g_string_append_c(out, '/');
    begin = out->len;
  }
  end_segment(out, begin);
  if (out->len > 1 && out->str[out->len - 1] == '/')
    g_string_truncate(out, out->len - 1);
  if (out->len == 0)
    g_string_append_c(out, '/');
  if (out->len > OCT_API_PATH_MAX || !g_utf8_validate(out->str, (gssize)out->len, NULL))
    return NULL;
  return g_string_free(g_steal_pointer(&out), FALSE);
}
