/* What predictions were off by where they could be compared: the one file that reports, pages and
 * texts quote. `octet validate --errors FILE` writes it; it stands beside the fits, is installed
 * with them, and a test holds README.md and doc/simulation.md to it.
 */
#ifndef OCT_SIM_ERRORS_H
#define OCT_SIM_ERRORS_H

#define OCT_ERRORS_FILE "errors.ini" /* in the folder of fits */

/* The figure as it is written (percents, counts); NaN when the file or the figure is missing. The
 * file is read once. Any thread. */
double oct_errors_get(const char *part, const char *figure);

#endif
