/* SPDX-License-Identifier: MIT */
/* engine.h: the interface that every engine implements.
 *
 * An engine takes memory from the device, within the limit, and allocates blocks in this memory.  Each engine has its
 * own lock, so any thread may call every function except those that open and close an engine.
 *
 * Stream order.  `alloc` returns a block that may be used on the request's stream at once.  After a `free` on a
 * stream, the engine may allocate the memory on this stream again at once.  For another stream, the engine must first
 * know that all work before the free has completed, or make the other stream wait for this work.
 */
#ifndef WEIR_ENGINE_H
#define WEIR_ENGINE_H

#include <stdatomic.h>

#include <weir/allocator.h>
#include <weir/stats.h>

#include "base/bounds.h"
#include "base/counters.h"
#include "base/result.h"
#include "driver/device.h"
#include "engine/peer_access.h"
#include "engine/stream_uses.h"
#include "ipc/process_peers.h"

/* The driver grows and shrinks a CUDA memory pool in steps of this size (H200, driver 580). */
#define WEIR_POOL_UNIT ((size_t)32 << 20)
/* cuMemAlloc maps memory in pages of this size.  Several smaller blocks share a page, at multiples of 512 bytes. */
#define WEIR_DRIVER_PAGE ((size_t)2 << 20)

/* Returned by `free_batch` if the blocks are freed and an event is due, which the caller should now record. */
#define WEIR_ENGINE_DUE ((weir_status)1)

/* Values of `id` in `free_batch`: all work on the blocks has completed (OBSERVED), or the stream is unknown. */
#define WEIR_ENGINE_OBSERVED UINT64_MAX
#define WEIR_ENGINE_UNKNOWN UINT64_C(0)

/* A value of weir_request.at: any address far from all blocks, so that the program can later extend the new block. */
#define WEIR_ENGINE_FAR UINT64_MAX

/* ---- a request for memory ---------------------------------------------------------------------- */

enum {
    /* The engine calls the driver even if the device reports too little free memory: the report may be too low. */
    WEIR_REQUEST_FORCED = 1,
    /* The stream is being captured, so the block was allocated inside a CUDA graph (as a memory node). */
    WEIR_REQUEST_CAPTURED = 2,
    /* The block is a slab, which a per-stream cache cuts into small blocks.  The cache frees a slab in a call on the
     * request's stream, or after all work on the slab has completed. */
    WEIR_REQUEST_SLAB = 4
};

/* Blocks that were freed on one stream. */
struct weir_freed {
    const CUdeviceptr *block;
    size_t count;
    /* Results of the mapped and bfc engines.  `room`: the bytes that may be freed on the stream before weir must record
     * an event there.  `lacked`: the number of requests so far that found no free memory for their stream. */
    uint64_t room, lacked;
    /* The caller's counter of threads that are freeing blocks here, or NULL.  heap.c subtracts 1 after these frees. */
    _Atomic uint32_t *moving;
};

/* One request, which all layers pass by pointer, from the per-stream caches down to the choice of an address. */
struct weir_request {
    size_t bytes; /* the bytes to allocate, above 0 */
    size_t least; /* the fewest bytes that the caller accepts, or 0 if it needs all of `bytes` */
    size_t asked; /* the bytes that the program requested */
    /* The block's address, 0 for any, or WEIR_ENGINE_FAR (far from blocks).  An address in use fails the request. */
    uint64_t at;
    weir_stream stream;
    /* The stream's id, or 0 if the engine must query the id.  If `id` is not 0, the stream is not being captured. */
    uint64_t id;
    unsigned flags;
    CUdeviceptr block;
    /* Blocks that the engine frees before it allocates, or NULL.  The engine then sets freed->count to 0. */
    struct weir_freed *freed;
    int kind; /* the part of the address range for the block (WEIR_HEAP_...); set by the heap */
    int grew; /* set if reserved memory has grown */
    /* Set if the request failed without a driver call, since the device reported too little free memory. */
    int is_predicted;
    int result; /* the driver's result of the last failure */
    /* The report on a failed request, filled after all retries have failed; or NULL. */
    struct weir_failed_request *refused;
};

