/* SPDX-License-Identifier: MIT */
/* placement.h: chooses the addresses of blocks in a set of address ranges.
 *
 * A placement calls no driver, takes no lock (the caller holds one), and does not access the memory.
 *
 * - region: a range of addresses that the caller has added.  Its chunks cover the whole region.
 * - chunk: a part of one region, which is a live block, a deferred block, a free chunk or an unmapped range.
 * - unmapped range: a chunk without memory.  No block is placed there.
 * - deferred block: a freed block that stream work may still use, and that stays in place until the caller frees it.
 * - sequence: the number of a free, from 1.  A free that is already observed has the sequence 0.
 * - observed: a free is observed if the host knows that the stream's work before the free has completed.
 * - tagged chunk: a free chunk that only the stream of its last free may use until this free is observed.
 * - clean chunk: a chunk that is free for every stream.
 *
 * Rules
 *
 * - Fit.  A request gets the smallest chunk that is large enough among its stream's tagged chunks and the clean chunks.
 *   Among chunks of equal size, the request gets the one with the lowest address.
 * - Split.  A chunk is split if it is at least twice as large as the rounded request, or if at least `split_waste`
 *   bytes would be wasted.  Otherwise the block gets the whole chunk.
 * - Coalesce.  A freed chunk joins an adjacent free chunk at once, if both have tags of one stream or both are clean.
 * - One stream.  Until a second stream calls, adjacent free chunks always join, as with TensorFlow's BFC allocator.
 *   When the second stream calls, free chunks below the highest used address of a region get the first stream's tag,
 *   unless their frees are observed.
 * - Stream 0.  The id 0 stands for all unknown streams, which get only clean chunks.  No stream may use their freed
 *   memory before the free is observed.
 * - Sequence.  A free that is not yet observed has a larger sequence than its stream's last observed free.
 *
 * Cost.  An operation takes O(log n) in the number of chunks, amortised over growth of the tables, unless its comment
 * says otherwise.  A call that returns INTERIOR or FREE, and the first call of a second stream, take linear time.
 */
#ifndef WEIR_PLACEMENT_H
#define WEIR_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

struct weir_placement;
struct weir_placement_owner;

/* The number of struct weir_placement in which one struct weir_placement_stream can have free chunks. */
enum { WEIR_PLACEMENT_INDEXES = 3 };

/* The caller's record of a stream, shared by all struct weir_placement.  The caller sets the first three fields. */
struct weir_placement_stream {
    uint64_t id;       /* the driver's id, or 0 if it is unknown */
    uint64_t observed; /* the sequence of the stream's last free that is known to have completed */
    /* Set for at most one stream.  Frees of this stream need no host memory, so they always succeed. */
    int is_fallback;
    /* The stream's free chunks in each struct weir_placement, or NULL. */
    struct weir_placement_owner *owner[WEIR_PLACEMENT_INDEXES];
};

struct weir_placement_rule {
    /* The bytes of a granule: a power of two that divides all sizes and region starts.  256 for BFC. */
    size_t granularity;
    size_t split_waste; /* at least 1 (see "Split"); 128 MiB for BFC */
    int prefer_tagged;  /* 1 if a request gets a clean chunk only if no chunk of its stream fits */
    unsigned index;    /* the index of this placement in the array `owner` of a stream */
    /* Works like realloc, but frees the memory if `bytes` is 0.  NULL means realloc and free. */
    void *(*resize)(void *context, void *memory, size_t bytes);
    void *context;
};

enum weir_placement_result {
    WEIR_PLACEMENT_OK = 0,
    WEIR_PLACEMENT_NO_FIT,
    WEIR_PLACEMENT_NO_MEMORY, /* no host memory; nothing has changed */
    WEIR_PLACEMENT_FOREIGN,
    WEIR_PLACEMENT_INTERIOR, /* inside a live block */
    WEIR_PLACEMENT_FREE,     /* in a free chunk or an already freed block: a double free */
    WEIR_PLACEMENT_BUSY,     /* a part of the region is not free for all streams */
    WEIR_PLACEMENT_INVALID   /* a wrong argument, or overlapping regions */
};

struct weir_placement_block {
    uint64_t address;
    size_t requested;
    size_t size; /* a multiple of the granularity */
};

struct weir_placement_figures {
    size_t regions;
    size_t total; /* the bytes of all regions, without unmapped ranges */
    size_t blocks;
    size_t extent; /* the bytes from each region's start to its highest address ever used */
    size_t host_bytes;
};

/* One chunk, in a walk over all chunks.  A chunk is free unless it is live, deferred or unmapped. */
struct weir_placement_span {
    uint64_t address;
    size_t size;
    size_t requested; /* the bytes that the caller requested for a live block, else 0 */
    int live;
    int deferred;
    int unmapped;
    /* For a free chunk, the stream and the number of its free, until all streams may use the chunk; else 0. */
    uint64_t stream;
    uint64_t sequence;
    uint32_t chunk; /* the chunk's record, for weir__placement_next and weir__placement_age alone */
    size_t region;
};

struct weir_placement_waits {
    /* Returns 1 if the request's stream can wait for the free with this sequence on `stream`, else 0. */
    int (*may)(void *context, uint64_t stream, uint64_t sequence);
    /* Makes the request's stream wait for the free with this sequence on `stream`.  Returns 1 on success, else 0. */
    int (*wait)(void *context, uint64_t stream, uint64_t sequence);
    void *context;
};

