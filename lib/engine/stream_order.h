/* SPDX-License-Identifier: MIT */
/* stream_order.h: the frees of each stream that the host has observed to be complete.
 *
 * The owner, an engine, uses this file to pass memory between streams without the driver's help, and reports each free.
 * This file numbers the frees, records and queries events, and tells the owner up to which sequence a stream is
 * observed.
 *
 * Glossary
 *   sequence   the number of a free; it rises over all streams, so that a forgotten stream may come back
 *   mark       an event that covers all frees of a stream up to a sequence
 *   open       a free that no event covers yet
 *   silent     a stream with open frees: only the next call on the stream can record their event
 *   quiet      a stream without open frees and marks: it may be forgotten
 *   dry        a request runs dry if it finds no memory that its stream may use
 *   held       the bytes that a stream has allocated, minus the bytes that were freed on it
 *   fence      events on several streams
 *   deferred   a free that waits for all events of a fence
 *
 * doc/design.md ("Stream order") says where events are recorded.  A non-blocking stream that is idle needs none.
 *
 * When events are recorded.  With several streams, an event is worth the memory that it makes available to others.  A
 * stream at work uses its own frees again, so only the memory that it leaves at the end of a burst of work counts.  An
 * event is due for a stream's open frees if one of these rules holds:
 *   young      One of the stream's first 16 frees: the stream may end after any call.
 *   asked      Another request ran dry since the stream's last event.  The stream's held bytes then are its low.
 *   low        The stream holds little more than at its low, and has fallen by `worth` since its last event.
 *   much       The stream's held bytes have fallen by 4 times `worth`.
 *   share      The stream's held bytes have fallen by its share of 16 times `worth`.  All silent streams have equal
 *              shares.  Beyond 128 silent streams each free is due, since each of them costs host memory.
 *   all        More is reserved than the release threshold.
 * The rules low and much apply only to the 2,048 frees after the second stream appeared, and after a request ran dry.
 * An event of much or share is useless if no other stream calls before the next event.  So after each burst whose
 * events left few open bytes, the next burst's events are twice as far apart, up to 4 times.
 *
 * Cost.  A new stream makes this file query two streams that have marks, and forget two quiet streams that have not
 * called for 16,384 calls.  So no call takes longer because there were many streams.
 *
 * The id of a stream is that of cuStreamGetId; 0 is an unknown stream (below driver 12.0 all are).  A mark on stream 0
 * must be recorded at once, since a later call's handle may mean another stream.
 *
 * Locks: the caller holds the lock that guards a struct weir_order; driver calls for events are made under it.
 *
 * A stream's record also has the stream's chunks in each placement, for the owner.
 *
 * This file must not know blocks, growth or how the owner uses the reports.
 */
#ifndef WEIR_STREAM_ORDER_H
#define WEIR_STREAM_ORDER_H

#include "base/map.h"
#include "engine/engine.h"
#include "placement/placement.h"

struct weir_order_mark;
struct weir_order_stream;

/* Reports that the host has observed the stream's frees up to `placed.observed`, or that the stream is forgotten.  The
 * function must not call this file's functions. */
typedef void weir__order_observed_fn(void *context, struct weir_order_stream *s, int is_forgotten);

/* Ends a deferred free when its last use has completed.  Must not defer or end another free of the order. */
typedef void weir__order_ended_fn(void *context, uintptr_t freed);

/* A stream is marked if it has marks, else open if it has open frees, else quiet. */
enum weir_order_state { WEIR_ORDER_QUIET, WEIR_ORDER_OPEN, WEIR_ORDER_MARKED, WEIR_ORDER_STATES };

struct weir_order_list {
    struct weir_order_stream *first, *last;
};

