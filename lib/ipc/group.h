/* SPDX-License-Identifier: MIT */
/* group.h: one limit for all processes of a group on one device.  A shared file has a counter, and a slot for each
 * member.
 *
 * The file is a slot file (slot_file.h) with the name groupVERSION-NAME-DEVICE.  All members map the file.
 *
 * Glossary
 *   member   a process that takes part, from weir__group_join until it leaves or ends, in whatever way
 *   charge   to count bytes for the group, before the driver allocates the bytes; a charge that would exceed the
 *            limit fails
 *   recover  to subtract the bytes that an ended member had counted
 *
 * This file must not know the use of the bytes, drivers or the choice of processes that are asked for memory.
 */
#ifndef WEIR_GROUP_H
#define WEIR_GROUP_H

#include <stdatomic.h>

#include "ipc/registry.h"

enum {
    WEIR_GROUP_VERSION = 3,
    WEIR_GROUP_SLOTS = WEIR_SLOTS,
    WEIR_GROUP_NAME = 32, /* the most letters of a name */
    WEIR_GROUP_WHY = 480
};

/* The largest limit, since a slot cannot count more bytes. */
#define WEIR_GROUP_MOST ((UINT64_C(1) << 43) - 1)

/* The uses of counted bytes: X(name, word). */
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

/* A group on one device.  A zeroed struct is a group that the process has not joined.  All threads may use the struct.
 * The lock of the file guards the fields, and this process's changes of the file. */
struct weir_group {
    struct weir_slot_file shared;
    /* The number of holders of the device's primary context in this process.  The lock of group_process.c guards this
     * number. */
    unsigned primary;
    int has_ended; /* set once the process is about to end; the process then joins no other file */
    /* Set if this member's file has lost its name, and the member could join no other file. */
    int is_lost;
    char name[WEIR_GROUP_NAME + 1];
};

/* A member of the group, as any process reads the member from the file. */
struct weir_group_member {
    uint64_t pid, start, namespace; /* 0 until the member has published these fields */
    uint64_t weight;
    uint64_t bytes; /* the bytes that the member has counted */
    uint64_t share; /* the member's part of the limit in bytes, by the weights of all members */
    uint64_t idle;  /* the bytes that the member could free, as last published */
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    int slot, is_own;
    char command[WEIR_REGISTRY_COMMAND];
};

/* Returns 1 if the text may name a group, else 0. */
int weir__group_is_name(const char *name);
/* Joins the group.  `limit` is in bytes.  If `limit` is 0, the group's own limit counts, and the group must have
 * members.  Returns 0 on success, -1 with the reason in `why` on failure. */
int weir__group_join(struct weir_group *g, const char *name, const char *device, uint64_t limit,
                     uint64_t weight, char why[WEIR_GROUP_WHY]);
/* Opens the group for reading only.  Returns 0 on success, -1 if the device has no group of the name. */
int weir__group_view(struct weir_group *g, const char *name, const char *device);
/* Visits the devices on which a group has a file. */
void weir__group_each(const char *name, void (*visit)(const char *device, void *context),
                      void *context);
/* Visits the groups that have a file on the device. */
void weir__group_each_on(const char *device, void (*visit)(const char *name, void *context),
                         void *context);
/* Leaves the file and subtracts the bytes that this member had counted.  The last member removes the file.  A process
 * that opened the group for reading only (weir__group_view) removes a file without members. */
void weir__group_leave(struct weir_group *g);
/* Records that the process is about to end.  The last member removes the file.  A process that joins before the driver
 * has freed the last member's memory does not know of this memory.  If there are other members, or if this member is
 * killed, its bytes stay counted until the member has ended, and the file stays until a process joins or looks. */
void weir__group_end(struct weir_group *g);
/* Forgets the group in a child of fork, since only the parent is a member. */
void weir__group_forget(struct weir_group *g);

/* Counts bytes.  If the bytes exceed the limit, recovers the bytes of members that have ended, and tries again.
 * Returns 1 on success, 0 if all members together would exceed the limit, or if this member has lost its file and could
 * join no new file. */
int weir__group_charge(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Subtracts bytes of the kind, but no more than this member has counted. */
void weir__group_uncharge(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Counts bytes that the driver has allocated already, even above the limit. */
void weir__group_charge_anyway(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Publishes the number of this member's idle bytes. */
void weir__group_publish_idle(struct weir_group *g, uint64_t bytes);

uint64_t weir__group_limit(const struct weir_group *g);
uint64_t weir__group_used(struct weir_group *g);
/* Recovers the bytes of members that have ended.  Returns the bytes of members that are still ending. */
uint64_t weir__group_recover(struct weir_group *g);
/* Lists the live members in falling order of their bytes.  Returns the number of members.  `out` has room for
 * WEIR_GROUP_SLOTS members. */
size_t weir__group_members(struct weir_group *g, struct weir_group_member *out);

#endif
