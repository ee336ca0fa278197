/* SPDX-License-Identifier: MIT */
/* stream_order.c: implements stream_order.h.  A stream's events complete in order, so weir queries the oldest first. */
#include "engine/stream_order.h"

#include <stdlib.h>

#include "base/hostmem.h"
#include "base/result.h"
#include "base/size.h"

enum {
    /* weir records an event after each of a stream's first frees, since the stream may end after any call. */
    FIRST_FREES = 16,
    /* After a request has found no free memory for its stream, weir records more events during this number of frees. */
    STRICT_FREES = 2048,
    /* weir queries an event on an idle stream at most this many times in a row, for about 10 us. */
    IDLE_QUERIES = 64,
    /* While memory is short, a stream's live bytes may fall by STRICT_FACTOR * least_event_bytes without an event. */
    STRICT_FACTOR = 4,
    /* The most bytes that all streams may free without an event, as a multiple of `least_event_bytes`. */
    SHARE = 16,
    /* If more than MOST_OPEN streams have frees without an event, weir records an event after each free of a stream. */
    MOST_OPEN = 128,
    MOST_DOUBLINGS = 2, /* the maximum of `covered_bursts` */
    /* A stream's live bytes are near their minimum if they exceed it by at most 1/SLACK of their fall, `net_drop`. */
    SLACK = 12,
    /* After this many events on a stream without a query, weir queries whether the stream is idle. */
    MOST_GAP = 16,
    /* weir may free a stream's record after this many calls on other streams, if all frees on it have completed. */
    FORGET_CALLS = 16384,
    /* For each new stream, weir queries the events of this many old streams, and frees this many old records. */
    OLD_PER_NEW = 2
};
#define LEAST_EVENT_BYTES (UINT64_C(64) << 10)
#define LEAST_SHARE (UINT64_C(32) << 20)

struct weir_order_mark {
    CUevent event;
    uint64_t sequence;
    struct weir_order_mark *next;
};

/* ---- recording and reusing events ------------------------------------------------------------ */

void weir__order_recycle(struct weir_order *o, CUevent event) {
    CUevent *spare =
        weir__hostmem_room(o->spare, o->spare_count, &o->spare_capacity, sizeof *spare);

    if (!spare) {
        o->device->driver->cuEventDestroy(event);
        return;
    }
    o->spare = spare;
    o->spare[o->spare_count++] = event;
}

/* The query needs a relaxed capture mode, since another thread's global capture would forbid the query. */
int weir__order_is_done(const struct weir_order *o, CUevent event) {
    const struct weir_driver *driver = o->device->driver;

    return WEIR_RELAXED(driver, driver->cuEventQuery(event)) == CUDA_SUCCESS;
}

weir_status weir__order_record(struct weir_order *o, weir_stream stream, uint64_t id,
                               CUevent *event) {
    weir_status status = weir__device_capture(o->device, stream);
    CUresult result = CUDA_SUCCESS;

    if (status != WEIR_OK)
        return status;
    if (o->spare_count > 0)
        *event = o->spare[--o->spare_count];
    else
        result = WEIR_IN_SCOPE(o->device->driver, o->device->context,
                               o->device->driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING));
    if (result != CUDA_SUCCESS)
        return weir__device_status(o->device, result);
    result = weir__device_record(o->device, *event, stream, id);
    if (result != CUDA_SUCCESS)
        weir__order_recycle(o, *event);
    else
        o->event_records++;
    return weir__device_status(o->device, result);
}

/* ---- lists of streams ------------------------------------------------------------------------ */

/* Moves a stream from the list `from` to the end of the list `to`, which may be the same list.  Either may be NULL. */
static void move_stream(struct weir_order_list *from, struct weir_order_list *to,
                        struct weir_order_stream *s) {
    if (from) {
        *(s->next ? &s->next->prev : &from->last) = s->prev;
        *(s->prev ? &s->prev->next : &from->first) = s->next;
    }
    if (to) {
        s->next = NULL;
        s->prev = to->last;
        *(to->last ? &to->last->next : &to->first) = s;
        to->last = s;
    }
}

