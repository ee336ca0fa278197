/* SPDX-License-Identifier: MIT */
/* pools.c: private memory pools for CUDA graphs.
 *
 * A graph that is launched many times needs its memory at fixed addresses.  A pool allocates segments, and places
 * blocks in the segments by best fit.  Freed memory is reused for later requests of the stream that freed the memory.
 * A pool keeps its segments as long as the pool has users, because graphs contain the addresses.
 *
 * If the engine keeps a range of addresses for pools (weir__alloc_separate), a pool places each new segment directly
 * after its last segment.  The two segments join: a block may lie across both.  When the pool grows, the free memory
 * at the end of the last segment becomes part of the new block.  Small blocks have segments of their own, since one
 * small block that stays live would keep large free blocks from joining.
 *
 * With other engines a new segment is as large as a fixed fraction of the pool.  So small pools reserve little
 * memory, and large pools grow seldom.
 *
 * Some memory was freed by a stream that has been destroyed or that weir cannot identify.  Another stream may reuse
 * such memory only after a wait for the device.  A request makes this wait before the pool grows.
 *
 * The code in this file must not depend on a framework, or on how captures work.
 */
#include <stdlib.h>

#include "api/allocator_internal.h"
#include "base/result.h"
#include "base/size.h"
#include "base/thread.h"
#include "tensors/tensors_internal.h"

#define PAGE ((size_t)2 << 20)
#define LARGEST_STEP ((size_t)20 << 20)
/* One growth of a pool adds at least 1 / STEP_PART of the present bytes, or at least 1 / STEP_PART_JOINED if
 * adjacent segments join, but never more than the request or LARGEST_STEP bytes, whichever is larger. */
enum { STEP_PART = 8, STEP_PART_JOINED = 128 };

struct weir_tensor_pool *weir__pool_find(weir_tensors *t, weir_tensors_id id) {
    struct weir_tensor_pool *pool = t->pools;

    while (pool && !weir__tensors_same(pool->id, id))
        pool = pool->next;
    return pool;
}

struct weir_tensor_pool *weir__pool_with_route(weir_tensors *t, weir_stream stream) {
    struct weir_tensor_pool *pool = t->routed;

    while (pool && !pool->takes(pool->context, stream))
        pool = pool->next_routed;
    return pool;
}

/* ---- pools -------------------------------------------------------------------------------------- */

void weir__pool_drop_placement(struct weir_tensor_pool *pool, int part) {
    struct weir_placement *p = pool->part[part].placement;

    if (!p)
        return;
    for (struct weir_tensor_user *user = pool->streams; user; user = user->next)
        weir__placement_remove_stream(p, &user->placed);
    weir__placement_remove_stream(p, &pool->unknown);
    weir__placement_destroy(p);
}

static void free_pool(struct weir_tensor_pool *pool) {
    struct weir_tensor_user *user;

    for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
        weir__pool_drop_placement(pool, i);
        free(pool->part[i].segments);
    }
    while ((user = pool->streams) != NULL) {
        pool->streams = user->next;
        free(user);
    }
    free(pool);
}

/* Returns the statistics of reserved bytes for the pool `id`, and creates them if needed.  They may come from an
 * earlier pool with this id.  Returns NULL if there is no host memory. */
static struct weir_tensor_reserved *reserved_of(weir_tensors *t, weir_tensors_id id) {
    struct weir_tensor_reserved *reserved = t->reserved;

    while (reserved && !weir__tensors_same(reserved->id, id))
        reserved = reserved->next;
    if (!reserved && (reserved = calloc(1, sizeof *reserved)) != NULL) {
        reserved->id = id;
        reserved->next = t->reserved;
        t->reserved = reserved;
    }
    return reserved;
}

static struct weir_tensor_pool *create_pool(weir_tensors *t, weir_tensors_id id) {
    struct weir_tensor_pool *pool = calloc(1, sizeof *pool);

