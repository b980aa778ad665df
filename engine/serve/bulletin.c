/* Each replica's counters are words behind a sequence number that is odd while they are written: a
 * reader that has seen an odd or a changed number reads again. Words are atomic, so that what is
 * read while it is written is a wrong word and not a torn one.
 */
#include "engine/serve/bulletin.h"

#include <stdatomic.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/serve/internal.h"

#define REASON_BYTES 96

typedef struct oct_page {
  oct_engine_stats stats;
  char reason[REASON_BYTES]; /* why its instance was lost last */
} oct_page;

#define PAGE_WORDS ((sizeof(oct_page) + 7) / 8)

typedef struct oct_board {
  atomic_uint sequence;
  _Atomic guint64 words[PAGE_WORDS];
  atomic_uint live;
  _Atomic gint64 since_ns;    /* it has had work since; meaningful while live > 0 */
  _Atomic gint64 progress_ns; /* of the last event */
  _Atomic guint64 opened_ppm; /* 0 … 1000000 */
} oct_board;

struct oct_bulletin {
  guint32 n_replicas;
  oct_board *boards;
  atomic_uint taken; /* commands */
  /* front's */
  guint32 sent;
  gint64 sent_ns; /* when the oldest command that is not taken was sent, at the latest */
};

oct_bulletin *
oct_bulletin_new(guint32 n_replicas) {
  oct_bulletin *b = g_new0(oct_bulletin, 1);
  b->n_replicas = n_replicas;
  b->boards = g_new0(oct_board, n_replicas);
  return b;
}

void
oct_bulletin_free(oct_bulletin *b) {
  if (b == NULL)
    return;
  g_free(b->boards);
  g_free(b);
}

/* ---------------------------------------------------------------- engine thread */

void
oct_bulletin_entered(oct_bulletin *b, guint32 replica, gint64 now_ns) {
  oct_board *board = &b->boards[replica];
  if (atomic_load(&board->live) == 0)
    atomic_store(&board->since_ns, now_ns);
  atomic_fetch_add(&board->live, 1);
}

void
oct_bulletin_left(oct_bulletin *b, guint32 replica) {
  atomic_fetch_sub(&b->boards[replica].live, 1);
}

void
oct_bulletin_progress(oct_bulletin *b, guint32 replica, gint64 now_ns, const oct_event *event) {
  oct_board *board = &b->boards[replica];
  /* A fault finishes nothing: what has hung and is given up is no sign of life. */
  if (event->kind != OCT_EVENT_FAULT && event->kind != OCT_EVENT_MASK_WANTED)
    atomic_store(&board->progress_ns, now_ns);
  if (event->kind == OCT_EVENT_OPEN_PROGRESS)
    atomic_store(&board->opened_ppm, (guint64)(CLAMP(event->fraction, 0, 1) * 1e6));
  else if (event->kind == OCT_EVENT_OPENED)
    atomic_store(&board->opened_ppm, 1000000);
}

void
oct_bulletin_took(oct_bulletin *b, guint32 n_commands) {
  atomic_fetch_add(&b->taken, n_commands);
}

void
oct_bulletin_publish(oct_bulletin *b, const oct_service *service) {
  for (guint32 i = 0; i < service->n_replicas; i++) {
    const oct_engine *engine = service->replicas[i].engine;
    oct_page page = {0};
    guint64 words[PAGE_WORDS] = {0};
    if (engine == NULL)
      continue;
    oct_engine_get_stats(engine, &page.stats);
    g_strlcpy(page.reason, oct_engine_lost_reason(engine), sizeof page.reason);
    memcpy(words, &page, sizeof page);
    oct_board *board = &b->boards[i];
    atomic_fetch_add(&board->sequence, 1);
    for (gsize w = 0; w < PAGE_WORDS; w++)
      atomic_store_explicit(&board->words[w], words[w], memory_order_release);
    atomic_fetch_add(&board->sequence, 1);
  }
}

/* ---------------------------------------------------------------- front */

