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

/* The causes of a failure: X(name, word).  A report names the first cause that holds, in this order, but RESERVE before
 * GRAPHS.  Idle memory inside the allocator is easier to free than a limit is to change, and a limit is easier to
 * change than memory of others is to free.  A request for more than the limit has cause LIMIT even if memory is idle in
 * pieces. */
#define WEIR_OOM_REPORT_CAUSES(X)                                                                  \
    X(NONE, "none")             /* the request would succeed now */                                \
    X(TOO_LARGE, "too-large")   /* the request is larger than the device's memory */               \
    X(PENDING, "pending")       /* enough is idle, or may be added, but waits for other streams */ \
    X(FRAGMENTED, "fragmented") /* enough is idle, or may be added, but in pieces */               \
    X(LIMIT, "limit")           /* the limit forbids it, or `keep_free`, which lowers the limit */ \
    X(GRAPHS, "graphs")   /* the device is full; most of the memory outside weir is of graphs */   \
    X(OTHERS, "others")   /* the device is full because of memory that is not the allocator's */   \
    X(IN_USE, "in-use")   /* the device is full because of this allocator's live blocks */         \
    X(RESERVE, "reserve") /* a graph's request: weir's idle memory cannot serve graphs */          \
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

/* Idle memory that weir can reuse only after a stream has completed its work. */
typedef struct weir_oom_report_stream {
    uint64_t stream; /* the stream's id (cuStreamGetId); 0 for several or an unknown one */
    uint64_t bytes;
} weir_oom_report_stream;

/* Live blocks of one size and one stream. */
typedef struct weir_oom_report_group {
    uint64_t bytes;  /* bytes of each block, as requested */
    uint64_t blocks; /* number of blocks */
    uint64_t total;  /* bytes of all the blocks */
    /* The id of the stream whose request got the memory from the engine.  weir does not record whether another stream
     * has received the memory since then.  0 means that the stream is not known (options.cache off). */
    uint64_t stream;
} weir_oom_report_group;

/* A setting: --NAME VALUE for the program, WEIR_NAME=VALUE for the environment, and weir_options_set. */
typedef struct weir_oom_report_setting {
    const char *name; /* static text; NULL: no setting */
    char value[48];
} weir_oom_report_setting;

/* A process of the group that the environment puts this process into (WEIR_GROUP), or of the shared registry. */
typedef struct weir_oom_report_member {
    uint64_t pid; /* the process id in the process's own namespace */
    /* Bytes of the device that the process has.  In a group they include an estimate for its context, as the group's
     * limit does. */
    uint64_t bytes;
    uint64_t share; /* bytes of the group's limit, by the members' weights; 0 outside of a group */
    uint64_t idle;  /* bytes of `bytes` that the process could release, as it last reported */
    char command[WEIR_OOM_REPORT_NAME]; /* the command line without the program's folder */
} weir_oom_report_member;

/* An OOM report.  Figures are bytes unless the comment says otherwise.  UINT64_MAX means not known, except in
 * `asked`. */
