/* Heats are kept in inflated units: instead of ageing all of them at every step, what one use adds
 * grows by 2^(1/half-life) per step, and everything is scaled down when it gets large. A heat thus
 * never falls between two scalings, and the coldest one of a set found once is a lower bound until
 * then: most misses are turned away without looking at the slots. */
#include "engine/sched/experts.h"

#include <math.h>
#include <string.h>

#include "engine/base/assert.h"
#include "engine/sched/engine.h"

#define PAYS       1.4426950408889634 /* 1 / ln 2 */
#define WEIGHT_MAX 0x1p200

typedef enum slot_state {
  SLOT_FREE,
  SLOT_MAPPED,
  SLOT_LEAVING,
  SLOT_DRAINING,
  SLOT_LOADING,
  SLOT_LOADED
} slot_state;

typedef struct expert_slot {
  guint32 expert; /* in the slot: MAPPED, LEAVING, DRAINING, LOADED; OCT_NO_INDEX otherwise */
  guint32 next;   /* to be loaded: LEAVING, DRAINING, LOADING; OCT_NO_INDEX otherwise */
  guint64 mapped; /* step that put it on the map, 0 = it is not there (invariant 3) */
  guint64 left;   /* DRAINING: step that took it off */
  guint8 state;   /* slot_state */
} expert_slot;

/* Slots of one layer and rank. */
typedef struct expert_set {
  double coldest; /* not above the heat of any expert that is in a slot or on its way to one */
} expert_set;

typedef struct candidate {
  double gain;
  guint32 layer, expert;
} candidate;

struct oct_experts {
  const oct_model_spec *spec;
  oct_expert_options options;
  guint32 n_ranks, n_slots, n_experts; /* n_experts: of the widest layer */
  double weight, growth;               /* what one use adds, and by what that grows per step */
  double *heat;                        /* [layer][expert] */
  guint32 *where;        /* [layer][expert] slot that it is in or on its way to, OCT_NO_INDEX */
  expert_slot *slots;    /* [layer][rank][slot] */
  expert_set *sets;      /* [layer][rank] */
  guint64 *expert_bytes; /* [layer] one expert over all ranks */
  /* Indices into slots[], each slot at most once in the two together. */
  guint32 *to_change, n_to_change; /* LEAVING and LOADED: for the next record */
  guint32 *to_load, n_to_load;     /* DRAINING: for a copy */
  guint32 n_moving;                /* LEAVING, DRAINING, LOADING */
  guint32 n_warming;               /* of warm-up, not arrived */
  candidate *candidates;           /* min-heap by gain [loads_max] */
  guint32 n_candidates;
  oct_expert_stats stats;
};

static const oct_ffn_spec *
layer_ffn(const oct_experts *x, guint32 layer) {
  return &x->spec->ffn[x->spec->layers[layer].ffn];
}

static guint32
rank_of(const oct_experts *x, guint32 layer, guint32 expert) {
  return expert / (layer_ffn(x, layer)->n_experts / x->n_ranks);
}

static guint32
set_of(const oct_experts *x, guint32 layer, guint32 expert) {
  return layer * x->n_ranks + rank_of(x, layer, expert);
}

static guint32
layer_of(const oct_experts *x, guint32 slot) {
  return slot / (x->n_slots * x->n_ranks);
}

static gsize
cell(const oct_experts *x, guint32 layer, guint32 expert) {
  return (gsize)layer * x->n_experts + expert;
}

/* ---------------------------------------------------------------- warm-up */

/* Chooses the hottest experts of each set for its free slots. */
static void
choose_warm(oct_experts *x) {
  for (guint32 layer = 0; layer < x->spec->n_layers; layer++) {
    guint32 n_experts = layer_ffn(x, layer)->n_experts;
    for (guint32 rank = 0; rank < x->n_ranks && n_experts > 0; rank++) {
      guint32 first = n_experts / x->n_ranks * rank, n = n_experts / x->n_ranks;
      guint32 slot = (layer * x->n_ranks + rank) * x->n_slots;
      for (guint32 i = 0; i < MIN(n, x->n_slots); i++, slot++) {
        guint32 best = OCT_NO_INDEX;
        for (guint32 e = first; e < first + n; e++)
          if (x->where[cell(x, layer, e)] == OCT_NO_INDEX &&
              (best == OCT_NO_INDEX || x->heat[cell(x, layer, e)] > x->heat[cell(x, layer, best)]))
            best = e;
        x->where[cell(x, layer, best)] = slot;
        x->slots[slot].next = best;
        x->slots[slot].state = SLOT_DRAINING;
        x->to_load[x->n_to_load++] = slot;
        x->n_moving++;
        x->n_warming++;
      }
    }
  }
}

