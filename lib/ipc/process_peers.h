/* SPDX-License-Identifier: MIT */
/* process_peers.h: lets the processes that share a device free memory for each other, through the device's registry
 * (registry.h).
 *
 * A process has one struct weir_process_peers for each device on which it has an allocator.  The struct has a thread,
 * which sleeps until another process rings the registry's bell, a word in shared memory.  Then the thread publishes how
 * much memory the allocators of its process have.  If another process has asked for memory, the thread frees idle
 * memory.
 *
 * This file must not depend on the names of settings, or on the type of an allocator.
 */
#ifndef WEIR_PROCESS_PEERS_H
#define WEIR_PROCESS_PEERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "driver/driver.h"
#include "ipc/registry.h"

struct weir_process_peers;
struct weir_group;

/* The device memory of one allocator, in bytes. */
struct weir_holding {
    uint64_t reserved, in_use, idle; /* `idle` is the part that the allocator could free */
    /* The memory limit of the allocator, or UINT64_MAX if there is none. */
    uint64_t limit;
    uint64_t device_total, device_free;
    /* Where the allocator keeps the number of its reserved bytes that this process has published, or NULL.  The
     * number prevents that weir__process_peers_publish_reserved() adds the bytes twice. */
    _Atomic uint64_t *shown;
};

/* The priority and the weight of one allocator, which together decide how much device memory other processes leave to
 * it.  A process publishes the largest priority and the largest weight of all its allocators. */
struct weir_claim {
    struct weir_claim *next; /* the next struct in the process's list; only for process_peers.c */
    uint64_t priority;
    /* The weight by which the device is divided between processes, in millionths. */
    uint64_t weight;
    /* Set if the limit of the allocator is a share of the device (--limit share), which depends on the other
     * processes. */
    int shares;
};

/* The functions of an allocator that the thread of struct weir_process_peers calls.  `owner` identifies the
 * allocator: it is the pointer that the allocator has put into its struct weir_local_peer. */
struct weir_process_peers_calls {
    void (*holding)(void *owner, struct weir_holding *out);
    /* Frees up to `bytes` bytes of the allocator's idle memory.  Returns the number of freed bytes. */
    uint64_t (*give)(void *owner, uint64_t bytes);
    /* Sets the limit of an allocator whose limit is a share of the device.  `weights` is the sum of the weights of
     * all processes that use the device.  The thread calls the function repeatedly, since processes start and end. */
    void (*resize)(void *owner, uint64_t weights);
};

/* Registers an allocator of this process, so that other processes on the device can request its idle memory.  The
 * caller must not change `claim` until weir__process_peers_leave().  On failure returns NULL and writes the reason
 * into `why`.  The reason is "" if no other process can use the device, or if an earlier call has written the
 * reason. */
struct weir_process_peers *weir__process_peers_join(const struct weir_driver *driver,
                                                    CUdevice device,
                                                    const struct weir_process_peers_calls *calls,
                                                    struct weir_claim *claim, char *why,
                                                    size_t why_bytes);
/* Unregisters an allocator of this process, and subtracts its memory from the memory that the process publishes.  The
 * thread may be calling a function of the allocator (struct weir_process_peers_calls), so the caller must hold no
 * lock that such a function takes. */
void weir__process_peers_leave(struct weir_process_peers *n, struct weir_claim *claim,
                               _Atomic uint64_t *shown);

/* Publishes the new number of an allocator's reserved bytes, `reserve`.  *shown is the number that was last published
 * for the allocator; the function updates it. */
void weir__process_peers_publish_reserved(struct weir_process_peers *n, _Atomic uint64_t *shown,
                                          uint64_t reserve);

/* The result of weir__process_peers_ask(), which requests idle memory from other processes. */
struct weir_answers {
    uint64_t given; /* the bytes that other processes have freed for this request */
    /* The bytes that a request cannot get from other processes: the memory in use of each process, and all memory of
     * a process that was not asked because it left an earlier request unanswered.  Memory of ending processes is not
     * included.  UINT64_MAX if there are no other processes. */
    uint64_t kept;
    int heard; /* set if any process has answered, or has published its memory during the request */
    int late;  /* set if a process that was asked did not answer before the deadline */
    /* Set if a later request may get more memory, because a process has not answered yet, because no time was left to
     * ask a process, or because a process is ending. */
    int is_incomplete;
    /* The bytes that exiting or killed processes may still return to the device, so that a retry may succeed.  0 if
     * enough bytes were freed.  A process that has been ending for more than two seconds is ignored. */
    uint64_t ending;
};

