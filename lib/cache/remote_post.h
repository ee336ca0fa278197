/* SPDX-License-Identifier: MIT */
/* remote_post.h: a slot is left in the letter box of the cell that it is of, by another thread than the cell's.
 *
 * Locks: the letter box's alone; the cell's own is left to its thread.
 */
#ifndef WEIR_REMOTE_POST_H
#define WEIR_REMOTE_POST_H

#include "cache/stream_cache.h"

/* There is room in the letter box, whose lock is held: without end, as long as its owner allocates. */
static inline int weir__cell_has_room(struct weir_cell *c) {
    struct weir_box *box = &c->box;
    int64_t sum;

    if (box->in_use < box->look)
        return 1;
    sum = weir__cell_now(&c->requested);
    if (sum == box->seen)
        return 0;
    box->seen = sum;
    box->look = box->in_use + WEIR_CELL_BOX_LOOK;
    return 1;
}

/* Leaves a live slot of the cell's own slabs in its letter box, without the cell's lock; `id` 0: not
 * asked.  FULL: the cell's lock must be taken after all. */
static inline int weir__cell_post(struct weir_cell *c, uint64_t key, uint64_t id,
                                  struct weir_span *s, uint64_t address) {
    struct weir_box *box = &c->box;
    uint32_t slot = weir__span_slot(s, address), asked;
    int result = WEIR_CELL_FULL;

    if (slot == WEIR_SLOT_NONE)
        return WEIR_CELL_NO_BLOCK;
    weir__lock_take(&box->lock);
    asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE) {
        result = WEIR_CELL_NO_BLOCK;
    } else if (box->open && box->key == key && (id == 0 || box->id == id) &&
               weir__cell_has_room(c) &&
               atomic_load_explicit(&s->cell, memory_order_relaxed) == c) {
        if (weir__span_post(s, slot)) {
            s->posted_next = box->slabs;
            box->slabs = s;
        }
        box->requested += asked;
        box->in_use += (uint64_t)s->slot_units * WEIR_SPAN_UNIT;
        atomic_store_explicit(&box->count,
                              atomic_load_explicit(&box->count, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        result = WEIR_CELL_TAKEN;
    }
    weir__lock_give(&box->lock);
    return result;
}

/* The lock is biased to another thread, for which the letter box is there. */
static inline int weir__cell_is_anothers(const struct weir_cell *c) {
    uint32_t owner = atomic_load_explicit(&c->lock.owner, memory_order_relaxed);

    return owner != 0 && owner != weir__bias_thread;
}

#endif
