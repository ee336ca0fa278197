/* SPDX-License-Identifier: MIT */
/* test_moves.c: which handles a mapped arena moves and makes, and which work it waits for, call by call.
 *
 * The engine runs alone, on the device model.  Each test checks a promise of doc/design.md about idle handles, handles
 * of large requests, or growth, with known sizes: how much the reserved memory grows, how many handles are made and
 * unmapped, which events are noted, and which streams are waited for. */
#include "config.h"

#include "tests/fixtures/under_test.h"

#include "tests/fixtures/calls.h"
#include "tests/fixtures/refuse.h"

static void open_moves_device(void) {
    start_model(4 * GIB);
}

/* Returns options without waiting, which a test may add. */
static weir_options moves_options(size_t limit) {
    weir_options options = options_of(KIND_MAPPED, "model", 0);

    if (limit)
        options.limit = bytes_amount(limit);
    options.recovery_timeout_ms = UINT32_MAX;
    options.cache = WEIR_SWITCH_OFF;
    options.internal_dependencies = WEIR_SWITCH_OFF;
    return options;
}

static void make_moving_on(const struct weir_driver *on, size_t limit, const char *settings) {
    weir_options options = moves_options(limit);

    apply_settings(&options, settings);
    make_with_on(on, &options);
}

static void make_moving(size_t limit, const char *settings) {
    make_moving_on(driver, limit, settings);
}

static uint64_t count_events(void) {
    weir_event event[64];
    size_t count = 0;

    OK(weir_events(a, 0, event, sizeof event[0], 64, &count));
    return count;
}

static void end_moves(void) {
    end_test();
    ck_assert_ptr_null(weir__model_fault());
}

CASE("moves", 60, open_moves_device, end_moves);

/* A move is no growth: no handle is made, no step is noted, and no memory goes back. */
TEST(a_move_is_no_growth) {
    make_moving(0, "");
    void *block[4];
    for (int i = 0; i < 4; i++)
        block[i] = alloc_live(8 * MIB, A);
    free_live(block[0], A);
    free_live(block[2], A);
    weir_statistics before = check_identities(a);
    MUST_EQ(before.reserved, 32 * MIB);
    uint64_t events = count_events();
    count_from_here();
    alloc_live(16 * MIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 2);
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 0);
    MUST_EQ(calls(WEIR_ENTRY_cuMemRelease), 0);
    weir_statistics after = check_identities(a);
    MUST_EQ(after.reserved, before.reserved);
    MUST_EQ(after.growths, before.growths);
    MUST_EQ(after.growth_allocs, before.growth_allocs);
    MUST_EQ(after.hits, before.hits + 1);
    MUST_EQ(count_events(), events);
}

/* Requests three times 8 MiB, frees two of them, and requests 16 MiB, for which one of the two has to move, or memory
 * grows.  Then frees all. */
static void cycle_of_moves(void) {
    void *large, *piece[3];

    for (int i = 0; i < 3; i++)
        piece[i] = alloc_live(8 * MIB, A);
    free_live(piece[0], A);
    free_live(piece[2], A);
    large = alloc_live(16 * MIB, A);
    free_live(large, A);
    free_live(piece[1], A);
}

/* A load that would move handles for ever grows once its budget is used up.  Time adds to the budget. */
TEST(what_would_move_for_ever_grows) {
    make_moving(0, "");
    cycle_of_moves();
    count_from_here();
    while (reserved_under_test() == 24 * MIB)
        cycle_of_moves();
    MUST_BE_WITHIN(300, calls(WEIR_ENTRY_cuMemUnmap), 600); /* 20 ms, about 40 us each */
    destroy();
    make_moving(0, "");
    count_from_here();
    for (int i = 0; i < 1000; i++) {
        cycle_of_moves();
        weir__model_advance(10 * MS);
    }
    MUST_EQ(reserved_under_test(), 24 * MIB);
    MUST_LE(1000, calls(WEIR_ENTRY_cuMemUnmap));
}

