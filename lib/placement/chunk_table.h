/* SPDX-License-Identifier: MIT */
/* chunk_table.h: records of chunks in a hash table, by the chunk's address.
 *
 * A chunk's address stays constant as long as the chunk exists.  So its record stands in the bucket that a hash of the
 * address selects, and a look-up costs one cache miss.  A bucket has eight records, and one word with the prints of all
 * eight: a print is one byte of a record's hash.  A look-up compares all prints of a bucket at once.  The short arrays
 * that are read often (prints, kinds) lie apart from the records.
 *
 * A record keeps its number until the table grows; number 0 means no record.  Growth makes a second table and leaves
 * the new number of each record in the first, so that the owner can update its links.
 *
 * This file must not know regions, sets, streams or what a kind means.
 */
#ifndef WEIR_CHUNK_TABLE_H
#define WEIR_CHUNK_TABLE_H

#include "base/hostmem.h"

#include <stdint.h>
#include <string.h>

struct weir_placement_stream;

#define WEIR__CHUNKS_FACTOR UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio */
#define WEIR__CHUNKS_ONES UINT64_C(0x0101010101010101)   /* one in each byte */

/* A record.  It has 32 bytes, and never lies across a cache line. */
struct weir__chunk {
    uint64_t address; /* in granules; after growth the old table has the new number here */
    uint64_t size;    /* in granules */
    uint32_t prev;    /* the records of the chunks before and after this one in the region */
    uint32_t next;
    union {
        uint64_t requested; /* the bytes that the caller requested, for a live block */
        /* the sequence of the latest free in a free chunk; 0 if every stream may use the chunk */
        uint64_t sequence;
    };
};

/* The part of a record that only a tagged chunk uses. */
struct weir__chunk_tag {
    struct weir_placement_stream *stream;
    uint32_t older; /* the next older chunk in the stream's list, or 0 */
    uint32_t newer;
};

struct weir__chunks {
    struct weir__chunk *chunk; /* indexed by a record's number, like tag and kind */
    struct weir__chunk_tag *tag;
    uint8_t *kind;  /* 0 if there is no record */
    uint8_t *print; /* 0x80 and seven bits of the hash, or 0 if there is no record */
    /* for each bucket, the number of records that passed it because it was full; a count of 255 stays */
    uint8_t *passed;
    unsigned shift; /* the shift that turns a hash into a bucket */
    size_t buckets; /* a power of two */
    size_t room;    /* records that can be added before the table must grow */
    void *memory;   /* holds all arrays */
    size_t bytes;
};

/* Makes a table with room for at least `records` records.  Returns 1 on success, 0 if there is no host memory. */
int weir__chunks_init(struct weir__chunks *t, struct weir__hostmem *host, size_t records);
void weir__chunks_drop(struct weir__chunks *t, struct weir__hostmem *host);
/* Moves all records to a larger table with room for at least `room` more.  Copies links and kinds unchanged, and tags
 * if `tags` is not 0.  Returns 1 on success; the caller then drops the old table, which is in *old and has new numbers
 * in place of addresses.  Returns 0 and changes nothing if there is no host memory. */
int weir__chunks_grow(struct weir__chunks *t, struct weir__hostmem *host, size_t room, int tags,
                      struct weir__chunks *old);

/* Returns the number of records that a table with that number of buckets may hold. */
static inline size_t weir__chunks_limit(size_t buckets) {
    return buckets * 8 / 16 * 13;
}

static inline size_t weir__chunks_used(const struct weir__chunks *t) {
    return weir__chunks_limit(t->buckets) - t->room;
}

/* Returns the print of a hash.  Its bits are lower than those that select the bucket in the largest table. */
static inline uint8_t weir__chunks_print(uint64_t hash) {
    return (uint8_t)(hash >> 24) | 0x80;
}

/* Returns the prints of a bucket as a word, the first print in its lowest byte. */
static inline uint64_t weir__chunks_prints(const struct weir__chunks *t, size_t bucket) {
    uint64_t word;

    memcpy(&word, &t->print[8 * bucket], sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Returns the record of that address and kind in a bucket, or 0.  The top bit of a byte of `same` is set if the
 * byte's print is equal.  Rarely the bit of the next byte is set, too; the comparison of the address then rejects
 * that record. */
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

/* Finds the record of that address and kind in the buckets after `bucket`, which was full.  Returns 0 without one. */
uint32_t weir__chunks_find_after(const struct weir__chunks *t, size_t bucket, uint64_t prints,
                                 uint64_t address, unsigned kind);

static inline uint32_t weir__chunks_find(const struct weir__chunks *t, uint64_t address,
                                         unsigned kind) {
    uint64_t hash = address * WEIR__CHUNKS_FACTOR;
    uint64_t prints = weir__chunks_print(hash) * WEIR__CHUNKS_ONES;
    size_t bucket = (size_t)(hash >> t->shift);
    uint32_t id = weir__chunks_find_in(t, bucket, prints, address, kind);

    return id != 0 || t->passed[bucket] == 0
               ? id
               : weir__chunks_find_after(t, bucket, prints, address, kind);
}

/* Returns the first bucket after `bucket` with an empty slot, and increments `passed` of the buckets before it. */
size_t weir__chunks_pass(struct weir__chunks *t, size_t bucket);
/* Undoes the counts of weir__chunks_pass() for a record in bucket `last`. */
void weir__chunks_unpass(struct weir__chunks *t, size_t bucket, size_t last);

/* Adds a record for `address` to a table with room and returns its number.  The caller sets the record and its kind. */
static inline uint32_t weir__chunks_add(struct weir__chunks *t, uint64_t address) {
    uint64_t hash = address * WEIR__CHUNKS_FACTOR;
    size_t bucket = (size_t)(hash >> t->shift);
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
    size_t bucket = (size_t)(t->chunk[id].address * WEIR__CHUNKS_FACTOR >> t->shift);

    if (bucket != id / 8)
        weir__chunks_unpass(t, bucket, id / 8);
    t->print[id] = 0;
    t->kind[id] = 0;
    t->room++;
}

#endif
