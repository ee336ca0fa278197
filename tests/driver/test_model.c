/* SPDX-License-Identifier: MIT */
/* test_model.c: the device model against what was measured on an H200 and what CUDA documents.
 *
 * A test is named after the fact that it holds the model to.  The facts were measured on 2026-11-20
 * with driver 580.159.04 through the driver API, on a private pool with threshold max.  A check of
 * all pools and accounts ends every test.
 */
#include <check.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/driver.h"
#include "driver/model/model.h"
#include "tests/fixtures/suite.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define MS ((uint64_t)1000000)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define EXPECT(wanted, call)                                                                       \
    do {                                                                                           \
        CUresult result_is = (call);                                                               \
        if (result_is != (wanted))                                                                 \
            ck_abort_msg("%s: %u, not %s", #call, result_is, #wanted);                             \
    } while (0)
#define OK(call) EXPECT(CUDA_SUCCESS, call)

/* Within so many percent. */
#define ABOUT(value, wanted, percent)                                                              \
    do {                                                                                           \
        double value_is = (double)(value), wanted_is = (double)(wanted);                           \
        ck_assert_msg(value_is > wanted_is * (1 - (percent) / 100.0) &&                            \
                          value_is < wanted_is * (1 + (percent) / 100.0),                          \
                      "%s: %.0f, not about %.0f", #value, value_is, wanted_is);                    \
    } while (0)

static const struct weir_driver *d;
static CUcontext context;
static CUmemoryPool pool;
static CUstream s, t; /* non-blocking */

/* ------------------------------------------------------------------ what tests use ---- */

static CUmemPoolProps properties(void) {
    CUmemPoolProps props;

    memset(&props, 0, sizeof props);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return props;
}

static void set(CUmemPool_attribute attribute, uint64_t number) {
    int policy = (int)number;

    OK(d->cuMemPoolSetAttribute(pool, attribute,
                                attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
                                    ? (void *)&policy
                                    : (void *)&number));
}

static uint64_t get(CUmemPool_attribute attribute) {
    uint64_t number = 0;

    OK(d->cuMemPoolGetAttribute(pool, attribute, &number));
    return number;
}

static uint64_t reserved(void) {
    return get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static void make_pool(size_t max_size) {
    CUmemPoolProps props = properties();

    props.maxSize = max_size;
    OK(d->cuMemPoolCreate(&pool, &props));
    set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
}

static void make_objects(void) {
    OK(d->cuInit(0));
    OK(d->cuDevicePrimaryCtxRetain(&context, 0));
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d->cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    make_pool(0);
}

static void reset_to(uint64_t capacity) {
    struct weir_model_setup setup = {.capacity = capacity};

    ck_assert_int_eq(weir__model_reset(&setup), 0);
    make_objects();
}

static void set_up(void) {
    struct weir_driver_failure failure;

    unsetenv("WEIR_MODEL_DEVICES");
    unsetenv("WEIR_MODEL_PROFILE");
    d = weir__driver_model(&failure);
    ck_assert_msg(d != NULL, "%s", failure.text);
    make_objects();
}

static void check_model(void) {
    const char *wrong = weir__model_pool_check();

    ck_assert_msg(!wrong, "%s", wrong);
}

static CUdeviceptr alloc(size_t bytes, CUstream stream) {
    CUdeviceptr block = 1;

    OK(d->cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    return block;
}

static void release(CUdeviceptr block, CUstream stream) {
    OK(d->cuMemFreeAsync(block, stream));
}

/* What the profile adds to the first growth. */
#define FIRST UINT64_C(7600000)

static uint64_t now(void) {
    return d->ticks_to_ns(d->ticks());
}

static size_t device_free(void) {
    size_t bytes, total;

    OK(d->cuMemGetInfo(&bytes, &total));
    return bytes;
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* --------------------------------------------------------------- devices, contexts ---- */

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
    ck_assert_uint_eq(device_free(), 149557477376u);
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
    ck_assert_uint_eq(device_free(), GIB);
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
    release(block, t);
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
    release(block, s);
}

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

TEST(error_names_are_those_of_cuda) {
    const char *name;

    OK(d->cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
    ck_assert_str_eq(name, "CUDA_ERROR_OUT_OF_MEMORY");
    OK(d->cuGetErrorName(CUDA_SUCCESS, &name));
    ck_assert_str_eq(name, "CUDA_SUCCESS");
    OK(d->cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &name)); /* a flag has the same value */
    ck_assert_str_eq(name, "CUDA_ERROR_INVALID_VALUE");
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuGetErrorName(12345, &name));
    ck_assert(name == NULL);
}

/* ---------------------------------------------------------------- streams, events ---- */

TEST(destroyed_handle_is_reused_at_once_and_the_ids_differ) {
    unsigned long long before, after;
    CUstream stream;

    OK(d->cuStreamGetId(t, &before));
    OK(d->cuStreamDestroy(t));
    OK(d->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ck_assert(stream == t);
    OK(d->cuStreamGetId(stream, &after));
    ck_assert_uint_eq(after, before + 1);
}

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
    release(block, s);
}

TEST(stream_is_done_when_its_kernel_is) {
    uint64_t start = now();

    OK(d->cuStreamQuery(s));
    OK(weir__model_kernel(s, 10 * MS));
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
    OK(d->cuStreamQuery(t));
    OK(d->cuStreamSynchronize(s));
    ABOUT(now() - start, 10 * MS, 1);
    OK(weir__model_kernel(s, 10 * MS));
    d->sleep_ns(11 * MS);
    OK(d->cuStreamQuery(s));
}

static CUresult launch_delay(CUfunction delay, uint64_t ns, CUstream stream) {
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
    at = now();
    OK(launch_delay(delay, 5 * MS, s));
    ck_assert_uint_eq(now() - at, 3209);
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
    OK(d->cuStreamQuery(t));
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_ge(now() - at, 5 * MS);
    ck_assert_uint_lt(now() - at, 5 * MS + MS / 10);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, launch_delay((CUfunction)(void *)module, MS, s));
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
    uint64_t start = now();

    OK(weir__model_kernel(t, 10 * MS));
    OK(d->cuStreamDestroy(t));
    OK(d->cuCtxSynchronize());
    ABOUT(now() - start, 10 * MS, 1);
}

TEST(event_that_was_never_recorded_is_complete) {
    CUevent event;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, MS));
    OK(d->cuEventQuery(event));
    OK(d->cuStreamWaitEvent(t, event, 0));
    OK(d->cuStreamQuery(t));
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
    ck_assert_uint_lt(now(), 20 * MS);
}

TEST(legacy_stream_and_blocking_streams_wait_for_each_other) {
    CUstream blocking, legacy = (CUstream)WEIR_STREAM_LEGACY_VALUE;
    unsigned long long null_id, legacy_id;
    uint64_t start = now();

    OK(d->cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(weir__model_kernel(blocking, 10 * MS));
    OK(weir__model_kernel(NULL, 10 * MS));
    OK(weir__model_kernel(blocking, 10 * MS));
    OK(weir__model_kernel(s, 10 * MS));
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_lt(now() - start, 12 * MS);
    OK(d->cuStreamSynchronize(legacy));
    ABOUT(now() - start, 20 * MS, 1);
    OK(d->cuStreamSynchronize(blocking));
    ABOUT(now() - start, 30 * MS, 1);
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

/* The slots of what the context had are those of the new streams: the thread must not take one of them with it. */
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
    release(block, s);
}

TEST(cuMemFree_waits_for_all_work) {
    CUdeviceptr block;
    uint64_t start;

    OK(d->cuMemAlloc(&block, MIB));
    OK(weir__model_kernel(s, 45 * MS));
    start = now();
    OK(d->cuMemFree(block));
    ABOUT(now() - start, 45 * MS, 2);
}

TEST(cuMemFreeHost_waits_for_all_work_and_takes_nothing_from_the_device) {
    size_t before = device_free();
    void *host, *kept;
    uint64_t start;

    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAllocHost(&host, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAllocHost(NULL, 1));
    OK(d->cuMemAllocHost(&kept, KIB)); /* goes with its context */
    OK(d->cuMemAllocHost(&host, MIB));
    memset(host, 1, MIB);
    ck_assert_uint_eq(device_free(), before);
    OK(weir__model_kernel(s, 45 * MS));
    start = now();
    OK(d->cuMemFreeHost(host));
    ABOUT(now() - start, 45 * MS, 2);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeHost(host));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeHost(&host));
}

TEST(cuMemFree_of_a_pool_block_waits_for_nothing) {
    CUdeviceptr block = alloc(MIB, s);
    uint64_t start = now();

    OK(weir__model_kernel(s, 45 * MS));
    OK(d->cuMemFree(block));
    ck_assert_uint_lt(now() - start, MS);
    ck_assert_uint_eq(alloc(MIB, t), block);
}

TEST(cuMemFreeAsync_of_a_cuMemAlloc_block_succeeds) {
    size_t before = device_free();
    CUdeviceptr block;

    OK(d->cuMemAlloc(&block, 4 * MIB));
    ck_assert_uint_eq(device_free(), before - 4 * MIB);
    OK(weir__model_kernel(s, 10 * MS));
    release(block, s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(block));
    ck_assert_uint_eq(device_free(), before - 4 * MIB);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(device_free(), before);
}

