/* SPDX-License-Identifier: MIT */
/* member.c: a program that runs the words of its command line.  For each request it prints the call and the result.
 *     async N, alloc N, create N, managed N, graph N   allocates N MiB by that call, or N bytes if a "b" follows N
 *     node N, node1 N, node2 N                         a node by cuGraphAddMemAllocNode, cuGraphAddNode, or its _v2
 *     free                                             frees the last block
 *     trim                                             frees all blocks; those of async become idle
 *     join NAME                                        sets the group for later words
 *     device N                                         retains the context of a device
 *     reset                                            resets the context, and forgets all blocks
 *     again                                            ends the context with its blocks, and makes a new one
 *     mark FILE, wait FILE                             makes a file, or waits for one
 *     term                                             sends SIGTERM to itself
 *     hold                                             sleeps until it is killed */
#include "driver/cuda_abi.h"
#include "opened.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096 };

static CUstream stream;

static struct taken {
    char how; /* the first letter of the call */
    CUdeviceptr block;
    CUmemGenericAllocationHandle handle;
    size_t bytes;
} taken[MOST];
static int count;

/* Launches the graph once, and waits for it. */
static void launch_once(CUgraph graph) {
    CUgraphExec exec;

    CU(cuda.cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuda.cuGraphLaunch(exec, stream));
    CU(cuda.cuStreamSynchronize(stream));
}

/* Maps memory and releases its handle at once, as NCCL does, so that the mapping keeps the memory. */
static CUresult create_physical_block(struct taken *t) {
    CUmemAllocationProp kind;
    CUresult result;

    memset(&kind, 0, sizeof kind);
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    result = more.cuMemCreate(&t->handle, t->bytes, &kind, 0);
    if (result != CUDA_SUCCESS)
        return result;
    CU(more.cuMemAddressReserve(&t->block, t->bytes, 0, 0, 0));
    CU(more.cuMemMap(t->block, t->bytes, 0, t->handle, 0));
    CU(more.cuMemRelease(t->handle));
    return CUDA_SUCCESS;
}

static CUresult alloc_in_capture(struct taken *t) {
    CUresult result;
    CUgraph graph;

    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    result = cuda.cuMemAllocAsync(&t->block, t->bytes, stream);
    if (result == CUDA_SUCCESS)
        CU(cuda.cuMemFreeAsync(t->block, stream));
    CU(cuda.cuStreamEndCapture(stream, &graph));
    if (result == CUDA_SUCCESS)
        launch_once(graph);
    return result;
}

/* Adds an allocation node to an empty graph, and launches it. */
static CUresult add_node(struct taken *t, char form) {
    struct weir_any_node any = {.type = WEIR_NODE_ALLOC, .alloc = {.bytes = t->bytes}};
    CUresult result;
    CUgraph graph;

    any.alloc.pool.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CU(cuda.cuStreamEndCapture(stream, &graph));
    result = form == '2'   ? more.cuGraphAddNode_v2(NULL, graph, NULL, NULL, 0, &any)
             : form == '1' ? more.cuGraphAddNode(NULL, graph, NULL, 0, &any)
                           : more.cuGraphAddMemAllocNode(NULL, graph, NULL, 0, &any.alloc);
    if (result == CUDA_SUCCESS)
        launch_once(graph);
    return result;
}

static CUresult alloc_by_way(const char *how, struct taken *t) {
    t->how = how[0];
    if (strncmp(how, "node", 4) == 0) {
        t->how = 'g';
        return add_node(t, how[4]);
    }
    if (strcmp(how, "async") == 0)
        return cuda.cuMemAllocAsync(&t->block, t->bytes, stream);
    if (strcmp(how, "alloc") == 0) {
        t->how = 'p';
        return cuda.cuMemAlloc(&t->block, t->bytes);
    }
    if (strcmp(how, "create") == 0)
        return create_physical_block(t);
    if (strcmp(how, "managed") == 0)
        return more.cuMemAllocManaged(&t->block, t->bytes, 1);
    return alloc_in_capture(t);
}

static void free_by_way(const struct taken *t) {
    if (t->how == 'a')
        CU(cuda.cuMemFreeAsync(t->block, stream));
    else if (t->how == 'c')
        CU(more.cuMemUnmap(t->block, t->bytes));
    else if (t->how != 'g')
        CU(cuda.cuMemFree(t->block));
    CU(cuda.cuStreamSynchronize(stream));
}

static void request_by_way(const char *how, const char *number) {
    struct taken *t = &taken[count];
    char *end;
    CUresult result;

    t->bytes = (size_t)strtoull(number, &end, 10);
    if (*end != 'b')
        t->bytes <<= 20;
    result = alloc_by_way(how, t);
    printf("%s %s: %d\n", how, number, (int)result);
    fflush(stdout);
    if (result == CUDA_SUCCESS)
        count++;
}

static void ask_for_device(const char *number) {
    CUcontext context;

    printf("device %s: %d\n", number,
           (int)cuda.cuDevicePrimaryCtxRetain(&context, (CUdevice)strtol(number, NULL, 10)));
}

static void begin_again(void) {

    CU(cuda.cuDevicePrimaryCtxRelease(0));
    (void)enter_context(0);
    stream = new_stream();
    count = 0;
}

static void wait_for_file(const char *file) {
    for (int i = 0; i < 3000 && access(file, F_OK) != 0; i++)
        nanosleep(&(struct timespec){0, 10000000}, NULL);
}

int main(int argc, char **argv) {
    FILE *mark;

    open_cuda_library();
    NEED("cuMemCreate", "cuMemRelease", "cuMemAddressReserve", "cuMemMap", "cuMemUnmap",
         "cuDevicePrimaryCtxReset_v2", "cuMemAllocManaged", "cuGraphAddMemAllocNode",
         "cuGraphAddNode", "cuGraphAddNode_v2");
    victim_start(&cuda);
    stream = new_stream();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "free") == 0 && count > 0) {
            free_by_way(&taken[--count]);
        } else if (strcmp(argv[i], "trim") == 0) {
            while (count > 0)
                free_by_way(&taken[--count]);
        } else if (strcmp(argv[i], "reset") == 0) {
            CU(more.cuDevicePrimaryCtxReset_v2(0));
            count = 0;
        } else if (strcmp(argv[i], "again") == 0) {
            begin_again();
        } else if (strcmp(argv[i], "join") == 0) {
            HOLDS(setenv("WEIR_GROUP", argv[++i], 1) == 0);
        } else if (strcmp(argv[i], "device") == 0) {
            ask_for_device(argv[++i]);
        } else if (strcmp(argv[i], "hold") == 0) {
            for (;;)
                pause();
        } else if (strcmp(argv[i], "term") == 0) {
            HOLDS(kill(getpid(), SIGTERM) == 0);
        } else if (strcmp(argv[i], "mark") == 0) {
            mark = fopen(argv[++i], "w");
            HOLDS(mark && fclose(mark) == 0);
        } else if (strcmp(argv[i], "wait") == 0) {
            wait_for_file(argv[++i]);
        } else {
            request_by_way(argv[i], argv[i + 1]);
            i++;
        }
    }
    printf("done\n");
    return 0;
}
