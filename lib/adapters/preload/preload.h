/* SPDX-License-Identifier: MIT */
/* preload.h: the types and functions that the files of the preload library share. doc/design.md (Drop-in) explains the
 * structure.
 *
 * Glossary
 *   pool     a memory pool of the program, which the driver has made and knows
 *   served   an allocator of weir, and the pool or the plain memory of a device that it replaces
 *   left     said of a request or a pool that weir leaves to the driver
 *   refused  neither served nor left: the device does not have what the settings require
 *   inside   said of a thread that runs one of these functions for the program.  The thread's own calls, and those that
 *            the driver makes for it, go to the driver (interpose.h)
 *
 * preload_requests.c serves requests, preload_frees.c frees, preload_pointers.c queries of pointers,
 * preload_pool_calls.c calls of memory pools, preload_contexts.c contexts and captures.
 *
 * Pools are in lists that only grow.  Served allocators are in a table whose entries are only added, or reused after a
 * loss.  So threads read both without a lock, and neither is ever freed.  Functions are called inside unless their
 * comments say otherwise.
 *
 * This file must not know how an allocator works or how a call gets here.
 */
#ifndef WEIR_PRELOAD_H
#define WEIR_PRELOAD_H

#include <stdatomic.h>

#include <weir/weir.h>

#include "adapters/interpose/interpose.h"
#include "api/drop_in.h"
#include "api/show.h"
#include "ipc/group.h"

enum {
    WEIR_MOST_SERVED = 256,
    WEIR_DEVICE_TEXT = 16 /* "cuda:63" */
};

enum weir_served_state {
    WEIR_SERVED_LIVE,
    WEIR_SERVED_ENDING, /* its pool is destroyed, but some of its blocks are live */
    WEIR_SERVED_SPARE,  /* no block lives: the device's next pool may reuse it */
    WEIR_SERVED_LOST    /* the allocator was lost with the device's context */
};

/* The reasons why requests are left to the driver: properties of their pools, or other reasons.  X(name, text). */
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
    WEIR_LEFT_NOT, /* the pool is served, or the reason was reported at once */
#define WEIR_LEFT_REASON(name, text) WEIR_LEFT_##name,
    WEIR_LEFT_REASONS(WEIR_LEFT_REASON)
#undef WEIR_LEFT_REASON
        WEIR_LEFT_COUNT
};

/* The properties of a pool that its allocator must have. */
struct weir_pool_kind {
    size_t most;      /* the most bytes that the pool may hold, or 0 */
    int decompresses; /* the memory can be used for hardware decompression, too */
};

struct weir_served {
    weir_allocator *allocator;
    int device;
    int is_plain;    /* set if the allocator serves cuMemAlloc */
    int learns;      /* set if the allocator writes a profile at the end */
    int needs_notes; /* set if the allocator does not know its blocks */
    int needs_sums;  /* set if the allocator cannot restart its peak: this library keeps both */
    struct weir_pool_kind kind;
    _Atomic int state;
    _Atomic int is_stuck;       /* lost during a call, which may hold the locks for ever */
    uint64_t opened;            /* a bit for each other device with access; guarded by the lock */
    _Atomic(CUmemoryPool) pool; /* the pool that the allocator serves or served; NULL: none */
    CUcontext context;          /* the device's primary context */
    CUstream apart;             /* a stream without work in that context; NULL: none yet */
    char device_text[WEIR_DEVICE_TEXT];
    char engine[WEIR_SHOW_WORD];      /* the word of the engine, such as "mapped" */
    _Atomic uint64_t used, used_peak; /* requested bytes, if needs_sums is set */
    /* The next two fields say from when on the peak of reserved memory is measured. */
    _Atomic uint64_t high_from;  /* the first event that counts */
    _Atomic uint64_t high_least; /* the reserved memory at that time */
};

enum weir_pool_state {
    WEIR_POOL_OPEN,   /* no request yet */
    WEIR_POOL_SERVED, /* its allocator serves it */
    WEIR_POOL_LEFT,
    WEIR_POOL_REFUSED /* its requests fail, since the device lacks memory for the settings */
};

