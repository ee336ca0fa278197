/* SPDX-License-Identifier: MIT */
/* process_peers.h: how the processes that share a device free memory for each other, through its registry (registry.h).
 *
 * A process with an allocator on a device has one of these objects for it, with a thread that sleeps until another
 * process rings.  Then the thread publishes the memory of the process's allocators, and frees the memory that it was
 * asked for.
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
    uint64_t reserved, in_use, idle; /* idle: the bytes that it could free */
    uint64_t limit;                  /* UINT64_MAX if there is no limit */
    uint64_t device_total, device_free;
    _Atomic uint64_t *shown; /* see weir__process_peers_note; may be NULL */
};

/* The claim of one allocator, from before its creation until its end.  A process publishes its largest values. */
struct weir_claim {
    struct weir_claim *next; /* private */
    uint64_t priority;
    uint64_t weight; /* the weight for its share of the device, in millionths */
    int shares; /* nonzero if the allocator's limit is a share, so that `resize` must be called */
};

/* Functions for the process's allocators, the owners in the list of local peers, which the thread calls without a
 * lock. */
struct weir_process_peers_calls {
    void (*holding)(void *owner, struct weir_holding *out);
    uint64_t (*give)(void *owner, uint64_t bytes); /* returns the freed bytes */
    /* Called from time to time, since processes come and go.  `weights` is the sum of all processes' weights. */
    void (*resize)(void *owner, uint64_t weights);
};

/* Joins the processes of a device, for one more allocator.  The caller keeps `claim` unchanged until it leaves.
 * Returns NULL with a reason on failure, or NULL with "" if nobody shares the device or the reason is known. */
struct weir_process_peers *weir__process_peers_join(const struct weir_driver *driver,
                                                    CUdevice device,
                                                    const struct weir_process_peers_calls *calls,
                                                    struct weir_claim *claim, char *why,
                                                    size_t why_bytes);
/* Leaves, for one allocator, and subtracts its memory.  Do not call it with a lock that a function above may want. */
void weir__process_peers_leave(struct weir_process_peers *n, struct weir_claim *claim,
                               _Atomic uint64_t *shown);

/* Publishes an allocator's reserved memory, which has changed.  `shown` holds the last value published for it. */
void weir__process_peers_note(struct weir_process_peers *n, _Atomic uint64_t *shown,
                              uint64_t reserve);

/* The result of asking other processes. */
struct weir_answers {
    uint64_t given; /* the freed bytes */
    /* The bytes that other processes use, or that cannot be asked for because their process did not answer an earlier
     * request.  Memory of ending processes does not count.  UINT64_MAX if there are no other processes. */
    uint64_t kept;
    int heard; /* set if a process that knows of this one has published its memory or answered */
    int late;  /* set if a process has not answered */
    /* Set if a process may still free memory: it has not answered this request, or another one since this one began; or
     * there was no time to ask it; or it is ending. */
    int awaited;
    /* The bytes that ending processes may still return to the device.  They are not computed if enough was freed.  A
     * process that still exists after two seconds of ending no longer counts. */
    uint64_t ending;
};

/* The state of a request for a context; zeroed before the first call. */
struct weir_admission {
    uint64_t began_ns;
    int is_over; /* set once all processes have freed as much as they could */
};

/* Asks other processes for bytes until `deadline`: first members of the group that have more than their share, then
 * those with a lower priority, then those with most idle memory.  `began` is the start of the request; both are times
 * of CLOCK_MONOTONIC.  With `group` NULL all processes are asked.  Processes that are not asked do not count in the
 * answers. */
struct weir_answers weir__process_peers_ask(struct weir_process_peers *n, uint64_t bytes,
                                            uint64_t began, uint64_t deadline,
                                            struct weir_group *group);

/* Returns the group of this process on the device, or NULL. */
struct weir_group *weir__process_peers_group(const struct weir_process_peers *n);

/* A process that has memory of the device. */
struct weir_holder {
    uint64_t pid;
    uint64_t reserved, idle; /* in bytes, as last published; idle: the bytes that it could free */
    int is_stopped;
    int is_silent; /* the process is stopped, or has not answered */
    char command[WEIR_REGISTRY_COMMAND];
};

/* The other processes that have memory of the device. */
enum { WEIR_MOST_HOLDERS = 4 };
struct weir_holders {
    /* The silent process and the answering one with most memory; pid is 0 if there is none. */
    struct weir_holder silent, heard;
    /* The processes with most memory, the largest first. */
    struct weir_holder most[WEIR_MOST_HOLDERS];
    size_t count; /* the number of all processes with memory */
};
/* Reads the shared registry.  May wait for a thread that asks other processes for memory. */
void weir__process_peers_holders(struct weir_process_peers *n, struct weir_holders *out);

/* Writes names and memory of the other processes with most memory, and whether they answer; "" if there are none.  May
 * wait for a thread that asks. */
enum { WEIR_PROCESS_PEERS_SHOWN = 600 };
void weir__process_peers_show(struct weir_process_peers *n, char text[WEIR_PROCESS_PEERS_SHOWN]);

/* Returns the sum of all processes' weights, in millionths. */
uint64_t weir__process_peers_weights(struct weir_process_peers *n);
/* Returns the sum of all weights, but at most `most`, for a device on which this process has not joined. */
uint64_t weir__process_peers_look(const struct weir_driver *driver, CUdevice device, uint64_t most);
/* Returns the reserved memory of other processes on the device, as the registry has it, or 0 without a registry.  Their
 * idle memory is not known here, since processes publish it only when they are asked. */
uint64_t weir__process_peers_reserve(const struct weir_driver *driver, CUdevice device);

/* Writes the name by which shared registries know the device: its UUID.  Returns 0 if the device has no UUID or no
 * other process can have its memory, else 1. */
int weir__process_peers_device(const struct weir_driver *driver, CUdevice device,
                               char name[WEIR_UUID_BYTES]);

#endif
