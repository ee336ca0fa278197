/* SPDX-License-Identifier: MIT */
/* stream_order.h: knows which frees of each stream the host has observed to be complete.
 *
 * The owner is an engine that passes memory between streams without the driver's help.  The owner reports each free.
 * This file numbers the frees, records and queries events, and reports to the owner up to which sequence each stream
 * is observed.
 *
 * Glossary
 *
 * - sequence: the number of a free.  It rises over all streams, so that a forgotten stream may come back.
 * - mark: an event that covers all frees of a stream up to a sequence.
 * - open: said of a free that no event covers yet.
 * - silent: said of a stream with open frees.  Only the next call on the stream can record an event for them.
 * - quiet: said of a stream without open frees and without marks.  This file may forget a quiet stream.
 * - dry: a request runs dry if it finds no memory that its stream may use.
 * - held bytes: the bytes that were allocated on a stream, minus the bytes that were freed on the stream.
 * - fence: events on several streams.
 * - deferred: said of a free that waits for all events of a fence.
 *
 * doc/design.md ("Stream order") describes where events are recorded.  A non-blocking stream that is idle needs no
 * event.
 *
 * When events are recorded.  With several streams, an event is worth the memory that it makes available to other
 * streams.  A stream with work uses its own freed memory again, so only the memory that remains free at the end of a
 * burst of work counts.  An event for a stream's open frees is due if one of these rules holds:
 *
 * - young: The free is one of the stream's first 16 frees, since a stream may end after any call.
 * - asked: A request on another stream has run dry since the stream's last event.  The stream's held bytes then become
 *   its low.
 * - low: The stream holds little more than its low, and its held bytes have fallen by `worth` since its last event.
 * - much: The stream's held bytes have fallen by 4 times `worth`.
 * - share: The stream's held bytes have fallen by the stream's share of 16 times `worth`.  All silent streams have
 *   equal shares.  If there are more than 128 silent streams, an event is due for each free, since each silent stream
 *   costs host memory.
 * - all: More memory is reserved than the release threshold.
 *
 * The rules low and much apply only to the first 2,048 frees after the second stream has appeared, and after a request
 * has run dry.  An event by the rules much or share is useless if no other stream calls before the next event.  So
 * after each burst whose events left few open bytes, the events of the next burst are twice as far apart, up to 4
 * times.
 *
 * Cost.  For each new stream, this file queries two streams that have marks, and forgets two quiet streams without a
 * call in the last 16,384 calls.  So no call takes longer because there were many streams.
 *
 * A stream's id is the id that cuStreamGetId returns.  0 is an unknown stream; with drivers below 12.0, all streams
 * are unknown.  A mark on stream 0 must be recorded at once, since in a later call the handle may mean another stream.
 *
 * Locks.  The caller holds the lock that guards a struct weir_order, even during driver calls for events.
 *
 * For the owner, a stream's record also has the stream's chunks in each placement.
 *
 * This file must not depend on blocks, on growth or on how the owner uses the reports.
 */
#ifndef WEIR_STREAM_ORDER_H
#define WEIR_STREAM_ORDER_H

#include "base/map.h"
#include "engine/engine.h"
#include "placement/placement.h"

struct weir_order_mark;
struct weir_order_stream;

/* Reports to the owner that the host has observed the stream's frees up to `placed.observed`, or that the stream is
 * forgotten.  The function must not call functions of this file. */
typedef void weir__order_observed_fn(void *context, struct weir_order_stream *s, int is_forgotten);

/* Ends a deferred free after its last use has completed.  The function must not defer or end another free of this
 * order. */
typedef void weir__order_ended_fn(void *context, uintptr_t freed);

/* The state of a stream.  A stream is MARKED if it has an event that has not completed.  Otherwise it is OPEN if it
 * has frees that no event covers, and QUIET if it has none. */
enum weir_order_state { WEIR_ORDER_QUIET, WEIR_ORDER_OPEN, WEIR_ORDER_MARKED, WEIR_ORDER_STATES };

struct weir_order_list {
    struct weir_order_stream *first, *last;
};

