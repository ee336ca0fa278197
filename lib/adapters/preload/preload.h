/* SPDX-License-Identifier: MIT */
/* preload.h: the types and functions that the files of the preload library share.  doc/design.md (Drop-in) explains the
 * structure.
 *
 * Glossary
 *   pool          a memory pool that the driver has created for the program
 *   plain memory  memory that the program requests by cuMemAlloc
 *   served        said of a pool, or of a device's plain memory, whose requests an allocator of weir serves; also said
 *                 of that allocator (struct weir_served)
 *   left          said of a pool or a request that weir leaves to the driver
 *   refused       said of a pool or plain memory whose requests fail, because the device does not have what the user's
 *                 settings require
 *   lost          said of an allocator whose device's context was reset
 *   inside        said of a thread between begin_serving() and end_serving(), which serves a call of the program.  The thread's own
 *                 calls of the driver, and the calls that the driver makes for it, go to the driver unchanged
 *                 (interpose.h)
 *
 * preload_requests.c serves requests, preload_frees.c serves frees, preload_pointers.c serves queries of pointers,
 * preload_pool_calls.c serves calls of memory pools, and preload_contexts.c serves calls that create or end contexts
 * and captures.
 *
 * The records of pools (struct weir_pool) are in lists that only grow.  The served allocators (struct weir_served) are
 * in a table.  Entries of the table are only added, or reused after the loss of a context.  No record or served
 * allocator is ever freed, so threads read the lists and the table without a lock.  A function of this file must be
 * called between begin_serving() and end_serving(), unless the comment of the function says otherwise.
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
    WEIR_SERVED_ENDING, /* the allocator's pool is destroyed, but some blocks are live */
    WEIR_SERVED_SPARE,  /* no block is live: the device's next pool may use the allocator */
    WEIR_SERVED_LOST    /* the allocator was lost with the device's context */
};

/* The reasons why weir leaves requests to the driver.  A row of the list is X(name, text). */
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

/* The properties of a pool that an allocator must have to serve the pool. */
struct weir_pool_kind {
    size_t most;      /* the most bytes that the pool may hold, or 0 for no limit */
    int decompresses; /* set if the memory must allow hardware decompression */
};

struct weir_served {
    weir_allocator *allocator;
    int device;
    int is_plain;    /* set if the allocator serves cuMemAlloc */
    int learns;      /* set if the allocator writes a profile when the process ends */
    int needs_notes; /* set if preload_blocks.c must record the allocator's blocks */
    int needs_sums;  /* set if `used' and `used_peak' must be counted here */
    struct weir_pool_kind kind;
    _Atomic int state;
    _Atomic int is_stuck; /* set if a call on the lost allocator may still hold its locks */
    /* One bit for each other device that may access the memory.  The lock of preload_pools.c guards the field. */
    uint64_t opened;
    _Atomic(CUmemoryPool) pool; /* the pool that the allocator serves or served last, or NULL */
    CUcontext context;          /* the device's primary context */
    CUstream apart;             /* a stream of `context' without other work, or NULL so far */
    char device_text[WEIR_DEVICE_TEXT];
    char engine[WEIR_SHOW_WORD];      /* the engine's name, such as "mapped" */
    _Atomic uint64_t used, used_peak; /* requested bytes and their peak, if needs_sums is set */
    /* The next two fields describe the last restart of the peak of reserved memory. */
    _Atomic uint64_t high_from;  /* the number of the first event after the restart, or 0 */
    _Atomic uint64_t high_least; /* the reserved memory at the restart */
};

enum weir_pool_state {
    WEIR_POOL_OPEN,   /* the pool has had no request yet */
    WEIR_POOL_SERVED, /* an allocator of weir serves the pool */
    WEIR_POOL_LEFT,
    WEIR_POOL_REFUSED /* requests fail: the device cannot satisfy the settings */
};

