/* SPDX-License-Identifier: MIT */
/* page_map.h: finds the record of the slab or whole block at a device address.
 *
 * The page map is a radix tree of three levels over pages of 16 KiB, as in tcmalloc.  One leaf covers 4 GiB of
 * addresses.  A leaf is made when an address in it is first used, and stays until the map closes.  A leaf has 2 MiB of
 * words, one for each page, of which only reserved words have host memory, and 64 KiB of words for 512 KiB each.
 *
 * The words of all pages of a slab lead to its record.  Slabs of 512 KiB, the most frequent ones in programs with many
 * blocks, use words for 512 KiB instead.  Such a slab touches two of these words.  The first word has the record and a
 * tag: the page, within the 512 KiB, at which the slab begins.  So for each page the word of its 512 KiB and the word
 * before tell which slab has the page.  (A million blocks of 20 KiB need 300 KiB of these words, and 10 MiB of words
 * for pages.) If the two words lie in two leaves, the slab uses words for pages.  The first page of a whole block leads
 * to the block's record.  Large whole blocks, which are larger than any slot, use words for 512 KiB, since no two of
 * them begin in one.
 *
 * The record of a whole block stays in the map with bytes == 0 after the block was freed, until a slab needs the word,
 * unless there are very many records.  The next block that begins there, or for large blocks in the same 512 KiB, gets
 * this record, so frequent allocations and frees do not write the map.  The thread that has the block may write the
 * record without a lock: a large block contains the last page of the 512 KiB in which it begins, so no two large blocks
 * with one record are live at once.
 *
 * Readers take no lock and make three loads.  A reader of a live block's address finds the block's record: the word of
 * the block does not change, and no slab of the word before reaches the block.  Other parts of these words may change
 * between two loads.  Records stay allocated until the map closes, so a reader of any other address may read the record
 * that it finds.
 *
 * This file must not know caches, streams, engines or the driver.
 */
#ifndef WEIR_PAGE_MAP_H
#define WEIR_PAGE_MAP_H

#include "base/lock.h"
#include "base/size.h"
#include "cache/slab.h"

/* The bits of an address that each level uses.  A leaf covers 4 GiB. */
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

enum {
    WEIR_RECORDS_SLOTS = 1024, /* the most slots of a slab: a power of two */
    WEIR_RECORDS_ORDERS = 12,  /* log2 of WEIR_RECORDS_SLOTS, plus 2 */
    WEIR_RECORDS_ALIGN = 128   /* processors fetch cache lines in pairs */
};

struct weir__pagemap_leaf {
    _Atomic(void *) value[WEIR__PAGEMAP_LEAF_SLOTS]; /* 2 MiB, aligned to 2 MiB */
    /* The first word stays NULL, so that each other word has a word before it. */
    _Atomic(void *) large[1 + WEIR__PAGEMAP_LARGE_SLOTS];
    /* One bit for each 4 KiB of `value`: set once the words there are reserved. */
    uint64_t counted[WEIR__PAGEMAP_LEAF_SLOTS / WEIR__PAGEMAP_HOST_SLOTS / 64];
};

struct weir__pagemap_node {
    _Atomic(struct weir__pagemap_leaf *) leaf[WEIR__PAGEMAP_NODE_SLOTS];
    struct weir__pagemap_node *next; /* links all nodes */
};

struct weir_pagemap {
    _Atomic(struct weir__pagemap_node *) *top; /* has WEIR__PAGEMAP_TOP_SLOTS entries */
    struct weir__pagemap_node *nodes;
    /* The bytes of host memory that the tables use; written under the writers' lock. */
    _Atomic size_t host_bytes;
};

struct weir_records_chunk;

/* All fields are zero before weir__records_open(). */
struct weir_records {
    struct weir_pagemap *pages; /* readers need nothing else */
    struct weir_lock lock;      /* innermost; guards writes to the map, and the fields below */
    struct weir_slab *spare[WEIR_RECORDS_ORDERS];
    struct weir_records_chunk *chunks;
    char *chunk_at, *chunk_end;
    _Atomic size_t host_bytes; /* the bytes of all chunks; read without the lock */
    _Atomic size_t wholes;     /* the number of records of whole blocks; read without the lock */
};

/* ---- inlined look-ups ---- */

/* The two words of an address: the word of its page, and the word of its 512 KiB. */
struct weir__pagemap_words {
    _Atomic(void *) *page, *large;
};

/* Finds the two words of an address.  Returns 1 on success, 0 if there is no leaf for the address. */
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

/* The bits of a word for 512 KiB that hold the tag of a slab.  These bits are zero in the address of a record. */
#define WEIR__RECORDS_TAG ((uintptr_t)WEIR_RECORDS_ALIGN - 1)
_Static_assert(WEIR_SLAB_SMALL == (size_t)1 << WEIR__LARGE_SHIFT,
               "one begins in what a word stands for");
_Static_assert(2 * (WEIR_SLAB_SMALL / WEIR_PAGE) <= WEIR_RECORDS_ALIGN,
               "the tag of the last page has room");

