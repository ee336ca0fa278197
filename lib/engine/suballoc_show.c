/* SPDX-License-Identifier: MIT */
/* suballoc_show.c: what there is: live blocks, idle memory and regions. */
#include "engine/suballoc_state.h"

#include "base/hostmem.h"
#include "base/size.h"

/* Of memory, what there is a chunk for beforehand; and how many at most, which nearly all first iterations do with.  More
 * are made on demand. */
#define STOCK_PART ((size_t)16 << 20)

enum { STOCK_MOST = 400 };

/* The live block around an address, and its bytes as asked: 1, or 0 if none is; linear in what its region
 * is cut into, but for its first byte. */
static int find_around(struct weir_suballoc *s, CUdeviceptr address, struct weir_extent *out) {
    const struct weir_suballoc_region *r = region_of(s, address);
    struct weir_placement_block found;
    int result = find(s, address, &found);

    if (result != WEIR_PLACEMENT_OK && result != WEIR_PLACEMENT_INTERIOR)
        return 0;
    *out = (struct weir_extent){.base = r->base + (found.address - r->place),
                                .bytes = found.requested};
    return address - out->base < out->bytes && !is_pending(s, out->base);
}

struct telling {
    struct weir_suballoc *blocks;
    struct weir_survey *out;
    uint64_t id;
    uint64_t end, run; /* free memory side by side: where it ends so far, and its bytes */
};

static CUdeviceptr address_at(struct weir_suballoc *s, uint64_t place) {
    const struct weir_suballoc_region *r = region_at(s, place);

    return r->base + (place - r->place);
}

static int tell_of_span(void *context, const struct weir_placement_span *span) {
    struct telling *t = context;
    int pending = span->live && t->blocks->pending &&
                  is_pending(t->blocks, address_at(t->blocks, span->address));

    if (span->unmapped || (span->live && !pending))
        return WEIR_PLACEMENT_GO_ON;
    t->run = (span->address == t->end ? t->run : 0) + span->size;
    t->end = span->address + span->size;
    if (t->run > t->out->largest_free_at_rest)
        t->out->largest_free_at_rest = t->run;
    if (pending)
        weir__engine_pends(t->out, 0, span->size);
    else if (span->sequence != 0 && span->stream != t->id)
        weir__engine_pends(t->out, span->stream == QUARANTINE ? 0 : span->stream, span->size);
    return WEIR_PLACEMENT_GO_ON;
}

static void survey_idle(struct weir_suballoc *s, struct weir_survey *out) {
    struct telling t = {.blocks = s, .out = out, .id = out->id};
    size_t largest = weir__suballoc_largest(s, out->id); /* looks at what is done, too */

    if (largest > out->largest_free)
        out->largest_free = largest;
    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++) {
        t.end = t.run = 0;
        weir__placement_walk(s->placement[i], tell_of_span, &t);
    }
}

void weir__suballoc_survey_for(struct weir_suballoc *s, struct weir_survey *out) {
    if (out->what & WEIR_SURVEY_IDLE)
        survey_idle(s, out);
    if (out->what & WEIR_SURVEY_PENDING) {
        weir__suballoc_look_around(s);
        out->frees.silent = s->order.several ? s->order.silent_streams : 0;
        out->frees.waiting = s->order.waiting_marks + s->pending_blocks.count;
    }
}

void weir__suballoc_stock(struct weir_suballoc *s, int kinds, size_t bytes) {
    size_t chunks = (size_t)weir__size_smaller(bytes / STOCK_PART, STOCK_MOST);

    for (int i = 0; i < kinds && s->placement[i]; i++)
        weir__placement_stock(s->placement[i], chunks);
}

struct visiting {
    struct weir_suballoc *blocks;
    const struct weir_visit *visit;
    int count;
};

static int visit_live(void *context, const struct weir_placement_span *span) {
    struct visiting *v = context;
    struct weir_extent block = {.bytes = span->requested};

    if (!span->live)
        return WEIR_PLACEMENT_GO_ON;
    block.base = address_at(v->blocks, span->address);
    if (!is_pending(v->blocks, block.base))
        v->count += weir__engine_show(v->visit, &block, 1);
    return WEIR_PLACEMENT_GO_ON;
}

static int show_live(struct weir_suballoc *s, const struct weir_visit *visit) {
    struct visiting v = {.blocks = s, .visit = visit};

    for (int i = 0; i < WEIR_SUBALLOC_KINDS && s->placement[i]; i++)
        weir__placement_walk(s->placement[i], visit_live, &v);
    return v.count;
}

static int show_region(const struct weir_suballoc_region *r, const struct weir_visit *visit) {
    return weir__engine_show(visit, &(struct weir_extent){.base = r->base, .bytes = r->bytes}, 1);
}

int weir__suballoc_show(struct weir_suballoc *s, const struct weir_visit *visit) {
    const struct weir_suballoc_region *r;
    struct weir_extent block;
    int count = 0;

    switch (visit->what) {
    case WEIR_VISIT_BLOCKS:
        return show_live(s, visit);
    case WEIR_VISIT_BLOCK_AT:
        return find_around(s, visit->address, &block) ? weir__engine_show(visit, &block, 1) : 0;
    case WEIR_VISIT_PIECE_AT:
        r = region_of(s, visit->address);
        return r ? show_region(r, visit) : 0;
    case WEIR_VISIT_WHOLES:
    case WEIR_VISIT_APART:
        for (size_t i = 0; i < s->region_count; i++)
            if (visit->what == WEIR_VISIT_WHOLES || s->regions[i].kind == WEIR_SUBALLOC_APART)
                count += show_region(&s->regions[i], visit);
        return count;
    default: /* unreached: the engine's own */
        return -1;
    }
}
