/* SPDX-License-Identifier: MIT */
/* test_spans_back.c: the suballocator over regions: what goes back, what fails, and random work. */
#include "tests/fixtures/regions.h"

#include "tests/fixtures/refuse.h"

/* ---- the device and the engine --------------------------------------------------------------- */

/* Frees a block without an event.  Returns 1 if an event is due, 0 if not. */
static int give_silently(CUdeviceptr block, uint64_t id) {
    weir_status status = engine->ops->give(engine, block, id);

    MUST(status == WEIR_OK || status == WEIR_ENGINE_DUE);
    return status == WEIR_ENGINE_DUE;
}

CASE("giving back", 120, start_device, end_if_there);

TEST_EACH(2, given_as_observed_serves_all) {
    begin(inner[_i]);
    CUdeviceptr block = take(30 * MIB, A);
    give(take(MIB, B), B); /* two streams, so that it matters */
    count_from_here();
    OK(engine->ops->give(engine, block, WEIR_ENGINE_OBSERVED));
    MUST_EQ(all_calls(), 0);
    MUST_EQ(figures().in_use, 0);
    take_again(block, 30 * MIB, C);
    give(block, C);
}

TEST_EACH(2, given_as_unknown_waits_for_the_device) {
    size_t released;
    begin(inner[_i]);
    CUdeviceptr block = take(30 * MIB, A);
    count_from_here();
    OK(engine->ops->give(engine, block, WEIR_ENGINE_UNKNOWN));
    MUST_EQ(all_calls(), 0);
    MUST_EQ(figures().in_use, 0);
    CU(driver->cuCtxSynchronize());
    CUdeviceptr other = take(30 * MIB, A); /* the host does not know of the wait */
    MUST(other != block);
    count_from_here();
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &released));
    MUST_EQ(calls(WEIR_ENTRY_cuMemAlloc), 1);
    MUST_EQ(released, 32 * MIB);
    give(other, A);
}

TEST_EACH(2, given_on_a_stream_is_ordered_there) {
    begin(inner[_i]);
    CUdeviceptr block = take(30 * MIB, A);
    CUdeviceptr other = take(30 * MIB, B);
    busy(A, 5 * MS);
    count_from_here();
    MUST(give_silently(block, id_of(A)));
    MUST_EQ(all_calls() - calls(WEIR_ENTRY_cuStreamGetId), 0);
    take_again(block, 30 * MIB, A); /* its own at once */
    MUST(give_silently(block, id_of(A)));
    give(other, B);
    other = take(60 * MIB, B); /* not B's */
    MUST(block < other || block >= other + 60 * MIB);
    give(take(MIB, A), A); /* A's next call records for it */
    CU(driver->cuStreamSynchronize(A));
    count_from_here();
    take_again(block, 31 * MIB, C);
    MUST_EQ(regions_taken(), 0);
    give(block, C);
    give(other, B);
}

/* A free reports that an event is due, and one call of weir__engine_maintain() records one event for all of them. */
TEST_EACH(2, tending_records_what_is_due) {
    CUdeviceptr block[20];

    begin(inner[_i]);
    use_blocking_streams();
    give(take(MIB, B), B);
    for (int i = 0; i < 20; i++)
        block[i] = take(MIB, A);
    for (int i = 0; i < 10; i++) /* young */
        MUST(give_silently(block[i], id_of(A)));
    count_from_here();
    weir__engine_maintain(engine, A, id_of(A));
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 1);
    weir__engine_maintain(engine, A, id_of(A));
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 1);
    for (int i = 10; i < 19; i++)
        (void)give_silently(block[i], id_of(A));
    weir__engine_maintain(engine, A, id_of(A));
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 2);
    for (int i = 0; i < 5; i++)
        block[i] = take(600 << 10, A);
    MUST(!give_silently(block[0], id_of(A))); /* amid its work, and not much */
    weir__engine_maintain(engine, A, id_of(A));
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 2);
    for (int i = 1; i < 5; i++)
        give(block[i], A);
    give(block[19], A);
}

/* The first stream has recorded nothing, and may never call again.  Growth does not wait for its work, but a trim does,
 * and frees the memory that the stream left. */
TEST_EACH(2, a_trim_returns_what_the_first_stream_left) {
    size_t released;

    begin(inner[_i]);
    give(take(60 * MIB, A), A);
    CUdeviceptr other = take(20 * MIB, B);
    MUST_EQ(reserve(), 96 * MIB);
    for (int i = 0; i < 600; i++)
        give(take(MIB, B), B);
    busy(A, 50 * MS);
    CUdeviceptr block = take(60 * MIB, B);
    MUST(weir__model_now_ns() < 50 * MS);
    MUST_LE(96 * MIB + 1, reserve());
    give(block, B);
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &released));
    MUST_LE(50 * MS, weir__model_now_ns());
    MUST_EQ(reserve(), 32 * MIB);
    give(other, B);
}

