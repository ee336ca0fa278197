/* SPDX-License-Identifier: MIT */
/* background_growth.h: grows reserved memory in the background, before requests need it.
 *
 * One thread of an allocator raises the reserved memory in small steps when little of it is idle, so that a request
 * seldom finds no idle memory.
 *
 * This file must not know any single engine, settings' names or the caller for memory.
 */
#ifndef WEIR_BACKGROUND_GROWTH_H
#define WEIR_BACKGROUND_GROWTH_H

#include "reserve/reserve.h"

/* Grows the reserved memory until `low' bytes are idle, as far as the device has them, and starts the thread.  The
 * thread makes `high' bytes idle whenever less than `low' are.  The engine of `v' is open and has a step; `v' outlives
 * the result.  Returns OK, or E_HOST_MEMORY if there is no host memory or no thread. */
weir_status weir__ahead_open(struct weir_reserve *v, uint64_t low, uint64_t high,
                             struct weir_ahead **out);
/* Ends the thread after its current step.  NULL is allowed. */
void weir__ahead_close(struct weir_ahead *a);

/* Forgets which memory is useless, after a trim that may have released it.  NULL is allowed. */
void weir__ahead_forget(struct weir_ahead *a);

/* weir__ahead_hold waits for the current step.  No step begins until weir__ahead_go_on.  NULL is allowed. */
void weir__ahead_hold(struct weir_ahead *a);
void weir__ahead_go_on(struct weir_ahead *a);

/* On the device model, makes the steps that the thread would have made by now.  Returns 1 if there were any, else 0.
 * Called before a request grows reserved memory.  NULL is allowed. */
int weir__ahead_catch_up(struct weir_ahead *a);

/* Wakes the thread if little memory is idle, after a request of `bytes' that the engine has served.  `grew' is set if
 * reserved memory grew for the request.  Makes no driver call, and takes no lock that a step holds.  The caller does
 * not hold the engine's lock. */
void weir__ahead_look(struct weir_ahead *a, size_t bytes, int grew);

#endif
