/* SPDX-License-Identifier: MIT */
/* group.c: the counter of a group of processes, and the slots of its members.
 *
 * The counter is one word of a shared file: the bytes of all members, the slot that made the last change, and the
 * number of this change.  So a member changes the counter by one compare-and-swap, without a lock, and never above the
 * limit; a stopped or killed member blocks no other.
 *
 * A slot has two values, for its changes with even and with odd numbers.  A member first writes the new value into its
 * slot, then changes the counter, and last writes the number of the change into `applied`.  If the member is killed
 * before this last write, the next process that changes the counter first completes the write.  Thus the counter is
 * always the sum of the valid values of all slots.
 *
 * Only the process that holds the life lock of a slot (slot_file.h) changes its values: the member, and after its end
 * another process, which changes the slot to 0 bytes.
 *
 * Before a member changes or reads the counter, it checks, at most once in a millisecond, that its file still has its
 * name.  If the file has lost its name, the member joins the file that has the name now, and counts its bytes there. If
 * it cannot join, all its charges fail.
 *
 * If a process of the user truncates the mapped file, the members get SIGBUS. */
#include "ipc/group.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/who.h"

enum { COMMAND_WORDS = WEIR_REGISTRY_COMMAND / 8 };

struct group_slot {
    /* The number of the slot's last change.  A new owner of the slot continues from this number. */
    _Atomic uint64_t applied;
    /* The owner.  weir writes `pid` last: if `pid` is not 0, `start` and `namespace` are valid. */
    _Atomic uint64_t pid, start, namespace;
    _Atomic uint64_t ends; /* set when the process begins to exit normally */
    /* The member's bytes after its last two changes.  Change N is in value[N % 2], whose lower bits hold N. */
    _Atomic uint64_t value[2];
    /* The fields below do not affect the group's counter. */
    _Atomic uint64_t weight, idle;
    _Atomic uint64_t kind[WEIR_GROUP_KIND_COUNT];
    _Atomic uint64_t command[COMMAND_WORDS];
    uint64_t unused[32 - 9 - WEIR_GROUP_KIND_COUNT - COMMAND_WORDS];
};

struct group_file {
    struct weir_slot_head head;
    char unused[64 - sizeof(struct weir_slot_head)];
    _Atomic uint64_t used;
    char rest[WEIR_SLOTS_AT - 64 - 8];
    struct group_slot slot[WEIR_SLOTS];
};

_Static_assert(sizeof(struct group_slot) == 256, "another layout is another version");
_Static_assert(offsetof(struct group_slot, pid) == WEIR_SLOT_OWNER_AT, "the owner has its place");
_Static_assert(offsetof(struct group_slot, ends) == WEIR_SLOT_ENDS_AT, "`ends` has its place");
_Static_assert(offsetof(struct group_file, slot) == WEIR_SLOTS_AT,
               "another layout is another version");

static const struct weir_slot_kind the_kind = {
    "weirgrp1", WEIR_GROUP_VERSION, sizeof(struct group_slot), sizeof(struct group_file), 1};

enum { BYTES_BITS = 43, CHANGE_BITS = 64 - BYTES_BITS, SLOT_BITS = 8, LATE_BITS = 13 };

_Static_assert(BYTES_BITS + SLOT_BITS + LATE_BITS == 64, "no bit is left over");
_Static_assert(1 << SLOT_BITS == WEIR_SLOTS, "any slot may be named");

static uint64_t low_bits(uint64_t word, unsigned bits) {
    return word & ((UINT64_C(1) << bits) - 1);
}

static uint64_t counter_bytes(uint64_t word) {
    return word >> (64 - BYTES_BITS);
}

static uint64_t pack_value(uint64_t bytes, uint64_t change) {
    return bytes << CHANGE_BITS | low_bits(change, CHANGE_BITS);
}

static uint64_t pack_counter(uint64_t bytes, unsigned slot, uint64_t change) {
    return bytes << (64 - BYTES_BITS) | (uint64_t)slot << LATE_BITS | low_bits(change, LATE_BITS);
}

static struct group_file *group_map(const struct weir_group *g) {
    return g->shared.map;
}

static struct group_slot *own_slot(const struct weir_group *g) {
    return &group_map(g)->slot[g->shared.slot];
}

