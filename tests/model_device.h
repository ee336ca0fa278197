/* SPDX-License-Identifier: MIT */
/* model_device.h: a device model of its own for each test, with three streams.
 *
 * For one file of a suite: what it opens is that file's own.
 */
#ifndef WEIR_TEST_MODEL_DEVICE_H
#define WEIR_TEST_MODEL_DEVICE_H

#include "support.h"

#include "driver.h"
#include "model/model.h"

#define MS UINT64_C(1000000)

static const struct weir_driver *driver;
static CUcontext primary; /* current from start_model on */
static CUstream A, B, C;  /* non-blocking, until use_blocking_streams */

static inline void start_model(uint64_t capacity) {
    struct weir_driver_failure failure;

    driver = weir__driver_open("model", &failure);
    ck_assert_msg(driver != NULL, "%s", failure.text);
    MUST_EQ(weir__model_reset(&(struct weir_model_setup){.capacity = capacity}), 0);
    CU(driver->cuDevicePrimaryCtxRetain(&primary, 0));
    CU(driver->cuCtxPushCurrent(primary));
    CU(driver->cuStreamCreate(&A, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamCreate(&B, CU_STREAM_NON_BLOCKING));
    CU(driver->cuStreamCreate(&C, CU_STREAM_NON_BLOCKING));
}

/* A, B and C are blocking ones from here on: events are recorded on them whether or not they are idle. */
static inline void use_blocking_streams(void) {
    CUstream *stream[] = {&A, &B, &C};

    for (int i = 0; i < 3; i++) {
        CU(driver->cuStreamDestroy(*stream[i]));
        CU(driver->cuStreamCreate(stream[i], CU_STREAM_DEFAULT));
    }
}

#ifdef __SANITIZE_ADDRESS__
/* Looked up by the sanitizer's runtime (lsan_interface.h).  What fork leaves of a process with threads is not searched
 * for leaks: the runtime of gcc 12 knows nothing of forks, and would wait for a lock that another thread held. */
int __lsan_is_turned_off(void); /* NOLINT: the runtime's name */
__attribute__((weak, visibility("default"))) int __lsan_is_turned_off(void) {
    return weir__driver_forked();
}
#endif

/* Gives the stream so much work. */
static inline void busy(CUstream stream, uint64_t ns) {
    CU(weir__model_kernel(stream, ns));
}

static inline uint64_t id_of(CUstream stream) {
    unsigned long long id = 0;

    CU(driver->cuStreamGetId(stream, &id));
    return id;
}

/* From now on, until the model's faults are cleared, the device cannot be waited for by weir: that takes a block, or
 * memory of the host. */
static inline void refuse_waits(void) {
    weir__model_fail(WEIR_ENTRY_cuMemAlloc, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    weir__model_fail(WEIR_ENTRY_cuMemAllocHost, 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
}

/* Bytes, once all work is done. */
static inline size_t device_free(void) {
    size_t free_bytes, total;

    CU(driver->cuCtxSynchronize());
    CU(driver->cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

/* The model's own accounts agree. */
static inline void check_model(void) {
    const char *wrong = weir__model_pool_check();

    ck_assert_msg(wrong == NULL, "%s", wrong);
}

#endif
