/* SPDX-License-Identifier: MIT */
/* placement.h: the choice of addresses for blocks in a set of address ranges.
 *
 * A placement finds the best fit, and splits and coalesces chunks.  It only computes addresses: it calls no driver,
 * takes no lock (the caller holds one), and does not touch the memory.  The caller owns a record of each stream, which
 * several placements share, and passes it by pointer.
 *
 * Glossary
 *   region           one contiguous range that was added; chunks never cross its ends
 *   chunk            a piece of a region: a live block, a free chunk or an unmapped range; chunks tile their region
 *   unmapped range   a chunk without memory: nothing is placed there
 *   deferred block   a block that was freed but stays placed until its owner frees it finally
 *   sequence         the number of a free; it rises from free to free of a stream
 *   observed         of a free: the host knows that the stream's work before the free has completed
 *   tag              (stream, sequence) of a free: `stream` may use the chunk at once, others once the free is observed
 *   clean            a free chunk that every stream may use, since it was never used or its frees are observed
 *
 * Rules
 *   Fit.       The smallest free chunk that is large enough, and the lowest address among equal sizes, of those that
 *              the stream may use: its own and the clean ones (with `own_first` a clean one only if no own chunk
 *              fits).  This is the order of TensorFlow's BFC allocator.
 *   Split.     The chunk is cut if it is at least twice the rounded size, or if at least `split_waste` bytes would be
 *              wasted; otherwise the block gets all of it.
 *   Coalesce.  A freed chunk joins an adjacent free chunk of its region at once if both have tags of one stream or both
 *              are clean.
 *   One stream.  Until a second stream calls, adjacent free chunks always join, so that each block has the address that
 *              BFC would choose.  When the second stream appears, free space below the highest address allocated in a
 *              region gets the first stream's tag, unless its frees are observed; the space above is clean.
 *   Stream 0   is an unknown stream: its frees serve no stream until they are observed, and its requests get clean
 *              chunks only.
 *   Sequence.  The first is 1; a free that is observed already has 0.  A free's sequence lies above the one up to which
 *              its stream is observed.
 *
 * Cost.  An operation takes O(log n) in the number of chunks, amortised over growth of the tables, unless its comment
 * says otherwise.  Those calls take linear time that return INTERIOR or FREE, and the first call of a second stream.
 */
#ifndef WEIR_PLACEMENT_H
#define WEIR_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

struct weir_placement; /* the caller owns the placement and the lock that guards it */
struct weir_placement_own;

enum { WEIR_PLACEMENT_INDEXES = 3 }; /* the most placements that share the records of streams */

/* A stream's record.  The caller owns it, and sets `id`, `observed` and `is_fallback`; `own` is zero at first. */
struct weir_placement_stream {
    uint64_t id;       /* the driver's id of the stream, or 0 if the id is not known */
    uint64_t observed; /* the sequence up to which the stream's frees are observed */
    int is_fallback; /* set for at most one stream of a placement, whose frees need no host memory */
    /* the stream's tagged chunks in each placement, by the rule's `index`, or NULL */
    struct weir_placement_own *own[WEIR_PLACEMENT_INDEXES];
};

struct weir_placement_rule {
    size_t granularity; /* a power of two that divides all sizes and bases; 256 for BFC */
    /* in bytes, not 0 (see Split above); 128 MiB for BFC; if it equals granularity, blocks waste no granule */
    size_t split_waste;
    int own_first;  /* nonzero: clean chunks serve only if no chunk of the stream fits */
    unsigned index; /* the placement's number among all that share records of streams */
    /* Allocates the placement's host memory.  Works as realloc, but frees the memory and returns NULL if bytes is 0.
     * If `resize` is NULL, the placement calls realloc and free. */
    void *(*resize)(void *context, void *memory, size_t bytes);
    void *context; /* the first argument of resize */
};

