/* SPDX-License-Identifier: MIT */
/* measure_pools.c: what memory pools take: the first growth of a process, growth, trims, moves, and warm pairs.
 *
 * A pool grows here as in a program: from what it has, by one request after another, beside blocks that live.  Of
 * each call the reserved memory is looked at before and after: what did not do what it was to do counts for nothing.
 */
#include <stdlib.h>

#include "cli/measure/measure.h"

#define KIB ((uint64_t)1 << 10)
enum { MOST_BLOCKS = 10000 };

struct pools {
    struct measure *m;
    CUmemoryPool pool;
    uint64_t unit; /* bytes */
    CUdeviceptr blocks[MOST_BLOCKS];
    size_t count;
};

/* What the pool has; drivers before 11.3 do not tell. */
static int reserve_of(struct pools *p, uint64_t *bytes) {
    *bytes = 0;
    return !(p->m->driver->capabilities & WEIR_CAP_POOL_FIGURES) ||
           MEASURE_CALL(p->m, cuMemPoolGetAttribute, p->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                        bytes);
}

/* One block more; whether the reserved memory grew by so many units, in *did. */
static int take(struct pools *p, uint64_t bytes, uint64_t units, double *ns, int *did) {
    uint64_t before, after;

    if (!reserve_of(p, &before))
        return 0;
    measure_chill(p->m);
    if (!MEASURE_TIME(p->m, ns, cuMemAllocFromPoolAsync, &p->blocks[p->count], bytes, p->pool,
                      p->m->stream) ||
        !reserve_of(p, &after))
        return 0;
    p->count++;
    *did =
        after == before + units * p->unit || !(p->m->driver->capabilities & WEIR_CAP_POOL_FIGURES);
    return 1;
}

/* Gives all blocks back; what the pool had of them, it keeps. */
static int give_all(struct pools *p) {
    while (p->count > 0)
        if (!MEASURE_CALL(p->m, cuMemFreeAsync, p->blocks[--p->count], p->m->stream))
            return 0;
    return MEASURE_CALL(p->m, cuStreamSynchronize, p->m->stream);
}

static int make(struct pools *p, double *ns) {
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = p->m->device}};
    uint64_t keep = UINT64_MAX;

    return MEASURE_TIME(p->m, ns, cuMemPoolCreate, &p->pool, &properties) &&
           MEASURE_CALL(p->m, cuMemPoolSetAttribute, p->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                        &keep);
}

/* The first requests of the process, each of which grows by a unit; the first of them tells which. */
static int measure_early(struct pools *p) {
    struct series unit = {0};
    double ns;

    if (!make(p, &ns))
        return 0;
    for (uint64_t i = 0; i < MEASURE_EARLY && (i + 1) * p->unit <= p->m->budget; i++) {
        struct series early = {0};
        int did;

        if (!take(p, i ? p->unit : 64 * KIB, 1, &ns, &did))
            return 0;
        measure_add(&early, ns);
        measure_note_at(p->m, "early-grow", i + 1, &early);
        if (i == 0 && !reserve_of(p, &p->unit))
            return 0;
        measure_add(&unit, (double)p->unit);
        if (i == 0 && p->unit > 0)
            measure_note(p->m, "unit_bytes", &unit);
        else if (i == 0)
            p->unit = (uint64_t)32 << 20;
    }
    return give_all(p) && MEASURE_CALL(p->m, cuMemPoolTrimTo, p->pool, 0);
}

/* ---- Growth and trims ---- */

struct step {
    uint64_t units;
    struct series grow, trim;
};

static int grow_by(struct pools *p, struct step *step, uint64_t *units) {
    double ns;
    int did;

    if (!take(p, step->units * p->unit, step->units, &ns, &did))
        return 0;
    if (did)
        measure_add(&step->grow, ns);
    *units += step->units;
    return 1;
}

static int trim_by(struct pools *p, struct step *step, uint64_t *units) {
    uint64_t before, after;
    double ns;

    *units -= step->units;
    if (!reserve_of(p, &before))
        return 0;
    measure_chill(p->m);
    if (!MEASURE_TIME(p->m, &ns, cuMemPoolTrimTo, p->pool, *units * p->unit) ||
        !reserve_of(p, &after))
        return 0;
    if (before - after == step->units * p->unit ||
        !(p->m->driver->capabilities & WEIR_CAP_POOL_FIGURES))
        measure_add(&step->trim, ns);
    return 1;
}

/* Grows by each of the steps in turn, some rounds, and shrinks again so; those for which there is room. */
static int measure_steps(struct pools *p, struct step *steps, size_t count, int rounds) {
    uint64_t units = 0, sum = 0;

    for (size_t i = 0; i < count; i++) {
        if ((sum + steps[i].units) * (uint64_t)rounds * p->unit > p->m->budget)
            count = i;
        else
            sum += steps[i].units;
    }
    for (int round = 0; round < rounds; round++)
        for (size_t i = 0; i < count; i++)
            if (!grow_by(p, &steps[i], &units))
                return 0;
    if (!give_all(p))
        return 0;
    for (int round = 0; round < rounds; round++)
        for (size_t i = 0; i < count; i++)
            if (!trim_by(p, &steps[i], &units))
                return 0;
    for (size_t i = 0; i < count; i++) {
        measure_note_at(p->m, "pool_grow_ns", steps[i].units, &steps[i].grow);
        measure_note_at(p->m, "pool_trim_ns", steps[i].units, &steps[i].trim);
    }
    return 1;
}

