/* SPDX-License-Identifier: MIT */
/* registry.h: the shared registry of a device: a slot file (slot_file.h) named registryVERSION-DEVICE, in which the
 * processes of a user publish how much memory they have and ask each other for memory.
 *
 * Glossary
 *   entry    the contents of a slot; one call writes a whole entry with its checksum, so that readers detect an
 *            incomplete entry
 *   bell     a word of the file on which threads of all processes sleep
 *   ring     to change the word and wake all threads that sleep on it
 *
 * Any process of the user may write into the file or truncate it.  So weir uses system calls, not mapped memory. */
#ifndef WEIR_REGISTRY_H
#define WEIR_REGISTRY_H

#include "ipc/slot_file.h"

enum {
    WEIR_REGISTRY_VERSION = 4,
    WEIR_REGISTRY_REQUESTS = 8, /* the most processes that one request asks */
    WEIR_REGISTRY_ANSWERS = 8,  /* the newest answers that an entry keeps */
    WEIR_REGISTRY_COMMAND = 48,
    WEIR_REGISTRY_DEVICE = 64 /* with the NUL */
};

struct weir_registry_request {
    uint64_t slot, start; /* identify the process that is asked to free memory */
    uint64_t bytes;       /* 0 if the array element is unused */
};

struct weir_registry_answer {
    uint64_t sequence; /* the number of the answered request */
    uint64_t bytes;    /* freed by the answering process */
};

/* A process's entry in the shared registry of a device, in 64-bit words.  All times are of CLOCK_MONOTONIC. */
struct weir_registry_entry {
    uint64_t pid, start, namespace; /* the owner; set by weir__registry_publish() */
    uint64_t as_of_ns;              /* when the process began to read its published values, or 0 */
    uint64_t priority;              /* requests go to processes with a lower priority first */
    uint64_t weight; /* millionths; the device is divided between processes by weight */
    /* The limit of the process's device memory in bytes; UINT64_MAX: none; 0: not yet published. */
    uint64_t limit;
    /* Device memory in bytes.  `idle` is the part of `reserved` that the process could free. */
    uint64_t reserved, in_use, idle;
    /* The total and free bytes of the device, as the driver last reported them to this process, or 0. */
    uint64_t device_total, device_free;
    /* Bytes since the process began: requested from other processes, received from them, and freed for them. */
    uint64_t requested, received, freed;
    uint64_t sequence; /* the number of the process's last request for memory; 0: none yet */
    uint64_t until_ns; /* until when the process waits for answers to its request, or 0 */
    struct weir_registry_request request[WEIR_REGISTRY_REQUESTS];
    struct weir_registry_answer answer[WEIR_REGISTRY_ANSWERS];
    char command[WEIR_REGISTRY_COMMAND];
};

/* Open `f` by weir__registry_open or weir__registry_view first.  Several threads may use one registry at once. */

/* Opens or creates the registry of a device, and claims a slot in it.  Returns 0, or -1 with errno. */
int weir__registry_open(struct weir_slot_file *f, const char *device);
/* Opens the registry of a device for reading only.  Returns 0 on success, -1 if it does not exist. */
int weir__registry_view(struct weir_slot_file *f, const char *device);
/* Releases this process's slot, if it has one, and wakes all threads that sleep in weir__registry_wait(). */
void weir__registry_leave(struct weir_slot_file *f);
/* Calls `visit` for each device that has a registry. */
void weir__registry_each(void (*visit)(const char *device, void *context), void *context);
/* Releases this process's slot, and unmaps the file.  No thread of this process may sleep in weir__registry_wait(). */
void weir__registry_close(struct weir_slot_file *f);
/* Writes the entry into this process's slot.  If the file was removed or overwritten, first opens or creates a file. */
void weir__registry_publish(struct weir_slot_file *f, struct weir_registry_entry *entry);
/* Copies the entry of a slot to *out.  Returns 1, or 0 if there is no complete entry or its process has ended. */
int weir__registry_read(struct weir_slot_file *f, int slot, struct weir_registry_entry *out);
/* Calls `visit` for each exiting or killed process, whose memory may not be free yet.  Skips processes of other pid
 * namespaces.  Holds the lock of the file during the calls. */
void weir__registry_each_ending(struct weir_slot_file *f,
                                void (*visit)(int slot, const struct weir_registry_entry *entry,
                                              void *context),
                                void *context);
/* Returns 1 if the process of the entry is stopped (SIGSTOP) and its pid is valid in this pid namespace, else 0. */
int weir__registry_is_stopped(const struct weir_slot_file *f,
                              const struct weir_registry_entry *entry);
int weir__registry_slot(struct weir_slot_file *f);

/* Returns the value of the bell, a futex word in the file on which threads of all processes sleep. */
uint32_t weir__registry_bell(struct weir_slot_file *f);
/* Sleeps until a process changes the registry's futex word from the value `bell`, for at most `milliseconds`. */
void weir__registry_wait(struct weir_slot_file *f, uint32_t bell, unsigned milliseconds);
/* Changes the registry's bell, a futex word, and wakes the threads of all processes that sleep on it. */
void weir__registry_ring(struct weir_slot_file *f);

uint64_t weir__registry_now(void);

#endif