    if (!pool)
        return NULL;
    pool->id = id;
    pool->unknown.is_fallback = 1;
    pool->reserved = reserved_of(t, id);
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
        pool->part[i].placement = weir__part_placement(t, i);
        if (!pool->reserved || !pool->part[i].placement) {
            free_pool(pool);
            return NULL;
        }
    }
    return pool;
}

static void end_source(const weir_tensors_source *source) {
    if (source && source->end)
        source->end(source->context);
}

static int has_pool_segments(const struct weir_tensor_pool *pool) {
    return pool->part[0].count > 0 || pool->part[1].count > 0;
}

/* Destroys the pool if the pool has no users and no segments, receives no requests, and no running call has released
 * the lock to wait in the pool. */
static void end_if_unused(weir_tensors *t, struct weir_tensor_pool *pool) {
    struct weir_tensor_pool **link = &t->pools;

    if (pool->users > 0 || has_pool_segments(pool) || pool->takes || pool->pins > 0)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    atomic_fetch_sub_explicit(&t->unused, 1, memory_order_relaxed);
    end_source(&pool->source);
    free_pool(pool);
}

struct weir_tensor_pool *weir__pool_enter(weir_tensors *t, weir_tensors_id id,
                                          weir_status *status) {
    struct weir_tensor_pool *pool;

    *status = weir__call_check(t != NULL);
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
    weir_status status = weir__call_check(t && !weir__tensors_is_shared(id));
    int takes_source = 0;

    if (status != WEIR_OK) {
        end_source(source);
        return status;
    }
    weir__tensors_lock(t);
    pool = weir__pool_find(t, id);
    if (!pool) {
        pool = create_pool(t, id);
        if (pool) {
            pool->next = t->pools;
            t->pools = pool;
        }
    } else if (pool->users == 0) {
        atomic_fetch_sub_explicit(&t->unused, 1, memory_order_relaxed);
    }
    if (pool) {
        pool->users++;
        takes_source = source && !pool->source.alloc && !has_pool_segments(pool);
    }
    if (takes_source)
        pool->source = *source;
    else
        end_source(source);
    weir__tensors_unlock(t);
    return pool ? WEIR_OK : weir__without_driver(WEIR_E_HOST_MEMORY);
}

weir_status weir_tensors_pool_close(weir_tensors *t, weir_tensors_id id) {
    weir_status status;
    struct weir_tensor_pool *pool = weir__pool_enter(t, id, &status);

    if (!pool)
        return status;
    if (pool->users == 1)
        atomic_fetch_add_explicit(&t->unused, 1, memory_order_relaxed);
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
    struct weir_tensor_pool *pool = weir__pool_enter(users ? t : NULL, id, &status);

    if (!pool)
        return status;
    *users = pool->users;
    weir__tensors_unlock(t);
    return WEIR_OK;
}

weir_status weir_tensors_pool_lend(weir_tensors *t, weir_tensors_id id, int on) {
    weir_status status;
    struct weir_tensor_pool *pool = weir__pool_enter(t, id, &status);

    if (!pool)
        return status;
    pool->lends = on != 0;
    weir__tensors_unlock(t);
    return WEIR_OK;
}

weir_status weir_tensors_pool_whole(weir_tensors *t, weir_tensors_id id) {
    weir_status status;
    struct weir_tensor_pool *pool = weir__pool_enter(t, id, &status);

    if (!pool)
        return status;
    pool->is_whole = 1;
    weir__tensors_unlock(t);
    return WEIR_OK;
}

/* ---- which pool receives the requests of a stream ------------------------------------------------ */

weir_status weir_tensors_begin(weir_tensors *t, weir_tensors_id id,
                               int (*takes)(void *context, weir_stream stream), void *context) {
    weir_status status;
    struct weir_tensor_pool *pool = weir__pool_enter(takes ? t : NULL, id, &status);

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
    struct weir_tensor_pool *pool = weir__pool_enter(t, id, &status), **link;

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
        if (atomic_load_explicit(&t->has_pending, memory_order_relaxed))
            weir__pending_complete(t, 0);
        end_if_unused(t, pool);
    } else {
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    }
    weir__tensors_unlock(t);
    return status;
}

