/* SPDX-License-Identifier: MIT */
/* bounds.h: the first of many in order, and the most or the least so far of what several threads see.
 *
 * Must not know: what they are of.
 */
#ifndef WEIR_BOUNDS_H
#define WEIR_BOUNDS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Makes `first' the least number of which `is_it(at)' holds, as it does of all behind, up to what it was.  Both are
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

    /* unreached: that another thread moves it at the same moment */
    while (value > before && !atomic_compare_exchange_weak(most, &before, value))
        ;
}

static inline void weir__lower_to(_Atomic uint64_t *least, uint64_t value) {
    uint64_t before = atomic_load(least);

    /* unreached: likewise */
    while (value < before && !atomic_compare_exchange_weak(least, &before, value))
        ;
}

#endif
