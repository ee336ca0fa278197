/* SPDX-License-Identifier: MIT */
/* figures.c: reads the memory statistics of tensors, and lists all blocks and free chunks. */
#include <stdlib.h>

#include "api/allocator_internal.h"
#include "base/assert.h"
#include "base/result.h"
#include "base/size.h"
#include "tensors/tensors_internal.h"

/* ---- figures ------------------------------------------------------------------------------------ */

/* Computes the statistics of reserved memory, with the memory of private memory pools.  Small and large blocks share
 * the memory outside pools, so weir reports the bytes of small blocks as small, and all other bytes as large. */
static void read_reserved_figures(weir_tensors *t, const weir_statistics *s,
                                  weir_tensors_figures *f) {
    weir_tensors_figure *all = &f->reserved_bytes[0], *small = &f->reserved_bytes[1];
    weir_tensors_figure *large = &f->reserved_bytes[2];
    int64_t elsewhere = all->current;

    all->current = (int64_t)s->reserved + elsewhere;
    all->peak += (int64_t)weir__size_larger(t->allocator->counters.reserved_peak, s->reserved);
    all->allocated += (int64_t)(s->growth_bytes - t->stats_at_reset.growth_bytes);
    all->freed = all->allocated - all->current + t->reserved_at_reset;
    *small = f->active_bytes[1];
    large->current = all->current - small->current;
    large->peak = all->peak;
    large->allocated = all->allocated;
    large->freed = all->freed;
    weir__figure_add(&f->segment[0], s->reserved > 0, 1);
    f->segment[2] = f->segment[0];
}

/* Computes the statistics of active blocks, which are live blocks and freed blocks that other streams still use. */
static void read_active(const weir_tensors *t, weir_tensors_figures *f) {
    for (int i = 0; i < 3; i++) {
        int64_t blocks = t->pending[i].blocks, bytes = t->pending[i].bytes;

        f->active[i] = f->allocation[i];
        f->active_bytes[i] = f->allocated_bytes[i];
        f->active[i].current += blocks;
        f->active[i].freed -= blocks - t->pending[i].blocks_at_reset;
        f->active_bytes[i].current += bytes;
        f->active_bytes[i].freed -= bytes - t->pending[i].bytes_at_reset;
        if (t->pending[i].peak_blocks > f->active[i].peak)
            f->active[i].peak = t->pending[i].peak_blocks;
        if (t->pending[i].peak_bytes > f->active_bytes[i].peak)
            f->active_bytes[i].peak = t->pending[i].peak_bytes;
    }
}

weir_status weir_tensors_stats(weir_tensors *t, weir_tensors_figures *out) {
    weir_tensors_figures figures;
    weir_statistics s;
    weir_status status = weir__call_check(t && out && out->size >= sizeof out->size);

    if (status != WEIR_OK)
        return status;
    weir__stats_read(t->allocator, &s);
    weir__tensors_lock(t);
    WEIR_ASSERT((size_t)t->figures.allocation[0].current == t->map.count);
    figures = t->figures;
    read_active(t, &figures);
    read_reserved_figures(t, &s, &figures);
    figures.retries = s.retries - t->stats_at_reset.retries;
    figures.device_allocs = s.growths - t->stats_at_reset.growths;
    figures.device_frees = s.trims - t->stats_at_reset.trims;
    weir__tensors_unlock(t);
    weir__copy_out(out, &figures, sizeof figures);
    return WEIR_OK;
}

/* Returns statistic number `i` of the struct, as if the struct were an array. */
static weir_tensors_figure *figure_at(weir_tensors_figures *f, int i) {
    return &f->allocation[0] + i;
}
enum { FIGURES = 27 };

_Static_assert(offsetof(weir_tensors_figures, requested_bytes[2]) -
                       offsetof(weir_tensors_figures, allocation[0]) ==
                   (FIGURES - 1) * sizeof(weir_tensors_figure),
               "figures stand side by side");

/* Reads the allocator's statistics into *s, and locks `t`; the caller unlocks `t`.  On an error, does not lock `t`. */
static weir_status begin_reset(weir_tensors *t, weir_statistics *s) {
    weir_status status = weir__call_check(t != NULL);

    if (status != WEIR_OK)
        return status;
    weir__stats_read(t->allocator, s);
    weir__tensors_lock(t);
    return WEIR_OK;
}

weir_status weir_tensors_reset_peaks(weir_tensors *t) {
    weir_statistics s;
    weir_status status = begin_reset(t, &s);

    if (status != WEIR_OK)
        return status;
    for (int i = 0; i < FIGURES; i++)
        figure_at(&t->figures, i)->peak = figure_at(&t->figures, i)->current;
    for (int i = 0; i < 3; i++) {
        t->pending[i].peak_blocks = t->figures.allocation[i].current + t->pending[i].blocks;
        t->pending[i].peak_bytes = t->figures.allocated_bytes[i].current + t->pending[i].bytes;
    }
    for (struct weir_tensor_reserved *r = t->reserved; r; r = r->next)
        for (int i = 0; i < 3; i++)
            r->bytes[i].peak = r->bytes[i].current;
    atomic_store(&t->allocator->counters.reserved_peak, s.reserved);
    weir__tensors_unlock(t);
    return WEIR_OK;
}

