/* SPDX-License-Identifier: MIT */
/* test_low_memory.c: release of idle memory when memory is low elsewhere, on the device model.
 *
 * Another allocator of the process finds the device full and receives the idle memory of this one, or the program calls
 * weir_low_memory. Preallocated memory stays, memory that work still uses stays, and cache hits cost nothing more. */
#include "tests/fixtures/model_device.h"

#include "api/allocator_internal.h"
#include "tests/fixtures/blocks.h"
#include "tests/fixtures/calls.h"
#include "tests/fixtures/every_kind.h"

#define CAPACITY (4 * GIB)

static weir_allocator *rich, *poor;

static void start_low_memory_device(void) {
    start_model(CAPACITY);
}

static weir_options world_options(int world) {
    weir_options options = model_options(world, 3 * GIB);

    options.growth = WEIR_GROWTH_EXACT;
    return options;
}

static weir_allocator *create_from(const weir_options *options) {
    weir_allocator *made;

    OK(weir_allocator_create(options, &made));
    return made;
}

static weir_allocator *make_of(int world) {
    weir_options options = world_options(world);

    return create_from(&options);
}

static void end_and_check(weir_allocator *a) {
    check_identities(a);
    OK(weir_allocator_destroy(a));
    check_model();
}

enum { PIECES = 12 };

/* Leaves `pieces` idle blocks of 256 MiB reserved. Work of `ns` on the stream uses each block before the free. */
static void fill_for(weir_allocator *a, int pieces, CUstream stream, uint64_t ns) {
    void *block[PIECES];

    for (int i = 0; i < pieces; i++)
        block[i] = alloc_block_from(a, 256 * MIB, stream);
    for (int i = 0; i < pieces; i++) {
        CU(weir__model_use(stream, (uintptr_t)block[i], 256 * MIB, (uint64_t)i + 1, ns));
        OK(weir_free(a, block[i], stream));
    }
}

static void alloc_pieces(weir_allocator *a, int pieces) {
    fill_for(a, pieces, A, 1000);
    CU(driver->cuCtxSynchronize());
}

/* Makes a rich allocator, which holds all pieces idle, and a poor one, which requests memory. */
static void make_both(const weir_options *options) {
    rich = make_of(0);
    poor = create_from(options);
    alloc_pieces(rich, PIECES);
}

static void end_both(void) {
    end_and_check(poor);
    end_and_check(rich);
}

/* Returns the number of events of `cause`. Writes their total bytes to `bytes`. */
static uint64_t events_of_cause(weir_allocator *a, int cause, uint64_t *bytes) {
    weir_event events[256];
    uint64_t found = 0;
    size_t count;

    *bytes = 0;
    OK(weir_events(a, 0, events, sizeof events[0], 256, &count));
    for (size_t i = 0; i < count; i++)
        if (events[i].cause == cause) {
            MUST_EQ(events[i].shrink, cause == WEIR_EVENT_LOW_MEMORY);
            MUST(events[i].got > 0);
            *bytes += events[i].got;
            found++;
        }
    return found;
}

static uint64_t given(weir_allocator *a) {
    uint64_t bytes;

    (void)events_of_cause(a, WEIR_EVENT_LOW_MEMORY, &bytes);
    return bytes;
}

static int is_refused(weir_allocator *a, size_t bytes, CUstream stream) {
    void *none = &none;
    weir_status status = weir_alloc(a, bytes, stream, &none);

    MUST(status == WEIR_E_NO_MEMORY || status == WEIR_E_LIMIT);
    MUST(none == &none);
    return 1;
}

/* Returns 1 if the allocators of a world hold idle memory. Engine direct holds none, and a fixed arena releases
 * none. */
static int world_keeps_idle(int world) {
    return worlds[world].kind != KIND_DIRECT && worlds[world].kind != KIND_FIXED;
}

CASE("local peers", 60, start_low_memory_device, NULL);

