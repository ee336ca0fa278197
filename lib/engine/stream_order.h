/* SPDX-License-Identifier: MIT */
/* stream_order.h: finds out which frees on each stream have completed (doc/design.md, "Stream order").
 *
 * The owner is an engine that itself orders the reuse of memory, and reports each free.  This file numbers the frees,
 * records and queries events, and calls the owner when the frees of a stream up to a number have completed.
 *
 * - sequence: the number of a free.  The number rises with each free on any stream, so weir may free a stream's
 *   record and make a new one later.  A free has completed if all work on its stream before the free has completed.
 * - mark: an event that was recorded after all frees of a stream up to a sequence.
 * - open: a free is open until an event is recorded after it.  Only a call on the stream can record this event.
 *
 * A stream id is what cuStreamGetId returns.  The id 0 stands for all unknown streams; with drivers below 12.0, all
 * streams are unknown.  A mark on an unknown stream must be recorded at once, since the handle may mean another
 * stream in a later call.
 *
 * Locks.  The caller holds the lock that guards a struct weir_order, even during driver calls for events.
 */
#ifndef WEIR_STREAM_ORDER_H
#define WEIR_STREAM_ORDER_H

#include "base/map.h"
#include "engine/engine.h"
#include "placement/placement.h"

struct weir_order_mark;
struct weir_order_stream;

/* The owner's callback: frees of `s` up to the number s->placed.observed have completed.  If `is_forgotten` is 1, `s`
 * is about to be freed.  The callback must not call this file's functions. */
typedef void weir__order_observed_fn(void *context, struct weir_order_stream *s, int is_forgotten);

/* The owner's callback, which makes a freed block usable.  It must not call this file's functions that defer or end
 * frees: weir__order_defer, weir__order_complete, weir__order_observe_all, weir__order_close. */
typedef void weir__order_ended_fn(void *context, uintptr_t freed);

/* MARKED: the stream has a pending event.  OPEN: it has frees without an event.  QUIET: all its frees are complete. */
enum weir_order_state { WEIR_ORDER_QUIET, WEIR_ORDER_OPEN, WEIR_ORDER_MARKED, WEIR_ORDER_STATES };

struct weir_order_list {
    struct weir_order_stream *first, *last;
};

struct weir_order_stream {
    /* the stream's id, its last completed free and its free chunks */
    struct weir_placement_stream placed;
    weir_stream handle; /* a key of the map `by_handle` for this record, or NULL */
    uint64_t sequence;  /* the number of the stream's last free */
    uint64_t frees;
    size_t open;         /* the number of frees after which no event is recorded yet */
    uint64_t open_bytes; /* the bytes of these `open` frees */
    /* The bytes allocated minus the bytes freed on the stream.  Negative if it frees blocks of other streams. */
    int64_t net_bytes;
    /* The lowest `net_bytes` at an event.  Starts again after a request has found no free memory for its stream. */
    int64_t net_low;
    uint64_t net_drop; /* the fall of `net_bytes` from its peak since the stream's last event */
    /* The number (limited) of bursts, calls in a row, with events since one that left many bytes without an event. */
    unsigned covered_bursts;
    unsigned burst_events;    /* the number of events on the stream since another stream called */
    uint64_t lacked_at_event; /* weir_order.lacked at the stream's last event */
    /* 1 if the stream is non-blocking, 0 if it is blocking (or unknown), -1 if the driver was not queried yet */
    int is_non_blocking;
    /* The number of events to record before weir queries again whether the stream is idle. */
    unsigned query_gap;
    unsigned events_since_query;
    uint64_t called; /* weir_order.calls at the stream's last call */
    /* The number of requests that use this record now, perhaps without the lock.  Above 0, it must not be freed. */
    unsigned active_requests;
    struct weir_order_mark *marks, **marks_end; /* the pending events, oldest first */
    enum weir_order_state state;
    struct weir_order_stream *next, *prev; /* in the list of streams with this `state` */
};

/* The streams and frees of one engine or of the caches.  Fields that most calls write share a few cache lines. */
struct weir_order {
    struct weir_order_stream *recent; /* the stream of the latest call, or NULL */
    /* A copy of the id in *recent, so that calls on other streams need not read *recent. */
    uint64_t recent_id;
    uint64_t sequence;     /* the number of the latest free on any stream */
    uint64_t calls;        /* the number of calls on all streams so far */
    int several;           /* set once a second stream, or an unknown one (id 0), has called */
    int always_due;        /* set by the owner while each free needs an event at once */
    uint64_t lacked;       /* the number of requests that found no free memory for their stream */
    uint64_t strict_until; /* weir records more events while `sequence` is below this number */
    /* weir should not record an event for fewer freed bytes than the larger of this number and LEAST_EVENT_BYTES. */
    uint64_t least_event_bytes;
    size_t pending_marks, streams_with_open;
    /* The streams by state.  weir frees records from the front of QUIET, and queries events from that of MARKED. */
    struct weir_order_list list[WEIR_ORDER_STATES];
    struct weir_device *device;
    weir__order_observed_fn *observed;
    weir__order_ended_fn *ended;
    void *context;
    struct weir_map streams;           /* the records of streams, by id */
    struct weir_map by_handle;         /* the record of the stream that last called with a handle */
    struct weir_order_stream *unknown; /* the record for all streams with id 0, or NULL */
    CUevent *spare;                    /* completed events, to be recorded again */
    size_t spare_count, spare_capacity;
    /* Freed blocks that several streams may still use.  The events of the first one are queried next. */
    struct weir_fence *fences, *last_fence;
    _Atomic size_t deferred; /* the number of entries in `fences`; read without the lock, too */
    uint64_t event_records;
};

