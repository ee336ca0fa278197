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
 * another stream ran dry; a young stream, which may end after any call, records at each.  Completed events are looked for when a request does not fit, and one of
 * its own whenever a stream records.  Handles are never asked about outside calls that pass them: a
 * destroyed stream's handle crashes the driver, or belongs to another stream by then.
 *
 * Streams are told apart by cuStreamGetId.  Below driver 12.0 there are no ids: all frees then carry
 * stream 0, which serves nobody before it was observed, and each records its event at once: a later
 * call's handle may mean another stream.
 *
 * A block that other streams use too (weir_use) is no longer in use after its free, but stays placed
 * until events recorded on all of them have completed.
 *
 * What cannot be tracked (a free without an event on stream 0, or without host memory for its
 * bookkeeping) is quarantined: it serves nobody until the whole device was waited for.  A trim does
 * that, for frees that no event covers too, and so does a region's cuMemFree.
 *
 * Locks: one lock over everything here; under it driver calls for events and growth, and the
 * books' lock.  Taken once an operation.
 *
 * Must not know: other engines, settings' names, how placement orders its chunks.
 */
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "growth.h"
#include "lock.h"
#include "map.h"
#include "placement.h"
#include "result.h"
#include "size.h"

#define GRANULARITY ((size_t)256)
#define SPLIT_WASTE ((size_t)128 << 20)
/* Frees on one stream that share an event, when several streams are served. */
enum { EVENT_BATCH = 16 };
/* Not streams.  OBSERVED: carried by blocks whose end the host saw by other means than one stream's
 * event.  QUARANTINE: by blocks whose end only a wait for the device will tell. */
#define OBSERVED UINT64_MAX
#define QUARANTINE (UINT64_MAX - 1)

/* An event that stands for all frees of a stream up to `sequence`. */
struct mark {
    CUevent event;
    uint64_t sequence;
};

