/* SPDX-License-Identifier: MIT */
/* placement_figures.c: the figures of a placement, and walks over its chunks. */
#include "placement/placement_state.h"

/* Returns the size of the largest chunk of a set, in granules. */
static uint64_t largest_of(const struct weir__bestfit *fit) {
    uint64_t key = weir__bestfit_last(fit);

    return key == WEIR__BESTFIT_NONE ? 0 : weir__bestfit_size(key);
}

size_t weir__placement_largest(struct weir_placement *p, uint64_t stream) {
    const struct weir_placement_stream *own;
    uint64_t clean, tagged = 0;

    unpark(p);
    own = own_of(p, stream);
    clean = largest_of(&p->clean);
    if (own != NULL)
        tagged = largest_of(&own->fit);
    return (clean > tagged ? clean : tagged) << p->shift;
}

/* Returns the size of the largest free chunk, in granules. */
static uint64_t largest_free(const struct weir_placement *p) {
    uint64_t largest = largest_of(&p->clean);

    for (size_t i = 0; i < p->stream_slots; i++) {
        uint64_t tagged = p->streams[i] == NULL ? 0 : largest_of(&p->streams[i]->fit);

        if (tagged > largest)
            largest = tagged;
    }
    for (size_t i = 0; i < p->regions && p->unlisted > 0; i++) {
        uint32_t border = p->region[p->by_base[i]].border;

        for (uint32_t id = p->all.chunk[border].next; id != border; id = p->all.chunk[id].next)
            if ((p->all.kind[id] & UNLISTED) != 0 && p->all.chunk[id].size > largest)
                largest = p->all.chunk[id].size;
    }
    return largest;
}

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out) {
    size_t tagged = unparked(p)->tagged;

    if (!p->several && p->step.last > p->step.observed)
        tagged = (size_t)weir__size_smaller(p->extent, p->total - p->hollow) - p->used;
    out->regions = p->regions;
    out->total = (p->total - p->hollow) << p->shift;
    out->used = p->used << p->shift;
    out->requested = p->requested;
    out->blocks = p->blocks;
    out->free_chunks = chunk_count(p) - p->blocks - p->unmapped_ranges;
    out->largest_free = largest_free(p) << p->shift;
    out->unobserved = tagged << p->shift;
    out->extent = p->extent << p->shift;
    out->host_bytes = p->host.bytes;
}

static struct weir_placement_span span_of(const struct weir_placement *p, uint32_t id) {
    const struct weir__chunk *c = &p->all.chunk[id];
    struct weir_placement_span span = {.address = c->address << p->shift,
                                       .size = c->size << p->shift};

    if (p->all.kind[id] == UNMAPPED) {
        span.unmapped = 1;
    } else if (p->all.kind[id] == LIVE) {
        span.live = 1;
        span.requested = c->requested;
    } else if (p->several ? chunk_is(p, id, TAGGED) : c->sequence > p->step.observed) {
        span.stream = p->several ? p->all.tag[id].stream : p->only;
        span.sequence = c->sequence;
    }
    return span;
}

void weir__placement_walk(const struct weir_placement *p,
                          int (*visit)(void *context, const struct weir_placement_span *span),
                          void *context) {
    unparked(p);
    for (size_t i = 0; i < p->regions; i++) {
        uint32_t border = p->region[p->by_base[i]].border;

        for (uint32_t id = p->all.chunk[border].next; id != border; id = p->all.chunk[id].next) {
            struct weir_placement_span span = span_of(p, id);
            int told = visit(context, &span);

            if (told == WEIR_PLACEMENT_STOP)
                return;
            if (told == WEIR_PLACEMENT_NEXT_REGION)
                break;
        }
    }
}

void weir__placement_walk_free(struct weir_placement *p,
                               void (*visit)(void *context, const struct weir_placement_span *span),
                               void *context) {
    struct weir__bestfit_hit hit;

    unpark(p);
    for (hit = weir__bestfit_from(&p->clean, 0); hit.key != WEIR__BESTFIT_NONE;
         hit = weir__bestfit_from(&p->clean, hit.key + 1)) {
        const struct weir_placement_span span = span_of(p, hit.value);

        visit(context, &span);
    }
    for (size_t i = 0; i < p->stream_slots; i++) {
        uint32_t id = p->streams[i] != NULL ? p->streams[i]->oldest : 0;

        for (; id != 0; id = p->all.tag[id].newer) {
            const struct weir_placement_span span = span_of(p, id);

            visit(context, &span);
        }
    }
}
