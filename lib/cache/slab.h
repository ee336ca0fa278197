/* SPDX-License-Identifier: MIT */
/* slab.h: a block of the engine as the caches knows it: one whole block of a caller, or a slab of equal
 * slots for small ones.
 *
 * Glossary
 *   span    the record of one block that the caches has from the engine, a multiple of a page
 *   whole   a span that is one caller's block (requests above 512 KiB)
 *   slab    a span cut into slots of one size class
 *   class   sizes that are rounded to the same slot: every 512 bytes up to 4 KiB, then eight to each
 *           doubling, so that rounding wastes an eighth at most
 *   home    the list of idle slots in the slab itself
 *   away    a slot that was freed, but not (yet) at home: see caches.h
 *
 * A slot's state is one word: the bytes that its caller asked for while it is live, which also tells a
 * double free; at home, the number of the next idle slot.  Records are never given back to the C
 * library while the caches lives, so that a caller that holds an address that is no block may look at one.
 *
 * Must not know: streams, locks, engines, the driver.
 */
#ifndef WEIR_SLAB_H
#define WEIR_SLAB_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { WEIR_SLAB_CLASSES = 64, WEIR_SLAB_UNIT = 512 };
#define WEIR_SLAB_SMALL ((size_t)1 << 19) /* the largest request that a slab serves */

#define WEIR_SLOT_IDLE UINT32_C(0x80000000) /* at home; below it the next idle slot's number */
#define WEIR_SLOT_AWAY UINT32_C(0xC0000000) /* freed, not at home */
#define WEIR_SLOT_NONE UINT32_C(0x3FFFFFFF)

struct weir_cache;

/* Three parts on cache lines of their own, by who writes: a thread that frees beside the cache's reads
 * the first, and writes the third alone. */
struct weir_slab {
    _Alignas(64) _Atomic uint64_t base; /* of a large whole block: while it is live */
    _Atomic size_t bytes; /* of the engine's block; whole: 0: it is the engine's again */
    _Atomic(struct weir_cache *) cache; /* slab: whose it is, NULL: nobody's any more */
    union {
        uint64_t inverse;             /* slab: of the odd part of a slot's bytes, modulo 2^64, */
        _Atomic uint64_t fetched_for; /* whole: id of the stream that it was fetched for; 0: none */
    };
    uint8_t shift; /* and log2 of the rest: an exact division without dividing */
    uint8_t size_class, order;
    uint32_t slot_units; /* slab: of WEIR_SLAB_UNIT bytes; 0: whole */
    uint32_t slots;
    _Atomic uint64_t asked; /* whole: by the caller; 0: not live */

    /* Guarded by the cache's lock. */
    _Alignas(64) struct weir_slab *next; /* in the list that it is on */
    struct weir_slab *prev;
    uint32_t idle;  /* slab: slots at home, */
    uint32_t head;  /* the first of them, or SLOT_NONE */
    uint32_t epoch; /* of the cache when its last slot came home */

    /* Slabs alone: the record of a whole block ends here.  Slots that lie in the cache's remote-free queue,
     * under its lock. */
    _Alignas(64) struct weir_slab *posted_next; /* slab that has some */
    uint32_t posted, posted_first, posted_last; /* how many; chained as those at home are */
    _Atomic uint32_t slot[];                    /* states */
};

static inline uint64_t weir__slab_base(const struct weir_slab *s) {
    return atomic_load_explicit(&s->base, memory_order_relaxed);
}

static inline size_t weir__slab_bytes(const struct weir_slab *s) {
    return atomic_load_explicit(&s->bytes, memory_order_relaxed);
}

/* The class of 1 to WEIR_SLAB_SMALL bytes. */
static inline unsigned weir__slab_class(size_t bytes) {
    size_t units = (bytes - 1) / WEIR_SLAB_UNIT; /* less one */
    unsigned shift;

    if (units < 8)
        return (unsigned)units;
    shift = 60u - (unsigned)__builtin_clzll(units); /* of units per step: 8 steps a doubling */
    return shift * 8 + (unsigned)(units >> shift);
}

/* Slot units of a class. */
static inline uint32_t weir__slab_units(unsigned size_class) {
    unsigned shift = size_class < 16 ? 0 : size_class / 8 - 1;

    return (uint32_t)((size_class - shift * 8 + 1) << shift);
}

static inline uint64_t weir__slab_address(const struct weir_slab *s, uint32_t slot) {
    return weir__slab_base(s) + (uint64_t)slot * s->slot_units * WEIR_SLAB_UNIT;
}

/* The number of the slot that starts at `address`, or one above all: an offset that is no multiple of
 * the slot's bytes comes out larger than any quotient (Granlund, Montgomery: "Division by invariant
 * integers", section 9), so that one comparison tells all. */
static inline uint64_t weir__slab_quotient(const struct weir_slab *s, uint64_t address) {
    uint64_t product = (address - weir__slab_base(s)) * s->inverse;

    return product >> s->shift | product << (64 - s->shift); /* shift: 9 to 19 */
}

/* The slot that starts at `address`; SLOT_NONE: none does. */
static inline uint32_t weir__slab_slot(const struct weir_slab *s, uint64_t address) {
    uint64_t slot = weir__slab_quotient(s, address);

    return slot < s->slots ? (uint32_t)slot : WEIR_SLOT_NONE;
}

/* Takes the first slot from home; there is one. */
static inline uint32_t weir__slab_take(struct weir_slab *s, uint32_t asked) {
    uint32_t slot = s->head;

    s->head = atomic_load_explicit(&s->slot[slot], memory_order_relaxed) & WEIR_SLOT_NONE;
    atomic_store_explicit(&s->slot[slot], asked, memory_order_relaxed);
    s->idle--;
    return slot;
}

/* Brings a slot home. */
static inline void weir__slab_put(struct weir_slab *s, uint32_t slot) {
    atomic_store_explicit(&s->slot[slot], WEIR_SLOT_IDLE | s->head, memory_order_relaxed);
    s->head = slot;
    s->idle++;
}

/* Of an odd number, modulo 2^64: each step doubles the low bits that are right, from 3. */
static inline uint64_t weir__slab_inverse(uint64_t odd) {
    uint64_t inverse = odd;

    for (int bits = 3; bits < 64; bits *= 2)
        inverse *= 2 - odd * inverse;
    return inverse;
}

/* Lays a slot in the remote-free queue: 1 if it is the slab's first there. */
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

/* Brings those home that lie there, all at once. */
static inline void weir__slab_collect(struct weir_slab *s) {
    if (s->head != WEIR_SLOT_NONE)
        atomic_store_explicit(&s->slot[s->posted_last], WEIR_SLOT_IDLE | s->head,
                              memory_order_relaxed);
    s->head = s->posted_first;
    s->idle += s->posted;
    s->posted = 0;
}

/* Makes a slab of all its memory, every slot at home, lowest first. */
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
