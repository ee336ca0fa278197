/* SPDX-License-Identifier: MIT */
/* fails.c: a program whose plain memory cannot be waited for, now and then: it is told so, has the same
 * memory with its next request, and leaves nothing behind.  For the device model, which fails as it is told; others are
 * not asked for anything. */
#include "opened.h"

enum { BYTES = 1000 };

static void take_and_free(CUdeviceptr *block) {
    CU(cuda.cuMemAlloc(block, BYTES));
    CU(cuda.cuMemFree(*block));
}

int main(int argc, char **argv) {
    static const char *const entries[] = {"cuThreadExchangeStreamCaptureMode",
                                          "cuStreamSynchronize"};
    int (*fail)(const char *entry, uint64_t k, CUresult result);
    CUdeviceptr block;

    start_driver();
    find_call(&fail, "cuModelFail");
    if (!fail)
        return victim_status(argc, argv);
    for (int i = 0; i < 2; i++) {
        take_and_free(&block);
        HOLDS(fail(entries[i], 1, CUDA_ERROR_NOT_SUPPORTED));
        printf("%s: %u\n", entries[i], cuda.cuMemAlloc(&block, BYTES));
        HOLDS(fail(entries[i], 0, CUDA_SUCCESS));
        take_and_free(&block);
    }
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
