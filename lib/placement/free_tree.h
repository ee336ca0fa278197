/* SPDX-License-Identifier: MIT */
/* free_tree.h: an ordered set of free chunks, which finds the smallest chunk that is large enough.
 *
 * The order is (size, address), both counted in granules, packed without loss into one 64-bit key:
 *
 *     k + 1 in 6 bits | size - 2^k in k bits | address >> k in 58 - k bits
 *
 * k, the octave, is floor(log2(size)).  The low k bits of an address do not matter among chunks of octave k: two that
 * do not overlap and are at least 2^k long differ above them.  So keys are distinct as long as the chunks are disjoint,
 * and their numeric order is the order of best fit.
 *
 * The first six bits of the key are the octave, the first twelve the class.  One word has a bit for each octave in use,
 * one word per octave a bit for each of its classes in use, so the next class is found in a few instructions.  A class
 * has a slot with its smallest key; other keys of the class are in a B+-tree, with leaves of 15 keys.  Most classes of
 * a real program have one key, so that an operation touches only the bits and the slot, inline.  No operation is worse
 * than O(log n), even if every chunk has the same size.
 *
 * Sets that change together share one pool of nodes.  Only an insert needs memory; if it fails, nothing has changed.
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
    uint64_t key[WEIR__BESTFIT_SLOTS + 1]; /* ascending; unused ones and the last are NONE */
    uint32_t value[WEIR__BESTFIT_SLOTS];   /* in a leaf the caller's values, above it references */
    uint32_t count;
};

/* A reference to a node: twice its number, plus 1 if it is no leaf; or 0. */
typedef uint32_t weir__bestfit_ref;

struct weir__bestfit_pool {
    struct weir__hostmem *host;
    /* indexed by number, from 1 on; an insert may move the array */
    struct weir__bestfit_node *node;
    void *memory; /* the block of memory; `node` is aligned to a cache line in it */
    size_t bytes;
    uint32_t nodes; /* the number of nodes, including the unused number 0 */
    uint32_t spare; /* the first empty node; value[0] leads to the next */
    uint32_t spares;
};

/* A class in use: its smallest key, and the tree of its other keys. */
struct weir__bestfit_slot {
    uint64_t key;
    uint32_t value;
    weir__bestfit_ref others;
};

/* A set.  Octaves and classes have the numbers of their bits in keys; octaves start at 1.  One octave more is always
 * empty, so that a search may begin behind the last class. */
struct weir__bestfit {
    uint64_t octaves;                      /* a bit for each octave in use */
    uint64_t used[WEIR__BESTFIT_BITS + 2]; /* for each octave, a bit for each class in use */
    struct weir__bestfit_slot *slot;       /* indexed by class; for octaves below `reach` */
    size_t reach;                          /* grows with the largest size seen */
    struct weir__bestfit_pool *pool;
};

/* A key that was found, and its value. */
struct weir__bestfit_hit {
    uint64_t key; /* NONE if no key was found */
    uint32_t value;
};

void weir__bestfit_pool_init(struct weir__bestfit_pool *pool, struct weir__hostmem *host);
void weir__bestfit_pool_drop(struct weir__bestfit_pool *pool);

/* Makes an empty set; takes no memory before the first insert. */
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

/* Returns the key of a chunk.  0 < size; both are below 2^WEIR__BESTFIT_BITS. */
static inline uint64_t weir__bestfit_key(uint64_t size, uint64_t address) {
    unsigned k = 63u ^ (unsigned)__builtin_clzll(size);

    /* The top bit of the size is added to the octave's field, which becomes k + 1. */
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
    /* without a branch, which the processor could not predict */
    f->octaves ^= (uint64_t)(f->used[octave] == 0) << octave;
}

#endif
