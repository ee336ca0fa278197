/* SPDX-License-Identifier: MIT */
/* test_threshold.c: the release threshold of engines mapped and bfc, on the device model.
 *
 * Idle memory above the threshold goes back without a wait, and only after its uses have completed. */
#include "tests/fixtures/model_device.h"

#include "api/allocator_internal.h"
#include "tests/fixtures/blocks.h"
#include "tests/fixtures/calls.h"

#define CAPACITY (8 * GIB)

enum { MAPPED, MAPPED_WITHOUT_CACHES, REGIONS, REGIONS_WITHOUT_CACHES, WAYS };

static weir_allocator *a;

static void set_up(void) {
    start_model(CAPACITY);
}

static void tear_down(void) {
}

static int is_mapped(int way) {
    return way < REGIONS;
}

static weir_options options_for(int way, uint64_t threshold) {
    weir_options options;

    weir_options_init(&options);
    options.device = "model";
    options.engine = is_mapped(way) ? WEIR_ENGINE_DEFAULT : WEIR_ENGINE_BFC;
    options.growth = WEIR_GROWTH_EXACT;
    options.release_threshold = bytes_amount(threshold);
    if (way % 2 == 1)
        options.cache = WEIR_SWITCH_OFF;
    return options;
}

static void open_way(int way, uint64_t threshold) {
    weir_options options = options_for(way, threshold);

    OK(weir_allocator_create(&options, &a));
}

static void close_it(void) {
    check_identities(a);
    check_model();
    OK(weir_allocator_destroy(a));
}

/* Returns the most reserved memory above the threshold that may stay: what the request under way is cut from. */
static uint64_t slack(int way) {
    return is_mapped(way) ? 64 * MIB : 256 * MIB;
}

/* Returns the reserved memory. */
static uint64_t reserved_now(void) {
    return weir__engine_reserve(a->reserve.engine);
}

/* Allocates and frees `count` blocks of 256 MiB on the stream, with work of `ns` on each. */
static void alloc_and_free_each(int count, CUstream stream, uint64_t ns) {
    void *block[16];

    for (int i = 0; i < count; i++)
        block[i] = alloc_block_from(a, 256 * MIB, stream);
    for (int i = 0; i < count; i++) {
        if (ns > 0)
            CU(weir__model_use(stream, (uintptr_t)block[i], 256 * MIB, (uint64_t)i + 1, ns));
        free_to(a, block[i], stream);
    }
}

/* Makes a request that the engine serves. */
static void touch(CUstream stream) {
    static size_t more;

    more = (more + 16) % 256;
    free_to(a, alloc_block_from(a, 600 * KIB + more * KIB, stream), stream);
}

CASE("threshold", 60, set_up, tear_down);

TEST(a_threshold_chooses_no_engine) {
    open_way(MAPPED, GIB);
    MUST_EQ(a->options.engine, WEIR_ENGINE_MAPPED);
    close_it();
}

/* Memory goes back in the next request after a while, down to the threshold, and not below it. */
TEST_EACH(WAYS, what_is_above_it_goes_in_the_next_request) {
    static const uint64_t thresholds[] = {0, GIB, 4 * GIB};

    for (size_t i = 0; i < sizeof thresholds / sizeof thresholds[0]; i++) {
        uint64_t reserved;

        open_way(_i, thresholds[i]);
        alloc_and_free_each(8, A, MS);
        CU(driver->cuCtxSynchronize());
        reserved = reserved_now();
        MUST_LE(2 * GIB, reserved);
        weir__model_advance(1000 * MS);
        touch(A);
        if (thresholds[i] > reserved)
            MUST_EQ(reserved_now(), reserved);
        else
            MUST_BE_WITHIN(thresholds[i], reserved_now(), thresholds[i] + slack(_i));
        close_it();
    }
}

