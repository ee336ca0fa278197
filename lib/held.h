/* SPDX-License-Identifier: MIT */
/* held.h: what of a reserve is idle, but goes nowhere, since it lies beside live blocks.
 *
 * Must not know: any single engine; who wants memory.
 */
#ifndef WEIR_HELD_H
#define WEIR_HELD_H

#include "front.h"

/* Bytes of the reserve in pieces that go back whole or not at all, and have a live block, those in use among them.  0:
 * not known, or the host has no memory to find out.  Goes through all blocks (about 10 ns each), under the locks of
 * the engine and the front, one after the other. */
uint64_t weir__held(const struct weir_engine *ops, void *engine, struct weir_front *front);

#endif
