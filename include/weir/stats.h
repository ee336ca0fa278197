/* SPDX-License-Identifier: MIT */
/* weir/stats.h: what an allocator did, in figures and events. */
#ifndef WEIR_STATS_H
#define WEIR_STATS_H

#include <stddef.h>
#include <stdint.h>

#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Figures of one allocator.  Bytes unless the name says otherwise.  Identities that hold whenever no call is under
 * way:
 *     allocs == hits + growth_allocs           allocs - frees == blocks
 *     requested <= in_use <= reserved           x <= x_peak for each pair
 *     attempts == allocs + failed_requests      in_use + cache_idle <= reserved
 * and, with the per-stream caches (options.cache) on,
 *     allocs == cache_hits + cache_misses_young + cache_misses_empty + cache_misses_capture
 * With options.cache off all four are 0.
 *
 * With options.cache on, requested_peak and in_use_peak are exact while only one stream has been used.  With several
 * they are a lower bound.  weir updates them whenever the blocks that the caches have of the engine reach a new
 * maximum by a 32nd (16 MiB at least), at times in between, and in weir_stats.  They are too low by at most that
 * step and by what idle memory of the caches was part of them.  Where other threads are at work they may be some
 * blocks too high.
 *
 * Times are of the allocator's device: virtual on the device model.  The driver may move idle units of 32 MiB of its
 * pool together for a larger request (H200: 1 ms for each GiB).  stall_ns does not include that, because nothing
 * that the driver reports changes. */
typedef struct weir_statistics {
    size_t size;            /* bytes that the library filled in */
    uint64_t attempts;      /* weir_alloc calls of more than 0 bytes that ended */
    uint64_t allocs;        /* of these, those that succeeded */
    uint64_t frees;         /* weir_free calls that freed a block */
    uint64_t hits;          /* requests that succeeded without pool growth */
    uint64_t growth_allocs; /* requests that succeeded after pool growth */
    uint64_t failed_requests; /* allocation failures: limit or out of memory */
    uint64_t retries;       /* times that OOM recovery ran and tried again */
    uint64_t growths;       /* pool growths, including preallocation and background growth */
    uint64_t growth_bytes;  /* added by them */
    uint64_t stall_ns;      /* time that callers spent in pool growth and OOM recovery */
    uint64_t trims;         /* times that weir gave memory back on request */
    uint64_t trim_bytes;    /* given back by them */
    uint64_t blocks;        /* live */
    uint64_t requested;     /* in live blocks, as requested */
    uint64_t requested_peak;
    uint64_t in_use; /* in live blocks, rounded as weir allocates them */
    uint64_t in_use_peak;
    uint64_t reserved; /* taken from the device */
    uint64_t reserved_peak;
    uint64_t extent;         /* arena: highest address ever used less base, over all regions */
    uint64_t prealloc_asked; /* preallocation: requested, */
    uint64_t prealloc_got;   /* really taken, also by tries that gave it back, */
    uint64_t prealloc_kept;  /* still there after the release threshold applied, */
    uint64_t prealloc_ns;    /* and the time it took, without waits for other processes */
    uint64_t host_bytes;     /* host memory for the records of the engine and the caches */

    uint64_t cache_hits;           /* a per-stream cache served them, without the engine */
    uint64_t cache_misses_young;   /* went to the engine: the stream has no cache (yet), */
    uint64_t cache_misses_empty;   /* its cache had nothing of that size, */
    uint64_t cache_misses_capture; /* or the stream was being captured */
    uint64_t steals;               /* served only by memory freed on other streams, after events */
    uint64_t event_records;        /* events that weir recorded to order reuse between streams */
    uint64_t deferred_frees; /* frees under stream capture of outside blocks, kept to its end */
    uint64_t cache_idle;     /* bytes that the caches hold idle; part of reserved, not of in_use */
    uint64_t cache_streams;  /* streams that have a cache */

    uint64_t late_writes; /* options.harden, poison: blocks written to after the free */
    uint64_t overruns;    /* guard: gaps beside a block written to */
    uint64_t kept_out;    /* bytes out of use until the end: blocks of late_writes, and those that
                           * the driver did not let weir verify; and bytes that the driver did not
                           * take back yet.  Part of reserved, not of in_use */

    uint64_t ahead_steps;    /* steps of background growth; part of growths, */
    uint64_t ahead_bytes;    /* added by them; part of growth_bytes, */
    uint64_t ahead_ns;       /* and the time they took, which is not in stall_ns */
    uint64_t ahead_failures; /* steps skipped or without effect: limit reached, or device full */

    uint64_t prealloc_waited_ns; /* real time that preallocation waited for other processes */

    uint64_t profile_asked; /* bytes preallocated because of options.profile; in prealloc_asked */
    uint64_t profile_runs;  /* runs in the profile; 0: none was usable */

    uint64_t reclaims; /* options.registry: times that weir asked other processes for memory, */
    uint64_t received_bytes; /* and what they gave back; */
    uint64_t releases; /* times that weir gave memory to another process, or to a lower share, */
    uint64_t released_bytes; /* and what went */
} weir_statistics;

/* Latencies of weir_alloc and weir_free in nanoseconds, when options.latency is on. */
typedef struct weir_latency {
    size_t size;
    uint64_t count;
    uint64_t p50_ns, p90_ns, p99_ns, p999_ns; /* upper bounds, within 1/32 of the true value */
    uint64_t max_ns;                          /* exact */
    uint64_t total_ns;
} weir_latency;

