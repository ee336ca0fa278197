/* SPDX-License-Identifier: MIT */
/* test_spans.c: blocks cut from regions of another engine, through the table of engines.
 *
 * On the device model, with a hand-made host.  Sizes are worked out by hand: regions are multiples of
 * 32 MiB, and an idle one of more than twice a request (and more than 32 MiB) is not cut for it.
 *
 * The random run at the end writes a pattern into each block and reads it back on the stream of the
 * free: whoever was given the memory too early has spoilt it.
 */
#include "tests/fixtures/model_device.h"

#include <string.h>

#include "tests/fixtures/calls.h"
#include "tests/fixtures/bare_engine.h"
#include "tests/fixtures/refuse.h"

#define NOWHERE ((CUdeviceptr)0x1234000)

static const int inner[] = {WEIR_ENGINE_POOL, WEIR_ENGINE_DIRECT};

static struct weir_engine *engine;

/* ---- the device and the engine --------------------------------------------------------------- */

static void start_device(void) {
    start_model(4 * GIB);
}

static void begin_on(const struct weir_driver *table, int kind, uint64_t limit,
                     uint64_t threshold) {
    struct weir_engine setup = bare_engine();

    device.driver = table;
    device.total = 4 * GIB;
    engine_limit = limit;
    setup.threshold = threshold;
    MUST(weir__counters_open(&counters, 8, 0));
    engine_options.engine = kind;
    OK(weir__blocks_open(&setup, &engine));
}

static void begin(int kind) {
    begin_on(driver, kind, UINT64_MAX, UINT64_MAX);
}

static weir_statistics figures(void) {
    weir_statistics f = {.size = sizeof f};

    engine->ops->figures(engine, &f);
    MUST_LE(f.requested, f.in_use);
    MUST_LE(f.in_use, f.reserve);
    MUST_LE(f.requested, f.requested_peak);
    MUST_LE(f.in_use, f.in_use_peak);
    MUST_LE(f.reserve, f.reserve_peak);
    return f;
}

static uint64_t reserve(void) {
    return figures().reserve;
}

/* Nothing is left on the device afterwards. */
static void end(void) {
    CU(driver->cuCtxSynchronize());
    weir__engine_reclaim(engine, NULL);
    MUST_EQ(figures().in_use, 0);
    engine->ops->close(engine);
    weir__counters_close(&counters);
    MUST_EQ(device_free(), 4 * GIB);
    check_model();
}

static weir_status try_take(size_t bytes, CUstream stream, int may_grow, CUdeviceptr *block,
                            int *grew) {
    weir_status status;

    struct weir_request r = {.bytes = bytes, .stream = stream, .block = NOWHERE};

    r.flags = may_grow ? WEIR_REQUEST_MAY_GROW : 0;
    status = engine->ops->alloc(engine, &r);
    *block = r.block;
    *grew = r.grew;
    if (status == WEIR_OK)
        MUST_EQ(*block % (16 * KIB), 0);
    else
        MUST(*block == NOWHERE && !*grew);
    return status;
}

static CUdeviceptr take(size_t bytes, CUstream stream) {
    CUdeviceptr block;
    int grew;

    OK(try_take(bytes, stream, 1, &block, &grew));
    return block;
}

/* The next one is placed there. */
static void take_again(CUdeviceptr where, size_t bytes, CUstream stream) {
    CUdeviceptr block = take(bytes, stream);

    MUST_EQ(block, where);
}

static void give(CUdeviceptr block, CUstream stream) {
    OK(engine->ops->free(engine, block, stream, NULL));
}

/* All that is idle goes back that can without waiting, on A. */
static void shed(uint64_t id) {
    OK(engine->ops->trim(
        engine, &(struct weir_trim){
                    .mode = WEIR_TRIM_AT_ONCE, .stream = A, .id = id, .cause = WEIR_EVENT_DECAY}));
}

/* 1 if an event is due. */
static int give_silently(CUdeviceptr block, uint64_t id) {
    weir_status status = engine->ops->give(engine, block, id);

    MUST(status == WEIR_OK || status == WEIR_ENGINE_DUE);
    return status == WEIR_ENGINE_DUE;
}

/* ---- counting calls -------------------------------------------------------------------------- */

