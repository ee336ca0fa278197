/* SPDX-License-Identifier: MIT */
/* group.c: the file of a group, and its members.
 *
 * The counter is one word: the bytes of all members, the slot that made the last change, and that change's number.  So
 * a change is one compare-and-swap, which keeps the limit or does not happen, and which names its author.  No process
 * ever holds a lock that another needs, so a process that is stopped or killed stops no other.
 *
 * A slot has two values, for changes of even and of odd numbers.  A member first writes its next value, with the number
 * of its next change, and then makes the change in the counter; from then on the value counts.  `applied` is the number
 * of the slot's last change.  A member may be killed before it writes `applied`: so a process that is about to replace
 * the counter's word first writes `applied` for the author of the last change.  Thus the sum of all slots' values of
 * their last applied change is always the counter.
 *
 * A member locks the byte of its number (a random one, never used again) with a lock of an open file, which the kernel
 * drops when the process ends, in all namespaces of pids.  If that byte is unlocked, any process may make one more
 * change of the slot, to 0 bytes, and then free the slot.  Several processes may do so at once with one number of
 * change: only one compare-and-swap succeeds.  Values carry the number of their change, so a late process cannot
 * overwrite a later value. (A change would be counted wrongly only if exactly 8192 changes of a slot, or a multiple,
 * restored a word between two instructions of one process while another one is killed.)
 *
 * Each member also holds a lock of byte 0 for reading.  A process that can lock this byte for writing is alone, and may
 * remove the file or write another limit; the memory of members that are ending stays counted.  If a process is stopped
 * while it holds that lock, others wait for a while, and then give the name to a new file.  The next process that joins
 * any group on the device removes a file whose members were all killed.
 *
 * A login session that ends removes the files of its user (RemoveIPC in logind.conf), and later processes make a new
 * file. So a member that counts bytes or reads counts first checks whether its file still has the name.  If not, the
 * member joins the file of that name and counts its bytes there; until then the members of the two files do not know of
 * each other.  A member that cannot join the new file logs that and counts no more bytes until it can.
 *
 * The file is mapped: if a process of the user truncates the file, the processes that use it get SIGBUS.
 */
#include "ipc/group.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/runfile.h"
#include "base/size.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/who.h"

#define MAGIC "weirgrp1"
enum { TRIES = 64 };
/* A process waits for one that removes a file for REMOVALS pauses of PAUSE_NS. */
enum { REMOVALS = 500 };
#define PAUSE_NS 1000000

enum {
    PAGE_BYTES = 4096,
    COMMAND_WORDS = WEIR_REGISTRY_COMMAND / 8,
    NUMBER_BITS = 60 /* the bits of a member's number */
};

struct weir_group_slot {
    _Atomic uint64_t owner;    /* the number of the member, or 0 if the slot is free */
    _Atomic uint64_t applied;  /* the number of the last change of this slot, over all its owners */
    _Atomic uint64_t value[2]; /* for even and odd changes: the bytes and the change's number */
    /* For people, and for the order in which members are asked.  Valid if `described` is the owner's number. */
    _Atomic uint64_t described, pid, start, namespace, weight, idle;
    _Atomic uint64_t kind[WEIR_GROUP_KIND_COUNT];
    _Atomic uint64_t command[COMMAND_WORDS];
    uint64_t unused[32 - 10 - WEIR_GROUP_KIND_COUNT - COMMAND_WORDS];
};

struct group_head {
    char magic[8];
    uint32_t version, slots;
};

struct weir_group_file {
    struct group_head head;
    uint64_t limit;
    char unused[64 - 24];
    _Atomic uint64_t used;
    char rest[PAGE_BYTES - 64 - 8];
    struct weir_group_slot slot[WEIR_GROUP_SLOTS];
};

_Static_assert(sizeof(struct weir_group_slot) == 256, "another layout is another version");
_Static_assert(offsetof(struct weir_group_file, slot) == PAGE_BYTES,
               "another layout is another version");

/* The locked bytes, one for each member's number, lie far behind the end of the file. */
#define NUMBERS_AT ((off_t)1 << 61)

enum { BYTES_BITS = 43, CHANGE_BITS = 64 - BYTES_BITS, SLOT_BITS = 8, LATE_BITS = 13 };

