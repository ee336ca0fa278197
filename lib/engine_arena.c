/* SPDX-License-Identifier: MIT */
/* engine_arena.c: BFC, as in TensorFlow and XLA, over regions from cuMemAlloc.
 *
 * placement.c decides where a block goes; this file takes regions from the device as the growth
 * policy says, and finds out what the host has observed of each stream.
 *
 * Stream order.  A freed block carries (stream id, sequence).  It serves its own stream at once; it
 * merges with and serves others only once the host has observed its stream past the sequence.  With
 * one stream that never matters and no event is ever recorded.  With more, a call on stream s (and
 * only such a call: recording on another thread's stream could land in its capture or on a dead
 * handle) records one event for all frees on s so far, when enough of them have piled up or when
 * another stream ran dry.  Completed events are looked for when a request does not fit, and one of
 * its own whenever a stream records.  Handles are never asked about outside calls that pass them: a
 * destroyed stream's handle crashes the driver, or belongs to another stream by then.
 *
 * Streams are told apart by cuStreamGetId.  Below driver 12.0 there are no ids: all frees then carry
 * stream 0, which serves nobody before it was observed, and each records its event.
 *
 * A block that other streams use too (weir_use) stays placed after its free until events recorded
 * on all of them have completed.
 *
 * Locks: one mutex over everything here; under it driver calls for events and growth, and the
 * books' lock.  Taken once an operation.
 *
 * Must not know: other engines, settings' names, how placement orders its chunks.
 */
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "growth.h"
#include "placement.h"
#include "size.h"

#define GRANULARITY ((size_t)256)
#define SPLIT_WASTE ((size_t)128 << 20)
/* Frees on one stream that share an event, when several streams are served. */
enum { EVENT_BATCH = 16 };
/* Not a stream: carried by blocks whose end the host saw by other means than one stream's event. */
#define OBSERVED UINT64_MAX

/* An event that stands for all frees of a stream up to `sequence`. */
struct mark {
    CUevent event;
    uint64_t sequence;
};

struct stream {
    uint64_t id;        /* 0: not known (driver without ids) */
    uint64_t sequence;  /* of its last free */
    uint64_t recorded;  /* frees up to here are covered by an event */
    uint64_t dry_seen;  /* value of arena.dry when it last recorded */
    struct mark *marks; /* oldest first: marks[first .. first + count) */
    size_t first, count, capacity;
};

/* A free that waits for other streams: the block stays placed until all events have completed. */
struct pending {
    CUdeviceptr block;
    size_t events;
    struct pending *next;
    CUevent event[];
};

struct arena {
    struct weir_host *host;
    pthread_mutex_t lock; /* guards all that follows */
    struct weir_placement *placement;
    struct weir_growth_cursor cursor;
    struct stream *streams;
    size_t stream_count, stream_capacity, stream_last;
    uint64_t dry;            /* times that a stream found nothing that it may use */
    struct pending *pending; /* in no order */
    size_t pending_count;
    uint64_t observed; /* sequence of the last give under OBSERVED */
    CUevent *spare;    /* events to use again */
    size_t spare_count, spare_capacity;
    uint64_t reserve, reserve_peak;
    uint64_t requested, requested_peak;
    uint64_t in_use, in_use_peak;
};

/* ---- events ---------------------------------------------------------------------------------- */

/* Room for one more element: the array, moved if need be, or NULL and everything as before. */
static void *with_room(void *array, size_t count, size_t *capacity, size_t element) {
    size_t larger = *capacity ? *capacity * 2 : 8;
    void *moved;

    if (count < *capacity)
        return array;
    moved = realloc(array, larger * element);
    if (moved)
        *capacity = larger;
    return moved;
}

