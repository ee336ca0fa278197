/* SPDX-License-Identifier: MIT */
/* placement_state.h: shared by the files of a placement.
 *
 * placement.c takes blocks and gives them back; placement_chunks.c cuts and joins free chunks, and makes room for their
 * records; placement_streams.c keeps the streams; placement_regions.c adds and removes regions and their memory;
 * placement_figures.c makes the figures.  This file has the inline functions that each take and give runs through.
 *
 * Addresses and sizes are counted in granules.  Chunks are records in a table by address (chunk_table.h), named by
 * their number, and linked in the order of addresses.  The chunks of a region and one border record form a ring, so
 * that every chunk has two neighbours.  A free chunk is in one set by size and address (free_tree.h): the set of clean
 * chunks, or its stream's.  A tagged chunk is also in its stream's list, in the order of sequences.
 *
 * While only one stream was seen, all free chunks are in the clean set.  A chunk then has only the latest sequence of
 * its frees, and gets a tag when a second stream appears.
 *
 * Invariants: tests/fixtures/placement_check.c checks them.  A free needs host memory only for nodes of a set, or for a
 * stream seen first.  If there is none, the chunk becomes unlisted: it is in no set and no list.  The next take adds it
 * to them, or fails for lack of memory.
 *
 * This file must not know drivers, locks or the memory behind an address.
 */
#ifndef WEIR_PLACEMENT_STATE_H
#define WEIR_PLACEMENT_STATE_H

#include "placement/placement.h"

#include "base/hostmem.h"
#include "base/size.h"
#include "placement/chunk_table.h"
#include "placement/free_tree.h"

#define NOWHERE UINT64_MAX                         /* larger than every address */
#define STREAM_FACTOR UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio */

/* Inlines a function at each use, where the compiler knows more about its arguments. */
#define INLINE static inline __attribute__((always_inline))

enum kind {
    UNUSED = 0,
    BORDER = 1,
    LIVE = 2,
    CLEAN = 3,
    TAGGED = 4,
    PARKED = 5,   /* freed right after it was placed; see weir__placement_parked_settle */
    UNMAPPED = 6, /* has no memory */
    UNLISTED = 8  /* a flag of CLEAN and TAGGED: in no set and no list */
};

struct weir_placement_region {
    uint64_t base;
    uint64_t end;
    uint64_t high;   /* the highest end of blocks and filled memory so far, or base */
    uint64_t used;   /* the highest end of blocks so far, while there is only one stream */
    uint32_t border; /* 0 if the slot is not in use */
};

struct weir_placement_pace {
    uint64_t observed; /* the sequence up to which the stream was observed; never above `last` */
    uint64_t last;     /* the latest sequence of a free */
};

struct weir_placement_stream {
    uint64_t id;
    struct weir_placement_pace step;
    uint64_t parted; /* chunks freed up to this sequence join no other tagged chunk */
    uint32_t oldest; /* the list of tagged chunks, in the order of sequences; 0 if empty */
    uint32_t newest;
    struct weir__bestfit fit;
};

struct weir_placement {
    unsigned shift; /* log2 of the granularity */
    int several;    /* a second stream, or stream 0, was seen */
    uint64_t mask;  /* granularity - 1 */
    uint64_t limit; /* the most bytes that, when rounded, fit in size_t and in a key */
    uint64_t waste; /* the rule's split_waste in granules, rounded up */
    int own_first;  /* the rule's own_first */
    uint64_t only;  /* the one stream seen so far, or 0 if there was none or several */
    struct weir_placement_pace step; /* the progress of the only stream */
    struct weir__chunks all;         /* the records */
    size_t used;                     /* granules in live blocks */
    size_t unlisted;
    size_t requested; /* bytes requested for live blocks */
    size_t tagged;    /* granules in tagged chunks */
    size_t blocks;
    struct weir__bestfit clean;

    /* The last take, as long as no other operation came after it. */
    uint64_t last_address; /* NOWHERE if another operation came */
    uint32_t last_taken;
    uint32_t parked; /* last_taken, if the block was freed since; else 0 */
    uint64_t last_want;
    uint64_t last_stream; /* valid only if `several` */
    size_t last_most;

    struct weir_placement_stream *recent;   /* the stream that was looked up last, or NULL */
    struct weir_placement_stream **streams; /* a hash table by id, at most half full */
    size_t stream_slots;
    size_t stream_count;
    struct weir_placement_region *region; /* the slots; a border keeps its slot's index */
    uint32_t *by_base;                    /* the slots in use, sorted by base */
    size_t region_length;
    size_t by_base_length;
    size_t regions;
    size_t total;  /* granules in all regions */
    size_t hollow; /* granules in unmapped ranges */
    size_t unmapped_ranges;
    size_t extent; /* granules below the regions' high marks */
    struct weir__bestfit_pool pool;
    struct weir__hostmem host;
};

