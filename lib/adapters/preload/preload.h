/* SPDX-License-Identifier: MIT */
/* preload.h: declares the types and functions that the files of the preload library share.  This library replaces the
 * driver's memory functions in an unmodified program (`weir run`).  doc/design.md (Drop-in) explains the structure.
 *
 * Glossary
 *   pool          a memory pool that the driver has created for the program (CUmemoryPool)
 *   plain memory  memory that the program requests by cuMemAlloc
 *   served        a pool, or the plain memory of a device, is served if an allocator of weir allocates its memory.
 *                 This allocator is a struct weir_served
 *   left          a pool or a request is left if the driver allocates its memory, because weir cannot
 *   refused       a pool or the plain memory of a device is refused if all requests fail, because the device cannot
 *                 satisfy the user's settings
 *   lost          an allocator is lost if the CUDA context of its device was reset
 *   inside        a thread is inside between begin_serving() and end_serving(), while weir executes a call of the
 *                 program.  All driver calls of such a thread go to the driver unchanged (interpose.h)
 *
 * preload_requests.c replaces the functions that allocate memory, preload_frees.c those that free memory,
 * preload_pointers.c the queries of pointers, preload_pool_calls.c the functions of memory pools, and
 * preload_contexts.c the functions that create or end contexts and captures.
 *
 * The records of pools (struct weir_pool) are in lists.  The allocators (struct weir_served) are in a table.  The
 * lists and the table only grow, and no record or allocator in them is ever freed, so threads read them without a
 * lock.  (Once the table is full, a new allocator replaces one that is lost.)
 *
 * The functions of this file must be called between begin_serving() and end_serving(), unless the comment of a
 * function says otherwise.
 *
 * This file must not depend on how an allocator works, or on how weir replaces the driver's functions.
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
    WEIR_DEVICE_TEXT = 16 /* a device's name such as "cuda:63" */
};

enum weir_served_state {
    WEIR_SERVED_LIVE,
    /* The program has destroyed the pool that uses the allocator, but some blocks of the pool are still live. */
    WEIR_SERVED_ENDING,
    WEIR_SERVED_SPARE, /* no block is live; another pool of the device may use the allocator */
    /* the device's context was reset, and with it the allocator's memory was freed */
    WEIR_SERVED_LOST
};

/* The reasons why the driver, and not weir, allocates the memory of a pool.  A row of the list is X(name, text). */
#define WEIR_FALLBACK_REASONS(X)                                                                   \
    X(MANAGED, "managed memory")                                                                   \
    X(HOST, "host memory")                                                                         \
    X(PART, "a part of a device's memory")                                                         \
    X(SHARED, "shared with other processes")                                                       \
    X(UNKNOWN, "unknown properties")                                                               \
    X(ACCESS, "access from the host")                                                              \
    X(REUSE, "no opportunistic reuse")                                                             \
    X(STREAM, "stream of another device or context")
enum weir_fallback {
    WEIR_FALLBACK_NOT, /* weir allocates the memory, or has already reported the reason */
#define WEIR_FALLBACK_REASON(name, text) WEIR_FALLBACK_##name,
    WEIR_FALLBACK_REASONS(WEIR_FALLBACK_REASON)
#undef WEIR_FALLBACK_REASON
        WEIR_FALLBACK_COUNT
};

/* The properties of a memory pool that the pool's allocator must have, too. */
struct weir_pool_kind {
    size_t max_bytes; /* the largest number of bytes that the pool may have, or 0 for no limit */
    int decompresses; /* set if the memory must support hardware decompression */
};

