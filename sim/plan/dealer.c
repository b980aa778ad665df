#include "sim/plan/dealer.h"

#include "engine/base/assert.h"
#include "engine/sched/router.h"

/* A replica as the dealer imagines it. */
typedef struct imagined {
  double free_s; /* its prompts are computed by then */
  GArray *ends;  /* double: when what it decodes ends, a heap, the earliest on top */
} imagined;

struct oct_plan_dealer {
  guint32 n, next; /* whose turn it is among equals */
  double prompt_token_s, token_s, now_s;
  imagined *replicas;
};

oct_plan_dealer *
oct_plan_dealer_new(guint32 n_replicas, double prompt_token_s, double token_s) {
  oct_assert(n_replicas >= 1 && prompt_token_s >= 0 && token_s >= 0);
  oct_plan_dealer *d = g_new0(oct_plan_dealer, 1);
  d->n = n_replicas;
  d->prompt_token_s = prompt_token_s;
  d->token_s = token_s;
  d->replicas = g_new0(imagined, n_replicas);
  for (guint32 i = 0; i < n_replicas; i++)
    d->replicas[i].ends = g_array_new(FALSE, FALSE, sizeof(double));
  return d;
}

void
oct_plan_dealer_free(oct_plan_dealer *d) {
  if (d == NULL)
    return;
  for (guint32 i = 0; i < d->n; i++)
    g_array_unref(d->replicas[i].ends);
  g_free(d->replicas);
  g_free(d);
}

static void
push(GArray *heap, double end) {
  g_array_append_val(heap, end);
  double *at = &g_array_index(heap, double, 0);
  guint i = heap->len - 1;
  for (; i > 0 && end < at[(i - 1) / 2]; i = (i - 1) / 2)
    at[i] = at[(i - 1) / 2];
  at[i] = end;
}

static void
pop(GArray *heap) {
  double *at = &g_array_index(heap, double, 0);
  const guint n = heap->len - 1;
  const double last = at[n];
  guint i = 0;
  for (guint child = 1; child < n; child = 2 * i + 1) {
    child += child + 1 < n && at[child + 1] < at[child];
    if (last <= at[child])
      break;
    at[i] = at[child];
    i = child;
  }
  at[i] = last;
  g_array_set_size(heap, n);
}

/* Tokens that the replica has to compute. */
static double
load_of(void *user, guint32 i) {
  const oct_plan_dealer *d = user;
  const double now = d->now_s;
  imagined *r = &d->replicas[i];
  while (r->ends->len > 0 && g_array_index(r->ends, double, 0) <= now)
    pop(r->ends);
  const double prompts = r->free_s > now ? (r->free_s - now) / d->prompt_token_s : 0;
  return prompts + r->ends->len;
}

gboolean
oct_plan_dealer_deal(void *dealer, const oct_trace_request *row) {
  oct_plan_dealer *d = dealer;
  const double now = d->now_s = (double)row->arrival_ns / 1e9;
  const guint32 best = oct_router_least_loaded(d->n, d->next, load_of, d);
  d->next = (best + 1) % d->n;
  imagined *r = &d->replicas[best];
  r->free_s = MAX(r->free_s, now) + row->input_tokens * d->prompt_token_s;
  push(r->ends, r->free_s + row->output_tokens * d->token_s);
  return best == 0;
}
