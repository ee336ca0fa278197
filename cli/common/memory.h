/* SPDX-License-Identifier: MIT */
/* memory.h: functions for arrays that grow, and for maps whose values are allocated by malloc(3). */
#ifndef WEIR_CLI_MEMORY_H
#define WEIR_CLI_MEMORY_H

#include <stdlib.h>
#include <string.h>

#include "base/map.h"

/* Makes an array large enough for one more element.  `array' is the address of a pointer to it.  Returns 0 if there is
 * no host memory, and then leaves the array unchanged. */
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

/* Removes all entries of the map and frees their values. */
static inline void memory_free_values(struct weir_map *map) {
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].key)
            free((void *)map->slots[i].value);
    weir__map_clear(map);
}

#endif
