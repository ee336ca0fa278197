/* SPDX-License-Identifier: MIT */
/* page_map.h: from a device address to whatever stands for the memory there.
 *
 * A radix tree of three levels over pages of 16 KiB, as in tcmalloc.  Reading takes three loads and no
 * lock, from any thread; two blocks that are multiples of a page in size and place never share an
 * entry.  Tables are made as addresses come up and stay until the end, so what a reader holds cannot
 * go: one for every 4 GiB of addresses of which any was ever in use.  It has 2 MiB of words, of which the kernel maps those
 * that are reserved.  If the first reservation covers an eighth or more, it maps the whole table, in one large page where
 * it can.
 *
 * Blocks that are large, so that no two of them begin within 512 KiB, have words of their own, one for each 512 KiB:
 * 14 GiB take 224 KiB of them, which stay in a processor's cache, as single words that lie anywhere in 7 MiB do
 * not.  Where only these are, their words, up to 64 KiB for 4 GiB of addresses, are all of a table that is mapped.
 *
 * Writers hold a lock of their owner.  A reader that asks for an address whose owner it knows to be
 * settled (a live block's) sees what was set for it; for any other address it sees an old value, a
 * new one or NULL.
 *
 * Must not know: what the values are.
 */
#ifndef WEIR_PAGE_MAP_H
#define WEIR_PAGE_MAP_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/size.h"

/* A leaf covers 4 GiB of the device. */
enum {
    WEIR__PAGE_SHIFT = 14,
    WEIR__LARGE_SHIFT = 19,
    WEIR__PAGEMAP_LEAF_BITS = 18,
    WEIR__PAGEMAP_NODE_BITS = 11,
    WEIR__PAGEMAP_TOP_BITS = 14
};
#define WEIR__PAGEMAP_LEAF_SLOTS ((size_t)1 << WEIR__PAGEMAP_LEAF_BITS)
#define WEIR__PAGEMAP_LARGE_SLOTS                                                                  \
    (WEIR__PAGEMAP_LEAF_SLOTS >> (WEIR__LARGE_SHIFT - WEIR__PAGE_SHIFT))
/* Of `value', in 4 KiB of host memory. */
#define WEIR__PAGEMAP_HOST_SLOTS ((size_t)512)
#define WEIR__PAGEMAP_NODE_SLOTS ((size_t)1 << WEIR__PAGEMAP_NODE_BITS)
#define WEIR__PAGEMAP_TOP_SLOTS ((size_t)1 << WEIR__PAGEMAP_TOP_BITS)

struct weir__pagemap_leaf {
    _Atomic(void *) value[WEIR__PAGEMAP_LEAF_SLOTS]; /* 2 MiB, and begins at a multiple of that */
    /* The first is NULL for ever, so that each has one before it. */
    _Atomic(void *) large[1 + WEIR__PAGEMAP_LARGE_SLOTS];
    /* Bit by 4 KiB of `value': host memory is there, or will be as soon as it is touched. */
    uint64_t counted[WEIR__PAGEMAP_LEAF_SLOTS / WEIR__PAGEMAP_HOST_SLOTS / 64];
};

struct weir__pagemap_node {
    _Atomic(struct weir__pagemap_leaf *) leaf[WEIR__PAGEMAP_NODE_SLOTS];
    struct weir__pagemap_node *next; /* of all nodes */
};

struct weir_pagemap {
    _Atomic(struct weir__pagemap_node *) *top; /* WEIR__PAGEMAP_TOP_SLOTS */
    struct weir__pagemap_node *nodes;
    /* Host memory of the tables, without their parts that were never used; guarded by the writers' lock. */
    size_t host_bytes;
};

/* 1, or 0 if host memory ran out. */
int weir__pagemap_open(struct weir_pagemap *map);
void weir__pagemap_close(struct weir_pagemap *map);
/* Makes room for the pages of [address, address + bytes), so that setting them cannot fail.  1, or 0:
 * host memory ran out, or the address is above 2^57 or no multiple of a page. */
int weir__pagemap_reserve(struct weir_pagemap *map, uint64_t address, size_t bytes);
/* The same for large blocks that begin in these pages. */
int weir__pagemap_reserve_large(struct weir_pagemap *map, uint64_t address, size_t bytes);
/* Sets the entries of these pages, which were reserved once; NULL clears. */
void weir__pagemap_set(struct weir_pagemap *map, uint64_t address, size_t bytes, void *value);
/* The same of the 512 KiB around an address that was reserved for a large block. */
void weir__pagemap_set_large(struct weir_pagemap *map, uint64_t address, void *value);

/* The leaf of a page, or NULL. */
static inline struct weir__pagemap_leaf *weir__pagemap_leaf(const struct weir_pagemap *map,
                                                            uint64_t page) {
    uint64_t top = page >> (WEIR__PAGEMAP_NODE_BITS + WEIR__PAGEMAP_LEAF_BITS);
    struct weir__pagemap_node *node;

    if (top >= WEIR__PAGEMAP_TOP_SLOTS)
        return NULL;
    node = atomic_load_explicit(&map->top[top], memory_order_acquire);
    if (!node)
        return NULL;
    return atomic_load_explicit(
        &node->leaf[page >> WEIR__PAGEMAP_LEAF_BITS & (WEIR__PAGEMAP_NODE_SLOTS - 1)],
        memory_order_acquire);
}

static inline _Atomic(void *) *weir__pagemap_at(struct weir__pagemap_leaf *leaf, uint64_t address) {
    return &leaf->value[address >> WEIR__PAGE_SHIFT & (WEIR__PAGEMAP_LEAF_SLOTS - 1)];
}

static inline _Atomic(void *) *weir__pagemap_large_at(struct weir__pagemap_leaf *leaf,
                                                      uint64_t address) {
    return &leaf->large[1 + (address >> WEIR__LARGE_SHIFT & (WEIR__PAGEMAP_LARGE_SLOTS - 1))];
}

/* Nonzero: the words of these pages lie in one table. */
static inline int weir__pagemap_is_one_leaf(uint64_t address, size_t bytes) {
    enum { SHIFT = WEIR__PAGE_SHIFT + WEIR__PAGEMAP_LEAF_BITS };

    return address >> SHIFT == (address + (bytes - 1)) >> SHIFT;
}

/* The value at the page of any address, or NULL. */
static inline void *weir__pagemap_get(const struct weir_pagemap *map, uint64_t address) {
    struct weir__pagemap_leaf *leaf = weir__pagemap_leaf(map, address >> WEIR__PAGE_SHIFT);

    return leaf ? atomic_load_explicit(weir__pagemap_at(leaf, address), memory_order_acquire)
                : NULL;
}

/* The one of large blocks there, likewise. */
static inline void *weir__pagemap_get_large(const struct weir_pagemap *map, uint64_t address) {
    struct weir__pagemap_leaf *leaf = weir__pagemap_leaf(map, address >> WEIR__PAGE_SHIFT);

    return leaf ? atomic_load_explicit(weir__pagemap_large_at(leaf, address), memory_order_acquire)
                : NULL;
}

#endif
