/* SPDX-License-Identifier: MIT */
/* order.h: what the host has observed of each stream.
 *
 * For whoever hands memory on from one stream to another without the driver's help.  Its owner says
 * which frees each stream has seen; this file numbers them, records events, looks whether they have
 * completed, and tells the owner up to which sequence a stream was observed.
 *
 * Glossary
 *   sequence   of a free: rises over all streams, so that a stream that was forgotten may come back
 *   mark       an event that stands for all frees of a stream up to a sequence
 *   open       a free that no event covers yet
 *   silent     a stream with open frees: only its owner's next call will tell of them
 *   fence      events on several streams at once, for a block that more than one of them uses
 *
 * Batches.  Events are recorded only inside calls that pass the stream (recording on another thread's
 * stream could land in its capture or on a dead handle), and handles are never asked about outside
 * such calls: a destroyed stream's handle crashes the driver, or belongs to another stream by then.
 * One event covers all frees of a stream so far, when enough of them have piled up or when another
 * stream ran dry; a young stream, which may end after any call, records at each.  While there is only
 * one stream nothing is recorded at all.
 *
 * Streams are told apart by cuStreamGetId; 0 is a stream that is not known (below driver 12.0 none
 * is).  Marks on stream 0 must each be recorded at once: a later call's handle may mean another one.
 *
 * The caller holds the lock under which all of it lies; driver calls for events are made under it.
 *
 * Must not know: placement, blocks, growth; what its owner does with what it is told.
 */
#ifndef WEIR_ORDER_H
#define WEIR_ORDER_H

#include "engine.h"

/* The host has observed stream `id` past `sequence`.  Must not call back into the order. */
typedef void weir__order_observed_fn(void *context, uint64_t id, uint64_t sequence);

struct weir_order_mark;

struct weir_order_stream {
    uint64_t id;                   /* 0: not known */
    uint64_t sequence;             /* of its last free */
    uint64_t observed;             /* the host has seen it pass up to here */
    uint64_t frees;                /* on it so far */
    uint64_t recorded;             /* frees (counted) up to here are covered by an event */
    uint64_t dry_seen;             /* value of order.dry when it last recorded */
    struct weir_order_mark *marks; /* oldest first: marks[first .. first + count) */
    size_t first, count, capacity;
};

struct weir_order {
    struct weir_host *host;
    weir__order_observed_fn *observed;
    void *context;     /* handed to observed */
    uint64_t sequence; /* of the last free on any stream */
    struct weir_order_stream *streams;
    size_t stream_count, stream_capacity, stream_last;
    int several;    /* order matters: a second stream was seen, or stream 0; owners may set it */
    uint64_t dry;   /* times that a stream found nothing that it may use */
    CUevent *spare; /* events to use again */
    size_t spare_count, spare_capacity;
    uint64_t event_records; /* events recorded so far */
};

/* Events recorded on several streams; all done when the last of them is. */
struct weir_fence {
    size_t events; /* not yet seen done */
    CUevent event[];
};

/* Takes no memory; the host outlives it. */
void weir__order_open(struct weir_order *o, struct weir_host *host,
                      weir__order_observed_fn *observed, void *context);
/* No fence is left. */
void weir__order_close(struct weir_order *o);

/* What is kept about a stream, made when it is seen first; NULL: no host memory.  Valid until a
 * stream is made next.  May forget streams of which nothing is open, and look around for that. */
struct weir_order_stream *weir__order_stream(struct weir_order *o, uint64_t id);
/* The same without any driver call: nothing is forgotten that must be asked about. */
struct weir_order_stream *weir__order_stream_silently(struct weir_order *o, uint64_t id);
/* For every operation on `stream`, which is `s`: records for its open frees by the rules above.  What
 * the driver refuses is tried again at a later call. */
void weir__order_tend(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* A free on `s`: its sequence.  It is open until tend records. */
uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s);
/* A free on `s` that has an event of its own at once: its sequence in *sequence.  An error: as if
 * there had been no free.  E_HOST_MEMORY, E_CAPTURE, or what the driver has against it. */
weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence);
/* Takes the stream's completed marks off; 1 if there was one. */
int weir__order_observe(struct weir_order *o, struct weir_order_stream *s);
/* Has the host observed stream `id` past `sequence`, as far as it has looked?  Of a stream that was
 * forgotten nothing is open: yes. */
int weir__order_passed(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Looks at every stream once, without waiting; 1 if something has completed. */
int weir__order_look_around(struct weir_order *o);
/* The device has finished all work: nothing is behind anything any more. */
void weir__order_observe_all(struct weir_order *o);
/* Marks not seen done, and silent streams. */
void weir__order_count(const struct weir_order *o, size_t *waiting, size_t *silent);

/* Records on `stream` and on each noted one.  An error: nothing is left, and uses of streams that the
 * driver does not know are marked refused.  E_HOST_MEMORY, E_CAPTURE, or the driver's. */
weir_status weir__order_fence(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              struct weir_fence **fence);
/* 1 when all its streams are past it; asks the driver. */
int weir__order_fence_done(struct weir_order *o, struct weir_fence *fence);
/* Forgets it, done or not. */
void weir__order_fence_drop(struct weir_order *o, struct weir_fence *fence);

#endif