/* An event that nothing waits for, or NULL. */
static CUevent take_event(struct arena *a) {
    struct weir_driver_scope scope;
    CUevent event = NULL;

    if (a->spare_count > 0)
        return a->spare[--a->spare_count];
    if (weir__driver_enter(a->host->driver, a->host->context, &scope) != CUDA_SUCCESS)
        return NULL;
    if (a->host->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        event = NULL;
    weir__driver_leave(a->host->driver, &scope);
    return event;
}

static void give_event(struct arena *a, CUevent event) {
    CUevent *spare = with_room(a->spare, a->spare_count, &a->spare_capacity, sizeof *spare);

    if (!spare) {
        a->host->driver->cuEventDestroy(event);
        return;
    }
    a->spare = spare;
    a->spare[a->spare_count++] = event;
}

/* 1 when the work before the event is done.  Asked with this thread's capture mode relaxed: another
 * thread's global capture would forbid it. */
static int is_done(struct arena *a, CUevent event) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result;

    a->host->driver->cuThreadExchangeStreamCaptureMode(&mode);
    result = a->host->driver->cuEventQuery(event);
    a->host->driver->cuThreadExchangeStreamCaptureMode(&mode);
    return result == CUDA_SUCCESS;
}

/* An event recorded now on `stream`, or NULL: no host memory, or the stream is being captured. */
static CUevent record_on(struct arena *a, weir_stream stream) {
    CUevent event;

    if (weir__engine_capture(a->host, stream) != WEIR_OK)
        return NULL;
    event = take_event(a);
    if (event && a->host->driver->cuEventRecord(event, stream) != CUDA_SUCCESS) {
        give_event(a, event);
        return NULL;
    }
    return event;
}

/* ---- streams --------------------------------------------------------------------------------- */

/* The stream's id; 0 without ids, or when the default stream has no context to belong to. */
static uint64_t id_of(struct arena *a, weir_stream stream, CUresult *result) {
    const struct weir_driver *driver = a->host->driver;
    unsigned long long id = 0;
    struct weir_driver_scope scope;

    *result = CUDA_SUCCESS;
    if (!(driver->capabilities & WEIR_CAP_STREAM_ID))
        return 0;
    *result = driver->cuStreamGetId(stream, &id);
    if (*result == CUDA_ERROR_INVALID_CONTEXT) {
        *result = weir__driver_enter(driver, a->host->context, &scope);
        if (*result == CUDA_SUCCESS) {
            *result = driver->cuStreamGetId(stream, &id);
            weir__driver_leave(driver, &scope);
        }
    }
    return id;
}

/* What is kept about a stream, made when it is seen first; NULL: no host memory. */
static struct stream *stream_of(struct arena *a, uint64_t id) {
    struct stream *streams;

    if (a->stream_last < a->stream_count && a->streams[a->stream_last].id == id)
        return &a->streams[a->stream_last];
    for (size_t i = 0; i < a->stream_count; i++) {
        if (a->streams[i].id == id) {
            a->stream_last = i;
            return &a->streams[i];
        }
    }
    streams = with_room(a->streams, a->stream_count, &a->stream_capacity, sizeof *streams);
    if (!streams)
        return NULL;
    a->streams = streams;
    a->stream_last = a->stream_count++;
    streams[a->stream_last] = (struct stream){.id = id};
    return &streams[a->stream_last];
}

/* Takes the stream's completed events off, oldest first; 1 if there was one. */
static int observe(struct arena *a, struct stream *s) {
    uint64_t sequence = 0;

    while (s->count > 0 && is_done(a, s->marks[s->first].event)) {
        sequence = s->marks[s->first].sequence;
        give_event(a, s->marks[s->first].event);
        s->first++;
        s->count--;
    }
    if (sequence == 0)
        return 0;
    memmove(s->marks, s->marks + s->first, s->count * sizeof *s->marks);
    s->first = 0;
    weir__placement_observe(a->placement, s->id, sequence);
    return 1;
}