/* An allocator of each kind holds 3 of 4 GiB idle, and an allocator of each kind requests 2 GiB. */
TEST_EACH((WORLDS * WORLDS), a_local_peer_is_served) {
    int from = _i / WORLDS, to = _i % WORLDS;
    uint64_t bytes;
    if (!world_keeps_idle(from) || worlds[to].kind == KIND_FIXED)
        return;
    rich = make_of(from);
    poor = make_of(to);
    alloc_pieces(rich, PIECES);
    weir_statistics before = stats_of(rich);
    MUST_LE(PIECES * 256 * MIB, before.reserved);
    void *block = alloc_block_from(poor, 2 * GIB, B);
    CU(weir__model_use(B, (uintptr_t)block, 2 * GIB, 99, 1000));
    weir_statistics after = stats_of(rich);
    MUST_LE(GIB, before.reserved - after.reserved);
    MUST_EQ(given(rich), before.reserved - after.reserved);
    MUST_EQ(after.trims, 0);
    weir_statistics s = stats_of(poor);
    MUST_EQ(s.failed_requests, 0);
    MUST_EQ(s.retries, 1);
    MUST_EQ(s.attempts, 1);
    if (worlds[to].kind != KIND_DIRECT) {
        MUST_LE(1, events_of_cause(poor, WEIR_EVENT_REQUEST, &bytes));
        MUST_LE(2 * GIB, bytes);
    }
    OK(weir_free(poor, block, B));
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
    end_and_check(poor);
    alloc_pieces(rich, PIECES);
    end_and_check(rich);
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
}

/* Work still uses the rich allocator's memory when the poor one requests it, so weir waits for the work. */
TEST_EACH(WORLDS, work_that_uses_it_is_waited_for) {
    if (!world_keeps_idle(_i))
        return;
    rich = make_of(_i);
    poor = make_of((_i + 2) % WORLDS == 2 ? 4 : 0);
    fill_for(rich, PIECES, A, 5 * MS);
    weir_statistics before = stats_of(rich);
    void *block = alloc_block_from(poor, 2 * GIB, B);
    CU(weir__model_use(B, (uintptr_t)block, 2 * GIB, 99, 1000));
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
    MUST_LE(GIB, before.reserved - stats_of(rich).reserved);
    OK(weir_free(poor, block, B));
    end_both();
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
}

/* The rich allocator releases about as much as the request needs. */
TEST_EACH(WORLDS, the_rest_stays) {
    if (!world_keeps_idle(_i))
        return;
    rich = make_of(_i);
    poor = make_of(1);
    alloc_pieces(rich, PIECES);
    void *block = alloc_block_from(poor, GIB + 256 * MIB, B); /* the device has 1 GiB free */
    MUST_LE(given(rich), 2 * GIB);
    MUST_LE(GIB, stats_of(rich).reserved);
    OK(weir_free(poor, block, B));
    end_both();
}

TEST(more_than_one_gives) {
    rich = make_of(0);
    weir_allocator *second = make_of(6);
    weir_allocator *third = make_of(5);
    poor = make_of(1);
    alloc_pieces(rich, 4);
    alloc_pieces(second, 4);
    alloc_pieces(third, 4);
    void *block = alloc_block_from(poor, 3 * GIB + 512 * MIB, B);
    MUST_LE(768 * MIB, given(rich));
    MUST_LE(768 * MIB, given(second));
    MUST_LE(512 * MIB, given(third));
    OK(weir_free(poor, block, B));
    end_and_check(poor);
    end_and_check(third);
    end_and_check(second);
    end_and_check(rich);
}

/* All idle memory together would not be enough, so no allocator releases any. */
TEST_EACH(WORLDS, no_peer_releases_memory_that_would_not_suffice) {
    if (!world_keeps_idle(_i))
        return;
    rich = make_of(_i);
    poor = make_of(1);
    void *live = alloc_block_from(rich, GIB, A);
    alloc_pieces(rich, 8);
    uint64_t before = stats_of(rich).reserved;
    MUST(is_refused(poor, 3 * GIB + 256 * MIB, B));
    MUST(is_refused(poor, 5 * GIB, B));
    MUST_EQ(stats_of(rich).reserved, before);
    ANSWERS(0, given(rich));
    MUST_EQ(stats_of(poor).failed_requests, 2);
    OK(weir_free(rich, live, A));
    end_both();
}

