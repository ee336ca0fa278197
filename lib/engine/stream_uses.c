/* SPDX-License-Identifier: MIT */
/* stream_uses.c: implements stream_uses.h. */
#include "engine/stream_uses.h"

#include <stdlib.h>

void weir__uses_close(struct weir_uses *uses) {
    for (size_t i = 0; i < uses->map.capacity; i++)
        free((void *)uses->map.slots[i].value);
    weir__map_clear(&uses->map);
}

/* Sets WEIR_SLOW_PATH_USES if the map has entries, or else clears it.  The caller holds the lock. */
static void publish_uses(struct weir_uses *uses) {
    int some = uses->map.count > 0;

    if (weir__uses_any(uses) != some)
        (void)weir__slow_path_set(uses->paths, WEIR_SLOW_PATH_USES, some);
}

static int add_stream_use(struct weir_uses *uses, uint64_t block, weir_stream stream, uint64_t id) {
    uintptr_t known = 0;
    struct weir_use_list *list;
    size_t count;

    (void)weir__map_get(&uses->map, block, &known);
    list = (struct weir_use_list *)known;
    count = list ? list->count : 0;
    for (size_t i = 0; i < count; i++)
        if (list->use[i].stream == stream && list->use[i].id == id)
            return 1;
    if (!weir__map_reserve(&uses->map, 1))
        return 0;
    list = realloc(list, sizeof *list + (count + 1) * sizeof list->use[0]);
    if (!list)
        return 0;
    list->use[count] = (struct weir_use){.stream = stream, .id = id};
    list->count = count + 1;
    weir__map_put(&uses->map, block, (uintptr_t)list); /* cannot fail, since the map has room */
    return 1;
}

int weir__uses_add(struct weir_uses *uses, uint64_t block, weir_stream stream, uint64_t id) {
    int done;

    weir__lock_take(&uses->lock);
    done = add_stream_use(uses, block, stream, id);
    publish_uses(uses);
    weir__lock_give(&uses->lock);
    return done;
}

void weir__uses_remove(struct weir_uses *uses, uint64_t block) {
    uintptr_t list = 0;

    weir__lock_take(&uses->lock);
    weir__map_remove(&uses->map, block, &list);
    publish_uses(uses);
    weir__lock_give(&uses->lock);
    free((void *)list);
}

struct weir_use_list *weir__uses_detach(struct weir_uses *uses, uint64_t block) {
    uintptr_t value = 0;

    weir__lock_take(&uses->lock);
    /* Keeps the block's key, so that weir__uses_end_free() can add the list again without host memory. */
    if (weir__map_get(&uses->map, block, &value))
        weir__map_put(&uses->map, block, 0);
    weir__lock_give(&uses->lock);
    return (struct weir_use_list *)value;
}

void weir__uses_end_free(struct weir_uses *uses, uint64_t block, struct weir_use_list *list,
                         int freed) {
    uintptr_t since = 0;
    size_t kept = 0;

    weir__lock_take(&uses->lock);
    weir__map_get(&uses->map, block, &since);
    if (!freed) {
        for (size_t i = 0; i < list->count; i++)
            if (!list->use[i].refused)
                list->use[kept++] = list->use[i];
        list->count = kept;
        weir__map_put(&uses->map, block, (uintptr_t)list); /* cannot fail: the map has the key */
    } else if (since == 0) {
        weir__map_remove(&uses->map, block, NULL);
    }
    publish_uses(uses);
    weir__lock_give(&uses->lock);
    if (freed)
        free(list);
}
