/* SPDX-License-Identifier: MIT */
/* weir/growth.h: how much memory to take from the device when reserved memory has to grow. */
#ifndef WEIR_GROWTH_H
#define WEIR_GROWTH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The arguments of a policy.  All in bytes. */
typedef struct weir_growth_state {
    size_t size;        /* sizeof(struct weir_growth_state) of the library that fills it */
    size_t request;     /* missing now: the request, or what free memory does not cover; > 0 */
    size_t reserved;    /* taken from the device so far */
    size_t in_use;      /* in blocks now */
    size_t limit;       /* the most memory that may be reserved; SIZE_MAX: no limit is set */
    size_t device_free; /* free on the device now; SIZE_MAX: not known (policy BFC does not ask) */
    uint64_t steps;     /* pool growths so far */
    size_t last_step;   /* bytes that the last growth should add; 0 before the first */
} weir_growth_state;

/* A program's own policy: it returns how many bytes to add.  Less than `request` counts as `request`, and engine
 * mapped adds at least what its packing says.  weir cuts more than the limit or the device leaves to that.  weir
 * calls it under the allocator's growth lock, so it must not call weir, and should be quick.  `context` is
 * options.growth_context; weir never frees it.
 * examples/growth_callback.c is a program with its own policy. */
typedef size_t (*weir_growth_function)(const weir_growth_state *state, void *context);

/* X(name, word, value).  What each adds:
 *   EXACT       the request, rounded to what the engine takes from the device at once
 *   STEP        the request rounded up to a multiple of growth_step (64 MiB if 0)
 *   GEOMETRIC   (growth_factor - 1) times reserved memory, at most growth_step (0: no cap); at least
 *               the request
 *   REMAINING   growth_factor times what is free on the device, or what the limit leaves if that is
 *               less; at least the request.  RMM's pool does this with 0.5 if it has a maximum size
 *   BFC         the rule of TensorFlow's and XLA's BFC allocator (tsl/framework/bfc_allocator.cc,
 *               Extend).  Steps start at 2 MiB and double each time until they cover the request.  If
 *               the device cannot provide a step, it shrinks by a tenth until the request no longer
 *               fits.  After memory has gone back, as it does not there, steps double from what is left
 *   CALLBACK    what options.growth_function returns
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
