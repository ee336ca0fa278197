/* SPDX-License-Identifier: MIT */
/* placement_state.h: the records of a placement, for placement.c and the tests that check its invariants.
 *
 * Addresses and sizes are counted in granules.  The chunks of a region and one border record form a ring in the order
 * of addresses, so that every chunk has two neighbours.  A free chunk is in the set of clean chunks or in the set of
 * its stream.  A tagged chunk is also in its stream's list, in the order of sequences.
 *
 * While only one stream was seen, all free chunks are in the clean set.  A chunk then has only the latest sequence of
 * its frees, and gets a tag when a second stream appears.
 *
 * Table.  The records of chunks are in a hash table by address, since a chunk's address stays constant.  A bucket has
 * eight records, and one word with the prints of all eight: a print is one byte of a record's hash.  A look-up compares
 * all prints of a bucket at once, and costs one cache miss.  The number of a record names the chunk until the table
 * grows; number 0 means no record.
 *
 * Set.  A set finds the smallest free chunk that is large enough, and the lowest address among equal sizes.  The size
 * gives the chunk's class: the octave (log2 of the size) and the next five bits.  One word has a bit for each octave in
 * use, and each octave has a word with a bit for each class in use.  A class has its smallest chunk, and a treap of its
 * other chunks: a search tree by size and address, in which each chunk's rank, a hash of its address, is at least as
 * high as the ranks below.  Most classes of a real program have one chunk.  A set needs no memory for its chunks, and
 * every operation takes O(log n), even if all chunks have one size.
 *
 * tests/fixtures/placement_check.c checks the invariants.
 */
#ifndef WEIR_PLACEMENT_STATE_H
#define WEIR_PLACEMENT_STATE_H

#include "placement/placement.h"

#include <string.h>

#include "base/hostmem.h"

#define CHUNK_FACTOR UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio */
#define EACH_PRINT UINT64_C(0x0101010101010101)   /* one in each byte */
#define SIZE_BITS 58u                             /* sizes and addresses are below 2^SIZE_BITS */
#define CLASSES 32u                               /* classes of an octave, one for each bit of a word */

enum kind { UNUSED = 0, BORDER, LIVE, CLEAN, TAGGED, UNMAPPED /* has no memory */, DEFERRED };

/* A record.  It has 32 bytes, and never lies across a cache line. */
struct chunk {
    uint64_t address; /* in granules; after growth the old table has the new number here */
    uint64_t size;    /* in granules; 0 for a border */
    uint32_t prev;    /* the records of the chunks before and after this one in the region */
    uint32_t next;
    union {
        uint64_t requested; /* the bytes that the caller requested, for a live block */
        /* for a free chunk, the subtrees before and after it; for the first of a class, 0 and the treap */
        uint32_t child[2];
    };
};

/* The part of a record that only a free chunk uses, and a tagged chunk alone uses but for the sequence. */
struct chunk_tag {
    uint64_t
        sequence; /* the sequence of the latest free in the chunk, or 0 if every stream may use the chunk */
    struct weir_placement_own *own; /* the tagged chunks of the stream */
    uint32_t older;                 /* the next older chunk in the stream's list, or 0 */
    uint32_t newer;
};

struct chunk_table {
    struct chunk *chunk; /* indexed by a record's number, like tag, kind and print */
    struct chunk_tag *tag;
    uint8_t *kind;
    uint8_t *print; /* 0x80 and seven bits of the hash, or 0 if there is no record */
    /* for each bucket, the number of records that passed it because it was full; a count of 255 stays */
    uint8_t *passed;
    unsigned shift; /* the shift that turns a hash into a bucket */
    size_t buckets; /* a power of two */
    size_t room;    /* records that can be added before the table must grow */
    void *memory;   /* holds all arrays */
    size_t bytes;
};

struct chunk_set {
    uint64_t octaves;                    /* a bit for each octave in use */
    uint32_t used[SIZE_BITS];            /* for each octave, a bit for each class in use */
    uint32_t first[SIZE_BITS * CLASSES]; /* for each class, its smallest chunk, or 0 */
};

