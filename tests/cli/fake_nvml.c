/* SPDX-License-Identifier: MIT */
/* fake_nvml.c: NVIDIA's management library with two devices, both of which the process WEIR_TEST_NVML uses, 1 GiB each. */
#include <stdio.h>
#include <stdlib.h>

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned instance, part;
};

struct memory {
    unsigned long long total, free, used;
};

#pragma GCC visibility push(default)
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *all);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
#pragma GCC visibility pop

static int devices[2];

int nvmlInit_v2(void) {
    return 0;
}

int nvmlShutdown(void) {
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = &devices[index];
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *all) {
    const char *pid = getenv("WEIR_TEST_NVML");

    (void)device;
    if (*count < 2)
        return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    *count = 2;
    all[0] = (struct process){.pid = 1, .used = 5};
    all[1] =
        (struct process){.pid = pid ? (unsigned)strtoul(pid, NULL, 10) : 0, .used = 1ULL << 30};
    return 0;
}

/* WEIR_TEST_NVML_FREE: bytes of the one and of the other. */
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    const char *text = getenv("WEIR_TEST_NVML_FREE");
    unsigned long long free[2] = {0, 0};

    if (text)
        (void)sscanf(text, "%llu %llu", &free[0], &free[1]);
    *memory = (struct memory){.free = free[device == &devices[1]]};
    return 0;
}
