/* SPDX-License-Identifier: MIT */
/* plain.c: a program that uses only cuMemAlloc, or no memory with --context, and has brief children with --children. */
#include "opened.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3000000 };

static void have_children(void) {
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    HOLDS(waitpid(child, NULL, 0) == child);
    child = vfork();
    if (child == 0)
        _exit(0);
    HOLDS(waitpid(child, NULL, 0) == child);
}

int main(int argc, char **argv) {
    static unsigned char host[BYTES];
    CUdeviceptr block[3];

    start_driver();
    if (is_told(argc, argv, "--context"))
        return victim_status(argc, argv);
    for (int i = 0; i < 3; i++) {
        CU(cuda.cuMemAlloc(&block[i], BYTES));
        CU(cuda.cuMemsetD8Async(block[i], (unsigned char)(i + 1), BYTES, NULL));
    }
    for (int i = 0; i < 3; i++) {
        CU(cuda.cuMemcpyDtoH(host, block[i], BYTES));
        for (size_t byte = 0; byte < BYTES; byte++)
            HOLDS(host[byte] == i + 1);
        CU(cuda.cuMemFree(block[i]));
        printf("plain %d\n", i);
    }
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    if (is_told(argc, argv, "--children"))
        have_children();
    return victim_status(argc, argv);
}