static uint64_t all_calls(void) {
    uint64_t sum = 0;

    for (int i = 0; i < WEIR_ENTRY_COUNT; i++)
        sum += calls((enum weir_driver_entry)i);
    return sum;
}

/* Regions that were asked for and given back, whatever is inside. */
static uint64_t regions_taken(void) {
    return calls(WEIR_ENTRY_cuMemAllocFromPoolAsync) + calls(WEIR_ENTRY_cuMemAlloc);
}

static uint64_t regions_given(void) {
    return calls(WEIR_ENTRY_cuMemFreeAsync) + calls(WEIR_ENTRY_cuMemFree);
}

/* ---- order ----------------------------------------------------------------------------------- */

START_TEST(steady_state_makes_no_memory_call) {
    CUdeviceptr block, again;
    int grew;

    begin(inner[_i]);
    OK(try_take(5 * MIB, A, 1, &block, &grew));
    MUST(grew);
    MUST_EQ(reserve(), 32 * MIB);
    busy(A, MS);
    give(block, A);
    count_from_here();
    OK(try_take(5 * MIB, A, 1, &again, &grew));
    MUST(!grew);
    MUST_EQ(again, block);
    give(again, A);
    MUST_EQ(all_calls(), calls(WEIR_ENTRY_cuStreamIsCapturing) + calls(WEIR_ENTRY_cuStreamGetId));
    end();
}
END_TEST

/* Rounded to 16 KiB, accounted as asked. */
START_TEST(sizes_are_rounded) {
    CUdeviceptr one, two;

    begin(inner[_i]);
    one = take(1, A);
    two = take(16 * KIB + 1, A);
    MUST_EQ(two - one, 16 * KIB);
    MUST_EQ(figures().requested, 16 * KIB + 2);
    MUST_EQ(figures().in_use, 48 * KIB);
    give(one, A);
    give(two, A);
    MUST_EQ(figures().requested, 0);
    MUST_EQ(figures().in_use_peak, 48 * KIB);
    end();
}
END_TEST

START_TEST(another_stream_waits_for_the_work) {
    CUdeviceptr block, other;

    begin(inner[_i]);
    block = take(30 * MIB, A);
    busy(A, 5 * MS);
    give(block, A);
    other = take(30 * MIB, B); /* A is not done */
    MUST(other != block);
    MUST_EQ(reserve(), 64 * MIB);
    give(take(MIB, A), A); /* A's next call records */
    CU(driver->cuStreamSynchronize(A));
    count_from_here();
    MUST_EQ(figures().steals, 0);
    take_again(block, 30 * MIB, B);
    MUST_EQ(regions_taken(), 0);
    MUST_EQ(figures().steals, 1);
    MUST_EQ(figures().event_records, weir__model_calls(WEIR_ENTRY_cuEventRecord));
    give(block, B);
    give(other, B);
    end();
}
END_TEST

/* The pool orders a region for the stream that it was asked for on, and it may be made of what that
 * stream has just given back: the rest of it is not for others yet. */
START_TEST(a_new_region_is_its_streams_own) {
    CUdeviceptr first, second, other;

    begin(inner[0]);
    first = take(200 * MIB, A);
    busy(A, 5 * MS);
    give(first, A);
    second = take(MIB, A); /* the large region goes back, a small one is made of it */
    MUST_EQ(reserve(), 224 * MIB);
    other = take(MIB, B);
    MUST(other < second || other >= second + 31 * MIB);
    MUST_EQ(reserve(), 256 * MIB);
    CU(driver->cuStreamSynchronize(A));
    give(take(MIB, A), A);
    CU(driver->cuStreamSynchronize(A));
    count_from_here();
    give(take(31 * MIB, C), C); /* now it is */
    MUST_EQ(regions_taken(), 0);
    give(second, A);
    give(other, B);
    end();
}
END_TEST

START_TEST(uses_are_waited_for) {
    struct weir_use_list *uses = calloc(1, sizeof *uses + sizeof uses->use[0]);
    CUdeviceptr block, other;

    begin(inner[_i]);
    block = take(30 * MIB, A);
    busy(B, 5 * MS);
    uses->count = uses->capacity = 1;
    uses->use[0].stream = B;
    OK(engine->ops->free(engine, block, A, uses));
    MUST_EQ(figures().in_use, 0);
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, block, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->give(engine, block, WEIR_ENGINE_OBSERVED));
    other = take(30 * MIB, A); /* not even for A */
    MUST(other != block);
    MUST_EQ(weir__engine_reclaim(engine, NULL) > 0, 1);
    CU(driver->cuStreamSynchronize(B));
    count_from_here();
    take_again(block, 30 * MIB, A);
    MUST_EQ(regions_taken(), 0);
    give(block, A);
    give(other, A);
    free(uses);
    end();
}
END_TEST

