/* SPDX-License-Identifier: MIT */
/* holders.h: the processes that have memory of each device, from the registries (lib/ipc/registry.h), with their
 * groups.  One figure has the memory of all processes without weir.
 *
 * This file must not know drivers or the commands that show the processes.
 */
#ifndef WEIR_CLI_HOLDERS_H
#define WEIR_CLI_HOLDERS_H

#include <jansson.h>
#include <stdio.h>

#include "ipc/group.h"
#include "ipc/registry.h"

struct holders_process {
    struct weir_registry_entry entry;
    int is_stopped;
    /* The group of the process on the device, or "" if the process has no group. */
    char group[WEIR_GROUP_NAME + 1];
};

struct holders_device {
    char name[WEIR_REGISTRY_DEVICE];
    uint64_t total, used, rest; /* in bytes; if `total' is 0, all three are unknown */
    size_t count;
    struct holders_process *processes;
    uint64_t asked_ns; /* a process without a report since this time does not answer */
};

/* All devices.  A zeroed struct has no device. */
struct holders {
    struct holders_device *devices;
    size_t count;
    uint64_t asked_ns; /* the time of the last question, which processes may still answer */
    uint64_t since_ns; /* the time of an earlier question, which each process had time to answer */
};

/* Asks all processes for their figures, and waits `wait_ns', and up to a third of a second more for processes that have
 * not answered.  Replaces the figures in `h'.  If `wait_ns' is 0, the next call reads the answers. */
void holders_look(struct holders *h, uint64_t wait_ns);
/* Returns 1 if a process has reported how much of the device is used, 0 if not. */
int holders_know(const struct holders *h, const char *device);
/* Adds the driver's figures of a device of which no process has reported.  Leaves the device out if there is no
 * host memory. */
void holders_note(struct holders *h, const char *device, uint64_t total, uint64_t used);
/* Prints a table for each device, or a line if the device has no processes and its memory is known. */
void holders_print(FILE *file, const struct holders *h);
/* Returns an array, or NULL if there is no host memory. */
json_t *holders_json(const struct holders *h);

#endif
