/* SPDX-License-Identifier: MIT */
/* conformance.c: the public contract, sentence by sentence, on the device model and on a GPU.
 *
 * WEIR_TEST_DEVICE=model (the default) or cuda chooses the device; the tests are the same, and go
 * over every engine, with the front and without.  They call weir as a user does, and the driver table
 * for what a user does with CUDA itself: streams, fills, copies back.  What only the model can show (faults, virtual
 * time) is in test_engines.c.
 *
 * Stream order is tested with data.  Every block carries a pattern that is read back before it is
 * freed, and its last use is a late one: a fill that stands behind long work when weir_free is
 * called.  Memory that is handed out too early is overwritten by it, and the next owner sees that.
 * On a GPU this races for real; on the model fills are done at once, and test_engines.c looks at
 * times instead.
 *
 * Some tests are about the driver, since the model's rules are partly assumed: that it forbids under stream
 * capture what the model forbids, that it maps memory by handles as documented, and how its pools behave
 * (conformance_driver.c).
 *
 * A CUDA process must not fork: there Check runs the tests in this process, and the one test that
 * forks lets the child do nothing but ask weir.
 */
#include "tests/fixtures/support.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance.h"
#include "driver/driver.h"
#include "driver/model/model.h"

#define MODEL_BYTES (2 * GIB)
#define ARENA_BYTES GIB

static int on_cuda;
static const char *device_name = "model";
static const struct weir_driver *driver;
static CUdevice device;
static CUcontext primary;
static CUdeviceptr scratch;        /* for long work on a GPU */
static int front = WEIR_SWITCH_ON; /* of all allocators */

/* ---- the device ------------------------------------------------------------------------------ */

static void open_device(void) {
    struct weir_driver_failure failure;

    driver = weir__driver_open(device_name, &failure);
    ck_assert_msg(driver != NULL, "%s", failure.text);
    if (!on_cuda)
        ck_assert_int_eq(weir__model_reset(&(struct weir_model_setup){.capacity = MODEL_BYTES}), 0);
    CU(driver->cuDeviceGet(&device, 0));
    CU(driver->cuDevicePrimaryCtxRetain(&primary, device));
    CU(driver->cuCtxPushCurrent(primary));
    if (on_cuda)
        CU(driver->cuMemAlloc(&scratch, 256 * MIB));
}

static void open_device_with_front(void) {
    front = WEIR_SWITCH_ON;
    open_device();
}

static void open_device_without_front(void) {
    front = WEIR_SWITCH_OFF;
    open_device();
}

static void close_device(void) {
    CUcontext popped;

    if (on_cuda)
        CU(driver->cuMemFree(scratch));
    CU(driver->cuCtxPopCurrent(&popped));
    ck_assert_ptr_eq(popped, primary);
    CU(driver->cuDevicePrimaryCtxRelease(device));
}

static CUstream make_stream(void) {
    CUstream stream;

    CU(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static void drop_stream(CUstream stream) {
    CU(driver->cuStreamSynchronize(stream));
    CU(driver->cuStreamDestroy(stream));
}

/* Gives the stream about 0.3 ms of work. */
static void busy(CUstream stream) {
    if (!on_cuda) {
        CU(weir__model_kernel(stream, 300000));
        return;
    }
    for (int i = 0; i < 4; i++)
        CU(driver->cuMemsetD8Async(scratch, 0, 256 * MIB, stream));
}

static void order(CUstream later, CUstream earlier) {
    CUevent event;

    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventRecord(event, earlier));
    CU(driver->cuStreamWaitEvent(later, event, 0));
    CU(driver->cuEventDestroy(event));
}

static void fill(void *block, size_t bytes, unsigned char pattern, CUstream stream) {
    CU(driver->cuMemsetD8Async((CUdeviceptr)(uintptr_t)block, pattern, bytes, stream));
}

/* Waits for the stream. */
static void expect_pattern(void *block, size_t bytes, unsigned char pattern, CUstream stream) {
    size_t most = bytes < MIB ? bytes : MIB, part;
    unsigned char *copy = malloc(most);

    MUST(copy != NULL);
    for (size_t from = 0; from < bytes; from += part) {
        size_t i;

        part = bytes - from < most ? bytes - from : most;
        CU(driver->cuMemcpyDtoHAsync(copy, (CUdeviceptr)(uintptr_t)block + from, part, stream));
        CU(driver->cuStreamSynchronize(stream));
        i = first_other(copy, pattern, part);
        if (i < part)
            ck_abort_msg("block %p: byte %zu of %zu is %02x, not %02x", block, from + i, bytes,
                         copy[i], pattern);
    }
    free(copy);
}

static size_t device_free(void) {
    size_t free_bytes, total;

    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

/* All that weir took has gone back; a real driver keeps a little for itself. */
static void expect_free_again(size_t before) {
    size_t now = device_free(), slack = on_cuda ? 64 * MIB : 0;

    ck_assert_msg(now + slack >= before, "%zu bytes of the device are gone", before - now);
}

static weir_options options_for(int kind, uint64_t arena_bytes) {
    weir_options options = options_of(kind, device_name, arena_bytes);

    options.front = front;
    return options;
}

static weir_allocator *make(int kind) {
    weir_options options = options_for(kind, ARENA_BYTES);
    weir_allocator *a = NULL;

    OK(weir_allocator_create(&options, &a));
    ck_assert_ptr_nonnull(a);
    return a;
}

static weir_allocator *make_limited(int kind, size_t limit) {
    weir_options options = options_for(kind, limit);
    weir_allocator *a = NULL;

    options.limit = bytes_amount(limit);
    options.recovery_timeout_ms = 20;
    OK(weir_allocator_create(&options, &a));
    return a;
}

static void *take(weir_allocator *a, size_t bytes, CUstream stream) {
    void *block = NULL;

    OK(weir_alloc(a, bytes, stream, &block));
    MUST(block != NULL);
    return block;
}

/* ---- creation and destruction ---------------------------------------------------------------- */

TEST(create_needs_a_place_to_write) {
    weir_options options = options_for(_i, ARENA_BYTES);

    EXPECT(WEIR_E_INVALID, weir_allocator_create(&options, NULL));
    EXPECT(WEIR_E_INVALID, weir_allocator_create(NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_default_allocator(NULL));
    OK(weir_allocator_destroy(NULL));
}

/* weir_options ended here in version 1. */
enum { VERSION_1_BYTES = offsetof(weir_options, front) };

/* One wrong field each; nothing is written and nothing is held. */
TEST(create_refuses_options_out_of_range) {
    weir_options bad[24];
    weir_allocator *a = (weir_allocator *)&bad;
    size_t count = 0, before = device_free();

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        bad[i] = options_for(_i, ARENA_BYTES);
    bad[count++].device = "gpu";
    bad[count++].device = "";
    bad[count++].engine = 99;
    bad[count++].engine = -1;
    bad[count++].arena = 4;
    bad[count++].prealloc.kind = 6;
    bad[count++].prealloc.reserved = -1;
    bad[count++].prealloc_min.reserved = 1;
    bad[count++].prealloc.value = 1; /* a value of no kind */
    bad[count++].prealloc_at = 3;
    bad[count++].growth = 7;
    bad[count++].growth = WEIR_GROWTH_CALLBACK; /* without a function */
    bad[count].growth = WEIR_GROWTH_GEOMETRIC;
    bad[count++].growth_factor = 0.5;
    bad[count].growth = WEIR_GROWTH_REMAINING;
    bad[count++].growth_factor = 1.5;
    bad[count++].limit = bytes_amount(0);
    bad[count++].limit = (weir_amount){.value = 1000001, .kind = WEIR_AMOUNT_OF_TOTAL};
    bad[count++].event_ring = 1048577;
    bad[count++].latency = 3;
    bad[count++].log = 6;
    bad[count++].size = 0;
    bad[count++].size = VERSION_1_BYTES - 1;
    bad[count++].front = 3;
    bad[count++].front_cache = (weir_amount){.value = 1, .kind = WEIR_AMOUNT_OF_TOTAL};
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

/* Where the struct ended in a version between the first and this one: before a field that came later. */
static int is_end_of_options(size_t bytes) {
#define BEFORE(field) offsetof(weir_options, field)
    static const size_t ends[] = {BEFORE(front),         BEFORE(front_idle_ms),
                                  BEFORE(front_cache),   BEFORE(stream_checks),
                                  BEFORE(packing),       BEFORE(harden),
                                  BEFORE(oom_callback),  BEFORE(oom_callback_data),
                                  BEFORE(headroom),      BEFORE(headroom_high),
                                  BEFORE(prealloc_min),  BEFORE(prealloc_deadline_ms),
                                  BEFORE(prealloc_mode), BEFORE(profile),
                                  BEFORE(decay_ms),      BEFORE(internal_dependencies),
                                  BEFORE(ledger),        BEFORE(priority),
                                  BEFORE(exportable),    BEFORE(leave),
                                  BEFORE(verdict),       BEFORE(peers)};
    _Static_assert(sizeof(weir_options) - BEFORE(peers) <= sizeof(uint64_t),
                   "a field behind peers is named above");
#undef BEFORE

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends[i] == bytes)
            return 1;
    return bytes >= sizeof(weir_options);
}

/* A program compiled with a later header has a larger struct: its unknown fields must be default.  One of an earlier
 * header's is shorter by whole fields. */
TEST(create_accepts_every_size_from_version_1) {
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
    newer.options = options_for(_i, ARENA_BYTES);
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

TEST(create_finds_no_such_device) {
    weir_options options = options_of(_i, on_cuda ? "cuda:999" : "model:9", ARENA_BYTES);
    weir_allocator *a = NULL;

    EXPECT(WEIR_E_NO_DEVICE, weir_allocator_create(&options, &a));
    ck_assert_ptr_null(a);
}

TEST(create_refuses_an_impossible_preallocation) {
    weir_options options = options_for(_i, ARENA_BYTES);
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

TEST(destroy_waits_for_no_live_block) {
    weir_allocator *a = make(_i);
    CUstream s = make_stream();
    weir_statistics before, after;
    void *block = take(a, 100000, s), *other;

    fill(block, 100000, 0x5a, s);
    before = stats_of(a);
    EXPECT(WEIR_E_BUSY, weir_allocator_destroy(a));
    after = stats_of(a);
    ck_assert_mem_eq(&before, &after, sizeof before);
    expect_pattern(block, 100000, 0x5a, s);
    other = take(a, 5000, s);
    OK(weir_free(a, other, s));
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* Frees behind work that still runs when the allocator goes; on one stream, on several, and of
 * blocks with noted uses. */
TEST(destroy_gives_all_back_behind_pending_frees) {
    CUstream s[3] = {make_stream(), make_stream(), make_stream()};
    size_t before = device_free();

    for (int streams = 1; streams <= 3; streams++) {
        weir_allocator *a = make(_i);

        for (int i = 0; i < 30; i++) {
            void *block = take(a, (size_t)(i + 1) * 50000, s[i % streams]);

            busy(s[i % streams]);
            if (i % 3 == 0)
                OK(weir_use(a, block, s[(i + 1) % streams]));
            OK(weir_free(a, block, s[i % streams]));
        }
        OK(weir_allocator_destroy(a));
        expect_free_again(before);
    }
    for (int i = 0; i < 3; i++)
        drop_stream(s[i]);
}

TEST(create_and_destroy_a_hundred_times) {
    CUstream s = make_stream();
    size_t before = device_free();

    for (int i = 0; i < 100; i++) {
        weir_allocator *a = make(_i);
        void *block = take(a, (size_t)i * 1000 + 1, s);

        OK(weir_free(a, block, s));
        OK(weir_allocator_destroy(a));
    }
    expect_free_again(before);
    drop_stream(s);
}

TEST(several_allocators_beside_each_other) {
    weir_allocator *a[KIND_COUNT];
    void *block[KIND_COUNT];
    CUstream s = make_stream();

    for (int k = 0; k < KIND_COUNT; k++) {
        a[k] = make_limited(k, 128 * MIB);
        block[k] = take(a[k], MIB, s);
        fill(block[k], MIB, (unsigned char)k, s);
    }
    for (int k = 0; k < KIND_COUNT; k++) {
        expect_pattern(block[k], MIB, (unsigned char)k, s);
        ck_assert_uint_eq(stats_of(a[k]).blocks, 1);
        OK(weir_free(a[k], block[k], s));
        OK(weir_allocator_destroy(a[k]));
    }
    drop_stream(s);
}

/* ---- requests -------------------------------------------------------------------------------- */

TEST(nothing_asked_nothing_given) {
    weir_allocator *a = make(_i);
    CUstream s = make_stream();
    void *block = a;

    OK(weir_alloc(a, 0, s, &block));
    ck_assert_ptr_null(block);
    OK(weir_free(a, NULL, s));
    OK(weir_free(a, block, s));
    ck_assert_uint_eq(stats_of(a).attempts, 0);
    ck_assert_uint_eq(stats_of(a).frees, 0);
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

TEST(every_size_is_aligned_and_whole) {
    static const size_t sizes[] = {1,   2,       255,          256,      257,          511,
                                   512, 513,     4095,         4096,     4097,         MIB - 1,
                                   MIB, MIB + 1, 3 * MIB + 77, 32 * MIB, 32 * MIB + 1, 33 * MIB};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    weir_allocator *a = make(_i);
    CUstream s = make_stream();
    void *block[COUNT];

    for (int i = 0; i < COUNT; i++) {
        block[i] = take(a, sizes[i], s);
        ck_assert_uint_eq((uintptr_t)block[i] % 256, 0);
        fill(block[i], sizes[i], (unsigned char)(i + 1), s);
        check_identities(a);
    }
    for (int i = 0; i < COUNT; i++) {
        expect_pattern(block[i], sizes[i], (unsigned char)(i + 1), s);
        OK(weir_free(a, block[i], s));
        check_identities(a);
    }
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* The memory of a block is there again for its own stream at once, though the stream is busy. */
TEST(own_stream_reuses_at_once) {
    weir_allocator *a = make(_i);
    CUstream s = make_stream();
    void *block = take(a, 24 * MIB, s);
    uint64_t reserve = stats_of(a).reserve;

    for (int i = 0; i < 20; i++) {
        if (_i != KIND_PLATFORM)
            busy(s);
        fill(block, 24 * MIB, (unsigned char)i, s);
        OK(weir_free(a, block, s));
        block = take(a, 24 * MIB, s);
    }
    ck_assert_uint_eq(stats_of(a).reserve, reserve);
    ck_assert_uint_eq(stats_of(a).reserve_peak, reserve);
    if (_i != KIND_PLATFORM)
        ck_assert_uint_ge(stats_of(a).hits, 20);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* As far as a real driver has a part in it; test_misuse.c has the rest.  The pool engine alone frees
 * what the driver takes. */
TEST(only_live_blocks_are_freed) {
    weir_allocator *a = make(_i), *stranger = make(_i);
    CUstream s = make_stream();
    char *block = take(a, 100000, s), *other = take(a, 5000, s);
    weir_statistics before;

    fill(block, 100000, 0x11, s);
    fill(other, 5000, 0x22, s);
    before = stats_of(a);
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + 256, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, block + 1, s));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(a, &before, s));
    if (_i != KIND_POOL || front == WEIR_SWITCH_ON) {
        EXPECT(WEIR_E_NOT_OWNED, weir_free(stranger, block, s));
        EXPECT(WEIR_E_NOT_OWNED, weir_use(a, block + 512, s));
    } else { /* a noted use changes nothing about that */
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
    drop_stream(s);
}

/* Freed once with a use noted and still pending: the second free is a double free too. */
TEST(a_pending_free_is_a_free) {
    weir_allocator *a = make(_i);
    CUstream s = make_stream(), t = make_stream();
    void *block = take(a, MIB, s);

    busy(t);
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
    drop_stream(s);
    drop_stream(t);
}

/* One block at a time fits, so that each is what the last one was, written to late. */
TEST(blocks_for_any_stream) {
    const size_t bytes = 20 * MIB;
    weir_allocator *a = make_limited(_i, 32 * MIB);
    CUstream s = make_stream(), t = make_stream(), u = make_stream();

    for (unsigned char i = 0; i < 10; i++) {
        void *block = take(a, bytes, s), *any = NULL;

        busy(s);
        fill(block, bytes, 0x10 + i, s);
        OK(weir_free(a, block, s));
        OK(weir_alloc_any(a, bytes, &any));
        fill(any, bytes, 0x20 + i, t);
        order(u, t);
        expect_pattern(any, bytes, 0x20 + i, u);
        busy(t);
        fill(any, bytes, 0x30 + i, t);
        busy(u);
        fill(any, bytes / 2, 0x40 + i, u);
        OK(weir_free_any(a, any));
        block = take(a, bytes, s);
        fill(block, bytes, 0x50 + i, s);
        CU(driver->cuCtxSynchronize());
        expect_pattern(block, bytes, 0x50 + i, s);
        OK(weir_free(a, block, s));
    }
    check_identities(a);
    OK(weir_allocator_destroy(a));
    drop_stream(s);
    drop_stream(t);
    drop_stream(u);
}

/* NULL, 0x1 and 0x2, in the thread's context and without any. */
TEST(default_streams) {
    weir_allocator *a = make(_i);
    CUcontext popped;

    for (int current = 1; current >= 0; current--) {
        if (!current)
            CU(driver->cuCtxPopCurrent(&popped));
        for (uintptr_t handle = 0; handle <= 2; handle++) {
            weir_stream s = (weir_stream)handle;

            for (int i = 0; i < 40; i++) {
                void *block = take(a, 70000, s), *other = take(a, 500, s);

                if (current)
                    fill(block, 70000, (unsigned char)i, s);
                OK(weir_free(a, other, s));
                if (current && i % 10 == 0)
                    expect_pattern(block, 70000, (unsigned char)i, s);
                if (i % 4 == 0)
                    OK(weir_use(a, block, (weir_stream)(2 - handle)));
                OK(weir_free(a, block, s));
            }
            check_identities(a);
        }
    }
    CU(driver->cuCtxPushCurrent(popped));
    ck_assert_uint_eq(stats_of(a).blocks, 0);
    OK(weir_allocator_destroy(a));
}

/* A use is noted on streams that a block never saw otherwise, many of them, and twice. */
TEST(many_uses_of_one_block) {
    enum { STREAMS = 20 };
    weir_allocator *a = make(_i);
    CUstream s[STREAMS];
    void *block;

    for (int i = 0; i < STREAMS; i++)
        s[i] = make_stream();
    for (int round = 0; round < 5; round++) {
        block = take(a, 3 * MIB, s[0]);
        fill(block, 3 * MIB, 0x33, s[0]);
        for (int i = 1; i < STREAMS; i++) {
            order(s[i], s[0]);
            OK(weir_use(a, block, s[i]));
            OK(weir_use(a, block, s[i]));
            busy(s[i]);
        }
        fill(block, 3 * MIB, 0x44, s[STREAMS - 1]);
        OK(weir_free(a, block, s[0]));
        block = take(a, 3 * MIB, s[1]);
        fill(block, 3 * MIB, 0x55, s[1]);
        CU(driver->cuCtxSynchronize());
        expect_pattern(block, 3 * MIB, 0x55, s[1]);
        OK(weir_free(a, block, s[1]));
        check_identities(a);
    }
    OK(weir_allocator_destroy(a));
    for (int i = 0; i < STREAMS; i++)
        drop_stream(s[i]);
}

/* A free may name any stream that is ordered after the block's uses. */
TEST(freed_on_another_stream) {
    weir_allocator *a = make(_i);
    CUstream s = make_stream(), t = make_stream();

    for (int i = 0; i < 50; i++) {
        void *block = take(a, 200000, s), *next;

        busy(s);
        fill(block, 200000, 0x66, s);
        order(t, s);
        fill(block, 200000, 0x77, t);
        OK(weir_free(a, block, t));
        next = take(a, 200000, s);
        fill(next, 200000, (unsigned char)i, s);
        CU(driver->cuStreamSynchronize(t));
        expect_pattern(next, 200000, (unsigned char)i, s);
        OK(weir_free(a, next, s));
    }
    check_identities(a);
    OK(weir_allocator_destroy(a));
    drop_stream(s);
    drop_stream(t);
}

/* ---- limits and refusals --------------------------------------------------------------------- */

/* The memory grows by 32 MiB or more at a time: a pool's always, behind the front the platform's too. */
static int grows_by_regions(int kind) {
    return kind == KIND_POOL || (kind == KIND_PLATFORM && front == WEIR_SWITCH_ON);
}

TEST(the_limit_is_exact) {
    enum { COUNT = 8 };
    weir_allocator *a = make_limited(_i, COUNT * 32 * MIB);
    CUstream s = make_stream();
    void *block[COUNT], *none = &none;
    weir_statistics stats;

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < COUNT; i++)
            block[i] = take(a, 32 * MIB, s);
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 1, s, &none));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 32 * MIB, s, &none));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, COUNT * 32 * MIB + 1, s, &none));
        ck_assert_ptr_eq(none, &none);
        stats = check_identities(a);
        ck_assert_uint_eq(stats.refusals, 3 * (uint64_t)(round + 1));
        ck_assert_uint_eq(stats.reserve, COUNT * 32 * MIB);
        ck_assert_uint_eq(stats.reserve_peak, COUNT * 32 * MIB);
        /* Everything else keeps working. */
        fill(block[3], 32 * MIB, 1, s);
        OK(weir_free(a, block[3], s));
        block[3] = take(a, 32 * MIB, s);
        for (int i = 0; i < COUNT; i++)
            OK(weir_free(a, block[i], s));
    }
    block[0] = take(a, COUNT * 32 * MIB, s);
    OK(weir_free(a, block[0], s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* Limits that are no multiple of anything. */
TEST(the_limit_can_be_lowered) {
    weir_allocator *a = make_limited(_i, 512 * MIB);
    CUstream s = make_stream();
    void *block = NULL;

    if (_i == KIND_FIXED) {
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_set_limit(a, bytes_amount(128 * MIB)));
    } else {
        OK(weir_set_limit(a, bytes_amount(128 * MIB)));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 200 * MIB, s, &block));
        block = take(a, 90 * MIB, s);
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 90 * MIB, s, &(void *){NULL}));
        ck_assert_uint_le(check_identities(a).reserve, 128 * MIB);
        OK(weir_free(a, block, s));
        OK(weir_set_limit(a, bytes_amount(GIB))); /* as before, and no more */
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, 600 * MIB, s, &block));
    }
    block = take(a, 400 * MIB, s);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* What others take from weir's pool is of its reserve and under its limit, and nobody else's. */
