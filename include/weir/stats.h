/* SPDX-License-Identifier: MIT */
/* weir/stats.h: statistics, growth events, latencies and failures of an allocator. */
#ifndef WEIR_STATS_H
#define WEIR_STATS_H

#include <stddef.h>
#include <stdint.h>

#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The figures of one allocator, in bytes unless the name says otherwise.  The following holds if no call is running:
 *     allocs == hits + growth_allocs           allocs - frees == blocks
 *     requested <= in_use <= reserved           x <= x_peak for each pair
 *     attempts == allocs + failed_requests      in_use + cache_idle <= reserved
 * and, with the per-stream caches (options.cache) on,
 *     allocs == cache_hits + cache_misses_young + cache_misses_empty + cache_misses_capture
 * With options.cache off, the four figures on the right are 0.
 *
 * With options.cache on, requested_peak and in_use_peak are exact as long as only one stream has been used.  With
 * several streams, both figures are lower bounds.  weir updates them when the bytes of the caches' blocks exceed their
 * last maximum by a 32nd (at least 16 MiB), sometimes in between, and in weir_stats.  The figures are too low by at
 * most this step and the idle memory of the caches.  While other threads allocate, the figures may be too high by some
 * blocks.
 *
 * Times come from the clock of the allocator's device, which is virtual on the device model.  The driver may move idle
 * units of 32 MiB of its pool together for a larger request (1 ms for each GiB on an H200).  stall_ns does not include
 * this time, because weir cannot observe such a move. */
typedef struct weir_statistics {
    size_t size; /* the bytes of this struct that the library has filled in */
    /* The number of finished calls of weir_alloc for more than 0 bytes. */
    uint64_t attempts;
    uint64_t allocs;        /* the number of calls of weir_alloc that succeeded */
    uint64_t frees;         /* the number of calls of weir_free that have freed a block */
    uint64_t hits;          /* the number of requests that succeeded without new reserved memory */
    uint64_t growth_allocs; /* the number of requests for which reserved memory was added */
    /* The number of requests that failed because of the limit or lack of memory. */
    uint64_t failed_requests;
    uint64_t retries; /* the number of times that OOM recovery retried a request */
    /* The number of times that reserved memory was added, including preallocation and background growth. */
    uint64_t growths;
    uint64_t growth_bytes; /* the bytes of reserved memory that were added */
    /* The time that callers waited while memory was added, or in OOM recovery. */
    uint64_t stall_ns;
    uint64_t trims;        /* the number of calls such as weir_trim that released memory */
    uint64_t trim_bytes;   /* the bytes that calls such as weir_trim released */
    uint64_t blocks;       /* the number of live blocks */
    uint64_t requested;    /* the requested bytes of all live blocks */
    uint64_t requested_peak;
    /* The bytes of all live blocks, with the rounding of block sizes.  With options.harden, the bytes include the gaps
     * of the guard instead of the rounding.  A freed block does not count, even if weir delays its reuse. */
    uint64_t in_use;
    /* The peak of in_use.  With options.harden, the peak includes the rounding, too, and the blocks that the guard
     * keeps. */
    uint64_t in_use_peak;
    uint64_t reserved; /* the bytes that the allocator has reserved on the device */
    uint64_t reserved_peak;
    /* For the engines mapped and bfc: how far blocks have reached in the regions.  This is the distance from the start
     * of a region to the highest address that a block has used, summed over all regions. */
    uint64_t extent;
    uint64_t prealloc_asked; /* the bytes that preallocations requested */
    /* The bytes that preallocations got, including bytes that weir has released since then. */
    uint64_t prealloc_got;
    /* The bytes of preallocations that stayed reserved after weir applied the release threshold. */
    uint64_t prealloc_kept;
    /* The time that preallocations took.  Does not include the time that they waited for other processes. */
    uint64_t prealloc_ns;
    uint64_t host_bytes; /* host memory for tables of the engine and of the caches */

    /* The number of requests that got a block from a per-stream cache. */
    uint64_t cache_hits;
    uint64_t cache_misses_young; /* the number of requests whose stream had no cache yet */
    /* The number of requests for which the stream's cache had no suitable block. */
    uint64_t cache_misses_empty;
    uint64_t cache_misses_capture; /* the number of requests on streams under capture */
    /* The number of requests that got memory which another stream had freed, in an order that CUDA events ensure. */
    uint64_t steals;
    /* The number of CUDA events that weir has recorded, so that one stream can safely reuse memory of another
     * stream. */
    uint64_t event_records;
    /* The number of frees during a capture of blocks that were allocated before the capture.  weir executes such a free
     * after the end of the capture. */
    uint64_t deferred_frees;
    /* The idle bytes in the per-stream caches.  Included in `reserved`, but not in `in_use`. */
    uint64_t cache_idle;
    uint64_t cache_streams; /* the number of streams that have a cache */

    /* For options.harden with poison: the number of freed blocks to which the program has written after the free. */
    uint64_t late_writes;
    /* For options.harden with guard: the number of times that the program has written before the start or after the end
     * of a block. */
    uint64_t overruns;
    /* The bytes that weir does not reuse until the allocator is destroyed: freed blocks to which the program has
     * written, and blocks that weir could not check because the driver failed.  Also includes bytes that the driver has
     * not yet released.  Included in `reserved`, but not in `in_use`. */
    uint64_t kept_out;

    uint64_t ahead_steps; /* the times that background growth added memory; included in `growths` */
    uint64_t ahead_bytes; /* the bytes that background growth added; included in `growth_bytes` */
    uint64_t ahead_ns;    /* the time that background growth took; not included in `stall_ns` */
    /* The number of times that background growth could add no memory, because of the limit or a full device. */
    uint64_t ahead_failures;

    uint64_t prealloc_waited_ns; /* the real time that preallocations waited for other processes */

    /* The bytes that options.profile added to the preallocation; included in `prealloc_asked`. */
    uint64_t profile_asked;
    /* The number of earlier runs in the profile of options.profile; 0 if weir could not use the profile. */
    uint64_t profile_runs;

    /* The number of times that weir asked other processes to release memory (options.registry). */
    uint64_t reclaims;
    /* The bytes that other processes released because weir asked them. */
    uint64_t received_bytes;
    /* The number of times that weir released memory because another process asked for it, or because the share of the
     * device that this process may use became smaller. */
    uint64_t releases;
    /* The bytes that weir released for other processes, or because its share of the device became smaller. */
    uint64_t released_bytes;
} weir_statistics;

