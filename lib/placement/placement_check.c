/* SPDX-License-Identifier: MIT */
/* placement_check.c: the invariants of a placement.
 */
#include "placement/placement_chunks.h"

#include <inttypes.h>

/* What the walk over all chunks adds up, to be compared with what is kept. */
struct striped {
    size_t chunks;
    size_t blocks;
    size_t used;
    size_t requested;
    size_t tagged;
    size_t settled; /* free chunks that are no unlisted chunks */
    size_t unlisted;
    size_t unmapped_ranges;
    size_t hollow;
    size_t total;
    size_t extent;
};

static int complain_of(FILE *complain, const char *what, uint64_t address) {
    if (complain != NULL)
        fprintf(complain, "placement: %s, at granule 0x%" PRIx64 "\n", what, address);
    return 0;
}

/* A live block: found by its start, as large as asked. */
static const char *check_block(const struct weir_placement *p, uint32_t id, struct striped *sum) {
    const struct weir__chunk *c = &p->all.chunk[id];

    sum->blocks++;
    sum->used += c->size;
    sum->requested += c->requested;
    if (block_find(p, c->address << p->shift) != id)
        return "a live block is not found by its start";
    if (c->requested == 0 || c->requested > c->size << p->shift)
        return "a live block is smaller than was asked, or nothing was";
    return NULL;
}

/* A free chunk: in the one right set, and not beside one that it should have joined. */
static const char *check_free(struct weir_placement *p, uint32_t id, struct striped *sum) {
    const struct weir__chunk *c = &p->all.chunk[id];
    unsigned kind = p->all.kind[id] & ~(unsigned)UNLISTED;
    const struct weir_placement_stream *s = NULL;
    uint32_t value;

    sum->tagged += kind == TAGGED ? c->size : 0;
    if (kind == TAGGED && (!p->several || c->sequence == 0))
        return "a chunk is tagged that should not be";
    if (kind == CLEAN && p->several && c->sequence != 0)
        return "a clean chunk has a sequence";
    if ((p->all.kind[id] & UNLISTED) != 0) {
        sum->unlisted++;
        return NULL;
    }
    sum->settled++;
    if (kind == TAGGED) {
        s = stream_find(p, p->all.tag[id].stream);
        if (s == NULL)
            return "a chunk is tagged by a stream that is not known";
    }
    if (!weir__bestfit_find(s == NULL ? &p->clean : &s->fit, key_of(c), &value) || value != id)
        return "a free chunk is not in its set";
    if ((p->all.kind[c->next] & UNLISTED) == 0 && chunk_joins(p, c->next, s))
        return "two free chunks were not joined";
    return NULL;
}

/* An unmapped range: not beside another. */
static const char *check_unmapped(const struct weir_placement *p, uint32_t id,
                                  struct striped *sum) {
    const struct weir__chunk *c = &p->all.chunk[id];

    sum->unmapped_ranges++;
    sum->hollow += c->size;
    if (weir__chunks_find(&p->all, c->address, UNMAPPED) != id)
        return "an unmapped range is not found by its start";
    return p->all.kind[c->next] == UNMAPPED ? "two unmapped ranges were not joined" : NULL;
}

