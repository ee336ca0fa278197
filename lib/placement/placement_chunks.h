/* SPDX-License-Identifier: MIT */
/* placement_chunks.h: chunks become free, join, leave their sets, and become blocks.
 *
 * Each take and give runs through the inline functions here.  placement_chunks.c has the others.
 *
 * Invariants: a free needs no memory but for nodes of a set, or for a stream seen first.  If the host has none,
 * the chunk stays outside the sets and lists as an unlisted chunk.  The next take brings it in, or fails for want of memory.
 */
#ifndef WEIR_PLACEMENT_CHUNKS_H
#define WEIR_PLACEMENT_CHUNKS_H

#include "placement/placement_state.h"

/* ---- lists of tagged chunks ---- */

/* Into the list by its sequence: at the end, but for an unlisted chunk that comes back. */
static inline void list_insert(struct weir_placement *p, struct weir_placement_stream *s,
                               uint32_t id) {
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

static inline void list_remove(struct weir_placement *p, struct weir_placement_stream *s,
                               uint32_t id) {
    struct weir__chunk_tag *t = &p->all.tag[id];

    *(t->older != 0 ? &p->all.tag[t->older].newer : &s->oldest) = t->newer;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &s->newest) = t->older;
}

/* `id` takes the place of `old`. */
static inline void list_replace(struct weir_placement *p, struct weir_placement_stream *s,
                                uint32_t old, uint32_t id) {
    struct weir__chunk_tag *t = &p->all.tag[id];

    *t = p->all.tag[old];
    *(t->older != 0 ? &p->all.tag[t->older].newer : &s->oldest) = id;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &s->newest) = id;
}

/* ---- free chunks ---- */

/* Returns 1 if the free chunk `id` may join its neighbour `other`, which is tagged by `s`, or clean if `s` is NULL.  Two
 * chunks of a stream join if both were freed since it was parted. */
static inline int chunk_joins(const struct weir_placement *p, uint32_t id, uint32_t other,
                              const struct weir_placement_stream *s) {
    if (s == NULL)
        return chunk_is(p, id, CLEAN);
    return chunk_is(p, id, TAGGED) && p->all.tag[id].stream == s->id &&
           p->all.chunk[id].sequence > s->parted && p->all.chunk[other].sequence > s->parted;
}

/* A free chunk is about to change: out of its set and list.  An unlisted chunk may be later than all that its
 * stream knows of. */
INLINE void chunk_leave(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id) {
    if ((p->all.kind[id] & UNLISTED) != 0) {
        p->unlisted--;
        if (s != NULL)
            step_admit(&s->step, p->all.chunk[id].sequence);
        return;
    }
    if (s != NULL)
        list_remove(p, s, id);
    weir__bestfit_erase(s == NULL ? &p->clean : &s->fit, key_of(&p->all.chunk[id]));
}

/* `left` takes in its neighbour `right`, and waits for the later of both. */
INLINE void chunk_join(struct weir_placement *p, uint32_t left, uint32_t right) {
    struct weir__chunk *l = &p->all.chunk[left];
    struct weir__chunk *r = &p->all.chunk[right];

    l->size += r->size;
    l->next = r->next;
    p->all.chunk[r->next].prev = left;
    l->sequence = l->sequence > r->sequence ? l->sequence : r->sequence;
    weir__chunks_remove(&p->all, right);
}

/* A chunk in no set and no list becomes free space of `s`, or clean for NULL, and joins its
 * neighbours.  Its sequence is set.  The record that it ends up in. */
INLINE uint32_t settle(struct weir_placement *p, struct weir_placement_stream *s, uint32_t id) {
    uint32_t prev = p->all.chunk[id].prev;
    uint32_t next = p->all.chunk[id].next;
    int kept;

    if (chunk_joins(p, next, id, s)) {
        chunk_leave(p, s, next);
        chunk_join(p, id, next);
    }
    if (chunk_joins(p, prev, id, s)) {
        chunk_leave(p, s, prev);
        chunk_join(p, prev, id);
        id = prev;
    }
    kept = weir__bestfit_insert(s == NULL ? &p->clean : &s->fit, key_of(&p->all.chunk[id]), id);
    p->all.kind[id] = s == NULL ? CLEAN : TAGGED;
    if (!kept) {
        p->all.kind[id] |= UNLISTED;
        p->unlisted++;
    }
    if (s != NULL && kept)
        list_insert(p, s, id);
    else if (s != NULL)
        p->all.tag[id].stream = s->id;
    return id;
}

/* Two copies, so that the one for clean space need not ask. */
uint32_t weir__placement_settle_clean(struct weir_placement *p, uint32_t id);
uint32_t weir__placement_settle_tagged(struct weir_placement *p, struct weir_placement_stream *s,
                                       uint32_t id);

static inline uint32_t chunk_settle(struct weir_placement *p, struct weir_placement_stream *s,
                                    uint32_t id) {
    return s == NULL ? weir__placement_settle_clean(p, id)
                     : weir__placement_settle_tagged(p, s, id);
}

/* Brings the unlisted chunks back.  Returns 1 on success, 0 if memory still lacks. */
int weir__placement_unlisted_adopt(struct weir_placement *p);
/* Cuts the chunk `id`, which is in no set, so that a record of `kind` begins at `address`, inside it; both
 * know no neighbours but each other's.  There is room for a record.  The new one. */
uint32_t weir__placement_cut(struct weir_placement *p, uint32_t id, uint64_t address,
                             unsigned kind);
/* Removes [first, end), in granules, from its free chunks, of which `id` is the first, and joins the removed parts.
 * The rest of these chunks keeps its streams.  There is room for a record on either side.  Returns a record that is
 * in no set. */
uint32_t weir__placement_claim_run(struct weir_placement *p, uint32_t id, uint64_t first,
                                   uint64_t end);
/* The chunk of `kind` that starts at `within`, if [address, address + bytes) lies in it; else 0. */
uint32_t weir__placement_around(const struct weir_placement *p, uint64_t within, unsigned kind,
                                uint64_t address, size_t bytes);

/* ---- blocks ---- */

static inline void block_show(const struct weir_placement *p, const struct weir__chunk *c,
                              struct weir_placement_block *out) {
    out->address = c->address << p->shift;
    out->requested = c->requested;
    out->size = c->size << p->shift;
}

/* Returns the record of the live block that starts at `address` (in bytes), or 0 if there is none. */
static inline uint32_t block_find(const struct weir_placement *p, uint64_t address) {
    uint64_t granule = address >> p->shift;

    if ((address & p->mask) != 0)
        return 0;
    return granule == p->last_address ? p->last_taken : weir__chunks_find(&p->all, granule, LIVE);
}

/* Makes chunk `id`, which has `size` granules at `address`, a block. */
INLINE void block_begin(struct weir_placement *p, uint32_t id, uint64_t address, uint64_t size,
                        size_t bytes, struct weir_placement_block *out) {
    p->all.kind[id] = LIVE;
    p->used += size;
    p->requested += bytes;
    p->blocks++;
    out->address = address << p->shift;
    out->requested = bytes;
    out->size = size << p->shift;
}

/* Makes the chunk `id`, which is in no set, a block of `bytes`. */
void weir__placement_make_live(struct weir_placement *p, uint32_t id, size_t bytes,
                               struct weir_placement_block *out);

#endif
