#include "engine/http/head.h"

#include <string.h>

#define REFUSE(status, reason)                                                                     \
  (oct_http_fault) {                                                                               \
    (status), (reason)                                                                             \
  }
static const oct_http_fault none = {0, NULL};

static const struct {
  const char *name;
  oct_http_method method;
} methods[] = {
    {"GET", OCT_HTTP_GET},         {"HEAD", OCT_HTTP_HEAD},   {"POST", OCT_HTTP_POST},
    {"PUT", OCT_HTTP_PUT},         {"PATCH", OCT_HTTP_PATCH}, {"DELETE", OCT_HTTP_DELETE},
    {"OPTIONS", OCT_HTTP_OPTIONS},
};

gboolean
oct_http_is_token(char c) {
  return g_ascii_isalnum(c) || (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static gboolean
is_blank(char c) {
  return c == ' ' || c == '\t';
}

/* Case counts, unlike in oct_http_slice_is(). */
static gboolean
equals(oct_http_slice slice, const char *text) {
  gsize n = strlen(text);
  return slice.size == n && memcmp(slice.bytes, text, n) == 0;
}

static oct_http_slice
trim(oct_http_slice s) {
  while (s.size > 0 && is_blank(s.bytes[0])) {
    s.bytes++;
    s.size--;
  }
  while (s.size > 0 && is_blank(s.bytes[s.size - 1]))
    s.size--;
  return s;
}

/* What stands before the first `c`, or all; *rest is what stands behind it, NULL without it. */
static oct_http_slice
cut(oct_http_slice s, char c, oct_http_slice *rest) {
  const char *at = s.size > 0 ? memchr(s.bytes, c, s.size) : NULL;
  if (at == NULL) {
    *rest = (oct_http_slice){NULL, 0};
    return s;
  }
  gsize n = (gsize)(at - s.bytes);
  *rest = (oct_http_slice){at + 1, s.size - n - 1};
  return (oct_http_slice){s.bytes, n};
}

static oct_http_fault
read_method(oct_http_slice word, oct_http_method *out) {
  for (gsize i = 0; i < word.size; i++)
    if (!oct_http_is_token(word.bytes[i]))
      return REFUSE(400, "the method is not a token");
  if (word.size == 0)
    return REFUSE(400, "the request line has no method");
  if (equals(word, "CONNECT"))
    return REFUSE(400, "this is no proxy");
  for (gsize i = 0; i < G_N_ELEMENTS(methods); i++)
    if (equals(word, methods[i].name)) {
      *out = methods[i].method;
      return none;
    }
  return REFUSE(501, "the method is not implemented");
}

static oct_http_fault
read_version(oct_http_slice word, guint *minor) {
  if (word.size != 8 || memcmp(word.bytes, "HTTP/", 5) != 0 || !g_ascii_isdigit(word.bytes[5]) ||
      word.bytes[6] != '.' || !g_ascii_isdigit(word.bytes[7]))
    return REFUSE(400, "the request line does not end in an HTTP version");
  if (word.bytes[5] != '1' || word.bytes[7] > '1')
    return REFUSE(505, "the HTTP version is neither 1.0 nor 1.1");
  *minor = (guint)(word.bytes[7] - '0');
  return none;
}

/* '#' begins what clients keep to themselves, and '\' is '/' to some. */
static gboolean
is_target(oct_http_slice target) {
  for (gsize i = 0; i < target.size; i++) {
    char c = target.bytes[i];
    if (!g_ascii_isgraph(c) || c == '#' || c == '\\')
      return FALSE;
    if (c == '%' && (target.size - i < 3 || !g_ascii_isxdigit(target.bytes[i + 1]) ||
                     !g_ascii_isxdigit(target.bytes[i + 2])))
      return FALSE;
  }
  return target.size > 0;
}

/* http:// or https://, if it is there, and the authority behind it. */
static oct_http_fault
take_authority(oct_http_slice *target, oct_http_slice *authority) {
  gsize scheme = 0;
  if (target->size >= 7 && g_ascii_strncasecmp(target->bytes, "http://", 7) == 0)
    scheme = 7;
  else if (target->size >= 8 && g_ascii_strncasecmp(target->bytes, "https://", 8) == 0)
    scheme = 8;
  *authority = (oct_http_slice){NULL, 0};
  if (scheme == 0)
    return none;
  gsize end = scheme;
  while (end < target->size && target->bytes[end] != '/' && target->bytes[end] != '?')
    end++;
  *authority = (oct_http_slice){target->bytes + scheme, end - scheme};
  *target = (oct_http_slice){target->bytes + end, target->size - end};
  if (!oct_http_host_is_valid(*authority))
    return REFUSE(400, "the target names no valid host");
  return none;
}

oct_http_fault
oct_http_read_request_line(oct_http_slice line, oct_http_request_line *out) {
  oct_http_slice target, version;
  oct_http_slice method = cut(line, ' ', &target);
  target = cut(target, ' ', &version);
  oct_http_fault fault = read_version(version, &out->minor);
  if (fault.status == 0)
    fault = read_method(method, &out->method);
  if (fault.status != 0)
    return fault;
  if (!is_target(target))
    return REFUSE(400, "the target is empty or has a character that must be encoded");
  fault = take_authority(&target, &out->authority);
  if (fault.status != 0)
    return fault;
  out->path = cut(target, '?', &out->query);
  if (out->path.size == 0 && out->authority.bytes != NULL) {
    out->path = (oct_http_slice){NULL, 0};
    return none;
  }
  gboolean star = equals(out->path, "*") && out->query.bytes == NULL &&
                  out->authority.bytes == NULL && out->method == OCT_HTTP_OPTIONS;
  if (!star && (out->path.size == 0 || out->path.bytes[0] != '/'))
    return REFUSE(400, "the target does not begin with a slash");
  return none;
}

oct_http_fault
oct_http_read_header(oct_http_slice line, oct_http_header *out) {
  if (line.size > 0 && is_blank(line.bytes[0]))
    return REFUSE(400, "a header line begins with a space");
  out->name = cut(line, ':', &out->value);
  if (out->value.bytes == NULL)
    return REFUSE(400, "a header line has no colon");
  if (out->name.size == 0)
    return REFUSE(400, "a header has no name");
  for (gsize i = 0; i < out->name.size; i++)
    if (!oct_http_is_token(out->name.bytes[i]))
      return REFUSE(400, "a header's name is not a token");
  out->value = trim(out->value);
  return none;
}

static gboolean
is_port(oct_http_slice port) {
  guint value = 0;
  for (gsize i = 0; i < port.size; i++) {
    if (!g_ascii_isdigit(port.bytes[i]) || i == 5)
      return FALSE;
    value = 10 * value + (guint)(port.bytes[i] - '0');
  }
  return port.size > 0 && value <= 65535;
}

gboolean
oct_http_host_is_valid(oct_http_slice host) {
  gboolean six = host.size > 0 && host.bytes[0] == '[';
  gsize end = six ? 1 : 0, colons = 0;
  while (end < host.size) {
    char c = host.bytes[end];
    if (six ? !g_ascii_isxdigit(c) && c != ':' && c != '.'
            : !g_ascii_isalnum(c) && c != '.' && c != '-' && c != '_')
      break;
    colons += c == ':';
    end++;
  }
  gsize name = end - (six ? 1 : 0);
  if (six) {
    if (end == host.size || host.bytes[end] != ']' || colons < 2 || name > 45)
      return FALSE;
    end++;
  }
  if (name == 0 || name > 255)
    return FALSE;
  if (end == host.size)
    return TRUE;
  return host.bytes[end] == ':' &&
         is_port((oct_http_slice){host.bytes + end + 1, host.size - end - 1});
}

/* The host without its port. */
static oct_http_slice
name_of(oct_http_slice host) {
  const char *colon = host.bytes[0] == '[' ? NULL : memchr(host.bytes, ':', host.size);
  return colon != NULL ? (oct_http_slice){host.bytes, (gsize)(colon - host.bytes)} : host;
}

gboolean
oct_http_host_is_literal(oct_http_slice host) {
  static const char local[] = ".localhost";
  oct_http_slice name = name_of(host);
  gsize n = sizeof local - 1, digits = 0;
  for (gsize i = 0; i < name.size; i++)
    digits += g_ascii_isdigit(name.bytes[i]) || name.bytes[i] == '.';
  return host.bytes[0] == '[' || digits == name.size || oct_http_slice_is(name, local + 1) ||
         (name.size > n && g_ascii_strncasecmp(name.bytes + name.size - n, local, n) == 0);
}

gboolean
oct_http_host_is_named(oct_http_slice host, const char *name) {
  return oct_http_slice_is(name_of(host), name);
}

gboolean
oct_http_read_length(oct_http_slice value, gsize *out) {
  gsize length = 0;
  for (gsize i = 0; i < value.size; i++) {
    if (!g_ascii_isdigit(value.bytes[i]) || length > (G_MAXSSIZE - 9) / 10)
      return FALSE;
    length = 10 * length + (gsize)(value.bytes[i] - '0');
  }
  *out = length;
  return value.size > 0;
}

gboolean
oct_http_list_has(oct_http_slice list, const char *word) {
  while (list.bytes != NULL)
    if (oct_http_slice_is(trim(cut(list, ',', &list)), word))
      return TRUE;
  return FALSE;
}