struct weir_pool {
    _Atomic(CUmemoryPool) handle; /* NULL: the record may be reused */
    atomic_uint life;             /* counts the pools that had this record */
    int device;
    struct weir_pool_kind kind;
    int keeps_apart; /* opportunistic reuse is off, also after a reset; guarded by the lock */
    _Atomic int state;
    _Atomic int left;        /* enum weir_left: the reason, if it was not reported */
    atomic_int left_request; /* set once it had a request */
    _Atomic(struct weir_served *) served;
    _Atomic unsigned access[WEIR_MOST_DEVICES]; /* the access of other devices */
    struct weir_pool *next;
};

/* ---- preload_torch.c ------------------------------------------------------------------------------ */

/* Returns 1 if weir is the allocator of PyTorch in this process, else 0. */
int weir__torch_has_weir(void);
/* Returns the reason why weir is not PyTorch's allocator, or "" if the user need not be told. */
const char *weir__torch_why_not(void);

/* ---- preload_pools.c ------------------------------------------------------------------------------ */

/* Returns the record of a pool, or NULL if weir has not seen such a pool of the program. */
struct weir_pool *weir__pool_of(CUmemoryPool handle);
/* Returns the record of a pool, and makes it if there is none; `left` is the reason to leave the pool to the driver.
 * Returns NULL if there is no host memory. */
struct weir_pool *weir__pool_add(CUmemoryPool handle, int device, struct weir_pool_kind kind,
                                 enum weir_left left);
/* Ends the pool that had the record in that life.  Its allocator stays for live blocks.  Does nothing if the pool is
 * known to have ended: its handle may be another pool's by now. */
void weir__pool_end(struct weir_pool *p, unsigned life);
/* Returns 1 if weir remembers that the last pool with that handle has ended, else 0.  The thread need not be inside. */
int weir__pool_has_ended(CUmemoryPool handle);
/* Records the access of other devices, as far as weir has to keep it. */
CUresult weir__pool_set_access(struct weir_pool *p, const CUmemAccessDesc *access, size_t count);

/* Sets whether a stream may reuse what another stream has freed, once its work is observed to be complete.  If it may
 * not, the driver serves the pool; if the pool has an allocator already, that allocator keeps streams apart. */
void weir__pool_allow_reuse(struct weir_pool *p, int may);

/* Returns the pool that cuMemAllocAsync uses on a device; NULL: the driver will report the error. */
struct weir_pool *weir__pool_current(int device);
void weir__pool_set_current(int device, struct weir_pool *p);

/* Creates the allocator at the first request; see weir__served_of. */
struct weir_served *weir__pool_begin(struct weir_pool *p);
/* Returns the allocator for cuMemAlloc on a device; or NULL, with *state set to left or refused. */
struct weir_served *weir__served_plain(int device, int *state);
/* Returns 1 if a pool or plain memory is refused, else 0. */
int weir__any_refused(void);
/* Returns 1 if the program has requested memory of a pool or plain memory, from weir or from the driver.  Returns 0 if
 * not. */
int weir__any_asked(void);
/* Writes the profile if the allocator learns one.  Logs an error. */
void weir__served_save(struct weir_served *s);
/* Marks a device's allocators as lost before its context is reset.  Its pools begin again with their next request. */
void weir__served_lose(int device);
/* Returns the allocator's own stream, and creates it if there is none.  Returns NULL if that fails. */
CUstream weir__served_apart(struct weir_served *s);
/* Return the most bytes that were requested at once since the last restart, and restart that peak. */
uint64_t weir__served_peak(struct weir_served *s);
void weir__served_renew_peak(struct weir_served *s);
/* Return the peak of the reserved memory since the last restart, and restart it. */
uint64_t weir__served_highest_reserve(const struct weir_served *s, const weir_statistics *figures);
void weir__served_renew_reserve(struct weir_served *s);
/* Frees memory whose work is known to be complete, until at most `keep` bytes are left.  Waits for no work. */
void weir__served_trim(struct weir_served *s, size_t keep);
/* Frees the memory of an allocator whose pool is destroyed, if no block lives, for reuse by another pool. */
void weir__served_rest(struct weir_served *s);

static inline void weir__served_freed(struct weir_served *s) {
    if (__builtin_expect(
            atomic_load_explicit(&s->state, memory_order_relaxed) == WEIR_SERVED_ENDING, 0))
        weir__served_rest(s);
}

extern _Atomic(struct weir_served *) weir__served[WEIR_MOST_SERVED];
extern atomic_uint weir__served_count;

