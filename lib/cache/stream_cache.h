/* SPDX-License-Identifier: MIT */
/* stream_cache.h: what is kept for one stream: idle blocks that this stream may have at once.
 *
 * A cache holds, for its stream alone: slabs for small requests, with their idle slots; the whole blocks
 * that were freed on the stream last; and remote frees, slots of other caches' slabs that were freed on this
 * stream.  Taking from it and putting into it touches nothing that another stream's thread writes.
 * cache_share.c says how much idle memory it may keep.
 *
 * The lock is biased to the thread that uses the stream.  Everything but the atomic fields lies under
 * it; nothing is called under it that may block, and no lock is taken but the remote-free queue's.
 *
 * Glossary: slab.h; and
 *   store      the idle blocks themselves; a cache has none before its stream has earned one
 *   idle       bytes in whole blocks, and in slabs of which every slot is home
 *   leaving    whole blocks that are kept no more, and wait for the stream's next miss: where no other
 *              stream could have them meanwhile, that is soon enough
 *   flushed    what was taken out of a cache to go back to the engine
 *   remote     a slot of another cache's slab that was freed on this stream
 *   queue      of remote frees: where another thread than the one that the lock is biased to leaves slots that it frees on
 *              the stream, so that it need not take the bias away: a producer and a consumer on one stream touch each
 *              other's cache lines once for a queueful
 *
 * Must not know: engines, the driver, how a stream was told from others.
 */
#ifndef WEIR_STREAM_CACHE_H
#define WEIR_STREAM_CACHE_H

#include <weir/allocator.h>

#include "cache/biased_lock.h"
#include "cache/page_map.h"
#include "cache/peak_sum.h"
#include "cache/slab.h"

enum {
    WEIR_CACHE_RECENT = 16,   /* whole blocks that are kept at most: a power of two */
    WEIR_CACHE_LEAVING = 64,  /* and those that wait for the next miss */
    WEIR_CACHE_REMOTES = 64,  /* of a class, before they are sent home */
    WEIR_CACHE_QUEUEFUL = 16, /* slots in the remote-free queue, which are worth fetching then */
    WEIR_CACHE_LOOK = 4096    /* hits between two looks at what lies unused: a power of two */
};

#define WEIR_CACHE_QUEUE_LOOK ((uint64_t)32 << 20) /* bytes in it between two looks at its owner */

struct weir_remote_slot {
    struct weir_slab *span;
    uint32_t slot;
};

/* Remote frees in a piece of host memory, which leaves the cache with them: that cannot fail. */
struct weir_remote_slots {
    struct weir_remote_slots *next, *more; /* the next batch; more of the same flush or batch */
    struct weir_fence *fence;              /* cache_remote.c's: of a batch */
    uint32_t count, room;
    struct weir_remote_slot remote[]; /* latest last */
};

struct weir_cache_class {
    _Atomic uint32_t slabs; /* all of the cache's, full ones too; read without the lock */
    struct weir_remote_slots *remotes; /* NULL: none */
};

struct weir_cache_store {
    /* Slabs with idle slots; the first serves, and may have none left. */
    struct weir_slab *open[WEIR_SLAB_CLASSES];
    struct weir_cache_class small[WEIR_SLAB_CLASSES];
    unsigned oldest, recents;          /* whole blocks: a ring from `oldest` on */
    size_t whole;                      /* bytes of them */
    unsigned unused;                   /* the oldest of them, not touched since the last look */
    uint32_t pages[WEIR_CACHE_RECENT]; /* their sizes */
    struct weir_slab *recent[WEIR_CACHE_RECENT];
    struct weir_slab *leaving; /* chained by next */
    unsigned leavings;
    int is_held;       /* what weir__cache_is_held has seen, */
    unsigned held_for; /* which holds for so many slabs more */
};

/* Everything under its own lock, which is taken under the cache's or alone; `count` is read without. */
struct weir_remote_queue {
    _Alignas(128) struct weir_lock lock;
    int open; /* the cache serves; what follows is the cache's then */
    uint64_t key, id;
    struct weir_slab *slabs;    /* with slots in it, chained by posted_next */
    _Atomic uint32_t count;     /* of these slots, */
    uint64_t requested, in_use; /* and their bytes */
    uint64_t look;              /* when these are more, the owner is looked for, */
    int64_t seen;               /* and what the cache's sum was then: it changes as he allocates */
};

/* Of `trusted': the adapter sees the stream's captures, its end, and who has its handle next. */
#define WEIR_CACHE_WATCHED (UINT32_C(1) << 31)

