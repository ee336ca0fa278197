/* SPDX-License-Identifier: MIT */
/* placement.h: chooses the addresses of blocks in a set of address ranges.
 *
 * A placement finds the best fit, and splits and coalesces chunks.  It only computes addresses: it calls no driver,
 * takes no lock (the caller holds one), and does not access the memory.  The caller owns a record of each stream and
 * passes it by pointer.  Several placements share these records.
 *
 * Glossary
 *
 * - region: a contiguous range of addresses that the caller has added.  A chunk never crosses the end of its region.
 * - chunk: a piece of a region, which is a live block, a deferred block, a free chunk or an unmapped range.  The
 *   chunks of a region cover all of it.
 * - unmapped range: a chunk without memory.  No block is placed there.
 * - deferred block: a freed block that keeps its address until the caller frees it a second time.
 * - sequence: the number of a free.  It rises with each free on a stream.
 * - observed: said of a free if the host knows that all work of the stream before the free has completed.
 * - tag: the stream and the sequence of a free.  The stream may use the chunk at once.  Other streams may use the
 *   chunk once the free is observed.
 * - clean: said of a free chunk that every stream may use.  The chunk was never used, or all its frees are observed.
 *
 * Rules
 *
 * - Fit.  A request gets the smallest free chunk that is large enough, and among equal sizes the chunk with the lowest
 *   address.  The stream may use its own chunks and clean chunks.  If `prefer_tagged` is set, the request gets a clean
 *   chunk only if no chunk of the stream fits.  TensorFlow's BFC allocator chooses in this order, too.
 * - Split.  A chunk is split if it is at least twice as large as the rounded request, or if at least `split_waste`
 *   bytes would be wasted.  Otherwise the block gets the whole chunk.
 * - Coalesce.  A freed chunk joins an adjacent free chunk of its region at once, if both have tags of one stream or
 *   both are clean.
 * - One stream.  Until a second stream calls, adjacent free chunks always join, so that each block has the address
 *   that BFC would choose.  When the second stream appears, the free chunks below the highest address that a block of
 *   the region has used get the first stream's tag, unless their frees are observed.  Free chunks above this address
 *   are clean.
 * - Stream 0.  The id 0 stands for all unknown streams.  No stream may use memory that an unknown stream has freed
 *   before the free is observed.  Requests of unknown streams get only clean chunks.
 * - Sequence.  The first sequence is 1.  A free that is already observed has sequence 0.  Any other free has a larger
 *   sequence than its stream's last observed free.
 *
 * Cost.  An operation takes O(log n) in the number of chunks, amortised over growth of the tables, unless its comment
 * says otherwise.  A call that returns INTERIOR or FREE, and the first call of a second stream, take linear time.
 */
#ifndef WEIR_PLACEMENT_H
#define WEIR_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

/* A placement: a set of address ranges, with the live blocks and the free chunks in it.  The caller owns the placement
 * and the lock that guards it. */
struct weir_placement;
struct weir_placement_owner;

/* The largest number of placements that share the caller's records of streams.  Each record has an entry for each
 * placement. */
enum { WEIR_PLACEMENT_INDEXES = 3 };

/* The caller's record of a stream.  The caller sets `id`, `observed` and `is_fallback`.  The pointers in `own` are
 * NULL at first. */
struct weir_placement_stream {
    uint64_t id;       /* the driver's id of the stream, or 0 if the id is unknown */
    /* all frees on the stream with sequence numbers up to `observed` have completed */
    uint64_t observed;
    /* Set for at most one stream of a placement.  A free on this stream needs no host memory, so that a free can
     * always succeed. */
    int is_fallback;
    /* For each placement, the free chunks that only this stream may use so far, or NULL.  The index is the field
     * `index` of the placement's rule. */
    struct weir_placement_owner *owner[WEIR_PLACEMENT_INDEXES];
};

struct weir_placement_rule {
    /* A power of two (a granule) that divides all sizes and the start of every region.  256 for BFC. */
    size_t granularity;
    /* A chunk is split if at least this many bytes of it would otherwise be wasted (see Split at the head of this
     * file).  128 MiB for BFC; never 0.  If `split_waste` equals `granularity`, every block has exactly its rounded
     * size. */
    size_t split_waste;
    /* 1 if a request gets a chunk that all streams may use only when no chunk of its own stream fits */
    int prefer_tagged;
    /* the index of this placement among all placements that share the caller's records of streams */
    unsigned index;
    /* Allocates host memory for the placement.  Works like realloc, but frees the memory and returns NULL if `bytes`
     * is 0.  If `resize` is NULL, the placement calls realloc and free. */
    void *(*resize)(void *context, void *memory, size_t bytes);
    void *context; /* the first argument of `resize` */
};

