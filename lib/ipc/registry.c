/* SPDX-License-Identifier: MIT */
/* registry.c: reads and writes the entries of a shared registry, and rings its bell, a futex word.
 *
 * weir uses pread and pwrite, since another process may truncate the file, and an access to truncated mapped memory
 * raises a signal.  One pwrite writes a whole entry; its checksum detects an incomplete one.  The page of the bell is
 * mapped, but only the kernel accesses it, in FUTEX_WAIT and FUTEX_WAKE_OP, which return an error if the page is gone.
 *
 * A child of fork() keeps the lock of its parent's slot.  So weir also checks that the process of an entry still runs,
 * unless its pid belongs to another namespace.
 *
 * Before a process publishes its entry, it checks the file.  If the file is no longer valid, it wakes all threads that
 * sleep on the old bell, and opens or makes another file.  If two processes make a file at once, one of the files loses
 * its name, so a sleeping thread checks once a second whether its file still has a name. */
#include "ipc/registry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/futex.h"
#include "base/who.h"

enum { BELL_AT = 64, TRIES = 64 };
/* How often, in ms, weir__registry_wait() checks that the file was not removed. */
enum { NAME_MS = 1000 };

struct slot {
    uint64_t sum;
    struct weir_registry_entry entry;
};

_Static_assert(sizeof(struct slot) == 512, "another layout is another version");
_Static_assert(offsetof(struct slot, entry.pid) == WEIR_SLOT_OWNER_AT, "the owner has its place");

static const struct weir_slot_kind the_kind = {"weirledg", WEIR_REGISTRY_VERSION,
                                               sizeof(struct slot), WEIR_SLOTS_AT, 0};

uint64_t weir__registry_now(void) {
    return weir__clock_ns();
}

/* Computes the FNV-1a checksum of an entry; never 0, so a slot of zeros is not valid. */
static uint64_t entry_checksum(const struct weir_registry_entry *entry) {
    const char *at = (const char *)entry;
    uint64_t sum = UINT64_C(14695981039346656037), word;

    for (size_t i = 0; i < sizeof *entry; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        sum = (sum ^ word) * UINT64_C(1099511628211);
    }
    return sum | 1;
}

/* Reads slot `number` of the file.  Returns 1 if the slot contains a complete entry, else 0. */
static int read_slot(const struct weir_slot_file *f, int number, struct slot *out) {
    return pread(f->file.number, out, sizeof *out, weir__slot_offset(f, number)) ==
               (ssize_t)sizeof *out &&
           out->sum != 0 && out->sum == entry_checksum(&out->entry);
}

/* ---- the bell ------------------------------------------------------------------------------------ */

static void *registry_bell(const struct weir_slot_file *f) {
    return (char *)f->map + BELL_AT;
}

void weir__registry_ring(struct weir_slot_file *f) {
    /* FUTEX_WAKE_OP adds 1 to the bell and wakes all threads that sleep on it. */
    (void)syscall(SYS_futex, registry_bell(f), WEIR_FUTEX_WAKE_OP, INT32_MAX, (long)0,
                  registry_bell(f), WEIR_FUTEX_ADD_1);
}

/* Sleeps while the file's futex word is `bell`.  Returns 0, ETIMEDOUT, or EFAULT if the file was truncated. */
static int sleep_on_registry(struct weir_slot_file *f, uint32_t bell, unsigned milliseconds) {
    struct timespec longest = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};

    if (syscall(SYS_futex, registry_bell(f), WEIR_FUTEX_WAIT, bell, &longest, NULL, 0) == 0)
        return 0;
    return errno == ETIMEDOUT || errno == EFAULT ? errno : 0;
}

uint32_t weir__registry_bell(struct weir_slot_file *f) {
    uint32_t bell = 0;

    pthread_mutex_lock(&f->lock);
    if (weir__kept_is(&f->file))
        (void)!pread(f->file.number, &bell, sizeof bell, BELL_AT);
    pthread_mutex_unlock(&f->lock);
    return bell;
}

/* Returns 1 if the file was not removed and the program has not closed its descriptor, else 0. */
static int has_named_file(struct weir_slot_file *f) {
    struct stat is;
    int has;

    pthread_mutex_lock(&f->lock);
    has = weir__kept_is(&f->file) && fstat(f->file.number, &is) == 0 && is.st_nlink > 0;
    pthread_mutex_unlock(&f->lock);
    return has;
}

