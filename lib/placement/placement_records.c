/* SPDX-License-Identifier: MIT */
/* placement_records.c: room for the records of chunks.
 *
 * Invariants: one record per region stays in reserve for the second stream, which a free may bring.  After the table
 * has grown every record has another number; all that lead to records follow.
 */
#include "placement/placement_chunks.h"

/* Every number that leads to a record, after the table has grown: `old` tells the new ones.  The last
 * take is forgotten by then. */
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
