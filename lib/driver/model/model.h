/* SPDX-License-Identifier: MIT */
/* model.h: the functions with which tests and the bench control the device model.  All driver calls go through the
 * driver table instead.
 *
 * A process has one model, as it has one driver.  weir__driver_model (driver.h) makes the model from a profile: the
 * built-in profile, or the file in the variable WEIR_MODEL_PROFILE.  The variable WEIR_MODEL_DEVICES sets the number of
 * devices.  weir__model_reset makes the model again.  Time is virtual.  Each call advances one clock by the cost of the
 * call in the profile, so equal calls take equal time in every run.
 *
 * This file must not know anything above driver.h.
 */
#ifndef WEIR_MODEL_H
#define WEIR_MODEL_H

#include <stdio.h>

#include "driver/driver.h"

/* How weir__model_reset makes the model.  If a field is 0 or NULL, its value comes from the environment or the
 * profile. */
struct weir_model_setup {
    int devices; /* the number of devices, from 1 to 16 */
    /* The memory of each device in bytes.  If the field is not 0, contexts take no memory, so programs can allocate
     * all bytes. */
    uint64_t capacity;
    /* The path of a profile; its keys replace the keys of the built-in profile. */
    const char *profile;
    struct weir_driver_failure *failure; /* receives the reason of a failure; may be NULL */
};

/* Drops all objects of the model, the fault plans and the counts of calls, and sets the clock to 0.  cuInit need not
 * be called again.  The table gets the entry points of the profile's driver version.  If `setup` is NULL, uses the
 * default setup.  Returns 0 on success.  On failure returns -1 with the reason in setup->failure, and changes
 * nothing.  No other call may run at the time. */
int weir__model_reset(const struct weir_model_setup *setup);

uint64_t weir__model_now_ns(void);
/* Advances the virtual clock by `ns`, as if the host did nothing for this time. */
void weir__model_advance(uint64_t ns);

/* Launches work that takes `duration_ns` on a stream, as a kernel would.  If the stream is being captured, the work
 * becomes a step of the graph. */
CUresult weir__model_kernel(CUstream stream, uint64_t duration_ns);
/* Launches work that reads and writes these bytes (at least 1) for an owner.  The owner is a number that the caller
 * selects for one block.  The caller uses this number from the allocation of the block to its free, and for no other
 * block. */
CUresult weir__model_use(CUstream stream, CUdeviceptr address, size_t bytes, uint64_t owner,
                         uint64_t duration_ns);
/* Returns a text about the first ordering fault since the last reset, or NULL if there was none.  Two errors are
 * ordering faults.  The first error is a use of bytes that is not ordered after the uses of these bytes by another
 * owner.  The second error is a return of memory to the driver that is not ordered after the uses of this memory.
 * The text lists the orders of both operations: ids of streams, each with the number of an operation on the stream. */
const char *weir__model_fault(void);
/* Returns the number of uses (weir__model_use) since the last reset. */
uint64_t weir__model_uses(void);

/* Plans the failure of calls of one entry point.  The k-th call from now on does nothing and returns `result`; the
 * next call has the number 1.  If `for_good` is set, all calls after the k-th call fail, too.  An entry point has
 * one plan, and a new plan replaces the old plan.  If k is 0, removes the plan. */
void weir__model_fail(enum weir_driver_entry entry, uint64_t k, CUresult result, int for_good);
/* Plans the failure of calls of any entry point.  The k-th call from now on does nothing and returns `result`.  If
 * `then` is not 0, the `then`-th call after the k-th call fails, too.  If `for_good` is set, all calls after the
 * last planned call fail, too.  There is one plan for calls of any entry point, and a new plan replaces the old
 * plan.  If k is 0, removes the plan.  A plan for the entry point of a call (weir__model_fail) takes precedence. */
void weir__model_fail_any(uint64_t k, uint64_t then, CUresult result, int for_good);
/* Returns the number of calls that have failed by a plan since the last reset or since the last
 * weir__model_faults_clear().  If there was such a call, sets *last to the entry point of the last such call.
 * `last` may be NULL. */
uint64_t weir__model_faults_met(enum weir_driver_entry *last);
void weir__model_faults_clear(void);
/* Returns the number of calls of the entry point by all threads since the last reset, including calls that failed. */
uint64_t weir__model_calls(enum weir_driver_entry entry);

/* The number of calls since weir__model_sequence_start(), and a digest of these calls.  The digest of a call covers
 * the entry point, numbers, streams, events, pools and the result, but no address and no time.  So two runs with
 * equal calls in equal order have equal digests. */
struct weir_model_sequence {
    uint64_t calls, digest;
};
/* Starts a new sequence of calls.  A reset ends the sequence.  If `lines` is not NULL, the model writes one line for
 * each call to `lines`. */
void weir__model_sequence_start(FILE *lines);
void weir__model_sequence(struct weir_model_sequence *out);

/* Checks the data of every pool, and the memory counts of every device.  Returns NULL, or a text about the first
 * error. */
const char *weir__model_pool_check(void);

#endif