struct weir_served {
    weir_allocator *allocator;
    int device;
    int is_plain; /* set if the allocator allocates the memory of cuMemAlloc */
    /* set if the allocator writes a profile (weir run --profile) when the process ends */
    int has_profile;
    /* set if the preload library must record each block, because the allocator has no page map */
    int needs_records;
    int needs_sums; /* set if the preload library must sum the sizes of live blocks */
    struct weir_pool_kind kind;
    _Atomic int state;
    /* Set if the device's context was reset while a thread may have held a lock of the allocator. */
    _Atomic int is_stuck;
    /* One bit for each other device that may access the allocator's memory.  A mutex in preload_pools.c guards this
     * field. */
    uint64_t peers;
    /* The pool that uses the allocator, or that used it last, or NULL. */
    _Atomic(CUmemoryPool) pool;
    CUcontext context; /* the device's primary context, to which the allocator belongs */
    /* A stream of the primary context that only weir uses.  NULL before its first use. */
    CUstream private_stream;
    char device_text[WEIR_DEVICE_TEXT];
    char engine[WEIR_SHOW_WORD]; /* the name of weir's engine, such as "mapped" */
    /* The bytes of live blocks as the program requested them, and their peak.  Only valid if `needs_sums` is set. */
    _Atomic uint64_t used, used_peak;
    /* The program can restart the peak of reserved memory.  The next two fields describe the last restart. */
    /* the number of the allocator's first event after the restart, or 0 */
    _Atomic uint64_t restart_event;
    _Atomic uint64_t restart_reserved; /* the reserved memory at the restart, in bytes */
};

enum weir_pool_state {
    WEIR_POOL_OPEN,   /* the program has not allocated from the pool yet */
    WEIR_POOL_SERVED, /* an allocator of weir allocates the pool's memory */
    WEIR_POOL_BY_DRIVER,
    WEIR_POOL_REFUSED /* requests fail, because the device cannot satisfy the user's settings */
};

struct weir_pool {
    /* The driver's handle of the pool, or NULL if the record is unused. */
    _Atomic(CUmemoryPool) handle;
    /* the number of pools that have used this record; shows whether the record still belongs to one pool */
    atomic_uint generation;
    int device;
    struct weir_pool_kind kind;
    /* Set while the program forbids that a stream reuses memory which another stream has freed (opportunistic
     * reuse).  A reset of the device does not clear this field.  A mutex in preload_pools.c guards this field. */
    int forbids_opportunistic;
    _Atomic int state;
    /* the reason why the driver allocates the pool's memory (enum weir_fallback) */
    _Atomic int fallback;
    /* set once the driver has allocated memory of the pool because weir could not */
    atomic_int has_fallen_back;
    _Atomic(struct weir_served *) served;
    /* The rights of every other device to access the pool's memory. */
    _Atomic unsigned access[WEIR_MOST_DEVICES];
    struct weir_pool *next;
};

/* ---- preload_torch.c ------------------------------------------------------------------------------ */

/* Returns 1 if PyTorch uses weir as its allocator in this process, else 0. */
int weir__torch_has_weir(void);
/* Returns the reason why PyTorch does not use weir as its allocator, as a text for the user.  Returns "" if there is
 * nothing to report. */
const char *weir__torch_reason_unused(void);

/* ---- preload_pools.c ------------------------------------------------------------------------------ */

/* Returns weir's record of the memory pool, or NULL if there is no record. */
struct weir_pool *weir__pool_of(CUmemoryPool handle);
/* Returns weir's record of the memory pool, and creates the record if there is none.  `left` is the reason why the
 * driver allocates the pool's memory, or WEIR_FALLBACK_NOT.  Returns NULL if there is no host memory. */
struct weir_pool *weir__pool_add(CUmemoryPool handle, int device, struct weir_pool_kind kind,
                                 enum weir_fallback why);
/* Records that the program has destroyed the memory pool of the record `p`.  `generation` is the number that
 * p->generation had when the pool existed.  If p->generation is different now, another pool uses the record, and the
 * function does nothing.  The pool's allocator stays until all its blocks are freed. */
void weir__pool_end(struct weir_pool *p, unsigned generation);
/* Returns 1 if the program has destroyed the last pool with that handle, as far as weir has noticed, else 0.  May be
 * called outside begin_serving(). */
