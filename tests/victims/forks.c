/* SPDX-License-Identifier: MIT */
/* forks.c: a program that forks while it works.  One child runs this program again.  One requests more memory than its
 * pool has idle, which fails in any child.  One makes no request.  The parent's blocks stay valid. */
#include "opened.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 100000, MORE = 64 << 20, STATUS_CHILD = 7 };

static int exit_code_of_fork(pid_t child) {
    int status = 0;

    HOLDS(child > 0);
    HOLDS(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void load_before_main(void) {
    start_driver();
}

int main(int argc, char **argv) {
    static unsigned char host[BYTES];
    CUdeviceptr block, other;
    pid_t child;

    if (is_told(argc, argv, "child")) {
        load_before_main();
        victim_work(&cuda, "child", 11);
        return STATUS_CHILD;
    }
    load_before_main();
    CU(cuda.cuMemAllocAsync(&block, BYTES, NULL));
    CU(cuda.cuMemsetD8Async(block, 0x5a, BYTES, NULL));
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(cuda.cuMemAllocAsync(&other, MORE, NULL) != CUDA_SUCCESS ? 3 : 4);
    printf("a child that asks: %d\n", exit_code_of_fork(child));
    fflush(stdout);
    child = fork();
    if (child == 0)
        exit(5); /* runs all functions of atexit */
    printf("a child that does not: %d\n", exit_code_of_fork(child));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", argv[0], "child", (char *)NULL);
        _exit(98);
    }
    printf("a child that becomes another: %d\n", exit_code_of_fork(child));
    CU(cuda.cuMemcpyDtoH(host, block, BYTES));
    for (size_t i = 0; i < BYTES; i++)
        HOLDS(host[i] == 0x5a);
    CU(cuda.cuMemFreeAsync(block, NULL));
    victim_work(&cuda, "parent", 12);
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    return victim_status(argc, argv);
}