/* ---- segments ----------------------------------------------------------------------------------- */

/* Rounds `bytes` up to a multiple of `unit`, a power of two.  Returns `bytes` unchanged if the result would
 * overflow, since a request of such a size fails anyway. */
static size_t round_unit(size_t bytes, size_t unit) {
    size_t rounded;

    return weir__size_round_up(bytes, unit, &rounded) ? rounded : bytes;
}

/* Returns 1 if adjacent segments of the pool join, so that a block may lie across several segments.  Otherwise
 * returns 0. */
static int joins(const weir_tensors *t, const struct weir_tensor_pool *pool) {
    return t->apart.bytes > 0 && !pool->source.alloc && !pool->is_whole;
}

static struct weir_tensor_part *part_for(const weir_tensors *t, struct weir_tensor_pool *pool,
                                         size_t bytes) {
    return &pool->part[joins(t, pool) && bytes <= WEIR_TENSORS_SMALL];
}

static size_t step_for(const struct weir_tensor_part *part, int is_whole, size_t bytes,
                       size_t share) {
    size_t step = weir__size_smaller(part->bytes / share, LARGEST_STEP);

    return is_whole ? round_unit(bytes, WEIR_TENSORS_UNIT)
                    : round_unit(weir__size_larger(bytes, step), PAGE);
}

static weir_status free_segment(weir_tensors *t, const weir_tensors_source *source, uint64_t base) {
    void *segment = (void *)(uintptr_t)base;

    if (!source->alloc)
        return weir_free_any(t->allocator, segment);
    if (source->free)
        source->free(source->context, segment);
    return WEIR_OK;
}

/* Adds a new segment to the statistics if `sign` is 1, or subtracts a segment if `sign` is -1.  Reports the change
 * to the program by an event. */
static void count_segment(weir_tensors *t, const struct weir_tensor_pool *pool,
                          const struct weir_tensor_part *part, struct weir_tensor_segment segment,
                          int sign, weir_stream stream, void *note) {
    weir_tensors_figure *reserved = pool->reserved->bytes;
    int64_t bytes = (int64_t)segment.bytes;
    int weight = weir__part_weight(t, part, segment);
    int action = sign > 0 ? WEIR_TENSORS_SEGMENT_ALLOC : WEIR_TENSORS_SEGMENT_FREE;

    if (joins(t, pool))
        action = sign > 0 ? WEIR_TENSORS_SEGMENT_MAP : WEIR_TENSORS_SEGMENT_UNMAP;
    weir__figure_add(&t->figures.segment[0], abs(weight), sign * weight);
    weir__figure_add(&reserved[0], bytes, sign);
    weir__figure_add(&reserved[part == &pool->part[1] ? 1 : 2], bytes, sign);
    if (pool->source.alloc)
        weir__figure_add(&t->figures.reserved_bytes[0], bytes, sign);
    else
        t->pool_bytes += sign * bytes;
    weir__tensors_report(t, action, segment.base, segment.bytes, stream, pool, note);
}

/* Allocates a segment at the address `at`.  Releases the lock during the call of the allocator, and then takes the
 * lock again. */
static weir_status allocate_at(weir_tensors *t, size_t bytes, uint64_t at,
                               struct weir_tensor_segment *out) {
    void *segment = NULL;
    weir_status status;

    weir__tensors_unlock(t);
    status = weir__alloc_separate(t->allocator, bytes, at, &segment);
    weir__tensors_lock(t);
    *out = (struct weir_tensor_segment){(uintptr_t)segment, bytes};
    return status;
}

/* Allocates a segment directly after the last segment of this part of the pool, or the first segment if there is
 * none.  If the allocation fails because another thread has added a segment meanwhile, returns OK without a segment,
 * so that the caller tries the request again. */
