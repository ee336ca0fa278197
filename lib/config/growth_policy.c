/* SPDX-License-Identifier: MIT */
/* growth_policy.c: computes how much memory to add when reserved memory grows.  Policy BFC computes the same numbers as
 * TensorFlow's function Extend (tsl/framework/bfc_allocator.cc).  Sums and products saturate at SIZE_MAX. */
#include "config/growth_policy.h"

#include "base/size.h"

enum { BFC_GRANULARITY = 256, BFC_FIRST_REGION = 2 << 20 };

static size_t round_up_saturating(size_t value, size_t unit) {
    size_t rounded;

    return weir__size_round_up(value, unit, &rounded) ? rounded : SIZE_MAX;
}

static size_t scale_saturating(double factor, size_t bytes) {
    double scaled = factor * (double)bytes;

    return scaled >= (double)SIZE_MAX ? SIZE_MAX : (size_t)scaled;
}

static size_t room(const weir_growth_state *state) {
    return weir__size_subtract(state->limit, state->reserved);
}

/* Returns the number of bytes that the growth policy wants to add, not yet adapted to the request and the limit. */
static size_t step_by_policy(const weir_options *options, const weir_growth_state *state,
                             const struct weir_growth_cursor *cursor) {
    weir_growth_state told = *state;
    size_t bytes, step = (size_t)options->growth_step;

    switch (options->growth) {
    /* Rounds up to a multiple of growth_step.  The user sets growth_step, so it need not be a power of two. */
    case WEIR_GROWTH_STEP:
        return weir__size_mul(state->request / step + (state->request % step != 0), step, &bytes)
                   ? bytes
                   : SIZE_MAX;
    case WEIR_GROWTH_GEOMETRIC:
        bytes = scale_saturating(options->growth_factor - 1, state->reserved);
        return step ? weir__size_smaller(bytes, step) : bytes;
    /* REMAINING adds a part of the memory below the limit, or of the device's free memory if that is less. */
    case WEIR_GROWTH_REMAINING:
        bytes = state->limit == SIZE_MAX ? state->device_free
                                         : weir__size_smaller(room(state), state->device_free);
        return bytes == SIZE_MAX ? 0 : scale_saturating(options->growth_factor, bytes);
    case WEIR_GROWTH_CALLBACK:
        told.size = sizeof told;
        told.steps = cursor->steps;
        told.last_step = cursor->last_step;
        return options->growth_function(&told, options->growth_context);
    default:
        return state->request;
    }
}

/* Returns the bytes to add, a multiple of `unit`.  Only policy STEP rounds up, because the user has chosen the size. */
static size_t plain_step(const weir_options *options, const weir_growth_state *state, size_t unit,
                         const struct weir_growth_cursor *cursor) {
    size_t need, step, most = weir__size_round_down(room(state), unit);

    if (!weir__size_round_up(state->request, unit, &need) || need > most)
        return 0;
    step = step_by_policy(options, state, cursor);
    step = options->growth == WEIR_GROWTH_STEP ? round_up_saturating(step, unit)
                                               : weir__size_round_down(step, unit);
    step = weir__size_smaller(step, weir__size_round_down(state->device_free, unit));
    return weir__size_smaller(weir__size_larger(step, need), most);
}

/* Returns the bytes to add by the rules of TensorFlow's BFCAllocator::Extend. */
static size_t bfc_step(const weir_growth_state *state, size_t unit,
                       struct weir_growth_cursor *cursor) {
    size_t need, step, available = weir__size_round_down(room(state), BFC_GRANULARITY);
    int doubled = 0;

    if (!weir__size_round_up(state->request, BFC_GRANULARITY, &need) || need > available)
        return 0;
    if (cursor->next_region == 0)
        cursor->next_region = round_up_saturating(
            weir__size_smaller(BFC_FIRST_REGION, state->limit), BFC_GRANULARITY);
    while (need > cursor->next_region) {
        if (!weir__size_mul(cursor->next_region, 2, &cursor->next_region))
            cursor->next_region = SIZE_MAX;
        doubled = 1;
    }
    step = weir__size_smaller(round_up_saturating(cursor->next_region, unit), available);
    cursor->doubled_ahead =
        !doubled && weir__size_mul(cursor->next_region, 2, &cursor->next_region);
    return step;
}

size_t weir__growth_step(const weir_options *options, const weir_growth_state *state, size_t unit,
                         struct weir_growth_cursor *cursor) {
    size_t step;

    if (state->request == 0)
        return 0;
    step = options->growth == WEIR_GROWTH_BFC ? bfc_step(state, unit, cursor)
                                              : plain_step(options, state, unit, cursor);
    if (step > 0) {
        cursor->steps++;
        cursor->last_step = step;
    }
    return step;
}

size_t weir__growth_smaller(const weir_options *options, size_t step, size_t request, size_t unit) {
    size_t need, smaller;

    if (options->growth == WEIR_GROWTH_BFC) {
        /* computes 0.9 times `step` in single precision, as TensorFlow does */
        smaller = round_up_saturating((size_t)((float)step * 0.9f), unit);
        if (smaller >= step)
            smaller = step - weir__size_smaller(step, unit);
        return smaller < request ? 0 : smaller;
    }
    if (!weir__size_round_up(request, unit, &need) || step <= need)
        return 0;
    return need + weir__size_round_down((step - need) / 2, unit);
}

void weir__growth_refused(struct weir_growth_cursor *cursor) {
    if (cursor->steps > 0)
        cursor->steps--;
    cursor->last_step = 0;
    if (cursor->doubled_ahead)
        cursor->next_region /= 2;
    cursor->doubled_ahead = 0;
}

/* BFC's regions have 2, 4, 8 MiB and so on.  All regions before a region of N MiB have N - 2 MiB in total. */
void weir__growth_shrunk(struct weir_growth_cursor *cursor, uint64_t reserved) {
    while (cursor->next_region > BFC_FIRST_REGION &&
           cursor->next_region - BFC_FIRST_REGION > reserved)
        cursor->next_region /= 2;
}
