/* SPDX-License-Identifier: MIT */
/* counters.h: an allocator's counters, its ring of growth events, and its latencies.
 *
 * This file has no counter for the memory that is in use or reserved now: the engine takes these figures from the
 * driver or from the engine's tables.  Each counter is a relaxed atomic, independent of all other counters.  The ring
 * has a lock, since growth is rare.
 *
 * This file must not know engines or drivers (callers pass times as numbers).
 */
#ifndef WEIR_COUNTERS_H
#define WEIR_COUNTERS_H

#include <pthread.h>
#include <stdatomic.h>

#include <weir/stats.h>

#include "base/histogram.h"
#include "base/tls.h"

/* ---- counters that every call raises, without a locked instruction ---- */

/* Each of the first WEIR_STRIPED_STRIPES threads that count anything owns one stripe of every counter.  Only this
 * thread writes the stripe, so the thread counts by a load and a store.  All later threads share one more stripe, and
 * count by atomic addition.  (A locked addition costs 5 to 12 ns; a request that the driver serves from its pool costs
 * about 60.)  No other thread gets the stripe of an ended thread, so the counts of the ended thread stay. */
enum {
    WEIR_STRIPED_ALLOCS, /* counted here only if there are no caches */
    WEIR_STRIPED_FREES,  /* frees that no per-stream cache has counted */
    WEIR_STRIPED_COUNTERS
};
enum { WEIR_STRIPED_STRIPES = 64 };

/* The counters of one stripe fill a cache line.  The last stripe is the shared one. */
struct weir_striped {
    struct {
        _Alignas(64) _Atomic uint64_t counter[WEIR_STRIPED_COUNTERS];
    } stripe[WEIR_STRIPED_STRIPES + 1];
};

/* The number of this thread's stripe plus one, or 0 before its first count.  One instruction reads the variable
 * (initial-exec).  The variable needs four bytes of the space that the C library reserves for libraries that are loaded
 * late. */
extern _Thread_local unsigned weir__striped_thread WEIR_FAST_TLS;
unsigned weir__striped_enlist(void); /* gives this thread a stripe; returns its number plus one */

/* Returns the index of this thread's stripe. */
static inline unsigned weir__striped_own(void) {
    return (weir__striped_thread ? weir__striped_thread : weir__striped_enlist()) - 1;
}

/* Raises the counter of a stripe by one.  A thread that sums the counter up then sees all earlier writes of this
 * thread. */
static inline void weir__striped_raise(unsigned stripe, _Atomic uint64_t *mine) {
    if (stripe < WEIR_STRIPED_STRIPES)
        atomic_store_explicit(mine, atomic_load_explicit(mine, memory_order_relaxed) + 1,
                              memory_order_release);
    else
        atomic_fetch_add_explicit(mine, 1, memory_order_release);
}

static inline void weir__striped_add(struct weir_striped *striped, int counter) {
    unsigned own = weir__striped_own();

    weir__striped_raise(own, &striped->stripe[own].counter[counter]);
}

/* Returns the counter's value, which is exact if no call is under way. */
uint64_t weir__striped_sum(const struct weir_striped *striped, int counter);

/* ---- all counters of an allocator ---- */

/* The number of events that weir_events can return. */
enum { WEIR_KEPT_EVENTS = 1024 };

enum { WEIR_OPERATION_ALLOC = 0, WEIR_OPERATION_FREE = 1, WEIR_OPERATION_COUNT = 2 };

struct weir_counters {
    struct weir_striped striped; /* allocations and frees, which every call counts */

    /* Only rare events change these counters. */
    _Atomic uint64_t growth_allocs;
    _Atomic uint64_t failed_requests;
    _Atomic uint64_t retries;
    _Atomic uint64_t stall_ns;
    _Atomic uint64_t ahead_failures;
    /* The maximum of reserved memory that an event has reported since weir_tensors_reset_peaks() stored another. */
    _Atomic uint64_t reserved_peak;
    struct {
        _Atomic uint64_t asked, got, kept, ns, waited_ns;
    } prealloc;

    /* Guards the fields below; a thread that holds this lock takes no other lock. */
    pthread_mutex_t lock;
    weir_statistics sums; /* the fields that are sums over all events; all other fields are 0 */
    struct {
        uint64_t next_sequence;   /* the sequence number of the next event; the first is 1 */
        struct weir_event *event; /* the event with number s is at (s - 1) % WEIR_KEPT_EVENTS */
    } ring;

    /* One histogram for each operation, or NULL if latencies are not measured.  The pointer is fixed after
     * weir__counters_open. */
    struct weir_histogram *latency;
};

/* Opens the counters, with histograms of latencies if `latency' is not 0.  Returns 1 on success, 0 if there is no host
 * memory. */
int weir__counters_open(struct weir_counters *counters, int latency);
void weir__counters_close(struct weir_counters *counters);

/* Records one growth or shrink.  The event gets its sequence number here. */
void weir__counters_event(struct weir_counters *counters, const weir_event *event);

/* Sets the fields of *out that the counters have, and all other fields to 0. */
void weir__counters_read(struct weir_counters *counters, weir_statistics *out);
size_t weir__counters_events(struct weir_counters *counters, uint64_t after, void *events,
                             size_t event_bytes, size_t capacity);

/* A failed request, with the figures that weir_last_failure returns and the figures that an OOM report needs. */
struct weir_failed_request {
    weir_failure figures;
    uint64_t by;     /* the allocator's number, or 0 if no request has failed yet */
    uint64_t stream; /* the stream's id, or 0 if it is not known */
    int is_captured; /* nonzero if the stream was being captured */
    int result;      /* the driver's result, or 0 if no driver call failed */
    weir_status status;
};

/* Stores the last failed request of the calling thread. */
void weir__failure_set(const struct weir_failed_request *refused);
/* Returns the last failed request of the calling thread. */
void weir__failure_get(struct weir_failed_request *out);
/* Returns the number of failures in this thread, so that a caller can see whether a new failure has come. */
uint64_t weir__failures_met(void);
/* Sets the requested bytes of the thread's last failure. */
void weir__failure_asked(uint64_t bytes);

#endif
