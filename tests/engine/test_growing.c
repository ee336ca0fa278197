/* SPDX-License-Identifier: MIT */
/* test_growing.c: how reserved memory grows, step by step, against figures computed by hand; preallocation; and log
 * messages about settings without effect. */
#include "config.h"

#include "tests/fixtures/engines.h"

#include "base/result.h"

/* ---- growth ---------------------------------------------------------------------------------- */

enum { MOST_STEPS = 8 };

struct growth_case {
    const char *name, *growth;
    size_t limit, request;
    size_t reserved[MOST_STEPS]; /* MiB after each request; 0 if it is refused */
};

/* Requests of one size, none freed.  The pool takes units of 32 MiB. */
static const struct growth_case pool_cases[] = {
    {"exact", "exact", 0, 40, {64, 96, 128, 160, 224, 256, 288, 320}},
    {"step", "step:64MiB", 0, 40, {64, 128, 128, 192, 256, 256, 320, 320}},
    {"large step", "step:256MiB", 0, 40, {256, 256, 256, 256, 256, 256, 512, 512}},
    {"step under a limit", "step:128MiB", 200, 40, {128, 128, 128, 192, 0, 0, 0, 0}},
    {"geometric", "geometric:2", 0, 40, {64, 128, 128, 256, 256, 256, 512, 512}},
    {"geometric, capped", "geometric:2:64MiB", 0, 40, {64, 128, 128, 192, 256, 256, 320, 320}},
    {"one and a half", "geometric:1.5", 0, 40, {64, 96, 128, 192, 288, 288, 288, 416}},
    {"remaining", "remaining:0.5", 1024, 200, {512, 512, 768, 896, 1024, 0, 0, 0}},
    {"bfc", "bfc", 0, 40, {64, 128, 128, 256, 256, 256, 512, 512}},
};

static const struct growth_case arena_cases[] = {
    {"exact", "exact", 0, 40, {40, 80, 120, 160, 200, 240, 280, 320}},
    {"step", "step:64MiB", 0, 40, {64, 128, 192, 256, 320, 384, 448, 512}},
    {"large step", "step:256MiB", 0, 40, {256, 256, 256, 256, 256, 256, 512, 512}},
    {"step under a limit", "step:128MiB", 200, 40, {128, 128, 128, 200, 0, 0, 0, 0}},
    {"geometric", "geometric:2", 0, 40, {40, 80, 160, 160, 320, 320, 320, 320}},
    {"geometric, capped", "geometric:2:64MiB", 0, 40, {40, 80, 144, 208, 272, 336, 400, 464}},
    {"remaining", "remaining:0.5", 1024, 200, {512, 512, 768, 968, 0, 0, 0, 0}},
    {"bfc", "bfc", 0, 40, {64, 128, 256, 256, 256, 512, 512, 512}},
};

/* Expects that the events add up to the reserved memory and have the right causes. */
static void check_growth_events(int is_pool) {
    weir_event events[32];
    uint64_t total = 0, grown = 0;
    size_t count;

    OK(weir_events(a, 0, events, sizeof events[0], 32, &count));
    for (size_t i = 0; i < count; i++) {
        total += events[i].shrink ? -events[i].got : events[i].got;
        ck_assert_uint_eq(events[i].reserved_after, total);
        ck_assert_int_eq(events[i].shrink, events[i].cause == WEIR_EVENT_RECOVERY);
        if (events[i].shrink)
            continue;
        grown += events[i].got;
        if (events[i].cause == WEIR_EVENT_POLICY) {
            ck_assert_int_eq(is_pool, 1);
            ck_assert_int_eq(events[i - 1].cause, WEIR_EVENT_REQUEST); /* it follows a request */
        } else {
            ck_assert_int_eq(events[i].cause, WEIR_EVENT_REQUEST);
        }
        ck_assert_uint_gt(events[i].stall_ns, 0);
    }
    ck_assert_uint_eq(total, reserved_under_test());
    ck_assert_uint_eq(stats_of(a).growth_bytes, grown);
}