/* Creates a placement without regions.  Returns OK or NO_MEMORY.  Sets *out only on OK. */
int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out);
/* Frees all host memory of a placement, or does nothing for NULL. */
void weir__placement_destroy(struct weir_placement *p);

/* Adds the region [base, base + bytes) as one chunk that is free for all streams.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_add(struct weir_placement *p, uint64_t base, size_t bytes);
/* Returns OK if the whole region at `base` is free for this stream (or, if `stream` is 0, for all streams).  Returns
 * BUSY if the region has a block or an unmapped range, FREE if it has only free chunks, but some only for other
 * streams, and FOREIGN if no region starts at `base`. */
int weir__placement_region(const struct weir_placement *p, uint64_t base, uint64_t stream);
/* Finds the first region that ends above `address`.  Returns 1 on success, 0 if there is none. */
int weir__placement_region_above(const struct weir_placement *p, uint64_t address, uint64_t *base,
                                 size_t *bytes);
/* Removes the region at `base`.  Returns OK, FOREIGN, or BUSY if not all of it is free for all streams. */
int weir__placement_remove(struct weir_placement *p, uint64_t base);

/* Adds a region that is one unmapped range.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_add_unmapped(struct weir_placement *p, uint64_t base, size_t bytes);
/* Makes a part of the unmapped range at `within` a free chunk, after the caller has mapped memory there.  If `sequence`
 * is 0, all streams may use the chunk at once.  Otherwise only `s` may use the chunk, until its free with this number
 * has completed.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         struct weir_placement_stream *s, uint64_t sequence);
/* Turns the range at `address` into an unmapped range.  The range lies in free chunks, of which the first starts at
 * `within`.  The caller then unmaps the memory.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_unmap(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes);

/* Allocates host memory for `chunks` chunks in advance, and makes the kernel map it now.  Ignores a failure. */
void weir__placement_reserve_records(struct weir_placement *p, size_t chunks);
/* Places a block of at least `bytes` (> 0) for work on `s`.  Returns OK, NO_FIT, NO_MEMORY or INVALID. */
int weir__placement_alloc(struct weir_placement *p, size_t bytes, struct weir_placement_stream *s,
                          struct weir_placement_block *out);
/* Places a block at `address`, the start of a chunk that is free for all streams.  Returns OK, NO_MEMORY, INVALID, or
 * NO_FIT if no such chunk with enough bytes starts there. */
int weir__placement_alloc_at(struct weir_placement *p, uint64_t address, size_t bytes,
                             struct weir_placement_stream *s, struct weir_placement_block *out);
/* Places a block in adjacent free chunks, which the stream may use now or after a wait for other streams.  Takes
 * linear time in the number of chunks.  Returns OK, NO_MEMORY, INVALID, or NO_FIT if nothing fits or a wait fails. */
int weir__placement_alloc_wait(struct weir_placement *p, size_t bytes,
                               struct weir_placement_stream *s,
                               const struct weir_placement_waits *waits,
                               struct weir_placement_block *out);
/* Frees the live block at `address` on the stream `s`.  If `sequence` is 0, frees the block for all streams, and `s`
 * may be NULL.  Returns OK, or FOREIGN, INTERIOR, FREE or NO_MEMORY without a change.  Needs no host memory if
 * `sequence` is 0 or s->is_fallback is set. */
int weir__placement_free(struct weir_placement *p, uint64_t address,
                         struct weir_placement_stream *s, uint64_t sequence,
                         struct weir_placement_block *out);
/* Marks a live block as freed, but keeps its memory unusable.  A second free then returns WEIR_PLACEMENT_FREE. */
void weir__placement_defer(struct weir_placement *p, uint64_t address);
/* Makes a block live again after weir__placement_defer(), so that the caller can free the block. */
void weir__placement_undefer(struct weir_placement *p, uint64_t address);
/* Sets the merge floor.  Memory that the stream freed up to this free number does not join memory that it frees later.
 * So other streams can use the earlier memory sooner. */
void weir__placement_set_merge_floor(struct weir_placement *p, struct weir_placement_stream *s,
                                     uint64_t sequence);
/* Finds the live block at `address`.  Returns OK, FOREIGN, FREE, or INTERIOR with the block around the address. */
int weir__placement_find(const struct weir_placement *p, uint64_t address,
                         struct weir_placement_block *out);
/* Makes each chunk that `s` freed with a sequence up to s->observed free for all streams, and coalesces them. */
void weir__placement_observe(struct weir_placement *p, struct weir_placement_stream *s);
/* Removes all pointers to a stream's record, which the caller can then free.  The number s->observed must cover all
 * frees of the stream, and no chunk may be tagged with the stream, unless the caller destroys the placement next. */
void weir__placement_remove_stream(struct weir_placement *p, struct weir_placement_stream *s);

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out);
/* Finds the unmapped range at the end of the last region.  Returns 1 on success, 0 if there is none. */
int weir__placement_last_unmapped(const struct weir_placement *p, uint64_t *address, size_t *bytes);
/* Finds the chunk after *span by address, or the first chunk if all of *span is 0.  Returns 1 on success, 0 after the
 * last chunk.  The placement must not change during such a walk. */
int weir__placement_next(const struct weir_placement *p, struct weir_placement_span *span);
/* Marks a live block.  Returns 1 in the first call for the block, else 0. */
int weir__placement_age(struct weir_placement *p, const struct weir_placement_span *live);

/* Checks all invariants (tests/fixtures/placement_check.c).  Returns 1 if they hold, else 0. */
int weir__placement_is_valid(const struct weir_placement *p);

#endif
