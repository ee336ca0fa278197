/* SPDX-License-Identifier: MIT */
/* stream_cache.c: the rare operations of a stream's cache. */
#include "cache/stream_cache.h"

#include <stdlib.h>

_Static_assert(offsetof(struct weir_cache, lock.lock) % 128 == 0,
               "threads that read whose the lock is share no cache line with its owner's hits");

_Static_assert(offsetof(struct weir_slab, next) == 64 &&
                   offsetof(struct weir_slab, posted_next) == 128,
               "a slab's record has a cache line for each who writes");

int weir__cache_open(struct weir_cache *c) {
    if (!c->store)
        c->store = calloc(1, sizeof *c->store);
    return c->store != NULL;
}

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

uint32_t weir__cache_posted(struct weir_cache *c, uint64_t *requested, uint64_t *in_use) {
    uint32_t count;

    *requested = *in_use = 0;
    if (atomic_load_explicit(&c->queue.count, memory_order_acquire) == 0)
        return 0;
    weir__lock_take(&c->queue.lock);
    *requested = c->queue.requested;
    *in_use = c->queue.in_use;
    count = atomic_load_explicit(&c->queue.count, memory_order_relaxed);
    weir__lock_give(&c->queue.lock);
    return count;
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

void weir__cache_close(struct weir_cache *c) {
    for (int i = 0; c->store && i < WEIR_SLAB_CLASSES; i++)
        free(c->store->small[i].remotes);
    free(c->store);
    c->store = NULL;
}

static void count_slabs(struct weir_cache *c, const struct weir_slab *slab, int more) {
    _Atomic uint32_t *slabs = &c->store->small[slab->size_class].slabs;

    atomic_store_explicit(slabs, atomic_load_explicit(slabs, memory_order_relaxed) + (uint32_t)more,
                          memory_order_relaxed);
}

void weir__cache_add_slab(struct weir_cache *c, struct weir_slab *slab) {
    atomic_store_explicit(&slab->cache, c, memory_order_relaxed);
    slab->epoch = c->epoch;
    count_slabs(c, slab, 1);
    weir__cache_link(c, slab);
    weir__cache_more_idle(c, weir__slab_bytes(slab));
}

int weir__cache_remote_room(struct weir_cache *c, unsigned size_class) {
    struct weir_cache_class *k = &c->store->small[size_class];
    uint32_t room = k->remotes ? k->remotes->room * 2 : WEIR_CACHE_REMOTES;
    struct weir_remote_slots *remotes;

    /* unreached: there is room, which another thread must have made since the caller found none */
    if (k->remotes && k->remotes->count < k->remotes->room)
        return 1;
    remotes = realloc(k->remotes, sizeof *remotes + room * sizeof remotes->remote[0]);
    if (!remotes)
        return 0;
    if (!k->remotes)
        *remotes = (struct weir_remote_slots){0};
    remotes->room = room;
    k->remotes = remotes;
    return 1;
}

uint64_t weir__cache_take_further(struct weir_cache *c, size_t bytes) {
    unsigned size_class = weir__slab_class(bytes);
    struct weir_remote_slots *remotes = c->store->small[size_class].remotes;
    struct weir_remote_slot *remote;
    uint64_t block = weir__cache_take_home(c, bytes);

    if (block)
        return block;
    if (c->store->open[size_class])
        weir__cache_unlink(c, c->store->open[size_class]);
    if (c->store->open[size_class])
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

/* At most LOOKED_AT slabs are visited; the result holds for a LOOK_PART-th of them, counted in slabs. */
enum { LOOKED_AT = 4096, LOOK_PART = 16 };

void weir__cache_drop_slab(struct weir_cache *c, struct weir_slab *s, struct weir_flushed *out) {
    weir__cache_unlink(c, s);
    count_slabs(c, s, -1);
    weir__cache_less_idle(c, weir__slab_bytes(s));
    add_span(out, s);
}

static size_t idle(const struct weir_cache *c) {
    return atomic_load_explicit(&c->idle, memory_order_relaxed);
}

/* Removes empty slabs until at most `keep` bytes are idle. */
static void drop_slabs(struct weir_cache *c, size_t keep, struct weir_flushed *out) {
    for (int i = WEIR_SLAB_CLASSES - 1; i >= 0; i--) {
        for (struct weir_slab *s = c->store->open[i], *next; s; s = next) {
            if (idle(c) <= keep)
                return;
            next = s->next;
            if (s->idle == s->slots)
                weir__cache_drop_slab(c, s, out);
        }
    }
}

int weir__cache_is_held(struct weir_cache *c, size_t most) {
    struct weir_cache_store *store = c->store;
    int taken = weir__bias_take(&c->lock), is_held;
    unsigned looked_at = 0;
    size_t held = 0;

    if (store->held_for > 0) {
        store->held_for--;
    } else {
        for (int i = 0; i < WEIR_SLAB_CLASSES; i++)
            for (const struct weir_slab *s = store->open[i];
                 s && held < most && looked_at < LOOKED_AT; s = s->next, looked_at++)
                if (s->idle < s->slots)
                    held += (size_t)s->idle * s->slot_units * WEIR_SLAB_UNIT;
        store->is_held = held >= most;
        store->held_for = looked_at / LOOK_PART;
    }
    is_held = store->is_held;
    weir__bias_give(&c->lock, taken);
    return is_held;
}

void weir__cache_drop_inbox(struct weir_cache *c, struct weir_flushed *out) {
    for (struct weir_slab *s = weir__cache_empty_inbox(c), *next; s; s = next) {
        next = s->next;
        add_span(out, s);
    }
}

void weir__cache_shrink(struct weir_cache *c, size_t keep, struct weir_flushed *out) {
    weir__cache_collect(c);
    weir__cache_drop_inbox(c, out);
    drop_slabs(c, keep, out);
}

void weir__cache_expire(struct weir_cache *c, struct weir_flushed *out) {
    for (int i = 0; i < WEIR_SLAB_CLASSES; i++) {
        for (struct weir_slab *s = c->store->open[i], *next; s; s = next) {
            next = s->next;
            if (s->idle == s->slots && s->epoch != c->epoch)
                weir__cache_drop_slab(c, s, out);
        }
    }
    c->epoch++;
}

void weir__cache_remotes(struct weir_cache *c, uint32_t least, struct weir_flushed *out) {
    for (int i = 0; i < WEIR_SLAB_CLASSES; i++) {
        struct weir_cache_class *k = &c->store->small[i];

        if (!k->remotes || k->remotes->count < least)
            continue;
        k->remotes->more = out->remotes;
        out->remotes = k->remotes;
        k->remotes = NULL;
    }
}

void weir__cache_disown(struct weir_cache *c) {
    for (int i = 0; i < WEIR_SLAB_CLASSES; i++) {
        while (c->store->open[i]) {
            struct weir_slab *s = c->store->open[i];

            weir__cache_unlink(c, s);
            if (s->idle == 0)
                continue;
            count_slabs(c, s, -1);
            atomic_store_explicit(&s->cache, NULL, memory_order_relaxed);
        }
    }
}

/* Ends the use of a live whole block.  Returns 1 on success, 0 if no live block starts there. */
static int end_whole(struct weir_cache *c, struct weir_slab *s, uint64_t address) {
    uint64_t asked = atomic_load_explicit(&s->asked, memory_order_relaxed);

    if (asked == 0 || address != weir__slab_base(s))
        return 0;
    atomic_store_explicit(&s->asked, 0, memory_order_relaxed);
    weir__sum_sub(&c->requested, (int64_t)asked);
    weir__sum_sub(&c->in_use, (int64_t)weir__slab_bytes(s));
    weir__cache_raise(&c->frees);
    return 1;
}

/* Returns 1 if the inbox may get that many bytes more, else 0. */
static int has_room(const struct weir_cache *c, size_t bytes, uint64_t lacked) {
    uint64_t more = atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) + bytes;

    return c->store->inbox_count < WEIR_CACHE_INBOX &&
           lacked == atomic_load_explicit(&c->lacked, memory_order_relaxed) &&
           more < atomic_load_explicit(&c->room, memory_order_relaxed);
}

int weir__cache_post(struct weir_cache *c, struct weir_slab *s, uint64_t address, uint64_t lacked) {
    struct weir_cache_store *store = c->store;
    size_t bytes = weir__slab_bytes(s);

    if (!has_room(c, bytes, lacked) || !end_whole(c, s, address))
        return 0;
    s->next = store->inbox;
    store->inbox = s;
    store->inbox_count++;
    atomic_store_explicit(&c->inbox_bytes,
                          atomic_load_explicit(&c->inbox_bytes, memory_order_relaxed) + bytes,
                          memory_order_relaxed);
    return 1;
}

struct weir_slab *weir__cache_empty_inbox(struct weir_cache *c) {
    struct weir_slab *blocks = c->store->inbox;

    c->store->inbox = NULL;
    c->store->inbox_count = 0;
    atomic_store_explicit(&c->inbox_bytes, 0, memory_order_relaxed);
    return blocks;
}

/* Frees a whole block to the inbox, or empties the inbox. */
static int put_whole(struct weir_cache *c, struct weir_slab *s, uint64_t address, uint64_t lacked,
                     struct weir_slab **out) {
    if (weir__cache_post(c, s, address, lacked))
        return WEIR_CACHE_TAKEN;
    if (!end_whole(c, s, address))
        return WEIR_CACHE_NO_BLOCK;
    s->next = weir__cache_empty_inbox(c);
    *out = s;
    return WEIR_CACHE_TAKEN;
}

/* Keeps a freed slot of another cache's slab in this cache, as a remote free. */
static int put_remote(struct weir_cache *c, struct weir_slab *s, uint64_t address) {
    struct weir_remote_slots *remotes = c->store->small[s->size_class].remotes;
    uint32_t slot = weir__slab_slot(s, address), asked;

    if (slot == WEIR_SLOT_NONE)
        return WEIR_CACHE_NO_BLOCK;
    asked = atomic_load_explicit(&s->slot[slot], memory_order_relaxed);
    if (asked & WEIR_SLOT_IDLE)
        return WEIR_CACHE_NO_BLOCK;
    if (!remotes || remotes->count == remotes->room)
        return WEIR_CACHE_FULL;
    atomic_store_explicit(&s->slot[slot], WEIR_SLOT_AWAY, memory_order_relaxed);
    remotes->remote[remotes->count++] = (struct weir_remote_slot){s, slot};
    weir__sum_sub(&c->requested, (int64_t)asked);
    weir__sum_sub(&c->in_use, (int64_t)s->slot_units * WEIR_SLAB_UNIT);
    weir__cache_raise(&c->frees);
    return WEIR_CACHE_TAKEN;
}

int weir__cache_put(struct weir_cache *c, struct weir_slab *s, uint64_t address, uint64_t lacked,
                    struct weir_slab **out) {
    if (weir__cache_put_plain(c, s, address))
        return WEIR_CACHE_TAKEN;
    if (!s->slot_units)
        return put_whole(c, s, address, lacked, out);
    if (atomic_load_explicit(&s->cache, memory_order_relaxed) == c)
        return WEIR_CACHE_NO_BLOCK;
    return put_remote(c, s, address);
}
