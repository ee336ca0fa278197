/* SPDX-License-Identifier: MIT */
/* engine.h: what an engine is, and what it is given.
 *
 * An engine is where blocks come from.  It knows the driver, growth and budget; it does not know
 * the allocator's life cycle, the settings' names, or other engines.  Each engine guards itself:
 * every function but open and close may be called from any thread.
 *
 * Stream order.  A block that `alloc` returns may be used on its stream at once.  After `free` on s
 * the engine may hand the memory out on s at once, and on another stream only behind an ordering
 * that it establishes itself or has observed.
 */
#ifndef WEIR_ENGINE_H
#define WEIR_ENGINE_H

#include <stdatomic.h>

#include <weir/allocator.h>
#include <weir/stats.h>

#include "base/counters.h"
#include "base/result.h"
#include "driver/device.h"
#include "engine/peer_access.h"
#include "engine/reserve_state.h"
#include "engine/stream_uses.h"
#include "ipc/process_peers.h"

/* What `alloc` answers, and only with may_grow 0: served it would have to grow.  No public status. */
#define WEIR_ENGINE_DRY ((weir_status)1)
/* What `give` may answer when all is well.  No public status. */
#define WEIR_ENGINE_DUE ((weir_status)2)

/* Ids under which `give` takes a block back, beside those of streams.  OBSERVED: the host has seen
 * that all its uses are done.  UNKNOWN: nobody knows when they will be. */
#define WEIR_ENGINE_OBSERVED UINT64_MAX
#define WEIR_ENGINE_UNKNOWN UINT64_C(0)

struct weir_ahead;

/* A piece of the device's addresses. */
struct weir_extent {
    uint64_t base;
    size_t bytes;
    int large; /* what requests up to 512 KiB have will not lie there */
};

enum { WEIR_SURVEY_STREAMS = 16 };

/* What of a reserve is idle, as one stream sees it; begins zeroed. */
struct weir_survey {
    uint64_t hole; /* bytes of the largest free piece that it may have (UINT64_MAX: not known), */
    uint64_t hole_at_rest; /* and of the largest that there were if all streams were done */
    uint64_t pending;      /* free bytes that wait for others; of this, by stream: */
    size_t streams;
    struct {
        uint64_t stream, bytes; /* 0: several, or not known */
    } by[WEIR_SURVEY_STREAMS];
};

/* A live block: its bytes as asked, and the id of the stream that it was fetched for, 0 if not known. */
typedef void weir__engine_block_fn(void *context, uint64_t bytes, uint64_t stream);

/* What is known of others while they are asked for more than one round; zeroed: they were not yet. */
struct weir_appeal {
    uint64_t began_ns, moved_ns; /* more was free than ever before */
    uint64_t most_free;          /* bytes */
    uint64_t lacks;              /* bytes that they are to be asked for now; 0: none */
    int is_answered;             /* as far as they would be asked, for what is next */
};

/* What every engine is given; it outlives the engine, and all but what is atomic is fixed. */
struct weir_host {
    uint64_t number; /* fixed: no other of the process has it or had it; an address comes again */
    struct weir_device device;
    weir_options options;   /* completed: no default is left in it */
    _Atomic uint64_t limit; /* the most the reserve may be; UINT64_MAX: none; see `limited` */
    uint64_t leave; /* bytes on the device that are others': the limit is lowered for them */
    uint64_t apart; /* bytes on the device that preallocated shares do not take; fixed */
    _Atomic uint64_t share;     /* preallocated at most, since others came; UINT64_MAX: none have */
    _Atomic uint64_t own_limit; /* what it were without that; kept where `relimit` is */
    _Atomic uint64_t goal;      /* reserve that a preallocation comes to, in steps; 0: none has */
    atomic_int no_share; /* the program has set a limit in the place of a share, whatever to */
    uint64_t threshold;  /* bytes of idle reserve kept at a synchronisation */
    struct weir_books *books;
    struct weir_decay decay;
    struct weir_relief relief;
    /* Fixed: the most that a program may ask for so that the engine is asked for no more than `bytes`. */
    size_t (*fit)(const struct weir_host *host, size_t bytes);
    /* Fixed: what weir_stats tells, with what lies in caches as idle.  Called without a lock. */
    void (*figures)(struct weir_host *host, weir_statistics *out);
    /* Fixed: reserve was taken beforehand, so that whoever keeps tables by address makes them now, in place
     * of the first requests. */
    void (*prepare)(struct weir_host *host);
    /* Fixed: has other allocators of the process give idle memory of the device back until `most` bytes have
     * gone, if all together have `least`; bytes that went.  may_wait 0: only what takes no wait.  Called
     * without a lock. */
    uint64_t (*borrow)(struct weir_host *host, uint64_t least, uint64_t most, int may_wait);
    /* Fixed: sets the limit anew, where it is a share, or something is to be left on the device; 1 if it is higher
     * than before.  NULL: it stays as it is.  Called without a lock. */
    int (*relimit)(struct weir_host *host);
    /* 1: on the device `enough' bytes are free beside what stays there, or it is of no use to go on.  0: other
     * processes are to give, and it is to be called again after `ask'.  NULL: what others hold idle is theirs.  Fixed,
     * as is */
    int (*appeal)(struct weir_host *host, struct weir_appeal *appeal, uint64_t enough,
                  uint64_t wanted);
    /* what asks them for `lacks', which takes a tenth of a second at most, and no call of the driver. */
    void (*ask)(struct weir_host *host, struct weir_appeal *appeal);
    struct weir_neighbours
        *neighbours;        /* the device's other processes; NULL: none are known of.  Fixed */
    _Atomic uint64_t shown; /* the reserve, as they were told */
    _Atomic uint64_t
        most_out; /* bytes that blocks of the engine had at their most, where it cuts them itself */
    /* Set as the engine is opened: bytes of a growth step that takes the driver's lock for about a tenth
     * of a millisecond; 0: the engine does not grow ahead of demand. */
    size_t pace;
    /* Grows ahead of demand; NULL: nobody does.  Set before the first request. */
    struct weir_ahead *ahead;
    int keeps_ahead; /* it keeps some of the reserve idle */
    int moves;       /* idle memory moves to where a request has too little; the engine says so */
    /* Fixed: a request of this thread was refused for good, as far as the ladder goes.  Called without a lock. */
    void (*refused)(struct weir_host *host);
    int hushed; /* refusals are told elsewhere, not in the log.  Set before the first request */
    int says_why; /* that it cannot preallocate for the first request is said once, whatever the log is; likewise */
};

