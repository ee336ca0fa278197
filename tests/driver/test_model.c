/* SPDX-License-Identifier: MIT */
/* test_model.c: the device model against measurements on an H200 and CUDA's documentation.
 *
 * Each test is named after the fact that it checks.  The facts were measured on 2026-11-20 with driver 580.159.04
 * through the driver API, on a private pool with threshold max.  A check of all pools and accounts ends every test. */
#include "test_model.h"

/* --------------------------------------------------------------- devices, contexts ---- */

CASE("devices", 60, set_up_model, check_pools);

TEST(device_is_an_h200_and_says_that_it_is_modelled) {
    char name[64];
    size_t total;
    int value, count;
    CUuuid uuid;

    OK(d->cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 1);
    OK(d->cuDeviceGetName(name, sizeof name, 0));
    ck_assert_str_eq(name, "NVIDIA H200 (device model)");
    OK(d->cuDeviceTotalMem(&total, 0));
    ck_assert_uint_eq(total, 150109880320u);
    ck_assert_uint_eq(free_bytes_now(), 149557477376u);
    OK(d->cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
    ck_assert_int_eq(value, 1);
    OK(d->cuDeviceGetUuid(&uuid, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, d->cuDeviceGetUuid(&uuid, 1));
    ck_assert_int_eq(d->version, 13000);
    ck_assert_str_eq(d->name, "model");
}

TEST(setup_gives_devices_and_capacity) {
    struct weir_model_setup setup = {.devices = 3, .capacity = GIB};
    CUuuid first, third;
    int count;

    ck_assert_int_eq(weir__model_reset(&setup), 0);
    make_objects();
    OK(d->cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 3);
    OK(d->cuDeviceGetUuid(&first, 0));
    OK(d->cuDeviceGetUuid(&third, 2));
    ck_assert(memcmp(&first, &third, sizeof first) != 0);
    ck_assert_uint_eq(free_bytes_now(), GIB);
    setup.devices = 17;
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    OK(d->cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 3);
}

TEST(without_a_context_an_explicit_stream_still_serves_a_pool) {
    CUcontext popped;
    CUdeviceptr block;
    CUstream stream;
    CUevent event;
    size_t bytes;
    unsigned long long id;

    OK(d->cuCtxPopCurrent(&popped));
    ck_assert(popped == context);
    block = alloc(KIB, s);
    free_async(block, t);
    OK(d->cuStreamGetId(s, &id));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuMemAllocFromPoolAsync(&block, KIB, pool, NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuStreamGetId(NULL, &id));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuStreamCreate(&stream, 0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuEventCreate(&event, 0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuMemAlloc(&block, KIB));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuMemGetInfo(&bytes, &bytes));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuCtxPopCurrent(&popped));
    OK(d->cuCtxGetCurrent(&popped));
    ck_assert(popped == NULL);
}

static void *look_at_context(void *current) {
    OK(d->cuCtxGetCurrent(current));
    return NULL;
}

TEST(current_context_is_the_thread_s_own) {
    CUcontext current = context;
    pthread_t thread;

    pthread_create(&thread, NULL, look_at_context, &current);
    pthread_join(thread, NULL);
    ck_assert(current == NULL);
    OK(d->cuCtxGetCurrent(&current));
    ck_assert(current == context);
}

TEST(pool_memory_outlives_the_context_and_streams_do_not) {
    CUdeviceptr block = alloc(KIB, s), direct;
    unsigned long long id;

    OK(d->cuMemAlloc(&direct, KIB));
    OK(d->cuDevicePrimaryCtxRelease(0));
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, d->cuMemAlloc(&direct, KIB));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuStreamGetId(s, &id));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(direct));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuDevicePrimaryCtxRelease(0));
    OK(d->cuDevicePrimaryCtxRetain(&context, 0));
    OK(d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    memset((void *)(uintptr_t)block, 1, KIB);
    free_async(block, s);
}

CASE("bare", 60, NULL, NULL);

TEST(before_init_everything_is_refused) {
    struct weir_driver_failure failure;
    int version, count;

    unsetenv("WEIR_MODEL_DEVICES");
    d = weir__driver_model(&failure);
    OK(d->cuDriverGetVersion(&version));
    ck_assert_int_eq(version, 13000);
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, d->cuDeviceGetCount(&count));
    OK(d->cuInit(0));
    OK(d->cuDeviceGetCount(&count));
}

CASE("devices", 60, set_up_model, check_pools);