int weir__pool_has_ended(CUmemoryPool handle);
/* Gives other devices the access rights `access` to weir's memory of the pool, and stores the rights in the pool's
 * record.  Returns the driver's result, which the program gets. */
CUresult weir__pool_set_access(struct weir_pool *p, const CUmemAccessDesc *access, size_t count);

/* Sets whether a stream may reuse memory of the pool that another stream has freed, once the other stream's work is
 * complete.  If `may` is 0 and the pool has no allocator yet, the driver allocates the pool's memory from now on.
 * If `may` is 0 and the pool has an allocator, only the stream that freed memory may reuse it. */
void weir__pool_allow_reuse(struct weir_pool *p, int may);

/* Returns the device's current pool, from which cuMemAllocAsync allocates.  Returns NULL if the driver reports an
 * error; the program gets this error, too. */
struct weir_pool *weir__pool_current(int device);
void weir__pool_set_current(int device, struct weir_pool *p);

/* Creates the allocator of a pool when the program first allocates from the pool.  Only weir__served_of() calls this
 * function. */
struct weir_served *weir__pool_begin(struct weir_pool *p);
/* Returns the allocator that allocates the memory of cuMemAlloc on the device.  If there is none, returns NULL and
 * sets *state to WEIR_POOL_BY_DRIVER or WEIR_POOL_REFUSED. */
struct weir_served *weir__served_plain(int device, int *state);
/* Returns 1 if weir has let all requests of any pool, or all cuMemAlloc requests on any device, fail because the
 * device cannot satisfy the user's settings.  Otherwise returns 0. */
int weir__any_refused(void);
/* Returns 1 if weir has tried to create an allocator for a request of the program, with or without success.
 * Otherwise returns 0. */
int weir__any_allocator_tried(void);
/* If the allocator has a profile (`weir run --profile`), writes the profile to its file.  Logs an error if the write
 * fails. */
void weir__served_save(struct weir_served *s);
/* Marks all allocators of the device as lost, because the caller is about to reset the device's context.  The
 * device's pools get new allocators at their next requests. */
void weir__served_mark_lost(int device);
/* Returns the allocator's private stream, which the program does not use.  Creates the stream at the first call.
 * Returns NULL if the driver cannot create a stream. */
CUstream weir__served_private_stream(struct weir_served *s);
/* weir__served_peak() returns the peak of requested memory since the program last restarted this peak.
 * weir__served_restart_peak() restarts the peak. */
uint64_t weir__served_peak(struct weir_served *s);
void weir__served_restart_peak(struct weir_served *s);
/* weir__served_reserve_peak() returns the peak of reserved memory since the program last restarted this peak.
 * weir__served_restart_reserve() restarts the peak. */
uint64_t weir__served_reserve_peak(const struct weir_served *s, const weir_statistics *figures);
void weir__served_restart_reserve(struct weir_served *s);
/* Frees idle memory of the allocator to the device until at most `keep` bytes are reserved.  Waits for no work:
 * frees only memory that all streams have finished with. */
void weir__served_trim(struct weir_served *s, size_t keep);
/* If the allocator has no live block, frees all its memory and lets another pool use the allocator.  The caller
 * passes an allocator whose pool was destroyed. */
void weir__served_release(struct weir_served *s);

static inline void weir__served_freed(struct weir_served *s) {
    if (__builtin_expect(
            atomic_load_explicit(&s->state, memory_order_relaxed) == WEIR_SERVED_ENDING, 0))
        weir__served_release(s);
}

extern _Atomic(struct weir_served *) weir__served[WEIR_MOST_SERVED];
extern atomic_uint weir__served_count;

/* weir__served_known() returns the number of allocators in the table `weir__served`.  weir__served_at() returns
 * allocator number `i`. */
static inline unsigned weir__served_known(void) {
    return atomic_load_explicit(&weir__served_count, memory_order_acquire);
}
static inline struct weir_served *weir__served_at(unsigned i) {
    return atomic_load_explicit(&weir__served[i], memory_order_acquire);
}