struct weir_cache {
    /* Guarded by the caches's lock.  (Processors fetch cache lines in pairs: what one thread's hits write
     * does not lie beside what others read.) */
    _Alignas(128) uint64_t young_id; /* whose calls are counted: */
    uint32_t young;                  /* so many */
    int is_left;                     /* 1 if a stream with its handle ended unseen */
    uint64_t visits;                 /* calls that came by the caches's lock */
    uint64_t swept;                  /* calls when it was last looked at for being silent */
    /* What the caches's sums have of it; read without the lock. */
    _Atomic int64_t told_requested, told_in_use;
    struct weir_cache *next; /* of all caches */
    uint64_t looked_ticks;   /* when it was last looked at for what lies unused */

    /* What calls on the stream read, and hardly any writes. */
    struct weir_cache_store *store; /* NULL: none yet */
    _Atomic uint64_t key;           /* by which the caches finds it; 0: none */
    _Atomic uint64_t id;            /* of the stream */
    _Atomic size_t most;            /* of idle that may be kept, */
    _Atomic size_t most_whole;      /* and of that in whole blocks: 0 until the engine is steady */
    uint64_t reclaim_epoch;         /* the caches' reclaim epoch when the cache last gave */
    _Atomic uint32_t trusted; /* bindings, and WATCHED; above 0 the driver is not asked of it */
    _Atomic int capturing;    /* the stream was being captured when it was seen last */

    /* Astride two cache lines: whose it is belongs to the first, that it is taken to the second. */
    struct weir_bias lock;

    /* What hits write, under the lock.  Atomic is what others read without it. */
    uint64_t pass; /* the reclaim epoch at which hits may be had without catching up; or 0 */
    _Atomic uint64_t hits, frees;
    _Atomic size_t idle;
    _Atomic size_t leaving;                 /* of these, in whole blocks that are leaving */
    struct weir_peak_sum requested, in_use; /* handed out less given back here: may be < 0 */

    /* Under the lock as well. */
    int serves;     /* it has a store, and all in it was freed on the stream `id` */
    int due;        /* 1: its stream's next request looks after it */
    uint32_t epoch; /* looks at what lies unused so far */
    uint32_t pins;  /* calls at work with it that have left its lock in between */
    _Atomic uint64_t deferred;
    _Atomic uint64_t misses; /* requests that it had nothing for, and that were no visits */

    struct weir_remote_queue queue;
};

/* What comes out of a cache. */
struct weir_flushed {
    struct weir_slab *spans;           /* whole idle spans, chained by next */
    struct weir_remote_slots *remotes; /* chained by more */
};

/* A thread that sees this sees what was counted before. */
static inline __attribute__((always_inline)) void weir__cache_raise(_Atomic uint64_t *counter) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_release);
}

/* A live block more. */
static inline __attribute__((always_inline)) void
weir__cache_account(struct weir_cache *c, int64_t requested, int64_t in_use) {
    weir__sum_add(&c->requested, requested);
    weir__sum_add(&c->in_use, in_use);
}

/* One less. */
static inline __attribute__((always_inline)) void
weir__cache_discount(struct weir_cache *c, int64_t requested, int64_t in_use) {
    weir__sum_sub(&c->requested, requested);
    weir__sum_sub(&c->in_use, in_use);
}

/* After a change of reclaim epoch, serves, capturing or due. */
static inline void weir__cache_pass(struct weir_cache *c) {
    int captured = atomic_load_explicit(&c->capturing, memory_order_relaxed);

    c->pass = c->serves && !captured && !c->due ? c->reclaim_epoch : 0;
}

static inline void weir__cache_due(struct weir_cache *c) {
    c->due = 1;
    c->pass = 0;
}

static inline __attribute__((always_inline)) void weir__cache_more_idle(struct weir_cache *c,
                                                                        size_t bytes) {
    size_t idle = atomic_load_explicit(&c->idle, memory_order_relaxed) + bytes;

    atomic_store_explicit(&c->idle, idle, memory_order_relaxed);
    if (__builtin_expect(idle - atomic_load_explicit(&c->leaving, memory_order_relaxed) >
                             atomic_load_explicit(&c->most, memory_order_relaxed),
                         0))
        weir__cache_due(c);
}

static inline __attribute__((always_inline)) void weir__cache_less_idle(struct weir_cache *c,
                                                                        size_t bytes) {
    atomic_store_explicit(&c->idle, atomic_load_explicit(&c->idle, memory_order_relaxed) - bytes,
                          memory_order_relaxed);
}

