/* SPDX-License-Identifier: MIT */
/* futex.h: the constants of futex(2) that weir uses, because not every C library installs the kernel's header. */
#ifndef WEIR_FUTEX_H
#define WEIR_FUTEX_H

#include <sys/syscall.h>

enum {
    WEIR_FUTEX_WAIT = 0,
    WEIR_FUTEX_WAKE = 1,
    WEIR_FUTEX_WAKE_OP = 5,
    /* For WEIR_FUTEX_WAKE_OP: adds 1 to the second futex word. */
    WEIR_FUTEX_ADD_1 = 1 << 28 | 2 << 24 | 1 << 12
};

#endif
