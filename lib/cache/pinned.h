/* SPDX-License-Identifier: MIT */
/* pinned.h: reserved memory that is idle but cannot be freed, because its piece has live blocks or must stay as a
 * whole.
 *
 * Must not know: any single engine, who wants memory.
 */
#ifndef WEIR_PINNED_H
#define WEIR_PINNED_H

#include "cache/caches.h"
#include "cache/guard.h"

/* Returns the bytes of all pieces that contain a live block or are larger than `most`, the largest that may be freed.
 * A piece is freed as a whole or not at all.  Returns 0 if that is not known.  Visits all blocks (about 10 ns each),
 * under the engine's lock and then the caches'.  With `harden` the callers' blocks count, and those kept out of use;
 * blocks on shelves do not, since a trim empties the shelves.  `caches` or `harden` may be NULL; with neither no block
 * is known. */
uint64_t weir__held(struct weir_engine *engine, struct weir_caches *caches,
                    struct weir_harden *harden, uint64_t most);

#endif
