/* SPDX-License-Identifier: MIT */
/* conformance.c: the public contract, sentence by sentence, on the device model and on a GPU.
 *
 * WEIR_TEST_DEVICE=model (the default) or cuda chooses the device.  The tests go over every engine, with the caches and
 * without, and call weir as a user does.  What only the model can show (faults, virtual time) is in tests/engine/.
 *
 * Stream order is tested with data.  Every block carries a pattern that is read back before its free, and its last use
 * is a fill behind long work, so that memory that is reused too early is overwritten under its next owner.  On the
 * model fills are done at once, and tests/engine/ looks at times instead.
 *
 * conformance_driver.c and others ask the driver, since the model's rules are partly assumed.  A CUDA process must not
 * fork, so on a GPU Check runs the tests in this process. */
#include "conformance_allocator.h"

/* ---- creation and destruction ---------------------------------------------------------------- */

CASE("each engine", 120, open_device_with_caches, close_tested_device);
CASE_TOO("each engine alone", 120, open_device_without_caches, close_tested_device);

TEST_EACH(KIND_COUNT, create_needs_a_place_to_write) {
    weir_options options = tested_options(_i, ARENA_BYTES);

    EXPECT(WEIR_E_INVALID, weir_allocator_create(&options, NULL));
    EXPECT(WEIR_E_INVALID, weir_allocator_create(NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_default_allocator(NULL));
    OK(weir_allocator_destroy(NULL));
}

/* weir_options ended here in version 1. */
enum { VERSION_1_BYTES = offsetof(weir_options, cache) };

/* Each entry has one wrong field.  A refused creation writes nothing and holds no memory. */
TEST_EACH(KIND_COUNT, create_refuses_options_out_of_range) {
    weir_options bad[24];
    weir_allocator *a = (weir_allocator *)&bad;
    size_t count = 0, before = device_free();

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        bad[i] = tested_options(_i, ARENA_BYTES);
    bad[count++].device = "gpu";
    bad[count++].device = "";
    bad[count++].engine = 99;
    bad[count++].engine = -1;
    bad[count++].prealloc.kind = WEIR_AMOUNT_SHARE + 1;
    bad[count++].prealloc.value = 1; /* a value of no kind */
    bad[count++].growth = 7;
    bad[count++].growth = WEIR_GROWTH_CALLBACK; /* without a function */
    bad[count].growth = WEIR_GROWTH_GEOMETRIC;
    bad[count++].growth_factor = 0.5;
    bad[count].growth = WEIR_GROWTH_REMAINING;
    bad[count++].growth_factor = 1.5;
    bad[count++].limit = bytes_amount(0);
    bad[count++].limit = (weir_amount){.value = 1000001, .kind = WEIR_AMOUNT_OF_TOTAL};
    bad[count++].latency = 3;
    bad[count++].log = 6;
    bad[count++].size = 0;
    bad[count++].size = VERSION_1_BYTES - 1;
    bad[count++].cache = 3;
    bad[count++].cache_limit = (weir_amount){.value = 1, .kind = WEIR_AMOUNT_OF_TOTAL};
    bad[count++].stream_checks = -1;
    for (size_t i = 0; i < count; i++) {
        weir_status status = weir_allocator_create(&bad[i], &a);

        ck_assert_msg(status == WEIR_E_INVALID, "wrong option %zu: %s", i,
                      weir_status_name(status));
        ck_assert_int_eq(weir_last_driver_result(), 0);
        ck_assert_ptr_eq(a, (weir_allocator *)&bad);
    }
    expect_free_again(before);
}

/* Returns 1 if some version of weir_options has this size or may get it, else 0.  New fields come at the end of the
 * struct, so the offset of each later field was its size once. */
static int is_end_of_options(size_t bytes) {
#define BEFORE(field) offsetof(weir_options, field)
    static const size_t ends[] = {BEFORE(cache),
                                  BEFORE(cache_limit),
                                  BEFORE(stream_checks),
                                  BEFORE(internal_dependencies),
                                  BEFORE(harden),
                                  BEFORE(oom_callback),
                                  BEFORE(oom_callback_data),
                                  BEFORE(grow_ahead),
                                  BEFORE(prealloc_min),
                                  BEFORE(profile),
                                  BEFORE(decay_ms),
                                  BEFORE(registry),
                                  BEFORE(priority),
                                  BEFORE(keep_free),
                                  BEFORE(oom_report),
                                  BEFORE(peers)};
    _Static_assert(sizeof(weir_options) - BEFORE(peers) <= sizeof(uint64_t),
                   "a field behind peers is named above");
#undef BEFORE

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends[i] == bytes)
            return 1;
    return bytes >= sizeof(weir_options);
}

