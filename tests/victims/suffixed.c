/* SPDX-License-Identifier: MIT */
/* suffixed.c: a program that opens the driver and finds each entry by dlsym of its suffixed name, as
 * XLA does. */
#include "work.h"

#include <dlfcn.h>

static void *library;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

int main(int argc, char **argv) {
    struct cuda cuda;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
    victim_start(&cuda);
    victim_work(&cuda, "suffixed", 1);
    victim_graph(&cuda, "suffixed", 2);
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