struct weir_order_stream {
    struct weir_placement_stream
        placed;          /* the id, the observed sequence, and the chunks of the placements */
    weir_stream handle;  /* the key of the stream in order.by_handle, or NULL */
    uint64_t sequence;   /* the sequence of the stream's last free */
    uint64_t frees;      /* the number of the stream's frees */
    size_t open;         /* the number of open frees */
    uint64_t open_bytes; /* the bytes of open frees */
    /* the bytes that the stream holds; negative if it frees blocks of other streams */
    int64_t held;
    int64_t low;     /* the value of `held` that counts as low */
    uint64_t fallen; /* the bytes by which `held` is below its peak since the last event */
    /* The number of the stream's last bursts in a row that left few open bytes, FAR at most. */
    unsigned foreseen;
    unsigned alone;    /* the stream's events since another stream called */
    uint64_t dry_seen; /* the value of order.dry at the stream's last event */
    int is_apart;     /* 1 if the stream runs beside the legacy stream, 0 if not, -1 if not known */
    unsigned between; /* events between two queries whether the stream is idle */
    unsigned recorded; /* events since the last such query */
    uint64_t called;   /* the value of order.calls at the stream's last call */
    unsigned serving;  /* requests that hold this record; it is not forgotten meanwhile */
    struct weir_order_mark *marks, **marks_end; /* oldest first */
    enum weir_order_state state;
    struct weir_order_stream *next, *prev; /* in the list of that state */
};

/* The fields that most calls write come first, so that they share few cache lines. */
struct weir_order {
    struct weir_order_stream *recent; /* the stream whose record was found last, or NULL */
    uint64_t recent_id; /* the id of `recent`, so that other streams need not read that record */
    uint64_t sequence;  /* the sequence of the last free on any stream */
    uint64_t calls;     /* the number of calls on streams so far */
    int several;        /* set once a second stream, or stream 0, was seen */
    int covers_all;     /* set by the owner while each free is due for an event */
    uint64_t dry;       /* the number of requests that ran dry so far */
    uint64_t unsettled_until; /* the sequence up to which the rules low and much hold */
    uint64_t worth;           /* the bytes that are worth an event, at least LEAST_WORTH */
    size_t waiting_marks, silent_streams;
    /* The streams of each state: the next quiet stream to be forgotten first, the next marked one to be queried first. */
    struct weir_order_list list[WEIR_ORDER_STATES];
    struct weir_device *device;
    weir__order_observed_fn *observed;
    weir__order_ended_fn *ended;
    void *context;                     /* the first argument of `observed` and `ended` */
    struct weir_map streams;           /* the known streams, by id */
    struct weir_map by_handle;         /* the stream that called last with each handle */
    struct weir_order_stream *unknown; /* the record of stream 0, or NULL */
    CUevent *spare;                    /* events that can be used again */
    size_t spare_count, spare_capacity;
    struct weir_fence *fences, *last_fence; /* deferred frees, the next to be queried first */
    _Atomic size_t deferred; /* the number of deferred frees; may be read without the lock */
    uint64_t event_records;  /* the number of events recorded so far */
};

/* A deferred free, with an event on each stream for which it waits. */
struct weir_fence {
    struct weir_fence *next;
    uintptr_t freed; /* an argument of `ended` */
    size_t events;   /* events that have not completed yet */
    CUevent event[];
};

/* Opens an order without host memory.  The device outlives the order.  An order without frees needs no `observed`, and
 * one without deferred frees needs no `ended`: an owner may use an order for its events alone. */
void weir__order_open(struct weir_order *o, struct weir_device *device,
                      weir__order_observed_fn *observed, weir__order_ended_fn *ended,
                      void *context);
/* Ends all deferred frees, and frees all memory. */
void weir__order_close(struct weir_order *o);

/* Finds the stream's record in a call on the stream, or makes it.  Returns NULL if there is no host memory.  The record
 * is valid until the next such call, since a new stream makes this file forget others.  A caller that increments
 * `serving` may keep the record longer. */
struct weir_order_stream *weir__order_stream(struct weir_order *o, uint64_t id);
/* If an event is due by the rules above, covers the stream's open frees: observes them if the stream is idle, else
 * records an event.  Each operation on `stream`, whose record is `s`, calls it.  After an error a later call
 * retries. */
void weir__order_maintain(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Adds bytes to those that the stream holds. */
void weir__order_taken(struct weir_order_stream *s, size_t bytes);
/* Adds a free of `bytes` on `s`, and returns its sequence.  The free is open until an event covers it, or until
 * weir__order_maintain finds the stream idle. */
uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s, size_t bytes);
/* Adds a free on `s`, records an event for it at once, and writes its sequence to *sequence.  On an error, adds no free
 * and returns E_HOST_MEMORY, E_CAPTURE or the status of the driver's result. */
weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence);
/* Returns the id of the stream that called last with this handle, or 0 if none is known.  If that stream has ended
 * since, no event will be recorded on it any more, so that only a wait for the device observes its frees.  Returns 0
 * for default streams, whose handles mean several streams. */
