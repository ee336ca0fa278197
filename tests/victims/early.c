/* SPDX-License-Identifier: MIT */
/* early.c: a program that forks while another thread makes the first request of a pool and the allocator is about to
 * print a line.  The child requests memory, too, which fails in any child.  An alarm ends a hang. */
#include "opened.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1000 };

static CUmemoryPool pool;
static sem_t says, may_say;
static atomic_int holds_lines = 1;

/* Replaces the C library's function. */
__attribute__((visibility("default"))) ssize_t write(int file, const void *bytes, size_t count) {
    if (file == STDERR_FILENO && atomic_exchange(&holds_lines, 0)) {
        sem_post(&says);
        while (sem_wait(&may_say) != 0)
            ;
    }
    return syscall(SYS_write, file, bytes, count);
}

static CUresult alloc_early(void) {
    CUdeviceptr block;

    return cuda.cuMemAllocFromPoolAsync(&block, BYTES, pool, NULL);
}

static void *ask_first(void *context) {
    CU(cuda.cuCtxSetCurrent(context));
    CU(alloc_early());
    return NULL;
}

int main(int argc, char **argv) {
    CUcontext context;
    pthread_t thread;
    pid_t child;
    int status;

    start_driver();
    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    pool = new_pool(NULL);
    alarm(60);
    HOLDS(sem_init(&says, 0, 0) == 0 && sem_init(&may_say, 0, 0) == 0);
    HOLDS(pthread_create(&thread, NULL, ask_first, context) == 0);
    while (sem_wait(&says) != 0)
        ;
    child = fork();
    if (child == 0) {
        alarm(10); /* ends a child that waits for a lock for ever */
        _exit(alloc_early() != CUDA_SUCCESS ? 3 : 4);
    }
    sem_post(&may_say);
    HOLDS(pthread_join(thread, NULL) == 0);
    HOLDS(waitpid(child, &status, 0) == child);
    printf("a child that asks: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    return victim_status(argc, argv);
}
