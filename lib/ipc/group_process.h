/* SPDX-License-Identifier: MIT */
/* group_process.h: the group that the environment puts this process into (WEIR_GROUP), on each of its devices.
 *
 * A process has one group.  It joins it on a device before it makes a context there, and is a member until it ends.
 *
 * Must not know: what an allocator is, who takes memory.
 */
#ifndef WEIR_GROUP_PROCESS_H
#define WEIR_GROUP_PROCESS_H

#include <weir/options.h>

#include "driver/driver.h"
#include "ipc/group.h"
#include "ipc/process_peers.h"

/* What the driver takes for a context: an H200 has 527 MiB less, just after it is made. */
#define WEIR_GROUP_CONTEXT_BYTES ((uint64_t)528 << 20)

struct weir_group_settings {
    char name[WEIR_GROUP_NAME + 1];
    weir_amount limit; /* bytes, or of the device's total; DEFAULT: as the group has */
    uint64_t weight;
};

/* What the environment says: 1; 0: there is no group; -1 and a message. */
int weir__group_settings(struct weir_group_settings *out, char *message, size_t bytes);
/* The same of these texts; NULL: not set.  The names of the settings are for the message. */
struct weir_group_texts {
    const char *name, *limit, *share, *folder;
    const char *name_is, *limit_is, *share_is, *folder_is;
};
int weir__group_settings_of(const struct weir_group_texts *texts, struct weir_group_settings *out,
                            char *message, size_t bytes);

/* Another library of this process counts (libweir-preload.so): this one does not.  Called by that one, as it is loaded. */
void weir__group_counts_here(void);

/* Tells the groups of this process that it is about to end: what destructors do, for a process that ends without them. */
void weir__group_process_ends(void);

/* The group of the environment on that device, joined if it was not yet.  NULL and "": there is none; NULL and why. */
struct weir_group *weir__group_enter(const struct weir_driver *driver, CUdevice device,
                                     char why[WEIR_GROUP_WHY]);
/* The same, if it has joined; one load. */
struct weir_group *weir__group_of(const struct weir_driver *driver, CUdevice device);

/* A context of the device is about to be made, or has ended: the estimate for it is counted, once for all holders of a
 * primary context.  0: the limit forbids it. */
int weir__group_context_begins(struct weir_group *g, int is_primary);
void weir__group_context_ends(struct weir_group *g, int is_primary);
/* The primary one was reset: all who held it have lost it. */
void weir__group_context_lost(struct weir_group *g);

/* Bytes that may still be taken. */
uint64_t weir__group_room(struct weir_group *g);

/* Asks members for idle memory, those first that have more than their share.  As weir__process_peers_ask. */
struct weir_answers weir__group_ask(struct weir_group *g, struct weir_process_peers *n,
                                    uint64_t bytes, uint64_t began, uint64_t deadline);

/* The same of all processes; but of the members alone, if it is the group that has no room for as much. */
struct weir_answers weir__group_ask_whom_it_concerns(struct weir_process_peers *n, uint64_t bytes,
                                                     uint64_t began, uint64_t deadline);

/* Who has what, a line for each member, as a person reads it. */
enum { WEIR_GROUP_SHOWN = 2400 };
void weir__group_show(struct weir_group *g, char text[WEIR_GROUP_SHOWN]);

#endif
