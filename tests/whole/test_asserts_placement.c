/* SPDX-License-Identifier: MIT */
#include "tests/whole/test_asserts.h"

#include "placement/placement_state.h"

void plant_in_placement(struct weir_placement *p, int mistake) {
    struct chunk_set *set = &p->clean.set;
    uint32_t id = 1;
    unsigned class;

    while (p->all.kind[id] != CLEAN)
        id++;
    class = chunk_class(p->all.chunk[id].size);
    p->total += mistake == 0;
    p->all.chunk[id].size -= mistake == 1;
    if (mistake == 2)
        set->first[class] = 0;
}