enum weir_placement_result {
    WEIR_PLACEMENT_OK = 0,
    WEIR_PLACEMENT_NO_FIT,    /* no free chunk that this stream may use is large enough */
    WEIR_PLACEMENT_NO_MEMORY, /* host memory ran out; nothing changed */
    WEIR_PLACEMENT_FOREIGN,   /* the address lies in no region */
    WEIR_PLACEMENT_INTERIOR,  /* the address lies inside a live block, not at its start */
    WEIR_PLACEMENT_FREE, /* the address lies in a free chunk or a deferred block: a double free */
    /* the region still has live blocks, or free chunks that are not observed */
    WEIR_PLACEMENT_BUSY,
    WEIR_PLACEMENT_INVALID /* a wrong address or size, or overlapping regions */
};

struct weir_placement_block {
    uint64_t address;
    size_t requested; /* the bytes that the caller requested */
    size_t size;      /* the bytes that the block occupies, a multiple of the granularity */
};

struct weir_placement_figures {
    size_t regions;
    size_t total;  /* bytes in all regions, without unmapped ranges */
    size_t blocks; /* live blocks */
    size_t extent; /* the sum over regions of (highest address ever allocated or filled - base) */
    size_t host_bytes; /* bytes of host memory */
};

/* One chunk, as weir__placement_next describes it. */
struct weir_placement_span {
    uint64_t address;
    size_t size;
    size_t requested; /* the requested bytes of a live block, or 0 */
    int live;         /* 1 for a live block */
    int deferred;     /* 1 for a deferred block */
    int unmapped;     /* 1 for an unmapped range */
    uint64_t stream;  /* stream and sequence: the tag of a free chunk, or 0 if it has no tag */
    uint64_t sequence;
    uint32_t chunk; /* chunk and region: the place in the walk */
    size_t region;
};

/* The functions by which a request's stream waits for another stream's free that is not observed. */
struct weir_placement_waits {
    /* Returns 1 if the requesting stream can wait for the free of `stream` with that sequence, else 0. */
    int (*may)(void *context, uint64_t stream, uint64_t sequence);
    /* Makes the requesting stream wait for the free of `stream` with that sequence.  Returns 1 on success, else 0. */
    int (*wait)(void *context, uint64_t stream, uint64_t sequence);
    void *context;
};

/* No function blocks.  The caller's lock guards a placement. */

/* Makes an empty placement.  Returns OK, INVALID (a wrong rule) or NO_MEMORY.  Sets *out only on OK. */
int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out);
/* Frees a placement and forgets its live blocks, or does nothing for NULL. */
void weir__placement_destroy(struct weir_placement *p);

/* Adds the region [base, base + bytes) as one chunk that is free for all streams.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_add(struct weir_placement *p, uint64_t base, size_t bytes);
/* Checks the region that starts at `base`.  Returns BUSY if it has a block or an unmapped range, and FOREIGN if no
 * region starts there.  Otherwise returns OK if each chunk of the region is free for all streams or, unless `stream` is
 * 0, for the stream with that id, and FREE if not.  Linear in the free chunks before the first block. */
int weir__placement_region(const struct weir_placement *p, uint64_t base, uint64_t stream);
/* Finds the first region that ends above `address`.  Returns 1 and the region in *base and *bytes, or returns 0. */
int weir__placement_region_above(const struct weir_placement *p, uint64_t address, uint64_t *base,
                                 size_t *bytes);
/* Removes the region that starts at `base` if all streams may use all of it.  Returns OK, BUSY or FOREIGN.  Needs no
 * host memory, even if host memory was short before. */
int weir__placement_remove(struct weir_placement *p, uint64_t base);

