#include "traces/blocks.h"

#include "engine/base/assert.h"
#include "engine/base/rng.h"

/* Separate the two kinds of id, and both from ids of tokens. */
#define KNOWN_SALT   0x6b6e6f776e706167u
#define PRIVATE_SALT 0x7072697661746570u

/* The id of block k, and up to which token it is known. FALSE when it has none. */
static gboolean
block_of(const oct_trace_request *r, guint64 k, guint64 *id, guint64 *known_end) {
  guint64 size = r->block_size, output_from = r->input_tokens / size;
  guint64 total = (guint64)r->input_tokens + r->output_tokens;
  if (k >= output_from && k - output_from < r->n_output_hash_ids) {
    *id = r->output_hash_ids[k - output_from];
    *known_end = MIN((k + 1) * size, total);
    return TRUE;
  }
  if (k >= r->n_hash_ids)
    return FALSE;
  *id = r->hash_ids[k];
  *known_end = MIN((k + 1) * size, r->input_tokens);
  return TRUE;
}

guint64
oct_trace_known_tokens(const oct_trace_request *r) {
  if (r->block_size == 0)
    return 0;
  guint64 size = r->block_size, output_from = r->input_tokens / size;
  guint64 total = (guint64)r->input_tokens + r->output_tokens;
  guint64 known = MIN(r->n_hash_ids * size, r->input_tokens);
  /* The output's names count only when nothing before them is private. */
  if (r->n_output_hash_ids > 0 && r->n_hash_ids >= output_from)
    known = MAX(known, MIN((output_from + r->n_output_hash_ids) * size, total));
  return known;
}

guint64
oct_trace_known_pages(const oct_trace_request *r, guint32 page_tokens) {
  oct_assert(page_tokens >= 1);
  return oct_trace_known_tokens(r) / page_tokens;
}

static guint64
mix(guint64 hash, guint64 value) {
  return oct_mix64(hash ^ oct_mix64(value));
}

static guint64
private_id(const oct_trace_request *r, guint64 page) {
  return mix(mix(PRIVATE_SALT, r->index), page);
}

guint64
oct_trace_page_id(const oct_trace_request *r, guint64 page, guint32 page_tokens) {
  oct_assert(page_tokens >= 1);
  guint64 from = page * page_tokens, end = from + page_tokens, size = r->block_size;
  if (size == 0)
    return private_id(r, page);
  guint64 hash = KNOWN_SALT;
  while (from < end) {
    guint64 k = from / size, id, known_end;
    guint64 to = MIN(end, (k + 1) * size);
    if (!block_of(r, k, &id, &known_end) || to > known_end)
      return private_id(r, page);
    hash = mix(mix(mix(hash, id), from - k * size), to - k * size);
    from = to;
  }
  return hash;
}

void
oct_trace_page_ids(const oct_trace_request *r, guint64 first, guint64 n, guint32 page_tokens,
                   guint64 *out) {
  for (guint64 i = 0; i < n; i++)
    out[i] = oct_trace_page_id(r, first + i, page_tokens);
}
