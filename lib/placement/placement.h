/* SPDX-License-Identifier: MIT */
/* placement.h: where in a set of address ranges a block goes.
 *
 * A placement does best fit, splits and coalesces chunks in the order of their addresses.  It only counts: it has no
 * driver, no lock (the caller holds one) and no memory behind the addresses.  The caller owns a record of each stream,
 * which several placements share, and passes it by pointer.
 *
 * Glossary
 *   region           one contiguous range that was added; chunks never cross its ends
 *   chunk            a piece of a region: a live block, a free chunk or an unmapped range; chunks tile their region
 *   unmapped range   a chunk without memory: nothing is placed there
 *   deferred block   a block that was freed but stays placed until its owner frees it finally
 *   tag              (stream, sequence) of a free: `stream` may use the chunk at once, other streams only after
 *                    `sequence` was observed
 *   clean            a free chunk that every stream may use: never used, or observed
 *
 * Rules
 *   Fit.       The smallest free chunk that is large enough, and the lowest address among equal sizes, of those that
 *              the stream may use: its own and the clean ones (with `own_first` a clean one only if no own chunk
 *              fits).  This is the order of TensorFlow's BFC allocator.
 *   Split.     The chunk is cut if it is at least twice the rounded size, or if at least `split_waste` bytes would be
 *              wasted; otherwise the block gets all of it.
 *   Coalesce.  A freed chunk joins a free neighbour of its region at once if both have tags of one stream or both are
 *              clean.
 *   One stream.  Until a second stream is seen, tags restrict nothing: free chunks join whatever their tag, so that the
 *              placement is BFC's to the byte.  When the second stream appears, free space below the highest address
 *              allocated in a region gets the first stream's tag (unless observed), and the space above is clean.
 *   Stream 0   means an unknown stream: its frees serve no stream until observed, and it is served from clean chunks
 *              alone.
 *   Sequence.  From 1; 0 of a free that was observed before.  The sequences of a stream's frees rise, and lie above the
 *              sequence up to which the stream was observed.
 *
 * Cost.  An operation takes O(log n) in the number of chunks, amortised over growth of the tables, unless its comment
 * says otherwise.  Linear are the answers INTERIOR and FREE, once the appearance of the second stream, and the call
 * after a lack of host memory.
 */
#ifndef WEIR_PLACEMENT_H
#define WEIR_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

struct weir_placement; /* the caller owns it, and the lock that guards it */
struct weir_placement_own;

enum { WEIR_PLACEMENT_INDEXES = 3 }; /* the most placements that share the records of streams */

/* A stream's record.  The caller owns it, and sets `id` and `observed`; all other fields are zero at first. */
struct weir_placement_stream {
    uint64_t id;       /* 0 if it is not known */
    uint64_t observed; /* the sequence up to which the stream's frees are observed */
    /* the stream's tagged chunks in each placement, by the rule's `index`, or NULL */
    struct weir_placement_own *own[WEIR_PLACEMENT_INDEXES];
};

struct weir_placement_rule {
    size_t granularity; /* a power of two that divides all sizes and bases; 256 for BFC */
    /* in bytes, not 0; 128 MiB for BFC; always splits if equal to granularity */
    size_t split_waste;
    int own_first;  /* nonzero: a stream's own free chunks serve it before chunks for all */
    unsigned index; /* the placement's number among those that share the records of streams */
    /* Allocates the bookkeeping's memory; a test can make it fail.  Works as realloc, but frees and returns NULL if
     * bytes is 0.  If it is NULL, realloc and free are used. */
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
    WEIR_PLACEMENT_INVALID /* not a multiple of the granularity, zero, overflow, or overlapping */
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

/* One chunk, for weir__placement_next. */
struct weir_placement_span {
    uint64_t address;
    size_t size;
    size_t requested; /* the requested bytes of a live block, or 0 */
    int live;         /* 1 for a live block */
    int deferred;     /* 1 for a deferred block */
    int unmapped;     /* 1 for an unmapped range */
    uint64_t stream;  /* the tag of a free chunk; stream and sequence are 0 without one */
    uint64_t sequence;
    uint32_t chunk; /* the placement's number of the chunk, and of its region */
    size_t region;
};

/* The functions with which a stream waits for other streams, by their ids, to use memory before their frees are
 * observed. */
struct weir_placement_waits {
    /* Returns 1 if a stream can wait for that stream's free with that sequence. */
    int (*may)(void *context, uint64_t stream, uint64_t sequence);
    /* Waits for that free.  Returns 0 if the wait failed. */
    int (*wait)(void *context, uint64_t stream, uint64_t sequence);
    void *context;
};

/* No function blocks.  The caller's lock guards a placement. */

/* Makes an empty placement.  Returns OK, INVALID (a wrong rule) or NO_MEMORY.  Sets *out only on OK. */
int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out);
/* Frees a placement, or does nothing for NULL.  Live blocks are forgotten. */
void weir__placement_destroy(struct weir_placement *p);