/* Returns the allocator of the pool, and creates the allocator if there is none.  Returns NULL if the driver
 * allocates the pool's memory, or if all requests of the pool must fail. */
static inline struct weir_served *weir__served_of(struct weir_pool *p) {
    struct weir_served *s = atomic_load_explicit(&p->served, memory_order_acquire);

    if (__builtin_expect(s != NULL, 1))
        return s;
    return atomic_load_explicit(&p->state, memory_order_acquire) >= WEIR_POOL_BY_DRIVER
               ? NULL
               : weir__pool_begin(p);
}

/* ---- preload_streams.c ----------------------------------------------------------------------------- */

/* Returns 1 if weir has seen the program create the stream and notices all captures, so that weir need not query the
 * stream's state.  Otherwise returns 0.  Holds a lock briefly, and calls no other file. */
int weir__stream_is_tracked(CUstream stream);
/* Makes all allocators query the driver about the capture state of every stream from now on.  The caller has found
 * that the program can begin captures without weir's notice. */
void weir__streams_query_all(void);
/* Prevents other threads from querying streams while the caller ends a context.  Returns 1 on success.  Returns 0 if
 * a query has not ended after a second because the driver does not answer.  The caller passes the result to
 * weir__streams_resume() afterwards. */
int weir__streams_pause(void);
void weir__streams_resume(int is_held);
/* Removes the records of all streams of the device.  The driver has destroyed these streams with their context. */
void weir__streams_forget_device(int device);
/* Records that the program has begun or ended a capture of the stream. */
void weir__streams_capture(CUstream stream, int has_begun);

/* Set once the program has created a context that is not the primary context of a device. */
extern atomic_int weir__contexts_created;
/* The number of stream captures that run now or are about to begin, as far as weir has noticed them. */
extern atomic_int weir__captures;
/* Waits until no thread queries streams.  The caller is about to begin a capture, which a query would break, and has
 * already increased weir__captures.  May be called outside begin_serving(). */
void weir__streams_wait_for_queries(void);
/* Queries whether all streams of the allocator's device are idle: the thread's default streams, and the other
 * streams that weir saw the program create.  Returns 1 if all these streams are idle, else 0.  Returns 0 without a
 * query if a capture runs, if weir may not notice all captures, or if the program has created contexts, because the
 * end of a context destroys its streams. */
int weir__streams_are_idle(const struct weir_served *s);

/* ---- preload_report.c ----------------------------------------------------------------------------- */

/* The kinds of calls that allocate memory of the driver and not of weir. */
enum weir_unserved {
    WEIR_UNSERVED_POOL, /* a request of a memory pool */
    WEIR_UNSERVED_ALLOC,
    WEIR_UNSERVED_PITCH,
    WEIR_UNSERVED_MANAGED,
    WEIR_UNSERVED_CREATE,
    WEIR_UNSERVED_COUNT
};
extern _Atomic uint64_t weir__unserved[WEIR_UNSERVED_COUNT];

/* Counts a call that allocates memory of the driver and not of weir.  May be called outside begin_serving(). */
static inline void weir__count_unserved(enum weir_unserved which) {
    atomic_fetch_add_explicit(&weir__unserved[which], 1, memory_order_relaxed);
}

/* Counts a request of a memory pool for which the driver has allocated the memory, for the reason `why`.  `pool` is
 * the pool that caused the reason, or NULL. */
void weir__count_fallback(enum weir_fallback why, struct weir_pool *pool);
const char *weir__fallback_text(enum weir_fallback why);

/* Reads a switch that `weir run` sets as an environment variable.  Returns 1 if the switch is on, 0 if it is off.
 * Returns `standard` if the variable is unset or has an invalid value. */