/* A request to other processes for idle memory.  All times are times of CLOCK_MONOTONIC. */
struct weir_ask {
    uint64_t bytes;
    /* The time when the program's allocation began; one allocation may request memory from other processes several
     * times. */
    uint64_t began_ns;
    uint64_t deadline_ns; /* the time until which the caller waits for other processes to answer */
};

/* The progress of waiting for device memory before a context is created.  All fields are zero before the first
 * attempt. */
struct weir_admission {
    uint64_t began_ns;
    int is_over; /* set once no other process can free more memory */
};

/* Requests idle memory from other processes, and waits for their answers.  If `group` is not NULL, asks only the
 * processes of this group, whose memory has a common limit.  The order is: processes of the group above their share
 * of its limit, then processes with a lower priority, then processes with more idle memory. */
struct weir_answers weir__process_peers_ask(struct weir_process_peers *n, struct weir_ask ask,
                                            struct weir_group *group);

/* Returns the group that this process has joined on the device, or NULL if it has joined none.  The processes of a
 * group have a common memory limit. */
struct weir_group *weir__process_peers_group(const struct weir_process_peers *n);

/* Another process that has memory of the device, for reports. */
struct weir_holder {
    uint64_t pid;
    /* The bytes that the process last published.  `idle` is the part of `reserved` that the process could free. */
    uint64_t reserved, idle;
    int is_stopped;
    int is_silent; /* set if the process is stopped, or has left a request for memory unanswered */
    char command[WEIR_REGISTRY_COMMAND];
};

/* Which other processes have memory of the device, for reports. */
enum { WEIR_MOST_HOLDERS = 4 };
struct weir_holders {
    /* The process with most memory among those that leave requests unanswered (`silent`), and among those that answer
     * (`heard`).  The pid is 0 if there is no such process. */
    struct weir_holder silent, heard;
    /* The processes with most memory, the largest first. */
    struct weir_holder most[WEIR_MOST_HOLDERS];
    size_t count; /* the number of all other processes that have memory */
};
/* Reads from the device's shared registry, a file, which other processes have memory of the device.  May wait while
 * another thread requests memory from other processes. */
void weir__process_peers_holders(struct weir_process_peers *n, struct weir_holders *out);

/* Writes a text about the other processes that have most memory of the device: their names, their memory, and whether
 * they answer requests for memory.  Writes "" if there are no other processes.  May wait while another thread
 * requests memory from other processes. */
enum { WEIR_PROCESS_PEERS_SHOWN = 600 };
void weir__process_peers_describe(struct weir_process_peers *n,
                                  char text[WEIR_PROCESS_PEERS_SHOWN]);

/* Returns the sum of the weights of all processes that use the device, in millionths.  A weight sets the part of the
 * device that a process may use. */
uint64_t weir__process_peers_weights(struct weir_process_peers *n);
/* Returns the sum of the weights of all processes that use the device, in millionths, but at most `most`.  In
 * contrast to weir__process_peers_weights(), the calling process may have no allocator on the device. */
uint64_t weir__process_peers_read_weights(const struct weir_driver *driver, CUdevice device,
                                          uint64_t most);
/* Returns the bytes that all other processes have reserved on the device, as published in the device's shared
 * registry.  Returns 0 if there is no registry.  The result includes idle memory, since processes publish up-to-date
 * idle bytes only when another process requests memory. */
uint64_t weir__process_peers_read_reserved(const struct weir_driver *driver, CUdevice device);

/* Writes the UUID of the device, which is a part of the file name of the device's shared registry.  Returns 1 on
 * success, 0 if the driver reports no UUID or if no other process can use the device. */
int weir__process_peers_device(const struct weir_driver *driver, CUdevice device,
                               char name[WEIR_UUID_BYTES]);

#endif
