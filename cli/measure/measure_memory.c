/* SPDX-License-Identifier: MIT */
/* measure_memory.c: what memory by handles takes, cuMemAlloc and cuMemFree, and the calls whose cost depends on
 * nothing.
 */
#include <stdio.h>

#include "cli/measure/measure.h"

#define MIB ((uint64_t)1 << 20)

/* ---- Handles ---- */

enum { MOST_HANDLES = 16, EARLY_MIB = 32 };

struct handles {
    struct measure *m;
    CUmemAllocationProp properties;
    CUmemAccessDesc access;
    CUdeviceptr range;
    uint64_t range_bytes;
    CUmemGenericAllocationHandle list[MOST_HANDLES];
};

enum { CREATE, MAP, ACCESS, UNMAP, RELEASE, ACCESS_AGAIN, UNMAP_NOTHING, KINDS };
static const char *const kind_names[KINDS] = {"create",  "map",          "access",       "unmap",
                                              "release", "access-again", "unmap-nothing"};

/* The calls of one handle, at its place in the range; what they took goes to `kinds`. */
static int put(struct handles *h, int i, uint64_t bytes, struct series kinds[KINDS]) {
    const CUdeviceptr at = h->range + (uint64_t)i * bytes;
    double ns[3];

    measure_chill(h->m);
    if (!MEASURE_TIME(h->m, &ns[0], cuMemCreate, &h->list[i], bytes, &h->properties, 0) ||
        !MEASURE_TIME(h->m, &ns[1], cuMemMap, at, bytes, 0, h->list[i], 0) ||
        !MEASURE_TIME(h->m, &ns[2], cuMemSetAccess, at, bytes, &h->access, 1))
        return 0;
    for (int kind = CREATE; kind <= ACCESS; kind++)
        measure_add(&kinds[kind], ns[kind]);
    if (!MEASURE_TIME(h->m, &ns[0], cuMemSetAccess, at, bytes, &h->access, 1))
        return 0;
    measure_add(&kinds[ACCESS_AGAIN], ns[0]);
    return 1;
}

static int drop(struct handles *h, int i, uint64_t bytes, struct series kinds[KINDS]) {
    const CUdeviceptr at = h->range + (uint64_t)i * bytes;
    double ns[3];

    measure_chill(h->m);
    if (!MEASURE_TIME(h->m, &ns[0], cuMemUnmap, at, bytes) ||
        !MEASURE_TIME(h->m, &ns[1], cuMemRelease, h->list[i]) ||
        !MEASURE_TIME(h->m, &ns[2], cuMemUnmap, at, bytes))
        return 0;
    measure_add(&kinds[UNMAP], ns[0]);
    measure_add(&kinds[RELEASE], ns[1]);
    measure_add(&kinds[UNMAP_NOTHING], ns[2]);
    return 1;
}

/* As many handles of a size as there is room for. */
static int measure_size(struct handles *h, uint64_t mib, int most) {
    struct series kinds[KINDS] = {{0}};
    const uint64_t bytes = mib * MIB, room = h->range_bytes / bytes;
    const int count = room < (uint64_t)most ? (int)room : most;

    for (int i = 0; i < count; i++)
        if (!put(h, i, bytes, kinds))
            return 0;
    for (int i = 0; i < count; i++)
        if (!drop(h, i, bytes, kinds))
            return 0;
    for (int kind = 0; kind < KINDS; kind++)
        measure_note_at(h->m, kind_names[kind], mib, &kinds[kind]);
    return 1;
}

/* The first ones of the process: what all three calls take. */
static int measure_early(struct handles *h) {
    struct series kinds[KINDS] = {{0}};

    for (int i = 0; i < MEASURE_EARLY; i++) {
        struct series early = {0};

        if (!put(h, i, EARLY_MIB * MIB, kinds))
            return 0;
        measure_add(&early, kinds[CREATE].ns[i] + kinds[MAP].ns[i] + kinds[ACCESS].ns[i]);
        measure_note_at(h->m, "early-handle", (uint64_t)i + 1, &early);
    }
    for (int i = 0; i < MEASURE_EARLY; i++)
        if (!drop(h, i, EARLY_MIB * MIB, kinds))
            return 0;
    return 1;
}

/* Their own costs, and the granularity. */
static int measure_ranges(struct handles *h) {
    struct series reserved = {0}, freed = {0}, granularity = {0}, grain = {0};

    for (int i = 0; i < 32; i++) {
        CUdeviceptr address;
        double took[3];
        size_t bytes;

        if (!MEASURE_TIME(h->m, &took[0], cuMemAddressReserve, &address, 64 * MIB, 0, 0, 0) ||
            !MEASURE_TIME(h->m, &took[1], cuMemAddressFree, address, 64 * MIB) ||
            !MEASURE_TIME(h->m, &took[2], cuMemGetAllocationGranularity, &bytes, &h->properties,
                          CU_MEM_ALLOC_GRANULARITY_MINIMUM))
            return 0;
        measure_add(&reserved, took[0]);
        measure_add(&freed, took[1]);
        measure_add(&granularity, took[2]);
        measure_add(&grain, (double)bytes);
    }
    measure_note(h->m, "cuMemAddressReserve", &reserved);
    measure_note(h->m, "cuMemAddressFree", &freed);
    measure_note(h->m, "cuMemGetAllocationGranularity", &granularity);
    measure_note(h->m, "page_bytes", &grain);
    return 1;
}

