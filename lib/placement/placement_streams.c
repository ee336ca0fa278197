/* SPDX-License-Identifier: MIT */
/* placement_streams.c: the streams that have freed memory, and up to which sequence each was observed.
 *
 * Until a second stream is seen there is no record of a stream.  Then every free chunk gets its tag, and tags count
 * from there on.
 *
 * The table of streams uses open addressing, and is at most half full.  A stream without tagged chunks is forgotten
 * when the table grows.
 */
#include "placement/placement_state.h"

#include <string.h>

#define FIRST_STREAMS ((size_t)16)

/* ---- the table ---- */

static struct weir_placement_stream *stream_new(struct weir__hostmem *host,
                                                struct weir__bestfit_pool *pool, uint64_t id) {
    struct weir_placement_stream *s = weir__hostmem_resize(host, NULL, 0, sizeof *s);

    if (s != NULL) {
        memset(s, 0, sizeof *s);
        s->id = id;
        weir__bestfit_init(&s->fit, pool);
    }
    return s;
}

void weir__placement_stream_drop(struct weir_placement *p, struct weir_placement_stream *s) {
    weir__bestfit_drop(&s->fit);
    weir__hostmem_resize(&p->host, s, sizeof *s, 0);
}

/* Makes room for one more stream.  Forgets streams without tagged chunks, so that the table of a program that keeps
 * making streams does not grow for ever.  Returns 1 on success, 0 if there is no host memory. */
static int streams_reserve(struct weir_placement *p) {
    struct weir_placement_stream **old = p->streams;
    size_t old_slots = p->stream_slots;
    size_t kept = 0;
    size_t slots = FIRST_STREAMS;

    if (p->stream_count < old_slots / 2)
        return 1;
    for (size_t i = 0; i < old_slots; i++)
        kept += old[i] != NULL && old[i]->oldest != 0;
    while (slots < 4 * (kept + 1))
        slots *= 2;
    p->streams = weir__hostmem_resize(&p->host, NULL, 0, slots * sizeof *p->streams);
    if (p->streams == NULL) {
        p->streams = old;
        return 0;
    }
    memset(p->streams, 0, slots * sizeof *p->streams);
    p->stream_slots = slots;
    p->stream_count = kept;
    p->recent = NULL;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i] != NULL && old[i]->oldest == 0)
            weir__placement_stream_drop(p, old[i]);
        else if (old[i] != NULL)
            p->streams[stream_slot(p, old[i]->id)] = old[i];
    weir__hostmem_resize(&p->host, old, old_slots * sizeof *old, 0);
    return 1;
}

struct weir_placement_stream *weir__placement_stream_add(struct weir_placement *p, uint64_t id) {
    struct weir_placement_stream *s;

    if (!streams_reserve(p))
        return NULL;
    s = stream_new(&p->host, &p->pool, id);
    if (s != NULL) {
        p->streams[stream_slot(p, id)] = s;
        p->stream_count++;
        p->recent = s;
    }
    return s;
}

/* ---- the second stream ---- */

static uint32_t list_merge(struct weir_placement *p, uint32_t a, uint32_t b) {
    uint32_t first = 0;
    uint32_t *end = &first;

    while (a != 0 && b != 0) {
        uint32_t *from = p->all.chunk[b].sequence < p->all.chunk[a].sequence ? &b : &a;

        *end = *from;
        end = &p->all.tag[*from].newer;
        *from = *end;
    }
    *end = a != 0 ? a : b;
    return first;
}

/* Sorts the chain that starts at `id`, linked by `newer`, by sequence.  Returns its first chunk. */
static uint32_t list_sort(struct weir_placement *p, uint32_t id) {
    uint32_t run[32] = {0}; /* run[i] is 0 or a sorted chain of 2^i */
    uint32_t all = 0;

    while (id != 0) {
        uint32_t chain = id;
        unsigned i = 0;

        id = p->all.tag[id].newer;
        p->all.tag[chain].newer = 0;
        for (; run[i] != 0; i++) {
            chain = list_merge(p, run[i], chain);
            run[i] = 0;
        }
        run[i] = chain;
    }
    for (unsigned i = 0; i < 32; i++)
        all = list_merge(p, run[i], all);
    return all;
}

/* Cuts the memory above the mark of `r`, which was never used, off from the memory below, and frees it for all streams.
 * A free chunk that starts above the mark may have a sequence, from a block that it had joined and that was allocated
 * again. */
