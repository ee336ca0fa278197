/* SPDX-License-Identifier: MIT */
/* slot_file.h: a shared file with a slot for each of a user's processes.  The registry and the groups are such files.
 *
 * The file is FOLDER/weir-UID-NAME with mode 0600.  runfile.h defines FOLDER, and all processes of the user have one
 * FOLDER.
 *
 * Glossary
 *   slot     the part of the file that one process writes, as long as it holds the kernel's lock on it; nobody ever
 *            waits for that lock, and the kernel drops it when the process ends in any way
 *   leave    to give up the slot; the last process that leaves removes the file
 *   ending   said of a process that was killed or exits, and whose memory the kernel may not have freed yet
 *
 * Any process of the user may write anything into the file.  So a file that is not valid is replaced and never used.
 *
 * This file must not know the contents of a slot, except for its owner.
 */
#ifndef WEIR_SLOT_FILE_H
#define WEIR_SLOT_FILE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/kept.h"

enum {
    WEIR_SLOTS = 256,
    /* The offset of the first slot; the page before the first slot has the head. */
    WEIR_SLOTS_AT = 4096,
    WEIR_SLOT_OWNER_AT = 8, /* the offset of struct weir_slot_owner in each slot */
    /* The offset of a word in each slot of a file that counts bytes.  The word is set once the slot's process is about
     * to end by itself.  The file may then be removed before the process has ended. */
    WEIR_SLOT_ENDS_AT = 32
};
enum { WEIR_SLOT_PATH = 256 };

/* The head of a file.  A file with another head is not valid; only the limit may differ. */
struct weir_slot_head {
    char magic[8];
    uint32_t version, slots, slot_bytes, unused;
    uint64_t limit; /* the limit of a group, else 0 */
};

/* The process that owns a slot, as words in the slot. */
struct weir_slot_owner {
    uint64_t pid, start, namespace;
};

struct weir_slot_kind {
    const char *magic; /* 8 letters */
    uint32_t version;
    size_t slot_bytes; /* at most 512 */
    size_t map_bytes;  /* the number of bytes to map, from the file's begin */
    /* Set if a slot counts bytes, which must stay counted until the slot's process has ended.  So no function here
     * clears such a slot when the slot is claimed or left.  A second lock, the life lock, shows whether the slot's
     * process lives.  weir makes no such file without a limit. */
    int is_counted;
};

/* A file that this process has opened.  The lock guards the other fields. */
struct weir_slot_file {
    pthread_mutex_t lock;
    const struct weir_slot_kind *kind;
    struct weir_kept file; /* no file if the file was lost and could not be made again */
    int slot;              /* the slot of this process; -1 if the process only looks or has left */
    void *map;             /* the mapping, whose address never changes */
    uint64_t start;        /* the start time of this process, and its namespace of pids */
    uint64_t namespace;
    uint64_t looked_ns; /* when this process last checked the file */
    uint64_t limit;     /* the limit of a file that this process makes */
    char path[WEIR_SLOT_PATH];
};

/* Opens the file of that name, or makes it, and claims a slot.  Returns 0 on success, -1 with errno on failure: EUSERS
 * if all slots are claimed. */
int weir__slot_file_open(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name, uint64_t limit);
/* Opens the file without claiming a slot.  Returns 0 on success, -1 if there is no file. */
int weir__slot_file_view(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name);
/* Visits the valid files whose names begin with `begins`.  `rest` is the rest of the name.  Does not visit a file if
 * `rest` has `most` bytes or more. */
void weir__slot_file_each(const char *begins, size_t most,
                          void (*visit)(const char *rest, void *context), void *context);

/* Gives up the slot for good.  The last process that leaves removes the file, and so does a process without a slot if
 * no slot is claimed.  The file stays while a process is ending.  Takes the lock. */
void weir__slot_file_leave(struct weir_slot_file *f);
/* Leaves the file, and frees the mapping. */
void weir__slot_file_close(struct weir_slot_file *f);
/* Records that the process is about to end: removes the file if no other process has a slot, but keeps the lock that
 * shows that this process lives.  The caller holds the lock. */
void weir__slot_file_end(struct weir_slot_file *f);
/* Closes the file in a child of fork. */
void weir__slot_file_forget(struct weir_slot_file *f);

/* Returns 1 if the descriptor still belongs to weir's open file description, else 0. */
int weir__slot_file_has(const struct weir_slot_file *f);
/* Checks the file, but at most once in a millisecond.  Returns 1 if the process has a slot in a file that is no longer
 * valid or has lost its name, else 0.  The caller holds the lock. */
int weir__slot_file_is_lost(struct weir_slot_file *f);
/* Opens or makes the file that has the name, and claims a slot in place of the old slot.  The new mapping replaces the
 * old mapping at the old address.  The caller holds the lock.  Returns 0 on success, -1 with errno on failure, in which
 * case the old mapping stays. */
int weir__slot_file_renew(struct weir_slot_file *f);

/* Returns the place of a slot in the file. */
off_t weir__slot_place(const struct weir_slot_file *f, int slot);
/* Returns 1 if a process has locked the slot, else 0. */
int weir__slot_is_locked(const struct weir_slot_file *f, int slot);
/* Returns 1 if `namespace` is this process's namespace of pids, so that this process can use the pids; else 0. */
int weir__slot_is_near(const struct weir_slot_file *f, uint64_t namespace);
/* Returns 1 if the owner's pid is of this namespace and the owner is ending, else 0. */
int weir__slot_is_ending(const struct weir_slot_file *f, const struct weir_slot_owner *owner);
/* Returns 1 if the process that claimed the slot lives, or if the kernel cannot say; else 0.  Only for files whose
 * slots count bytes. */
int weir__slot_lives(const struct weir_slot_file *f, int slot);
/* Locks the slot of a process that has ended, so that no other process changes or claims the slot.  Returns 1 on
 * success, else 0.  Only for files whose slots count bytes. */
int weir__slot_hold(const struct weir_slot_file *f, int slot);
void weir__slot_release(const struct weir_slot_file *f, int slot);
/* Locks all slots of a file that was opened without a slot.  Returns 1 on success, 0 if a process has a slot. */
int weir__slot_hold_all(const struct weir_slot_file *f);

#endif
