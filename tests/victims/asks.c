/* SPDX-License-Identifier: MIT */
/* asks.c: a program that queries pointers and pools, makes invalid calls, and prints each answer, but no address. */
#include "opened.h"

enum { PLAIN = 64, LATE = 48 };

enum {
    CONTEXT = 1,
    MEMORY_TYPE = 2,
    DEVICE_POINTER = 3,
    BUFFER_ID = 7,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    IPC_CAPABLE = 10,
    RANGE_START = 11,
    RANGE_SIZE = 12,
    HANDLE_FD = 1 /* a handle type: the pool can be shared by a file descriptor */
};

static CUstream stream, other;
static CUmemoryPool standard, own;
static CUcontext context;

/* ---- pointers ---------------------------------------------------------------------------------- */

static const char *name_of(CUmemoryPool pool) {
    return !pool ? "none" : pool == standard ? "the device's" : pool == own ? "own" : "another";
}

static unsigned long long buffer_id_of(CUdeviceptr address) {
    unsigned long long id = 0;

    CU(cuda.cuPointerGetAttribute(&id, BUFFER_ID, address));
    return id;
}

static void show_pointer(const char *what, CUdeviceptr block, size_t bytes) {
    CUpointer_attribute attributes[] = {RANGE_START, RANGE_SIZE,
                                        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, BUFFER_ID};
    const size_t at[] = {0, bytes / 3, bytes - 1};
    CUdeviceptr start, range_base, same;
    unsigned type, managed, ipc;
    size_t size, range_bytes;
    unsigned long long id;
    CUmemoryPool pool;
    CUcontext of;
    int device;

    for (int i = 0; i < 3; i++) {
        void *values[] = {&start, &size, &pool, &id};

        CU(more.cuPointerGetAttributes(4, attributes, values, block + at[i]));
        HOLDS(start == block && size == bytes && id == buffer_id_of(block));
        CU(cuda.cuMemGetAddressRange(&range_base, &range_bytes, block + at[i]));
        HOLDS(range_base == block && range_bytes == bytes);
        CU(cuda.cuMemGetAddressRange(NULL, &range_bytes, block + at[i]));
        CU(cuda.cuPointerGetAttribute(&same, DEVICE_POINTER, block + at[i]));
        HOLDS(same == block + at[i]);
        printf("%s: at %d, pool %s", what, i, name_of(pool));
        CU(cuda.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block + at[i]));
        CU(cuda.cuPointerGetAttribute(&of, CONTEXT, block + at[i]));
        CU(cuda.cuPointerGetAttribute(&type, MEMORY_TYPE, block + at[i]));
        CU(cuda.cuPointerGetAttribute(&managed, IS_MANAGED, block + at[i]));
        CU(cuda.cuPointerGetAttribute(&ipc, IPC_CAPABLE, block + at[i]));
        CU(cuda.cuPointerGetAttribute(&device, DEVICE_ORDINAL, block + at[i]));
        printf(", %s, context %s, type %u, managed %u, ipc %u, device %d\n", name_of(pool),
               !of             ? "none"
               : of == context ? "the device's"
                               : "another",
               type, managed, ipc, device);
    }
}

static CUdeviceptr alloc_on_stream(size_t bytes) {
    CUdeviceptr block = 0;

    CU(cuda.cuMemAllocAsync(&block, bytes, stream));
    return block;
}

static CUdeviceptr take_own(size_t bytes) {
    CUdeviceptr block = 0;

    CU(cuda.cuMemAllocFromPoolAsync(&block, bytes, own, stream));
    return block;
}

