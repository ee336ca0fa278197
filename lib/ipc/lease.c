/* SPDX-License-Identifier: MIT */
/* lease.c: see lease.h.
 *
 * The word of a place contains a life number, which rises when the place is used again, and a phase.  An importer takes
 * the lock of the place before it writes HELD, and drops the lock after it has written the next phase.  So if the word
 * is HELD and the lock is free, the importer has ended.
 */
#include "ipc/lease.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

#define MAGIC UINT64_C(0x7765697220736831)
#define EXPORTER 0 /* the byte that the exporter locks */

enum phase { UNUSED, OFFERED, HELD, RETURNED, PHASES };

struct weir_loans_page {
    uint64_t magic, name;
    char device[16];
    _Atomic uint64_t word[WEIR_LOANS_PLACES];
};

static const struct weir_loans no_loans = {.file = WEIR_KEPT_NONE, .given = WEIR_KEPT_NONE};

static uint64_t word_of(uint64_t life, enum phase phase) {
    return life * PHASES + phase;
}

/* ---- locks ----------------------------------------------------------------------------------- */

static struct flock byte_of(off_t at, short kind) {
    struct flock lock;

    memset(&lock, 0, sizeof lock);
    lock.l_type = kind;
    lock.l_whence = SEEK_SET;
    lock.l_start = at;
    lock.l_len = 1;
    return lock;
}

static int try_lock(const struct weir_loans *l, off_t at) {
    struct flock lock = byte_of(at, F_WRLCK);

    return weir__kept_is(&l->file) && fcntl(l->file.number, F_OFD_SETLK, &lock) == 0;
}

static void unlock(const struct weir_loans *l, off_t at) {
    struct flock lock = byte_of(at, F_UNLCK);

    if (weir__kept_is(&l->file))
        (void)fcntl(l->file.number, F_OFD_SETLK, &lock);
}

