/* SPDX-License-Identifier: MIT */
/* chunk_table.h: records of chunks in a table by their address.
 *
 * A chunk's address stays the same for as long as the chunk exists, so a record can be made where a
 * hash of the address says, and is then found there with one miss of the cache: eight records to a
 * bucket, and one word of eight one-byte prints of their hashes, which are compared at once.  What
 * is short and read often (prints, kinds) lies apart from the records.
 *
 * A record's number stays until the table grows; number 0 is no record.  Growing makes a second
 * table and leaves in the first where each record went, so that the owner can follow.
 *
 * Must not know: what a kind means; regions, sets, streams.
 */
#ifndef WEIR_CHUNK_TABLE_H
#define WEIR_CHUNK_TABLE_H

#include "base/hostmem.h"

#include <stdint.h>
#include <string.h>

#define WEIR__CHUNKS_FACTOR UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio */
#define WEIR__CHUNKS_ONES UINT64_C(0x0101010101010101)   /* one in each byte */

/* 32 bytes, and never across a cache line. */
struct weir__chunk {
    uint64_t address; /* in granules; after growth, in the old table: the new number */
    uint64_t size;    /* in granules */
    uint32_t prev;    /* neighbours by address */
    uint32_t next;
    union {
        uint64_t requested; /* live: bytes */
        uint64_t sequence;  /* free: of the latest free in it; 0: never used, or observed */
        uint64_t region;    /* border: index of its region */
    };
};

/* Beside each record, for a tagged chunk. */
struct weir__chunk_tag {
    uint64_t stream;
    uint32_t older; /* in the stream's list; 0: none */
    uint32_t newer;
};

struct weir__chunks {
    struct weir__chunk *chunk; /* by number, as are tag and kind */
    struct weir__chunk_tag *tag;
    uint8_t *kind;   /* 0: no record */
    uint8_t *print;  /* 0, or 0x80 and seven bits of the hash; a bucket's are a word */
    uint8_t *passed; /* by bucket: records that had to go further; 255: no longer counted */
    unsigned shift;  /* of a hash to its bucket */
    size_t buckets;  /* a power of two */
    size_t room;     /* records that can be added before the table must grow */
    void *memory;    /* all of the above */
    size_t bytes;
};

/* Makes a table with room for at least `records`.  1, or 0 if memory ran out. */
int weir__chunks_init(struct weir__chunks *t, struct weir__hostmem *host, size_t records);
void weir__chunks_drop(struct weir__chunks *t, struct weir__hostmem *host);
/* Moves all records to a larger table with room for at least `room` more; links and kinds are
 * copied as they are, tags if `tags` is not 0.  1, and the old table in *old, to be dropped, with the
 * new numbers in place of addresses; or 0 and nothing changed. */
int weir__chunks_grow(struct weir__chunks *t, struct weir__hostmem *host, size_t room, int tags,
                      struct weir__chunks *old);

/* How many records a table of so many buckets takes. */
static inline size_t weir__chunks_limit(size_t buckets) {
    return buckets * 8 / 16 * 13;
}

static inline size_t weir__chunks_used(const struct weir__chunks *t) {
    return weir__chunks_limit(t->buckets) - t->room;
}

static inline size_t weir__chunks_bucket(const struct weir__chunks *t, uint64_t hash) {
    return (size_t)(hash >> t->shift);
}

/* Of bits below those of the bucket, however large the table is. */
static inline uint8_t weir__chunks_print(uint64_t hash) {
    return (uint8_t)(hash >> 24) | 0x80;
}

/* The prints of a bucket, the first of them lowest. */
static inline uint64_t weir__chunks_prints(const struct weir__chunks *t, size_t bucket) {
    uint64_t word;

    memcpy(&word, &t->print[8 * bucket], sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* The record of that address and kind in a bucket, or 0.  A byte of `same` has its top bit set where
 * the print is equal, or, rarely, above such a byte, which the address then settles. */
static inline uint32_t weir__chunks_find_in(const struct weir__chunks *t, size_t bucket,
                                            uint64_t prints, uint64_t address, unsigned kind) {
    uint64_t differ = weir__chunks_prints(t, bucket) ^ prints;
    uint64_t same = (differ - WEIR__CHUNKS_ONES) & ~differ & (WEIR__CHUNKS_ONES << 7);

    for (; same != 0; same &= same - 1) {
        size_t id = bucket * 8 + (unsigned)__builtin_ctzll(same) / 8;

        if (t->chunk[id].address == address && t->kind[id] == kind)
            return (uint32_t)id;
    }
    return 0;
}

/* The same in the buckets after `bucket`, which records had to pass. */
uint32_t weir__chunks_find_after(const struct weir__chunks *t, size_t bucket, uint64_t prints,
                                 uint64_t address, unsigned kind);

static inline uint32_t weir__chunks_find(const struct weir__chunks *t, uint64_t address,
                                         unsigned kind) {
    uint64_t hash = address * WEIR__CHUNKS_FACTOR;
    uint64_t prints = weir__chunks_print(hash) * WEIR__CHUNKS_ONES;
    size_t bucket = weir__chunks_bucket(t, hash);
    uint32_t id = weir__chunks_find_in(t, bucket, prints, address, kind);

    return id != 0 || t->passed[bucket] == 0
               ? id
               : weir__chunks_find_after(t, bucket, prints, address, kind);
}

/* A bucket with an empty place, of those after `bucket`, which is full.  Notes that it was passed. */
size_t weir__chunks_pass(struct weir__chunks *t, size_t bucket);
/* Undoes that for a record that ended up in `last`. */
void weir__chunks_unpass(struct weir__chunks *t, size_t bucket, size_t last);

/* A record for `address`; there is room.  The caller fills it, its kind too. */
static inline uint32_t weir__chunks_add(struct weir__chunks *t, uint64_t address) {
    uint64_t hash = address * WEIR__CHUNKS_FACTOR;
    size_t bucket = weir__chunks_bucket(t, hash);
    uint64_t empty = ~weir__chunks_prints(t, bucket) & (WEIR__CHUNKS_ONES << 7);
    uint32_t id;

    if (empty == 0) {
        bucket = weir__chunks_pass(t, bucket);
        empty = ~weir__chunks_prints(t, bucket) & (WEIR__CHUNKS_ONES << 7);
    }
    id = (uint32_t)(bucket * 8) + (unsigned)__builtin_ctzll(empty) / 8;
    t->print[id] = weir__chunks_print(hash);
    t->room--;
    return id;
}

static inline void weir__chunks_remove(struct weir__chunks *t, uint32_t id) {
    size_t bucket = weir__chunks_bucket(t, t->chunk[id].address * WEIR__CHUNKS_FACTOR);

    if (bucket != id / 8)
        weir__chunks_unpass(t, bucket, id / 8);
    t->print[id] = 0;
    t->kind[id] = 0;
    t->room++;
}

#endif
