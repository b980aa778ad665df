#include "sim/scenario/warp.h"

#include <math.h>

#include "engine/base/assert.h"

typedef struct stretch {
  gint64 start_ns, end_ns;
  double factor;
} stretch;

/* Between two borders the product of factors is constant. */
typedef struct segment {
  gint64 start_ns;
  double factor;
  double before; /* integral up to its start */
} segment;

struct oct_warp {
  GArray *stretches;
  GArray *segments; /* made anew by every change */
  gint64 period_ns, peak_ns;
  double amplitude;
};

static int
compare_times(gconstpointer a, gconstpointer b) {
  gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;
  return x < y ? -1 : x > y;
}

/* The integral of the period alone from 0 to t. */
static double
period_integral(const oct_warp *w, double t) {
  if (w->period_ns == 0)
    return t;
  double k = 2 * G_PI / (double)w->period_ns, peak = (double)w->peak_ns;
  return t + w->amplitude / k * (sin(k * (t - peak)) + sin(k * peak));
}

static void
make_segments(oct_warp *w) {
  g_autoptr(GArray) borders = g_array_new(FALSE, FALSE, sizeof(gint64));
  gint64 zero = 0;
  g_array_append_val(borders, zero);
  for (guint i = 0; i < w->stretches->len; i++) {
    const stretch *s = &g_array_index(w->stretches, stretch, i);
    g_array_append_val(borders, s->start_ns);
    if (s->end_ns < G_MAXINT64)
      g_array_append_val(borders, s->end_ns);
  }
  g_array_sort(borders, compare_times);
  g_array_set_size(w->segments, 0);
  for (guint i = 0; i < borders->len; i++) {
    gint64 at = g_array_index(borders, gint64, i);
    if (i > 0 && at == g_array_index(borders, gint64, i - 1))
      continue;
    segment s = {.start_ns = at, .factor = 1};
    for (guint k = 0; k < w->stretches->len; k++) {
      const stretch *one = &g_array_index(w->stretches, stretch, k);
      if (one->start_ns <= at && at < one->end_ns)
        s.factor *= one->factor;
    }
    if (w->segments->len > 0) {
      const segment *last = &g_array_index(w->segments, segment, w->segments->len - 1);
      s.before = last->before + last->factor * (period_integral(w, (double)at) -
                                                period_integral(w, (double)last->start_ns));
    }
    g_array_append_val(w->segments, s);
  }
}

oct_warp *
oct_warp_new(void) {
  oct_warp *w = g_new0(oct_warp, 1);
  w->stretches = g_array_new(FALSE, FALSE, sizeof(stretch));
  w->segments = g_array_new(FALSE, FALSE, sizeof(segment));
  make_segments(w);
  return w;
}

void
oct_warp_free(oct_warp *w) {
  if (w == NULL)
    return;
  g_array_unref(w->stretches);
  g_array_unref(w->segments);
  g_free(w);
}

void
oct_warp_add(oct_warp *w, gint64 start_ns, gint64 end_ns, double factor) {
  oct_assert(start_ns >= 0 && end_ns > start_ns && factor >= 0 && factor <= OCT_WARP_FACTOR_MAX);
  oct_assert(factor > 0 || end_ns < G_MAXINT64);
  stretch s = {start_ns, end_ns, factor};
  g_array_append_val(w->stretches, s);
  make_segments(w);
}

void
oct_warp_set_period(oct_warp *w, gint64 period_ns, double amplitude, gint64 peak_ns) {
  oct_assert(period_ns > 0 && amplitude >= 0 && amplitude <= 1 && w->period_ns == 0);
  w->period_ns = period_ns;
  w->amplitude = amplitude;
  w->peak_ns = peak_ns;
  make_segments(w);
}

gboolean
oct_warp_has_period(const oct_warp *w) {
  return w->period_ns > 0;
}

static double
integral_in(const oct_warp *w, const segment *s, double t) {
  return s->before + s->factor * (period_integral(w, t) - period_integral(w, (double)s->start_ns));
}

double
oct_warp_integral(const oct_warp *w, gint64 t_ns) {
  guint i = w->segments->len - 1;
  while (i > 0 && g_array_index(w->segments, segment, i).start_ns > t_ns)
    i--;
  return integral_in(w, &g_array_index(w->segments, segment, i), (double)t_ns);
}

gint64
oct_warp_at(const oct_warp *w, gint64 usual_ns) {
  const double wanted = (double)usual_ns;
  guint i = w->segments->len - 1;
  while (i > 0 && g_array_index(w->segments, segment, i).before > wanted)
    i--;
  const segment *s = &g_array_index(w->segments, segment, i);
  if (s->factor <= 0) /* nothing comes here: it was due at the start */
    return s->start_ns;
  double low = (double)s->start_ns;
  if (w->period_ns == 0)
    return (gint64)llround(low + (wanted - s->before) / s->factor);
  double high = low + (wanted - s->before) / s->factor + (double)w->period_ns;
  for (int step = 0; step < 200 && high - low > 0.25; step++) {
    double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high)
      break;
    if (integral_in(w, s, middle) < wanted)
      low = middle;
    else
      high = middle;
  }
  return (gint64)llround(high);
}
