/* SPDX-License-Identifier: MIT */
/* stream_table.h: from a stream's key to its cache, without a lock.
 *
 * Open addressing, at most half full.  Writers hold a lock of their owner; readers take none.  A table
 * that has grown leaves the smaller one to threads that still read it, until the end.  A reader that comes
 * while a key is taken away may miss any key, or meet a cache that has another by then: so it looks
 * under the cache's lock whose it is, and one that found nothing asks again under the owner's.
 *
 * Must not know: what a key stands for, caches but for their pointers.
 */
#ifndef WEIR_STREAM_TABLE_H
#define WEIR_STREAM_TABLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct weir_cache;

struct weir_cache_entry {
    _Atomic uint64_t key; /* 0: free */
    _Atomic(struct weir_cache *) cache;
};

struct weir_cache_entries {
    size_t mask; /* of entries: their number, a power of two, less one */
    size_t keys;
    struct weir_cache_entries *older;
    struct weir_cache_entry entry[];
};

/* Begins zeroed. */
struct weir_cache_table {
    _Atomic(struct weir_cache_entries *) now;
};

/* 1, or 0 if host memory ran out. */
int weir__cache_table_open(struct weir_cache_table *table);
void weir__cache_table_close(struct weir_cache_table *table); /* opened or not */
/* Room for one more key: 1, or 0 if host memory ran out. */
int weir__cache_table_reserve(struct weir_cache_table *table);
/* Adds a key that is not there, and not 0; there is room. */
void weir__cache_table_add(struct weir_cache_table *table, uint64_t key, struct weir_cache *cache);
/* Takes a key away that is there. */
void weir__cache_table_remove(struct weir_cache_table *table, uint64_t key);

static inline size_t weir__cache_table_slot(const struct weir_cache_entries *t, uint64_t key) {
    return (uint32_t)key * UINT32_C(0x9E3779B1) >> 10 & t->mask;
}

/* 1 and the cache of a key that is not 0; or 0. */
static inline __attribute__((always_inline)) int
weir__cache_table_find(struct weir_cache_table *table, uint64_t key, struct weir_cache **cache) {
    const struct weir_cache_entries *t = atomic_load_explicit(&table->now, memory_order_acquire);
    size_t i = weir__cache_table_slot(t, key);
    uint64_t found;

    while (__builtin_expect(
        (found = atomic_load_explicit(&t->entry[i].key, memory_order_acquire)) != key, 0)) {
        if (found == 0)
            return 0;
        i = (i + 1) & t->mask;
    }
    *cache = atomic_load_explicit(&t->entry[i].cache, memory_order_acquire);
    return 1;
}

#endif
