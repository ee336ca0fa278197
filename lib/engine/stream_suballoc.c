/* SPDX-License-Identifier: MIT */
/* stream_suballoc.c: placement and order together.
 *
 * What is freed in other ways than by one stream alone is given to the placement under ids that are
 * no streams: OBSERVED, which is observed on the spot, and QUARANTINE, which only a wait for the
 * device observes.
 *
 * Must not know: where regions come from, which of them to give back, growth, engines.
 */
#include "engine/stream_suballoc.h"

#include <stdlib.h>
#include <string.h>

#include "base/hostmem.h"
#include "base/result.h"
#include "base/size.h"

/* Not streams.  OBSERVED: carried by blocks whose end the host saw by other means than one stream's
 * event.  QUARANTINE: by blocks whose end only a wait for the device will tell. */
#define OBSERVED WEIR_ENGINE_OBSERVED
#define QUARANTINE (UINT64_MAX - 1)
/* Places of regions go down from here: enough for 2^33 regions of a GiB. */
#define FIRST_PLACE (UINT64_C(1) << 63)

/* Looked at after a free with uses, so that they do not pile up while every request fits. */
enum { PENDING_GLANCE = 2 };

/* Asked about by a request that does not fit, before it is known that the reserve would grow. */
enum { GLANCE = 32 };

/* Stranded bytes for which a growing request would rather wait for the device. */
#define STRANDED_LEAST (UINT64_C(32) << 20)
enum { STRANDED_PART = 32 }; /* of the reserve */

/* Of all memory, what is worth an event. */
enum { WORTH_PART = 256 };

/* Of memory, what there is a chunk for beforehand; and how many at most, which nearly all first iterations do with.  More
 * are made on demand. */
#define STOCK_PART ((size_t)16 << 20)
enum { STOCK_MOST = 400 };

/* A free that waits for other streams: the block stays placed until the fence is done. */
struct weir_suballoc_pending {
    CUdeviceptr block;
    struct weir_fence *fence;
    struct weir_suballoc_pending *next;
};

static void stream_observed(void *context, uint64_t id, uint64_t sequence) {
    struct weir_suballoc *s = context;

    s->changes++;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++)
        weir__placement_observe(s->placement[i], id, sequence);
}

