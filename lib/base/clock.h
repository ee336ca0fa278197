/* SPDX-License-Identifier: MIT */
/* clock.h: reads the monotonic clock of the host.  The device model has a clock of its own. */
#ifndef WEIR_CLOCK_H
#define WEIR_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t weir__clock_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif
