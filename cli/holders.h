/* SPDX-License-Identifier: MIT */
/* holders.h: finds the processes that hold memory of each device, with their process groups.  The processes under
 * weir report their memory in registries (lib/ipc/registry.h).  A single figure sums up the memory of all other
 * processes.
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
    /* The process group to which the process belongs on this device, or "" if it belongs to none. */
    char group[WEIR_GROUP_NAME + 1];
};

struct holders_device {
    char name[WEIR_REGISTRY_DEVICE];
    /* The device memory in bytes, the used part, and the part of it that is not weir's; unknown if `total' is 0. */
    uint64_t total, used, used_by_others;
    size_t count;
    struct holders_process *processes;
    uint64_t requested_ns; /* a process that has not reported since this time does not answer */
};

/* All devices with their processes.  A zeroed struct has no devices. */
struct holders {
    struct holders_device *devices;
    size_t count;
    /* The time of the last request to report, which processes may still answer. */
    uint64_t requested_ns;
    /* The time of an earlier request to report, which all processes have had time to answer. */
    uint64_t since_ns;
};

/* Asks all processes to report their memory, and replaces the figures in `h'.  If `wait_ns' is 0, does not wait: the
 * figures are those of earlier reports, and the next call reads the new ones.  Otherwise waits `wait_ns' for the
 * reports, and up to 0.3 seconds in all if reports are missing. */
void holders_query(struct holders *h, uint64_t wait_ns);
/* Returns 1 if a process has reported how much memory of the device is used, 0 if not. */
int holders_has_usage(const struct holders *h, const char *device);
/* Stores how much memory of a device is used, as the driver says.  Used if no process has reported this figure.  If
 * there is no host memory, the device is left out. */
void holders_set_usage(struct holders *h, const char *device, uint64_t total, uint64_t used);
/* Prints a table of processes for each device.  For a device without processes, prints only its memory, if this is
 * known. */
void holders_print(FILE *file, const struct holders *h);
/* Returns the devices and their processes as a JSON array.  Returns NULL if there is no host memory. */
json_t *holders_json(const struct holders *h);

#endif
