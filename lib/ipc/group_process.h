/* SPDX-License-Identifier: MIT */
/* group_process.h: the group that the environment variable WEIR_GROUP names, on each device of this process.  The
 * process joins the group on a device before it creates a context there, and is a member until it ends. */
#ifndef WEIR_GROUP_PROCESS_H
#define WEIR_GROUP_PROCESS_H

#include <weir/options.h>

#include "driver/driver.h"
#include "ipc/group.h"
#include "ipc/process_peers.h"

/* The estimated memory of a CUDA context, which is charged to the group (527 MiB on an H200). */
#define WEIR_GROUP_CONTEXT_BYTES ((uint64_t)528 << 20)

struct weir_group_settings {
    char name[WEIR_GROUP_NAME + 1];
    /* The memory limit of the group.  The kind DEFAULT means the limit of the existing group. */
    weir_amount limit;
    uint64_t weight;
};

/* Reads the group's settings from the environment.  Returns 1, 0 if no setting is set, or -1 with a message. */
int weir__group_settings(struct weir_group_settings *out, char *message, size_t bytes);
/* The settings of a group as texts.  `text` is NULL if the setting is not set.  `label` is its name in messages. */
struct weir_group_texts {
    struct weir_group_text {
        const char *text, *label;
    } name, limit, share, folder;
};
int weir__group_settings_of(const struct weir_group_texts *texts, struct weir_group_settings *out,
                            char *message, size_t bytes);

/* Called when libweir-preload.so is loaded.  Then only this library charges this process's memory to the group. */
void weir__group_set_charged_by_preload(void);

/* Records in all groups that this process begins to exit.  A process that ends without destructors must call this. */
void weir__group_process_ends(void);

/* Returns the group that WEIR_GROUP names on this device, and joins it if necessary.  On failure returns NULL with the
 * reason in `why`, which is "" if WEIR_GROUP is not set. */
struct weir_group *weir__group_enter(const struct weir_driver *driver, CUdevice device,
                                     char why[WEIR_GROUP_WHY]);
/* Returns the group on the device if this process is a member, else NULL.  Loads only one pointer. */
struct weir_group *weir__group_of(const struct weir_driver *driver, CUdevice device);

/* Charges the estimated memory of a context to the group, before the context is created.  The primary context is
 * charged only once.  Returns 1, or 0 if the limit would be exceeded. */
int weir__group_context_begins(struct weir_group *g, int is_primary);
/* Subtracts the estimated memory of a destroyed context from the group.  If `is_primary` is set, must be called at each
 * release of the primary context, and subtracts the estimate at the last release. */
void weir__group_context_ends(struct weir_group *g, int is_primary);
/* Subtracts the estimated memory of the primary context after cuDevicePrimaryCtxReset. */
void weir__group_context_lost(struct weir_group *g);

/* Returns the bytes that all members together may still allocate. */
uint64_t weir__group_room(struct weir_group *g);

/* Requests idle memory from other processes, or only from group members if too little of the limit is left. */
struct weir_answers weir__group_request_memory(struct weir_process_peers *n,
                                               struct weir_memory_request request);

/* Writes one line about the group, and one about each member. */
enum { WEIR_GROUP_SHOWN = 2400 };
void weir__group_describe(struct weir_group *g, char text[WEIR_GROUP_SHOWN]);

/* Returns a driver table that charges this process's memory to its group, or `inner` (may be NULL) without a group. */
const struct weir_driver *weir__group_driver(const struct weir_driver *inner);

#endif