static weir_status allocate_joined(weir_tensors *t, struct weir_tensor_part *part, size_t least,
                                   uint64_t name, struct weir_tensor_segment *out) {
    uint64_t end = weir__part_end(t, part), at = end ? end : WEIR_ENGINE_FAR;
    size_t lacks = end ? least - weir__part_free_tail(part, name, end) : least;
    size_t bytes = step_for(part, 0, lacks, STEP_PART_JOINED);
    weir_status status = allocate_at(t, bytes, at, out);

    if (weir__is_failure(status) && bytes > round_unit(lacks, PAGE))
        status = allocate_at(t, round_unit(lacks, PAGE), at, out);
    if (weir__is_failure(status) && weir__part_end(t, part) != end)
        return WEIR_OK;
    /* The address `end` may be in use by other memory, so try another address. */
    if (status == WEIR_E_NO_MEMORY && end > 0)
        status = allocate_at(t, round_unit(least, PAGE), WEIR_ENGINE_FAR, out);
    return status;
}

/* Allocates a segment at any address, by the program's function or from the weir_allocator.  If there is no memory
 * for the whole growth, allocates only the bytes that the request needs.  Releases the lock during these calls, and
 * then takes the lock again. */
static weir_status allocate_apart(weir_tensors *t, struct weir_tensor_pool *pool,
                                  const struct weir_tensor_part *part, size_t least,
                                  struct weir_tensor_segment *out) {
    const weir_tensors_source *source = &pool->source;
    size_t bytes = step_for(part, pool->is_whole, least, STEP_PART);
    size_t fewest = round_unit(least, WEIR_TENSORS_UNIT);
    void *segment = NULL;
    weir_status status;

    weir__tensors_unlock(t);
    if (source->alloc) {
        segment = source->alloc(source->context, bytes);
        if (!segment && weir_tensors_trim(t, (weir_tensors_id){0, 0}) == WEIR_OK)
            segment = source->alloc(source->context, bytes);
        status = segment ? WEIR_OK : WEIR_E_NO_MEMORY;
    } else {
        status = weir_alloc_any(t->allocator, bytes, &segment);
        if (weir__is_failure(status) && bytes > fewest) {
            bytes = fewest;
            status = weir_alloc_any(t->allocator, bytes, &segment);
        }
    }
    weir__tensors_lock(t);
    *out = (struct weir_tensor_segment){(uintptr_t)segment, bytes};
    return status;
}

/* Allocates a segment that is large enough for the request, and adds the segment to this part of the pool.  Releases
 * the lock during calls of the allocator, and then takes the lock again. */