/* The driver refuses memory that is free, so even a release of all idle memory does not help. */
TEST_EACH(WORLDS, all_of_it_may_not_do) {
    if (!world_keeps_idle(_i))
        return;
    rich = make_of(_i);
    poor = make_of(9);
    alloc_pieces(rich, 4);
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    MUST(is_refused(poor, 256 * MIB, B));
    weir__model_faults_clear();
    MUST_EQ(stats_of(rich).reserved, 0);
    OK(weir_free(poor, alloc_block_from(poor, 256 * MIB, B), B));
    end_both();
}

/* A request above its own allocator's limit makes no other allocator release memory. */
TEST_EACH(WORLDS, a_request_above_its_limit_asks_no_peer) {
    weir_options options = world_options(_i);

    options.limit = bytes_amount(512 * MIB);
    make_both(&options);
    MUST(is_refused(poor, 2 * GIB, B));
    ANSWERS(0, given(rich));
    end_both();
}

/* The arena has enough idle memory within its limit, but in pieces, so memory of other allocators would not help. */
TEST_EACH(WORLDS, a_fragmented_arena_asks_no_peer) {
    weir_options options = world_options(_i);
    void *block[8];

    if (worlds[_i].kind != KIND_FIXED) /* other engines release pieces, or move them */
        return;
    options.limit = bytes_amount(512 * MIB);
    options.recovery_timeout_ms = 1;
    make_both(&options);
    for (int i = 0; i < 8; i++)
        block[i] = alloc_block_from(poor, 60 * MIB, B);
    for (int i = 0; i < 8; i += 2)
        OK(weir_free(poor, block[i], B));
    CU(driver->cuCtxSynchronize());
    MUST(is_refused(poor, 130 * MIB, B));
    ANSWERS(0, given(rich));
    for (int i = 1; i < 8; i += 2)
        OK(weir_free(poor, block[i], B));
    CU(driver->cuCtxSynchronize());
    end_both();
}

/* The device has enough free memory for keep-free, so only the limit refuses the request. */
TEST_EACH(WORLDS, a_limit_beside_free_memory_asks_no_peer) {
    weir_options options = world_options(_i);
    if (!world_keeps_idle(_i))
        return;
    options.limit = bytes_amount(256 * MIB);
    options.keep_free = bytes_amount(64 * MIB);
    options.recovery_timeout_ms = 1;
    make_both(&options);
    void *block = alloc_block_from(poor, 250 * MIB, B);
    MUST(is_refused(poor, 100 * MIB, B));
    ANSWERS(0, given(rich));
    OK(weir_free(poor, block, B));
    CU(driver->cuCtxSynchronize());
    end_both();
}

/* Other allocators release memory until the request reaches its own allocator's limit. */
TEST_EACH(WORLDS, peers_release_memory_up_to_the_own_limit) {
    weir_options options = world_options(_i);

    if (worlds[_i].kind == KIND_FIXED) /* a fixed arena reserves its memory at creation */
        return;
    options.limit = bytes_amount(2 * GIB);
    make_both(&options);
    OK(weir_free(poor, alloc_block_from(poor, 2 * GIB, B), B));
    MUST_LE(GIB, given(rich));
    end_both();
}

/* The free memory must stay free for keep-free, so the rich allocator releases all bytes of the request. */
TEST_EACH(WORLDS, keep_free_makes_peers_release_the_whole_request) {
    weir_options options = world_options(_i);

    if (worlds[_i].kind == KIND_FIXED) /* a fixed arena reserves its memory at creation */
        return;
    options.keep_free = bytes_amount(GIB);
    make_both(&options);
    OK(weir_free(poor, alloc_block_from(poor, 2 * GIB, B), B));
    MUST_LE(2 * GIB, given(rich));
    end_both();
}

TEST_EACH(WORLDS, local_peers_keep_preallocated_memory) {
    weir_options options = world_options(_i);

    if (!world_keeps_idle(_i))
        return;
    options.prealloc = bytes_amount(2 * GIB);
    rich = create_from(&options);
    poor = make_of(1);
    MUST(is_refused(poor, 3 * GIB, B));
    MUST_LE(2 * GIB, stats_of(rich).reserved);
    alloc_pieces(rich, PIECES);
    OK(weir_free(poor, alloc_block_from(poor, GIB + 512 * MIB, B), B)); /* the idle rest goes */
    MUST_LE(2 * GIB, stats_of(rich).reserved);
    MUST_LE(512 * MIB, given(rich));
    end_both();
}