int weir__run_switch(const char *variable, int standard);
/* Logs a line if the user has called `weir run` with --verbose. */
void weir__run_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports to the user why the last request of this thread failed in the allocator. */
void weir__report_oom(const struct weir_served *s);
/* Writes the final reports before the process ends without its exit functions, as by _exit.  `is_sure` is 1 if the
 * process is certain to end.  Then the function also removes the process's file for `weir top`, and removes the
 * process from groups of processes that share a limit. */
void weir__report_before_end(int is_sure);
/* Writes the statistics when a request fails for the first time, in weir or in the driver.  The program may abort
 * because of the failed request, and then could not write the statistics later. */
void weir__report_failure(void);
/* Registers the functions that write the statistics when the process ends.  Called when weir creates the first
 * allocator. */
void weir__report_register(void);

/* ---- preload_show.c ------------------------------------------------------------------------------- */

/* Lets `weir top` read the memory statistics of this process, unless an option of `weir run` forbids it.  Called
 * when weir creates the first allocator, or when the program first allocates memory without weir. */
void weir__show_begin(void);
/* Starts a thread of the preload library with all signals blocked.  Returns 0 on success, else an error number. */
int weir__start_thread(void *(*run)(void *), const char *name);
/* weir__show_pause() stops the driver calls of weir's thread for `weir top`, and weir__show_resume() permits them
 * again.  The time between the two calls must be short. */
void weir__show_pause(void);
void weir__show_resume(void);
/* Stops the driver calls of weir's thread for `weir top`, but waits for at most a second.  Returns 1 on success, 0
 * if the thread has not stopped in time. */
int weir__show_pause_in_time(void);
/* Ends the publication of memory statistics for `weir top`.  Called before the driver is unloaded or the process
 * ends. */
void weir__show_end(void);
/* Removes the file by which `weir top` reads this process.  Called when the process ends.  Takes no lock and
 * allocates nothing.  In a child of fork, does not remove the file of the parent. */
void weir__show_remove(void);

/* ---- preload_trace.c ------------------------------------------------------------------------------ */

/* Begins to record allocator events with their times if an option of `weir run` needs them.  Called when weir
 * creates the first allocator. */
void weir__trace_begin(void);
/* Returns 1 while weir records allocator events, else 0. */
int weir__trace_is_on(void);
/* Reads the present statistics and the new events of all allocators, which may take long.  Returns 1 to continue
 * recording, 0 if recording has ended. */
int weir__trace_read(void);
/* Reads the allocator's time line of memory, divided into at most `most` parts.  Times begin at the creation of the
 * allocator.  Returns the number of parts. */
struct weir_timeline_extent;
size_t weir__trace_extents(const struct weir_served *s, struct weir_timeline_extent *out,
                           size_t most);
/* Records an event for a failed request of `bytes` bytes. */
void weir__trace_record_failure(const struct weir_served *s, size_t bytes);
/* Ends the recording of events, and writes all events to the file that an option of `weir run` names.  Called before
 * weir__show_end(). */
void weir__trace_end(void);

/* ---- blocks: preload_blocks.c ---- */

struct weir_found {
    struct weir_served *by;
    CUdeviceptr base;
    size_t bytes;
};

/* The number of the allocator that contains the block which this thread allocated or freed last. */
extern _Thread_local unsigned weir__block_last __attribute__((tls_model("initial-exec")));
/* weir__blocks_recorded is set once the preload library has recorded a block, because the block's allocator has no page
 * map.  weir__blocks_have_ids is set once the preload library has given a block an id for the program. */
extern atomic_int weir__blocks_recorded, weir__blocks_have_ids;

/* Finds the live block of weir that contains the address, and describes the block in *found.  Returns 1 on success,
 * 0 if there is no such block. */
int weir__block_find(CUdeviceptr address, struct weir_found *found);
/* Returns the allocator whose memory contains the address, or NULL if there is none.  The caller has found no live
 * block at the address.  If the result is not NULL, the caller must not pass the address to the driver, because for
 * the driver the address lies in a larger live allocation. */
