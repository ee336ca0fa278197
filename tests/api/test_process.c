/* SPDX-License-Identifier: MIT */
/* test_process.c: the allocators of the process, one for each device, on modelled devices. */
#include <dlfcn.h>
#include <link.h>
#include <semaphore.h>
#include <sys/syscall.h>

#include "api/allocator_internal.h"
#include "api/drop_in.h"
#include "tests/fixtures/logged.h"
#include "driver/model/model_inside.h"
#include "tests/fixtures/model_device.h"
#include "tests/fixtures/refuse.h"

enum { DEVICES = 3, MOST = 4, THREADS = 8 };

static CUcontext context_of[MOST];
static CUstream stream_of[MOST];

static void begin_with_devices(int devices, const char *device) {
    CUcontext popped;

    setenv("WEIR_DEVICE", device, 1);
    start_model(8 * GIB);
    ANSWERS(0,
            weir__model_reset(&(struct weir_model_setup){.devices = devices, .capacity = 8 * GIB}));
    for (int i = 0; i < devices; i++) {
        CU(driver->cuDevicePrimaryCtxRetain(&context_of[i], i));
        CU(driver->cuCtxPushCurrent(context_of[i]));
        CU(driver->cuStreamCreate(&stream_of[i], CU_STREAM_NON_BLOCKING));
        CU(driver->cuCtxPopCurrent(&popped));
    }
}

static weir_allocator *of(int device) {
    weir_allocator *a = NULL;

    OK(weir_device_allocator(device, &a));
    MUST(a != NULL);
    return a;
}

static weir_allocator *for_stream(weir_stream stream) {
    weir_allocator *a = NULL;

    OK(weir_stream_allocator(stream, &a));
    return a;
}

/* Returns the bytes of device memory in use. */
static uint64_t used_on(int device) {
    size_t free_bytes, total;
    CUcontext popped;

    CU(driver->cuCtxPushCurrent(context_of[device]));
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    CU(driver->cuCtxPopCurrent(&popped));
    return total - free_bytes;
}

CASE("process", 30, NULL, NULL);

TEST(each_device_has_one) {
    weir_allocator *a = NULL;
    void *block;

    begin_with_devices(DEVICES, "model:1");
    OK(weir_default_allocator(&a));
    MUST(a == of(1) && of(0) != a && of(2) != a && of(0) != of(2));
    MUST(of(0) == of(0) && of(2) == of(2));
    for (int i = 0; i < DEVICES; i++) {
        uint64_t before = used_on(i);

        OK(weir_alloc(of(i), 40 * MIB, stream_of[i], &block));
        MUST_LE(before + 40 * MIB, used_on(i));
        EXPECT(WEIR_E_STREAM, weir_alloc(of(i), MIB, stream_of[(i + 1) % DEVICES], &block));
        MUST_EQ(stats_of(of(i)).blocks, 1);
    }
}

TEST(the_environment_holds_for_each) {
    void *block;

    setenv("WEIR_LIMIT", "96MiB", 1);
    setenv("WEIR_PREALLOC", "64MiB", 1);
    begin_with_devices(2, "model");
    for (int i = 0; i < 2; i++) {
        MUST_EQ(stats_of(of(i)).reserved, 0); /* nothing before the first request */
        OK(weir_alloc(of(i), MIB, stream_of[i], &block));
        MUST_EQ(stats_of(of(i)).prealloc_got, 64 * MIB);
        EXPECT(WEIR_E_LIMIT, weir_alloc(of(i), 100 * MIB, stream_of[i], &block));
        setenv("WEIR_LIMIT", "32MiB", 1); /* not read any more */
    }
}

