/* SPDX-License-Identifier: MIT */
/* weir/growth.h: how much to add when the reserve has to grow. */
#ifndef WEIR_GROWTH_H
#define WEIR_GROWTH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a policy is told.  All in bytes. */
typedef struct weir_growth_state {
    size_t size;        /* sizeof(struct weir_growth_state) of the library that fills it */
    size_t request;     /* missing now: the request, or what free memory does not cover; > 0 */
    size_t reserve;     /* taken from the device so far */
    size_t in_use;      /* in blocks now */
    size_t limit;       /* the most that the reserve may be; SIZE_MAX: no limit */
    size_t device_free; /* free on the device now; SIZE_MAX: not known */
    uint64_t steps;     /* growth steps so far */
    size_t last_step;   /* bytes that the last step was meant to add; 0 before the first */
} weir_growth_state;

/* A policy of one's own: how many bytes to add.  Less than `request` counts as `request`; more than
 * the limit or the device leaves is cut to that.  Called under the allocator's growth lock: it must
 * not call weir, and should be quick.  `context` is options.growth_context, never freed by weir.
 * examples/growth_callback.c is a program that has one. */
typedef size_t (*weir_growth_function)(const weir_growth_state *state, void *context);

/* X(name, word, value).  What each adds:
 *   EXACT       the request, rounded to what the engine takes from the device at once
 *   STEP        the request rounded up to a multiple of growth_step (64 MiB if 0)
 *   GEOMETRIC   (growth_factor - 1) x reserve, at most growth_cap (0: no cap); at least the request
 *   REMAINING   growth_factor x what is free on the device, or what the limit leaves if that is
 *               less; at least the request.  RMM's pool does this with 0.5 if it has a maximum size
 *   BFC         the rule of TensorFlow's and XLA's BFC allocator: steps start at 2 MiB and double
 *               each time until they cover the request; one that the device refuses shrinks by a
 *               tenth until the request no longer fits (tsl/framework/bfc_allocator.cc, Extend).
 *               When memory has gone back, as it does not there, they double from what is left
 *   CALLBACK    what options.growth_function answers
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