static void ask_pointers(void) {
    char handle[64];
    CUdeviceptr a = alloc_on_stream(1000), b = take_own(3 * MIB + 5), c = alloc_on_stream(64 * MIB),
                plain, again;
    CUdeviceptr direct = alloc_on_stream(5000);
    unsigned long long was = buffer_id_of(a);

    show_pointer("small", a, 1000);
    show_pointer("large, own pool", b, 3 * MIB + 5);
    show_pointer("larger", c, 64 * MIB);
    HOLDS(was == buffer_id_of(a) && was != buffer_id_of(b) && was != buffer_id_of(c) &&
          buffer_id_of(b) != buffer_id_of(c));
    CU(cuda.cuMemAlloc(&plain, 5000));
    show_pointer("plain", plain, 5000);
    printf("ipc: %u %u %u\n", more.cuIpcGetMemHandle(handle, a), more.cuIpcGetMemHandle(handle, b),
           more.cuIpcGetMemHandle(handle, c + 5));
    printf("export: %u %u\n", more.cuMemPoolExportPointer(handle, a),
           more.cuMemPoolExportPointer(handle, b));
    CU(cuda.cuMemFreeAsync(a, stream));
    again = alloc_on_stream(1000);
    HOLDS(buffer_id_of(again) != was);
    CU(cuda.cuMemFreeAsync(again, stream));
    CU(cuda.cuMemFreeAsync(b, stream));
    CU(cuda.cuMemFreeAsync(plain, stream)); /* either free works for either memory */
    CU(cuda.cuMemFree(direct));             /* driver 580 still counts it as used */
    CU(cuda.cuMemFreeAsync(c, other));
    CU(cuda.cuCtxSynchronize());
}

/* ---- invalid requests and frees ------------------------------------------------------------------ */

static void failed_requests(void) {
    CUdeviceptr block = alloc_on_stream(3000), large = alloc_on_stream(5 * MIB), plain, nothing = 7;
    unsigned char host = 0;

    CU(cuda.cuMemAlloc(&plain, 4096));
    printf("interior: %u %u %u\n", cuda.cuMemFreeAsync(block + 256, stream),
           cuda.cuMemFreeAsync(large + MIB, stream), cuda.cuMemFree(block + 512));
    printf("foreign: %u %u\n", cuda.cuMemFreeAsync((CUdeviceptr)(uintptr_t)&host, stream),
           cuda.cuMemFreeAsync(plain + 64, stream));
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemFreeAsync(large, stream));
    printf("twice: %u %u %u\n", cuda.cuMemFreeAsync(block, stream),
           cuda.cuMemFreeAsync(large, other), cuda.cuMemFree(block));
    printf("nothing: %u %u", cuda.cuMemFreeAsync(0, stream),
           cuda.cuMemAllocAsync(&nothing, 0, stream));
    printf(" %llu\n", nothing);
    printf("no place: %u %u\n", cuda.cuMemAllocAsync(NULL, 100, stream),
           cuda.cuMemAllocFromPoolAsync(NULL, 100, own, stream));
    printf("too much: %u %u\n", cuda.cuMemAllocAsync(&nothing, (size_t)1 << 50, stream),
           cuda.cuMemAllocFromPoolAsync(&nothing, (size_t)1 << 50, own, stream));
    CU(cuda.cuMemFree(plain));
    block = alloc_on_stream(3000); /* requests still work */
    CU(cuda.cuMemsetD8Async(block, 1, 3000, stream));
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuCtxSynchronize());
}

/* ---- pools --------------------------------------------------------------------------------------- */