/* A freed block that several streams may still use, with an event on each of these streams. */
struct weir_fence {
    struct weir_fence *next;
    uintptr_t freed; /* the argument of the callback `ended` */
    size_t events;   /* the number of events that have not completed yet */
    CUevent event[];
};

/* Opens *o, without streams.  The device must outlive *o.  `observed` may be NULL if the owner never calls
 * weir__order_stream.  `ended` may be NULL if the owner never calls weir__order_defer. */
void weir__order_open(struct weir_order *o, struct weir_device *device,
                      weir__order_observed_fn *observed, weir__order_ended_fn *ended,
                      void *context);
/* Calls `observed` for all streams, calls `ended` for all freed blocks that still wait, and frees all host memory. */
void weir__order_close(struct weir_order *o);

/* Finds or creates a stream's record.  Returns NULL without host memory.  The record is valid until the next call of
 * this function or weir__order_query_idle, and while the record's `active_requests` is above 0. */
struct weir_order_stream *weir__order_stream(struct weir_order *o, uint64_t id);
/* Makes memory freed on `s` available to other streams, if an event is due.  Called in each operation on `stream`. */
void weir__order_maintain(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
void weir__order_allocated(struct weir_order_stream *s, size_t bytes);
/* Records a free of `bytes` bytes on `s`, without a driver call.  Returns the free's sequence number. */
uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s, size_t bytes);
/* Records a free on `s`, and an event after this free.  On an error, records no free. */
weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence);
/* Returns the id of the stream that last called with this handle.  That stream may no longer exist.  Returns 0 if the
 * id is unknown, or for a default stream. */
uint64_t weir__order_last_id(const struct weir_order *o, weir_stream stream);
/* Records that a second stream uses the engine.  weir then records events for frees. */
void weir__order_set_several(struct weir_order *o);
/* Returns 1 if weir__order_maintain would now call the driver for the stream, else 0. */
int weir__order_is_due(const struct weir_order *o, const struct weir_order_stream *s);
/* Returns the bytes that the stream may free before an event is necessary.  `s` is NULL if the stream has no record. */
uint64_t weir__order_room(const struct weir_order *o, const struct weir_order_stream *s);
/* Counts a request that found no free memory for its stream.  weir then records an event in each stream's next call. */
void weir__order_count_lack(struct weir_order *o);

/* Queries the stream's events, oldest first, and removes up to `most` completed ones.  Returns their number. */
size_t weir__order_observe(struct weir_order *o, struct weir_order_stream *s, size_t most);
/* Queries up to `most` events of all streams in turn, without a wait.  Returns 1 if one has completed. */
int weir__order_query_events(struct weir_order *o, size_t most);
/* Returns 1 if the free with this number on the stream `id` is known to have completed, else 0. */
int weir__order_is_observed(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Records an event after all frees on `s` that have no later event.  The stream must not be in a capture. */
void weir__order_cover(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Returns 1 if a pending event was recorded after the free with this number on the stream `id`, else 0. */
int weir__order_has_event(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Makes all later work on `stream` wait on the device for the work on the stream `id` before its free `sequence`.  An
 * event must be recorded after the free.  `stream` must not be in a capture.  Returns the driver's result. */
CUresult weir__order_wait(struct weir_order *o, weir_stream stream, uint64_t id, uint64_t sequence);
/* If the stream `id` is idle, makes its freed memory available to all streams.  Called only in calls on this stream. */
void weir__order_query_idle(struct weir_order *o, uint64_t id, weir_stream stream);
/* Makes memory freed on the stream `id` available to all streams.  The stream must exist and not be in a capture. */
void weir__order_publish(struct weir_order *o, uint64_t id, weir_stream stream);
/* Records that all frees have completed, also of blocks that several streams use, after a wait for the device. */
void weir__order_observe_all(struct weir_order *o);
/* Records that all frees with numbers up to `sequence` have completed, after a wait for the device. */
void weir__order_observe_until(struct weir_order *o, uint64_t sequence);

/* Records an event on `stream`; `id` may be 0 (unknown).  The caller later passes the event to weir__order_recycle. */
weir_status weir__order_record(struct weir_order *o, weir_stream stream, uint64_t id,
                               CUevent *event);
int weir__order_is_done(const struct weir_order *o, CUevent event);
/* Stores an unused event for a later weir__order_record.  Destroys the event if there is no host memory. */
void weir__order_recycle(struct weir_order *o, CUevent event);

/* Calls o->ended for `freed` after all work so far on `stream` and in `uses` (or NULL).  Makes no call on an error. */
weir_status weir__order_defer(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              uintptr_t freed);
/* Queries the events of up to `most` fences, without a wait.  Returns 1 if it has made a freed block usable, else 0. */
int weir__order_complete(struct weir_order *o, size_t most);

#endif
