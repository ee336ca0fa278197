/* SPDX-License-Identifier: MIT */
/* conformance_limits.c: checks limits and failed requests. */
#include "conformance_allocator.h"

CASE("limits", 120, open_device_with_caches, close_tested_device);
CASE_TOO("limits alone", 120, open_device_without_caches, close_tested_device);

TEST_EACH(KIND_COUNT, the_limit_is_exact) {
    enum { COUNT = 8 };
    weir_allocator *a = make_tested_with_limit(_i, COUNT * 32 * MIB);
    void *block[COUNT], *none = &none;
    weir_statistics stats;

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < COUNT; i++)
            block[i] = alloc_tested(a, 32 * MIB, s);
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 1, s, &none));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 32 * MIB, s, &none));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, COUNT * 32 * MIB + 1, s, &none));
        ck_assert_ptr_eq(none, &none);
        stats = check_identities(a);
        ck_assert_uint_eq(stats.failed_requests, 3 * (uint64_t)(round + 1));
        ck_assert_uint_eq(stats.reserved, COUNT * 32 * MIB);
        ck_assert_uint_eq(stats.reserved_peak, COUNT * 32 * MIB);
        /* Uses, frees and other requests still succeed. */
        fill_with_pattern(block[3], 32 * MIB, 1, s);
        OK(weir_free(a, block[3], s));
        block[3] = alloc_tested(a, 32 * MIB, s);
        for (int i = 0; i < COUNT; i++)
            OK(weir_free(a, block[i], s));
    }
    block[0] = alloc_tested(a, COUNT * 32 * MIB, s);
    OK(weir_free(a, block[0], s));
    OK(weir_allocator_destroy(a));
}

TEST_EACH(KIND_COUNT, the_limit_can_be_lowered) {
    weir_allocator *a = make_tested_with_limit(_i, 512 * MIB);
    void *block = NULL;

    if (_i == KIND_FIXED) {
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_set_limit(a, bytes_amount(128 * MIB)));
    } else {
        OK(weir_set_limit(a, bytes_amount(128 * MIB)));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 200 * MIB, s, &block));
        block = alloc_tested(a, 90 * MIB, s);
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 90 * MIB, s, &(void *){NULL}));
        ck_assert_uint_le(check_identities(a).reserved, 128 * MIB);
        OK(weir_free(a, block, s));
        OK(weir_set_limit(a, bytes_amount(GIB))); /* restores at most the first limit */
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 600 * MIB, s, &block));
    }
    block = alloc_tested(a, 400 * MIB, s);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
}

/* Other users of weir's pool share its reserved memory and its limit, and get no live block of weir. */
TEST(the_pool_can_be_shared) {
    weir_allocator *a = make_tested_with_limit(KIND_POOL, 128 * MIB);
    CUstream t = make_stream();
    CUdeviceptr theirs = 0, more = 0;
    CUmemoryPool pool = NULL;
    void *block;

    OK(weir_pool(a, &pool));
    OK(weir_preallocate(a, 64 * MIB, NULL));
    CU(driver->cuMemAllocFromPoolAsync(&theirs, 50 * MIB, pool, s));
    fill_with_pattern((void *)(uintptr_t)theirs, 50 * MIB, 0x11, s);
    ck_assert_uint_eq(stats_of(a).reserved, 64 * MIB);
    block = alloc_tested(a, 40 * MIB, t);
    fill_with_pattern(block, 40 * MIB, 0x22, t);
    expect_pattern((void *)(uintptr_t)theirs, 50 * MIB, 0x11, s);
    expect_pattern(block, 40 * MIB, 0x22, t);
    ck_assert_uint_le(stats_of(a).reserved, 128 * MIB);
    ck_assert_uint_eq(driver->cuMemAllocFromPoolAsync(&more, 100 * MIB, pool, s),
                      CUDA_ERROR_OUT_OF_MEMORY);
    CU(driver->cuMemFreeAsync(theirs, s));
    OK(weir_free(a, block, t));
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    drop_stream(t);
}

