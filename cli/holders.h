/* SPDX-License-Identifier: MIT */
/* holders.h: finds the processes that hold memory of each device, with their process groups.  The processes under
 * weir report their memory in registries (lib/ipc/registry.h).  A single figure sums up the memory of all other
 * processes.
 *
 * This file must not call the driver.
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
    /* The name of the process group on this device, or "" if the process belongs to none. */
    char group[WEIR_GROUP_NAME + 1];
};

struct holders_device {
    char name[WEIR_REGISTRY_DEVICE];
    /* The memory of the device, in bytes.  If `total' is 0, all three figures are unknown. */
    uint64_t total, used, used_by_others;
    size_t count;
    struct holders_process *processes;
    uint64_t requested_ns; /* processes without a report since this time are shown as silent */
};

/* All devices with their processes.  Zeroed before the first call of holders_query(). */
struct holders {
    struct holders_device *devices;
    size_t count;
    uint64_t requested_ns; /* the time of the last request that all processes report their memory */
    /* The time of an earlier request for reports.  A process that has not reported since then is shown as silent. */
    uint64_t since_ns;
};

/* Asks all processes under weir to report their memory, waits `wait_ns', and reads the reports into `h'.  If reports
 * are missing, waits up to 0.3 seconds in all.  If `wait_ns' is 0, does not wait, and reads earlier reports. */
void holders_query(struct holders *h, uint64_t wait_ns);
/* Returns 1 if the used memory of the device is known from a report, 0 if not. */
int holders_has_usage(const struct holders *h, const char *device);
/* Stores the used memory of a device that has no report, as read from the driver.  Does nothing if there is no host
 * memory. */
void holders_set_usage(struct holders *h, const char *device, uint64_t total, uint64_t used);
/* Prints the memory of each device, and a table of its processes. */
void holders_print(FILE *file, const struct holders *h);
/* Returns the devices and their processes as a JSON array.  Returns NULL if there is no host memory. */
json_t *holders_json(const struct holders *h);

#endif
