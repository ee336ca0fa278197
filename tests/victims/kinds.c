/* SPDX-License-Identifier: MIT */
/* kinds.c: a program that makes a memory pool of each kind, reads back the attributes that it has set, and uses the
 * pool.  It also sets current pools by location, and uses streams of a green context.  It prints which calls the driver
 * refuses.  With --peer it gives a second device access to a pool in use. */
#include "opened.h"

#include <unistd.h>

enum {
    BYTES = 100000,
    FABRIC = 8,
    RESOURCE_SM = 1,
    RESOURCE_BYTES = 256,
    GREEN_DEFAULT_STREAM = 1
};

static CUstream stream;

static const struct kind {
    const char *name;
    CUmemPoolProps properties; /* zero allocType: pinned, as device memory is */
} kinds[] = {
    {"plain", {.location = {1, 0}}},
    {"of a size", {.location = {1, 0}, .maxSize = 65 * MIB}},
    {"for decompression", {.location = {1, 0}, .usage = 2}},
    {"of another usage", {.location = {1, 0}, .usage = 1}},
    {"for GPUDirect RDMA", {.location = {1, 0}, .reserved = {1}}},
    {"of a reserved byte", {.location = {1, 0}, .reserved = {[53] = 1}}},
    {"for a descriptor", {.location = {1, 0}, .handleTypes = 1}},
    {"for a fabric", {.location = {1, 0}, .handleTypes = FABRIC}},
    {"managed", {.location = {1, 0}, .allocType = 2}},
    {"managed, anywhere", {.allocType = 2}},
    {"managed, for the host", {.location = {2, 0}, .allocType = 2}},
    {"of the host", {.location = {2, 0}}},
    {"of a node", {.location = {3, 0}}},
    {"of this node", {.location = {4, 0}}},
    {"of a locality domain", {.location = {6, 0}}},
    {"of another domain", {.location = {6, 1 + 256}}},
    {"of no place", {.location = {7, 0}}},
    {"of no type", {.location = {1, 0}, .allocType = 3}},
};

/* Prints the value of each attribute, except reserved memory. */
static void show_attributes(CUmemoryPool pool) {
    for (unsigned attribute = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
         attribute <= CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID + 1; attribute++) {
        uint64_t value = 0; /* the driver may write only 4 of the 8 bytes */
        CUresult result = cuda.cuMemPoolGetAttribute(pool, attribute, &value);

        if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ||
            attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
            continue;
        if (result == CUDA_SUCCESS)
            printf(" %llu", (unsigned long long)value);
        else
            printf(" -");
    }
}

static void set_kind_attribute(CUmemoryPool pool, CUmemPool_attribute attribute, uint64_t value) {
    uint64_t is = 0;
    CUresult result = cuda.cuMemPoolSetAttribute(pool, attribute, &value);

    if (result != CUDA_SUCCESS)
        printf(" (%u: %u)", attribute, result);
    else if (cuda.cuMemPoolGetAttribute(pool, attribute, &is) != CUDA_SUCCESS || is != value)
        printf(" (%u: not kept)", attribute);
}

static void set_all(CUmemoryPool pool) {
    set_kind_attribute(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    set_kind_attribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    set_kind_attribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                       1); /* 0 leaves a pool to the driver */
    set_kind_attribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    set_kind_attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 3 * MIB + 1);
    set_kind_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
}

static CUmemAccess_flags kind_access(CUmemoryPool pool, CUmemLocationType type, int id) {
    CUmemLocation location = {type, id};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUresult result = more.cuMemPoolGetAccess(&flags, pool, &location);

    return result == CUDA_SUCCESS ? flags : 100 + result;
}

/* Gives the device access, and prints it.  Returns 1 if the device may use the memory, else 0. */
static int give_access(CUmemoryPool pool) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = more.cuMemPoolSetAccess(pool, &access, 1);

    printf(", access %u: %u %u", result, kind_access(pool, CU_MEM_LOCATION_TYPE_DEVICE, 0),
           kind_access(pool, CU_MEM_LOCATION_TYPE_HOST, 0));
    return kind_access(pool, CU_MEM_LOCATION_TYPE_DEVICE, 0) == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static int is_of_host(const CUmemPoolProps *properties) {
    return properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
           properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

/* Fills and reads a block on one stream, and frees it on another. */
static void use_kind(CUmemoryPool pool, int by_host, CUstream on, CUstream other) {
    static unsigned char bytes[BYTES];
    CUdeviceptr block;

    CU(cuda.cuMemAllocFromPoolAsync(&block, BYTES, pool, on));
    CU(cuda.cuMemsetD8Async(block, 7, BYTES, on));
    CU(cuda.cuStreamSynchronize(on));
    if (by_host) /* cuMemcpyDtoH needs device memory */
        memcpy(bytes, (const void *)(uintptr_t)block, BYTES);
    else
        CU(cuda.cuMemcpyDtoH(bytes, block, BYTES));
    HOLDS(bytes[0] == 7 && bytes[BYTES - 1] == 7);
    CU(cuda.cuMemFreeAsync(block, other));
    CU(cuda.cuStreamSynchronize(other));
}

static void use_across(CUmemoryPool pool, CUstream on, CUstream other) {
    use_kind(pool, 0, on, other);
}

static void share_by_handle(CUmemoryPool pool, const CUmemPoolProps *properties) {
    int file = -1;

    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return;
    CU(more.cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                             0));
    HOLDS(close(file) == 0);
}

