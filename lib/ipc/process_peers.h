/* SPDX-License-Identifier: MIT */
/* process_peers.h: lets the processes that share a device free memory for each other, through the device's registry
 * (registry.h).
 *
 * A process has one struct weir_process_peers, with a thread, for each device on which it has an allocator.  The thread
 * sleeps until another process rings the registry's bell, a word in shared memory.  The thread then publishes how much
 * memory the allocators of its process have, and frees idle memory if another process has requested some. */
#ifndef WEIR_PROCESS_PEERS_H
#define WEIR_PROCESS_PEERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "driver/driver.h"
#include "ipc/registry.h"

struct weir_process_peers;
struct weir_group;

/* The device memory of one allocator, in bytes. */
struct weir_allocator_memory {
    uint64_t reserved, in_use, idle; /* `idle` is the part that the allocator could free */
    uint64_t limit;                  /* UINT64_MAX if there is none */
    uint64_t device_total, device_free;
    _Atomic uint64_t *published; /* the published value of `reserved`; may be NULL */
};

/* An allocator's claim to device memory.  A process publishes the largest priority and weight of all its allocators. */
struct weir_claim {
    struct weir_claim *next; /* only for process_peers.c */
    uint64_t priority;
    uint64_t weight; /* millionths; the device is divided between processes by weight */
    int shares;      /* set if the limit is a share of the device (--limit share) */
};

/* The thread that answers requests calls these functions of an allocator.  `owner` is from struct weir_local_peer. */
struct weir_process_peers_calls {
    void (*report_memory)(void *owner, struct weir_allocator_memory *out);
    /* Frees up to `bytes` bytes of the allocator's idle memory.  Returns the freed bytes. */
    uint64_t (*free_idle_memory)(void *owner, uint64_t bytes);
    /* Sets the limit of an allocator whose limit is a share of the device.  `weights` is the sum for all processes. */
    void (*set_share_limit)(void *owner, uint64_t weights);
};

/* Registers an allocator, so that other processes can request its idle memory.  The caller must not change *claim until
 * weir__process_peers_leave().  On failure returns NULL and writes the reason to `why`.  Writes "" if no other process
 * can use the device, and at each failure after the first. */
struct weir_process_peers *weir__process_peers_join(const struct weir_driver *driver,
                                                    CUdevice device,
                                                    const struct weir_process_peers_calls *calls,
                                                    struct weir_claim *claim, char *why,
                                                    size_t why_bytes);
/* Unregisters an allocator.  The caller must hold no lock that the allocator's functions take, because another thread
 * may be running such a function. */
void weir__process_peers_leave(struct weir_process_peers *n, struct weir_claim *claim,
                               _Atomic uint64_t *shown);

/* Publishes `reserve` as the reserved bytes of an allocator, in place of *published, and updates *published. */
void weir__process_peers_publish_reserved(struct weir_process_peers *n, _Atomic uint64_t *published,
                                          uint64_t reserve);

/* The result of a request to other processes for idle memory. */
struct weir_answers {
    uint64_t freed; /* by other processes, for this request */
    /* The bytes that the request cannot get from the other processes.  The bytes do not include memory of ending
     * processes.  UINT64_MAX if there are no other processes. */
    uint64_t unavailable;
    int has_answer;    /* set if any process has answered, or published its memory meanwhile */
    int has_timeout;   /* set if a process did not answer before the deadline */
    int is_incomplete; /* set if the other processes may free more memory later */
    /* The bytes that exiting or killed processes may soon return to the device.  0 if enough bytes were freed. */
    uint64_t ending;
};

/* A request to other processes for idle memory.  All times are of CLOCK_MONOTONIC. */
struct weir_memory_request {
    uint64_t bytes;
    /* The time at which the program's allocation began.  One allocation may request memory several times. */
    uint64_t began_ns;
    uint64_t deadline_ns; /* when the caller stops to wait for answers */
};

/* The state of a wait for device memory before the creation of a context.  All fields are zero before the wait. */
struct weir_admission {
    uint64_t began_ns;
    int is_over; /* set once no other process can free more memory */
};

/* Requests idle memory from other processes, and waits for answers.  If `group` is not NULL, asks only its members. */
struct weir_answers weir__process_peers_request(struct weir_process_peers *n,
                                                struct weir_memory_request request,
                                                struct weir_group *group);

/* Returns the group that this process has joined on the device, or NULL. */
struct weir_group *weir__process_peers_group(const struct weir_process_peers *n);

/* Another process that has memory of the device. */
struct weir_holder {
    uint64_t pid;
    uint64_t reserved, idle; /* in bytes, as last published; the process could free `idle` */
    int is_stopped;
    int is_unresponsive; /* set if the process is stopped, or has left a request unanswered */
    char command[WEIR_REGISTRY_COMMAND];
};

/* The other processes that have memory of the device. */
enum { WEIR_MOST_HOLDERS = 4 };
struct weir_holders {
    /* The largest process that leaves requests unanswered, and the largest that answers; `pid` is 0 for none. */
    struct weir_holder unresponsive, responsive;
    struct weir_holder most[WEIR_MOST_HOLDERS]; /* the processes with most memory, largest first */
    size_t count; /* the number of all other processes that have memory */
};
/* Reads which other processes have memory of the device.  May wait while another thread requests memory from them. */
void weir__process_peers_holders(struct weir_process_peers *n, struct weir_holders *out);

/* Writes which other processes have most memory, or "".  May wait while another thread requests memory. */
enum { WEIR_PROCESS_PEERS_SHOWN = 600 };
void weir__process_peers_describe(struct weir_process_peers *n,
                                  char text[WEIR_PROCESS_PEERS_SHOWN]);

/* Returns the sum of the weights of all processes that use the device, in millionths. */
uint64_t weir__process_peers_weights(struct weir_process_peers *n);
/* Returns the sum of all processes' weights in millionths, at most `most`.  Needs no allocator on the device. */
uint64_t weir__process_peers_read_weights(const struct weir_driver *driver, CUdevice device,
                                          uint64_t most);
/* Returns the reserved bytes of all other processes on the device, also idle ones; 0 if the device has no registry. */
uint64_t weir__process_peers_read_reserved(const struct weir_driver *driver, CUdevice device);

/* Writes the device's UUID.  Returns 1, or 0 if the driver reports none or no other process can use the device. */
int weir__process_peers_device(const struct weir_driver *driver, CUdevice device,
                               char name[WEIR_UUID_BYTES]);

#endif