struct weir_pool {
    _Atomic(CUmemoryPool) handle; /* NULL if the record may be reused */
    atomic_uint life;             /* the number of pools that this record has had */
    int device;
    struct weir_pool_kind kind;
    /* Set while the program forbids opportunistic reuse.  A reset of the device does not clear the field.  The lock of
     * preload_pools.c guards the field. */
    int keeps_apart;
    _Atomic int state;
    _Atomic int left;        /* a value of enum weir_left: why the pool is left */
    atomic_int left_request; /* set once the driver has served a request of the pool */
    _Atomic(struct weir_served *) served;
    _Atomic unsigned access[WEIR_MOST_DEVICES]; /* the access rights of the other devices */
    struct weir_pool *next;
};

/* ---- preload_torch.c ------------------------------------------------------------------------------ */

/* Returns 1 if weir is the allocator of PyTorch in this process, else 0. */
int weir__torch_has_weir(void);
/* Returns the reason why weir is not PyTorch's allocator, or "" if the user need not be told. */
const char *weir__torch_why_not(void);

/* ---- preload_pools.c ------------------------------------------------------------------------------ */

/* Returns the record of a pool, or NULL if there is no record with that handle. */
struct weir_pool *weir__pool_of(CUmemoryPool handle);
/* Returns the record of a pool, and creates the record if there is none.  `left` is the reason why weir leaves the pool
 * to the driver, or WEIR_LEFT_NOT.  Returns NULL if there is no host memory. */
struct weir_pool *weir__pool_add(CUmemoryPool handle, int device, struct weir_pool_kind kind,
                                 enum weir_left left);
/* Records that the program has destroyed a pool.  `life` is the value that p->life had while the pool had the record p.
 * The pool's allocator stays while it has live blocks.  Does nothing if the end of the pool is recorded already,
 * because another pool may have the record by now. */
void weir__pool_end(struct weir_pool *p, unsigned life);
/* Returns 1 if weir remembers that the last pool with that handle was destroyed, else 0.  The caller need not have
 * called begin_serving(). */
int weir__pool_has_ended(CUmemoryPool handle);
/* Gives other devices the access rights of `access` to the memory that weir has for the pool, and records the rights.
 * Returns the driver's result for the program. */
CUresult weir__pool_set_access(struct weir_pool *p, const CUmemAccessDesc *access, size_t count);

/* Sets whether a stream may reuse memory that another stream of the pool has freed, once weir has observed that the
 * other stream's work is complete.  If `may` is 0, weir leaves a pool without an allocator to the driver.  If the pool
 * has an allocator, the allocator reuses memory only on the stream that freed it. */
void weir__pool_allow_reuse(struct weir_pool *p, int may);

/* Returns the device's current pool, which cuMemAllocAsync uses.  Returns NULL if the driver names none.  In that case
 * the driver also reports the error to the program. */
struct weir_pool *weir__pool_current(int device);
void weir__pool_set_current(int device, struct weir_pool *p);

/* Creates the allocator of a pool at the pool's first request.  Called by weir__served_of alone. */
struct weir_served *weir__pool_begin(struct weir_pool *p);
/* Returns the allocator that serves cuMemAlloc on a device.  Returns NULL if there is none, and sets *state to
 * WEIR_POOL_LEFT or WEIR_POOL_REFUSED. */
struct weir_served *weir__served_plain(int device, int *state);
/* Returns 1 if weir refuses the requests of any pool, or any device's requests of plain memory, else 0. */
int weir__any_refused(void);
/* Returns 1 if the program has made a request for which weir had to create an allocator, even if weir could not create
 * it.  Returns 0 otherwise. */
int weir__any_asked(void);
/* Writes the profile of the allocator (`weir run --profile`), if the allocator has one.  Logs an error if that
 * fails. */
void weir__served_save(struct weir_served *s);
/* Marks a device's allocators as lost before the device's context is reset.  The device's pools get new allocators at
 * their next requests. */
void weir__served_lose(int device);
/* Returns the allocator's private stream, which the program does not know.  Creates the stream at the first call.
 * Returns NULL if the driver fails. */
CUstream weir__served_apart(struct weir_served *s);
/* weir__served_peak returns the peak of requested memory since the peak was last restarted.  weir__served_renew_peak
 * restarts the peak. */
