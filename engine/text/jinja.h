/* Chat templates in the subset of Jinja that published models use.
 *
 * The dialect is that of transformers: a sandbox with trim_blocks and lstrip_blocks, the functions
 * raise_exception, strftime_now, range, namespace and dict, a tojson that does not escape HTML,
 * break and continue. What is outside the subset is refused when the template is compiled, or,
 * where it shows only then, when it is rendered, with its name and line.
 *
 * Rendering is bounded: fuel (a unit for each step, and for each 64 bytes that a step copies),
 * memory, output, nesting. It has no effect but its output, and knows who wrote each byte of it:
 * strings from the messages stay marked through every filter and slice.
 *
 * A compiled template is constant: any thread may render it.
 */
#ifndef OCT_TEXT_JINJA_H
#define OCT_TEXT_JINJA_H

#include <glib.h>
#include <jansson.h>

#include "engine/text/prompt.h"

/* Limits. */
#define OCT_TEMPLATE_BYTES_MAX  (1u << 20)
#define OCT_TEMPLATE_NODES_MAX  65536u
#define OCT_TEMPLATE_DEPTH_MAX  64u  /* of blocks and expressions in the source */
#define OCT_TEMPLATE_CALLS_MAX  400u /* of evaluations inside each other */
#define OCT_TEMPLATE_FUEL       20000000u
#define OCT_TEMPLATE_MEMORY_MAX (256u << 20)
#define OCT_TEMPLATE_OUTPUT_MAX (64u << 20)

typedef struct oct_template oct_template;

/* Life cycle. NULL with *error: UNSUPPORTED names the construct and --chat-template, FORMAT says
 * what is wrong, LIMIT. */
oct_template *oct_template_new(const char *source, gsize size,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_template_free(oct_template *chat_template); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_template, oct_template_free)

typedef struct oct_template_input {
  const json_t *own;     /* variables whose strings are the model's: bos_token, options; or NULL */
  const json_t *outside; /* variables whose strings are a client's: messages, tools; or NULL */
  gint64 now_s;          /* seconds since 1970 for strftime_now, in UTC */
  guint32 fuel;          /* 0: OCT_TEMPLATE_FUEL */
} oct_template_input;

/* Appends to `prompt`. FALSE with *error: TEMPLATE (raise_exception, an error of the template on
 * these messages), LIMIT, UNSUPPORTED; the prompt then holds what was written. */
gboolean oct_template_render(const oct_template *chat_template, const oct_template_input *input,
                             oct_prompt *prompt, GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