START_TEST(wrong_pointers_are_told) {
    CUdeviceptr block, other;
    weir_statistics before;

    begin(inner[_i]);
    block = take(MIB, A);
    other = take(MIB, A);
    give(other, A);
    before = figures();
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, block + 16 * KIB, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, block + 1, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, other, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, NOWHERE, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, block + GIB, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->give(engine, other, id_of(A)));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->give(engine, NOWHERE, WEIR_ENGINE_UNKNOWN));
    MUST_EQ(figures().in_use, before.in_use);
    give(block, A);
    end();
}
END_TEST

/* ---- reluctance, swaps, growth --------------------------------------------------------------- */

START_TEST(a_large_idle_region_is_left_whole) {
    CUdeviceptr large, small;

    begin(inner[_i]);
    large = take(250 * MIB, A);
    small = take(20 * MIB, A);
    give(large, A);
    MUST_EQ(reserve(), 288 * MIB);
    count_from_here();
    give(take(12 * MIB, A), A); /* beside the small block */
    MUST_EQ(regions_taken(), 0);
    take_again(large, 250 * MIB, A);
    give(large, A);
    take_again(large, 128 * MIB, A); /* not more than twice as large */
    MUST_EQ(regions_taken(), 0);
    give(large, A);
    give(small, A);
    end();
}
END_TEST

START_TEST(a_swap_does_not_raise_the_reserve) {
    CUdeviceptr large, block[3];
    int grew;

    begin(inner[_i]);
    large = take(200 * MIB, A);
    give(large, A);
    MUST_EQ(reserve(), 224 * MIB);
    count_from_here();
    block[0] = take(100 * MIB, A); /* 224 is more than twice 100 */
    MUST_EQ(regions_given(), 1);
    MUST_EQ(regions_taken(), 1);
    block[1] = take(60 * MIB, A);
    block[2] = take(20 * MIB, A);
    MUST_EQ(regions_given(), 1);
    MUST_LE(reserve(), 224 * MIB);
    for (int i = 0; i < 3; i++)
        give(block[i], A);
    count_from_here();
    for (int i = 0; i < 3; i++) { /* from here on each has its own */
        static const size_t sizes[] = {100 * MIB, 60 * MIB, 20 * MIB};

        OK(try_take(sizes[i], A, 0, &block[i], &grew));
    }
    MUST_EQ(regions_taken(), 0);
    for (int i = 0; i < 3; i++)
        give(block[i], A);
    end();
}
END_TEST

/* Of several, the smallest that makes enough room. */
START_TEST(a_swap_takes_the_smallest_that_is_enough) {
    CUdeviceptr block[3], small, held;
    static const size_t sizes[] = {320 * MIB, 96 * MIB, 160 * MIB};

    begin(inner[0]);
    held = take(600 * MIB, A); /* no valley */
    for (int i = 0; i < 3; i++)
        block[i] = take(sizes[i], A);
    for (int i = 0; i < 3; i++)
        give(block[i], A);
    count_from_here();
    small = take(40 * MIB, A);
    MUST_EQ(regions_given(), 1);
    take_again(block[0], 320 * MIB, A);
    take_again(block[2], 160 * MIB, A);
    MUST_EQ(regions_taken(), 1);
    MUST_EQ(reserve(), 576 * MIB + 608 * MIB);
    give(held, A);
    give(small, A);
    give(block[0], A);
    give(block[2], A);
    end();
}
END_TEST

/* A large block and a small one in turn: how often that made a swap; in the end it makes none. */
static int swaps_of(size_t large, int turns) {
    int swaps = 0;

    for (int i = 0; i < turns; i++) {
        count_from_here();
        give(take(large, A), A);
        give(take(20 * MIB, A), A);
        swaps += regions_given() > 0;
        MUST_LE(reserve(), 320 * MIB);
    }
    MUST_EQ(regions_given(), 0);
    return swaps;
}

