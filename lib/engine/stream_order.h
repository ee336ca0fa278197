/* SPDX-License-Identifier: MIT */
/* stream_order.h: finds out which frees on each stream have completed.
 *
 * The caller, called the owner, is an engine that orders the reuse of memory without the driver's help.  The owner
 * reports each free.  This file numbers the frees, records and queries events, and reports to the owner which frees of
 * each stream have completed: all up to a certain number.
 *
 * Glossary
 *
 * - sequence: the number of a free.  The number rises with each free on any stream, so that a stream can be forgotten
 *   and get a new record later.
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
 * streams.  A stream with work uses its own freed memory again, so other streams can use only the memory that remains
 * free at the end of a burst of work.  An event for a stream's open frees is due if one of these rules holds:
 *
 * - young: The free is one of the stream's first 16 frees, since a stream may end after any call.
 * - asked: A request on another stream has run dry since the stream's last event.  The present number of held bytes is
 *   then stored as the stream's low.
 * - low: The stream's held bytes are little more than its low, and have fallen by `worth` since its last event.
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
 * A stream's record also has the stream's free chunks (placement.h), so that the owner needs no second record.
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

/* The owner's callback: all frees of `s` up to the sequence number `s->placed.observed` have completed, so the owner
 * can reuse their memory.  If `is_forgotten` is 1, the record of the stream is about to be freed.  The callback must
 * not call functions of this file. */
typedef void weir__order_observed_fn(void *context, struct weir_order_stream *s, int is_forgotten);

/* The owner's callback that finishes a deferred free, that is, a free that waited for several streams, after the last
 * of them has completed its work.  The callback must not defer or end another free. */
typedef void weir__order_ended_fn(void *context, uintptr_t freed);

/* The state of a stream.  A stream is MARKED if it has an event that has not completed.  Otherwise it is OPEN if it
 * has frees that no event covers, and QUIET if it has none. */
enum weir_order_state { WEIR_ORDER_QUIET, WEIR_ORDER_OPEN, WEIR_ORDER_MARKED, WEIR_ORDER_STATES };

struct weir_order_list {
    struct weir_order_stream *first, *last;
};

struct weir_order_stream {
    /* The stream's id, the sequence number up to which its frees have completed, and its free chunks. */
    struct weir_placement_stream placed;
    weir_stream handle;  /* a handle by which the map `by_handle` finds this stream, or NULL */
    uint64_t sequence;   /* the sequence number of the stream's last free */
    uint64_t frees;      /* the number of frees on the stream so far */
    size_t open;         /* the number of open frees, that is, frees that no event covers yet */
    uint64_t open_bytes; /* the sum of the bytes of open frees */
    /* The bytes allocated on the stream minus the bytes freed on it.  Negative if the stream frees blocks of other
     * streams. */
    int64_t net_bytes;
    /* The stream's lowest `held` at the events since a request last found no memory.  An event is due when `held`
     * falls close to this value (the rule low at the head of this file). */
    int64_t net_low;
    /* The bytes by which `held` has fallen below its peak since the stream's last event. */
    uint64_t net_drop;
    /* The number of consecutive bursts of work, up to the last one, whose events left few bytes in open frees.  At
     * most FAR.  Events become rarer with this number. */
    unsigned covered_bursts;
    /* The number of events that weir has recorded on the stream since another stream called. */
    unsigned burst_events;
    /* the number of requests without memory (`dry` of the order) at the stream's last event */
    uint64_t lacked_at_event;
    /* 1 if the stream is non-blocking, so that it does not synchronize with the legacy stream; 0 if it is blocking; -1
     * if the driver was not queried yet. */
    int is_non_blocking;
    /* The number of events to record before the next query whether the stream is idle.  It rises while such queries
     * fail, since an idle stream needs no event but a query costs time. */
    unsigned idle_query_gap;
    /* The number of events recorded since the last query whether the stream is idle. */
    unsigned events_since_query;
    /* the value of `calls` of the order at the stream's last call, which shows how old the record is */
    uint64_t called;
    /* The number of requests that use this record now.  The record must not be freed while the number is above 0. */
    unsigned active_requests;
    /* The events of the stream that have not completed, oldest first. */
    struct weir_order_mark *marks, **marks_end;
    enum weir_order_state state;
    /* The neighbours in the list of all streams with equal `state`. */
    struct weir_order_stream *next, *prev;
};

/* The order of all frees in one engine.  The fields that most calls write come first, so that they share few cache
 * lines. */
