/* SPDX-License-Identifier: MIT */
/* preload.h: declares the types and functions that the files of the preload library share.  This library replaces the
 * driver's memory functions in an unmodified program (`weir run`).
 *
 * Terms
 *   pool          a memory pool that the driver has created for the program (CUmemoryPool)
 *   plain memory  memory that the program requests by cuMemAlloc
 *   served        an allocator of weir (struct weir_served) allocates the memory of the pool, or the plain memory
 *   fallback      the driver allocates the memory, because weir cannot
 *   refused       all requests fail, because the device cannot satisfy the user's settings
 *   lost          the CUDA context of the allocator's device was reset
 *
 * Pools and allocators are never freed, so threads read their lists and their table without a lock.
 *
 * The functions here are called between begin_serving() and end_serving(), unless a comment says otherwise.
 *
 * This file must not depend on how an allocator works, or on how weir replaces the driver's functions. */
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
    WEIR_SERVED_ENDING, /* the program has destroyed the pool, but some of its blocks are live */
    WEIR_SERVED_SPARE,  /* no block is live, and another pool may use the allocator */
    WEIR_SERVED_LOST    /* the allocator's memory was freed by a reset of the device's context */
};

/* The reasons why the driver allocates the memory of a pool.  A row of the list is X(name, text). */
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
    WEIR_FALLBACK_NOT, /* no fallback, or weir has already reported the reason */
#define WEIR_FALLBACK_REASON(name, text) WEIR_FALLBACK_##name,
    WEIR_FALLBACK_REASONS(WEIR_FALLBACK_REASON)
#undef WEIR_FALLBACK_REASON
        WEIR_FALLBACK_COUNT
};

struct weir_pool_kind {
    size_t max_bytes; /* the pool's maximum size, or 0 for no limit */
    int decompresses; /* set if the memory must support hardware decompression */
};

struct weir_served {
    weir_allocator *allocator;
    int device;
    int is_plain;      /* set if the allocator serves cuMemAlloc */
    int has_profile;   /* set if the allocator writes a profile (weir run --profile) */
    int needs_records; /* set if the preload library must record each block */
    int needs_sums;    /* set if the preload library must sum block sizes */
    struct weir_pool_kind kind;
    _Atomic int state;
    /* Set at a reset of the device, if some thread may hold a lock of the allocator for ever. */
    _Atomic int is_stuck;
    /* One bit for each other device that may access the memory.  Guarded by `lock` of preload_pools.c. */
    uint64_t peers;
    _Atomic(CUmemoryPool) pool; /* the present or last pool, or NULL */
    CUcontext context;          /* the device's primary context */
    CUstream private_stream;    /* a stream that only weir uses, or NULL */
    char device_text[WEIR_DEVICE_TEXT];
    char engine[WEIR_SHOW_WORD]; /* such as "mapped" */
    /* The requested bytes of live blocks, and their peak.  Used only if `needs_sums` is set. */
    _Atomic uint64_t used, used_peak;
    /* The number of the first event after the last restart of the peak of reserved bytes, or 0 without a restart. */
    _Atomic uint64_t restart_event;
    _Atomic uint64_t restart_reserved; /* the reserved bytes at the restart */
};

enum weir_pool_state {
    WEIR_POOL_OPEN, /* the program has not allocated from the pool yet */
    WEIR_POOL_SERVED,
    WEIR_POOL_BY_DRIVER,
    WEIR_POOL_REFUSED /* all requests fail */
};

struct weir_pool {
    _Atomic(CUmemoryPool) handle; /* NULL if the record is unused */
    atomic_uint generation;       /* the number of pools that have used this record */
    int device;
    struct weir_pool_kind kind;
    /* Set while no stream may reuse memory that another stream has freed.  Guarded by `lock` of preload_pools.c. */
    int forbids_opportunistic;
    _Atomic int state;
    _Atomic int fallback;       /* enum weir_fallback */
    atomic_int has_fallen_back; /* set once the driver has served a request in place of weir */
    _Atomic(struct weir_served *) served;
    /* The rights of every other device to access the pool's memory. */
    _Atomic unsigned access[WEIR_MOST_DEVICES];
    struct weir_pool *next;
};

