/* SPDX-License-Identifier: MIT */
/* futex.h: the constants of futex(2) that weir uses.  Not every C library has the kernel's header for futexes. */
#ifndef WEIR_FUTEX_H
#define WEIR_FUTEX_H

#include <sys/syscall.h>

enum {
    WEIR_FUTEX_WAIT = 0,
    WEIR_FUTEX_WAKE = 1,
    WEIR_FUTEX_WAKE_OP = 5,
    /* An argument for WEIR_FUTEX_WAKE_OP.  With this argument, the kernel adds 1 to the second futex word.  If the word
     * was negative before, the kernel also wakes the threads that wait on the second word. */
    WEIR_FUTEX_ADD_1 = 1 << 28 | 2 << 24 | 1 << 12
};

#endif
