/* Quantities with units, as text: "1.6 TB/s", "150 req/s", "16 B/tok", "1.18 s", "600 W", "2 /h".
 *
 * A quantity is a number and an expression of units joined by '/', each with an SI prefix (k M G T
 * P, m u n) or, for bytes, a binary one (Ki Mi Gi Ti). The dimension is a vector of exponents, so
 * that a value of the wrong kind is told apart from one of the wrong size. Values are in SI units:
 * bytes, seconds, tokens, requests, operations, watts.
 */
#ifndef OCT_SIM_UNITS_H
#define OCT_SIM_UNITS_H

#include <glib.h>

#define OCT_UNITS_ERROR (oct_units_error_quark())
GQuark oct_units_error_quark(void);
typedef enum oct_units_error {
  OCT_UNITS_ERROR_NUMBER,    /* not a finite number */
  OCT_UNITS_ERROR_UNIT,      /* a unit that is not known */
  OCT_UNITS_ERROR_DIMENSION, /* a quantity of another kind than was asked for */
} oct_units_error;

typedef enum oct_unit {
  OCT_UNIT_BYTE,
  OCT_UNIT_SECOND,
  OCT_UNIT_TOKEN,
  OCT_UNIT_REQUEST,
  OCT_UNIT_FLOP,
  OCT_UNIT_WATT,
  OCT_UNIT_COUNT
} oct_unit;

typedef struct oct_dimension {
  gint8 exponent[OCT_UNIT_COUNT];
} oct_dimension;

/* Those that claims and scenarios are made of. */
extern const oct_dimension oct_dimension_number, oct_dimension_bytes, oct_dimension_bytes_per_s,
    oct_dimension_bytes_per_token, oct_dimension_seconds, oct_dimension_tokens,
    oct_dimension_tokens_per_s, oct_dimension_requests, oct_dimension_requests_per_s,
    oct_dimension_flops, oct_dimension_watts, oct_dimension_per_s;

/* Reads `text`. FALSE with *error, which says what is wrong with it. A number without unit is a
 * pure number. */
gboolean oct_quantity_parse(const char *text, double *value, oct_dimension *dimension,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* The same of one dimension; where that is a count (tokens, requests) the unit may be left out. */
gboolean oct_quantity_read(const char *text, const oct_dimension *dimension, double *value,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "1.6 MB/s": three to four digits and the prefix that suits. Owned. */
char *oct_quantity_format(double value, const oct_dimension *dimension) G_GNUC_WARN_UNUSED_RESULT;
/* "bytes/s", "requests": what an error calls a dimension. Owned. */
char *oct_dimension_name(const oct_dimension *dimension) G_GNUC_WARN_UNUSED_RESULT;

#endif
