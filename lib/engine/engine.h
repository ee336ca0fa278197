/* SPDX-License-Identifier: MIT */
/* engine.h: the interface that every engine implements.
 *
 * An engine takes memory from the device and allocates blocks in it.  An engine decides how much memory it takes,
 * within the limit.  It must not depend on the allocator's life cycle, on names of settings or on other engines.  Each
 * engine has its own lock, so any thread may call every function except the functions that open and close the engine.
 *
 * Stream order.  `alloc` returns a block that may be used on the request's stream at once.  After a `free` on a
 * stream, the engine may allocate the block's memory on this stream again at once.  For a request on another stream,
 * the engine must first observe that the free has completed, or make the other stream wait for the free.
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

/* The unit in bytes by which the driver grows and shrinks a pool (measured on an H200, driver 580).  Regions of a pool
 * are multiples of this unit. */
#define WEIR_POOL_UNIT ((size_t)32 << 20)

/* The status of an engine's `give` (struct weir_engine_ops) if the blocks are freed and the stream should now record
 * an event, so that other streams can reuse the memory.  No public function returns this status. */
#define WEIR_ENGINE_DUE ((weir_status)1)

/* Values for the parameter `id` of an engine's `give`, in place of a stream's id.  OBSERVED means that the host has
 * already observed the end of all work on the blocks.  UNKNOWN means that no event will ever report the end of this
 * work, so that only a wait for the device can. */
#define WEIR_ENGINE_OBSERVED UINT64_MAX
#define WEIR_ENGINE_UNKNOWN UINT64_C(0)

/* A value for the field `at` of a request: the engine chooses an address so far from all blocks that the new block can
 * later grow in place. */
#define WEIR_ENGINE_FAR UINT64_MAX

/* ---- a request --------------------------------------------------------------------------------- */

enum {
    /* The engine calls the driver even if the device reports too little free memory, since the report may be too low.
     * */
    WEIR_REQUEST_FORCED = 1,
    /* The request was made on a captured stream, so its block is a memory node of a graph. */
    WEIR_REQUEST_CAPTURED = 2,
    /* The block is a slab, which the caches cut into small blocks.  The caches free a slab in a call on the request's
     * stream, or after all work on the slab has completed. */
    WEIR_REQUEST_SLAB = 4
};

/* Blocks that were freed on one stream. */
struct weir_freed {
    const CUdeviceptr *block;
    size_t count;
    /* Results of an engine's `give`.  `room` is the number of bytes that the stream may still free before it should
     * record an event.  `lacked` is the number of requests that have lacked memory so far. */
    uint64_t room, lacked;
};

/* One request to an engine.  All layers, from the per-stream caches down to the choice of an address, pass this struct
 * by pointer. */
struct weir_request {
    size_t bytes; /* the number of bytes to allocate; above 0 */
    /* The smallest number of bytes that the caller accepts if there is no memory for `bytes`.  0 if the caller needs
     * all of `bytes`. */
    size_t least;
    size_t asked; /* the number of bytes that the program requested */
    /* The address at which the block must start, or 0 for any address.  A program uses such an address to extend a
     * block at its end.  WEIR_ENGINE_FAR requests an address with much unused address space behind it.  If the address
     * is not free, the request fails without a wait. */
    uint64_t at;
    weir_stream stream;
    /* The stream's id, if it was already queried in this call or the program guarantees it.  A stream with a known id
     * is not captured.  If `id` is 0, an engine that needs the id queries it and stores it here. */
    uint64_t id;
    unsigned flags;
    CUdeviceptr block;
    /* Blocks that the caller freed on the stream before this request, or NULL.  The engine frees these blocks first,
     * so that the request can reuse them, and sets their count to 0. */
    struct weir_freed *freed;
    int kind; /* a heap's kind of addresses for the request; the heap sets it */
    int grew; /* set if reserved memory has grown for this request */
    /* Set if the engine failed without a driver call, since the device did not have enough free memory. */
    int is_predicted;
    int result; /* the driver's result of the last failure */
    /* The engine's figures at the time of the failure, for the report on the failed request.  They are written once
     * all retries have failed.  NULL if the caller does not need them. */
    struct weir_failed_request *refused;
};

