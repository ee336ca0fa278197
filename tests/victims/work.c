/* SPDX-License-Identifier: MIT */
/* work.c: see work.h. */
#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { OWN_STREAMS = 7000 }; /* the version with per-thread default streams */

enum { MEMORY_TYPE = 2, RANGE_START = 11, RANGE_SIZE = 12, TYPE_DEVICE = 2 };

void victim_must(const char *call, CUresult result) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: %u\n", call, result);
    exit(99);
}

void victim_fail(const char *what) {
    fprintf(stderr, "%s: not so\n", what);
    exit(99);
}

void victim_load(struct cuda *cuda,
                 void *(*find)(const char *name, int version, const char *symbol),
                 int own_streams) {
    void *address;

#define LOAD(name, symbol, own, version, params)                                                   \
    address = own_streams ? find(#name, version < OWN_STREAMS ? OWN_STREAMS : version, own)        \
                          : find(#name, version, symbol);                                          \
    if (!address)                                                                                  \
        victim_fail("there is a " #name);                                                          \
    memcpy(&cuda->name, &address, sizeof address);
    VICTIM_ENTRIES(LOAD)
#undef LOAD
}

void victim_start(const struct cuda *cuda) {
    CUcontext context;
    CUdevice device;

    CU(cuda->cuInit(0));
    CU(cuda->cuDeviceGet(&device, 0));
    CU(cuda->cuDevicePrimaryCtxRetain(&context, device));
    CU(cuda->cuCtxSetCurrent(context));
}

void victim_set_title(void) {
    for (char **at = environ; *at; at++) {
        char *was = *at;

        *at = strdup(was);
        HOLDS(*at);
        memset(was, 0, strlen(was));
    }
}

void victim_clear_environment(char *first) {
    char *end = first + strlen(first);

    for (char **at = environ; *at; at++)
        end = *at + strlen(*at);
    memset(first, 'x', (size_t)(end - first));
    HOLDS(clearenv() == 0);
}

int victim_status(int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--status") == 0)
            return atoi(argv[i + 1]);
        if (strcmp(argv[i], "--at-once") == 0) {
            fflush(stdout);
            _exit(atoi(argv[i + 1]));
        }
        if (strcmp(argv[i], "--quickly") == 0) {
            fflush(stdout);
            quick_exit(atoi(argv[i + 1]));
        }
    }
    return 0;
}

/* ---- Contents ---- */

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static unsigned add_to_checksum(unsigned sum, const void *bytes, size_t count) {
    const unsigned char *byte = bytes;

    for (size_t i = 0; i < count; i++)
        sum = (sum ^ byte[i]) * 16777619u;
    return sum;
}

/* Writes a pattern over a block on the stream. */
static void write_block(const struct cuda *cuda, CUdeviceptr block, size_t bytes, unsigned value,
                        CUstream stream) {
    unsigned head[4] = {value, ~value, value * 3, value * 5};
    size_t first = bytes < sizeof head ? bytes : sizeof head;

    CU(cuda->cuMemsetD8Async(block, (unsigned char)value, bytes, stream));
    if (bytes >= 4 * KIB)
        CU(cuda->cuMemsetD32Async(block + 1 * KIB, value, 1 * KIB / 4, stream));
    CU(cuda->cuMemcpyHtoDAsync(block, head, first, stream));
    CU(cuda->cuStreamSynchronize(stream)); /* `head` must stay until here */
}

/* Reads a block back and checks each byte.  Returns the checksum, continued from `sum`, over the first bytes. */
static unsigned read_block(const struct cuda *cuda, CUdeviceptr block, size_t bytes, unsigned value,
                           CUstream stream, unsigned sum) {
    unsigned head[4] = {value, ~value, value * 3, value * 5};
    unsigned char *host = malloc(bytes), *want = malloc(bytes);

    HOLDS(host && want);
    memset(want, (unsigned char)value, bytes);
    for (size_t i = 1 * KIB; bytes >= 4 * KIB && i < 2 * KIB; i += sizeof value)
        memcpy(want + i, &value, sizeof value);
    memcpy(want, head, bytes < sizeof head ? bytes : sizeof head);
    CU(cuda->cuMemcpyDtoHAsync(host, block, bytes, stream));
    CU(cuda->cuStreamSynchronize(stream));
    if (memcmp(host, want, bytes) != 0)
        victim_fail("a block holds what was written");
    sum = add_to_checksum(sum, host, bytes < 4 * KIB ? bytes : 4 * KIB);
    free(want);
    free(host);
    return sum;
}

/* Checks that the driver reports one block on the device, for any address in it. */
static void check_pointer(const struct cuda *cuda, CUdeviceptr block, size_t bytes) {
    CUdeviceptr base = 0, start = 0;
    size_t length = 0, range = 0;
    unsigned type = 0;

    CU(cuda->cuMemGetAddressRange(&base, &length, block + bytes / 2));
    HOLDS(base == block && length == bytes);
    CU(cuda->cuPointerGetAttribute(&start, RANGE_START, block + bytes - 1));
    CU(cuda->cuPointerGetAttribute(&range, RANGE_SIZE, block));
    CU(cuda->cuPointerGetAttribute(&type, MEMORY_TYPE, block));
    HOLDS(start == block && range == bytes && type == TYPE_DEVICE);
}

/* ---- Work ---- */

enum { HELD = 24, TURNS = 160 };

unsigned victim_churn(const struct cuda *cuda, CUstream stream, unsigned seed) {
    struct {
        CUdeviceptr block;
        size_t bytes;
        unsigned value;
    } held[HELD];
    unsigned sum = 2166136261u, state = seed;

    memset(held, 0, sizeof held);
    for (int turn = 0; turn < TURNS; turn++) {
        unsigned i = next(&state) % HELD;

        if (held[i].block) {
            sum = read_block(cuda, held[i].block, held[i].bytes, held[i].value, stream, sum);
            CU(cuda->cuMemFreeAsync(held[i].block, stream));
        }
        held[i].bytes =
            turn % 16 == 0 ? 256 * KIB + next(&state) % MIB : 1 + next(&state) % (16 * KIB);
        held[i].value = next(&state);
        CU(cuda->cuMemAllocAsync(&held[i].block, held[i].bytes, stream));
        HOLDS(held[i].block);
        write_block(cuda, held[i].block, held[i].bytes, held[i].value, stream);
    }
    for (unsigned i = 0; i < HELD; i++)
        if (held[i].block) {
            sum = read_block(cuda, held[i].block, held[i].bytes, held[i].value, stream, sum);
            CU(cuda->cuMemFreeAsync(held[i].block, stream));
        }
    CU(cuda->cuStreamSynchronize(stream));
    return sum;
}

/* Uses a created pool and its attributes, and passes a block from one stream to another by an event. */
static unsigned own_pool(const struct cuda *cuda, unsigned seed) {
    CUmemPoolProps properties;
    CUmemoryPool pool;
    CUstream from, to;
    CUdeviceptr block, other;
    CUevent event;
    uint64_t threshold = 64 * MIB, is = 0, used = 1;
    unsigned sum;

    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuda->cuMemPoolCreate(&pool, &properties));
    CU(cuda->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    CU(cuda->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &is));
    HOLDS(is == threshold);
    CU(cuda->cuStreamCreate(&from, CU_STREAM_NON_BLOCKING));
    CU(cuda->cuStreamCreate(&to, CU_STREAM_NON_BLOCKING));
    CU(cuda->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CU(cuda->cuMemAllocFromPoolAsync(&block, 3 * MIB, pool, from));
    check_pointer(cuda, block, 3 * MIB);
    write_block(cuda, block, 3 * MIB, seed, from);
    CU(cuda->cuEventRecord(event, from));
    CU(cuda->cuStreamWaitEvent(to, event, 0));
    sum = read_block(cuda, block, 3 * MIB, seed, to, 2166136261u);
    CU(cuda->cuMemFreeAsync(block, to));
    CU(cuda->cuMemAllocFromPoolAsync(&block, 700, pool, to));
    CU(cuda->cuMemAllocFromPoolAsync(&other, 5 * MIB, pool, to));
    write_block(cuda, block, 700, ~seed, to);
    write_block(cuda, other, 5 * MIB, seed + 1, to);
    sum = read_block(cuda, block, 700, ~seed, to, sum);
    CU(cuda->cuEventDestroy(event));
    CU(cuda->cuStreamDestroy(from));
    sum = read_block(cuda, other, 5 * MIB, seed + 1, to, sum);
    CU(cuda->cuMemFreeAsync(other, to));
    CU(cuda->cuStreamSynchronize(to));
    CU(cuda->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    HOLDS(used == 700);
    CU(cuda->cuMemFree(block)); /* driver 580 may still count it as used */
    CU(cuda->cuMemPoolTrimTo(pool, 0));
    CU(cuda->cuStreamDestroy(to));
    CU(cuda->cuMemPoolDestroy(pool));
    return sum;
}

/* Uses memory of cuMemAlloc on the default stream. */
static unsigned checksum_of_plain(const struct cuda *cuda, unsigned seed) {
    unsigned char host[5000];
    CUdeviceptr block;

    CU(cuda->cuMemAlloc(&block, sizeof host));
    CU(cuda->cuMemsetD8Async(block, (unsigned char)seed, sizeof host, NULL));
    CU(cuda->cuMemcpyDtoH(host, block, sizeof host));
    for (size_t i = 0; i < sizeof host; i++)
        HOLDS(host[i] == (unsigned char)seed);
    CU(cuda->cuMemFree(block));
    return add_to_checksum(2166136261u, host, sizeof host);
}

void victim_work(const struct cuda *cuda, const char *who, unsigned seed) {
    CUmemoryPool pool;
    CUstream stream;
    CUdeviceptr nothing = 1;

    CU(cuda->cuDeviceGetDefaultMemPool(&pool, 0));
    CU(cuda->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuda->cuMemAllocAsync(&nothing, 0, stream));
    HOLDS(nothing == 0);
    printf("%s default pool: %08x\n", who, victim_churn(cuda, stream, seed));
    printf("%s null stream: %08x\n", who, victim_churn(cuda, NULL, seed + 1));
    printf("%s own pool: %08x\n", who, own_pool(cuda, seed + 2));
    printf("%s plain: %08x\n", who, checksum_of_plain(cuda, seed + 3));
    CU(cuda->cuMemPoolTrimTo(pool, 0));
    CU(cuda->cuStreamDestroy(stream));
    CU(cuda->cuCtxSynchronize());
}

void victim_graph(const struct cuda *cuda, const char *who, unsigned seed) {
    unsigned char host[3000];
    CUstream stream;
    CUdeviceptr block, before;
    CUgraphExec exec;
    CUgraph graph;
    unsigned sum = 2166136261u;

    CU(cuda->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuda->cuMemAllocAsync(&before, sizeof host, stream));
    CU(cuda->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuda->cuMemAllocAsync(&block, sizeof host, stream));
    CU(cuda->cuMemsetD8Async(block, (unsigned char)seed, sizeof host, stream));
    CU(cuda->cuMemcpyDtoHAsync(host, block, sizeof host, stream));
    CU(cuda->cuMemFreeAsync(block, stream));
    CU(cuda->cuStreamEndCapture(stream, &graph));
    CU(cuda->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        memset(host, 0, sizeof host);
        CU(cuda->cuGraphLaunch(exec, stream));
        CU(cuda->cuStreamSynchronize(stream));
        for (size_t byte = 0; byte < sizeof host; byte++)
            HOLDS(host[byte] == (unsigned char)seed);
        sum = add_to_checksum(sum, host, sizeof host);
    }
    write_block(cuda, before, sizeof host, seed, stream);
    sum = read_block(cuda, before, sizeof host, seed, stream, sum);
    CU(cuda->cuMemFreeAsync(before, stream));
    CU(cuda->cuGraphExecDestroy(exec));
    CU(cuda->cuGraphDestroy(graph));
    CU(cuda->cuStreamSynchronize(stream));
    CU(cuda->cuStreamDestroy(stream));
    printf("%s graph: %08x\n", who, sum);
}

CUmemoryPool victim_pool(const struct cuda *cuda) {
    uint64_t all = UINT64_MAX;
    CUmemPoolProps properties;
    CUmemoryPool pool;

    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuda->cuMemPoolCreate(&pool, &properties));
    CU(cuda->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    return pool;
}

void victim_take_time(void *nothing) {
    (void)nothing;
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}
