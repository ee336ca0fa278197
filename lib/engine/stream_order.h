/* SPDX-License-Identifier: MIT */
/* stream_order.h: what the host has observed of each stream.
 *
 * For engines that hand memory on from one stream to another without the driver's help.  Its owner says
 * which frees each stream has seen; this file numbers them, records events, looks whether they have
 * completed, and tells the owner up to which sequence a stream was observed.
 *
 * Glossary
 *   sequence   of a free: rises over all streams, so that a stream that was forgotten may come back
 *   mark       an event that stands for all frees of a stream up to a sequence
 *   open       a free that no event covers yet
 *   silent     a stream with open frees: only its owner's next call will tell of them
 *   quiet      a stream of which nothing is open and no mark waits: it may be forgotten
 *   dry        a stream is dry when it finds nothing that it may use
 *   held       by a stream: bytes that it has taken less those that it has freed, on whichever stream they were taken
 *   fence      events on several streams at once, for a block that more than one of them uses
 *
 * Where events are recorded.  Only inside calls that pass the stream (recording on another thread's
 * stream could land in its capture or on a dead handle), and handles are never asked about outside
 * such calls: a destroyed stream's handle crashes the driver, or belongs to another stream by then.
 * weir__order_cover is for callers that keep captures from beginning and streams from ending meanwhile.
 * One event covers all frees of a stream so far.  None is recorded on a non-blocking stream that is found
 * idle then: all that it was given is done, and its owner is told at once.  One that is found at work is asked
 * again after an event, after two, and so on to 16.
 *
 * When.  A program with one stream has no events.  With several streams, an event is worth what it lets others have.
 * While a stream is at work, it uses its own frees again and again, so an event then gives others little.  What the
 * stream leaves at the end of its burst matters, and afterwards it may not call for long.  So events follow how much a
 * stream holds:
 *   young      A stream's first 16 frees have an event each: the stream may end after any call, and no later call would
 *              record for it.
 *   asked      Another request ran dry since the stream recorded last.  The stream records at its next call.  What it
 *              holds then is its low until it holds less.
 *   low        A stream records when it holds as much as at its low, or little more, and has fallen by `worth`
 *              (a 256th of the reserved memory, 64 KiB at least) since its last event.
 *   much       A stream records when what it holds has fallen by 4 times `worth`.
 *   share      A stream records when what it holds has fallen by its share of 16 times `worth` (32 MiB at least).
 *              All silent streams have equal shares, so what those that go on calling keep from others does not grow
 *              with their number.  Streams that ended unseen are silent, too: the more of them there are, the less the
 *              next one leaves.  128 of them leave 5.4 times the whole at most, the sum of 1/n.  Beyond 128 silent
 *              streams each free is due, since each such stream costs host memory.
 * Low and much hold for 2,048 frees after the second stream appeared, and after each time that a request ran dry.
 * Events of much and share serve nobody if no other stream calls before the next one.  After each burst whose events
 * left little open, the events of the next burst are twice as far apart, up to 4 times.  A burst that left much open
 * ends that.
 * So a burst costs an event, and a request that runs dry finds all frees of other streams but a little.  A load whose
 * streams live on each other's memory runs dry when it has settled, grows a little, and in the end each stream has
 * enough of its own.
 *
 * Cost.  A stream is found in a hash table.  A glance asks about at most 32 events, of the streams that
 * have marks, and goes on where the last one left off.  A new stream pays for old ones: two that have
 * marks are asked, two that are quiet and were not heard of for 16,384 calls are forgotten.  So what is
 * kept follows the streams that are in use, or have left frees open, and no call takes longer because
 * there were many others.
 *
 * Streams are told apart by cuStreamGetId; 0 is a stream that is not known (below driver 12.0 none
 * is).  Marks on stream 0 must each be recorded at once: a later call's handle may mean another one.
 *
 * The caller holds the lock under which all of it lies; driver calls for events are made under it.
 *
 * Must not know: placement, blocks, growth; what its owner does with what it is told.
 */
#ifndef WEIR_STREAM_ORDER_H
#define WEIR_STREAM_ORDER_H

#include "base/lock.h"
#include "base/map.h"
#include "engine/engine.h"

/* The host has observed stream `id` past `sequence`.  Must not call back into the order. */
typedef void weir__order_observed_fn(void *context, uint64_t id, uint64_t sequence);

