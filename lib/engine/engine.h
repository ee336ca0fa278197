/* SPDX-License-Identifier: MIT */
/* engine.h: the interface of an engine.
 *
 * An engine allocates blocks.  It knows the device, growth and the limit.  It does not know the allocator's life cycle,
 * the settings' names, or other engines.  Each engine has its own lock: every function but open and close may be called
 * from any thread.
 *
 * Stream order.  A block that `alloc` returns may be used on its stream at once.  After `free` on stream s, the engine
 * may allocate the memory on s at once.  It may allocate the memory on another stream only after it has observed that
 * the free has completed, or if it makes that stream wait for the free.
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

/* The driver grows and shrinks a pool by units of 32 MiB (measured on an H200, driver 580); regions are multiples. */
#define WEIR_POOL_UNIT ((size_t)32 << 20)

/* `give` returns this if it has freed the blocks and an event is due on the stream.  It is no public status. */
#define WEIR_ENGINE_DUE ((weir_status)1)

/* Special ids for `give`.  OBSERVED: the host has observed that all uses of the blocks have completed.  UNKNOWN: no
 * event will show when the uses have completed. */
#define WEIR_ENGINE_OBSERVED UINT64_MAX
#define WEIR_ENGINE_UNKNOWN UINT64_C(0)

/* The value of a request's `at` that asks for an address far from all blocks. */
#define WEIR_ENGINE_FAR UINT64_MAX

/* ---- a request --------------------------------------------------------------------------------- */

enum {
    /* the request goes to the driver even if the driver reports too little memory */
    WEIR_REQUEST_INSISTS = 1,
    /* the request is for a memory node of a graph, or was served by one */
    WEIR_REQUEST_CAPTURED = 2,
    /* the block is a slab: it is freed in calls on the request's stream, or once all its uses are done */
    WEIR_REQUEST_SLAB = 4
};

/* Blocks that were freed on one stream. */
struct weir_freed {
    const CUdeviceptr *block;
    size_t count;
    /* Results.  room: the bytes that the stream may free before an event is due.  lacked: the engine's `lacked`. */
    uint64_t room, lacked;
};

/* One request.  The caches pass it by pointer down to the placement. */
struct weir_request {
    size_t bytes; /* the bytes to allocate; above 0 */
    /* The bytes that suffice if there is no memory for `bytes`, or 0 if nothing less suffices. */
    size_t least;
    size_t asked; /* the bytes that the program requested */
    /* If above 0, the address at which the block must begin: the end of another block in the range WEIR_VISIT_APART, or
     * WEIR_ENGINE_FAR.  The request fails without a wait if the address is not free. */
    uint64_t at;
    weir_stream stream;
    /* The stream's id, if this call has queried it or the program guarantees it; the stream is not captured then.  If
     * it is 0, an engine that needs the id queries it and stores it here. */
    uint64_t id;
    unsigned flags;
    CUdeviceptr block;
    /* Blocks that were freed on the stream before the request, or NULL.  The engine frees them first, and sets their
     * count to 0. */
    struct weir_freed *freed;
    int grew;     /* reserved memory grew for the request */
    int foretold; /* set if the engine expected failure and made no driver call */
    int result;   /* the driver's result of the last failure */
    /* Filled if the request fails after all retries.  NULL if the caller does not need it. */
    struct weir_failed_request *refused;
};