TEST(the_pool_can_be_shared) {
    weir_allocator *a = make_limited(KIND_POOL, 128 * MIB);
    CUstream s = make_stream(), t = make_stream();
    CUdeviceptr theirs = 0, more = 0;
    CUmemoryPool pool = NULL;
    void *block;

    OK(weir_pool(a, &pool));
    OK(weir_preallocate(a, 64 * MIB, NULL));
    CU(driver->cuMemAllocFromPoolAsync(&theirs, 50 * MIB, pool, s));
    fill((void *)(uintptr_t)theirs, 50 * MIB, 0x11, s);
    ck_assert_uint_eq(stats_of(a).reserve, 64 * MIB);
    block = take(a, 40 * MIB, t);
    fill(block, 40 * MIB, 0x22, t);
    expect_pattern((void *)(uintptr_t)theirs, 50 * MIB, 0x11, s);
    expect_pattern(block, 40 * MIB, 0x22, t);
    ck_assert_uint_le(stats_of(a).reserve, 128 * MIB);
    ck_assert_uint_eq(driver->cuMemAllocFromPoolAsync(&more, 100 * MIB, pool, s),
                      CUDA_ERROR_OUT_OF_MEMORY);
    CU(driver->cuMemFreeAsync(theirs, s));
    OK(weir_free(a, block, t));
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    drop_stream(s);
    drop_stream(t);
}

TEST(the_limit_is_never_passed) {
    static const size_t limits[] = {1, 255, 300, 5 * MIB, 31 * MIB, 33 * MIB + 1, 100 * MIB + 4097};
    size_t least = grows_by_regions(_i) ? 32 * MIB : 0;
    CUstream s = make_stream();

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        weir_allocator *a;
        void *block = NULL, *blocks[64];
        int count = 0;

        if (_i == KIND_FIXED && limits[i] < 256) /* no arena at all */
            continue;
        if (limits[i] < least) {
            weir_options options = options_for(_i, limits[i]);

            options.limit = bytes_amount(limits[i]);
            a = NULL;
            EXPECT(WEIR_E_LIMIT, weir_allocator_create(&options, &a));
            ck_assert_ptr_null(a);
            continue;
        }
        a = make_limited(_i, limits[i]);
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, limits[i] + 1, s, &block));
        while (count < 64 && weir_alloc(a, limits[i] / 20 + 1, s, &block) == WEIR_OK) {
            blocks[count++] = block;
            ck_assert_uint_le(stats_of(a).reserve, limits[i]);
        }
        ck_assert_int_lt(count, 64);
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, limits[i] / 20 + 1, s, &block));
        EXPECT(WEIR_E_LIMIT, weir_alloc(a, limits[i], s, &block));
        ck_assert_uint_le(stats_of(a).reserve_peak, limits[i]);
        check_identities(a);
        while (count > 0)
            OK(weir_free(a, blocks[--count], s));
        OK(weir_allocator_destroy(a));
    }
    drop_stream(s);
}

/* Why the last request was refused; the text of it is printed. */
static weir_verdict verdict_of(weir_allocator *a) {
    weir_verdict v = {.size = sizeof v};
    char text[4096];

    OK(weir_last_verdict(a, &v));
    ck_assert_uint_eq(v.size, sizeof v);
    weir_verdict_text(&v, WEIR_VERDICT_AS_TEXT, text, sizeof text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        printf("# %s\n", line);
    return v;
}

TEST(a_refusal_has_a_verdict) {
    weir_allocator *a = make_limited(_i, 256 * MIB);
    CUstream s = make_stream();
    void *block = take(a, 200 * MIB, s), *none = NULL;
    weir_verdict v;

    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 200 * MIB, s, &none));
    v = verdict_of(a);
    ck_assert_int_eq(v.cause, WEIR_VERDICT_LIMIT);
    ck_assert_int_eq(v.status, WEIR_E_LIMIT);
    ck_assert_uint_eq(v.asked, 200 * MIB);
    ck_assert_uint_eq(v.limit, 256 * MIB);
    ck_assert_uint_eq(v.idle, v.reserve - v.in_use);
    ck_assert_uint_le(v.reserve + v.others + v.graphs + v.siblings + v.device_free, v.device_total);
    ck_assert_ptr_nonnull(v.settings[0].name);
    ck_assert_str_eq(v.settings[0].name, "limit");
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, s, &none));
    ck_assert_int_eq(verdict_of(a).cause, WEIR_VERDICT_TOO_LARGE);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

