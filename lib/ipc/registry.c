/* SPDX-License-Identifier: MIT */
/* registry.c: the file of a registry, its slots and its bell.
 *
 * A process claims a slot by the lock of an open file (fcntl, F_OFD_SETLK) on one byte, without ever waiting.  So two
 * processes cannot have one slot, and the kernel frees the slot when its process dies at any point.  A child of fork
 * has the lock, too, until it becomes another program: the slot then stays taken, but its entry names a process that
 * has ended, and does not count.  If the pid is of another namespace, only the lock is checked.
 *
 * The lock belongs to the open file that the bell's page is a mapping of, so a program that closes the descriptor does
 * not free the slot (kept.h).  If the descriptor has become another file's, weir opens the file again and takes another
 * slot before it gives up the old one.
 *
 * All data are read and written by pread and pwrite: any process of the user may truncate the file, and access to
 * truncated memory raises a signal.  One pwrite writes an entry; the entry's checksum detects a torn or a foreign one.
 * The bell's page is mapped for its address alone: the kernel accesses it in FUTEX_WAIT and FUTEX_WAKE_OP, and returns
 * an error if it is gone.
 *
 * A new file has no name until it is complete (O_TMPFILE).  A process that leaves unlocks its slot and then tries to
 * lock all slots at once.  If that succeeds it is alone and keeps others out while it checks whether a process is still
 * ending; if none is, it removes the name.  A process that had opened the file before finds no slot or no name, and
 * begins again. A file that a killed process left is used by the next process that joins, or removed by one that looks
 * (tests/spin/registry.pml).
 *
 * A process that publishes checks whether the file still has its name, size and head.  If not, it wakes all sleepers of
 * the old bell and finds or makes another file.  A sleeper checks the name once a second: a login session that ends
 * removes the file (RemoveIPC in logind.conf), and of two files that are made at once one is lost.
 */
#include "ipc/registry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/futex.h"
#include "base/runfile.h"
#include "base/who.h"

#define MAGIC "weirledg"
/* The least time between two checks of the file, since growth comes in bursts. */
#define LOOK_NS UINT64_C(1000000)

enum { PAGE = 4096, BELL_AT = 64, TRIES = 64 };
/* A process that waits for a change (by a futex, the bell) checks this often whether the file has its name. */
enum { NAME_MS = 1000 };
/* How often a process that joins tries while another removes the file, with this pause.  A removal takes three calls
 * and a check for ending processes, unless the remover is stopped between them. */
enum { REMOVALS = 500 };
#define REMOVAL_PAUSE_NS 1000000

struct head {
    char magic[8];
    uint32_t version, slots, slot_bytes, entry_bytes;
};

struct slot {
    uint64_t sum;
    struct weir_registry_entry entry;
};

_Static_assert(sizeof(struct slot) == 512, "another layout is another version");

#define FILE_BYTES ((size_t)PAGE + WEIR_REGISTRY_SLOTS * sizeof(struct slot))

static const struct head the_head = {MAGIC, WEIR_REGISTRY_VERSION, WEIR_REGISTRY_SLOTS,
                                     sizeof(struct slot), sizeof(struct weir_registry_entry)};

uint64_t weir__registry_now(void) {
    return weir__clock_ns();
}

static off_t place_of(int slot) {
    return (off_t)(PAGE + (size_t)slot * sizeof(struct slot));
}

/* Computes FNV-1a over words.  The sum is never 0, so a file of zeros is not valid. */
static uint64_t sum_of(const struct weir_registry_entry *entry) {
    const char *at = (const char *)entry;
    uint64_t sum = UINT64_C(14695981039346656037), word;

    for (size_t i = 0; i < sizeof *entry; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        sum = (sum ^ word) * UINT64_C(1099511628211);
    }
    return sum | 1;
}

/* ---- the file ------------------------------------------------------------------------------------ */

/* Writes the path of the file. */
static int name_file(char path[WEIR_REGISTRY_PATH], const char *device) {
    return weir__runfile_path(path, WEIR_REGISTRY_PATH, "registry%d-%s", WEIR_REGISTRY_VERSION,
                              device);
}

