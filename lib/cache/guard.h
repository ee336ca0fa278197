/* SPDX-License-Identifier: MIT */
/* guard.h: what finds work on the device that writes where it must not, and what clears memory.
 *
 * A layer between the public entry points and what serves them, there only where options.harden asks
 * for it: without it no request passes by here (slow_path.h).  It knows every block by itself.
 *
 * Must not know: the public API, settings' names, how what lies below places blocks.
 */
#ifndef WEIR_GUARD_H
#define WEIR_GUARD_H

#include "engine/graph_blocks.h"

struct weir_harden;

/* What serves the requests: weir_alloc and weir_free as they are without hardening, bytes > 0. */
struct weir_harden_below {
    weir_status (*alloc)(void *context, size_t bytes, weir_stream stream, CUdeviceptr *block);
    weir_status (*free)(void *context, CUdeviceptr block, weir_stream stream,
                        struct weir_use_list *uses);
    void *context;
    struct weir_graph_table *graphs; /* what that notes for frees; outlives it */
};

/* Device and options outlive it.  OK, E_HOST_MEMORY, or what the driver has against it. */
weir_status weir__harden_open(struct weir_device *device, const weir_options *options,
                              const struct weir_harden_below *below, struct weir_harden **out);
/* Forgets everything, and gives nothing back.  NULL is fine. */
void weir__harden_close(struct weir_harden *h);

/* As weir_alloc and weir_free, bytes > 0. */
weir_status weir__harden_alloc(struct weir_harden *h, size_t bytes, weir_stream stream,
                               CUdeviceptr *block);
weir_status weir__harden_free(struct weir_harden *h, CUdeviceptr block, weir_stream stream,
                              struct weir_use_list *uses);

/* The most that may be asked for so that no more than `bytes` are asked for below. */
size_t weir__harden_fit(const weir_options *options, size_t bytes);

/* 1 if a live block starts there, or a graph's. */
int weir__harden_is_live(struct weir_harden *h, CUdeviceptr block);
/* The live block whose block from below begins at `base`, and its bytes as asked: 1, or 0. */
int weir__harden_find(struct weir_harden *h, CUdeviceptr base, CUdeviceptr *block, size_t *bytes);
/* Shows callers' blocks, and those that are kept out of use, as they are below, under its lock. */
void weir__harden_live(struct weir_harden *h,
                       void (*see)(void *context, uint64_t base, size_t bytes), void *context);
/* 1 if a live block is left. */
int weir__harden_has_blocks(struct weir_harden *h);

/* Waits for the device, verifies what is held of all streams, and gives it down, with `all` what is
 * kept out of use too. */
weir_status weir__harden_empty(struct weir_harden *h, int all);

/* Corrects figures that everything below has already filled in. */
void weir__harden_figures(struct weir_harden *h, weir_statistics *out);

#endif
