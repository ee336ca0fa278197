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
 * Any process of the user may write anything into the file or truncate it.  So weir reads and writes the file by system
 * calls, and does not load from mapped memory of the file or store into it.
 *
 * This file must not depend on the type of an allocator, or on why a process requests memory.
 */
#ifndef WEIR_REGISTRY_H
#define WEIR_REGISTRY_H

#include "ipc/slot_file.h"

enum {
    WEIR_REGISTRY_VERSION = 4,
    WEIR_REGISTRY_ASKS = 8,    /* one request asks at most this number of other processes */
    WEIR_REGISTRY_ANSWERS = 8, /* the number of newest answers that an entry keeps */
    WEIR_REGISTRY_COMMAND = 48,
    WEIR_REGISTRY_DEVICE = 64 /* the bytes for the name of a device, with the NUL */
};

struct weir_registry_ask {
    /* The slot and the start time of the process that is asked to free memory. */
    uint64_t slot, start;
    /* The bytes that this process should free; 0 if the array element is unused. */
    uint64_t bytes;
};

struct weir_registry_answer {
    uint64_t sequence; /* the number of the request that this is the answer to */
    uint64_t bytes;    /* the bytes that the answering process has freed */
};

/* What one process publishes about itself: its entry in the shared registry of a device, in 64-bit words.  All times
 * are times of CLOCK_MONOTONIC. */
struct weir_registry_entry {
    /* The process that owns the entry.  weir__registry_publish() sets these three fields. */
    uint64_t pid, start, namespace;
    /* The time at which the process began to prepare its last complete publication, so a reader can tell whether the
     * figures are newer than a request.  0 before the first complete publication. */
    uint64_t as_of_ns;
    /* An integer; a request for memory goes to processes with a lower priority first. */
    uint64_t priority;
    /* The weight by which the device is divided between processes, in millionths. */
    uint64_t weight;
    /* The limit of the process's device memory in bytes; UINT64_MAX if there is no limit, 0 while the limit is not
     * yet published. */
    uint64_t limit;
    /* The device memory of the process in bytes.  `idle` is the part of `reserved` that the process could free. */
    uint64_t reserved, in_use, idle;
    /* The total and the free memory of the device in bytes, as the driver last reported them to this process, or 0. */
    uint64_t device_total, device_free;
    /* Totals in bytes since the process began: requested from other processes, received from them, and freed for
     * them. */
    uint64_t asked, got, given;
    /* The number of the process's last request for memory; 0 before its first request. */
    uint64_t sequence;
    /* The time until which the process waits for answers to its request, or 0 if it does not wait. */
    uint64_t until_ns;
    struct weir_registry_ask ask[WEIR_REGISTRY_ASKS];
    struct weir_registry_answer answer[WEIR_REGISTRY_ANSWERS];
    char command[WEIR_REGISTRY_COMMAND];
};

/* In all functions below, `f` is the open registry: a slot file that weir__registry_open or weir__registry_view has
 * opened.  Several threads may call the functions for one registry at once. */

/* Opens the shared registry of a device, which is a file, and claims a slot in it for this process.  Creates the file
 * if it does not exist.  Returns 0 on success, -1 with errno on failure. */
int weir__registry_open(struct weir_slot_file *f, const char *device);
/* Opens the shared registry of a device for reading only.  Returns 0 on success, -1 if the registry does not exist. */
int weir__registry_view(struct weir_slot_file *f, const char *device);
/* Releases this process's slot in the registry, and wakes all threads that sleep on the registry's bell, a futex
 * word.  Later calls for this registry do nothing. */
void weir__registry_leave(struct weir_slot_file *f);
/* Calls `visit` for each device that has a shared registry. */
void weir__registry_each(void (*visit)(const char *device, void *context), void *context);
/* Releases this process's slot in the registry, and unmaps the file.  No thread of this process may sleep in
 * weir__registry_wait() at the time. */
void weir__registry_close(struct weir_slot_file *f);
/* Writes the entry into this process's slot of the registry, a shared file.  If the file was removed or overwritten,
 * first opens or creates the file again. */
void weir__registry_publish(struct weir_slot_file *f, struct weir_registry_entry *entry);
/* Copies the entry of a slot to *out.  Returns 1 on success, 0 if the slot has no complete entry or if its process
 * has ended. */
int weir__registry_read(struct weir_slot_file *f, int slot, struct weir_registry_entry *out);
/* Calls `visit` for the entry of each ending process: a process that is exiting or was killed, and whose device
 * memory may not be free yet.  Skips processes whose pids belong to another pid namespace.  Holds the lock of the
 * file during the calls. */
void weir__registry_ending(struct weir_slot_file *f,
                           void (*visit)(int slot, const struct weir_registry_entry *entry,
                                         void *context),
                           void *context);
/* Returns 1 if the process of the entry is stopped (SIGSTOP) and its pid is valid in this pid namespace, else 0. */
int weir__registry_is_stopped(const struct weir_slot_file *f,
                              const struct weir_registry_entry *entry);
int weir__registry_slot(struct weir_slot_file *f);

/* Returns the present value of the registry's bell.  The bell is a futex word in the file, on which threads of all
 * processes sleep. */
uint32_t weir__registry_bell(struct weir_slot_file *f);
/* Sleeps until the registry's bell, a futex word, differs from `bell`, or until the milliseconds have passed.  If the
 * file is lost, sleeps only for a short time, so that the caller soon tries to open the file again. */
void weir__registry_wait(struct weir_slot_file *f, uint32_t bell, unsigned milliseconds);
/* Changes the registry's bell, a futex word, and wakes the threads of all processes that sleep on it. */
void weir__registry_ring(struct weir_slot_file *f);

uint64_t weir__registry_now(void);

#endif
