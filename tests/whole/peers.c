/* SPDX-License-Identifier: MIT */
/* peers.c: checks, on a machine with two GPUs, that the other GPU reaches weir's blocks, and how fast.
 *
 *     tests/whole/peers [--device model]                                    default: cuda
 *
 * For each engine whose memory other devices can access, the program checks that:
 *   - work of the second device fails before it has access, and succeeds then, in earlier and in later blocks
 *   - copies between the devices are as fast in weir's blocks as in blocks of cuMemAlloc.
 * A separate process makes calls in which a driver may crash.  On the device model, which has no speed, the program
 * does not compare copies.  Writes TAP.  Exits with 0 if all checks hold, 77 if no two devices are peers.
 *
 * Must not know: how weir places blocks.  Multicast is never used. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weir/weir.h>

#include "driver/driver.h"

#define MIB ((size_t)1 << 20)
#define LEAST_RATIO 0.98
enum { BLOCK = 64, SPEED_BLOCK = 256, COPIES = 20, ROUNDS = 7 }; /* MiB; how often */

static const struct {
    const char *name, *engine, *cache;
} kinds[] = {
    {"pool", "pool", "on"},
    {"pool, cache off", "pool", "off"},
    {"mapped", "mapped", "on"},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static const char *device_name = "cuda";
static const struct weir_driver *driver;
static CUcontext context[2];
static CUstream stream[2];
static int number, failures;

static CUresult (*copy_peer)(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream);
static CUresult (*enable_peer)(CUcontext, unsigned int);

static void result(int holds, const char *kind, const char *what) {
    printf("%s %d - %s: %s\n", holds ? "ok" : "not ok", ++number, kind, what);
    failures += !holds;
}

static void must_hold_true(int holds, const char *what) {
    if (holds)
        return;
    printf("Bail out! %s\n", what);
    exit(1);
}

static void enter_device_of(int i) {
    CUcontext popped;

    (void)driver->cuCtxPopCurrent(&popped);
    must_hold_true(driver->cuCtxPushCurrent(context[i]) == CUDA_SUCCESS, "a context is current");
}

/* Opens both devices.  Returns 1 on success, 0 if no two devices are peers. */
static int open_peer_devices(void) {
    struct weir_driver_failure failure;
    int count = 0, can = 0;

    driver = weir__driver_open(device_name, &failure);
    if (!driver || driver->cuDeviceGetCount(&count) != CUDA_SUCCESS || count < 2 ||
        driver->cuDeviceCanAccessPeer(&can, 1, 0) != CUDA_SUCCESS || !can)
        return 0;
    for (int i = 1; i >= 0; i--) {
        must_hold_true(driver->cuDevicePrimaryCtxRetain(&context[i], i) == CUDA_SUCCESS &&
                           driver->cuCtxPushCurrent(context[i]) == CUDA_SUCCESS &&
                           driver->cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING) ==
                               CUDA_SUCCESS,
                       "the devices can be opened");
    }
    return 1;
}

static weir_allocator *make_peer_allocator(int kind, const char *peers) {
    weir_allocator *allocator = NULL;
    weir_options options;
    char text[256];

    weir_options_init(&options);
    must_hold_true(
        weir_options_set(&options, "device", device_name, text, sizeof text) == WEIR_OK &&
            weir_options_set(&options, "engine", kinds[kind].engine, text, sizeof text) ==
                WEIR_OK &&
            weir_options_set(&options, "cache", kinds[kind].cache, text, sizeof text) == WEIR_OK &&
            weir_options_set(&options, "peers", peers, text, sizeof text) == WEIR_OK &&
            weir_options_set(&options, "log", "warning", text, sizeof text) == WEIR_OK,
        "the settings can be read");
    must_hold_true(weir_allocator_create(&options, &allocator) == WEIR_OK,
                   "an allocator can be made");
    return allocator;
}

