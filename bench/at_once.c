/* SPDX-License-Identifier: MIT */
/* at_once.c: a library to preload that replaces the driver's functions for memory pools.  Requests and frees return at
 * once; the address that a request returns has no memory.
 *
 * With this library, a request and a free take only the time of the CUDA runtime and of the program itself
 * (bench/stream-kinds).  The program must not use the memory.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

typedef int (*find_function)(const char *name, void **address, int version, uint64_t flags, unsigned *status);

static find_function find;

static int alloc_at_once(unsigned long long *block, size_t bytes, void *stream) {
    (void)bytes;
    (void)stream;
    *block = 1 << 20;
    return 0;
}

static int free_unbacked(unsigned long long block, void *stream) {
    (void)block;
    (void)stream;
    return 0;
}

static int find_at_once(const char *name, void **address, int version, uint64_t flags, unsigned *status) {
    int result = find(name, address, version, flags, status);

    if (strcmp(name, "cuGetProcAddress") == 0) /* the runtime searches for this function, too */
        *address = (void *)find_at_once;
    else if (strcmp(name, "cuMemAllocAsync") == 0)
        *address = (void *)alloc_at_once;
    else if (strcmp(name, "cuMemFreeAsync") == 0)
        *address = (void *)free_unbacked;
    return result;
}

/* Replaces dlsym(3).  For the name cuGetProcAddress_v2, returns find_at_once(), because the CUDA runtime finds all
 * other driver functions by cuGetProcAddress_v2. */
void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    void *found;

    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    found = real(handle, name);
    if (!found || strcmp(name, "cuGetProcAddress_v2") != 0)
        return found;
    find = (find_function)found;
    return (void *)find_at_once;
}
