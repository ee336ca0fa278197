/* SPDX-License-Identifier: MIT */
/* placement.c: best fit, split and coalesce over address ranges, in logarithmic time.
 *
 * Addresses and sizes are counted in granules.  Chunks are records in a table by address
 * (chunk_table.h), named by their number, and linked in the order of addresses; each region's chunks and
 * one border record form a ring, so that every chunk has two neighbours.  Free chunks are besides
 *
 *   in a set    ordered by size and address (free_tree.h): one of the clean ones, one per stream
 *   in a list   if tagged: per stream, in the order of sequences
 *
 * While only one stream was seen, all free chunks are in the clean set; a chunk then remembers just
 * the latest sequence it was freed with, and the tags are made up when a second stream appears.
 *
 * A take reserves all that it needs before it changes anything.  A free needs no memory except for
 * nodes of a set or for a stream seen first; where the host refuses that, the chunk stays outside
 * the sets and lists as a stray, and the next take brings it in, or fails for want of memory.
 * Invariants are spelt out, and checked, in weir__placement_check.
 *
 * Nothing here leads from an address inside a block to the block: that is no part of any ordinary
 * path, and an ordered structure for it would cost each of them.  Such an address is answered by a
 * walk over its region.
 *
 * Must not know: drivers, locks, what is behind an address, what a stream is.
 */
#include "placement/placement.h"

#include "base/hostmem.h"
#include "base/size.h"
#include "placement/chunk_table.h"
#include "placement/free_tree.h"

#include <inttypes.h>
#include <string.h>

#define FIRST_RECORDS ((size_t)32)
#define FIRST_STREAMS ((size_t)16)
#define NOWHERE UINT64_MAX                         /* no address in granules */
#define STREAM_FACTOR UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio */

/* One copy per use, made for what is known there. */
#define INLINE static inline __attribute__((always_inline))

enum kind {
    UNUSED = 0,
    BORDER = 1,
    LIVE = 2,
    CLEAN = 3,
    TAGGED = 4,
    PARKED = 5, /* see "parking" */
    HOLE = 6,   /* without memory */
    STRAY = 8   /* with CLEAN or TAGGED: in no set and no list */
};

/* Free chunks that are looked at for a given address. */
enum { PROBES = 64 };

struct region {
    uint64_t base;
    uint64_t end;
    uint64_t high;   /* end of the highest block ever handed out, or filled, or base */
    uint64_t used;   /* the same of blocks alone, as long as there is one stream */
    uint32_t border; /* 0: the slot is not in use */
};

struct pace {
    uint64_t observed; /* the host has seen it pass; never beyond `last` */
    uint64_t last;     /* latest sequence of a free */
};

struct stream {
    uint64_t id;
    struct pace pace;
    uint32_t oldest; /* list of tagged chunks, sequences ascending; 0: empty */
    uint32_t newest;
    struct weir__bestfit fit;
};

struct weir_placement {
    unsigned shift;          /* log2 of the granularity */
    int several;             /* a second stream, or stream 0, was seen */
    uint64_t mask;           /* granularity - 1 */
    uint64_t limit;          /* the most bytes that, rounded, overflow neither size_t nor a key */
    uint64_t waste;          /* of the split rule, in granules, rounded up */
    int own_first;           /* as the rule has it */
    uint64_t only;           /* the one stream seen so far; 0: none yet, or several */
    struct pace pace;        /* of the only stream */
    struct weir__chunks all; /* the records */
    size_t used;             /* granules in live blocks */
    size_t strays;
    size_t requested; /* bytes asked for live blocks */
    size_t tagged;    /* granules in tagged chunks */
    size_t blocks;
    struct weir__bestfit clean;

    /* the last take, for as long as nothing else has happened */
    uint64_t last_address; /* NOWHERE: something has */
    uint32_t last_taken;
    uint32_t parked; /* last_taken, if it was given back meanwhile; else 0 */
    uint64_t last_want;
    uint64_t last_stream; /* only if `several` */
    size_t last_most;

    struct stream *recent;   /* looked up last, or NULL */
    struct stream **streams; /* open addressing by id, at most half full */
    size_t stream_slots;
    size_t stream_count;
    struct region *region; /* slots, so that a border's index stays */
    uint32_t *by_base;     /* the slots in use, by base */
    size_t region_length;
    size_t by_base_length;
    size_t regions;
    size_t total;  /* granules in all regions, */
    size_t hollow; /* and of these in holes */
    size_t holes;
    size_t extent; /* granules below the regions' high marks */
    struct weir__bestfit_pool pool;
    struct weir__hostmem host;
};

static inline uint64_t key_of(const struct weir__chunk *c) {
    return weir__bestfit_key(c->size, c->address);
}

/* Live and free ones: all records but the borders. */
static size_t chunk_count(const struct weir_placement *p) {
    return weir__chunks_used(&p->all) - p->regions;
}

/* ------------------------------------------------------------------- streams -- */

static size_t stream_slot(const struct weir_placement *p, uint64_t id) {
    size_t mask = p->stream_slots - 1;
    size_t i = (size_t)(id * STREAM_FACTOR >> 32) & mask;

    while (p->streams[i] != NULL && p->streams[i]->id != id) {
        i = (i + 1) & mask;
    }
    return i;
}

static struct stream *stream_find(struct weir_placement *p, uint64_t id) {
    struct stream *s = p->recent;

    if (s != NULL && s->id == id) {
        return s;
    }
    if (p->stream_slots == 0) {
        return NULL;
    }
    s = p->streams[stream_slot(p, id)];
    if (s != NULL) {
        p->recent = s;
    }
    return s;
}

static struct stream *stream_new(struct weir__hostmem *host, struct weir__bestfit_pool *pool,
                                 uint64_t id) {
    struct stream *s = weir__hostmem_resize(host, NULL, 0, sizeof *s);

    if (s != NULL) {
        memset(s, 0, sizeof *s);
        s->id = id;
        weir__bestfit_init(&s->fit, pool);
    }
    return s;
}

static void stream_drop(struct weir_placement *p, struct stream *s) {
    weir__bestfit_drop(&s->fit);
    weir__hostmem_resize(&p->host, s, sizeof *s, 0);
}

/* Makes room for one more stream.  Those that have no tagged chunk left are forgotten only here: a
 * program that keeps making streams must not make the table grow for ever.  1 or 0. */
static int streams_reserve(struct weir_placement *p) {
    struct stream **old = p->streams;
    size_t old_slots = p->stream_slots;
    size_t kept = 0;
    size_t slots = FIRST_STREAMS;

    if (p->stream_count < old_slots / 2) {
        return 1;
    }
    for (size_t i = 0; i < old_slots; i++) {
        kept += old[i] != NULL && old[i]->oldest != 0;
    }
    while (slots < 4 * (kept + 1)) {
        slots *= 2;
    }
    p->streams = weir__hostmem_resize(&p->host, NULL, 0, slots * sizeof *p->streams);
    if (p->streams == NULL) {
        p->streams = old;
        return 0;
    }
    memset(p->streams, 0, slots * sizeof *p->streams);
    p->stream_slots = slots;
    p->stream_count = kept;
    p->recent = NULL;
    for (size_t i = 0; i < old_slots; i++) {
        if (old[i] != NULL && old[i]->oldest == 0) {
            stream_drop(p, old[i]);
        } else if (old[i] != NULL) {
            p->streams[stream_slot(p, old[i]->id)] = old[i];
        }
    }
    weir__hostmem_resize(&p->host, old, old_slots * sizeof *old, 0);
    return 1;
}

/* The stream, made if need be; NULL if memory ran out. */
static struct stream *stream_make(struct weir_placement *p, uint64_t id) {
    struct stream *s = stream_find(p, id);

    if (s != NULL || !streams_reserve(p)) {
        return s;
    }
    s = stream_new(&p->host, &p->pool, id);
    if (s != NULL) {
        p->streams[stream_slot(p, id)] = s;
        p->stream_count++;
        p->recent = s;
    }
    return s;
}

/* The sequence under which a free is kept: 0 if the stream was already observed past it.  One that
 * comes late counts as the latest, so that lists stay in order. */
static inline uint64_t pace_admit(struct pace *pace, uint64_t sequence) {
    sequence += sequence == 0;
    if (sequence <= pace->observed) {
        return 0;
    }
    if (sequence < pace->last) {
        sequence = pace->last;
    }
    pace->last = sequence;
    return sequence;
}

static void pace_observe(struct pace *pace, uint64_t sequence) {
    if (sequence > pace->last) {
        sequence = pace->last; /* what is freed later is not covered */
    }
    if (sequence > pace->observed) {
        pace->observed = sequence;
    }
}

/* --------------------------------------------------------------------- lists -- */