static void run_growth_case(const struct growth_case *c, int kind) {
    weir_options options = default_options(kind, c->limit * MIB);
    uint64_t before = 0;

    OK(weir_options_set(&options, "growth", c->growth, NULL, 0));
    make_with(&options);
    for (int i = 0; i < MOST_STEPS; i++) {
        void *block;
        weir_status status = weir_alloc(a, c->request * MIB, A, &block);
        weir_statistics s = check_identities(a);

        if (c->reserved[i] == 0) {
            EXPECT(WEIR_E_LIMIT, status);
            ck_assert_uint_le(s.reserved, before); /* OOM recovery gave idle units back */
            continue;
        }
        OK(status);
        ck_assert_msg(s.reserved == c->reserved[i] * MIB, "%s, request %d: %zu MiB, not %zu",
                      c->name, i + 1, (size_t)(s.reserved / MIB), c->reserved[i]);
        ck_assert_uint_eq(s.hits, (uint64_t)(i + 1) - s.growth_allocs);
        before = s.reserved;
    }
    check_growth_events(kind == KIND_POOL);
    abandon();
}

CASE("alone", 120, open_engine_device, end_test);

TEST_EACH(ROWS(pool_cases), pool_grows_by_its_policy) {
    run_growth_case(&pool_cases[_i], KIND_POOL);
}

TEST_EACH(ROWS(arena_cases), arena_grows_by_its_policy) {
    run_growth_case(&arena_cases[_i], KIND_REGIONS);
}

/* TensorFlow's own sequence for small requests: 2, 4, 8 MiB, ... */
TEST(bfc_regions_double) {
    make_engine(KIND_REGIONS, 0, "");
    static const size_t mib[] = {2, 2, 6, 6, 6, 6, 14, 14, 14, 14, 14, 14, 14, 14, 30};

    for (size_t i = 0; i < sizeof mib / sizeof mib[0]; i++) {
        alloc_live(MIB, A);
        ck_assert_uint_eq(reserved_under_test(), mib[i] * MIB);
    }
}

/* A trim also resets the size of the next region. */
TEST_WHERE(0, KIND_DIRECT, is_not_fixed, bfc_regions_double_from_what_is_left) {
    void *block[64];
    uint64_t first = 0;

    make_engine(_i, 0, "growth=bfc");
    alloc_live(MIB, A);
    first = reserved_under_test();
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 64; i++)
            block[i] = alloc_live(4 * MIB, A);
        ck_assert_uint_le(reserved_under_test(), GIB);
        for (int i = 0; i < 64; i++)
            free_live(block[i], A);
        CU(driver->cuCtxSynchronize());
        OK(weir_trim(a, 0, NULL));
        ck_assert_uint_le(reserved_under_test(), first);
    }
}

static weir_growth_state told[4];
static int times_told;

static size_t hundred(const weir_growth_state *state, void *context) {
    ck_assert_ptr_eq(context, &times_told);
    told[times_told++] = *state;
    return 100 * MIB;
}

TEST_WHERE(0, KIND_DIRECT, is_pool_or_regions, a_callback_is_told_the_figures) {
    weir_options options = default_options(_i, 1000 * MIB);

    options.growth = WEIR_GROWTH_CALLBACK;
    options.growth_function = hundred;
    options.growth_context = &times_told;
    times_told = 0;
    make_with(&options);
    alloc_live(40 * MIB, A);
    ck_assert_int_eq(times_told, 1);
    ck_assert_uint_eq(told[0].size, sizeof told[0]);
    ck_assert_uint_eq(told[0].request, 40 * MIB);
    ck_assert_uint_eq(told[0].reserved, 0);
    ck_assert_uint_eq(told[0].limit, (_i == KIND_POOL ? 992 : 1000) * MIB);
    ck_assert_uint_eq(told[0].device_free, 4 * GIB);
    ck_assert_uint_eq(told[0].steps, 0);
    ck_assert_uint_eq(told[0].last_step, 0);
    ck_assert_uint_eq(reserved_under_test(), (_i == KIND_POOL ? 96 : 100) * MIB);
    alloc_live(40 * MIB, A);
    alloc_live(40 * MIB, A);
    ck_assert_int_eq(times_told, 2);
    ck_assert_uint_eq(told[1].steps, 1);
    ck_assert_uint_eq(told[1].last_step, (_i == KIND_POOL ? 96 : 100) * MIB);
    ck_assert_uint_eq(told[1].reserved, (_i == KIND_POOL ? 96 : 100) * MIB);
    ck_assert_uint_ge(told[1].in_use, 80 * MIB);
}