/* A struct of a later header is longer, and its unknown fields must have their defaults.  A struct of an earlier header
 * is shorter by whole fields. */
TEST_EACH(KIND_COUNT, create_accepts_every_size_from_version_1) {
    struct {
        weir_options options;
        uint64_t later[4];
    } newer;
    weir_allocator *a = NULL;

    ck_assert_int_eq(weir_options_init_sized(NULL, sizeof newer), WEIR_E_INVALID);
    ck_assert_int_eq(weir_options_init_sized(&newer.options, VERSION_1_BYTES - 1), WEIR_E_INVALID);
    memset(&newer, 0xff, sizeof newer);
    OK(weir_options_init_sized(&newer.options, sizeof newer));
    ck_assert_uint_eq(newer.options.size, sizeof newer);
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(newer.later[i], 0);
    newer.options = tested_options(_i, ARENA_BYTES);
    for (size_t size = VERSION_1_BYTES; size <= sizeof newer; size++) {
        newer.options.size = size;
        if (!is_end_of_options(size)) {
            EXPECT(WEIR_E_INVALID, weir_allocator_create(&newer.options, &a));
            continue;
        }
        if (size % 4 != 0)
            continue;
        OK(weir_allocator_create(&newer.options, &a));
        OK(weir_allocator_destroy(a));
    }
    newer.later[3] = 1;
    a = NULL;
    EXPECT(WEIR_E_INVALID, weir_allocator_create(&newer.options, &a));
    ck_assert_ptr_null(a);
}

TEST_EACH(KIND_COUNT, create_finds_no_such_device) {
    weir_options options = options_of(_i, on_cuda ? "cuda:999" : "model:9", ARENA_BYTES);
    weir_allocator *a = NULL;

    EXPECT(WEIR_E_NO_DEVICE, weir_allocator_create(&options, &a));
    ck_assert_ptr_null(a);
}

TEST_EACH(KIND_COUNT, create_refuses_an_impossible_preallocation) {
    weir_options options = tested_options(_i, ARENA_BYTES);
    size_t before = device_free();
    weir_allocator *a = NULL;

    options.limit = bytes_amount(256 * MIB);
    options.prealloc = bytes_amount(256 * MIB + 1);
    EXPECT(WEIR_E_LIMIT, weir_allocator_create(&options, &a));
    options.limit = (weir_amount){.kind = WEIR_AMOUNT_MAX};
    options.prealloc = bytes_amount((uint64_t)1 << 50);
    EXPECT(WEIR_E_NO_MEMORY, weir_allocator_create(&options, &a));
    ck_assert_ptr_null(a);
    expect_free_again(before);
}

TEST_EACH(KIND_COUNT, destroy_waits_for_no_live_block) {
    weir_allocator *a = make_tested(_i);
    weir_statistics before, after;
    void *block = alloc_tested(a, 100000, s), *other;

    fill_with_pattern(block, 100000, 0x5a, s);
    before = stats_of(a);
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    after = stats_of(a);
    ck_assert_mem_eq(&before, &after, sizeof before);
    expect_pattern(block, 100000, 0x5a, s);
    other = alloc_tested(a, 5000, s);
    OK(weir_free(a, other, s));
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
}

/* The work before the frees still runs when the allocator is destroyed.  The blocks are on one to three streams, and
 * some have uses on a second stream. */
