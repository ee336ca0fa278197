/* SPDX-License-Identifier: MIT */
/* tls.h: how the thread-local variables of a hit are reached.
 *
 * By one load, from the room that glibc keeps for libraries that are opened at run time.  Other C libraries keep
 * none, and refuse to open such a library (musl: "initial-exec TLS").
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
