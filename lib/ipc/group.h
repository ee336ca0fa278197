/* SPDX-License-Identifier: MIT */
/* group.h: a group of processes that share one memory limit on one device.  A shared file has a counter of bytes for
 * the whole group, and a slot for each member.
 *
 * The file is a slot file (slot_file.h).  Its name is groupVERSION-NAME-DEVICE.  All members map the file.
 *
 * Glossary
 *   member   a process of the group, from weir__group_join until the process leaves the group or ends in any way
 *   charge   to add bytes to the counter before the driver allocates the bytes; a charge that would exceed the limit
 *            fails
 *   recover  to subtract the bytes of an ended member from the counter
 *
 * This file must not know drivers, what the bytes are used for, or which processes are asked for memory.
 */
#ifndef WEIR_GROUP_H
#define WEIR_GROUP_H

#include <stdatomic.h>

#include "ipc/registry.h"

enum {
    WEIR_GROUP_VERSION = 3,
    WEIR_GROUP_SLOTS = WEIR_SLOTS,
    WEIR_GROUP_NAME = 32, /* the largest number of letters in the name of a group */
    WEIR_GROUP_WHY = 480
};

/* The largest limit of a group.  A slot cannot count more bytes. */
#define WEIR_GROUP_MOST ((UINT64_C(1) << 43) - 1)

/* The kinds of counted bytes, by the way in which the memory is allocated: X(name, word for messages). */
#define WEIR_GROUP_KINDS(X)                                                                        \
    X(RESERVE, "weir")                                                                             \
    X(ALLOC, "cuMemAlloc")                                                                         \
    X(CREATE, "cuMemCreate")                                                                       \
    X(MANAGED, "managed")                                                                          \
    X(POOL, "pools")                                                                               \
    X(GRAPH, "graphs")                                                                             \
    X(CONTEXT, "context")
enum weir_group_kind {
#define WEIR_GROUP_KIND(name, word) WEIR_GROUP_##name,
    WEIR_GROUP_KINDS(WEIR_GROUP_KIND)
#undef WEIR_GROUP_KIND
        WEIR_GROUP_KIND_COUNT
};
const char *weir__group_kind_word(enum weir_group_kind kind);

/* A group on one device.  If the struct is zero, the process has not joined the group.  All threads may use the
 * struct.  The lock of the file guards the fields of the struct and this process's changes of the file. */
struct weir_group {
    struct weir_slot_file shared;
    /* The number of retains of the device's primary context by this process.  The lock in group_process.c guards
     * this number. */
    unsigned primary;
    int has_ended; /* set once the process is about to end; from then on it joins no other file */
    /* Set if the file of this member was removed and the member could not join another file. */
    int is_lost;
    char name[WEIR_GROUP_NAME + 1];
};

/* A copy of the data of one member.  Any process can read the data from the file. */
struct weir_group_member {
    /* The pid, the start time and the namespace of pids of the member; 0 until the member has published them. */
    uint64_t pid, start, namespace;
    uint64_t weight;
    uint64_t bytes; /* the bytes that the member has charged */
    /* The bytes of the limit that are due to the member, by the weights of all members. */
    uint64_t share;
    uint64_t idle; /* the idle bytes, which the member could free, as it last published them */
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    int slot, is_own;
    char command[WEIR_REGISTRY_COMMAND];
};

/* Returns 1 if `name` is a valid name of a group, else 0. */
int weir__group_is_name(const char *name);
/* Joins the group `name` on the device.  `limit` is the limit in bytes.  If `limit` is 0, the group must have
 * members, whose limit then applies.  Returns 0 on success, -1 with the reason in `why` on failure. */
int weir__group_join(struct weir_group *g, const char *name, const char *device, uint64_t limit,
                     uint64_t weight, char why[WEIR_GROUP_WHY]);
/* Opens the group for reading only.  Returns 0 on success, -1 if there is no group of this name on the device. */
int weir__group_view(struct weir_group *g, const char *name, const char *device);
/* Calls `visit` for each device on which the group has a file. */
void weir__group_each(const char *name, void (*visit)(const char *device, void *context),
                      void *context);
/* Calls `visit` for each group that has a file for the device. */
void weir__group_each_on(const char *device, void (*visit)(const char *name, void *context),
                         void *context);
/* Leaves the group and subtracts this member's bytes from the counter.  The last member removes the file.  If the
 * process opened the group only for reading (weir__group_view), it removes the file if the file has no members. */
void weir__group_leave(struct weir_group *g);
/* Records that the process is about to end.  The last member removes the file; a process that joins later does not
 * count the memory that the driver has not yet freed for the last member.  In two cases the bytes of this member
 * stay counted until the process has ended: if there are other members, or if this member is killed.  The file then
 * stays until another process joins the group or opens it for reading. */
void weir__group_end(struct weir_group *g);
/* Closes the group in a child of fork(), which is no member. */
void weir__group_forget(struct weir_group *g);

/* Charges bytes.  If the group would exceed its limit, first recovers the bytes of ended members, and tries again.
 * Returns 1 on success, 0 if the group would exceed its limit.  Also returns 0 if this member has lost its file and
 * cannot join a new file. */
int weir__group_charge(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Subtracts bytes of the kind from the counter, but at most the bytes of the kind that this member has charged. */
void weir__group_uncharge(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Adds bytes to the counter that the driver has already allocated, even if the group then exceeds its limit. */
void weir__group_charge_anyway(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Publishes how many idle bytes this member could free. */
void weir__group_publish_idle(struct weir_group *g, uint64_t bytes);

uint64_t weir__group_limit(const struct weir_group *g);
uint64_t weir__group_used(struct weir_group *g);
/* Subtracts the bytes of all ended members from the counter.  Returns the bytes of members that are still ending,
 * which stay counted. */
uint64_t weir__group_recover(struct weir_group *g);
/* Lists the members that still run, the member with most bytes first.  Returns the number of members.  `out` must
 * have room for WEIR_GROUP_SLOTS members. */
size_t weir__group_members(struct weir_group *g, struct weir_group_member *out);

#endif