/* A free makes no query, however many streams there are, and although some of their frees have not completed. */
TEST_EACH(2, giving_asks_nothing) {
    CUdeviceptr block[100];
    uint64_t id = id_of(C) + 1000;

    begin(inner[_i]);
    for (int i = 0; i < 100; i++)
        block[i] = take(MIB, i % 2 == 0 ? A : B);
    busy(A, 5 * MS);
    for (int i = 0; i < 20; i++)
        give(block[i], i % 2 == 0 ? A : B); /* with events */
    count_from_here();
    for (int i = 20; i < 100; i++)
        (void)give_silently(block[i], id++);
    MUST_EQ(all_calls(), 0);
    MUST_EQ(figures().in_use, 0);
}

TEST_EACH(2, a_trim_returns_everything) {
    CUdeviceptr block[4];
    size_t released = 0;

    begin(inner[_i]);
    for (int i = 0; i < 4; i++)
        block[i] = take((size_t)(i + 1) * 30 * MIB, i % 2 == 0 ? A : B);
    busy(A, 5 * MS);
    busy(B, 9 * MS);
    for (int i = 0; i < 3; i++)
        give(block[i], i % 2 == 0 ? A : B);
    MUST_EQ(reserve(), (32 + 64 + 96 + 128) * MIB);
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &released));
    MUST_EQ(released, (32 + 64 + 96) * MIB);
    MUST_EQ(reserve(), 128 * MIB);
    give(block[3], B);
    OK(weir__engine_trim(engine, 100 * MIB, WEIR_EVENT_TRIM, &released));
    MUST_LE(reserve(), 128 * MIB);
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &released));
    MUST_EQ(reserve(), 0);
}

/* One stream alone records nothing, so a trim waits for the device. */
TEST_EACH(2, a_trim_waits_for_the_only_stream) {
    size_t released = 0;
    begin(inner[_i]);
    CUdeviceptr block = take(30 * MIB, A);
    busy(A, 5 * MS);
    give(block, A);
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &released));
    MUST_EQ(released, 32 * MIB);
    CU(driver->cuStreamQuery(A));
}

TEST(a_finite_threshold_gives_idle_regions_back) {
    CUdeviceptr block[2];

    begin_on(driver, inner[0], UINT64_MAX, 64 * MIB);
    block[0] = take(60 * MIB, A);
    block[1] = take(120 * MIB, A);
    count_from_here();
    give(block[0], A); /* no more than is kept */
    MUST_EQ(regions_given(), 0);
    give(block[1], A);
    MUST_EQ(regions_given(), 1);
    CU(driver->cuStreamSynchronize(A));
    MUST_EQ(reserve(), 64 * MIB);
    /* A preallocation raises the threshold. */
    OK(engine->ops->grow(engine, 256 * MIB, 256 * MIB, WEIR_EVENT_PREALLOC));
    count_from_here();
    give(take(120 * MIB, A), A);
    MUST_EQ(regions_given(), 0);
}

/* Caches flush blocks before the reserved memory may grow, and regions above the threshold are then freed.  Above a
 * lowered limit no region could come again, so a request first has all that fits, in any region. */
TEST_EACH(2, above_a_lowered_limit_what_fits_is_had_at_once) {
    CUdeviceptr block;
    int grew;
    begin_on(driver, inner[_i], UINT64_MAX, UINT64_MAX);
    CUdeviceptr small = take(64 * KIB, A);
    CUdeviceptr pin = take(20 * MIB, A);
    MUST_EQ(reserve(), 64 * MIB);
    give(small, A);
    EXPECT(WEIR_ENGINE_DRY, try_take(30 * MIB, A, 0, &block, &grew));
    engine_limit = 32 * MIB;
    OK(try_take(30 * MIB, A, 0, &block, &grew));
    EXPECT(WEIR_ENGINE_DRY, try_take(30 * MIB, A, 0, &small, &grew));
    give(block, A);
    give(pin, A);
}

CASE("faults", 120, start_device, end_if_there);

#ifdef CAN_REFUSE_HOST_MEMORY
TEST_EACH(2, each_request_for_host_memory_fails_once) {
    int more = 1;

    for (uint64_t k = 1; more && k < 100; k++) {
        CUdeviceptr block = 0;
        int grew = 0;
        start_device();
        begin(inner[_i]);
        CUdeviceptr large = take(200 * MIB, A);
        give(take(MIB, B), B);
        give(large, A);
        was_refused = 0;
        refuse_in = k;
        weir_status status = try_take(20 * MIB, C, 1, &block, &grew);
        refuse_in = 0;
        more = was_refused;
        if (status != WEIR_OK) {
            MUST(status == WEIR_E_HOST_MEMORY || status == WEIR_E_NO_MEMORY);
            OK(try_take(20 * MIB, C, 1, &block, &grew));
        }
        was_refused = 0;
        refuse_in = k;
        OK(engine->ops->free(engine, block, C, NULL));
        refuse_in = 0;
        more |= was_refused;
        end();
    }
    MUST(!more);
}
#endif