void
oct_experts_reset(oct_experts *x) {
  gsize n_cells = (gsize)x->spec->n_layers * x->n_experts;
  gsize n_sets = (gsize)x->spec->n_layers * x->n_ranks;
  for (gsize i = 0; i < n_cells; i++)
    x->where[i] = OCT_NO_INDEX;
  for (gsize i = 0; i < n_sets * x->n_slots; i++)
    x->slots[i] = (expert_slot){.expert = OCT_NO_INDEX, .next = OCT_NO_INDEX};
  for (gsize i = 0; i < n_sets; i++)
    x->sets[i].coldest = 0;
  x->n_to_change = x->n_to_load = x->n_moving = x->n_warming = 0;
  choose_warm(x);
}

/* First heats: as if the most popular expert of a layer had been used in every step. */
static void
expect(oct_experts *x) {
  const oct_expert_options *o = &x->options;
  double full = o->half_life_steps * PAYS;
  for (guint32 layer = 0; layer < x->spec->n_layers; layer++) {
    guint32 n = layer_ffn(x, layer)->n_experts;
    double *heat = x->heat + cell(x, layer, 0), most = 0;
    for (guint32 e = 0; e < n; e++) {
      if (o->warmup == OCT_EXPERT_WARM_POWER_LAW)
        heat[e] = pow(e + 1.0, -o->exponent);
      else if (o->warmup == OCT_EXPERT_WARM_HISTOGRAM)
        heat[e] = o->histogram[cell(x, layer, e)];
      most = MAX(most, heat[e]);
    }
    for (guint32 e = 0; e < n && most > 0; e++)
      heat[e] *= full / most;
  }
}

static gboolean
check_options(const oct_model_spec *spec, guint32 n_experts, guint32 n_slots,
              const oct_expert_options *o, GError **error) {
  if (n_experts == 0 || n_slots == 0) {
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG,
                "%u expert slots for %s, which has %u experts in a layer", n_slots, spec->name,
                n_experts);
    return FALSE;
  }
  if (!(o->exponent >= 0 && o->exponent <= 64)) {
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG,
                "exponent %g of the experts' power law: allowed are 0 to 64", o->exponent);
    return FALSE;
  }
  if (o->warmup != OCT_EXPERT_WARM_HISTOGRAM)
    return TRUE;
  oct_assert(o->histogram != NULL);
  for (gsize i = 0; i < (gsize)spec->n_layers * n_experts; i++)
    if (!(o->histogram[i] >= 0 && o->histogram[i] <= G_MAXDOUBLE)) {
      g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG,
                  "expert histogram: layer %u expert %u is %g", (guint32)(i / n_experts),
                  (guint32)(i % n_experts), o->histogram[i]);
      return FALSE;
    }
  return TRUE;
}

oct_experts *
oct_experts_new(const oct_model_spec *spec, const oct_parallel *parallel, guint32 n_slots,
                const oct_expert_options *options, GError **error) {
  guint32 n_experts = 0;
  for (guint32 l = 0; l < spec->n_layers; l++)
    n_experts = MAX(n_experts, spec->ffn[spec->layers[l].ffn].n_experts);
  if (!check_options(spec, n_experts, n_slots, options, error))
    return NULL;
  oct_experts *x = g_new0(oct_experts, 1);
  x->spec = spec;
  x->options = *options;
  if (x->options.half_life_steps == 0)
    x->options.half_life_steps = OCT_EXPERT_HALF_LIFE_STEPS;
  if (x->options.loads_max == 0)
    x->options.loads_max = OCT_EXPERT_LOADS_MAX;
  if (x->options.exponent <= 0)
    x->options.exponent = 1;
  x->n_ranks = parallel->expert_parallel ? parallel->tensor * parallel->data : 1;
  x->n_slots = n_slots;
  x->n_experts = n_experts;
  x->weight = 1;
  x->growth = exp2(1.0 / x->options.half_life_steps);
  gsize n_cells = (gsize)spec->n_layers * n_experts;
  gsize n_sets = (gsize)spec->n_layers * x->n_ranks;
  x->heat = g_new0(double, n_cells);
  x->where = g_new0(guint32, n_cells);
  x->slots = g_new0(expert_slot, n_sets * n_slots);
  x->sets = g_new0(expert_set, n_sets);
  x->to_change = g_new0(guint32, n_sets * n_slots);
  x->to_load = g_new0(guint32, n_sets * n_slots);
  x->candidates = g_new0(candidate, x->options.loads_max);
  x->expert_bytes = g_new0(guint64, spec->n_layers);
  for (guint32 l = 0; l < spec->n_layers; l++)
    x->expert_bytes[l] = oct_model_expert(spec, l).bytes;
  expect(x);
  x->options.histogram = NULL;
  oct_experts_reset(x);
  return x;
}

