/* SPDX-License-Identifier: MIT */
/* slot_file.c: opens or makes a slot file, claims slots, and removes the file.
 *
 * A process claims a slot by an open-file lock (fcntl, F_OFD_SETLK) on its bytes, which the kernel releases when the
 * process ends.  A child of fork() shares the lock until it closes the file or becomes another program.  The mapping
 * keeps the file open, and so the lock, if the program closes the descriptor (kept.h).  If the descriptor then belongs
 * to another file, weir opens the slot file again: it claims another slot and then releases the old one.
 *
 * A new file gets its name only when it is complete (O_TMPFILE).  A process that leaves unlocks its slot and tries to
 * lock all slots at once.  If this succeeds, no process has a slot or can claim one.  The process then removes the name
 * of the file, unless another process is still ending.  A process that has opened the file before the removal finds no
 * free slot or no name, and opens the file again.  If all processes are killed, the file stays; the next process uses
 * it, or removes it if this process only reads (tests/spin/registry.pml, tests/spin/group.pml).
 *
 * The system may remove the files of a user whose last login session ends (RemoveIPC in logind.conf).  So a process
 * checks from time to time whether its file still has its name, its size and its head. */
#include "ipc/slot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/runfile.h"
#include "base/who.h"

/* The minimum time between two checks whether the slot file was removed or damaged, in ns. */
#define FILE_CHECK_NS UINT64_C(1000000)
enum { TRIES = 64, MOST_SLOT_BYTES = 512, READ_BYTES = 16 * MOST_SLOT_BYTES };
/* How often weir tries, with pauses of REMOVAL_PAUSE_NS, to open a file that another process is removing. */
enum { REMOVALS = 500 };
#define REMOVAL_PAUSE_NS 1000000
/* The lock of byte LIVES_AT + N, far behind the end of the file, shows that the owner of slot N still runs. */
#define LIVES_AT ((off_t)1 << 61)

static const char nothing[MOST_SLOT_BYTES];

off_t weir__slot_offset(const struct weir_slot_file *f, int slot) {
    WEIR_ASSERT(slot >= 0 && slot <= WEIR_SLOTS);
    return (off_t)(WEIR_SLOTS_AT + (size_t)slot * f->kind->slot_bytes);
}

/* ---- the file ------------------------------------------------------------------------------------ */

static size_t file_bytes(const struct weir_slot_file *f) {
    return (size_t)weir__slot_offset(f, WEIR_SLOTS);
}

static struct weir_slot_head head_of(const struct weir_slot_file *f) {
    struct weir_slot_head head = {.version = f->kind->version,
                                  .slots = WEIR_SLOTS,
                                  .slot_bytes = (uint32_t)f->kind->slot_bytes,
                                  .limit = f->limit};

    memcpy(head.magic, f->kind->magic, sizeof head.magic);
    return head;
}

/* Returns 1 if the file belongs to this user, is complete and valid, and still has its name in the folder; else 0. */
static int is_slot_file_valid(const struct weir_slot_file *f, int file) {
    const struct weir_slot_head head = head_of(f);

    return weir__runfile_is_sound(file, file_bytes(f), &head,
                                  offsetof(struct weir_slot_head, limit));
}

/* Returns 1 if the error of open() means that the name is no plain file of this user, so that weir removes it; else 0.
 * Returns 0 for EPERM, because weir could not remove the name. */
static int is_not_plain_file(int error) {
    return error == ELOOP || error == ENXIO || error == EISDIR || error == EACCES;
}

/* Opens or creates the file.  First removes an invalid file or a link.  Returns the descriptor, or -1 with errno. */
static int find_file(const struct weir_slot_file *f) {
    const struct weir_slot_head head = head_of(f);
    int file, error;

    for (int i = 0; i < TRIES; i++) {
        file = weir__runfile_open(f->path, O_RDWR);
        if (file >= 0 && is_slot_file_valid(f, file))
            return file;
        if (file >= 0) {
            error = weir__runfile_unname(file, f->path) == 0 ? ENOENT : errno;
            close(file);
        } else { /* the name may belong to a link; weir removes the link and never follows it */
            error = errno;
            if (is_not_plain_file(error))
                error = unlink(f->path) == 0 ? ENOENT : errno;
        }
        errno = error;
        if (error != ENOENT || (f->kind->is_counted && f->limit == 0) ||
            weir__runfile_make(f->path, file_bytes(f), &head, sizeof head) != 0)
            return -1;
    }
    errno = EAGAIN;
    return -1;
}