_Static_assert(BYTES_BITS + SLOT_BITS + LATE_BITS == 64, "no bit is left over");
_Static_assert(1 << SLOT_BITS == WEIR_GROUP_SLOTS, "any slot may be named");

static uint64_t low(uint64_t word, unsigned bits) {
    return word & ((UINT64_C(1) << bits) - 1);
}

static uint64_t bytes_in(uint64_t word) {
    return word >> (64 - BYTES_BITS);
}

static uint64_t value_of(uint64_t bytes, uint64_t change) {
    return bytes << CHANGE_BITS | low(change, CHANGE_BITS);
}

static uint64_t used_of(uint64_t bytes, unsigned slot, uint64_t change) {
    return bytes << (64 - BYTES_BITS) | (uint64_t)slot << LATE_BITS | low(change, LATE_BITS);
}

/* Returns the counter's word, after its last change has been written to the author's `applied`. */
static uint64_t read_used(struct weir_group_file *file) {
    for (;;) {
        uint64_t word = atomic_load(&file->used), applied;
        struct weir_group_slot *author = &file->slot[low(word >> LATE_BITS, SLOT_BITS)];

        applied = atomic_load(&author->applied);
        if (atomic_load(&file->used) != word)
            continue; /* `applied` may be older than the word */
        if (low(applied + 1, LATE_BITS) == low(word, LATE_BITS))
            (void)atomic_compare_exchange_strong(&author->applied, &applied, applied + 1);
        return word;
    }
}

static uint64_t bytes_of_slot(struct weir_group_slot *slot) {
    return bytes_in(atomic_load(&slot->value[atomic_load(&slot->applied) & 1]));
}

static uint64_t bytes_of_group(struct weir_group_file *file) {
    return bytes_in(atomic_load(&file->used));
}

/* Makes one change of this member's slot.  Returns 0 if the limit forbids it, else 1.  The caller holds the lock. */
static int change_count(struct weir_group *g, uint64_t more, uint64_t less, uint64_t limit) {
    struct weir_group_file *file = g->file;
    struct weir_group_slot *own = &file->slot[g->slot];
    uint64_t last = atomic_load_explicit(&own->applied, memory_order_relaxed), word, bytes;

    atomic_store(&own->value[(last + 1) & 1], value_of(bytes_of_slot(own) + more - less, last + 1));
    do {
        word = read_used(file);
        bytes = bytes_in(word);
        if (more > weir__size_less(limit, bytes))
            return 0;
    } while (!atomic_compare_exchange_weak(
        &file->used, &word, used_of(bytes + more - less, (unsigned)g->slot, last + 1)));
    atomic_store(&own->applied, last + 1);
    return 1;
}

/* ---- the file ------------------------------------------------------------------------------------ */

static struct flock byte_at(off_t at, short type) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}

static int lock_byte(int file, off_t at, short type) {
    struct flock lock = byte_at(at, type);

    return fcntl(file, F_OFD_SETLK, &lock);
}

static off_t byte_of_number(uint64_t number) {
    return NUMBERS_AT + (off_t)number;
}

