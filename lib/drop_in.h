/* SPDX-License-Identifier: MIT */
/* drop_in.h: what lib/adapters needs of an allocator beyond include/weir, when it stands in the place of
 * the driver's own pools.
 *
 * A program that knows nothing of weir cannot keep what weir asks of its users, so it is kept for it here:
 * the adapter sees streams go and captures begin, because the program asks the driver for both.
 *
 * Must not know: how a call comes here; pools of the driver's.
 */
#ifndef WEIR_DROP_IN_H
#define WEIR_DROP_IN_H

#include <weir/weir.h>

#include "driver.h"

/* 1 in a child of fork: see driver.h. */
static inline int weir__drop_in_forked(void) {
    return weir__driver_forked();
}

/* From now on a request on a stream that is being captured is refused (E_CAPTURE) rather than made a node
 * of the graph: it is for the driver. */
void weir__drop_in_refuse_captured(weir_allocator *allocator);

/* 1 if weir_block_range tells all blocks. */
int weir__drop_in_knows_blocks(const weir_allocator *allocator);

/* 1 if the address lies in memory that blocks are cut from, whether in a live one or not. */
int weir__drop_in_holds(const weir_allocator *allocator, uint64_t address);

/* As weir_free, of a block whose last use is over on every stream, as the caller knows. */
weir_status weir__drop_in_free_done(weir_allocator *allocator, void *block);

/* A stream that lives is about to end, or its context: what its cache holds goes back behind an event,
 * rather than to wait for the device.  Nothing if it is being captured, or unknown. */
void weir__drop_in_stream_ends(weir_allocator *allocator, weir_stream stream);

#endif
