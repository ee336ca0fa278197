/* SPDX-License-Identifier: MIT */
/* group_process.h: the group into which the environment puts this process (WEIR_GROUP), on each of its devices.
 *
 * A process has one group at most.  It joins that group on a device before it creates a context there, and is a member
 * until it ends.
 *
 * This file must not know what an allocator is or which code allocates memory.
 */
#ifndef WEIR_GROUP_PROCESS_H
#define WEIR_GROUP_PROCESS_H

#include <weir/options.h>

#include "driver/driver.h"
#include "ipc/group.h"
#include "ipc/process_peers.h"

/* An estimate of the memory that the driver uses for a context (527 MiB on an H200). */
#define WEIR_GROUP_CONTEXT_BYTES ((uint64_t)528 << 20)

struct weir_group_settings {
    char name[WEIR_GROUP_NAME + 1];
    /* The limit in bytes or as a part of the device's memory.  DEFAULT stands for the group's own limit. */
    weir_amount limit;
    uint64_t weight;
};

/* Reads the settings from the environment.  Returns 1 if the settings name a group, 0 if they name no group, -1 with a
 * message on an error. */
int weir__group_settings(struct weir_group_settings *out, char *message, size_t bytes);
/* The settings as texts, each with its label for messages.  The text is NULL if the setting is not set. */
struct weir_group_texts {
    struct weir_group_text {
        const char *text, *label;
    } name, limit, share, folder;
};
int weir__group_settings_of(const struct weir_group_texts *texts, struct weir_group_settings *out,
                            char *message, size_t bytes);

/* Records that another library of this process, libweir-preload.so, counts the memory.  So this library does not count.
 * libweir-preload.so calls this function when it is loaded. */
void weir__group_counts_here(void);

/* Records in the groups of this process that the process is about to end.  A destructor calls this function; a process
 * that ends without destructors must call the function itself. */
void weir__group_process_ends(void);

/* Returns the group that the environment names, on that device, and joins the group if necessary.  Returns NULL with an
 * empty `why` if the environment names no group.  Returns NULL with the reason in `why` on failure. */
struct weir_group *weir__group_enter(const struct weir_driver *driver, CUdevice device,
                                     char why[WEIR_GROUP_WHY]);
/* Returns the group on that device if the process has joined it, else NULL.  Costs one load. */
struct weir_group *weir__group_of(const struct weir_driver *driver, CUdevice device);

/* Counts the estimate for a context, before the context is created.  A primary context counts once for all its holders.
 * Returns 0 if the limit forbids the context, else 1. */
int weir__group_context_begins(struct weir_group *g, int is_primary);
/* Subtracts the estimate for a context, after the context has ended or one holder has released it. */
void weir__group_context_ends(struct weir_group *g, int is_primary);
/* Subtracts the estimate for the primary context, after a reset has taken this context from all its holders. */
void weir__group_context_lost(struct weir_group *g);

/* Returns the bytes that the group's limit still allows. */
uint64_t weir__group_room(struct weir_group *g);

/* Asks other processes for idle memory.  If the group's limit forbids the bytes, asks only the members of the group,
 * else all processes that use the device. */
struct weir_answers weir__group_ask_peers(struct weir_process_peers *n, struct weir_ask ask);

/* Writes one readable line for the group and one for each member: its bytes, share and idle memory. */
enum { WEIR_GROUP_SHOWN = 2400 };
void weir__group_show(struct weir_group *g, char text[WEIR_GROUP_SHOWN]);

/* Returns a driver table that counts device memory in the group of this process (group_driver.c).  Returns `inner`,
 * which may be NULL, if the environment names no group or another library counts the memory. */
const struct weir_driver *weir__group_driver(const struct weir_driver *inner);

#endif
