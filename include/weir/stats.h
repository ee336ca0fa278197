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

/* Figures of one allocator.  Bytes unless the name says otherwise.  Identities that hold whenever
 * no call is under way:
 *     allocs == hits + growth_allocs           allocs - frees == blocks
 *     requested <= in_use <= reserve            x <= x_peak for each pair
 *     attempts == allocs + refusals             in_use + front_idle <= reserve
 * and, with the front (the caches per stream, options.front) on,
 *     allocs == front_hits + front_misses_young + front_misses_empty + front_misses_capture
 * while all four are 0 with it off.  With the front on, requested_peak and in_use_peak are exact while one stream
 * alone has been used; with several they are as seen whenever the blocks that the front has of the engine come to
 * be a 32nd more than ever (16 MiB at least), at times in between and by weir_stats: a lower bound, by that and by
 * what idle memory of the front was part of them.  Where other threads are at work they may be seen some blocks
 * too high.
 * Times are of the allocator's device: virtual on the device model.  What the driver takes to move idle
 * units of 32 MiB of its pool together for a larger request (H200: 1 ms for each GiB) is not in stall_ns:
 * nothing that it tells changes. */
typedef struct weir_statistics {
    size_t size;            /* bytes that the library filled in */
    uint64_t attempts;      /* weir_alloc calls that were served or met a refusal (below) */
    uint64_t allocs;        /* of these, served */
    uint64_t frees;         /* weir_free calls that freed a block */
    uint64_t hits;          /* served without a growth step */
    uint64_t growth_allocs; /* served after at least one growth step */
    uint64_t refusals;      /* not served: limit or out of memory */
    uint64_t retries;       /* times the out-of-memory ladder ran and asked again */
    uint64_t growths;      /* growth steps, those of preallocation and in the background included */
    uint64_t growth_bytes; /* added by them */
    uint64_t stall_ns;     /* time callers spent in growth steps and the ladder */
    uint64_t trims;        /* times that reserve was given back on request */
    uint64_t trim_bytes;   /* given back by them */
    uint64_t blocks;       /* live */
    uint64_t requested;    /* in live blocks, as asked */
    uint64_t requested_peak;
    uint64_t in_use; /* in live blocks, as handed out (rounded) */
    uint64_t in_use_peak;
    uint64_t reserve; /* taken from the device */
    uint64_t reserve_peak;
    uint64_t extent;         /* arena: highest address ever used less base, over all regions */
    uint64_t prealloc_asked; /* preallocation: asked, */
    uint64_t prealloc_got;   /* really added to the reserve, by tries that gave it back too, */
    uint64_t prealloc_kept;  /* still there after the release threshold had its say, */
    uint64_t prealloc_ns;    /* and the time it took, waits for other processes left out */
    uint64_t host_bytes;     /* host memory that the engine's and the front's records take */

    uint64_t front_hits;           /* served from a cache of their stream, without the engine */
    uint64_t front_misses_young;   /* went to the engine: the stream has no cache (yet), */
    uint64_t front_misses_empty;   /* its cache had nothing of that size, */
    uint64_t front_misses_capture; /* or the stream was being captured */
    uint64_t steals;         /* served only with what other streams freed, once events were done */
    uint64_t event_records;  /* events that weir recorded to order reuse between streams */
    uint64_t deferred_frees; /* under stream capture, of blocks from outside it: kept to its end */
    uint64_t front_idle;     /* bytes that the caches hold idle; part of reserve, not of in_use */
    uint64_t front_streams;  /* streams that have a cache */

    uint64_t late_writes; /* options.harden, poison: blocks that were written to after the free */
    uint64_t overruns;    /* guard: gaps beside a block that were written to */
    uint64_t kept_out;    /* bytes of the former, and of what the driver did not let verify, kept
                           * out of use until the end, and of what it did not take back yet; part of
                           * reserve, not of in_use */

    uint64_t ahead_steps;    /* growth steps in the background; part of growths, */
    uint64_t ahead_bytes;    /* added by them; part of growth_bytes, */
    uint64_t ahead_ns;       /* and the time they took, which is nobody's stall */
    uint64_t ahead_refusals; /* steps not made, or in vain: at the limit, or the device is short */

    uint64_t prealloc_pending;   /* bytes that a preallocation in the background has yet to get */
    uint64_t prealloc_waited_ns; /* real time that preallocation waited for other processes */

    uint64_t profile_asked; /* options.profile: bytes that it had preallocated; in prealloc_asked */
    uint64_t profile_runs;  /* runs that it was learned from; 0: there was none that would do */

    uint64_t appeals;      /* options.ledger: times that other processes were asked for memory, */
    uint64_t appeal_bytes; /* given back by them then; */
    uint64_t yields; /* times that reserve was given back as another one asked, or a share fell, */
    uint64_t yield_bytes; /* and what went */
} weir_statistics;

/* Latencies of weir_alloc and weir_free in nanoseconds, when options.latency is on. */
typedef struct weir_latency {
    size_t size;
    uint64_t count;
    uint64_t p50_ns, p90_ns, p99_ns, p999_ns; /* upper bounds, within 1/32 of the true value */
    uint64_t max_ns;                          /* exact */
    uint64_t total_ns;
} weir_latency;

