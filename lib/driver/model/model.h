/* SPDX-License-Identifier: MIT */
/* model.h: the functions by which tests and the bench control the device model, beside the driver table.
 *
 * A process has one model, as it has one driver. weir__driver_model (driver.h) makes it from the built-in profile, or
 * from the file that WEIR_MODEL_PROFILE names, with WEIR_MODEL_DEVICES devices; weir__model_reset makes it again.  Time
 * is virtual: calls advance one clock by their costs in the profile, so equal calls take equal time in every run.
 *
 * This file must not know anything above driver.h.
 */
#ifndef WEIR_MODEL_H
#define WEIR_MODEL_H

#include <stdio.h>

#include "driver/driver.h"

/* A field that is zero takes its value from the environment or the profile. */
struct weir_model_setup {
    int devices; /* 1 to 16 */
    /* The bytes of each device, which are all for allocations: contexts then take none. */
    uint64_t capacity;
    const char *profile; /* a profile's file, which overrides the built-in profile key by key */
    struct weir_driver_failure *failure; /* gets the reason of a failure, or NULL */
};

/* Drops every device, context, stream, event, pool, block, capture and graph, the fault plan and the counts, and sets
 * the clock to 0.  The effect of cuInit stays.  The table follows the profile's driver version.  NULL is the default
 * setup.  Returns 0; or -1 with the reason in setup->failure and no change.  No other call may be running. */
int weir__model_reset(const struct weir_model_setup *setup);

uint64_t weir__model_now_ns(void);
/* Lets virtual time pass on the host. */
void weir__model_advance(uint64_t ns);

/* Launches work of that length on a stream, as a kernel would; under capture it becomes a step. */
CUresult weir__model_kernel(CUstream stream, uint64_t duration_ns);
/* Launches work that reads and writes these bytes (more than 0) for an owner.  The owner is a number that the caller
 * chooses for one block, from its allocation to its free, and for no other block. */
CUresult weir__model_use(CUstream stream, CUdeviceptr address, size_t bytes, uint64_t owner,
                         uint64_t duration_ns);
/* Returns a text about the first use since the last reset that was not ordered behind the uses of its bytes by another
 * owner, or the first return of memory to the driver that was not behind its uses, with the orders of both sides:
 * streams by id, each with the number of its operation.  Returns NULL if there was none. */
const char *weir__model_fault(void);
/* Returns the number of uses since the last reset. */
uint64_t weir__model_uses(void);

/* Plans a fault: the k-th call of the entry from now on (1 is the next one) does nothing and returns `result`; with
 * `for_good` all later calls do so, too.  An entry has one plan, which a new one replaces. k = 0 removes it. */
void weir__model_fail(enum weir_driver_entry entry, uint64_t k, CUresult result, int for_good);
/* Plans faults for calls of any entry: the k-th call from now on, and the `then`-th call after that (0: no second one),
 * do nothing and return `result`; with `for_good` all calls after these do so, too.  There is one such plan, which a
 * new one replaces, and k = 0 removes it.  The plan of an entry takes precedence. */
void weir__model_fail_any(uint64_t k, uint64_t then, CUresult result, int for_good);
/* Returns how many calls have failed by plan since the last reset, or since all plans were cleared. *last gets the
 * entry of the last of them, if there was one; it may be NULL. */
uint64_t weir__model_faults_met(enum weir_driver_entry *last);
void weir__model_faults_clear(void);
/* Returns the number of calls of the entry since the last reset by all threads, with failed ones. */
uint64_t weir__model_calls(enum weir_driver_entry entry);

/* The calls since weir__model_sequence_start.  Runs with equal calls in equal order have equal digests, which cover the
 * entry, numbers, streams, events, pools and result of each call, but no address and no time. */
struct weir_model_sequence {
    uint64_t calls, digest;
};
/* Starts a new sequence, which ends at a reset.  `lines` gets a line for each call, if it is not NULL. */
void weir__model_sequence_start(FILE *lines);
void weir__model_sequence(struct weir_model_sequence *out);

/* Checks every pool and the accounts of every device.  Returns NULL, or a text about an error. */
const char *weir__model_pool_check(void);

#endif
