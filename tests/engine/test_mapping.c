/* SPDX-License-Identifier: MIT */
/* test_mapping.c: which handles of a mapped arena move, which ones go back, and the end of the addresses. */
#include "tests/fixtures/engines.h"

CASE("alone", 120, open_engine_device, end_test);
CASE_TOO("for users", 120, open_device_for_users, end_test);

/* Each pin leaves a gap that is too small for the next block.  When the addresses are used up (in case 1 the driver
 * gave a quarter of them), the request fails, and nothing is mapped at the addresses of small blocks. */
TEST_EACH(2, addresses_last_long_and_end_well) {
    enum { PINS = 26, FEW = 20 };
    size_t bytes = 2 * GIB + 2 * MIB; /* the pin has the rest of its last handle */
    copy_driver();
    void *pin[PINS], *large = NULL, *small[2];
    weir_status status = WEIR_OK;
    int pins = 0;

    if (!is_roomy())
        return;
    if (_i)
        few_addresses(64 * GIB);
    make_engine_on(_i ? &table : driver, KIND_MAPPED, 0, "cache=off recovery-timeout=0");
    small[0] = alloc_live(1000, A);
    for (; pins < PINS; pins++, bytes += 64 * MIB) {
        status = weir_alloc(a, bytes, A, &large);
        if (status != WEIR_OK)
            break;
        pin[pins] = alloc_live(6 * MIB, A);
        free_live(large, A);
        CU(driver->cuCtxSynchronize());
        OK(weir_trim(a, 0, NULL));
        weir__model_advance(300 * MS); /* the budget lasts */
    }
    MUST_LE(FEW, pins);
    ck_assert_int_eq(status, _i ? WEIR_E_NO_MEMORY : WEIR_OK);
    small[1] = alloc_live(100 * KIB, A);
    free_live(small[0], A);
    free_live(small[1], A);
    while (pins > 0)
        free_live(pin[--pins], A);
}

/* A handle that the driver fails to unmap stays reserved and counts against the limit.  Nothing else is mapped at its
 * address.  The handle is freed when the driver unmaps it. */
TEST(what_cannot_be_unmapped_is_gone_round) {
    uint64_t all = device_free();
    make_engine(KIND_MAPPED, 64 * MIB, "cache=off recovery-timeout=0");
    void *first = alloc_live(16 * MIB, A);
    free_live(alloc_live(8 * MIB, A), A);
    CU(driver->cuCtxSynchronize());
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT(WEIR_E_DRIVER, weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).reserved, 24 * MIB);
    void *block = alloc_live(40 * MIB, A);
    MUST_EQ(stats_of(a).reserved, 64 * MIB);
    MUST_EQ(all - device_free(), 64 * MIB);
    expect_alloc_status(WEIR_E_LIMIT, 20 * MIB, A);
    MUST_EQ(all - device_free(), 64 * MIB);
    weir__model_faults_clear();
    free_live(alloc_live(8 * MIB, A), A);
    free_live(block, A);
    free_live(first, A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserved, 0);
    MUST_EQ(device_free(), all);
}

/* The handles at the last addresses of small requests move, although they once held many free pieces. */
TEST(the_last_addresses_move_too) {
    enum { SMALL = 2048, LAST = 64 }; /* 2048 blocks of 512 KiB fill 1 GiB */
    static void *block[SMALL];
    copy_driver();
    void *large;

    few_addresses(16 * GIB);
    make_engine_on(&table, KIND_MAPPED, 0, "cache=off limit=1032MiB");
    for (int i = 0; i < SMALL; i++)
        block[i] = alloc_live(512 * KIB, A);
    busy(A, 50 * MS);
    for (int i = 0; i < SMALL; i += 2)
        free_live(block[i], A);
    free_live(alloc_live(8 * MIB, A), A);
    for (int i = 0; i < SMALL; i += 2)
        block[i] = alloc_live(512 * KIB, A);
    for (int i = SMALL - LAST; i < SMALL; i++)
        free_live(block[i], A);
    large = alloc_live(16 * MIB, A);
    MUST_EQ(check_identities(a).reserved, GIB + 8 * MIB);
    MUST_EQ(driver->cuStreamQuery(A), CUDA_ERROR_NOT_READY);
    free_live(large, A);
    for (int i = 0; i < SMALL - LAST; i++)
        free_live(block[i], A);
}

/* Memory at the very end of the addresses leaves no room behind it, although the device has memory.  That is out of
 * memory, in preallocation too, and the failure says which size would fit. */
