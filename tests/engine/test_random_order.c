/* SPDX-License-Identifier: MIT */
/* test_random_order.c: random work on several streams, under the rule of oracle.h: no two blocks overlap unless a
 * happens-before edge lies between the free of the first block, with all its uses, and the allocation of the second.
 * Stream order, an event wait and the passing of time are such edges. */
#include "tests/fixtures/engines.h"

#define FAULT(...) ck_abort_msg(__VA_ARGS__)
#define ORACLE_STREAMS 5
#define ORACLE_BLOCKS 120
#define ORACLE_FREED 4000
#include "tests/fixtures/oracle.h"

struct world {
    CUstream stream[ORACLE_STREAMS];
    struct oracle oracle;
    uint64_t random;
};

static uint64_t draw_in_world(struct world *w, uint64_t sides) {
    return next_random(&w->random) % sides;
}

static int draw_stream(struct world *w) {
    return (int)draw_in_world(w, ORACLE_STREAMS);
}

static void add_work(struct world *w, int s) {
    uint64_t ns = draw_in_world(w, 20) == 0 ? 3 * MS : draw_in_world(w, 200000);

    oracle_work(&w->oracle, s, ns, weir__model_now_ns());
    busy(w->stream[s], ns);
}

/* Makes stream s wait for all work of t so far. */
static void follow_in_world(struct world *w, int s, int t) {
    order_streams(w->stream[s], w->stream[t]);
    oracle_follow(&w->oracle, s, t);
}

static void alloc_random(struct world *w) {
    size_t bytes = random_size(&w->random, 4 * MIB);
    int s = draw_stream(w);
    void *block;

    if (weir_alloc(a, bytes, w->stream[s], &block) != WEIR_OK)
        return; /* a small fixed arena, and others busy */
    (void)oracle_taken(&w->oracle, (uintptr_t)block, bytes, s, weir__model_now_ns());
    add_work(w, s);
}

static void give_random(struct world *w) {
    int which = (int)draw_in_world(w, (uint64_t)w->oracle.blocks);
    struct oracle_block *b = &w->oracle.block[which];
    void *block = (void *)(uintptr_t)b->at;
    int on = b->stream;

    for (uint64_t uses = draw_in_world(w, 6); uses > 3; uses--) {
        int t = draw_stream(w);

        follow_in_world(w, t, b->stream);
        OK(weir_use(a, block, w->stream[t]));
        b->users |= 1u << t;
        add_work(w, t);
    }
    if (draw_in_world(w, 6) == 0) {
        on = draw_stream(w);
        follow_in_world(w, on, b->stream);
    }
    if (draw_in_world(w, 2))
        add_work(w, on);
    oracle_given(&w->oracle, which, on, 0, weir__model_now_ns());
    OK(weir_free(a, block, w->stream[on]));
}

static void live_in(struct world *w, int steps) {
    for (int i = 0; i < steps; i++) {
        uint64_t what = draw_in_world(w, 1000);

        if (w->oracle.blocks == 0 || (w->oracle.blocks < ORACLE_BLOCKS && what < 550))
            alloc_random(w);
        else if (what < 970)
            give_random(w);
        else if (what < 980)
            weir__model_advance(draw_in_world(w, 20 * MS));
        else if (what < 990)
            CU(driver->cuStreamSynchronize(w->stream[draw_stream(w)]));
        else if (what < 996)
            OK(weir_trim(a, draw_in_world(w, 32) * MIB, NULL));
        else
            follow_in_world(w, draw_stream(w), draw_stream(w));
        check_identities(a);
    }
}

static const struct {
    int kind;
    size_t limit;
    unsigned without;
} worlds[] = {
    {KIND_POOL, 0, 0},
    {KIND_POOL, 64 * MIB, 0},
    {KIND_POOL, 0, WEIR_CAP_POOL_FIGURES | WEIR_CAP_POOL_MAX_SIZE | WEIR_CAP_STREAM_ID},
    {KIND_POOL, 64 * MIB, WEIR_CAP_POOL_MAX_SIZE},
    {KIND_FIXED, 32 * MIB, 0},
    {KIND_FIXED, 512 * MIB, 0},
    {KIND_FIXED, 64 * MIB, WEIR_CAP_STREAM_ID},
    {KIND_REGIONS, 0, 0},
    {KIND_REGIONS, 64 * MIB, 0},
    {KIND_REGIONS, 0, WEIR_CAP_STREAM_ID},
    {KIND_DIRECT, 0, 0},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0], SEEDS = 3 };

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

TEST_EACH((WORLDS * SEEDS), random_work_has_no_two_owners_without_an_order) {
    struct world *w = calloc(1, sizeof *w);

    w->random = (uint64_t)(_i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    make_engine_on(older_driver(worlds[_i % WORLDS].without), worlds[_i % WORLDS].kind,
                   worlds[_i % WORLDS].limit, "recovery-timeout=5ms");
    for (int s = 0; s < ORACLE_STREAMS; s++)
        CU(driver->cuStreamCreate(&w->stream[s], CU_STREAM_NON_BLOCKING));
    live_in(w, 20000);
    while (w->oracle.blocks > 0)
        give_random(w);
    CU(driver->cuCtxSynchronize());
    MUST_EQ(check_identities(a).in_use, 0);
    destroy();
    MUST_EQ(device_free(), 4 * GIB);
    free(w);
}

SUITE("random order", CK_FORK_GETENV);