void
oct_experts_free(oct_experts *x) {
  if (x == NULL)
    return;
  g_free(x->heat);
  g_free(x->where);
  g_free(x->slots);
  g_free(x->sets);
  g_free(x->to_change);
  g_free(x->to_load);
  g_free(x->candidates);
  g_free(x->expert_bytes);
  g_free(x);
}

/* ---------------------------------------------------------------- candidates */

/* The heap's order is total, so that equal gains are chosen alike in every run. */
static gboolean
worse(const candidate *a, const candidate *b) {
  if (a->gain < b->gain || a->gain > b->gain)
    return a->gain < b->gain;
  return a->layer != b->layer ? a->layer > b->layer : a->expert > b->expert;
}

static void
sift_down(candidate *heap, guint32 n, guint32 i) {
  for (;;) {
    guint32 child = 2 * i + 1;
    if (child >= n)
      return;
    if (child + 1 < n && worse(&heap[child + 1], &heap[child]))
      child++;
    if (!worse(&heap[child], &heap[i]))
      return;
    candidate swap = heap[i];
    heap[i] = heap[child];
    heap[child] = swap;
    i = child;
  }
}

/* Keeps the best of all offered, `room` at most; the worst kept is on top. */
static void
offer(oct_experts *x, candidate c, guint32 room) {
  candidate *heap = x->candidates;
  if (x->n_candidates == room) {
    if (!worse(&heap[0], &c))
      return;
    heap[0] = c;
    sift_down(heap, room, 0);
    return;
  }
  guint32 i = x->n_candidates++;
  heap[i] = c;
  for (; i > 0 && worse(&heap[i], &heap[(i - 1) / 2]); i = (i - 1) / 2) {
    candidate swap = heap[i];
    heap[i] = heap[(i - 1) / 2];
    heap[(i - 1) / 2] = swap;
  }
}

/* ---------------------------------------------------------------- choosing loads */

/* A free slot of the set, else that of its coldest mapped expert; OCT_NO_INDEX when all move.
 * Brings the set's bound up to date. */
static guint32
find_victim(oct_experts *x, guint32 set) {
  guint32 layer = set / x->n_ranks, victim = OCT_NO_INDEX;
  double victim_heat = 0, coldest = G_MAXDOUBLE;
  for (guint32 s = set * x->n_slots; s < (set + 1) * x->n_slots; s++) {
    const expert_slot *slot = &x->slots[s];
    if (slot->state == SLOT_FREE)
      return s;
    guint32 stays = slot->next != OCT_NO_INDEX ? slot->next : slot->expert;
    double heat = x->heat[cell(x, layer, stays)];
    coldest = MIN(coldest, heat);
    if (slot->state == SLOT_MAPPED && (victim == OCT_NO_INDEX || heat < victim_heat)) {
      victim = s;
      victim_heat = heat;
    }
  }
  x->sets[set].coldest = coldest;
  return victim;
}

