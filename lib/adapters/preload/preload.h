/* SPDX-License-Identifier: MIT */
/* preload.h: what the files of the preload library share; doc/design.md (Drop-in) tells how it is put together.
 *
 * Glossary
 *   pool     a memory pool of the program's, which the driver has made and knows
 *   served   an allocator of weir's, and for what it stands: a pool, or the plain memory of a device
 *   left     to the driver: weir does not serve it
 *   refused  neither: the device does not have what the settings ask of it
 *   inside   the thread is in one of these functions, below the program's call; what it calls, or the driver on
 *            its behalf, goes to the driver (interpose.h)
 *
 * Pools stand in lists that are only added to, served in a table of which places are only taken, or taken over from
 * what was lost, so that both are read without a lock.  Neither is ever freed.  Functions are called inside unless they
 * say otherwise.
 *
 * Must not know: how an allocator works; how a call gets here.
 */
#ifndef WEIR_PRELOAD_H
#define WEIR_PRELOAD_H

#include <stdatomic.h>

#include <weir/weir.h>

#include "adapters/interpose/interpose.h"
#include "api/show.h"

enum {
    WEIR_MOST_SERVED = 256,
    WEIR_DEVICE_TEXT = 16 /* "cuda:63" */
};

enum weir_served_state {
    WEIR_SERVED_LIVE,
    WEIR_SERVED_ENDING, /* its pool has gone, and blocks live */
    WEIR_SERVED_SPARE,  /* nothing lives: the next pool of the device may have it */
    WEIR_SERVED_LOST    /* with the device's context */
};

/* Why requests are left to the driver: what pools they are of, or what else.  X(name, text). */
#define WEIR_LEFT_REASONS(X)                                                                       \
    X(MANAGED, "managed memory")                                                                   \
    X(HOST, "host memory")                                                                         \
    X(PART, "a part of a device's memory")                                                         \
    X(SHARED, "shared with other processes")                                                       \
    X(UNKNOWN, "unknown properties")                                                               \
    X(ACCESS, "access from the host")                                                              \
    X(REUSE, "no opportunistic reuse")                                                             \
    X(STREAM, "stream of another device or context")
enum weir_left {
    WEIR_LEFT_NOT, /* it is served; or said when it was seen that it cannot be */
#define WEIR_LEFT_REASON(name, text) WEIR_LEFT_##name,
    WEIR_LEFT_REASONS(WEIR_LEFT_REASON)
#undef WEIR_LEFT_REASON
        WEIR_LEFT_COUNT
};

/* What its maker asked of a pool, and its allocator is made for. */
struct weir_pool_kind {
    size_t most;      /* bytes that it may hold; 0: any */
    int decompresses; /* its memory is for hardware decompression, too */
};

struct weir_served {
    weir_allocator *allocator;
    int device;
    int is_plain;    /* it serves cuMemAlloc */
    int learns;      /* at the end it writes what it needed: options.profile */
    int needs_notes; /* it cannot tell its blocks, */
    int needs_sums;  /* or cannot begin its peak again: both are kept here then */
    struct weir_pool_kind kind;
    _Atomic int state;
    _Atomic int is_stuck; /* lost while a call of it went on, which may have its locks for ever */
    uint64_t
        opened; /* bits of other devices that have access to its memory; guarded by that lock */
    _Atomic(CUmemoryPool) pool; /* for which it serves, or has; NULL: none */
    CUcontext context;          /* the device's primary one */
    CUstream apart; /* of its own, which runs nothing, in that context; NULL: none yet */
    char device_text[WEIR_DEVICE_TEXT];
    char engine[WEIR_SHOW_WORD];      /* of which it is: "mapped" */
    _Atomic uint64_t used, used_peak; /* requested, where it needs sums */
    /* The peak of the reserved memory since it was last begun again: */
    _Atomic uint64_t high_from;  /* the first event that counts, */
    _Atomic uint64_t high_least; /* and what was there then */
};

enum weir_pool_state {
    WEIR_POOL_OPEN,   /* no request yet */
    WEIR_POOL_SERVED, /* by its allocator */
    WEIR_POOL_LEFT,
    WEIR_POOL_REFUSED /* what the settings ask does not hold: its requests are out of memory */
};

struct weir_pool {
    _Atomic(CUmemoryPool) handle; /* NULL: the record is free for another */
    atomic_uint life;             /* which of those that had it this is */
    int device;
    struct weir_pool_kind kind;
    int keeps_apart; /* opportunistic reuse is off, also after a reset; guarded by the lock */
    _Atomic int state;
    _Atomic int left;        /* enum weir_left: why it is, if that was not said */
    atomic_int left_request; /* it had one */
    _Atomic(struct weir_served *) served;
    _Atomic unsigned access[WEIR_MOST_DEVICES]; /* that other devices have */
    struct weir_pool *next;
};