static uint64_t ask_pool_figure(CUmemoryPool pool, CUmemPool_attribute attribute) {
    uint64_t value = 77;

    CU(cuda.cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

/* Prints used memory.  Reserved memory differs among allocators, but is never less than used memory. */
static void show_figures(const char *when, CUmemoryPool pool) {
    uint64_t used = ask_pool_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    uint64_t high = ask_pool_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    uint64_t reserve = ask_pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);

    printf("%s: used %llu, at most %llu\n", when, (unsigned long long)used,
           (unsigned long long)high);
    HOLDS(reserve >= used && ask_pool_figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= reserve);
}

static void attributes(void) {
    uint64_t zero = 0, one = 1, threshold = 0;
    CUdeviceptr a, b;
    int on = 0;

    for (CUmemPool_attribute i = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
         i <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; i++) {
        CU(cuda.cuMemPoolGetAttribute(own, i, &on));
        printf("reuse %u: %d", i, on);
        on = 0;
        CU(cuda.cuMemPoolSetAttribute(own, i, &on));
        CU(cuda.cuMemPoolGetAttribute(own, i, &on));
        printf(", %d\n", on);
    }
    threshold = ask_pool_figure(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    printf("threshold %llu", (unsigned long long)threshold);
    threshold = 3 * MIB;
    CU(cuda.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    printf(", %llu\n", (unsigned long long)ask_pool_figure(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    CU(cuda.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    CU(cuda.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    show_figures("empty", own);
    a = take_own(100);
    b = take_own(7 * MIB);
    show_figures("two", own);
    CU(cuda.cuMemFreeAsync(b, stream));
    CU(cuda.cuStreamSynchronize(stream));
    show_figures("one", own);
    printf("to one: %u\n", cuda.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one));
    CU(cuda.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    CU(cuda.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    show_figures("anew", own);
    b = take_own(MIB);
    show_figures("two again", own);
    CU(cuda.cuMemFreeAsync(a, stream));
    CU(cuda.cuMemFreeAsync(b, stream));
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolTrimTo(own, 0));
    show_figures("none", own);
    printf("after a trim: %llu\n",
           (unsigned long long)ask_pool_figure(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
    CU(cuda.cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    printf("at most: %llu\n",
           (unsigned long long)ask_pool_figure(own, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH));
    printf("unknown: %u\n", cuda.cuMemPoolGetAttribute(own, 99, &zero));
}

static void fill_and_check(CUdeviceptr block, size_t bytes, unsigned char value) {
    unsigned char host[64];

    CU(cuda.cuMemsetD8Async(block, value, bytes, stream));
    CU(cuda.cuMemcpyDtoHAsync(host, block + bytes - sizeof host, sizeof host, stream));
    CU(cuda.cuStreamSynchronize(stream));
    for (size_t i = 0; i < sizeof host; i++)
        HOLDS(host[i] == value);
}

/* Destroys a current pool while blocks of it live. */
static void ends(void) {
    CUmemoryPool pool, current;
    CUdeviceptr a, b, c;

    for (int round = 0; round < 3; round++) {
        pool = new_pool(NULL);
        CU(more.cuDeviceSetMemPool(0, pool));
        CU(more.cuDeviceGetMemPool(&current, 0));
        HOLDS(current == pool);
        a = alloc_on_stream(2000);
        b = alloc_on_stream(9 * MIB);
        HOLDS(ask_pool_figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 2000 + 9 * MIB);
        CU(cuda.cuMemPoolDestroy(pool));
        CU(more.cuDeviceGetMemPool(&current, 0));
        printf("current then: %s\n", name_of(current));
        c = alloc_on_stream(2000);
        fill_and_check(a, 2000, 1);
        fill_and_check(b, 9 * MIB, 2);
        fill_and_check(c, 2000, 3);
        fill_and_check(a, 2000, 1);
        CU(cuda.cuMemFreeAsync(a, stream));
        CU(cuda.cuMemFreeAsync(c, stream));
        CU(cuda.cuMemFreeAsync(b, other));
        CU(cuda.cuCtxSynchronize());
    }
    printf("default pool: %u\n", cuda.cuMemPoolDestroy(standard));
}

/* Uses a pool that other processes may open, if the driver has such pools. */
static void ask_shared_pool(void) {
    CUmemPoolProps p = pool_properties();
    CUmemoryPool pool, was = own;
    CUdeviceptr block;
    CUresult result;
    int file = -1;

    p.handleTypes = HANDLE_FD;
    result = cuda.cuMemPoolCreate(&pool, &p);
    printf("shared pool: %u\n", result);
    if (result != CUDA_SUCCESS)
        return;
    own = pool;
    block = take_own(5000);
    show_pointer("shared", block, 5000);
    printf("shared: %u\n",
           more.cuMemPoolExportToShareableHandle(&file, pool, HANDLE_FD, 0) == CUDA_SUCCESS);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolDestroy(pool));
    own = was;
}

static void of_a_size(void) {
    CUmemPoolProps p = pool_properties();
    CUmemoryPool pool, was = own;
    CUdeviceptr block, more_of_it;

    p.maxSize = 64 * MIB;
    own = pool = new_pool(&p);
    block = take_own(40 * MIB);
    printf("beyond its size: %u\n",
           cuda.cuMemAllocFromPoolAsync(&more_of_it, 40 * MIB, pool, stream));
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamSynchronize(stream));
    alloc_and_free_in(pool, 40 * MIB, stream); /* there is room again */
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolDestroy(pool));
    own = was;
}

/* ---- capture ------------------------------------------------------------------------------------- */

static void ask_capture(void) {
    CUstreamCaptureStatus status;
    CUdeviceptr before = alloc_on_stream(3000), inside, late;
    CUgraphExec exec;
    CUgraph graph;

    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuda.cuMemAllocAsync(&inside, 4000, stream));
    CU(cuda.cuMemAllocAsync(&late, 4000, stream));
    CU(cuda.cuMemsetD8Async(inside, 5, 4000, stream));
    printf("free of what is not the graph's: %u\n", cuda.cuMemFreeAsync(before, stream));
    CU(more.cuStreamIsCapturing(stream, &status));
    printf("captured still: %u\n", status);
    CU(cuda.cuMemFreeAsync(inside, stream));
    CU(cuda.cuStreamEndCapture(stream, &graph));
    CU(cuda.cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuda.cuGraphLaunch(exec, stream));
    fill_and_check(late, 4000, 6); /* memory of the graph, still allocated */
    CU(cuda.cuMemFreeAsync(late, stream));
    CU(cuda.cuMemFreeAsync(before, stream));
    CU(cuda.cuGraphExecDestroy(exec));
    CU(cuda.cuGraphDestroy(graph));
    CU(cuda.cuStreamSynchronize(stream));
    before = alloc_on_stream(3000);
    fill_and_check(before, 3000, 7);
    CU(cuda.cuMemFreeAsync(before, stream));
}

/* ---- destroyed streams, other devices and contexts ----------------------------------------------- */

static void streams(void) {
    CUdeviceptr block;
    CUstream one;

    for (int i = 0; i < 50; i++) {
        one = new_stream();
        for (int j = 0; j < 100; j++) {
            CU(cuda.cuMemAllocAsync(&block, 1000 + (size_t)j * 500, one));
            CU(cuda.cuMemsetD8Async(block, (unsigned char)j, 1000, one));
            CU(cuda.cuMemFreeAsync(block, one));
        }
        CU(cuda.cuStreamDestroy(one));
    }
    printf("streams ended\n");
}

static void access(void) {
    CUmemAccessDesc access[] = {{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUmemAccess_flags flags = 77;
    CUdeviceptr block;
    CUcontext peer;
    CUstream far;
    int devices;

    CU(more.cuMemPoolSetAccess(own, access, 1));
    CU(more.cuMemPoolGetAccess(&flags, own, &access[0].location));
    printf("access at home: %u\n", flags);
    CU(more.cuDeviceGetCount(&devices));
    if (devices < 2)
        return;
    /* The output must not depend on the number of devices, so nothing is printed about other devices. */
    CU(more.cuMemPoolSetAccess(own, access, 2));
    CU(more.cuMemPoolGetAccess(&flags, own, &access[1].location));
    HOLDS(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU(cuda.cuDevicePrimaryCtxRetain(&peer, 1));
    CU(cuda.cuCtxSetCurrent(peer));
    far = new_stream();
    block = take_own(MIB);
    fill_and_check(block, MIB, 8);
    CU(cuda.cuMemsetD8Async(block, 9, MIB, far));
    CU(cuda.cuMemFreeAsync(block, far)); /* on a stream of the other device */
    CU(cuda.cuMemAllocFromPoolAsync(&block, MIB, own, far));
    CU(cuda.cuMemsetD8Async(block, 9, MIB, far));
    CU(cuda.cuMemFreeAsync(block, far));
    CU(cuda.cuMemAllocAsync(&block, 100, far)); /* from the other device's pool */
    CU(cuda.cuMemFreeAsync(block, far));
    CU(cuda.cuStreamSynchronize(far));
    CU(cuda.cuStreamDestroy(far));
    CU(cuda.cuCtxSetCurrent(context));
    CU(cuda.cuDevicePrimaryCtxRelease(1));
}

/* Uses streams and blocks in a context that the program creates, if the driver can create contexts. */
static void own_context(void) {
    CUdeviceptr block, ours;
    CUcontext made;
    CUstream far;

    FIND("cuCtxCreate_v2", "cuCtxDestroy_v2");
    if (!more.cuCtxCreate_v2 || !more.cuCtxDestroy_v2)
        return;
    ours = alloc_on_stream(5000);
    CU(more.cuCtxCreate_v2(&made, 0, 0));
    far = new_stream();
    for (int i = 0; i < 3; i++) {
        CU(cuda.cuMemAllocAsync(&block, MIB, far));
        CU(cuda.cuMemsetD8Async(block, 11, MIB, far));
        CU(cuda.cuMemFreeAsync(block, far));
        alloc_and_free_in(NULL, MIB, NULL);
    }
    CU(cuda.cuMemFreeAsync(ours, far));
    CU(cuda.cuStreamSynchronize(far));
    CU(cuda.cuStreamDestroy(far));
    CU(more.cuCtxDestroy_v2(made));
    CU(cuda.cuCtxSetCurrent(context));
    block = alloc_on_stream(5000);
    fill_and_check(block, 5000, 12);
    CU(cuda.cuMemFreeAsync(block, stream));
}

/* Frees blocks of a destroyed context after new blocks may have got their addresses.  The new blocks must stay. */
static void free_late_blocks(const CUdeviceptr *old) {
    CUdeviceptr now[LATE];

    for (int i = 0; i < LATE; i++)
        now[i] = alloc_on_stream(MIB);
    for (int i = 0; i < LATE; i += 2)
        CU(cuda.cuMemFreeAsync(now[i], stream));
    CU(cuda.cuCtxSynchronize());
    for (int i = 0; i < LATE; i++) {
        int is_live = 0;

        for (int k = 1; k < LATE; k += 2)
            is_live |= old[i] == now[k];
        if (!is_live)
            (void)cuda.cuMemFree(old[i]); /* the driver may know the block or not */
    }
    for (int i = 1; i < LATE; i += 2) {
        fill_and_check(now[i], MIB, (unsigned char)i);
        CU(cuda.cuMemFreeAsync(now[i], stream));
    }
}

static void reset_while_blocks_live(void) {
    CUdeviceptr block = alloc_on_stream(3000), plain[PLAIN], old[LATE], base;
    size_t bytes;

    for (int i = 0; i < LATE; i++)
        old[i] = alloc_on_stream(MIB);
    CU(cuda.cuCtxSynchronize());
    FIND("cuDevicePrimaryCtxReset_v2");
    if (more.cuDevicePrimaryCtxReset_v2) {
        CU(more.cuDevicePrimaryCtxReset_v2(0));
        context = enter_context(0);
        stream = new_stream();
        other = new_stream();
    }
    free_late_blocks(old);
    CU(cuda.cuMemFreeAsync(block, stream));
    for (int i = 0; i < PLAIN; i++) /* maybe at addresses of other blocks */
        CU(cuda.cuMemAlloc(&plain[i], MIB));
    for (int i = 0; i < PLAIN; i++) {
        CU(cuda.cuMemFree(plain[i]));
        HOLDS(cuda.cuMemGetAddressRange(&base, &bytes, plain[i]) != CUDA_SUCCESS ||
              base != plain[i] || bytes != MIB); /* the block is freed */
    }
    block = alloc_on_stream(3000);
    fill_and_check(block, 3000, 10);
    CU(cuda.cuMemFreeAsync(block, stream));
    printf("another context\n");
}

int main(int argc, char **argv) {
    start_driver();
    NEED("cuDeviceGetCount", "cuDeviceGetMemPool", "cuDeviceSetMemPool", "cuIpcGetMemHandle",
         "cuMemPoolExportPointer", "cuMemPoolExportToShareableHandle", "cuMemPoolGetAccess",
         "cuMemPoolSetAccess", "cuPointerGetAttributes", "cuStreamIsCapturing");
    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    stream = new_stream();
    other = new_stream();
    CU(cuda.cuDeviceGetDefaultMemPool(&standard, 0));
    own = new_pool(NULL);
    ask_pointers();
    failed_requests();
    attributes();
    ends();
    ask_shared_pool();
    of_a_size();
    ask_capture();
    streams();
    access();
    own_context();
    reset_while_blocks_live();
    CU(cuda.cuMemPoolDestroy(own));
    CU(cuda.cuStreamDestroy(stream));
    CU(cuda.cuStreamDestroy(other));
    return victim_status(argc, argv);
}
