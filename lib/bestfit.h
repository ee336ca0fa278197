/* SPDX-License-Identifier: MIT */
/* bestfit.h: an ordered set of free chunks that answers "the smallest that holds this".
 *
 * The order is (size, address), both counted in granules, packed without loss into one 64-bit key:
 *
 *     k + 1 in 6 bits | size - 1 - 2^k in k bits | address >> k in 58 - k bits
 *
 * where k, the octave, is floor(log2(size - 1)).  (Size 1 comes before all: 0, then the address.)
 * The low k bits of an address decide nothing among chunks of octave k: two chunks that do not
 * overlap and are both longer than 2^k differ above them.  Keys are therefore distinct as long as
 * the chunks are disjoint, and their order as numbers is the order of best fit.  It is the size
 * less one because a chunk of a round size then shares its class with what is left when a piece is
 * cut off.
 *
 * The top bits of the key name a class.  A two-level bitmap of the classes in use finds the next
 * one in a few instructions.  A class is a B+-tree with leaves of 15 keys, so one leaf as a rule,
 * and O(log n) also when every chunk has the same size.  Sets that change together share one pool
 * of nodes; insert alone needs memory, and when it is refused nothing has changed.
 *
 * Must not know: what a chunk is besides size, address and a number; streams, regions.
 */
#ifndef WEIR_BESTFIT_H
#define WEIR_BESTFIT_H

#include "hostmem.h"

#include <stdint.h>
#include <string.h>

/* Sizes and addresses must lie below 2^WEIR__BESTFIT_BITS granules. */
#define WEIR__BESTFIT_BITS 58
#define WEIR__BESTFIT_SLOTS 15u
#define WEIR__BESTFIT_NONE UINT64_MAX /* no key is as large */
#define WEIR__BESTFIT_SUMMARIES 4     /* words over words over classes: 59 octaves of 256 */

/* 256 bytes.  In a leaf a value is the caller's number, above it a reference to a node. */
struct weir__bestfit_node {
    uint64_t key[WEIR__BESTFIT_SLOTS + 1]; /* ascending; those unused, and the last: NONE */
    uint64_t value[WEIR__BESTFIT_SLOTS];
    uint32_t count;
    uint32_t reserved;
};

/* A reference to a node: its address, plus 1 above the leaves; 0: none. */
typedef uintptr_t weir__bestfit_ref;

struct weir__bestfit_slab;

struct weir__bestfit_pool {
    struct weir__hostmem *host;
    struct weir__bestfit_node *spare; /* empty ones, chained through value[0] */
    size_t spares;
    struct weir__bestfit_slab *slabs;
};

struct weir__bestfit {
    unsigned shift; /* class = key >> shift */
    size_t classes; /* a multiple of 64 that grows with the largest size seen */
    weir__bestfit_ref *root;
    uint64_t *used; /* bit per class, behind the roots in the same memory */
    uint64_t summary[WEIR__BESTFIT_SUMMARIES]; /* bit per word of `used` */
    struct weir__bestfit_pool *pool;
    size_t entries;
};

/* Where a key was found; valid until the set changes. */
struct weir__bestfit_hit {
    uint64_t key;
    uint64_t value;
    struct weir__bestfit_node *leaf;
    unsigned at;    /* in the leaf */
    unsigned least; /* keys that the leaf must keep, or else its tree changes its
                     shape */
};

void weir__bestfit_pool_init(struct weir__bestfit_pool *pool, struct weir__hostmem *host);
void weir__bestfit_pool_drop(struct weir__bestfit_pool *pool);

/* Each octave has 2^octave_bits classes: 6 to 8.  Takes no memory before the first insert. */
void weir__bestfit_init(struct weir__bestfit *f, struct weir__bestfit_pool *pool,
                        unsigned octave_bits);
/* Forgets every key, and gives back all but the nodes of the pool. */
void weir__bestfit_drop(struct weir__bestfit *f);

/* Adds a key that is not there.  1, or 0 if memory ran out. */
int weir__bestfit_insert(struct weir__bestfit *f, uint64_t key, uint64_t value);
/* The smallest key that is at least `key`: 1, or 0 and hit->key is NONE. */
int weir__bestfit_from(const struct weir__bestfit *f, uint64_t key, struct weir__bestfit_hit *hit);
/* Takes out a key that is there, or what was found. */
void weir__bestfit_erase(struct weir__bestfit *f, uint64_t key);
void weir__bestfit_erase_hit(struct weir__bestfit *f, const struct weir__bestfit_hit *hit);
/* A chunk that is there, or was found, goes by another key and value from now on.  1, or 0 if
 * memory ran out: then neither key is in the set. */
int weir__bestfit_move(struct weir__bestfit *f, uint64_t old, uint64_t key, uint64_t value);
int weir__bestfit_move_hit(struct weir__bestfit *f, const struct weir__bestfit_hit *hit,
                           uint64_t key, uint64_t value);

/* Gives a key that is there another value. */
void weir__bestfit_set(struct weir__bestfit *f, uint64_t key, uint64_t value);
/* The value of `key` in *value and 1, or 0. */
int weir__bestfit_find(const struct weir__bestfit *f, uint64_t key, uint64_t *value);
/* The largest key, or NONE. */
uint64_t weir__bestfit_last(const struct weir__bestfit *f);
/* Checks the structure: 1, or 0 if an invariant does not hold. */
int weir__bestfit_check(const struct weir__bestfit *f);

/* 0 < size, and neither reaches 2^WEIR__BESTFIT_BITS. */
static inline uint64_t weir__bestfit_key(uint64_t size, uint64_t address) {
    unsigned octave = 63u - (unsigned)__builtin_clzll((size - 1) | 1);

    /* The top bit of size - 1 lands on the octave's field and makes it octave + 1; only a size of 1
     * has none, and so comes first. */
    return ((uint64_t)octave << WEIR__BESTFIT_BITS) +
           ((size - 1) << (WEIR__BESTFIT_BITS - octave)) + (address >> octave);
}

static inline uint64_t weir__bestfit_size(uint64_t key) {
    unsigned field = (unsigned)(key >> WEIR__BESTFIT_BITS);
    unsigned octave = field - (field > 0);
    uint64_t below = key - ((uint64_t)octave << WEIR__BESTFIT_BITS);

    return (below >> (WEIR__BESTFIT_BITS - octave)) + 1;
}

#endif
