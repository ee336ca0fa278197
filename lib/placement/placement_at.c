/* SPDX-License-Identifier: MIT */
/* placement_at.c: blocks at an address, or at the end of a free chunk.
 */
#include "placement/placement_chunks.h"

/* Free chunks that are looked at for a given address. */
enum { PROBES = 64 };

/* The free chunk `id` becomes a block of `want` granules at `first`, and free chunks on either side. */
static void claim_block(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t want,
                        size_t bytes, struct weir_placement_block *out) {
    weir__placement_make_live(p, weir__placement_claim(p, id, first, first + want), bytes, out);
}

/* What is to be seen to before a chunk is claimed, with records for what lies on either side: OK and the granules. */
static int claim_prepare(struct weir_placement *p, size_t bytes, uint64_t stream, uint64_t *want) {
    if (granules_of(p, bytes, want) != WEIR_PLACEMENT_OK)
        return WEIR_PLACEMENT_INVALID;
    unpark(p);
    stream_seen(p, stream);
    if (!weir__placement_records_reserve(p, p->regions + 2) || !weir__placement_take_reserve(p))
        return WEIR_PLACEMENT_NO_MEMORY;
    return *want >> WEIR__BESTFIT_BITS == 0 ? WEIR_PLACEMENT_OK : WEIR_PLACEMENT_NO_FIT;
}

int weir__placement_take_high(struct weir_placement *p, size_t bytes, uint64_t stream,
                              struct weir_placement_block *out) {
    struct weir__bestfit_hit hit;
    const struct weir__chunk *c;
    uint64_t want;
    int result = claim_prepare(p, bytes, stream, &want);

    if (result != WEIR_PLACEMENT_OK)
        return result;
    hit = best_for(p, own_of(p, stream), want, SIZE_MAX);
    if (hit.key == WEIR__BESTFIT_NONE)
        return WEIR_PLACEMENT_NO_FIT;
    c = &p->all.chunk[hit.value];
    claim_block(p, hit.value, c->address + c->size - want, want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* The chunk of a set that has `want` granules at `first`, of the PROBES that fit best; 0: none of them does. */
static uint32_t chunk_with(const struct weir_placement *p, const struct weir__bestfit *set,
                           uint64_t first, uint64_t want) {
    struct weir__bestfit_hit hit = weir__bestfit_from(set, weir__bestfit_key(want, 0));

    for (int i = 0; i < PROBES && hit.key != WEIR__BESTFIT_NONE; i++) {
        const struct weir__chunk *c = &p->all.chunk[hit.value];

        if (c->address <= first && first + want <= c->address + c->size)
            return hit.value;
        hit = weir__bestfit_from(set, hit.key + 1);
    }
    return 0;
}

int weir__placement_take_inside(struct weir_placement *p, uint64_t address, size_t bytes,
                                uint64_t stream, struct weir_placement_block *out) {
    uint64_t want;
    struct weir_placement_stream *own;
    int result = claim_prepare(p, bytes, stream, &want);
    uint32_t id = 0;

    if (result != WEIR_PLACEMENT_OK)
        return result;
    if ((address & p->mask) != 0)
        return WEIR_PLACEMENT_INVALID;
    own = own_of(p, stream);
    if (own != NULL)
        id = chunk_with(p, &own->fit, address >> p->shift, want);
    if (id == 0)
        id = chunk_with(p, &p->clean, address >> p->shift, want);
    if (id == 0)
        return WEIR_PLACEMENT_NO_FIT;
    claim_block(p, id, address >> p->shift, want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

int weir__placement_take_at(struct weir_placement *p, uint64_t address, size_t bytes,
                            uint64_t stream, struct weir_placement_block *out) {
    uint32_t id;

    unpark(p);
    stream_seen(p, stream);
    if (!weir__placement_take_reserve(p))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = weir__placement_around(p, address, CLEAN, address, bytes);
    if (id == 0 || p->all.chunk[id].sequence > p->step.observed)
        return WEIR_PLACEMENT_NO_FIT;
    claim_block(p, id, address >> p->shift, bytes >> p->shift, bytes, out);
    return WEIR_PLACEMENT_OK;
}