/* ---- locks --------------------------------------------------------------------------------------- */

/* Calls fcntl(2) for a lock on the bytes from `at` up to `end`.  *lock receives the result of F_OFD_GETLK. */
static int lock_range(int file, int command, short type, off_t at, off_t end, struct flock *lock) {
    *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = end - at};
    return fcntl(file, command, lock);
}

/* Locks `count` slots from slot `first` on.  Returns 0, 1 if another open file has locked one, or -1 with errno. */
static int lock_slots(const struct weir_slot_file *f, int file, int first, int count) {
    struct flock lock;

    if (lock_range(file, F_OFD_SETLK, F_WRLCK, weir__slot_offset(f, first),
                   weir__slot_offset(f, first + count), &lock) == 0)
        return 0;
    return errno == EAGAIN || errno == EACCES ? 1 : -1;
}

/* Unlocks all slots of this open file.  A child of fork() shares the open file, so the child's locks also end. */
static void unlock_slots(const struct weir_slot_file *f, int file) {
    struct flock lock;

    (void)lock_range(file, F_OFD_SETLK, F_UNLCK, weir__slot_offset(f, 0),
                     weir__slot_offset(f, WEIR_SLOTS), &lock);
}

/* Returns 1 if another process is removing the file or may just have removed it, else 0.  A removal locks all slots. */
static int is_being_removed(const struct weir_slot_file *f, int file) {
    struct flock lock;

    /* F_OFD_GETLK sets l_len to the length of the lock that it finds, here one slot.  Without a lock, l_len stays. */
    return lock_range(file, F_OFD_GETLK, F_WRLCK, weir__slot_offset(f, 0),
                      weir__slot_offset(f, WEIR_SLOTS), &lock) == 0 &&
           lock.l_len != (off_t)f->kind->slot_bytes;
}

static int has_lock(const struct weir_slot_file *f, int file, int slot) {
    struct flock lock;

    return lock_range(file, F_OFD_GETLK, F_WRLCK, weir__slot_offset(f, slot),
                      weir__slot_offset(f, slot + 1), &lock) == 0 &&
           lock.l_type != F_UNLCK;
}

int weir__slot_is_locked(const struct weir_slot_file *f, int slot) {
    return has_lock(f, f->file.number, slot);
}

static int lock_life(int file, int slot, short type) {
    struct flock lock;

    return lock_range(file, F_OFD_SETLK, type, LIVES_AT + slot, LIVES_AT + slot + 1, &lock);
}

static int has_life(int file, int slot) {
    struct flock lock;

    return lock_range(file, F_OFD_GETLK, F_WRLCK, LIVES_AT + slot, LIVES_AT + slot + 1, &lock) !=
               0 ||
           lock.l_type != F_UNLCK;
}

int weir__slot_is_process_running(const struct weir_slot_file *f, int slot) {
    return slot == f->slot || !weir__kept_is(&f->file) || has_life(f->file.number, slot);
}

int weir__slot_lock(const struct weir_slot_file *f, int slot) {
    return lock_life(f->file.number, slot, F_WRLCK) == 0;
}

void weir__slot_unlock(const struct weir_slot_file *f, int slot) {
    (void)lock_life(f->file.number, slot, F_UNLCK);
}

int weir__slot_lock_all(const struct weir_slot_file *f) {
    return lock_slots(f, f->file.number, 0, WEIR_SLOTS) == 0;
}

/* ---- owners -------------------------------------------------------------------------------------- */

int weir__slot_is_in_own_namespace(const struct weir_slot_file *f, uint64_t namespace) {
    return namespace == f->namespace && f->namespace != 0;
}

int weir__slot_is_ending(const struct weir_slot_file *f, const struct weir_slot_owner *owner) {
    return weir__slot_is_in_own_namespace(f, owner->namespace) &&
           weir__process_is_ending((pid_t)owner->pid, owner->start);
}

/* Returns 1 if the last owner of the slot may still run or have memory, else 0. */
static int is_needed(const struct weir_slot_file *f, int file, int slot) {
    struct weir_slot_owner owner;

    if (f->kind->is_counted && has_life(file, slot))
        return 1;
    return pread(file, &owner, sizeof owner, weir__slot_offset(f, slot) + WEIR_SLOT_OWNER_AT) ==
               (ssize_t)sizeof owner &&
           weir__slot_is_ending(f, &owner);
}

