/* SPDX-License-Identifier: MIT */
/* placement.c: see placement.h, and placement_state.h for the records.
 *
 * weir__placement_take reserves all its host memory before it changes anything.  weir__placement_give needs host memory
 * only for nodes of a set, or for a stream's first tagged chunk.  If there is no host memory, the freed chunk becomes
 * UNLISTED.  The next take puts the chunk into its set, or returns NO_MEMORY; a walk tries to put it there, too.
 *
 * The table keeps room for one record of each region: a free may bring the second stream, and cut_at_mark() then needs
 * the records.  Two unmapped ranges are never adjacent.
 *
 * There is no index from an address inside a block to the block: only errors and questions need one, and every request
 * would have to maintain it.  diagnose() walks over the region instead.
 *
 * This file must not know drivers, locks or the memory behind an address.
 */
#include "placement/placement_state.h"

#include <string.h>

#include "base/bounds.h"
#include "base/size.h"

#define FIRST_RECORDS ((size_t)32)
/* the number of streams that keep their record of tagged chunks while they have no such chunk */
#define KEPT_OWNERS ((size_t)16)

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
    p->index = rule->index;
    p->ended.observed = UINT64_MAX;
    if (!weir__chunks_init(&p->all, &p->host, FIRST_RECORDS)) {
        weir__hostmem_resize(&host, p, 0, 0);
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    weir__bestfit_pool_init(&p->pool, &p->host);
    weir__bestfit_init(&p->clean, &p->pool);
    *out = p;
    return WEIR_PLACEMENT_OK;
}

void weir__placement_destroy(struct weir_placement *p) {
    struct weir__hostmem host;

    if (p == NULL)
        return;
    weir__bestfit_drop(&p->clean);
    weir__bestfit_pool_drop(&p->pool);
    host = p->host;
    weir__chunks_drop(&p->all, &host);
    weir__hostmem_resize(&host, p->region, 0, 0);
    weir__hostmem_resize(&host, p, 0, 0);
}

/* ---- streams ---- */

/* Returns the record of the stream's tagged chunks, which may be a new one, or NULL if there is no host memory. */
static struct weir_placement_own *own_make(struct weir_placement *p,
                                           struct weir_placement_stream *s) {
    struct weir_placement_own *own = own_in(p, s);

    if (own != NULL)
        return own;
    own = weir__hostmem_resize(&p->host, NULL, 0, sizeof *own);
    if (own == NULL)
        return NULL;
    memset(own, 0, sizeof *own);
    weir__bestfit_init(&own->fit, &p->pool);
    s->own[p->index] = own;
    p->owners++;
    return own;
}

/* Frees the record of the stream's tagged chunks, of which none is left. */
static void own_drop(struct weir_placement *p, struct weir_placement_stream *s) {
    weir__bestfit_drop(&own_in(p, s)->fit);
    weir__hostmem_resize(&p->host, own_in(p, s), sizeof *own_in(p, s), 0);
    s->own[p->index] = NULL;
    p->owners--;
}

void weir__placement_forget(struct weir_placement *p, struct weir_placement_stream *s) {
    if (own_in(p, s) != NULL)
        own_drop(p, s);
    if (p->only == s)
        p->only = &p->ended;
}

/* ---- lists of tagged chunks ---- */

/* Inserts a chunk into the stream's list by its sequence.  A chunk belongs at the end, unless it is the rest of a chunk
 * that was cut. */
static void list_insert(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id) {
    struct weir_placement_own *own = own_in(p, s);
    uint32_t older = own->newest;
    uint32_t newer = 0;

    while (older != 0 && p->all.chunk[older].sequence > p->all.chunk[id].sequence) {
        newer = older;
        older = p->all.tag[older].older;
    }
    p->all.tag[id] = (struct weir__chunk_tag){.stream = s, .older = older, .newer = newer};
    *(older != 0 ? &p->all.tag[older].newer : &own->oldest) = id;
    *(newer != 0 ? &p->all.tag[newer].older : &own->newest) = id;
}

static void list_remove(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id) {
    struct weir_placement_own *own = own_in(p, s);
    struct weir__chunk_tag *t = &p->all.tag[id];

    *(t->older != 0 ? &p->all.tag[t->older].newer : &own->oldest) = t->newer;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &own->newest) = t->older;
}