/* A load that swaps each time is served without in the end. */
START_TEST(reluctance_fades) {
    begin(inner[_i]);
    MUST(swaps_of(320 * MIB, 100) < 50);
    end();
}
END_TEST

/* While memory is wasted, of which a tenth was never in use, patience lasts longer. */
START_TEST(reluctance_fades_late_where_memory_is_wasted) {
    int swaps;

    begin(inner[0]);
    swaps = swaps_of(289 * MIB, 400);
    MUST(swaps > 200 && swaps < 320);
    end();
}
END_TEST

START_TEST(dry_before_growth_and_swaps) {
    CUdeviceptr block, large;
    weir_statistics before;
    int grew;

    begin(inner[_i]);
    count_from_here();
    EXPECT(WEIR_ENGINE_DRY, try_take(MIB, A, 0, &block, &grew));
    MUST_EQ(regions_taken(), 0);
    large = take(200 * MIB, A);
    EXPECT(WEIR_ENGINE_DRY, try_take(30 * MIB, A, 0, &block, &grew));
    OK(try_take(20 * MIB, A, 0, &block, &grew));
    give(block, A);
    give(large, A);
    before = figures();
    count_from_here();
    EXPECT(WEIR_ENGINE_DRY, try_take(20 * MIB, A, 0, &block, &grew));
    MUST_EQ(regions_given(), 0);
    MUST_EQ(figures().reserve, before.reserve);
    MUST_EQ(figures().in_use, 0);
    end();
}
END_TEST

/* What the reserved memory has beside the regions is there for all that must not grow. */
START_TEST(preallocated_reserve_is_not_dry) {
    CUdeviceptr block;
    int grew;

    begin(inner[0]);
    OK(engine->ops->grow(engine, 128 * MIB, 128 * MIB, WEIR_EVENT_PREALLOC));
    MUST_EQ(reserve(), 128 * MIB);
    OK(try_take(100 * MIB, A, 0, &block, &grew));
    MUST(!grew);
    MUST_EQ(reserve(), 128 * MIB);
    give(block, A);
    end();
}
END_TEST

START_TEST(a_region_does_not_leave_on_another_stream) {
    CUdeviceptr block;

    begin(inner[_i]);
    block = take(200 * MIB, A);
    busy(A, 5 * MS);
    give(block, A);
    count_from_here();
    give(take(20 * MIB, B), B); /* B may not have what A has not finished with */
    MUST_EQ(regions_given(), 0);
    MUST_EQ(reserve(), 256 * MIB);
    CU(driver->cuStreamSynchronize(A)); /* on a busy stream none is moved: it is cut instead */
    give(take(40 * MIB, A), A);         /* A may */
    MUST_EQ(regions_given(), 1);
    MUST_EQ(reserve(), 256 * MIB);
    end();
}
END_TEST

START_TEST(the_limit_holds) {
    CUdeviceptr block[2], none;
    int grew;

    begin_on(driver, inner[_i], 96 * MIB, UINT64_MAX);
    block[0] = take(60 * MIB, A);
    block[1] = take(20 * MIB, A);
    EXPECT(WEIR_E_LIMIT, try_take(20 * MIB, A, 1, &none, &grew));
    MUST_EQ(reserve(), 96 * MIB);
    give(block[0], A);
    block[0] = take(20 * MIB, A); /* in the place of the larger one */
    MUST_EQ(reserve() <= 96 * MIB, 1);
    give(block[0], A);
    give(block[1], A);
    end();
}
END_TEST

