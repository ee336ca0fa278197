/* SPDX-License-Identifier: MIT */
/* slot_file.h: a file FOLDER/weir-UID-NAME (runfile.h defines FOLDER), mode 0600, that the processes of a user share,
 * with a slot for each process.  The shared registry and the groups use such files.
 *
 * Glossary
 *   slot     the part of the file that belongs to one process, while the process holds the kernel's lock on the bytes
 *            of the slot.  No process waits for this lock, and the kernel releases it when the process ends in any way
 *   leave    to release the slot; the last process that leaves removes the file
 *   ending   said of a process that was killed or is exiting, while the kernel may not have freed its memory yet
 *
 * Any process of the user may write anything into the file.  So weir checks the file, and replaces an invalid one. */
#ifndef WEIR_SLOT_FILE_H
#define WEIR_SLOT_FILE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/kept.h"

enum {
    WEIR_SLOTS = 256,
    WEIR_SLOTS_AT = 4096,   /* the offset of the first slot; a page for the head comes first */
    WEIR_SLOT_OWNER_AT = 8, /* the offset of struct weir_slot_owner in a slot */
    /* In slots that count memory: the offset of a word that the process sets when it begins to exit normally.  From
     * then on, other processes may remove the file. */
    WEIR_SLOT_ENDS_AT = 32
};
enum { WEIR_SLOT_PATH = 256 };

/* The first bytes of a slot file.  If a field other than `limit` has an unexpected value, weir replaces the file. */
struct weir_slot_head {
    char magic[8];
    uint32_t version, slots, slot_bytes, unused;
    uint64_t limit; /* the memory limit of a group of processes, or 0 in files without a limit */
};

struct weir_slot_owner {
    uint64_t pid, start, namespace;
};

struct weir_slot_kind {
    const char *magic; /* the first 8 letters of the file */
    uint32_t version;
    size_t slot_bytes; /* at most 512 */
    size_t map_bytes;  /* the number of bytes that a process maps, from the start of the file */
    /* Set if a slot counts the memory of a process.  Such a slot has a second lock, the life lock, which shows whether
     * the process still runs.  slot_file.c does not clear such a slot, since the slot's bytes must first be subtracted
     * from the group's counter. */
    int is_counted;
};

/* A slot file that this process has opened.  `lock` guards all other fields. */
struct weir_slot_file {
    pthread_mutex_t lock;
    const struct weir_slot_kind *kind;
    struct weir_kept file; /* empty if the file was removed and could not be created again */
    int slot;              /* this process's slot; -1 if it only reads the file or has left */
    void *map;             /* the mapping of the file; the address never changes */
    uint64_t start;        /* the start time and the pid namespace of this process */
    uint64_t namespace;
    uint64_t checked_ns; /* the time of the last check that the file is valid */
    uint64_t limit;      /* the limit for a file that this process creates */
    char path[WEIR_SLOT_PATH];
};

/* Opens or creates the slot file `name`, and claims a slot.  Returns 0, or -1 with errno, EUSERS if no slot is free. */
int weir__slot_file_open(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name, uint64_t limit);
/* Opens the slot file `name` for reading only.  Returns 0 on success, -1 if the file does not exist. */
int weir__slot_file_view(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name);
/* Calls `visit` with the rest of each file name that starts with `begins`, if the rest is shorter than `most` bytes. */
void weir__slot_file_each(const char *begins, size_t most,
                          void (*visit)(const char *rest, void *context), void *context);

/* Releases this process's slot, if it has one, and closes the file.  Removes the file if no other process has a slot or
 * is ending.  Takes the lock of `f`. */
void weir__slot_file_leave(struct weir_slot_file *f);
/* Releases this process's slot, and unmaps the file. */
void weir__slot_file_close(struct weir_slot_file *f);
/* Unlocks the slot of this process, which begins to exit.  Keeps the slot's second lock, the life lock, until the
 * process has ended.  The caller holds the lock of `f`. */
void weir__slot_file_end(struct weir_slot_file *f);
/* Closes the file in a child of fork(), since the slot belongs to the parent. */
void weir__slot_file_close_in_child(struct weir_slot_file *f);

/* Returns 1 if the stored file descriptor still belongs to the slot file, else 0.  The program may have closed it. */
int weir__slot_file_has(const struct weir_slot_file *f);
/* Returns 1 if this process has a slot in a removed or damaged file, else 0.  The caller holds the lock of `f`. */
int weir__slot_file_is_lost(struct weir_slot_file *f);
/* Opens or creates the file again, and claims a slot.  Keeps the address of the mapping.  Returns 0, or -1 with errno
 * and the old mapping unchanged.  The caller holds the lock of `f`. */
int weir__slot_file_renew(struct weir_slot_file *f);

off_t weir__slot_offset(const struct weir_slot_file *f, int slot);
/* Returns 1 if a process has claimed the slot (another open file has locked it), else 0. */
int weir__slot_is_locked(const struct weir_slot_file *f, int slot);
/* Returns 1 if `namespace` is the pid namespace of this process, so that pids are comparable; else 0. */
int weir__slot_is_in_own_namespace(const struct weir_slot_file *f, uint64_t namespace);
/* Returns 1 if the process is exiting or was killed and its pid is valid in this pid namespace, else 0. */
int weir__slot_is_ending(const struct weir_slot_file *f, const struct weir_slot_owner *owner);
/* Returns 1 if the slot's owner still runs, or if the kernel cannot tell, else 0.  Only for slots that count memory. */
int weir__slot_is_process_running(const struct weir_slot_file *f, int slot);
/* Locks the slot of an ended process, so that no other process changes or claims it.  Returns 1 on success, 0 if
 * another process holds the lock.  Only for files whose slots count memory. */
int weir__slot_lock(const struct weir_slot_file *f, int slot);
void weir__slot_unlock(const struct weir_slot_file *f, int slot);
/* Locks all slots of a file that this process only reads.  Returns 1 on success, 0 if another process has a slot. */
int weir__slot_lock_all(const struct weir_slot_file *f);

#endif
