/* SPDX-License-Identifier: MIT */
/* weir/oom_report.h: the OOM report: why a request failed, with the figures that show it, and what to try. */
#ifndef WEIR_OOM_REPORT_H
#define WEIR_OOM_REPORT_H

#include <stddef.h>
#include <stdint.h>

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why a request failed: X(name, word).  A report names the first cause that holds, in this order, but RESERVE before
 * GRAPHS.  Idle memory inside the allocator is easier to free than a limit is to change, and a limit easier than
 * memory of others.  A request for more than the limit has cause LIMIT even if memory is idle in pieces. */
#define WEIR_OOM_REPORT_CAUSES(X)                                                                  \
    X(NONE, "none")             /* none any more: the request would succeed now */                 \
    X(TOO_LARGE, "too-large")   /* it is more than the device has */                               \
    X(PENDING, "pending")       /* enough is idle, or may be added, but waits for other streams */ \
    X(FRAGMENTED, "fragmented") /* enough is idle, or may be added, but in pieces */               \
    X(LIMIT, "limit")           /* the limit forbids it, or `keep_free`, which lowers the limit */ \
    X(GRAPHS, "graphs")   /* the device lacks room, and graphs have most of what is not weir's */  \
    X(OTHERS, "others")   /* the device lacks room, because of others' memory */                   \
    X(IN_USE, "in-use")   /* the device lacks room, because of this allocator's own live blocks */ \
    X(RESERVE, "reserve") /* of a graph: idle memory, which cannot serve it, takes its room */     \
    X(DRIVER, "driver")   /* the driver fails, although the device has room */                     \
    X(GROUP, "group")     /* the limit of the process group (WEIR_GROUP) forbids it */

enum {
#define WEIR_OOM_REPORT_ENUM(name, word) WEIR_OOM_REPORT_##name,
    WEIR_OOM_REPORT_CAUSES(WEIR_OOM_REPORT_ENUM)
#undef WEIR_OOM_REPORT_ENUM
        WEIR_OOM_REPORT_CAUSE_COUNT
};

enum {
    WEIR_OOM_REPORT_STREAMS = 4,
    WEIR_OOM_REPORT_GROUPS = 5,
    WEIR_OOM_REPORT_SETTINGS = 3,
    WEIR_OOM_REPORT_MEMBERS = 8,
    WEIR_OOM_REPORT_PROCESSES = 4,
    WEIR_OOM_REPORT_NAME = 40
};

/* Idle bytes that wait for a stream, by its id (cuStreamGetId); 0: for several, or for an unknown one. */
typedef struct weir_oom_report_stream {
    uint64_t stream;
    uint64_t bytes;
} weir_oom_report_stream;

/* Live blocks of one size and one stream. */
typedef struct weir_oom_report_group {
    uint64_t bytes;  /* of each, as requested */
    uint64_t blocks; /* how many */
    uint64_t total;  /* bytes of all of them */
    /* The id of the stream whose request got the memory from the engine.  If another stream later got it from its
     * cache after freeing it, weir does not note that.  0: not known (options.cache off). */
    uint64_t stream;
} weir_oom_report_group;

/* A setting: --NAME VALUE for the program, WEIR_NAME=VALUE for the environment, and weir_options_set. */
typedef struct weir_oom_report_setting {
    const char *name; /* static text; NULL: no setting */
    char value[48];
} weir_oom_report_setting;

/* A process of the group that the environment puts this process into (WEIR_GROUP), or of the shared registry. */
typedef struct weir_oom_report_member {
    uint64_t pid; /* in its own namespace of pids */
    uint64_t
        bytes; /* of the device.  In a group: counted for the limit, with estimates for contexts. */
    uint64_t share; /* of the limit, by the weights of all members; bytes; 0 outside of a group */
    uint64_t idle;  /* of these bytes, what it could give back, as it said last */
    char command[WEIR_OOM_REPORT_NAME];
} weir_oom_report_member;