/* If OOM recovery may not wait, memory stays reserved if its release needs a wait. Caches, the shelves of hardening,
 * and regions hold such memory. */
TEST_EACH(2 * WORLDS, not_by_a_wait) {
    weir_options options = world_options(1);
    int world = _i / 2, hardened = _i % 2;
    int gives =
        worlds[world].kind == KIND_POOL && worlds[world].cache == WEIR_SWITCH_OFF && !hardened;
    if (!world_keeps_idle(world))
        return;
    options.recovery_timeout_ms = UINT32_MAX;
    weir_options other = world_options(world);
    if (hardened)
        other.harden = WEIR_HARDEN_GUARD;
    rich = create_from(&other);
    poor = create_from(&options);
    alloc_pieces(rich, PIECES);
    if (gives)
        OK(weir_free(poor, alloc_block_from(poor, 2 * GIB, B), B));
    else
        MUST(is_refused(poor, 2 * GIB, B));
    MUST_EQ(given(rich) > 0, gives);
    end_both();
}

/* One allocator without idle memory is older than the rich one, and one is younger. */
TEST(who_has_nothing_gives_nothing) {
    weir_allocator *before = make_of(0);
    rich = make_of(1);
    weir_allocator *after = make_of(4);
    poor = make_of(1);
    alloc_pieces(rich, PIECES);
    OK(weir_free(poor, alloc_block_from(poor, 3 * GIB + 512 * MIB, B), B));
    MUST_LE(2 * GIB, given(rich));
    ANSWERS(0, given(before) + given(after));
    end_and_check(poor);
    end_and_check(after);
    end_and_check(rich);
    end_and_check(before);
}

/* A fault has made the rich allocator unusable, so no other allocator asks it for memory. */
TEST_EACH(WORLDS, a_lost_allocator_is_not_asked) {
    if (!world_keeps_idle(_i))
        return;
    rich = make_of(_i);
    poor = make_of(1);
    alloc_pieces(rich, PIECES);
    weir__model_fail_any(1, 0, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    EXPECT(WEIR_E_DEVICE_LOST, weir_trim(rich, 0, NULL));
    weir__model_faults_clear();
    MUST(is_refused(poor, 2 * GIB, B));
    MUST_EQ(given(rich), 0);
    OK(weir_allocator_destroy(rich)); /* the allocator still has its memory */
    end_and_check(poor);
}

/* Each driver call of the request fails in turn. The request succeeds or fails, and both allocators stay usable. */
TEST_EACH(WORLDS, whatever_fails_on_the_way) {
    uint64_t served = 0, met;

    if (!world_keeps_idle(_i))
        return;
    for (uint64_t k = 1;; k++) {
        void *block = NULL;
        start_low_memory_device();
        rich = make_of(_i);
        poor = make_of(k % 2 ? 0 : 7);
        alloc_pieces(rich, PIECES);
        weir__model_fail_any(k, 0, CUDA_ERROR_OUT_OF_MEMORY, 0);
        weir_status status = weir_alloc(poor, 2 * GIB, B, &block);
        met = weir__model_faults_injected(NULL);
        weir__model_faults_clear();
        MUST(status == WEIR_OK || (met > 0 && status == WEIR_E_NO_MEMORY));
        served += status == WEIR_OK;
        if (status != WEIR_OK)
            block = alloc_block_from(poor, 2 * GIB, B);
        OK(weir_free(poor, block, B));
        alloc_pieces(rich, 2);
        end_and_check(poor);
        end_and_check(rich);
        ANSWERS(CAPACITY, device_free());
        if (met == 0)
            break;
        CU(driver->cuDevicePrimaryCtxRelease(0));
    }
    MUST_LE(1, served);
}

/* Each thread requests memory in a loop, and replaces its allocator every ten rounds. */
enum { ROUNDS = 150 };

static void *request_in_thread(void *world) {
    weir_allocator *mine = make_of(*(int *)world);
    CUstream stream;

    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < ROUNDS; i++) {
        void *block = NULL;
        weir_status status = weir_alloc(mine, GIB + (size_t)(i % 7) * 128 * MIB, stream, &block);

        if (status == WEIR_OK)
            OK(weir_free(mine, block, stream));
        else
            EXPECT(WEIR_E_NO_MEMORY, status);
        if (i % 10 == 9) {
            CU(driver->cuStreamSynchronize(stream));
            OK(weir_allocator_destroy(mine));
            mine = make_of(*(int *)world);
        }
        if (i % 16 == 0)
            OK(weir_low_memory(mine, 256 * MIB));
    }
    CU(driver->cuStreamSynchronize(stream));
    OK(weir_allocator_destroy(mine));
    return NULL;
}

