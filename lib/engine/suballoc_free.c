/* SPDX-License-Identifier: MIT */
/* suballoc_free.c: blocks come back, and serve others once the host has seen that their uses are over. */
#include "engine/suballoc_state.h"

#include <stdlib.h>

#include "base/result.h"

/* Looked at after a free with uses, so that they do not pile up while every request fits. */
enum { PENDING_PEEKED = 2 };

/* The block's owner has freed it. */
static void unaccount(struct weir_suballoc *s, const struct weir_placement_block *block) {
    s->in_use -= block->size;
    s->requested -= block->requested;
}

static inline int give(struct weir_suballoc *s, CUdeviceptr block, uint64_t id, uint64_t sequence,
                       struct weir_placement_block *out) {
    const struct weir_suballoc_region *r = region_of(s, block);

    s->changes++;
    return r ? weir__placement_give(s->placement[r->kind], r->place + (block - r->base), id,
                                    sequence, out)
             : WEIR_PLACEMENT_FOREIGN;
}

/* ---- frees ---- */

/* Gives a block back whose last use the host has seen: it is clean at once.  It was freed before. */
static void give_observed(struct weir_suballoc *s, CUdeviceptr block) {
    weir__order_several(&s->order);
    s->observed++;
    (void)give(s, block, OBSERVED, s->observed, NULL);
    weir__suballoc_observed(s, OBSERVED, s->observed);
}

/* Gives a block back that nobody may have before the device was waited for. */
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

int weir__suballoc_settle(struct weir_suballoc *s, size_t most) {
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

/* Frees the block under the next sequence of the stream.  A stream that holds no more than at its low frees for other
 * streams.  So its frees that an event covers do not coalesce with later ones, and other streams may use that memory as soon
 * as the event has completed. */
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

/* A free on one stream alone. */
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

    if (is_pending(s, block))
        status = weir__without_driver(WEIR_E_NOT_OWNED); /* freed before */
    else if (!uses)
        status = give_on(s, block, id, stream);
    else
        status = give_with_uses(s, block, stream, uses);
    if (uses)
        weir__suballoc_settle(s, PENDING_PEEKED);
    return status;
}

weir_status weir__suballoc_give_silently(struct weir_suballoc *s, CUdeviceptr block, uint64_t id) {
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
        /* unreached: likewise */
        if (give_next(s, block, on, &was) != WEIR_PLACEMENT_OK)
            return weir__without_driver(WEIR_E_NOT_OWNED);
    }
    unaccount(s, &was);
    return on && weir__order_is_due(&s->order, on) ? WEIR_ENGINE_DUE : WEIR_OK;
}

weir_status weir__suballoc_give_captured(struct weir_suballoc *s, CUdeviceptr block,
                                         weir_stream stream) {
    uint64_t id = weir__order_last_with(&s->order, stream);

    return weir__suballoc_give_silently(s, block, id ? id : WEIR_ENGINE_UNKNOWN);
}

/* ---- what has completed ---- */

void weir__suballoc_observed(void *context, uint64_t id, uint64_t sequence) {
    struct weir_suballoc *s = context;

    s->changes++;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++)
        weir__placement_observe(s->placement[i], id, sequence);
}

/* Observes the quarantined frees up to `sequence`. */
static void observe_quarantine(struct weir_suballoc *s, uint64_t sequence) {
    size_t left = (size_t)(s->quarantined - sequence);

    weir__suballoc_observed(s, QUARANTINE, sequence);
    if (left < atomic_load_explicit(&s->engine->seen.quarantined, memory_order_relaxed))
        atomic_store_explicit(&s->engine->seen.quarantined, left, memory_order_relaxed);
}

void weir__suballoc_observe_all(struct weir_suballoc *s) {
    weir__order_observe_all(&s->order);
    observe_quarantine(s, s->quarantined);
    while (s->pending)
        pop_pending(s, &s->pending);
}

/* Frees are open that others could have, or something is quarantined. */
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
    weir__suballoc_settle(s, SIZE_MAX);
    return result;
}
