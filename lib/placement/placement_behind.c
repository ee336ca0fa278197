/* SPDX-License-Identifier: MIT */
/* placement_behind.c: a block for a stream that waits for what other streams have freed.
 *
 * What: neighbouring free chunks make a run, whichever streams may use them, as long as the stream could wait for the others.
 */
#include "placement/placement_chunks.h"

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
    if (is_others(p, id, stream))
        return waits->may(waits->context, p->all.tag[id].stream, p->all.chunk[id].sequence);
    return p->all.kind[id] == CLEAN || p->all.kind[id] == TAGGED;
}

/* The smallest run in a region that holds `want` granules, if smaller than *best. */
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

/* Waits for the chunks from `id` on that hold `want` granules; 0: a wait failed. */
static int run_wait(const struct weir_placement *p, uint32_t id, uint64_t want, uint64_t stream,
                    const struct weir_placement_waits *waits) {
    for (uint64_t got = 0; got < want; got += p->all.chunk[id].size, id = p->all.chunk[id].next)
        if (is_others(p, id, stream) &&
            !waits->wait(waits->context, p->all.tag[id].stream, p->all.chunk[id].sequence))
            return 0;
    return 1;
}

/* The block of `want` granules at the beginning of a run. */
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