TEST(peers_may_ask_each_other_at_once) {
    static int kinds[] = {0, 1, 4, 6, 7};
    enum { THREADS = sizeof kinds / sizeof kinds[0] };
    pthread_t thread[THREADS];

    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&thread[i], NULL, request_in_thread, &kinds[i]) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    check_model();
    ANSWERS(CAPACITY, device_free());
}

/* Each thread holds one block while it requests another, so most threads are in OOM recovery. */
static void *struggle(void *mine) {
    unsigned seed = (unsigned)(uintptr_t)mine;
    CUstream stream;

    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < ROUNDS; i++) {
        void *block[2] = {0};

        for (int k = 0; k < 2; k++)
            if (weir_alloc(mine,
                           k == 1 && i % 3 == 0 ? 64 * KIB
                                                : (size_t)(rand_r(&seed) % 20 + 1) * 100 * MIB,
                           stream, &block[k]) != WEIR_OK)
                block[k] = NULL;
        for (int k = 0; k < 2; k++)
            OK(weir_free(mine, block[k], stream));
    }
    CU(driver->cuStreamSynchronize(stream));
    return NULL;
}

/* Each allocator has two threads, background growth, and preallocation at the first request. */
TEST_EACH(3 * WORLDS, all_peers_may_recover_at_once) {
    enum { ALLOCATORS = 3, THREADS = 2 * ALLOCATORS };
    weir_allocator *of[ALLOCATORS];
    pthread_t thread[THREADS];

    for (int i = 0; i < ALLOCATORS; i++) {
        int world = (_i + i * (1 + _i / WORLDS)) % WORLDS;
        weir_options options = world_options(world);

        options.recovery_timeout_ms = 20;
        options.prealloc = bytes_amount(500 * MIB);
        if (worlds[world].kind != KIND_FIXED)
            options.grow_ahead = bytes_amount(100 * MIB);
        OK(weir__allocator_create_later(driver, &options, &of[i], NULL, 0));
    }
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&thread[i], NULL, struggle, of[i % ALLOCATORS]) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < ALLOCATORS; i++)
        end_and_check(of[i]);
    ANSWERS(CAPACITY, device_free());
}

/* ---- weir_low_memory ----------------------------------------------------------------------------- */

/* Returns 1 if the engine releases idle memory within requests, without a wait. */
static int gives_in_requests(int world) {
    return worlds[world].kind == KIND_POOL || worlds[world].kind == KIND_MAPPED;
}

/* Makes `requests` requests that miss the caches, one each millisecond. */
static void churn_requests(weir_allocator *a, int requests) {
    for (int i = 0; i < requests; i++) {
        OK(weir_free(a, alloc_block_from(a, 3 * MIB + (size_t)(i % 20) * 64 * KIB, A), A));
        CU(driver->cuStreamSynchronize(A));
        weir__model_advance(MS);
    }
}

CASE("said", 60, start_low_memory_device, NULL);