/* Adds the region [base, base + bytes) as one chunk that is free for all streams.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_add(struct weir_placement *p, uint64_t base, size_t bytes);
/* Returns OK if the region that starts at `base` is free, and all streams or the one with the id `stream` may use each of
 * its chunks.  Returns FREE if it is free, BUSY if it has a block or no memory, FOREIGN if there is no such region.
 * `stream` is 0 for a question about all streams.  Linear in the free chunks before the first block. */
int weir__placement_region(const struct weir_placement *p, uint64_t base, uint64_t stream);
/* Finds the first region that ends above `address`.  Returns 1 and the region in *base and *bytes, or 0 if there is
 * none. */
int weir__placement_region_above(const struct weir_placement *p, uint64_t address, uint64_t *base,
                                 size_t *bytes);
/* Removes the region that starts at `base` if all streams may use all of it.  Returns OK, BUSY or FOREIGN.  Needs no
 * host memory, even if host memory was short before. */
int weir__placement_remove(struct weir_placement *p, uint64_t base);

/* Adds a region that is one unmapped range.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_add_unmapped(struct weir_placement *p, uint64_t base, size_t bytes);
/* Gives memory to [address, address + bytes) in the unmapped range that starts at `within`.  The memory counts as freed
 * on the stream with `sequence`, or is free for all streams if `sequence` is 0.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         struct weir_placement_stream *s, uint64_t sequence);
/* Makes [address, address + bytes) an unmapped range, whichever streams may use it.  It lies in adjacent free chunks,
 * of which the first starts at `within`.  Returns OK, INVALID or NO_MEMORY. */
int weir__placement_unmap(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes);

/* Allocates and touches host memory for `chunks` chunks beforehand.  Does nothing if there is no host memory. */
void weir__placement_stock(struct weir_placement *p, size_t chunks);
/* Places a block of at least `bytes` (> 0) that the stream will use.  Returns OK, NO_FIT, NO_MEMORY or INVALID. */
int weir__placement_take(struct weir_placement *p, size_t bytes, struct weir_placement_stream *s,
                         struct weir_placement_block *out);
/* Places a block at `address`.  Returns NO_FIT if no large enough chunk that is free for all streams starts there. */
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
/* Frees the live block at `address` on the stream with `sequence`, or for all streams if `sequence` is 0.  `s` may then
 * be NULL, for no known stream.  *out gets the block, unless it is NULL.  Returns OK, FOREIGN, INTERIOR or FREE. */
int weir__placement_give(struct weir_placement *p, uint64_t address,
                         struct weir_placement_stream *s, uint64_t sequence,
                         struct weir_placement_block *out);
/* Makes the live block at `address` a deferred one: another free of it is a double free. */
void weir__placement_defer(struct weir_placement *p, uint64_t address);
/* Makes the deferred block at `address` live again. */
void weir__placement_undefer(struct weir_placement *p, uint64_t address);
/* Keeps the stream's frees up to `sequence` from coalescing with its later frees until they are observed, so that they
 * do not wait for the later frees.  Does nothing for a stream without tagged chunks. */
void weir__placement_part(struct weir_placement *p, struct weir_placement_stream *s,
                          uint64_t sequence);
/* Finds the live block at `address`, or around it if the result is INTERIOR.  Returns OK, FOREIGN, INTERIOR or FREE. */
int weir__placement_find(const struct weir_placement *p, uint64_t address,
                         struct weir_placement_block *out);
/* Makes memory that the stream freed up to `s->observed` free for all streams, and coalesces it: the frees have
 * completed. */
void weir__placement_observe(struct weir_placement *p, struct weir_placement_stream *s);
/* Forgets a stream, before its owner frees the record.  All frees of the stream are observed, or the placement is only
 * to be destroyed. */
void weir__placement_forget(struct weir_placement *p, struct weir_placement_stream *s);

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out);
/* Finds the unmapped range at the end of the last region.  Returns 1 if there is one, 0 otherwise. */
int weir__placement_last_unmapped(const struct weir_placement *p, uint64_t *address, size_t *bytes);
/* Finds the next chunk, by address.  *span has the last chunk, or is zero before the first one; the placement has not
 * changed in between.  Returns 1 and the chunk in *span, or 0 if there is no other. */
int weir__placement_next(struct weir_placement *p, struct weir_placement_span *span);

#endif
