/* SPDX-License-Identifier: MIT */
/* test_public_adapters.c: libweir-adapters.so as frameworks take it: opened by its path, its functions found
 * by name and called through the types that the frameworks have for them.  The program links libweir.so, and
 * sees in its statistics that it is the same allocator.
 *
 * Plain C, no test framework, nothing internal.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weir/weir.h>

/* As in the frameworks' own headers, with void * for cudaStream_t. */
typedef void *torch_alloc_fn(size_t, int, void *);
typedef void torch_free_fn(void *, size_t, int, void *);
typedef void *cupy_malloc_fn(void *, size_t, int);
typedef void cupy_free_fn(void *, void *, int);
typedef void *onnx_alloc_fn(size_t);
typedef void onnx_free_fn(void *);
struct mem_handler {
    void *ctx;
    int (*device_alloc)(void *, void **, size_t, void *);
    int (*device_free)(void *, void *, size_t, void *);
    char name[64];
};

static int number, failures;

static void check(int holds, const char *what) {
    printf("%s %d - %s\n", holds ? "ok" : "not ok", ++number, what);
    failures += !holds;
}

static void *module;

/* Does not come back without it. */
static void *symbol(const char *name) {
    void *found = dlsym(module, name);

    if (!found) {
        printf("Bail out! %s\n", dlerror());
        exit(1);
    }
    return found;
}

static weir_statistics stats(int device) {
    weir_statistics s = {.size = sizeof s};
    weir_allocator *a;

    if (weir_device_allocator(device, &a) != WEIR_OK || weir_stats(a, &s) != WEIR_OK)
        check(0, "statistics can be read");
    return s;
}

static void test_torch(void) {
    torch_alloc_fn *alloc;
    torch_free_fn *release;
    void (*init)(int), (*reset)(void), (*record)(void *, void *);
    void (*fraction)(double, int);
    void *(*base)(void *, size_t *);
    size_t bytes = 0;
    char *block;

    *(void **)&alloc = symbol("weir_torch_alloc");
    *(void **)&release = symbol("weir_torch_free");
    *(void **)&init = symbol("weir_torch_init");
    *(void **)&reset = symbol("weir_torch_reset");
    *(void **)&fraction = symbol("weir_torch_memory_fraction");
    *(void **)&base = symbol("weir_torch_base_alloc");
    *(void **)&record = symbol("weir_torch_record_stream");
    init(1);
    block = alloc(20 << 20, 0, (void *)0x2);
    check(block && stats(0).blocks == 1,
          "torch: weir_torch_alloc serves from the process's allocator");
    check(base(block + 4711, &bytes) == block && bytes == 20 << 20, "torch: the base of a block");
    record(block, (void *)0x1);
    release(block, 20 << 20, 0, (void *)0x2);
    check(stats(0).blocks == 0, "torch: and takes it back");
    check(stats(0).reserved >= 20 << 20, "torch: which stays in the reserve");
    reset();
    check(stats(0).reserved == 0, "torch: until the cache is emptied");
    fraction(0.25, 0);
    /* Where there is a C++ library, as sanitizers bring it, this is thrown: see check-adapters. */
    check(dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD) ||
              !alloc((size_t)40 << 30, 0, (void *)0x2),
          "torch: more than its fraction is refused");
    block = alloc((size_t)20 << 30, 0, (void *)0x2);
    check(block != NULL, "torch: less is not");
    release(block, (size_t)20 << 30, 0, (void *)0x2);
    fraction(1.0, 0);
}

static void test_cupy(void) {
    cupy_malloc_fn *alloc;
    cupy_free_fn *release;
    void *params[] = {NULL, (void *)0x1};

    *(void **)&alloc = symbol("weir_cupy_malloc");
    *(void **)&release = symbol("weir_cupy_free");
    for (int i = 0; i < 2; i++) {
        void *block = alloc(params[i], 1 << 20, 0);

        check(block && stats(0).blocks == 1, i ? "cupy: of one stream" : "cupy: of any stream");
        release(params[i], block, 0);
        check(stats(0).blocks == 0, "cupy: taken back");
    }
}

static void test_onnx(void) {
    onnx_alloc_fn *alloc;
    onnx_free_fn *release;
    void (*empty)(void), (*stream)(void *);
    void *block;

    *(void **)&alloc = symbol("weir_onnx_alloc");
    *(void **)&release = symbol("weir_onnx_free");
    *(void **)&empty = symbol("weir_onnx_empty_cache");
    *(void **)&stream = symbol("weir_onnx_stream");
    block = alloc(3 << 20);
    check(block && stats(0).blocks == 1, "onnx: of any stream");
    stream((void *)0x1);
    release(block);
    check(stats(0).blocks == 0, "onnx: given back on one");
    stream(NULL);
    empty();
    check(stats(0).reserved == 0, "onnx: the cache is emptied");
}

static void test_handler(void) {
    void (*init)(struct mem_handler *, void *);
    struct mem_handler handler;
    void *block = NULL;

    *(void **)&init = symbol("weir_mem_handler_init");
    init(&handler, NULL);
    check(strcmp(handler.name, "weir") == 0, "handler: it has a name");
    check(handler.device_alloc(handler.ctx, &block, 1 << 20, (void *)0x1) == 0 && block &&
              stats(0).blocks == 1,
          "handler: it serves");
    check(handler.device_free(handler.ctx, block, 1 << 20, (void *)0x1) == 0 &&
              stats(0).blocks == 0,
          "handler: and takes back");
    *(void **)&handler.device_alloc = symbol("weir_handler_alloc");
    *(void **)&handler.device_free = symbol("weir_handler_free");
    check(handler.device_alloc(NULL, &block, 1, (void *)0x1) == 0 &&
              handler.device_free(NULL, block, 1, (void *)0x1) == 0,
          "nvjpeg: its two functions");
}

int main(void) {
    const char *built = getenv("top_builddir");
    char path[1024];

    setenv("WEIR_DEVICE", "model", 1);
    snprintf(path, sizeof path, "%s/lib/adapters/.libs/libweir-adapters.so", built ? built : ".");
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        printf("Bail out! %s\n", dlerror());
        return 1;
    }
    test_torch();
    test_cupy();
    test_onnx();
    test_handler();
    printf("1..%d\n", number);
    return failures != 0;
}
