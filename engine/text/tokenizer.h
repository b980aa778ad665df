/* Tokenizers: text to token ids and back, whatever the model's files are.
 *
 * Read from a Hugging Face tokenizer.json, from the metadata of a GGUF file, or from a tiktoken
 * file (tokenizer.h: one interface; a reader each). Constant once made: any thread may encode and
 * decode.
 *
 * Text is bytes. What is not UTF-8 is encoded byte by byte where the vocabulary can, so that
 * decoding gives the same bytes back.
 *
 * Who may write control tokens: text from outside never becomes one. "<|im_end|>" in a user's
 * message is ordinary text, spelled with ordinary tokens. Only text that is marked as the
 * template's own is searched for added tokens (special or not). The exception are added tokens of
 * white space alone, which are ordinary text too.
 */
#ifndef OCT_TEXT_TOKENIZER_H
#define OCT_TEXT_TOKENIZER_H

#include <glib.h>

#include "engine/model/files/tensors.h"
#include "engine/text/vocab.h"

/* Limits. */
#define OCT_TEXT_BYTES_MAX            (256u << 20) /* of a text to encode */
#define OCT_TOKENIZER_FILE_MAX        (256u << 20) /* bytes of a tokenizer's file */
#define OCT_TOKENIZER_ADDED_BYTES_MAX 4096u        /* of an added token */

typedef struct oct_tokenizer oct_tokenizer;

/* --- life cycle ------------------------------------------------------------------------------ */

/* A folder with tokenizer.json or tiktoken.model (and tokenizer_config.json, chat_template.jinja,
 * generation_config.json, each optional), or a .gguf or tokenizer.json file. Blocks on the disk. */
oct_tokenizer *oct_tokenizer_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* From tokenizer.ggml.* of a GGUF checkpoint, which may be closed afterwards. */
oct_tokenizer *oct_tokenizer_from_checkpoint(const oct_checkpoint *checkpoint,
                                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
oct_tokenizer *oct_tokenizer_from_json(const char *json, gsize size,
                                       GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What a tiktoken file does not say. `names[i]` is the text of special id n_base + i; NULL means
 * <|reserved_token_N|> with N the id. */
typedef struct oct_tiktoken_spec {
  const char *pre;          /* as for oct_splitter_add_named(): "kimi-k2" */
  guint32 n_special;        /* ids after the base ranks; 256 for Kimi */
  const char *const *names; /* n_special of them; NULL: all reserved */
  /* Kimi's own code cuts a text before it is encoded: 0 means no cut. */
  guint32 slice_chars_max; /* into slices of so many characters (400,000) */
  guint32 run_chars_max;   /* and within runs of white space, or of anything else (25,000) */
} oct_tiktoken_spec;
oct_tokenizer *oct_tokenizer_from_tiktoken(const char *file, gsize size,
                                           const oct_tiktoken_spec *spec,
                                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Adds what a tokenizer_config.json says: the roles of special tokens, the chat template. */
gboolean oct_tokenizer_read_config(oct_tokenizer *tokenizer, const char *json, gsize size,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_tokenizer_free(oct_tokenizer *tokenizer); /* accepts NULL */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(oct_tokenizer, oct_tokenizer_free)

/* --- use ------------------------------------------------------------------------------------- */

/* What each byte of a text is. */
#define OCT_MARK_OUTSIDE 1u /* from a client, a tool or a model: never part of a control token */
#define OCT_MARK_CUT     2u /* a piece begins here: nothing merges across */

/* Appends the ids (guint32) of a text from outside to `ids`. FALSE with *error: LIMIT (too long, or
 * a run that cannot be cut, or a pattern's work), then `ids` is as it was. */
gboolean oct_tokenizer_encode(const oct_tokenizer *tokenizer, const char *text, gsize size,
                              GArray *ids, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same with a mark for each byte. Where no byte of an added token is marked OUTSIDE, it becomes
 * its id. `marks` NULL: all is the template's own. */
gboolean oct_tokenizer_encode_marked(const oct_tokenizer *tokenizer, const char *text,
                                     const guint8 *marks, gsize size, GArray *ids,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The ids that the model's own tokenizer puts before and after a plain prompt (BOS); borrowed. */
const guint32 *oct_tokenizer_before(const oct_tokenizer *tokenizer, guint *n);
const guint32 *oct_tokenizer_after(const oct_tokenizer *tokenizer, guint *n);

/* The bytes of a token, borrowed for the tokenizer's life; empty for an id that no token has. Half
 * characters are possible: engine/text/detokenizer.h puts them together. */
oct_text oct_tokenizer_bytes(const oct_tokenizer *tokenizer, guint32 id);

/* --- inspect --------------------------------------------------------------------------------- */

guint32 oct_tokenizer_n_tokens(const oct_tokenizer *tokenizer); /* ids are below this */
const oct_vocab *oct_tokenizer_vocab(const oct_tokenizer *tokenizer);
/* TRUE for control tokens, which skip_special_tokens leaves out of a text. */
gboolean oct_tokenizer_is_control(const oct_tokenizer *tokenizer, guint32 id);
/* The added token with this text, else OCT_NO_TOKEN. */
guint32 oct_tokenizer_find_added(const oct_tokenizer *tokenizer, const char *text);
/* TRUE when a text that begins a sequence has its first token's leading space taken off again. */
gboolean oct_tokenizer_strips_space(const oct_tokenizer *tokenizer);

typedef enum oct_token_role {
  OCT_ROLE_BOS,
  OCT_ROLE_EOS,
  OCT_ROLE_EOT, /* end of a turn, where it differs from EOS */
  OCT_ROLE_PAD,
  OCT_ROLE_UNKNOWN,
  OCT_ROLE_COUNT
} oct_token_role;
/* OCT_NO_TOKEN when the model has none. */
guint32 oct_tokenizer_role(const oct_tokenizer *tokenizer, oct_token_role role);
/* Every id that ends a generation: EOS, EOT, and generation_config.json's; ascending, borrowed. */
const guint32 *oct_tokenizer_ends(const oct_tokenizer *tokenizer, guint *n);
/* The model's own template, NULL when it has none; borrowed. */
const char *oct_tokenizer_chat_template(const oct_tokenizer *tokenizer);
/* The same for "tool_use" and its kin, when a model has several; NULL when there is none. */
const char *oct_tokenizer_named_template(const oct_tokenizer *tokenizer, const char *name);

#endif
