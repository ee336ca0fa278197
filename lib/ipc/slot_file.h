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
 * This file must not depend on the contents of a slot, except for the words that identify its owner.
 */
#ifndef WEIR_SLOT_FILE_H
#define WEIR_SLOT_FILE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/kept.h"

enum {
    WEIR_SLOTS = 256,
    /* The offset of the first slot in the file.  The first page contains only the head of the file. */
    WEIR_SLOTS_AT = 4096,
    WEIR_SLOT_OWNER_AT = 8, /* the offset of struct weir_slot_owner from the start of a slot */
    /* The offset of the word `ends` from the start of a slot, in a file that counts bytes of memory.  The word is set
     * when the process of the slot begins to exit normally.  The file may then be removed before the process has
     * ended. */
    WEIR_SLOT_ENDS_AT = 32
};
enum { WEIR_SLOT_PATH = 256 };

/* The first bytes of a slot file.  weir replaces a file whose head differs from the expected head; only the limit may
 * have any value. */
struct weir_slot_head {
    char magic[8];
    uint32_t version, slots, slot_bytes, unused;
    uint64_t limit; /* the memory limit of a group of processes, or 0 in files that have no limit */
};

/* The process that owns a slot: its pid, its start time and its pid namespace. */
struct weir_slot_owner {
    uint64_t pid, start, namespace;
};

struct weir_slot_kind {
    const char *magic; /* the magic number: the first 8 letters of the file */
    uint32_t version;
    size_t slot_bytes; /* the size of a slot in bytes, at most 512 */
    size_t map_bytes;  /* the number of bytes that a process maps, from the start of the file */
    /* Set if a slot counts the memory of a process.  These bytes must stay counted until the process has ended, so
     * slot_file.c never clears such a slot.  A second lock of each slot, the life lock, shows whether the process
     * still runs.  Files of this kind have a limit. */
    int is_counted;
};

/* A slot file that this process has opened.  `lock` guards all other fields. */
struct weir_slot_file {
    pthread_mutex_t lock;
    const struct weir_slot_kind *kind;
    /* The descriptor of the file; empty if the file was removed and could not be created again. */
    struct weir_kept file;
    /* The number of this process's slot; -1 if the process only reads the file or has released its slot. */
    int slot;
    void *map;      /* the mapping of the file; the address never changes */
    uint64_t start; /* the start time and the namespace of pids of this process */
    uint64_t namespace;
    uint64_t checked_ns; /* the time when this process last checked that the file is still valid */
    uint64_t limit;     /* the limit that this process writes into a file which it creates */
    char path[WEIR_SLOT_PATH];
};

/* Opens the slot file `name`, and claims a slot for this process.  Creates the file if it does not exist.  Returns 0
 * on success, -1 with errno on failure; errno is EUSERS if no slot is free. */
int weir__slot_file_open(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name, uint64_t limit);
/* Opens the slot file `name` for reading, without claiming a slot.  Returns 0 on success, -1 if the file does not
 * exist. */
int weir__slot_file_view(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name);
/* Calls `visit` for each slot file whose name begins with `begins`, and passes the rest of the name as `rest`.  Skips
 * files for which this rest has `most` bytes or more. */
void weir__slot_file_each(const char *begins, size_t most,
                          void (*visit)(const char *rest, void *context), void *context);

/* Releases this process's slot for ever.  If no other process has a slot, removes the file, unless another process is
 * still ending.  If this process has opened the file only for reading, removes the file if no process has a slot.
 * Takes the lock of `f`. */
void weir__slot_file_leave(struct weir_slot_file *f);
/* Releases this process's slot, and unmaps the file. */
void weir__slot_file_close(struct weir_slot_file *f);
/* Records that this process begins to exit.  Removes the file if no other process has a slot.  Keeps the life lock, a
 * file lock by which other processes see that this process still runs.  The caller holds the lock of `f`. */
void weir__slot_file_end(struct weir_slot_file *f);
/* Closes the file in a child of fork(), since the slot belongs to the parent. */
void weir__slot_file_close_in_child(struct weir_slot_file *f);

/* Returns 1 if the stored file descriptor still belongs to the slot file, else 0.  The program may have closed the
 * descriptor and opened another file under its number. */
int weir__slot_file_has(const struct weir_slot_file *f);
/* Checks, at most once in a millisecond, whether the file was removed or damaged.  Returns 1 if this process has a
 * slot in such a file and must open or create another file, else 0.  The caller holds the lock of `f`. */
int weir__slot_file_is_lost(struct weir_slot_file *f);
/* Opens the file that now has the name, or creates it, and claims a slot.  The new slot and the new mapping replace
 * the old ones; the address of the mapping does not change.  Returns 0 on success.  On failure returns -1 with errno,
 * and the old mapping stays.  The caller holds the lock of `f`. */
int weir__slot_file_renew(struct weir_slot_file *f);

/* Returns the offset of a slot in the file. */
off_t weir__slot_offset(const struct weir_slot_file *f, int slot);
/* Returns 1 if a process has claimed the slot, which means that another open file has locked it; else 0. */
int weir__slot_is_locked(const struct weir_slot_file *f, int slot);
/* Returns 1 if `namespace` is the pid namespace of this process, so that pids of the two processes are comparable;
 * else 0. */
int weir__slot_is_in_own_namespace(const struct weir_slot_file *f, uint64_t namespace);
/* Returns 1 if the process is exiting or was killed and its pid is valid in this pid namespace, else 0. */
int weir__slot_is_ending(const struct weir_slot_file *f, const struct weir_slot_owner *owner);
/* Returns 1 if the process that claimed the slot still runs, or if the kernel cannot tell; else 0.  Only for files
 * whose slots count memory. */
int weir__slot_lives(const struct weir_slot_file *f, int slot);
/* Locks the slot of an ended process, so that no other process changes or claims the slot.  Returns 1 on success, 0
 * if another process holds the lock.  Only for files whose slots count memory. */
int weir__slot_hold(const struct weir_slot_file *f, int slot);
void weir__slot_release(const struct weir_slot_file *f, int slot);
/* Locks all slots of a file that this process has opened for reading.  Returns 1 on success, 0 if another process has
 * a slot. */
int weir__slot_hold_all(const struct weir_slot_file *f);

#endif
