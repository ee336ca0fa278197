/* SPDX-License-Identifier: MIT */
/* rests.c: a program that uses the device only as it is told on its standard input, a letter each, and says the letter
 * when that is done: g holds 96 MiB more (--mib N: N) and fills them, p the same by cuMemAlloc, r frees the last, l looks at the contents of
 * all, m takes and frees managed memory, b works until the next letter, e has the program begin again in its process,
 * x has it become cat(1).  Between two letters it calls nothing. */
#include "work.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_HELD = 2048, PART = 4096 };

static size_t bytes = (size_t)96 << 20;

static void *library;
static struct cuda cuda;
static CUstream stream;
static struct block {
    CUdeviceptr at;
    int is_plain;
} held[MOST_HELD];
static int held_count;

static void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

static void hold(int is_plain) {
    struct block *block = &held[held_count];

    HOLDS(held_count < MOST_HELD);
    block->is_plain = is_plain;
    if (is_plain)
        CU(cuda.cuMemAlloc(&block->at, bytes));
    else
        CU(cuda.cuMemAllocAsync(&block->at, bytes, stream));
    held_count++;
    CU(cuda.cuMemsetD8Async(block->at, (unsigned char)held_count, bytes, stream));
    CU(cuda.cuStreamSynchronize(stream));
}

static void let_go(void) {
    HOLDS(held_count > 0);
    held_count--;
    if (held[held_count].is_plain)
        CU(cuda.cuMemFree(held[held_count].at));
    else
        CU(cuda.cuMemFreeAsync(held[held_count].at, stream));
}

static void look(void) {
    static unsigned char found[PART];

    for (int i = 0; i < held_count; i++)
        for (size_t at = 0; at < bytes; at += bytes / 8) {
            memset(found, 0, sizeof found);
            CU(cuda.cuMemcpyDtoHAsync(found, held[i].at + at, PART, stream));
            CU(cuda.cuStreamSynchronize(stream));
            for (size_t b = 0; b < PART; b++)
                HOLDS(found[b] == (unsigned char)(i + 1));
        }
}

static void take_managed(void) {
    typedef CUresult allocate(CUdeviceptr * block, size_t bytes, unsigned flags);
    allocate *managed = __extension__(allocate *) find(NULL, 0, "cuMemAllocManaged");
    CUdeviceptr block;

    CU(managed(&block, PART, 1));
    CU(cuda.cuMemFree(block));
}

static void be_busy(void) {
    struct pollfd told = {.fd = STDIN_FILENO, .events = POLLIN};

    do
        look();
    while (poll(&told, 1, 1) == 0);
}

static void obey(char letter) {
    switch (letter) {
    case 'g':
    case 'p':
        hold(letter == 'p');
        break;
    case 'r':
        let_go();
        break;
    case 'l':
        look();
        break;
    case 'm':
        take_managed();
        break;
    case 'b':
        be_busy();
        break;
    case 'e':
        execl("/proc/self/exe", "rests", (char *)NULL);
        victim_fail(VICTIM_AT(__FILE__, __LINE__) "another program");
        break;
    case 'x':
        execlp("cat", "cat", (char *)NULL);
        victim_fail(VICTIM_AT(__FILE__, __LINE__) "cat");
        break;
    default:
        victim_fail(VICTIM_AT(__FILE__, __LINE__) "a letter");
    }
    printf("%c\n", letter);
    fflush(stdout);
}

int main(int argc, char **argv) {
    char letter;

    if (argc > 2 && strcmp(argv[1], "--mib") == 0)
        bytes = (size_t)atol(argv[2]) << 20;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
    victim_start(&cuda);
    CU(cuda.cuStreamCreate(&stream, 1));
    puts("ready");
    fflush(stdout);
    while (read(STDIN_FILENO, &letter, 1) > 0)
        obey(letter);
    look();
    while (held_count > 0)
        let_go();
    CU(cuda.cuStreamSynchronize(stream));
    puts("end");
    return victim_status(argc, argv);
}
