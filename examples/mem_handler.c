/* SPDX-License-Identifier: MIT */
/* mem_handler.c: makes weir the allocator of a library that accepts a structure of allocator functions.
 *
 *     cc mem_handler.c $(pkg-config --cflags --libs weir) && ./a.out LIBDIR/weir/libweir-adapters.so [DEVICE]
 *
 * cuTensorNet, cuDSS and cuStateVec have one structure under three names.  With weir_mem_handler:
 *
 *     weir_mem_handler handler;
 *     weir_mem_handler_init(&handler, allocator);            NULL: the process's allocator of the stream's device
 *     cutensornetSetDeviceMemHandler(handle, (const cutensornetDeviceMemHandler_t *)&handler);
 *     cudssSetDeviceMemHandler(handle, (const cudssDeviceMemHandler_t *)&handler);
 *     custatevecSetDeviceMemHandler(handle, (const custatevecDeviceMemHandler_t *)&handler);
 *
 * The structure of nvJPEG is filled in by hand:
 *
 *     nvjpegDevAllocatorV2_t device = {weir_handler_alloc, weir_handler_free, allocator};
 *     nvjpegCreateExV2(NVJPEG_BACKEND_DEFAULT, &device, &pinned, 0, &handle);
 *
 * To run without such a library, the example has a function library_work() in its place, which uses the structure and
 * not weir.  The example opens libweir-adapters.so, which has weir's functions, by its path; a program may link it
 * instead.  DEVICE is "model" by default, a GPU in software.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <weir/adapters.h>
#include <weir/weir.h>

/* The structure of allocator functions, as the header of the library declares it. */
typedef struct {
    void *ctx;
    int (*device_alloc)(void *ctx, void **block, size_t bytes, weir_stream stream);
    int (*device_free)(void *ctx, void *block, size_t bytes, weir_stream stream);
    char name[64];
} library_handler;

/* Stands for a call of the library: allocates and frees workspace of three sizes in stream order. */
static int library_work(const library_handler *handler, weir_stream stream) {
    static const size_t sizes[] = {1 << 20, 24 << 20, 4096};
    void *workspace[3];

    for (int i = 0; i < 3; i++)
        if (handler->device_alloc(handler->ctx, &workspace[i], sizes[i], stream) != 0)
            return 1;
    for (int i = 0; i < 3; i++)
        if (handler->device_free(handler->ctx, workspace[i], sizes[i], stream) != 0)
            return 1;
    return 0;
}

static int failed(const char *what) {
    fprintf(stderr, "mem_handler: %s\n", what);
    return 1;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "libweir-adapters.so";
    void (*init)(weir_mem_handler *, weir_allocator *);
    weir_statistics s = {.size = sizeof s};
    weir_mem_handler handler;
    weir_options options;
    weir_allocator *weir;
    void *module = dlopen(path, RTLD_NOW);

    if (!module)
        return failed(dlerror());
    *(void **)&init = dlsym(module, "weir_mem_handler_init");
    if (!init)
        return failed(dlerror());
    if (weir_options_init(&options) != WEIR_OK)
        return 1;
    options.device = argc > 2 ? argv[2] : "model";
    options.log = WEIR_LOG_ERROR;
    if (weir_allocator_create(&options, &weir) != WEIR_OK)
        return failed("cannot start");
    init(&handler, weir);
    if (library_work((const library_handler *)&handler, NULL) != 0)
        return failed("the library could not work");
    if (weir_stats(weir, &s) != WEIR_OK || s.allocs != 3 || s.blocks != 0)
        return failed("weir was not asked");
    printf("%" PRIu64 " requests of a library, all served by weir, none left\n", s.allocs);
    return weir_allocator_destroy(weir) == WEIR_OK ? EXIT_SUCCESS : failed("cannot end");
}
