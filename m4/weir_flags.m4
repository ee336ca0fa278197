# SPDX-License-Identifier: MIT
# weir_flags.m4 - what weir asks of the compiler and the linker.
#
# The user's CFLAGS and LDFLAGS are never changed: what is found here goes into
# WEIR_WARN_CFLAGS and WEIR_CFLAGS, which the Makefile puts into AM_CFLAGS, that
# is before the user's own flags.

# WEIR_TRY_CFLAG(FLAG, VARIABLE)
# Append FLAG to VARIABLE if the compiler takes it without a word.
AC_DEFUN([WEIR_TRY_CFLAG],
[AS_VAR_PUSHDEF([cached], [weir_cv_cflag_$1])
AC_CACHE_CHECK([whether $CC takes $1], [cached],
  [weir_save_CFLAGS=$CFLAGS
   CFLAGS="$CFLAGS -Werror $1"
   AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
     [AS_VAR_SET([cached], [yes])], [AS_VAR_SET([cached], [no])])
   CFLAGS=$weir_save_CFLAGS])
AS_VAR_IF([cached], [yes], [AS_VAR_APPEND([$2], [" $1"])])
AS_VAR_POPDEF([cached])])

# WEIR_PROG_CC_C11
# Make sure of C11; autoconf before 2.70 does not ask for it by itself.
AC_DEFUN([WEIR_PROG_CC_C11],
[AC_CACHE_CHECK([for the option that makes $CC accept C11], [weir_cv_c11],
  [weir_cv_c11=unknown
   weir_save_CFLAGS=$CFLAGS
   for weir_option in "" -std=gnu11; do
     CFLAGS="$weir_save_CFLAGS $weir_option"
     AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[
#include <stdatomic.h>
_Static_assert(__STDC_VERSION__ >= 201112L, "C11");
static _Thread_local int last;
]], [[atomic_int a = 0; atomic_fetch_add(&a, 1); last = a; return last - 1;]])],
       [weir_cv_c11=${weir_option:-none needed}
        break])
   done
   CFLAGS=$weir_save_CFLAGS])
AS_CASE([$weir_cv_c11],
  [unknown], [AC_MSG_ERROR([$CC is not a C11 compiler with <stdatomic.h>])],
  ["none needed"], [],
  [CC="$CC $weir_cv_c11"])])

# WEIR_WARNINGS
# WEIR_WARN_CFLAGS: every warning that the code is kept clean under.
AC_DEFUN([WEIR_WARNINGS],
[AC_ARG_ENABLE([werror],
  [AS_HELP_STRING([--enable-werror],
    [turn compiler warnings into errors (for development; never for packages)])],
  [], [enable_werror=no])
WEIR_WARN_CFLAGS=
m4_foreach_w([flag], [-Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes
  -Wmissing-prototypes -Wold-style-definition -Wvla -Wundef -Wpointer-arith
  -Wwrite-strings -Wformat=2 -Wimplicit-fallthrough -Wdate-time],
  [WEIR_TRY_CFLAG(flag, [WEIR_WARN_CFLAGS])])
AS_IF([test "x$enable_werror" = xyes],
  [AS_VAR_APPEND([WEIR_WARN_CFLAGS], [" -Werror"])])
AC_SUBST([WEIR_WARN_CFLAGS])])

# WEIR_CODEGEN
# WEIR_CFLAGS: flags that change the code.  Only what the public headers mark
# as public leaves the library, and calls inside it never go through the PLT.
AC_DEFUN([WEIR_CODEGEN],
[WEIR_CFLAGS=
WEIR_TRY_CFLAG([-fvisibility=hidden], [WEIR_CFLAGS])
WEIR_TRY_CFLAG([-fno-semantic-interposition], [WEIR_CFLAGS])
AC_SUBST([WEIR_CFLAGS])])

