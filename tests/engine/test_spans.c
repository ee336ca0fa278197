/* SPDX-License-Identifier: MIT */
/* test_spans.c: the suballocator over regions: order between streams, and how it grows. */
#include "tests/fixtures/regions.h"

#include "tests/fixtures/refuse.h"

/* ---- the device and the engine --------------------------------------------------------------- */

/* Frees all idle regions that need no wait, on A. */
static void shed(uint64_t id) {
    OK(engine->ops->trim(
        engine, &(struct weir_trim){
                    .mode = WEIR_TRIM_AT_ONCE, .stream = A, .id = id, .cause = WEIR_EVENT_DECAY}));
}

CASE("order", 120, start_device, end_if_there);

TEST_EACH(2, steady_state_makes_no_memory_call) {
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
}

/* Sizes are rounded to 16 KiB, but `requested` counts the bytes of the request. */
TEST_EACH(2, sizes_are_rounded) {
    begin(inner[_i]);
    CUdeviceptr one = take(1, A);
    CUdeviceptr two = take(16 * KIB + 1, A);
    MUST_EQ(two - one, 16 * KIB);
    MUST_EQ(figures().requested, 16 * KIB + 2);
    MUST_EQ(figures().in_use, 48 * KIB);
    give(one, A);
    give(two, A);
    MUST_EQ(figures().requested, 0);
    MUST_EQ(figures().in_use_peak, 48 * KIB);
}

TEST_EACH(2, another_stream_waits_for_the_work) {
    begin(inner[_i]);
    CUdeviceptr block = take(30 * MIB, A);
    busy(A, 5 * MS);
    give(block, A);
    CUdeviceptr other = take(30 * MIB, B); /* A is not done */
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
}

/* The pool orders a region for the stream of the request, and may make it of memory that this stream has just freed.
 * So other streams cannot use the rest of the region yet. */
TEST(a_new_region_is_its_streams_own) {
    begin(inner[0]);
    CUdeviceptr first = take(200 * MIB, A);
    busy(A, 5 * MS);
    give(first, A);
    CUdeviceptr second = take(MIB, A); /* the large region goes back, a small one is made of it */
    MUST_EQ(reserve(), 224 * MIB);
    CUdeviceptr other = take(MIB, B);
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
}

TEST_EACH(2, uses_are_waited_for) {
    struct weir_use_list *uses = calloc(1, sizeof *uses + sizeof uses->use[0]);
    begin(inner[_i]);
    CUdeviceptr block = take(30 * MIB, A);
    busy(B, 5 * MS);
    uses->count = uses->capacity = 1;
    uses->use[0].stream = B;
    OK(engine->ops->free(engine, block, A, uses));
    MUST_EQ(figures().in_use, 0);
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, block, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->give(engine, block, WEIR_ENGINE_OBSERVED));
    CUdeviceptr other = take(30 * MIB, A); /* not even for A */
    MUST(other != block);
    MUST_EQ(weir__engine_reclaim(engine, NULL) > 0, 1);
    CU(driver->cuStreamSynchronize(B));
    count_from_here();
    take_again(block, 30 * MIB, A);
    MUST_EQ(regions_taken(), 0);
    give(block, A);
    give(other, A);
    free(uses);
}

TEST_EACH(2, wrong_pointers_are_told) {
    begin(inner[_i]);
    CUdeviceptr block = take(MIB, A);
    CUdeviceptr other = take(MIB, A);
    give(other, A);
    weir_statistics before = figures();
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, block + 16 * KIB, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, block + 1, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, other, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, NOWHERE, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->free(engine, block + GIB, A, NULL));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->give(engine, other, id_of(A)));
    EXPECT(WEIR_E_NOT_OWNED, engine->ops->give(engine, NOWHERE, WEIR_ENGINE_UNKNOWN));
    MUST_EQ(figures().in_use, before.in_use);
    give(block, A);
}

CASE("growth", 120, start_device, end_if_there);

TEST_EACH(2, a_large_idle_region_is_left_whole) {
    begin(inner[_i]);
    CUdeviceptr large = take(250 * MIB, A);
    CUdeviceptr small = take(20 * MIB, A);
    give(large, A);
    MUST_EQ(reserve(), 288 * MIB);
    count_from_here();
    give(take(12 * MIB, A), A); /* in the small block's region */
    MUST_EQ(regions_taken(), 0);
    take_again(large, 250 * MIB, A);
    give(large, A);
    take_again(large, 128 * MIB, A); /* at most twice as large */
    MUST_EQ(regions_taken(), 0);
    give(large, A);
    give(small, A);
}