TEST(error_names_are_those_of_cuda) {
    const char *name;

    OK(d->cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
    ck_assert_str_eq(name, "CUDA_ERROR_OUT_OF_MEMORY");
    OK(d->cuGetErrorName(CUDA_SUCCESS, &name));
    ck_assert_str_eq(name, "CUDA_SUCCESS");
    OK(d->cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &name)); /* a flag has this value, too */
    ck_assert_str_eq(name, "CUDA_ERROR_INVALID_VALUE");
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGetErrorName(12345, &name));
    ck_assert(name == NULL);
}

/* ---------------------------------------------------------------- streams, events ---- */

CASE("streams", 60, set_up_model, check_pools);

TEST(destroyed_or_foreign_handle_is_invalid) {
    CUstream foreign = (CUstream)(void *)&s;
    CUdeviceptr block = alloc(KIB, s);
    CUstreamCaptureStatus status;
    unsigned long long id;
    CUevent event;

    OK(d->cuStreamDestroy(t));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuStreamGetId(t, &id));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuStreamGetId(foreign, &id));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuStreamIsCapturing(t, &status));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuMemFreeAsync(block, t));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuStreamDestroy(t));
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(d->cuEventDestroy(event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuEventQuery(event));
    free_async(block, s);
}

TEST(stream_is_done_when_its_kernel_is) {
    uint64_t start = model_ticks();

    OK(d->cuStreamQuery(s));
    OK(weir__model_kernel(s, 10 * MS));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
    OK(d->cuStreamQuery(t));
    OK(d->cuStreamSynchronize(s));
    ABOUT(model_ticks() - start, 10 * MS, 1);
    OK(weir__model_kernel(s, 10 * MS));
    d->sleep_ns(11 * MS);
    OK(d->cuStreamQuery(s));
}

static CUresult launch_delay_kernel(CUfunction delay, uint64_t ns, CUstream stream) {
    void *parameters[] = {&ns};

    return d->cuLaunchKernel(delay, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

TEST(delay_kernel_is_played_by_its_name) {
    CUmodule module;
    CUfunction delay;
    uint64_t at;

    reset_to(GIB);
    OK(d->cuModuleLoadData(&module, "any image"));
    EXPECT(CUDA_ERROR_NOT_FOUND, d->cuModuleGetFunction(&delay, module, "another"));
    OK(d->cuModuleGetFunction(&delay, module, "weir_delay"));
    at = model_ticks();
    OK(launch_delay_kernel(delay, 5 * MS, s));
    ck_assert_uint_eq(model_ticks() - at, 3209);
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
    OK(d->cuStreamQuery(t));
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_ge(model_ticks() - at, 5 * MS);
    ck_assert_uint_lt(model_ticks() - at, 5 * MS + MS / 10);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, launch_delay_kernel((CUfunction)(void *)module, MS, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           d->cuLaunchKernel(delay, 0, 1, 1, 1, 1, 1, 0, s, (void *[]){&at}, NULL));
    OK(d->cuModuleUnload(module));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuModuleUnload((CUmodule)(void *)delay));
}

TEST(time_between_events_is_that_of_the_device) {
    CUevent start, end, untimed;
    float ms = 0;

    reset_to(GIB);
    OK(d->cuEventCreate(&start, CU_EVENT_DEFAULT));
    OK(d->cuEventCreate(&end, CU_EVENT_DEFAULT));
    OK(d->cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuEventElapsedTime(&ms, start, end));
    weir__model_advance(MS); /* an idle stream's event is at the time of its record */
    OK(d->cuEventRecord(start, s));
    OK(weir__model_kernel(s, 3 * MS));
    OK(weir__model_kernel(t, 7 * MS));
    OK(d->cuEventRecord(untimed, t));
    OK(d->cuStreamWaitEvent(s, untimed, 0));
    OK(d->cuEventRecord(end, s));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuEventElapsedTime(&ms, start, end));
    OK(d->cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuEventElapsedTime(&ms, untimed, end));
    OK(d->cuEventElapsedTime(&ms, start, end));
    ck_assert(ms >= 7.0F && ms < 7.05F);
}

TEST(work_of_a_destroyed_stream_completes) {
    uint64_t start = model_ticks();

    OK(weir__model_kernel(t, 10 * MS));
    OK(d->cuStreamDestroy(t));
    OK(d->cuCtxSynchronize());
    ABOUT(model_ticks() - start, 10 * MS, 1);
}

TEST(recording_again_overwrites_an_event) {
    CUevent event;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 10 * MS));
    OK(d->cuEventRecord(event, s));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuEventQuery(event));
    OK(d->cuEventRecord(event, t));
    OK(d->cuEventQuery(event));
    OK(d->cuEventDestroy(event));
}

