/* SPDX-License-Identifier: MIT */
/* growth_policy.h: computes how much memory to add when reserved memory grows.  The functions are pure functions of
 * numbers.  This file must not know drivers, engines or locks. */
#ifndef WEIR_GROWTH_POLICY_H
#define WEIR_GROWTH_POLICY_H

#include <weir/growth.h>
#include <weir/options.h>

/* The state of a growth policy from one step to the next.  All fields are 0 at first.  The allocator's growth lock
 * guards the state. */
struct weir_growth_cursor {
    uint64_t steps;
    size_t last_step;
    size_t next_region; /* for policy BFC: the planned size of the next region */
    int doubled_ahead;  /* for policy BFC: set if the last step doubled `next_region` */
};

/* Returns the size of the next growth step in bytes, and updates the cursor.  A step is a multiple of `unit`, which is
 * a power of two.  A step is at least as large as the request, and stays within the limit.  A step that is larger than
 * the request also stays within the free memory of the device.  Policy BFC differs, as in TensorFlow: near the limit it
 * rounds to 256 bytes, and it ignores the free memory.
 *
 * `options` must be complete (weir__options_complete).  Returns 0 if the request is 0 or exceeds the limit.  If the
 * device refuses the step, the caller calls weir__growth_smaller(). */
size_t weir__growth_step(const weir_options *options, const weir_growth_state *state, size_t unit,
                         struct weir_growth_cursor *cursor);

/* Returns a smaller step after the device has refused `step`.  Policy BFC multiplies the step by 0.9 and rounds up to
 * `unit`.  The other policies return the mean of the step and of the request, which is rounded up to `unit`.  Returns 0
 * if the smaller step would be less than the request. */
size_t weir__growth_smaller(const weir_options *options, size_t step, size_t request, size_t unit);

/* Restores the cursor to its state before the last step, after the device has refused all sizes. */
void weir__growth_refused(struct weir_growth_cursor *cursor);

/* Lowers the size of BFC's next region after a trim that has left `reserved` bytes.  Otherwise the next region would
 * become as large as the device after some trims. */
void weir__growth_shrunk(struct weir_growth_cursor *cursor, uint64_t reserved);

#endif
