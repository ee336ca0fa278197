/* SPDX-License-Identifier: MIT */
/* test_limit.c: a limit that the program sets while an allocator is in use, with each engine, on the device model. */
#include "tests/fixtures/every_kind.h"
#include "tests/fixtures/logged.h"
#include "tests/fixtures/under_test.h"

static weir_amount of_total(uint64_t percent) {
    return (weir_amount){.value = percent * 10000, .kind = WEIR_AMOUNT_OF_TOTAL};
}

static const weir_amount none = {.value = 0, .kind = WEIR_AMOUNT_MAX};

/* Makes an allocator of a world. A fixed arena has `fixed` bytes. */
static void make_in_world_on(const struct weir_driver *on, int world, uint64_t fixed,
                             const char *settings) {
    weir_options options = model_options(world, fixed);

    apply_settings(&options, settings);
    make_with_on(on, &options);
}

static void make_in_world(int world, uint64_t fixed, const char *settings) {
    make_in_world_on(driver, world, fixed, settings);
}

static void begin_limited_world(int world, uint64_t limit) {
    char settings[40];

    snprintf(settings, sizeof settings, "limit=%lluB", (unsigned long long)limit);
    start_model(8 * GIB);
    make_in_world(world, limit, settings);
}

static void end_limited_world(void) {
    free_all_live();
    CU(driver->cuCtxSynchronize());
    MUST_EQ(check_identities(a).blocks, 0);
    destroy();
}

static void end_if_begun(void) {
    if (a)
        end_limited_world();
}

/* Checks that a fixed arena refuses a new limit, and returns 1. Returns 0 for each other engine. */
static int is_fixed(int world) {
    if (worlds[world].kind != KIND_FIXED)
        return 0;
    begin_limited_world(world, GIB);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_set_limit(a, bytes_amount(GIB)));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_set_limit(a, none));
    end_limited_world();
    return 1;
}

CASE("limit", 30, NULL, end_if_begun);

TEST_EACH(WORLDS, no_growth_exceeds_the_limit) {
    if (is_fixed(_i))
        return;
    begin_limited_world(_i, GIB);
    OK(weir_set_limit(a, bytes_amount(256 * MIB)));
    expect_alloc_status(WEIR_E_LIMIT, 300 * MIB, A);
    alloc_live(150 * MIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 150 * MIB, A);
    MUST_LE(check_identities(a).reserved, 256 * MIB);
    OK(weir_set_limit(a, bytes_amount(512 * MIB)));
    alloc_live(150 * MIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 300 * MIB, A);
    MUST_LE(check_identities(a).reserved, 512 * MIB);
}

/* weir does not try a request that cannot fit, because the driver could release memory grown for that request only
 * after the stream's work is done. */
TEST_EACH(WORLDS, no_growth_past_it_behind_work) {
    if (is_fixed(_i))
        return;
    begin_limited_world(_i, GIB);
    OK(weir_set_limit(a, bytes_amount(256 * MIB)));
    alloc_live(150 * MIB, A);
    CU(weir__model_kernel(A, (uint64_t)60 * 1000000000));
    expect_alloc_status(WEIR_E_LIMIT, 150 * MIB, A);
    MUST_LE(check_identities(a).reserved, 256 * MIB);
}

/* The device lacks memory, too, but weir reports the limit as the cause. */
TEST(the_limit_is_reported_before_the_device) {
    size_t free_bytes, total;
    CUdeviceptr others;
    begin_limited_world(1, 64 * MIB); /* the driver reports only that the pool is out of memory */
    alloc_live(60 * MIB, A);
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    CU(driver->cuMemAlloc(&others, free_bytes - 10 * MIB));
    expect_alloc_status(WEIR_E_LIMIT, 30 * MIB, A);
    CU(driver->cuMemFree(others));
}

