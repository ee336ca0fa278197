/* SPDX-License-Identifier: MIT */
/* placement_regions.c: a placement, the ranges of addresses that it places blocks in, and which of these have memory.
 *
 * Invariants: no two unmapped ranges are neighbours.
 */
#include "placement/placement_state.h"

#include <string.h>

#include "base/bounds.h"

#define FIRST_RECORDS ((size_t)32)

static int is_power_of_two(uint64_t n) {
    return n != 0 && (n & (n - 1)) == 0;
}

int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out) {
    struct weir__hostmem host = {.resize = rule->resize, .context = rule->context};
    struct weir_placement *p;

    if (!is_power_of_two(rule->granularity) || rule->split_waste == 0)
        return WEIR_PLACEMENT_INVALID;
    p = weir__hostmem_resize(&host, NULL, 0, sizeof *p);
    if (p == NULL)
        return WEIR_PLACEMENT_NO_MEMORY;
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

    if (p == NULL)
        return;
    for (size_t i = 0; i < p->stream_slots; i++)
        if (p->streams[i] != NULL)
            weir__placement_stream_drop(p, p->streams[i]);
    weir__bestfit_drop(&p->clean);
    weir__bestfit_pool_drop(&p->pool);
    host = p->host;
    weir__hostmem_resize(&host, p->streams, p->stream_slots * sizeof *p->streams, 0);
    weir__chunks_drop(&p->all, &host);
    weir__hostmem_resize(&host, p->region, 0, 0);
    weir__hostmem_resize(&host, p->by_base, 0, 0);
    weir__hostmem_resize(&host, p, 0, 0);
}

size_t weir__placement_region_position(const struct weir_placement *p, uint64_t address) {
    size_t first = p->regions, at;

    WEIR_FIND_FIRST(first, at, p->region[p->by_base[at]].end > address);
    return first;
}

/* Lengthens an array to `want` elements if it is shorter.  Returns the array, or NULL if there is no host memory; then
 * nothing has changed. */
static void *array_grow(struct weir__hostmem *host, void *array, size_t *length, size_t want,
                        size_t element) {
    void *grown;
    size_t bytes;

    if (*length >= want)
        return array;
    if (!weir__size_mul(want, element, &bytes))
        return NULL;
    grown = weir__hostmem_resize(host, array, *length * element, bytes);
    if (grown != NULL)
        *length = want;
    return grown;
}

/* Finds a slot for one more region.  Returns 1 and the slot in *slot, or 0 if there is no host memory. */
static int region_reserve(struct weir_placement *p, size_t *slot) {
    size_t length = p->region_length;
    size_t want = p->regions < length ? length : 2 * length + 1;
    void *array;

    array = array_grow(&p->host, p->by_base, &p->by_base_length, want, sizeof *p->by_base);
    if (array == NULL)
        return 0;
    p->by_base = array;
    array = array_grow(&p->host, p->region, &p->region_length, want, sizeof *p->region);
    if (array == NULL)
        return 0;
    p->region = array;
    memset(p->region + length, 0, (want - length) * sizeof *p->region);
    for (*slot = 0; p->region[*slot].border != 0; ++*slot) {
    }
    return 1;
}

/* Links the border record and the one chunk `id` of the new region. */
static void region_link(struct weir_placement *p, size_t slot, uint32_t border, uint32_t id) {
    struct weir_placement_region *r = &p->region[slot];
    size_t position = weir__placement_region_position(p, r->base);

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
    size_t position = weir__placement_region_position(p, first);
    size_t slot;
    uint32_t border;
    uint32_t id;

    if (bytes == 0 || ((base | bytes) & p->mask) != 0 || bytes > UINT64_MAX - base ||
        end >> WEIR__BESTFIT_BITS != 0)
        return WEIR_PLACEMENT_INVALID;
    if (position < p->regions && p->region[p->by_base[position]].base < end)
        return WEIR_PLACEMENT_INVALID;
    unpark(p);
    if (!weir__placement_records_reserve(p, p->regions + 3) || !region_reserve(p, &slot))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = weir__chunks_add(&p->all, first);
    p->all.chunk[id] = (struct weir__chunk){.address = first, .size = end - first};
    if (!weir__bestfit_insert(&p->clean, key_of(&p->all.chunk[id]), id)) {
        weir__chunks_remove(&p->all, id);
        return WEIR_PLACEMENT_NO_MEMORY;
    }
    border = weir__chunks_add(&p->all, end);
    p->region[slot] =
        (struct weir_placement_region){.base = first, .end = end, .high = first, .used = first};
    region_link(p, slot, border, id);
    return WEIR_PLACEMENT_OK;
}