struct weir_order {
    struct weir_order_stream *recent; /* the stream of the latest call, or NULL */
    /* The id of the stream `recent`.  A call on another stream only compares this id, so that it does not read the
     * other stream's record. */
    uint64_t recent_id;
    uint64_t sequence; /* the sequence number of the latest free on any stream */
    uint64_t calls;    /* the number of calls on all streams so far */
    /* set once calls have come from a second stream, or from a stream with unknown id (0) */
    int several;
    int always_due; /* set by the owner while each free needs an event at once */
    /* The number of requests so far that found no free memory for their stream. */
    uint64_t lacked;
    /* The sequence number up to which the rules low and much apply (see the head of this file).  weir then records
     * more events, since it cannot yet predict which memory other streams need. */
    uint64_t strict_until;
    /* The smallest number of bytes for which weir records an event.  If `worth` is below LEAST_WORTH, weir uses
     * LEAST_WORTH. */
    uint64_t least_event_bytes;
    size_t pending_marks, streams_with_open;
    /* The lists of streams, one for each state.  The first quiet stream is the next to be forgotten.  The first marked
     * stream is the next whose events are queried. */
    struct weir_order_list list[WEIR_ORDER_STATES];
    struct weir_device *device;
    weir__order_observed_fn *observed;
    weir__order_ended_fn *ended;
    void *context;           /* the first argument of `observed` and `ended` */
    struct weir_map streams; /* maps an id to the record of its stream */
    /* Maps each stream handle to the record of the stream that last called with this handle. */
    struct weir_map by_handle;
    struct weir_order_stream *unknown; /* the record for all streams with unknown id (0), or NULL */
    CUevent *spare; /* completed events, which are recorded again for later frees */
    size_t spare_count, spare_capacity;
    /* The list of deferred frees, that is, frees that wait for several streams.  The first one is the next whose
     * events are queried. */
    struct weir_fence *fences, *last_fence;
    /* The number of deferred frees.  Threads may read it without the lock. */
    _Atomic size_t deferred;
    uint64_t event_records; /* the number of events recorded so far */
};

/* A deferred free, that is, a free of a block that several streams use.  It has one event on each of these streams. */
struct weir_fence {
    struct weir_fence *next;
    uintptr_t freed; /* identifies the free to the owner: the argument of the callback `ended` */
    size_t events;   /* the number of events of this deferred free that have not completed yet */
    CUevent event[];
};

/* Opens an order without host memory.  The device must outlive the order.  `observed` may be NULL if the owner reports
 * no frees, and `ended` may be NULL if the owner defers no frees, so that an owner can use an order for its events
 * alone. */
void weir__order_open(struct weir_order *o, struct weir_device *device,
                      weir__order_observed_fn *observed, weir__order_ended_fn *ended,
                      void *context);
/* Ends all deferred frees, and frees all host memory. */
void weir__order_close(struct weir_order *o);

/* Finds or creates the record of a stream, in a call on the stream.  Returns NULL if there is no host memory.  The
 * record is valid until the next call of this function, which may forget other streams.  A caller that increments
 * `serving` can use the record longer. */
struct weir_order_stream *weir__order_stream(struct weir_order *o, uint64_t id);
/* Makes the open frees of `s` available to other streams if an event is due by the rules at the head of this file.  If
 * the stream is idle, its frees have completed; otherwise records an event.  The caller calls this function in each
 * operation on `stream`, whose record is `s`.  If the driver fails, a later call retries. */
void weir__order_maintain(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Records that a block of `bytes` bytes was allocated on the stream. */
void weir__order_allocated(struct weir_order_stream *s, size_t bytes);
/* Records that `bytes` bytes were freed on `s`, without a driver call.  Returns the sequence number of the free.  Only
 * an event, or a query that finds the stream idle, makes the memory available to other streams. */
uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s, size_t bytes);
/* Records a free on `s`, with an event at once, and writes the sequence number of the free to *sequence.  Returns OK
 * on success.  On an error, records no free and returns E_HOST_MEMORY, E_CAPTURE or the status of the driver's result.
 * */
weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence);
/* Returns the id of the stream that last called with this handle, or 0 if there was no such call.  The stream may have
 * ended since.  Then no event can be recorded on it any more, and only a wait for the device shows that its open frees
 * have completed.  Returns 0 for default streams, since their handles stand for several streams. */
uint64_t weir__order_last_id(const struct weir_order *o, weir_stream stream);
/* Records that more than one stream uses the engine.  weir then records events, so that streams can reuse each other's
 * memory. */
