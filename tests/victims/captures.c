/* SPDX-License-Identifier: MIT */
/* captures.c: a program that allocates on a stream in a capture whose end fails.  With --recaptures it allocates in a
 * capture into an existing graph, if the driver has that call.  With --looks it looks up a newer call that begins
 * captures, and with --looks-early it does so before all else.  With --pairs it does nothing but pairs(). */
#include "opened.h"

enum { PAIRS = 300, BYTES = 4096 };

static void look_up_begin_capture(void) {
    (void)dlsym(library, "cuStreamBeginCapture_v3");
}

/* Allocates and frees many blocks.  Returns the last block's address. */
static CUdeviceptr pairs(CUstream stream) {
    CUdeviceptr block = 0;

    for (int i = 0; i < PAIRS; i++)
        block = alloc_and_free_in(NULL, BYTES, stream);
    return block;
}

/* Allocates and frees in a capture, where the memory belongs to the graph. */
static void allocate_captured(CUstream stream, CUdeviceptr cached, CUgraph *graph) {
    CUdeviceptr block;

    CU(cuda.cuMemAllocAsync(&block, BYTES, stream));
    HOLDS(block != cached);
    CU(cuda.cuMemFreeAsync(block, stream));
    CU(cuda.cuStreamEndCapture(stream, graph));
    HOLDS(*graph != NULL);
}

/* The end of the capture fails, so the capture continues and memory still belongs to the graph. */
static void allocate_after_failed_end(CUstream stream) {
    CUdeviceptr cached = pairs(stream);
    CUgraph graph = NULL;

    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    HOLDS(cuda.cuStreamEndCapture(stream, NULL) == CUDA_ERROR_INVALID_VALUE);
    allocate_captured(stream, cached, &graph);
    HOLDS(pairs(stream) == cached);
}

static void allocate_in_recapture(CUstream stream) {
    CUdeviceptr cached = pairs(stream);
    CUgraph graph = NULL;

    (void)dlsym(library, "cuStreamBeginCaptureToCig"); /* some bindings do this, too */
    FIND("cuStreamBeginRecaptureToGraph");
    if (!more.cuStreamBeginRecaptureToGraph) {
        puts("the driver has no such call");
        return;
    }
    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    allocate_captured(stream, cached, &graph);
    CU(more.cuStreamBeginRecaptureToGraph(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, NULL,
                                          NULL));
    allocate_captured(stream, cached, &graph);
    HOLDS(pairs(stream) == cached);
}

int main(int argc, char **argv) {
    CUstream stream;

    start_driver();
    if (is_told(argc, argv, "--looks-early"))
        look_up_begin_capture();
    stream = new_stream();
    if (argc < 2) {
        allocate_after_failed_end(stream);
        return victim_status(argc, argv);
    }
    (void)pairs(stream);
    (void)pairs(NULL);
    if (strcmp(argv[1], "--looks") == 0)
        look_up_begin_capture();
    if (strcmp(argv[1], "--recaptures") == 0)
        allocate_in_recapture(stream);
    (void)pairs(stream);
    (void)pairs(NULL);
    return victim_status(argc, argv);
}