TEST(cuMemAlloc_takes_pages_of_2_MiB_and_packs_small_blocks) {
    size_t before = device_free();
    CUdeviceptr small[8], large;

    for (int i = 0; i < 8; i++) {
        OK(d->cuMemAlloc(&small[i], 1));
        ck_assert_uint_eq(small[i] % 512, 0);
    }
    ck_assert_uint_eq(small[1], small[0] + 512);
    ck_assert_uint_eq(device_free(), before - 2 * MIB);
    OK(d->cuMemAlloc(&large, 2 * MIB + 1));
    ck_assert_uint_eq(large % (2 * MIB), 0);
    ck_assert_uint_eq(device_free(), before - 6 * MIB);
    check_model();
    for (int i = 0; i < 8; i++)
        OK(d->cuMemFree(small[i]));
    OK(d->cuMemFree(large));
    ck_assert_uint_eq(device_free(), before);
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
        start = now();
        OK(d->cuMemAlloc(&block, facts[i].bytes));
        ABOUT(now() - start, facts[i].alloc_ms * 1e6, 5);
        start = now();
        OK(d->cuMemFree(block));
        ABOUT(now() - start, facts[i].free_ms * 1e6, 5);
    }
    start = now();
    OK(d->cuMemAlloc(&block, 512));
    OK(d->cuMemFree(block));
    ABOUT(now() - start, 59413, 5);
}

TEST(device_memory_runs_out) {
    CUdeviceptr block, other;

    reset_to(GIB);
    OK(d->cuMemAlloc(&block, 512 * MIB));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAlloc(&other, 513 * MIB));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&other, 513 * MIB, pool, s));
    other = alloc(512 * MIB, s);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAlloc(&block, 1));
    release(other, s);
    OK(d->cuCtxSynchronize());
    OK(d->cuMemPoolTrimTo(pool, 0));
    OK(d->cuMemAlloc(&other, 512 * MIB));
}

/* ------------------------------------------------------------------ blocks of pools ---- */

TEST(nothing_from_a_pool_is_a_null_pointer) {
    CUdeviceptr block = alloc(0, s);

    ck_assert_uint_eq(block, 0);
    OK(d->cuMemFreeAsync(0, s));
    ck_assert_uint_eq(reserved(), 0);
}

TEST(interior_double_and_foreign_frees_lose_nothing) {
    CUdeviceptr block = alloc(MIB, s);
    char host;

    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block + 512, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFree(block + 512));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync((uintptr_t)&host, s));
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), MIB);
    release(block, s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemFreeAsync(block, s));
    ck_assert_uint_eq(alloc(MIB, s), block);
}

TEST(used_counts_the_bytes_asked_for_and_no_pending_free) {
    CUdeviceptr one = alloc(1, s), more = alloc(1000, s);

    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1001);
    OK(weir__model_kernel(s, 10 * MS));
    release(more, s);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1);
    release(one, s);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1001);
}

TEST(high_water_marks_take_zero_and_fall_to_the_current_value) {
    CUdeviceptr block = alloc(100 * MIB, s), small = alloc(1, s);
    uint64_t number = 0;

    release(block, s);
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 128 * MIB);
    set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
    set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), reserved());
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 1);
    for (CUmemPool_attribute a = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
         a <= CU_MEMPOOL_ATTR_USED_MEM_HIGH; a++) {
        number = 1;
        EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolSetAttribute(pool, a, &number));
    }
    number = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           d->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &number));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolSetAttribute(pool, 0, &number));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolGetAttribute(pool, 9, &number));
    release(small, s);
}

TEST(policies_are_ints_and_on_at_first) {
    struct {
        int value, guard;
    } policy = {0, 77};

    for (CUmemPool_attribute a = 1; a <= 3; a++) {
        OK(d->cuMemPoolGetAttribute(pool, a, &policy.value));
        ck_assert_int_eq(policy.value, 1);
        ck_assert_int_eq(policy.guard, 77);
    }
}

TEST(pool_properties_are_checked) {
    CUmemPoolProps props = properties();
    CUmemoryPool other;

    props.handleTypes = 2; /* Windows' */
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, d->cuMemPoolCreate(&other, &props));
    props = properties();
    props.location.id = 1;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, d->cuMemPoolCreate(&other, &props));
    props = properties();
    props.reserved[53] = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolCreate(&other, &props));
    props = properties();
    props.allocType = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolCreate(&other, &props));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolDestroy((CUmemoryPool)(void *)s));
}

TEST(destroyed_pool_goes_when_its_last_block_goes) {
    size_t before = device_free();
    CUdeviceptr first = alloc(MIB, s), last = alloc(MIB, s), none;

    OK(d->cuMemPoolDestroy(pool));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemPoolDestroy(pool));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemAllocFromPoolAsync(&none, 1, pool, s));
    release(first, s);
    memset((void *)(uintptr_t)last, 1, MIB);
    ck_assert_uint_eq(device_free(), before - 32 * MIB);
    release(last, s);
    ck_assert_uint_eq(device_free(), before);
}

/* ------------------------------------------------------------- who may reuse what ---- */

TEST(same_stream_reuses_at_once_even_when_busy) {
    CUdeviceptr block = alloc(MIB, s);

    OK(weir__model_kernel(s, 40 * MS));
    release(block, s);
    ck_assert_uint_eq(alloc(MIB, s), block);
    ck_assert_uint_lt(now(), FIRST + 5 * MS);
}

TEST(block_freed_on_a_busy_stream_is_not_handed_to_another_stream) {
    CUdeviceptr block = alloc(32 * MIB, s);

    OK(weir__model_kernel(s, 40 * MS));
    release(block, s);
    ck_assert_uint_ne(alloc(32 * MIB, t), block);
    ck_assert_uint_eq(reserved(), 64 * MIB);
    ck_assert_uint_lt(now(), FIRST + 5 * MS);
}

TEST(block_freed_on_an_idle_stream_is_handed_to_another_stream) {
    CUdeviceptr block = alloc(GIB, s);
    uint64_t start;

    release(block, s);
    start = now();
    ck_assert_uint_eq(alloc(GIB, t), block);
    ck_assert_uint_lt(now() - start, 8000);
    ck_assert_uint_eq(reserved(), GIB);
}

TEST(growth_on_an_idle_stream_serves_a_busy_one) {
    CUstream own;

    OK(d->cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    OK(weir__model_kernel(s, 40 * MS));
    release(alloc(GIB, own), own);
    alloc(GIB, s);
    ck_assert_uint_eq(reserved(), GIB);
}

TEST(growth_on_a_busy_stream_serves_no_other) {
    OK(weir__model_kernel(s, 40 * MS));
    release(alloc(GIB, s), s);
    alloc(GIB, t);
    ck_assert_uint_eq(reserved(), 2 * GIB);
}

TEST(wait_on_an_event_after_the_free_gives_the_same_address_at_once) {
    CUdeviceptr block = alloc(MIB, s), keep = alloc(31 * MIB, s);
    CUevent event;
    uint64_t start;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 40 * MS));
    release(block, s);
    OK(d->cuEventRecord(event, s));
    OK(d->cuStreamWaitEvent(t, event, 0));
    start = now();
    ck_assert_uint_eq(alloc(MIB, t), block);
    ck_assert_uint_lt(now() - start, 2000);
    release(keep, s);
}

TEST(wait_on_an_event_before_the_free_does_not) {
    CUdeviceptr block = alloc(MIB, s);
    CUevent event;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 40 * MS));
    OK(d->cuEventRecord(event, s));
    release(block, s);
    OK(d->cuStreamWaitEvent(t, event, 0));
    ck_assert_uint_ne(alloc(MIB, t), block);
}

TEST(order_is_passed_on_through_a_third_stream) {
    CUdeviceptr block = alloc(MIB, s);
    CUevent event;
    CUstream third;

    OK(d->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 40 * MS));
    release(block, s);
    OK(d->cuEventRecord(event, s));
    OK(d->cuStreamWaitEvent(third, event, 0));
    OK(d->cuEventRecord(event, third));
    OK(d->cuStreamWaitEvent(t, event, 0));
    ck_assert_uint_eq(alloc(MIB, t), block);
}

TEST(event_policy_switched_off_gives_no_reuse_by_events) {
    CUdeviceptr block = alloc(MIB, s);
    CUevent event;

    set(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 40 * MS));
    release(block, s);
    OK(d->cuEventRecord(event, s));
    OK(d->cuStreamWaitEvent(t, event, 0));
    ck_assert_uint_ne(alloc(MIB, t), block);
}

/* A free is done when it is made, and what follows it has not begun: placed so on an H200. */
TEST(launch_hides_what_was_done_until_its_work_begins) {
    CUdeviceptr block = alloc(MIB, s);

    release(block, s);
    OK(weir__model_kernel(s, 40 * MS));
    ck_assert_uint_ne(alloc(MIB, t), block);
    d->sleep_ns(10000);
    ck_assert_uint_eq(alloc(MIB, t), block);
}

