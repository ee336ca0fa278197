/* SPDX-License-Identifier: MIT */
/* test_many_streams.c: the cost of many streams, in reserved memory and in time.
 *
 * The engines run on the device model, as a user has them.  Work takes virtual time, so the longest request of a test
 * is equal in every run. */
#include "tests/fixtures/engines.h"

static void open_large_device(void) {
    cache = WEIR_SWITCH_ON;
    start_model(64 * GIB);
}

/* The longest request so far, in virtual time. */
static uint64_t longest_ns;

static void *take_timed(size_t bytes, CUstream stream) {
    uint64_t began = weir__model_now_ns(), took;
    void *block = alloc_live(bytes, stream);

    took = weir__model_now_ns() - began;
    if (took > longest_ns)
        longest_ns = took;
    return block;
}

static void make_streams(CUstream *stream, int count) {
    for (int i = 0; i < count; i++)
        CU(driver->cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
}

/* ---- many lightly loaded streams --------------------------------------------------------------- */

enum { BLOCKS = 16384 };

struct load {
    CUstream stream[64];
    struct {
        void *block;
        size_t bytes;
        int stream;
    } live[BLOCKS];
    size_t count;
    uint64_t bytes, random;
};

static uint64_t roll(struct load *l, uint64_t sides) {
    return next_random(&l->random) % sides;
}

/* Allocates 256 bytes to 64 MiB on one of the streams, each power of two with equal probability, after frees that keep
 * at most 1 GiB live. */
static void play_request(struct load *l, int streams) {
    size_t least = (size_t)256 << roll(l, 18), bytes = least + roll(l, least);
    int on = (int)roll(l, (uint64_t)streams);

    while (l->bytes + bytes > GIB) {
        size_t i = roll(l, l->count);

        free_live(l->live[i].block, l->stream[l->live[i].stream]);
        l->bytes -= l->live[i].bytes;
        l->live[i] = l->live[--l->count];
    }
    MUST(l->count < BLOCKS);
    l->live[l->count].block = alloc_live(bytes, l->stream[on]);
    l->live[l->count].bytes = bytes;
    l->live[l->count++].stream = on;
    l->bytes += bytes;
    busy(l->stream[on], roll(l, 20000));
    weir__model_advance(roll(l, 20000));
}

CASE("many", 120, open_large_device, end_test);

TEST_EACH(6, reserved_memory_does_not_follow_the_number_of_streams) {
    static const int streams[] = {4, 16, 64};
    static const int kinds[] = {KIND_MAPPED, KIND_REGIONS};
    static struct load l;
    uint64_t early;

    l = (struct load){.random = 5};
    make_engine(kinds[_i / 3], 0, "");
    make_streams(l.stream, streams[_i % 3]);
    for (int i = 0; i < 30000; i++)
        play_request(&l, streams[_i % 3]);
    early = stats_of(a).reserved;
    for (int i = 0; i < 30000; i++)
        play_request(&l, streams[_i % 3]);
    MUST_LE(stats_of(a).reserved, early + early / 16);
    MUST_LE(stats_of(a).reserved, 2100 * MIB);
    while (l.count-- > 0)
        free_live(l.live[l.count].block, l.stream[l.live[l.count].stream]);
}

/* ---- streams that are not heard of for long ---------------------------------------------------- */

/* 300 streams call in turn, and stream B works for 10 s.  No stream has ended, and no request waits for B. */
TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL, no_request_waits_for_a_stream_that_is_silent) {
    enum { STREAMS = 300, ROUNDS = 40 };
    CUstream stream[STREAMS];
    void *block[STREAMS] = {NULL};
    uint64_t random = 5;

    make_engine(_i, 0, "recovery-timeout=1000ms");
    make_streams(stream, STREAMS);
    for (int round = 0; round < ROUNDS; round++) {
        if (round == ROUNDS / 2)
            busy(B, 10000 * MS);
        for (int i = 0; i < STREAMS; i++) {
            if (block[i])
                free_live(block[i], stream[i]);
            block[i] = take_timed(2 * MIB + next_random(&random) % 64 * 32 * KIB, stream[i]);
            busy(stream[i], 2000);
            if (next_random(&random) % 3 == 0) {
                free_live(block[i], stream[i]);
                block[i] = NULL;
            }
        }
    }
    MUST_LE(longest_ns, 20 * MS);
    for (int i = 0; i < STREAMS; i++)
        if (block[i])
            free_live(block[i], stream[i]);
}

/* Stream A allocates blocks.  Stream B frees them, `behind_ns` late.  A third stream works for 10 s. */
static void supply(uint64_t behind_ns) {
    enum { LIVE = 64, REQUESTS = 20000 };
    void *block[LIVE] = {NULL};
    CUstream third = make_stream();
    uint64_t random = 5, last;

    free_live(alloc_live(MIB, third), third);
    busy(third, 10000 * MS);
    busy(B, behind_ns);
    last = weir__model_now_ns();
    for (int i = 0; i < REQUESTS; i++) {
        void **at = &block[i % LIVE];

        if (*at) {
            order_streams(B, A);
            busy(B, weir__model_now_ns() - last);
            last = weir__model_now_ns();
            free_live(*at, B);
        }
        *at = take_timed(MIB + next_random(&random) % 256 * 32 * KIB, A);
        busy(A, 5000);
        weir__model_advance(10000);
    }
    MUST_LE(longest_ns, MS);
    for (int i = 0; i < LIVE; i++)
        free_live(block[i], B);
}

/* The host observes each free of B before the next one, so A gets the memory. */
TEST_WHERE(KIND_REGIONS, KIND_MAPPED + 1, NULL,
           a_stream_that_only_frees_supplies_the_one_that_takes) {
    make_engine(_i, 0, "recovery-timeout=1000ms");
    supply(0);
    MUST_LE(stats_of(a).reserved, GIB);
}

/* Many frees of B are queued at any time.  They do not wait for each other, whatever B holds. */
TEST_EACH(2 * (KIND_MAPPED + 1 - KIND_REGIONS),
          a_stream_that_frees_late_supplies_the_one_that_takes) {
    size_t held = _i % 2 ? 20 * GIB : 0;
    void *block = NULL;

    make_engine(KIND_REGIONS + _i / 2, 0, "recovery-timeout=1000ms");
    if (held)
        block = alloc_live(held, B);
    supply(20 * MS);
    MUST_LE(stats_of(a).reserved, held + 12 * GIB);
    if (block)
        free_live(block, B);
}

SUITE("many streams", CK_FORK_GETENV);
