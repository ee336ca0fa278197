/* SPDX-License-Identifier: MIT */
/* placement.c: implements placement.h; placement_state.h describes the records.
 *
 * An operation reserves all its host memory before it changes anything.  The table always has one spare record for
 * each region, since a free may be the first call of a second stream, and second_stream() then cuts one chunk in each
 * region.  Two unmapped ranges are never adjacent.
 */
#include "placement/placement_state.h"

#include "base/assert.h"
#include "base/bounds.h"
#include "base/size.h"

#define FIRST_RECORDS ((size_t)32)
#define LEAST_BUCKETS ((size_t)8)
#define MOST_BUCKETS ((size_t)UINT32_MAX / 8)
#define CACHE_LINE ((size_t)64)
/* If more struct weir_placement_owner than this exist, weir frees the struct of a stream without free chunks. */
#define KEPT_OWNERS ((size_t)16)

/* ---- the hash table of chunks ---- */

/* Creates an empty table.  Record 0 is marked as used, so that 0 can mean "no record". */
static int table_make(struct chunk_table *t, struct weir__hostmem *host, size_t records) {
    const size_t record_bytes = sizeof *t->chunk + sizeof *t->tag + 2;
    size_t buckets = LEAST_BUCKETS, slots;
    uintptr_t start;

    while (buckets <= MOST_BUCKETS && chunk_limit(buckets) < records)
        buckets *= 2;
    if (buckets > MOST_BUCKETS)
        return 0;
    slots = buckets * 8;
    t->bytes = slots * record_bytes + buckets + CACHE_LINE - 1;
    t->memory = weir__hostmem_resize(host, NULL, 0, t->bytes);
    if (t->memory == NULL)
        return 0;
    start = ((uintptr_t)t->memory + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1);
    t->chunk = (struct chunk *)start;
    t->tag = (struct chunk_tag *)(t->chunk + slots);
    t->print = (uint8_t *)(t->tag + slots);
    t->kind = t->print + slots;
    t->passed = t->kind + slots;
    memset(t->print, 0, 2 * slots + buckets); /* also clears `kind` and `passed` */
    t->buckets = buckets;
    t->shift = 64 - (unsigned)__builtin_ctzll(buckets);
    t->room = chunk_limit(buckets);
    t->print[0] = 0x80;
    t->chunk[0] = (struct chunk){0};
    return 1;
}

/* Adds a record to a table that is not full, and returns its number.  The caller fills the record. */
static uint32_t record_add(struct chunk_table *t, uint64_t address) {
    uint64_t hash = address * CHUNK_FACTOR;
    size_t bucket = (size_t)(hash >> t->shift);
    uint64_t empty;
    uint32_t id;

    while ((empty = ~bucket_prints(t, bucket) & (EACH_PRINT << 7)) == 0) {
        if (t->passed[bucket] != UINT8_MAX)
            t->passed[bucket]++;
        bucket = (bucket + 1) & (t->buckets - 1);
    }
    id = (uint32_t)(bucket * 8) + (unsigned)__builtin_ctzll(empty) / 8;
    t->print[id] = (uint8_t)(hash >> 24) | 0x80;
    t->room--;
    return id;
}

static void record_remove(struct chunk_table *t, uint32_t id) {
    size_t bucket = (size_t)(t->chunk[id].address * CHUNK_FACTOR >> t->shift);

    for (; bucket != id / 8; bucket = (bucket + 1) & (t->buckets - 1))
        if (t->passed[bucket] != UINT8_MAX)
            t->passed[bucket]--;
    t->print[id] = 0;
    t->kind[id] = UNUSED;
    t->room++;
}

/* ---- sets of free chunks, by size ---- */

/* Inserts a free chunk into the treap whose root is *link. */
static void treap_insert(struct chunk *chunk, uint32_t *link, uint32_t id) {
    uint64_t rank = chunk_rank(&chunk[id]);
    uint32_t *end[2], rest;

    while (*link != 0 && chunk_rank(&chunk[*link]) > rank)
        link = &chunk[*link].child[chunk_is_before(&chunk[*link], &chunk[id])];
    rest = *link;
    *link = id;
    end[0] = &chunk[id].child[0];
    end[1] = &chunk[id].child[1];
    while (rest != 0) { /* splits the subtree below the new chunk */
        int side = chunk_is_before(&chunk[id], &chunk[rest]);

        *end[side] = rest;
        end[side] = &chunk[rest].child[!side];
        rest = *end[side];
    }
    *end[0] = *end[1] = 0;
}

/* Adds a chunk to a size class whose smallest chunk is *first. */
static void class_insert(struct chunk *chunk, uint32_t *first, uint32_t id) {
    uint32_t old = *first, *link = &chunk[old].child[1];

    if (!chunk_is_before(&chunk[id], &chunk[old])) {
        treap_insert(chunk, link, id);
        return;
    }
    *first = id;
    chunk[id].child[0] = 0;
    chunk[id].child[1] = *link;
    treap_insert(chunk, &chunk[id].child[1], old);
}

