/* SPDX-License-Identifier: MIT */
/* mapped_memory.c: creates, maps, moves and releases physical allocations, by a plan.
 *
 * Each physical allocation has whole pages of 2 MiB, and is mapped whole.  cuMemUnmap does not wait for work that still
 * uses the memory.  So a physical allocation leaves its address only if the host has observed that its last uses have
 * completed.  Memory that is free for the stream, but whose uses have not completed, is mapped at its new address,
 * which that stream alone may use; the old address stays mapped, as an aliased mapping.  With internal_dependencies,
 * other streams' free memory moves so, too, after the stream was made to wait for it.
 *
 * An aliased mapping (named shadow in the code) is an address where a physical allocation is still mapped after it has
 * moved.  It lies in an unmapped range, and nothing is placed there.  Its uses were not complete when the physical
 * allocation moved ("Virtual aliasing" in the CUDA programming guide), or the driver did not unmap it.
 *
 * Numbers (H200, driver 580): 35 us to make and map one of up to 64 MiB, 45 us up to 256 MiB, 90 us for a GiB; 38 us to
 * move one of up to 64 MiB.
 */
#include <string.h>

#include "base/hostmem.h"
#include "engine/mapped_state.h"

/* ---- aliased mappings ---- */

/* Adds an aliased mapping, for which the array has room. */
static void add_alias(struct weir_block_engine *a, const struct weir_mapped_alias *s) {
    struct weir_mapped_range *g = a->range;
    size_t at = 0;

    a->kept += s->last ? s->bytes : 0;
    while (at < g->alias_count && g->shadows[at].base <= s->base)
        at++;
    memmove(&g->shadows[at + 1], &g->shadows[at], (g->alias_count - at) * sizeof g->shadows[0]);
    g->alias_count++;
    g->shadows[at] = *s;
}

/* Returns an aliased mapping of the physical allocation, or NULL. */
static struct weir_mapped_alias *alias_of(const struct weir_mapped_range *g,
                                          CUmemGenericAllocationHandle handle) {
    for (size_t i = 0; i < g->alias_count; i++)
        if (g->shadows[i].base != NOWHERE && g->shadows[i].handle == handle)
            return &g->shadows[i];
    return NULL;
}

void weir__mapped_release_handle(struct weir_block_engine *a, struct weir_mapped_handle h) {
    struct weir_mapped_alias *s = alias_of(a->range, h.handle);

    if (s) {
        s->last = 1;
        a->kept += h.bytes;
    } else if (weir__mapped_release(a, h.handle) != CUDA_SUCCESS) {
        add_alias(a, &(struct weir_mapped_alias){
                         .base = NOWHERE, .bytes = h.bytes, .handle = h.handle, .last = 1});
    }
}

int weir__mapped_is_seen(const struct weir_block_engine *a, const struct weir_mapped_alias *s) {
    for (size_t i = s->tags; i-- > 0;)
        if (!weir__order_is_observed(&a->blocks.order, s->tag[i].stream, s->tag[i].sequence))
            return 0;
    return 1;
}

/* Unmaps an aliased mapping whose uses are complete, and releases its physical allocation if this was the last mapping.
 * If both succeed, the entry is unused: `base` is NOWHERE and `last` is 0. */
static void lift_alias(struct weir_block_engine *a, struct weir_mapped_alias *s) {
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_mapped_alias *other;

    if (s->base != NOWHERE) {
        if (!weir__mapped_is_seen(a, s) || driver->cuMemUnmap(s->base, s->bytes) != CUDA_SUCCESS)
            return;
        s->base = NOWHERE;
        other = s->last ? alias_of(a->range, s->handle) : NULL;
        if (other) {
            other->last = 1;
            s->last = 0;
        }
    }
    if (s->last && weir__mapped_release(a, s->handle) == CUDA_SUCCESS) {
        a->kept -= s->bytes;
        s->last = 0;
    }
}

void weir__mapped_lift_shadows(struct weir_block_engine *a, int notes) {
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_mapped_range *g = a->range;
    uint64_t started = driver->ticks(), before = a->kept;
    struct weir_driver_scope scope;
    size_t kept = 0;

    if (g->alias_count == 0 ||
        weir__driver_enter(driver, a->e.device->context, &scope) != CUDA_SUCCESS)
        return;
    for (size_t i = 0; i < g->alias_count; i++)
        lift_alias(a, &g->shadows[i]);
    for (size_t i = 0; i < g->alias_count; i++)
        if (g->shadows[i].base != NOWHERE || g->shadows[i].last)
            g->shadows[kept++] = g->shadows[i];
    g->alias_count = kept;
    weir__driver_leave(driver, &scope);
    if (notes && a->kept < before)
        weir__engine_note(&a->e, WEIR_EVENT_RECOVERY, 1, before, before - a->kept,
                          weir__device_since(a->e.device, started), weir__blocks_reserve(a));
}