static void update_list(struct weir_order *o, struct weir_order_stream *s) {
    enum weir_order_state state = s->marks      ? WEIR_ORDER_MARKED
                                  : s->open > 0 ? WEIR_ORDER_OPEN
                                                : WEIR_ORDER_QUIET;

    if (s->state == state)
        return;
    move_stream(&o->list[s->state], &o->list[state], s);
    s->state = state;
}

/* ---- freed blocks that several streams may still use ------------------------------------------ */

static void append_fence(struct weir_order *o, struct weir_fence *f) {
    f->next = NULL;
    *(o->fences ? &o->last_fence->next : &o->fences) = f;
    o->last_fence = f;
}

static struct weir_fence *pop_fence(struct weir_order *o) {
    struct weir_fence *f = o->fences;

    o->fences = f->next;
    return f;
}

static void drop_fence(struct weir_order *o, struct weir_fence *f) {
    while (f->events > 0)
        weir__order_recycle(o, f->event[--f->events]);
    free(f);
}

static void end_deferred(struct weir_order *o) {
    struct weir_fence *f = pop_fence(o);
    uintptr_t freed = f->freed;

    o->deferred--;
    drop_fence(o, f);
    o->ended(o->context, freed);
}

static int fence_is_done(struct weir_order *o, struct weir_fence *f) {
    while (f->events > 0 && weir__order_is_done(o, f->event[f->events - 1]))
        weir__order_recycle(o, f->event[--f->events]);
    return f->events == 0;
}

weir_status weir__order_defer(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              uintptr_t freed) {
    size_t count = uses ? uses->count : 0;
    struct weir_fence *f = malloc(sizeof *f + (count + 1) * sizeof f->event[0]);

    if (!f)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    f->freed = freed;
    f->events = 0;
    for (size_t i = 0; i <= count; i++) {
        struct weir_use *use = i < count ? &uses->use[i] : NULL;
        weir_status status = weir__order_record(o, use ? use->stream : stream, use ? use->id : 0,
                                                &f->event[f->events]);

        if (use)
            use->refused = status == WEIR_E_STREAM;
        if (status != WEIR_OK) {
            drop_fence(o, f);
            return status;
        }
        f->events++;
    }
    append_fence(o, f);
    o->deferred++;
    return WEIR_OK;
}

int weir__order_complete(struct weir_order *o, size_t most) {
    const struct weir_fence *last = o->last_fence;
    int ended = 0, more = o->fences != NULL;

    for (; more && most > 0; most--) {
        more = o->fences != last;
        if (fence_is_done(o, o->fences)) {
            end_deferred(o);
            ended = 1;
        } else {
            append_fence(o, pop_fence(o));
        }
    }
    return ended;
}

/* ---- frees without an event (open), and events after frees (marks) -------------------------- */

/* Records that each free of the stream has an event after it, or has completed, so that none is open any more. */
static void clear_open_frees(struct weir_order *o, struct weir_order_stream *s) {
    s->net_drop = 0;
    if (s->open == 0)
        return;
    o->streams_with_open--;
    s->open_bytes = s->open = 0;
    update_list(o, s);
}

static void drop_mark(struct weir_order *o, struct weir_order_stream *s) {
    struct weir_order_mark *mark = s->marks;

    weir__order_recycle(o, mark->event);
    s->marks = mark->next;
    free(mark);
    o->pending_marks--;
    if (!s->marks)
        s->marks_end = &s->marks;
    update_list(o, s);
}

static weir_status record_stream_event(struct weir_order *o, struct weir_order_stream *s,
                                       weir_stream stream, uint64_t sequence) {
    struct weir_order_mark *mark = malloc(sizeof *mark);
    weir_status status;

    if (!mark)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    *mark = (struct weir_order_mark){.sequence = sequence};
    status = weir__order_record(o, stream, 0, &mark->event);
    if (status != WEIR_OK) {
        free(mark);
        return status;
    }
    *s->marks_end = mark;
    s->marks_end = &mark->next;
    o->pending_marks++;
    update_list(o, s);
    return WEIR_OK;
}

