/* SPDX-License-Identifier: MIT */
/* guard.h: the guard, a layer between the public functions and the per-stream caches.  The guard finds writes of GPU
 * work outside live blocks, and clears memory.  It exists only if options.harden is set. */
#ifndef WEIR_GUARD_H
#define WEIR_GUARD_H

#include "engine/driver_blocks.h"

struct weir_harden;

/* The functions that allocate and free without the guard, in the layer below it.  `bytes` is above 0. */
struct weir_harden_below {
    weir_status (*alloc)(void *context, size_t bytes, weir_stream stream, CUdeviceptr *block);
    weir_status (*free)(void *context, CUdeviceptr block, weir_stream stream,
                        struct weir_use_list *uses);
    void *context;
    /* The table with the addresses of blocks that are memory nodes of graphs.  The table outlives the guard. */
    struct weir_address_table *graphs;
};

/* Opens the guard.  The device and the options must outlive the guard. */
weir_status weir__harden_open(struct weir_device *device, const weir_options *options,
                              const struct weir_harden_below *below, struct weir_harden **out);
/* Frees the guard's host memory, but no block.  `h` may be NULL. */
void weir__harden_close(struct weir_harden *h);

/* Allocate and free a block with the guard's checks, for weir_alloc and weir_free.  `bytes` is above 0. */
weir_status weir__harden_alloc(struct weir_harden *h, size_t bytes, weir_stream stream,
                               CUdeviceptr *block);
weir_status weir__harden_free(struct weir_harden *h, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses);

/* Returns the size of the largest request that fits into `bytes` bytes, with the guarded gaps around the block. */
size_t weir__harden_fit(const weir_options *options, size_t bytes);

/* Returns 1 if a live block, or a block of a graph, starts at the address `block`; else 0. */
int weir__harden_is_live(struct weir_harden *h, CUdeviceptr block);
/* Finds the program's live block inside the block at `base` of the layer below.  Returns 0 if there is none, else 1. */
int weir__harden_find(struct weir_harden *h, CUdeviceptr base, CUdeviceptr *block, size_t *bytes);
/* Calls `visit` for each live block and each damaged block, under the guard's lock.  Sizes include the gaps around a
 * block.  Skips freed blocks that are kept for reuse, since a trim frees these blocks. */
void weir__harden_live(void *guard, void (*visit)(void *context, uint64_t base, size_t bytes),
                       void *context);

/* Waits for the device, then verifies and frees the freed blocks that the guard keeps.  Frees damaged blocks only if
 * `at_end` is set.  Returns E_BUSY if `at_end` is set and a block is live. */
weir_status weir__harden_empty(struct weir_harden *h, int at_end);

/* Corrects *out, the statistics of the layers below, which count gaps and kept blocks as live memory. */
void weir__harden_figures(struct weir_harden *h, weir_statistics *out);

#endif
