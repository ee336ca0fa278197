/* SPDX-License-Identifier: MIT */
/* cache_blocks.c: finds and lists the live blocks of the caches, and the memory that they pin. */
#include "cache/caches_state.h"

#include <stdlib.h>

#include "base/bounds.h"

int weir__slab_has_live(const struct weir_slab *s, uint64_t address, int64_t *requested,
                        int64_t *in_use) {
    uint32_t slot, state;

    if (!s->slot_units) {
        *requested = (int64_t)atomic_load_explicit(&s->asked, memory_order_relaxed);
        *in_use = (int64_t)weir__slab_bytes(s);
        return *requested != 0 && address == weir__slab_base(s);
    }
    slot = weir__slab_slot(s, address);
    if (slot == WEIR_SLOT_NONE)
        return 0;
    state = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    *requested = state;
    *in_use = (int64_t)s->slot_units * WEIR_SLAB_UNIT;
    return !(state & WEIR_SLOT_IDLE);
}

int weir__caches_is_live(struct weir_caches *f, CUdeviceptr block) {
    const struct weir_slab *s = weir__records_find(&f->hits.pages, block);
    int64_t requested, in_use;

    return s && weir__slab_bytes(s) > 0 ? weir__slab_has_live(s, block, &requested, &in_use)
                                        : weir__graphs_has(&f->v->graphs, block);
}

/* Finds the live block of a record that contains the address.  Returns 1 on success, else 0. */
static int is_around(const struct weir_slab *s, CUdeviceptr address, CUdeviceptr *block,
                     size_t *bytes) {
    CUdeviceptr start = weir__slab_base(s);
    int64_t requested, in_use;

    if (s->slot_units)
        start += (address - start) / ((uint64_t)s->slot_units * WEIR_SLAB_UNIT) * s->slot_units *
                 WEIR_SLAB_UNIT;
    if (!weir__slab_has_live(s, start, &requested, &in_use))
        return 0;
    *block = start;
    *bytes = (size_t)requested;
    return address - start < *bytes;
}

/* Returns the record of the span that contains the address, or NULL.  A whole block has its record at its first page
 * only.  So the search for another address walks back page by page, past records of blocks that are gone, as far as the
 * largest block reaches.  While the block is live, nothing on that way changes. */
static const struct weir_slab *span_around(struct weir_caches *f, CUdeviceptr address) {
    uint64_t largest = atomic_load_explicit(&f->largest, memory_order_relaxed);
    CUdeviceptr page = address & ~(CUdeviceptr)(WEIR_PAGE - 1);

    if (!weir__engine_may_have(f->engine, address))
        return NULL;
    for (;; page -= WEIR_PAGE) {
        const struct weir_slab *s = weir__records_find(&f->hits.pages, page);

        if (s && weir__slab_bytes(s) > 0)
            return address - weir__slab_base(s) < weir__slab_bytes(s) ? s : NULL;
        if (page < WEIR_PAGE || address - page >= largest)
            return NULL;
    }
}

int weir__caches_find(struct weir_caches *f, CUdeviceptr address, CUdeviceptr *block,
                      size_t *bytes) {
    const struct weir_slab *s = span_around(f, address);

    return s && is_around(s, address, block, bytes);
}

int weir__caches_hold(struct weir_caches *f, CUdeviceptr address) {
    return span_around(f, address) != NULL;
}

struct seeing {
    weir__live_fn *see;
    void *context;
};

static void see_span(void *context, struct weir_slab *s) {
    const struct seeing *v = context;
    int is_live = atomic_load_explicit(&s->asked, memory_order_relaxed) > 0;

    for (uint32_t i = 0; i < s->slots; i++) /* a whole block has no slots */
        is_live |= !(atomic_load_explicit(&s->slot[i], memory_order_relaxed) & WEIR_SLOT_IDLE);
    if (is_live)
        v->see(v->context, weir__slab_base(s), weir__slab_bytes(s));
}

void weir__caches_live(void *caches, weir__live_fn *see, void *context) {
    struct weir_caches *f = caches;
    struct seeing v = {see, context};

    weir__records_walk(&f->records, see_span, &v);
}

