/* SPDX-License-Identifier: MIT */
/* weir/growth.h: growth policies, which say how much memory to add when reserved memory has to grow. */
#ifndef WEIR_GROWTH_H
#define WEIR_GROWTH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The arguments of a policy, in bytes but for `steps`. */
typedef struct weir_growth_state {
    size_t size;        /* sizeof(struct weir_growth_state) of the library that fills it */
    size_t request;     /* the bytes that are missing: the request less usable free memory; > 0 */
    size_t reserved;    /* reserved memory */
    size_t in_use;      /* memory in live blocks */
    size_t limit;       /* limit of reserved memory; SIZE_MAX: no limit is set */
    size_t device_free; /* free memory of the device; SIZE_MAX: not known (BFC does not query it) */
    uint64_t steps;     /* number of pool growths so far */
    size_t last_step;   /* bytes that the last growth should add; 0 before the first */
} weir_growth_state;

/* A program's own policy: returns the number of bytes to add.  weir adds at least `request`, with engine mapped at
 * least its own step, and at most the bytes that the limit and the device leave.  weir calls the function
 * under the allocator's growth lock, on the thread of the request or of background growth.  So the function must not
 * call weir, and should be quick.  `context` is options.growth_context; weir never frees it.
 * examples/growth_callback.c is a program with its own policy.  Since 0.1. */
typedef size_t (*weir_growth_function)(const weir_growth_state *state, void *context);

/* The growth policies: X(name, word, value).  Each adds:
 *   EXACT       the request, rounded up to the engine's unit
 *   STEP        the request rounded up to a multiple of growth_step (64 MiB if 0)
 *   GEOMETRIC   (growth_factor - 1) times reserved memory, at most growth_step (0: no cap); at least
 *               the request
 *   REMAINING   growth_factor times the free memory of the device, or times the room under the limit if
 *               that is less; at least the request.  RMM's pool does this with 0.5 if it has a maximum size
 *   BFC         the rule of TensorFlow's and XLA's BFC allocator (tsl/framework/bfc_allocator.cc,
 *               Extend).  Steps start at 2 MiB and double each time until they cover the request.  If
 *               the device cannot provide a step, it shrinks by a tenth until the request no longer
 *               fits.  After memory has gone back, which these allocators never do, steps double from the
 *               reserved memory that is left
 *   CALLBACK    the result of options.growth_function
 * DEFAULT is the policy that measured best: see weir-settings(7). */
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
