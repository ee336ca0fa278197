/* SPDX-License-Identifier: MIT */
/* order.c: events on streams, and what they have told.
 *
 * Marks of a stream complete in order, so only the oldest are asked about.  Events that were seen done
 * are kept to be used again: making one costs more than recording it.
 *
 * Must not know: placement, blocks, growth; what its owner does with what it is told.
 */
#include "order.h"

#include <stdlib.h>
#include <string.h>

#include "hostmem.h"
#include "result.h"

/* Frees on one stream that share an event, when several streams are served. */
enum { EVENT_BATCH = 16 };

/* An event that stands for all frees of a stream up to `sequence`. */
struct weir_order_mark {
    CUevent event;
    uint64_t sequence;
};

/* ---- events ---------------------------------------------------------------------------------- */

/* An event that nothing waits for. */
static CUresult take_event(struct weir_order *o, CUevent *event) {
    struct weir_driver_scope scope;
    CUresult result;

    if (o->spare_count > 0) {
        *event = o->spare[--o->spare_count];
        return CUDA_SUCCESS;
    }
    result = weir__driver_enter(o->host->driver, o->host->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = o->host->driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    weir__driver_leave(o->host->driver, &scope);
    return result;
}

static void give_event(struct weir_order *o, CUevent event) {
    CUevent *spare =
        weir__hostmem_room(o->spare, o->spare_count, &o->spare_capacity, sizeof *spare);

    if (!spare) {
        o->host->driver->cuEventDestroy(event);
        return;
    }
    o->spare = spare;
    o->spare[o->spare_count++] = event;
}

/* 1 when the work before the event is done.  Asked with this thread's capture mode relaxed: another
 * thread's global capture would forbid it. */
static int is_done(struct weir_order *o, CUevent event) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result;

    o->host->driver->cuThreadExchangeStreamCaptureMode(&mode);
    result = o->host->driver->cuEventQuery(event);
    o->host->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return result == CUDA_SUCCESS;
}

/* An event recorded now on `stream`; `id` as for weir__engine_record. */
static weir_status record_on(struct weir_order *o, weir_stream stream, uint64_t id,
                             CUevent *event) {
    weir_status status = weir__engine_capture(o->host, stream);
    CUresult result;

    if (status != WEIR_OK)
        return status;
    result = take_event(o, event);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(o->host, result);
    result = weir__engine_record(o->host, *event, stream, id);
    if (result != CUDA_SUCCESS)
        give_event(o, *event);
    else
        o->event_records++;
    return weir__engine_status(o->host, result);
}

/* ---- streams --------------------------------------------------------------------------------- */

void weir__order_open(struct weir_order *o, struct weir_host *host,
                      weir__order_observed_fn *observed, void *context) {
    *o = (struct weir_order){.host = host, .observed = observed, .context = context};
}

void weir__order_close(struct weir_order *o) {
    const struct weir_driver *driver = o->host->driver;
    struct weir_driver_scope scope;

    for (size_t i = 0; i < o->stream_count; i++) {
        struct weir_order_stream *s = &o->streams[i];

        for (size_t k = 0; k < s->count; k++)
            give_event(o, s->marks[s->first + k].event);
        free(s->marks);
    }
    if (weir__driver_enter(driver, o->host->context, &scope) == CUDA_SUCCESS) {
        while (o->spare_count > 0)
            driver->cuEventDestroy(o->spare[--o->spare_count]);
        weir__driver_leave(driver, &scope);
    }
    free(o->streams);
    free(o->spare);
}

/* Nothing of the stream is open or waits. */
static int is_quiet(const struct weir_order_stream *s) {
    return s->count == 0 && s->frees == s->recorded;
}

/* Streams about which nothing is open make room: programs make and end them by the thousand. */
static void forget_streams(struct weir_order *o) {
    size_t kept = 0;

    for (size_t i = 0; i < o->stream_count; i++) {
        struct weir_order_stream *s = &o->streams[i];

        if (is_quiet(s))
            free(s->marks);
        else
            o->streams[kept++] = *s;
    }
    o->stream_count = kept;
}

/* NULL: it is not known. */
static struct weir_order_stream *find_stream(struct weir_order *o, uint64_t id) {
    if (o->stream_last < o->stream_count && o->streams[o->stream_last].id == id)
        return &o->streams[o->stream_last];
    for (size_t i = 0; i < o->stream_count; i++) {
        if (o->streams[i].id == id) {
            o->stream_last = i;
            return &o->streams[i];
        }
    }
    return NULL;
}

/* NULL: no host memory. */
static struct weir_order_stream *add_stream(struct weir_order *o, uint64_t id) {
    struct weir_order_stream *streams;

    if (o->stream_count == o->stream_capacity)
        forget_streams(o);
    streams = weir__hostmem_room(o->streams, o->stream_count, &o->stream_capacity, sizeof *streams);
    if (!streams)
        return NULL;
    o->streams = streams;
    o->stream_last = o->stream_count++;
    o->several |= o->stream_count > 1 || id == 0;
    streams[o->stream_last] = (struct weir_order_stream){.id = id};
    return &streams[o->stream_last];
}

struct weir_order_stream *weir__order_stream(struct weir_order *o, uint64_t id) {
    struct weir_order_stream *s = find_stream(o, id);

