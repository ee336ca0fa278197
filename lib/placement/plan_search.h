/* SPDX-License-Identifier: MIT */
/* plan_search.h: offsets for blocks of which it is known which ever live at once, so that they take little memory.
 *
 * The same blocks get the same offsets, on any machine: the search ends by its count of steps and not by a clock.
 *
 * Must not know: events, rounds, what a granule is.
 */
#ifndef WEIR_PLAN_SEARCH_H
#define WEIR_PLAN_SEARCH_H

#include <stddef.h>
#include <stdint.h>

struct weir_plan_blocks {
    size_t count;
    const uint32_t *size;        /* by block; 0: it gets no offset */
    const uint32_t *life;        /* events that it lives for */
    const uint64_t *most_beside; /* the most that is live while it is, itself included */
    const uint64_t
        *beside; /* a bit for each two blocks that are live at once; `words` for each block */
    size_t words;
};

/* offset[block]: one for each block that has a size; the others' are undefined.  The end of the highest block; 0: there is
 * none, one would end above `limit`, or there is no host memory. */
uint64_t weir__plan_search(const struct weir_plan_blocks *blocks, uint64_t limit, uint32_t *offset);

#endif