static CUdeviceptr alloc_from_peer(weir_allocator *allocator, size_t bytes) {
    void *block = NULL;

    must_hold_true(weir_alloc(allocator, bytes, stream[0], &block) == WEIR_OK,
                   "a block can be had");
    must_hold_true(driver->cuStreamSynchronize(stream[0]) == CUDA_SUCCESS, "it is there");
    return (uintptr_t)block;
}

static void free_to_peer(weir_allocator *allocator, CUdeviceptr block) {
    must_hold_true(weir_free(allocator, (void *)(uintptr_t)block, stream[0]) == WEIR_OK,
                   "a block goes");
}

/* A kernel that writes one word.  A driver cannot perform this write as a copy, as it may perform a fill. */
static const char ptx[] = ".version 7.0\n"
                          ".target sm_52\n"
                          ".address_size 64\n"
                          ".visible .entry touch(.param .u64 p_at) {\n"
                          "    .reg .b64 %at;\n"
                          "    .reg .b32 %value;\n"
                          "    ld.param.u64 %at, [p_at];\n"
                          "    cvta.to.global.u64 %at, %at;\n"
                          "    mov.u32 %value, 77;\n"
                          "    st.global.u32 [%at], %value;\n"
                          "    ret;\n"
                          "}\n";

/* Writes to the block by a kernel on the stream.  Returns the driver's first failure. */
static CUresult write_by_kernel(CUdeviceptr block, CUstream on) {
    CUmodule module;
    CUfunction function = NULL;
    void *parameters[] = {&block};
    CUresult done = driver->cuModuleLoadData(&module, ptx);

    must_hold_true(done == CUDA_SUCCESS &&
                       driver->cuModuleGetFunction(&function, module, "touch") == CUDA_SUCCESS,
                   "a kernel can be loaded");
    done = driver->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, on, parameters, NULL);
    if (done == CUDA_SUCCESS)
        done = driver->cuStreamSynchronize(on);
    if (done == CUDA_SUCCESS)
        (void)driver->cuModuleUnload(module);
    return done;
}

/* Writes to the block by a kernel of the second device (not on the model), and fills the block there.  Returns the
 * driver's first failure. */
static CUresult fill_from_second(CUdeviceptr block, size_t bytes, unsigned char value) {
    CUresult filled = CUDA_SUCCESS;

    enter_device_of(1);
    if (strcmp(device_name, "cuda") == 0)
        filled = write_by_kernel(block + bytes - 4, stream[1]);
    if (filled == CUDA_SUCCESS)
        filled = driver->cuMemsetD8Async(block, value, bytes, stream[1]);
    if (filled == CUDA_SUCCESS)
        filled = driver->cuStreamSynchronize(stream[1]);
    enter_device_of(0);
    return filled;
}

/* Returns 1 if the first device reads `value` in all bytes, else 0. */
static int all_are(CUdeviceptr block, size_t bytes, unsigned char value) {
    unsigned char *host = malloc(bytes);
    size_t same = 0;

    must_hold_true(host &&
                       driver->cuMemcpyDtoHAsync(host, block, bytes, stream[0]) == CUDA_SUCCESS &&
                       driver->cuStreamSynchronize(stream[0]) == CUDA_SUCCESS,
                   "bytes can be read");
    while (same < bytes && host[same] == value)
        same++;
    free(host);
    return same == bytes;
}

/* ---- calls in a separate process ------------------------------------------------------------ */

/* Runs this program with WEIR_TEST_ASK in its environment.  Returns the number that it prints, 999 if it prints none. */
static unsigned ask_new_process(const char *what, int kind) {
    char command[640], path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    unsigned said = 999;
    FILE *answers;

    must_hold_true(length > 0, "this program is found");
    path[length] = '\0';
    snprintf(command, sizeof command, "WEIR_TEST_ASK=%s WEIR_TEST_KIND=%d '%s' --device %s 2>&1",
             what, kind, path, device_name);
    fflush(stdout);
    answers = popen(command, "r");
    must_hold_true(answers != NULL, "it can be run");
    if (fscanf(answers, "answer %u", &said) != 1)
        said = 999;
    (void)pclose(answers);
    return said;
}