TEST_EACH(KIND_COUNT, the_limit_is_never_passed) {
    static const size_t limits[] = {1, 255, 300, 5 * MIB, 31 * MIB, 33 * MIB + 1, 100 * MIB + 4097};
    size_t least = grows_by_units(_i) ? 32 * MIB : 0;

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        weir_allocator *a;
        void *block = NULL, *blocks[64];
        int count = 0;

        if (_i == KIND_FIXED && limits[i] < 256) /* no arena at all */
            continue;
        if (limits[i] < least) {
            weir_options options = tested_options(_i, limits[i]);

            options.limit = bytes_amount(limits[i]);
            a = NULL;
            EXPECT(WEIR_E_LIMIT, weir_allocator_create(&options, &a));
            ck_assert_ptr_null(a);
            continue;
        }
        a = make_tested_with_limit(_i, limits[i]);
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, limits[i] + 1, s, &block));
        while (count < 64 && weir_alloc(a, limits[i] / 20 + 1, s, &block) == WEIR_OK) {
            blocks[count++] = block;
            ck_assert_uint_le(stats_of(a).reserved, limits[i]);
        }
        ck_assert_int_lt(count, 64);
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, limits[i] / 20 + 1, s, &block));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, limits[i], s, &block));
        ck_assert_uint_le(stats_of(a).reserved_peak, limits[i]);
        check_identities(a);
        while (count > 0)
            OK(weir_free(a, blocks[--count], s));
        OK(weir_allocator_destroy(a));
    }
}

/* Returns the OOM report of the last failed request, and prints its text. */
static weir_oom_report oom_report_of(weir_allocator *a) {
    weir_oom_report v = {.size = sizeof v};
    char text[4096];

    OK(weir_last_oom_report(a, &v));
    ck_assert_uint_eq(v.size, sizeof v);
    weir_oom_report_text(&v, WEIR_OOM_REPORT_AS_TEXT, text, sizeof text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        printf("# %s\n", line);
    return v;
}

TEST_EACH(KIND_COUNT, a_failure_has_an_oom_report) {
    weir_allocator *a = make_tested_with_limit(_i, 256 * MIB);
    void *block = alloc_tested(a, 200 * MIB, s), *none = NULL;
    weir_oom_report v;

    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 200 * MIB, s, &none));
    v = oom_report_of(a);
    ck_assert_int_eq(v.cause, WEIR_OOM_REPORT_LIMIT);
    ck_assert_int_eq(v.status, WEIR_E_LIMIT);
    ck_assert_uint_eq(v.asked, 200 * MIB);
    ck_assert_uint_eq(v.limit, 256 * MIB);
    ck_assert_uint_eq(v.idle, v.reserved - v.in_use);
    ck_assert_uint_le(v.reserved + v.others + v.graphs + v.other_allocators + v.device_free,
                      v.device_total);
    ck_assert_ptr_nonnull(v.settings[0].name);
    ck_assert_str_eq(v.settings[0].name, "limit");
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, s, &none));
    ck_assert_int_eq(oom_report_of(a).cause, WEIR_OOM_REPORT_TOO_LARGE);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
}

TEST_EACH(KIND_COUNT, a_failure_tells_its_figures) {
    weir_allocator *a = make_tested_with_limit(_i, 256 * MIB);
    weir_failure r = {.size = sizeof r};
    size_t total, free_bytes;
    void *block = alloc_tested(a, 200 * MIB, s), *none = NULL;
    struct {
        size_t size;
        uint64_t asked, unknown;
    } shorter = {.size = 2 * sizeof(uint64_t), .unknown = 99};

    CU(driver->cuMemGetInfo(&free_bytes, &total));
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 200 * MIB, s, &none));
    OK(weir_last_failure(&r));
    ck_assert_uint_eq(r.size, sizeof r);
    ck_assert_uint_eq(r.asked, 200 * MIB);
    ck_assert_uint_eq(r.limit, 256 * MIB);
    ck_assert_uint_eq(r.device_total, total);
    ck_assert_uint_ge(r.in_use, 200 * MIB);
    ck_assert_uint_ge(r.reserved, r.in_use);
    ck_assert_uint_le(r.reserved, 256 * MIB);
    ck_assert_uint_le(r.device_free, total);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, total + 1, s, &none));
    OK(weir_last_failure(&r));
    ck_assert_uint_eq(r.asked, total + 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, s, &none));
    OK(weir_last_failure((weir_failure *)(void *)&shorter));
    ck_assert_uint_eq(shorter.size, 2 * sizeof(uint64_t));
    ck_assert_uint_eq(shorter.asked, SIZE_MAX);
    ck_assert_uint_eq(shorter.unknown, 99);
    ck_assert_ptr_null(none);
    ck_assert_uint_eq(check_identities(a).failed_requests, 3);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
}

