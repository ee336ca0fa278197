/* SPDX-License-Identifier: MIT */
/* tls.h: the access to thread-local variables of the hit path.
 *
 * One load reads such a variable, from the space that glibc reserves for libraries that are opened at run time.  Other
 * C libraries reserve no such space, and refuse to open a library with such variables (musl: "initial-exec TLS").
 */
#ifndef WEIR_TLS_H
#define WEIR_TLS_H

#include <limits.h> /* __GLIBC__ */

#ifdef __GLIBC__
#define WEIR_FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define WEIR_FAST_TLS
#endif

#endif