/* Records an event for all frees on the stream so far. */
static void record(struct arena *a, struct stream *s, weir_stream stream) {
    struct mark *marks = with_room(s->marks, s->count, &s->capacity, sizeof *marks);
    CUevent event;

    if (!marks)
        return;
    s->marks = marks;
    event = record_on(a, stream);
    if (!event)
        return; /* tried again at a later call */
    marks[s->count++] = (struct mark){event, s->sequence};
    s->recorded = s->sequence;
}

/* Called for every operation on `stream`, with several streams about: see the top of the file. */
static void tend(struct arena *a, struct stream *s, weir_stream stream) {
    uint64_t open = s->sequence - s->recorded;

    if (open == 0 || (open < EVENT_BATCH && s->dry_seen == a->dry && s->id != 0))
        return;
    s->dry_seen = a->dry;
    record(a, s, stream);
    observe(a, s);
}

/* ---- pending frees --------------------------------------------------------------------------- */

/* Gives a block back whose last use the host has seen: it is clean at once. */
static void give_observed(struct arena *a, CUdeviceptr block) {
    struct weir_placement_block was;

    a->observed++;
    if (weir__placement_give(a->placement, block, OBSERVED, a->observed, &was) != WEIR_PLACEMENT_OK)
        return;
    weir__placement_observe(a->placement, OBSERVED, a->observed);
    a->in_use -= was.size;
    a->requested -= was.requested;
}

static int all_done(struct arena *a, struct pending *p) {
    while (p->events > 0 && is_done(a, p->event[p->events - 1]))
        give_event(a, p->event[--p->events]);
    return p->events == 0;
}

/* 1 if a pending free has completed. */
static int settle_pending(struct arena *a) {
    struct pending **link = &a->pending;
    int settled = 0;

    while (*link) {
        struct pending *p = *link;

        if (!all_done(a, p)) {
            link = &p->next;
            continue;
        }
        *link = p->next;
        a->pending_count--;
        give_observed(a, p->block);
        free(p);
        settled = 1;
    }
    return settled;
}

static int is_pending(const struct arena *a, CUdeviceptr block) {
    for (const struct pending *p = a->pending; p; p = p->next)
        if (p->block == block)
            return 1;
    return 0;
}

/* Keeps the block until `stream` and every noted stream are past this point.  The caller has seen
 * that the block is live. */