/* Puts `id` into the list in place of `old`. */
static void list_replace(struct weir_placement *p, struct weir_placement_stream *s, uint32_t old,
                         uint32_t id) {
    struct weir_placement_own *own = own_in(p, s);
    struct weir__chunk_tag *t = &p->all.tag[id];

    *t = p->all.tag[old];
    *(t->older != 0 ? &p->all.tag[t->older].newer : &own->oldest) = id;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &own->newest) = id;
}

/* ---- free chunks ---- */

static struct weir__bestfit *set_of(struct weir_placement *p, struct weir_placement_stream *s) {
    return s == NULL ? &p->clean : &own_in(p, s)->fit;
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
static void chunk_unlist(struct weir_placement *p, uint32_t id, struct weir_placement_stream *s) {
    p->all.kind[id] = UNLISTED;
    p->all.tag[id].stream = s;
    p->unlisted++;
}

/* Makes a chunk that is in no set and no list free, tagged by `s` or untagged if `s` is NULL, and joins it with
 * adjacent chunks.  The caller has set the chunk's sequence.  Returns the record of the joined chunk. */
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
        chunk_unlist(p, id, s);
        return id;
    }
    p->all.kind[id] = s == NULL ? CLEAN : TAGGED;
    if (s != NULL)
        list_insert(p, s, id);
    return id;
}

/* Puts the unlisted chunks into their sets.  Returns 1 on success, 0 if there is no host memory. */
static int list_unlisted(struct weir_placement *p) {
    for (size_t i = 0; i < p->regions && p->unlisted > 0; i++) {
        uint32_t border = p->region[i].border;

        for (uint32_t id = p->all.chunk[border].next; id != border; id = p->all.chunk[id].next) {
            struct weir__chunk *c = &p->all.chunk[id];
            struct weir_placement_stream *s = NULL;

            if (p->all.kind[id] != UNLISTED)
                continue;
            if (p->several && c->sequence != 0) {
                s = p->all.tag[id].stream;
                if (own_make(p, s) == NULL)
                    return 0;
            }
            p->unlisted--;
            id = settle(p, s, id);
            if (p->all.kind[id] == UNLISTED)
                return 0;
        }
    }
    return 1;
}

/* Cuts the chunk `id`, which is in no set, at `address`.  The second part gets the kind `kind` and a new record, for
 * which the table has room.  Returns this record. */
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

/* Returns the stream whose tag the free chunk has, or NULL if it is clean. */
static struct weir_placement_stream *tag_of(const struct weir_placement *p, uint32_t id) {
    return p->all.kind[id] == TAGGED ? p->all.tag[id].stream : NULL;
}

/* Removes the part of the free chunk `id` that lies in [first, end) from its set.  Returns the part's record. */
static uint32_t claim_part(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end) {
    const struct weir__chunk *c = &p->all.chunk[id];
    struct weir_placement_stream *s = tag_of(p, id);

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
 * The rest of these chunks keeps its tags.  The table has room for two records.  Returns a record that is in no set. */
static uint32_t claim_run(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end) {
    id = claim_part(p, id, first, end);
    while (p->all.chunk[id].address + p->all.chunk[id].size < end)
        chunk_join(p, id, claim_part(p, p->all.chunk[id].next, first, end));
    return id;
}

/* ---- room for records ---- */

/* Replaces the record numbers in regions, chunks, lists and sets by those in `old`, after the table has grown. */
static void records_follow(struct weir_placement *p, const struct weir__chunks *old) {
#define MOVED(id) ((id) == 0 ? 0 : (uint32_t)old->chunk[id].address)
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
                struct weir_placement_own *own = own_in(p, t->stream);

                t->older = MOVED(t->older);
                t->newer = MOVED(t->newer);
                own->oldest = t->older == 0 ? id : own->oldest;
                own->newest = t->newer == 0 ? id : own->newest;
                weir__bestfit_set(&own->fit, key_of(c), id);
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
    uint32_t run[32] = {0}; /* run[i] is 0 or a sorted chain of 2^i chunks */
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

/* Makes the memory of `r` above `used`, where no block was, free for all streams.  Cuts the chunk that crosses `used`.
 * A free chunk above `used` has a sequence if it had joined a freed block that was allocated again later. */
static void cut_at_mark(struct weir_placement *p, const struct weir_placement_region *r) {
    for (uint32_t id = p->all.chunk[r->border].prev; id != r->border; id = p->all.chunk[id].prev) {
        struct weir__chunk *c = &p->all.chunk[id];
        int is_free = p->all.kind[id] == CLEAN || p->all.kind[id] == UNLISTED;

        if (c->address + c->size <= r->used)
            return;
        if (!is_free || c->sequence <= p->only->observed)
            continue;
        if (r->used > c->address) {
            p->all.chunk[chunk_cut(p, id, r->used, CLEAN)].sequence = 0;
            return;
        }
        c->sequence = 0;
    }
}

/* Makes all free chunks unlisted.  Returns a chain, linked by `newer`, of the chunks with unobserved frees. */
static uint32_t unlist_all(struct weir_placement *p) {
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
            chunk_unlist(p, id, p->only);
            if (c->sequence <= p->only->observed) {
                c->sequence = 0;
                continue;
            }
            p->all.tag[id].newer = chain;
            chain = id;
        }
    }
    return chain;
}

