/* SPDX-License-Identifier: MIT */
/* free_tree.h: an ordered set of free chunks, which finds the smallest chunk that is large enough.
 *
 * The set is ordered by size, then by address.  Both are counted in granules and packed into one 64-bit key:
 *
 *     k + 1 in 6 bits | size - 2^k in k bits | address >> k in 58 - k bits
 *
 * k, the octave, is floor(log2(size)).  The key leaves out the low k bits of the address.  Two chunks of octave k that
 * do not overlap differ in the bits above, since both are at least 2^k long.  So keys are distinct as long as the
 * chunks are disjoint, and their numeric order is the order of best fit.
 *
 * The first six bits of the key are the octave, the first twelve the class.  One word has a bit for each octave in use.
 * Each octave has a word with a bit for each of its classes in use.  So a search finds the next class in a few
 * instructions.  A class has a slot with its smallest key; a B+-tree, with leaves of 15 keys, has the other keys of the
 * class.  Most classes of a real program have one key, so that an operation touches only the bits and the slot, inline.
 * Every operation takes at most O(log n), even if all chunks have one size.
 *
 * Several sets can share one pool of nodes.  Only an insert needs memory; if it fails, nothing has changed.
 *
 * This file must not know streams, regions, or what a chunk is besides size, address and a number.
 */
#ifndef WEIR_FREE_TREE_H
#define WEIR_FREE_TREE_H

#include "base/hostmem.h"

#include <stdint.h>
#include <string.h>

/* Sizes and addresses must lie below 2^WEIR__BESTFIT_BITS granules. */
#define WEIR__BESTFIT_BITS 58u
#define WEIR__BESTFIT_CLASS_BITS 52u  /* the bits of a key below its class */
#define WEIR__BESTFIT_CLASSES 64u     /* classes of an octave, one for each bit of a word */
#define WEIR__BESTFIT_SLOTS 15u       /* entries of a node */
#define WEIR__BESTFIT_NONE UINT64_MAX /* larger than every key */

/* A node of a tree.  It has 192 bytes, in three cache lines.  The keys are complements, so that the smallest key, which
 * changes most often, is the last and moves no other key. */
struct weir__bestfit_node {
    uint64_t key[WEIR__BESTFIT_SLOTS + 1]; /* ascending; unused keys and the last key are NONE */
    uint32_t value[WEIR__BESTFIT_SLOTS];   /* a leaf's values, or an inner node's children */
    uint32_t count;
};

/* A reference to a node: twice the node's number, plus 1 if the node is not a leaf.  0 refers to no node. */
typedef uint32_t weir__bestfit_ref;

struct weir__bestfit_pool {
    struct weir__hostmem *host;
    /* indexed by number, from 1 on; an insert may move the array */
    struct weir__bestfit_node *node;
    void *memory; /* the block of memory; `node` is aligned to a cache line in it */
    size_t bytes;
    uint32_t nodes; /* the number of nodes, including the unused number 0 */
    uint32_t spare; /* the first unused node; its value[0] is the number of the next one */
    uint32_t spares;
};

/* A class in use: its smallest key, and the tree of its other keys. */
struct weir__bestfit_slot {
    uint64_t key;
    uint32_t value;
    weir__bestfit_ref others;
};

/* A set.  Octaves start at 1.  The last entry of `used` stays 0, so that a search may begin after the last class. */
struct weir__bestfit {
    uint64_t octaves;                      /* a bit for each octave in use */
    uint64_t used[WEIR__BESTFIT_BITS + 2]; /* for each octave, a bit for each class in use */
    struct weir__bestfit_slot *slot;       /* indexed by class; has `reach` octaves */
    size_t reach;                          /* rises with the largest size inserted */
    struct weir__bestfit_pool *pool;
};

/* The result of a search: the key found, and its value. */
struct weir__bestfit_hit {
    uint64_t key; /* NONE if no key was found */
    uint32_t value;
};

void weir__bestfit_pool_init(struct weir__bestfit_pool *pool, struct weir__hostmem *host);
void weir__bestfit_pool_drop(struct weir__bestfit_pool *pool);