static inline int weir__is_failure(weir_status status) {
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

/* ---- queries ------------------------------------------------------------------------------------ */

/* A block, or another range of device addresses. */
struct weir_extent {
    uint64_t base;
    size_t bytes; /* the length in bytes; for a live block, the bytes that the program requested */
    /* The id of the stream on which the block was allocated.  0 if the id is unknown or the range is no block. */
    uint64_t stream;
};

/* The kinds of objects that an engine's `visit` can list. */
enum weir_visited {
    /* Pieces of reserved memory that the engine can only release as a whole, sorted by address. */
    WEIR_VISIT_UNITS,
    WEIR_VISIT_BLOCKS,   /* all live blocks */
    WEIR_VISIT_BLOCK_AT, /* the live block that contains a given address */
    /* The region or superblock, from which the engine cuts blocks, that contains a given address. */
    WEIR_VISIT_REGION_AT,
    /* The part of the reserved address range for requests that name their address.  An engine has at most one such
     * part. */
    WEIR_VISIT_AT_ADDRESS
};

/* A physical allocation (VMM handle) that this process has exported, so that other processes can map it. */
struct weir_memory_file {
    uint64_t base; /* the address at which the physical allocation is mapped */
    size_t bytes;
    /* The file descriptor of the export.  It stays open until the memory is freed. */
    int file;
    uint64_t name; /* a number that this process never uses for another export */
};

struct weir_memory_files {
    struct weir_memory_file *list; /* the exports, sorted by `base`; the caller frees the list */
    size_t count, capacity;
};

typedef void weir__engine_visit_fn(void *context, const struct weir_extent *extent);

/* The arguments of an engine's `visit`.  If the callback `show` is NULL, the engine only returns the number of
 * objects. */
struct weir_visit {
    enum weir_visited what;
    uint64_t address; /* the address to search for, if `what` is BLOCK_AT or PIECE_AT */
    weir__engine_visit_fn *show;
    void *context;
};

enum { WEIR_SURVEY_STREAMS = 16 };

/* Bits that select which fields of struct weir_survey an engine fills. */
enum {
    /* fills largest_free, largest_free_at_rest, pending, streams and by */
    WEIR_SURVEY_IDLE = 1,
    WEIR_SURVEY_LARGEST = 2, /* fills `largest` */
    /* Queries all pending events once, and then fills `frees`. */
    WEIR_SURVEY_PENDING = 4
};

/* A report on an engine's memory.  The caller sets `what`, `id` and `back`, and sets all other fields to 0. */
struct weir_survey {
    unsigned what;
    uint64_t id; /* the id of the caller's stream, or 0 if the id is unknown */
    /* Used if WEIR_SURVEY_LARGEST is set: the bytes of cached blocks that the caller will free and release to the
     * device before its next request, in whole units of the engine. */
    uint64_t back;
    /* The size of the largest free piece of memory that the stream may use, or UINT64_MAX if the engine cannot compute
     * it. */
    uint64_t largest_free;
    /* The size of the largest free piece of memory if all streams were idle.  A larger value than `largest_free` shows
     * that the request could succeed after a wait. */
    uint64_t largest_free_at_rest;
    /* Free bytes that the stream may not use yet, since work of other streams on this memory has not completed.  The
     * list `by` divides them by stream. */
    uint64_t pending;
    size_t streams;
    struct {
        /* `stream` is 0 if the stream is unknown, or if the entry stands for several streams */
        uint64_t stream, bytes;
    } by[WEIR_SURVEY_STREAMS];
    /* The size of the largest request on this stream that would certainly succeed, now or after OOM recovery.  weir
     * suggests this size to the program after a failed request.  0 if no such size can be computed. */
    uint64_t largest;
    /* `waiting` is the number of pending frees, or batches of frees, with an event: a later query can find them
     * complete.  `silent` is the number of streams with frees that no event covers, plus pending work for which
     * closing the allocator does not wait. */
    struct {
        size_t waiting, silent;
    } frees;
};

/* ---- release of memory --------------------------------------------------------------------------- */

enum weir_trim_mode {
    /* releases idle memory until at most `keep` bytes are reserved; may wait for the device */
    WEIR_TRIM_WAIT,
    /* Records an event for the stream's frees if one is due, and releases the idle memory above the release threshold.
     * Only a call on this stream may use this mode, and the stream must not be captured. */
    WEIR_TRIM_MAINTAIN,
    /* Makes the frees of the stream `id` available to other streams, from any thread.  The stream must exist and must
     * not be captured.  If the stream is idle, its frees have completed.  Otherwise the engine records an event on the
     * stream, unless it is a default stream.  If `id` is 0, the engine only tests its lock: it returns WEIR_E_BUSY if
     * a request holds the lock, perhaps during a wait for the device. */
    WEIR_TRIM_PUBLISH,
    /* Releases idle memory without a wait, until at most `keep` bytes are reserved.  So the engine releases only
     * memory whose last use is known to have completed.  If `id` is not 0, the caller works on this stream, and the
     * engine first queries whether the stream is idle. */
    WEIR_TRIM_COMPLETED
};

struct weir_trim {
    enum weir_trim_mode mode;
    int cause; /* the reason for the trim (WEIR_EVENT_...), for the allocator's list of events */
    size_t keep;
    weir_stream stream;
    uint64_t id;
    size_t released; /* result: the number of released bytes */
};

/* ---- an engine --------------------------------------------------------------------------------- */

/* The parts of an allocator to which an engine reports growth and trims. */
struct weir_event_sink {
    struct weir_counters *counters;
    struct weir_process_peers *peers; /* the other weir processes on this device, or NULL */
    /* The reserved memory that this process last published to the other processes. */
    _Atomic uint64_t shown;
    /* A flag that the engine sets to 1 when reserved memory grows for a request.  NULL if nobody reads the flag. */
    _Atomic int *grew;
};

enum {
    /* The driver can release the engine's memory without a wait.  So trims in mode DONE may release memory, and the
     * caller must wait for the device before it closes the engine. */
    WEIR_ENGINE_RELEASES_ASYNC = 1,
    /* The engine itself cuts blocks from regions and orders their reuse, and a trim in mode FULLY waits for the
     * device.  Without this trait, the driver cuts the blocks and orders their reuse. */
    WEIR_ENGINE_SUBALLOCATES = 2,
    /* The allocator keeps some reserved memory idle for later requests (the setting grow-ahead).  The allocator sets
     * this trait before the engine's first request. */
    WEIR_ENGINE_GROWS_AHEAD = 4
};

struct weir_engine;
struct weir_graph_table;

struct weir_engine_ops {
    /* Allocates a block for the request.  Does not wait for pending frees before it returns E_NO_MEMORY or E_LIMIT,
     * since OOM recovery waits. */
    weir_status (*alloc)(struct weir_engine *e, struct weir_request *r);
    /* Frees a block.  `uses` is the list of the other streams that use the block, or NULL.  An error leaves the block
     * live.  If the driver does not know a stream in `uses`, the function sets `refused` in the list's entry of this
     * stream. */
    weir_status (*free)(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                        struct weir_use_list *uses);
    /* Frees live blocks outside a call on a stream.  With OBSERVED as `id`, every stream may reuse the memory at once.
     * An engine without the trait CUTS accepts only OBSERVED, and calls the driver.  An engine with CUTS also accepts
     * UNKNOWN and the id of a stream, and calls the driver at most to query events.  With the id of a stream, the
     * blocks are treated as freed on this stream; a later call on the stream, or a trim in mode MAINTAIN, records the
     * event.  With UNKNOWN, no stream may reuse the memory before a wait for the device.  Returns OK, DUE,
     * E_NOT_OWNED, or a status of the driver. */
    weir_status (*free_batch)(struct weir_engine *e, struct weir_freed *freed, uint64_t id);
    /* Grows the reserved memory to at least `target` bytes, as one step towards `goal` bytes.  `cause` is the reason
     * for the growth (WEIR_EVENT_...), for the allocator's list of events. */
    weir_status (*grow)(struct weir_engine *e, uint64_t target, uint64_t goal, int cause);
    weir_status (*trim)(struct weir_engine *e, struct weir_trim *trim);
    /* Changes a device's access to all present and future memory of the engine.  An error changes nothing. */
    weir_status (*allow)(struct weir_engine *e, const CUmemAccessDesc *access);
    /* Fills the fields requested, in_use, their peaks, reserved, reserved_peak, extent and host_bytes of the
     * statistics.  An engine that orders reuse by events also fills steals and event_records. */
    void (*figures)(struct weir_engine *e, weir_statistics *out);
    void (*survey)(struct weir_engine *e, struct weir_survey *out);
    /* Calls visit->show for all objects of one kind, under the engine's lock.  Returns the number of objects, or -1 if
     * this engine cannot list such objects. */
    int (*visit)(struct weir_engine *e, const struct weir_visit *visit);
    /* Releases all memory.  The caller has freed all blocks, and no free is pending, unless the device is lost. */
    void (*close)(struct weir_engine *e);
};

/* The first member of every engine's own struct.  After the engine is open, only the atomic fields change. */
struct weir_engine {
    const struct weir_engine_ops *ops;
    struct weir_device *device;
    const weir_options *options; /* the settings, after all defaults were filled in */
    struct weir_event_sink *events;
    /* The number of requests that lacked memory, plus the number of times that the program signalled low memory.  Only
     * an engine with the trait CUTS maintains this number.  Each large free reads it, so it lies apart from the fields
     * that requests write. */
    _Atomic uint64_t lacked;
    /* The largest number of bytes that may be reserved, or UINT64_MAX for no limit.  Points to the limit that limit.c
     * computes. */
    const _Atomic uint64_t *limit;
    /* the idle bytes that stay reserved when the program synchronizes (release threshold) */
    uint64_t threshold;
    /* The smallest limit in bytes with which the engine can allocate any block.  0 if every limit suffices. */
    size_t least_limit;
    /* The bytes of one step of background growth.  A step holds the driver's lock for about 0.1 ms.  0 if the engine
     * has no background growth. */
    size_t step_bytes;
    unsigned traits;
    /* The driver's pool that the memory comes from, or NULL.  weir cannot count the pending frees in this pool.  Only
     * another request can find out whether these frees have completed. */
    CUmemoryPool driver_pool;
    /* the addresses of blocks that belong to graphs (driver_blocks.h) */
    struct weir_graph_table *graphs;
    /* The engine's figures after its last request.  The engine writes them; other threads read them without the
     * engine's lock. */
    struct {
        _Atomic uint64_t reserved;
        /* The bytes in live blocks, and the peak of these bytes.  If the engine does not have the trait CUTS, the
         * per-stream caches subtract the bytes of each free. */
        _Atomic uint64_t in_use, most_in_use;
        /* The bytes of frees for which no event could be recorded.  No request may reuse this memory before a wait for
         * the device.  Only an engine with the trait CUTS writes this field. */
        _Atomic uint64_t quarantined;
        /* The lowest and highest address of all memory that the engine has ever used for blocks, as the range [low,
         * high).  Before the first memory, `low` is UINT64_MAX and `high` is 0.  The range is not maintained if the
         * engine does not have the trait CUTS and the allocator has no caches. */
        _Atomic uint64_t low, high;
    } seen;
};

/* These functions open an engine with the settings, the device and the limit of `setup`.  They allocate no device
 * memory. */
weir_status weir__pool_open(const struct weir_engine *setup, struct weir_engine **out);
weir_status weir__direct_open(const struct weir_engine *setup, struct weir_engine **out);
weir_status weir__mapped_open(const struct weir_engine *setup, struct weir_engine **out);
/* Opens the engine for the settings WEIR_ENGINE_BFC (regions that grow) and WEIR_ENGINE_BFC_FIXED (one region). */
weir_status weir__bfc_open(const struct weir_engine *setup, struct weir_engine **out);

/* Exports the physical allocations behind [base, base + bytes), and lists them in *out with a file descriptor for
 * each.  A live block of the mapped engine `e` lies at these addresses, and *out is empty at first.  Returns OK on
 * success, E_NOT_SUPPORTED if the device cannot export memory, E_NOT_OWNED if a part of the range is not mapped, or
 * E_HOST_MEMORY if there is no more host memory or no more descriptor. */
weir_status weir__mapped_share(struct weir_engine *e, uint64_t base, size_t bytes,
                               struct weir_memory_files *out);

/* ---- for callers of engines -------------------------------------------------------------------- */

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

/* Queries pending frees once, without a wait, and frees the blocks whose frees have completed.  Returns the number of
 * frees that a later query can find complete.  Sets *silent to the number of streams with frees that no event covers,
 * unless `silent` is NULL. */
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

/* Returns 0 if the engine has never used the address for blocks, so that a free of this address needs no search under
 * the lock.  Always returns 1 for a live block of this engine, since the engine sets the bounds before it returns a
 * block. */
static inline int weir__engine_may_contain(const struct weir_engine *e, uint64_t address) {
    return address >= atomic_load_explicit(&e->seen.low, memory_order_relaxed) &&
           address < atomic_load_explicit(&e->seen.high, memory_order_relaxed);
}

/* Returns 1 if the engine has a live block, as far as the engine can determine; else 0. */
int weir__engine_has_blocks(struct weir_engine *e);
/* Finds the object of this kind (a block or a region) at an address, and writes it to *out.  Returns 1 on success, 0
 * if there is no such object, -1 if this engine cannot list such objects. */
int weir__engine_find(struct weir_engine *e, enum weir_visited what, uint64_t address,
                      struct weir_extent *out);
/* Lists all objects of this kind in *out, which the caller frees.  Returns the number of objects.  If there is no
 * object, or no host memory, or this engine cannot list such objects, sets *out to NULL and returns 0. */
size_t weir__engine_list_all(struct weir_engine *e, enum weir_visited what,
                             struct weir_extent **out);

/* ---- for engines: engine.c --------------------------------------------------------------------- */

static inline uint64_t weir__engine_limit(const struct weir_engine *e) {
    return atomic_load_explicit(e->limit, memory_order_relaxed);
}

/* Extends the range of addresses that the engine has ever used, so that it includes new memory.  Several threads may
 * call this function at once. */
static inline void weir__engine_extend_bounds(struct weir_engine *e, uint64_t base, size_t bytes) {
    weir__lower_to(&e->seen.low, base);
    weir__raise_to(&e->seen.high, base + bytes);
}
/* Adds a new block to the bytes in live blocks, their peak and the range of addresses.  Only engines without the trait
 * CUTS call this function, and only if the allocator has caches. */
static inline void weir__engine_count(struct weir_engine *e, const struct weir_request *r) {
    uint64_t before = atomic_fetch_add_explicit(&e->seen.in_use, r->bytes, memory_order_relaxed);

    weir__raise_to(&e->seen.most_in_use, before + r->bytes);
    weir__engine_extend_bounds(e, r->block, r->bytes);
}
/* Records a growth or a trim in the counters and, at log level info, in the log. */
void weir__engine_record_event(const struct weir_engine *e, int cause, int shrink, uint64_t asked,
                               uint64_t got, uint64_t stall_ns, uint64_t reserved_after);
/* The driver is slow to refuse a request above this size: 0.18 s for 60 GiB that the device lacks (H200, driver 580).
 * */
#define WEIR_ENGINE_LARGE ((uint64_t)256 << 20)
/* Returns 1 if the driver would fail, since the device's free memory plus `idle` bytes is less than `bytes`; else 0.
 * Returns 0 for a request with WEIR_REQUEST_FORCED, since the device may have more free memory than it reports. */
int weir__engine_predicts_failure(const struct weir_engine *e, struct weir_request *r,
                                  uint64_t bytes, uint64_t idle);
/* Calls visit->show for each of the `count` extents in the list, unless visit->show is NULL.  Returns `count`. */
int weir__engine_visit_list(const struct weir_visit *visit, const struct weir_extent *list,
                            size_t count);
/* Adds `bytes` free bytes, which wait for work on the stream `stream`, to the report *survey. */
void weir__survey_add_pending(struct weir_survey *survey, uint64_t stream, uint64_t bytes);

#endif