TEST_EACH(KIND_COUNT, destroy_gives_all_back_behind_pending_frees) {
    CUstream on[3] = {make_stream(), make_stream(), make_stream()};
    size_t before = device_free();

    for (int streams = 1; streams <= 3; streams++) {
        weir_allocator *a = make_tested(_i);

        for (int i = 0; i < 30; i++) {
            void *block = alloc_tested(a, (size_t)(i + 1) * 50000, on[i % streams]);

            submit_short_work(on[i % streams]);
            if (i % 3 == 0)
                OK(weir_use(a, block, on[(i + 1) % streams]));
            OK(weir_free(a, block, on[i % streams]));
        }
        OK(weir_allocator_destroy(a));
        expect_free_again(before);
    }
    for (int i = 0; i < 3; i++)
        drop_stream(on[i]);
}

TEST_EACH(KIND_COUNT, a_hundred_allocators_leave_no_memory_behind) {
    size_t before = device_free();

    for (int i = 0; i < 100; i++) {
        weir_allocator *a = make_tested(_i);
        void *block = alloc_tested(a, (size_t)i * 1000 + 1, s);

        OK(weir_free(a, block, s));
        OK(weir_allocator_destroy(a));
    }
    expect_free_again(before);
}

TEST(several_allocators_do_not_disturb_each_other) {
    weir_allocator *a[KIND_COUNT];
    void *block[KIND_COUNT];

    for (int k = 0; k < KIND_COUNT; k++) {
        a[k] = make_tested_with_limit(k, 128 * MIB);
        block[k] = alloc_tested(a[k], MIB, s);
        fill_with_pattern(block[k], MIB, (unsigned char)k, s);
    }
    for (int k = 0; k < KIND_COUNT; k++) {
        expect_pattern(block[k], MIB, (unsigned char)k, s);
        ck_assert_uint_eq(stats_of(a[k]).blocks, 1);
        OK(weir_free(a[k], block[k], s));
        OK(weir_allocator_destroy(a[k]));
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

TEST_EACH(KIND_COUNT, a_request_of_zero_bytes_gets_null) {
    weir_allocator *a = make_tested(_i);
    void *block = a;

    OK(weir_alloc(a, 0, s, &block));
    ck_assert_ptr_null(block);
    OK(weir_free(a, NULL, s));
    OK(weir_free(a, block, s));
    ck_assert_uint_eq(stats_of(a).attempts, 0);
    ck_assert_uint_eq(stats_of(a).frees, 0);
    OK(weir_allocator_destroy(a));
}

TEST_EACH(KIND_COUNT, every_size_is_aligned_and_whole) {
    static const size_t sizes[] = {1,   2,       255,          256,      257,          511,
                                   512, 513,     4095,         4096,     4097,         MIB - 1,
                                   MIB, MIB + 1, 3 * MIB + 77, 32 * MIB, 32 * MIB + 1, 33 * MIB};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    weir_allocator *a = make_tested(_i);
    void *block[COUNT];

    for (int i = 0; i < COUNT; i++) {
        block[i] = alloc_tested(a, sizes[i], s);
        ck_assert_uint_eq((uintptr_t)block[i] % 256, 0);
        fill_with_pattern(block[i], sizes[i], (unsigned char)(i + 1), s);
        check_identities(a);
    }
    for (int i = 0; i < COUNT; i++) {
        expect_pattern(block[i], sizes[i], (unsigned char)(i + 1), s);
        OK(weir_free(a, block[i], s));
        check_identities(a);
    }
    OK(weir_allocator_destroy(a));
}

/* A busy stream gets its freed memory at once, since stream order alone orders the reuse. */
TEST_EACH(KIND_COUNT, own_stream_reuses_at_once) {
    weir_allocator *a = make_tested(_i);
    void *block = alloc_tested(a, 24 * MIB, s);
    uint64_t reserve = stats_of(a).reserved;

    for (int i = 0; i < 20; i++) {
        if (_i != KIND_DIRECT)
            submit_short_work(s);
        fill_with_pattern(block, 24 * MIB, (unsigned char)i, s);
        OK(weir_free(a, block, s));
        block = alloc_tested(a, 24 * MIB, s);
    }
    ck_assert_uint_eq(stats_of(a).reserved, reserve);
    ck_assert_uint_eq(stats_of(a).reserved_peak, reserve);
    if (_i != KIND_DIRECT)
        ck_assert_uint_ge(stats_of(a).hits, 20);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
}

/* These are the wrong frees in which a real driver has a part; test_misuse.c has the rest.  Only the pool engine
 * without caches frees every address that the driver accepts. */
TEST_EACH(KIND_COUNT, only_live_blocks_are_freed) {
    weir_allocator *a = make_tested(_i), *stranger = make_tested(_i);
    char *block = alloc_tested(a, 100000, s), *other = alloc_tested(a, 5000, s);
    weir_statistics before;

    fill_with_pattern(block, 100000, 0x11, s);
    fill_with_pattern(other, 5000, 0x22, s);
    before = stats_of(a);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + 256, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + 1, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, &before, s));
    if (_i != KIND_POOL || cache == WEIR_SWITCH_ON) {
        EXPECT(WEIR_E_NOT_OWNED, weir_free(stranger, block, s));
        EXPECT(WEIR_E_NOT_OWNED, weir_use(a, block + 512, s));
    } else { /* weir_use does not make the address a block */
        OK(weir_use(a, block + 512, s));
    }
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + 512, s));
    ck_assert_uint_eq(stats_of(a).frees, before.frees);
    ck_assert_uint_eq(stats_of(a).requested, before.requested);
    expect_pattern(block, 100000, 0x11, s);
    OK(weir_free(a, block, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, s));
    check_identities(a);
    expect_pattern(other, 5000, 0x22, s);
    OK(weir_free(a, other, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, other, s));
    ck_assert_uint_eq(stats_of(a).blocks, 0);
    OK(weir_allocator_destroy(a));
    OK(weir_allocator_destroy(stranger));
}