TEST(waiting_stream_is_done_after_the_event) {
    CUevent event;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 10 * MS));
    OK(d->cuEventRecord(event, s));
    OK(weir__model_kernel(s, 50 * MS));
    OK(d->cuStreamWaitEvent(t, event, 0));
    OK(d->cuEventDestroy(event));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(t));
    OK(d->cuStreamSynchronize(t));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
    ck_assert_uint_lt(model_ticks(), 20 * MS);
}

TEST(legacy_stream_and_blocking_streams_wait_for_each_other) {
    CUstream blocking, legacy = (CUstream)WEIR_STREAM_LEGACY_VALUE;
    unsigned long long null_id, legacy_id;
    uint64_t start = model_ticks();

    OK(d->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(weir__model_kernel(blocking, 10 * MS));
    OK(weir__model_kernel(NULL, 10 * MS));
    OK(weir__model_kernel(blocking, 10 * MS));
    OK(weir__model_kernel(s, 10 * MS));
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_lt(model_ticks() - start, 12 * MS);
    OK(d->cuStreamSynchronize(legacy));
    ABOUT(model_ticks() - start, 20 * MS, 1);
    OK(d->cuStreamSynchronize(blocking));
    ABOUT(model_ticks() - start, 30 * MS, 1);
    OK(d->cuStreamGetId(NULL, &null_id));
    OK(d->cuStreamGetId(legacy, &legacy_id));
    ck_assert_uint_eq(null_id, legacy_id);
}

static void *own_stream_id(void *id) {
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamGetId((CUstream)WEIR_STREAM_PER_THREAD_VALUE, id));
    return NULL;
}

TEST(per_thread_stream_is_another_in_each_thread) {
    unsigned long long mine, again, other, legacy;
    pthread_t thread;

    OK(d->cuStreamGetId((CUstream)WEIR_STREAM_PER_THREAD_VALUE, &mine));
    OK(d->cuStreamGetId((CUstream)WEIR_STREAM_PER_THREAD_VALUE, &again));
    OK(d->cuStreamGetId(NULL, &legacy));
    pthread_create(&thread, NULL, own_stream_id, &other);
    pthread_join(thread, NULL);
    ck_assert_uint_eq(mine, again);
    ck_assert_uint_ne(mine, other);
    ck_assert_uint_ne(mine, legacy);
}

static pthread_barrier_t after_the_context;

static void *outlive_the_context(void *id) {
    own_stream_id(id);
    pthread_barrier_wait(&after_the_context); /* the context ends, */
    pthread_barrier_wait(&after_the_context); /* and others have made streams */
    return NULL;
}

/* New streams have the slots of the ended context's streams.  The end of the thread must not destroy one of them. */
TEST(a_thread_ends_after_the_context_of_its_own_stream) {
    unsigned long long id, fresh_id;
    CUstream fresh[8];
    pthread_t thread;

    pthread_barrier_init(&after_the_context, NULL, 2);
    pthread_create(&thread, NULL, outlive_the_context, &id);
    pthread_barrier_wait(&after_the_context);
    OK(d->cuDevicePrimaryCtxRelease(0));
    OK(d->cuDevicePrimaryCtxRetain(&context, 0));
    OK(d->cuCtxPushCurrent(context));
    for (int i = 0; i < 8; i++)
        OK(d->cuStreamCreate(&fresh[i], CU_STREAM_NON_BLOCKING));
    pthread_barrier_wait(&after_the_context);
    pthread_join(thread, NULL);
    for (int i = 0; i < 8; i++) {
        OK(d->cuStreamGetId(fresh[i], &fresh_id));
        ck_assert_uint_ne(fresh_id, id);
        OK(d->cuStreamDestroy(fresh[i]));
    }
}

TEST(nothing_is_capturing_and_the_mode_is_the_thread_s_own) {
    CUstreamCaptureStatus status = 9;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    OK(d->cuStreamIsCapturing(s, &status));
    ck_assert_uint_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    OK(d->cuThreadExchangeStreamCaptureMode(&mode));
    ck_assert_uint_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(d->cuThreadExchangeStreamCaptureMode(&mode));
    ck_assert_uint_eq(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    mode = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuThreadExchangeStreamCaptureMode(&mode));
}

/* ---------------------------------------------------------- cuMemAlloc, cuMemFree ---- */

CASE("cuMemAlloc", 60, set_up_model, check_pools);

TEST(cuMemAlloc_of_nothing_is_invalid) {
    CUdeviceptr block;

    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAlloc(&block, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAlloc(NULL, 1));
}

