/* The checked wrappers of the seam, tag chains, and the builder of step records. What a record may
 * say is checked in backend-check.c.
 *
 * The wrappers hold the rules that no implementation should have to repeat: calls come from inside
 * oct_world_run() and name an instance, results are complete, and time never runs backwards. A
 * broken one is a bug of the caller or of the backend, so they assert.
 */
#include "engine/backend.h"

#include <string.h>

#include "engine/base/assert.h"
#include "engine/base/rng.h"

GQuark
oct_backend_error_quark(void) {
  return g_quark_from_static_string("oct-backend-error");
}

/* ---------------------------------------------------------------- wrappers */

void
oct_world_init(oct_world *world, const oct_world_ops *ops) {
  oct_assert(ops->abi == OCT_BACKEND_ABI);
  oct_assert(ops->name != NULL && ops->free != NULL && ops->run != NULL && ops->wake != NULL);
  oct_assert(ops->open != NULL && ops->close != NULL && ops->submit != NULL && ops->copy != NULL);
  oct_assert(ops->next != NULL);
  oct_assert(ops->forward == NULL || ops->clock == OCT_CLOCK_VIRTUAL);
  *world = (oct_world){.ops = ops};
}

void
oct_world_free(oct_world *world) {
  if (world == NULL)
    return;
  oct_assert(!world->running);
  world->ops->free(world);
}

int
oct_world_run(oct_world *world, oct_world_fn fn, void *arg) {
  oct_assert(!world->running && fn != NULL);
  world->running = TRUE;
  int value = world->ops->run(world, fn, arg);
  world->running = FALSE;
  return value;
}

void
oct_world_wake(oct_world *world) {
  world->ops->wake(world);
}

gboolean
oct_world_open(oct_world *world, const oct_instance_config *config, guint32 *instance,
               GError **error) {
  oct_assert(world->running && instance != NULL);
  *instance = 0;
  if (!oct_instance_config_check(config, error))
    return FALSE;
  gboolean opened = world->ops->open(world, config, instance, error);
  oct_assert(!opened || *instance >= 1);
  return opened;
}

void
oct_world_close(oct_world *world, guint32 instance) {
  oct_assert(world->running && instance >= 1);
  world->ops->close(world, instance);
}

oct_submit
oct_world_submit(oct_world *world, guint32 instance, const oct_step *step, GError **error) {
  oct_assert(world->running && instance >= 1);
  oct_assert(step->abi == OCT_BACKEND_ABI && step->bytes >= sizeof *step && step->number >= 1);
  return world->ops->submit(world, instance, step, error);
}

oct_submit
oct_world_copy(oct_world *world, guint32 instance, guint64 ticket, const oct_copy *copies,
               guint32 n_copies, GError **error) {
  oct_assert(world->running && instance >= 1 && n_copies >= 1);
  return world->ops->copy(world, instance, ticket, copies, n_copies, error);
}

gboolean
oct_world_can_pull(const oct_world *world) {
  return world->ops->pull != NULL;
}

oct_submit
oct_world_pull(oct_world *world, guint32 instance, guint32 peer, guint32 peer_domain,
               guint64 ticket, const oct_copy *copies, guint32 n_copies, GError **error) {
  oct_assert(world->running && instance >= 1 && peer >= 1 && peer != instance && n_copies >= 1);
  if (world->ops->pull == NULL) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED,
                "backend %s copies nothing between instances", world->ops->name);
    return OCT_SUBMIT_REFUSED;
  }
  return world->ops->pull(world, instance, peer, peer_domain, ticket, copies, n_copies, error);
}

gboolean
oct_world_mask(oct_world *world, guint32 instance, guint64 number, guint32 slice,
               const guint64 *bits, guint32 n_words, GError **error) {
  oct_assert(world->running && instance >= 1);
  if (world->ops->mask == NULL) {
    g_set_error(error, OCT_BACKEND_ERROR, OCT_BACKEND_ERROR_UNSUPPORTED,
                "backend %s takes no token masks", world->ops->name);
    return FALSE;
  }
  return world->ops->mask(world, instance, number, slice, bits, n_words, error);
}

