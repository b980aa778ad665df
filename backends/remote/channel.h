/* Two rings of messages in memory that two processes share, and the bells that say "look".
 *
 * Each ring has one writer and one reader. A body that is more than half of a ring lies beside it,
 * one at a time: memory that is not used until there is one. A message is copied in and out whole,
 * so that what is checked is what is used, whatever the other side writes meanwhile. The positions
 * that the other side keeps are not believed either: one that cannot be is corruption.
 */
#ifndef OCT_BACKENDS_REMOTE_CHANNEL_H
#define OCT_BACKENDS_REMOTE_CHANNEL_H

#include <stdatomic.h>
#include <sys/types.h>

#include <glib.h>

#define CHANNEL_BODY_MAX (1u << 27) /* no record or event is longer: backend.h has their limits */

typedef enum channel_side { CHANNEL_TO_WORKER, CHANNEL_TO_FRONT } channel_side;

typedef enum channel_kind {
  /* To the worker. */
  CHANNEL_OPEN, /* body: config */
  CHANNEL_CLOSE,
  CHANNEL_SUBMIT, /* body: step */
  CHANNEL_COPY,   /* a: ticket; body: copies */
  CHANNEL_PULL,   /* a: ticket, b: peer, c: its domain; body: copies */
  CHANNEL_MASK,   /* a: step, b: slice; body: words */
  CHANNEL_STOP,
  /* To the front. */
  CHANNEL_STARTED, /* the inner world is there; b: 1 = it can pull */
  CHANNEL_FAILED,  /* it is not; body: why, as text */
  CHANNEL_EVENT,   /* body: event (backends/flat.h); instance is the front's */
  CHANNEL_KINDS
} channel_kind;

typedef struct channel_message {
  guint32 bytes; /* of the body */
  guint32 kind;
  guint32 instance;
  guint32 b;
  guint64 a;
  guint32 c, reserved;
} channel_message;

/* In shared memory, written by the worker. */
typedef struct channel_status {
  atomic_ullong heartbeat;
  atomic_int worker; /* its process */
} channel_status;

typedef struct oct_channel oct_channel;

/* Before the fork. NULL with *error (DEVICE). */
oct_channel *oct_channel_new(guint32 ring_bytes, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void oct_channel_free(oct_channel *channel); /* accepts NULL */
/* Empties both rings; only while no worker lives. */
void oct_channel_reset(oct_channel *channel);

typedef enum channel_answer { CHANNEL_OK, CHANNEL_NONE, CHANNEL_CORRUPT } channel_answer;

/* Copies a message with its body, of CHANNEL_BODY_MAX bytes at most, in and rings the reader. NONE:
 * there is no room. */
channel_answer oct_channel_push(oct_channel *channel, channel_side side,
                                const channel_message *message, const void *body);
/* Copies the oldest message out; *body (8-byte aligned) is valid until the next pop of that side.
 */
channel_answer oct_channel_pop(oct_channel *channel, channel_side side, channel_message *message,
                               const guint8 **body);
/* Bytes of the ring that the reader, this process, has not popped. */
guint64 oct_channel_unread(const oct_channel *channel, channel_side side);
/* The longest body that lies in the ring. */
guint32 oct_channel_ring_most(const oct_channel *channel);

/* The bell of a side: readable when it was rung. */
int oct_channel_bell(const oct_channel *channel, channel_side side);
void oct_channel_ring(const oct_channel *channel, channel_side side);
/* Takes what was rung; waits for it when `wait`. */
void oct_channel_hush(const oct_channel *channel, channel_side side, gboolean wait);

channel_status *oct_channel_status(const oct_channel *channel);

/* For tests: the writer's position of a side becomes one that cannot be. */
void oct_channel_corrupt(oct_channel *channel, channel_side side);

#endif
