# SPDX-License-Identifier: MIT
# weir_cuda.m4 - find the header of the CUDA toolkit.
#
# weir opens the driver at run time and never links to CUDA.  The header serves
# only to check weir's own prototypes against the toolkit's, to test
# <weir/cuda.h>, and to build the CUDA examples.

# WEIR_CUDA
# --with-cuda=auto|yes|no|DIR: the conditional HAVE_CUDA_H, and CUDA_CPPFLAGS.
#
# Each candidate is a directory that has include/cuda.h, or "system" for what the
# preprocessor finds by itself.  The first one with CUDA_VERSION 11020 or later
# is taken; of the others weir_cuda_seen notes why not.
AC_DEFUN([WEIR_CUDA],
[AC_REQUIRE([AC_PROG_CPP])
AC_REQUIRE([AC_PROG_SED])
AC_ARG_WITH([cuda],
  [AS_HELP_STRING([--with-cuda@<:@=auto|yes|no|DIR@:>@],
    [use cuda.h of the CUDA toolkit, 11.2 or later, for the ABI test and the
     examples; the library itself never needs it @<:@auto: if it is there@:>@])],
  [], [with_cuda=auto])
CUDA_CPPFLAGS=
weir_cuda_version=
weir_cuda_seen=
weir_cuda_summary=no
AS_CASE([$with_cuda],
  [no], [set dummy],
  [auto|yes],
    [weir_nvcc=`command -v nvcc 2>/dev/null`
     AS_IF([test -n "$weir_nvcc"],
       [weir_nvcc=`readlink -f "$weir_nvcc" 2>/dev/null || AS_ECHO(["$weir_nvcc"])`
        weir_nvcc=`AS_DIRNAME(["$weir_nvcc"])`
        weir_nvcc=`AS_DIRNAME(["$weir_nvcc"])`])
     set dummy "$CUDA_HOME" "$CUDA_PATH" /usr/local/cuda system "$weir_nvcc"],
  [set dummy "$with_cuda"])
shift
AS_IF([test "x$with_cuda" != xno],
  [AC_MSG_CHECKING([for cuda.h of CUDA 11.2 or later])])
for weir_cuda_dir
do
  AS_CASE([$weir_cuda_dir],
    [''], [continue],
    [system],
      [weir_cuda_flags=
       weir_cuda_header="cuda.h in the compiler's own directories"],
    [weir_cuda_flags="-isystem $weir_cuda_dir/include"
     weir_cuda_header=$weir_cuda_dir/include/cuda.h
     AS_IF([test ! -f "$weir_cuda_header"],
       [AS_VAR_APPEND([weir_cuda_seen], ["
      $weir_cuda_header: not there"])
        continue])])
  AS_ECHO(["#include <cuda.h>
weir_cuda_version: CUDA_VERSION"]) >conftest.c
  # The number may stand on a line of its own, behind a line marker.
  weir_cuda_version=`$CPP $CPPFLAGS $weir_cuda_flags conftest.c 2>&AS_MESSAGE_LOG_FD |
    $SED -n '/^weir_cuda_version:/,$ { /^#/d; s/^@<:@^0-9@:>@*\(@<:@1-9@:>@@<:@0-9@:>@*\).*/\1/p; }' |
    $SED 1q`
  rm -f conftest.c
  AS_IF([test -z "$weir_cuda_version"],
    [AS_VAR_APPEND([weir_cuda_seen], ["
      $weir_cuda_header: not there, or without CUDA_VERSION"])],
    [test "$weir_cuda_version" -lt 11020],
    [AS_VAR_APPEND([weir_cuda_seen], ["
      $weir_cuda_header: CUDA_VERSION $weir_cuda_version, too old"])
     weir_cuda_version=],
    [CUDA_CPPFLAGS=$weir_cuda_flags
     AS_VAR_ARITH([weir_cuda_major], [$weir_cuda_version / 1000])
     AS_VAR_ARITH([weir_cuda_minor], [$weir_cuda_version % 1000 / 10])
     weir_cuda_summary="$weir_cuda_major.$weir_cuda_minor ($weir_cuda_dir)"
     break])
done
AS_IF([test "x$with_cuda" != xno], [AC_MSG_RESULT([$weir_cuda_summary])])
AS_CASE([$with_cuda,$weir_cuda_version],
  [no,*|auto,*], [],
  [*,], [AC_MSG_ERROR([--with-cuda=$with_cuda: no cuda.h of CUDA 11.2 (CUDA_VERSION 11020) or later.  Looked at:$weir_cuda_seen
    Name the toolkit's directory with --with-cuda=DIR, or go without: --with-cuda=no])])
AC_SUBST([CUDA_CPPFLAGS])
# The compiler, of that toolkit if it has one: for the examples alone.
AC_ARG_VAR([NVCC], [CUDA compiler, used only for the examples])
weir_nvcc_path=$PATH
AS_CASE([$weir_cuda_flags],
  [-isystem*], [weir_nvcc_path="$weir_cuda_dir/bin$PATH_SEPARATOR$PATH"])
AS_IF([test -n "$weir_cuda_version"],
  [AC_PATH_PROG([NVCC], [nvcc], [], [$weir_nvcc_path])])
AM_CONDITIONAL([HAVE_CUDA_H], [test -n "$weir_cuda_version"])])
