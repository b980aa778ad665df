#include "backends/flat.h"

#include <string.h>

#include "backends/dump.h"
#include "engine/base/rng.h"
#include "tests/contract/fixture.h"

/* ---------------------------------------------------------------- events */

/* A result with two slices, logprobs and experts. */
static oct_step_result *
new_result(void) {
  guint32 slices = sizeof(oct_step_result), tokens = slices + 2 * sizeof(oct_slice_result);
  guint32 logprobs = tokens + 8, experts = logprobs + 3 * sizeof(oct_logprob);
  guint32 floats = experts + sizeof(oct_expert_use), bytes = floats + 4 * sizeof(float);
  oct_step_result *r = g_malloc0(bytes);
  *r = (oct_step_result){.bytes = bytes,
                         .n_slices = 2,
                         .slices = slices,
                         .n_tokens = 1,
                         .tokens = tokens,
                         .n_logprobs = 3,
                         .logprobs = logprobs,
                         .n_experts = 1,
                         .experts = experts,
                         .n_floats = 4,
                         .floats = floats,
                         .start_ns = 10,
                         .end_ns = 20,
                         .part_ns = {1, 2, 3, 4, 0, 0}};
  oct_slice_result *s = (oct_slice_result *)(void *)((guint8 *)r + slices);
  s[0] = (oct_slice_result){.n_accepted = 1, .tokens = 0, .logprobs = 0, .floats = 0};
  s[1] = (oct_slice_result){
      .flags = OCT_RESULT_FAILED, .tokens = 1, .logprobs = OCT_NO_INDEX, .floats = OCT_NO_INDEX};
  *(guint32 *)(void *)((guint8 *)r + tokens) = 77;
  oct_logprob *l = (oct_logprob *)(void *)((guint8 *)r + logprobs);
  for (guint32 i = 0; i < 3; i++)
    l[i] = (oct_logprob){77 + i, -0.5f * (float)(i + 1)};
  *(oct_expert_use *)(void *)((guint8 *)r + experts) =
      (oct_expert_use){.layer = 2, .expert = 5, .tokens = 9, .missed = 1};
  for (guint32 i = 0; i < 4; i++)
    ((float *)(void *)((guint8 *)r + floats))[i] = 0.25f * (float)i;
  return r;
}

static oct_fault fault = {.severity = OCT_SEVERITY_STEP,
                          .device = OCT_NO_INDEX,
                          .number = 7,
                          .retryable = 1,
                          .message = "something"};
static oct_capabilities capabilities = {
    .depth = 2, .n_groups = 1, .page_bytes = {4096}, .fits = {64}, .masks = TRUE};

static void
fill_events(oct_event events[9], const oct_step_result *result) {
  for (int i = 0; i < 9; i++)
    events[i] = (oct_event){.kind = (oct_event_kind)i, .instance = 3, .time_ns = 1000 + i};
  events[OCT_EVENT_OPEN_PROGRESS].phase = "weights";
  events[OCT_EVENT_OPEN_PROGRESS].fraction = 0.25;
  events[OCT_EVENT_OPENED].capabilities = &capabilities;
  events[OCT_EVENT_OPEN_FAILED].fault = &fault;
  events[OCT_EVENT_FAULT].fault = &fault;
  events[OCT_EVENT_STEP_DONE].number = 7;
  events[OCT_EVENT_STEP_DONE].result = result;
  events[OCT_EVENT_COPY_DONE].number = 8;
  events[OCT_EVENT_COPY_DONE].failed = 1;
  events[OCT_EVENT_MASK_WANTED].slice = 4;
}

static void
every_event_comes_back(void) {
  g_autofree oct_step_result *result = new_result();
  oct_event events[9];
  fill_events(events, result);
  for (int i = 0; i < 9; i++) {
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    g_autoptr(GString) before = g_string_new(NULL);
    g_autoptr(GString) after = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    oct_event back;
    oct_flat_event_write(bytes, &events[i]);
    g_assert_cmpuint(bytes->len % 8, ==, 0);
    gboolean read = oct_flat_event_read(bytes->data, bytes->len, &back, &error);
    g_assert_no_error(error);
    g_assert_true(read);
    oct_dump_event(before, &events[i]);
    oct_dump_event(after, &back);
    g_assert_cmpstr(before->str, ==, after->str);
    g_assert_cmpint(back.kind, ==, i);
  }
}

