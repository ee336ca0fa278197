/* SPDX-License-Identifier: MIT */
/* test_cache_soak.c: random work of four threads that share streams, under one rule, as that of test_random_order.c: no two
 * blocks overlap unless a happens-before edge lies between the free of the first and the allocation of the second.
 *
 * WEIR_TEST_SOAK=N makes it N times as long (0.1: a tenth), WEIR_TEST_SEED=N begins elsewhere.
 */
#include "tests/fixtures/caches.h"

enum { THREADS = 4, SHARED = 6, STREAMS = SHARED + THREADS, MOST = 100, MOST_FREED = 60000 };

/* A point on a stream: its place in the stream's order, and a time before which it is not over (as
 * other threads let time pass, it may be later). */
struct point {
    int stream;
    uint64_t life, sequence, end_ns;
};

struct freed {
    uintptr_t from, to;
    int count;
    struct point point[STREAMS]; /* the free and the uses: all must lie behind the next owner */
};

struct held {
    uintptr_t at;
    size_t bytes;
    int stream;
};

/* The streams behind SHARED are one thread's each, which ends and makes them again. */
static struct world {
    weir_allocator *a;
    pthread_mutex_t lock; /* guards what follows, and the submission of work */
    CUstream stream[STREAMS];
    uint64_t life[STREAMS], sequence[STREAMS], end_ns[STREAMS];
    uint64_t knows[STREAMS][STREAMS]; /* [s][t]: s is ordered behind t up to here */
    struct held held[THREADS][MOST];
    int count[THREADS];
    struct freed freed[MOST_FREED];
    int freed_count;
    uint64_t seed;
    int steps;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct worker {
    int number;
    uint64_t random;
};

static uint64_t dice(struct worker *w, uint64_t sides) {
    return next_random(&w->random) % sides;
}

static int a_stream(struct worker *w) {
    int s = (int)dice(w, SHARED + 1);

    return s < SHARED ? s : SHARED + w->number;
}

static void work(struct worker *w, int s) {
    uint64_t ns = dice(w, 20) == 0 ? 3 * MS : dice(w, 200000), now = weir__model_now_ns();

    busy(world.stream[s], ns);
    world.sequence[s]++;
    world.end_ns[s] = (world.end_ns[s] > now ? world.end_ns[s] : now) + ns;
}

/* s waits for all of t so far. */
static void follow(int s, int t) {
    if (s == t)
        return;
    order(world.stream[s], world.stream[t]);
    world.knows[t][t] = world.sequence[t];
    for (int i = 0; i < STREAMS; i++)
        if (world.knows[s][i] < world.knows[t][i])
            world.knows[s][i] = world.knows[t][i];
    if (world.end_ns[s] < world.end_ns[t])
        world.end_ns[s] = world.end_ns[t];
    world.sequence[s]++;
}

static int is_behind(int s, const struct point *p, uint64_t now) {
    return (p->stream == s && p->life == world.life[s]) ||
           world.knows[s][p->stream] >= p->sequence || p->end_ns <= now;
}

static void expect_nobody_there(uintptr_t from, uintptr_t to, int s) {
    uint64_t now = weir__model_now_ns();

    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < world.count[t]; i++)
            if (from < world.held[t][i].at + world.held[t][i].bytes && world.held[t][i].at < to)
                ck_abort_msg("seed %llu: a live block is handed out again",
                             (unsigned long long)world.seed);
    for (int i = 0; i < world.freed_count; i++) {
        struct freed *f = &world.freed[i];
        uint64_t last = 0;

        for (int k = 0; k < f->count; k++) {
            if (from < f->to && f->from < to && !is_behind(s, &f->point[k], now))
                ck_abort_msg("seed %llu: stream %d gets memory that stream %d still uses",
                             (unsigned long long)world.seed, s, f->point[k].stream);
            if (last < f->point[k].end_ns)
                last = f->point[k].end_ns;
        }
        if (last <= now)
            *f = world.freed[--world.freed_count], i--;
    }
}

/* The pattern of a block, on its edges. */
enum { EDGE = 256 };

static void fill(const struct held *h) {
    size_t edge = h->bytes < EDGE ? h->bytes : EDGE;

    CU(driver->cuMemsetD8Async(h->at, (unsigned char)(h->at >> 9), edge, world.stream[h->stream]));
    CU(driver->cuMemsetD8Async(h->at + h->bytes - edge, (unsigned char)(h->at >> 9), edge,
                               world.stream[h->stream]));
}

static void expect_filled(const struct held *h) {
    size_t edge = h->bytes < EDGE ? h->bytes : EDGE;
    unsigned char copy[2 * EDGE];

    CU(driver->cuMemcpyDtoHAsync(copy, h->at, edge, world.stream[h->stream]));
    CU(driver->cuMemcpyDtoHAsync(copy + edge, h->at + h->bytes - edge, edge,
                                 world.stream[h->stream]));
    for (size_t i = 0; i < 2 * edge; i++)
        if (copy[i] != (unsigned char)(h->at >> 9))
            ck_abort_msg("seed %llu: a block was written to by another",
                         (unsigned long long)world.seed);
}

