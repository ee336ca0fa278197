/* SPDX-License-Identifier: MIT */
/* weir/verdict.h: the OOM report: why a request failed, with the figures that show it, and what to try. */
#ifndef WEIR_VERDICT_H
#define WEIR_VERDICT_H

#include <stddef.h>
#include <stdint.h>

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why a request fails: X(name, word).  The first that holds, in this order (RESERVE before GRAPHS), since what is
 * idle inside is nearer at hand than what a limit forbids, and that nearer than what others have. */
#define WEIR_VERDICT_CAUSES(X)                                                                     \
    X(NONE, "none")             /* nothing any more: it would be served now */                     \
    X(TOO_LARGE, "too-large")   /* it is more than the device has */                               \
    X(PENDING, "pending")       /* enough is idle, or may be added, but waits for other streams */ \
    X(FRAGMENTED, "fragmented") /* enough is idle, or may be added, but in pieces */               \
    X(LIMIT, "limit")     /* the limit forbids it, or `leave`, which lowers it; of a request \
                                 * for more than the limit also what is idle in pieces */     \
    X(GRAPHS, "graphs")   /* the device lacks room, and graphs have most of what is not weir's */  \
    X(OTHERS, "others")   /* the device lacks room, for what is not this allocator's */            \
    X(IN_USE, "in-use")   /* the device lacks room, for this allocator's own live blocks */        \
    X(RESERVE, "reserve") /* of a graph: idle reserve, which cannot serve it, has its room */      \
    X(DRIVER, "driver")   /* the driver refuses, although the device has room for it */

enum {
#define WEIR_VERDICT_ENUM(name, word) WEIR_VERDICT_##name,
    WEIR_VERDICT_CAUSES(WEIR_VERDICT_ENUM)
#undef WEIR_VERDICT_ENUM
        WEIR_VERDICT_CAUSE_COUNT
};

enum { WEIR_VERDICT_STREAMS = 4, WEIR_VERDICT_GROUPS = 5, WEIR_VERDICT_SETTINGS = 3 };

/* Idle bytes that wait for a stream, by its id (cuStreamGetId); 0: for several, or for one not known. */
typedef struct weir_verdict_stream {
    uint64_t stream;
    uint64_t bytes;
} weir_verdict_stream;

/* Live blocks of one size and one stream. */
typedef struct weir_verdict_group {
    uint64_t bytes;  /* of each, as asked */
    uint64_t blocks; /* how many */
    uint64_t total;  /* bytes of all of them */
    /* The id of the stream whose request had the memory from the engine; one that came to have it out of its
     * cache, after freeing it, is not noted.  0: not known (front off). */
    uint64_t stream;
} weir_verdict_group;

/* A setting: --NAME VALUE for the program, WEIR_NAME=VALUE for the environment, and weir_options_set. */
typedef struct weir_verdict_setting {
    const char *name; /* static text; NULL: no setting */
    char value[48];
} weir_verdict_setting;

