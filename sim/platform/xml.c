/* Writes a platform as a SimGrid file (platform.h): one zone with explicit routes. Every link has
 * latency 0 and is shared: SimGrid shares fairly only then, and what a transfer waits before its
 * first byte is part of its lane. */
#include "sim/platform/platform.h"

static void
write_hosts(const oct_platform *platform, guint n_lanes, GString *out) {
  g_string_append(out, "  <host id=\"clock\" speed=\"1Gf\"/>\n");
  for (guint i = 0; i < n_lanes; i++)
    g_string_append_printf(out, "  <host id=\"lane%u\" speed=\"1Gf\"/>\n", i);
  for (guint i = 0; i < oct_platform_host_count(platform); i++)
    g_string_append_printf(out, "  <host id=\"%s\" speed=\"1Gf\"/>\n",
                           oct_platform_host_name(platform, i));
}

static void
write_links(const oct_platform *platform, GString *out) {
  char number[G_ASCII_DTOSTR_BUF_SIZE];
  for (guint i = 0; i < oct_platform_resource_count(platform); i++) {
    const oct_resource *r = oct_platform_resource(platform, i);
    g_ascii_dtostr(number, sizeof number, r->per_s);
    g_string_append_printf(out, "  <link id=\"%s\" bandwidth=\"%sBps\" latency=\"0s\"/>\n", r->name,
                           number);
  }
}

static void
write_routes(const oct_platform *platform, GString *out) {
  for (guint i = 0; i < oct_platform_route_count(platform); i++) {
    const oct_route *route = oct_platform_route(platform, i);
    g_string_append_printf(out, "  <route src=\"%s\" dst=\"%s\" symmetrical=\"NO\">",
                           oct_platform_host_name(platform, route->from),
                           oct_platform_host_name(platform, route->to));
    for (guint l = 0; l < route->n; l++)
      g_string_append_printf(out, "<link_ctn id=\"%s\"/>",
                             oct_platform_resource(platform, route->resources[l])->name);
    g_string_append(out, "</route>\n");
  }
}

char *
oct_platform_xml(const oct_platform *platform, guint n_lanes) {
  GString *out = g_string_sized_new(32768);
  g_string_append(out, "<?xml version=\"1.0\"?>\n"
                       "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
                       "<platform version=\"4.1\">\n"
                       " <zone id=\"node\" routing=\"Full\">\n");
  write_hosts(platform, n_lanes, out);
  write_links(platform, out);
  write_routes(platform, out);
  g_string_append(out, " </zone>\n</platform>\n");
  return g_string_free(out, FALSE);
}
