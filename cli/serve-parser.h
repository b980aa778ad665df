/* --tool-call-parser and --reasoning-parser: names of vLLM's parsers, and what does the same here.
 */
#ifndef OCT_CLI_SERVE_PARSER_H
#define OCT_CLI_SERVE_PARSER_H

#include "engine/text/parse.h"

/* Writes over *family, which is that of the chat template, what the names ask for; NULL: not given.
 * FALSE with *error: a name that is not known, or two that do not go together. */
gboolean oct_serve_parser_choose(const char *tools, const char *reasoning, oct_parse_family *family,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