/* Without a budget the heap moves memory if it cannot grow. */
TEST(at_the_limit_the_budget_decides_nothing) {
    make_moving(24 * MIB, "");
    count_from_here();
    for (int i = 0; i < 1000; i++)
        cycle_of_moves();
    MUST_EQ(reserved_under_test(), 24 * MIB);
    MUST_LE(1000, calls(WEIR_ENTRY_cuMemUnmap));
}

/* Growth does not reset the budget.  A load of random blocks that fill 2 GiB uses up its budget: what it has at first,
 * earns by growth and earns by time, and what one request may take more. */
TEST(growth_earns_no_more_than_its_part_of_moves) {
    enum { BLOCKS = 64, STEPS = 8000, MOVE_US = 45 };
    make_moving(0, "");
    void *block[BLOCKS];
    size_t bytes[BLOCKS], live = 0, next;
    uint64_t draw = 1, moved, began = weir__model_now_ns(), earned;
    int count = 0;

    count_from_here();
    for (int i = 0; i < STEPS; i++) {
        draw = draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        next = (size_t)(1 + (draw >> 33) % 512) * MIB;
        if (live + next <= 2 * GIB) {
            block[count] = alloc_live(next, A);
            bytes[count++] = next;
            live += next;
        } else {
            int gone = (int)((draw >> 40) % (uint64_t)count);

            free_live(block[gone], A);
            live -= bytes[gone];
            block[gone] = block[--count];
            bytes[gone] = bytes[count];
        }
    }
    moved = calls(WEIR_ENTRY_cuMemUnmap);
    earned =
        20000 + 1200 * reserved_under_test() / GIB + (weir__model_now_ns() - began) / 1000 / 100;
    MUST_LE(100, moved);
    MUST_LE(moved * MOVE_US, earned + 64 * MOVE_US);
    while (count > 0)
        free_live(block[--count], A);
}

/* Grow-ahead shortens the waits of requests, so nothing moves beside it. */
TEST(nothing_moves_beside_grow_ahead) {
    make_moving(0, "");
    void *block[3];
    a->reserve.engine->traits |= WEIR_ENGINE_GROWS_AHEAD; /* though no thread adds anything */
    for (int i = 0; i < 3; i++)
        block[i] = alloc_live(32 * MIB, A);
    free_live(block[0], A);
    free_live(block[2], A);
    count_from_here();
    alloc_live(96 * MIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 0);
}

/* Handles that move before their work has completed share one recorded event.  New handles need none. */
TEST(what_moves_unseen_is_recorded_once) {
    make_moving(0, "");
    void *block[6];
    for (int i = 0; i < 6; i++)
        block[i] = alloc_live((i < 4 ? 8 : 4) * MIB, A);
    MUST_EQ(reserved_under_test(), 40 * MIB);
    busy(A, 50 * MS);
    free_live(block[0], A);
    free_live(block[2], A);
    count_from_here();
    alloc_live(16 * MIB, A);
    MUST_EQ(reserved_under_test(), 40 * MIB);
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 1);
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 0);
    free_live(block[5], A); /* one half of a handle, the other is in use */
    count_from_here();
    alloc_live(8 * MIB, A);
    MUST_EQ(reserved_under_test(), 48 * MIB);
    MUST_EQ(calls(WEIR_ENTRY_cuEventRecord), 0);
}

/* What remains of memory that moved before its work has completed serves the stream for which it moved, and no other. */
TEST(what_remains_of_a_move_serves_its_stream) {
    make_moving(0, "");
    void *block[4];
    free_live(alloc_live(1000, B), B);
    for (int i = 0; i < 4; i++)
        block[i] = alloc_live(8 * MIB, A);
    uint64_t before = reserved_under_test();
    busy(A, 50 * MS);
    free_live(block[0], A);
    free_live(block[2], A);
    char *moved = alloc_live(12 * MIB, A);
    MUST_EQ(reserved_under_test(), before);
    ck_assert_ptr_ne(alloc_live(4 * MIB, B), moved + 12 * MIB);
    ck_assert_ptr_eq(alloc_live(4 * MIB, A), moved + 12 * MIB);
}

