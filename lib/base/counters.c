/* SPDX-License-Identifier: MIT */
/* counters.c: see counters.h. */
#include "base/counters.h"

#include <stdlib.h>
#include <string.h>

#include "base/result.h"

/* The figures of this thread's last refusal: beside the last driver result the only thread-local
 * state, for the same reason: a status has no room for them. */
static _Thread_local struct weir_refused last;
static _Thread_local uint64_t refusals_met;

int weir__books_open(struct weir_books *books, size_t ring, int latency) {
    memset(books, 0, sizeof *books);
    books->ring.next_sequence = 1;
    books->ring.capacity = ring;
    /* No event is read before it is written. */
    books->ring.event = malloc(ring * sizeof *books->ring.event);
    if (!books->ring.event) {
        return 0;
    }
    if (latency) {
        books->latency = calloc(WEIR_OPERATION_COUNT, sizeof *books->latency);
        if (!books->latency) {
            free(books->ring.event);
            return 0;
        }
    }
    pthread_mutex_init(&books->lock, NULL);
    return 1;
}

void weir__books_close(struct weir_books *books) {
    pthread_mutex_destroy(&books->lock);
    free(books->latency);
    free(books->ring.event);
}

/* Nobody waited for it. */
static int is_ahead(const weir_event *event) {
    return event->cause == WEIR_EVENT_HEADROOM || event->cause == WEIR_EVENT_BACKGROUND;
}

void weir__books_event(struct weir_books *books, const weir_event *event) {
    struct weir_event *slot;

    pthread_mutex_lock(&books->lock);
    slot = &books->ring.event[(books->ring.next_sequence - 1) % books->ring.capacity];
    *slot = *event;
    slot->sequence = books->ring.next_sequence++;
    if (event->reserve_after > books->reserve_peak)
        books->reserve_peak = event->reserve_after;
    if (event->shrink) {
        books->sums.trims += event->cause == WEIR_EVENT_TRIM;
        books->sums.trim_bytes += event->cause == WEIR_EVENT_TRIM ? event->got : 0;
        books->sums.yields += event->cause == WEIR_EVENT_YIELD;
        books->sums.yield_bytes += event->cause == WEIR_EVENT_YIELD ? event->got : 0;
    } else if (event->cause == WEIR_EVENT_APPEAL) {
        books->sums.appeals++;
        books->sums.appeal_bytes += event->got;
    } else {
        books->sums.growths++;
        books->sums.growth_bytes += event->got;
    }
    if (is_ahead(event)) {
        books->sums.ahead_steps++;
        books->sums.ahead_bytes += event->got;
        books->sums.ahead_ns += event->stall_ns;
        books->prealloc.got += event->cause == WEIR_EVENT_BACKGROUND ? event->got : 0;
        books->prealloc.ns += event->cause == WEIR_EVENT_BACKGROUND ? event->stall_ns : 0;
    }
    pthread_mutex_unlock(&books->lock);
    if (!event->shrink && !is_ahead(event) && event->cause != WEIR_EVENT_APPEAL)
        atomic_fetch_add_explicit(&books->stall_ns, event->stall_ns, memory_order_relaxed);
}

