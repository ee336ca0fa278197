/* SPDX-License-Identifier: MIT */
/* placement_state.h: the records of a placement, for placement.c and for the tests that check its invariants.
 *
 * Addresses and sizes are counted in granules.  The chunks of a region and one border record form a ring in the order
 * of addresses, so that every chunk has two neighbours.  A free chunk is in the set of clean chunks or in the set of
 * its stream.  A tagged chunk is also in its stream's list, in the order of sequences.
 *
 * One stream.  While the placement has seen only one stream, all free chunks are in the clean set.  The record of a
 * chunk then has only the latest sequence of the chunk's frees.  The chunk gets a tag when a second stream appears.
 *
 * Table.  The records of chunks are in a hash table by address, since a chunk's address stays constant.  A bucket has
 * eight records, and one word with a byte of each record's hash (the print).  A look-up compares all eight prints of a
 * bucket at once, and costs one cache miss.  The number of a record identifies the chunk until the table grows.  The
 * number 0 means that there is no record.
 *
 * Set.  A set finds the smallest free chunk that is large enough, and among equal sizes the chunk with the lowest
 * address.  A chunk's class is computed from its size: the octave (log2 of the size) and the next five bits.  One word
 * has a bit for each octave in use.  For each octave, another word has a bit for each class in use.  A class stores
 * its smallest chunk directly and its other chunks in a treap.  The treap is a search tree by size and address.  Each
 * chunk has a rank, which is a hash of its address, and no chunk below another chunk in the tree has a higher rank.
 * In most programs, most classes have one chunk.  A set needs no memory for its chunks, and every operation takes
 * O(log n), even if all chunks have one size.
 *
 * tests/fixtures/placement_check.c checks the invariants.
 */
#ifndef WEIR_PLACEMENT_STATE_H
#define WEIR_PLACEMENT_STATE_H

#include "placement/placement.h"

#include <string.h>

#include "base/hostmem.h"

/* The factor of the hash of an address: 2^64 / golden ratio. */
#define CHUNK_FACTOR UINT64_C(0x9E3779B97F4A7C15)
#define EACH_PRINT UINT64_C(0x0101010101010101) /* a word with the value 1 in each byte */
/* All sizes and addresses are below 2^SIZE_BITS granules. */
#define SIZE_BITS 58u
/* The number of size classes between two powers of two.  Each class has a bit in a 32-bit word. */
#define CLASSES 32u
/* The sequence in the tag of a live block that weir__placement_age has marked as old. */
#define OLD UINT64_MAX

enum kind {
    UNUSED = 0,
    BORDER,
    LIVE,
    CLEAN,
    TAGGED,
    UNMAPPED /* addresses without memory */,
    DEFERRED
};

/* The record of a chunk.  A record has 32 bytes and never crosses the end of a cache line. */
struct chunk {
    /* The chunk's address, in granules.  While the table grows, the old record instead has the number of the chunk's
     * new record. */
    uint64_t address;
    uint64_t size; /* the chunk's size in granules, or 0 for the border record of a region */
    uint32_t prev; /* the records of the chunks before and after this chunk in its region */
    uint32_t next;
    union {
        uint64_t requested; /* for a live block, the bytes that the caller requested */
        /* For a free chunk, its left and right subtree in the treap of its size class.  The first chunk of a class is
         * not in the treap: its second child is the root of the treap. */
        uint32_t child[2];
    };
};

/* The part of a record that only free chunks use.  `sequence` is used for every free chunk, the other fields for
 * tagged chunks only.  The only sequence that a live block may have is OLD. */
struct chunk_tag {
    /* The sequence number of the latest free in the chunk, or 0 if every stream may use the chunk. */
    uint64_t sequence;
    struct weir_placement_owner *owner; /* the free chunks of the stream that freed this chunk */
    uint32_t older;                 /* the chunk of this stream that was freed before, or 0 */
    uint32_t newer;
};

struct chunk_table {
    /* The arrays `chunk`, `tag`, `kind` and `print` have one element for each record of a chunk.  The index is the
     * record's number. */
    struct chunk *chunk;
    struct chunk_tag *tag;
    uint8_t *kind;
    uint8_t *print; /* part of the hash: 0x80 plus seven bits, or 0 if the record is unused */
    /* For each bucket, the number of records of this or an earlier bucket that lie in a later bucket, since this
     * bucket was full.  A look-up continues in the next bucket while the number is above 0.  A number of 255 never
     * changes again. */
    uint8_t *passed;
    unsigned shift; /* the number of bits by which a hash is shifted to get the index of a bucket */
    size_t buckets; /* the number of buckets, a power of two */
    size_t room;    /* the number of records that can be added before the table must grow */
    void *memory;   /* the host memory that holds all arrays */
    size_t bytes;
};

struct chunk_set {
    /* a bit for each octave (sizes from 2^n to below 2^(n+1)) with at least one chunk */
    uint64_t octaves;
    /* for each octave, a bit for each size class with at least one chunk */
    uint32_t used[SIZE_BITS];
    uint32_t first[SIZE_BITS * CLASSES]; /* for each size class, its smallest chunk, or 0 */
};

struct weir_placement_region {
    uint64_t base;
    uint64_t end;
    /* The highest end of any block or newly mapped memory in the region so far.  At first the region's start. */
    uint64_t high;
    /* The highest end of any block in the region, recorded while only one stream uses the placement. */
    uint64_t used;
    uint32_t border;
};

