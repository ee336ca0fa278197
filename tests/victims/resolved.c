/* SPDX-License-Identifier: MIT */
/* resolved.c: a program that finds each entry by cuGetProcAddress, as the CUDA runtime does.  It looks up the resolver
 * by the exported one and uses it from then on, once for the legacy default stream and once for the per-thread one. */
#include "work.h"

#include <dlfcn.h>
#include <string.h>

typedef CUresult (*resolver)(const char *name, void **address, int version, uint64_t flags,
                             unsigned *status);
typedef CUresult (*resolver_v1)(const char *name, void **address, int version, uint64_t flags);

static resolver resolve;
static uint64_t flags;

static void *find_resolved(const char *name, int version, const char *symbol) {
    void *address = NULL;

    (void)symbol;
    return resolve(name, &address, version, flags, NULL) == CUDA_SUCCESS ? address : NULL;
}

/* Checks other answers of the resolver. */
static void ask_resolver(void *library) {
    unsigned status = 77;
    void *address = &status, *other = NULL, *symbol;
    resolver_v1 old;

    CU(resolve("", &address, 11020, 0, NULL));
    CU(resolve("cuNoSuchEntry", &address, 12000, 0, &status));
    HOLDS(!address && status == 1);
    CU(resolve("cuMemAllocAsync", &address, 11010, 0, &status));
    HOLDS(!address && status == 2);
    HOLDS(resolve("cuMemAllocAsync", &address, 99000, 0, &status) == CUDA_ERROR_INVALID_VALUE);
    CU(resolve("cuMemAllocAsync", &address, 11020, 0, &status));
    CU(resolve("cuMemAllocAsync", &other, 11020, 2, &status));
    HOLDS(address && other && address != other && status == 0);
    /* The form of 11.3, with four arguments. */
    CU(resolve("cuGetProcAddress", &symbol, 11030, 0, &status));
    memcpy(&old, &symbol, sizeof symbol);
    CU(old("cuMemAllocAsync", &other, 11020, 0));
    HOLDS(other == address);
    symbol = dlsym(library, "cuGetProcAddress");
    HOLDS(symbol);
    memcpy(&old, &symbol, sizeof symbol);
    CU(old("cuMemAllocAsync", &other, 11020, 0));
    HOLDS(other == address);
}

int main(int argc, char **argv) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol, *own = NULL;
    struct cuda legacy, per_thread;

    HOLDS(library);
    symbol = dlsym(library, "cuGetProcAddress_v2");
    HOLDS(symbol);
    memcpy(&resolve, &symbol, sizeof symbol);
    CU(resolve("cuGetProcAddress", &own, 12000, 0, NULL));
    HOLDS(own);
    memcpy(&resolve, &own, sizeof own);
    ask_resolver(library);
    victim_load(&legacy, find_resolved, 0);
    flags = 2;
    victim_load(&per_thread, find_resolved, 1);
    victim_start(&legacy);
    victim_work(&legacy, "resolved 0", 3);
    victim_graph(&legacy, "resolved 0", 4);
    victim_work(&per_thread, "resolved 2", 5);
    victim_graph(&per_thread, "resolved 2", 6);
    CU(legacy.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