static void
assert_event_refused(const oct_event *event, guint32 at, const void *value, guint32 n,
                     const char *what) {
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  oct_flat_event_write(bytes, event);
  memcpy(bytes->data + at, value, n);
  oct_event back;
  g_autoptr(GError) error = NULL;
  if (oct_flat_event_read(bytes->data, bytes->len, &back, &error)) {
    g_test_message("accepted: %s at %u", what, at);
    g_test_fail();
    return;
  }
  g_assert_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_RECORD);
  if (strstr(error->message, what) == NULL) {
    g_test_message("wanted '%s' in: %s", what, error->message);
    g_test_fail();
  }
}

#define FLAT_BYTES        48 /* of an event before what it points to */
#define IN_RESULT(member) (FLAT_BYTES + (guint32)offsetof(oct_step_result, member))
#define IN_SLICE(i, member)                                                                        \
  (FLAT_BYTES + (guint32)(sizeof(oct_step_result) + (i) * sizeof(oct_slice_result) +               \
                          offsetof(oct_slice_result, member)))

static void
wrong_events_are_refused(void) {
  g_autofree oct_step_result *result = new_result();
  oct_event events[9];
  fill_events(events, result);
  const oct_event *done = &events[OCT_EVENT_STEP_DONE];
  const guint32 huge = G_MAXUINT32, nine = 9, zero = 0;
  const gint64 before_time = -1;
  const double half_again = 1.5;
  assert_event_refused(done, 0, &huge, 4, "event of");
  assert_event_refused(done, 0, &zero, 4, "event of");
  assert_event_refused(done, 4, &nine, 4, "event.kind is 9");
  assert_event_refused(done, 20, &huge, 4, "event of");
  assert_event_refused(done, 20, &nine, 4, "result.bytes");
  assert_event_refused(done, 24, &before_time, 8, "event at -1");
  assert_event_refused(&events[OCT_EVENT_OPEN_PROGRESS], 40, &half_again, 8, "fraction 1.5");
  assert_event_refused(&events[OCT_EVENT_OPEN_PROGRESS], FLAT_BYTES, "weights!", 8, "event.phase");
  assert_event_refused(&events[OCT_EVENT_FAULT], FLAT_BYTES, &nine, 4, "fault.severity is 9");
  assert_event_refused(&events[OCT_EVENT_OPENED], FLAT_BYTES, &zero, 4, "capabilities: depth is 0");
  assert_event_refused(&events[OCT_EVENT_OPENED], FLAT_BYTES + 4, &nine, 4, "n_groups 9");
  assert_event_refused(done, IN_RESULT(bytes), &huge, 4, "result.bytes");
  assert_event_refused(done, IN_RESULT(n_slices), &huge, 4, "result.n_slices");
  assert_event_refused(done, IN_RESULT(n_tokens), &huge, 4, "result.n_tokens");
  assert_event_refused(done, IN_RESULT(n_logprobs), &huge, 4, "result.n_logprobs");
  assert_event_refused(done, IN_RESULT(n_experts), &huge, 4, "result.n_experts");
  assert_event_refused(done, IN_RESULT(experts), &zero, 4, "result.experts is 0");
  assert_event_refused(done, IN_RESULT(end_ns), &zero, 4, "result is from 10 to 0");
  assert_event_refused(done, IN_SLICE(0, n_accepted), &nine, 4, "result.slices[0] has 9 tokens");
  assert_event_refused(done, IN_SLICE(1, tokens), &huge, 4, "result.slices[1]");
  assert_event_refused(done, IN_SLICE(1, flags), &huge, 4, "result.slices[1].flags");
  assert_event_refused(done, IN_SLICE(0, logprobs), &nine, 4, "result.slices[0].logprobs is 9");
  assert_event_refused(done, IN_RESULT(n_floats), &huge, 4, "result.n_floats");
  assert_event_refused(done, IN_RESULT(floats), &zero, 4, "result.floats is 0");
  assert_event_refused(done, IN_SLICE(0, floats), &nine, 4, "result.slices[0].floats is 9");
  assert_event_refused(done, IN_SLICE(1, reserved), &nine, 4, "reserved 9");
}

static void
fault_text_must_end(void) {
  oct_event event = {.kind = OCT_EVENT_FAULT, .fault = &fault};
  char full[sizeof fault.message];
  memset(full, 'x', sizeof full);
  assert_event_refused(&event, FLAT_BYTES + (guint32)offsetof(oct_fault, message), full,
                       sizeof full, "fault.message does not end");
}

