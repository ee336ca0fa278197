/* SPDX-License-Identifier: MIT */
/* conformance_reserve.c: checks preallocation, trims, decay, and memory given to other allocators. */
#include "conformance_allocator.h"

CASE("reserve", 120, open_device_with_caches, close_tested_device);
CASE_TOO("reserve alone", 120, open_device_without_caches, close_tested_device);

TEST_EACH(KIND_COUNT, preallocate_grows_to_what_was_asked) {
    weir_allocator *a = make_tested_with_limit(_i, 512 * MIB);
    size_t reserve = 77;
    weir_statistics stats;
    void *block[8];

    if (_i == KIND_DIRECT) {
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_preallocate(a, MIB, &reserve));
        ck_assert_uint_eq(reserve, 77);
        goto done;
    }
    OK(weir_preallocate(a, 100, &reserve));
    ck_assert_uint_ge(reserve, 100);
    OK(weir_preallocate(a, 256 * MIB, &reserve));
    ck_assert_uint_ge(reserve, 256 * MIB);
    OK(weir_preallocate(a, 0, NULL));
    OK(weir_preallocate(a, 256 * MIB, &reserve)); /* there already */
    stats = check_identities(a);
    ck_assert_uint_eq(stats.reserved, reserve);
    for (int i = 0; i < 8; i++)
        block[i] = alloc_tested(a, 16 * MIB, s);
    ck_assert_uint_eq(stats_of(a).hits, 8);
    ck_assert_uint_eq(stats_of(a).growths, stats.growths);
    for (int i = 0; i < 8; i++)
        OK(weir_free(a, block[i], s));
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 512 * MIB + 1, &reserve));
    ck_assert_uint_eq(reserve, 512 * MIB);
    OK(weir_preallocate(a, 512 * MIB, &reserve));
    ck_assert_uint_eq(reserve, 512 * MIB);
    ck_assert_uint_eq(stats_of(a).prealloc_asked, _i == KIND_FIXED ? 512 * MIB : 0);
done:
    OK(weir_allocator_destroy(a));
}

/* The allocator preallocates at its creation or at its first request. */
TEST_EACH(KIND_COUNT, an_option_preallocates_at_creation_or_later) {
    for (int later = 0; later < 2; later++) {
        weir_options options = tested_options(_i, 256 * MIB);
        weir_statistics stats;
        weir_allocator *a;
        void *block;

        options.prealloc = bytes_amount(192 * MIB);
        if (later)
            preallocate_at_first(&options, 192 * MIB);
        OK(weir_allocator_create(&options, &a));
        stats = check_identities(a);
        if (later && _i != KIND_FIXED)
            ck_assert_uint_eq(stats.reserved, 0);
        block = alloc_tested(a, 100 * MIB, s);
        stats = check_identities(a);
        if (_i == KIND_DIRECT) {
            ck_assert_uint_eq(stats.reserved, grows_by_units(_i) ? 128 * MIB : 100 * MIB);
            ck_assert_uint_eq(stats.prealloc_got, 0);
        } else {
            uint64_t most = _i == KIND_FIXED ? 256 * MIB : 192 * MIB;

            ck_assert_uint_eq(stats.prealloc_asked, most);
            ck_assert_uint_eq(stats.prealloc_got, most);
            ck_assert_uint_eq(stats.prealloc_kept, most);
            ck_assert_uint_gt(stats.prealloc_ns, 0);
            ck_assert_uint_eq(stats.reserved, most);
            ck_assert_uint_eq(stats.hits, 1);
            ck_assert_uint_eq(stats.growths, 1);
        }
        OK(weir_free(a, block, s));
        OK(weir_allocator_destroy(a));
    }
}