/* Sets the pools' sums of allocated and freed bytes to 0.  Frees the statistics of pools that have ended. */
static void reset_reserved(weir_tensors *t) {
    struct weir_tensor_reserved **link = &t->reserved, *r;

    while ((r = *link) != NULL)
        if (!weir__pool_find(t, r->id)) {
            *link = r->next;
            free(r);
        } else {
            for (int i = 0; i < 3; i++)
                r->bytes[i].allocated = r->bytes[i].freed = 0;
            link = &r->next;
        }
}

weir_status weir_tensors_reset_sums(weir_tensors *t) {
    weir_statistics s;
    weir_status status = begin_reset(t, &s);

    if (status != WEIR_OK)
        return status;
    for (int i = 0; i < FIGURES; i++) {
        figure_at(&t->figures, i)->allocated = 0;
        figure_at(&t->figures, i)->freed = 0;
    }
    for (int i = 0; i < 3; i++) {
        t->pending[i].blocks_at_reset = t->pending[i].blocks;
        t->pending[i].bytes_at_reset = t->pending[i].bytes;
    }
    reset_reserved(t);
    t->figures.ooms = 0;
    t->stats_at_reset = s;
    t->reserved_at_reset = (int64_t)s.reserved + t->figures.reserved_bytes[0].current;
    weir__tensors_unlock(t);
    return WEIR_OK;
}

weir_status weir_tensors_pools(weir_tensors *t,
                               void (*show)(void *context, weir_tensors_id id,
                                            const weir_tensors_figure reserved[3]),
                               void *context) {
    weir_status status = weir__call_check(t && show);

    if (status != WEIR_OK)
        return status;
    weir__tensors_lock(t);
    for (const struct weir_tensor_reserved *r = t->reserved; r; r = r->next)
        show(context, r->id, r->bytes);
    weir__tensors_unlock(t);
    return WEIR_OK;
}

/* ---- idle memory of pools ---------------------------------------------------------------------- */

/* Returns the bytes of all segments without live blocks. */
static uint64_t part_idle(const struct weir_tensor_part *part) {
    /* the first segment above all live blocks that the loop has visited */
    const struct weir_tensor_segment *next = part->segments;
    struct weir_placement_span span = {0};
    uint64_t bytes = part->bytes;

    while (weir__placement_next(part->placement, &span)) {
        const struct weir_tensor_segment *s;

        if (!span.live)
            continue;
        s = weir__part_segment(part, span.address);
        if (s < next)
            s = next;
        for (; s < part->segments + part->count && s->base < span.address + span.size; s++)
            bytes -= s->bytes;
        next = s;
    }
    return bytes;
}

uint64_t weir__pools_idle(const weir_tensors *t) {
    uint64_t bytes = 0;

    for (const struct weir_tensor_pool *pool = t->pools; pool; pool = pool->next)
        for (int i = 0; i < WEIR_TENSORS_PARTS; i++)
            if (pool->users == 0 && !pool->accepts && !pool->source.alloc)
                bytes += part_idle(&pool->part[i]);
    return bytes;
}

/* ---- list of blocks ----------------------------------------------------------------------------- */

/* A block outside private memory pools, or a segment of such a pool.  For a segment, `tensor` is NULL. */
struct item {
    uint64_t address;
    size_t bytes;
    const struct weir_tensor *tensor;
};

struct visit {
    weir_tensors *tensors;
    void (*show)(void *context, const weir_tensors_block *block);
    void *context;
    const struct weir_tensor_pool *pool;
    const struct weir_tensor_part *part;
    struct weir_tensor_segment segment; /* the segment of the last listed chunk */
};

static int by_address(const void *a, const void *b) {
    uint64_t x = ((const struct item *)a)->address, y = ((const struct item *)b)->address;

    return (x > y) - (x < y);
}

static size_t list_items(const weir_tensors *t, struct item *items) {
    size_t count = 0;

    for (size_t i = 0; i < t->map.capacity; i++) {
        const struct weir_tensor *tensor = (const struct weir_tensor *)t->map.slots[i].value;

        if (t->map.slots[i].key && !tensor->pool)
            items[count++] = (struct item){tensor->address, tensor->bytes, tensor};
    }
    for (const struct weir_tensor_pool *pool = t->pools; pool; pool = pool->next)
        for (int p = 0; p < WEIR_TENSORS_PARTS && !pool->source.alloc; p++)
            for (size_t i = 0; i < pool->part[p].count; i++)
                items[count++] = (struct item){pool->part[p].segments[i].base,
                                               pool->part[p].segments[i].bytes, NULL};
    qsort(items, count, sizeof *items, by_address);
    return count;
}

static void show_tensor(const struct visit *v, const struct weir_tensor *tensor,
                        struct weir_tensor_segment segment) {
    weir_tensors_block block = weir__tensor_block(tensor, segment);

    v->show(v->context, &block);
}