/* A second free is a double free even while the first one waits for a noted use. */
TEST_EACH(KIND_COUNT, a_pending_free_is_a_free) {
    weir_allocator *a = make_tested(_i);
    CUstream t = make_stream();
    void *block = alloc_tested(a, MIB, s);

    submit_short_work(t);
    OK(weir_use(a, block, t));
    OK(weir_use(a, block, t));
    OK(weir_use(a, block, s));
    OK(weir_free(a, block, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block, t));
    check_identities(a);
    ck_assert_uint_eq(stats_of(a).blocks, 0);
    ck_assert_uint_eq(stats_of(a).requested, 0);
    ck_assert_uint_eq(stats_of(a).in_use, 0);
    OK(weir_allocator_destroy(a));
    drop_stream(t);
}

/* The limit has room for one block, so each block reuses the memory of the last one, to which late work writes. */
TEST_EACH(KIND_COUNT, blocks_without_a_stream_are_ordered_behind_all) {
    const size_t bytes = 20 * MIB;
    weir_allocator *a = make_tested_with_limit(_i, 32 * MIB);
    CUstream t = make_stream(), u = make_stream();

    for (unsigned char i = 0; i < 10; i++) {
        void *block = alloc_tested(a, bytes, s), *any = NULL;

        submit_short_work(s);
        fill_with_pattern(block, bytes, 0x10 + i, s);
        OK(weir_free(a, block, s));
        OK(weir_alloc_any(a, bytes, &any));
        fill_with_pattern(any, bytes, 0x20 + i, t);
        order_streams(u, t);
        expect_pattern(any, bytes, 0x20 + i, u);
        submit_short_work(t);
        fill_with_pattern(any, bytes, 0x30 + i, t);
        submit_short_work(u);
        fill_with_pattern(any, bytes / 2, 0x40 + i, u);
        OK(weir_free_any(a, any));
        block = alloc_tested(a, bytes, s);
        fill_with_pattern(block, bytes, 0x50 + i, s);
        CU(driver->cuCtxSynchronize());
        expect_pattern(block, bytes, 0x50 + i, s);
        OK(weir_free(a, block, s));
    }
    check_identities(a);
    OK(weir_allocator_destroy(a));
    drop_stream(t);
    drop_stream(u);
}

