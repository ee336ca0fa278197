/* SPDX-License-Identifier: MIT */
/* guard.h: a layer that finds writes of GPU work outside live blocks, and that clears memory.
 *
 * The guard lies between the public entry points and the requests without hardening.  The guard exists only if
 * options.harden asks for hardening; otherwise no request calls the guard (slow_path.h).  The guard has its own record
 * of every block.
 *
 * This file must not know the public API, settings' names or how the layer below places blocks.
 */
#ifndef WEIR_GUARD_H
#define WEIR_GUARD_H

#include "engine/driver_blocks.h"

struct weir_harden;

/* The layer below: weir_alloc and weir_free without hardening.  `bytes` is above 0. */
struct weir_harden_below {
    weir_status (*alloc)(void *context, size_t bytes, weir_stream stream, CUdeviceptr *block);
    weir_status (*free)(void *context, CUdeviceptr block, weir_stream stream,
                        struct weir_use_list *uses);
    void *context;
    /* The table in which the layer below records blocks of graphs.  The table outlives the guard. */
    struct weir_graph_table *graphs;
};

/* Opens the guard.  The device and the options must outlive the guard.  Returns OK, E_HOST_MEMORY, or a status of a
 * failed driver call. */
weir_status weir__harden_open(struct weir_device *device, const weir_options *options,
                              const struct weir_harden_below *below, struct weir_harden **out);
/* Frees the guard's host memory, but no block.  `h` may be NULL. */
void weir__harden_close(struct weir_harden *h);

/* Serve requests and frees as weir_alloc and weir_free do.  `bytes` is above 0. */
weir_status weir__harden_alloc(struct weir_harden *h, size_t bytes, weir_stream stream,
                               CUdeviceptr *block);
weir_status weir__harden_free(struct weir_harden *h, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses);

/* Returns the largest request that needs at most `bytes` bytes from the layer below. */
size_t weir__harden_fit(const weir_options *options, size_t bytes);

/* Returns 1 if a live block or a graph's block starts at the address, else 0. */
int weir__harden_is_live(struct weir_harden *h, CUdeviceptr block);
/* Finds the live block whose block in the layer below begins at `base`, and sets *bytes to the requested bytes.
 * Returns 1 on success, else 0. */
int weir__harden_find(struct weir_harden *h, CUdeviceptr base, CUdeviceptr *block, size_t *bytes);
/* Visits the callers' live blocks and the damaged blocks, under the guard's lock.  `base` and `bytes` are those of the
 * layer below.  Does not visit blocks on shelves, since a trim frees these blocks. */
void weir__harden_live(void *guard, void (*see)(void *context, uint64_t base, size_t bytes),
                       void *context);

/* Waits for the device, verifies the blocks on all shelves, and frees them in the layer below.  If `at_end` is set,
 * also frees the damaged blocks, but returns E_BUSY without a wait if there is a live block. */
weir_status weir__harden_empty(struct weir_harden *h, int at_end);

/* Corrects the figures after all layers below have filled in their figures. */
void weir__harden_figures(struct weir_harden *h, weir_statistics *out);

#endif
