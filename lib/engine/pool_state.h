/* SPDX-License-Identifier: MIT */
/* pool_state.h: a private CUDA memory pool, as the files of the engine see it.
 *
 * What: pool.c serves requests; pool_grow.c raises the pool's reserved memory; pool_trim.c gives it back; pool_figures.c
 * tells what is there.
 *
 * Locks: `growing` is held while reserved memory is raised, trimmed or unwound; the books' lock and `sizing` are taken
 * under it, and a growth callback runs there.  The hit path takes no lock, but `growing` by a try where the release
 * threshold is finite.
 *
 * Must not know: other engines, settings' names, how a trace or a cache uses it.
 */
#ifndef WEIR_POOL_STATE_H
#define WEIR_POOL_STATE_H

#include "engine/engine.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/bounds.h"
#include "base/size.h"
#include "config/growth_policy.h"
#include "engine/driver_blocks.h"

#define UNIT WEIR_POOL_UNIT

enum {
    WEIR_POOL_PROBES = 512,
    WEIR_POOL_EXTENTS = 16,
    WEIR_POOL_STEADY =
        4096 /* without growth, after which the next ones are no longer timed: see is_steady() */
};

struct weir_pool_engine {
    struct weir_engine e;
    CUstream grow_stream; /* runs nothing: what is freed there is free for all at once */
    uint64_t told;        /* of the limit to the driver, in whole units; UINT64_MAX: nothing */
    /* The least that it was as a request began that the driver refused; UINT64_MAX: none was, since the last unwind. */
    _Atomic uint64_t unwind_to;
    int has_figures; /* the driver tells RESERVED and USED */
    /* What the reserved memory may rise to: the limit, or what it was when that was seen, as long as it has not fallen.
     * Written under `growing`, as is the limit that it was made of. */
    _Atomic uint64_t ceiling, limit_seen;
    uint64_t threshold; /* the pool's; raised under `growing` */
    int shrinks; /* a synchronisation may lower the reserved memory: the threshold is finite */
    _Atomic uint32_t quiet;              /* requests since the last growth, up to STEADY_REQUESTS */
    _Atomic uint64_t unit_ns;            /* what growth by a unit took when it was timed last */
    _Atomic uint64_t used, reserved_peak; /* as last seen by pool_figures */
    _Atomic uint64_t used_peak;          /* the most that was seen, probe blocks left out */
    pthread_mutex_t growing;
    struct weir_growth_cursor cursor; /* guarded by `growing` */
    /* Likewise.  Between steps: blocks that nobody has, and that the driver did not take back yet. */
    CUdeviceptr probes[WEIR_POOL_PROBES];
    /* Where those of the last preallocation lay, which took all that was idle too. */
    struct weir_extent preallocated[WEIR_POOL_EXTENTS];
    size_t preallocated_count;
    int is_preallocating;         /* the step under way is a preallocation */
    _Atomic uint32_t probe_count; /* also read without the lock */
    _Atomic uint64_t probing;     /* bytes in probe blocks, before they are asked for */
    _Atomic uint32_t raises;      /* times that there were any */
    _Atomic int peak_has_probes;  /* the driver's own peak counts them, and tells nothing */
    int undone;                   /* one of them lies behind work of another stream */

    struct weir_async async; /* how blocks are freed */

    pthread_mutex_t sizing; /* without figures only: guards what follows */
    struct weir_map sizes;  /* address -> bytes */
    uint64_t in_use;
    uint64_t in_use_peak;
};

/* ---- limits ---- */

static inline uint64_t limit_of(const struct weir_pool_engine *p) {
    return weir__engine_limit(&p->e);
}

/* There is a limit that the driver does not know. */
static inline int exceeds(const struct weir_pool_engine *p) {
    return limit_of(p) < p->told;
}

static inline uint64_t ceiling_of(const struct weir_pool_engine *p) {
    return atomic_load_explicit(&p->ceiling, memory_order_relaxed);
}

