/* SPDX-License-Identifier: MIT */
/* pinned.h: what of a reserve is idle, but goes nowhere, since it lies beside live blocks, or
 * in one piece with what is to stay.
 *
 * Must not know: any single engine; who wants memory.
 */
#ifndef WEIR_PINNED_H
#define WEIR_PINNED_H

#include "cache/caches.h"
#include "cache/guard.h"

/* Bytes of the reserved memory in pieces that go back whole or not at all, and have a live block, those in use among them, or
 * are larger than `most', which is all that may go.  0: not known, or the host has no memory to find out.  Goes through
 * all blocks (about 10 ns each), under the locks of the engine and the caches, one after the other.  With `harden' the
 * callers' blocks count, and what is kept out of use; what lies on shelves does not, since a trim empties them.
 * `cache', `harden': NULL if there is none; without both no block is known. */
uint64_t weir__held(struct weir_engine *engine, struct weir_caches *caches,
                    struct weir_harden *harden, uint64_t most);

#endif
