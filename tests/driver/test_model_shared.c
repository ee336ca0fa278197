/* SPDX-License-Identifier: MIT */
/* test_model_shared.c: modelled devices whose memory several processes share. */
#include "tests/fixtures/holder.h"
#include "driver/model/model_shared.h"
#include "tests/fixtures/model_device.h"

enum { PROCESSES = 4, ROUNDS = 3000 };

#define CAPACITY (1000 * MIB)

static char file[] = "/tmp/weir-shared-XXXXXX";

static void create_shared_file(void) {
    int made = mkstemp(file);

    ck_assert_int_ge(made, 0);
    close(made);
    ck_assert_int_eq(setenv("WEIR_MODEL_SHARED", file, 1), 0);
}

static void remove_shared_file(void) {
    (void)unlink(file);
}

static int take_shared(uint64_t bytes) {
    return weir__model_shared_join() == 0 && weir__model_shared_alloc(0, CAPACITY, bytes) == 0;
}

/* Expects that memory of killed processes is free within a second. */
static void expect_free(size_t bytes) {
    int i;

    for (i = 0; i < 1000 && device_free() != bytes; i++)
        sleep_for_ns(1000000);
    ck_assert_uint_eq(device_free(), bytes);
}

CASE("shared", 30, create_shared_file, remove_shared_file);

TEST(test_all_processes_share_one_capacity) {
    pid_t other;

    start_model(CAPACITY);
    ck_assert(weir__model_shared_is());
    ck_assert_uint_eq(device_free(), CAPACITY);
    other = holder(take_shared, 600 * MIB);
    ck_assert_uint_eq(device_free(), 400 * MIB);
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 401 * MIB), -1);
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 400 * MIB), 0);
    weir__model_shared_free(0, 400 * MIB);
    end_holder(other, SIGKILL);
    expect_free(CAPACITY);
}

/* A dead process has no memory, even before it is reaped. */
TEST(test_a_zombie_has_nothing) {
    pid_t other;

    start_model(CAPACITY);
    other = holder(take_shared, 600 * MIB);
    ck_assert_int_eq(kill(other, SIGKILL), 0);
    expect_free(CAPACITY);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
}

TEST(test_a_stopped_one_keeps_and_holds_up_nobody) {
    pid_t other;

    start_model(CAPACITY);
    other = holder(take_shared, 600 * MIB);
    ck_assert_int_eq(kill(other, SIGSTOP), 0);
    ck_assert_uint_eq(device_free(), 400 * MIB);
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 400 * MIB), 0);
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, 1), -1);
    end_holder(other, SIGKILL);
    expect_free(CAPACITY);
}

TEST(test_every_kind_of_memory_counts) {
    CUmemAllocationProp physical = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemPoolProps in_pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    CUdeviceptr block, other_block;
    pid_t other;

    start_model(CAPACITY);
    CU(driver->cuMemPoolCreate(&pool, &in_pool));
    other = holder(take_shared, 900 * MIB);
    ck_assert_uint_eq(driver->cuMemAlloc(&block, 101 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_uint_eq(driver->cuMemCreate(&handle, 102 * MIB, &physical, 0),
                      CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_uint_eq(driver->cuMemAllocFromPoolAsync(&block, 128 * MIB, pool, A),
                      CUDA_ERROR_OUT_OF_MEMORY);
    ck_assert_uint_eq(device_free(), 100 * MIB); /* synchronizing frees the pool's attempt */
    CU(driver->cuMemAlloc(&block, 20 * MIB));
    CU(driver->cuMemCreate(&handle, 20 * MIB, &physical, 0));
    CU(driver->cuMemAllocFromPoolAsync(&other_block, 32 * MIB, pool, A));
    ck_assert_uint_eq(device_free(), 28 * MIB);
    check_model();
    CU(driver->cuMemFree(block));
    CU(driver->cuMemRelease(handle));
    ck_assert_uint_eq(device_free(), 68 * MIB);
    end_holder(other, SIGKILL);
    expect_free(968 * MIB);
    check_model();
}

/* The sum of all processes' memory, which they count themselves, never exceeds the capacity. */
TEST(test_many_processes_never_exceed_the_capacity) {
    _Atomic uint64_t *sum =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[PROCESSES];
    int status;

    ck_assert_ptr_ne((void *)sum, MAP_FAILED);
    ck_assert_int_eq(weir__model_shared_join(), 0);
    for (int p = 0; p < PROCESSES; p++) {
        pids[p] = fork();
        if (pids[p] != 0)
            continue;
        if (weir__model_shared_join() != 0)
            _exit(2);
        for (int i = 0; i < ROUNDS; i++) {
            uint64_t bytes = (uint64_t)(200 + 37 * ((i + p) % 7)) * MIB;

            if (weir__model_shared_alloc(0, CAPACITY, bytes) != 0)
                continue;
            if (atomic_fetch_add(sum, bytes) + bytes > CAPACITY)
                _exit(3);
            if (i % 64 == 0)
                sleep_for_ns(1000);
            atomic_fetch_sub(sum, bytes);
            weir__model_shared_free(0, bytes);
        }
        _exit(0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        ck_assert_int_eq(waitpid(pids[p], &status, 0), pids[p]);
        ck_assert_int_eq(status, 0);
    }
    start_model(CAPACITY);
    expect_free(CAPACITY);
    ck_assert_int_eq(weir__model_shared_alloc(0, CAPACITY, CAPACITY), 0);
}

TEST(test_no_model_opens_without_its_file) {
    struct weir_driver_failure failure = {""};

    ck_assert_int_eq(setenv("WEIR_MODEL_SHARED", "/nonexistent/file", 1), 0);
    ck_assert_int_eq(weir__model_reset(&(struct weir_model_setup){.failure = &failure}), -1);
    ck_assert_ptr_nonnull(strstr(failure.text, "WEIR_MODEL_SHARED"));
}

TEST(test_a_file_of_somebody_else_is_left_alone) {
    static const char *const texts[] = {"\n", "my thesis\n", "weirmod0, and more\n"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct weir_driver_failure failure = {""};
        char read[64] = "";
        FILE *stream = fopen(file, "w");

        ck_assert(stream && fputs(texts[i], stream) >= 0 && fclose(stream) == 0);
        ck_assert_int_eq(weir__model_reset(&(struct weir_model_setup){.failure = &failure}), -1);
        ck_assert_ptr_nonnull(strstr(failure.text, "WEIR_MODEL_SHARED"));
        ck_assert_ptr_nonnull(strstr(failure.text, file));
        ck_assert_ptr_nonnull(strstr(failure.text, "something else in it"));
        stream = fopen(file, "r");
        ck_assert_ptr_nonnull(stream);
        ck_assert_uint_eq(fread(read, 1, sizeof read - 1, stream), strlen(texts[i]));
        ck_assert_str_eq(read, texts[i]);
        ck_assert_int_eq(fclose(stream), 0);
    }
}

SUITE("model_shared", CK_FORK);
