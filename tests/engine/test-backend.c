#include "engine/backend.h"

#include <math.h>
#include <string.h>

#include "engine/base/rng.h"
#include "tests/contract/fixture.h"

/* ---------------------------------------------------------------- a record with everything in it
 */

static oct_instance_config
rich_config(void) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.data = 2;
  oct_instance_config config = fixture_config(fixture_hybrid(), parallel);
  config.memory.n_expert_slots = 8;
  return config;
}

static oct_slice *
add_slice(oct_step_builder *b, guint32 slot, guint16 domain, guint8 source, guint32 n_tokens,
          guint32 position) {
  oct_slice *s = oct_step_add_slice(b);
  s->slot = slot;
  s->domain = domain;
  s->source = source;
  s->n_tokens = n_tokens;
  s->position = s->state_position = position;
  s->sample = OCT_SAMPLE_LAST;
  return s;
}

/* Slices 0: prefill of 5 ids with 3 logprobs and 4 of the prompt, 1: decode after what was
 * accepted; of domain 1, slices 2: verify of 2 drafts, 3: simulated decode under a mask. */
static const oct_step *
build_rich(oct_step_builder *b) {
  static const guint32 drafts[] = {7, 8}, history[] = {9, 10}, stops[] = {11, FIXTURE_EOS};
  static const oct_token_bias biases[] = {{12, -100}, {13, 0.5f}};
  guint32 *room;
  oct_step_begin(b, 7, 2);
  guint32 prompt_at = oct_step_add_tokens(b, NULL, 5, &room);
  for (guint32 i = 0; i < 5; i++)
    room[i] = 100 + i;
  guint32 drafts_at = oct_step_add_tokens(b, drafts, 2, NULL);
  guint32 history_at = oct_step_add_tokens(b, history, 2, NULL);
  guint32 stops_at = oct_step_add_tokens(b, stops, 2, NULL);
  oct_slice *s = add_slice(b, 3, 0, OCT_SOURCE_IDS, 5, 0);
  s->tokens = prompt_at;
  s->n_logprobs = 3;
  s->n_prompt_logprobs = 4;
  s->flags = OCT_SLICE_PREFILL;
  s->tag = OCT_TAG_EMPTY;
  s = add_slice(b, 4, 0, OCT_SOURCE_DEVICE, 1, OCT_POSITION_AFTER);
  s->adapter = 2;
  s = add_slice(b, 5, 1, OCT_SOURCE_DEVICE, 3, 40);
  s->tokens = drafts_at;
  s->sample = OCT_SAMPLE_ALL;
  s->flags = OCT_SLICE_VERIFY;
  s = add_slice(b, 6, 1, OCT_SOURCE_ABSENT, 1, 50);
  s->flags = OCT_SLICE_NEEDS_MASK;

  oct_slot_open *open = oct_step_add_open(b);
  open->slot = 3;
  open->prompt_tokens = 5;
  open->history = history_at;
  open->n_history = 2;
  open->stops = stops_at;
  open->n_stops = 2;
  open->min_tokens = 4;
  open->biases = oct_step_add_biases(b, biases, 2);
  open->n_biases = 2;
  open->oracle_tokens = 10;
  open->eos_token = FIXTURE_EOS;
  open = oct_step_add_open(b);
  open->slot = 6;
  open->domain = 1;
  open->prompt_tokens = 50;
  *oct_step_add_change(b) = (oct_page_change){3, FIXTURE_PAGES, OCT_PAGE_SET, 0, 11};
  *oct_step_add_change(b) = (oct_page_change){3, FIXTURE_STATE, OCT_PAGE_SET, 0, 12};
  *oct_step_add_change(b) = (oct_page_change){6, FIXTURE_WINDOW, OCT_PAGE_FIRST_LIVE, 1, 0};
  oct_copy *copy = oct_step_add_copy(b);
  *copy = (oct_copy){.kind = OCT_COPY_PAGE, .from_tier = OCT_TIER_HOST, .group = FIXTURE_PAGES};
  copy->from = 3;
  copy->to = 11;
  copy = oct_step_add_copy(b);
  *copy = (oct_copy){.kind = OCT_COPY_STATE, .order = OCT_COPY_AFTER, .group = FIXTURE_STATE};
  copy->from = 12;
  copy->to = 13;
  copy = oct_step_add_copy(b);
  *copy = (oct_copy){.kind = OCT_COPY_EXPERT, .from_tier = OCT_TIER_HOST, .domain = 1, .group = 2};
  copy->from = 15;
  copy->to = 7;
  *oct_step_add_expert(b) = (oct_expert_change){.layer = 2, .expert = 15, .slot = 7};
  return oct_step_end(b);
}