/* Checks the file every NAME_MS, because no process wakes a thread that waits on a removed file. */
void weir__registry_wait(struct weir_slot_file *f, uint32_t bell, unsigned milliseconds) {
    unsigned part;
    int error;

    do {
        part = milliseconds < NAME_MS ? milliseconds : NAME_MS;
        error = has_named_file(f) ? sleep_on_registry(f, bell, part) : EFAULT;
        milliseconds -= part;
    } while (error == ETIMEDOUT && milliseconds > 0);
    if (error == EFAULT) /* limits how often the caller opens the file again */
        nanosleep(&(struct timespec){0, 20000000}, NULL);
}

/* ---- opening, publishing and reading ---------------------------------------------------------------- */

static void name_registry_file(char name[WEIR_SLOT_PATH], const char *device) {
    snprintf(name, WEIR_SLOT_PATH, "registry%d-%s", WEIR_REGISTRY_VERSION, device);
}

void weir__registry_each(void (*visit)(const char *device, void *context), void *context) {
    char begins[WEIR_SLOT_PATH];

    name_registry_file(begins, "");
    weir__slot_file_each(begins, WEIR_REGISTRY_DEVICE, visit, context);
}

int weir__registry_open(struct weir_slot_file *f, const char *device) {
    char name[WEIR_SLOT_PATH];

    name_registry_file(name, device);
    return weir__slot_file_open(f, &the_kind, name, 0);
}

int weir__registry_view(struct weir_slot_file *f, const char *device) {
    char name[WEIR_SLOT_PATH];

    name_registry_file(name, device);
    return weir__slot_file_view(f, &the_kind, name);
}

void weir__registry_leave(struct weir_slot_file *f) {
    weir__slot_file_leave(f);
    weir__registry_ring(f);
}

void weir__registry_close(struct weir_slot_file *f) {
    weir__registry_leave(f);
    weir__slot_file_close(f);
}

void weir__registry_publish(struct weir_slot_file *f, struct weir_registry_entry *entry) {
    struct slot slot;
    int saved_errno = errno;

    pthread_mutex_lock(&f->lock);
    entry->pid = (uint64_t)getpid();
    entry->start = f->start;
    entry->namespace = f->namespace;
    slot.entry = *entry;
    slot.sum = entry_checksum(entry);
    if (weir__slot_file_is_lost(f)) {
        /* weir__registry_ring() accesses the file's first page, so a truncated file gets this page again. */
        if (weir__slot_file_has(f))
            (void)weir__file_reserve(f->file.number, WEIR_SLOTS_AT);
        weir__registry_ring(f);
        (void)weir__slot_file_renew(f);
    }
    if (f->slot >= 0 && weir__kept_is(&f->file))
        (void)!weir__file_write_at(f->file.number, &slot, sizeof slot,
                                   weir__slot_offset(f, f->slot));
    pthread_mutex_unlock(&f->lock);
    errno = saved_errno;
}

/* Returns 1 if the process of the entry has ended, else 0.  Returns 0 if its pid belongs to another pid namespace. */
static int has_entry_ended(const struct weir_slot_file *f,
                           const struct weir_registry_entry *entry) {
    return weir__slot_is_in_own_namespace(f, entry->namespace) &&
           !weir__process_lives((pid_t)entry->pid, entry->start);
}

int weir__registry_read(struct weir_slot_file *f, int number, struct weir_registry_entry *out) {
    struct slot slot;
    int is_there = 0;

    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < TRIES && !is_there; i++) {
        if ((number != f->slot && !weir__slot_is_locked(f, number)) || !weir__kept_is(&f->file))
            break;
        is_there = read_slot(f, number, &slot);
    }
    pthread_mutex_unlock(&f->lock);
    if (!is_there || has_entry_ended(f, &slot.entry))
        return 0;
    *out = slot.entry;
    out->command[sizeof out->command - 1] = '\0';
    return 1;
}

void weir__registry_each_ending(struct weir_slot_file *f,
                                void (*visit)(int slot, const struct weir_registry_entry *entry,
                                              void *context),
                                void *context) {
    struct weir_slot_owner owner;
    struct slot slot;

    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < WEIR_SLOTS && weir__kept_is(&f->file); i++) {
        if (i == f->slot || !read_slot(f, i, &slot))
            continue;
        owner = (struct weir_slot_owner){slot.entry.pid, slot.entry.start, slot.entry.namespace};
        if (weir__slot_is_ending(f, &owner))
            visit(i, &slot.entry, context);
    }
    pthread_mutex_unlock(&f->lock);
}

int weir__registry_is_stopped(const struct weir_slot_file *f,
                              const struct weir_registry_entry *entry) {
    return weir__slot_is_in_own_namespace(f, entry->namespace) &&
           weir__process_is_stopped((pid_t)entry->pid);
}

int weir__registry_slot(struct weir_slot_file *f) {
    int slot;

    pthread_mutex_lock(&f->lock);
    slot = f->slot;
    pthread_mutex_unlock(&f->lock);
    return slot;
}