/* Tags the first stream's free chunks when a second stream appears.  Takes linear time, once in a placement's life. */
static void second_stream(struct weir_placement *p) {
    struct weir_placement_stream *first = p->only;
    uint32_t chain;

    p->several = 1;
    if (first == NULL)
        return;
    weir__bestfit_drop(&p->clean);
    chain = list_sort(p, unlist_all(p));
    p->only = NULL;
    while (chain != 0 && own_make(p, first) != NULL) {
        uint32_t id = chain;

        chain = p->all.tag[id].newer;
        p->unlisted--;
        settle(p, first, id);
    }
    list_unlisted(p);
}

/* Records that the stream allocates or frees.  The stream is unknown if `s` is NULL. */
static void stream_seen(struct weir_placement *p, struct weir_placement_stream *s) {
    int is_known = s != NULL && s->id != 0;

    if (p->several || (is_known && s == p->only))
        return;
    if (p->only == NULL && is_known)
        p->only = s;
    else
        second_stream(p);
}

void weir__placement_part(struct weir_placement *p, struct weir_placement_stream *s,
                          uint64_t sequence) {
    if (own_in(p, s) != NULL)
        own_in(p, s)->parted = sequence;
}

/* ---- observe ---- */

/* Makes the stream's unlisted chunks whose frees are observed free for all streams. */
static void observe_unlisted(struct weir_placement *p, const struct weir_placement_stream *s) {
    for (size_t i = 0; i < p->regions; i++) {
        uint32_t border = p->region[i].border;

        for (uint32_t id = p->all.chunk[border].next; id != border; id = p->all.chunk[id].next)
            if (p->all.kind[id] == UNLISTED && p->all.tag[id].stream == s &&
                p->all.chunk[id].sequence <= s->observed)
                p->all.chunk[id].sequence = 0;
    }
}

void weir__placement_observe(struct weir_placement *p, struct weir_placement_stream *s) {
    struct weir_placement_own *own = own_in(p, s);

    if (p->unlisted > 0)
        observe_unlisted(p, s);
    if (own == NULL)
        return;
    while (own->oldest != 0 && p->all.chunk[own->oldest].sequence <= s->observed) {
        uint32_t id = own->oldest;

        chunk_leave(p, s, id);
        p->all.chunk[id].sequence = 0;
        settle(p, NULL, id);
    }
    if (own->oldest == 0 && p->owners > KEPT_OWNERS)
        own_drop(p, s);
}

/* ---- regions ---- */

/* Returns the index of the first region that ends above `address`. */
static size_t region_position(const struct weir_placement *p, uint64_t address) {
    size_t first = p->regions, at;

    WEIR_FIND_FIRST(first, at, p->region[at].end > address);
    return first;
}

/* Raises the marks of the region around `end`, up to which memory is used now: `high`, and for a block also `used`. */
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

/* Makes the chunk `id`, which is in no set, free with the tag (s, sequence), or clean if `sequence` is 0. */
static void chunk_free(struct weir_placement *p, uint32_t id, struct weir_placement_stream *s,
                       uint64_t sequence) {
    stream_seen(p, s);
    p->all.chunk[id].sequence = sequence;
    if (sequence == 0 || !p->several)
        settle(p, NULL, id);
    else if (own_make(p, s) != NULL)
        settle(p, s, id);
    else
        chunk_unlist(p, id, s);
}

/* Removes the region at that index, all of which is free. */
static void region_unlink(struct weir_placement *p, size_t position) {
    struct weir_placement_region *r = &p->region[position];

    for (uint32_t id = p->all.chunk[r->border].next, next; id != r->border; id = next) {
        next = p->all.chunk[id].next;
        if (p->all.kind[id] == UNLISTED)
            p->unlisted--;
        else
            chunk_leave(p, tag_of(p, id), id);
        weir__chunks_remove(&p->all, id);
    }
    weir__chunks_remove(&p->all, r->border);
    p->total -= r->end - r->base;
    p->extent -= r->high - r->base;
    p->regions--;
    memmove(r, r + 1, (p->regions - position) * sizeof *r);
}