/* Adds a region that is one unmapped range.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_add_unmapped(struct weir_placement *p, uint64_t base, size_t bytes);
/* Records that [address, address + bytes) in the unmapped range from `within` on has memory now, freed on the stream
 * with `sequence`, or free for all streams if `sequence` is 0.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         struct weir_placement_stream *s, uint64_t sequence);
/* Makes [address, address + bytes) an unmapped range, even if not all streams may use it yet.  The range lies in
 * adjacent free chunks, of which the first starts at `within`.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_unmap(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes);

/* Allocates and touches host memory for `chunks` chunks beforehand.  Does nothing if there is no host memory. */
void weir__placement_stock(struct weir_placement *p, size_t chunks);
/* Places a block of at least `bytes` (> 0) that the stream will use.  Returns OK, NO_FIT, NO_MEMORY or INVALID. */
int weir__placement_take(struct weir_placement *p, size_t bytes, struct weir_placement_stream *s,
                         struct weir_placement_block *out);
/* Places a block at `address`.  Returns NO_FIT if no clean chunk that is large enough starts there. */
int weir__placement_take_at(struct weir_placement *p, uint64_t address, size_t bytes,
                            struct weir_placement_stream *s, struct weir_placement_block *out);
/* Places a block for a request that did not fit, in a run of adjacent free chunks.  The stream may use each chunk at
 * once, or after a wait for another stream's free.  Takes one of the smallest runs that fit, and waits for the chunks
 * in the block; the rest of the run keeps its tags.  Linear in the chunks.  Returns NO_FIT if no run fits or a wait
 * failed. */
int weir__placement_take_behind(struct weir_placement *p, size_t bytes,
                                struct weir_placement_stream *s,
                                const struct weir_placement_waits *waits,
                                struct weir_placement_block *out);
/* Frees the live block at `address` on the stream `s` with `sequence`, or for all streams if `sequence` is 0.  `s` is
 * NULL if the stream is not known; `sequence` is 0 then.  Writes the block to *out unless `out` is NULL.  Returns OK,
 * FOREIGN, INTERIOR or FREE, or returns NO_MEMORY and changes nothing, but never if `sequence` is 0 or `s` is the
 * fallback. */
int weir__placement_give(struct weir_placement *p, uint64_t address,
                         struct weir_placement_stream *s, uint64_t sequence,
                         struct weir_placement_block *out);
/* Makes the live block at `address` a deferred block.  weir__placement_give then returns FREE for this address. */
void weir__placement_defer(struct weir_placement *p, uint64_t address);
/* Makes the deferred block at `address` live again. */
void weir__placement_undefer(struct weir_placement *p, uint64_t address);
/* Keeps the stream's frees up to `sequence` from coalescing with its later frees.  So other streams can use the memory
 * once the frees up to `sequence` are observed.  Does nothing for a stream without tagged chunks, or while there is
 * only one stream. */
void weir__placement_part(struct weir_placement *p, struct weir_placement_stream *s,
                          uint64_t sequence);
/* Finds the live block at `address`, or around it if the result is INTERIOR.  Returns OK, FOREIGN, INTERIOR or FREE. */
int weir__placement_find(const struct weir_placement *p, uint64_t address,
                         struct weir_placement_block *out);
/* Makes the memory of the stream's frees up to `s->observed` free for all streams, and coalesces it.  The caller has
 * set `s->observed`, since these frees have completed. */
void weir__placement_observe(struct weir_placement *p, struct weir_placement_stream *s);
/* Forgets a stream, before its owner frees the record.  All its frees are observed, or weir__placement_destroy
 * follows. */
void weir__placement_forget(struct weir_placement *p, struct weir_placement_stream *s);

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out);
/* Finds the unmapped range at the end of the last region.  Returns 1 if there is one, 0 otherwise. */
int weir__placement_last_unmapped(const struct weir_placement *p, uint64_t *address, size_t *bytes);
/* Finds the chunk that follows *span by address, or the first chunk if *span is zero.  The placement must not change
 * meanwhile.  Returns 1 and the chunk in *span, or 0 if there is no other. */
int weir__placement_next(const struct weir_placement *p, struct weir_placement_span *span);

/* Returns 1 if all invariants hold, else 0 with a line on standard error.  Visits all chunks, and more than once.  For
 * asserts and tests only: tests/fixtures/placement_check.c. */
int weir__placement_is_valid(const struct weir_placement *p);

#endif
