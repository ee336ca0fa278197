/* SPDX-License-Identifier: MIT */
/* process_peers.h: lets the processes that share a device free memory for each other, through the device's registry
 * (registry.h).
 *
 * A process has one struct weir_process_peers for each device on which it has an allocator.  The struct has a thread,
 * which sleeps until another process rings the bell of the registry.  Then the thread publishes how much memory the
 * allocators of its process have.  If another process has asked for memory, the thread frees idle memory.
 *
 * This file must not know the names of settings, or what an allocator is.
 */
#ifndef WEIR_PROCESS_PEERS_H
#define WEIR_PROCESS_PEERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "driver/driver.h"
#include "ipc/registry.h"

struct weir_process_peers;
struct weir_group;

/* The memory of one allocator on the device, in bytes. */
struct weir_holding {
    uint64_t reserved, in_use, idle; /* `idle` is the bytes that the allocator could free */
    /* The limit of the allocator, or UINT64_MAX if there is none. */
    uint64_t limit;
    uint64_t device_total, device_free;
    _Atomic uint64_t *shown; /* the allocator's `shown` of weir__process_peers_note, or NULL */
};

/* The priority and the weight of one allocator.  The claim exists from shortly before the creation of the allocator
 * until its end.  A process publishes the largest priority and the largest weight of its claims. */
struct weir_claim {
    struct weir_claim *next; /* the next claim in a list of process_peers.c; private */
    uint64_t priority;
    uint64_t weight; /* the weight of the allocator's share of the device, in millionths */
    int shares; /* nonzero if the limit of the allocator is a share, which `resize` must adapt */
};

/* The functions that the thread of struct weir_process_peers calls for each allocator of the process.  `owner` is
 * the member `owner` of the allocator's entry in the list of local peers. */
struct weir_process_peers_calls {
    void (*holding)(void *owner, struct weir_holding *out);
    /* Frees up to `bytes` idle bytes; returns the freed bytes. */
    uint64_t (*give)(void *owner, uint64_t bytes);
    /* Adapts the limit of the allocator to the processes that use the device now.  `weights` is the sum of the
     * weights of all processes.  The thread calls this function from time to time, since processes come and go. */
    void (*resize)(void *owner, uint64_t weights);
};

/* Registers one more allocator of this process with the processes that use the device.  The caller must not change
 * `claim` until the allocator leaves.  On failure returns NULL and writes the reason into `why`.  The reason is ""
 * if no other process can use the device, or if an earlier call has written the reason. */
struct weir_process_peers *weir__process_peers_join(const struct weir_driver *driver,
                                                    CUdevice device,
                                                    const struct weir_process_peers_calls *calls,
                                                    struct weir_claim *claim, char *why,
                                                    size_t why_bytes);
/* Unregisters one allocator of this process, and subtracts the memory of the allocator from the published memory.
 * The caller must hold no lock that a function of struct weir_process_peers_calls may take. */
void weir__process_peers_leave(struct weir_process_peers *n, struct weir_claim *claim,
                               _Atomic uint64_t *shown);

/* Publishes the reserved memory of an allocator after a change.  `shown` contains the bytes that were last published
 * for the allocator. */
void weir__process_peers_note(struct weir_process_peers *n, _Atomic uint64_t *shown,
                              uint64_t reserve);

/* The result of a request to other processes for memory. */
struct weir_answers {
    uint64_t given; /* the bytes that the asked processes have freed */
    /* The bytes that other processes keep.  For each process, its memory in use counts.  If a process is not asked
     * because it did not answer an earlier request, all its memory counts.  Memory of ending processes does not
     * count.  UINT64_MAX if there are no other processes. */
    uint64_t kept;
    int heard; /* set if a process has published its memory during the request, or has answered */
    int late;  /* set if an asked process has not answered in time */
    /* Set if a later request may get more memory.  This is so if a process has not answered yet, if no time was left
     * to ask a process, or if a process is ending. */
    int is_incomplete;
    /* The bytes that ending processes may still return to the device, or 0 if enough bytes were freed.  A process
     * that has been ending for two seconds no longer counts. */
    uint64_t ending;
};

/* A request to other processes for memory.  All times are times of CLOCK_MONOTONIC. */
struct weir_ask {
    uint64_t bytes;
    /* The start of the program's request; one such request may ask several times. */
    uint64_t began_ns;
    uint64_t deadline_ns; /* the time until which the caller waits for answers */
};

/* The state of one request for a context; all zero before the first call. */
struct weir_admission {
    uint64_t began_ns;
    int is_over; /* set once no other process can free more memory */
};

/* Asks other processes for memory, and waits for their answers.  The order is: members of the group that have more
 * than their share, then processes with a lower priority, then processes with more idle memory.  If `group` is NULL,
 * asks all processes.  If `group` is not NULL, asks only its members, and other processes do not count in the
 * result. */
struct weir_answers weir__process_peers_ask(struct weir_process_peers *n, struct weir_ask ask,
                                            struct weir_group *group);

/* Returns the group of this process on the device, or NULL if the process has not joined a group on the device. */
struct weir_group *weir__process_peers_group(const struct weir_process_peers *n);

/* Another process that has memory of the device. */
struct weir_holder {
    uint64_t pid;
    /* The bytes that the process last published; it could free `idle` bytes. */
    uint64_t reserved, idle;
    int is_stopped;
    int is_silent; /* set if the process is stopped, or has not answered a request */
    char command[WEIR_REGISTRY_COMMAND];
};

/* A summary of the other processes that have memory of the device. */
enum { WEIR_MOST_HOLDERS = 4 };
struct weir_holders {
    /* `silent` is the largest process that does not answer requests.  `heard` is the largest process that answers
     * requests.  The pid is 0 if there is no such process. */
    struct weir_holder silent, heard;
    /* The processes with most memory, in falling order. */
    struct weir_holder most[WEIR_MOST_HOLDERS];
    size_t count; /* the number of all other processes that have memory */
};
/* Reads from the shared registry which other processes have memory of the device.  May wait until another thread has
 * finished a request to other processes. */
void weir__process_peers_holders(struct weir_process_peers *n, struct weir_holders *out);

/* Writes a text about the other processes with most memory: their names, their memory, and whether they answer
 * requests.  Writes "" if there are no other processes.  May wait until another thread has finished a request to
 * other processes. */
enum { WEIR_PROCESS_PEERS_SHOWN = 600 };
void weir__process_peers_show(struct weir_process_peers *n, char text[WEIR_PROCESS_PEERS_SHOWN]);

/* Returns the sum of the weights of all processes, in millionths. */
uint64_t weir__process_peers_weights(struct weir_process_peers *n);
/* Returns the sum of the weights of all processes that use the device, but at most `most`.  This process need not
 * have joined them. */
uint64_t weir__process_peers_look(const struct weir_driver *driver, CUdevice device, uint64_t most);
/* Returns the reserved memory of all other processes on the device according to the registry, or 0 if there is no
 * registry.  The result contains idle memory, too.  The function cannot subtract it, because processes publish their
 * idle memory only when another process asks. */
uint64_t weir__process_peers_reserve(const struct weir_driver *driver, CUdevice device);

/* Writes the UUID of the device, by which shared registries name the device.  Returns 1 on success, 0 if the device
 * has no UUID or if no other process can use the device. */
int weir__process_peers_device(const struct weir_driver *driver, CUdevice device,
                               char name[WEIR_UUID_BYTES]);

#endif
