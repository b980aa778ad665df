/* Steps and transfers of one mock instance, placed on the FIFO streams of its stages. */
#include "backends/mock/timeline.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"

/* When each FIFO stream of a stage is free. */
typedef struct stage {
  oct_time compute, in, out;
} stage;

struct oct_timeline {
  const oct_mock_options *options;
  guint32 n_stages, depth;
  stage stages[OCT_TIMELINE_STAGES];
  oct_time send_ns;
  oct_mock_flight *flights; /* ring [depth] */
  guint32 first, n;
  GPtrArray *transfers; /* in order of submission */
  GPtrArray *spare;     /* transfers that left */
};

static void
free_transfer(gpointer data) {
  oct_mock_transfer *t = data;
  g_free(t->copies);
  g_free(t);
}

oct_timeline *
oct_timeline_new(const oct_mock_options *options, guint32 n_stages, guint32 depth) {
  oct_assert(n_stages >= 1 && n_stages <= OCT_TIMELINE_STAGES && depth >= 1);
  oct_timeline *t = g_new0(oct_timeline, 1);
  t->options = options;
  t->n_stages = n_stages;
  t->depth = depth;
  t->flights = g_new0(oct_mock_flight, depth);
  t->transfers = g_ptr_array_new_with_free_func(free_transfer);
  t->spare = g_ptr_array_new_with_free_func(free_transfer);
  return t;
}

void
oct_timeline_free(oct_timeline *t) {
  if (t == NULL)
    return;
  g_ptr_array_unref(t->transfers);
  g_ptr_array_unref(t->spare);
  g_free(t->flights);
  g_free(t);
}

guint32
oct_timeline_flights(const oct_timeline *t) {
  return t->n;
}

oct_mock_flight *
oct_timeline_flight(oct_timeline *t, guint32 i) {
  oct_assert(i < t->n);
  return &t->flights[(t->first + i) % t->depth];
}

guint32
oct_timeline_transfers(const oct_timeline *t) {
  return t->transfers->len;
}

const oct_mock_transfer *
oct_timeline_transfer(const oct_timeline *t, guint32 i) {
  return g_ptr_array_index(t->transfers, i);
}

/* ---------------------------------------------------------------- the time table */

typedef struct price {
  gint64 compute, memory, fixed;
} price;

static price
load_price(const oct_mock_options *o, const oct_timeline_load *load) {
  /* An idle domain runs one padded slice of one token, which has no context. */
  guint32 n_slices = MAX(load->n_slices, 1), n_tokens = MAX(load->n_tokens, 1);
  return (price){
      .compute = o->token_ns * n_tokens,
      .memory = o->sequence_ns * n_slices + llround(o->context_ns * (double)load->context),
      .fixed = o->fixed_ns,
  };
}

static price
stage_price(const oct_timeline *t, const oct_mock_flight *f, guint32 s) {
  if (t->options->step_time != NULL)
    return (price){.compute = f->custom_ns[s]};
  price worst = {0};
  for (guint32 d = 0; d < f->n_loads; d++) {
    price p = load_price(t->options, &f->loads[d]);
    if (d == 0 || p.compute + p.memory + p.fixed > worst.compute + worst.memory + worst.fixed)
      worst = p;
  }
  return worst;
}

/* ---------------------------------------------------------------- placing items */

static const oct_mock_flight *
find_flight(oct_timeline *t, guint64 number) {
  for (guint32 i = 0; i < t->n && number != 0; i++)
    if (oct_timeline_flight(t, i)->number == number)
      return oct_timeline_flight(t, i);
  return NULL; /* none, or it has ended and left */
}

/* BEFORE copies of a stage: when they are done. */
static oct_time
place_before(oct_timeline *t, const oct_mock_flight *f, guint32 s, oct_time ready, oct_time wait) {
  stage *st = &t->stages[s];
  oct_time done = ready;
  if (f->in_before_ns > 0) {
    st->in = MAX(MAX(st->in, ready), wait) + f->in_before_ns;
    done = MAX(done, st->in);
  }
  if (f->out_before_ns > 0) {
    /* What leaves the device may be what the step before it writes. */
    st->out = MAX(MAX(st->out, ready), st->compute) + f->out_before_ns;
    done = MAX(done, st->out);
  }
  return done;
}

