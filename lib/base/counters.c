/* SPDX-License-Identifier: MIT */
/* counters.c: counts the calls of an allocator, keeps its last events, and stores the last failure of each thread. */
#include "base/counters.h"

#include <stdlib.h>
#include <string.h>

#include "base/bounds.h"
#include "base/result.h"
#include "base/size.h"

/* The last failed request of this thread, for weir_last_failure(). */
static _Thread_local struct weir_failed_request last;
static _Thread_local uint64_t failure_count;

int weir__counters_open(struct weir_counters *counters, int latency) {
    memset(counters, 0, sizeof *counters);
    counters->ring.next_sequence = 1;
    counters->ring.event = malloc(WEIR_KEPT_EVENTS * sizeof *counters->ring.event);
    if (!counters->ring.event)
        return 0;
    if (latency) {
        counters->latency = calloc(WEIR_OPERATION_COUNT, sizeof *counters->latency);
        if (!counters->latency) {
            free(counters->ring.event);
            return 0;
        }
    }
    pthread_mutex_init(&counters->lock, NULL);
    return 1;
}

void weir__counters_close(struct weir_counters *counters) {
    pthread_mutex_destroy(&counters->lock);
    free(counters->latency);
    free(counters->ring.event);
}

void weir__counters_event(struct weir_counters *counters, const weir_event *event) {
    /* background growth makes no request wait, so stall_ns does not include its time */
    int is_ahead = event->cause == WEIR_EVENT_GROW_AHEAD;
    struct weir_event *slot;

    weir__raise_to(&counters->reserved_peak, event->reserved_after);
    pthread_mutex_lock(&counters->lock);
    slot = &counters->ring.event[(counters->ring.next_sequence - 1) % WEIR_KEPT_EVENTS];
    *slot = *event;
    slot->sequence = counters->ring.next_sequence++;
    if (event->shrink) {
        counters->sums.trims += event->cause == WEIR_EVENT_TRIM;
        counters->sums.trim_bytes += event->cause == WEIR_EVENT_TRIM ? event->got : 0;
        counters->sums.releases += event->cause == WEIR_EVENT_RELEASE;
        counters->sums.released_bytes += event->cause == WEIR_EVENT_RELEASE ? event->got : 0;
    } else if (event->cause == WEIR_EVENT_RECLAIM) {
        counters->sums.reclaims++;
        counters->sums.received_bytes += event->got;
    } else {
        counters->sums.growths++;
        counters->sums.growth_bytes += event->got;
    }
    if (is_ahead) {
        counters->sums.ahead_steps++;
        counters->sums.ahead_bytes += event->got;
        counters->sums.ahead_ns += event->stall_ns;
    }
    pthread_mutex_unlock(&counters->lock);
    if (!event->shrink && !is_ahead && event->cause != WEIR_EVENT_RECLAIM)
        atomic_fetch_add_explicit(&counters->stall_ns, event->stall_ns, memory_order_relaxed);
}

/* ---- counters of calls ---- */

_Thread_local unsigned weir__striped_thread WEIR_FAST_TLS;

unsigned weir__striped_assign(void) {
    static _Atomic unsigned threads; /* the number of threads with a stripe */
    unsigned before = atomic_load_explicit(&threads, memory_order_relaxed);

    /* Stops at WEIR_STRIPED_STRIPES, so that `threads` cannot overflow. */
    while (before < WEIR_STRIPED_STRIPES &&
           /* unreached: no test makes another thread change `threads` at this moment */
           !atomic_compare_exchange_weak_explicit(&threads, &before, before + 1,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
    weir__striped_thread = before + 1;
    return weir__striped_thread;
}

uint64_t weir__striped_sum(const struct weir_striped *striped, int counter) {
    uint64_t sum = 0;

    for (int i = 0; i <= WEIR_STRIPED_STRIPES; i++)
        sum += atomic_load_explicit(&striped->stripe[i].counter[counter], memory_order_acquire);
    return sum;
}

/* ---- statistics ---- */

void weir__counters_read(struct weir_counters *counters, weir_statistics *out) {
    pthread_mutex_lock(&counters->lock);
    *out = counters->sums;
    pthread_mutex_unlock(&counters->lock);
    out->size = sizeof *out;
    /* For each block, a thread increments `allocs` before `growth_allocs` and before `frees`.  weir reads these
     * counters in the reverse order, so that no difference below is negative. */
    out->frees = weir__striped_sum(&counters->striped, WEIR_STRIPED_FREES);
    out->growth_allocs = atomic_load_explicit(&counters->growth_allocs, memory_order_acquire);
    out->allocs = weir__striped_sum(&counters->striped, WEIR_STRIPED_ALLOCS);
    out->hits = out->allocs - out->growth_allocs;
    out->failed_requests = counters->failed_requests;
    out->attempts = out->allocs + out->failed_requests;
    out->blocks = out->allocs > out->frees ? out->allocs - out->frees : 0;
    out->retries = counters->retries;
    out->stall_ns = counters->stall_ns;
    out->prealloc_asked = counters->prealloc.asked;
    out->prealloc_got = counters->prealloc.got;
    out->prealloc_kept = counters->prealloc.kept;
    out->prealloc_ns = counters->prealloc.ns;
    out->prealloc_waited_ns = counters->prealloc.waited_ns;
    out->ahead_failures = counters->ahead_failures;
}

size_t weir__counters_events(struct weir_counters *counters, uint64_t after, void *events,
                             size_t event_bytes, size_t capacity) {
    size_t bytes = event_bytes < sizeof(weir_event) ? event_bytes : sizeof(weir_event);
    char *to = events;
    size_t count = 0;
    uint64_t oldest;

    if (after == UINT64_MAX)
        return 0;
    pthread_mutex_lock(&counters->lock);
    oldest = counters->ring.next_sequence > WEIR_KEPT_EVENTS
                 ? counters->ring.next_sequence - WEIR_KEPT_EVENTS
                 : 1;
    for (uint64_t s = after < oldest ? oldest : after + 1;
         s < counters->ring.next_sequence && count < capacity; s++, count++) {
        memset(to, 0, event_bytes);
        memcpy(to, &counters->ring.event[(s - 1) % WEIR_KEPT_EVENTS], bytes);
        to += event_bytes;
    }
    pthread_mutex_unlock(&counters->lock);
    return count;
}

void weir__failure_set(const struct weir_failed_request *refused) {
    last = *refused;
    last.figures.size = sizeof last.figures;
    failure_count++;
}

void weir__failure_get(struct weir_failed_request *out) {
    *out = last;
}

uint64_t weir__failure_count(void) {
    return failure_count;
}

void weir__failure_set_bytes(uint64_t bytes) {
    last.figures.asked = bytes;
}

weir_status weir_last_failure(weir_failure *out) {
    if (!out || out->size == 0)
        return weir__without_driver(WEIR_E_INVALID);
    weir__copy_out(out, &last.figures, sizeof last.figures);
    return WEIR_OK;
}

const char *weir_event_cause_word(int cause) {
    static const char *const words[] = {
#define WEIR_EVENT_WORD(name, word) word,
        WEIR_EVENT_CAUSES(WEIR_EVENT_WORD)
#undef WEIR_EVENT_WORD
    };

    return cause >= 0 && cause < WEIR_EVENT_CAUSE_COUNT ? words[cause] : "unknown";
}
