/* SPDX-License-Identifier: MIT */
/* counters.h: what an allocator did: counters, the ring of growth events, latencies.
 *
 * The figures that describe memory as it is now (in use, reserve) belong to the engine, which asks
 * the driver or its own tables; the books hold what happened.  Counters are relaxed atomics, each on
 * its own; the ring has a lock, since growth is rare.
 *
 * Must not know: engines, drivers (times come in as numbers).
 */
#ifndef WEIR_COUNTERS_H
#define WEIR_COUNTERS_H

#include <pthread.h>
#include <stdatomic.h>

#include <weir/stats.h>

#include "base/histogram.h"
#include "base/striped_counter.h"

/* The number of events that weir_events can return. */
enum { WEIR_KEPT_EVENTS = 1024 };

enum { WEIR_OPERATION_ALLOC = 0, WEIR_OPERATION_FREE = 1, WEIR_OPERATION_COUNT = 2 };

struct weir_counters {
    struct weir_striped striped; /* allocs and frees: raised by every call */

    /* Written when something rare happens. */
    _Atomic uint64_t growth_allocs;
    _Atomic uint64_t failed_requests;
    _Atomic uint64_t retries;
    _Atomic uint64_t stall_ns;
    _Atomic uint64_t ahead_failures;
    struct {
        _Atomic uint64_t asked, got, kept, ns, waited_ns;
    } prealloc;

    pthread_mutex_t lock; /* guards what follows; innermost: nothing is called under it */
    struct {
        uint64_t growths, growth_bytes;
        uint64_t trims, trim_bytes;
        uint64_t ahead_steps, ahead_bytes, ahead_ns;
        uint64_t reclaims, received_bytes;
        uint64_t releases, released_bytes;
    } sums;                /* of events */
    uint64_t reserved_peak; /* after an event, since weir__counters_renew_peak */
    struct {
        uint64_t next_sequence;   /* of the next event; starts at 1 */
        struct weir_event *event; /* with sequence s: at (s - 1) % WEIR_KEPT_EVENTS */
    } ring;

    struct weir_histogram *latency; /* one per operation, or NULL: not kept; fixed after open */
};

/* Returns 1 on success, 0 if there is no host memory.  `latency' is nonzero for histograms of latencies. */
int weir__counters_open(struct weir_counters *counters, int latency);
void weir__counters_close(struct weir_counters *counters);

/* Notes one growth or give-back; the event's sequence is filled in here. */
void weir__counters_event(struct weir_counters *counters, const weir_event *event);

/* Fills what the books know into *out; the rest is left alone. */
void weir__counters_read(struct weir_counters *counters, weir_statistics *out);
/* The most that was reserved since weir__counters_renew_peak; `now` is what is reserved. */
uint64_t weir__counters_reserve_peak(struct weir_counters *counters, uint64_t now);
void weir__counters_renew_peak(struct weir_counters *counters, uint64_t now);
size_t weir__counters_events(struct weir_counters *counters, uint64_t after, void *events,
                             size_t event_bytes, size_t capacity);

/* "grow: request", "give back: trim".  Static text. */
const char *weir__event_name(int cause, int shrink);

/* A failure: what weir_last_failure tells of it, and what an OOM report needs. */
struct weir_failed_request {
    weir_failure figures;
    uint64_t by;     /* the number of the host; 0: nobody has refused yet */
    uint64_t stream; /* its id, 0: not known */
    int is_captured; /* the stream was being captured */
    int result;      /* the driver's, 0: it had no part in it */
    weir_status status;
};

/* The thread's last one. */
void weir__failure_set(const struct weir_failed_request *refused);
void weir__failure_get(struct weir_failed_request *out);
/* How often weir__failure_set was called, which tells one failure from another. */
uint64_t weir__failures_met(void);
/* It was a request for so many bytes. */
void weir__failure_asked(uint64_t bytes);

#endif
