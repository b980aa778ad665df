#include "backends/remote/channel.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/base/assert.h"

/* A ring's positions, in bytes ever written and ever read, each on a cache line of its own. */
typedef struct ring_positions {
  _Alignas(64) atomic_ullong written;
  _Alignas(64) atomic_ullong read;
} ring_positions;

typedef struct shared {
  channel_status status;
  ring_positions positions[2];
  atomic_uint large[2];       /* 1: a body lies beside the ring */
  _Alignas(64) guint8 data[]; /* [2][ring_bytes], [2][CHANNEL_BODY_MAX] */
} shared;

struct oct_channel {
  shared *memory;
  gsize memory_bytes;
  guint32 ring_bytes; /* a power of two */
  int bells[2];
  /* This process's own positions, and its copy of the message read last. */
  guint64 written[2], read[2];
  guint8 *body[2];
  gsize body_room[2];
};

oct_channel *
oct_channel_new(guint32 ring_bytes, GError **error) {
  oct_assert(ring_bytes >= 65536 && (ring_bytes & (ring_bytes - 1)) == 0);
  oct_channel *c = g_new0(oct_channel, 1);
  c->ring_bytes = ring_bytes;
  c->memory_bytes = sizeof(shared) + 2 * ((gsize)ring_bytes + CHANNEL_BODY_MAX);
  c->memory = mmap(NULL, c->memory_bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (int i = 0; i < 2; i++)
    c->bells[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (c->memory == MAP_FAILED || c->bells[0] < 0 || c->bells[1] < 0) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_DEVICE,
                "remote: shared memory of %" G_GSIZE_FORMAT " bytes: %s", c->memory_bytes,
                g_strerror(errno));
    oct_channel_free(c);
    return NULL;
  }
  return c;
}

void
oct_channel_free(oct_channel *c) {
  if (c == NULL)
    return;
  if (c->memory != NULL && c->memory != MAP_FAILED)
    munmap(c->memory, c->memory_bytes);
  for (int i = 0; i < 2; i++) {
    if (c->bells[i] >= 0)
      close(c->bells[i]);
    g_free(c->body[i]);
  }
  g_free(c);
}

void
oct_channel_reset(oct_channel *c) {
  for (int i = 0; i < 2; i++) {
    atomic_store(&c->memory->positions[i].written, 0);
    atomic_store(&c->memory->positions[i].read, 0);
    atomic_store(&c->memory->large[i], 0);
    c->written[i] = c->read[i] = 0;
    oct_channel_hush(c, (channel_side)i, FALSE);
  }
  atomic_store(&c->memory->status.worker, 0);
}

channel_status *
oct_channel_status(const oct_channel *c) {
  return &c->memory->status;
}

guint32
oct_channel_ring_most(const oct_channel *c) {
  return c->ring_bytes / 2 - (guint32)sizeof(channel_message);
}

/* ---------------------------------------------------------------- bells */

int
oct_channel_bell(const oct_channel *c, channel_side side) {
  return c->bells[side];
}

void
oct_channel_ring(const oct_channel *c, channel_side side) {
  guint64 one = 1;
  /* A full counter is a bell that was rung already. */
  while (write(c->bells[side], &one, sizeof one) < 0 && errno == EINTR)
    continue;
}

void
oct_channel_hush(const oct_channel *c, channel_side side, gboolean wait) {
  struct pollfd p = {.fd = c->bells[side], .events = POLLIN};
  while (wait && poll(&p, 1, -1) < 0 && errno == EINTR)
    continue;
  guint64 count;
  while (read(c->bells[side], &count, sizeof count) < 0 && errno == EINTR)
    continue;
}

/* ---------------------------------------------------------------- messages */

static void
copy_in(oct_channel *c, channel_side side, const void *from, guint32 n) {
  guint8 *data = c->memory->data + (gsize)side * c->ring_bytes;
  guint32 at = (guint32)(c->written[side] & (c->ring_bytes - 1)),
          first = MIN(n, c->ring_bytes - at);
  memcpy(data + at, from, first);
  memcpy(data, (const guint8 *)from + first, n - first);
  c->written[side] += n;
}