TEST(opportunistic_policy_switched_off_leaves_reuse_to_synchronisation) {
    CUdeviceptr block = alloc(MIB, s), second;

    set(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    release(block, s);
    d->sleep_ns(MS);
    second = alloc(MIB, t);
    ck_assert_uint_ne(second, block);
    release(second, t);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(alloc(MIB, t), second);
    ck_assert_uint_eq(alloc(MIB, t), block);
}

/* The stream is behind the free from then on, and so behind all else that came before it there; the host waits for
 * nothing. */
TEST(full_device_orders_a_stream_behind_pending_room) {
    CUdeviceptr block, beside;
    uint64_t start;

    reset_to(GIB);
    block = alloc(GIB / 2, s);
    beside = alloc(GIB / 2, s);
    OK(weir__model_kernel(s, 48 * MS));
    OK(weir__model_use(s, block, GIB / 2, 1, MS));
    OK(weir__model_use(s, beside, GIB / 2, 1, MS));
    release(block, s);
    start = now();
    ck_assert_uint_eq(alloc(GIB / 2, t), block);
    OK(weir__model_use(t, block, GIB / 2, 2, MS));
    OK(weir__model_use(t, beside, GIB / 2, 2, MS));
    ck_assert_uint_lt(now() - start, MS);
    ck_assert_ptr_eq(weir__model_fault(), NULL);
    OK(d->cuStreamSynchronize(t));
    ABOUT(now() - start, 52 * MS, 2);
}

/* Of those that hold the request the smallest, then what is done first: assumed. */
TEST(internal_dependencies_are_on_the_best_fit) {
    CUdeviceptr large, late, early;
    CUstream third;

    make_pool(160 * MIB);
    OK(d->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    large = alloc(96 * MIB, s);
    late = alloc(32 * MIB, t);
    early = alloc(32 * MIB, third);
    OK(weir__model_kernel(s, 10 * MS));
    OK(weir__model_kernel(t, 30 * MS));
    OK(weir__model_kernel(third, 20 * MS));
    release(large, s);
    release(late, t);
    release(early, third);
    ck_assert_uint_eq(alloc(32 * MIB, NULL), early);
    ck_assert_uint_eq(alloc(32 * MIB, NULL), late);
    ck_assert_uint_eq(alloc(32 * MIB, NULL), large);
}

/* Nor does the host wait for them. */
TEST(internal_dependencies_join_no_pieces) {
    CUdeviceptr first, second, block;
    CUstream third;
    uint64_t start;

    reset_to(GIB);
    OK(d->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    first = alloc(GIB / 2, s);
    second = alloc(GIB / 2, third);
    OK(weir__model_kernel(s, 48 * MS));
    release(first, s);
    release(second, third);
    start = now();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, GIB, pool, t));
    ck_assert_uint_lt(now() - start, MS);
    d->sleep_ns(48 * MS);
    ck_assert_uint_eq(alloc(GIB, t), first);
}

TEST(internal_policy_switched_off_is_out_of_memory_instead) {
    CUdeviceptr block;

    reset_to(GIB);
    block = alloc(GIB, s);
    set(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    OK(weir__model_kernel(s, 48 * MS));
    release(block, s);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, GIB, pool, t));
    ck_assert_uint_lt(now(), 45 * MS);
}

/* What nobody waited for stays as unseen as it was, though its work is done. */
TEST(internal_dependencies_see_nothing_else) {
    CUdeviceptr first, second, block;
    CUstream third;

    reset_to(GIB);
    OK(d->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    set(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    first = alloc(GIB / 2, s);
    second = alloc(GIB / 2, third);
    OK(weir__model_kernel(s, MS));
    OK(weir__model_kernel(third, 2 * MS));
    release(first, s);
    release(second, third);
    d->sleep_ns(10 * MS);
    ck_assert_uint_eq(alloc(GIB / 2, t), first);
    set(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, GIB / 2, pool, t));
    OK(d->cuStreamSynchronize(third));
    ck_assert_uint_eq(alloc(GIB / 2, t), second);
}

TEST(internal_dependencies_help_at_the_maximum_too) {
    CUdeviceptr block;
    uint64_t start;

    make_pool(64 * MIB);
    block = alloc(64 * MIB, s);
    OK(weir__model_kernel(s, 48 * MS));
    release(block, s);
    start = now();
    ck_assert_uint_eq(alloc(64 * MIB, t), block);
    ck_assert_uint_lt(now() - start, MS);
}

/* On a full device nothing but a policy, or what the host has seen, lets another stream have a block. */
TEST(policies_alone_and_together_on_a_full_device) {
    enum { FOLLOW = 1, OPPORTUNISTIC = 2, INTERNAL = 4 };

    for (int ordered = 0; ordered < 2; ordered++) {
        for (int done = 0; done < 2; done++) {
            int serves = (ordered && (_i & FOLLOW)) || (done && (_i & OPPORTUNISTIC));
            CUdeviceptr block, other = 0;
            CUevent event;
            uint64_t start;
            CUresult result;

            reset_to(GIB);
            for (int i = 0; i < 3; i++)
                set((CUmemPool_attribute)(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES + i),
                    (uint64_t)(_i >> i & 1));
            OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            block = alloc(GIB, s);
            OK(weir__model_kernel(s, 20 * MS));
            release(block, s);
            OK(d->cuEventRecord(event, s));
            if (ordered)
                OK(d->cuStreamWaitEvent(t, event, 0));
            if (done)
                d->sleep_ns(30 * MS);
            start = now();
            result = d->cuMemAllocFromPoolAsync(&other, GIB, pool, t);
            ck_assert_int_eq(result == CUDA_SUCCESS, serves || (_i & INTERNAL) != 0);
            ck_assert(result != CUDA_SUCCESS || other == block);
            ck_assert_uint_lt(now() - start, MS);
        }
    }
}

TEST(what_is_ordered_goes_before_what_is_done) {
    CUdeviceptr ordered = alloc(MIB, s), done;
    CUstream third;
    CUevent event;

    OK(d->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    done = alloc(MIB, third);
    alloc(MIB, third);
    release(done, third);
    OK(weir__model_kernel(s, 40 * MS));
    release(ordered, s);
    OK(d->cuEventRecord(event, s));
    OK(d->cuStreamWaitEvent(t, event, 0));
    ck_assert_uint_eq(alloc(MIB, t), ordered);
    ck_assert_uint_eq(alloc(MIB, t), done);
}

/* The replay of a busy trace reserved as much on an H200. */
TEST(its_own_and_free_neighbours_are_not_taken_together) {
    CUdeviceptr own = alloc(16 * MIB, s), other = alloc(16 * MIB, s);

    release(other, s);
    OK(d->cuStreamSynchronize(s));
    OK(weir__model_kernel(s, 40 * MS));
    release(own, s);
    ck_assert_uint_ne(alloc(32 * MIB, s), own);
    ck_assert_uint_eq(reserved(), 64 * MIB);
}

/* The stream's own half, and one that it is ordered behind, without a span between. */
TEST(neighbours_of_two_streams_are_not_taken_together) {
    CUdeviceptr first = alloc(16 * MIB, s), second = alloc(16 * MIB, t);
    CUevent event;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 40 * MS));
    OK(weir__model_kernel(t, 40 * MS));
    release(first, s);
    release(second, t);
    OK(d->cuEventRecord(event, s));
    OK(d->cuStreamWaitEvent(t, event, 0));
    ck_assert_uint_ne(alloc(32 * MIB, t), first);
    ck_assert_uint_eq(reserved(), 64 * MIB);
    ck_assert_uint_eq(alloc(16 * MIB, t), second);
    ck_assert_uint_eq(alloc(16 * MIB, t), first);
}

/* A wait for another stream is none, nor is a query, of an event or of the stream, that finds all done. */
TEST(only_what_the_host_waited_for_is_seen) {
    CUdeviceptr block = alloc(MIB, s);
    CUevent event;

    set(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    release(block, s);
    OK(d->cuEventRecord(event, s));
    d->sleep_ns(MS);
    OK(d->cuStreamSynchronize(t));
    ck_assert_uint_ne(alloc(MIB, t), block);
    OK(d->cuStreamQuery(s));
    OK(d->cuEventQuery(event));
    ck_assert_uint_ne(alloc(MIB, t), block);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(alloc(MIB, t), block);
}

/* Once it is done, or to who is behind an event of it. */
TEST(what_an_ended_stream_freed_serves_others) {
    for (int ordered = 0; ordered < 2; ordered++) {
        CUstream third;
        CUdeviceptr block;
        CUevent event;

        make_pool(0);
        OK(d->cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
        OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        block = alloc(32 * MIB, third);
        OK(weir__model_kernel(third, 40 * MS));
        release(block, third);
        OK(d->cuEventRecord(event, third));
        if (ordered)
            OK(d->cuStreamWaitEvent(t, event, 0));
        OK(d->cuStreamDestroy(third));
        if (!ordered)
            d->sleep_ns(50 * MS);
        ck_assert_uint_eq(alloc(32 * MIB, t), block);
    }
}

/* Without an event: that is what blocking means. */
TEST(the_legacy_stream_has_what_blocking_streams_freed) {
    CUdeviceptr block;
    CUstream blocking;

    OK(d->cuStreamCreate(&blocking, 0));
    block = alloc(MIB, blocking);
    OK(weir__model_kernel(blocking, 40 * MS));
    release(block, blocking);
    ck_assert_uint_ne(alloc(MIB, t), block);
    ck_assert_uint_eq(alloc(MIB, NULL), block);
}

/* ------------------------------------------------------------- units of 32 MiB ---- */

TEST(reserve_grows_in_units_and_blocks_pack_across_them) {
    static const size_t sizes[] = {3 * MIB / 2, 3 * MIB, 10 * MIB, 33 * MIB};
    CUdeviceptr before = alloc(512, s), block;

    ck_assert_uint_eq(reserved(), 32 * MIB);
    before += 512;
    for (int i = 0; i < 200; i++) {
        block = alloc(sizes[i % 4], s);
        ck_assert_uint_eq(block, before);
        before += sizes[i % 4];
    }
    ck_assert_uint_eq(reserved(), (50 * (3 * MIB / 2 + 46 * MIB) / (32 * MIB) + 1) * 32 * MIB);
}

TEST(blocks_allocated_in_turn_or_together) {
    CUdeviceptr blocks[32];

    for (int i = 0; i < 32; i++)
        release(alloc(32 * MIB, s), s);
    ck_assert_uint_eq(reserved(), 32 * MIB);
    for (int i = 0; i < 32; i++)
        blocks[i] = alloc(32 * MIB, s);
    for (int i = 0; i < 32; i++)
        release(blocks[i], s);
    ck_assert_uint_eq(reserved(), 1024 * MIB);
}

TEST(freed_neighbours_serve_one_large_request_without_growth) {
    CUdeviceptr blocks[8];
    uint64_t start;

    for (int i = 0; i < 8; i++)
        blocks[i] = alloc(512 * MIB, s);
    for (int i = 0; i < 8; i++)
        release(blocks[i], s);
    start = now();
    ck_assert_uint_eq(alloc(4 * GIB, s), blocks[0]);
    ck_assert_uint_lt(now() - start, 2000);
    ck_assert_uint_eq(reserved(), 4 * GIB);
}

TEST(scattered_holes_are_remapped) {
    CUdeviceptr holes[4], keep[4];
    uint64_t before, start;

    for (int i = 0; i < 4; i++) {
        holes[i] = alloc(512 * MIB, s);
        keep[i] = alloc(32 * MIB, s);
    }
    before = reserved();
    for (int i = 0; i < 4; i++)
        release(holes[i], s);
    start = now();
    alloc(2 * GIB, s);
    ABOUT(now() - start, 2.1e6, 10);
    ck_assert_uint_eq(reserved(), before);
    for (int i = 0; i < 4; i++)
        release(keep[i], s);
}

TEST(holes_smaller_than_a_unit_serve_nothing_larger) {
    static CUdeviceptr blocks[4096];

    for (int i = 0; i < 4096; i++)
        blocks[i] = alloc(MIB, s);
    for (int i = 0; i < 4096; i += 2)
        release(blocks[i], s);
    alloc(GIB, s);
    ck_assert_uint_eq(reserved(), 5 * GIB);
}

TEST(trim_rounds_up_to_units) {
    CUdeviceptr keep = alloc(MIB, s), block = alloc(1023 * MIB, s);

    release(block, s);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(reserved(), GIB);
    OK(d->cuMemPoolTrimTo(pool, 300 * MIB));
    ck_assert_uint_eq(reserved(), 320 * MIB);
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved(), 32 * MIB);
    release(keep, s);
}

/* Whatever the policies are. */
TEST(trim_gives_back_what_was_waited_for_not_what_is_done) {
    for (int on = 1; on >= 0; on--) {
        make_pool(0);
        set(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, (uint64_t)on);
        OK(weir__model_kernel(s, 40 * MS));
        release(alloc(32 * MIB, s), s);
        d->sleep_ns(50 * MS);
        OK(d->cuStreamQuery(s));
        OK(d->cuMemPoolTrimTo(pool, 0));
        ck_assert_uint_eq(reserved(), 32 * MIB);
        OK(d->cuStreamSynchronize(s));
        OK(d->cuMemPoolTrimTo(pool, 0));
        ck_assert_uint_eq(reserved(), 0);
    }
}

TEST(queries_let_no_threshold_act) {
    CUevent event;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    release(alloc(32 * MIB, s), s);
    OK(d->cuEventRecord(event, s));
    d->sleep_ns(MS);
    set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
    OK(d->cuEventQuery(event));
    OK(d->cuStreamQuery(s));
    ck_assert_uint_eq(reserved(), 32 * MIB);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(reserved(), 0);
}

TEST(threshold_acts_at_a_synchronisation_and_rounds_down) {
    CUdeviceptr block = alloc(GIB, s);

    set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 100 * MIB);
    release(block, s);
    ck_assert_uint_eq(reserved(), GIB);
    OK(d->cuStreamQuery(s));
    ck_assert_uint_eq(reserved(), GIB);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_eq(reserved(), 96 * MIB);
}