/* Another program holds most of the device: the step is cut to the free memory, and the request succeeds. */
TEST_EACH(8, a_nearly_full_device_cuts_the_step) {
    static const char *const policies[] = {"growth=step:512MiB", "growth=remaining:1",
                                           "growth=geometric:8", "growth=bfc"};
    CUdeviceptr others;

    CU(driver->cuMemAlloc(&others, 4 * GIB - 200 * MIB));
    make_engine(_i % 2 ? KIND_POOL : KIND_REGIONS, 0, policies[_i / 2]);
    alloc_live(40 * MIB, A);
    alloc_live(40 * MIB, A);
    alloc_live(40 * MIB, A);
    ck_assert_uint_le(reserved_under_test(), 200 * MIB);
    check_growth_events(_i % 2);
    expect_alloc_status(WEIR_E_NO_MEMORY, 150 * MIB, A);
    CU(driver->cuMemFree(others));
    alloc_live(150 * MIB, A); /* the next call works */
    check_identities(a);
}

/* A step that the device refuses for long does not make the next one larger. */
TEST(refused_steps_do_not_double) {
    CUdeviceptr others;

    make_engine(KIND_REGIONS, 0, "recovery-timeout=500ms");
    alloc_live(MIB, A);
    free_live(alloc_live(MIB, B), B); /* a silent stream, so that OOM recovery asks many times */
    CU(driver->cuMemAlloc(&others, 4 * GIB - 2 * MIB));
    expect_alloc_status(WEIR_E_NO_MEMORY, 2 * MIB, A);
    CU(driver->cuMemFree(others));
    alloc_live(2 * MIB, A);
    ck_assert_uint_eq(reserved_under_test(), 6 * MIB);
}

/* BFC tries steps of 16, 14.4, 13, 11.7 and 10.5 MiB, each a tenth smaller.  Even the last one would take 12 MiB. */
TEST(what_just_fits_is_served) {
    make_engine(KIND_REGIONS, 0, "");
    CUdeviceptr others;

    CU(driver->cuMemAlloc(&others, 4 * GIB - 10 * MIB));
    alloc_live(10 * MIB, A);
    ck_assert_uint_eq(reserved_under_test(), 10 * MIB);
    CU(driver->cuMemFree(others));
}

/* Runs `what` with standard error in a file.  Returns the text. */
static const char *logged(void (*what)(void)) {
    static char text[4096];
    char name[] = "/tmp/weir-test-XXXXXX";
    int file = mkstemp(name), saved = dup(STDERR_FILENO);
    ck_assert_int_ge(file, 0);
    unlink(name);
    dup2(file, STDERR_FILENO);
    what();
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    text[bytes < 0 ? 0 : bytes] = '\0';
    close(file);
    return text;
}

static weir_options logging;

static void create_and_destroy(void) {
    make_with(&logging);
    destroy();
}

/* Sets options for an allocator of this kind that logs warnings. */
static void log_warnings(int kind, size_t limit) {
    logging = default_options(kind, limit);
    logging.log = WEIR_LOG_WARNING;
}

/* Expects that `what` logs `words`, or nothing if `words` is empty. */
static void expect_logged(void (*what)(void), const char *words) {
    const char *text = logged(what);

    ck_assert_msg(*words ? strstr(text, words) != NULL : !*text, "not \"%s\": %s", words, text);
}

static void expect_creation_warning(const char *words) {
    expect_logged(create_and_destroy, words);
}

TEST(a_threshold_that_throws_steps_away_draws_a_warning) {
    log_warnings(KIND_POOL, 0);
    logging.growth = WEIR_GROWTH_STEP;
    expect_creation_warning("");
    logging.release_threshold = bytes_amount(0);
    expect_creation_warning("warning: the release threshold");
    logging.prealloc = bytes_amount(64 * MIB); /* raises the threshold */
    expect_creation_warning("");
    logging.prealloc = (weir_amount){.kind = WEIR_AMOUNT_DEFAULT};
    logging.growth = WEIR_GROWTH_EXACT;
    expect_creation_warning("");
    logging.growth = WEIR_GROWTH_STEP;
    logging.log = WEIR_LOG_ERROR;
    expect_creation_warning("");
    logging.log = WEIR_LOG_WARNING;
    logging.engine = WEIR_ENGINE_BFC;
    ck_assert_ptr_null(strstr(logged(create_and_destroy), "makes each synchronisation release"));
}

