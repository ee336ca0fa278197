/* SPDX-License-Identifier: MIT */
/* mapped_shadows.c: places where a physical allocation is still mapped after it has left them.
 *
 * What: a shadow lies in an unmapped range, and nothing is placed there.  Its users were not completed when the physical allocation
 * moved ("Virtual aliasing" in the CUDA programming guide), or the driver did not unmap it.
 */
#include <string.h>

#include "engine/mapped_state.h"

struct weir_mapped_alias *weir__mapped_add_alias(struct weir_block_engine *a,
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

/* A shadow in which the handle is mapped; NULL: there is none. */
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
        weir__mapped_add_alias(a, &h, 1);
    }
}

int weir__mapped_is_seen(const struct weir_block_engine *a, const struct weir_mapped_alias *s) {
    for (size_t i = s->tags; i-- > 0;)
        if (!weir__order_is_observed(&a->blocks.order, s->tag[i].stream, s->tag[i].sequence))
            return 0;
    return 1;
}

/* Unmaps a shadow whose users were completed, and gives its handle back if it was the last: nothing is left of
 * it then, NOWHERE and not last. */
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
