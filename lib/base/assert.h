/* SPDX-License-Identifier: MIT */
/* assert.h: asserts, which check invariants in development builds (configure --enable-asserts).
 *
 * An assert is for a condition that only a mistake in weir can break.  A condition must have no side effects. */
#ifndef WEIR_ASSERT_H
#define WEIR_ASSERT_H

#include "config.h"

/* Without asserts, the compiler only checks the syntax of the condition. */
#if WEIR_ASSERTS
#define WEIR_ASSERT(condition)                                                                     \
    ((void)((condition) || weir__assert_failed(#condition, __FILE__, __LINE__)))
#else
#define WEIR_ASSERT(condition) ((void)sizeof((condition) ? 1 : 0))
#endif

/* Marks a static function that only asserts call.  Without optimisation, compilers remove it only if it is inline. */
#define WEIR_ASSERT_ONLY inline __attribute__((unused))

_Noreturn int weir__assert_failed(const char *condition, const char *file, int line);

#endif
