/* SPDX-License-Identifier: MIT */
/* stream_suballoc.c: see stream_suballoc.h.
 *
 * A free may have an id that is no stream: OBSERVED frees are complete at once, QUARANTINE frees only after a wait for
 * the device.
 *
 * Locks: the caller's, as stream_suballoc.h says.
 *
 * This file must not know growth, engines, where regions come from or which of them go back.
 */
#include "engine/stream_suballoc.h"

#include <stdlib.h>
#include <string.h>

#include "base/bounds.h"
#include "base/hostmem.h"
#include "base/result.h"
#include "base/size.h"

/* Ids that are no streams.  The host has observed the end of an OBSERVED block by other means than one stream's event.
 * Only a wait for the device shows the end of a QUARANTINE block. */
#define OBSERVED WEIR_ENGINE_OBSERVED

#define QUARANTINE (UINT64_MAX - 1)

/* The events that a request that does not fit queries, before the owner decides whether to grow. */
enum { PEEKED = 32 };

/* The fences that a free with uses queries, so that they do not pile up while every request fits. */
enum { PENDING_PEEKED = 2 };

/* An event is worth this part of all memory. */
enum { WORTH_PART = 256 };

/* The placement makes a chunk's record beforehand for each STOCK_PART of memory, but STOCK_MOST at most, which are
 * enough for nearly all first iterations. */
#define STOCK_PART ((size_t)16 << 20)

enum { STOCK_MOST = 400 };

/* A block that was freed and waits for other streams: it stays placed until the fence has completed. */
struct weir_suballoc_pending {
    CUdeviceptr block;
    struct weir_fence *fence;
    struct weir_suballoc_pending *next;
};

/* Returns 1 if the block was freed but is still placed, else 0. */
static inline int is_pending(const struct weir_suballoc *s, CUdeviceptr block) {
    return s->pending && weir__map_get(&s->pending_blocks, block, NULL);
}

/* ---- regions and blocks ---- */

/* Returns the region around an address, or NULL. */
static struct weir_suballoc_region *region_of(const struct weir_suballoc *s, uint64_t address) {
    size_t first = s->region_count, at; /* the first region that ends above the address */

    WEIR_FIND_FIRST(first, at, s->regions[at].base + s->regions[at].bytes > address);
    return first < s->region_count && s->regions[first].base <= address ? &s->regions[first] : NULL;
}

/* Finds the block at an address, with the results of weir__placement_find. */
static inline int find(struct weir_suballoc *s, CUdeviceptr block,
                       struct weir_placement_block *out) {
    const struct weir_suballoc_region *r = region_of(s, block);

    return r ? weir__placement_find(s->placement[r->kind], block, out) : WEIR_PLACEMENT_FOREIGN;
}

int weir__suballoc_holds(struct weir_suballoc *s, uint64_t address) {
    return region_of(s, address) != NULL;
}

/* ---- accounts ---- */

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

/* Subtracts a block that its owner has freed. */
static void unaccount(struct weir_suballoc *s, const struct weir_placement_block *block) {
    s->in_use -= block->size;
    s->requested -= block->requested;
}

void weir__suballoc_figures(const struct weir_suballoc *s, weir_statistics *out) {
    struct weir_placement_figures figures;

    out->extent = out->host_bytes = 0;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++) {
        weir__placement_figures(s->placement[i], &figures);
        /* Blocks that name an address lie far from all others, so the extent of APART is not used. */
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

/* ---- completed frees ---- */

/* Makes the frees of the stream with that id, up to that sequence, available to all streams. */
static void suballoc_observed(void *context, uint64_t id, uint64_t sequence) {
    struct weir_suballoc *s = context;

    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++)
        weir__placement_observe(s->placement[i], id, sequence);
}

static inline int give(struct weir_suballoc *s, CUdeviceptr block, uint64_t id, uint64_t sequence,
                       struct weir_placement_block *out) {
    const struct weir_suballoc_region *r = region_of(s, block);

    return r ? weir__placement_give(s->placement[r->kind], block, id, sequence, out)
             : WEIR_PLACEMENT_FOREIGN;
}