TEST(synchronising_the_context_lets_the_threshold_act) {
    size_t before = device_free();
    CUdeviceptr block = alloc(GIB, s);
    uint64_t start;

    set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
    release(block, s);
    start = now();
    OK(d->cuCtxSynchronize());
    ABOUT(now() - start, 1.1e6, 10);
    ck_assert_uint_eq(reserved(), 0);
    ck_assert_uint_eq(device_free(), before);
}

TEST(growth_and_trim_wait_for_no_kernel) {
    CUdeviceptr block;

    OK(weir__model_kernel(t, 100 * MS));
    block = alloc(GIB, s);
    release(block, s);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved(), 0);
    ck_assert_uint_lt(now(), FIRST + 5 * MS);
}

TEST(max_size_holds_at_allocation) {
    CUdeviceptr block;

    make_pool(100 * MIB); /* four units */
    block = alloc(128 * MIB, s);
    ck_assert_uint_eq(reserved(), 128 * MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 1, pool, s));
    make_pool(1);
    block = alloc(32 * MIB, s);
    ck_assert_uint_eq(reserved(), 32 * MIB);
}

/* Assumed: all that could be had. */
TEST(what_grew_for_a_refused_request_stays) {
    CUdeviceptr block, keep;
    uint64_t start;

    make_pool(100 * MIB);
    keep = alloc(MIB, s);
    start = now();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 128 * MIB, pool, s));
    ck_assert_uint_gt(now() - start, 60000);
    ck_assert_uint_eq(reserved(), 128 * MIB);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 128 * MIB);
    start = now();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 128 * MIB, pool, s));
    block = alloc(127 * MIB, s);
    ck_assert_uint_eq(block, keep + MIB);
    ck_assert_uint_lt(now() - start, 5000); /* it is there already */
    release(keep, s);
    release(block, s);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved(), 0);
    reset_to(256 * MIB); /* what the device lacks, not the pool */
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 512 * MIB, pool, s));
    ck_assert_uint_eq(reserved(), 256 * MIB);
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved(), 0);
}

/* But its memory is free, and goes at a trim. */
TEST(what_cuMemFree_took_counts_as_used) {
    CUdeviceptr block = alloc(MIB, s), kept = alloc(MIB, s);

    OK(d->cuMemFree(block));
    OK(d->cuCtxSynchronize());
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 2 * MIB);
    ck_assert_uint_eq(alloc(MIB, t), block);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 3 * MIB);
    release(block, t);
    release(kept, s);
    OK(d->cuCtxSynchronize());
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved(), 0);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), MIB);
}

TEST(impossible_request_is_refused_after_159_ms) {
    CUdeviceptr block = 5;
    uint64_t start = now();

    if (!is_roomy())
        return;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 200 * GIB, pool, s));
    ABOUT(now() - start, 159 * MS, 1);
    ck_assert_uint_eq(block, 0);
    ck_assert_uint_lt(device_free(), 32 * MIB); /* which is what took so long */
    start = now();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 200 * GIB, pool, s));
    ck_assert_uint_lt(now() - start, MS);
}

TEST(whole_device_can_be_taken) {
    size_t room = device_free() / (32 * MIB) * (32 * MIB);
    CUdeviceptr block;

    if (!is_roomy())
        return;
    block = alloc(room, s);
    ck_assert_uint_lt(device_free(), 32 * MIB);
    ((char *)(uintptr_t)block)[0] = 1;
    ((char *)(uintptr_t)block)[room - 1] = 1;
    release(block, s);
}

/* ---------------------------------------------------- where blocks are placed ---- */

TEST(among_equal_holes_the_first_freed_serves_first) {
    static const int order[] = {9, 3, 12, 1, 7};
    CUdeviceptr blocks[16];

    for (int i = 0; i < 16; i++) {
        blocks[i] = alloc(4096, s);
        alloc(512, s);
    }
    for (int i = 0; i < 5; i++)
        release(blocks[order[i]], s);
    for (int i = 0; i < 5; i++)
        ck_assert_uint_eq(alloc(4096, s), blocks[order[i]]);
}

/* One of the experiments on the device: eight holes freed in order, and where requests went. */
TEST(the_smallest_hole_that_fits_is_cut_from_its_front) {
    static const size_t sizes[8] = {4 * MIB, 2 * MIB, 3 * MIB, 2 * MIB,
                                    8 * MIB, 2 * MIB, 5 * MIB, MIB};
    static const struct {
        size_t bytes, offset;
    } requests[] = {{2097152, 4195328}, {2097152, 9439232},  {1500000, 19926016},
                    {700000, 27267072}, {3145728, 6292992},  {300000, 27967488},
                    {4194304, 512},     {1048576, 22023680}, {100000, 21426176},
                    {512, 28267520},    {9437184, 28316160}};
    CUdeviceptr base = alloc(512, s), holes[8];

    for (int i = 0; i < 8; i++) {
        holes[i] = alloc(sizes[i], s);
        alloc(512, s);
    }
    for (int i = 0; i < 8; i++)
        release(holes[i], s);
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
        ck_assert_uint_eq(alloc(requests[i].bytes, s) - base, requests[i].offset);
    ck_assert_uint_eq(reserved(), 64 * MIB);
}

/* Another one: holes of one and a half units, none of which holds a unit. */
TEST(holes_that_were_settled_serve_latest_freed_first) {
    CUdeviceptr base = alloc(512, s), blocks[16];

    for (int i = 0; i < 16; i++)
        blocks[i] = alloc(48 * MIB, s);
    for (int i = 0; i < 16; i += 2)
        release(blocks[i], s);
    ck_assert_uint_eq(alloc(60 * MIB, s) - base, 805306880);
    ck_assert_uint_eq(alloc(90 * MIB, s) - base, 868221440);
    ck_assert_uint_eq(alloc(49 * MIB, s) - base, 962593280);
    ck_assert_uint_eq(alloc(20 * MIB, s), blocks[14]);
    ck_assert_uint_eq(reserved(), 992 * MIB);
}

/* The best fit may be one that the request is not ordered behind: measured where work kept all streams busy. */
TEST(of_a_stream_the_best_fit_serves_or_else_the_oldest_that_holds_it) {
    CUdeviceptr holes[3];
    CUevent event;

    for (int i = 0; i < 3; i++) {
        holes[i] = alloc((size_t)(8 - 2 * i) * MIB, s);
        alloc(512, s);
    }
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(weir__model_kernel(s, 40 * MS));
    release(holes[0], s);
    release(holes[1], s);
    OK(d->cuEventRecord(event, s));
    OK(d->cuStreamWaitEvent(t, event, 0));
    release(holes[2], s);
    ck_assert_uint_eq(alloc(4 * MIB, t), holes[0]);
    ck_assert_uint_eq(alloc(5 * MIB, t), holes[1]);
}