static void
choose_load(oct_experts *x, const candidate *c) {
  guint32 set = set_of(x, c->layer, c->expert);
  guint32 victim = find_victim(x, set);
  if (victim == OCT_NO_INDEX)
    return;
  expert_slot *slot = &x->slots[victim];
  double heat = x->heat[cell(x, c->layer, c->expert)];
  if (slot->state == SLOT_FREE) {
    slot->state = SLOT_DRAINING; /* nobody reads it */
    slot->left = 0;
    x->to_load[x->n_to_load++] = victim;
  } else {
    if (heat - x->heat[cell(x, c->layer, slot->expert)] <= x->weight * PAYS)
      return;
    slot->state = SLOT_LEAVING;
    x->to_change[x->n_to_change++] = victim;
    x->stats.evictions++;
  }
  slot->next = c->expert;
  x->where[cell(x, c->layer, c->expert)] = victim;
  x->n_moving++;
}

/* One step older. */
static void
age(oct_experts *x) {
  x->weight *= x->growth;
  if (x->weight < WEIGHT_MAX)
    return;
  gsize n_cells = (gsize)x->spec->n_layers * x->n_experts;
  for (gsize i = 0; i < n_cells; i++)
    x->heat[i] /= x->weight;
  for (gsize i = 0; i < (gsize)x->spec->n_layers * x->n_ranks; i++)
    x->sets[i].coldest /= x->weight;
  x->weight = 1;
}

gboolean
oct_experts_used(oct_experts *x, const oct_expert_use *uses, guint32 n) {
  for (guint32 i = 0; i < n; i++)
    if (uses[i].layer >= x->spec->n_layers ||
        uses[i].expert >= layer_ffn(x, uses[i].layer)->n_experts)
      return FALSE;
  guint32 moving = MIN(x->n_moving, x->options.loads_max);
  guint32 room = x->options.policy == OCT_EXPERT_LRU ? x->options.loads_max - moving : 0;
  x->n_candidates = 0;
  age(x);
  for (guint32 i = 0; i < n; i++) {
    const oct_expert_use *u = &uses[i];
    gsize at = cell(x, u->layer, u->expert);
    x->heat[at] += x->weight;
    x->stats.uses++;
    x->stats.used_pairs += u->tokens;
    if (!u->missed) {
      x->stats.hits++;
      x->stats.hit_pairs += u->tokens;
      continue;
    }
    if (room == 0 || x->where[at] != OCT_NO_INDEX)
      continue;
    double gain = x->heat[at] - x->sets[set_of(x, u->layer, u->expert)].coldest;
    if (gain > x->weight * PAYS)
      offer(x, (candidate){.gain = gain, .layer = u->layer, .expert = u->expert}, room);
  }
  /* Best first: the heap gives the worst, so it is emptied from the back. */
  guint32 chosen = x->n_candidates;
  for (guint32 left = chosen; left > 1; left--) {
    candidate swap = x->candidates[0];
    x->candidates[0] = x->candidates[left - 1];
    x->candidates[left - 1] = swap;
    sift_down(x->candidates, left - 1, 0);
  }
  for (guint32 i = 0; i < chosen; i++)
    choose_load(x, &x->candidates[i]);
  return TRUE;
}

/* ---------------------------------------------------------------- the map */

void
oct_experts_plan(oct_experts *x, guint64 number, oct_step_builder *builder) {
  guint32 n = MIN(x->n_to_change, OCT_STEP_COPIES_MAX);
  for (guint32 i = 0; i < n; i++) {
    guint32 s = x->to_change[i];
    expert_slot *slot = &x->slots[s];
    oct_expert_change *change = oct_step_add_expert(builder);
    change->layer = (guint16)layer_of(x, s);
    change->expert = slot->expert;
    if (slot->state == SLOT_LEAVING) {
      change->slot = OCT_NO_INDEX;
      slot->state = SLOT_DRAINING;
      slot->left = number;
      x->to_load[x->n_to_load++] = s;
    } else {
      oct_assert(slot->state == SLOT_LOADED);
      change->slot = s % x->n_slots;
      slot->state = SLOT_MAPPED;
      slot->mapped = number;
    }
  }
  memmove(x->to_change, x->to_change + n, (x->n_to_change - n) * sizeof *x->to_change);
  x->n_to_change -= n;
}

/* The slot's expert stays after all, since the step that took it off the map failed. */
static void
stay(oct_experts *x, guint32 s) {
  expert_slot *slot = &x->slots[s];
  guint32 kept = 0;
  for (guint32 i = 0; i < x->n_to_load; i++)
    if (x->to_load[i] != s)
      x->to_load[kept++] = x->to_load[i];
  x->n_to_load = kept;
  x->where[cell(x, layer_of(x, s), slot->next)] = OCT_NO_INDEX;
  slot->next = OCT_NO_INDEX;
  slot->left = 0;
  x->n_moving--;
  if (slot->mapped != 0) {
    slot->state = SLOT_MAPPED;
  } else {
    slot->state = SLOT_LOADED;
    x->to_change[x->n_to_change++] = s;
  }
}

