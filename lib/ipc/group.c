/* SPDX-License-Identifier: MIT */
/* group.c: see group.h.
 *
 * The counter is one word: the bytes of all members, and which slot made the last change, and which of its changes that
 * was.  So a change is one compare-and-swap: it finds the limit kept or does not happen, and names its author.  No
 * process ever holds a lock that another needs: one that is stopped or killed stops nobody.
 *
 * A slot has two values, for changes of even and of odd numbers.  A member writes the value that it will have, under
 * the number of its next change, and then makes the change; with that the value counts.  `applied' says which change
 * of the slot was the last.  The member may be killed before it writes that: so a process that is about to replace the
 * counter's word first writes it for the author of the last change.  Thus the slot's value is always known exactly:
 *   the sum of all slots' values of their last applied change is the counter.
 *
 * A member locks the byte of its number (a random one, never used again) with a lock of an open file, which the kernel
 * drops when the process ends.  That works in all namespaces of pids.  A member whose byte is free has ended for good, so
 * anybody may make one more change of its slot, to 0 bytes, and then free the slot.  Several may do so at once, each
 * for the same number of change: one compare-and-swap succeeds.  Values carry the number of their change, so one who
 * comes late cannot write over a later one's.
 *
 * All members hold byte 0 for reading.  Who can lock it for writing is alone, and may remove the file, or give it another
 * limit; what those who are ending have stays counted.  Who is stopped meanwhile keeps others out for a while only: they give the name to a new file.
 *
 * The words have room for 8192 changes of a slot: a process that is stopped between two of its instructions while
 * exactly 8192 changes, or a multiple, leave the same word, and another that is killed within some nanoseconds of it,
 * would have a change counted wrongly.  Nothing else does.
 *
 * The file is mapped, as loans are (lease.h): a process of the user that cuts it short ends those that use it.
 *
 * Must not know: what the bytes are of, drivers.
 */
#include "ipc/group.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/runfile.h"
#include "base/size.h"
#include "base/text.h"
#include "base/who.h"

#define MAGIC "weirgrp1"
enum { PAGE = 4096, WORDS_OF_COMMAND = WEIR_REGISTRY_COMMAND / 8, TRIES = 64 };
/* How long one that removes a file may take, and between two looks. */
enum { REMOVALS = 500 };
#define PAUSE_NS 1000000
/* Numbers of members; their bytes lie far behind the file's. */
#define NUMBER_BITS 60
#define NUMBERS_AT ((off_t)1 << 61)

struct slot {
    _Atomic uint64_t owner;    /* the member's number; 0: free */
    _Atomic uint64_t applied;  /* its last change, of all that the slot had */
    _Atomic uint64_t value[2]; /* of even and odd changes: bytes, and the change's number */
    /* For people, and for who is asked first.  As of the owner if `described' is its number. */
    _Atomic uint64_t described, pid, start, namespace, weight, idle;
    _Atomic uint64_t kind[WEIR_GROUP_KIND_COUNT];
    _Atomic uint64_t command[WORDS_OF_COMMAND];
    uint64_t unused[32 - 10 - WEIR_GROUP_KIND_COUNT - WORDS_OF_COMMAND];
};

struct weir_group_file {
    char magic[8];
    uint32_t version, slots;
    uint64_t limit;
    char unused[64 - 24];
    _Atomic uint64_t used;
    char rest[PAGE - 64 - 8];
    struct slot slot[WEIR_GROUP_SLOTS];
};

_Static_assert(sizeof(struct slot) == 256, "another layout is another version");
_Static_assert(offsetof(struct weir_group_file, slot) == PAGE, "likewise");

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

/* ---- words --------------------------------------------------------------------------------------- */

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

/* The counter's word, of which the last change is known to be applied. */
static uint64_t read_used(struct weir_group_file *file) {
    for (;;) {
        uint64_t word = atomic_load(&file->used), applied;
        struct slot *author = &file->slot[low(word >> LATE_BITS, SLOT_BITS)];

        applied = atomic_load(&author->applied);
        if (atomic_load(&file->used) != word)
            continue; /* else what was read of the author may be older */
        if (low(applied + 1, LATE_BITS) == low(word, LATE_BITS))
            (void)atomic_compare_exchange_strong(&author->applied, &applied, applied + 1);
        return word;
    }
}

