/* SPDX-License-Identifier: MIT */
/* group_slots.h: the file of a group (group.h), which has a counter and a slot for each member.
 *
 * Must not know: which file has the name.
 */
#ifndef WEIR_GROUP_SLOTS_H
#define WEIR_GROUP_SLOTS_H

#include <sys/types.h>

#include "ipc/group.h"

enum {
    WEIR_GROUP_PAGE = 4096,
    WEIR_GROUP_COMMAND_WORDS = WEIR_REGISTRY_COMMAND / 8,
    WEIR_GROUP_NUMBER_BITS = 60 /* the bits of a member's number */
};

struct weir_group_slot {
    _Atomic uint64_t owner;    /* the number of the member, or 0 if the slot is free */
    _Atomic uint64_t applied;  /* the number of the last change of this slot, over all its owners */
    _Atomic uint64_t value[2]; /* for even and odd changes: the bytes and the change's number */
    /* For people, and for the order in which members are asked.  Valid if `described` is the owner's number. */
    _Atomic uint64_t described, pid, start, namespace, weight, idle;
    _Atomic uint64_t kind[WEIR_GROUP_KIND_COUNT];
    _Atomic uint64_t command[WEIR_GROUP_COMMAND_WORDS];
    uint64_t unused[32 - 10 - WEIR_GROUP_KIND_COUNT - WEIR_GROUP_COMMAND_WORDS];
};

struct weir_group_file {
    char magic[8];
    uint32_t version, slots;
    uint64_t limit;
    char unused[64 - 24];
    _Atomic uint64_t used;
    char rest[WEIR_GROUP_PAGE - 64 - 8];
    struct weir_group_slot slot[WEIR_GROUP_SLOTS];
};

_Static_assert(sizeof(struct weir_group_slot) == 256, "another layout is another version");
_Static_assert(offsetof(struct weir_group_file, slot) == WEIR_GROUP_PAGE,
               "another layout is another version");

/* Tries to lock a byte of the file.  Returns 0 on success, -1 with errno on failure. */
int weir__group_lock_byte(int file, off_t at, short type);
/* Returns the byte that the member of that number locks. */
off_t weir__group_byte_of(uint64_t number);

/* Return the bytes that a slot and that all slots count. */
uint64_t weir__group_slot_bytes(struct weir_group_slot *slot);
uint64_t weir__group_file_bytes(struct weir_group_file *file);

/* Callers of the functions below hold the group's lock, or no other thread has the group yet. */

/* Makes one change of this member's slot.  Returns 1 on success, 0 if all members together would exceed the limit. */
int weir__group_change(struct weir_group *g, uint64_t more, uint64_t less, uint64_t limit);
/* Returns 1 if the member of that number lives, else 0. */
int weir__group_member_lives(const struct weir_group *g, const struct weir_group_slot *slot,
                             uint64_t number);
/* Recovers the bytes of members that have ended.  Returns the bytes that members which are still ending have
 * counted. */
uint64_t weir__group_recover_ended(struct weir_group *g);
/* Claims a slot.  Returns 0 on success, -1 with EUSERS if all slots are taken. */
int weir__group_claim(struct weir_group *g);
/* Writes pid, start time, command and weight of this process into its slot. */
void weir__group_describe(struct weir_group *g, uint64_t weight);

#endif