static void
read_page(const oct_bulletin *b, guint32 replica, oct_page *page) {
  oct_assert(replica < b->n_replicas);
  oct_board *board = &b->boards[replica];
  guint64 words[PAGE_WORDS];
  for (;;) {
    guint before = atomic_load(&board->sequence);
    for (gsize w = 0; w < PAGE_WORDS; w++)
      words[w] = atomic_load_explicit(&board->words[w], memory_order_acquire);
    if (before % 2 == 0 && atomic_load(&board->sequence) == before)
      break;
  }
  memcpy(page, words, sizeof *page);
  page->reason[REASON_BYTES - 1] = '\0';
}

void
oct_bulletin_sent(oct_bulletin *b, gint64 now_ns) {
  if (atomic_load(&b->taken) == b->sent)
    b->sent_ns = now_ns;
  b->sent++;
}

void
oct_bulletin_stats(const oct_bulletin *b, guint32 replica, oct_engine_stats *stats) {
  oct_page page;
  read_page(b, replica, &page);
  *stats = page.stats;
}

guint64
oct_bulletin_lost(const oct_bulletin *b, guint32 replica, char *reason, gsize room) {
  oct_page page;
  read_page(b, replica, &page);
  g_strlcpy(reason, page.reason, room);
  return page.stats.lost;
}

static void
worsen(oct_service_status *status, oct_health health, const char *reason) {
  if (health <= status->health)
    return;
  status->health = health;
  g_strlcpy(status->reason, reason, sizeof status->reason);
}

static void
judge_age(oct_service_status *status, gint64 age_ns, gint64 busy_ns, gint64 stall_ns,
          const char *what) {
  char reason[96];
  if (age_ns < busy_ns)
    return;
  g_snprintf(reason, sizeof reason, "%s for %.1f s", what, (double)age_ns / 1e9);
  worsen(status, age_ns >= stall_ns ? OCT_HEALTH_STALLED : OCT_HEALTH_BUSY, reason);
}

void
oct_bulletin_status(const oct_bulletin *b, gint64 now_ns, gint64 busy_ns, gint64 stall_ns,
                    oct_service_status *status) {
  guint32 dead = 0, opening = 0;
  guint64 opened = 0;
  char why[REASON_BYTES] = "";
  *status = (oct_service_status){.health = OCT_HEALTH_OK, .progress_age_ns = G_MAXINT64};
  for (guint32 i = 0; i < b->n_replicas; i++) {
    oct_board *board = &b->boards[i];
    oct_page page;
    read_page(b, i, &page);
    gint64 progress = atomic_load(&board->progress_ns);
    status->progress_age_ns = MIN(status->progress_age_ns, now_ns - progress);
    status->running += page.stats.running;
    status->waiting += page.stats.waiting;
    opened += atomic_load(&board->opened_ppm);
    status->ready = status->ready || page.stats.state == OCT_ENGINE_SERVING;
    opening += page.stats.state == OCT_ENGINE_OPENING;
    if (page.stats.state == OCT_ENGINE_DEAD) {
      dead++;
      g_strlcpy(why, page.reason, sizeof why);
    } else if (page.stats.state == OCT_ENGINE_RECOVERING)
      worsen(status, OCT_HEALTH_BUSY, page.reason);
    else if (page.stats.state == OCT_ENGINE_SERVING &&
             (atomic_load(&board->live) > 0 || page.stats.unfinished_steps > 0))
      judge_age(status, now_ns - MAX(progress, atomic_load(&board->since_ns)), busy_ns, stall_ns,
                "no step has ended");
  }
  if (b->sent != atomic_load(&b->taken))
    judge_age(status, now_ns - b->sent_ns, busy_ns, stall_ns, "the engine thread takes nothing");
  status->opened = (double)opened / 1e6 / b->n_replicas;
  if (opening == b->n_replicas && status->health == OCT_HEALTH_OK)
    status->health = OCT_HEALTH_OPENING;
  if (dead == b->n_replicas)
    worsen(status, OCT_HEALTH_DEAD, why);
}
