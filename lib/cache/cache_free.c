/* SPDX-License-Identifier: MIT */
/* cache_free.c: puts freed blocks into the cache of the stream on which they are freed, or frees them to the engine.
 *
 * What: the short way of a slot is bring_back() in hit.h: it needs the block's record, the stream's cache, and the
 * cache's lock, if that is biased to this thread.  All other frees come here.  They may query the driver, or put the
 * slot into a remote-free queue.
 *
 * Locks: a cache's; where no cache takes the block, the caches' lock.
 *
 * Invariants: a block's record says that the block is live until one call has ended its use.
 */
#include "cache/caches_state.h"

#include <stdlib.h>

#include "base/result.h"

/* ---- blocks that no cache takes ---- */

/* Counts the free of a block in a cache.  The caller holds the cache's lock. */
static void count_free(struct weir_cache *c, uint64_t requested, size_t in_use) {
    weir__sum_sub(&c->requested, (int64_t)requested);
    weir__sum_sub(&c->in_use, (int64_t)in_use);
    weir__cache_raise(&c->frees);
}

/* Counts the free of a block that no cache keeps, in the cache `loose`, which counts such blocks. */
static void count_loose_free(struct weir_caches *f, uint64_t requested, size_t in_use) {
    int taken = weir__bias_take(&f->loose->lock);

    count_free(f->loose, requested, in_use);
    weir__bias_give(&f->loose->lock, taken);
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
    weir_status status = WEIR_OK;

    if (!remote)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    *remote = (struct weir_remote_slots){.count = 1, .room = 1};
    remote->remote[0] = (struct weir_remote_slot){s, slot};
    pthread_mutex_lock(&f->lock);
    if (!captured)
        status = weir__order_defer(&f->order, stream, uses, (uintptr_t)remote);
    if (status != WEIR_OK) {
        free(remote);
    } else if (!take_state(&s->slot[slot])) {
        /* unreached: freed meanwhile, which needs two threads that free one block at once */
        remote->count = 0;
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    }
    if (captured)
        weir__caches_strand(f, remote);
    complete_some(f);
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
    if (status == WEIR_OK) {
        if (f->is_straight)
            count_given(f, bytes);
        return WEIR_OK;
    }
    /* Finds the record again, or makes a new one if records do not stay. */
    s = weir__records_whole(&f->records, base, bytes);
    if (s) /* unreached: no record, for which another thread must have taken the last one */
        atomic_store_explicit(&s->asked, asked, memory_order_relaxed);
    return status;
}

/* Frees a block that has other users or whose stream has no cache. */
static weir_status free_past(struct weir_caches *f, struct weir_slab *s, uint64_t address,
                             weir_stream stream, struct weir_use_list *uses, int captured) {
    uint64_t requested = weir__slab_asked(s, address);
    size_t in_use = weir__slab_in_use(s);
    weir_status status;

    if (requested == 0)
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

/* ---- blocks that a cache takes ---- */

/* The results of a free into a cache. */
enum {
    KEPT,
    FULL,     /* the cache cannot take the block, or there is no room for a remote free */
    NO_BLOCK, /* no live block starts there */
    ANOTHERS  /* the lock is biased to another thread, and was not taken */
};

/* A free into a stream's cache. */
struct put {
    struct weir_cache *c;
    uint64_t key, id; /* the stream's; `id` is 0 if the driver was not queried */
    struct weir_slab *s;
    CUdeviceptr block;
    /* Results: whole blocks for which the inbox has no room, or NULL; the id of the stream whose frees the cache holds;
     * whether work was put off. */
    struct weir_slab *out;
    uint64_t known;
    int wanted;
};

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

/* Puts a live slot of the cache's slabs into its remote-free queue, without the cache's lock.  Returns FULL if the
 * caller must take the cache's lock instead. */
static int post_remote(const struct put *p) {
    struct weir_remote_queue *queue = &p->c->queue;
    struct weir_slab *s = p->s;
    uint32_t slot = weir__slab_slot(s, p->block), asked;
    int result = FULL;

    if (slot == WEIR_SLOT_NONE)
        return NO_BLOCK;
    weir__lock_take(&queue->lock);
    asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE) {
        result = NO_BLOCK;
    } else if (queue->open && queue->key == p->key && (p->id == 0 || queue->id == p->id) &&
               has_queue_room(p->c) &&
               atomic_load_explicit(&s->cache, memory_order_relaxed) == p->c) {
        if (weir__slab_post(s, slot)) {
            s->posted_next = queue->slabs;
            queue->slabs = s;
        }
        queue->requested += asked;
        queue->in_use += weir__slab_in_use(s);
        atomic_store_explicit(&queue->count,
                              atomic_load_explicit(&queue->count, memory_order_relaxed) + 1,
                              memory_order_relaxed);
        result = KEPT;
    }
    weir__lock_give(&queue->lock);
    return result;
}