/* ---- preload_torch.c ------------------------------------------------------------------------------ */

int weir__torch_has_weir(void);
/* Returns a text that tells why PyTorch does not use weir, or "" if there is nothing to report. */
const char *weir__torch_reason_unused(void);

/* ---- preload_pools.c ------------------------------------------------------------------------------ */

/* Returns the pool's record, or NULL if there is none. */
struct weir_pool *weir__pool_of(CUmemoryPool handle);
/* Returns the pool's record, and creates the record if needed.  Returns NULL if there is no host memory.  `why` is the
 * reason why the driver allocates the pool's memory, or WEIR_FALLBACK_NOT. */
struct weir_pool *weir__pool_add(CUmemoryPool handle, int device, struct weir_pool_kind kind,
                                 enum weir_fallback why);
/* Records that the program has destroyed the pool.  Does nothing if p->generation is no longer `generation`. */
void weir__pool_end(struct weir_pool *p, unsigned generation);
/* Returns 1 if the program has destroyed the pool with this handle, else 0.  May be called outside begin_serving(). */
int weir__pool_has_ended(CUmemoryPool handle);
/* Changes and records which devices may access the pool's memory.  Returns the result for the program. */
CUresult weir__pool_set_access(struct weir_pool *p, const CUmemAccessDesc *access, size_t count);

/* Allows streams to reuse memory that other streams have freed if `may` is 1, else forbids this reuse. */
void weir__pool_allow_reuse(struct weir_pool *p, int may);

/* Returns the device's current pool, from which cuMemAllocAsync allocates.  Returns NULL if the driver fails. */
struct weir_pool *weir__pool_current(int device);
void weir__pool_set_current(int device, struct weir_pool *p);

/* Creates the allocator of a pool.  Only weir__served_of() calls this function. */
struct weir_served *weir__pool_begin(struct weir_pool *p);
/* Returns the allocator for cuMemAlloc on the device, or NULL and the reason in *state. */
struct weir_served *weir__served_plain(int device, int *state);
/* Returns 1 if weir rejects all requests to some pool, or all calls of cuMemAlloc on some device, else 0. */
int weir__any_refused(void);
/* Returns 1 if weir has tried to create any allocator, with or without success, else 0. */
int weir__any_allocator_tried(void);
/* Writes the allocator's profile to its file, if the user wants one (`weir run --profile`). */
void weir__served_save(struct weir_served *s);
/* Marks the device's allocators as lost before a reset of the device. */
void weir__served_mark_lost(int device);
/* Returns a stream that only weir uses.  Creates the stream at the first call.  Returns NULL if the driver fails. */
CUstream weir__served_private_stream(struct weir_served *s);
/* These functions return and restart the peaks of requested and of reserved memory. */
uint64_t weir__served_peak(struct weir_served *s);
void weir__served_restart_peak(struct weir_served *s);
uint64_t weir__served_reserve_peak(const struct weir_served *s, const weir_statistics *figures);
void weir__served_restart_reserve(struct weir_served *s);
/* Frees idle memory to the device until at most `keep` bytes are reserved.  Does not wait for streams. */
void weir__served_trim(struct weir_served *s, size_t keep);
/* Frees all memory of an allocator whose pool was destroyed.  Does nothing while the allocator has live blocks. */
void weir__served_release(struct weir_served *s);

static inline void weir__served_freed(struct weir_served *s) {
    if (__builtin_expect(
            atomic_load_explicit(&s->state, memory_order_relaxed) == WEIR_SERVED_ENDING, 0))
        weir__served_release(s);
}

extern _Atomic(struct weir_served *) weir__served[WEIR_MOST_SERVED];
extern atomic_uint weir__served_count;