/* The free chunks of one stream in one placement, which other streams may not use yet.  The chunks that all streams
 * may use are in a struct of this type, too, without a stream and without a list. */
struct weir_placement_owner {
    struct weir_placement_stream *stream;
    /* Chunks that were freed up to this sequence number do not coalesce with the stream's other chunks. */
    uint64_t merge_floor;
    /* The first and the last chunk in the stream's list, which is sorted by sequence number.  0 if the list is empty.
     * */
    uint32_t oldest;
    uint32_t newest;
    struct chunk_set set;
};

struct weir_placement {
    unsigned shift; /* log2 of the granularity */
    /* the index of the placement among all placements with shared records of streams */
    unsigned index;
    /* set once a second stream, or a stream with unknown id (0), has used the placement */
    int several;
    int prefer_tagged;
    uint64_t mask;  /* the granularity minus 1 */
    /* the number of wasted granules above which a chunk is split (split_waste of the rule) */
    uint64_t waste;
    /* The only stream that has used the placement so far.  NULL if no stream has used it, or several have. */
    struct weir_placement_stream *only;
    /* A substitute for the record of the only stream, after the caller has freed that record. */
    struct weir_placement_stream ended;
    struct chunk_table all;
    size_t blocks;
    /* The number of streams with a struct weir_placement_owner, which has the stream's free chunks. */
    size_t owners;
    struct weir_placement_region *region; /* the regions, sorted by base */
    size_t regions, region_length;
    size_t total;  /* the sum of all regions in granules, without unmapped ranges */
    size_t extent; /* the granules of the used parts of all regions, up to `high` of each region */
    struct weir__hostmem host;
    struct weir_placement_owner clean;
    struct weir_placement_owner first; /* the free chunks of the first stream */
    /* the free chunks of the stream for which is_fallback is set */
    struct weir_placement_owner fallback;
};

/* Returns the largest number of records that a hash table with `buckets` buckets may have. */
static inline size_t chunk_limit(size_t buckets) {
    return buckets * 8 / 16 * 13;
}

/* Returns the size class of a chunk of `size` granules. */
static inline unsigned chunk_class(uint64_t size) {
    unsigned octave = 63u ^ (unsigned)__builtin_clzll(size);

    return octave * CLASSES + (unsigned)(size * CLASSES >> octave & (CLASSES - 1));
}

/* Returns the rank of a chunk in its treap, a hash of its address.  Ranks are spread evenly, even if the addresses are
 * multiples of one size. */
static inline uint64_t chunk_rank(const struct chunk *c) {
    uint64_t hash = c->address * CHUNK_FACTOR;

    return (hash ^ hash >> 32) * CHUNK_FACTOR;
}

/* Returns 1 if `c` fits better than `other`, for a request that fits in both chunks; else 0. */
static inline int chunk_is_before(const struct chunk *c, const struct chunk *other) {
    return c->size != other->size ? c->size < other->size : c->address < other->address;
}

/* Returns the prints (hash bytes) of a bucket's records as one word, with the first print in the lowest byte. */
static inline uint64_t bucket_prints(const struct chunk_table *t, size_t bucket) {
    uint64_t word;

    memcpy(&word, &t->print[8 * bucket], sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Returns the record of the chunk of this kind that starts at `address` (in bytes), or 0 if there is none.  In `same`,
 * the top bit of a byte is set if the byte's print, a part of the hash, is equal.  Rarely the bit of the next byte is
 * set, too; the comparison of the address then rejects the next record. */
static inline uint32_t chunk_find(const struct weir_placement *p, uint64_t address, unsigned kind) {
    const struct chunk_table *t = &p->all;
    uint64_t granule = address >> p->shift, hash = granule * CHUNK_FACTOR;
    uint64_t prints = ((hash >> 24 & 0x7f) | 0x80) * EACH_PRINT;
    size_t bucket = (size_t)(hash >> t->shift);

    for (size_t i = 0; (address & p->mask) == 0 && i < t->buckets; i++) {
        uint64_t differ = bucket_prints(t, bucket) ^ prints;
        uint64_t same = (differ - EACH_PRINT) & ~differ & (EACH_PRINT << 7);

        for (; same != 0; same &= same - 1) {
            size_t id = bucket * 8 + (unsigned)__builtin_ctzll(same) / 8;

            if (t->chunk[id].address == granule && t->kind[id] == kind)
                return (uint32_t)id;
        }
        if (t->passed[bucket] == 0)
            return 0;
        bucket = (bucket + 1) & (t->buckets - 1);
    }
    return 0;
}

/* Returns 1 if the free chunk `id` may coalesce with the adjacent chunk `other`, else 0.  `own` has the chunk `id`: it
 * has the free chunks of a stream, or the chunks that all streams may use.  Two chunks of a stream coalesce only if
 * both were freed after the sequence number owner->merge_floor. */
static inline int chunk_joins(const struct weir_placement *p, uint32_t other, uint32_t id,
                              const struct weir_placement_owner *owner) {
    if (owner == &p->clean)
        return p->all.kind[other] == CLEAN;
    return p->all.kind[other] == TAGGED && p->all.tag[other].owner == owner &&
           p->all.tag[other].sequence > owner->merge_floor &&
           p->all.tag[id].sequence > owner->merge_floor;
}

#endif
