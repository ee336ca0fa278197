/* SPDX-License-Identifier: MIT */
/* group_slots.h: the file of a group (group.h): a counter, and a slot for each member.
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
    WEIR_GROUP_NUMBER_BITS = 60 /* of the number of a member */
};

struct weir_group_slot {
    _Atomic uint64_t owner;    /* the member's number; 0: free */
    _Atomic uint64_t applied;  /* the number of the last change of this slot, over all its owners */
    _Atomic uint64_t value[2]; /* of even and odd changes: bytes, and the change's number */
    /* For people, and for the order in which members are asked.  The owner has written it if `described' is its number. */
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

/* Tries to lock a byte of the file.  Returns 0, or -1 with errno. */
int weir__group_lock_byte(int file, off_t at, short type);
/* Returns the byte that the member of that number locks. */
off_t weir__group_byte_of(uint64_t number);

/* Return the bytes that a slot and that all slots count. */
uint64_t weir__group_slot_bytes(struct weir_group_slot *slot);
uint64_t weir__group_file_bytes(struct weir_group_file *file);

/* The caller of what follows holds the group's lock, or is alone with it. */

/* Makes one change of the own slot.  Returns 1, or 0 if all members together would have more than the limit. */
int weir__group_change(struct weir_group *g, uint64_t more, uint64_t less, uint64_t limit);
/* Returns 1 if the member of that number lives. */
int weir__group_member_lives(const struct weir_group *g, const struct weir_group_slot *slot,
                             uint64_t number);
/* Recovers what members have counted that have ended.  Returns the bytes that are still counted of those who are
 * ending. */
uint64_t weir__group_recover_ended(struct weir_group *g);
/* Claims a slot.  Returns 0, or -1 with EUSERS if all are taken. */
int weir__group_claim(struct weir_group *g);
/* Writes into the own slot which process this is. */
void weir__group_describe(struct weir_group *g, uint64_t weight);

#endif
