/* SPDX-License-Identifier: MIT */
/* model_span.c: the spans and units of a pool's address range; model_span.h has the rules of placement.  Operations
 * map memory first, since only this step can fail.  weir__model_range_allocate_spares() allocates structs before. */
#include "driver/model/model_span.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- Structs ---- */

int weir__model_range_allocate_spares(struct model_range *range) {
    if (!range->spare_spans || !range->spare_spans->next) {
        struct model_span *span = calloc(1, sizeof *span);

        if (!span)
            return -1;
        span->next = range->spare_spans;
        range->spare_spans = span;
    }
    if (!range->spare_queues) {
        range->spare_queues = calloc(1, sizeof *range->spare_queues);
        if (!range->spare_queues)
            return -1;
    }
    return 0;
}

static struct model_span *allocate_span_struct(struct model_range *range) {
    struct model_span *span = range->spare_spans;

    range->spare_spans = span->next;
    memset(span, 0, sizeof *span);
    return span;
}

static void free_span_struct(struct model_range *range, struct model_span *span) {
    span->next = range->spare_spans;
    range->spare_spans = span;
}

/* ---- spans by address ---- */

static void link_behind(struct model_range *range, struct model_span *span,
                        struct model_span *prev) {
    span->prev = prev;
    span->next = prev ? prev->next : range->first;
    if (span->next)
        span->next->prev = span;
    else
        range->last = span;
    if (prev)
        prev->next = span;
    else
        range->first = span;
}

static void unlink_span(struct model_range *range, struct model_span *span) {
    if (span->prev)
        span->prev->next = span->next;
    else
        range->first = span->next;
    if (span->next)
        span->next->prev = span->prev;
    else
        range->last = span->prev;
}

/* ---- Units ---- */

static uint64_t first_unit_inside(const struct model_range *range, uint64_t from) {
    return (from + range->unit - 1) / range->unit;
}

/* Returns the number of units with physical memory that lie completely in [from, to). */
static uint64_t count_memory(const struct model_range *range, uint64_t from, uint64_t to) {
    uint64_t unit = first_unit_inside(range, from), end = to / range->unit, count = 0;

    for (end = end < range->top ? end : range->top; unit < end; unit++)
        count += range->has_memory[unit];
    return count;
}

static uint64_t count_movable_units(const struct model_range *range,
                                    const struct model_span *span) {
    uint64_t first = first_unit_inside(range, span->offset);
    uint64_t end = (span->offset + span->size) / range->unit;

    if (span->backed)
        return end > first ? end - first : 0;
    return count_memory(range, span->offset, span->offset + span->size);
}

/* Returns 1 if all units that overlap [from, to) have physical memory, else 0. */
static int is_backed(const struct model_range *range, uint64_t from, uint64_t to) {
    uint64_t unit;

    for (unit = from / range->unit; unit * range->unit < to; unit++)
        if (unit >= range->top || !range->has_memory[unit])
            return 0;
    return 1;
}

/* Changes the protection of memory.  mprotect would be slow under Valgrind.  Returns 0 on success, else -1. */
static int remap(struct model_range *range, char *base, uint64_t bytes, int protection) {
    int kind = range->file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    off_t place = range->file >= 0 ? (off_t)(base - range->mapping) : 0;

    return mmap(base, bytes, protection, kind | MAP_FIXED | MAP_NORESERVE, range->file, place) ==
                   MAP_FAILED
               ? -1
               : 0;
}

static int map_units(struct model_range *range, uint64_t first, uint64_t count) {
    return remap(range, range->base + first * range->unit, count * range->unit, MODEL_ACCESSIBLE);
}

/* Discards the memory of `count` units, so that a later access is a memory fault. */
static void unmap_units(struct model_range *range, uint64_t first, uint64_t count) {
    char *base = range->base + first * range->unit;

    (void)!remap(range, base, count * range->unit, PROT_NONE);
    if (range->file >= 0)
        (void)!fallocate(range->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         (off_t)(base - range->mapping), (off_t)(count * range->unit));
}

/* ---- Trees and queues ---- */

static struct model_node **tree_of(struct model_range *range, const struct model_span *span) {
    if (span->kind == SPAN_PENDING)
        return &span->queue->spans;
    return span->backed ? &range->backed : &range->partial;
}

