/* SPDX-License-Identifier: MIT */
/* counters.h: the counters of an allocator, its ring buffer of growth events, and its histograms of latencies.
 *
 * The engine has the figures of memory in use and reserved.  A mutex guards the ring buffer, since growth is rare. */
#ifndef WEIR_COUNTERS_H
#define WEIR_COUNTERS_H

#include <pthread.h>
#include <stdatomic.h>

#include <weir/stats.h>

#include "base/histogram.h"
#include "base/tls.h"

/* ---- counters of calls ---- */

/* Frequent counters exist once for each thread, so that threads do not write to one cache line.  The array of counters
 * of a thread is a stripe.  Each of the first WEIR_STRIPED_STRIPES threads gets a stripe for ever, and increments its
 * counters by a load and a store.  All later threads share the last stripe, by atomic additions (5 to 12 ns). */
enum {
    WEIR_STRIPED_ALLOCS, /* calls of weir_alloc, if no per-stream cache counts them */
    WEIR_STRIPED_FREES,  /* calls of weir_free, if no per-stream cache counts them */
    WEIR_STRIPED_COUNTERS
};
enum { WEIR_STRIPED_STRIPES = 64 };

/* The counters of all threads, with a cache line for each stripe. */
struct weir_striped {
    struct {
        _Alignas(64) _Atomic uint64_t counter[WEIR_STRIPED_COUNTERS];
    } stripe[WEIR_STRIPED_STRIPES + 1];
};

/* The index of this thread's stripe plus one, or 0 if there is none yet.  A read is one instruction (tls.h). */
extern _Thread_local unsigned weir__striped_thread WEIR_FAST_TLS;
/* Assigns a stripe of counters to this thread, and returns the stripe's index plus one. */
unsigned weir__striped_assign(void);

/* Returns the index of this thread's array of counters in weir_striped.stripe. */
static inline unsigned weir__striped_own(void) {
    return (weir__striped_thread ? weir__striped_thread : weir__striped_assign()) - 1;
}

/* Adds one to a counter of this thread.  A thread that acquires the new value also sees all earlier writes. */
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

/* Returns the sum of one counter over all threads, exact unless another thread increments the counter meanwhile. */
uint64_t weir__striped_sum(const struct weir_striped *striped, int counter);

/* ---- counters of allocators ---- */

/* The number of latest events that an allocator stores for weir_events(). */
enum { WEIR_KEPT_EVENTS = 1024 };

enum { WEIR_OPERATION_ALLOC = 0, WEIR_OPERATION_FREE = 1, WEIR_OPERATION_COUNT = 2 };

struct weir_counters {
    struct weir_striped striped; /* numbers of allocations and frees, for each thread */

    /* counters of rare events, which all threads share */
    _Atomic uint64_t growth_allocs;
    _Atomic uint64_t failed_requests;
    _Atomic uint64_t retries;
    _Atomic uint64_t stall_ns;
    _Atomic uint64_t ahead_failures;
    _Atomic uint64_t reserved_peak; /* the peak since weir_tensors_reset_peaks() */
    struct {
        _Atomic uint64_t asked, got, kept, ns, waited_ns;
    } prealloc;

    /* Guards the sums and the ring of growth events.  Its holder takes no other lock. */
    pthread_mutex_t lock;
    weir_statistics sums; /* sums over all growth events; fields without such a sum are 0 */
    struct {
        uint64_t next_sequence; /* the sequence number of the next event; the first is 1 */
        /* A ring buffer.  The event with sequence number s is at index (s - 1) % WEIR_KEPT_EVENTS. */
        struct weir_event *event;
    } ring;

    /* Two histograms, for the latencies of allocations and of frees; NULL if weir does not measure them.  Constant. */
    struct weir_histogram *latency;
};

/* Initialises the counters, with histograms of latencies if `latency` is set.  Returns 1, or 0 without host memory. */
int weir__counters_open(struct weir_counters *counters, int latency);
void weir__counters_close(struct weir_counters *counters);

/* Records that the reserved memory has grown or shrunk, and sets the sequence number of the event. */
void weir__counters_event(struct weir_counters *counters, const weir_event *event);

/* Copies the counters to *out.  Sets all other fields of *out to 0. */
void weir__counters_read(struct weir_counters *counters, weir_statistics *out);
size_t weir__counters_events(struct weir_counters *counters, uint64_t after, void *events,
                             size_t event_bytes, size_t capacity);

/* A failed request: the values that weir_last_failure() returns, and more values for an OOM report. */
struct weir_failed_request {
    weir_failure figures;
    uint64_t by;     /* the number of the allocator, or 0 if no request has failed yet */
    uint64_t stream; /* the id of the request's stream, or 0 if the id is not known */
    int is_captured; /* set if the request's stream was being captured */
    int result;      /* the CUresult of the driver call that failed, or 0 if none failed */
    weir_status status;
};

/* Stores *refused as the last failed request of the calling thread. */
void weir__failure_set(const struct weir_failed_request *refused);
/* Copies the last failed request of the calling thread to *out. */
void weir__failure_get(struct weir_failed_request *out);
/* Returns how many requests of this thread have failed.  A caller compares two results to detect a new failure. */
uint64_t weir__failure_count(void);
/* Overwrites the size of the calling thread's last failed request. */
void weir__failure_set_bytes(uint64_t bytes);

#endif
