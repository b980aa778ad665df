#include "backends/fault/held.h"

void
fault_held_free(held_event *event) {
  g_free(event->result);
  g_free(event);
}

static void
free_event(gpointer data) {
  fault_held_free(data);
}

void
fault_held_init(fault_held *held) {
  held->events = g_ptr_array_new_with_free_func(free_event);
  held->n_held = 0;
}

void
fault_held_clear(fault_held *held) {
  g_ptr_array_unref(held->events);
}

held_event *
fault_hold(fault_held *held, guint32 id, oct_event_kind kind, guint64 number, oct_time time_ns) {
  held_event *h = g_new0(held_event, 1);
  h->instance = id;
  h->order = held->n_held++;
  h->time_ns = time_ns;
  h->event = (oct_event){.kind = kind, .instance = id, .number = number};
  g_ptr_array_add(held->events, h);
  return h;
}

void
fault_hold_fault(fault_held *held, guint32 id, oct_severity severity, guint64 number, guint32 slice,
                 gboolean retryable, oct_time time_ns, const char *what) {
  held_event *h = fault_hold(held, id, OCT_EVENT_FAULT, number, time_ns);
  h->fault = (oct_fault){.severity = severity,
                         .device = OCT_NO_INDEX,
                         .number = number,
                         .slice = slice,
                         .retryable = retryable};
  g_snprintf(h->fault.message, sizeof h->fault.message, "injected: %s", what);
}

void
fault_held_drop(fault_held *held, guint32 id) {
  for (guint32 i = held->events->len; i-- > 0;) {
    const held_event *h = held->events->pdata[i];
    if (h->instance == id)
      g_ptr_array_remove_index(held->events, i);
  }
}

guint32
fault_held_first(const fault_held *held) {
  guint32 best = held->events->len;
  for (guint32 i = 0; i < held->events->len; i++) {
    const held_event *h = held->events->pdata[i];
    const held_event *b = best < held->events->len ? held->events->pdata[best] : NULL;
    if (b == NULL || h->time_ns < b->time_ns || (h->time_ns == b->time_ns && h->order < b->order))
      best = i;
  }
  return best;
}
