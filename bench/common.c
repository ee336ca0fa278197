/* SPDX-License-Identifier: MIT */
/* common.c: see common.h. */
#include "bench/common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct weir_driver *bench_driver;
CUdevice bench_device;
char bench_device_name[192];

void bench_fail(const char *what, const char *why) {
    fflush(stdout);
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, why);
    exit(1);
}

void bench_open(const char *device) {
    struct weir_driver_failure failure;
    char kind[8] = "", name[128];
    int ordinal = 0, length = 0;
    CUcontext context;

    if (sscanf(device, "%7[a-z]%n:%d%n", kind, &length, &ordinal, &length) < 1 || device[length] ||
        ordinal < 0 || (strcmp(kind, "cuda") != 0 && strcmp(kind, "model") != 0))
        bench_fail(device, "expected a device: cuda, cuda:N, model or model:N");
    bench_driver = weir__driver_open(kind, &failure);
    if (!bench_driver)
        bench_fail(device, failure.text);
    BENCH_CALL(cuDeviceGet, &bench_device, ordinal);
    BENCH_CALL(cuDevicePrimaryCtxRetain, &context, bench_device);
    BENCH_CALL(cuCtxPushCurrent, context);
    BENCH_CALL(cuDeviceGetName, name, sizeof name, bench_device);
    snprintf(bench_device_name, sizeof bench_device_name, "%s:%d %s", kind, ordinal, name);
}

static int bench_compare_values(const void *one, const void *other) {
    const double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

double bench_median(double *values, size_t count) {
    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, bench_compare_values);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}
