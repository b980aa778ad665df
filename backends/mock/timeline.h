/* When things happen on a mock instance: FIFO streams per stage, steps and copies in the order of
 * their submission. Times are known when an item is added, unless a mask is awaited: then those of
 * the step, and of what queues behind it, become known when the mask comes. */
#ifndef OCT_BACKENDS_MOCK_TIMELINE_H
#define OCT_BACKENDS_MOCK_TIMELINE_H

#include "backends/mock/mock.h"

#define OCT_TIMELINE_STAGES 16

/* A domain's part of a step as the time table wants it. */
typedef struct oct_timeline_load {
  guint32 n_slices, n_tokens;
  guint64 context;
} oct_timeline_load;

typedef struct oct_mock_flight {
  oct_shadow_step *step;
  guint64 number;
  oct_time submit_ns;
  guint64 feeds_on;  /* latest earlier step whose tokens it needs, 0 = none */
  guint64 waits_for; /* latest earlier step that a BEFORE copy waits for */
  guint32 n_loads;
  oct_timeline_load loads[OCT_STEP_DOMAINS_MAX];
  gint64 custom_ns[OCT_TIMELINE_STAGES];             /* from options.step_time */
  gint64 in_before_ns, out_before_ns, own_before_ns; /* copies by stream; own = device to device */
  gint64 in_after_ns, out_after_ns, own_after_ns;
  oct_time mask_ns;    /* when the last mask came */
  gboolean placed;     /* start_ns and sampling_ns are known */
  gboolean known;      /* end_ns, too */
  guint32 mask_events; /* slices looked at for MASK_WANTED so far */
  oct_time start_ns, sampling_ns, end_ns;
  oct_time stage_end_ns[OCT_TIMELINE_STAGES]; /* AFTER copies included */
  gint64 part_ns[OCT_PART_COUNT];
} oct_mock_flight;

typedef struct oct_mock_transfer {
  guint64 ticket;
  guint64 behind;            /* latest step submitted before it */
  guint64 waits_for;         /* step that writes a source */
  gboolean chained;          /* an earlier transfer writes a source */
  guint32 peer, peer_domain; /* pull: the instance that the sources are in; 0 = none */
  oct_time submit_ns, end_ns;
  gboolean known;
  guint32 n, room;
  oct_copy *copies;
} oct_mock_transfer;

typedef struct oct_timeline oct_timeline;

/* ---- life cycle. The options are borrowed. */
oct_timeline *oct_timeline_new(const oct_mock_options *options, guint32 n_stages, guint32 depth);
void oct_timeline_free(oct_timeline *timeline); /* accepts NULL */

/* ---- use */

/* The entry for a step about to be added, cleared. */
oct_mock_flight *oct_timeline_next_flight(oct_timeline *timeline);
void oct_timeline_add_flight(oct_timeline *timeline, oct_mock_flight *flight);
/* `about` gives ticket, waits_for, chained and submit_ns; the copies are copied. */
void oct_timeline_add_transfer(oct_timeline *timeline, const oct_mock_transfer *about,
                               const oct_copy *copies, guint32 n);
/* A mask came, or anything else that may let times become known. */
void oct_timeline_resolve(oct_timeline *timeline);
/* The oldest step, which has ended, leaves. */
void oct_timeline_pop_flight(oct_timeline *timeline);
/* The i-th transfer leaves; its copies are borrowed until the next add. */
oct_mock_transfer *oct_timeline_take_transfer(oct_timeline *timeline, guint32 i);
/* The only step becomes its successor, submitted at submit_ns: one token further per slice. */
void oct_timeline_forward(oct_timeline *timeline, oct_time submit_ns);

/* ---- inspect */
guint32 oct_timeline_flights(const oct_timeline *timeline);
oct_mock_flight *oct_timeline_flight(oct_timeline *timeline, guint32 i); /* 0 = oldest */
guint32 oct_timeline_transfers(const oct_timeline *timeline);
/* i-th transfer in order of submission. */
const oct_mock_transfer *oct_timeline_transfer(const oct_timeline *timeline, guint32 i);

#endif