TEST(what_is_wrong_is_told) {
    weir_allocator *a = NULL;

    begin_with_devices(2, "model");
    EXPECT(WEIR_E_INVALID, weir_device_allocator(0, NULL));
    EXPECT(WEIR_E_INVALID, weir_device_allocator(-1, &a));
    EXPECT(WEIR_E_INVALID, weir_stream_allocator(NULL, NULL));
    EXPECT(WEIR_E_INVALID, weir_block_allocator(&a, NULL));
    EXPECT(WEIR_E_INVALID, weir_block_allocator(NULL, &a));
    EXPECT(WEIR_E_NOT_OWNED, weir_block_allocator(&a, &a));
    EXPECT(WEIR_E_NO_DEVICE, weir_device_allocator(2, &a));
    EXPECT(WEIR_E_NO_DEVICE, weir_device_allocator(63, &a));
    EXPECT(WEIR_E_NO_DEVICE, weir_device_allocator(64, &a));
    setenv("WEIR_LIMIT", "much", 1);
    MUST(freopen("/dev/null", "w", stderr) != NULL);
    EXPECT(WEIR_E_PARSE, weir_device_allocator(1, &a));
    EXPECT(WEIR_E_PARSE, weir_stream_allocator(stream_of[1], &a));
    MUST(a == NULL);
    unsetenv("WEIR_LIMIT"); /* read until an allocator exists */
    OK(weir_device_allocator(1, &a));
    EXPECT(WEIR_E_NO_DEVICE, weir_device_allocator(2, &a));
}

static void *ask_for_allocators(void *given) {
    weir_allocator **a = given;

    for (int i = 0; i < DEVICES; i++)
        if (weir_device_allocator(i, &a[i]) != WEIR_OK)
            a[i] = NULL;
    return NULL;
}

TEST(threads_get_the_same) {
    weir_allocator *got[THREADS][DEVICES];

    begin_with_devices(DEVICES, "model");
    run_threads(THREADS, ask_for_allocators, got, sizeof *got);
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < DEVICES; i++)
            MUST(got[t][i] != NULL && got[t][i] == of(i));
}

TEST(a_stream_has_the_one_of_its_device) {
    CUcontext popped;

    begin_with_devices(DEVICES, "model:2");
    /* A default stream belongs to the current context.  No context is current at first. */
    MUST(for_stream(NULL) == of(2));
    for (int i = 0; i < DEVICES; i++) {
        MUST(for_stream(stream_of[i]) == of(i));
        CU(driver->cuCtxPushCurrent(context_of[i]));
        for (uintptr_t handle = 0; handle <= 2; handle++)
            MUST(for_stream((weir_stream)handle) == of(i));
        MUST(for_stream(stream_of[(i + 1) % DEVICES]) == of((i + 1) % DEVICES));
        CU(driver->cuCtxPopCurrent(&popped));
    }
}

/* A query must not make a context on an unused device, which would take memory there. */
TEST(a_question_makes_nothing) {
    uint64_t gets = weir__model_calls(WEIR_ENTRY_cuDevicePrimaryCtxRetain);

    begin_with_devices(DEVICES, "model");
    gets = weir__model_calls(WEIR_ENTRY_cuDevicePrimaryCtxRetain);
    MUST(for_stream(stream_of[1]) == of(1));
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuDevicePrimaryCtxRetain), gets + 1);
    /* Later queries only look up the stream's context. */
    gets = weir__model_calls(WEIR_ENTRY_cuCtxPushCurrent);
    MUST(for_stream(stream_of[1]) == of(1));
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuCtxPushCurrent), gets);
}

TEST(with_one_device_nothing_is_asked) {
    uint64_t gets, currents;

    begin_with_devices(1, "model");
    MUST(for_stream(stream_of[0]) == of(0));
    gets = weir__model_calls(WEIR_ENTRY_cuStreamGetCtx);
    currents = weir__model_calls(WEIR_ENTRY_cuCtxGetDevice);
    MUST(for_stream(stream_of[0]) == of(0) && for_stream(NULL) == of(0));
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuStreamGetCtx), gets);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuCtxGetDevice), currents);
}