void
oct_experts_step_failed(oct_experts *x, guint64 number) {
  gsize n_slots = (gsize)x->spec->n_layers * x->n_ranks * x->n_slots;
  for (guint32 s = 0; s < n_slots; s++) {
    expert_slot *slot = &x->slots[s];
    if (slot->mapped == number && number != 0) {
      slot->mapped = 0;
      if (slot->state == SLOT_MAPPED) {
        slot->state = SLOT_LOADED;
        x->to_change[x->n_to_change++] = s;
      }
    }
    if (slot->state == SLOT_DRAINING && slot->left == number && number != 0)
      stay(x, s);
  }
}

/* ---------------------------------------------------------------- copies */

guint32
oct_experts_loads(oct_experts *x, guint64 completed, oct_copy *copies, guint32 max) {
  guint32 n = 0, kept = 0;
  for (guint32 i = 0; i < x->n_to_load; i++) {
    guint32 s = x->to_load[i];
    expert_slot *slot = &x->slots[s];
    oct_assert(slot->state == SLOT_DRAINING);
    if (n == max || slot->left > completed) {
      x->to_load[kept++] = s;
      continue;
    }
    guint32 layer = layer_of(x, s);
    if (slot->expert != OCT_NO_INDEX)
      x->where[cell(x, layer, slot->expert)] = OCT_NO_INDEX;
    slot->expert = OCT_NO_INDEX;
    slot->mapped = slot->left = 0;
    slot->state = SLOT_LOADING;
    copies[n++] = (oct_copy){.kind = OCT_COPY_EXPERT,
                             .order = OCT_COPY_BESIDE,
                             .from_tier = OCT_TIER_HOST,
                             .to_tier = OCT_TIER_DEVICE,
                             .group = (guint16)layer,
                             .from = slot->next,
                             .to = s % x->n_slots};
  }
  x->n_to_load = kept;
  return n;
}

void
oct_experts_loaded(oct_experts *x, const oct_copy *copies, guint32 n, gboolean failed) {
  for (guint32 i = 0; i < n; i++) {
    guint32 layer = copies[i].group, expert = copies[i].from;
    guint32 s = set_of(x, layer, expert) * x->n_slots + copies[i].to;
    expert_slot *slot = &x->slots[s];
    oct_assert(slot->state == SLOT_LOADING && slot->next == expert);
    slot->next = OCT_NO_INDEX;
    x->n_moving--;
    if (x->n_warming > 0)
      x->n_warming--;
    if (failed) {
      slot->state = SLOT_FREE;
      x->where[cell(x, layer, expert)] = OCT_NO_INDEX;
      x->sets[s / x->n_slots].coldest = 0; /* anything may take a free slot */
      continue;
    }
    slot->expert = expert;
    slot->state = SLOT_LOADED;
    x->to_change[x->n_to_change++] = s;
    x->stats.loads++;
    x->stats.loaded_bytes += x->expert_bytes[layer];
  }
}

/* ---------------------------------------------------------------- inspect */

gboolean
oct_experts_warm(const oct_experts *x) {
  return x->n_warming == 0;
}

void
oct_experts_get_stats(const oct_experts *x, oct_expert_stats *stats) {
  *stats = x->stats;
}

guint32
oct_experts_slot(const oct_experts *x, guint32 layer, guint32 expert) {
  guint32 s = x->where[cell(x, layer, expert)];
  if (s == OCT_NO_INDEX || x->slots[s].expert != expert || x->slots[s].mapped == 0)
    return OCT_NO_INDEX;
  return x->slots[s].state == SLOT_DRAINING ? OCT_NO_INDEX : s % x->n_slots;
}

#define BROKEN(...)                                                                                \
  do {                                                                                             \
    g_set_error(error, OCT_ENGINE_ERROR, OCT_ENGINE_ERROR_CONFIG, __VA_ARGS__);                    \
    return FALSE;                                                                                  \
  } while (0)