/* Returns the group's counter.  First sets `applied` for the last change, in case its member was killed before. */
static uint64_t read_used(struct group_file *file) {
    for (;;) {
        uint64_t word = atomic_load(&file->used), applied;
        struct group_slot *author = &file->slot[low_bits(word >> LATE_BITS, SLOT_BITS)];

        applied = atomic_load(&author->applied);
        if (atomic_load(&file->used) != word)
            continue; /* the counter has changed meanwhile, so `applied` may be newer than `word` */
        if (low_bits(applied + 1, LATE_BITS) == low_bits(word, LATE_BITS))
            (void)atomic_compare_exchange_strong(&author->applied, &applied, applied + 1);
        return word;
    }
}

static uint64_t bytes_of_slot(struct group_slot *slot) {
    return counter_bytes(atomic_load(&slot->value[atomic_load(&slot->applied) & 1]));
}

/* Adds `more` bytes to the slot and to the group's counter, and subtracts `less` bytes.  Returns 0 if the group
 * would exceed `limit`, else 1.  The caller holds the group's lock and the slot's life lock (slot_file.h). */
static int change_count(struct group_file *file, int at, uint64_t more, uint64_t less,
                        uint64_t limit) {
    struct group_slot *slot = &file->slot[at];
    uint64_t last = atomic_load_explicit(&slot->applied, memory_order_relaxed), word, bytes;

    atomic_store(&slot->value[(last + 1) & 1],
                 pack_value(bytes_of_slot(slot) + more - less, last + 1));
    do {
        word = read_used(file);
        bytes = counter_bytes(word);
        if (more > weir__size_subtract(limit, bytes))
            return 0;
    } while (!atomic_compare_exchange_weak(
        &file->used, &word, pack_counter(bytes + more - less, (unsigned)at, last + 1)));
    atomic_store(&slot->applied, last + 1);
    return 1;
}

/* Subtracts a slot's bytes from the counter, and frees the slot.  The caller holds its life lock (slot_file.h). */
static void empty_slot(struct group_file *file, int at) {
    struct group_slot *slot = &file->slot[at];

    atomic_store(&slot->pid, 0);
    (void)read_used(file); /* completes an unfinished change of the slot */
    if (bytes_of_slot(slot) > 0)
        (void)change_count(file, at, 0, bytes_of_slot(slot), WEIR_GROUP_MOST);
}

/* ---- members ------------------------------------------------------------------------------------- */

/* Returns 1 if the owner of a slot was killed, else 0.  Does not test the slot's life lock (slot_file.h), since a child
 * of the owner may still hold it. */
static int was_killed_with_child(const struct weir_group *g, const struct weir_slot_owner *owner) {
    return owner->pid != 0 && weir__slot_is_in_own_namespace(&g->shared, owner->namespace) &&
           !weir__process_lives((pid_t)owner->pid, owner->start);
}

/* Subtracts the bytes of ended members from the counter.  Returns the bytes that stay counted, because the kernel still
 * frees the memory or a member's child holds the life lock of the slot.  The caller holds the group's lock. */
static uint64_t recover_ended(struct weir_group *g) {
    struct group_file *file = group_map(g);
    uint64_t ending = 0;

    for (int i = 0; i < WEIR_SLOTS; i++) {
        struct group_slot *slot = &file->slot[i];
        const struct weir_slot_owner owner = {atomic_load(&slot->pid), atomic_load(&slot->start),
                                              atomic_load(&slot->namespace)};

        if (owner.pid == 0 && bytes_of_slot(slot) == 0)
            continue;
        if (weir__slot_is_process_running(&g->shared, i)) {
            ending +=
                i != g->shared.slot && was_killed_with_child(g, &owner) ? bytes_of_slot(slot) : 0;
        } else if (weir__slot_is_ending(&g->shared, &owner)) {
            ending += bytes_of_slot(slot);
        } else if (weir__slot_lock(&g->shared, i)) {
            empty_slot(file, i);
            weir__slot_unlock(&g->shared, i);
        }
    }
    return ending;
}

