/* SPDX-License-Identifier: MIT */
/* measure_calls.c: measures driver calls in one process.  One part measures memory pools, cuMemAlloc and calls with
 * a constant cost.  The other part measures physical allocations (handles of cuMemCreate).
 *
 * The pool grows as in a real program: by one request after another, while other blocks are live.  The process reads
 * the reserved memory before and after each growth and trim.  It discards the time of a call that changed the
 * reserved memory by an unexpected number of units.
 *
 * Before each growth, trim and handle, the process writes to 1 MiB of host memory, about the size of a core's cache,
 * because a real program also uses the caches between such calls.  With 1 MiB, the stalls on the model were nearest
 * to those on an H200.
 */
#include "bench/measure.h"

#include <inttypes.h>
#include <stdlib.h>

#include "bench/common.h"
#include "cli/common/span.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* The process uses at most 20 GiB, and at most three fifths of the free memory, to leave memory for other processes. */
#define MAX_BYTES (20 * GIB)
#define MIN_FREE (512 * MIB)

enum { CACHE_LINE = 64, COLD_BYTES = 1 << 20, SERIES = 256 };

/* The measured times of one kind of call. */
struct series {
    size_t count;
    double ns[SERIES];
};

static FILE *out;
static CUstream stream;
static struct stopwatch watch; /* measures real time; unused on the device model */
static uint64_t budget;        /* how many bytes may be live */
/* The host memory to which fill_cpu_cache() writes; NULL on the device model. */
static char *cache_filler;
static uint64_t began;

static void begin_time(void) {
    began = bench_driver->charge ? bench_driver->ticks() : stopwatch_read(&watch);
}

/* Returns the nanoseconds since begin_time().  Ends the process if the result of the call is an error. */
static double end_time(const char *entry, CUresult result) {
    const uint64_t ns = bench_driver->charge
                            ? bench_driver->ticks() - began
                            : stopwatch_span(&watch, began, stopwatch_read(&watch));

    bench_check(entry, result);
    return (double)ns;
}

/* Calls a driver function, and evaluates to the time of the call in nanoseconds. */
#define TIME(entry, ...) (begin_time(), end_time(#entry, bench_driver->entry(__VA_ARGS__)))

static void fill_cpu_cache(void) {
    for (size_t i = 0; cache_filler && i < COLD_BYTES; i += CACHE_LINE)
        ((volatile char *)cache_filler)[i]++;
}

static void add_time(struct series *series, double ns) {
    if (series->count < SERIES)
        series->ns[series->count++] = ns;
}

static void send_figure(const char *name, double value) {
    fprintf(out, "%s %.3f\n", name, value);
}

/* Sends the mean of the times to the parent process, without the smallest and the largest tenth. */
static void send_mean(const char *name, struct series *series) {
    const size_t cut = series->count / 10;
    double sum = 0;

    if (series->count == 0)
        return;
    bench_median(series->ns, series->count); /* also sorts the times */
    for (size_t i = cut; i < series->count - cut; i++)
        sum += series->ns[i];
    send_figure(name, sum / (double)(series->count - 2 * cut));
}

static void send_point(const char *curve, uint64_t x, struct series *series) {
    char name[64];

    snprintf(name, sizeof name, "%s:%" PRIu64, curve, x);
    send_mean(name, series);
}

static void send_early(const char *curve, uint64_t x, double ns) {
    struct series one = {1, {ns}};

    send_point(curve, x, &one);
}

static int driver_has(unsigned capability) {
    return (bench_driver->capabilities & capability) != 0;
}

/* --------------------------------------------------------------------- pools ---- */

enum { MAX_BLOCKS = 10000 };

static CUmemoryPool pool;
static uint64_t unit; /* the bytes by which the driver's pool grows */
static CUdeviceptr blocks[MAX_BLOCKS];
static size_t block_count;

/* Returns the reserved memory of the pool.  Returns 0 if the driver cannot report it (before CUDA 11.3). */
static uint64_t pool_reserved(void) {
    uint64_t bytes = 0;

    if (driver_has(WEIR_CAP_POOL_FIGURES))
        BENCH_CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    return bytes;
}

/* Allocates one more block from the pool.  Adds the time of the call to the series if the pool has grown by exactly
 * `units' units. */
static void grow_timed(uint64_t bytes, uint64_t units, struct series *series) {
    const uint64_t before = pool_reserved();
    double ns;

    fill_cpu_cache();
    ns = TIME(cuMemAllocFromPoolAsync, &blocks[block_count++], bytes, pool, stream);
    if (pool_reserved() == before + units * unit || !driver_has(WEIR_CAP_POOL_FIGURES))
        add_time(series, ns);
}

