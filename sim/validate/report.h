/* What a validation found, as JSON made of tables, and the same for people.
 *
 * {"schema":"octet-validate-1","parts":[{"name","seconds","tables":[{"title","notes":[…],
 * "columns":[…],"rows":[[…]…]}],"aims":[{"what","aim_percent","got_percent","met"}],
 * "figures":{…}}]}: every part of `octet validate` uses these tables, so one printer shows them
 * all, as Markdown. Cells are texts, numbers or null. */
#ifndef OCT_SIM_VALIDATE_REPORT_H
#define OCT_SIM_VALIDATE_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include <glib.h>

#include "sim/validate/score.h"

#define OCT_VALIDATE_SCHEMA "octet-validate-1"

json_t *oct_validate_part(const char *name); /* owned */
/* A table of `part`, borrowed from it. `columns` ends in NULL. */
json_t *oct_validate_table(json_t *part, const char *title, const char *const *columns);
void oct_validate_note(json_t *table, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* A row of `table`, borrowed from it, to append cells to: texts; numbers (NaN becomes null). */
json_t *oct_validate_row(json_t *table);
void oct_validate_text(json_t *row, const char *format, ...) G_GNUC_PRINTF(2, 3);
void oct_validate_number(json_t *row, double value);
/* "n", then mean, median, 90th percentile and signed median in percent: five cells. */
void oct_validate_cells(json_t *row, const oct_score *score);
#define OCT_VALIDATE_SCORE_COLUMNS "n", "mean %", "median %", "p90 %", "bias %"
/* A figure that the project wants at most `aim`; fractions. NaN: not measured, and not met. */
void oct_validate_aim(json_t *part, const char *what, double aim, double got);

/* A further figure that others quote: a count, or percents of a fraction. */
void oct_validate_count(json_t *part, const char *what, guint n);
void oct_validate_percent(json_t *part, const char *what, double fraction);

/* {"schema", "parts": [parts]}; takes the array. */
json_t *oct_validate_report(json_t *parts);
void oct_validate_print(FILE *out, const json_t *report);

/* What oct_validate_aim() stored for `what`, a fraction; NaN when nothing was. */
double oct_validate_got(const json_t *part, const char *what);

#endif