/* Out of the list of slabs with idle slots, and into it. */
static inline void weir__cache_unlink(struct weir_cache *c, struct weir_slab *s) {
    if (s->prev)
        s->prev->next = s->next;
    else
        c->store->open[s->size_class] = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static inline void weir__cache_link(struct weir_cache *c, struct weir_slab *s) {
    struct weir_slab **open = &c->store->open[s->size_class];

    if (*open && (*open)->idle == 0)
        weir__cache_unlink(c, *open);
    s->prev = NULL;
    s->next = *open;
    if (*open)
        (*open)->prev = s;
    *open = s;
}

/* A queueful that is worth fetching, for a request of `bytes`: each fetch moves the same few cache lines.
 * If there is less, another slab makes the next one larger. */
static inline int weir__cache_has_post(const struct weir_cache *c, size_t bytes) {
    uint32_t count = atomic_load_explicit(&c->queue.count, memory_order_relaxed);

    return count >= WEIR_CACHE_QUEUEFUL || (count > 0 && count * bytes >= WEIR_SLAB_SMALL);
}

/* Brings home what lies in the remote-free queue. */
void weir__cache_collect(struct weir_cache *c);

/* A small block as weir__cache_take_home takes one, from the next slab, or of the class's remote frees. */
uint64_t weir__cache_take_further(struct weir_cache *c, size_t bytes);

/* The last whole block that has just the pages that `bytes` need, or 0. */
uint64_t weir__cache_take_whole(struct weir_cache *c, size_t bytes);

enum weir_cache_put {
    WEIR_CACHE_TAKEN = 0,
    WEIR_CACHE_FULL,     /* there is no room for a remote free */
    WEIR_CACHE_NO_BLOCK, /* no live block starts there */
    WEIR_CACHE_ANOTHERS  /* the lock is biased to another thread, and was left to it */
};

/* Takes a live block back, which the stream will use no more.  The cache has a store.  *out, NULL
 * before: the whole blocks that the cache gives up for it, chained by next; it may be this very one.
 * With `alone` they are leaving instead, up to WEIR_CACHE_LEAVING of them. */
int weir__cache_put(struct weir_cache *c, struct weir_slab *s, uint64_t address, int alone,
                    struct weir_slab **out);

/* Takes a live whole block back as weir__cache_put does with `alone`: 1, or 0 and nothing was done. */
int weir__cache_leave(struct weir_cache *c, struct weir_slab *s, uint64_t address);

/* What lies in the remote-free queue is freed, but not yet in the cache's sums: how many, and their bytes. */
uint32_t weir__cache_posted(struct weir_cache *c, uint64_t *requested, uint64_t *in_use);
/* The remote-free queue takes what is for the cache as it is from now on: `serves`, key and id. */
void weir__cache_readdress(struct weir_cache *c);

/* The store's making and end; a store that ends is empty.  1, or 0 if host memory ran out. */
int weir__cache_open(struct weir_cache *c);
void weir__cache_close(struct weir_cache *c);

/* Adds a slab, wholly at home. */
void weir__cache_add_slab(struct weir_cache *c, struct weir_slab *slab);
/* Room for one more remote free of a class than now: 1, or 0 if host memory ran out. */
int weir__cache_remote_room(struct weir_cache *c, unsigned size_class);

/* 1 if idle slots in partly used slabs have `most` bytes or more.  Looks at some thousand slabs at most, and not at each
 * call. */
int weir__cache_is_held(struct weir_cache *c, size_t most);
/* Takes spans out until at most `keep` bytes lie idle: slabs while they are more than a quarter of
 * that, then the whole blocks that were freed first. */
void weir__cache_shrink(struct weir_cache *c, size_t keep, struct weir_flushed *out);
void weir__cache_let_go(struct weir_cache *c, struct weir_flushed *out); /* its slow half */
/* Takes those out that are leaving, and whole blocks beyond what may be kept. */
void weir__cache_drop_excess(struct weir_cache *c, struct weir_flushed *out);
/* Those that are leaving alone. */
static inline void weir__cache_drop_leaving(struct weir_cache *c, struct weir_flushed *out) {
    if (c->store->leaving)
        weir__cache_let_go(c, out);
}
/* Takes out what lay unused since the last look, and begins the next one. */
void weir__cache_expire(struct weir_cache *c, struct weir_flushed *out);
/* Takes the remote frees of the classes out that have at least `least` (> 0) of them. */
void weir__cache_remotes(struct weir_cache *c, uint32_t least, struct weir_flushed *out);
/* After shrink(0) and remote frees(1): slabs that still have live slots are nobody's from now on, as the
 * stream that their idle slots were freed on is not known any more. */
void weir__cache_disown(struct weir_cache *c);

#endif
