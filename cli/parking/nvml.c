/* SPDX-License-Identifier: MIT */
/* nvml.c: see nvml.h.  Functions and structures are those of nvml.h of driver 510 and later. */
#include "cli/parking/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>

struct nvml_process {
    unsigned pid;
    unsigned long long used; /* all bits set: not known */
    unsigned instance, part;
};

struct nvml_memory {
    unsigned long long total, free, used;
};

/* Keepers are threads. */
static _Thread_local struct nvml {
    int (*init)(void);
    int (*end)(void);
    int (*count)(unsigned *count);
    int (*device)(unsigned index, void **device);
    int (*processes)(void *device, unsigned *count, struct nvml_process *processes);
    int (*memory)(void *device, struct nvml_memory *memory);
} nvml;

static int find(void *library, const char *name, void *function) {
    *(void **)function = dlsym(library, name);
    return *(void **)function != NULL;
}

static uint64_t used_of_device(void *device, pid_t pid) {
    enum { ROOM = 1024 };
    struct nvml_process *all = calloc(ROOM, sizeof *all);
    unsigned count = ROOM;
    uint64_t used = NVML_UNKNOWN;

    if (all && nvml.processes(device, &count, all) == 0)
        for (unsigned i = 0; i < count && i < ROOM; i++)
            if (all[i].pid == (unsigned)pid && all[i].used != NVML_UNKNOWN)
                used = all[i].used;
    free(all);
    return used;
}

static uint64_t free_of_device(void *device, pid_t none) {
    struct nvml_memory memory;

    (void)none;
    return nvml.memory(device, &memory) == 0 ? memory.free : NVML_UNKNOWN;
}

static void ask_devices(uint64_t (*of)(void *device, pid_t pid), pid_t pid,
                        struct nvml_bytes *answer) {
    unsigned count = 0;
    void *device;

    if (nvml.count(&count) != 0)
        return;
    for (unsigned i = 0; i < count && i < NVML_DEVICES; i++)
        if (nvml.device(i, &device) == 0)
            answer->of[i] = of(device, pid);
}

static struct nvml_bytes ask(uint64_t (*of)(void *device, pid_t pid), pid_t pid) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    struct nvml_bytes answer;

    for (int i = 0; i < NVML_DEVICES; i++)
        answer.of[i] = NVML_UNKNOWN;
    if (!library)
        return answer;
    if (find(library, "nvmlInit_v2", &nvml.init) && find(library, "nvmlShutdown", &nvml.end) &&
        find(library, "nvmlDeviceGetCount_v2", &nvml.count) &&
        find(library, "nvmlDeviceGetHandleByIndex_v2", &nvml.device) &&
        find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes) &&
        find(library, "nvmlDeviceGetMemoryInfo", &nvml.memory) && nvml.init() == 0) {
        ask_devices(of, pid, &answer);
        (void)nvml.end();
    }
    (void)dlclose(library);
    return answer;
}

struct nvml_bytes nvml_used(pid_t pid) {
    return ask(used_of_device, pid);
}

struct nvml_bytes nvml_free(void) {
    return ask(free_of_device, 0);
}

uint64_t nvml_sum(const struct nvml_bytes *bytes) {
    uint64_t sum = NVML_UNKNOWN;

    for (int i = 0; i < NVML_DEVICES; i++)
        if (bytes->of[i] != NVML_UNKNOWN)
            sum = (sum == NVML_UNKNOWN ? 0 : sum) + bytes->of[i];
    return sum;
}
