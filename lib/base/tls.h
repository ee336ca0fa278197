/* SPDX-License-Identifier: MIT */
/* tls.h: makes thread-local variables fast to read.
 *
 * A thread-local variable with WEIR_FAST_TLS is read by one load.  Such a variable lies in the space that glibc
 * reserves for libraries that a program opens at run time.  Other C libraries reserve no such space, and refuse to open
 * a library with such variables (musl: "initial-exec TLS"). */
#ifndef WEIR_TLS_H
#define WEIR_TLS_H

#include <limits.h> /* any header of the C library defines __GLIBC__ */

#ifdef __GLIBC__
#define WEIR_FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define WEIR_FAST_TLS
#endif

#endif