static void take_random(struct worker *w) {
    struct held h = {.bytes = random_size(&w->random, 4 * MIB), .stream = a_stream(w)};
    void *block;

    if (weir_alloc(a, h.bytes, world.stream[h.stream], &block) != WEIR_OK)
        return; /* a limit, and others busy */
    h.at = (uintptr_t)block;
    pthread_mutex_lock(&world.lock);
    expect_nobody_there(h.at, h.at + h.bytes, h.stream);
    world.held[w->number][world.count[w->number]++] = h;
    fill(&h);
    if (dice(w, 2))
        work(w, h.stream);
    pthread_mutex_unlock(&world.lock);
}

static void give_one(struct worker *w, int which) {
    struct held *mine = world.held[w->number];
    int used[STREAMS] = {0};
    pthread_mutex_lock(&world.lock);
    struct held h = mine[which];
    expect_filled(&h);
    int on = h.stream;
    for (uint64_t uses = dice(w, 8); uses > 5; uses--) {
        int t = (int)dice(w, SHARED);

        follow(t, h.stream);
        OK(weir_use(a, (void *)h.at, world.stream[t]));
        used[t] = 1;
        work(w, t);
    }
    if (dice(w, 5) == 0) {
        on = a_stream(w);
        follow(on, h.stream);
    }
    if (dice(w, 2))
        work(w, on);
    world.sequence[on]++;
    used[on] = 1;
    MUST(world.freed_count < MOST_FREED);
    struct freed *f = &world.freed[world.freed_count++];
    *f = (struct freed){.from = h.at, .to = h.at + h.bytes};
    for (int t = 0; t < STREAMS; t++)
        if (used[t])
            f->point[f->count++] =
                (struct point){t, world.life[t], world.sequence[t], world.end_ns[t]};
    mine[which] = mine[--world.count[w->number]];
    pthread_mutex_unlock(&world.lock);
    give((void *)h.at, world.stream[on]);
}

/* The thread's own stream ends, with its work still running, and another begins. */
static void renew_stream(struct worker *w) {
    int s = SHARED + w->number;

    for (int i = world.count[w->number]; i-- > 0;)
        if (world.held[w->number][i].stream == s)
            give_one(w, i);
    pthread_mutex_lock(&world.lock);
    CU(driver->cuStreamDestroy(world.stream[s]));
    world.stream[s] = make_stream();
    world.life[s]++;
    world.sequence[s]++;
    world.end_ns[s] = 0;
    memset(world.knows[s], 0, sizeof world.knows[s]);
    pthread_mutex_unlock(&world.lock);
}

static void *live(void *arg) {
    struct worker *w = arg;

    CU(driver->cuCtxPushCurrent(primary));
    for (int i = 0; i < world.steps; i++) {
        uint64_t what = dice(w, 1000);
        int count = world.count[w->number];

        if (count == 0 || (count < MOST && what < 520))
            take_random(w);
        else if (what < 980)
            give_one(w, (int)dice(w, (uint64_t)count));
        else if (what < 986)
            weir__model_advance(dice(w, 5 * MS));
        else if (what < 990)
            renew_stream(w);
        else if (what < 992)
            OK(weir_trim(a, dice(w, 64) * MIB, NULL));
        else if (what < 996)
            CU(driver->cuStreamSynchronize(world.stream[dice(w, SHARED)]));
    }
    while (world.count[w->number] > 0)
        give_one(w, 0);
    return NULL;
}

static double number_from(const char *variable) {
    const char *text = getenv(variable);

    return text ? strtod(text, NULL) : 1;
}

static const struct {
    int kind;
    size_t limit;
    int caches_off, bound;
} worlds[] = {
    {KIND_POOL, 0, 0, 0},    {KIND_POOL, 640 * MIB, 0, 0}, {KIND_FIXED, 256 * MIB, 0, 0},
    {KIND_REGIONS, 0, 0, 0}, {KIND_POOL, 0, 0, 1},         {KIND_REGIONS, 0, 1, 0},
};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

CASE("soak", 300, start_device, end_if_there);

TEST_EACH(WORLDS, no_two_owners_without_an_order) {
    weir_options options = options_of(worlds[_i].kind, "model", worlds[_i].limit);
    struct worker worker[THREADS];
    pthread_t thread[THREADS];

    if (worlds[_i].limit)
        options.limit = bytes_amount(worlds[_i].limit);
    if (worlds[_i].caches_off)
        options.cache = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = 5;
    world.seed = (uint64_t)number_from("WEIR_TEST_SEED") + (uint64_t)_i;
    world.steps = (int)(5000 * number_from("WEIR_TEST_SOAK"));
    make_with(&options);
    for (int s = 0; s < STREAMS; s++)
        world.stream[s] = make_stream();
    for (int s = 0; worlds[_i].bound && s < SHARED; s++)
        OK(weir_bind(a, world.stream[s]));
    for (int t = 0; t < THREADS; t++) {
        worker[t] = (struct worker){t, (world.seed * THREADS + (uint64_t)t + 1) *
                                           UINT64_C(0x9e3779b97f4a7c15)};
        MUST(pthread_create(&thread[t], NULL, live, &worker[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++)
        MUST(pthread_join(thread[t], NULL) == 0);
    for (int s = 0; worlds[_i].bound && s < SHARED; s++)
        OK(weir_unbind(a, world.stream[s]));
    for (int s = 0; s < STREAMS; s++)
        CU(driver->cuStreamDestroy(world.stream[s]));
}

SUITE("cache soak", CK_FORK_GETENV);
