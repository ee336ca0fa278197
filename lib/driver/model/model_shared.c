/* SPDX-License-Identifier: MIT */
/* model_shared.c: counts the memory of modelled devices that several processes share through a file (model_shared.h).
 *
 * The file has a mark, and a slot for each process, which only this process writes.  There is no lock, because a
 * stopped process would hold it for ever.  To allocate, a process adds the bytes to `wanted` in its slot, checks that
 * all `bytes` and `wanted` together are at most the capacity, and subtracts the bytes from `wanted` again.  If the
 * check fails although the sum of `bytes` leaves room, two processes may have made each other fail, so each tries
 * again.  A process that finds too little memory clears the slots of ended processes, at most every few milliseconds.
 */
#include "driver/model/model_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/who.h"

enum { SLOTS = 512, DEVICES = 16, TRIES = 200 };

/* The value of `owner` while a process clears the slot of an ended process. */
#define NOBODY UINT64_C(1)
/* The minimum time between two checks whether the owners of slots still run.  The checks are slow. */
#define OWNER_CHECK_NS UINT64_C(5000000)

struct slot {
    /* The pid (upper half) and start time (lower half) of the process that owns the slot; 0 if it is free. */
    _Atomic uint64_t owner;
    _Atomic uint64_t bytes[DEVICES];  /* the bytes that the process has allocated on each device */
    _Atomic uint64_t wanted[DEVICES]; /* the bytes that the process is about to allocate */
};

/* the first bytes of each shared file */
static const char mark[8] = {'w', 'e', 'i', 'r', 'm', 'o', 'd', '3'};

struct file {
    char mark[sizeof mark];
    struct slot slots[SLOTS];
};

static struct {
    struct file *file;
    uint64_t key;
    struct slot *own; /* this process's slot; in a child of fork(), the slot of the parent */
    pid_t pid;
} shared;

static uint64_t owner_of(pid_t pid, uint64_t start) {
    return (uint64_t)pid << 32 | (uint32_t)start;
}

static int owner_lives(uint64_t owner) {
    uint64_t start = weir__process_start((pid_t)(owner >> 32));

    return start == UINT64_MAX || (uint32_t)start == (uint32_t)owner;
}

static void clear(struct slot *slot) {
    for (int i = 0; i < DEVICES; i++) {
        atomic_store(&slot->bytes[i], 0);
        atomic_store(&slot->wanted[i], 0);
    }
}

static void clear_if(struct slot *slot, uint64_t owner) {
    if (!atomic_compare_exchange_strong(&slot->owner, &owner, NOBODY))
        return;
    clear(slot);
    atomic_store(&slot->owner, 0);
}

static void clear_ended_slots(void) {
    static _Atomic uint64_t last;
    uint64_t now = weir__clock_ns();

    if (now - atomic_load(&last) < OWNER_CHECK_NS)
        return;
    atomic_store(&last, now);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &shared.file->slots[i];
        uint64_t owner = atomic_load(&slot->owner);

        if (owner > NOBODY && !owner_lives(owner))
            clear_if(slot, owner);
    }
}

/* Checks the mark of the file, and writes it if the file is empty.  Returns 0 on success, -1 with errno. */
static int check_file_mark(int file) {
    char begins[sizeof mark];
    ssize_t length = pread(file, begins, sizeof begins, 0);

    if (length < 0)
        return -1;
    if (length == 0)
        return weir__file_write_at(file, mark, sizeof mark, 0) == (ssize_t)sizeof mark ? 0 : -1;
    if (length == (ssize_t)sizeof mark && memcmp(begins, mark, sizeof mark) == 0)
        return 0;
    errno = EEXIST;
    return -1;
}

static int map_file(const char *path) {
    struct stat is;
    void *map = MAP_FAILED;
    int file = weir__file_open(path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600), error;

    if (file < 0)
        return -1;
    if (check_file_mark(file) == 0 && weir__file_resize(file, sizeof(struct file)) == 0 &&
        fstat(file, &is) == 0)
        map = mmap(NULL, sizeof(struct file), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    error = errno;
    close(file);
    errno = error;
    if (map == MAP_FAILED)
        return -1;
    shared.file = map;
    shared.key = (uint64_t)is.st_ino;
    return 0;
}

static int claim(void) {
    uint64_t own = owner_of(getpid(), weir__process_start(getpid()));

    clear_ended_slots();
    /* clears the slot of the program that this process ran before exec */
    for (int i = 0; i < SLOTS; i++)
        clear_if(&shared.file->slots[i], own);
    for (int i = 0; i < SLOTS; i++) {
        uint64_t nobody = 0;

        if (!atomic_compare_exchange_strong(&shared.file->slots[i].owner, &nobody, own))
            continue;
        shared.own = &shared.file->slots[i];
        shared.pid = getpid();
        return 0;
    }
    errno = EUSERS;
    return -1;
}

int weir__model_shared_join(void) {
    const char *path = getenv("WEIR_MODEL_SHARED");

    if (!path)
        return 0;
    if (!shared.file && map_file(path) != 0)
        return -1;
    if (!shared.own || shared.pid != getpid())
        return claim();
    clear(shared.own);
    return 0;
}

int weir__model_shared_is(void) {
    return shared.own != NULL;
}

uint64_t weir__model_shared_key(void) {
    return shared.own ? shared.key : 0;
}

/* Returns the sum of allocated bytes in all slots but `without`.  With `wanted`, adds planned allocations. */
static uint64_t sum_allocated(int device, const struct slot *without, int wanted) {
    uint64_t sum = 0;

    for (int i = 0; i < SLOTS; i++) {
        const struct slot *slot = &shared.file->slots[i];

        if (slot == without || atomic_load(&slot->owner) <= NOBODY)
            continue;
        sum += atomic_load(&slot->bytes[device]);
        if (wanted)
            sum += atomic_load(&slot->wanted[device]);
    }
    return sum;
}

uint64_t weir__model_shared_others(int device) {
    if (!shared.own || sum_allocated(device, shared.own, 0) == 0)
        return 0;
    clear_ended_slots();
    return sum_allocated(device, shared.own, 0);
}

/* Sleeps for a short time that differs between processes, so that two processes do not retry at the same moment. */
static void pause_for_others(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    now.tv_sec = 0;
    now.tv_nsec = 20000 + (now.tv_nsec ^ ((long)getpid() * 7919)) % 100000;
    nanosleep(&now, NULL);
}

int weir__model_shared_alloc(int device, uint64_t capacity, uint64_t bytes) {
    struct slot *own = shared.own;
    int fits = 0, may_fit = 1;

    if (!own || bytes == 0)
        return 0;
    for (int i = 0; i < TRIES && !fits && may_fit; i++) {
        if (i > 0)
            pause_for_others();
        atomic_fetch_add(&own->wanted[device], bytes);
        fits = sum_allocated(device, NULL, 1) <= capacity;
        if (!fits) {
            clear_ended_slots();
            fits = sum_allocated(device, NULL, 1) <= capacity;
        }
        if (fits)
            atomic_fetch_add(&own->bytes[device], bytes);
        atomic_fetch_sub(&own->wanted[device], bytes);
        may_fit = sum_allocated(device, NULL, 0) + bytes <= capacity;
    }
    return fits ? 0 : -1;
}

void weir__model_shared_free(int device, uint64_t bytes) {
    if (shared.own)
        atomic_fetch_sub(&shared.own->bytes[device], bytes);
}