static void add_to_span_tree(struct model_range *range, struct model_span *span) {
    span->block.node.key = span->size;
    span->block.node.tie = ++range->turn;
    weir__model_tree_insert(tree_of(range, span), &span->block.node);
    if (span->kind == SPAN_FREE)
        range->movable_units += count_movable_units(range, span);
}

static void remove_from_span_tree(struct model_range *range, struct model_span *span) {
    weir__model_tree_remove(tree_of(range, span), &span->block.node);
    if (span->kind == SPAN_FREE)
        range->movable_units -= count_movable_units(range, span);
}

static struct model_queue *queue_for(struct model_range *range, uint64_t stream_id, int device) {
    struct model_queue **link, *queue;

    for (link = &range->queues; *link; link = &(*link)->next)
        if ((*link)->stream_id == stream_id)
            return *link;
    queue = range->spare_queues;
    range->spare_queues = queue->next;
    memset(queue, 0, sizeof *queue);
    queue->stream_id = stream_id;
    queue->device = device;
    *link = queue;
    return queue;
}

void weir__model_range_add_stream(struct model_range *range, uint64_t stream_id, int device) {
    queue_for(range, stream_id, device);
}

static void drop_queue_if_done(struct model_range *range, struct model_queue *queue) {
    struct model_queue **link = &range->queues;

    if (queue->oldest || !queue->is_stream_destroyed)
        return;
    while (*link != queue)
        link = &(*link)->next;
    *link = queue->next;
    queue->next = range->spare_queues;
    range->spare_queues = queue;
}

static void enqueue(struct model_span *span) {
    struct model_queue *queue = span->queue;

    span->newer = NULL;
    span->older = queue->newest;
    if (span->older)
        span->older->newer = span;
    else
        queue->oldest = span;
    queue->newest = span;
}

static void dequeue(struct model_span *span) {
    struct model_queue *queue = span->queue;

    if (span->older)
        span->older->newer = span->newer;
    else
        queue->oldest = span->newer;
    if (span->newer)
        span->newer->older = span->older;
    else
        queue->newest = span->older;
}

/* Replaces `span` in the stream's queue by `rest`, which was cut off from `span`. */
static void enqueue_rest(struct model_span *rest, const struct model_span *span) {
    rest->queue = span->queue;
    rest->seq = span->seq;
    rest->end_ns = span->end_ns;
    rest->older = span->older;
    rest->newer = span->newer;
    if (rest->older)
        rest->older->newer = rest;
    else
        rest->queue->oldest = rest;
    if (rest->newer)
        rest->newer->older = rest;
    else
        rest->queue->newest = rest;
}

/* ---- Opening and closing ---- */

/* Maps a new file into the range, so that other processes can map its memory.  Returns 0 on success, else -1. */
static int back_by_file(struct model_range *range) {
    range->file = weir__model_ipc_file(range->mapping_bytes);
    return range->file >= 0 &&
                   mmap(range->mapping, range->mapping_bytes, PROT_NONE,
                        MAP_SHARED | MAP_FIXED | MAP_NORESERVE, range->file, 0) != MAP_FAILED
               ? 0
               : -1;
}

int weir__model_range_open(struct model_range *range, uint64_t bytes, uint64_t unit,
                           int is_shared) {
    uint64_t wanted = bytes;
    void *mapping = MAP_FAILED;

    memset(range, 0, sizeof *range);
    range->file = -1;
    for (;; bytes = bytes / 2 / unit * unit) {
        if (bytes < unit)
            return -1;
        mapping =
            mmap(NULL, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapping == MAP_FAILED)
            continue;
        if (bytes == wanted)
            break;
        /* The process has a limit for its address space (ulimit -v).  The range uses half of the available space. */
        wanted = bytes / 2 / unit * unit;
        wanted = wanted < unit ? unit : wanted;
        munmap(mapping, bytes + unit);
        bytes = 2 * wanted;
    }
    range->mapping = mapping;
    range->mapping_bytes = bytes + unit;
    range->base = range->mapping + ((unit - ((uintptr_t)range->mapping & (unit - 1))) & (unit - 1));
    range->bytes = bytes;
    range->unit = unit;
    range->has_memory = calloc(bytes / unit, 1);
    if (!range->has_memory || weir__model_range_allocate_spares(range) != 0 ||
        (is_shared && back_by_file(range) != 0)) {
        weir__model_range_close(range);
        return -1;
    }
    link_behind(range, allocate_span_struct(range), NULL);
    range->first->size = bytes;
    range->first->kind = SPAN_FREE;
    add_to_span_tree(range, range->first);
    return 0;
}