/* The first requests of a load of four streams without work, STREAM:BYTES@OFFSET, and its frees, STREAM:free@REQUEST,
 * as they went on an H200 (driver 580.159.04). */
TEST(idle_streams_take_from_each_other_as_on_an_h200) {
    static const char steps[] =
        "3:21107959@0 3:free@0 3:7614461@0 3:free@1 3:14723897@0 3:free@2 3:4026913@0 "
        "3:free@3 3:904@0 3:free@4 3:548590@0 3:free@5 3:5497997@0 3:free@6 1:11581520@0 "
        "1:11389513@11581952 1:free@7 1:48164@0 1:free@9 1:18306130@22971904 1:free@8 "
        "1:20781095@0 1:free@11 1:4448086@0 1:free@12 1:246491@0 1:free@10 "
        "1:1285976@22971904 1:free@14 1:52505@22971904 1:4129@23024640 1:free@15 "
        "1:761@22971904 1:free@13 1:104014@23029248 1:2049@22972928 1:703738@23133696 "
        "1:1418878@23837696 0:122696644@25256960 0:598618@0 0:free@23 0:1871954@599040 "
        "0:free@24 0:94618@0 0:free@22 3:676612@2471424 3:free@26 3:1718306@3148288 "
        "3:free@27 3:630@2471424 3:free@28 3:14145@2471424 3:16752921@4867072 "
        "2:492777@21620224 2:4434423@25256960 2:free@31 2:43721823@29691392 "
        "2:10181667@73413632 2:7563@21620224 2:free@35 2:1046951@2485760 ";
    CUdeviceptr blocks[64];
    CUstream four[4];
    size_t count = 0, bytes, number;
    unsigned stream;
    int length;

    for (int i = 0; i < 4; i++)
        OK(d->cuStreamCreate(&four[i], CU_STREAM_NON_BLOCKING));
    for (const char *step = steps; *step; step += length) {
        if (sscanf(step, "%u:free@%zu %n", &stream, &number, &length) == 2) {
            release(blocks[number], four[stream]);
            continue;
        }
        ck_assert_int_eq(sscanf(step, "%u:%zu@%zu %n", &stream, &bytes, &number, &length), 3);
        blocks[count] = alloc(bytes, four[stream]);
        ck_assert_uint_eq(blocks[count++] - blocks[0], number);
    }
}

/* The pool may grow a smaller, partly backed range although a larger backed one is free. */
TEST(growth_takes_the_smallest_hole_backed_or_not) {
    CUdeviceptr hole = alloc(100 * MIB, s), first, second;

    alloc(512, s);
    first = alloc(60 * MIB, s);
    second = alloc(60 * MIB, s);
    alloc(512, s);
    release(hole, s);
    OK(d->cuStreamSynchronize(s));
    alloc(160 * MIB, s); /* moves units out of the hole */
    release(first, s);
    OK(d->cuStreamSynchronize(s));
    release(second, s);
    ck_assert_uint_eq(alloc(90 * MIB, s), hole);
    ck_assert_uint_eq(alloc(100 * MIB, s), first);
}

/* Recorded programs, replayed on an H200: a hash of the offset and the reserve after each
 * allocation (FNV-1a, 64 bits, a step each), and the peak of the reserve.  Of the one with several
 * streams the peak alone. */
static const struct program {
    const char *name;
    uint64_t hash, reserve;
} programs[] = {
    {"gat-dynamic", UINT64_C(0x28b35f2da0f223f5), 10536091648},
    {"gpt2-dynamic", UINT64_C(0xc419ec5b17b2057d), 15669919744},
    {"gpt2-train", UINT64_C(0xf6cab46b353e64ad), 13925089280},
    {"resnet50-train", UINT64_C(0x225b0bc9c397d1e5), 3355443200},
    {"multistream-infer", 0, 1577058304},
};

static CUdeviceptr live[65536];
static CUstream streams[64];

static uint64_t hash_step(uint64_t hash, uint64_t value) {
    return (hash ^ value) * UINT64_C(0x100000001b3);
}

/* WEIR_TEST_STEPS=N: of each program the first N lines alone, which come to nothing that was measured. */
static long most_steps(void) {
    const char *text = getenv("WEIR_TEST_STEPS");

    return text ? strtol(text, NULL, 0) : LONG_MAX;
}

static uint64_t replay(FILE *trace, int *whole) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    long most = most_steps(), steps = 0;
    unsigned long long id, bytes;
    CUdeviceptr first = 0;
    unsigned stream;
    char line[256], op;

    while (fgets(line, sizeof line, trace)) {
        if (++steps > most)
            continue; /* gzip is not to fail */
        if (sscanf(line, "%*u %c %llu %llu %u", &op, &id, &bytes, &stream) == 4) {
            ck_assert(id < 65536 && stream < 64);
            if (!streams[stream])
                OK(d->cuStreamCreate(&streams[stream], CU_STREAM_NON_BLOCKING));
            if (op == 'f') {
                release(live[id], streams[stream]);
                continue;
            }
            live[id] = alloc(bytes, streams[stream]);
            first = first ? first : live[id];
            hash = hash_step(hash_step(hash, live[id] - first), reserved());
        } else if (sscanf(line, "%*u %c", &op) == 1 && op == 'm') {
            OK(d->cuCtxSynchronize());
        }
    }
    *whole = steps <= most;
    return hash;
}

TEST(recorded_programs_get_the_addresses_of_an_h200) {
    const struct program *program = &programs[_i];
    const char *top = getenv("top_srcdir");
    char command[512];
    uint64_t hash;
    FILE *trace;
    int whole;

    snprintf(command, sizeof command, "exec gzip -dc '%s/bench/traces/%s.trace.gz' 2>/dev/null",
             top ? top : ".", program->name);
    trace = popen(command, "r");
    ck_assert(trace != NULL);
    hash = replay(trace, &whole);
    if (pclose(trace) != 0)
        return; /* no traces here, or no gzip */
    if (whole)
        ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), program->reserve);
    if (whole && program->hash)
        ck_assert_uint_eq(hash, program->hash);
    check_model();
}

/* ------------------------------------------------------------- time and charges ---- */

TEST(warm_pair_costs_590_ns) {
    CUdeviceptr block = alloc(64 * KIB, s);
    uint64_t start;

    release(block, s);
    start = now();
    for (int i = 0; i < 1000; i++)
        release(alloc(64 * KIB, s), s);
    ABOUT((now() - start) / 1000, 590, 1);
}

TEST(pair_costs_more_among_more_live_blocks) {
    static const struct {
        int blocks;
        double ns;
    } facts[] = {{100, 1298}, {1000, 1526}, {10000, 2300}};
    static CUdeviceptr blocks[10000];
    int count = 0;

    for (size_t i = 0; i < 3; i++) {
        uint64_t start, seed = 7;

        while (count < facts[i].blocks)
            blocks[count++] = alloc(16 * KIB, s);
        start = now();
        for (int k = 0; k < 1000; k++) {
            size_t victim = next_random(&seed) % (size_t)count;

            release(blocks[victim], s);
            blocks[victim] = alloc(16 * KIB, s);
        }
        ABOUT((now() - start) / 1000, facts[i].ns, 2);
    }
}

TEST(growth_costs_what_it_costs) {
    static const struct {
        size_t bytes;
        double grow_ms, trim_ms;
    } facts[] = {{32 * MIB, .05, .04}, {64 * MIB, .069, .073}, {256 * MIB, .235, .268},
                 {GIB, .876, 1.14},    {4 * GIB, 3.90, 4.78},  {16 * GIB, 15.0, 20.5}};

    release(alloc(1, s), s); /* the first of all takes long */
    ck_assert_uint_ge(now(), FIRST);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(pool, 0));
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        uint64_t start = now();
        CUdeviceptr block = alloc(facts[i].bytes, s);

        ABOUT(now() - start, facts[i].grow_ms * 1e6, 5);
        release(block, s);
        OK(d->cuStreamSynchronize(s));
        start = now();
        OK(d->cuMemPoolTrimTo(pool, 0));
        ABOUT(now() - start, facts[i].trim_ms * 1e6, 5);
    }
}

TEST(small_calls_cost_what_they_cost) {
    CUstreamCaptureStatus status;
    unsigned long long id;
    CUcontext current;
    CUevent event;
    uint64_t at;

    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
#define COSTS(ns, call)                                                                            \
    at = now();                                                                                    \
    OK(call);                                                                                      \
    ck_assert_uint_eq(now() - at, ns)
    COSTS(16, d->cuStreamIsCapturing(s, &status));
    COSTS(20, d->cuStreamGetId(s, &id));
    COSTS(9, d->cuCtxGetCurrent(&current));
    COSTS(200, d->cuEventRecord(event, s));
    COSTS(150, d->cuEventQuery(event));
    COSTS(180, d->cuStreamWaitEvent(t, event, 0));
    COSTS(274, d->cuStreamQuery(s));
#undef COSTS
    at = now();
    reserved();
    ck_assert_uint_eq(now() - at, 34);
    at = now();
    device_free();
    ck_assert_uint_eq(now() - at, 3966);
}

static uint64_t busy_clock(void) {
    static CUdeviceptr blocks[512];
    uint64_t seed = 99;
    CUdeviceptr direct;

    memset(blocks, 0, sizeof blocks);
    reset_to(4 * GIB);
    for (int i = 0; i < 20000; i++) {
        size_t k = next_random(&seed) % 512;
        CUstream stream = next_random(&seed) & 1 ? s : t;

        if (blocks[k]) {
            release(blocks[k], stream);
            blocks[k] = 0;
        } else {
            blocks[k] = alloc(next_random(&seed) % (4 * MIB) + 1, stream);
        }
        if (next_random(&seed) % 16 == 0)
            OK(weir__model_kernel(stream, next_random(&seed) % MS));
        if (next_random(&seed) % 512 == 0)
            OK(d->cuStreamSynchronize(stream));
        if (next_random(&seed) % 64 == 0) {
            OK(d->cuMemAlloc(&direct, next_random(&seed) % (4 * MIB) + 1));
            OK(d->cuMemFree(direct));
        }
    }
    return now();
}

