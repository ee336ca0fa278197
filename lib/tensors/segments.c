/* SPDX-License-Identifier: MIT */
/* segments.c: adds segments of device memory to a private memory pool, removes segments, and finds free memory in
 * segments.
 *
 * The engine can keep a range of addresses for private memory pools only (weir__separate_addresses).  Adjacent segments
 * in this range join, so the placement (the records of free and used chunks) treats the whole range as one region.  In
 * the placement, addresses of the range without a segment are unmapped.  Each segment at another address is a region by
 * itself.
 *
 * The code in this file must not depend on the pools' users or on where segments come from.
 */
#include <string.h>

#include "base/assert.h"
#include "base/bounds.h"
#include "tensors/tensors_internal.h"

/* Returns 1 if the address lies in the range that the engine keeps for private memory pools, else 0. */
static int is_apart_address(const weir_tensors *t, uint64_t address) {
    return address - t->apart.base < t->apart.bytes;
}

/* Returns the number of segments that begin at or below the address. */
static size_t count_segments_up_to(const struct weir_tensor_part *part, uint64_t address) {
    size_t above = part->count, at;

    WEIR_FIND_FIRST(above, at, part->segments[at].base > address);
    return above;
}

const struct weir_tensor_segment *weir__part_segment(const struct weir_tensor_part *part,
                                                     uint64_t address) {
    size_t at = count_segments_up_to(part, address);

    return at > 0 && address - part->segments[at - 1].base < part->segments[at - 1].bytes
               ? &part->segments[at - 1]
               : NULL;
}

/* Returns 1 if segment number `i` is joined with segment number `i - 1`, else 0. */
static int is_joined(const weir_tensors *t, const struct weir_tensor_part *part, size_t i) {
    const struct weir_tensor_segment *s = &part->segments[i];

    return i > 0 && s[-1].base + s[-1].bytes == s->base && is_apart_address(t, s[-1].base);
}

struct weir_tensor_segment weir__part_run(const weir_tensors *t,
                                          const struct weir_tensor_part *part, uint64_t address) {
    size_t first = count_segments_up_to(part, address) - 1, end = first + 1;
    uint64_t base;

    while (is_joined(t, part, first))
        first--;
    while (end < part->count && is_joined(t, part, end))
        end++;
    base = part->segments[first].base;
    return (struct weir_tensor_segment){
        base, (size_t)(part->segments[end - 1].base + part->segments[end - 1].bytes - base)};
}

/* ---- placements --------------------------------------------------------------------------------- */

struct weir_placement *weir__part_placement(const weir_tensors *t, int part) {
    struct weir_placement_rule rule = {.granularity = WEIR_TENSORS_UNIT,
                                       .split_waste = WEIR_TENSORS_UNIT,
                                       .prefer_tagged = 1,
                                       .index = (unsigned)part};
    struct weir_placement *p;

    if (weir__placement_create(&rule, &p) != WEIR_PLACEMENT_OK)
        return NULL;
    if (t->apart.bytes == 0 ||
        weir__placement_add_unmapped(p, t->apart.base, t->apart.bytes) == WEIR_PLACEMENT_OK)
        return p;
    weir__placement_destroy(p);
    return NULL;
}

int weir__part_place(const weir_tensors *t, struct weir_placement *p,
                     const struct weir_tensor_part *part, struct weir_tensor_segment segment) {
    size_t below = count_segments_up_to(part, segment.base - 1);
    uint64_t unmapped = t->apart.base;

    if (!is_apart_address(t, segment.base))
        return weir__placement_add(p, segment.base, segment.bytes) == WEIR_PLACEMENT_OK;
    if (below > 0 && is_apart_address(t, part->segments[below - 1].base))
        unmapped = part->segments[below - 1].base + part->segments[below - 1].bytes;
    return weir__placement_fill(p, unmapped, segment.base, segment.bytes, NULL, 0) ==
           WEIR_PLACEMENT_OK;
}

/* Returns 1 if the segments of this part of a pool are sorted by address, do not overlap, and have `part->bytes`
 * bytes in total.  Otherwise returns 0. */