struct weir_engine {
    /* Nonzero: frees may be pending that `reclaim` cannot count; only another try tells. */
    int hides_pending;
    /* Nonzero: `trim` waits for the device. */
    int trim_waits;
    size_t least_limit; /* bytes: a limit below it leaves the engine nothing; 0: any will do */
    /* Makes the engine; nothing is taken from the device yet. */
    weir_status (*open)(struct weir_host *host, void **engine);
    /* Before close: waits for the device, where memory must not go before it is done.  Not OK: it could not
     * wait, and nothing has changed.  NULL: there is nothing to wait for. */
    weir_status (*settle)(void *engine);
    /* Gives everything back.  No block is live, nothing is pending and all is settled, or nobody ever had a
     * block, or the device is lost. */
    void (*close)(void *engine);
    /* bytes > 0.  *grew is set to 1 when the reserve had to grow for it, else left alone.
     * E_NO_MEMORY and E_LIMIT are returned without having waited for frees to complete.
     * id: the caller has just asked the driver for it, and that the stream is not being captured; 0:
     * the engine asks itself.
     * may_grow 0: an engine that can tell beforehand that it would have to grow answers DRY, and has
     * changed nothing but that all streams will record what they have freed; others ignore it. */
    weir_status (*alloc)(void *engine, size_t bytes, weir_stream stream, uint64_t id, int may_grow,
                         CUdeviceptr *block, int *grew);
    /* `uses`: the other streams that use the block, or NULL.  On an error nothing has changed, but
     * that uses of streams that the driver does not know are marked refused. */
    weir_status (*free)(void *engine, CUdeviceptr block, weir_stream stream,
                        struct weir_use_list *uses);
    /* Frees a block without any driver call, under a stream's id known from before, as a free on that
     * stream whose event its owner's next call, or `tend`, records; or under OBSERVED or UNKNOWN: then
     * nobody has it before the device was waited for.  OK or E_NOT_OWNED, or DUE: it is freed, and `tend` would
     * record.  NULL: the engine cannot. */
    weir_status (*give)(void *engine, CUdeviceptr block, uint64_t id);
    /* In a call on that stream, which is not being captured: records the event that what was given
     * back waits for, if one is due, and lets go what the release threshold does not let it keep.
     * NULL: there is nothing to do, where `give` is NULL too. */
    void (*tend)(void *engine, weir_stream stream, uint64_t id);
    /* 1 if a live block starts there.  NULL: the engine cannot tell. */
    int (*is_live)(void *engine, CUdeviceptr block);
    /* The live block around an address, and its bytes as asked: 1, or 0 if none is.  NULL: the engine cannot
     * tell. */
    int (*find)(void *engine, CUdeviceptr address, CUdeviceptr *block, size_t *bytes);
    /* 1 if the address lies in memory that blocks are cut from, and where the piece begins that the engine
     * has it in.  NULL: it cuts none. */
    int (*holds)(void *engine, CUdeviceptr address, CUdeviceptr *base);
    /* Grows until the reserve is at least `target`, as one step of cause `cause`. */
    weir_status (*grow)(void *engine, uint64_t target, int cause);
    /* Gives idle reserve back until at most `keep` is left; bytes that went. */
    weir_status (*trim)(void *engine, size_t keep, int cause, size_t *released);
    /* A request was refused: what the driver took for it all the same goes back.  Or, after such tries, it was served
     * (0): that stays.  NULL: it takes nothing. */
    void (*unwind)(void *engine, int refused);
    /* Gives idle reserve back until at most `keep` is left, as far as nobody need be waited for, for that
     * cause: after a request on that stream, of that id (0: not known).  Not asked where that is nothing:
     * see struct weir_decay. */
    void (*shed)(void *engine, size_t keep, weir_stream stream, uint64_t id, int cause);
    /* Bytes of the largest request that `alloc` would surely serve now, or the ladder, on the stream of that
     * id (0: not known), which has just been refused one; if `back` bytes of blocks, whole units, had been
     * given back and trimmed before.  0: none that is known. */
    size_t (*largest)(void *engine, uint64_t id, uint64_t back);
    /* Adds what of the reserve is idle, for the stream of that id (0: not known), to a survey.  NULL: it cannot be
     * told. */
    void (*survey)(void *engine, uint64_t id, struct weir_survey *out);
    /* Visits every live block, under the engine's lock.  NULL: they are not known. */
    void (*blocks)(void *engine, weir__engine_block_fn *visit, void *context);
    /* Looks once at what is pending, without waiting, and makes room of what has completed.  Returns
     * how many frees or batches of frees will be known to have completed by asking again; *silent
     * (may be NULL): streams whose frees only their owner's next call will tell of, and what
     * is pending that an allocator's end need not wait for. */
    size_t (*reclaim)(void *engine, size_t *silent);
    /* host->limit has become another one, no more than it was as the engine was opened.  NULL: the engine reads
     * it at each growth. */
    void (*limited)(void *engine);
    /* The pool of the driver that the memory is from.  NULL: there is none. */
    CUmemoryPool (*pool)(void *engine);
    /* Gives a peer access to all memory that the engine has and will have, or takes it.  On an error all is as
     * before.  NULL: it cannot. */
    weir_status (*allow)(void *engine, const CUmemAccessDesc *access);
    /* 1 if a block is live, as far as can be told.  NULL: `figures` tells. */
    int (*has_blocks)(void *engine);
    /* The reserve, and of it what is in live blocks (NULL: not wanted), as seen by the last request:
     * no lock is taken, and the driver is asked for the latter at most.  NULL if pace is 0. */
    void (*glance)(void *engine, uint64_t *reserve, uint64_t *in_use);
    /* Of what is idle, and everybody's: the bytes of the largest piece, and of the one at the end, which grows with
     * the reserve.  Both 0: it has no end, or that cannot be told; NULL: the same. */
    void (*pieces)(void *engine, uint64_t *largest, uint64_t *last);
    /* Where the reserve lies, or what of it was preallocated last, and behind that where it will come, as far as
     * that can be told: how many of `most` pieces were written, those first that small requests will have.  NULL:
     * it takes nothing beforehand. */
    size_t (*extents)(void *engine, struct weir_extent *out, size_t most);
    /* The pieces of the reserve that go back to the device whole or not at all, from low addresses to high: how many
     * there are, of which `most` are written at most.  NULL: it is not known of what. */
    size_t (*wholes)(void *engine, struct weir_extent *out, size_t most);
    /* Makes what the host needs for blocks in so many bytes of the reserve, in place of the first requests.  NULL:
     * nothing. */
    void (*stock)(void *engine, size_t bytes);
    /* Fills requested, in_use, their peaks, reserve, reserve_peak, extent and host_bytes; those that
     * order reuse by events, steals and event_records too. */
    void (*figures)(void *engine, weir_statistics *out);
};