/* ---- preload_torch.c ------------------------------------------------------------------------------ */

/* 1: weir is the allocator of PyTorch in this process. */
int weir__torch_has_weir(void);
/* Why it is not, as far as that is news to the user, or "". */
const char *weir__torch_why_not(void);

/* ---- preload_pools.c ------------------------------------------------------------------------------ */

/* The record of a pool; NULL: it is none of the program's, as far as was seen. */
struct weir_pool *weir__pool_of(CUmemoryPool handle);
/* The same, made if there is none; for such a reason it is left.  NULL: no host memory. */
struct weir_pool *weir__pool_add(CUmemoryPool handle, int device, struct weir_pool_kind kind,
                                 enum weir_left left);
/* The pool that had the record in that life has gone.  Its allocator stays for the blocks that live.  Nothing if it
 * is known to have gone: its handle may be another pool's by now. */
void weir__pool_end(struct weir_pool *p, unsigned life);
/* 1 if a pool with that handle ended, as far as that is remembered, and no other has it since.  Outside too. */
int weir__pool_has_ended(CUmemoryPool handle);
/* Other devices' access is as `access` says from now on, as far as that is weir's to keep. */
CUresult weir__pool_set_access(struct weir_pool *p, const CUmemAccessDesc *access, size_t count);

/* `may`: a stream may reuse what another stream has freed, once its work is observed to be complete.  If not, the
 * driver serves the pool; if the pool has an allocator already, that one keeps streams apart. */
void weir__pool_allow_reuse(struct weir_pool *p, int may);

/* Which pool cuMemAllocAsync takes from, on a device; NULL: what the driver has against it, it says itself. */
struct weir_pool *weir__pool_current(int device);
void weir__pool_set_current(int device, struct weir_pool *p);

/* Makes the allocator at the first request; see weir__served_of. */
struct weir_served *weir__pool_begin(struct weir_pool *p);
/* That of cuMemAlloc on a device; NULL: it is left, or refused, which *state is then. */
struct weir_served *weir__served_plain(int device, int *state);
/* 1 if something is refused. */
int weir__any_refused(void);
/* 1 if anything was asked that is served, or left, or refused, or will be. */
int weir__any_asked(void);
/* Writes down what it needed, where it learns that.  What cannot be written is in weir's log. */
void weir__served_save(struct weir_served *s);
/* The context of a device is about to be reset: its pools begin again with their next request. */
void weir__served_lose(int device);
/* Its own stream, made if there is none.  NULL: it cannot be. */
CUstream weir__served_apart(struct weir_served *s);
/* The most bytes that were requested at once since that was last begun again, and beginning it again. */
uint64_t weir__served_peak(struct weir_served *s);
void weir__served_renew_peak(struct weir_served *s);
/* The same of its reserved memory. */
uint64_t weir__served_highest_reserve(const struct weir_served *s, const weir_statistics *figures);
void weir__served_renew_reserve(struct weir_served *s);
/* Gives back memory whose work is known to be complete, until at most `keep` bytes are left.  Waits for no work. */
void weir__served_trim(struct weir_served *s, size_t keep);
/* Its pool has gone: if nothing lives any more its memory goes back, and it waits for another pool. */
void weir__served_rest(struct weir_served *s);

/* A block of it was freed. */
static inline void weir__served_freed(struct weir_served *s) {
    if (__builtin_expect(
            atomic_load_explicit(&s->state, memory_order_relaxed) == WEIR_SERVED_ENDING, 0))
        weir__served_rest(s);
}

extern _Atomic(struct weir_served *) weir__served[WEIR_MOST_SERVED];
extern atomic_uint weir__served_count;

/* Those that there are. */
static inline unsigned weir__served_known(void) {
    return atomic_load_explicit(&weir__served_count, memory_order_acquire);
}
static inline struct weir_served *weir__served_at(unsigned i) {
    return atomic_load_explicit(&weir__served[i], memory_order_acquire);
}

/* The allocator of a pool, or NULL: it is left or refused. */
static inline struct weir_served *weir__served_of(struct weir_pool *p) {
    struct weir_served *s = atomic_load_explicit(&p->served, memory_order_acquire);

    if (__builtin_expect(s != NULL, 1))
        return s;
    return atomic_load_explicit(&p->state, memory_order_acquire) >= WEIR_POOL_LEFT
               ? NULL
               : weir__pool_begin(p);
}

static inline int weir__pool_is_refused(struct weir_pool *p) {
    return atomic_load_explicit(&p->state, memory_order_acquire) == WEIR_POOL_REFUSED;
}

