/* SPDX-License-Identifier: MIT */
/* suballoc_state.h: what the files of stream_suballoc.h share.
 *
 * What: stream_suballoc.c serves requests; suballoc_free.c takes blocks back and sees what has completed;
 * suballoc_regions.c adds and removes regions; suballoc_show.c tells what there is.
 *
 * What is freed in other ways than by one stream alone is given to the placement under ids that are no streams: OBSERVED,
 * which is observed on the spot, and QUARANTINE, which only a wait for the device observes.
 *
 * Locks: the caller's, as stream_suballoc.h says.
 *
 * Must not know: where regions come from, which of them to give back, growth, engines.
 */
#ifndef WEIR_SUBALLOC_STATE_H
#define WEIR_SUBALLOC_STATE_H

#include "base/bounds.h"
#include "engine/stream_suballoc.h"

/* Not streams.  OBSERVED: carried by blocks whose end the host saw by other means than one stream's
 * event.  QUARANTINE: by blocks whose end only a wait for the device will tell. */
#define OBSERVED WEIR_ENGINE_OBSERVED

#define QUARANTINE (UINT64_MAX - 1)

/* A free that waits for other streams: the block stays placed until the fence is done. */
struct weir_suballoc_pending {
    CUdeviceptr block;
    struct weir_fence *fence;
    struct weir_suballoc_pending *next;
};

/* Freed, but not out of the placement yet. */
static inline int is_pending(const struct weir_suballoc *s, CUdeviceptr block) {
    return s->pending && weir__map_get(&s->pending_blocks, block, NULL);
}

/* ---- places ---- */

/* The region around an address; NULL: it lies in none. */
struct weir_suballoc_region *weir__suballoc_search(const struct weir_suballoc *s, uint64_t address);

/* Which slot of region_seen or place_seen an address has. */
static inline size_t seen_slot(uint64_t address) {
    return (address >> WEIR_SUBALLOC_UNIT_BITS) % WEIR_SUBALLOC_UNITS;
}

/* The same, but first a look where the last one of the address's unit was found.  It may be gone or
 * stand elsewhere since: whether it has the address is asked of what stands there now. */
static inline struct weir_suballoc_region *region_of(struct weir_suballoc *s, uint64_t address) {
    uint32_t *seen = &s->region_seen[seen_slot(address)];
    struct weir_suballoc_region *r;

    if (*seen < s->region_count && address - s->regions[*seen].base < s->regions[*seen].bytes)
        return &s->regions[*seen];
    r = weir__suballoc_search(s, address);
    if (r)
        *seen = (uint32_t)(r - s->regions);
    return r;
}

/* As the placement's functions, of the block at an address. */
static inline int find(struct weir_suballoc *s, CUdeviceptr block,
                       struct weir_placement_block *out) {
    const struct weir_suballoc_region *r = region_of(s, block);

    return r ? weir__placement_find(s->placement[r->kind], r->place + (block - r->base), out)
             : WEIR_PLACEMENT_FOREIGN;
}

/* Which of `places` has this place; one does.  It is looked for as a region is. */
static inline size_t place_index(struct weir_suballoc *s, uint64_t place) {
    uint32_t *seen = &s->place_seen[seen_slot(place)];
    size_t first = s->region_count, at;

    if (*seen < first && place - s->places[*seen].place < s->places[*seen].bytes)
        return *seen;
    WEIR_FIND_FIRST(first, at, s->places[at].place <= place);
    *seen = (uint32_t)first;
    return first;
}

/* The region that has this place, which is one of them. */
static inline struct weir_suballoc_region *region_at(struct weir_suballoc *s, uint64_t place) {
    return weir__suballoc_search(s, s->rule.newest_first ? s->places[place_index(s, place)].base
                                                         : place);
}

/* ---- what has completed: suballoc_free.c ---- */

/* What was freed on the stream of that id, up to that sequence, serves everybody. */
void weir__suballoc_observed(void *context, uint64_t id, uint64_t sequence);
/* Looks at up to `most` pending frees, oldest first; 1 if one has completed. */
int weir__suballoc_settle(struct weir_suballoc *s, size_t most);

#endif
