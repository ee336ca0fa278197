/* SPDX-License-Identifier: MIT */
/* test_misuse_ends.c: uses of an allocator after its end, and queries about addresses. */
#include "test_misuse.h"

/* ---- the end of the allocator, the context, the process ------------------------------------- */

CASE("each world", 60, start_world_device, NULL);

TEST_EACH(WORLDS, destroyed_with_live_blocks) {
    begin_misuse(_i);
    for (int i = 0; i < 3; i++) {
        MISUSE(WEIR_E_BUSY, weir_allocator_destroy(a));
        expect_unharmed();
    }
    for (int i = 1; i < WITNESSES; i++)
        free_in_world(witness[i], i % 2 ? A : B);
    MISUSE(WEIR_E_BUSY, weir_allocator_destroy(a));
    MUST(strstr(logged, "live blocks remain") != NULL);
    MUST_EQ(check_identities(a).blocks, 1);
    free_in_world(witness[0], B);
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
    MUST_EQ(device_free(), CAPACITY);
}

/* Hits of a bound stream make no driver call, and still detect the fork. */
static int forked_calls_fail(void) {
    const weir_amount limit = {.value = MIB, .kind = WEIR_AMOUNT_BYTES};
    weir_allocator *made = NULL;
    CUmemoryPool pool = NULL;
    void *none = NULL;
    char message[1];

    (void)lines();
    return weir_alloc(a, 512, A, &none) == WEIR_E_FORKED &&
           weir_free(a, witness[0], A) == WEIR_E_FORKED &&
           weir_free(a, witness[0], B) == WEIR_E_FORKED &&
           weir_use(a, witness[0], B) == WEIR_E_FORKED && weir_bind(a, A) == WEIR_E_FORKED &&
           weir_unbind(a, A) == WEIR_E_FORKED && weir_trim(a, 0, NULL) == WEIR_E_FORKED &&
           weir_process_trim(&(weir_process_memory){.size = 8}) == WEIR_E_FORKED &&
           weir_preallocate(a, MIB, NULL) == WEIR_E_FORKED &&
           weir_pool(a, &pool) == WEIR_E_FORKED &&
           weir_set_access(a, 0, WEIR_ACCESS_READ_WRITE) == WEIR_E_FORKED &&
           weir_set_limit(a, limit) == WEIR_E_FORKED && weir_decay(a, NULL) == WEIR_E_FORKED &&
           weir_low_memory(a, 0) == WEIR_E_FORKED &&
           weir_block_range(a, witness[0], NULL, NULL) == WEIR_E_FORKED &&
           weir_profile_save(a, "/nonexistent/profile") == WEIR_E_FORKED &&
           weir_allocator_destroy(a) == WEIR_E_FORKED && lines() == 16 && none == NULL &&
           weir_allocator_create(NULL, &made) == WEIR_E_FORKED &&
           weir__allocator_create_on(driver, NULL, &made, message, 1) == WEIR_E_FORKED &&
           made == NULL && pool == NULL;
}

TEST_EACH(WORLDS, calls_in_a_forked_child_fail) {

    begin_misuse(_i);
    OK(weir_bind(a, A));
    free_in_world(alloc_in_world(512, A), A);
    if (is_forked_child())
        _exit(forked_calls_fail() ? 0 : 1);
    OK(weir_unbind(a, A));
    end_misuse();
}

