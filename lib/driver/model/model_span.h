/* SPDX-License-Identifier: MIT */
/* model_span.h: the address range of one pool: the owner of each byte, and the units that have physical memory.
 *
 * Spans cover a range without gaps, in a list by address.  A span is
 *   used      a live block;
 *   pending   freed on a stream whose work may not be done: that stream's queue has it;
 *   free      for every stream.  It is backed, or some of its units have no physical memory.  The last span of a range
 *             is free and ends far behind all memory that was ever used.
 * Physical memory is added and freed in units.  Adjacent pending spans of one stream merge, and so do adjacent free
 * spans, so each unit without a used or pending byte lies in one free span.
 *
 * Rules of placement, found by comparing addresses and reserve with those of an H200 (driver 580.159.04) in six
 * recorded programs and eighteen synthetic loads of one to four streams.  Every reserve peak of a program agrees, and
 * so do all allocations of programs with one stream, and all 1.9 million allocations of the synthetic loads whose
 * results do not depend on timing (bench/results/model-h200-2026-11-21.txt).
 *   R1  best fit; among spans of equal size, the one that was freed first;
 *   R2  a block is cut from the start of its span;
 *   R3  a stream's own pending spans are tried first, then backed free spans; a run of both kinds is not used;
 *   R4  then pending spans of other streams: first those whose free the request is ordered after, then those whose work
 *       is completed.  Streams are tried in the order of their first requests.  From each stream: the best fit; if that
 *       span may not be used, the oldest usable span that is large enough;
 *   R5  then spans whose work is done become free, stream by stream in that order, latest freed first;
 *   R6  the pool grows last: best fit by address space over free spans, wholly backed or not; the units that the block
 *       lacks are moved from free spans, highest address first, then taken from the device;
 *   R7  the rest of a pending span that was cut keeps its stream, and its turn in R5.
 *
 * This file must not know devices, costs, attributes, or streams beyond their ids.
 */
#ifndef WEIR_MODEL_SPAN_H
#define WEIR_MODEL_SPAN_H

#include "driver/model/model_inside.h"

enum model_span_kind { SPAN_USED, SPAN_PENDING, SPAN_FREE };

struct model_span {
    /* Must be first.  Its node is in the tree of blocks, or in the tree of the kind by (size, turn). */
    struct model_block block;
    struct model_span *prev, *next; /* links in the list by address */
    uint64_t offset, size;
    enum model_span_kind kind;
    int backed;
    /* The members of a pending span: */
    struct model_queue *queue;
    struct model_span *older, *newer; /* links in the order of the last frees */
    uint64_t seq, end_ns; /* the operation of the last free, and the time when that is completed */
};

/* The pending spans of one stream. */
struct model_queue {
    uint64_t stream_id; /* the stream, which may have been destroyed */
    int device;         /* the device of the stream */
    int is_gone; /* set if the stream was destroyed; the model drops the queue once it is empty */
    uint64_t begun; /* the number of the stream's last operation that is work and has begun */
    struct model_node *spans;
    struct model_span *oldest, *newest;
    struct model_queue *next;
};

struct model_range {
    int file;      /* the file that has the memory from `mapping` on, or -1 */
    char *base;    /* the start of the spans, aligned to a unit */
    char *mapping; /* the start of the reserved address space */
    size_t mapping_bytes;
    uint64_t bytes, unit;
    unsigned char *has_memory; /* for each unit: 1 if the unit has memory */
    uint64_t units;            /* the number of units with memory */
    uint64_t top;              /* the first unit behind all units with memory */
    uint64_t loose;            /* the number of units with memory that lie wholly in free spans */
    uint64_t turn;             /* the last turn (R1) */
    struct model_span *first, *last;
    struct model_node *backed, *partial; /* free spans */
    struct model_queue *queues;          /* one for each stream, in the order of first requests */
    struct model_span *spare_spans;
    struct model_queue *spare_queues;
};

/* Reserves up to `bytes` bytes of address space, or fewer if the process has a limit.  If `is_shared` is set, the
 * memory is a file.  Returns 0 on success, else -1. */
int weir__model_range_open(struct model_range *range, uint64_t bytes, uint64_t unit, int is_shared);
void weir__model_range_close(struct model_range *range);
/* Allocates the host memory that the next operation may need, so that the operation cannot fail halfway.  Returns 0 on
 * success, else -1. */
int weir__model_range_provide(struct model_range *range);

/* Returns the smallest span of a tree that has at least `bytes` bytes, or NULL. */
struct model_span *weir__model_range_fit(struct model_node *tree, uint64_t bytes);
/* Cuts a block from `span` and, if `span` is too small, from the adjacent spans behind it.  The units of the block must
 * have memory. */
struct model_span *weir__model_range_take(struct model_range *range, struct model_span *span,
                                          uint64_t bytes);
/* Returns the number of units without memory in a block at the start of `span`. */
uint64_t weir__model_range_lacks(const struct model_range *range, const struct model_span *span,
                                 uint64_t bytes);
/* Returns the number of units whose memory could move to a block at the start of `span`. */
uint64_t weir__model_range_movable(const struct model_range *range, const struct model_span *span,
                                   uint64_t bytes);
/* Cuts a block from one free span some of whose units lack memory, and moves and adds units as needed.  Returns NULL
 * and changes nothing if the process cannot have the memory. */
struct model_span *weir__model_range_grow(struct model_range *range, struct model_span *span,
                                          uint64_t bytes, uint64_t *moved);
/* Adds memory to `units` units, from the start of the place that rule R6 selects for a block of these bytes.  Places no
 * block.  Returns 0 on success.  Returns -1 on failure, and changes nothing in this case. */
int weir__model_range_add(struct model_range *range, uint64_t bytes, uint64_t units);

/* Makes a used span free. */
void weir__model_range_free(struct model_range *range, struct model_span *span);
/* Makes a used span pending on a stream. */
void weir__model_range_defer(struct model_range *range, struct model_span *span, uint64_t stream_id,
                             int device, uint64_t seq, uint64_t end_ns);
/* Records that operation `seq` of the stream is work that begins at `begin_ns`: spans that were freed since the last
 * such operation are not completed before that time. */
void weir__model_range_begin(struct model_range *range, uint64_t stream_id, uint64_t seq,
                             uint64_t begin_ns);
/* Makes pending spans of a queue free: the newest span that is done by `now_ns`, and all older spans.  Removes an empty
 * queue whose stream was destroyed. */
void weir__model_range_settle(struct model_range *range, struct model_queue *queue,
                              uint64_t now_ns);
/* Makes the pending spans of a queue up to operation `seq` free.  Removes an empty queue whose stream was destroyed. */
void weir__model_range_settle_seq(struct model_range *range, struct model_queue *queue,
                                  uint64_t seq);
/* Appends the stream to the order of streams in rule R4, unless the stream has a place in this order. */
void weir__model_range_meet(struct model_range *range, uint64_t stream_id, int device);
/* Ends a stream: spans whose work is done become free, and the queue is dropped once it is empty. */
void weir__model_range_forget(struct model_range *range, uint64_t stream_id, uint64_t now_ns);
/* Takes the memory from up to `units` loose units, highest address first.  Returns the number of these units. */
uint64_t weir__model_range_shrink(struct model_range *range, uint64_t units);

/* Returns NULL, or a text about an error. */
const char *weir__model_range_check(const struct model_range *range);

#endif
