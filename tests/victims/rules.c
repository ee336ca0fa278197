/* SPDX-License-Identifier: MIT */
/* rules.c: a program that goes through the rules of pools, blocks, captures and access by other devices,
 * breaks those that can be broken, and prints the answers.  Of what is the driver's own affair
 * (addresses, ids, how much is reserved) only what holds of any driver is printed.  With one device it asks
 * nothing of a second; with --gone it names streams and pools that are no more, which a driver may crash on. */
#include "opened.h"

#include <unistd.h>

enum {
    CONTEXT = 1,
    ORDINAL = 9,
    BUFFER_ID = 7,
    IPC_CAPABLE = 10,
    START = 11,
    SIZE = 12,
    POOL = 17
};

static int has_second, names_gone;

/* Beside those of work.h. */
static CUresult (*get_pool)(CUmemoryPool *, CUdevice), (*set_pool)(CUdevice, CUmemoryPool);
static CUresult (*set_access)(CUmemoryPool, const CUmemAccessDesc *, size_t);
static CUresult (*get_access)(CUmemAccess_flags *, CUmemoryPool, CUmemLocation *);
static CUresult (*export_pointer)(void *, CUdeviceptr), (*ipc_handle)(void *, CUdeviceptr);
static CUresult (*export_pool)(void *, CUmemoryPool, CUmemAllocationHandleType, unsigned long long);
static CUresult (*attributes)(unsigned, CUpointer_attribute *, void **, CUdeviceptr);

static CUmemoryPool make_pool_for(int device, size_t most, CUmemAllocationHandleType handles) {
    CUmemPoolProps properties = pool_properties();

    properties.location.id = device;
    properties.maxSize = most;
    properties.handleTypes = handles;
    return new_pool(&properties);
}