static weir_status grow_part(weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_part *part,
                             const struct weir_tensor_request *made) {
    struct weir_tensor_segment segment = {0};
    weir_status status = WEIR_E_NO_MEMORY;

    pool->pins++;
    if (joins(t, pool))
        status = allocate_joined(t, part, made->bytes, made->home.name, &segment);
    if (weir__is_failure(status))
        status = allocate_apart(t, pool, part, made->bytes, &segment);
    pool->pins--;
    if (status != WEIR_OK || segment.base == 0)
        return status;
    if (!weir__part_add(t, part, segment)) {
        weir__tensors_unlock(t);
        (void)free_segment(t, &pool->source, segment.base);
        weir__tensors_lock(t);
        return WEIR_E_HOST_MEMORY;
    }
    count_segment(t, pool, part, segment, 1, made->home.stream, made->note);
    weir__tensors_report_shared(t, segment.base, made->home.stream, made->note);
    return WEIR_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------- */

/* Allocates the smallest free segment that is large enough for the block.  The program has asked that the pool
 * splits no segment (weir_tensors_pool_whole). */
static int take_whole(struct weir_tensor_part *part, size_t bytes, struct weir_tensor_user *user,
                      struct weir_placement_block *place) {
    const struct weir_tensor_segment *best = NULL;
    struct weir_placement_block other;

    for (size_t i = 0; i < part->count; i++) {
        const struct weir_tensor_segment *s = &part->segments[i];

        if (s->bytes >= bytes && (!best || s->bytes < best->bytes) &&
            weir__placement_find(part->placement, s->base, &other) == WEIR_PLACEMENT_FREE)
            best = s;
    }
    return best ? weir__placement_alloc(part->placement, best->bytes, &user->placed, place)
                : WEIR_PLACEMENT_NO_FIT;
}

static int permits_no_wait(void *context, uint64_t stream, uint64_t sequence) {
    (void)context, (void)stream, (void)sequence;
    return 0;
}

static int take_from_part(const struct weir_tensor_pool *pool, struct weir_tensor_part *part,
                          size_t bytes, struct weir_tensor_user *user,
                          struct weir_placement_block *place) {
    const struct weir_placement_waits none = {permits_no_wait, permits_no_wait, NULL};
    int found;

    if (pool->is_whole)
        return take_whole(part, bytes, user, place);
    found = weir__placement_alloc(part->placement, bytes, &user->placed, place);
    /* No chunk is large enough.  Join chunks that this stream freed with adjacent chunks that all streams may use. */
    return found == WEIR_PLACEMENT_NO_FIT
               ? weir__placement_alloc_wait(part->placement, bytes, &user->placed, &none, place)
               : found;
}

static struct weir_tensor_user *find_user(const struct weir_tensor_pool *pool, uint64_t name) {
    struct weir_tensor_user *user = pool->streams;

    while (user && user->placed.id != name)
        user = user->next;
    return user;
}

/* Marks earlier streams that had the handle `user.stream` as destroyed, because the driver now reports another id
 * for this handle.  Does nothing for the handle of the per-thread default stream, which means another live stream in
 * each thread. */
static void note_ended(weir_tensors *t, struct weir_tensor_pool *pool,
                       struct weir_tensor_use user) {
    if ((uintptr_t)user.stream == WEIR_STREAM_PER_THREAD_VALUE)
        return;
    for (struct weir_tensor_user *old = pool->streams; old; old = old->next) {
        if ((old->placed.id & user.name & WEIR_TENSORS_ID) && old->stream == user.stream &&
            !old->ended) {
            old->ended = ++t->sequence;
            pool->has_lost_streams = 1;
        }
    }
}

/* Returns the pool's record of a stream, and creates the record if needed, so that the next wait for the device
 * makes the memory that this stream freed reusable.  The record is valid until the lock is released.  Returns NULL
 * if there is no host memory. */
static struct weir_tensor_user *note_user(weir_tensors *t, struct weir_tensor_pool *pool,
                                          struct weir_tensor_use user) {
    struct weir_tensor_user *made = find_user(pool, user.name);

    if (made)
        return made;
    made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    note_ended(t, pool, user);
    if (weir__name_lasts(user.name) && !weir__map_get(&t->lasting, user.name, NULL))
        (void)weir__map_put(&t->lasting, user.name, WEIR_TENSORS_LASTING);
    made->placed.id = user.name;
    made->stream = user.stream;
    made->next = pool->streams;
    pool->streams = made;
    return made;
}

/* Returns 1 if the stream `user` may have freed memory of the pool inside a stream capture, else 0.  weir must not
 * query captures here, so the function returns 1 if there is doubt: for each stream without an id, and for all
 * streams if any stream of the pool was captured.  A destroyed stream is not being captured. */
static int may_free_in_capture(const struct weir_tensor_pool *pool,
                               const struct weir_tensor_user *user) {
    const struct weir_tensor_user *captured = pool->streams;

    if (user->ended)
        return 0;
    while (captured && !(captured->placed.id & WEIR_TENSORS_CAPTURED))
        captured = captured->next;
    return captured || !(user->placed.id & WEIR_TENSORS_ID);
}

/* Lets all streams reuse the memory of this part of the pool that was freed at or before the sequence number
 * `waited`. The caller has waited for the device since.  But this wait does not order the branches of a graph.  So
 * if the pool receives requests, only its own stream may reuse memory that may have been freed inside a capture. */
static void observe_part(struct weir_tensor_pool *pool, struct weir_tensor_part *part,
                         uint64_t waited) {
    for (struct weir_tensor_user *user = pool->streams; user; user = user->next) {
        if (pool->takes && may_free_in_capture(pool, user))
            continue;
        user->placed.observed = weir__size_larger(user->placed.observed, waited);
        weir__placement_observe(part->placement, &user->placed);
    }
    if (pool->takes && pool->unknown.observed < pool->branch_freed)
        return;
    pool->unknown.observed = weir__size_larger(pool->unknown.observed, waited);
    weir__placement_observe(part->placement, &pool->unknown);
}

/* Waits for the device without holding the lock.  Then lets all streams reuse the memory of the pool that was freed
 * before the wait. */
static void wait_for_pool(weir_tensors *t, struct weir_tensor_pool *pool) {
    struct weir_tensor_user **link = &pool->streams, *user;
    uint64_t waited = t->sequence;
    CUresult result;

    pool->pins++;
    pool->has_lost_streams = 0; /* a free during the wait may set `has_lost_streams` again */
    weir__tensors_unlock(t);
    result = weir__device_wait(&t->allocator->device);
    weir__tensors_lock(t);
    pool->pins--;
    if (result != CUDA_SUCCESS) {
        pool->has_lost_streams = 1;
        return;
    }
    for (int i = 0; i < WEIR_TENSORS_PARTS; i++)
        observe_part(pool, &pool->part[i], waited);
    while ((user = *link) != NULL) {
        if (user->ended == 0 || user->ended > waited) {
            link = &user->next;
            continue;
        }
        for (int i = 0; i < WEIR_TENSORS_PARTS; i++)
            weir__placement_remove_stream(pool->part[i].placement, &user->placed);
        *link = user->next;
        free(user);
    }
}

/* Frees a block of the pool.  The stream `heir` may reuse the memory at once.  If `heir` is NULL, or if there is no
 * host memory, any stream may reuse the memory only after a wait for the device. */
static void free_in_pool(weir_tensors *t, struct weir_tensor_pool *pool, uint64_t address,
                         struct weir_tensor_user *heir) {
    struct weir_placement *p = weir__pool_part(pool, address)->placement;

    t->sequence++;
    if (heir &&
        weir__placement_free(p, address, &heir->placed, t->sequence, NULL) == WEIR_PLACEMENT_OK)
        return;
    if (heir && may_free_in_capture(pool, heir))
        pool->branch_freed = t->sequence;
    pool->has_lost_streams = 1;
    (void)weir__placement_free(p, address, &pool->unknown, t->sequence, NULL);
}

weir_status weir__pool_alloc(weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_request *made, int lends) {
    struct weir_tensor_part *part = part_for(t, pool, made->bytes);
    struct weir_tensor_user *user;
    struct weir_placement_block place;
    weir_status status = WEIR_OK;
    uint64_t capture = 0;
    int found, waits = t->allocator->options.recovery_timeout_ms != UINT32_MAX, may_wait = waits;

    while ((user = note_user(t, pool, made->home)) != NULL &&
           (found = take_from_part(pool, part, made->bytes, user, &place)) ==
               WEIR_PLACEMENT_NO_FIT) {
        /* Set if the pool must not grow, or has failed to grow. */
        int is_last = lends || status != WEIR_OK;

        if (may_wait && (pool->has_lost_streams || (is_last && has_pool_segments(pool)))) {
            may_wait = 0;
            wait_for_pool(t, pool);
        } else if (is_last) {
            break;
        } else {
            status = grow_part(t, pool, part, made);
            may_wait = waits; /* while the pool grew, blocks of the pool may have been freed */
        }
    }
    if (!user || found == WEIR_PLACEMENT_NO_MEMORY)
        return WEIR_E_HOST_MEMORY;
    if (found != WEIR_PLACEMENT_OK) {
        if (!lends)
            /* Other threads may have ended all other uses of the pool during the growth, so this call may be the
             * last user. */
            end_if_unused(t, pool);
        return status == WEIR_OK ? WEIR_E_NO_MEMORY : status;
    }
    made->address = place.address;
    if (made->home.name & WEIR_TENSORS_CAPTURED)
        capture = weir__device_capture_id(&t->allocator->device, made->home.stream);
    if (weir__tensor_record(t, made, pool, capture))
        return WEIR_OK;
    free_in_pool(t, pool, place.address, user);
    return WEIR_E_HOST_MEMORY;
}

int weir__pool_borrow(weir_tensors *t, struct weir_tensor_request *made) {
    int is_served = 0;

    weir__tensors_lock(t);
    for (struct weir_tensor_pool *pool = t->pools; pool && !is_served; pool = pool->next)
        is_served = pool->lends && weir__pool_alloc(t, pool, made, 1) == WEIR_OK;
    weir__tensors_unlock(t);
    return is_served;
}

/* Finds the name of the block's stream, a number that identifies the stream, when the block is freed.  At the
 * request, the stream had no name, because drivers below 12.0 report no stream ids.  But a stream that is being
 * captured has a name.  Returns the pool's record of the stream, or NULL if the stream is not being captured. */
static struct weir_tensor_user *name_in_capture(weir_tensors *t, const struct weir_tensor *tensor) {
    struct weir_tensor_use user = {.stream = tensor->home.stream};

    if (!tensor->pool->takes || (t->allocator->device.driver->capabilities & WEIR_CAP_STREAM_ID))
        return NULL;
    user.name = weir__tensors_name(t, user.stream, 0);
    return user.name != 0 ? note_user(t, tensor->pool, user) : NULL;
}

/* Returns 1 if the capture in which the block was allocated still runs, else 0.  After the capture, the stream may
 * have used the block outside of a graph, and the stream's handle may mean another stream. */
static int is_still_captured(weir_tensors *t, const struct weir_tensor *tensor) {
    return tensor->pool->takes && tensor->capture != 0 &&
           weir__device_capture_id(&t->allocator->device, tensor->home.stream) == tensor->capture;
}

/* Returns the pool's record of the stream that may reuse the freed block at once.  Returns NULL if no stream may,
 * because the block's stream has been destroyed or because the capture in which the block was allocated has ended. */
static struct weir_tensor_user *find_reusing_stream(weir_tensors *t,
                                                    const struct weir_tensor *tensor) {
    struct weir_tensor_user *user;

    if (tensor->home.name == 0)
        return name_in_capture(t, tensor);
    user = find_user(tensor->pool, tensor->home.name);
    if (!user || user->ended ||
        ((tensor->home.name & WEIR_TENSORS_CAPTURED) && !is_still_captured(t, tensor)))
        return NULL;
    return user;
}

void weir__pool_free(weir_tensors *t, struct weir_tensor *tensor) {
    struct weir_tensor_pool *pool = tensor->pool;

    free_in_pool(t, pool, tensor->address, find_reusing_stream(t, tensor));
    pool->pending -= (size_t)tensor->is_freed;
    weir__tensors_report_completed(t, tensor);
    weir__tensor_drop(t, tensor);
}

/* ---- trims -------------------------------------------------------------------------------------- */

/* Returns 1 if a trim may free the pool's unused segments, else 0.  A pool with users keeps its segments, since a
 * graph may contain their addresses.  A pool that was closed after the sequence number `waited` also keeps its
 * segments, because the last launch of its graphs may still run.  weir's own threads must not call the program's
 * functions that free segments: such a function may need a lock, such as Python's, which a thread of the program may
 * hold while it waits for weir. */
static int is_to_trim(const struct weir_tensor_pool *pool, weir_tensors_id id, uint64_t waited) {
    return pool->users == 0 && !pool->takes && pool->closed <= waited &&
           !(pool->source.alloc && weir__thread_is_own()) &&
           (weir__tensors_is_shared(id) || weir__tensors_same(pool->id, id));
}

/* Frees the unused segments of one part of a pool.  The caller has waited for all frees up to the sequence number
 * `waited`.  Releases the lock during each free of a segment, and then takes the lock again.  Stops if the pool gets
 * users meanwhile.  Returns 1 if a segment was freed, else 0. */
static int trim_part(weir_tensors *t, struct weir_tensor_pool *pool, struct weir_tensor_part *part,
                     weir_tensors_id id, uint64_t waited) {
    struct weir_tensor_segment segment = {0};
    int given = 0;

    observe_part(pool, part, waited);
    while (is_to_trim(pool, id, waited) && weir__part_remove_free(t, part, &segment)) {
        weir_status status;

        count_segment(t, pool, part, segment, -1, NULL, NULL);
        weir__tensors_unlock(t);
        status = free_segment(t, &pool->source, segment.base);
        weir__tensors_lock(t);
        if (status == WEIR_OK)
            given = 1;
        /* the free has failed; a later trim will try again */
        else if (weir__part_add(t, part, segment))
            count_segment(t, pool, part, segment, 1, NULL, NULL);
    }
    return given;
}

/* Waits for the device, then frees the segments that were unused before the wait.  If blocks become free during the
 * wait because other streams have finished with them, sets *is_late to 1: their segments need another wait.
 * Otherwise sets *is_late to 0.  Returns 1 if a segment was freed, else 0. */
static int trim_after_wait(weir_tensors *t, weir_tensors_id id, int *is_late) {
    struct weir_tensor_pool *pool, *next;
    int given = 0, wanted = 0;
    uint64_t waited, before;

    *is_late = 0;
    weir__tensors_lock(t);
    /* The wait does not cover blocks that other threads free during the wait. */
    waited = t->sequence;
    for (pool = t->pools; pool; pool = pool->next)
        wanted |= is_to_trim(pool, id, waited) && has_pool_segments(pool);
    weir__tensors_unlock(t);
    if (!wanted || weir__device_wait(&t->allocator->device) != CUDA_SUCCESS)
        return 0;
    weir__tensors_lock(t);
    before = t->sequence;
    weir__pending_complete(t, 0);
    *is_late = t->sequence > before;
    for (pool = t->pools; pool; pool = next) {
        int is_trimmed = is_to_trim(pool, id, waited);

        pool->pins++;
        for (int i = 0; is_trimmed && i < WEIR_TENSORS_PARTS; i++)
            given |= trim_part(t, pool, &pool->part[i], id, waited);
        pool->pins--;
        /* Other threads may have changed the list while the lock was released.  But the list still contains this
         * pool, because `pins` was not 0. */
        next = pool->next;
        if (is_trimmed)
            end_if_unused(t, pool);
    }
    weir__tensors_unlock(t);
    return given;
}

int weir__pools_trim(weir_tensors *t, weir_tensors_id id) {
    int is_late, given = trim_after_wait(t, id, &is_late);

    return (is_late && trim_after_wait(t, id, &is_late)) || given;
}

weir_status weir_tensors_trim(weir_tensors *t, weir_tensors_id id) {
    weir_status status = weir__call_check(t != NULL);

    if (status != WEIR_OK)
        return status;
    if (atomic_load_explicit(&t->has_pending, memory_order_relaxed)) {
        weir__tensors_lock(t);
        weir__pending_complete(t, 1);
        weir__tensors_unlock(t);
    }
    (void)weir__pools_trim(t, id);
    if (!weir__tensors_is_shared(id))
        return WEIR_OK;
    status = weir_trim(t->allocator, 0, NULL);
    weir__tensors_lock(t);
    weir__tensors_report_shared(t, t->last_growth, NULL, NULL);
    weir__tensors_unlock(t);
    return status;
}
