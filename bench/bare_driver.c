/* SPDX-License-Identifier: MIT */
/* bare_driver.c: replays one trace on a memory pool of the driver, without weir.
 *
 *     zstd -dc TRACE.trace.zst | bench/bare_driver [cuda[:N]|model[:N]]
 *
 * The program is the reference for the configuration driver-keep of `weir bench'.  It uses a private pool that keeps
 * all memory (release threshold max).  It parses the whole trace first, and then calls the driver in a plain loop.
 * It reads a clock before and after each call: clock_gettime(2), or the virtual clock of the device model.  The cost
 * of reading the clock is the median of 100,001 pairs of reads, and is subtracted from each call.
 *
 * Each stream of the trace becomes a stream of the driver.  The operation `m' ends an iteration and synchronises the
 * device.  The operations `u' and `w' are errors.  The program prints one line of JSON: the time of the calls in
 * each iteration in nanoseconds, the median over the second half of the iterations (steady_ns), and the pool's peak
 * reserved memory.
 *
 * This file must not use weir, except its table of driver functions.
 */
#include "base/clock.h"
#include "bench/common.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 1024, TIMER_PAIRS = 100001, MAX_BLOCKS = 1 << 28 };

struct operation {
    char code; /* the operation: 'a' (allocate), 'f' (free) or 'm' (mark) */
    unsigned stream;
    uint64_t block;
    size_t bytes;
};

static uint64_t driver_now_ns(void) {
    return bench_driver->charge ? bench_driver->ticks() /* the device model has a virtual clock */
                                : weir__clock_ns();
}

static uint64_t timer_cost_ns(void) {
    static double pairs[TIMER_PAIRS];

    for (size_t i = 0; i < TIMER_PAIRS; i++) {
        const uint64_t start = driver_now_ns();

        pairs[i] = (double)(driver_now_ns() - start);
    }
    return (uint64_t)bench_median(pairs, TIMER_PAIRS);
}

/* Reads the whole trace and returns its operations, in which streams have indices from 0 on.  Stores the numbers of
 * operations, blocks and streams in *count, *blocks and *streams. */
static struct operation *read_bare_trace(FILE *file, size_t *count, uint64_t *blocks,
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
            bench_fail("cannot replay", line);
        if (next.code != 'm' && next.block >= MAX_BLOCKS)
            bench_fail("too many blocks", line);
        for (next.stream = 0; next.stream < *streams && names[next.stream] != stream;)
            next.stream++;
        if (next.stream == STREAMS)
            bench_fail("too many streams", line);
        if (next.code != 'm' && next.stream == *streams)
            names[(*streams)++] = stream;
        if (next.code != 'm' && next.block >= *blocks)
            *blocks = next.block + 1;
        next.bytes = (size_t)bytes;
        if (*count == room) {
            room = room ? 2 * room : 4096;
            operations = realloc(operations, room * sizeof *operations);
            if (!operations)
                bench_fail("realloc", "out of memory");
        }
        operations[(*count)++] = next;
    }
    return operations;
}

static CUmemoryPool create_bare_pool(void) {
    CUmemPoolProps properties;
    CUmemoryPool pool;
    uint64_t keep = UINT64_MAX;

    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = bench_device;
    BENCH_CALL(cuMemPoolCreate, &pool, &properties);
    BENCH_CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    return pool;
}

int main(int argc, char **argv) {
    size_t count, marks = 0;
    uint64_t blocks, cost, spent = 0, high = 0;
    double *iterations;
    unsigned stream_count;
    struct operation *operations = read_bare_trace(stdin, &count, &blocks, &stream_count);
    CUdeviceptr *addresses = calloc((size_t)blocks + 1, sizeof *addresses);
    static CUstream streams[STREAMS];
    CUmemoryPool pool;

    iterations = calloc(count + 1, sizeof *iterations);
    if (!iterations || !addresses)
        bench_fail("calloc", "out of memory");
    bench_open(argc > 1 ? argv[1] : "cuda");
    pool = create_bare_pool();
    for (unsigned i = 0; i < stream_count; i++)
        BENCH_CALL(cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING);
    cost = timer_cost_ns();

    for (const struct operation *op = operations; op < operations + count; op++) {
        uint64_t start, ns;

        if (op->code == 'm') {
            BENCH_CALL(cuCtxSynchronize);
            iterations[marks++] = (double)spent;
            spent = 0;
            continue;
        }
        start = driver_now_ns();
        if (op->code == 'a')
            BENCH_CALL(cuMemAllocFromPoolAsync, &addresses[op->block], op->bytes, pool,
                       streams[op->stream]);
        else
            BENCH_CALL(cuMemFreeAsync, addresses[op->block], streams[op->stream]);
        ns = driver_now_ns() - start;
        spent += ns > cost ? ns - cost : 0;
    }

    if (bench_driver->capabilities & WEIR_CAP_POOL_FIGURES)
        BENCH_CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &high);
    printf("{\"device\": \"%s\", \"timer_ns\": %" PRIu64 ", \"operations\": %zu, \"alloc_ns\": [",
           bench_device_name, cost, count);
    for (size_t i = 0; i < marks; i++)
        printf("%s%.0f", i ? ", " : "", iterations[i]);
    printf("], \"steady_ns\": %.0f, \"reserve_peak_bytes\": %" PRIu64 "}\n",
           bench_median(iterations + marks / 2, marks - marks / 2), high);
    free(iterations);
    free(addresses);
    free(operations);
    return 0;
}