/* Whatever the bytes, an event that is accepted can be printed. */
static void
random_bytes_are_survived(void) {
  g_autofree oct_step_result *result = new_result();
  oct_event events[9];
  fill_events(events, result);
  oct_rng rng;
  oct_rng_seed(&rng, 5, 0);
  for (int round = 0; round < 20000; round++) {
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    oct_flat_event_write(bytes, &events[oct_rng_below(&rng, 9)]);
    for (guint64 n = 1 + oct_rng_below(&rng, 3); n > 0; n--)
      bytes->data[oct_rng_below(&rng, bytes->len)] = (guint8)oct_rng_u64(&rng);
    gsize size = oct_rng_below(&rng, 4) == 0 ? oct_rng_below(&rng, bytes->len) : bytes->len;
    g_autofree guint8 *exact = g_malloc(MAX(size, 1));
    memcpy(exact, bytes->data, size);
    oct_event back;
    g_autoptr(GError) error = NULL;
    if (oct_flat_event_read(exact, size, &back, &error)) {
      g_autoptr(GString) text = g_string_new(NULL);
      oct_dump_event(text, &back);
    } else {
      g_assert_nonnull(error);
    }
  }
}

/* ---------------------------------------------------------------- configs */

static void
config_comes_back(void) {
  oct_parallel parallel = OCT_PARALLEL_DEFAULT;
  parallel.tensor = 4;
  parallel.data = 2;
  oct_instance_config config = fixture_config(fixture_hybrid(), parallel);
  config.memory.n_expert_slots = 3;
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  oct_flat_config_write(bytes, &config);
  g_autoptr(GError) error = NULL;
  g_autoptr(oct_flat_config) back = oct_flat_config_read(bytes->data, bytes->len, &error);
  g_assert_no_error(error);
  const oct_instance_config *c = oct_flat_config_get(back);
  g_autoptr(GString) before = g_string_new(NULL);
  g_autoptr(GString) after = g_string_new(NULL);
  oct_dump_config(before, &config);
  oct_dump_config(after, c);
  g_assert_cmpstr(before->str, ==, after->str);
  g_assert_true(c->spec != config.spec && c->spec->layers != config.spec->layers);
  g_assert_cmpstr(c->spec->architecture, ==, config.spec->architecture);
  g_assert_cmpmem(c->spec->layers, c->spec->n_layers * sizeof(oct_layer_spec), config.spec->layers,
                  config.spec->n_layers * sizeof(oct_layer_spec));
  g_assert_cmpmem(c->devices, 8 * sizeof(guint16), config.devices, 8 * sizeof(guint16));
  g_assert_cmpuint(c->seed, ==, config.seed);
  g_assert_null(c->weights);
  config.weights = "/models/small.gguf";
  g_autoptr(GByteArray) named = g_byte_array_new();
  oct_flat_config_write(named, &config);
  g_autoptr(oct_flat_config) other = oct_flat_config_read(named->data, named->len, &error);
  g_assert_no_error(error);
  g_assert_cmpstr(oct_flat_config_get(other)->weights, ==, "/models/small.gguf");
  g_assert_cmpstr(oct_flat_config_get(other)->spec->name, ==, config.spec->name);
}

/* Whatever the bytes, a config that is accepted can be checked and walked. */
static void
random_configs_are_survived(void) {
  oct_instance_config config = fixture_config(fixture_hybrid(), OCT_PARALLEL_DEFAULT);
  g_autoptr(GByteArray) good = g_byte_array_new();
  oct_flat_config_write(good, &config);
  oct_rng rng;
  oct_rng_seed(&rng, 6, 0);
  guint n_accepted = 0;
  for (int round = 0; round < 20000; round++) {
    gsize size = oct_rng_below(&rng, 8) == 0 ? oct_rng_below(&rng, good->len) : good->len;
    g_autofree guint8 *bytes = g_malloc(MAX(size, 1));
    memcpy(bytes, good->data, size);
    for (guint64 n = 1 + oct_rng_below(&rng, 3); n > 0 && size > 0; n--)
      bytes[oct_rng_below(&rng, size)] = (guint8)oct_rng_u64(&rng);
    g_autoptr(GError) error = NULL;
    g_autoptr(oct_flat_config) back = oct_flat_config_read(bytes, size, &error);
    if (back == NULL) {
      g_assert_nonnull(error);
      continue;
    }
    n_accepted++;
    (void)!oct_instance_config_check(oct_flat_config_get(back), NULL);
  }
  g_assert_cmpuint(n_accepted, >, 0);
  g_assert_cmpuint(n_accepted, <, 20000);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/flat/event/comes-back", every_event_comes_back);
  g_test_add_func("/flat/event/wrong-ones-are-refused", wrong_events_are_refused);
  g_test_add_func("/flat/event/text-must-end", fault_text_must_end);
  g_test_add_func("/flat/event/random-bytes-are-survived", random_bytes_are_survived);
  g_test_add_func("/flat/config/comes-back", config_comes_back);
  g_test_add_func("/flat/config/random-bytes-are-survived", random_configs_are_survived);
  return g_test_run();
}