/* The handles NULL, 0x1 and 0x2 are valid with the thread's context and without a context. */
TEST_EACH(KIND_COUNT, default_streams_are_valid_without_a_context) {
    weir_allocator *a = make_tested(_i);
    CUcontext popped;

    for (int current = 1; current >= 0; current--) {
        if (!current)
            CU(driver->cuCtxPopCurrent(&popped));
        for (uintptr_t handle = 0; handle <= 2; handle++) {
            weir_stream given = (weir_stream)handle;

            for (int i = 0; i < 40; i++) {
                void *block = alloc_tested(a, 70000, given), *other = alloc_tested(a, 500, given);

                if (current)
                    fill_with_pattern(block, 70000, (unsigned char)i, given);
                OK(weir_free(a, other, given));
                if (current && i % 10 == 0)
                    expect_pattern(block, 70000, (unsigned char)i, given);
                if (i % 4 == 0)
                    OK(weir_use(a, block, (weir_stream)(2 - handle)));
                OK(weir_free(a, block, given));
            }
            check_identities(a);
        }
    }
    CU(driver->cuCtxPushCurrent(popped));
    ck_assert_uint_eq(stats_of(a).blocks, 0);
    OK(weir_allocator_destroy(a));
}

/* weir_use names many streams, each of them twice, which have not used the block before. */
TEST_EACH(KIND_COUNT, many_uses_of_one_block) {
    enum { STREAMS = 20 };
    weir_allocator *a = make_tested(_i);
    CUstream streams[STREAMS];
    void *block;

    for (int i = 0; i < STREAMS; i++)
        streams[i] = make_stream();
    for (int round = 0; round < 5; round++) {
        block = alloc_tested(a, 3 * MIB, streams[0]);
        fill_with_pattern(block, 3 * MIB, 0x33, streams[0]);
        for (int i = 1; i < STREAMS; i++) {
            order_streams(streams[i], streams[0]);
            OK(weir_use(a, block, streams[i]));
            OK(weir_use(a, block, streams[i]));
            submit_short_work(streams[i]);
        }
        fill_with_pattern(block, 3 * MIB, 0x44, streams[STREAMS - 1]);
        OK(weir_free(a, block, streams[0]));
        block = alloc_tested(a, 3 * MIB, streams[1]);
        fill_with_pattern(block, 3 * MIB, 0x55, streams[1]);
        CU(driver->cuCtxSynchronize());
        expect_pattern(block, 3 * MIB, 0x55, streams[1]);
        OK(weir_free(a, block, streams[1]));
        check_identities(a);
    }
    OK(weir_allocator_destroy(a));
    for (int i = 0; i < STREAMS; i++)
        drop_stream(streams[i]);
}

/* A free may name any stream that is ordered after the block's uses. */
TEST_EACH(KIND_COUNT, a_block_may_be_freed_on_another_stream) {
    weir_allocator *a = make_tested(_i);
    CUstream t = make_stream();

    for (int i = 0; i < 50; i++) {
        void *block = alloc_tested(a, 200000, s), *next;

        submit_short_work(s);
        fill_with_pattern(block, 200000, 0x66, s);
        order_streams(t, s);
        fill_with_pattern(block, 200000, 0x77, t);
        OK(weir_free(a, block, t));
        next = alloc_tested(a, 200000, s);
        fill_with_pattern(next, 200000, (unsigned char)i, s);
        CU(driver->cuStreamSynchronize(t));
        expect_pattern(next, 200000, (unsigned char)i, s);
        OK(weir_free(a, next, s));
    }
    check_identities(a);
    OK(weir_allocator_destroy(a));
    drop_stream(t);
}

/* ---- contexts, forks, the default allocator -------------------------------------------------- */