struct weir_order_mark;
struct weir_order_stream;

/* First to last by next. */
struct weir_order_list {
    struct weir_order_stream *first, *last;
};

/* Where a stream stands in a list. */
struct weir_order_place {
    struct weir_order_stream *next, *prev;
};

struct weir_order_stream {
    uint64_t id;         /* 0: the id is not known */
    weir_stream handle;  /* by which order.by_handle finds the stream, or NULL */
    uint64_t sequence;   /* the sequence of its last free */
    uint64_t observed;   /* the host has seen that its frees up to here are complete */
    uint64_t frees;      /* the number of its frees */
    size_t open;         /* the number of its open frees */
    uint64_t open_bytes; /* the bytes of its open frees */
    int64_t held;        /* the bytes that it holds; below 0: it frees what other streams took */
    int64_t low;         /* the value of `held` that counts as low */
    uint64_t fallen;     /* how far `held` is below its peak since the last event */
    unsigned
        foreseen; /* the number of its last bursts in a row that left little open; FAR at most */
    unsigned alone;      /* its events since another stream called */
    uint64_t dry_seen;   /* the value of order.dry at its last event */
    int is_apart;        /* 1 if it runs beside the legacy stream; below 0: not known */
    unsigned between;    /* events between two queries of the stream for idleness */
    unsigned recorded;   /* events since the last such query */
    uint64_t called;     /* the value of order.calls at its last call */
    struct weir_order_mark *marks, **marks_end; /* oldest first */
    struct weir_order_place by_marks; /* its place in order.marked or order.quiet, if it is in one */
    struct weir_order_place by_open;  /* its place in order.silent, if it has open frees */
};

struct weir_order {
    struct weir_device *device;
    weir__order_observed_fn *observed;
    void *context;                     /* handed to observed */
    uint64_t sequence;                 /* of the last free on any stream */
    uint64_t calls;                    /* of all streams so far, but of the only one */
    struct weir_map streams;           /* by id */
    struct weir_map by_handle;         /* the stream that called last with a handle */
    struct weir_order_stream *unknown; /* stream 0, if it was seen */
    struct weir_order_stream *recent;  /* looked up last, or NULL */
    struct weir_order_list marked;     /* with marks: to be asked next first */
    struct weir_order_list quiet;      /* to be forgotten first */
    struct weir_order_list silent;     /* with open frees */
    size_t waiting_marks, silent_streams;
    int several;              /* order matters: a second stream was seen, or stream 0 */
    uint64_t unsettled_until; /* a sequence */
    uint64_t worth;           /* bytes that are worth an event; set by the owner, 64 KiB at least */
    uint64_t dry;             /* times that a stream found nothing that it may use */
    CUevent *spare;           /* events to use again */
    size_t spare_count, spare_capacity;
    uint64_t event_records; /* events recorded so far */
};

/* Events recorded on several streams; all done when the last of them is. */
struct weir_fence {
    size_t events; /* not yet completed */
    CUevent event[];
};

/* Takes no memory; the device outlives it.  observed: NULL where nothing is ever freed, as for fences
 * alone. */
void weir__order_open(struct weir_order *o, struct weir_device *device,
                      weir__order_observed_fn *observed, void *context);
/* No fence is left. */
void weir__order_close(struct weir_order *o);

/* The stream of that id is the only one so far: its calls need no looking after. */
static inline int weir__order_is_only(const struct weir_order *o, uint64_t id) {
    return !o->several && o->recent && o->recent->id == id;
}

/* A call on the stream: what is kept about it, made when it is seen first; NULL: no host memory.  Valid
 * until the next such call.  A new stream makes others be asked about and forgotten. */
struct weir_order_stream *weir__order_stream(struct weir_order *o, uint64_t id);
/* The same without any driver call: nothing is forgotten that must be asked about. */
struct weir_order_stream *weir__order_stream_silently(struct weir_order *o, uint64_t id);
/* For every operation on `stream`, which is `s`: tells of its open frees by the rules above, by an event or, if it is
 * idle, at once.  What the driver refuses is tried again at a later call. */