/* Return the number of served allocators, and one of them. */
static inline unsigned weir__served_known(void) {
    return atomic_load_explicit(&weir__served_count, memory_order_acquire);
}
static inline struct weir_served *weir__served_at(unsigned i) {
    return atomic_load_explicit(&weir__served[i], memory_order_acquire);
}

/* Returns the allocator of a pool, or NULL if the pool is left or refused. */
static inline struct weir_served *weir__served_of(struct weir_pool *p) {
    struct weir_served *s = atomic_load_explicit(&p->served, memory_order_acquire);

    if (__builtin_expect(s != NULL, 1))
        return s;
    return atomic_load_explicit(&p->state, memory_order_acquire) >= WEIR_POOL_LEFT
               ? NULL
               : weir__pool_begin(p);
}

/* ---- preload_streams.c ----------------------------------------------------------------------------- */

/* Returns 1 if the stream's creation was seen, else 0.  Holds a lock briefly, and calls nothing. */
int weir__stream_is_seen(CUstream stream);
/* Makes weir query every stream from now on, since a capture may begin unseen. */
void weir__streams_distrust(void);
/* Keeps threads from queries of streams while a context ends.  Returns 1; or 0 if a query still runs after a second
 * because the driver does not answer.  The caller passes the result to go_on. */
int weir__streams_hold(void);
void weir__streams_go_on(int is_held);
/* Forgets all streams of the device, which end with its context. */
void weir__streams_lose(int device);
/* Records that the program's capture on the stream has begun or ended. */
void weir__streams_capture(CUstream stream, int has_begun);

/* Set once the program has created another context than the primary ones. */
extern atomic_int weir__contexts_made;
/* The number of captures that run or are about to begin, as far as weir saw them. */
extern atomic_int weir__captures;
/* Waits until no thread queries a stream.  Called once a capture is counted, before it begins.  The thread need not be
 * inside. */
void weir__streams_await(void);
/* Queries which work is complete on the streams of the allocator's device that weir saw created, and on the thread's
 * default streams.  Returns 1 if all were idle.  Returns 0 without a query while a capture runs or may begin unseen,
 * and once streams may have ended with a context of the program. */
int weir__streams_ask(const struct weir_served *s);

/* ---- preload_report.c ----------------------------------------------------------------------------- */

/* The calls that weir did not serve. */
enum weir_unserved {
    WEIR_UNSERVED_POOL, /* a request of a pool */
    WEIR_UNSERVED_ALLOC,
    WEIR_UNSERVED_PITCH,
    WEIR_UNSERVED_MANAGED,
    WEIR_UNSERVED_CREATE,
    WEIR_UNSERVED_COUNT
};
extern _Atomic uint64_t weir__unserved[WEIR_UNSERVED_COUNT];

/* Counts a call that was not served.  The thread need not be inside. */
static inline void weir__count_unserved(enum weir_unserved which) {
    atomic_fetch_add_explicit(&weir__unserved[which], 1, memory_order_relaxed);
}

/* Counts a request that was left to the driver and served there.  `pool` is NULL if no pool is the reason. */
void weir__count_left(enum weir_left why, struct weir_pool *pool);
const char *weir__left_text(enum weir_left why);

/* Returns 1 if the variable of `weir run` is on, 0 if it is off, `standard` if it is unset or wrong. */
int weir__run_switch(const char *variable, int standard);
/* Logs a line if `weir run` is verbose. */
void weir__run_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports why a request of this thread has finally failed. */
void weir__report_oom(const struct weir_served *s);
/* Writes the reports before the process ends without its exit functions, which would write them.  If `is_sure` is set,
 * the process ends in any case: then also removes its file for `weir top` and leaves its groups. */
void weir__report_before_end(int is_sure);
/* Writes the final reports at the first request of weir or the driver that fails, since the process may end soon. */
void weir__report_failure(void);
/* Makes statistics be written at the end, since there is an allocator. */
void weir__report_due(void);

/* ---- preload_show.c ------------------------------------------------------------------------------- */

/* Lets `weir top` read this process, unless `weir run` forbids it.  Called when the first allocator is created or the
 * program allocates memory by itself. */
