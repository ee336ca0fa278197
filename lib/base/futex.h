/* SPDX-License-Identifier: MIT */
/* futex.h: the words of futex(2), whose own header, the kernel's, does not come with every C library.
 *
 * Must not know: who sleeps on what.
 */
#ifndef WEIR_FUTEX_H
#define WEIR_FUTEX_H

#include <sys/syscall.h>

enum {
    WEIR_FUTEX_WAIT = 0,
    WEIR_FUTEX_WAKE = 1,
    WEIR_FUTEX_WAKE_OP = 5,
    /* For it: add 1 to the second word, and wake who sleeps there if it was below 0. */
    WEIR_FUTEX_ADD_1 = 1 << 28 | 2 << 24 | 1 << 12
};

#endif
