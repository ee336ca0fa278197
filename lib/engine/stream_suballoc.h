/* SPDX-License-Identifier: MIT */
/* stream_suballoc.h: blocks in stream order, cut from regions that its owner provides.
 *
 * placement.h decides where a block goes, and stream_order.h knows which frees of each stream the host has observed.
 * The engines that place blocks themselves use both through this file.
 *
 * Stream order.  A freed block carries (stream id, sequence).  The block serves its own stream at once.  It serves
 * other streams, and merges with their memory, only once the host has observed its stream past the sequence.  With one
 * stream no event is recorded.  If a request does not fit, the engine queries a few events, and all of them before
 * reserved memory grows.
 *
 * A block that other streams use too (weir_use) is pending after its free: it stays placed until events on all these
 * streams have completed.
 *
 * A free on stream 0 (not known) serves no stream before it was observed, and records its event at once.  A free that
 * has no event, or no host memory for its record, is quarantined: it serves no stream before a wait for the device.
 *
 * The caller holds the lock that guards a suballoc.  Driver calls for events run under the lock; the wait for the
 * device does not.
 *
 * This file must not know growth, engines, where regions come from or which of them go back.
 */
#ifndef WEIR_STREAM_SUBALLOC_H
#define WEIR_STREAM_SUBALLOC_H

#include "base/map.h"
#include "engine/engine.h"
#include "engine/stream_order.h"
#include "placement/placement.h"

struct weir_suballoc_pending;

/* The rule of a suballoc, beside the rule of its placements. */
struct weir_suballoc_rule {
    struct weir_placement_rule placement;
    /* Requests of up to `small` bytes have their own regions.  If it is 0, all requests share regions. */
    size_t small;
};

/* The kinds of regions, by the requests that they serve. */
enum {
    WEIR_SUBALLOC_COMMON, /* requests that are not small */
    WEIR_SUBALLOC_SMALL,  /* small requests */
    WEIR_SUBALLOC_APART,  /* requests that name an address */
    WEIR_SUBALLOC_KINDS
};

struct weir_suballoc_region {
    uint64_t base;
    size_t bytes;
    int kind;
};

/* The state of a suballoc.  It must not be moved in memory while it is open. */
struct weir_suballoc {
    struct weir_suballoc_rule rule;
    /* One placement for each kind of regions; only the first, if all requests share regions. */
    struct weir_placement *placement[WEIR_SUBALLOC_KINDS];
    struct weir_engine *engine;
    struct weir_order order;
    struct weir_suballoc_region *regions; /* sorted by base */
    size_t region_count, region_capacity;
    uint64_t total;                        /* bytes in all regions */
    struct weir_suballoc_pending *pending; /* blocks that wait for a fence, oldest first */
    struct weir_suballoc_pending **pending_end;
    struct weir_map pending_blocks; /* the addresses of the pending blocks */
    uint64_t observed;              /* the sequence of the last free under OBSERVED */
    uint64_t
        quarantined; /* bytes freed under QUARANTINE so far; the frees' sequences rise with it */
    uint64_t requested, requested_peak;
    uint64_t in_use, in_use_peak;
    uint64_t taken; /* the bytes allocated so far */
    /* requests served by memory that other streams freed, after a query of events */
    uint64_t steals;
};

/* Opens a suballoc that belongs to the engine, which outlives it.  Returns OK or E_HOST_MEMORY. */
weir_status weir__suballoc_open(struct weir_suballoc *s, struct weir_engine *engine,
                                const struct weir_suballoc_rule *rule);
/* Frees all host memory.  Live and pending blocks are forgotten. */
void weir__suballoc_close(struct weir_suballoc *s);

/* The slow path of weir__suballoc_visit, for several streams. */
weir_status weir__suballoc_visit_several(struct weir_suballoc *s, uint64_t id, weir_stream stream);
/* Records the events that are due on `stream`; every request on it begins with this.  Returns OK or E_HOST_MEMORY. */
static inline weir_status weir__suballoc_visit(struct weir_suballoc *s, uint64_t id,
                                               weir_stream stream) {
    return weir__order_is_only(&s->order, id) ? WEIR_OK
                                              : weir__suballoc_visit_several(s, id, stream);
}
/* Places a block for the stream of that id.  If none fits, the function first queries a few events.  Returns a placement's result: OK, NO_FIT, NO_MEMORY or INVALID.  After
 * NO_FIT the owner calls weir__suballoc_dry. */
int weir__suballoc_take(struct weir_suballoc *s, size_t bytes, uint64_t id,
                        struct weir_placement_block *out);
/* Places a block at that address, if memory that is free for every stream starts there. */
int weir__suballoc_take_at(struct weir_suballoc *s, uint64_t address, size_t bytes, uint64_t id,
                           struct weir_placement_block *out);
/* Places a block in a region of any kind, for an owner that can get no more memory. */
int weir__suballoc_take_anywhere(struct weir_suballoc *s, size_t bytes, uint64_t id,
                                 struct weir_placement_block *out);
/* Returns the bytes of the largest block that the stream with that id could get anywhere now, without a wait, after
 * its request failed.  Returns 0 if there is none. */