int measure_handles(struct measure *m) {
    static const struct {
        uint64_t mib;
        int most;
    } sizes[] = {{2, 16},  {4, 16},  {8, 16},  {32, 16},  {64, 16},
                 {128, 8}, {256, 8}, {512, 8}, {1024, 4}, {2048, 4}};
    static struct handles h; /* large */

    h.m = m;
    h.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    h.properties.location.type = h.access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    h.properties.location.id = h.access.location.id = m->device;
    h.access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    h.range_bytes = m->budget / (64 * MIB) * (64 * MIB);
    if (!MEASURE_CALL(m, cuMemAddressReserve, &h.range, h.range_bytes, 0, 0, 0) ||
        !measure_early(&h))
        return 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (!measure_size(&h, sizes[i].mib, sizes[i].most))
            return 0;
    return MEASURE_CALL(m, cuMemAddressFree, h.range, h.range_bytes) && measure_ranges(&h);
}

/* ---- cuMemAlloc ---- */

static int measure_block(struct measure *m, uint64_t kib) {
    struct series allocs = {0}, frees = {0};

    for (int i = 0; i < 6; i++) {
        CUdeviceptr block;
        double ns;

        measure_chill(m);
        if (!MEASURE_TIME(m, &ns, cuMemAlloc, &block, kib ? kib << 10 : 512))
            return 0;
        measure_add(&allocs, ns);
        measure_chill(m);
        if (!MEASURE_TIME(m, &ns, cuMemFree, block))
            return 0;
        measure_add(&frees, ns);
    }
    measure_note_at(m, "mem_alloc_ns", kib, &allocs);
    measure_note_at(m, "mem_free_ns", kib, &frees);
    return 1;
}

/* Beside one that keeps their page. */
static int measure_small(struct measure *m) {
    enum { BLOCKS = 100 };
    struct series allocs = {0}, frees = {0};
    CUdeviceptr first, blocks[BLOCKS];
    double ns;

    if (!MEASURE_CALL(m, cuMemAlloc, &first, 512))
        return 0;
    for (int i = 0; i < BLOCKS; i++) {
        if (!MEASURE_TIME(m, &ns, cuMemAlloc, &blocks[i], 4096))
            return 0;
        measure_add(&allocs, ns);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (!MEASURE_TIME(m, &ns, cuMemFree, blocks[i]))
            return 0;
        measure_add(&frees, ns);
    }
    measure_note(m, "small_alloc_ns", &allocs);
    measure_note(m, "small_free_ns", &frees);
    return MEASURE_CALL(m, cuMemFree, first);
}

int measure_direct(struct measure *m) {
    static const uint64_t kib[] = {0, 1024, 16384, 32768, 65536, 262144, 1048576, 4194304};

    for (size_t i = 0; i < sizeof kib / sizeof kib[0] && kib[i] << 10 <= m->budget; i++)
        if (!measure_block(m, kib[i]))
            return 0;
    return measure_small(m);
}

/* ---- Calls ---- */

enum { CALLS = 200 };

/* Each alone, with nothing on the device: "cuStreamQuery", its arguments.  `what' is a struct asked. */
#define ANSWERS(X)                                                                                 \
    X(1, cuDriverGetVersion, (&what.number))                                                       \
    X(1, cuDeviceGetCount, (&what.number))                                                         \
    X(1, cuDeviceGet, (&what.device, 0))                                                           \
    X(1, cuDeviceGetName, (what.name, sizeof what.name, m->device))                                \
    X(1, cuDeviceGetUuid, (&what.uuid, m->device))                                                 \
    X(1, cuDeviceTotalMem, (&what.bytes, m->device))                                               \
    X(1, cuDeviceGetAttribute,                                                                     \
      (&what.number, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, m->device))                       \
    X(1, cuCtxGetCurrent, (&what.context))                                                         \
    X(1, cuCtxGetDevice, (&what.device))                                                           \
    X(1, cuCtxSynchronize, ())                                                                     \
    X(1, cuThreadExchangeStreamCaptureMode, (&what.mode))                                          \
    X(1, cuStreamIsCapturing, (m->stream, &what.status))                                           \
    X(1, cuStreamGetCtx, (m->stream, &what.context))                                               \
    X(1, cuStreamGetFlags, (m->stream, &what.flags))                                               \
    X(1, cuStreamQuery, (m->stream))                                                               \
    X(1, cuStreamSynchronize, (m->stream))                                                         \
    X(has(m, WEIR_CAP_STREAM_ID), cuStreamGetId, (m->stream, &what.id))                            \
    X(1, cuEventRecord, (what.event, m->stream))                                                   \
    X(1, cuStreamWaitEvent, (m->stream, what.event, 0))                                            \
    X(1, cuEventQuery, (what.event))                                                               \
    X(has(m, WEIR_CAP_POOL_FIGURES), cuMemPoolGetAttribute,                                        \
      (what.pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &what.reserve))                            \
    X(1, cuMemPoolSetAttribute, (what.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &what.keep))        \
    X(1, cuMemPoolTrimTo, (what.pool, 0))                                                          \
    X(1, cuGetErrorName, (CUDA_ERROR_OUT_OF_MEMORY, &what.text))

