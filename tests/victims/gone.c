/* SPDX-License-Identifier: MIT */
/* gone.c: a program that shares a pool, passes destroyed pools to each call with a pool argument, and makes other
 * pools, for which the driver may reuse the handles. */
#include "opened.h"

enum { HANDLE_FD = 1 }; /* a handle type: the pool can be shared by a file descriptor */

static CUstream stream;

static CUmemoryPool make_gone_pool(unsigned handle_types) {
    CUmemPoolProps properties = pool_properties();

    properties.handleTypes = handle_types;
    return new_pool(&properties);
}

static CUdeviceptr alloc_and_clear(CUmemoryPool pool, size_t bytes) {
    CUdeviceptr block = 0;

    CU(cuda.cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
    CU(cuda.cuMemsetD8Async(block, 3, bytes, stream));
    return block;
}

/* Uses a block of the shared pool at its address in the imported pool, and frees it there and in the shared pool. */
static void use_imported(CUmemoryPool shared, CUmemoryPool imported) {
    enum { BYTES = 1000 };
    CUdeviceptr block = alloc_and_clear(shared, BYTES), there = 0;
    CUmemPoolPtrExportData data;
    unsigned char bytes[BYTES] = {0};
    CUresult result;

    CU(cuda.cuStreamSynchronize(stream));
    CU(more.cuMemPoolExportPointer(&data, block));
    result = more.cuMemPoolImportPointer(&there, imported, &data);
    printf("imported block: %u", result);
    if (result == CUDA_SUCCESS) {
        CU(cuda.cuMemsetD8Async(there, 9, BYTES, stream));
        CU(cuda.cuStreamSynchronize(stream));
        CU(cuda.cuMemcpyDtoH(bytes, block, BYTES));
        printf(", written %u %u, freed %u", bytes[0], bytes[BYTES - 1],
               cuda.cuMemFreeAsync(there, stream));
        CU(cuda.cuStreamSynchronize(stream));
    }
    printf(", freed %u\n", cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamSynchronize(stream));
}

/* Prints the results of calls with a destroyed pool. */
static void name(const char *what, CUmemoryPool pool) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemPoolPtrExportData data = {{0}};
    CUmemAccess_flags flags;
    CUdeviceptr block = 0;
    uint64_t value = 0;
    int file;

    printf("%s: requests %u %u %u %u", what,
           cuda.cuMemAllocFromPoolAsync(&block, 1000, pool, stream),
           more.cuMemAllocFromPoolAsync_ptsz(&block, 50 * MIB, pool, stream),
           cuda.cuMemAllocFromPoolAsync(&block, 0, pool, stream),
           cuda.cuMemAllocFromPoolAsync(NULL, 1000, pool, stream));
    printf(", trim %u, attribute %u %u %u", cuda.cuMemPoolTrimTo(pool, 0),
           cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value),
           cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value),
           cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    printf(", shared %u %u\n", more.cuMemPoolExportToShareableHandle(&file, pool, HANDLE_FD, 0),
           more.cuMemPoolImportPointer(&block, pool, &data));
    /* Driver 580 answers some of these with success. */
    printf("by the driver: access %u %u", more.cuMemPoolSetAccess(pool, &access, 1),
           more.cuMemPoolGetAccess(&flags, pool, &access.location));
    printf(", current %u %u", more.cuDeviceSetMemPool(0, pool),
           more.cuMemSetMemPool(&access.location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    printf(", destroyed %u\n", cuda.cuMemPoolDestroy(pool));
}

/* Uses and destroys a pool whose handle may have been another pool's. */
static void use_gone_pool(const char *what, CUmemoryPool pool) {
    uint64_t value = 5;

    CU(cuda.cuMemFreeAsync(alloc_and_clear(pool, 1000), stream));
    CU(cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    value = 0;
    CU(cuda.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    printf("%s: threshold %llu, trim %u, ", what, (unsigned long long)value,
           cuda.cuMemPoolTrimTo(pool, 0));
    CU(cuda.cuStreamSynchronize(stream));
    printf("destroyed %u\n", cuda.cuMemPoolDestroy(pool));
}

int main(int argc, char **argv) {
    CUmemoryPool unused, used, busy, other, shared, standard, imported;
    CUdeviceptr block, large;
    uint64_t value;
    int file;

    start_driver();
    NEED("cuDeviceSetMemPool", "cuMemSetMemPool", "cuMemPoolSetAccess", "cuMemPoolGetAccess",
         "cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle",
         "cuMemPoolExportPointer", "cuMemPoolImportPointer", "cuMemAllocFromPoolAsync_ptsz");
    stream = new_stream();

    /* The driver may make the device's pool when it is first requested.  The imported pool may get an old handle. */
    unused = make_gone_pool(0);
    shared = make_gone_pool(HANDLE_FD);
    CU(cuda.cuMemPoolDestroy(unused));
    CU(cuda.cuDeviceGetDefaultMemPool(&standard, 0));
    CU(cuda.cuMemFreeAsync(alloc_and_clear(standard, 1000), stream));
    CU(more.cuMemPoolExportToShareableHandle(&file, shared, HANDLE_FD, 0));
    unused = make_gone_pool(0);
    CU(cuda.cuMemPoolDestroy(unused));
    CU(more.cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)file, HANDLE_FD, 0));
    printf("imported: attribute %u\n",
           cuda.cuMemPoolGetAttribute(imported, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    use_imported(shared, imported);
    CU(cuda.cuMemPoolDestroy(imported));
    name("imported", imported);

    unused = make_gone_pool(0);
    used = make_gone_pool(0);
    busy = make_gone_pool(0);
    other = make_gone_pool(0);
    CU(cuda.cuMemFreeAsync(alloc_and_clear(used, 1000), stream));
    block = alloc_and_clear(busy, 3 * MIB);
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuMemPoolDestroy(unused));
    CU(cuda.cuMemPoolDestroy(used));
    CU(cuda.cuMemPoolDestroy(busy));
    CU(cuda.cuMemPoolDestroy(shared));
    /* This request makes the allocator grow. */
    large = alloc_and_clear(other, 700 * MIB);
    name("never used", unused);
    name("used", used);
    name("with a live block", busy);
    name("shared", shared);
    CU(cuda.cuMemsetD8Async(block, 4, 3 * MIB, stream));
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuMemFreeAsync(large, stream));
    CU(cuda.cuStreamSynchronize(stream));
    name("without it", busy);
    use_gone_pool("the other", other);
    for (int i = 0; i < 3; i++)
        use_gone_pool("again", make_gone_pool(0));
    return victim_status(argc, argv);
}