void weir__model_range_close(struct model_range *range) {
    struct model_span *lists[2] = {range->first, range->spare_spans}, *next_span;
    struct model_queue *queues[2] = {range->queues, range->spare_queues}, *next_queue;
    int i;

    for (i = 0; i < 2; i++) {
        for (; lists[i]; lists[i] = next_span) {
            next_span = lists[i]->next;
            free(lists[i]);
        }
        for (; queues[i]; queues[i] = next_queue) {
            next_queue = queues[i]->next;
            free(queues[i]);
        }
    }
    free(range->has_memory);
    munmap(range->mapping, range->mapping_bytes);
    if (range->file >= 0)
        close(range->file);
    memset(range, 0, sizeof *range);
}

/* ---- Taking ---- */

struct model_span *weir__model_range_fit(struct model_node *tree, uint64_t bytes) {
    return (struct model_span *)(void *)weir__model_tree_ceiling(tree, bytes, 0);
}

/* Shortens a span to `bytes` bytes, and adds the rest to a tree.  `span` must be in no tree. */
static void split_off_rest(struct model_range *range, struct model_span *span, uint64_t bytes) {
    struct model_span *rest;

    if (span->size == bytes) {
        if (span->kind == SPAN_PENDING)
            dequeue(span);
        return;
    }
    rest = allocate_span_struct(range);
    rest->offset = span->offset + bytes;
    rest->size = span->size - bytes;
    rest->kind = span->kind;
    rest->backed = span->backed || is_backed(range, rest->offset, rest->offset + rest->size);
    if (span->kind == SPAN_PENDING)
        enqueue_rest(rest, span);
    span->size = bytes;
    link_behind(range, rest, span);
    add_to_span_tree(range, rest);
}

static void mark_span_used(struct model_range *range, struct model_span *span) {
    struct model_queue *queue = span->kind == SPAN_PENDING ? span->queue : NULL;

    span->kind = SPAN_USED;
    span->backed = 1;
    span->queue = NULL;
    if (queue)
        drop_queue_if_done(range, queue);
}

struct model_span *weir__model_range_cut(struct model_range *range, struct model_span *span,
                                         uint64_t bytes) {
    struct model_span *part = span, *next;

    for (uint64_t rest = bytes, cut; rest > 0; rest -= cut, part = next) {
        next = part->next;
        cut = part->size < rest ? part->size : rest;
        remove_from_span_tree(range, part);
        split_off_rest(range, part, cut);
        mark_span_used(range, part);
        if (part != span) {
            unlink_span(range, part);
            free_span_struct(range, part);
        }
    }
    span->size = bytes;
    return span;
}

uint64_t weir__model_range_missing_units(const struct model_range *range,
                                         const struct model_span *span, uint64_t bytes) {
    uint64_t unit, count = 0;

    for (unit = span->offset / range->unit; unit * range->unit < span->offset + bytes; unit++)
        count += unit >= range->top || !range->has_memory[unit];
    return count;
}

uint64_t weir__model_range_movable_units(const struct model_range *range,
                                         const struct model_span *span, uint64_t bytes) {
    return range->movable_units - count_movable_units(range, span) +
           count_memory(range, span->offset + bytes, span->offset + span->size);
}

/* Discards the memory of up to `units` units of a free span, highest address first.  Returns their number. */
static uint64_t unmap_loose_units(struct model_range *range, struct model_span *span,
                                  uint64_t units) {
    uint64_t first = first_unit_inside(range, span->offset);
    uint64_t unit = (span->offset + span->size) / range->unit, stripped = 0;
    uint64_t turn = span->block.node.tie;

    if (unit > range->top)
        unit = range->top;
    weir__model_tree_remove(tree_of(range, span), &span->block.node);
    while (stripped < units && unit > first)
        if (range->has_memory[--unit]) {
            range->has_memory[unit] = 0;
            unmap_units(range, unit, 1);
            stripped++;
        }
    span->backed = 0;
    span->block.node.tie = turn; /* the span keeps its place among spans of equal size */
    weir__model_tree_insert(tree_of(range, span), &span->block.node);
    range->movable_units -= stripped;
    return stripped;
}

uint64_t weir__model_range_shrink(struct model_range *range, uint64_t units) {
    struct model_span *span;
    uint64_t stripped = 0;

    for (span = range->last; span && range->movable_units > 0 && stripped < units;
         span = span->prev)
        if (span->kind == SPAN_FREE && count_movable_units(range, span) > 0)
            stripped += unmap_loose_units(range, span, units - stripped);
    range->units -= stripped;
    while (range->top > 0 && !range->has_memory[range->top - 1])
        range->top--;
    return stripped;
}

