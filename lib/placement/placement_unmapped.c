/* SPDX-License-Identifier: MIT */
/* placement_unmapped.c: which addresses of a region have memory.
 *
 * Invariants: no two unmapped ranges are neighbours.
 */
#include "placement/placement_chunks.h"

/* The whole chunk `id` is an unmapped range from here on, and joins its neighbours. */
static void unmapped_begin(struct weir_placement *p, uint32_t id) {
    struct weir__chunk *c = &p->all.chunk[id];

    p->all.kind[id] = UNMAPPED;
    c->sequence = 0;
    p->hollow += c->size;
    p->unmapped_ranges++;
    if (p->all.kind[c->next] == UNMAPPED) {
        p->unmapped_ranges--;
        chunk_join(p, id, c->next);
    }
    if (p->all.kind[c->prev] == UNMAPPED) {
        p->unmapped_ranges--;
        chunk_join(p, c->prev, id);
    }
}

int weir__placement_add_unmapped(struct weir_placement *p, uint64_t base, size_t bytes) {
    int status = weir__placement_add(p, base, bytes);
    uint32_t id;

    if (status == WEIR_PLACEMENT_OK) {
        id = weir__chunks_find(&p->all, base >> p->shift, CLEAN);
        chunk_leave(p, NULL, id);
        unmapped_begin(p, id);
    }
    return status;
}

int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         uint64_t stream, uint64_t sequence) {
    uint64_t first = address >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    struct weir_placement_block block;
    struct weir_placement_region *r;
    struct weir__chunk *c;
    uint32_t id;

    unpark(p);
    id = weir__placement_around(p, within, UNMAPPED, address, bytes);
    if (id == 0)
        return WEIR_PLACEMENT_INVALID;
    r = &p->region[p->by_base[weir__placement_region_position(p, first)]];
    c = &p->all.chunk[id];
    if (!weir__placement_records_reserve(p, p->regions + (c->address < first) +
                                                (c->address + c->size > end)))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = weir__chunks_find(&p->all, within >> p->shift, UNMAPPED);
    c = &p->all.chunk[id];
    p->hollow -= bytes >> p->shift;
    if (c->address + c->size > end) {
        weir__placement_cut(p, id, end, UNMAPPED);
        p->unmapped_ranges++;
    }
    if (c->address < first) {
        id = weir__placement_cut(p, id, first, UNMAPPED);
        p->unmapped_ranges++;
    }
    p->unmapped_ranges--;
    if (end > r->high) {
        p->extent += end - r->high;
        r->high = end;
    }
    if (sequence == 0) {
        weir__placement_settle_clean(p, id);
        return WEIR_PLACEMENT_OK;
    }
    weir__placement_make_live(p, id, bytes, &block); /* as if it had been taken, and is freed now */
    return weir__placement_give(p, address, stream, sequence, NULL);
}

/* The free chunk that starts at `address`, in granules; 0: there is none. */
static uint32_t free_at(const struct weir_placement *p, uint64_t address) {
    uint32_t id = weir__chunks_find(&p->all, address, CLEAN);

    return id != 0 ? id : weir__chunks_find(&p->all, address, TAGGED);
}

int weir__placement_hollow(struct weir_placement *p, uint64_t within, uint64_t address,
                           size_t bytes) {
    uint64_t first = address >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    uint32_t id;
    uint32_t last;

    unpark(p);
    if (!weir__placement_records_reserve(p, p->regions + 2))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = free_at(p, within >> p->shift);
    if (id == 0 || bytes == 0 || ((within | address | bytes) & p->mask) != 0 || address < within ||
        p->all.chunk[id].address + p->all.chunk[id].size <= first)
        return WEIR_PLACEMENT_INVALID;
    for (last = id; p->all.chunk[last].address + p->all.chunk[last].size < end;) {
        last = p->all.chunk[last].next;
        if (p->all.kind[last] != CLEAN && p->all.kind[last] != TAGGED)
            return WEIR_PLACEMENT_INVALID;
    }
    unmapped_begin(p, weir__placement_claim_run(p, id, first, end));
    return WEIR_PLACEMENT_OK;
}

int weir__placement_punch(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes) {
    uint32_t id;

    unpark(p);
    id = weir__placement_around(p, within, CLEAN, address, bytes);
    if (id == 0)
        return WEIR_PLACEMENT_INVALID;
    if (p->all.chunk[id].sequence > p->step.observed)
        return WEIR_PLACEMENT_BUSY;
    return weir__placement_hollow(p, within, address, bytes);
}

/* The unmapped range that ends the last region, or 0. */
static uint32_t last_unmapped(const struct weir_placement *p) {
    uint32_t id =
        p->regions == 0 ? 0 : p->all.chunk[p->region[p->by_base[p->regions - 1]].border].prev;

    return id != 0 && p->all.kind[id] == UNMAPPED ? id : 0;
}

int weir__placement_last_unmapped(const struct weir_placement *p, uint64_t *address,
                                  size_t *bytes) {
    uint32_t id = last_unmapped(p);

    if (id == 0)
        return 0;
    *address = p->all.chunk[id].address << p->shift;
    *bytes = p->all.chunk[id].size << p->shift;
    return 1;
}

size_t weir__placement_tail(struct weir_placement *p) {
    uint32_t id;

    unpark(p);
    id = last_unmapped(p);
    id = id == 0 ? 0 : p->all.chunk[id].prev;
    return id != 0 && chunk_is(p, id, CLEAN) ? p->all.chunk[id].size << p->shift : 0;
}

size_t weir__placement_unmapped_ranges(const struct weir_placement *p) {
    return p->unmapped_ranges;
}
