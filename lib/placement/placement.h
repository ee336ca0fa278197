/* SPDX-License-Identifier: MIT */
/* placement.h: where in a set of address ranges a block goes.
 *
 * Address-ordered spans with exact best fit, splitting and coalescing.  Pure bookkeeping over
 * numbers: no driver, no lock (the caller holds one), no memory behind the addresses.  Of streams
 * it knows only the opaque tag (stream, sequence) that a freed span carries.
 *
 * Glossary
 *   region     one contiguous range that was added; spans never cross its ends
 *   chunk      a piece of a region: a live block, a free span or an unmapped range; chunks tile their region
 *   unmapped range       a piece that has no memory behind it now: nothing is placed there
 *   tag        (stream, sequence) of a free: the span may be used by `stream` at once, by others
 *              only after that stream was observed past `sequence`
 *   clean      a free span whose last use everybody may follow: never used, or observed
 *
 * Rules
 *   Fit.       The smallest free chunk that holds the rounded size, the lowest address among equals,
 *              among the chunks that the stream may use (its own and the clean ones; with `own_first` a
 *              clean one only if none of its own fits).  This is the order of TensorFlow's BFC allocator:
 *              bins of doubling size, each ordered by (size, address).
 *   Split.     The chunk is cut when it is at least twice the rounded size, or when at least
 *              `split_waste` bytes would be wasted; otherwise the block gets all of it.
 *   Coalesce.  A freed chunk joins a free neighbour of its region at once if both carry the same
 *              stream or both are clean.
 *   One stream.  Until a second stream is seen, tags restrict nothing: free chunks join whatever
 *              their tag, so that the placement is BFC's to the byte.  When the second stream shows
 *              up, free space below the highest address ever handed out of a region carries the
 *              first stream's tag (unless observed), and the space above is clean.
 *   Stream 0   is "not known": its frees serve no stream until observed, and it is served from
 *              clean chunks alone.
 *   Sequence.  From 1; 0 counts as 1.  A free with a sequence that its stream was already observed
 *              past is clean at once; one that comes late counts as the stream's latest.
 *
 * Cost: every operation is O(log n) in the number of chunks, amortised over growth of the tables;
 * host memory is proportional to the number of chunks, never to the size of the regions.  Linear
 * are: the answers INTERIOR and FREE (in the chunks of the region), adding, removing, withdrawing and
 * finding regions (in the regions), the largest free chunk (in the streams), once the coming of the
 * second stream, and the call after a failure of host memory.
 */
#ifndef WEIR_PLACEMENT_H
#define WEIR_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

struct weir_placement; /* opaque; owned by the caller, who also owns the lock */

struct weir_placement_rule {
    size_t granularity; /* power of two, sizes and bases are multiples of it; 256 for BFC */
    size_t split_waste; /* bytes, not 0; BFC: 128 MiB; equal to granularity: always split */
    int own_first;      /* nonzero: a stream takes clean memory only if none of its own fits */
    /* Allocates the bookkeeping's memory, so that a test can make it fail.  Works as realloc, but frees and returns
     * NULL if bytes is 0.  NULL: realloc and free. */
    void *(*resize)(void *context, void *memory, size_t bytes);
    void *context; /* handed to resize */
};

enum weir_placement_result {
    WEIR_PLACEMENT_OK = 0,
    WEIR_PLACEMENT_NO_FIT,    /* no free chunk that this stream may use is large enough */
    WEIR_PLACEMENT_NO_MEMORY, /* host memory ran out; nothing changed */
    WEIR_PLACEMENT_FOREIGN,   /* the address lies in no region */
    WEIR_PLACEMENT_INTERIOR,  /* the address lies inside a live block, not at its start */
    WEIR_PLACEMENT_FREE,      /* the address lies in a free chunk: a double free */
    WEIR_PLACEMENT_BUSY,      /* the region still holds live blocks, or spans not yet observed */
    WEIR_PLACEMENT_INVALID /* not a multiple of the granularity, zero, overflow, or overlapping */
};

struct weir_placement_block {
    uint64_t address;
    size_t requested; /* bytes the caller asked for */
    size_t size;      /* bytes the block occupies, a multiple of the granularity */
};

