#include "traces/blocks.h"

#include "engine/base/assert.h"
#include "engine/base/rng.h"

/* Separate the two kinds of id, and both from ids of tokens. */
#define KNOWN_SALT   0x6b6e6f776e706167u
#define PRIVATE_SALT 0x7072697661746570u

/* The id of block k, which lies in the known prefix. The output's names go first: a partial last
 * block of the prompt is named again there, as the full block it becomes. */
static guint64
block_of(const oct_trace_request *r, guint64 k) {
  guint64 output_from = r->input_tokens / r->block_size;
  if (k >= output_from && k - output_from < r->n_output_hash_ids)
    return r->output_hash_ids[k - output_from];
  return r->hash_ids[k];
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

/* The id of known page `page` behind the page with id `before`. */
static guint64
known_id(const oct_trace_request *r, guint64 before, guint64 page, guint32 page_tokens) {
  guint64 from = page * page_tokens, end = from + page_tokens, size = r->block_size;
  guint64 hash = before;
  while (from < end) {
    guint64 k = from / size, to = MIN(end, (k + 1) * size);
    hash = mix(mix(mix(hash, block_of(r, k)), from - k * size), to - k * size);
    from = to;
  }
  return hash;
}

void
oct_trace_page_ids(const oct_trace_request *r, guint64 first, guint64 n, guint32 page_tokens,
                   guint64 *out) {
  guint64 known = oct_trace_known_pages(r, page_tokens), id = KNOWN_SALT;
  for (guint64 page = 0; page < MIN(known, first + n); page++) {
    id = known_id(r, id, page, page_tokens);
    if (page >= first)
      out[page - first] = id;
  }
  for (guint64 page = MAX(known, first); page < first + n; page++)
    out[page - first] = private_id(r, page);
}

guint64
oct_trace_page_id(const oct_trace_request *r, guint64 page, guint32 page_tokens) {
  guint64 id;
  oct_trace_page_ids(r, page, 1, page_tokens, &id);
  return id;
}
