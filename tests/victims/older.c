/* SPDX-License-Identifier: MIT */
/* older.c: a program of a toolkit before 12.  It finds each entry by the driver's resolver, which has four arguments
 * then, or by dlsym if the driver is older than 11.3. */
#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef CUresult (*resolver)(const char *name, void **address, int version, uint64_t flags);

static void *library;
static resolver resolve; /* NULL if there is none */
static uint64_t flags;

static void *find_at_version(const char *name, int version, const char *symbol) {
    void *address = NULL;

    if (!resolve)
        return dlsym(library, symbol);
    return resolve(name, &address, version, flags) == CUDA_SUCCESS ? address : NULL;
}

static int opened_version(void) {
    CUresult (*ask)(int *version);
    void *address = dlsym(library, "cuDriverGetVersion");
    int version = 0;

    HOLDS(address);
    memcpy(&ask, &address, sizeof address);
    CU(ask(&version));
    return version;
}

/* Flags 0 and 1 select the legacy default stream, 2 the per-thread one. */
static void check_flags(void) {
    void *none = NULL, *legacy = NULL, *own = NULL;

    CU(resolve("cuMemAllocAsync", &none, 11030, 0));
    CU(resolve("cuMemAllocAsync", &legacy, 11030, 1));
    CU(resolve("cuMemAllocAsync", &own, 11030, 2));
    HOLDS(none && legacy == none && own && own != none);
    CU(resolve("cuMemFree", &legacy, 11030, 0)); /* this call has no stream */
    CU(resolve("cuMemFree", &own, 11030, 2));
    HOLDS(legacy == own);
    HOLDS(none != dlsym(library, "cuMemAllocAsync_ptsz"));
}

int main(int argc, char **argv) {
    void *address, *own = NULL;
    struct cuda legacy, per_thread;
    CUstream stream;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    address = dlsym(library, "cuGetProcAddress");
    HOLDS(address);
    if (opened_version() >= 11030) {
        memcpy(&resolve, &address, sizeof address);
        CU(resolve("cuGetProcAddress", &own, 11030, 0));
        HOLDS(own);
        memcpy(&resolve, &own, sizeof own);
        check_flags();
    }
    victim_load(&legacy, find_at_version, 0);
    flags = 2;
    victim_load(&per_thread, find_at_version, 1);
    victim_start(&legacy);
    CU(legacy.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    printf("stream: %08x\n", victim_churn(&legacy, stream, 21));
    printf("null stream: %08x\n", victim_churn(&legacy, NULL, 22));
    printf("own stream: %08x\n", victim_churn(&per_thread, NULL, 23));
    CU(legacy.cuStreamDestroy(stream));
    CU(legacy.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
