/* SPDX-License-Identifier: MIT */
/* cache_free.c: puts freed blocks into the cache of the stream on which they are freed, or frees them to the engine.
 *
 * What: the short way is bring_back() in hit.h: it needs the block's record, the stream's cache, and the cache's lock,
 * if that is biased to this thread.  All other frees come here.  They may query the driver, or put the block into a
 * remote-free queue.
 *
 * Locks: a cache's; where no cache takes the block, the caches' lock.
 *
 * Invariants: a block's record says that the block is live until one call has ended its use.
 */
#include "cache/caches_state.h"

#include <stdlib.h>

#include "base/result.h"

/* ---- blocks that no cache takes ---- */

/* Counts the free of a block that no cache keeps, in the cache `loose`, which counts such blocks. */
static void count_loose_free(struct weir_caches *f, int64_t requested, int64_t in_use) {
    int taken = weir__bias_take(&f->loose->lock);

    weir__sum_sub(&f->loose->requested, requested);
    weir__sum_sub(&f->loose->in_use, in_use);
    weir__bias_give(&f->loose->lock, taken);
    atomic_store_explicit(&f->past, 1, memory_order_relaxed);
    count(f, WEIR_STRIPED_FREES);
}

/* Marks a live slot as freed but not in its slab's free list.  Returns 1 on success, 0 if the slot is not live. */
static int take_state(_Atomic uint32_t *state) {
    uint32_t asked = atomic_load_explicit(state, memory_order_relaxed);

    /* unreached: not live, unless another thread frees the slot, too, since it was live a moment ago */
    return !(asked & WEIR_SLOT_IDLE) &&
           /* unreached: not live, as before */
           atomic_compare_exchange_strong_explicit(state, &asked, WEIR_SLOT_AWAY,
                                                   memory_order_relaxed, memory_order_relaxed);
}

/* Returns a slot to its slab behind all streams that use it, or for a captured stream behind a wait for the device. */
static weir_status free_slot(struct weir_caches *f, struct weir_slab *s, uint64_t address,
                             weir_stream stream, struct weir_use_list *uses, int captured) {
    struct weir_remote_slots *remote = malloc(sizeof *remote + sizeof remote->remote[0]);
    uint32_t slot = weir__slab_slot(s, address);
    struct weir_use_list none = {0};
    struct weir_fence *fence = NULL;
    weir_status status = WEIR_OK;

    if (!remote)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    *remote = (struct weir_remote_slots){.count = 1, .room = 1};
    remote->remote[0] = (struct weir_remote_slot){s, slot};
    pthread_mutex_lock(&f->lock);
    if (!captured)
        status = weir__order_fence(&f->order, stream, uses ? uses : &none, &fence);
    /* unreached: freed meanwhile, which needs two threads that free one block at once */
    if (status == WEIR_OK && !take_state(&s->slot[slot])) {
        if (fence)
            weir__order_fence_drop(&f->order, fence);
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    }
    if (status == WEIR_OK)
        weir__caches_send_home(f, remote, fence);
    else
        free(remote);
    weir__caches_settle_some(f);
    pthread_mutex_unlock(&f->lock);
    return status;
}

/* Frees a whole block to the engine, which orders its reuse. */
static weir_status free_whole(struct weir_caches *f, struct weir_slab *s, CUdeviceptr base,
                              weir_stream stream, struct weir_use_list *uses) {
    size_t bytes = weir__slab_bytes(s);
    uint64_t asked = atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed);
    weir_status status;

    /* unreached: freed meanwhile by another thread, whose block the record may be by now */
    if (asked == 0 || weir__slab_base(s) != base) {
        if (asked > 0) /* unreached: the record of another block, as before */
            atomic_store_explicit(&s->asked, asked, memory_order_relaxed);
        return weir__without_driver(WEIR_E_NOT_OWNED);
    }
    weir__records_end(&f->records, s);
    status = f->engine->ops->free(f->engine, base, stream, uses);
    if (status == WEIR_OK && f->is_straight)
        count_given(f, bytes);
    if (status == WEIR_OK)
        return WEIR_OK;
    /* Finds the record again, or makes a new one if records do not stay. */
    s = weir__records_whole(&f->records, base, bytes);
    if (s) /* unreached: no record, for which another thread must have taken the last one */
        atomic_store_explicit(&s->asked, asked, memory_order_relaxed);
    return status;
}

