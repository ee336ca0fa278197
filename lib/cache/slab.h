/* SPDX-License-Identifier: MIT */
/* slab.h: the record of a block that the caches have from the engine: one whole block, or a slab of equal slots.
 *
 * Glossary
 *   span    the record of one block from the engine; the block is a multiple of a page
 *   whole   a span that serves one request of more than 512 KiB
 *   slab    a span that is cut into slots of one size class
 *   class   all request sizes that are rounded to one slot size: every 512 bytes up to 4 KiB, then eight sizes in each
 *           doubling, so that rounding wastes an eighth at most
 *   away    the state of a slot that was freed but is not in its slab's free list: see caches.c
 *
 * One word holds the state of a slot.  For a live slot the word is the number of bytes that were requested, so that
 * weir detects a double free.  For a slot in the slab's free list it is the number of the next free slot.  Records stay
 * allocated as long as the caches exist, so a lookup of any address may read a record.
 *
 * This file must not know streams, locks, engines or the driver.
 */
#ifndef WEIR_SLAB_H
#define WEIR_SLAB_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { WEIR_SLAB_CLASSES = 64, WEIR_SLAB_UNIT = 512 };
#define WEIR_SLAB_SMALL ((size_t)1 << 19) /* the largest request that a slab serves */

/* The slot is in the slab's free list; the lower bits are the number of the next free slot. */
#define WEIR_SLOT_IDLE UINT32_C(0x80000000)
#define WEIR_SLOT_AWAY UINT32_C(0xC0000000) /* freed, but not in the free list */
#define WEIR_SLOT_NONE UINT32_C(0x3FFFFFFF)

struct weir_cache;

/* The record has three parts on separate cache lines, one for each group of writers.  A thread that frees into the
 * remote-free queue reads the first part and writes only the third. */
struct weir_slab {
    _Alignas(64) _Atomic uint64_t base; /* valid for a large whole block only while it is live */
    _Atomic size_t bytes;               /* 0 for a whole block that has gone back to the engine */
    _Atomic(struct weir_cache *) cache; /* the cache that owns a slab, or NULL if none does */
    union {
        uint64_t inverse; /* for slabs: the inverse, modulo 2^64, of a slot's odd factor */
        _Atomic uint64_t fetched_for; /* for whole blocks: the id of the requesting stream, or 0 */
    };
    uint8_t shift; /* log2 of the slot's bytes divided by the odd factor */
    uint8_t size_class, order;
    uint32_t slot_units; /* a slot's bytes in WEIR_SLAB_UNIT, or 0 for a whole block */
    uint32_t slots;
    _Atomic uint64_t asked; /* the bytes requested for a live whole block, else 0 */

    /* Guarded by the cache's lock. */
    _Alignas(64) struct weir_slab *next; /* the next span in a list */
    struct weir_slab *prev;
    uint32_t idle;  /* the number of slots in the slab's free list */
    uint32_t head;  /* the first slot in the free list, or SLOT_NONE */
    uint32_t epoch; /* the cache's epoch when the slab became empty */

    /* For slabs only: the slots that lie in the remote-free queue of the cache, under the queue's lock. */
    _Alignas(64) struct weir_slab *posted_next; /* the next slab with slots in the queue */
    uint32_t posted, posted_first, posted_last; /* linked by their states, as free slots are */
    _Atomic uint32_t slot[];                    /* the slots' states */
};

static inline uint64_t weir__slab_base(const struct weir_slab *s) {
    return atomic_load_explicit(&s->base, memory_order_relaxed);
}

static inline size_t weir__slab_bytes(const struct weir_slab *s) {
    return atomic_load_explicit(&s->bytes, memory_order_relaxed);
}

/* Returns the class of a request of 1 to WEIR_SLAB_SMALL bytes. */
static inline unsigned weir__slab_class(size_t bytes) {
    size_t units = (bytes - 1) / WEIR_SLAB_UNIT; /* the number of units minus one */
    unsigned shift;

    if (units < 8)
        return (unsigned)units;
    /* each doubling has 8 classes, so the shift is log2 of the units between two classes */
    shift = 60u - (unsigned)__builtin_clzll(units);
    return shift * 8 + (unsigned)(units >> shift);
}

/* Returns the units in a slot of a class. */
static inline uint32_t weir__slab_units(unsigned size_class) {
    unsigned shift = size_class < 16 ? 0 : size_class / 8 - 1;

    return (uint32_t)((size_class - shift * 8 + 1) << shift);
}

static inline size_t weir__slab_slot_bytes(unsigned size_class) {
    return (size_t)weir__slab_units(size_class) * WEIR_SLAB_UNIT;
}