/* Statistics read sums.  They give nothing back, and make no driver call. */
TEST_EACH(WAYS, statistics_change_nothing) {
    uint64_t reserved;

    open_way(_i, 0);
    alloc_and_free_each(8, A, MS);
    CU(driver->cuCtxSynchronize());
    weir__model_advance(1000 * MS);
    reserved = reserved_now();
    count_from_here();
    MUST_EQ(stats_of(a).reserved, reserved);
    MUST_EQ(stats_of(a).trims, 0);
    EXPECT_CALLS({WEIR_ENTRY_COUNT, 0});
    MUST_EQ(reserved_now(), reserved);
    close_it();
}

/* weir_decay names no stream, and gives back at once what is complete by then. */
TEST_EACH(WAYS, decay_gives_it_back_at_once) {
    uint64_t reserved;
    size_t released;
    void *live;

    open_way(_i, 512 * MIB);
    live = alloc_block_from(a, 100 * MIB, A);
    alloc_and_free_each(8, A, MS);
    CU(driver->cuStreamSynchronize(A));
    reserved = reserved_now();
    MUST_LE(2 * GIB, reserved);
    OK(weir_decay(a, &released));
    MUST_BE_WITHIN(512 * MIB, reserved_now(), 512 * MIB + slack(_i));
    MUST_EQ(released, reserved - reserved_now());
    OK(weir_decay(a, &released));
    MUST_EQ(released, 0);
    free_to(a, live, A);
    close_it();
}

TEST_EACH(WAYS, nothing_above_a_threshold_goes_that_work_still_uses) {
    uint64_t reserved, from;

    open_way(_i, 0);
    alloc_and_free_each(8, A, 1000 * MS);
    reserved = reserved_now();
    from = driver->ticks();
    touch(A);
    weir__model_advance(500 * MS); /* half of the first block's work */
    touch(A);
    OK(weir_decay(a, NULL));
    MUST_EQ(reserved_now(), reserved);
    MUST_LE(driver->ticks() - from, 501 * MS); /* nothing has waited */
    CU(driver->cuCtxSynchronize());
    weir__model_advance(1000 * MS);
    touch(A);
    MUST_LE(reserved_now(), slack(_i));
    close_it();
}

/* Memory whose work is complete goes back although its stream, which is the only one, goes on working. */
TEST_EACH(2, memory_goes_beside_later_work) {
    open_way(MAPPED + _i, 0);
    alloc_and_free_each(8, A, MS);
    busy(A, 10000 * MS);
    weir__model_advance(1000 * MS);
    touch(A);
    MUST_LE(reserved_now(), slack(MAPPED));
    CU(driver->cuCtxSynchronize());
    close_it();
}

/* cuMemFree waits for the device, so bfc keeps its regions while another stream may be at work. */
TEST_EACH(2, regions_stay_while_two_streams_work) {
    uint64_t from;
    void *other;

    open_way(REGIONS + _i, 0);
    other = alloc_block_from(a, MIB, B);
    alloc_and_free_each(4, A, MS);
    CU(driver->cuStreamSynchronize(A));
    busy(B, 10000 * MS);
    weir__model_advance(1000 * MS);
    from = driver->ticks();
    touch(A);
    MUST_LE(driver->ticks() - from, MS);
    MUST_LE(GIB, stats_of(a).reserved);
    free_to(a, other, B);
    CU(driver->cuCtxSynchronize());
    close_it();
}

/* A load that needs its memory again and again grows seldom, though each request could give the memory back. */
TEST_EACH(2, a_load_does_not_grow_in_each_request) {
    uint64_t made;

    open_way(MAPPED + _i, 0);
    made = weir__model_calls(WEIR_ENTRY_cuMemCreate);
    for (int i = 0; i < 1000; i++)
        alloc_and_free_each(4, A, 0);
    made = weir__model_calls(WEIR_ENTRY_cuMemCreate) - made;
    MUST_LE(made, 150); /* the first growth makes 128 small ones */
    close_it();
}