uint64_t weir__served_peak(struct weir_served *s);
void weir__served_renew_peak(struct weir_served *s);
/* weir__served_highest_reserve returns the peak of reserved memory since the peak was last restarted.
 * weir__served_renew_reserve restarts the peak. */
uint64_t weir__served_highest_reserve(const struct weir_served *s, const weir_statistics *figures);
void weir__served_renew_reserve(struct weir_served *s);
/* Gives idle memory back to the device until at most `keep` bytes are reserved.  Gives back only memory whose work is
 * known to be complete, and waits for no work. */
void weir__served_trim(struct weir_served *s, size_t keep);
/* Called for an allocator whose pool is destroyed.  If no block is live, gives the allocator's memory back, and lets
 * another pool use the allocator. */
void weir__served_rest(struct weir_served *s);

static inline void weir__served_freed(struct weir_served *s) {
    if (__builtin_expect(
            atomic_load_explicit(&s->state, memory_order_relaxed) == WEIR_SERVED_ENDING, 0))
        weir__served_rest(s);
}

extern _Atomic(struct weir_served *) weir__served[WEIR_MOST_SERVED];
extern atomic_uint weir__served_count;

/* weir__served_known returns the number of served allocators, and weir__served_at returns one of them. */
static inline unsigned weir__served_known(void) {
    return atomic_load_explicit(&weir__served_count, memory_order_acquire);
}
static inline struct weir_served *weir__served_at(unsigned i) {
    return atomic_load_explicit(&weir__served[i], memory_order_acquire);
}

/* Returns the allocator of a pool, and creates the allocator if there is none.  Returns NULL if the pool is left or
 * refused. */
static inline struct weir_served *weir__served_of(struct weir_pool *p) {
    struct weir_served *s = atomic_load_explicit(&p->served, memory_order_acquire);

    if (__builtin_expect(s != NULL, 1))
        return s;
    return atomic_load_explicit(&p->state, memory_order_acquire) >= WEIR_POOL_LEFT
               ? NULL
               : weir__pool_begin(p);
}

/* ---- preload_streams.c ----------------------------------------------------------------------------- */

/* Returns 1 if weir saw the program create the stream and sees all captures, else 0.  Holds a lock briefly, and calls
 * no other file. */
int weir__stream_is_seen(CUstream stream);
/* Makes all allocators query the driver about every stream from now on, because a capture may begin that weir does not
 * see. */
void weir__streams_distrust(void);
/* Keeps other threads from queries of streams while a context ends.  Returns 1 on success.  Returns 0 if a query still
 * runs after a second because the driver does not answer.  The caller passes the result to weir__streams_go_on. */
int weir__streams_hold(void);
void weir__streams_go_on(int is_held);
/* Forgets all streams of the device, which end with its context. */
void weir__streams_lose(int device);
/* Records that the program's capture on the stream has begun or ended. */
void weir__streams_capture(CUstream stream, int has_begun);

/* Set once the program has created a context that is not a device's primary context. */
extern atomic_int weir__contexts_made;
/* The number of captures that weir has seen and that run or are about to begin. */
extern atomic_int weir__captures;
/* Waits until no thread queries streams for a trim.  Called after a capture is counted in weir__captures and before the
 * capture begins.  The caller need not have called begin_serving(). */
void weir__streams_await(void);
/* Queries whether work is complete on the thread's default streams and on the other streams of the allocator's device
 * that weir saw the program create.  Returns 1 if all these streams are idle, else 0.  Returns 0 without a query if a
 * capture runs, if captures may begin that weir does not see, or if the program has created contexts, because the end
 * of a context ends streams, too. */
int weir__streams_ask(const struct weir_served *s);

/* ---- preload_report.c ----------------------------------------------------------------------------- */