static void free_pool_blocks(void) {
    while (block_count > 0)
        BENCH_CALL(cuMemFreeAsync, blocks[--block_count], stream);
    BENCH_CALL(cuStreamSynchronize, stream);
}

static double make_timed_pool(void) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, bench_device}};
    uint64_t keep = UINT64_MAX;
    const double ns = TIME(cuMemPoolCreate, &pool, &properties);

    BENCH_CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    return ns;
}

/* Measures the first requests of the process, each of which grows the pool by one unit.  The growth of the first
 * request shows how large a unit is. */
static void measure_early_growth(void) {
    make_timed_pool();
    for (uint64_t i = 0; i < MEASURE_EARLY && (i + 1) * unit <= budget; i++) {
        fill_cpu_cache();
        send_early("early-grow", i + 1,
                   TIME(cuMemAllocFromPoolAsync, &blocks[block_count++], i ? unit : 64 * KIB, pool,
                        stream));
        if (i > 0)
            continue;
        unit = pool_reserved();
        if (unit > 0)
            send_figure("unit_bytes", (double)unit);
        else
            unit = 32 * MIB;
    }
    free_pool_blocks();
    BENCH_CALL(cuMemPoolTrimTo, pool, 0);
}

static void trim_timed(uint64_t units, uint64_t to, struct series *series) {
    const uint64_t before = pool_reserved();
    double ns;

    fill_cpu_cache();
    ns = TIME(cuMemPoolTrimTo, pool, to * unit);
    if (before - pool_reserved() == units * unit || !driver_has(WEIR_CAP_POOL_FIGURES))
        add_time(series, ns);
}

/* Measures growths and trims, in several rounds: grows the pool by each step in turn, and then trims it by each step.
 * Skips steps for which the budget is too small. */
static void measure_steps(const uint64_t *steps, size_t count, uint64_t rounds) {
    struct series grown[8] = {{0}}, trimmed[8] = {{0}};
    uint64_t units = 0;

    for (size_t i = 0; i < count; i++) {
        if ((units + steps[i]) * rounds * unit > budget)
            count = i;
        else
            units += steps[i];
    }
    units *= rounds;
    for (size_t i = 0; i < rounds * count; i++)
        grow_timed(steps[i % count] * unit, steps[i % count], &grown[i % count]);
    free_pool_blocks();
    for (size_t i = 0; i < rounds * count; i++) {
        units -= steps[i % count];
        trim_timed(steps[i % count], units, &trimmed[i % count]);
    }
    for (size_t i = 0; i < count; i++) {
        send_point("pool_grow_ns", steps[i], &grown[i]);
        send_point("pool_trim_ns", steps[i], &trimmed[i]);
    }
}

/* Measures a request that is larger than each gap in the pool, so the driver must combine several gaps.  To make gaps,
 * fills the pool with blocks of one unit, and frees every second block. */
static void measure_move(uint64_t units) {
    struct series moved = {0}, unused = {0};

    for (int round = 0; round < 3 && 2 * units * unit <= budget; round++) {
        for (size_t i = 0; i < 2 * units; i++)
            grow_timed(unit, 1, &unused);
        for (size_t i = 0; i < units; i++) {
            BENCH_CALL(cuMemFreeAsync, blocks[2 * i], stream);
            blocks[i] = blocks[2 * i + 1];
        }
        block_count -= units;
        BENCH_CALL(cuStreamSynchronize, stream);
        grow_timed(units * unit, 0, &moved);
        free_pool_blocks();
        BENCH_CALL(cuMemPoolTrimTo, pool, 0);
    }
    send_point("pool_move_ns", units, &moved);
}

/* Measures a free and an allocation in the pool while other blocks are live: one block of 64 KiB if `live' is 1, else
 * `live' blocks of 4 to 36 KiB. */
static void measure_pool_pairs(size_t live) {
    struct series pair = {0}, alloc = {0};
    uint64_t seed = live;

    for (int i = -(int)live; i < SERIES; i++) {
        uint64_t bytes = 64 * KIB;
        double freed;
        size_t at;

        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        if (live > 1)
            bytes = 4 * KIB + (seed >> 33) % (32 * KIB);
        if (i < 0) {
            BENCH_CALL(cuMemAllocFromPoolAsync, &blocks[block_count++], bytes, pool, stream);
            continue;
        }
        at = (seed >> 33) % live;
        freed = TIME(cuMemFreeAsync, blocks[at], stream);
        add_time(&alloc, TIME(cuMemAllocFromPoolAsync, &blocks[at], bytes, pool, stream));
        add_time(&pair, freed + alloc.ns[i]);
    }
    if (live == 1)
        send_mean("pool-alloc", &alloc);
    send_point("pool_pair_ns", live, &pair);
    free_pool_blocks();
}

