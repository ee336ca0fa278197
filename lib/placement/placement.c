/* SPDX-License-Identifier: MIT */
/* placement.c: see placement.h, and placement_state.h for the records.
 *
 * A take reserves all its host memory before it changes anything.  A give needs host memory only for nodes of a set, or
 * for a stream seen first.  If there is none, the chunk becomes UNLISTED.  The next take puts it into its set, or fails
 * for lack of memory; the next walk puts it there if it can.
 *
 * One record for each region stays in reserve for the second stream, which a free may bring.  No two unmapped ranges
 * are neighbours.
 *
 * No index leads from an address inside a block to the block: no ordinary path needs it, and each would have to
 * maintain it.  A walk over the region finds the block.
 *
 * This file must not know drivers, locks or the memory behind an address.
 */
#include "placement/placement_state.h"

#include <string.h>

#include "base/bounds.h"
#include "base/size.h"

#define STREAM_FACTOR UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio */
#define FIRST_STREAMS ((size_t)16)
#define FIRST_RECORDS ((size_t)32)

/* ---- a placement ---- */

int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out) {
    struct weir__hostmem host = {.resize = rule->resize, .context = rule->context};
    struct weir_placement *p;

    if (rule->granularity == 0 || (rule->granularity & (rule->granularity - 1)) != 0 ||
        rule->split_waste == 0)
        return WEIR_PLACEMENT_INVALID;
    p = weir__hostmem_resize(&host, NULL, 0, sizeof *p);
    if (p == NULL)
        return WEIR_PLACEMENT_NO_MEMORY;
    memset(p, 0, sizeof *p);
    p->host = host;
    p->mask = rule->granularity - 1;
    p->shift = (unsigned)__builtin_ctzll(rule->granularity);
    p->waste = (rule->split_waste - 1) / rule->granularity + 1;
    p->own_first = rule->own_first;
    if (!weir__chunks_init(&p->all, &p->host, FIRST_RECORDS)) {
        weir__hostmem_resize(&host, p, 0, 0);
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    weir__bestfit_pool_init(&p->pool, &p->host);
    weir__bestfit_init(&p->clean, &p->pool);
    *out = p;
    return WEIR_PLACEMENT_OK;
}

static void stream_drop(struct weir_placement *p, struct weir_placement_stream *s) {
    weir__bestfit_drop(&s->fit);
    weir__hostmem_resize(&p->host, s, sizeof *s, 0);
}

void weir__placement_destroy(struct weir_placement *p) {
    struct weir__hostmem host;

    if (p == NULL)
        return;
    for (size_t i = 0; i < p->stream_slots; i++)
        if (p->streams[i] != NULL)
            stream_drop(p, p->streams[i]);
    weir__bestfit_drop(&p->clean);
    weir__bestfit_pool_drop(&p->pool);
    host = p->host;
    weir__hostmem_resize(&host, p->streams, p->stream_slots * sizeof *p->streams, 0);
    weir__chunks_drop(&p->all, &host);
    weir__hostmem_resize(&host, p->region, 0, 0);
    weir__hostmem_resize(&host, p, 0, 0);
}

/* ---- the table of streams ---- */

static size_t stream_slot(const struct weir_placement *p, uint64_t id) {
    size_t mask = p->stream_slots - 1;
    size_t i = (size_t)(id * STREAM_FACTOR >> 32) & mask;

    while (p->streams[i] != NULL && p->streams[i]->id != id)
        i = (i + 1) & mask;
    return i;
}

struct weir_placement_stream *weir__placement_stream(struct weir_placement *p, uint64_t id) {
    if (p->recent != NULL && p->recent_id == id)
        return p->recent;
    if (p->stream_slots == 0 || p->streams[stream_slot(p, id)] == NULL)
        return NULL;
    p->recent = p->streams[stream_slot(p, id)];
    p->recent_id = id;
    return p->recent;
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
            stream_drop(p, old[i]);
        else if (old[i] != NULL)
            p->streams[stream_slot(p, old[i]->id)] = old[i];
    weir__hostmem_resize(&p->host, old, old_slots * sizeof *old, 0);
    return 1;
}

/* Finds the record of a stream, or adds it.  Returns NULL if there is no host memory. */
static struct weir_placement_stream *stream_make(struct weir_placement *p, uint64_t id) {
    struct weir_placement_stream *s = weir__placement_stream(p, id);

    if (s != NULL)
        return s;
    if (!streams_reserve(p))
        return NULL;
    s = weir__hostmem_resize(&p->host, NULL, 0, sizeof *s);
    if (s == NULL)
        return NULL;
    memset(s, 0, sizeof *s);
    s->id = id;
    weir__bestfit_init(&s->fit, &p->pool);
    p->streams[stream_slot(p, id)] = s;
    p->stream_count++;
    p->recent = s;
    p->recent_id = id;
    return s;
}

/* Returns the stream whose tagged chunks the stream may use at once, or NULL if it has none. */
static struct weir_placement_stream *own_of(struct weir_placement *p, uint64_t stream) {
    return p->several && stream != 0 ? weir__placement_stream(p, stream) : NULL;
}

/* Returns the sequence that a free gets, or 0 if the stream was already observed up to it.  A free that comes late
 * counts as the latest, so that lists stay in order. */
static uint64_t step_admit(struct weir_placement_pace *step, uint64_t sequence) {
    sequence += sequence == 0;
    if (sequence <= step->observed)
        return 0;
    if (sequence < step->last)
        sequence = step->last;
    step->last = sequence;
    return sequence;
}

/* ---- lists of tagged chunks ---- */

/* Inserts a chunk into the stream's list by its sequence.  Only the rest of a chunk that was cut belongs before the
 * end. */
static void list_insert(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id) {
    uint32_t older = s->newest;
    uint32_t newer = 0;

    while (older != 0 && p->all.chunk[older].sequence > p->all.chunk[id].sequence) {
        newer = older;
        older = p->all.tag[older].older;
    }
    p->all.tag[id] = (struct weir__chunk_tag){.stream = s->id, .older = older, .newer = newer};
    *(older != 0 ? &p->all.tag[older].newer : &s->oldest) = id;
    *(newer != 0 ? &p->all.tag[newer].older : &s->newest) = id;
}

static void list_remove(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id) {
    struct weir__chunk_tag *t = &p->all.tag[id];

    *(t->older != 0 ? &p->all.tag[t->older].newer : &s->oldest) = t->newer;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &s->newest) = t->older;
}

