/* SPDX-License-Identifier: MIT */
/* stream_suballoc.h: blocks in stream order, cut from regions that its owner provides.
 *
 * placement.h decides where a block goes, stream_order.h knows what the host has observed of each stream;
 * this file brings both together for the engines that place blocks themselves.
 *
 * Stream order.  A freed block carries (stream id, sequence).  It serves its own stream at once; it
 * merges with and serves others only once the host has observed its stream past the sequence.  With
 * one stream that never matters and no event is ever recorded.  Completed events are looked for when a
 * request does not fit: a few at once, all of them before the reserved memory grows.
 *
 * A block that other streams use too (weir_use) is no longer in use after its free, but stays placed
 * until events recorded on all of them have completed: it is pending.
 *
 * Frees on stream 0 (not known) serve nobody before they were observed, and each records its event at
 * once.  What cannot be tracked (a free without an event on stream 0, or without host memory for its
 * bookkeeping) is quarantined: it serves nobody until the whole device was waited for.
 *
 * The caller holds the lock under which all of it lies.  Driver calls for events are made under it; the wait for the
 * device is not.
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

/* What a suballoc does beside the placement's rule. */
struct weir_suballoc_rule {
    struct weir_placement_rule placement;
    size_t small; /* requests of up to so many bytes have regions of their own; 0: all share */
    /* Nonzero: of chunks that fit equally well, one of the newest region is taken, else the lowest
     * address.  Where a block goes then does not depend on where the driver puts regions. */
    int newest_first;
};

/* What a region serves. */
enum {
    WEIR_SUBALLOC_COMMON, /* requests that are not small; */
    WEIR_SUBALLOC_SMALL,  /* those that are; */
    WEIR_SUBALLOC_BASE,   /* those that are not, before any common one */
    WEIR_SUBALLOC_APART,  /* those that name an address */
    WEIR_SUBALLOC_KINDS
};

struct weir_suballoc_region {
    uint64_t base;
    size_t bytes;
    uint64_t place; /* where the placement has it: at its base, or below all older ones */
    int kind;
    int idle;   /* as of the last survey: without live and pending blocks, */
    int serves; /* and all of it free for the stream that was asked about */
};

/* Where a region lies in the placement's space. */
struct weir_suballoc_place {
    uint64_t place, base;
    size_t bytes;
};

/* The addresses of a unit, a region's least size as a rule, lie in one region or in few. */
#define WEIR_SUBALLOC_UNIT_BITS 25
#define WEIR_SUBALLOC_UNITS 64 /* as many are told apart */