struct asked {
    unsigned int flags;
    CUcontext context;
    CUdevice device;
    CUuuid uuid;
    CUevent event;
    CUmemoryPool pool;
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus status;
    unsigned long long id;
    uint64_t reserve, keep;
    size_t bytes;
    int number;
    char name[96];
    const char *text;
};

static int has(const struct measure *m, unsigned capability) {
    return (m->driver->capabilities & capability) != 0;
}

/* A program that grows asks this in between, so it is not warm. */
static int measure_info(struct measure *m) {
    struct series series = {0};

    for (int i = 0; i < 32; i++) {
        size_t free_bytes, total;
        double ns;

        measure_chill(m);
        if (!MEASURE_TIME(m, &ns, cuMemGetInfo, &free_bytes, &total))
            return 0;
        measure_add(&series, ns);
    }
    measure_note(m, "cuMemGetInfo", &series);
    return 1;
}

static int measure_answers(struct measure *m, struct asked what) {
    int good = 1;

#define ANSWER(can, entry, arguments)                                                              \
    if (good && (can)) {                                                                           \
        struct series series = {0};                                                                \
                                                                                                   \
        for (int i = 0; i < CALLS && good; i++) {                                                  \
            double ns;                                                                             \
                                                                                                   \
            measure_begin(m);                                                                      \
            m->result = m->driver->entry arguments;                                                \
            ns = measure_end(m);                                                                   \
            good = measure_check(m, #entry);                                                       \
            measure_add(&series, ns);                                                              \
        }                                                                                          \
        measure_note(m, #entry, &series);                                                          \
        good = good && MEASURE_CALL(m, cuStreamSynchronize, m->stream);                            \
    }
    ANSWERS(ANSWER)
#undef ANSWER
    return good;
}

/* What is made and ended in pairs. */
static int measure_lives(struct measure *m) {
    enum { ENTRIES = 8 };
    static const char *const names[ENTRIES] = {
        "cuStreamCreate", "cuStreamDestroy", "cuEventCreate",    "cuEventDestroy",
        "cuMemAllocHost", "cuMemFreeHost",   "cuCtxPushCurrent", "cuCtxPopCurrent"};
    struct series ns[ENTRIES] = {{0}};
    CUcontext current, popped;

    if (!MEASURE_CALL(m, cuCtxGetCurrent, &current))
        return 0;
    for (int i = 0; i < 32; i++) {
        double took[ENTRIES];
        CUstream stream;
        CUevent event;
        void *host;

        if (!MEASURE_TIME(m, &took[0], cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING) ||
            !MEASURE_TIME(m, &took[1], cuStreamDestroy, stream) ||
            !MEASURE_TIME(m, &took[2], cuEventCreate, &event, CU_EVENT_DISABLE_TIMING) ||
            !MEASURE_TIME(m, &took[3], cuEventDestroy, event) ||
            !MEASURE_TIME(m, &took[4], cuMemAllocHost, &host, 65536) ||
            !MEASURE_TIME(m, &took[5], cuMemFreeHost, host) ||
            !MEASURE_TIME(m, &took[6], cuCtxPushCurrent, current) ||
            !MEASURE_TIME(m, &took[7], cuCtxPopCurrent, &popped))
            return 0;
        for (int kind = 0; kind < ENTRIES; kind++)
            measure_add(&ns[kind], took[kind]);
    }
    for (int kind = 0; kind < ENTRIES; kind++)
        measure_note(m, names[kind], &ns[kind]);
    return 1;
}

int measure_calls(struct measure *m) {
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = m->device}};
    struct asked what = {.keep = UINT64_MAX, .mode = CU_STREAM_CAPTURE_MODE_RELAXED};

    return MEASURE_CALL(m, cuEventCreate, &what.event, CU_EVENT_DISABLE_TIMING) &&
           MEASURE_CALL(m, cuMemPoolCreate, &what.pool, &properties) && measure_answers(m, what) &&
           MEASURE_CALL(m, cuMemPoolDestroy, what.pool) &&
           MEASURE_CALL(m, cuEventDestroy, what.event) && measure_info(m) && measure_lives(m);
}