static void try_pool_kind(const struct kind *kind) {
    CUmemPoolProps properties = kind->properties;
    CUmemoryPool pool;
    CUresult result;

    if (properties.allocType == 0)
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    result = cuda.cuMemPoolCreate(&pool, &properties);
    printf("%s: %u", kind->name, result);
    if (result == CUDA_SUCCESS) {
        show_attributes(pool);
        set_all(pool);
        if (give_access(pool))
            for (int i = 0; i < 3; i++)
                use_kind(pool, is_of_host(&properties), stream, stream);
        share_by_handle(pool, &properties);
        show_attributes(pool);
        CU(cuda.cuMemPoolDestroy(pool));
    }
    printf("\n");
}

/* Sets the current pool by location.  cuMemAllocAsync takes from the one of the device. */
static void try_place(CUmemLocationType type, CUmemAllocationType kind) {
    CUmemPoolProps properties = {.allocType = kind, .location = {type, 0}};
    CUmemLocation location = {type, 0};
    CUmemoryPool standard = NULL, own, is = NULL, of_device = NULL, from = NULL;
    CUdeviceptr block;
    CUresult result;

    if (!more.cuMemGetMemPool)
        return;
    result = more.cuMemGetDefaultMemPool(&standard, &location, kind);
    printf("in %u, of %u: %u", type, kind, result);
    if (result == CUDA_SUCCESS) {
        show_attributes(standard);
        CU(cuda.cuMemPoolCreate(&own, &properties));
        printf(", set %u", more.cuMemSetMemPool(&location, kind, own));
        (void)more.cuMemGetMemPool(&is, &location, kind);
        CU(more.cuDeviceGetMemPool(&of_device, 0));
        CU(cuda.cuMemAllocAsync(&block, BYTES, stream));
        CU(cuda.cuPointerGetAttribute(&from, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
        printf(", then %d: the device's %d, from it %d", is == own, of_device == own,
               from == of_device);
        CU(cuda.cuMemFreeAsync(block, stream));
        CU(cuda.cuStreamSynchronize(stream));
        (void)more.cuMemSetMemPool(&location, kind, standard);
        CU(cuda.cuMemPoolDestroy(own));
    }
    printf("\n");
}

static void try_green(void) {
    static _Alignas(16) unsigned char resource[RESOURCE_BYTES];
    CUmemPoolProps properties = pool_properties();
    void *descriptor, *context;
    CUmemoryPool pool;
    CUstream green;

    if (!more.cuGreenCtxStreamCreate ||
        more.cuDeviceGetDevResource(0, resource, RESOURCE_SM) != CUDA_SUCCESS) {
        printf("no green contexts\n");
        return;
    }
    CU(more.cuDevResourceGenerateDesc(&descriptor, resource, 1));
    CU(cuda.cuMemPoolCreate(&pool, &properties));
    use_across(pool, stream, stream);
    CU(more.cuGreenCtxCreate(&context, descriptor, 0, GREEN_DEFAULT_STREAM));
    CU(more.cuGreenCtxStreamCreate(&green, context, CU_STREAM_NON_BLOCKING, 0));
    for (int i = 0; i < 3; i++) {
        use_across(pool, green, green);
        use_across(pool, stream, green);
        use_across(pool, green, stream);
        use_across(pool, stream, stream);
    }
    CU(cuda.cuStreamDestroy(green));
    CU(more.cuGreenCtxDestroy(context));
    use_across(pool, stream, stream);
    CU(cuda.cuMemPoolDestroy(pool));
    printf("a green context's streams take and free\n");
}

/* If cuMemPoolSetAccess fails, the access of another device is unchanged. */
static void try_peer(void) {
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemPoolProps properties = pool_properties();
    CUmemoryPool pool;
    CUresult result;

    CU(cuda.cuMemPoolCreate(&pool, &properties));
    use_across(pool, stream, stream);
    result = more.cuMemPoolSetAccess(pool, &access, 1);
    printf("access of a peer: %u\n", result);
    HOLDS(kind_access(pool, CU_MEM_LOCATION_TYPE_DEVICE, 1) ==
          (result == CUDA_SUCCESS ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                  : CU_MEM_ACCESS_FLAGS_PROT_NONE));
    use_across(pool, stream, stream);
    CU(cuda.cuMemPoolDestroy(pool));
}

int main(int argc, char **argv) {
    start_driver();
    FIND("cuMemPoolGetAccess", "cuMemPoolSetAccess", "cuMemPoolExportToShareableHandle",
         "cuDeviceGetMemPool", "cuDeviceSetMemPool", "cuMemGetDefaultMemPool", "cuMemGetMemPool",
         "cuMemSetMemPool", "cuDeviceGetDevResource", "cuDevResourceGenerateDesc",
         "cuGreenCtxCreate", "cuGreenCtxStreamCreate", "cuGreenCtxDestroy");
    stream = new_stream();
    if (is_told(argc, argv, "--peer")) {
        try_peer();
        return victim_status(argc, argv);
    }
    try_place(CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, CU_MEM_ALLOCATION_TYPE_PINNED);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        try_pool_kind(&kinds[i]);
    for (CUmemLocationType type = 0; type <= CU_MEM_LOCATION_TYPE_HOST_NUMA; type++) {
        try_place(type, CU_MEM_ALLOCATION_TYPE_PINNED);
        try_place(type, CU_MEM_ALLOCATION_TYPE_MANAGED);
    }
    try_green();
    return victim_status(argc, argv);
}