/* A signal of low memory that bfc answers in weir_decay alone does not make a load grow in each request. */
TEST_EACH(2, a_signal_that_only_weir_decay_answers_costs_no_growth) {
    weir_options options = options_for(REGIONS + _i, 0);
    void *lasting;

    options.growth = WEIR_GROWTH_DEFAULT;
    OK(weir_allocator_create(&options, &a));
    OK(weir_free(a, alloc_block_from(a, 12 * MIB, A), A));
    lasting = alloc_block_from(a, 4 * MIB, A);
    OK(weir_low_memory(a, 0));
    for (int i = 0; i < 400; i++) {
        OK(weir_free(a, alloc_block_from(a, 256 * MIB, A), A));
        OK(weir_free(a, alloc_block_from(a, 2 * MIB, A), A));
    }
    MUST_LE(stats_of(a).growth_allocs, 100);
    OK(weir_free(a, lasting, A));
    close_it();
}

/* A block that lasts pins the rest of its physical allocation.  Requests try seldom to give that back. */
TEST_EACH(2, what_cannot_go_is_seldom_tried) {
    uint64_t asked;
    void *lasts;

    open_way(MAPPED + _i, 0);
    lasts = alloc_block_from(a, MIB, A);
    weir__model_advance(1000 * MS);
    touch(A);
    asked = weir__model_calls(WEIR_ENTRY_cuStreamQuery);
    for (int i = 0; i < 1000; i++) {
        weir__model_advance(2 * MS);
        touch(A);
    }
    asked = weir__model_calls(WEIR_ENTRY_cuStreamQuery) - asked;
    MUST_LE(asked, 1050); /* each free asks once */
    free_to(a, lasts, A);
    close_it();
}

/* Blocks that live at the end of an iteration are allocated between others that do not, and again in each iteration.
 * Each keeps little memory beside it. */
TEST_EACH(2, what_lasts_keeps_little) {
    enum { PAIRS = 20, LASTS = 3 };
    void *lasts[PAIRS], *goes[PAIRS];

    open_way(MAPPED + _i, 0);
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; turn > 0 && i < PAIRS; i++)
            free_to(a, lasts[i], A);
        for (int i = 0; i < PAIRS; i++) {
            goes[i] = alloc_block_from(a, 100 * MIB, A);
            lasts[i] = alloc_block_from(a, LASTS * MIB, A);
        }
        for (int i = 0; i < PAIRS; i++)
            free_to(a, goes[i], A);
        CU(driver->cuCtxSynchronize());
        OK(weir_decay(a, NULL));
        MUST_LE(reserved_now(), 3 * PAIRS * LASTS * MIB);
    }
    for (int i = 0; i < PAIRS; i++)
        free_to(a, lasts[i], A);
    close_it();
}

/* Growth to a peak that memory had before earns no budget.  So physical allocations are small at first, and large in a
 * program that trims after each iteration. */
TEST_EACH(2, memory_comes_back_in_large_pieces_after_trims) {
    uint64_t first, again;

    open_way(MAPPED + _i, 0);
    count_from_here();
    alloc_and_free_each(8, A, 0);
    first = calls(WEIR_ENTRY_cuMemCreate);
    for (int i = 0; i < 8; i++) {
        OK(weir_trim(a, 0, NULL));
        count_from_here();
        alloc_and_free_each(8, A, 0);
    }
    again = calls(WEIR_ENTRY_cuMemCreate);
    MUST_LE(2 * again, first);
    close_it();
}

/* A preallocation raises the floor, also one that gets less than it requested. */
TEST_EACH(WAYS, preallocated_memory_stays) {
    uint64_t reserved;

    open_way(_i, 0);
    OK(weir_preallocate(a, GIB, NULL));
    alloc_and_free_each(8, A, 0);
    CU(driver->cuCtxSynchronize());
    weir__model_advance(1000 * MS);
    touch(A);
    MUST_BE_WITHIN(GIB, reserved_now(), GIB + slack(_i));
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, SIZE_MAX, NULL));
    reserved = reserved_now();
    weir__model_advance(1000 * MS);
    touch(A);
    MUST_EQ(stats_of(a).reserved, reserved);
    close_it();
}

SUITE("threshold", CK_FORK);