/* An owned copy of the rich record. */
static oct_step *
rich_record(void) {
  g_autoptr(oct_step_builder) b = oct_step_builder_new();
  const oct_step *step = build_rich(b);
  return g_memdup2(step, step->bytes);
}

static void
assert_refused(const oct_step *step, gsize size, const oct_instance_config *config,
               const char *field) {
  g_autoptr(GError) error = NULL;
  if (oct_step_check(step, size, config, &error)) {
    g_test_message("accepted a record whose %s is wrong", field);
    g_test_fail();
    return;
  }
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD);
  if (strstr(error->message, field) == NULL) {
    g_test_message("wanted '%s' in: %s", field, error->message);
    g_test_fail();
  }
}

static void
accepts_a_record_with_everything(void) {
  oct_instance_config config = rich_config();
  g_autofree oct_step *step = rich_record();
  g_autoptr(GError) error = NULL;
  gboolean accepted = oct_step_check(step, step->bytes, &config, &error);
  g_assert_no_error(error);
  g_assert_true(accepted);
}

/* ---------------------------------------------------------------- every field corrupted */

typedef enum place {
  HEADER,
  SLICE,
  TOKEN,
  OPEN,
  BIAS,
  CHANGE,
  COPY,
  EXPERT,
  DOMAIN,
} place;

typedef struct corruption {
  place place;
  guint32 item, offset, size;
  guint64 value;
  const char *field; /* what the message must name */
} corruption;

#define BAD(where, type, i, member, bad, name)                                                     \
  { where, i, (guint32)offsetof(type, member), (guint32)sizeof(((type *)0)->member), bad, name }
