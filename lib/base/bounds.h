/* SPDX-License-Identifier: MIT */
/* bounds.h: binary search, and the maximum or minimum of values that several threads see.
 *
 * This file must not know the meaning of the values.
 */
#ifndef WEIR_BOUNDS_H
#define WEIR_BOUNDS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Lowers `first` to the least number `at` for which the expression `is_it` is true.  `is_it` must also be true for all
 * larger numbers.  If `is_it` is false for all numbers below `first`, `first` does not change.  `first` and `at` are
 * variables of type size_t. */
#define WEIR_FIND_FIRST(first, at, is_it)                                                          \
    do {                                                                                           \
        size_t its_low = 0;                                                                        \
        while (at = its_low + (first - its_low) / 2, its_low < first) {                            \
            if (is_it)                                                                             \
                first = at;                                                                        \
            else                                                                                   \
                its_low = at + 1;                                                                  \
        }                                                                                          \
    } while (0)

static inline void weir__raise_to(_Atomic uint64_t *most, uint64_t value) {
    uint64_t before = atomic_load(most);

    /* unreached: no test makes another thread change *most at this moment */
    while (value > before && !atomic_compare_exchange_weak(most, &before, value))
        ;
}

static inline void weir__lower_to(_Atomic uint64_t *least, uint64_t value) {
    uint64_t before = atomic_load(least);

    /* unreached: no test makes another thread change *least at this moment */
    while (value < before && !atomic_compare_exchange_weak(least, &before, value))
        ;
}

#endif
