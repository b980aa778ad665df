/* Each format on rows written here, and the traces that must be refused. */
#include <string.h>

#include <glib.h>

#include "tests/traces/fixture.h"

#define ROW(rows, i) ((const oct_trace_request *)g_ptr_array_index(rows, i))

/* --- azure ------------------------------------------------------------------------------------ */

static void
test_azure(void) {
  const char *text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                     "2023-11-16 18:15:46.6805900,374,44\r\n"
                     "2023-11-16 18:15:50.9951690,396,109\r\n"
                     "2023-11-17 00:00:00.0000001,7,8\r\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 3);
  g_assert_cmpint(ROW(rows, 0)->arrival_ns, ==, 0);
  g_assert_cmpint(ROW(rows, 1)->arrival_ns, ==, 4314579000);
  g_assert_cmpint(ROW(rows, 2)->arrival_ns, ==, 20653319410100);
  g_assert_cmpuint(ROW(rows, 1)->input_tokens, ==, 396);
  g_assert_cmpuint(ROW(rows, 1)->output_tokens, ==, 109);
  g_assert_cmpuint(ROW(rows, 1)->line, ==, 3);
  g_assert_cmpuint(ROW(rows, 1)->block_size, ==, 0);
  g_assert_cmpint(oct_trace_get_facts(trace)->format, ==, OCT_TRACE_FORMAT_AZURE);
}

/* 2024 writes a zone, and no decimals when they are 0; leap days and zones count. */
static void
test_azure_2024(void) {
  const char *text = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                     "2024-02-28 23:59:59+00:00,100,10\n"
                     "2024-02-29 00:00:00.250000+00:00,101,10\n"
                     "2024-03-01T02:00:00.5+02:00,102,10\n"
                     "2024-02-29 19:30:00.75-04:30,103,10\n"
                     "2024-03-01 00:00:01Z,104,10";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  static const gint64 ms[] = {0, 1250, 86401500, 86401750, 86402000};
  g_assert_cmpuint(rows->len, ==, G_N_ELEMENTS(ms));
  for (guint i = 0; i < rows->len; i++)
    g_assert_cmpint(ROW(rows, i)->arrival_ns, ==, ms[i] * 1000000);
}

