/* SPDX-License-Identifier: MIT */
/* model.h: the functions with which tests and the bench control the device model.  All driver calls go through the
 * driver table instead.
 *
 * A process has one model, as it has one driver.  weir__driver_model (driver.h) makes the model from a profile: the
 * built-in profile, or the file in the variable WEIR_MODEL_PROFILE.  The variable WEIR_MODEL_DEVICES sets the number of
 * devices.  weir__model_reset makes the model again.  Time is virtual.  Each call advances one clock by the cost of the
 * call in the profile, so equal calls take equal time in every run.
 *
 * This file must not depend on the layers above driver.h.
 */
#ifndef WEIR_MODEL_H
#define WEIR_MODEL_H

#include <stdio.h>

#include "driver/driver.h"

/* The settings with which weir__model_reset makes the device model.  If a field is 0 or NULL, the environment or the
 * profile gives the value. */
struct weir_model_setup {
    int devices; /* the number of devices, from 1 to 16 */
    /* The memory of each device in bytes.  If the field is not 0, contexts use no memory of the device, so that a
     * test can allocate exactly this number of bytes. */
    uint64_t capacity;
    /* The path of a profile, a file of `key = value` lines with sizes and times.  Keys that the file lacks have the
     * values of the built-in profile. */
    const char *profile;
    struct weir_driver_failure *failure; /* gets the reason of a failure as text; may be NULL */
};

/* Removes all objects of the device model, the planned faults and the counts of calls, and sets the clock to 0.
 * Makes the model again with `setup`, or with the default settings if `setup` is NULL.  The caller need not call
 * cuInit again.  The driver table gets the entry points of the driver version in the profile.  Returns 0 on success.
 * On failure returns -1 with the reason in setup->failure, and changes nothing.  No other thread may call the model
 * at the time. */
int weir__model_reset(const struct weir_model_setup *setup);

uint64_t weir__model_now_ns(void);
/* Advances the virtual clock of the device model by `ns` nanoseconds, as if the host did nothing for this time. */
void weir__model_advance(uint64_t ns);

/* Submits work of `duration_ns` nanoseconds to a stream, as the launch of a kernel does.  If the stream is being
 * captured, adds the work to the graph. */
CUresult weir__model_kernel(CUstream stream, uint64_t duration_ns);
/* Submits work of `duration_ns` nanoseconds to a stream, as a kernel that reads and writes all of these bytes (at
 * least 1).  The model checks the order of such uses, see weir__model_fault().  `owner` is a number by which the
 * caller identifies one allocation: the caller passes it for all uses of the block from the allocation to the free,
 * and never for another block. */
CUresult weir__model_use(CUstream stream, CUdeviceptr address, size_t bytes, uint64_t owner,
                         uint64_t duration_ns);
/* Returns a text about the first ordering fault since the last reset, or NULL if there was none.  An ordering fault
 * is a use of memory that is not ordered after the uses by the former owner of the memory (weir__model_use), or a
 * free that is not ordered after all uses.  The text lists the ids of the streams, with the numbers of operations on
 * them. */
const char *weir__model_fault(void);
/* Returns the number of calls of weir__model_use since the last reset. */
uint64_t weir__model_uses(void);

/* Makes calls of one driver function fail, for tests.  The k-th call from now on (1 is the next call) does nothing
 * and returns `result`.  If `for_good` is set, all later calls fail, too.  If k is 0, no call fails.  A second call
 * of weir__model_fail for a driver function replaces the first one. */
void weir__model_fail(enum weir_driver_entry entry, uint64_t k, CUresult result, int for_good);
/* Makes calls of any driver function fail, for tests.  The k-th call from now on (1 is the next call) does nothing
 * and returns `result`.  If `then` is not 0, the `then`-th call after that call fails, too.  If `for_good` is set,
 * all later calls fail.  If k is 0, no call fails.  A second call of weir__model_fail_any replaces the first one.
 * weir__model_fail takes precedence for its driver function. */
void weir__model_fail_any(uint64_t k, uint64_t then, CUresult result, int for_good);
/* Returns the number of calls that have failed because of weir__model_fail or weir__model_fail_any, since the last
 * reset or the last weir__model_faults_clear().  Sets *last to the driver function that failed last, if there was
 * one.  `last` may be NULL. */
uint64_t weir__model_faults_injected(enum weir_driver_entry *last);
void weir__model_faults_clear(void);
/* Returns how often all threads have called this driver function since the last reset, including calls that failed. */
uint64_t weir__model_calls(enum weir_driver_entry entry);

/* The driver calls since weir__model_sequence_start(): their number, and a digest by which a test compares two runs.
 * The digest covers the functions, numbers, streams, events, pools and results, but no addresses and no times.  So
 * two runs with equal calls in equal order have equal digests. */
struct weir_model_sequence {
    uint64_t calls, digest;
};
/* Begins to record driver calls for weir__model_sequence(); a reset ends the recording.  If `lines` is not NULL, also
 * writes one line for each call to this file. */
void weir__model_sequence_start(FILE *lines);
void weir__model_sequence(struct weir_model_sequence *out);

/* Checks the internal data of all pools, and the counted memory of all devices.  Returns NULL, or a text about the
 * first error. */
const char *weir__model_pool_check(void);

#endif