TEST(cuMemGetAddressRange_tells_the_block_and_the_bytes_asked_for) {
    CUdeviceptr block = alloc(1000, s), direct, base = 0;
    size_t bytes = 0;

    OK(d->cuMemGetAddressRange(&base, &bytes, block));
    ck_assert_uint_eq(base, block);
    ck_assert_uint_eq(bytes, 1000);
    OK(d->cuMemAlloc(&direct, 3 * MIB));
    OK(d->cuMemGetAddressRange(&base, NULL, direct + 2 * MIB));
    OK(d->cuMemGetAddressRange(NULL, &bytes, direct + 2 * MIB));
    ck_assert_uint_eq(base, direct);
    ck_assert_uint_eq(bytes, 3 * MIB);
    EXPECT(CUDA_ERROR_NOT_FOUND, d->cuMemGetAddressRange(&base, &bytes, direct + 3 * MIB));
    OK(d->cuMemFree(direct));
    free_async(block, s);
}

TEST(cuMemFreeHost_waits_for_all_work_and_takes_nothing_from_the_device) {
    size_t before = free_bytes_now();
    void *host, *kept;
    uint64_t start;

    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAllocHost(&host, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAllocHost(NULL, 1));
    OK(d->cuMemAllocHost(&kept, KIB)); /* goes with its context */
    OK(d->cuMemAllocHost(&host, MIB));
    memset(host, 1, MIB);
    ck_assert_uint_eq(free_bytes_now(), before);
    OK(weir__model_kernel(s, 45 * MS));
    start = model_ticks();
    OK(d->cuMemFreeHost(host));
    ABOUT(model_ticks() - start, 45 * MS, 2);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeHost(host));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeHost(&host));
}

TEST(cuMemFreeAsync_of_a_cuMemAlloc_block_succeeds) {
    size_t before = free_bytes_now();
    CUdeviceptr block;

    OK(d->cuMemAlloc(&block, 4 * MIB));
    ck_assert_uint_eq(free_bytes_now(), before - 4 * MIB);
    OK(weir__model_kernel(s, 10 * MS));
    free_async(block, s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(block));
    ck_assert_uint_eq(free_bytes_now(), before - 4 * MIB);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(free_bytes_now(), before);
}

TEST(cuMemAlloc_takes_pages_of_2_MiB_and_packs_small_blocks) {
    size_t before = free_bytes_now();
    CUdeviceptr small[8], large;

    for (int i = 0; i < 8; i++) {
        OK(d->cuMemAlloc(&small[i], 1));
        ck_assert_uint_eq(small[i] % 512, 0);
    }
    ck_assert_uint_eq(small[1], small[0] + 512);
    ck_assert_uint_eq(free_bytes_now(), before - 2 * MIB);
    OK(d->cuMemAlloc(&large, 2 * MIB + 1));
    ck_assert_uint_eq(large % (2 * MIB), 0);
    ck_assert_uint_eq(free_bytes_now(), before - 6 * MIB);
    check_pools();
    for (int i = 0; i < 8; i++)
        OK(d->cuMemFree(small[i]));
    OK(d->cuMemFree(large));
    ck_assert_uint_eq(free_bytes_now(), before);
}

TEST(cuMemAlloc_and_cuMemFree_cost_what_they_cost) {
    static const struct {
        size_t bytes;
        double alloc_ms, free_ms;
    } facts[] = {{64 * MIB, .056, .063},
                 {256 * MIB, .075, .110},
                 {GIB, .107, .316},
                 {4 * GIB, .25, 1.35},
                 {16 * GIB, .74, 5.07}};
    CUdeviceptr block;
    uint64_t start;

    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        start = model_ticks();
        OK(d->cuMemAlloc(&block, facts[i].bytes));
        ABOUT(model_ticks() - start, facts[i].alloc_ms * 1e6, 5);
        start = model_ticks();
        OK(d->cuMemFree(block));
        ABOUT(model_ticks() - start, facts[i].free_ms * 1e6, 5);
    }
    start = model_ticks();
    OK(d->cuMemAlloc(&block, 512));
    OK(d->cuMemFree(block));
    ABOUT(model_ticks() - start, 59413, 5);
}

TEST(device_memory_runs_out) {
    CUdeviceptr block, other;

    reset_to(GIB);
    OK(d->cuMemAlloc(&block, 512 * MIB));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAlloc(&other, 513 * MIB));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&other, 513 * MIB, pool, s));
    other = alloc(512 * MIB, s);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAlloc(&block, 1));
    free_async(other, s);
    OK(d->cuCtxSynchronize());
    OK(d->cuMemPoolTrimTo(pool, 0));
    OK(d->cuMemAlloc(&other, 512 * MIB));
}

/* ------------------------------------------------------------------ the suite ---- */

SUITE("model", CK_FORK_GETENV);
