/* SPDX-License-Identifier: MIT */
/* placement.c: blocks are taken by best fit, at an address or behind waits, and given back.
 *
 * A take looks for the smallest chunk that is large enough and cuts it.  A give makes a free chunk, which joins its
 * neighbours.  Both take logarithmic time.  A take reserves all its host memory before it changes anything.
 *
 * No index leads from an address inside a block to the block: no ordinary path needs it, and each would have to
 * maintain it.  A walk over the region finds the block.
 */
#include "placement/placement_state.h"

/* ---- parking ---- */

/* A block that is freed right after it was placed is parked: it counts as free, but its chunk is left as if it were
 * live.  If the next request has that size, those bounds and that stream, it gets the block, which is still the best
 * fit.  Any other call first frees the parked block. */
void weir__placement_parked_settle(struct weir_placement *p) {
    uint32_t id = p->parked;

    p->parked = 0;
    chunk_settle(p, p->several ? stream_find(p, p->last_stream) : NULL, id);
}

static inline void park_block(struct weir_placement *p, uint32_t id) {
    p->parked = id;
    p->all.kind[id] = PARKED;
    p->last_address = NOWHERE;
}

/* Makes the parked block live again.  The rest of its chunk counts as joined and cut off again. */
static void take_parked(struct weir_placement *p, size_t bytes, struct weir_placement_block *out) {
    uint32_t id = p->parked;
    struct weir__chunk *c = &p->all.chunk[id];

    p->parked = 0;
    p->last_address = c->address;
    if (p->several)
        p->tagged -= c->size;
    else if (p->all.kind[c->next] == CLEAN && p->all.chunk[c->next].sequence < c->sequence)
        p->all.chunk[c->next].sequence = c->sequence;
    c->requested = bytes;
    block_begin(p, id, c->address, c->size, bytes, out);
}

/* ---- take ---- */

/* Makes a free chunk of the last `size` granules of chunk `id`, which has left its set and is cut at `address`. */
INLINE void rest_settle(struct weir_placement *p, struct weir_placement_stream *own, uint32_t id,
                        uint64_t address, uint64_t size) {
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
        p->all.kind[rest] |= UNLISTED;
        p->unlisted++;
        if (own != NULL) {
            list_remove(p, own, id);
            p->all.tag[rest].stream = own->id;
        }
    } else if (own != NULL) {
        list_replace(p, own, id, rest);
    }
}

/* Makes a live block of the free chunk `id` with that key.  `own` is the stream whose tag it has, or NULL. */
INLINE void take_carve(struct weir_placement *p, struct weir_placement_stream *own, uint32_t id,
                       uint64_t key, uint64_t want, size_t bytes,
                       struct weir_placement_block *out) {
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
    if (own != NULL)
        p->tagged -= size;
    if (p->all.kind[next] == BORDER || p->all.kind[next] == UNMAPPED)
        mark_end(p, next, address + size);
    c->requested = bytes;
    block_begin(p, id, address, size, bytes, out);
}

/* Returns 1 if a free chunk is a whole region of more than `most` granules. */
static inline int is_spared(const struct weir__chunk *c, uint64_t most) {
    return c->size > most && c->prev == c->next; /* both neighbours are the border */
}

/* Finds the best fit for `want` granules in a set and, unless it is NULL, in another set.  The search passes over idle
 * regions of more than `most` bytes. */
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
        if (hit.key == WEIR__BESTFIT_NONE || !is_spared(&p->all.chunk[hit.value], most >> p->shift))
            return hit;
        key = hit.key + 1;
    }
}

/* Finds the best fit for `want` granules among chunks that are free for all streams and, unless NULL, chunks of
 * `own`. */
INLINE struct weir__bestfit_hit best_for(const struct weir_placement *p,
                                         const struct weir_placement_stream *own, uint64_t want,
                                         size_t most) {
    struct weir__bestfit_hit hit;

    if (own == NULL)
        return best_of(p, &p->clean, NULL, want, most);
    if (!p->own_first)
        return best_of(p, &p->clean, &own->fit, want, most);
    hit = best_of(p, &own->fit, NULL, want, most);
    return hit.key != WEIR__BESTFIT_NONE ? hit : best_of(p, &p->clean, NULL, want, most);
}