/* Frees a block that has other users or whose stream has no cache. */
static weir_status free_past(struct weir_caches *f, struct weir_slab *s, uint64_t address,
                             weir_stream stream, struct weir_use_list *uses, int captured) {
    int64_t requested, in_use;
    weir_status status;

    if (!weir__slab_has_live(s, address, &requested, &in_use))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (uses && captured)
        return weir__without_driver(WEIR_E_CAPTURE);
    status = s->slot_units ? free_slot(f, s, address, stream, uses, captured)
                           : free_whole(f, s, address, stream, uses);
    if (status != WEIR_OK)
        return status;
    count_loose_free(f, requested, in_use);
    if (captured)
        count(f, WEIR_STRIPED_CACHES_DEFERRED);
    return WEIR_OK;
}

/* ---- remote-free queues ---- */

/* Returns 1 if the remote-free queue has room, else 0.  There is always room as long as the queue's owner allocates.
 * The caller holds the queue's lock. */
static int has_queue_room(struct weir_cache *c) {
    struct weir_remote_queue *queue = &c->queue;
    int64_t sum;

    if (queue->in_use < queue->look)
        return 1;
    sum = weir__sum_now(&c->requested);
    if (sum == queue->seen)
        return 0;
    queue->seen = sum;
    queue->look = queue->in_use + WEIR_CACHE_QUEUE_LOOK;
    return 1;
}

/* Puts a live slot of the cache's slabs into its remote-free queue, without the cache's lock.  `id` is 0 if the driver
 * was not queried.  Returns FULL if the caller must take the cache's lock instead. */
