/* SPDX-License-Identifier: MIT */
/* captures.c: a program that allocates on a stream in a capture whose end fails.  With --recaptures it allocates in a
 * capture into an existing graph, if the driver has that call.  With --looks it looks up a call of a newer driver
 * that begins captures; with --looks-early it does so before all else.  With --pairs it does none of these. */
#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
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
    (void)dlsym(library, "cuStreamBeginCapture_v3");
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

/* A request and its free in a capture: the memory is the graph's. */
static void allocate_captured(CUstream stream, CUdeviceptr cached, CUgraph *graph) {
    CUdeviceptr block;

    CU(cuda.cuMemAllocAsync(&block, BYTES, stream));
    HOLDS(block != cached);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamEndCapture(stream, graph));
    HOLDS(*graph != NULL);
}

/* The end fails, the capture goes on, and so its memory is the graph's. */
static void allocate_after_failed_end(CUstream stream) {
    CUdeviceptr cached = pairs(stream);
    CUgraph graph = NULL;

    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    HOLDS(cuda.cuStreamEndCapture(stream, NULL) == CUDA_ERROR_INVALID_VALUE);
    allocate_captured(stream, cached, &graph);
    HOLDS(pairs(stream) == cached);
}

static void allocate_in_recapture(CUstream stream) {
    CUresult (*begin_again)(CUstream, CUstreamCaptureMode, CUgraph, void *, void *);
    void *address = dlsym(library, "cuStreamBeginRecaptureToGraph");
    CUdeviceptr cached = pairs(stream);
    CUgraph graph = NULL;

    (void)dlsym(library, "cuStreamBeginCaptureToCig"); /* as bindings that load all calls do */
    if (!address) {
        puts("the driver has no such call");
        return;
    }
    memcpy(&begin_again, &address, sizeof address);
    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    allocate_captured(stream, cached, &graph);
    CU(begin_again(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, NULL, NULL));
    allocate_captured(stream, cached, &graph);
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
    if (strcmp(argv[1], "--recaptures") == 0)
        allocate_in_recapture(stream);
    (void)pairs(stream);
    (void)pairs(NULL);
    return victim_status(argc, argv);
}
