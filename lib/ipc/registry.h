/* SPDX-License-Identifier: MIT */
/* registry.h: the shared registry of a device: a file in which the processes of a user publish how much memory they
 * have and ask each other for memory.
 *
 * The file is a slot file (slot_file.h).  Its name is registryVERSION-DEVICE.
 *
 * Glossary
 *   entry    the contents of a slot; one call writes a whole entry with its checksum, so that readers detect an
 *            incomplete entry
 *   bell     a word of the file on which threads of all processes sleep
 *   ring     to change the word and wake all threads that sleep on it
 *
 * Any process of the user may write anything into the file or truncate it.  So weir never loads from mapped memory of
 * the file and never stores into it.
 *
 * This file must not know what an allocator is, or why a process asks for memory.
 */
#ifndef WEIR_REGISTRY_H
#define WEIR_REGISTRY_H

#include "ipc/slot_file.h"

enum {
    WEIR_REGISTRY_VERSION = 4,
    WEIR_REGISTRY_ASKS = 8,    /* one request asks at most this number of processes at once */
    WEIR_REGISTRY_ANSWERS = 8, /* an entry contains the newest answers, up to this number */
    WEIR_REGISTRY_COMMAND = 48,
    WEIR_REGISTRY_DEVICE = 64 /* the bytes for the name of a device, with the NUL */
};

struct weir_registry_ask {
    uint64_t slot, start; /* the slot of the asked process, and its start time */
    uint64_t bytes;       /* the bytes that the process should free, or 0 for an unused element */
};

struct weir_registry_answer {
    uint64_t sequence; /* the number of the answered request */
    uint64_t bytes;    /* the bytes that this process has freed */
};

/* The entry of one process, in 64-bit words.  All times are times of CLOCK_MONOTONIC. */
struct weir_registry_entry {
    /* The process of the entry; weir__registry_publish() sets these fields. */
    uint64_t pid, start, namespace;
    /* The time at which the process began its last full publication: it then read the entries of other processes,
     * adapted its shares and summed up its memory.  0 before the first full publication. */
    uint64_t as_of_ns;
    uint64_t priority; /* processes with a lower priority are asked for memory first */
    uint64_t weight;   /* the weight of the process's share of the device, in millionths */
    /* The limit of the process in bytes; UINT64_MAX if there is no limit, 0 before the process has published its
     * limit. */
    uint64_t limit;
    /* The memory of the process in bytes; it could free `idle` bytes. */
    uint64_t reserved, in_use, idle;
    /* The memory of the device in bytes, as the driver last reported it, or 0. */
    uint64_t device_total, device_free;
    /* Sums of bytes that the process has asked for, received, and freed for others. */
    uint64_t asked, got, given;
    /* The number of the process's last request; 0 before its first request. */
    uint64_t sequence;
    /* The time until which the process waits for answers, or 0 if it does not wait. */
    uint64_t until_ns;
    struct weir_registry_ask ask[WEIR_REGISTRY_ASKS];
    struct weir_registry_answer answer[WEIR_REGISTRY_ANSWERS];
    char command[WEIR_REGISTRY_COMMAND];
};

/* `f` is a slot file that weir__registry_open or weir__registry_view has opened.  Several threads may call the
 * functions below for one slot file at once. */

/* Opens the registry of a device, and claims a slot.  Makes the registry if there is none.  Returns 0 on success, -1
 * with errno on failure. */
int weir__registry_open(struct weir_slot_file *f, const char *device);
/* Opens the registry of a device for reading only.  Returns 0 on success, -1 if there is no registry. */
int weir__registry_view(struct weir_slot_file *f, const char *device);
/* Leaves the registry, and wakes all threads that sleep on its bell.  Later calls for the slot file do nothing. */
void weir__registry_leave(struct weir_slot_file *f);
/* Calls `visit` for each device that has a registry. */
void weir__registry_each(void (*visit)(const char *device, void *context), void *context);
/* Leaves the registry, and removes the mapping.  No thread of this process may sleep on the bell. */
void weir__registry_close(struct weir_slot_file *f);
/* Writes the entry into the slot of this process.  If the file was removed or overwritten, first opens or makes the
 * file again. */
void weir__registry_publish(struct weir_slot_file *f, struct weir_registry_entry *entry);
/* Copies the entry of a slot to *out.  Returns 1 on success, 0 if the slot has no complete entry or its process has
 * ended. */
int weir__registry_read(struct weir_slot_file *f, int slot, struct weir_registry_entry *out);
/* Calls `visit` for the entry of each ending process, except for processes in another namespace of pids.  The memory
 * of an ending process may not be free yet, although the process may have lost its locks.  Holds the lock of the
 * file during the calls. */
void weir__registry_ending(struct weir_slot_file *f,
                           void (*visit)(int slot, const struct weir_registry_entry *entry,
                                         void *context),
                           void *context);
/* Returns 1 if the process of the entry is stopped and has a pid of this namespace, else 0. */
int weir__registry_is_stopped(const struct weir_slot_file *f,
                              const struct weir_registry_entry *entry);
int weir__registry_slot(struct weir_slot_file *f);

/* Returns the present value of the bell. */
uint32_t weir__registry_bell(struct weir_slot_file *f);
/* Sleeps until the bell has another value than `bell`, or until the milliseconds have passed.  If the file is lost,
 * sleeps only for a short time. */
void weir__registry_wait(struct weir_slot_file *f, uint32_t bell, unsigned milliseconds);
/* Changes the value of the bell, and wakes all threads that sleep on the bell. */
void weir__registry_ring(struct weir_slot_file *f);

uint64_t weir__registry_now(void);

#endif
