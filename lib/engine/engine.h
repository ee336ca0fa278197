/* SPDX-License-Identifier: MIT */
/* engine.h: what an engine is.
 *
 * An engine is where blocks come from.  It knows the device, growth and the limit.  It does not know the allocator's
 * life cycle, the settings' names, or other engines.  Each engine guards itself: every function but open and close may
 * be called from any thread.
 *
 * Stream order.  A block that `alloc` returns may be used on its stream at once.  After `free` on s the engine may hand
 * the memory out on s at once, and on another stream only behind an ordering that it establishes itself or has observed.
 */
#ifndef WEIR_ENGINE_H
#define WEIR_ENGINE_H

#include <stdatomic.h>

#include <weir/allocator.h>
#include <weir/stats.h>

#include "base/counters.h"
#include "base/result.h"
#include "driver/device.h"
#include "engine/peer_access.h"
#include "engine/stream_uses.h"
#include "ipc/process_peers.h"

/* The driver grows and shrinks a pool by units of 32 MiB (measured on an H200, driver 580); regions are multiples. */
#define WEIR_POOL_UNIT ((size_t)32 << 20)

/* `alloc` returns this if it would have to grow and the request lacks MAY_GROW.  It is no public status. */
#define WEIR_ENGINE_DRY ((weir_status)1)
/* `give` returns this if it has freed the block and an event is due.  It is no public status. */
#define WEIR_ENGINE_DUE ((weir_status)2)

/* Ids under which `give` takes a block back, beside those of streams.  OBSERVED: the host has seen
 * that all its uses are done.  UNKNOWN: nobody knows when they will be. */
#define WEIR_ENGINE_OBSERVED UINT64_MAX
#define WEIR_ENGINE_UNKNOWN UINT64_C(0)

/* For `at` of a request: no address of any block. */
#define WEIR_ENGINE_FAR UINT64_MAX

/* ---- a request --------------------------------------------------------------------------------- */

enum {
    /* The engine may grow for the request.  Without this flag, an engine that can foresee growth returns DRY; it has
     * then changed nothing, but all streams will record events for their frees.  Other engines ignore the flag. */
    WEIR_REQUEST_MAY_GROW = 1,
    WEIR_REQUEST_INSISTS = 2,  /* the driver is asked even where it says that it has too little */
    WEIR_REQUEST_CAPTURED = 4, /* it is for a graph's node, or was served by one */
    WEIR_REQUEST_WAS_DRY = 8,  /* it was not served as things stood when it came */
    /* Set after a request: the device has become short of memory, so the caches should give theirs. */
    WEIR_REQUEST_PRESSURE = 16
};

/* From the caches to the placement, by pointer. */
struct weir_request {
    size_t bytes; /* the bytes that the engine shall serve; above 0 */
    size_t
        least; /* the bytes that suffice if there is no memory for `bytes`; 0: nothing less suffices */
    size_t asked; /* the bytes that the program requested */
    /* Above 0, and only of an engine that shows WEIR_VISIT_APART: where the block is to begin among those addresses, at
     * the end of another or far from all (WEIR_ENGINE_FAR).  It is refused without waiting where something else lies. */
    uint64_t at;
    weir_stream stream;
    /* The stream's id, if this call has asked the driver for the id or the program vouches for the stream; the stream
     * is not captured then.  If it is 0, an engine that needs the id asks for the id and stores it here. */
    uint64_t id;
    unsigned flags;
    /* Results. */
    CUdeviceptr block;
    /* Above 0: the request did not fit; this is the engine's count of changes at that time, plus 1.  Until the next
     * change the engine need not search again. */
    uint64_t dry_at;
    int grew;     /* the reserved memory had to grow for it */
    int foretold; /* it was refused since the driver says that it has too little, and was not asked */
    int result;   /* the driver's, of the last failure */
    struct weir_failed_request
        *refused; /* filled where it is refused for good; NULL: nobody wants to know */
};

static inline int weir__is_failure(weir_status status) {
    return status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT;
}

/* ---- questions ---------------------------------------------------------------------------------- */

/* A piece of the device's addresses, or a block. */
struct weir_extent {
    uint64_t base;
    size_t bytes;    /* of a block as asked */
    uint64_t stream; /* of a block: the id of the stream that it was fetched for, 0 if not known */
    int large;       /* what requests up to 512 KiB have will not lie there */
};

