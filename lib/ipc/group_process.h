/* SPDX-License-Identifier: MIT */
/* group_process.h: the group of this process on each of its devices.  The environment variable WEIR_GROUP names the
 * group.
 *
 * A process has at most one group.  It joins the group on a device before it creates a context on the device, and is a
 * member until it ends.
 *
 * This file must not depend on allocators, or on which code allocates memory.
 */
#ifndef WEIR_GROUP_PROCESS_H
#define WEIR_GROUP_PROCESS_H

#include <weir/options.h>

#include "driver/driver.h"
#include "ipc/group.h"
#include "ipc/process_peers.h"

/* The bytes that are charged to the group for a CUDA context.  The figure is an estimate of the driver's memory for a
 * context (527 MiB on an H200). */
#define WEIR_GROUP_CONTEXT_BYTES ((uint64_t)528 << 20)

struct weir_group_settings {
    char name[WEIR_GROUP_NAME + 1];
    /* The memory limit of the group, in bytes or as a part of the device's memory.  The kind DEFAULT means that no
     * limit is set, so the limit of the existing group applies. */
    weir_amount limit;
    uint64_t weight;
};

/* Reads the settings of the group from the environment variables.  Returns 1 if the variables name a group, 0 if they
 * name none.  On an error returns -1 and writes a message. */
int weir__group_settings(struct weir_group_settings *out, char *message, size_t bytes);
/* The settings of a group as texts, each with a label for messages.  A text is NULL if the setting is not set.
 * weir__group_settings_of() parses these texts instead of the environment, and returns its result as
 * weir__group_settings() does. */
struct weir_group_texts {
    struct weir_group_text {
        const char *text, *label;
    } name, limit, share, folder;
};
int weir__group_settings_of(const struct weir_group_texts *texts, struct weir_group_settings *out,
                            char *message, size_t bytes);

/* Records that libweir-preload.so charges the memory of this process to the group, so that other code in the process
 * does not charge the memory again.  libweir-preload.so calls the function when it is loaded. */
void weir__group_counts_here(void);

/* Records in all groups of this process that the process begins to exit.  A destructor calls the function.  If a
 * process ends without running destructors, it must call the function itself. */
void weir__group_process_ends(void);

/* Returns the group that the environment variables name, on this device.  Joins the group if this process is not a
 * member yet.  Returns NULL with an empty `why` if the environment names no group, NULL with the reason in `why` if
 * joining fails. */
struct weir_group *weir__group_enter(const struct weir_driver *driver, CUdevice device,
                                     char why[WEIR_GROUP_WHY]);
/* Returns the group on the device if this process is a member, else NULL.  The function is cheap: it only loads one
 * pointer. */
struct weir_group *weir__group_of(const struct weir_driver *driver, CUdevice device);

/* Charges the estimated memory of a context to the group, before the context is created.  The primary context is
 * charged once, however often it is retained.  Returns 1 on success, 0 if the group would exceed its limit. */
int weir__group_context_begins(struct weir_group *g, int is_primary);
/* Subtracts the estimated memory of a context from the group, after the context was destroyed.  For the primary
 * context, the caller calls the function at each release, and only the last release subtracts the estimate. */
void weir__group_context_ends(struct weir_group *g, int is_primary);
/* Subtracts the estimated memory of the primary context from the group, after cuDevicePrimaryCtxReset has destroyed
 * the context. */
void weir__group_context_lost(struct weir_group *g);

/* Returns the bytes that all members together may still allocate within the limit of the group. */
uint64_t weir__group_room(struct weir_group *g);

/* Requests idle memory from other processes.  If the group's limit forbids the request, asks only members of the
 * group, since memory of other processes would not help.  Otherwise asks all processes that use the device. */
struct weir_answers weir__group_ask_peers(struct weir_process_peers *n, struct weir_ask ask);

/* Writes one line of text about the group, and one line for each member with its bytes, its part of the limit, and
 * its idle memory. */
enum { WEIR_GROUP_SHOWN = 2400 };
void weir__group_describe(struct weir_group *g, char text[WEIR_GROUP_SHOWN]);

/* Returns a driver table that charges all device memory of this process to its group (group_driver.c).  Returns
 * `inner`, which may be NULL, if the environment names no group or if libweir-preload.so charges the memory. */
const struct weir_driver *weir__group_driver(const struct weir_driver *inner);

#endif
