/* SPDX-License-Identifier: MIT */
/* weir/growth.h: growth policies.  A growth policy decides how much memory weir adds when the reserved memory must
 * grow. */
#ifndef WEIR_GROWTH_H
#define WEIR_GROWTH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The values that weir passes to a growth policy.  All fields are numbers of bytes, except `steps`. */
typedef struct weir_growth_state {
    /* The size of this struct in the library, which fills the struct. */
    size_t size;
    /* The bytes that the request needs in addition to usable free memory.  Always above 0. */
    size_t request;
    size_t reserved; /* the bytes that the allocator has reserved */
    size_t in_use;   /* the bytes in live blocks of the allocator */
    size_t limit;    /* the limit of the reserved memory, or SIZE_MAX if there is no limit */
    /* The device's free memory, or SIZE_MAX if it is not known.  (Policy BFC does not query it.) */
    size_t device_free;
    uint64_t steps;   /* the number of times that memory was added so far */
    size_t last_step; /* the bytes that weir tried to add the last time; 0 before the first time */
} weir_growth_state;

/* The type of a program's own growth policy.  The function returns the number of bytes to add.  weir adds at least
 * `request` bytes, and with engine mapped at least the engine's own step.  weir adds at most the bytes that the limit
 * and the device allow.
 *
 * weir calls the function under the allocator's growth lock, in the thread of the request or of background growth.  So
 * the function must not call weir, and should be fast.  `context` is options.growth_context, which weir never frees.
 * examples/growth_callback.c is a program with its own growth policy.  Since 0.1. */
typedef size_t (*weir_growth_function)(const weir_growth_state *state, void *context);

/* The growth policies, as X(name, word, value).  A policy adds:
 *   EXACT       the request, rounded up to the engine's unit
 *   STEP        the request, rounded up to a multiple of growth_step (64 MiB if growth_step is 0)
 *   GEOMETRIC   (growth_factor - 1) times the reserved memory, but at most growth_step (no maximum if
 *               growth_step is 0), and at least the request
 *   REMAINING   growth_factor times the device's free memory, or times the memory that the limit still
 *               allows if that is less; at least the request.  RMM's pool uses this policy with the
 *               factor 0.5 if the pool has a maximum size
 *   BFC         the steps of TensorFlow's and XLA's BFC allocator (function Extend in
 *               tsl/framework/bfc_allocator.cc).  Steps start at 2 MiB and double each time, until a step
 *               covers the request.  If the device refuses a step, weir makes the step smaller by a tenth,
 *               until the request no longer fits.  weir can also release memory, which these allocators
 *               never do.  After a release, steps double from the reserved memory that is left
 *   CALLBACK    the result of options.growth_function
 * DEFAULT is the policy with the best measurements (weir-settings(7)). */
#define WEIR_GROWTH_POLICIES(X)                                                                    \
    X(DEFAULT, "default", 0)                                                                       \
    X(EXACT, "exact", 1)                                                                           \
    X(STEP, "step", 2)                                                                             \
    X(GEOMETRIC, "geometric", 3)                                                                   \
    X(REMAINING, "remaining", 4)                                                                   \
    X(BFC, "bfc", 5)                                                                               \
    X(CALLBACK, "callback", 6)

enum {
#define WEIR_GROWTH_ENUM(name, word, value) WEIR_GROWTH_##name = (value),
    WEIR_GROWTH_POLICIES(WEIR_GROWTH_ENUM)
#undef WEIR_GROWTH_ENUM
};

#ifdef __cplusplus
}
#endif

#endif
