/* SPDX-License-Identifier: MIT */
/* gate_driver.c: a libcuda.so.1 whose functions check what they are called with: cuMemFree_v2 and cuGetProcAddress_v2,
 * by which the gate knows a driver; names of gate_names.h with other parameters than NVIDIA's; and one that no gate
 * knows.  Each answers a sum of its arguments. */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuMemFree_v2(uint64_t block);
int cuMemFree_v2(uint64_t block) {
    return (int)block;
}

/* More than there are registers, of both kinds. */
EXPORT int cuLaunchKernel(int a, int b, int c, int d, int e, int f, int g, int h, int i, double p,
                          double q, double r, double s, double t, double u, double v, double w,
                          double x, int j, int k);
int cuLaunchKernel(int a, int b, int c, int d, int e, int f, int g, int h, int i, double p,
                   double q, double r, double s, double t, double u, double v, double w, double x,
                   int j, int k) {
    int integers = a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i;

    return integers + 10 * j + 11 * k +
           (int)(p + 2 * q + 3 * r + 4 * s + 5 * t + 6 * u + 7 * v + 8 * w + 9 * x);
}

/* Calls back. */
EXPORT int cuLaunchHostFunc(int (*function)(void *), void *context);
int cuLaunchHostFunc(int (*function)(void *), void *context) {
    return function(context) + 1;
}

EXPORT int cuIpcGetMemHandle(void);
int cuIpcGetMemHandle(void) {
    return 5;
}

EXPORT int cuGateNobodyKnows(void);
int cuGateNobodyKnows(void) {
    return 6;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
                               unsigned *status);
int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags,
                        unsigned *status) {
    (void)version;
    (void)flags;
    if (status)
        *status = 0;
    *address = NULL;
    if (strcmp(name, "cuLaunchKernel") == 0)
        *address = __extension__(void *) cuLaunchKernel;
    return 0;
}