TEST_EACH(WORLDS, requests_give_what_lies_idle) {
    weir_options options = world_options(_i);
    if (!gives_in_requests(_i))
        return;
    options.decay_ms =
        3600000; /* with decay, the pool engine makes no base, which each request would pin */
    rich = create_from(&options);
    alloc_pieces(rich, PIECES);
    churn_requests(rich, 4);
    uint64_t before = stats_of(rich).reserved;
    ANSWERS(0, given(rich));
    OK(weir_low_memory(rich, GIB));
    MUST_EQ(stats_of(rich).reserved, before); /* the call itself releases nothing */
    count_from_here();
    churn_requests(rich, 40);
    MUST_BE_WITHIN(GIB, given(rich), GIB + 512 * MIB);
    MUST_EQ(calls(WEIR_ENTRY_cuCtxSynchronize), 0);
    MUST_EQ(calls(WEIR_ENTRY_cuMemFree), 0);
    MUST_EQ(calls(WEIR_ENTRY_cuMemFreeHost), 0);
    OK(weir_low_memory(rich, 0)); /* 0 means all idle memory */
    churn_requests(rich, 40);
    MUST_LE(stats_of(rich).reserved, 512 * MIB);
    churn_requests(rich, 40);
    end_and_check(rich);
}

/* Requests of one size, which an inbox serves until then, give idle memory back, too. */
TEST_EACH(WORLDS, requests_of_one_size_give_what_lies_idle) {
    if (!gives_in_requests(_i))
        return;
    rich = make_of(_i);
    alloc_pieces(rich, PIECES);
    for (int i = 0; i < 100; i++) {
        if (i == 20)
            OK(weir_low_memory(rich, 0));
        OK(weir_free(rich, alloc_block_from(rich, 64 * MIB, A), A));
        CU(driver->cuStreamSynchronize(A));
        weir__model_advance(MS);
    }
    MUST_LE(stats_of(rich).reserved, 512 * MIB);
    end_and_check(rich);
}

/* Memory that work still uses stays until the work has completed. */
TEST_EACH(WORLDS, requests_give_nothing_that_is_in_use) {
    if (!gives_in_requests(_i))
        return;
    rich = make_of(_i);
    fill_for(rich, PIECES, B, 20 * MS);
    OK(weir_low_memory(rich, 0));
    churn_requests(rich, 40);
    (void)given(rich); /* checks that each event reports some bytes */
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
    CU(driver->cuCtxSynchronize());
    churn_requests(rich, 800);
    ck_assert_msg(weir__model_fault() == NULL, "%s", weir__model_fault());
    end_and_check(rich);
}

/* The signal of weir_low_memory ends after a second at the latest. Memory that becomes idle later stays. */
TEST_EACH(WORLDS, a_signal_ends) {
    if (!gives_in_requests(_i))
        return;
    rich = make_of(_i);
    OK(weir_low_memory(rich, 0));
    churn_requests(rich, 2000);
    alloc_pieces(rich, PIECES);
    uint64_t before = stats_of(rich).reserved;
    churn_requests(rich, 200);
    MUST_EQ(stats_of(rich).reserved, before);
    end_and_check(rich);
}

/* A signal ends after its second although reserved memory grows again and again. */
TEST_EACH(WORLDS, growth_does_not_prolong_a_signal) {
    enum { GROWTHS = 20 };
    void *block[GROWTHS];

    if (!gives_in_requests(_i))
        return;
    rich = make_of(_i);
    OK(weir_low_memory(rich, 0));
    for (int i = 0; i < GROWTHS; i++) {
        block[i] = alloc_block_from(rich, 64 * MIB, A);
        churn_requests(rich, 100);
    }
    for (int i = 0; i < GROWTHS; i++)
        OK(weir_free(rich, block[i], A));
    CU(driver->cuCtxSynchronize());
    uint64_t before = stats_of(rich).reserved;
    churn_requests(rich, 200);
    MUST_EQ(stats_of(rich).reserved, before);
    end_and_check(rich);
}

TEST_EACH(WORLDS, promises_are_kept) {
    weir_options options = world_options(_i);

    if (!gives_in_requests(_i))
        return;
    options.prealloc = bytes_amount(768 * MIB);
    options.grow_ahead = bytes_amount(256 * MIB);
    rich = create_from(&options);
    alloc_pieces(rich, PIECES);
    OK(weir_low_memory(rich, 0));
    churn_requests(rich, 200);
    MUST_LE(768 * MIB, given(rich));
    MUST_LE(768 * MIB, stats_of(rich).reserved);
    MUST_LE(stats_of(rich).reserved, 2 * GIB);
    MUST_LE(768 * MIB, stats_of(rich).reserved);
    end_and_check(rich);
}

