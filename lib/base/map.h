/* SPDX-License-Identifier: MIT */
/* map.h: a hash map from a 64-bit key, such as the address of a block, to one value of pointer size.
 *
 * The map uses open addressing with linear probing and backward-shift deletion.  A quarter to a half of its slots are
 * in use.  The map is not thread-safe, and never frees what a value points to. */
#ifndef WEIR_MAP_H
#define WEIR_MAP_H

#include <stddef.h>
#include <stdint.h>

struct weir_map {
    struct weir_map_slot *slots; /* an array of `capacity` slots, or NULL if the map is empty */
    size_t capacity;             /* the number of slots: a power of two, or 0 */
    size_t count;
};

struct weir_map_slot {
    uint64_t key; /* for example the address of a block; 0 if the slot is free */
    uintptr_t value;
};

/* Removes all entries and frees the memory of the map.  A map whose bytes are all 0 is empty. */
void weir__map_clear(struct weir_map *map);
/* Stores a value for a key, which is not 0.  Returns 1, or 0 without host memory.  Replacing a value never fails. */
int weir__map_put(struct weir_map *map, uint64_t key, uintptr_t value);
/* Allocates memory for `more` new keys, so that weir__map_put() cannot fail.  Returns 1, or 0 without host memory. */
int weir__map_reserve(struct weir_map *map, size_t more);
/* Writes the value of a key to *out; `out` may be NULL.  Returns 1 if the map has the key, else 0. */
int weir__map_get(const struct weir_map *map, uint64_t key, uintptr_t *out);
/* Removes a key, and writes its value to *out; `out` may be NULL.  Returns 1 if the map had the key, else 0. */
int weir__map_remove(struct weir_map *map, uint64_t key, uintptr_t *out);

#endif
