/* SPDX-License-Identifier: MIT */
/* block_engine.h: the interface between the block engine and its backings.
 *
 * The block engine cuts blocks from memory and keeps stream order (stream_suballoc.h).  A backing takes the memory from
 * the device and gives it back.
 *
 * This file must not know settings' names or the layers above.
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
struct weir_mapped_range;

enum { WEIR_BLOCKS_FORESEEN = 2 };

/* A block engine. */
struct weir_block_engine {
    struct weir_engine e;
    const struct weir_backing *backing;
    struct weir_mapped_range *range; /* the range of backing_mapped.c (mapped_state.h) */
    struct weir_nodes nodes;         /* the memory nodes of graphs */
    struct weir_lock lock;           /* guards all fields below, and the backing's own fields */
    struct weir_suballoc blocks;
    struct weir_growth_cursor cursor;
    /* Bytes that the driver did not take back, or that are being mapped: reserved memory that lies in no region. */
    uint64_t kept;
    uint64_t reserved_peak;
};

/* The functions of a backing.  All but open and close are called under the engine's lock; `place`, `await`, `grow`,
 * `shrink` and `allow` may release it for a while.  A function may be NULL only if its comment says so. */
struct weir_backing {
    struct weir_suballoc_rule rule;
    size_t granularity; /* the unit of the memory that the backing takes */
    size_t step_bytes;  /* the engine's step_bytes */
    unsigned traits;    /* the engine's traits */
    weir_status (*open)(struct weir_block_engine *a, const struct weir_engine *setup);
    void (*close)(struct weir_block_engine *a);

    /* ---- a request */

    /* Waits for memory that another thread is bringing, after a request did not fit.  Returns 1 if the request may fit
     * now, else 0.  `r` is NULL before growth.  NULL: returns 0. */
    int (*await)(struct weir_block_engine *a, const struct weir_request *r);
    /* Makes room for a request that does not fit.  `reserve` is the reserved memory before the call. */
    weir_status (*make_room)(struct weir_block_engine *a, struct weir_request *r, uint64_t reserve);
    /* Places a request that names an address; its size is a multiple of a page.  NULL: there are no such requests. */
    weir_status (*place)(struct weir_block_engine *a, struct weir_request *r,
                         struct weir_placement_block *out);

    /* ---- memory */

    /* Grows until `reserve` bytes are reserved.  *got, 0 before the call, gets the bytes added.  Returns OK if all were
     * added, even if another thread has given some back since.  `goal` and `cause` are those of an engine's `grow`. */
    weir_status (*grow)(struct weir_block_engine *a, uint64_t reserve, uint64_t goal, int cause,
                        size_t *got);
    /* Gives idle memory back until at most `keep` bytes are left, and waits for the device if necessary. */
    weir_status (*shrink)(struct weir_block_engine *a, struct weir_trim *trim);
    /* Gives back idle memory that is observed to be complete, for AT_ONCE and DONE; never waits. */
    weir_status (*shed)(struct weir_block_engine *a, struct weir_trim *trim);
    /* Changes a device's access, with the results of an engine's `allow`.  NULL: returns E_NOT_SUPPORTED. */
    weir_status (*allow)(struct weir_block_engine *a, const CUmemAccessDesc *access);

    /* ---- what there is */

    /* Lists up to WEIR_BLOCKS_FORESEEN ranges in which memory will lie first.  NULL: no range is known. */
    size_t (*foresee)(const struct weir_block_engine *a, struct weir_extent *out);
    /* Shows the pieces that go back to the device as a whole, as an engine's visit of WHOLES.  NULL: shows the
     * regions. */
    int (*wholes)(struct weir_block_engine *a, const struct weir_visit *visit);
    /* Returns the bytes of the largest request that `make_room` would surely serve, now or after OOM recovery. */
    size_t (*largest)(struct weir_block_engine *a, const struct weir_survey *asked);
    /* Adds figures to an engine's survey.  NULL: adds none. */
    void (*survey)(struct weir_block_engine *a, struct weir_survey *out);
};

extern const struct weir_backing weir__backing_regions;
extern const struct weir_backing weir__backing_mapped;

static inline uint64_t weir__blocks_reserve(const struct weir_block_engine *a) {
    return a->blocks.total + a->kept;
}

/* Returns the bytes by which reserved memory may still grow. */
static inline size_t weir__blocks_room(const struct weir_block_engine *a) {
    return (size_t)weir__size_less(
        weir__size_smaller(weir__engine_limit(&a->e), a->e.device->total), weir__blocks_reserve(a));
}

/* Returns the limit that a growth policy gets.  A callback of the program gets SIZE_MAX if there is no limit. */
static inline size_t weir__blocks_growth_limit(const struct weir_block_engine *a) {
    return weir__engine_limit(&a->e) == UINT64_MAX && a->e.options->growth == WEIR_GROWTH_CALLBACK
               ? SIZE_MAX
               : (size_t)a->blocks.total + weir__blocks_room(a);
}

/* Returns the status of a request for which the limit or the device has no memory. */
static inline weir_status weir__blocks_are_full(const struct weir_block_engine *a) {
    return weir__without_driver(weir__engine_limit(&a->e) < a->e.device->total ? WEIR_E_LIMIT
                                                                               : WEIR_E_NO_MEMORY);
}

/* Returns the status of a placement's result. */
static inline weir_status weir__blocks_placed(int placed) {
    if (placed == WEIR_PLACEMENT_OK)
        return WEIR_OK;
    return weir__without_driver(placed == WEIR_PLACEMENT_NO_MEMORY ? WEIR_E_HOST_MEMORY
                                                                   : WEIR_E_NO_MEMORY);
}

/* Updates the peak of reserved memory after growth. */
static inline void weir__blocks_grown(struct weir_block_engine *a) {
    a->reserved_peak = weir__size_larger(a->reserved_peak, weir__blocks_reserve(a));
}

#endif
