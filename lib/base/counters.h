/* SPDX-License-Identifier: MIT */
/* counters.h: the counters of an allocator, its ring of growth events, and its histograms of latencies.
 *
 * This file does not count the memory that is in use or reserved.  The engine knows these figures, from the driver or
 * from its own tables.  Each counter is a relaxed atomic, and independent of all other counters.  A mutex guards the
 * ring of events, since growth is rare.
 *
 * This file must not know engines or drivers.  Callers pass times as numbers. */
#ifndef WEIR_COUNTERS_H
#define WEIR_COUNTERS_H

#include <pthread.h>
#include <stdatomic.h>

#include <weir/stats.h>

#include "base/histogram.h"
#include "base/tls.h"

/* ---- counters that every call raises, without a locked instruction ---- */

/* Each counter consists of stripes.  Each of the first WEIR_STRIPED_STRIPES threads that count something owns one
 * stripe.  Only the owner writes a stripe, so the owner counts by a load and a store.  All later threads share the last
 * stripe, and count by atomic additions.  (An atomic addition costs 5 to 12 ns.  A request that the driver serves from
 * its pool costs about 60 ns.)  When a thread ends, its stripe keeps its counts, and no other thread gets the
 * stripe. */
enum {
    WEIR_STRIPED_ALLOCS, /* allocations, if the allocator has no per-stream caches */
    WEIR_STRIPED_FREES,  /* frees that no per-stream cache has counted */
    WEIR_STRIPED_COUNTERS
};
enum { WEIR_STRIPED_STRIPES = 64 };

/* The counters of one stripe fill a cache line, so that threads do not write to one line.  The last stripe is the
 * shared stripe. */
struct weir_striped {
    struct {
        _Alignas(64) _Atomic uint64_t counter[WEIR_STRIPED_COUNTERS];
    } stripe[WEIR_STRIPED_STRIPES + 1];
};

/* The index of this thread's stripe plus one, or 0 if the thread has counted nothing yet.  The thread reads the
 * variable with one instruction (TLS model initial-exec).  The variable needs four bytes of the space that the C
 * library reserves for libraries that a program loads late. */
extern _Thread_local unsigned weir__striped_thread WEIR_FAST_TLS;
/* Assigns a stripe to this thread.  Returns the index of the stripe plus one. */
unsigned weir__striped_enlist(void);

/* Returns the index of this thread's stripe.  Assigns a stripe to the thread first if necessary. */
static inline unsigned weir__striped_own(void) {
    return (weir__striped_thread ? weir__striped_thread : weir__striped_enlist()) - 1;
}

/* Adds one to a counter of a stripe.  A thread that reads the new value also sees all earlier writes of this thread. */
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

/* Returns the sum of a counter over all stripes.  The sum is exact unless another thread counts during the call. */
uint64_t weir__striped_sum(const struct weir_striped *striped, int counter);

/* ---- all counters of an allocator ---- */

/* The number of events that an allocator keeps for weir_events(). */
enum { WEIR_KEPT_EVENTS = 1024 };

enum { WEIR_OPERATION_ALLOC = 0, WEIR_OPERATION_FREE = 1, WEIR_OPERATION_COUNT = 2 };

struct weir_counters {
    struct weir_striped striped; /* numbers of allocations and frees */

    /* Counters of rare events, so each is a single atomic variable without stripes. */
    _Atomic uint64_t growth_allocs;
    _Atomic uint64_t failed_requests;
    _Atomic uint64_t retries;
    _Atomic uint64_t stall_ns;
    _Atomic uint64_t ahead_failures;
    /* The maximum of the reserved bytes after any event.  weir_tensors_reset_peaks() sets the maximum to the bytes that
     * are reserved at that time. */
    _Atomic uint64_t reserved_peak;
    struct {
        _Atomic uint64_t asked, got, kept, ns, waited_ns;
    } prealloc;

    /* Guards the fields below.  A thread that holds this lock takes no other lock. */
    pthread_mutex_t lock;
    weir_statistics sums; /* sums over all events; all other fields are 0 */
    struct {
        uint64_t next_sequence; /* the sequence number that the next event gets; 1 at first */
        /* The event with sequence number s is at index (s - 1) % WEIR_KEPT_EVENTS. */
        struct weir_event *event;
    } ring;

    /* One histogram of latencies for each operation, or NULL if weir does not measure latencies.  The pointer does not
     * change after weir__counters_open(). */
    struct weir_histogram *latency;
};

/* Initialises the counters.  If `latency` is not 0, also allocates the histograms of latencies.  Returns 1 on success,
 * 0 if there is no host memory. */
int weir__counters_open(struct weir_counters *counters, int latency);
void weir__counters_close(struct weir_counters *counters);

/* Records that the reserved memory has grown or shrunk.  The function gives the event its sequence number. */
void weir__counters_event(struct weir_counters *counters, const weir_event *event);

/* Copies the counters to *out.  Sets each field of *out to 0 for which this file has no counter. */
void weir__counters_read(struct weir_counters *counters, weir_statistics *out);
size_t weir__counters_events(struct weir_counters *counters, uint64_t after, void *events,
                             size_t event_bytes, size_t capacity);

/* A failed request: the figures for weir_last_failure(), and more figures for an OOM report. */
struct weir_failed_request {
    weir_failure figures;
    /* The number of the allocator that failed, or 0 if no request has failed yet. */
    uint64_t by;
    uint64_t stream; /* the id of the request's stream, or 0 if the id is not known */
    int is_captured; /* set if the request's stream was being captured */
    int result;      /* the driver's result, or 0 if no driver call failed */
    weir_status status;
};

/* Stores the last failed request of the calling thread. */
void weir__failure_set(const struct weir_failed_request *refused);
/* Copies the last failed request of the calling thread to *out. */
void weir__failure_get(struct weir_failed_request *out);
/* Returns how many requests of the calling thread have failed so far.  A caller that compares two results sees whether
 * another request has failed in between. */
uint64_t weir__failures_met(void);
/* Replaces the size of the request in the calling thread's last failed request. */
void weir__failure_asked(uint64_t bytes);

#endif