/* ---- physical allocations ---- */

int weir__mapped_make_place(struct weir_mapped_range *g, size_t handles, size_t shadows) {
    struct weir_mapped_handle *more = weir__hostmem_room(g->handles, g->handle_count + handles,
                                                         &g->handle_capacity, sizeof *more);
    struct weir_mapped_spare *spares;
    struct weir_mapped_alias *dark;

    if (!more)
        return 0;
    g->handles = more;
    spares = weir__hostmem_room(g->spares, g->handle_count + handles, &g->spare_capacity,
                                sizeof *spares);
    if (!spares)
        return 0;
    g->spares = spares;
    dark =
        weir__hostmem_room(g->shadows, g->alias_count + shadows, &g->alias_capacity, sizeof *dark);
    if (!dark)
        return 0;
    g->shadows = dark;
    return 1;
}

weir_status weir__mapped_map(const struct weir_block_engine *a, struct weir_mapped_move *m) {
    const struct weir_driver *driver = a->e.device->driver;
    const struct weir_mapped_range *g = a->range;
    CUresult result = CUDA_SUCCESS;

    if (!m->in_hand)
        result = driver->cuMemCreate(&m->to.handle, m->to.bytes, &g->kind, 0);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    m->in_hand = 1;
    result = driver->cuMemMap(m->to.base, m->to.bytes, 0, m->to.handle, 0);
    if (result == CUDA_SUCCESS) {
        m->is_mapped = 1;
        result = driver->cuMemSetAccess(m->to.base, m->to.bytes, g->access.list, g->access.count);
    }
    return weir__device_status(a->e.device, result);
}

weir_status weir__mapped_enter(struct weir_block_engine *a, weir_status status,
                               struct weir_mapped_move *m, uint64_t id) {
    struct weir_mapped_range *g = a->range;
    size_t at = handle_above(g, m->to.base);
    /* the end of the memory below, where the unmapped range begins, unless a region begins in between */
    uint64_t below = at > 0 ? g->handles[at - 1].base + g->handles[at - 1].bytes : 0;

    if (status == WEIR_OK)
        status = weir__blocks_placed(
            weir__suballoc_fill(&a->blocks, below, m->to.base, m->to.bytes, id));
    if (status == WEIR_OK) {
        memmove(&g->handles[at + 1], &g->handles[at],
                (g->handle_count - at) * sizeof g->handles[0]);
        g->handles[at] = m->to;
        g->handle_count++;
        m->in_hand = 0;
    } else if (m->is_mapped &&
               a->e.device->driver->cuMemUnmap(m->to.base, m->to.bytes) != CUDA_SUCCESS) {
        add_alias(a,
                  &(struct weir_mapped_alias){
                      .base = m->to.base, .bytes = m->to.bytes, .handle = m->to.handle, .last = 1});
        m->in_hand = 0;
    }
    m->is_mapped = 0;
    return status;
}

weir_status weir__mapped_lift(struct weir_block_engine *a, weir_stream stream, size_t piece,
                              uint64_t base, struct weir_mapped_handle *h) {
    struct weir_mapped_range *g = a->range;
    size_t at = handle_above(g, base);
    struct weir_mapped_alias old = {
        .base = base, .bytes = g->handles[at].bytes, .handle = g->handles[at].handle};
    CUresult result = CUDA_SUCCESS;
    weir_status status;

    for (size_t i = piece; i < g->piece_count && g->pieces[i].base < base + old.bytes; i++) {
        const struct weir_mapped_piece *p = &g->pieces[i];

        if (p->what == BEHIND && result == CUDA_SUCCESS)
            result = weir__order_follow(&a->blocks.order, stream, p->tag.stream, p->tag.sequence);
        if (p->what != CLEAN)
            old.tag[old.tags++] = p->tag;
    }
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    status = weir__blocks_placed(
        weir__suballoc_unmap(&a->blocks, g->pieces[piece].base, base, old.bytes));
    if (status != WEIR_OK)
        return status;
    *h = g->handles[at];
    g->handle_count--;
    memmove(&g->handles[at], &g->handles[at + 1], (g->handle_count - at) * sizeof g->handles[0]);
    if (old.tags == 0)
        result = a->e.device->driver->cuMemUnmap(base, old.bytes);
    old.last = result != CUDA_SUCCESS;
    if (old.tags > 0 || old.last)
        add_alias(a, &old);
    return weir__device_status(a->e.device, result);
}

CUresult weir__mapped_release(const struct weir_block_engine *a,
                              CUmemGenericAllocationHandle handle) {
    struct weir_mapped_range *g = a->range;

    weir__mapped_files_close(&g->files, handle);
    return a->e.device->driver->cuMemRelease(handle);
}

/* ---- plans ---- */

/* A move takes a constant time for a physical allocation of up to PIECE, and hardly longer for a larger one, of whose
 * other bytes this part counts. */
