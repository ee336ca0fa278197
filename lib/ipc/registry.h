/* SPDX-License-Identifier: MIT */
/* registry.h: what the processes of a user have of one device, and what they ask of each other: a file of slots,
 * one for each process, which nobody but its owner writes.
 *
 * The file is FOLDER/weir-UID-registryVERSION-DEVICE, mode 0600, where FOLDER is as runfile.h says: all processes of
 * the user must find the same.
 *
 * Glossary
 *   slot     the room of one process; it has it as long as it holds the kernel's lock on it, which goes with the
 *            process, however that ends, and which nobody ever waits for
 *   entry    what stands in a slot, written at once and with a sum over it, so that half of one is none
 *   bell     a word on which the threads of all processes sleep until somebody rings
 *
 * What is found in the file is whatever a process of the user put there: a file that is not as it should be is
 * replaced by a fresh one and never read, and no load or store is made to memory that another process could
 * take away.
 *
 * Must not know: what an allocator is; the caller for what, and why.
 */
#ifndef WEIR_REGISTRY_H
#define WEIR_REGISTRY_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/kept.h"

enum {
    WEIR_REGISTRY_VERSION = 3,
    WEIR_REGISTRY_SLOTS = 256,
    WEIR_REGISTRY_ASKS = 8,    /* of whom one asks at once */
    WEIR_REGISTRY_ANSWERS = 8, /* of an entry, the last */
    WEIR_REGISTRY_COMMAND = 48,
    WEIR_REGISTRY_PATH = 256,
    WEIR_REGISTRY_DEVICE = 64 /* bytes of a device's name */
};

struct weir_registry_ask {
    uint64_t slot, start; /* whose, and when its process began */
    uint64_t bytes;       /* 0: nothing is asked of it */
};

struct weir_registry_answer {
    uint64_t sequence; /* of what was asked */
    uint64_t bytes;    /* that were given */
};

/* All in 64-bit words.  Times are of CLOCK_MONOTONIC. */
struct weir_registry_entry {
    uint64_t pid, start, namespace; /* the registry fills these in */
    uint64_t
        heartbeat_ns; /* what stands here knows of what others had written by then; 0: it has said nothing yet */
    uint64_t priority;                  /* whose is lower gives first */
    uint64_t weight;                    /* of its share of the device, in millionths */
    uint64_t limit;                     /* bytes; UINT64_MAX: none; 0: it has not said */
    uint64_t reserved, in_use, idle;    /* bytes; idle: that it could give back */
    uint64_t device_total, device_free; /* bytes, when it looked last; 0: it has not yet */
    uint64_t asked, got, given;         /* bytes so far: of others, from them, to them */
    uint64_t sequence;                  /* of what it asks now; 0: nothing yet */
    uint64_t until_ns;                  /* it waits until then; 0: it asks nothing */
    struct weir_registry_ask ask[WEIR_REGISTRY_ASKS];
    struct weir_registry_answer answer[WEIR_REGISTRY_ANSWERS];
    char command[WEIR_REGISTRY_COMMAND];
};

/* Of one device.  Zeroed: not open.  Any thread may use one. */
struct weir_registry {
    pthread_mutex_t lock;  /* guards what follows; held as long as a few system calls take */
    struct weir_kept file; /* none: it was lost, and could not be made again */
    int slot;              /* -1: it only looks, or has left */
    int has_left;
    void *page; /* of the bell, which is never touched; fixed while it is open */
    uint64_t start, namespace;
    uint64_t looked_ns; /* when the file was last seen to be sound */
    char path[WEIR_REGISTRY_PATH];
};

/* Finds the registry of a device, or makes it, and takes a slot.  0; -1 and errno: there can be none. */
int weir__registry_open(struct weir_registry *l, const char *device);
/* Only to look: 0; -1: there is none. */
int weir__registry_look(struct weir_registry *l, const char *device);
/* Gives the slot up for good; the last one takes the file with it, as does who only looked at one that nobody has a
 * slot in.  What is called afterwards does nothing. */
void weir__registry_leave(struct weir_registry *l);
/* Visits the names of the devices that have a registry. */
void weir__registry_each(void (*visit)(const char *device, void *context), void *context);
/* Leaves, and ends.  Nobody may sleep on it. */
void weir__registry_close(struct weir_registry *l);
/* Puts the entry into the own slot.  A file that was lost, or that somebody wrote over, is made again first. */
void weir__registry_publish(struct weir_registry *l, struct weir_registry_entry *entry);
/* 1: that slot is of a process that lives, and its entry is copied. */
int weir__registry_read(struct weir_registry *l, int slot, struct weir_registry_entry *out);
/* Visits the entries of those who are about to end, with their slots or without, so that the device may not have their
 * memory back yet; under the registry's lock.  Not those of another namespace of pids. */
void weir__registry_ending(struct weir_registry *l,
                           void (*visit)(int slot, const struct weir_registry_entry *entry,
                                         void *context),
                           void *context);
/* 1: the process of that entry is stopped, as far as its pid tells here. */
int weir__registry_is_stopped(const struct weir_registry *l,
                              const struct weir_registry_entry *entry);
int weir__registry_slot(struct weir_registry *l);
/* Returns 1 if the registry has an entry of another process, else 0. */
int weir__registry_has_others(struct weir_registry *l);

/* The bell, by turns: its value, sleep until it has another or so many milliseconds are over, and ring.  Where there is
 * no file the sleep is short. */
uint32_t weir__registry_bell(struct weir_registry *l);
void weir__registry_wait(struct weir_registry *l, uint32_t bell, unsigned milliseconds);
void weir__registry_ring(struct weir_registry *l);

uint64_t weir__registry_now(void);

#endif