TEST_EACH(KIND_COUNT, trim_gives_idle_reserve_back) {
    weir_allocator *a = make_tested_with_limit(_i, 512 * MIB);
    CUstream t = make_stream();
    size_t before = device_free(), released = 77;
    void *block[4], *kept;
    weir_statistics stats;

    OK(weir_trim(a, 0, NULL));
    for (int i = 0; i < 4; i++)
        block[i] = alloc_tested(a, 48 * MIB, i % 2 ? s : t);
    kept = alloc_tested(a, MIB, s);
    fill_with_pattern(kept, MIB, 0x42, s);
    OK(weir_trim(a, SIZE_MAX, &released));
    ck_assert_uint_eq(released, 0);
    for (int i = 0; i < 4; i++)
        OK(weir_free(a, block[i], i % 2 ? s : t));
    CU(driver->cuCtxSynchronize());
    stats = check_identities(a);
    OK(weir_trim(a, 0, &released));
    ck_assert_uint_eq(stats_of(a).reserved, stats.reserved - released);
    expect_pattern(kept, MIB, 0x42, s);
    OK(weir_free(a, kept, s));
    CU(driver->cuCtxSynchronize());
    stats = check_identities(a);
    OK(weir_trim(a, 0, &released));
    ck_assert_uint_eq(released, stats.reserved);
    ck_assert_uint_eq(check_identities(a).reserved, 0);
    OK(weir_trim(a, 0, &released));
    ck_assert_uint_eq(released, 0);
    expect_free_again(before);
    block[0] = alloc_tested(a, MIB, s);
    OK(weir_free(a, block[0], s));
    OK(weir_allocator_destroy(a));
    drop_stream(t);
}

TEST_EACH(KIND_COUNT, trim_keeps_what_it_is_told_to) {
    weir_options options = tested_options(_i, 512 * MIB);
    weir_allocator *a;
    size_t released = 0;
    uint64_t before, after;

    options.growth = WEIR_GROWTH_EXACT;
    OK(weir_allocator_create(&options, &a));
    if (_i == KIND_POOL || _i == KIND_REGIONS) {
        for (size_t i = 1; i <= 5; i++)
            OK(weir_preallocate(a, i * (i + 1) / 2 * 32 * MIB, NULL));
        before = stats_of(a).reserved;
        ck_assert_uint_eq(before, 480 * MIB);
        OK(weir_trim(a, 320 * MIB, &released));
        after = stats_of(a).reserved;
        ck_assert_uint_eq(after, 320 * MIB);
        ck_assert_uint_eq(released, before - after);
        ck_assert_uint_eq(stats_of(a).trims, 1);
        ck_assert_uint_eq(stats_of(a).trim_bytes, released);
    }
    OK(weir_allocator_destroy(a));
}

/* Reserve decays in requests, and in weir_decay for an arena of regions.  Live blocks keep their bytes. */
TEST_EACH(3, idle_reserve_decays) {
    weir_options options = tested_options(_i == 0 ? KIND_POOL : KIND_REGIONS, 0);
    void *block[8], *kept;
    weir_allocator *a;

    options.decay_ms = 20;
    options.growth = WEIR_GROWTH_EXACT;
    if (_i == 2)
        options.engine = WEIR_ENGINE_MAPPED;
    OK(weir_allocator_create(&options, &a));
    kept = alloc_tested(a, MIB, s);
    fill_with_pattern(kept, MIB, 0x42, s);
    for (int i = 0; i < 8; i++)
        block[i] = alloc_tested(a, 64 * MIB, s);
    for (int i = 0; i < 8; i++)
        OK(weir_free(a, block[i], s));
    for (size_t i = 0; i < 400 && stats_of(a).reserved > 256 * MIB; i++) {
        driver->sleep_ns(5000000);
        block[0] = alloc_tested(a, 2 * MIB + i % 50 * 64 * KIB, s);
        fill_with_pattern(block[0], MIB, 0x17, s);
        OK(weir_free(a, block[0], s));
        CU(driver->cuStreamSynchronize(s));
        if (_i == 1)
            OK(weir_decay(a, NULL));
    }
    ck_assert_uint_le(stats_of(a).reserved, 256 * MIB);
    expect_pattern(kept, MIB, 0x42, s);
    OK(weir_free(a, kept, s));
    for (int i = 0; i < 100 && stats_of(a).reserved > 32 * MIB; i++) {
        driver->sleep_ns(21000000);
        OK(weir_decay(a, NULL));
    }
    ck_assert_uint_le(check_identities(a).reserved, 32 * MIB);
    OK(weir_allocator_destroy(a));
}

/* One allocator holds 1.25 of the device's last 1.5 GiB idle, behind unfinished work.  Another allocator requests 0.75
 * GiB.  Then the test tells the first allocator that memory is low. */
