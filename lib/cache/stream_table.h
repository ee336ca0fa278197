/* SPDX-License-Identifier: MIT */
/* stream_table.h: a hash table from a stream's key to its cache, read without a lock.
 *
 * It uses open addressing and is at most half full.  Writers hold a lock of their owner; readers take none.  A table
 * that has grown keeps the smaller one until the end, for threads that still read it.  While a key is removed, a reader
 * may miss any key, or find a cache that has another key by then.  So a reader checks the key under the cache's lock,
 * and a reader that found nothing searches again under the owner's lock.
 *
 * Must not know: the meaning of a key, caches but for their pointers.
 */
#ifndef WEIR_STREAM_TABLE_H
#define WEIR_STREAM_TABLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct weir_cache;

struct weir_cache_entry {
    _Atomic uint64_t key; /* 0 if the entry is free */
    _Atomic(struct weir_cache *) cache;
};

struct weir_cache_entries {
    size_t mask; /* the number of entries, which is a power of two, minus one */
    size_t keys;
    struct weir_cache_entries *older;
    struct weir_cache_entry entry[];
};

/* A zeroed struct is to be opened. */
struct weir_cache_table {
    _Atomic(struct weir_cache_entries *) now;
};

/* Opens an empty table.  Returns 1 on success, 0 if there is no host memory. */
int weir__cache_table_open(struct weir_cache_table *table);
/* May be called if opening has failed. */
void weir__cache_table_close(struct weir_cache_table *table);
/* Makes room for one more key.  Returns 1 on success, 0 if there is no host memory. */
int weir__cache_table_reserve(struct weir_cache_table *table);
/* Adds a key, which is not in the table and not 0.  There must be room. */
void weir__cache_table_add(struct weir_cache_table *table, uint64_t key, struct weir_cache *cache);
/* Removes a key, which must be in the table. */
void weir__cache_table_remove(struct weir_cache_table *table, uint64_t key);

static inline size_t weir__cache_table_slot(const struct weir_cache_entries *t, uint64_t key) {
    return (uint32_t)key * UINT32_C(0x9E3779B1) >> 10 & t->mask;
}

/* Finds the cache of a key that is not 0.  Returns 1 on success, else 0. */
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
