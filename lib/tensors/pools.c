/* SPDX-License-Identifier: MIT */
/* pools.c: private memory pools for CUDA graphs.
 *
 * A graph needs its memory at fixed addresses, so a pool keeps its segments as long as the pool has users.  The pool
 * places blocks in the segments by best fit.  Freed memory is reused for later requests of the stream that freed the
 * memory.
 *
 * If the engine keeps a range of addresses for pools (weir__alloc_separate), each new segment begins at the end of the
 * pool's last segment.  The two segments join: a block may lie across both.  Small blocks have segments of their own,
 * since a small block that stays live would keep large free blocks from joining.
 *
 * Other streams may reuse the memory of a destroyed stream only after a wait for the device.  A request makes this wait
 * before the pool grows. */
#include <stdlib.h>
#include <string.h>

#include "api/allocator_internal.h"
#include "base/assert.h"
#include "base/bounds.h"
#include "base/result.h"
#include "base/size.h"
#include "base/thread.h"
#include "tensors/tensors_internal.h"

#define PAGE ((size_t)2 << 20)
#define LARGEST_STEP ((size_t)20 << 20)
/* A growth adds 1 / STEP_PART of the pool's bytes, or 1 / STEP_PART_JOINED if adjacent segments join. */
enum { STEP_PART = 8, STEP_PART_JOINED = 128 };

/* ---- segments -------------------------------------------------------------------------------- */

static int is_in_pool_range(const weir_tensors *t, uint64_t address) {
    return address - t->pool_range.base < t->pool_range.bytes;
}

static size_t count_segments_up_to(const struct weir_tensor_part *part, uint64_t address) {
    size_t above = part->count, at;

    WEIR_FIND_FIRST(above, at, part->segments[at].base > address);
    return above;
}

const struct weir_tensor_segment *weir__part_segment(const struct weir_tensor_part *part,
                                                     uint64_t address) {
    size_t at = count_segments_up_to(part, address);

    return at > 0 && address - part->segments[at - 1].base < part->segments[at - 1].bytes
               ? &part->segments[at - 1]
               : NULL;
}

/* Returns 1 if segment number `i` is joined with the segment before, else 0. */
static int is_joined(const weir_tensors *t, const struct weir_tensor_part *part, size_t i) {
    const struct weir_tensor_segment *s = &part->segments[i];

    return i > 0 && s[-1].base + s[-1].bytes == s->base && is_in_pool_range(t, s[-1].base);
}

struct weir_tensor_segment weir__part_run(const weir_tensors *t,
                                          const struct weir_tensor_part *part, uint64_t address) {
    size_t first = count_segments_up_to(part, address) - 1, end = first + 1;
    uint64_t base;

    while (is_joined(t, part, first))
        first--;
    while (end < part->count && is_joined(t, part, end))
        end++;
    base = part->segments[first].base;
    return (struct weir_tensor_segment){
        base, (size_t)(part->segments[end - 1].base + part->segments[end - 1].bytes - base)};
}

/* ---- placements --------------------------------------------------------------------------------- */

struct weir_placement *weir__part_placement(const weir_tensors *t, int part) {
    struct weir_placement_rule rule = {.granularity = WEIR_TENSORS_UNIT,
                                       .split_waste = WEIR_TENSORS_UNIT,
                                       .prefer_tagged = 1,
                                       .index = (unsigned)part};
    struct weir_placement *p;

    if (weir__placement_create(&rule, &p) != WEIR_PLACEMENT_OK)
        return NULL;
    if (t->pool_range.bytes == 0 ||
        weir__placement_add_unmapped(p, t->pool_range.base, t->pool_range.bytes) ==
            WEIR_PLACEMENT_OK)
        return p;
    weir__placement_destroy(p);
    return NULL;
}