#define BAD_HEADER(member, bad)   BAD(HEADER, oct_step, 0, member, bad, "step." #member)
#define BAD_SLICE(i, member, bad) BAD(SLICE, oct_slice, i, member, bad, "slices[" #i "]." #member)
#define BAD_OPEN(i, member, bad)  BAD(OPEN, oct_slot_open, i, member, bad, "opens[" #i "]." #member)
#define BAD_CHANGE(i, member, bad)                                                                 \
  BAD(CHANGE, oct_page_change, i, member, bad, "changes[" #i "]." #member)
#define BAD_COPY(i, member, bad) BAD(COPY, oct_copy, i, member, bad, "copies[" #i "]." #member)
#define BAD_EXPERT(i, member, bad)                                                                 \
  BAD(EXPERT, oct_expert_change, i, member, bad, "experts[" #i "]." #member)
#define BAD_DOMAIN(i, member, bad)                                                                 \
  BAD(DOMAIN, oct_domain_part, i, member, bad, "domains[" #i "]." #member)

/* IEEE single bits of values that must not pass. */
#define F_NAN      0x7fc00000u
#define F_INFINITE 0x7f800000u
#define F_MINUS_1  0xbf800000u
#define F_2        0x40000000u
#define F_101      0x42ca0000u

static const corruption corruptions[] = {
    BAD_HEADER(bytes, 0),
    BAD_HEADER(bytes, 79),
    BAD_HEADER(bytes, G_MAXUINT32),
    BAD_HEADER(abi, OCT_BACKEND_ABI + 1),
    BAD(HEADER, oct_step, 0, n_domains, 0, "step.bytes"),
    BAD(HEADER, oct_step, 0, n_domains, 1, "step.bytes"),
    BAD_HEADER(n_domains, 65),
    BAD_HEADER(number, 0),
    BAD_HEADER(n_slices, OCT_STEP_SLICES_MAX + 1),
    BAD(HEADER, oct_step, 0, n_slices, 3, "step.tokens"),
    BAD_HEADER(slices, 0),
    BAD_HEADER(slices, 84),
    BAD_HEADER(slices, G_MAXUINT32),
    BAD_HEADER(n_tokens, OCT_STEP_IDS_MAX + 1),
    BAD_HEADER(n_tokens, OCT_STEP_IDS_MAX),
    BAD_HEADER(tokens, 4),
    BAD_HEADER(n_opens, OCT_STEP_SLICES_MAX + 1),
    BAD(HEADER, oct_step, 0, n_opens, 1, "step.biases"),
    BAD_HEADER(opens, 0),
    BAD_HEADER(n_biases, OCT_STEP_BIASES_MAX + 1),
    BAD_HEADER(n_biases, OCT_STEP_BIASES_MAX),
    BAD(HEADER, oct_step, 0, n_biases, 1, "step.changes"),
    BAD_HEADER(biases, 8),
    BAD_HEADER(n_changes, OCT_STEP_CHANGES_MAX + 1),
    BAD_HEADER(n_changes, OCT_STEP_CHANGES_MAX),
    BAD_HEADER(changes, 1u << 31),
    BAD_HEADER(n_copies, OCT_STEP_COPIES_MAX + 1),
    BAD_HEADER(copies, 8),
    BAD_HEADER(n_experts, OCT_STEP_COPIES_MAX + 1),
    BAD_HEADER(experts, 8),
    BAD_HEADER(domains, 8),
    BAD_HEADER(reserved, 1),
    BAD_SLICE(0, slot, 32),
    BAD_SLICE(1, slot, 3),
    BAD_SLICE(0, domain, 1),
    BAD_SLICE(3, domain, 0),
    BAD_SLICE(2, domain, 2),
    BAD_SLICE(0, source, 3),
    BAD(SLICE, oct_slice, 0, source, OCT_SOURCE_DEVICE, "slices[0].n_tokens"),
    BAD(SLICE, oct_slice, 0, source, OCT_SOURCE_ABSENT, "slices[0].n_prompt_logprobs"),
    BAD(SLICE, oct_slice, 3, source, OCT_SOURCE_IDS, "slices[3].tokens"),
    BAD(SLICE, oct_slice, 1, source, OCT_SOURCE_IDS, "slices[1].position"),
    BAD_SLICE(0, sample, 3),
    BAD(SLICE, oct_slice, 0, sample, OCT_SAMPLE_NONE, "slices[0].n_logprobs"),
    BAD(SLICE, oct_slice, 3, sample, OCT_SAMPLE_NONE, "slices[3].flags"),
    BAD(SLICE, oct_slice, 2, sample, OCT_SAMPLE_LAST, "slices[2].flags"),
    BAD_SLICE(0, flags, 16),
    BAD(SLICE, oct_slice, 1, flags, OCT_SLICE_POOLED, "slices[1].flags"),
    BAD_SLICE(0, flags, 255),
    BAD_SLICE(2, flags, OCT_SLICE_VERIFY | OCT_SLICE_PREFILL),
    BAD(SLICE, oct_slice, 2, flags, 0, "slices[2].n_tokens"),
    BAD_SLICE(1, n_prompt_logprobs, 1), /* not from ids */
    BAD_SLICE(2, n_prompt_logprobs, 1),
    BAD_SLICE(0, pooling, 3),
    BAD(SLICE, oct_slice, 0, pooling, OCT_POOLING_MEAN, "slices[0].n_prompt_logprobs"),
    BAD_SLICE(1, pooling, OCT_POOLING_LAST), /* it samples */
    BAD_SLICE(0, n_tokens, 0),
    BAD_SLICE(0, n_tokens, 513),
    BAD_SLICE(0, n_tokens, G_MAXUINT32),
    BAD(SLICE, oct_slice, 0, n_tokens, 4, "domains[0].n_tokens"),
    BAD_SLICE(2, n_tokens, OCT_VERIFY_TOKENS_MAX + 1),
    BAD_SLICE(0, tokens, 7),
    BAD_SLICE(0, tokens, 12),
    BAD_SLICE(0, tokens, OCT_NO_INDEX),
    BAD_SLICE(1, tokens, 0),
    BAD_SLICE(0, position, FIXTURE_POSITION - 4),
    BAD_SLICE(0, position, OCT_POSITION_AFTER),
    BAD_SLICE(0, state_position, 1),
    BAD_SLICE(0, state_position, OCT_NO_INDEX),
    BAD_SLICE(1, state_position, 9),
    BAD_SLICE(1, tag, 1),
    {TOKEN, 0, 0, 4, FIXTURE_VOCAB, "slices[0].tokens"},
    {TOKEN, 6, 0, 4, G_MAXUINT32, "slices[2].tokens"},
    {TOKEN, 8, 0, 4, FIXTURE_VOCAB, "opens[0].history"},
    {TOKEN, 10, 0, 4, FIXTURE_VOCAB, "opens[0].stops"},
    {TOKEN, 11, 0, 4, 1, "step.tokens"}, /* the padding after eleven ids */
    {BIAS, 0, 0, 4, FIXTURE_VOCAB, "opens[0].biases"},
    {BIAS, 1, 4, 4, F_NAN, "opens[0].biases"},
    {BIAS, 1, 4, 4, F_101, "opens[0].biases"},
    BAD_OPEN(0, slot, 32),
    BAD_OPEN(1, slot, 3),
    BAD_OPEN(0, domain, 2),
    BAD_OPEN(0, reserved, 1),
    BAD(OPEN, oct_slot_open, 0, reserved2, 1, "opens[0].reserved"),
    BAD_OPEN(0, prompt_tokens, 0),
    BAD_OPEN(0, prompt_tokens, FIXTURE_POSITION + 1),
    BAD_OPEN(0, eos_token, FIXTURE_VOCAB),
    BAD_OPEN(0, top_k, 0),
    BAD_OPEN(0, top_k, 0xfffffffeu),
    BAD_OPEN(0, temperature, F_NAN),
    BAD_OPEN(0, temperature, F_MINUS_1),
    BAD_OPEN(0, temperature, F_INFINITE),
    BAD_OPEN(0, top_p, 0),
    BAD_OPEN(0, top_p, F_2),
    BAD_OPEN(0, top_p, F_NAN),
    BAD_OPEN(0, min_p, F_MINUS_1),
    BAD_OPEN(0, min_p, F_2),
    BAD_OPEN(0, repetition_penalty, 0),
    BAD_OPEN(0, repetition_penalty, F_INFINITE),
    BAD_OPEN(0, presence_penalty, F_NAN),
    BAD_OPEN(0, frequency_penalty, F_INFINITE),
    BAD_OPEN(0, history, 10),
    BAD_OPEN(0, history, OCT_NO_INDEX),
    BAD_OPEN(1, history, 0),
    BAD(OPEN, oct_slot_open, 0, n_history, 0, "opens[0].history"),
    BAD(OPEN, oct_slot_open, 0, n_history, G_MAXUINT32, "opens[0].history"),
    BAD_OPEN(0, biases, 1),
    BAD_OPEN(0, biases, OCT_NO_INDEX),
    BAD_OPEN(1, biases, 0),
    BAD(OPEN, oct_slot_open, 0, n_biases, 3, "opens[0].biases"),
    BAD_OPEN(0, n_biases, OCT_BIASES_MAX + 1),
    BAD_OPEN(0, stops, 10),
    BAD_OPEN(1, stops, 0),
    BAD(OPEN, oct_slot_open, 0, n_stops, G_MAXUINT32, "opens[0].stops"),
    BAD_OPEN(0, min_tokens, FIXTURE_POSITION + 1),
    BAD_CHANGE(0, slot, 32),
    BAD_CHANGE(0, group, 3),
    BAD_CHANGE(0, op, 2),
    BAD_CHANGE(1, op, OCT_PAGE_FIRST_LIVE),
    BAD_CHANGE(0, index, FIXTURE_POSITION / 16 + 1),
    BAD_CHANGE(1, index, 1),
    BAD_CHANGE(2, index, FIXTURE_POSITION / 16 + 2),
    BAD_CHANGE(0, page, 64),
    BAD_CHANGE(2, page, 1),
    BAD_COPY(0, kind, 3),
    BAD_COPY(0, kind, OCT_COPY_STATE),
    BAD_COPY(1, kind, OCT_COPY_PAGE),
    BAD_COPY(0, order, OCT_COPY_BESIDE),
    BAD_COPY(0, order, 3),
    BAD_COPY(0, from_tier, 2),
    BAD(COPY, oct_copy, 0, to_tier, 2, "to_tier"),
    BAD(COPY, oct_copy, 0, to_tier, OCT_TIER_HOST, "to_tier"),
    BAD(COPY, oct_copy, 2, from_tier, OCT_TIER_DEVICE, "copies[2].from_tier"),
    BAD_COPY(0, domain, 2),
    BAD_COPY(0, group, 3),
    BAD_COPY(2, group, 0),
    BAD_COPY(2, group, 8),
    BAD_COPY(0, from, 32),
    BAD_COPY(0, to, 64),
    BAD_COPY(1, to, 12),
    BAD_COPY(2, from, FIXTURE_EXPERTS),
    BAD_COPY(2, to, 8),
    BAD_EXPERT(0, layer, 0),
    BAD_EXPERT(0, layer, 8),
    BAD_EXPERT(0, reserved, 1),
    BAD_EXPERT(0, expert, FIXTURE_EXPERTS),
    BAD_EXPERT(0, slot, 8),
    BAD_DOMAIN(0, first_slice, 1),
    BAD_DOMAIN(1, first_slice, 0),
    BAD_DOMAIN(0, n_slices, 5),
    BAD(DOMAIN, oct_domain_part, 0, n_slices, 1, "domains[0].n_tokens"),
    BAD(DOMAIN, oct_domain_part, 1, n_slices, 0, "domains[1].n_tokens"),
    BAD_DOMAIN(0, n_tokens, 5),
    BAD_DOMAIN(1, reserved, 1),
};

static guint8 *
place_of(oct_step *step, const corruption *c) {
  guint8 *base = (guint8 *)step;
  switch (c->place) {
  case HEADER:
    return base + c->offset;
  case SLICE:
    return base + step->slices + c->item * sizeof(oct_slice) + c->offset;
  case TOKEN:
    return base + step->tokens + c->item * sizeof(guint32);
  case OPEN:
    return base + step->opens + c->item * sizeof(oct_slot_open) + c->offset;
  case BIAS:
    return base + step->biases + c->item * sizeof(oct_token_bias) + c->offset;
  case CHANGE:
    return base + step->changes + c->item * sizeof(oct_page_change) + c->offset;
  case COPY:
    return base + step->copies + c->item * sizeof(oct_copy) + c->offset;
  case EXPERT:
    return base + step->experts + c->item * sizeof(oct_expert_change) + c->offset;
  case DOMAIN:
    return base + step->domains + c->item * sizeof(oct_domain_part) + c->offset;
  }
  g_assert_not_reached();
}

static void
names_the_corrupted_field(void) {
  oct_instance_config config = rich_config();
  for (gsize i = 0; i < G_N_ELEMENTS(corruptions); i++) {
    const corruption *c = &corruptions[i];
    g_autofree oct_step *step = rich_record();
    gsize size = step->bytes;
    memcpy(place_of(step, c), &c->value, c->size);
    assert_refused(step, size, &config, c->field);
  }
}

/* Words of the record that may hold anything: identities, seeds, what only a simulation looks at.
 */
static gboolean
is_free_word(const oct_step *step, guint32 at) {
  if (at >= offsetof(oct_step, number) && at < offsetof(oct_step, n_slices))
    return TRUE;
  if (at >= step->slices && at < step->tokens) {
    guint32 in = (at - step->slices) % sizeof(oct_slice);
    gboolean after = (at - step->slices) / sizeof(oct_slice) == 1; /* whose tag is not known */
    return in == offsetof(oct_slice, adapter) || (in >= offsetof(oct_slice, tag) && !after);
  }
  if (at >= step->opens && at < step->biases) {
    guint32 in = (at - step->opens) % sizeof(oct_slot_open);
    return (in >= offsetof(oct_slot_open, key) && in < offsetof(oct_slot_open, prompt_tokens)) ||
           in == offsetof(oct_slot_open, oracle_tokens);
  }
  return FALSE;
}

/* No field that is counted, indexed or an enum takes 0xfefefefe. */
static void
refuses_every_word_out_of_range(void) {
  oct_instance_config config = rich_config();
  g_autofree oct_step *good = rich_record();
  for (guint32 at = 0; at < good->bytes; at += 4) {
    g_autofree guint8 *bytes = g_memdup2(good, good->bytes);
    memset(bytes + at, 0xfe, 4);
    gboolean accepted = oct_step_check((oct_step *)(void *)bytes, good->bytes, &config, NULL);
    /* The second open has no oracle, so its end-of-sequence token is not looked at. */
    gboolean unused =
        at == good->opens + sizeof(oct_slot_open) + offsetof(oct_slot_open, eos_token);
    if (accepted != (is_free_word(good, at) && !unused) && !unused) {
      g_test_message("word at %u: %s", at, accepted ? "accepted" : "refused");
      g_test_fail();
    }
  }
}

static void
refuses_every_truncation(void) {
  oct_instance_config config = rich_config();
  g_autofree oct_step *good = rich_record();
  for (gsize size = 0; size < good->bytes; size++) {
    /* An exact allocation, so that a read past the end is seen under a sanitizer. */
    g_autofree guint8 *bytes = g_malloc(MAX(size, 1));
    memcpy(bytes, good, size);
    assert_refused((oct_step *)(void *)bytes, size, &config, "step.bytes");
  }
}

static void
survives_random_bytes(void) {
  oct_instance_config config = rich_config();
  g_autofree oct_step *good = rich_record();
  oct_rng rng;
  const guint64 seed = 20240611;
  g_test_message("seed %" G_GUINT64_FORMAT, seed);
  oct_rng_seed(&rng, seed, 0);
  for (int round = 0; round < 20000; round++) {
    g_autofree guint8 *bytes = g_memdup2(good, good->bytes);
    for (guint64 n = 1 + oct_rng_below(&rng, 4); n > 0; n--)
      bytes[oct_rng_below(&rng, good->bytes)] = (guint8)oct_rng_u64(&rng);
    g_autoptr(GError) error = NULL;
    gboolean accepted = oct_step_check((oct_step *)(void *)bytes, good->bytes, &config, &error);
    g_assert_true(accepted == (error == NULL));
  }
}

static void
accepts_the_limits_themselves(void) {
  oct_instance_config config = rich_config();
  config.max_slots = OCT_STEP_SLICES_MAX;
  config.max_batched_tokens = OCT_STEP_SLICES_MAX;
  g_autoptr(oct_step_builder) b = oct_step_builder_new();
  for (guint32 n = OCT_STEP_SLICES_MAX; n <= OCT_STEP_SLICES_MAX + 1; n++) {
    oct_step_begin(b, 1, 2);
    for (guint32 i = 0; i < n; i++)
      add_slice(b, i % config.max_slots, 0, OCT_SOURCE_ABSENT, 1, FIXTURE_POSITION - 1);
    const oct_step *step = oct_step_end(b);
    g_autoptr(GError) error = NULL;
    if (n == OCT_STEP_SLICES_MAX)
      g_assert_true(oct_step_check(step, step->bytes, &config, &error));
    else
      assert_refused(step, step->bytes, &config, "step.n_slices");
    g_assert_no_error(error);
  }
}

/* What slices ask for together: 1,024 times 256 logprobs, 1,024 vectors of 1,024. */
static void
bounds_what_a_result_holds(void) {
  oct_model_spec spec = *fixture_dense();
  oct_instance_config config = fixture_config(&spec, OCT_PARALLEL_DEFAULT);
  spec.hidden = 1024;
  config.max_slots = config.max_batched_tokens = 2048;
  g_autoptr(oct_step_builder) b = oct_step_builder_new();
  for (guint32 n = 1024; n <= 1025; n++)
    for (int pooled = 0; pooled < 2; pooled++) {
      oct_step_begin(b, 1, 1);
      for (guint32 i = 0; i < n; i++) {
        oct_slice *s = add_slice(b, i, 0, OCT_SOURCE_ABSENT, 1, 4);
        s->state_position = OCT_NO_INDEX;
        s->n_logprobs = pooled ? 0 : 255;
        s->sample = pooled ? OCT_SAMPLE_NONE : OCT_SAMPLE_LAST;
        s->pooling = pooled ? OCT_POOLING_LAST : OCT_POOLING_NONE;
        s->flags = pooled ? OCT_SLICE_POOLED : 0;
      }
      const oct_step *step = oct_step_end(b);
      g_autoptr(GError) error = NULL;
      if (n == 1024)
        g_assert_true(oct_step_check(step, step->bytes, &config, &error));
      else
        assert_refused(step, step->bytes, &config, "slices want");
      g_assert_no_error(error);
    }
}

static void
wants_no_state_position_without_state(void) {
  oct_instance_config config = fixture_config(fixture_dense(), OCT_PARALLEL_DEFAULT);
  g_autoptr(oct_step_builder) b = oct_step_builder_new();
  oct_step_begin(b, 1, 1);
  add_slice(b, 0, 0, OCT_SOURCE_ABSENT, 1, 4);
  const oct_step *step = oct_step_end(b);
  assert_refused(step, step->bytes, &config, "slices[0].state_position");
  oct_step_begin(b, 1, 1);
  add_slice(b, 0, 0, OCT_SOURCE_ABSENT, 1, 4)->state_position = OCT_NO_INDEX;
  step = oct_step_end(b);
  g_autoptr(GError) error = NULL;
  g_assert_true(oct_step_check(step, step->bytes, &config, &error));
  g_assert_no_error(error);
}

static void
wants_no_tags_unless_asked(void) {
  oct_instance_config config = rich_config();
  config.check_tags = FALSE;
  g_autofree oct_step *step = rich_record();
  assert_refused(step, step->bytes, &config, "slices[0].tag");
}

static void
wants_the_domains_of_the_instance(void) {
  oct_instance_config config = rich_config();
  g_autofree oct_step *step = rich_record();
  config.parallel.data = 3;
  assert_refused(step, step->bytes, &config, "step.n_domains is 2, must be 3");
  g_assert_true(oct_step_layout_check(step, step->bytes, NULL));
}

/* ---------------------------------------------------------------- copies and configs */

static void
checks_copies_outside_a_step(void) {
  oct_instance_config config = rich_config();
  oct_copy copies[2] = {
      {.kind = OCT_COPY_PAGE, .order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST, .group = 1},
      {.kind = OCT_COPY_PAGE, .order = OCT_COPY_BESIDE, .to_tier = OCT_TIER_HOST, .group = 1},
  };
  g_autoptr(GError) error = NULL;
  g_assert_true(oct_copies_check(copies, 2, &config, &error));
  g_assert_no_error(error);
  copies[1].order = OCT_COPY_BEFORE;
  g_assert_false(oct_copies_check(copies, 2, &config, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD);
  g_assert_nonnull(strstr(error->message, "copies[1].order"));
  g_clear_error(&error);
  g_assert_false(oct_copies_check(copies, 0, &config, &error));
  g_assert_nonnull(strstr(error->message, "n_copies"));
}

static void
assert_config_refused(const oct_instance_config *config, const char *field) {
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_instance_config_check(config, &error));
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_CONFIG);
  g_assert_nonnull(strstr(error->message, field));
}

static void
checks_configs(void) {
  oct_instance_config good = rich_config(), bad;
  g_assert_true(oct_instance_config_check(&good, NULL));
#define REFUSED(member, value)                                                                     \
  bad = good;                                                                                      \
  bad.member = value;                                                                              \
  assert_config_refused(&bad, #member)
  REFUSED(parallel.tensor, 0);
  REFUSED(parallel.tensor, G_MAXUINT32);
  REFUSED(parallel.pipeline, 17);
  REFUSED(parallel.data, 65);
  REFUSED(parallel.decode_context, 2);
  REFUSED(block_size, 0);
  REFUSED(depth, 0);
  REFUSED(depth, 65);
  REFUSED(max_slots, 0);
  REFUSED(max_batched_tokens, 0);
  REFUSED(max_batched_tokens, OCT_STEP_TOKENS_MAX + 1);
  REFUSED(kv_dtype, OCT_DTYPE_MXFP4);
  REFUSED(memory.n_groups, 2);
#undef REFUSED
}

/* ---------------------------------------------------------------- builder and tags */

static void
builds_what_was_added(void) {
  g_autofree oct_step *step = rich_record();
  g_assert_cmpuint(step->number, ==, 7);
  g_assert_cmpuint(step->n_slices, ==, 4);
  g_assert_cmpuint(oct_step_slices(step)[2].slot, ==, 5);
  g_assert_cmpuint(oct_step_tokens(step)[4], ==, 104);
  g_assert_cmpuint(oct_step_tokens(step)[8], ==, 10);
  g_assert_cmpuint(oct_step_opens(step)[1].slot, ==, 6);
  g_assert_cmpint(oct_step_opens(step)[1].top_k, ==, -1);
  g_assert_cmpfloat(oct_step_opens(step)[1].top_p, ==, 1);
  g_assert_cmpfloat(oct_step_opens(step)[1].repetition_penalty, ==, 1);
  g_assert_cmpuint(oct_step_opens(step)[1].history, ==, OCT_NO_INDEX);
  g_assert_cmpuint(oct_step_changes(step)[1].page, ==, 12);
  g_assert_cmpuint(oct_step_copies(step)[2].from, ==, 15);
  g_assert_cmpuint(oct_step_experts(step)[0].slot, ==, 7);
  const oct_domain_part *parts = oct_step_domains(step);
  g_assert_cmpuint(parts[0].n_slices, ==, 2);
  g_assert_cmpuint(parts[0].n_tokens, ==, 6);
  g_assert_cmpuint(parts[1].first_slice, ==, 2);
  g_assert_cmpuint(parts[1].n_tokens, ==, 4);
}

static void
builds_equal_bytes_from_a_used_builder(void) {
  g_autofree oct_step *first = rich_record();
  g_autoptr(oct_step_builder) b = oct_step_builder_new();
  (void)build_rich(b);
  guint32 ids[500];
  memset(ids, 0xff, sizeof ids);
  oct_step_begin(b, 1, 64);
  (void)oct_step_add_tokens(b, ids, 500, NULL);
  (void)oct_step_end(b);
  const oct_step *again = build_rich(b);
  g_assert_cmpmem(first, first->bytes, again, again->bytes);
}

static void
grows_no_more_at_its_largest_size(void) {
  g_autoptr(oct_step_builder) b = oct_step_builder_new();
  (void)build_rich(b);
  guint32 grown = oct_step_builder_grown(b);
  g_assert_cmpuint(grown, >, 0);
  for (int i = 0; i < 100; i++)
    (void)build_rich(b);
  g_assert_cmpuint(oct_step_builder_grown(b), ==, grown);
}

static void
tags_tell_order_and_length(void) {
  guint64 ab = oct_tag_next(oct_tag_next(OCT_TAG_EMPTY, 1), 2);
  guint64 ba = oct_tag_next(oct_tag_next(OCT_TAG_EMPTY, 2), 1);
  g_assert_cmphex(ab, !=, ba);
  guint64 zeros = OCT_TAG_EMPTY;
  g_autoptr(GHashTable) seen = g_hash_table_new(g_int64_hash, g_int64_equal);
  guint64 values[1000];
  for (int i = 0; i < 1000; i++) {
    values[i] = zeros = oct_tag_next(zeros, 0);
    g_assert_cmphex(zeros, !=, 0);
    g_assert_true(g_hash_table_add(seen, &values[i]));
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/backend/check/accepts-a-record-with-everything",
                  accepts_a_record_with_everything);
  g_test_add_func("/backend/check/names-the-corrupted-field", names_the_corrupted_field);
  g_test_add_func("/backend/check/refuses-every-word-out-of-range",
                  refuses_every_word_out_of_range);
  g_test_add_func("/backend/check/refuses-every-truncation", refuses_every_truncation);
  g_test_add_func("/backend/check/survives-random-bytes", survives_random_bytes);
  g_test_add_func("/backend/check/accepts-the-most-slices-and-not-one-more",
                  accepts_the_limits_themselves);
  g_test_add_func("/backend/check/bounds-what-a-result-holds", bounds_what_a_result_holds);
  g_test_add_func("/backend/check/wants-no-state-position-without-state",
                  wants_no_state_position_without_state);
  g_test_add_func("/backend/check/wants-no-tags-unless-asked", wants_no_tags_unless_asked);
  g_test_add_func("/backend/check/wants-the-domains-of-the-instance",
                  wants_the_domains_of_the_instance);
  g_test_add_func("/backend/check/checks-copies-outside-a-step", checks_copies_outside_a_step);
  g_test_add_func("/backend/check/names-the-wrong-config-field", checks_configs);
  g_test_add_func("/backend/builder/builds-what-was-added", builds_what_was_added);
  g_test_add_func("/backend/builder/equal-content-is-equal-bytes",
                  builds_equal_bytes_from_a_used_builder);
  g_test_add_func("/backend/builder/grows-no-more-at-its-largest-size",
                  grows_no_more_at_its_largest_size);
  g_test_add_func("/backend/tag/tells-order-and-length", tags_tell_order_and_length);
  return g_test_run();
}