void weir__order_maintain(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* The stream looked up last has taken so many bytes. */
static inline void weir__order_taken(struct weir_order *o, size_t bytes) {
    struct weir_order_stream *s = o->recent;

    if (!s)
        return;
    s->held += (int64_t)bytes;
    s->fallen = s->fallen > bytes ? s->fallen - bytes : 0;
}
/* Notes a free of so many bytes on `s`, and returns its sequence.  The free is open until an event covers it, or until
 * weir__order_maintain finds the stream idle. */
uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s, size_t bytes);
/* A free on `s` that has an event of its own at once: its sequence in *sequence.  An error: as if
 * there had been no free.  E_HOST_MEMORY, E_CAPTURE, or what the driver has against it. */
weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence);
/* Returns the id of the stream that called last with this handle, or 0 if none is known.  The handle still means that
 * stream, or else that stream has ended: then no event will be recorded on it any more, so that only a wait for the device
 * observes what is freed under its id.  Returns 0 for default streams, whose handles mean several streams. */
uint64_t weir__order_last_with(const struct weir_order *o, weir_stream stream);
/* There is more than one stream, as far as the owner knows. */
void weir__order_several(struct weir_order *o);
/* Returns 1 if weir__order_maintain would record an event, or look whether the stream is idle. */
int weir__order_is_due(const struct weir_order *o, const struct weir_order_stream *s);
/* Somebody ran dry: every stream is asked to record what is open at its owner's next call. */
void weir__order_dry(struct weir_order *o);

/* Takes the stream's completed marks off; 1 if there was one. */
int weir__order_observe(struct weir_order *o, struct weir_order_stream *s);
/* Asks about up to `most` marks, without waiting; of streams in turn, going on where the last call
 * left off.  SIZE_MAX: each stream is asked until it has an event that is not done.  1 if something has
 * completed. */
int weir__order_look_around(struct weir_order *o, size_t most);
/* The host has seen the stream of that id past the sequence. */
int weir__order_is_observed(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* In a call on `stream`, which is `s` and not being captured: an event is recorded for what is open. */
void weir__order_mark(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Whether an event covers what the stream of that id freed with that sequence. */
int weir__order_may_follow(const struct weir_order *o, uint64_t id, uint64_t sequence);
/* In a call on `stream`, which is not being captured: what is queued on it from here on runs after all that
 * the stream of that id had done when it freed something with that sequence, as may_follow has it.  What the
 * driver has against it. */
CUresult weir__order_follow(struct weir_order *o, weir_stream stream, uint64_t id,
                            uint64_t sequence);
/* A call on the stream, whose id is known, wants what was freed on it observed, if it is idle: a non-blocking stream
 * is then, and on others an event is recorded for what is open and asked about for some microseconds.  That
 * they are idle is no proof by itself: what the legacy stream runs, a blocking stream is only behind once something
 * is queued on it (H200, driver 580: work on NULL, cuStreamQuery of a blocking stream: 0).  Nothing where it is
 * being captured. */
void weir__order_ask(struct weir_order *o, struct weir_order_stream *s, weir_stream stream);
/* Any thread may call this for a stream of that id that exists and is not being captured.  If the stream is idle, its
 * frees are observed as by ask; else an event covers them.  Nothing is recorded on a default stream that is at work:
 * later work on blocking streams would wait for the event.
 * Takes the lock that guards `o`.  With id 0 it asks nothing; WEIR_E_BUSY: a request holds the lock, maybe while it waits
 * for the device. */
weir_status weir__order_cover(struct weir_order *o, struct weir_lock *lock, uint64_t id,
                              weir_stream stream);
/* The device has finished all work: nothing is behind anything any more. */
void weir__order_observe_all(struct weir_order *o);
/* Observes all frees up to `sequence`, since the device has finished all work that was submitted before the free after
 * it. */
void weir__order_observe_until(struct weir_order *o, uint64_t sequence);

/* Records on `stream` and on each noted one.  An error: nothing is left, and uses of streams that the
 * driver does not know are marked refused.  E_HOST_MEMORY, E_CAPTURE, or the driver's. */
weir_status weir__order_fence(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              struct weir_fence **fence);
/* 1 when all its streams are past it; asks the driver. */
int weir__order_fence_done(struct weir_order *o, struct weir_fence *fence);
/* Forgets it, done or not. */
void weir__order_fence_drop(struct weir_order *o, struct weir_fence *fence);

#endif