TEST(a_trim_of_the_process_is_one_of_all_devices) {
    weir_process_memory memory = {.size = sizeof memory}, none = {.size = 0};
    weir_options o;
    weir_allocator *own;
    void *block, *kept;
    uint64_t used, live = 32 * MIB;

    begin_with_devices(2, "model");
    weir_options_init(&o);
    OK(weir_options_from_env(&o, NULL, 0));
    OK(weir_allocator_create(&o, &own)); /* on device 0, beside the process's allocator */
    EXPECT(WEIR_E_INVALID, weir_process_trim(NULL));
    EXPECT(WEIR_E_INVALID, weir_process_trim(&none));
    for (int i = 0; i < 2; i++) {
        OK(weir_alloc(of(i), GIB, stream_of[i], &block));
        OK(weir_alloc(of(i), live, stream_of[i], &kept));
        OK(weir_free(of(i), block, stream_of[i]));
    }
    OK(weir_alloc(own, GIB, stream_of[0], &block));
    OK(weir_free(own, block, stream_of[0]));
    used = used_on(0) + used_on(1);
    OK(weir_process_trim(&memory));
    MUST_EQ(memory.size, sizeof memory);
    MUST_EQ(memory.in_use, 2 * live);
    MUST_EQ(memory.released, used - used_on(0) - used_on(1));
    MUST_LE(3 * GIB, memory.released);
    MUST_LE(memory.reserved, 2 * live + 128 * MIB);
    weir__drop_in_mark_lost(of(1));
    OK(weir_process_trim(&memory)); /* lost memory does not count */
    MUST_EQ(memory.in_use, live);
    MUST_EQ(memory.released, 0);
    OK(weir_allocator_destroy(own));
}

TEST(a_driver_that_refuses_is_told) {
    weir_allocator *a = NULL;

    begin_with_devices(2, "model");
    weir__model_fail(WEIR_ENTRY_cuStreamGetCtx, 1, CUDA_ERROR_INVALID_HANDLE, 0);
    EXPECT(WEIR_E_STREAM, weir_stream_allocator(stream_of[1], &a));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_INVALID_HANDLE);
    weir__model_fail(WEIR_ENTRY_cuCtxGetDevice, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_stream_allocator(NULL, &a));
    weir__model_fail(WEIR_ENTRY_cuDevicePrimaryCtxRetain, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_device_allocator(1, &a));
    MUST(a == NULL);
    OK(weir_device_allocator(1, &a)); /* a later call tries again */
}

TEST(device_0_is_served_if_devices_cannot_be_counted) {
    begin_with_devices(2, "model");
    weir__model_fail(WEIR_ENTRY_cuDeviceGetCount, 1, CUDA_ERROR_UNKNOWN, 0);
    MUST(for_stream(stream_of[0]) == of(0)); /* device 0 always exists */
    MUST(of(1) != of(0));
}