TEST(a_refusal_tells_its_figures) {
    weir_allocator *a = make_limited(_i, 256 * MIB);
    CUstream s = make_stream();
    weir_refusal r = {.size = sizeof r};
    size_t total, free_bytes;
    void *block = take(a, 200 * MIB, s), *none = NULL;
    struct {
        size_t size;
        uint64_t asked, unknown;
    } shorter = {.size = 2 * sizeof(uint64_t), .unknown = 99};

    CU(driver->cuMemGetInfo(&free_bytes, &total));
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 200 * MIB, s, &none));
    OK(weir_last_refusal(&r));
    ck_assert_uint_eq(r.size, sizeof r);
    ck_assert_uint_eq(r.asked, 200 * MIB);
    ck_assert_uint_eq(r.limit, 256 * MIB);
    ck_assert_uint_eq(r.device_total, total);
    ck_assert_uint_ge(r.in_use, 200 * MIB);
    ck_assert_uint_ge(r.reserve, r.in_use);
    ck_assert_uint_le(r.reserve, 256 * MIB);
    ck_assert_uint_le(r.device_free, total);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, total + 1, s, &none));
    OK(weir_last_refusal(&r));
    ck_assert_uint_eq(r.asked, total + 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, s, &none));
    OK(weir_last_refusal((weir_refusal *)(void *)&shorter));
    ck_assert_uint_eq(shorter.size, 2 * sizeof(uint64_t));
    ck_assert_uint_eq(shorter.asked, SIZE_MAX);
    ck_assert_uint_eq(shorter.unknown, 99);
    ck_assert_ptr_null(none);
    ck_assert_uint_eq(check_identities(a).refusals, 3);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* Frees a block, given as `data`, that is in the way. */
static int free_the_other(const weir_oom *oom, void *data) {
    void **other = data;

    if (!*other)
        return 0;
    OK(weir_free(oom->allocator, *other, oom->stream));
    *other = NULL;
    return 1;
}

TEST(a_callback_makes_room) {
    weir_options options = options_for(_i, 256 * MIB);
    CUstream s = make_stream();
    weir_allocator *a;
    void *other = NULL, *block, *none = NULL;

    options.limit = bytes_amount(256 * MIB);
    options.recovery_timeout_ms = 20;
    options.oom_callback = free_the_other;
    options.oom_callback_data = &other;
    OK(weir_allocator_create(&options, &a));
    other = take(a, 200 * MIB, s);
    fill(other, 200 * MIB, 0x11, s);
    block = take(a, 150 * MIB, s);
    ck_assert_ptr_null(other);
    fill(block, 150 * MIB, 0x22, s);
    expect_pattern(block, 150 * MIB, 0x22, s);
    EXPECT(WEIR_E_LIMIT, weir_alloc(a, 150 * MIB, s, &none));
    ck_assert_uint_eq(check_identities(a).refusals, 1);
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* What a refusal says could be had can be had: of an empty reserve, of an idle one, of one in pieces. */
TEST(the_largest_request_is_served) {
    static const size_t sizes[] = {257 * MIB, 200 * MIB, 128 * MIB, 100 * MIB};
    enum { COUNT = 24 };
    CUstream s = make_stream();
    weir_refusal r = {.size = sizeof r};
    void *block[COUNT], *any = NULL;

    for (int round = 0; round < 4; round++) { /* of the blocks each round-th is free */
        weir_allocator *a = make_limited(_i, 256 * MIB);

        for (int i = 0; i < COUNT && round > 0; i++)
            block[i] = take(a, 9 * MIB + (size_t)(i * round) * 4 * KIB, s);
        for (int i = 0; i < COUNT && round > 0; i += round)
            OK(weir_free(a, block[i], s));
        for (int i = 0; i < 4; i++) {
            if (weir_alloc(a, sizes[i], s, &any) == WEIR_OK) {
                OK(weir_free(a, any, s));
                continue;
            }
            OK(weir_last_refusal(&r));
            ck_assert_uint_eq(r.asked, sizes[i]);
            printf("# %s, front %s, round %d: %zu MiB are refused, %llu bytes can be had\n",
                   kind_names[_i], front == WEIR_SWITCH_ON ? "on" : "off", round, sizes[i] / MIB,
                   (unsigned long long)r.largest);
            if (r.largest > 0)
                OK(weir_free(a, take(a, (size_t)r.largest, s), s));
        }
        for (int i = 0; i < COUNT && round > 0; i++)
            if (i % round != 0)
                OK(weir_free(a, block[i], s));
        OK(weir_allocator_destroy(a));
    }
    drop_stream(s);
}

/* The same where the device has no more.  What a driver then keeps for itself nobody knows, so that on a GPU
 * it is told and not asserted. */
TEST(the_largest_request_on_a_full_device) {
    weir_options options = options_for(_i, 64 * MIB);
    CUstream s = make_stream();
    weir_refusal r = {.size = sizeof r};
    struct hog hog = {.count = 0};
    void *block = NULL;
    weir_allocator *a;
    weir_status status;
    int cause;

    options.recovery_timeout_ms = 20;
    OK(weir_allocator_create(&options, &a));
    hog_takes(driver, &hog, 300 * MIB);
    if (weir_alloc(a, GIB, s, &block) == WEIR_OK) { /* somebody has given some back */
        OK(weir_free(a, block, s));
    } else {
        OK(weir_last_refusal(&r));
        cause = verdict_of(a).cause;
        if (!on_cuda && _i != KIND_FIXED)
            ck_assert_int_eq(cause, WEIR_VERDICT_OTHERS);
        status = r.largest > 0 ? weir_alloc(a, (size_t)r.largest, s, &block) : WEIR_OK;
        printf("# %s, front %s, full device, %llu bytes free: %llu bytes can be had: %s\n",
               kind_names[_i], front == WEIR_SWITCH_ON ? "on" : "off",
               (unsigned long long)r.device_free, (unsigned long long)r.largest,
               weir_status_name(status));
        if (!on_cuda)
            ck_assert_int_eq(status, WEIR_OK);
        if (!on_cuda && _i != KIND_FIXED)
            ck_assert_uint_ge(r.largest, 288 * MIB);
        if (status == WEIR_OK)
            OK(weir_free(a, block, s));
    }
    hog_ends(driver, &hog);
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* What a thread that allocates from `a` finds wrong, or NULL. */
static const char *wrong_at_first_refusal(weir_allocator *a) {
    weir_refusal r = {.size = sizeof r};
    void *none;

    if (weir_last_refusal(&r) != WEIR_OK || r.size != sizeof r || r.asked != 0 || r.limit != 0)
        return "a fresh thread has a refusal";
    if (weir_last_driver_result() != 0)
        return "a fresh thread has a driver result";
    if (weir_alloc(a, (size_t)1 << 50, (weir_stream)2, &none) != WEIR_E_NO_MEMORY)
        return "2^50 bytes were not refused";
    if (weir_last_refusal(&r) != WEIR_OK || r.asked != (uint64_t)1 << 50)
        return "the thread's own refusal is not there";
    return NULL;
}

struct refused {
    weir_allocator *allocator;
    const char *wrong;
};

static void *refused_once(void *arg) {
    struct refused *refused = arg;

    refused->wrong = wrong_at_first_refusal(refused->allocator);
    return NULL;
}

TEST(refusals_and_results_are_the_threads_own) {
    weir_allocator *a = make(_i);
    weir_refusal r = {.size = sizeof r};
    struct refused refused = {.allocator = a};
    pthread_t thread;
    void *none;

    EXPECT(WEIR_E_NO_MEMORY, weir_alloc(a, (size_t)1 << 51, NULL, &none));
    ck_assert_int_eq(pthread_create(&thread, NULL, refused_once, &refused), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_msg(!refused.wrong, "%s", refused.wrong);
    OK(weir_last_refusal(&r));
    ck_assert_uint_eq(r.asked, (uint64_t)1 << 51);
    OK(weir_allocator_destroy(a));
}

/* Every failing call sets the driver's part in it, to 0 if it had none; successes leave it alone. */
/* The front refuses by itself what it does not know: here the driver does. */
TEST(the_driver_result_is_of_the_last_failure) {
    weir_allocator *a = make(KIND_POOL);
    CUstream s = make_stream();
    weir_options options;
    void *block = take(a, 1000, s);
    weir_refusal refusal = {.size = 0};
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
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_last_refusal(NULL));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_last_refusal(&refusal));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_options_init_sized(NULL, 1));
    DRIVER_HAD_NO_PART(WEIR_E_PARSE, weir_options_set(&options, "prealloc", "12 apples", NULL, 0));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_options_set(&options, "pralloc", "1", NULL, 0));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_options_from_env(NULL, NULL, 0));
    DRIVER_HAD_NO_PART(WEIR_E_INVALID, weir_trace_reader_create(NULL, NULL, &reader));
    DRIVER_HAD_NO_PART(WEIR_E_NO_MEMORY, weir_alloc(a, SIZE_MAX, s, &block));
#undef DRIVER_HAD_NO_PART
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* ---- reserve --------------------------------------------------------------------------------- */