TEST_EACH(WORLDS, a_later_limit_never_exceeds_that_of_the_options) {
    if (is_fixed(_i))
        return;
    begin_limited_world(_i, GIB);
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    OK(weir_set_limit(a, bytes_amount(6 * GIB)));
    expect_alloc_status(WEIR_E_LIMIT, GIB + 64 * MIB, A);
    void *block = alloc_live(900 * MIB, A);
    free_live(block, A);
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    OK(weir_set_limit(a, (weir_amount){0, WEIR_AMOUNT_DEFAULT}));
    free_live(alloc_live(900 * MIB, A), A);
    OK(weir_set_limit(a, none));
    free_live(alloc_live(900 * MIB, A), A);
    expect_alloc_status(WEIR_E_LIMIT, GIB + 64 * MIB, A);
}

/* Reserved memory above the limit still serves requests. A trim releases that memory, and weir does not reserve it
 * again. */
TEST_EACH(WORLDS, a_reserve_above_it_serves_and_does_not_rise) {
    void *others[4], *more[20];
    size_t count;
    if (is_fixed(_i))
        return;
    begin_limited_world(_i, 2 * GIB);
    for (int i = 0; i < 4; i++)
        others[i] = alloc_live(200 * MIB, A);
    void *block = alloc_live(30 * MIB, A);
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    uint64_t reserve = stats_of(a).reserved;
    MUST_LE(800 * MIB, reserve);
    for (int i = 0; i < 3 && worlds[_i].kind != KIND_DIRECT; i++) { /* direct reserves nothing */
        free_live(block, A);
        block = alloc_live(30 * MIB, A);
        MUST_EQ(check_identities(a).reserved, reserve);
    }
    /* Each request is within the limit, but would grow the reserved memory if there is no room. */
    for (count = 0; count < 20; count++)
        if (weir_alloc(a, 120 * MIB, A, &more[count]) != WEIR_OK)
            break;
    MUST(count < 20 && count * 120 * MIB <= reserve - 830 * MIB);
    MUST_LE(stats_of(a).reserved, reserve);
    while (count > 0)
        free_live(more[--count], A);
    for (int i = 0; i < 4; i++)
        free_live(others[i], A);
    free_live(block, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    block = alloc_live(100 * MIB, A);
    MUST_LE(check_identities(a).reserved, 128 * MIB);
    expect_alloc_status(WEIR_E_LIMIT, 100 * MIB, A);
    MUST_LE(check_identities(a).reserved, 128 * MIB);
}

/* One piece of the reserved memory serves a request above the limit, unless only the driver knows the pieces or weir
 * keeps none. Setting the limit releases nothing. */
TEST_EACH(WORLDS, a_piece_above_it_serves) {
    if (is_fixed(_i))
        return;
    begin_limited_world(_i, GIB);
    free_live(alloc_live(400 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    uint64_t reserve = stats_of(a).reserved;
    OK(weir_set_limit(a, bytes_amount(64 * MIB)));
    MUST_EQ(stats_of(a).reserved, reserve);
    if (worlds[_i].kind == KIND_POOL || worlds[_i].kind == KIND_DIRECT)
        expect_alloc_status(WEIR_E_LIMIT, 300 * MIB, A);
    else
        free_live(alloc_live(300 * MIB, A), A);
}

/* Releasing memory cannot help a request above the limit, so its failure leaves the preallocated memory reserved. */
TEST_EACH(WORLDS, a_failure_of_more_gives_nothing_back) {
    void *block = NULL;
    if (is_fixed(_i) || worlds[_i].kind == KIND_DIRECT)
        return;
    begin_limited_world(_i, GIB);
    OK(weir_preallocate(a, 512 * MIB, NULL));
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    weir_status status = weir_alloc(a, 300 * MIB, A, &block);
    MUST(status == WEIR_OK || status == WEIR_E_LIMIT);
    MUST(status == WEIR_OK || worlds[_i].kind == KIND_POOL); /* only the driver knows the pieces */
    MUST_EQ(stats_of(a).reserved, 512 * MIB);
    if (status == WEIR_OK)
        free_live(block, A);
    block = alloc_live(100 * MIB, A);
    MUST_EQ(stats_of(a).reserved, 512 * MIB);
}

TEST_EACH(WORLDS, a_limit_may_be_a_share_of_the_device) {
    if (is_fixed(_i))
        return;
    begin_limited_world(_i, 8 * GIB);
    OK(weir_set_limit(a, of_total(25)));
    expect_alloc_status(WEIR_E_LIMIT, 2 * GIB + 1, A);
    weir_failure failure = last_failure();
    MUST_EQ(failure.limit, 2 * GIB);
    free_live(alloc_live(GIB, A), A);
}

TEST_EACH(WORLDS, bad_limits_are_refused) {
    weir_options options = model_options(_i, 31 * MIB);
    char message[320] = "";

    start_model(8 * GIB);
    options.limit = bytes_amount(31 * MIB);
    if (worlds[_i].kind == KIND_POOL) {
        EXPECT(WEIR_E_LIMIT,
               weir__allocator_create_on(driver, &options, &a, message, sizeof message));
        MUST(strstr(message, "a limit of 31MiB leaves the engine nothing") != NULL);
    }
    options.device = "model:1";
    EXPECT(WEIR_E_NO_DEVICE,
           weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    MUST(strstr(message, "device 'model:1': there is 1 device, numbered from 0") != NULL);
    begin_limited_world(_i, GIB);
    EXPECT(WEIR_E_INVALID, weir_set_limit(NULL, none));
    EXPECT(WEIR_E_INVALID, weir_set_limit(a, (weir_amount){1, WEIR_AMOUNT_OF_IN_USE}));
    EXPECT(WEIR_E_INVALID, weir_set_limit(a, (weir_amount){1, -1}));
    EXPECT(WEIR_E_INVALID, weir_set_limit(a, (weir_amount){MIB, WEIR_AMOUNT_SHARE}));
    EXPECT(WEIR_E_INVALID, weir_set_limit(a, (weir_amount){1, WEIR_AMOUNT_SHARE + 1}));
    if (worlds[_i].kind != KIND_FIXED) {
        weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 0);
        EXPECT(WEIR_E_DRIVER, weir_set_limit(a, bytes_amount(64 * MIB)));
    }
    free_live(alloc_live(900 * MIB, A), A); /* nothing changed */
}

/* weir_set_limit and options.limit report one reason for each mistake. */
TEST(what_is_wrong_with_a_limit_is_told) {
    static const struct {
        weir_amount limit;
        const char *why;
    } wrong[] = {
        {{2000000, WEIR_AMOUNT_OF_TOTAL}, "it is more than 100%"},
        {{1000001, WEIR_AMOUNT_OF_FREE}, "it is more than 100%"},
        {{1, WEIR_AMOUNT_OF_IN_USE}, "it is a share of what is in use, which does not do here"},
        {{1, WEIR_AMOUNT_DEFAULT}, "it has a value but no kind"},
        {{1, WEIR_AMOUNT_SHARE + 1}, "there is no amount of kind 7"},
        {{1, WEIR_AMOUNT_SHARE}, "it is a share among processes, which does not do here"},
    };
    weir_options options = options_of(KIND_POOL, "model", 0);
    char as_option[320], expected[400];
    weir_allocator *none_made = NULL;

    catch_log();
    start_model(8 * GIB);
    options.log = WEIR_LOG_ERROR;
    OK(weir_allocator_create(&options, &a));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        EXPECT(WEIR_E_INVALID, weir_set_limit(a, wrong[i].limit));
        snprintf(expected, sizeof expected,
                 "weir: error: weir_set_limit: limit: %s; expected a size (4GiB, 512MB, 75%%, "
                 "90%%free, max)\n",
                 wrong[i].why);
        MUST(lines() == 1);
        ck_assert_str_eq(logged, expected);
        if (wrong[i].limit.kind == WEIR_AMOUNT_SHARE)
            continue;
        options.limit = wrong[i].limit;
        EXPECT(WEIR_E_INVALID, weir__allocator_create_on(driver, &options, &none_made, as_option,
                                                         sizeof as_option));
        snprintf(expected, sizeof expected, "limit: %s; expected ", wrong[i].why);
        MUST(strncmp(as_option, expected, strlen(expected)) == 0);
    }
    end_limited_world();
    options = options_of(KIND_FIXED, "model", GIB);
    options.log = WEIR_LOG_ERROR;
    OK(weir_allocator_create(&options, &a));
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_set_limit(a, bytes_amount(GIB)));
    MUST(lines() == 1 && strstr(logged, "weir_set_limit: the limit of engine bfc-fixed is its size"));
}

/* A limit below the memory in use, below a growth step or of 0 bytes is no mistake for any engine. */
TEST_EACH(WORLDS * 2, less_than_there_is) {
    static const size_t limits[] = {96 * MIB, 31 * MIB, 1, 0};
    int world = _i / 2, leaves = _i % 2; /* 1 if keep-free is set */
    weir_options options = model_options(world, 2 * GIB);
    void *block;

    if (worlds[world].kind == KIND_FIXED)
        return;
    start_model(8 * GIB);
    if (leaves)
        options.keep_free = bytes_amount(GIB);
    OK(weir_allocator_create(&options, &a));
    for (int i = 0; i < 4; i++) {
        block = alloc_live(100 * MIB, A);
        OK(weir_set_limit(a, bytes_amount(limits[i])));
        expect_alloc_status(WEIR_E_LIMIT, 200 * MIB, A);
        free_live(block, A);
        CU(driver->cuCtxSynchronize());
        OK(weir_trim(a, 0, NULL));
        MUST_EQ(check_identities(a).reserved, 0);
        expect_alloc_status(WEIR_E_LIMIT, 100 * MIB, A);
        expect_alloc_status(WEIR_E_LIMIT, limits[i] < 32 * MIB ? 32 * MIB : 97 * MIB, A);
        if (worlds[world].kind != KIND_DIRECT)
            EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 128 * MIB, NULL));
        OK(weir_set_limit(a, none));
        MUST_LE(check_identities(a).reserved, limits[i]);
    }
}

