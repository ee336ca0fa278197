/* SPDX-License-Identifier: MIT */
/* page_map.h: maps a device address to the record of the memory there.
 *
 * It is a radix tree of three levels over pages of 16 KiB, as in tcmalloc.  Any thread reads it with three loads and no
 * lock.  Two blocks that are multiples of a page in size and place never share an entry.  There is one leaf for every 4
 * GiB of addresses of which any was ever in use.  Leaves are made when they are needed and stay until the end, so
 * readers can keep pointers into them.  A leaf has 2 MiB of words, of which the kernel maps those that are reserved.
 * If the first reservation covers an eighth or more, the whole leaf is mapped, in one large page where possible.
 *
 * Large blocks, of which no two begin within 512 KiB, have words in a second array, one for each 512 KiB.  14 GiB of
 * blocks use 224 KiB of these words, which fit in a processor's cache.  A leaf with large blocks only maps just these
 * words, up to 64 KiB for 4 GiB of addresses.
 *
 * Writers hold a lock of their owner.  A reader that asks for the address of a live block sees the value that was set
 * for it.  For any other address it sees an old value, a new one or NULL.
 *
 * This file must not know the meaning of the values.
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
/* The number of words of `value` in 4 KiB of host memory. */
#define WEIR__PAGEMAP_HOST_SLOTS ((size_t)512)
#define WEIR__PAGEMAP_NODE_SLOTS ((size_t)1 << WEIR__PAGEMAP_NODE_BITS)
#define WEIR__PAGEMAP_TOP_SLOTS ((size_t)1 << WEIR__PAGEMAP_TOP_BITS)

struct weir__pagemap_leaf {
    _Atomic(void *) value[WEIR__PAGEMAP_LEAF_SLOTS]; /* 2 MiB, aligned to 2 MiB */
    /* The first word stays NULL, so that each other word has one before it. */
    _Atomic(void *) large[1 + WEIR__PAGEMAP_LARGE_SLOTS];
    /* One bit for each 4 KiB of `value`, set if host memory is mapped there or will be on first use. */
    uint64_t counted[WEIR__PAGEMAP_LEAF_SLOTS / WEIR__PAGEMAP_HOST_SLOTS / 64];
};

struct weir__pagemap_node {
    _Atomic(struct weir__pagemap_leaf *) leaf[WEIR__PAGEMAP_NODE_SLOTS];
    struct weir__pagemap_node *next; /* links all nodes */
};

struct weir_pagemap {
    _Atomic(struct weir__pagemap_node *) *top; /* has WEIR__PAGEMAP_TOP_SLOTS entries */
    struct weir__pagemap_node *nodes;
    /* The tables' host memory, without the parts that were never used; written under the writers' lock. */
    _Atomic size_t host_bytes;
};

/* Opens an empty map.  Returns 1 on success, 0 if there is no host memory. */
int weir__pagemap_open(struct weir_pagemap *map);
void weir__pagemap_close(struct weir_pagemap *map);
/* Reserves the words of the pages of [address, address + bytes), or with `large` those of large blocks that begin
 * there, so that setting them cannot fail.  Returns 1 on success, 0 if there is no host memory, or the address is above
 * 2^57 or no multiple of a page. */
int weir__pagemap_reserve(struct weir_pagemap *map, uint64_t address, size_t bytes, int large);
/* Sets the words of these pages, which must be reserved.  NULL clears them. */
void weir__pagemap_set(struct weir_pagemap *map, uint64_t address, size_t bytes, void *value);
/* Sets the word of the 512 KiB around an address that was reserved for a large block. */
void weir__pagemap_set_large(struct weir_pagemap *map, uint64_t address, void *value);

/* The words of an address: that of its page, and that of the 512 KiB around it. */
struct weir__pagemap_words {
    _Atomic(void *) *page, *large;
};

/* Finds the words of an address.  Returns 1 on success, 0 if there is no leaf for the address. */
static inline __attribute__((always_inline)) int
weir__pagemap_find(const struct weir_pagemap *map, uint64_t address,
                   struct weir__pagemap_words *out) {
    uint64_t page = address >> WEIR__PAGE_SHIFT;
    uint64_t top = page >> (WEIR__PAGEMAP_NODE_BITS + WEIR__PAGEMAP_LEAF_BITS);
    struct weir__pagemap_node *node;
    struct weir__pagemap_leaf *leaf;

    if (top >= WEIR__PAGEMAP_TOP_SLOTS)
        return 0;
    node = atomic_load_explicit(&map->top[top], memory_order_acquire);
    if (!node)
        return 0;
    leaf = atomic_load_explicit(
        &node->leaf[page >> WEIR__PAGEMAP_LEAF_BITS & (WEIR__PAGEMAP_NODE_SLOTS - 1)],
        memory_order_acquire);
    if (!leaf)
        return 0;
    out->page = &leaf->value[page & (WEIR__PAGEMAP_LEAF_SLOTS - 1)];
    out->large = &leaf->large[1 + (address >> WEIR__LARGE_SHIFT & (WEIR__PAGEMAP_LARGE_SLOTS - 1))];
    return 1;
}

/* Returns 1 if one leaf has the words of all these pages, else 0. */
static inline int weir__pagemap_is_one_leaf(uint64_t address, size_t bytes) {
    enum { SHIFT = WEIR__PAGE_SHIFT + WEIR__PAGEMAP_LEAF_BITS };

    return address >> SHIFT == (address + (bytes - 1)) >> SHIFT;
}

/* Returns the value at the page of any address, or NULL. */
static inline void *weir__pagemap_get(const struct weir_pagemap *map, uint64_t address) {
    struct weir__pagemap_words words;

    return weir__pagemap_find(map, address, &words)
               ? atomic_load_explicit(words.page, memory_order_acquire)
               : NULL;
}

/* Returns the value of the large block that begins in the 512 KiB around the address, or NULL. */
static inline void *weir__pagemap_get_large(const struct weir_pagemap *map, uint64_t address) {
    struct weir__pagemap_words words;

    return weir__pagemap_find(map, address, &words)
               ? atomic_load_explicit(words.large, memory_order_acquire)
               : NULL;
}

#endif
