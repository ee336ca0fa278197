/* SPDX-License-Identifier: MIT */
/* nvml.h: how much device memory a process has, and how much is free, as NVIDIA's management library says.
 *
 * Must not know: why.
 */
#ifndef WEIR_CLI_PARKING_NVML_H
#define WEIR_CLI_PARKING_NVML_H

#include <stdint.h>
#include <sys/types.h>

#define NVML_UNKNOWN UINT64_MAX

enum { NVML_DEVICES = 16 };

/* For each device, in NVML's order; NVML_UNKNOWN: not known. */
struct nvml_bytes {
    uint64_t of[NVML_DEVICES];
};

/* What the process has, contexts too: not known where there is no such library, or it does not know the process, as in some
 * containers. */
struct nvml_bytes nvml_used(pid_t pid);
struct nvml_bytes nvml_free(void);
/* Of what is known, or NVML_UNKNOWN where nothing is. */
uint64_t nvml_sum(const struct nvml_bytes *bytes);

#endif
