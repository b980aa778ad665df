/* Reports as JSON files: written, and read again to stand beside others. Errors are
 * OCT_REPLAY_ERROR_IO, and OCT_REPLAY_ERROR_OPTION for a file that is no report.
 */
#ifndef OCT_CLI_REPORT_FILE_H
#define OCT_CLI_REPORT_FILE_H

#include <jansson.h>
#include <stdio.h>

#include <glib.h>

/* Whether `path` (NULL and "-" are fine) can be written: a report that has no place to go is
 * refused before the run, not after it. */
gboolean oct_report_file_check(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* "-" is standard output. */
gboolean oct_report_file_write(const char *path, const json_t *report,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* As a page for a browser. */
gboolean oct_report_file_write_html(const char *path, const json_t *report,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Whether a page could be written there: NULL is fine. */
gboolean oct_report_file_check_html(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* What --compare was given: names a report rather than flags. */
gboolean oct_report_file_is_one(const char *text);
/* The report in a file of --json; of one with several, all. Appended to the array `list`; one
 * without a label gets its file's name. */
gboolean oct_report_file_read(const char *path, json_t *list,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* {"schema":"octet-comparison-1","reports":[…]}; takes `list`. Owned. */
json_t *oct_report_file_comparison(json_t *list);
/* It, for people. */
void oct_report_file_print_comparison(FILE *out, const json_t *comparison);

#endif
