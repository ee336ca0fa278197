/* SPDX-License-Identifier: MIT */
/* bounds.h: a binary search, and a maximum and a minimum that several threads update. */
#ifndef WEIR_BOUNDS_H
#define WEIR_BOUNDS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Lowers `first` to the smallest `at` at which `condition` is true; keeps `first` if there is none.  As `at` grows,
 * `condition` may change only once, from false to true. */
#define WEIR_FIND_FIRST(first, at, condition)                                                      \
    do {                                                                                           \
        size_t its_low = 0;                                                                        \
        while (at = its_low + (first - its_low) / 2, its_low < first) {                            \
            if (condition)                                                                         \
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
