#include "backends/remote/channel.h"

#include <pthread.h>
#include <string.h>

#define RING 65536

static oct_channel *
new_channel(void) {
  g_autoptr(GError) error = NULL;
  oct_channel *c = oct_channel_new(RING, &error);
  g_assert_no_error(error);
  return c;
}

static void
messages_come_in_order_and_whole(void) {
  oct_channel *c = new_channel();
  guint8 body[3000];
  guint64 sent = 0, got = 0;
  /* Bodies of changing length, so that they lie across the ring's end in every way. */
  while (got < 5000) {
    guint32 n = (guint32)(sent * 37 % sizeof body);
    memset(body, (int)(sent & 0xff), sizeof body);
    channel_message m = {.kind = CHANNEL_COPY, .bytes = n, .instance = 3, .b = n + 1, .a = sent};
    if (sent - got < 10 && oct_channel_push(c, CHANNEL_TO_WORKER, &m, body) == CHANNEL_OK) {
      sent++;
      continue;
    }
    const guint8 *back;
    g_assert_cmpint(oct_channel_pop(c, CHANNEL_TO_WORKER, &m, &back), ==, CHANNEL_OK);
    g_assert_cmpuint(m.a, ==, got);
    g_assert_cmpuint(m.bytes, ==, got * 37 % sizeof body);
    g_assert_cmpuint(m.b, ==, m.bytes + 1);
    for (guint32 i = 0; i < m.bytes; i++)
      g_assert_cmpuint(back[i], ==, got & 0xff);
    got++;
  }
  oct_channel_free(c);
}

static void
full_ring_takes_nothing(void) {
  oct_channel *c = new_channel();
  guint8 body[1000] = {0};
  const guint8 *back;
  channel_message m = {.kind = CHANNEL_COPY, .bytes = sizeof body};
  guint n = 0;
  while (oct_channel_push(c, CHANNEL_TO_FRONT, &m, body) == CHANNEL_OK)
    n++;
  g_assert_cmpuint(n, ==, RING / (1000 + sizeof m));
  g_assert_cmpint(oct_channel_pop(c, CHANNEL_TO_FRONT, &m, &back), ==, CHANNEL_OK);
  g_assert_cmpint(oct_channel_push(c, CHANNEL_TO_FRONT, &m, body), ==, CHANNEL_OK);
  g_assert_cmpint(oct_channel_push(c, CHANNEL_TO_FRONT, &m, body), ==, CHANNEL_NONE);
  /* The other direction is its own. */
  g_assert_cmpint(oct_channel_pop(c, CHANNEL_TO_WORKER, &m, &back), ==, CHANNEL_NONE);
  oct_channel_free(c);
}

/* In the ring, and beside it, where the next one waits until it has been taken. */
static void
bodies_of_any_length_fit(void) {
  oct_channel *c = new_channel();
  const guint32 most = oct_channel_ring_most(c);
  const guint32 lengths[] = {0, 1, most - 1, most, most + 1, 3 * RING + 5, CHANNEL_BODY_MAX, most};
  g_autofree guint8 *body = g_malloc0(CHANNEL_BODY_MAX);
  const guint8 *back;
  for (gsize i = 0; i < G_N_ELEMENTS(lengths); i++) {
    const guint32 n = lengths[i];
    channel_message m = {.kind = CHANNEL_SUBMIT, .bytes = n, .a = i},
                    small = {.kind = CHANNEL_STOP};
    if (n > 0)
      body[0] = body[n - 1] = (guint8)(i + 1);
    g_assert_cmpint(oct_channel_push(c, CHANNEL_TO_WORKER, &m, body), ==, CHANNEL_OK);
    g_assert_cmpint(oct_channel_push(c, CHANNEL_TO_WORKER, &small, NULL), ==, CHANNEL_OK);
    if (n > most)
      g_assert_cmpint(oct_channel_push(c, CHANNEL_TO_WORKER, &m, body), ==, CHANNEL_NONE);
    g_assert_cmpint(oct_channel_pop(c, CHANNEL_TO_WORKER, &m, &back), ==, CHANNEL_OK);
    g_assert_cmpuint(m.bytes, ==, n);
    g_assert_cmpuint(m.a, ==, i);
    g_assert_true(n == 0 || (back[0] == i + 1 && back[n - 1] == i + 1));
    g_assert_cmpint(oct_channel_pop(c, CHANNEL_TO_WORKER, &m, &back), ==, CHANNEL_OK);
    g_assert_cmpuint(m.kind, ==, CHANNEL_STOP);
  }
  oct_channel_free(c);
}