struct weir_served *weir__allocator_at(CUdeviceptr address);
/* Records a new block if the block's allocator cannot do so itself.  Returns 1 on success, 0 if there is no host
 * memory. */
int weir__block_begin(struct weir_served *s, CUdeviceptr block, size_t bytes);
/* The caller calls weir__block_end() before it frees a block.  After the free, it calls weir__block_ended() if the
 * block was freed, or weir__block_restore() if the free failed. */
void weir__block_end(const struct weir_found *found);
void weir__block_restore(const struct weir_found *found);
void weir__block_ended(const struct weir_found *found);
/* Returns an id of the block that no other block ever has.  Returns 0 if there is no host memory. */
uint64_t weir__block_id(const struct weir_found *found);

/* ---- memory that the program allocates without weir: preload_plain.c ---- */

enum { WEIR_PLAIN_CALLERS = 8, WEIR_PLAIN_NAME = 32 };

/* A request of the program for memory that the driver, and not weir, allocates.  The structure exists only during
 * the call. */
struct weir_plain {
    enum weir_group_kind kind;
    CUdevice device;
    size_t bytes;
    uint64_t began;           /* the time of the request by CLOCK_MONOTONIC, in ns */
    /* the group of processes that share a limit, to which the bytes were added, or NULL */
    struct weir_group *group;
    /* set if the program itself makes the request, clear if weir's own calls of the driver make it */
    int is_of_program;
    /* Set once weir's allocators have freed their idle memory for the request. */
    int has_trimmed;
};

/* Adds a request that the driver will serve to the memory statistics, and to the group of processes that share a
 * limit.  If `device` is -1, the request is for the current device.  Returns 1 if the driver may be called.  Returns
 * 0 if the limit forbids the request; the function has then reported the failure. */
int weir__plain_begin(struct weir_plain *p, enum weir_group_kind kind, CUdevice device,
                      size_t bytes);
/* If `result` means that the driver was out of memory, makes weir's allocators or other processes free memory.
 * Returns 1 if any memory was freed, so that the caller may call the driver again.  Returns 0 otherwise. */
int weir__plain_make_room(struct weir_plain *p, CUresult result);
/* Updates the memory statistics after the driver has allocated memory or failed.  `key` is the address or the handle
 * of the new memory.  `bytes` is the size that the driver has allocated. */
void weir__plain_end(struct weir_plain *p, CUresult result, uint64_t key, size_t bytes);
/* Before the driver frees memory, the caller calls weir__plain_freeing(), which removes the memory's record and
 * returns it, or returns NULL if there is no record.  After the driver's call, weir__plain_freed() deletes the
 * record if the driver has freed the memory, else restores the record. */
struct weir_plain_record;
struct weir_plain_record *weir__plain_freeing(uint64_t key);
void weir__plain_freed(struct weir_plain_record *record, uint64_t key, CUresult result);

/* The next functions record the references, mappings and releases of handles of physical memory (cuMemCreate).
 * Physical memory stays allocated as long as its handle has a reference or a mapping. */
struct weir_plain_record *weir__plain_releasing(CUmemGenericAllocationHandle handle);
void weir__plain_released(struct weir_plain_record *record, CUmemGenericAllocationHandle handle,
                          CUresult result);
void weir__plain_retained(CUmemGenericAllocationHandle handle, uint64_t address);
void weir__plain_mapped(CUmemGenericAllocationHandle handle, uint64_t address, size_t bytes);
void weir__plain_unmapped(uint64_t address, size_t bytes);

/* Returns 1 if the program has captured an allocation in a graph, else 0. */
int weir__plain_any_graphs(void);
/* Queries the driver how much memory the graphs of the device use.  Called after the launch of a graph or a trim of
 * the graphs' memory.  If `device` is -1, uses the current device. */
void weir__plain_query_graphs(CUdevice device);
/* Removes the records of memory that the driver has freed because its context was destroyed.  Does nothing if
 * `context` is NULL. */
