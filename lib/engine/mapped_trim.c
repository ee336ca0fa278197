/* SPDX-License-Identifier: MIT */
/* mapped_trim.c: idle physical allocations go back to the device.
 */
#include "engine/mapped_survey.h"

/* 1 if a handle is idle that was not completed.  The survey is of now. */
static int has_unseen(const struct weir_mapped_range *g) {
    size_t i = 0;

    for (size_t at = 0; at < g->handle_count; at++) {
        const struct weir_mapped_handle *h = &g->handles[at];
        size_t unseen;

        while (g->pieces[i].base + g->pieces[i].bytes <= h->base)
            i++;
        if (weir__mapped_what_holds(g, i, h, &unseen) != TAKEN && unseen > 0)
            return 1;
    }
    return 0;
}

/* 1 if a handle went with its old place, but that was not completed. */
static int has_unseen_alias(const struct weir_block_engine *a) {
    const struct weir_mapped_range *g = a->range;

    for (size_t at = 0; at < g->alias_count; at++)
        if (g->shadows[at].last && !weir__mapped_is_seen(a, &g->shadows[at]))
            return 1;
    return 0;
}

/* Gives idle handles back, the highest first, until at most `keep` bytes are left.  *unseen: 1 if more would be idle
 * once it was completed, else as it was. */
static weir_status give_idle(struct weir_block_engine *a, size_t keep, int *unseen) {
    struct weir_mapped_range *g = a->range;
    const struct weir_mapped_window none = {0};
    struct weir_driver_scope scope;
    weir_status status = WEIR_OK;
    struct weir_mapped_handle h;
    CUresult result;

    weir__mapped_lift_shadows(a, 0);
    if (!weir__mapped_survey(a, 0))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    *unseen |= has_unseen(g);
    weir__mapped_find_spares(g, &none, CLEAN);
    if (!weir__mapped_make_place(g, 0, g->spare_count))
        return weir__without_driver(WEIR_E_HOST_MEMORY);
    result = weir__driver_enter(a->e.device->driver, a->e.device->context, &scope);
    if (result != CUDA_SUCCESS)
        return weir__device_status(a->e.device, result);
    for (size_t i = g->spare_count; i-- > 0 && status == WEIR_OK;) {
        const struct weir_mapped_spare *s = &g->spares[i];

        if (weir__blocks_reserve(a) < keep + s->bytes)
            continue;
        status = weir__mapped_lift(a, g->pieces[s->piece].base, s->base, &h);
        if (status == WEIR_OK)
            weir__mapped_release_handle(a, h);
    }
    *unseen |= has_unseen_alias(a);
    weir__driver_leave(a->e.device->driver, &scope);
    return status;
}

weir_status weir__mapped_shrink(struct weir_block_engine *a, struct weir_trim *trim) {
    int unseen = 0;
    weir_status status = give_idle(a, trim->keep, &unseen);

    if (status != WEIR_OK || weir__blocks_reserve(a) <= trim->keep || !unseen)
        return status;
    status = weir__device_status(a->e.device, weir__suballoc_wait_beside(&a->blocks, &a->lock, 1));
    return status == WEIR_OK ? give_idle(a, trim->keep, &unseen) : status;
}

weir_status weir__mapped_shed(struct weir_block_engine *a, struct weir_trim *trim) {
    int unseen = 0;

    (void)give_idle(a, trim->keep, &unseen);
    return WEIR_OK;
}
