/* Pages have equal ids exactly where the trace says that their content is equal. */
#include <glib.h>

#include "engine/base/rng.h"
#include "traces/blocks.h"
#include "traces/gen.h"

static oct_trace_request
request_of(guint64 index, guint32 input, guint32 output, guint32 block_size, const guint64 *ids,
           guint32 n) {
  return (oct_trace_request){.index = index,
                             .input_tokens = input,
                             .output_tokens = output,
                             .block_size = block_size,
                             .hash_ids = ids,
                             .n_hash_ids = n,
                             .class_name = ""};
}

static void
test_pages_divide_blocks(void) {
  static const guint64 a_ids[] = {1, 2, 3}, b_ids[] = {1, 2, 9};
  oct_trace_request a = request_of(0, 96, 10, 32, a_ids, 3),
                    b = request_of(1, 96, 10, 32, b_ids, 3);
  g_assert_cmpuint(oct_trace_known_tokens(&a), ==, 96);
  g_assert_cmpuint(oct_trace_known_pages(&a, 16), ==, 6);
  for (guint64 p = 0; p < 4; p++)
    g_assert_cmpuint(oct_trace_page_id(&a, p, 16), ==, oct_trace_page_id(&b, p, 16));
  for (guint64 p = 4; p < 8; p++)
    g_assert_cmpuint(oct_trace_page_id(&a, p, 16), !=, oct_trace_page_id(&b, p, 16));
  /* A block named like another's is not shared behind another prefix. */
  static const guint64 c_ids[] = {9, 2, 3};
  oct_trace_request c = request_of(2, 96, 10, 32, c_ids, 3);
  g_assert_cmpuint(oct_trace_page_id(&a, 3, 16), !=, oct_trace_page_id(&c, 3, 16));
  /* The two halves of a block differ, and so do equal places of different blocks. */
  g_assert_cmpuint(oct_trace_page_id(&a, 0, 16), !=, oct_trace_page_id(&a, 1, 16));
  g_assert_cmpuint(oct_trace_page_id(&a, 0, 16), !=, oct_trace_page_id(&a, 2, 16));
}

static void
test_pages_of_several_blocks(void) {
  static const guint64 a_ids[] = {1, 2, 3, 4, 5}, b_ids[] = {1, 2, 3, 7, 5};
  oct_trace_request a = request_of(0, 80, 1, 16, a_ids, 5), b = request_of(1, 80, 1, 16, b_ids, 5);
  g_assert_cmpuint(oct_trace_known_pages(&a, 32), ==, 2);
  g_assert_cmpuint(oct_trace_page_id(&a, 0, 32), ==, oct_trace_page_id(&b, 0, 32));
  /* Tokens 32 … 47 are shared, but the page is not. */
  g_assert_cmpuint(oct_trace_page_id(&a, 1, 32), !=, oct_trace_page_id(&b, 1, 32));
  /* 24 divides neither: page 1 is [24, 48), within blocks 1 and 2. */
  g_assert_cmpuint(oct_trace_page_id(&a, 1, 24), ==, oct_trace_page_id(&b, 1, 24));
  g_assert_cmpuint(oct_trace_page_id(&a, 2, 24), !=, oct_trace_page_id(&b, 2, 24));
  g_assert_cmpuint(oct_trace_known_pages(&a, 24), ==, 3);
}

/* Mooncake names a partial last block: it is known as far as the prompt goes. */
static void
test_partial_block(void) {
  static const guint64 ids[] = {1, 2};
  oct_trace_request a = request_of(0, 655, 50, 512, ids, 2),
                    b = request_of(1, 655, 90, 512, ids, 2);
  oct_trace_request c = request_of(2, 600, 50, 512, ids, 2);
  g_assert_cmpuint(oct_trace_known_tokens(&a), ==, 655);
  g_assert_cmpuint(oct_trace_known_pages(&a, 16), ==, 40);
  g_assert_cmpuint(oct_trace_page_id(&a, 39, 16), ==, oct_trace_page_id(&b, 39, 16));
  /* The page that the prompt ends in has output tokens too: private. */
  g_assert_cmpuint(oct_trace_page_id(&a, 40, 16), !=, oct_trace_page_id(&b, 40, 16));
  g_assert_cmpuint(oct_trace_known_pages(&c, 16), ==, 37);
  g_assert_cmpuint(oct_trace_page_id(&a, 36, 16), ==, oct_trace_page_id(&c, 36, 16));
}