/* Maps memory for all units in [from, to) that have none.  On failure, returns -1 and leaves them without memory. */
static int map_missing(struct model_range *range, uint64_t from, uint64_t to) {
    uint64_t unit, start = from / range->unit, end = first_unit_inside(range, to);

    for (unit = start; unit < end; unit++)
        if ((unit >= range->top || !range->has_memory[unit]) && map_units(range, unit, 1) != 0)
            break;
    if (unit == end)
        return 0;
    while (unit-- > start)
        if (unit >= range->top || !range->has_memory[unit])
            unmap_units(range, unit, 1);
    return -1;
}

static void set_units_have_memory(struct model_range *range, uint64_t from, uint64_t to) {
    uint64_t unit, end = first_unit_inside(range, to);

    for (unit = from / range->unit; unit < end; unit++) {
        range->units += unit >= range->top || !range->has_memory[unit];
        range->has_memory[unit] = 1;
    }
    if (range->top < end)
        range->top = end;
}

/* Maps memory for the block first, because only this step can fail. */
struct model_span *weir__model_range_grow(struct model_range *range, struct model_span *span,
                                          uint64_t bytes, uint64_t *moved) {
    uint64_t lacks = weir__model_range_missing_units(range, span, bytes),
             end = span->offset + bytes;
    struct model_span *rest;

    if (map_missing(range, span->offset, end) != 0)
        return NULL;
    remove_from_span_tree(range, span);
    split_off_rest(range, span, bytes);
    mark_span_used(range, span);
    *moved = weir__model_range_shrink(range, lacks);
    set_units_have_memory(range, span->offset, end);
    rest = span->next;
    if (rest && rest->kind == SPAN_FREE) {
        remove_from_span_tree(range, rest);
        rest->backed = is_backed(range, rest->offset, rest->offset + rest->size);
        add_to_span_tree(range, rest);
    }
    return span;
}

/* The span stays in the tree `partial`, because it still has too little memory. */
int weir__model_range_add(struct model_range *range, uint64_t bytes, uint64_t units) {
    struct model_span *span = weir__model_range_fit(range->partial, bytes);
    uint64_t end, left = units;

    if (!span || weir__model_range_missing_units(range, span, bytes) <= units)
        return -1;
    for (end = span->offset / range->unit; left > 0; end++)
        left -= end >= range->top || !range->has_memory[end];
    if (map_missing(range, span->offset, end * range->unit) != 0)
        return -1;
    range->movable_units -= count_movable_units(range, span);
    set_units_have_memory(range, span->offset, end * range->unit);
    range->movable_units += count_movable_units(range, span);
    return 0;
}

/* ---- Freeing ---- */

static int must_merge(const struct model_span *a, const struct model_span *b) {
    return a->kind == b->kind && (a->kind != SPAN_PENDING || a->queue == b->queue);
}

/* Merges the span `from` into the adjacent span `span`, which the caller has removed from its tree. */
static void merge_span(struct model_range *range, struct model_span *span,
                       struct model_span *from) {
    remove_from_span_tree(range, from);
    if (from->kind == SPAN_PENDING)
        dequeue(from);
    if (from->offset < span->offset)
        span->offset = from->offset;
    span->size += from->size;
    span->backed &= from->backed;
    unlink_span(range, from);
    free_span_struct(range, from);
}

/* Merges a span with adjacent spans of its new kind, and adds the result to a tree. */
static void merge_and_add(struct model_range *range, struct model_span *span) {
    if (span->next && must_merge(span, span->next))
        merge_span(range, span, span->next);
    if (span->prev && must_merge(span, span->prev))
        merge_span(range, span, span->prev);
    add_to_span_tree(range, span);
    if (span->kind == SPAN_PENDING)
        enqueue(span);
}

void weir__model_range_free(struct model_range *range, struct model_span *span) {
    span->kind = SPAN_FREE;
    merge_and_add(range, span);
}

void weir__model_range_defer(struct model_range *range, struct model_span *span, uint64_t stream_id,
                             int device, uint64_t seq, uint64_t end_ns) {
    span->kind = SPAN_PENDING;
    span->queue = queue_for(range, stream_id, device);
    span->seq = seq;
    span->end_ns = end_ns;
    if (span->queue->newest && end_ns < span->queue->newest->end_ns)
        span->end_ns = span->queue->newest->end_ns;
    merge_and_add(range, span);
}