int weir__part_place(const weir_tensors *t, struct weir_placement *p,
                     const struct weir_tensor_part *part, struct weir_tensor_segment segment) {
    size_t below = count_segments_up_to(part, segment.base - 1);
    uint64_t unmapped = t->pool_range.base;

    if (!is_in_pool_range(t, segment.base))
        return weir__placement_add(p, segment.base, segment.bytes) == WEIR_PLACEMENT_OK;
    if (below > 0 && is_in_pool_range(t, part->segments[below - 1].base))
        unmapped = part->segments[below - 1].base + part->segments[below - 1].bytes;
    return weir__placement_fill(p, unmapped, segment.base, segment.bytes, NULL, 0) ==
           WEIR_PLACEMENT_OK;
}

/* Returns 1 if the segments are sorted, do not overlap, and have `part->bytes` bytes in total, else 0. */
static WEIR_ASSERT_ONLY int are_segments_valid(const struct weir_tensor_part *part) {
    size_t bytes = 0;

    for (size_t i = 0; i < part->count; i++) {
        const struct weir_tensor_segment *s = &part->segments[i];

        if (s->bytes == 0 || (i > 0 && s[-1].base + s[-1].bytes > s->base))
            return 0;
        bytes += s->bytes;
    }
    return bytes == part->bytes;
}

/* ---- adding and removing segments --------------------------------------------------------------- */

/* Adds a segment of free memory to one part of a pool.  Returns 1 on success, 0 if there is no host memory. */
static int add_segment(const weir_tensors *t, struct weir_tensor_part *part,
                       struct weir_tensor_segment segment) {
    struct weir_tensor_segment *moved =
        weir__hostmem_room(part->segments, part->count, &part->room, sizeof *part->segments);
    size_t at;

    if (!moved)
        return 0;
    part->segments = moved;
    if (!weir__part_place(t, part->placement, part, segment))
        return 0;
    at = count_segments_up_to(part, segment.base);
    memmove(&moved[at + 1], &moved[at], (part->count - at) * sizeof *moved);
    moved[at] = segment;
    part->count++;
    part->bytes += segment.bytes;
    WEIR_ASSERT(are_segments_valid(part));
    return 1;
}

/* Removes a segment from part->placement.  Returns 0 if not all streams may use all of its memory, else 1. */
static int remove_segment(const weir_tensors *t, const struct weir_tensor_part *part,
                          const struct weir_tensor_segment *segment) {
    struct weir_placement_span span = {0};

    if (!is_in_pool_range(t, segment->base))
        return weir__placement_remove(part->placement, segment->base) == WEIR_PLACEMENT_OK;
    while (weir__placement_next(part->placement, &span))
        if (span.address + span.size >= segment->base + segment->bytes)
            return !span.live && !span.unmapped && span.sequence == 0 &&
                   span.address <= segment->base &&
                   weir__placement_unmap(part->placement, span.address, segment->base,
                                         segment->bytes) == WEIR_PLACEMENT_OK;
    return 0;
}

/* Removes the next unused segment above the address out->base, and stores the segment in *out.  The caller has waited
 * for the device.  Returns 1 on success, else 0. */
static int remove_free_segment(const weir_tensors *t, struct weir_tensor_part *part,
                               struct weir_tensor_segment *out) {
    for (size_t i = count_segments_up_to(part, out->base); i < part->count; i++) {
        if (!remove_segment(t, part, &part->segments[i]))
            continue;
        *out = part->segments[i];
        part->count--;
        memmove(&part->segments[i], &part->segments[i + 1],
                (part->count - i) * sizeof *part->segments);
        part->bytes -= out->bytes;
        WEIR_ASSERT(are_segments_valid(part));
        return 1;
    }
    return 0;
}

/* Returns by how much a new segment changes the number of contiguous ranges: 1, 0 or -1. */
static int segment_weight(const weir_tensors *t, const struct weir_tensor_part *part,
                          struct weir_tensor_segment segment) {
    size_t below = count_segments_up_to(part, segment.base - 1),
           above = count_segments_up_to(part, segment.base);
    const struct weir_tensor_segment *s = part->segments;
    int count = 1;

    if (!is_in_pool_range(t, segment.base))
        return 1;
    count -= below > 0 && s[below - 1].base + s[below - 1].bytes == segment.base;
    count -= above < part->count && s[above].base == segment.base + segment.bytes;
    return count;
}