static inline uint64_t key_of(const struct weir__chunk *c) {
    return weir__bestfit_key(c->size, c->address);
}

/* Returns the number of live, free and unmapped chunks: all records but the borders. */
static inline size_t chunk_count(const struct weir_placement *p) {
    return weir__chunks_used(&p->all) - p->regions;
}

static inline int chunk_is(const struct weir_placement *p, uint32_t id, unsigned kind) {
    return (p->all.kind[id] & ~(unsigned)UNLISTED) == kind;
}

/* Computes the granules that hold `bytes`.  Returns OK or INVALID. */
static inline int granules_of(const struct weir_placement *p, size_t bytes, uint64_t *granules) {
    size_t rounded;

    if (bytes == 0 || !weir__size_round_up(bytes, p->mask + 1, &rounded))
        return WEIR_PLACEMENT_INVALID;
    *granules = rounded >> p->shift;
    return WEIR_PLACEMENT_OK;
}

/* ---- parking: placement.c ---- */

/* Frees the parked block: the last block, whose free was put off. */
void weir__placement_parked_settle(struct weir_placement *p);

static inline void unpark(struct weir_placement *p) {
    p->last_address = NOWHERE;
    if (p->parked != 0)
        weir__placement_parked_settle(p);
}

/* Frees the parked block, in a function that only reads: a caller cannot tell whether a block is parked. */
static inline const struct weir_placement *unparked(const struct weir_placement *p) {
    if (p->parked != 0)
        unpark((struct weir_placement *)(uintptr_t)p);
    return p;
}

/* ---- streams: placement_streams.c ---- */

/* Records a stream other than the only stream so far. */
void weir__placement_stream_note(struct weir_placement *p, uint64_t stream);

/* Records that `stream` allocates or frees. */
static inline void stream_seen(struct weir_placement *p, uint64_t stream) {
    if (stream != p->only || stream == 0)
        weir__placement_stream_note(p, stream);
}

/* Adds the record of a new stream.  Returns NULL if there is no host memory. */
struct weir_placement_stream *weir__placement_stream_add(struct weir_placement *p, uint64_t id);
void weir__placement_stream_drop(struct weir_placement *p, struct weir_placement_stream *s);

static inline size_t stream_slot(const struct weir_placement *p, uint64_t id) {
    size_t mask = p->stream_slots - 1;
    size_t i = (size_t)(id * STREAM_FACTOR >> 32) & mask;

    while (p->streams[i] != NULL && p->streams[i]->id != id)
        i = (i + 1) & mask;
    return i;
}

static inline struct weir_placement_stream *stream_find(struct weir_placement *p, uint64_t id) {
    struct weir_placement_stream *s = p->recent;

    if (s != NULL && s->id == id)
        return s;
    if (p->stream_slots == 0)
        return NULL;
    s = p->streams[stream_slot(p, id)];
    if (s != NULL)
        p->recent = s;
    return s;
}

/* Finds the record of a stream, or adds it.  Returns NULL if there is no host memory. */
static inline struct weir_placement_stream *stream_make(struct weir_placement *p, uint64_t id) {
    struct weir_placement_stream *s = stream_find(p, id);

    return s != NULL ? s : weir__placement_stream_add(p, id);
}

/* Returns the stream whose tagged chunks the stream may use at once, or NULL if it has none. */
static inline struct weir_placement_stream *own_of(struct weir_placement *p, uint64_t stream) {
    return p->several && stream != 0 ? stream_find(p, stream) : NULL;
}

/* Returns the sequence that a free gets, or 0 if the stream was already observed up to it.  A free that comes late
 * counts as the latest, so that lists stay in order. */
static inline uint64_t step_admit(struct weir_placement_pace *step, uint64_t sequence) {
    sequence += sequence == 0;
    if (sequence <= step->observed)
        return 0;
    if (sequence < step->last)
        sequence = step->last;
    step->last = sequence;
    return sequence;
}

/* ---- room for records: placement_chunks.c ---- */

/* Makes room for `room` more records.  Returns 1 on success, 0 if memory ran out. */
int weir__placement_records_reserve(struct weir_placement *p, size_t room);
/* Makes room for a record of a remainder, and adopts all unlisted chunks.  Returns 0 if there is no host memory, else
 * 1. */
