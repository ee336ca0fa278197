/* SPDX-License-Identifier: MIT */
/* chunk_table.c: the memory and the growth of a table of records.
 *
 * One block of memory holds all arrays, records first and aligned to a cache line.  The table is at most 13/16 full, so
 * that few records are outside their own bucket.  Record 0 is marked as used and has no kind.
 *
 * This file must not know regions, sets, streams or what a kind means.
 */
#include "placement/chunk_table.h"

#include <string.h>

#define CACHE_LINE ((size_t)64)
#define LEAST_BUCKETS ((size_t)8)
#define MOST_BUCKETS ((size_t)UINT32_MAX / 8)
#define RECORD_BYTES (sizeof(struct weir__chunk) + sizeof(struct weir__chunk_tag) + 2)
#define BUCKET_BYTES (8 * RECORD_BYTES + 1)

/* Makes an empty table with that number of buckets.  Returns 1 on success, 0 if there is no host memory. */
static int table_make(struct weir__chunks *t, struct weir__hostmem *host, size_t buckets) {
    size_t slots = buckets * 8;
    uintptr_t start;

    t->bytes = buckets * BUCKET_BYTES + CACHE_LINE - 1;
    t->memory = weir__hostmem_resize(host, NULL, 0, t->bytes);
    if (t->memory == NULL)
        return 0;
    start = ((uintptr_t)t->memory + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1);
    t->chunk = (struct weir__chunk *)start;
    t->tag = (struct weir__chunk_tag *)(t->chunk + slots);
    t->print = (uint8_t *)(t->tag + slots);
    t->kind = t->print + slots;
    t->passed = t->kind + slots;
    memset(t->print, 0, 2 * slots + buckets); /* also clears kind and passed */
    t->buckets = buckets;
    t->shift = 64 - (unsigned)__builtin_ctzll(buckets);
    t->room = weir__chunks_limit(buckets);
    t->print[0] = 0x80;
    t->chunk[0].address = 0;
    return 1;
}

static size_t buckets_for(size_t records) {
    size_t buckets = LEAST_BUCKETS;

    while (buckets <= MOST_BUCKETS && weir__chunks_limit(buckets) < records)
        buckets *= 2;
    return buckets;
}

int weir__chunks_init(struct weir__chunks *t, struct weir__hostmem *host, size_t records) {
    return table_make(t, host, buckets_for(records));
}

void weir__chunks_drop(struct weir__chunks *t, struct weir__hostmem *host) {
    weir__hostmem_resize(host, t->memory, t->bytes, 0);
}

int weir__chunks_grow(struct weir__chunks *t, struct weir__hostmem *host, size_t room, int tags,
                      struct weir__chunks *old) {
    struct weir__chunks grown;
    size_t used = weir__chunks_used(t);
    size_t buckets = buckets_for(used + room);

    if (buckets > MOST_BUCKETS || !table_make(&grown, host, buckets))
        return 0;
    for (size_t i = 1; i < t->buckets * 8; i++) {
        uint32_t id;

        if (t->kind[i] == 0)
            continue;
        id = weir__chunks_add(&grown, t->chunk[i].address);
        grown.chunk[id] = t->chunk[i];
        if (tags)
            grown.tag[id] = t->tag[i];
        grown.kind[id] = t->kind[i];
        t->chunk[i].address = id;
    }
    *old = *t;
    *t = grown;
    return 1;
}

size_t weir__chunks_pass(struct weir__chunks *t, size_t bucket) {
    do {
        if (t->passed[bucket] != UINT8_MAX)
            t->passed[bucket]++;
        bucket = (bucket + 1) & (t->buckets - 1);
    } while ((~weir__chunks_prints(t, bucket) & (WEIR__CHUNKS_ONES << 7)) == 0);
    return bucket;
}

void weir__chunks_unpass(struct weir__chunks *t, size_t bucket, size_t last) {
    for (; bucket != last; bucket = (bucket + 1) & (t->buckets - 1))
        if (t->passed[bucket] != UINT8_MAX)
            t->passed[bucket]--;
}

uint32_t weir__chunks_find_after(const struct weir__chunks *t, size_t bucket, uint64_t prints,
                                 uint64_t address, unsigned kind) {
    for (size_t i = 1; i < t->buckets && t->passed[bucket] != 0; i++) {
        uint32_t id;

        bucket = (bucket + 1) & (t->buckets - 1);
        id = weir__chunks_find_in(t, bucket, prints, address, kind);
        if (id != 0)
            return id;
    }
    return 0;
}
