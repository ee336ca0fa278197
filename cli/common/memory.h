/* SPDX-License-Identifier: MIT */
/* memory.h: arrays that grow, and maps whose values are allocated. */
#ifndef WEIR_CLI_MEMORY_H
#define WEIR_CLI_MEMORY_H

#include <stdlib.h>
#include <string.h>

#include "base/map.h"

/* Makes room for one more element in an array.  `array' points to the pointer to the first element.  The array has
 * room for *room elements, and `used' of them are in use.  Returns 1 on success.  If there is no host memory,
 * returns 0 and leaves the array unchanged. */
static inline int memory_make_room(void *array, size_t *room, size_t used, size_t element) {
    size_t more = *room ? *room * 2 : 64;
    void *memory;

    if (used < *room)
        return 1;
    memcpy(&memory, array, sizeof memory);
    memory = reallocarray(memory, more, element);
    if (!memory)
        return 0;
    memcpy(array, &memory, sizeof memory);
    *room = more;
    return 1;
}

/* Clears the map, and frees the values. */
static inline void memory_free_values(struct weir_map *map) {
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].key)
            free((void *)map->slots[i].value);
    weir__map_clear(map);
}

#endif