int weir__placement_add_freed(struct weir_placement *p, uint64_t base, size_t bytes,
                              uint64_t stream, uint64_t sequence) {
    int status = weir__placement_add(p, base, bytes);
    struct weir_placement_block block;
    uint32_t id;

    if (status != WEIR_PLACEMENT_OK)
        return status;
    id = weir__chunks_find(&p->all, base >> p->shift, CLEAN);
    chunk_leave(p, NULL, id);
    weir__placement_make_live(p, id, bytes, &block);
    return weir__placement_give(p, base, stream, sequence, NULL);
}

/* Returns 1 if the region is one chunk that is free for all streams, else 0. */
static int region_is_idle(const struct weir_placement *p, const struct weir_placement_region *r) {
    uint32_t id = p->all.chunk[r->border].next;

    return p->all.chunk[id].next == r->border && chunk_is(p, id, CLEAN) &&
           p->all.chunk[id].sequence <= p->step.observed;
}

/* Returns 1 if the region is free and `stream` may use all of it, else 0. */
static int region_serves(const struct weir_placement *p, const struct weir_placement_region *r,
                         uint64_t stream) {
    uint32_t id = p->all.chunk[r->border].next;

    for (; id != r->border; id = p->all.chunk[id].next)
        if (!chunk_is(p, id, CLEAN) &&
            !(chunk_is(p, id, TAGGED) && p->all.tag[id].stream == stream && stream != 0))
            return 0;
    return 1;
}

/* Removes a free chunk from its set and its list, and removes its record. */
static void chunk_drop(struct weir_placement *p, uint32_t id) {
    struct weir_placement_stream *s = NULL;

    if (chunk_is(p, id, TAGGED)) {
        s = stream_find(p, p->all.tag[id].stream);
        p->tagged -= p->all.chunk[id].size;
    }
    chunk_leave(p, s, id);
    weir__chunks_remove(&p->all, id);
}

/* Removes a region, all of which is free. */
static void region_unlink(struct weir_placement *p, size_t position) {
    struct weir_placement_region *r = &p->region[p->by_base[position]];
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

/* Returns the index in by_base of the region that starts at `base`, or p->regions if there is none. */
static size_t region_at(const struct weir_placement *p, uint64_t base) {
    size_t position = weir__placement_region_position(p, base >> p->shift);

    if (position == p->regions || (base & p->mask) != 0 ||
        p->region[p->by_base[position]].base != base >> p->shift)
        return p->regions;
    return position;
}

int weir__placement_remove(struct weir_placement *p, uint64_t base) {
    size_t position = region_at(p, base);

    unpark(p);
    if (position == p->regions)
        return WEIR_PLACEMENT_FOREIGN;
    if (!region_is_idle(p, &p->region[p->by_base[position]]))
        return WEIR_PLACEMENT_BUSY;
    region_unlink(p, position);
    return WEIR_PLACEMENT_OK;
}

int weir__placement_withdraw(struct weir_placement *p, uint64_t base, uint64_t stream) {
    size_t position = region_at(p, base);

    unpark(p);
    if (position == p->regions)
        return WEIR_PLACEMENT_FOREIGN;
    stream_seen(p, stream);
    if (!region_serves(p, &p->region[p->by_base[position]], stream))
        return WEIR_PLACEMENT_BUSY;
    region_unlink(p, position);
    return WEIR_PLACEMENT_OK;
}

/* ---- unmapped ranges ---- */

/* Makes the chunk `id` an unmapped range, and joins it with those beside it. */
static void unmapped_begin(struct weir_placement *p, uint32_t id) {
    struct weir__chunk *c = &p->all.chunk[id];

    p->all.kind[id] = UNMAPPED;
    c->sequence = 0;
    p->hollow += c->size;
    p->unmapped_ranges++;
    if (p->all.kind[c->next] == UNMAPPED) {
        p->unmapped_ranges--;
        chunk_join(p, id, c->next);
    }
    if (p->all.kind[c->prev] == UNMAPPED) {
        p->unmapped_ranges--;
        chunk_join(p, c->prev, id);
    }
}

int weir__placement_add_unmapped(struct weir_placement *p, uint64_t base, size_t bytes) {
    int status = weir__placement_add(p, base, bytes);
    uint32_t id;

    if (status == WEIR_PLACEMENT_OK) {
        id = weir__chunks_find(&p->all, base >> p->shift, CLEAN);
        chunk_leave(p, NULL, id);
        unmapped_begin(p, id);
    }
    return status;
}

int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         uint64_t stream, uint64_t sequence) {
    uint64_t first = address >> p->shift;
    uint64_t end = first + (bytes >> p->shift);
    struct weir_placement_block block;
    struct weir_placement_region *r;
    struct weir__chunk *c;
    uint32_t id;

    unpark(p);
    id = weir__placement_around(p, within, UNMAPPED, address, bytes);
    if (id == 0)
        return WEIR_PLACEMENT_INVALID;
    r = &p->region[p->by_base[weir__placement_region_position(p, first)]];
    c = &p->all.chunk[id];
    if (!weir__placement_records_reserve(p, p->regions + (c->address < first) +
                                                (c->address + c->size > end)))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = weir__chunks_find(&p->all, within >> p->shift, UNMAPPED);
    c = &p->all.chunk[id];
    p->hollow -= bytes >> p->shift;
    if (c->address + c->size > end) {
        weir__placement_cut(p, id, end, UNMAPPED);
        p->unmapped_ranges++;
    }
    if (c->address < first) {
        id = weir__placement_cut(p, id, first, UNMAPPED);
        p->unmapped_ranges++;
    }
    p->unmapped_ranges--;
    if (end > r->high) {
        p->extent += end - r->high;
        r->high = end;
    }
    if (sequence == 0) {
        weir__placement_settle_clean(p, id);
        return WEIR_PLACEMENT_OK;
    }
    /* tags the memory as if it had been allocated and freed now */
    weir__placement_make_live(p, id, bytes, &block);
    return weir__placement_give(p, address, stream, sequence, NULL);
}

