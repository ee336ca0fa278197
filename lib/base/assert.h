/* SPDX-License-Identifier: MIT */
/* assert.h: asserts, which check invariants in development builds.
 *
 * An assert is for a condition that only a mistake in weir can break.  Examples are "the thread holds the lock", "the
 * list is well formed" and "the parts add up to the sum".  Input, results of the driver, and data of other processes
 * are not checked by asserts, but by ordinary code.  A condition must have no side effects.  A development build
 * (configure --enable-asserts; the default with --enable-werror and with sanitizers) evaluates the conditions.  All
 * other builds contain no code for asserts. */
#ifndef WEIR_ASSERT_H
#define WEIR_ASSERT_H

#include "config.h"

/* In a build without asserts, the compiler checks the syntax of the condition, but generates no code for it.  So
 * functions that only such conditions call need not exist in the program. */
#if WEIR_ASSERTS
#define WEIR_ASSERT(condition)                                                                     \
    ((void)((condition) || weir__assert_failed(#condition, __FILE__, __LINE__)))
#else
#define WEIR_ASSERT(condition) ((void)sizeof((condition) ? 1 : 0))
#endif

/* Marks a static function that only conditions of asserts call.  The function is inline, because compilers without
 * optimisation remove an unused function only if it is inline. */
#define WEIR_ASSERT_ONLY inline __attribute__((unused))

/* Logs an assert's condition that is false, with file and line, and aborts the process. */
_Noreturn int weir__assert_failed(const char *condition, const char *file, int line);

#endif
