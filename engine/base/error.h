/* Errors of engine/base: what a user, a file or the machine can cause. */
#ifndef OCT_BASE_ERROR_H
#define OCT_BASE_ERROR_H

#include <glib.h>

#define OCT_BASE_ERROR (oct_base_error_quark())
GQuark oct_base_error_quark(void);
typedef enum oct_base_error {
  OCT_BASE_ERROR_LIMIT,  /* a value outside its limits: thing, value and limit are in the message */
  OCT_BASE_ERROR_MEMORY, /* a budget is spent, or the machine has no more memory */
  OCT_BASE_ERROR_IO,     /* a file could not be read or written */
} oct_base_error;

#endif