enum weir_placement_result {
    WEIR_PLACEMENT_OK = 0,
    WEIR_PLACEMENT_NO_FIT,    /* no free chunk that the stream may use is large enough */
    WEIR_PLACEMENT_NO_MEMORY, /* there is no host memory; nothing has changed */
    WEIR_PLACEMENT_FOREIGN,   /* the address lies in no region */
    WEIR_PLACEMENT_INTERIOR,  /* the address lies inside a live block, but not at its start */
    /* The address lies in a free chunk or in a deferred block, so this is a double free. */
    WEIR_PLACEMENT_FREE,
    /* The region has a live block, or a free chunk that not all streams may use. */
    WEIR_PLACEMENT_BUSY,
    WEIR_PLACEMENT_INVALID /* an argument is wrong, or the region overlaps another region */
};

struct weir_placement_block {
    uint64_t address;
    size_t requested; /* the number of bytes that the caller requested */
    size_t size;      /* the number of bytes of the block, which is a multiple of the granularity */
};

struct weir_placement_figures {
    size_t regions;
    size_t total;  /* the bytes of all regions, without unmapped ranges */
    size_t blocks; /* the number of live blocks */
    /* The size of the used parts of all regions.  The used part extends from the start of a region to the highest
     * address where a block or new memory was ever placed. */
    size_t extent;
    size_t host_bytes; /* the bytes of host memory that the placement uses */
};

/* The description of one chunk, for a walk over all chunks with weir__placement_next. */
struct weir_placement_span {
    uint64_t address;
    size_t size;
    /* The bytes that the caller requested for a live block, or 0 for another chunk. */
    size_t requested;
    int live;     /* 1 if the chunk is a live block, else 0 */
    int deferred; /* 1 if the chunk is a deferred block, else 0 */
    int unmapped; /* 1 if the chunk is an unmapped range, else 0 */
    /* For a free chunk that not all streams may use yet: the id of the stream that freed it, and the sequence number
     * of the free.  Both are 0 for all other chunks. */
    uint64_t stream;
    uint64_t sequence;
    /* The position of the walk; only weir__placement_next uses `chunk` and `region`. */
    uint32_t chunk;
    size_t region;
};

/* Callbacks for a request that may use memory of other streams after a wait.  Each free is named by its stream's id
 * and its sequence number. */
struct weir_placement_waits {
    /* Returns 1 if the request's stream can wait for this free of another stream, else 0. */
    int (*may)(void *context, uint64_t stream, uint64_t sequence);
    /* Makes the request's stream wait for this free of another stream.  Returns 1 on success, else 0. */
    int (*wait)(void *context, uint64_t stream, uint64_t sequence);
    void *context;
};

/* The caller must hold its lock on the placement during each call.  No function of this file blocks. */

/* Creates an empty placement.  Returns OK, INVALID if the rule is wrong, or NO_MEMORY.  Sets *out only on OK. */
int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out);
/* Frees the host memory of a placement, including the records of its live blocks.  Does nothing for NULL. */
void weir__placement_destroy(struct weir_placement *p);

/* Adds the region [base, base + bytes) as one free chunk that all streams may use.  Returns OK, INVALID or
 * NO_MEMORY. */
int weir__placement_add(struct weir_placement *p, uint64_t base, size_t bytes);
/* Checks whether a stream may use the whole region that starts at `base`.  Returns FOREIGN if no region starts there,
 * and BUSY if the region has a block or an unmapped range.  Returns OK if each chunk of the region is free for all
 * streams, or for the stream with the id `stream` unless `stream` is 0.  Returns FREE otherwise.  Takes linear time in
 * the number of free chunks before the first block. */
int weir__placement_region(const struct weir_placement *p, uint64_t base, uint64_t stream);
/* Finds the first region that ends above `address`.  Returns 1 and writes the region to *base and *bytes.  Returns 0
 * if there is no such region. */
int weir__placement_region_above(const struct weir_placement *p, uint64_t address, uint64_t *base,
                                 size_t *bytes);
/* Removes the region that starts at `base`.  Returns OK, FOREIGN if no region starts there, or BUSY if not all streams
 * may use the whole region.  Needs no host memory. */
int weir__placement_remove(struct weir_placement *p, uint64_t base);

/* Adds a region that is one unmapped range.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_add_unmapped(struct weir_placement *p, uint64_t base, size_t bytes);
/* Turns [address, address + bytes), a part of the unmapped range that starts at `within`, into a free chunk, after the
 * caller has mapped memory there.  The memory is free for the stream `s`, as if this stream had freed it with this
 * sequence number.  If `sequence` is 0, it is free for all streams.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         struct weir_placement_stream *s, uint64_t sequence);
/* Turns [address, address + bytes) into an unmapped range, before the caller unmaps its memory.  The memory must be
 * free, for any stream.  `within` is the start of the first free chunk in the range.  Returns OK, INVALID or
 * NO_MEMORY. */