TEST_EACH(3, a_full_device_takes_what_another_allocator_has_idle) {
    static const int engines[] = {WEIR_ENGINE_POOL, WEIR_ENGINE_BFC, WEIR_ENGINE_MAPPED};
    weir_options options = tested_options(KIND_POOL, 0);
    CUstream t = make_stream();
    size_t late = on_cuda ? 128 * MIB : 8 * MIB; /* the model fills at once */
    weir_allocator *rich, *poor;
    void *block[10], *asked;
    CUdeviceptr ballast;
    uint64_t before;

    options.growth = WEIR_GROWTH_EXACT;
    options.engine = engines[_i];
    options.decay_ms = 3600000; /* a pool has no base then, which one block would hold */
    OK(weir_allocator_create(&options, &rich));
    options = tested_options(KIND_POOL, 0);
    OK(weir_allocator_create(&options, &poor));
    CU(driver->cuMemAlloc(&ballast, device_free() - 1536 * MIB));
    for (int i = 0; i < 10; i++)
        block[i] = alloc_tested(rich, 128 * MIB, s);
    for (int i = 0; i < 10; i++) {
        submit_short_work(s);
        fill_with_pattern(block[i], late, 0x11, s);
        OK(weir_free(rich, block[i], s));
    }
    if (_i == 0 && cache == WEIR_SWITCH_OFF)
        CU(driver->cuStreamSynchronize(
            s)); /* the driver's pool (580) would count the frees as pending */
    before = stats_of(rich).reserved;
    asked = alloc_tested(poor, 768 * MIB, t);
    fill_with_pattern(asked, 768 * MIB, 0x77, t);
    ck_assert_uint_le(512 * MIB, before - stats_of(rich).reserved);
    ck_assert_uint_eq(stats_of(poor).failed_requests, 0);
    expect_pattern(asked, 64 * MIB, 0x77, t);
    OK(weir_free(poor, asked, t));
    CU(driver->cuMemFree(ballast));
    for (int i = 0; i < 8; i++)
        block[i] = alloc_tested(rich, 128 * MIB, s);
    for (int i = 0; i < 8; i++)
        OK(weir_free(rich, block[i], s));
    CU(driver->cuStreamSynchronize(s));
    OK(weir_low_memory(rich, 0));
    for (size_t i = 0; i < 200 && stats_of(rich).reserved > 256 * MIB; i++) {
        driver->sleep_ns(5000000);
        OK(weir_free(rich, alloc_tested(rich, 2 * MIB + i % 50 * 64 * KIB, s), s));
        CU(driver->cuStreamSynchronize(s));
        if (_i == 1)
            OK(weir_decay(rich, NULL));
    }
    ck_assert_uint_le(check_identities(rich).reserved, 256 * MIB);
    OK(weir_allocator_destroy(poor));
    OK(weir_allocator_destroy(rich));
    drop_stream(t);
}

/* Only the pool engine has the driver's threshold.  The last three rounds warm the caches first. */
TEST(the_release_threshold_holds_at_synchronisations) {
    static const size_t thresholds[] = {0, 100 * MIB, SIZE_MAX};

    for (size_t i = 0; i < 6; i++) {
        size_t threshold = thresholds[i % 3];
        weir_options options = tested_options(KIND_POOL, 0);
        weir_allocator *a;
        uint64_t before;
        void *block, *small;

        options.release_threshold = threshold == SIZE_MAX
                                        ? (weir_amount){.kind = WEIR_AMOUNT_DEFAULT}
                                        : bytes_amount(threshold);
        OK(weir_allocator_create(&options, &a));
        block = alloc_tested(a, 512 * MIB, s);
        before = stats_of(a).reserved;
        for (int k = 0; i >= 3 && k < 1500; k++) {
            small = alloc_tested(a, 2000, s);
            OK(weir_free(a, block, s));
            block = alloc_tested(a, 512 * MIB, s);
            OK(weir_free(a, small, s));
        }
        OK(weir_free(a, block, s));
        CU(driver->cuStreamSynchronize(s));
        if (threshold == SIZE_MAX)
            ck_assert_uint_ge(stats_of(a).reserved, before);
        else
            ck_assert_uint_eq(stats_of(a).reserved, threshold == 0 ? 0 : 96 * MIB);
        before = stats_of(a).growth_allocs;
        block = alloc_tested(a, 512 * MIB, s); /* the pool grows again, and counts it */
        ck_assert_uint_eq(check_identities(a).growth_allocs,
                          before + (threshold == SIZE_MAX ? 0 : 1));
        OK(weir_free(a, block, s));
        OK(weir_allocator_destroy(a));
    }
}