static void
test_azure_refuses(void) {
#define AZURE(row) "TIMESTAMP,ContextTokens,GeneratedTokens\n" row
  static const struct {
    const char *text, *parts;
  } bad[] = {
      {AZURE("2023-11-16 18:15,1,1"), "test.trace:2|TIMESTAMP|2023-11-16 18:15"},
      {AZURE("2023-02-29 18:15:46,1,1"), ":2|2023-02-29"},
      {AZURE("2023-13-01 18:15:46,1,1"), ":2|2023-13-01"},
      {AZURE("2023-11-16 18:15:46x,1,1"), ":2|46x"},
      {AZURE("1969-12-31 23:59:59,1,1"), ":2|1969"},
      {AZURE("2023-11-16 18:15:46,-5,1"), ":2|ContextTokens|-5"},
      {AZURE("2023-11-16 18:15:46,5,NaN"), ":2|GeneratedTokens|NaN"},
      {AZURE("2023-11-16 18:15:46,5,1.5"), ":2|GeneratedTokens|1.5"},
      {AZURE("2023-11-16 18:15:46,99999999999999999999,1"), ":2|ContextTokens|99999"},
      {AZURE("2023-11-16 18:15:46,1073741825,1"), ":2|ContextTokens|1073741825|1073741824"},
      {AZURE("2023-11-16 18:15:46,,1"), ":2|ContextTokens"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
    oct_test_refuses(bad[i].text, NULL, OCT_TRACE_ERROR_VALUE, bad[i].parts);
  oct_test_refuses(AZURE("2023-11-16 18:15:46,1"), NULL, OCT_TRACE_ERROR_SYNTAX,
                   ":2|GeneratedTokens|2 columns");
  oct_test_refuses(AZURE("\"2023-11-16 18:15:46,1,1"), NULL, OCT_TRACE_ERROR_SYNTAX, ":2|quotes");
}

/* --- the other CSV formats -------------------------------------------------------------------- */

static void
test_burstgpt(void) {
  const char *text = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,"
                     "Total tokens,Log Type\n"
                     "19440110.0,a-1,43,GPT-4,906,446,1352,Conversation log\n"
                     "19440161.5,b-2,2,ChatGPT,36,29,65,\"API log\"\n"
                     "19440170.0,b-2,0,ChatGPT,36,0,36,API log\n"
                     "19440192.0,a-1,2,GPT-4,1400,10,1410,Conversation log\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  const oct_trace_facts *facts = oct_trace_get_facts(trace);
  g_assert_cmpuint(rows->len, ==, 3);
  g_assert_cmpuint(facts->n_skipped, ==, 1);
  g_assert_cmpint(ROW(rows, 1)->arrival_ns, ==, 51500000000);
  g_assert_cmpstr(ROW(rows, 1)->class_name, ==, "ChatGPT/API log");
  g_assert_cmpuint(ROW(rows, 0)->session, ==, ROW(rows, 2)->session);
  g_assert_cmpuint(ROW(rows, 0)->session, !=, ROW(rows, 1)->session);
  /* Times are recorded, so the turn is open loop and its parent is known besides. */
  g_assert_cmpuint(ROW(rows, 2)->parent, ==, 1);
  g_assert_cmpint(ROW(rows, 2)->arrival_ns, ==, 82000000000);
  g_assert_true(facts->has_sessions && facts->has_classes && !facts->has_dependents);
}

static void
test_burstgpt_six_columns(void) {
  const char *text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                     "5,ChatGPT,472,18,490,Conversation log\n"
                     "45,ChatGPT,1087,230,1317,Conversation log\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 2);
  g_assert_cmpint(oct_trace_get_facts(trace)->format, ==, OCT_TRACE_FORMAT_BURSTGPT);
  g_assert_cmpint(ROW(rows, 1)->arrival_ns, ==, 40000000000);
  g_assert_cmpuint(ROW(rows, 1)->session, ==, 0);
  oct_test_refuses("Timestamp,Model,Request tokens,Response tokens\n1e400,m,1,1", NULL,
                   OCT_TRACE_ERROR_VALUE, ":2|Timestamp|1e400");
  oct_test_refuses("Timestamp,Model,Request tokens,Response tokens\n-1,m,1,1", NULL,
                   OCT_TRACE_ERROR_VALUE, ":2|Timestamp|-1");
  oct_test_refuses("Timestamp,Model,Request tokens,Response tokens\n1,\xff,1,1", NULL,
                   OCT_TRACE_ERROR_VALUE, ":2|class|\\xff|UTF-8");
}

static void
test_vidur(void) {
  const char *text = ",arrived_at,num_prefill_tokens,num_decode_tokens,num_total_tokens\n"
                     "0,0.0,100,20,120\n1,0.123456789,200.0,30,230\n2,1.2e1,5,6,11\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 3);
  g_assert_cmpint(ROW(rows, 1)->arrival_ns, ==, 123456789);
  g_assert_cmpint(ROW(rows, 2)->arrival_ns, ==, 12000000000);
  g_assert_cmpuint(ROW(rows, 1)->input_tokens, ==, 200);
}

/* A file of lengths alone is a closed loop whose slots the user states. */
static void
test_vidur_lengths(void) {
  const char *text = "num_prefill_tokens,num_decode_tokens\n100,20\n200,30\n";
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.concurrency = 5;
  g_autoptr(oct_trace) trace = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  const oct_trace_facts *facts = oct_trace_get_facts(trace);
  g_assert_cmpint(ROW(rows, 1)->arrival_ns, ==, -1);
  g_assert_cmpuint(ROW(rows, 1)->parent, ==, 0);
  g_assert_true(facts->has_closed_loop);
  g_assert_cmpuint(facts->concurrency, ==, 5);
}

/* --- mooncake and its family ------------------------------------------------------------------ */

static void
test_mooncake(void) {
  const char *text =
      "{\"timestamp\": 0, \"input_length\": 655, \"output_length\": 52, \"hash_ids\": [46, 47]}\n"
      "\n"
      "{\"timestamp\": 10535.5, \"input_length\": 512, \"output_length\": 26, \"hash_ids\": [46]}\n"
      "{\"timestamp\": 27482, \"input_length\": 9, \"output_length\": 0, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 27482, \"input_length\": 9, \"output_length\": 3, \"hash_ids\": [48]}\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  const oct_trace_facts *facts = oct_trace_get_facts(trace);
  g_assert_cmpuint(rows->len, ==, 3);
  g_assert_cmpuint(facts->n_skipped, ==, 1);
  g_assert_cmpint(facts->format, ==, OCT_TRACE_FORMAT_MOONCAKE);
  g_assert_cmpint(ROW(rows, 1)->arrival_ns, ==, 10535500000);
  g_assert_cmpuint(ROW(rows, 0)->n_hash_ids, ==, 2);
  g_assert_cmpuint(ROW(rows, 0)->hash_ids[1], ==, 47);
  g_assert_cmpuint(ROW(rows, 0)->block_size, ==, 512);
  g_assert_true(facts->has_hash_ids && facts->block_size_inferred);
  g_assert_cmpuint(facts->block_size, ==, 512);
  g_assert_cmpuint(ROW(rows, 2)->line, ==, 5);
}

/* 16-token blocks, the last one left out: inferred, or stated. */
static void
test_mooncake_block_size(void) {
  const char *text =
      "{\"timestamp\":1,\"input_length\":70,\"output_length\":5,\"hash_ids\":[1,2,3,4]}\n"
      "{\"timestamp\":2,\"input_length\":15,\"output_length\":5,\"hash_ids\":[]}\n"
      "{\"timestamp\":3,\"input_length\":33,\"output_length\":5,\"hash_ids\":[1,2]}\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(ROW(rows, 0)->block_size, ==, 16);
  g_assert_cmpuint(ROW(rows, 1)->block_size, ==, 0);
  g_assert_cmpuint(ROW(rows, 2)->block_size, ==, 16);
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.block_size = 8;
  g_autoptr(oct_trace) stated = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) again = oct_test_read_all(stated);
  g_assert_cmpuint(ROW(again, 2)->block_size, ==, 8);
  g_assert_cmpuint(ROW(again, 2)->n_hash_ids, ==, 2);
  g_assert_false(oct_trace_get_facts(stated)->block_size_inferred);
  options.block_size = 32;
  oct_test_refuses(text, &options, OCT_TRACE_ERROR_VALUE, ":1|hash_ids|4 ids|only|blocks of 32");
}

static void
test_mooncake_refuses(void) {
#define LENGTHS "\"input_length\":600,\"output_length\":5,"
  static const struct {
    oct_trace_error code;
    const char *text, *parts;
  } bad[] = {
      {OCT_TRACE_ERROR_VALUE, "{\"input_length\":-1,\"output_length\":2}", ":1|input_length|-1"},
      {OCT_TRACE_ERROR_VALUE, "{\"input_length\":\"7\",\"output_length\":2}",
       ":1|input_length|\"7\""},
      {OCT_TRACE_ERROR_VALUE, "{\"input_length\":7.5,\"output_length\":2}", "input_length|7.5"},
      {OCT_TRACE_ERROR_VALUE, "{\"input_length\":7}", ":1|output_length|missing"},
      {OCT_TRACE_ERROR_VALUE, "{\"input_length\":4294967296,\"output_length\":2}",
       "input_length|4294967296"},
      {OCT_TRACE_ERROR_SYNTAX, "{\"input_length\":99999999999999999999,\"output_length\":2}",
       ":1|no JSON|too big"},
      {OCT_TRACE_ERROR_SYNTAX, "{\"input_length\":NaN,\"output_length\":2}", ":1|no JSON"},
      {OCT_TRACE_ERROR_SYNTAX, "{\"input_length\":7,\"output_len", ":1|no JSON"},
      {OCT_TRACE_ERROR_SYNTAX, "{\"input_length\":7,\"input_length\":8}", ":1|duplicate"},
      {OCT_TRACE_ERROR_VALUE, "{\"timestamp\":-3," LENGTHS "\"hash_ids\":[]}", "timestamp|-3"},
      {OCT_TRACE_ERROR_VALUE, "{\"timestamp\":1e300," LENGTHS "\"hash_ids\":[]}", "timestamp|73"},
      {OCT_TRACE_ERROR_VALUE, "{\"timestamp\":9000000000000000000," LENGTHS "\"hash_ids\":[]}",
       "timestamp|9000000000000000000"},
      {OCT_TRACE_ERROR_VALUE, "{\"timestamp\":0," LENGTHS "\"hash_ids\":5}", "hash_ids|5|array"},
      {OCT_TRACE_ERROR_VALUE, "{\"timestamp\":0," LENGTHS "\"hash_ids\":[1,-2]}", "hash_ids|-2"},
      {OCT_TRACE_ERROR_VALUE, "{\"timestamp\":0," LENGTHS "\"hash_ids\":[1,\"a\"]}", "hash_ids|a"},
      {OCT_TRACE_ERROR_VALUE, "{\"timestamp\":0," LENGTHS "\"hash_ids\":[1,2,3,4,5,6,7]}",
       "hash_ids|7 ids|--hash-block-size"},
      {OCT_TRACE_ERROR_VALUE, "{\"input_length\":7,\"output_length\":2,\"session_id\":[]}",
       "session_id"},
      {OCT_TRACE_ERROR_FORMAT, "{\"text_input\":\"hello\",\"output_length\":2}", ":1|input_length"},
      {OCT_TRACE_ERROR_SYNTAX, "{\"input_length\":7,\"output_length\":2}\n[1,2]\n", ":2|object"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
    oct_test_refuses(bad[i].text, NULL, bad[i].code, bad[i].parts);
  /* A count that disagrees with the block size of the rows before. */
  oct_test_refuses("{\"timestamp\":0," LENGTHS "\"hash_ids\":[1,2]}\n"
                   "{\"timestamp\":0," LENGTHS "\"hash_ids\":[1,2,3,4,5]}\n",
                   NULL, OCT_TRACE_ERROR_VALUE, ":2|hash_ids|5 ids|512");
}

/* AIPerf: later turns have a delay instead of a time. */
static void
test_aiperf_sessions(void) {
  const char *text =
      "{\"session_id\":\"a\",\"timestamp\":0,\"input_length\":10,\"output_length\":4}\n"
      "{\"session_id\":\"a\",\"delay\":250,\"input_length\":20,\"output_length\":5}\n"
      "{\"session_id\":\"b\",\"timestamp\":5,\"input_length\":11,\"output_length\":6}\n"
      "{\"session_id\":\"a\",\"input_length\":30,\"output_length\":7}\n"
      "{\"session_id\":\"b\",\"delay\":1.5,\"input_length\":21,\"output_length\":8}\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  static const gint64 arrivals[] = {0, -1, 5000000, -1, -1};
  static const gint64 thinks[] = {0, 250000000, 0, 0, 1500000};
  static const guint64 parents[] = {0, 1, 0, 2, 3};
  g_assert_cmpuint(rows->len, ==, 5);
  for (guint i = 0; i < 5; i++) {
    g_assert_cmpint(ROW(rows, i)->arrival_ns, ==, arrivals[i]);
    g_assert_cmpint(ROW(rows, i)->think_ns, ==, thinks[i]);
    g_assert_cmpuint(ROW(rows, i)->parent, ==, parents[i]);
  }
  g_assert_true(oct_trace_get_facts(trace)->has_dependents);
  g_assert_false(oct_trace_get_facts(trace)->has_closed_loop);
  oct_test_refuses("{\"timestamp\":0,\"input_length\":10,\"output_length\":4}\n"
                   "{\"input_length\":10,\"output_length\":4}\n",
                   NULL, OCT_TRACE_ERROR_VALUE, ":2|no arrival time|open loop or closed loop");
}

/* Without any time a session trace is a closed loop of sessions. */
static void
test_aiperf_closed(void) {
  const char *text =
      "{\"session_id\":\"a\",\"input_length\":10,\"output_length\":4}\n"
      "{\"session_id\":\"a\",\"delay\":250,\"input_length\":20,\"output_length\":5}\n"
      "{\"session_id\":\"b\",\"input_length\":11,\"output_length\":6}\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(ROW(rows, 1)->parent, ==, 1);
  g_assert_cmpuint(ROW(rows, 2)->parent, ==, 0);
  g_assert_cmpint(ROW(rows, 2)->arrival_ns, ==, -1);
  g_assert_true(oct_trace_get_facts(trace)->has_closed_loop);
}

static void
test_timed(void) {
  const char *text =
      "{\"timestamp\":0,\"input_length\":32,\"output_length\":5,\"hash_ids\":[1,2]}\n"
      "{\"timestamp\":0.05,\"input_length\":40,\"output_length\":5,\"hash_ids\":[1,2,3]}\n";
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.format = OCT_TRACE_FORMAT_TIMED;
  g_autoptr(oct_trace) trace = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpint(ROW(rows, 1)->arrival_ns, ==, 50000000);
  g_assert_cmpuint(ROW(rows, 1)->block_size, ==, 16);
  options.time_unit_ns = 1000;
  g_autoptr(oct_trace) micro = oct_test_open_text(text, &options);
  g_autoptr(GPtrArray) again = oct_test_read_all(micro);
  g_assert_cmpint(ROW(again, 1)->arrival_ns, ==, 50);
}

static void
test_bailian(void) {
#define TURN(chat, parent, time)                                                                   \
  "{\"chat_id\":" #chat ",\"parent_chat_id\":" #parent ",\"timestamp\":" #time                     \
  ",\"input_length\":33,\"output_length\":4,\"type\":\"text\",\"turn\":1,\"hash_ids\":[9,8,7]}\n"
  g_autoptr(oct_trace) trace =
      oct_test_open_text(TURN(100, -1, 0.5) TURN(7, -1, 0.6) TURN(101, 100, 61.114)
                             TURN(102, 101, 62) TURN(8, 999, 63),
                         NULL);
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  static const guint64 parents[] = {0, 0, 1, 3, 0}, sessions[] = {101, 8, 101, 101, 9};
  g_assert_cmpuint(rows->len, ==, 5);
  for (guint i = 0; i < 5; i++) {
    g_assert_cmpuint(ROW(rows, i)->parent, ==, parents[i]);
    g_assert_cmpuint(ROW(rows, i)->session, ==, sessions[i]);
    g_assert_cmpuint(ROW(rows, i)->block_size, ==, 16);
  }
  g_assert_cmpint(ROW(rows, 2)->arrival_ns, ==, 61114000000);
  g_assert_cmpstr(ROW(rows, 0)->class_name, ==, "text");
  oct_test_refuses("{\"chat_id\":-4,\"input_length\":3,\"output_length\":4,\"timestamp\":1}", NULL,
                   OCT_TRACE_ERROR_VALUE, "chat_id|-4");
  oct_test_refuses("{\"chat_id\":4,\"input_length\":3,\"output_length\":4}", NULL,
                   OCT_TRACE_ERROR_VALUE, "timestamp|missing");
  oct_test_refuses("{\"chat_id\":4,\"parent_chat_id\":-2,\"timestamp\":1,\"input_length\":3,"
                   "\"output_length\":4}",
                   NULL, OCT_TRACE_ERROR_VALUE, "parent_chat_id|-2");
}

/* --- octet ------------------------------------------------------------------------------------ */

static void
test_octet(void) {
  const char *text =
      "{\"octet_trace\":1,\"block_size\":32,\"spread\":true,\"source\":\"x\",\"later\":[1]}\n"
      "{\"arrival_us\":1.5,\"input_tokens\":64,\"output_tokens\":3,\"max_tokens\":9,"
      "\"hash_ids\":[5,6],\"output_hash_ids\":[7],\"session\":3,\"priority\":-2,\"class\":\"gold\"}"
      "\n"
      "{\"input_tokens\":70,\"output_tokens\":4,\"session\":3,\"parent\":0,\"think_us\":2000000}\n"
      "{\"arrival_us\":7,\"input_tokens\":64,\"output_tokens\":3,\"block_size\":16,"
      "\"hash_ids\":[1,2,3,4],\"unknown\":{}}\n";
  g_autoptr(oct_trace) trace = oct_test_open_text(text, NULL);
  const oct_trace_facts *facts = oct_trace_get_facts(trace);
  g_assert_true(facts->spread); /* known before the first row */
  g_autoptr(GPtrArray) rows = oct_test_read_all(trace);
  g_assert_cmpuint(rows->len, ==, 3);
  g_assert_cmpint(ROW(rows, 0)->arrival_ns, ==, 1500);
  g_assert_cmpuint(ROW(rows, 0)->max_tokens, ==, 9);
  g_assert_cmpuint(ROW(rows, 0)->block_size, ==, 32);
  g_assert_cmpuint(ROW(rows, 0)->n_output_hash_ids, ==, 1);
  g_assert_cmpuint(ROW(rows, 0)->output_hash_ids[0], ==, 7);
  g_assert_cmpint(ROW(rows, 0)->priority, ==, -2);
  g_assert_cmpstr(ROW(rows, 0)->class_name, ==, "gold");
  g_assert_cmpint(ROW(rows, 1)->arrival_ns, ==, -1);
  g_assert_cmpuint(ROW(rows, 1)->parent, ==, 1);
  g_assert_cmpint(ROW(rows, 1)->think_ns, ==, 2000000000);
  g_assert_cmpuint(ROW(rows, 2)->block_size, ==, 16);
  g_assert_cmpuint(facts->block_size, ==, 0); /* it varies */
  g_assert_true(facts->has_priorities && facts->has_classes && facts->has_max_tokens);
}

static void
test_octet_refuses(void) {
#define IO "\"input_tokens\":10,\"output_tokens\":2"
  static const struct {
    oct_trace_error code;
    const char *text, *parts;
  } bad[] = {
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":0,\"input_tokens\":0,\"output_tokens\":1}",
       ":1|input_tokens|0"},
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":0,\"input_tokens\":1,\"output_tokens\":0}",
       ":1|output_tokens|0"},
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":-0.5," IO "}", "arrival_us|-0.5"},
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":true," IO "}", "arrival_us|true"},
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":0," IO ",\"parent\":0}", "parent|0|before"},
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":0," IO ",\"hash_ids\":[1]}", "block_size|missing"},
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":0," IO ",\"block_size\":16,\"hash_ids\":[1,2]}",
       "hash_ids|2 ids|blocks of 16"},
      {OCT_TRACE_ERROR_VALUE,
       "{\"arrival_us\":0," IO ",\"block_size\":16,\"output_hash_ids\":[1,2]}",
       "output_hash_ids|2 ids"},
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":0," IO ",\"priority\":2147483648}", "priority"},
      {OCT_TRACE_ERROR_VALUE, "{\"arrival_us\":0," IO ",\"class\":7}", "class|7|string"},
      {OCT_TRACE_ERROR_VALUE, "{\"octet_trace\":2}\n", "octet_trace|2|version"},
      {OCT_TRACE_ERROR_VALUE, "{\"octet_trace\":1,\"concurrency\":-1}\n", "concurrency|-1"},
      {OCT_TRACE_ERROR_VALUE, "{\"octet_trace\":1,\"spread\":1}\n", "spread|1"},
      {OCT_TRACE_ERROR_SYNTAX, "{\"arrival_us\":0," IO "}\n{\"octet_trace\":1}", ":2|header"},
      {OCT_TRACE_ERROR_SYNTAX, "{\"octet_trace\":1}\n{\"octet_trace\":1}", ":2|header"},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
    oct_test_refuses(bad[i].text, NULL, bad[i].code, bad[i].parts);
  g_autofree char *name = g_strnfill(65, 'c');
  g_autofree char *text = g_strdup_printf("{\"arrival_us\":0," IO ",\"class\":\"%s\"}", name);
  oct_test_refuses(text, NULL, OCT_TRACE_ERROR_LIMIT, "class|64 bytes");
}

