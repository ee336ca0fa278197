/* SPDX-License-Identifier: MIT */
/* model_span.h: the address range of one pool.  The range is divided into spans, which say how each byte is used, and
 * into units of equal size, some of which have physical memory.
 *
 * The spans cover the range without gaps, and are in a list by address.  A span is one of these:
 *   used      a live block;
 *   pending   memory that was freed on a stream whose work may not be completed, in the queue of this stream;
 *   free      memory that every stream may use.  A free span is backed if all its units have physical memory.  The last
 *             span of a range is free, and ends far behind all memory that was ever used.
 * Physical memory is added and removed in units.  Adjacent pending spans of one stream merge, and adjacent free spans
 * merge.  So if a unit has no used or pending byte, the whole unit lies in one free span.
 *
 * These are the rules of placement, measured as the README here says.
 *   R1  best fit; among spans of equal size, the span that was freed first;
 *   R2  a block is cut from the start of its span;
 *   R3  the model tries the stream's own pending spans, then backed free spans; no block covers spans of both kinds;
 *   R4  then the model tries pending spans of other streams: first the spans whose free is ordered before the request,
 *       then the spans whose work is completed.  The model tries the streams in the order of their first requests.  For
 *       each stream it tries the best fit and, if that span may not be used, the oldest usable span that fits;
 *   R5  then all completed pending spans become free: streams in the order of R4, and a stream's last freed span first;
 *   R6  last, the pool grows: the best fit is among all free spans, backed or not.  Units of the block that lack memory
 *       get the memory of units in other free spans, highest address first, and then new memory of the device;
 *   R7  if a block is cut from a pending span, the rest of the span keeps its stream and its place in the order of R5.
 */
#ifndef WEIR_MODEL_SPAN_H
#define WEIR_MODEL_SPAN_H

#include "driver/model/model_inside.h"

enum model_span_kind { SPAN_USED, SPAN_PENDING, SPAN_FREE };

struct model_span {
    /* Must be the first member.  Links a pending or free span into a tree by size, then by time of insertion. */
    struct model_block block;
    struct model_span *prev, *next; /* links in the list of all spans, sorted by address */
    uint64_t offset, size;
    enum model_span_kind kind;
    int backed;
    /* The members below are for pending spans. */
    struct model_queue *queue;
    /* Links in the stream's queue of freed spans; the oldest was freed first. */
    struct model_span *older, *newer;
    /* The stream's operation that freed the span, and the virtual time when all work before the free is completed. */
    uint64_t seq, end_ns;
};

/* The pending spans of one stream. */
struct model_queue {
    uint64_t stream_id; /* the stream may be destroyed */
    int device;
    int is_stream_destroyed; /* set if the stream was destroyed; the queue is then removed once it is empty */
    uint64_t begun; /* the number of the stream's last launch (a kernel, a fill or a copy) */
    struct model_node *spans;
    struct model_span *oldest, *newest;
    struct model_queue *next;
};

struct model_range {
    int file;      /* the descriptor of the file with the memory, or -1 if no file has the memory */
    char *base;    /* the address of the first span, a multiple of the unit */
    char *mapping; /* the start of the reserved host addresses */
    size_t mapping_bytes;
    uint64_t bytes, unit;
    unsigned char *has_memory; /* for each unit: 1 if the unit has physical memory, else 0 */
    uint64_t units;            /* the number of units with physical memory */
    uint64_t top;              /* the number of units up to the last one with physical memory */
    uint64_t movable_units; /* the units with physical memory that lie completely in free spans */
    /* The number that the last inserted span got.  Among spans of equal size, the lowest number is used first. */
    uint64_t turn;
    struct model_span *first, *last;
    /* The free spans that completely have physical memory (`backed`), and all other free spans (`partial`). */
    struct model_node *backed, *partial;
    struct model_queue *queues; /* one for each stream, in the order of their first requests */
    struct model_span *spare_spans;
    struct model_queue *spare_queues;
};

/* Reserves up to `bytes` bytes of host addresses for a pool.  With `is_shared`, other processes can map the memory.
 * Returns 0 on success, else -1. */
int weir__model_range_open(struct model_range *range, uint64_t bytes, uint64_t unit, int is_shared);
void weir__model_range_close(struct model_range *range);
/* Allocates the structs for the next operation, so that it cannot fail halfway.  Returns 0 on success, else -1. */
int weir__model_range_allocate_spares(struct model_range *range);

/* Returns the smallest span of a tree that has at least `bytes` bytes, or NULL. */
struct model_span *weir__model_range_fit(struct model_node *tree, uint64_t bytes);
/* Cuts a block from `span` and, if necessary, the spans behind it.  The block's units must have physical memory. */
struct model_span *weir__model_range_cut(struct model_range *range, struct model_span *span,
                                         uint64_t bytes);
/* Returns the number of units without physical memory in a block of `bytes` bytes at the start of `span`. */
uint64_t weir__model_range_missing_units(const struct model_range *range,
                                         const struct model_span *span, uint64_t bytes);
/* Returns the number of units in free spans whose physical memory could move into a block at the start of `span`. */
uint64_t weir__model_range_movable_units(const struct model_range *range,
                                         const struct model_span *span, uint64_t bytes);
/* Cuts a block from a free span, and maps the missing memory.  Sets *moved to the number of units of physical memory
 * that the block gets from other free spans.  On failure returns NULL and changes nothing. */
struct model_span *weir__model_range_grow(struct model_range *range, struct model_span *span,
                                          uint64_t bytes, uint64_t *moved);
/* Adds `units` units of memory at the start of the free span that best fits `bytes`.  Returns 0, or -1 if unchanged. */
int weir__model_range_add(struct model_range *range, uint64_t bytes, uint64_t units);

/* Frees the span of a block.  Every stream may reuse the span immediately. */
void weir__model_range_free(struct model_range *range, struct model_span *span);
/* Frees the span of a block on a stream, as operation `seq`.  The work before the free is completed at `end_ns`. */
void weir__model_range_defer(struct model_range *range, struct model_span *span, uint64_t stream_id,
                             int device, uint64_t seq, uint64_t end_ns);
/* Records that operation `seq` of the stream is a launch whose work begins at `begin_ns`.  Spans that were freed on the
 * stream after its previous launch are not completed before `begin_ns`. */
void weir__model_range_begin(struct model_range *range, uint64_t stream_id, uint64_t seq,
                             uint64_t begin_ns);
/* Makes a queue's spans that are completed at `now_ns` free for all streams.  May remove a destroyed stream's queue. */
void weir__model_range_free_completed(struct model_range *range, struct model_queue *queue,
                                      uint64_t now_ns);
/* Makes spans that were freed up to operation `seq` free for all streams.  May remove a destroyed stream's queue. */
void weir__model_range_free_up_to(struct model_range *range, struct model_queue *queue,
                                  uint64_t seq);
/* Records a stream at its first request. */
void weir__model_range_add_stream(struct model_range *range, uint64_t stream_id, int device);
/* Called when a stream is destroyed.  Makes its spans that are completed at `now_ns` free for all streams. */
void weir__model_range_end_stream(struct model_range *range, uint64_t stream_id, uint64_t now_ns);
/* Unmaps the memory of up to `units` free units, highest address first.  Returns the number of unmapped units. */
uint64_t weir__model_range_shrink(struct model_range *range, uint64_t units);

/* Checks the data of the range.  Returns NULL, or a text about the first error. */
const char *weir__model_range_check(const struct model_range *range);

#endif