/* Returns the stream whose free of memory in the free chunk `id` is not observed, or NULL if there is none. */
static const struct weir_placement_stream *waits_for(const struct weir_placement *p, uint32_t id) {
    const struct weir_placement_stream *s = p->several ? p->all.tag[id].stream : p->only;
    uint64_t sequence = p->all.chunk[id].sequence;

    return sequence == 0 || (!p->several && sequence <= s->observed) ? NULL : s;
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
        unsigned kind = p->all.kind[id];

        /* often true for the first chunk, since best fit prefers low addresses */
        if (kind == LIVE || kind == DEFERRED || kind == UNMAPPED)
            return WEIR_PLACEMENT_BUSY;
        if (waits_for(p, id) != NULL)
            serves &= stream != 0 && waits_for(p, id)->id == stream;
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

/* Makes the chunk `id`, which is in no set, an unmapped range, and joins it with adjacent unmapped ranges. */
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

/* Returns the chunk of `kind` that starts at `within`, or 0 if [address, address + bytes) does not lie in one. */
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
                         struct weir_placement_stream *s, uint64_t sequence) {
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
        chunk_free(p, id, s, sequence);
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

/* Prepares to place a block: makes room for the record of a remainder, and puts unlisted chunks into their sets.
 * Writes the granules that hold `bytes` to *want.  Returns OK, INVALID or NO_MEMORY. */
static int take_begin(struct weir_placement *p, size_t bytes, struct weir_placement_stream *s,
                      uint64_t *want) {
    size_t rounded;

    if (bytes == 0 || !weir__size_round_up(bytes, p->mask + 1, &rounded))
        return WEIR_PLACEMENT_INVALID;
    *want = rounded >> p->shift;
    stream_seen(p, s);
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

/* Makes the chunk `id`, which is in no set, a live block of `bytes`, and describes it in *out. */
static void block_begin(struct weir_placement *p, uint32_t id, size_t bytes,
                        struct weir_placement_block *out) {
    struct weir__chunk *c = &p->all.chunk[id];

    p->all.kind[id] = LIVE;
    c->requested = bytes;
    p->blocks++;
    block_describe(p, id, out);
}

/* Finds the best fit for `want` granules among clean chunks and, unless `own` is NULL, the chunks of `own`. */
static struct weir__bestfit_hit best_for(const struct weir_placement *p,
                                         const struct weir_placement_own *own, uint64_t want) {
    uint64_t key = weir__bestfit_key(want, 0);
    struct weir__bestfit_hit first = {.key = WEIR__BESTFIT_NONE}, clean;

    if (own != NULL)
        first = weir__bestfit_from(&own->fit, key);
    if (p->own_first && first.key != WEIR__BESTFIT_NONE)
        return first;
    clean = weir__bestfit_from(&p->clean, key);
    return first.key < clean.key ? first : clean;
}

/* Removes the first `want` granules from a free chunk and its set, or the whole chunk if the rest would be too small.
 * `s` is the stream whose tag the chunk has, or NULL. */
static void take_carve(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id,
                       uint64_t want) {
    struct weir__chunk *c = &p->all.chunk[id];
    uint32_t rest;

    weir__bestfit_erase(set_of(p, s), key_of(c));
    if (c->size - want < weir__size_smaller(want, p->waste)) {
        if (s != NULL)
            list_remove(p, s, id);
        return;
    }
    rest = chunk_cut(p, id, c->address + want, s == NULL ? CLEAN : TAGGED);
    if (weir__bestfit_insert(set_of(p, s), key_of(&p->all.chunk[rest]), rest)) {
        if (s != NULL)
            list_replace(p, s, id, rest);
        return;
    }
    if (s != NULL)
        list_remove(p, s, id);
    chunk_unlist(p, rest, s);
}

int weir__placement_take(struct weir_placement *p, size_t bytes, struct weir_placement_stream *s,
                         struct weir_placement_block *out) {
    struct weir__bestfit_hit hit;
    uint64_t want;
    unsigned next;
    int result = take_begin(p, bytes, s, &want);

    if (result != WEIR_PLACEMENT_OK)
        return result;
    if (want >> WEIR__BESTFIT_BITS != 0)
        return WEIR_PLACEMENT_NO_FIT;
    hit = best_for(p, s->id == 0 ? NULL : own_in(p, s), want);
    if (hit.key == WEIR__BESTFIT_NONE)
        return WEIR_PLACEMENT_NO_FIT;
    next = p->all.kind[p->all.chunk[hit.value].next];
    take_carve(p, tag_of(p, hit.value), hit.value, want);
    block_begin(p, hit.value, bytes, out);
    /* Only a block at the end of a region, or before an unmapped range, can raise a mark: other free chunks lie below
     * memory that was in use before. */
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
                            struct weir_placement_stream *s, struct weir_placement_block *out) {
    uint64_t first = address >> p->shift, want;
    int result = take_begin(p, bytes, s, &want);
    uint32_t id;

    if (result != WEIR_PLACEMENT_OK)
        return result;
    id = chunk_around(p, address, CLEAN, address, bytes);
    if (id == 0 || waits_for(p, id) != NULL)
        return WEIR_PLACEMENT_NO_FIT;
    take_run(p, id, first, first + want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* ---- take behind waits ---- */

/* A run of adjacent free chunks, of which `first` is the record of the first. */
struct run {
    uint32_t first;
    uint64_t size; /* in granules */
};

/* Returns 1 if the free chunk `id` has another stream's tag, else 0. */
static int is_others(const struct weir_placement *p, uint32_t id,
                     const struct weir_placement_stream *s) {
    return p->all.kind[id] == TAGGED && (p->all.tag[id].stream != s || s->id == 0);
}

/* Returns 1 if the stream may use the chunk `id` at once or after a wait for another stream, else 0. */
static int may_have(const struct weir_placement *p, uint32_t id,
                    const struct weir_placement_stream *s,
                    const struct weir_placement_waits *waits) {
    if (is_others(p, id, s))
        return waits->may(waits->context, p->all.tag[id].stream->id, p->all.chunk[id].sequence);
    return p->all.kind[id] == CLEAN || p->all.kind[id] == TAGGED;
}

/* Finds the smallest run in a region that holds `want` granules, and keeps it in *best if it is smaller than *best. */
static void run_search(const struct weir_placement *p, const struct weir_placement_region *r,
                       uint64_t want, const struct weir_placement_stream *s,
                       const struct weir_placement_waits *waits, struct run *best) {
    const struct weir__chunk *chunk = p->all.chunk;
    struct run now = {0};

    for (uint32_t id = chunk[r->border].next; id != r->border; id = chunk[id].next) {
        if (!may_have(p, id, s, waits)) {
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

/* Makes the stream wait for the chunks from `id` on that hold `want` granules.  Returns 1 on success, else 0. */
static int run_wait(const struct weir_placement *p, uint32_t id, uint64_t want,
                    const struct weir_placement_stream *s,
                    const struct weir_placement_waits *waits) {
    for (uint64_t got = 0; got < want; got += p->all.chunk[id].size, id = p->all.chunk[id].next)
        if (is_others(p, id, s) &&
            !waits->wait(waits->context, p->all.tag[id].stream->id, p->all.chunk[id].sequence))
            return 0;
    return 1;
}

int weir__placement_take_behind(struct weir_placement *p, size_t bytes,
                                struct weir_placement_stream *s,
                                const struct weir_placement_waits *waits,
                                struct weir_placement_block *out) {
    struct run best = {0};
    uint64_t want, first;
    int result = take_begin(p, bytes, s, &want);

    if (result != WEIR_PLACEMENT_OK)
        return result;
    if (!p->several)
        return WEIR_PLACEMENT_NO_FIT;
    for (size_t i = 0; i < p->regions; i++)
        run_search(p, &p->region[i], want, s, waits, &best);
    if (best.first == 0 || !run_wait(p, best.first, want, s, waits))
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

/* Diagnoses an address at which no live block starts.  Writes the block around the address to *out (may be NULL). */
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

int weir__placement_give(struct weir_placement *p, uint64_t address,
                         struct weir_placement_stream *s, uint64_t sequence,
                         struct weir_placement_block *out) {
    uint32_t id = block_find(p, address, LIVE);

    if (id == 0)
        return diagnose(p, address, NULL);
    if (out != NULL)
        block_describe(p, id, out);
    p->blocks--;
    chunk_free(p, id, s, sequence);
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
    } else if (waits_for(p, id) != NULL) {
        span.stream = waits_for(p, id)->id;
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
