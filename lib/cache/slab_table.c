/* SPDX-License-Identifier: MIT */
/* slab_table.c: the functions of slab_table.h that are not inlined.
 *
 * Records are cut from chunks of host memory.  A record that ends is kept for the next one of its size.
 */
#include "cache/slab_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/hostmem.h"
#include "base/size.h"

/* The most records of whole blocks that outlast their blocks. */
enum { WHOLES_KEPT = 1 << 16 };
#define CHUNK ((size_t)64 << 10)      /* the bytes of a chunk, from which records are cut */
#define CHUNK_LARGE ((size_t)2 << 20) /* the bytes of a chunk once there are many records */
/* Preallocated device memory divided by this is the host memory for its records. */
#define STOCK_PART ((size_t)16 << 10)
/* The most host memory for these records: first iterations need no more. */
#define STOCK_MOST (2 * CHUNK)

struct weir_records_chunk {
    struct weir_records_chunk *next;
    size_t bytes;
};

/* Returns the size class of a record: 0 for a whole block, n for a slab of up to 2^(n-1) slots. */
static unsigned order_of(uint32_t slots) {
    if (slots <= 1)
        return slots;
    return 33u - (unsigned)__builtin_clz(slots - 1);
}

static size_t bytes_of(unsigned order) {
    size_t bytes = order == 0
                       ? offsetof(struct weir_slab, posted_next)
                       : offsetof(struct weir_slab, slot) + (sizeof(uint32_t) << (order - 1));

    return (bytes + WEIR_RECORDS_ALIGN - 1) & ~(size_t)(WEIR_RECORDS_ALIGN - 1);
}

/* Adds a chunk of host memory.  The rest of the last one stays unused.  Returns 1 on success, 0 without memory. */
static int add_chunk(struct weir_records *r, size_t size) {
    struct weir_records_chunk *chunk =
        aligned_alloc(size < CHUNK_LARGE ? CHUNK : CHUNK_LARGE, size);

    if (!chunk)
        return 0;
    weir__hostmem_prefer_large_pages(chunk, size);
    weir__hostmem_populate(chunk, size);
    memset(chunk, 0, size);
    chunk->next = r->chunks;
    chunk->bytes = size;
    r->chunks = chunk;
    r->chunk_at = (char *)chunk + WEIR_RECORDS_ALIGN;
    r->chunk_end = (char *)chunk + size;
    r->host_bytes += size;
    return 1;
}

/* Returns a record with room for that many slots, or NULL. */
static struct weir_slab *make(struct weir_records *r, uint32_t slots) {
    unsigned order = order_of(slots);
    size_t bytes = bytes_of(order);
    struct weir_slab *s = r->spare[order];

    if (s) {
        r->spare[order] = s->next;
        return s;
    }
    if ((size_t)(r->chunk_end - r->chunk_at) < bytes &&
        !add_chunk(r, r->host_bytes < CHUNK_LARGE ? CHUNK : CHUNK_LARGE))
        return NULL;
    s = (struct weir_slab *)(void *)r->chunk_at;
    r->chunk_at += bytes;
    s->order = (uint8_t)order;
    return s;
}

static void drop(struct weir_records *r, struct weir_slab *s) {
    s->next = r->spare[s->order];
    r->spare[s->order] = s;
}

/* Begins a record.  Returns NULL without host memory or if the page map is not reserved.  The caller holds the lock. */
static struct weir_slab *begin(struct weir_records *r, int reserved, uint64_t base, size_t bytes,
                               uint32_t slots) {
    struct weir_slab *s = reserved ? make(r, slots) : NULL;

    if (s) {
        atomic_store_explicit(&s->base, base, memory_order_relaxed);
        atomic_store_explicit(&s->bytes, bytes, memory_order_release);
        s->slot_units = 0;
        s->next = s->prev = NULL;
        atomic_store_explicit(&s->cache, NULL, memory_order_relaxed);
        atomic_store_explicit(&s->asked, 0, memory_order_relaxed);
    }
    return s;
}

static int is_large(size_t bytes) {
    return bytes > WEIR_SLAB_SMALL;
}

/* Stores the record of a whole block at the block's first page. */
static void set_whole(struct weir_records *r, uint64_t base, size_t bytes, struct weir_slab *s) {
    if (is_large(bytes))
        weir__pagemap_set_large(r->pages, base, s);
    else
        weir__pagemap_set(r->pages, base, WEIR_PAGE, s);
}

/* Drops the record of a whole block that the engine has again, since a slab needs its word. */
static void oust(struct weir_records *r, struct weir_slab *before) {
    if (before) {
        drop(r, before);
        r->wholes--;
    }
}

/* Returns 1 if the slab is found by the word of the 512 KiB in which it begins, else 0.  That needs the next word, too,
 * so both must lie in one leaf. */
static int has_word(uint64_t base, size_t bytes) {
    return bytes == WEIR_SLAB_SMALL && weir__pagemap_is_one_leaf(base, bytes);
}

