/* SPDX-License-Identifier: MIT */
/* test_cache_soak.c: random work of four threads that share streams, under the rule of oracle.h.
 *
 * WEIR_TEST_SOAK=N makes the run N times as long (0.1: a tenth).  WEIR_TEST_SEED=N sets its seed. */
#include "tests/fixtures/caches.h"

#define FAULT(format, ...)                                                                         \
    ck_abort_msg("seed %llu: " format, (unsigned long long)world.seed, __VA_ARGS__)
#define ORACLE_STREAMS 10
#define ORACLE_BLOCKS 400
#define ORACLE_FREED 20000

/* The seed and the length of the run. */
static struct {
    uint64_t seed;
    int steps;
} world;

#include "tests/fixtures/oracle.h"

/* All threads use the first streams.  One thread owns each further stream, which it destroys and makes again. */
enum { THREADS = 4, SHARED = 6, STREAMS = SHARED + THREADS, MOST = 100 };
_Static_assert(STREAMS == ORACLE_STREAMS && THREADS * MOST == ORACLE_BLOCKS, "the oracle's sizes");

struct held {
    uintptr_t at;
    size_t bytes;
    int stream;
};

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards the variables below; work is submitted under it */
static CUstream streams[STREAMS];
static struct held held[THREADS][MOST];
static int counts[THREADS];
static struct oracle oracle;

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
    uint64_t ns = dice(w, 20) == 0 ? 3 * MS : dice(w, 200000);

    oracle_work(&oracle, s, ns, weir__model_now_ns());
    busy(streams[s], ns);
}

/* Makes s wait for all work of t so far. */
static void follow_in_oracle(int s, int t) {
    if (s == t)
        return;
    order_streams(streams[s], streams[t]);
    oracle_follow(&oracle, s, t);
}

/* Returns the oracle's number of the block, which is valid until the lock is released. */
static int number_of(uintptr_t at) {
    int i = 0;

    while (oracle.block[i].at != at)
        MUST(++i < oracle.blocks);
    return i;
}

/* Each block has a pattern on its edges. */
enum { EDGE = 256 };

static void fill_held(const struct held *h) {
    size_t edge = h->bytes < EDGE ? h->bytes : EDGE;

    CU(driver->cuMemsetD8Async(h->at, (unsigned char)(h->at >> 9), edge, streams[h->stream]));
    CU(driver->cuMemsetD8Async(h->at + h->bytes - edge, (unsigned char)(h->at >> 9), edge,
                               streams[h->stream]));
}

static void expect_filled(const struct held *h) {
    size_t edge = h->bytes < EDGE ? h->bytes : EDGE;
    unsigned char copy[2 * EDGE];

    CU(driver->cuMemcpyDtoHAsync(copy, h->at, edge, streams[h->stream]));
    CU(driver->cuMemcpyDtoHAsync(copy + edge, h->at + h->bytes - edge, edge, streams[h->stream]));
    for (size_t i = 0; i < 2 * edge; i++)
        if (copy[i] != (unsigned char)(h->at >> 9))
            ck_abort_msg("seed %llu: a block was written to by another",
                         (unsigned long long)world.seed);
}

static void take_random(struct worker *w) {
    struct held h = {.bytes = random_size(&w->random, 4 * MIB), .stream = a_stream(w)};
    void *block;

    if (weir_alloc(a, h.bytes, streams[h.stream], &block) != WEIR_OK)
        return; /* others hold the memory */
    h.at = (uintptr_t)block;
    pthread_mutex_lock(&lock);
    (void)oracle_taken(&oracle, h.at, h.bytes, h.stream, weir__model_now_ns());
    held[w->number][counts[w->number]++] = h;
    fill_held(&h);
    if (dice(w, 2))
        work(w, h.stream);
    pthread_mutex_unlock(&lock);
}

static void give_one(struct worker *w, int which) {
    struct held *mine = held[w->number];
    pthread_mutex_lock(&lock);
    struct held h = mine[which];
    struct oracle_block *b = &oracle.block[number_of(h.at)];
    expect_filled(&h);
    int on = h.stream;
    for (uint64_t uses = dice(w, 8); uses > 5; uses--) {
        int t = (int)dice(w, SHARED);

        follow_in_oracle(t, h.stream);
        OK(weir_use(a, (void *)h.at, streams[t]));
        b->users |= 1u << t;
        work(w, t);
    }
    if (dice(w, 5) == 0) {
        on = a_stream(w);
        follow_in_oracle(on, h.stream);
    }
    if (dice(w, 2))
        work(w, on);
    oracle_given(&oracle, number_of(h.at), on, 0, weir__model_now_ns());
    mine[which] = mine[--counts[w->number]];
    pthread_mutex_unlock(&lock);
    free_live((void *)h.at, streams[on]);
}

/* Destroys the thread's own stream, whose work still runs, and creates another one. */
static void renew_stream(struct worker *w) {
    int s = SHARED + w->number;

    for (int i = counts[w->number]; i-- > 0;)
        if (held[w->number][i].stream == s)
            give_one(w, i);
    pthread_mutex_lock(&lock);
    CU(driver->cuStreamDestroy(streams[s]));
    streams[s] = make_stream();
    oracle_renew(&oracle, s);
    pthread_mutex_unlock(&lock);
}

static void *live(void *arg) {
    struct worker *w = arg;

    CU(driver->cuCtxPushCurrent(primary));
    for (int i = 0; i < world.steps; i++) {
        uint64_t what = dice(w, 1000);
        int count = counts[w->number];

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
            CU(driver->cuStreamSynchronize(streams[dice(w, SHARED)]));
    }
    while (counts[w->number] > 0)
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

CASE("soak", 300, start_device, end_cached_if_there);

TEST_EACH(WORLDS, no_two_owners_without_an_order) {
    weir_options options = options_of(worlds[_i].kind, "model", worlds[_i].limit);
    struct worker worker[THREADS];

    if (worlds[_i].limit)
        options.limit = bytes_amount(worlds[_i].limit);
    if (worlds[_i].caches_off)
        options.cache = WEIR_SWITCH_OFF;
    options.recovery_timeout_ms = 5;
    world.seed = (uint64_t)number_from("WEIR_TEST_SEED") + (uint64_t)_i;
    world.steps = (int)(5000 * number_from("WEIR_TEST_SOAK"));
    make_with(&options);
    for (int s = 0; s < STREAMS; s++)
        streams[s] = make_stream();
    for (int s = 0; worlds[_i].bound && s < SHARED; s++)
        OK(weir_bind(a, streams[s]));
    for (int t = 0; t < THREADS; t++)
        worker[t] = (struct worker){t, (world.seed * THREADS + (uint64_t)t + 1) *
                                           UINT64_C(0x9e3779b97f4a7c15)};
    run_threads(THREADS, live, worker, sizeof *worker);
    for (int s = 0; worlds[_i].bound && s < SHARED; s++)
        OK(weir_unbind(a, streams[s]));
    for (int s = 0; s < STREAMS; s++)
        CU(driver->cuStreamDestroy(streams[s]));
}

SUITE("cache soak", CK_FORK_GETENV);