/* Places a block in the free chunk that fits best. */
INLINE int take(struct weir_placement *p, struct weir_placement_stream *own, uint64_t want,
                size_t bytes, size_t most, struct weir_placement_block *out) {
    struct weir__bestfit_hit hit = best_for(p, own, want, most);

    if (hit.key == WEIR__BESTFIT_NONE)
        return WEIR_PLACEMENT_NO_FIT;
    p->last_address = p->all.chunk[hit.value].address;
    p->last_taken = hit.value;
    p->last_want = want;
    p->last_most = most;
    take_carve(p, own != NULL && p->all.kind[hit.value] == TAGGED ? own : NULL, hit.value, hit.key,
               want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* The compiler makes one copy for untagged chunks and one for tagged chunks, so that the former needs no tests. */
static int take_clean(struct weir_placement *p, uint64_t want, size_t bytes, size_t most,
                      struct weir_placement_block *out) {
    return take(p, NULL, want, bytes, most, out);
}

static int take_tagged(struct weir_placement *p, struct weir_placement_stream *own, uint64_t want,
                       size_t bytes, size_t most, struct weir_placement_block *out) {
    return take(p, own, want, bytes, most, out);
}

/* Places a block in the cases that the fast path leaves out: a parked block, a new stream, no room for records. */
static int take_prepared(struct weir_placement *p, size_t bytes, uint64_t stream, size_t most,
                         struct weir_placement_block *out) {
    uint64_t want;

    if (granules_of(p, bytes, &want) != WEIR_PLACEMENT_OK)
        return WEIR_PLACEMENT_INVALID;
    if (p->parked != 0 && want == p->last_want && most == p->last_most &&
        stream == (p->several ? p->last_stream : p->only)) {
        take_parked(p, bytes, out);
        return WEIR_PLACEMENT_OK;
    }
    unpark(p);
    stream_seen(p, stream);
    if (!weir__placement_take_reserve(p))
        return WEIR_PLACEMENT_NO_MEMORY;
    if (want >> WEIR__BESTFIT_BITS != 0)
        return WEIR_PLACEMENT_NO_FIT;
    p->last_stream = stream;
    /* The stream is looked up only now, since adopting unlisted chunks may have forgotten it. */
    return p->several && stream != 0
               ? take_tagged(p, stream_find(p, stream), want, bytes, most, out)
               : take_clean(p, want, bytes, most, out);
}

int weir__placement_take_within(struct weir_placement *p, size_t bytes, uint64_t stream,
                                size_t most, struct weir_placement_block *out) {
    if (bytes - 1 < p->limit && stream == p->only && stream != 0 && p->parked == 0 &&
        p->all.room > p->regions && p->unlisted == 0)
        return take_clean(p, (bytes + p->mask) >> p->shift, bytes, most, out);
    return take_prepared(p, bytes, stream, most, out);
}

int weir__placement_take(struct weir_placement *p, size_t bytes, uint64_t stream,
                         struct weir_placement_block *out) {
    return weir__placement_take_within(p, bytes, stream, SIZE_MAX, out);
}

int weir__placement_take_at(struct weir_placement *p, uint64_t address, size_t bytes,
                            uint64_t stream, struct weir_placement_block *out) {
    uint64_t first = address >> p->shift;
    uint32_t id;

    unpark(p);
    stream_seen(p, stream);
    if (!weir__placement_take_reserve(p))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = weir__placement_around(p, address, CLEAN, address, bytes);
    if (id == 0 || p->all.chunk[id].sequence > p->step.observed)
        return WEIR_PLACEMENT_NO_FIT;
    id = weir__placement_claim_run(p, id, first, first + (bytes >> p->shift));
    weir__placement_make_live(p, id, bytes, out);
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

/* Places the block of `want` granules at the beginning of a run. */
static void run_take(struct weir_placement *p, uint32_t id, uint64_t want, size_t bytes,
                     struct weir_placement_block *out) {
    uint64_t address = p->all.chunk[id].address;
    struct weir__chunk *c =
        &p->all.chunk[weir__placement_claim_run(p, id, address, address + want)];
    uint32_t border = p->all.kind[c->next] == BORDER ? c->next : p->all.chunk[c->next].next;

    if (p->all.kind[border] == BORDER)
        mark_high(p, &p->region[p->all.chunk[border].region], address + want);
    c->requested = bytes;
    block_begin(p, id, address, want, bytes, out);
}

int weir__placement_take_behind(struct weir_placement *p, size_t bytes, uint64_t stream,
                                const struct weir_placement_waits *waits,
                                struct weir_placement_block *out) {
    struct run best = {0};
    uint64_t want;

    if (granules_of(p, bytes, &want) != WEIR_PLACEMENT_OK)
        return WEIR_PLACEMENT_INVALID;
    unpark(p);
    stream_seen(p, stream);
    if (!p->several)
        return WEIR_PLACEMENT_NO_FIT;
    if (!weir__placement_take_reserve(p))
        return WEIR_PLACEMENT_NO_MEMORY;
    for (size_t i = 0; i < p->regions; i++)
        run_search(p, &p->region[p->by_base[i]], want, stream, waits, &best);
    if (best.first == 0 || !run_wait(p, best.first, want, stream, waits))
        return WEIR_PLACEMENT_NO_FIT;
    run_take(p, best.first, want, bytes, out);
    return WEIR_PLACEMENT_OK;
}

/* ---- give ---- */

/* Diagnoses an address at which no live block starts.  *out (may be NULL) gets the block around the address. */
static int diagnose(const struct weir_placement *p, uint64_t address,
                    struct weir_placement_block *out) {
    uint64_t granule = address >> p->shift;
    size_t position = weir__placement_region_position(p, granule);
    uint32_t id;

    if (position == p->regions || p->region[p->by_base[position]].base > granule)
        return WEIR_PLACEMENT_FOREIGN;
    id = p->all.chunk[p->region[p->by_base[position]].border].next;
    while (p->all.chunk[id].address + p->all.chunk[id].size <= granule)
        id = p->all.chunk[id].next;
    if (p->all.kind[id] == UNMAPPED)
        return WEIR_PLACEMENT_FOREIGN;
    if (p->all.kind[id] != LIVE)
        return WEIR_PLACEMENT_FREE;
    if (out != NULL)
        block_show(p, &p->all.chunk[id], out);
    return WEIR_PLACEMENT_INTERIOR;
}

/* Keeps a freed chunk out of all sets and lists ("unlisted"), since there is no host memory for the stream's record.
 * Joins it with the stream's unlisted chunks beside it now: adoption looks only at direct neighbours. */
static void chunk_unlist(struct weir_placement *p, uint64_t stream, uint32_t id) {
    uint32_t prev = p->all.chunk[id].prev;
    uint32_t next = p->all.chunk[id].next;

    p->all.kind[id] = TAGGED | UNLISTED;
    p->all.tag[id].stream = stream;
    p->unlisted++;
    if (p->all.kind[next] == (TAGGED | UNLISTED) && p->all.tag[next].stream == stream) {
        p->unlisted--;
        chunk_join(p, id, next);
    }
    if (p->all.kind[prev] == (TAGGED | UNLISTED) && p->all.tag[prev].stream == stream) {
        p->unlisted--;
        chunk_join(p, prev, id);
    }
}

/* Frees a block on `stream`.  If `park` is set, the block is the one that was allocated last; it may then stay outside
 * the sets ("parked"), since the next request often has its size. */
static void give_tagged(struct weir_placement *p, uint32_t id, uint64_t stream, uint64_t sequence,
                        int park) {
    struct weir_placement_stream *s = stream_make(p, stream);
    struct weir__chunk *c = &p->all.chunk[id];

    c->sequence = s != NULL ? step_admit(&s->step, sequence) : sequence + (sequence == 0);
    if (c->sequence == 0) {
        weir__placement_settle_clean(p, id);
        return;
    }
    p->tagged += c->size;
    if (s == NULL) {
        chunk_unlist(p, stream, id);
        return;
    }
    if (park && stream == p->last_stream && stream != 0 && !chunk_joins(p, c->prev, id, s) &&
        !chunk_joins(p, c->next, id, s)) {
        park_block(p, id);
        return;
    }
    weir__placement_settle_tagged(p, s, id);
}

/* Ends the live block `id`, and describes it in *out. */
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

/* Frees a block that has ended, when `stream` is not the only stream so far. */
static void give_several(struct weir_placement *p, uint32_t id, uint64_t stream,
                         uint64_t sequence) {
    int park = p->all.chunk[id].address == p->last_address;

    unpark(p);
    stream_seen(p, stream);
    if (p->several) {
        give_tagged(p, id, stream, sequence, park);
    } else {
        p->all.chunk[id].sequence = step_admit(&p->step, sequence);
        weir__placement_settle_clean(p, id);
    }
}

int weir__placement_give(struct weir_placement *p, uint64_t address, uint64_t stream,
                         uint64_t sequence, struct weir_placement_block *out) {
    uint64_t granule = address >> p->shift;
    uint32_t id = block_find(p, address);

    if (id == 0)
        return diagnose(unparked(p), address, NULL);
    block_end(p, id, address, out);
    if (stream != p->only || stream == 0) {
        give_several(p, id, stream, sequence);
        return WEIR_PLACEMENT_OK;
    }
    p->all.chunk[id].sequence = step_admit(&p->step, sequence);
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

    if (id == 0)
        return diagnose(unparked(p), address, out);
    block_show(p, &p->all.chunk[id], out);
    return WEIR_PLACEMENT_OK;
}