void weir__plain_context_ended(CUcontext context);
/* Removes the records of memory in all contexts of the device, and of the memory of its graphs. */
void weir__plain_lost(CUdevice device);

/* A shared object of the program, and the bytes that this object has allocated from the driver and has not freed. */
struct weir_plain_caller {
    char name[WEIR_PLAIN_NAME]; /* the file name of the shared object */
    uint64_t bytes;
};
struct weir_plain_figures {
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    /* The shared objects with the most memory, largest first.  An entry with the name "" ends the list. */
    struct weir_plain_caller caller[WEIR_PLAIN_CALLERS];
};
void weir__plain_read(struct weir_plain_figures *out);

/* ---- begin and end of a call of the program in weir ---- */

static inline CUstream own(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

static inline int is_default_stream(CUstream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* Begins to execute a call of the program in weir.  Returns 1 on success.  Until end_serving(), all driver calls of
 * this thread go to the driver unchanged.  Returns 0 if this thread already executes a call of the program.  Also
 * returns 0 in a child of fork, where a lock may be held by a thread that does not exist in the child. */
static inline int begin_serving(void) {
    if (weir__is_serving || weir__driver_forked())
        return 0;
    weir__is_serving = 1;
    if (__builtin_expect(weir__misses_captures(), 0))
        weir__streams_query_all();
    return 1;
}

static inline void end_serving(void) {
    weir__is_serving = 0;
}

/* ---- streams ---- */

/* Returns 1 if the stream belongs to another context than the allocator, else 0.  Events of the allocator's context
 * may be unable to order work on such a stream. */
static inline int is_of_other_context(const struct weir_served *s, CUstream stream) {
    CUcontext context = NULL;

    if (__builtin_expect(!atomic_load_explicit(&weir__contexts_created, memory_order_relaxed), 1))
        return 0;
    if (is_default_stream(stream))
        return REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context != s->context;
    return REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context != s->context;
}

static inline int is_any_captured(void) {
    return atomic_load_explicit(&weir__captures, memory_order_acquire) > 0;
}

/* Returns 1 if the stream is a default stream and the thread has no current context, else 0.  The driver fails a
 * call with such a stream.  After this failure, the CUDA runtime creates a context and repeats the call.  So weir
 * must let the call fail, too. */
__attribute__((cold)) int weir__stream_lacks_context(CUstream stream);

/* Returns 1 if the stream is being captured or if the driver cannot answer the query, else 0. */
static inline int is_stream_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return is_any_captured() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
                                 status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Returns 1 if weir has noticed that the program destroyed the pool, else 0.  If the program uses a destroyed pool,
 * the driver (580) at first returns CUDA_ERROR_INVALID_VALUE, but crashes once the host memory of the pool's object
 * has been reused.  weir's own allocations of host memory can reuse this memory. */
static inline int is_ended(CUmemoryPool pool) {
    return !weir__driver_forked() && weir__pool_has_ended(pool);
}

/* Returns 1 if the program uses a pool that it has destroyed, as far as weir has noticed, else 0.  The caller has
 * not called begin_serving() yet. */
static inline int has_pool_ended(CUmemoryPool pool) {
    return !weir__is_serving && is_ended(pool);
}

/* ---- results ---- */

/* Converts a status of weir to the result code of the driver that the program gets. */
CUresult weir__result_of(weir_status status);

/* ---- requests: preload_requests.c ---- */

/* Makes the allocators of a device free their idle memory to the device, except the allocator `but`, whose device is
 * used.  If `but` is NULL, all allocators of all devices do so.  The driver, too, frees idle memory of its pools
 * when a device is out of memory.  Returns 1 if any memory was freed, else 0. */
int weir__make_room(const struct weir_served *but);

/* ---- frees: preload_frees.c ---- */

/* Frees a block in the order of the stream, which may belong to another device or context than the block. */
weir_status weir__free_block(const struct weir_found *found, CUstream stream);

#endif