/* Records that all frees on the stream have completed, and calls the owner's callback. */
static void finish_open_frees(struct weir_order *o, struct weir_order_stream *s) {
    while (s->marks)
        drop_mark(o, s);
    clear_open_frees(o, s);
    /* Does not lower `observed`, which may exceed s->sequence: add_stream() sets it to the last free on any stream. */
    s->placed.observed = weir__size_larger(s->placed.observed, s->sequence);
    o->observed(o->context, s, 0);
}

/* ---- records of streams ---------------------------------------------------------------------- */

void weir__order_open(struct weir_order *o, struct weir_device *device,
                      weir__order_observed_fn *observed, weir__order_ended_fn *ended,
                      void *context) {
    *o = (struct weir_order){
        .device = device, .observed = observed, .ended = ended, .context = context};
}

static void free_stream_record(struct weir_order *o, struct weir_order_stream *s) {
    uintptr_t found = 0;

    move_stream(&o->list[WEIR_ORDER_QUIET], NULL, s);
    if (weir__map_get(&o->by_handle, (uintptr_t)s->handle, &found) && found == (uintptr_t)s)
        weir__map_remove(&o->by_handle, (uintptr_t)s->handle, NULL);
    if (o->recent == s)
        o->recent = NULL;
    if (s->placed.id == 0)
        o->unknown = NULL;
    else
        weir__map_remove(&o->streams, s->placed.id, NULL);
    o->observed(o->context, s, 1);
    free(s);
}

void weir__order_close(struct weir_order *o) {
    const struct weir_driver *driver = o->device->driver;
    struct weir_driver_scope scope;

    weir__order_observe_all(o);
    while (o->list[WEIR_ORDER_QUIET].first)
        free_stream_record(o, o->list[WEIR_ORDER_QUIET].first);
    weir__map_clear(&o->streams);
    weir__map_clear(&o->by_handle);
    if (weir__driver_enter(driver, o->device->context, &scope) == CUDA_SUCCESS) {
        while (o->spare_count > 0)
            driver->cuEventDestroy(o->spare[--o->spare_count]);
        weir__driver_leave(driver, &scope);
    }
    free(o->spare);
}

static void free_old_records(struct weir_order *o) {
    for (int i = 0; i < OLD_PER_NEW && o->list[WEIR_ORDER_QUIET].first; i++) {
        struct weir_order_stream *s = o->list[WEIR_ORDER_QUIET].first;

        if (o->calls - s->called > FORGET_CALLS && s->active_requests == 0)
            free_stream_record(o, s);
        else
            move_stream(&o->list[WEIR_ORDER_QUIET], &o->list[WEIR_ORDER_QUIET], s);
    }
}

static struct weir_order_stream *find_stream(const struct weir_order *o, uint64_t id) {
    uintptr_t found = 0;

    if (id == 0)
        return o->unknown;
    return weir__map_get(&o->streams, id, &found) ? (struct weir_order_stream *)found : NULL;
}

static struct weir_order_stream *add_stream(struct weir_order *o, uint64_t id) {
    struct weir_order_stream *s;

    (void)weir__order_query_events(o, OLD_PER_NEW);
    free_old_records(o);
    s = calloc(1, sizeof *s);
    if (!s || !weir__map_reserve(&o->by_handle, 1) ||
        (id != 0 && !weir__map_put(&o->streams, id, (uintptr_t)s))) {
        free(s);
        return NULL;
    }
    if (id == 0)
        o->unknown = s;
    s->placed.id = id;
    /* Earlier frees on this stream have completed, since weir keeps a record until all its frees have completed. */
    s->placed.observed = o->sequence;
    s->marks_end = &s->marks;
    s->is_non_blocking = id == 0 ? 0 : -1;
    move_stream(NULL, &o->list[WEIR_ORDER_QUIET], s);
    if (id == 0 || o->streams.count > 1)
        weir__order_set_several(o);
    return s;
}

static uint64_t least_bytes(const struct weir_order *o) {
    return weir__size_larger(o->least_event_bytes, LEAST_EVENT_BYTES);
}