/* Why reserved memory grew or shrank: X(name, word). */
#define WEIR_EVENT_CAUSES(X)                                                                       \
    X(REQUEST, "request")       /* a request did not fit */                                        \
    X(POLICY, "policy")         /* topped up to the growth policy's step, beyond the request */    \
    X(PREALLOC, "prealloc")     /* preallocation */                                                \
    X(TRIM, "trim")             /* weir_trim */                                                    \
    X(RECOVERY, "recovery")     /* given back in OOM recovery */                                   \
    X(GROW_AHEAD, "grow-ahead") /* background growth: options.grow_ahead */                        \
    X(DECAY, "decay")           /* given back after it was idle for long: options.decay_ms */      \
    X(LOW_MEMORY, "low-memory") /* given back under memory pressure: weir_low_memory */            \
    X(RELEASE, "release")       /* given back to another process, or as a share fell */            \
    X(RECLAIM, "reclaim")       /* weir asked other processes: `got` is what they gave;            \
                                 * reserved memory did not change */

enum {
#define WEIR_EVENT_ENUM(name, word) WEIR_EVENT_##name,
    WEIR_EVENT_CAUSES(WEIR_EVENT_ENUM)
#undef WEIR_EVENT_ENUM
        WEIR_EVENT_CAUSE_COUNT
};

typedef struct weir_event {
    uint64_t sequence;      /* 1 for the allocator's first event */
    uint64_t time_ns;       /* since the allocator was made, when the step ended */
    uint64_t asked;         /* bytes that the step should add (or give back) */
    uint64_t got;           /* bytes by which reserved memory rose (or fell) */
    uint64_t stall_ns;      /* time that a caller waited for it.  Pool engine: measured, except for
                             * a step after 4,096 requests without one, which is estimated by its
                             * bytes at the rate of the last measured step.  Of GROW_AHEAD and
                             * BACKGROUND: the time it took, for which no caller waited */
    uint64_t reserved_after; /* reserved memory then */
    int cause;              /* WEIR_EVENT_ */
    int shrink;             /* 0: grew, 1: gave back */
} weir_event;

/* The figures of the last allocation failure on this thread (E_NO_MEMORY or E_LIMIT). */
typedef struct weir_failure {
    size_t size;
    uint64_t asked;       /* bytes of the request */
    uint64_t reserved;    /* reserved memory of the allocator then */
    uint64_t in_use;      /* of the allocator then, as weir_stats has it */
    uint64_t limit;       /* UINT64_MAX: none */
    uint64_t device_free; /* on the device then; UINT64_MAX: not known */
    uint64_t device_total;
    uint64_t waited_ns; /* spent in OOM recovery */
    /* Bytes of the largest request that is known to have been possible on that stream then; 0: none is known.  True
     * as long as nobody else takes memory.  It is less than what was possible where weir does not know all:
     *   arena, caches off    exact, but for frees that are pending
     *   pool, caches off     what the pool may grow by, in units of 32 MiB: the driver does not report what is free
     *                        inside, at first all that was preallocated.  After OOM recovery has given idle units
     *                        back, that is no more than parts of units
     *   direct, caches off   what the limit and the device leave, in pages of 2 MiB
     *   caches on            the largest of these and of the free pieces in weir's own regions, less what a request
     *                        is rounded up by; without what lies in caches
     * A GPU's driver may not provide the last MiB of what it reports as free.  0 under stream capture. */
    uint64_t largest;
} weir_failure;

struct weir_allocator;

/* Copies the figures.  Set out->size to sizeof(*out) before: the call copies the smaller of both sizes, and
 * out->size says how much.  Thread-safe; asks the driver for two or three numbers.  The figures are consistent as a
 * whole when no other call is under way; otherwise each figure is right in itself.  Works after E_DEVICE_LOST;
 * figures that only the driver has are then as last seen.
 * E_INVALID: NULL or size 0.
 * E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_stats(struct weir_allocator *allocator,
                                                  weir_statistics *out);

/* Copies the latencies of alloc (operation 0) or free (operation 1) so far; out->size as for weir_stats.
 * E_INVALID: NULL or size 0, another operation.
 * E_NOT_SUPPORTED: options.latency is off.
 * E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_latencies(struct weir_allocator *allocator,
                                                      int operation, weir_latency *out);

/* Copies up to `capacity` events with sequence > `after`, oldest first, and writes their number to *count.  The
 * events are event_bytes (sizeof(weir_event)) apart.  Events that the ring no longer holds are gone: the first
 * sequence copied shows it.  Thread-safe.
 * E_INVALID: NULL, event_bytes 0.
 * E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_events(struct weir_allocator *allocator, uint64_t after,
                                                   weir_event *events, size_t event_bytes,
                                                   size_t capacity, size_t *count);

/* The word of a cause ("request", ...), "unknown" for any other number.  Static text. */
WEIR_API const char *weir_event_cause_word(int cause);

/* Copies the figures of the last allocation failure on this thread, zeros if there was none; out->size as for
 * weir_stats.
 * E_INVALID: NULL or size 0. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_last_failure(weir_failure *out);

#ifdef __cplusplus
}
#endif

#endif