static WEIR_ASSERT_ONLY int are_segments_valid(const struct weir_tensor_part *part) {
    size_t bytes = 0;

    for (size_t i = 0; i < part->count; i++) {
        const struct weir_tensor_segment *s = &part->segments[i];

        if (s->bytes == 0 || (i > 0 && s[-1].base + s[-1].bytes > s->base))
            return 0;
        bytes += s->bytes;
    }
    return bytes == part->bytes;
}

/* ---- adding and removing segments --------------------------------------------------------------- */

int weir__part_add(const weir_tensors *t, struct weir_tensor_part *part,
                   struct weir_tensor_segment segment) {
    struct weir_tensor_segment *moved =
        weir__hostmem_room(part->segments, part->count, &part->room, sizeof *part->segments);
    size_t at;

    if (!moved)
        return 0;
    part->segments = moved;
    if (!weir__part_place(t, part->placement, part, segment))
        return 0;
    at = count_segments_up_to(part, segment.base);
    memmove(&moved[at + 1], &moved[at], (part->count - at) * sizeof *moved);
    moved[at] = segment;
    part->count++;
    part->bytes += segment.bytes;
    WEIR_ASSERT(are_segments_valid(part));
    return 1;
}

/* Removes a segment from the placement (the records of free and used chunks).  Returns 1 on success, 0 if the
 * segment contains a live block, or memory that only some streams may reuse. */
static int remove_segment(const weir_tensors *t, const struct weir_tensor_part *part,
                          const struct weir_tensor_segment *segment) {
    struct weir_placement_span span = {0};

    if (!is_apart_address(t, segment->base))
        return weir__placement_remove(part->placement, segment->base) == WEIR_PLACEMENT_OK;
    while (weir__placement_next(part->placement, &span))
        if (span.address + span.size >= segment->base + segment->bytes)
            return !span.live && !span.unmapped && span.sequence == 0 &&
                   span.address <= segment->base &&
                   weir__placement_unmap(part->placement, span.address, segment->base,
                                         segment->bytes) == WEIR_PLACEMENT_OK;
    return 0;
}

int weir__part_remove_free(const weir_tensors *t, struct weir_tensor_part *part,
                           struct weir_tensor_segment *out) {
    for (size_t i = count_segments_up_to(part, out->base); i < part->count; i++) {
        if (!remove_segment(t, part, &part->segments[i]))
            continue;
        *out = part->segments[i];
        part->count--;
        memmove(&part->segments[i], &part->segments[i + 1],
                (part->count - i) * sizeof *part->segments);
        part->bytes -= out->bytes;
        WEIR_ASSERT(are_segments_valid(part));
        return 1;
    }
    return 0;
}

int weir__part_weight(const weir_tensors *t, const struct weir_tensor_part *part,
                      struct weir_tensor_segment segment) {
    size_t below = count_segments_up_to(part, segment.base - 1),
           above = count_segments_up_to(part, segment.base);
    const struct weir_tensor_segment *s = part->segments;
    int count = 1;

    if (!is_apart_address(t, segment.base))
        return 1;
    count -= below > 0 && s[below - 1].base + s[below - 1].bytes == segment.base;
    count -= above < part->count && s[above].base == segment.base + segment.bytes;
    return count;
}

/* ---- the end of the last segment ---------------------------------------------------------------- */

uint64_t weir__part_end(const weir_tensors *t, const struct weir_tensor_part *part) {
    const struct weir_tensor_segment *last;

    if (part->count == 0)
        return 0;
    /* Segments can join only in the range of addresses that the engine keeps for private memory pools.  This range
     * lies above all other addresses, so only the last segment can join a new one. */
    last = &part->segments[part->count - 1];
    return is_apart_address(t, last->base) ? last->base + last->bytes : 0;
}

size_t weir__part_free_tail(const struct weir_tensor_part *part, uint64_t name, uint64_t end) {
    struct weir_placement_span span = {0};
    uint64_t last = 0; /* the end of the last chunk that is not an unmapped range */
    size_t bytes = 0;

    while (weir__placement_next(part->placement, &span)) {
        if (span.unmapped)
            continue;
        if (span.live || (span.sequence > 0 && span.stream != name))
            bytes = 0;
        else
            bytes = (span.address == last ? bytes : 0) + span.size;
        last = span.address + span.size;
    }
    return last == end ? bytes : 0;
}