static inline int weir__is_failure(weir_status status) {
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

/* ---- queries about an engine's memory ----------------------------------------------------------- */

/* A block, or another range of device addresses. */
struct weir_extent {
    uint64_t base;
    size_t bytes;    /* for a live block, the bytes that the program requested */
    uint64_t stream; /* the id of the stream on which the block was allocated, or 0 */
};

/* The kinds of memory that an engine's `visit` can list. */
enum weir_visited {
    /* pieces of reserved memory, sorted by address, each of which can only be released as a whole */
    WEIR_VISIT_UNITS,
    WEIR_VISIT_BLOCKS,
    WEIR_VISIT_BLOCK_AT,  /* the live block that contains an address */
    WEIR_VISIT_REGION_AT, /* the region or superblock that contains an address */
    /* the ranges of addresses for requests with weir_request.at; only in the mapped engine */
    WEIR_VISIT_AT_ADDRESS
};

/* A physical allocation (VMM handle) that this process has exported to other processes. */
struct weir_memory_file {
    uint64_t base; /* where the physical allocation is mapped */
    size_t bytes;
    int file;      /* the exported file descriptor, open until the memory is freed */
    uint64_t name; /* a number that this process uses for no other export */
};

struct weir_memory_files {
    struct weir_memory_file *list; /* sorted by `base`; the caller frees it */
    size_t count, capacity;
};

typedef void weir__engine_visit_fn(void *context, const struct weir_extent *extent);

/* A query that lists an engine's objects of one kind.  If `show` is NULL, the engine only counts the objects. */
struct weir_visit {
    enum weir_visited what;
    uint64_t address; /* for WEIR_VISIT_BLOCK_AT and WEIR_VISIT_REGION_AT */
    weir__engine_visit_fn *show;
    void *context;
};

enum { WEIR_SURVEY_STREAMS = 16 };

/* These bits select the fields of struct weir_survey that an engine fills. */
enum {
    WEIR_SURVEY_IDLE = 1,
    WEIR_SURVEY_LARGEST = 2,
    /* queries all pending events once, then fills `frees` */
    WEIR_SURVEY_PENDING = 4
};

/* A report on an engine's memory.  The caller sets `what`, `id` and `back`, and all other fields to 0. */
struct weir_survey {
    unsigned what;
    uint64_t id; /* the caller's stream, or 0 if unknown */
    /* The cached bytes that the caller will release to the device before its next request. */
    uint64_t back;
    /* The largest free piece that the stream `id` may use, or UINT64_MAX if the engine cannot compute it. */
    uint64_t largest_free;
    /* The value of `largest_free` if all streams were idle. */
    uint64_t largest_free_at_rest;
    /* Freed bytes that other streams' work may still use; `by` lists the bytes for each such stream. */
    uint64_t pending;
    size_t streams;
    struct {
        uint64_t stream, bytes; /* 0 stands for an unknown stream or for several streams */
    } by[WEIR_SURVEY_STREAMS];
    /* The largest request that would certainly succeed, now or after OOM recovery; 0 if unknown. */
    uint64_t largest;
    /* `waiting`: the frees whose event is pending.  `silent`: the streams with frees after which there is no event. */
    struct {
        size_t waiting, silent;
    } frees;
};

/* ---- release of memory --------------------------------------------------------------------------- */

enum weir_trim_mode {
    /* Releases idle memory until at most `keep` bytes are reserved, and waits for the device if necessary. */
    WEIR_TRIM_WAIT,
    /* Records an event after the frees on `stream`, if one is due.  The stream must not be in a capture. */
    WEIR_TRIM_MAINTAIN,
    /* Makes memory that was freed on the stream `id` available to other streams.  The stream must exist and must not be
     * in a capture.  If `id` is 0, only tests the engine's lock, and returns WEIR_E_BUSY if the lock is held. */
    WEIR_TRIM_PUBLISH,
    /* Releases idle memory that stream work no longer uses, until at most `keep` bytes are reserved.  Does not wait. */
    WEIR_TRIM_COMPLETED
};

struct weir_trim {
    enum weir_trim_mode mode;
    int cause; /* the reason for the trim (WEIR_EVENT_...) */
    size_t keep;
    weir_stream stream;
    uint64_t id;
    size_t released; /* a result: the number of released bytes */
};

/* ---- an engine --------------------------------------------------------------------------------- */

/* The objects to which an engine reports growth and trims. */
struct weir_event_sink {
    struct weir_counters *counters;
    struct weir_process_peers *peers; /* other weir processes, or NULL */
    /* the reserved memory that this process last published to other weir processes */
    _Atomic uint64_t shown;
    /* Set to 1 when reserved memory grows for a request.  NULL if nothing reads the flag. */
    _Atomic int *grew;
};

enum {
    /* The driver releases memory without a wait, so the caller itself must wait for the device before `close`. */
    WEIR_ENGINE_RELEASES_ASYNC = 1,
    /* The engine itself cuts blocks from regions and orders their reuse.  Without this trait, the driver does. */
    WEIR_ENGINE_SUBALLOCATES = 2,
    /* Background growth is on (the setting grow-ahead).  The allocator sets this trait before the first request. */
    WEIR_ENGINE_GROWS_AHEAD = 4
};

struct weir_engine;
struct weir_address_table;

struct weir_engine_ops {
    /* Allocates a block.  If memory is short, returns E_NO_MEMORY or E_LIMIT at once; OOM recovery then waits. */
    weir_status (*alloc)(struct weir_engine *e, struct weir_request *r);
    /* Frees a block.  `uses` (or NULL) lists other streams that use the block.  An error leaves the block live. */
    weir_status (*free)(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                        struct weir_use_list *uses);
    /* Frees live blocks on the stream `id`.  The current call may be on another stream.  If `id` is
     * WEIR_ENGINE_OBSERVED, all work on the blocks has completed.  The pool and direct engines get no other id. */
    weir_status (*free_batch)(struct weir_engine *e, struct weir_freed *freed, uint64_t id);
    /* Grows reserved memory to `target` bytes or more, a step towards `goal`.  `cause` is a WEIR_EVENT_ value. */
    weir_status (*grow)(struct weir_engine *e, uint64_t target, uint64_t goal, int cause);
    weir_status (*trim)(struct weir_engine *e, struct weir_trim *trim);
    /* Changes a device's access to all present and future memory.  An error changes nothing. */
    weir_status (*allow)(struct weir_engine *e, const CUmemAccessDesc *access);
    /* Sets the fields of *out that the engine knows. */
    void (*figures)(struct weir_engine *e, weir_statistics *out);
    void (*survey)(struct weir_engine *e, struct weir_survey *out);
    /* Calls visit->show under the lock for each object of visit->what.  Returns their number, -1 if not supported. */
    int (*visit)(struct weir_engine *e, const struct weir_visit *visit);
    /* Releases all memory.  Unless the device is lost, the caller has freed all blocks, and no work may use them. */
    void (*close)(struct weir_engine *e);
};

/* The first member of every engine's struct.  After the engine is open, only the atomic fields change. */
struct weir_engine {
    const struct weir_engine_ops *ops;
    struct weir_device *device;
    const weir_options *options; /* the settings, with all defaults filled in */
    struct weir_event_sink *events;
    /* The number of requests that found no free memory for their stream, plus the program's signals of low memory.
     * Each large free reads this field, so requests must not write to its cache line. */
    _Atomic uint64_t lacked;
    /* The largest number of bytes that may be reserved (limit.c), or UINT64_MAX. */
    const _Atomic uint64_t *limit;
    uint64_t threshold; /* the release threshold: idle bytes that stay reserved */
    size_t least_limit; /* the smallest limit with which the engine can allocate any block, or 0 */
    /* The bytes of one step of background growth, or 0 for none.  A step holds the driver's lock for about 0.1 ms. */
    size_t step_bytes;
    unsigned traits;
    /* The driver's pool from which blocks come, or NULL.  weir cannot query whether a free in it has completed. */
    CUmemoryPool driver_pool;
    struct weir_address_table *graphs; /* the addresses of blocks inside CUDA graphs */
    /* The figures after the engine's last request.  Other threads read them without the engine's lock. */
    struct {
        _Atomic uint64_t reserved;
        /* The bytes in live blocks, and their peak.  In the pool and direct engines, the caches subtract frees here. */
        _Atomic uint64_t in_use, most_in_use;
        /* The bytes of quarantined blocks (heap.h).  No stream may reuse them before a wait for the device. */
        _Atomic uint64_t quarantined;
        /* Each block so far lies in [low, high).  Without caches, the pool and direct engines do not set the bounds. */
        _Atomic uint64_t low, high;
    } seen;
};

/* Each function opens an engine without memory.  `setup` has the settings, the device and the limit. */
weir_status weir__pool_open(const struct weir_engine *setup, struct weir_engine **out);
weir_status weir__direct_open(const struct weir_engine *setup, struct weir_engine **out);
weir_status weir__mapped_open(const struct weir_engine *setup, struct weir_engine **out);
/* For WEIR_ENGINE_BFC (regions that grow) and WEIR_ENGINE_BFC_FIXED (one region). */
weir_status weir__bfc_open(const struct weir_engine *setup, struct weir_engine **out);

/* Exports the memory of a part of a live block as the file descriptors in *out, which is empty at first.  Returns
 * E_NOT_SUPPORTED if the device cannot export memory. */
weir_status weir__mapped_share(struct weir_engine *e, uint64_t base, size_t bytes,
                               struct weir_memory_files *out);

/* ---- functions for callers of engines ---------------------------------------------------------- */

static inline weir_status weir__engine_trim(struct weir_engine *e, size_t keep, int cause,
                                            size_t *released) {
    struct weir_trim trim = {.mode = WEIR_TRIM_WAIT, .keep = keep, .cause = cause};
    weir_status status = e->ops->trim(e, &trim);

    *released = trim.released;
    return status;
}

static inline void weir__engine_maintain(struct weir_engine *e, weir_stream stream, uint64_t id) {
    (void)e->ops->trim(e,
                       &(struct weir_trim){.mode = WEIR_TRIM_MAINTAIN, .stream = stream, .id = id});
}

static inline weir_status weir__engine_publish(struct weir_engine *e, weir_stream stream,
                                               uint64_t id) {
    struct weir_trim trim = {.mode = WEIR_TRIM_PUBLISH, .stream = stream, .id = id};

    return e->ops->trim(e, &trim);
}

/* Makes freed memory usable if all work on it is complete, without a wait.  Returns the number of frees whose event has
 * not completed.  If `silent` is not NULL, sets *silent to the number of streams with frees but no later event. */
static inline size_t weir__engine_reclaim(struct weir_engine *e, size_t *silent) {
    struct weir_survey survey = {.what = WEIR_SURVEY_PENDING};

    e->ops->survey(e, &survey);
    if (silent)
        *silent = survey.frees.silent;
    return survey.frees.waiting;
}

static inline uint64_t weir__engine_reserve(struct weir_engine *e) {
    weir_statistics figures = {.size = sizeof figures};

    e->ops->figures(e, &figures);
    return figures.reserved;
}

/* Returns 0 if no block contains the address.  Needs no lock, since the bounds change before a block is returned. */
static inline int weir__engine_may_contain(const struct weir_engine *e, uint64_t address) {
    return address >= atomic_load_explicit(&e->seen.low, memory_order_relaxed) &&
           address < atomic_load_explicit(&e->seen.high, memory_order_relaxed);
}

/* Returns 1 if the engine has a live block, as far as it can determine; else 0. */
int weir__engine_has_blocks(struct weir_engine *e);
/* Finds the object of the kind `what` at an address.  Returns 1 on success, 0 if none, -1 if not supported. */
int weir__engine_find(struct weir_engine *e, enum weir_visited what, uint64_t address,
                      struct weir_extent *out);
/* Lists all objects of the kind `what` in *out, which the caller frees.  Returns their number, or 0 on failure.  If
 * the result is 0, *out is NULL. */
size_t weir__engine_list_all(struct weir_engine *e, enum weir_visited what,
                             struct weir_extent **out);

/* ---- functions for engines (engine.c) ---------------------------------------------------------- */

static inline uint64_t weir__engine_limit(const struct weir_engine *e) {
    return atomic_load_explicit(e->limit, memory_order_relaxed);
}

static inline void weir__engine_extend_bounds(struct weir_engine *e, uint64_t base, size_t bytes) {
    weir__lower_to(&e->seen.low, base);
    weir__raise_to(&e->seen.high, base + bytes);
}
/* Adds a new block to e->seen.  Called by the pool and direct engines, only with caches, which subtract the frees. */
static inline void weir__engine_count(struct weir_engine *e, const struct weir_request *r) {
    uint64_t before = atomic_fetch_add_explicit(&e->seen.in_use, r->bytes, memory_order_relaxed);

    weir__raise_to(&e->seen.most_in_use, before + r->bytes);
    weir__engine_extend_bounds(e, r->block, r->bytes);
}
/* Records a growth or a trim in the counters and, at log level info, in the log. */
void weir__engine_record(const struct weir_engine *e, int cause, int shrink, uint64_t asked,
                         uint64_t got, uint64_t stall_ns, uint64_t reserved_after);
/* The driver is slow to fail a request above this size: 0.18 s for 60 GiB that the device lacks (H200, driver 580). */
#define WEIR_ENGINE_LARGE ((uint64_t)256 << 20)
/* Returns 1, and sets r->is_predicted, if `bytes` exceeds the device's free memory plus `idle`.  Else returns 0. */
int weir__engine_predicts_failure(const struct weir_engine *e, struct weir_request *r,
                                  uint64_t bytes, uint64_t idle);
/* Calls visit->show, unless NULL, for one object.  Returns 1. */
int weir__visit_show(const struct weir_visit *visit, uint64_t base, size_t bytes);
/* Adds `bytes` to survey->pending, for freed memory that work on `stream` may still use. */
void weir__survey_add_pending(struct weir_survey *survey, uint64_t stream, uint64_t bytes);

#endif
