/* SPDX-License-Identifier: MIT */
/* map.c: a hash map from 64-bit keys to values (map.h). */
#include "base/map.h"

#include <stdlib.h>

#include "base/assert.h"

enum { FIRST_CAPACITY = 64 };

/* Returns the slot at which the search for a key begins.  Many keys are multiples of 256, such as addresses.  A
 * multiplicative hash (Knuth, TAOCP 6.4) distributes them evenly. */
static size_t first_slot_of(const struct weir_map *map, uint64_t key) {
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (map->capacity - 1);
}

/* Returns the slot of the key or, if the map does not have it, the free slot for it. */
static size_t find_slot(const struct weir_map *map, uint64_t key) {
    size_t at = first_slot_of(map, key);

    while (map->slots[at].key != 0 && map->slots[at].key != key)
        at = (at + 1) & (map->capacity - 1);
    return at;
}

static int grow_map(struct weir_map *map) {
    struct weir_map larger = {NULL, map->capacity ? map->capacity * 2 : FIRST_CAPACITY, map->count};
    size_t copied = 0;

    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (!larger.slots)
        return 0;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].key) {
            larger.slots[find_slot(&larger, map->slots[i].key)] = map->slots[i];
            copied++;
        }
    WEIR_ASSERT(copied == map->count);
    free(map->slots);
    *map = larger;
    return 1;
}

void weir__map_clear(struct weir_map *map) {
    free(map->slots);
    *map = (struct weir_map){0};
}

int weir__map_reserve(struct weir_map *map, size_t more) {
    while (2 * (map->count + more) > map->capacity)
        if (!grow_map(map))
            return 0;
    return 1;
}

int weir__map_put(struct weir_map *map, uint64_t key, uintptr_t value) {
    size_t at = map->capacity > 0 ? find_slot(map, key) : 0;

    if (map->capacity > 0 && map->slots[at].key == key) {
        map->slots[at].value = value;
        return 1;
    }
    if (2 * (map->count + 1) > map->capacity) {
        if (!weir__map_reserve(map, 1))
            return 0;
        at = find_slot(map, key);
    }
    map->slots[at] = (struct weir_map_slot){key, value};
    map->count++;
    return 1;
}

int weir__map_get(const struct weir_map *map, uint64_t key, uintptr_t *out) {
    size_t at;

    if (map->count == 0)
        return 0;
    at = find_slot(map, key);
    if (map->slots[at].key == 0)
        return 0;
    if (out)
        *out = map->slots[at].value;
    return 1;
}

int weir__map_remove(struct weir_map *map, uint64_t key, uintptr_t *out) {
    size_t mask = map->capacity - 1;
    size_t gap;

    if (!weir__map_get(map, key, out))
        return 0;
    gap = find_slot(map, key);
    /* Moves each later entry into the gap, except an entry whose hash selects a slot behind the gap. */
    for (size_t at = (gap + 1) & mask; map->slots[at].key; at = (at + 1) & mask) {
        size_t home = first_slot_of(map, map->slots[at].key);

        if (((at - home) & mask) >= ((at - gap) & mask)) {
            map->slots[gap] = map->slots[at];
            gap = at;
        }
    }
    map->slots[gap] = (struct weir_map_slot){0, 0};
    map->count--;
    return 1;
}