static inline void set_insert(struct weir_placement *p, struct chunk_set *set, uint32_t id) {
    struct chunk *chunk = p->all.chunk;
    unsigned c = chunk_class(chunk[id].size);

    if (set->first[c] != 0) {
        class_insert(chunk, &set->first[c], id);
        return;
    }
    set->used[c / CLASSES] |= UINT32_C(1) << c % CLASSES;
    set->octaves |= UINT64_C(1) << c / CLASSES;
    set->first[c] = id;
    chunk[id].child[0] = chunk[id].child[1] = 0;
}

/* Removes a chunk from a size class with at least two chunks, of which *first_of is the smallest. */
static void class_erase(struct chunk *chunk, uint32_t *first_of, uint32_t id) {
    uint32_t first = *first_of, *link = &chunk[first].child[1], before, after;

    if (id == first) {
        while (chunk[*link].child[0] != 0)
            link = &chunk[*link].child[0];
        first = *link;
        *link = chunk[first].child[1];
        chunk[first].child[1] = chunk[id].child[1];
        *first_of = first;
        return;
    }
    while (*link != id)
        link = &chunk[*link].child[chunk_is_before(&chunk[*link], &chunk[id])];
    before = chunk[id].child[0];
    after = chunk[id].child[1];
    while (before != 0 && after != 0) { /* joins the two subtrees of the removed chunk */
        if (chunk_rank(&chunk[before]) > chunk_rank(&chunk[after])) {
            *link = before;
            link = &chunk[before].child[1];
            before = *link;
        } else {
            *link = after;
            link = &chunk[after].child[0];
            after = *link;
        }
    }
    *link = before | after;
}

static inline void set_erase(struct weir_placement *p, struct chunk_set *set, uint32_t id) {
    struct chunk *chunk = p->all.chunk;
    unsigned c = chunk_class(chunk[id].size);

    if (id != set->first[c] || chunk[id].child[1] != 0) {
        class_erase(chunk, &set->first[c], id);
        return;
    }
    set->first[c] = 0;
    set->used[c / CLASSES] ^= UINT32_C(1) << c % CLASSES;
    set->octaves ^= (uint64_t)(set->used[c / CLASSES] == 0) << c / CLASSES;
}

/* Returns the best fit for `want` granules in the set, or 0 if no chunk is large enough. */
static uint32_t set_find(const struct weir_placement *p, const struct chunk_set *set,
                         uint64_t want) {
    const struct chunk *chunk = p->all.chunk;
    unsigned c = chunk_class(want), octave = c / CLASSES;
    uint64_t classes = set->used[octave] >> c % CLASSES;
    uint32_t best = 0, id = (classes & 1) != 0 ? set->first[c] : 0;

    if (id != 0 && chunk[id].size >= want)
        return id;
    id = chunk[id].child[1];
    while (id != 0) {
        int fits = chunk[id].size >= want;

        best = fits ? id : best;
        id = chunk[id].child[!fits];
    }
    if (best != 0)
        return best;
    classes &= UINT64_MAX - 1;
    if (classes == 0) {
        uint64_t octaves = set->octaves & (UINT64_MAX - 1) << octave;

        if (octaves == 0)
            return 0;
        octave = (unsigned)__builtin_ctzll(octaves);
        c = octave * CLASSES;
        classes = set->used[octave];
    }
    return set->first[c + (unsigned)__builtin_ctzll(classes)];
}

/* ---- creating and destroying a placement ---- */

