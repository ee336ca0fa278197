/* SPDX-License-Identifier: MIT */
/* records.h: the records of spans, and which addresses lead to them.
 *
 * A span's record is found in a page map: a slab's by all its pages, a whole block's by its first.
 * Readers take no lock; whoever holds a live block's address finds its record.  A record is never given
 * back to the C library before the end, so that whoever holds any other address may look at one.
 *
 * Large whole blocks (above what a slab serves) go by the words that the map has for each 512 KiB, in which no more
 * than one of them begins.
 *
 * The record of a whole block outlasts it, with bytes == 0 (unless there are very many), and serves the
 * next block that begins there, of large ones in those 512 KiB: a block that comes and goes costs no write to the
 * map.  It is whoever's the block is: of those that begin in the same 512 KiB each holds the last page of these, so
 * that no two are live at once, and who has that page of the engine writes without a lock.
 *
 * Must not know: cells, streams, engines, the driver.
 */
#ifndef WEIR_RECORDS_H
#define WEIR_RECORDS_H

#include "lock.h"
#include "pagemap.h"
#include "span.h"

enum {
    WEIR_RECORDS_SLOTS = 1024, /* of a slab, at most: a power of two */
    WEIR_RECORDS_ORDERS = 12   /* log2 of that, plus 2 */
};

struct weir_records_chunk;

/* Begins zeroed. */
struct weir_records {
    struct weir_pagemap *pages; /* apart, as readers want nothing else */
    struct weir_lock lock;      /* guards its writers, and what follows; innermost */
    struct weir_span *spare[WEIR_RECORDS_ORDERS];
    struct weir_records_chunk *chunks;
    char *chunk_at, *chunk_end;
    size_t host_bytes;     /* of chunks */
    _Atomic size_t wholes; /* records of whole blocks; read without the lock */
};

/* The record that any address leads to, or NULL.  What begins in some 512 KiB may change while another
 * block's record is looked for; where a large block has been, a small one may begin.  So the bytes are read first: if
 * there are any, the place that is read next is theirs, or of a later one. */
static inline struct weir_span *weir__records_find(const struct weir_pagemap *pages,
                                                   uint64_t address) {
    struct weir__pagemap_leaf *leaf = weir__pagemap_leaf(pages, address >> WEIR__PAGE_SHIFT);
    struct weir_span *s;

    if (!leaf)
        return NULL;
    s = atomic_load_explicit(weir__pagemap_large_at(leaf, address), memory_order_acquire);
    if (s && atomic_load_explicit(&s->bytes, memory_order_acquire) > 0 &&
        weir__span_base(s) == address)
        return s;
    return atomic_load_explicit(weir__pagemap_at(leaf, address), memory_order_acquire);
}

/* Opens the page map too: 1, or 0 if host memory ran out. */
int weir__records_open(struct weir_records *r, struct weir_pagemap *pages);
void weir__records_close(struct weir_records *r);

/* A slab of a block of the caller's, every slot at home, or NULL: host memory ran out, or the block lies
 * where no page map reaches.  At most WEIR_RECORDS_SLOTS slots. */
struct weir_span *weir__records_slab(struct weir_records *r, uint64_t base, size_t bytes,
                                     unsigned size_class, uint32_t slots);
/* A whole block of the caller's, not live yet, or NULL likewise. */
struct weir_span *weir__records_whole(struct weir_records *r, uint64_t base, size_t bytes);
/* Makes the page map there, in place of the first blocks: 2 MiB of host memory for each 4 GiB of addresses that
 * any of it lies in; 64 KiB if there will be none but `large` blocks.  As far as there is host memory. */
void weir__records_prepare(struct weir_records *r, uint64_t base, size_t bytes, int large);
/* Takes host memory for the first records of blocks in so much memory, no more than 2 MiB.  Likewise. */
void weir__records_stock(struct weir_records *r, size_t bytes);
/* Forgets a span before its block goes back: once the engine has it, it may be another's at once. */
void weir__records_end(struct weir_records *r, struct weir_span *s);
/* Visits the record of every block that there is, live or not, under the lock.  Of a whole block's nothing but
 * `base`, `bytes`, `asked` and `fetched_for` may be read, which its owner may be writing. */
void weir__records_walk(struct weir_records *r, void (*visit)(void *context, struct weir_span *s),
                        void *context);
/* What all of it takes on the host, the page map included. */
size_t weir__records_host_bytes(struct weir_records *r);

#endif
