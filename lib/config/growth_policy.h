/* SPDX-License-Identifier: MIT */
/* growth_policy.h: how much to add, as pure functions of numbers. Must not know: drivers, engines, locks. */
#ifndef WEIR_GROWTH_POLICY_H
#define WEIR_GROWTH_POLICY_H

#include <weir/growth.h>
#include <weir/options.h>

/* What a policy remembers between steps; zeroed before the first.  Guarded by the growth lock of
 * the allocator that owns it. */
struct weir_growth_cursor {
    uint64_t steps;
    size_t last_step;
    size_t next_region; /* BFC: the size that the next region is meant to have */
    int doubled_ahead;  /* BFC: next_region was doubled for the step after the last one */
};

/* Bytes that the next step should add: a multiple of `unit` (power of two; what the engine takes
 * from the device at once), at least the request rounded up to it, at most what limit - reserve
 * leaves (rounded down) and, beyond the request, what is free on the device.  0: the request is 0,
 * or does not fit under the limit.  BFC keeps TensorFlow's rule instead: what is left under the
 * limit is rounded down to 256 whatever the unit, and the device's free memory is found out by
 * trying.  `options` is completed (weir__options_complete); `steps` and `last_step` of a callback's
 * state are the cursor's.  Advances the cursor; a step that the device then refuses is followed by
 * weir__growth_smaller. */
size_t weir__growth_step(const weir_options *options, const weir_growth_state *state, size_t unit,
                         struct weir_growth_cursor *cursor);

/* The next smaller step to try after the device refused `step`: BFC: 0.9 x step, rounded up to
 * `unit` as TensorFlow does, but always smaller; others: half the way to the request (rounded up to
 * `unit`), last the request itself.  0 when it would fall below the request. */
size_t weir__growth_smaller(const weir_options *options, size_t step, size_t request, size_t unit);

/* To be called when the device refused every size: the step did not happen.  BFC doubles its regions
 * ahead only after one that did. */
void weir__growth_refused(struct weir_growth_cursor *cursor);

/* To be called when memory has gone back, and so much is left: BFC goes on doubling from there.  TensorFlow
 * gives nothing back; a region of the size that came next would be of the whole device after a few times. */
void weir__growth_shrunk(struct weir_growth_cursor *cursor, uint64_t reserve);

#endif
