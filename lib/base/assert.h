/* SPDX-License-Identifier: MIT */
/* assert.h: asserts of invariants, in development builds.
 *
 * An assert is for a condition that only a mistake in weir can break: a lock that is held, a list that is well formed, a
 * sum that agrees.  Input, results of the driver and data of other processes are checked by ordinary code.  A condition
 * has no side effects.  A development build (configure --enable-asserts; the default with --enable-werror and with
 * sanitizers) evaluates the conditions.  Any other build has no code for them.
 *
 * This file must not know what is asserted.
 */
#ifndef WEIR_ASSERT_H
#define WEIR_ASSERT_H

#include "config.h"

/* Other builds check only that the condition compiles, so no code needs the functions that a condition calls. */
#if WEIR_ASSERTS
#define WEIR_ASSERT(condition)                                                                     \
    ((void)((condition) || weir__assert_failed(#condition, __FILE__, __LINE__)))
#else
#define WEIR_ASSERT(condition) ((void)sizeof((condition) ? 1 : 0))
#endif

/* Marks a static function that only conditions call.  Without optimisation, compilers drop unused functions only if they
 * are inline. */
#define WEIR_ASSERT_ONLY inline __attribute__((unused))

/* Logs the condition that does not hold, and aborts the process. */
_Noreturn int weir__assert_failed(const char *condition, const char *file, int line);

#endif
