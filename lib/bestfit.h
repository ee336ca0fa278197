/* SPDX-License-Identifier: MIT */
/* bestfit.h: an ordered set of free chunks that answers "the smallest that holds this".
 *
 * The order is (size, address), both counted in granules, packed without loss into one 64-bit key:
 *
 *     octave k = floor(log2 size) | size - 2^k in k bits | address >> k in 58 - k bits
 *
 * The low k bits of an address decide nothing among chunks of octave k: two chunks that do not
 * overlap and are both at least 2^k long differ above them.  Keys are therefore distinct as long as
 * the chunks are disjoint, and their order as numbers is the order of best fit.
 *
 * The top bits of the key name a class.  A two-level bitmap of the classes in use finds the next
 * one in a few instructions.  A class is a B+-tree with leaves of 15 keys, so one leaf as a rule,
 * and O(log n) also when every chunk has the same size.  What touches a single leaf is inline here,
 * the rest is in bestfit.c.  Sets that change together share one pool of nodes; insert alone needs
 * memory, and when it is refused nothing has changed.
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
#define WEIR__BESTFIT_SUMMARIES 4     /* words over words over classes: 58 octaves of 256 */

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
    struct weir__bestfit_node *spare; /* chained through value[0] */
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
    struct weir__bestfit_node *leaf; /* the class's only leaf, else NULL */
    unsigned at;
};

void weir__bestfit_pool_init(struct weir__bestfit_pool *pool, struct weir__hostmem *host);
void weir__bestfit_pool_drop(struct weir__bestfit_pool *pool);

/* Each octave has 2^octave_bits classes: 6 to 8.  Takes no memory before the first insert. */
void weir__bestfit_init(struct weir__bestfit *f, struct weir__bestfit_pool *pool,
                        unsigned octave_bits);
/* Forgets every key, and gives back all but the nodes of the pool. */
void weir__bestfit_drop(struct weir__bestfit *f);

/* The value of `key` in *value and 1, or 0. */
int weir__bestfit_find(const struct weir__bestfit *f, uint64_t key, uint64_t *value);
/* The largest key, or NONE. */
uint64_t weir__bestfit_last(const struct weir__bestfit *f);
/* Checks the structure: 1, or 0 if an invariant does not hold. */
int weir__bestfit_check(const struct weir__bestfit *f);

int weir__bestfit_insert_slow(struct weir__bestfit *f, uint64_t key, uint64_t value);
void weir__bestfit_erase_slow(struct weir__bestfit *f, uint64_t key);
int weir__bestfit_from_deep(weir__bestfit_ref root, uint64_t key, struct weir__bestfit_hit *hit);

/* 0 < size, and neither reaches 2^WEIR__BESTFIT_BITS. */
static inline uint64_t weir__bestfit_key(uint64_t size, uint64_t address) {
    unsigned octave = 63u - (unsigned)__builtin_clzll(size);
    unsigned rest = WEIR__BESTFIT_BITS - octave;

    /* The top bit of the size lands on the octave's field: hence the octave less one. */
    return (((uint64_t)octave - 1) << WEIR__BESTFIT_BITS) + (size << rest) + (address >> octave);
}

static inline uint64_t weir__bestfit_size(uint64_t key) {
    unsigned octave = (unsigned)(key >> WEIR__BESTFIT_BITS);
    uint64_t below = key & ((UINT64_C(1) << WEIR__BESTFIT_BITS) - 1);

    return (UINT64_C(1) << octave) + (below >> (WEIR__BESTFIT_BITS - octave));
}

static inline int weir__bestfit_is_leaf(weir__bestfit_ref ref) {
    return (ref & 1) == 0;
}

static inline struct weir__bestfit_node *weir__bestfit_node(weir__bestfit_ref ref) {
    return (struct weir__bestfit_node *)(ref & ~(weir__bestfit_ref)1);
}

/* How many keys of the node are below `key`.  Two short rounds without a branch on data. */
static inline unsigned weir__bestfit_rank(const struct weir__bestfit_node *n, uint64_t key) {
    const uint64_t *k = n->key;
    unsigned at = 4u * ((unsigned)(k[3] < key) + (unsigned)(k[7] < key) + (unsigned)(k[11] < key));

    k += at;
    return at + (unsigned)(k[0] < key) + (unsigned)(k[1] < key) + (unsigned)(k[2] < key);
}

/* The first class in use from `c` on, or f->classes. */
static inline size_t weir__bestfit_class_from(const struct weir__bestfit *f, size_t c) {
    size_t word = c / 64;
    size_t sum;
    uint64_t bits;

    if (c >= f->classes) {
        return f->classes;
    }
    bits = f->used[word] & (UINT64_MAX << (c % 64));
    if (bits != 0) {
        return word * 64 + (size_t)__builtin_ctzll(bits);
    }
    word++;
    sum = word / 64;
    if (sum >= WEIR__BESTFIT_SUMMARIES) {
        return f->classes;
    }
    bits = f->summary[sum] & (UINT64_MAX << (word % 64));
    while (bits == 0) {
        if (++sum == WEIR__BESTFIT_SUMMARIES) {
            return f->classes;
        }
        bits = f->summary[sum];
    }
    word = sum * 64 + (size_t)__builtin_ctzll(bits);
    return word * 64 + (size_t)__builtin_ctzll(f->used[word]);
}

static inline int weir__bestfit_in_class(weir__bestfit_ref root, uint64_t key,
                                         struct weir__bestfit_hit *hit) {
    struct weir__bestfit_node *leaf;

    if (!weir__bestfit_is_leaf(root)) {
        return weir__bestfit_from_deep(root, key, hit);
    }
    leaf = weir__bestfit_node(root);
    hit->leaf = leaf;
    hit->at = weir__bestfit_rank(leaf, key);
    hit->key = leaf->key[hit->at];
    if (hit->key == WEIR__BESTFIT_NONE) {
        return 0;
    }
    hit->value = leaf->value[hit->at];
    return 1;
}