struct stream {
    uint64_t id;        /* 0: not known (driver without ids) */
    uint64_t sequence;  /* of its last free */
    uint64_t frees;     /* on it so far */
    uint64_t recorded;  /* frees (counted) up to here are covered by an event */
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

struct region {
    uint64_t base;
    size_t bytes;
};

struct arena {
    struct weir_host *host;
    struct weir_lock lock; /* guards all that follows */
    struct weir_placement *placement;
    struct weir_growth_cursor cursor;
    struct region *regions; /* in order of base, as the placement walks them */
    size_t region_count, region_capacity;
    uint64_t sequence; /* of the last free on any stream: a stream forgotten may come back */
    struct stream *streams;
    size_t stream_count, stream_capacity, stream_last;
    int several;             /* tags matter: a second stream, or a free under no stream */
    uint64_t dry;            /* times that a stream found nothing that it may use */
    struct pending *pending; /* oldest first */
    struct pending **pending_end;
    struct weir_map pending_blocks; /* their addresses */
    uint64_t observed;              /* sequence of the last give under OBSERVED */
    uint64_t quarantined;           /* sequence of the last give under QUARANTINE, */
    uint64_t released;              /* and up to where the device was waited for since */
    CUevent *spare;                 /* events to use again */
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

/* An event that nothing waits for. */
static CUresult take_event(struct arena *a, CUevent *event) {
    struct weir_driver_scope scope;
    CUresult result;

    if (a->spare_count > 0) {
        *event = a->spare[--a->spare_count];
        return CUDA_SUCCESS;
    }
    result = weir__driver_enter(a->host->driver, a->host->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = a->host->driver->cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
    weir__driver_leave(a->host->driver, &scope);
    return result;
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

/* An event recorded now on `stream`; `id` as for weir__engine_record. */
static weir_status record_on(struct arena *a, weir_stream stream, uint64_t id, CUevent *event) {
    weir_status status = weir__engine_capture(a->host, stream);
    CUresult result;

    if (status != WEIR_OK)
        return status;
    result = take_event(a, event);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    result = weir__engine_record(a->host, *event, stream, id);
    if (result != CUDA_SUCCESS)
        give_event(a, *event);
    return weir__engine_status(a->host, result);
}

/* ---- streams --------------------------------------------------------------------------------- */

static int observe(struct arena *a, struct stream *s);

/* Streams about which nothing is open make room: programs make and end them by the thousand. */
static void forget_streams(struct arena *a) {
    size_t kept = 0;

    for (size_t i = 0; i < a->stream_count; i++) {
        struct stream *s = &a->streams[i];

        observe(a, s);
        if (s->count > 0 || s->frees != s->recorded)
            a->streams[kept++] = *s;
        else
            free(s->marks);
    }
    a->stream_count = kept;
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
    if (a->stream_count == a->stream_capacity)
        forget_streams(a);
    streams = with_room(a->streams, a->stream_count, &a->stream_capacity, sizeof *streams);
    if (!streams)
        return NULL;
    a->streams = streams;
    a->stream_last = a->stream_count++;
    a->several |= a->stream_count > 1 || id == 0;
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

/* Records an event for all frees on the stream up to `sequence`. */
static weir_status record(struct arena *a, struct stream *s, weir_stream stream,
                          uint64_t sequence) {
    struct mark *marks = with_room(s->marks, s->count, &s->capacity, sizeof *marks);
    weir_status status;
    CUevent event = NULL;

    if (!marks)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    s->marks = marks;
    status = record_on(a, stream, 0, &event);
    if (status != WEIR_OK)
        return status;
    marks[s->count++] = (struct mark){event, sequence};
    return WEIR_OK;
}

/* Called for every operation on `stream`, with several streams about: see the top of the file. */
static void tend(struct arena *a, struct stream *s, weir_stream stream) {
    uint64_t open = s->frees - s->recorded;
    int result = weir__driver_result;

    /* A young stream may end after any call: it leaves nothing unrecorded. */
    if (open == 0 || (open < EVENT_BATCH && s->dry_seen == a->dry && s->frees > EVENT_BATCH))
        return;
    if (record(a, s, stream, s->sequence) == WEIR_OK) {
        s->recorded = s->frees;
        s->dry_seen = a->dry;
        observe(a, s);
    } else { /* tried again at a later call */
        weir__set_driver_result(result);
    }
}

/* ---- pending frees --------------------------------------------------------------------------- */

/* The block's owner has freed it. */
static void unaccount(struct arena *a, const struct weir_placement_block *block) {
    a->in_use -= block->size;
    a->requested -= block->requested;
}

/* Gives a block back whose last use the host has seen: it is clean at once.  It was freed before. */
static void give_observed(struct arena *a, CUdeviceptr block) {
    a->several = 1;
    a->observed++;
    (void)weir__placement_give(a->placement, block, OBSERVED, a->observed, NULL);
    weir__placement_observe(a->placement, OBSERVED, a->observed);
}

/* Gives a block back that nobody may have before the device was waited for. */
static weir_status give_quarantined(struct arena *a, CUdeviceptr block) {
    struct weir_placement_block was;

    if (weir__placement_give(a->placement, block, QUARANTINE, a->quarantined + 1, &was) !=
        WEIR_PLACEMENT_OK)
        return weir__engine_refuse(WEIR_E_NOT_OWNED);
    a->several = 1;
    a->quarantined++;
    unaccount(a, &was);
    return WEIR_OK;
}

static int all_done(struct arena *a, struct pending *p) {
    while (p->events > 0 && is_done(a, p->event[p->events - 1]))
        give_event(a, p->event[--p->events]);
    return p->events == 0;
}

/* Takes a pending free off that has completed. */
static void pop_pending(struct arena *a, struct pending **link) {
    struct pending *p = *link;

    *link = p->next;
    if (a->pending_end == &p->next)
        a->pending_end = link;
    weir__map_take(&a->pending_blocks, p->block, NULL);
    give_observed(a, p->block);
    free(p);
}

/* Looks at up to `most` pending frees, oldest first; 1 if one has completed. */
static int settle_pending(struct arena *a, size_t most) {
    struct pending **link = &a->pending;
    int settled = 0;

    for (; *link && most > 0; most--) {
        if (all_done(a, *link)) {
            pop_pending(a, link);
            settled = 1;
        } else {
            link = &(*link)->next;
        }
    }
    return settled;
}

/* Keeps the block until `stream` and every noted stream are past this point. */
static weir_status free_with_uses(struct arena *a, CUdeviceptr block, weir_stream stream,
                                  struct weir_use_list *uses) {
    struct weir_placement_block found;
    struct pending *p;

    if (weir__placement_find(a->placement, block, &found) != WEIR_PLACEMENT_OK)
        return weir__engine_refuse(WEIR_E_NOT_OWNED);
    p = malloc(sizeof *p + (uses->count + 1) * sizeof p->event[0]);
    if (!p)
        return give_quarantined(a, block);
    p->block = block;
    p->events = 0;
    for (size_t i = 0; i <= uses->count; i++) {
        struct weir_use *use = i < uses->count ? &uses->use[i] : NULL;
        weir_status status =
            record_on(a, use ? use->stream : stream, use ? use->id : 0, &p->event[p->events]);

        if (use)
            use->refused = status == WEIR_E_STREAM;
        if (status != WEIR_OK) {
            while (p->events > 0)
                give_event(a, p->event[--p->events]);
            free(p);
            return status;
        }
        p->events++;
    }
    if (!weir__map_put(&a->pending_blocks, block, 1)) {
        while (p->events > 0)
            give_event(a, p->event[--p->events]);
        free(p);
        return give_quarantined(a, block);
    }
    p->next = NULL;
    *a->pending_end = p;
    a->pending_end = &p->next;
    unaccount(a, &found);
    return WEIR_OK;
}

/* The device has finished all work: nothing is behind anything any more. */
static void observe_all(struct arena *a) {
    for (size_t i = 0; i < a->stream_count; i++) {
        struct stream *s = &a->streams[i];

        while (s->count > 0)
            give_event(a, s->marks[--s->count].event);
        s->recorded = s->frees;
        weir__placement_observe(a->placement, s->id, s->sequence);
    }
    weir__placement_observe(a->placement, QUARANTINE, a->quarantined);
    a->released = a->quarantined;
    while (a->pending) {
        while (a->pending->events > 0)
            give_event(a, a->pending->event[--a->pending->events]);
        pop_pending(a, &a->pending);
    }
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* Adds the region to the placement and to the list; the caller has made room in the list. */
static int add_region(struct arena *a, CUdeviceptr base, size_t bytes) {
    int placed = weir__placement_add(a->placement, base, bytes);
    size_t at = a->region_count;

    if (placed != WEIR_PLACEMENT_OK)
        return placed;
    while (at > 0 && a->regions[at - 1].base > base) {
        a->regions[at] = a->regions[at - 1];
        at--;
    }
    a->regions[at] = (struct region){base, bytes};
    a->region_count++;
    a->reserve += bytes;
    if (a->reserve > a->reserve_peak)
        a->reserve_peak = a->reserve;
    return WEIR_PLACEMENT_OK;
}

/* Takes one region of `bytes` from the device, smaller ones if it refuses, down to `least`. */
static weir_status take_region(struct arena *a, size_t bytes, size_t least, size_t *got) {
    const struct weir_driver *driver = a->host->driver;
    struct region *regions =
        with_room(a->regions, a->region_count, &a->region_capacity, sizeof *regions);
    struct weir_driver_scope scope;
    CUdeviceptr base = 0;
    int placed = WEIR_PLACEMENT_NO_MEMORY;
    CUresult result;

    if (!regions)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    a->regions = regions;
    result = weir__driver_enter(driver, a->host->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    do {
        result = driver->cuMemAlloc(&base, bytes);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            break;
        bytes = weir__growth_smaller(&a->host->options, bytes, least, GRANULARITY);
    } while (bytes >= least && bytes > 0);
    if (result == CUDA_SUCCESS) {
        placed = add_region(a, base, bytes);
        if (placed != WEIR_PLACEMENT_OK)
            driver->cuMemFree(base);
    }
    weir__driver_leave(driver, &scope);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    if (placed != WEIR_PLACEMENT_OK)
        return weir__engine_refuse(WEIR_E_HOST_MEMORY);
    *got = bytes;
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
    else
        weir__growth_refused(&a->cursor);
    return status;
}

/* Gives a region without live blocks back.  cuMemFree waits for all work of the device, so its last
 * frees need not have been observed; afterwards all are. */
static CUresult drop_region(struct arena *a, size_t at) {
    struct region gone = a->regions[at];
    struct weir_driver_scope scope;
    CUresult result = weir__driver_enter(a->host->driver, a->host->context, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = a->host->driver->cuMemFree(gone.base);
    weir__driver_leave(a->host->driver, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    observe_all(a);
    weir__placement_remove(a->placement, gone.base);
    a->region_count--;
    memmove(&a->regions[at], &a->regions[at + 1], (a->region_count - at) * sizeof a->regions[0]);
    a->reserve -= gone.bytes;
    return CUDA_SUCCESS;
}

/* Finds the largest region without live blocks of at most `most` bytes. */
struct search {
    const struct arena *arena;
    size_t most;
    size_t at;   /* the region that the walk is in */
    int live;    /* it has a live block */
    size_t best; /* region_count: none so far */
};

static void end_region(struct search *s) {
    const struct region *regions = s->arena->regions;

    if (!s->live && regions[s->at].bytes <= s->most &&
        (s->best == s->arena->region_count || regions[s->at].bytes > regions[s->best].bytes))
        s->best = s->at;
    s->at++;
    s->live = 0;
}

static int visit(void *context, const struct weir_placement_span *span) {
    struct search *s = context;
    const struct region *r = &s->arena->regions[s->at];

    s->live |= span->live;
    if (span->address + span->size == r->base + r->bytes)
        end_region(s);
    return 0;
}

/* 1 and its place, or 0: there is none. */
static int find_idle(const struct arena *a, size_t most, size_t *at) {
    struct search s = {.arena = a, .most = most, .best = a->region_count};

    weir__placement_walk(a->placement, visit, &s);
    *at = s.best;
    return s.best < a->region_count;
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
    a->pending_end = &a->pending;
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
        for (size_t i = 0; i < a->region_count;
             i++) /* waits for the device, and so for all frees */
            a->host->driver->cuMemFree(a->regions[i].base);
        destroy_events(a);
        weir__driver_leave(a->host->driver, &scope);
    }
    weir__placement_destroy(a->placement);
    weir__map_clear(&a->pending_blocks);
    free(a->regions);
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
    int found = settle_pending(a, SIZE_MAX);

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
    result = weir__engine_stream_id(a->host, stream, &id);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    weir__lock_take(&a->lock);
    s = stream_of(a, id);
    if (s && a->several)
        tend(a, s, stream);
    status = s ? place(a, bytes, id, grew, &placed) : weir__engine_refuse(WEIR_E_HOST_MEMORY);
    if (status == WEIR_OK)
        account(a, &placed);
    weir__lock_give(&a->lock);
    if (status == WEIR_OK)
        *block = placed.address;
    return status;
}

/* A free on a stream without an id: its event comes first. */
static weir_status give_unknown(struct arena *a, CUdeviceptr block, struct stream *s,
                                weir_stream stream) {
    struct weir_placement_block was;
    weir_status status;

    if (weir__placement_find(a->placement, block, &was) != WEIR_PLACEMENT_OK)
        return weir__engine_refuse(WEIR_E_NOT_OWNED);
    status = record(a, s, stream, a->sequence + 1);
    if (status == WEIR_E_STREAM || status == WEIR_E_DEVICE_LOST)
        return status;
    if (status != WEIR_OK)
        return give_quarantined(a, block);
    s->sequence = ++a->sequence;
    s->recorded = ++s->frees;
    (void)weir__placement_give(a->placement, block, s->id, s->sequence, NULL);
    unaccount(a, &was);
    observe(a, s);
    return WEIR_OK;
}

/* A free on one stream alone. */
static weir_status give(struct arena *a, CUdeviceptr block, uint64_t id, weir_stream stream) {
    struct stream *s = stream_of(a, id);
    struct weir_placement_block was;

    if (!s)
        return give_quarantined(a, block);
    if (id == 0)
        return give_unknown(a, block, s, stream);
    if (weir__placement_give(a->placement, block, id, a->sequence + 1, &was) != WEIR_PLACEMENT_OK)
        return weir__engine_refuse(WEIR_E_NOT_OWNED);
    s->sequence = ++a->sequence;
    s->frees++;
    unaccount(a, &was);
    if (a->several)
        tend(a, s, stream);
    return WEIR_OK;
}

static weir_status arena_free(void *engine, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses) {
    struct arena *a = engine;
    weir_status status;
    CUresult result;
    uint64_t id;

    result = weir__engine_stream_id(a->host, stream, &id);
    if (result != CUDA_SUCCESS)
        return weir__engine_status(a->host, result);
    weir__lock_take(&a->lock);
    if (a->pending && weir__map_get(&a->pending_blocks, block, NULL))
        status = weir__engine_refuse(WEIR_E_NOT_OWNED); /* freed before */
    else if (!uses)
        status = give(a, block, id, stream);
    else
        status = free_with_uses(a, block, stream, uses);
    if (uses)
        settle_pending(a, 2); /* so that they do not pile up while every request fits */
    weir__lock_give(&a->lock);
    return status;
}

static weir_status arena_grow(void *engine, uint64_t target, int cause) {
    struct arena *a = engine;
    uint64_t started = a->host->driver->ticks();
    uint64_t most = weir__size_round_down((size_t)a->host->limit, GRANULARITY), wanted;
    weir_status status = WEIR_OK;
    size_t rounded, got = 0;

    if (!weir__size_round_up((size_t)target, GRANULARITY, &rounded))
        rounded = SIZE_MAX;
    wanted = rounded < most ? rounded : most;
    weir__lock_take(&a->lock);
    if (wanted > a->reserve) {
        size_t bytes = (size_t)(wanted - a->reserve);

        status = take_region(a, bytes, GRANULARITY, &got);
        if (got > 0)
            weir__engine_note(a->host, cause, 0, bytes, got, weir__engine_since(a->host, started),
                              a->reserve);
    }
    if (status == WEIR_OK && a->reserve < target)
        status = weir__engine_refuse(target > most ? WEIR_E_LIMIT : WEIR_E_NO_MEMORY);
    weir__lock_give(&a->lock);
    return status;
}

/* Frees that no event covers, of streams that are silent or gone, and what is quarantined: the device
 * is waited for, as giving a region back does anyway. */
static CUresult wait_for_silent(struct arena *a) {
    int silent = a->quarantined != a->released;
    struct weir_driver_scope scope;
    CUresult result;

    for (size_t i = 0; i < a->stream_count && a->several; i++)
        silent |= a->streams[i].frees != a->streams[i].recorded;
    if (!silent)
        return CUDA_SUCCESS;
    result = weir__driver_enter(a->host->driver, a->host->context, &scope);
    if (result != CUDA_SUCCESS)
        return result;
    result = a->host->driver->cuCtxSynchronize();
    weir__driver_leave(a->host->driver, &scope);
    if (result == CUDA_SUCCESS)
        observe_all(a);
    return result;
}

static weir_status arena_trim(void *engine, size_t keep, int cause, size_t *released) {
    struct arena *a = engine;
    uint64_t started = a->host->driver->ticks(), before;
    CUresult result;
    size_t at;

    weir__lock_take(&a->lock);
    look_around(a);
    result = wait_for_silent(a);
    before = a->reserve;
    while (result == CUDA_SUCCESS && a->reserve > keep &&
           find_idle(a, (size_t)a->reserve - keep, &at))
        result = drop_region(a, at);
    *released = (size_t)(before - a->reserve);
    if (*released > 0)
        weir__engine_note(a->host, cause, 1, before - keep, *released,
                          weir__engine_since(a->host, started), a->reserve);
    weir__lock_give(&a->lock);
    return weir__engine_status(a->host, result);
}

static size_t arena_reclaim(void *engine, size_t *silent) {
    struct arena *a = engine;
    size_t waiting, unrecorded = 0;

    weir__lock_take(&a->lock);
    look_around(a);
    waiting = a->pending_blocks.count;
    for (size_t i = 0; i < a->stream_count; i++) {
        waiting += a->streams[i].count;
        unrecorded += a->streams[i].frees != a->streams[i].recorded;
    }
    if (silent)
        *silent = a->several ? unrecorded : 0;
    weir__lock_give(&a->lock);
    return waiting;
}

static void arena_figures(void *engine, weir_statistics *out) {
    struct arena *a = engine;
    struct weir_placement_figures figures;

    weir__lock_take(&a->lock);
    weir__placement_figures(a->placement, &figures);
    out->requested = a->requested;
    out->requested_peak = a->requested_peak;
    out->in_use = a->in_use;
    out->in_use_peak = a->in_use_peak;
    out->reserve = a->reserve;
    out->reserve_peak = a->reserve_peak;
    out->extent = figures.extent;
    out->host_bytes = figures.host_bytes;
    weir__lock_give(&a->lock);
}

const struct weir_engine weir__engine_arena = {
    .trim_waits = 1,
    .open = arena_open,
    .close = arena_close,
    .alloc = arena_alloc,
    .free = arena_free,
    .grow = arena_grow,
    .trim = arena_trim,
    .reclaim = arena_reclaim,
    .figures = arena_figures,
};