struct weir_order_stream {
    /* The stream's id, its observed sequence, and its chunks in each placement. */
    struct weir_placement_stream placed;
    weir_stream handle;  /* the handle by which order.by_handle finds this stream, or NULL */
    uint64_t sequence;   /* the sequence of the stream's last free */
    uint64_t frees;      /* the number of frees on the stream so far */
    size_t open;         /* the number of open frees, which no event covers yet */
    uint64_t open_bytes; /* the sum of the bytes of open frees */
    /* The bytes allocated on the stream minus the bytes freed on it.  Negative if the stream frees blocks of other
     * streams. */
    int64_t held;
    /* The value of `held` with which the rule low compares `held`. */
    int64_t low;
    /* The bytes by which `held` has fallen below its peak since the stream's last event. */
    uint64_t fallen;
    /* The number of consecutive bursts of work, up to now, whose events left few bytes in open frees.  At most FAR. */
    unsigned foreseen;
    /* The number of events that weir has recorded on the stream since another stream called. */
    unsigned alone;
    uint64_t dry_seen; /* the value of order.dry when the stream's last event was recorded */
    /* 1 if the stream does not synchronize with the legacy stream (non-blocking), 0 if it does, -1 if unknown. */
    int is_apart;
    /* The number of events to record between two queries whether the stream is idle. */
    unsigned between;
    /* The number of events recorded since the last query whether the stream is idle. */
    unsigned recorded;
    uint64_t called; /* the value of order.calls in the stream's last call */
    /* The number of requests that use this record now; the record is not forgotten meanwhile. */
    unsigned serving;
    /* The events of the stream that have not completed, oldest first. */
    struct weir_order_mark *marks, **marks_end;
    enum weir_order_state state;
    /* The neighbours in the list of streams with this state. */
    struct weir_order_stream *next, *prev;
};

/* What the host knows about the order of all frees in one engine.  The fields that most calls write come first, so
 * that they share few cache lines. */
struct weir_order {
    struct weir_order_stream *recent; /* the stream whose record was used last, or NULL */
    /* The id of `recent`.  A call on another stream only compares this id and does not read the record of `recent`. */
    uint64_t recent_id;
    uint64_t sequence; /* the sequence of the latest free on any stream */
    uint64_t calls;    /* the number of calls on all streams so far */
    int several;       /* set once a second stream, or stream 0, was seen */
    int covers_all;    /* the owner sets this field while an event is due for each free */
    /* The number of requests so far that found no memory for their stream. */
    uint64_t dry;
    /* The sequence up to which the rules low and much apply (see the head of this file). */
    uint64_t unsettled_until;
    /* An event is worth its cost if it makes `worth' bytes available to other streams, or LEAST_WORTH bytes if `worth'
     * is smaller. */
    uint64_t worth;
    size_t waiting_marks, silent_streams;
    /* A list of streams for each state.  The first quiet stream is the next to be forgotten.  The first marked stream
     * is the next whose events are queried. */
    struct weir_order_list list[WEIR_ORDER_STATES];
    struct weir_device *device;
    weir__order_observed_fn *observed;
    weir__order_ended_fn *ended;
    void *context;           /* the first argument of `observed` and `ended` */
    struct weir_map streams; /* maps an id to the record of its stream */
    /* Maps each stream handle to the stream that last called with this handle. */
    struct weir_map by_handle;
    struct weir_order_stream *unknown; /* the record of stream 0, or NULL */
    CUevent *spare;                    /* completed events, which this file records again */
    size_t spare_count, spare_capacity;
    /* The list of deferred frees.  The events of the first one are queried next. */
    struct weir_fence *fences, *last_fence;
    /* The number of deferred frees; threads may read it without the lock. */
    _Atomic size_t deferred;
    uint64_t event_records; /* the number of events recorded so far */
};

/* A deferred free.  It has an event on each stream for which it waits. */
struct weir_fence {
    struct weir_fence *next;
    uintptr_t freed; /* the argument for the function `ended`, which identifies the free */
    size_t events;   /* the number of events of this deferred free that have not completed yet */
    CUevent event[];
};

/* Opens an order without host memory.  The device outlives the order.  `observed` may be NULL if the owner reports no
 * frees, and `ended` may be NULL if the owner defers no frees.  So an owner may use an order for its events only. */
void weir__order_open(struct weir_order *o, struct weir_device *device,
                      weir__order_observed_fn *observed, weir__order_ended_fn *ended,
                      void *context);
/* Ends all deferred frees, and frees all host memory. */
void weir__order_close(struct weir_order *o);

/* Finds or creates the record of a stream, in a call on the stream.  Returns NULL if there is no host memory.  The
 * record is valid until the next call of this function, which may forget other streams.  A caller that increments
 * `serving` can use the record longer. */
struct weir_order_stream *weir__order_stream(struct weir_order *o, uint64_t id);
/* Covers the stream's open frees if an event is due by the rules above: observes the frees if the stream is idle,
 * otherwise records an event.  The caller calls this function in each operation on `stream`, whose record is `s`.
 * After an error, a later call retries. */
void weir__order_maintain(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Adds the bytes of a new block to the held bytes of the stream. */
void weir__order_taken(struct weir_order_stream *s, size_t bytes);
/* Adds a free of `bytes` bytes on `s`.  Returns the sequence of the free.  The free is open until an event covers it,
 * or until weir__order_maintain finds the stream idle. */
uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s, size_t bytes);
/* Adds a free on `s`, records an event for it at once, and writes its sequence to *sequence.  Returns OK on success.
 * On an error, adds no free and returns E_HOST_MEMORY, E_CAPTURE or the status of the driver's result. */
weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence);
/* Returns the id of the stream that last called with this handle, or 0 if no such stream is known.  If this stream has
 * since ended, no further event will be recorded on it, and only a wait for the device can observe its open frees.
 * Returns 0 for default streams, since their handles stand for several streams. */
uint64_t weir__order_last_with(const struct weir_order *o, weir_stream stream);
/* Records that there is more than one stream. */
void weir__order_several(struct weir_order *o);
/* Returns 1 if weir__order_maintain would now record an event or query the stream, else 0. */
int weir__order_is_due(const struct weir_order *o, const struct weir_order_stream *s);
/* Returns the number of bytes that the stream can free before weir__order_is_due returns 1.  Returns 0 if an event may
 * be due for the next free, and UINT64_MAX if there is no other stream.  `s` is NULL if the stream has no record. */
uint64_t weir__order_room(const struct weir_order *o, const struct weir_order_stream *s);
/* Records that a request found no memory.  Each stream with open frees then records an event in its next call. */
void weir__order_dry(struct weir_order *o);

/* Queries the stream's events, oldest first, and removes up to `most` completed events.  Returns the number of removed
 * events. */
size_t weir__order_observe(struct weir_order *o, struct weir_order_stream *s, size_t most);
/* Queries up to `most` events of all streams in turn, without a wait.  Starts with the stream where the last call
 * stopped.  With SIZE_MAX, queries each stream up to its first event that has not completed.  Returns 1 if an event
 * has completed, else 0. */
int weir__order_look_around(struct weir_order *o, size_t most);
/* Returns 1 if the host has observed the frees of the stream `id` up to `sequence`, else 0. */
int weir__order_is_observed(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Records an event for the open frees of `s`, in a call on its stream `stream`, which is not captured. */
void weir__order_mark(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Returns 1 if an event covers the free with this sequence on the stream `id`, else 0. */
int weir__order_may_follow(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Makes all later work on `stream` wait for the free `sequence` of the stream `id`.  weir__order_may_follow has
 * returned 1 for this free.  `stream` is the stream of a request and is not captured.  Returns the driver's result. */
CUresult weir__order_follow(struct weir_order *o, weir_stream stream, uint64_t id,
                            uint64_t sequence);
/* Queries whether the stream `id` is idle, in a call on this stream.  If the stream is idle, observes its frees.  Does
 * nothing if `id` is 0, or if the stream is captured.
 *
 * An idle non-blocking stream has finished its work.  An idle blocking stream may still depend on the legacy stream:
 * it waits for the legacy stream's work only when new work is queued on the blocking stream (H200, driver 580:
 * cuStreamQuery returns 0 while work runs on NULL).  So on a blocking stream, this function records an event and
 * queries the event for some microseconds.
 */
void weir__order_ask(struct weir_order *o, uint64_t id, weir_stream stream);
/* Covers the frees of the stream `id`, which exists and is not captured.  Any thread may call this function.  If the
 * stream is idle, observes its frees as weir__order_ask does.  Otherwise records an event, unless the stream is a
 * default stream, since later work on blocking streams would wait for this event. */
void weir__order_cover(struct weir_order *o, uint64_t id, weir_stream stream);
/* Records that all frees have completed, including deferred frees, since the device has finished all work. */
void weir__order_observe_all(struct weir_order *o);
/* Records that all frees up to `sequence` have completed, since the device has finished all work that came before the
 * next free. */
void weir__order_observe_until(struct weir_order *o, uint64_t sequence);

/* Records an event on `stream`.  The caller passes the event to weir__order_recycle after use.  `id` has the meaning
 * that it has for weir__device_record.  Returns OK, E_CAPTURE or the status of the driver's result. */
weir_status weir__order_record(struct weir_order *o, weir_stream stream, uint64_t id,
                               CUevent *event);
/* Returns 1 if all work before the event has completed, else 0. */
int weir__order_is_done(const struct weir_order *o, CUevent event);
/* Keeps an event for a later weir__order_record.  Destroys the event if there is no host memory. */
void weir__order_recycle(struct weir_order *o, CUevent event);

/* Defers the free of `freed` until all work so far on `stream` and on each stream in `uses` has completed.  `uses` may
 * be NULL.  On an error, defers nothing.  If the driver does not know a stream in `uses`, sets the field `refused` of
 * this use.  Returns OK, E_HOST_MEMORY, E_CAPTURE or the status of the driver's result. */
weir_status weir__order_defer(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              uintptr_t freed);
/* Queries the events of up to `most` deferred frees, and starts where the last call stopped.  Ends each free whose
 * events have all completed.  Returns 1 if it has ended a free, else 0. */
int weir__order_complete(struct weir_order *o, size_t most);

#endif