static struct model_queue *find_queue(const struct model_range *range, uint64_t stream_id) {
    struct model_queue *queue = range->queues;

    while (queue && queue->stream_id != stream_id)
        queue = queue->next;
    return queue;
}

void weir__model_range_begin(struct model_range *range, uint64_t stream_id, uint64_t seq,
                             uint64_t begin_ns) {
    struct model_queue *queue = find_queue(range, stream_id);
    struct model_span *span = queue ? queue->newest : NULL;

    for (; span && span->seq > queue->begun; span = span->older)
        if (span->end_ns < begin_ns)
            span->end_ns = begin_ns;
    if (queue)
        queue->begun = seq;
}

/* Makes `span` and all older spans of a queue free for every stream. */
static void free_pending_from(struct model_range *range, struct model_queue *queue,
                              struct model_span *span) {
    while (span) {
        struct model_span *older = span->older;

        remove_from_span_tree(range, span);
        dequeue(span);
        span->queue = NULL;
        weir__model_range_free(range, span);
        span = older;
    }
    drop_queue_if_done(range, queue);
}

void weir__model_range_free_completed(struct model_range *range, struct model_queue *queue,
                                      uint64_t now_ns) {
    struct model_span *span = queue->newest;

    while (span && span->end_ns > now_ns)
        span = span->older;
    free_pending_from(range, queue, span);
}

void weir__model_range_free_up_to(struct model_range *range, struct model_queue *queue,
                                  uint64_t seq) {
    struct model_span *span = queue->newest;

    while (span && span->seq > seq)
        span = span->older;
    free_pending_from(range, queue, span);
}

void weir__model_range_end_stream(struct model_range *range, uint64_t stream_id, uint64_t now_ns) {
    struct model_queue *queue = find_queue(range, stream_id);

    if (queue) {
        weir__model_range_free_completed(range, queue, now_ns);
        queue->is_stream_destroyed = 1;
        drop_queue_if_done(range, queue);
    }
}

/* ---- Checking ---- */

static const char *check_span(const struct model_range *range, const struct model_span *span) {
    const struct model_span *next = span->next;

    if (next && (next->prev != span || span->offset + span->size != next->offset))
        return "spans have a gap or overlap";
    if (span->size == 0)
        return "a span is empty";
    if (next && span->kind != SPAN_USED && must_merge(span, next))
        return "neighbours that should have merged";
    if (span->backed != is_backed(range, span->offset, span->offset + span->size) &&
        (span->kind != SPAN_FREE || span->backed))
        return "a span's memory is not what it says";
    if (span->kind != SPAN_USED && span->block.node.key != span->size)
        return "a span is shelved under another size";
    if (span->kind == SPAN_PENDING && !span->queue)
        return "a pending span without a queue";
    return NULL;
}

static const char *check_queue(const struct model_queue *queue) {
    const struct model_span *span;

    if (!queue->oldest && queue->is_stream_destroyed)
        return "an empty queue of a stream that is gone";
    for (span = queue->oldest; span; span = span->newer) {
        if (span->kind != SPAN_PENDING || span->queue != queue)
            return "a span in a queue that is not its own";
        if (span->newer ? span->newer->older != span : queue->newest != span)
            return "a broken queue";
        if (span->newer && (span->newer->seq < span->seq || span->newer->end_ns < span->end_ns))
            return "a queue out of order";
    }
    return NULL;
}

const char *weir__model_range_check(const struct model_range *range) {
    uint64_t units = 0, movable = 0, unit;
    const struct model_queue *queue;
    const struct model_span *span;
    const char *wrong = NULL;

    if (range->first->offset != 0 || range->last->offset + range->last->size != range->bytes)
        return "spans do not cover the range";
    for (span = range->first; span && !wrong; span = span->next) {
        wrong = check_span(range, span);
        if (span->kind == SPAN_FREE)
            movable += count_memory(range, span->offset, span->offset + span->size);
    }
    for (queue = range->queues; queue && !wrong; queue = queue->next)
        wrong = check_queue(queue);
    for (unit = 0; unit < range->bytes / range->unit; unit++)
        units += range->has_memory[unit];
    if (!wrong && (units != range->units || movable != range->movable_units))
        wrong = "units miscounted";
    return wrong;
}