/* The calls for memory that weir leaves to the driver. */
enum weir_unserved {
    WEIR_UNSERVED_POOL, /* a request of a pool */
    WEIR_UNSERVED_ALLOC,
    WEIR_UNSERVED_PITCH,
    WEIR_UNSERVED_MANAGED,
    WEIR_UNSERVED_CREATE,
    WEIR_UNSERVED_COUNT
};
extern _Atomic uint64_t weir__unserved[WEIR_UNSERVED_COUNT];

/* Counts a call that weir did not serve.  The caller need not have called begin_serving(). */
static inline void weir__count_unserved(enum weir_unserved which) {
    atomic_fetch_add_explicit(&weir__unserved[which], 1, memory_order_relaxed);
}

/* Counts a request that weir left to the driver for the reason `why`, and that the driver has served.  `pool` is the
 * pool that caused the reason, or NULL. */
void weir__count_left(enum weir_left why, struct weir_pool *pool);
const char *weir__left_text(enum weir_left why);

/* Reads an environment variable that `weir run` sets.  Returns 1 if the variable is on, 0 if it is off, `standard` if
 * it is unset or its value is wrong. */
int weir__run_switch(const char *variable, int standard);
/* Logs a line if `weir run` is verbose. */
void weir__run_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Reports why the allocator could not serve this thread's last request. */
void weir__report_oom(const struct weir_served *s);
/* Writes the final reports before the process ends without calling its exit functions, as by _exit.  If `is_sure` is
 * set, the process is certain to end.  In that case the function also removes the file of the process for `weir top`,
 * and leaves the groups of the process. */
void weir__report_before_end(int is_sure);
/* Writes the statistics at the first failed request, whether weir or the driver fails it, because the program may abort
 * after that. */
void weir__report_failure(void);
/* Arranges that statistics are written when the process ends.  Called when the first allocator is created. */
void weir__report_due(void);

/* ---- preload_show.c ------------------------------------------------------------------------------- */

/* Lets `weir top` read the figures of this process, unless `weir run` forbids that.  Called when the first allocator is
 * created or the program allocates memory by itself. */
void weir__show_begin(void);
/* Starts a thread of the library with all signals blocked.  Returns 0 or an error number. */
int weir__start_thread(void *(*run)(void *), const char *name);
/* Between weir__show_hold and weir__show_go_on no thread calls the driver for `weir top`.  The time between the two
 * calls must be short. */
void weir__show_hold(void);
void weir__show_go_on(void);
/* Calls weir__show_hold, but waits for at most a second.  Returns 1 on success, 0 if the second is over. */
int weir__show_hold_in_time(void);
/* Stops publishing figures for `weir top`.  Called before the driver is unloaded or the process ends. */
void weir__show_end(void);
/* Removes this process's file for `weir top` when the process ends.  Takes no lock and allocates nothing.  A child of
 * fork does not remove the file of its parent. */
void weir__show_remove(void);

/* ---- preload_trace.c ------------------------------------------------------------------------------ */

/* Begins to record events over time if an option of `weir run` needs them.  Called when the first allocator is
 * created. */
void weir__trace_begin(void);
/* Returns 1 while events are recorded, else 0. */
int weir__trace_is_on(void);
/* Reads the present figures and the new events of all allocators, which may take long.  Returns 1 while recording goes
 * on, 0 once recording has ended. */
int weir__trace_look(void);
/* Reads the time line of an allocator in at most `most` parts, with times since the allocator's creation.  Returns the
 * number of parts. */
struct weir_timeline_extent;
size_t weir__trace_extents(const struct weir_served *s, struct weir_timeline_extent *out,
                           size_t most);
/* Records a failed request as an event. */
void weir__trace_refused(const struct weir_served *s, size_t bytes);
/* Ends recording, and writes all events to the file that `weir run` names.  Called before weir__show_end. */
void weir__trace_end(void);

/* ---- blocks: preload_blocks.c ---- */

struct weir_found {
    struct weir_served *by;
    CUdeviceptr base;
    size_t bytes;
};

/* The index of the served allocator that had this thread's last block. */
extern _Thread_local unsigned weir__block_last __attribute__((tls_model("initial-exec")));
/* weir__blocks_noted is set once preload_blocks.c has recorded a block.  weir__blocks_numbered is set once a block has
 * got a number. */