/* The stream's device has no allocator yet, and its context cannot be entered. */
TEST(an_error_of_a_context_is_returned) {
    weir_allocator *a = NULL;

    begin_with_devices(2, "model");
    (void)of(0);
    weir__model_fail(WEIR_ENTRY_cuCtxPushCurrent, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_stream_allocator(stream_of[1], &a));
    MUST_EQ(weir_last_driver_result(), CUDA_ERROR_UNKNOWN);
    weir__model_fail(WEIR_ENTRY_cuCtxGetDevice, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(WEIR_E_DRIVER, weir_stream_allocator(stream_of[1], &a));
    MUST(a == NULL && for_stream(stream_of[1]) == of(1));
}

TEST(a_missing_device_is_refused) {
    weir_allocator *a = NULL;

    MUST(freopen("/dev/null", "w", stderr) != NULL);
    setenv("WEIR_DEVICE", "model:64", 1);
    EXPECT(WEIR_E_NO_DEVICE, weir_default_allocator(&a));
    if (dlopen("libcuda.so.1", RTLD_LAZY) == NULL) {
        setenv("WEIR_DEVICE", "cuda", 1);
        EXPECT(WEIR_E_NO_DEVICE, weir_default_allocator(&a));
    }
    MUST(a == NULL);
}

/* The line lists the variables that are set, except those that cannot cause a failure. */
TEST(why_a_device_has_none_is_told) {
    weir_allocator *a = NULL;

    setenv("WEIR_LOG", "warning", 1);
    setenv("WEIR_PREALLOC", "200GiB", 1);
    begin_with_devices(1, "model");
    catch_log();
    EXPECT(WEIR_E_NO_MEMORY, weir_device_allocator(0, &a));
    expect_lines(__LINE__, 1);
    MUST(strstr(logged, "; set are WEIR_PREALLOC '200GiB', WEIR_DEVICE 'model'\n"));
}

#ifdef CAN_REFUSE_HOST_MEMORY
/* weir logs the failure even if the host has no memory for the reason. */
TEST(a_process_without_memory_is_told) {
    weir_status status = WEIR_E_PARSE;
    weir_allocator *a = NULL;

    begin_with_devices(1, "model");
    catch_log();
    for (uint64_t k = 1; status == WEIR_E_PARSE; k++) { /* variables are read first */
        refuse_in = k;
        status = weir_device_allocator(0, &a);
        (void)lines();
    }
    EXPECT(WEIR_E_HOST_MEMORY, status);
    MUST(strstr(logged, "weir: error: model:0 has no allocator: out of host memory; set are "));
    OK(weir_device_allocator(0, &a));
}
#endif

/* The failure is logged once in the default log, and as often as the log setting wants otherwise. */
TEST_EACH(3, what_cannot_be_preallocated_is_said) {
    static const char *const logs[] = {NULL, "none", "error"};
    static const int said[][2] = {{1, 0}, {0, 0}, {1, 1}};
    CUcontext popped;
    CUdeviceptr hoard;
    void *block = NULL;

    setenv("WEIR_PREALLOC_MIN", "7GiB", 1);
    if (logs[_i])
        setenv("WEIR_LOG", logs[_i], 1);
    begin_with_devices(1, "model");
    CU(driver->cuCtxPushCurrent(context_of[0]));
    CU(driver->cuMemAlloc(&hoard, 2 * GIB));
    CU(driver->cuCtxPopCurrent(&popped));
    catch_log();
    for (int i = 0; i < 2; i++) {
        EXPECT(WEIR_E_NO_MEMORY, weir_alloc(of(0), MIB, stream_of[0], &block));
        expect_lines(__LINE__, said[_i][i]);
    }
}

TEST_EACH(2, a_block_has_the_one_that_made_it) {
    static const size_t sizes[] = {1, 300 * KIB, 20 * MIB};
    unsigned char *blocks[DEVICES][3];
    weir_allocator *a = NULL;

    setenv("WEIR_ENGINE", _i ? "bfc" : "pool", 1);
    begin_with_devices(DEVICES, "model");
    OK(weir_alloc(of(2), MIB, stream_of[2], (void **)&blocks[0][0]));
    OK(weir_block_allocator(blocks[0][0], &a));
    MUST(a == of(2));
    OK(weir_block_allocator(&a, &a)); /* the only allocator is not queried */
    for (int i = 0; i < DEVICES; i++)
        for (int k = 0; k < 3; k++)
            OK(weir_alloc(of(i), sizes[k], stream_of[i], (void **)&blocks[i][k]));
    for (int i = 0; i < DEVICES; i++)
        for (int k = 0; k < 3; k++) {
            OK(weir_block_allocator(blocks[i][k] + sizes[k] / 2, &a));
            MUST(a == of(i));
            OK(weir_free(a, blocks[i][k], stream_of[i]));
            EXPECT(WEIR_E_NOT_OWNED, weir_block_allocator(blocks[i][k], &a));
        }
    EXPECT(WEIR_E_NOT_OWNED, weir_block_allocator(&a, &a));
}

TEST(without_records_it_cannot_be_told) {
    weir_allocator *a = NULL;
    void *block;

    setenv("WEIR_CACHE", "off", 1);
    setenv("WEIR_ENGINE", "pool", 1); /* arenas know their blocks */
    begin_with_devices(2, "model");
    OK(weir_alloc(of(1), MIB, stream_of[1], &block));
    OK(weir_block_allocator(block, &a));
    MUST(a == of(1));
    (void)of(0);
    EXPECT(WEIR_E_NOT_SUPPORTED, weir_block_allocator(block, &a));
}

static int child_has_no_allocators(void) {
    weir_allocator *a = NULL;

    return weir_device_allocator(0, &a) == WEIR_E_FORKED &&
           weir_device_allocator(1, &a) == WEIR_E_FORKED &&
           weir_stream_allocator(NULL, &a) == WEIR_E_FORKED &&
           weir_block_allocator(&a, &a) == WEIR_E_FORKED && a == NULL;
}

TEST(a_forked_child_gets_no_process_allocator) {

    begin_with_devices(2, "model");
    (void)of(0);
    if (is_forked_child())
        _exit(child_has_no_allocators() ? 0 : 1);
}

/* ---- a fork while another thread is about to make the first allocator */

static sem_t logs, may_log;
static atomic_int holds_lines;

/* Replaces write in the library's log.  The line of a thread that makes an allocator waits for the test. */
ssize_t write(int file, const void *bytes, size_t count) {
    if (file == STDERR_FILENO && atomic_exchange(&holds_lines, 0)) {
        sem_post(&logs);
        while (sem_wait(&may_log) != 0)
            ;
    }
    return syscall(SYS_write, file, bytes, count);
}

static void *expect_no_default(void *unused) {
    weir_allocator *a = NULL;

    EXPECT(WEIR_E_PARSE, weir_default_allocator(&a));
    return unused;
}

TEST(a_child_born_before_the_first_was_made_is_refused) {
    int status = -1;
    pthread_t thread;
    pid_t child;

    setenv("WEIR_LIMIT", "much", 1);
    MUST(sem_init(&logs, 0, 0) == 0 && sem_init(&may_log, 0, 0) == 0);
    holds_lines = 1;
    MUST(pthread_create(&thread, NULL, expect_no_default, NULL) == 0);
    while (sem_wait(&logs) != 0)
        ;
    child = fork();
    MUST(child >= 0);
    if (child == 0) {
        alarm(10); /* limits a wait for a lock that has no owner */
        _exit(child_has_no_allocators() ? 0 : 1);
    }
    sem_post(&may_log);
    MUST(pthread_join(thread, NULL) == 0);
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (is_forked_child()) {
        expect_no_default(NULL);
        _exit(0);
    }
}

/* ---- engines ---- */

static void expect_engine(int device, int engine) {
    MUST_EQ(of(device)->options.engine, engine);
}

TEST(nobody_names_an_engine) {
    begin_with_devices(2, "model");
    expect_engine(0, WEIR_ENGINE_MAPPED);
    expect_engine(1, WEIR_ENGINE_MAPPED);
}

/* weir does not preallocate for JAX, unless JAX uses CUDA's pools. */
TEST_EACH(2, what_a_framework_preallocates_is_its_own) {
    void *block;

    setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".5", 1);
    if (_i)
        setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async", 1);
    begin_with_devices(1, "model");
    OK(weir_alloc(of(0), MIB, stream_of[0], &block));
    MUST_EQ(stats_of(of(0)).prealloc_asked, _i ? 4 * GIB : 0);
}