TEST(same_calls_take_the_same_time) {
    uint64_t first = busy_clock();

    ck_assert_uint_gt(first, MS);
    ck_assert_uint_eq(busy_clock(), first);
}

TEST(charge_measures_real_time_from_its_first_call_on) {
    struct weir_driver_charge charge;

    release(alloc(KIB, s), s);
    d->charge(&charge);
    ck_assert_uint_eq(charge.host_ns, 0);
    ck_assert_uint_eq(charge.driver_ns, now());
    for (int i = 0; i < 1000; i++)
        release(alloc(KIB, s), s);
    d->charge(&charge);
    ck_assert_uint_gt(charge.host_ns, 1000);
    ck_assert_uint_eq(charge.driver_ns, now());
}

/* What another thread would do meanwhile: its own clock runs on, and then this one goes on from where it
 * was.  What was freed there is done only when that time has come. */
TEST(what_is_played_aside_takes_none_of_the_callers_time) {
    struct weir_driver_charge before, after;
    uint64_t started, took;
    CUdeviceptr block;

    d->charge(&before);
    started = now();
    ck_assert_uint_eq(d->aside(1), 0);
    block = alloc(GIB, s);
    ck_assert_uint_gt(now(), started + MS / 2);
    d->sleep_ns(3 * MS);
    OK(weir__model_kernel(s, 20 * MS));
    release(block, s);
    OK(d->cuStreamSynchronize(s));
    ck_assert_uint_gt(now(), started + 23 * MS);
    took = d->aside(0);
    ck_assert_uint_gt(took, 23 * MS);
    d->charge(&after);
    ck_assert_uint_eq(now(), started);
    ck_assert_uint_eq(after.driver_ns, before.driver_ns);
    ck_assert_uint_gt(after.host_ns, before.host_ns);
    EXPECT(CUDA_ERROR_NOT_READY, d->cuStreamQuery(s));
    d->sleep_ns(took);
    OK(d->cuStreamQuery(s));
}

/* ------------------------------------------------------------ bytes of device memory ---- */

TEST(copies_and_fills_stay_inside_live_blocks) {
    unsigned char host[1024], back[1024];
    CUdeviceptr block = alloc(1024, s);

    for (size_t i = 0; i < sizeof host; i++)
        host[i] = (unsigned char)i;
    OK(d->cuMemcpyHtoDAsync(block, host, 1024, s));
    OK(d->cuMemsetD8Async(block + 100, 7, 100, s));
    OK(d->cuMemcpyDtoHAsync(back, block, 1024, s));
    ck_assert_mem_eq(back, host, 100);
    ck_assert_uint_eq(back[100], 7);
    ck_assert_uint_eq(back[199], 7);
    ck_assert_mem_eq(back + 200, host + 200, 824);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 7, 1025, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block + 1024, 7, 1, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemcpyDtoHAsync(back, block + 512, SIZE_MAX - 100, s));
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemcpyHtoDAsync((uintptr_t)back, host, 1, s));
    OK(d->cuMemsetD8Async(block, 1, 0, s));
    release(block, s);
    EXPECT(CUDA_ERROR_INVALID_VALUE, d->cuMemsetD8Async(block, 7, 1, s));
}

TEST(unmapped_memory_is_not_there_any_more) {
    CUdeviceptr block = alloc(32 * MIB, s);
    int status;
    pid_t child;

    memset((void *)(uintptr_t)block, 1, MIB);
    release(block, s);
    OK(d->cuStreamSynchronize(s));
    OK(d->cuMemPoolTrimTo(pool, 0));
    child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        *(volatile char *)(uintptr_t)block = 1;
        _exit(0);
    }
    ck_assert(waitpid(child, &status, 0) == child);
    ck_assert(!(WIFEXITED(status) && WEXITSTATUS(status) == 0));
    ck_assert_uint_eq(alloc(32 * MIB, s), block);
    ck_assert_int_eq(*(char *)(uintptr_t)block, 0);
}

TEST(limited_address_space_gives_a_smaller_pool) {
    struct weir_model_setup setup = {.capacity = 16 * GIB};
    struct rlimit limit = {8 * GIB, 8 * GIB};
    CUdeviceptr block;

    if (SANITIZED)
        return;
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    make_objects();
    block = alloc(GIB, s);
    release(block, s);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, 8 * GIB, pool, s));
}

/* ------------------------------------------------------------------ faults ---- */

TEST(planned_call_fails_once_and_does_nothing) {
    CUdeviceptr block;

    weir__model_fail(WEIR_ENTRY_cuMemAllocFromPoolAsync, 2, CUDA_ERROR_OUT_OF_MEMORY, 0);
    block = alloc(KIB, s);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAllocFromPoolAsync(&block, KIB, pool, s));
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), KIB);
    alloc(KIB, s);
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuMemAllocFromPoolAsync), 3);
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuMemFreeAsync), 0);
}

TEST(planned_call_fails_for_good) {
    CUdeviceptr block;
    int count;

    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_ECC_UNCORRECTABLE, 1);
    for (int i = 0; i < 3; i++)
        EXPECT(CUDA_ERROR_ECC_UNCORRECTABLE, d->cuMemAlloc(&block, 1));
    weir__model_fail(WEIR_ENTRY_cuDeviceGetCount, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT(CUDA_ERROR_UNKNOWN, d->cuDeviceGetCount(&count));
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 0, 0, 0);
    OK(d->cuMemAlloc(&block, 1));
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_ECC_UNCORRECTABLE, 1);
    weir__model_faults_clear();
    OK(d->cuMemAlloc(&block, 1));
}

/* Whatever is called: the second call and the third after it, then all from the fourth on. */
TEST(planned_calls_of_any_entry_fail) {
    enum weir_driver_entry last = WEIR_ENTRY_COUNT;
    CUdeviceptr block;
    int count;

    ck_assert_uint_eq(weir__model_faults_met(&last), 0);
    ck_assert_int_eq(last, WEIR_ENTRY_COUNT);
    weir__model_fail_any(2, 3, CUDA_ERROR_UNKNOWN, 0);
    OK(d->cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_UNKNOWN, d->cuMemAlloc(&block, 1));
    OK(d->cuMemAlloc(&block, 1));
    OK(d->cuMemFree(block));
    ck_assert_uint_eq(weir__model_faults_met(NULL), 1);
    EXPECT(CUDA_ERROR_UNKNOWN, d->cuDeviceGetCount(&count));
    ck_assert_uint_eq(weir__model_faults_met(&last), 2);
    ck_assert_int_eq(last, WEIR_ENTRY_cuDeviceGetCount);
    OK(d->cuDeviceGetCount(&count));
    weir__model_faults_clear();
    ck_assert_uint_eq(weir__model_faults_met(NULL), 0);

    weir__model_fail_any(4, 0, CUDA_ERROR_UNKNOWN, 1);
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 2, CUDA_ERROR_OUT_OF_MEMORY, 0);
    OK(d->cuMemAlloc(&block, 1));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, d->cuMemAlloc(&block, 1));
    OK(d->cuMemFree(block));
    for (int i = 0; i < 3; i++)
        EXPECT(CUDA_ERROR_UNKNOWN, d->cuDeviceGetCount(&count));
    weir__model_fail_any(0, 0, CUDA_SUCCESS, 0);
    OK(d->cuDeviceGetCount(&count));
}

TEST(reset_drops_everything) {
    CUdeviceptr block;

    alloc(GIB, s);
    OK(d->cuMemAlloc(&block, 100 * MIB));
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_ECC_UNCORRECTABLE, 1);
    ck_assert_int_eq(weir__model_reset(NULL), 0);
    ck_assert_uint_eq(weir__model_now_ns(), 0);
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuMemAlloc), 0);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, d->cuMemAlloc(&block, 1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, d->cuStreamQuery(s));
    make_objects();
    ck_assert_uint_eq(device_free(), 149557477376u);
    OK(d->cuMemAlloc(&block, 1));
}