/* If the driver does not report the free memory, only the limit applies. */
TEST_EACH(WORLDS, only_the_limit_applies_if_free_memory_is_unknown) {
    start_model(8 * GIB);
    make_in_world(_i, 2 * GIB, "keep-free=5GiB");
    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
    free_live(alloc_live(GIB, A), A);
    weir__model_faults_clear();
}

/* Growth leaves the keep-free amount to other processes, whatever limit the program sets. Memory that others allocate
 * leaves less for the next growth. A fixed arena does not grow. */
TEST_EACH(WORLDS, growth_keeps_room_free_for_others) {
    CUdeviceptr others;
    start_model(8 * GIB);
    make_in_world(_i, 2 * GIB, "keep-free=5GiB growth=exact");
    if (worlds[_i].kind == KIND_FIXED) {
        free_live(alloc_live(2 * GIB - MIB, A), A);
        end_limited_world();
        return;
    }
    alloc_live(2 * GIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 2 * GIB, A);
    free_live(alloc_live(512 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    OK(weir_set_limit(a, bytes_amount(2 * GIB + 256 * MIB)));
    expect_alloc_status(WEIR_E_LIMIT, 512 * MIB, A);
    OK(weir_set_limit(a, none));
    CU(driver->cuMemAlloc(&others, 768 * MIB));
    void *more = alloc_live(192 * MIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 512 * MIB, A);
    free_live(more, A);
    CU(driver->cuMemFree(others));
    free_live(alloc_live(512 * MIB, A), A);
}

/* Without another process, a share is the whole device, in whole units. A limit that the program sets replaces the
 * share. */
TEST_EACH(WORLDS, a_share_with_nobody_beside_it) {
    weir_options options = model_options(_i, 0);
    void *block = NULL;

    start_model(512 * MIB + 8 * MIB);
    options.limit = (weir_amount){.value = 2000000, .kind = WEIR_AMOUNT_SHARE};
    options.growth = WEIR_GROWTH_EXACT;
    OK(weir_allocator_create(&options, &a));
    if (worlds[_i].kind == KIND_FIXED)
        MUST_EQ(stats_of(a).reserved, 512 * MIB);
    MUST(weir_alloc(a, 513 * MIB, A, &block) != WEIR_OK && block == NULL);
    weir_failure failure = last_failure();
    MUST_EQ(failure.limit, 512 * MIB);
    free_live(alloc_live(480 * MIB, A), A);
    if (worlds[_i].kind != KIND_FIXED) {
        CU(driver->cuCtxSynchronize());
        OK(weir_trim(a, 0, NULL));
        OK(weir_set_limit(a, bytes_amount(256 * MIB)));
        expect_alloc_status(WEIR_E_LIMIT, 300 * MIB, A);
        free_live(alloc_live(200 * MIB, A), A);
    }
}

/* A share of 0 leaves no memory to allocate from. A share may be preallocated, too. */
TEST(a_share_of_nothing_and_one_beforehand) {
    weir_options options = options_of(KIND_POOL, "model", 0);

    start_model(256 * MIB);
    options.limit = (weir_amount){.value = 0, .kind = WEIR_AMOUNT_SHARE};
    EXPECT(WEIR_E_INVALID, weir_allocator_create(&options, &a));
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_DEFAULT};
    options.prealloc = (weir_amount){.value = 500000, .kind = WEIR_AMOUNT_SHARE};
    OK(weir_allocator_create(&options, &a));
    MUST_EQ(stats_of(a).reserved, 224 * MIB); /* a 64th stays free, and the rest is whole units */
}

/* Other code may allocate from weir's pool within its limit, and may use memory that weir preallocated. */
TEST_EACH(WORLDS, a_shared_pool_is_held_to_it) {
    CUmemoryPool pool = NULL;
    CUdeviceptr block = 0, none_such = 0;

    begin_limited_world(_i, 128 * MIB);
    EXPECT(WEIR_E_INVALID, weir_pool(NULL, &pool));
    EXPECT(WEIR_E_INVALID, weir_pool(a, NULL));
    if (worlds[_i].kind != KIND_POOL) {
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_pool(a, &pool));
        MUST(pool == NULL);
        end_limited_world();
        return;
    }
    OK(weir_pool(a, &pool));
    OK(weir_preallocate(a, 64 * MIB, NULL));
    CU(driver->cuMemAllocFromPoolAsync(&block, 60 * MIB, pool, A));
    MUST_EQ(stats_of(a).reserved, 64 * MIB);
    free_live(alloc_live(40 * MIB, A), A); /* a second block in the pool */
    MUST_LE(stats_of(a).reserved, 128 * MIB);
    MUST_EQ(driver->cuMemAllocFromPoolAsync(&none_such, 128 * MIB, pool, A),
            CUDA_ERROR_OUT_OF_MEMORY);
    CU(driver->cuMemFreeAsync(block, A));
}