#define KEEPS_CONTEXT(call)                                                                        \
    do {                                                                                           \
        CUcontext before_call, after_call;                                                         \
        CU(driver->cuCtxGetCurrent(&before_call));                                                 \
        OK(call);                                                                                  \
        CU(driver->cuCtxGetCurrent(&after_call));                                                  \
        ck_assert_msg(before_call == after_call, "%s: another context is current", #call);         \
    } while (0)

static void one_of_each_call(int kind, CUstream t) {
    weir_options options = tested_options(kind, 256 * MIB);
    weir_statistics stats = {.size = sizeof stats};
    weir_allocator *a;
    void *block, *other, *none = NULL;
    size_t bytes;

    options.prealloc = bytes_amount(64 * MIB);
    options.recovery_timeout_ms = 5;
    options.growth = WEIR_GROWTH_STEP;
    KEEPS_CONTEXT(weir_allocator_create(&options, &a));
    KEEPS_CONTEXT(weir_alloc(a, 100 * MIB, s, &block));
    KEEPS_CONTEXT(weir_alloc(a, 1000, t, &other));
    KEEPS_CONTEXT(weir_use(a, block, t));
    KEEPS_CONTEXT(weir_free(a, block, s));
    KEEPS_CONTEXT(weir_free(a, other, t));
    for (int i = 0; i < 40; i++) {
        KEEPS_CONTEXT(weir_alloc(a, 1000, i % 2 ? s : t, &block));
        KEEPS_CONTEXT(weir_free(a, block, i % 2 ? s : t));
    }
    if (kind != KIND_DIRECT)
        KEEPS_CONTEXT(weir_preallocate(a, 200 * MIB, &bytes));
    KEEPS_CONTEXT(weir_stats(a, &stats));
    KEEPS_CONTEXT(weir_trim(a, 0, &bytes));
    KEEPS_CONTEXT(weir_alloc(a, (size_t)1 << 50, s, &none) == WEIR_E_NO_MEMORY ? WEIR_OK
                                                                               : WEIR_E_INVALID);
    KEEPS_CONTEXT(weir_allocator_destroy(a));
}

/* The current context is the device's, once or twice on the stack, or another device's (on the model), or none. */
TEST_EACH(KIND_COUNT, the_current_context_is_left_alone) {
    CUstream t;
    CUcontext popped, other;

    if (!on_cuda) {
        CU(driver->cuCtxPopCurrent(&popped));
        ck_assert_int_eq(
            weir__model_reset(&(struct weir_model_setup){.devices = 2, .capacity = MODEL_BYTES}),
            0);
        CU(driver->cuDevicePrimaryCtxRetain(&other, 1));
        CU(driver->cuDevicePrimaryCtxRetain(&primary, device));
        CU(driver->cuCtxPushCurrent(primary));
        s = make_stream();
    }
    t = make_stream();
    one_of_each_call(_i, t);
    CU(driver->cuCtxPushCurrent(primary));
    one_of_each_call(_i, t);
    if (!on_cuda) {
        CU(driver->cuCtxPushCurrent(other));
        one_of_each_call(_i, t);
        CU(driver->cuCtxPopCurrent(&popped));
        ck_assert_ptr_eq(popped, other);
    }
    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuCtxPopCurrent(&popped));
    one_of_each_call(_i, t);
    CU(driver->cuCtxGetCurrent(&popped));
    ck_assert_ptr_null(popped);
    CU(driver->cuCtxPushCurrent(primary));
    drop_stream(t);
}

/* Returns 1 if every call in a child of fork returns WEIR_E_FORKED, else 0. */
static int forked_calls_are_refused(weir_allocator *a, void *block) {
    weir_options options = tested_options(KIND_POOL, 0);
    weir_statistics stats = {.size = sizeof stats};
    weir_allocator *none = NULL;
    void *other = NULL;
    size_t bytes;

    return weir_alloc(a, 100, s, &other) == WEIR_E_FORKED &&
           weir_alloc(a, 0, s, &other) == WEIR_E_FORKED &&
           weir_free(a, block, s) == WEIR_E_FORKED && weir_use(a, block, s) == WEIR_E_FORKED &&
           weir_preallocate(a, MIB, &bytes) == WEIR_E_FORKED &&
           weir_trim(a, 0, &bytes) == WEIR_E_FORKED && weir_stats(a, &stats) == WEIR_E_FORKED &&
           weir_allocator_destroy(a) == WEIR_E_FORKED &&
           weir_allocator_create(&options, &none) == WEIR_E_FORKED &&
           weir_default_allocator(&none) == WEIR_E_FORKED &&
           weir_device_allocator(0, &none) == WEIR_E_FORKED &&
           weir_stream_allocator(s, &none) == WEIR_E_FORKED &&
           weir_block_allocator(block, &none) == WEIR_E_FORKED &&
           weir_alloc_any(a, 100, &other) == WEIR_E_FORKED &&
           weir_free_any(a, block) == WEIR_E_FORKED &&
           weir_set_limit(a, bytes_amount(GIB)) == WEIR_E_FORKED && none == NULL && other == NULL &&
           weir_last_driver_result() == 0;
}

