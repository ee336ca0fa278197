/* SPDX-License-Identifier: MIT */
/* group_slots.c: see group_slots.h.
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
 * drops when the process ends, in all namespaces of pids.  A member whose byte is unlocked has ended for good, so any
 * process may make one more change of its slot, to 0 bytes, and then free the slot.  Several processes may do so at
 * once with one number of change: only one compare-and-swap succeeds.  Values carry the number of their change, so a
 * late process cannot overwrite a later value.
 *
 * The words have room for 8192 changes of a slot.  A change is counted wrongly only if a process is stopped between two
 * of its instructions while exactly 8192 changes, or a multiple, restore the word, and another process is killed within
 * some nanoseconds of the moment at which the first one continues.
 *
 * Must not know: which file has the name.
 */
#include "ipc/group_slots.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "base/who.h"

/* The locked bytes, one for each member's number, lie far behind the end of the file. */
#define NUMBERS_AT ((off_t)1 << 61)

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

uint64_t weir__group_slot_bytes(struct weir_group_slot *slot) {
    return bytes_in(atomic_load(&slot->value[atomic_load(&slot->applied) & 1]));
}

uint64_t weir__group_file_bytes(struct weir_group_file *file) {
    return bytes_in(atomic_load(&file->used));
}

/* Makes one change of this member's slot.  Returns 1 on success, 0 if the limit forbids it.  The caller holds the
 * lock. */
int weir__group_change(struct weir_group *g, uint64_t more, uint64_t less, uint64_t limit) {
    struct weir_group_file *file = g->file;
    struct weir_group_slot *own = &file->slot[g->slot];
    uint64_t last = atomic_load_explicit(&own->applied, memory_order_relaxed), word, bytes;

    atomic_store(&own->value[(last + 1) & 1],
                 value_of(weir__group_slot_bytes(own) + more - less, last + 1));
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

int weir__group_lock_byte(int file, off_t at, short type) {
    struct flock lock = byte_at(at, type);

    return fcntl(file, F_OFD_SETLK, &lock);
}

off_t weir__group_byte_of(uint64_t number) {
    return NUMBERS_AT + (off_t)number;
}

/* Returns 1 if the byte of that number is locked, or if the kernel cannot say; else 0. */
static int is_locked(const struct weir_group *g, uint64_t number) {
    struct flock lock = byte_at(weir__group_byte_of(number), F_WRLCK);

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
int weir__group_member_lives(const struct weir_group *g, const struct weir_group_slot *slot,
                             uint64_t number) {
    return is_locked(g, number) &&
           (number == g->number || !is_near(slot, number) ||
            weir__process_lives((pid_t)atomic_load(&slot->pid), atomic_load(&slot->start)));
}

/* Returns 1 if the member has lost its locks but the kernel has not freed its memory yet, else 0.  A process that runs
 * on without its locks has become another program (exec), which has none of that memory. */
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

/* Recovers the bytes of ended members.  Returns the bytes that members which are still ending have counted.  The caller
 * holds the lock. */
uint64_t weir__group_recover_ended(struct weir_group *g) {
    uint64_t ending = 0;

    for (int i = 0; i < WEIR_GROUP_SLOTS; i++) {
        struct weir_group_slot *slot = &g->file->slot[i];
        uint64_t owner = atomic_load(&slot->owner);

        if (owner == 0 || weir__group_member_lives(g, slot, owner))
            continue;
        if (is_ending(slot, owner))
            ending += weir__group_slot_bytes(slot);
        else
            recover_slot(g, i, owner);
    }
    return ending;
}

void weir__group_describe(struct weir_group *g, uint64_t weight) {
    struct weir_group_slot *own = &g->file->slot[g->slot];
    uint64_t words[WEIR_GROUP_COMMAND_WORDS] = {0};
    char command[2 * WEIR_COMMAND_BYTES] = "", *from = command;

    weir__process_command(command, WEIR_COMMAND_BYTES);
    for (char *at = command; *at && *at != ' '; at++) /* leaves out the program's folder */
        from = *at == '/' ? at + 1 : from;
    memcpy(words, from, sizeof words - 1);
    for (int i = 0; i < WEIR_GROUP_COMMAND_WORDS; i++)
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
int weir__group_claim(struct weir_group *g) {
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
