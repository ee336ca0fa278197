/* SPDX-License-Identifier: MIT */
/* closes.c: a program that closes the driver's library, opens it again, and uses both its old and its new functions. */
#include "opened.h"

int main(int argc, char **argv) {
    struct cuda first, second;
    CUdeviceptr block;

    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    HOLDS(library);
    victim_load(&first, find_by_symbol, 0);
    victim_start(&first);
    victim_work(&first, "open", 13);
    CU(first.cuMemAllocAsync(&block, 4096, NULL));
    HOLDS(dlclose(library) == 0);
    library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
    HOLDS(library);
    victim_load(&second, find_by_symbol, 0);
    CU(second.cuMemFreeAsync(block, NULL));
    victim_work(&second, "open again", 14);
    victim_work(&first, "from before", 15);
    CU(second.cuDevicePrimaryCtxRelease(0));
    HOLDS(dlclose(library) == 0);
    return victim_status(argc, argv);
}
