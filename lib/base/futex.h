/* SPDX-License-Identifier: MIT */
/* futex.h: the constants of futex(2) that weir uses.  weir defines them itself, because not every C library installs
 * the kernel's header. */
#ifndef WEIR_FUTEX_H
#define WEIR_FUTEX_H

#include <sys/syscall.h>

enum {
    WEIR_FUTEX_WAIT = 0,
    WEIR_FUTEX_WAKE = 1,
    WEIR_FUTEX_WAKE_OP = 5,
    /* The operation to pass with WEIR_FUTEX_WAKE_OP.  The kernel then adds 1 to the second futex word.  If that word
     * was negative before, the kernel also wakes the threads that wait on it. */
    WEIR_FUTEX_ADD_1 = 1 << 28 | 2 << 24 | 1 << 12
};

#endif
