/* SPDX-License-Identifier: MIT */
/* placement_state.h: the records of a placement, for placement.c and for tests/fixtures/placement_check.c, which
 * checks the invariants.
 *
 * Addresses and sizes are counted in granules.  The chunks of a region and one border record form a ring in the order
 * of addresses, so that every chunk has two neighbours.
 *
 * One stream.  Until a second stream calls, all free chunks are in the set `clean`, and have a sequence but no owner.
 *
 * Table.  The records of chunks are in a hash table by address.  A bucket has eight records, and one word with a byte
 * of each record's hash (the print).  A look-up compares all eight prints of a bucket at once, and costs one cache
 * miss.  A record's number identifies the chunk until the table grows.  The number 0 means that there is no record.
 *
 * Set.  A set finds the best fit.  A chunk's size class is the octave (log2 of the size) and the next five bits.  A
 * class stores its smallest chunk directly, since most classes have one chunk.  The others are in a treap: a search
 * tree by size and address, where no chunk has a higher rank (a hash of its address) than its parent.  A set needs no
 * memory for its chunks, and every operation takes O(log n), even if all chunks have one size.
 */
#ifndef WEIR_PLACEMENT_STATE_H
#define WEIR_PLACEMENT_STATE_H

#include "placement/placement.h"

#include <string.h>

#include "base/hostmem.h"

/* The hash of an address is the address times this factor, which is 2^64 / golden ratio. */
#define CHUNK_FACTOR UINT64_C(0x9E3779B97F4A7C15)
#define EACH_PRINT UINT64_C(0x0101010101010101)
/* All sizes and addresses are below 2^SIZE_BITS times the rule's granularity. */
#define SIZE_BITS 58u
/* The number of size classes for each power of two.  A 32-bit word has one bit for each class. */
#define CLASSES 32u
/* The value of `sequence` for a live block that weir__placement_age() has marked as old. */
#define OLD UINT64_MAX

enum kind { UNUSED = 0, BORDER, LIVE, CLEAN, TAGGED, UNMAPPED, DEFERRED };

/* A chunk's record has 32 bytes, so that it never crosses the end of a cache line. */
struct chunk {
    uint64_t address; /* in granules; in a table that is being replaced, the record's new number */
    uint64_t size; /* in granules; 0 for a region's border record */
    uint32_t prev; /* the adjacent chunks */
    uint32_t next;
    union {
        uint64_t requested; /* the bytes that the caller requested for a live block */
        /* A free chunk's children in a treap of one size class.  The smallest chunk has the root in child[1]. */
        uint32_t child[2];
    };
};

/* When a chunk was freed, and by which stream.  The fields `owner`, `older` and `newer` are valid only for TAGGED
 * chunks.  A live block's `sequence` may be OLD. */
struct chunk_tag {
    uint64_t sequence; /* the number of the latest free; 0 if every stream may use the chunk */
    struct weir_placement_owner *owner; /* all free chunks that only this chunk's stream may use */
    uint32_t older; /* the chunk that the same stream freed before this one, or 0 */
    uint32_t newer;
};

struct chunk_table {
    struct chunk *chunk; /* a record's number is its index in these four arrays */
    struct chunk_tag *tag;
    uint8_t *kind;
    uint8_t *print; /* 0x80 plus seven bits of the hash, or 0 if the record is unused */
    /* The number of records in later buckets because this bucket was full.  At 255, the number no longer changes. */
    uint8_t *passed;
    unsigned shift; /* the bucket of a hash is hash >> shift */
    size_t buckets; /* a power of two */
    size_t room;    /* the records to add before the table must grow */
    void *memory;   /* the host memory of all arrays */
    size_t bytes;
};

struct chunk_set {
    uint64_t octaves; /* a bit for each octave (sizes from 2^n to below 2^(n+1)) with a chunk */
    uint32_t used[SIZE_BITS]; /* for each octave, a bit for each size class with a chunk */
    uint32_t first[SIZE_BITS * CLASSES]; /* the smallest chunk of each class, or 0 */
};

struct weir_placement_region {
    uint64_t base;
    uint64_t end;
    uint64_t high; /* the highest end of any block or newly mapped memory so far; at first `base` */
    uint64_t used; /* the highest end of any block, while only one stream uses the placement */
    uint32_t border;
};

/* The free chunks that one stream may use, or, in `clean`, that all streams may use. */
struct weir_placement_owner {
    struct weir_placement_stream *stream;
    uint64_t merge_floor; /* Chunks freed up to this sequence do not coalesce with later ones. */
    uint32_t oldest;      /* the ends of the stream's list of chunks, sorted by sequence, or 0 */
    uint32_t newest;
    struct chunk_set set;
};

struct weir_placement {
    unsigned shift; /* log2 of the granularity */
    unsigned index; /* the index of this placement in the array `owner` of a stream */
    int several;    /* set after a second or an unknown stream has called */
    int prefer_tagged;
    uint64_t mask;  /* the granularity minus 1 */
    uint64_t waste; /* split_waste of the rule, in granules */
    struct weir_placement_stream *only; /* the first stream, until a second calls; else NULL */
    /* `only` points here after weir__placement_remove_stream() for its stream, whose record the caller may free. */
    struct weir_placement_stream ended;
    struct chunk_table all;
    size_t blocks;
    size_t owners; /* the number of streams with a struct weir_placement_owner */
    struct weir_placement_region *region; /* sorted by base */
    size_t regions, region_length;
    size_t total;  /* the granules of all regions, without unmapped ranges */
    size_t extent; /* the granules of all regions up to their `high` */
    struct weir__hostmem host;
    struct weir_placement_owner clean;
    struct weir_placement_owner first;    /* the first stream's free chunks */
    struct weir_placement_owner fallback; /* the free chunks of the stream with is_fallback */
};

/* The table is at most 13/16 full, so that most records are in their first bucket. */
static inline size_t chunk_limit(size_t buckets) {
    return buckets * 8 / 16 * 13;
}

static inline unsigned chunk_class(uint64_t size) {
    unsigned octave = 63u ^ (unsigned)__builtin_clzll(size);

    return octave * CLASSES + (unsigned)(size * CLASSES >> octave & (CLASSES - 1));
}

/* Returns a chunk's rank: a hash of the address, since addresses are often multiples of one size. */
static inline uint64_t chunk_rank(const struct chunk *c) {
    uint64_t hash = c->address * CHUNK_FACTOR;

    return (hash ^ hash >> 32) * CHUNK_FACTOR;
}

/* Returns 1 if `c` fits better than `other`, for a request that fits in both. */
static inline int chunk_is_before(const struct chunk *c, const struct chunk *other) {
    return c->size != other->size ? c->size < other->size : c->address < other->address;
}

/* Returns as one word the eight bytes of `print` for the records of a bucket. */
static inline uint64_t bucket_prints(const struct chunk_table *t, size_t bucket) {
    uint64_t word;

    memcpy(&word, &t->print[8 * bucket], sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Returns the record of the chunk of this kind that starts at `address` (in bytes), or 0. */
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

/* Returns 1 if the free chunk `id` of `owner` may coalesce with the adjacent chunk `other`, else 0. */
static inline int chunk_joins(const struct weir_placement *p, uint32_t other, uint32_t id,
                              const struct weir_placement_owner *owner) {
    if (owner == &p->clean)
        return p->all.kind[other] == CLEAN;
    return p->all.kind[other] == TAGGED && p->all.tag[other].owner == owner &&
           p->all.tag[other].sequence > owner->merge_floor &&
           p->all.tag[id].sequence > owner->merge_floor;
}

#endif