/* The ring of one region tiles it. */
static int check_region(struct weir_placement *p, const struct weir_placement_region *r,
                        struct striped *sum, FILE *complain) {
    uint64_t address = r->base;
    uint32_t last = r->border;

    for (uint32_t id = p->all.chunk[r->border].next; id != r->border; id = p->all.chunk[id].next) {
        const struct weir__chunk *c = &p->all.chunk[id];
        const char *wrong = NULL;

        if (c->address != address || c->size == 0 || c->prev != last)
            return complain_of(complain, "chunks do not tile their region", c->address);
        if (p->all.kind[id] == LIVE) {
            wrong = check_block(p, id, sum);
            if (c->address + c->size > (p->several ? r->high : r->used))
                wrong = "a block lies above the mark";
        } else if (p->all.kind[id] == UNMAPPED) {
            wrong = check_unmapped(p, id, sum);
        } else if (chunk_is(p, id, CLEAN) || chunk_is(p, id, TAGGED)) {
            wrong = check_free(p, id, sum);
        } else {
            wrong = "a chunk is neither live nor free";
        }
        if (wrong != NULL)
            return complain_of(complain, wrong, c->address);
        address += c->size;
        last = id;
        sum->chunks++;
    }
    if (address != r->end || p->all.chunk[r->border].prev != last ||
        p->all.chunk[r->border].size != 0 || p->all.kind[r->border] != BORDER ||
        &p->region[p->all.chunk[r->border].region] != r ||
        p->all.chunk[r->border].address != r->end || r->high < r->base || r->high > r->end)
        return complain_of(complain, "a region's end is wrong", r->end);
    sum->total += r->end - r->base;
    sum->extent += r->high - r->base;
    return 1;
}

/* The list of a stream is in order and has exactly what its set has. */
static const char *check_stream(const struct weir_placement *p,
                                const struct weir_placement_stream *s) {
    size_t length = 0;
    uint32_t older = 0;
    uint64_t sequence = s->step.observed + 1;

    for (uint32_t id = s->oldest; id != 0; id = p->all.tag[id].newer) {
        if (p->all.kind[id] != TAGGED || p->all.tag[id].stream != s->id ||
            p->all.tag[id].older != older)
            return "a stream's list is broken";
        if (p->all.chunk[id].sequence < sequence || p->all.chunk[id].sequence > s->step.last)
            return "a stream's list is out of order";
        sequence = p->all.chunk[id].sequence;
        older = id;
        length++;
    }
    if (s->newest != older || length != weir__bestfit_count(&s->fit) ||
        !weir__bestfit_check(&s->fit))
        return "a stream's list and set differ, or the set is broken";
    return NULL;
}

static const char *check_sums(const struct weir_placement *p, const struct striped *sum) {
    size_t settled = weir__bestfit_count(&p->clean);

    for (size_t i = 0; i < p->stream_slots; i++) {
        const char *wrong = NULL;

        if (p->streams[i] != NULL) {
            settled += weir__bestfit_count(&p->streams[i]->fit);
            wrong = check_stream(p, p->streams[i]);
        }
        if (wrong != NULL)
            return wrong;
    }
    if (!weir__bestfit_check(&p->clean))
        return "the set of clean chunks is broken";
    if (settled != sum->settled || p->unlisted != sum->unlisted)
        return "the sets hold chunks that are not there";
    if (chunk_count(p) != sum->chunks || p->blocks != sum->blocks || p->used != sum->used ||
        p->requested != sum->requested || p->tagged != sum->tagged || p->total != sum->total ||
        p->extent != sum->extent || p->unmapped_ranges != sum->unmapped_ranges ||
        p->hollow != sum->hollow)
        return "a sum is wrong";
    if (!weir__chunks_check(&p->all))
        return "the table of records is broken";
    if (p->all.room < p->regions)
        return "there is no room for more records";
    return NULL;
}

int weir__placement_check(const struct weir_placement *constant, FILE *complain) {
    struct weir_placement view = *unparked(constant); /* looking up a stream notes it as recent */
    struct striped sum = {0};
    uint64_t end = 0;
    const char *wrong;

    for (size_t i = 0; i < view.regions; i++) {
        const struct weir_placement_region *r = &view.region[view.by_base[i]];

        if (r->base < end || r->base >= r->end)
            return complain_of(complain, "regions overlap or are out of order", r->base);
        if (!check_region(&view, r, &sum, complain))
            return 0;
        end = r->end;
    }
    wrong = check_sums(&view, &sum);
    return wrong == NULL ? 1 : complain_of(complain, wrong, end);
}