# WEIR_SANITIZE
# --enable-sanitize=LIST, where LIST is what -fsanitize= takes.
AC_DEFUN([WEIR_SANITIZE],
[AC_ARG_ENABLE([sanitize],
  [AS_HELP_STRING([--enable-sanitize=LIST],
    [instrument everything: address,undefined or thread (for tests; never for
     packages)])],
  [], [enable_sanitize=no])
AS_CASE([$enable_sanitize],
  [no], [weir_sanitize=no],
  [yes], [weir_sanitize=address,undefined],
  [weir_sanitize=$enable_sanitize])
WEIR_SANITIZE_CFLAGS=
AS_IF([test "x$weir_sanitize" != xno],
  [AC_MSG_CHECKING([whether $CC compiles and links -fsanitize=$weir_sanitize])
   WEIR_SANITIZE_CFLAGS="-fsanitize=$weir_sanitize -fno-omit-frame-pointer"
   AS_CASE([,$weir_sanitize,], [*,undefined,*],
     [AS_VAR_APPEND([WEIR_SANITIZE_CFLAGS], [" -fno-sanitize-recover=undefined"])])
   weir_save_CFLAGS=$CFLAGS
   CFLAGS="$CFLAGS $WEIR_SANITIZE_CFLAGS"
   AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
     [AC_MSG_RESULT([yes])],
     [AC_MSG_RESULT([no])
      AC_MSG_ERROR([--enable-sanitize=$weir_sanitize: $CC cannot do that here
    (see config.log; is the sanitizer's runtime library installed?)])])
   CFLAGS=$weir_save_CFLAGS])
AC_SUBST([WEIR_SANITIZE_CFLAGS])
AC_SUBST([weir_sanitize])])

# WEIR_ASSERTIONS
# --enable-asserts: does the library check its own invariants (lib/base/assert.h)?
AC_DEFUN([WEIR_ASSERTIONS],
[AC_REQUIRE([WEIR_WARNINGS])AC_REQUIRE([WEIR_SANITIZE])dnl
AC_ARG_ENABLE([asserts],
  [AS_HELP_STRING([--enable-asserts@<:@=auto|yes|no@:>@],
    [let the library check its own invariants (for development and tests; never for packages)
     @<:@auto: with --enable-werror or a sanitizer@:>@])],
  [], [enable_asserts=auto])
AS_CASE([$enable_asserts,$enable_werror,$weir_sanitize],
  [auto,yes,*], [enable_asserts=yes],
  [auto,*,no], [enable_asserts=no],
  [auto,*], [enable_asserts=yes])
AS_IF([test "x$enable_asserts" = xyes], [weir_asserts=1], [weir_asserts=0])
AC_DEFINE_UNQUOTED([WEIR_ASSERTS], [$weir_asserts], [1 if the library checks its own invariants, else 0.])
AM_CONDITIONAL([WEIR_ASSERTS], [test "x$enable_asserts" = xyes])])

# WEIR_SYMBOL_MAP
# --with-version-script: does the linker take a symbol map?
AC_DEFUN([WEIR_SYMBOL_MAP],
[AC_ARG_WITH([version-script],
  [AS_HELP_STRING([--with-version-script@<:@=auto|yes|no@:>@],
    [version the symbols of the shared library with lib/libweir.map
     @<:@auto: if the linker can@:>@])],
  [], [with_version_script=auto])
weir_symbol_map=no
AS_IF([test "x$with_version_script" != xno],
  [AC_CACHE_CHECK([whether the linker takes --version-script],
     [weir_cv_version_script],
     [echo 'TEST_0 { global: weir_symbol; local: *; };' >conftest.map
      weir_save_CFLAGS=$CFLAGS
      weir_save_LDFLAGS=$LDFLAGS
      CFLAGS="$CFLAGS -fPIC"
      LDFLAGS="$LDFLAGS -shared -Wl,--version-script=conftest.map"
      AC_LINK_IFELSE(
        [AC_LANG_SOURCE([[int weir_symbol(void); int weir_symbol(void) { return 0; }]])],
        [weir_cv_version_script=yes], [weir_cv_version_script=no])
      CFLAGS=$weir_save_CFLAGS
      LDFLAGS=$weir_save_LDFLAGS
      rm -f conftest.map])
   weir_symbol_map=$weir_cv_version_script])
AS_IF([test "x$with_version_script,$weir_symbol_map" = xyes,no],
  [AC_MSG_ERROR([--with-version-script: the linker does not take --version-script])])
AM_CONDITIONAL([HAVE_VERSION_SCRIPT], [test "x$weir_symbol_map" = xyes])])

# WEIR_MODULE
# WEIR_MODULE_LDFLAGS: how a module in pkglibdir finds the library in libdir, wherever both are moved to.  In the
# system's own folders the library is found without.
AC_DEFUN([WEIR_MODULE],
[weir_prefix=$prefix
weir_exec_prefix=$exec_prefix
AS_IF([test "x$prefix" = xNONE], [prefix=$ac_default_prefix])
AS_IF([test "x$exec_prefix" = xNONE], [exec_prefix=$prefix])
eval "weir_libdir=$libdir"
eval "weir_libdir=$weir_libdir"
prefix=$weir_prefix
exec_prefix=$weir_exec_prefix
WEIR_MODULE_LDFLAGS="-Wl,-rpath,'\$\$ORIGIN/..'"
AS_CASE([$weir_libdir],
  [/usr/local/*], [],
  [/usr/lib*|/lib*], [WEIR_MODULE_LDFLAGS=])
AC_SUBST([WEIR_MODULE_LDFLAGS])])