static weir_status free_with_uses(struct arena *a, CUdeviceptr block, weir_stream stream,
                                  const struct weir_use_list *uses) {
    struct pending *p = malloc(sizeof *p + (uses->count + 1) * sizeof p->event[0]);

    if (!p)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    p->block = block;
    p->events = 0;
    for (size_t i = 0; i <= uses->count; i++) {
        CUevent event = record_on(a, i < uses->count ? uses->streams[i] : stream);

        if (!event) {
            while (p->events > 0)
                give_event(a, p->event[--p->events]);
            free(p);
            return weir__engine_refuse(WEIR_E_CAPTURE);
        }
        p->event[p->events++] = event;
    }
    p->next = a->pending;
    a->pending = p;
    a->pending_count++;
    return WEIR_OK;
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* Takes one region of `bytes` from the device, smaller ones if it refuses, down to `least`. */
static weir_status take_region(struct arena *a, size_t bytes, size_t least, size_t *got) {
    const struct weir_driver *driver = a->host->driver;
    struct weir_driver_scope scope;
    CUdeviceptr base = 0;
    CUresult result = weir__driver_enter(driver, a->host->context, &scope);
    int placed = WEIR_PLACEMENT_NO_MEMORY;

    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    do {
        result = driver->cuMemAlloc(&base, bytes);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            break;
        bytes = weir__growth_smaller(&a->host->options, bytes, least, GRANULARITY);
    } while (bytes >= least && bytes > 0);
    if (result == CUDA_SUCCESS) {
        placed = weir__placement_add(a->placement, base, bytes);
        if (placed != WEIR_PLACEMENT_OK)
            driver->cuMemFree(base);
    }
    weir__driver_leave(driver, &scope);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    if (placed != WEIR_PLACEMENT_OK)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    *got = bytes;
    a->reserve += bytes;
    if (a->reserve > a->reserve_peak)
        a->reserve_peak = a->reserve;
    return WEIR_OK;
}

/* What the next region should have for a request of `bytes` (already rounded); 0: over the limit. */
static size_t region_size(struct arena *a, size_t bytes) {
    uint64_t device_free;
    weir_growth_state state = {.size = sizeof state, .request = bytes};

    if (a->host->options.arena == WEIR_ARENA_FIXED) {
        uint64_t left = a->host->limit - a->reserve;

        return bytes <= left ? weir__size_round_down((size_t)left, GRANULARITY) : 0;
    }
    /* BFC asks for its step and backs off when refused, without asking what is free. */
    device_free =
        a->host->options.growth == WEIR_GROWTH_BFC ? UINT64_MAX : weir__engine_device_free(a->host);
    state.reserve = (size_t)a->reserve;
    state.in_use = (size_t)a->in_use;
    state.limit =
        (size_t)(a->host->limit < a->host->device_total ? a->host->limit : a->host->device_total);
    state.device_free = (size_t)device_free;
    return weir__growth_step(&a->host->options, &state, GRANULARITY, &a->cursor);
}

static weir_status extend(struct arena *a, size_t bytes) {
    uint64_t started = a->host->driver->ticks();
    size_t least, step, got = 0;
    weir_status status;

    if (!weir__size_round_up(bytes, GRANULARITY, &least))
        return weir__engine_refuse(WEIR_E_NO_MEMORY);
    step = region_size(a, least);
    if (step == 0)
        return weir__engine_refuse(a->host->limit < a->host->device_total ? WEIR_E_LIMIT
                                                                          : WEIR_E_NO_MEMORY);
    status = take_region(a, step, least, &got);
    if (status == WEIR_OK)
        weir__engine_note(a->host, WEIR_EVENT_REQUEST, 0, step, got,
                          weir__engine_since(a->host, started), a->reserve);
    return status;
}

/* Gives the idle region at `base` back.  cuMemFree waits for all work of the device, so a region
 * whose last frees were not observed may go too. */
static CUresult drop_region(struct arena *a, uint64_t base, size_t bytes) {
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(a->host->driver, a->host->context, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = a->host->driver->cuMemFree(base);
    weir__driver_leave(a->host->driver, &scope);
    if (result == CUDA_SUCCESS) {
        weir__placement_remove(a->placement, base);
        a->reserve -= bytes;
    }
    return result;
}

/* ---- the engine ------------------------------------------------------------------------------ */

static weir_status arena_open(struct weir_host *host, void **engine) {
    static const struct weir_placement_rule bfc = {.granularity = GRANULARITY,
                                                   .split_waste = SPLIT_WASTE};
    struct arena *a = calloc(1, sizeof *a);

    if (!a)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    a->host = host;
    if (weir__placement_create(&bfc, &a->placement) != WEIR_PLACEMENT_OK) {
        free(a);
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    }
    pthread_mutex_init(&a->lock, NULL);
    *engine = a;
    return WEIR_OK;
}

static void destroy_events(struct arena *a) {
    const struct weir_driver *driver = a->host->driver;

    for (size_t i = 0; i < a->stream_count; i++) {
        struct stream *s = &a->streams[i];

        for (size_t k = 0; k < s->count; k++)
            driver->cuEventDestroy(s->marks[s->first + k].event);
        free(s->marks);
    }
    while (a->pending) {
        struct pending *p = a->pending;

        while (p->events > 0)
            driver->cuEventDestroy(p->event[--p->events]);
        a->pending = p->next;
        free(p);
    }
    while (a->spare_count > 0)
        driver->cuEventDestroy(a->spare[--a->spare_count]);
}

static void arena_close(void *engine) {
    struct arena *a = engine;
    struct weir_driver_scope scope;

    if (weir__driver_enter(a->host->driver, a->host->context, &scope) == CUDA_SUCCESS) {
        uint64_t base;
        size_t bytes;

        destroy_events(a);
        while (weir__placement_idle_region(a->placement, &base, &bytes)) {
            a->host->driver->cuMemFree(base);
            weir__placement_remove(a->placement, base);
        }
        weir__driver_leave(a->host->driver, &scope);
    }
    weir__placement_destroy(a->placement);
    pthread_mutex_destroy(&a->lock);
    free(a->streams);
    free(a->spare);
    free(a);
}

static void account(struct arena *a, const struct weir_placement_block *block) {
    a->in_use += block->size;
    a->requested += block->requested;
    if (a->in_use > a->in_use_peak)
        a->in_use_peak = a->in_use;
    if (a->requested > a->requested_peak)
        a->requested_peak = a->requested;
}

/* Looks at everything that may have completed; 1 if something did. */
static int look_around(struct arena *a) {
    int found = a->pending ? settle_pending(a) : 0;

    for (size_t i = 0; i < a->stream_count; i++)
        found |= observe(a, &a->streams[i]);
    return found;
}

static weir_status place(struct arena *a, size_t bytes, uint64_t id, int *grew,
                         struct weir_placement_block *out) {
    int result = weir__placement_take(a->placement, bytes, id, out);
    weir_status status;

    if (result == WEIR_PLACEMENT_NO_FIT && look_around(a))
        result = weir__placement_take(a->placement, bytes, id, out);
    if (result == WEIR_PLACEMENT_NO_FIT) {
        a->dry++; /* every stream records what it has freed, at its owner's next call */
        status = extend(a, bytes);
        if (status != WEIR_OK)
            return status;
        *grew = 1;
        result = weir__placement_take(a->placement, bytes, id, out);
    }
    if (result == WEIR_PLACEMENT_NO_MEMORY)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    return result == WEIR_PLACEMENT_OK ? WEIR_OK : weir__engine_refuse(WEIR_E_NO_MEMORY);
}

static weir_status arena_alloc(void *engine, size_t bytes, weir_stream stream, CUdeviceptr *block,
                               int *grew) {
    struct arena *a = engine;
    struct weir_placement_block placed;
    struct stream *s;
    weir_status status;
    CUresult result;
    uint64_t id;

    status = weir__engine_capture(a->host, stream);
    if (status != WEIR_OK)
        return status;
    id = id_of(a, stream, &result);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    pthread_mutex_lock(&a->lock);
    s = stream_of(a, id);
    if (s && a->stream_count > 1)
        tend(a, s, stream);
    status = s ? place(a, bytes, id, grew, &placed) : weir__engine_refuse(WEIR_E_HOST_MEMORY);
    if (status == WEIR_OK)
        account(a, &placed);
    pthread_mutex_unlock(&a->lock);
    if (status == WEIR_OK)
        *block = placed.address;
    return status;
}

/* A free on one stream alone. */
static weir_status give(struct arena *a, CUdeviceptr block, uint64_t id, weir_stream stream) {
    struct stream *s = stream_of(a, id);
    struct weir_placement_block was;

    if (!s)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    if (weir__placement_give(a->placement, block, id, s->sequence + 1, &was) != WEIR_PLACEMENT_OK)
        return weir__engine_refuse(WEIR_E_NOT_OWNED);
    s->sequence++;
    a->in_use -= was.size;
    a->requested -= was.requested;
    if (a->stream_count > 1 || id == 0)
        tend(a, s, stream);
    return WEIR_OK;
}

static weir_status arena_free(void *engine, CUdeviceptr block, weir_stream stream,
                              const struct weir_use_list *uses) {
    struct arena *a = engine;
    struct weir_placement_block found;
    weir_status status;
    CUresult result;
    uint64_t id = id_of(a, stream, &result);

    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    pthread_mutex_lock(&a->lock);
    if (a->pending && is_pending(a, block))
        status = weir__engine_refuse(WEIR_E_NOT_OWNED); /* freed before */
    else if (!uses)
        status = give(a, block, id, stream);
    else if (weir__placement_find(a->placement, block, &found) != WEIR_PLACEMENT_OK)
        status = weir__engine_refuse(WEIR_E_NOT_OWNED);
    else
        status = free_with_uses(a, block, stream, uses);
    pthread_mutex_unlock(&a->lock);
    return status;
}

static weir_status arena_grow(void *engine, uint64_t target, int cause) {
    struct arena *a = engine;
    uint64_t started = a->host->driver->ticks();
    uint64_t wanted = target < a->host->limit ? target : a->host->limit;
    weir_status status = WEIR_OK;
    size_t bytes, got = 0;

    pthread_mutex_lock(&a->lock);
    if (wanted > a->reserve) {
        bytes = weir__size_round_down((size_t)(wanted - a->reserve), GRANULARITY);
        status = bytes == 0 ? WEIR_OK : take_region(a, bytes, GRANULARITY, &got);
        if (got > 0)
            weir__engine_note(a->host, cause, 0, bytes, got, weir__engine_since(a->host, started),
                              a->reserve);
    }
    if (status == WEIR_OK && a->reserve + GRANULARITY <= target)
        status = weir__engine_refuse(target > a->host->limit ? WEIR_E_LIMIT : WEIR_E_NO_MEMORY);
    pthread_mutex_unlock(&a->lock);
    return status;
}

static weir_status arena_trim(void *engine, size_t keep, int cause, size_t *released) {
    struct arena *a = engine;
    uint64_t started = a->host->driver->ticks(), before, base;
    CUresult result = CUDA_SUCCESS;
    size_t bytes;

    pthread_mutex_lock(&a->lock);
    look_around(a);
    before = a->reserve;
    while (result == CUDA_SUCCESS && a->reserve > keep &&
           weir__placement_idle_region(a->placement, &base, &bytes) && a->reserve - bytes >= keep)
        result = drop_region(a, base, bytes);
    *released = (size_t)(before - a->reserve);
    if (*released > 0)
        weir__engine_note(a->host, cause, 1, before - keep, *released,
                          weir__engine_since(a->host, started), a->reserve);
    pthread_mutex_unlock(&a->lock);
    return weir__engine_status(a->host, result);
}

static size_t arena_reclaim(void *engine, size_t *silent) {
    struct arena *a = engine;
    size_t waiting, unrecorded = 0;

    pthread_mutex_lock(&a->lock);
    look_around(a);
    waiting = a->pending_count;
    for (size_t i = 0; i < a->stream_count; i++) {
        waiting += a->streams[i].count;
        unrecorded += a->streams[i].sequence != a->streams[i].recorded;
    }
    if (silent)
        *silent = a->stream_count > 1 ? unrecorded : 0;
    pthread_mutex_unlock(&a->lock);
    return waiting;
}

static void arena_figures(void *engine, weir_statistics *out) {
    struct arena *a = engine;
    struct weir_placement_figures figures;

    pthread_mutex_lock(&a->lock);
    weir__placement_figures(a->placement, &figures);
    out->requested = a->requested;
    out->requested_peak = a->requested_peak;
    out->in_use = a->in_use;
    out->in_use_peak = a->in_use_peak;
    out->reserve = a->reserve;
    out->reserve_peak = a->reserve_peak;
    out->extent = figures.extent;
    out->host_bytes = figures.host_bytes;
    pthread_mutex_unlock(&a->lock);
}

const struct weir_engine weir__engine_arena = {
    .open = arena_open,
    .close = arena_close,
    .alloc = arena_alloc,
    .free = arena_free,
    .grow = arena_grow,
    .trim = arena_trim,
    .reclaim = arena_reclaim,
    .figures = arena_figures,
};