static void measure_pools(void) {
    static const uint64_t small[] = {1, 2, 4, 8, 16, 32}, large[] = {128, 512};
    struct series made = {0}, ended = {0};

    measure_early_growth();
    measure_steps(small, sizeof small / sizeof *small, 4);
    measure_steps(large, sizeof large / sizeof *large, 1);
    measure_move(2);
    measure_move(8);
    measure_move(64);
    for (size_t live = 1; live <= MAX_BLOCKS; live *= live == 1 ? 100 : 10)
        measure_pool_pairs(live);
    BENCH_CALL(cuMemPoolDestroy, pool);
    for (int i = 0; i < 8; i++) {
        add_time(&made, make_timed_pool());
        add_time(&ended, TIME(cuMemPoolDestroy, pool));
    }
    send_mean("pool_create_ns", &made);
    send_mean("pool_destroy_ns", &ended);
}

/* ---------------------------------------------------------------- cuMemAlloc ---- */

static void measure_direct(void) {
    static const uint64_t sizes[] = {0, 1024, 16384, 32768, 65536, 262144, 1048576, 4194304};
    enum { SMALL = 100 };
    struct series small_allocs = {0}, small_frees = {0};
    CUdeviceptr block, small[SMALL];

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes && sizes[s] * KIB <= budget; s++) {
        struct series allocs = {0}, frees = {0};

        for (int i = 0; i < 6; i++) {
            fill_cpu_cache();
            add_time(&allocs, TIME(cuMemAlloc, &block, sizes[s] ? sizes[s] * KIB : 512));
            fill_cpu_cache();
            add_time(&frees, TIME(cuMemFree, block));
        }
        send_point("mem_alloc_ns", sizes[s], &allocs);
        send_point("mem_free_ns", sizes[s], &frees);
    }
    /* A small block stays allocated, so that the driver keeps its page for small blocks. */
    BENCH_CALL(cuMemAlloc, &block, 512);
    for (int i = 0; i < SMALL; i++)
        add_time(&small_allocs, TIME(cuMemAlloc, &small[i], 4096));
    for (int i = 0; i < SMALL; i++)
        add_time(&small_frees, TIME(cuMemFree, small[i]));
    BENCH_CALL(cuMemFree, block);
    send_mean("small_alloc_ns", &small_allocs);
    send_mean("small_free_ns", &small_frees);
}

/* --------------------------------------------------------------- other calls ---- */

