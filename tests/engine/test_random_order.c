/* SPDX-License-Identifier: MIT */
/* test_random_order.c: random work on several streams, under one rule.
 *
 * It knows no address map and no policy: no two blocks overlap unless a happens-before edge (same stream, event wait, the
 * passing of time) lies between the free of the first, with all its uses, and the allocation of the second.
 */
#include "tests/fixtures/engines.h"

enum { STREAMS = 5, MOST = 120, MOST_FREED = 4000 };

/* A point on a stream: its place in the stream's order, and a time before which it is not over. */
struct point {
    int stream;
    uint64_t sequence, end_ns;
};

struct freed {
    uintptr_t from, to;
    int count;
    struct point point[STREAMS]; /* the free and the uses: all must lie behind the next owner */
};

struct world {
    weir_allocator *a;
    CUstream stream[STREAMS];
    uint64_t sequence[STREAMS], end_ns[STREAMS];
    uint64_t knows[STREAMS][STREAMS]; /* [s][t]: s is ordered behind t up to here */
    struct {
        uintptr_t at;
        size_t bytes;
        int stream;
    } held[MOST];
    int count;
    struct freed freed[MOST_FREED];
    int freed_count;
    uint64_t random;
};

static uint64_t dice(struct world *w, uint64_t sides) {
    return next_random(&w->random) % sides;
}

static void work(struct world *w, int s) {
    uint64_t ns = dice(w, 20) == 0 ? 3 * MS : dice(w, 200000), now = weir__model_now_ns();

    busy(w->stream[s], ns);
    w->sequence[s]++;
    w->end_ns[s] = (w->end_ns[s] > now ? w->end_ns[s] : now) + ns;
}

/* s waits for all of t so far. */
static void follow(struct world *w, int s, int t) {
    CUevent event;

    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventRecord(event, w->stream[t]));
    CU(driver->cuStreamWaitEvent(w->stream[s], event, 0));
    CU(driver->cuEventDestroy(event));
    w->knows[t][t] = w->sequence[t];
    for (int i = 0; i < STREAMS; i++)
        if (w->knows[s][i] < w->knows[t][i])
            w->knows[s][i] = w->knows[t][i];
    if (w->end_ns[s] < w->end_ns[t])
        w->end_ns[s] = w->end_ns[t];
    w->sequence[s]++;
}

static int is_behind(const struct world *w, int s, const struct point *p) {
    return p->stream == s || w->knows[s][p->stream] >= p->sequence ||
           p->end_ns <= weir__model_now_ns();
}

static void expect_nobody_there(struct world *w, uintptr_t from, uintptr_t to, int s) {
    for (int i = 0; i < w->count; i++)
        if (from < w->held[i].at + w->held[i].bytes && w->held[i].at < to)
            ck_abort_msg("a live block is handed out again");
    for (int i = 0; i < w->freed_count; i++) {
        struct freed *f = &w->freed[i];
        uint64_t last = 0;

        for (int k = 0; k < f->count; k++) {
            if (from < f->to && f->from < to && !is_behind(w, s, &f->point[k]))
                ck_abort_msg("stream %d gets memory that stream %d still uses", s,
                             f->point[k].stream);
            if (last < f->point[k].end_ns)
                last = f->point[k].end_ns;
        }
        if (last <= weir__model_now_ns())
            *f = w->freed[--w->freed_count], i--;
    }
}

static void take_random(struct world *w) {
    size_t bytes = random_size(&w->random, 4 * MIB);
    int s = (int)dice(w, STREAMS);
    void *block;

    if (weir_alloc(a, bytes, w->stream[s], &block) != WEIR_OK)
        return; /* a small fixed arena, and others busy */
    expect_nobody_there(w, (uintptr_t)block, (uintptr_t)block + bytes, s);
    w->held[w->count].at = (uintptr_t)block;
    w->held[w->count].bytes = bytes;
    w->held[w->count++].stream = s;
    work(w, s);
}

static void give_random(struct world *w) {
    int which = (int)dice(w, (uint64_t)w->count), s = w->held[which].stream;
    struct freed *f = &w->freed[w->freed_count];
    void *block = (void *)w->held[which].at;
    int used[STREAMS] = {0}, on = s;

    MUST(w->freed_count < MOST_FREED);
    for (uint64_t uses = dice(w, 6); uses > 3; uses--) {
        int t = (int)dice(w, STREAMS);

        follow(w, t, s);
        OK(weir_use(a, block, w->stream[t]));
        used[t] = 1;
        work(w, t);
    }
    if (dice(w, 6) == 0) {
        on = (int)dice(w, STREAMS);
        follow(w, on, s);
    }
    if (dice(w, 2))
        work(w, on);
    *f = (struct freed){.from = (uintptr_t)block, .to = (uintptr_t)block + w->held[which].bytes};
    used[on] = 1;
    for (int t = 0; t < STREAMS; t++)
        if (used[t])
            f->point[f->count++] = (struct point){t, w->sequence[t], w->end_ns[t]};
    w->freed_count++;
    w->held[which] = w->held[--w->count];
    give(block, w->stream[on]);
}

static void live_in(struct world *w, int steps) {
    for (int i = 0; i < steps; i++) {
        uint64_t what = dice(w, 1000);

        if (w->count == 0 || (w->count < MOST && what < 550))
            take_random(w);
        else if (what < 970)
            give_random(w);
        else if (what < 980)
            weir__model_advance(dice(w, 20 * MS));
        else if (what < 990)
            CU(driver->cuStreamSynchronize(w->stream[dice(w, STREAMS)]));
        else if (what < 996)
            OK(weir_trim(a, dice(w, 32) * MIB, NULL));
        else {
            int s = (int)dice(w, STREAMS), t = (int)dice(w, STREAMS);

            follow(w, s, t);
        }
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

CASE("alone", 120, open_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

TEST_EACH((WORLDS * SEEDS), no_two_owners_without_an_order) {
    struct world *w = calloc(1, sizeof *w);
    weir_options options = plain(worlds[_i % WORLDS].kind, worlds[_i % WORLDS].limit);

    w->random = (uint64_t)(_i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    options.recovery_timeout_ms = 5;
    make_with_on(older_driver(worlds[_i % WORLDS].without), &options);
    for (int s = 0; s < STREAMS; s++)
        CU(driver->cuStreamCreate(&w->stream[s], CU_STREAM_NON_BLOCKING));
    live_in(w, 20000);
    while (w->count > 0)
        give_random(w);
    CU(driver->cuCtxSynchronize());
    MUST_EQ(check_identities(a).in_use, 0);
    destroy();
    MUST_EQ(device_free(), 4 * GIB);
    free(w);
}

SUITE("random order", CK_FORK_GETENV);