/* A handle that is mapped at two addresses is unmapped at both at the end, so the device has its memory again. */
TEST(an_end_leaves_nothing_mapped) {
    uint64_t all = device_free();
    make_moving(0, "");
    void *block = alloc_live(8 * MIB, A), *pin = alloc_live(8 * MIB, A);
    busy(A, 5 * MS);
    free_live(block, A);
    count_from_here();
    void *large = alloc_live(16 * MIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemMap), 2);
    MUST_EQ(reserved_under_test(), 24 * MIB);
    free_live(large, A);
    free_live(pin, A);
    destroy();
    MUST_EQ(calls(WEIR_ENTRY_cuMemUnmap), 4); /* the pin, a new one, and one twice */
    MUST_EQ(calls(WEIR_ENTRY_cuMemRelease), 3);
    MUST_EQ(device_free(), all);
}

/* ---- growth ---------------------------------------------------------------------------------- */

/* A step is no larger than the limit allows. */
TEST(a_step_ends_at_the_limit) {
    make_moving(70 * MIB, "");
    void *block = alloc_live(61 * MIB, A);
    MUST_EQ(reserved_under_test(), 64 * MIB);
    void *other = alloc_live(4 * MIB, A); /* it lacks 1 MiB; a step has 8 */
    MUST_EQ(reserved_under_test(), 70 * MIB);
    free_live(other, A);
    free_live(block, A);
    destroy();
    make_moving(62 * MIB, "");
    free_live(alloc_live(57 * MIB, A), A);
    MUST_EQ(reserved_under_test(), 62 * MIB);
}

/* weir queries each event twice before the reserved memory grows: first when the request does not fit, then when all
 * events are queried. */
TEST(who_grows_asks_about_events_twice) {
    make_moving(0, "");
    alloc_live(4 * MIB, A);
    void *block = alloc_live(4 * MIB, B);
    busy(B, 50 * MS);
    free_live(block, B);
    count_from_here();
    alloc_live(8 * MIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuEventQuery), 2);
    MUST_EQ(reserved_under_test(), 16 * MIB);
}

/* A failed request tries each size only once in the driver. */
TEST(a_failure_asks_each_size_once) {
    make_moving(0, "");
    uint64_t all = device_free();
    CUdeviceptr hog = leave_free(14 * MIB);

    count_from_here();
    expect_alloc_status(WEIR_E_NO_MEMORY, 30 * MIB, A);
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_OUT_OF_MEMORY);
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 3); /* 8 and 8 MiB, of which one was had, and 30 */
    MUST_EQ(calls(WEIR_ENTRY_cuMemRelease), 1);
    MUST_EQ(calls(WEIR_ENTRY_cuMemMap), 0);
    MUST_EQ(device_free(), 14 * MIB);
    CU(driver->cuMemFree(hog));
    MUST_EQ(device_free(), all);
}

/* weir asks the driver for its free memory before it makes 256 MiB or more. */
TEST(large_steps_are_foretold) {
    make_moving(0, "");
    void *block[3];
    count_from_here();
    block[0] = alloc_live(256 * MIB, A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemGetInfo), 1);
    alloc_live(8 * MIB, A);
    count_from_here();
    block[1] = alloc_live(248 * MIB, A); /* one handle less than 256 MiB */
    MUST_EQ(calls(WEIR_ENTRY_cuMemGetInfo), 0);
    free_live(block[0], A);
    count_from_here();
    alloc_live(264 * MIB, A); /* 256 of it move */
    MUST_EQ(calls(WEIR_ENTRY_cuMemGetInfo), 0);
    MUST_EQ(reserved_under_test(), 520 * MIB);
}

/* Preallocated memory comes in handles of a 32nd of it, or in smaller ones if the driver fails.  Small
 * requests get no handle of a single page. */
TEST(what_is_preallocated_comes_in_large_handles) {
    make_moving(0, "");
    OK(weir_preallocate(a, 2 * MIB, NULL));
    count_from_here();
    free_live(alloc_live(2 * MIB, A), A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemMap), 0);
    MUST_EQ(reserved_under_test(), 2 * MIB);
    OK(weir_preallocate(a, 2 * MIB + GIB, NULL));
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 33); /* of 32 MiB, one of them for small ones */
    MUST_EQ(reserved_under_test(), 2 * MIB + GIB);
    int before = weir_last_driver_result();
    weir__model_fail(WEIR_ENTRY_cuMemCreate, 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
    OK(weir_preallocate(a, 258 * MIB + GIB, NULL));
    MUST_EQ(calls(WEIR_ENTRY_cuMemCreate), 47); /* refused, and 13 of 20 or less */
    MUST_EQ(weir_last_driver_result(), before);
    weir__model_fail(WEIR_ENTRY_cuMemCreate, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_preallocate(a, 2 * GIB, NULL));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    MUST_EQ(reserved_under_test(), 258 * MIB + GIB);
    MUST_EQ(stats_of(a).reserved_peak, 258 * MIB + GIB);
}

