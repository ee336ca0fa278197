/* SPDX-License-Identifier: MIT */
/* cache_remote.c: returns slots to their slabs that were freed on other streams.
 *
 * What: such a slot first waits in the cache of the stream that freed it, where it serves requests at once.  If many of
 * a class pile up there, they return as a batch behind one event.  A batch without an event waits for the next wait for
 * the device.
 *
 * Locks: the caller holds the caches' lock, unless a function takes it.
 */
#include "cache/caches_state.h"

#include <stdlib.h>

#include "base/size.h"
#include "cache/slab_table.h"
#include "config/amount.h"
#include "engine/stream_order.h"

enum { PEEKED = 8 }; /* the number of batches that are queried at a time */

int weir__caches_give(struct weir_caches *f, struct weir_slab *spans, uint64_t id) {
    int due = 0;

    while (spans) {
        struct weir_slab *s = spans;
        CUdeviceptr base = weir__slab_base(s);

        spans = s->next;
        weir__records_end(&f->records, s);
        /* The engine cannot refuse a live block. */
        due |= f->engine->ops->give(f->engine, base, id) == WEIR_ENGINE_DUE;
    }
    return due;
}

void weir__caches_bring_home(struct weir_caches *f, const struct weir_remote_slot *remote) {
    struct weir_slab *s = remote->span;
    struct weir_cache *owner = atomic_load_explicit(&s->cache, memory_order_relaxed);

    if (owner) {
        int taken = weir__bias_take(&owner->lock);

        weir__cache_home(owner, s, remote->slot);
        weir__bias_give(&owner->lock, taken);
        return;
    }
    weir__slab_put(s, remote->slot);
    if (s->idle == s->slots) {
        s->next = NULL;
        weir__caches_give(f, s, WEIR_ENGINE_UNKNOWN);
    }
}

void weir__caches_bring_all_home(struct weir_caches *f, struct weir_remote_slots *remotes) {
    while (remotes) {
        struct weir_remote_slots *more = remotes->more;

        for (uint32_t i = 0; i < remotes->count; i++)
            weir__caches_bring_home(f, &remotes->remote[i]);
        free(remotes);
        remotes = more;
    }
}

static size_t bytes_of(const struct weir_remote_slots *remotes) {
    size_t bytes = 0;

    for (; remotes; remotes = remotes->more)
        for (uint32_t i = 0; i < remotes->count; i++)
            bytes += (size_t)remotes->remote[i].span->slot_units * WEIR_SLAB_UNIT;
    return bytes;
}

/* Returns the slots of a completed batch.  The caller holds `lock`. */
static void settle(struct weir_caches *f, struct weir_remote_slots *batch) {
    if (batch->fence) {
        weir__order_fence_drop(&f->order, batch->fence);
        atomic_fetch_sub_explicit(&f->sent, 1, memory_order_relaxed);
    } else {
        atomic_fetch_sub_explicit(&f->stranded, bytes_of(batch), memory_order_relaxed);
    }
    weir__caches_bring_all_home(f, batch);
}

/* Adds a batch to its list: at the end if it has a fence.  The caller holds `lock`. */
static void queue(struct weir_caches *f, struct weir_remote_slots *batch) {
    if (!batch->fence) {
        batch->next = f->unfenced;
        f->unfenced = batch;
        return;
    }
    batch->next = NULL;
    *f->batches_end = batch;
    f->batches_end = &batch->next;
}

/* Returns the slots of a batch if its fence has completed, else adds the batch to its list again.  Returns 1 if the
 * fence has completed, else 0.  The caller holds `lock`. */
static int settle_or_queue(struct weir_caches *f, struct weir_remote_slots *batch) {
    if (batch->fence && weir__order_fence_done(&f->order, batch->fence)) {
        settle(f, batch);
        return 1;
    }
    queue(f, batch);
    return 0;
}

void weir__caches_settle_some(struct weir_caches *f) {
    const struct weir_remote_slots *asked = NULL; /* the first batch that has not completed */

    for (int i = 0; i < PEEKED && f->batches != asked; i++) {
        struct weir_remote_slots *batch = f->batches;

        f->batches = batch->next;
        if (!f->batches)
            f->batches_end = &f->batches;
        if (!settle_or_queue(f, batch))
            asked = asked ? asked : batch;
    }
}

void weir__caches_send_home(struct weir_caches *f, struct weir_remote_slots *remotes,
                            struct weir_fence *fence) {
    if (!remotes)
        return;
    remotes->fence = fence;
    queue(f, remotes);
    if (fence)
        atomic_fetch_add_explicit(&f->sent, 1, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&f->stranded, bytes_of(remotes), memory_order_relaxed);
}

struct weir_remote_slots *weir__caches_take_batches(struct weir_caches *f) {
    struct weir_remote_slots *batches;

    *f->batches_end = f->unfenced;
    batches = f->batches;
    f->unfenced = f->batches = NULL;
    f->batches_end = &f->batches;
    return batches;
}

void weir__caches_return_batches(struct weir_caches *f, struct weir_remote_slots *batches,
                                 int arrived) {
    while (batches) {
        struct weir_remote_slots *next = batches->next;

        if (arrived)
            settle(f, batches);
        else
            queue(f, batches);
        batches = next;
    }
}

int weir__caches_settle(struct weir_caches *f) {
    struct weir_remote_slots *batch;
    int settled = 0;

    pthread_mutex_lock(&f->lock);
    batch = weir__caches_take_batches(f);
    while (batch) {
        struct weir_remote_slots *next = batch->next;

        settled |= settle_or_queue(f, batch);
        batch = next;
    }
    pthread_mutex_unlock(&f->lock);
    return settled;
}