static int measure_growth(struct pools *p) {
    enum { SMALL = 6, LARGE = 2 };
    struct step small[SMALL] = {{.units = 1}, {.units = 2},  {.units = 4},
                                {.units = 8}, {.units = 16}, {.units = 32}},
                large[LARGE] = {{.units = 128}, {.units = 512}};

    return measure_steps(p, small, SMALL, 4) && measure_steps(p, large, LARGE, 1);
}

/* ---- Moves ---- */

/* Blocks of a unit each, every other of which goes, for a request as large as what went. */
static int move(struct pools *p, uint64_t units, struct series *series) {
    const size_t first = p->count;
    double ns;
    int did;

    for (size_t i = 0; i < 2 * units; i++)
        if (!take(p, p->unit, 1, &ns, &did))
            return 0;
    for (size_t i = 0; i < units; i++) {
        CUdeviceptr block = p->blocks[first + 2 * i];

        if (!MEASURE_CALL(p->m, cuMemFreeAsync, block, p->m->stream))
            return 0;
        p->blocks[first + i] = p->blocks[first + 2 * i + 1];
    }
    p->count -= units;
    if (!MEASURE_CALL(p->m, cuStreamSynchronize, p->m->stream) ||
        !take(p, units * p->unit, 0, &ns, &did))
        return 0;
    if (did)
        measure_add(series, ns);
    return 1;
}

static int measure_moves(struct pools *p) {
    static const uint64_t units[] = {2, 8, 64};

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct series series = {0};

        for (int round = 0; round < 3 && 2 * units[i] * p->unit <= p->m->budget; round++)
            if (!move(p, units[i], &series) || !give_all(p) ||
                !MEASURE_CALL(p->m, cuMemPoolTrimTo, p->pool, 0))
                return 0;
        measure_note_at(p->m, "pool_move_ns", units[i], &series);
    }
    return 1;
}

/* ---- Pairs ---- */

/* 4 to 36 KiB in turn, without order. */
static uint64_t some_bytes(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return 4 * KIB + (*seed >> 33) % (32 * KIB);
}

/* Pairs beside so many live blocks, the pair's own counted; the allocation's part of them goes into *alloc. */
static int measure_pairs(struct pools *p, size_t live, struct series *alloc) {
    struct series pair = {0};
    uint64_t seed = live;

    alloc->count = 0;
    for (; p->count < live; p->count++)
        if (!MEASURE_CALL(p->m, cuMemAllocFromPoolAsync, &p->blocks[p->count],
                          live == 1 ? 64 * KIB : some_bytes(&seed), p->pool, p->m->stream))
            return 0;
    for (int i = 0; i < SERIES; i++) {
        const uint64_t bytes = live == 1 ? 64 * KIB : some_bytes(&seed);
        CUdeviceptr *block = &p->blocks[(seed >> 33) % live];
        double freed, took;

        if (!MEASURE_TIME(p->m, &freed, cuMemFreeAsync, *block, p->m->stream) ||
            !MEASURE_TIME(p->m, &took, cuMemAllocFromPoolAsync, block, bytes, p->pool,
                          p->m->stream))
            return 0;
        measure_add(&pair, freed + took);
        measure_add(alloc, took);
    }
    measure_note_at(p->m, "pool_pair_ns", live, &pair);
    return 1;
}

static int measure_warm(struct pools *p) {
    struct series alloc = {0};

    if (!measure_pairs(p, 1, &alloc))
        return 0;
    measure_note(p->m, "pool-alloc", &alloc);
    return measure_pairs(p, 100, &alloc) && measure_pairs(p, 1000, &alloc) &&
           measure_pairs(p, MOST_BLOCKS, &alloc) && give_all(p);
}

/* ---- All of it ---- */

/* Pools without anything, made and destroyed. */
static int measure_lives(struct pools *p) {
    struct series made = {0}, ended = {0};

    for (int i = 0; i < 8; i++) {
        double ns;

        if (!make(p, &ns))
            return 0;
        measure_add(&made, ns);
        if (!MEASURE_TIME(p->m, &ns, cuMemPoolDestroy, p->pool))
            return 0;
        measure_add(&ended, ns);
    }
    measure_note(p->m, "pool_create_ns", &made);
    measure_note(p->m, "pool_destroy_ns", &ended);
    return 1;
}

int measure_pools(struct measure *m) {
    static struct pools p; /* large */

    p.m = m;
    return measure_early(&p) && measure_growth(&p) && measure_moves(&p) && measure_warm(&p) &&
           MEASURE_CALL(m, cuMemPoolDestroy, p.pool) && measure_lives(&p);
}