struct visiting {
    weir__engine_visit_fn *show;
    void *context;
};

static void show_block(const struct visiting *v, uint64_t bytes, uint64_t stream) {
    v->show(v->context, &(struct weir_extent){.bytes = bytes, .stream = stream});
}

static void visit_span(void *context, struct weir_slab *s) {
    const struct visiting *v = context;
    const struct weir_cache *owner = NULL;
    uint64_t asked, id = 0;

    if (s->slot_units == 0) {
        asked = atomic_load_explicit(&s->asked, memory_order_relaxed);
        if (asked > 0)
            show_block(v, asked, atomic_load_explicit(&s->fetched_for, memory_order_relaxed));
        return;
    }
    owner = atomic_load_explicit(&s->cache, memory_order_relaxed);
    if (owner)
        id = atomic_load_explicit(&owner->id, memory_order_relaxed);
    for (uint32_t i = 0; i < s->slots; i++) {
        asked = atomic_load_explicit(&s->slot[i], memory_order_relaxed);
        if (!(asked & WEIR_SLOT_IDLE))
            show_block(v, asked, id);
    }
}

void weir__caches_blocks(struct weir_caches *f, weir__engine_visit_fn *show, void *context) {
    struct visiting v = {show, context};

    weir__records_walk(&f->records, visit_span, &v);
}

/* ---- memory that live blocks pin ---- */

/* The most units of a pool that are looked at. */
enum { UNITS_MOST = 1 << 16 };

/* The pieces of the engine's memory.  They may change during the count; a missing piece only makes the result
 * smaller. */
struct held {
    struct weir_extent *piece; /* sorted by address; bytes is 0 once the piece is counted */
    size_t count;
    uint64_t bytes;
};

/* Counts the pieces that contain a part of a live block. */
static void hold(void *context, uint64_t base, size_t bytes) {
    struct held *h = context;
    size_t above = h->count, at;

    WEIR_FIND_FIRST(above, at, h->piece[at].base > base);
    for (at = above > 0 ? above - 1 : 0; at < h->count && h->piece[at].base < base + bytes; at++)
        if (h->piece[at].base + h->piece[at].bytes > base) {
            h->bytes += h->piece[at].bytes;
            h->piece[at].bytes = 0;
        }
}

/* Counts the pieces that are larger than `most`: they stay, too. */
static void hold_larger(struct held *h, uint64_t most) {
    for (size_t i = 0; i < h->count; i++)
        if (h->piece[i].bytes > most) {
            h->bytes += h->piece[i].bytes;
            h->piece[i].bytes = 0;
        }
}

/* Lists the units of the driver's pool around all blocks so far, of which some may have no memory.  Returns their
 * number. */
static size_t list_units(const struct weir_engine *engine, struct weir_extent **out) {
    uint64_t low = atomic_load_explicit(&engine->seen.low, memory_order_relaxed);
    uint64_t high = atomic_load_explicit(&engine->seen.high, memory_order_relaxed);
    size_t count =
        engine->driver_pool ? (size_t)(high / WEIR_POOL_UNIT - low / WEIR_POOL_UNIT) + 1 : 0;

    *out = count > 0 && count <= UNITS_MOST ? calloc(count, sizeof **out) : NULL;
    for (size_t i = 0; *out && i < count; i++)
        (*out)[i] = (struct weir_extent){.base = (low / WEIR_POOL_UNIT + i) * WEIR_POOL_UNIT,
                                         .bytes = WEIR_POOL_UNIT};
    return count;
}

uint64_t weir__held(struct weir_engine *engine, weir__live_walk_fn *live, void *of, uint64_t most) {
    struct held h = {0};

    h.count = weir__engine_list_all(engine, WEIR_VISIT_WHOLES, &h.piece);
    if (!h.piece)
        h.count = list_units(engine, &h.piece);
    if (!h.piece)
        return 0;
    if (of)
        live(of, hold, &h);
    hold_larger(&h, most);
    free(h.piece);
    return h.bytes;
}
