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
 * When.  While there is only one stream never.  With several an event is worth what it lets others
 * have.  A stream uses what it frees again and again while it is at work, and an event in the midst of
 * that gives others next to nothing; what matters is what it leaves when its burst is over, and then
 * it may not call for long.  So events follow how much a stream holds (has taken, and not freed yet):
 *   young      a stream's first 16 frees have an event each: it may end after any call, and can then
 *              be asked no more;
 *   asked      somebody ran dry since it recorded last: it records what is open, wherever it stands,
 *              and what it holds then is its low until it holds less;
 *   low        for 2,048 frees after the second stream showed up, and after each time that somebody
 *              ran dry, a stream records when it holds no more than at its low, or little more: as far
 *              as anybody can know, a burst has ended.  Only if that has fallen by `worth` since its
 *              last event: 64 KiB, or a part of all memory where that is more;
 *   much       for as long, wherever the stream stands, when what it holds has fallen by 4 times that;
 *   telling    what a stream holds has fallen by 8 times that, and 16 MiB: it records, for others would grow
 *              by as much before they ask;
 *   alone      both of these are without success if nobody else calls before the next one.  Where a stream's bursts end
 *              is learned: what it held when another's call came is its rest, and near that it records as at
 *              its low.  Each burst in a row that so ended with little open lets the events of the next one
 *              be twice as far apart, up to 4 times; one that did not ends that;
 *   settled    otherwise nothing is recorded.
 * So a burst costs an event, whatever goes on in it, and who runs dry finds all that others have freed
 * but a little.  A load whose streams live on each other's memory runs dry when it has settled, grows
 * a little, and in the end each stream has enough of its own.
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

/* Calls of other streams after which a stream may have ended; BUSY: while events are pending, that is the
 * device is at work, and the wait that finds out is for all of that. */
enum { WEIR_ORDER_SILENT_CALLS = 512, WEIR_ORDER_SILENT_CALLS_BUSY = 4096 };

/* First to last by next. */
struct weir_order_list {
    struct weir_order_stream *first, *last;
};

/* Where a stream stands in a list. */
struct weir_order_place {
    struct weir_order_stream *next, *prev;
};

struct weir_order_stream {
    uint64_t id;         /* 0: not known */
    uint64_t sequence;   /* of its last free */
    uint64_t covered;    /* its frees up to here have events, or are done */
    uint64_t observed;   /* and were completed up to here */
    uint64_t frees;      /* on it so far */
    size_t open;         /* of these, such that no event covers, */
    uint64_t open_bytes; /* and their bytes */
    int64_t held;        /* bytes; below 0: it frees what others took */
    int64_t low;         /* held when it last told, by an event or idle, */
    uint64_t fallen;     /* and how far held is below its peak since */
    int64_t rest;        /* held when another stream's call came last, */
    unsigned foreseen;   /* and so many such in a row left little open */
    unsigned alone;      /* times that it told since another stream's call */
    uint64_t dry_seen;   /* value of order.dry when it last told */
    int is_apart;        /* runs beside the legacy stream; below 0: not known */
    unsigned between;    /* events between two questions whether it is idle, */
    unsigned recorded;   /* and events since the last one */
    uint64_t called;     /* value of order.calls at its last call */
    struct weir_order_mark *marks, **marks_end; /* oldest first */
    struct weir_order_place by_marks; /* in order.marked, or in order.quiet, or in neither */
    struct weir_order_place by_open;  /* in order.silent, if frees are open */
};

struct weir_order {
    struct weir_device *device;
    weir__order_observed_fn *observed;
    void *context;                     /* handed to observed */
    uint64_t sequence;                 /* of the last free on any stream */
    uint64_t calls;                    /* of all streams so far, but of the only one */
    struct weir_map streams;           /* by id */
    struct weir_order_stream *unknown; /* stream 0, if it was seen */
    struct weir_order_stream *recent;  /* looked up last, or NULL */
    struct weir_order_list marked;     /* with marks: to be asked next first */
    struct weir_order_list quiet;      /* to be forgotten first */
    struct weir_order_list silent;     /* with open frees */
    size_t waiting_marks, silent_streams;
    uint64_t open_bytes;      /* of all streams */
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

/* Events recorded so far. */
static inline uint64_t weir__order_records(const struct weir_order *o) {
    return o->event_records;
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
/* A free of so many bytes on `s`: its sequence.  It is open until tend tells of it. */
uint64_t weir__order_freed(struct weir_order *o, struct weir_order_stream *s, size_t bytes);
/* A free on `s` that has an event of its own at once: its sequence in *sequence.  An error: as if
 * there had been no free.  E_HOST_MEMORY, E_CAPTURE, or what the driver has against it. */
weir_status weir__order_freed_marked(struct weir_order *o, struct weir_order_stream *s,
                                     weir_stream stream, uint64_t *sequence);
/* There is more than one stream, as far as the owner knows. */
void weir__order_several(struct weir_order *o);
/* tend would tell of it. */
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
/* Only a wait for the device will tell of a free of that stream and sequence, as far as anybody can know:
 * no event covers it, and the stream was not heard of for many calls. */
int weir__order_is_stranded(const struct weir_order *o, uint64_t id, uint64_t sequence);

/* Records on `stream` and on each noted one.  An error: nothing is left, and uses of streams that the
 * driver does not know are marked refused.  E_HOST_MEMORY, E_CAPTURE, or the driver's. */
weir_status weir__order_fence(struct weir_order *o, weir_stream stream, struct weir_use_list *uses,
                              struct weir_fence **fence);
/* 1 when all its streams are past it; asks the driver. */
int weir__order_fence_done(struct weir_order *o, struct weir_fence *fence);
/* Forgets it, done or not. */
void weir__order_fence_drop(struct weir_order *o, struct weir_fence *fence);

#endif