int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out) {
    struct weir__hostmem host = {.resize = rule->resize, .context = rule->context};
    struct weir_placement *p;

    WEIR_ASSERT(rule->granularity > 0 && rule->split_waste > 0);
    p = weir__hostmem_resize(&host, NULL, 0, sizeof *p);
    if (p == NULL)
        return WEIR_PLACEMENT_NO_MEMORY;
    memset(p, 0, sizeof *p);
    p->host = host;
    p->mask = rule->granularity - 1;
    p->shift = (unsigned)__builtin_ctzll(rule->granularity);
    p->waste = (rule->split_waste - 1) / rule->granularity + 1;
    p->prefer_tagged = rule->prefer_tagged;
    p->index = rule->index;
    p->ended.observed = UINT64_MAX;
    if (!table_make(&p->all, &p->host, FIRST_RECORDS)) {
        weir__hostmem_resize(&host, p, 0, 0);
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    *out = p;
    return WEIR_PLACEMENT_OK;
}

void weir__placement_destroy(struct weir_placement *p) {
    struct weir__hostmem host;

    if (p == NULL)
        return;
    host = p->host;
    weir__hostmem_resize(&host, p->all.memory, p->all.bytes, 0);
    weir__hostmem_resize(&host, p->region, 0, 0);
    weir__hostmem_resize(&host, p, 0, 0);
}

/* ---- streams' free chunks ---- */

/* Returns the stream's struct of free chunks, and creates it if necessary.  Returns NULL without host memory. */
static struct weir_placement_owner *owner_make(struct weir_placement *p,
                                               struct weir_placement_stream *s) {
    struct weir_placement_owner *owner = s->owner[p->index];

    if (owner != NULL)
        return owner;
    if (s->is_fallback)
        owner = &p->fallback;
    else if (s == p->only)
        owner = &p->first;
    else
        owner = weir__hostmem_resize(&p->host, NULL, 0, sizeof *owner);
    if (owner == NULL)
        return NULL;
    memset(owner, 0, sizeof *owner);
    owner->stream = s;
    s->owner[p->index] = owner;
    p->owners++;
    return owner;
}

static void owner_drop(struct weir_placement *p, struct weir_placement_stream *s) {
    struct weir_placement_owner *owner = s->owner[p->index];

    if (owner != &p->fallback && owner != &p->first)
        weir__hostmem_resize(&p->host, owner, sizeof *owner, 0);
    s->owner[p->index] = NULL;
    p->owners--;
}

void weir__placement_remove_stream(struct weir_placement *p, struct weir_placement_stream *s) {
    if (s->owner[p->index] != NULL)
        owner_drop(p, s);
    if (p->only == s)
        p->only = &p->ended;
}

/* ---- each stream's list of free chunks ---- */

/* Inserts a chunk into the list of the chunks that one stream has freed, which is sorted by the number of the free. */
static void list_insert(struct weir_placement *p, struct weir_placement_owner *owner, uint32_t id) {
    uint32_t older = owner->newest, newer = 0;

    while (older != 0 && p->all.tag[older].sequence > p->all.tag[id].sequence) {
        newer = older;
        older = p->all.tag[older].older;
    }
    p->all.tag[id].owner = owner;
    p->all.tag[id].older = older;
    p->all.tag[id].newer = newer;
    *(older != 0 ? &p->all.tag[older].newer : &owner->oldest) = id;
    *(newer != 0 ? &p->all.tag[newer].older : &owner->newest) = id;
}

static void list_remove(struct weir_placement *p, struct weir_placement_owner *owner, uint32_t id) {
    struct chunk_tag *t = &p->all.tag[id];

    *(t->older != 0 ? &p->all.tag[t->older].newer : &owner->oldest) = t->newer;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &owner->newest) = t->older;
}

/* Replaces the chunk `old` in its stream's list by the chunk `id`, a part of `old`. */
static void list_replace(struct weir_placement *p, struct weir_placement_owner *owner, uint32_t old,
                         uint32_t id) {
    struct chunk_tag *t = &p->all.tag[id];

    *t = p->all.tag[old];
    *(t->older != 0 ? &p->all.tag[t->older].newer : &owner->oldest) = id;
    *(t->newer != 0 ? &p->all.tag[t->newer].older : &owner->newest) = id;
}

/* ---- merging and cutting free chunks ---- */

static struct weir_placement_owner *chunk_owner(struct weir_placement *p, uint32_t id) {
    return p->all.kind[id] == TAGGED ? p->all.tag[id].owner : &p->clean;
}

/* Removes a free chunk from its set and from its stream's list, before the chunk changes. */
static void free_chunk_remove(struct weir_placement *p, struct weir_placement_owner *owner,
                              uint32_t id) {
    set_erase(p, &owner->set, id);
    if (owner != &p->clean)
        list_remove(p, owner, id);
}

/* Joins two adjacent chunks that are in no set of free chunks.  The joined chunk gets the later sequence. */
static void chunk_join(struct weir_placement *p, uint32_t left, uint32_t right) {
    struct chunk *l = &p->all.chunk[left], *r = &p->all.chunk[right];

    l->size += r->size;
    l->next = r->next;
    p->all.chunk[r->next].prev = left;
    p->all.tag[left].sequence =
        weir__size_larger(p->all.tag[left].sequence, p->all.tag[right].sequence);
    record_remove(&p->all, right);
}

/* Adds the chunk `id` to the free chunks of `owner`, and merges it with adjacent ones if they may coalesce. */
static void free_chunk_add(struct weir_placement *p, struct weir_placement_owner *owner,
                           uint32_t id) {
    uint32_t prev = p->all.chunk[id].prev, next = p->all.chunk[id].next;

    if (chunk_joins(p, next, id, owner)) {
        free_chunk_remove(p, owner, next);
        chunk_join(p, id, next);
    }
    if (chunk_joins(p, prev, id, owner)) {
        free_chunk_remove(p, owner, prev);
        chunk_join(p, prev, id);
        id = prev;
    }
    set_insert(p, &owner->set, id);
    p->all.kind[id] = owner == &p->clean ? CLEAN : TAGGED;
    if (owner != &p->clean)
        list_insert(p, owner, id);
}