/* A writer whose positions, kinds or lengths cannot be. */
static void
impossible_messages_are_corruption(void) {
  static const channel_message bad[] = {
      {.kind = CHANNEL_KINDS},
      {.kind = G_MAXUINT32},
  };
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
    oct_channel *c = new_channel();
    channel_message m;
    const guint8 *back;
    g_assert_cmpint(oct_channel_push(c, CHANNEL_TO_FRONT, &bad[i], NULL), ==, CHANNEL_OK);
    g_assert_cmpint(oct_channel_pop(c, CHANNEL_TO_FRONT, &m, &back), ==, CHANNEL_CORRUPT);
    oct_channel_free(c);
  }
  oct_channel *c = new_channel();
  channel_message m;
  const guint8 *back;
  oct_channel_corrupt(c, CHANNEL_TO_FRONT);
  g_assert_cmpint(oct_channel_pop(c, CHANNEL_TO_FRONT, &m, &back), ==, CHANNEL_CORRUPT);
  oct_channel_free(c);
}

/* ---------------------------------------------------------------- two threads */

#define N_MESSAGES 20000
#define LARGE      40000 /* beside the ring: every 100th */

static void *
send_all(void *arg) {
  oct_channel *c = arg;
  for (guint64 i = 0; i < N_MESSAGES;) {
    guint64 body[LARGE / 8] = {i, ~i, i * 3};
    const guint32 bytes = i % 100 == 0 ? LARGE : 64;
    channel_message m = {.kind = CHANNEL_EVENT, .bytes = bytes, .a = i};
    body[bytes / 8 - 1] = i * 5;
    if (oct_channel_push(c, CHANNEL_TO_FRONT, &m, body) == CHANNEL_OK)
      i++;
    else
      sched_yield();
  }
  return NULL;
}

static void
bell_rings_for_what_was_sent(void) {
  oct_channel *c = new_channel();
  pthread_t sender;
  g_assert_cmpint(pthread_create(&sender, NULL, send_all, c), ==, 0);
  for (guint64 got = 0; got < N_MESSAGES;) {
    channel_message m;
    const guint8 *back;
    channel_answer answer = oct_channel_pop(c, CHANNEL_TO_FRONT, &m, &back);
    if (answer == CHANNEL_NONE) {
      oct_channel_hush(c, CHANNEL_TO_FRONT,
                       TRUE); /* no message without a ring: or it waits for ever */
      continue;
    }
    g_assert_cmpint(answer, ==, CHANNEL_OK);
    const guint64 *words = (const guint64 *)(const void *)back;
    g_assert_cmpuint(m.a, ==, got);
    g_assert_cmpuint(words[0], ==, got);
    g_assert_cmpuint(words[1], ==, ~got);
    g_assert_cmpuint(words[2], ==, got * 3);
    g_assert_cmpuint(words[m.bytes / 8 - 1], ==, got * 5);
    got++;
  }
  pthread_join(sender, NULL);
  oct_channel_free(c);
}

int
main(int argc, char **argv) {
  g_test_init(&argc, &argv, NULL);
  g_test_add_func("/remote/channel/messages-come-in-order-and-whole",
                  messages_come_in_order_and_whole);
  g_test_add_func("/remote/channel/full-ring-takes-nothing", full_ring_takes_nothing);
  g_test_add_func("/remote/channel/bodies-of-any-length-fit", bodies_of_any_length_fit);
  g_test_add_func("/remote/channel/impossible-messages-are-corruption",
                  impossible_messages_are_corruption);
  g_test_add_func("/remote/channel/bell-rings-for-what-was-sent", bell_rings_for_what_was_sent);
  return g_test_run();
}