/* What `visit` shows. */
enum weir_visited {
    /* Where the reserved memory lies, or what of it was preallocated last, and behind that where it will come, as far as that
     * can be told; those first that small requests will have. */
    WEIR_VISIT_EXTENTS,
    /* The pieces of the reserved memory that go back to the device whole or not at all, from low addresses to high. */
    WEIR_VISIT_WHOLES,
    WEIR_VISIT_BLOCKS,   /* every live block */
    WEIR_VISIT_BLOCK_AT, /* the live block around the address */
    WEIR_VISIT_PIECE_AT, /* the piece around the address that blocks are cut from */
    WEIR_VISIT_APART     /* the addresses that a request may name: at most one piece */
};

/* A physical allocation that other processes may open (mapped_files.h). */
struct weir_memory_file {
    uint64_t base; /* the address of its mapping */
    size_t bytes;
    int file; /* a descriptor of this process, which stays open until the memory goes back to the device */
    uint64_t name; /* a number that the process uses for this export only */
};

struct weir_memory_files {
    struct weir_memory_file *list; /* sorted by base; the caller frees the list */
    size_t count, capacity;
};

typedef void weir__engine_visit_fn(void *context, const struct weir_extent *extent);

/* NULL: it is only counted. */
struct weir_visit {
    enum weir_visited what;
    uint64_t address; /* of what is AT one */
    weir__engine_visit_fn *show;
    void *context;
};

enum { WEIR_SURVEY_STREAMS = 16 };

/* What `survey` tells. */
enum {
    WEIR_SURVEY_IDLE = 1,    /* unmapped range to by[] */
    WEIR_SURVEY_LARGEST = 2, /* largest */
    WEIR_SURVEY_PIECES = 4,  /* piece */
    WEIR_SURVEY_PENDING = 8  /* frees; looks at what is pending first */
};

/* Begins zeroed, but for what is asked. */
struct weir_survey {
    unsigned what;
    uint64_t id; /* of the stream that asks, 0: not known */
    uint64_t
        back; /* LARGEST: after so many bytes of blocks, whole units, had been given back and trimmed */
    /* What of the reserved memory is idle, as that stream sees it. */
    uint64_t
        largest_free; /* bytes of the largest free piece that it may have (UINT64_MAX: not known), */
    uint64_t largest_free_at_rest; /* and of the largest that there were if all streams were done */
    uint64_t pending;              /* free bytes that wait for others; of this, by stream: */
    size_t streams;
    struct {
        uint64_t stream, bytes; /* 0: several, or not known */
    } by[WEIR_SURVEY_STREAMS];
    int is_untold; /* the engine cannot tell what is idle */
    /* Bytes of the largest request that would surely be served now, or by OOM recovery, on that stream,
     * which has just been refused one.  0: none that is known. */
    uint64_t largest;
    /* Of what is idle and everybody's: bytes of the largest piece, and of the one at the end, which grows with
     * reserved memory.  Both 0: it has no end, or that cannot be told. */
    struct {
        uint64_t largest, last;
    } piece;
    /* Frees, or batches of them, that will be known to have completed by asking again; and streams whose frees only
     * their owner's next call will tell of, with what is pending that an allocator's end need not wait for. */
    struct {
        size_t waiting, silent;
    } frees;
};

/* ---- how memory goes back ---------------------------------------------------------------------- */

enum weir_trim_mode {
    WEIR_TRIM_FULLY, /* idle memory, until at most `keep` is left */
    /* Gives back memory that needs no wait, after a request on the stream with that id (0: not known). */
    WEIR_TRIM_AT_ONCE,
    /* Runs in a call on that stream, which is not captured: records the event for which returned memory waits, if one
     * is due, and frees what the release threshold does not keep. */
    WEIR_TRIM_MAINTAIN,
    /* Any thread may call this for a stream of that id that exists and is not being captured.  If the stream is idle,
     * its frees are observed to be complete; else an event covers them.  A default stream that is at work gets no
     * event.  With id 0 nothing is asked; WEIR_E_BUSY: a request holds the engine, maybe while it waits for the
     * device. */
    WEIR_TRIM_ASK,
    /* Does what FULLY does, but only for memory whose work is known to be complete; waits for no work. */
    WEIR_TRIM_DONE,
    /* REFUSED follows a request that finally failed: memory that the driver took for the request goes back.  SERVED
     * follows a request that succeeded after such failures: the memory stays. */
    WEIR_TRIM_REFUSED,
    WEIR_TRIM_SERVED
};

struct weir_trim {
    enum weir_trim_mode mode;
    int cause; /* of the event */
    size_t keep;
    weir_stream stream;
    uint64_t id;
    size_t released; /* out: bytes */
};