/* The inner engine refuses: all that is idle goes back first. */
START_TEST(a_failure_gives_idle_regions_back) {
    enum weir_driver_entry entry =
        _i == 0 ? WEIR_ENTRY_cuMemAllocFromPoolAsync : WEIR_ENTRY_cuMemAlloc;
    CUdeviceptr block[4], last;
    int grew;

    begin(inner[_i]);
    for (int i = 0; i < 4; i++)
        block[i] = take(30 * MIB, A);
    for (int i = 0; i < 4; i++)
        give(block[i], A);
    count_from_here();
    weir__model_fail(entry, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    OK(try_take(60 * MIB, A, 1, &last, &grew));
    MUST_EQ(regions_given(), 4); /* two would have made room */
    give(last, A);
    weir__model_fail(entry, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    EXPECT(WEIR_E_NO_MEMORY, try_take(GIB, A, 1, &last, &grew));
    weir__model_faults_clear();
    end();
}
END_TEST

/* ---- the base -------------------------------------------------------------------------------- */

enum { BASE_BLOCKS = 5 };
static const size_t base_sizes[BASE_BLOCKS] = {100 * MIB, 60 * MIB, 120 * MIB, 130 * MIB, 40 * MIB};

/* Down from a peak: the last block is left, and 480 MiB lie idle in four regions. */
static CUdeviceptr go_down(void) {
    CUdeviceptr block[BASE_BLOCKS];

    for (int i = 0; i < BASE_BLOCKS; i++)
        block[i] = take(base_sizes[i], A);
    for (int i = 0; i < BASE_BLOCKS - 1; i++)
        give(block[i], A);
    MUST_EQ(reserve(), 544 * MIB);
    count_from_here();
    return block[BASE_BLOCKS - 1];
}

/* Idle regions become one, once. */
START_TEST(the_first_valley_makes_a_base) {
    CUdeviceptr left, block, large;

    begin(inner[_i]);
    left = go_down();
    block = take(50 * MIB, A);
    MUST_EQ(regions_given(), 4);
    MUST_EQ(regions_taken(), 1);
    MUST_EQ(reserve(), 544 * MIB);
    large = take(400 * MIB, A);
    MUST(large == block + 50 * MIB);
    give(left, A);
    give(large, A);
    give(block, A);
    for (int i = 0; i < 3; i++) {
        block = take(450 * MIB, A);
        large = take(20 * MIB, A);
        give(block, A);
        give(large, A);
    }
    MUST_EQ(regions_given(), 4);
    MUST_EQ(regions_taken(), 1);
    end();
}
END_TEST

/* What a stream freed in the base serves another behind a wait, before the reserved memory grows. */
START_TEST(a_base_serves_behind_another_stream) {
    CUdeviceptr left, block, large, behind;
    uint64_t before;

    begin(inner[_i]);
    engine_options.internal_dependencies = WEIR_SWITCH_ON;
    left = go_down();
    block = take(50 * MIB, A);
    large = take(400 * MIB, A);
    give(take(MIB, B), B);
    give(take(100 * KIB, B), B); /* which the base does not serve */
    before = reserve();
    busy(A, 50 * MS);
    give(large, A);
    behind = take(390 * MIB, B);
    MUST_EQ(reserve(), before);
    MUST(behind == large);
    MUST_EQ(driver->cuStreamQuery(B), CUDA_ERROR_NOT_READY);
    give(behind, B);
    give(block, A);
    give(left, A);
    end();
}
END_TEST

/* What the driver does not take stays, and on a captured stream nothing is tried. */
START_TEST(what_cannot_be_shed_stays) {
    begin(WEIR_ENGINE_POOL);
    count_from_here();
    give(take(40 * MIB, A), A);
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    shed(0);
    CU(driver->cuStreamEndCapture(A, &(CUgraph){NULL}));
    MUST_EQ(regions_given(), 0);
    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_UNKNOWN, 0);
    shed(id_of(A));
    give(take(40 * MIB, A), A); /* still there */
    MUST_EQ(regions_taken(), 1);
    shed(id_of(A));
    CU(driver->cuCtxSynchronize());
    shed(id_of(A));
    MUST_EQ(reserve(), 0);
    end();
}
END_TEST

START_TEST(no_base_is_made_while_work_is_pending) {
    CUdeviceptr left;

    begin(inner[0]);
    busy(A, 25 * MS);
    left = go_down();
    for (int i = 0; i < 3; i++)
        give(take(50 * MIB, A), A);
    MUST_EQ(regions_given() + regions_taken(), 0);
    CU(driver->cuStreamSynchronize(A));
    give(take(50 * MIB, A), A);
    MUST_EQ(regions_given(), 4);
    MUST_EQ(regions_taken(), 1);
    give(left, A);
    end();
}
END_TEST

/* Two idle regions of twelve are not worth it. */
START_TEST(little_that_is_idle_makes_no_base) {
    enum { REGIONS = 12 };
    CUdeviceptr block[REGIONS], more;

    begin(inner[_i]);
    for (int i = 0; i < REGIONS; i++)
        block[i] = take(64 * MIB, A);
    give(block[2], A);
    give(block[7], A);
    count_from_here();
    more = take(20 * MIB, A);
    MUST_LE(regions_given(), 1);
    MUST_LE(reserve(), REGIONS * 64 * MIB);
    give(more, A);
    for (int i = 0; i < REGIONS; i++)
        if (i != 2 && i != 7)
            give(block[i], A);
    end();
}
END_TEST

/* Nor are they down from a peak, where most of what is free lies beside blocks. */
START_TEST(little_of_a_valley_is_idle) {
    enum { REGIONS = 12 };
    CUdeviceptr large[REGIONS], small[REGIONS], more;

    begin(inner[_i]);
    for (int i = 0; i < REGIONS; i++) {
        large[i] = take(40 * MIB + (size_t)i * 64 * KIB, A); /* no two of a size */
        small[i] = take(20 * MIB, A);
    }
    MUST_EQ(reserve(), REGIONS * 64 * MIB);
    for (int i = 0; i < REGIONS; i++)
        give(large[i], A);
    give(small[2], A);
    give(small[7], A);
    count_from_here();
    more = take(30 * MIB, A);
    MUST_EQ(regions_given() + regions_taken(), 0);
    give(more, A);
    for (int i = 0; i < REGIONS; i++)
        if (i != 2 && i != 7)
            give(small[i], A);
    end();
}
END_TEST

/* A unit for all streams: where the host cannot see that the driver has it there, it goes back, and the request is told. */
START_TEST(a_unit_for_all_that_cannot_be_seen) {
    CUdeviceptr first, second, third;
    int grew;

    begin(inner[_i]);
    first = take(20 * MIB, A);
    third = take(MIB, B);
    MUST_EQ(reserve(), 64 * MIB);
    weir__model_fail(WEIR_ENTRY_cuStreamSynchronize, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, try_take(32 * MIB, B, 1, &second, &grew));
    second = take(32 * MIB, B);
    MUST_EQ(reserve(), 96 * MIB);
    give(second, B);
    give(third, B);
    give(first, A);
    end();
}
END_TEST

START_TEST(several_streams_make_no_base) {
    CUdeviceptr left;

    begin(inner[_i]);
    give(take(MIB, B), B);
    give(take(40 * MIB, A), A);
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &(size_t){0}));
    left = go_down();
    give(take(50 * MIB, A), A);
    MUST_EQ(regions_given() + regions_taken(), 0);
    give(left, A);
    end();
}
END_TEST