weir_status weir__suballoc_open(struct weir_suballoc *s, struct weir_engine *engine,
                                const struct weir_suballoc_rule *rule) {
    *s = (struct weir_suballoc){.rule = *rule, .next_place = FIRST_PLACE, .engine = engine};
    for (int i = 0; i < (rule->small > 0 ? WEIR_SUBALLOC_KINDS : 1); i++) {
        if (weir__placement_create(&rule->placement, &s->placement[i]) == WEIR_PLACEMENT_OK)
            continue;
        while (i-- > 0)
            weir__placement_destroy(s->placement[i]);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    weir__order_open(&s->order, engine->device, stream_observed, s);
    s->order.timed = engine->options->internal_dependencies == WEIR_SWITCH_AUTO &&
                     engine->device->driver->capabilities & WEIR_CAP_KERNEL;
    s->pending_end = &s->pending;
    return WEIR_OK;
}

void weir__suballoc_close(struct weir_suballoc *s) {
    while (s->pending) {
        struct weir_suballoc_pending *p = s->pending;

        s->pending = p->next;
        weir__order_fence_drop(&s->order, p->fence);
        free(p);
    }
    weir__order_close(&s->order);
    weir__map_clear(&s->pending_blocks);
    for (int i = 0; i < WEIR_SUBALLOC_KINDS; i++)
        weir__placement_destroy(s->placement[i]);
    free(s->regions);
    free(s->places);
}

/* ---- accounts -------------------------------------------------------------------------------- */

static void account(struct weir_suballoc *s, const struct weir_placement_block *block) {
    weir__order_taken(&s->order, block->size);
    s->taken += block->size;
    s->in_use += block->size;
    s->requested += block->requested;
    if (s->in_use > s->in_use_peak) {
        s->in_use_peak = s->in_use;
        atomic_store_explicit(&s->engine->seen.most_in_use, s->in_use, memory_order_relaxed);
    }
    if (s->requested > s->requested_peak)
        s->requested_peak = s->requested;
}

/* The block's owner has freed it. */
static void unaccount(struct weir_suballoc *s, const struct weir_placement_block *block) {
    s->in_use -= block->size;
    s->requested -= block->requested;
}

void weir__suballoc_figures(const struct weir_suballoc *s, weir_statistics *out) {
    struct weir_placement_figures figures;

    out->extent = out->host_bytes = 0;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++) {
        weir__placement_figures(s->placement[i], &figures);
        /* What names an address lies far from all else. */
        out->extent += i == WEIR_SUBALLOC_APART ? figures.total : figures.extent;
        out->host_bytes += figures.host_bytes;
    }
    out->requested = s->requested;
    out->requested_peak = s->requested_peak;
    out->in_use = s->in_use;
    out->in_use_peak = s->in_use_peak;
    out->steals = s->steals;
    out->event_records = s->order.event_records;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* The region around an address; NULL: it lies in none. */
static struct weir_suballoc_region *region_search(const struct weir_suballoc *s, uint64_t address) {
    size_t low = 0, high = s->region_count;

    while (low < high) { /* the first region that ends above the address */
        size_t middle = low + (high - low) / 2;

        if (s->regions[middle].base + s->regions[middle].bytes > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low < s->region_count && s->regions[low].base <= address ? &s->regions[low] : NULL;
}

/* Which slot of region_seen or place_seen an address has. */
static inline size_t seen_slot(uint64_t address) {
    return (address >> WEIR_SUBALLOC_UNIT_BITS) % WEIR_SUBALLOC_UNITS;
}

/* The same, but first a look where the last one of the address's unit was found.  It may be gone or
 * stand elsewhere since: whether it has the address is asked of what stands there now. */
static struct weir_suballoc_region *region_of(struct weir_suballoc *s, uint64_t address) {
    uint32_t *seen = &s->region_seen[seen_slot(address)];
    struct weir_suballoc_region *r;

    if (*seen < s->region_count && address - s->regions[*seen].base < s->regions[*seen].bytes)
        return &s->regions[*seen];
    r = region_search(s, address);
    if (r)
        *seen = (uint32_t)(r - s->regions);
    return r;
}

int weir__suballoc_holds(struct weir_suballoc *s, uint64_t address, uint64_t *base) {
    const struct weir_suballoc_region *r = region_of(s, address);

    if (r && base)
        *base = r->base;
    return r != NULL;
}

/* As the placement's functions, of the block at an address. */
static int find(struct weir_suballoc *s, CUdeviceptr block, struct weir_placement_block *out) {
    const struct weir_suballoc_region *r = region_of(s, block);

    return r ? weir__placement_find(s->placement[r->kind], r->place + (block - r->base), out)
             : WEIR_PLACEMENT_FOREIGN;
}

static inline int give(struct weir_suballoc *s, CUdeviceptr block, uint64_t id, uint64_t sequence,
                       struct weir_placement_block *out) {
    const struct weir_suballoc_region *r = region_of(s, block);

    s->changes++;
    return r ? weir__placement_give(s->placement[r->kind], r->place + (block - r->base), id,
                                    sequence, out)
             : WEIR_PLACEMENT_FOREIGN;
}

/* Which of `places` has this place; one does.  It is looked for as a region is. */
static size_t place_index(struct weir_suballoc *s, uint64_t place) {
    uint32_t *seen = &s->place_seen[seen_slot(place)];
    size_t low = 0, high = s->region_count;

    if (*seen < high && place - s->places[*seen].place < s->places[*seen].bytes)
        return *seen;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (s->places[middle].place <= place)
            high = middle;
        else
            low = middle + 1;
    }
    *seen = (uint32_t)low;
    return low;
}

/* The region that has this place, which is one of them. */
static struct weir_suballoc_region *region_at(struct weir_suballoc *s, uint64_t place) {
    return region_search(s, s->rule.newest_first ? s->places[place_index(s, place)].base : place);
}

/* A block that was placed lies at a place; its address is the region's. */
static void tell_address(struct weir_suballoc *s, struct weir_placement_block *out) {
    if (s->rule.newest_first) {
        const struct weir_suballoc_place *p = &s->places[place_index(s, out->address)];

        out->address = p->base + (out->address - p->place);
    }
}

static int take(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
                struct weir_placement_block *out) {
    int kind = weir__suballoc_is_small(s, bytes) ? WEIR_SUBALLOC_SMALL : WEIR_SUBALLOC_COMMON;
    int result = WEIR_PLACEMENT_NO_FIT;

    if (s->bases > 0 && kind == WEIR_SUBALLOC_COMMON)
        result = weir__placement_take(s->placement[WEIR_SUBALLOC_BASE], bytes, id, out);
    if (result == WEIR_PLACEMENT_NO_FIT)
        result = weir__placement_take_within(s->placement[kind], bytes, id, most, out);
    if (result == WEIR_PLACEMENT_OK)
        tell_address(s, out);
    return result;
}

/* ---- frees ----------------------------------------------------------------------------------- */

/* Gives a block back whose last use the host has seen: it is clean at once.  It was freed before. */
static void give_observed(struct weir_suballoc *s, CUdeviceptr block) {
    weir__order_several(&s->order);
    s->observed++;
    (void)give(s, block, OBSERVED, s->observed, NULL);
    stream_observed(s, OBSERVED, s->observed);
}

/* Gives a block back that nobody may have before the device was waited for. */
static weir_status give_quarantined(struct weir_suballoc *s, CUdeviceptr block) {
    struct weir_placement_block was;

    if (give(s, block, QUARANTINE, s->quarantined + 1, &was) != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    weir__order_several(&s->order);
    s->quarantined++;
    s->quarantined_bytes += was.size;
    unaccount(s, &was);
    return WEIR_OK;
}

/* Takes a pending free off that has completed. */
static void pop_pending(struct weir_suballoc *s, struct weir_suballoc_pending **link) {
    struct weir_suballoc_pending *p = *link;

    *link = p->next;
    if (s->pending_end == &p->next)
        s->pending_end = link;
    weir__map_take(&s->pending_blocks, p->block, NULL);
    weir__order_fence_drop(&s->order, p->fence);
    give_observed(s, p->block);
    free(p);
}

/* Looks at up to `most` pending frees, oldest first; 1 if one has completed. */
static int settle_pending(struct weir_suballoc *s, size_t most) {
    struct weir_suballoc_pending **link = &s->pending;
    int settled = 0;

    for (; *link && most > 0; most--) {
        if (weir__order_fence_done(&s->order, (*link)->fence)) {
            pop_pending(s, link);
            settled = 1;
        } else {
            link = &(*link)->next;
        }
    }
    return settled;
}

/* The block, which is placed, waits for the fence.  0: no host memory. */
static int add_pending(struct weir_suballoc *s, CUdeviceptr block, struct weir_fence *fence) {
    struct weir_suballoc_pending *p = malloc(sizeof *p);

    if (!p)
        return 0;
    if (!weir__map_put(&s->pending_blocks, block, 1)) {
        free(p);
        return 0;
    }
    *p = (struct weir_suballoc_pending){.block = block, .fence = fence};
    *s->pending_end = p;
    s->pending_end = &p->next;
    return 1;
}

/* Keeps the block until `stream` and every noted stream are past this point. */
static weir_status give_with_uses(struct weir_suballoc *s, CUdeviceptr block, weir_stream stream,
                                  struct weir_use_list *uses) {
    struct weir_placement_block found;
    struct weir_fence *fence;
    weir_status status;

    /* unreached: it is not live, as it was when its uses were noted */
    if (find(s, block, &found) != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = weir__order_fence(&s->order, stream, uses, &fence);
    if (status == WEIR_E_HOST_MEMORY)
        return give_quarantined(s, block);
    if (status != WEIR_OK)
        return status;
    if (!add_pending(s, block, fence)) {
        weir__order_fence_drop(&s->order, fence);
        return give_quarantined(s, block);
    }
    unaccount(s, &found);
    return WEIR_OK;
}

/* A free on a stream without an id: its event comes first. */
static weir_status give_unknown(struct weir_suballoc *s, CUdeviceptr block,
                                struct weir_order_stream *on, weir_stream stream) {
    struct weir_placement_block was;
    uint64_t sequence;
    weir_status status;

    if (find(s, block, &was) != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = weir__order_freed_marked(&s->order, on, stream, &sequence);
    if (status == WEIR_E_STREAM || status == WEIR_E_DEVICE_LOST)
        return status;
    if (status != WEIR_OK)
        return give_quarantined(s, block);
    (void)give(s, block, on->id, sequence, NULL);
    unaccount(s, &was);
    weir__order_observe(&s->order, on);
    return WEIR_OK;
}

/* A free on one stream alone. */
static weir_status give_on(struct weir_suballoc *s, CUdeviceptr block, uint64_t id,
                           weir_stream stream) {
    struct weir_order_stream *on = weir__order_stream(&s->order, id);
    struct weir_placement_block was;

    if (!on)
        return give_quarantined(s, block);
    if (id == 0)
        return give_unknown(s, block, on, stream);
    if (give(s, block, id, s->order.sequence + 1, &was) != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    weir__order_freed(&s->order, on, was.size);
    unaccount(s, &was);
    weir__order_tend(&s->order, on, stream);
    return WEIR_OK;
}

weir_status weir__suballoc_give(struct weir_suballoc *s, CUdeviceptr block, uint64_t id,
                                weir_stream stream, struct weir_use_list *uses) {
    weir_status status;

    if (s->pending && weir__map_get(&s->pending_blocks, block, NULL))
        status = weir__without_driver(WEIR_E_NOT_OWNED); /* freed before */
    else if (!uses)
        status = give_on(s, block, id, stream);
    else
        status = give_with_uses(s, block, stream, uses);
    if (uses)
        settle_pending(s, PENDING_GLANCE);
    return status;
}

weir_status weir__suballoc_give_silently(struct weir_suballoc *s, CUdeviceptr block, uint64_t id) {
    struct weir_order_stream *on;
    struct weir_placement_block was;

    if (s->pending && weir__map_get(&s->pending_blocks, block, NULL))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    on = id == OBSERVED || id == WEIR_ENGINE_UNKNOWN ? NULL
                                                     : weir__order_stream_silently(&s->order, id);
    if (id != OBSERVED && !on)
        return give_quarantined(s, block);
    if (id == OBSERVED) {
        /* unreached: not owned, since the front gives what it has taken */
        if (find(s, block, &was) != WEIR_PLACEMENT_OK)
            return weir__without_driver(WEIR_E_NOT_OWNED);
        give_observed(s, block);
    } else {
        /* unreached: likewise */
        if (give(s, block, id, s->order.sequence + 1, &was) != WEIR_PLACEMENT_OK)
            return weir__without_driver(WEIR_E_NOT_OWNED);
        weir__order_freed(&s->order, on, was.size);
    }
    unaccount(s, &was);
    return on && weir__order_is_due(&s->order, on) ? WEIR_ENGINE_DUE : WEIR_OK;
}

/* Freed, but not out of the placement yet. */
static int is_pending(const struct weir_suballoc *s, CUdeviceptr block) {
    return s->pending && weir__map_get(&s->pending_blocks, block, NULL);
}

/* The live block around an address, and its bytes as asked: 1, or 0 if none is; linear in what its region
 * is cut into, but for its first byte. */
static int find_around(struct weir_suballoc *s, CUdeviceptr address, struct weir_extent *out) {
    const struct weir_suballoc_region *r = region_of(s, address);
    struct weir_placement_block found;
    int result = find(s, address, &found);

    if (result != WEIR_PLACEMENT_OK && result != WEIR_PLACEMENT_INTERIOR)
        return 0;
    *out = (struct weir_extent){.base = r->base + (found.address - r->place),
                                .bytes = found.requested};
    return address - out->base < out->bytes && !is_pending(s, out->base);
}

/* ---- regions --------------------------------------------------------------------------------- */

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
    placed = hollow ? weir__placement_add_hole(s->placement[kind], place, bytes)
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

int weir__suballoc_fill(struct weir_suballoc *s, uint64_t hole, uint64_t address, size_t bytes,
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
    placed = weir__placement_fill(s->placement[r->kind], hole, address, bytes, id, sequence);
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

/* ---- requests -------------------------------------------------------------------------------- */

weir_status weir__suballoc_visit_several(struct weir_suballoc *s, uint64_t id, weir_stream stream) {
    struct weir_order_stream *on = weir__order_stream(&s->order, id);

    if (!on)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__order_tend(&s->order, on, stream);
    return WEIR_OK;
}

static CUresult wait_for_device(struct weir_suballoc *s) {
    CUresult result = weir__device_wait(s->engine->device);

    if (result == CUDA_SUCCESS)
        weir__suballoc_observe_all(s);
    return result;
}

struct stranded {
    const struct weir_order *order;
    uint64_t bytes;
};

static int count_stranded(void *context, const struct weir_placement_span *span) {
    struct stranded *v = context;

    if (!span->live && span->sequence > 0 &&
        (span->stream == QUARANTINE ||
         weir__order_is_stranded(v->order, span->stream, span->sequence)))
        v->bytes += span->size;
    return 0;
}

/* Memory of streams that have ended with frees open, and what is quarantined, serves nobody, and no
 * call will ever tell of it: a program that keeps making streams would grow without bound.  The wait
 * is dear, so there must be much to gain, and what it has gained must pile up again before the next
 * one.  A stream that is alive but was long silent may be taken for an ended one, which costs a wait
 * and harms nothing.  Not where no waiting at all was asked for. */
static int is_much_stranded(const struct weir_suballoc *s, uint64_t reserve) {
    uint64_t much =
        reserve / STRANDED_PART > STRANDED_LEAST ? reserve / STRANDED_PART : STRANDED_LEAST;
    struct stranded v = {.order = &s->order};

    if (s->engine->options->recovery_timeout_ms == UINT32_MAX || !s->order.several ||
        s->order.open_bytes + s->quarantined_bytes <= much) /* some of it may be in use again */
        return 0;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++)
        weir__placement_walk(s->placement[i], count_stranded, &v);
    return v.bytes > much;
}

/* Takes again, since something has completed. */
static int take_moved(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
                      struct weir_placement_block *out) {
    int result = take(s, bytes, id, most, out);

    s->steals += result == WEIR_PLACEMENT_OK;
    return result;
}

static int look_around(struct weir_suballoc *s, size_t most) {
    int settled = settle_pending(s, most);

    return weir__order_look_around(&s->order, most) | settled;
}

/* Without a wait, a stream may use other streams' frees that are observed to be complete. */
static int may_look(const struct weir_suballoc *s) {
    return !atomic_load_explicit(&s->engine->device->keeps_apart, memory_order_relaxed);
}

int weir__suballoc_take(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
                        struct weir_placement_block *out) {
    int result = take(s, bytes, id, most, out);

    if (result == WEIR_PLACEMENT_NO_FIT && may_look(s) && look_around(s, GLANCE))
        result = take_moved(s, bytes, id, most, out);
    if (result == WEIR_PLACEMENT_OK)
        account(s, out);
    return result;
}

int weir__suballoc_take_at(struct weir_suballoc *s, uint64_t address, size_t bytes, uint64_t id,
                           struct weir_placement_block *out) {
    const struct weir_suballoc_region *r = region_of(s, address);
    int result = weir__placement_take_at(s->placement[r->kind], address, bytes, id, out);

    if (result == WEIR_PLACEMENT_OK)
        account(s, out);
    return result;
}

int weir__suballoc_take_anywhere(struct weir_suballoc *s, size_t bytes, uint64_t id,
                                 struct weir_placement_block *out) {
    int result = WEIR_PLACEMENT_NO_FIT;

    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++) {
        result = weir__placement_take(s->placement[i], bytes, id, out);
        if (result != WEIR_PLACEMENT_NO_FIT)
            break;
    }
    if (result == WEIR_PLACEMENT_OK) {
        tell_address(s, out);
        account(s, out);
    }
    return result;
}

size_t weir__suballoc_largest(struct weir_suballoc *s, uint64_t id) {
    size_t largest = 0;

    (void)look_around(s, SIZE_MAX);
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++) {
        size_t bytes = weir__placement_largest(s->placement[i], id);

        if (bytes > largest)
            largest = bytes;
    }
    return largest;
}

int weir__suballoc_may_follow(const struct weir_suballoc *s, uint64_t id, uint64_t sequence) {
    switch (s->engine->options->internal_dependencies) {
    case WEIR_SWITCH_ON:
        return weir__order_may_follow(&s->order, id, sequence);
    case WEIR_SWITCH_AUTO:
        return weir__order_is_free(&s->order, id, sequence);
    default:
        return 0;
    }
}

void weir__suballoc_foresee(struct weir_suballoc *s, weir_stream stream) {
    if (s->order.timed)
        weir__order_foresee(&s->order, s->order.recent, stream);
}

struct behind {
    struct weir_suballoc *blocks;
    weir_stream stream;
};

static int may_wait(void *context, uint64_t id, uint64_t sequence) {
    const struct behind *b = context;

    return weir__suballoc_may_follow(b->blocks, id, sequence);
}

static int wait_behind(void *context, uint64_t id, uint64_t sequence) {
    const struct behind *b = context;

    return weir__order_follow(&b->blocks->order, b->stream, id, sequence) == CUDA_SUCCESS;
}

int weir__suballoc_take_behind(struct weir_suballoc *s, size_t bytes, uint64_t id,
                               weir_stream stream, struct weir_placement_block *out) {
    struct behind behind = {s, stream};
    const struct weir_placement_waits waits = {may_wait, wait_behind, &behind};
    int kind = weir__suballoc_is_small(s, bytes) ? WEIR_SUBALLOC_SMALL : WEIR_SUBALLOC_COMMON;
    int result = WEIR_PLACEMENT_NO_FIT;

    if (s->bases > 0 && kind == WEIR_SUBALLOC_COMMON)
        result =
            weir__placement_take_behind(s->placement[WEIR_SUBALLOC_BASE], bytes, id, &waits, out);
    if (result == WEIR_PLACEMENT_NO_FIT)
        result = weir__placement_take_behind(s->placement[kind], bytes, id, &waits, out);
    if (result == WEIR_PLACEMENT_OK) {
        tell_address(s, out);
        account(s, out);
        s->steals++;
    }
    return result;
}

void weir__suballoc_dry(struct weir_suballoc *s, struct weir_request *r) {
    weir__order_dry(&s->order);
    r->dry_at = s->changes + 1;
}

int weir__suballoc_take_at_last(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
                                uint64_t reserve, struct weir_placement_block *out) {
    int result = WEIR_PLACEMENT_NO_FIT;

    if (may_look(s) && look_around(s, SIZE_MAX))
        result = take_moved(s, bytes, id, most, out);
    if (result == WEIR_PLACEMENT_NO_FIT && reserve > 0 && is_much_stranded(s, reserve) &&
        wait_for_device(s) == CUDA_SUCCESS)
        result = take_moved(s, bytes, id, most, out);
    if (result == WEIR_PLACEMENT_OK)
        account(s, out);
    return result;
}

/* ---- what has completed ---------------------------------------------------------------------- */

int weir__suballoc_look_around(struct weir_suballoc *s) {
    return look_around(s, SIZE_MAX);
}

void weir__suballoc_observe_all(struct weir_suballoc *s) {
    weir__order_observe_all(&s->order);
    stream_observed(s, QUARANTINE, s->quarantined);
    s->quarantined_bytes = 0;
    while (s->pending)
        pop_pending(s, &s->pending);
}

/* Frees are open that others could have, or something is quarantined. */
static int is_silent(const struct weir_suballoc *s) {
    return s->quarantined_bytes > 0 || (s->order.several && s->order.silent_streams > 0);
}

CUresult weir__suballoc_wait(struct weir_suballoc *s, int must) {
    return must || is_silent(s) ? wait_for_device(s) : CUDA_SUCCESS;
}

/* ---- what there is --------------------------------------------------------------------------- */

struct telling {
    struct weir_suballoc *blocks;
    struct weir_survey *out;
    uint64_t id;
    uint64_t end, run; /* free memory side by side: where it ends so far, and its bytes */
};

static CUdeviceptr address_at(struct weir_suballoc *s, uint64_t place) {
    const struct weir_suballoc_region *r = region_at(s, place);

    return r->base + (place - r->place);
}

static int tell_of_span(void *context, const struct weir_placement_span *span) {
    struct telling *t = context;
    int pending = span->live && t->blocks->pending &&
                  is_pending(t->blocks, address_at(t->blocks, span->address));

    if (span->hole || (span->live && !pending))
        return WEIR_PLACEMENT_GO_ON;
    t->run = (span->address == t->end ? t->run : 0) + span->size;
    t->end = span->address + span->size;
    if (t->run > t->out->hole_at_rest)
        t->out->hole_at_rest = t->run;
    if (pending)
        weir__engine_pends(t->out, 0, span->size);
    else if (span->sequence != 0 && span->stream != t->id)
        weir__engine_pends(t->out, span->stream == QUARANTINE ? 0 : span->stream, span->size);
    return WEIR_PLACEMENT_GO_ON;
}

static void survey_idle(struct weir_suballoc *s, struct weir_survey *out) {
    struct telling t = {.blocks = s, .out = out, .id = out->id};
    size_t hole = weir__suballoc_largest(s, out->id); /* looks at what is done, too */

    if (hole > out->hole)
        out->hole = hole;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++) {
        t.end = t.run = 0;
        weir__placement_walk(s->placement[i], tell_of_span, &t);
    }
}

void weir__suballoc_survey_for(struct weir_suballoc *s, struct weir_survey *out) {
    if (out->what & WEIR_SURVEY_IDLE)
        survey_idle(s, out);
    if (out->what & WEIR_SURVEY_PENDING) {
        weir__suballoc_look_around(s);
        out->frees.silent = s->order.several ? s->order.silent_streams : 0;
        out->frees.waiting = s->order.waiting_marks + s->pending_blocks.count;
    }
}

void weir__suballoc_stock(struct weir_suballoc *s, int kinds, size_t bytes) {
    size_t chunks = (size_t)weir__size_smaller(bytes / STOCK_PART, STOCK_MOST);

    for (int i = 0; i < kinds && s->placement[i]; i++)
        weir__placement_stock(s->placement[i], chunks);
}

struct visiting {
    struct weir_suballoc *blocks;
    const struct weir_visit *visit;
    int count;
};

static int visit_live(void *context, const struct weir_placement_span *span) {
    struct visiting *v = context;
    struct weir_extent block = {.bytes = span->requested};

    if (!span->live)
        return WEIR_PLACEMENT_GO_ON;
    block.base = address_at(v->blocks, span->address);
    if (!is_pending(v->blocks, block.base))
        v->count += weir__engine_show(v->visit, &block, 1);
    return WEIR_PLACEMENT_GO_ON;
}

static int show_live(struct weir_suballoc *s, const struct weir_visit *visit) {
    struct visiting v = {.blocks = s, .visit = visit};

    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++)
        weir__placement_walk(s->placement[i], visit_live, &v);
    return v.count;
}

static int show_region(const struct weir_suballoc_region *r, const struct weir_visit *visit) {
    return weir__engine_show(visit, &(struct weir_extent){.base = r->base, .bytes = r->bytes}, 1);
}

int weir__suballoc_show(struct weir_suballoc *s, const struct weir_visit *visit) {
    const struct weir_suballoc_region *r;
    struct weir_extent block;
    int count = 0;

    switch (visit->what) {
    case WEIR_VISIT_BLOCKS:
        return show_live(s, visit);
    case WEIR_VISIT_BLOCK_AT:
        return find_around(s, visit->address, &block) ? weir__engine_show(visit, &block, 1) : 0;
    case WEIR_VISIT_PIECE_AT:
        r = region_of(s, visit->address);
        return r ? show_region(r, visit) : 0;
    case WEIR_VISIT_WHOLES:
    case WEIR_VISIT_APART:
        for (size_t i = 0; i < s->region_count; i++)
            if (visit->what == WEIR_VISIT_WHOLES || s->regions[i].kind == WEIR_SUBALLOC_APART)
                count += show_region(&s->regions[i], visit);
        return count;
    default: /* unreached: the engine's own */
        return -1;
    }
}
