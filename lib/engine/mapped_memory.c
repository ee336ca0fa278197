/* SPDX-License-Identifier: MIT */
/* mapped_memory.c: creates, maps, unmaps and releases physical allocations.
 *
 * Each physical allocation has whole pages of 2 MiB, and is mapped whole.
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
static struct weir_mapped_alias *mapped_add_alias(struct weir_block_engine *a,
                                                  const struct weir_mapped_handle *h, int last) {
    struct weir_mapped_range *g = a->range;
    size_t at = 0;

    a->kept += last ? h->bytes : 0;
    while (at < g->alias_count && g->shadows[at].base <= h->base)
        at++;
    memmove(&g->shadows[at + 1], &g->shadows[at], (g->alias_count - at) * sizeof g->shadows[0]);
    g->alias_count++;
    g->shadows[at] = (struct weir_mapped_alias){
        .base = h->base, .bytes = h->bytes, .handle = h->handle, .last = last};
    return &g->shadows[at];
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

    h.base = NOWHERE;
    if (s) {
        s->last = 1;
        a->kept += h.bytes;
    } else if (weir__mapped_release(a, h.handle) != CUDA_SUCCESS) {
        mapped_add_alias(a, &h, 1);
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

/* Adds a physical allocation to the array, which has room. */
static void link_handle(struct weir_mapped_range *g, const struct weir_mapped_handle *h) {
    size_t at = handle_above(g, h->base);

    memmove(&g->handles[at + 1], &g->handles[at], (g->handle_count - at) * sizeof g->handles[0]);
    g->handles[at] = *h;
    g->handle_count++;
}

static void unlink_handle(struct weir_mapped_range *g, size_t at) {
    g->handle_count--;
    memmove(&g->handles[at], &g->handles[at + 1], (g->handle_count - at) * sizeof g->handles[0]);
}

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

CUresult weir__mapped_make_handle(const struct weir_block_engine *a, struct weir_mapped_handle *h) {
    const struct weir_mapped_range *g = a->range;

    return a->e.device->driver->cuMemCreate(&h->handle, h->bytes, &g->kind, 0);
}

/* Maps a physical allocation at its base, for all devices with access. */
static CUresult map_handle(const struct weir_block_engine *a, struct weir_mapped_move *m) {
    const struct weir_driver *driver = a->e.device->driver;
    const struct weir_access *access = &range_of(a)->access;
    CUresult result = driver->cuMemMap(m->to.base, m->to.bytes, 0, m->to.handle, 0);

    if (result != CUDA_SUCCESS)
        return result;
    m->is_mapped = 1;
    return driver->cuMemSetAccess(m->to.base, m->to.bytes, access->list, access->count);
}

weir_status weir__mapped_make_and_map(const struct weir_block_engine *a,
                                      struct weir_mapped_move *m) {
    CUresult result = m->in_hand ? CUDA_SUCCESS : weir__mapped_make_handle(a, &m->to);

    if (result == CUDA_SUCCESS) {
        m->in_hand = 1;
        result = map_handle(a, m);
    }
    return weir__device_status(a->e.device, result);
}

static void unmap_or_keep(struct weir_block_engine *a, struct weir_mapped_move *m) {
    if (a->e.device->driver->cuMemUnmap(m->to.base, m->to.bytes) == CUDA_SUCCESS)
        return;
    mapped_add_alias(a, &m->to, 1);
    m->in_hand = 0;
}

weir_status weir__mapped_enter(struct weir_block_engine *a, weir_status status, uint64_t unmapped,
                               struct weir_mapped_move *m, uint64_t id) {
    if (status == WEIR_OK)
        status = placed_or(weir__suballoc_fill(&a->blocks, unmapped, m->to.base, m->to.bytes, id));
    if (status == WEIR_OK) {
        link_handle(a->range, &m->to);
        m->in_hand = 0;
    } else if (m->is_mapped) {
        unmap_or_keep(a, m);
    }
    m->is_mapped = 0;
    return status;
}

weir_status weir__mapped_lift(struct weir_block_engine *a, uint64_t chunk, uint64_t base,
                              struct weir_mapped_handle *h) {
    struct weir_mapped_range *g = a->range;
    size_t i = handle_above(g, base);
    weir_status status =
        placed_or(weir__suballoc_unmap(&a->blocks, chunk, base, g->handles[i].bytes));
    CUresult result;

    if (status != WEIR_OK)
        return status;
    *h = g->handles[i];
    unlink_handle(g, i);
    result = a->e.device->driver->cuMemUnmap(base, h->bytes);
    if (result != CUDA_SUCCESS)
        mapped_add_alias(a, h, 1);
    return weir__device_status(a->e.device, result);
}

weir_status weir__mapped_lift_unseen(struct weir_block_engine *a, struct weir_request *r,
                                     size_t piece, uint64_t base, struct weir_mapped_handle *h) {
    struct weir_mapped_range *g = a->range;
    size_t i = handle_above(g, base),
           last = weir__mapped_piece_of(g, base + g->handles[i].bytes - 1);
    struct weir_mapped_alias *s;
    weir_status status;
    CUresult result = CUDA_SUCCESS;

    for (size_t p = piece; p <= last && result == CUDA_SUCCESS; p++)
        if (g->pieces[p].what == BEHIND)
            result = weir__order_follow(&a->blocks.order, r->stream, g->pieces[p].tag.stream,
                                        g->pieces[p].tag.sequence);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    status = placed_or(
        weir__suballoc_unmap(&a->blocks, g->pieces[piece].base, base, g->handles[i].bytes));
    if (status != WEIR_OK)
        return status;
    *h = g->handles[i];
    unlink_handle(g, i);
    s = mapped_add_alias(a, h, 0);
    for (size_t p = piece; p <= last; p++)
        if (g->pieces[p].what != CLEAN)
            s->tag[s->tags++] = g->pieces[p].tag;
    return WEIR_OK;
}

CUresult weir__mapped_release(const struct weir_block_engine *a,
                              CUmemGenericAllocationHandle handle) {
    struct weir_mapped_range *g = a->range;

    weir__mapped_files_close(&g->files, handle);
    return a->e.device->driver->cuMemRelease(handle);
}