uint64_t weir__order_last_id(const struct weir_order *o, weir_stream stream) {
    uintptr_t found = 0;

    return weir__map_get(&o->by_handle, (uintptr_t)stream, &found)
               ? ((const struct weir_order_stream *)found)->placed.id
               : 0;
}

/* A burst is a series of calls on one stream.  The first call of a burst updates covered_bursts and burst_events. */
struct weir_order_stream *weir__order_stream(struct weir_order *o, uint64_t id) {
    struct weir_order_stream *s = o->recent && o->recent_id == id ? o->recent : find_stream(o, id);

    if (!s)
        s = add_stream(o, id);
    if (!s)
        return NULL;
    if (o->recent != s) {
        if (s->open_bytes > STRICT_FACTOR * least_bytes(o))
            s->covered_bursts = 0;
        else if (s->burst_events > 0 && s->covered_bursts < MOST_DOUBLINGS)
            s->covered_bursts++;
        s->burst_events = 0;
    }
    s->called = ++o->calls;
    o->recent_id = id;
    o->recent = s;
    return s;
}

/* ---- when to record an event ----------------------------------------------------------------- */

void weir__order_set_several(struct weir_order *o) {
    if (!o->several)
        o->strict_until = o->sequence + STRICT_FREES;
    o->several = 1;
}

void weir__order_count_lack(struct weir_order *o) {
    o->lacked++;
    o->strict_until = o->sequence + STRICT_FREES;
}

/* Returns the bytes that the stream may free without an event.  All streams share a fixed number of bytes. */
static uint64_t share_of(const struct weir_order *o, const struct weir_order_stream *s) {
    size_t all = o->streams_with_open + (s->open == 0);

    return all > MOST_OPEN ? 0 : weir__size_larger(SHARE * least_bytes(o), LEAST_SHARE) / all;
}

/* Returns the bytes that the stream can free before its live bytes (net_bytes) come near their minimum (net_low). */
static uint64_t room_above_net_low(const struct weir_order *o, const struct weir_order_stream *s) {
    int64_t above = s->net_bytes - s->net_low - (int64_t)(least_bytes(o) + s->net_drop / SLACK);
    uint64_t least = weir__size_subtract(least_bytes(o), s->net_drop);

    /* A freed byte lowers net_bytes by 1, and raises net_drop by 1.  So it lowers `above` by 1 + 1 / SLACK. */
    return above > 0 ? weir__size_larger(least, (uint64_t)above * SLACK / (SLACK + 1)) : least;
}

uint64_t weir__order_room(const struct weir_order *o, const struct weir_order_stream *s) {
    uint64_t room, most;
    unsigned doublings;

    /* The caller must call again at its next free, since the program may allow reuse on other streams at any time. */
    if (o->always_due ||
        atomic_load_explicit(&o->device->forbids_opportunistic, memory_order_relaxed))
        return 0;
    if (!o->several)
        return UINT64_MAX;
    if (!s || s->frees - s->open < FIRST_FREES || s->lacked_at_event != o->lacked)
        return 0;
    doublings = s->burst_events < s->covered_bursts ? s->burst_events : s->covered_bursts;
    room = weir__size_subtract(share_of(o, s) << doublings, s->net_drop);
    if (o->sequence >= o->strict_until)
        return room;
    most = STRICT_FACTOR * least_bytes(o) << doublings;
    room = weir__size_smaller(room, weir__size_subtract(most, s->net_drop));
    return weir__size_smaller(room, room_above_net_low(o, s));
}

int weir__order_is_due(const struct weir_order *o, const struct weir_order_stream *s) {
    return s->open > 0 &&
           !atomic_load_explicit(&o->device->forbids_opportunistic, memory_order_relaxed) &&
           weir__order_room(o, s) == 0;
}

/* Returns 1 if the stream is non-blocking, else 0.  A blocking stream may depend on the legacy stream even if
 * cuStreamQuery returns 0.  A query of a captured stream's flags would break its capture (both: H200, driver 580). */
