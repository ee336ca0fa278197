/* SPDX-License-Identifier: MIT */
/* record.h: what is kept of a process that is parked: a small file for each, which other commands read.
 *
 * The file is FOLDER/weir-UID-parked-NAMESPACE-PID-START, where FOLDER is as runfile.h says.  It is there before the
 * process is locked, so a process that a killed command left locked or stopped is found by it.
 *
 * Must not know: how a process is parked.
 */
#ifndef WEIR_CLI_PARKING_RECORD_H
#define WEIR_CLI_PARKING_RECORD_H

#include <stdint.h>
#include <sys/types.h>

#include "cli/parking/nvml.h"

struct record {
    pid_t pid;
    uint64_t start; /* when it began (who.h) */
    pid_t thread;   /* which restores it */
    uint64_t bytes; /* that are in host memory, or are about to be; 0: not known */
    struct nvml_bytes had; /* of each device */
    int is_gated;   /* it is not stopped, but waits at its gate (ipc/gate_page.h) */
};

/* 0; -1 and errno. */
int record_write(const struct record *record);
/* 1: there is one of the process that lives with that pid. */
int record_find(pid_t pid, struct record *out);
void record_remove(const struct record *record);
/* Visits those of processes that live, and removes those of the others. */
void record_each(void (*visit)(const struct record *record, void *context), void *context);

#endif