static void show_free(const struct visit *v, uint64_t from, uint64_t to,
                      struct weir_tensor_segment segment) {
    weir_tensors_block block = {.address = from,
                                .bytes = to - from,
                                .segment = segment.base,
                                .segment_bytes = segment.bytes,
                                .is_free = 1};

    if (to > from)
        v->show(v->context, &block);
}

/* Lists the memory from `from` to `to` as one segment with these blocks.  No private pool has a segment there. */
static void show_run(const struct visit *v, uint64_t from, uint64_t to, const struct item *blocks,
                     size_t count) {
    struct weir_tensor_segment segment = {from, to - from};

    for (size_t i = 0; i < count; i++) {
        show_free(v, from, blocks[i].address, segment);
        show_tensor(v, blocks[i].tensor, segment);
        from = blocks[i].address + blocks[i].bytes;
    }
    show_free(v, from, to, segment);
}

/* Lists a contiguous piece of memory and its blocks, from items[at].  Returns the index of the next item. */
static size_t show_piece(const struct visit *v, const struct weir_extent *piece,
                         const struct item *items, size_t at, size_t count) {
    uint64_t from = piece->base, end = piece->base + piece->bytes;
    size_t next = at;

    for (; next < count && items[next].address < end; next++) {
        if (items[next].tensor)
            continue;
        show_run(v, from, items[next].address, items + at, next - at);
        from = items[next].address + items[next].bytes;
        at = next + 1;
    }
    show_run(v, from, end, items + at, next - at);
    return next;
}

/* Lists the contiguous pieces of the allocator's reserved memory in *out.  Returns the number of pieces. */
static size_t list_pieces(const weir_tensors *t, struct weir_extent **out) {
    size_t count = weir__engine_list_all(t->allocator->reserve.engine, WEIR_VISIT_UNITS, out);
    struct weir_extent *pieces = *out;
    size_t kept = 0;

    for (size_t i = 0; i < count; i++)
        if (kept > 0 && pieces[kept - 1].base + pieces[kept - 1].bytes == pieces[i].base)
            pieces[kept - 1].bytes += pieces[i].bytes;
        else
            pieces[kept++] = pieces[i];
    return kept;
}

static void show_shared(const struct visit *v, const struct item *items, size_t count) {
    struct weir_extent *pieces;
    size_t piece_count = list_pieces(v->tensors, &pieces), at = 0;

    for (size_t i = 0; i <= piece_count; i++) {
        uint64_t base = i < piece_count ? pieces[i].base : UINT64_MAX;

        /* A block outside the allocator's reserved memory is a segment by itself. */
        for (; at < count && items[at].address < base; at++)
            if (items[at].tensor)
                show_tensor(v, items[at].tensor,
                            (struct weir_tensor_segment){items[at].address, items[at].bytes});
        if (i < piece_count)
            at = show_piece(v, &pieces[i], items, at, count);
    }
    free(pieces);
}

static void show_chunk(struct visit *v, const struct weir_placement_span *span) {
    weir_tensors_block block = {.address = span->address,
                                .bytes = span->size,
                                .requested = span->requested,
                                .pool = v->pool->id,
                                .is_free = !span->live,
                                .is_pending = span->live};
    uintptr_t value;

    if (span->address - v->segment.base >= v->segment.bytes)
        v->segment = weir__part_run(v->tensors, v->part, span->address);
    block.segment = v->segment.base;
    block.segment_bytes = v->segment.bytes;
    if (span->live && weir__map_get(&v->tensors->map, span->address, &value))
        show_tensor(v, (const struct weir_tensor *)value, v->segment);
    else
        v->show(v->context, &block);
}

weir_status weir_tensors_visit(weir_tensors *t, weir_tensors_id id,
                               void (*show)(void *context, const weir_tensors_block *block),
                               void *context) {
    struct visit v = {.tensors = t, .show = show, .context = context};
    struct item *items = NULL;
    size_t segments = 0;
    int is_all = weir__tensors_is_shared(id);
    weir_status status = weir__call_check(t && show);

    if (status != WEIR_OK)
        return status;
    weir__tensors_lock(t);
    for (const struct weir_tensor_pool *pool = t->pools; pool; pool = pool->next)
        segments += pool->part[0].count + pool->part[1].count;
    if (is_all)
        items = calloc(t->map.count + segments + 1, sizeof *items);
    if (items)
        show_shared(&v, items, list_items(t, items));
    for (v.pool = t->pools; v.pool; v.pool = v.pool->next)
        if (is_all || weir__tensors_same(v.pool->id, id))
            for (int i = 0; i < WEIR_TENSORS_PARTS; i++) {
                struct weir_placement_span span = {0};

                v.part = &v.pool->part[i];
                while (weir__placement_next(v.part->placement, &span))
                    if (!span.unmapped)
                        show_chunk(&v, &span);
            }
    weir__tensors_unlock(t);
    if (is_all && !items)
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    free(items);
    return WEIR_OK;
}