/* Puts `id` into the list in place of `old`. */
static void list_replace(struct weir_placement *p, struct weir_placement_stream *s, uint32_t old,
                         uint32_t id) {
    struct weir__chunk_tag *t = &p->all.tag[id];

    *t = p->all.tag[old];
    *(t->older != 0 ? &p->all.tag[t->older].newer : &s->oldest) = id;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &s->newest) = id;
}

/* ---- free chunks ---- */

static struct weir__bestfit *set_of(struct weir_placement *p, struct weir_placement_stream *s) {
    return s == NULL ? &p->clean : &s->fit;
}

/* Removes a free chunk that is about to change from its set, and from the list of `s` unless `s` is NULL. */
static void chunk_leave(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id) {
    weir__bestfit_erase(set_of(p, s), key_of(&p->all.chunk[id]));
    if (s != NULL)
        list_remove(p, s, id);
}

/* Joins `right` to its neighbour `left`, with the later of both sequences. */
static void chunk_join(struct weir_placement *p, uint32_t left, uint32_t right) {
    struct weir__chunk *l = &p->all.chunk[left];
    struct weir__chunk *r = &p->all.chunk[right];

    l->size += r->size;
    l->next = r->next;
    p->all.chunk[r->next].prev = left;
    l->sequence = l->sequence > r->sequence ? l->sequence : r->sequence;
    weir__chunks_remove(&p->all, right);
}

/* Keeps a free chunk out of all sets and lists, since there is no host memory. */
static void chunk_unlist(struct weir_placement *p, uint32_t id, uint64_t stream) {
    p->all.kind[id] = UNLISTED;
    p->all.tag[id].stream = stream;
    p->unlisted++;
}

/* Makes a chunk that is in no set and no list free, tagged by `s` or untagged if `s` is NULL, and joins it with its
 * neighbours.  Its sequence is set before.  Returns its record. */
static uint32_t settle(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id) {
    uint32_t prev = p->all.chunk[id].prev;
    uint32_t next = p->all.chunk[id].next;

    if (chunk_joins(p, next, id, s)) {
        chunk_leave(p, s, next);
        chunk_join(p, id, next);
    }
    if (chunk_joins(p, prev, id, s)) {
        chunk_leave(p, s, prev);
        chunk_join(p, prev, id);
        id = prev;
    }
    if (!weir__bestfit_insert(set_of(p, s), key_of(&p->all.chunk[id]), id)) {
        chunk_unlist(p, id, s == NULL ? 0 : s->id);
        return id;
    }
    p->all.kind[id] = s == NULL ? CLEAN : TAGGED;
    if (s != NULL)
        list_insert(p, s, id);
    return id;
}

/* Puts the unlisted chunks into their sets.  Returns 1 on success, 0 if memory still lacks. */
static int list_unlisted(struct weir_placement *p) {
    for (size_t i = 0; i < p->regions && p->unlisted > 0; i++) {
        uint32_t border = p->region[i].border;

        for (uint32_t id = p->all.chunk[border].next; id != border; id = p->all.chunk[id].next) {
            struct weir__chunk *c = &p->all.chunk[id];
            struct weir_placement_stream *s = NULL;

            if (p->all.kind[id] != UNLISTED)
                continue;
            if (p->several && c->sequence != 0) {
                s = stream_make(p, p->all.tag[id].stream);
                if (s == NULL)
                    return 0;
                c->sequence = step_admit(&s->step, c->sequence);
            }
            p->unlisted--;
            id = settle(p, c->sequence == 0 ? NULL : s, id);
            if (p->all.kind[id] == UNLISTED)
                return 0;
        }
    }
    return 1;
}