    if (s)
        return s;
    if (o->stream_count == o->stream_capacity)
        weir__order_look_around(o);
    return add_stream(o, id);
}

struct weir_order_stream *weir__order_stream_silently(struct weir_order *o, uint64_t id) {
    struct weir_order_stream *s = find_stream(o, id);

    return s ? s : add_stream(o, id);
}

/* The host has seen the stream pass `sequence`. */
static void observed(struct weir_order *o, struct weir_order_stream *s, uint64_t sequence) {
    s->observed = sequence;
    o->observed(o->context, s->id, sequence);
}

int weir__order_observe(struct weir_order *o, struct weir_order_stream *s) {
    uint64_t sequence = 0;

    while (s->count > 0 && is_done(o, s->marks[s->first].event)) {
        sequence = s->marks[s->first].sequence;
        give_event(o, s->marks[s->first].event);
        s->first++;
        s->count--;
    }
    if (sequence == 0)
        return 0;
    memmove(s->marks, s->marks + s->first, s->count * sizeof *s->marks);
    s->first = 0;
    observed(o, s, sequence);
    return 1;
}

/* Records an event for all frees on the stream up to `sequence`. */
static weir_status record(struct weir_order *o, struct weir_order_stream *s, weir_stream stream,
                          uint64_t sequence) {
    struct weir_order_mark *marks =
        weir__hostmem_room(s->marks, s->count, &s->capacity, sizeof *marks);
    weir_status status;
    CUevent event = NULL;

    if (!marks)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    s->marks = marks;
    status = record_on(o, stream, 0, &event);
    if (status != WEIR_OK)
        return status;
    marks[s->count++] = (struct weir_order_mark){event, sequence};
    return WEIR_OK;
}

void weir__order_tend(struct weir_order *o, struct weir_order_stream *s, weir_stream stream) {
    uint64_t open = s->frees - s->recorded;
    int result = weir__driver_result;

    if (!o->several || open == 0)
        return;
    /* A young stream may end after any call: it leaves nothing unrecorded. */
    if (open < EVENT_BATCH && s->dry_seen == o->dry && s->frees > EVENT_BATCH)
        return;
    if (record(o, s, stream, s->sequence) == WEIR_OK) {
        s->recorded = s->frees;
        s->dry_seen = o->dry;
        weir__order_observe(o, s);
    } else { /* tried again at a later call */
        weir__set_driver_result(result);
    }
}

uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s) {
    s->sequence = ++o->sequence;
    s->frees++;
    return s->sequence;
}

weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence) {
    weir_status status = record(o, s, stream, o->sequence + 1);

    if (status != WEIR_OK)
        return status;
    *sequence = weir__order_freed(o, s);
    s->recorded = s->frees;
    return WEIR_OK;
}

int weir__order_passed(const struct weir_order *o, uint64_t id, uint64_t sequence) {
    for (size_t i = 0; i < o->stream_count; i++) {
        if (o->streams[i].id == id)
            return o->streams[i].observed >= sequence || is_quiet(&o->streams[i]);
    }
    return 1;
}

int weir__order_look_around(struct weir_order *o) {
    int found = 0;

    for (size_t i = 0; i < o->stream_count; i++)
        found |= weir__order_observe(o, &o->streams[i]);
    return found;
}

void weir__order_observe_all(struct weir_order *o) {
    for (size_t i = 0; i < o->stream_count; i++) {
        struct weir_order_stream *s = &o->streams[i];

        while (s->count > 0)
            give_event(o, s->marks[--s->count].event);
        s->recorded = s->frees;
        observed(o, s, s->sequence);
    }
}

void weir__order_count(const struct weir_order *o, size_t *waiting, size_t *silent) {
    *waiting = *silent = 0;
    for (size_t i = 0; i < o->stream_count; i++) {
        *waiting += o->streams[i].count;
        *silent += o->streams[i].frees != o->streams[i].recorded;
    }
    if (!o->several)
        *silent = 0; /* whatever is open serves the one stream */
}

/* ---- fences ---------------------------------------------------------------------------------- */

weir_status weir__order_fence(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              struct weir_fence **fence) {
    struct weir_fence *f = malloc(sizeof *f + (uses->count + 1) * sizeof f->event[0]);

    if (!f)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    f->events = 0;
    for (size_t i = 0; i <= uses->count; i++) {
        struct weir_use *use = i < uses->count ? &uses->use[i] : NULL;
        weir_status status =
            record_on(o, use ? use->stream : stream, use ? use->id : 0, &f->event[f->events]);

        if (use)
            use->refused = status == WEIR_E_STREAM;
        if (status != WEIR_OK) {
            weir__order_fence_drop(o, f);
            return status;
        }
        f->events++;
    }
    *fence = f;
    return WEIR_OK;
}

int weir__order_fence_done(struct weir_order *o, struct weir_fence *fence) {
    while (fence->events > 0 && is_done(o, fence->event[fence->events - 1]))
        give_event(o, fence->event[--fence->events]);
    return fence->events == 0;
}

void weir__order_fence_drop(struct weir_order *o, struct weir_fence *fence) {
    while (fence->events > 0)
        give_event(o, fence->event[--fence->events]);
    free(fence);
}