extern const struct weir_engine weir__engine_pool;
extern const struct weir_engine weir__engine_arena;
extern const struct weir_engine weir__engine_platform;
/* Blocks cut from regions of another engine (suballocated.c). */
extern const struct weir_engine weir__engine_spans_pool;
extern const struct weir_engine weir__engine_spans_platform;

/* engine.c: what the engines share. */

/* Notes a growth step or a give-back in the books and, at level info, in the log. */
void weir__engine_note(struct weir_host *host, int cause, int shrink, uint64_t asked, uint64_t got,
                       uint64_t stall_ns, uint64_t reserve_after);
/* A step of that cause is for keeping. */
static inline int weir__engine_is_prealloc(int cause) {
    return cause == WEIR_EVENT_PREALLOC || cause == WEIR_EVENT_BACKGROUND;
}
/* What the driver takes long to refuse: 60 GiB that it does not have, tries at it included, 0.18 s (H200, 580). */
#define WEIR_ENGINE_LARGE ((uint64_t)256 << 20)
/* 1: the device has less than `bytes` free, `idle` added, so that the driver need not be asked.  It may have more
 * than it says: so always 0 on this thread while it insists. */
int weir__engine_would_refuse(struct weir_host *host, uint64_t bytes, uint64_t idle);
/* What was foretold of the request under way counts no more: it is served another way, or was not for it. */
void weir__engine_unforetell(void);
/* From now on, or no longer.  1: something was foretold on this thread since this was called last. */
int weir__engine_insist(int on);
/* Another piece for a list of so many, to which the last one may be joined: how many there are then.  What is
 * beyond `most` is left out. */
size_t weir__engine_extend(struct weir_extent *list, size_t count, size_t most,
                           struct weir_extent extent);
/* So many bytes more wait for the stream of that id. */
void weir__engine_pends(struct weir_survey *survey, uint64_t stream, uint64_t bytes);

#endif