size_t weir__suballoc_largest(struct weir_suballoc *s, uint64_t id);
/* Records that a request lacked memory: every stream then records an event for its frees at its next call. */
void weir__suballoc_dry(struct weir_suballoc *s);
/* Places a block as weir__suballoc_take does, before the owner grows or moves regions, but queries all events: a
 * completed free that it missed would cost memory, and queries cost little beside mapping memory.  Never waits. */
int weir__suballoc_take_at_last(struct weir_suballoc *s, size_t bytes, uint64_t id,
                                struct weir_placement_block *out);
/* Returns 1 if another stream may wait for the free of the stream `id` with `sequence`: the setting
 * internal_dependencies is on, and an event covers that free.  Returns 0 otherwise. */
int weir__suballoc_may_follow(const struct weir_suballoc *s, uint64_t id, uint64_t sequence);
/* Places a block in several adjacent free chunks, for a request on `stream` with that id that did not fit.  The chunks
 * are free for all streams, the stream's own, or freed by streams that it may wait for.  On the device it waits for
 * their work. */
int weir__suballoc_take_behind(struct weir_suballoc *s, size_t bytes, uint64_t id,
                               weir_stream stream, struct weir_placement_block *out);
/* Frees a block on `stream` with that id and on the streams of `uses` (or NULL).  Returns the results of `free`. */
weir_status weir__suballoc_give(struct weir_suballoc *s, CUdeviceptr block, uint64_t id,
                                weir_stream stream, struct weir_use_list *uses);
/* Implements an engine's `give`, and takes the blocks that a request brings. */
weir_status weir__suballoc_give_all(struct weir_suballoc *s, struct weir_freed *freed, uint64_t id);
/* Writes the results of a batch of frees of that stream, or of a request that brought the batch. */
void weir__suballoc_tell_room(const struct weir_suballoc *s, struct weir_freed *freed, uint64_t id);
/* Frees a block on a stream whose id the driver cannot tell, since the stream is captured or stands beside a capture.
 * The stream has the block again after the capture.  Returns the results of an engine's `give`. */
weir_status weir__suballoc_give_captured(struct weir_suballoc *s, CUdeviceptr block,
                                         weir_stream stream);

/* Returns 1 if requests of this size have regions of their own. */
int weir__suballoc_is_small(const struct weir_suballoc *s, size_t bytes);
/* Adds a region of that kind, or COMMON if all kinds share.  All streams may use its memory at once; without memory it
 * is a range of addresses.  Returns a placement's OK, NO_MEMORY or INVALID. */
int weir__suballoc_add(struct weir_suballoc *s, uint64_t base, size_t bytes, int kind,
                       int has_memory);
/* Gives memory to a part of an unmapped range.  The range starts at `below`, where the last memory below `address`
 * ends, or with its region.  The stream with that id may use it at once, or, with OBSERVED, all streams.  Returns a
 * placement's result. */
int weir__suballoc_fill(struct weir_suballoc *s, uint64_t below, uint64_t address, size_t bytes,
                        uint64_t id);
/* Removes the memory of a range of addresses, whichever streams may use it.  The range may lie in several adjacent free
 * chunks, of which `chunk` is the first.  Returns a placement's result. */
int weir__suballoc_unmap(struct weir_suballoc *s, uint64_t chunk, uint64_t address, size_t bytes);
/* Records an event for the frees of the stream with that id, in a request on it. */
void weir__suballoc_mark(struct weir_suballoc *s, uint64_t id, weir_stream stream);
/* Queries in a call on the stream with that id whether it is idle.  If so, its frees have completed.  Does nothing if
 * the id is not known.
 */
void weir__suballoc_ask(struct weir_suballoc *s, uint64_t id, weir_stream stream);
/* Returns 1 if the address lies in a region, 0 otherwise. */
int weir__suballoc_holds(struct weir_suballoc *s, uint64_t address);
/* Removes the region at that index, all of whose memory every stream may use. */
void weir__suballoc_remove(struct weir_suballoc *s, size_t at);

/* Makes the host tables for blocks in `bytes` of memory, before the first requests need them. */
void weir__suballoc_stock(struct weir_suballoc *s, size_t bytes);
/* Implements an engine's `survey` except for WEIR_SURVEY_LARGEST, which the engine answers itself. */
void weir__suballoc_survey_for(struct weir_suballoc *s, struct weir_survey *out);
/* Implements an engine's `visit` for BLOCKS, BLOCK_AT and PIECE_AT, and for WHOLES if there are regions. */
int weir__suballoc_show(struct weir_suballoc *s, const struct weir_visit *visit);

/* Queries all events and fences once, without a wait.  Returns 1 if one has completed, else 0. */
int weir__suballoc_look_around(struct weir_suballoc *s);
/* Makes all freed memory available to all streams, since the device has finished all work. */
void weir__suballoc_observe_all(struct weir_suballoc *s);
/* Waits for the device if there are frees that no event covers, if memory is quarantined, or in any case with `must`.
 * Releases `lock`, which the caller holds, during the wait, so that other calls go on.  Afterwards observes all frees
 * that came before the wait. */
CUresult weir__suballoc_wait_beside(struct weir_suballoc *s, struct weir_lock *lock, int must);
/* Fills requested, in_use, their peaks, extent, host_bytes, steals and event_records. */
void weir__suballoc_figures(const struct weir_suballoc *s, weir_statistics *out);

#endif
