/* SPDX-License-Identifier: MIT */
/* map.h: a hash map from a block's address to one pointer-sized value.
 *
 * For the few places that must remember something about some blocks: the direct engine's live
 * blocks, the streams noted by weir_use, the arena's pending frees.  Open addressing with linear
 * probing and backward-shift deletion; a quarter to a half full.  Not thread-safe: the owner of the
 * map has a lock.
 *
 * Must not know: what the values mean; it never frees them.
 */
#ifndef WEIR_MAP_H
#define WEIR_MAP_H

#include <stddef.h>
#include <stdint.h>

struct weir_map {
    struct weir_map_slot *slots; /* NULL while empty */
    size_t capacity;             /* power of two, or 0 */
    size_t count;
};

struct weir_map_slot {
    uint64_t key; /* 0: free; no block lies at address 0 */
    uintptr_t value;
};

/* A zeroed struct weir_map is an empty map. */
void weir__map_clear(struct weir_map *map);
/* 1, or 0 if host memory ran out (nothing changed).  An old value of the key is replaced, which
 * takes no memory and so cannot fail. */
int weir__map_put(struct weir_map *map, uint64_t key, uintptr_t value);
/* Room for so many more keys, so that putting them cannot fail.  1, or 0 if host memory ran out. */
int weir__map_reserve(struct weir_map *map, size_t more);
/* 1 and the value (out may be NULL), or 0. */
int weir__map_get(const struct weir_map *map, uint64_t key, uintptr_t *out);
/* 1 and the value that was taken out (out may be NULL), or 0. */
int weir__map_take(struct weir_map *map, uint64_t key, uintptr_t *out);

#endif