TEST_EACH(2, a_swap_does_not_raise_the_reserve) {
    CUdeviceptr block[3];
    int grew;
    begin(inner[_i]);
    CUdeviceptr large = take(200 * MIB, A);
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
    for (int i = 0; i < 3; i++) { /* each has a region now */
        static const size_t sizes[] = {100 * MIB, 60 * MIB, 20 * MIB};

        OK(try_take(sizes[i], A, 0, &block[i], &grew));
    }
    MUST_EQ(regions_taken(), 0);
    for (int i = 0; i < 3; i++)
        give(block[i], A);
}

/* The swap frees the smallest region that makes enough room. */
TEST(a_swap_takes_the_smallest_that_is_enough) {
    CUdeviceptr block[3];
    static const size_t sizes[] = {320 * MIB, 96 * MIB, 160 * MIB};
    begin(inner[0]);
    CUdeviceptr held = take(600 * MIB, A); /* the load is not down from a peak */
    for (int i = 0; i < 3; i++)
        block[i] = take(sizes[i], A);
    for (int i = 0; i < 3; i++)
        give(block[i], A);
    count_from_here();
    CUdeviceptr small = take(40 * MIB, A);
    MUST_EQ(regions_given(), 1);
    take_again(block[0], 320 * MIB, A);
    take_again(block[2], 160 * MIB, A);
    MUST_EQ(regions_taken(), 1);
    MUST_EQ(reserve(), 576 * MIB + 608 * MIB);
    give(held, A);
    give(small, A);
    give(block[0], A);
    give(block[2], A);
}

/* Plays a large and a small block in turn.  Returns the number of turns with a swap; the last turn has none. */
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

/* A load that swaps each time ends without swaps. */
TEST_EACH(2, reluctance_fades) {
    begin(inner[_i]);
    MUST(swaps_of(320 * MIB, 100) < 50);
}

/* Swaps go on for longer while memory is wasted.  Here a tenth of the memory was never in use. */
TEST(reluctance_fades_late_where_memory_is_wasted) {
    begin(inner[0]);
    int swaps = swaps_of(289 * MIB, 400);
    MUST(swaps > 200 && swaps < 320);
}

TEST_EACH(2, dry_before_growth_and_swaps) {
    CUdeviceptr block;
    int grew;
    begin(inner[_i]);
    count_from_here();
    EXPECT(WEIR_ENGINE_DRY, try_take(MIB, A, 0, &block, &grew));
    MUST_EQ(regions_taken(), 0);
    CUdeviceptr large = take(200 * MIB, A);
    EXPECT(WEIR_ENGINE_DRY, try_take(30 * MIB, A, 0, &block, &grew));
    OK(try_take(20 * MIB, A, 0, &block, &grew));
    give(block, A);
    give(large, A);
    weir_statistics before = figures();
    count_from_here();
    EXPECT(WEIR_ENGINE_DRY, try_take(20 * MIB, A, 0, &block, &grew));
    MUST_EQ(regions_given(), 0);
    MUST_EQ(figures().reserved, before.reserved);
    MUST_EQ(figures().in_use, 0);
}

/* Reserved memory beside the regions serves requests that must not grow. */
TEST(preallocated_reserve_is_not_dry) {
    CUdeviceptr block;
    int grew;

    begin(inner[0]);
    OK(engine->ops->grow(engine, 128 * MIB, 128 * MIB, WEIR_EVENT_PREALLOC));
    MUST_EQ(reserve(), 128 * MIB);
    OK(try_take(100 * MIB, A, 0, &block, &grew));
    MUST(!grew);
    MUST_EQ(reserve(), 128 * MIB);
    give(block, A);
}

TEST(a_region_does_not_leave_on_another_stream) {
    begin(inner[_i]);
    CUdeviceptr block = take(200 * MIB, A);
    busy(A, 5 * MS);
    give(block, A);
    count_from_here();
    give(take(20 * MIB, B), B); /* B may not have A's unfinished memory */
    MUST_EQ(regions_given(), 0);
    MUST_EQ(reserve(), 256 * MIB);
    CU(driver->cuStreamSynchronize(A)); /* none moves on a busy stream: it is split instead */
    give(take(40 * MIB, A), A);         /* A may */
    MUST_EQ(regions_given(), 1);
    MUST_EQ(reserve(), 256 * MIB);
}

TEST_EACH(2, the_limit_holds) {
    CUdeviceptr block[2], none;
    int grew;

    begin_on(driver, inner[_i], 96 * MIB, UINT64_MAX);
    block[0] = take(60 * MIB, A);
    block[1] = take(20 * MIB, A);
    EXPECT(WEIR_E_LIMIT, try_take(20 * MIB, A, 1, &none, &grew));
    MUST_EQ(reserve(), 96 * MIB);
    give(block[0], A);
    block[0] = take(20 * MIB, A); /* the larger block's region is freed */
    MUST_EQ(reserve() <= 96 * MIB, 1);
    give(block[0], A);
    give(block[1], A);
}