/* Frees the block in `data'.  Returns 1 on success, 0 if there is none. */
static int free_the_other(const weir_oom *oom, void *data) {
    void **other = data;

    if (!*other)
        return 0;
    OK(weir_free(oom->allocator, *other, oom->stream));
    *other = NULL;
    return 1;
}

TEST_EACH(KIND_COUNT, a_callback_makes_room) {
    weir_options options = tested_options(_i, 256 * MIB);
    weir_allocator *a;
    void *other = NULL, *block, *none = NULL;

    options.limit = bytes_amount(256 * MIB);
    options.recovery_timeout_ms = 20;
    options.oom_callback = free_the_other;
    options.oom_callback_data = &other;
    OK(weir_allocator_create(&options, &a));
    other = alloc_tested(a, 200 * MIB, s);
    fill_with_pattern(other, 200 * MIB, 0x11, s);
    block = alloc_tested(a, 150 * MIB, s);
    ck_assert_ptr_null(other);
    fill_with_pattern(block, 150 * MIB, 0x22, s);
    expect_pattern(block, 150 * MIB, 0x22, s);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 150 * MIB, s, &none));
    ck_assert_uint_eq(check_identities(a).failed_requests, 1);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
}

/* A failure reports the largest request that would succeed.  That request succeeds from an empty reserve, an idle one,
 * and one in pieces. */
TEST_EACH(KIND_COUNT, the_largest_request_is_served) {
    static const size_t sizes[] = {257 * MIB, 200 * MIB, 128 * MIB, 100 * MIB};
    enum { COUNT = 24 };
    weir_failure r = {.size = sizeof r};
    void *block[COUNT], *any = NULL;

    for (int round = 0; round < 4; round++) { /* every round-th block is free */
        weir_allocator *a = make_tested_with_limit(_i, 256 * MIB);

        for (int i = 0; i < COUNT && round > 0; i++)
            block[i] = alloc_tested(a, 9 * MIB + (size_t)(i * round) * 4 * KIB, s);
        for (int i = 0; i < COUNT && round > 0; i += round)
            OK(weir_free(a, block[i], s));
        for (int i = 0; i < 4; i++) {
            if (weir_alloc(a, sizes[i], s, &any) == WEIR_OK) {
                OK(weir_free(a, any, s));
                continue;
            }
            OK(weir_last_failure(&r));
            ck_assert_uint_eq(r.asked, sizes[i]);
            printf("# %s, cache %s, round %d: %zu MiB are refused, %llu bytes can be had\n",
                   kind_names[_i], cache == WEIR_SWITCH_ON ? "on" : "off", round, sizes[i] / MIB,
                   (unsigned long long)r.largest);
            if (r.largest > 0)
                OK(weir_free(a, alloc_tested(a, (size_t)r.largest, s), s));
        }
        for (int i = 0; i < COUNT && round > 0; i++)
            if (i % round != 0)
                OK(weir_free(a, block[i], s));
        OK(weir_allocator_destroy(a));
    }
}

/* A driver of a GPU keeps an unknown part of the memory, so there the test prints the result and does not assert it. */
TEST_EACH(KIND_COUNT, the_largest_request_is_right_on_a_full_device) {
    weir_options options = tested_options(_i, 64 * MIB);
    weir_failure r = {.size = sizeof r};
    struct hog hog = {.count = 0};
    void *block = NULL;
    weir_allocator *a;
    weir_status status;
    int cause;

    options.recovery_timeout_ms = 20;
    OK(weir_allocator_create(&options, &a));
    hog_takes(&hog, 300 * MIB);
    if (weir_alloc(a, GIB, s, &block) == WEIR_OK) { /* another process has freed memory */
        OK(weir_free(a, block, s));
    } else {
        OK(weir_last_failure(&r));
        cause = oom_report_of(a).cause;
        if (!on_cuda && _i != KIND_FIXED)
            ck_assert_int_eq(cause, WEIR_OOM_REPORT_OTHERS);
        status = r.largest > 0 ? weir_alloc(a, (size_t)r.largest, s, &block) : WEIR_OK;
        printf("# %s, cache %s, full device, %llu bytes free: %llu bytes can be had: %s\n",
               kind_names[_i], cache == WEIR_SWITCH_ON ? "on" : "off",
               (unsigned long long)r.device_free, (unsigned long long)r.largest,
               weir_status_name(status));
        if (!on_cuda)
            ck_assert_int_eq(status, WEIR_OK);
        if (!on_cuda && _i != KIND_FIXED)
            ck_assert_uint_ge(r.largest, 288 * MIB);
        if (status == WEIR_OK)
            OK(weir_free(a, block, s));
    }
    hog_ends(&hog);
    OK(weir_allocator_destroy(a));
}