static int find_copies(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    if (!library)
        return 0;
    *(void **)&copy_peer = dlsym(library, "cuMemcpyPeerAsync");
    *(void **)&enable_peer = dlsym(library, "cuCtxEnablePeerAccess");
    return copy_peer && enable_peer;
}

static int answer_in_process(const char *what, int kind) {
    weir_allocator *near;
    CUdeviceptr block, far;
    CUresult said = CUDA_SUCCESS;

    alarm(60);
    must_hold_true(open_peer_devices(), "two devices");
    near = make_peer_allocator(kind, "none");
    block = alloc_from_peer(near, BLOCK * MIB);
    if (strcmp(what, "fill") == 0) {
        said = fill_from_second(block, BLOCK * MIB, 1);
    } else { /* copy: between memory that neither has access to */
        weir_options options;
        weir_allocator *there;
        void *other = NULL;

        must_hold_true(find_copies(), "copies");
        weir_options_init(&options);
        options.device = "cuda:1";
        options.engine =
            strcmp(kinds[kind].engine, "pool") == 0 ? WEIR_ENGINE_POOL : WEIR_ENGINE_MAPPED;
        must_hold_true(weir_allocator_create(&options, &there) == WEIR_OK &&
                           weir_alloc(there, BLOCK * MIB, stream[1], &other) == WEIR_OK,
                       "a block there");
        far = (uintptr_t)other;
        said = copy_peer(far, context[1], block, context[0], BLOCK * MIB, stream[0]);
        if (said == CUDA_SUCCESS)
            said = driver->cuStreamSynchronize(stream[0]);
    }
    printf("answer %u\n", (unsigned)said);
    fflush(stdout);
    _exit(0);
}

/* ---- access ------------------------------------------------------------------------------------------ */

static void check_peer_access(int kind) {
    const char *name = kinds[kind].name;
    weir_allocator *allocator;
    CUdeviceptr block, later;
    unsigned said = ask_new_process("fill", kind);

    printf("# a fill by a device without access: %u\n", said);
    result(said != CUDA_SUCCESS && said != 999, name, "the second device has no access at first");
    allocator = make_peer_allocator(kind, "none");
    block = alloc_from_peer(allocator, BLOCK * MIB);
    must_hold_true(weir_set_access(allocator, 1, WEIR_ACCESS_READ_WRITE) == WEIR_OK,
                   "access can be given");
    result(fill_from_second(block, BLOCK * MIB, 5) == CUDA_SUCCESS &&
               all_are(block, BLOCK * MIB, 5),
           name, "it has access once that was given");
    later = alloc_from_peer(allocator, 5 * BLOCK * MIB);
    result(fill_from_second(later, 5 * BLOCK * MIB, 6) == CUDA_SUCCESS &&
               all_are(later, 5 * BLOCK * MIB, 6),
           name, "also to what the reserve grew by later");
    result(weir_set_access(allocator, 1, WEIR_ACCESS_NONE) == WEIR_OK &&
               driver->cuMemsetD8Async(block, 7, BLOCK * MIB, stream[0]) == CUDA_SUCCESS &&
               all_are(block, BLOCK * MIB, 7),
           name, "access can be taken, and the first device keeps its own");
    free_to_peer(allocator, block);
    free_to_peer(allocator, later);
    result(weir_allocator_destroy(allocator) == WEIR_OK, name, "all goes back");
    allocator = make_peer_allocator(kind, "all");
    block = alloc_from_peer(allocator, BLOCK * MIB);
    result(fill_from_second(block, BLOCK * MIB, 8) == CUDA_SUCCESS &&
               all_are(block, BLOCK * MIB, 8),
           name, "with peers all it has access from the beginning");
    free_to_peer(allocator, block);
    must_hold_true(weir_allocator_destroy(allocator) == WEIR_OK, "all goes back");
}