static int is_non_blocking(struct weir_order *o, struct weir_order_stream *s, weir_stream stream) {
    unsigned int flags = 0;

    if (s->is_non_blocking < 0)
        s->is_non_blocking = (uintptr_t)stream > WEIR_STREAM_PER_THREAD_VALUE &&
                             o->device->driver->cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS &&
                             flags & CU_STREAM_NON_BLOCKING;
    return s->is_non_blocking;
}

/* Returns 1 if the stream is idle, else 0.  If it is busy, doubles the number of events until the next query. */
static int query_idle(struct weir_order *o, struct weir_order_stream *s, weir_stream stream) {
    s->events_since_query = 0;
    if (weir__device_is_idle(o->device, stream)) {
        s->query_gap = 0;
        return 1;
    }
    s->query_gap = s->query_gap == 0 ? 1 : s->query_gap < MOST_GAP ? 2 * s->query_gap : MOST_GAP;
    return 0;
}

/* Records an event after the frees, or their completion if the stream is idle.  Returns 1 on success, else 0. */
static int publish_open(struct weir_order *o, struct weir_order_stream *s, weir_stream stream) {
    if (s->is_non_blocking != 0 && s->events_since_query >= s->query_gap) {
        if (weir__device_capture(o->device, stream) != WEIR_OK)
            return 0;
        if (is_non_blocking(o, s, stream) && query_idle(o, s, stream)) {
            finish_open_frees(o, s);
            return 1;
        }
    }
    if (record_stream_event(o, s, stream, s->sequence) != WEIR_OK)
        return 0;
    clear_open_frees(o, s);
    s->events_since_query++;
    weir__order_observe(o, s, SIZE_MAX);
    return 1;
}

void weir__order_maintain(struct weir_order *o, struct weir_order_stream *s, weir_stream stream) {
    /* The driver may have reused the handle of a destroyed stream.  The handle now belongs to this stream. */
    if (s->handle != stream && s->placed.id != 0 &&
        (uintptr_t)stream > WEIR_STREAM_PER_THREAD_VALUE &&
        weir__map_put(&o->by_handle, (uintptr_t)stream, (uintptr_t)s))
        s->handle = stream;
    if (!weir__order_is_due(o, s))
        return;
    if (publish_open(o, s, stream)) {
        if (s->net_bytes < s->net_low || s->lacked_at_event != o->lacked)
            s->net_low = s->net_bytes;
        s->lacked_at_event = o->lacked;
        s->burst_events++;
    }
}

void weir__order_allocated(struct weir_order_stream *s, size_t bytes) {
    s->net_bytes += (int64_t)bytes;
    s->net_drop = s->net_drop > bytes ? s->net_drop - bytes : 0;
}

uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s, size_t bytes) {
    if (s->open++ == 0) {
        o->streams_with_open++;
        update_list(o, s);
    }
    s->open_bytes += bytes;
    s->net_bytes -= (int64_t)bytes;
    s->net_drop += bytes;
    s->sequence = ++o->sequence;
    s->frees++;
    return s->sequence;
}

weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence) {
    weir_status status = record_stream_event(o, s, stream, o->sequence + 1);

    if (status != WEIR_OK)
        return status;
    *sequence = weir__order_freed(o, s, 0);
    clear_open_frees(o, s);
    return WEIR_OK;
}

/* ---- queries of events --------------------------------------------------------------------- */

size_t weir__order_observe(struct weir_order *o, struct weir_order_stream *s, size_t most) {
    size_t completed = 0;

    while (s->marks && completed < most && weir__order_is_done(o, s->marks->event)) {
        s->placed.observed = s->marks->sequence;
        drop_mark(o, s);
        completed++;
    }
    if (completed > 0)
        o->observed(o->context, s, 0);
    return completed;
}

int weir__order_query_events(struct weir_order *o, size_t most) {
    struct weir_order_list *marked = &o->list[WEIR_ORDER_MARKED];
    struct weir_order_stream *last = marked->last, *s = marked->first;
    int found = 0, more = s != NULL;
    size_t completed;

    while (more && most > 0) {
        more = s != last;
        completed = weir__order_observe(o, s, most);
        found |= completed > 0;
        most -= completed;
        if (s->marks && most > 0) {
            move_stream(marked, marked, s);
            most--;
        }
        s = marked->first;
    }
    return found;
}