/* Makes a request fail in a fresh thread.  Returns the fault that the thread finds, or NULL. */
static const char *wrong_at_first_failure(weir_allocator *a) {
    weir_failure r = {.size = sizeof r};
    void *none;

    if (weir_last_failure(&r) != WEIR_OK || r.size != sizeof r || r.asked != 0 || r.limit != 0)
        return "a fresh thread has a failure";
    if (weir_last_driver_result() != 0)
        return "a fresh thread has a driver result";
    if (weir_alloc(a, (size_t)1 << 50, (weir_stream)2, &none) != WEIR_E_NO_MEMORY)
        return "2^50 bytes were not refused";
    if (weir_last_failure(&r) != WEIR_OK || r.asked != (uint64_t)1 << 50)
        return "the thread's own failure is not there";
    return NULL;
}

struct refused {
    weir_allocator *allocator;
    const char *wrong;
};

static void *refused_once(void *arg) {
    struct refused *refused = arg;

    refused->wrong = wrong_at_first_failure(refused->allocator);
    return NULL;
}

TEST_EACH(KIND_COUNT, failures_and_results_are_the_threads_own) {
    weir_allocator *a = make_tested(_i);
    weir_failure r = {.size = sizeof r};
    struct refused refused = {.allocator = a};
    void *none;

    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, (size_t)1 << 51, NULL, &none));
    run_in_thread(refused_once, &refused);
    ck_assert_msg(!refused.wrong, "%s", refused.wrong);
    OK(weir_last_failure(&r));
    ck_assert_uint_eq(r.asked, (uint64_t)1 << 51);
    OK(weir_allocator_destroy(a));
}

CASE("the driver's results", 120, open_device_without_caches, close_tested_device);

/* Each failing call sets the driver result, to 0 if the driver had no part; a success leaves it alone.  Caches are off,
 * since they refuse unknown addresses without the driver. */
TEST(the_driver_result_is_of_the_last_failure) {
    weir_allocator *a = make_tested(KIND_POOL);
    weir_options options;
    void *block = alloc_tested(a, 1000, s);
    weir_failure failure = {.size = 0};
    weir_event event;
    weir_trace_reader *reader;
    size_t count;

    weir_options_init(&options);
#define DRIVER_HAD_NO_PART(status, call)                                                           \
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, &options, s));                                           \
    ck_assert_int_eq(weir_last_driver_result(), CUDA_ERROR_INVALID_VALUE);                         \
    check_identities(a);                                                                           \
    OK(weir_use(a, block, s));                                                                     \
    ck_assert_int_eq(weir_last_driver_result(), CUDA_ERROR_INVALID_VALUE);                         \
    EXPECT(status, call);                                                                          \
    ck_assert_int_eq(weir_last_driver_result(), 0)

    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_alloc(a, 1, s, NULL));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_use(a, NULL, s));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_free(NULL, block, s));
    DRIVER_HAD_NO_PART(WEIR_E_BUSY, weir_allocator_destroy(a));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_stats(a, NULL));
    DRIVER_HAD_NO_PART(WEIR_E_NOT_SUPPORTED,
                       weir_latencies(a, 0, &(weir_latency){.size = sizeof(weir_latency)}));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_events(a, 0, &event, 0, 1, &count));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_last_failure(NULL));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_last_failure(&failure));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_options_init_sized(NULL, 1));
    DRIVER_HAD_NO_PART(WEIR_E_PARSE, weir_options_set(&options, "prealloc", "12 apples", NULL, 0));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_options_set(&options, "pralloc", "1", NULL, 0));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_options_from_env(NULL, NULL, 0));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_trace_reader_create(NULL, NULL, &reader));
    DRIVER_HAD_NO_PART(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, s, &block));
#undef DRIVER_HAD_NO_PART
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
}