extern atomic_int weir__blocks_noted, weir__blocks_numbered;

/* Finds the block of weir that contains the address.  Returns 1 if there is one, else 0. */
int weir__block_find(CUdeviceptr address, struct weir_found *found);
/* Returns the allocator whose memory contains an address that is in no live block, or NULL if there is none.  The
 * caller must not pass such an address to the driver, which knows the address as a part of a larger block. */
struct weir_served *weir__block_is_none(CUdeviceptr address);
/* Records a new block if its allocator needs that (needs_notes, needs_sums).  Returns 1 on success, 0 if there is no
 * host memory. */
int weir__block_begin(struct weir_served *s, CUdeviceptr block, size_t bytes);
/* weir__block_end is called before a block is freed.  Afterwards weir__block_ended is called if the block was freed,
 * and weir__block_goes_on if the free failed. */
void weir__block_end(const struct weir_found *found);
void weir__block_goes_on(const struct weir_found *found);
void weir__block_ended(const struct weir_found *found);
/* Returns the number of a block, which no other block has or had.  Returns 0 if there is no host memory. */
uint64_t weir__block_number(const struct weir_found *found);

/* ---- memory that the program allocates without weir: preload_plain.c ---- */

enum { WEIR_PLAIN_CALLERS = 8, WEIR_PLAIN_NAME = 32 };

/* A request of the program that the driver serves.  The structure lives from before the driver's call until after
 * it. */
struct weir_plain {
    enum weir_group_kind kind;
    CUdevice device;
    size_t bytes;
    uint64_t began;           /* time by CLOCK_MONOTONIC */
    struct weir_group *group; /* the group that has counted the bytes, or NULL */
    int is_seen;              /* set if the program, not weir, makes the request */
    int has_trimmed;          /* set once weir's allocators have given back their idle memory */
};

/* Counts a request of the program before the driver's call.  The group of processes that share a limit counts it, too.
 * `device` -1 means the current device.  Returns 1 if the driver may be called.  Returns 0 if the limit forbids the
 * request, after reporting that. */
int weir__plain_begin(struct weir_plain *p, enum weir_group_kind kind, CUdevice device,
                      size_t bytes);
/* If the driver was out of memory, makes weir's allocators or other processes free memory.  Returns 1 if any memory was
 * freed, so that the driver may be called again, else 0. */
int weir__plain_may_have_room(struct weir_plain *p, CUresult result);
/* Ends a request after the driver's call.  `key` is the address or the handle of the new memory.  `bytes` is the size
 * of the memory that the driver allocated. */
void weir__plain_end(struct weir_plain *p, CUresult result, uint64_t key, size_t bytes);
/* weir__plain_freeing removes and returns the record of an address before the driver frees the memory.  It returns NULL
 * if there is no record.  weir__plain_freed deletes the record if the driver has freed the memory, else restores the
 * record. */
struct weir_plain_record;
struct weir_plain_record *weir__plain_freeing(uint64_t key);
void weir__plain_freed(struct weir_plain_record *record, uint64_t key, CUresult result);

/* These functions record the references and mappings of handles, and their releases.  Physical memory stays allocated
 * as long as its handle has a reference or a mapping. */
struct weir_plain_record *weir__plain_releasing(CUmemGenericAllocationHandle handle);
void weir__plain_released(struct weir_plain_record *record, CUmemGenericAllocationHandle handle,
                          CUresult result);
void weir__plain_retained(CUmemGenericAllocationHandle handle, uint64_t address);
void weir__plain_mapped(CUmemGenericAllocationHandle handle, uint64_t address, size_t bytes);
void weir__plain_unmapped(uint64_t address, size_t bytes);

/* Returns 1 once the program has put a request into a graph, else 0. */
int weir__plain_any_graphs(void);
/* Asks the driver how much memory the graphs of a device have.  Called after a launch or a trim.  `device` -1 means the
 * current device. */