/* What the reserved memory may rise to, of the limit as it is now.  The caller holds `growing`. */
void weir__pool_set_ceiling(struct weir_pool_engine *p, uint64_t reserve);
/* The reserved memory is so much now, seen under `growing`. */
void weir__pool_lower_ceiling(struct weir_pool_engine *p, uint64_t reserve);

/* ---- what the driver tells: pool_figures.c ---- */

/* In relaxed mode: otherwise the question breaks a capture of this thread, or a global one (H200, driver
 * 580). */
static inline CUresult ask(const struct weir_pool_engine *p, CUmemPool_attribute which,
                           uint64_t *value) {
    const struct weir_driver *driver = p->e.device->driver;
    struct weir_driver_scope scope;
    CUresult result = weir__driver_relax(driver, &scope);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuMemPoolGetAttribute(p->e.driver_pool, which, value);
    weir__driver_unrelax(driver, &scope);
    return result;
}

/* The figure, or `last` if the driver does not tell it (any more). */
static inline uint64_t attribute(const struct weir_pool_engine *p, CUmemPool_attribute which,
                                 uint64_t last) {
    uint64_t value = last;

    return ask(p, which, &value) == CUDA_SUCCESS ? value : last;
}

/* Bytes taken from the device now. */
uint64_t weir__pool_read_reserve(struct weir_pool_engine *p);
/* Bytes in blocks now. */
uint64_t weir__pool_read_in_use(struct weir_pool_engine *p);
CUresult weir__pool_set_attribute(struct weir_pool_engine *p, CUmemPool_attribute which,
                                  void *value);
/* Takes the driver's own peak of what is in use into ours, before a block that is nobody's may raise it;
 * unless one has. */
void weir__pool_note_used_peak(struct weir_pool_engine *p);
/* Has the driver's peak begin again, if it has probe blocks in it that are gone.  The caller holds `growing`. */
void weir__pool_renew_peak(struct weir_pool_engine *p);
/* Without figures: notes the block's size. */
int weir__pool_keep_size(struct weir_pool_engine *p, CUdeviceptr block, size_t bytes);
/* Without figures: forgets the block's size, which is written to *bytes; 0 if it is not ours. */
int weir__pool_take_size(struct weir_pool_engine *p, CUdeviceptr block, size_t *bytes);
void weir__pool_figures(struct weir_engine *e, weir_statistics *out);

/* ---- growth: pool_grow.c ---- */

/* Gives the probe blocks back, and has the driver's peak begin again without them.  What the driver refuses
 * stays, for the next time; and all of them if one lies behind work that cannot be waited for.  The caller
 * holds `growing` and is in the driver's scope. */
void weir__pool_drop_probes(struct weir_pool_engine *p);
/* drop_probes, for callers that are not growing.  In steady state there are none. */
void weir__pool_drop_left_probes(struct weir_pool_engine *p);
/* Has the next trim see what is done, up to `most` bytes, or until the driver grows, since no unit is.  The caller
 * holds `growing`, is in the driver's scope, and has figures. */
void weir__pool_let_trim_see(struct weir_pool_engine *p, uint64_t most);
/* The reserved memory is not what it was.  Risen: a growth, which the caller waited for from `started`
 * on (0: not timed); returns 1.  Fallen: a synchronisation let memory go back. */
int weir__pool_reserve_moved(struct weir_pool_engine *p, size_t request, uint64_t started);
weir_status weir__pool_grow(struct weir_engine *e, uint64_t target, uint64_t goal, int cause);

/* ---- what goes back: pool_trim.c ---- */

/* Gives back what the driver took for a request that it then refused (H200, driver 580): what is above `most`. */
void weir__pool_undo_growth(struct weir_pool_engine *p, uint64_t most);
/* What it took may have been taken for the growth of another request meanwhile. */
void weir__pool_note_refused(struct weir_pool_engine *p, uint64_t reserve);
/* No work of the program's is waited for in any mode; nothing has to be recorded. */
weir_status weir__pool_trim(struct weir_engine *e, struct weir_trim *trim);

#endif