/* Figures in bytes unless the name says otherwise; UINT64_MAX: not known, but of `asked`. */
typedef struct weir_verdict {
    size_t size;        /* bytes that the library filled in */
    weir_status status; /* what weir_alloc answered: E_NO_MEMORY or E_LIMIT */
    int cause;          /* WEIR_VERDICT_ */
    uint64_t asked;     /* bytes of the request */
    uint64_t stream;    /* the id of its stream; 0: not known, or being captured */
    uint64_t waited_ns; /* that it waited in vain */
    uint64_t largest; /* bytes that would be served on it now, at least, as weir_refusal.largest */

    uint64_t limit;   /* of the reserve; UINT64_MAX: none */
    uint64_t reserve; /* taken from the device; of this */
    uint64_t in_use;  /* in live blocks, as handed out, and */
    uint64_t idle;    /* the rest; of this */
    uint64_t hole;    /* the largest piece that the stream may have, and */
    uint64_t pending; /* what waits for other streams */

    uint64_t device_total;
    uint64_t device_free;
    uint64_t graphs;      /* memory of graphs on the device, in this process; of this */
    uint64_t graphs_idle; /* what no graph uses, until cuDeviceGraphMemTrim */
    uint64_t siblings;    /* the reserve of other allocators of the process on the device */
    uint64_t others;      /* all else: other processes, contexts, what the program took itself */

    uint32_t pending_streams; /* of which the most is pending: so many follow */
    uint32_t group_count;     /* groups that follow, the largest first */
    weir_verdict_stream pending_by[WEIR_VERDICT_STREAMS];
    weir_verdict_group groups[WEIR_VERDICT_GROUPS];
    uint64_t
        ungrouped; /* live bytes left out of the groups, for want of host memory to count them */
    /* What to try first: one setting, with those that it has no effect without; none where no setting will do, as no
     * limit does that the device could not hold.
     * A limit, and what to leave, are estimates: under another one the same requests lie in other places.  `ledger` is
     * named where other processes of weir's have as much as is lacking, and were not asked for what of it is idle. */
    weir_verdict_setting settings[WEIR_VERDICT_SETTINGS];
    uint64_t leave; /* what options.leave keeps for others if `limit` comes of it, else 0 */
    /* Of cause OTHERS: the process of the ledger that is stopped, or does not answer, and has enough of the device for
     * this request, of several the one that has most; 0: none.  Then no setting is advised. */
    uint64_t silent_pid;
    uint64_t silent_reserve; /* what it has */
    uint64_t silent_stopped; /* 1: it is stopped */
    uint64_t default_stream; /* the id of the default stream (NULL); 0: not known */
    uint64_t is_share;       /* 1: `limit` is what a share of the device comes to now, and */
    uint64_t weight;         /* its weight in millionths, else 0 */
    /* Of cause OTHERS, if silent_pid is 0: the process of the ledger that has most of the device of those that
     * answer, if it is more than a 16th of it, and more than other allocators of this process have, or enough of it
     * could be given; 0: none. */
    uint64_t holder_pid;
    uint64_t holder_reserve;    /* what it has, and */
    uint64_t holder_could_give; /* what of that it could give back; both as it said last */
    uint64_t limit_is_set; /* 1: weir_set_limit allows less than options.limit; `leave` may, even less */
    /* What weir_set_limit is to be called with, at least, an estimate as a limit is; with the settings, if there are
     * any, which forbid it as well.  0: it is not what forbids the request, or the device could not hold as much. */
    uint64_t set_limit;
    char device[16]; /* "cuda:0", "model:0"; "": not known */
    /* Of cause DRIVER, when `largest` is what lies idle in one piece; else 0. */
    uint64_t driver_result;  /* the CUresult that the driver answered; 0: not known */
    uint64_t no_descriptors; /* 1: the process has no file descriptor left */
} weir_verdict;

/* How weir_verdict_text writes. */
enum { WEIR_VERDICT_AS_TEXT = 0, WEIR_VERDICT_AS_JSON = 1 };

/* Why the last refusal of this allocator on this thread (E_NO_MEMORY or E_LIMIT of weir_alloc) was one.  Asked,
 * status and waited_ns are the refusal's, all else is as it is at this call: whoever frees something first is told
 * of another state, and of cause NONE if the request would be served.  Set out->size to sizeof(*out) before: the
 * smaller of both sizes is filled in, and out->size tells how much.  The caller owns the struct; nothing in
 * it need be freed.
 * Goes through all blocks of the allocator, under its locks (about 10 ns a block), asks the driver for two or three
 * numbers, and which frees are done; reads the ledger, which a thread that asks others keeps it from for as long as
 * that takes (a tenth of options.recovery_timeout_ms; all of it while one that was killed is ending); waits for no
 * stream, and changes nothing for any.  Takes some host memory, and without says less (ungrouped).  The pool engine
 * with the front off, which leaves blocks to the driver, tells neither holes, nor what is pending, nor groups; with it
 * on it tells no hole where the driver's pool holds more idle than that, as after a preallocation.  What was asked
 * for under capture is of the graph's memory, which no reserve serves: that something is pending, or in pieces, is not
 * blamed for it.  With options.harden sizes are those with their gaps, and what lies on a shelf counts as live.
 * Thread-safe; may be called in options.oom_callback.
 * E_INVALID: NULL, size 0, or no request of this thread was refused by this allocator; E_DEVICE_LOST;
 * E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_last_verdict(weir_allocator *allocator,
                                                         weir_verdict *out);

/* Writes a verdict: as text, some lines of less than 90 letters that each end with a newline, or as one JSON object
 * without a newline (bytes as integers, null for what is not known).  At most `text_bytes` bytes go to `text`,
 * the last of them NUL; with 0 bytes text may be NULL.  The length that all of it has, without the NUL: 4096
 * bytes are enough.  0: verdict is NULL, its size is less than that of version 1, or the format is none.  Takes no
 * memory and no lock, and never blocks.  Since 0.1. */
WEIR_API size_t weir_verdict_text(const weir_verdict *verdict, int format, char *text,
                                  size_t text_bytes);

/* The word of a cause ("limit", ...), "unknown" for any other number.  Static text. */
WEIR_API const char *weir_verdict_cause_word(int cause);

#ifdef __cplusplus
}
#endif

#endif