/* A program whose requests all hit the caches calls weir_decay, which releases the memory at once, and only once. */
TEST_EACH(WORLDS, weir_decay_answers) {
    size_t released;

    if (!world_keeps_idle(_i))
        return;
    rich = make_of(_i);
    alloc_pieces(rich, PIECES);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_decay(rich, &released));
    OK(weir_low_memory(rich, GIB));
    OK(weir_decay(rich, &released));
    MUST_LE(GIB, released);
    MUST_EQ(released, given(rich));
    MUST_LE(GIB, stats_of(rich).reserved);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_decay(rich, &released));
    end_and_check(rich);
}

/* If the trim fails, the next weir_decay releases the memory that is still wanted. */
TEST_EACH(WORLDS, a_signal_stays_where_a_trim_fails) {
    size_t released = 1;

    if (!world_keeps_idle(_i))
        return;
    rich = make_of(_i);
    OK(weir_low_memory(rich, 0)); /* with nothing idle, there is nothing to do */
    OK(weir_decay(rich, &released));
    MUST_EQ(released, 0);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_decay(rich, &released));
    if (worlds[_i].kind == KIND_POOL && worlds[_i].cache == WEIR_SWITCH_OFF) {
        alloc_pieces(rich, PIECES);
        OK(weir_low_memory(rich, GIB));
        weir__model_fail(WEIR_ENTRY_cuMemPoolTrimTo, 1, CUDA_ERROR_UNKNOWN, 0);
        EXPECT(WEIR_E_DRIVER, weir_decay(rich, &released));
        MUST_EQ(released, 0);
        OK(weir_decay(rich, &released));
        MUST_LE(GIB, released);
    }
    end_and_check(rich);
}

/* A cache hit makes no driver call, and does not check for the signal. */
TEST(a_hit_does_not_check_for_the_signal) {
    void *block;
    rich = make_of(_i);
    alloc_pieces(rich, PIECES);
    OK(weir_bind(rich, A));
    for (int i = 0; i < 100; i++)
        OK(weir_free(rich, alloc_block_from(rich, 64 * KIB, A), A));
    OK(weir_low_memory(rich, 0));
    weir_statistics before = stats_of(rich);
    count_from_here();
    for (int i = 0; i < 1000; i++) {
        OK(weir_alloc(rich, 64 * KIB, A, &block));
        OK(weir_free(rich, block, A));
        weir__model_advance(MS);
    }
    EXPECT_CALLS({WEIR_ENTRY_COUNT, 0});
    MUST_EQ(stats_of(rich).cache_hits, before.cache_hits + 1000);
    ANSWERS(0, given(rich));
    OK(weir_unbind(rich, A));
    end_and_check(rich);
}

TEST_EACH(WORLDS, low_memory_is_refused_without_idle_memory) {
    rich = make_of(_i);
    if (world_keeps_idle(_i))
        OK(weir_low_memory(rich, 0));
    else
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_low_memory(rich, 0));
    churn_requests(rich, 2);
    EXPECT(WEIR_E_INVALID, weir_low_memory(NULL, 0));
    end_and_check(rich);
}

CASE("local peers", 60, start_low_memory_device, NULL);

TEST(local_peers_fail_in_a_forked_child) {
    int state;
    rich = make_of(0);
    poor = make_of(1);
    alloc_pieces(rich, PIECES);
    pid_t child = fork();
    if (child == 0) {
        void *none = NULL;

        _exit(weir_low_memory(rich, 0) == WEIR_E_FORKED &&
                      weir_alloc(poor, 2 * GIB, B, &none) == WEIR_E_FORKED &&
                      weir_allocator_destroy(poor) == WEIR_E_FORKED
                  ? 0
                  : 1);
    }
    MUST(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 0);
    OK(weir_free(poor, alloc_block_from(poor, 2 * GIB, B), B));
    end_both();
}

SUITE("low_memory", CK_FORK_GETENV);