/* Cuts a chunk, which is in no set, in two at `address`.  Returns the second part's record, which must be reserved. */
static uint32_t chunk_cut(struct weir_placement *p, uint32_t id, uint64_t address, unsigned kind) {
    uint32_t rest = record_add(&p->all, address);
    struct chunk *c = &p->all.chunk[id];

    p->all.chunk[rest] = (struct chunk){
        .address = address, .size = c->address + c->size - address, .prev = id, .next = c->next};
    p->all.tag[rest].sequence = p->all.tag[id].sequence;
    p->all.kind[rest] = (uint8_t)kind;
    p->all.chunk[c->next].prev = rest;
    c->next = rest;
    c->size = address - c->address;
    return rest;
}

/* Removes the part [first, end) of the free chunk `id` from its set.  Returns the part's record. */
static uint32_t claim_part(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end) {
    const struct chunk *c = &p->all.chunk[id];
    struct weir_placement_owner *owner = chunk_owner(p, id);

    free_chunk_remove(p, owner, id);
    p->all.kind[id] = LIVE;
    if (c->address + c->size > end)
        free_chunk_add(p, owner, chunk_cut(p, id, end, LIVE));
    if (c->address < first) {
        uint32_t rest = chunk_cut(p, id, first, LIVE);

        free_chunk_add(p, owner, id);
        id = rest;
    }
    return id;
}

/* Removes the free chunks in [first, end) from their sets, and joins them.  The caller has reserved two records. */
static uint32_t claim_run(struct weir_placement *p, uint32_t id, uint64_t first, uint64_t end) {
    id = claim_part(p, id, first, end);
    while (p->all.chunk[id].address + p->all.chunk[id].size < end)
        chunk_join(p, id, claim_part(p, p->all.chunk[id].next, first, end));
    return id;
}

/* ---- growth of the hash table ---- */

/* Replaces all old record numbers, and builds all sets again.  `old` maps old record numbers to new ones. */
static void renumber_records(struct weir_placement *p, const struct chunk_table *old) {
#define MOVED(id) ((id) == 0 ? 0 : (uint32_t)old->chunk[id].address)
    for (size_t i = 0; i < p->regions; i++)
        p->region[i].border = MOVED(p->region[i].border);
    for (uint32_t id = 1; id < p->all.buckets * 8; id++) {
        struct chunk *c = &p->all.chunk[id];
        struct weir_placement_owner *owner = chunk_owner(p, id);

        if (p->all.kind[id] == UNUSED)
            continue;
        c->prev = MOVED(c->prev);
        c->next = MOVED(c->next);
        if (p->all.kind[id] == TAGGED) {
            p->all.tag[id].older = MOVED(p->all.tag[id].older);
            p->all.tag[id].newer = MOVED(p->all.tag[id].newer);
            owner->oldest = p->all.tag[id].older == 0 ? id : owner->oldest;
            owner->newest = p->all.tag[id].newer == 0 ? id : owner->newest;
        }
        if (p->all.kind[id] == TAGGED || p->all.kind[id] == CLEAN)
            owner->set.first[chunk_class(c->size)] = 0;
    }
    for (uint32_t id = 1; id < p->all.buckets * 8; id++)
        if (p->all.kind[id] == TAGGED || p->all.kind[id] == CLEAN)
            set_insert(p, &chunk_owner(p, id)->set, id);
#undef MOVED
}

/* Moves all records to a larger table, and changes their numbers.  Returns 0 without host memory. */
static int table_grow(struct weir_placement *p, size_t room) {
    struct chunk_table old = p->all;

    if (!table_make(&p->all, &p->host, chunk_limit(old.buckets) - old.room + room)) {
        p->all = old;
        return 0;
    }
    for (size_t i = 1; i < old.buckets * 8; i++) {
        uint32_t id;

        if (old.kind[i] == UNUSED)
            continue;
        id = record_add(&p->all, old.chunk[i].address);
        p->all.chunk[id] = old.chunk[i];
        p->all.kind[id] = old.kind[i];
        p->all.tag[id] = old.tag[i];
        old.chunk[i].address = id;
    }
    renumber_records(p, &old);
    weir__hostmem_resize(&p->host, old.memory, old.bytes, 0);
    return 1;
}

static int records_reserve(struct weir_placement *p, size_t room) {
    return p->all.room >= room || table_grow(p, room);
}

void weir__placement_reserve_records(struct weir_placement *p, size_t chunks) {
    size_t used = chunk_limit(p->all.buckets) - p->all.room;

    if (chunks > used && !records_reserve(p, chunks - used))
        return;
    weir__hostmem_populate(p->all.memory, p->all.bytes);
}

/* ---- the first call of a second stream, and frees that have completed ---- */

static uint32_t list_merge(struct weir_placement *p, uint32_t a, uint32_t b) {
    uint32_t first = 0, *end = &first;

    while (a != 0 && b != 0) {
        uint32_t *from = p->all.tag[b].sequence < p->all.tag[a].sequence ? &b : &a;

        *end = *from;
        end = &p->all.tag[*from].newer;
        *from = *end;
    }
    *end = a != 0 ? a : b;
    return first;
}

