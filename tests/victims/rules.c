/* SPDX-License-Identifier: MIT */
/* rules.c: a program that tests the rules of pools, blocks, captures and access by other devices that asks.c leaves
 * out.  It breaks each rule that can be broken, and prints the driver's answers, but nothing that differs among
 * drivers.  With --gone it passes destroyed streams and pools, on which a driver may crash. */
#include "opened.h"

#include <unistd.h>

enum { ORDINAL = 9, SIZE = 12, POOL = 17 };

static int has_second, names_gone;

static CUmemoryPool make_rules_pool_for(int device, CUmemAllocationHandleType handles) {
    CUmemPoolProps properties = pool_properties();

    properties.location.id = device;
    properties.handleTypes = handles;
    return new_pool(&properties);
}

static CUmemoryPool make_rules_pool(int device) {
    return make_rules_pool_for(device, CU_MEM_HANDLE_TYPE_NONE);
}

static uint64_t rules_figure(CUmemoryPool pool, CUmemPool_attribute attribute) {
    uint64_t value = 0;

    CU(cuda.cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static uint64_t asked(CUpointer_attribute attribute, CUdeviceptr address) {
    uint64_t value = 0;

    CU(cuda.cuPointerGetAttribute(&value, attribute, address));
    return value;
}

static void show_number(const char *what, uint64_t value) {
    printf("%s: %llu\n", what, (unsigned long long)value);
}

/* ---- Pools ---- */

static void check_pool_rules(CUstream stream) {
    CUmemoryPool standard, current = NULL, own = make_rules_pool(0), other;
    CUdeviceptr block;

    CU(cuda.cuDeviceGetDefaultMemPool(&standard, 0));
    CU(more.cuDeviceGetMemPool(&current, 0));
    show_number("the default pool is current", current == standard);
    if (has_second) {
        other = make_rules_pool(1);
        show_number("another device's pool", more.cuDeviceSetMemPool(0, other));
        CU(cuda.cuMemPoolDestroy(other));
    }
    show_number("a pool of its own", more.cuDeviceSetMemPool(0, own));
    CU(more.cuDeviceGetMemPool(&current, 0));
    show_number("it is current", current == own);
    CU(cuda.cuMemAllocAsync(&block, 1000, stream));
    show_number("a block of it names it", asked(POOL, block) == (uintptr_t)own);
    show_number("used there", rules_figure(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show_number("used in the default pool",
                rules_figure(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show_number("destroyed with a block", cuda.cuMemPoolDestroy(own));
    CU(more.cuDeviceGetMemPool(&current, 0));
    show_number("the default pool is current again", current == standard);
    if (names_gone)
        show_number("destroyed twice", cuda.cuMemPoolDestroy(own));
    show_number("a block of a pool that is gone", cuda.cuMemFreeAsync(block, stream));
    show_number("the default pool destroyed", cuda.cuMemPoolDestroy(standard));
}

/* Tests attributes that asks.c leaves out.  A policy has the size of an int. */
static void check_figure_rules(void) {
    struct {
        int value, guard;
    } policy = {0, 77};
    CUmemoryPool pool = make_rules_pool(0);
    uint64_t number = 0;

    for (CUmemPool_attribute attribute = 1; attribute <= 3; attribute++)
        CU(cuda.cuMemPoolGetAttribute(pool, attribute, &policy.value));
    HOLDS(policy.guard == 77);
    show_number("the use set",
                cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &number));
    show_number("of no pool", cuda.cuMemPoolGetAttribute(NULL, 1, &number));
    show_number("of no pool trimmed", cuda.cuMemPoolTrimTo(NULL, 0));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* ---- Pointers ---- */

/* Tests queries of pointers that asks.c leaves out. */
static void check_pointer_rules(CUstream stream) {
    CUpointer_attribute several[1] = {SIZE};
    CUmemoryPool pool = make_rules_pool(0);
    CUdeviceptr block, base;
    size_t bytes = 0;
    uint64_t id;
    void *values[1] = {&bytes};
    int file;

    CU(cuda.cuMemAllocFromPoolAsync(&block, 5000, pool, stream));
    show_number("its pool is shared", more.cuMemPoolExportToShareableHandle(&file, pool, 1, 0));
    show_number("an attribute that is none", cuda.cuPointerGetAttribute(&id, 99, block));
    CU(cuda.cuMemFreeAsync(block, stream));
    show_number("of a pointer of the host", cuda.cuPointerGetAttribute(&id, SIZE, (uintptr_t)&id));
    CU(more.cuPointerGetAttributes(1, several, values, (uintptr_t)&id));
    show_number("several of it: bytes", bytes);
    show_number("its range", cuda.cuMemGetAddressRange(&base, &bytes, (uintptr_t)&id));
    CU(cuda.cuMemPoolDestroy(pool));
}

static void plain_pointers(void) {
    unsigned char handle[64];
    CUdeviceptr block;

    CU(cuda.cuMemAlloc(&block, 5000));
    show_number("a plain block can be shared", more.cuIpcGetMemHandle(handle, block));
    CU(cuda.cuMemFree(block));
}

/* The driver itself serves a pool that is shared by several processes. */
static void check_sharing_rules(CUstream stream) {
    CUmemoryPool pool = make_rules_pool_for(0, 1 /* by file */);
    unsigned char data[64];
    CUdeviceptr block;
    int file = -1;

    CU(cuda.cuMemAllocFromPoolAsync(&block, 5000, pool, stream));
    CU(cuda.cuMemsetD8Async(block, 1, 5000, stream));
    show_number("a pool for several processes",
                more.cuMemPoolExportToShareableHandle(&file, pool, 1, 0));
    HOLDS(close(file) == 0);
    show_number("a block of it", more.cuMemPoolExportPointer(data, block));
    show_number("names it", asked(POOL, block) == (uintptr_t)pool);
    show_number("bytes", asked(SIZE, block));
    show_number("used", rules_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(more.cuDeviceSetMemPool(0, pool));
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemAllocAsync(&block, 3000, stream));
    show_number("a block of it as the current one", more.cuMemPoolExportPointer(data, block));
    show_number("freed at once", cuda.cuMemFree(block));
    show_number("used then", rules_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* ---- Mistakes ---- */

static void mistakes(CUstream stream) {
    CUdeviceptr other;
    CUmemoryPool pool = make_rules_pool(0);
    CUstream gone;

    show_number("nothing freed at once", cuda.cuMemFree(0));
    show_number("of no pool", cuda.cuMemAllocFromPoolAsync(&other, 1, NULL, stream));
    other = 77;
    show_number("of a pool nothing", cuda.cuMemAllocFromPoolAsync(&other, 0, pool, stream));
    show_number("which is", other);
    gone = new_stream();
    CU(cuda.cuStreamDestroy(gone));
    if (names_gone)
        show_number("on a stream that is gone",
                    cuda.cuMemAllocFromPoolAsync(&other, 1, pool, gone));
    CU(cuda.cuMemPoolDestroy(pool));
    if (names_gone)
        show_number("of a pool that is gone",
                    cuda.cuMemAllocFromPoolAsync(&other, 1, pool, stream));
}

/* ---- Capture ---- */

static void captures(CUstream stream) {
    CUdeviceptr before, inside, left;
    CUmemoryPool pool = make_rules_pool(0);
    CUgraphExec exec;
    CUgraph graph;

    CU(cuda.cuMemAllocFromPoolAsync(&before, 5000, pool, stream));
    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    show_number("a block from before freed in a capture", cuda.cuMemFreeAsync(before, stream));
    show_number("a block of a capture", cuda.cuMemAllocFromPoolAsync(&inside, 5000, pool, stream));
    show_number("one that is left", cuda.cuMemAllocAsync(&left, 3000, stream));
    CU(cuda.cuMemsetD8Async(inside, 1, 5000, stream));
    CU(cuda.cuMemsetD8Async(left, 2, 3000, stream));
    show_number("freed there", cuda.cuMemFreeAsync(inside, stream));
    CU(cuda.cuStreamEndCapture(stream, &graph));
    show_number("used in the pool", rules_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show_number("the block from before freed", cuda.cuMemFreeAsync(before, stream));
    CU(cuda.cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuda.cuGraphLaunch(exec, stream));
    show_number("launched with a block that is left", cuda.cuGraphLaunch(exec, stream));
    show_number("that block freed", cuda.cuMemFreeAsync(left, stream));
    show_number("launched again", cuda.cuGraphLaunch(exec, stream));
    show_number("the block freed at once", cuda.cuMemFree(left));
    CU(cuda.cuGraphExecDestroy(exec));
    CU(cuda.cuGraphDestroy(graph));
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* ---- Another device ---- */

static CUmemAccess_flags rules_access(CUmemoryPool pool, int device) {
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemAccess_flags flags = 77;

    CU(more.cuMemPoolGetAccess(&flags, pool, &place));
    return flags;
}

static void allow(CUmemoryPool pool, int device, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};

    show_number("access set", more.cuMemPoolSetAccess(pool, &access, 1));
    show_number("access is", rules_access(pool, device));
}

/* Prints whether work of the other device can write to a block. */
static void reach(const char *what, CUdeviceptr block, CUstream far) {
    show_number(what, cuda.cuMemsetD8Async(block, 3, 1000, far));
    CU(cuda.cuStreamSynchronize(far));
}

static void devices(CUstream stream, CUstream far) {
    CUmemoryPool early = make_rules_pool(0), late = make_rules_pool(0), there = make_rules_pool(1);
    CUmemAccessDesc nowhere = {{CU_MEM_LOCATION_TYPE_DEVICE, 7}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUdeviceptr block, second;

    show_number("access at home", rules_access(early, 0));
    show_number("access from the other", rules_access(early, 1));
    allow(early, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    allow(early, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    show_number("access of no device", more.cuMemPoolSetAccess(early, &nowhere, 1));
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
    show_number("a block of the other device", asked(ORDINAL, block));
    CU(cuda.cuMemFreeAsync(block, far));
    show_number("of its pool on this device's stream",
                cuda.cuMemAllocFromPoolAsync(&block, 1000, there, stream));
    show_number("is on", asked(ORDINAL, block));
    CU(cuda.cuMemFreeAsync(block, far));
    CU(cuda.cuMemPoolDestroy(early));
    CU(cuda.cuMemPoolDestroy(late));
    late = make_rules_pool(0);
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
    open_cuda_library();
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
    check_pool_rules(stream);
    check_figure_rules();
    check_pointer_rules(stream);
    plain_pointers();
    check_sharing_rules(stream);
    mistakes(stream);
    captures(stream);
    if (has_second)
        devices(stream, far);
    CU(cuda.cuCtxSynchronize());
    return victim_status(argc, argv);
}