/* Returns the free chunk that starts at `address`, in granules, or 0. */
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
    if (!weir__placement_records_reserve(p, p->regions + 2))
        return WEIR_PLACEMENT_NO_MEMORY;
    id = free_at(p, within >> p->shift);
    if (id == 0 || bytes == 0 || ((within | address | bytes) & p->mask) != 0 || address < within ||
        p->all.chunk[id].address + p->all.chunk[id].size <= first)
        return WEIR_PLACEMENT_INVALID;
    for (last = id; p->all.chunk[last].address + p->all.chunk[last].size < end;) {
        last = p->all.chunk[last].next;
        if (p->all.kind[last] != CLEAN && p->all.kind[last] != TAGGED)
            return WEIR_PLACEMENT_INVALID;
    }
    unmapped_begin(p, weir__placement_claim_run(p, id, first, end));
    return WEIR_PLACEMENT_OK;
}

int weir__placement_punch(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes) {
    uint32_t id;

    unpark(p);
    id = weir__placement_around(p, within, CLEAN, address, bytes);
    if (id == 0)
        return WEIR_PLACEMENT_INVALID;
    if (p->all.chunk[id].sequence > p->step.observed)
        return WEIR_PLACEMENT_BUSY;
    return weir__placement_hollow(p, within, address, bytes);
}

/* Returns the unmapped range that ends the last region, or 0. */
static uint32_t last_unmapped(const struct weir_placement *p) {
    uint32_t id =
        p->regions == 0 ? 0 : p->all.chunk[p->region[p->by_base[p->regions - 1]].border].prev;

    return id != 0 && p->all.kind[id] == UNMAPPED ? id : 0;
}

int weir__placement_last_unmapped(const struct weir_placement *p, uint64_t *address,
                                  size_t *bytes) {
    uint32_t id = last_unmapped(p);

    if (id == 0)
        return 0;
    *address = p->all.chunk[id].address << p->shift;
    *bytes = p->all.chunk[id].size << p->shift;
    return 1;
}

size_t weir__placement_tail(struct weir_placement *p) {
    uint32_t id;

    unpark(p);
    id = last_unmapped(p);
    id = id == 0 ? 0 : p->all.chunk[id].prev;
    return id != 0 && chunk_is(p, id, CLEAN) ? p->all.chunk[id].size << p->shift : 0;
}

size_t weir__placement_unmapped_ranges(const struct weir_placement *p) {
    return p->unmapped_ranges;
}