/* Returns 1 if the file belongs to this user, is complete, and still has its name in the folder; else 0. */
static int is_sound(int file) {
    return weir__runfile_is_sound(file, FILE_BYTES, &the_head, sizeof the_head);
}

/* Returns 1 if the errno of open() says that the name belongs to something else than a plain file of this user, else 0.
 * Other errors, such as a lack of descriptors, do not say so.  With EPERM the name cannot be removed. */
static int is_in_the_way(int error) {
    return error == ELOOP || error == ENXIO || error == EISDIR || error == EACCES;
}

/* Opens the registry's file if it is valid.  Removes anything else of its name.  Returns -1 with errno on failure. */
static int find_file(const struct weir_registry *l) {
    int file, error;

    for (int i = 0; i < TRIES; i++) {
        file = weir__runfile_open(l->path, O_RDWR);
        if (file >= 0 && is_sound(file))
            return file;
        if (file >= 0) {
            error = weir__runfile_unname(file, l->path) == 0 ? ENOENT : errno;
            close(file);
        } else { /* a link is removed, not followed */
            error = errno;
            if (is_in_the_way(error))
                error = unlink(l->path) == 0 ? ENOENT : errno;
        }
        errno = error;
        if (error != ENOENT ||
            weir__runfile_make(l->path, FILE_BYTES, &the_head, sizeof the_head) != 0)
            return -1;
    }
    errno = EAGAIN;
    return -1;
}

/* ---- slots --------------------------------------------------------------------------------------- */

static struct flock slots(short type, int first, int count) {
    return (struct flock){.l_type = type,
                          .l_whence = SEEK_SET,
                          .l_start = place_of(first),
                          .l_len = place_of(first + count - 1) - place_of(first) + 1};
}

/* Returns 0 on success, 1 if another open file has one of these locks, -1 with errno if locks do not work here. */
static int lock_slots(int file, int first, int count) {
    struct flock lock = slots(F_WRLCK, first, count);

    if (fcntl(file, F_OFD_SETLK, &lock) == 0)
        return 0;
    return errno == EAGAIN || errno == EACCES ? 1 : -1;
}

/* Unlocks all slots, also for a child of fork, which shares the open file. */
static void unlock_slots(int file) {
    struct flock lock = slots(F_UNLCK, 0, WEIR_REGISTRY_SLOTS);

    (void)fcntl(file, F_OFD_SETLK, &lock);
}

/* Returns 1 if another process holds all slots to remove the file, or has just unlocked them; else 0. */
static int is_being_removed(int file) {
    struct flock lock = slots(F_WRLCK, 0, WEIR_REGISTRY_SLOTS);

    /* F_GETLK leaves the length unchanged if there is no lock. */
    return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_len != 1;
}