static inline unsigned weir__served_known(void) {
    return atomic_load_explicit(&weir__served_count, memory_order_acquire);
}
static inline struct weir_served *weir__served_at(unsigned i) {
    return atomic_load_explicit(&weir__served[i], memory_order_acquire);
}

/* Returns the pool's allocator, created if needed, or NULL if weir does not allocate the pool's memory. */
static inline struct weir_served *weir__served_of(struct weir_pool *p) {
    struct weir_served *s = atomic_load_explicit(&p->served, memory_order_acquire);

    if (__builtin_expect(s != NULL, 1))
        return s;
    return atomic_load_explicit(&p->state, memory_order_acquire) >= WEIR_POOL_BY_DRIVER
               ? NULL
               : weir__pool_begin(p);
}

/* ---- preload_streams.c ----------------------------------------------------------------------------- */

/* Returns 1 if weir knows without a query whether the stream is captured, else 0.  Takes one lock, for a short time. */
int weir__stream_is_tracked(CUstream stream);
/* Makes all allocators query the capture state of every stream from now on. */
void weir__streams_query_all(void);
/* Stops all queries of streams.  Returns 1, or 0 after a timeout of 1 s.  The result is for weir__streams_resume(). */
int weir__streams_pause(void);
void weir__streams_resume(int is_held);
/* Removes the records of the device's streams, which the driver has destroyed with their context. */
void weir__streams_forget_device(int device);
void weir__streams_capture(CUstream stream, int has_begun);

/* Set once the program has created a context other than a device's primary context. */
extern atomic_int weir__contexts_created;
/* The number of running captures that weir has noticed, plus the captures that are about to begin. */
extern atomic_int weir__captures;
/* Waits until no thread queries streams.  Called outside begin_serving(), after weir__captures was increased. */
void weir__streams_wait_for_queries(void);
/* Returns 1 if no stream is captured, and the thread's default and the device's recorded streams are idle, else 0. */
int weir__streams_are_idle(const struct weir_served *s);

/* ---- preload_report.c ----------------------------------------------------------------------------- */

/* The kinds of requests that the driver serves instead of weir. */
enum weir_unserved {
    WEIR_UNSERVED_POOL,
    WEIR_UNSERVED_ALLOC,
    WEIR_UNSERVED_PITCH,
    WEIR_UNSERVED_MANAGED,
    WEIR_UNSERVED_CREATE,
    WEIR_UNSERVED_COUNT
};
extern _Atomic uint64_t weir__unserved[WEIR_UNSERVED_COUNT];

/* Counts a request that the driver serves instead of weir.  May be called outside begin_serving(). */
static inline void weir__count_unserved(enum weir_unserved which) {
    atomic_fetch_add_explicit(&weir__unserved[which], 1, memory_order_relaxed);
}

/* Counts a request that the driver has served because weir could not.  `pool` may be NULL. */
void weir__count_fallback(enum weir_fallback why, struct weir_pool *pool);
const char *weir__fallback_text(enum weir_fallback why);

/* Reads an environment variable: 1 for on, 0 for off.  Returns `standard` if the variable is unset or invalid. */
int weir__run_switch(const char *variable, int standard);
/* Logs a line if `weir run` has the option --verbose. */
void weir__run_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports to the user why this thread's last request failed. */
void weir__report_oom(const struct weir_served *s);
/* Writes the final reports before _exit or a signal.  `is_sure` is 1 if the process is certain to end. */
void weir__report_before_end(int is_sure);
/* Writes the statistics as text at the first failed request, because the program may abort before its end. */
void weir__report_failure(void);
/* Registers the functions that write the reports at the end.  Called when weir creates the first allocator. */
void weir__report_register(void);

/* ---- preload_show.c ------------------------------------------------------------------------------- */

