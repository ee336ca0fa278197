/* SPDX-License-Identifier: MIT */
/* process_peers.h: what the processes that share a device do for each other, through its registry (registry.h).
 *
 * A process has one of these for each device, as long as it has an allocator there, with a thread that sleeps until
 * somebody rings: then it writes down what its allocators have, and gives back what it is asked for.
 *
 * Must not know: what an allocator is, settings' names.
 */
#ifndef WEIR_PROCESS_PEERS_H
#define WEIR_PROCESS_PEERS_H

#include <stdatomic.h>
#include <stdint.h>

#include "driver/driver.h"
#include "ipc/registry.h"

struct weir_process_peers;
struct weir_group;

/* What one allocator has of the device; bytes. */
struct weir_holding {
    uint64_t reserved, in_use, idle; /* idle: that it could give back */
    uint64_t limit;                 /* UINT64_MAX: none */
    uint64_t device_total, device_free;
    _Atomic uint64_t
        *shown; /* the allocator's, as of weir__process_peers_note; NULL: there is none */
};

/* What counts of one that takes part, from before it is made until it is gone: of its process the largest. */
struct weir_claim {
    struct weir_claim *next; /* private */
    uint64_t priority;
    uint64_t weight; /* of its share of the device, in millionths */
    int shares;      /* `resize' has something to do */
};

/* What is asked of the process's allocators, which are the owners in the list of local peers.  Called from the thread,
 * without a lock. */
struct weir_process_peers_calls {
    void (*holding)(void *owner, struct weir_holding *out);
    uint64_t (*give)(void *owner, uint64_t bytes); /* bytes that went */
    /* Some time has gone by, and there may be other processes: `weights` is the sum of all. */
    void (*resize)(void *owner, uint64_t weights);
};

/* Takes part on that device, once more.  `claim' stays the caller's, and as it is, until it leaves.  NULL and a reason,
 * or NULL and "": nobody shares the device, or this has been said before. */
struct weir_process_peers *weir__process_peers_join(const struct weir_driver *driver,
                                                    CUdevice device,
                                                    const struct weir_process_peers_calls *calls,
                                                    struct weir_claim *claim, char *why,
                                                    size_t why_bytes);
/* Takes part no more, once less; what an allocator had is given back.  Not to be called with a lock that a call
 * above may want. */
void weir__process_peers_leave(struct weir_process_peers *n, struct weir_claim *claim,
                               _Atomic uint64_t *shown);

/* An allocator's reserved memory has become another; `shown' is where it keeps what it said last. */
void weir__process_peers_note(struct weir_process_peers *n, _Atomic uint64_t *shown,
                              uint64_t reserve);

/* What came of asking. */
struct weir_answers {
    uint64_t given; /* bytes */
    /* Bytes that others need themselves, or cannot be asked for, since they did not answer another request before this
     * one began; nothing of who is ending.  UINT64_MAX: there are no others. */
    uint64_t kept;
    int heard; /* somebody has said what it has, or answered, and by then knew of what this process claims */
    int late; /* somebody has not answered */
    /* Nor has it answered another request since this one began, or there was no time to ask it, or it is ending: it may
     * still give. */
    int awaited;
    /* Bytes that may come of those who are ending: what they had is not the device's yet.  Not looked for if enough was
     * given; one that is still there after two seconds counts no more. */
    uint64_t ending;
};

/* Of the caller for a context; zeroed: it has not yet. */
struct weir_admission {
    uint64_t began_ns;
    int is_over; /* all have given what they could */
};

/* Which processes are asked, and when. */
struct weir_asked {
    /* Returns 0 if the process is not asked.  Processes with a lower turn are asked first. */
    int (*turn)(const struct weir_registry_entry *entry, void *context);
    void *context;
};
/* Asks other processes for bytes until `deadline`, which is a time of CLOCK_MONOTONIC, as `began` is: first those with a
 * lower turn, then those with a lower priority, then those with most idle memory.  With `asked` NULL all processes have
 * one turn.  Memory of processes that are not asked counts for nothing in the answers. */
struct weir_answers weir__process_peers_ask(struct weir_process_peers *n, uint64_t bytes,
                                            uint64_t began, uint64_t deadline,
                                            const struct weir_asked *asked);

/* The group that this process is in on the device; NULL: none. */
struct weir_group *weir__process_peers_group(const struct weir_process_peers *n);

/* A process that has memory of the device. */
struct weir_holder {
    uint64_t pid;
    uint64_t reserved,
        idle; /* bytes, as the process published last; idle: bytes that it could give back */
    int is_stopped;
    int is_silent; /* the process is stopped, or has not answered */
    char command[WEIR_REGISTRY_COMMAND];
};

/* The other processes that have memory of the device. */
enum { WEIR_MOST_HOLDERS = 4 };
struct weir_holders {
    struct weir_holder silent,
        heard; /* the silent one and the other one with most memory; pid 0: none */
    struct weir_holder most[WEIR_MOST_HOLDERS]; /* those with most memory, the largest first */
    size_t count;                               /* of all */
};
/* Reads the shared registry.  May wait for a thread that asks other processes for memory. */
void weir__process_peers_holders(struct weir_process_peers *n, struct weir_holders *out);

/* Who else has most of the device, as a person reads it, and does not answer; "" if nobody has any.  May wait for a
 * thread that asks. */
enum { WEIR_PROCESS_PEERS_SHOWN = 600 };
void weir__process_peers_show(struct weir_process_peers *n, char text[WEIR_PROCESS_PEERS_SHOWN]);

/* 1 if there are others. */
int weir__process_peers_any(struct weir_process_peers *n);

/* The sum of all processes' weights, in millionths. */
uint64_t weir__process_peers_weights(struct weir_process_peers *n);
uint64_t weir__process_peers_weights_in(struct weir_registry *registry, uint64_t most);
/* The same of a device on which this process does not take part, as a look at the registry tells; `most' at most. */
uint64_t weir__process_peers_look(const struct weir_driver *driver, CUdevice device, uint64_t most);
/* What other processes have of the device, by its registry; 0 where there is none.  What of it is idle they write down
 * only when they are asked. */
uint64_t weir__process_peers_reserve(const struct weir_driver *driver, CUdevice device);

/* This process's command, without the folder that it lies in: there is room for little. */
void weir__process_peers_name(char *text, size_t bytes);

/* The name that a device has in registries.  0: nobody else has memory of it, or it has no name. */
int weir__process_peers_device(const struct weir_driver *driver, CUdevice device,
                               char name[WEIR_UUID_BYTES]);

#endif