uint64_t weir__order_last_with(const struct weir_order *o, weir_stream stream);
/* Records that there is more than one stream. */
void weir__order_several(struct weir_order *o);
/* Returns 1 if weir__order_maintain would record an event or query the stream, else 0. */
int weir__order_is_due(const struct weir_order *o, const struct weir_order_stream *s);
/* Returns the bytes that the stream can free before weir__order_is_due returns 1.  Returns 0 if the next free may make
 * an event due, UINT64_MAX if there is no other stream.  `s` is NULL if the stream has no record. */
uint64_t weir__order_room(const struct weir_order *o, const struct weir_order_stream *s);
/* Records that a request found no memory.  An event is then due for each stream with open frees, at its next call. */
void weir__order_dry(struct weir_order *o);

/* Queries the stream's marks, oldest first, and removes up to `most` completed ones.  Returns how many there were. */
size_t weir__order_observe(struct weir_order *o, struct weir_order_stream *s, size_t most);
/* Queries up to `most` marks, without a wait, of streams in turn, from where the last call stopped.  With SIZE_MAX,
 * queries each stream up to its first mark that is not complete.  Returns 1 if a mark has completed, else 0. */
int weir__order_look_around(struct weir_order *o, size_t most);
/* Returns 1 if the host has observed the stream's frees up to the sequence, else 0. */
int weir__order_is_observed(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Records an event for the open frees, in a call on `stream`, whose record is `s` and which is not being captured. */
void weir__order_mark(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Returns 1 if an event covers the stream's free with that sequence, else 0. */
int weir__order_may_follow(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* Makes all work that is queued on `stream` from now on wait for the free `sequence` of stream `id`, for which
 * weir__order_may_follow has returned 1.  `stream` is a request's, and not captured.  Returns the driver's result. */
CUresult weir__order_follow(struct weir_order *o, weir_stream stream, uint64_t id,
                            uint64_t sequence);
/* Queries in a call on the stream with that id whether it is idle.  If so, its frees have completed.  Does nothing if
 * the id is 0, or if the stream is being captured.
 *
 * An idle non-blocking stream has finished its work.  A blocking stream waits for the legacy stream's work only once
 * something is queued on the blocking stream (H200, driver 580: cuStreamQuery returns 0 while work runs on NULL).  So
 * this function records an event on a blocking stream and queries the event for some microseconds.
 */
void weir__order_ask(struct weir_order *o, uint64_t id, weir_stream stream);
/* Covers the frees of the stream with that id, which exists and is not captured; any thread may call this.  If the
 * stream is idle, observes its frees as weir__order_ask does; else records an event, but not on a default stream: later
 * work on blocking streams would wait for that event. */
void weir__order_cover(struct weir_order *o, uint64_t id, weir_stream stream);
/* Records that all frees have completed, deferred ones too, since the device has finished all work. */
void weir__order_observe_all(struct weir_order *o);
/* Records that all frees up to `sequence` have completed: the device has finished all work before the next free. */
void weir__order_observe_until(struct weir_order *o, uint64_t sequence);

/* Records an event on `stream`.  The caller passes the event to weir__order_recycle when it needs the event no longer.
 * The meaning of `id` is that of weir__device_record.  Returns OK, E_CAPTURE or the status of the driver's result. */
weir_status weir__order_record(struct weir_order *o, weir_stream stream, uint64_t id,
                               CUevent *event);
/* Returns 1 if the work before the event has completed, else 0. */
int weir__order_is_done(const struct weir_order *o, CUevent event);
/* Keeps an event for a later weir__order_record, or destroys it if there is no host memory. */
void weir__order_recycle(struct weir_order *o, CUevent event);

/* Defers the free of `freed` until the present work on `stream` and on each stream of `uses` (or NULL) has completed.
 * On an error defers nothing, and marks uses of streams that the driver does not know `refused`.  Returns OK,
 * E_HOST_MEMORY, E_CAPTURE or the status of the driver's result. */
weir_status weir__order_defer(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              uintptr_t freed);
/* Queries the fences of up to `most` deferred frees, each once, from where the last call stopped.  Ends the frees whose
 * fences have completed.  Returns 1 if there was such a free, else 0. */
int weir__order_complete(struct weir_order *o, size_t most);

#endif
