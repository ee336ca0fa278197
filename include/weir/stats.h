/* SPDX-License-Identifier: MIT */
/* weir/stats.h: the figures and events of an allocator. */
#ifndef WEIR_STATS_H
#define WEIR_STATS_H

#include <stddef.h>
#include <stdint.h>

#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Figures of one allocator, in bytes unless the name says otherwise.  These identities hold whenever no call is under
 * way:
 *     allocs == hits + growth_allocs           allocs - frees == blocks
 *     requested <= in_use <= reserved           x <= x_peak for each pair
 *     attempts == allocs + failed_requests      in_use + cache_idle <= reserved
 * and, with the per-stream caches (options.cache) on,
 *     allocs == cache_hits + cache_misses_young + cache_misses_empty + cache_misses_capture
 * With options.cache off all four are 0.
 *
 * With options.cache on, requested_peak and in_use_peak are exact while only one stream has been used.  With several
 * they are a lower bound.  weir updates them whenever the caches' blocks from the engine exceed their last maximum by
 * a 32nd (16 MiB at least), at times in between, and in weir_stats.  They are too low by at most that step plus the
 * idle memory that the caches held.  While other threads allocate, they may be some blocks too high.
 *
 * Times are those of the allocator's device, and virtual on the device model.  The driver may move idle units of 32 MiB
 * of its pool together for a larger request (H200: 1 ms for each GiB).  stall_ns does not include that, because nothing
 * that the driver reports changes. */
typedef struct weir_statistics {
    size_t size;              /* bytes that the library filled in */
    uint64_t attempts;        /* weir_alloc calls of more than 0 bytes that ended */
    uint64_t allocs;          /* attempts that succeeded */
    uint64_t frees;           /* weir_free calls that freed a block */
    uint64_t hits;            /* requests that succeeded without pool growth */
    uint64_t growth_allocs;   /* requests that succeeded after pool growth */
    uint64_t failed_requests; /* allocation failures: limit or out of memory */
    uint64_t retries;         /* times that OOM recovery ran and tried again */
    uint64_t growths;         /* pool growths, including preallocation and background growth */
    uint64_t growth_bytes;    /* bytes that pool growths added */
    uint64_t stall_ns;        /* time that callers spent in pool growth and OOM recovery */
    uint64_t trims;           /* times that weir gave memory back on request */
    uint64_t trim_bytes;      /* bytes that trims gave back */
    uint64_t blocks;          /* number of live blocks */
    uint64_t requested;       /* bytes in live blocks, as requested */
    uint64_t requested_peak;
    uint64_t in_use; /* bytes in live blocks, rounded as weir allocates them */
    uint64_t in_use_peak;
    uint64_t reserved; /* bytes that the allocator has from the device */
    uint64_t reserved_peak;
    /* Engines mapped and bfc: the highest address ever used less the base of its region, summed over all regions. */
    uint64_t extent;
    uint64_t prealloc_asked; /* bytes that preallocation requested */
    uint64_t prealloc_got;   /* bytes that preallocation got, even if an attempt gave them back */
    uint64_t prealloc_kept;  /* bytes that stayed after the release threshold applied */
    uint64_t prealloc_ns;    /* time that preallocation took, without waits for other processes */
    uint64_t host_bytes;     /* host memory for the records of the engine and the caches */

    uint64_t cache_hits;           /* requests that a per-stream cache served */
    uint64_t cache_misses_young;   /* requests to the engine: the stream had no cache yet */
    uint64_t cache_misses_empty;   /* requests to the engine: the cache had no block of that size */
    uint64_t cache_misses_capture; /* requests to the engine: the stream was being captured */
    uint64_t steals;         /* requests served by memory that other streams freed, behind events */
    uint64_t event_records;  /* events that weir recorded to order reuse between streams */
    uint64_t deferred_frees; /* frees under capture of blocks from outside, deferred to its end */
    uint64_t cache_idle;     /* idle bytes in the caches; part of reserved, not of in_use */
    uint64_t cache_streams;  /* streams that have a cache */

    uint64_t late_writes; /* options.harden, poison: blocks that were written to after their free */
    uint64_t overruns;    /* options.harden, guard: gaps beside blocks that were written to */
    /* Bytes out of use until the allocator is destroyed: blocks of late_writes, and blocks that weir could not verify
     * because the driver failed; also bytes that the driver did not take back yet.  Part of reserved, not of in_use. */
    uint64_t kept_out;

    uint64_t ahead_steps;    /* steps of background growth; part of growths */
    uint64_t ahead_bytes;    /* bytes that these steps added; part of growth_bytes */
    uint64_t ahead_ns;       /* time that these steps took; not part of stall_ns */
    uint64_t ahead_failures; /* steps skipped or without effect: limit reached, or device full */

    uint64_t prealloc_waited_ns; /* real time that preallocation waited for other processes */

    uint64_t profile_asked; /* bytes preallocated because of options.profile; in prealloc_asked */
    uint64_t profile_runs;  /* number of runs in the profile; 0 if none was usable */

    uint64_t reclaims; /* times that weir asked other processes for memory (options.registry) */
    uint64_t received_bytes; /* bytes that other processes gave back for these requests */
    uint64_t releases; /* times that weir gave memory back for another process or a lower share */
    uint64_t released_bytes; /* bytes that weir gave back in these releases */
} weir_statistics;

/* Latencies of weir_alloc or weir_free in nanoseconds, if options.latency is on. */
typedef struct weir_latency {
    size_t size;
    uint64_t count;
    uint64_t p50_ns, p90_ns, p99_ns, p999_ns; /* percentiles: upper bounds, within 1/32 */
    uint64_t max_ns;                          /* exact */
    uint64_t total_ns;
} weir_latency;

