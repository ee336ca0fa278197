/* SPDX-License-Identifier: MIT */
/* holders.h: which processes have what of each device: weir's from the registries (lib/ipc/registry.h) with their groups, the
 * rest as one figure.
 *
 * Must not know: drivers; who shows it.
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
    char group[WEIR_GROUP_NAME + 1]; /* that it is a member of on the device; "": none */
};

struct holders_device {
    char name[WEIR_REGISTRY_DEVICE];
    uint64_t total, used, rest; /* bytes; total 0: nobody has said yet, and none of them is known */
    size_t count;
    struct holders_process *processes;
    uint64_t asked_ns; /* who has not been heard of since does not answer */
};

/* Zeroed: none. */
struct holders {
    struct holders_device *devices;
    size_t count;
    uint64_t asked_ns; /* and not yet long enough ago to tell who does not answer */
    uint64_t since_ns; /* an earlier time, of which that can be told */
};

/* Asks all to say what they have, gives them so long, and those that have not answered then a third of a second, and
 * reads it, in the place of what was there.  With 0, what they say to this is read the next time. */
void holders_look(struct holders *h, uint64_t wait_ns);
/* 1: a process has said what of the device is used. */
int holders_know(const struct holders *h, const char *device);
/* What the driver says of a device that they do not know.  No memory for it: it is left out. */
void holders_note(struct holders *h, const char *device, uint64_t total, uint64_t used);
/* Tables; of a device without processes a line, if something is known of it. */
void holders_print(FILE *file, const struct holders *h);
/* An array; NULL: no memory. */
json_t *holders_json(const struct holders *h);

#endif
