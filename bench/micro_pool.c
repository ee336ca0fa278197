/* SPDX-License-Identifier: MIT */
/* micro_pool.c: what the pool engine adds to the driver's own pool, in ns per warm pair.
 *
 *     bench/micro_pool [cuda[:N]|model[:N]]
 *
 * One thread, one stream.  Two contestants, each with a private pool that keeps everything: the
 * driver called from a plain loop, and weir_alloc/weir_free over engine pool.  They take turns in
 * short rounds, so that what disturbs the machine disturbs both; the figure is the median over
 * rounds of (time of the round / pairs), one reading of the clock a round.  Prints one line of JSON
 * per block size: ns per pair of each, their difference and their ratio.
 *
 * On the device model the times are this machine's, of code alone, and say nothing about a GPU.
 *
 * Must not know: how the engine works.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "allocator_internal.h"
#include "settings.h"

enum { ROUNDS = 201, PAIRS = 2000 };

static const struct weir_driver *driver;
static CUmemoryPool pool;
static CUstream stream;
static weir_allocator *allocator;

static void check(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "micro_pool: %s: %s\n", what, weir__driver_error_name(driver, result));
    exit(1);
}

static void open_all(const char *device) {
    struct weir_driver_failure failure;
    const char *name;
    char message[256] = "";
    weir_options options;
    CUmemPoolProps properties;
    CUcontext context;
    CUdevice dev;
    uint64_t keep = UINT64_MAX;
    int ordinal;

    if (weir__device_parse(device, &name, &ordinal, message, sizeof message) != WEIR_OK ||
        !(driver = weir__driver_open(name, &failure))) {
        fprintf(stderr, "micro_pool: %s\n", message[0] ? message : failure.text);
        exit(1);
    }
    check(driver->cuDeviceGet(&dev, ordinal), "device");
    check(driver->cuDevicePrimaryCtxRetain(&context, dev), "context");
    check(driver->cuCtxPushCurrent(context), "context");
    check(driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = dev;
    check(driver->cuMemPoolCreate(&pool, &properties), "pool");
    check(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep), "pool");
    weir_options_init(&options);
    options.device = device;
    options.engine = WEIR_ENGINE_POOL;
    if (weir__allocator_create_on(driver, &options, &allocator, message, sizeof message) !=
        WEIR_OK) {
        fprintf(stderr, "micro_pool: %s\n", message);
        exit(1);
    }
}

static double now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double round_raw(size_t bytes) {
    double started = now_ns();
    CUdeviceptr block;

    for (int i = 0; i < PAIRS; i++) {
        if (driver->cuMemAllocFromPoolAsync(&block, bytes, pool, stream) != CUDA_SUCCESS ||
            driver->cuMemFreeAsync(block, stream) != CUDA_SUCCESS)
            check(1, "the driver's pool");
    }
    return (now_ns() - started) / PAIRS;
}

static double round_weir(size_t bytes) {
    double started = now_ns();
    void *block;

    for (int i = 0; i < PAIRS; i++) {
        if (weir_alloc(allocator, bytes, stream, &block) != WEIR_OK ||
            weir_free(allocator, block, stream) != WEIR_OK)
            check(1, "weir");
    }
    return (now_ns() - started) / PAIRS;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {512, 65536, (size_t)1 << 20, (size_t)16 << 20};
    static double raw[ROUNDS], weir[ROUNDS];

    open_all(argc > 1 ? argv[1] : "cuda");
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double driver_ns, weir_ns;

        (void)round_raw(sizes[s]); /* the first growth of each is no part of it */
        (void)round_weir(sizes[s]);
        for (int i = 0; i < ROUNDS; i++) {
            raw[i] = round_raw(sizes[s]);
            weir[i] = round_weir(sizes[s]);
        }
        driver_ns = median(raw);
        weir_ns = median(weir);
        printf("{\"bytes\": %zu, \"device\": \"%s\", \"driver_ns\": %.1f, \"weir_pool_ns\": %.1f, "
               "\"added_ns\": %.1f, \"ratio\": %.3f}\n",
               sizes[s], driver->name, driver_ns, weir_ns, weir_ns - driver_ns,
               weir_ns / driver_ns);
    }
    return weir_allocator_destroy(allocator) == WEIR_OK ? 0 : 1;
}