/* The latencies of weir_alloc or of weir_free in nanoseconds.  weir measures them only if options.latency is on. */
typedef struct weir_latency {
    size_t size;
    uint64_t count;
    /* Percentiles of the latencies.  Each value is at most 1/32 above the exact percentile, and never below it. */
    uint64_t p50_ns, p90_ns, p99_ns, p999_ns;
    uint64_t max_ns; /* the exact maximum of all latencies */
    uint64_t total_ns;
} weir_latency;

/* The causes of changes of the reserved memory, as X(name, word). */
#define WEIR_EVENT_CAUSES(X)                                                                       \
    X(REQUEST, "request")       /* memory was added for a request */                               \
    X(POLICY, "policy")         /* more memory was added than requested */                         \
    X(PREALLOC, "prealloc")     /* memory was preallocated */                                      \
    X(TRIM, "trim")             /* weir_trim released memory */                                    \
    X(RECOVERY, "recovery")     /* OOM recovery released memory */                                 \
    X(GROW_AHEAD, "grow-ahead") /* a thread added memory (options.grow_ahead) */                   \
    X(DECAY, "decay")           /* memory was idle (decay_ms, release_threshold) */                \
    X(LOW_MEMORY, "low-memory") /* memory was released after weir_low_memory */                    \
    X(RELEASE, "release")       /* memory was released for other processes */                      \
    X(RECLAIM, "reclaim")       /* other processes released `got` bytes for this one */

enum {
#define WEIR_EVENT_ENUM(name, word) WEIR_EVENT_##name,
    WEIR_EVENT_CAUSES(WEIR_EVENT_ENUM)
#undef WEIR_EVENT_ENUM
        WEIR_EVENT_CAUSE_COUNT
};

