/* SPDX-License-Identifier: MIT */
/* size.h: arithmetic of sizes that checks for overflow, or saturates.  This file must not know the meaning of a
 * size. */
#ifndef WEIR_SIZE_H
#define WEIR_SIZE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The unit, in bytes, of the memory that per-stream caches request from an engine, which takes memory from the device.
 * Blocks for caches, and the regions of engines, begin at a multiple of this unit. */
#define WEIR_PAGE ((size_t)16 << 10)

/* Compute a sum, a product or a rounded value.  Return 1 on success.  Return 0 on overflow, and leave *out
 * unchanged. */
static inline int weir__size_add(size_t a, size_t b, size_t *out) {
    size_t result;

    if (__builtin_add_overflow(a, b, &result))
        return 0;
    *out = result;
    return 1;
}

static inline int weir__size_mul(size_t a, size_t b, size_t *out) {
    size_t result;

    if (__builtin_mul_overflow(a, b, &result))
        return 0;
    *out = result;
    return 1;
}

/* `unit` must be a power of two. */
static inline int weir__size_round_up(size_t value, size_t unit, size_t *out) {
    size_t sum;

    if (!weir__size_add(value, unit - 1, &sum))
        return 0;
    *out = sum & ~(unit - 1);
    return 1;
}

static inline size_t weir__size_round_down(size_t value, size_t unit) {
    return value & ~(unit - 1);
}

static inline uint64_t weir__size_smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t weir__size_larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Returns a - b, or 0 if b is larger. */
static inline uint64_t weir__size_less(uint64_t a, uint64_t b) {
    return a - weir__size_smaller(a, b);
}

/* Copies a struct that begins with its size into a caller's struct, which may be of an older or newer version. */
static inline void weir__copy_out(void *out, const void *from, size_t bytes) {
    size_t size;

    memcpy(&size, out, sizeof size);
    size = size < bytes ? size : bytes;
    memcpy(out, from, size);
    memcpy(out, &size, sizeof size);
}

#endif
