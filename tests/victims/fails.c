/* SPDX-License-Identifier: MIT */
/* fails.c: a program whose cuMemAlloc fails if the wait for the memory does.  The next request returns that memory, so
 * nothing was lost.  Only the device model can fail on command; other drivers are left alone. */
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
