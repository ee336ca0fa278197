/* SPDX-License-Identifier: MIT */
/* group.h: a group of processes that share one memory limit on one device.  A slot file (slot_file.h) named
 * groupVERSION-NAME-DEVICE counts the bytes of the whole group, and has a slot for each member.
 *
 * Glossary
 *   member   a process of the group, from weir__group_join until the process leaves the group or ends in any way
 *   charge   to add bytes to the counter before the driver allocates them; fails if the limit would be exceeded
 *   recover  to subtract the bytes of an ended member from the counter
 *
 * This file must not depend on drivers, what the bytes are used for, or which processes are asked for memory. */
#ifndef WEIR_GROUP_H
#define WEIR_GROUP_H

#include <stdatomic.h>

#include "ipc/registry.h"

enum {
    WEIR_GROUP_VERSION = 3,
    WEIR_GROUP_SLOTS = WEIR_SLOTS,
    WEIR_GROUP_NAME = 32, /* without the NUL */
    WEIR_GROUP_WHY = 480
};

/* The maximum memory limit of a group in bytes.  The shared file stores numbers of bytes in 43 bits. */
#define WEIR_GROUP_MOST ((UINT64_C(1) << 43) - 1)

/* The kinds of memory that a group counts: X(name, word for messages). */
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

/* A group on one device, or zeros.  The lock in `shared` guards all fields, and this process's changes of the file. */
struct weir_group {
    struct weir_slot_file shared;
    /* How often the device's primary context is retained; guarded by the lock in group_process.c. */
    unsigned primary;
    int has_ended; /* set when the process begins to exit; it then joins no file again */
    int is_lost;   /* set if this process could not join a new file after the file was removed */
    char name[WEIR_GROUP_NAME + 1];
};

/* A copy of one process's data in the shared file of a group. */
struct weir_group_member {
    uint64_t pid, start, namespace; /* 0 until the process has published them */
    uint64_t weight;
    uint64_t bytes; /* charged to the group's limit */
    uint64_t share; /* the process's part of the group's limit in bytes, by its weight */
    uint64_t idle;  /* the bytes that the process could free, as last published */
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    int slot, is_own;
    char command[WEIR_REGISTRY_COMMAND];
};

int weir__group_is_name(const char *name);
/* Joins a group.  If `limit` is 0, the members' limit applies.  Returns 0, or -1 with the reason in `why`. */
int weir__group_join(struct weir_group *g, const char *name, const char *device, uint64_t limit,
                     uint64_t weight, char why[WEIR_GROUP_WHY]);
/* Opens the shared file of a group without joining the group.  Returns 0 on success, -1 if there is no such group. */
int weir__group_view(struct weir_group *g, const char *name, const char *device);
/* Calls `visit` for each device on which the group `name` exists. */
void weir__group_each(const char *name, void (*visit)(const char *device, void *context),
                      void *context);
/* Calls `visit` for each group that exists on the device. */
void weir__group_each_on(const char *device, void (*visit)(const char *name, void *context),
                         void *context);
/* Closes the shared file.  A member also leaves the group, and the last member removes the file. */
void weir__group_leave(struct weir_group *g);
/* Records that this process begins to exit.  Its bytes stay counted until it has ended, because the driver may free the
 * memory late.  Another member then subtracts the bytes. */
void weir__group_end(struct weir_group *g);
/* Closes the group's file in a child of fork().  The child is not a member of the group. */
void weir__group_close_in_child(struct weir_group *g);

/* Adds bytes to the counter before an allocation.  Returns 1, or 0 if the limit would be exceeded or is_lost is set. */
int weir__group_charge(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Subtracts freed bytes from the group's counter, but not more bytes of this kind than this process has added. */
void weir__group_uncharge(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Adds bytes to the group's counter, even above the limit, after the driver has allocated them. */
void weir__group_charge_unlimited(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Publishes how many idle bytes this process could free, so that other members can request them. */
void weir__group_publish_idle(struct weir_group *g, uint64_t bytes);

uint64_t weir__group_limit(const struct weir_group *g);
uint64_t weir__group_used(struct weir_group *g);
/* Subtracts the bytes of ended members from the group's counter.  Returns the bytes that stay counted, because the
 * kernel has not yet freed the memory of killed members. */
uint64_t weir__group_recover(struct weir_group *g);
/* Lists the running members in an array of WEIR_GROUP_SLOTS elements, most bytes first.  Returns their number. */
size_t weir__group_members(struct weir_group *g, struct weir_group_member *out);

#endif