static void
copy_out(oct_channel *c, channel_side side, void *to, guint32 n) {
  const guint8 *data = c->memory->data + (gsize)side * c->ring_bytes;
  guint32 at = (guint32)(c->read[side] & (c->ring_bytes - 1)), first = MIN(n, c->ring_bytes - at);
  memcpy(to, data + at, first);
  memcpy((guint8 *)to + first, data, n - first);
  c->read[side] += n;
}

static guint32
padded(guint32 bytes) {
  return (bytes + 7) & ~7u;
}

/* Of a body, how much is in the ring. */
static guint32
in_ring(const oct_channel *c, guint32 bytes) {
  return bytes <= oct_channel_ring_most(c) ? padded(bytes) : 0;
}

/* The place beside the side's ring. */
static guint8 *
beside(const oct_channel *c, channel_side side) {
  return c->memory->data + 2 * (gsize)c->ring_bytes + (gsize)side * CHANNEL_BODY_MAX;
}

channel_answer
oct_channel_push(oct_channel *c, channel_side side, const channel_message *message,
                 const void *body) {
  static const guint8 zeros[8] = {0};
  ring_positions *p = &c->memory->positions[side];
  guint64 used = c->written[side] - atomic_load_explicit(&p->read, memory_order_acquire);
  guint32 body_bytes = message->bytes;
  oct_assert(body_bytes <= CHANNEL_BODY_MAX);
  const guint32 ring = in_ring(c, body_bytes);
  const gboolean large = body_bytes > ring;
  if (used > c->ring_bytes)
    return CHANNEL_CORRUPT;
  if (sizeof *message + ring > c->ring_bytes - used ||
      (large && atomic_load_explicit(&c->memory->large[side], memory_order_acquire) != 0))
    return CHANNEL_NONE;
  copy_in(c, side, message, sizeof *message);
  if (large) {
    memcpy(beside(c, side), body, body_bytes);
    atomic_store_explicit(&c->memory->large[side], 1, memory_order_relaxed);
  } else if (body_bytes > 0) {
    copy_in(c, side, body, body_bytes);
    copy_in(c, side, zeros, ring - body_bytes);
  }
  atomic_store_explicit(&p->written, c->written[side], memory_order_release);
  oct_channel_ring(c, side);
  return CHANNEL_OK;
}

channel_answer
oct_channel_pop(oct_channel *c, channel_side side, channel_message *message, const guint8 **body) {
  ring_positions *p = &c->memory->positions[side];
  guint64 there = oct_channel_unread(c, side);
  if (there == 0)
    return CHANNEL_NONE;
  if (there > c->ring_bytes || there < sizeof *message)
    return CHANNEL_CORRUPT;
  copy_out(c, side, message, sizeof *message);
  if (message->kind >= CHANNEL_KINDS || message->bytes > CHANNEL_BODY_MAX ||
      in_ring(c, message->bytes) > there - sizeof *message)
    return CHANNEL_CORRUPT;
  guint32 n = padded(message->bytes), ring = in_ring(c, message->bytes);
  if (n > c->body_room[side]) {
    c->body_room[side] = MAX(n, 2 * c->body_room[side]);
    c->body[side] = g_realloc(c->body[side], c->body_room[side]);
  }
  if (ring > 0) {
    copy_out(c, side, c->body[side], ring);
  } else if (n > 0) {
    memcpy(c->body[side], beside(c, side), n);
    atomic_store_explicit(&c->memory->large[side], 0, memory_order_release);
  }
  *body = c->body[side];
  atomic_store_explicit(&p->read, c->read[side], memory_order_release);
  return CHANNEL_OK;
}

guint64
oct_channel_unread(const oct_channel *c, channel_side side) {
  return atomic_load_explicit(&c->memory->positions[side].written, memory_order_acquire) -
         c->read[side];
}

void
oct_channel_corrupt(oct_channel *c, channel_side side) {
  atomic_fetch_add(&c->memory->positions[side].written, (guint64)c->ring_bytes * 5);
  oct_channel_ring(c, side);
}