/* Returns 1 if any other process with a slot is ending, else 0. */
static int is_any_ending(const struct weir_slot_file *f) {
    char some[READ_BYTES];
    int count = READ_BYTES / (int)f->kind->slot_bytes, file = f->file.number;
    struct weir_slot_owner owner;
    uint64_t ends = 0;

    for (int i = 0; i < WEIR_SLOTS; i++) {
        const char *slot = some + (size_t)(i % count) * f->kind->slot_bytes;

        if (i % count == 0 && pread(file, some, sizeof some, weir__slot_offset(f, i)) != READ_BYTES)
            return 0;
        memcpy(&owner, slot + WEIR_SLOT_OWNER_AT, sizeof owner);
        if (f->kind->is_counted)
            memcpy(&ends, slot + WEIR_SLOT_ENDS_AT, sizeof ends);
        if (i != f->slot && !ends && weir__slot_is_ending(f, &owner))
            return 1;
    }
    return 0;
}

/* ---- claiming ------------------------------------------------------------------------------------ */

static void clear_slot(const struct weir_slot_file *f, int file, int slot) {
    if (!f->kind->is_counted)
        (void)!weir__file_write_at(file, nothing, f->kind->slot_bytes, weir__slot_offset(f, slot));
}

/* Claims a slot.  Uses the slot of an ending process last, since the slot tells how much memory will become free.
 * Returns the slot's number, or -1 with errno.  EAGAIN means that another process is removing the file. */
static int claim_slot(const struct weir_slot_file *f, int file) {
    for (int all = 0; all < 2; all++) {
        for (int slot = 0; slot < WEIR_SLOTS; slot++) {
            int taken;

            if (!all && !has_lock(f, file, slot) && is_needed(f, file, slot))
                continue;
            taken = lock_slots(f, file, slot, 1);
            if (taken < 0)
                return -1;
            if (taken > 0)
                continue;
            /* checks again under the lock, because the slot's owner may have begun to exit since the first check */
            if ((all || !is_needed(f, file, slot)) &&
                (!f->kind->is_counted || lock_life(file, slot, F_WRLCK) == 0)) {
                clear_slot(f, file, slot);
                return slot;
            }
            /* Unlocks only this slot, since this process has no other slot in the file. */
            unlock_slots(f, file);
        }
        if (is_being_removed(f, file)) {
            errno = EAGAIN;
            return -1;
        }
    }
    errno = EUSERS;
    return -1;
}

/* Maps the file, in place of the old mapping, whose slot the kernel then unlocks.  Returns 0, or -1 with errno. */
static int map_slot_file(struct weir_slot_file *f, int file) {
    void *map = mmap(f->map, f->kind->map_bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | (f->map ? MAP_FIXED : 0), file, 0);

    if (map == MAP_FAILED)
        return -1;
    if (!f->map) /* a replaced mapping keeps its address, which other threads use */
        f->map = map;
    return 0;
}

/* Opens or creates the file, claims a slot and maps the file, in place of the old ones.  If a stopped process has begun
 * to remove the file, creates another file.  Returns 0, or -1 with errno. */
static int attach_slot_file(struct weir_slot_file *f) {
    int file, slot, error, removals = 0;
    struct weir_kept kept;

    for (int i = 0; i < TRIES;) {
        file = find_file(f);
        if (file < 0)
            return -1;
        slot = claim_slot(f, file);
        if (slot >= 0 && is_slot_file_valid(f, file) && weir__kept_set(&kept, file) == 0) {
            /* If this process has opened the same file again, it now has two slots in the file.  Clears the old one. */
            if (f->slot >= 0 && weir__kept_are_same(&f->file, &kept))
                clear_slot(f, file, f->slot);
            if (map_slot_file(f, file) == 0) {
                f->file = kept;
                f->slot = slot;
                return 0;
            }
        }
        error = errno;
        if (slot < 0 && error == EAGAIN && ++removals < REMOVALS)
            nanosleep(&(struct timespec){0, REMOVAL_PAUSE_NS}, NULL);
        else
            i++;
        if (removals == REMOVALS)
            (void)weir__runfile_unname(file, f->path);
        close(file);
        errno = error;
        if (slot < 0 && error != EAGAIN)
            return -1;
    }
    errno = EAGAIN;
    return -1;
}

/* ---- opening and leaving ------------------------------------------------------------------------- */

static int init_slot_file(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                          const char *name, uint64_t limit) {
    memset(f, 0, sizeof *f);
    f->kind = kind;
    f->limit = limit;
    f->file.number = f->slot = -1;
    f->start = weir__process_start(getpid());
    f->namespace = weir__process_namespace();
    return weir__runfile_path(f->path, sizeof f->path, "%s", name);
}

