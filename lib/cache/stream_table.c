/* SPDX-License-Identifier: MIT */
/* stream_table.c: the functions of stream_table.h that write. */
#include "cache/stream_table.h"

#include <stdlib.h>

enum { FIRST = 64 }; /* entries */

static struct weir_cache_entries *make(size_t entries) {
    struct weir_cache_entries *t = calloc(1, sizeof *t + entries * sizeof t->entry[0]);

    if (t)
        t->mask = entries - 1;
    return t;
}

static struct weir_cache_entries *entries_of(struct weir_cache_table *table) {
    return atomic_load_explicit(&table->now, memory_order_relaxed);
}

static uint64_t key_at(const struct weir_cache_entries *t, size_t i) {
    return atomic_load_explicit(&t->entry[i].key, memory_order_relaxed);
}

static struct weir_cache *cache_at(const struct weir_cache_entries *t, size_t i) {
    return atomic_load_explicit(&t->entry[i].cache, memory_order_relaxed);
}

static void set(struct weir_cache_entries *t, size_t i, uint64_t key, struct weir_cache *cache) {
    atomic_store_explicit(&t->entry[i].cache, cache, memory_order_release);
    atomic_store_explicit(&t->entry[i].key, key, memory_order_release);
}

static void add(struct weir_cache_entries *t, uint64_t key, struct weir_cache *cache) {
    size_t i = weir__cache_table_slot(t, key);

    while (key_at(t, i) != 0)
        i = (i + 1) & t->mask;
    set(t, i, key, cache);
    t->keys++;
}

int weir__cache_table_open(struct weir_cache_table *table) {
    atomic_store_explicit(&table->now, make(FIRST), memory_order_release);
    return entries_of(table) != NULL;
}

void weir__cache_table_close(struct weir_cache_table *table) {
    struct weir_cache_entries *t = entries_of(table);

    while (t) {
        struct weir_cache_entries *older = t->older;

        free(t);
        t = older;
    }
}

int weir__cache_table_reserve(struct weir_cache_table *table) {
    struct weir_cache_entries *t = entries_of(table), *larger;

    if ((t->keys + 1) * 2 <= t->mask + 1)
        return 1;
    larger = make((t->mask + 1) * 2);
    if (!larger)
        return 0;
    larger->older = t;
    for (size_t i = 0; i <= t->mask; i++)
        if (key_at(t, i) != 0)
            add(larger, key_at(t, i), cache_at(t, i));
    atomic_store_explicit(&table->now, larger, memory_order_release);
    return 1;
}

void weir__cache_table_add(struct weir_cache_table *table, uint64_t key, struct weir_cache *cache) {
    add(entries_of(table), key, cache);
}

void weir__cache_table_remove(struct weir_cache_table *table, uint64_t key) {
    struct weir_cache_entries *t = entries_of(table);
    size_t gap = weir__cache_table_slot(t, key);

    while (key_at(t, gap) != key)
        gap = (gap + 1) & t->mask;
    atomic_store_explicit(&t->entry[gap].key, 0, memory_order_release);
    t->keys--;
    /* The entries behind it move up, unless that would put them before their own place. */
    for (size_t i = (gap + 1) & t->mask; key_at(t, i) != 0; i = (i + 1) & t->mask) {
        size_t home = weir__cache_table_slot(t, key_at(t, i));

        if (((i - home) & t->mask) < ((i - gap) & t->mask))
            continue;
        set(t, gap, key_at(t, i), cache_at(t, i));
        atomic_store_explicit(&t->entry[i].key, 0, memory_order_release);
        gap = i;
    }
}