TEST(the_end_of_the_addresses_is_out_of_memory) {
    enum { UNMAPPED_RANGES = 3 };
    copy_driver();
    size_t bytes = 3714 * MIB, end = 15 * GIB; /* small requests have the rest */
    void *large;

    few_addresses(16 * GIB);
    make_engine_on(&table, KIND_MAPPED, 0, "cache=off");
    for (int i = 0; i < UNMAPPED_RANGES; i++, bytes += 64 * MIB) {
        large = alloc_live(bytes, A);
        alloc_live(6 * MIB, A); /* the rest of its last handle */
        free_live(large, A);
        OK(weir_trim(a, 0, NULL));
        end -= bytes + 6 * MIB;
    }
    large = alloc_live(end, A);
    MUST_EQ(check_identities(a).reserved, end + (size_t)UNMAPPED_RANGES * 8 * MIB);
    EXPECT(WEIR_E_NO_MEMORY, weir_preallocate(a, (size_t)stats_of(a).reserved + 8 * MIB, NULL));
    expect_alloc_status(WEIR_E_NO_MEMORY, bytes, A);
    weir_failure failure = last_failure();
    MUST_EQ(failure.largest, 2 * MIB); /* beside a pin */
    free_live(alloc_live((size_t)failure.largest, A), A);
}

/* Small requests whose addresses are used up are served among the large ones. */
TEST(small_blocks_find_room_elsewhere) {
    enum { SMALL = 2048 }; /* 2048 blocks of 512 KiB fill all small addresses */
    copy_driver();

    few_addresses(16 * GIB);
    make_engine_on(&table, KIND_MAPPED, 0, "cache=off");
    for (int i = 0; i < SMALL; i++)
        alloc_live(512 * KIB, A);
    MUST_EQ(check_identities(a).reserved, GIB);
    expect_alloc_status(WEIR_E_NO_MEMORY, 512 * KIB, A);
    free_live(alloc_live(8 * MIB, A), A);
    alloc_live(512 * KIB, A);
    MUST_EQ(check_identities(a).reserved, GIB + 32 * MIB);
    OK(weir_preallocate(a, GIB + 128 * MIB, NULL)); /* large ones get all of it */
    MUST_EQ(check_identities(a).reserved, GIB + 128 * MIB);
}

/* Above the release threshold, a large block goes among the small requests.  A block for which their addresses have no
 * room is served among the large ones. */
TEST(a_block_that_may_last_finds_room_elsewhere) {
    copy_driver();
    few_addresses(16 * GIB); /* small requests have 1 GiB */
    make_engine_on(&table, KIND_MAPPED, 0, "cache=off release-threshold=0 recovery-timeout=0");
    alloc_live(GIB + 512 * MIB, A);
    alloc_live(512 * MIB, A);
}

/* The arena skips handles that the driver fails to unmap, and one that it unmaps but fails to release. */
TEST(what_cannot_be_unmapped_is_gone_round_still) {
    uint64_t all = device_free();
    void *block[5];

    make_engine(KIND_MAPPED, 64 * MIB, "cache=off");
    for (int i = 0; i < 5; i++)
        block[i] = alloc_live(8 * MIB, A);
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    for (int i = 4; i > 0; i -= 2) {
        free_live(block[i], A);
        EXPECT(WEIR_E_DRIVER, weir_trim(a, 0, NULL));
    }
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__model_fail(WEIR_ENTRY_cuMemRelease, 1, CUDA_ERROR_UNKNOWN, 1);
    OK(weir_trim(a, 0, NULL));
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 1);
    free_live(block[1], A);
    EXPECT(WEIR_E_DRIVER, weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserved, 40 * MIB);
    block[1] = alloc_live(8 * MIB, A);
    MUST_EQ(check_identities(a).reserved, 48 * MIB);
    weir__model_faults_clear();
    for (int i = 0; i < 4; i++)
        if (i != 2)
            free_live(block[i], A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(device_free(), all);
}

/* A physical allocation that could not be mapped at its new address goes with its old address, once the work there has
 * completed. */
