/* SPDX-License-Identifier: MIT */
/* room.c: see room.h.
 *
 * A group of version 2 has its files in GROUPS/PATH, one of version 1 in GROUPS/memory/PATH; each folder above limits
 * it, too.  Memory of files counts as free, since the kernel takes it first.
 */
#include "cli/parking/room.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/parking/nvml.h"
#include "base/who.h"
#include "base/size.h"
#include "base/text.h"
#include "ipc/registry.h"

enum { PATH = 1024 };

/* ---- The host ---- */

/* The number behind a word at the start of a line; UINT64_MAX: there is none. */
static uint64_t read_row(const char *path, const char *word) {
    uint64_t value = UINT64_MAX;
    char line[256];
    FILE *file = fopen(path, "re");

    while (file && value == UINT64_MAX && fgets(line, sizeof line, file))
        if (strncmp(line, word, strlen(word)) == 0 &&
            sscanf(line + strlen(word), "%" SCNu64, &value) != 1)
            value = UINT64_MAX;
    if (file)
        fclose(file);
    return value;
}

struct version {
    const char *below, *limit, *usage, *files[2];
};

static const struct version versions[] = {
    {"", "memory.max", "memory.current", {"inactive_file ", "active_file "}},
    {"/memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}},
};

/* UINT64_MAX: the group has no limit. */
static uint64_t left_of_group(const char *folder, const struct version *version) {
    char path[PATH + 32];
    uint64_t limit, used, files = 0;

    snprintf(path, sizeof path, "%s/%s", folder, version->limit);
    limit = read_row(path, "");
    snprintf(path, sizeof path, "%s/%s", folder, version->usage);
    used = read_row(path, "");
    if (limit == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = read_row(path, version->files[i]);

        files += bytes == UINT64_MAX ? 0 : bytes;
    }
    return weir__size_less(limit, weir__size_less(used, files));
}

static uint64_t left_of_groups(const char *groups, const char *name,
                               const struct version *version) {
    uint64_t least = UINT64_MAX, left;
    char folder[PATH];
    size_t root = (size_t)snprintf(folder, sizeof folder, "%s%s", groups, version->below);

    if (root >= sizeof folder ||
        (size_t)snprintf(folder + root, sizeof folder - root, "%s", name) >= sizeof folder - root)
        return UINT64_MAX;
    for (;;) {
        left = left_of_group(folder, version);
        least = left < least ? left : least;
        if (strlen(folder) <= root)
            return least;
        *strrchr(folder, '/') = '\0';
    }
}

/* "0::/path" is version 2, "9:memory:/path" version 1. */
static uint64_t left_of_line(const char *groups, char *line) {
    char *kind = strchr(line, ':'), *name = kind ? strchr(kind + 1, ':') : NULL;

    if (!name)
        return UINT64_MAX;
    *name++ = '\0';
    name[strcspn(name, "\n")] = '\0';
    if (kind[1] == '\0')
        return left_of_groups(groups, name, &versions[0]);
    return strcmp(kind + 1, "memory") == 0 ? left_of_groups(groups, name, &versions[1])
                                           : UINT64_MAX;
}

uint64_t room_of_host(const char *proc, const char *groups, pid_t pid) {
    char path[PATH], line[PATH];
    uint64_t room, left;
    FILE *file;

    snprintf(path, sizeof path, "%s/meminfo", proc);
    room = read_row(path, "MemAvailable:");
    if (room != UINT64_MAX)
        room <<= 10;
    snprintf(path, sizeof path, "%s/%ld/cgroup", proc, (long)pid);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        left = left_of_line(groups, line);
        room = left < room ? left : room;
    }
    if (file)
        fclose(file);
    return room;
}

/* ---- Devices ---- */

uint64_t room_of_devices(const struct weir_driver *driver) {
    uint64_t sum = 0;
    int count = 0;

    (void)driver->cuDeviceGetCount(&count);
    for (int i = 0; i < count; i++) {
        size_t bytes = 0;

        if (driver->cuDeviceTotalMem(&bytes, i) == CUDA_SUCCESS)
            sum += bytes;
    }
    return sum;
}

/* Of the processes under weir that run, but that one: a parked one has no device memory. */
static uint64_t reserved_by_others(const struct weir_driver *driver, CUdevice device, pid_t but) {
    struct weir_registry_entry entry;
    char name[WEIR_UUID_BYTES];
    struct weir_registry registry;
    uint64_t sum = 0;

    if (weir__driver_uuid(driver, device, name) != CUDA_SUCCESS ||
        weir__registry_look(&registry, name) != 0)
        return 0;
    for (int slot = 0; slot < WEIR_REGISTRY_SLOTS; slot++)
        if (weir__registry_read(&registry, slot, &entry) && entry.pid != (uint64_t)but &&
            !weir__process_is_stopped((pid_t)entry.pid))
            sum += entry.reserve;
    weir__registry_close(&registry);
    return sum;
}

/* A device that is too full for a context is full. */
static uint64_t left_of(const struct weir_driver *driver, CUdevice device) {
    struct weir_driver_scope scope;
    size_t left = 0, whole;
    CUcontext context;

    if (driver->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
        return 0;
    if (weir__driver_enter(driver, context, &scope) == CUDA_SUCCESS) {
        if (driver->cuMemGetInfo(&left, &whole) != CUDA_SUCCESS)
            left = 0;
        weir__driver_leave(driver, &scope);
    }
    (void)driver->cuDevicePrimaryCtxRelease(device);
    return left;
}

uint64_t room_left(const struct weir_driver *driver) {
    uint64_t sum = 0;
    int count = 0;

    (void)driver->cuDeviceGetCount(&count);
    for (int i = 0; i < count; i++)
        sum += left_of(driver, i);
    return sum;
}

uint64_t room_used(const struct weir_driver *driver, pid_t but) {
    uint64_t sum = 0;
    int count = 0;

    (void)driver->cuDeviceGetCount(&count);
    for (int i = 0; i < count; i++) {
        size_t total = 0;

        (void)driver->cuDeviceTotalMem(&total, i);
        sum += weir__size_less(weir__size_less(total, left_of(driver, i)),
                               reserved_by_others(driver, i, but));
    }
    return sum;
}

/* Contexts are made only where it matters. */
int room_for(const struct weir_driver *driver, pid_t pid, uint64_t most, char why[ROOM_WHY]) {
    uint64_t room = room_of_host("/proc", "/sys/fs/cgroup", pid);
    char left[32], needed[32];
    int is_said = most > 0;

    if (!most && room < (most = room_of_devices(driver))) {
        struct nvml_bytes used = nvml_used(pid);

        most = nvml_sum(&used);
        if (most == NVML_UNKNOWN)
            most = room_used(driver, pid);
    }
    if (room >= most)
        return 1;
    weir__bytes_show(room, left, sizeof left);
    weir__bytes_show(most, needed, sizeof needed);
    snprintf(why, ROOM_WHY, "host memory has room for %s, and it may have %s of device memory%s",
             left, needed,
             is_said ? ""
                     : "; `weir park --memory SIZE' says how much it has (nvidia-smi shows it)");
    return 0;
}
