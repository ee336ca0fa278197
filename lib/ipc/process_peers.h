/* SPDX-License-Identifier: MIT */
/* process_peers.h: lets the processes that share a device free memory for each other, through the device's registry
 * (registry.h).
 *
 * A process has one struct weir_process_peers for each device on which it has an allocator, with a thread that sleeps
 * until another process rings the bell of the registry.  Then the thread publishes the memory of the process's
 * allocators, and frees the memory that other processes ask for.
 *
 * This file must not know settings' names or what an allocator is.
 */
#ifndef WEIR_PROCESS_PEERS_H
#define WEIR_PROCESS_PEERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "driver/driver.h"
#include "ipc/registry.h"

struct weir_process_peers;
struct weir_group;

/* The memory that one allocator has of the device, in bytes. */
struct weir_holding {
    uint64_t reserved, in_use, idle; /* `idle`: the bytes that the allocator could free */
    uint64_t limit;                  /* UINT64_MAX if there is no limit */
    uint64_t device_total, device_free;
    _Atomic uint64_t *shown; /* see weir__process_peers_note; may be NULL */
};

/* The claim of one allocator to memory of the device.  The claim begins before the allocator's creation, and ends with
 * the allocator.  A process publishes the largest priority and the largest weight of its claims. */
struct weir_claim {
    struct weir_claim *next; /* private */
    uint64_t priority;
    uint64_t weight; /* the weight of the allocator's share, in millionths */
    int shares; /* nonzero if the allocator's limit is a share, so that `resize` must be called */
};

/* The functions that the thread calls for each allocator of the process, without a lock.  `owner` is the allocator's
 * entry in the list of local peers. */
struct weir_process_peers_calls {
    void (*holding)(void *owner, struct weir_holding *out);
    uint64_t (*give)(void *owner, uint64_t bytes); /* returns the freed bytes */
    /* Adapts the allocator's limit.  The thread calls this function from time to time, since processes come and go.
     * `weights` is the sum of all processes' weights. */
    void (*resize)(void *owner, uint64_t weights);
};

/* Joins the processes of a device, for one more allocator.  The caller keeps `claim` unchanged until the allocator
 * leaves.  On failure returns NULL with a reason; the reason is "" if no other process can share the device, or if an
 * earlier call has returned the reason. */
struct weir_process_peers *weir__process_peers_join(const struct weir_driver *driver,
                                                    CUdevice device,
                                                    const struct weir_process_peers_calls *calls,
                                                    struct weir_claim *claim, char *why,
                                                    size_t why_bytes);
/* Leaves the processes of the device, for one allocator, and subtracts the allocator's memory.  The caller must hold no
 * lock that a function of struct weir_process_peers_calls may want. */
void weir__process_peers_leave(struct weir_process_peers *n, struct weir_claim *claim,
                               _Atomic uint64_t *shown);

/* Publishes an allocator's reserved memory after a change.  `shown` holds the value that was published last for the
 * allocator. */
void weir__process_peers_note(struct weir_process_peers *n, _Atomic uint64_t *shown,
                              uint64_t reserve);

/* The result of asking other processes. */
struct weir_answers {
    uint64_t given; /* the freed bytes */
    /* The bytes that other processes use, and all bytes of processes that are not asked because they did not answer an
     * earlier request.  Memory of ending processes does not count.  UINT64_MAX if there are no other processes. */
    uint64_t kept;
    int heard; /* set if a process has published its memory during the request, or has answered */
    int late;  /* set if a process has not answered */
    /* Set if another request may get more memory: a process has not answered yet, there was no time to ask a process,
     * or a process is ending. */
    int is_incomplete;
    /* The bytes that ending processes may still return to the device, or 0 if enough was freed.  A process no longer
     * counts after two seconds of ending. */
    uint64_t ending;
};

/* A request to other processes for memory.  Times are of CLOCK_MONOTONIC. */
struct weir_ask {
    uint64_t bytes;
    uint64_t began_ns;    /* the start of the program's request, which may ask several times */
    uint64_t deadline_ns; /* the time until which the request waits for answers */
};

/* The state of a request for a context; zeroed before the first call. */
struct weir_admission {
    uint64_t began_ns;
    int is_over; /* set once no process can free more memory */
};

/* Asks other processes for memory.  Asks members of the group that have more than their share first, then processes with
 * a lower priority, then processes with most idle memory.  If `group` is NULL, asks all processes.  Processes outside
 * `group` do not count in the result. */
struct weir_answers weir__process_peers_ask(struct weir_process_peers *n, struct weir_ask ask,
                                            struct weir_group *group);

/* Returns the group of this process on the device, or NULL. */
struct weir_group *weir__process_peers_group(const struct weir_process_peers *n);

/* A process that has memory of the device. */
struct weir_holder {
    uint64_t pid;
    uint64_t reserved, idle; /* in bytes, as last published; the process could free `idle` bytes */
    int is_stopped;
    int is_silent; /* the process is stopped, or has not answered */
    char command[WEIR_REGISTRY_COMMAND];
};

/* The other processes that have memory of the device. */
enum { WEIR_MOST_HOLDERS = 4 };
struct weir_holders {
    /* `silent` is the process with most memory that does not answer.  `heard` is the process with most memory that
     * answers.  The pid is 0 if there is no such process. */
    struct weir_holder silent, heard;
    /* The processes with most memory, the largest first. */
    struct weir_holder most[WEIR_MOST_HOLDERS];
    size_t count; /* the number of all processes with memory */
};
/* Reads the shared registry.  May wait for a thread that asks other processes for memory. */
void weir__process_peers_holders(struct weir_process_peers *n, struct weir_holders *out);

/* Writes the names and the memory of the other processes with most memory, and whether these processes answer.  Writes
 * "" if there are no other processes.  May wait for a thread that asks. */
enum { WEIR_PROCESS_PEERS_SHOWN = 600 };
void weir__process_peers_show(struct weir_process_peers *n, char text[WEIR_PROCESS_PEERS_SHOWN]);

/* Returns the sum of all processes' weights, in millionths. */
uint64_t weir__process_peers_weights(struct weir_process_peers *n);
/* Returns the sum of all weights, but at most `most`, for a device on which this process has not joined. */
uint64_t weir__process_peers_look(const struct weir_driver *driver, CUdevice device, uint64_t most);
/* Returns the reserved memory of other processes on the device according to the registry, or 0 without a registry.  The
 * function does not know the idle memory of the processes, because processes publish idle memory only when another
 * process asks. */
uint64_t weir__process_peers_reserve(const struct weir_driver *driver, CUdevice device);

/* Writes the device's UUID, which is the device's name in shared registries.  Returns 0 if the device has no UUID, or
 * if no other process can use the device, else 1. */
int weir__process_peers_device(const struct weir_driver *driver, CUdevice device,
                               char name[WEIR_UUID_BYTES]);

#endif
