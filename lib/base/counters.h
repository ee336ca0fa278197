/* SPDX-License-Identifier: MIT */
/* counters.h: the counters of an allocator, its ring buffer of growth events, and its histograms of latencies.
 *
 * This file does not count the memory that is in use or reserved, because the engine has these figures, from the driver
 * or from its own tables.  Each counter is a relaxed atomic, and independent of all other counters.  A mutex guards the
 * ring buffer, since growth is rare.
 *
 * This file must not depend on engines or drivers, so callers pass times as numbers. */
#ifndef WEIR_COUNTERS_H
#define WEIR_COUNTERS_H

#include <pthread.h>
#include <stdatomic.h>

#include <weir/stats.h>

#include "base/histogram.h"
#include "base/tls.h"

/* ---- counters that every call raises, without a locked instruction ---- */

/* Frequent counters exist once for each thread, so that threads do not write to one cache line.  An array of counters
 * for one thread is called a stripe.  Each of the first WEIR_STRIPED_STRIPES threads gets a stripe, and increments its
 * counters by a load and a store.  All later threads share the last stripe, and use atomic additions.  (An atomic
 * addition costs 5 to 12 ns.  An allocation from the driver's pool costs about 60 ns.)  When a thread ends, its stripe
 * keeps its values, and no other thread gets this stripe. */
enum {
    WEIR_STRIPED_ALLOCS, /* calls of weir_alloc, if no per-stream cache counts them */
    WEIR_STRIPED_FREES,  /* calls of weir_free, if no per-stream cache counts them */
    WEIR_STRIPED_COUNTERS
};
enum { WEIR_STRIPED_STRIPES = 64 };

/* The counters of all threads.  Each thread has a cache line, so that threads do not write to one line.  The threads
 * without a cache line of their own share the last one. */
struct weir_striped {
    struct {
        _Alignas(64) _Atomic uint64_t counter[WEIR_STRIPED_COUNTERS];
    } stripe[WEIR_STRIPED_STRIPES + 1];
};

/* The index of this thread's array of counters plus one, or 0 if the thread has no array yet.  The TLS model
 * initial-exec makes a read of the variable one instruction.  In return, the variable needs four bytes of the small
 * space that the C library reserves for libraries that a program opens at run time. */
extern _Thread_local unsigned weir__striped_thread WEIR_FAST_TLS;
/* Gives this thread an array of counters.  Returns the index of the array plus one. */
unsigned weir__striped_assign(void);

/* Returns the index of this thread's array of counters.  Gives the thread an array first if it has none. */
static inline unsigned weir__striped_own(void) {
    return (weir__striped_thread ? weir__striped_thread : weir__striped_assign()) - 1;
}

/* Adds one to a counter of the calling thread.  `stripe` is the index of the thread's array of counters.  A thread that
 * reads the new value also sees all earlier writes of the calling thread. */
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

/* Returns the sum of one counter over all threads.  The sum is exact unless another thread increments the counter
 * during the call. */
uint64_t weir__striped_sum(const struct weir_striped *striped, int counter);

/* ---- all counters of an allocator ---- */

/* The number of latest events that an allocator stores for weir_events(). */
enum { WEIR_KEPT_EVENTS = 1024 };

enum { WEIR_OPERATION_ALLOC = 0, WEIR_OPERATION_FREE = 1, WEIR_OPERATION_COUNT = 2 };

struct weir_counters {
    struct weir_striped striped; /* numbers of allocations and frees, for each thread */

    /* Numbers of rare events.  Each is one atomic variable for all threads, because threads seldom increment it. */
    _Atomic uint64_t growth_allocs;
    _Atomic uint64_t failed_requests;
    _Atomic uint64_t retries;
    _Atomic uint64_t stall_ns;
    _Atomic uint64_t ahead_failures;
    /* The largest number of reserved bytes so far.  weir_tensors_reset_peaks() sets the field to the bytes that are
     * reserved at that time. */
    _Atomic uint64_t reserved_peak;
    struct {
        _Atomic uint64_t asked, got, kept, ns, waited_ns;
    } prealloc;

    /* Guards the sums and the ring of growth events.  A thread that holds this lock takes no other lock. */
    pthread_mutex_t lock;
    weir_statistics sums; /* sums over all growth events; fields without such a sum are 0 */
    struct {
        uint64_t next_sequence; /* the sequence number of the next event; the first is 1 */
        /* A ring buffer.  The event with sequence number s is at index (s - 1) % WEIR_KEPT_EVENTS. */
        struct weir_event *event;
    } ring;

    /* An array of two histograms, for the latencies of allocations and of frees.  NULL if weir does not measure
     * latencies.  The pointer does not change after weir__counters_open(). */
    struct weir_histogram *latency;
};

/* Initialises the counters.  If `latency` is not 0, also allocates the histograms of latencies.  Returns 1 on success,
 * 0 if there is no host memory. */
int weir__counters_open(struct weir_counters *counters, int latency);
void weir__counters_close(struct weir_counters *counters);

/* Records that the reserved memory has grown or shrunk.  The function itself sets the sequence number of the event. */
void weir__counters_event(struct weir_counters *counters, const weir_event *event);

/* Copies the counters to *out.  Sets all fields of *out that are not counters of this file to 0. */
void weir__counters_read(struct weir_counters *counters, weir_statistics *out);
size_t weir__counters_events(struct weir_counters *counters, uint64_t after, void *events,
                             size_t event_bytes, size_t capacity);

/* A failed request: the values that weir_last_failure() returns, and more values for an OOM report. */
struct weir_failed_request {
    weir_failure figures;
    /* The number of the allocator whose request failed, or 0 if no request has failed yet. */
    uint64_t by;
    uint64_t stream; /* the id of the request's stream, or 0 if the id is not known */
    int is_captured; /* set if the request's stream was being captured */
    int result;      /* the CUresult of the driver call that failed, or 0 if none failed */
    weir_status status;
};

/* Stores *refused as the last failed request of the calling thread. */
void weir__failure_set(const struct weir_failed_request *refused);
/* Copies the last failed request of the calling thread to *out. */
void weir__failure_get(struct weir_failed_request *out);
/* Returns how many requests of the calling thread have failed so far.  A caller that compares two results finds out
 * whether another request has failed in between. */
uint64_t weir__failure_count(void);
/* Overwrites the requested size in the record of the calling thread's last failed request. */
void weir__failure_set_bytes(uint64_t bytes);

#endif