/* AFTER copies on the streams to and from the host: the next step on this stage waits for them. */
static void
place_after(oct_timeline *t, const oct_mock_flight *f, guint32 s) {
  stage *st = &t->stages[s];
  oct_time end = st->compute;
  if (f->out_after_ns > 0) {
    st->out = MAX(st->out, end) + f->out_after_ns;
    st->compute = MAX(st->compute, st->out);
  }
  if (f->in_after_ns > 0) {
    st->in = MAX(st->in, end) + f->in_after_ns;
    st->compute = MAX(st->compute, st->in);
  }
}

/* From submission to the point where the last stage samples. `tokens` is when the tokens that it
 * feeds on are known. */
static void
place_forward_pass(oct_timeline *t, oct_mock_flight *f, oct_time tokens) {
  const oct_mock_options *o = t->options;
  const oct_mock_flight *writer = find_flight(t, f->waits_for);
  oct_time ready = f->submit_ns + o->host_ns;
  oct_time wait = writer != NULL ? writer->stage_end_ns[t->n_stages - 1] : 0;
  oct_time arrive = MAX(ready, tokens);
  memset(f->part_ns, 0, sizeof f->part_ns);
  for (guint32 s = 0; s < t->n_stages; s++) {
    stage *st = &t->stages[s];
    price p = stage_price(t, f, s);
    oct_time before = place_before(t, f, s, ready, wait);
    oct_time begin = MAX(MAX(arrive, st->compute), before);
    gint64 copies = f->own_before_ns + f->step->missed[s] * o->expert_miss_ns;
    oct_time end = begin + copies + p.compute + p.memory + p.fixed;
    if (s == 0)
      f->start_ns = begin;
    f->part_ns[OCT_PART_COMPUTE] += p.compute;
    f->part_ns[OCT_PART_MEMORY] += p.memory;
    f->part_ns[OCT_PART_FIXED] += p.fixed;
    f->part_ns[OCT_PART_COPY] += copies;
    if (s + 1 < t->n_stages) {
      st->compute = end + f->own_after_ns;
      place_after(t, f, s);
      f->stage_end_ns[s] = st->compute;
      arrive = end + o->send_ns;
      f->part_ns[OCT_PART_COLLECTIVE] += o->send_ns;
    } else {
      f->sampling_ns = end;
    }
  }
  f->placed = TRUE;
}

/* Once every mask is there: the end of the last stage. Sampling holds it back, so that steps end in
 * order. */
static void
place_sampling(oct_timeline *t, oct_mock_flight *f) {
  guint32 last = t->n_stages - 1;
  f->end_ns = MAX(f->sampling_ns, f->mask_ns);
  t->stages[last].compute = f->end_ns + f->own_after_ns;
  place_after(t, f, last);
  f->stage_end_ns[last] = t->stages[last].compute;
  gint64 accounted = 0;
  for (int i = 0; i < OCT_PART_WAIT; i++)
    accounted += f->part_ns[i];
  f->part_ns[OCT_PART_WAIT] = f->end_ns - f->start_ns - accounted;
  f->known = TRUE;
}

static gint64
copy_ns(const oct_mock_options *o, const oct_copy *c) {
  return c->kind == OCT_COPY_PAGE    ? o->copy_page_ns
         : c->kind == OCT_COPY_STATE ? o->copy_state_ns
                                     : o->copy_expert_ns;
}

/* Every copy runs on all stages at once, each on its own stream; the transfer ends with the last.
 */
static void
place_transfer(oct_timeline *t, oct_mock_transfer *x) {
  const oct_mock_flight *source = find_flight(t, x->waits_for);
  oct_time after = x->submit_ns;
  for (guint32 i = 0; x->chained && oct_timeline_transfer(t, i) != x; i++)
    after = MAX(after, oct_timeline_transfer(t, i)->end_ns);
  x->end_ns = x->submit_ns;
  for (guint32 s = 0; s < t->n_stages; s++) {
    oct_time begin = MAX(after, source != NULL ? source->stage_end_ns[s] : 0);
    for (guint32 i = 0; i < x->n; i++) {
      gboolean in = x->copies[i].from_tier == OCT_TIER_HOST || x->peer != 0;
      oct_time *stream = in ? &t->stages[s].in : &t->stages[s].out;
      *stream = MAX(*stream, begin) + copy_ns(t->options, &x->copies[i]);
      x->end_ns = MAX(x->end_ns, *stream);
    }
  }
  x->known = TRUE;
}

static gboolean
uses_host_streams(const oct_mock_flight *f) {
  return f->in_before_ns > 0 || f->out_before_ns > 0 || f->in_after_ns > 0 || f->out_after_ns > 0;
}

/* A step waits for its mask: the transfers behind it go on, unless they wait for it or for what it
 * keeps waiting on their streams. */