static inline uint64_t weir__slab_address(const struct weir_slab *s, uint32_t slot) {
    return weir__slab_base(s) + (uint64_t)slot * s->slot_units * WEIR_SLAB_UNIT;
}

/* Returns the number of the slot that starts at `address`, or a larger number than all slots have: an offset that is no
 * multiple of the slot's bytes yields more than any quotient (Granlund, Montgomery: "Division by invariant integers",
 * section 9).  So one comparison finds every wrong address. */
static inline uint64_t weir__slab_quotient(const struct weir_slab *s, uint64_t address) {
    uint64_t product = (address - weir__slab_base(s)) * s->inverse;

    return product >> s->shift | product << (64 - s->shift); /* shift is between 9 and 19 */
}

/* Returns the slot that starts at `address`, or SLOT_NONE. */
static inline uint32_t weir__slab_slot(const struct weir_slab *s, uint64_t address) {
    uint64_t slot = weir__slab_quotient(s, address);

    return slot < s->slots ? (uint32_t)slot : WEIR_SLOT_NONE;
}

/* Returns the bytes that were requested for the live block at `address`, or 0 if no live block starts there. */
static inline uint64_t weir__slab_asked(const struct weir_slab *s, uint64_t address) {
    uint32_t slot, state;

    if (!s->slot_units)
        return address == weir__slab_base(s) ? atomic_load_explicit(&s->asked, memory_order_relaxed)
                                             : 0;
    slot = weir__slab_slot(s, address);
    if (slot == WEIR_SLOT_NONE)
        return 0;
    state = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    return state & WEIR_SLOT_IDLE ? 0 : state;
}

/* Returns the bytes of one slot, or of the whole block. */
static inline size_t weir__slab_in_use(const struct weir_slab *s) {
    return s->slot_units ? (size_t)s->slot_units * WEIR_SLAB_UNIT : weir__slab_bytes(s);
}

/* Removes the first slot from the slab's free list, which is not empty, and marks the slot as live. */
static inline uint32_t weir__slab_take(struct weir_slab *s, uint32_t asked) {
    uint32_t slot = s->head;

    s->head = atomic_load_explicit(&s->slot[slot], memory_order_relaxed) & WEIR_SLOT_NONE;
    atomic_store_explicit(&s->slot[slot], asked, memory_order_relaxed);
    s->idle--;
    return slot;
}

static inline void weir__slab_put(struct weir_slab *s, uint32_t slot) {
    atomic_store_explicit(&s->slot[slot], WEIR_SLOT_IDLE | s->head, memory_order_relaxed);
    s->head = slot;
    s->idle++;
}

/* Returns the inverse of an odd number, modulo 2^64, by Newton's iteration.  The lowest 3 bits of the number are right
 * at the start, and each step doubles the number of right bits. */
static inline uint64_t weir__slab_inverse(uint64_t odd) {
    uint64_t inverse = odd;

    for (int bits = 3; bits < 64; bits *= 2)
        inverse *= 2 - odd * inverse;
    return inverse;
}

/* Puts a slot into the remote-free queue.  Returns 1 if it is the slab's first slot there, else 0. */
static inline int weir__slab_post(struct weir_slab *s, uint32_t slot) {
    int first = s->posted++ == 0;

    if (first)
        s->posted_last = slot;
    atomic_store_explicit(&s->slot[slot],
                          WEIR_SLOT_IDLE | (first ? WEIR_SLOT_NONE : s->posted_first),
                          memory_order_relaxed);
    s->posted_first = slot;
    return first;
}

/* Moves all slots of the slab's remote-free queue to its free list. */
static inline void weir__slab_collect(struct weir_slab *s) {
    if (s->head != WEIR_SLOT_NONE)
        atomic_store_explicit(&s->slot[s->posted_last], WEIR_SLOT_IDLE | s->head,
                              memory_order_relaxed);
    s->head = s->posted_first;
    s->idle += s->posted;
    s->posted = 0;
}

/* Cuts the span into slots of a class, and puts all slots into the free list in order. */
static inline void weir__slab_cut(struct weir_slab *s, unsigned size_class, uint32_t slots) {
    uint32_t slot_bytes = weir__slab_units(size_class) * WEIR_SLAB_UNIT;

    s->slot_units = weir__slab_units(size_class);
    s->slots = slots;
    s->shift = (uint8_t)__builtin_ctz(slot_bytes);
    s->inverse = weir__slab_inverse(slot_bytes >> s->shift);
    s->size_class = (uint8_t)size_class;
    s->posted = 0;
    s->idle = 0;
    s->head = WEIR_SLOT_NONE;
    for (uint32_t i = slots; i > 0; i--)
        weir__slab_put(s, i - 1);
}

#endif