/* If the inner engine fails, all idle regions are freed before the retry. */
TEST_EACH(2, a_failure_gives_idle_regions_back) {
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
}

/* ---- the base -------------------------------------------------------------------------------- */

enum { BASE_BLOCKS = 5 };
static const size_t base_sizes[BASE_BLOCKS] = {100 * MIB, 60 * MIB, 120 * MIB, 130 * MIB, 40 * MIB};

/* Brings the load down from a peak.  Returns the last live block, beside 480 MiB in four idle regions. */
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

/* One region replaces the four idle ones, once. */
TEST_EACH(2, the_first_valley_makes_a_base) {
    begin(inner[_i]);
    CUdeviceptr left = go_down();
    CUdeviceptr block = take(50 * MIB, A);
    MUST_EQ(regions_given(), 4);
    MUST_EQ(regions_taken(), 1);
    MUST_EQ(reserve(), 544 * MIB);
    CUdeviceptr large = take(400 * MIB, A);
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
}

/* Memory that a stream freed in the base serves another stream behind a wait, before the reserved memory grows. */
TEST_EACH(2, a_base_serves_behind_another_stream) {
    begin(inner[_i]);
    engine_options.internal_dependencies = WEIR_SWITCH_ON;
    CUdeviceptr left = go_down();
    CUdeviceptr block = take(50 * MIB, A);
    CUdeviceptr large = take(400 * MIB, A);
    give(take(MIB, B), B);
    give(take(100 * KIB, B), B); /* the base does not serve this */
    uint64_t before = reserve();
    busy(A, 50 * MS);
    give(large, A);
    CUdeviceptr behind = take(390 * MIB, B);
    MUST_EQ(reserve(), before);
    MUST(behind == large);
    MUST_EQ(driver->cuStreamQuery(B), CUDA_ERROR_NOT_READY);
    give(behind, B);
    give(block, A);
    give(left, A);
}

/* A region that the driver fails to free stays.  On a captured stream no region is freed. */
TEST(what_cannot_be_shed_stays) {
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
}

TEST(no_base_is_made_while_work_is_pending) {
    begin(inner[0]);
    busy(A, 25 * MS);
    CUdeviceptr left = go_down();
    for (int i = 0; i < 3; i++)
        give(take(50 * MIB, A), A);
    MUST_EQ(regions_given() + regions_taken(), 0);
    CU(driver->cuStreamSynchronize(A));
    give(take(50 * MIB, A), A);
    MUST_EQ(regions_given(), 4);
    MUST_EQ(regions_taken(), 1);
    give(left, A);
}

/* Two idle regions of twelve are too few for a base. */
TEST_EACH(2, little_that_is_idle_makes_no_base) {
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
}

/* There is no base either where most free memory lies beside live blocks. */
TEST_EACH(2, little_of_a_valley_is_idle) {
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
}

/* If the host cannot observe a new unit for all streams, the unit goes back and the request fails. */
TEST_EACH(2, a_unit_for_all_that_cannot_be_seen) {
    CUdeviceptr second;
    int grew;
    begin(inner[_i]);
    CUdeviceptr first = take(20 * MIB, A);
    CUdeviceptr third = take(MIB, B);
    MUST_EQ(reserve(), 64 * MIB);
    weir__model_fail(WEIR_ENTRY_cuStreamSynchronize, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, try_take(32 * MIB, B, 1, &second, &grew));
    second = take(32 * MIB, B);
    MUST_EQ(reserve(), 96 * MIB);
    give(second, B);
    give(third, B);
    give(first, A);
}

TEST_EACH(2, several_streams_make_no_base) {
    begin(inner[_i]);
    give(take(MIB, B), B);
    give(take(40 * MIB, A), A);
    OK(weir__engine_trim(engine, 0, WEIR_EVENT_TRIM, &(size_t){0}));
    CUdeviceptr left = go_down();
    give(take(50 * MIB, A), A);
    MUST_EQ(regions_given() + regions_taken(), 0);
    give(left, A);
}

/* Preallocated memory makes the first iteration fast, so it is not replaced by a base. */
TEST_EACH(2, a_reserve_taken_beforehand_makes_no_base) {
    begin(inner[_i]);
    if (engine->ops->grow(engine, 544 * MIB, 544 * MIB, WEIR_EVENT_PREALLOC) !=
        WEIR_OK) { /* not every engine can */
        end();
        return;
    }
    CUdeviceptr left = go_down();
    give(take(50 * MIB, A), A);
    MUST_EQ(regions_given() + regions_taken(), 0);
    give(left, A);
}

SUITE("spans", CK_FORK_GETENV);