/* Not moved while it is open. */
struct weir_suballoc {
    struct weir_suballoc_rule rule;
    /* By kind of their regions; only the first, if all requests share them. */
    struct weir_placement *placement[WEIR_SUBALLOC_KINDS];
    size_t bases;        /* regions of that kind */
    uint64_t next_place; /* newest_first: places below it are free */
    struct weir_engine *engine;
    struct weir_order order;
    struct weir_suballoc_region *regions; /* in order of base */
    size_t region_count, region_capacity;
    struct weir_suballoc_place *places; /* newest_first: of the same regions, from high to low */
    size_t place_capacity;
    /* By unit, where among them the one stood that was found last; another may stand there now. */
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

/* Where there may be several streams; see weir__suballoc_visit. */
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
/* The same as take when the owner has no more: in a region of any kind. */
int weir__suballoc_take_anywhere(struct weir_suballoc *s, size_t bytes, uint64_t id,
                                 struct weir_placement_block *out);
/* Bytes of the largest block that the stream of that id, which has just been refused one, would be placed
 * anywhere now, of what is seen without waiting; 0: none. */
size_t weir__suballoc_largest(struct weir_suballoc *s, uint64_t id);
/* The request did not fit: every stream records what it has freed, at its owner's next call. */
void weir__suballoc_dry(struct weir_suballoc *s, struct weir_request *r);
/* 1: that was said of the request, and nothing has changed since. */
static inline int weir__suballoc_is_dry(const struct weir_suballoc *s,
                                        const struct weir_request *r) {
    return r->dry_at == s->changes + 1;
}
/* Places a block as weir__suballoc_take does, before the owner grows or moves regions.  The function queries all events,
 * since a completed free that it missed would cost memory, and the queries cost little beside a call that maps memory.
 * It never waits. */
int weir__suballoc_take_at_last(struct weir_suballoc *s, size_t bytes, uint64_t id, size_t most,
                                struct weir_placement_block *out);
/* Returns 1 if another stream may wait for what the stream `id` freed with `sequence`: the setting
 * internal_dependencies is on, and an event covers that free.  Returns 0 otherwise. */
int weir__suballoc_may_follow(const struct weir_suballoc *s, uint64_t id, uint64_t sequence);
/* The same as take, for a request on `stream`, of that id, that did not fit: free chunks side by side serve it
 * together, what is the stream's, what is clean, and what others freed, if the stream may wait for them, whose
 * work then comes before its own on the device. */
int weir__suballoc_take_behind(struct weir_suballoc *s, size_t bytes, uint64_t id,
                               weir_stream stream, struct weir_placement_block *out);
/* Frees a block, on `stream` of that id and on those of `uses` (NULL: none), as an engine's free. */
weir_status weir__suballoc_give(struct weir_suballoc *s, CUdeviceptr block, uint64_t id,
                                weir_stream stream, struct weir_use_list *uses);
/* As an engine's give. */
weir_status weir__suballoc_give_silently(struct weir_suballoc *s, CUdeviceptr block, uint64_t id);
/* Frees a block on a stream that cannot be asked for its id, since it is being captured or stands beside a capture.  The
 * stream has the block again after the capture.  Returns what the engine's `give` returns. */
weir_status weir__suballoc_give_captured(struct weir_suballoc *s, CUdeviceptr block,
                                         weir_stream stream);

/* 1 if requests of so many bytes have regions of their own. */
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
/* The same, whichever streams may use that part, which may lie in several free chunks side by side: `chunk` is where the
 * first of them starts. */
int weir__suballoc_hollow(struct weir_suballoc *s, uint64_t chunk, uint64_t address, size_t bytes);
/* In a request on `stream` of that id: an event is recorded for what was freed on it. */
void weir__suballoc_mark(struct weir_suballoc *s, uint64_t id, weir_stream stream);
/* In a call on the stream of that id: if it is idle, what was freed on it is observed.  Not where the id is
 * not known. */
void weir__suballoc_ask(struct weir_suballoc *s, uint64_t id, weir_stream stream);
/* 1 if the address lies in a region, and where that begins (NULL: not wanted). */
int weir__suballoc_holds(struct weir_suballoc *s, uint64_t address, uint64_t *base);
/* Sees which regions are idle and serve the stream of that id; linear in the regions, and in the free chunks
 * that lie before their first block. */
void weir__suballoc_survey(struct weir_suballoc *s, uint64_t id);
/* Takes the region at that place in the list away, idle and clean, or as the last survey found it for
 * the stream of that id. */
void weir__suballoc_remove(struct weir_suballoc *s, size_t at, uint64_t id);

/* Makes what the host needs for blocks in so many bytes of the reserved memory, in place of the first requests; for the first so
 * many kinds of regions. */
void weir__suballoc_stock(struct weir_suballoc *s, int kinds, size_t bytes);
/* As an engine's survey, but for LARGEST. */
void weir__suballoc_survey_for(struct weir_suballoc *s, struct weir_survey *out);
/* As an engine's visit: of BLOCKS, BLOCK_AT, PIECE_AT, and of WHOLES where regions are. */
int weir__suballoc_show(struct weir_suballoc *s, const struct weir_visit *visit);

/* Looks once at everything that may have completed, without waiting; 1 if something did. */
int weir__suballoc_look_around(struct weir_suballoc *s);
/* The device has finished all work: everything that was freed serves everybody. */
void weir__suballoc_observe_all(struct weir_suballoc *s);
/* Waits for the device if there are frees that no event covers, if memory is quarantined, or in any case if `must`.  The
 * function releases `lock`, which the caller holds, while it waits, so that other calls go on.  Then it observes what was
 * freed before. */
CUresult weir__suballoc_wait_beside(struct weir_suballoc *s, struct weir_lock *lock, int must);
/* Fills requested, in_use, their peaks, extent, host_bytes, steals and event_records. */
void weir__suballoc_figures(const struct weir_suballoc *s, weir_statistics *out);

#endif