struct weir_placement_region {
    uint64_t base;
    uint64_t end;
    uint64_t high; /* the highest end of blocks and filled memory so far, or base */
    uint64_t used; /* the highest end of blocks so far, while there is only one stream */
    uint32_t border;
};

/* The tagged chunks of a stream in one placement, or the clean chunks, which have no stream and no list. */
struct weir_placement_own {
    struct weir_placement_stream *stream;
    uint64_t parted; /* chunks freed up to this sequence join no other tagged chunk */
    uint32_t oldest; /* the list of tagged chunks, in the order of sequences; 0 if empty */
    uint32_t newest;
    struct chunk_set set;
};

struct weir_placement {
    unsigned shift; /* log2 of the granularity */
    unsigned index; /* the rule's index */
    int several;    /* a second stream, or stream 0, was seen */
    int own_first;
    uint64_t mask;  /* granularity - 1 */
    uint64_t waste; /* the rule's split_waste in granules, rounded up */
    /* the one stream seen so far, or NULL if there was none or several */
    struct weir_placement_stream *only;
    struct weir_placement_stream ended; /* replaces `only` when that stream is forgotten */
    struct chunk_table all;
    size_t blocks;
    size_t owners;                        /* the streams that have a struct weir_placement_own */
    struct weir_placement_region *region; /* sorted by base */
    size_t regions, region_length;
    size_t total;  /* granules in all regions, without unmapped ranges */
    size_t extent; /* the sum over regions of (high - base) */
    struct weir__hostmem host;
    struct weir_placement_own clean;
    struct weir_placement_own first;    /* the tagged chunks of the first stream */
    struct weir_placement_own fallback; /* the tagged chunks of the fallback stream */
};

/* Returns the number of records that a table with that number of buckets may hold. */
static inline size_t chunk_limit(size_t buckets) {
    return buckets * 8 / 16 * 13;
}

/* Returns the class of a chunk of `size` granules. */
static inline unsigned chunk_class(uint64_t size) {
    unsigned octave = 63u ^ (unsigned)__builtin_clzll(size);

    return octave * CLASSES + (unsigned)(size * CLASSES >> octave & (CLASSES - 1));
}

/* Returns the rank of a chunk in its treap, which is spread evenly even if the addresses are multiples of one size. */
static inline uint64_t chunk_rank(const struct chunk *c) {
    uint64_t hash = c->address * CHUNK_FACTOR;

    return (hash ^ hash >> 32) * CHUNK_FACTOR;
}

/* Returns 1 if `c` is a better fit than `other` for a request that fits in both, else 0. */
static inline int chunk_is_before(const struct chunk *c, const struct chunk *other) {
    return c->size != other->size ? c->size < other->size : c->address < other->address;
}

/* Returns the prints of a bucket as a word, the first print in its lowest byte. */
static inline uint64_t bucket_prints(const struct chunk_table *t, size_t bucket) {
    uint64_t word;

    memcpy(&word, &t->print[8 * bucket], sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Returns the record of the chunk of that kind that starts at `address` (in bytes), or 0.  The top bit of a byte of `same` is set if the
 * byte's print is equal.  Rarely the bit of the next byte is set, too; the comparison of the address then rejects
 * that record. */
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

/* Returns 1 if the chunk `id`, which is or becomes one of `own`, may join the adjacent chunk `other`.  Two chunks of a
 * stream join if both were freed after its sequence `parted`. */
static inline int chunk_joins(const struct weir_placement *p, uint32_t other, uint32_t id,
                              const struct weir_placement_own *own) {
    if (own == &p->clean)
        return p->all.kind[other] == CLEAN;
    return p->all.kind[other] == TAGGED && p->all.tag[other].own == own &&
           p->all.tag[other].sequence > own->parted && p->all.tag[id].sequence > own->parted;
}

#endif
