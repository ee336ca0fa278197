/* SPDX-License-Identifier: MIT */
/* size.h: arithmetic of sizes that detects overflow. */
#ifndef WEIR_SIZE_H
#define WEIR_SIZE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Caches allocate memory from an engine in multiples of this size.  Blocks of the caches and regions of engines begin
 * at a multiple of this size. */
#define WEIR_PAGE ((size_t)16 << 10)

/* Compute a sum or a product.  Return 1 on success.  On overflow return 0 and do not change *out. */
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

/* Rounds up to a multiple of `unit`, a power of two.  Returns 1.  On overflow returns 0 and does not change *out. */
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
static inline uint64_t weir__size_subtract(uint64_t a, uint64_t b) {
    return a - weir__size_smaller(a, b);
}

/* Copies a struct to *out, whose size may differ in another version of weir.  Both structs begin with their size. */
static inline void weir__copy_out(void *out, const void *from, size_t bytes) {
    size_t size;

    memcpy(&size, out, sizeof size);
    size = size < bytes ? size : bytes;
    memcpy(out, from, size);
    memcpy(out, &size, sizeof size);
}

#endif