/* Cuts the chunk `id`, which is in no set, at `address` inside it, and returns the record of the second part, of that
 * kind.  There is room for a record. */
static uint32_t chunk_cut(struct weir_placement *p, uint32_t id, uint64_t address, unsigned kind) {
    uint32_t rest = weir__chunks_add(&p->all, address);
    struct weir__chunk *c = &p->all.chunk[id];

    p->all.chunk[rest] = (struct weir__chunk){.address = address,
                                              .size = c->address + c->size - address,
                                              .prev = id,
                                              .next = c->next,
                                              .sequence = c->sequence};
    p->all.kind[rest] = (uint8_t)kind;
    p->all.chunk[c->next].prev = rest;
    c->next = rest;
    c->size = address - c->address;
    return rest;
}

/* Removes the part of one free chunk that lies in [first, end).  Returns the part's record. */
static uint32_t claim_part(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end) {
    const struct weir__chunk *c = &p->all.chunk[id];
    struct weir_placement_stream *s =
        p->all.kind[id] == TAGGED ? weir__placement_stream(p, p->all.tag[id].stream) : NULL;

    chunk_leave(p, s, id);
    p->all.kind[id] = LIVE;
    if (c->address + c->size > end)
        settle(p, s, chunk_cut(p, id, end, LIVE));
    if (c->address < first) {
        uint32_t rest = chunk_cut(p, id, first, LIVE);

        settle(p, s, id);
        id = rest;
    }
    return id;
}

/* Removes [first, end), in granules, from its free chunks, of which `id` is the first, and joins the removed parts.
 * The rest of these chunks keeps its tags.  There is room for a record on either side.  Returns a record that is in no
 * set. */
static uint32_t claim_run(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end) {
    id = claim_part(p, id, first, end);
    while (p->all.chunk[id].address + p->all.chunk[id].size < end)
        chunk_join(p, id, claim_part(p, p->all.chunk[id].next, first, end));
    return id;
}

/* ---- room for records ---- */

/* Updates every number of a record after the table has grown, from `old`. */
static void records_follow(struct weir_placement *p, const struct weir__chunks *old) {
#define MOVED(id) ((id) == 0 ? 0 : (uint32_t)old->chunk[id].address)
    for (size_t i = 0; i < p->stream_slots; i++) {
        struct weir_placement_stream *s = p->streams[i];

        if (s != NULL) {
            s->oldest = MOVED(s->oldest);
            s->newest = MOVED(s->newest);
        }
    }
    for (size_t i = 0; i < p->regions; i++) {
        struct weir_placement_region *r = &p->region[i];
        uint32_t id;

        r->border = MOVED(r->border);
        id = r->border;
        do {
            struct weir__chunk *c = &p->all.chunk[id];
            struct weir__chunk_tag *t = &p->all.tag[id];

            c->prev = MOVED(c->prev);
            c->next = MOVED(c->next);
            if (p->all.kind[id] == TAGGED) {
                t->older = MOVED(t->older);
                t->newer = MOVED(t->newer);
                weir__bestfit_set(&weir__placement_stream(p, t->stream)->fit, key_of(c), id);
            } else if (p->all.kind[id] == CLEAN) {
                weir__bestfit_set(&p->clean, key_of(c), id);
            }
            id = c->next;
        } while (id != r->border);
    }
#undef MOVED
}

/* Makes room for `room` more records.  After the table has grown, every record has another number.  Returns 1 on
 * success, 0 if there is no host memory. */
static int records_reserve(struct weir_placement *p, size_t room) {
    struct weir__chunks old;

    if (p->all.room >= room)
        return 1;
    if (!weir__chunks_grow(&p->all, &p->host, room, p->several, &old))
        return 0;
    records_follow(p, &old);
    weir__chunks_drop(&old, &p->host);
    return 1;
}

void weir__placement_stock(struct weir_placement *p, size_t chunks) {
    size_t used = weir__chunks_used(&p->all);

    if (chunks > used && !records_reserve(p, chunks - used))
        return;
    weir__hostmem_populate(p->all.memory, p->all.bytes);
    weir__bestfit_populate(&p->clean);
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
        int is_free = p->all.kind[id] == CLEAN || p->all.kind[id] == UNLISTED;

        if (c->address + c->size <= r->used)
            return;
        if (!is_free || c->sequence <= p->step.observed)
            continue;
        if (r->used > c->address) {
            p->all.chunk[chunk_cut(p, id, r->used, CLEAN)].sequence = 0;
            return;
        }
        c->sequence = 0;
    }
}