/* Frees a whole block to the inbox.  If the inbox has no room, takes all blocks out of it. */
static int put_whole(const struct weir_caches *f, struct put *p) {
    struct weir_cache *c = p->c;
    struct weir_slab *s = p->s;
    uint64_t asked = atomic_load_explicit(&s->asked, memory_order_relaxed);
    size_t bytes = weir__slab_bytes(s);
    size_t more = atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) + bytes;

    if (asked == 0 || p->block != weir__slab_base(s))
        return NO_BLOCK;
    atomic_store_explicit(&s->asked, 0, memory_order_relaxed);
    count_free(c, asked, bytes);
    if (c->inbox_count < WEIR_CACHE_INBOX && more < c->room &&
        c->lacked == atomic_load_explicit(&f->engine->lacked, memory_order_relaxed)) {
        weir__cache_put_whole(c, s);
    } else {
        s->next = weir__cache_empty_inbox(c);
        p->out = s;
    }
    return KEPT;
}

/* Keeps a freed slot of another cache's slab in this cache, as a remote free. */
static int put_remote(const struct put *p) {
    struct weir_remote_slots *remotes = p->c->remotes[p->s->size_class];
    uint32_t slot = weir__slab_slot(p->s, p->block), asked;

    if (slot == WEIR_SLOT_NONE)
        return NO_BLOCK;
    asked = atomic_load_explicit(&p->s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE)
        return NO_BLOCK;
    if (!remotes || remotes->count == remotes->room)
        return FULL;
    atomic_store_explicit(&p->s->slot[slot], WEIR_SLOT_AWAY, memory_order_relaxed);
    remotes->remote[remotes->count++] = (struct weir_remote_slot){p->s, slot};
    count_free(p->c, asked, weir__slab_in_use(p->s));
    return KEPT;
}

/* Puts a block into the cache.  Returns KEPT, NO_BLOCK or FULL.  Also returns FULL if the cache is no longer the stream's.
 * If `politely` is set and the lock is biased to another thread, changes nothing and returns ANOTHERS. */
static int put(struct weir_caches *f, struct put *p, int politely) {
    struct weir_cache *c = p->c;
    int taken = weir__bias_take_at(&c->lock, WEIR_BIAS_INNER,
                                   politely ? WEIR_BIAS_POLITE : WEIR_BIAS_GUEST),
        result = FULL;

    if (taken < 0)
        return ANOTHERS;
    /* unreached: not this stream's, unless another thread has changed that since the cache was found */
    if (c->serves && is_its(c, p->key, p->id)) {
        if (weir__cache_has_post(c, WEIR_SLAB_SMALL)) /* its owner may make no more calls */
            weir__cache_collect(c);
        if (!p->s->slot_units)
            result = put_whole(f, p);
        else if (weir__cache_put_plain(c, p->s, p->block))
            result = KEPT;
        else if (atomic_load_explicit(&p->s->cache, memory_order_relaxed) == c)
            result = NO_BLOCK;
        else
            result = put_remote(p);
        if (result == KEPT && atomic_load_explicit(&c->capturing, memory_order_relaxed))
            count(f, WEIR_STRIPED_CACHES_DEFERRED);
        p->known = atomic_load_explicit(&c->id, memory_order_relaxed);
        p->wanted = c->due;
    }
    weir__bias_give(&c->lock, taken);
    return result;
}

/* Makes the stream's next request maintain the cache. */
static void put_off(struct weir_cache *c) {
    int taken = weir__bias_take(&c->lock);

    weir__cache_due(c);
    weir__bias_give(&c->lock, taken);
}

/* Frees whole blocks to the engine for which the inbox has no room, as freed on the stream `known`.  If the handle means
 * another stream, `known` has ended, and only a wait for the device completes its frees.  Records an event if one is due
 * and the handle still means `known`. */
static void give_up(struct weir_caches *f, const struct put *p, weir_stream stream) {
    unsigned long long id = p->id;

    if (!weir__caches_give(f, p->out, p->known, p->c) && !has_threshold(f))
        return;
    if (id == 0 && is_vouched_for(&f->hits, p->c, stream))
        id = weir__device_capture(f->hits.device, stream) == WEIR_OK ? p->known : 0;
    else if (id == 0)
        (void)ask(&f->hits, stream, &id);
    if (id == p->known)
        weir__engine_maintain(f->engine, stream, p->known);
    else
        put_off(p->c); /* no event can be recorded on a captured stream */
}

