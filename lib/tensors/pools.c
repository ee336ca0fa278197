/* SPDX-License-Identifier: MIT */
/* pools.c: private pools: memory that keeps its addresses, for graphs that are launched again and again.
 *
 * A pool takes segments that any stream may use, and places blocks in them by best fit.  What was freed serves the stream
 * that freed it.  A segment stays as long as the pool has users: a graph has its addresses.
 *
 * Where the engine can (weir__alloc_apart) a pool takes each segment behind its last one, and they are one: blocks lie
 * across them, and growth adds only what the free memory at the end lacks.  Elsewhere segments (weir_alloc_any) grow with
 * the pool, so that small pools hold little and large ones call seldom.
 *
 * Must not know: what a capture is, frameworks.
 */
#include <stdlib.h>
#include <string.h>

#include "api/allocator_internal.h"
#include "base/result.h"
#include "base/size.h"
#include "tensors/tensors_internal.h"

#define PAGE ((size_t)2 << 20)
#define LARGEST_STEP ((size_t)20 << 20)
enum { STEP_PART = 8, STEP_PART_JOINED = 32 }; /* of the pool */

struct weir_tensor_pool *weir__pool_find(weir_tensors *t, weir_tensors_id id) {
    struct weir_tensor_pool *pool = t->pools;

    while (pool && !weir__tensors_same(pool->id, id))
        pool = pool->next;
    return pool;
}

struct weir_tensor_pool *weir__pool_for(weir_tensors *t, weir_stream stream) {
    struct weir_tensor_pool *pool = t->routed;

    while (pool && !pool->takes(pool->context, stream))
        pool = pool->next_routed;
    return pool;
}

