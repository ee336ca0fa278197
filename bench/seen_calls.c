/* SPDX-License-Identifier: MIT */
/* seen_calls.c: measures driver calls that the library of `weir run' intercepts and passes on to the driver.
 *
 *     seen_calls [served]
 *
 * Prints a line for each call with its time in nanoseconds, the minimum of seven rounds.  With `served', the program
 * first allocates a block from the default memory pool, and keeps it during the measurement.  This first allocation
 * has a line, too.  bench/seen-calls runs the program natively and under `weir run'.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uintptr_t word;
typedef int (*call)(word, word, word);
typedef int (*resolver)(const char *name, void **entry, int version, uint64_t flags, int *status);

enum { ROUNDS = 7, CALLS = 20000 };

static resolver resolve;

static call find_symbol(const char *name) {
    void *address = NULL;
    call found;
    int status = 0;

    if (resolve(name, &address, 12000, 0, &status) != 0 || !address) {
        fprintf(stderr, "seen_calls: the driver has no %s\n", name);
        exit(1);
    }
    memcpy(&found, &address, sizeof found);
    return found;
}

static void require_success(int result, const char *what) {
    if (result == 0)
        return;
    fprintf(stderr, "seen_calls: %s failed with %d\n", what, result);
    exit(1);
}

static double call_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void measure_call(const char *name, word first, word second, word third) {
    call entry = find_symbol(name);
    double least = 1e18;

    for (int round = 0; round < ROUNDS; round++) {
        double began = call_now_ns(), took;

        for (int i = 0; i < CALLS; i++)
            require_success(entry(first, second, third), name);
        took = (call_now_ns() - began) / CALLS;
        least = took < least ? took : least;
    }
    printf("%s %.1f\n", name, least);
}

static void measure_streams(void) {
    call create = find_symbol("cuStreamCreate"), destroy = find_symbol("cuStreamDestroy");
    double least = 1e18;

    for (int round = 0; round < ROUNDS; round++) {
        double began = call_now_ns(), took;

        for (int i = 0; i < CALLS / 10; i++) {
            word stream;

            require_success(create((word)&stream, 1, 0), "cuStreamCreate");
            require_success(destroy(stream, 0, 0), "cuStreamDestroy");
        }
        took = (call_now_ns() - began) / (CALLS / 10);
        least = took < least ? took : least;
    }
    printf("cuStreamCreate+Destroy %.1f\n", least);
}

int main(int argc, char **argv) {
    enum { MEMORY_TYPE = 2, RELEASE_THRESHOLD = 4, BYTES = 1 << 20 };

    void *library = dlopen("libcuda.so.1", RTLD_NOW), *address;
    word context, stream, block, plain, pool, out[2];

    address = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (!address) {
        fprintf(stderr, "seen_calls: no CUDA driver of 12.0 or later\n");
        return 1;
    }
    memcpy(&resolve, &address, sizeof resolve);
    (void)argv;
    require_success(find_symbol("cuInit")(0, 0, 0), "cuInit");
    require_success(find_symbol("cuDevicePrimaryCtxRetain")((word)&context, 0, 0),
                    "cuDevicePrimaryCtxRetain");
    require_success(find_symbol("cuCtxSetCurrent")(context, 0, 0), "cuCtxSetCurrent");
    require_success(find_symbol("cuStreamCreate")((word)&stream, 1, 0), "cuStreamCreate");
    if (argc > 1) {
        call allocate = find_symbol("cuMemAllocAsync");
        double began = call_now_ns();

        require_success(allocate((word)&block, BYTES, stream), "cuMemAllocAsync");
        printf("first-cuMemAllocAsync %.0f\n", call_now_ns() - began);
    }
    require_success(find_symbol("cuMemAlloc")((word)&plain, BYTES, 0), "cuMemAlloc");
    require_success(find_symbol("cuDeviceGetDefaultMemPool")((word)&pool, 0, 0),
                    "cuDeviceGetDefaultMemPool");
    measure_call("cuPointerGetAttribute", (word)out, MEMORY_TYPE, plain);
    measure_call("cuMemGetAddressRange", (word)out, (word)(out + 1), plain);
    measure_call("cuMemPoolGetAttribute", pool, RELEASE_THRESHOLD, (word)out);
    measure_call("cuDeviceGetMemPool", (word)out, 0, 0);
    measure_call("cuDeviceGetDefaultMemPool", (word)out, 0, 0);
    measure_call("cuStreamSynchronize", stream, 0, 0);
    measure_streams();
    return 0;
}