/* Makes room in a cache for one more remote free of a class, which are then many enough to return to their slabs in this
 * call.  Returns 1 on success, 0 without host memory, or if the cache is no longer the stream's. */
static int make_room(struct weir_cache *c, unsigned size_class) {
    struct weir_remote_slots *remotes;
    uint32_t room;
    int taken = weir__bias_take(&c->lock), made = 0;

    if (c->serves) {
        remotes = c->remotes[size_class];
        room = remotes ? remotes->room * 2 : WEIR_CACHE_REMOTES;
        remotes = realloc(remotes, sizeof *remotes + room * sizeof remotes->remote[0]);
        made = remotes != NULL;
    }
    if (made) {
        if (room == WEIR_CACHE_REMOTES)
            *remotes = (struct weir_remote_slots){0};
        else
            weir__cache_due(c);
        remotes->room = room;
        c->remotes[size_class] = remotes;
    }
    weir__bias_give(&c->lock, taken);
    return made;
}

/* Frees a block after querying the stream, or because no cache has taken it. */
static __attribute__((noinline)) weir_status free_slow(struct weir_caches *f, struct weir_slab *s,
                                                       CUdeviceptr block, weir_stream stream,
                                                       struct weir_use_list *uses) {
    weir_status status = weir__device_capture(f->hits.device, stream);
    int captured = status == WEIR_E_CAPTURE, result = FULL;
    struct put p = {.s = s,
                    .block = block}; /* the query of an id would break the stream's capture */

    if (status == WEIR_OK)
        status = weir__caches_identify(f, stream, &p.id);
    if (status != WEIR_OK && !captured)
        return status;
    p.key = key_of(stream, p.id);
    p.c = captured ? weir__caches_visit_captured(f, stream) : weir__caches_visit(f, stream, p.id);
    if (p.c && !uses) {
        result = put(f, &p, 0);
        if (result == FULL && s->slot_units && make_room(p.c, s->size_class))
            result = put(f, &p, 0);
        if (p.out)
            give_up(f, &p, stream);
    }
    status = WEIR_OK;
    if (result == NO_BLOCK)
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    else if (result == FULL)
        status = free_past(f, s, block, stream, uses, captured);
    else if (captured)
        put_off(p.c); /* no event can be recorded on a captured stream */
    else
        weir__caches_catch_up(f, p.c, stream);
    if (!captured)
        weir__caches_unpin(p.c);
    return status;
}

void weir__caches_answer(struct weir_caches *f, weir_stream stream) {
    int result_before = weir__driver_result;
    struct weir_cache *c;
    uint64_t id;

    if (weir__device_capture(f->hits.device, stream) == WEIR_OK &&
        weir__device_stream_id(f->hits.device, stream, &id) == CUDA_SUCCESS) {
        c = weir__caches_visit(f, stream, id);
        if (c)
            weir__caches_catch_up(f, c, stream);
        weir__caches_unpin(c);
    }
    weir__driver_result = result_before;
}

/* Puts the block into its stream's cache, or a slot into the remote-free queue of that cache if another thread has the
 * bias, for which the queue exists. */
static weir_status free_by_cache(struct weir_caches *f, struct put *p, weir_stream stream) {
    int own = atomic_load_explicit(&p->s->cache, memory_order_relaxed) == p->c;
    int result = ANOTHERS;
    uint32_t owner;

    for (int politely = own; result == ANOTHERS; politely = 0) {
        owner = atomic_load_explicit(&p->c->lock.owner, memory_order_relaxed);
        result = own && owner != 0 && owner != weir__bias_thread ? post_remote(p) : FULL;
        if (result == FULL)
            result = put(f, p, politely);
    }
    if (p->out)
        give_up(f, p, stream);
    if (result == NO_BLOCK)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    if (result == FULL)
        return free_slow(f, p->s, p->block, stream, NULL);
    if (p->wanted)
        weir__caches_answer(f, stream);
    return WEIR_OK;
}

/* ---- whole blocks that the driver frees ---- */

/* Counts the free of a whole block by the driver in the cache `c`, unless `c` is NULL or another thread uses it.
 * Returns 1 if work was put off in the cache, else 0. */
