/* SPDX-License-Identifier: MIT */
/* stream_cache_hit.h: the short ways of requests and frees through a cache, inlined.
 *
 * What: a small request gets a slot of the slab that serves its class, a large one the whole block that was freed last.
 * A freed block goes back to its slab, or into the ring.  stream_cache.h has the rest.
 *
 * Locks: the caller holds the cache's.
 */
#ifndef WEIR_STREAM_CACHE_HIT_H
#define WEIR_STREAM_CACHE_HIT_H

#include "cache/stream_cache.h"

/* Allocates a slot for `bytes` (1 to WEIR_SLAB_SMALL) from the slab that serves its class.  Returns 0 if that slab is
 * full or there is none. */
static inline __attribute__((always_inline)) uint64_t weir__cache_take_home(struct weir_cache *c,
                                                                            size_t bytes) {
    struct weir_slab *s = c->store->open[weir__slab_class(bytes)];
    uint64_t slot_bytes, slot;

    if (__builtin_expect(!s || s->idle == 0, 0))
        return 0;
    if (s->idle == s->slots)
        weir__cache_less_idle(c, weir__slab_bytes(s));
    slot = weir__slab_take(s, (uint32_t)bytes);
    slot_bytes = (uint64_t)s->slot_units * WEIR_SLAB_UNIT;
    weir__cache_account(c, (int64_t)bytes, (int64_t)slot_bytes);
    return weir__slab_base(s) + slot * slot_bytes;
}

/* Returns the place of the i-th oldest whole block in the ring. */
static inline unsigned weir__cache_at(const struct weir_cache_store *store, unsigned i) {
    return (store->oldest + i) % WEIR_CACHE_RECENT;
}

/* Returns the pages of a whole block for `bytes` (> 0). */
static inline size_t weir__cache_pages(size_t bytes) {
    return (bytes - 1) / WEIR_PAGE + 1;
}

/* Allocates a whole block that was just removed from the ring. */
static inline __attribute__((always_inline)) uint64_t
weir__cache_hand_out(struct weir_cache *c, struct weir_slab *s, size_t bytes) {
    size_t whole = weir__slab_bytes(s);

    c->store->whole -= whole;
    weir__cache_less_idle(c, whole);
    atomic_store_explicit(&s->asked, bytes, memory_order_relaxed);
    weir__cache_account(c, (int64_t)bytes, (int64_t)whole);
    return weir__slab_base(s);
}

/* Allocates the whole block that was freed last.  Returns 0 if there is none, or if its pages are not exactly those
 * that `bytes` need. */
static inline __attribute__((always_inline)) uint64_t weir__cache_take_last(struct weir_cache *c,
                                                                            size_t bytes) {
    struct weir_cache_store *store = c->store;
    unsigned last = store->recents - 1, at = weir__cache_at(store, last);

    if (__builtin_expect(store->recents == 0 || store->pages[at] != weir__cache_pages(bytes), 0))
        return 0;
    store->recents = last;
    if (last < store->unused)
        store->unused = last;
    return weir__cache_hand_out(c, store->recent[at], bytes);
}

/* Updates the cache after slots were returned to one of its slabs, which had `before` free slots. */
static inline __attribute__((always_inline)) void
weir__cache_welcome(struct weir_cache *c, struct weir_slab *slab, uint32_t before) {
    if (before == 0 && c->store->open[slab->size_class] != slab)
        weir__cache_link(c, slab);
    if (slab->idle == slab->slots) {
        slab->epoch = c->epoch;
        weir__cache_more_idle(c, weir__slab_bytes(slab));
    }
}

static inline __attribute__((always_inline)) void
weir__cache_home(struct weir_cache *c, struct weir_slab *slab, uint32_t slot) {
    uint32_t before = slab->idle;

    weir__slab_put(slab, slot);
    weir__cache_welcome(c, slab, before);
}

/* Takes back a live whole block if the ring has room and at most `most` bytes.  Returns 1 on success, else 0; nothing
 * has changed then. */
static inline __attribute__((always_inline)) int
weir__cache_put_recent(struct weir_cache *c, struct weir_slab *s, uint64_t address, size_t most) {
    struct weir_cache_store *store = c->store;
    uint64_t asked = atomic_load_explicit(&s->asked, memory_order_relaxed);
    size_t whole = store->whole + weir__slab_bytes(s);
    unsigned last;

    if (asked == 0 || address != weir__slab_base(s) || store->recents == WEIR_CACHE_RECENT ||
        whole > most)
        return 0;
    atomic_store_explicit(&s->asked, 0, memory_order_relaxed);
    store->whole = whole;
    last = weir__cache_at(store, store->recents++);
    store->pages[last] = (uint32_t)(weir__slab_bytes(s) / WEIR_PAGE);
    store->recent[last] = s;
    weir__cache_more_idle(c, weir__slab_bytes(s));
    weir__cache_discount(c, (int64_t)asked, (int64_t)weir__slab_bytes(s));
    weir__cache_raise(&c->frees);
    return 1;
}

/* Takes back a live block that was freed on the stream, in the two simple cases: a slot of the cache's own slabs, or
 * a whole block for which there is room.  Returns 1 on success, else 0; nothing has changed then.  The cache has a
 * store. */
static inline __attribute__((always_inline)) int
weir__cache_put_plain(struct weir_cache *c, struct weir_slab *s, uint64_t address) {
    if (atomic_load_explicit(&s->cache, memory_order_relaxed) == c) {
        uint64_t slot = weir__slab_quotient(s, address);
        uint32_t asked;

        if (slot >= s->slots)
            return 0;
        asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
        if (asked & WEIR_SLOT_IDLE)
            return 0;
        weir__cache_home(c, s, (uint32_t)slot);
        weir__cache_discount(c, (int64_t)asked, (int64_t)s->slot_units * WEIR_SLAB_UNIT);
        weir__cache_raise(&c->frees);
        return 1;
    }
    return s->slot_units
               ? 0
               : weir__cache_put_recent(c, s, address,
                                        atomic_load_explicit(&c->most_whole, memory_order_relaxed));
}

#endif