static int is_locked(int file, int slot) {
    struct flock lock = slots(F_WRLCK, slot, 1);

    return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static int is_whole(const struct slot *slot) {
    return slot->sum != 0 && slot->sum == sum_of(&slot->entry);
}

/* Reads a slot.  Returns 1 if it is whole, else 0. */
static int read_slot(int file, int number, struct slot *out) {
    return pread(file, out, sizeof *out, place_of(number)) == (ssize_t)sizeof *out && is_whole(out);
}

/* Returns 1 if the entry's pid is of this namespace, else 0. */
static int is_near(const struct weir_registry *l, const struct weir_registry_entry *entry) {
    return entry->namespace == l->namespace && l->namespace != 0;
}

static int is_ending(const struct weir_registry *l, const struct weir_registry_entry *entry) {
    return is_near(l, entry) && weir__process_is_ending((pid_t)entry->pid, entry->start);
}

static int has_ending(const struct weir_registry *l, int file, int number) {
    struct slot left;

    return read_slot(file, number, &left) && is_ending(l, &left.entry);
}

/* Claims a slot.  Returns -1 with errno on failure, EAGAIN if the file is being removed.  Slots whose processes are
 * ending are taken only if all others are, because requests still need the ending processes' entries. */
static int claim(const struct weir_registry *l, int file) {
    static const struct slot nothing;

    for (int all = 0; all < 2; all++) {
        for (int number = 0; number < WEIR_REGISTRY_SLOTS; number++) {
            int taken;

            if (!all && !is_locked(file, number) && has_ending(l, file, number))
                continue;
            taken = lock_slots(file, number, 1);
            if (taken < 0)
                return -1;
            if (taken > 0)
                continue;
            /* The old process may have begun to end meanwhile. */
            if (all || !has_ending(l, file, number)) {
                (void)!weir__file_write_at(file, &nothing, sizeof nothing, place_of(number));
                return number;
            }
            unlock_slots(file); /* this process has no other slot yet */
        }
        if (is_being_removed(file)) {
            errno = EAGAIN;
            return -1;
        }
    }
    errno = EUSERS;
    return -1;
}

/* Returns 1 if the slot appears locked to the own open file, else 0.  Then the program has closed that file, and
 * another part of the process has opened the file again with its number. */
static int is_another(const struct weir_registry *l) {
    return weir__kept_is(&l->file) && l->slot >= 0 && is_locked(l->file.number, l->slot);
}

static int has_file(const struct weir_registry *l) {
    return weir__kept_is(&l->file) && !is_another(l);
}

/* Maps the bell's page over the page before, which also unlocks the slot that the old mapping kept. */
static int map_bell(struct weir_registry *l, int file) {
    void *page = mmap(l->page, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | (l->page ? MAP_FIXED : 0),
                      file, 0);

    if (page == MAP_FAILED)
        return -1;
    if (!l->page) /* otherwise the address stays, and other threads may be reading it */
        l->page = page;
    return 0;
}

/* Clears the old slot before a new one is taken in that file, so that no process reads this entry twice. */
static void clear_before(const struct weir_registry *l, const struct weir_kept *file) {
    static const struct slot nothing;

    if (l->slot >= 0 && weir__kept_are_same(&l->file, file))
        (void)!weir__file_write_at(file->number, &nothing, sizeof nothing, place_of(l->slot));
}

/* Opens the file, claims a slot and maps the bell in place of the old ones.  If another process is stopped while it
 * removes the file, the file is replaced after a while. */
static int attach(struct weir_registry *l) {
    int file, slot, error, removals = 0;
    struct weir_kept kept;

    for (int i = 0; i < TRIES;) {
        file = find_file(l);
        if (file < 0)
            return -1;
        slot = claim(l, file);
        if (slot >= 0 && is_sound(file) && weir__kept_set(&kept, file) == 0) {
            clear_before(l, &kept);
            if (map_bell(l, file) == 0) {
                l->file = kept;
                l->slot = slot;
                return 0;
            }
        }
        error = errno;
        if (slot < 0 && error == EAGAIN && ++removals < REMOVALS)
            nanosleep(&(struct timespec){0, REMOVAL_PAUSE_NS}, NULL);
        else
            i++;
        if (removals == REMOVALS)
            (void)weir__runfile_unname(file, l->path);
        close(file);
        errno = error;
        if (slot < 0 && error != EAGAIN)
            return -1;
    }
    errno = EAGAIN;
    return -1;
}

/* ---- the bell ------------------------------------------------------------------------------------ */

static void *bell_of(const struct weir_registry *l) {
    return (char *)l->page + BELL_AT;
}

void weir__registry_ring(struct weir_registry *l) {
    /* Adds 1 to the bell and wakes all its sleepers.  No thread sleeps on the second word, which the call requires. */
    (void)syscall(SYS_futex, bell_of(l), WEIR_FUTEX_WAKE_OP, INT32_MAX, (long)0, bell_of(l),
                  WEIR_FUTEX_ADD_1);
}

/* Returns 0 if the bell was rung or has another value; else ETIMEDOUT, or EFAULT if the page is gone. */
static int sleep_on(struct weir_registry *l, uint32_t bell, unsigned milliseconds) {
    struct timespec longest = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};

    if (syscall(SYS_futex, bell_of(l), WEIR_FUTEX_WAIT, bell, &longest, NULL, 0) == 0)
        return 0;
    return errno == ETIMEDOUT || errno == EFAULT ? errno : 0;
}