/* The first iteration was to be fast. */
START_TEST(a_reserve_taken_beforehand_makes_no_base) {
    CUdeviceptr left;

    begin(inner[_i]);
    if (engine->ops->grow(engine, 544 * MIB, 544 * MIB, WEIR_EVENT_PREALLOC) !=
        WEIR_OK) { /* not every engine can */
        end();
        return;
    }
    left = go_down();
    give(take(50 * MIB, A), A);
    MUST_EQ(regions_given() + regions_taken(), 0);
    give(left, A);
    end();
}
END_TEST

/* ---- giving back ----------------------------------------------------------------------------- */

START_TEST(given_as_observed_serves_all) {
    CUdeviceptr block;

    begin(inner[_i]);
    block = take(30 * MIB, A);
    give(take(MIB, B), B); /* two streams, so that it matters */
    count_from_here();
    OK(engine->ops->give(engine, block, WEIR_ENGINE_OBSERVED));
    MUST_EQ(all_calls(), 0);
    MUST_EQ(figures().in_use, 0);
    take_again(block, 30 * MIB, C);
    give(block, C);
    end();
}
END_TEST

START_TEST(given_as_unknown_waits_for_the_device) {
    CUdeviceptr block, other;
    size_t released;

    begin(inner[_i]);
    block = take(30 * MIB, A);
    count_from_here();
    OK(engine->ops->give(engine, block, WEIR_ENGINE_UNKNOWN));
    MUST_EQ(all_calls(), 0);
    MUST_EQ(figures().in_use, 0);
    CU(driver->cuCtxSynchronize());
    other = take(30 * MIB, A); /* the host has not told that it waited */
    MUST(other != block);
    count_from_here();
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &released));
    MUST_EQ(calls(WEIR_ENTRY_cuMemAlloc), 1);
    MUST_EQ(released, 32 * MIB);
    give(other, A);
    end();
}
END_TEST