/* Makes an empty set.  The first insert allocates memory. */
void weir__bestfit_init(struct weir__bestfit *f, struct weir__bestfit_pool *pool);
/* Empties the set, and frees its memory; its nodes go back to the pool. */
void weir__bestfit_drop(struct weir__bestfit *f);

/* Touches the table of classes, so that the kernel maps it. */
void weir__bestfit_populate(const struct weir__bestfit *f);
/* Changes the value of a key that is in the set. */
void weir__bestfit_set(struct weir__bestfit *f, uint64_t key, uint32_t value);

/* The slow paths of the inline functions below, for trees and for growth of the table. */
struct weir__bestfit_hit weir__bestfit_from_others(const struct weir__bestfit *f, uint64_t key);
int weir__bestfit_insert_more(struct weir__bestfit *f, uint64_t key, uint32_t value);
void weir__bestfit_erase_more(struct weir__bestfit *f, uint64_t key);

/* Returns the key of a chunk.  `size` is above 0; `size` and `address` are below 2^WEIR__BESTFIT_BITS. */
static inline uint64_t weir__bestfit_key(uint64_t size, uint64_t address) {
    unsigned k = 63u ^ (unsigned)__builtin_clzll(size);

    /* The top bit of the size adds 1 to the octave's field, which becomes k + 1. */
    return ((uint64_t)k << WEIR__BESTFIT_BITS) + (size << (WEIR__BESTFIT_BITS - k)) +
           (address >> k);
}

static inline size_t weir__bestfit_class(uint64_t key) {
    return (size_t)(key >> WEIR__BESTFIT_CLASS_BITS);
}

/* Finds the smallest key that is at least `key`. */
static inline struct weir__bestfit_hit weir__bestfit_from(const struct weir__bestfit *f,
                                                          uint64_t key) {
    size_t c = weir__bestfit_class(key);
    size_t octave = c / WEIR__BESTFIT_CLASSES;
    uint64_t bits = f->used[octave] >> c % WEIR__BESTFIT_CLASSES;
    const struct weir__bestfit_slot *s;

    if (bits == 0) {
        bits = f->octaves & (UINT64_MAX - 1) << octave;
        if (bits == 0)
            return (struct weir__bestfit_hit){.key = WEIR__BESTFIT_NONE};
        octave = (unsigned)__builtin_ctzll(bits);
        c = octave * WEIR__BESTFIT_CLASSES;
        bits = f->used[octave];
    }
    s = &f->slot[c + (unsigned)__builtin_ctzll(bits)];
    return s->key >= key ? (struct weir__bestfit_hit){s->key, s->value}
                         : weir__bestfit_from_others(f, key);
}

/* Adds a key that is not in the set.  Returns 1 on success, 0 if there is no host memory. */
static inline int weir__bestfit_insert(struct weir__bestfit *f, uint64_t key, uint32_t value) {
    size_t c = weir__bestfit_class(key);
    size_t octave = c / WEIR__BESTFIT_CLASSES;
    uint64_t bit = UINT64_C(1) << c % WEIR__BESTFIT_CLASSES;
    uint64_t used = f->used[octave];
    struct weir__bestfit_slot *s;

    if ((used & bit) != 0 || octave >= f->reach)
        return weir__bestfit_insert_more(f, key, value);
    f->used[octave] = used | bit;
    f->octaves |= UINT64_C(1) << octave;
    s = &f->slot[c];
    s->key = key;
    s->value = value;
    s->others = 0;
    return 1;
}

/* Removes a key that is in the set. */
static inline void weir__bestfit_erase(struct weir__bestfit *f, uint64_t key) {
    size_t c = weir__bestfit_class(key);
    size_t octave = c / WEIR__BESTFIT_CLASSES;

    if (f->slot[c].others != 0) {
        weir__bestfit_erase_more(f, key);
        return;
    }
    f->used[octave] ^= UINT64_C(1) << c % WEIR__BESTFIT_CLASSES;
    /* has no branch, since the processor could not predict it */
    f->octaves ^= (uint64_t)(f->used[octave] == 0) << octave;
}

#endif
