/* SPDX-License-Identifier: MIT */
/* stacks.c: a program whose functions have so many blocks each, at its end and at the peak before, under names that
 * the dynamic linker knows.  With --signal FILE it asks for a profile at the peak, and waits until FILE is there; with
 * --reset it resets the context there, and has what it had no more.  With --children FILE it has children there that
 * are signalled and end, one of them made behind the C library's back, none of which may make FILE or FILE.1.  With
 * --title it sets a title. */
#include "opened.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAMED __attribute__((visibility("default"), noinline))

enum { WEIGHTS = 3, ACTIVATIONS = 5, SCRATCH = 2, DEEP = 100 };

static CUstream stream;
static CUdeviceptr block[WEIGHTS + ACTIVATIONS + SCRATCH + 1];
static int blocks;
static volatile int after; /* written behind calls, so that they are no jumps */

NAMED void take(size_t bytes);
NAMED void take_weights(void);
NAMED void take_activations(void);
NAMED void take_scratch(void);
NAMED int take_deeply(int depth);

void take(size_t bytes) {
    CU(cuda.cuMemAllocAsync(&block[blocks], bytes, stream));
    blocks++;
}

void take_weights(void) {
    for (int i = 0; i < WEIGHTS; i++)
        take(4 * MIB);
    after++;
}

void take_activations(void) {
    for (int i = 0; i < ACTIVATIONS; i++)
        take(20 * MIB);
    after++;
}

void take_scratch(void) {
    for (int i = 0; i < SCRATCH; i++)
        take(777);
    after++;
}

/* More calls than a profile keeps. */
int take_deeply(int depth) {
    int below;

    if (depth == 0) {
        take(MIB);
        return 0;
    }
    below = take_deeply(depth - 1);
    after++;
    return below + 1;
}

static void ask(const char *file) {
    HOLDS(raise(SIGUSR2) == 0);
    for (int i = 0; i < 1000 && access(file, F_OK) != 0; i++)
        (void)usleep(10000);
    HOLDS(access(file, F_OK) == 0);
}

static void be_a_child(void) {
    HOLDS(raise(SIGUSR2) == 0);
    HOLDS(raise(SIGUSR2) == 0);
    (void)usleep(100000);
    exit(0);
}

static void have_children(const char *file) {
    char first[4096];

    snprintf(first, sizeof first, "%s.1", file);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        pid_t child = i ? (pid_t)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L) : fork();
        int status;

        if (child == 0)
            be_a_child();
        HOLDS(child > 0 && waitpid(child, &status, 0) == child);
        HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        HOLDS(access(file, F_OK) != 0 && access(first, F_OK) != 0);
    }
}

static void reset(void) {
    CUresult (*reset_context)(CUdevice device);

    need_call(&reset_context, "cuDevicePrimaryCtxReset_v2");
    CU(reset_context(0));
    (void)enter_context(0);
    stream = new_stream();
    CU(cuda.cuMemFreeAsync(block[0], stream)); /* as of what has gone: nothing happens */
    blocks = 0;
}

int main(int argc, char **argv) {
    start_driver();
    stream = new_stream();
    take_weights();
    take_activations();
    if (argc > 2 && strcmp(argv[1], "--signal") == 0)
        ask(argv[2]);
    if (argc > 2 && strcmp(argv[1], "--children") == 0)
        have_children(argv[2]);
    if (is_told(argc, argv, "--reset"))
        reset();
    if (is_told(argc, argv, "--title"))
        victim_set_title();
    while (blocks > WEIGHTS) /* another of the same address is not the same block */
        CU(cuda.cuMemFreeAsync(block[--blocks], stream));
    take_scratch();
    HOLDS(take_deeply(DEEP) == DEEP);
    printf("%d blocks at the end\n", blocks);
    return victim_status(argc, argv);
}