static void ask_for_too_much(void) {
    make_with(&logging);

    expect_alloc_status(WEIR_E_LIMIT, 65 * MIB, A);
}

static void ask_where_the_driver_does_not_tell(void) {
    make_with(&logging);

    weir__model_fail(WEIR_ENTRY_cuMemGetInfo, 1, CUDA_ERROR_UNKNOWN, 1);
    expect_alloc_status(WEIR_E_LIMIT, 65 * MIB, A);
    weir__model_faults_clear();
}

TEST(a_failure_is_logged) {
    log_warnings(KIND_FIXED, 64 * MIB);
    expect_logged(ask_for_too_much,
                  "limit is reached: could not allocate 65MiB; limit 64MiB, reserved 64MiB, in use "
                  "0B, free on the device 3.94GiB; at least 64MiB would fit now");
    expect_logged(ask_where_the_driver_does_not_tell, ", free on the device not known; at least ");
    logging.log = WEIR_LOG_ERROR;
    expect_logged(ask_for_too_much, "");
}

TEST(growth_is_logged) {
    logging = default_options(KIND_REGIONS, 0);
    logging.log = WEIR_LOG_INFO;
    logging.prealloc = bytes_amount(64 * MIB);
    expect_creation_warning("reserved memory grew by 64MiB (prealloc), now 64MiB, ");
    logging.log = WEIR_LOG_WARNING;
    expect_creation_warning("");
}

TEST(shares_that_do_not_fall_draw_a_warning) {
    static const weir_amount share = {.value = 1000000, .kind = WEIR_AMOUNT_SHARE};
    const weir_amount much[] = {share, {.kind = WEIR_AMOUNT_MAX}, bytes_amount(2049 * MIB)};

    log_warnings(KIND_FIXED, 0);
    logging.limit = share;
    expect_creation_warning("engine bfc-fixed keeps the share that it has now");
    log_warnings(KIND_REGIONS, 0);
    logging.limit = share;
    expect_creation_warning("");
    logging.prealloc = bytes_amount(64 * MIB); /* small enough for any share */
    expect_creation_warning("");
    for (size_t i = 0; i < sizeof much / sizeof much[0]; i++) {
        logging.prealloc = much[i];
        expect_creation_warning("goes whole or not at all");
    }
    logging.engine = WEIR_ENGINE_MAPPED;
    expect_creation_warning("");
    log_warnings(KIND_POOL, 0);
    logging.limit = logging.prealloc = share;
    expect_creation_warning("");
}

TEST(settings_without_effect_draw_a_warning) {
    log_warnings(KIND_REGIONS, 0);
    expect_creation_warning("");
    logging.release_threshold = bytes_amount(MIB);
    expect_creation_warning("");
    log_warnings(KIND_MAPPED, 0);
    expect_creation_warning("");
    log_warnings(KIND_DIRECT, 0);
    expect_creation_warning("");
    logging.prealloc = bytes_amount(MIB);
    logging.growth = WEIR_GROWTH_STEP;
    expect_creation_warning("prealloc has no effect");
    expect_creation_warning("growth has no effect");
    log_warnings(KIND_FIXED, GIB);
    expect_creation_warning("");
    logging.keep_free = bytes_amount(MIB);
    expect_creation_warning(
        "keep-free has no effect with engine bfc-fixed: its size is the limit\n");
}

static CUresult in_small_pieces(CUdeviceptr *block, size_t bytes, CUmemoryPool pool,
                                CUstream stream) {
    return bytes > 32 * MIB ? CUDA_ERROR_OUT_OF_MEMORY
                            : driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);
}

/* The device has only small pieces.  weir preallocates as many of them as it can hold at once. */
TEST(a_preallocation_takes_many_pieces) {
    start_model(40 * GIB);
    copy_driver();
    table.cuMemAllocFromPoolAsync = in_small_pieces;
    make_engine_on(&table, KIND_POOL, 0, "prealloc=20GiB");
    MUST_EQ(stats_of(a).reserved, 16 * GIB);
    MUST_EQ(stats_of(a).prealloc_got, 16 * GIB);
}