/* But it has what the pool had idle, beside the parent. */
TEST(child_after_fork_is_out_of_memory) {
    CUdeviceptr block, first = alloc(1, s);
    int status, count;
    pid_t child = fork();

    if (child == 0) {
        int well =
            d->cuMemAllocFromPoolAsync(&block, 32 * MIB, pool, s) == CUDA_ERROR_OUT_OF_MEMORY &&
            d->cuMemAlloc(&block, 1) == CUDA_ERROR_OUT_OF_MEMORY &&
            d->cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
            d->cuMemAllocFromPoolAsync(&block, 1, pool, s) == CUDA_SUCCESS && block == first + 512;

        _exit(well ? 0 : 1);
    }
    ck_assert(waitpid(child, &status, 0) == child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_uint_eq(alloc(1, s), first + 512);
}

/* ---------------------------------------------------------------- profiles ---- */

static void write_profile(char *path, const char *text) {
    int fd = mkstemp(path);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static const struct {
    const char *text, *words[3];
} bad_profiles[] = {
    {"# fine\nunit_bytes = many\n", {":2:", "unit_bytes", "many"}},
    {"colour = 3\n", {":1:", "colour", "figure"}},
    {"\n\nnonsense\n", {":3:", "nonsense", "key = value"}},
    {"pool_grow_ns = 1:2 1:3\n", {":1:", "pool_grow_ns", "1:2 1:3"}},
    {"pool_grow_ns = 1:2,3\n", {":1:", "pool_grow_ns", "1:2,3"}},
    {"cuStreamGetId = -1\n", {":1:", "cuStreamGetId", "-1"}},
    {"cuStreamGetId = 99999999999999999999\n", {":1:", "cuStreamGetId", "9999"}},
    {"unit_bytes = 1000000\n", {"unit_bytes", "power of two", "/"}},
    {"name =\n", {":1:", "name", "\"\""}},
    {"driver_version = 11010\n", {"driver_version", "11020", "/"}},
};

TEST(bad_profile_is_named_with_line_and_value) {
    char path[] = "/tmp/weir-profile-XXXXXX";
    struct weir_driver_failure failure;
    struct weir_model_setup setup = {.profile = path, .failure = &failure};

    write_profile(path, bad_profiles[_i].text);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    unlink(path);
    for (int k = 0; k < 3; k++)
        ck_assert_msg(strstr(failure.text, bad_profiles[_i].words[k]) != NULL, "\"%s\" lacks %s",
                      failure.text, bad_profiles[_i].words[k]);
    alloc(1, s); /* the model is as it was */
}

TEST(profile_overrides_the_built_in_one_key_by_key) {
    char path[] = "/tmp/weir-profile-XXXXXX", name[64];
    struct weir_model_setup setup = {.profile = path};
    unsigned long long id;
    uint64_t start;

    write_profile(path, "name = Small GPU\ncapacity = 8589934592\n"
                        "context_bytes = 0\ncuStreamGetId = 1000\n");
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    unlink(path);
    make_objects();
    OK(d->cuDeviceGetName(name, sizeof name, 0));
    ck_assert_str_eq(name, "Small GPU (device model)");
    ck_assert_uint_eq(device_free(), 8 * GIB);
    start = now();
    OK(d->cuStreamGetId(s, &id));
    ck_assert_uint_eq(now() - start, 1000);
}

static const struct {
    int version;
    unsigned capabilities;
} older_drivers[] = {
    {11020, 0},
    {11030, WEIR_CAP_POOL_FIGURES},
    {11040, WEIR_CAP_POOL_FIGURES | WEIR_CAP_GRAPH},
    {12010, WEIR_CAP_POOL_FIGURES | WEIR_CAP_GRAPH | WEIR_CAP_STREAM_ID},
    {12020, WEIR_CAP_POOL_FIGURES | WEIR_CAP_GRAPH | WEIR_CAP_STREAM_ID | WEIR_CAP_POOL_MAX_SIZE},
};
enum { EVERY_DRIVER = WEIR_CAP_KERNEL | WEIR_CAP_VIRTUAL | WEIR_CAP_PEER | WEIR_CAP_IPC };

/* The next reset to the built-in profile brings everything back. */
TEST(profile_of_an_older_driver_plays_it) {
    char path[] = "/tmp/weir-profile-XXXXXX", text[64];
    struct weir_model_setup setup = {.profile = path};
    unsigned capabilities = older_drivers[_i].capabilities | EVERY_DRIVER;
    CUmemPoolProps props = properties();
    uint64_t number = 0;
    int version = 0;

    snprintf(text, sizeof text, "driver_version = %d\n", older_drivers[_i].version);
    write_profile(path, text);
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    unlink(path);
    make_objects();
    ck_assert_int_eq(d->version, older_drivers[_i].version);
    OK(d->cuDriverGetVersion(&version));
    ck_assert_int_eq(version, older_drivers[_i].version);
    ck_assert_uint_eq(d->capabilities, capabilities);
    ck_assert_int_eq(d->cuStreamGetId != NULL, (capabilities & WEIR_CAP_STREAM_ID) != 0);
    ck_assert_int_eq(d->cuStreamBeginCapture != NULL, (capabilities & WEIR_CAP_GRAPH) != 0);
    for (CUmemPool_attribute a = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
         a <= CU_MEMPOOL_ATTR_USED_MEM_HIGH; a++)
        EXPECT(capabilities & WEIR_CAP_POOL_FIGURES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE,
               d->cuMemPoolGetAttribute(pool, a, &number));
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), UINT64_MAX);
    props.maxSize = GIB;
    EXPECT(capabilities & WEIR_CAP_POOL_MAX_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE,
           d->cuMemPoolCreate(&pool, &props));
    reset_to(GIB);
    ck_assert_int_eq(d->version, 13000);
    ck_assert_uint_eq(d->capabilities, EVERY_DRIVER | WEIR_CAP_POOL_FIGURES | WEIR_CAP_GRAPH |
                                           WEIR_CAP_STREAM_ID | WEIR_CAP_POOL_MAX_SIZE);
    ck_assert_ptr_nonnull(d->cuStreamGetId);
}

TEST(environment_gives_devices_and_profile) {
    struct weir_driver_failure failure;
    struct weir_model_setup setup = {.failure = &failure};
    int count;

    setenv("WEIR_MODEL_DEVICES", "4", 1);
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    OK(d->cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 4);
    setenv("WEIR_MODEL_DEVICES", "four", 1);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    ck_assert(strstr(failure.text, "WEIR_MODEL_DEVICES") && strstr(failure.text, "four"));
    unsetenv("WEIR_MODEL_DEVICES");
    setenv("WEIR_MODEL_PROFILE", "/nowhere/at.all", 1);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    ck_assert(strstr(failure.text, "/nowhere/at.all") != NULL);
    setenv("WEIR_MODEL_PROFILE", "/dev/null", 1);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    ck_assert(strstr(failure.text, "the profile /dev/null is empty; expected lines") != NULL);
    unsetenv("WEIR_MODEL_PROFILE");
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    make_objects();
}

/* As of every variable of weir's. */
TEST(an_empty_variable_is_refused) {
    static const char *const names[] = {"WEIR_MODEL_PROFILE", "WEIR_MODEL_DEVICES",
                                        "WEIR_MODEL_SHARED"};
    struct weir_driver_failure failure;
    struct weir_model_setup setup = {.failure = &failure};
    char expected[80];

    setenv(names[_i], "", 1);
    ck_assert_int_eq(weir__model_reset(&setup), -1);
    snprintf(expected, sizeof expected, "%s '': it is empty; expected ", names[_i]);
    ck_assert_msg(strncmp(failure.text, expected, strlen(expected)) == 0, "%s", failure.text);
    unsetenv(names[_i]);
    ck_assert_int_eq(weir__model_reset(&setup), 0);
    make_objects();
}

/* ------------------------------------------------------------ at random ---- */

enum { SLOTS = 3000, OPERATIONS = 110000 };

struct slot {
    CUdeviceptr address;
    size_t bytes;
    uint64_t stamp;
    int is_direct; /* from cuMemAlloc */
};

/* A word every 256 bytes, or 64 words in a large block, and the last bytes. */
static size_t step_of(const struct slot *slot) {
    return slot->bytes < 16 * KIB ? 32 : slot->bytes / 8 / 64;
}

static void stamp(const struct slot *slot) {
    uint64_t *words = (uint64_t *)(uintptr_t)slot->address;

    for (size_t i = 0; i < slot->bytes / 8; i += step_of(slot))
        words[i] = slot->stamp + i;
    for (size_t i = slot->bytes & ~(size_t)7; i < slot->bytes; i++)
        ((unsigned char *)words)[i] = (unsigned char)slot->stamp;
}

static void verify(const struct slot *slot) {
    const uint64_t *words = (const uint64_t *)(uintptr_t)slot->address;

    for (size_t i = 0; i < slot->bytes / 8; i += step_of(slot))
        MUST_EQ(words[i], slot->stamp + i);
    for (size_t i = slot->bytes & ~(size_t)7; i < slot->bytes; i++)
        MUST_EQ(((const unsigned char *)words)[i], (unsigned char)slot->stamp);
}

static size_t random_bytes(uint64_t *seed) {
    unsigned bits = (unsigned)(next_random(seed) % 18) + 4;

    return (size_t)(next_random(seed) & (((uint64_t)1 << bits) - 1)) + 1;
}

/* Of blocks of the pool that cuMemFree took. */
static _Atomic uint64_t used_no_more;

/* A request may fail when the device is full; a free never does. */
static void random_block(struct slot *slot, uint64_t *seed, CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    int direct = next_random(seed) % 8 == 0;

    if (slot->address) {
        verify(slot);
        if (direct && !slot->is_direct)
            used_no_more += slot->bytes;
        if (direct)
            OK(d->cuMemFree(slot->address));
        else
            release(slot->address, stream);
        slot->address = 0;
        return;
    }
    slot->bytes = random_bytes(seed);
    slot->stamp = next_random(seed);
    slot->is_direct = direct;
    if (direct)
        result = d->cuMemAlloc(&slot->address, slot->bytes);
    else
        result = d->cuMemAllocFromPoolAsync(&slot->address, slot->bytes, pool, stream);
    MUST(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS)
        stamp(slot);
}

static void random_other(uint64_t *seed, CUstream *stream, CUevent event) {
    CUmemPool_attribute policy = (CUmemPool_attribute)(next_random(seed) % 3 + 1);

    switch (next_random(seed) % 12) {
    case 0:
    case 1:
    case 2:
    case 3:
        OK(weir__model_kernel(*stream, next_random(seed) % (100 * 1000)));
        break;
    case 4:
    case 5:
        OK(d->cuEventRecord(event, *stream));
        break;
    case 6:
    case 7:
        OK(d->cuStreamWaitEvent(*stream, event, 0));
        break;
    case 8:
        set(policy, next_random(seed) & 1);
        break;
    case 9:
        OK(d->cuStreamSynchronize(*stream));
        break;
    case 10:
        OK(d->cuMemPoolTrimTo(pool, next_random(seed) % (512 * MIB)));
        break;
    default:
        OK(d->cuStreamDestroy(*stream));
        OK(d->cuStreamCreate(stream, (unsigned)(next_random(seed) & 1)));
        break;
    }
}

