/* Golden files of tests/golden/text, and small helpers of the text tests. */
#ifndef OCT_TESTS_TEXT_GOLDEN_H
#define OCT_TESTS_TEXT_GOLDEN_H

#include "engine/text/tokenizer.h"

/* The content of tests/golden/text/NAME, NUL-terminated, owned; fails the test when it is absent.
 */
char *text_golden(const char *name, gsize *size);
/* Its lines (no newline), NULL-terminated, owned: g_strfreev(). The last is not empty. */
char **text_golden_lines(const char *name);
/* corpus.hex: a text a line. */
GPtrArray *text_corpus(void); /* of GBytes */
/* The tokenizer of vocab/NAME.{json,gguf}, or kimi.tiktoken. */
oct_tokenizer *text_tokenizer(const char *name);
/* "1 2 3" */
char *text_ids(const GArray *ids);
/* The ids of a text, from outside. */
GArray *text_encode(const oct_tokenizer *tokenizer, const void *text, gsize size);
/* SmolLM2's file by OCT_SMOLLM2; NULL, and the test skipped, when that is not set. */
const char *text_smollm2(void);

#endif