static uint64_t bytes_of(struct slot *slot) {
    return bytes_in(atomic_load(&slot->value[atomic_load(&slot->applied) & 1]));
}

/* One change of the own slot: 1, or 0: it would be more than that limit.  The caller holds the lock. */
static int change(struct weir_group *g, uint64_t more, uint64_t less, uint64_t limit) {
    struct weir_group_file *file = g->file;
    struct slot *own = &file->slot[g->slot];
    uint64_t last = atomic_load_explicit(&own->applied, memory_order_relaxed), word, bytes;

    atomic_store(&own->value[(last + 1) & 1], value_of(bytes_of(own) + more - less, last + 1));
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

static off_t byte_of(uint64_t number) {
    return NUMBERS_AT + (off_t)number;
}

/* Its byte is locked.  What cannot be told counts as locked. */
static int is_locked(const struct weir_group *g, uint64_t number) {
    struct flock lock = byte_at(byte_of(number), F_WRLCK);

    return number == g->number || !weir__kept_is(&g->others) ||
           fcntl(g->others.number, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static int is_sound(int file, struct stat *is, uint64_t *limit) {
    struct weir_group_file head;
    const size_t bytes = offsetof(struct weir_group_file, unused);

    if (!weir__runfile_is_own(file, is) || (is->st_mode & 077) != 0 || is->st_nlink != 1 ||
        is->st_size != (off_t)sizeof(struct weir_group_file) ||
        pread(file, &head, bytes, 0) != (ssize_t)bytes ||
        memcmp(head.magic, MAGIC, sizeof head.magic) != 0 || head.version != WEIR_GROUP_VERSION ||
        head.slots != WEIR_GROUP_SLOTS || head.limit == 0)
        return 0;
    *limit = head.limit;
    return 1;
}

/* Gives the name to a new file.  0: it has it, or another process was first; -1 and errno. */
static int make_file(const char *path, uint64_t limit) {
    struct {
        char magic[8];
        uint32_t version, slots;
        uint64_t limit;
    } head = {MAGIC, WEIR_GROUP_VERSION, WEIR_GROUP_SLOTS, limit};
    char in[WEIR_REGISTRY_PATH], from[64];
    int file, error = 0;

    snprintf(in, sizeof in, "%s", path);
    *strrchr(in, '/') = '\0';
    file = open(in, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0)
        return -1;
    snprintf(from, sizeof from, "/proc/self/fd/%d", file);
    if (weir__runfile_fill(file, sizeof(struct weir_group_file), &head, sizeof head) != 0 ||
        linkat(AT_FDCWD, from, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0)
        error = errno;
    close(file);
    errno = error;
    return error == 0 || error == EEXIST ? 0 : -1;
}

static void take_pause(void) {
    nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
}

/* Keeps the file open and mapped.  0; -1 and errno. */
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

/* The locks that say that this member lives, on an open file of their own, which no child of fork has. */
static int begin_life(struct weir_group *g, int file) {
    void *page;

    if (getrandom(&g->number, sizeof g->number, 0) != (ssize_t)sizeof g->number)
        return -1;
    g->number = low(g->number, NUMBER_BITS) | 1;
    if (lock_byte(file, byte_of(g->number), F_WRLCK) != 0)
        return -1;
    page = mmap(NULL, PAGE, PROT_NONE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED)
        return -1;
    if (madvise(page, PAGE, MADV_DONTFORK) != 0 || weir__kept_set(&g->alive, file) != 0) {
        munmap(page, PAGE);
        return -1;
    }
    g->alive_page = page;
    return 0;
}

/* ---- slots --------------------------------------------------------------------------------------- */

static int is_near(const struct slot *slot, uint64_t number) {
    uint64_t own = weir__process_namespace();

    return own != 0 && atomic_load(&slot->described) == number &&
           atomic_load(&slot->namespace) == own;
}

/* A child that was born just before its parent was killed may have the lock a moment longer: where pids tell, they do. */
static int is_alive(const struct weir_group *g, const struct slot *slot, uint64_t number) {
    return is_locked(g, number) &&
           (number == g->number || !is_near(slot, number) ||
            weir__process_lives((pid_t)atomic_load(&slot->pid), atomic_load(&slot->start)));
}

/* Its locks went before its memory, which the kernel has not taken from it yet.  One that goes on without its locks runs
 * another program (exec), which has none of that memory. */
static int is_ending(const struct slot *slot, uint64_t number) {
    return is_near(slot, number) &&
           weir__process_is_ending((pid_t)atomic_load(&slot->pid), atomic_load(&slot->start));
}

/* Frees the slot of a member that has ended. */
static void recover_slot(struct weir_group *g, int at, uint64_t number) {
    struct slot *slot = &g->file->slot[at];

    for (;;) {
        uint64_t word = read_used(g->file), last = atomic_load(&slot->applied), value, next, zero;

        if (atomic_load(&slot->owner) != number)
            return;
        value = atomic_load(&slot->value[last & 1]);
        if (low(value, CHANGE_BITS) != low(last, CHANGE_BITS))
            continue; /* others have gone on */
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

uint64_t weir__group_recover(struct weir_group *g) {
    uint64_t ending = 0;

    for (int i = 0; i < WEIR_GROUP_SLOTS; i++) {
        struct slot *slot = &g->file->slot[i];
        uint64_t owner = atomic_load(&slot->owner);

        if (owner == 0 || is_alive(g, slot, owner))
            continue;
        if (is_ending(slot, owner))
            ending += bytes_of(slot);
        else
            recover_slot(g, i, owner);
    }
    return ending;
}

static void describe(struct weir_group *g, uint64_t weight) {
    struct slot *own = &g->file->slot[g->slot];
    uint64_t words[WORDS_OF_COMMAND] = {0};
    char command[2 * WEIR_COMMAND_BYTES] = "", *from = command;

    weir__process_command(command, WEIR_COMMAND_BYTES);
    for (char *at = command; *at && *at != ' '; at++) /* without the program's folder */
        from = *at == '/' ? at + 1 : from;
    memcpy(words, from, sizeof words - 1);
    for (int i = 0; i < WORDS_OF_COMMAND; i++)
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

/* -1: all are taken. */
static int claim(struct weir_group *g) {
    for (int i = 0; i < WEIR_GROUP_SLOTS; i++) {
        uint64_t nobody = 0;

        if (!atomic_compare_exchange_strong(&g->file->slot[i].owner, &nobody, g->number))
            continue;
        (void)read_used(g->file); /* the slot's last change is applied */
        g->slot = i;
        return 0;
    }
    errno = EUSERS;
    return -1;
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
        munmap(g->alive_page, PAGE);
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

static int refuse_no_limit(char *why, const char *name) {
    return refuse(why, name, "it has no members on this device, so it has no limit yet: ",
                  "expected group-limit with an amount such as 40GiB");
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

/* Both descriptors are of one file, which this member holds for reading.  `file' is kept or closed. */
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
    (void)weir__group_recover(g);
    return claim(g) == 0 ? ATTACHED : FAILED;
}

/* What is there is none of ours, or somebody that was stopped keeps it. */
static int replace(const char *path, int file) {
    int failed = weir__runfile_unname(file, path);

    close(file);
    return failed;
}

/* The caller is alone in it.  -1 and errno: the file is closed. */
static int set_limit(int file, uint64_t limit) {
    const off_t at = offsetof(struct weir_group_file, limit);
    int error;

    if (pwrite(file, &limit, sizeof limit, at) == (ssize_t)sizeof limit)
        return 0;
    error = errno;
    close(file);
    errno = error;
    return -1;
}

int weir__group_join(struct weir_group *g, const char *name, const char *device, uint64_t limit,
                     uint64_t weight, char why[WEIR_GROUP_WHY]) {
    char path[WEIR_REGISTRY_PATH];
    int removals = 0, file;
    struct stat is;

    begin(g);
    if (name_file(path, name, device) != 0)
        return refuse(why, name, "the path of its file is too long", "");
    for (int i = 0; i < TRIES;) {
        enum attached attached = AGAIN;
        uint64_t has = 0;

        memcpy(g->path, path, sizeof g->path);
        file = weir__runfile_open(path, O_RDWR);
        if (file < 0 && errno == ENOENT && limit == 0)
            return refuse_no_limit(why, name);
        if (file < 0 && errno == ENOENT && make_file(path, limit) == 0) {
            i++;
            continue;
        }
        if (file < 0)
            break;
        if (!is_sound(file, &is, &has)) {
            i++;
            if (replace(path, file) != 0)
                break;
            continue;
        }
        if (limit != has && lock_byte(file, 0, F_WRLCK) == 0) { /* nobody is there */
            if (limit == 0) {
                close(file);
                return refuse_no_limit(why, name);
            }
            if (set_limit(file, limit) != 0)
                break;
            has = limit;
        }
        if (lock_byte(file, 0, F_RDLCK) != 0) { /* who removes it has it */
            if (++removals == REMOVALS) {
                removals = 0, i++;
                if (replace(path, file) != 0)
                    break;
                continue;
            }
            close(file);
            take_pause();
            continue;
        }
        if (limit != 0 && limit != has) {
            close(file);
            return refuse_limit(why, name, has, limit);
        }
        attached = enter(g, file);
        if (attached == ATTACHED) {
            pthread_mutex_init(&g->lock, NULL);
            snprintf(g->name, sizeof g->name, "%s", name);
            describe(g, weight);
            return 0;
        }
        i++;
        if (attached == FAILED) {
            int error = errno;

            drop(g);
            errno = error;
            break;
        }
    }
    if (errno == EUSERS)
        return refuse(why, name, "it has as many members as there can be", "");
    snprintf(why, WEIR_GROUP_WHY,
             "group '%s': cannot use %s: %s; expected a folder in which this user may make files",
             name, path, strerror(errno));
    return -1;
}

int weir__group_look(struct weir_group *g, const char *name, const char *device) {
    struct stat is;
    uint64_t limit;
    int file;

    begin(g);
    if (name_file(g->path, name, device) != 0)
        return -1;
    file = weir__runfile_open(g->path, O_RDWR);
    if (file < 0)
        return -1;
    if (!is_sound(file, &is, &limit) || map_file(g, file) != 0) {
        close(file);
        return -1;
    }
    pthread_mutex_init(&g->lock, NULL);
    snprintf(g->name, sizeof g->name, "%s", name);
    return 0;
}

struct visit {
    const char *name;
    void (*device)(const char *device, void *context);
    void *context;
};

/* Only where it would be looked for. */
static void visit_device(const char *path, const char *device, void *context) {
    const struct visit *visit = context;
    char own[WEIR_REGISTRY_PATH];

    if (strlen(device) < WEIR_REGISTRY_DEVICE && name_file(own, visit->name, device) == 0 &&
        strcmp(path, own) == 0)
        visit->device(device, visit->context);
}

void weir__group_each(const char *name, void (*visit)(const char *device, void *context),
                      void *context) {
    char begins[WEIR_GROUP_NAME + 32];

    snprintf(begins, sizeof begins, "group%d-%s-", WEIR_GROUP_VERSION, name);
    weir__runfile_each(begins, visit_device, &(struct visit){name, visit, context});
}

struct visit_on {
    const char *device;
    void (*group)(const char *name, void *context);
    void *context;
};

/* "NAME-DEVICE"; a name may have hyphens, too. */
static void visit_name(const char *path, const char *rest, void *context) {
    const struct visit_on *visit = context;
    size_t length = strlen(rest), tail = strlen(visit->device) + 1;
    char name[WEIR_GROUP_NAME + 1], own[WEIR_REGISTRY_PATH];

    if (length <= tail || length - tail >= sizeof name)
        return;
    snprintf(name, sizeof name, "%.*s", (int)(length - tail), rest);
    if (name_file(own, name, visit->device) == 0 && strcmp(path, own) == 0)
        visit->group(name, visit->context);
}

void weir__group_each_on(const char *device, void (*visit)(const char *name, void *context),
                         void *context) {
    char begins[32];

    snprintf(begins, sizeof begins, "group%d-", WEIR_GROUP_VERSION);
    weir__runfile_each(begins, visit_name, &(struct visit_on){device, visit, context});
}

/* Removes the file, if nobody holds byte 0 but the caller, and nothing is counted: memory that is, is still there. */
static void remove_if_alone(struct weir_group *g) {
    const struct weir_kept *by = g->slot >= 0 ? &g->alive : &g->others;

    if (!weir__kept_is(by) || lock_byte(by->number, 0, F_WRLCK) != 0)
        return;
    if (weir__group_recover(g) == 0 && weir__group_used(g) == 0)
        (void)weir__runfile_unname(by->number, g->path);
    else /* let others in */
        (void)lock_byte(by->number, 0, g->slot >= 0 ? F_RDLCK : F_UNLCK);
}

void weir__group_leave(struct weir_group *g) {
    uint64_t own = g->number;

    if (!g->file)
        return;
    if (g->slot >= 0) {
        pthread_mutex_lock(&g->lock);
        (void)change(g, 0, bytes_of(&g->file->slot[g->slot]), WEIR_GROUP_MOST);
        (void)atomic_compare_exchange_strong(&g->file->slot[g->slot].owner, &own, 0);
        pthread_mutex_unlock(&g->lock);
    }
    remove_if_alone(g);
    pthread_mutex_destroy(&g->lock);
    drop(g);
}

void weir__group_end(struct weir_group *g) {
    if (g->file && g->slot >= 0)
        remove_if_alone(g);
}

void weir__group_forget(struct weir_group *g) {
    g->alive_page = NULL; /* the mapping is not here */
    if (g->file)
        drop(g);
}

/* ---- counting ------------------------------------------------------------------------------------ */

static int count(struct weir_group *g, enum weir_group_kind kind, uint64_t more, uint64_t less,
                 uint64_t limit) {
    _Atomic uint64_t *own = &g->file->slot[g->slot].kind[kind];
    int changed;

    pthread_mutex_lock(&g->lock);
    less = weir__size_smaller(less, atomic_load_explicit(own, memory_order_relaxed));
    changed = change(g, more, less, limit);
    if (changed)
        atomic_fetch_add_explicit(own, more - less, memory_order_relaxed);
    pthread_mutex_unlock(&g->lock);
    return changed;
}

int weir__group_take(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    if (bytes > g->file->limit)
        return 0;
    if (bytes == 0 || count(g, kind, bytes, 0, g->file->limit))
        return 1;
    (void)weir__group_recover(g);
    return count(g, kind, bytes, 0, g->file->limit);
}

void weir__group_give(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    if (bytes > 0)
        (void)count(g, kind, 0, bytes, WEIR_GROUP_MOST);
}

void weir__group_add(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    if (bytes > 0)
        (void)count(g, kind, bytes, 0, WEIR_GROUP_MOST);
}

void weir__group_tell_idle(struct weir_group *g, uint64_t bytes) {
    atomic_store_explicit(&g->file->slot[g->slot].idle, bytes, memory_order_relaxed);
}

const char *weir__group_name(const struct weir_group *g) {
    return g->name;
}

uint64_t weir__group_limit(const struct weir_group *g) {
    return g->file->limit;
}

uint64_t weir__group_used(const struct weir_group *g) {
    return bytes_in(atomic_load(&g->file->used));
}

/* What a member says of itself.  1, or 0: it has ended, or is another by now. */
static int read_member(struct weir_group *g, int at, struct weir_group_member *out) {
    struct slot *slot = &g->file->slot[at];
    uint64_t owner = atomic_load(&slot->owner), words[WORDS_OF_COMMAND];

    if (owner == 0 || !is_alive(g, slot, owner))
        return 0;
    *out = (struct weir_group_member){.slot = at, .is_own = owner == g->number, .weight = 1};
    out->bytes = bytes_of(slot);
    if (atomic_load(&slot->described) == owner) {
        out->pid = atomic_load(&slot->pid);
        out->start = atomic_load(&slot->start);
        out->namespace = atomic_load(&slot->namespace);
        out->weight = atomic_load(&slot->weight);
        out->idle = atomic_load(&slot->idle);
        for (int i = 0; i < WEIR_GROUP_KIND_COUNT; i++)
            out->kind[i] = atomic_load(&slot->kind[i]);
        for (int i = 0; i < WORDS_OF_COMMAND; i++)
            words[i] = atomic_load(&slot->command[i]);
        memcpy(out->command, words, sizeof out->command);
        out->command[sizeof out->command - 1] = '\0';
    }
    return atomic_load(&slot->owner) == owner;
}

size_t weir__group_members(struct weir_group *g, struct weir_group_member *out, size_t most) {
    uint64_t weights = 0;
    size_t count = 0;

    for (int i = 0; i < WEIR_GROUP_SLOTS && count < most; i++)
        if (read_member(g, i, &out[count])) {
            out[count].weight = weir__size_larger(out[count].weight, 1);
            weights += out[count++].weight;
        }
    for (size_t i = 0; i < count; i++)
        out[i].share = (uint64_t)((double)g->file->limit / (double)weights * (double)out[i].weight);
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