/* How many of the segments begin at the address or below. */
static size_t segments_up_to(const struct weir_tensor_segment *segments, size_t count,
                             uint64_t address) {
    size_t low = 0;

    while (low < count) {
        size_t middle = low + (count - low) / 2;

        if (segments[middle].base <= address)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

const struct weir_tensor_segment *weir__segment_at(const struct weir_tensor_segment *segments,
                                                   size_t count, uint64_t address) {
    size_t at = segments_up_to(segments, count, address);

    return at > 0 && address - segments[at - 1].base < segments[at - 1].bytes ? &segments[at - 1]
                                                                              : NULL;
}

/* ---- pools -------------------------------------------------------------------------------------- */

struct weir_placement *weir__pool_placement(const weir_tensors *t,
                                            const struct weir_tensor_pool *pool) {
    struct weir_placement_rule rule = {
        .granularity = WEIR_TENSORS_UNIT, .split_waste = WEIR_TENSORS_UNIT, .own_first = 1};
    struct weir_placement *p;

    if (weir__placement_create(&rule, &p) != WEIR_PLACEMENT_OK)
        return NULL;
    if (!pool->source.alloc && t->apart.bytes > 0 &&
        weir__placement_add_hole(p, t->apart.base, t->apart.bytes) != WEIR_PLACEMENT_OK) {
        weir__placement_destroy(p);
        return NULL;
    }
    return p;
}

static struct weir_tensor_pool *make_pool(const weir_tensors *t, weir_tensors_id id,
                                          const weir_tensors_source *source) {
    struct weir_tensor_pool *pool = calloc(1, sizeof *pool);

    if (!pool)
        return NULL;
    pool->id = id;
    if (source)
        pool->source = *source;
    pool->placement = weir__pool_placement(t, pool);
    if (!pool->placement) {
        free(pool);
        return NULL;
    }
    return pool;
}

static void end_source(const weir_tensors_source *source) {
    if (source && source->end)
        source->end(source->context);
}

/* It has no users, no segments and no route. */
static void end_pool(weir_tensors *t, struct weir_tensor_pool *pool) {
    struct weir_tensor_pool **link = &t->pools;

    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    end_source(&pool->source);
    weir__placement_destroy(pool->placement);
    free(pool->segments);
    free(pool->streams);
    free(pool);
}

static void end_if_unused(weir_tensors *t, struct weir_tensor_pool *pool) {
    if (pool->users == 0 && pool->segment_count == 0 && !pool->takes && pool->pins == 0)
        end_pool(t, pool);
}

static weir_status check_id(weir_tensors *t, weir_tensors_id id) {
    if (!t || weir__tensors_is_shared(id))
        return weir__without_driver(WEIR_E_INVALID);
    return weir__driver_forked() ? weir__without_driver(WEIR_E_FORKED) : WEIR_OK;
}

/* The pool, with the lock; or NULL without, and why. */
static struct weir_tensor_pool *enter(weir_tensors *t, weir_tensors_id id, weir_status *status) {
    struct weir_tensor_pool *pool;

    *status = check_id(t, id);
    if (*status != WEIR_OK)
        return NULL;
    weir__lock_take(&t->lock);
    pool = weir__pool_find(t, id);
    if (!pool) {
        weir__lock_give(&t->lock);
        *status = weir__without_driver(WEIR_E_NOT_OWNED);
    }
    return pool;
}

weir_status weir_tensors_pool_open(weir_tensors *t, weir_tensors_id id,
                                   const weir_tensors_source *source) {
    struct weir_tensor_pool *pool;
    weir_status status = check_id(t, id);
    int is_new = 0;

    if (status != WEIR_OK) {
        end_source(source);
        return status;
    }
    weir__lock_take(&t->lock);
    pool = weir__pool_find(t, id);
    if (!pool) {
        pool = make_pool(t, id, source);
        is_new = pool != NULL;
        if (pool) {
            pool->next = t->pools;
            t->pools = pool;
        }
    }
    if (pool)
        pool->users++;
    if (!is_new)
        end_source(source);
    weir__lock_give(&t->lock);
    return pool ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
}

weir_status weir_tensors_pool_close(weir_tensors *t, weir_tensors_id id) {
    weir_status status;
    struct weir_tensor_pool *pool = enter(t, id, &status);

    if (!pool)
        return status;
    if (pool->users > 0)
        pool->users--;
    else
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    pool->closed = ++t->sequence;
    end_if_unused(t, pool);
    weir__lock_give(&t->lock);
    return status;
}

weir_status weir_tensors_pool_users(weir_tensors *t, weir_tensors_id id, int *users) {
    weir_status status;
    struct weir_tensor_pool *pool = users ? enter(t, id, &status) : NULL;

    if (!users)
        return weir__without_driver(WEIR_E_INVALID);
    if (!pool)
        return status;
    *users = pool->users;
    weir__lock_give(&t->lock);
    return WEIR_OK;
}

weir_status weir_tensors_pool_lend(weir_tensors *t, weir_tensors_id id, int on) {
    weir_status status;
    struct weir_tensor_pool *pool = enter(t, id, &status);

    if (!pool)
        return status;
    pool->lends = on != 0;
    weir__lock_give(&t->lock);
    return WEIR_OK;
}

weir_status weir_tensors_pool_whole(weir_tensors *t, weir_tensors_id id) {
    weir_status status;
    struct weir_tensor_pool *pool = enter(t, id, &status);

    if (!pool)
        return status;
    pool->is_whole = 1;
    weir__lock_give(&t->lock);
    return WEIR_OK;
}

/* ---- routes ------------------------------------------------------------------------------------- */

weir_status weir_tensors_begin(weir_tensors *t, weir_tensors_id id,
                               int (*takes)(void *context, weir_stream stream), void *context) {
    weir_status status;
    struct weir_tensor_pool *pool = takes ? enter(t, id, &status) : NULL;

    if (!takes)
        return weir__without_driver(WEIR_E_INVALID);
    if (!pool)
        return status;
    if (pool->takes) {
        status = weir__without_driver(WEIR_E_BUSY);
    } else {
        pool->takes = takes;
        pool->context = context;
        pool->next_routed = t->routed;
        t->routed = pool;
        atomic_fetch_add_explicit(&t->routes, 1, memory_order_relaxed);
    }
    weir__lock_give(&t->lock);
    return status;
}

weir_status weir_tensors_end(weir_tensors *t, weir_tensors_id id, void **context) {
    weir_status status;
    struct weir_tensor_pool *pool = enter(t, id, &status), **link;

    if (!pool)
        return status;
    if (pool->takes) {
        for (link = &t->routed; *link != pool;)
            link = &(*link)->next_routed;
        *link = pool->next_routed;
        if (context)
            *context = pool->context;
        pool->takes = NULL;
        pool->context = NULL;
        atomic_fetch_sub_explicit(&t->routes, 1, memory_order_relaxed);
        if (atomic_load_explicit(&t->unsettled, memory_order_relaxed))
            weir__pending_settle(t, 0);
        end_if_unused(t, pool);
    } else {
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    }
    weir__lock_give(&t->lock);
    return status;
}

/* ---- segments ----------------------------------------------------------------------------------- */

/* `unit` is a power of two.  A size that would overflow stays as it is: no request of that size succeeds. */
static size_t round_up(size_t bytes, size_t unit) {
    size_t rounded;

    return weir__size_round_up(bytes, unit, &rounded) ? rounded : bytes;
}

static size_t most_step(const struct weir_tensor_pool *pool, size_t part) {
    return weir__size_smaller(pool->bytes / part, LARGEST_STEP);
}

static size_t step_for(const struct weir_tensor_pool *pool, size_t bytes) {
    if (pool->is_whole)
        return round_up(bytes, WEIR_TENSORS_UNIT);
    return round_up(weir__size_larger(bytes, most_step(pool, STEP_PART)), PAGE);
}

/* Without the lock. */
static weir_status take_segment(weir_tensors *t, const weir_tensors_source *source, size_t *bytes,
                                size_t least, void **segment) {
    weir_status status;

    if (source->alloc) {
        *segment = source->alloc(source->context, *bytes);
        if (!*segment && weir_tensors_trim(t, (weir_tensors_id){0, 0}) == WEIR_OK)
            *segment = source->alloc(source->context, *bytes);
        return *segment ? WEIR_OK : WEIR_E_NO_MEMORY;
    }
    status = weir_alloc_any(t->allocator, *bytes, segment);
    if (weir__is_refusal(status) && *bytes > round_up(least, WEIR_TENSORS_UNIT)) {
        *bytes = round_up(least, WEIR_TENSORS_UNIT);
        status = weir_alloc_any(t->allocator, *bytes, segment);
    }
    if (weir__is_refusal(status) && weir__pools_trim(t, (weir_tensors_id){0, 0}))
        status = weir_alloc_any(t->allocator, *bytes, segment);
    return status;
}

static weir_status give_segment(weir_tensors *t, const weir_tensors_source *source, uint64_t base) {
    void *segment = (void *)(uintptr_t)base;

    if (!source->alloc)
        return weir_free_any(t->allocator, segment);
    if (source->free)
        source->free(source->context, segment);
    return WEIR_OK;
}

int weir__pool_place(const weir_tensors *t, struct weir_placement *p,
                     const struct weir_tensor_segment *segments, size_t count, uint64_t base,
                     size_t bytes) {
    uint64_t hole = t->apart.base;

    if (!weir__pool_joins(t, base))
        return weir__placement_add(p, base, bytes) == WEIR_PLACEMENT_OK;
    if (count > 0 && segments[count - 1].base >= hole)
        hole = segments[count - 1].base + segments[count - 1].bytes;
    return weir__placement_fill(p, hole, base, bytes, 0, 0) == WEIR_PLACEMENT_OK;
}

/* The segment at `i` joins the one before. */
static int is_joined(const weir_tensors *t, const struct weir_tensor_segment *segments, size_t i) {
    return i > 0 && segments[i - 1].base + segments[i - 1].bytes == segments[i].base &&
           weir__pool_joins(t, segments[i - 1].base);
}

struct weir_tensor_segment weir__pool_run(const weir_tensors *t,
                                          const struct weir_tensor_segment *segments, size_t count,
                                          uint64_t address) {
    size_t first = segments_up_to(segments, count, address) - 1, end = first + 1;
    uint64_t base;

    while (is_joined(t, segments, first))
        first--;
    while (end < count && is_joined(t, segments, end))
        end++;
    base = segments[first].base;
    return (struct weir_tensor_segment){
        base, (size_t)(segments[end - 1].base + segments[end - 1].bytes - base)};
}

static int add_segment(const weir_tensors *t, struct weir_tensor_pool *pool, uint64_t base,
                       size_t bytes) {
    struct weir_tensor_segment *moved = weir__hostmem_room(
        pool->segments, pool->segment_count, &pool->segment_room, sizeof *pool->segments);
    size_t at;

    if (!moved)
        return 0;
    pool->segments = moved;
    at = segments_up_to(moved, pool->segment_count, base);
    if (!weir__pool_place(t, pool->placement, moved, at, base, bytes))
        return 0;
    memmove(&moved[at + 1], &moved[at], (pool->segment_count - at) * sizeof *moved);
    moved[at] = (struct weir_tensor_segment){base, bytes};
    pool->segment_count++;
    pool->bytes += bytes;
    return 1;
}

/* Segments that join others at that place do not count: how many there are more than without this one. */
static int weight(const weir_tensors *t, const struct weir_tensor_pool *pool, uint64_t base,
                  size_t bytes) {
    size_t at = segments_up_to(pool->segments, pool->segment_count, base - 1);
    int count = 1;

    for (size_t i = at > 0 ? at - 1 : 0; i < pool->segment_count && i <= at + 1; i++) {
        const struct weir_tensor_segment *s = &pool->segments[i];

        count -= weir__pool_joins(t, base) &&
                 (s->base + s->bytes == base || s->base == base + bytes);
    }
    return count;
}

/* The figures of a new segment. */
static void count_segment(weir_tensors *t, const struct weir_tensor_pool *pool, uint64_t base,
                          size_t bytes, weir_stream stream, void *note) {
    int count = weight(t, pool, base, bytes);

    if (count > 0)
        weir__figure_add(&t->figures.segment[0], count);
    else
        weir__figure_subtract(&t->figures.segment[0], -count);
    if (pool->source.alloc)
        weir__figure_add(&t->figures.reserved_bytes[0], (int64_t)bytes);
    else
        t->pool_bytes += (int64_t)bytes;
    weir__tensors_tell(
        t, weir__pool_joins(t, base) ? WEIR_TENSORS_SEGMENT_MAP : WEIR_TENSORS_SEGMENT_ALLOC, base,
        bytes, stream, pool, note);
}

static void uncount_segment(weir_tensors *t, const struct weir_tensor_pool *pool, uint64_t base,
                            size_t bytes) {
    int count = weight(t, pool, base, bytes);

    if (count > 0)
        weir__figure_subtract(&t->figures.segment[0], count);
    else
        weir__figure_add(&t->figures.segment[0], -count);
    if (pool->source.alloc)
        weir__figure_subtract(&t->figures.reserved_bytes[0], (int64_t)bytes);
    else
        t->pool_bytes -= (int64_t)bytes;
    weir__tensors_tell(
        t, weir__pool_joins(t, base) ? WEIR_TENSORS_SEGMENT_UNMAP : WEIR_TENSORS_SEGMENT_FREE, base,
        bytes, NULL, pool, NULL);
}

/* Where the pool's next segment joins the last one; 0: it has none that is joined. */
static uint64_t end_of(const weir_tensors *t, const struct weir_tensor_pool *pool) {
    const struct weir_tensor_segment *last = &pool->segments[pool->segment_count - 1];

    return pool->segment_count > 0 && weir__pool_joins(t, last->base) ? last->base + last->bytes
                                                                      : 0;
}

struct tail {
    uint64_t stream, end;
    size_t bytes;
};

static int see_tail(void *context, const struct weir_placement_span *span) {
    struct tail *tail = context;

    if (span->hole)
        return WEIR_PLACEMENT_GO_ON;
    if (span->live || (span->sequence > 0 && span->stream != tail->stream))
        tail->bytes = 0;
    else
        tail->bytes = (span->address == tail->end ? tail->bytes : 0) + span->size;
    tail->end = span->address + span->size;
    return WEIR_PLACEMENT_GO_ON;
}

/* Bytes that are free for the stream before that end. */
static size_t tail_of(const struct weir_tensor_pool *pool, weir_stream stream, uint64_t end) {
    struct tail tail = {.stream = weir__pool_name(stream)};

    weir__placement_walk(pool->placement, see_tail, &tail);
    return tail.end == end ? tail.bytes : 0;
}

/* A segment behind the last one, or the first, with the lock, which is given meanwhile.  Nothing in *segment: another
 * thread was quicker. */
static weir_status take_joined(weir_tensors *t, struct weir_tensor_pool *pool, size_t least,
                               weir_stream stream, size_t *bytes, void **segment) {
    uint64_t end = end_of(t, pool);
    size_t lacks = round_up(least - (end ? tail_of(pool, stream, end) : 0), PAGE);
    weir_status status;

    *bytes = round_up(weir__size_larger(lacks, most_step(pool, STEP_PART_JOINED)), PAGE);
    weir__lock_give(&t->lock);
    status = weir__alloc_apart(t->allocator, *bytes, end ? end : WEIR_ENGINE_FAR, segment);
    if (weir__is_refusal(status) && *bytes > lacks) {
        *bytes = lacks;
        status = weir__alloc_apart(t->allocator, *bytes, end ? end : WEIR_ENGINE_FAR, segment);
    }
    weir__lock_take(&t->lock);
    if (weir__is_refusal(status) && end_of(t, pool) != end)
        return WEIR_OK;
    if (status != WEIR_E_NO_MEMORY || end == 0)
        return status;
    /* Something lies there. */
    *bytes = round_up(least, PAGE);
    weir__lock_give(&t->lock);
    status = weir__alloc_apart(t->allocator, *bytes, WEIR_ENGINE_FAR, segment);
    weir__lock_take(&t->lock);
    return status;
}

/* With the lock, which is given meanwhile. */
static weir_status grow(weir_tensors *t, struct weir_tensor_pool *pool, size_t least,
                        weir_stream stream, void *note) {
    size_t bytes = step_for(pool, least);
    void *segment = NULL;
    weir_status status = WEIR_E_NO_MEMORY;

    pool->pins++;
    if (t->apart.bytes > 0 && !pool->source.alloc && !pool->is_whole)
        status = take_joined(t, pool, least, stream, &bytes, &segment);
    if (weir__is_refusal(status)) {
        weir__lock_give(&t->lock);
        bytes = step_for(pool, least);
        status = take_segment(t, &pool->source, &bytes, least, &segment);
        weir__lock_take(&t->lock);
    }
    pool->pins--;
    if (status != WEIR_OK || !segment)
        return status;
    if (!add_segment(t, pool, (uintptr_t)segment, bytes)) {
        weir__lock_give(&t->lock);
        (void)give_segment(t, &pool->source, (uintptr_t)segment);
        weir__lock_take(&t->lock);
        return WEIR_E_HOST_MEMORY;
    }
    count_segment(t, pool, (uintptr_t)segment, bytes, stream, note);
    weir__tensors_tell_shared(t, (uintptr_t)segment, stream, note);
    return WEIR_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------- */

/* Of a pool whose segments are whole: the smallest one that is free and holds it. */
static int take_whole(struct weir_tensor_pool *pool, size_t bytes, weir_stream stream,
                      struct weir_placement_block *place) {
    const struct weir_tensor_segment *best = NULL;
    struct weir_placement_block other;

    for (size_t i = 0; i < pool->segment_count; i++) {
        const struct weir_tensor_segment *s = &pool->segments[i];

        if (s->bytes >= bytes && (!best || s->bytes < best->bytes) &&
            weir__placement_find(pool->placement, s->base, &other) == WEIR_PLACEMENT_FREE)
            best = s;
    }
    return best ? weir__placement_take(pool->placement, best->bytes, weir__pool_name(stream), place)
                : WEIR_PLACEMENT_NO_FIT;
}

static int nobody_waits(void *context, uint64_t stream, uint64_t sequence) {
    (void)context, (void)stream, (void)sequence;
    return 0;
}

static int take(struct weir_tensor_pool *pool, size_t bytes, weir_stream stream,
                struct weir_placement_block *place) {
    const struct weir_placement_waits none = {nobody_waits, nobody_waits, NULL};
    int found = pool->is_whole
                    ? take_whole(pool, bytes, stream, place)
                    : weir__placement_take(pool->placement, bytes, weir__pool_name(stream), place);

    /* What the stream has freed, and beside it what is everybody's. */
    return found == WEIR_PLACEMENT_NO_FIT && !pool->is_whole
               ? weir__placement_take_behind(pool->placement, bytes, weir__pool_name(stream), &none, place)
               : found;
}

/* Notes a stream that will free here, since a trim observes them all at once.  1, or 0 without host memory. */
static int note_stream(struct weir_tensor_pool *pool, weir_stream stream) {
    weir_stream *moved;

    for (size_t i = pool->stream_count; i-- > 0;)
        if (pool->streams[i] == stream)
            return 1;
    moved = weir__hostmem_room(pool->streams, pool->stream_count, &pool->stream_room,
                               sizeof *pool->streams);
    if (!moved)
        return 0;
    pool->streams = moved;
    pool->streams[pool->stream_count++] = stream;
    return 1;
}

/* The block is live: its record. */
static weir_status note_block(weir_tensors *t, struct weir_tensor_pool *pool,
                              const struct weir_placement_block *place, size_t bytes,
                              size_t requested, weir_stream stream, void *note) {
    struct weir_tensor *tensor = weir__tensor_new(t);

    if (tensor && weir__map_put(&t->map, place->address, (uintptr_t)tensor)) {
        tensor->address = place->address;
        tensor->bytes = bytes;
        tensor->requested = requested;
        tensor->stream = stream;
        tensor->pool = pool;
        tensor->note = note;
        weir__tensors_add(t, tensor);
        return WEIR_OK;
    }
    if (tensor)
        weir__tensor_drop(t, tensor);
    (void)weir__placement_give(pool->placement, place->address, weir__pool_name(stream), ++t->sequence,
                               NULL);
    return WEIR_E_HOST_MEMORY;
}

weir_status weir__pool_alloc(weir_tensors *t, struct weir_tensor_pool *pool, size_t bytes,
                             size_t requested, weir_stream stream, int lends, void *note,
                             void **block) {
    struct weir_placement_block place;
    weir_status status;
    int found;

    if (!note_stream(pool, stream))
        return WEIR_E_HOST_MEMORY;
    found = take(pool, bytes, stream, &place);
    while (found == WEIR_PLACEMENT_NO_FIT && !lends) {
        status = grow(t, pool, bytes, stream, note);
        if (status != WEIR_OK) {
            end_if_unused(t, pool); /* its route and users may have gone meanwhile */
            return status;
        }
        found = take(pool, bytes, stream, &place); /* another thread may have been quicker */
    }
    if (found != WEIR_PLACEMENT_OK)
        return found == WEIR_PLACEMENT_NO_MEMORY ? WEIR_E_HOST_MEMORY : WEIR_E_NO_MEMORY;
    status = note_block(t, pool, &place, bytes, requested, stream, note);
    if (status == WEIR_OK)
        *block = (void *)(uintptr_t)place.address;
    return status;
}

weir_status weir__pool_borrow(weir_tensors *t, size_t bytes, size_t requested, weir_stream stream,
                              void *note, void **block) {
    for (struct weir_tensor_pool *pool = t->pools; pool; pool = pool->next)
        if (pool->lends &&
            weir__pool_alloc(t, pool, bytes, requested, stream, 1, note, block) == WEIR_OK)
            return WEIR_OK;
    return WEIR_E_NO_MEMORY;
}

void weir__pool_give(weir_tensors *t, struct weir_tensor *tensor) {
    struct weir_tensor_pool *pool = tensor->pool;

    (void)weir__placement_give(pool->placement, tensor->address, weir__pool_name(tensor->stream),
                               ++t->sequence, NULL);
    pool->pending -= (size_t)tensor->is_freed;
    weir__tensors_completed(t, tensor);
    weir__tensor_drop(t, tensor);
}

/* ---- trims -------------------------------------------------------------------------------------- */

struct cover {
    const struct weir_tensor_segment *segment;
    uint64_t chunk; /* the free one that it lies in; 0: there is none */
};

static int see_cover(void *context, const struct weir_placement_span *span) {
    struct cover *c = context;
    uint64_t end = c->segment->base + c->segment->bytes;

    if (span->address + span->size < end)
        return WEIR_PLACEMENT_GO_ON;
    if (!span->live && !span->hole && span->sequence == 0 && span->address <= c->segment->base)
        c->chunk = span->address;
    return WEIR_PLACEMENT_STOP;
}

/* 1, or 0: not all of the segment is free. */
static int remove_segment(const weir_tensors *t, const struct weir_tensor_pool *pool,
                          const struct weir_tensor_segment *segment) {
    struct cover c = {.segment = segment};

    if (!weir__pool_joins(t, segment->base))
        return weir__placement_remove(pool->placement, segment->base) == WEIR_PLACEMENT_OK;
    if (!weir__placement_settle(pool->placement))
        return 0;
    weir__placement_walk(pool->placement, see_cover, &c);
    return c.chunk > 0 && weir__placement_punch(pool->placement, c.chunk, segment->base,
                                                segment->bytes) == WEIR_PLACEMENT_OK;
}

/* Under the lock, once the device has done all work: takes the first free segment behind *out out of the pool.  1, or 0:
 * there is none. */
static int take_free_segment(const weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_segment *out) {
    for (size_t i = segments_up_to(pool->segments, pool->segment_count, out->base);
         i < pool->segment_count; i++) {
        if (!remove_segment(t, pool, &pool->segments[i]))
            continue;
        *out = pool->segments[i];
        pool->segment_count--;
        memmove(&pool->segments[i], &pool->segments[i + 1],
                (pool->segment_count - i) * sizeof *pool->segments);
        pool->bytes -= out->bytes;
        return 1;
    }
    return 0;
}

/* A pool with users keeps its segments, since a graph may have their addresses; and the last launch of the graphs of
 * one that was closed later than `waited` may still be at work. */
static int is_to_trim(const struct weir_tensor_pool *pool, weir_tensors_id id, uint64_t waited) {
    return pool->users == 0 && !pool->takes && pool->closed <= waited &&
           (weir__tensors_is_shared(id) || weir__tensors_same(pool->id, id));
}

/* With the lock, which is given meanwhile, so that the pool may get users.  What was freed up to the sequence `waited` is
 * done. */
static int trim_pool(weir_tensors *t, struct weir_tensor_pool *pool, weir_tensors_id id,
                     uint64_t waited) {
    struct weir_tensor_segment segment = {0};
    int given = 0;

    for (size_t i = 0; i < pool->stream_count; i++)
        weir__placement_observe(pool->placement, weir__pool_name(pool->streams[i]), waited);
    pool->pins++;
    while (is_to_trim(pool, id, waited) && take_free_segment(t, pool, &segment)) {
        weir_status status;

        uncount_segment(t, pool, segment.base, segment.bytes);
        weir__lock_give(&t->lock);
        status = give_segment(t, &pool->source, segment.base);
        weir__lock_take(&t->lock);
        if (status == WEIR_OK)
            given = 1;
        else if (add_segment(t, pool, segment.base, segment.bytes)) /* a later trim tries again */
            count_segment(t, pool, segment.base, segment.bytes, NULL, NULL);
    }
    pool->pins--;
    return given;
}

int weir__pools_trim(weir_tensors *t, weir_tensors_id id) {
    struct weir_tensor_pool *pool, *next;
    int given = 0, wanted = 0;
    uint64_t waited;

    weir__lock_take(&t->lock);
    waited = t->sequence; /* and no further: frees go on during the wait */
    for (pool = t->pools; pool; pool = pool->next)
        wanted |= is_to_trim(pool, id, waited) && pool->segment_count > 0;
    weir__lock_give(&t->lock);
    if (!wanted || weir__device_wait(&t->allocator->device) != CUDA_SUCCESS)
        return 0;
    weir__lock_take(&t->lock);
    weir__pending_settle(t, 0);
    for (pool = t->pools; pool; pool = next) {
        int is_trimmed = is_to_trim(pool, id, waited);

        if (is_trimmed)
            given |= trim_pool(t, pool, id, waited);
        next = pool->next; /* the list may have changed meanwhile, but this pool was pinned */
        if (is_trimmed)
            end_if_unused(t, pool);
    }
    weir__lock_give(&t->lock);
    return given;
}

weir_status weir_tensors_trim(weir_tensors *t, weir_tensors_id id) {
    weir_status status;

    if (!t)
        return weir__without_driver(WEIR_E_INVALID);
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    if (atomic_load_explicit(&t->unsettled, memory_order_relaxed)) {
        weir__lock_take(&t->lock);
        weir__pending_settle(t, 1);
        weir__lock_give(&t->lock);
    }
    (void)weir__pools_trim(t, id);
    if (!weir__tensors_is_shared(id))
        return WEIR_OK;
    status = weir_trim(t->allocator, 0, NULL);
    weir__lock_take(&t->lock);
    weir__tensors_tell_shared(t, t->last_growth, NULL, NULL);
    weir__lock_give(&t->lock);
    return status;
}
