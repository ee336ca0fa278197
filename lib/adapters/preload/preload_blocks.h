/* SPDX-License-Identifier: MIT */
/* preload_blocks.h: the blocks that weir handed out: which there are, their numbers, and who requested them.
 *
 * Locks: none that a caller may hold; functions are called inside (preload.h).
 */
#ifndef WEIR_PRELOAD_BLOCKS_H
#define WEIR_PRELOAD_BLOCKS_H

#include "adapters/preload/preload.h"

/* ---- preload_blocks.c ----------------------------------------------------------------------------- */

struct weir_found {
    struct weir_served *by;
    CUdeviceptr base;
    size_t bytes;
};

/* The allocator that knew this thread's last block.  1 once a block was noted here; 1 once a block got a number. */
extern _Thread_local unsigned weir__block_last __attribute__((tls_model("initial-exec")));
extern atomic_int weir__blocks_noted, weir__blocks_numbered;

/* 1 if the address lies in a block that weir handed out. */
int weir__block_find(CUdeviceptr address, struct weir_found *found);
/* Whose memory it lies in if it is no block there: freed, never handed out, or lost; NULL: nobody's here.  The
 * driver, which knows it as part of a larger block, must not be asked about it. */
struct weir_served *weir__block_is_none(CUdeviceptr address);
/* A block was handed out, of an allocator that needs notes or sums: 1, or 0: no host memory. */
int weir__block_begin(struct weir_served *s, CUdeviceptr block, size_t bytes);
/* The block is about to be freed; it was not after all; it was. */
void weir__block_end(const struct weir_found *found);
void weir__block_goes_on(const struct weir_found *found);
void weir__block_ended(const struct weir_found *found);
/* A number that no other block has or had; 0: no host memory. */
uint64_t weir__block_number(const struct weir_found *found);

#endif
