/* SPDX-License-Identifier: MIT */
/* stream_table.h: from a stream's key to its cell, without a lock.
 *
 * Open addressing, at most half full.  Writers hold a lock of their owner; readers take none.  A table
 * that has grown leaves the smaller one to whoever reads it still, until the end.  A reader that comes
 * while a key is taken away may miss any key, or meet a cell that has another by then: so it looks
 * under the cell's lock whose it is, and one that found nothing asks again under the owner's.
 *
 * Must not know: what a key stands for, cells but for their pointers.
 */
#ifndef WEIR_STREAM_TABLE_H
#define WEIR_STREAM_TABLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct weir_cell;

struct weir_cell_entry {
    _Atomic uint64_t key; /* 0: free */
    _Atomic(struct weir_cell *) cell;
};

struct weir_cell_entries {
    size_t mask; /* of entries: their number, a power of two, less one */
    size_t keys;
    struct weir_cell_entries *older;
    struct weir_cell_entry entry[];
};

/* Begins zeroed. */
struct weir_cell_table {
    _Atomic(struct weir_cell_entries *) now;
};

/* 1, or 0 if host memory ran out. */
int weir__cell_table_open(struct weir_cell_table *table);
void weir__cell_table_close(struct weir_cell_table *table); /* opened or not */
/* Room for one more key: 1, or 0 if host memory ran out. */
int weir__cell_table_reserve(struct weir_cell_table *table);
/* Adds a key that is not there, and not 0; there is room. */
void weir__cell_table_add(struct weir_cell_table *table, uint64_t key, struct weir_cell *cell);
/* Takes a key away that is there. */
void weir__cell_table_remove(struct weir_cell_table *table, uint64_t key);

static inline size_t weir__cell_table_slot(const struct weir_cell_entries *t, uint64_t key) {
    return (uint32_t)key * UINT32_C(0x9E3779B1) >> 10 & t->mask;
}

/* 1 and the cell of a key that is not 0; or 0. */
static inline __attribute__((always_inline)) int
weir__cell_table_find(struct weir_cell_table *table, uint64_t key, struct weir_cell **cell) {
    const struct weir_cell_entries *t = atomic_load_explicit(&table->now, memory_order_acquire);
    size_t i = weir__cell_table_slot(t, key);
    uint64_t found;

    while (__builtin_expect(
        (found = atomic_load_explicit(&t->entry[i].key, memory_order_acquire)) != key, 0)) {
        if (found == 0)
            return 0;
        i = (i + 1) & t->mask;
    }
    *cell = atomic_load_explicit(&t->entry[i].cell, memory_order_acquire);
    return 1;
}

#endif
