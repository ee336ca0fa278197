/* SPDX-License-Identifier: MIT */
/* stream_suballoc.h: blocks in stream order, cut from regions that its owner provides.
 *
 * placement.h decides where a block goes, and stream_order.h knows which frees of each stream the host has observed.
 * The engines that place blocks themselves use both through this file.
 *
 * Stream order.  A freed block carries (stream id, sequence).  The block serves its own stream at once.  It serves other
 * streams, and merges with their memory, only once the host has observed its stream past the sequence.  With one stream
 * no event is recorded.  If a request does not fit, the engine queries a few events, and all of them before reserved
 * memory grows.
 *
 * A block that other streams use too (weir_use) is pending after its free: it stays placed until events on all these
 * streams have completed.
 *
 * A free on stream 0 (not known) serves no stream before it was observed, and records its event at once.  A free that
 * has no event, or no host memory for its record, is quarantined: it serves no stream before a wait for the device.
 *
 * The caller holds the lock that guards a suballoc.  Driver calls for events run under the lock; the wait for the device
 * does not.
 *
 * Must not know: where regions come from, which of them to give back, growth, engines.
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
    size_t
        small; /* requests of up to `small` bytes have regions of their own; 0: all requests share regions */
    /* Nonzero: of chunks that fit equally well, one of the newest region is taken, else the lowest
     * address.  Where a block goes then does not depend on where the driver puts regions. */
    int newest_first;
};

/* The kinds of regions, by the requests that they serve. */
enum {
    WEIR_SUBALLOC_COMMON, /* requests that are not small */
    WEIR_SUBALLOC_SMALL,  /* small requests */
    WEIR_SUBALLOC_BASE, /* requests that are not small; a BASE region is used before any COMMON one */
    WEIR_SUBALLOC_APART, /* requests that name an address */
    WEIR_SUBALLOC_KINDS
};

struct weir_suballoc_region {
    uint64_t base;
    size_t bytes;
    uint64_t place; /* its address in the placement: its base, or below all older regions */
    int kind;
    int idle;   /* the last survey found no live and no pending block in it */
    int serves; /* the last survey found all of it free for the stream of the survey */
};

/* A region in the address space of the placement. */
struct weir_suballoc_place {
    uint64_t place, base;
    size_t bytes;
};

/* Addresses of one unit lie in one region or in few, since a region has at least a unit as a rule. */
#define WEIR_SUBALLOC_UNIT_BITS 25
#define WEIR_SUBALLOC_UNITS 64 /* the number of units that the tables below tell apart */

/* Not moved while it is open. */
struct weir_suballoc {
    struct weir_suballoc_rule rule;
    /* One placement for each kind of regions; only the first, if all requests share regions. */
    struct weir_placement *placement[WEIR_SUBALLOC_KINDS];
    size_t bases;        /* regions of that kind */
    uint64_t next_place; /* newest_first: places below it are free */
    struct weir_engine *engine;
    struct weir_order order;
    struct weir_suballoc_region *regions; /* in order of base */
    size_t region_count, region_capacity;
    struct weir_suballoc_place
        *places; /* newest_first: the same regions by place, from high to low */
    size_t place_capacity;
    /* For each unit, the position of the region that was found last.  Another region may have that position now. */
    uint32_t region_seen[WEIR_SUBALLOC_UNITS], place_seen[WEIR_SUBALLOC_UNITS];
    uint64_t total;                        /* bytes in all regions */
    struct weir_suballoc_pending *pending; /* oldest first */
    struct weir_suballoc_pending **pending_end;
    struct weir_map pending_blocks; /* their addresses */
    uint64_t observed;              /* sequence of the last give under OBSERVED */
    uint64_t quarantined; /* bytes given under QUARANTINE so far; their sequences rise with it */
    uint64_t requested, requested_peak;
    uint64_t in_use, in_use_peak;
    uint64_t taken; /* bytes that requests got so far */
    uint64_t
        changes; /* in what requests may have: one that did not fit need not try again before the next */
    uint64_t steals; /* requests served only because other streams were seen to be done */
};

/* OK or E_HOST_MEMORY.  The engine, whose part it is, outlives it. */
weir_status weir__suballoc_open(struct weir_suballoc *s, struct weir_engine *engine,
                                const struct weir_suballoc_rule *rule);
/* Whatever is still live or pending is forgotten. */
void weir__suballoc_close(struct weir_suballoc *s);

/* The slow path of weir__suballoc_visit, for several streams. */
weir_status weir__suballoc_visit_several(struct weir_suballoc *s, uint64_t id, weir_stream stream);
/* Every request on `stream` begins with it: events are recorded that are due there.  OK or
 * E_HOST_MEMORY. */
static inline weir_status weir__suballoc_visit(struct weir_suballoc *s, uint64_t id,
                                               weir_stream stream) {
    return weir__order_is_only(&s->order, id) ? WEIR_OK
                                              : weir__suballoc_visit_several(s, id, stream);
}
/* Places a block for the stream of that id.  If none fits, the function first queries a few events.  It does not cut idle
 * regions of more than `most` bytes.  Returns a placement's result: OK, NO_FIT, NO_MEMORY or INVALID.  After NO_FIT the
 * owner calls weir__suballoc_dry. */
