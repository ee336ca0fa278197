/* SPDX-License-Identifier: MIT */
/* opened.h: what the programs share that open the driver's library and find its calls there by name.
 *
 * For one file of a program: what it opens is that file's own.
 */
#ifndef VICTIM_OPENED_H
#define VICTIM_OPENED_H

#include "work.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static void *library;
static struct cuda cuda;

/* ---- Calls ---- */

static inline void *find(const char *name, int version, const char *symbol) {
    (void)name;
    (void)version;
    return dlsym(library, symbol);
}

/* Writes where the call is to a pointer to a function; NULL: the driver does not have it. */
static inline void find_call(void *pointer, const char *symbol) {
    void *address = dlsym(library, symbol);

    memcpy(pointer, &address, sizeof address);
}

static inline void need_call(void *pointer, const char *symbol) {
    HOLDS(dlsym(library, symbol));
    find_call(pointer, symbol);
}

/* For a list of X(symbol, (parameters)): `static struct { LIST(MORE_POINTER) } more;' has a pointer for each, and
 * LIST(MORE_NEEDED) or LIST(MORE_FOUND) finds them. */
#define MORE_POINTER(symbol, params) CUresult(*symbol) params;
#define MORE_NEEDED(symbol, params) need_call(&more.symbol, #symbol);
#define MORE_FOUND(symbol, params) find_call(&more.symbol, #symbol);

static inline void open_driver(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    HOLDS(library);
    victim_load(&cuda, find, 0);
}

/* And device 0's context is current. */
static inline void start_driver(void) {
    open_driver();
    victim_start(&cuda);
}

/* ---- What they make ---- */

/* The primary context of a device, which is current then. */
static inline CUcontext enter_context(CUdevice device) {
    CUcontext context;

    CU(cuda.cuDevicePrimaryCtxRetain(&context, device));
    CU(cuda.cuCtxSetCurrent(context));
    return context;
}

static inline CUstream new_stream(void) {
    CUstream stream;

    CU(cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Of device 0's memory. */
static inline CUmemPoolProps pool_properties(void) {
    return (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

static inline CUmemoryPool new_pool(const CUmemPoolProps *properties) {
    CUmemPoolProps usual = pool_properties();
    CUmemoryPool pool;

    CU(cuda.cuMemPoolCreate(&pool, properties ? properties : &usual));
    return pool;
}

/* A block that comes and goes at once.  NULL: of the device's current pool. */
static inline CUdeviceptr pair(CUmemoryPool pool, size_t bytes, CUstream stream) {
    CUdeviceptr block;

    CU(pool ? cuda.cuMemAllocFromPoolAsync(&block, bytes, pool, stream)
            : cuda.cuMemAllocAsync(&block, bytes, stream));
    CU(cuda.cuMemFreeAsync(block, stream));
    return block;
}

static inline int is_told(int argc, char **argv, const char *word) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], word) == 0)
            return 1;
    return 0;
}

#endif
