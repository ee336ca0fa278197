/* SPDX-License-Identifier: MIT */
/* slot_file.h: a file that the processes of a user share, with a slot for each process.  The shared registry and the
 * groups use such files.
 *
 * The file is FOLDER/weir-UID-NAME with mode 0600.  runfile.h defines FOLDER, and all processes of the user have one
 * FOLDER.
 *
 * Glossary
 *   slot     the part of the file that belongs to one process; a process owns a slot while it holds the kernel's lock
 *            on the bytes of the slot.  No process waits for this lock, and the kernel releases it when the process
 *            ends in any way
 *   leave    to release the slot; the last process that leaves removes the file
 *   ending   said of a process that was killed or is exiting, while the kernel may not have freed its memory yet
 *
 * Any process of the user may write anything into the file.  So weir checks the file, and replaces a file that is not
 * valid.
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
    /* The offset of the first slot in the file.  The page before the first slot contains the head. */
    WEIR_SLOTS_AT = 4096,
    WEIR_SLOT_OWNER_AT = 8, /* the offset of struct weir_slot_owner in each slot */
    /* The offset of the word `ends` in each slot of a file that counts bytes.  The word is set once the process of
     * the slot is about to end in the normal way.  The file may then be removed before the process has ended. */
    WEIR_SLOT_ENDS_AT = 32
};
enum { WEIR_SLOT_PATH = 256 };

/* The head of a slot file.  A file with an unexpected head is not valid; only the limit may have any value. */
struct weir_slot_head {
    char magic[8];
    uint32_t version, slots, slot_bytes, unused;
    uint64_t limit; /* the limit of a group, or 0 in all other files */
};

/* The words in a slot that identify the process that owns the slot. */
struct weir_slot_owner {
    uint64_t pid, start, namespace;
};

struct weir_slot_kind {
    const char *magic; /* the 8 letters at the start of the file */
    uint32_t version;
    size_t slot_bytes; /* the size of a slot in bytes, at most 512 */
    size_t map_bytes;  /* the number of bytes to map, from the start of the file */
    /* Set if a slot counts bytes, which must stay counted until the process of the slot has ended.  So no function
     * of slot_file.c clears such a slot when a process claims or leaves it.  A second lock, the life lock, shows
     * whether the process of the slot still runs.  weir makes such a file only with a limit. */
    int is_counted;
};

/* A slot file that this process has opened.  The lock guards all other fields. */
struct weir_slot_file {
    pthread_mutex_t lock;
    const struct weir_slot_kind *kind;
    /* The open file; empty if the file was lost and could not be made again. */
    struct weir_kept file;
    /* The slot of this process; -1 if it only reads the file or has left it. */
    int slot;
    void *map;      /* the mapping of the file; its address never changes */
    uint64_t start; /* the start time and the namespace of pids of this process */
    uint64_t namespace;
    uint64_t looked_ns; /* the time when this process last checked the file */
    uint64_t limit;     /* the limit for the head of a file that this process makes */
    char path[WEIR_SLOT_PATH];
};

/* Opens the file `name`, and claims a slot.  Makes the file if there is none.  Returns 0 on success, -1 with errno
 * on failure; errno is EUSERS if all slots are claimed. */
int weir__slot_file_open(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name, uint64_t limit);
/* Opens the file `name` without claiming a slot.  Returns 0 on success, -1 if there is no file. */
int weir__slot_file_view(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name);
/* Calls `visit` for each slot file whose name begins with `begins`, unless the rest of the name has `most` bytes or
 * more.  `rest` is this rest of the name. */
void weir__slot_file_each(const char *begins, size_t most,
                          void (*visit)(const char *rest, void *context), void *context);

/* Releases the slot for ever.  The last process that leaves removes the file.  A process that has opened the file
 * for reading removes the file if no slot is claimed.  The file stays while a process is ending.  The function takes
 * the lock. */
void weir__slot_file_leave(struct weir_slot_file *f);
/* Leaves the file, and removes the mapping. */
void weir__slot_file_close(struct weir_slot_file *f);
/* Records that the process is about to end.  Removes the file if no other process has a slot.  Keeps the life lock,
 * which shows that this process still runs.  The caller holds the lock of the struct. */
void weir__slot_file_end(struct weir_slot_file *f);
/* Closes the file in a child of fork(), which has no slot. */
void weir__slot_file_forget(struct weir_slot_file *f);

/* Returns 1 if the descriptor still belongs to the slot file that weir has opened, else 0.  The program may have
 * closed the descriptor and opened another file. */
int weir__slot_file_has(const struct weir_slot_file *f);
/* Checks the file, at most once in a millisecond.  Returns 1 if this process has a slot and the file is no longer
 * valid or has lost its name, else 0.  The caller holds the lock. */
int weir__slot_file_is_lost(struct weir_slot_file *f);
/* Opens the file that now has the name, or makes the file, and claims a slot in it.  The new slot and the new
 * mapping replace the old slot and the old mapping; the address of the mapping does not change.  The caller holds
 * the lock.  Returns 0 on success.  On failure returns -1 with errno, and the old mapping stays. */
int weir__slot_file_renew(struct weir_slot_file *f);

/* Returns the offset of a slot in the file. */
off_t weir__slot_place(const struct weir_slot_file *f, int slot);
/* Returns 1 if another open file has the lock of the slot, so that the slot is claimed; else 0. */
int weir__slot_is_locked(const struct weir_slot_file *f, int slot);
/* Returns 1 if `namespace` is the namespace of pids of this process, so that pids in it are valid for this process;
 * else 0. */
int weir__slot_is_near(const struct weir_slot_file *f, uint64_t namespace);
/* Returns 1 if the owner has a pid of this namespace and is ending, else 0. */
int weir__slot_is_ending(const struct weir_slot_file *f, const struct weir_slot_owner *owner);
/* Returns 1 if the process that claimed the slot still runs, or if the kernel cannot say so; else 0.  Only for files
 * whose slots count bytes. */
int weir__slot_lives(const struct weir_slot_file *f, int slot);
/* Takes the life lock of a slot whose process has ended, so that no other process changes or claims the slot.
 * Returns 1 on success, else 0.  Only for files whose slots count bytes. */
int weir__slot_hold(const struct weir_slot_file *f, int slot);
void weir__slot_release(const struct weir_slot_file *f, int slot);
/* Locks all slots of a file that this process has opened without claiming a slot.  Returns 1 on success, 0 if
 * another process has a slot. */
int weir__slot_hold_all(const struct weir_slot_file *f);

#endif