/* Returns 1 if the byte of that number is locked, or if the kernel cannot say; else 0. */
static int is_locked(const struct weir_group *g, uint64_t number) {
    struct flock lock = byte_at(byte_of_number(number), F_WRLCK);

    return number == g->number || !weir__kept_is(&g->others) ||
           fcntl(g->others.number, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- slots --------------------------------------------------------------------------------------- */

static int is_near(const struct weir_group_slot *slot, uint64_t number) {
    uint64_t own = weir__process_namespace();

    return own != 0 && atomic_load(&slot->described) == number &&
           atomic_load(&slot->namespace) == own;
}

/* Returns 1 if the member of that number lives, else 0.  A child that was forked just before its parent was killed may
 * hold the lock a moment longer, so the pid is checked, too, if it is of this namespace. */
static int is_member_alive(const struct weir_group *g, const struct weir_group_slot *slot,
                           uint64_t number) {
    return is_locked(g, number) &&
           (number == g->number || !is_near(slot, number) ||
            weir__process_lives((pid_t)atomic_load(&slot->pid), atomic_load(&slot->start)));
}

/* Returns 1 if the member's process is ending: it has lost its locks, but the kernel has not freed its memory yet.
 * Returns 0 otherwise, also if the process runs on as another program (exec), which has no locks and none of that
 * memory. */
static int is_ending(const struct weir_group_slot *slot, uint64_t number) {
    return is_near(slot, number) &&
           weir__process_is_ending((pid_t)atomic_load(&slot->pid), atomic_load(&slot->start));
}

/* Frees the slot of a member that has ended. */
static void recover_slot(struct weir_group *g, int at, uint64_t number) {
    struct weir_group_slot *slot = &g->file->slot[at];

    for (;;) {
        uint64_t word = read_used(g->file), last = atomic_load(&slot->applied), value, next, zero;

        if (atomic_load(&slot->owner) != number)
            return;
        value = atomic_load(&slot->value[last & 1]);
        if (low(value, CHANGE_BITS) != low(last, CHANGE_BITS))
            continue; /* another process has changed the slot meanwhile */
        if (bytes_in(value) == 0) {
            (void)atomic_compare_exchange_strong(&slot->owner, &number, 0);
            return;
        }
        next = atomic_load(&slot->value[(last + 1) & 1]);
        zero = value_of(0, last + 1);
        if (next != zero &&
            ((low(next, CHANGE_BITS) != low(last + 1, CHANGE_BITS) &&
              low(next, CHANGE_BITS) != low(last - 1, CHANGE_BITS)) ||
             !atomic_compare_exchange_strong(&slot->value[(last + 1) & 1], &next, zero)))
            continue;
        if (atomic_compare_exchange_strong(
                &g->file->used, &word,
                used_of(bytes_in(word) - bytes_in(value), (unsigned)at, last + 1)))
            (void)atomic_compare_exchange_strong(&slot->applied, &last, last + 1);
    }
}

/* Recovers the bytes of ended members.  Returns those of members that are still ending.  The caller holds the lock. */
static uint64_t recover_ended(struct weir_group *g) {
    uint64_t ending = 0;

    for (int i = 0; i < WEIR_GROUP_SLOTS; i++) {
        struct weir_group_slot *slot = &g->file->slot[i];
        uint64_t owner = atomic_load(&slot->owner);

        if (owner == 0 || is_member_alive(g, slot, owner))
            continue;
        if (is_ending(slot, owner))
            ending += bytes_of_slot(slot);
        else
            recover_slot(g, i, owner);
    }
    return ending;
}

/* Writes pid, start time, command and weight of this process into its slot. */
static void describe_member(struct weir_group *g, uint64_t weight) {
    struct weir_group_slot *own = &g->file->slot[g->slot];
    uint64_t words[COMMAND_WORDS] = {0};

    weir__process_name((char *)words, sizeof words);
    for (int i = 0; i < COMMAND_WORDS; i++)
        atomic_store(&own->command[i], words[i]);
    for (int i = 0; i < WEIR_GROUP_KIND_COUNT; i++)
        atomic_store(&own->kind[i], 0);
    atomic_store(&own->idle, 0);
    atomic_store(&own->pid, (uint64_t)getpid());
    atomic_store(&own->start, weir__process_start(getpid()));
    atomic_store(&own->namespace, weir__process_namespace());
    atomic_store(&own->weight, weight);
    atomic_store(&own->described, g->number);
}

/* Claims a slot.  Returns 0 on success, -1 with EUSERS if all slots are taken. */
static int claim_slot(struct weir_group *g) {
    for (int i = 0; i < WEIR_GROUP_SLOTS; i++) {
        uint64_t nobody = 0;

        if (!atomic_compare_exchange_strong(&g->file->slot[i].owner, &nobody, g->number))
            continue;
        (void)read_used(g->file); /* applies the slot's last change */
        g->slot = i;
        return 0;
    }
    errno = EUSERS;
    return -1;
}

const char *weir__group_kind_word(enum weir_group_kind kind) {
    static const char *const words[] = {
#define WEIR_GROUP_KIND(name, word) word,
        WEIR_GROUP_KINDS(WEIR_GROUP_KIND)
#undef WEIR_GROUP_KIND
    };

    return words[kind];
}

int weir__group_is_name(const char *name) {
    size_t length = strlen(name);

    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
            return 0;
    return length > 0 && length <= WEIR_GROUP_NAME;
}

static const struct group_head the_head = {MAGIC, WEIR_GROUP_VERSION, WEIR_GROUP_SLOTS};

static int is_sound(int file, uint64_t *limit) {
    return weir__runfile_is_sound(file, sizeof(struct weir_group_file), &the_head,
                                  sizeof the_head) &&
           pread(file, limit, sizeof *limit, offsetof(struct weir_group_file, limit)) ==
               (ssize_t)sizeof *limit &&
           *limit != 0;
}

static int make_file(const char *path, uint64_t limit) {
    const struct {
        struct group_head head;
        uint64_t limit;
    } begins = {the_head, limit};

    return weir__runfile_make(path, sizeof(struct weir_group_file), &begins, sizeof begins);
}

static void take_pause(void) {
    nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
}

/* Keeps the file open and mapped.  Returns 0, or -1 with errno. */
static int map_file(struct weir_group *g, int file) {
    void *map = mmap(NULL, sizeof *g->file, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

    if (map == MAP_FAILED || weir__kept_set(&g->others, file) != 0) {
        if (map != MAP_FAILED)
            munmap(map, sizeof *g->file);
        return -1;
    }
    g->file = map;
    return 0;
}

/* Takes the locks by which others know that this member lives.  They belong to an open file description that a child of
 * fork does not keep open.  Returns 0, or -1 with errno. */
static int begin_life(struct weir_group *g, int file) {
    void *page;

    if (getrandom(&g->number, sizeof g->number, 0) != (ssize_t)sizeof g->number)
        return -1;
    g->number = (g->number >> (64 - NUMBER_BITS)) | 1;
    if (lock_byte(file, byte_of_number(g->number), F_WRLCK) != 0)
        return -1;
    page = mmap(NULL, PAGE_BYTES, PROT_NONE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        return -1;
    if (madvise(page, PAGE_BYTES, MADV_DONTFORK) != 0 || weir__kept_set(&g->alive, file) != 0) {
        munmap(page, PAGE_BYTES);
        return -1;
    }
    g->alive_page = page;
    return 0;
}

/* ---- joining ------------------------------------------------------------------------------------- */

static void begin(struct weir_group *g) {
    *g = (struct weir_group){.slot = -1};
    g->alive = g->others = (struct weir_kept)WEIR_KEPT_NONE;
}

static int name_file(char path[WEIR_REGISTRY_PATH], const char *name, const char *device) {
    return weir__runfile_path(path, WEIR_REGISTRY_PATH, "group%d-%s-%s", WEIR_GROUP_VERSION, name,
                              device);
}

static void drop(struct weir_group *g) {
    if (g->alive_page)
        munmap(g->alive_page, PAGE_BYTES);
    if (g->file)
        munmap(g->file, sizeof *g->file);
    weir__kept_close(&g->alive);
    weir__kept_close(&g->others);
    begin(g);
}

static int refuse(char *why, const char *name, const char *what, const char *detail) {
    snprintf(why, WEIR_GROUP_WHY, "group '%s': %s%s", name, what, detail);
    return -1;
}

static int refuse_limit(char *why, const char *name, uint64_t has, uint64_t limit) {
    char its[WEIR_SPELL_BYTES], own[WEIR_SPELL_BYTES];

    weir__bytes_spell(has, its, sizeof its);
    weir__bytes_spell(limit, own, sizeof own);
    snprintf(why, WEIR_GROUP_WHY,
             "group '%s' has members with the limit %s on this device, not %s: give group-limit "
             "%s, or none, or wait until the group has ended",
             name, its, own, its);
    return -1;
}

enum attached { ATTACHED, AGAIN, FAILED };

/* Makes this process a member in the open file, whose byte 0 the caller has locked for reading.  A second descriptor of
 * that file serves the other locks.  Keeps or closes `file`. */
static enum attached enter(struct weir_group *g, int file) {
    int other = weir__runfile_open(g->path, O_RDWR), error;
    struct stat one, two;

    if (other < 0 || fstat(file, &one) != 0 || fstat(other, &two) != 0 ||
        one.st_ino != two.st_ino || one.st_dev != two.st_dev || one.st_nlink != 1) {
        error = errno;
        if (other >= 0)
            close(other);
        close(file);
        errno = error;
        return other < 0 && error != ENOENT ? FAILED : AGAIN;
    }
    if (map_file(g, other) != 0) {
        close(other);
        close(file);
        return FAILED;
    }
    if (begin_life(g, file) != 0) {
        close(file);
        return FAILED;
    }
    (void)recover_ended(g);
    return claim_slot(g) == 0 ? ATTACHED : FAILED;
}

/* Removes the name of a file that is no group's, or that a stopped process has locked, and closes the file. */
static int replace(const char *path, int file) {
    int failed = weir__runfile_unname(file, path);

    close(file);
    return failed;
}

/* Writes the limit of a file in which the caller is alone.  Returns 0, or -1 with errno: then the file is closed. */
static int set_limit(int file, uint64_t limit) {
    const off_t at = offsetof(struct weir_group_file, limit);
    int error;

    if (weir__file_write_at(file, &limit, sizeof limit, at) == (ssize_t)sizeof limit)
        return 0;
    error = errno;
    close(file);
    errno = error;
    return -1;
}

enum joined { JOINED, NO_LIMIT, OTHER_LIMIT, CANNOT };

/* Joins the file of the path, and makes it if there is none.  `limit` is in bytes; 0 stands for the group's limit,
 * which *has is set to.  A group with members keeps its limit, which `any_limit` accepts.  CANNOT sets errno. */
static enum joined join_file(struct weir_group *g, const char *path, uint64_t limit, int any_limit,
                             uint64_t *has) {
    int removals = 0, file;

    for (int i = 0; i < TRIES;) {
        enum attached attached = AGAIN;

        *has = 0;
        snprintf(g->path, sizeof g->path, "%s", path);
        file = weir__runfile_open(path, O_RDWR);
        if (file < 0 && errno == ENOENT && limit == 0)
            return NO_LIMIT;
        if (file < 0 && errno == ENOENT && make_file(path, limit) == 0) {
            i++;
            continue;
        }
        if (file < 0)
            return CANNOT;
        if (!is_sound(file, has)) {
            i++;
            if (replace(path, file) != 0)
                return CANNOT;
            continue;
        }
        if (limit != *has && lock_byte(file, 0, F_WRLCK) == 0) { /* the group has no members */
            if (limit == 0) {
                close(file);
                return NO_LIMIT;
            }
            if (set_limit(file, limit) != 0)
                return CANNOT;
            *has = limit;
        }
        if (lock_byte(file, 0, F_RDLCK) != 0) { /* a process that removes the file holds the byte */
            if (++removals == REMOVALS) {
                removals = 0, i++;
                if (replace(path, file) != 0)
                    return CANNOT;
                continue;
            }
            close(file);
            take_pause();
            continue;
        }
        if (limit != 0 && limit != *has && !any_limit) {
            close(file);
            return OTHER_LIMIT;
        }
        attached = enter(g, file);
        if (attached == ATTACHED)
            return JOINED;
        i++;
        if (attached == FAILED) {
            int error = errno;

            drop(g);
            errno = error;
            return CANNOT;
        }
    }
    errno = EAGAIN;
    return CANNOT;
}

int weir__group_look(struct weir_group *g, const char *name, const char *device) {
    uint64_t limit;
    int file;

    begin(g);
    if (name_file(g->path, name, device) != 0)
        return -1;
    file = weir__runfile_open(g->path, O_RDWR);
    if (file < 0)
        return -1;
    if (!is_sound(file, &limit) || map_file(g, file) != 0) {
        close(file);
        return -1;
    }
    pthread_mutex_init(&g->lock, NULL);
    snprintf(g->name, sizeof g->name, "%s", name);
    return 0;
}

/* A visit of devices or groups; `of` is the name of the group or the device that they belong to. */
struct visit {
    const char *of;
    void (*each)(const char *name, void *context);
    void *context;
};

/* Visits a device if its file is in the folder where members look for the file. */
static void visit_device(const char *path, const char *device, void *context) {
    const struct visit *visit = context;
    char own[WEIR_REGISTRY_PATH];

    if (strlen(device) < WEIR_REGISTRY_DEVICE && name_file(own, visit->of, device) == 0 &&
        strcmp(path, own) == 0)
        visit->each(device, visit->context);
}

void weir__group_each(const char *name, void (*visit)(const char *device, void *context),
                      void *context) {
    char begins[WEIR_GROUP_NAME + 32];

    snprintf(begins, sizeof begins, "group%d-%s-", WEIR_GROUP_VERSION, name);
    weir__runfile_each(begins, visit_device, &(struct visit){name, visit, context});
}

/* Visits a group of the device.  The rest of the file's name is "NAME-DEVICE"; NAME may have hyphens, too. */
static void visit_name(const char *path, const char *rest, void *context) {
    const struct visit *visit = context;
    size_t length = strlen(rest), tail = strlen(visit->of) + 1;
    char name[WEIR_GROUP_NAME + 1], own[WEIR_REGISTRY_PATH];

    if (length <= tail || length - tail >= sizeof name)
        return;
    snprintf(name, sizeof name, "%.*s", (int)(length - tail), rest);
    if (name_file(own, name, visit->of) == 0 && strcmp(path, own) == 0)
        visit->each(name, visit->context);
}

void weir__group_each_on(const char *device, void (*visit)(const char *name, void *context),
                         void *context) {
    char begins[32];

    snprintf(begins, sizeof begins, "group%d-", WEIR_GROUP_VERSION);
    weir__runfile_each(begins, visit_name, &(struct visit){device, visit, context});
}

/* Removes the file of a group whose members were all killed. */
static void remove_if_left(const char *name, void *device) {
    struct weir_group g;

    if (weir__group_look(&g, name, device) == 0)
        weir__group_leave(&g);
}

int weir__group_join(struct weir_group *g, const char *name, const char *device, uint64_t limit,
                     uint64_t weight, char why[WEIR_GROUP_WHY]) {
    char path[WEIR_REGISTRY_PATH];
    uint64_t has;

    begin(g);
    if (name_file(path, name, device) != 0)
        return refuse(why, name, "the path of its file is too long", "");
    switch (join_file(g, path, limit, 0, &has)) {
    case JOINED:
        pthread_mutex_init(&g->lock, NULL);
        snprintf(g->name, sizeof g->name, "%s", name);
        describe_member(g, weight);
        weir__group_each_on(device, remove_if_left, (void *)(uintptr_t)device);
        return 0;
    case NO_LIMIT:
        return refuse(why, name, "it has no members on this device, so it has no limit yet: ",
                      "expected group-limit with an amount such as 40GiB");
    case OTHER_LIMIT:
        return refuse_limit(why, name, has, limit);
    default:
        break;
    }
    if (errno == EUSERS)
        return refuse(why, name, "it has as many members as there can be", "");
    snprintf(why, WEIR_GROUP_WHY,
             "group '%s': cannot use %s: %s; expected a folder in which this user may make files",
             name, path, strerror(errno));
    return -1;
}

/* ---- the name ------------------------------------------------------------------------------------ */

/* Returns 1 if this member's file no longer has the name, else 0.  Opens the file again if the program has closed the
 * descriptor.  The caller holds the lock. */
static int has_lost_name(struct weir_group *g) {
    struct weir_kept again;
    struct stat is;
    int file;

    if (fstat(g->others.number, &is) == 0 && is.st_ino == g->others.inode &&
        is.st_dev == g->others.device)
        return is.st_nlink == 0;
    file = weir__runfile_open(g->path, O_RDWR);
    if (file < 0)
        return errno == ENOENT;
    if (weir__kept_set(&again, file) == 0 && weir__kept_are_same(&again, &g->others)) {
        g->others = again;
        return 0;
    }
    close(file);
    return 1;
}

/* Counts in the new file the bytes that this member had counted in the old file, even if they exceed the limit. */
static void count_again(struct weir_group *g, struct weir_group_slot *had) {
    struct weir_group_slot *own = &g->file->slot[g->slot];

    describe_member(g, atomic_load(&had->weight));
    for (int i = 0; i < WEIR_GROUP_KIND_COUNT; i++)
        atomic_store(&own->kind[i], atomic_load(&had->kind[i]));
    atomic_store(&own->idle, atomic_load(&had->idle));
    (void)change_count(g, bytes_of_slot(had), 0, WEIR_GROUP_MOST);
}

/* Moves this member into the file that has the name now, and makes that file if there is none.  The new mapping
 * replaces the old one at its address, since other threads may be reading there.  If the member cannot join a new file,
 * it stays in the old one and counts no more bytes.  The caller holds the lock. */
static void join_again(struct weir_group *g) {
    struct weir_group next;
    uint64_t has;
    void *moved;

    begin(&next);
    if (join_file(&next, g->path, g->file->limit, 1, &has) != JOINED) {
        if (!g->is_lost)
            weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR,
                      "group '%s': somebody removed %s, and this process cannot make or open that "
                      "file again: %s.  It gets no more memory until it can",
                      g->name, g->path, strerror(errno));
        g->is_lost = 1;
        return;
    }
    g->is_lost = 0;
    count_again(&next, &g->file->slot[g->slot]);
    moved =
        mremap(next.file, sizeof *g->file, sizeof *g->file, MREMAP_MAYMOVE | MREMAP_FIXED, g->file);
    if (moved == MAP_FAILED) { /* unreached: a mapping always replaces one of its size */
        drop(&next);
        return;
    }
    munmap(g->alive_page, PAGE_BYTES);
    weir__kept_close(&g->alive);
    weir__kept_close(&g->others);
    g->alive = next.alive;
    g->alive_page = next.alive_page;
    g->others = next.others;
    g->number = next.number;
    g->slot = next.slot;
}

/* Returns 1 once in a tick of the kernel's clock, which is some milliseconds, else 0: checking the file costs more than
 * counting in it.  The caller holds the lock. */
static int has_clock_moved(struct weir_group *g) {
    struct timespec now;
    uint64_t looked_ns;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    looked_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    if (looked_ns == g->looked_ns)
        return 0;
    g->looked_ns = looked_ns;
    return 1;
}

/* Takes the lock.  A member that has lost its file's name first joins the file that has the name now: a login session
 * that ends removes the files of its user (RemoveIPC in logind.conf), and later processes make a new file. */
static void lock_in_named_file(struct weir_group *g) {
    int saved_errno = errno;

    pthread_mutex_lock(&g->lock);
    if (g->slot >= 0 && !g->has_ended && has_clock_moved(g) && has_lost_name(g))
        join_again(g);
    errno = saved_errno;
}

uint64_t weir__group_recover(struct weir_group *g) {
    uint64_t ending;

    lock_in_named_file(g);
    ending = recover_ended(g);
    pthread_mutex_unlock(&g->lock);
    return ending;
}

/* Unlocks byte 0, and removes the file if no other process holds that byte.  If several members leave at once, the last
 * of them gets the write lock (tests/spin/group.pml).  The file stays while a killed member is ending, whose memory is
 * not free yet.  The caller holds the lock. */
static void remove_if_alone(struct weir_group *g) {
    const struct weir_kept *by = g->slot >= 0 ? &g->alive : &g->others;

    if (!weir__kept_is(by))
        return;
    (void)lock_byte(by->number, 0, F_UNLCK);
    if (lock_byte(by->number, 0, F_WRLCK) != 0)
        return;
    if (recover_ended(g) == 0)
        (void)weir__runfile_unname(by->number, g->path);
    (void)lock_byte(by->number, 0, F_UNLCK);
}

void weir__group_leave(struct weir_group *g) {
    uint64_t own = g->number;

    if (!g->file)
        return;
    pthread_mutex_lock(&g->lock);
    if (g->slot >= 0) {
        (void)change_count(g, 0, bytes_of_slot(&g->file->slot[g->slot]), WEIR_GROUP_MOST);
        (void)atomic_compare_exchange_strong(&g->file->slot[g->slot].owner, &own, 0);
    }
    remove_if_alone(g);
    pthread_mutex_unlock(&g->lock);
    pthread_mutex_destroy(&g->lock);
    drop(g);
}

void weir__group_end(struct weir_group *g) {
    if (!g->file || g->slot < 0 || !weir__thread_lock_at_end(&g->lock))
        return;
    g->has_ended = 1;
    remove_if_alone(g);
    pthread_mutex_unlock(&g->lock);
}

void weir__group_forget(struct weir_group *g) {
    g->alive_page = NULL; /* a child of fork does not have the mapping */
    if (g->file)
        drop(g);
}

/* ---- counting ------------------------------------------------------------------------------------ */

/* Adds `more` bytes to this member's count of the kind, and subtracts `less`.  Returns 0 if the group would then exceed
 * `limit`, else 1.  The caller holds the lock. */
static int count(struct weir_group *g, enum weir_group_kind kind, uint64_t more, uint64_t less,
                 uint64_t limit) {
    _Atomic uint64_t *own = &g->file->slot[g->slot].kind[kind];

    less = weir__size_smaller(less, atomic_load_explicit(own, memory_order_relaxed));
    if (!change_count(g, more, less, limit))
        return 0;
    atomic_fetch_add_explicit(own, more - less, memory_order_relaxed);
    return 1;
}

int weir__group_take(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    uint64_t limit;
    int is_taken;

    lock_in_named_file(g);
    limit = g->is_lost ? 0 : g->file->limit;
    is_taken = bytes == 0 || (bytes <= limit && count(g, kind, bytes, 0, limit));
    if (!is_taken && bytes <= limit) {
        (void)recover_ended(g);
        is_taken = count(g, kind, bytes, 0, limit);
    }
    pthread_mutex_unlock(&g->lock);
    return is_taken;
}

void weir__group_give(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    if (bytes == 0)
        return;
    lock_in_named_file(g);
    (void)count(g, kind, 0, bytes, WEIR_GROUP_MOST);
    pthread_mutex_unlock(&g->lock);
}

void weir__group_add(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    if (bytes == 0)
        return;
    lock_in_named_file(g);
    (void)count(g, kind, bytes, 0, WEIR_GROUP_MOST);
    pthread_mutex_unlock(&g->lock);
}

void weir__group_tell_idle(struct weir_group *g, uint64_t bytes) {
    lock_in_named_file(g);
    atomic_store_explicit(&g->file->slot[g->slot].idle, bytes, memory_order_relaxed);
    pthread_mutex_unlock(&g->lock);
}

uint64_t weir__group_limit(const struct weir_group *g) {
    return g->file->limit;
}

uint64_t weir__group_used(struct weir_group *g) {
    uint64_t used;

    lock_in_named_file(g);
    used = bytes_of_group(g->file);
    pthread_mutex_unlock(&g->lock);
    return used;
}

/* Reads the slot of a member.  Returns 1, or 0 if the member has ended or the slot belongs to another by now. */
static int read_member(struct weir_group *g, int at, struct weir_group_member *out) {
    struct weir_group_slot *slot = &g->file->slot[at];
    uint64_t owner = atomic_load(&slot->owner), words[COMMAND_WORDS];

    if (owner == 0 || !is_member_alive(g, slot, owner))
        return 0;
    *out = (struct weir_group_member){.slot = at, .is_own = owner == g->number, .weight = 1};
    out->bytes = bytes_of_slot(slot);
    if (atomic_load(&slot->described) == owner) {
        out->pid = atomic_load(&slot->pid);
        out->start = atomic_load(&slot->start);
        out->namespace = atomic_load(&slot->namespace);
        out->weight = atomic_load(&slot->weight);
        out->idle = atomic_load(&slot->idle);
        for (int i = 0; i < WEIR_GROUP_KIND_COUNT; i++)
            out->kind[i] = atomic_load(&slot->kind[i]);
        for (int i = 0; i < COMMAND_WORDS; i++)
            words[i] = atomic_load(&slot->command[i]);
        memcpy(out->command, words, sizeof out->command);
        out->command[sizeof out->command - 1] = '\0';
    }
    return atomic_load(&slot->owner) == owner;
}

size_t weir__group_members(struct weir_group *g, struct weir_group_member *out, size_t most) {
    uint64_t weights = 0;
    size_t count = 0;

    lock_in_named_file(g);
    for (int i = 0; i < WEIR_GROUP_SLOTS && count < most; i++)
        if (read_member(g, i, &out[count])) {
            out[count].weight = weir__size_larger(out[count].weight, 1);
            weights += out[count++].weight;
        }
    for (size_t i = 0; i < count; i++)
        out[i].share = (uint64_t)((double)g->file->limit / (double)weights * (double)out[i].weight);
    pthread_mutex_unlock(&g->lock);
    return count;
}

static int by_bytes(const void *one, const void *other) {
    const struct weir_group_member *a = one, *b = other;

    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

size_t weir__group_largest_members(struct weir_group *g, struct weir_group_member *out,
                                   size_t most) {
    size_t count = weir__group_members(g, out, most);

    qsort(out, count, sizeof *out, by_bytes);
    return count;
}