/* A preallocation does not write bytes that it does not know. */
TEST(a_preallocation_that_fails_tells_nothing) {
    make_engine(KIND_POOL, 0, "");
    size_t reserve = 4711;

    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_preallocate(a, 64 * MIB, &reserve));
    MUST_EQ(reserve, 4711);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, 8 * GIB, &reserve));
    MUST_EQ(reserve, stats_of(a).reserved);
    OK(weir_trim(a, 0, NULL));
    OK(weir_set_limit(a, bytes_amount(128 * MIB)));
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 256 * MIB, &reserve));
    MUST_EQ(reserve, 128 * MIB);
    MUST_EQ(stats_of(a).reserved, 128 * MIB);
}

/* NULL as options means the default settings. */
TEST(null_options_mean_the_defaults) {
    make_with(NULL);

    ck_assert_str_eq(weir_version(), PACKAGE_VERSION);
    free_live(alloc_live(MIB, A), A);
    MUST_EQ(stats_of(a).prealloc_asked, 0);
}

/* An arena below the smallest block could serve no request. */
TEST(a_fixed_arena_below_one_block_is_refused) {
    weir_options options = default_options(KIND_FIXED, 255);

    EXPECT(WEIR_E_LIMIT, weir__allocator_create_on(driver, &options, &a, NULL, 0));
    MUST(a == NULL);
    options.limit = bytes_amount(256);
    make_with(&options);
    free_live(alloc_live(1, A), A);
}

/* ---- preallocation --------------------------------------------------------------------------- */

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

TEST_WHERE(KIND_POOL, KIND_MAPPED + 1, NULL, preallocation_takes_what_is_there) {
    weir_options options = default_options(_i, 0);
    CUdeviceptr others;
    CU(driver->cuMemAlloc(&others, 4 * GIB - 300 * MIB));
    options.prealloc = bytes_amount(GIB);
    if (_i == KIND_FIXED)
        options.limit = bytes_amount(GIB);
    make_with(&options);
    weir_statistics s = check_identities(a);
    ck_assert_uint_eq(s.prealloc_asked, GIB);
    ck_assert_uint_le(s.prealloc_got, 300 * MIB);
    ck_assert_uint_ge(s.prealloc_got, 224 * MIB);
    ck_assert_uint_eq(s.prealloc_kept, s.prealloc_got);
    ck_assert_uint_eq(s.reserved, s.prealloc_got);
    ck_assert_int_eq(weir_last_driver_result(), 0);
    free_live(alloc_live(200 * MIB, A), A);
    destroy();
    /* Another allocation fills the device. */
    CU(driver->cuMemFree(others));
    CU(driver->cuMemAlloc(&others, 4 * GIB));
    a = NULL;
    EXPECT(WEIR_E_NO_MEMORY, weir__allocator_create_on(driver, &options, &a, NULL, 0));
    ck_assert_ptr_null(a);
    CU(driver->cuMemFree(others));
    ck_assert_uint_eq(device_free(), 4 * GIB);
}

CASE("alone", 120, open_engine_device, end_test);

/* A preallocation above the limit or the device makes creation fail, and later calls preallocate all there is. */
TEST(more_than_can_be_is_not_preallocated) {
    weir_options options = default_options(KIND_REGIONS, 64 * MIB);
    char message[320] = "";
    size_t reserved = 0;

    options.prealloc = (weir_amount){.value = 500000, .kind = WEIR_AMOUNT_OF_TOTAL};
    EXPECT(WEIR_E_LIMIT, weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    ck_assert_ptr_nonnull(strstr(message, "preallocation of 2GiB is above the limit of 64MiB"));
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    options.prealloc = bytes_amount(4 * GIB + 1);
    EXPECT(WEIR_E_NO_MEMORY,
           weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    ck_assert_ptr_nonnull(strstr(message, "is above the device's 4GiB"));
    options.engine = 99;
    weir__set_driver_result(CUDA_ERROR_UNKNOWN);
    EXPECT(WEIR_E_INVALID,
           weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    ck_assert_int_eq(weir_last_driver_result(), 0);
    ck_assert_ptr_nonnull(strstr(message, "engine"));
    ck_assert_ptr_null(a);
    options = default_options(KIND_REGIONS, 0);
    make_with(&options);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, SIZE_MAX, &reserved));
    ck_assert_uint_ge(reserved, 3 * GIB);
    destroy();
    ck_assert_uint_eq(device_free(), 4 * GIB);
}

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* "max" and percentages are parts of the device. */
TEST(amounts_are_of_the_device) {
    static const struct {
        const char *settings;
        uint64_t reserved;
    } amounts[] = {{"prealloc=25%", GIB},
                   {"prealloc=50%free", GIB + 512 * MIB},
                   {"prealloc=max", 3 * GIB},
                   {"prealloc=max limit=50%", 2 * GIB}};
    weir_options options;
    CUdeviceptr others;

    CU(driver->cuMemAlloc(&others, GIB));
    for (int i = 0; i < ROWS(amounts); i++) {
        make_engine(KIND_REGIONS, 0, amounts[i].settings);
        ck_assert_uint_eq(reserved_under_test(), amounts[i].reserved);
        destroy();
    }
    options = default_options(KIND_FIXED, 0);
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_DEFAULT};
    make_with(&options);
    ck_assert_uint_eq(reserved_under_test(), 3 * GIB); /* 75% of the device */
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Probe blocks that the driver fails to free after a step are freed by the next step or trim. */
TEST(probe_blocks_that_stay_are_given_back_later) {
    make_engine(KIND_POOL, 0, "growth=step:256MiB");
    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 1);
    void *block = alloc_live(MIB, A);
    weir__model_faults_clear();
    MUST_EQ(reserved_under_test(), 256 * MIB);
    free_live(block, A);
    OK(weir_trim(a, 0, NULL)); /* frees them; they stay pending until a synchronization */
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(reserved_under_test(), 0);
    destroy();
    MUST_EQ(device_free(), 4 * GIB);
}