static CUmemoryPool make_pool(int device, size_t most) {
    return make_pool_for(device, most, CU_MEM_HANDLE_TYPE_NONE);
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
    CUmemoryPool standard, current = NULL, own = make_pool(0, 0), other;
    CUdeviceptr block;

    CU(cuda.cuDeviceGetDefaultMemPool(&standard, 0));
    CU(get_pool(&current, 0));
    show("the default pool is current", current == standard);
    if (has_second) {
        other = make_pool(1, 0);
        show("another device's pool", set_pool(0, other));
        CU(cuda.cuMemPoolDestroy(other));
    }
    show("a pool of its own", set_pool(0, own));
    CU(get_pool(&current, 0));
    show("it is current", current == own);
    CU(cuda.cuMemAllocAsync(&block, 1000, stream));
    show("a block of it names it", asked(POOL, block) == (uintptr_t)own);
    show("used there", figure(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show("used in the default pool", figure(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show("destroyed with a block", cuda.cuMemPoolDestroy(own));
    CU(get_pool(&current, 0));
    show("the default pool is current again", current == standard);
    if (names_gone)
        show("destroyed twice", cuda.cuMemPoolDestroy(own));
    show("a block of a pool that is gone", cuda.cuMemFreeAsync(block, stream));
    show("the default pool destroyed", cuda.cuMemPoolDestroy(standard));
}

static void policies(CUmemoryPool pool) {
    struct {
        int value, guard;
    } policy = {0, 77};

    for (CUmemPool_attribute attribute = 1; attribute <= 3; attribute++) {
        CU(cuda.cuMemPoolGetAttribute(pool, attribute, &policy.value));
        show("a policy at first", (uint64_t)policy.value);
        policy.value = 0;
        CU(cuda.cuMemPoolSetAttribute(pool, attribute, &policy.value));
        policy.value = 5;
        CU(cuda.cuMemPoolGetAttribute(pool, attribute, &policy.value));
        show("and set", (uint64_t)policy.value);
        policy.value = 1;
        CU(cuda.cuMemPoolSetAttribute(pool, attribute, &policy.value));
    }
    HOLDS(policy.guard == 77);
}

static void figures(CUstream stream) {
    CUmemoryPool pool = make_pool(0, 0);
    uint64_t number = 5 * MIB;
    CUdeviceptr blocks[3];

    policies(pool);
    show("threshold at first", figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    CU(cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &number));
    show("and set", figure(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    show("used at first", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(cuda.cuMemAllocFromPoolAsync(&blocks[0], 1, pool, stream));
    CU(cuda.cuMemAllocFromPoolAsync(&blocks[1], 3 * MIB + 7, pool, stream));
    CU(cuda.cuMemAllocFromPoolAsync(&blocks[2], 100 * KIB, pool, stream));
    show("used by three blocks", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show("reserved for them", figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 3 * MIB);
    CU(cuda.cuMemFreeAsync(blocks[1], stream));
    show("used by two", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    show("the most", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    number = 1;
    show("the most set to something",
         cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &number));
    number = 0;
    show("the most set to 0",
         cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &number));
    show("the most is what is used", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
    CU(cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &number));
    show("so of the reserve", figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) ==
                                  figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    show("the use set",
         cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &number));
    show("an attribute that is none", cuda.cuMemPoolGetAttribute(pool, 99, &number));
    show("of no pool", cuda.cuMemPoolGetAttribute(NULL, 1, &number));
    CU(cuda.cuMemFreeAsync(blocks[0], stream));
    CU(cuda.cuMemFreeAsync(blocks[2], stream));
    CU(cuda.cuStreamSynchronize(stream));
    show("trimmed", cuda.cuMemPoolTrimTo(pool, 0));
    show("reserved then", figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    show("of no pool trimmed", cuda.cuMemPoolTrimTo(NULL, 0));
    CU(cuda.cuMemPoolDestroy(pool));
}

static void limits(CUstream stream) {
    CUmemoryPool pool = make_pool(0, 64 * MIB);
    CUdeviceptr first, second;

    CU(cuda.cuMemAllocFromPoolAsync(&first, 40 * MIB, pool, stream));
    show("more than the pool may have",
         cuda.cuMemAllocFromPoolAsync(&second, 40 * MIB, pool, stream));
    CU(cuda.cuMemFreeAsync(first, stream));
    CU(cuda.cuStreamSynchronize(stream));
    show("once there is room", cuda.cuMemAllocFromPoolAsync(&second, 40 * MIB, pool, stream));
    CU(cuda.cuMemFreeAsync(second, stream));
    show("more than a device has", cuda.cuMemAllocAsync(&first, (size_t)1 << 45, stream));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* ---- Pointers ---- */

static void pointers(CUstream stream) {
    CUpointer_attribute several[4] = {SIZE, POOL, ORDINAL, CONTEXT};
    CUmemoryPool pool = make_pool(0, 0), named = NULL;
    CUcontext context = NULL;
    CUdeviceptr block, beside, base;
    unsigned char handle[64];
    size_t bytes = 0;
    uint64_t id;
    int ordinal = -1;
    void *values[4] = {&bytes, (void *)&named, &ordinal, (void *)&context};

    CU(cuda.cuMemAllocFromPoolAsync(&block, 5000, pool, stream));
    CU(cuda.cuMemAllocFromPoolAsync(&beside, 5000, pool, stream));
    show("begins where it begins", asked(START, block + 4999) == block);
    show("bytes", asked(SIZE, block));
    show("device", asked(ORDINAL, block));
    show("context", asked(CONTEXT, block));
    show("names its pool", asked(POOL, block) == (uintptr_t)pool);
    show("has an id of its own", asked(BUFFER_ID, block) != asked(BUFFER_ID, beside));
    show("which is the same throughout", asked(BUFFER_ID, block) == asked(BUFFER_ID, block + 1));
    show("can be shared as of old", asked(IPC_CAPABLE, block));
    show("is shared as of old", ipc_handle(handle, block));
    show("is shared as of a pool", export_pointer(handle, block));
    show("its pool is shared", export_pool(handle, pool, 1, 0));
    CU(attributes(4, several, values, block + 17));
    show("several at once: bytes", bytes);
    show("the pool", named == pool);
    show("the device", (uint64_t)ordinal);
    show("the context", (uintptr_t)context);
    show("an attribute that is none", cuda.cuPointerGetAttribute(&id, 99, block));
    show("its range from inside", cuda.cuMemGetAddressRange(&base, &bytes, block + 4000));
    show("begins", base == block);
    show("bytes", bytes);
    show("the range alone", cuda.cuMemGetAddressRange(NULL, &bytes, block));
    id = asked(BUFFER_ID, block);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemAllocFromPoolAsync(&base, 5000, pool, stream));
    show("the next block has another id", asked(BUFFER_ID, base) != id);
    CU(cuda.cuMemFreeAsync(base, stream));
    CU(cuda.cuMemFreeAsync(beside, stream));
    show("of a pointer of the host", cuda.cuPointerGetAttribute(&id, SIZE, (uintptr_t)&id));
    CU(attributes(1, several, values, (uintptr_t)&id));
    show("several of it: bytes", bytes);
    show("its range", cuda.cuMemGetAddressRange(&base, &bytes, (uintptr_t)&id));
    CU(cuda.cuMemPoolDestroy(pool));
}

static void plain_pointers(void) {
    CUdeviceptr block;
    unsigned char handle[64];

    CU(cuda.cuMemAlloc(&block, 5000));
    show("a plain block's bytes", asked(SIZE, block + 1));
    show("its pool", asked(POOL, block));
    show("it has a context", asked(CONTEXT, block) != 0);
    show("it can be shared", ipc_handle(handle, block));
    CU(cuda.cuMemFree(block));
}

/* A pool for several processes stays the driver's. */
static void shared(CUstream stream) {
    CUmemoryPool pool = make_pool_for(0, 0, 1 /* by file */);
    unsigned char data[64];
    CUdeviceptr block;
    int file = -1;

    CU(cuda.cuMemAllocFromPoolAsync(&block, 5000, pool, stream));
    CU(cuda.cuMemsetD8Async(block, 1, 5000, stream));
    show("a pool for several processes", export_pool(&file, pool, 1, 0));
    HOLDS(close(file) == 0);
    show("a block of it", export_pointer(data, block));
    show("names it", asked(POOL, block) == (uintptr_t)pool);
    show("bytes", asked(SIZE, block));
    show("used", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(set_pool(0, pool));
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemAllocAsync(&block, 3000, stream));
    show("a block of it as the current one", export_pointer(data, block));
    show("freed at once", cuda.cuMemFree(block));
    show("used then", figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
    CU(cuda.cuMemPoolDestroy(pool));
}

/* ---- What is not allowed ---- */

static void mistakes(CUstream stream) {
    CUdeviceptr block, other;
    CUmemoryPool pool = make_pool(0, 0);
    CUstream gone;

    CU(cuda.cuMemAllocAsync(&block, 5000, stream));
    show("freed inside", cuda.cuMemFreeAsync(block + 512, stream));
    show("freed inside, at once", cuda.cuMemFree(block + 512));
    show("freed", cuda.cuMemFreeAsync(block, stream));
    show("freed twice", cuda.cuMemFreeAsync(block, stream));
    show("freed twice, at once", cuda.cuMemFree(block));
    show("a pointer of the host freed", cuda.cuMemFreeAsync((uintptr_t)&block, stream));
    show("nothing freed", cuda.cuMemFreeAsync(0, stream));
    show("nothing freed at once", cuda.cuMemFree(0));
    show("asked with nowhere to answer", cuda.cuMemAllocAsync(NULL, 1, stream));
    show("of a pool with nowhere to answer", cuda.cuMemAllocFromPoolAsync(NULL, 1, pool, stream));
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
    CUmemoryPool pool = make_pool(0, 0);
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

    CU(get_access(&flags, pool, &place));
    return flags;
}

static void allow(CUmemoryPool pool, int device, CUmemAccess_flags flags) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};

    show("access set", set_access(pool, &access, 1));
    show("access is", access_of(pool, device));
}

/* Does the other device's work reach a block? */
static void reach(const char *what, CUdeviceptr block, CUstream far) {
    show(what, cuda.cuMemsetD8Async(block, 3, 1000, far));
    CU(cuda.cuStreamSynchronize(far));
}

static void devices(CUstream stream, CUstream far) {
    CUmemoryPool early = make_pool(0, 0), late = make_pool(0, 0), there = make_pool(1, 0);
    CUmemAccessDesc nowhere = {{CU_MEM_LOCATION_TYPE_DEVICE, 7}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUdeviceptr block, second;

    show("access at home", access_of(early, 0));
    show("access from the other", access_of(early, 1));
    allow(early, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    allow(early, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    show("access of no device", set_access(early, &nowhere, 1));
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
    CU(cuda.cuMemAllocAsync(&block, 1000, far)); /* of the stream's device */
    show("a block of the other device", asked(ORDINAL, block));
    CU(cuda.cuMemFreeAsync(block, far));
    show("of its pool on this device's stream",
         cuda.cuMemAllocFromPoolAsync(&block, 1000, there, stream));
    show("is on", asked(ORDINAL, block));
    CU(cuda.cuMemFreeAsync(block, far));
    CU(cuda.cuMemPoolDestroy(early));
    CU(cuda.cuMemPoolDestroy(late));
    late = make_pool(0, 0);
    CU(cuda.cuMemAllocFromPoolAsync(&block, 1000, late, stream));
    CU(cuda.cuStreamSynchronize(stream));
    reach("reached in a later pool, without leave", block, far);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemPoolDestroy(late));
    CU(cuda.cuMemPoolDestroy(there));
}

int main(int argc, char **argv) {
    CUresult (*get_count)(int *);
    CUstream stream, far = NULL;
    CUcontext other;
    int count;

    for (int i = 1; i < argc; i++)
        names_gone |= strcmp(argv[i], "--gone") == 0;
    open_driver();
    need_call(&get_pool, "cuDeviceGetMemPool");
    need_call(&set_pool, "cuDeviceSetMemPool");
    need_call(&set_access, "cuMemPoolSetAccess");
    need_call(&get_access, "cuMemPoolGetAccess");
    need_call(&export_pointer, "cuMemPoolExportPointer");
    need_call(&export_pool, "cuMemPoolExportToShareableHandle");
    need_call(&ipc_handle, "cuIpcGetMemHandle");
    need_call(&attributes, "cuPointerGetAttributes");
    need_call(&get_count, "cuDeviceGetCount");
    CU(cuda.cuInit(0));
    CU(get_count(&count));
    has_second = count > 1;
    if (has_second) {
        CU(cuda.cuDevicePrimaryCtxRetain(&other, 1));
        CU(cuda.cuCtxSetCurrent(other));
        far = new_stream();
    }
    victim_start(&cuda);
    stream = new_stream();
    pools(stream);
    figures(stream);
    limits(stream);
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