/* A failure reports all that would fit: free memory at the end, idle memory elsewhere, and growth. */
TEST(a_failure_tells_all_that_would_fit) {
    make_moving(64 * MIB, "");
    void *block[4];

    expect_alloc_status(WEIR_E_LIMIT, 66 * MIB, A);
    weir_failure failure = last_failure();
    MUST_EQ(failure.largest, 64 * MIB);
    for (int i = 0; i < 4; i++)
        block[i] = alloc_live((i < 3 ? 8 : 4) * MIB, A);
    free_live(block[1], A);
    expect_alloc_status(WEIR_E_LIMIT, 46 * MIB, A);
    failure = last_failure();
    MUST_EQ(failure.largest, (8 + 4 + 32) * MIB);
    free_live(alloc_live((size_t)failure.largest, A), A);
}

/* ---- giving back ----------------------------------------------------------------------------- */

/* Preallocates 2 MiB for small requests and handles of 22, 6 and 8 MiB for others.  The first two of these become
 * blocks. */
static void of_four_handles(void **block, void **pin) {
    make_moving(0, "");

    OK(weir_preallocate(a, 24 * MIB, NULL));
    OK(weir_preallocate(a, 30 * MIB, NULL));
    OK(weir_preallocate(a, 38 * MIB, NULL));
    *block = alloc_live(22 * MIB, A);
    *pin = alloc_live(6 * MIB, A);
    MUST_EQ(reserved_under_test(), 38 * MIB);
}

/* A trim waits for the device only if that frees more memory.  Here all handles left are larger than the rest to
 * free. */
TEST(a_trim_that_has_seen_all_waits_for_nothing) {
    void *block, *pin;
    of_four_handles(&block, &pin);

    busy(B, 50 * MS);
    OK(weir_trim(a, 33 * MIB, NULL));
    MUST_EQ(reserved_under_test(), 36 * MIB);
    MUST_EQ(driver->cuStreamQuery(B), CUDA_ERROR_NOT_READY);
    free_live(block, A);
    free_live(pin, A);
}

/* Completed memory is enough here. */
TEST(a_trim_that_has_enough_waits_for_nothing) {
    void *block, *pin;
    of_four_handles(&block, &pin);
    void *small = alloc_live(1000, B); /* one stream alone records no events */
    busy(A, 50 * MS);
    free_live(block, A);
    OK(weir_trim(a, 30 * MIB, NULL));
    MUST_EQ(reserved_under_test(), 30 * MIB);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY);
    OK(weir_trim(a, 8 * MIB, NULL));
    MUST_EQ(reserved_under_test(), 8 * MIB);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_SUCCESS);
    free_live(small, B);
    free_live(pin, A);
}