void weir__order_set_several(struct weir_order *o);
/* Returns 1 if weir__order_maintain would now record an event on the stream or query it, else 0. */
int weir__order_is_due(const struct weir_order *o, const struct weir_order_stream *s);
/* Returns the number of bytes that the stream may still free before an event is due.  Returns 0 if an event may be due
 * for the next free, and UINT64_MAX if no other stream uses the engine.  `s` is NULL if the stream has no record. */
uint64_t weir__order_room(const struct weir_order *o, const struct weir_order_stream *s);
/* Records that a request found no free memory for its stream.  Each stream with open frees then records an event in
 * its next call. */
void weir__order_count_lack(struct weir_order *o);

/* Queries the stream's events, oldest first, and removes up to `most` completed events.  Returns the number of removed
 * events. */
size_t weir__order_observe(struct weir_order *o, struct weir_order_stream *s, size_t most);
/* Queries up to `most` events of all streams in turn, without a wait.  Begins with the stream at which the previous
 * call stopped.  With SIZE_MAX, queries each stream up to its first event that has not completed.  Returns 1 if an
 * event has completed, else 0. */
int weir__order_query_events(struct weir_order *o, size_t most);
/* Returns 1 if all frees of the stream `id` up to this sequence number are known to have completed, else 0. */
int weir__order_is_observed(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Records an event for the open frees of `s`, in a call on its stream `stream`, which must not be captured. */
void weir__order_cover_frees(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Returns 1 if an event covers the free with this sequence number on the stream `id`, so that other streams can wait
 * for the free; else 0. */
int weir__order_has_event(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Makes all later work on `stream` wait on the device for the free with this sequence number on the stream `id`.  An
 * event must cover the free (weir__order_has_event), and `stream` must not be captured.  Returns the driver's result.
 * */
CUresult weir__order_wait(struct weir_order *o, weir_stream stream, uint64_t id, uint64_t sequence);
/* Queries whether the stream `id` is idle, in a call on this stream.  If so, its frees have completed.  Does
 * nothing if `id` is 0, or if the stream is captured.
 *
 * An idle non-blocking stream has finished its work.  An idle blocking stream may still depend on the legacy stream:
 * it waits for the legacy stream's work only when new work is queued on the blocking stream (H200, driver 580:
 * cuStreamQuery returns 0 while work runs on NULL).  So on a blocking stream, this function records an event and
 * queries the event for some microseconds.
 */
void weir__order_query_idle(struct weir_order *o, uint64_t id, weir_stream stream);
/* Makes the open frees of the stream `id` available to other streams.  Any thread may call this function; the stream
 * must exist and must not be captured.  If the stream is idle, its frees have completed, unless it is a blocking
 * stream (see weir__order_query_idle).  Otherwise records an event, but not on a default stream, since later work on blocking
 * streams would wait for this event. */
void weir__order_publish(struct weir_order *o, uint64_t id, weir_stream stream);
/* Records that all frees have completed, including deferred frees.  The caller has waited until the device has
 * finished all work. */
void weir__order_observe_all(struct weir_order *o);
/* Records that all frees with sequence numbers up to `sequence` have completed.  The caller has waited for the device,
 * and this wait covered these frees. */
void weir__order_observe_until(struct weir_order *o, uint64_t sequence);

/* Records an event on `stream`.  After use, the caller passes the event to weir__order_recycle.  `id` is the stream's
 * id, or 0 if the id is unknown.  Returns OK, E_CAPTURE or the status of the driver's result. */
weir_status weir__order_record(struct weir_order *o, weir_stream stream, uint64_t id,
                               CUevent *event);
/* Returns 1 if all work before the event has completed, else 0. */
int weir__order_is_done(const struct weir_order *o, CUevent event);
/* Stores an unused event for a later weir__order_record.  Destroys the event if there is no host memory. */
void weir__order_recycle(struct weir_order *o, CUevent event);

/* Defers a free until all work so far on `stream` and on each stream in `uses` has completed.  Then calls the owner's
 * callback `ended` with the value `freed`.  `uses` may be NULL.  If the driver does not know a stream in `uses`, sets
 * `refused` in the list's entry of this stream.  Returns OK, E_HOST_MEMORY, E_CAPTURE or the status of the driver's
 * result.  On an error, defers nothing. */
weir_status weir__order_defer(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              uintptr_t freed);
/* Queries the events of up to `most` deferred frees, without a wait.  Begins with the free at which the previous call
 * stopped.  Finishes each free whose events have all completed.  Returns 1 if it has finished a free, else 0. */
int weir__order_complete(struct weir_order *o, size_t most);

#endif