/* The program resets the context, as cudaDeviceReset does. */
TEST_EACH(WORLDS, calls_after_a_reset_of_the_context_fail) {
    const weir_amount limit = {.value = MIB, .kind = WEIR_AMOUNT_BYTES};
    CUmemoryPool pool = NULL;
    void *none = &none;
    int refused = 0;

    begin_misuse(_i);
    while (driver->cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS)
        ;
    (void)lines();
    for (int i = 0; i < SIZES; i++) {
        weir_status status = weir_alloc(a, sizes[i], A, &none);

        MUST(status == WEIR_E_DEVICE_LOST);
        refused++;
    }
    MUST(none == &none && refused == SIZES);
    expect_lines(__LINE__, 1); /* one line for all */
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, witness[0], A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, witness[1], B));
    EXPECT(WEIR_E_DEVICE_LOST, weir_use(a, witness[1], B));
    EXPECT(WEIR_E_DEVICE_LOST, weir_bind(a, A));
    EXPECT(WEIR_E_DEVICE_LOST, weir_trim(a, 0, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_preallocate(a, MIB, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_pool(a, &pool));
    EXPECT(WEIR_E_DEVICE_LOST, weir_set_access(a, 0, WEIR_ACCESS_READ_WRITE));
    EXPECT(WEIR_E_DEVICE_LOST, weir_set_limit(a, limit));
    EXPECT(WEIR_E_DEVICE_LOST, weir_decay(a, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_low_memory(a, 0));
    EXPECT(WEIR_E_DEVICE_LOST, weir_block_range(a, witness[0], NULL, NULL));
    EXPECT(WEIR_E_DEVICE_LOST, weir_profile_save(a, "/nonexistent/profile"));
    MUST(pool == NULL);
    MUST_EQ(stats_of(a).blocks, before.blocks);
    OK(weir_allocator_destroy(a)); /* the blocks are gone with the context */
}

/* When a process ends, the driver may go before the owners of blocks free them.  That is no error. */
TEST_EACH(WORLDS, used_after_the_driver_has_gone) {
    void *block = NULL;
    weir_status status = WEIR_OK;

    begin_misuse(_i);
    (void)lines();
    for (int entry = 0; entry < WEIR_ENTRY_COUNT; entry++)
        weir__model_fail((enum weir_driver_entry)entry, 1, CUDA_ERROR_DEINITIALIZED, 1);
    for (int i = 0; i < SIZES && status == WEIR_OK; i++)
        status = weir_alloc(a, sizes[i], B, &block);
    if (status == WEIR_OK) /* memory that weir had */
        status = weir_preallocate(a, 64 * MIB, NULL);
    EXPECT(WEIR_E_DEVICE_LOST, status);
    EXPECT(WEIR_E_DEVICE_LOST, weir_free(a, witness[0], A));
    expect_lines(__LINE__, 0);
    (void)weir_allocator_destroy(a);
}

/* Exit handlers run in reverse order of registration, and destructors after them.  Libraries free their blocks there.
 * `late`: the driver is shut down first. */
static int at_exit, late;
static void *kept[SIZES];

static void use_at_exit(void) {
    void *block = NULL;
    int wrong = 0;
    size_t bytes;

    for (int i = 0; i < SIZES; i++) {
        weir_status taken = weir_alloc(a, sizes[i], A, &block);

        if (taken == WEIR_OK)
            wrong |= weir_free(a, block, A) != WEIR_OK;
        else
            wrong |= !late || taken != WEIR_E_DEVICE_LOST;
        if (kept[i]) {
            weir_status freed = weir_free(a, kept[i], A);

            wrong |= freed != WEIR_OK && (!late || freed != WEIR_E_DEVICE_LOST);
            if (freed == WEIR_OK)
                wrong |= weir_free(a, kept[i], A) == WEIR_OK;
        }
        kept[i] = NULL;
    }
    wrong |= weir_trim(a, 0, &bytes) != (late ? WEIR_E_DEVICE_LOST : WEIR_OK) && !late;
    if (wrong)
        _exit(1);
    at_exit++;
}

__attribute__((destructor)) static void in_a_destructor(void) {
    if (at_exit == 0)
        return;
    use_at_exit();
    if (at_exit != 2)
        _exit(2);
}

static void go_down(void) {
    for (int entry = 0; late && entry < WEIR_ENTRY_COUNT; entry++)
        weir__model_fail((enum weir_driver_entry)entry, 1, CUDA_ERROR_DEINITIALIZED, 1);
    use_at_exit();
}

static void leave_blocks_at_exit(int world) {
    static const char *const engines[KIND_COUNT] = {"pool", "bfc-fixed", "bfc", "mapped", "direct"};

    setenv("WEIR_DEVICE", "model", 1);
    setenv("WEIR_ENGINE", engines[worlds[world].kind], 1);
    setenv("WEIR_CACHE", world_has_caches(world) ? "on" : "off", 1);
    start_model(CAPACITY);
    if (weir_default_allocator(&a) != WEIR_OK)
        _exit(3);
    for (int i = 0; i < SIZES; i++)
        kept[i] = alloc_in_world(sizes[i], A);
    atexit(go_down);
    exit(0);
}

CASE("exit", 60, NULL, NULL);

TEST_EACH(2 * WORLDS, calls_at_exit_do_no_harm) {
    int status = -1;
    pid_t child = fork();

    MUST(child >= 0);
    late = _i % 2;
    if (child == 0) {
        MUST(freopen("/dev/null", "w", stdout) != NULL);
        leave_blocks_at_exit(_i / 2);
    }
    MUST(waitpid(child, &status, 0) == child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
}

/* ---- questions about addresses --------------------------------------------------------------- */

static void expect_range(const void *address, void *block, size_t bytes) {
    void *start = NULL;
    size_t asked = 0;

    OK(weir_block_range(a, address, &start, &asked));
    MUST(start == block);
    MUST_EQ(asked, bytes);
    OK(weir_block_range(a, address, NULL, NULL));
}

static void expect_no_range(const void *address) {
    void *start = a;
    size_t asked = 77;

    EXPECT(WEIR_E_NOT_OWNED, weir_block_range(a, address, &start, &asked));
    MUST(start == a && asked == 77);
}

static void expect_whole_range(unsigned char *block, size_t bytes) {
    expect_range(block, block, bytes);
    expect_range(block + bytes / 2, block, bytes);
    expect_range(block + bytes - 1, block, bytes);
}

/* Blocks of other sizes had the memory before, and may have left entries on the way to the block's beginning. */
static void large_blocks(void) {
    unsigned char *small[64], *large;

    for (int i = 0; i < 64; i++)
        small[i] = alloc_in_world(MIB + (size_t)i, A);
    for (int i = 0; i < 64; i++)
        expect_whole_range(small[i], MIB + (size_t)i);
    for (int i = 0; i < 64; i++)
        free_in_world(small[i], A);
    large = alloc_in_world(100 * MIB + 1, A);
    for (size_t at = 0; at <= 100 * MIB; at += 300 * KIB + 1)
        expect_range(large + at, large, 100 * MIB + 1);
    expect_whole_range(large, 100 * MIB + 1);
    free_in_world(large, A);
    for (size_t at = 0; at <= 100 * MIB; at += 7 * MIB)
        expect_no_range(large + at);
}

CASE("each world", 60, start_world_device, NULL);

TEST_EACH(WORLDS, which_block_an_address_is_in) {
    unsigned char host = 0, *block;
    CUdeviceptr foreign;

    begin_misuse(_i);
    EXPECT(WEIR_E_INVALID, weir_block_range(NULL, witness[0], NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_block_range(a, NULL, NULL, NULL));
    if (is_bare_pool(_i)) {
        EXPECT(WEIR_E_NOT_SUPPORTED, weir_block_range(a, witness[0], NULL, NULL));
        end_misuse();
        return;
    }
    CU(driver->cuMemAlloc(&foreign, MIB));
    expect_no_range((void *)(uintptr_t)foreign);
    expect_no_range((void *)(uintptr_t)(foreign + MIB - 1));
    expect_no_range(&host);
    CU(driver->cuMemFree(foreign));
    for (int i = 0; i < WITNESSES; i++)
        expect_whole_range(witness[i], size_of(i));
    for (size_t bytes = 1; bytes <= 3 * MIB; bytes *= 3) {
        block = alloc_in_world(bytes, A);
        expect_whole_range(block, bytes);
        if (worlds[_i].kind != KIND_DIRECT && bytes % 256 != 0)
            expect_no_range(block + bytes); /* the padding is not part of the block */
        free_in_world(block, A);
        expect_no_range(block);
        expect_no_range(block + bytes / 2);
    }
    large_blocks();
    MUST_EQ(lines(), 0);
    end_misuse();
}

/* Guards belong to no block. */
TEST_EACH(WORLDS, which_hardened_block_an_address_is_in) {
    weir_options options = options_of_world(_i, 512 * MIB);
    unsigned char *block;

    options.harden = WEIR_HARDEN_GUARD | WEIR_HARDEN_POISON;
    OK(weir_allocator_create(&options, &a));
    for (size_t bytes = 1; bytes <= 3 * MIB; bytes *= 5) {
        block = alloc_in_world(bytes, A);
        if (is_bare_pool(_i)) {
            EXPECT(WEIR_E_NOT_SUPPORTED, weir_block_range(a, block, NULL, NULL));
        } else {
            expect_whole_range(block, bytes);
            expect_no_range(block - 1);
            expect_no_range(block + bytes);
            free_in_world(block, A);
            expect_no_range(block); /* is on a shelf */
            block = NULL;
        }
        free_in_world(block, A);
    }
    MUST_EQ(lines(), 0);
    CU(driver->cuCtxSynchronize());
    OK(weir_allocator_destroy(a));
}
