/* SPDX-License-Identifier: MIT */
/* common.h: functions that all programs of bench/ use: an end with an error message, the device, the median.
 *
 * A measurement that fails is of no use, so a failing driver call ends the process, with a message that names the call.
 */
#ifndef WEIR_BENCH_COMMON_H
#define WEIR_BENCH_COMMON_H

#include <stddef.h>

#include "driver/driver.h"

/* The driver table, the device and its name ("cuda:0 NVIDIA H200"), which bench_open() sets. */
extern const struct weir_driver *bench_driver;
extern CUdevice bench_device;
extern char bench_device_name[192];

/* Prints "PROGRAM: WHAT: WHY", and ends the process with exit code 1. */
_Noreturn void bench_fail(const char *what, const char *why);

/* Opens "cuda", "cuda:N", "model" or "model:N", and makes the device's primary context current on this thread. */
void bench_open(const char *device);

/* Sorts the values, and returns their median.  Returns 0 if `count` is 0. */
double bench_median(double *values, size_t count);

static inline void bench_check(const char *entry, CUresult result) {
    if (result != CUDA_SUCCESS)
        bench_fail(entry, weir__driver_error_name(bench_driver, result));
}

/* Calls the driver, and ends the process if the driver does not answer CUDA_SUCCESS. */
#define BENCH_CALL(entry, ...) bench_check(#entry, bench_driver->entry(__VA_ARGS__))

#endif
