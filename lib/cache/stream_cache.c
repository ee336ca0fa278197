/* SPDX-License-Identifier: MIT */
/* stream_cache.c: the rare operations of a stream's cache. */
#include "cache/stream_cache.h"

#include "base/size.h"

_Static_assert(offsetof(struct weir_cache, lock.lock) % 128 == 0,
               "threads that read whose the lock is share no cache line with its owner's hits");

_Static_assert(offsetof(struct weir_slab, next) == 64 &&
                   offsetof(struct weir_slab, posted_next) == 128,
               "a slab's record has a cache line for each who writes");

/* The newest blocks of an inbox that may serve a request. */
enum { REUSED_NEWEST = 8 };

/* The largest block that an inbox serves while several streams are in use.  Without a bound five streams with GPU work
 * reserve a twentieth more, and with this one no more. */
#define REUSED_MOST ((size_t)2 << 20)

void weir__cache_collect(struct weir_cache *c) {
    struct weir_remote_queue *queue = &c->queue;
    uint32_t count;

    weir__lock_take(&queue->lock);
    for (struct weir_slab *s = queue->slabs; s; s = s->posted_next) {
        uint32_t before = s->idle;

        weir__slab_collect(s);
        weir__cache_welcome(c, s, before);
    }
    queue->slabs = NULL;
    weir__sum_sub(&c->requested, (int64_t)queue->requested);
    weir__sum_sub(&c->in_use, (int64_t)queue->in_use);
    queue->requested = queue->in_use = 0;
    queue->look = WEIR_CACHE_QUEUE_LOOK;
    count = atomic_load_explicit(&queue->count, memory_order_relaxed);
    atomic_store_explicit(&queue->count, 0,
                          memory_order_release); /* pairs with the load in weir__cache_posted */
    weir__lock_give(&queue->lock);
    atomic_store_explicit(&c->frees, atomic_load_explicit(&c->frees, memory_order_relaxed) + count,
                          memory_order_relaxed);
}

/* Collects the queue after the change: slots in it were freed for the cache's former stream. */
void weir__cache_readdress(struct weir_cache *c) {
    weir__lock_take(&c->queue.lock);
    c->queue.open = c->serves;
    c->queue.key = atomic_load_explicit(&c->key, memory_order_relaxed);
    c->queue.id = atomic_load_explicit(&c->id, memory_order_relaxed);
    weir__lock_give(&c->queue.lock);
    weir__cache_collect(c);
}

void weir__cache_add_slab(struct weir_cache *c, struct weir_slab *slab) {
    atomic_store_explicit(&slab->cache, c, memory_order_relaxed);
    slab->epoch = c->epoch;
    c->slabs[slab->size_class]++;
    weir__cache_link(c, slab);
    weir__cache_more_idle(c, weir__slab_bytes(slab));
}

uint64_t weir__cache_take_further(struct weir_cache *c, size_t bytes) {
    unsigned size_class = weir__slab_class(bytes);
    struct weir_remote_slots *remotes = c->remotes[size_class];
    struct weir_remote_slot *remote;
    uint64_t block = weir__cache_take_home(c, bytes);

    if (block)
        return block;
    if (c->open[size_class])
        weir__cache_unlink(c, c->open[size_class]);
    if (c->open[size_class])
        return weir__cache_take_home(c, bytes);
    if (!remotes || remotes->count == 0)
        return 0;
    remote = &remotes->remote[--remotes->count];
    atomic_store_explicit(&remote->span->slot[remote->slot], (uint32_t)bytes, memory_order_relaxed);
    weir__sum_add(&c->requested, (int64_t)bytes);
    weir__sum_add(&c->in_use, (int64_t)remote->span->slot_units * WEIR_SLAB_UNIT);
    return weir__slab_address(remote->span, remote->slot);
}

static void add_span(struct weir_flushed *out, struct weir_slab *s) {
    s->next = out->spans;
    out->spans = s;
}

void weir__cache_drop_slab(struct weir_cache *c, struct weir_slab *s, struct weir_flushed *out) {
    weir__cache_unlink(c, s);
    c->slabs[s->size_class]--;
    weir__cache_less_idle(c, weir__slab_bytes(s));
    add_span(out, s);
}

void weir__cache_drop_slabs(struct weir_cache *c, size_t keep, int unused,
                            struct weir_flushed *out) {
    for (int i = WEIR_SLAB_CLASSES - 1; i >= 0; i--) {
        for (struct weir_slab *s = c->open[i], *next; s; s = next) {
            if (atomic_load_explicit(&c->idle, memory_order_relaxed) <= keep)
                break;
            next = s->next;
            if (s->idle == s->slots && !(unused && s->epoch == c->epoch))
                weir__cache_drop_slab(c, s, out);
        }
    }
    c->epoch += (uint32_t)unused;
}

void weir__cache_drop_inbox(struct weir_cache *c, struct weir_flushed *out) {
    for (struct weir_slab *s = weir__cache_empty_inbox(c), *next; s; s = next) {
        next = s->next;
        add_span(out, s);
    }
}

uint64_t weir__cache_take_whole(struct weir_cache *c, size_t bytes) {
    size_t whole = (bytes + WEIR_PAGE - 1) & ~(WEIR_PAGE - 1);
    int most = c->room == UINT64_MAX || whole <= REUSED_MOST ? REUSED_NEWEST : 0;

    for (struct weir_slab **at = &c->inbox, *s; (s = *at) && most > 0; at = &s->next, most--) {
        if (weir__slab_bytes(s) != whole)
            continue;
        *at = s->next;
        c->inbox_count--;
        atomic_store_explicit(&c->inbox_bytes,
                              atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) - whole,
                              memory_order_relaxed);
        atomic_store_explicit(&s->fetched_for, atomic_load_explicit(&c->id, memory_order_relaxed),
                              memory_order_relaxed);
        atomic_store_explicit(&s->asked, bytes, memory_order_relaxed);
        weir__sum_add(&c->requested, (int64_t)bytes);
        weir__sum_add(&c->in_use, (int64_t)whole);
        return weir__slab_base(s);
    }
    return 0;
}

void weir__cache_remotes(struct weir_cache *c, uint32_t least, struct weir_flushed *out) {
    for (int i = 0; i < WEIR_SLAB_CLASSES; i++) {
        if (!c->remotes[i] || c->remotes[i]->count < least)
            continue;
        c->remotes[i]->more = out->remotes;
        out->remotes = c->remotes[i];
        c->remotes[i] = NULL;
    }
}

void weir__cache_empty(struct weir_cache *c, struct weir_flushed *out) {
    weir__cache_collect(c);
    weir__cache_drop_inbox(c, out);
    weir__cache_drop_slabs(c, 0, 0, out);
    weir__cache_remotes(c, 1, out);
}

void weir__cache_disown(struct weir_cache *c) {
    for (int i = 0; i < WEIR_SLAB_CLASSES; i++) {
        while (c->open[i]) {
            struct weir_slab *s = c->open[i];

            weir__cache_unlink(c, s);
            if (s->idle == 0)
                continue;
            c->slabs[i]--;
            atomic_store_explicit(&s->cache, NULL, memory_order_relaxed);
        }
    }
}