/* Begins to publish the memory statistics for `weir top`, unless the user has turned this off. */
void weir__show_begin(void);
/* Starts a thread with all signals blocked.  Returns 0 on success, else an error number. */
int weir__start_thread(void *(*run)(void *), const char *name);
/* These functions pause and resume the thread that publishes statistics.  A paused thread makes no driver call. */
void weir__show_pause(void);
void weir__show_resume(void);
/* Pauses the thread that publishes statistics, but waits for at most a second.  Returns 1 on success, else 0. */
int weir__show_pause_in_time(void);
/* Ends the publication of statistics before the driver is unloaded or the process ends. */
void weir__show_end(void);
/* Removes this process's file for `weir top`, except in a child of fork.  Takes no lock, and allocates nothing. */
void weir__show_remove(void);

/* ---- preload_trace.c ------------------------------------------------------------------------------ */

/* Begins to record events if an option of `weir run` needs them.  Called when weir creates the first allocator. */
void weir__trace_begin(void);
int weir__trace_is_on(void);
/* Reads the statistics and new events of all allocators, which may take long.  Returns 0 if recording has ended. */
int weir__trace_read(void);
/* Divides the allocator's life, from its creation at time 0, into at most `most` parts.  Returns their number. */
struct weir_timeline_extent;
size_t weir__trace_extents(const struct weir_served *s, struct weir_timeline_extent *out,
                           size_t most);
void weir__trace_record_failure(const struct weir_served *s, size_t bytes);
/* Ends recording, and writes all events to the user's file.  Called before weir__show_end(). */
void weir__trace_end(void);

/* ---- blocks: preload_blocks.c ---- */

struct weir_found {
    struct weir_served *by;
    CUdeviceptr base;
    size_t bytes;
};

/* The index in `weir__served` of the allocator that this thread's last allocation or free used. */
extern _Thread_local unsigned weir__block_last __attribute__((tls_model("initial-exec")));
/* Set once weir has recorded a block (weir__blocks_recorded), or a block has an id (weir__blocks_have_ids). */
extern atomic_int weir__blocks_recorded, weir__blocks_have_ids;

/* Finds the live block of weir that contains the address.  Returns 1 on success, 0 if there is no such block. */
int weir__block_find(CUdeviceptr address, struct weir_found *found);
/* Returns the allocator whose memory contains the address, or NULL.  If there is one, the caller must not pass the
 * address to the driver, which could free memory of the allocator. */
struct weir_served *weir__allocator_at(CUdeviceptr address);
/* Records a new block if the allocator needs records.  Returns 1 on success, 0 if there is no host memory. */
int weir__block_begin(struct weir_served *s, CUdeviceptr block, size_t bytes);
/* Called before a free, and followed by weir__block_ended() on success or weir__block_restore() on failure. */
void weir__block_end(const struct weir_found *found);
void weir__block_restore(const struct weir_found *found);
void weir__block_ended(const struct weir_found *found);
/* Returns an id that no other block ever has, or 0 if there is no host memory. */
uint64_t weir__block_id(const struct weir_found *found);

/* ---- preload_plain.c: driver's memory ---- */

enum { WEIR_PLAIN_CALLERS = 8, WEIR_PLAIN_NAME = 32 };

/* A request for memory that the driver serves.  The structure exists only during the program's call. */
struct weir_plain {
    enum weir_group_kind kind;
    CUdevice device;
    size_t bytes;
    uint64_t began;           /* the time by CLOCK_MONOTONIC, in ns */
    struct weir_group *group; /* the processes that share a limit, or NULL */
    int is_of_program;        /* clear if weir makes the request */
    int has_trimmed;          /* set once weir's allocators have freed their idle memory */
};

/* Called before the driver serves a request.  Returns 0 if a limit forbids it, else 1.  -1 is the current device. */
int weir__plain_begin(struct weir_plain *p, enum weir_group_kind kind, CUdevice device,
                      size_t bytes);