struct weir_placement_figures {
    size_t regions;
    size_t total;     /* bytes in all regions, without unmapped ranges */
    size_t used;      /* bytes in live blocks, as occupied */
    size_t requested; /* bytes in live blocks, as asked */
    size_t blocks;    /* live blocks */
    size_t free_chunks;
    size_t largest_free; /* bytes of the largest free chunk, of any stream */
    size_t
        unobserved; /* free bytes with a tag, which do not serve every stream; with one stream: the free bytes below the high marks, or 0 if all frees were observed */
    size_t extent;  /* sum over regions of (highest address ever handed out, or filled - base) */
    size_t host_bytes; /* memory this bookkeeping takes on the host */
};

struct weir_placement_span { /* one chunk, as weir__placement_walk shows it */
    uint64_t address;
    size_t size;
    size_t requested; /* the requested bytes of a live block, or 0 */
    int live;         /* set for a live block */
    int unmapped;     /* set for an unmapped range */
    uint64_t stream;  /* tag of a free chunk; 0 with sequence 0: clean */
    uint64_t sequence;
};

/* Lets a stream use memory before its frees were observed, behind a wait for the streams that freed it. */
struct weir_placement_waits {
    /* Returns 1 if a stream can wait for that stream's free with that sequence. */
    int (*may)(void *context, uint64_t stream, uint64_t sequence);
    /* Waits for that free.  Returns 0 if the wait failed. */
    int (*wait)(void *context, uint64_t stream, uint64_t sequence);
    void *context;
};

/* All functions: not thread-safe (the caller's lock guards one placement), never block. */

/* Makes an empty placement.  OK, INVALID (rule) or NO_MEMORY; *out only on OK. */
int weir__placement_create(const struct weir_placement_rule *rule, struct weir_placement **out);
void weir__placement_destroy(
    struct weir_placement *p); /* NULL is fine; live blocks are forgotten */

/* Adds the region [base, base + bytes): one clean free chunk. OK, INVALID or NO_MEMORY. */
int weir__placement_add(struct weir_placement *p, uint64_t base, size_t bytes);
/* Adds a region that only `stream` may use at once, as one chunk that it has freed with `sequence`. */
int weir__placement_add_freed(struct weir_placement *p, uint64_t base, size_t bytes,
                              uint64_t stream, uint64_t sequence);
/* Takes away the region that starts at base, wholly free and wholly clean. OK, BUSY or FOREIGN;
 * never for want of memory, now or before. */
int weir__placement_remove(struct weir_placement *p, uint64_t base);
/* Removes a region for `stream`, which will use its memory.  The region is free, and each chunk is clean or has the
 * stream's tag. Returns OK, BUSY or FOREIGN. */
int weir__placement_withdraw(struct weir_placement *p, uint64_t base, uint64_t stream);

/* Adds the chunks to the sets of free chunks that a lack of host memory kept out, so that `punch` finds them.
 * Returns 1 on success, 0 if memory still lacks. */
int weir__placement_settle(struct weir_placement *p);
/* Adds a region that is all unmapped range. OK, INVALID or NO_MEMORY. */
int weir__placement_add_unmapped(struct weir_placement *p, uint64_t base, size_t bytes);
/* [address, address + bytes), of the unmapped range that starts at `within`, has memory from here on: `stream`
 * freed it with `sequence`; sequence 0: it is clean, whatever the stream. OK, INVALID or NO_MEMORY. */
int weir__placement_fill(struct weir_placement *p, uint64_t within, uint64_t address, size_t bytes,
                         uint64_t stream, uint64_t sequence);
/* [address, address + bytes), of the free chunk that starts at `within`, is an unmapped range from here on.  OK; BUSY:
 * the chunk was not observed; INVALID (no clean chunk starts there that holds it) or NO_MEMORY. */
int weir__placement_punch(struct weir_placement *p, uint64_t within, uint64_t address,
                          size_t bytes);

/* [address, address + bytes), of free chunks side by side of which the first that it touches starts at
 * `within`, is an unmapped range from here on, whichever streams may use them.  OK, INVALID or NO_MEMORY. */
