/* SPDX-License-Identifier: MIT */
/* group.h: one limit for all processes of a group on one device: a file with a counter and a slot for each member.
 *
 * The file is FOLDER/weir-UID-groupVERSION-NAME-DEVICE, mode 0600, where FOLDER is as runfile.h says.  All members map
 * it.
 *
 * Glossary
 *   member   a process that takes part, from weir__group_join until it leaves or ends, however it ends
 *   take     bytes that are counted before the driver is asked for them; they are never more than the limit
 *   recover  to give back what a member that has ended had counted
 *
 * Must not know: what the bytes are of, drivers, who is asked to give memory back.
 */
#ifndef WEIR_GROUP_H
#define WEIR_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/kept.h"
#include "ipc/registry.h"

enum {
    WEIR_GROUP_VERSION = 1,
    WEIR_GROUP_SLOTS = 256,
    WEIR_GROUP_NAME = 32, /* letters of a name, at most */
    WEIR_GROUP_WHY = 480
};

/* The largest limit: what a slot can count. */
#define WEIR_GROUP_MOST ((UINT64_C(1) << 43) - 1)

/* What bytes are of: X(name, word). */
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

struct weir_group_file;

/* A group on one device.  If it is zeroed, this process has not joined.  Any thread may use one.  The lock guards what
 * follows it, and what this process changes in the file. */
struct weir_group {
    pthread_mutex_t lock;
    struct weir_group_file *file; /* the mapping stays where it is, whichever file is mapped */
    struct weir_kept alive;       /* the open file with this member's locks */
    void *alive_page;             /* a mapping of it, which keeps the locks if the program closes it */
    struct weir_kept others;      /* another open file, to ask for locks */
    uint64_t number;              /* the number of this member among all there were; 0: it only looks */
    int slot;                     /* the slot of this member; -1: it only looks */
    uint64_t looked_ns;           /* when this member last looked whether its file has the name */
    int has_ended;                /* the process is about to end, and joins no other file */
    int is_lost; /* the file has no name, and this member could join no other file */
    char name[WEIR_GROUP_NAME + 1];
    char path[WEIR_REGISTRY_PATH];
};

/* A member, as another sees it. */
struct weir_group_member {
    uint64_t pid, start, namespace; /* 0: it has not said yet */
    uint64_t weight;
    uint64_t bytes; /* that it has counted */
    uint64_t share; /* of the limit, by the weights of all members; bytes */
    uint64_t idle;  /* of those bytes, as it said last, what it could give back */
    uint64_t kind[WEIR_GROUP_KIND_COUNT];
    int slot, is_own;
    char command[WEIR_REGISTRY_COMMAND];
};

/* 1: it may name a group. */
int weir__group_is_name(const char *name);
/* Takes part.  `limit': bytes; 0: that of the group, which must have members.  0; -1 and the reason. */
int weir__group_join(struct weir_group *g, const char *name, const char *device, uint64_t limit,
                     uint64_t weight, char why[WEIR_GROUP_WHY]);
/* Only to look: 0; -1: there is no such group on the device. */
int weir__group_look(struct weir_group *g, const char *name, const char *device);
/* Visits the devices on which a group has a file. */
void weir__group_each(const char *name, void (*visit)(const char *device, void *context),
                      void *context);
/* Visits the groups that have a file on the device. */
void weir__group_each_on(const char *device, void (*visit)(const char *name, void *context),
                         void *context);
/* Leaves the file, with what this member counted; the last member removes the file.  A process that only looks removes a
 * file that no member is left of. */
void weir__group_leave(struct weir_group *g);
/* Tells the group that the process is about to end.  The last member removes the file; then a process that joins before
 * the driver has this one's memory back does not know of that memory.  Beside other members, and if this member was
 * killed, what it counted stays until it has ended, and the file until a process joins or looks. */
void weir__group_end(struct weir_group *g);
/* In a child of fork: the member is its parent. */
void weir__group_forget(struct weir_group *g);

/* Counts bytes.  Recovers the bytes of members that have ended, if the bytes do not fit otherwise.  Returns 1 on success,
 * 0 if all members together would have more than the limit, or if this member cannot count where new members do. */
int weir__group_take(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* No more than this member has counted of the kind. */
void weir__group_give(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* Counts bytes that the driver has taken already, whatever the limit is. */
void weir__group_add(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes);
/* So many of the bytes are idle. */
void weir__group_tell_idle(struct weir_group *g, uint64_t bytes);

const char *weir__group_name(const struct weir_group *g);
uint64_t weir__group_limit(const struct weir_group *g);
uint64_t weir__group_used(struct weir_group *g);
/* Recovers what can be: how many bytes are still counted of those who are ending. */
uint64_t weir__group_recover(struct weir_group *g);
/* The members that live: how many, up to `most'. */
size_t weir__group_members(struct weir_group *g, struct weir_group_member *out, size_t most);
/* The same, in the order of their bytes, the most first. */
size_t weir__group_largest_members(struct weir_group *g, struct weir_group_member *out,
                                   size_t most);

#endif