/* Frees memory if `result` means out of memory.  Returns 1 if the caller may repeat the driver's call, else 0. */
int weir__plain_make_room(struct weir_plain *p, CUresult result);
/* Updates the statistics after the driver's call.  `key` is the address or the handle of the new memory. */
void weir__plain_end(struct weir_plain *p, CUresult result, uint64_t key, size_t bytes);
/* weir__plain_freeing() removes a record before a free.  weir__plain_freed() deletes it or, on failure, restores it. */
struct weir_plain_record;
struct weir_plain_record *weir__plain_freeing(uint64_t key);
void weir__plain_freed(struct weir_plain_record *record, uint64_t key, CUresult result);

/* These functions record the references and mappings of physical memory, which keep the memory allocated. */
struct weir_plain_record *weir__plain_releasing(CUmemGenericAllocationHandle handle);
void weir__plain_released(struct weir_plain_record *record, CUmemGenericAllocationHandle handle,
                          CUresult result);
void weir__plain_retained(CUmemGenericAllocationHandle handle, uint64_t address);
void weir__plain_mapped(CUmemGenericAllocationHandle handle, uint64_t address, size_t bytes);
void weir__plain_unmapped(uint64_t address, size_t bytes);

/* Returns 1 if the program has captured an allocation in a graph, else 0. */
int weir__plain_any_graphs(void);
/* Reads from the driver how much memory the device's graphs use.  Device -1 is the current one. */
void weir__plain_query_graphs(CUdevice device);
/* Removes the records of memory that the driver has freed with its context.  Does nothing if `context` is NULL. */
void weir__plain_context_ended(CUcontext context);
/* Removes the records of the device's memory, but not of handles, because physical memory outlives contexts. */
void weir__plain_lost(CUdevice device);

/* A library or the program, and the bytes of its live allocations from the driver. */
struct weir_plain_caller {
    char name[WEIR_PLAIN_NAME];
    uint64_t bytes;
};
struct weir_plain_figures {
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    /* The libraries with the most memory, largest first.  An entry with the name "" ends the list. */
    struct weir_plain_caller caller[WEIR_PLAIN_CALLERS];
};
void weir__plain_read(struct weir_plain_figures *out);

/* ---- executed program calls ---- */

static inline CUstream to_per_thread_stream(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

static inline int is_default_stream(CUstream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* Marks this thread, so that its driver calls go to the driver unchanged.  Returns 0 if the thread is marked already,
 * or in a child of fork, where a lock of weir may stay locked for ever. */
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

/* Returns 1 if the stream's context is not the allocator's, else 0.  Events may not order such a stream's work. */
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

/* Returns 1 if the stream is a default stream and the thread has no current context, else 0.  weir must then return an
 * error, so that the CUDA runtime creates a context and repeats the call. */
__attribute__((cold)) int weir__stream_lacks_context(CUstream stream);

/* Returns 1 if the stream is being captured or if the driver cannot answer the query, else 0. */
static inline int is_stream_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return is_any_captured() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
                                 status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Returns 1 if the program has destroyed the pool, else 0.  The driver (580) may crash in a call with a destroyed pool,
 * once the pool's host memory has been reused. */
static inline int is_ended(CUmemoryPool pool) {
    return !weir__driver_forked() && weir__pool_has_ended(pool);
}

/* Returns is_ended() for the program's calls, but always 0 for weir's calls.  Called before begin_serving(). */
static inline int has_pool_ended(CUmemoryPool pool) {
    return !weir__is_serving && is_ended(pool);
}

/* ---- requests: preload_requests.c ---- */

CUresult weir__result_of(weir_status status);

/* Frees idle memory of all allocators or, if `but` is not NULL, of the other allocators on the device of `but`.
 * Returns 1 if any memory was freed, else 0. */
int weir__make_room(const struct weir_served *but);

/* ---- frees: preload_frees.c ---- */

/* Frees a block in the order of a stream, which may belong to another device or context. */
weir_status weir__free_block(const struct weir_found *found, CUstream stream);

#endif