uint32_t weir__registry_bell(struct weir_registry *l) {
    uint32_t bell = 0;

    pthread_mutex_lock(&l->lock);
    if (weir__kept_is(&l->file))
        (void)!pread(l->file.number, &bell, sizeof bell, BELL_AT);
    pthread_mutex_unlock(&l->lock);
    return bell;
}

/* Returns 1 if the file is open and has a name, else 0.  The mapped page may be another file's by now. */
static int has_named_file(struct weir_registry *l) {
    struct stat is;
    int has;

    pthread_mutex_lock(&l->lock);
    has = weir__kept_is(&l->file) && fstat(l->file.number, &is) == 0 && is.st_nlink > 0;
    pthread_mutex_unlock(&l->lock);
    return has;
}

/* A thread that waits also checks whether the file has its name: no process rings the bell of a file without a name. */
void weir__registry_wait(struct weir_registry *l, uint32_t bell, unsigned milliseconds) {
    unsigned part;
    int error;

    do {
        part = milliseconds < NAME_MS ? milliseconds : NAME_MS;
        error = has_named_file(l) ? sleep_on(l, bell, part) : EFAULT;
        milliseconds -= part;
    } while (error == ETIMEDOUT && milliseconds > 0);
    if (error == EFAULT) /* the caller looks for a file next, but not at once */
        nanosleep(&(struct timespec){0, 20000000}, NULL);
}

/* ---- opening, publishing and reading ---------------------------------------------------------------- */

static int begin(struct weir_registry *l, const char *device) {
    memset(l, 0, sizeof *l);
    l->file.number = l->slot = -1;
    l->start = weir__process_start(getpid());
    l->namespace = weir__process_namespace();
    return name_file(l->path, device);
}

struct visit {
    void (*device)(const char *device, void *context);
    void *context;
};

/* Visits the device if its file is the one that a process would open. */
static void visit_device(const char *path, const char *device, void *context) {
    const struct visit *visit = context;
    char own[WEIR_REGISTRY_PATH];

    if (strlen(device) < WEIR_REGISTRY_DEVICE && name_file(own, device) == 0 &&
        strcmp(path, own) == 0)
        visit->device(device, visit->context);
}

void weir__registry_each(void (*visit)(const char *device, void *context), void *context) {
    char begins[32];

    snprintf(begins, sizeof begins, "registry%d-", WEIR_REGISTRY_VERSION);
    weir__runfile_each(begins, visit_device, &(struct visit){visit, context});
}

int weir__registry_open(struct weir_registry *l, const char *device) {
    if (begin(l, device) != 0 || attach(l) != 0)
        return -1;
    pthread_mutex_init(&l->lock, NULL);
    return 0;
}

int weir__registry_look(struct weir_registry *l, const char *device) {
    int file;

    if (begin(l, device) != 0)
        return -1;
    file = weir__runfile_open(l->path, O_RDWR);
    if (file < 0)
        return -1;
    if (!is_sound(file) || weir__kept_set(&l->file, file) != 0 || map_bell(l, file) != 0) {
        close(file);
        return -1;
    }
    pthread_mutex_init(&l->lock, NULL);
    return 0;
}

/* Visits the entries of processes without a slot that are about to end.  Returns their number.  `visit` may be NULL. */
static int visit_ending(const struct weir_registry *l,
                        void (*visit)(int slot, const struct weir_registry_entry *entry,
                                      void *context),
                        void *context) {
    struct slot some[16];
    int count = 0;
    enum { SOME = sizeof some / sizeof some[0] };

    _Static_assert(WEIR_REGISTRY_SLOTS % SOME == 0, "none is left over");
    for (int i = 0; i < WEIR_REGISTRY_SLOTS; i++) {
        const struct slot *slot = &some[i % SOME];

        if (i % SOME == 0 &&
            pread(l->file.number, some, sizeof some, place_of(i)) != (ssize_t)sizeof some)
            break;
        if (i == l->slot || !is_whole(slot) || !is_ending(l, &slot->entry))
            continue;
        count++;
        if (visit)
            visit(i, &slot->entry, context);
    }
    return count;
}

