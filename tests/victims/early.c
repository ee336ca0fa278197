/* SPDX-License-Identifier: MIT */
/* early.c: a program that forks while another thread makes the first request of a pool, and whoever serves it
 * is about to say something.  The child asks for memory too, which no child may have, and must not hang.
 * If nobody says anything it is ended after a while. */
#include "work.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1000 };

static void *library;
static struct cuda cuda;
static CUmemoryPool pool;
static sem_t says, may_say;
static atomic_int holds_lines = 1;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

/* In front of the C library's. */
__attribute__((visibility("default"))) ssize_t write(int file, const void *bytes, size_t count) {
    if (file == STDERR_FILENO && atomic_exchange(&holds_lines, 0)) {
        sem_post(&says);
        while (sem_wait(&may_say) != 0)
            ;
    }
    return syscall(SYS_write, file, bytes, count);
}

static CUresult ask(void) {
    CUdeviceptr block;

    return cuda.cuMemAllocFromPoolAsync(&block, BYTES, pool, NULL);
}

static void *ask_first(void *context) {
    CU(cuda.cuCtxSetCurrent(context));
    CU(ask());
    return NULL;
}

int main(int argc, char **argv) {
    CUmemPoolProps properties;
    CUcontext context;
    pthread_t thread;
    pid_t child;
    int status;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
    victim_start(&cuda);
    CU(cuda.cuDevicePrimaryCtxRetain(&context, 0));
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuda.cuMemPoolCreate(&pool, &properties));
    alarm(60);
    HOLDS(sem_init(&says, 0, 0) == 0 && sem_init(&may_say, 0, 0) == 0);
    HOLDS(pthread_create(&thread, NULL, ask_first, context) == 0);
    while (sem_wait(&says) != 0)
        ;
    child = fork();
    if (child == 0) {
        alarm(10); /* rather than wait for a lock that nobody holds */
        _exit(ask() != CUDA_SUCCESS ? 3 : 4);
    }
    sem_post(&may_say);
    HOLDS(pthread_join(thread, NULL) == 0);
    HOLDS(waitpid(child, &status, 0) == child);
    printf("a child that asks: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    return victim_status(argc, argv);
}