/* Into the list by its sequence: at the end, but for a stray that comes back. */
static void list_insert(struct weir_placement *p, struct stream *s, uint32_t id) {
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

static void list_remove(struct weir_placement *p, struct stream *s, uint32_t id) {
    struct weir__chunk_tag *t = &p->all.tag[id];

    *(t->older != 0 ? &p->all.tag[t->older].newer : &s->oldest) = t->newer;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &s->newest) = t->older;
}

/* `id` takes the place of `old`. */
static void list_replace(struct weir_placement *p, struct stream *s, uint32_t old, uint32_t id) {
    struct weir__chunk_tag *t = &p->all.tag[id];

    *t = p->all.tag[old];
    *(t->older != 0 ? &p->all.tag[t->older].newer : &s->oldest) = id;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &s->newest) = id;
}

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

/* Sorts the chain that starts at `id` (through newer) by sequence; the first. */
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
    for (unsigned i = 0; i < 32; i++) {
        all = list_merge(p, run[i], all);
    }
    return all;
}

/* --------------------------------------------------------------- free chunks -- */

static inline int chunk_is(const struct weir_placement *p, uint32_t id, unsigned kind) {
    return (p->all.kind[id] & ~(unsigned)STRAY) == kind;
}

/* May the free chunk `id` join one that is tagged by `s`, or clean for NULL? */
static inline int chunk_joins(const struct weir_placement *p, uint32_t id, const struct stream *s) {
    if (s == NULL) {
        return chunk_is(p, id, CLEAN);
    }
    return chunk_is(p, id, TAGGED) && p->all.tag[id].stream == s->id;
}

/* A free chunk is about to change: out of its set and list.  A stray may be later than all that its
 * stream knows of. */
