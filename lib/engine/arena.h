/* SPDX-License-Identifier: MIT */
/* arena.h: what the arena engine and what backs it share.
 *
 * The engine places blocks and keeps stream order (stream_suballoc.h); a backing takes memory from the device
 * and gives it back.
 *
 * Must not know: settings' names, who is above.
 */
#ifndef WEIR_ARENA_H
#define WEIR_ARENA_H

#include "base/lock.h"
#include "base/size.h"
#include "config/growth_policy.h"
#include "engine/engine.h"
#include "engine/graph_blocks.h"
#include "engine/stream_suballoc.h"

struct weir_arena_backing;

enum { WEIR_ARENA_FORESEEN = 2 };

struct weir_arena {
    struct weir_engine e;
    const struct weir_arena_backing *backing;
    void *range;             /* backing_mapped.c's own */
    struct weir_nodes nodes; /* what graphs have */
    struct weir_lock lock;   /* guards all that follows, and what the backing has */
    struct weir_suballoc blocks;
    struct weir_growth_cursor cursor;
    uint64_t
        kept; /* bytes that the driver did not take back, or that are coming: part of the reserve, and in no region */
    uint64_t reserve_peak;
};

/* What backs an arena; all but open and close are called under the lock.  `await`, `grow` and `allow` may give it for a
 * while. */
struct weir_arena_backing {
    struct weir_suballoc_rule rule;
    size_t granularity; /* of what it takes from the device */
    size_t step_bytes;  /* as an engine's, */
    unsigned traits;    /* likewise */
    weir_status (*open)(struct weir_arena *a);
    void (*close)(struct weir_arena *a);
    /* Makes room for a request that does not fit: with OK it does. */
    weir_status (*make_room)(struct weir_arena *a, struct weir_request *r);
    /* Waits for memory that is on its way, in another thread's `grow`; 0: there is none.  NULL: `grow` keeps the
     * lock. */
    int (*await)(struct weir_arena *a);
    /* Takes what a reserve of so many bytes lacks: *got, which was 0.  OK: all of it, though another thread may have
     * given some back meanwhile.  `goal` and `cause` as an engine's. */
    weir_status (*grow)(struct weir_arena *a, uint64_t reserve, uint64_t goal, int cause,
                        size_t *got);
    /* Gives idle memory back until at most `keep` bytes are left; all is observed that can be without
     * waiting. */
    weir_status (*shrink)(struct weir_arena *a, size_t keep);
    /* The same, of what is done as far as was observed, and without waiting.  NULL: it cannot, and is not
     * asked. */
    void (*shed)(struct weir_arena *a, size_t keep);
    /* As of an engine.  NULL: the memory cannot be opened. */
    weir_status (*allow)(struct weir_arena *a, const CUmemAccessDesc *access);
    /* Where memory will lie first: up to WEIR_ARENA_FORESEEN pieces.  NULL: nobody knows. */
    size_t (*foresee)(const struct weir_arena *a, struct weir_extent *out);
    /* As an engine's visit of WHOLES. */
    int (*wholes)(struct weir_arena *a, const struct weir_visit *visit);
    /* Bytes of the largest request that `make_room` would surely serve now, or after what the out-of-memory
     * ladder does, for the stream of that id; 0: none that is known. */
    size_t (*largest)(struct weir_arena *a, uint64_t id);
    /* As of an engine's survey; both are 0.  NULL: it cannot tell. */
    void (*pieces)(struct weir_arena *a, uint64_t *largest, uint64_t *last);
};

extern const struct weir_arena_backing weir__arena_regions;
extern const struct weir_arena_backing weir__arena_mapped;

static inline uint64_t weir__arena_reserve(const struct weir_arena *a) {
    return a->blocks.total + a->kept;
}

/* Bytes that may still be taken. */
static inline size_t weir__arena_room(const struct weir_arena *a) {
    return (size_t)weir__size_less(
        weir__size_smaller(weir__engine_limit(&a->e), a->e.device->total), weir__arena_reserve(a));
}

/* Why there is no room. */
static inline weir_status weir__arena_is_full(const struct weir_arena *a) {
    return weir__without_driver(weir__engine_limit(&a->e) < a->e.device->total ? WEIR_E_LIMIT
                                                                               : WEIR_E_NO_MEMORY);
}

/* Memory was added. */
static inline void weir__arena_grown(struct weir_arena *a) {
    a->reserve_peak = weir__size_larger(a->reserve_peak, weir__arena_reserve(a));
}

#endif
