/* SPDX-License-Identifier: MIT */
/* clock.h: the monotonic clock.  This file must not know devices, which may have other clocks. */
#ifndef WEIR_CLOCK_H
#define WEIR_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns the nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t weir__clock_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#endif