int weir__placement_take_reserve(struct weir_placement *p);

/* ---- regions: placement_regions.c ---- */

/* Returns the index in by_base of the first region that ends above `address`. */
size_t weir__placement_region_position(const struct weir_placement *p, uint64_t address);

static inline void mark_high(struct weir_placement *p, struct weir_placement_region *r,
                             uint64_t end) {
    if (end > r->high) {
        p->extent += end - r->high;
        r->high = end;
    }
    if (end > r->used)
        r->used = end;
}

/* Raises the marks of a region for a block that ends at `end`, before the record `next`.  Only a border or an unmapped
 * range can follow the last memory of a region, so other blocks cannot reach above a mark. */
static inline void mark_end(struct weir_placement *p, uint32_t next, uint64_t end) {
    if (p->all.kind[next] == BORDER)
        mark_high(p, &p->region[p->all.chunk[next].region], end);
    else if (!p->several)
        mark_high(p, &p->region[p->by_base[weir__placement_region_position(p, end - 1)]], end);
}

/* ---- lists of tagged chunks ---- */

/* Inserts a chunk into the stream's list by its sequence.  Only an adopted unlisted chunk may belong before the end. */
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

/* Puts `id` into the list in place of `old`. */
static inline void list_replace(struct weir_placement *p, struct weir_placement_stream *s,
                                uint32_t old, uint32_t id) {
    struct weir__chunk_tag *t = &p->all.tag[id];

    *t = p->all.tag[old];
    *(t->older != 0 ? &p->all.tag[t->older].newer : &s->oldest) = id;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &s->newest) = id;
}

/* ---- free chunks ---- */

/* Returns 1 if the free chunk `id` may join its neighbour `other`, which is tagged by `s`, or untagged if `s` is NULL.
 * Two chunks of a stream join if both were freed since it was parted. */
static inline int chunk_joins(const struct weir_placement *p, uint32_t id, uint32_t other,
                              const struct weir_placement_stream *s) {
    if (s == NULL)
        return chunk_is(p, id, CLEAN);
    return chunk_is(p, id, TAGGED) && p->all.tag[id].stream == s->id &&
           p->all.chunk[id].sequence > s->parted && p->all.chunk[other].sequence > s->parted;
}

/* Removes a free chunk that is about to change from its set and list.  An unlisted chunk may have a later sequence than
 * its stream's record. */
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

/* Joins `right` to its neighbour `left`, with the later of both sequences. */
INLINE void chunk_join(struct weir_placement *p, uint32_t left, uint32_t right) {
    struct weir__chunk *l = &p->all.chunk[left];
    struct weir__chunk *r = &p->all.chunk[right];

    l->size += r->size;
    l->next = r->next;
    p->all.chunk[r->next].prev = left;
    l->sequence = l->sequence > r->sequence ? l->sequence : r->sequence;
    weir__chunks_remove(&p->all, right);
}

/* Makes a chunk that is in no set and no list free, tagged by `s` or untagged if `s` is NULL, and joins it with its
 * neighbours.  Its sequence is set before.  Returns its record. */
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

/* The two copies of settle(), so that the copy for untagged chunks needs no tests. */
uint32_t weir__placement_settle_clean(struct weir_placement *p, uint32_t id);
uint32_t weir__placement_settle_tagged(struct weir_placement *p, struct weir_placement_stream *s,
                                       uint32_t id);

static inline uint32_t chunk_settle(struct weir_placement *p, struct weir_placement_stream *s,
                                    uint32_t id) {
    return s == NULL ? weir__placement_settle_clean(p, id)
                     : weir__placement_settle_tagged(p, s, id);
}

/* Adds the unlisted chunks to the sets.  Returns 1 on success, 0 if memory still lacks. */
int weir__placement_unlisted_adopt(struct weir_placement *p);
/* Cuts the chunk `id`, which is in no set, at `address` inside it, and returns the record of the second part, of that
 * kind.  There is room for a record. */
uint32_t weir__placement_cut(struct weir_placement *p, uint32_t id, uint64_t address,
                             unsigned kind);
/* Removes [first, end), in granules, from its free chunks, of which `id` is the first, and joins the removed parts.
 * The rest of these chunks keeps its tags.  There is room for a record on either side.  Returns a record that is in no
 * set. */
uint32_t weir__placement_claim_run(struct weir_placement *p, uint32_t id, uint64_t first,
                                   uint64_t end);
/* Returns the chunk of `kind` that starts at `within`, if [address, address + bytes) lies in it; else 0. */
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
