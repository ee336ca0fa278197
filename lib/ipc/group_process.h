/* SPDX-License-Identifier: MIT */
/* group_process.h: the group of this process on each of its devices.  The environment variable WEIR_GROUP names the
 * group.
 *
 * A process has at most one group.  It joins the group on a device before it creates a context on the device, and is a
 * member until it ends.
 *
 * This file must not know allocators, or which code allocates memory.
 */
#ifndef WEIR_GROUP_PROCESS_H
#define WEIR_GROUP_PROCESS_H

#include <weir/options.h>

#include "driver/driver.h"
#include "ipc/group.h"
#include "ipc/process_peers.h"

/* The charge for a context.  It is an estimate of the memory that the driver uses for a context (527 MiB on an
 * H200). */
#define WEIR_GROUP_CONTEXT_BYTES ((uint64_t)528 << 20)

struct weir_group_settings {
    char name[WEIR_GROUP_NAME + 1];
    /* The limit in bytes, or as a part of the device's memory.  The kind DEFAULT means that the limit of the
     * existing group applies. */
    weir_amount limit;
    uint64_t weight;
};

/* Reads the settings of the group from the environment.  Returns 1 if the settings name a group, 0 if they name no
 * group.  On an error returns -1 and writes a message. */
int weir__group_settings(struct weir_group_settings *out, char *message, size_t bytes);
/* The texts of the settings, each with a label for messages.  A text is NULL if the setting is not set.
 * weir__group_settings_of() reads the texts, and returns its result as weir__group_settings() does. */
struct weir_group_texts {
    struct weir_group_text {
        const char *text, *label;
    } name, limit, share, folder;
};
int weir__group_settings_of(const struct weir_group_texts *texts, struct weir_group_settings *out,
                            char *message, size_t bytes);

/* Records that libweir-preload.so is in this process and charges the memory, so that this library does not charge it
 * again.  libweir-preload.so calls the function when it is loaded. */
void weir__group_counts_here(void);

/* Records in all groups of this process that the process is about to end.  A destructor calls the function.  If a
 * process ends without destructors, it must call the function itself. */
void weir__group_process_ends(void);

/* Returns the group that the environment names, on the device, and joins the group if necessary.  Returns NULL with
 * an empty `why` if the environment names no group.  Returns NULL with the reason in `why` if joining fails. */
struct weir_group *weir__group_enter(const struct weir_driver *driver, CUdevice device,
                                     char why[WEIR_GROUP_WHY]);
/* Returns the group on the device if this process has joined it, else NULL.  The function only loads one pointer. */
struct weir_group *weir__group_of(const struct weir_driver *driver, CUdevice device);

/* Charges the estimate for a context before the context is created.  The primary context is charged once, however
 * often it is retained.  Returns 1 on success, 0 if the limit forbids the context. */
int weir__group_context_begins(struct weir_group *g, int is_primary);
/* Subtracts the estimate for a context after the context is destroyed.  For the primary context, the caller calls
 * the function at each release, and only the last release subtracts the estimate. */
void weir__group_context_ends(struct weir_group *g, int is_primary);
/* Subtracts the estimate for the primary context after a reset of the device has destroyed this context. */
void weir__group_context_lost(struct weir_group *g);

/* Returns the bytes that members may still allocate within the limit of the group. */
uint64_t weir__group_room(struct weir_group *g);

/* Asks other processes to free idle memory.  If the limit of the group forbids ask.bytes more bytes, asks only the
 * members of the group.  Otherwise asks all processes that use the device. */
struct weir_answers weir__group_ask_peers(struct weir_process_peers *n, struct weir_ask ask);

/* Writes one line of text about the group, and one line for each member with its bytes, its share and its idle
 * memory. */
enum { WEIR_GROUP_SHOWN = 2400 };
void weir__group_show(struct weir_group *g, char text[WEIR_GROUP_SHOWN]);

/* Returns a driver table that charges device memory to the group of this process (group_driver.c).  Returns `inner`,
 * which may be NULL, if the environment names no group or if another library charges the memory. */
const struct weir_driver *weir__group_driver(const struct weir_driver *inner);

#endif