int weir__suballoc_take(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
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
/* Notes that the request did not fit: every stream records an event for its frees at its next call. */
void weir__suballoc_dry(struct weir_suballoc *s, struct weir_request *r);
/* Returns 1 if weir__suballoc_dry was called for the request and nothing has changed since. */
static inline int weir__suballoc_is_dry(const struct weir_suballoc *s,
                                        const struct weir_request *r) {
    return r->dry_at == s->changes + 1;
}
/* Places a block as weir__suballoc_take does, before the owner grows or moves regions.  The function queries all events,
 * since a completed free that it missed would cost memory, and the queries cost little beside a call that maps memory.
 * It never waits. */
int weir__suballoc_take_at_last(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
                                struct weir_placement_block *out);
/* Returns 1 if another stream may wait for the free of the stream `id` with `sequence`: the setting
 * internal_dependencies is on, and an event covers that free.  Returns 0 otherwise. */
int weir__suballoc_may_follow(const struct weir_suballoc *s, uint64_t id, uint64_t sequence);
/* Places a block in several adjacent free chunks, for a request on `stream` with that id that did not fit.  The
 * chunks are clean, the stream's own, or freed by streams that it may wait for; on the device their work comes first.
 */
int weir__suballoc_take_behind(struct weir_suballoc *s, size_t bytes, uint64_t id,
                               weir_stream stream, struct weir_placement_block *out);
/* Frees a block on `stream` with that id and on the streams of `uses` (NULL: none), with the results of an engine's
 * `free`. */
weir_status weir__suballoc_give(struct weir_suballoc *s, CUdeviceptr block, uint64_t id,
                                weir_stream stream, struct weir_use_list *uses);
/* Implements an engine's `give`. */
weir_status weir__suballoc_give_silently(struct weir_suballoc *s, CUdeviceptr block, uint64_t id);
/* Frees a block on a stream whose id the driver cannot tell, since the stream is captured or stands beside a capture.
 * The stream has the block again after the capture.  Returns the results of an engine's `give`. */
weir_status weir__suballoc_give_captured(struct weir_suballoc *s, CUdeviceptr block,
                                         weir_stream stream);

/* Returns 1 if requests of this size have regions of their own. */
int weir__suballoc_is_small(const struct weir_suballoc *s, size_t bytes);
/* Adds a region of that kind (COMMON, if all share), that the stream of that id may have at once, others
 * when it was observed; OBSERVED: everybody at once.  A placement's result: OK, NO_MEMORY, INVALID. */
int weir__suballoc_add(struct weir_suballoc *s, uint64_t base, size_t bytes, int kind, uint64_t id);
/* Adds a region of that kind that has no memory yet: a range of addresses.  A placement's result, as of
 * weir__suballoc_add. */
int weir__suballoc_add_range(struct weir_suballoc *s, uint64_t base, size_t bytes, int kind);
/* Part of a range's unmapped range, which starts at `hole`, gets memory, that the stream of that id may have at once,
 * or, under OBSERVED, everybody.  A placement's result. */
int weir__suballoc_fill(struct weir_suballoc *s, uint64_t unmapped, uint64_t address, size_t bytes,
                        uint64_t id);
/* Part of the free chunk of a range that starts at `chunk`, all of it observed, loses its memory.  A
 * placement's result. */
int weir__suballoc_punch(struct weir_suballoc *s, uint64_t chunk, uint64_t address, size_t bytes);
/* Removes the memory of that part, whichever streams may use it.  The part may lie in several adjacent free chunks,
 * of which `chunk` is the first. */
int weir__suballoc_hollow(struct weir_suballoc *s, uint64_t chunk, uint64_t address, size_t bytes);
/* Records an event for the frees of the stream with that id, in a request on it. */
void weir__suballoc_mark(struct weir_suballoc *s, uint64_t id, weir_stream stream);
/* Observes the frees of the stream with that id if it is idle, in a call on it.  Does nothing if the id is not known.
 */
void weir__suballoc_ask(struct weir_suballoc *s, uint64_t id, weir_stream stream);
/* Returns 1 if the address lies in a region, 0 otherwise. */
int weir__suballoc_holds(struct weir_suballoc *s, uint64_t address);
/* Sees which regions are idle and serve the stream of that id; linear in the regions, and in the free chunks
 * that lie before their first block. */
void weir__suballoc_survey(struct weir_suballoc *s, uint64_t id);
/* Takes the region at that place in the list away, idle and clean, or as the last survey found it for
 * the stream of that id. */
void weir__suballoc_remove(struct weir_suballoc *s, size_t at, uint64_t id);

/* Makes the host tables for blocks in so many bytes of memory, before the first requests need them.  `kinds` is the
 * number of kinds of regions, from the first on. */
void weir__suballoc_stock(struct weir_suballoc *s, int kinds, size_t bytes);
/* Implements an engine's `survey` without LARGEST. */
void weir__suballoc_survey_for(struct weir_suballoc *s, struct weir_survey *out);
/* Implements an engine's `visit` for BLOCKS, BLOCK_AT and PIECE_AT, and for WHOLES if there are regions. */
int weir__suballoc_show(struct weir_suballoc *s, const struct weir_visit *visit);

/* Looks once at everything that may have completed, without waiting; 1 if something did. */
int weir__suballoc_look_around(struct weir_suballoc *s);
/* The device has finished all work: everything that was freed serves everybody. */
void weir__suballoc_observe_all(struct weir_suballoc *s);
/* Waits for the device if there are frees that no event covers, if memory is quarantined, or in any case with `must`.
 * Releases `lock`, which the caller holds, during the wait, so that other calls go on.  Afterwards observes all frees
 * that came before the wait. */
CUresult weir__suballoc_wait_beside(struct weir_suballoc *s, struct weir_lock *lock, int must);
/* Fills requested, in_use, their peaks, extent, host_bytes, steals and event_records. */
void weir__suballoc_figures(const struct weir_suballoc *s, weir_statistics *out);

#endif