static const struct {
    const char *name, *value;
    int engine;
} named[] = {
    {"WEIR_ENGINE", "pool", WEIR_ENGINE_POOL},
    {"WEIR_ENGINE", "direct", WEIR_ENGINE_DIRECT},
    {"WEIR_ENGINE", "mapped", WEIR_ENGINE_MAPPED},
    {"WEIR_ENGINE", "bfc", WEIR_ENGINE_BFC},
    {"WEIR_ENGINE", "bfc-fixed", WEIR_ENGINE_BFC_FIXED},
    /* these choose where a framework takes its memory, not an engine */
    {"TF_GPU_ALLOCATOR", "cuda_malloc_async", WEIR_ENGINE_MAPPED},
    {"TF_FORCE_GPU_ALLOW_GROWTH", "true", WEIR_ENGINE_MAPPED},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async", WEIR_ENGINE_MAPPED},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "platform", WEIR_ENGINE_MAPPED},
    {"WEIR_RELEASE_THRESHOLD", "0", WEIR_ENGINE_MAPPED},
};

TEST_EACH(ROWS(named), what_is_named_is_had) {
    setenv(named[_i].name, named[_i].value, 1);
    begin_with_devices(1, "model");
    expect_engine(0, named[_i].engine);
}

/* The device cannot map, or has no addresses left.  Each device is tried separately. */
TEST_EACH(3, a_device_without_addresses_gets_the_pool) {
    static const struct {
        enum weir_driver_entry entry;
        CUresult result;
    } failed_requests[] = {
        {WEIR_ENTRY_cuMemAddressReserve, CUDA_ERROR_OUT_OF_MEMORY},
        {WEIR_ENTRY_cuMemAddressReserve, CUDA_ERROR_NOT_SUPPORTED},
        {WEIR_ENTRY_cuDeviceGetAttribute, CUDA_ERROR_INVALID_VALUE},
    };
    void *block;

    begin_with_devices(2, "model");
    weir__model_fail(failed_requests[_i].entry, 1, failed_requests[_i].result,
                     failed_requests[_i].entry == WEIR_ENTRY_cuMemAddressReserve);
    expect_engine(0, WEIR_ENGINE_POOL);
    OK(weir_alloc(of(0), MIB, stream_of[0], &block));
    weir__model_faults_clear();
    expect_engine(1, WEIR_ENGINE_MAPPED);
}