static int post_remote(struct weir_cache *c, uint64_t key, uint64_t id, struct weir_slab *s,
                       uint64_t address) {
    struct weir_remote_queue *queue = &c->queue;
    uint32_t slot = weir__slab_slot(s, address), asked;
    int result = WEIR_CACHE_FULL;

    if (slot == WEIR_SLOT_NONE)
        return WEIR_CACHE_NO_BLOCK;
    weir__lock_take(&queue->lock);
    asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE) {
        result = WEIR_CACHE_NO_BLOCK;
    } else if (queue->open && queue->key == key && (id == 0 || queue->id == id) &&
               has_queue_room(c) && atomic_load_explicit(&s->cache, memory_order_relaxed) == c) {
        if (weir__slab_post(s, slot)) {
            s->posted_next = queue->slabs;
            queue->slabs = s;
        }
        queue->requested += asked;
        queue->in_use += (uint64_t)s->slot_units * WEIR_SLAB_UNIT;
        atomic_store_explicit(&queue->count,
                              atomic_load_explicit(&queue->count, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        result = WEIR_CACHE_TAKEN;
    }
    weir__lock_give(&queue->lock);
    return result;
}

/* Returns 1 if the cache's lock is biased to another thread, for whom the remote-free queue exists; else 0. */
static int is_biased_to_another(const struct weir_cache *c) {
    uint32_t owner = atomic_load_explicit(&c->lock.owner, memory_order_relaxed);

    return owner != 0 && owner != weir__bias_thread;
}

/* ---- blocks that a cache takes ---- */

/* Puts a block into the cache.  Returns ANOTHERS if the caller is polite and the lock is biased to another thread, and
 * FULL also if the cache is no longer the stream's.  `id` is 0 if the driver was not queried.  Sets *known to the id of
 * the stream whose frees the cache holds, and *wanted if work was put off. */
static int put(const struct weir_caches *f, struct weir_cache *c, uint64_t key, uint64_t id,
               struct weir_slab *s, uint64_t address, int politely, struct weir_slab **out,
               uint64_t *known, int *wanted) {
    int taken = weir__bias_take_as_guest(&c->lock, politely), result = WEIR_CACHE_FULL;

    if (taken < 0)
        return WEIR_CACHE_ANOTHERS;
    /* unreached: not this stream's, unless another thread has changed that since the cache was found */
    if (c->serves && is_its(c, key, id)) {
        if (weir__cache_has_post(c, WEIR_SLAB_SMALL)) /* its owner may make no more calls */
            weir__cache_collect(c);
        result = weir__cache_put(c, s, address, lacked(f), out);
        if (result == WEIR_CACHE_TAKEN && atomic_load_explicit(&c->capturing, memory_order_relaxed))
            weir__cache_raise(&c->deferred);
        *known = atomic_load_explicit(&c->id, memory_order_relaxed);
        *wanted = c->due;
    }
    weir__bias_give(&c->lock, taken);
    return result;
}

/* Makes the stream's next request maintain the cache, since no event can be recorded on a captured stream. */
static void put_off(struct weir_cache *c) {
    int taken = weir__bias_take(&c->lock);

    weir__cache_due(c);
    weir__bias_give(&c->lock, taken);
}

/* Frees whole blocks to the engine for which the inbox has no room, as freed on the stream `known`.  If the handle means
 * another stream, `known` has ended, and only a wait for the device completes its frees.  Records an event if one is due
 * and the handle still means `known`.  `id` is the stream's id, or 0 if the driver was not queried for it. */
static __attribute__((noinline)) void give_up(struct weir_caches *f, struct weir_cache *c,
                                              weir_stream stream, unsigned long long id,
                                              uint64_t known, struct weir_slab *spans) {
    if (!weir__caches_give(f, spans, known, c) && !f->sheds)
        return;
    if (id == 0 && is_vouched_for(&f->hits, c, stream))
        id = weir__device_capture(f->hits.device, stream) == WEIR_OK ? known : 0;
    else if (id == 0)
        (void)ask(&f->hits, stream, &id);
    if (id == known)
        weir__engine_maintain(f->engine, stream, known);
    else
        put_off(c);
}

/* Makes room for one more remote free in a cache.  Returns 1 on success, else 0. */
static int make_room(struct weir_cache *c, const struct weir_slab *s) {
    int taken = weir__bias_take(&c->lock);
    int made = c->serves && weir__cache_remote_room(c, s->size_class);

    weir__bias_give(&c->lock, taken);
    return made;
}

/* Puts a block into a cache, and makes room for it if necessary.  Returns FULL if the cache cannot take the block. */
static int put_with_room(struct weir_caches *f, struct weir_cache *c, weir_stream stream,
                         uint64_t id, struct weir_slab *s, CUdeviceptr block) {
    struct weir_slab *out = NULL;
    uint64_t known = 0;
    int wanted, result = put(f, c, key_of(stream, id), id, s, block, 0, &out, &known, &wanted);

    if (result == WEIR_CACHE_FULL && s->slot_units && make_room(c, s))
        result = put(f, c, key_of(stream, id), id, s, block, 0, &out, &known, &wanted);
    if (out)
        give_up(f, c, stream, id, known, out);
    return result;
}

static __attribute__((noinline)) weir_status free_slow(struct weir_caches *f, struct weir_slab *s,
                                                       CUdeviceptr block, weir_stream stream,
                                                       struct weir_use_list *uses) {
    weir_status status = weir__device_capture(f->hits.device, stream);
    int captured = status == WEIR_E_CAPTURE, result = WEIR_CACHE_FULL;
    struct weir_cache *c;
    uint64_t id = 0; /* a query of the id would break the capture of a captured stream */

    if (status == WEIR_OK)
        status = weir__caches_identify(f, stream, &id);
    if (status != WEIR_OK && !captured)
        return status;
    c = captured ? weir__caches_visit_captured(f, stream, id)
                 : weir__caches_visit(f, stream, id, !uses);
    if (c && !uses)
        result = put_with_room(f, c, stream, id, s, block);
    status = WEIR_OK;
    if (result == WEIR_CACHE_NO_BLOCK)
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    else if (result == WEIR_CACHE_FULL)
        status = free_past(f, s, block, stream, uses, captured);
    else if (captured)
        put_off(c);
    else {
        weir__caches_look_after(f, c, stream);
        weir__caches_catch_up(f, c, stream);
    }
    if (!captured)
        weir__caches_unpin(c);
    return status;
}

void weir__caches_answer(struct weir_caches *f, weir_stream stream) {
    int result_before = weir__driver_result;
    struct weir_cache *c;
    uint64_t id;

    if (weir__device_capture(f->hits.device, stream) == WEIR_OK &&
        weir__device_stream_id(f->hits.device, stream, &id) == CUDA_SUCCESS) {
        c = weir__caches_visit(f, stream, id, 1);
        if (c)
            weir__caches_catch_up(f, c, stream);
        weir__caches_unpin(c);
    }
    weir__driver_result = result_before;
}

/* Counts the free of a whole block by the driver in the cache `c`, unless `c` is NULL or another thread uses it.
 * Returns 1 if work was put off in the cache, else 0. */
static int count_driver_free(struct weir_caches *f, struct weir_cache *c, int64_t requested,
                             int64_t in_use) {
    int taken = c ? weir__bias_take_as_guest(&c->lock, 1) : -1, wanted;

    if (taken < 0) {
        count_loose_free(f, requested, in_use);
        return 0;
    }
    weir__sum_sub(&c->requested, requested);
    weir__sum_sub(&c->in_use, in_use);
    weir__cache_raise(&c->frees);
    wanted = c->serves && !c->is_ready;
    weir__bias_give(&c->lock, taken);
    return wanted;
}

/* Checks a stream that no cache serves: it exists, and belongs to this device.  The driver checks captured streams. */
static weir_status check_unserved(struct weir_caches *f, weir_stream stream) {
    weir_status status = weir__device_capture(f->hits.device, stream);
    uint64_t id;

    if (status == WEIR_E_CAPTURE)
        return WEIR_OK;
    return status == WEIR_OK ? weir__caches_identify(f, stream, &id) : status;
}

/* Lets a live whole block wait that was freed on a captured stream.  The handle's last call tells the stream. */
static weir_status free_after_capture(struct weir_caches *f, struct weir_slab *s,
                                      weir_stream stream) {
    const struct weir_cache *c = weir__caches_visit_captured(f, stream, 0);
    uint64_t id = WEIR_ENGINE_UNKNOWN;

    pthread_mutex_lock(&f->lock);
    /* unreached: freed meanwhile, which needs two threads that free one block at once */
    if (atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed) == 0) {
        pthread_mutex_unlock(&f->lock);
        return weir__without_driver(WEIR_E_NOT_OWNED);
    }
    if (c)
        id = c->serves ? atomic_load_explicit(&c->id, memory_order_relaxed) : c->young_id;
    s->next = NULL;
    weir__caches_wait(f, s, id);
    pthread_mutex_unlock(&f->lock);
    count(f, WEIR_STRIPED_CACHES_DEFERRED);
    return WEIR_OK;
}

