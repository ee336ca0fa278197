/* SPDX-License-Identifier: MIT */
/* pools.c: private pools: memory that keeps its addresses, for graphs that are launched again and again.
 *
 * A pool takes segments that any stream may use (weir_alloc_any), and places blocks in them by best fit.  What was freed
 * serves the stream that freed it.  Segments grow with the pool, so that small pools hold little and large ones call
 * seldom.  A segment stays as long as the pool has users: a graph has its addresses.
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

/* A stream as the placement names it: 0 is not known there, and a stream here. */
static uint64_t name_of(weir_stream stream) {
    return (uint64_t)(uintptr_t)stream + 1;
}

/* ---- pools -------------------------------------------------------------------------------------- */

static struct weir_tensor_pool *make_pool(weir_tensors_id id, const weir_tensors_source *source) {
    struct weir_placement_rule rule = {
        .granularity = WEIR_TENSORS_UNIT, .split_waste = WEIR_TENSORS_UNIT, .own_first = 1};
    struct weir_tensor_pool *pool = calloc(1, sizeof *pool);

    if (!pool)
        return NULL;
    if (weir__placement_create(&rule, &pool->placement) != WEIR_PLACEMENT_OK) {
        free(pool);
        return NULL;
    }
    pool->id = id;
    if (source)
        pool->source = *source;
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
    weir__tensors_lock(t);
    pool = weir__pool_find(t, id);
    if (!pool) {
        weir__tensors_unlock(t);
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
    weir__tensors_lock(t);
    pool = weir__pool_find(t, id);
    if (!pool) {
        pool = make_pool(id, source);
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
    weir__tensors_unlock(t);
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
    weir__tensors_unlock(t);
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
    weir__tensors_unlock(t);
    return WEIR_OK;
}

weir_status weir_tensors_pool_lend(weir_tensors *t, weir_tensors_id id, int on) {
    weir_status status;
    struct weir_tensor_pool *pool = enter(t, id, &status);

    if (!pool)
        return status;
    pool->lends = on != 0;
    weir__tensors_unlock(t);
    return WEIR_OK;
}

weir_status weir_tensors_pool_whole(weir_tensors *t, weir_tensors_id id) {
    weir_status status;
    struct weir_tensor_pool *pool = enter(t, id, &status);

    if (!pool)
        return status;
    pool->is_whole = 1;
    weir__tensors_unlock(t);
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
    weir__tensors_unlock(t);
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
    weir__tensors_unlock(t);
    return status;
}

/* ---- segments ----------------------------------------------------------------------------------- */

/* `unit` is a power of two.  A size that would overflow stays as it is: no request of that size succeeds. */
static size_t round_up(size_t bytes, size_t unit) {
    size_t rounded;

    return weir__size_round_up(bytes, unit, &rounded) ? rounded : bytes;
}

static size_t step_for(const struct weir_tensor_pool *pool, size_t bytes) {
    size_t step = pool->bytes / 8;

    if (pool->is_whole)
        return round_up(bytes, WEIR_TENSORS_UNIT);
    if (step > LARGEST_STEP)
        step = LARGEST_STEP;
    return round_up(bytes > step ? bytes : step, PAGE);
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

static int add_segment(struct weir_tensor_pool *pool, uint64_t base, size_t bytes) {
    struct weir_tensor_segment *moved = weir__hostmem_room(
        pool->segments, pool->segment_count, &pool->segment_room, sizeof *pool->segments);
    size_t at = pool->segment_count;

    if (!moved)
        return 0;
    pool->segments = moved;
    if (weir__placement_add(pool->placement, base, bytes) != WEIR_PLACEMENT_OK)
        return 0;
    while (at > 0 && moved[at - 1].base > base) {
        moved[at] = moved[at - 1];
        at--;
    }
    moved[at] = (struct weir_tensor_segment){base, bytes};
    pool->segment_count++;
    pool->bytes += bytes;
    return 1;
}

/* The figures of a new segment. */
static void count_segment(weir_tensors *t, const struct weir_tensor_pool *pool, uint64_t base,
                          size_t bytes, weir_stream stream, void *note) {
    weir__figure_add(&t->figures.segment[0], 1);
    if (pool->source.alloc)
        weir__figure_add(&t->figures.reserved_bytes[0], (int64_t)bytes);
    else
        t->pool_bytes += (int64_t)bytes;
    weir__tensors_tell(t, WEIR_TENSORS_SEGMENT_ALLOC, base, bytes, stream, pool, note);
}

static void uncount_segment(weir_tensors *t, const struct weir_tensor_pool *pool, uint64_t base,
                            size_t bytes) {
    weir__figure_subtract(&t->figures.segment[0], 1);
    if (pool->source.alloc)
        weir__figure_subtract(&t->figures.reserved_bytes[0], (int64_t)bytes);
    else
        t->pool_bytes -= (int64_t)bytes;
    weir__tensors_tell(t, WEIR_TENSORS_SEGMENT_FREE, base, bytes, NULL, pool, NULL);
}

/* With the lock, which is given meanwhile. */
static weir_status grow(weir_tensors *t, struct weir_tensor_pool *pool, size_t least,
                        weir_stream stream, void *note) {
    size_t bytes = step_for(pool, least);
    void *segment = NULL;
    weir_status status;

    pool->pins++;
    weir__tensors_unlock(t);
    status = take_segment(t, &pool->source, &bytes, least, &segment);
    weir__tensors_lock(t);
    pool->pins--;
    if (status != WEIR_OK)
        return status;
    if (!add_segment(pool, (uintptr_t)segment, bytes)) {
        weir__tensors_unlock(t);
        (void)give_segment(t, &pool->source, (uintptr_t)segment);
        weir__tensors_lock(t);
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
    return best ? weir__placement_take(pool->placement, best->bytes, name_of(stream), place)
                : WEIR_PLACEMENT_NO_FIT;
}

static int take(struct weir_tensor_pool *pool, size_t bytes, weir_stream stream,
                struct weir_placement_block *place) {
    return pool->is_whole ? take_whole(pool, bytes, stream, place)
                          : weir__placement_take(pool->placement, bytes, name_of(stream), place);
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
    (void)weir__placement_give(pool->placement, place->address, name_of(stream), ++t->sequence,
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

    (void)weir__placement_give(pool->placement, tensor->address, name_of(tensor->stream),
                               ++t->sequence, NULL);
    pool->pending -= (size_t)tensor->is_freed;
    weir__tensors_completed(t, tensor);
    weir__tensor_drop(t, tensor);
}

/* ---- trims -------------------------------------------------------------------------------------- */

/* Under the lock, once the device has done all work: takes the first free segment behind *out out of the pool.  1, or 0:
 * there is none. */
static int take_free_segment(struct weir_tensor_pool *pool, struct weir_tensor_segment *out) {
    for (size_t i = segments_up_to(pool->segments, pool->segment_count, out->base);
         i < pool->segment_count; i++) {
        if (weir__placement_remove(pool->placement, pool->segments[i].base) != WEIR_PLACEMENT_OK)
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
        weir__placement_observe(pool->placement, name_of(pool->streams[i]), waited);
    pool->pins++;
    while (is_to_trim(pool, id, waited) && take_free_segment(pool, &segment)) {
        weir_status status;

        uncount_segment(t, pool, segment.base, segment.bytes);
        weir__tensors_unlock(t);
        status = give_segment(t, &pool->source, segment.base);
        weir__tensors_lock(t);
        if (status == WEIR_OK)
            given = 1;
        else if (add_segment(pool, segment.base, segment.bytes)) /* a later trim tries again */
            count_segment(t, pool, segment.base, segment.bytes, NULL, NULL);
    }
    pool->pins--;
    return given;
}

int weir__pools_trim(weir_tensors *t, weir_tensors_id id) {
    struct weir_tensor_pool *pool, *next;
    int given = 0, wanted = 0;
    uint64_t waited;

    weir__tensors_lock(t);
    waited = t->sequence; /* and no further: frees go on during the wait */
    for (pool = t->pools; pool; pool = pool->next)
        wanted |= is_to_trim(pool, id, waited) && pool->segment_count > 0;
    weir__tensors_unlock(t);
    if (!wanted || weir__device_wait(&t->allocator->device) != CUDA_SUCCESS)
        return 0;
    weir__tensors_lock(t);
    weir__pending_settle(t, 0);
    for (pool = t->pools; pool; pool = next) {
        int is_trimmed = is_to_trim(pool, id, waited);

        if (is_trimmed)
            given |= trim_pool(t, pool, id, waited);
        next = pool->next; /* the list may have changed meanwhile, but this pool was pinned */
        if (is_trimmed)
            end_if_unused(t, pool);
    }
    weir__tensors_unlock(t);
    return given;
}

weir_status weir_tensors_trim(weir_tensors *t, weir_tensors_id id) {
    weir_status status;

    if (!t)
        return weir__without_driver(WEIR_E_INVALID);
    if (weir__driver_forked())
        return weir__without_driver(WEIR_E_FORKED);
    if (atomic_load_explicit(&t->unsettled, memory_order_relaxed)) {
        weir__tensors_lock(t);
        weir__pending_settle(t, 1);
        weir__tensors_unlock(t);
    }
    (void)weir__pools_trim(t, id);
    if (!weir__tensors_is_shared(id))
        return WEIR_OK;
    status = weir_trim(t->allocator, 0, NULL);
    weir__tensors_lock(t);
    weir__tensors_tell_shared(t, t->last_growth, NULL, NULL);
    weir__tensors_unlock(t);
    return status;
}
