/* SPDX-License-Identifier: MIT */
/* threads.c: a program whose threads allocate on their per-thread default streams, by dlsym of the _ptsz names.  Every
 * other thread leaves its last block to the main thread, which frees the block. */
#include "opened.h"

#include <pthread.h>

enum { THREADS = 6, LEFT_BYTES = 40000 };

static CUcontext context;

struct worker {
    pthread_t thread;
    unsigned seed, sum;
    CUdeviceptr left;
};

static void *churn_in_thread(void *pointer) {
    struct worker *self = pointer;

    CU(cuda.cuCtxSetCurrent(context));
    self->sum = victim_churn(&cuda, NULL, self->seed);
    if (self->seed % 2) {
        CU(cuda.cuMemAllocAsync(&self->left, LEFT_BYTES, NULL));
        CU(cuda.cuMemsetD8Async(self->left, (unsigned char)self->seed, LEFT_BYTES, NULL));
        CU(cuda.cuStreamSynchronize(NULL));
    }
    return NULL;
}

int main(int argc, char **argv) {
    static unsigned char host[LEFT_BYTES];
    struct worker workers[THREADS];

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find_by_symbol, 1);
    CU(cuda.cuInit(0));
    context = enter_context(0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.seed = 10 + i};
        HOLDS(pthread_create(&workers[i].thread, NULL, churn_in_thread, &workers[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        printf("thread %u: %08x\n", i, workers[i].sum);
        if (!workers[i].left)
            continue;
        CU(cuda.cuMemcpyDtoH(host, workers[i].left, sizeof host));
        for (size_t byte = 0; byte < sizeof host; byte++)
            HOLDS(host[byte] == (unsigned char)workers[i].seed);
        CU(cuda.cuMemFreeAsync(workers[i].left, NULL));
    }
    victim_work(&cuda, "threads", 9);
    victim_graph(&cuda, "threads", 10);
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