static void
test_private(void) {
  oct_trace_request a = request_of(4, 100, 10, 0, NULL, 0), b = request_of(5, 100, 10, 0, NULL, 0);
  g_assert_cmpuint(oct_trace_known_pages(&a, 16), ==, 0);
  g_assert_cmpuint(oct_trace_page_id(&a, 0, 16), !=, oct_trace_page_id(&b, 0, 16));
  g_assert_cmpuint(oct_trace_page_id(&a, 0, 16), !=, oct_trace_page_id(&a, 1, 16));
  guint64 ids[3];
  oct_trace_page_ids(&a, 1, 3, 16, ids);
  for (guint64 p = 0; p < 3; p++)
    g_assert_cmpuint(ids[p], ==, oct_trace_page_id(&a, p + 1, 16)); /* the same when asked again */
  static const guint64 named[] = {7, 8};
  oct_trace_request c = request_of(6, 100, 10, 32, named, 2);
  guint64 some[5];
  oct_trace_page_ids(&c, 2, 5, 16, some); /* from known pages into private ones */
  for (guint64 p = 0; p < 5; p++)
    g_assert_cmpuint(some[p], ==, oct_trace_page_id(&c, p + 2, 16));
}

/* The outputs that a turn leaves are the prompt of the next, whatever the page size. */
static void
test_outputs(void) {
  static const guint64 first_ids[] = {10, 11, 12, 13, 14};
  static const guint64 next_ids[] = {10, 11, 12, 13, 14, 15, 16};
  oct_trace_request first = request_of(0, 40, 45, 16, first_ids, 2);
  first.output_hash_ids = first_ids + 2;
  first.n_output_hash_ids = 3;
  oct_trace_request next = request_of(1, 120, 5, 16, next_ids, 7);
  g_assert_cmpuint(oct_trace_known_tokens(&first), ==, 80);
  for (guint32 page = 1; page <= 80; page++)
    for (guint64 p = 0; (p + 1) * page <= 80; p++)
      g_assert_cmpuint(oct_trace_page_id(&first, p, page), ==, oct_trace_page_id(&next, p, page));
  g_assert_cmpuint(oct_trace_page_id(&first, 5, 16), !=, oct_trace_page_id(&next, 5, 16));
}

/* Names behind a gap do not count as a known prefix. */
static void
test_gap(void) {
  static const guint64 ids[] = {1, 2};
  oct_trace_request a = request_of(0, 64, 20, 16, ids, 1);
  a.output_hash_ids = ids + 1;
  a.n_output_hash_ids = 1;
  g_assert_cmpuint(oct_trace_known_tokens(&a), ==, 16);
}

/* Against the definition: content of a token is (block id, place), of a page all tokens so far. */
static void
test_definition(void) {
  oct_rng rng;
  oct_rng_seed(&rng, 77, 0);
  for (int round = 0; round < 2000; round++) {
    guint32 block = 1 + (guint32)oct_rng_below(&rng, 24),
            page = 1 + (guint32)oct_rng_below(&rng, 40);
    guint64 ids[2][8];
    oct_trace_request r[2];
    for (guint i = 0; i < 2; i++) {
      guint32 input = 1 + (guint32)oct_rng_below(&rng, block * 8);
      guint32 n = (guint32)oct_rng_below(&rng, (input + block - 1) / block + 1);
      for (guint k = 0; k < 8; k++)
        ids[i][k] = oct_rng_below(&rng, 2);
      r[i] = request_of(i, input, 1, block, ids[i], n);
    }
    guint64 p = oct_rng_below(&rng, 3);
    gboolean equal = TRUE;
    for (guint64 t = 0; t < (p + 1) * page && equal; t++)
      for (guint i = 0; i < 2; i++)
        equal = equal && t < r[i].input_tokens && t / block < r[i].n_hash_ids &&
                ids[0][t / block] == ids[1][t / block];
    g_assert_cmpint(equal, ==,
                    oct_trace_page_id(&r[0], p, page) == oct_trace_page_id(&r[1], p, page));
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/traces/blocks/pages-share-what-their-block-shares", test_pages_divide_blocks);
  g_test_add_func("/traces/blocks/a-page-of-several-blocks-is-shared-whole",
                  test_pages_of_several_blocks);
  g_test_add_func("/traces/blocks/a-partial-block-is-known-to-the-prompts-end", test_partial_block);
  g_test_add_func("/traces/blocks/other-pages-are-private-and-stable", test_private);
  g_test_add_func("/traces/blocks/outputs-are-the-next-turns-prompt", test_outputs);
  g_test_add_func("/traces/blocks/names-behind-a-gap-do-not-count", test_gap);
  g_test_add_func("/traces/blocks/agree-with-comparing-every-token", test_definition);
  return g_test_run();
}
