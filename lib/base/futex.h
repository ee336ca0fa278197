/* SPDX-License-Identifier: MIT */
/* futex.h: the constants of futex(2), since not every C library has the kernel's header. */
#ifndef WEIR_FUTEX_H
#define WEIR_FUTEX_H

#include <sys/syscall.h>

enum {
    WEIR_FUTEX_WAIT = 0,
    WEIR_FUTEX_WAKE = 1,
    WEIR_FUTEX_WAKE_OP = 5,
    /* The argument of WEIR_FUTEX_WAKE_OP that adds 1 to the second word, and wakes the waiters of the second word if
     * the word was negative. */
    WEIR_FUTEX_ADD_1 = 1 << 28 | 2 << 24 | 1 << 12
};

#endif