static inline uintptr_t weir__records_tag(uint64_t address) {
    return (uintptr_t)(address >> WEIR__PAGE_SHIFT & (WEIR_SLAB_SMALL / WEIR_PAGE - 1)) << 1 | 1;
}

/* Returns the record for any address, or NULL.  (If gcc decided, it would not inline this function into hits.) */
static inline __attribute__((always_inline)) struct weir_slab *
weir__records_find(const struct weir_pagemap *pages, uint64_t address) {
    struct weir__pagemap_words words;
    uintptr_t word, last, page, ours, lasts;
    struct weir_slab *s;

    if (!weir__pagemap_find(pages, address, &words))
        return NULL;
    word = (uintptr_t)atomic_load_explicit(words.large, memory_order_acquire);
    last = (uintptr_t)atomic_load_explicit(words.large - 1, memory_order_acquire);
    if ((word | last) == 0)
        return atomic_load_explicit(words.page, memory_order_acquire);
    if (word && !(word & WEIR__RECORDS_TAG)) {
        /* The word leads to the record of a large whole block, which another thread may change now.  So the bytes are
         * read first: if they are not 0, the base that is read next belongs to that block or to a later one. */
        s = (struct weir_slab *)word;
        if (atomic_load_explicit(&s->bytes, memory_order_acquire) > 0 &&
            weir__slab_base(s) == address)
            return s;
    }
    page = weir__records_tag(address);
    /* `ours`: the word's slab begins at this page or before.  Without a tag, 0 - 1 is the largest number. */
    ours = (word & WEIR__RECORDS_TAG) - 1 < page;
    lasts = (last & WEIR__RECORDS_TAG) > page; /* the slab of the word before reaches this page */
    /* Selects the word without a branch, since a processor would mispredict half of the branches. */
    word = (uintptr_t)(words.large - lasts) & -(ours | lasts);
    word |= (uintptr_t)words.page & ~-(ours | lasts);
    word = (uintptr_t)atomic_load_explicit((_Atomic(void *) *)word, memory_order_acquire);
    return (struct weir_slab *)(word & ~WEIR__RECORDS_TAG);
}

/* ---- the page map --------------------------------------------------- */

/* Opens an empty map.  Returns 1 on success, 0 if there is no host memory. */
int weir__pagemap_open(struct weir_pagemap *map);
void weir__pagemap_close(struct weir_pagemap *map);
/* Reserves the words of the pages of [address, address + bytes), or with `large` the words of the 512 KiB around them,
 * so that setting the words cannot fail.  Returns 1 on success, 0 if there is no host memory, or if the address is
 * above 2^57 or no multiple of a page. */
int weir__pagemap_reserve(struct weir_pagemap *map, uint64_t address, size_t bytes, int large);
/* Sets the words of these pages, which are reserved.  NULL clears the words. */
void weir__pagemap_set(struct weir_pagemap *map, uint64_t address, size_t bytes, void *value);
/* Sets the word of the 512 KiB around an address, which is reserved. */
void weir__pagemap_set_large(struct weir_pagemap *map, uint64_t address, void *value);
/* Returns the word of the page of an address, or with `large` the word of its 512 KiB; NULL if there is none. */
void *weir__pagemap_get(const struct weir_pagemap *map, uint64_t address, int large);

/* ---- records ---- */

/* Opens the records and the page map.  Returns 1 on success, 0 if there is no host memory. */
int weir__records_open(struct weir_records *r, struct weir_pagemap *pages);
void weir__records_close(struct weir_records *r);

/* Cuts the caller's block into at most WEIR_RECORDS_SLOTS slots, which are all free.  Returns the slab, or NULL if
 * there is no host memory or the block lies beyond the page map. */
struct weir_slab *weir__records_slab(struct weir_records *r, uint64_t base, size_t bytes,
                                     unsigned size_class, uint32_t slots);
/* Makes the record of a whole block that is not live yet.  Returns NULL as weir__records_slab does. */
struct weir_slab *weir__records_whole(struct weir_records *r, uint64_t base, size_t bytes);
/* Reserves the page map for the addresses of future blocks: up to 2 MiB of host memory for each 4 GiB of addresses, or
 * up to 64 KiB if all blocks will be `large`.  Does nothing if there is no host memory. */
void weir__records_prepare(struct weir_records *r, uint64_t base, size_t bytes, int large);
/* Allocates at most 128 KiB for the records of the first blocks in `bytes` of device memory.  May fail unseen. */
void weir__records_stock(struct weir_records *r, size_t bytes);
/* Ends a record before its block goes back to the engine, which may use the block at once. */
void weir__records_end(struct weir_records *r, struct weir_slab *s);
/* Visits the record of every block, live or not, under the lock.  For a whole block `visit` may read only `base`,
 * `bytes`, `asked` and `fetched_for`, since another thread may write the other fields. */
void weir__records_walk(struct weir_records *r, void (*visit)(void *context, struct weir_slab *s),
                        void *context);

#endif