/* The idle memory is so large that probe blocks as small as the step could not fill it. */
TEST(a_small_step_grows_above_much_idle_memory) {
    size_t bytes = 0;

    if (!is_roomy())
        return;
    start_model(64 * GIB);
    make_engine(KIND_POOL, 0, "prealloc=40GiB");
    OK(weir_preallocate(a, 40 * GIB + 32 * MIB, &bytes));
    MUST_BE_WITHIN(40 * GIB + 32 * MIB, bytes, 40 * GIB + 256 * MIB);
}

TEST(probe_blocks_that_stay_go_with_the_allocator) {
    make_engine(KIND_POOL, 0, "");

    weir__model_fail(WEIR_ENTRY_cuMemFreeAsync, 1, CUDA_ERROR_INVALID_VALUE, 1);
    OK(weir_preallocate(a, 256 * MIB, NULL));
    weir__model_faults_clear();
    destroy();
    MUST_EQ(device_free(), 4 * GIB);
}

/* A preallocation of more than the device has reserves all there is, and keeps it at a synchronization. */
TEST_WHERE(0, KIND_DIRECT, is_not_fixed, everything_can_be_preallocated) {
    make_engine(_i, 0, "release-threshold=0");
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, SIZE_MAX, NULL));
    uint64_t reserve = stats_of(a).reserved;
    MUST_LE(_i == KIND_REGIONS ? 3 * GIB : 4 * GIB, reserve); /* BFC goes down by tenths */
    free_live(alloc_live(20 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    MUST_EQ(stats_of(a).reserved, reserve);
}

CASE("alone", 120, open_engine_device, end_test);

TEST(what_is_preallocated_later_is_kept_too) {
    size_t got = 0;

    make_engine(KIND_POOL, 0, "release-threshold=0");
    OK(weir_preallocate(a, 256 * MIB, &got));
    ck_assert_uint_ge(got, 256 * MIB);
    CU(driver->cuCtxSynchronize());
    ck_assert_uint_ge(reserved_under_test(), 256 * MIB);
    weir__model_fail(WEIR_ENTRY_cuMemPoolSetAttribute, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, 512 * MIB, NULL)); /* it is not kept */
    weir__model_faults_clear();
    OK(weir_preallocate(a, 512 * MIB, NULL));
    CU(driver->cuCtxSynchronize());
    MUST_LE(512 * MIB, reserved_under_test());
}

TEST(what_a_policy_added_goes_at_a_trim) {
    make_engine(KIND_POOL, 0, "growth=step:512MiB");
    free_live(alloc_live(MIB, A), A);
    MUST_EQ(reserved_under_test(), 512 * MIB);
    CU(driver->cuStreamSynchronize(A)); /* the trim needs no other wait */
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(reserved_under_test(), 0);
}