int weir__slot_file_open(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name, uint64_t limit) {
    if (init_slot_file(f, kind, name, limit) != 0 || attach_slot_file(f) != 0)
        return -1;
    pthread_mutex_init(&f->lock, NULL);
    return 0;
}

int weir__slot_file_view(struct weir_slot_file *f, const struct weir_slot_kind *kind,
                         const char *name) {
    int file;

    if (init_slot_file(f, kind, name, 0) != 0)
        return -1;
    file = weir__runfile_open(f->path, O_RDWR);
    if (file < 0)
        return -1;
    if (!is_slot_file_valid(f, file) || weir__kept_set(&f->file, file) != 0 ||
        map_slot_file(f, file) != 0) {
        close(file);
        return -1;
    }
    pthread_mutex_init(&f->lock, NULL);
    return 0;
}

struct visit {
    const char *begins;
    size_t most;
    void (*visit)(const char *rest, void *context);
    void *context;
};

/* Calls `visit` for the file at `path`, but only if weir__slot_file_open() would open this path. */
static void visit_file(const char *path, const char *rest, void *context) {
    const struct visit *of = context;
    char own[WEIR_SLOT_PATH];

    if (strlen(rest) < of->most &&
        weir__runfile_path(own, sizeof own, "%s%s", of->begins, rest) == 0 &&
        strcmp(path, own) == 0)
        of->visit(rest, of->context);
}

void weir__slot_file_each(const char *begins, size_t most,
                          void (*visit)(const char *rest, void *context), void *context) {
    weir__runfile_each(begins, visit_file, &(struct visit){begins, most, visit, context});
}

/* Returns 1 if the descriptor no longer holds the lock of this process's slot, else 0.  The program may have closed the
 * descriptor, and later opened the file with an equal descriptor number. */
static int is_another(const struct weir_slot_file *f) {
    return weir__kept_is(&f->file) && f->slot >= 0 && weir__slot_is_locked(f, f->slot);
}

int weir__slot_file_has(const struct weir_slot_file *f) {
    return weir__kept_is(&f->file) && !is_another(f);
}

int weir__slot_file_is_lost(struct weir_slot_file *f) {
    uint64_t now = weir__clock_ns();

    if (f->slot < 0 || (now - f->checked_ns <= FILE_CHECK_NS && weir__kept_is(&f->file)))
        return 0;
    f->checked_ns = now;
    return !weir__slot_file_has(f) || !is_slot_file_valid(f, f->file.number);
}

int weir__slot_file_renew(struct weir_slot_file *f) {
    if (is_another(f))
        f->file.number = -1;
    weir__kept_close(&f->file);
    return f->file.number < 0 ? attach_slot_file(f) : -1;
}

/* Unlocks this process's slot, and removes the file if no process has a slot or is ending.  If two processes release
 * their slots at once, at least one of them gets all locks, so the file is removed. */
static void remove_if_alone(const struct weir_slot_file *f) {
    int file = f->file.number;

    unlock_slots(f, file);
    if (lock_slots(f, file, 0, WEIR_SLOTS) != 0)
        return;
    /* The file stays while a process is ending: its slot tells other processes how much memory will become free. */
    if (!is_any_ending(f))
        (void)weir__runfile_unname(file, f->path);
    unlock_slots(f, file);
}

void weir__slot_file_end(struct weir_slot_file *f) {
    if (weir__slot_file_has(f))
        remove_if_alone(f);
}

void weir__slot_file_leave(struct weir_slot_file *f) {
    pthread_mutex_lock(&f->lock);
    if (f->file.number >= 0 && f->slot >= 0 && !weir__slot_file_has(f))
        (void)weir__slot_file_renew(f);
    if (weir__slot_file_has(f)) {
        if (f->slot >= 0)
            clear_slot(f, f->file.number, f->slot);
        remove_if_alone(f);
    }
    f->slot = -1;
    weir__kept_close(&f->file);
    pthread_mutex_unlock(&f->lock);
}

void weir__slot_file_close_in_child(struct weir_slot_file *f) {
    if (f->map)
        munmap(f->map, f->kind->map_bytes);
    weir__kept_close(&f->file);
    f->map = NULL;
}

void weir__slot_file_close(struct weir_slot_file *f) {
    weir__slot_file_leave(f);
    weir__slot_file_close_in_child(f);
    pthread_mutex_destroy(&f->lock);
}