TEST(preallocate_grows_to_what_was_asked) {
    weir_allocator *a = make_limited(_i, 512 * MIB);
    CUstream s = make_stream();
    size_t reserve = 77;
    weir_statistics stats;
    void *block[8];

    if (_i == KIND_PLATFORM) {
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
    ck_assert_uint_eq(stats.reserve, reserve);
    for (int i = 0; i < 8; i++)
        block[i] = take(a, 16 * MIB, s);
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
    drop_stream(s);
}

/* The option, at creation and at the first request. */
TEST(preallocation_as_an_option) {
    CUstream s = make_stream();

    for (int at = WEIR_PREALLOC_AT_CREATE; at <= WEIR_PREALLOC_AT_FIRST; at++) {
        weir_options options = options_for(_i, 256 * MIB);
        weir_statistics stats;
        weir_allocator *a;
        void *block;

        options.prealloc = bytes_amount(192 * MIB);
        options.prealloc_at = at;
        OK(weir_allocator_create(&options, &a));
        stats = check_identities(a);
        if (at == WEIR_PREALLOC_AT_FIRST)
            ck_assert_uint_eq(stats.reserve, 0);
        block = take(a, 100 * MIB, s);
        stats = check_identities(a);
        if (_i == KIND_PLATFORM) {
            ck_assert_uint_eq(stats.reserve, grows_by_regions(_i) ? 128 * MIB : 100 * MIB);
            ck_assert_uint_eq(stats.prealloc_got, 0);
        } else {
            uint64_t most = _i == KIND_FIXED ? 256 * MIB : 192 * MIB;

            ck_assert_uint_eq(stats.prealloc_asked, most);
            ck_assert_uint_eq(stats.prealloc_got, most);
            ck_assert_uint_eq(stats.prealloc_kept, most);
            ck_assert_uint_gt(stats.prealloc_ns, 0);
            ck_assert_uint_eq(stats.reserve, most);
            ck_assert_uint_eq(stats.hits, 1);
            ck_assert_uint_eq(stats.growths, 1);
        }
        OK(weir_free(a, block, s));
        OK(weir_allocator_destroy(a));
    }
    drop_stream(s);
}

/* A part of the preallocation at once, the rest and headroom by the thread, or, on the model, by requests of
 * the engine while time passes. */
TEST(in_the_background_the_reserve_grows_too) {
    weir_options options = options_for(_i, 512 * MIB);
    int grows = _i == KIND_POOL || _i == KIND_REGIONS, done = 0;
    CUstream s = make_stream();
    size_t before = device_free();
    weir_statistics stats;
    weir_allocator *a;
    void *block;

    options.prealloc = bytes_amount(256 * MIB);
    options.prealloc_min = bytes_amount(64 * MIB);
    options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    options.headroom = bytes_amount(128 * MIB);
    options.front_cache = bytes_amount(0);
    OK(weir_allocator_create(&options, &a));
    if (grows)
        ck_assert_uint_ge(stats_of(a).reserve, 64 * MIB);
    for (int i = 0; i < 5000 && grows && !done; i++) {
        OK(weir_free(a, take(a, MIB, s), s));
        driver->sleep_ns(2000000);
        stats = stats_of(a);
        done = stats.prealloc_pending == 0 && stats.reserve >= 256 * MIB;
    }
    ck_assert_int_eq(done, grows);
    stats = check_identities(a);
    if (grows)
        ck_assert_uint_ge(stats.prealloc_got, 256 * MIB);
    block = take(a, 150 * MIB, s);
    if (grows)
        ck_assert_uint_eq(stats_of(a).growth_allocs, stats.growth_allocs);
    for (int i = 0; i < 5000 && grows; i++) {
        OK(weir_free(a, take(a, MIB, s), s));
        driver->sleep_ns(2000000);
        stats = stats_of(a);
        if (stats.reserve - stats.in_use >= 128 * MIB)
            break;
    }
    if (grows) {
        ck_assert_uint_ge(stats.reserve - stats.in_use, 128 * MIB);
        ck_assert_uint_gt(stats.ahead_steps, 0);
    }
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
    expect_free_again(before);
}

TEST(trim_gives_idle_reserve_back) {
    weir_allocator *a = make_limited(_i, 512 * MIB);
    CUstream s = make_stream(), t = make_stream();
    size_t before = device_free(), released = 77;
    void *block[4], *kept;
    weir_statistics stats;

    OK(weir_trim(a, 0, NULL));
    for (int i = 0; i < 4; i++)
        block[i] = take(a, 48 * MIB, i % 2 ? s : t);
    kept = take(a, MIB, s);
    fill(kept, MIB, 0x42, s);
    OK(weir_trim(a, SIZE_MAX, &released));
    ck_assert_uint_eq(released, 0);
    for (int i = 0; i < 4; i++)
        OK(weir_free(a, block[i], i % 2 ? s : t));
    CU(driver->cuCtxSynchronize());
    stats = check_identities(a);
    OK(weir_trim(a, 0, &released));
    ck_assert_uint_eq(stats_of(a).reserve, stats.reserve - released);
    expect_pattern(kept, MIB, 0x42, s);
    OK(weir_free(a, kept, s));
    CU(driver->cuCtxSynchronize());
    stats = check_identities(a);
    OK(weir_trim(a, 0, &released));
    ck_assert_uint_eq(released, stats.reserve);
    ck_assert_uint_eq(check_identities(a).reserve, 0);
    OK(weir_trim(a, 0, &released));
    ck_assert_uint_eq(released, 0);
    expect_free_again(before);
    block[0] = take(a, MIB, s);
    OK(weir_free(a, block[0], s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
    drop_stream(t);
}

TEST(trim_keeps_what_it_is_told_to) {
    weir_options options = options_for(_i, 512 * MIB);
    CUstream s = make_stream();
    weir_allocator *a;
    size_t released = 0;
    uint64_t before, after;

    options.growth = WEIR_GROWTH_EXACT;
    OK(weir_allocator_create(&options, &a));
    if (_i == KIND_POOL || _i == KIND_REGIONS) {
        for (size_t i = 1; i <= 5; i++)
            OK(weir_preallocate(a, i * (i + 1) / 2 * 32 * MIB, NULL));
        before = stats_of(a).reserve;
        ck_assert_uint_eq(before, 480 * MIB);
        OK(weir_trim(a, 320 * MIB, &released));
        after = stats_of(a).reserve;
        ck_assert_uint_eq(after, 320 * MIB);
        ck_assert_uint_eq(released, before - after);
        ck_assert_uint_eq(stats_of(a).trims, 1);
        ck_assert_uint_eq(stats_of(a).trim_bytes, released);
    }
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* In requests, but for an arena of regions, and by weir_decay; what is in use keeps its bytes. */
TEST(idle_reserve_decays) {
    weir_options options = options_for(_i == 0 ? KIND_POOL : KIND_REGIONS, 0);
    CUstream s = make_stream();
    void *block[8], *kept;
    weir_allocator *a;

    options.decay_ms = 20;
    options.growth = WEIR_GROWTH_EXACT;
    if (_i == 2)
        options.arena = WEIR_ARENA_MAPPED;
    OK(weir_allocator_create(&options, &a));
    kept = take(a, MIB, s);
    fill(kept, MIB, 0x42, s);
    for (int i = 0; i < 8; i++)
        block[i] = take(a, 64 * MIB, s);
    for (int i = 0; i < 8; i++)
        OK(weir_free(a, block[i], s));
    for (size_t i = 0; i < 400 && stats_of(a).reserve > 256 * MIB; i++) {
        driver->sleep_ns(5000000);
        block[0] = take(a, 2 * MIB + i % 50 * 64 * KIB, s);
        fill(block[0], MIB, 0x17, s);
        OK(weir_free(a, block[0], s));
        CU(driver->cuStreamSynchronize(s));
        if (_i == 1)
            OK(weir_decay(a, NULL));
    }
    ck_assert_uint_le(stats_of(a).reserve, 256 * MIB);
    expect_pattern(kept, MIB, 0x42, s);
    OK(weir_free(a, kept, s));
    for (int i = 0; i < 100 && stats_of(a).reserve > 32 * MIB; i++) {
        driver->sleep_ns(21000000);
        OK(weir_decay(a, NULL));
    }
    ck_assert_uint_le(check_identities(a).reserve, 32 * MIB);
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* One allocator has 1.25 GiB idle, behind work that still uses it, of 1.5 that the device has left; another one
 * asks for 0.75.  Then the first is told that memory is low. */
TEST(a_full_device_takes_what_another_allocator_has_idle) {
    static const int arenas[] = {0, WEIR_ARENA_REGIONS, WEIR_ARENA_MAPPED};
    weir_options options = options_for(_i == 0 ? KIND_POOL : KIND_REGIONS, 0);
    CUstream s = make_stream(), t = make_stream();
    size_t late = on_cuda ? 128 * MIB : 8 * MIB; /* the model fills at once */
    weir_allocator *rich, *poor;
    void *block[10], *asked;
    CUdeviceptr ballast;
    uint64_t before;

    options.growth = WEIR_GROWTH_EXACT;
    options.arena = arenas[_i];
    options.decay_ms = 3600000; /* no base of a pool, which one block would hold */
    OK(weir_allocator_create(&options, &rich));
    options = options_for(KIND_POOL, 0);
    OK(weir_allocator_create(&options, &poor));
    CU(driver->cuMemAlloc(&ballast, device_free() - 1536 * MIB));
    for (int i = 0; i < 10; i++)
        block[i] = take(rich, 128 * MIB, s);
    for (int i = 0; i < 10; i++) {
        busy(s);
        fill(block[i], late, 0x11, s);
        OK(weir_free(rich, block[i], s));
    }
    if (_i == 0 && front == WEIR_SWITCH_OFF)
        CU(driver->cuStreamSynchronize(
            s)); /* else the driver's pool (580) takes frees for pending */
    before = stats_of(rich).reserve;
    asked = take(poor, 768 * MIB, t);
    fill(asked, 768 * MIB, 0x77, t);
    ck_assert_uint_le(512 * MIB, before - stats_of(rich).reserve);
    ck_assert_uint_eq(stats_of(poor).refusals, 0);
    expect_pattern(asked, 64 * MIB, 0x77, t);
    OK(weir_free(poor, asked, t));
    CU(driver->cuMemFree(ballast));
    for (int i = 0; i < 8; i++)
        block[i] = take(rich, 128 * MIB, s);
    for (int i = 0; i < 8; i++)
        OK(weir_free(rich, block[i], s));
    CU(driver->cuStreamSynchronize(s));
    OK(weir_low_memory(rich, 0));
    for (size_t i = 0; i < 200 && stats_of(rich).reserve > 256 * MIB; i++) {
        driver->sleep_ns(5000000);
        OK(weir_free(rich, take(rich, 2 * MIB + i % 50 * 64 * KIB, s), s));
        CU(driver->cuStreamSynchronize(s));
        if (_i == 1)
            OK(weir_decay(rich, NULL));
    }
    ck_assert_uint_le(check_identities(rich).reserve, 256 * MIB);
    OK(weir_allocator_destroy(poor));
    OK(weir_allocator_destroy(rich));
    drop_stream(t);
    drop_stream(s);
}

/* The driver's threshold, which only the pool engine has: at once, and when caches have warmed up. */
TEST(the_release_threshold_holds_at_synchronisations) {
    static const size_t thresholds[] = {0, 100 * MIB, SIZE_MAX};
    CUstream s = make_stream();

    for (size_t i = 0; i < 6; i++) {
        size_t threshold = thresholds[i % 3];
        weir_options options = options_for(KIND_POOL, 0);
        weir_allocator *a;
        uint64_t before;
        void *block, *small;

        options.release_threshold = threshold == SIZE_MAX
                                        ? (weir_amount){.kind = WEIR_AMOUNT_DEFAULT}
                                        : bytes_amount(threshold);
        OK(weir_allocator_create(&options, &a));
        block = take(a, 512 * MIB, s);
        before = stats_of(a).reserve;
        for (int k = 0; i >= 3 && k < 1500; k++) {
            small = take(a, 2000, s);
            OK(weir_free(a, block, s));
            block = take(a, 512 * MIB, s);
            OK(weir_free(a, small, s));
        }
        OK(weir_free(a, block, s));
        CU(driver->cuStreamSynchronize(s));
        if (threshold == SIZE_MAX)
            ck_assert_uint_ge(stats_of(a).reserve, before);
        else
            ck_assert_uint_eq(stats_of(a).reserve, threshold == 0 ? 0 : 96 * MIB);
        before = stats_of(a).growth_allocs;
        block = take(a, 512 * MIB, s); /* it grows again, and says so */
        ck_assert_uint_eq(check_identities(a).growth_allocs,
                          before + (threshold == SIZE_MAX ? 0 : 1));
        OK(weir_free(a, block, s));
        OK(weir_allocator_destroy(a));
    }
    drop_stream(s);
}

/* ---- random work with data ------------------------------------------------------------------- */

enum { MOST_BLOCKS = 200, STREAMS = 4 };

struct held {
    unsigned char *block;
    size_t bytes;
    CUstream stream;
    unsigned char pattern;
};

/* What one thread holds. */
struct work {
    weir_allocator *a;
    struct held held[MOST_BLOCKS];
    int count;
    CUstream stream[STREAMS];
    uint64_t random;
    size_t largest;
};

/* All live blocks of all threads, for the check that none overlap. */
static struct {
    pthread_mutex_t lock;
    struct held *all[8];
    int *counts[8];
    int parts;
} everybody = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void expect_apart(const struct held *h) {
    for (int p = 0; p < everybody.parts; p++)
        for (int i = 0; i < *everybody.counts[p]; i++) {
            const struct held *o = &everybody.all[p][i];

            if (h->block + h->bytes > o->block && o->block + o->bytes > h->block)
                ck_abort_msg("%p+%zu lies over the live block %p+%zu", (void *)h->block, h->bytes,
                             (void *)o->block, o->bytes);
        }
}

static void take_one(struct work *w) {
    struct held h = {.stream = w->stream[next_random(&w->random) % STREAMS],
                     .pattern = (unsigned char)(1 + next_random(&w->random) % 254)};
    void *block = NULL;

    h.bytes = random_size(&w->random, w->largest);
    OK(weir_alloc(w->a, h.bytes, h.stream, &block));
    h.block = block;
    MUST_EQ((uintptr_t)block % 256, 0);
    pthread_mutex_lock(&everybody.lock);
    expect_apart(&h);
    w->held[w->count++] = h;
    pthread_mutex_unlock(&everybody.lock);
    fill(h.block, h.bytes, h.pattern, h.stream);
}

/* Uses the block late, on its own stream or on others, and frees it while those uses may run. */
static void give_one(struct work *w) {
    struct held h;
    int which = (int)(next_random(&w->random) % (uint64_t)w->count);
    uint64_t dice = next_random(&w->random);
    CUstream on;

    h = w->held[which];
    if (!on_cuda || dice % 4 == 0)
        expect_pattern(h.block, h.bytes, h.pattern, h.stream);
    if ((dice >> 8) % 8 == 0)
        busy(h.stream);
    fill(h.block, h.bytes, 0xff, h.stream);
    on = h.stream;
    for (int uses = (int)((dice >> 16) % 8); uses > 4; uses--) {
        CUstream t = w->stream[(dice >> (16 + 4 * uses)) % STREAMS];

        order(t, h.stream);
        OK(weir_use(w->a, h.block, t));
        if ((dice >> 12) % 4 == 0)
            busy(t);
        fill(h.block, h.bytes, 0xff, t);
    }
    if ((dice >> 40) % 8 == 0) {
        on = w->stream[(dice >> 44) % STREAMS];
        order(on, h.stream);
        fill(h.block, h.bytes, 0xff, on);
    }
    pthread_mutex_lock(&everybody.lock);
    w->held[which] = w->held[--w->count];
    pthread_mutex_unlock(&everybody.lock);
    OK(weir_free(w->a, h.block, on));
}

static void step(struct work *w) {
    uint64_t dice = next_random(&w->random) % 1000;

    if (w->count == 0 || (w->count < MOST_BLOCKS && dice < 500))
        take_one(w);
    else if (dice < 990)
        give_one(w);
    else if (dice < 995)
        CU(driver->cuStreamSynchronize(w->stream[dice % STREAMS]));
    else if (dice < 998)
        OK(weir_trim(w->a, (size_t)next_random(&w->random) % (64 * MIB), NULL));
    else
        CU(driver->cuCtxSynchronize());
}

static void start_work(struct work *w, weir_allocator *a, uint64_t seed) {
    memset(w, 0, sizeof *w);
    w->a = a;
    w->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    w->largest = MIB;
    for (int i = 0; i < STREAMS; i++)
        w->stream[i] = make_stream();
    pthread_mutex_lock(&everybody.lock);
    everybody.all[everybody.parts] = w->held;
    everybody.counts[everybody.parts++] = &w->count;
    pthread_mutex_unlock(&everybody.lock);
}

static void end_work(struct work *w) {
    while (w->count > 0)
        give_one(w);
    for (int i = 0; i < STREAMS; i++)
        drop_stream(w->stream[i]);
}

/* What the events say adds up to what the statistics say. */
static void check_events(weir_allocator *a) {
    enum { ROOM = 4096 };
    weir_event *events = calloc(ROOM, sizeof *events);
    weir_statistics stats = stats_of(a);
    uint64_t growths = 0, grown = 0, trims = 0, trimmed = 0, time_ns = 0;
    size_t count = 0;

    ck_assert_ptr_nonnull(events);
    OK(weir_events(a, 0, events, sizeof *events, ROOM, &count));
    ck_assert_uint_lt(count, ROOM);
    for (size_t i = 0; i < count; i++) {
        ck_assert_uint_eq(events[i].sequence, i + 1);
        ck_assert_uint_ge(events[i].time_ns, time_ns);
        time_ns = events[i].time_ns;
        ck_assert_uint_gt(events[i].got, 0);
        ck_assert_str_ne(weir_event_cause_word(events[i].cause), "unknown");
        ck_assert_int_eq(events[i].shrink, events[i].cause == WEIR_EVENT_TRIM ||
                                               events[i].cause == WEIR_EVENT_RECOVERY);
        if (!events[i].shrink) {
            growths++;
            grown += events[i].got;
        } else if (events[i].cause == WEIR_EVENT_TRIM) {
            trims++;
            trimmed += events[i].got;
        }
    }
    ck_assert_uint_eq(growths, stats.growths);
    ck_assert_uint_eq(grown, stats.growth_bytes);
    ck_assert_uint_eq(trims, stats.trims);
    ck_assert_uint_eq(trimmed, stats.trim_bytes);
    free(events);
}

TEST(random_work_on_several_streams) {
    size_t before = device_free();
    weir_options options = options_for(_i, 256 * MIB);
    int steps = !on_cuda ? 20000 : _i == KIND_PLATFORM ? 1500 : 6000;
    struct work *w = malloc(sizeof *w);
    weir_allocator *a;

    options.event_ring = 4096;
    options.latency = WEIR_SWITCH_ON;
    OK(weir_allocator_create(&options, &a));
    everybody.parts = 0;
    start_work(w, a, 1);
    for (int i = 0; i < steps; i++) {
        step(w);
        if (!on_cuda || i % 16 == 0) {
            weir_statistics stats = check_identities(a);
            uint64_t asked = 0;

            for (int k = 0; k < w->count; k++)
                asked += w->held[k].bytes;
            MUST_EQ(stats.requested, asked);
            MUST_EQ(stats.blocks, (uint64_t)w->count);
        }
    }
    end_work(w);
    free(w);
    check_events(a);
    MUST_EQ(check_identities(a).in_use, 0);
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
}

static void *work_alone(void *arg) {
    struct work *w = arg;
    int steps = !on_cuda ? 3000 : 1500;

    CU(driver->cuCtxPushCurrent(primary));
    for (int i = 0; i < steps; i++)
        step(w);
    while (w->count > 0)
        give_one(w);
    return NULL;
}

static _Atomic int watching;

/* Figures while others work: each is right in itself, and those from the books agree. */
static void *watch(void *arg) {
    weir_event events[16];
    uint64_t after = 0;
    size_t count;

    while (atomic_load(&watching)) {
        weir_statistics s = stats_of(arg);

        MUST_EQ(s.attempts, s.allocs + s.refusals);
        MUST_EQ(s.allocs, s.hits + s.growth_allocs);
        MUST_EQ(s.allocs - s.frees, s.blocks);
        MUST_LE(s.blocks, s.allocs); /* frees are read first: it may be more than there ever were */
        OK(weir_events(arg, after, events, sizeof events[0], 16, &count));
        for (size_t i = 0; i < count; i++) {
            ck_assert_uint_gt(events[i].sequence, after);
            after = events[i].sequence;
        }
        usleep(200);
    }
    return NULL;
}

/* Check's assertions end the process from any thread where it forks; on a GPU a failure in a thread
 * is a crash, which is a failure too. */
TEST(random_work_in_four_threads) {
    enum { THREADS = 4 };
    size_t before = device_free();
    struct work *w = malloc(THREADS * sizeof *w);
    weir_options options = options_for(_i, 512 * MIB);
    pthread_t thread[THREADS + 1];
    weir_allocator *a;

    options.event_ring = 4096;
    OK(weir_allocator_create(&options, &a));
    everybody.parts = 0;
    for (int i = 0; i < THREADS; i++)
        start_work(&w[i], a, (uint64_t)i + 7);
    atomic_store(&watching, 1);
    ck_assert_int_eq(pthread_create(&thread[THREADS], NULL, watch, a), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, work_alone, &w[i]), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_join(thread[i], NULL), 0);
    atomic_store(&watching, 0);
    ck_assert_int_eq(pthread_join(thread[THREADS], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        end_work(&w[i]);
    free(w);
    check_events(a);
    ck_assert_uint_eq(check_identities(a).blocks, 0);
    ck_assert_uint_eq(stats_of(a).requested, 0);
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
}

/* ---- events and latencies -------------------------------------------------------------------- */

TEST(the_ring_keeps_the_latest_events) {
    weir_options options = options_for(_i, 0);
    weir_allocator *a;
    weir_event events[12];
    size_t count = 99;

    options.event_ring = 4;
    options.growth = WEIR_GROWTH_EXACT;
    OK(weir_allocator_create(&options, &a));
    OK(weir_events(a, 0, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 0);
    for (size_t i = 1; i <= 10; i++)
        OK(weir_preallocate(a, i * 32 * MIB, NULL));
    OK(weir_events(a, 0, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 4);
    for (size_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(events[i].sequence, 7 + i);
        ck_assert_uint_eq(events[i].got, 32 * MIB);
        ck_assert_uint_eq(events[i].asked, 32 * MIB);
        ck_assert_uint_eq(events[i].reserve_after, (7 + i) * 32 * MIB);
        ck_assert_int_eq(events[i].cause, WEIR_EVENT_PREALLOC);
        ck_assert_int_eq(events[i].shrink, 0);
    }
    OK(weir_events(a, 8, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(events[0].sequence, 9);
    OK(weir_events(a, 0, events, sizeof events[0], 2, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(events[0].sequence, 7);
    OK(weir_events(a, 10, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 0);
    OK(weir_events(a, UINT64_MAX, events, sizeof events[0], 12, &count));
    ck_assert_uint_eq(count, 0);
    OK(weir_events(a, 0, NULL, sizeof events[0], 0, &count));
    ck_assert_uint_eq(count, 0);
    ck_assert_uint_eq(stats_of(a).growths, 10);
    ck_assert_uint_eq(stats_of(a).growth_bytes, 320 * MIB);
    OK(weir_allocator_destroy(a));
}

/* Callers compiled with a shorter or a longer weir_event. */
TEST(events_of_other_sizes) {
    struct {
        uint64_t sequence, time_ns;
    } shorter[3];
    struct {
        weir_event event;
        uint64_t later;
    } longer[3];
    weir_options options = options_for(KIND_REGIONS, 0);
    weir_allocator *a;
    size_t count;

    OK(weir_allocator_create(&options, &a));
    for (size_t i = 1; i <= 3; i++)
        OK(weir_preallocate(a, i * MIB, NULL));
    OK(weir_events(a, 0, (weir_event *)(void *)shorter, sizeof shorter[0], 3, &count));
    ck_assert_uint_eq(count, 3);
    memset(longer, 0xff, sizeof longer);
    OK(weir_events(a, 0, &longer[0].event, sizeof longer[0], 3, &count));
    ck_assert_uint_eq(count, 3);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(shorter[i].sequence, i + 1);
        ck_assert_uint_eq(longer[i].event.sequence, i + 1);
        ck_assert_uint_eq(longer[i].event.time_ns, shorter[i].time_ns);
        ck_assert_uint_eq(longer[i].event.got, MIB);
        ck_assert_uint_eq(longer[i].later, 0);
    }
    OK(weir_allocator_destroy(a));
}

TEST(latencies_are_kept_on_demand) {
    weir_options options = options_for(_i, ARENA_BYTES);
    weir_latency l = {.size = sizeof l};
    CUstream s = make_stream();
    weir_allocator *a = make(_i);

    EXPECT(WEIR_E_NOT_SUPPORTED, weir_latencies(a, 0, &l));
    OK(weir_allocator_destroy(a));
    options.latency = WEIR_SWITCH_ON;
    OK(weir_allocator_create(&options, &a));
    OK(weir_latencies(a, 0, &l));
    ck_assert_uint_eq(l.count + l.max_ns + l.total_ns + l.p999_ns, 0);
    for (int i = 0; i < 100; i++)
        OK(weir_free(a, take(a, 1000, s), s));
    for (int operation = 0; operation <= 1; operation++) {
        OK(weir_latencies(a, operation, &l));
        ck_assert_uint_eq(l.size, sizeof l);
        ck_assert_uint_eq(l.count, 100);
        ck_assert_uint_le(l.p50_ns, l.p90_ns);
        ck_assert_uint_le(l.p90_ns, l.p99_ns);
        ck_assert_uint_le(l.p99_ns, l.p999_ns);
        ck_assert_uint_le(l.p999_ns, l.max_ns);
        ck_assert_uint_ge(l.total_ns, l.max_ns);
        ck_assert_uint_le(l.total_ns, 100 * l.max_ns);
    }
    OK(weir_allocator_destroy(a));
    drop_stream(s);
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

static void one_of_each_call(int kind, CUstream s, CUstream t) {
    weir_options options = options_for(kind, 256 * MIB);
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
    if (kind != KIND_PLATFORM)
        KEEPS_CONTEXT(weir_preallocate(a, 200 * MIB, &bytes));
    KEEPS_CONTEXT(weir_stats(a, &stats));
    KEEPS_CONTEXT(weir_trim(a, 0, &bytes));
    KEEPS_CONTEXT(weir_alloc(a, (size_t)1 << 50, s, &none) == WEIR_E_NO_MEMORY ? WEIR_OK
                                                                               : WEIR_E_INVALID);
    KEEPS_CONTEXT(weir_allocator_destroy(a));
}

/* None current, the device's own, and the device's own twice; on the model that of another device
 * too. */
TEST(the_current_context_is_left_alone) {
    CUstream s, t;
    CUcontext popped, other;

    if (!on_cuda) {
        CU(driver->cuCtxPopCurrent(&popped));
        ck_assert_int_eq(
            weir__model_reset(&(struct weir_model_setup){.devices = 2, .capacity = MODEL_BYTES}),
            0);
        CU(driver->cuDevicePrimaryCtxRetain(&other, 1));
        CU(driver->cuDevicePrimaryCtxRetain(&primary, device));
        CU(driver->cuCtxPushCurrent(primary));
    }
    s = make_stream(), t = make_stream();
    one_of_each_call(_i, s, t);
    CU(driver->cuCtxPushCurrent(primary));
    one_of_each_call(_i, s, t);
    if (!on_cuda) {
        CU(driver->cuCtxPushCurrent(other));
        one_of_each_call(_i, s, t);
        CU(driver->cuCtxPopCurrent(&popped));
        ck_assert_ptr_eq(popped, other);
    }
    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuCtxPopCurrent(&popped));
    one_of_each_call(_i, s, t);
    CU(driver->cuCtxGetCurrent(&popped));
    ck_assert_ptr_null(popped);
    CU(driver->cuCtxPushCurrent(primary));
    drop_stream(s);
    drop_stream(t);
}

/* In a child nothing works and nothing hangs, whatever the parent was doing. */
static int child_is_refused(weir_allocator *a, void *block, CUstream s) {
    weir_options options = options_for(KIND_POOL, 0);
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

TEST(a_child_of_fork_is_refused) {
    weir_allocator *a = make(_i);
    CUstream s = make_stream();
    void *block = take(a, 100, s);
    int status = -1;
    pid_t child;

    fill(block, 100, 0x21, s);
    child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(child_is_refused(a, block, s) ? 0 : 1);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    expect_pattern(block, 100, 0x21, s); /* the parent has lost nothing */
    OK(weir_free(a, block, s));
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* The environment is read by the first call that succeeds; a bad variable keeps nothing. */
TEST(the_default_allocator) {
    weir_allocator *a = NULL, *again = NULL;
    CUstream s = make_stream();
    int null_log = dup(STDERR_FILENO);
    void *block;

    ck_assert_int_eq(setenv("WEIR_DEVICE", device_name, 1), 0);
    ck_assert_int_eq(setenv("WEIR_PREALLOC", "12 apples", 1), 0);
    ck_assert_int_eq(setenv("WEIR_ENGINE", "arena", 1), 0);
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
    ck_assert_uint_eq(stats_of(a).reserve, 0); /* preallocation waits for the first request */
    block = take(a, 1000, s);
    ck_assert_uint_eq(stats_of(a).reserve, 64 * MIB);
    ck_assert_uint_eq(stats_of(a).prealloc_kept, 64 * MIB);
    OK(weir_block_allocator(block, &again));
    ck_assert_ptr_eq(a, again);
    OK(weir_free(a, block, s));
    CU(driver->cuStreamSynchronize(s));
    OK(weir_trim(a, 0, NULL));
    drop_stream(s);
    unsetenv("WEIR_PREALLOC");
    unsetenv("WEIR_ENGINE");
    unsetenv("WEIR_DEVICE");
}

/* No driver: no device; never the model in its place. */
TEST(without_a_driver_there_is_no_device) {
    struct weir_driver_failure failure;
    weir_allocator *a = NULL;

    if (on_cuda || weir__driver_open("cuda", &failure))
        return;
    EXPECT(WEIR_E_NO_DEVICE, weir_allocator_create(NULL, &a));
    ck_assert_ptr_null(a);
}

/* ---- stream capture --------------------------------------------------------------------------- */

/* The modes of cuStreamBeginCapture: global, thread-local, relaxed. */
enum { CAPTURE_MODES = 3 };

static int has_graphs(void) {
    return (driver->capabilities & WEIR_CAP_GRAPH) != 0;
}

static void begin_capture(CUstream stream, int mode) {
    CU(driver->cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

static CUgraph end_capture(CUstream stream) {
    CUgraph graph = NULL;

    CU(driver->cuStreamEndCapture(stream, &graph));
    ck_assert_ptr_nonnull(graph);
    return graph;
}

static void expect_capturing_at(int line, CUstream stream) {
    CUstreamCaptureStatus status;

    CU(driver->cuStreamIsCapturing(stream, &status));
    ck_assert_msg(status == CU_STREAM_CAPTURE_STATUS_ACTIVE, "line %d: status %u", line, status);
}
#define expect_capturing(stream) expect_capturing_at(__LINE__, (stream))

/* A launch that frees first what the one before it left allocated. */
static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec;

    CU(driver->cuGraphInstantiateWithFlags(&exec, graph,
                                           CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    return exec;
}

/* What a free of a block from outside the capture answers on a captured stream, by weir/allocator.h:
 * the pool's driver knows no such free, the arena and the front let it wait for the end of the
 * capture, and the platform engine's is no matter of streams.  1: the block is freed. */
static int free_uncaptured(int kind, weir_allocator *a, void *block, CUstream captured) {
    int is_freed = kind != KIND_POOL || front == WEIR_SWITCH_ON;

    EXPECT(is_freed ? WEIR_OK : WEIR_E_CAPTURE, weir_free(a, block, captured));
    return is_freed;
}

static uint64_t graph_memory(CUgraphMem_attribute attribute) {
    uint64_t bytes = UINT64_MAX;

    CU(driver->cuDeviceGetGraphMemAttribute(device, attribute, &bytes));
    return bytes;
}

/* One block goes within the graph, one is left by each launch; the graph also writes to a block from
 * outside. */
TEST(captured_blocks_are_the_graph_s) {
    CUstream s = make_stream();
    size_t before = device_free();
    weir_allocator *a = make(_i / CAPTURE_MODES);
    void *outside, *passing, *left;
    weir_statistics first, last;
    CUgraphExec exec;
    CUgraph graph;

    if (!has_graphs())
        goto end;
    outside = take(a, MIB, s);
    first = stats_of(a);
    begin_capture(s, _i % CAPTURE_MODES);
    passing = take(a, 3 * MIB, s);
    left = take(a, MIB, s);
    fill(passing, 3 * MIB, 0x11, s);
    fill(left, MIB, 0x22, s);
    busy(s);
    fill(outside, MIB, 0x33, s);
    OK(weir_free(a, passing, s));
    expect_capturing(s);
    graph = end_capture(s);
    last = stats_of(a);
    ck_assert_uint_eq(last.requested, first.requested);
    ck_assert_uint_eq(last.reserve, first.reserve);
    exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        fill(outside, MIB, 0, s);
        CU(driver->cuGraphLaunch(exec, s));
        expect_pattern(left, MIB, 0x22, s);
        expect_pattern(outside, MIB, 0x33, s);
        fill(left, MIB, 0x44, s);
    }
    ck_assert_uint_ge(graph_memory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), MIB);
    OK(weir_free(a, left, s));
    OK(weir_free(a, outside, s));
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
    CU(driver->cuStreamSynchronize(s));
    ck_assert_uint_ge(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), MIB);
    CU(driver->cuDeviceGraphMemTrim(device)); /* the driver keeps what graphs had */
    ck_assert_uint_eq(graph_memory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
    ck_assert_uint_eq(check_identities(a).blocks, 0);
end:
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
    drop_stream(s);
}

/* The platform engine has no memory that a graph could own; the capture goes on. */
TEST(captured_requests_are_refused) {
    CUstream s = make_stream();
    weir_allocator *a = make(KIND_PLATFORM);
    weir_statistics first, last;
    void *none = &none;

    if (!has_graphs())
        goto end;
    OK(weir_free(a, take(a, 1000, s), s));
    first = stats_of(a);
    for (int mode = 0; mode < CAPTURE_MODES; mode++) {
        begin_capture(s, mode);
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 1000, s, &none));
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, 64 * MIB, s, &none));
        ck_assert_ptr_eq(none, &none);
        expect_capturing(s);
        CU(driver->cuGraphDestroy(end_capture(s)));
    }
    last = check_identities(a);
    ck_assert_uint_eq(last.allocs, first.allocs);
    ck_assert_uint_eq(last.in_use, first.in_use);
    ck_assert_uint_eq(last.reserve, first.reserve);
    OK(weir_free(a, take(a, 1000, s), s));
end:
    OK(weir_allocator_destroy(a));
    drop_stream(s);
}

/* Beside the capture everything goes on. */
TEST(streams_beside_a_capture_are_served) {
    CUstream s = make_stream(), other = make_stream();
    weir_allocator *a = make(_i);
    void *block;

    /* The pool alone does as the driver does: its calls break captures in the other modes. */
    for (int mode = _i == KIND_POOL && front == WEIR_SWITCH_OFF ? CU_STREAM_CAPTURE_MODE_RELAXED
                                                                : 0;
         mode < CAPTURE_MODES && has_graphs(); mode++) {
        begin_capture(s, mode);
        for (int i = 0; i < 20; i++) {
            block = take(a, (size_t)(i + 1) * MIB, other);
            fill(block, MIB, (unsigned char)i, other);
            OK(weir_free(a, block, other));
        }
        OK(weir_trim(a, 0, NULL));
        check_identities(a);
        expect_capturing(s);
        CU(driver->cuGraphDestroy(end_capture(s)));
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    drop_stream(other);
    drop_stream(s);
}

/* The platform engine alone, without the front, waits for the device, whatever uses there were. */
TEST(frees_of_blocks_from_outside_a_capture) {
    CUstream s = make_stream(), other = make_stream();
    size_t before = device_free();
    weir_allocator *a = make(_i);

    for (int mode = 0; mode < CAPTURE_MODES && has_graphs(); mode++) {
        void *block = take(a, MIB, s), *kept = take(a, MIB, s), *used = take(a, MIB, other);
        int is_freed;

        fill(kept, MIB, 0x5a, s);
        OK(weir_use(a, used, s));
        begin_capture(s, mode);
        is_freed = free_uncaptured(_i, a, block, s);
        expect_capturing(s);
        if (_i != KIND_PLATFORM || front == WEIR_SWITCH_ON)
            EXPECT(WEIR_E_CAPTURE, weir_free(a, used, other));
        expect_capturing(s);
        CU(driver->cuGraphDestroy(end_capture(s)));
        ck_assert_uint_eq(check_identities(a).blocks, is_freed ? 2 : 3);
        if (!is_freed)
            OK(weir_free(a, block, s));
        OK(weir_free(a, used, other));
        block = take(a, MIB, s);
        fill(block, MIB, 0xa5, s);
        expect_pattern(kept, MIB, 0x5a, s);
        OK(weir_free(a, block, s));
        OK(weir_free(a, kept, s));
        ck_assert_uint_eq(check_identities(a).blocks, 0);
    }
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
    drop_stream(other);
    drop_stream(s);
}

/* By a query of the captured stream, which is not allowed. */
TEST(aborted_capture_leaks_nothing) {
    CUstream s = make_stream();
    size_t before = device_free();
    weir_allocator *a = make(_i);
    void *outside = take(a, MIB, s), *block = NULL, *none = &none;
    weir_statistics first = stats_of(a), last;

    for (int mode = 0; mode < CAPTURE_MODES && has_graphs(); mode++) {
        CUgraph graph = NULL;

        begin_capture(s, mode);
        if (_i != KIND_PLATFORM) {
            block = take(a, MIB, s);
            fill(take(a, MIB, s), MIB, 1, s); /* whose free was still to come */
            OK(weir_free(a, block, s));
        }
        ck_assert_uint_eq(driver->cuStreamQuery(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT(WEIR_E_CAPTURE, weir_alloc(a, MIB, s, &none));
        ck_assert_ptr_eq(none, &none);
        ck_assert_uint_eq(driver->cuStreamEndCapture(s, &graph),
                          CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        ck_assert_ptr_null(graph);
        last = check_identities(a);
        ck_assert_uint_eq(last.requested, first.requested);
        ck_assert_uint_eq(last.in_use, first.in_use);
        ck_assert_uint_eq(last.reserve, first.reserve);
        OK(weir_free(a, take(a, MIB, s), s));
    }
    OK(weir_free(a, outside, s));
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    expect_free_again(before);
    drop_stream(s);
}

/* ---- what a driver forbids under capture ------------------------------------------------------ */

/* The model's rules of capture are partly assumed: the same calls on a GPU say which are wrong, all
 * at once.  Each is made beside a fresh capture of `s`, in each of its modes. */
static struct {
    CUstream s, other;
    CUevent recorded, never, inside; /* on `other` outside, nowhere, on `s` in the capture */
    CUdeviceptr direct, pooled, captured;
    CUmemoryPool pool;
} under;

static CUresult relaxed(CUresult (*call)(void)) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result;

    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
    result = call();
    CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
    return result;
}

static CUresult call_alloc(void) {
    CUdeviceptr block;
    CUresult result = driver->cuMemAlloc(&block, 4 * MIB);

    return result == CUDA_SUCCESS ? driver->cuMemFree(block) : result;
}
static CUresult call_alloc_relaxed(void) {
    return relaxed(call_alloc);
}
static CUresult call_free(void) {
    return driver->cuMemFree(under.direct);
}
static CUresult call_host(void) {
    void *host;
    CUresult result = driver->cuMemAllocHost(&host, 64 << 10);

    return result == CUDA_SUCCESS ? driver->cuMemFreeHost(host) : result;
}
static CUresult call_host_relaxed(void) {
    return relaxed(call_host);
}
static CUresult call_query_event(void) {
    return driver->cuEventQuery(under.recorded);
}
static CUresult call_query_event_relaxed(void) {
    return relaxed(call_query_event);
}
static CUresult call_query_inside(void) {
    return driver->cuEventQuery(under.inside);
}
static CUresult call_query_inside_relaxed(void) {
    return relaxed(call_query_inside);
}
static CUresult call_elapsed(void) {
    float milliseconds;

    return driver->cuEventElapsedTime(&milliseconds, under.recorded, under.recorded);
}
static CUresult call_elapsed_inside(void) {
    float milliseconds;

    return driver->cuEventElapsedTime(&milliseconds, under.recorded, under.inside);
}
static CUresult call_query(void) {
    return driver->cuStreamQuery(under.s);
}
static CUresult call_synchronize(void) {
    return driver->cuStreamSynchronize(under.s);
}
static CUresult call_query_other(void) {
    return driver->cuStreamQuery(under.other);
}
static CUresult call_synchronize_other(void) {
    return driver->cuStreamSynchronize(under.other);
}
static CUresult call_query_other_relaxed(void) {
    return relaxed(call_query_other);
}
static CUresult call_synchronize_other_relaxed(void) {
    return relaxed(call_synchronize_other);
}
static CUresult call_synchronize_context(void) {
    return driver->cuCtxSynchronize();
}
static CUresult call_synchronize_context_relaxed(void) {
    return relaxed(call_synchronize_context);
}
static CUresult call_begin_again(void) {
    return driver->cuStreamBeginCapture(under.s, CU_STREAM_CAPTURE_MODE_RELAXED);
}
static CUresult call_begin_legacy(void) {
    return driver->cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED);
}
static CUresult call_end_other(void) {
    CUgraph graph;

    return driver->cuStreamEndCapture(under.other, &graph);
}
static CUresult call_end_branch(void) {
    CUgraph graph;

    CU(driver->cuStreamWaitEvent(under.other, under.inside, 0));
    return driver->cuStreamEndCapture(under.other, &graph);
}
static CUresult call_wait_recorded(void) {
    return driver->cuStreamWaitEvent(under.s, under.recorded, 0);
}
static CUresult call_wait_never(void) {
    return driver->cuStreamWaitEvent(under.s, under.never, 0);
}
static CUresult call_free_uncaptured(void) {
    return driver->cuMemFreeAsync(under.direct, under.s);
}
static CUresult call_free_twice(void) {
    CU(driver->cuMemFreeAsync(under.captured, under.s));
    return driver->cuMemFreeAsync(under.captured, under.s);
}
static CUresult call_free_outside(void) {
    return driver->cuMemFreeAsync(under.captured, under.other);
}
static CUresult call_free_outside_relaxed(void) {
    return relaxed(call_free_outside);
}
static CUresult call_pool_alloc(void) {
    CUdeviceptr block;
    CUresult result = driver->cuMemAllocFromPoolAsync(&block, MIB, under.pool, under.other);

    return result == CUDA_SUCCESS ? driver->cuMemFreeAsync(block, under.other) : result;
}
static CUresult call_pool_alloc_relaxed(void) {
    return relaxed(call_pool_alloc);
}
static CUresult call_pool_free(void) {
    CUresult result = driver->cuMemFreeAsync(under.pooled, under.other);

    if (result == CUDA_SUCCESS)
        under.pooled = 0;
    return result;
}
static CUresult call_pool_free_relaxed(void) {
    return relaxed(call_pool_free);
}
static CUresult call_pool_figure(void) {
    uint64_t bytes;

    return driver->cuMemPoolGetAttribute(under.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
}
static CUresult call_pool_figure_relaxed(void) {
    return relaxed(call_pool_figure);
}
static CUresult call_trim(void) {
    return driver->cuMemPoolTrimTo(under.pool, 0);
}
static CUresult call_trim_relaxed(void) {
    return relaxed(call_trim);
}
static CUresult call_captured_id(void) {
    unsigned long long id;

    return driver->cuStreamGetId(under.s, &id);
}
static CUresult call_captured_id_relaxed(void) {
    return relaxed(call_captured_id);
}
static CUresult call_captured_alloc(void) {
    CUdeviceptr block;
    CUresult result = driver->cuMemAllocFromPoolAsync(&block, MIB, under.pool, under.s);

    return result == CUDA_SUCCESS ? driver->cuMemFreeAsync(block, under.s) : result;
}
static CUresult call_captured_alloc_relaxed(void) {
    return relaxed(call_captured_alloc);
}
static CUresult call_make_event(void) {
    CUevent event;

    CU(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return driver->cuEventDestroy(event);
}
static CUresult call_use_legacy(void) {
    return driver->cuMemsetD8Async(under.direct, 0, 1,
                                   NULL); /* the captured stream is not blocking */
}

enum { STAYS = CU_STREAM_CAPTURE_STATUS_ACTIVE, BREAKS = CU_STREAM_CAPTURE_STATUS_INVALIDATED };

/* UNSAFE: 900, and it breaks a capture in global or thread-local mode; beside a relaxed one it does
 * what `result` says and harms nothing. */
enum { UNSAFE = 9 };

static const struct rule {
    const char *what;
    CUresult (*call)(void);
    CUresult result;
    unsigned does; /* to the capture */
} rules[] = {
    {"cuMemAlloc", call_alloc, CUDA_SUCCESS, UNSAFE},
    {"cuMemAlloc and cuMemFree, relaxed", call_alloc_relaxed, CUDA_SUCCESS, STAYS},
    {"cuMemFree", call_free, CUDA_SUCCESS, UNSAFE},
    {"cuMemAllocHost", call_host, CUDA_SUCCESS, UNSAFE},
    {"cuMemAllocHost and cuMemFreeHost, relaxed", call_host_relaxed, CUDA_SUCCESS, STAYS},
    {"query of an event", call_query_event, CUDA_SUCCESS, UNSAFE},
    {"query of an event, relaxed", call_query_event_relaxed, CUDA_SUCCESS, STAYS},
    {"query of a captured event", call_query_inside, CUDA_ERROR_CAPTURED_EVENT, BREAKS},
    {"the same, relaxed", call_query_inside_relaxed, CUDA_ERROR_CAPTURED_EVENT, BREAKS},
    {"time between events", call_elapsed, CUDA_SUCCESS, STAYS},
    {"time up to a captured event", call_elapsed_inside, CUDA_ERROR_CAPTURED_EVENT, STAYS},
    {"query of the stream", call_query, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, BREAKS},
    {"wait for the stream", call_synchronize, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, BREAKS},
    {"id of the stream", call_captured_id, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, BREAKS},
    {"the same, relaxed", call_captured_id_relaxed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, BREAKS},
    {"query of another stream", call_query_other, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_query_other_relaxed, CUDA_SUCCESS, STAYS},
    {"wait for another stream", call_synchronize_other, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_synchronize_other_relaxed, CUDA_SUCCESS, STAYS},
    {"wait for the context", call_synchronize_context, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     BREAKS},
    {"the same, relaxed", call_synchronize_context_relaxed, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     BREAKS},
    {"second beginning", call_begin_again, CUDA_ERROR_ILLEGAL_STATE, STAYS},
    {"beginning on the legacy stream", call_begin_legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     STAYS},
    {"end on another stream", call_end_other, CUDA_ERROR_ILLEGAL_STATE, STAYS},
    {"end on a branch", call_end_branch, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, BREAKS},
    {"wait for an event outside", call_wait_recorded, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, BREAKS},
    {"wait for an event never recorded", call_wait_never, CUDA_SUCCESS, STAYS},
    {"captured allocation and free", call_captured_alloc, CUDA_SUCCESS, STAYS},
    {"the same, relaxed", call_captured_alloc_relaxed, CUDA_SUCCESS, STAYS},
    {"captured free of a block from outside", call_free_uncaptured, CUDA_ERROR_INVALID_VALUE,
     STAYS},
    {"second captured free", call_free_twice, CUDA_ERROR_INVALID_VALUE, STAYS},
    {"free outside of a captured block", call_free_outside, CUDA_ERROR_INVALID_VALUE, UNSAFE},
    {"the same, relaxed", call_free_outside_relaxed, CUDA_ERROR_INVALID_VALUE, STAYS},
    {"allocation from a pool", call_pool_alloc, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_pool_alloc_relaxed, CUDA_SUCCESS, STAYS},
    {"free on another stream", call_pool_free, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_pool_free_relaxed, CUDA_SUCCESS, STAYS},
    {"figure of a pool", call_pool_figure, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_pool_figure_relaxed, CUDA_SUCCESS, STAYS},
    {"trim of a pool", call_trim, CUDA_SUCCESS, UNSAFE},
    {"the same, relaxed", call_trim_relaxed, CUDA_SUCCESS, STAYS},
    {"making of an event", call_make_event, CUDA_SUCCESS, STAYS},
    {"work on the legacy stream", call_use_legacy, CUDA_SUCCESS, STAYS},
};

static void set_up_capture(int mode) {
    CU(driver->cuMemAlloc(&under.direct, 4 * MIB));
    CU(driver->cuMemAllocFromPoolAsync(&under.pooled, MIB, under.pool, under.other));
    CU(driver->cuEventRecord(under.recorded, under.other));
    CU(driver->cuStreamSynchronize(under.other));
    begin_capture(under.s, mode);
    CU(driver->cuMemAllocFromPoolAsync(&under.captured, MIB, under.pool, under.s));
    CU(driver->cuEventRecord(under.inside, under.s));
}

/* What is left of the capture goes; a rule that freed the block has failed already. */
static void tear_down_capture(void) {
    CUgraph graph = NULL;

    if (driver->cuStreamEndCapture(under.s, &graph) == CUDA_SUCCESS)
        CU(driver->cuGraphDestroy(graph));
    CU(driver->cuMemFreeAsync(under.pooled, under.other));
    CU(driver->cuCtxSynchronize());
    (void)driver->cuMemFree(under.direct);
}

static size_t try_rule(const struct rule *rule, int mode, char *text, size_t room) {
    int forbidden = rule->does == UNSAFE && mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult wanted = forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : rule->result, result;
    unsigned does = forbidden ? BREAKS : rule->does == UNSAFE ? STAYS : rule->does;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    int wrote = 0;

    set_up_capture(mode);
    result = rule->call();
    CU(driver->cuStreamIsCapturing(under.s, &status));
    tear_down_capture();
    if (result != wanted || status != does)
        wrote = snprintf(text, room, "%s: %u and status %u, not %u and %u; ", rule->what, result,
                         status, wanted, does);
    return wrote < 0 || (size_t)wrote >= room ? 0 : (size_t)wrote;
}

TEST(a_driver_forbids_what_the_model_does) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    char text[4096] = "";
    size_t length = 0;

    if (!has_graphs() || !driver->cuEventElapsedTime || !driver->cuStreamGetId)
        return;
    under.s = make_stream();
    under.other = make_stream();
    CU(driver->cuEventCreate(&under.recorded, CU_EVENT_DEFAULT));
    CU(driver->cuEventCreate(&under.never, CU_EVENT_DISABLE_TIMING));
    CU(driver->cuEventCreate(&under.inside, CU_EVENT_DEFAULT));
    CU(driver->cuMemPoolCreate(&under.pool, &props));
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        length += try_rule(&rules[i], _i, text + length, sizeof text - length);
    ck_assert_msg(length == 0, "%s", text);
    CU(driver->cuMemPoolDestroy(under.pool));
    CU(driver->cuEventDestroy(under.recorded));
    CU(driver->cuEventDestroy(under.never));
    CU(driver->cuEventDestroy(under.inside));
    drop_stream(under.other);
    drop_stream(under.s);
}

/* ---- memory by handles ------------------------------------------------------------------------ */

/* What an arena that maps memory behind its end wants of a driver.  The rules are those of the comments
 * in <cuda.h>, which name the results that a call may have but not for which fault; so any refusal will
 * do, but for a lack of memory. */
static struct {
    size_t unit;
    CUmemAllocationProp props;
    CUmemAccessDesc access;
    CUstream s;
    size_t before; /* free on the device */
} space;

static void begin_virtual(void) {
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};

    space.props = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    space.access = (CUmemAccessDesc){.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(driver->cuMemGetAllocationGranularity(&space.unit, &space.props,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    space.s = make_stream();
    space.before = device_free();
}

static void end_virtual(void) {
    expect_free_again(space.before);
    drop_stream(space.s);
}

static int has_virtual(void) {
    int can = 0;

    if (driver->capabilities & WEIR_CAP_VIRTUAL)
        CU(driver->cuDeviceGetAttribute(
            &can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    if (!can)
        printf("# skipped: the device maps no memory by handles\n");
    else
        begin_virtual();
    return can;
}

static CUdeviceptr reserve(size_t bytes) {
    CUdeviceptr address = 0;

    CU(driver->cuMemAddressReserve(&address, bytes, 0, 0, 0));
    MUST_EQ(address % space.unit, 0);
    return address;
}

static CUmemGenericAllocationHandle create(size_t bytes) {
    CUmemGenericAllocationHandle handle = 0;

    CU(driver->cuMemCreate(&handle, bytes, &space.props, 0));
    return handle;
}

static void map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle) {
    CU(driver->cuMemMap(address, bytes, 0, handle, 0));
    CU(driver->cuMemSetAccess(address, bytes, &space.access, 1));
}

static void *at(CUdeviceptr address) {
    return (void *)(uintptr_t)address;
}

#define REFUSED(call)                                                                              \
    do {                                                                                           \
        CUresult refused_is = (call);                                                              \
        if (refused_is == CUDA_SUCCESS)                                                            \
            ck_abort_msg("%s was not refused", #call);                                             \
    } while (0)

TEST(handles_keep_their_bytes_wherever_they_are_mapped) {
    CUdeviceptr range, other;
    CUmemGenericAllocationHandle first, second;
    size_t unit;

    if (!has_virtual())
        return;
    unit = space.unit;
    range = reserve(64 * unit);
    other = reserve(8 * unit);
    first = create(2 * unit);
    second = create(2 * unit);
    map(range + 32 * unit, 2 * unit, first);
    fill(at(range + 32 * unit), unit, 1, space.s);
    fill(at(range + 33 * unit), unit, 2, space.s);
    expect_pattern(at(range + 32 * unit), unit, 1, space.s);
    CU(driver->cuMemUnmap(range + 32 * unit, 2 * unit));
    map(range + 32 * unit, 2 * unit, second); /* another's bytes, where the first were */
    map(other + unit, 2 * unit, first);
    fill(at(range + 32 * unit), 2 * unit, 3, space.s);
    expect_pattern(at(other + unit), unit, 1, space.s);
    expect_pattern(at(other + 2 * unit), unit, 2, space.s);
    expect_pattern(at(range + 32 * unit), 2 * unit, 3, space.s);
    CU(driver->cuMemUnmap(range + 32 * unit, 2 * unit));
    CU(driver->cuMemUnmap(other + unit, 2 * unit));
    CU(driver->cuMemRelease(first));
    CU(driver->cuMemRelease(second));
    CU(driver->cuMemAddressFree(range, 64 * unit));
    CU(driver->cuMemAddressFree(other, 8 * unit));
    end_virtual();
}

TEST(handles_side_by_side_are_one_range) {
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle[4];
    size_t unit;

    if (!has_virtual())
        return;
    unit = space.unit;
    range = reserve(16 * unit);
    for (size_t i = 0; i < 4; i++) {
        handle[i] = create((i + 1) * unit);
        CU(driver->cuMemMap(range + i * (i + 1) / 2 * unit, (i + 1) * unit, 0, handle[i], 0));
    }
    CU(driver->cuMemSetAccess(range, 10 * unit, &space.access, 1));
    fill(at(range), 10 * unit, 7, space.s);
    fill(at(range + unit / 2), 8 * unit, 8, space.s);
    expect_pattern(at(range), unit / 2, 7, space.s);
    expect_pattern(at(range + unit / 2), 8 * unit, 8, space.s);
    expect_pattern(at(range + 17 * unit / 2), 3 * unit / 2, 7, space.s);
    for (size_t i = 0; i < 4; i++) {
        CU(driver->cuMemUnmap(range + i * (i + 1) / 2 * unit, (i + 1) * unit));
        CU(driver->cuMemRelease(handle[i]));
    }
    CU(driver->cuMemAddressFree(range, 16 * unit));
    end_virtual();
}

TEST(a_released_handle_lives_while_it_is_mapped) {
    CUdeviceptr one, other;
    CUmemGenericAllocationHandle handle;
    size_t bytes;

    if (!has_virtual())
        return;
    bytes = 32 * space.unit;
    one = reserve(bytes);
    other = reserve(bytes);
    handle = create(bytes);
    map(one, bytes, handle);
    map(other, bytes, handle); /* the same memory */
    CU(driver->cuMemRelease(handle));
    fill(at(one), bytes, 5, space.s);
    CU(driver->cuStreamSynchronize(space.s));
    expect_pattern(at(other), bytes, 5, space.s);
    CU(driver->cuMemUnmap(one, bytes));
    expect_pattern(at(other), bytes, 5, space.s);
    CU(driver->cuMemUnmap(other, bytes));
    CU(driver->cuMemAddressFree(one, bytes));
    CU(driver->cuMemAddressFree(other, bytes));
    end_virtual();
}

TEST(what_cannot_be_mapped_is_refused) {
    CUdeviceptr range, gone;
    CUmemGenericAllocationHandle handle, other, none;
    size_t unit, total;

    if (!has_virtual())
        return;
    unit = space.unit;
    REFUSED(driver->cuMemCreate(&none, unit / 2, &space.props, 0));
    REFUSED(driver->cuMemCreate(&none, unit + 512, &space.props, 0));
    REFUSED(driver->cuMemAddressReserve(&gone, unit + 512, 0, 0, 0));
    CU(driver->cuDeviceTotalMem(&total, device));
    MUST_EQ(driver->cuMemCreate(&none, total / unit * unit + unit, &space.props, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
    gone = reserve(8 * unit);
    CU(driver->cuMemAddressFree(gone, 8 * unit));
    range = reserve(8 * unit);
    handle = create(2 * unit);
    other = create(2 * unit);
    if (gone != range)
        REFUSED(driver->cuMemMap(gone, 2 * unit, 0, other, 0));
    REFUSED(driver->cuMemSetAccess(range, 2 * unit, &space.access, 1));
    REFUSED(driver->cuMemMap(range + unit / 2, 2 * unit, 0, handle, 0));
    REFUSED(driver->cuMemMap(range, unit + unit / 2, 0, handle, 0));
    REFUSED(driver->cuMemMap(range, unit, unit, handle, 0));
    REFUSED(driver->cuMemMap(range, 4 * unit, 0, handle, 0));
    map(range, 2 * unit, handle);
    fill(at(range), 2 * unit, 6, space.s);
    REFUSED(driver->cuMemMap(range, 2 * unit, 0, other, 0));
    REFUSED(driver->cuMemMap(range + unit, 2 * unit, 0, other, 0));
    REFUSED(driver->cuMemUnmap(range, unit));
    REFUSED(driver->cuMemUnmap(range + unit, unit));
    expect_pattern(at(range), 2 * unit, 6, space.s); /* none of that did a thing */
    CU(driver->cuMemUnmap(range, 2 * unit));
    REFUSED(driver->cuMemAddressFree(range, 4 * unit));
    REFUSED(driver->cuMemAddressFree(range + unit, 7 * unit));
    CU(driver->cuMemAddressFree(range, 8 * unit));
    CU(driver->cuMemRelease(handle));
    CU(driver->cuMemRelease(other));
    end_virtual();
}

/* What the documentation leaves open, and lib/driver/model/model_virtual.c assumes: where a device answers
 * otherwise, a line says so.  The model itself must be as it says. */
static void compare_assumption(const char *what, CUresult assumed, CUresult is) {
    if (is == assumed)
        return;
    if (!on_cuda)
        ck_abort_msg("%s: %u, not %u", what, is, assumed);
    printf("# %s: %u, where the model plays %u\n", what, is, assumed);
}

TEST(the_model_assumes_what_the_documentation_leaves_open) {
    CUmemAccessDesc reading, none_at_all;
    CUmemGenericAllocationHandle handle[2], none;
    CUdeviceptr range, other, page;
    CUcontext popped;
    CUresult result;
    size_t unit, page_bytes = (size_t)sysconf(_SC_PAGESIZE);

    if (!has_virtual())
        return;
    unit = space.unit;
    reading = space.access;
    reading.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    none_at_all = space.access;
    none_at_all.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    range = reserve(8 * unit);
    handle[0] = create(2 * unit);
    handle[1] = create(2 * unit);
    for (size_t offset = 0; offset <= unit; offset += unit) {
        result = driver->cuMemMap(range, unit, offset, handle[0], 0);
        compare_assumption("part of a handle mapped", CUDA_ERROR_NOT_SUPPORTED, result);
        if (result == CUDA_SUCCESS)
            CU(driver->cuMemUnmap(range, unit));
    }
    compare_assumption("what is not mapped unmapped", CUDA_SUCCESS,
                       driver->cuMemUnmap(range, 2 * unit));
    CU(driver->cuMemMap(range, 2 * unit, 0, handle[0], 0));
    CU(driver->cuMemMap(range + 2 * unit, 2 * unit, 0, handle[1], 0));
    compare_assumption("access to part of a mapping", CUDA_ERROR_INVALID_VALUE,
                       driver->cuMemSetAccess(range, unit, &space.access, 1));
    compare_assumption("no access to part of a mapping", CUDA_ERROR_INVALID_VALUE,
                       driver->cuMemSetAccess(range, unit, &none_at_all, 1));
    result = driver->cuMemUnmap(range, 6 * unit);
    compare_assumption("mappings and a gap unmapped", CUDA_ERROR_INVALID_VALUE, result);
    if (result == CUDA_SUCCESS) {
        CU(driver->cuMemMap(range, 2 * unit, 0, handle[0], 0));
        CU(driver->cuMemMap(range + 2 * unit, 2 * unit, 0, handle[1], 0));
    }
    compare_assumption("access for reading alone", CUDA_SUCCESS,
                       driver->cuMemSetAccess(range, 4 * unit, &reading, 1));
    result = driver->cuMemUnmap(range, 4 * unit);
    compare_assumption("two mappings unmapped at once", CUDA_SUCCESS, result);
    if (result != CUDA_SUCCESS) {
        CU(driver->cuMemUnmap(range, 2 * unit));
        CU(driver->cuMemUnmap(range + 2 * unit, 2 * unit));
    }
    result = driver->cuMemMap(range + 7 * unit, 2 * unit, 0, handle[0], 0);
    compare_assumption("mapped beyond the end of what is reserved", CUDA_ERROR_INVALID_VALUE,
                       result);
    if (result == CUDA_SUCCESS)
        CU(driver->cuMemUnmap(range + 7 * unit, 2 * unit));
    result = driver->cuMemAddressReserve(&page, page_bytes, 0, 0, 0);
    compare_assumption("a page of addresses", CUDA_ERROR_INVALID_VALUE, result);
    if (result == CUDA_SUCCESS)
        CU(driver->cuMemAddressFree(page, page_bytes));
    result = driver->cuMemAddressReserve(&page, (size_t)1 << 48, 0, 0, 0);
    compare_assumption("2^48 bytes of addresses", CUDA_ERROR_OUT_OF_MEMORY, result);
    if (result == CUDA_SUCCESS)
        CU(driver->cuMemAddressFree(page, (size_t)1 << 48));
    CU(driver->cuMemMap(range, 2 * unit, 0, handle[0], 0));
    CU(driver->cuCtxPopCurrent(&popped));
    result = driver->cuMemCreate(&none, unit, &space.props, 0);
    compare_assumption("a handle without a current context", CUDA_SUCCESS, result);
    if (result == CUDA_SUCCESS)
        CU(driver->cuMemRelease(none));
    compare_assumption("mapped without a current context", CUDA_SUCCESS,
                       driver->cuMemMap(range + 2 * unit, 2 * unit, 0, handle[1], 0));
    compare_assumption("access without a current context", CUDA_SUCCESS,
                       driver->cuMemSetAccess(range, 2 * unit, &space.access, 1));
    compare_assumption("unmapped without a current context", CUDA_SUCCESS,
                       driver->cuMemUnmap(range, 2 * unit));
    CU(driver->cuCtxPushCurrent(popped));
    (void)driver->cuMemUnmap(range, 2 * unit); /* where it was refused */
    (void)driver->cuMemUnmap(range + 2 * unit, 2 * unit);
    other = reserve(2 * unit);
    CU(driver->cuMemMap(other, 2 * unit, 0, handle[0], 0));
    result = driver->cuMemAddressFree(other, 2 * unit);
    compare_assumption("addresses freed under a mapping", CUDA_ERROR_INVALID_VALUE, result);
    (void)driver->cuMemUnmap(other, 2 * unit);
    if (result != CUDA_SUCCESS)
        CU(driver->cuMemAddressFree(other, 2 * unit));
    CU(driver->cuMemRelease(handle[0]));
    CU(driver->cuMemRelease(handle[1]));
    CU(driver->cuMemAddressFree(range, 8 * unit));
    end_virtual();
}

/* Reserve, create, map, open, unmap, release, free: beside a capture in that mode.  Were that refused, a
 * relaxed thread may, which weir's own calls rely on. */
static CUresult call_virtual(int call) {
    static CUdeviceptr address;
    static CUmemGenericAllocationHandle handle;

    switch (call) {
    case 0:
        return driver->cuMemAddressReserve(&address, space.unit, 0, 0, 0);
    case 1:
        return driver->cuMemCreate(&handle, space.unit, &space.props, 0);
    case 2:
        return driver->cuMemMap(address, space.unit, 0, handle, 0);
    case 3:
        return driver->cuMemSetAccess(address, space.unit, &space.access, 1);
    case 4:
        return driver->cuMemUnmap(address, space.unit);
    case 5:
        return driver->cuMemRelease(handle);
    default:
        return driver->cuMemAddressFree(address, space.unit);
    }
}

enum { VIRTUAL_CALLS = 7 };

TEST(memory_is_mapped_beside_a_capture) {
    static const char *const names[VIRTUAL_CALLS] = {
        "cuMemAddressReserve", "cuMemCreate",  "cuMemMap",        "cuMemSetAccess",
        "cuMemUnmap",          "cuMemRelease", "cuMemAddressFree"};
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus status;
    CUgraph graph;
    CUresult result;
    char what[64];

    if (!has_graphs() || !has_virtual())
        return;
    for (int call = 0; call < VIRTUAL_CALLS; call++) {
        begin_capture(space.s, _i);
        result = call_virtual(call);
        CU(driver->cuStreamIsCapturing(space.s, &status));
        snprintf(what, sizeof what, "%s beside a capture in mode %d", names[call], _i);
        compare_assumption(what, CUDA_SUCCESS, result);
        strcat(what, ": status");
        compare_assumption(what, CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
        graph = NULL;
        if (driver->cuStreamEndCapture(space.s, &graph) == CUDA_SUCCESS)
            CU(driver->cuGraphDestroy(graph));
        if (result == CUDA_SUCCESS)
            continue; /* it was made */
        begin_capture(space.s, _i);
        mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
        CU(call_virtual(call));
        CU(driver->cuThreadExchangeStreamCaptureMode(&mode));
        expect_capturing(space.s);
        CU(driver->cuGraphDestroy(end_capture(space.s)));
    }
    end_virtual();
}

/* ---- the suite ------------------------------------------------------------------------------- */

static void add_each(TCase *tests) {
    ADD_FOR_EACH(
        tests, KIND_COUNT, create_needs_a_place_to_write, create_refuses_options_out_of_range,
        create_accepts_every_size_from_version_1, create_finds_no_such_device,
        create_refuses_an_impossible_preallocation, destroy_waits_for_no_live_block,
        destroy_gives_all_back_behind_pending_frees, create_and_destroy_a_hundred_times,
        nothing_asked_nothing_given, every_size_is_aligned_and_whole, own_stream_reuses_at_once,
        only_live_blocks_are_freed, a_pending_free_is_a_free, blocks_for_any_stream,
        default_streams, many_uses_of_one_block, freed_on_another_stream, the_limit_is_exact,
        the_limit_can_be_lowered, the_limit_is_never_passed, a_refusal_tells_its_figures,
        a_refusal_has_a_verdict, the_largest_request_is_served,
        the_largest_request_on_a_full_device, a_callback_makes_room,
        refusals_and_results_are_the_threads_own, preallocate_grows_to_what_was_asked,
        preallocation_as_an_option, in_the_background_the_reserve_grows_too,
        trim_gives_idle_reserve_back, trim_keeps_what_it_is_told_to, random_work_on_several_streams,
        random_work_in_four_threads, latencies_are_kept_on_demand,
        the_current_context_is_left_alone, streams_beside_a_capture_are_served,
        frees_of_blocks_from_outside_a_capture, aborted_capture_leaks_nothing,
        a_child_of_fork_is_refused);
    ADD_FOR_EACH(tests, 3, idle_reserve_decays,
                 a_full_device_takes_what_another_allocator_has_idle);
    tcase_add_test(tests, captured_requests_are_refused);
}

static void add_single(TCase *tests) {
    ADD_TESTS(tests, several_allocators_beside_each_other, the_pool_can_be_shared,
              the_release_threshold_holds_at_synchronisations);
    tcase_add_loop_test(tests, captured_blocks_are_the_graph_s, 0, KIND_PLATFORM * CAPTURE_MODES);
    tcase_add_loop_test(tests, the_ring_keeps_the_latest_events, KIND_POOL, KIND_POOL + 1);
    tcase_add_loop_test(tests, the_ring_keeps_the_latest_events, KIND_REGIONS, KIND_REGIONS + 1);
    tcase_add_test(tests, events_of_other_sizes);
}

/* What has no allocator of its own. */
static void add_others(TCase *tests) {
    ADD_TESTS(tests, without_a_driver_there_is_no_device, the_default_allocator,
              handles_keep_their_bytes_wherever_they_are_mapped, handles_side_by_side_are_one_range,
              a_released_handle_lives_while_it_is_mapped, what_cannot_be_mapped_is_refused,
              the_model_assumes_what_the_documentation_leaves_open);
    ADD_FOR_EACH(tests, CAPTURE_MODES, a_driver_forbids_what_the_model_does,
                 memory_is_mapped_beside_a_capture);
}

static TCase *add_case(Suite *suite, const char *name, void (*fixture)(void)) {
    return suite_add_case(suite, name, 120, fixture, close_device);
}

static Suite *make_suite(void) {
    Suite *suite = suite_create("conformance");
    TCase *alone;

    add_each(add_case(suite, "each engine", open_device_with_front));
    add_each(add_case(suite, "each engine alone", open_device_without_front));
    add_single(add_case(suite, "one engine", open_device_with_front));
    alone = add_case(suite, "one engine alone", open_device_without_front);
    add_single(alone);
    tcase_add_test(alone, the_driver_result_is_of_the_last_failure);
    add_others(add_case(suite, "the rest", open_device_with_front));
    add_driver_points(suite);
    add_peer_points(suite);
    add_shared_points(suite);
    return suite;
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
    on_cuda = wanted && strcmp(wanted, "cuda") == 0;
    if (!on_cuda)
        return run_suite(make_suite(), CK_FORK_GETENV);
    device_name = "cuda";
    cuda = weir__driver_open("cuda", &failure);
    if (!cuda || cuda->cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
        return skip("no CUDA device");
    return run_suite(make_suite(), CK_NOFORK);
}