TEST(probe_blocks_are_nobodys) {
    make_engine(KIND_POOL, 0, "prealloc=256MiB growth=step:512MiB");
    ck_assert_uint_eq(stats_of(a).requested_peak, 0);
    free_live(alloc_live(300 * MIB, A), A);
    ck_assert_uint_eq(stats_of(a).requested_peak, 300 * MIB);
}

/* Probe blocks wait for no work, so growth waits for none, and all streams can use the new memory at once. */
TEST(probe_blocks_are_behind_nobody) {
    make_engine(KIND_POOL, 0, "");
    busy(NULL, 50 * MS);
    OK(weir_preallocate(a, 256 * MIB, NULL));
    free_live(alloc_live(200 * MIB, A), A);
    free_live(alloc_live(200 * MIB, B), B);
    MUST_EQ(reserved_under_test(), 256 * MIB);
    MUST_LE(weir__model_now_ns(), 50 * MS);
}

/* Probe blocks never count as requested, even if the driver fails to reset its peak after a step or to free a probe
 * block. */
TEST_EACH(2, probe_blocks_that_stay_in_the_drivers_peak) {
    make_engine(KIND_POOL, 0, "");

    free_live(alloc_live(20 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    weir__model_fail(_i ? WEIR_ENTRY_cuMemFreeAsync : WEIR_ENTRY_cuMemPoolSetAttribute, 1,
                     CUDA_ERROR_INVALID_VALUE, 1);
    OK(weir_preallocate(a, 256 * MIB, NULL));
    MUST_EQ(stats_of(a).requested_peak, 20 * MIB);
    OK(weir_preallocate(a, 512 * MIB, NULL));
    MUST_EQ(stats_of(a).requested_peak, 20 * MIB);
    weir__model_faults_clear();
    MUST_EQ(stats_of(a).requested_peak, 20 * MIB);
    CU(driver->cuCtxSynchronize());
    free_live(alloc_live(30 * MIB, A), A); /* the driver's peak counts again */
    MUST_EQ(stats_of(a).requested_peak, 30 * MIB);
}

/* Only growth counts as stall, and weir still notices it after many requests without growth. */
TEST(only_growth_counts_as_a_stall) {
    make_engine(KIND_POOL, 0, "");
    free_live(alloc_live(64 * MIB, A), A);
    weir_statistics first = stats_of(a);
    for (int i = 0; i < 5000; i++)
        free_live(alloc_live(MIB, A), A);
    ck_assert_uint_eq(stats_of(a).stall_ns, first.stall_ns);
    alloc_live(192 * MIB, A);
    weir_statistics later = stats_of(a);
    ck_assert_uint_eq(later.growths, first.growths + 1);
    ck_assert_uint_eq(later.growth_allocs, first.growth_allocs + 1);
    ck_assert_uint_eq(later.growth_bytes, 192 * MIB);
    MUST_LE(first.stall_ns + 1, later.stall_ns);
}

static void *grow_beside(void *unused) {
    void *block = alloc_live(40 * MIB, B);

    free_live(block, B);
    return unused;
}

/* Allocates a probe block, and lets another thread's request grow the pool before the call returns. */
static CUresult probe_beside(CUdeviceptr *block, size_t bytes, CUmemoryPool pool, CUstream stream) {
    CUresult result = driver->cuMemAllocFromPoolAsync(block, bytes, pool, stream);

    if (stream != A && stream != B) {
        table.cuMemAllocFromPoolAsync = driver->cuMemAllocFromPoolAsync; /* once */
        run_in_thread(grow_beside, NULL);
    }
    return result;
}

/* A thread that finds another one growing does not wait for it, and the other thread's account includes both growths.
 * This holds with a finite release threshold, too. */
TEST_EACH(2, two_threads_grow_at_once) {
    copy_driver();
    table.cuMemAllocFromPoolAsync = probe_beside;
    make_engine_on(&table, KIND_POOL, 0,
                   _i ? "growth=step:96MiB release-threshold=1GiB" : "growth=step:96MiB");
    void *block = alloc_live(MIB, A);
    weir_statistics s = check_identities(a);
    ck_assert_uint_eq(s.growth_allocs, 2);
    ck_assert_uint_eq(s.growth_bytes, s.reserved);
    ck_assert_uint_ge(s.reserved, 96 * MIB);
    free_live(block, A);
    destroy();
}

SUITE("growing", CK_FORK_GETENV);