static uint64_t read_counter(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void weir__books_read(struct weir_books *books, weir_statistics *out) {
    /* Frees first: a block is counted as allocated before it can be counted as freed, and a grown
     * one is counted as such last, so that no difference below can go under zero. */
    out->frees = weir__tally_sum(&books->tally, WEIR_TALLY_FREES);
    out->growth_allocs = atomic_load_explicit(&books->growth_allocs, memory_order_acquire);
    out->allocs = weir__tally_sum(&books->tally, WEIR_TALLY_ALLOCS);
    out->hits = out->allocs - out->growth_allocs;
    out->refusals = read_counter(&books->refusals);
    out->attempts = out->allocs + out->refusals;
    out->blocks = out->allocs > out->frees ? out->allocs - out->frees : 0;
    out->retries = read_counter(&books->retries);
    out->stall_ns = read_counter(&books->stall_ns);
    out->prealloc_asked = read_counter(&books->prealloc.asked);
    out->prealloc_got = read_counter(&books->prealloc.got);
    out->prealloc_kept = read_counter(&books->prealloc.kept);
    out->prealloc_ns = read_counter(&books->prealloc.ns);
    out->prealloc_pending = read_counter(&books->prealloc.pending);
    out->prealloc_waited_ns = read_counter(&books->prealloc.waited_ns);
    out->ahead_refusals = read_counter(&books->ahead_refusals);
    pthread_mutex_lock(&books->lock);
    out->growths = books->sums.growths;
    out->growth_bytes = books->sums.growth_bytes;
    out->trims = books->sums.trims;
    out->trim_bytes = books->sums.trim_bytes;
    out->ahead_steps = books->sums.ahead_steps;
    out->ahead_bytes = books->sums.ahead_bytes;
    out->ahead_ns = books->sums.ahead_ns;
    out->appeals = books->sums.appeals;
    out->appeal_bytes = books->sums.appeal_bytes;
    out->yields = books->sums.yields;
    out->yield_bytes = books->sums.yield_bytes;
    pthread_mutex_unlock(&books->lock);
}

uint64_t weir__books_reserve_peak(struct weir_books *books, uint64_t now) {
    uint64_t peak;

    pthread_mutex_lock(&books->lock);
    peak = books->reserve_peak > now ? books->reserve_peak : now;
    pthread_mutex_unlock(&books->lock);
    return peak;
}

void weir__books_renew_peak(struct weir_books *books, uint64_t now) {
    pthread_mutex_lock(&books->lock);
    books->reserve_peak = now;
    pthread_mutex_unlock(&books->lock);
}

size_t weir__books_events(struct weir_books *books, uint64_t after, void *events,
                          size_t event_bytes, size_t capacity) {
    size_t bytes = event_bytes < sizeof(weir_event) ? event_bytes : sizeof(weir_event);
    char *to = events;
    size_t count = 0;
    uint64_t oldest;

    if (after == UINT64_MAX) {
        return 0;
    }
    pthread_mutex_lock(&books->lock);
    oldest = books->ring.next_sequence > books->ring.capacity
                 ? books->ring.next_sequence - books->ring.capacity
                 : 1;
    for (uint64_t s = after < oldest ? oldest : after + 1;
         s < books->ring.next_sequence && count < capacity; s++, count++) {
        memset(to, 0, event_bytes);
        memcpy(to, &books->ring.event[(s - 1) % books->ring.capacity], bytes);
        to += event_bytes;
    }
    pthread_mutex_unlock(&books->lock);
    return count;
}

void weir__refusal_set(const struct weir_refused *refused) {
    last = *refused;
    last.figures.size = sizeof last.figures;
    refusals_met++;
}

void weir__refusal_get(struct weir_refused *out) {
    *out = last;
}

uint64_t weir__refusals_met(void) {
    return refusals_met;
}

void weir__refusal_asked(uint64_t bytes) {
    last.figures.asked = bytes;
}

weir_status weir_last_refusal(weir_refusal *out) {
    size_t bytes;

    if (!out || out->size == 0) {
        return weir__without_driver(WEIR_E_INVALID);
    }
    bytes = out->size < sizeof last.figures ? out->size : sizeof last.figures;
    memcpy(out, &last.figures, bytes);
    out->size = bytes;
    return WEIR_OK;
}

const char *weir__event_name(int cause, int shrink) {
    static const char *const words[2][WEIR_EVENT_CAUSE_COUNT] = {
        {
#define WEIR_EVENT_GREW(name, word) "grow: " word,
            WEIR_EVENT_CAUSES(WEIR_EVENT_GREW)
#undef WEIR_EVENT_GREW
        },
        {
#define WEIR_EVENT_WENT(name, word) "give back: " word,
            WEIR_EVENT_CAUSES(WEIR_EVENT_WENT)
#undef WEIR_EVENT_WENT
        }};

    return words[shrink != 0][cause];
}

const char *weir_event_cause_word(int cause) {
    static const char *const words[] = {
#define WEIR_EVENT_WORD(name, word) word,
        WEIR_EVENT_CAUSES(WEIR_EVENT_WORD)
#undef WEIR_EVENT_WORD
    };

    return cause >= 0 && cause < WEIR_EVENT_CAUSE_COUNT ? words[cause] : "unknown";
}
