/* SPDX-License-Identifier: MIT */
/* captures.c: a program that allocates on a stream in a capture whose end fails; or, with --looks, that looks up a call of a
 * newer driver by which captures begin, with --looks-early before all else; with --pairs it does neither. */
#include "work.h"

#include <dlfcn.h>
#include <string.h>

enum { PAIRS = 300, BYTES = 4096 };

static void *library;
static struct cuda cuda;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

static void look(void) {
    (void)dlsym(library, "cuStreamBeginRecaptureToGraph");
}

/* The block of the last pair. */
static CUdeviceptr pairs(CUstream stream) {
    CUdeviceptr block = 0;

    for (int i = 0; i < PAIRS; i++) {
        CU(cuda.cuMemAllocAsync(&block, BYTES, stream));
        CU(cuda.cuMemFreeAsync(block, stream));
    }
    return block;
}

/* The end fails, the capture goes on, and so its memory is the graph's. */
static void allocate_after_failed_end(CUstream stream) {
    CUdeviceptr cached = pairs(stream), block;
    CUgraph graph = NULL;

    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    HOLDS(cuda.cuStreamEndCapture(stream, NULL) == CUDA_ERROR_INVALID_VALUE);
    CU(cuda.cuMemAllocAsync(&block, BYTES, stream));
    HOLDS(block != cached);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamEndCapture(stream, &graph));
    HOLDS(graph != NULL);
    HOLDS(pairs(stream) == cached);
}

int main(int argc, char **argv) {
    CUstream stream;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
    victim_start(&cuda);
    if (argc > 1 && strcmp(argv[1], "--looks-early") == 0)
        look();
    CU(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (argc < 2) {
        allocate_after_failed_end(stream);
        return victim_status(argc, argv);
    }
    (void)pairs(stream);
    (void)pairs(NULL);
    if (strcmp(argv[1], "--looks") == 0)
        look();
    (void)pairs(stream);
    (void)pairs(NULL);
    return victim_status(argc, argv);
}