/* Which of `expert` and `next` a slot in the state has, and whether it awaits a record or a copy.
 */
static const struct {
  gboolean expert, next, change, load;
} expected[] = {
    [SLOT_FREE] = {FALSE, FALSE, FALSE, FALSE},   [SLOT_MAPPED] = {TRUE, FALSE, FALSE, FALSE},
    [SLOT_LEAVING] = {TRUE, TRUE, TRUE, FALSE},   [SLOT_DRAINING] = {TRUE, TRUE, FALSE, TRUE},
    [SLOT_LOADING] = {FALSE, TRUE, FALSE, FALSE}, [SLOT_LOADED] = {TRUE, FALSE, TRUE, FALSE},
};

gboolean
oct_experts_check(const oct_experts *x, GError **error) {
  guint32 n_slots = x->spec->n_layers * x->n_ranks * x->n_slots;
  guint32 n_change = 0, n_load = 0, n_moving = 0, n_there = 0, n_where = 0;
  for (guint32 s = 0; s < n_slots; s++) {
    const expert_slot *slot = &x->slots[s];
    guint32 layer = layer_of(x, s);
    n_change += expected[slot->state].change;
    n_load += expected[slot->state].load;
    n_moving += expected[slot->state].next;
    /* A draining slot that was free holds nothing. */
    if (slot->state != SLOT_DRAINING &&
        (slot->expert != OCT_NO_INDEX) != expected[slot->state].expert)
      BROKEN("layer %u expert slot %u: state %u with expert %u", layer, s, slot->state,
             slot->expert);
    if ((slot->next != OCT_NO_INDEX) != expected[slot->state].next)
      BROKEN("layer %u expert slot %u: state %u with %u to come", layer, s, slot->state,
             slot->next);
    const guint32 experts[] = {slot->expert, slot->next};
    for (guint i = 0; i < 2; i++) {
      if (experts[i] == OCT_NO_INDEX)
        continue;
      n_there++;
      if (x->where[cell(x, layer, experts[i])] != s ||
          set_of(x, layer, experts[i]) != s / x->n_slots)
        BROKEN("layer %u expert slot %u has expert %u, which should be in slot %u", layer, s,
               experts[i], x->where[cell(x, layer, experts[i])]);
    }
  }
  for (gsize i = 0; i < (gsize)x->spec->n_layers * x->n_experts; i++)
    n_where += x->where[i] != OCT_NO_INDEX;
  if (n_change != x->n_to_change || n_load != x->n_to_load || n_moving != x->n_moving ||
      n_there != n_where)
    BROKEN("expert slots: %u to change (%u listed), %u to load (%u), %u moving (%u), %u experts "
           "(%u)",
           n_change, x->n_to_change, n_load, x->n_to_load, n_moving, x->n_moving, n_there, n_where);
  return TRUE;
}

/* ---------------------------------------------------------------- break-even batch */

static double
distinct(double n, double draws, double batch) {
  if (n <= 0)
    return 0;
  return n * (1 - pow(1 - MIN(draws / n, 1), batch));
}

/* The link's time minus the memory's, for a step of `batch` tokens. */
static double
link_excess_s(const oct_expert_balance *b, double batch) {
  double missed = distinct(b->n_experts - b->n_resident, b->top_k * (1 - b->hit_share), batch);
  double touched = distinct(b->n_resident, b->top_k * b->hit_share, batch);
  double layer_bytes = b->n_layers * b->expert_bytes;
  return layer_bytes * missed / b->link_bytes_per_s -
         (b->other_bytes + layer_bytes * touched) / b->memory_bytes_per_s;
}

guint32
oct_experts_break_even(const oct_expert_balance *balance) {
  /* The first batch of a doubling scan for which the link binds bounds the bisection. */
  guint32 low = 0, high = 1;
  while (high < OCT_EXPERT_BATCH_MAX && link_excess_s(balance, high) <= 0) {
    low = high;
    high *= 2;
  }
  if (high >= OCT_EXPERT_BATCH_MAX && link_excess_s(balance, high) <= 0)
    return OCT_EXPERT_BATCH_MAX;
  while (high - low > 1) {
    guint32 middle = low + (high - low) / 2;
    if (link_excess_s(balance, middle) <= 0)
      low = middle;
    else
      high = middle;
  }
  return low;
}