/* Frees a whole block to an engine whose blocks the driver orders.  The driver knows which stream the handle means, so
 * weir queries nothing if a stream with that handle has a cache `c`. */
static weir_status free_by_driver(struct weir_caches *f, struct weir_cache *c, struct weir_slab *s,
                                  CUdeviceptr block, weir_stream stream) {
    int64_t requested, in_use;
    weir_status status;

    if (c && atomic_load_explicit(&c->id, memory_order_relaxed) == 0)
        c = NULL; /* no stream with that handle has had the cache yet */

    if (!weir__slab_has_live(s, block, &requested, &in_use))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = c ? WEIR_OK : check_unserved(f, stream);
    if (status == WEIR_OK)
        status = free_whole(f, s, block, stream, NULL);
    if (status == WEIR_E_CAPTURE) {
        /* The block may have another record by now: free_whole() gave up its record and made one again. */
        s = weir__records_find(&f->hits.pages, block);
        status = s ? free_after_capture(f, s, stream) : weir__without_driver(WEIR_E_HOST_MEMORY);
    }
    if (status == WEIR_OK && count_driver_free(f, c, requested, in_use))
        weir__caches_answer(f, stream);
    return status;
}

/* Frees a block that the caches have no record of.  It may be a graph's.  Any other is refused here, since a pool of
 * the driver would free a block that is not weir's. */
static weir_status free_other(struct weir_caches *f, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    weir_status status;

    if (!weir__graphs_has(&f->v->graphs, block))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    status = f->engine->ops->free(f->engine, block, stream, uses);
    if (status == WEIR_OK)
        count(f, WEIR_STRIPED_FREES);
    return status;
}

/* Puts the block into its stream's cache `c`, or into the remote-free queue of that cache.  `c` is NULL if the stream has
 * no cache, if its id could not be queried, or if there are noted uses. */