TEST(what_cannot_be_put_goes_later) {
    uint64_t all = device_free();
    make_engine(KIND_MAPPED, 64 * MIB, "cache=off");
    void *block = alloc_live(8 * MIB, A);
    void *pin = alloc_live(8 * MIB, A);
    CU(weir__model_use(A, (uintptr_t)block, 8 * MIB, 1, 5 * MS));
    free_live(block, A);
    weir__model_fail(WEIR_ENTRY_cuMemMap, 1, CUDA_ERROR_UNKNOWN, 0);
    expect_alloc_status(WEIR_E_DRIVER, 16 * MIB, A);
    MUST_EQ(check_identities(a).reserved, 16 * MIB);
    OK(weir_trim(a, 0, NULL));
    ck_assert_msg(!weir__model_fault(), "%s", weir__model_fault());
    MUST_EQ(check_identities(a).reserved, 8 * MIB);
    MUST_EQ(all - device_free(), 8 * MIB);
    free_live(pin, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(device_free(), all);
}

/* The driver maps a handle at its new address, but fails to give access, and then to unmap it.  The device has the
 * memory again when both addresses are unmapped. */
TEST(what_stays_in_two_places_goes_with_the_last) {
    uint64_t all = device_free();
    make_engine(KIND_MAPPED, 64 * MIB, "cache=off");
    void *block = alloc_live(8 * MIB, A);
    void *pin = alloc_live(8 * MIB, A);
    busy(A, 5 * MS);
    free_live(block, A);
    weir__model_fail(WEIR_ENTRY_cuMemSetAccess, 1, CUDA_ERROR_UNKNOWN, 0);
    weir__model_fail(WEIR_ENTRY_cuMemUnmap, 1, CUDA_ERROR_UNKNOWN, 0);
    expect_alloc_status(WEIR_E_DRIVER, 16 * MIB, A);
    MUST_EQ(check_identities(a).reserved, 16 * MIB);
    block = alloc_live(8 * MIB, A); /* while A is at work in the old place */
    MUST_EQ(check_identities(a).reserved, 24 * MIB);
    MUST_EQ(all - device_free(), 24 * MIB);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserved, 16 * MIB);
    MUST_EQ(all - device_free(), 16 * MIB);
    free_live(block, A);
    free_live(pin, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(device_free(), all);
}

static CUdeviceptr never_unmapped;

static CUresult unmap_elsewhere(CUdeviceptr at, size_t bytes) {
    return at == never_unmapped ? CUDA_ERROR_UNKNOWN : driver->cuMemUnmap(at, bytes);
}

/* A handle that is still mapped at its old address, too, goes back to the device only when that mapping ends. */
TEST(what_was_moved_goes_with_its_alias) {
    copy_driver();
    uint64_t all = device_free();
    table.cuMemUnmap = unmap_elsewhere;
    make_engine_on(&table, KIND_MAPPED, 64 * MIB, "cache=off");
    void *block = alloc_live(8 * MIB, A);
    alloc_live(8 * MIB, A);
    never_unmapped = (uintptr_t)block;
    busy(A, 5 * MS);
    free_live(block, A);
    block = alloc_live(16 * MIB, A);
    MUST_EQ(check_identities(a).reserved, 24 * MIB);
    free_live(block, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserved, 16 * MIB);
    MUST_EQ(all - device_free(), 16 * MIB);
    never_unmapped = 0;
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(check_identities(a).reserved, 8 * MIB);
    MUST_EQ(all - device_free(), 8 * MIB);
}

/* Many handles move at once before their work has completed.  Each one leaves an aliased mapping. */
TEST(many_move_unseen) {
    enum { HANDLES = 64 };
    uint64_t all = device_free();
    void *block;

    make_engine(KIND_MAPPED, 0, "cache=off");
    block = alloc_live(HANDLES * 8 * MIB, A);
    alloc_live(8 * MIB, A);
    busy(A, 5 * MS);
    free_live(block, A);
    block = alloc_live((HANDLES + 1) * 8 * MIB, A);
    MUST_EQ(check_identities(a).reserved, (HANDLES + 2) * 8 * MIB);
    free_live(block, A);
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(all - device_free(), 16 * MIB); /* the handle of the block that is left */
}

/* Only completed handles move: first the largest ones that the request needs whole, then the smallest one of which it
 * needs a part.  One handle stays. */
TEST_EACH(8, the_best_of_the_idle_moves) {
    static const struct {
        size_t mib[3], wanted;
        int at_work; /* -1 if none is */
        int stays;
    } cases[] = {{{20, 10, 30}, 34, -1, 0}, {{10, 20, 30}, 34, -1, 1}, {{20, 10, 30}, 40, -1, 0},
                 {{10, 20, 30}, 40, -1, 1}, {{20, 10, 30}, 40, 0, 0},  {{10, 20, 30}, 40, 1, 1},
                 {{30, 20, 10}, 50, -1, 2}, {{30, 10, 20}, 50, -1, 1}};
    void *block[3];
    uint64_t before;

    make_engine(KIND_MAPPED, 0, "cache=off");
    free_live(alloc_live(1000, B), B);
    OK(weir_preallocate(a, 2 * GIB, NULL)); /* beside it a handle may have 32 MiB */
    alloc_live(2 * GIB - 16 * MIB, A);
    for (int i = 0; i < 3; i++) {
        OK(weir_preallocate(a, (size_t)reserved_under_test() + cases[_i].mib[i] * MIB, NULL));
        block[i] = alloc_live(cases[_i].mib[i] * MIB, A);
        OK(weir_preallocate(a, (size_t)reserved_under_test() + 2 * MIB, NULL));
        alloc_live(2 * MIB, A);
    }
    for (int i = 0; i < 3; i++)
        if (i != cases[_i].at_work)
            free_live(block[i], A);
    CU(driver->cuCtxSynchronize());
    if (cases[_i].at_work >= 0) {
        busy(A, 5 * MS);
        free_live(block[cases[_i].at_work], A);
    }
    before = reserved_under_test();
    alloc_live(cases[_i].wanted * MIB, A);
    MUST_EQ(reserved_under_test(), before);
    MUST(alloc_live(cases[_i].mib[cases[_i].stays] * MIB, A) == block[cases[_i].stays]);
    free_live(block[cases[_i].stays], A);
}

/* A physical allocation moves if few of its pieces have not completed; the request waits on an event for pieces of
 * another stream.  A physical allocation with many such pieces stays. */
TEST_EACH(2, a_handle_in_many_pieces_stays) {
    enum { MOST = 8 };
    int pieces = _i ? MOST + 2 : MOST;
    size_t bytes = weir__size_round_down(8 * MIB / (size_t)pieces, 512);
    void *block[MOST + 2];

    make_engine(KIND_MAPPED, 0, "cache=off internal-dependencies=on");
    OK(weir_preallocate(a, 10 * MIB, NULL)); /* 2 MiB of it, of small requests, move to the pin */
    for (int i = 0; i < pieces; i++)
        block[i] = alloc_live(i > 0 ? bytes : 8 * MIB - (size_t)(pieces - 1) * bytes, A);
    alloc_live(8 * MIB, B);
    MUST_EQ(reserved_under_test(), 18 * MIB);
    busy(A, 5 * MS);
    busy(B, 5 * MS);
    for (int i = 0; i < pieces; i++) {
        CU(weir__model_use(i % 2 ? A : B, (CUdeviceptr)(uintptr_t)block[i], bytes,
                           weir__model_uses() + 1, MS));
        free_live(block[i], i % 2 ? A : B);
    }
    count_from_here();
    CU(weir__model_use(A, (CUdeviceptr)(uintptr_t)alloc_live(16 * MIB, A), 16 * MIB,
                       weir__model_uses() + 1, MS));
    MUST_EQ(reserved_under_test(), (_i ? 34 : 26) * MIB);
    MUST_EQ(calls(WEIR_ENTRY_cuStreamWaitEvent) > 0, _i == 0);
    ck_assert_ptr_null(weir__model_fault());
}

/* All memory that the device has left is available, although a step is larger.  A failed request leaves no memory at an
 * address from which it cannot move. */
TEST(the_last_of_the_device_is_enough) {
    void *block[3];
    CUdeviceptr hog;

    make_engine(KIND_MAPPED, 0, "cache=off recovery-timeout=0");
    block[0] = alloc_live(8 * MIB, A);
    block[1] = alloc_live(24 * MIB, A);
    block[2] = alloc_live(8 * MIB, A);
    free_live(block[1], A);
    CU(driver->cuCtxSynchronize());
    OK(weir_trim(a, 0, NULL));
    MUST_EQ(stats_of(a).reserved, 16 * MIB);
    busy(A, 50 * MS);
    free_live(block[0], A);
    CU(driver->cuMemAlloc(&hog, device_free() - 14 * MIB));
    expect_alloc_status(WEIR_E_NO_MEMORY, 30 * MIB, A);
    MUST_EQ(device_free(), 14 * MIB);
    block[1] = alloc_live(22 * MIB, A);
    MUST_EQ(device_free(), 0);
    free_live(block[1], A);
    free_live(block[2], A);
    CU(driver->cuMemFree(hog));
}

CASE("alone", 120, open_engine_device, end_test);

/* Without stream ids no handle moves before its work has completed: no stream could use it, since its stream would be
 * unknown. */
TEST(without_ids_nothing_moves_unseen) {
    void *block[4];

    make_engine_on(older_driver(WEIR_CAP_STREAM_ID), KIND_MAPPED, 64 * MIB, "");
    for (int i = 0; i < 4; i++)
        block[i] = alloc_live(8 * MIB, A);
    busy(A, 5 * MS);
    free_live(block[0], A);
    free_live(block[2], A);
    alloc_live(32 * MIB, B);
    MUST_EQ(driver->cuStreamQuery(B), CUDA_SUCCESS);
    MUST_EQ(check_identities(a).reserved, 64 * MIB);
}

SUITE("mapping", CK_FORK_GETENV);
