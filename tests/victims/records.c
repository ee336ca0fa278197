/* SPDX-License-Identifier: MIT */
/* records.c: a program that counts its requests, for comparison with a recorder, and ends as --end says: exit | quick |
 * abort | crash | kill.  Before that it waits with --wait MS.  With --parent SIGNAL it sends its parent a signal at
 * first.
 *
 * Before the end it prints lines of a letter and a number: a (allocated), f (freed), x (refused), m (marks). */
#include "opened.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 4, TURNS = 5000, HELD = 8 };

static CUcontext context;
static void (*mark)(const char *label); /* NULL without a recorder */
static int handed_out, freed, refused, marks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr passed; /* a block from one thread to the next, or 0 */

/* Allocates and frees blocks on a stream of the thread.  Another thread frees every third block. */
static void *churn(void *seed) {
    CUdeviceptr held[HELD] = {0}, other;
    int out = 0, back = 0;
    CUstream stream;

    CU(cuda.cuCtxSetCurrent(context));
    stream = new_stream();
    for (int i = 0; i < TURNS; i++) {
        CUdeviceptr *block = &held[i % HELD];

        if (*block && i % 3 == 0) {
            pthread_mutex_lock(&lock);
            other = passed;
            passed = *block;
            pthread_mutex_unlock(&lock);
            *block = other;
        }
        if (*block) {
            CU(cuda.cuMemFreeAsync(*block, stream));
            back++;
        }
        CU(cuda.cuMemAllocAsync(block, 512 * (1 + (size_t)(i + *(int *)seed) % 7), stream));
        out++;
    }
    for (int i = 0; i < HELD; i++)
        if (held[i]) {
            CU(cuda.cuMemFreeAsync(held[i], stream));
            back++;
        }
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuStreamDestroy(stream));
    pthread_mutex_lock(&lock);
    handed_out += out;
    freed += back;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Maps two physical allocations side by side, and releases one before the unmap, the other after it. */
static void map_two_handles(void) {
    CUmemAllocationProp properties;
    CUmemGenericAllocationHandle handles[2];
    CUdeviceptr at;

    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(more.cuMemAddressReserve(&at, 4 * MIB, 0, 0, 0));
    for (size_t i = 0; i < 2; i++) {
        CU(more.cuMemCreate(&handles[i], 2 * MIB, &properties, 0));
        CU(more.cuMemMap(at + i * 2 * MIB, 2 * MIB, 0, handles[i], 0));
    }
    CU(more.cuMemRelease(handles[0]));
    CU(more.cuMemUnmap(at, 4 * MIB));
    CU(more.cuMemRelease(handles[1]));
    handed_out += 2;
    freed += 2;
}

/* Allocates rows, and managed memory on the device model, since other programs notice managed memory on a GPU. */
static void ask_otherwise(void) {
    CUdeviceptr rows, managed;
    size_t pitch = 0;

    CU(more.cuMemAllocPitch_v2(&rows, &pitch, 700, 30, 4));
    HOLDS(pitch >= 700);
    CU(cuda.cuMemFree(rows));
    handed_out++;
    freed++;
    if (more.cuGraphCreate)
        return;
    CU(more.cuMemAllocManaged(&managed, 5000, 1));
    CU(cuda.cuMemFree(managed));
    handed_out++;
    freed++;
}

/* Allocates in captures that begin in each possible way, and then outside a capture. */
static void capture_each_way(void) {
    CUstream stream;
    CUgraph graph;

    stream = new_stream();
    for (int way = 0; way <= 5; way++) {
        graph = NULL;
        if (more.cuGraphCreate && (way == 2 || way == 3))
            CU(more.cuGraphCreate(&graph, 0));
        if (way == 0)
            CU(more.cuStreamBeginCapture(stream));
        if (way == 1)
            CU(more.cuStreamBeginCapture_ptsz(stream));
        if (way == 2)
            CU(more.cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0,
                                                CU_STREAM_CAPTURE_MODE_RELAXED));
        if (way == 3)
            CU(more.cuStreamBeginCaptureToGraph_ptsz(stream, graph, NULL, NULL, 0,
                                                     CU_STREAM_CAPTURE_MODE_RELAXED));
        if (way == 4)
            CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        alloc_and_free_in(NULL, 4000 + (size_t)way, stream);
        if (way < 5) {
            CU(cuda.cuStreamEndCapture(stream, &graph));
            CU(cuda.cuGraphDestroy(graph));
        }
        handed_out++;
        freed++;
    }
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuStreamDestroy(stream));
}

static void set_marks(void) {
    for (int i = 0; mark && i < 3; i++, marks++)
        mark(i == 2 ? "with blanks in it" : "step");
}

static void request_too_much(void) {
    CUdeviceptr block;

    HOLDS(cuda.cuMemAlloc(&block, (size_t)1 << 50) == CUDA_ERROR_OUT_OF_MEMORY);
    HOLDS(cuda.cuMemAllocAsync(&block, (size_t)1 << 50, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
    refused += 2;
    HOLDS(cuda.cuMemFreeAsync(12345, NULL) != CUDA_SUCCESS); /* this is not a free */
}

static const char *word_behind(int argc, char **argv, const char *flag, const char *without) {
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], flag) == 0)
            return argv[i + 1];
    return without;
}

static void end_record_by(const char *how) {
    if (strcmp(how, "quick") == 0)
        _exit(42);
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "crash") == 0)
        raise(SIGSEGV);
    if (strcmp(how, "kill") == 0)
        raise(SIGKILL);
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    int seeds[THREADS], signal = atoi(word_behind(argc, argv, "--parent", "0"));
    CUdeviceptr plain;
    void *mark_address;

    open_cuda_library();
    NEED("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemRelease",
         "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuStreamBeginCapture",
         "cuStreamBeginCapture_ptsz", "cuStreamBeginCaptureToGraph",
         "cuStreamBeginCaptureToGraph_ptsz");
    FIND("cuGraphCreate"); /* the device model does not have it, and needs none */
    mark_address = dlsym(RTLD_DEFAULT, "weir_mark");
    memcpy(&mark, &mark_address, sizeof mark);
    CU(cuda.cuInit(0));
    context = enter_context(0);
    if (signal > 0)
        HOLDS(kill(getppid(), signal) == 0);
    CU(cuda.cuMemAlloc(&plain, 3 * MIB));
    handed_out++;
    for (int i = 0; i < THREADS; i++) {
        seeds[i] = i;
        HOLDS(pthread_create(&threads[i], NULL, churn, &seeds[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    map_two_handles();
    ask_otherwise();
    capture_each_way();
    set_marks();
    request_too_much();
    CU(cuda.cuMemFree(plain));
    freed++;
    CU(cuda.cuMemAlloc(&plain, 1000)); /* this block stays, as the last event */
    handed_out++;
    printf("a %d\nf %d\nx %d\nm %d\n", handed_out, freed, refused, marks);
    fflush(stdout);
    usleep((useconds_t)atoi(word_behind(argc, argv, "--wait", "0")) * 1000);
    end_record_by(word_behind(argc, argv, "--end", "exit"));
    return victim_status(argc, argv);
}