void weir__show_begin(void);
/* Starts a thread of the library with all signals blocked.  Returns 0 or an error number. */
int weir__start_thread(void *(*run)(void *), const char *name);
/* From weir__show_hold to weir__show_go_on no thread calls the driver for `weir top`.  This time must be short. */
void weir__show_hold(void);
void weir__show_go_on(void);
/* Does what weir__show_hold does.  Returns 1 on success, 0 if that was not possible within a second. */
int weir__show_hold_in_time(void);
/* Ends the figures for `weir top`, before the driver is unloaded or the process ends. */
void weir__show_end(void);
/* Removes this process's file at its end, without a lock or memory, but no parent's file in a child. */
void weir__show_remove(void);

/* ---- preload_trace.c ------------------------------------------------------------------------------ */

/* Begins to record events if `weir run` asks for that.  Called when the first allocator is created. */
void weir__trace_begin(void);
/* Returns 1 while events are recorded, else 0. */
int weir__trace_is_on(void);
/* Reads all figures, which may take long.  Returns 1, or 0 once recording is over. */
int weir__trace_look(void);
/* Reads the time line of an allocator, by its clock, in at most `most` parts.  Returns their number. */
struct weir_timeline_extent;
size_t weir__trace_extents(const struct weir_served *s, struct weir_timeline_extent *out,
                           size_t most);
/* Records a failed request. */
void weir__trace_refused(const struct weir_served *s, size_t bytes);
/* Writes the file of all events so far.  Called before weir__show_end. */
void weir__trace_end(void);

/* ---- blocks: preload_blocks.c ---- */

struct weir_found {
    struct weir_served *by;
    CUdeviceptr base;
    size_t bytes;
};

/* The number of the allocator that knew this thread's last block. */
extern _Thread_local unsigned weir__block_last __attribute__((tls_model("initial-exec")));
/* Set once preload_blocks.c has recorded a block, and once a block has got a number. */
extern atomic_int weir__blocks_noted, weir__blocks_numbered;

/* Finds the block of weir that contains the address.  Returns 1 if there is one, else 0. */
int weir__block_find(CUdeviceptr address, struct weir_found *found);
/* Returns the allocator in whose memory an address lies that is in no live block, or NULL.  The driver must not be
 * asked about such an address: it knows the address as a part of a larger block. */
struct weir_served *weir__block_is_none(CUdeviceptr address);
/* Records a new block of an allocator that needs notes or sums.  Returns 1 on success, 0 if there is no host memory. */
int weir__block_begin(struct weir_served *s, CUdeviceptr block, size_t bytes);
/* Called before a block is freed, and afterwards: weir__block_ended if it was freed, weir__block_goes_on if not. */
void weir__block_end(const struct weir_found *found);
void weir__block_goes_on(const struct weir_found *found);
void weir__block_ended(const struct weir_found *found);
/* Returns a number that no other block has or had, or 0 if there is no host memory. */
uint64_t weir__block_number(const struct weir_found *found);

/* ---- the program's own device memory, which weir only sees: preload_plain.c ---- */

enum { WEIR_PLAIN_CALLERS = 8, WEIR_PLAIN_NAME = 32 };

/* One request, from before the driver is called until it has returned. */
struct weir_plain {
    enum weir_group_kind kind;
    CUdevice device;
    size_t bytes;
    uint64_t began;           /* CLOCK_MONOTONIC */
    struct weir_group *group; /* the group that has counted the bytes, or NULL */
    int is_seen;              /* set if the request is the program's own */
    int has_trimmed;          /* set once weir's allocators have freed their idle memory */
};

/* Counts a request of the program; `device` -1: the current one.  Returns 1 if the driver may be called, 0 if the group
 * forbids the request, which was then reported. */
int weir__plain_begin(struct weir_plain *p, enum weir_group_kind kind, CUdevice device,
                      size_t bytes);
/* Returns 1 if the driver was out of memory, and other allocators or processes have freed some meanwhile; else 0. */
int weir__plain_may_have_room(struct weir_plain *p, CUresult result);
/* Ends a request.  `key` is the address or handle; `bytes` is the size that the driver took. */
void weir__plain_end(struct weir_plain *p, CUresult result, uint64_t key, size_t bytes);
/* Removes and returns the record of an address before the driver frees the memory, or returns NULL if there is none.
 * weir__plain_freed ends or restores the record by the driver's result. */