int weir__placement_unmap(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes);

/* Allocates host memory for `chunks` chunks in advance, and writes to it, so that the kernel maps it now.  Does
 * nothing if there is no host memory. */
void weir__placement_reserve_records(struct weir_placement *p, size_t chunks);
/* Places a block of at least `bytes` (> 0) for work on the stream `s`.  Returns OK, NO_FIT, NO_MEMORY or INVALID. */
int weir__placement_alloc(struct weir_placement *p, size_t bytes, struct weir_placement_stream *s,
                          struct weir_placement_block *out);
/* Places a block at `address`.  Returns NO_FIT unless a free chunk that all streams may use starts there and is large
 * enough.  Otherwise returns OK, NO_MEMORY or INVALID. */
int weir__placement_alloc_at(struct weir_placement *p, uint64_t address, size_t bytes,
                             struct weir_placement_stream *s, struct weir_placement_block *out);
/* Places a block in a run of adjacent free chunks, for a request that fits no single chunk.  The stream may use each
 * chunk of the run at once, or after it waits for another stream's free.  Chooses the smallest run that fits, and
 * makes the stream wait for the chunks in the block.  The rest of the run stays free for the streams that could use it
 * before.  Takes linear time in the number of chunks.  Returns OK, NO_MEMORY or INVALID, or NO_FIT if no run fits or a
 * wait fails. */
int weir__placement_alloc_after_waits(struct weir_placement *p, size_t bytes,
                                      struct weir_placement_stream *s,
                                      const struct weir_placement_waits *waits,
                                      struct weir_placement_block *out);
/* Frees the live block at `address` on the stream `s`, with the free's sequence number.  If `sequence` is 0, the
 * memory is free for all streams, and `s` may be NULL.  Writes the block to *out unless `out` is NULL.  Returns OK,
 * FOREIGN, INTERIOR or FREE.  Returns NO_MEMORY and changes nothing if there is no host memory, but never if
 * `sequence` is 0 or `s` is the fallback stream (is_fallback). */
int weir__placement_free(struct weir_placement *p, uint64_t address,
                         struct weir_placement_stream *s, uint64_t sequence,
                         struct weir_placement_block *out);
/* Turns the live block at `address` into a deferred block, which is freed later.  A second free of the address then
 * fails with FREE. */
void weir__placement_defer(struct weir_placement *p, uint64_t address);
/* Turns a deferred block, which is freed but still placed, into a live block again.  The caller then frees it. */
void weir__placement_undefer(struct weir_placement *p, uint64_t address);
/* Keeps the memory of the stream's frees up to this sequence number from coalescing with memory that the stream frees
 * later.  So other streams can use this memory as soon as these frees have completed.  Does nothing for a stream
 * without such memory, or while only one stream uses the placement. */
void weir__placement_set_merge_floor(struct weir_placement *p, struct weir_placement_stream *s,
                                     uint64_t sequence);
/* Finds the live block that starts at `address`, and writes it to *out.  Returns OK, or why no live block starts
 * there: FOREIGN, INTERIOR or FREE.  If the result is INTERIOR, *out is the live block around the address. */
int weir__placement_find(const struct weir_placement *p, uint64_t address,
                         struct weir_placement_block *out);
/* Makes the memory that the stream has freed up to the sequence number `s->observed` free for all streams, and
 * coalesces it.  Called after these frees have completed and the caller has set `s->observed`. */
void weir__placement_observe(struct weir_placement *p, struct weir_placement_stream *s);
/* Removes all pointers to the caller's record of a stream, before the caller frees the record.  All frees of the
 * stream must have completed, unless the caller destroys the placement next. */
void weir__placement_forget(struct weir_placement *p, struct weir_placement_stream *s);

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out);
/* Finds the unmapped range at the end of the last region, and writes it to *address and *bytes.  Returns 1 on success,
 * 0 if the last region does not end with an unmapped range. */
int weir__placement_last_unmapped(const struct weir_placement *p, uint64_t *address, size_t *bytes);
/* Finds the chunk after *span by address, or the first chunk if *span has only zeros.  The placement must not change
 * during such a walk.  Returns 1 and writes the chunk to *span.  Returns 0 if *span was the last chunk. */
int weir__placement_next(const struct weir_placement *p, struct weir_placement_span *span);
/* Marks a live block, which weir__placement_next has found, as old.  Returns 1 if the block was not old, else 0. */
int weir__placement_age(struct weir_placement *p, const struct weir_placement_span *live);

/* Checks all invariants of a placement.  Returns 1 if they hold.  Otherwise prints a line on standard error and
 * returns 0.  Visits all chunks more than once.  Only tests and asserts call this function, which is in
 * tests/fixtures/placement_check.c. */
int weir__placement_is_valid(const struct weir_placement *p);

#endif