/* Sorts a list of chunks, linked by `newer`, by sequence (merge sort).  Returns the first chunk. */
static uint32_t list_sort(struct weir_placement *p, uint32_t id) {
    uint32_t run[32] = {0}; /* run[i] is 0 or a sorted list of 2^i chunks */
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

/* Removes the chunks that the first stream's work may still use from p->clean, and returns them as a list, linked by
 * `newer`.  Sets the sequence of all other free chunks to 0. */
static uint32_t unlink_first_stream(struct weir_placement *p) {
    uint32_t chain = 0;

    for (size_t i = 0; i < p->regions; i++) {
        const struct weir_placement_region *r = &p->region[i];

        for (uint32_t id = p->all.chunk[r->border].next; id != r->border;
             id = p->all.chunk[id].next) {
            struct chunk *c = &p->all.chunk[id];

            if (p->all.kind[id] != CLEAN)
                continue;
            if (p->all.tag[id].sequence <= p->only->observed || c->address >= r->used) {
                p->all.tag[id].sequence = 0;
                continue;
            }
            set_erase(p, &p->clean.set, id);
            if (c->address + c->size > r->used)
                set_insert(p, &p->clean.set, chunk_cut(p, id, r->used, CLEAN));
            p->all.tag[id].newer = chain;
            chain = id;
        }
    }
    return chain;
}

/* When a second stream appears, keeps the first stream's free chunks for the first stream until its work has ended. */
static void second_stream(struct weir_placement *p) {
    struct weir_placement_owner *owner;
    uint32_t chain, id;

    p->several = 1;
    if (p->only == NULL)
        return;
    chain = list_sort(p, unlink_first_stream(p));
    /* owner_make() cannot fail here, since it allocates no memory for the first stream (p->only). */
    owner = owner_make(p, p->only);
    p->only = NULL;
    while ((id = chain) != 0) {
        chain = p->all.tag[id].newer;
        free_chunk_add(p, owner, id);
    }
}

/* Stores the first stream in p->only.  Calls second_stream() if `s` is another stream or is unknown. */
static void update_only_stream(struct weir_placement *p, struct weir_placement_stream *s) {
    int is_known = s != NULL && s->id != 0;

    if (s != NULL && s == p->only)
        return;
    if (p->only == NULL && is_known)
        p->only = s;
    else
        second_stream(p);
}

void weir__placement_set_merge_floor(struct weir_placement *p, struct weir_placement_stream *s,
                                     uint64_t sequence) {
    if (p->several && s->owner[p->index] != NULL)
        s->owner[p->index]->merge_floor = sequence;
}

void weir__placement_observe(struct weir_placement *p, struct weir_placement_stream *s) {
    struct weir_placement_owner *owner = s->owner[p->index];

    if (owner == NULL)
        return;
    while (owner->oldest != 0 && p->all.tag[owner->oldest].sequence <= s->observed) {
        uint32_t id = owner->oldest;

        free_chunk_remove(p, owner, id);
        p->all.tag[id].sequence = 0;
        free_chunk_add(p, &p->clean, id);
    }
    if (owner->oldest == 0 && p->owners > KEPT_OWNERS)
        owner_drop(p, s);
}

/* ---- regions ---- */

/* Returns the index of the first region that ends above `address` (in granules), or p->regions. */
static size_t region_position(const struct weir_placement *p, uint64_t address) {
    size_t first = p->regions, at;

    WEIR_FIND_FIRST(first, at, p->region[at].end > address);
    return first;
}

/* Raises a region's highest used address to `end`, the end of a block or of newly mapped memory. */
static void mark_end(struct weir_placement *p, uint64_t end, int is_block) {
    struct weir_placement_region *r = &p->region[region_position(p, end - 1)];

    if (end > r->high) {
        p->extent += end - r->high;
        r->high = end;
    }
    if (is_block && end > r->used)
        r->used = end;
}

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
    uint64_t first = base >> p->shift, end = first + (bytes >> p->shift);
    size_t position = region_position(p, first);
    uint32_t border, id;

    if (bytes == 0 || ((base | bytes) & p->mask) != 0 || bytes > UINT64_MAX - base ||
        end >> SIZE_BITS != 0)
        return WEIR_PLACEMENT_INVALID;
    if (position < p->regions && p->region[position].base < end)
        return WEIR_PLACEMENT_INVALID;
    if (!records_reserve(p, p->regions + 3) || !region_reserve(p))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = record_add(&p->all, first);
    p->all.chunk[id] = (struct chunk){.address = first, .size = end - first};
    p->all.tag[id].sequence = 0;
    p->all.kind[id] = CLEAN;
    set_insert(p, &p->clean.set, id);
    border = record_add(&p->all, end);
    p->all.chunk[border] = (struct chunk){.address = end, .prev = id, .next = id};
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

/* Frees a chunk on the stream `s`, or for all streams if `sequence` is 0.  Returns 0 if there is no host memory. */
static int chunk_free(struct weir_placement *p, uint32_t id, struct weir_placement_stream *s,
                      uint64_t sequence) {
    struct weir_placement_owner *owner = &p->clean;

    if (!p->several)
        update_only_stream(p, s);
    if (sequence != 0 && p->several)
        owner = owner_make(p, s);
    if (owner == NULL)
        return 0;
    p->all.tag[id].sequence = sequence;
    free_chunk_add(p, owner, id);
    return 1;
}

/* Returns the stream that freed the chunk `id`, if other streams may not use the chunk yet; else NULL. */
static const struct weir_placement_stream *waits_for(const struct weir_placement *p, uint32_t id) {
    uint64_t sequence = p->all.tag[id].sequence;

    if (p->all.kind[id] == TAGGED)
        return p->all.tag[id].owner->stream;
    return sequence == 0 || sequence <= p->only->observed ? NULL : p->only;
}

int weir__placement_region(const struct weir_placement *p, uint64_t base, uint64_t stream) {
    size_t position = region_position(p, base >> p->shift);
    const struct weir_placement_region *r;
    int usable = 1;

    if (position == p->regions)
        return WEIR_PLACEMENT_FOREIGN;
    r = &p->region[position];
    if (r->base << p->shift != base)
        return WEIR_PLACEMENT_FOREIGN;
    for (uint32_t id = p->all.chunk[r->border].next; id != r->border; id = p->all.chunk[id].next) {
        unsigned kind = p->all.kind[id];

        /* Usually ends the loop over the region's chunks at once, since blocks at low addresses are often live. */
        if (kind == LIVE || kind == DEFERRED || kind == UNMAPPED)
            return WEIR_PLACEMENT_BUSY;
        if (waits_for(p, id) != NULL)
            usable &= stream != 0 && waits_for(p, id)->id == stream;
    }
    return usable ? WEIR_PLACEMENT_OK : WEIR_PLACEMENT_FREE;
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
    size_t position = region_position(p, base >> p->shift);
    struct weir_placement_region *r;
    int state = weir__placement_region(p, base, 0);

    if (state != WEIR_PLACEMENT_OK)
        return state == WEIR_PLACEMENT_FREE ? WEIR_PLACEMENT_BUSY : state;
    r = &p->region[position];
    for (uint32_t id = p->all.chunk[r->border].next, next; id != r->border; id = next) {
        next = p->all.chunk[id].next;
        free_chunk_remove(p, chunk_owner(p, id), id);
        record_remove(&p->all, id);
    }
    record_remove(&p->all, r->border);
    p->total -= r->end - r->base;
    p->extent -= r->high - r->base;
    p->regions--;
    memmove(r, r + 1, (p->regions - position) * sizeof *r);
    return WEIR_PLACEMENT_OK;
}

/* ---- unmapped ranges ---- */

/* Turns the chunk `id`, which is in no set of free chunks, into an unmapped range.  Joins adjacent unmapped ranges. */
static void chunk_unmap(struct weir_placement *p, uint32_t id) {
    struct chunk *c = &p->all.chunk[id];

    p->all.kind[id] = UNMAPPED;
    p->all.tag[id].sequence = 0;
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
        id = chunk_find(p, base, CLEAN);
        set_erase(p, &p->clean.set, id);
        chunk_unmap(p, id);
    }
    return status;
}