static void start_older(int version) {
    char path[] = "/tmp/weir-limit-XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");

    MUST(file != NULL && fprintf(file, "driver_version = %d\n", version) > 0);
    ANSWERS(0, fclose(file));
    start_model(8 * GIB);
    ANSWERS(0, weir__model_reset(&(struct weir_model_setup){.capacity = 8 * GIB, .profile = path}));
    remove(path);
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamCreate(&B, CU_STREAM_NON_BLOCKING));
}

/* Drivers before 12.2 have no limit of a pool. The oldest one does not report a pool's reserved memory either. */
TEST_EACH(2, limits_hold_with_older_drivers) {
    static const int versions[] = {11020, 12010};
    start_older(versions[_i]);
    make_in_world(1, 0, "limit=1GiB");
    void *block = alloc_live(60 * MIB, A);
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    expect_alloc_status(WEIR_E_LIMIT, 100 * MIB, A);
    free_live(block, A);
    CU(driver->cuStreamSynchronize(A));
    block = alloc_live(100 * MIB, A);
    OK(weir_set_limit(a, none));
    free_live(alloc_live(800 * MIB, A), A);
}

/* Memory that an older driver grew above the limit goes back at once, because weir waits for the requesting stream,
 * which is idle. */
TEST(what_is_undone_goes_at_once) {
    start_older(12010);
    make_in_world(1, 0, "limit=128MiB recovery-timeout=0");
    void *block = alloc_live(60 * MIB, A);
    CU(weir__model_kernel(A, (uint64_t)60 * 1000000000));
    free_live(block, A);
    expect_alloc_status(WEIR_E_LIMIT, 100 * MIB, B); /* the free on A is still pending */
    MUST_LE(stats_of(a).reserved, 128 * MIB);
    CU(driver->cuStreamSynchronize(A));
    OK(weir_alloc(a, 100 * MIB, B, &block));
    OK(weir_free(a, block, B));
}