/* Returns 1 if another open file has locked the byte or the kernel cannot say, else 0. */
static int is_locked(const struct weir_loans *l, off_t at) {
    struct flock lock = byte_of(at, F_WRLCK);

    return !weir__kept_is(&l->file) || fcntl(l->file.number, F_OFD_GETLK, &lock) != 0 ||
           lock.l_type != F_UNLCK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static int keep(struct weir_kept *kept, int file) {
    if (file < 0 || weir__kept_set(kept, file) == 0)
        return file < 0 ? -1 : 0;
    close(file);
    return -1;
}

static int open_anew(struct weir_loans *l, int file) {
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return keep(&l->file, weir__file_open(path, O_RDWR, 0));
}

static weir_status map(struct weir_loans *l) {
    void *page = mmap(NULL, sizeof *l->page, PROT_READ | PROT_WRITE, MAP_SHARED, l->file.number, 0);

    if (page == MAP_FAILED)
        return WEIR_E_HOST_MEMORY;
    l->page = page;
    return WEIR_OK;
}

weir_status weir__loans_make(struct weir_loans *l, const char device[16]) {
    struct timespec now;

    *l = no_loans;
    if (keep(&l->given, weir__file_above(memfd_create("weir-loans", MFD_CLOEXEC))) != 0 ||
        weir__file_resize(l->given.number, (off_t)sizeof *l->page) != 0 ||
        open_anew(l, l->given.number) != 0 || map(l) != WEIR_OK || !try_lock(l, EXPORTER)) {
        weir__loans_close(l);
        return WEIR_E_HOST_MEMORY;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    l->page->name = (uint64_t)getpid() << 40 ^ (uint64_t)now.tv_sec << 20 ^ (uint64_t)now.tv_nsec ^
                    (uintptr_t)l->page;
    memcpy(l->page->device, device, sizeof l->page->device);
    l->page->magic = MAGIC;
    return WEIR_OK;
}

weir_status weir__loans_open(struct weir_loans *l, int file) {
    struct stat status;
    weir_status mapped;

    *l = no_loans;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_size != (off_t)sizeof *l->page)
        return WEIR_E_INVALID;
    mapped = open_anew(l, file) != 0 ? WEIR_E_HOST_MEMORY : map(l);
    if (mapped == WEIR_OK && l->page->magic != MAGIC)
        mapped = WEIR_E_INVALID;
    if (mapped == WEIR_OK && !weir__loans_is_kept(l))
        mapped = WEIR_E_NOT_OWNED;
    if (mapped != WEIR_OK)
        weir__loans_close(l);
    return mapped;
}

void weir__loans_close(struct weir_loans *l) {
    if (l->page)
        munmap(l->page, sizeof *l->page);
    weir__kept_close(&l->file);
    weir__kept_close(&l->given);
    l->page = NULL;
}

const char *weir__loans_device(const struct weir_loans *l) {
    return l->page->device;
}

uint64_t weir__loans_name(const struct weir_loans *l) {
    return l->page->name;
}

int weir__loans_is_kept(const struct weir_loans *l) {
    return is_locked(l, EXPORTER);
}

/* ---- places ---------------------------------------------------------------------------------- */

weir_status weir__loans_offer(struct weir_loans *l, uint32_t *place, uint64_t *life) {
    for (uint32_t i = 0; i < WEIR_LOANS_PLACES; i++) {
        uint64_t word = atomic_load(&l->page->word[i]);

        if (word % PHASES != UNUSED)
            continue;
        *place = i;
        *life = word / PHASES + 1;
        /* Only the exporter writes an unused place. */
        atomic_store(&l->page->word[i], word_of(*life, OFFERED));
        return WEIR_OK;
    }
    return WEIR_E_LIMIT;
}

int weir__loans_is_over(const struct weir_loans *l, uint32_t place) {
    uint64_t phase = atomic_load(&l->page->word[place]) % PHASES;

    return phase == RETURNED || (phase == HELD && !is_locked(l, 1 + (off_t)place));
}

weir_status weir__loans_withdraw(struct weir_loans *l, uint32_t place) {
    _Atomic uint64_t *at = &l->page->word[place];
    uint64_t word = atomic_load(at), life = word / PHASES;

    if (word == word_of(life, OFFERED) &&
        /* unreached: another phase by now, for which an importer must take the block just now */
        atomic_compare_exchange_strong(at, &word, word_of(life, UNUSED)))
        return WEIR_OK;
    if (word == word_of(life, HELD) && is_locked(l, 1 + (off_t)place))
        return WEIR_E_BUSY;
    atomic_store(at, word_of(life, UNUSED));
    return WEIR_OK;
}

weir_status weir__loans_take(struct weir_loans *l, uint32_t place, uint64_t life) {
    uint64_t word = word_of(life, OFFERED);

    if (place >= WEIR_LOANS_PLACES)
        return WEIR_E_INVALID;
    if (atomic_load(&l->page->word[place]) == word_of(life, HELD))
        return WEIR_E_BUSY;
    if (!weir__loans_is_kept(l))
        return WEIR_E_NOT_OWNED;
    if (!try_lock(l, 1 + (off_t)place))
        return WEIR_E_BUSY; /* another importer is about to take the block */
    if (atomic_compare_exchange_strong(&l->page->word[place], &word, word_of(life, HELD)))
        return WEIR_OK;
    unlock(l, 1 + (off_t)place);
    /* unreached: held, for which another importer must have taken the block since the check above */
    return word == word_of(life, HELD) ? WEIR_E_BUSY : WEIR_E_NOT_OWNED;
}

void weir__loans_give(struct weir_loans *l, uint32_t place, int is_over) {
    uint64_t life = atomic_load(&l->page->word[place]) / PHASES;

    atomic_store(&l->page->word[place], word_of(life, is_over ? RETURNED : OFFERED));
    unlock(l, 1 + (off_t)place);
}