TEST_EACH(KIND_COUNT, a_forked_child_can_use_no_allocator) {
    weir_allocator *a = make_tested(_i);
    void *block = alloc_tested(a, 100, s);
    int status = -1;
    pid_t child;

    fill_with_pattern(block, 100, 0x21, s);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(forked_calls_are_refused(a, block) ? 0 : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    expect_pattern(block, 100, 0x21, s); /* the parent has lost nothing */
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
}

CASE("default allocator", 120, open_device_with_caches, close_tested_device);

/* weir never uses the model in place of a missing driver. */
TEST(without_a_driver_there_is_no_device) {
    struct weir_driver_failure failure;
    weir_allocator *a = NULL;

    if (on_cuda || weir__driver_open("cuda", &failure))
        return;
    EXPECT(WEIR_E_NO_DEVICE, weir_allocator_create(NULL, &a));
    ck_assert_ptr_null(a);
}

/* The first call that succeeds reads the environment.  A bad variable leaves no allocator behind. */
TEST(the_default_allocator_reads_the_environment_once) {
    weir_allocator *a = NULL, *again = NULL;
    int null_log = dup(STDERR_FILENO);
    void *block;

    ck_assert_int_eq(setenv("WEIR_DEVICE", device_name, 1), 0);
    ck_assert_int_eq(setenv("WEIR_PREALLOC", "12 apples", 1), 0);
    ck_assert_int_eq(setenv("WEIR_ENGINE", "bfc", 1), 0);
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr)); /* the reason is logged */
    EXPECT(WEIR_E_PARSE, weir_default_allocator(&a));
    ck_assert_int_ge(dup2(null_log, STDERR_FILENO), 0);
    close(null_log);
    ck_assert_ptr_null(a);
    ck_assert_int_eq(setenv("WEIR_PREALLOC", "64MiB", 1), 0);
    OK(weir_default_allocator(&a));
    OK(weir_default_allocator(&again));
    ck_assert_ptr_eq(a, again);
    OK(weir_device_allocator(0, &again));
    ck_assert_ptr_eq(a, again);
    OK(weir_stream_allocator(s, &again));
    ck_assert_ptr_eq(a, again);
    OK(weir_stream_allocator(NULL, &again));
    ck_assert_ptr_eq(a, again);
    ck_assert_uint_eq(stats_of(a).reserved, 0); /* preallocation waits for the first request */
    block = alloc_tested(a, 1000, s);
    ck_assert_uint_eq(stats_of(a).reserved, 64 * MIB);
    ck_assert_uint_eq(stats_of(a).prealloc_kept, 64 * MIB);
    OK(weir_block_allocator(block, &again));
    ck_assert_ptr_eq(a, again);
    OK(weir_free(a, block, s));
    CU(driver->cuStreamSynchronize(s));
    OK(weir_trim(a, 0, NULL));
    unsetenv("WEIR_PREALLOC");
    unsetenv("WEIR_ENGINE");
    unsetenv("WEIR_DEVICE");
}

static int skip(const char *why) {
    printf("1..0 # SKIP %s\n", why);
    return 77;
}

int main(void) {
    const char *wanted = getenv("WEIR_TEST_DEVICE");
    struct weir_driver_failure failure;
    const struct weir_driver *cuda;
    int count = 0;

    if (wanted && strcmp(wanted, "cuda") != 0 && strcmp(wanted, "model") != 0) {
        fprintf(stderr, "WEIR_TEST_DEVICE is \"%s\"; model and cuda are known\n", wanted);
        return 99;
    }
    if (getenv("WEIR_TEST_TEXT"))
        return open_text(getenv("WEIR_TEST_TEXT"));
    if (getenv("WEIR_TEST_ASK"))
        return answer_alone(getenv("WEIR_TEST_ASK"));
    if (!wanted || strcmp(wanted, "cuda") != 0)
        return run_tests("conformance", CK_FORK_GETENV);
    cuda = weir__driver_open("cuda", &failure);
    if (!cuda || cuda->cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
        return skip("no CUDA device");
    return run_tests("conformance", CK_NOFORK);
}