static inline int weir__bestfit_first_in_class(weir__bestfit_ref root,
                                               struct weir__bestfit_hit *hit) {
    struct weir__bestfit_node *leaf;

    if (!weir__bestfit_is_leaf(root)) {
        return weir__bestfit_from_deep(root, 0, hit);
    }
    leaf = weir__bestfit_node(root);
    hit->leaf = leaf;
    hit->at = 0;
    hit->key = leaf->key[0];
    hit->value = leaf->value[0];
    return 1;
}

/* The smallest key that is at least `key`: 1, or 0 and hit->key is NONE. */
static inline int weir__bestfit_from(const struct weir__bestfit *f, uint64_t key,
                                     struct weir__bestfit_hit *hit) {
    size_t c = (size_t)(key >> f->shift);

    hit->key = WEIR__BESTFIT_NONE;
    if (c < f->classes && f->root[c] != 0) {
        if (weir__bestfit_in_class(f->root[c], key, hit)) {
            return 1;
        }
        c++;
    }
    c = weir__bestfit_class_from(f, c);
    return c < f->classes && weir__bestfit_first_in_class(f->root[c], hit);
}

/* Adds a key that is not there.  1, or 0 if memory ran out. */
static inline int weir__bestfit_insert(struct weir__bestfit *f, uint64_t key, uint64_t value) {
    size_t c = (size_t)(key >> f->shift);
    struct weir__bestfit_node *leaf;
    unsigned at;

    if (c >= f->classes || f->root[c] == 0 || !weir__bestfit_is_leaf(f->root[c])) {
        return weir__bestfit_insert_slow(f, key, value);
    }
    leaf = weir__bestfit_node(f->root[c]);
    if (leaf->count == WEIR__BESTFIT_SLOTS) {
        return weir__bestfit_insert_slow(f, key, value);
    }
    at = weir__bestfit_rank(leaf, key);
    memmove(&leaf->key[at + 1], &leaf->key[at], (leaf->count - at) * sizeof leaf->key[0]);
    memmove(&leaf->value[at + 1], &leaf->value[at], (leaf->count - at) * sizeof leaf->value[0]);
    leaf->key[at] = key;
    leaf->value[at] = value;
    leaf->count++;
    f->entries++;
    return 1;
}

/* Takes out slot `at` of a leaf that holds more than one key. */
static inline void weir__bestfit_close_gap(struct weir__bestfit_node *leaf, unsigned at) {
    leaf->count--;
    memmove(&leaf->key[at], &leaf->key[at + 1], (leaf->count - at) * sizeof leaf->key[0]);
    memmove(&leaf->value[at], &leaf->value[at + 1], (leaf->count - at) * sizeof leaf->value[0]);
    leaf->key[leaf->count] = WEIR__BESTFIT_NONE;
}

/* Takes out what was found. */
static inline void weir__bestfit_erase_hit(struct weir__bestfit *f,
                                           const struct weir__bestfit_hit *hit) {
    if (hit->leaf == NULL || hit->leaf->count == 1) {
        weir__bestfit_erase_slow(f, hit->key);
        return;
    }
    weir__bestfit_close_gap(hit->leaf, hit->at);
    f->entries--;
}

/* Takes out a key that is there. */
static inline void weir__bestfit_erase(struct weir__bestfit *f, uint64_t key) {
    weir__bestfit_ref root = f->root[key >> f->shift];
    struct weir__bestfit_node *leaf = weir__bestfit_node(root);

    if (!weir__bestfit_is_leaf(root) || leaf->count == 1) {
        weir__bestfit_erase_slow(f, key);
        return;
    }
    weir__bestfit_close_gap(leaf, weir__bestfit_rank(leaf, key));
    f->entries--;
}

/* Puts `key` where the hit is, if it keeps the place of the old key in the order: 1, else 0. */
static inline int weir__bestfit_rekey(struct weir__bestfit *f, const struct weir__bestfit_hit *hit,
                                      uint64_t key, uint64_t value) {
    struct weir__bestfit_node *leaf = hit->leaf;
    unsigned at = hit->at;

    if (leaf == NULL || key >> f->shift != hit->key >> f->shift) {
        return 0;
    }
    if ((at > 0 && leaf->key[at - 1] > key) || leaf->key[at + 1] < key) {
        return 0;
    }
    leaf->key[at] = key;
    leaf->value[at] = value;
    return 1;
}

/* The found chunk now goes by `key` and `value`.  1, or 0 if memory ran out: then neither key is
 * in the set. */
static inline int weir__bestfit_move_hit(struct weir__bestfit *f,
                                         const struct weir__bestfit_hit *hit, uint64_t key,
                                         uint64_t value) {
    if (weir__bestfit_rekey(f, hit, key, value)) {
        return 1;
    }
    weir__bestfit_erase_hit(f, hit);
    return weir__bestfit_insert(f, key, value);
}

/* The same for a key that is there. */
static inline int weir__bestfit_move(struct weir__bestfit *f, uint64_t old, uint64_t key,
                                     uint64_t value) {
    weir__bestfit_ref root = f->root[old >> f->shift];
    struct weir__bestfit_hit hit;

    if (!weir__bestfit_is_leaf(root)) {
        weir__bestfit_erase_slow(f, old);
        return weir__bestfit_insert(f, key, value);
    }
    hit.leaf = weir__bestfit_node(root);
    hit.key = old;
    hit.at = weir__bestfit_rank(hit.leaf, old);
    return weir__bestfit_move_hit(f, &hit, key, value);
}

#endif