static void observe_until(struct weir_order *o, struct weir_order_stream *s, uint64_t sequence) {
    if (s->sequence <= sequence) {
        finish_open_frees(o, s);
        return;
    }
    while (s->marks && s->marks->sequence <= sequence)
        drop_mark(o, s);
    if (s->placed.observed >= sequence)
        return;
    s->placed.observed = sequence;
    o->observed(o->context, s, 0);
}

void weir__order_observe_until(struct weir_order *o, uint64_t sequence) {
    struct weir_order_stream *s, *next;

    for (int state = WEIR_ORDER_MARKED; state > WEIR_ORDER_QUIET; state--) {
        for (s = o->list[state].first; s; s = next) {
            next = s->next;
            observe_until(o, s, sequence);
        }
    }
}

void weir__order_observe_all(struct weir_order *o) {
    weir__order_observe_until(o, o->sequence);
    while (o->fences)
        end_deferred(o);
}

int weir__order_is_observed(const struct weir_order *o, uint64_t id, uint64_t sequence) {
    const struct weir_order_stream *s = find_stream(o, id);

    /* weir frees a stream's record only after all its frees have completed. */
    return !s || s->placed.observed >= sequence;
}

void weir__order_cover(struct weir_order *o, struct weir_order_stream *s, weir_stream stream) {
    if (s->open > 0 && record_stream_event(o, s, stream, s->sequence) == WEIR_OK)
        clear_open_frees(o, s);
}

/* Returns the oldest pending event that was recorded after the free with this number on the stream `id`, or NULL. */
static const struct weir_order_mark *find_mark(const struct weir_order *o, uint64_t id,
                                               uint64_t sequence) {
    const struct weir_order_stream *s = find_stream(o, id);
    const struct weir_order_mark *mark = s ? s->marks : NULL;

    while (mark && mark->sequence < sequence)
        mark = mark->next;
    return mark;
}

int weir__order_has_event(const struct weir_order *o, uint64_t id, uint64_t sequence) {
    return find_mark(o, id, sequence) != NULL;
}

CUresult weir__order_wait(struct weir_order *o, weir_stream stream, uint64_t id,
                          uint64_t sequence) {
    const struct weir_order_mark *last = find_mark(o, id, sequence), *mark = last;
    CUresult result = last ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

    /* Streams without an id share the id 0 and one record.  A free chunk may contain memory that several such streams
     * freed, so `stream` waits for all their events up to `last`. */
    if (last && id == 0)
        mark = o->unknown->marks;
    while (result == CUDA_SUCCESS) {
        result = weir__device_wait_event(o->device, stream, mark->event);
        if (mark == last)
            break;
        mark = mark->next;
    }
    return result;
}

/* Makes memory freed on an idle stream usable on all streams.  A blocking stream needs an event (is_non_blocking()). */
static void finish_idle(struct weir_order *o, struct weir_order_stream *s, weir_stream stream) {
    if (is_non_blocking(o, s, stream))
        finish_open_frees(o, s);
    else
        weir__order_cover(o, s, stream);
    for (int i = 0; i < IDLE_QUERIES && s->marks; i++)
        weir__order_observe(o, s, SIZE_MAX);
}

void weir__order_query_idle(struct weir_order *o, uint64_t id, weir_stream stream) {
    struct weir_order_stream *s = id == 0 ? NULL : weir__order_stream(o, id);

    if (s && weir__device_capture(o->device, stream) == WEIR_OK &&
        weir__device_is_idle(o->device, stream))
        finish_idle(o, s, stream);
}

void weir__order_publish(struct weir_order *o, uint64_t id, weir_stream stream) {
    struct weir_order_stream *s = find_stream(o, id);

    if (!s || s->state == WEIR_ORDER_QUIET)
        return;
    if (weir__device_is_idle(o->device, stream))
        finish_idle(o, s, stream);
    /* Records no event on a default stream, since later work on blocking streams would wait for the event. */
    else if ((uintptr_t)stream > WEIR_STREAM_PER_THREAD_VALUE)
        weir__order_cover(o, s, stream);
}