START_TEST(given_on_a_stream_is_ordered_there) {
    CUdeviceptr block, other;

    begin(inner[_i]);
    block = take(30 * MIB, A);
    other = take(30 * MIB, B);
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
    end();
}
END_TEST

/* Who gives back is told when an event is due, and `tend` records one for all. */
START_TEST(tending_records_what_is_due) {
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
    MUST(!give_silently(block[0], id_of(A))); /* in the midst of its work, and not much */
    weir__engine_maintain(engine, A, id_of(A));
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 2);
    for (int i = 1; i < 5; i++)
        give(block[i], A);
    give(block[19], A);
    end();
}
END_TEST

/* The first stream has recorded nothing, and may never be heard of again. */
START_TEST(what_the_first_stream_leaves_serves_before_growth) {
    CUdeviceptr block, other;

    begin(inner[_i]);
    block = take(60 * MIB, A);
    give(block, A);
    other = take(20 * MIB, B);
    MUST_EQ(reserve(), 96 * MIB);
    for (int i = 0; i < 600; i++)
        give(take(MIB, B), B);
    busy(A, 5 * MS);
    take_again(block, 60 * MIB, B);
    MUST_LE(5 * MS, weir__model_now_ns());
    MUST_EQ(reserve(), 96 * MIB);
    give(block, B);
    give(other, B);
    end();
}
END_TEST

/* However many streams there were, of which some are not completed. */
START_TEST(giving_asks_nothing) {
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
    end();
}
END_TEST

START_TEST(a_trim_returns_everything) {
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
    end();
}
END_TEST

/* With one stream nothing is recorded, and the device is waited for all the same. */
START_TEST(a_trim_waits_for_the_only_stream) {
    CUdeviceptr block;
    size_t released = 0;

    begin(inner[_i]);
    block = take(30 * MIB, A);
    busy(A, 5 * MS);
    give(block, A);
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &released));
    MUST_EQ(released, 32 * MIB);
    CU(driver->cuStreamQuery(A));
    end();
}
END_TEST

START_TEST(a_finite_threshold_gives_idle_regions_back) {
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
    /* A preallocation raises it. */
    OK(engine->ops->grow(engine, 256 * MIB, 256 * MIB, WEIR_EVENT_PREALLOC));
    count_from_here();
    give(take(120 * MIB, A), A);
    MUST_EQ(regions_given(), 0);
    end();
}
END_TEST

/* What caches give back before the reserved memory may grow lets idle regions go by the threshold: above a lowered limit
 * none would come again, so a request has what fits before, whatever the region is for. */
START_TEST(above_a_lowered_limit_what_fits_is_had_at_once) {
    CUdeviceptr small, pin, block;
    int grew;

    begin_on(driver, inner[_i], UINT64_MAX, UINT64_MAX);
    small = take(64 * KIB, A);
    pin = take(20 * MIB, A);
    MUST_EQ(reserve(), 64 * MIB);
    give(small, A);
    EXPECT(WEIR_ENGINE_DRY, try_take(30 * MIB, A, 0, &block, &grew));
    engine_limit = 32 * MIB;
    OK(try_take(30 * MIB, A, 0, &block, &grew));
    EXPECT(WEIR_ENGINE_DRY, try_take(30 * MIB, A, 0, &small, &grew));
    give(block, A);
    give(pin, A);
    end();
}
END_TEST

/* ---- faults ---------------------------------------------------------------------------------- */

