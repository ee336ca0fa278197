/* SPDX-License-Identifier: MIT */
/* gated.c: see gated.h. */
#include "base/gated.h"

#include <stddef.h>
#include <time.h>

/* NULL where that library was not loaded before this one. */
extern void weir__gate_own(void) __attribute__((weak));
extern int weir__gate_try(void) __attribute__((weak));
extern void weir__gate_end(void) __attribute__((weak));
extern int weir__gate_is_away(void) __attribute__((weak));
extern int weir__gate_may_park(void) __attribute__((weak));
extern void weir__gate_pause(uint64_t lacks, unsigned ms) __attribute__((weak));

void weir__gated_begin(void) {
    if (weir__gate_own)
        weir__gate_own();
}

int weir__gated_works(void) {
    return !weir__gate_try || weir__gate_try();
}

void weir__gated_rests(void) {
    if (weir__gate_end)
        weir__gate_end();
}

int weir__gated_is_away(void) {
    return weir__gate_is_away && weir__gate_is_away();
}

int weir__gated_may_park(void) {
    return weir__gate_may_park && weir__gate_may_park();
}

void weir__gated_pause(uint64_t lacks, unsigned ms) {
    if (weir__gate_pause)
        weir__gate_pause(lacks, ms);
    else if (ms > 0)
        nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}