/* If an older driver does not take memory above the limit back at once, weir waits for the device. If the wait fails,
 * too, the memory stays reserved. */
TEST(what_is_undone_goes_in_the_end) {
    start_older(12010);
    make_in_world(1, 0, "limit=1GiB recovery-timeout=0");
    void *block = alloc_live(60 * MIB, A);
    CU(weir__model_kernel(A, (uint64_t)60 * 1000000000));
    free_live(block, A);
    OK(weir_set_limit(a, bytes_amount(96 * MIB)));
    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_UNKNOWN, 1);
    expect_alloc_status(WEIR_E_LIMIT, 60 * MIB, B); /* the free on A is still pending */
    uint64_t reserve = stats_of(a).reserved;
    MUST_LE(96 * MIB, reserve);
    OK(weir_trim(a, 0, NULL)); /* the trim leaves the memory of the undone request */
    weir__model_faults_clear();
    MUST_EQ(stats_of(a).requested, 0);
    MUST_EQ(stats_of(a).reserved, reserve);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).reserved, 0);
    OK(weir_set_limit(a, none));
    free_live(alloc_live(100 * MIB, A), A);
}

TEST_EACH(2, what_is_undone_breaks_no_capture) {
    for (uint64_t k = 1; k < 5; k++) {
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
        void *block = NULL;

        begin_limited_world(_i, GIB); /* the pool engine, with caches and without */
        OK(weir_set_limit(a, bytes_amount(512 * MIB)));
        CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
        weir__model_fail(WEIR_ENTRY_cuMemPoolGetAttribute, k, CUDA_ERROR_OUT_OF_MEMORY, 1);
        if (weir_alloc(a, MIB, A, &block) == WEIR_OK)
            OK(weir_free(a, block, A));
        weir__model_faults_clear();
        CU(driver->cuStreamIsCapturing(A, &status));
        MUST_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        drop_capture(A);
        end_limited_world();
    }
}