/* A trim does not wait for an aliased mapping whose handle is in use at its new address. */
TEST(a_trim_does_not_wait_for_shadows) {
    make_moving(0, "");
    void *block = alloc_live(8 * MIB, A);
    alloc_live(8 * MIB, A);
    busy(A, 50 * MS);
    free_live(block, A);
    alloc_live(16 * MIB, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(reserved_under_test(), 24 * MIB);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* weir reserves addresses for 64 times the device, and retries with half as much, down to four times the device. */
TEST(addresses_are_asked_for_down_to_four_devices) {
    weir_options options = moves_options(0);
    char message[320];

    weir__model_fail(WEIR_ENTRY_cuMemAddressReserve, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    count_from_here();
    EXPECT(WEIR_E_NO_MEMORY,
           weir__allocator_create_on(driver, &options, &a, message, sizeof message));
    MUST_EQ(calls(WEIR_ENTRY_cuMemAddressReserve), 5); /* 64, 32, 16, 8 and 4 */
}

/* Memory at the very end of the addresses leaves no room behind it, and a failure says so.  Preallocation fails, too,
 * even if that memory is to be freed but the driver keeps it mapped. */
TEST(behind_the_last_address_is_nothing) {
    enum { UNMAPPED_RANGES = 3 };
    copy_driver();
    size_t bytes = 3714 * MIB, end = 15 * GIB; /* small requests have the rest */
    void *pin[UNMAPPED_RANGES], *rest[UNMAPPED_RANGES], *large;

    few_addresses(16 * GIB);
    make_moving_on(&table, 0, "");
    for (int i = 0; i < UNMAPPED_RANGES; i++, bytes += 64 * MIB) {
        large = alloc_live(bytes, A);
        pin[i] = alloc_live(6 * MIB, A); /* the rest of its last handle */
        free_live(large, A);
        OK(weir_trim(a, 0, NULL));
        end -= bytes + 6 * MIB;
    }
    large = alloc_live(end, A);
    for (int i = 0; i < UNMAPPED_RANGES; i++)
        rest[i] = alloc_live(2 * MIB, A); /* the part of a handle before its pin */
    MUST_EQ(reserved_under_test(), end + (size_t)UNMAPPED_RANGES * 8 * MIB);
    expect_alloc_status(WEIR_E_NO_MEMORY, bytes, A);
    weir_failure failure = last_failure();
    MUST_EQ(failure.largest, 0);
    free_live(large, A);
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_DRIVER, weir_trim(a, 0, NULL));
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, (size_t)stats_of(a).reserved + 8 * MIB, NULL));
    weir__model_faults_clear();
    for (int i = 0; i < UNMAPPED_RANGES; i++) {
        free_live(pin[i], A);
        free_live(rest[i], A);
    }
}

/* The driver keeps memory mapped at the first address of small requests, where the addresses of large ones end.  Only
 * small requests avoid that address. */
TEST(behind_the_end_begins_another_part) {
    uint64_t all = device_free();
    make_moving(0, "");

    free_live(alloc_live(1000, A), A);
    MUST_EQ(reserved_under_test(), 8 * MIB);
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_DRIVER, weir_trim(a, 0, NULL));
    OK(weir_preallocate(a, 72 * MIB, NULL));
    MUST_EQ(reserved_under_test(), 72 * MIB);
    weir__model_faults_clear();
    count_from_here();
    free_live(alloc_live(60 * MIB, A), A);
    free_live(alloc_live(1000, A), A);
    MUST_EQ(calls(WEIR_ENTRY_cuMemMap), 0);
    destroy();
    MUST_EQ(device_free(), all);
}

#ifdef CAN_REFUSE_HOST_MEMORY
/* A request without host memory fails with that status and changes nothing, whichever allocation fails. */
TEST(without_host_memory_nothing_has_changed) {
    uint64_t all = device_free();
    weir_status status = WEIR_E_HOST_MEMORY;
    void *block = NULL;

    for (uint64_t k = 1; status != WEIR_OK; k++) {
        make_moving(0, "");
        refuse_in = k;
        status = weir_alloc(a, 512 * MIB, A, &block);
        refuse_in = 0;
        if (status == WEIR_OK) {
            free_live(block, A);
        } else {
            EXPECT(WEIR_E_HOST_MEMORY, status);
            MUST_EQ(reserved_under_test(), 0);
            MUST_EQ(device_free(), all);
        }
        destroy();
    }
}

/* An OOM report says that no memory is available, also if the host has no memory for all the pieces that were split
 * since the failure. */