/* ---- an engine --------------------------------------------------------------------------------- */

/* The receivers of events about growth and returned memory. */
struct weir_event_sink {
    struct weir_counters *counters;
    struct weir_process_peers *peers; /* the device's other processes; NULL: none are known of */
    _Atomic uint64_t shown;           /* the reserved memory, as they were told */
    _Atomic int *grew;                /* set by growth for a request; NULL: nobody looks */
};

enum {
    WEIR_ENGINE_HIDES_PENDING =
        1, /* frees may be pending that PENDING cannot count; only another try tells */
    WEIR_ENGINE_TRIM_WAITS = 2, /* FULLY waits for the device */
    WEIR_ENGINE_MOVES = 4,      /* idle memory moves to where a request has too little */
    WEIR_ENGINE_SETTLES = 8,    /* the caller waits for the device before `close` */
    WEIR_ENGINE_SHEDS = 16,     /* AT_ONCE and DONE may give something back */
    WEIR_ENGINE_CUTS = 32,      /* it cuts blocks from pieces itself, and has `give` */
    WEIR_ENGINE_TAKES = 64,     /* it takes memory beforehand, and tells where: EXTENTS */
    /* Set by others, before it is opened or before the first request: */
    WEIR_ENGINE_IS_FOLLOWED = 128, /* memory goes back by itself, or the limit follows others */
    WEIR_ENGINE_GROWS_AHEAD = 256, /* some of the reserved memory is kept idle */
    WEIR_ENGINE_IS_PEEKED = 512    /* somebody looks at `in_use` after each request */
};

struct weir_engine;
struct weir_graph_table;

struct weir_engine_ops {
    /* Serves r, or says why not.  E_NO_MEMORY and E_LIMIT are returned without having waited for frees to complete. */
    weir_status (*alloc)(struct weir_engine *e, struct weir_request *r);
    /* `uses`: the other streams that use the block, or NULL.  On an error nothing has changed, but
     * that uses of streams that the driver does not know are marked refused. */
    weir_status (*free)(struct weir_engine *e, CUdeviceptr block, weir_stream stream,
                        struct weir_use_list *uses);
    /* Frees a block without any driver call, under a stream's id known from before, as a free on that
     * stream whose event its owner's next call, or TEND, records; or under OBSERVED or UNKNOWN: then
     * nobody has it before the device was waited for.  OK or E_NOT_OWNED, or DUE: it is freed, and TEND would
     * record.  E_NOT_SUPPORTED without CUTS. */
    weir_status (*give)(struct weir_engine *e, CUdeviceptr block, uint64_t id);
    /* Grows until the reserved memory is at least `target`, as one step of cause `cause`, of several towards `goal`. */
    weir_status (*grow)(struct weir_engine *e, uint64_t target, uint64_t goal, int cause);
    weir_status (*trim)(struct weir_engine *e, struct weir_trim *trim);
    /* Gives a peer access to all memory that the engine has and will have, or takes it.  On an error all is as
     * before. */
    weir_status (*allow)(struct weir_engine *e, const CUmemAccessDesc *access);
    /* Fills requested, in_use, their peaks, reserved, reserved_peak, extent and host_bytes; those that
     * order reuse by events, steals and event_records too. */
    void (*figures)(struct weir_engine *e, weir_statistics *out);
    void (*survey)(struct weir_engine *e, struct weir_survey *out);
    /* Visits the objects of one kind under the engine's lock.  Returns their number, or -1 if the engine does not
     * know. */
    int (*visit)(struct weir_engine *e, const struct weir_visit *visit);
    /* Gives everything back.  No block is live, nothing is pending and all is settled, or nobody ever had a
     * block, or the device is lost. */
    void (*close)(struct weir_engine *e);
};

