/* SPDX-License-Identifier: MIT */
/* peak.c: a program that allocates 112 MiB and frees 100 MiB, or with --reset resets the context before the frees. */
#include "opened.h"

enum { WEIGHTS = 3, ACTIVATIONS = 5 };

static CUstream stream;
static CUdeviceptr block[WEIGHTS + ACTIVATIONS];
static int blocks;

static void take_blocks(int count, size_t bytes) {
    for (int i = 0; i < count; i++)
        CU(cuda.cuMemAllocAsync(&block[blocks++], bytes, stream));
}

static void reset_primary_context(void) {
    NEED("cuDevicePrimaryCtxReset_v2");
    CU(more.cuDevicePrimaryCtxReset_v2(0));
    (void)enter_context(0);
    stream = new_stream();
    CU(cuda.cuMemFreeAsync(block[0],
                           stream)); /* the free of lost memory succeeds and does nothing */
    blocks = 0;
}

int main(int argc, char **argv) {
    start_driver();
    stream = new_stream();
    take_blocks(WEIGHTS, 4 * MIB);
    take_blocks(ACTIVATIONS, 20 * MIB);
    if (is_told(argc, argv, "--reset"))
        reset_primary_context();
    while (blocks > WEIGHTS)
        CU(cuda.cuMemFreeAsync(block[--blocks], stream));
    return victim_status(argc, argv);
}
