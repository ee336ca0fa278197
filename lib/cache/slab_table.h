/* SPDX-License-Identifier: MIT */
/* slab_table.h: the records of spans, and which addresses lead to them.
 *
 * A span's record is found in a page map: a slab's by all its pages, a whole block's by its first.  Slabs of 512 KiB,
 * of which there are most where there are many blocks, go by the words for 512 KiB instead, of which a slab touches
 * two (unless these are of two tables): the first has its record, and at which page of the 512 KiB it begins, so that
 * these words tell of every page whose it is.  A million blocks of 20 KiB take 300 KiB of words that way, not 10 MiB,
 * and a random one's is in the processor's cache.  Readers take no lock; a caller that holds a live block's address finds
 * its record.  A record is never given back to the C library before the end, so that a caller that holds any other address
 * may look at one.
 *
 * Large whole blocks (above what a slab serves) go by the words that the map has for each 512 KiB, in which no more
 * than one of them begins.
 *
 * The record of a whole block outlasts it, with bytes == 0 (unless there are very many), until a slab gets its word,
 * and serves the next block that begins there, of large ones in those 512 KiB: a block that comes and goes costs no
 * write to the map.  It belongs to the holder of the block: of those that go by a word of 512 KiB each holds the last page of
 * these, so that no two are live at once, and who has that page of the engine writes without a lock.
 *
 * So what a reader finds of a live block stays: its own word, and that no slab which the word before tells of reaches
 * it.  Whatever else is in these words may change between two looks, to a block that begins behind it.
 *
 * Must not know: caches, streams, engines, the driver.
 */
#ifndef WEIR_SLAB_TABLE_H
#define WEIR_SLAB_TABLE_H

#include "base/lock.h"
#include "cache/page_map.h"
#include "cache/slab.h"

enum {
    WEIR_RECORDS_SLOTS = 1024, /* of a slab, at most: a power of two */
    WEIR_RECORDS_ORDERS = 12,  /* log2 of that, plus 2 */
    WEIR_RECORDS_ALIGN = 128   /* processors fetch cache lines in pairs */
};

struct weir_records_chunk;

/* Begins zeroed. */
struct weir_records {
    struct weir_pagemap *pages; /* apart, as readers want nothing else */
    struct weir_lock lock;      /* guards its writers, and what follows; innermost */
    struct weir_slab *spare[WEIR_RECORDS_ORDERS];
    struct weir_records_chunk *chunks;
    char *chunk_at, *chunk_end;
    size_t host_bytes;     /* of chunks */
    _Atomic size_t wholes; /* records of whole blocks; read without the lock */
};

/* The word of 512 KiB in which a slab of that size begins: its record's address and, in bits that are 0 there, this. */
#define WEIR__RECORDS_TAG ((uintptr_t)WEIR_RECORDS_ALIGN - 1)
_Static_assert(WEIR_SLAB_SMALL == (size_t)1 << WEIR__LARGE_SHIFT,
               "one begins in what a word stands for");
_Static_assert(2 * (WEIR_SLAB_SMALL / WEIR_PAGE) <= WEIR_RECORDS_ALIGN,
               "the tag of the last page has room");

static inline uintptr_t weir__records_tag(uint64_t address) {
    return (uintptr_t)(address >> WEIR__PAGE_SHIFT & (WEIR_SLAB_SMALL / WEIR_PAGE - 1)) << 1 | 1;
}

/* A word of 512 KiB without a tag: the block, if it is a large one that begins at the address.  What begins there may
 * change while another block's record is looked for.  So the bytes are read first: if there are any, the place that is
 * read next is theirs, or of a later one. */
static inline struct weir_slab *weir__records_large(uintptr_t word, uint64_t address) {
    struct weir_slab *s = (struct weir_slab *)word;

    return atomic_load_explicit(&s->bytes, memory_order_acquire) > 0 &&
                   weir__slab_base(s) == address
               ? s
               : NULL;
}

/* The record that any address leads to, or NULL.  (By itself gcc has hits call this, at a tenth of what they cost.) */
static inline __attribute__((always_inline)) struct weir_slab *
weir__records_find(const struct weir_pagemap *pages, uint64_t address) {
    struct weir__pagemap_leaf *leaf = weir__pagemap_leaf(pages, address >> WEIR__PAGE_SHIFT);
    _Atomic(void *) *large, *place;
    uintptr_t word, last, page, ours, lasts;
    struct weir_slab *s;

    if (!leaf)
        return NULL;
    large = weir__pagemap_large_at(leaf, address);
    place = weir__pagemap_at(leaf, address);
    word = (uintptr_t)atomic_load_explicit(large, memory_order_acquire);
    last = (uintptr_t)atomic_load_explicit(large - 1, memory_order_acquire);
    if ((word | last) == 0)
        return atomic_load_explicit(place, memory_order_acquire);
    if (word && !(word & WEIR__RECORDS_TAG)) {
        s = weir__records_large(word, address);
        if (s)
            return s;
    }
    page = weir__records_tag(address);
    ours = (word & WEIR__RECORDS_TAG) - 1 < page; /* begins here or before; no tag is above all */
    lasts = (last & WEIR__RECORDS_TAG) > page;    /* ends behind this */
    /* Whose it is, no branch could foretell: a processor would have tried the wrong one half of the time. */
    word = (uintptr_t)(large - lasts) & -(ours | lasts);
    word |= (uintptr_t)place & ~-(ours | lasts);
    word = (uintptr_t)atomic_load_explicit((_Atomic(void *) *)word, memory_order_acquire);
    return (struct weir_slab *)(word & ~WEIR__RECORDS_TAG);
}

/* Opens the page map too: 1, or 0 if host memory ran out. */
int weir__records_open(struct weir_records *r, struct weir_pagemap *pages);
void weir__records_close(struct weir_records *r);

/* A slab of a block of the caller's, every slot at home, or NULL: host memory ran out, or the block lies
 * where no page map reaches.  At most WEIR_RECORDS_SLOTS slots. */
struct weir_slab *weir__records_slab(struct weir_records *r, uint64_t base, size_t bytes,
                                     unsigned size_class, uint32_t slots);
/* A whole block of the caller's, not live yet, or NULL likewise. */
struct weir_slab *weir__records_whole(struct weir_records *r, uint64_t base, size_t bytes);
/* Makes the page map there, in place of the first blocks: up to 2 MiB of host memory for each 4 GiB of addresses that
 * any of it lies in; up to 64 KiB if there will be none but `large` blocks.  As far as there is host memory. */
void weir__records_prepare(struct weir_records *r, uint64_t base, size_t bytes, int large);
/* Takes host memory for the first records of blocks in so much memory, no more than 128 KiB.  Likewise. */
void weir__records_stock(struct weir_records *r, size_t bytes);
/* Forgets a span before its block goes back: once the engine has it, it may be another's at once. */
void weir__records_end(struct weir_records *r, struct weir_slab *s);
/* Visits the record of every block that there is, live or not, under the lock.  Of a whole block's nothing but
 * `base`, `bytes`, `asked` and `fetched_for` may be read, which its owner may be writing. */
void weir__records_walk(struct weir_records *r, void (*visit)(void *context, struct weir_slab *s),
                        void *context);
/* What all of it takes on the host, the page map included. */
size_t weir__records_host_bytes(struct weir_records *r);

#endif