INLINE void chunk_leave(struct weir_placement *p, struct stream *s, uint32_t id) {
    if ((p->all.kind[id] & STRAY) != 0) {
        p->strays--;
        if (s != NULL) {
            pace_admit(&s->pace, p->all.chunk[id].sequence);
        }
        return;
    }
    if (s != NULL) {
        list_remove(p, s, id);
    }
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
INLINE uint32_t settle(struct weir_placement *p, struct stream *s, uint32_t id) {
    uint32_t prev = p->all.chunk[id].prev;
    uint32_t next = p->all.chunk[id].next;
    int kept;

    if (chunk_joins(p, next, s)) {
        chunk_leave(p, s, next);
        chunk_join(p, id, next);
    }
    if (chunk_joins(p, prev, s)) {
        chunk_leave(p, s, prev);
        chunk_join(p, prev, id);
        id = prev;
    }
    kept = weir__bestfit_insert(s == NULL ? &p->clean : &s->fit, key_of(&p->all.chunk[id]), id);
    p->all.kind[id] = s == NULL ? CLEAN : TAGGED;
    if (!kept) {
        p->all.kind[id] |= STRAY;
        p->strays++;
    }
    if (s != NULL && kept) {
        list_insert(p, s, id);
    } else if (s != NULL) {
        p->all.tag[id].stream = s->id;
    }
    return id;
}

/* Two copies, so that the one for clean space need not ask. */
static uint32_t settle_clean(struct weir_placement *p, uint32_t id) {
    return settle(p, NULL, id);
}

static uint32_t settle_tagged(struct weir_placement *p, struct stream *s, uint32_t id) {
    return settle(p, s, id);
}

static uint32_t chunk_settle(struct weir_placement *p, struct stream *s, uint32_t id) {
    return s == NULL ? settle_clean(p, id) : settle_tagged(p, s, id);
}

/* Brings the strays back.  1, or 0 if memory still lacks. */
static int strays_adopt(struct weir_placement *p) {
    for (size_t i = 0; i < p->regions && p->strays > 0; i++) {
        uint32_t border = p->region[p->by_base[i]].border;
        uint32_t id = p->all.chunk[border].next;

        for (; id != border; id = p->all.chunk[id].next) {
            struct stream *s = NULL;

            if ((p->all.kind[id] & STRAY) == 0) {
                continue;
            }
            if (chunk_is(p, id, TAGGED)) {
                s = stream_make(p, p->all.tag[id].stream);
                if (s == NULL) {
                    return 0;
                }
                pace_admit(&s->pace, p->all.chunk[id].sequence);
            }
            p->strays--;
            id = chunk_settle(p, s, id);
            if ((p->all.kind[id] & STRAY) != 0) {
                return 0;
            }
        }
    }
    return 1;
}

/* ------------------------------------------------------------------- parking -- */

/* A block that is given back as the very next thing after it was taken is parked: it counts as free
 * but is laid out as if it were live.  If the next thing is a take of the same size within the same
 * bounds by the same stream, the block is what that take gets: all is as it was when it was the best
 * fit.  Anything else unparks it first, which is the free that was put off. */
static void parked_settle(struct weir_placement *p) {
    uint32_t id = p->parked;

    p->parked = 0;
    chunk_settle(p, p->several ? stream_find(p, p->last_stream) : NULL, id);
}

static inline void unpark(struct weir_placement *p) {
    p->last_address = NOWHERE;
    if (p->parked != 0) {
        parked_settle(p);
    }
}

/* For those that only look: nothing that they can see depends on whether a block is parked. */
static const struct weir_placement *unparked(const struct weir_placement *p) {
    if (p->parked != 0) {
        unpark((struct weir_placement *)(uintptr_t)p);
    }
    return p;
}

/* ------------------------------------------------------------- second stream -- */

/* What lies above the mark of `r` was never used: cut off from what was, and clean.  Where it was not
 * used at all, its sequence is that of a block that it had joined and that was taken again. */
static void cut_at_mark(struct weir_placement *p, const struct region *r) {
    for (uint32_t id = p->all.chunk[r->border].prev; id != r->border; id = p->all.chunk[id].prev) {
        struct weir__chunk *c = &p->all.chunk[id];
        uint32_t rest;

        if (c->address + c->size <= r->used) {
            return;
        }
        if (!chunk_is(p, id, CLEAN) || c->sequence <= p->pace.observed) {
            continue;
        }
        if (r->used <= c->address) {
            c->sequence = 0;
            continue;
        }
        rest = weir__chunks_add(&p->all, r->used);
        c = &p->all.chunk[id];
        p->all.chunk[rest] = (struct weir__chunk){.address = r->used,
                                                  .size = c->address + c->size - r->used,
                                                  .prev = id,
                                                  .next = c->next};
        p->all.kind[rest] = CLEAN;
        p->all.chunk[c->next].prev = rest;
        c->next = rest;
        c->size = r->used - c->address;
        return;
    }
}

/* Makes every free chunk a stray, with the tag that it has earned.  The tagged ones are chained in
 * no order through `newer`; the first of them is returned. */
static uint32_t unsettle_all(struct weir_placement *p, uint64_t stream) {
    uint32_t chain = 0;

    p->strays = 0;
    for (size_t i = 0; i < p->regions; i++) {
        const struct region *r = &p->region[p->by_base[i]];
        cut_at_mark(p, r);
        for (uint32_t id = p->all.chunk[r->border].next; id != r->border;
             id = p->all.chunk[id].next) {
            struct weir__chunk *c = &p->all.chunk[id];

            if (!chunk_is(p, id, CLEAN)) {
                continue;
            }
            p->strays++;
            p->all.kind[id] = CLEAN | STRAY;
            if (c->sequence <= p->pace.observed) {
                c->sequence = 0;
                continue;
            }
            p->all.kind[id] = TAGGED | STRAY;
            p->all.tag[id] = (struct weir__chunk_tag){.stream = stream, .newer = chain};
            p->tagged += c->size;
            chain = id;
        }
    }
    return chain;
}

/* From here on tags count.  This is linear in the number of chunks, once for a placement. */
static void second_stream(struct weir_placement *p) {
    uint64_t first = p->only;
    struct stream *s;
    uint32_t chain;

    p->several = 1;
    p->only = 0;
    if (first == 0) {
        return;
    }
    weir__bestfit_drop(&p->clean);
    chain = list_sort(p, unsettle_all(p, first));
    s = stream_make(p, first);
    if (s != NULL) {
        s->pace = p->pace;
    }
    while (s != NULL && chain != 0) {
        uint32_t id = chain;

        chain = p->all.tag[id].newer;
        p->strays--;
        chunk_settle(p, s, id);
    }
    strays_adopt(p);
}

/* Another than the only stream takes or frees, or there are several. */
static void stream_note(struct weir_placement *p, uint64_t stream) {
    if (p->several) {
        return;
    }
    if (p->only == 0 && stream != 0) {
        p->only = stream;
    } else {
        second_stream(p);
    }
}

/* Notes that `stream` takes or frees. */
static inline void stream_seen(struct weir_placement *p, uint64_t stream) {
    if (stream != p->only || stream == 0) {
        stream_note(p, stream);
    }
}

/* ---------------------------------------------------------------------- take -- */

/* Every number that leads to a record, after the table has grown: `old` tells the new ones.  The last
 * take is forgotten by then. */
static void records_follow(struct weir_placement *p, const struct weir__chunks *old) {
#define MOVED(id) ((id) == 0 ? 0 : (uint32_t)old->chunk[id].address)
    for (size_t i = 0; i < p->stream_slots; i++) {
        struct stream *s = p->streams[i];

        if (s != NULL) {
            s->oldest = MOVED(s->oldest);
            s->newest = MOVED(s->newest);
        }
    }
    for (size_t i = 0; i < p->regions; i++) {
        struct region *r = &p->region[p->by_base[i]];
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

/* Makes sure of room for so many records.  1, or 0 if memory ran out. */
static int records_reserve(struct weir_placement *p, size_t room) {
    struct weir__chunks old;

    if (p->all.room >= room) {
        return 1;
    }
    if (!weir__chunks_grow(&p->all, &p->host, room, p->several, &old)) {
        return 0;
    }
    records_follow(p, &old);
    weir__chunks_drop(&old, &p->host);
    return 1;
}

void weir__placement_stock(struct weir_placement *p, size_t chunks) {
    size_t used;

    unpark(p);
    used = weir__chunks_used(&p->all);
    if (chunks > used && !records_reserve(p, chunks - used)) {
        return;
    }
    weir__hostmem_populate(p->all.memory, p->all.bytes);
    weir__bestfit_populate(&p->clean);
}

/* All that a take may need: a record for the remainder, and no strays.  A record per region stays
 * in reserve for the second stream, which a free may bring. */
static int take_reserve(struct weir_placement *p) {
    return records_reserve(p, p->regions + 1) && (p->strays == 0 || strays_adopt(p));
}

/* A free chunk that is a whole region of more than `most` granules. */
static inline int is_spared(const struct weir__chunk *c, uint64_t most) {
    return c->size > most && c->prev == c->next; /* both are the border */
}

/* The best fit for `want` granules of a set and, unless NULL, of another, but for idle regions of more than
 * `most` bytes. */
INLINE struct weir__bestfit_hit best_of(const struct weir_placement *p,
                                        const struct weir__bestfit *one,
                                        const struct weir__bestfit *other, uint64_t want,
                                        size_t most) {
    uint64_t key = weir__bestfit_key(want, 0);

    for (;;) {
        struct weir__bestfit_hit hit = weir__bestfit_from(one, key);
        struct weir__bestfit_hit second;

        if (other != NULL) {
            second = weir__bestfit_from(other, key);
            hit = second.key < hit.key ? second : hit;
        }
        if (hit.key == WEIR__BESTFIT_NONE ||
            !is_spared(&p->all.chunk[hit.value], most >> p->shift)) {
            return hit;
        }
        key = hit.key + 1;
    }
}

/* What is left of chunk `id`, which has left its set, when it is cut at `address`: `size` granules
 * that take its place. */
INLINE void rest_settle(struct weir_placement *p, struct stream *own, uint32_t id, uint64_t address,
                        uint64_t size) {
    uint32_t rest = weir__chunks_add(&p->all, address);
    struct weir__chunk *chunk = p->all.chunk;
    struct weir__chunk *c = &chunk[id];
    struct weir__chunk *r = &chunk[rest];
    uint32_t next = c->next;

    r->address = address;
    r->size = size;
    r->prev = id;
    r->next = next;
    r->sequence = c->sequence;
    chunk[next].prev = rest;
    c->next = rest;
    p->all.kind[rest] = own == NULL ? CLEAN : TAGGED;
    if (!weir__bestfit_insert(own == NULL ? &p->clean : &own->fit, weir__bestfit_key(size, address),
                              rest)) {
        p->all.kind[rest] |= STRAY;
        p->strays++;
        if (own != NULL) {
            list_remove(p, own, id);
            p->all.tag[rest].stream = own->id;
        }
    } else if (own != NULL) {
        list_replace(p, own, id, rest);
    }
}

static inline void block_show(const struct weir_placement *p, const struct weir__chunk *c,
                              struct weir_placement_block *out) {
    out->address = c->address << p->shift;
    out->requested = c->requested;
    out->size = c->size << p->shift;
}

/* Chunk `id`, so many granules at `address`, is a block from here on. */
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

/* The position in by_base of the first region that ends above `address`. */
static size_t region_position(const struct weir_placement *p, uint64_t address) {
    size_t low = 0;
    size_t high = p->regions;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (p->region[p->by_base[middle]].end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static inline void mark_high(struct weir_placement *p, struct region *r, uint64_t end) {
    if (end > r->high) {
        p->extent += end - r->high;
        r->high = end;
    }
    if (end > r->used) {
        r->used = end;
    }
}

/* A block ends at `end`, of the last chunk before `next`, which is no chunk with memory: no other can reach
 * above a mark. */
static inline void mark_end(struct weir_placement *p, uint32_t next, uint64_t end) {
    if (p->all.kind[next] == BORDER) {
        mark_high(p, &p->region[p->all.chunk[next].region], end);
    } else if (!p->several) {
        mark_high(p, &p->region[p->by_base[region_position(p, end - 1)]], end);
    }
}

/* Makes a live block of the free chunk `id` with that key; `own` if it carries that stream's tag,
 * else NULL. */
INLINE void take_carve(struct weir_placement *p, struct stream *own, uint32_t id, uint64_t key,
                       uint64_t want, size_t bytes, struct weir_placement_block *out) {
    struct weir__chunk *c = &p->all.chunk[id];
    uint64_t address = c->address;
    uint64_t size = c->size;
    uint64_t rest = size - want;
    uint32_t next = c->next;

    weir__bestfit_erase(own == NULL ? &p->clean : &own->fit, key);
    if (rest >= (want < p->waste ? want : p->waste)) {
        rest_settle(p, own, id, address + want, rest);
        size = want;
        c->size = want;
    } else if (own != NULL) {
        list_remove(p, own, id);
    }
    if (own != NULL) {
        p->tagged -= size;
    }
    if (p->all.kind[next] == BORDER || p->all.kind[next] == HOLE) {
        mark_end(p, next, address + size);
    }
    c->requested = bytes;
    block_begin(p, id, address, size, bytes, out);
}

/* The parked block again.  What was cut off from it would have joined it and been cut off anew. */
static void take_parked(struct weir_placement *p, size_t bytes, struct weir_placement_block *out) {
    uint32_t id = p->parked;
    struct weir__chunk *c = &p->all.chunk[id];

    p->parked = 0;
    p->last_address = c->address;
    if (p->several) {
        p->tagged -= c->size;
    } else if (p->all.kind[c->next] == CLEAN) {
        p->all.chunk[c->next].sequence = c->sequence;
    }
    c->requested = bytes;
    block_begin(p, id, c->address, c->size, bytes, out);
}

/* The best fit for `want` granules of the clean chunks and, unless NULL, of `own`. */
INLINE struct weir__bestfit_hit best_for(const struct weir_placement *p, const struct stream *own,
                                         uint64_t want, size_t most) {
    struct weir__bestfit_hit hit;

    if (own == NULL) {
        return best_of(p, &p->clean, NULL, want, most);
    }
    if (!p->own_first) {
        return best_of(p, &p->clean, &own->fit, want, most);
    }
    hit = best_of(p, &own->fit, NULL, want, most);
    return hit.key != WEIR__BESTFIT_NONE ? hit : best_of(p, &p->clean, NULL, want, most);
}

/* Takes it. */
INLINE int take(struct weir_placement *p, struct stream *own, uint64_t want, size_t bytes,
                size_t most, struct weir_placement_block *out) {
    struct weir__bestfit_hit hit = best_for(p, own, want, most);

    if (hit.key == WEIR__BESTFIT_NONE) {
        return WEIR_PLACEMENT_NO_FIT;
    }
    p->last_address = p->all.chunk[hit.value].address;
    p->last_taken = hit.value;
    p->last_want = want;
    p->last_most = most;
    take_carve(p, own != NULL && p->all.kind[hit.value] == TAGGED ? own : NULL, hit.value, hit.key,
               want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* Two copies, as of `settle`. */
static int take_clean(struct weir_placement *p, uint64_t want, size_t bytes, size_t most,
                      struct weir_placement_block *out) {
    return take(p, NULL, want, bytes, most, out);
}

static int take_tagged(struct weir_placement *p, struct stream *own, uint64_t want, size_t bytes,
                       size_t most, struct weir_placement_block *out) {
    return take(p, own, want, bytes, most, out);
}

/* A take for which there is something to be seen to first. */
static int take_prepared(struct weir_placement *p, size_t bytes, uint64_t stream, size_t most,
                         struct weir_placement_block *out) {
    size_t rounded;
    uint64_t want;

    if (bytes == 0 || !weir__size_round_up(bytes, p->mask + 1, &rounded)) {
        return WEIR_PLACEMENT_INVALID;
    }
    want = rounded >> p->shift;
    if (p->parked != 0 && want == p->last_want && most == p->last_most &&
        stream == (p->several ? p->last_stream : p->only)) {
        take_parked(p, bytes, out);
        return WEIR_PLACEMENT_OK;
    }
    unpark(p);
    stream_seen(p, stream);
    if (!take_reserve(p)) {
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    if (want >> WEIR__BESTFIT_BITS != 0) {
        return WEIR_PLACEMENT_NO_FIT;
    }
    p->last_stream = stream;
    /* The stream is looked up here and not before: bringing strays in may have forgotten it. */
    return p->several && stream != 0
               ? take_tagged(p, stream_find(p, stream), want, bytes, most, out)
               : take_clean(p, want, bytes, most, out);
}

int weir__placement_take_within(struct weir_placement *p, size_t bytes, uint64_t stream,
                                size_t most, struct weir_placement_block *out) {
    if (bytes - 1 < p->limit && stream == p->only && stream != 0 && p->parked == 0 &&
        p->all.room > p->regions && p->strays == 0) {
        return take_clean(p, (bytes + p->mask) >> p->shift, bytes, most, out);
    }
    return take_prepared(p, bytes, stream, most, out);
}

int weir__placement_take(struct weir_placement *p, size_t bytes, uint64_t stream,
                         struct weir_placement_block *out) {
    return weir__placement_take_within(p, bytes, stream, SIZE_MAX, out);
}

/* The size of the largest chunk of a set, in granules. */
static uint64_t largest_of(const struct weir__bestfit *fit) {
    uint64_t key = weir__bestfit_last(fit);

    return key == WEIR__BESTFIT_NONE ? 0 : weir__bestfit_size(key);
}

size_t weir__placement_largest(struct weir_placement *p, uint64_t stream) {
    const struct stream *own;
    uint64_t clean, tagged = 0;

    unpark(p);
    own = p->several && stream != 0 ? stream_find(p, stream) : NULL;
    clean = largest_of(&p->clean);
    if (own != NULL) {
        tagged = largest_of(&own->fit);
    }
    return (clean > tagged ? clean : tagged) << p->shift;
}

/* --------------------------------------------------------------- take behind -- */

/* Cuts the chunk `id`, which is in no set, so that a record of `kind` begins at `address`, inside it; both
 * know no neighbours but each other's.  There is room for a record.  The new one. */
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

/* Neighbouring chunks, from `first` on. */
struct run {
    uint32_t first;
    uint64_t size; /* in granules */
};

/* The free chunk `id` is not at once for `stream`. */
static int is_others(const struct weir_placement *p, uint32_t id, uint64_t stream) {
    return p->all.kind[id] == TAGGED && (p->all.tag[id].stream != stream || stream == 0);
}

/* The chunk `id` serves `stream`, at once or behind a wait. */
static int may_have(const struct weir_placement *p, uint32_t id, uint64_t stream,
                    const struct weir_placement_waits *waits) {
    if (is_others(p, id, stream)) {
        return waits->may(waits->context, p->all.tag[id].stream, p->all.chunk[id].sequence);
    }
    return p->all.kind[id] == CLEAN || p->all.kind[id] == TAGGED;
}

/* The smallest run in a region that holds `want` granules, if smaller than *best. */
static void run_search(const struct weir_placement *p, const struct region *r, uint64_t want,
                       uint64_t stream, const struct weir_placement_waits *waits,
                       struct run *best) {
    const struct weir__chunk *chunk = p->all.chunk;
    struct run now = {0};

    for (uint32_t id = chunk[r->border].next; id != r->border; id = chunk[id].next) {
        if (!may_have(p, id, stream, waits)) {
            now = (struct run){0};
            continue;
        }
        if (now.size == 0) {
            now.first = id;
        }
        now.size += chunk[id].size;
        while (now.size - chunk[now.first].size >= want) {
            now.size -= chunk[now.first].size;
            now.first = chunk[now.first].next;
        }
        if (now.size >= want && (best->first == 0 || now.size < best->size)) {
            *best = now;
        }
    }
}

/* Waits for the chunks from `id` on that hold `want` granules; 0: a wait failed. */
static int run_wait(const struct weir_placement *p, uint32_t id, uint64_t want, uint64_t stream,
                    const struct weir_placement_waits *waits) {
    for (uint64_t got = 0; got < want; got += p->all.chunk[id].size, id = p->all.chunk[id].next) {
        if (is_others(p, id, stream) &&
            !waits->wait(waits->context, p->all.tag[id].stream, p->all.chunk[id].sequence)) {
            return 0;
        }
    }
    return 1;
}

/* The part of the free chunk `id` in [first, end), in granules, leaves its set; what lies outside stays whose
 * it was.  There is room for a record on either side.  Its record, which is in no set. */
static uint32_t chunk_claim(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end) {
    const struct weir__chunk *c = &p->all.chunk[id];
    struct stream *s = p->all.kind[id] == TAGGED ? stream_find(p, p->all.tag[id].stream) : NULL;

    chunk_leave(p, s, id);
    p->all.kind[id] = LIVE;
    if (c->address + c->size > end) {
        chunk_settle(p, s, chunk_cut(p, id, end, LIVE));
    }
    if (c->address < first) {
        uint32_t rest = chunk_cut(p, id, first, LIVE);

        chunk_settle(p, s, id);
        id = rest;
    }
    if (s != NULL) {
        p->tagged -= p->all.chunk[id].size;
    }
    return id;
}

/* The same of the free chunks from `id` on, joined. */
static uint32_t run_claim(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end) {
    struct weir__chunk *c;

    id = chunk_claim(p, id, first, end);
    c = &p->all.chunk[id];
    while (c->address + c->size < end) {
        chunk_join(p, id, chunk_claim(p, c->next, first, end));
    }
    return id;
}

/* The block of `want` granules at the beginning of a run. */
static void run_take(struct weir_placement *p, uint32_t id, uint64_t want, size_t bytes,
                     struct weir_placement_block *out) {
    uint64_t address = p->all.chunk[id].address;
    struct weir__chunk *c = &p->all.chunk[run_claim(p, id, address, address + want)];
    uint32_t border = p->all.kind[c->next] == BORDER ? c->next : p->all.chunk[c->next].next;

    if (p->all.kind[border] == BORDER) {
        mark_high(p, &p->region[p->all.chunk[border].region], address + want);
    }
    c->requested = bytes;
    block_begin(p, id, address, want, bytes, out);
}

int weir__placement_take_behind(struct weir_placement *p, size_t bytes, uint64_t stream,
                                const struct weir_placement_waits *waits,
                                struct weir_placement_block *out) {
    struct run best = {0};
    size_t rounded;

    if (bytes == 0 || !weir__size_round_up(bytes, p->mask + 1, &rounded)) {
        return WEIR_PLACEMENT_INVALID;
    }
    unpark(p);
    stream_seen(p, stream);
    if (!p->several) {
        return WEIR_PLACEMENT_NO_FIT;
    }
    if (!take_reserve(p)) {
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    for (size_t i = 0; i < p->regions; i++) {
        run_search(p, &p->region[p->by_base[i]], rounded >> p->shift, stream, waits, &best);
    }
    if (best.first == 0 || !run_wait(p, best.first, rounded >> p->shift, stream, waits)) {
        return WEIR_PLACEMENT_NO_FIT;
    }
    run_take(p, best.first, rounded >> p->shift, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* ---------------------------------------------------------------------- give -- */

/* What an address is at which no live block starts; the block around it in *out (may be NULL). */
static int diagnose(const struct weir_placement *p, uint64_t address,
                    struct weir_placement_block *out) {
    uint64_t granule = address >> p->shift;
    size_t position = region_position(p, granule);
    uint32_t id;

    if (position == p->regions || p->region[p->by_base[position]].base > granule) {
        return WEIR_PLACEMENT_FOREIGN;
    }
    id = p->all.chunk[p->region[p->by_base[position]].border].next;
    while (p->all.chunk[id].address + p->all.chunk[id].size <= granule) {
        id = p->all.chunk[id].next;
    }
    if (p->all.kind[id] == HOLE) {
        return WEIR_PLACEMENT_FOREIGN;
    }
    if (p->all.kind[id] != LIVE) {
        return WEIR_PLACEMENT_FREE;
    }
    if (out != NULL) {
        block_show(p, &p->all.chunk[id], out);
    }
    return WEIR_PLACEMENT_INTERIOR;
}

/* A freed chunk becomes a stray of a stream without a record.  What else the stream has freed are
 * strays then: it joins them here, since later only its direct neighbours are looked at. */
static void chunk_stray(struct weir_placement *p, uint64_t stream, uint32_t id) {
    uint32_t prev = p->all.chunk[id].prev;
    uint32_t next = p->all.chunk[id].next;

    p->all.kind[id] = TAGGED | STRAY;
    p->all.tag[id].stream = stream;
    p->strays++;
    if (p->all.kind[next] == (TAGGED | STRAY) && p->all.tag[next].stream == stream) {
        p->strays--;
        chunk_join(p, id, next);
    }
    if (p->all.kind[prev] == (TAGGED | STRAY) && p->all.tag[prev].stream == stream) {
        p->strays--;
        chunk_join(p, prev, id);
    }
}

static inline void park_block(struct weir_placement *p, uint32_t id) {
    p->parked = id;
    p->all.kind[id] = PARKED;
    p->last_address = NOWHERE;
}

/* A block of `stream` ends; `park` if it was the last thing taken. */
static void give_tagged(struct weir_placement *p, uint32_t id, uint64_t stream, uint64_t sequence,
                        int park) {
    struct stream *s = stream_make(p, stream);
    struct weir__chunk *c = &p->all.chunk[id];

    c->sequence = s != NULL ? pace_admit(&s->pace, sequence) : sequence + (sequence == 0);
    if (c->sequence == 0) {
        settle_clean(p, id);
        return;
    }
    p->tagged += c->size;
    if (s == NULL) {
        chunk_stray(p, stream, id);
        return;
    }
    if (park && stream == p->last_stream && stream != 0 && !chunk_joins(p, c->prev, s) &&
        !chunk_joins(p, c->next, s)) {
        park_block(p, id);
        return;
    }
    settle_tagged(p, s, id);
}

/* The record of the live block that starts at `address` (in bytes); 0: there is none. */
static inline uint32_t block_find(const struct weir_placement *p, uint64_t address) {
    uint64_t granule = address >> p->shift;

    if ((address & p->mask) != 0) {
        return 0;
    }
    return granule == p->last_address ? p->last_taken : weir__chunks_find(&p->all, granule, LIVE);
}

/* The block `id` is live no more; what it was in *out. */
INLINE void block_end(struct weir_placement *p, uint32_t id, uint64_t address,
                      struct weir_placement_block *out) {
    const struct weir__chunk *c = &p->all.chunk[id];
    uint64_t size = c->size;
    size_t requested = c->requested;

    p->used -= size;
    p->requested -= requested;
    p->blocks--;
    if (out != NULL) {
        out->address = address;
        out->requested = requested;
        out->size = size << p->shift;
    }
}

/* The free of a block, which has ended, where `stream` is not the only one, or not yet. */
static void give_several(struct weir_placement *p, uint32_t id, uint64_t stream,
                         uint64_t sequence) {
    int park = p->all.chunk[id].address == p->last_address;

    unpark(p);
    stream_seen(p, stream);
    if (p->several) {
        give_tagged(p, id, stream, sequence, park);
    } else {
        p->all.chunk[id].sequence = pace_admit(&p->pace, sequence);
        settle_clean(p, id);
    }
}

int weir__placement_give(struct weir_placement *p, uint64_t address, uint64_t stream,
                         uint64_t sequence, struct weir_placement_block *out) {
    uint64_t granule = address >> p->shift;
    uint32_t id = block_find(p, address);

    if (id == 0) {
        return diagnose(unparked(p), address, NULL);
    }
    block_end(p, id, address, out);
    if (stream != p->only || stream == 0) {
        give_several(p, id, stream, sequence);
        return WEIR_PLACEMENT_OK;
    }
    p->all.chunk[id].sequence = pace_admit(&p->pace, sequence);
    if (granule == p->last_address) {
        park_block(p, id);
    } else {
        unpark(p);
        settle(p, NULL, id);
    }
    return WEIR_PLACEMENT_OK;
}

int weir__placement_find(const struct weir_placement *p, uint64_t address,
                         struct weir_placement_block *out) {
    uint32_t id = block_find(p, address);

    if (id == 0) {
        return diagnose(unparked(p), address, out);
    }
    block_show(p, &p->all.chunk[id], out);
    return WEIR_PLACEMENT_OK;
}

/* ------------------------------------------------------------------- observe -- */

/* A tagged chunk of `s` (NULL for a stray) becomes clean.  The record that it ends up in. */
static uint32_t chunk_clean(struct weir_placement *p, struct stream *s, uint32_t id) {
    chunk_leave(p, s, id);
    p->tagged -= p->all.chunk[id].size;
    p->all.chunk[id].sequence = 0;
    return chunk_settle(p, NULL, id);
}

/* The strays of a stream that may have no record of its own. */
static void observe_strays(struct weir_placement *p, uint64_t stream, uint64_t sequence) {
    for (size_t i = 0; i < p->regions; i++) {
        uint32_t border = p->region[p->by_base[i]].border;
        uint32_t id = p->all.chunk[border].next;

        for (; id != border; id = p->all.chunk[id].next) {
            if (p->all.kind[id] == (TAGGED | STRAY) && p->all.tag[id].stream == stream &&
                p->all.chunk[id].sequence <= sequence) {
                id = chunk_clean(p, NULL, id);
            }
        }
    }
}

void weir__placement_observe(struct weir_placement *p, uint64_t stream, uint64_t sequence) {
    struct stream *s;

    if (!p->several) {
        if (stream == p->only) {
            pace_observe(&p->pace, sequence);
        }
        return;
    }
    unpark(p);
    if (p->strays > 0) {
        observe_strays(p, stream, sequence);
    }
    s = stream_find(p, stream);
    if (s == NULL) {
        return;
    }
    pace_observe(&s->pace, sequence);
    while (s->oldest != 0 && p->all.chunk[s->oldest].sequence <= s->pace.observed) {
        chunk_clean(p, s, s->oldest);
    }
}

/* ------------------------------------------------------------------- regions -- */

static int is_power_of_two(uint64_t n) {
    return n != 0 && (n & (n - 1)) == 0;
}

int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out) {
    struct weir__hostmem host = {.resize = rule->resize, .context = rule->context};
    struct weir_placement *p;

    if (!is_power_of_two(rule->granularity) || rule->split_waste == 0) {
        return WEIR_PLACEMENT_INVALID;
    }
    p = weir__hostmem_resize(&host, NULL, 0, sizeof *p);
    if (p == NULL) {
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    memset(p, 0, sizeof *p);
    p->host = host;
    p->mask = rule->granularity - 1;
    p->shift = (unsigned)__builtin_ctzll(rule->granularity);
    p->limit = (SIZE_MAX >> p->shift >> WEIR__BESTFIT_BITS != 0
                    ? (UINT64_C(1) << WEIR__BESTFIT_BITS << p->shift) - 1
                    : SIZE_MAX) -
               p->mask;
    p->waste = (rule->split_waste - 1) / rule->granularity + 1;
    p->own_first = rule->own_first;
    if (!weir__chunks_init(&p->all, &p->host, FIRST_RECORDS)) {
        weir__hostmem_resize(&host, p, 0, 0);
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    weir__bestfit_pool_init(&p->pool, &p->host);
    weir__bestfit_init(&p->clean, &p->pool);
    p->last_address = NOWHERE;
    *out = p;
    return WEIR_PLACEMENT_OK;
}

void weir__placement_destroy(struct weir_placement *p) {
    struct weir__hostmem host;

    if (p == NULL) {
        return;
    }
    for (size_t i = 0; i < p->stream_slots; i++) {
        if (p->streams[i] != NULL) {
            stream_drop(p, p->streams[i]);
        }
    }
    weir__bestfit_drop(&p->clean);
    weir__bestfit_pool_drop(&p->pool);
    host = p->host;
    weir__hostmem_resize(&host, p->streams, p->stream_slots * sizeof *p->streams, 0);
    weir__chunks_drop(&p->all, &host);
    weir__hostmem_resize(&host, p->region, 0, 0);
    weir__hostmem_resize(&host, p->by_base, 0, 0);
    weir__hostmem_resize(&host, p, 0, 0);
}

/* Lengthens an array to `want` elements if it is shorter.  The array, or NULL: nothing changed. */
static void *array_grow(struct weir__hostmem *host, void *array, size_t *length, size_t want,
                        size_t element) {
    void *grown;
    size_t bytes;

    if (*length >= want) {
        return array;
    }
    if (!weir__size_mul(want, element, &bytes)) {
        return NULL;
    }
    grown = weir__hostmem_resize(host, array, *length * element, bytes);
    if (grown != NULL) {
        *length = want;
    }
    return grown;
}

/* Makes sure of a slot for one more region: *slot.  1, or 0 if memory ran out. */
static int region_reserve(struct weir_placement *p, size_t *slot) {
    size_t length = p->region_length;
    size_t want = p->regions < length ? length : 2 * length + 1;
    void *array;

    array = array_grow(&p->host, p->by_base, &p->by_base_length, want, sizeof *p->by_base);
    if (array == NULL) {
        return 0;
    }
    p->by_base = array;
    array = array_grow(&p->host, p->region, &p->region_length, want, sizeof *p->region);
    if (array == NULL) {
        return 0;
    }
    p->region = array;
    memset(p->region + length, 0, (want - length) * sizeof *p->region);
    for (*slot = 0; p->region[*slot].border != 0; ++*slot) {
    }
    return 1;
}

/* Links the new region's border `border` and its one chunk `id`. */
static void region_link(struct weir_placement *p, size_t slot, uint32_t border, uint32_t id) {
    struct region *r = &p->region[slot];
    size_t position = region_position(p, r->base);

    p->all.chunk[border] =
        (struct weir__chunk){.address = r->end, .prev = id, .next = id, .region = slot};
    p->all.kind[border] = BORDER;
    p->all.chunk[id].prev = border;
    p->all.chunk[id].next = border;
    p->all.kind[id] = CLEAN;
    r->border = border;
    memmove(&p->by_base[position + 1], &p->by_base[position],
            (p->regions - position) * sizeof *p->by_base);
    p->by_base[position] = (uint32_t)slot;
    p->regions++;
    p->total += r->end - r->base;
}

int weir__placement_add(struct weir_placement *p, uint64_t base, size_t bytes) {
    uint64_t first = base >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    size_t position = region_position(p, first);
    size_t slot;
    uint32_t border;
    uint32_t id;

    if (bytes == 0 || ((base | bytes) & p->mask) != 0 || bytes > UINT64_MAX - base ||
        end >> WEIR__BESTFIT_BITS != 0) {
        return WEIR_PLACEMENT_INVALID;
    }
    if (position < p->regions && p->region[p->by_base[position]].base < end) {
        return WEIR_PLACEMENT_INVALID;
    }
    unpark(p);
    if (!records_reserve(p, p->regions + 3) || !region_reserve(p, &slot)) {
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    id = weir__chunks_add(&p->all, first);
    p->all.chunk[id] = (struct weir__chunk){.address = first, .size = end - first};
    if (!weir__bestfit_insert(&p->clean, key_of(&p->all.chunk[id]), id)) {
        weir__chunks_remove(&p->all, id);
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    border = weir__chunks_add(&p->all, end);
    p->region[slot] = (struct region){.base = first, .end = end, .high = first, .used = first};
    region_link(p, slot, border, id);
    return WEIR_PLACEMENT_OK;
}

int weir__placement_add_freed(struct weir_placement *p, uint64_t base, size_t bytes,
                              uint64_t stream, uint64_t sequence) {
    int status = weir__placement_add(p, base, bytes);
    struct weir_placement_block block;
    struct weir__bestfit_hit hit;

    if (status != WEIR_PLACEMENT_OK) {
        return status;
    }
    /* Its one chunk, and no other, has this key. */
    hit = weir__bestfit_from(&p->clean, weir__bestfit_key(bytes >> p->shift, base >> p->shift));
    take_carve(p, NULL, hit.value, hit.key, bytes >> p->shift, bytes, &block);
    return weir__placement_give(p, base, stream, sequence, NULL);
}

/* Wholly free, and nobody need wait for any of it? */
static int region_is_idle(const struct weir_placement *p, const struct region *r) {
    uint32_t id = p->all.chunk[r->border].next;

    return p->all.chunk[id].next == r->border && chunk_is(p, id, CLEAN) &&
           p->all.chunk[id].sequence <= p->pace.observed;
}

/* Wholly free, and `stream` need not wait for any of it? */
static int region_serves(const struct weir_placement *p, const struct region *r, uint64_t stream) {
    uint32_t id = p->all.chunk[r->border].next;

    for (; id != r->border; id = p->all.chunk[id].next) {
        if (!chunk_is(p, id, CLEAN) &&
            !(chunk_is(p, id, TAGGED) && p->all.tag[id].stream == stream && stream != 0)) {
            return 0;
        }
    }
    return 1;
}

/* A free chunk leaves its set and its list, and its record goes. */
static void chunk_drop(struct weir_placement *p, uint32_t id) {
    struct stream *s = NULL;

    if (chunk_is(p, id, TAGGED)) {
        s = stream_find(p, p->all.tag[id].stream);
        p->tagged -= p->all.chunk[id].size;
    }
    chunk_leave(p, s, id);
    weir__chunks_remove(&p->all, id);
}

/* Forgets a region, all of which is free. */
static void region_unlink(struct weir_placement *p, size_t position) {
    struct region *r = &p->region[p->by_base[position]];
    uint32_t id = p->all.chunk[r->border].next;

    while (id != r->border) {
        uint32_t next = p->all.chunk[id].next;

        chunk_drop(p, id);
        id = next;
    }
    weir__chunks_remove(&p->all, r->border);
    p->total -= r->end - r->base;
    p->extent -= r->high - r->base;
    r->border = 0;
    p->regions--;
    memmove(&p->by_base[position], &p->by_base[position + 1],
            (p->regions - position) * sizeof *p->by_base);
}

/* The position in by_base of the region that starts at `base`; p->regions: there is none. */
static size_t region_at(const struct weir_placement *p, uint64_t base) {
    size_t position = region_position(p, base >> p->shift);

    if (position == p->regions || (base & p->mask) != 0 ||
        p->region[p->by_base[position]].base != base >> p->shift) {
        return p->regions;
    }
    return position;
}

int weir__placement_remove(struct weir_placement *p, uint64_t base) {
    size_t position = region_at(p, base);

    unpark(p);
    if (position == p->regions) {
        return WEIR_PLACEMENT_FOREIGN;
    }
    if (!region_is_idle(p, &p->region[p->by_base[position]])) {
        return WEIR_PLACEMENT_BUSY;
    }
    region_unlink(p, position);
    return WEIR_PLACEMENT_OK;
}

int weir__placement_withdraw(struct weir_placement *p, uint64_t base, uint64_t stream) {
    size_t position = region_at(p, base);

    unpark(p);
    if (position == p->regions) {
        return WEIR_PLACEMENT_FOREIGN;
    }
    stream_seen(p, stream);
    if (!region_serves(p, &p->region[p->by_base[position]], stream)) {
        return WEIR_PLACEMENT_BUSY;
    }
    region_unlink(p, position);
    return WEIR_PLACEMENT_OK;
}

/* The free chunk `id` becomes a block of `want` granules at `first`, and free chunks on either side. */
static void claim_block(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t want,
                        size_t bytes, struct weir_placement_block *out) {
    id = chunk_claim(p, id, first, first + want);
    mark_end(p, p->all.chunk[id].next, first + want);
    p->all.chunk[id].requested = bytes;
    block_begin(p, id, first, want, bytes, out);
}

/* What is to be seen to before a chunk is claimed, with records for what lies on either side: OK and the granules. */
static int claim_prepare(struct weir_placement *p, size_t bytes, uint64_t stream, uint64_t *want) {
    size_t rounded;

    if (bytes == 0 || !weir__size_round_up(bytes, p->mask + 1, &rounded)) {
        return WEIR_PLACEMENT_INVALID;
    }
    unpark(p);
    stream_seen(p, stream);
    if (!records_reserve(p, p->regions + 2) || !take_reserve(p)) {
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    *want = rounded >> p->shift;
    return *want >> WEIR__BESTFIT_BITS == 0 ? WEIR_PLACEMENT_OK : WEIR_PLACEMENT_NO_FIT;
}

/* The set of what that stream alone may use; NULL: there is none. */
static struct stream *own_of(struct weir_placement *p, uint64_t stream) {
    return p->several && stream != 0 ? stream_find(p, stream) : NULL;
}

int weir__placement_take_high(struct weir_placement *p, size_t bytes, uint64_t stream,
                              struct weir_placement_block *out) {
    struct weir__bestfit_hit hit;
    const struct weir__chunk *c;
    uint64_t want;
    int result = claim_prepare(p, bytes, stream, &want);

    if (result != WEIR_PLACEMENT_OK) {
        return result;
    }
    hit = best_for(p, own_of(p, stream), want, SIZE_MAX);
    if (hit.key == WEIR__BESTFIT_NONE) {
        return WEIR_PLACEMENT_NO_FIT;
    }
    c = &p->all.chunk[hit.value];
    claim_block(p, hit.value, c->address + c->size - want, want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* The chunk of a set that has `want` granules at `first`, of the PROBES that fit best; 0: none of them does. */
static uint32_t chunk_with(const struct weir_placement *p, const struct weir__bestfit *set,
                           uint64_t first, uint64_t want) {
    struct weir__bestfit_hit hit = weir__bestfit_from(set, weir__bestfit_key(want, 0));

    for (int i = 0; i < PROBES && hit.key != WEIR__BESTFIT_NONE; i++) {
        const struct weir__chunk *c = &p->all.chunk[hit.value];

        if (c->address <= first && first + want <= c->address + c->size) {
            return hit.value;
        }
        hit = weir__bestfit_from(set, hit.key + 1);
    }
    return 0;
}

int weir__placement_take_inside(struct weir_placement *p, uint64_t address, size_t bytes,
                                uint64_t stream, struct weir_placement_block *out) {
    uint64_t want;
    struct stream *own;
    int result = claim_prepare(p, bytes, stream, &want);
    uint32_t id = 0;

    if (result != WEIR_PLACEMENT_OK) {
        return result;
    }
    if ((address & p->mask) != 0) {
        return WEIR_PLACEMENT_INVALID;
    }
    own = own_of(p, stream);
    if (own != NULL) {
        id = chunk_with(p, &own->fit, address >> p->shift, want);
    }
    if (id == 0) {
        id = chunk_with(p, &p->clean, address >> p->shift, want);
    }
    if (id == 0) {
        return WEIR_PLACEMENT_NO_FIT;
    }
    claim_block(p, id, address >> p->shift, want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* --------------------------------------------------------------------- holes -- */

/* The chunk of `kind` that starts at `within`, if [address, address + bytes) lies in it; else 0. */
static uint32_t chunk_around(const struct weir_placement *p, uint64_t within, unsigned kind,
                             uint64_t address, size_t bytes) {
    uint32_t id;

    if (bytes == 0 || ((within | address | bytes) & p->mask) != 0 || address < within) {
        return 0;
    }
    id = weir__chunks_find(&p->all, within >> p->shift, kind);
    if (id == 0 || p->all.chunk[id].size < (address - within) >> p->shift ||
        p->all.chunk[id].size - ((address - within) >> p->shift) < bytes >> p->shift) {
        return 0;
    }
    return id;
}

/* The whole chunk `id` is a hole from here on, and joins its neighbours. */
static void hole_begin(struct weir_placement *p, uint32_t id) {
    struct weir__chunk *c = &p->all.chunk[id];

    p->all.kind[id] = HOLE;
    c->sequence = 0;
    p->hollow += c->size;
    p->holes++;
    if (p->all.kind[c->next] == HOLE) {
        p->holes--;
        chunk_join(p, id, c->next);
    }
    if (p->all.kind[c->prev] == HOLE) {
        p->holes--;
        chunk_join(p, c->prev, id);
    }
}

int weir__placement_settle(struct weir_placement *p) {
    unpark(p);
    return p->strays == 0 || strays_adopt(p);
}

int weir__placement_add_hole(struct weir_placement *p, uint64_t base, size_t bytes) {
    int status = weir__placement_add(p, base, bytes);
    uint32_t id;

    if (status == WEIR_PLACEMENT_OK) {
        id = weir__chunks_find(&p->all, base >> p->shift, CLEAN);
        chunk_leave(p, NULL, id);
        hole_begin(p, id);
    }
    return status;
}

int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         uint64_t stream, uint64_t sequence) {
    uint64_t first = address >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    struct weir__chunk *c;
    struct region *r;
    uint32_t id;

    unpark(p);
    id = chunk_around(p, within, HOLE, address, bytes);
    if (id == 0) {
        return WEIR_PLACEMENT_INVALID;
    }
    r = &p->region[p->by_base[region_position(p, first)]];
    c = &p->all.chunk[id];
    if (!records_reserve(p, p->regions + (c->address < first) + (c->address + c->size > end))) {
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    id = weir__chunks_find(&p->all, within >> p->shift, HOLE);
    c = &p->all.chunk[id];
    p->hollow -= bytes >> p->shift;
    if (c->address + c->size > end) {
        chunk_cut(p, id, end, HOLE);
        p->holes++;
    }
    if (c->address < first) {
        id = chunk_cut(p, id, first, HOLE);
        p->holes++;
    }
    p->holes--;
    if (end > r->high) {
        p->extent += end - r->high;
        r->high = end;
    }
    if (sequence == 0) {
        settle_clean(p, id);
        return WEIR_PLACEMENT_OK;
    }
    mark_high(p, r, end);
    p->all.kind[id] = LIVE; /* as if it had been taken, and is freed now */
    p->all.chunk[id].requested = bytes;
    p->used += bytes >> p->shift;
    p->requested += bytes;
    p->blocks++;
    return weir__placement_give(p, address, stream, sequence, NULL);
}

int weir__placement_take_at(struct weir_placement *p, uint64_t address, size_t bytes,
                            uint64_t stream, struct weir_placement_block *out) {
    uint64_t first = address >> p->shift;
    uint64_t size = bytes >> p->shift;
    uint32_t id;

    unpark(p);
    stream_seen(p, stream);
    if (!take_reserve(p)) {
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    id = chunk_around(p, address, CLEAN, address, bytes);
    if (id == 0 || p->all.chunk[id].sequence > p->pace.observed) {
        return WEIR_PLACEMENT_NO_FIT;
    }
    id = chunk_claim(p, id, first, first + size);
    mark_end(p, p->all.chunk[id].next, first + size);
    p->all.chunk[id].requested = bytes;
    block_begin(p, id, first, size, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* The free chunk that starts at `address`, in granules; 0: there is none. */
static uint32_t free_at(const struct weir_placement *p, uint64_t address) {
    uint32_t id = weir__chunks_find(&p->all, address, CLEAN);

    return id != 0 ? id : weir__chunks_find(&p->all, address, TAGGED);
}

int weir__placement_hollow(struct weir_placement *p, uint64_t within, uint64_t address,
                           size_t bytes) {
    uint64_t first = address >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    uint32_t id;
    uint32_t last;

    unpark(p);
    if (!records_reserve(p, p->regions + 2)) {
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    id = free_at(p, within >> p->shift);
    if (id == 0 || bytes == 0 || ((within | address | bytes) & p->mask) != 0 || address < within ||
        p->all.chunk[id].address + p->all.chunk[id].size <= first) {
        return WEIR_PLACEMENT_INVALID;
    }
    for (last = id; p->all.chunk[last].address + p->all.chunk[last].size < end;) {
        last = p->all.chunk[last].next;
        if (p->all.kind[last] != CLEAN && p->all.kind[last] != TAGGED) {
            return WEIR_PLACEMENT_INVALID;
        }
    }
    hole_begin(p, run_claim(p, id, first, end));
    return WEIR_PLACEMENT_OK;
}

int weir__placement_punch(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes) {
    uint32_t id;

    unpark(p);
    id = chunk_around(p, within, CLEAN, address, bytes);
    if (id == 0) {
        return WEIR_PLACEMENT_INVALID;
    }
    if (p->all.chunk[id].sequence > p->pace.observed) {
        return WEIR_PLACEMENT_BUSY;
    }
    return weir__placement_hollow(p, within, address, bytes);
}

/* ------------------------------------------------------------------- figures -- */

/* The size of the largest free chunk, in granules. */
static uint64_t largest_free(const struct weir_placement *p) {
    uint64_t largest = largest_of(&p->clean);

    for (size_t i = 0; i < p->stream_slots; i++) {
        uint64_t tagged = p->streams[i] == NULL ? 0 : largest_of(&p->streams[i]->fit);

        if (tagged > largest) {
            largest = tagged;
        }
    }
    for (size_t i = 0; i < p->regions && p->strays > 0; i++) {
        uint32_t border = p->region[p->by_base[i]].border;

        for (uint32_t id = p->all.chunk[border].next; id != border; id = p->all.chunk[id].next) {
            if ((p->all.kind[id] & STRAY) != 0 && p->all.chunk[id].size > largest) {
                largest = p->all.chunk[id].size;
            }
        }
    }
    return largest;
}

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out) {
    size_t tagged = unparked(p)->tagged;

    if (!p->several && p->pace.last > p->pace.observed) {
        tagged = (size_t)weir__size_smaller(p->extent, p->total - p->hollow) - p->used;
    }
    out->regions = p->regions;
    out->total = (p->total - p->hollow) << p->shift;
    out->used = p->used << p->shift;
    out->requested = p->requested;
    out->blocks = p->blocks;
    out->free_chunks = chunk_count(p) - p->blocks - p->holes;
    out->largest_free = largest_free(p) << p->shift;
    out->unobserved = tagged << p->shift;
    out->extent = p->extent << p->shift;
    out->host_bytes = p->host.bytes;
}

/* The hole that ends the last region, or 0. */
static uint32_t last_hole(const struct weir_placement *p) {
    uint32_t id =
        p->regions == 0 ? 0 : p->all.chunk[p->region[p->by_base[p->regions - 1]].border].prev;

    return id != 0 && p->all.kind[id] == HOLE ? id : 0;
}

int weir__placement_last_hole(const struct weir_placement *p, uint64_t *address, size_t *bytes) {
    uint32_t id = last_hole(p);

    if (id == 0) {
        return 0;
    }
    *address = p->all.chunk[id].address << p->shift;
    *bytes = p->all.chunk[id].size << p->shift;
    return 1;
}

size_t weir__placement_tail(struct weir_placement *p) {
    uint32_t id;

    unpark(p);
    id = last_hole(p);
    id = id == 0 ? 0 : p->all.chunk[id].prev;
    return id != 0 && chunk_is(p, id, CLEAN) ? p->all.chunk[id].size << p->shift : 0;
}

static struct weir_placement_span span_of(const struct weir_placement *p, uint32_t id) {
    const struct weir__chunk *c = &p->all.chunk[id];
    struct weir_placement_span span = {.address = c->address << p->shift,
                                       .size = c->size << p->shift};

    if (p->all.kind[id] == HOLE) {
        span.hole = 1;
    } else if (p->all.kind[id] == LIVE) {
        span.live = 1;
        span.requested = c->requested;
    } else if (p->several ? chunk_is(p, id, TAGGED) : c->sequence > p->pace.observed) {
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

            if (told == WEIR_PLACEMENT_STOP) {
                return;
            }
            if (told == WEIR_PLACEMENT_NEXT_REGION) {
                break;
            }
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

size_t weir__placement_holes(const struct weir_placement *p) {
    return p->holes;
}

/* --------------------------------------------------------------------- check -- */

/* What the walk over all chunks adds up, to be compared with what is kept. */
struct tally {
    size_t chunks;
    size_t blocks;
    size_t used;
    size_t requested;
    size_t tagged;
    size_t settled; /* free chunks that are no strays */
    size_t strays;
    size_t holes;
    size_t hollow;
    size_t total;
    size_t extent;
};

static int complain_of(FILE *complain, const char *what, uint64_t address) {
    if (complain != NULL) {
        fprintf(complain, "placement: %s, at granule 0x%" PRIx64 "\n", what, address);
    }
    return 0;
}

/* A live block: found by its start, as large as asked. */
static const char *check_block(const struct weir_placement *p, uint32_t id, struct tally *sum) {
    const struct weir__chunk *c = &p->all.chunk[id];

    sum->blocks++;
    sum->used += c->size;
    sum->requested += c->requested;
    if (block_find(p, c->address << p->shift) != id) {
        return "a live block is not found by its start";
    }
    if (c->requested == 0 || c->requested > c->size << p->shift) {
        return "a live block is smaller than was asked, or nothing was";
    }
    return NULL;
}

/* A free chunk: in the one right set, and not beside one that it should have joined. */
static const char *check_free(struct weir_placement *p, uint32_t id, struct tally *sum) {
    const struct weir__chunk *c = &p->all.chunk[id];
    unsigned kind = p->all.kind[id] & ~(unsigned)STRAY;
    const struct stream *s = NULL;
    uint32_t value;

    sum->tagged += kind == TAGGED ? c->size : 0;
    if (kind == TAGGED && (!p->several || c->sequence == 0)) {
        return "a chunk is tagged that should not be";
    }
    if (kind == CLEAN && p->several && c->sequence != 0) {
        return "a clean chunk has a sequence";
    }
    if ((p->all.kind[id] & STRAY) != 0) {
        sum->strays++;
        return NULL;
    }
    sum->settled++;
    if (kind == TAGGED) {
        s = stream_find(p, p->all.tag[id].stream);
        if (s == NULL) {
            return "a chunk is tagged by a stream that is not known";
        }
    }
    if (!weir__bestfit_find(s == NULL ? &p->clean : &s->fit, key_of(c), &value) || value != id) {
        return "a free chunk is not in its set";
    }
    if ((p->all.kind[c->next] & STRAY) == 0 && chunk_joins(p, c->next, s)) {
        return "two free chunks were not joined";
    }
    return NULL;
}

/* A hole: not beside another. */
static const char *check_hole(const struct weir_placement *p, uint32_t id, struct tally *sum) {
    const struct weir__chunk *c = &p->all.chunk[id];

    sum->holes++;
    sum->hollow += c->size;
    if (weir__chunks_find(&p->all, c->address, HOLE) != id) {
        return "an unmapped range is not found by its start";
    }
    return p->all.kind[c->next] == HOLE ? "two unmapped ranges were not joined" : NULL;
}

/* The ring of one region tiles it. */
static int check_region(struct weir_placement *p, const struct region *r, struct tally *sum,
                        FILE *complain) {
    uint64_t address = r->base;
    uint32_t last = r->border;

    for (uint32_t id = p->all.chunk[r->border].next; id != r->border; id = p->all.chunk[id].next) {
        const struct weir__chunk *c = &p->all.chunk[id];
        const char *wrong = NULL;

        if (c->address != address || c->size == 0 || c->prev != last) {
            return complain_of(complain, "chunks do not tile their region", c->address);
        }
        if (p->all.kind[id] == LIVE) {
            wrong = check_block(p, id, sum);
            if (c->address + c->size > (p->several ? r->high : r->used)) {
                wrong = "a block lies above the mark";
            }
        } else if (p->all.kind[id] == HOLE) {
            wrong = check_hole(p, id, sum);
        } else if (chunk_is(p, id, CLEAN) || chunk_is(p, id, TAGGED)) {
            wrong = check_free(p, id, sum);
        } else {
            wrong = "a chunk is neither live nor free";
        }
        if (wrong != NULL) {
            return complain_of(complain, wrong, c->address);
        }
        address += c->size;
        last = id;
        sum->chunks++;
    }
    if (address != r->end || p->all.chunk[r->border].prev != last ||
        p->all.chunk[r->border].size != 0 || p->all.kind[r->border] != BORDER ||
        &p->region[p->all.chunk[r->border].region] != r ||
        p->all.chunk[r->border].address != r->end || r->high < r->base || r->high > r->end) {
        return complain_of(complain, "a region's end is wrong", r->end);
    }
    sum->total += r->end - r->base;
    sum->extent += r->high - r->base;
    return 1;
}

/* The list of a stream is in order and has exactly what its set has. */
static const char *check_stream(const struct weir_placement *p, const struct stream *s) {
    size_t length = 0;
    uint32_t older = 0;
    uint64_t sequence = s->pace.observed + 1;

    for (uint32_t id = s->oldest; id != 0; id = p->all.tag[id].newer) {
        if (p->all.kind[id] != TAGGED || p->all.tag[id].stream != s->id ||
            p->all.tag[id].older != older) {
            return "a stream's list is broken";
        }
        if (p->all.chunk[id].sequence < sequence || p->all.chunk[id].sequence > s->pace.last) {
            return "a stream's list is out of order";
        }
        sequence = p->all.chunk[id].sequence;
        older = id;
        length++;
    }
    if (s->newest != older || length != weir__bestfit_count(&s->fit) ||
        !weir__bestfit_check(&s->fit)) {
        return "a stream's list and set differ, or the set is broken";
    }
    return NULL;
}

static const char *check_sums(const struct weir_placement *p, const struct tally *sum) {
    size_t settled = weir__bestfit_count(&p->clean);

    for (size_t i = 0; i < p->stream_slots; i++) {
        const char *wrong = NULL;

        if (p->streams[i] != NULL) {
            settled += weir__bestfit_count(&p->streams[i]->fit);
            wrong = check_stream(p, p->streams[i]);
        }
        if (wrong != NULL) {
            return wrong;
        }
    }
    if (!weir__bestfit_check(&p->clean)) {
        return "the set of clean chunks is broken";
    }
    if (settled != sum->settled || p->strays != sum->strays) {
        return "the sets hold chunks that are not there";
    }
    if (chunk_count(p) != sum->chunks || p->blocks != sum->blocks || p->used != sum->used ||
        p->requested != sum->requested || p->tagged != sum->tagged || p->total != sum->total ||
        p->extent != sum->extent || p->holes != sum->holes || p->hollow != sum->hollow) {
        return "a sum is wrong";
    }
    if (!weir__chunks_check(&p->all)) {
        return "the table of records is broken";
    }
    if (p->all.room < p->regions) {
        return "there is no room for more records";
    }
    return NULL;
}

int weir__placement_check(const struct weir_placement *constant, FILE *complain) {
    struct weir_placement view = *unparked(constant); /* looking up a stream notes it as recent */
    struct tally sum = {0};
    uint64_t end = 0;
    const char *wrong;

    for (size_t i = 0; i < view.regions; i++) {
        const struct region *r = &view.region[view.by_base[i]];

        if (r->base < end || r->base >= r->end) {
            return complain_of(complain, "regions overlap or are out of order", r->base);
        }
        if (!check_region(&view, r, &sum, complain)) {
            return 0;
        }
        end = r->end;
    }
    wrong = check_sums(&view, &sum);
    return wrong == NULL ? 1 : complain_of(complain, wrong, end);
}
