/* SPDX-License-Identifier: MIT */
/* model.h: the functions with which tests and the bench control the device model, a CUDA driver in software.
 *
 * A process has one model, made from a profile (a list of sizes and times): the built-in one, or the file in the
 * variable WEIR_MODEL_PROFILE.  WEIR_MODEL_DEVICES sets the number of devices.  Time is virtual: each call advances one
 * clock by the cost of the call in the profile, so equal calls take equal time in every run.
 */
#ifndef WEIR_MODEL_H
#define WEIR_MODEL_H

#include <stdio.h>

#include "driver/driver.h"

/* The settings of the device model.  The environment or the profile gives the value of a field that is 0 or NULL. */
struct weir_model_setup {
    int devices; /* from 1 to 16 */
    /* The memory of each device in bytes.  If set, programs can allocate all of it, since contexts then use none. */
    uint64_t capacity;
    /* The path of a profile, a file of `key = value` lines.  Keys that the file lacks have the built-in values. */
    const char *profile;
    struct weir_driver_failure *failure; /* gets the reason of a failure; may be NULL */
};

/* Makes the device model again, with the default settings if `setup` is NULL: removes all objects, planned faults and
 * counts, sets the clock to 0, and fills the driver table for the driver version in the profile.  The caller need not
 * call cuInit again.  Returns 0 on success.  On failure returns -1 with the reason in setup->failure, and changes
 * nothing.  No other thread may call the model at the time. */
int weir__model_reset(const struct weir_model_setup *setup);

uint64_t weir__model_now_ns(void);
/* Advances the virtual clock by `ns` nanoseconds, as if the host did nothing for this time. */
void weir__model_advance(uint64_t ns);

/* Submits work of `duration_ns` nanoseconds to a stream or, if it is being captured, to the graph, like a kernel. */
CUresult weir__model_kernel(CUstream stream, uint64_t duration_ns);
/* Submits work of `duration_ns` nanoseconds to a stream, like a kernel that reads and writes all of these bytes (at
 * least 1).  Checks that the work is ordered after uses by other owners.  `owner` must differ for each allocation. */
CUresult weir__model_use(CUstream stream, CUdeviceptr address, size_t bytes, uint64_t owner,
                         uint64_t duration_ns);
/* Returns a text about the first ordering fault since the last reset, or NULL.  weir__model_use() is a fault if it is
 * not ordered after the uses by the former owner, and a free is a fault if it is not ordered after all uses. */
const char *weir__model_fault(void);
uint64_t weir__model_uses(void);

/* Makes the k-th call of a driver function from now on (1 is the next call) return `result` and do nothing.  With
 * `for_good`, all later calls fail, too.  If k is 0, no call fails. */
void weir__model_fail(enum weir_driver_entry entry, uint64_t k, CUresult result, int for_good);
/* Makes the k-th call of any driver function fail.  If `then` is not 0, one more call fails, `then` calls later. */
void weir__model_fail_any(uint64_t k, uint64_t then, CUresult result, int for_good);
/* Returns how many planned failures have happened.  Sets *last, unless it is NULL, to the function that failed last. */
uint64_t weir__model_faults_injected(enum weir_driver_entry *last);
void weir__model_faults_clear(void);
/* Returns how often the driver function was called since the last reset, including failed calls. */
uint64_t weir__model_calls(enum weir_driver_entry entry);

/* The number of driver calls, and their digest, by which a test compares two runs (model_sequence.c). */
struct weir_model_sequence {
    uint64_t calls, digest;
};
/* Records driver calls until the next reset.  Writes a line for each call to the file `lines`, unless it is NULL. */
void weir__model_sequence_start(FILE *lines);
void weir__model_sequence(struct weir_model_sequence *out);

/* Checks all pools and the used bytes of each device.  Returns NULL, or a text about the first error. */
const char *weir__model_pool_check(void);

#endif
