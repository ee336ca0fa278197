/* SPDX-License-Identifier: MIT */
/* conformance.h: helpers of all parts of the conformance suite: the driver and a device, the driver's answers, and a
 * hog that takes all memory.  Each file that includes it has its own driver. */
#ifndef WEIR_TEST_CONFORMANCE_H
#define WEIR_TEST_CONFORMANCE_H

#include "driver/driver.h"
#include "driver/model/model.h"
#include "tests/fixtures/support.h"

static int on_cuda;
static const char *device_name = "model";
static const struct weir_driver *driver;

#include "tests/fixtures/streams.h"

/* Opens the driver that WEIR_TEST_DEVICE names: that of a GPU, or the device model with this set-up. */
static inline void open_tested_driver(struct weir_model_setup setup) {
    const char *wanted = getenv("WEIR_TEST_DEVICE");
    struct weir_driver_failure failure;

    on_cuda = wanted && strcmp(wanted, "cuda") == 0;
    device_name = on_cuda ? "cuda" : "model";
    driver = weir__driver_open(device_name, &failure);
    if (!driver) /* ck_assert would need a test around it, which a child process does not have */
        ck_abort_msg("%s", failure.text);
    if (!on_cuda)
        ANSWERS(0, weir__model_reset(&setup));
}

/* Makes the primary context of the device current, and returns it. */
static inline CUcontext enter_device(CUdevice device) {
    CUcontext context;

    CU(driver->cuDevicePrimaryCtxRetain(&context, device));
    CU(driver->cuCtxPushCurrent(context));
    return context;
}

static inline void leave_device(CUdevice device) {
    CUcontext popped;

    CU(driver->cuCtxPopCurrent(&popped));
    CU(driver->cuDevicePrimaryCtxRelease(device));
}

static inline void drop_stream(CUstream stream) {
    CU(driver->cuStreamSynchronize(stream));
    CU(driver->cuStreamDestroy(stream));
}

/* Prints the driver's answer to a question.  On the model, checks that the answer is `wanted'. */
static inline void print_answer(const char *what, uint64_t is, uint64_t wanted) {
    printf("# driver: %s: %llu%s\n", what, (unsigned long long)is,
           is == wanted ? "" : " (the model: otherwise)");
    if (!on_cuda)
        ck_assert_msg(is == wanted, "%s: %llu", what, (unsigned long long)is);
}
#define answer(what, is, wanted) print_answer(what, (uint64_t)(is), (uint64_t)(wanted))

/* Blocks of cuMemAlloc that fill the device. */
struct hog {
    CUdeviceptr block[64];
    int count;
};

static inline void hog_ends(struct hog *hog) {
    while (hog->count > 0)
        (void)driver->cuMemFree(hog->block[--hog->count]);
}

/* Allocates the device's free memory in multiples of 32 MiB, until `leaves' bytes, or up to 32 MiB more, are left. */
static inline void hog_takes(struct hog *hog, size_t leaves) {
    size_t unit = (size_t)32 << 20, most = SIZE_MAX, bytes, free_bytes = 0, total;

    while (hog->count < 64 && most >= unit &&
           driver->cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS &&
           free_bytes >= leaves + unit) {
        bytes = (free_bytes - leaves) / unit * unit;
        bytes = bytes < most ? bytes : most;
        if (driver->cuMemAlloc(&hog->block[hog->count], bytes) == CUDA_SUCCESS)
            hog->count++;
        else
            most = bytes / 2 / unit * unit;
    }
}

/* Checks shared memory of the suite in another process (WEIR_TEST_TEXT is set).  Returns the exit status. */
int open_text(const char *told);
/* Asks a question in a separate process (WEIR_TEST_ASK is set), since a driver may crash.  Returns the exit status. */
int answer_alone(const char *question);

#endif