/* Clears the slot that this process has just claimed, and writes this process's data into it. */
static void describe_member(struct weir_group *g, uint64_t weight) {
    struct group_slot *own = own_slot(g);
    uint64_t words[COMMAND_WORDS] = {0};

    empty_slot(group_map(g), g->shared.slot);
    weir__process_name((char *)words, sizeof words);
    for (int i = 0; i < COMMAND_WORDS; i++)
        atomic_store(&own->command[i], words[i]);
    for (int i = 0; i < WEIR_GROUP_KIND_COUNT; i++)
        atomic_store(&own->kind[i], 0);
    atomic_store(&own->idle, 0);
    atomic_store(&own->ends, 0);
    atomic_store(&own->start, g->shared.start);
    atomic_store(&own->namespace, g->shared.namespace);
    atomic_store(&own->weight, weight);
    atomic_store(&own->pid, (uint64_t)getpid());
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

/* ---- joining ------------------------------------------------------------------------------------- */

static void name_group_file(char file[WEIR_SLOT_PATH], const char *name, const char *device) {
    snprintf(file, WEIR_SLOT_PATH, "group%d-%s-%s", WEIR_GROUP_VERSION, name, device);
}

static int fail_join(char *why, const char *name, const char *what) {
    snprintf(why, WEIR_GROUP_WHY, "group '%s': %s", name, what);
    return -1;
}

static int fail_no_limit(char *why, const char *name) {
    return fail_join(
        why, name,
        "it has no members on this device, so it has no limit yet: expected group-limit "
        "with an amount such as 40GiB");
}

static int fail_other_limit(char *why, const char *name, uint64_t has, uint64_t limit) {
    char its[WEIR_SPELL_BYTES], own[WEIR_SPELL_BYTES];

    weir__bytes_spell(has, its, sizeof its);
    weir__bytes_spell(limit, own, sizeof own);
    snprintf(why, WEIR_GROUP_WHY,
             "group '%s' has members with the limit %s on this device, not %s: give group-limit "
             "%s, or none, or wait until the group has ended",
             name, its, own, its);
    return -1;
}

int weir__group_view(struct weir_group *g, const char *name, const char *device) {
    char file[WEIR_SLOT_PATH];

    *g = (struct weir_group){.name = ""};
    name_group_file(file, name, device);
    if (weir__slot_file_view(&g->shared, &the_kind, file) != 0)
        return -1;
    snprintf(g->name, sizeof g->name, "%s", name);
    return 0;
}

void weir__group_each(const char *name, void (*visit)(const char *device, void *context),
                      void *context) {
    char begins[WEIR_SLOT_PATH];

    name_group_file(begins, name, "");
    weir__slot_file_each(begins, WEIR_REGISTRY_DEVICE, visit, context);
}

struct visit {
    const char *device;
    void (*each)(const char *name, void *context);
    void *context;
};

/* `rest` is the part "NAME-DEVICE" of a file name; NAME may contain hyphens. */
static void visit_name(const char *rest, void *context) {
    const struct visit *visit = context;
    size_t length = strlen(rest), tail = strlen(visit->device) + 1;
    char name[WEIR_GROUP_NAME + 1];

    if (length <= tail || length - tail >= sizeof name || rest[length - tail] != '-' ||
        strcmp(rest + length - tail + 1, visit->device) != 0)
        return;
    snprintf(name, sizeof name, "%.*s", (int)(length - tail), rest);
    visit->each(name, visit->context);
}

void weir__group_each_on(const char *device, void (*visit)(const char *name, void *context),
                         void *context) {
    char begins[32];

    snprintf(begins, sizeof begins, "group%d-", WEIR_GROUP_VERSION);
    weir__slot_file_each(begins, WEIR_GROUP_NAME + 1 + WEIR_REGISTRY_DEVICE, visit_name,
                         &(struct visit){device, visit, context});
}

/* Removes the shared file of a group whose last members were killed. */
static void remove_group_without_members(const char *name, void *device) {
    struct weir_group g;

    if (weir__group_view(&g, name, device) == 0)
        weir__group_leave(&g);
}

/* Returns 0 if the group has no members and `limit` is 0, else 1.  Sets the limit if there are no members. */
static int renew_limit(const char *name, const char *device, uint64_t limit) {
    struct weir_group old;
    int is_unused;

    if (weir__group_view(&old, name, device) != 0)
        return 1;
    is_unused = weir__slot_lock_all(&old.shared);
    if (is_unused && limit != 0)
        group_map(&old)->head.limit = limit;
    weir__group_leave(&old);
    return !is_unused || limit != 0;
}

int weir__group_join(struct weir_group *g, const char *name, const char *device, uint64_t limit,
                     uint64_t weight, char why[WEIR_GROUP_WHY]) {
    char file[WEIR_SLOT_PATH];
    uint64_t has;

    *g = (struct weir_group){.name = ""};
    name_group_file(file, name, device);
    if (!renew_limit(name, device, limit))
        return fail_no_limit(why, name);
    if (weir__slot_file_open(&g->shared, &the_kind, file, limit) == 0) {
        snprintf(g->name, sizeof g->name, "%s", name);
        describe_member(g, weight);
        (void)recover_ended(g);
        has = weir__group_limit(g);
        if (has != 0 && (limit == 0 || limit == has)) {
            g->shared.limit = has;
            weir__group_each_on(device, remove_group_without_members, (void *)(uintptr_t)device);
            return 0;
        }
        weir__group_leave(g);
        return has == 0 ? fail_no_limit(why, name) : fail_other_limit(why, name, has, limit);
    }
    if (errno == ENAMETOOLONG)
        return fail_join(why, name, "the path of its file is too long");
    if (errno == ENOENT && limit == 0)
        return fail_no_limit(why, name);
    if (errno == EUSERS)
        return fail_join(why, name, "it has as many members as there can be");
    snprintf(why, WEIR_GROUP_WHY,
             "group '%s': cannot use %s: %s; expected a folder in which this user may make files",
             name, g->shared.path, strerror(errno));
    return -1;
}

/* ---- the name ------------------------------------------------------------------------------------ */

/* Joins the group again after its shared file was removed, and counts this process's bytes there, even above the limit.
 * On failure keeps the old file, and all requests for memory fail.  The caller holds the lock. */
static void join_again(struct weir_group *g) {
    struct group_slot *own = own_slot(g);
    uint64_t bytes = bytes_of_slot(own), idle = atomic_load(&own->idle),
             weight = atomic_load(&own->weight), kind[WEIR_GROUP_KIND_COUNT];

    for (int i = 0; i < WEIR_GROUP_KIND_COUNT; i++)
        kind[i] = atomic_load(&own->kind[i]);
    g->shared.limit = group_map(g)->head.limit;
    if (weir__slot_file_renew(&g->shared) != 0) {
        if (!g->is_lost)
            weir__log(WEIR_LOG_ERROR, WEIR_LOG_ERROR,
                      "group '%s': somebody removed %s, and this process cannot make or open that "
                      "file again: %s.  It gets no more memory until it can",
                      g->name, g->shared.path, strerror(errno));
        g->is_lost = 1;
        return;
    }
    g->is_lost = 0;
    describe_member(g, weight);
    own = own_slot(g);
    for (int i = 0; i < WEIR_GROUP_KIND_COUNT; i++)
        atomic_store(&own->kind[i], kind[i]);
    atomic_store(&own->idle, idle);
    (void)change_count(group_map(g), g->shared.slot, bytes, 0, WEIR_GROUP_MOST);
    /* If weir__slot_file_renew() has opened the same file again, subtracts the bytes of this process's earlier slot. */
    (void)recover_ended(g);
}

/* Locks the group.  Joins it again if its shared file was removed or damaged. */
static void lock_in_named_file(struct weir_group *g) {
    int saved_errno = errno;

    pthread_mutex_lock(&g->shared.lock);
    if (!g->has_ended && weir__slot_file_is_lost(&g->shared))
        join_again(g);
    errno = saved_errno;
}

static void unlock_group(struct weir_group *g) {
    pthread_mutex_unlock(&g->shared.lock);
}

uint64_t weir__group_recover(struct weir_group *g) {
    uint64_t ending;

    lock_in_named_file(g);
    ending = recover_ended(g);
    unlock_group(g);
    return ending;
}

void weir__group_leave(struct weir_group *g) {
    if (!g->shared.map)
        return;
    pthread_mutex_lock(&g->shared.lock);
    if (g->shared.slot >= 0)
        empty_slot(group_map(g), g->shared.slot);
    unlock_group(g);
    weir__slot_file_close(&g->shared);
}

void weir__group_end(struct weir_group *g) {
    if (!g->shared.map || g->shared.slot < 0 || !weir__thread_lock_at_end(&g->shared.lock))
        return;
    g->has_ended = 1;
    atomic_store(&own_slot(g)->ends, 1);
    weir__slot_file_end(&g->shared);
    unlock_group(g);
}

void weir__group_close_in_child(struct weir_group *g) {
    weir__slot_file_close_in_child(&g->shared);
}

/* ---- counting ------------------------------------------------------------------------------------ */

/* Changes this process's bytes of one kind.  Returns 0 if the group would exceed `limit`, else 1.  Needs the lock. */
static int count_kind(struct weir_group *g, enum weir_group_kind kind, uint64_t more, uint64_t less,
                      uint64_t limit) {
    _Atomic uint64_t *own = &own_slot(g)->kind[kind];

    less = weir__size_smaller(less, atomic_load_explicit(own, memory_order_relaxed));
    if (!change_count(group_map(g), g->shared.slot, more, less, limit))
        return 0;
    atomic_fetch_add_explicit(own, more - less, memory_order_relaxed);
    return 1;
}

int weir__group_charge(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    uint64_t limit;
    int is_taken;

    lock_in_named_file(g);
    limit = g->is_lost ? 0 : weir__group_limit(g);
    is_taken = bytes == 0 || (bytes <= limit && count_kind(g, kind, bytes, 0, limit));
    if (!is_taken && bytes <= limit) {
        (void)recover_ended(g);
        is_taken = count_kind(g, kind, bytes, 0, limit);
    }
    unlock_group(g);
    return is_taken;
}

static void count_unlimited(struct weir_group *g, enum weir_group_kind kind, uint64_t more,
                            uint64_t less) {
    if (more == less)
        return;
    lock_in_named_file(g);
    (void)count_kind(g, kind, more, less, WEIR_GROUP_MOST);
    unlock_group(g);
}

void weir__group_uncharge(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    count_unlimited(g, kind, 0, bytes);
}

void weir__group_charge_unlimited(struct weir_group *g, enum weir_group_kind kind, uint64_t bytes) {
    count_unlimited(g, kind, bytes, 0);
}

void weir__group_publish_idle(struct weir_group *g, uint64_t bytes) {
    lock_in_named_file(g);
    atomic_store_explicit(&own_slot(g)->idle, bytes, memory_order_relaxed);
    unlock_group(g);
}

uint64_t weir__group_limit(const struct weir_group *g) {
    return group_map(g)->head.limit;
}

uint64_t weir__group_used(struct weir_group *g) {
    uint64_t used;

    lock_in_named_file(g);
    used = counter_bytes(atomic_load(&group_map(g)->used));
    unlock_group(g);
    return used;
}

/* Copies the data of the process in slot `at` to *out.  Returns 1, or 0 if the slot is free, its process has ended, or
 * another process has claimed the slot during the copy. */
static int read_member(struct weir_group *g, int at, struct weir_group_member *out) {
    struct group_slot *slot = &group_map(g)->slot[at];
    uint64_t words[COMMAND_WORDS], pid = atomic_load(&slot->pid);

    *out = (struct weir_group_member){.pid = pid,
                                      .start = atomic_load(&slot->start),
                                      .namespace = atomic_load(&slot->namespace),
                                      .weight = atomic_load(&slot->weight),
                                      .bytes = bytes_of_slot(slot),
                                      .idle = atomic_load(&slot->idle),
                                      .slot = at,
                                      .is_own = at == g->shared.slot};
    for (int i = 0; i < WEIR_GROUP_KIND_COUNT; i++)
        out->kind[i] = atomic_load(&slot->kind[i]);
    for (int i = 0; i < COMMAND_WORDS; i++)
        words[i] = atomic_load(&slot->command[i]);
    memcpy(out->command, words, sizeof out->command);
    out->command[sizeof out->command - 1] = '\0';
    return pid != 0 && weir__slot_is_process_running(&g->shared, at) &&
           atomic_load(&slot->pid) == pid && atomic_load(&slot->start) == out->start;
}

static int compare_members(const void *one, const void *other) {
    const struct weir_group_member *a = one, *b = other;

    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

size_t weir__group_members(struct weir_group *g, struct weir_group_member *out) {
    uint64_t weights = 0;
    size_t count = 0;

    lock_in_named_file(g);
    for (int i = 0; i < WEIR_SLOTS; i++)
        if (read_member(g, i, &out[count])) {
            out[count].weight = weir__size_larger(out[count].weight, 1);
            weights += out[count++].weight;
        }
    for (size_t i = 0; i < count; i++)
        out[i].share =
            (uint64_t)((double)weir__group_limit(g) / (double)weights * (double)out[i].weight);
    unlock_group(g);
    qsort(out, count, sizeof *out, compare_members);
    return count;
}
