/* SPDX-License-Identifier: MIT */
/* bare_growth.c: compares the time that weir and the driver itself need to reserve memory of the device.
 *
 *     bench/bare_growth [cuda[:N]|model[:N]]
 *
 * The program uses three sizes: 1 GiB, 10 GiB and 75% of the device.  For each size it measures four ways to get
 * memory:
 *   - cuMemAlloc
 *   - one request to an empty pool of the driver
 *   - weir_preallocate() in a new allocator, for each engine
 *   - one request in a new allocator
 * It measures these ways in turn, ROUNDS times each, because the driver takes longer for pages that were just
 * released.  It prints the median and the minimum in microseconds, as a JSON array with one element on each line.
 */
#include <weir/weir.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/common.h"

enum { ROUNDS = 5 };
#define GIB ((size_t)1 << 30)

static const char *device_name = "cuda";

#define WEIR(call)                                                                                 \
    do {                                                                                           \
        const weir_status status = (call);                                                         \
        if (status != WEIR_OK)                                                                     \
            bench_fail(#call, weir_status_name(status));                                           \
    } while (0)

static double now_us(void) {
    struct timespec now;

    if (bench_driver->charge) /* the device model has a virtual clock */
        return (double)bench_driver->ticks() / 1e3;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static double measure_malloc_growth(size_t bytes, const char *const *settings) {
    CUdeviceptr block;
    double started = now_us(), took;

    (void)settings;
    BENCH_CALL(cuMemAlloc, &block, bytes);
    took = now_us() - started;
    BENCH_CALL(cuMemFree, block);
    return took;
}

static double measure_pool_growth(size_t bytes, const char *const *settings) {
    CUmemPoolProps properties;
    CUmemoryPool pool;
    CUdeviceptr block;
    CUstream stream;
    double started, took;

    (void)settings;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = bench_device;
    BENCH_CALL(cuMemPoolCreate, &pool, &properties);
    BENCH_CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    started = now_us();
    BENCH_CALL(cuMemAllocFromPoolAsync, &block, bytes, pool, stream);
    took = now_us() - started;
    BENCH_CALL(cuMemFreeAsync, block, stream);
    BENCH_CALL(cuStreamSynchronize, stream);
    BENCH_CALL(cuMemPoolDestroy, pool);
    BENCH_CALL(cuStreamDestroy, stream);
    return took;
}

/* Creates an allocator.  `settings' contains a name, its value, the next name, its value, ..., and NULL at the end. */
static weir_allocator *create_with_settings(const char *const *settings) {
    weir_options options;
    weir_allocator *a;
    char message[256] = "";

    weir_options_init(&options);
    options.device = device_name;
    for (; *settings; settings += 2)
        if (weir_options_set(&options, settings[0], settings[1], message, sizeof message) !=
            WEIR_OK)
            bench_fail(settings[0], message);
    WEIR(weir_allocator_create(&options, &a));
    return a;
}

static double measure_weir_growth(size_t bytes, const char *const *settings) {
    weir_allocator *a = create_with_settings(settings);
    double started = now_us(), took;

    WEIR(weir_preallocate(a, bytes, NULL));
    took = now_us() - started;
    WEIR(weir_allocator_destroy(a));
    return took;
}

/* Returns the time of one request of `bytes' bytes in a new allocator, in microseconds. */
static double measure_request_growth(size_t bytes, const char *const *settings) {
    weir_allocator *a = create_with_settings(settings);
    double started, took;
    CUstream stream;
    void *block;

    BENCH_CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    started = now_us();
    WEIR(weir_alloc(a, bytes, stream, &block));
    took = now_us() - started;
    WEIR(weir_free(a, block, stream));
    BENCH_CALL(cuStreamSynchronize, stream);
    WEIR(weir_allocator_destroy(a));
    BENCH_CALL(cuStreamDestroy, stream);
    return took;
}

static const struct {
    const char *name;
    double (*measure)(size_t bytes, const char *const *settings);
    const char *settings[8];
} ways[] = {
    {"cuMemAlloc", measure_malloc_growth, {NULL}},
    {"driver pool", measure_pool_growth, {NULL}},
    {"weir pool", measure_weir_growth, {"engine", "pool"}},
    {"weir bfc", measure_weir_growth, {"engine", "bfc"}},
    {"weir mapped", measure_weir_growth, {"engine", "mapped"}},
    {"request, pool", measure_request_growth, {"engine", "pool"}},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

int main(int count, char **arguments) {
    size_t total, sizes[3] = {GIB, 10 * GIB};

    if (count > 1)
        device_name = arguments[1];
    bench_open(device_name);
    BENCH_CALL(cuDeviceTotalMem, &total, bench_device);
    sizes[2] = total / 4 * 3 / ((size_t)2 << 20) * ((size_t)2 << 20);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double us[WAYS][ROUNDS];

        for (int round = 0; round < ROUNDS; round++)
            for (size_t w = 0; w < WAYS; w++)
                us[w][round] = ways[w].measure(sizes[s], ways[w].settings);
        for (size_t w = 0; w < WAYS; w++) {
            const double median = bench_median(us[w], ROUNDS);

            printf("%s{\"way\": \"%s\", \"bytes\": %zu, \"median_us\": %.1f, \"least_us\": %.1f}",
                   s + w ? ",\n " : "[\n ", ways[w].name, sizes[s], median, us[w][0]);
        }
    }
    puts("\n]");
    return 0;
}
