/* SPDX-License-Identifier: MIT */
/* growth_policy.h: computes how much memory to add when reserved memory grows.  The functions use only arguments. */
#ifndef WEIR_GROWTH_POLICY_H
#define WEIR_GROWTH_POLICY_H

#include <weir/growth.h>
#include <weir/options.h>

/* The earlier steps of a growth policy.  All fields are 0 at first.  The allocator's growth lock guards all fields. */
struct weir_growth_cursor {
    uint64_t steps;
    size_t last_step;
    size_t next_region; /* for policy BFC */
    int doubled_ahead;  /* for policy BFC: set if the last step has doubled `next_region` */
};

/* Returns how many bytes to add to the reserved memory, and updates the cursor.  Returns 0 if the request is 0 or
 * exceeds the limit.  `unit` is a power of two.  Policy BFC ignores the device's free memory, and near the limit it
 * returns a multiple of 256, not of `unit`.  `options` must be complete (weir__options_complete). */
size_t weir__growth_step(const weir_options *options, const weir_growth_state *state, size_t unit,
                         struct weir_growth_cursor *cursor);

/* Returns a smaller number of bytes after the device has refused `step` bytes, or 0 if none is enough. */
size_t weir__growth_smaller(const weir_options *options, size_t step, size_t request, size_t unit);

/* Restores *cursor to its state before the last weir__growth_step().  Called after the device has refused all sizes. */
void weir__growth_refused(struct weir_growth_cursor *cursor);

/* Lowers cursor->next_region after a trim to `reserved` bytes, since growth by policy BFC only doubles next_region. */
void weir__growth_shrunk(struct weir_growth_cursor *cursor, uint64_t reserved);

#endif