/* Makes all free chunks unlisted.  Returns a chain, linked by `newer`, of the chunks that wait for `stream`. */
static uint32_t unlist_all(struct weir_placement *p, uint64_t stream) {
    uint32_t chain = 0;

    p->unlisted = 0;
    for (size_t i = 0; i < p->regions; i++) {
        const struct weir_placement_region *r = &p->region[i];

        cut_at_mark(p, r);
        for (uint32_t id = p->all.chunk[r->border].next; id != r->border;
             id = p->all.chunk[id].next) {
            struct weir__chunk *c = &p->all.chunk[id];

            if (p->all.kind[id] != CLEAN && p->all.kind[id] != UNLISTED)
                continue;
            chunk_unlist(p, id, stream);
            if (c->sequence <= p->step.observed) {
                c->sequence = 0;
                continue;
            }
            p->all.tag[id].newer = chain;
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
    chain = list_sort(p, unlist_all(p, first));
    s = stream_make(p, first);
    if (s != NULL)
        s->step = p->step;
    while (s != NULL && chain != 0) {
        uint32_t id = chain;

        chain = p->all.tag[id].newer;
        p->unlisted--;
        settle(p, s, id);
    }
    list_unlisted(p);
}

/* Records that `stream` allocates or frees. */
static void stream_seen(struct weir_placement *p, uint64_t stream) {
    if ((stream == p->only && stream != 0) || p->several)
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
    sequence = weir__size_smaller(sequence, step->last); /* later frees are not observed */
    step->observed = weir__size_larger(step->observed, sequence);
}

/* Makes unlisted chunks that the stream freed up to `sequence` free for all streams.  Even the stream may lack a record
 * for want of host memory. */
static void observe_unlisted(struct weir_placement *p, uint64_t stream, uint64_t sequence) {
    for (size_t i = 0; i < p->regions; i++) {
        uint32_t border = p->region[i].border;

        for (uint32_t id = p->all.chunk[border].next; id != border; id = p->all.chunk[id].next)
            if (p->all.kind[id] == UNLISTED && p->all.tag[id].stream == stream &&
                p->all.chunk[id].sequence <= sequence)
                p->all.chunk[id].sequence = 0;
    }
}

void weir__placement_observe(struct weir_placement *p, uint64_t stream, uint64_t sequence) {
    struct weir_placement_stream *s;

    if (!p->several) {
        if (stream == p->only)
            step_observe(&p->step, sequence);
        return;
    }
    if (p->unlisted > 0)
        observe_unlisted(p, stream, sequence);
    s = weir__placement_stream(p, stream);
    if (s == NULL)
        return;
    step_observe(&s->step, sequence);
    while (s->oldest != 0 && p->all.chunk[s->oldest].sequence <= s->step.observed) {
        uint32_t id = s->oldest;

        chunk_leave(p, s, id);
        p->all.chunk[id].sequence = 0;
        settle(p, NULL, id);
    }
}

/* ---- regions ---- */

/* Returns the index of the first region that ends above `address`. */
static size_t region_position(const struct weir_placement *p, uint64_t address) {
    size_t first = p->regions, at;

    WEIR_FIND_FIRST(first, at, p->region[at].end > address);
    return first;
}

/* Raises the marks of a region for memory that ends at `end`.  If the memory is no block, `used` stays. */
static void mark_end(struct weir_placement *p, uint64_t end, int is_block) {
    struct weir_placement_region *r = &p->region[region_position(p, end - 1)];

    if (end > r->high) {
        p->extent += end - r->high;
        r->high = end;
    }
    if (is_block && end > r->used)
        r->used = end;
}

/* Makes room for one more region.  Returns 1 on success, 0 if there is no host memory. */
static int region_reserve(struct weir_placement *p) {
    size_t want = 2 * p->region_length + 1;
    struct weir_placement_region *more;

    if (p->regions < p->region_length)
        return 1;
    more = weir__hostmem_resize(&p->host, p->region, p->region_length * sizeof *more,
                                want * sizeof *more);
    if (more == NULL)
        return 0;
    p->region = more;
    p->region_length = want;
    return 1;
}

int weir__placement_add(struct weir_placement *p, uint64_t base, size_t bytes) {
    uint64_t first = base >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    size_t position = region_position(p, first);
    uint32_t border;
    uint32_t id;

    if (bytes == 0 || ((base | bytes) & p->mask) != 0 || bytes > UINT64_MAX - base ||
        end >> WEIR__BESTFIT_BITS != 0)
        return WEIR_PLACEMENT_INVALID;
    if (position < p->regions && p->region[position].base < end)
        return WEIR_PLACEMENT_INVALID;
    if (!records_reserve(p, p->regions + 3) || !region_reserve(p))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = weir__chunks_add(&p->all, first);
    p->all.chunk[id] = (struct weir__chunk){.address = first, .size = end - first};
    if (!weir__bestfit_insert(&p->clean, key_of(&p->all.chunk[id]), id)) {
        weir__chunks_remove(&p->all, id);
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    p->all.kind[id] = CLEAN;
    border = weir__chunks_add(&p->all, end);
    p->all.chunk[border] = (struct weir__chunk){.address = end, .prev = id, .next = id};
    p->all.kind[border] = BORDER;
    p->all.chunk[id].prev = p->all.chunk[id].next = border;
    memmove(&p->region[position + 1], &p->region[position],
            (p->regions - position) * sizeof *p->region);
    p->region[position] = (struct weir_placement_region){
        .base = first, .end = end, .high = first, .used = first, .border = border};
    p->regions++;
    p->total += end - first;
    return WEIR_PLACEMENT_OK;
}

/* Frees the chunk `id`, which is in no set, on `stream` with `sequence`. */
static void chunk_free(struct weir_placement *p, uint32_t id, uint64_t stream, uint64_t sequence) {
    struct weir__chunk *c = &p->all.chunk[id];
    struct weir_placement_stream *s;

    stream_seen(p, stream);
    if (!p->several) {
        c->sequence = step_admit(&p->step, sequence);
        settle(p, NULL, id);
        return;
    }
    s = stream_make(p, stream);
    if (s == NULL) {
        c->sequence = sequence + (sequence == 0);
        chunk_unlist(p, id, stream);
        return;
    }
    c->sequence = step_admit(&s->step, sequence);
    settle(p, c->sequence == 0 ? NULL : s, id);
}

/* Removes the region at that index, all of which is free. */
static void region_unlink(struct weir_placement *p, size_t position) {
    struct weir_placement_region *r = &p->region[position];

    for (uint32_t id = p->all.chunk[r->border].next, next; id != r->border; id = next) {
        next = p->all.chunk[id].next;
        if (p->all.kind[id] == UNLISTED)
            p->unlisted--;
        else
            chunk_leave(p,
                        p->all.kind[id] == TAGGED ? weir__placement_stream(p, p->all.tag[id].stream)
                                                  : NULL,
                        id);
        weir__chunks_remove(&p->all, id);
    }
    weir__chunks_remove(&p->all, r->border);
    p->total -= r->end - r->base;
    p->extent -= r->high - r->base;
    p->regions--;
    memmove(r, r + 1, (p->regions - position) * sizeof *r);
}

int weir__placement_region(const struct weir_placement *p, uint64_t base, uint64_t stream) {
    size_t position = region_position(p, base >> p->shift);
    const struct weir_placement_region *r;
    int serves = 1;

    if (position == p->regions)
        return WEIR_PLACEMENT_FOREIGN;
    r = &p->region[position];
    if (r->base << p->shift != base)
        return WEIR_PLACEMENT_FOREIGN;
    for (uint32_t id = p->all.chunk[r->border].next; id != r->border; id = p->all.chunk[id].next) {
        uint64_t observed = p->several ? 0 : p->step.observed;
        unsigned kind = p->all.kind[id];

        /* often the first chunk, since blocks lie low */
        if (kind == LIVE || kind == DEFERRED || kind == UNMAPPED)
            return WEIR_PLACEMENT_BUSY;
        if (p->all.chunk[id].sequence > observed)
            serves &= stream != 0 && (p->several ? p->all.tag[id].stream : p->only) == stream;
    }
    return serves ? WEIR_PLACEMENT_OK : WEIR_PLACEMENT_FREE;
}

int weir__placement_region_above(const struct weir_placement *p, uint64_t address, uint64_t *base,
                                 size_t *bytes) {
    size_t position = region_position(p, address >> p->shift);
    const struct weir_placement_region *r;

    if (position == p->regions)
        return 0;
    r = &p->region[position];
    *base = r->base << p->shift;
    *bytes = (size_t)(r->end - r->base) << p->shift;
    return 1;
}

int weir__placement_remove(struct weir_placement *p, uint64_t base) {
    int state = weir__placement_region(p, base, 0);

    if (state == WEIR_PLACEMENT_OK)
        region_unlink(p, region_position(p, base >> p->shift));
    return state == WEIR_PLACEMENT_FREE ? WEIR_PLACEMENT_BUSY : state;
}

/* ---- unmapped ranges ---- */

/* Makes the chunk `id`, which is in no set, an unmapped range, and joins it with those beside it. */
static void chunk_unmap(struct weir_placement *p, uint32_t id) {
    struct weir__chunk *c = &p->all.chunk[id];

    p->all.kind[id] = UNMAPPED;
    c->sequence = 0;
    p->total -= c->size;
    if (p->all.kind[c->next] == UNMAPPED)
        chunk_join(p, id, c->next);
    if (p->all.kind[c->prev] == UNMAPPED)
        chunk_join(p, c->prev, id);
}

int weir__placement_add_unmapped(struct weir_placement *p, uint64_t base, size_t bytes) {
    int status = weir__placement_add(p, base, bytes);
    uint32_t id;

    if (status == WEIR_PLACEMENT_OK) {
        id = weir__chunks_find(&p->all, base >> p->shift, CLEAN);
        chunk_leave(p, NULL, id);
        chunk_unmap(p, id);
    }
    return status;
}

/* Returns the chunk of `kind` that starts at `within`, if [address, address + bytes) lies in it; else 0. */
static uint32_t chunk_around(const struct weir_placement *p, uint64_t within, unsigned kind,
                             uint64_t address, size_t bytes) {
    uint64_t before = (address - within) >> p->shift;
    uint32_t id;

    if (bytes == 0 || ((within | address | bytes) & p->mask) != 0 || address < within)
        return 0;
    id = weir__chunks_find(&p->all, within >> p->shift, kind);
    if (id == 0 || p->all.chunk[id].size < before ||
        p->all.chunk[id].size - before < bytes >> p->shift)
        return 0;
    return id;
}

int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         uint64_t stream, uint64_t sequence) {
    uint64_t first = address >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    struct weir__chunk *c;
    uint32_t id;

    if (chunk_around(p, within, UNMAPPED, address, bytes) == 0)
        return WEIR_PLACEMENT_INVALID;
    if (!records_reserve(p, p->regions + 2))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = weir__chunks_find(&p->all, within >> p->shift, UNMAPPED);
    c = &p->all.chunk[id];
    if (c->address + c->size > end)
        chunk_cut(p, id, end, UNMAPPED);
    if (c->address < first)
        id = chunk_cut(p, id, first, UNMAPPED);
    p->total += bytes >> p->shift;
    mark_end(p, end, sequence != 0);
    if (sequence == 0)
        settle(p, NULL, id);
    else
        chunk_free(p, id, stream, sequence);
    return WEIR_PLACEMENT_OK;
}

int weir__placement_unmap(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes) {
    uint64_t first = address >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    uint32_t id;

    if (!records_reserve(p, p->regions + 2))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = weir__chunks_find(&p->all, within >> p->shift, CLEAN);
    if (id == 0)
        id = weir__chunks_find(&p->all, within >> p->shift, TAGGED);
    if (id == 0 || bytes == 0 || ((within | address | bytes) & p->mask) != 0 || address < within ||
        p->all.chunk[id].address + p->all.chunk[id].size <= first)
        return WEIR_PLACEMENT_INVALID;
    for (uint32_t last = id; p->all.chunk[last].address + p->all.chunk[last].size < end;) {
        last = p->all.chunk[last].next;
        if (p->all.kind[last] != CLEAN && p->all.kind[last] != TAGGED)
            return WEIR_PLACEMENT_INVALID;
    }
    chunk_unmap(p, claim_run(p, id, first, end));
    return WEIR_PLACEMENT_OK;
}

int weir__placement_last_unmapped(const struct weir_placement *p, uint64_t *address,
                                  size_t *bytes) {
    uint32_t id = p->regions == 0 ? 0 : p->all.chunk[p->region[p->regions - 1].border].prev;

    if (id == 0 || p->all.kind[id] != UNMAPPED)
        return 0;
    *address = p->all.chunk[id].address << p->shift;
    *bytes = p->all.chunk[id].size << p->shift;
    return 1;
}

/* ---- take ---- */

/* Begins a take: makes room for the record of a remainder, and lists all unlisted chunks.  *want gets the granules that
 * hold `bytes`.  Returns OK, INVALID or NO_MEMORY. */
static int take_begin(struct weir_placement *p, size_t bytes, uint64_t stream, uint64_t *want) {
    size_t rounded;

    if (bytes == 0 || !weir__size_round_up(bytes, p->mask + 1, &rounded))
        return WEIR_PLACEMENT_INVALID;
    *want = rounded >> p->shift;
    stream_seen(p, stream);
    if (!records_reserve(p, p->regions + 1) || (p->unlisted > 0 && !list_unlisted(p)))
        return WEIR_PLACEMENT_NO_MEMORY;
    return WEIR_PLACEMENT_OK;
}

static void block_describe(const struct weir_placement *p, uint32_t id,
                           struct weir_placement_block *out) {
    const struct weir__chunk *c = &p->all.chunk[id];

    out->address = c->address << p->shift;
    out->requested = c->requested;
    out->size = c->size << p->shift;
}

/* Makes the chunk `id`, which is in no set, a block of `bytes`. */
static void block_begin(struct weir_placement *p, uint32_t id, size_t bytes,
                        struct weir_placement_block *out) {
    struct weir__chunk *c = &p->all.chunk[id];

    p->all.kind[id] = LIVE;
    c->requested = bytes;
    p->blocks++;
    block_describe(p, id, out);
}

/* Finds the best fit for `want` granules among chunks that are free for all streams and, unless NULL, chunks of
 * `own`. */
static struct weir__bestfit_hit best_for(const struct weir_placement *p,
                                         const struct weir_placement_stream *own, uint64_t want) {
    uint64_t key = weir__bestfit_key(want, 0);
    struct weir__bestfit_hit first = {.key = WEIR__BESTFIT_NONE}, clean;

    if (own != NULL)
        first = weir__bestfit_from(&own->fit, key);
    if (p->own_first && first.key != WEIR__BESTFIT_NONE)
        return first;
    clean = weir__bestfit_from(&p->clean, key);
    return first.key < clean.key ? first : clean;
}

/* Removes the first `want` granules, or all if the rest would be too small, from a free chunk and its set.  `own` is
 * the stream whose tag the chunk has, or NULL. */
static void take_carve(struct weir_placement *p, struct weir_placement_stream *own, uint32_t id,
                       uint64_t want) {
    struct weir__chunk *c = &p->all.chunk[id];
    uint32_t rest;

    weir__bestfit_erase(set_of(p, own), key_of(c));
    if (c->size - want < weir__size_smaller(want, p->waste)) {
        if (own != NULL)
            list_remove(p, own, id);
        return;
    }
    rest = chunk_cut(p, id, c->address + want, own == NULL ? CLEAN : TAGGED);
    if (weir__bestfit_insert(set_of(p, own), key_of(&p->all.chunk[rest]), rest)) {
        if (own != NULL)
            list_replace(p, own, id, rest);
        return;
    }
    if (own != NULL)
        list_remove(p, own, id);
    chunk_unlist(p, rest, own == NULL ? 0 : own->id);
}

int weir__placement_take(struct weir_placement *p, size_t bytes, uint64_t stream,
                         struct weir_placement_block *out) {
    struct weir_placement_stream *own;
    struct weir__bestfit_hit hit;
    uint64_t want;
    unsigned next;
    int result = take_begin(p, bytes, stream, &want);

    if (result != WEIR_PLACEMENT_OK)
        return result;
    if (want >> WEIR__BESTFIT_BITS != 0)
        return WEIR_PLACEMENT_NO_FIT;
    own = own_of(p, stream);
    hit = best_for(p, own, want);
    if (hit.key == WEIR__BESTFIT_NONE)
        return WEIR_PLACEMENT_NO_FIT;
    next = p->all.kind[p->all.chunk[hit.value].next];
    take_carve(p, p->all.kind[hit.value] == TAGGED ? own : NULL, hit.value, want);
    block_begin(p, hit.value, bytes, out);
    /* Only a border or an unmapped range can follow the last memory of a region, so other blocks cannot reach above a
     * mark. */
    if (next == BORDER || next == UNMAPPED)
        mark_end(p, (out->address + out->size) >> p->shift, 1);
    return WEIR_PLACEMENT_OK;
}

/* Makes [first, end), in granules, which lies in free chunks from `id` on, a block. */
static void take_run(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end,
                     size_t bytes, struct weir_placement_block *out) {
    block_begin(p, claim_run(p, id, first, end), bytes, out);
    mark_end(p, end, 1);
}

int weir__placement_take_at(struct weir_placement *p, uint64_t address, size_t bytes,
                            uint64_t stream, struct weir_placement_block *out) {
    uint64_t first = address >> p->shift, want;
    int result = take_begin(p, bytes, stream, &want);
    uint32_t id;

    if (result != WEIR_PLACEMENT_OK)
        return result;
    id = chunk_around(p, address, CLEAN, address, bytes);
    if (id == 0 || p->all.chunk[id].sequence > p->step.observed)
        return WEIR_PLACEMENT_NO_FIT;
    take_run(p, id, first, first + want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* ---- take behind waits ---- */

/* Adjacent free chunks, from `first` on. */
struct run {
    uint32_t first;
    uint64_t size; /* in granules */
};

/* Returns 1 if the free chunk `id` has another stream's tag, else 0. */
static int is_others(const struct weir_placement *p, uint32_t id, uint64_t stream) {
    return p->all.kind[id] == TAGGED && (p->all.tag[id].stream != stream || stream == 0);
}

/* Returns 1 if `stream` may use the chunk `id` at once or behind a wait, else 0. */
static int may_have(const struct weir_placement *p, uint32_t id, uint64_t stream,
                    const struct weir_placement_waits *waits) {
    if (is_others(p, id, stream))
        return waits->may(waits->context, p->all.tag[id].stream, p->all.chunk[id].sequence);
    return p->all.kind[id] == CLEAN || p->all.kind[id] == TAGGED;
}

/* Finds the smallest run in a region that holds `want` granules, and keeps it in *best if it is smaller than *best. */
static void run_search(const struct weir_placement *p, const struct weir_placement_region *r,
                       uint64_t want, uint64_t stream, const struct weir_placement_waits *waits,
                       struct run *best) {
    const struct weir__chunk *chunk = p->all.chunk;
    struct run now = {0};

    for (uint32_t id = chunk[r->border].next; id != r->border; id = chunk[id].next) {
        if (!may_have(p, id, stream, waits)) {
            now = (struct run){0};
            continue;
        }
        if (now.size == 0)
            now.first = id;
        now.size += chunk[id].size;
        while (now.size - chunk[now.first].size >= want) {
            now.size -= chunk[now.first].size;
            now.first = chunk[now.first].next;
        }
        if (now.size >= want && (best->first == 0 || now.size < best->size))
            *best = now;
    }
}

/* Waits for the chunks from `id` on that hold `want` granules.  Returns 1 on success, 0 if a wait failed. */
static int run_wait(const struct weir_placement *p, uint32_t id, uint64_t want, uint64_t stream,
                    const struct weir_placement_waits *waits) {
    for (uint64_t got = 0; got < want; got += p->all.chunk[id].size, id = p->all.chunk[id].next)
        if (is_others(p, id, stream) &&
            !waits->wait(waits->context, p->all.tag[id].stream, p->all.chunk[id].sequence))
            return 0;
    return 1;
}

int weir__placement_take_behind(struct weir_placement *p, size_t bytes, uint64_t stream,
                                const struct weir_placement_waits *waits,
                                struct weir_placement_block *out) {
    struct run best = {0};
    uint64_t want, first;
    int result = take_begin(p, bytes, stream, &want);

    if (result != WEIR_PLACEMENT_OK)
        return result;
    if (!p->several)
        return WEIR_PLACEMENT_NO_FIT;
    for (size_t i = 0; i < p->regions; i++)
        run_search(p, &p->region[i], want, stream, waits, &best);
    if (best.first == 0 || !run_wait(p, best.first, want, stream, waits))
        return WEIR_PLACEMENT_NO_FIT;
    first = p->all.chunk[best.first].address;
    take_run(p, best.first, first, first + want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* ---- give ---- */

/* Returns the record of the block of that kind that starts at `address` (in bytes), or 0 if there is none. */
static uint32_t block_find(const struct weir_placement *p, uint64_t address, unsigned kind) {
    return (address & p->mask) != 0 ? 0 : weir__chunks_find(&p->all, address >> p->shift, kind);
}

/* Diagnoses an address at which no live block starts.  *out (may be NULL) gets the block around the address. */
static int diagnose(const struct weir_placement *p, uint64_t address,
                    struct weir_placement_block *out) {
    uint64_t granule = address >> p->shift;
    size_t position = region_position(p, granule);
    uint32_t id;

    if (position == p->regions || p->region[position].base > granule)
        return WEIR_PLACEMENT_FOREIGN;
    id = p->all.chunk[p->region[position].border].next;
    while (p->all.chunk[id].address + p->all.chunk[id].size <= granule)
        id = p->all.chunk[id].next;
    if (p->all.kind[id] == UNMAPPED)
        return WEIR_PLACEMENT_FOREIGN;
    if (p->all.kind[id] != LIVE)
        return WEIR_PLACEMENT_FREE;
    if (out != NULL)
        block_describe(p, id, out);
    return WEIR_PLACEMENT_INTERIOR;
}

int weir__placement_give(struct weir_placement *p, uint64_t address, uint64_t stream,
                         uint64_t sequence, struct weir_placement_block *out) {
    uint32_t id = block_find(p, address, LIVE);

    if (id == 0)
        return diagnose(p, address, NULL);
    if (out != NULL)
        block_describe(p, id, out);
    p->blocks--;
    chunk_free(p, id, stream, sequence);
    return WEIR_PLACEMENT_OK;
}

void weir__placement_defer(struct weir_placement *p, uint64_t address) {
    p->all.kind[block_find(p, address, LIVE)] = DEFERRED;
}

void weir__placement_undefer(struct weir_placement *p, uint64_t address) {
    p->all.kind[block_find(p, address, DEFERRED)] = LIVE;
}

int weir__placement_find(const struct weir_placement *p, uint64_t address,
                         struct weir_placement_block *out) {
    uint32_t id = block_find(p, address, LIVE);

    if (id == 0)
        return diagnose(p, address, out);
    block_describe(p, id, out);
    return WEIR_PLACEMENT_OK;
}

/* ---- figures and walks ---- */

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out) {
    out->regions = p->regions;
    out->total = p->total << p->shift;
    out->blocks = p->blocks;
    out->extent = p->extent << p->shift;
    out->host_bytes = p->host.bytes;
}

static struct weir_placement_span span_of(const struct weir_placement *p, uint32_t id) {
    const struct weir__chunk *c = &p->all.chunk[id];
    struct weir_placement_span span = {
        .address = c->address << p->shift, .size = c->size << p->shift, .chunk = id};

    if (p->all.kind[id] == UNMAPPED) {
        span.unmapped = 1;
    } else if (p->all.kind[id] == LIVE) {
        span.live = 1;
        span.requested = c->requested;
    } else if (p->all.kind[id] == DEFERRED) {
        span.deferred = 1;
    } else if (c->sequence > (p->several ? 0 : p->step.observed)) {
        span.stream = p->several ? p->all.tag[id].stream : p->only;
        span.sequence = c->sequence;
    }
    return span;
}

int weir__placement_next(struct weir_placement *p, struct weir_placement_span *span) {
    size_t region = span->region;
    uint32_t id = span->chunk;

    if (id != 0)
        id = p->all.chunk[id].next;
    else if (p->unlisted > 0)
        (void)list_unlisted(p);
    while (id == 0 || p->all.kind[id] == BORDER) {
        region += id != 0;
        if (region == p->regions)
            return 0;
        id = p->all.chunk[p->region[region].border].next;
    }
    *span = span_of(p, id);
    span->region = region;
    return 1;
}