static int count_driver_free(struct weir_caches *f, struct weir_cache *c, uint64_t requested,
                             size_t in_use) {
    int taken = c ? weir__bias_take_at(&c->lock, WEIR_BIAS_INNER, WEIR_BIAS_POLITE) : -1, wanted;

    if (taken < 0) {
        count_loose_free(f, requested, in_use);
        return 0;
    }
    count_free(c, requested, in_use);
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

/* Frees a live whole block on a captured stream, where the driver frees none.  The block waits in the inbox of the cache
 * with the stream's handle for the next call of the stream that the handle meant last, or for a wait for the device. */
static weir_status free_after_capture(struct weir_caches *f, struct weir_slab *s,
                                      weir_stream stream) {
    struct weir_cache *c = weir__caches_visit_captured(f, stream);
    int taken;

    /* unreached: freed meanwhile, which needs two threads that free one block at once */
    if (atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed) == 0)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    s->next = NULL;
    pthread_mutex_lock(&f->lock);
    if (c) {
        taken = weir__bias_take(&c->lock);
        weir__cache_put_whole(c, s);
        /* A request that found the capture over meanwhile has not seen the block, so the next one has to look. */
        atomic_store_explicit(&c->capturing, 1, memory_order_relaxed);
        weir__cache_pass(c);
        weir__bias_give(&c->lock, taken);
    } else {
        weir__caches_give(f, s, WEIR_ENGINE_UNKNOWN, NULL);
    }
    pthread_mutex_unlock(&f->lock);
    count(f, WEIR_STRIPED_CACHES_DEFERRED);
    return WEIR_OK;
}

/* Frees a whole block to an engine whose blocks the driver orders.  The driver knows which stream the handle means, so
 * weir queries nothing if a stream with that handle has a cache `c`. */
static weir_status free_by_driver(struct weir_caches *f, struct weir_cache *c, struct weir_slab *s,
                                  CUdeviceptr block, weir_stream stream) {
    uint64_t requested = weir__slab_asked(s, block);
    size_t in_use = weir__slab_in_use(s);
    weir_status status;

    if (c && atomic_load_explicit(&c->id, memory_order_relaxed) == 0)
        c = NULL; /* no stream with that handle has had the cache yet */
    if (requested == 0)
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

/* ---- frees ---- */

weir_status weir__caches_free_done(struct weir_caches *f, CUdeviceptr block) {
    struct weir_slab *s = weir__records_find(&f->hits.pages, block);
    uint64_t requested = s && weir__slab_bytes(s) > 0 ? weir__slab_asked(s, block) : 0;
    struct weir_remote_slot remote = {.span = s};
    size_t in_use;
    int done;

    if (requested == 0)
        return weir__without_driver(WEIR_E_NOT_OWNED);
    in_use = weir__slab_in_use(s);
    pthread_mutex_lock(&f->lock);
    if (s->slot_units) {
        remote.slot = weir__slab_slot(s, block);
        done = take_state(&s->slot[remote.slot]);
        if (done)
            weir__caches_bring_home(f, &remote, NULL);
    } else {
        done = atomic_exchange_explicit(&s->asked, 0, memory_order_relaxed) > 0;
        s->next = NULL;
        if (done)
            weir__caches_give(f, s, WEIR_ENGINE_OBSERVED, NULL);
    }
    pthread_mutex_unlock(&f->lock);
    if (!done) /* unreached: freed meanwhile, which needs two threads that free one block at once */
        return weir__without_driver(WEIR_E_NOT_OWNED);
    count_loose_free(f, requested, in_use);
    return WEIR_OK;
}

weir_status weir__caches_free_found(struct weir_caches *f, struct weir_cache *c,
                                    unsigned long long id, struct weir_slab *s, CUdeviceptr block,
                                    weir_stream stream, struct weir_use_list *uses) {
    struct put p = {.c = c, .key = key_of(stream, id), .id = id, .s = s, .block = block};
    int result_before = weir__driver_result;
    weir_status status;

    if (!s || weir__slab_bytes(s) == 0)
        status = free_other(f, block, stream, uses);
    else if (f->is_straight && s->slot_units == 0 && !uses)
        status = free_by_driver(f, c, s, block, stream);
    else
        status = c ? free_by_cache(f, &p, stream) : free_slow(f, s, block, stream, uses);
    if (status == WEIR_OK)
        weir__driver_result = result_before;
    else
        weir__device_log_free(f->hits.device, block, status);
    return status;
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
    status = weir__caches_free_found(f, c, id, s, block, stream, uses);
    weir__device_end_context(f->hits.device, lent);
    return status;
}