static void cut_at_mark(struct weir_placement *p, const struct weir_placement_region *r) {
    for (uint32_t id = p->all.chunk[r->border].prev; id != r->border; id = p->all.chunk[id].prev) {
        struct weir__chunk *c = &p->all.chunk[id];
        uint32_t rest;

        if (c->address + c->size <= r->used)
            return;
        if (!chunk_is(p, id, CLEAN) || c->sequence <= p->step.observed)
            continue;
        if (r->used <= c->address) {
            c->sequence = 0;
            continue;
        }
        rest = weir__placement_cut(p, id, r->used, CLEAN);
        p->all.chunk[rest].sequence = 0;
        return;
    }
}

/* Makes every free chunk unlisted, with its tag.  Returns the first tagged chunk, from which `newer` links all in no
 * order. */
static uint32_t unsettle_all(struct weir_placement *p, uint64_t stream) {
    uint32_t chain = 0;

    p->unlisted = 0;
    for (size_t i = 0; i < p->regions; i++) {
        const struct weir_placement_region *r = &p->region[p->by_base[i]];
        cut_at_mark(p, r);
        for (uint32_t id = p->all.chunk[r->border].next; id != r->border;
             id = p->all.chunk[id].next) {
            struct weir__chunk *c = &p->all.chunk[id];

            if (!chunk_is(p, id, CLEAN))
                continue;
            p->unlisted++;
            p->all.kind[id] = CLEAN | UNLISTED;
            if (c->sequence <= p->step.observed) {
                c->sequence = 0;
                continue;
            }
            p->all.kind[id] = TAGGED | UNLISTED;
            p->all.tag[id] = (struct weir__chunk_tag){.stream = stream, .newer = chain};
            p->tagged += c->size;
            chain = id;
        }
    }
    return chain;
}

/* Makes tags count from here on.  Linear in the number of chunks, once in a placement's life. */
static void second_stream(struct weir_placement *p) {
    uint64_t first = p->only;
    struct weir_placement_stream *s;
    uint32_t chain;

    p->several = 1;
    p->only = 0;
    if (first == 0)
        return;
    weir__bestfit_drop(&p->clean);
    chain = list_sort(p, unsettle_all(p, first));
    s = stream_make(p, first);
    if (s != NULL)
        s->step = p->step;
    while (s != NULL && chain != 0) {
        uint32_t id = chain;

        chain = p->all.tag[id].newer;
        p->unlisted--;
        chunk_settle(p, s, id);
    }
    weir__placement_unlisted_adopt(p);
}

void weir__placement_stream_note(struct weir_placement *p, uint64_t stream) {
    if (p->several)
        return;
    if (p->only == 0 && stream != 0)
        p->only = stream;
    else
        second_stream(p);
}

void weir__placement_part(struct weir_placement *p, uint64_t stream) {
    struct weir_placement_stream *s = own_of(p, stream);

    if (s != NULL)
        s->parted = s->step.last;
}

/* ---- observe ---- */

static void step_observe(struct weir_placement_pace *step, uint64_t sequence) {
    /* later frees are not observed */
    if (sequence > step->last)
        sequence = step->last;
    if (sequence > step->observed)
        step->observed = sequence;
}

/* Frees a tagged chunk of `s`, or an unlisted one if `s` is NULL, for all streams ("clean").  Returns its record. */
static uint32_t chunk_clean(struct weir_placement *p, struct weir_placement_stream *s,
                            uint32_t id) {
    chunk_leave(p, s, id);
    p->tagged -= p->all.chunk[id].size;
    p->all.chunk[id].sequence = 0;
    return weir__placement_settle_clean(p, id);
}

/* Makes unlisted chunks that the stream freed up to `sequence` usable by all streams.  A chunk is unlisted if it is in
 * no set because host memory was lacking; even the stream may lack a record then. */
static void observe_unlisted(struct weir_placement *p, uint64_t stream, uint64_t sequence) {
    for (size_t i = 0; i < p->regions; i++) {
        uint32_t border = p->region[p->by_base[i]].border;
        uint32_t id = p->all.chunk[border].next;

        for (; id != border; id = p->all.chunk[id].next)
            if (p->all.kind[id] == (TAGGED | UNLISTED) && p->all.tag[id].stream == stream &&
                p->all.chunk[id].sequence <= sequence)
                id = chunk_clean(p, NULL, id);
    }
}

void weir__placement_observe(struct weir_placement *p, uint64_t stream, uint64_t sequence) {
    struct weir_placement_stream *s;

    if (!p->several) {
        if (stream == p->only)
            step_observe(&p->step, sequence);
        return;
    }
    unpark(p);
    if (p->unlisted > 0)
        observe_unlisted(p, stream, sequence);
    s = stream_find(p, stream);
    if (s == NULL)
        return;
    step_observe(&s->step, sequence);
    while (s->oldest != 0 && p->all.chunk[s->oldest].sequence <= s->step.observed)
        chunk_clean(p, s, s->oldest);
}