static weir_status free_by_cache(struct weir_caches *f, struct weir_cache *c, unsigned long long id,
                                 struct weir_slab *s, CUdeviceptr block, weir_stream stream,
                                 struct weir_use_list *uses) {
    uint64_t key = key_of(stream, id), known = 0;
    struct weir_slab *out = NULL;
    int result = WEIR_CACHE_FULL, wanted = 0;
    int own = c && atomic_load_explicit(&s->cache, memory_order_relaxed) == c;

    if (f->is_straight && s->slot_units == 0 && !uses)
        return free_by_driver(f, c, s, block, stream);
    for (int politely = own; c; politely = 0) {
        result =
            own && is_biased_to_another(c) ? post_remote(c, key, id, s, block) : WEIR_CACHE_FULL;
        if (result == WEIR_CACHE_FULL)
            result = put(f, c, key, id, s, block, politely, &out, &known, &wanted);
        if (result != WEIR_CACHE_ANOTHERS)
            break;
    }
    if (out)
        give_up(f, c, stream, id, known, out);
    if (result == WEIR_CACHE_NO_BLOCK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (result == WEIR_CACHE_FULL)
        return free_slow(f, s, block, stream, uses);
    if (wanted)
        weir__caches_answer(f, stream);
    return WEIR_OK;
}

/* Ends the use of a block.  Returns 1 on success, 0 if the block is no longer live.  The caller holds `lock`. */
static int end_use(struct weir_caches *f, struct weir_slab *s, CUdeviceptr block) {
    uint32_t slot;

    if (s->slot_units) {
        slot = weir__slab_slot(s, block);
        /* unreached: freed meanwhile, which needs two threads that free one block at once */
        if (!take_state(&s->slot[slot]))
            return 0;
        weir__caches_bring_home(f, &(struct weir_remote_slot){s, slot}, NULL);
        return 1;
    }
    /* unreached: freed meanwhile, which needs two threads that free one block at once */
    if (atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed) == 0)
        return 0;
    s->next = NULL;
    weir__caches_give(f, s, WEIR_ENGINE_OBSERVED, NULL);
    return 1;
}

weir_status weir__caches_free_done(struct weir_caches *f, CUdeviceptr block) {
    struct weir_slab *s = weir__records_find(&f->hits.pages, block);
    int64_t requested, in_use;
    int done;

    if (!s || weir__slab_bytes(s) == 0 || !weir__slab_has_live(s, block, &requested, &in_use))
        return weir__without_driver(WEIR_E_NOT_OWNED);
    pthread_mutex_lock(&f->lock);
    done = end_use(f, s, block);
    pthread_mutex_unlock(&f->lock);
    if (!done) /* unreached: freed meanwhile */
        return weir__without_driver(WEIR_E_NOT_OWNED);
    count_loose_free(f, requested, in_use);
    return WEIR_OK;
}

/* Frees a whole block to the inbox.  Returns 1 on success, 0 if nothing has changed: the inbox has no room, another
 * thread has the lock, work was put off, or the stream has lost the cache. */
static int post_large(const struct weir_caches *f, struct weir_cache *c, unsigned long long id,
                      struct weir_slab *s, CUdeviceptr block, weir_stream stream) {
    int done;

    if (!weir__bias_try_at(&c->lock, WEIR_BIAS_INNER))
        return 0;
    done = c->is_ready && is_its(c, key_of(stream, id), id) &&
           weir__cache_post(c, s, block, lacked(f));
    weir__bias_give(&c->lock, 1);
    return done;
}

/* weir_free ends with this function, so it restores the thread's last driver result: see weir__ended. */
static weir_status free_searched(struct weir_caches *f, struct weir_cache *c, unsigned long long id,
                                 struct weir_slab *s, CUdeviceptr block, weir_stream stream,
                                 struct weir_use_list *uses) {
    int result_before = weir__driver_result;
    weir_status status = s && weir__slab_bytes(s) > 0
                             ? free_by_cache(f, c, id, s, block, stream, uses)
                             : free_other(f, block, stream, uses);

    if (status == WEIR_OK)
        weir__driver_result = result_before;
    else
        weir__device_log_free(f->hits.device, block, status);
    return status;
}

weir_status weir__caches_free_found(struct weir_caches *f, struct weir_cache *c,
                                    unsigned long long id, struct weir_slab *s, CUdeviceptr block,
                                    weir_stream stream) {
    if (c && s->slot_units == 0 && post_large(f, c, id, s, block, stream))
        return WEIR_OK;
    return free_searched(f, c, id, s, block, stream, NULL);
}

weir_status weir__caches_free_used(struct weir_caches *f, CUdeviceptr block, weir_stream stream,
                                   struct weir_use_list *uses) {
    struct weir_slab *s = weir__records_find(&f->hits.pages, block);
    struct weir_cache *c = NULL;
    unsigned long long id = 0;
    weir_status status;
    int lent = 0;

    if (s && weir__slab_bytes(s) > 0 && !uses)
        c = find_cache(&f->hits, stream, &id, &lent);
    else
        lent = is_default(stream) && weir__device_lacks_context &&
               weir__device_lend_context(f->hits.device);
    status = free_searched(f, c, id, s, block, stream, uses);
    weir__device_end_context(f->hits.device, lent);
    return status;
}
