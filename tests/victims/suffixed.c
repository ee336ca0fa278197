/* SPDX-License-Identifier: MIT */
/* suffixed.c: a program that opens the driver and finds each entry by dlsym of its suffixed name, as XLA does. */
#include "opened.h"

int main(int argc, char **argv) {

    start_driver();
    victim_work(&cuda, "suffixed", 1);
    victim_graph(&cuda, "suffixed", 2);
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