/* --- all formats ------------------------------------------------------------------------------ */

static void
test_unknown(void) {
  oct_test_refuses("", NULL, OCT_TRACE_ERROR_FORMAT, "test.trace|empty");
  oct_test_refuses("\n \n\t\r\n", NULL, OCT_TRACE_ERROR_FORMAT, "empty");
  oct_test_refuses("a,b,c\n1,2,3\n", NULL, OCT_TRACE_ERROR_FORMAT, ":1|a,b,c");
  oct_test_refuses("\x7f"
                   "ELF\x02\x01",
                   NULL, OCT_TRACE_ERROR_FORMAT, ":1|\\x7fELF");
  oct_trace_format format;
  g_autoptr(GError) error = NULL;
  g_assert_false(oct_trace_format_from_name("csv", &format, &error));
  g_assert_error(error, OCT_TRACE_ERROR, OCT_TRACE_ERROR_OPTION);
  /* A format named against the content fails on the content. */
  oct_trace_options options;
  oct_trace_options_init(&options);
  options.format = OCT_TRACE_FORMAT_AZURE;
  oct_test_refuses("{\"input_tokens\":1}", &options, OCT_TRACE_ERROR_SYNTAX, "TIMESTAMP|column");
}

static void
test_names(void) {
  for (int i = 0; i < OCT_TRACE_FORMAT_GENERATED; i++) {
    oct_trace_format format;
    g_assert_true(
        oct_trace_format_from_name(oct_trace_format_name((oct_trace_format)i), &format, NULL));
    g_assert_cmpint(format, ==, i);
  }
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/traces/azure/reads-seven-decimals-from-the-first-row-on", test_azure);
  g_test_add_func("/traces/azure/reads-zones-and-missing-decimals-of-2024", test_azure_2024);
  g_test_add_func("/traces/azure/refuses-wrong-rows-by-line-field-and-value", test_azure_refuses);
  g_test_add_func("/traces/burstgpt/reads-sessions-and-leaves-out-failures", test_burstgpt);
  g_test_add_func("/traces/burstgpt/reads-the-six-column-files", test_burstgpt_six_columns);
  g_test_add_func("/traces/vidur/reads-seconds-exactly", test_vidur);
  g_test_add_func("/traces/vidur/takes-lengths-alone-as-a-closed-loop", test_vidur_lengths);
  g_test_add_func("/traces/mooncake/reads-milliseconds-and-512-token-blocks", test_mooncake);
  g_test_add_func("/traces/mooncake/infers-or-takes-the-block-size", test_mooncake_block_size);
  g_test_add_func("/traces/mooncake/refuses-wrong-rows-by-line-field-and-value",
                  test_mooncake_refuses);
  g_test_add_func("/traces/aiperf/links-turns-by-session", test_aiperf_sessions);
  g_test_add_func("/traces/aiperf/without-times-is-a-closed-loop", test_aiperf_closed);
  g_test_add_func("/traces/timed/reads-seconds-or-the-unit-stated", test_timed);
  g_test_add_func("/traces/bailian/links-turns-by-chat", test_bailian);
  g_test_add_func("/traces/octet/reads-every-field", test_octet);
  g_test_add_func("/traces/octet/refuses-wrong-rows-by-line-field-and-value", test_octet_refuses);
  g_test_add_func("/traces/formats/refuse-what-they-do-not-know", test_unknown);
  g_test_add_func("/traces/formats/have-names-that-read-back", test_names);
  return g_test_run();
}
