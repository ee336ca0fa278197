/* SPDX-License-Identifier: MIT */
/* suballoc_regions.c: the regions that blocks are cut from. */
#include "engine/suballoc_state.h"

#include <string.h>

#include "base/hostmem.h"
#include "base/size.h"

/* Of all memory, what is worth an event. */
enum { WORTH_PART = 256 };

struct weir_suballoc_region *weir__suballoc_search(const struct weir_suballoc *s,
                                                   uint64_t address) {
    size_t first = s->region_count, at; /* that ends above the address */

    WEIR_FIND_FIRST(first, at, s->regions[at].base + s->regions[at].bytes > address);
    return first < s->region_count && s->regions[first].base <= address ? &s->regions[first] : NULL;
}

int weir__suballoc_holds(struct weir_suballoc *s, uint64_t address, uint64_t *base) {
    const struct weir_suballoc_region *r = region_of(s, address);

    if (r && base)
        *base = r->base;
    return r != NULL;
}

/* ---- regions ---- */

/* Tells the placement.  Memory that came in the order of one stream is as if it had been taken and freed
 * there. */
static int place_region(struct weir_suballoc *s, struct weir_placement *p, uint64_t place,
                        size_t bytes, uint64_t id) {
    struct weir_order_stream *on;

    if (id == OBSERVED)
        return weir__placement_add(p, place, bytes);
    on = weir__order_stream(&s->order, id);
    if (!on) /* unreached: no host memory for it, since it is known from the request */
        return WEIR_PLACEMENT_NO_MEMORY;
    weir__order_taken(&s->order, bytes);
    return weir__placement_add_freed(p, place, bytes, id, weir__order_freed(&s->order, on, bytes));
}

static void count_total(struct weir_suballoc *s, uint64_t total) {
    s->changes++;
    s->total = total;
    s->order.worth = total / WORTH_PART;
}

int weir__suballoc_is_small(const struct weir_suballoc *s, size_t bytes) {
    return bytes <= s->rule.small;
}

static void widen(struct weir_engine *e, uint64_t base, size_t bytes) {
    uint64_t low = atomic_load_explicit(&e->seen.low, memory_order_relaxed);

    if (low == 0 || base < low)
        atomic_store_explicit(&e->seen.low, base, memory_order_relaxed);
    if (base + bytes > atomic_load_explicit(&e->seen.high, memory_order_relaxed))
        atomic_store_explicit(&e->seen.high, base + bytes, memory_order_relaxed);
}

/* `hollow`: it has no memory. */
static int add_region(struct weir_suballoc *s, uint64_t base, size_t bytes, int kind, uint64_t id,
                      int hollow) {
    uint64_t place = s->rule.newest_first ? s->next_place - bytes : base;
    struct weir_suballoc_region *regions =
        weir__hostmem_room(s->regions, s->region_count, &s->region_capacity, sizeof *regions);
    size_t at = s->region_count;
    int placed;

    if (!regions)
        return WEIR_PLACEMENT_NO_MEMORY;
    s->regions = regions;
    if (s->rule.newest_first) {
        struct weir_suballoc_place *places =
            weir__hostmem_room(s->places, s->region_count, &s->place_capacity, sizeof *places);

        if (!places)
            return WEIR_PLACEMENT_NO_MEMORY;
        s->places = places;
    }
    placed = hollow ? weir__placement_add_unmapped(s->placement[kind], place, bytes)
                    : place_region(s, s->placement[kind], place, bytes, id);
    if (placed != WEIR_PLACEMENT_OK)
        return placed;
    if (s->rule.newest_first) {
        s->next_place = place;
        s->places[s->region_count] = (struct weir_suballoc_place){place, base, bytes};
    }
    for (; at > 0 && regions[at - 1].base > base; at--)
        regions[at] = regions[at - 1];
    regions[at] =
        (struct weir_suballoc_region){.base = base, .bytes = bytes, .place = place, .kind = kind};
    s->region_count++;
    widen(s->engine, base, bytes);
    s->bases += kind == WEIR_SUBALLOC_BASE;
    if (!hollow)
        count_total(s, s->total + bytes);
    return WEIR_PLACEMENT_OK;
}

int weir__suballoc_add(struct weir_suballoc *s, uint64_t base, size_t bytes, int kind,
                       uint64_t id) {
    return add_region(s, base, bytes, kind, id, 0);
}

