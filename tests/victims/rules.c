/* SPDX-License-Identifier: MIT */
/* rules.c: a program that tests the rules of pools, blocks, captures and access by other devices that asks.c leaves
 * out.  It breaks each rule that can be broken, and prints the driver's answers, but nothing that differs among
 * drivers.  With --gone it passes destroyed streams and pools, on which a driver may crash. */
#include "opened.h"

#include <unistd.h>

enum { ORDINAL = 9, SIZE = 12, POOL = 17 };

static int has_second, names_gone;

static CUmemoryPool make_pool_for(int device, CUmemAllocationHandleType handles) {
    CUmemPoolProps properties = pool_properties();

    properties.location.id = device;
    properties.handleTypes = handles;
    return new_pool(&properties);
}

static CUmemoryPool make_pool(int device) {
    return make_pool_for(device, CU_MEM_HANDLE_TYPE_NONE);
}

static uint64_t figure(CUmemoryPool pool, CUmemPool_attribute attribute) {
    uint64_t value = 0;

    CU(cuda.cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static uint64_t asked(CUpointer_attribute attribute, CUdeviceptr address) {
    uint64_t value = 0;

    CU(cuda.cuPointerGetAttribute(&value, attribute, address));
    return value;
}

static void show(const char *what, uint64_t value) {
    printf("%s: %llu\n", what, (unsigned long long)value);
}

/* ---- Pools ---- */

static void pools(CUstream stream) {
    CUmemoryPool standard, current = NULL, own = make_pool(0), other;
    CUdeviceptr block;

    CU(cuda.cuDeviceGetDefaultMemPool(&standard, 0));
    CU(more.cuDeviceGetMemPool(&current, 0));
    show("the default pool is current", current == standard);
    if (has_second) {
        other = make_pool(1);
        show("another device's pool", more.cuDeviceSetMemPool(0, other));
        CU(cuda.cuMemPoolDestroy(other));
    }
    show("a pool of its own", more.cuDeviceSetMemPool(0, own));
    CU(more.cuDeviceGetMemPool(&current, 0));
    show("it is current", current == own);
    CU(cuda.cuMemAllocAsync(&block, 1000, stream));
    show("a block of it names it", asked(POOL, block) == (uintptr_t)own);
    show("used there", figure(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show("used in the default pool", figure(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show("destroyed with a block", cuda.cuMemPoolDestroy(own));
    CU(more.cuDeviceGetMemPool(&current, 0));
    show("the default pool is current again", current == standard);
    if (names_gone)
        show("destroyed twice", cuda.cuMemPoolDestroy(own));
    show("a block of a pool that is gone", cuda.cuMemFreeAsync(block, stream));
    show("the default pool destroyed", cuda.cuMemPoolDestroy(standard));
}

/* Tests attributes that asks.c leaves out.  A policy has the size of an int. */
static void figures(void) {
    struct {
        int value, guard;
    } policy = {0, 77};
    CUmemoryPool pool = make_pool(0);
    uint64_t number = 0;

    for (CUmemPool_attribute attribute = 1; attribute <= 3; attribute++)
        CU(cuda.cuMemPoolGetAttribute(pool, attribute, &policy.value));
    HOLDS(policy.guard == 77);
    show("the use set",
         cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &number));
    show("of no pool", cuda.cuMemPoolGetAttribute(NULL, 1, &number));
    show("of no pool trimmed", cuda.cuMemPoolTrimTo(NULL, 0));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* ---- Pointers ---- */

/* Tests queries of pointers that asks.c leaves out. */
static void pointers(CUstream stream) {
    CUpointer_attribute several[1] = {SIZE};
    CUmemoryPool pool = make_pool(0);
    CUdeviceptr block, base;
    size_t bytes = 0;
    uint64_t id;
    void *values[1] = {&bytes};
    int file;

    CU(cuda.cuMemAllocFromPoolAsync(&block, 5000, pool, stream));
    show("its pool is shared", more.cuMemPoolExportToShareableHandle(&file, pool, 1, 0));
    show("an attribute that is none", cuda.cuPointerGetAttribute(&id, 99, block));
    CU(cuda.cuMemFreeAsync(block, stream));
    show("of a pointer of the host", cuda.cuPointerGetAttribute(&id, SIZE, (uintptr_t)&id));
    CU(more.cuPointerGetAttributes(1, several, values, (uintptr_t)&id));
    show("several of it: bytes", bytes);
    show("its range", cuda.cuMemGetAddressRange(&base, &bytes, (uintptr_t)&id));
    CU(cuda.cuMemPoolDestroy(pool));
}

static void plain_pointers(void) {
    unsigned char handle[64];
    CUdeviceptr block;

    CU(cuda.cuMemAlloc(&block, 5000));
    show("a plain block can be shared", more.cuIpcGetMemHandle(handle, block));
    CU(cuda.cuMemFree(block));
}

/* The driver itself serves a pool that is shared by several processes. */
static void shared(CUstream stream) {
    CUmemoryPool pool = make_pool_for(0, 1 /* by file */);
    unsigned char data[64];
    CUdeviceptr block;
    int file = -1;

    CU(cuda.cuMemAllocFromPoolAsync(&block, 5000, pool, stream));
    CU(cuda.cuMemsetD8Async(block, 1, 5000, stream));
    show("a pool for several processes", more.cuMemPoolExportToShareableHandle(&file, pool, 1, 0));
    HOLDS(close(file) == 0);
    show("a block of it", more.cuMemPoolExportPointer(data, block));
    show("names it", asked(POOL, block) == (uintptr_t)pool);
    show("bytes", asked(SIZE, block));
    show("used", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(more.cuDeviceSetMemPool(0, pool));
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemAllocAsync(&block, 3000, stream));
    show("a block of it as the current one", more.cuMemPoolExportPointer(data, block));
    show("freed at once", cuda.cuMemFree(block));
    show("used then", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* ---- Mistakes ---- */

static void mistakes(CUstream stream) {
    CUdeviceptr other;
    CUmemoryPool pool = make_pool(0);
    CUstream gone;

    show("nothing freed at once", cuda.cuMemFree(0));
    show("of no pool", cuda.cuMemAllocFromPoolAsync(&other, 1, NULL, stream));
    other = 77;
    show("of a pool nothing", cuda.cuMemAllocFromPoolAsync(&other, 0, pool, stream));
    show("which is", other);
    gone = new_stream();
    CU(cuda.cuStreamDestroy(gone));
    if (names_gone)
        show("on a stream that is gone", cuda.cuMemAllocFromPoolAsync(&other, 1, pool, gone));
    CU(cuda.cuMemPoolDestroy(pool));
    if (names_gone)
        show("of a pool that is gone", cuda.cuMemAllocFromPoolAsync(&other, 1, pool, stream));
}

/* ---- Capture ---- */

static void captures(CUstream stream) {
    CUdeviceptr before, inside, left;
    CUmemoryPool pool = make_pool(0);
    CUgraphExec exec;
    CUgraph graph;

    CU(cuda.cuMemAllocFromPoolAsync(&before, 5000, pool, stream));
    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    show("a block from before freed in a capture", cuda.cuMemFreeAsync(before, stream));
    show("a block of a capture", cuda.cuMemAllocFromPoolAsync(&inside, 5000, pool, stream));
    show("one that is left", cuda.cuMemAllocAsync(&left, 3000, stream));
    CU(cuda.cuMemsetD8Async(inside, 1, 5000, stream));
    CU(cuda.cuMemsetD8Async(left, 2, 3000, stream));
    show("freed there", cuda.cuMemFreeAsync(inside, stream));
    CU(cuda.cuStreamEndCapture(stream, &graph));
    show("used in the pool", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show("the block from before freed", cuda.cuMemFreeAsync(before, stream));
    CU(cuda.cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuda.cuGraphLaunch(exec, stream));
    show("launched with a block that is left", cuda.cuGraphLaunch(exec, stream));
    show("that block freed", cuda.cuMemFreeAsync(left, stream));
    show("launched again", cuda.cuGraphLaunch(exec, stream));
    show("the block freed at once", cuda.cuMemFree(left));
    CU(cuda.cuGraphExecDestroy(exec));
    CU(cuda.cuGraphDestroy(graph));
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* ---- Another device ---- */

static CUmemAccess_flags access_of(CUmemoryPool pool, int device) {
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemAccess_flags flags = 77;

    CU(more.cuMemPoolGetAccess(&flags, pool, &place));
    return flags;
}

static void allow(CUmemoryPool pool, int device, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};

    show("access set", more.cuMemPoolSetAccess(pool, &access, 1));
    show("access is", access_of(pool, device));
}

/* Prints whether work of the other device can write to a block. */
static void reach(const char *what, CUdeviceptr block, CUstream far) {
    show(what, cuda.cuMemsetD8Async(block, 3, 1000, far));
    CU(cuda.cuStreamSynchronize(far));
}

static void devices(CUstream stream, CUstream far) {
    CUmemoryPool early = make_pool(0), late = make_pool(0), there = make_pool(1);
    CUmemAccessDesc nowhere = {{CU_MEM_LOCATION_TYPE_DEVICE, 7}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUdeviceptr block, second;

    show("access at home", access_of(early, 0));
    show("access from the other", access_of(early, 1));
    allow(early, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    allow(early, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    show("access of no device", more.cuMemPoolSetAccess(early, &nowhere, 1));
    CU(cuda.cuMemAllocFromPoolAsync(&block, 1000, early, stream));
    reach("reached, as the pool allowed before", block, far);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemAllocFromPoolAsync(&block, 1000, late, stream));
    CU(cuda.cuStreamSynchronize(stream));
    reach("reached without leave", block, far);
    allow(late, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    reach("reached, as the pool allows now", block, far);
    CU(cuda.cuMemAllocFromPoolAsync(&second, 90 * MIB, late, stream));
    reach("so is a block that came later", second, far);
    allow(late, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    reach("no more", block, far);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemFreeAsync(second, stream));
    CU(cuda.cuMemAllocAsync(&block, 1000, far)); /* on the stream's device */
    show("a block of the other device", asked(ORDINAL, block));
    CU(cuda.cuMemFreeAsync(block, far));
    show("of its pool on this device's stream",
         cuda.cuMemAllocFromPoolAsync(&block, 1000, there, stream));
    show("is on", asked(ORDINAL, block));
    CU(cuda.cuMemFreeAsync(block, far));
    CU(cuda.cuMemPoolDestroy(early));
    CU(cuda.cuMemPoolDestroy(late));
    late = make_pool(0);
    CU(cuda.cuMemAllocFromPoolAsync(&block, 1000, late, stream));
    CU(cuda.cuStreamSynchronize(stream));
    reach("reached in a later pool, without leave", block, far);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemPoolDestroy(late));
    CU(cuda.cuMemPoolDestroy(there));
}

int main(int argc, char **argv) {
    CUstream stream, far = NULL;
    CUcontext other;
    int count;

    for (int i = 1; i < argc; i++)
        names_gone |= strcmp(argv[i], "--gone") == 0;
    open_driver();
    NEED("cuDeviceGetCount", "cuDeviceGetMemPool", "cuDeviceSetMemPool", "cuIpcGetMemHandle",
         "cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle", "cuMemPoolGetAccess",
         "cuMemPoolSetAccess", "cuPointerGetAttributes");
    CU(cuda.cuInit(0));
    CU(more.cuDeviceGetCount(&count));
    has_second = count > 1;
    if (has_second) {
        CU(cuda.cuDevicePrimaryCtxRetain(&other, 1));
        CU(cuda.cuCtxSetCurrent(other));
        far = new_stream();
    }
    victim_start(&cuda);
    stream = new_stream();
    pools(stream);
    figures();
    pointers(stream);
    plain_pointers();
    shared(stream);
    mistakes(stream);
    captures(stream);
    if (has_second)
        devices(stream, far);
    CU(cuda.cuCtxSynchronize());
    return victim_status(argc, argv);
}
