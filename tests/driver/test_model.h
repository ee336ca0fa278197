/* SPDX-License-Identifier: MIT */
/* test_model.h: shared parts of the device model's suites: a device, a pool and two streams. */
#ifndef WEIR_TEST_MODEL_H
#define WEIR_TEST_MODEL_H

#include <sys/resource.h>

#include "driver/driver.h"
#include "driver/model/model.h"
#include "tests/fixtures/faults.h"
#include "tests/fixtures/random.h"

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

/* Expects that `value` is within `percent` of `wanted`. */
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

static inline CUmemPoolProps plain_pool_properties(void) {
    CUmemPoolProps props;

    memset(&props, 0, sizeof props);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return props;
}

static inline void set_pool_attribute(CUmemPool_attribute attribute, uint64_t number) {
    int policy = (int)number;

    OK(d->cuMemPoolSetAttribute(pool, attribute,
                                attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES
                                    ? (void *)&policy
                                    : (void *)&number));
}

static inline uint64_t get_pool_attribute(CUmemPool_attribute attribute) {
    uint64_t number = 0;

    OK(d->cuMemPoolGetAttribute(pool, attribute, &number));
    return number;
}

static inline uint64_t reserved_by_pool(void) {
    return get_pool_attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static inline void make_model_pool(size_t max_size) {
    CUmemPoolProps props = plain_pool_properties();

    props.maxSize = max_size;
    OK(d->cuMemPoolCreate(&pool, &props));
    set_pool_attribute(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
}

static inline void make_objects(void) {
    OK(d->cuInit(0));
    OK(d->cuDevicePrimaryCtxRetain(&context, 0));
    OK(d->cuCtxPushCurrent(context));
    OK(d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(d->cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
    make_model_pool(0);
}

static inline void reset_to(uint64_t capacity) {
    struct weir_model_setup setup = {.capacity = capacity};

    ck_assert_int_eq(weir__model_reset(&setup), 0);
    make_objects();
}

static inline void set_up_model(void) {
    struct weir_driver_failure failure;

    unsetenv("WEIR_MODEL_DEVICES");
    unsetenv("WEIR_MODEL_PROFILE");
    d = weir__driver_model(&failure);
    ck_assert_msg(d != NULL, "%s", failure.text);
    make_objects();
}

static inline void check_pools(void) {
    const char *wrong = weir__model_pool_check();

    ck_assert_msg(!wrong, "%s", wrong);
}

static inline CUdeviceptr alloc(size_t bytes, CUstream stream) {
    CUdeviceptr block = 1;

    OK(d->cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    return block;
}

static inline void free_async(CUdeviceptr block, CUstream stream) {
    OK(d->cuMemFreeAsync(block, stream));
}

/* Nanoseconds that the profile adds to the first growth. */
#define FIRST UINT64_C(7600000)

static inline uint64_t model_ticks(void) {
    return d->ticks();
}

static inline size_t free_bytes_now(void) {
    size_t bytes, total;

    OK(d->cuMemGetInfo(&bytes, &total));
    return bytes;
}

#endif