enum { MOVED_PART = 16 };

/* Returns the bytes by which the move of a physical allocation reduces the allowance. */
static size_t counted(const struct weir_mapped_range *g, size_t bytes) {
    if (bytes > PIECE)
        return PIECE + (bytes - PIECE) / MOVED_PART;
    return weir__size_larger(bytes, g->packing->moved_least);
}

/* Creates all new physical allocations before one is mapped.  Otherwise, if the device lacks memory for all, the
 * neighbours of those already mapped would pin them. */
static weir_status make_new(struct weir_block_engine *a, struct weir_request *r) {
    const struct weir_driver *driver = a->e.device->driver;
    struct weir_mapped_range *g = a->range;
    CUresult result = CUDA_SUCCESS;
    uint64_t least = 0;

    for (size_t i = 0; i < g->move_count; i++)
        if (g->moves[i].from == NOWHERE)
            least += g->moves[i].least;
    if (least >= WEIR_ENGINE_LARGE && weir__engine_would_refuse(&a->e, r, least, 0))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < g->move_count && result == CUDA_SUCCESS; i++) {
        struct weir_mapped_move *m = &g->moves[i];

        if (m->from != NOWHERE)
            continue;
        result = driver->cuMemCreate(&m->to.handle, m->to.bytes, &g->kind, 0);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && m->to.bytes > m->least) {
            m->to.bytes = m->least;
            result = driver->cuMemCreate(&m->to.handle, m->to.bytes, &g->kind, 0);
        }
        m->in_hand = result == CUDA_SUCCESS;
    }
    return weir__device_status(a->e.device, result);
}

/* Lifts all physical allocations that will move, the highest address first, so that each still lies in the free chunk
 * that the survey found. */
static weir_status lift_all(struct weir_block_engine *a, struct weir_request *r) {
    struct weir_mapped_range *g = a->range;
    weir_status status = WEIR_OK;
    uint64_t last = UINT64_MAX;

    while (status == WEIR_OK) {
        struct weir_mapped_move *next = NULL;
        uint64_t to;

        for (size_t i = 0; i < g->move_count; i++)
            if (g->moves[i].from != NOWHERE && g->moves[i].from < last &&
                (!next || g->moves[i].from > next->from))
                next = &g->moves[i];
        if (!next)
            break;
        last = next->from;
        to = next->to.base;
        status = weir__mapped_lift(a, r->stream, next->piece, next->from, &next->to);
        next->in_hand = status == WEIR_OK;
        next->to.base = to;
    }
    return status;
}

/* Adds the change of reserved memory by a plan to the allocator's events. */
static void note_change(struct weir_block_engine *a, struct weir_request *r, uint64_t before,
                        uint64_t started) {
    uint64_t after = weir__blocks_reserve(a);

    if (after > before) {
        r->grew = 1;
        weir__blocks_grown(a);
        weir__engine_note(&a->e, WEIR_EVENT_REQUEST, 0, r->bytes, after - before,
                          weir__device_since(a->e.device, started), after);
    } else if (after < before) { /* lifted memory was not mapped again */
        weir__engine_note(&a->e, WEIR_EVENT_RECOVERY, 1, 0, before - after,
                          weir__device_since(a->e.device, started), after);
    }
}

weir_status weir__mapped_carry_out(struct weir_block_engine *a, struct weir_request *r, int what,
                                   int counts) {
    struct weir_mapped_range *g = a->range;
    uint64_t started = a->e.device->driver->ticks(), before = weir__blocks_reserve(a), moved = 0;
    uint64_t id = what == OWN ? r->id : WEIR_ENGINE_OBSERVED;
    weir_status status;
    int unseen = 0;

    /* Every lifted physical allocation must have a place in an array, whatever fails. */
    if (!weir__mapped_make_place(g, g->move_count, 2 * g->move_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    status = make_new(a, r);
    if (status == WEIR_OK)
        status = lift_all(a, r);
    for (size_t i = 0; i < g->move_count; i++) {
        struct weir_mapped_move *m = &g->moves[i];

        unseen |= m->what != CLEAN;
        if (status == WEIR_OK) {
            status =
                weir__mapped_enter(a, weir__mapped_map(a, m), m, m->what == CLEAN ? id : r->id);
            moved += m->from != NOWHERE ? counted(g, m->to.bytes) : 0;
        }
    }
    /* A failure leaves physical allocations that are mapped nowhere, or by aliased mappings alone. */
    for (size_t i = 0; i < g->move_count; i++)
        if (g->moves[i].in_hand)
            weir__mapped_release_handle(a, g->moves[i].to);
    if (unseen) /* else no event might ever cover the moved memory */
        weir__suballoc_mark(&a->blocks, r->id, r->stream);
    g->may_move -= counts ? (int64_t)moved : 0;
    note_change(a, r, before, started);
    return status;
}