void weir__plain_look_at_graphs(CUdevice device);
/* Removes the records of memory that the driver freed when a context ended.  Does nothing if `context` is NULL. */
void weir__plain_context_ended(CUcontext context);
/* Removes the records of memory of all contexts of a device, and of its graphs. */
void weir__plain_lost(CUdevice device);

/* The memory that the program has allocated by itself, without weir, and has not freed. */
struct weir_plain_caller {
    char name[WEIR_PLAIN_NAME]; /* the file name of the shared object */
    uint64_t bytes;
};
struct weir_plain_figures {
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    /* The callers with most memory.  The name "" ends the list. */
    struct weir_plain_caller caller[WEIR_PLAIN_CALLERS];
};
void weir__plain_read(struct weir_plain_figures *out);

/* ---- begin and end of a served call ---- */

static inline CUstream own(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)WEIR_STREAM_PER_THREAD_VALUE;
}

static inline int is_default_stream(CUstream stream) {
    return (uintptr_t)stream <= WEIR_STREAM_PER_THREAD_VALUE;
}

/* Begins to serve a call of the program.  Returns 1 on success: until end_serving(), all driver calls of the thread go to the
 * driver unchanged.  Returns 0 if the thread already serves a call.  Returns 0 also in a child of fork, where a lock
 * may be held by a thread that does not exist in the child. */
static inline int begin_serving(void) {
    if (weir__inside || weir__driver_forked())
        return 0;
    weir__inside = 1;
    if (__builtin_expect(weir__interposed_passes(), 0))
        weir__streams_distrust();
    return 1;
}

static inline void end_serving(void) {
    weir__inside = 0;
}

/* ---- streams ---- */

/* Returns 1 if the stream belongs to another context than the allocator, else 0.  Events of the allocator's context may
 * be unable to order the work of such a stream. */
static inline int is_of_other_context(const struct weir_served *s, CUstream stream) {
    CUcontext context = NULL;

    if (__builtin_expect(!atomic_load_explicit(&weir__contexts_made, memory_order_relaxed), 1))
        return 0;
    if (is_default_stream(stream))
        return REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context != s->context;
    return REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS || context != s->context;
}

static inline int is_any_captured(void) {
    return atomic_load_explicit(&weir__captures, memory_order_acquire) > 0;
}

/* Returns 1 if the stream is a default stream and the thread has no current context, else 0.  The driver fails a call
 * with such a stream.  Then the CUDA runtime creates a context and repeats the call.  If weir served the call, the
 * runtime would create no context. */
__attribute__((cold)) int weir__stream_lacks_context(CUstream stream);

/* Returns 1 if the stream is being captured or the driver refuses the query, else 0. */
static inline int is_stream_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return is_any_captured() && (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
                                 status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Returns 1 if weir knows that the pool was destroyed, else 0.  If the program uses a destroyed pool, the driver (580)
 * at first returns CUDA_ERROR_INVALID_VALUE.  Once the host memory of the pool's object is reused, which an object of
 * weir may do, the driver crashes. */
static inline int is_ended(CUmemoryPool pool) {
    return !weir__driver_forked() && weir__pool_has_ended(pool);
}

/* Returns 1 if the program uses a pool that weir knows to be destroyed, else 0.  Called before begin_serving(). */
static inline int has_pool_ended(CUmemoryPool pool) {
    return !weir__inside && is_ended(pool);
}

/* ---- results ---- */

/* Returns the driver result that the program gets for a status of weir. */
CUresult weir__result_of(weir_status status);

/* ---- requests: preload_requests.c ---- */

/* Gives back the idle memory of all allocators except `but` on the device of `but`.  If `but` is NULL, gives back the
 * idle memory of all allocators of all devices.  The driver, too, gives back idle memory of its pools when a device is
 * out of memory.  Returns 1 if any memory was given back, else 0. */
int weir__make_room(const struct weir_served *but);

/* ---- frees: preload_frees.c ---- */

/* Frees a block on a stream, which may belong to another device or context than the block. */
weir_status weir__free_block(const struct weir_found *found, CUstream stream);

#endif