static void
place_around(oct_timeline *t, guint32 waiting) {
  for (guint32 i = 0; i < t->transfers->len; i++) {
    oct_mock_transfer *x = g_ptr_array_index(t->transfers, i);
    gboolean free = !x->known;
    for (guint32 k = waiting; k < t->n; k++) {
      const oct_mock_flight *f = oct_timeline_flight(t, k);
      if (f->number <= x->behind && (uses_host_streams(f) || x->waits_for == f->number))
        free = FALSE;
    }
    if (free)
      place_transfer(t, x);
    else if (!x->known)
      return;
  }
}

/* Places what can be placed, in order of submission. */
void
oct_timeline_resolve(oct_timeline *t) {
  guint32 next_transfer = 0;
  for (guint32 i = 0; i <= t->n; i++) {
    oct_mock_flight *f = i < t->n ? oct_timeline_flight(t, i) : NULL;
    for (; next_transfer < t->transfers->len; next_transfer++) {
      oct_mock_transfer *x = g_ptr_array_index(t->transfers, next_transfer);
      if (f != NULL && x->behind >= f->number)
        break;
      if (!x->known)
        place_transfer(t, x);
    }
    if (f == NULL)
      return;
    const oct_mock_flight *feeds_on = find_flight(t, f->feeds_on);
    if (!f->placed)
      place_forward_pass(t, f, feeds_on != NULL ? feeds_on->end_ns : 0);
    if (!f->known && f->step->n_masks > 0) {
      place_around(t, i);
      return;
    }
    if (!f->known)
      place_sampling(t, f);
  }
}

/* ---------------------------------------------------------------- use */

oct_mock_flight *
oct_timeline_next_flight(oct_timeline *t) {
  oct_assert(t->n < t->depth);
  oct_mock_flight *f = &t->flights[(t->first + t->n) % t->depth];
  memset(f, 0, sizeof *f);
  return f;
}

void
oct_timeline_add_flight(oct_timeline *t, oct_mock_flight *f) {
  oct_assert(f == &t->flights[(t->first + t->n) % t->depth]);
  t->n++;
  oct_timeline_resolve(t);
}

void
oct_timeline_add_transfer(oct_timeline *t, const oct_mock_transfer *about, const oct_copy *copies,
                          guint32 n) {
  oct_mock_transfer *x = t->spare->len > 0
                             ? g_ptr_array_steal_index_fast(t->spare, t->spare->len - 1)
                             : g_new0(oct_mock_transfer, 1);
  if (n > x->room) {
    x->room = MAX(n, 2 * x->room);
    x->copies = g_renew(oct_copy, x->copies, x->room);
  }
  memcpy(x->copies, copies, n * sizeof *copies);
  x->n = n;
  x->ticket = about->ticket;
  x->waits_for = about->waits_for;
  x->chained = about->chained;
  x->peer = about->peer;
  x->peer_domain = about->peer_domain;
  x->submit_ns = about->submit_ns;
  x->behind = t->n > 0 ? oct_timeline_flight(t, t->n - 1)->number : 0;
  x->known = FALSE;
  g_ptr_array_add(t->transfers, x);
  oct_timeline_resolve(t);
}

void
oct_timeline_pop_flight(oct_timeline *t) {
  oct_assert(t->n > 0 && oct_timeline_flight(t, 0)->known);
  t->first = (t->first + 1) % t->depth;
  t->n--;
}

oct_mock_transfer *
oct_timeline_take_transfer(oct_timeline *t, guint32 i) {
  oct_mock_transfer *x = g_ptr_array_steal_index(t->transfers, i);
  g_ptr_array_add(t->spare, x);
  return x;
}

void
oct_timeline_forward(oct_timeline *t, oct_time submit_ns) {
  oct_assert(t->n == 1 && oct_timeline_flight(t, 0)->known);
  oct_mock_flight *f = oct_timeline_flight(t, 0);
  oct_time tokens = f->end_ns;
  for (guint32 d = 0; d < f->n_loads; d++) {
    f->loads[d].context += f->loads[d].n_slices;
    f->loads[d].n_tokens = f->loads[d].n_slices;
  }
  f->number = f->step->number;
  f->submit_ns = submit_ns;
  f->feeds_on = f->waits_for = 0;
  f->in_before_ns = f->out_before_ns = f->own_before_ns = 0;
  f->in_after_ns = f->out_after_ns = f->own_after_ns = 0;
  place_forward_pass(t, f, tokens);
  place_sampling(t, f);
}
