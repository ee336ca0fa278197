/* SPDX-License-Identifier: MIT */
/* fails.c: a program whose plain memory cannot be waited for, now and then: it is told so, has the same
 * memory with its next request, and leaves nothing behind.  For the device model, which fails as it is told; others are
 * not asked for anything. */
#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { BYTES = 1000 };

static void *library;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

int main(int argc, char **argv) {
    static const char *const entries[] = {"cuThreadExchangeStreamCaptureMode",
                                          "cuStreamSynchronize"};
    int (*fail)(const char *entry, uint64_t k, CUresult result);
    struct cuda cuda;
    CUdeviceptr block;
    void *address;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
    victim_start(&cuda);
    address = dlsym(library, "cuModelFail");
    if (!address)
        return victim_status(argc, argv);
    memcpy(&fail, &address, sizeof address);
    for (int i = 0; i < 2; i++) {
        CU(cuda.cuMemAlloc(&block, BYTES));
        CU(cuda.cuMemFree(block));
        HOLDS(fail(entries[i], 1, CUDA_ERROR_NOT_SUPPORTED));
        printf("%s: %u\n", entries[i], cuda.cuMemAlloc(&block, BYTES));
        HOLDS(fail(entries[i], 0, CUDA_SUCCESS));
        CU(cuda.cuMemAlloc(&block, BYTES));
        CU(cuda.cuMemFree(block));
    }
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