/* Three setups: room for all, a tight device, and threshold 0 as well. */
TEST(no_two_live_blocks_ever_overlap) {
    static struct slot slots[SLOTS];
    uint64_t seed = 1234567 + (uint64_t)_i;
    CUstream own[4];
    CUevent event;

    reset_to(_i == 0 ? 16 * GIB : 256 * MIB);
    used_no_more = 0;
    if (_i == 2)
        set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 4; i++)
        OK(d->cuStreamCreate(&own[i], (unsigned)(i & 1)));
    for (int i = 0; i < OPERATIONS; i++) {
        random_block(&slots[next_random(&seed) % SLOTS], &seed, own[next_random(&seed) % 4]);
        if (next_random(&seed) % 16 == 0)
            random_other(&seed, &own[next_random(&seed) % 4], event);
        if (i % 2048 == 0)
            check_model();
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].address) {
            verify(&slots[i]);
            release(slots[i].address, own[0]);
        }
    OK(d->cuCtxSynchronize());
    OK(d->cuMemPoolTrimTo(pool, 0));
    ck_assert_uint_eq(reserved(), 0);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), used_no_more);
}

static void *hammer(void *argument) {
    static _Atomic uint64_t turn;
    struct slot slots[64] = {{0, 0, 0, 0}};
    uint64_t seed = 77 + ++turn;
    unsigned long long id;
    CUstream stream;
    CUevent event;

    (void)argument;
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 5000; i++) {
        random_block(&slots[next_random(&seed) % 64], &seed, stream);
        if (next_random(&seed) % 16 == 0) {
            OK(weir__model_kernel(stream, 1000));
            OK(d->cuEventRecord(event, stream));
            OK(d->cuStreamWaitEvent(s, event, 0));
            OK(d->cuStreamGetId((CUstream)WEIR_STREAM_PER_THREAD_VALUE, &id));
        }
    }
    for (int i = 0; i < 64; i++)
        if (slots[i].address) {
            verify(&slots[i]);
            release(slots[i].address, stream);
        }
    OK(d->cuEventDestroy(event));
    OK(d->cuStreamDestroy(stream));
    return NULL;
}

TEST(threads_share_the_model) {
    pthread_t threads[4];
    uint64_t calls;

    reset_to(4 * GIB);
    used_no_more = 0;
    calls = weir__model_calls(WEIR_ENTRY_cuStreamCreate);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(weir__model_calls(WEIR_ENTRY_cuStreamCreate), calls + 4);
    ck_assert_uint_eq(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), used_no_more);
}

/* ------------------------------------------------------------------ the suite ---- */

static TCase *add_case(Suite *suite, const char *name) {
    return suite_add_case(suite, name, 60, set_up, check_model);
}

static void add_devices(Suite *suite) {
    TCase *devices = add_case(suite, "devices"), *bare = tcase_create("bare"),
          *streams_case = add_case(suite, "streams"), *direct = add_case(suite, "cuMemAlloc");

    tcase_add_test(bare, before_init_everything_is_refused);
    suite_add_tcase(suite, bare);
    ADD_TESTS(devices, device_is_an_h200_and_says_that_it_is_modelled,
              setup_gives_devices_and_capacity,
              without_a_context_an_explicit_stream_still_serves_a_pool,
              current_context_is_the_thread_s_own,
              pool_memory_outlives_the_context_and_streams_do_not, error_names_are_those_of_cuda);

    ADD_TESTS(streams_case, destroyed_handle_is_reused_at_once_and_the_ids_differ,
              destroyed_or_foreign_handle_is_invalid, stream_is_done_when_its_kernel_is,
              delay_kernel_is_played_by_its_name, time_between_events_is_that_of_the_device,
              work_of_a_destroyed_stream_completes, event_that_was_never_recorded_is_complete,
              recording_again_overwrites_an_event, waiting_stream_is_done_after_the_event,
              legacy_stream_and_blocking_streams_wait_for_each_other,
              per_thread_stream_is_another_in_each_thread,
              a_thread_ends_after_the_context_of_its_own_stream,
              nothing_is_capturing_and_the_mode_is_the_thread_s_own);

    ADD_TESTS(direct, cuMemAlloc_of_nothing_is_invalid, cuMemFree_waits_for_all_work,
              cuMemGetAddressRange_tells_the_block_and_the_bytes_asked_for,
              cuMemFreeHost_waits_for_all_work_and_takes_nothing_from_the_device,
              cuMemFree_of_a_pool_block_waits_for_nothing,
              cuMemFreeAsync_of_a_cuMemAlloc_block_succeeds,
              cuMemAlloc_takes_pages_of_2_MiB_and_packs_small_blocks,
              cuMemAlloc_and_cuMemFree_cost_what_they_cost, device_memory_runs_out);
}

static void add_pools(Suite *suite) {
    TCase *blocks = add_case(suite, "blocks"), *reuse = add_case(suite, "reuse");

    ADD_TESTS(blocks, nothing_from_a_pool_is_a_null_pointer,
              interior_double_and_foreign_frees_lose_nothing,
              used_counts_the_bytes_asked_for_and_no_pending_free,
              high_water_marks_take_zero_and_fall_to_the_current_value,
              policies_are_ints_and_on_at_first, pool_properties_are_checked,
              destroyed_pool_goes_when_its_last_block_goes);

    ADD_TESTS(
        reuse, same_stream_reuses_at_once_even_when_busy,
        block_freed_on_a_busy_stream_is_not_handed_to_another_stream,
        block_freed_on_an_idle_stream_is_handed_to_another_stream,
        growth_on_an_idle_stream_serves_a_busy_one, growth_on_a_busy_stream_serves_no_other,
        wait_on_an_event_after_the_free_gives_the_same_address_at_once,
        wait_on_an_event_before_the_free_does_not, order_is_passed_on_through_a_third_stream,
        event_policy_switched_off_gives_no_reuse_by_events,
        launch_hides_what_was_done_until_its_work_begins,
        opportunistic_policy_switched_off_leaves_reuse_to_synchronisation,
        full_device_orders_a_stream_behind_pending_room, internal_dependencies_are_on_the_best_fit,
        internal_dependencies_join_no_pieces, internal_policy_switched_off_is_out_of_memory_instead,
        internal_dependencies_see_nothing_else, internal_dependencies_help_at_the_maximum_too,
        what_is_ordered_goes_before_what_is_done,
        its_own_and_free_neighbours_are_not_taken_together,
        neighbours_of_two_streams_are_not_taken_together, only_what_the_host_waited_for_is_seen,
        the_legacy_stream_has_what_blocking_streams_freed,
        what_an_ended_stream_freed_serves_others);
    tcase_add_loop_test(reuse, policies_alone_and_together_on_a_full_device, 0, 8);
}

static void add_units(Suite *suite) {
    TCase *units = add_case(suite, "units"), *placement = add_case(suite, "placement");

    ADD_TESTS(units, reserve_grows_in_units_and_blocks_pack_across_them,
              blocks_allocated_in_turn_or_together,
              freed_neighbours_serve_one_large_request_without_growth, scattered_holes_are_remapped,
              holes_smaller_than_a_unit_serve_nothing_larger, trim_rounds_up_to_units,
              trim_gives_back_what_was_waited_for_not_what_is_done, queries_let_no_threshold_act,
              threshold_acts_at_a_synchronisation_and_rounds_down,
              synchronising_the_context_lets_the_threshold_act, growth_and_trim_wait_for_no_kernel,
              max_size_holds_at_allocation, what_grew_for_a_refused_request_stays,
              what_cuMemFree_took_counts_as_used, impossible_request_is_refused_after_159_ms,
              whole_device_can_be_taken);

    ADD_TESTS(placement, among_equal_holes_the_first_freed_serves_first,
              the_smallest_hole_that_fits_is_cut_from_its_front,
              holes_that_were_settled_serve_latest_freed_first,
              of_a_stream_the_best_fit_serves_or_else_the_oldest_that_holds_it,
              idle_streams_take_from_each_other_as_on_an_h200,
              growth_takes_the_smallest_hole_backed_or_not);
    tcase_add_loop_test(placement, recorded_programs_get_the_addresses_of_an_h200, 0,
                        (int)(sizeof programs / sizeof programs[0]));
}

static void add_rest(Suite *suite) {
    TCase *costs = add_case(suite, "time"), *faults = add_case(suite, "faults"),
          *random = add_case(suite, "random");

    ADD_TESTS(costs, warm_pair_costs_590_ns, pair_costs_more_among_more_live_blocks,
              growth_costs_what_it_costs, small_calls_cost_what_they_cost,
              same_calls_take_the_same_time, charge_measures_real_time_from_its_first_call_on,
              what_is_played_aside_takes_none_of_the_callers_time);

    ADD_TESTS(faults, copies_and_fills_stay_inside_live_blocks,
              unmapped_memory_is_not_there_any_more, limited_address_space_gives_a_smaller_pool,
              planned_call_fails_once_and_does_nothing, planned_call_fails_for_good,
              planned_calls_of_any_entry_fail, reset_drops_everything,
              child_after_fork_is_out_of_memory, profile_overrides_the_built_in_one_key_by_key,
              environment_gives_devices_and_profile);
    tcase_add_loop_test(faults, bad_profile_is_named_with_line_and_value, 0,
                        (int)(sizeof bad_profiles / sizeof bad_profiles[0]));
    tcase_add_loop_test(faults, profile_of_an_older_driver_plays_it, 0,
                        (int)(sizeof older_drivers / sizeof older_drivers[0]));
    tcase_add_loop_test(faults, an_empty_variable_is_refused, 0, 3);

    tcase_add_loop_test(random, no_two_live_blocks_ever_overlap, 0, 3);
    tcase_add_test(random, threads_share_the_model);
}

int main(void) {
    Suite *suite = suite_create("model");

    add_devices(suite);
    add_pools(suite);
    add_units(suite);
    add_rest(suite);
    return run_suite(suite, CK_FORK_GETENV);
}
