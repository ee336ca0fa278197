/* SPDX-License-Identifier: MIT */
/* block_engine.h: what the block engine and its backings share.
 *
 * The block engine cuts blocks from memory and keeps stream order (stream_suballoc.h).  A backing takes the memory from
 * the device, or from another engine, and gives it back.
 *
 * Must not know: settings' names, who is above.
 */
#ifndef WEIR_BLOCK_ENGINE_H
#define WEIR_BLOCK_ENGINE_H

#include "base/lock.h"
#include "base/size.h"
#include "config/growth_policy.h"
#include "engine/engine.h"
#include "engine/graph_blocks.h"
#include "engine/stream_suballoc.h"

struct weir_backing;

enum { WEIR_BLOCKS_FORESEEN = 2 };

/* Begins what a backing of larger `size` has for itself. */
struct weir_block_engine {
    struct weir_engine e;
    const struct weir_backing *backing;
    struct weir_engine *inner; /* of backing_engine.c: the engine that regions come from; else NULL */
    void *range;             /* of backing_mapped.c: mapped_state.h */
    struct weir_nodes nodes; /* what graphs have */
    struct weir_lock lock;   /* guards all that follows, and what the backing has */
    struct weir_suballoc blocks;
    struct weir_growth_cursor cursor;
    uint64_t
        kept; /* bytes that the driver did not take back, or that are coming: part of the reserved memory, and in no region */
    uint64_t reserved_peak;
};

/* What backs a block engine.  All but open, close, `reserve`, `extents` and the two of `other` are called under the
 * lock; `await`, `grow`, `shrink` and `allow` may release it for a while.  What may be NULL says so. */
struct weir_backing {
    size_t size; /* of its engine; 0: struct weir_block_engine */
    struct weir_suballoc_rule rule;
    size_t granularity; /* of what it takes from the device */
    size_t least_limit; /* as an engine's, */
    size_t step_bytes;  /* likewise, */
    unsigned traits;    /* likewise */
    weir_status (*open)(struct weir_block_engine *a, const struct weir_engine *setup);
    void (*close)(struct weir_block_engine *a);

    /* ---- a request; first the optional ones, in their order */

    /* Before the request is placed, may make one region of idle ones, of kind BASE. */
    void (*prepare)(struct weir_block_engine *a, struct weir_request *r);
    /* Bytes of the largest idle region that the request may cut.  NULL: any. */
    size_t (*cuts)(const struct weir_block_engine *a, size_t bytes);
    /* The request did not fit.  1: it may now, in any region: memory that was on its way to another thread has come,
     * or the regions cannot be exchanged just now. */
    int (*await)(struct weir_block_engine *a, const struct weir_request *r);
    /* 1: `make_room` would serve the request without growth.  NULL: perhaps not. */
    int (*has_room)(const struct weir_block_engine *a, const struct weir_request *r,
                    uint64_t reserve);
    /* Makes room for a request that does not fit: with OK it does.  `reserve`: as it was before. */
    weir_status (*make_room)(struct weir_block_engine *a, struct weir_request *r, uint64_t reserve);
    /* Places a request that names an address, of whole pages.  NULL: there are none. */
    weir_status (*place)(struct weir_block_engine *a, struct weir_request *r,
                         struct weir_placement_block *out);
    /* The free of what lies in no region.  NULL: the driver's (graph_blocks.h). */
    weir_status (*free_other)(struct weir_block_engine *a, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses);
    /* In a call on the stream of that id, after a free: gives back what the release threshold does not keep.  May be
     * NULL. */
    void (*settle)(struct weir_block_engine *a, uint64_t id, weir_stream stream);

    /* ---- memory */

    /* Takes what a reserve of so many bytes lacks: *got, which was 0.  OK: all of it, though another thread may have
     * given some back meanwhile.  `goal` and `cause` as an engine's. */
    weir_status (*grow)(struct weir_block_engine *a, uint64_t reserve, uint64_t goal, int cause,
                        size_t *got);
    /* Gives idle memory back until at most `keep` bytes are left, and waits for the device where it must. */
    weir_status (*shrink)(struct weir_block_engine *a, struct weir_trim *trim);
    /* The same without waiting, for AT_ONCE and DONE: what is done as far as was observed.  NULL without SHEDS. */
    weir_status (*shed)(struct weir_block_engine *a, struct weir_trim *trim);
    /* As an engine's.  NULL: the memory cannot be opened. */
    weir_status (*allow)(struct weir_block_engine *a, const CUmemAccessDesc *access);

    /* ---- what there is */

    /* Where memory will lie first: up to WEIR_BLOCKS_FORESEEN pieces.  NULL: not known. */
    size_t (*foresee)(const struct weir_block_engine *a, struct weir_extent *out);
    /* As an engine's visit of WHOLES.  NULL: regions. */
    int (*wholes)(struct weir_block_engine *a, const struct weir_visit *visit);
    /* Bytes of the largest request that `make_room` would surely serve now, or after what OOM recovery does. */
    size_t (*largest)(struct weir_block_engine *a, const struct weir_survey *asked);
    /* Adds to an engine's survey.  May be NULL. */
    void (*survey)(struct weir_block_engine *a, struct weir_survey *out);
};

extern const struct weir_backing weir__backing_regions;
extern const struct weir_backing weir__backing_mapped;
extern const struct weir_backing weir__backing_engine;

static inline uint64_t weir__blocks_reserve(const struct weir_block_engine *a) {
    return a->inner ? weir__engine_reserve(a->inner) : a->blocks.total + a->kept;
}

/* Bytes that may still be taken. */
static inline size_t weir__blocks_room(const struct weir_block_engine *a) {
    return (size_t)weir__size_less(
        weir__size_smaller(weir__engine_limit(&a->e), a->e.device->total), weir__blocks_reserve(a));
}

/* A growth policy's limit: one of the program's own hears of no limit where there is none. */
static inline size_t weir__blocks_growth_limit(const struct weir_block_engine *a) {
    return weir__engine_limit(&a->e) == UINT64_MAX && a->e.options->growth == WEIR_GROWTH_CALLBACK
               ? SIZE_MAX
               : (size_t)a->blocks.total + weir__blocks_room(a);
}

/* Why there is no room. */
static inline weir_status weir__blocks_are_full(const struct weir_block_engine *a) {
    return weir__without_driver(weir__engine_limit(&a->e) < a->e.device->total ? WEIR_E_LIMIT
                                                                               : WEIR_E_NO_MEMORY);
}

/* Memory was added. */
static inline void weir__blocks_grown(struct weir_block_engine *a) {
    a->reserved_peak = weir__size_larger(a->reserved_peak, weir__blocks_reserve(a));
}

#endif
