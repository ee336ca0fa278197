/* SPDX-License-Identifier: MIT */
/* stream_suballoc.c: requests for blocks in stream order: placement and order together. */
#include "engine/suballoc_state.h"

#include <stdlib.h>

#include "base/result.h"

/* Places of regions go down from here: enough for 2^33 regions of a GiB. */
#define FIRST_PLACE (UINT64_C(1) << 63)

/* Asked about by a request that does not fit, before it is known that the reserved memory would grow. */
enum { PEEKED = 32 };

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
    weir__order_open(&s->order, engine->device, weir__suballoc_observed, s);
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

void weir__suballoc_figures(const struct weir_suballoc *s, weir_statistics *out) {
    struct weir_placement_figures figures;

    out->extent = out->host_bytes = 0;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++) {
        weir__placement_figures(s->placement[i], &figures);
        /* Blocks that name an address lie far from all others. */
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

/* ---- requests ---- */

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

weir_status weir__suballoc_visit_several(struct weir_suballoc *s, uint64_t id, weir_stream stream) {
    struct weir_order_stream *on = weir__order_stream(&s->order, id);

    if (!on)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    weir__order_maintain(&s->order, on, stream);
    return WEIR_OK;
}

/* Retries the placement after frees of other streams have completed. */
static int take_moved(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
                      struct weir_placement_block *out) {
    int result = take(s, bytes, id, most, out);

    s->steals += result == WEIR_PLACEMENT_OK;
    return result;
}

static int look_around(struct weir_suballoc *s, size_t most) {
    int settled = weir__suballoc_settle(s, most);

    return weir__order_look_around(&s->order, most) | settled;
}

/* Without a wait, a stream may use other streams' frees that are observed to be complete. */
static int may_look(const struct weir_suballoc *s) {
    return !atomic_load_explicit(&s->engine->device->keeps_apart, memory_order_relaxed);
}

int weir__suballoc_take(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
                        struct weir_placement_block *out) {
    int result = take(s, bytes, id, most, out);

    if (result == WEIR_PLACEMENT_NO_FIT && may_look(s) && look_around(s, PEEKED))
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
                                struct weir_placement_block *out) {
    int result = WEIR_PLACEMENT_NO_FIT;

    if (may_look(s) && look_around(s, SIZE_MAX))
        result = take_moved(s, bytes, id, most, out);
    if (result == WEIR_PLACEMENT_OK)
        account(s, out);
    return result;
}

int weir__suballoc_look_around(struct weir_suballoc *s) {
    return look_around(s, SIZE_MAX);
}