#ifdef CAN_REFUSE_HOST_MEMORY
START_TEST(each_request_for_host_memory_fails_once) {
    int more = 1;

    for (uint64_t k = 1; more && k < 100; k++) {
        CUdeviceptr block = 0, large;
        weir_status status;
        int grew = 0;

        start_device();
        begin(inner[_i]);
        large = take(200 * MIB, A);
        give(take(MIB, B), B);
        give(large, A);
        was_refused = 0;
        refuse_in = k;
        status = try_take(20 * MIB, C, 1, &block, &grew);
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
END_TEST
#endif

/* An inner engine's failure leaves all as it was; the next try succeeds. */
START_TEST(each_memory_call_fails_once) {
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
END_TEST

static struct weir_driver crooked;

static CUresult alloc_off_grid(CUdeviceptr *block, size_t bytes) {
    CUresult result = driver->cuMemAlloc(block, bytes);

    *block += 512;
    return result;
}

static CUresult free_off_grid(CUdeviceptr block) {
    return driver->cuMemFree(block - 512);
}

/* A driver that places regions where no block could start: refused, and given back. */
START_TEST(a_region_off_the_grid_is_refused) {
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
    end();
}
END_TEST

/* Sizes that cannot be rounded up. */
START_TEST(the_largest_request_is_refused) {
    CUdeviceptr block;
    int grew;

    begin(inner[_i]);
    give(take(MIB, A), A);
    EXPECT(WEIR_E_NO_MEMORY, try_take(SIZE_MAX, A, 1, &block, &grew));
    EXPECT(WEIR_E_NO_MEMORY, try_take(SIZE_MAX - 20 * MIB, A, 1, &block, &grew));
    end();
}
END_TEST

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

/* Reads both ends back on the block's stream and frees it there; what was read is looked at later. */
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

START_TEST(nobody_writes_into_anothers_block) {
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
    end();
}
END_TEST

/* ---- main ------------------------------------------------------------------------------------ */

#define BOTH(test) tcase_add_loop_test(tests, test, 0, 2)

static TCase *add_case(Suite *suite, const char *name) {
    return suite_add_case(suite, name, 120, start_device, NULL);
}

static void add_order(TCase *tests) {
    BOTH(steady_state_makes_no_memory_call);
    BOTH(sizes_are_rounded);
    BOTH(another_stream_waits_for_the_work);
    tcase_add_test(tests, a_new_region_is_its_streams_own);
    BOTH(uses_are_waited_for);
    BOTH(wrong_pointers_are_told);
}

static void add_growth(TCase *tests) {
    BOTH(a_large_idle_region_is_left_whole);
    BOTH(a_swap_does_not_raise_the_reserve);
    tcase_add_test(tests, a_swap_takes_the_smallest_that_is_enough);
    BOTH(reluctance_fades);
    tcase_add_test(tests, reluctance_fades_late_where_memory_is_wasted);
    BOTH(the_first_valley_makes_a_base);
    BOTH(a_base_serves_behind_another_stream);
    BOTH(little_that_is_idle_makes_no_base);
    BOTH(little_of_a_valley_is_idle);
    tcase_add_test(tests, what_cannot_be_shed_stays);
    tcase_add_test(tests, no_base_is_made_while_work_is_pending);
    BOTH(a_unit_for_all_that_cannot_be_seen);
    BOTH(several_streams_make_no_base);
    BOTH(a_reserve_taken_beforehand_makes_no_base);
    BOTH(dry_before_growth_and_swaps);
    tcase_add_test(tests, preallocated_reserve_is_not_dry);
    tcase_add_test(tests, a_region_does_not_leave_on_another_stream);
    BOTH(the_limit_holds);
    BOTH(a_failure_gives_idle_regions_back);
}

static void add_back(TCase *tests) {
    BOTH(given_as_observed_serves_all);
    BOTH(given_as_unknown_waits_for_the_device);
    BOTH(given_on_a_stream_is_ordered_there);
    BOTH(tending_records_what_is_due);
    BOTH(what_the_first_stream_leaves_serves_before_growth);
    BOTH(giving_asks_nothing);
    BOTH(a_trim_returns_everything);
    BOTH(a_trim_waits_for_the_only_stream);
    tcase_add_test(tests, a_finite_threshold_gives_idle_regions_back);
    tcase_add_loop_test(tests, above_a_lowered_limit_what_fits_is_had_at_once, 0, 2);
}

static void add_faults(TCase *tests) {
#ifdef CAN_REFUSE_HOST_MEMORY
    BOTH(each_request_for_host_memory_fails_once);
#endif
    BOTH(each_memory_call_fails_once);
    BOTH(the_largest_request_is_refused);
    tcase_add_loop_test(tests, a_region_off_the_grid_is_refused, 0, 2);
}

int main(void) {
    Suite *suite = suite_create("spans");
    TCase *tests;

    add_order(add_case(suite, "order"));
    add_growth(add_case(suite, "growth"));
    add_back(add_case(suite, "giving back"));
    add_faults(add_case(suite, "faults"));
    tests = add_case(suite, "random");
    tcase_add_loop_test(tests, nobody_writes_into_anothers_block, 0, 12);
    return run_suite(suite, CK_FORK_GETENV);
}