/* The beginning of every engine.  Its fields are fixed once the engine is open, except for the atomic fields. */
struct weir_engine {
    const struct weir_engine_ops *ops;
    struct weir_device *device;
    const weir_options *options; /* completed: no default is left in them */
    struct weir_event_sink *events;
    const _Atomic uint64_t
        *limit; /* the most the reserved memory may be; UINT64_MAX: none.  The quota's (quota.h) */
    uint64_t threshold; /* bytes of idle memory kept at a synchronisation */
    size_t
        least_limit; /* bytes; with a lower limit the engine could serve nothing; 0: any limit suffices */
    /* The bytes of a growth that holds the driver's lock for about a tenth of a millisecond.  If it is 0, the engine
     * has no background growth. */
    size_t step_bytes;
    _Atomic unsigned traits;         /* SETTLES may change after the engine is open */
    CUmemoryPool driver_pool;        /* the pool that the memory comes from, or NULL */
    struct weir_graph_table *graphs; /* the blocks of graphs (graph_blocks.h) */
    /* Figures of the last request, which the engine writes and others read without its lock. */
    struct {
        _Atomic uint64_t reserved, in_use; /* the latter with IS_PEEKED or CUTS */
        _Atomic uint64_t most_in_use;     /* CUTS: the peak of the bytes in blocks */
        _Atomic uint64_t
            quarantined; /* CUTS: bytes freed since the last device wait that serve no request before the next one */
        /* CUTS: all regions, former ones too, lie in [low, high), or 0 if there was none. */
        _Atomic uint64_t low, high;
    } seen;
};

/* Each makes an engine of what `setup` has of struct weir_engine; nothing is taken from the device yet. */
weir_status weir__pool_open(const struct weir_engine *setup, struct weir_engine **out);
weir_status weir__direct_open(const struct weir_engine *setup, struct weir_engine **out);
/* Opens the engine that cuts blocks from its own memory, or from regions of one of the two engines above. */
weir_status weir__blocks_open(const struct weir_engine *setup, struct weir_engine **out);

/* Lists the physical allocations of [base, base + bytes), where a live block of the mapped engine `e` lies, each with a
 * file descriptor.  `out` is empty at first.  Returns E_NOT_SUPPORTED if the device cannot; E_NOT_OWNED if a part is no
 * mapped memory; E_HOST_MEMORY if no host memory or no descriptor is left. */
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

/* 0, of one that CUTS: no piece was ever at that address.  Needs no lock.  A caller whose block is this engine's always
 * gets 1: it received the address after the bounds were set. */
static inline int weir__engine_may_have(const struct weir_engine *e, uint64_t address) {
    return address >= atomic_load_explicit(&e->seen.low, memory_order_relaxed) &&
           address < atomic_load_explicit(&e->seen.high, memory_order_relaxed);
}

/* 1 if a block is live, as far as can be told. */
int weir__engine_has_blocks(struct weir_engine *e);
/* 1 and what there is of that kind around an address, or 0; -1: the engine cannot tell. */
int weir__engine_find(struct weir_engine *e, enum weir_visited what, uint64_t address,
                      struct weir_extent *out);
/* What lies in more than one piece, up to `most`: how many there are; -1 likewise. */
int weir__engine_list(struct weir_engine *e, enum weir_visited what, struct weir_extent *out,
                      size_t most);
/* All of them, in memory that the caller frees: how many; 0 and NULL: none, it cannot tell, or no host memory. */
size_t weir__engine_list_all(struct weir_engine *e, enum weir_visited what,
                             struct weir_extent **out);

/* ---- for engines: engine.c --------------------------------------------------------------------- */

static inline uint64_t weir__engine_limit(const struct weir_engine *e) {
    return atomic_load_explicit(e->limit, memory_order_relaxed);
}

/* Implements `give` for an engine without CUTS. */
weir_status weir__engine_gives_nothing(struct weir_engine *e, CUdeviceptr block, uint64_t id);
/* Notes a growth or a give-back in the books and, at level info, in the log. */
void weir__engine_note(const struct weir_engine *e, int cause, int shrink, uint64_t asked,
                       uint64_t got, uint64_t stall_ns, uint64_t reserved_after);
/* The driver takes long to refuse a request above this size: 0.18 s for 60 GiB that the device lacks (H200, driver
 * 580). */
#define WEIR_ENGINE_LARGE ((uint64_t)256 << 20)
/* Returns 1 if the device has less than `bytes` free with `idle` added, so that the driver need not be asked.  The
 * device may have more than it reports, so the function returns 0 for a request that insists. */
int weir__engine_would_refuse(const struct weir_engine *e, struct weir_request *r, uint64_t bytes,
                              uint64_t idle);
/* Appends an extent to a list of `count` extents, or merges it with the last one.  Drops it if the list has `most`.
 * Returns the new count. */
size_t weir__engine_extend(struct weir_extent *list, size_t count, size_t most,
                           struct weir_extent extent);
/* Shows those that `visit` wants: how many. */
int weir__engine_show(const struct weir_visit *visit, const struct weir_extent *list, size_t count);
/* Adds bytes that wait for the stream with that id. */
void weir__engine_pends(struct weir_survey *survey, uint64_t stream, uint64_t bytes);

#endif