/* ---- last segment ------------------------------------------------------------------------------- */

/* Returns the address at which a new segment would join the last one, or 0. */
static uint64_t part_end(const weir_tensors *t, const struct weir_tensor_part *part) {
    const struct weir_tensor_segment *last;

    if (part->count == 0)
        return 0;
    /* A new segment can join only the segment with the highest address, which is the last one. */
    last = &part->segments[part->count - 1];
    return is_in_pool_range(t, last->base) ? last->base + last->bytes : 0;
}

/* Returns the free bytes directly before `end` that the stream `name` may reuse. */
static size_t free_tail_bytes(const struct weir_tensor_part *part, uint64_t name, uint64_t end) {
    struct weir_placement_span span = {0};
    uint64_t last = 0; /* the end of the last chunk that is not an unmapped range */
    size_t bytes = 0;

    while (weir__placement_next(part->placement, &span)) {
        if (span.unmapped)
            continue;
        if (span.live || (span.sequence > 0 && span.stream != name))
            bytes = 0;
        else
            bytes = (span.address == last ? bytes : 0) + span.size;
        last = span.address + span.size;
    }
    return last == end ? bytes : 0;
}

/* ---- finding pools ---------------------------------------------------------------------------- */

struct weir_tensor_pool *weir__pool_find(weir_tensors *t, weir_tensors_id id) {
    struct weir_tensor_pool *pool = t->pools;

    while (pool && !weir__tensors_same(pool->id, id))
        pool = pool->next;
    return pool;
}

struct weir_tensor_pool *weir__pool_with_route(weir_tensors *t, weir_stream stream) {
    struct weir_tensor_pool *pool = t->routed;