/* Why the reserve grew or shrank: X(name, word). */
#define WEIR_EVENT_CAUSES(X)                                                                       \
    X(REQUEST, "request")       /* a request did not fit */                                        \
    X(POLICY, "policy")         /* topped up to the growth policy's step, beyond the request */    \
    X(PREALLOC, "prealloc")     /* preallocation */                                                \
    X(TRIM, "trim")             /* weir_trim */                                                    \
    X(RECOVERY, "recovery")     /* given back by the out-of-memory ladder */                       \
    X(HEADROOM, "headroom")     /* in the background, ahead of demand: options.headroom */         \
    X(BACKGROUND, "background") /* preallocation in the background */                              \
    X(DECAY, "decay")           /* given back after it was idle for long: options.decay_ms */      \
    X(LOW_MEMORY, "low-memory") /* given back as memory was low elsewhere: weir_low_memory */      \
    X(YIELD, "yield")           /* given back as another process asked, or a share fell */         \
    X(APPEAL, "appeal")         /* other processes were asked: `got' is what they gave, and the    \
                                 * reserve is as it was */

enum {
#define WEIR_EVENT_ENUM(name, word) WEIR_EVENT_##name,
    WEIR_EVENT_CAUSES(WEIR_EVENT_ENUM)
#undef WEIR_EVENT_ENUM
        WEIR_EVENT_CAUSE_COUNT
};

typedef struct weir_event {
    uint64_t sequence;      /* 1 for the allocator's first event */
    uint64_t time_ns;       /* since the allocator was made, when the step ended */
    uint64_t asked;         /* bytes the step was meant to add (or to give back) */
    uint64_t got;           /* bytes by which the reserve rose (or fell) */
    uint64_t stall_ns;      /* time a caller waited for it.  Pool engine: timed, except for a step
                             * after 4,096 requests without one, which is charged by its bytes at the
                             * rate of the last timed step.  Of headroom and background: the
                             * time that it took, for which no caller waited */
    uint64_t reserve_after; /* the reserve then */
    int cause;              /* WEIR_EVENT_ */
    int shrink;             /* 0: grew, 1: gave back */
} weir_event;

/* The figures that went with the last refusal on this thread (E_NO_MEMORY or E_LIMIT). */
typedef struct weir_refusal {
    size_t size;
    uint64_t asked;       /* bytes of the request */
    uint64_t reserve;     /* of the allocator then */
    uint64_t in_use;      /* of the allocator then, as weir_stats has it */
    uint64_t limit;       /* UINT64_MAX: none */
    uint64_t device_free; /* on the device then; UINT64_MAX: not known */
    uint64_t device_total;
    uint64_t waited_ns; /* spent in the ladder */
    /* Bytes of a request that would have been served on that stream then, the largest that is known of; 0: none is.
     * True as long as nobody else takes memory, and less than what could be had where not all is known:
     *   arena, front off     exact, but for frees that are pending
     *   pool, front off      what the pool may grow by, in units of 32 MiB: the driver does not tell what
     *                        lies free inside, all of what was preallocated at first.  When the ladder has
     *                        given idle units back, that is no more than parts of units
     *   platform, front off  what the limit and the device leave, in pages of 2 MiB
     *   front on             of these and of the free pieces in weir's own regions the largest, less what a
     *                        request is rounded up by; not what lies in caches
     * A GPU's driver may refuse the last MiB of what it says is free.  0 under stream capture. */
    uint64_t largest;
} weir_refusal;

struct weir_allocator;

/* Copies the figures.  Set out->size to sizeof(*out) before: the smaller of both sizes is copied,
 * and out->size tells how much.  Thread-safe; asks the driver for two or three numbers; consistent
 * as a whole when no other call is under way, each figure right in itself otherwise.  Works after
 * E_DEVICE_LOST (figures that only the driver has are then as last seen).
 * E_INVALID: NULL or size 0.  E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_stats(struct weir_allocator *allocator,
                                                  weir_statistics *out);

/* Latencies of alloc (operation 0) or free (operation 1) so far; out->size as for weir_stats.
 * E_INVALID: NULL or size 0, another operation; E_NOT_SUPPORTED: options.latency is off; E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_latencies(struct weir_allocator *allocator,
                                                      int operation, weir_latency *out);

/* Copies up to `capacity` events with sequence > `after`, oldest first, each event_bytes
 * (sizeof(weir_event)) apart, and their number to *count.  Older events than the ring holds are
 * gone: the first sequence copied shows it.  Thread-safe.  E_INVALID: NULL, event_bytes 0;
 * E_FORKED. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_events(struct weir_allocator *allocator, uint64_t after,
                                                   weir_event *events, size_t event_bytes,
                                                   size_t capacity, size_t *count);

/* The word of a cause ("request", ...), "unknown" for any other number.  Static text. */
WEIR_API const char *weir_event_cause_word(int cause);

/* The last refusal on this thread, zeros if there was none; out->size as for weir_stats.  E_INVALID: NULL or size 0. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_last_refusal(weir_refusal *out);

#ifdef __cplusplus
}
#endif

#endif