/* Causes for which reserved memory grew or shrank: X(name, word). */
#define WEIR_EVENT_CAUSES(X)                                                                       \
    X(REQUEST, "request")       /* grew: a request did not fit */                                  \
    X(POLICY, "policy")         /* grew beyond the request, to the growth policy's step */         \
    X(PREALLOC, "prealloc")     /* preallocation */                                                \
    X(TRIM, "trim")             /* weir_trim */                                                    \
    X(RECOVERY, "recovery")     /* given back in OOM recovery */                                   \
    X(GROW_AHEAD, "grow-ahead") /* background growth: options.grow_ahead */                        \
    X(DECAY, "decay")           /* given back by itself: options.decay_ms, release_threshold */    \
    X(LOW_MEMORY, "low-memory") /* given back under memory pressure: weir_low_memory */            \
    X(RELEASE, "release")       /* given back to another process, or as a share fell */            \
    X(RECLAIM, "reclaim")       /* other processes gave back `got` bytes; reserved is unchanged */

enum {
#define WEIR_EVENT_ENUM(name, word) WEIR_EVENT_##name,
    WEIR_EVENT_CAUSES(WEIR_EVENT_ENUM)
#undef WEIR_EVENT_ENUM
        WEIR_EVENT_CAUSE_COUNT
};

typedef struct weir_event {
    uint64_t sequence; /* 1 for the allocator's first event */
    uint64_t time_ns;  /* time from the allocator's creation to the end of the step */
    uint64_t asked;    /* bytes that the step should add (or give back) */
    uint64_t got;      /* bytes by which reserved memory rose (or fell) */
    /* Time that a caller waited for the step; for GROW_AHEAD the time of the step, for which no caller waited. */
    uint64_t stall_ns;
    uint64_t reserved_after; /* reserved memory after the step */
    int cause;               /* WEIR_EVENT_ */
    int shrink;              /* set to 1 if the step gave memory back, 0 if it added memory */
} weir_event;

/* The figures of the last allocation failure on this thread (E_NO_MEMORY or E_LIMIT). */
typedef struct weir_failure {
    size_t size;
    uint64_t asked;       /* bytes of the request */
    uint64_t reserved;    /* reserved memory of the allocator at that time */
    uint64_t in_use;      /* in_use of weir_stats at that time */
    uint64_t limit;       /* limit of reserved memory; UINT64_MAX: no limit */
    uint64_t device_free; /* free memory of the device at that time; UINT64_MAX: not known */
    uint64_t device_total;
    uint64_t waited_ns; /* time spent in OOM recovery */
    /* Bytes of the largest request that surely was possible on that stream at that time, as long as no other program
     * takes memory.  It is 0 if no such size is known, and under stream capture.  More may have been possible:
     *   mapped, bfc   exact, except for frees that are pending
     *   pool          the bytes by which the pool may grow, in units of 32 MiB.  The driver does not report the free
     *                 memory inside the pool: at first all preallocated memory, after OOM recovery parts of units
     *   direct        the bytes that the limit and the device leave, in pages of 2 MiB
     * With caches these bytes are less by the rounding of a request, and do not include memory in caches.
     * A GPU's driver may not provide the last MiB of the memory that it reports as free. */
    uint64_t largest;
} weir_failure;

struct weir_allocator;

/* Copies the figures to *out.  Set out->size to sizeof(*out) before the call, which copies the smaller of both sizes
 * and writes that size to out->size.  Thread-safe; does not block, but asks the driver for two or three numbers.  The
 * figures are consistent as a whole if no other call is under way; otherwise each figure is right in itself.  The call
 * works after E_DEVICE_LOST; figures that only the driver has are then those of the last query.
 * E_INVALID: an argument is NULL, or out->size is 0.
 * E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_stats(struct weir_allocator *allocator,
                                                  weir_statistics *out);

/* Copies the latencies of all calls of weir_alloc (operation 0) or weir_free (operation 1) so far to *out.  Set
 * out->size as for weir_stats.  Thread-safe, never blocks.
 * E_INVALID: an argument is NULL, out->size is 0, or there is no such operation.
 * E_NOT_SUPPORTED: options.latency is off.
 * E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_latencies(struct weir_allocator *allocator,
                                                      int operation, weir_latency *out);

/* Copies up to `capacity` events with a sequence above `after`, oldest first, and writes their number to *count.
 * `event_bytes` is sizeof(weir_event), the distance between events in the array.  `events` may be NULL if capacity is
 * 0.  The allocator keeps its last events only: if the first sequence is not after + 1, older events are gone.
 * Thread-safe.  Waits only for a lock that is held briefly.
 * E_INVALID: an argument is NULL, or event_bytes is 0.
 * E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_events(struct weir_allocator *allocator, uint64_t after,
                                                   weir_event *events, size_t event_bytes,
                                                   size_t capacity, size_t *count);

/* Returns the word of a cause ("request", ...), or "unknown" for any other number.  The text is static.  Thread-safe,
 * never blocks.  Since 0.1. */
WEIR_API const char *weir_event_cause_word(int cause);

/* Copies the figures of the last allocation failure on this thread to *out, or zeros if there was none.  Set out->size
 * as for weir_stats.  Thread-local, never blocks.
 * E_INVALID: `out` is NULL, or out->size is 0.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_last_failure(weir_failure *out);

#ifdef __cplusplus
}
#endif

#endif
