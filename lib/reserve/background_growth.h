/* SPDX-License-Identifier: MIT */
/* background_growth.h: growth ahead of demand, in the background.
 *
 * One thread of an allocator raises the reserved memory in small steps when little of it is idle, so that a request
 * seldom finds no idle memory.
 *
 * Must not know: any single engine, settings' names, the caller for memory.
 */
#ifndef WEIR_BACKGROUND_GROWTH_H
#define WEIR_BACKGROUND_GROWTH_H

#include "reserve/reserve.h"

/* Grows the reserved memory until `low' bytes are idle, as far as the device has them, and starts the thread.  The thread
 * makes `high' bytes idle whenever less than `low' are.  The engine of `v' is open and has a step; `v' outlives the
 * result.  Returns OK, or E_HOST_MEMORY if there is no host memory or no thread. */
weir_status weir__ahead_open(struct weir_reserve *v, uint64_t low, uint64_t high,
                             struct weir_ahead **out);
/* Ends it, after the step that may be under way.  NULL is fine. */
void weir__ahead_close(struct weir_ahead *a);

/* Memory that proved useless was given back, or may have been.  NULL is fine. */
void weir__ahead_forget(struct weir_ahead *a);

/* From hold to go on no step is under way, and none begins.  NULL is fine. */
void weir__ahead_hold(struct weir_ahead *a);
void weir__ahead_go_on(struct weir_ahead *a);

/* Before the reserved memory grows for a request: on a modelled device, what the thread would have done by now is done.  1 if
 * there was anything.  NULL is fine. */
int weir__ahead_catch_up(struct weir_ahead *a);

/* After each request that the engine has served, of so many bytes: sees whether little is idle.  `grew`: reserved
 * memory had to grow for it.  Makes no driver call, takes no lock that a step holds for longer, and is not called
 * under the engine's. */
void weir__ahead_look(struct weir_ahead *a, size_t bytes, int grew);

#endif