static inline int weir__is_failure(weir_status status) {
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

/* ---- questions ---------------------------------------------------------------------------------- */

/* A range of device addresses, or a block. */
struct weir_extent {
    uint64_t base;
    size_t bytes; /* the length; of a block, the bytes that the program requested */
    /* the id of the stream that the block was allocated on; 0 if it is not known or this is no block */
    uint64_t stream;
};

/* The kinds of objects that `visit` shows. */
enum weir_visited {
    /* the pieces of reserved memory that can only be freed as a whole, in the order of addresses */
    WEIR_VISIT_WHOLES,
    WEIR_VISIT_BLOCKS,   /* every live block */
    WEIR_VISIT_BLOCK_AT, /* the live block around the address */
    WEIR_VISIT_PIECE_AT, /* the piece of memory around the address; blocks are cut from it */
    WEIR_VISIT_APART     /* the range of addresses that a request may name in `at`; at most one */
};

/* A physical allocation that other processes may open (mapped.c). */
struct weir_memory_file {
    uint64_t base; /* the address of the mapping */
    size_t bytes;
    int file;      /* a file descriptor of this process, open until the memory is freed */
    uint64_t name; /* a number that the process uses for this export only */
};

struct weir_memory_files {
    struct weir_memory_file *list; /* sorted by base; the caller frees the list */
    size_t count, capacity;
};

typedef void weir__engine_visit_fn(void *context, const struct weir_extent *extent);

/* A question for `visit`.  If `show` is NULL, the engine only counts the objects. */
struct weir_visit {
    enum weir_visited what;
    uint64_t address; /* the address that BLOCK_AT and PIECE_AT look for */
    weir__engine_visit_fn *show;
    void *context;
};

enum { WEIR_SURVEY_STREAMS = 16 };

/* Each bit requests fields of struct weir_survey. */
enum {
    WEIR_SURVEY_IDLE = 1,    /* largest_free to by */
    WEIR_SURVEY_LARGEST = 2, /* largest */
    WEIR_SURVEY_PENDING = 4  /* frees; first queries the pending events */
};

/* The figures of an engine's memory.  All fields but what, id and back are zero before the call. */
struct weir_survey {
    unsigned what;
    uint64_t id; /* the id of the caller's stream, or 0 if it is not known */
    /* For LARGEST: the bytes of blocks, in whole units, that the caller will free and trim before its request. */
    uint64_t back;
    /* The bytes of the largest free piece that the stream may use, or UINT64_MAX if it is not known. */
    uint64_t largest_free;
    uint64_t largest_free_at_rest; /* the value of largest_free if all streams were idle */
    uint64_t pending; /* free bytes that wait for other streams; `by` has them for each stream */
    size_t streams;
    struct {
        uint64_t stream, bytes; /* stream 0: several streams, or an unknown one */
    } by[WEIR_SURVEY_STREAMS];
    /* For a stream whose last request has failed: the bytes of the largest request on it that would surely succeed, now
     * or after OOM recovery.  0 if none is known to succeed. */
    uint64_t largest;
    /* waiting: the frees, or batches of frees, that a later query of their events can find complete.  silent: the
     * streams with frees that no event covers, plus pending work for which the end of an allocator does not wait. */
    struct {
        size_t waiting, silent;
    } frees;
};

/* ---- how memory goes back ---------------------------------------------------------------------- */

enum weir_trim_mode {
    WEIR_TRIM_FULLY, /* releases idle memory until at most `keep` bytes stay */
    /* Runs in a call on that stream, which is not captured.  Records an event for the stream's frees if one is due, and
     * releases the idle memory beyond the release threshold. */
    WEIR_TRIM_MAINTAIN,
    /* Covers the frees of the stream with that id, which exists and is not captured; any thread may call this.  If the
     * stream is idle, the engine observes its frees; else it records an event, except on a default stream.  With id 0
     * the engine only checks its lock, and returns WEIR_E_BUSY if a request holds it, perhaps during a wait for the
     * device. */
    WEIR_TRIM_ASK,
    /* Releases memory as FULLY does, but only memory whose last use is known to have completed, without a wait.  If the
     * id is not 0, the call is on that stream, and the engine first queries whether the stream is idle. */
    WEIR_TRIM_DONE
};

struct weir_trim {
    enum weir_trim_mode mode;
    int cause; /* the cause that the event of the trim gets */
    size_t keep;
    weir_stream stream;
    uint64_t id;
    size_t released; /* result: the bytes released */
};

/* ---- an engine --------------------------------------------------------------------------------- */

/* The receivers of events about growth and trims. */
struct weir_event_sink {
    struct weir_counters *counters;
    struct weir_process_peers *peers; /* the other processes on the device, or NULL */
    _Atomic uint64_t shown;           /* the reserved memory that `peers` saw last */
    _Atomic int *grew; /* set to 1 by growth for a request; NULL if nobody reads it */
};

enum {
    /* The driver's release of memory waits for nothing.  So DONE trims may release memory, and the caller waits for the
     * device before `close`. */
    WEIR_ENGINE_SHEDS = 1,
    /* The engine cuts blocks from regions itself, and orders their reuse.  Its FULLY trim waits for the device.  Without
     * this trait the driver does both. */
    WEIR_ENGINE_CUTS = 2,
    /* The allocator sets this before the engine's first request. */
    WEIR_ENGINE_GROWS_AHEAD = 4 /* some reserved memory is kept idle for later requests */
};

struct weir_engine;
struct weir_graph_table;

struct weir_engine_ops {
    /* Serves the request, or returns an error.  Does not wait for frees before it returns E_NO_MEMORY or E_LIMIT. */
    weir_status (*alloc)(struct weir_engine *e, struct weir_request *r);
    /* Frees a block.  `uses` has the other streams that use the block, or is NULL.  An error changes nothing, except
     * that uses of streams that the driver does not know are marked `refused`. */
    weir_status (*free)(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                        struct weir_use_list *uses);
    /* Frees live blocks outside a call on a stream.  With OBSERVED, every stream may use the memory at once.  An engine
     * without CUTS accepts only OBSERVED, and calls the driver.  An engine with CUTS calls the driver at most to query
     * events, and accepts other ids, too.  With a stream's id, the frees count as frees on that stream; a later call on it or a MAINTAIN
     * trim records their event.  With UNKNOWN, no stream may use the memory before a wait for the device.  Returns OK,
     * DUE, E_NOT_OWNED, or a status of the driver. */
    weir_status (*give)(struct weir_engine *e, struct weir_freed *freed, uint64_t id);
    /* Grows until the reserved memory is at least `target`, as one step towards `goal`.  `cause` says why. */
    weir_status (*grow)(struct weir_engine *e, uint64_t target, uint64_t goal, int cause);
    weir_status (*trim)(struct weir_engine *e, struct weir_trim *trim);
    /* Changes a device's access to all memory that the engine has and will have.  An error changes nothing. */
    weir_status (*allow)(struct weir_engine *e, const CUmemAccessDesc *access);
    /* Fills requested, in_use, their peaks, reserved, reserved_peak, extent and host_bytes.  An engine that orders
     * reuse by events also fills steals and event_records. */
    void (*figures)(struct weir_engine *e, weir_statistics *out);
    void (*survey)(struct weir_engine *e, struct weir_survey *out);
    /* Visits the objects of one kind under the engine's lock.  Returns their number, or -1 if it is not known. */
    int (*visit)(struct weir_engine *e, const struct weir_visit *visit);
    /* Releases all memory.  Before, no block is live and no free is pending, unless the device is lost. */
    void (*close)(struct weir_engine *e);
};

/* The beginning of every engine.  Its fields are fixed once the engine is open, except for the atomic fields. */
struct weir_engine {
    const struct weir_engine_ops *ops;
    struct weir_device *device;
    const weir_options *options; /* the settings, with all defaults filled in */
    struct weir_event_sink *events;
    /* With CUTS: the number of requests that lacked memory, and of the program's signals that memory is low.  Each
     * large free reads this field, so the field lies apart from those that requests write. */
    _Atomic uint64_t lacked;
    /* The most bytes of reserved memory, or UINT64_MAX for no limit.  It belongs to the limit (limit.h). */
    const _Atomic uint64_t *limit;
    uint64_t threshold; /* the bytes of idle memory that stay reserved at a synchronisation */
    /* The least limit in bytes with which the engine can serve a request, or 0 if any limit suffices. */
    size_t least_limit;
    /* The bytes of one step of background growth, which holds the driver's lock for about 0.1 ms; 0 if the engine has
     * no background growth. */
    size_t step_bytes;
    unsigned traits;
    /* The driver's pool that the memory comes from, or NULL.  Frees in it may be pending that PENDING cannot count; only
     * another request shows whether they have completed. */
    CUmemoryPool driver_pool;
    struct weir_graph_table *graphs; /* the blocks of graphs (driver_blocks.h) */
    /* Figures after the last request.  The engine writes them; its callers read them without its lock. */
    struct {
        _Atomic uint64_t reserved;
        /* The bytes in blocks, and their peak.  Without CUTS the caches subtract each free. */
        _Atomic uint64_t in_use, most_in_use;
        /* With CUTS: the bytes of frees that no event covers, which serve no request before a wait for the device. */
        _Atomic uint64_t quarantined;
        /* All present and former memory for blocks lies in [low, high).  If there was none, low is UINT64_MAX and high
         * is 0.  Without CUTS and without caches the bounds are not known. */
        _Atomic uint64_t low, high;
    } seen;
};

/* Open an engine with the settings, device and limit in `setup`.  These functions allocate no device memory. */
weir_status weir__pool_open(const struct weir_engine *setup, struct weir_engine **out);
weir_status weir__direct_open(const struct weir_engine *setup, struct weir_engine **out);
weir_status weir__mapped_open(const struct weir_engine *setup, struct weir_engine **out);
/* Opens the engine for WEIR_ENGINE_BFC and WEIR_ENGINE_BFC_FIXED. */
weir_status weir__bfc_open(const struct weir_engine *setup, struct weir_engine **out);

/* Lists the physical allocations of [base, base + bytes), where a live block of the mapped engine `e` lies, each with a
 * file descriptor.  `out` is empty at first.  Returns E_NOT_SUPPORTED if the device cannot export memory, E_NOT_OWNED
 * if a part is no mapped memory, or E_HOST_MEMORY if no host memory or no descriptor is left. */
weir_status weir__mapped_share(struct weir_engine *e, uint64_t base, size_t bytes,
                               struct weir_memory_files *out);

/* ---- for callers of engines -------------------------------------------------------------------- */

static inline weir_status weir__engine_trim(struct weir_engine *e, size_t keep, int cause,
                                            size_t *released) {
    struct weir_trim trim = {.mode = WEIR_TRIM_FULLY, .keep = keep, .cause = cause};
    weir_status status = e->ops->trim(e, &trim);

    *released = trim.released;
    return status;
}

static inline void weir__engine_maintain(struct weir_engine *e, weir_stream stream, uint64_t id) {
    (void)e->ops->trim(e,
                       &(struct weir_trim){.mode = WEIR_TRIM_MAINTAIN, .stream = stream, .id = id});
}

static inline weir_status weir__engine_ask(struct weir_engine *e, weir_stream stream, uint64_t id) {
    struct weir_trim trim = {.mode = WEIR_TRIM_ASK, .stream = stream, .id = id};

    return e->ops->trim(e, &trim);
}

/* Queries pending frees once, without a wait, and reclaims the completed ones.  Returns how many frees a later query
 * can find complete.  `silent` may be NULL. */
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

/* Returns 0 if the engine never had memory for blocks at that address.  Needs no lock.  For a live block of this engine
 * always returns 1, since the engine sets the bounds before it returns a block. */
static inline int weir__engine_may_have(const struct weir_engine *e, uint64_t address) {
    return address >= atomic_load_explicit(&e->seen.low, memory_order_relaxed) &&
           address < atomic_load_explicit(&e->seen.high, memory_order_relaxed);
}

/* Returns 1 if a block is live, as far as the engine knows, else 0. */
int weir__engine_has_blocks(struct weir_engine *e);
/* Finds the object of that kind at an address.  Returns 1 on success, 0 if there is none, -1 if it is not known. */
int weir__engine_find(struct weir_engine *e, enum weir_visited what, uint64_t address,
                      struct weir_extent *out);
/* Lists all objects of that kind in memory that the caller frees.  Returns their number.  Returns 0 and sets *out to
 * NULL if there is none, the engine does not know, or there is no host memory. */
size_t weir__engine_list_all(struct weir_engine *e, enum weir_visited what,
                             struct weir_extent **out);

/* ---- for engines: engine.c --------------------------------------------------------------------- */

static inline uint64_t weir__engine_limit(const struct weir_engine *e) {
    return atomic_load_explicit(e->limit, memory_order_relaxed);
}

/* Widens the bounds seen.low and seen.high to new memory for blocks.  Several threads may call this concurrently. */
static inline void weir__engine_widen(struct weir_engine *e, uint64_t base, size_t bytes) {
    weir__lower_to(&e->seen.low, base);
    weir__raise_to(&e->seen.high, base + bytes);
}
/* Counts a new block in the figures of `seen`, for an engine without CUTS below caches. */
static inline void weir__engine_count(struct weir_engine *e, const struct weir_request *r) {
    uint64_t before = atomic_fetch_add_explicit(&e->seen.in_use, r->bytes, memory_order_relaxed);

    weir__raise_to(&e->seen.most_in_use, before + r->bytes);
    weir__engine_widen(e, r->block, r->bytes);
}
/* Records a growth or a trim in the counters and, at level info, in the log. */
void weir__engine_note(const struct weir_engine *e, int cause, int shrink, uint64_t asked,
                       uint64_t got, uint64_t stall_ns, uint64_t reserved_after);
/* The driver refuses a request above this size slowly: 0.18 s for 60 GiB that the device lacks (H200, driver 580). */
#define WEIR_ENGINE_LARGE ((uint64_t)256 << 20)
/* Returns 1 if the device's free memory and `idle` are together less than `bytes`, so that a driver call would fail.
 * Returns 0 for a request that insists, since the device may have more memory than it reports. */
int weir__engine_would_refuse(const struct weir_engine *e, struct weir_request *r, uint64_t bytes,
                              uint64_t idle);
/* Calls visit->show, if there is one, for each extent of the list.  Returns `count`. */
int weir__engine_show(const struct weir_visit *visit, const struct weir_extent *list, size_t count);
/* Adds free bytes that wait for the stream with that id to the survey. */
void weir__engine_pends(struct weir_survey *survey, uint64_t stream, uint64_t bytes);

#endif
