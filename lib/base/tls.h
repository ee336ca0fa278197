/* SPDX-License-Identifier: MIT */
/* tls.h: makes thread-local variables fast to read.
 *
 * A variable with WEIR_FAST_TLS is read by one load.  It lies in the space that glibc reserves for libraries that a
 * program opens at run time.  Other C libraries have no such space, and refuse to open the library (musl). */
#ifndef WEIR_TLS_H
#define WEIR_TLS_H

#include <limits.h> /* any header of the C library defines __GLIBC__ */

#ifdef __GLIBC__
#define WEIR_FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define WEIR_FAST_TLS
#endif

#endif
