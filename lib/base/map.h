/* SPDX-License-Identifier: MIT */
/* map.h: a hash map from a block's address to one pointer-sized value.
 *
 * The map stores values for single blocks: live blocks of the direct engine, streams that weir_use has noted, pending
 * frees.  The map uses open addressing with linear probing and backward-shift deletion, and is a quarter to a half
 * full.  The map is not thread-safe, so its owner has a lock.
 *
 * This file must not know the meaning of the values, which it never frees.
 */
#ifndef WEIR_MAP_H
#define WEIR_MAP_H

#include <stddef.h>
#include <stdint.h>

struct weir_map {
    struct weir_map_slot *slots; /* NULL if the map is empty */
    size_t capacity;             /* a power of two, or 0 */
    size_t count;
};

struct weir_map_slot {
    uint64_t key; /* 0 if the slot is free, since no block lies at address 0 */
    uintptr_t value;
};

/* Removes all entries and frees the memory of the map.  A zeroed struct weir_map is an empty map. */
void weir__map_clear(struct weir_map *map);
/* Stores the value of a key, and replaces an old value of the key; such a replacement cannot fail.  Returns 1 on
 * success.  Returns 0 if there is no host memory, and changes nothing in this case. */
int weir__map_put(struct weir_map *map, uint64_t key, uintptr_t value);
/* Makes room for `more` keys, so that storing them cannot fail.  Returns 1 on success, 0 if there is no host memory. */
int weir__map_reserve(struct weir_map *map, size_t more);
/* Finds the value of a key; `out` may be NULL.  Returns 1 if the map has the key, else 0. */
int weir__map_get(const struct weir_map *map, uint64_t key, uintptr_t *out);
/* Removes a key, and writes its value into *out; `out` may be NULL.  Returns 1 if the map had the key, else 0. */
int weir__map_take(struct weir_map *map, uint64_t key, uintptr_t *out);

#endif
