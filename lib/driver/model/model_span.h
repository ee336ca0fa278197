/* SPDX-License-Identifier: MIT */
/* model_span.h: the address range of one pool: which bytes are whose, and which are backed.
 *
 * A range is cut into spans without gaps, in a list by address.  A span is
 *   used      a live block;
 *   pending   freed on a stream whose work may not be done: that stream's queue holds it;
 *   free      for every stream.  It is backed, or some of its units hold no physical memory; the
 *             last span of a range is free and reaches far beyond what was ever used.
 * Physical memory comes and goes in units.  Pending spans of one stream merge with each other, free
 * spans with each other, so a unit that nobody needs lies wholly in one free span.
 *
 * Rules of placement, found by comparing addresses and reserve with those of an H200 (driver 580.159.04): six recorded
 * programs, and eighteen synthetic loads of one to four streams.  All allocations of the programs that use one stream
 * agree, and every reserve peak of a program.  The addresses match for all 1.9 million allocations of the synthetic loads
 * whose results do not depend on timing (bench/results/model-h200-2026-11-21.txt).
 *   R1  best fit; among equal sizes, what was put back first;
 *   R2  a block is cut from the caches of its span;
 *   R3  a stream's own pending spans are tried first, then backed free spans, and no run of both;
 *   R4  then pending spans of other streams: first those whose free the request is ordered after, then those whose work
 *       is completed.  Streams are tried in the order of their first requests.  From each: the best fit; if that one may
 *       not be used, the oldest usable span that is large enough;
 *   R5  then spans whose work is done become free, stream by stream likewise, latest freed first;
 *   R6  the pool grows last: best fit by address space over free spans, wholly backed or not; the units missing there
 *       are moved from free spans, highest address first, then taken from the device;
 *   R7  what remains of a cut pending span keeps its stream, and its turn in R5.
 *
 * Must not know: streams beyond their ids, devices, costs, attributes.
 */
#ifndef WEIR_MODEL_SPAN_H
#define WEIR_MODEL_SPAN_H

#include "driver/model/model_inside.h"

enum model_span_kind { SPAN_USED, SPAN_PENDING, SPAN_FREE };

struct model_span {
    struct model_block block; /* must be first; its node is in the tree of blocks while used, else
                               * in the tree of its kind under (size, turn) */
    struct model_span *prev, *next; /* by address */
    uint64_t offset, size;
    enum model_span_kind kind;
    int backed;
    /* While pending: */
    struct model_queue *queue;
    struct model_span *older, *newer; /* in the order of their last free */
    uint64_t seq, end_ns;             /* of the last free: its operation, when that is completed */
};

/* What one stream has freed. */
struct model_queue {
    uint64_t stream_id; /* a stream that may be gone */
    int device;         /* of that stream */
    int is_gone;        /* the stream is: the queue goes once it is empty */
    uint64_t begun;     /* the operation that was its last work */
    struct model_node *spans;
    struct model_span *oldest, *newest;
    struct model_queue *next;
};

struct model_range {
    int file;      /* that has the memory, from `mapping` on; -1: none */
    char *base;    /* aligned to a unit */
    char *mapping; /* what was reserved */
    size_t mapping_bytes;
    uint64_t bytes, unit;
    unsigned char *has_memory; /* of each unit */
    uint64_t units;            /* with memory */
    uint64_t top;              /* no unit from here on has memory */
    uint64_t loose;            /* units with memory wholly in free spans */
    uint64_t turn;             /* the last one given out */
    struct model_span *first, *last;
    struct model_node *backed, *partial; /* free spans */
    struct model_queue *queues;          /* in the order of their streams' first requests */
    struct model_span *spare_spans;
    struct model_queue *spare_queues;
};

/* Reserves up to `bytes` of address space, less if the process may not have that much; `is_shared`: its memory is
 * a file's.  0 or -1. */
int weir__model_range_open(struct model_range *range, uint64_t bytes, uint64_t unit, int is_shared);
void weir__model_range_close(struct model_range *range);
/* Host memory for all that the next operation may need: it cannot fail halfway.  0 or -1. */
int weir__model_range_provide(struct model_range *range);

/* The best span in a tree of spans, or NULL. */
struct model_span *weir__model_range_fit(struct model_node *tree, uint64_t bytes);
/* Cuts a block from the caches of a run of neighbours that begins with `span` and together holds it.
 * Units under it must have memory. */
struct model_span *weir__model_range_take(struct model_range *range, struct model_span *span,
                                          uint64_t bytes);
/* Units that a block at the caches of `span` lacks, and those that could be moved there. */
uint64_t weir__model_range_lacks(const struct model_range *range, const struct model_span *span,
                                 uint64_t bytes);
uint64_t weir__model_range_movable(const struct model_range *range, const struct model_span *span,
                                   uint64_t bytes);
/* As take, for one free span that is not wholly backed: moves and adds units as needed.  NULL if
 * the process cannot have the memory; then nothing has changed. */
struct model_span *weir__model_range_grow(struct model_range *range, struct model_span *span,
                                          uint64_t bytes, uint64_t *moved);
/* Gives so many units memory where R6 would place such a block, from its caches on, and places none.  0, or -1 with
 * nothing changed. */
int weir__model_range_add(struct model_range *range, uint64_t bytes, uint64_t units);

/* A used span becomes free, or pending on a stream. */
void weir__model_range_free(struct model_range *range, struct model_span *span);
void weir__model_range_defer(struct model_range *range, struct model_span *span, uint64_t stream_id,
                             int device, uint64_t seq, uint64_t end_ns);
/* Operation `seq` of the stream is work that begins then: what was freed since the last one is not completed before. */
void weir__model_range_begin(struct model_range *range, uint64_t stream_id, uint64_t seq,
                             uint64_t begin_ns);
/* Pending spans of a queue become free: the newest that is done by `now_ns` and all older ones; or
 * those up to operation `seq`.  An emptied queue is removed if its stream was destroyed. */
void weir__model_range_settle(struct model_range *range, struct model_queue *queue,
                              uint64_t now_ns);
void weir__model_range_settle_seq(struct model_range *range, struct model_queue *queue,
                                  uint64_t seq);
/* Puts the stream last in the order of R4, unless it has a place. */
void weir__model_range_meet(struct model_range *range, uint64_t stream_id, int device);
/* The stream was destroyed: what is done by then becomes free, and its queue goes once it is empty. */
void weir__model_range_forget(struct model_range *range, uint64_t stream_id, uint64_t now_ns);
/* Takes memory from up to `units` loose units, highest address first.  How many. */
uint64_t weir__model_range_shrink(struct model_range *range, uint64_t units);

/* NULL, or what is wrong. */
const char *weir__model_range_check(const struct model_range *range);

#endif