/* Finds or makes another file if this one is no longer valid.  The caller holds the lock. */
static void look_after(struct weir_registry *l) {
    if (l->has_left || (has_file(l) && is_sound(l->file.number)))
        return;
    if (has_file(l)) /* restores the page, without which sleepers on the bell could not be woken */
        (void)weir__file_reserve(l->file.number, (off_t)FILE_BYTES);
    weir__registry_ring(l);
    if (is_another(l))
        l->file.number = -1;
    weir__kept_close(&l->file);
    if (l->file.number < 0)
        (void)attach(l);
}

void weir__registry_leave(struct weir_registry *l) {
    static const struct slot nothing;

    pthread_mutex_lock(&l->lock);
    if (l->file.number >= 0 && l->slot >= 0 && !has_file(l))
        look_after(l);
    if (has_file(l)) {
        if (l->slot >= 0)
            (void)!weir__file_write_at(l->file.number, &nothing, sizeof nothing, place_of(l->slot));
        /* If two processes leave at once, one of them finds itself alone. */
        unlock_slots(l->file.number);
        if (lock_slots(l->file.number, 0, WEIR_REGISTRY_SLOTS) == 0) {
            /* The file stays while a process is ending, whose memory a process that joins must know. */
            if (visit_ending(l, NULL, NULL) == 0)
                (void)weir__runfile_unname(l->file.number, l->path);
            unlock_slots(l->file.number);
        }
        weir__registry_ring(l);
    }
    l->slot = -1;
    weir__kept_close(&l->file);
    l->has_left = 1;
    pthread_mutex_unlock(&l->lock);
}

void weir__registry_close(struct weir_registry *l) {
    weir__registry_leave(l);
    munmap(l->page, PAGE);
    pthread_mutex_destroy(&l->lock);
    l->page = NULL;
}

void weir__registry_publish(struct weir_registry *l, struct weir_registry_entry *entry) {
    struct slot slot;
    int saved_errno = errno, is_kept;
    uint64_t now;

    pthread_mutex_lock(&l->lock);
    entry->pid = (uint64_t)getpid();
    entry->start = l->start;
    entry->namespace = l->namespace;
    slot.entry = *entry;
    slot.sum = sum_of(entry);
    now = weir__registry_now();
    is_kept = now - l->looked_ns <= LOOK_NS && weir__kept_is(&l->file);
    if (!is_kept) {
        look_after(l);
        l->looked_ns = now;
        is_kept = weir__kept_is(&l->file);
    }
    if (l->slot >= 0 && is_kept)
        (void)!weir__file_write_at(l->file.number, &slot, sizeof slot, place_of(l->slot));
    pthread_mutex_unlock(&l->lock);
    errno = saved_errno;
}

/* Returns 1 if the entry's process has ended, as far as its pid is of this namespace; else 0. */
static int has_ended(const struct weir_registry *l, const struct weir_registry_entry *entry) {
    return is_near(l, entry) && !weir__process_lives((pid_t)entry->pid, entry->start);
}

int weir__registry_read(struct weir_registry *l, int number, struct weir_registry_entry *out) {
    struct slot slot;
    int is_there = 0;

    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < TRIES && !is_there; i++) {
        if ((number != l->slot && !is_locked(l->file.number, number)) || !weir__kept_is(&l->file))
            break;
        is_there = read_slot(l->file.number, number, &slot);
    }
    pthread_mutex_unlock(&l->lock);
    if (!is_there || has_ended(l, &slot.entry))
        return 0;
    *out = slot.entry;
    out->command[sizeof out->command - 1] = '\0';
    return 1;
}

void weir__registry_ending(struct weir_registry *l,
                           void (*visit)(int slot, const struct weir_registry_entry *entry,
                                         void *context),
                           void *context) {
    pthread_mutex_lock(&l->lock);
    if (weir__kept_is(&l->file))
        (void)visit_ending(l, visit, context);
    pthread_mutex_unlock(&l->lock);
}

int weir__registry_is_stopped(const struct weir_registry *l,
                              const struct weir_registry_entry *entry) {
    return is_near(l, entry) && weir__process_is_stopped((pid_t)entry->pid);
}

int weir__registry_slot(struct weir_registry *l) {
    int slot;

    pthread_mutex_lock(&l->lock);
    slot = l->slot;
    pthread_mutex_unlock(&l->lock);
    return slot;
}
