/* SPDX-License-Identifier: MIT */
/* placement_state.h: the records of a placement, for placement.c and the tests that check its invariants.
 *
 * Addresses and sizes are counted in granules.  Chunks are records in a table by address (chunk_table.h), named by
 * their number, and linked in the order of addresses.  The chunks of a region and one border record form a ring, so
 * that every chunk has two neighbours.  A free chunk is in one set by size and address (free_tree.h): the set of clean
 * chunks, or its stream's.  A tagged chunk is also in its stream's list, in the order of sequences.
 *
 * While only one stream was seen, all free chunks are in the clean set.  A chunk then has only the latest sequence of
 * its frees, and gets a tag when a second stream appears.
 *
 * Invariants: tests/fixtures/placement_check.c checks them.
 */
#ifndef WEIR_PLACEMENT_STATE_H
#define WEIR_PLACEMENT_STATE_H

#include "placement/placement.h"

#include "base/hostmem.h"
#include "placement/chunk_table.h"
#include "placement/free_tree.h"

enum kind {
    UNUSED = 0,
    BORDER = 1,
    LIVE = 2,
    CLEAN = 3,
    TAGGED = 4,
    UNMAPPED = 5, /* has no memory */
    /* A free chunk in no set and no list, since there was no host memory when it was freed.  It joins no other chunk.
     * If its sequence is not 0 and there are several streams, its tag names the stream of its free. */
    UNLISTED = 6,
    DEFERRED = 7
};

struct weir_placement_region {
    uint64_t base;
    uint64_t end;
    uint64_t high; /* the highest end of blocks and filled memory so far, or base */
    uint64_t used; /* the highest end of blocks so far, while there is only one stream */
    uint32_t border;
};

/* The tagged chunks of a stream in one placement. */
struct weir_placement_own {
    uint64_t parted; /* chunks freed up to this sequence join no other tagged chunk */
    uint32_t oldest; /* the list of tagged chunks, in the order of sequences; 0 if empty */
    uint32_t newest;
    struct weir__bestfit fit;
};

struct weir_placement {
    unsigned shift; /* log2 of the granularity */
    unsigned index; /* the rule's index */
    int several;    /* a second stream, or stream 0, was seen */
    int own_first;
    uint64_t mask;  /* granularity - 1 */
    uint64_t waste; /* the rule's split_waste in granules, rounded up */
    /* the one stream seen so far, or NULL if there was none or several */
    struct weir_placement_stream *only;
    struct weir_placement_stream ended; /* replaces `only` when that stream is forgotten */
    struct weir__chunks all;            /* the records */
    size_t blocks;
    size_t unlisted; /* chunks of kind UNLISTED */
    size_t owners;   /* the streams that have a struct weir_placement_own */
    struct weir__bestfit clean;
    struct weir_placement_region *region; /* sorted by base */
    size_t regions, region_length;
    size_t total;  /* granules in all regions, without unmapped ranges */
    size_t extent; /* the sum over regions of (high - base) */
    struct weir__bestfit_pool pool;
    struct weir__hostmem host;
};

/* Returns the tagged chunks of a stream, or NULL if it has none. */
static inline struct weir_placement_own *own_in(const struct weir_placement *p,
                                                const struct weir_placement_stream *s) {
    return s->own[p->index];
}

static inline uint64_t key_of(const struct weir__chunk *c) {
    return weir__bestfit_key(c->size, c->address);
}

/* Returns 1 if the free chunk `id` may join the adjacent chunk `other`, which has the tag of `s`, or is untagged if `s`
 * is NULL.  Returns 0 otherwise.  Two chunks of a stream join if both were freed after its sequence `parted`. */
static inline int chunk_joins(const struct weir_placement *p, uint32_t id, uint32_t other,
                              const struct weir_placement_stream *s) {
    if (s == NULL)
        return p->all.kind[id] == CLEAN;
    return p->all.kind[id] == TAGGED && p->all.tag[id].stream == s &&
           p->all.chunk[id].sequence > own_in(p, s)->parted &&
           p->all.chunk[other].sequence > own_in(p, s)->parted;
}

#endif