int weir__suballoc_add_range(struct weir_suballoc *s, uint64_t base, size_t bytes, int kind) {
    return add_region(s, base, bytes, kind, OBSERVED, 1);
}

int weir__suballoc_fill(struct weir_suballoc *s, uint64_t unmapped, uint64_t address, size_t bytes,
                        uint64_t id) {
    const struct weir_suballoc_region *r = region_of(s, address);
    struct weir_order_stream *on = id == OBSERVED ? NULL : weir__order_stream(&s->order, id);
    uint64_t sequence = 0;
    int placed;

    /* unreached: no host memory for it, since it is known from the request */
    if (id != OBSERVED && !on)
        return WEIR_PLACEMENT_NO_MEMORY;
    if (on) {
        weir__order_taken(&s->order, bytes);
        sequence = weir__order_freed(&s->order, on, bytes);
    }
    placed = weir__placement_fill(s->placement[r->kind], unmapped, address, bytes, id, sequence);
    if (placed == WEIR_PLACEMENT_OK)
        count_total(s, s->total + bytes);
    return placed;
}

int weir__suballoc_hollow(struct weir_suballoc *s, uint64_t chunk, uint64_t address, size_t bytes) {
    const struct weir_suballoc_region *r = region_of(s, address);
    int placed = weir__placement_hollow(s->placement[r->kind], chunk, address, bytes);

    if (placed == WEIR_PLACEMENT_OK)
        count_total(s, s->total - bytes);
    return placed;
}

int weir__suballoc_punch(struct weir_suballoc *s, uint64_t chunk, uint64_t address, size_t bytes) {
    const struct weir_suballoc_region *r = region_of(s, address);
    int placed = weir__placement_punch(s->placement[r->kind], chunk, address, bytes);

    if (placed == WEIR_PLACEMENT_OK)
        count_total(s, s->total - bytes);
    return placed;
}

void weir__suballoc_ask(struct weir_suballoc *s, uint64_t id, weir_stream stream) {
    struct weir_order_stream *on = id == 0 ? NULL : weir__order_stream(&s->order, id);

    if (on)
        weir__order_ask(&s->order, on, stream);
}

void weir__suballoc_mark(struct weir_suballoc *s, uint64_t id, weir_stream stream) {
    weir__order_mark(&s->order, weir__order_stream(&s->order, id), stream);
}

struct survey {
    struct weir_suballoc *blocks;
    struct weir_suballoc_region *region; /* the one that the walk is in; NULL: at its beginning */
    int serves;                          /* so far */
    uint64_t id;
};

static int visit(void *context, const struct weir_placement_span *span) {
    struct survey *v = context;
    struct weir_suballoc_region *r = v->region;

    if (span->live) { /* often at once: blocks lie low */
        v->region = NULL;
        return WEIR_PLACEMENT_NEXT_REGION;
    }
    if (!r) {
        v->region = r = region_at(v->blocks, span->address);
        v->serves = 1;
    }
    v->serves &= span->sequence == 0 || (span->stream == v->id && v->id != 0);
    if (span->address + span->size == r->place + r->bytes) {
        r->idle = 1;
        r->serves = v->serves;
        v->region = NULL;
    }
    return WEIR_PLACEMENT_GO_ON;
}

void weir__suballoc_survey(struct weir_suballoc *s, uint64_t id) {
    struct survey v = {.blocks = s, .id = id};

    for (size_t i = 0; i < s->region_count; i++)
        s->regions[i].idle = s->regions[i].serves = 0;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++)
        weir__placement_walk(s->placement[i], visit, &v);
}

void weir__suballoc_remove(struct weir_suballoc *s, size_t at, uint64_t id) {
    struct weir_suballoc_region *r = &s->regions[at];

    if (id == OBSERVED)
        (void)weir__placement_remove(s->placement[r->kind], r->place);
    else
        (void)weir__placement_withdraw(s->placement[r->kind], r->place, id);
    count_total(s, s->total - r->bytes);
    s->bases -= r->kind == WEIR_SUBALLOC_BASE;
    if (s->rule.newest_first) {
        size_t i = place_index(s, r->place);

        memmove(&s->places[i], &s->places[i + 1], (s->region_count - i - 1) * sizeof s->places[0]);
    }
    s->region_count--;
    memmove(r, r + 1, (s->region_count - at) * sizeof *r);
}
