/* SPDX-License-Identifier: MIT */
/* model.h: what tests and the bench may do to the device model beside calling the driver table.
 *
 * The model is one per process, as a driver is.  weir__driver_model (driver.h) makes it from the
 * built-in profile, or from the file that WEIR_MODEL_PROFILE names, with WEIR_MODEL_DEVICES
 * devices; weir__model_reset makes it again.  Time on it is virtual: calls advance one clock by what
 * the profile says they cost, so the same calls take the same time in every run.
 *
 * Must not know: anything above driver.h.
 */
#ifndef WEIR_MODEL_H
#define WEIR_MODEL_H

#include <stdio.h>

#include "driver/driver.h"

/* Zero in any field means what the environment and the profile say. */
struct weir_model_setup {
    int devices;         /* how many, 1 to 16 */
    uint64_t capacity;   /* bytes of each device, all of them for allocations: with this set, a
                          * context takes none */
    const char *profile; /* path of a profile; it overrides the built-in one key by key */
    struct weir_driver_failure *failure; /* NULL or where the reason goes */
};

/* Drops every device, context, stream, event, pool, block, capture and graph, the fault plan and the
 * counts, and sets the clock to 0.  What cuInit did stays done.  The table follows the driver
 * version of the profile.  NULL: default setup.  0, or -1 with the reason in setup->failure and the
 * model as it was.  No other call may be under way. */
int weir__model_reset(const struct weir_model_setup *setup);

uint64_t weir__model_now_ns(void);
/* Lets virtual time pass on the host. */
void weir__model_advance(uint64_t ns);

/* Launches work of that length on a stream, as a kernel would; under capture it becomes a step. */
CUresult weir__model_kernel(CUstream stream, uint64_t duration_ns);
/* The same, of work that reads and writes these bytes (> 0) for an owner: a number of the caller's
 * that stands for one block of his, from its allocation to its free, and never for another. */
CUresult weir__model_use(CUstream stream, CUdeviceptr address, size_t bytes, uint64_t owner,
                         uint64_t duration_ns);
/* NULL, or the first use since the last reset that was not ordered behind what another owner did with
 * the same bytes, or that its memory's return to the driver is not ordered behind, with what both sides
 * knew: streams by id, each with the number of its operation.  Static text. */
const char *weir__model_fault(void);
/* Uses since the last reset. */
uint64_t weir__model_uses(void);

/* The k-th call of the entry from now (1: the next one) does nothing and returns `result`; so do
 * all later ones if `for_good`.  One plan per entry; a new one replaces it.  k = 0 removes it. */
void weir__model_fail(enum weir_driver_entry entry, uint64_t k, CUresult result, int for_good);
/* The k-th driver call of any entry from now, and the `then`-th after it (0: no other), do nothing and
 * return `result`; with `for_good` all after the last of them too.  One such plan, beside those of
 * single entries, whose results come first; a new one replaces it.  k = 0 removes it. */
void weir__model_fail_any(uint64_t k, uint64_t then, CUresult result, int for_good);
/* Calls that a plan let fail since the last reset or clearing of all plans, and the entry of the last of
 * them (may be NULL; left alone if there was none). */
uint64_t weir__model_faults_met(enum weir_driver_entry *last);
void weir__model_faults_clear(void);
/* Calls of the entry since the last reset, failed ones included, by all threads. */
uint64_t weir__model_calls(enum weir_driver_entry entry);

/* The calls that ended since weir__model_sequence_start: two runs that made the same calls in the same order have the
 * same digest.  It covers each call's entry, numbers, streams, events, pools and result; no address and no time. */
struct weir_model_sequence {
    uint64_t calls, digest;
};
/* Begins again; a reset ends it.  `lines` gets a line for each call, if it is not NULL. */
void weir__model_sequence_start(FILE *lines);
void weir__model_sequence(struct weir_model_sequence *out);

/* Walks every pool and the accounts of every device.  NULL, or what is wrong (static text). */
const char *weir__model_pool_check(void);

#endif