/* ---- speed ------------------------------------------------------------------------------------------- */

/* Returns the speed in GB/s of copies from device `from_device' to the other one, in the best of ROUNDS rounds. */
static double speed(CUdeviceptr to, CUdeviceptr from, int from_device) {
    double best = 0;

    enter_device_of(from_device);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t began = driver->ticks(), ns;

        for (int i = 0; i < COPIES; i++)
            must_hold_true(copy_peer(to, context[!from_device], from, context[from_device],
                                     SPEED_BLOCK * MIB, stream[from_device]) == CUDA_SUCCESS,
                           "bytes can be copied between the devices");
        must_hold_true(driver->cuStreamSynchronize(stream[from_device]) == CUDA_SUCCESS,
                       "they arrive");
        ns = driver->ticks() - began;
        if ((double)COPIES * SPEED_BLOCK * (double)MIB / (double)ns > best)
            best = (double)COPIES * SPEED_BLOCK * (double)MIB / (double)ns;
    }
    enter_device_of(0);
    return best;
}

static void check_speed(int kind) {
    const char *name = kinds[kind].name;
    weir_allocator *allocator = make_peer_allocator(kind, "all");
    CUdeviceptr block = alloc_from_peer(allocator, SPEED_BLOCK * MIB), near = 0, far = 0;
    double plain_out, plain_in, out, in;

    enter_device_of(1);
    must_hold_true(driver->cuMemAlloc(&far, SPEED_BLOCK * MIB) == CUDA_SUCCESS,
                   "plain memory there");
    (void)enable_peer(context[0], 0); /* fails if access is on already */
    enter_device_of(0);
    must_hold_true(driver->cuMemAlloc(&near, SPEED_BLOCK * MIB) == CUDA_SUCCESS,
                   "plain memory here");
    (void)enable_peer(context[1], 0);
    plain_out = speed(far, near, 0);
    out = speed(far, block, 0);
    plain_in = speed(near, far, 1);
    in = speed(block, far, 1);
    printf("# %s: out %.1f GB/s, cuMemAlloc %.1f (%.3f); in %.1f, cuMemAlloc %.1f (%.3f)\n", name,
           out, plain_out, out / plain_out, in, plain_in, in / plain_in);
    result(out >= LEAST_RATIO * plain_out, name, "copies to the other device are as fast");
    result(in >= LEAST_RATIO * plain_in, name, "copies from it are as fast");
    must_hold_true(driver->cuMemFree(near) == CUDA_SUCCESS &&
                       driver->cuMemFree(far) == CUDA_SUCCESS,
                   "they go");
    free_to_peer(allocator, block);
    must_hold_true(weir_allocator_destroy(allocator) == WEIR_OK, "all goes back");
    printf("# %s: cuMemcpyPeerAsync between blocks to which neither has access: %u\n", name,
           ask_new_process("copy", kind));
}

int main(int argc, char **argv) {
    const char *question = getenv("WEIR_TEST_ASK"), *kind = getenv("WEIR_TEST_KIND");
    int on_model;

    if (argc == 3 && strcmp(argv[1], "--device") == 0)
        device_name = argv[2];
    if (question)
        return answer_in_process(question, kind ? atoi(kind) : 0);
    on_model = strcmp(device_name, "model") == 0;
    if (!open_peer_devices()) {
        printf("1..0 # SKIP no two devices that are peers\n");
        return 77;
    }
    for (int i = 0; i < KINDS; i++)
        check_peer_access(i);
    for (int i = 0; i < KINDS && !on_model; i++)
        if (find_copies())
            check_speed(i);
        else
            result(0, kinds[i].name, "the driver's copies are found");
    printf("1..%d\n", number);
    return failures > 0;
}
