/* SPDX-License-Identifier: MIT */
/* bare_driver.c: one trace through one memory pool, with nothing in between.
 *
 *     zcat TRACE.trace.gz | bench/bare_driver [cuda[:N]|model[:N]]
 *
 * The reference for the weir program's configuration driver-keep: a private pool that keeps everything
 * (release threshold max), the driver called from a plain loop, clock_gettime around each call (on
 * the device model its virtual clock).  The trace is parsed beforehand; each of its streams becomes
 * a stream; `m` ends an iteration and synchronises the device; what replay would have to act on
 * besides (`u`, `w`) is refused.  The timer's own cost, the median of 100,001 pairs of readings, is
 * taken off each call.  Prints one line of JSON: nanoseconds in the calls of each iteration, the
 * median of the last half of them (steady_ns), and the pool's high-water mark.
 *
 * Must not know: the allocator; of the library only the table of driver entry points.
 */
#include "base/clock.h"
#include "driver/driver.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 1024, TIMER_PAIRS = 100001, MOST_BLOCKS = 1 << 28 };

struct operation {
    char code; /* a, f or m */
    unsigned stream;
    uint64_t block;
    size_t bytes;
};

static const struct weir_driver *driver;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "bare_driver: %s: %s\n", what, why);
    exit(1);
}

/* Checks a driver call by its name. */
#define CALL(entry, ...)                                                                           \
    do {                                                                                           \
        const CUresult result = driver->entry(__VA_ARGS__);                                        \
        if (result != CUDA_SUCCESS)                                                                \
            fail(#entry, weir__driver_error_name(driver, result));                                 \
    } while (0)

static uint64_t now_ns(void) {
    return driver->charge ? driver->ticks_to_ns(driver->ticks()) /* a modelled device */
                          : weir__clock_ns();
}

static int by_value(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static uint64_t median(const uint64_t *values, size_t count) {
    uint64_t *sorted = malloc((count + 1) * sizeof *sorted), middle;

    if (!sorted)
        fail("malloc", "out of memory");
    if (count == 0)
        return 0;
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_value);
    middle = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    free(sorted);
    return middle;
}

static uint64_t timer_cost_ns(void) {
    static uint64_t pairs[TIMER_PAIRS];

    for (size_t i = 0; i < TIMER_PAIRS; i++) {
        const uint64_t start = now_ns();

        pairs[i] = now_ns() - start;
    }
    return median(pairs, TIMER_PAIRS);
}

/* Reads all of the trace; streams become indices, `blocks` and `streams` how many there are. */
static struct operation *read_trace(FILE *file, size_t *count, uint64_t *blocks,
                                    unsigned *streams) {
    static uint64_t names[STREAMS];
    struct operation *operations = NULL;
    size_t room = 0;
    char line[512];

    for (*count = *blocks = *streams = 0; fgets(line, sizeof line, file);) {
        struct operation next = {0, 0, 0, 0};
        uint64_t bytes = 0, stream = 0;
        const int fields = sscanf(line, "%*s %c %" SCNu64 " %" SCNu64 " %" SCNu64, &next.code,
                                  &next.block, &bytes, &stream);

        if (line[0] == '#' || next.code == 'x')
            continue;
        if (next.code != 'm' && (fields != 4 || !strchr("af", next.code)))
            fail("cannot replay", line);
        if (next.code != 'm' && next.block >= MOST_BLOCKS)
            fail("too many blocks", line);
        for (next.stream = 0; next.stream < *streams && names[next.stream] != stream;)
            next.stream++;
        if (next.stream == STREAMS)
            fail("too many streams", line);
        if (next.code != 'm' && next.stream == *streams)
            names[(*streams)++] = stream;
        if (next.code != 'm' && next.block >= *blocks)
            *blocks = next.block + 1;
        next.bytes = (size_t)bytes;
        if (*count == room) {
            room = room ? 2 * room : 4096;
            operations = realloc(operations, room * sizeof *operations);
            if (!operations)
                fail("realloc", "out of memory");
        }
        operations[(*count)++] = next;
    }
    return operations;
}

/* Makes the device's context current; where it stands in the driver's order. */
static int open_device(const char *device) {
    struct weir_driver_failure failure;
    CUcontext context;
    CUdevice handle;
    char name[128];
    int ordinal = 0;

    if (sscanf(device, "%15[a-z]:%d", name, &ordinal) < 1)
        fail(device, "not a device: cuda[:N] or model[:N]");
    driver = weir__driver_open(name, &failure);
    if (!driver)
        fail(device, failure.text);
    CALL(cuDeviceGet, &handle, ordinal);
    CALL(cuDevicePrimaryCtxRetain, &context, handle);
    CALL(cuCtxPushCurrent, context);
    CALL(cuDeviceGetName, name, sizeof name, handle);
    printf("{\"device\": \"%s:%d %s\", ", driver->name, ordinal, name);
    return ordinal;
}

static CUmemoryPool make_pool(int ordinal) {
    CUmemPoolProps properties;
    CUmemoryPool pool;
    uint64_t keep = UINT64_MAX;

    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal;
    CALL(cuMemPoolCreate, &pool, &properties);
    CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    return pool;
}

int main(int argc, char **argv) {
    size_t count, marks = 0;
    uint64_t blocks, cost, spent = 0, high = 0, *iterations;
    unsigned stream_count;
    struct operation *operations = read_trace(stdin, &count, &blocks, &stream_count);
    CUdeviceptr *addresses = calloc((size_t)blocks + 1, sizeof *addresses);
    static CUstream streams[STREAMS];
    CUmemoryPool pool;

    iterations = calloc(count + 1, sizeof *iterations);
    if (!iterations || !addresses)
        fail("calloc", "out of memory");
    pool = make_pool(open_device(argc > 1 ? argv[1] : "cuda"));
    for (unsigned i = 0; i < stream_count; i++)
        CALL(cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
    cost = timer_cost_ns();

    for (const struct operation *op = operations; op < operations + count; op++) {
        uint64_t start, ns;

        if (op->code == 'm') {
            CALL(cuCtxSynchronize);
            iterations[marks++] = spent;
            spent = 0;
            continue;
        }
        start = now_ns();
        if (op->code == 'a')
            CALL(cuMemAllocFromPoolAsync, &addresses[op->block], op->bytes, pool,
                 streams[op->stream]);
        else
            CALL(cuMemFreeAsync, addresses[op->block], streams[op->stream]);
        ns = now_ns() - start;
        spent += ns > cost ? ns - cost : 0;
    }

    if (driver->capabilities & WEIR_CAP_POOL_FIGURES)
        CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &high);
    printf("\"timer_ns\": %" PRIu64 ", \"operations\": %zu, \"alloc_ns\": [", cost, count);
    for (size_t i = 0; i < marks; i++)
        printf("%s%" PRIu64, i ? ", " : "", iterations[i]);
    printf("], \"steady_ns\": %" PRIu64 ", \"reserve_peak_bytes\": %" PRIu64 "}\n",
           median(iterations + marks / 2, marks - marks / 2), high);
    free(iterations);
    free(addresses);
    free(operations);
    return 0;
}