    while (pool && !pool->accepts(pool->context, stream))
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
    weir__placement_remove_stream(p, &pool->unknown_streams);
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

/* Finds or creates the record of the reserved bytes of the pool `id`.  Returns NULL without host memory. */
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
    pool->unknown_streams.is_fallback = 1;
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

/* Destroys a pool without users, segments and requests, unless a running call uses it without the lock (`pins`). */
static void end_if_unused(weir_tensors *t, struct weir_tensor_pool *pool) {
    struct weir_tensor_pool **link = &t->pools;

    if (pool->users > 0 || has_pool_segments(pool) || pool->accepts || pool->pins > 0)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    atomic_fetch_sub_explicit(&t->unused_pools, 1, memory_order_relaxed);
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
    int uses_source = 0;

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
        atomic_fetch_sub_explicit(&t->unused_pools, 1, memory_order_relaxed);
    }
    if (pool) {
        pool->users++;
        uses_source = source && !pool->source.alloc && !has_pool_segments(pool);
    }
    if (uses_source)
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
        atomic_fetch_add_explicit(&t->unused_pools, 1, memory_order_relaxed);
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
    pool->is_lendable = on != 0;
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

/* ---- pools of streams ---------------------------------------------------------------------------- */

weir_status weir_tensors_begin(weir_tensors *t, weir_tensors_id id,
                               int (*takes)(void *context, weir_stream stream), void *context) {
    weir_status status;
    struct weir_tensor_pool *pool = weir__pool_enter(takes ? t : NULL, id, &status);

    if (!pool)
        return status;
    if (pool->accepts) {
        status = weir__without_driver(WEIR_E_BUSY);
    } else {
        pool->accepts = takes;
        pool->context = context;
        pool->next_routed = t->routed;
        t->routed = pool;
        atomic_fetch_add_explicit(&t->route_count, 1, memory_order_relaxed);
    }
    weir__tensors_unlock(t);
    return status;
}

weir_status weir_tensors_end(weir_tensors *t, weir_tensors_id id, void **context) {
    weir_status status;
    struct weir_tensor_pool *pool = weir__pool_enter(t, id, &status), **link;

    if (!pool)
        return status;
    if (pool->accepts) {
        for (link = &t->routed; *link != pool;)
            link = &(*link)->next_routed;
        *link = pool->next_routed;
        if (context)
            *context = pool->context;
        pool->accepts = NULL;
        pool->context = NULL;
        atomic_fetch_sub_explicit(&t->route_count, 1, memory_order_relaxed);
        if (atomic_load_explicit(&t->has_pending, memory_order_relaxed))
            weir__pending_complete(t, 0);
        end_if_unused(t, pool);
    } else {
        status = weir__without_driver(WEIR_E_NOT_OWNED);
    }
    weir__tensors_unlock(t);
    return status;
}

/* ---- growth ------------------------------------------------------------------------------------ */

/* Rounds up to a multiple of `unit`, a power of two.  Returns `bytes` on overflow. */
static size_t round_unit(size_t bytes, size_t unit) {
    size_t rounded;

    return weir__size_round_up(bytes, unit, &rounded) ? rounded : bytes;
}

/* Returns 1 if adjacent segments of the pool join, else 0. */
static int joins(const weir_tensors *t, const struct weir_tensor_pool *pool) {
    return t->pool_range.bytes > 0 && !pool->source.alloc && !pool->is_whole;
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

/* Adds a segment to the statistics, or subtracts it if `sign` is -1.  Reports the change by an event. */
static void count_segment(weir_tensors *t, const struct weir_tensor_pool *pool,
                          const struct weir_tensor_part *part, struct weir_tensor_segment segment,
                          int sign, weir_stream stream, void *note) {
    weir_tensors_figure *reserved = pool->reserved->bytes;
    int64_t bytes = (int64_t)segment.bytes;
    int weight = segment_weight(t, part, segment);
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

/* Allocates a segment at the address `at`.  Unlocks `t` during the call of the allocator. */
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

/* Allocates a segment directly after the last segment.  If this returns OK without a segment, the caller retries. */
static weir_status allocate_joined(weir_tensors *t, struct weir_tensor_part *part, size_t least,
                                   uint64_t name, struct weir_tensor_segment *out) {
    uint64_t end = part_end(t, part), at = end ? end : WEIR_ENGINE_FAR;
    size_t lacks = end ? least - free_tail_bytes(part, name, end) : least;
    size_t bytes = step_for(part, 0, lacks, STEP_PART_JOINED);
    weir_status status = allocate_at(t, bytes, at, out);

    if (weir__is_failure(status) && bytes > round_unit(lacks, PAGE))
        status = allocate_at(t, round_unit(lacks, PAGE), at, out);
    if (weir__is_failure(status) && part_end(t, part) != end)
        return WEIR_OK;
    /* Other memory may lie at the address `end`, so this call allocates at another address. */
    if (status == WEIR_E_NO_MEMORY && end > 0)
        status = allocate_at(t, round_unit(least, PAGE), WEIR_ENGINE_FAR, out);
    return status;
}

/* Allocates a segment at any address.  Unlocks `t` during the allocation. */
static weir_status allocate_unjoined(weir_tensors *t, struct weir_tensor_pool *pool,
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

/* Grows this part of the pool for the request.  Unlocks `t` during the allocation. */
static weir_status grow_part(weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_part *part,
                             const struct weir_tensor_request *request) {
    struct weir_tensor_segment segment = {0};
    weir_status status = WEIR_E_NO_MEMORY;

    pool->pins++;
    if (joins(t, pool))
        status = allocate_joined(t, part, request->bytes, request->home.name, &segment);
    if (weir__is_failure(status))
        status = allocate_unjoined(t, pool, part, request->bytes, &segment);
    pool->pins--;
    if (status != WEIR_OK || segment.base == 0)
        return status;
    if (!add_segment(t, part, segment)) {
        weir__tensors_unlock(t);
        (void)free_segment(t, &pool->source, segment.base);
        weir__tensors_lock(t);
        return WEIR_E_HOST_MEMORY;
    }
    count_segment(t, pool, part, segment, 1, request->home.stream, request->note);
    weir__tensors_report_shared(t, segment.base, request->home.stream, request->note);
    return WEIR_OK;
}

/* ---- blocks ------------------------------------------------------------------------------------- */

/* Allocates the smallest free segment that is large enough, for a pool that does not split segments. */
static int allocate_whole(struct weir_tensor_part *part, size_t bytes,
                          struct weir_tensor_user *user, struct weir_placement_block *place) {
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

static int allocate_from_part(const struct weir_tensor_pool *pool, struct weir_tensor_part *part,
                              size_t bytes, struct weir_tensor_user *user,
                              struct weir_placement_block *place) {
    const struct weir_placement_waits none = {permits_no_wait, permits_no_wait, NULL};
    int found;

    if (pool->is_whole)
        return allocate_whole(part, bytes, user, place);
    found = weir__placement_alloc(part->placement, bytes, &user->placed, place);
    /* No chunk is large enough.  Tries several adjacent chunks that this stream or all streams may use. */
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

/* Marks earlier streams with the handle as destroyed, because the driver now reports another id.  Does nothing for the
 * per-thread default stream: its handle means another stream in each thread. */
static void mark_destroyed(weir_tensors *t, struct weir_tensor_pool *pool,
                           struct weir_tensor_use user) {
    if ((uintptr_t)user.stream == WEIR_STREAM_PER_THREAD_VALUE)
        return;
    for (struct weir_tensor_user *old = pool->streams; old; old = old->next) {
        if ((old->placed.id & user.name & WEIR_TENSORS_ID) && old->stream == user.stream &&
            !old->ended) {
            old->ended = ++t->sequence;
            pool->has_unordered_frees = 1;
        }
    }
}

/* Finds or creates a stream's record, valid until `t` is unlocked.  Returns NULL if there is no host memory. */
static struct weir_tensor_user *find_or_add_user(weir_tensors *t, struct weir_tensor_pool *pool,
                                                 struct weir_tensor_use user) {
    struct weir_tensor_user *user_record = find_user(pool, user.name);

    if (user_record)
        return user_record;
    user_record = calloc(1, sizeof *user_record);
    if (!user_record)
        return NULL;
    mark_destroyed(t, pool, user);
    if (weir__name_is_permanent(user.name) &&
        !weir__map_get(&t->permanent_streams, user.name, NULL))
        (void)weir__map_put(&t->permanent_streams, user.name, WEIR_TENSORS_PERMANENT);
    user_record->placed.id = user.name;
    user_record->stream = user.stream;
    user_record->next = pool->streams;
    pool->streams = user_record;
    return user_record;
}

/* Returns 1 if the stream may have freed memory of the pool inside a stream capture, else 0.  The captures of a
 * destroyed stream have ended.  For other streams the answer is a guess, since weir must not query captures here. */
static int may_free_in_capture(const struct weir_tensor_pool *pool,
                               const struct weir_tensor_user *user) {
    const struct weir_tensor_user *captured = pool->streams;

    if (user->ended)
        return 0;
    while (captured && !(captured->placed.id & WEIR_TENSORS_CAPTURED))
        captured = captured->next;
    return captured || !(user->placed.id & WEIR_TENSORS_ID);
}

/* After a wait, lets all streams reuse the memory of the frees up to number `waited`.  The wait does not cover captured
 * work, so skips memory that a capture may have freed if pool->accepts is set. */
static void observe_part(struct weir_tensor_pool *pool, struct weir_tensor_part *part,
                         uint64_t waited) {
    for (struct weir_tensor_user *user = pool->streams; user; user = user->next) {
        if (pool->accepts && may_free_in_capture(pool, user))
            continue;
        user->placed.observed = weir__size_larger(user->placed.observed, waited);
        weir__placement_observe(part->placement, &user->placed);
    }
    if (pool->accepts && pool->unknown_streams.observed < pool->last_capture_free)
        return;
    pool->unknown_streams.observed = weir__size_larger(pool->unknown_streams.observed, waited);
    weir__placement_observe(part->placement, &pool->unknown_streams);
}

/* Unlocks `t` and waits for the device.  Then all streams may reuse memory that was freed before the wait. */
static void wait_for_pool(weir_tensors *t, struct weir_tensor_pool *pool) {
    struct weir_tensor_user **link = &pool->streams, *user;
    uint64_t waited = t->sequence;
    CUresult result;

    pool->pins++;
    pool->has_unordered_frees = 0; /* a free during the wait may set it again */
    weir__tensors_unlock(t);
    result = weir__device_wait(&t->allocator->device);
    weir__tensors_lock(t);
    pool->pins--;
    if (result != CUDA_SUCCESS) {
        pool->has_unordered_frees = 1;
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

/* Frees a block of the pool.  Only `reuser` can reuse the memory before a wait for the device.  If `reuser` is NULL, or
 * if there is no host memory, no stream can. */
static void free_in_pool(weir_tensors *t, struct weir_tensor_pool *pool, uint64_t address,
                         struct weir_tensor_user *reuser) {
    struct weir_placement *p = weir__pool_part(pool, address)->placement;

    t->sequence++;
    if (reuser &&
        weir__placement_free(p, address, &reuser->placed, t->sequence, NULL) == WEIR_PLACEMENT_OK)
        return;
    if (reuser && may_free_in_capture(pool, reuser))
        pool->last_capture_free = t->sequence;
    pool->has_unordered_frees = 1;
    (void)weir__placement_free(p, address, &pool->unknown_streams, t->sequence, NULL);
}

weir_status weir__pool_alloc(weir_tensors *t, struct weir_tensor_pool *pool,
                             struct weir_tensor_request *request, int no_growth) {
    struct weir_tensor_part *part = part_for(t, pool, request->bytes);
    struct weir_tensor_user *user;
    struct weir_placement_block place;
    weir_status status = WEIR_OK;
    uint64_t capture = 0;
    int found, waits = t->allocator->options.recovery_timeout_ms != UINT32_MAX, may_wait = waits;

    while ((user = find_or_add_user(t, pool, request->home)) != NULL &&
           (found = allocate_from_part(pool, part, request->bytes, user, &place)) ==
               WEIR_PLACEMENT_NO_FIT) {
        /* set if the pool must not grow, or has failed to grow */
        int is_last = no_growth || status != WEIR_OK;

        if (may_wait && (pool->has_unordered_frees || (is_last && has_pool_segments(pool)))) {
            may_wait = 0;
            wait_for_pool(t, pool);
        } else if (is_last) {
            break;
        } else {
            status = grow_part(t, pool, part, request);
            may_wait = waits; /* blocks may have been freed during the growth */
        }
    }
    if (!user || found == WEIR_PLACEMENT_NO_MEMORY)
        return WEIR_E_HOST_MEMORY;
    if (found != WEIR_PLACEMENT_OK) {
        if (!no_growth)
            /* Other threads may have stopped their use of the pool during the growth. */
            end_if_unused(t, pool);
        return status == WEIR_OK ? WEIR_E_NO_MEMORY : status;
    }
    request->address = place.address;
    if (request->home.name & WEIR_TENSORS_CAPTURED)
        capture = weir__device_capture_id(&t->allocator->device, request->home.stream);
    if (weir__tensor_record(t, request, pool, capture))
        return WEIR_OK;
    free_in_pool(t, pool, place.address, user);
    return WEIR_E_HOST_MEMORY;
}

int weir__pool_borrow(weir_tensors *t, struct weir_tensor_request *request) {
    int is_served = 0;

    weir__tensors_lock(t);
    for (struct weir_tensor_pool *pool = t->pools; pool && !is_served; pool = pool->next)
        is_served = pool->is_lendable && weir__pool_alloc(t, pool, request, 1) == WEIR_OK;
    weir__tensors_unlock(t);
    return is_served;
}

/* Returns the record of the block's captured stream if the driver has no stream ids (before 12.0), else NULL. */
static struct weir_tensor_user *name_in_capture(weir_tensors *t, const struct weir_tensor *tensor) {
    struct weir_tensor_use user = {.stream = tensor->home.stream};

    if (!tensor->pool->accepts || (t->allocator->device.driver->capabilities & WEIR_CAP_STREAM_ID))
        return NULL;
    user.name = weir__tensors_name(t, user.stream, 0);
    return user.name != 0 ? find_or_add_user(t, tensor->pool, user) : NULL;
}

/* Returns 1 if the capture in which the block was allocated still runs, else 0.  After the capture, weir knows neither
 * which work uses the block nor which stream the handle means. */
static int is_still_captured(weir_tensors *t, const struct weir_tensor *tensor) {
    return tensor->pool->accepts && tensor->capture != 0 &&
           weir__device_capture_id(&t->allocator->device, tensor->home.stream) == tensor->capture;
}

/* Returns the record of the stream that may reuse the freed block at once.  Returns NULL if the block's stream has been
 * destroyed, or if the capture in which the block was allocated has ended. */
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

/* Returns 1 if a trim may free the pool's unused segments, else 0.  A graph may contain the addresses of a pool with
 * users.  If the pool was closed after `waited`, the last launch of its graphs may still run.  weir's own threads must
 * not call the program's functions: they may need a lock, such as Python's, whose holder waits for weir. */
static int is_to_trim(const struct weir_tensor_pool *pool, weir_tensors_id id, uint64_t waited) {
    return pool->users == 0 && !pool->accepts && pool->closed <= waited &&
           !(pool->source.alloc && weir__thread_is_own()) &&
           (weir__tensors_is_shared(id) || weir__tensors_same(pool->id, id));
}

/* Frees the unused segments of one part, after a wait for all frees up to `waited`.  Unlocks `t` during each free. */
static int trim_part(weir_tensors *t, struct weir_tensor_pool *pool, struct weir_tensor_part *part,
                     weir_tensors_id id, uint64_t waited) {
    struct weir_tensor_segment segment = {0};
    int freed_any = 0;

    observe_part(pool, part, waited);
    while (is_to_trim(pool, id, waited) && remove_free_segment(t, part, &segment)) {
        weir_status status;

        count_segment(t, pool, part, segment, -1, NULL, NULL);
        weir__tensors_unlock(t);
        status = free_segment(t, &pool->source, segment.base);
        weir__tensors_lock(t);
        if (status == WEIR_OK)
            freed_any = 1;
        /* If the free fails, a later trim tries again. */
        else if (add_segment(t, part, segment))
            count_segment(t, pool, part, segment, 1, NULL, NULL);
    }
    return freed_any;
}

/* Frees the segments that were unused before a device wait.  Sets *is_late to 1 if another wait could free more. */
static int trim_after_wait(weir_tensors *t, weir_tensors_id id, int *is_late) {
    struct weir_tensor_pool *pool, *next;
    int freed_any = 0, has_segments = 0;
    uint64_t waited, before;

    *is_late = 0;
    weir__tensors_lock(t);
    /* The wait does not cover later frees of other threads. */
    waited = t->sequence;
    for (pool = t->pools; pool; pool = pool->next)
        has_segments |= is_to_trim(pool, id, waited) && has_pool_segments(pool);
    weir__tensors_unlock(t);
    if (!has_segments || weir__device_wait(&t->allocator->device) != CUDA_SUCCESS)
        return 0;
    weir__tensors_lock(t);
    before = t->sequence;
    weir__pending_complete(t, 0);
    *is_late = t->sequence > before;
    for (pool = t->pools; pool; pool = next) {
        int is_trimmed = is_to_trim(pool, id, waited);

        pool->pins++;
        for (int i = 0; is_trimmed && i < WEIR_TENSORS_PARTS; i++)
            freed_any |= trim_part(t, pool, &pool->part[i], id, waited);
        pool->pins--;
        /* Other threads may have changed the list of pools, but not removed this pool, since pool->pins was not 0. */
        next = pool->next;
        if (is_trimmed)
            end_if_unused(t, pool);
    }
    weir__tensors_unlock(t);
    return freed_any;
}

int weir__pools_trim(weir_tensors *t, weir_tensors_id id) {
    int is_late, freed_any = trim_after_wait(t, id, &is_late);

    return (is_late && trim_after_wait(t, id, &is_late)) || freed_any;
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
    weir__tensors_report_shared(t, t->growth_address, NULL, NULL);
    weir__tensors_unlock(t);
    return status;
}
