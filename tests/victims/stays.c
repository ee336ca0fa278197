/* SPDX-License-Identifier: MIT */
/* stays.c: a program that works until its standard input ends, and obeys letters from there: g allocates 96 MiB more, r
 * frees 96 MiB, f forks a child that waits for the end, too, x runs itself again, t makes a request that fails, c
 * replaces all descriptors but the driver's by files of the program, d checks that these files are unchanged. */
#include "opened.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_HELD = 64, PAIRS = 50, PAUSE_MS = 5, MOST_FILES = 1024, FILE_BYTES = 200000 };

static CUstream stream;
static CUdeviceptr held[MOST_HELD];
static int held_count;

static void churn_small_pairs(void) {

    for (int i = 0; i < PAIRS; i++)
        alloc_and_free_in(NULL, 65536, stream);
}

static char bytes[FILE_BYTES];
static struct stat mine[MOST_FILES]; /* by descriptor */

static void replace_files(void) {
    char name[32], leads[16];
    int file;

    memset(bytes, 'd', sizeof bytes);
    for (int number = 3; number < MOST_FILES; number++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", number);
        /* The driver's model has its memory in such files. */
        if (readlink(name, leads, sizeof leads) < (ssize_t)sizeof leads ||
            strncmp(leads, "/memfd:", 7) == 0)
            continue;
        close(number);
        snprintf(name, sizeof name, "data%d", number);
        file = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        HOLDS(file >= 0 && dup3(file, number, O_CLOEXEC) == (file == number ? -1 : number));
        if (file != number)
            close(file);
        HOLDS(write(number, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
        HOLDS(fstat(number, &mine[number]) == 0);
    }
}

static void look_at_files(void) {
    char found[1000];
    struct stat is;
    int files = 0;

    for (int number = 3; number < MOST_FILES; number++) {
        if (mine[number].st_ino == 0)
            continue;
        HOLDS(fstat(number, &is) == 0 && is.st_ino == mine[number].st_ino &&
              is.st_size == FILE_BYTES);
        for (off_t at = 0; at < FILE_BYTES; at += (off_t)sizeof found)
            HOLDS(pread(number, found, sizeof found, at) == (ssize_t)sizeof found &&
                  memcmp(found, bytes, sizeof found) == 0);
        files++;
    }
    HOLDS(files > 0);
}

/* Makes no CUDA call, since a child of fork cannot use CUDA. */
static void wait_for_end(void) {
    char letter;

    while (read(STDIN_FILENO, &letter, 1) > 0)
        ;
}

static void obey_letter(char letter, char **argv) {
    CUdeviceptr block;
    pid_t child;

    switch (letter) {
    case 'g':
        HOLDS(held_count < MOST_HELD);
        CU(cuda.cuMemAllocAsync(&held[held_count++], 96 * MIB, stream));
        break;
    case 'r':
        HOLDS(held_count > 0);
        CU(cuda.cuMemFreeAsync(held[--held_count], stream));
        break;
    case 't':
        HOLDS(cuda.cuMemAllocAsync(&block, (size_t)1 << 45, stream) == CUDA_ERROR_OUT_OF_MEMORY);
        break;
    case 'f':
        child = fork();
        HOLDS(child >= 0);
        if (child == 0) {
            wait_for_end();
            _exit(0);
        }
        printf("child %ld\n", (long)child);
        break;
    case 'c':
        replace_files();
        break;
    case 'd':
        look_at_files();
        break;
    case 'x':
        execl("/proc/self/exe", argv[0], (char *)NULL);
        victim_fail("execl");
    default:
        return;
    }
    printf("%c\n", letter);
    fflush(stdout);
}

int main(int argc, char **argv) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char letter;

    start_driver();
    stream = new_stream();
    churn_small_pairs();
    puts("ready");
    fflush(stdout);
    for (;;) {
        if (poll(&input, 1, PAUSE_MS) > 0) {
            if (read(STDIN_FILENO, &letter, 1) < 1)
                break;
            obey_letter(letter, argv);
        }
        churn_small_pairs();
    }
    while (held_count > 0)
        CU(cuda.cuMemFreeAsync(held[--held_count], stream));
    CU(cuda.cuStreamSynchronize(stream));
    CU(cuda.cuStreamDestroy(stream));
    CU(cuda.cuDevicePrimaryCtxRelease(0));
    while (wait(NULL) > 0)
        ;
    return victim_status(argc, argv);
}