/* A failure of the inner engine changes nothing, and the next attempt succeeds. */
TEST_EACH(2, each_memory_call_fails_once) {
    static const enum weir_driver_entry entries[] = {WEIR_ENTRY_cuMemAllocFromPoolAsync,
                                                     WEIR_ENTRY_cuMemFreeAsync,
                                                     WEIR_ENTRY_cuMemAlloc, WEIR_ENTRY_cuMemFree};
    CUdeviceptr large, block = 0;
    weir_status status;
    int grew = 0;

    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        start_device();
        begin(inner[_i]);
        large = take(200 * MIB, A);
        give(large, A);
        weir__model_fail(entries[i], 1, CUDA_ERROR_UNKNOWN, 0);
        status = try_take(20 * MIB, A, 1, &block, &grew); /* a swap */
        if (status != WEIR_OK) {
            EXPECT(WEIR_E_DRIVER, status);
            MUST_EQ(figures().in_use, 0);
            OK(try_take(20 * MIB, A, 1, &block, &grew));
        }
        weir__model_faults_clear();
        MUST_LE(reserve(), 224 * MIB);
        give(block, A);
        end();
    }
}

static struct weir_driver crooked;

static CUresult alloc_off_grid(CUdeviceptr *block, size_t bytes) {
    CUresult result = driver->cuMemAlloc(block, bytes);

    *block += 512;
    return result;
}

static CUresult free_off_grid(CUdeviceptr block) {
    return driver->cuMemFree(block - 512);
}

/* The driver places regions where no block can begin.  weir refuses such a region and frees it. */
TEST_EACH(2, a_region_off_the_grid_is_refused) {
    CUdeviceptr block = NOWHERE;
    int grew = 0;

    crooked = *driver;
    crooked.cuMemAlloc = alloc_off_grid;
    crooked.cuMemFree = free_off_grid;
    begin_on(&crooked, WEIR_ENGINE_DIRECT, UINT64_MAX, UINT64_MAX);
    engine_options.log = WEIR_LOG_NONE;
    device.log = WEIR_LOG_NONE;
    if (_i) /* at first */
        weir__model_fail(WEIR_ENTRY_cuMemFree, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, try_take(MIB, A, 1, &block, &grew));
    MUST(block == NOWHERE);
    MUST_EQ(reserve(), 0);
}

/* Rounding up these sizes would overflow. */
TEST_EACH(2, the_largest_request_is_refused) {
    CUdeviceptr block;
    int grew;

    begin(inner[_i]);
    give(take(MIB, A), A);
    EXPECT(WEIR_E_NO_MEMORY, try_take(SIZE_MAX, A, 1, &block, &grew));
    EXPECT(WEIR_E_NO_MEMORY, try_take(SIZE_MAX - 20 * MIB, A, 1, &block, &grew));
}

/* ---- random ---------------------------------------------------------------------------------- */

enum { LIVE = 40, STEPS = 4000, SAMPLE = 64 };

struct live {
    CUdeviceptr block;
    size_t bytes;
    CUstream stream;
    unsigned char pattern;
};

static unsigned char samples[STEPS][2][SAMPLE];
static unsigned char expected[STEPS];

/* Reads both ends of a block back on its stream and frees it there.  The samples are compared later. */
static void end_block(struct live *l, size_t at, uint64_t *random) {
    expected[at] = l->pattern;
    CU(driver->cuMemcpyDtoHAsync(samples[at][0], l->block, SAMPLE, l->stream));
    CU(driver->cuMemcpyDtoHAsync(samples[at][1], l->block + l->bytes - SAMPLE, SAMPLE, l->stream));
    if (next_random(random) % 4 == 0)
        (void)give_silently(l->block, id_of(l->stream));
    else
        give(l->block, l->stream);
    l->block = 0;
}

static void begin_block(struct live *l, uint64_t *random) {
    static CUstream *const streams[] = {&A, &B, &C};

    l->stream = *streams[next_random(random) % 3];
    l->bytes = SAMPLE + random_size(random, next_random(random) % 8 == 0 ? 80 * MIB : 3 * MIB);
    l->pattern = (unsigned char)next_random(random);
    l->block = take(l->bytes, l->stream);
    if (next_random(random) % 3 == 0)
        busy(l->stream, next_random(random) % MS);
    CU(driver->cuMemsetD8Async(l->block, l->pattern, SAMPLE, l->stream));
    CU(driver->cuMemsetD8Async(l->block + l->bytes - SAMPLE, l->pattern, SAMPLE, l->stream));
}

CASE("random", 120, start_device, end_if_there);

TEST_EACH(12, nobody_writes_into_anothers_block) {
    struct live live[LIVE] = {{0}};
    uint64_t random = 20250101 + (uint64_t)_i;
    size_t ended = 0, released;

    begin(inner[_i % 2]);
    for (int i = 0; i < STEPS; i++) {
        struct live *l = &live[next_random(&random) % LIVE];

        if (l->block)
            end_block(l, ended++, &random);
        else
            begin_block(l, &random);
        if (next_random(&random) % 500 == 0)
            OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &released));
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].block)
            end_block(&live[i], ended++, &random);
    CU(driver->cuCtxSynchronize());
    for (size_t i = 0; i < ended; i++)
        for (int k = 0; k < SAMPLE; k++)
            MUST(samples[i][0][k] == expected[i] && samples[i][1][k] == expected[i]);
}

SUITE("spans given back", CK_FORK_GETENV);