TEST(without_host_memory_an_oom_report_promises_nothing) {
    enum { PIECES = 32 };
    make_moving(PIECES * 2 * MIB, "");
    weir_oom_report oom_report = {.size = sizeof oom_report};
    void *piece[PIECES];

    piece[0] = alloc_live(PIECES * 2 * MIB, A);
    expect_alloc_status(WEIR_E_LIMIT, 8 * MIB, B);
    free_live(piece[0], A);
    for (int i = 0; i < PIECES; i++)
        piece[i] = alloc_live(2 * MIB, A);
    busy(A, 50 * MS);
    for (int i = 0; i < PIECES; i += 2)
        free_live(piece[i], A);
    for (uint64_t k = 1; k == 1 || was_refused; k++) {
        refuse_in = k;
        was_refused = 0;
        OK(weir_last_oom_report(a, &oom_report));
        refuse_in = 0;
        MUST_EQ(oom_report.largest, 0);
    }
    for (int i = 1; i < PIECES; i += 2)
        free_live(piece[i], A);
}
#endif

/* ---- the kind of memory ---------------------------------------------------------------------- */

static int is_direct;
static size_t handles_made;

static CUresult tell_direct(int *value, CUdevice_attribute attribute, CUdevice device) {
    CUresult result = driver->cuDeviceGetAttribute(value, attribute, device);

    if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) {
        *value = is_direct == 1;
        return is_direct < 0 ? CUDA_ERROR_INVALID_VALUE : result;
    }
    return result;
}

static CUresult create_of_a_kind(CUmemGenericAllocationHandle *handle, size_t bytes,
                                 const CUmemAllocationProp *properties, unsigned long long flags) {
    handles_made++;
    MUST_EQ(properties->allocFlags.gpuDirectRDMACapable, is_direct == 1);
    return driver->cuMemCreate(handle, bytes, properties, flags);
}

/* All handles support GPUDirect RDMA if the device has it for mapped memory: those of requests, of preallocations, and
 * split ones.  _i is -1 for a driver that does not know the attribute. */
TEST_WHERE(-1, 2, NULL, network_adapters_may_reach_all_of_it) {
    copy_driver();
    void *block[3];
    is_direct = _i;
    handles_made = 0;
    table.cuDeviceGetAttribute = tell_direct;
    table.cuMemCreate = create_of_a_kind;
    make_moving_on(&table, 0, "");
    OK(weir_preallocate(a, 64 * MIB, NULL));
    for (int i = 0; i < 3; i++)
        block[i] = alloc_live(40 * MIB + (size_t)i, A);
    free_live(block[1], A);
    block[1] = alloc_live(90 * MIB, A);
    MUST_LE(2, handles_made);
}

/* ---- beside other calls ---------------------------------------------------------------------- */

static weir_allocator *trimmed_beside;
static size_t went;

/* Creates a handle, and plays another call of the program that trims meanwhile. */
static CUresult create_and_trim(CUmemGenericAllocationHandle *handle, size_t bytes,
                                const CUmemAllocationProp *properties, unsigned long long flags) {
    CUresult result = driver->cuMemCreate(handle, bytes, properties, flags);

    if (trimmed_beside && went == 0)
        OK(weir_trim(trimmed_beside, 0, &went));
    return result;
}

/* A preallocation up to the limit succeeds, although a trim of the program freed memory meanwhile. */
TEST(a_trim_beside_a_preallocation_is_no_limit) {
    copy_driver();
    size_t had = 0;
    table.cuMemCreate = create_and_trim;
    make_moving_on(&table, 256 * MIB, "");
    OK(weir_preallocate(a, 64 * MIB, NULL));
    trimmed_beside = a;
    OK(weir_preallocate(a, 256 * MIB, &had));
    trimmed_beside = NULL;
    MUST_LE(2 * MIB, went);
    MUST_EQ(had, 256 * MIB - went);
    MUST_EQ(reserved_under_test(), had);
    EXPECT(WEIR_E_LIMIT, weir_preallocate(a, 256 * MIB + 1, &had));
    MUST_EQ(had, 256 * MIB);
}

/* Records about blocks of graphs count as host memory. */
TEST(what_is_known_of_graphs_is_counted) {
    make_moving(0, "");
    free_live(alloc_live(MIB, A), A);
    uint64_t before = stats_of(a).host_bytes;
    CU(driver->cuStreamBeginCapture(A, CU_STREAM_CAPTURE_MODE_GLOBAL));
    free_live(alloc_live(MIB, A), A);
    drop_capture(A);
    MUST_BE_WITHIN(before + 16, stats_of(a).host_bytes, before + MIB);
}

SUITE("moves", CK_FORK);