gboolean
oct_world_next(oct_world *world, oct_time until_ns, oct_event *event) {
  oct_assert(world->running);
  memset(event, 0, sizeof *event);
  if (!world->ops->next(world, until_ns, event))
    return FALSE;
  oct_assert(event->time_ns >= world->now_ns);
  oct_assert(event->kind != OCT_EVENT_STEP_DONE || event->result != NULL);
  oct_assert(event->kind != OCT_EVENT_OPENED || event->capabilities != NULL);
  oct_assert((event->kind != OCT_EVENT_FAULT && event->kind != OCT_EVENT_OPEN_FAILED) ||
             event->fault != NULL);
  world->now_ns = event->time_ns;
  return TRUE;
}

gboolean
oct_world_forward(oct_world *world, guint32 instance, const oct_forward *forward,
                  oct_forwarded *forwarded) {
  oct_assert(world->running && instance >= 1);
  if (world->ops->forward == NULL || !world->ops->forward(world, instance, forward, forwarded))
    return FALSE;
  oct_assert(forwarded->end_ns <= forward->limit_ns && forward->submit_ns <= forwarded->end_ns);
  oct_assert(forwarded->end_ns >= world->now_ns);
  world->now_ns = forwarded->end_ns;
  return TRUE;
}

guint64
oct_tag_next(guint64 tag, guint32 token) {
  guint64 next = oct_mix64(tag ^ ((guint64)token * 0x9e3779b97f4a7c15u));
  return next != 0 ? next : 1; /* 0 means "not known" in a slice */
}

/* ---------------------------------------------------------------- builder */

/* The arrays of a record in the order of oct_step's fields, which is their order in memory. */
enum { SLICES, TOKENS, OPENS, BIASES, CHANGES, COPIES, EXPERTS, DOMAINS, N_ARRAYS };

static const guint32 item_size[N_ARRAYS] = {
    sizeof(oct_slice),       sizeof(guint32),  sizeof(oct_slot_open),     sizeof(oct_token_bias),
    sizeof(oct_page_change), sizeof(oct_copy), sizeof(oct_expert_change), sizeof(oct_domain_part)};

typedef struct grow_array {
  guint8 *data;
  guint32 n, room; /* items */
} grow_array;

struct oct_step_builder {
  grow_array array[N_ARRAYS];
  guint8 *record; /* the finished record */
  gsize record_room;
  guint64 number;
  guint32 n_grown;
  gboolean open; /* between begin and end */
};

oct_step_builder *
oct_step_builder_new(void) {
  return g_new0(oct_step_builder, 1);
}

void
oct_step_builder_free(oct_step_builder *builder) {
  if (builder == NULL)
    return;
  for (int i = 0; i < N_ARRAYS; i++)
    g_free(builder->array[i].data);
  g_free(builder->record);
  g_free(builder);
}

/* Room for n more items of array `which`, as it is. */
static inline void *
take_room(oct_step_builder *builder, int which, guint32 n) {
  oct_assert(builder->open);
  grow_array *a = &builder->array[which];
  oct_assert(n <= OCT_STEP_CHANGES_MAX && a->n <= OCT_STEP_CHANGES_MAX);
  if (a->n + n > a->room) {
    a->room = MAX(a->n + n, MAX(2 * a->room, 16));
    a->data = g_realloc_n(a->data, a->room, item_size[which]);
    builder->n_grown++;
  }
  void *items = a->data + (gsize)a->n * item_size[which];
  a->n += n;
  return items;
}

/* The same, zeroed. */
static void *
add(oct_step_builder *builder, int which, guint32 n) {
  return memset(take_room(builder, which, n), 0, (gsize)n * item_size[which]);
}

void
oct_step_begin(oct_step_builder *builder, guint64 number, guint16 n_domains) {
  oct_assert(number >= 1 && n_domains >= 1 && n_domains <= OCT_STEP_DOMAINS_MAX);
  for (int i = 0; i < N_ARRAYS; i++)
    builder->array[i].n = 0;
  builder->number = number;
  builder->open = TRUE;
  (void)add(builder, DOMAINS, n_domains);
}

oct_slice *
oct_step_add_slice(oct_step_builder *builder) {
  oct_slice *slice = add(builder, SLICES, 1);
  slice->tokens = slice->state_position = OCT_NO_INDEX;
  return slice;
}

oct_slice *
oct_step_next_slice(oct_step_builder *builder) {
  return take_room(builder, SLICES, 1);
}