/* ---- preload_streams.c ----------------------------------------------------------------------------- */

/* 1 of a stream whose creation was seen.  Takes a lock, briefly, and calls nothing. */
int weir__stream_is_seen(CUstream stream);
/* A capture may begin unseen: the driver is asked about every stream from now on. */
void weir__streams_distrust(void);
/* While a context ends, no thread asks about a stream.  Returns 1; or 0 if a thread still asks after a second, because
 * the driver does not answer it.  Pass the result to go_on. */
int weir__streams_hold(void);
void weir__streams_go_on(int is_held);
/* All streams of the device go with its context. */
void weir__streams_lose(int device);
/* A capture by the program has begun on the stream, or has ended. */
void weir__streams_capture(CUstream stream, int has_begun);

/* preload.c: 1 once the program has made a context of its own. */
int weir__has_contexts(void);
/* The number of captures that are under way or about to begin, as far as weir saw them. */
extern atomic_int weir__captures;
/* Called before a capture begins, once it is counted there: returns when no thread asks about a stream.  Outside
 * too. */
void weir__streams_await(void);
/* Observes which work is complete on the streams of its device whose creation was seen and on the thread's default
 * streams.  1 if all of them were idle.  0 without a question while a capture is under way or may begin unseen, and
 * once streams may have ended with a context of the program. */
int weir__streams_ask(const struct weir_served *s);

/* ---- preload_report.c ----------------------------------------------------------------------------- */

/* What was not served. */
enum weir_unserved {
    WEIR_UNSERVED_POOL, /* a request of a pool */
    WEIR_UNSERVED_ALLOC,
    WEIR_UNSERVED_PITCH,
    WEIR_UNSERVED_MANAGED,
    WEIR_UNSERVED_CREATE,
    WEIR_UNSERVED_COUNT
};
extern _Atomic uint64_t weir__unserved[WEIR_UNSERVED_COUNT];

/* Outside too. */
static inline void weir__count_unserved(enum weir_unserved which) {
    atomic_fetch_add_explicit(&weir__unserved[which], 1, memory_order_relaxed);
}

/* The driver has served a request of that pool (NULL: it is not for the pool's sake), which was left to it. */
void weir__count_left(enum weir_left why, struct weir_pool *pool);
const char *weir__left_text(enum weir_left why);

/* 1 if `weir run' was told so; `standard' where it was told nothing, or what is no switch, which is refused where
 * settings are read. */
int weir__run_switch(const char *variable, int standard);
/* A line, if `weir run' was told to be verbose. */
void weir__run_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* It has refused a request of this thread for good: says why. */
void weir__report_oom(const struct weir_served *s);
/* The process is about to end without its functions of exit: writes what they would write.  `is_sure': it does end, so
 * nothing of it stays for other processes. */
void weir__report_before_end(int is_sure);
/* A request of this thread failed, of weir or of the driver: the first time, what is written at the end is written now. */
void weir__report_failure(void);
/* The first allocator was made: statistics are due at the end. */
void weir__report_due(void);
/* How many requests were not served. */
uint64_t weir__unserved_all(void);

/* ---- preload_show.c ------------------------------------------------------------------------------- */

/* The first allocator was made, or the program took memory by itself: from now on `weir top' may look, unless `weir run' was told otherwise. */
void weir__show_begin(void);
/* A thread of the library's, with all signals blocked: 0, or what is wrong. */
int weir__start_thread(void *(*run)(void *), const char *name);
/* From hold to go on nothing is asked of the driver for those who look.  Brief. */
void weir__show_hold(void);
void weir__show_go_on(void);
/* 1, or 0: the caller has had no answer for a second, and is not waited for. */
int weir__show_hold_in_time(void);
/* The driver is about to go, or the process. */
void weir__show_end(void);
/* The process is: its file goes, without a lock or memory; nothing of another's, as in a child. */
void weir__show_remove(void);

/* ---- preload_trace.c ------------------------------------------------------------------------------ */

/* The first allocator was made: if `weir run' was told so, what happens is noted from now on. */
void weir__trace_begin(void);
/* 1 while anything is noted. */
int weir__trace_is_on(void);
/* Asks for figures, and may be long: 1, or 0: it is over. */
int weir__trace_look(void);
/* Of the memory of one that is served, in no more than so many parts, by its allocator's clock: how many there are; 0:
 * it was not asked for. */
struct weir_timeline_extent;
size_t weir__trace_extents(const struct weir_served *s, struct weir_timeline_extent *out,
                           size_t most);
/* A request was refused. */
void weir__trace_refused(const struct weir_served *s, size_t bytes);
/* Before weir__show_end: the file is written, of what was seen so far. */
void weir__trace_end(void);

#endif
