/* SPDX-License-Identifier: MIT */
/* registry.h: a file in which the processes of a user publish their memory of one device and their requests.
 *
 * The file is a slot file (slot_file.h) with the name registryVERSION-DEVICE.
 *
 * Glossary
 *   entry    the contents of a slot, written at once and with a checksum, so that a torn entry is detected
 *   bell     a word on which the threads of all processes sleep
 *   ring     to change the bell and wake all threads that sleep on the bell
 *
 * Any process of the user may write anything into the file.  So weir makes no load and no store in mapped memory of
 * the file, which another process could truncate.
 *
 * This file must not know what an allocator is or the reason of a request.
 */
#ifndef WEIR_REGISTRY_H
#define WEIR_REGISTRY_H

#include "ipc/slot_file.h"

enum {
    WEIR_REGISTRY_VERSION = 4,
    WEIR_REGISTRY_ASKS = 8,    /* the most processes that one request asks at once */
    WEIR_REGISTRY_ANSWERS = 8, /* the number of last answers in an entry */
    WEIR_REGISTRY_COMMAND = 48,
    WEIR_REGISTRY_DEVICE = 64 /* the bytes of a device's name */
};

struct weir_registry_ask {
    uint64_t slot, start; /* the slot of the asked process, and the start time of that process */
    uint64_t bytes;       /* the bytes that the process shall free, or 0 */
};

struct weir_registry_answer {
    uint64_t sequence; /* the number of the request */
    uint64_t bytes;    /* the freed bytes */
};

/* An entry of 64-bit words.  Times are of CLOCK_MONOTONIC. */
struct weir_registry_entry {
    uint64_t pid, start, namespace; /* filled in by the registry */
    /* After this time the process has read the entries of other processes, adapted its share and summed up its memory.
     * 0 before the first entry. */
    uint64_t as_of_ns;
    uint64_t priority; /* processes with a lower priority are asked first */
    uint64_t weight;   /* the weight of the process's share of the device, in millionths */
    /* In bytes; UINT64_MAX without a limit, 0 before the process has published its limit. */
    uint64_t limit;
    uint64_t reserved, in_use, idle; /* in bytes; `idle`: the bytes that the process could free */
    uint64_t device_total, device_free; /* in bytes, as last read from the driver, or 0 */
    uint64_t asked, got, given; /* sums of bytes: asked for, received, freed for other processes */
    uint64_t sequence;          /* the number of the last request; 0 before the first request */
    uint64_t until_ns;          /* the time until which the process waits for answers, or 0 */
    struct weir_registry_ask ask[WEIR_REGISTRY_ASKS];
    struct weir_registry_answer answer[WEIR_REGISTRY_ANSWERS];
    char command[WEIR_REGISTRY_COMMAND];
};

/* The functions below take a slot file that weir__registry_open or weir__registry_view has opened.  Several threads may
 * use one slot file at once. */

/* Opens the registry of a device, or makes it, and claims a slot.  Returns 0 on success, -1 with errno on failure. */
int weir__registry_open(struct weir_slot_file *f, const char *device);
/* Opens the registry for reading only.  Returns 0 on success, -1 if there is no registry. */
int weir__registry_view(struct weir_slot_file *f, const char *device);
/* Leaves the file, and wakes all sleepers.  Later calls do nothing. */
void weir__registry_leave(struct weir_slot_file *f);
/* Visits the names of the devices that have a registry. */
void weir__registry_each(void (*visit)(const char *device, void *context), void *context);
/* Leaves the file, and frees the mapping.  No thread may sleep on the bell. */
void weir__registry_close(struct weir_slot_file *f);
/* Writes the entry into this process's slot.  If the file was lost or overwritten, first makes the file again. */
void weir__registry_publish(struct weir_slot_file *f, struct weir_registry_entry *entry);
/* Copies the entry of a slot.  Returns 1 if its process lives, else 0. */
int weir__registry_read(struct weir_slot_file *f, int slot, struct weir_registry_entry *out);
/* Visits the entries of ending processes.  The memory of such a process may not be free yet, although the process may
 * have lost its locks.  Holds the file's lock during the visits.  Does not visit processes in another namespace of
 * pids. */
void weir__registry_ending(struct weir_slot_file *f,
                           void (*visit)(int slot, const struct weir_registry_entry *entry,
                                         void *context),
                           void *context);
/* Returns 1 if the entry's process is stopped and its pid is of this namespace, else 0. */
int weir__registry_is_stopped(const struct weir_slot_file *f,
                              const struct weir_registry_entry *entry);
int weir__registry_slot(struct weir_slot_file *f);

/* Returns the bell's value. */
uint32_t weir__registry_bell(struct weir_slot_file *f);
/* Sleeps until the bell has another value than `bell`, or until the milliseconds are over.  If there is no file, the
 * sleep is short. */
void weir__registry_wait(struct weir_slot_file *f, uint32_t bell, unsigned milliseconds);
/* Changes the bell's value, and wakes all threads that sleep on the bell. */
void weir__registry_ring(struct weir_slot_file *f);

uint64_t weir__registry_now(void);

#endif