/* ---- keep-free ------------------------------------------------------------------------------- */

static void (*between)(void); /* called once, just before cuMemGetInfo returns */

static CUresult look_and_act(size_t *free_bytes, size_t *total) {
    void (*act)(void) = between;

    between = NULL;
    if (act)
        act();
    return driver->cuMemGetInfo(free_bytes, total);
}

/* Makes an allocator that keeps 1 of 8 GiB free. */
static void begin_leaving(int world, int kind) {
    static struct weir_driver watched;
    weir_options options = options_of(kind, "model", 0);

    start_model(8 * GIB);
    watched = *driver;
    watched.cuMemGetInfo = look_and_act;
    options.cache = worlds[world].cache;
    options.keep_free = bytes_amount(GIB);
    OK(weir__allocator_create_on(&watched, &options, &a, NULL, 0));
}

static const int kinds_leaving[] = {KIND_POOL, KIND_REGIONS, KIND_MAPPED};

/* Preallocation uses memory that others have freed meanwhile. */
TEST_EACH(3, preallocation_beside_what_is_free_now) {
    CUdeviceptr others;
    size_t reserve;

    begin_leaving(0, kinds_leaving[_i]);
    CU(driver->cuMemAlloc(&others, 6 * GIB));
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 4 * GIB, &reserve));
    MUST_LE(GIB, device_free());
    CU(driver->cuMemFree(others));
    OK(weir_preallocate(a, 4 * GIB, &reserve));
    MUST_EQ(reserve, 4 * GIB);
    CU(driver->cuMemAlloc(&others, 2 * GIB));
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 6 * GIB, &reserve));
    MUST_LE(GIB, device_free());
    CU(driver->cuMemFree(others));
}