/* Stores the record of a slab at all its pages.  NULL clears them. */
static void set_slab(struct weir_records *r, uint64_t base, size_t bytes, struct weir_slab *s) {
    if (has_word(base, bytes))
        weir__pagemap_set_large(r->pages, base, s ? (char *)s + weir__records_tag(base) : NULL);
    else
        weir__pagemap_set(r->pages, base, bytes, s);
}

struct weir_slab *weir__records_slab(struct weir_records *r, uint64_t base, size_t bytes,
                                     unsigned size_class, uint32_t slots) {
    int one_word = has_word(base, bytes), reserved;
    struct weir_slab *s;

    weir__lock_take(&r->lock);
    reserved = weir__pagemap_reserve(r->pages, base, bytes, one_word);
    s = begin(r, reserved, base, bytes, slots);
    if (s && one_word)
        oust(r, weir__pagemap_get_large(r->pages, base));
    for (size_t at = 0; s && !one_word && at < bytes; at += WEIR_PAGE)
        oust(r, weir__pagemap_get(r->pages, base + at));
    if (s) {
        weir__slab_cut(s, size_class, slots);
        set_slab(r, base, bytes, s);
    }
    weir__lock_give(&r->lock);
    return s;
}

/* Begins the record of a whole block at an address that has none. */
static struct weir_slab *begin_whole(struct weir_records *r, uint64_t base, size_t bytes) {
    struct weir_slab *s;
    int reserved;

    weir__lock_take(&r->lock);
    reserved = weir__pagemap_reserve(r->pages, base, WEIR_PAGE, is_large(bytes));
    s = begin(r, reserved, base, bytes, 0);
    if (s) {
        r->wholes++;
        set_whole(r, base, bytes, s);
    }
    weir__lock_give(&r->lock);
    return s;
}

struct weir_slab *weir__records_whole(struct weir_records *r, uint64_t base, size_t bytes) {
    struct weir_slab *s = is_large(bytes) ? weir__pagemap_get_large(r->pages, base)
                                          : weir__pagemap_get(r->pages, base);

    if (!s)
        return begin_whole(r, base, bytes);
    atomic_store_explicit(&s->base, base, memory_order_relaxed);
    /* A reader that sees the bytes sees the base, too. */
    atomic_store_explicit(&s->bytes, bytes, memory_order_release);
    return s;
}

void weir__records_prepare(struct weir_records *r, uint64_t base, size_t bytes, int large) {
    uint64_t first = base & ~(uint64_t)(WEIR_PAGE - 1);

    bytes += (size_t)(base - first);
    weir__lock_take(&r->lock);
    (void)weir__pagemap_reserve(r->pages, first, bytes, large);
    weir__lock_give(&r->lock);
}

void weir__records_stock(struct weir_records *r, size_t bytes) {
    size_t size = weir__size_round_down(bytes / STOCK_PART, CHUNK);

    weir__lock_take(&r->lock);
    if (!r->chunks && size > 0)
        (void)add_chunk(r, size < STOCK_MOST ? size : STOCK_MOST);
    weir__lock_give(&r->lock);
}

void weir__records_end(struct weir_records *r, struct weir_slab *s) {
    int whole = s->slot_units == 0;

    if (whole && r->wholes <= WHOLES_KEPT) {
        atomic_store_explicit(&s->bytes, 0, memory_order_relaxed);
        return;
    }
    weir__lock_take(&r->lock);
    if (whole)
        set_whole(r, weir__slab_base(s), weir__slab_bytes(s), NULL);
    else
        set_slab(r, weir__slab_base(s), weir__slab_bytes(s), NULL);
    drop(r, s);
    r->wholes -= (size_t)whole;
    weir__lock_give(&r->lock);
}

/* A dropped record is not found at its address.  The unused end of a chunk is zero, as in a record before its use. */
void weir__records_walk(struct weir_records *r, void (*visit)(void *context, struct weir_slab *s),
                        void *context) {
    weir__lock_take(&r->lock);
    for (struct weir_records_chunk *chunk = r->chunks; chunk; chunk = chunk->next) {
        char *at = (char *)chunk + WEIR_RECORDS_ALIGN, *end = (char *)chunk + chunk->bytes;

        while (at < end) {
            struct weir_slab *s = (struct weir_slab *)(void *)at;

            if (weir__slab_base(s) != 0 && weir__records_find(r->pages, weir__slab_base(s)) == s)
                visit(context, s);
            at += bytes_of(s->order);
        }
    }
    weir__lock_give(&r->lock);
}

int weir__records_open(struct weir_records *r, struct weir_pagemap *pages) {
    r->pages = pages;
    return weir__pagemap_open(pages);
}

void weir__records_close(struct weir_records *r) {
    while (r->chunks) {
        struct weir_records_chunk *chunk = r->chunks;

        r->chunks = chunk->next;
        free(chunk);
    }
    if (r->pages)
        weir__pagemap_close(r->pages);
}
