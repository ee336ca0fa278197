/* SPDX-License-Identifier: MIT */
/* growth_policy.h: computes how much memory to add, by pure functions of numbers.  This file must not know drivers,
 * engines or locks. */
#ifndef WEIR_GROWTH_POLICY_H
#define WEIR_GROWTH_POLICY_H

#include <weir/growth.h>
#include <weir/options.h>

/* The state of a policy between two steps.  All fields are 0 at first.  The allocator's growth lock guards the
 * state. */
struct weir_growth_cursor {
    uint64_t steps;
    size_t last_step;
    size_t next_region; /* for policy BFC: the planned size of the next region */
    int doubled_ahead;  /* for policy BFC: set if the last step doubled `next_region` */
};

/* Returns the bytes of the next step and advances the cursor.  Returns 0 if the request is 0 or does not fit under the
 * limit.  A step is a multiple of `unit`, a power of two, and is at least the request.  A step does not exceed the
 * limit.  A step larger than the request does not exceed the free memory of the device.  Policy BFC, like TensorFlow,
 * rounds to 256 bytes below the limit, and ignores the free memory.  weir__options_complete must have filled in
 * `options`.  If the device refuses the step, the caller calls weir__growth_smaller. */
size_t weir__growth_step(const weir_options *options, const weir_growth_state *state, size_t unit,
                         struct weir_growth_cursor *cursor);

/* Returns the next smaller step after the device refused `step', or 0 if this smaller step would be less than the
 * request.  BFC multiplies the step by 0.9 and rounds up to `unit'.  Other policies return the mean of the step and of
 * the request, which is rounded up to `unit'. */
size_t weir__growth_smaller(const weir_options *options, size_t step, size_t request, size_t unit);

/* Undoes the last step of the cursor after the device refused every size. */
void weir__growth_refused(struct weir_growth_cursor *cursor);

/* Lowers the size of BFC's next region after a trim that left `reserved' bytes.  Otherwise the next region would be as
 * large as the device after some trims. */
void weir__growth_shrunk(struct weir_growth_cursor *cursor, uint64_t reserved);

#endif