typedef struct weir_oom_report {
    size_t size;        /* bytes that the library filled in */
    weir_status status; /* the result of weir_alloc: E_NO_MEMORY or E_LIMIT */
    int cause;          /* WEIR_OOM_REPORT_ */
    uint64_t asked;     /* size of the request */
    uint64_t stream;    /* id of the request's stream; 0 if not known or under capture */
    uint64_t waited_ns; /* nanoseconds that the request waited without success */
    /* Size of a request that would succeed now on the stream: see weir_failure.largest. */
    uint64_t largest;

    uint64_t limit;              /* limit of reserved memory; UINT64_MAX: no limit */
    uint64_t reserved;           /* reserved memory: in_use + idle */
    uint64_t in_use;             /* memory in live blocks, as allocated */
    uint64_t idle;               /* reserved memory in no live block */
    uint64_t largest_free_block; /* the largest piece of idle memory that the stream may use now */
    uint64_t pending;            /* idle memory that waits for other streams */

    uint64_t device_total;
    uint64_t device_free;
    uint64_t graphs;           /* memory of this process's graphs on the device */
    uint64_t graphs_idle;      /* the part of `graphs` that cuDeviceGraphMemTrim would free */
    uint64_t other_allocators; /* reserved memory of the process's other allocators on the device */
    uint64_t others;           /* memory of other processes, contexts and the program's own calls */

    uint32_t pending_streams; /* entries of `pending_by`, by falling bytes */
    uint32_t group_count;     /* entries of `groups`, by falling total */
    weir_oom_report_stream pending_by[WEIR_OOM_REPORT_STREAMS];
    weir_oom_report_group groups[WEIR_OOM_REPORT_GROUPS];
    uint64_t ungrouped; /* live bytes in no group, because host memory was lacking */
    /* The advice: one setting, with the settings that it needs to have an effect.  There is no setting if none helps,
     * as when the device could not hold any sufficient limit.  Values of `limit` and `keep_free` are estimates: with
     * another value the requests lie in other places.  `registry` is advised if other processes that use weir have
     * the lacking memory, and weir did not ask them for idle memory. */
    weir_oom_report_setting settings[WEIR_OOM_REPORT_SETTINGS];
    uint64_t keep_free; /* bytes kept for others if `limit` results from that; else 0 */
    /* The id of a process of the shared registry that is stopped or does not answer, and has enough memory of the
     * device for this request; if there are several, of the one with most memory.  0 means none.  It is set for cause
     * OTHERS only.  If it is set, no setting is advised. */
    uint64_t silent_pid;
    uint64_t silent_reserved; /* reserved memory of that process */
    uint64_t silent_stopped;  /* set to 1 if that process is stopped, else 0 */
    uint64_t default_stream;  /* id of the default stream (NULL); 0 if not known */
    uint64_t is_share;        /* set to 1 if `limit` is a share of the device as of now, else 0 */
    uint64_t weight;          /* weight of the share in millionths, else 0 */
    /* The id of the process of the shared registry that has most memory of the device and answers.  It is set for cause
     * OTHERS only, without silent_pid.  It is named if it has more than a 16th of the device and more than other
     * allocators of this process, or could release enough.  0 means none. */
    uint64_t holder_pid;
    uint64_t holder_reserved;    /* reserved memory of that process, as it last reported */
    uint64_t holder_reclaimable; /* bytes that it could release, as it last reported */
    /* Set to 1 if weir_set_limit is below options.limit, else 0.  `keep_free` may allow even less. */
    uint64_t limit_is_set;
    /* The least value for weir_set_limit that would serve the request: an estimate, as `limit` in `settings` is.  If
     * settings are advised as well, both must change.  It is 0 if weir_set_limit does not forbid the request, or if the
     * device could not hold as much. */
    uint64_t set_limit;
    char device[16]; /* "cuda:0", "model:0"; "": not known */
    /* The next two fields are set for cause DRIVER, and 0 for other causes.  For cause DRIVER `largest` is the largest
     * piece of idle memory. */
    uint64_t driver_result;  /* the driver's CUresult; 0 if not known */
    uint64_t no_descriptors; /* set to 1 if the process has no file descriptor left, else 0 */
    /* The process group on this device, or "" if there is none.  In a group, device_free is at most the room that the
     * group has. */
    char process_group[WEIR_OOM_REPORT_NAME];
    uint64_t group_limit;  /* limit of all processes of the group together */
    uint64_t group_used;   /* memory that the processes of the group have */
    uint32_t members;      /* number of processes in the group */
    uint32_t member_count; /* entries of `member`, by falling bytes */
    weir_oom_report_member member[WEIR_OOM_REPORT_MEMBERS];
    /* The other processes of the shared registry that have memory of the device; set for cause OTHERS only. */
    uint32_t processes;     /* number of these processes */
    uint32_t process_count; /* entries of `process`, by falling bytes */
    weir_oom_report_member process[WEIR_OOM_REPORT_PROCESSES];
} weir_oom_report;

/* Formats of weir_oom_report_text. */
enum { WEIR_OOM_REPORT_AS_TEXT = 0, WEIR_OOM_REPORT_AS_JSON = 1 };

/* Makes the OOM report of this allocator's last failed request on this thread (E_NO_MEMORY or E_LIMIT of
 * weir_alloc).  asked, status and waited_ns are those of the failure; all else is as of this call.  A caller that
 * frees memory first gets another state, and cause NONE if the request would succeed now.  Set out->size to
 * sizeof(*out) before the call, which fills the smaller of both sizes and writes that size to out->size.  The caller
 * owns the struct; nothing in it needs to be freed.
 *
 * The call goes through all blocks of the allocator, under its locks (about 10 ns a block).  It asks the driver for
 * two or three numbers, and which frees are complete.  It reads the shared registry.  If a thread is asking other
 * processes for memory at that time, the call waits for it: a tenth of options.recovery_timeout_ms, or all of it
 * while a process that was killed is ending.  It waits for no stream and changes nothing for any.  It takes some
 * host memory, and without that reports less (ungrouped).
 *
 * With the pool engine the driver places the blocks: the report has neither `largest_free_block` nor `pending`, and
 * with options.cache off no groups.  A request under capture takes memory of the graph,
 * which no allocator's memory serves, so its cause is never PENDING or FRAGMENTED.  With options.harden sizes include
 * the gaps, and blocks that weir keeps from reuse count as live.
 *
 * Thread-safe; may be called in options.oom_callback.
 * E_INVALID: an argument is NULL, out->size is 0, or no request of this thread failed in this allocator.
 * E_DEVICE_LOST; E_FORKED.  Since 0.1. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_last_oom_report(weir_allocator *allocator,
                                                            weir_oom_report *out);

/* Writes an OOM report as text or as JSON.  Text is some lines of less than 90 letters that each end with a newline.
 * JSON is one object without a newline: bytes are integers, and null means not known.  At most `text_bytes` bytes go
 * to `text`, the last of them NUL; with 0 bytes text may be NULL.  Returns the length of the whole text, without the
 * NUL: 4096 bytes are enough.  Returns 0 if `oom_report` is NULL, its size is less than that of version 1, or the
 * format does not exist.  Allocates no memory and takes no lock; never blocks.  Thread-safe.  Since 0.1. */
WEIR_API size_t weir_oom_report_text(const weir_oom_report *oom_report, int format, char *text,
                                     size_t text_bytes);

/* Returns the word of a cause ("limit", ...), or "unknown" for any other number.  The text is static.  Thread-safe,
 * never blocks.  Since 0.1. */
WEIR_API const char *weir_oom_report_cause_word(int cause);

#ifdef __cplusplus
}
#endif

#endif
