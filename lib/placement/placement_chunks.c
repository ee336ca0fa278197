/* SPDX-License-Identifier: MIT */
/* placement_chunks.c: free chunks are cut, joined and claimed, outside of the fast paths, and records get room.
 *
 * Invariants: one record for each region stays in reserve for the second stream, which a free may bring.  After the
 * table has grown, every record has another number, and everything that refers to a record is updated.
 */
#include "placement/placement_state.h"

uint32_t weir__placement_settle_clean(struct weir_placement *p, uint32_t id) {
    return settle(p, NULL, id);
}

uint32_t weir__placement_settle_tagged(struct weir_placement *p, struct weir_placement_stream *s,
                                       uint32_t id) {
    return settle(p, s, id);
}

int weir__placement_unlisted_adopt(struct weir_placement *p) {
    for (size_t i = 0; i < p->regions && p->unlisted > 0; i++) {
        uint32_t border = p->region[p->by_base[i]].border;
        uint32_t id = p->all.chunk[border].next;

        for (; id != border; id = p->all.chunk[id].next) {
            struct weir_placement_stream *s = NULL;

            if ((p->all.kind[id] & UNLISTED) == 0)
                continue;
            if (chunk_is(p, id, TAGGED)) {
                s = stream_make(p, p->all.tag[id].stream);
                if (s == NULL)
                    return 0;
                step_admit(&s->step, p->all.chunk[id].sequence);
            }
            p->unlisted--;
            id = chunk_settle(p, s, id);
            if ((p->all.kind[id] & UNLISTED) != 0)
                return 0;
        }
    }
    return 1;
}

int weir__placement_settle(struct weir_placement *p) {
    unpark(p);
    return p->unlisted == 0 || weir__placement_unlisted_adopt(p);
}

uint32_t weir__placement_around(const struct weir_placement *p, uint64_t within, unsigned kind,
                                uint64_t address, size_t bytes) {
    uint32_t id;

    if (bytes == 0 || ((within | address | bytes) & p->mask) != 0 || address < within)
        return 0;
    id = weir__chunks_find(&p->all, within >> p->shift, kind);
    if (id == 0 || p->all.chunk[id].size < (address - within) >> p->shift ||
        p->all.chunk[id].size - ((address - within) >> p->shift) < bytes >> p->shift)
        return 0;
    return id;
}

uint32_t weir__placement_cut(struct weir_placement *p, uint32_t id, uint64_t address,
                             unsigned kind) {
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
        p->all.kind[id] == TAGGED ? stream_find(p, p->all.tag[id].stream) : NULL;

    chunk_leave(p, s, id);
    p->all.kind[id] = LIVE;
    if (c->address + c->size > end)
        chunk_settle(p, s, weir__placement_cut(p, id, end, LIVE));
    if (c->address < first) {
        uint32_t rest = weir__placement_cut(p, id, first, LIVE);

        chunk_settle(p, s, id);
        id = rest;
    }
    if (s != NULL)
        p->tagged -= p->all.chunk[id].size;
    return id;
}

uint32_t weir__placement_claim_run(struct weir_placement *p, uint32_t id, uint64_t first,
                                   uint64_t end) {
    struct weir__chunk *c;

    id = claim_part(p, id, first, end);
    c = &p->all.chunk[id];
    while (c->address + c->size < end)
        chunk_join(p, id, claim_part(p, c->next, first, end));
    return id;
}

void weir__placement_make_live(struct weir_placement *p, uint32_t id, size_t bytes,
                               struct weir_placement_block *out) {
    struct weir__chunk *c = &p->all.chunk[id];

    mark_end(p, c->next, c->address + c->size);
    c->requested = bytes;
    block_begin(p, id, c->address, c->size, bytes, out);
}

/* ---- room for records ---- */

/* Updates every number of a record after the table has grown, from `old`.  The last take is forgotten before. */
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
        struct weir_placement_region *r = &p->region[p->by_base[i]];
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
                weir__bestfit_set(&stream_find(p, t->stream)->fit, key_of(c), id);
            } else if (p->all.kind[id] == CLEAN) {
                weir__bestfit_set(&p->clean, key_of(c), id);
            }
            id = c->next;
        } while (id != r->border);
    }
#undef MOVED
}

int weir__placement_records_reserve(struct weir_placement *p, size_t room) {
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
    size_t used;

    unpark(p);
    used = weir__chunks_used(&p->all);
    if (chunks > used && !weir__placement_records_reserve(p, chunks - used))
        return;
    weir__hostmem_populate(p->all.memory, p->all.bytes);
    weir__bestfit_populate(&p->clean);
}

int weir__placement_take_reserve(struct weir_placement *p) {
    return weir__placement_records_reserve(p, p->regions + 1) &&
           (p->unlisted == 0 || weir__placement_unlisted_adopt(p));
}
