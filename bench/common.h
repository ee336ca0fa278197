/* SPDX-License-Identifier: MIT */
/* common.h: functions that all programs in bench/ use.  A driver call that fails ends the program, with a message that
 * names the call. */
#ifndef WEIR_BENCH_COMMON_H
#define WEIR_BENCH_COMMON_H

#include <stddef.h>

#include "driver/driver.h"

/* The driver table, the device, and its name, such as "cuda:0 NVIDIA H200".  Set by bench_open(). */
extern const struct weir_driver *bench_driver;
extern CUdevice bench_device;
extern char bench_device_name[192];

/* Prints "PROGRAM: WHAT: WHY", and ends the program with exit code 1. */
_Noreturn void bench_fail(const char *what, const char *why);

/* Opens the device "cuda", "cuda:N", "model" or "model:N", and makes its primary context current in this thread. */
void bench_open(const char *device);

/* Sorts the values and returns their median, or 0 if `count' is 0. */
double bench_median(double *values, size_t count);

static inline void bench_check(const char *entry, CUresult result) {
    if (result != CUDA_SUCCESS)
        bench_fail(entry, weir__driver_error_name(bench_driver, result));
}

/* Calls a driver function, and ends the program if the function does not return CUDA_SUCCESS. */
#define BENCH_CALL(entry, ...) bench_check(#entry, bench_driver->entry(__VA_ARGS__))

#endif