oct_slot_open *
oct_step_add_open(oct_step_builder *builder) {
  oct_slot_open *open = add(builder, OPENS, 1);
  open->history = open->biases = open->stops = OCT_NO_INDEX;
  open->top_k = -1;
  open->top_p = open->repetition_penalty = 1;
  return open;
}

oct_page_change *
oct_step_add_change(oct_step_builder *builder) {
  return add(builder, CHANGES, 1);
}

oct_copy *
oct_step_add_copy(oct_step_builder *builder) {
  return add(builder, COPIES, 1);
}

oct_expert_change *
oct_step_add_expert(oct_step_builder *builder) {
  return add(builder, EXPERTS, 1);
}

guint32
oct_step_add_tokens(oct_step_builder *builder, const guint32 *ids, guint32 n, guint32 **room) {
  oct_assert(ids != NULL || room != NULL || n == 0);
  guint32 first = builder->array[TOKENS].n;
  guint32 *to = add(builder, TOKENS, n);
  if (ids != NULL && n > 0)
    memcpy(to, ids, (gsize)n * sizeof *ids);
  if (room != NULL)
    *room = to;
  return first;
}

guint32
oct_step_add_biases(oct_step_builder *builder, const oct_token_bias *biases, guint32 n) {
  guint32 first = builder->array[BIASES].n;
  oct_token_bias *to = add(builder, BIASES, n);
  if (n > 0)
    memcpy(to, biases, n * sizeof *biases);
  return first;
}

guint32
oct_step_slice_count(const oct_step_builder *builder) {
  return builder->array[SLICES].n;
}

guint32
oct_step_builder_grown(const oct_step_builder *builder) {
  return builder->n_grown;
}

/* Counts slices and tokens per domain. */
static void
fill_domains(oct_step_builder *builder) {
  const oct_slice *slices = (const oct_slice *)(const void *)builder->array[SLICES].data;
  oct_domain_part *parts = (oct_domain_part *)(void *)builder->array[DOMAINS].data;
  guint32 n_slices = builder->array[SLICES].n, n_domains = builder->array[DOMAINS].n, next = 0;
  for (guint32 d = 0; d < n_domains; d++) {
    parts[d].first_slice = next;
    for (; next < n_slices && slices[next].domain == d; next++) {
      parts[d].n_slices++;
      parts[d].n_tokens += slices[next].n_tokens;
    }
  }
  oct_assert(next == n_slices); /* sorted by domain, all below n_domains */
}

const oct_step *
oct_step_end(oct_step_builder *builder) {
  oct_assert(builder->open);
  fill_domains(builder);
  guint32 offset[N_ARRAYS];
  gsize bytes = sizeof(oct_step);
  for (int i = 0; i < N_ARRAYS; i++) {
    offset[i] = (guint32)bytes;
    bytes += ((gsize)builder->array[i].n * item_size[i] + 7) & ~(gsize)7;
  }
  oct_assert(bytes <= G_MAXUINT32);
  if (bytes > builder->record_room) {
    builder->record_room = MAX(bytes, 2 * builder->record_room);
    builder->record = g_realloc(builder->record, builder->record_room);
    builder->n_grown++;
  }
  for (int i = 0; i < N_ARRAYS; i++) {
    gsize used = (gsize)builder->array[i].n * item_size[i];
    if (used > 0)
      memcpy(builder->record + offset[i], builder->array[i].data, used);
    memset(builder->record + offset[i] + used, 0, -used & 7);
  }
  oct_step *step = (oct_step *)(void *)builder->record;
  *step = (oct_step){
      .bytes = (guint32)bytes,
      .abi = OCT_BACKEND_ABI,
      .n_domains = (guint16)builder->array[DOMAINS].n,
      .number = builder->number,
      .n_slices = builder->array[SLICES].n,
      .slices = offset[SLICES],
      .n_tokens = builder->array[TOKENS].n,
      .tokens = offset[TOKENS],
      .n_opens = builder->array[OPENS].n,
      .opens = offset[OPENS],
      .n_biases = builder->array[BIASES].n,
      .biases = offset[BIASES],
      .n_changes = builder->array[CHANGES].n,
      .changes = offset[CHANGES],
      .n_copies = builder->array[COPIES].n,
      .copies = offset[COPIES],
      .n_experts = builder->array[EXPERTS].n,
      .experts = offset[EXPERTS],
      .domains = offset[DOMAINS],
  };
  builder->open = FALSE;
  return step;
}
