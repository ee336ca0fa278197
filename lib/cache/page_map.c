/* SPDX-License-Identifier: MIT */
/* page_map.c: the functions of page_map.h that are not inlined. */
#include "cache/page_map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/hostmem.h"

/* The bytes of a leaf, rounded up to whole pages of any host. */
#define LEAF_BYTES ((sizeof(struct weir__pagemap_leaf) + 0xffff) & ~(size_t)0xffff)
/* If the first reservation in a leaf needs this number of words, it maps the whole leaf: a large page costs no more. */
#define DENSE (WEIR__PAGEMAP_LEAF_SLOTS / 8)

/* Maps a zeroed leaf, or returns NULL.  calloc would clear memory that the process has used before, all at once. */
static struct weir__pagemap_leaf *map_leaf(size_t alignment) {
    char *all = mmap(NULL, LEAF_BYTES + alignment, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
         *leaf;

    if (all == MAP_FAILED)
        return NULL;
    leaf = all + (alignment ? -(uintptr_t)all % alignment : 0);
    if (leaf > all)
        (void)munmap(all, (size_t)(leaf - all));
    if (leaf < all + alignment)
        (void)munmap(leaf + LEAF_BYTES, (size_t)(all + alignment - leaf));
    return (struct weir__pagemap_leaf *)(void *)leaf;
}

int weir__pagemap_open(struct weir_pagemap *map) {
    map->top = calloc(WEIR__PAGEMAP_TOP_SLOTS, sizeof *map->top);
    map->nodes = NULL;
    map->host_bytes = 0;
    return map->top != NULL;
}

void weir__pagemap_close(struct weir_pagemap *map) {
    struct weir__pagemap_leaf *leaf;

    while (map->nodes) {
        struct weir__pagemap_node *node = map->nodes;

        for (size_t k = 0; k < WEIR__PAGEMAP_NODE_SLOTS; k++) {
            leaf = atomic_load_explicit(&node->leaf[k], memory_order_relaxed);
            if (leaf)
                (void)munmap(leaf, LEAF_BYTES);
        }
        map->nodes = node->next;
        free(node);
    }
    free(map->top);
    map->top = NULL;
}

/* Makes a leaf and maps all of it, in one large page if possible, at a seventh of the cost of small pages. */
static struct weir__pagemap_leaf *make_dense(void) {
    struct weir__pagemap_leaf *leaf = map_leaf(sizeof leaf->value);

    if (!leaf)
        return NULL;
    weir__hostmem_prefer_large_pages(leaf->value, sizeof leaf->value);
    weir__hostmem_populate(leaf, sizeof *leaf);
    memset(leaf->counted, 0xff, sizeof leaf->counted);
    return leaf;
}

/* Makes a leaf without mapping its words of pages.  Maps its words of large blocks, all at once: one by one they would
 * cost twice as much. */
static struct weir__pagemap_leaf *make_sparse(void) {
    struct weir__pagemap_leaf *leaf = map_leaf(0);

    if (leaf)
        weir__hostmem_populate(leaf->large, sizeof leaf->large);
    return leaf;
}

/* Returns the leaf of these pages, and makes it if there is none.  Returns NULL if there is no host memory. */
static struct weir__pagemap_leaf *leaf_of(struct weir_pagemap *map, uint64_t page, uint64_t last,
                                          int large) {
    int is_dense = !large && last - page + 1 >= DENSE;
    _Atomic(struct weir__pagemap_node *) *above =
        &map->top[page >> (WEIR__PAGEMAP_NODE_BITS + WEIR__PAGEMAP_LEAF_BITS)];
    struct weir__pagemap_node *node = atomic_load_explicit(above, memory_order_relaxed);
    _Atomic(struct weir__pagemap_leaf *) *place;
    struct weir__pagemap_leaf *leaf;

    if (!node) {
        node = calloc(1, sizeof *node);
        if (!node)
            return NULL;
        node->next = map->nodes;
        map->nodes = node;
        map->host_bytes += sizeof *node;
        atomic_store_explicit(above, node, memory_order_release);
    }
    place = &node->leaf[page >> WEIR__PAGEMAP_LEAF_BITS & (WEIR__PAGEMAP_NODE_SLOTS - 1)];
    leaf = atomic_load_explicit(place, memory_order_relaxed);
    if (leaf)
        return leaf;
    leaf = is_dense ? make_dense() : make_sparse();
    if (!leaf)
        return NULL;
    map->host_bytes += is_dense ? sizeof *leaf : sizeof *leaf - sizeof leaf->value;
    atomic_store_explicit(place, leaf, memory_order_release);
    return leaf;
}

/* Returns the last page whose word is in the leaf of `page`, or `last` if that comes first. */
static uint64_t last_in_leaf(uint64_t page, uint64_t last) {
    const uint64_t end = page | (WEIR__PAGEMAP_LEAF_SLOTS - 1);

    return last < end ? last : end;
}

/* Maps the words of these pages in the leaf, and counts the host memory that was not counted before. */
static void want_words(struct weir_pagemap *map, struct weir__pagemap_leaf *leaf, uint64_t page,
                       uint64_t last) {
    const size_t mask = WEIR__PAGEMAP_LEAF_SLOTS - 1;
    const size_t first = (page & mask) / WEIR__PAGEMAP_HOST_SLOTS;
    const size_t end = (last & mask) / WEIR__PAGEMAP_HOST_SLOTS + 1;
    const size_t bytes = WEIR__PAGEMAP_HOST_SLOTS * sizeof leaf->value[0];
    size_t more = 0;

    for (size_t at = first; at < end; at++) {
        const uint64_t bit = UINT64_C(1) << at % 64;

        if (!(leaf->counted[at / 64] & bit))
            more += bytes;
        leaf->counted[at / 64] |= bit;
    }
    map->host_bytes += more;
    if (more > 0)
        weir__hostmem_populate((char *)leaf->value + first * bytes, (end - first) * bytes);
}

int weir__pagemap_reserve(struct weir_pagemap *map, uint64_t address, size_t bytes, int large) {
    struct weir__pagemap_leaf *leaf;
    uint64_t page = address >> WEIR__PAGE_SHIFT, last, end;

    if (bytes == 0 || address % WEIR_PAGE != 0 || address + (bytes - 1) < address)
        return 0;
    last = (address + (bytes - 1)) >> WEIR__PAGE_SHIFT;
    if (last >> (WEIR__PAGEMAP_NODE_BITS + WEIR__PAGEMAP_LEAF_BITS) >= WEIR__PAGEMAP_TOP_SLOTS)
        return 0;
    for (; page <= last; page = end + 1) {
        end = last_in_leaf(page, last);
        leaf = leaf_of(map, page, end, large);
        if (!leaf)
            return 0;
        if (!large)
            want_words(map, leaf, page, end);
    }
    return 1;
}

void weir__pagemap_set(struct weir_pagemap *map, uint64_t address, size_t bytes, void *value) {
    uint64_t last = (address + (bytes - 1)) >> WEIR__PAGE_SHIFT;
    struct weir__pagemap_words words;

    for (; address >> WEIR__PAGE_SHIFT <= last; address += WEIR_PAGE)
        if (weir__pagemap_find(map, address, &words)) /* unreached: no leaf, as it is reserved */
            atomic_store_explicit(words.page, value, memory_order_release);
}

void weir__pagemap_set_large(struct weir_pagemap *map, uint64_t address, void *value) {
    struct weir__pagemap_words words;

    if (weir__pagemap_find(map, address, &words)) /* unreached: no leaf, as it is reserved */
        atomic_store_explicit(words.large, value, memory_order_release);
}
