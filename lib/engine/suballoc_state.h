/* SPDX-License-Identifier: MIT */
/* suballoc_state.h: shared by the files of stream_suballoc.h.
 *
 * stream_suballoc.c serves requests; suballoc_free.c frees blocks and finds completed frees; suballoc_regions.c adds and
 * removes regions; suballoc_show.c lists blocks and regions.
 *
 * A free that is not of one stream alone has an id that is no stream: OBSERVED frees are observed at once, QUARANTINE
 * frees only by a wait for the device.
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

/* Returns 1 if a block was freed but is still placed. */
static inline int is_pending(const struct weir_suballoc *s, CUdeviceptr block) {
    return s->pending && weir__map_get(&s->pending_blocks, block, NULL);
}

/* ---- places ---- */

/* The region around an address; NULL: it lies in none. */
struct weir_suballoc_region *weir__suballoc_search(const struct weir_suballoc *s, uint64_t address);

/* Returns the slot of region_seen or place_seen for an address. */
static inline size_t seen_slot(uint64_t address) {
    return (address >> WEIR_SUBALLOC_UNIT_BITS) % WEIR_SUBALLOC_UNITS;
}

/* Returns the region around an address, or NULL.  Looks first at the position where the last region of the address's
 * unit was found.  Another region may have that position now, so its bounds are compared. */
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

/* Finds the block at an address, with the results of weir__placement_find. */
static inline int find(struct weir_suballoc *s, CUdeviceptr block,
                       struct weir_placement_block *out) {
    const struct weir_suballoc_region *r = region_of(s, block);

    return r ? weir__placement_find(s->placement[r->kind], r->place + (block - r->base), out)
             : WEIR_PLACEMENT_FOREIGN;
}

/* Returns the position in `places` of a place that is there.  The search works as region_of. */
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

/* Makes the frees of the stream with that id, up to that sequence, available to all streams. */
void weir__suballoc_observed(void *context, uint64_t id, uint64_t sequence);
/* Looks at up to `most` pending frees, oldest first; 1 if one has completed. */
int weir__suballoc_settle(struct weir_suballoc *s, size_t most);

#endif