/* Measures a driver call 200 times, and sends the mean time. */
#define MEASURE(entry, ...)                                                                        \
    do {                                                                                           \
        struct series series = {0};                                                                \
                                                                                                   \
        for (int i = 0; i < 200; i++)                                                              \
            add_time(&series, TIME(entry, __VA_ARGS__));                                           \
        send_mean(#entry, &series);                                                                \
        BENCH_CALL(cuStreamSynchronize, stream);                                                   \
    } while (0)

static void measure_queries(CUevent event) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstreamCaptureStatus status;
    unsigned long long id;
    uint64_t bytes, keep = UINT64_MAX;
    CUcontext context;
    CUdevice device;
    unsigned flags;
    const char *text;
    char name[96];
    size_t total;
    CUuuid uuid;
    int value;

    MEASURE(cuDriverGetVersion, &value);
    MEASURE(cuDeviceGetCount, &value);
    MEASURE(cuDeviceGet, &device, 0);
    MEASURE(cuDeviceGetName, name, sizeof name, bench_device);
    MEASURE(cuDeviceGetUuid, &uuid, bench_device);
    MEASURE(cuDeviceTotalMem, &total, bench_device);
    MEASURE(cuDeviceGetAttribute, &value, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, bench_device);
    MEASURE(cuCtxGetCurrent, &context);
    MEASURE(cuCtxGetDevice, &device);
    MEASURE(cuCtxSynchronize);
    MEASURE(cuThreadExchangeStreamCaptureMode, &mode);
    MEASURE(cuStreamIsCapturing, stream, &status);
    MEASURE(cuStreamGetCtx, stream, &context);
    MEASURE(cuStreamGetFlags, stream, &flags);
    MEASURE(cuStreamQuery, stream);
    MEASURE(cuStreamSynchronize, stream);
    if (driver_has(WEIR_CAP_STREAM_ID))
        MEASURE(cuStreamGetId, stream, &id);
    MEASURE(cuEventRecord, event, stream);
    MEASURE(cuStreamWaitEvent, stream, event, 0);
    MEASURE(cuEventQuery, event);
    if (driver_has(WEIR_CAP_POOL_FIGURES))
        MEASURE(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
    MEASURE(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    MEASURE(cuMemPoolTrimTo, pool, 0);
    MEASURE(cuGetErrorName, CUDA_ERROR_OUT_OF_MEMORY, &text);
}

/* Calls a driver function, and adds the time to the series for this function. */
#define ADD_TIME(entry, ...) add_time(&series[AT_##entry], TIME(entry, __VA_ARGS__))
#define MADE_AND_ENDED(X)                                                                          \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy)                                                                             \
    X(cuEventCreate)                                                                               \
    X(cuEventDestroy)                                                                              \
    X(cuMemAllocHost)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuCtxPushCurrent)                                                                            \
    X(cuCtxPopCurrent)                                                                             \
    X(cuMemGetInfo)

static void measure_calls(void) {
#define AT(entry) AT_##entry,
    enum { MADE_AND_ENDED(AT) ENTRIES };
#undef AT
    struct series series[ENTRIES] = {{0}};
    CUcontext current, popped;
    size_t free_bytes, total;
    CUstream made;
    CUevent event;
    void *host;

    BENCH_CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    make_timed_pool();
    measure_queries(event);
    BENCH_CALL(cuMemPoolDestroy, pool);
    BENCH_CALL(cuEventDestroy, event);
    BENCH_CALL(cuCtxGetCurrent, &current);
    for (int i = 0; i < 32; i++) {
        ADD_TIME(cuStreamCreate, &made, CU_STREAM_NON_BLOCKING);
        ADD_TIME(cuStreamDestroy, made);
        ADD_TIME(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
        ADD_TIME(cuEventDestroy, event);
        ADD_TIME(cuMemAllocHost, &host, 65536);
        ADD_TIME(cuMemFreeHost, host);
        ADD_TIME(cuCtxPushCurrent, current);
        ADD_TIME(cuCtxPopCurrent, &popped);
        fill_cpu_cache(); /* in a real program, other work between these calls uses the caches */
        ADD_TIME(cuMemGetInfo, &free_bytes, &total);
    }
#define NOTE(entry) send_mean(#entry, &series[AT_##entry]);
    MADE_AND_ENDED(NOTE)
#undef NOTE
}

/* ------------------------------------------------------------------- handles ---- */

enum { MAX_HANDLES = 16, EARLY_MIB = 32 };
enum { CREATE, MAP, ACCESS, UNMAP, RELEASE, ACCESS_AGAIN, UNMAP_NOTHING, KINDS };

static CUmemAllocationProp handle_properties;
static CUmemAccessDesc handle_access;
static CUdeviceptr range;
static CUmemGenericAllocationHandle handles[MAX_HANDLES];

/* Creates handle i, maps it into the address range, and enables access to it.  Adds the times of the calls to
 * `kinds'. */
static void map_timed(int i, uint64_t bytes, struct series kinds[KINDS]) {
    const CUdeviceptr at = range + (uint64_t)i * bytes;

    fill_cpu_cache();
    add_time(&kinds[CREATE], TIME(cuMemCreate, &handles[i], bytes, &handle_properties, 0));
    add_time(&kinds[MAP], TIME(cuMemMap, at, bytes, 0, handles[i], 0));
    add_time(&kinds[ACCESS], TIME(cuMemSetAccess, at, bytes, &handle_access, 1));
    add_time(&kinds[ACCESS_AGAIN], TIME(cuMemSetAccess, at, bytes, &handle_access, 1));
}

static void unmap_timed(int i, uint64_t bytes, struct series kinds[KINDS]) {
    const CUdeviceptr at = range + (uint64_t)i * bytes;

    fill_cpu_cache();
    add_time(&kinds[UNMAP], TIME(cuMemUnmap, at, bytes));
    add_time(&kinds[RELEASE], TIME(cuMemRelease, handles[i]));
    add_time(&kinds[UNMAP_NOTHING], TIME(cuMemUnmap, at, bytes));
}

static void measure_handle_size(uint64_t mib, int count) {
    static const char *const names[KINDS] = {"create",  "map",          "access",       "unmap",
                                             "release", "access-again", "unmap-nothing"};
    struct series kinds[KINDS] = {{0}};

    for (int i = 0; i < count; i++)
        map_timed(i, mib * MIB, kinds);
    for (int i = 0; i < count; i++)
        unmap_timed(i, mib * MIB, kinds);
    for (int kind = 0; kind < KINDS; kind++)
        send_point(names[kind], mib, &kinds[kind]);
}

/* Measures the first handles of the process.  For each, sends the total time of creation, mapping and access. */
static void measure_early_handles(void) {
    struct series kinds[KINDS] = {{0}};

    for (int i = 0; i < MEASURE_EARLY; i++) {
        map_timed(i, EARLY_MIB * MIB, kinds);
        send_early("early-handle", (uint64_t)i + 1,
                   kinds[CREATE].ns[i] + kinds[MAP].ns[i] + kinds[ACCESS].ns[i]);
    }
    for (int i = 0; i < MEASURE_EARLY; i++)
        unmap_timed(i, EARLY_MIB * MIB, kinds);
}

static void measure_handles(void) {
    const uint64_t range_bytes = budget / (64 * MIB) * (64 * MIB);
    struct series reserve = {0}, end = {0}, granularity = {0};
    CUdeviceptr address;
    size_t bytes;

    handle_properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    handle_properties.location.type = handle_access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    handle_properties.location.id = handle_access.location.id = bench_device;
    handle_access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    BENCH_CALL(cuMemAddressReserve, &range, range_bytes, 0, 0, 0);
    measure_early_handles();
    for (uint64_t mib = 2; mib <= 2048; mib *= mib == 8 ? 4 : 2) {
        const int most = mib <= 64 ? 16 : mib <= 512 ? 8 : 4;
        const uint64_t room = range_bytes / (mib * MIB);

        measure_handle_size(mib, room < (uint64_t)most ? (int)room : most);
    }
    BENCH_CALL(cuMemAddressFree, range, range_bytes);
    for (int i = 0; i < 32; i++) {
        add_time(&reserve, TIME(cuMemAddressReserve, &address, 64 * MIB, 0, 0, 0));
        add_time(&end, TIME(cuMemAddressFree, address, 64 * MIB));
        add_time(&granularity, TIME(cuMemGetAllocationGranularity, &bytes, &handle_properties,
                                    CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    }
    send_mean("cuMemAddressReserve", &reserve);
    send_mean("cuMemAddressFree", &end);
    send_mean("cuMemGetAllocationGranularity", &granularity);
    send_figure("page_bytes", (double)bytes);
}

/* ---------------------------------------------------------------- the device ---- */

static int device_can(CUdevice_attribute attribute) {
    int value = 0;

    BENCH_CALL(cuDeviceGetAttribute, &value, attribute, bench_device);
    return value;
}

/* Sends the properties of the device.  context_bytes is the memory that the context and other processes use. */
static void send_device(size_t free_bytes, size_t total) {
    char name[96];

    BENCH_CALL(cuDeviceGetName, name, sizeof name, bench_device);
    fprintf(out, "name %s\n", name);
    send_figure("driver_version", bench_driver->version);
    send_figure("capacity", (double)total);
    send_figure("context_bytes", (double)(total - free_bytes));
    send_figure("virtual_memory",
                driver_has(WEIR_CAP_VIRTUAL) &&
                    device_can(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
}

void measure_child(const char *device, enum measure_part part, FILE *to) {
    size_t free_bytes, total;
    char message[96];

    out = to;
    bench_open(device);
    if (!bench_driver->charge) {
        stopwatch_make(&watch);
        cache_filler = calloc(1, COLD_BYTES);
    }
    /* Creates a stream first, as a real program does. */
    BENCH_CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    BENCH_CALL(cuMemGetInfo, &free_bytes, &total);
    if (free_bytes < MIN_FREE) {
        snprintf(message, sizeof message, "the device has %zu MiB free; measuring wants 512 MiB",
                 free_bytes / MIB);
        bench_fail(device, message);
    }
    if (!device_can(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED))
        bench_fail(device, "the device has no memory pools");
    budget = free_bytes / 5 * 3 < MAX_BYTES ? free_bytes / 5 * 3 : MAX_BYTES;
    if (part == MEASURE_HANDLES) {
        measure_handles();
        return;
    }
    send_device(free_bytes, total);
    measure_pools();
    measure_direct();
    measure_calls();
}