/* Figures in bytes unless the name says otherwise; UINT64_MAX: not known, except in `asked`. */
typedef struct weir_oom_report {
    size_t size;        /* bytes that the library filled in */
    weir_status status; /* what weir_alloc returned: E_NO_MEMORY or E_LIMIT */
    int cause;          /* WEIR_OOM_REPORT_ */
    uint64_t asked;     /* bytes of the request */
    uint64_t stream;    /* the id of its stream; 0: not known, or being captured */
    uint64_t waited_ns; /* that it waited without success */
    uint64_t largest; /* bytes of a request that would succeed on it now, as weir_failure.largest */

    uint64_t limit;              /* of reserved memory; UINT64_MAX: none */
    uint64_t reserved;           /* taken from the device; of this */
    uint64_t in_use;             /* in live blocks, as allocated, and */
    uint64_t idle;               /* the rest; of this */
    uint64_t largest_free_block; /* the largest free block that the stream may have, and */
    uint64_t pending;            /* what waits for other streams */

    uint64_t device_total;
    uint64_t device_free;
    uint64_t graphs;           /* memory of graphs on the device, in this process; of this */
    uint64_t graphs_idle;      /* what no graph uses, until cuDeviceGraphMemTrim */
    uint64_t other_allocators; /* reserved by other allocators of the process on the device */
    uint64_t others;           /* other processes, contexts, what the program took itself */

    uint32_t pending_streams; /* streams that follow, those with most pending bytes */
    uint32_t group_count;     /* groups that follow, the largest first */
    weir_oom_report_stream pending_by[WEIR_OOM_REPORT_STREAMS];
    weir_oom_report_group groups[WEIR_OOM_REPORT_GROUPS];
    uint64_t ungrouped; /* live bytes in no group, because host memory was lacking */
    /* What to try first: one setting, with those that it needs to have an effect.  None if no setting helps, as when
     * the device could not hold any sufficient limit.  A limit, and the memory to leave, are estimates: with another
     * value the same requests lie in other places.  `registry` is named if other processes that use weir have as much
     * as is lacking, and weir did not ask them for their idle memory. */
    weir_oom_report_setting settings[WEIR_OOM_REPORT_SETTINGS];
    uint64_t keep_free; /* bytes kept for others if `limit` results from that; else 0 */
    /* Of cause OTHERS: a process of the shared registry that is stopped or does not answer, and has enough of the
     * device for this request.  Of several it is the one that has most; 0: none.  If it is set, no setting is
     * advised. */
    uint64_t silent_pid;
    uint64_t silent_reserved; /* what it has */
    uint64_t silent_stopped;  /* 1: it is stopped */
    uint64_t default_stream;  /* the id of the default stream (NULL); 0: not known */
    uint64_t is_share;        /* 1: `limit` is a share of the device as of now, and */
    uint64_t weight;          /* its weight in millionths, else 0 */
    /* Of cause OTHERS, if silent_pid is 0: of the processes in the shared registry that answer, the one that has
     * most of the device.  It is set if that is more than a 16th of the device and more than other allocators of
     * this process have, or if it could release enough; 0: none. */
    uint64_t holder_pid;
    uint64_t holder_reserved;    /* what it has, and */
    uint64_t holder_reclaimable; /* what of that it could give back; both as it reported last */
    uint64_t
        limit_is_set; /* 1: weir_set_limit is below options.limit; `keep_free` may allow even less */
    /* The least value for weir_set_limit, an estimate as a limit is; together with the settings, if there are any,
     * which forbid the request as well.  0: weir_set_limit does not forbid the request, or the device could not hold
     * as much. */
    uint64_t set_limit;
    char device[16]; /* "cuda:0", "model:0"; "": not known */
    /* Of cause DRIVER, when `largest` is what lies idle in one piece; else 0. */
    uint64_t driver_result;  /* the CUresult that the driver answered; 0: not known */
    uint64_t no_descriptors; /* 1: the process has no file descriptor left */
    /* The process group, on this device; "": there is none.  device_free is no more than its room then. */
    char process_group[WEIR_OOM_REPORT_NAME];
    uint64_t group_limit;  /* of all its processes together, */
    uint64_t group_used;   /* and what they have */
    uint32_t members;      /* how many there are */
    uint32_t member_count; /* that follow, those with most first */
    weir_oom_report_member member[WEIR_OOM_REPORT_MEMBERS];
    /* Of cause OTHERS: the other processes of the shared registry that have memory of the device. */
    uint32_t processes;     /* how many there are */
    uint32_t process_count; /* that follow, those with most first */
    weir_oom_report_member process[WEIR_OOM_REPORT_PROCESSES];
} weir_oom_report;

/* Formats of weir_oom_report_text. */
enum { WEIR_OOM_REPORT_AS_TEXT = 0, WEIR_OOM_REPORT_AS_JSON = 1 };

/* Makes the OOM report of this allocator's last failed request on this thread (E_NO_MEMORY or E_LIMIT of
 * weir_alloc).  asked, status and waited_ns are those of the failure; all else is as of this call.  A caller that
 * frees memory first gets another state, and cause NONE if the request would succeed now.  Set out->size to
 * sizeof(*out) before: the call fills the smaller of both sizes, and out->size says how much.  The caller owns the
 * struct; nothing in it needs to be freed.
 *
 * The call goes through all blocks of the allocator, under its locks (about 10 ns a block).  It asks the driver for
 * two or three numbers, and which frees are complete.  It reads the shared registry.  If a thread is asking other
 * processes for memory at that time, the call waits for it: a tenth of options.recovery_timeout_ms, or all of it
 * while a process that was killed is ending.  It waits for no stream and changes nothing for any.  It takes some
 * host memory, and without that reports less (ungrouped).
 *
 * With the pool engine and options.cache off the driver manages the blocks: the report then has neither
 * `largest_free_block` nor `pending` nor groups.  With options.cache on it has no `largest_free_block` if the driver's
 * pool holds more idle memory than that, as after a preallocation.  A request under capture takes memory of the graph,
 * which no allocator's memory serves, so its cause is never PENDING or FRAGMENTED.  With options.harden sizes include
 * the gaps, and blocks that weir keeps from reuse count as live.
 *
 * Thread-safe; may be called in options.oom_callback.
 * E_INVALID: NULL, size 0, or no request of this thread failed in this allocator.
 * E_DEVICE_LOST; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_last_oom_report(weir_allocator *allocator,
                                                            weir_oom_report *out);

/* Writes an OOM report as text or as JSON.  Text is some lines of less than 90 letters that each end with a newline.
 * JSON is one object without a newline: bytes are integers, and null means not known.  At most `text_bytes` bytes go
 * to `text`, the last of them NUL; with 0 bytes text may be NULL.  Returns the length of the whole text, without the
 * NUL: 4096 bytes are enough.  Returns 0 if `oom_report` is NULL, its size is less than that of version 1, or the
 * format does not exist.  Takes no memory and no lock, and never blocks.  Since 0.1. */
WEIR_API size_t weir_oom_report_text(const weir_oom_report *oom_report, int format, char *text,
                                     size_t text_bytes);

/* The word of a cause ("limit", ...), "unknown" for any other number.  Static text. */
WEIR_API const char *weir_oom_report_cause_word(int cause);

#ifdef __cplusplus
}
#endif

#endif