typedef struct weir_event {
    uint64_t sequence; /* the number of the event; the first event of an allocator has 1 */
    uint64_t time_ns;  /* the time from the allocator's creation to the end of the event */
    uint64_t asked;    /* the bytes that weir tried to add (or to release) */
    uint64_t got;      /* the bytes by which the reserved memory grew (or shrank) */
    /* The time that a caller waited while the memory was added or released.  For GROW_AHEAD, the time that the
     * background thread needed, while no caller waited. */
    uint64_t stall_ns;
    uint64_t reserved_after; /* the allocator's reserved memory after the event */
    int cause;               /* the cause, a WEIR_EVENT_ constant */
    int shrink;              /* 1 if memory was released, 0 if memory was added */
} weir_event;

/* The state of the allocator when the last request of this thread failed (E_NO_MEMORY or E_LIMIT). */
typedef struct weir_failure {
    size_t size;
    uint64_t asked;    /* the bytes of the request */
    uint64_t reserved; /* the allocator's reserved memory at the time of the failure */
    uint64_t in_use;   /* the bytes in live blocks at the time of the failure */
    uint64_t limit;    /* the limit of the reserved memory, or UINT64_MAX if there is no limit */
    /* The device's free memory at the time of the failure, or UINT64_MAX if it is not known. */
    uint64_t device_free;
    uint64_t device_total;
    uint64_t waited_ns; /* the nanoseconds that the request waited for memory */
    /* The size of the largest request that surely was possible on this stream at the time of the failure, as long as no
     * other program takes memory.  The field is 0 if weir does not know such a size, and under stream capture.  A
     * larger request may have been possible:
     *   mapped, bfc   The size is exact, except for frees that are pending.
     *   pool          The size is the bytes by which the pool may grow, in units of 32 MiB.  The driver does not report
     *                 the free memory inside the pool.  At first this is all preallocated memory.  After OOM recovery
     *                 it is parts of units.
     *   direct        The size is the bytes that the limit and the device still allow, in pages of 2 MiB.
     * With caches, the size is less by the rounding of a request, and does not include memory in caches.  A GPU's
     * driver may not provide the last MiB of the memory that the driver reports as free. */
    uint64_t largest;
} weir_failure;

struct weir_allocator;

/* Copies the figures of an allocator to *out.  Set out->size to sizeof(*out) before the call.  The call fills *out as
 * far as both sizes allow, and writes the size of this part to out->size.  Thread-safe.  The call does not block, but
 * queries two or three numbers of the driver.  The figures are consistent with each other if no other call is running.
 * Otherwise each single figure is correct.  The call still works after E_DEVICE_LOST.  Figures that only the driver
 * knows are then those of the last query.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: an argument is NULL, or out->size is 0.
 * E_FORKED: the call came from a child of fork().  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_stats(struct weir_allocator *allocator,
                                                  weir_statistics *out);

/* Copies the latencies of all calls of weir_alloc (operation 0) or weir_free (operation 1) so far to *out.  Set
 * out->size to sizeof(*out) before the call, as for weir_stats.  Thread-safe, never blocks.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: an argument is NULL, out->size is 0, or there is no such operation.
 * E_NOT_SUPPORTED: options.latency is off.
 * E_FORKED: the call came from a child of fork().  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_latencies(struct weir_allocator *allocator,
                                                      int operation, weir_latency *out);

/* Copies up to `capacity` events with a sequence number above `after` to `events`, oldest first.  Writes the number of
 * copied events to *count.  `event_bytes` is sizeof(weir_event), which is the distance between two events in the array.
 * `events` may be NULL if `capacity` is 0.  The allocator keeps only its latest events.  If the first copied event does
 * not have the number after + 1, older events are lost.  Thread-safe.  The call waits only for a lock that other
 * threads hold for a short time.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: an argument is NULL, or event_bytes is 0.
 * E_FORKED: the call came from a child of fork().  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_events(struct weir_allocator *allocator, uint64_t after,
                                                   weir_event *events, size_t event_bytes,
                                                   size_t capacity, size_t *count);

/* Returns the word for a cause, such as "request", or "unknown" for any other number.  The text is static.
 * Thread-safe, never blocks.  Since 0.1. */
WEIR_API const char *weir_event_cause_word(int cause);

/* Copies the figures of this thread's last failed request to *out, or zeros if no request of this thread has failed.
 * Set out->size to sizeof(*out) before the call, as for weir_stats.  Thread-local, never blocks.
 *
 * Returns OK or this status.
 * E_INVALID: `out` is NULL, or out->size is 0.  Since 0.2. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_last_failure(weir_failure *out);

#ifdef __cplusplus
}
#endif

#endif