/* Returns the chunk that starts at `within`, if it is of this kind and contains `bytes` bytes at `address`; else 0. */
static uint32_t chunk_around(const struct weir_placement *p, uint64_t within, unsigned kind,
                             uint64_t address, size_t bytes) {
    uint64_t before = (address - within) >> p->shift;
    uint32_t id;

    if (bytes == 0 || ((within | address | bytes) & p->mask) != 0 || address < within)
        return 0;
    id = chunk_find(p, within, kind);
    if (id == 0 || p->all.chunk[id].size < before ||
        p->all.chunk[id].size - before < bytes >> p->shift)
        return 0;
    return id;
}

int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         struct weir_placement_stream *s, uint64_t sequence) {
    uint64_t first = address >> p->shift, end = first + (bytes >> p->shift);
    struct chunk *c;
    uint32_t id;

    if (!records_reserve(p, p->regions + 2))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = chunk_around(p, within, UNMAPPED, address, bytes);
    if (id == 0)
        return WEIR_PLACEMENT_INVALID;
    c = &p->all.chunk[id];
    if (c->address + c->size > end)
        chunk_cut(p, id, end, UNMAPPED);
    if (c->address < first)
        id = chunk_cut(p, id, first, UNMAPPED);
    p->total += bytes >> p->shift;
    if (sequence == 0) {
        free_chunk_add(p, &p->clean, id);
    } else if (!chunk_free(p, id, s, sequence)) {
        chunk_unmap(p, id);
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    mark_end(p, end, sequence != 0);
    return WEIR_PLACEMENT_OK;
}

int weir__placement_unmap(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes) {
    uint64_t first = address >> p->shift, end = first + (bytes >> p->shift);
    uint32_t id;

    if (!records_reserve(p, p->regions + 2))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = chunk_find(p, within, CLEAN);
    if (id == 0)
        id = chunk_find(p, within, TAGGED);
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

/* ---- placing blocks ---- */

/* Makes room for one more record, and sets *want to the granules for `bytes`.  Returns OK or an error. */
static int alloc_begin(struct weir_placement *p, size_t bytes, struct weir_placement_stream *s,
                       uint64_t *want) {
    if (bytes == 0 || bytes > SIZE_MAX - p->mask)
        return WEIR_PLACEMENT_INVALID;
    *want = (bytes + p->mask) >> p->shift;
    if (!p->several)
        update_only_stream(p, s);
    if (p->all.room <= p->regions && !table_grow(p, p->regions + 1))
        return WEIR_PLACEMENT_NO_MEMORY;
    return *want >> SIZE_BITS == 0 ? WEIR_PLACEMENT_OK : WEIR_PLACEMENT_NO_FIT;
}

static void block_describe(const struct weir_placement *p, uint32_t id,
                           struct weir_placement_block *out) {
    const struct chunk *c = &p->all.chunk[id];

    out->address = c->address << p->shift;
    out->requested = c->requested;
    out->size = c->size << p->shift;
}

/* Turns the chunk `id`, which is in no set of free chunks, into a live block. */
static void block_begin(struct weir_placement *p, uint32_t id, size_t bytes,
                        struct weir_placement_block *out) {
    struct chunk *c = &p->all.chunk[id];

    p->all.kind[id] = LIVE;
    c->requested = bytes;
    p->blocks++;
    block_describe(p, id, out);
}

/* Returns the best fit among the chunks of `owner` (or NULL) and the chunks for all streams, or 0 if none fits. */
static uint32_t best_for(const struct weir_placement *p, const struct weir_placement_owner *owner,
                         uint64_t want) {
    uint32_t first = owner == NULL ? 0 : set_find(p, &owner->set, want), clean;

    if (first != 0 && p->prefer_tagged)
        return first;
    clean = set_find(p, &p->clean.set, want);
    if (first == 0 || clean == 0)
        return first | clean;
    return chunk_is_before(&p->all.chunk[first], &p->all.chunk[clean]) ? first : clean;
}

int weir__placement_alloc(struct weir_placement *p, size_t bytes, struct weir_placement_stream *s,
                          struct weir_placement_block *out) {
    struct weir_placement_owner *owner;
    const struct chunk *c;
    uint64_t want;
    uint32_t id, rest;
    unsigned next;
    int result = alloc_begin(p, bytes, s, &want);

    if (result != WEIR_PLACEMENT_OK)
        return result;
    id = best_for(p, p->several && s->id != 0 ? s->owner[p->index] : NULL, want);
    if (id == 0)
        return WEIR_PLACEMENT_NO_FIT;
    owner = chunk_owner(p, id);
    c = &p->all.chunk[id];
    next = p->all.kind[c->next];
    set_erase(p, &owner->set, id);
    if (c->size - want >= want || c->size - want >= p->waste) {
        rest = chunk_cut(p, id, c->address + want, p->all.kind[id]);
        set_insert(p, &owner->set, rest);
        if (owner != &p->clean)
            list_replace(p, owner, id, rest);
    } else if (owner != &p->clean) {
        list_remove(p, owner, id);
    }
    block_begin(p, id, bytes, out);
    /* Only a block at the end of a region, or before an unmapped range, can raise the highest used address. */
    if (next == BORDER || next == UNMAPPED)
        mark_end(p, (out->address + out->size) >> p->shift, 1);
    return WEIR_PLACEMENT_OK;
}

int weir__placement_alloc_at(struct weir_placement *p, uint64_t address, size_t bytes,
                             struct weir_placement_stream *s, struct weir_placement_block *out) {
    uint64_t first = address >> p->shift, want;
    int result = alloc_begin(p, bytes, s, &want);
    uint32_t id;

    if (result != WEIR_PLACEMENT_OK)
        return result;
    id = chunk_around(p, address, CLEAN, address, bytes);
    if (id == 0 || waits_for(p, id) != NULL)
        return WEIR_PLACEMENT_NO_FIT;
    block_begin(p, claim_run(p, id, first, first + want), bytes, out);
    mark_end(p, first + want, 1);
    return WEIR_PLACEMENT_OK;
}

/* ---- placing blocks in chunks that other streams have freed, after waits ---- */

/* A run of adjacent free chunks. */
struct run {
    uint32_t first;
    uint64_t size; /* in granules */
};

/* Returns 1 if the chunk `id` is free only for a stream other than `s`, else 0. */
static int is_freed_elsewhere(const struct weir_placement *p, uint32_t id,
                              const struct weir_placement_stream *s) {
    return p->all.kind[id] == TAGGED && (p->all.tag[id].owner->stream != s || s->id == 0);
}

/* Returns 1 if the stream may use the chunk `id` at once, or after a wait for another stream; else 0. */
static int may_use_chunk(const struct weir_placement *p, uint32_t id,
                         const struct weir_placement_stream *s,
                         const struct weir_placement_waits *waits) {
    if (is_freed_elsewhere(p, id, s))
        return waits->may(waits->context, p->all.tag[id].owner->stream->id,
                          p->all.tag[id].sequence);
    return p->all.kind[id] == CLEAN || p->all.kind[id] == TAGGED;
}

/* Searches a region for a smaller run than *best with at least `want` granules. */
static void run_search(const struct weir_placement *p, const struct weir_placement_region *r,
                       uint64_t want, const struct weir_placement_stream *s,
                       const struct weir_placement_waits *waits, struct run *best) {
    const struct chunk *chunk = p->all.chunk;
    struct run now = {0};

    for (uint32_t id = chunk[r->border].next; id != r->border; id = chunk[id].next) {
        if (!may_use_chunk(p, id, s, waits)) {
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

/* Makes the stream wait for other streams' frees in the first `want` granules of a run. */
static int run_wait(const struct weir_placement *p, uint32_t id, uint64_t want,
                    const struct weir_placement_stream *s,
                    const struct weir_placement_waits *waits) {
    for (uint64_t got = 0; got < want; got += p->all.chunk[id].size, id = p->all.chunk[id].next)
        if (is_freed_elsewhere(p, id, s) &&
            !waits->wait(waits->context, p->all.tag[id].owner->stream->id, p->all.tag[id].sequence))
            return 0;
    return 1;
}

int weir__placement_alloc_wait(struct weir_placement *p, size_t bytes,
                               struct weir_placement_stream *s,
                               const struct weir_placement_waits *waits,
                               struct weir_placement_block *out) {
    struct run best = {0};
    uint64_t want, first;
    int result = alloc_begin(p, bytes, s, &want);

    if (result != WEIR_PLACEMENT_OK)
        return result;
    if (!p->several)
        return WEIR_PLACEMENT_NO_FIT;
    for (size_t i = 0; i < p->regions; i++)
        run_search(p, &p->region[i], want, s, waits, &best);
    if (best.first == 0 || !run_wait(p, best.first, want, s, waits))
        return WEIR_PLACEMENT_NO_FIT;
    first = p->all.chunk[best.first].address;
    block_begin(p, claim_run(p, best.first, first, first + want), bytes, out);
    mark_end(p, first + want, 1);
    return WEIR_PLACEMENT_OK;
}

/* ---- freeing blocks ---- */

/* Returns the reason why no live block starts at `address`: FOREIGN, FREE or INTERIOR.  For INTERIOR, writes the block
 * around the address to *out, unless `out` is NULL.  Only errors and queries need this slow walk. */
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

int weir__placement_free(struct weir_placement *p, uint64_t address,
                         struct weir_placement_stream *s, uint64_t sequence,
                         struct weir_placement_block *out) {
    uint32_t id = chunk_find(p, address, LIVE);

    if (id == 0)
        return diagnose(p, address, NULL);
    if (out != NULL)
        block_describe(p, id, out);
    if (!chunk_free(p, id, s, sequence))
        return WEIR_PLACEMENT_NO_MEMORY;
    p->blocks--;
    return WEIR_PLACEMENT_OK;
}

void weir__placement_defer(struct weir_placement *p, uint64_t address) {
    p->all.kind[chunk_find(p, address, LIVE)] = DEFERRED;
}

void weir__placement_undefer(struct weir_placement *p, uint64_t address) {
    p->all.kind[chunk_find(p, address, DEFERRED)] = LIVE;
}

int weir__placement_find(const struct weir_placement *p, uint64_t address,
                         struct weir_placement_block *out) {
    uint32_t id = chunk_find(p, address, LIVE);

    if (id == 0)
        return diagnose(p, address, out);
    block_describe(p, id, out);
    return WEIR_PLACEMENT_OK;
}

/* ---- statistics, and walks over all chunks ---- */

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out) {
    out->regions = p->regions;
    out->total = p->total << p->shift;
    out->blocks = p->blocks;
    out->extent = p->extent << p->shift;
    out->host_bytes = p->host.bytes;
}

static struct weir_placement_span span_of(const struct weir_placement *p, uint32_t id) {
    const struct chunk *c = &p->all.chunk[id];
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
        span.sequence = p->all.tag[id].sequence;
    }
    return span;
}

int weir__placement_next(const struct weir_placement *p, struct weir_placement_span *span) {
    size_t region = span->region;
    uint32_t id = span->chunk;

    if (id != 0)
        id = p->all.chunk[id].next;
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

int weir__placement_age(struct weir_placement *p, const struct weir_placement_span *live) {
    uint64_t *sequence = &p->all.tag[live->chunk].sequence;
    int is_young = *sequence != OLD;

    *sequence = OLD;
    return is_young;
}