struct weir_plain_record;
struct weir_plain_record *weir__plain_freeing(uint64_t key);
void weir__plain_freed(struct weir_plain_record *record, uint64_t key, CUresult result);

/* Record releases, references and mappings of handles: physical memory lasts as long as any of them. */
struct weir_plain_record *weir__plain_releasing(CUmemGenericAllocationHandle handle);
void weir__plain_released(struct weir_plain_record *record, CUmemGenericAllocationHandle handle,
                          CUresult result);
void weir__plain_retained(CUmemGenericAllocationHandle handle, uint64_t address);
void weir__plain_mapped(CUmemGenericAllocationHandle handle, uint64_t address, size_t bytes);
void weir__plain_unmapped(uint64_t address, size_t bytes);

/* Returns 1 once a request was captured, else 0. */
int weir__plain_any_graphs(void);
/* Reads the memory of graphs on the device, after a launch or a trim; -1 is the current device. */
void weir__plain_look_at_graphs(CUdevice device);
/* Forgets the memory that went with a context, which may be NULL. */
void weir__plain_context_ended(CUcontext context);
/* Forgets the memory of all contexts of the device, and of its graphs. */
void weir__plain_lost(CUdevice device);

/* The memory that the program has allocated by itself now. */
struct weir_plain_caller {
    char name[WEIR_PLAIN_NAME]; /* the file name of the shared object */
    uint64_t bytes;
};
struct weir_plain_figures {
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    /* The callers with most memory; the name "" ends the list. */
    struct weir_plain_caller caller[WEIR_PLAIN_CALLERS];
};
void weir__plain_read(struct weir_plain_figures *out);

/* ---- the way in and out ---- */

static inline CUstream own(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

static inline int is_default(CUstream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* Enters a call of the program that may concern weir.  Returns 1, and the thread is inside until leave().  Returns 0 if
 * the thread is inside already, and in a child of fork, where a lock may be held by no thread. */
static inline int enter(void) {
    if (weir__inside || weir__driver_forked())
        return 0;
    weir__inside = 1;
    if (__builtin_expect(weir__interposed_passes(), 0))
        weir__streams_distrust();
    return 1;
}

static inline void leave(void) {
    weir__inside = 0;
}

/* ---- streams ---- */

/* Returns 1 if the stream belongs to another context than weir's, whose events may not order its work; else 0. */
static inline int is_apart(const struct weir_served *s, CUstream stream) {
    CUcontext context = NULL;

    if (__builtin_expect(!atomic_load_explicit(&weir__contexts_made, memory_order_relaxed), 1))
        return 0;
    if (is_default(stream))
        return REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context != s->context;
    return REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context != s->context;
}

static inline int is_any_captured(void) {
    return atomic_load_explicit(&weir__captures, memory_order_acquire) > 0;
}

/* Returns 1 if the stream is a default stream and the thread has no context.  The driver then fails, and the CUDA
 * runtime creates a context and calls again, which it would not do if weir served the call. */
__attribute__((cold)) int weir__stream_lacks_context(CUstream stream);

/* Returns 1 if the stream is being captured or the driver refuses the query, else 0. */
static inline int is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return is_any_captured() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
                                 status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Returns 1 if the pool is known to have ended, else 0.  A driver (580) returns an invalid value for a destroyed pool
 * until its memory has another use, which may be an object of weir; from then on the driver crashes. */
static inline int is_ended(CUmemoryPool pool) {
    return !weir__driver_forked() && weir__pool_has_ended(pool);
}

/* Returns 1 if the program names a pool that is known to have ended, else 0.  Called before enter(). */
static inline int has_ended(CUmemoryPool pool) {
    return !weir__inside && is_ended(pool);
}

/* ---- answers ---- */

/* Returns the result that a program gets for a status. */
CUresult weir__result_of(weir_status status);

/* ---- requests: preload_requests.c ---- */

/* Frees the idle memory of all allocators except `but` to its device; NULL means all allocators and devices.  The
 * driver frees idle memory of its pools when it runs out.  Returns 1 if any was freed, else 0. */
int weir__make_room(const struct weir_served *but);

/* ---- frees: preload_frees.c ---- */

/* Frees a block on a stream, which may be of another device. */
weir_status weir__free_block(const struct weir_found *found, CUstream stream);

#endif
