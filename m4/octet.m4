# Macros of Octet's configure.ac.

# OCT_APPEND_FLAGS(VARIABLE, FLAG...)
# Appends to VARIABLE each FLAG of the blank-separated list that the C compiler accepts both when
# compiling and when linking, without a warning, together with CFLAGS and the flags before it.
AC_DEFUN([OCT_APPEND_FLAGS], [
  for oct_flag in $2; do
    AS_VAR_PUSHDEF([oct_cached], [oct_cv_flag_$oct_flag])dnl
    AC_CACHE_CHECK([whether $CC accepts $oct_flag], [oct_cached], [
      oct_save_CFLAGS=$CFLAGS
      CFLAGS="$CFLAGS -Werror $$1 $oct_flag"
      AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <string.h>]], [[return (int)strlen("");]])],
        [AS_VAR_SET([oct_cached], [yes])], [AS_VAR_SET([oct_cached], [no])])
      CFLAGS=$oct_save_CFLAGS
    ])
    AS_VAR_IF([oct_cached], [yes], [AS_VAR_APPEND([$1], [" $oct_flag"])])
    AS_VAR_POPDEF([oct_cached])dnl
  done
])