/* Makes the memory of a block, which unaccount() has subtracted, available to all streams: its last use is observed. */
static void give_observed(struct weir_suballoc *s, CUdeviceptr block) {
    weir__order_several(&s->order);
    s->observed++;
    (void)give(s, block, OBSERVED, s->observed, NULL);
    suballoc_observed(s, OBSERVED, s->observed);
}

/* Frees a block whose memory serves no stream before a wait for the device. */
static weir_status give_quarantined(struct weir_suballoc *s, CUdeviceptr block) {
    struct weir_placement_block was;

    if (give(s, block, QUARANTINE, s->quarantined + 1, &was) != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    weir__order_several(&s->order);
    s->quarantined += was.size;
    atomic_fetch_add_explicit(&s->engine->seen.quarantined, was.size, memory_order_relaxed);
    unaccount(s, &was);
    return WEIR_OK;
}

/* Ends a pending free whose fence has completed. */
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

/* Queries the fences of up to `most` pending frees, oldest first.  Returns 1 if one has completed, else 0. */
static int suballoc_settle(struct weir_suballoc *s, size_t most) {
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

/* Makes the memory of quarantined frees up to `sequence` usable by all streams, since they have completed. */
static void observe_quarantine(struct weir_suballoc *s, uint64_t sequence) {
    size_t left = (size_t)(s->quarantined - sequence);

    suballoc_observed(s, QUARANTINE, sequence);
    if (left < atomic_load_explicit(&s->engine->seen.quarantined, memory_order_relaxed))
        atomic_store_explicit(&s->engine->seen.quarantined, left, memory_order_relaxed);
}

void weir__suballoc_observe_all(struct weir_suballoc *s) {
    weir__order_observe_all(&s->order);
    observe_quarantine(s, s->quarantined);
    while (s->pending)
        pop_pending(s, &s->pending);
}

/* Returns 1 if there are open frees that other streams could use, or quarantined memory, else 0. */
static int is_silent(const struct weir_suballoc *s) {
    return atomic_load_explicit(&s->engine->seen.quarantined, memory_order_relaxed) > 0 ||
           (s->order.several && s->order.silent_streams > 0);
}

CUresult weir__suballoc_wait_beside(struct weir_suballoc *s, struct weir_lock *lock, int must) {
    uint64_t sequence = s->order.sequence, quarantined = s->quarantined;
    CUresult result;

    if (!must && !is_silent(s))
        return CUDA_SUCCESS;
    weir__lock_give(lock);
    result = weir__device_wait(s->engine->device);
    weir__lock_take(lock);
    if (result != CUDA_SUCCESS)
        return result;
    weir__order_observe_until(&s->order, sequence);
    observe_quarantine(s, quarantined);
    suballoc_settle(s, SIZE_MAX);
    return result;
}

weir_status weir__suballoc_open(struct weir_suballoc *s, struct weir_engine *engine,
                                const struct weir_suballoc_rule *rule) {
    *s = (struct weir_suballoc){.rule = *rule, .engine = engine};
    for (int i = 0; i < (rule->small > 0 ? WEIR_SUBALLOC_KINDS : 1); i++) {
        if (weir__placement_create(&rule->placement, &s->placement[i]) == WEIR_PLACEMENT_OK)
            continue;
        while (i-- > 0)
            weir__placement_destroy(s->placement[i]);
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    weir__order_open(&s->order, engine->device, suballoc_observed, s);
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
}

/* ---- requests ---- */

static int take(struct weir_suballoc *s, size_t bytes, uint64_t id,
                struct weir_placement_block *out) {
    int kind = weir__suballoc_is_small(s, bytes) ? WEIR_SUBALLOC_SMALL : WEIR_SUBALLOC_COMMON;

    return weir__placement_take(s->placement[kind], bytes, id, out);
}

weir_status weir__suballoc_visit_several(struct weir_suballoc *s, uint64_t id, weir_stream stream) {
    struct weir_order_stream *on = weir__order_stream(&s->order, id);

    if (!on)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__order_maintain(&s->order, on, stream);
    return WEIR_OK;
}

/* Retries the placement after frees of other streams have completed. */
static int take_moved(struct weir_suballoc *s, size_t bytes, uint64_t id,
                      struct weir_placement_block *out) {
    int result = take(s, bytes, id, out);

    s->steals += result == WEIR_PLACEMENT_OK;
    return result;
}

static int look_around(struct weir_suballoc *s, size_t most) {
    int settled = suballoc_settle(s, most);

    return weir__order_look_around(&s->order, most) | settled;
}

/* Returns 1 if streams may use other streams' completed frees, else 0. */
static int may_look(const struct weir_suballoc *s) {
    return !atomic_load_explicit(&s->engine->device->keeps_apart, memory_order_relaxed);
}

int weir__suballoc_take(struct weir_suballoc *s, size_t bytes, uint64_t id,
                        struct weir_placement_block *out) {
    int result = take(s, bytes, id, out);

    if (result == WEIR_PLACEMENT_NO_FIT && may_look(s) && look_around(s, PEEKED))
        result = take_moved(s, bytes, id, out);
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
    if (result == WEIR_PLACEMENT_OK)
        account(s, out);
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
    return s->engine->options->internal_dependencies == WEIR_SWITCH_ON &&
           weir__order_may_follow(&s->order, id, sequence);
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
    int result = weir__placement_take_behind(s->placement[kind], bytes, id, &waits, out);

    if (result == WEIR_PLACEMENT_OK) {
        account(s, out);
        s->steals++;
    }
    return result;
}

void weir__suballoc_dry(struct weir_suballoc *s) {
    weir__order_dry(&s->order);
    atomic_store_explicit(&s->engine->lacked, s->order.dry, memory_order_relaxed);
}

int weir__suballoc_take_at_last(struct weir_suballoc *s, size_t bytes, uint64_t id,
                                struct weir_placement_block *out) {
    int result = WEIR_PLACEMENT_NO_FIT;

    if (may_look(s) && look_around(s, SIZE_MAX))
        result = take_moved(s, bytes, id, out);
    if (result == WEIR_PLACEMENT_OK)
        account(s, out);
    return result;
}

int weir__suballoc_look_around(struct weir_suballoc *s) {
    return look_around(s, SIZE_MAX);
}

/* ---- frees ---- */

/* Makes the block, which stays placed, wait for the fence.  Returns 0 if there is no host memory. */
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

/* Keeps the block placed until the work on `stream` and on every noted stream up to now has completed. */
static weir_status give_with_uses(struct weir_suballoc *s, CUdeviceptr block, weir_stream stream,
                                  struct weir_use_list *uses) {
    struct weir_placement_block found;
    struct weir_fence *fence;
    weir_status status;

    /* unreached: the block is not live, though it was when its uses were noted */
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

/* Frees a block on a stream whose id is not known, after recording an event. */
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
    weir__order_observe(&s->order, on, SIZE_MAX);
    return WEIR_OK;
}

/* Frees the block under the next sequence of the stream.  A stream that holds no more than at its low frees for other
 * streams.  So its frees that an event covers do not coalesce with later ones, and other streams may use that memory as
 * soon as the event has completed. */
static int give_next(struct weir_suballoc *s, CUdeviceptr block, struct weir_order_stream *on,
                     struct weir_placement_block *was) {
    const struct weir_suballoc_region *r = region_of(s, block);
    int result;

    if (r && on->held <= on->low && on->open == 0)
        weir__placement_part(s->placement[r->kind], on->id);
    result = give(s, block, on->id, s->order.sequence + 1, was);
    if (result == WEIR_PLACEMENT_OK)
        weir__order_freed(&s->order, on, was->size);
    return result;
}

/* Frees a block that one stream alone uses. */
static weir_status give_on(struct weir_suballoc *s, CUdeviceptr block, uint64_t id,
                           weir_stream stream) {
    struct weir_order_stream *on = weir__order_stream(&s->order, id);
    struct weir_placement_block was;

    if (!on)
        return give_quarantined(s, block);
    if (id == 0)
        return give_unknown(s, block, on, stream);
    if (give_next(s, block, on, &was) != WEIR_PLACEMENT_OK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    unaccount(s, &was);
    weir__order_maintain(&s->order, on, stream);
    return WEIR_OK;
}

weir_status weir__suballoc_give(struct weir_suballoc *s, CUdeviceptr block, uint64_t id,
                                weir_stream stream, struct weir_use_list *uses) {
    weir_status status;

    /* the block was freed before */
    if (is_pending(s, block))
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    else if (!uses)
        status = give_on(s, block, id, stream);
    else
        status = give_with_uses(s, block, stream, uses);
    if (uses)
        suballoc_settle(s, PENDING_PEEKED);
    return status;
}

/* Frees a block as an engine's `give` does.  Returns E_NOT_OWNED if the block is not live. */
static weir_status give_silently(struct weir_suballoc *s, CUdeviceptr block, uint64_t id) {
    struct weir_order_stream *on;
    struct weir_placement_block was;

    if (is_pending(s, block))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    on = id == OBSERVED || id == WEIR_ENGINE_UNKNOWN ? NULL
                                                     : weir__order_stream_silently(&s->order, id);
    if (id != OBSERVED && !on)
        return give_quarantined(s, block);
    if (id == OBSERVED) {
        /* unreached: not owned, since a cache gives only blocks that it has taken */
        if (find(s, block, &was) != WEIR_PLACEMENT_OK)
            return weir__without_driver(WEIR_E_NOT_OWNED);
        give_observed(s, block);
    } else {
        /* unreached: not owned, since a cache gives only blocks that it has taken */
        if (give_next(s, block, on, &was) != WEIR_PLACEMENT_OK)
            return weir__without_driver(WEIR_E_NOT_OWNED);
    }
    unaccount(s, &was);
    return on && weir__order_is_due(&s->order, on) ? WEIR_ENGINE_DUE : WEIR_OK;
}

weir_status weir__suballoc_give_all(struct weir_suballoc *s, struct weir_freed *freed,
                                    uint64_t id) {
    weir_status status = WEIR_OK;

    for (size_t i = 0; i < freed->count; i++) {
        weir_status given = give_silently(s, freed->block[i], id);

        if (given < 0 || status == WEIR_OK)
            status = given;
    }
    freed->count = 0;
    return status;
}

void weir__suballoc_tell_room(const struct weir_suballoc *s, struct weir_freed *freed,
                              uint64_t id) {
    freed->room = weir__order_room(&s->order, id);
    freed->lacked = s->order.dry;
}

weir_status weir__suballoc_give_captured(struct weir_suballoc *s, CUdeviceptr block,
                                         weir_stream stream) {
    uint64_t id = weir__order_last_with(&s->order, stream);

    return give_silently(s, block, id ? id : WEIR_ENGINE_UNKNOWN);
}

/* ---- regions ---- */

static void count_total(struct weir_suballoc *s, uint64_t total) {
    s->total = total;
    s->order.worth = total / WORTH_PART;
}

int weir__suballoc_is_small(const struct weir_suballoc *s, size_t bytes) {
    return bytes <= s->rule.small;
}

int weir__suballoc_add(struct weir_suballoc *s, uint64_t base, size_t bytes, int kind,
                       int has_memory) {
    struct weir_suballoc_region *regions =
        weir__hostmem_room(s->regions, s->region_count, &s->region_capacity, sizeof *regions);
    size_t at = s->region_count;
    int placed;

    if (!regions)
        return WEIR_PLACEMENT_NO_MEMORY;
    s->regions = regions;
    placed = has_memory ? weir__placement_add(s->placement[kind], base, bytes)
                        : weir__placement_add_unmapped(s->placement[kind], base, bytes);
    if (placed != WEIR_PLACEMENT_OK)
        return placed;
    for (; at > 0 && regions[at - 1].base > base; at--)
        regions[at] = regions[at - 1];
    regions[at] = (struct weir_suballoc_region){.base = base, .bytes = bytes, .kind = kind};
    s->region_count++;
    weir__engine_widen(s->engine, base, bytes);
    if (has_memory)
        count_total(s, s->total + bytes);
    return WEIR_PLACEMENT_OK;
}

int weir__suballoc_fill(struct weir_suballoc *s, uint64_t below, uint64_t address, size_t bytes,
                        uint64_t id) {
    const struct weir_suballoc_region *r = region_of(s, address);
    struct weir_order_stream *on = id == OBSERVED ? NULL : weir__order_stream(&s->order, id);
    uint64_t sequence = 0;
    int placed;

    /* unreached: no host memory for its record, which the request has made */
    if (id != OBSERVED && !on)
        return WEIR_PLACEMENT_NO_MEMORY;
    if (on) {
        weir__order_taken(&s->order, bytes);
        sequence = weir__order_freed(&s->order, on, bytes);
    }
    placed = weir__placement_fill(s->placement[r->kind], weir__size_larger(below, r->base), address,
                                  bytes, id, sequence);
    if (placed == WEIR_PLACEMENT_OK)
        count_total(s, s->total + bytes);
    return placed;
}

int weir__suballoc_unmap(struct weir_suballoc *s, uint64_t chunk, uint64_t address, size_t bytes) {
    const struct weir_suballoc_region *r = region_of(s, address);
    int placed = weir__placement_unmap(s->placement[r->kind], chunk, address, bytes);

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

void weir__suballoc_remove(struct weir_suballoc *s, size_t at) {
    struct weir_suballoc_region *r = &s->regions[at];

    (void)weir__placement_remove(s->placement[r->kind], r->base);
    count_total(s, s->total - r->bytes);
    s->region_count--;
    memmove(r, r + 1, (s->region_count - at) * sizeof *r);
}

/* ---- what there is ---- */

/* Finds the live block around an address, with the bytes that were requested.  Returns 1 if there is one, 0 otherwise.
 * Takes time linear in the chunks of the region, unless the address is the block's first. */
static int find_around(struct weir_suballoc *s, CUdeviceptr address, struct weir_extent *out) {
    struct weir_placement_block found;
    int result = find(s, address, &found);

    if (result != WEIR_PLACEMENT_OK && result != WEIR_PLACEMENT_INTERIOR)
        return 0;
    *out = (struct weir_extent){.base = found.address, .bytes = found.requested};
    return address - out->base < out->bytes && !is_pending(s, out->base);
}

/* Adds the idle memory of a placement to the survey. */
static void survey_idle(struct weir_suballoc *s, struct weir_placement *p,
                        struct weir_survey *out) {
    struct weir_placement_span span = {0};
    uint64_t end = 0, run = 0; /* adjacent free memory: the end so far, and the bytes */

    while (weir__placement_next(p, &span)) {
        int pending = span.live && s->pending && is_pending(s, span.address);

        if (span.unmapped || (span.live && !pending))
            continue;
        run = (span.address == end ? run : 0) + span.size;
        end = span.address + span.size;
        if (run > out->largest_free_at_rest)
            out->largest_free_at_rest = run;
        if (pending)
            weir__engine_pends(out, 0, span.size);
        else if (span.sequence != 0 && span.stream != out->id)
            weir__engine_pends(out, span.stream == QUARANTINE ? 0 : span.stream, span.size);
    }
}

void weir__suballoc_survey_for(struct weir_suballoc *s, struct weir_survey *out) {
    if (out->what & WEIR_SURVEY_IDLE) {
        size_t largest = weir__suballoc_largest(s, out->id); /* also queries all events */

        out->largest_free = weir__size_larger(out->largest_free, largest);
        for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++)
            survey_idle(s, s->placement[i], out);
    }
    if (out->what & WEIR_SURVEY_PENDING) {
        weir__suballoc_look_around(s);
        out->frees.silent = s->order.several ? s->order.silent_streams : 0;
        out->frees.waiting = s->order.waiting_marks + s->pending_blocks.count;
    }
}

void weir__suballoc_stock(struct weir_suballoc *s, size_t bytes) {
    size_t chunks = (size_t)weir__size_smaller(bytes / STOCK_PART, STOCK_MOST);

    for (int i = 0; i <= WEIR_SUBALLOC_SMALL && s->placement[i]; i++)
        weir__placement_stock(s->placement[i], chunks);
}

static int show_live(struct weir_suballoc *s, const struct weir_visit *visit) {
    int count = 0;

    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++) {
        struct weir_placement_span span = {0};

        while (weir__placement_next(s->placement[i], &span)) {
            if (span.live && !is_pending(s, span.address))
                count += weir__engine_show(
                    visit, &(struct weir_extent){.base = span.address, .bytes = span.requested}, 1);
        }
    }
    return count;
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
    default: /* unreached: the engine answers other questions itself */
        return -1;
    }
}