static void *grown;

static void grow_between(void) {
    grown = alloc_live(3 * GIB, A);
}

static void lower_between(void) {
    OK(weir_set_limit(a, bytes_amount(512 * MIB)));
}

/* Preallocation reads the free memory while another call lowers the limit. It does not replace the new limit. */
TEST_EACH(3, preallocation_keeps_a_limit_that_is_set_meanwhile) {
    size_t reserve;

    begin_leaving(0, kinds_leaving[_i]);
    between = lower_between;
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 7 * GIB + 64 * MIB, &reserve));
    MUST(between == NULL);
    expect_alloc_status(WEIR_E_LIMIT, GIB, A);
    free_live(alloc_live(256 * MIB, A), A);
}

static void *steps[8];
static int step_count;

/* Grows each time that weir reads the free memory, eight times at most. */
static void step_between(void) {
    steps[step_count] = alloc_live(512 * MIB, A);
    if (++step_count < (int)(sizeof steps / sizeof steps[0]))
        between = step_between;
}

static void shrink_between(void) {
    OK(weir_trim(a, 0, NULL));
}

TEST_EACH(3, growth_between_two_figures_is_counted) {
    size_t reserve;

    begin_leaving(0, kinds_leaving[_i]);
    between = grow_between;
    OK(weir_preallocate(a, 6 * GIB, &reserve));
    MUST(between == NULL);
    MUST_LE(6 * GIB, reserve);
    free_live(grown, A);
}

TEST_EACH(3, a_trim_between_the_figures) {
    size_t reserve;

    begin_leaving(0, kinds_leaving[_i]);
    OK(weir_preallocate(a, 3 * GIB, &reserve));
    between = shrink_between;
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 8 * GIB, &reserve));
    MUST(between == NULL);
    MUST_LE(GIB, device_free());
}

/* Preallocation stops reading the free memory after four times, although other calls grow each time. */
TEST_EACH(3, preallocation_looks_four_times_at_most) {
    size_t reserve;

    begin_leaving(0, kinds_leaving[_i]);
    between = step_between;
    OK(weir_preallocate(a, 5 * GIB, &reserve));
    between = NULL;
    MUST_EQ(step_count, 4);
    MUST_LE(GIB, device_free());
    while (step_count > 0)
        free_live(steps[--step_count], A);
}

/* Memory that the driver releases while weir undoes a request does not come back above the limit. */
TEST(what_was_lost_stays_lost) {
    enum { FULL = 9, HALVES = 4 };
    void *full[FULL], *half[HALVES];
    uint64_t least;

    begin_limited_world(1, 4 * GIB); /* the pool engine without caches */
    for (int i = 0; i < FULL; i++)
        full[i] = alloc_live(32 * MIB, A);
    for (int i = 0; i < HALVES; i++)
        half[i] = alloc_live(16 * MIB, A);
    MUST_EQ(stats_of(a).reserved, 352 * MIB);
    free_live(full[0], A);
    free_live(half[0], A);
    free_live(half[2], A);
    CU(driver->cuStreamSynchronize(A));
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    expect_alloc_status(WEIR_E_LIMIT, 64 * MIB,
                        A); /* undoing the driver's growth releases idle memory, too */
    least = stats_of(a).reserved;
    MUST_LE(least, 320 * MIB);
    expect_alloc_status(WEIR_E_LIMIT, 32 * MIB, A);
    MUST_LE(stats_of(a).reserved, least);
    for (int i = 1; i < FULL; i++)
        free_live(full[i], A);
    free_live(half[1], A);
    free_live(half[3], A);
}

SUITE("limit", CK_FORK_GETENV);
