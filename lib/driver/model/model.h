/* SPDX-License-Identifier: MIT */
/* model.h: the functions by which tests and the bench control the device model, beside the driver table.
 *
 * A process has one model, as it has one driver.  weir__driver_model (driver.h) makes the model from the built-in
 * profile, or from the file that WEIR_MODEL_PROFILE names, with WEIR_MODEL_DEVICES devices; weir__model_reset makes the
 * model again.  Time is virtual: calls advance one clock by their costs in the profile, so equal calls take equal time
 * in every run.
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
    /* The bytes of each device.  If the field is not 0, contexts take no memory, so allocations can have all bytes. */
    uint64_t capacity;
    const char *profile; /* a profile's file, which overrides the built-in profile key by key */
    struct weir_driver_failure *failure; /* gets the reason of a failure, or NULL */
};

/* Drops every device, context, stream, event, pool, block, capture and graph, the fault plans and the counts, and sets
 * the clock to 0.  The effect of cuInit stays.  The table gets the entries of the profile's driver version.  NULL
 * stands for the default setup.  Returns 0 on success.  Returns -1 with the reason in setup->failure on failure, and
 * changes nothing in this case.  No other call may be running. */
int weir__model_reset(const struct weir_model_setup *setup);

uint64_t weir__model_now_ns(void);
/* Advances the virtual clock, as if the host did nothing for that time. */
void weir__model_advance(uint64_t ns);

/* Launches work of that length on a stream, as a kernel would.  Under capture the work becomes a step of the graph. */
CUresult weir__model_kernel(CUstream stream, uint64_t duration_ns);
/* Launches work that reads and writes these bytes (more than 0) for an owner.  The owner is a number that the caller
 * chooses for one block, from its allocation to its free, and for no other block. */
CUresult weir__model_use(CUstream stream, CUdeviceptr address, size_t bytes, uint64_t owner,
                         uint64_t duration_ns);
/* Returns a text about the first fault since the last reset, or NULL if there was none.  A fault is a use of bytes that
 * was not ordered behind another owner's uses of these bytes, or a return of memory to the driver that was not ordered
 * behind the uses of the memory.  The text lists the orders of both sides: the ids of streams, each with the number of
 * its operation. */
const char *weir__model_fault(void);
/* Returns the number of uses since the last reset. */
uint64_t weir__model_uses(void);

/* Plans a fault.  The k-th call of the entry from now on does nothing and returns `result`; the next call has the
 * number 1.  If `for_good` is set, all later calls of the entry fail in this way, too.  An entry has one plan, and a
 * new plan replaces the old plan.  If k is 0, removes the plan. */
void weir__model_fail(enum weir_driver_entry entry, uint64_t k, CUresult result, int for_good);
/* Plans faults for calls of any entry.  The k-th call from now on does nothing and returns `result`, and so does the
 * `then`-th call after that one, unless `then` is 0.  If `for_good` is set, all calls after these calls fail in this
 * way, too.  There is one such plan, and a new plan replaces the old plan.  If k is 0, removes the plan.  The plan of
 * an entry takes precedence. */
void weir__model_fail_any(uint64_t k, uint64_t then, CUresult result, int for_good);
/* Returns the number of calls that have failed by plan since the last reset or the last weir__model_faults_clear().
 * Sets *last to the entry of the last such call, if there was one; `last` may be NULL. */
uint64_t weir__model_faults_met(enum weir_driver_entry *last);
void weir__model_faults_clear(void);
/* Returns the number of calls of the entry since the last reset, by all threads, including calls that failed. */
uint64_t weir__model_calls(enum weir_driver_entry entry);

/* The calls since weir__model_sequence_start.  Runs with equal calls in equal order have equal digests, which cover the
 * entry, numbers, streams, events, pools and result of each call, but no address and no time. */
struct weir_model_sequence {
    uint64_t calls, digest;
};
/* Starts a new sequence, which ends at a reset.  If `lines` is not NULL, the model writes one line for each call to
 * `lines`. */
void weir__model_sequence_start(FILE *lines);
void weir__model_sequence(struct weir_model_sequence *out);

/* Checks every pool and the accounts of every device.  Returns NULL, or a text about an error. */
const char *weir__model_pool_check(void);

#endif
