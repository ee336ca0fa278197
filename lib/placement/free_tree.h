/* SPDX-License-Identifier: MIT */
/* free_tree.h: an ordered set of free chunks that answers "the smallest that holds this".
 *
 * The order is (size, address), both counted in granules, packed without loss into one 64-bit key:
 *
 *     k + 1 in 6 bits | size - 2^k in k bits | address >> k in 58 - k bits
 *
 * where k, the octave, is floor(log2(size)).  The low k bits of an address decide nothing among
 * chunks of octave k: two that do not overlap and are at least 2^k long differ above them.  Keys are
 * therefore distinct as long as the chunks are disjoint, and their order as numbers is the order of
 * best fit.
 *
 * The first six bits of the key name the octave, the first twelve a class.  One word has a bit for
 * each octave in use, one word per octave a bit for each of its classes in use, and so the next
 * class is found in a few instructions.  A class has a slot with its smallest key; only the others,
 * if there are any, are in a B+-tree, with leaves of 15 keys.  Most classes of a real program hold
 * one key, and then nothing but bits and the slot is touched, here, inline; but no operation is
 * worse than O(log n), also when every chunk has the same size.
 *
 * Sets that change together share one pool of nodes; insert alone needs memory, and when it is
 * refused nothing has changed.
 *
 * Must not know: what a chunk is besides size, address and a number; streams, regions.
 */
#ifndef WEIR_FREE_TREE_H
#define WEIR_FREE_TREE_H

#include "base/hostmem.h"

#include <stdint.h>
#include <string.h>

/* Sizes and addresses must lie below 2^WEIR__BESTFIT_BITS granules. */
#define WEIR__BESTFIT_BITS 58u
#define WEIR__BESTFIT_CLASS_BITS 52u  /* of a key, below its class */
#define WEIR__BESTFIT_CLASSES 64u     /* of an octave: the bits of a word */
#define WEIR__BESTFIT_SLOTS 15u       /* entries of a node */
#define WEIR__BESTFIT_NONE UINT64_MAX /* no key is as large */

/* 192 bytes, never across more cache lines than three.  The keys in nodes are complements, so that
 * the smallest, which comes and goes most, is the last and moves no others. */
struct weir__bestfit_node {
    uint64_t key[WEIR__BESTFIT_SLOTS + 1]; /* ascending; those unused, and the last: NONE */
    uint32_t value[WEIR__BESTFIT_SLOTS];   /* in a leaf the caller's, above it references */
    uint32_t count;
};

/* A reference to a node: twice its number, plus 1 above the leaves; 0: none. */
typedef uint32_t weir__bestfit_ref;

struct weir__bestfit_pool {
    struct weir__hostmem *host;
    struct weir__bestfit_node *node; /* by number, from 1 on; an insert may move them */
    void *memory;                    /* where they stand, aligned to a cache line */
    size_t bytes;
    uint32_t nodes; /* with number 0 */
    uint32_t spare; /* empty ones, chained through value[0] */
    uint32_t spares;
};

/* Of a class in use: its smallest key, and the tree of the others. */
struct weir__bestfit_slot {
    uint64_t key;
    uint32_t value;
    weir__bestfit_ref others;
};

/* Octaves and classes go by the numbers that keys have for them: octaves from 1 on.  One more stays
 * empty, so that a search may begin behind the last class. */
struct weir__bestfit {
    uint64_t octaves;                      /* bit per octave in use */
    uint64_t used[WEIR__BESTFIT_BITS + 2]; /* by octave: bit per class in use */
    struct weir__bestfit_slot *slot;       /* by class, of the octaves below `reach` */
    size_t reach;                          /* grows with the largest size seen */
    struct weir__bestfit_pool *pool;
};

/* A key that was found, and its value. */
struct weir__bestfit_hit {
    uint64_t key; /* NONE: there is none */
    uint32_t value;
};

void weir__bestfit_pool_init(struct weir__bestfit_pool *pool, struct weir__hostmem *host);
void weir__bestfit_pool_drop(struct weir__bestfit_pool *pool);

/* Takes no memory before the first insert. */
void weir__bestfit_init(struct weir__bestfit *f, struct weir__bestfit_pool *pool);
/* Forgets every key, and gives back all but the nodes of the pool. */
void weir__bestfit_drop(struct weir__bestfit *f);

/* Has the kernel map the table of classes. */
void weir__bestfit_populate(const struct weir__bestfit *f);
/* Gives a key that is there another value. */
void weir__bestfit_set(struct weir__bestfit *f, uint64_t key, uint32_t value);
/* The largest key, or NONE. */
uint64_t weir__bestfit_last(const struct weir__bestfit *f);

/* What the inline functions below leave to free_tree.c: where a tree or the table is concerned. */
struct weir__bestfit_hit weir__bestfit_from_others(const struct weir__bestfit *f, uint64_t key);
int weir__bestfit_insert_more(struct weir__bestfit *f, uint64_t key, uint32_t value);
void weir__bestfit_erase_more(struct weir__bestfit *f, uint64_t key);

/* 0 < size, and neither reaches 2^WEIR__BESTFIT_BITS. */
static inline uint64_t weir__bestfit_key(uint64_t size, uint64_t address) {
    unsigned k = 63u ^ (unsigned)__builtin_clzll(size);

    /* The top bit of the size lands on the octave's field and makes it k + 1. */
    return ((uint64_t)k << WEIR__BESTFIT_BITS) + (size << (WEIR__BESTFIT_BITS - k)) +
           (address >> k);
}

static inline uint64_t weir__bestfit_size(uint64_t key) {
    uint64_t k = (key >> WEIR__BESTFIT_BITS) - 1;

    return (key - (k << WEIR__BESTFIT_BITS)) >> (WEIR__BESTFIT_BITS - k);
}

static inline size_t weir__bestfit_octave(uint64_t key) {
    return (size_t)(key >> WEIR__BESTFIT_BITS);
}

static inline size_t weir__bestfit_class(uint64_t key) {
    return (size_t)(key >> WEIR__BESTFIT_CLASS_BITS);
}

/* The smallest key that is at least `key`. */
static inline struct weir__bestfit_hit weir__bestfit_from(const struct weir__bestfit *f,
                                                          uint64_t key) {
    size_t octave = weir__bestfit_octave(key);
    size_t c = weir__bestfit_class(key);
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

/* Adds a key that is not there.  1, or 0 if memory ran out. */
static inline int weir__bestfit_insert(struct weir__bestfit *f, uint64_t key, uint32_t value) {
    size_t octave = weir__bestfit_octave(key);
    size_t c = weir__bestfit_class(key);
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

/* Takes out a key that is there. */
static inline void weir__bestfit_erase(struct weir__bestfit *f, uint64_t key) {
    size_t octave = weir__bestfit_octave(key);
    size_t c = weir__bestfit_class(key);

    if (f->slot[c].others != 0) {
        weir__bestfit_erase_more(f, key);
        return;
    }
    f->used[octave] ^= UINT64_C(1) << c % WEIR__BESTFIT_CLASSES;
    f->octaves ^= (uint64_t)(f->used[octave] == 0) << octave; /* no branch: it is as often as not */
}

#endif
