/* A report as one page for a browser: everything in one file, nothing from the network.
 *
 * The page is page.html with style, script, plot library and the report's JSON put in; the script
 * (page.js, draw.js) makes all of it from the JSON. Times of the machine that simulated ("run") are
 * left out, so equal configurations give equal pages, byte for byte.
 *
 * The plot library is Chart.js of Debian's package libjs-chart.js (doc/adr/0013). It is read from
 * where the package puts it when a page is made, or from the file that OCT_CHART_JS names in the
 * environment.
 */
#ifndef OCT_SIM_PAGE_PAGE_H
#define OCT_SIM_PAGE_PAGE_H

#include <jansson.h>

#include <glib.h>

/* Whether a page can be made: FALSE with *error (OCT_REPLAY_ERROR_OPTION) that names the package.
 * To be asked before a long run, not after it. */
gboolean oct_page_check(GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The page of a report of any schema of octet replay, plan, bench and compare; owned. NULL with
 * *error (OCT_REPLAY_ERROR_OPTION, OCT_REPLAY_ERROR_IO). */
char *oct_page_make(const json_t *report, GError **error) G_GNUC_WARN_UNUSED_RESULT;

#endif
