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

/* Bytes of all devices together, contexts too.  NVML_UNKNOWN: there is no such library, or it does not know the process,
 * as in some containers. */
uint64_t nvml_used(pid_t pid);
/* Bytes that are free of all devices together, or NVML_UNKNOWN. */
uint64_t nvml_free(void);

#endif