static void expect_choice(const struct weir_driver *table, int on, int engine) {
    static const char *const names[] = {"model:0", "model:1"};
    weir_allocator *a = NULL;
    weir_options options;

    weir_options_init(&options);
    options.device = names[on];
    OK(weir__allocator_create_on(table, &options, &a, NULL, 0));
    MUST_EQ(a->options.engine, engine);
    OK(weir_allocator_destroy(a));
}

static CUresult cannot_map(int *value, CUdevice_attribute attribute, CUdevice on) {
    *value = 0;
    return attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
               ? CUDA_SUCCESS
               : driver->cuDeviceGetAttribute(value, attribute, on);
}

/* If the device or its driver cannot map, weir does not try. */
TEST_EACH(2, a_device_that_cannot_map_gets_the_pool) {
    struct weir_driver table;

    begin_with_devices(1, "model");
    table = *driver;
    if (_i == 0)
        table.cuDeviceGetAttribute = cannot_map;
    else
        table.capabilities &= ~(unsigned)WEIR_CAP_VIRTUAL;
    expect_choice(&table, 0, WEIR_ENGINE_POOL);
    expect_choice(driver, 0, WEIR_ENGINE_MAPPED);
}

/* weir does not ask again for addresses that were out.  Memory that was lost with a context keeps its addresses. */
TEST(addresses_that_are_out_stay_out) {
    uint64_t reserves;

    begin_with_devices(2, "model");
    weir__model_fail(WEIR_ENTRY_cuMemAddressReserve, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    expect_choice(driver, 0, WEIR_ENGINE_POOL);
    weir__model_faults_clear();
    reserves = weir__model_calls(WEIR_ENTRY_cuMemAddressReserve);
    expect_choice(driver, 0, WEIR_ENGINE_POOL);
    MUST_EQ(weir__model_calls(WEIR_ENTRY_cuMemAddressReserve), reserves);
    expect_choice(driver, 1, WEIR_ENGINE_MAPPED);
}

/* A lack of memory for both engines does not mean a lack of addresses. */
TEST(a_lack_of_memory_is_no_lack_of_addresses) {
    weir_allocator *a = NULL;
    weir_options options;

    begin_with_devices(1, "model");
    weir_options_init(&options);
    options.device = "model";
    weir__model_fail(WEIR_ENTRY_cuMemAddressReserve, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    weir__model_fail(WEIR_ENTRY_cuMemPoolCreate, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    EXPECT(WEIR_E_NO_MEMORY, weir__allocator_create_on(driver, &options, &a, NULL, 0));
    MUST(a == NULL);
    weir__model_faults_clear();
    expect_choice(driver, 0, WEIR_ENGINE_MAPPED);
}

/* weir reports a mistake in the settings for the first engine. */
TEST(wrong_settings_are_reported_for_the_first_engine) {
    weir_allocator *a = NULL;

    setenv("WEIR_PEERS", "7", 1);
    begin_with_devices(2, "model");
    EXPECT(WEIR_E_NO_DEVICE, weir_device_allocator(0, &a));
    setenv("WEIR_PEERS", "none", 1);
    setenv("WEIR_PREALLOC", "64GiB", 1);
    EXPECT(WEIR_E_NO_MEMORY, weir_device_allocator(0, &a));
    unsetenv("WEIR_PREALLOC");
    expect_engine(0, WEIR_ENGINE_MAPPED);
}

/* Frameworks capture like this.  A request in a capture belongs to the graph. */
TEST(captured_requests_are_served) {
    CUgraphExec exec;
    CUgraph graph;
    void *block;

    begin_with_devices(2, "model");
    CU(driver->cuStreamBeginCapture(stream_of[1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(weir_alloc(for_stream(stream_of[1]), MIB, stream_of[1], &block));
    CU(driver->cuStreamEndCapture(stream_of[1], &graph));
    CU(driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(driver->cuGraphLaunch(exec, stream_of[1]));
    OK(weir_free(of(1), block, stream_of[1]));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(of(1), block, stream_of[1]));
    EXPECT(WEIR_E_NOT_OWNED, weir_free(of(0), block, stream_of[0]));
    MUST_EQ(stats_of(of(1)).blocks, 0);
    CU(driver->cuGraphExecDestroy(exec));
    CU(driver->cuGraphDestroy(graph));
}

/* Each device saves a profile when the process ends, unless it has no profile or is lost. */
TEST(each_saves_its_profile_at_exit) {
    char folder[] = "/tmp/weir-process-XXXXXX", command[128];

    MUST(mkdtemp(folder) != NULL);
    if (is_forked_child()) {
        void *block;

        setenv("WEIR_PROFILE", folder, 1);
        setenv("WEIR_ENGINE", "pool", 1); /* Valgrind lacks addresses for four mapped ranges */
        begin_with_devices(4, "model");
        for (int i = 0; i < 4; i++) {
            if (i == 2)
                weir__model_fail(WEIR_ENTRY_cuDeviceGetName, 1, CUDA_ERROR_UNKNOWN, 0);
            if (weir_alloc(of(i), 50 * MIB, stream_of[i], &block) != WEIR_OK)
                _exit(1);
        }
        weir__model_fail_any(1, 0, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
        if (weir_trim(of(3), 0, NULL) != WEIR_E_DEVICE_LOST)
            _exit(2);
        weir__model_faults_clear();
        exit(0);
    }
    snprintf(command, sizeof command, "test $(ls %s | wc -l) -eq 2; c=$?; rm -r %s; exit $c",
             folder, folder);
    ANSWERS(0, system(command));
}

static void *alloc_50_mib(void *unused) {
    void *block;

    (void)!weir_alloc(of(0), 50 * MIB, stream_of[0], &block);
    return unused;
}

/* The process ends without a profile if a driver does not answer, or if a thread does not release an allocator's lock. */
TEST_EACH(2, who_hangs_is_not_waited_for_at_exit) {
    char folder[] = "/tmp/weir-process-XXXXXX", command[128];

    catch_log();
    MUST(mkdtemp(folder) != NULL);
    if (is_forked_child()) {
        pthread_t thread;
        void *block;

        setenv("WEIR_PROFILE", folder, 1);
        setenv("WEIR_ENGINE", _i ? "bfc" : "pool", 1); /* the driver has the figures of a pool */
        setenv("WEIR_LOG", "info", 1);
        begin_with_devices(1, "model");
        if (weir_alloc(of(0), 5 * MIB, stream_of[0], &block) != WEIR_OK)
            _exit(1);
        (void)alarm(15); /* ends a process that hangs */
        if (_i) {
            sem_init(&logs, 0, 0);
            sem_init(&may_log, 0, 0);
            atomic_store(&holds_lines, 1); /* growth logs under the lock */
            if (pthread_create(&thread, NULL, alloc_50_mib, NULL) != 0 || sem_wait(&logs) != 0)
                _exit(2);
        } else {
            weir__model_lock();
        }
        exit(0);
    }
    (void)lines();
    ck_assert_msg(strstr(logged, "kept a profile from being saved within 5 s") != NULL, "%s",
                  logged);
    snprintf(command, sizeof command, "rmdir %s", folder); /* the folder is empty */
    ANSWERS(0, system(command));
}

/* Finds the mathematics library, which all programs of the suite have. */
static int find_library(struct dl_phdr_info *object, size_t bytes, void *path) {
    (void)bytes;
    if (!strstr(object->dlpi_name, "/libm.so"))
        return 0;
    snprintf(path, 200, "%s", object->dlpi_name);
    return 1;
}

/* Loads any library under the name of the preload. */
static int load_preload(void) {
    char folder[] = "/tmp/weir-process-XXXXXX", command[512], path[64], from[200];
    void *library;

    if (!dl_iterate_phdr(find_library, from))
        return 0;
    MUST(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/libweir-preload.so", folder);
    snprintf(command, sizeof command, "cp '%s' %s", from, path);
    library = system(command) == 0 ? dlopen(path, RTLD_NOW) : NULL;
    snprintf(command, sizeof command, "rm -r %s", folder);
    ANSWERS(0, system(command));
    return library != NULL;
}

/* The preload's allocator, which is then beneath this one, has the settings. */
TEST_EACH(2, under_the_preload_it_has_no_reserve_of_its_own) {
    void *block;

    if (!load_preload()) /* musl has no separate library */
        return;
    setenv("WEIR_PREALLOC", "512MiB", 1);
    setenv("WEIR_LIMIT", "1GiB", 1);
    setenv("WEIR_GROWTH", "step:256MiB", 1);
    if (_i)
        setenv("WEIR_ENGINE", "bfc", 1);
    begin_with_devices(1, "model");
    OK(weir_alloc(of(0), MIB, stream_of[0], &block));
    if (_i)
        MUST_EQ(stats_of(of(0)).reserved, 512 * MIB);
    else
        MUST_LE(stats_of(of(0)).reserved, 32 * MIB);
    expect_engine(0, _i ? WEIR_ENGINE_BFC : WEIR_ENGINE_POOL);
    EXPECT(_i ? WEIR_E_LIMIT : WEIR_OK, weir_alloc(of(0), 2 * GIB, stream_of[0], &block));
}

SUITE("process", CK_FORK);