int weir__placement_hollow(struct weir_placement *p, uint64_t within, uint64_t address,
                           size_t bytes);

/* Allocates host memory for `chunks` chunks and touches it, so that later blocks need not.  Does nothing if there is
 * none. */
void weir__placement_stock(struct weir_placement *p, size_t chunks);
/* Places a block of at least `bytes` (> 0) that `stream` will use. OK, NO_FIT, NO_MEMORY, INVALID. */
int weir__placement_take(struct weir_placement *p, size_t bytes, uint64_t stream,
                         struct weir_placement_block *out);
/* Places a block as weir__placement_take does, but passes over a free chunk that is a whole region larger than `most`
 * bytes.  Linear in such chunks. */
int weir__placement_take_within(struct weir_placement *p, size_t bytes, uint64_t stream,
                                size_t most, struct weir_placement_block *out);
/* Places a block at that address, if a clean free chunk starts there and holds the block.  Returns NO_FIT otherwise. */
int weir__placement_take_at(struct weir_placement *p, uint64_t address, size_t bytes,
                            uint64_t stream, struct weir_placement_block *out);
/* Places a block for a stream behind waits for other streams, after a request that did not fit.  Searches runs of
 * adjacent free chunks that are clean, the stream's own or can be waited for, and takes one of the smallest runs that
 * fit.  Waits for all chunks in the block; the rest keeps its streams.  Linear in the chunks.  NO_FIT: no run fits,
 * or a wait failed. */
int weir__placement_take_behind(struct weir_placement *p, size_t bytes, uint64_t stream,
                                const struct weir_placement_waits *waits,
                                struct weir_placement_block *out);
/* Returns the bytes of the largest block that `stream`, whose last request was served or did not fit, could get now,
 * or 0. */
size_t weir__placement_largest(struct weir_placement *p, uint64_t stream);
/* Frees the live block at `address` on `stream` with `sequence` (rising per stream).  *out (may be NULL) gets the
 * block. Returns OK, FOREIGN, INTERIOR or FREE. */
int weir__placement_give(struct weir_placement *p, uint64_t address, uint64_t stream,
                         uint64_t sequence, struct weir_placement_block *out);
/* Keeps the frees of `stream` so far from coalescing with its later frees until they are observed, so that they do
 * not wait for the later frees.  Does nothing for a stream without frees. */
void weir__placement_part(struct weir_placement *p, uint64_t stream);
/* The live block at or around `address`. OK, FOREIGN, INTERIOR (*out is then the block around it),
 * FREE. */
int weir__placement_find(const struct weir_placement *p, uint64_t address,
                         struct weir_placement_block *out);
/* The host has observed `stream` past `sequence`: everything it freed up to there becomes clean and
 * coalesces. */
void weir__placement_observe(struct weir_placement *p, uint64_t stream, uint64_t sequence);

void weir__placement_figures(const struct weir_placement *p, struct weir_placement_figures *out);
/* Finds the unmapped range that ends the last region.  Returns 1 if there is one, 0 otherwise. */
int weir__placement_last_unmapped(const struct weir_placement *p, uint64_t *address, size_t *bytes);
/* Returns the bytes of the clean free chunk before that unmapped range, or 0 if there is none. */
size_t weir__placement_tail(struct weir_placement *p);
/* What `visit` answers. */
enum { WEIR_PLACEMENT_GO_ON, WEIR_PLACEMENT_STOP, WEIR_PLACEMENT_NEXT_REGION };
/* Calls visit for every chunk, regions by base, chunks by address, as far as it says. */
void weir__placement_walk(const struct weir_placement *p,
                          int (*visit)(void *context, const struct weir_placement_span *span),
                          void *context);
/* Calls visit for every free chunk, in no order: as often as there are such, however many blocks there are.  Not for
 * those that a lack of host memory keeps out of the sets (weir__placement_settle). */
void weir__placement_walk_free(struct weir_placement *p,
                               void (*visit)(void *context, const struct weir_placement_span *span),
                               void *context);
size_t weir__placement_unmapped_ranges(const struct weir_placement *p);

#endif
