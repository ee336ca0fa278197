/* SPDX-License-Identifier: MIT */
/* weir/oom_report.h: the OOM report.  The report says why a request failed, contains the figures that show the cause,
 * and advises what to try. */
#ifndef WEIR_OOM_REPORT_H
#define WEIR_OOM_REPORT_H

#include <stddef.h>
#include <stdint.h>

#include <weir/allocator.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The causes of a failure, as X(name, word).  A report contains the first cause in this list that applies, except that
 * RESERVE comes before GRAPHS.  The order follows the effort of a remedy.  It is easier to free idle memory inside the
 * allocator than to change a limit.  It is easier to change a limit than to free memory of others.  A request above the
 * limit has cause LIMIT, even if pieces of memory are idle. */
#define WEIR_OOM_REPORT_CAUSES(X)                                                                  \
    X(NONE, "none")             /* the request would succeed now */                                \
    X(TOO_LARGE, "too-large")   /* the request is larger than the device's memory */               \
    X(PENDING, "pending")       /* enough memory, but other streams still use it */                \
    X(FRAGMENTED, "fragmented") /* enough memory, but only in separate pieces */                   \
    X(LIMIT, "limit")           /* the limit or keep_free forbids the request */                   \
    X(GRAPHS, "graphs")         /* the device is full, mostly of memory of graphs */               \
    X(OTHERS, "others")         /* the device is full of memory of others */                       \
    X(IN_USE, "in-use")         /* the device is full of this allocator's live blocks */           \
    X(RESERVE, "reserve")       /* weir's idle memory cannot be used for a graph */                \
    X(DRIVER, "driver")         /* the driver fails although the device has room */                \
    X(GROUP, "group")           /* the limit of the process group (WEIR_GROUP) is reached */

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

/* Idle memory that weir can reuse for the request only after the work of a stream has completed. */
typedef struct weir_oom_report_stream {
    /* The id of the stream (cuStreamGetId), or 0 for several streams or an unknown stream. */
    uint64_t stream;
    uint64_t bytes;
} weir_oom_report_stream;

/* A group of live blocks: all blocks of one size that were allocated for one stream. */
typedef struct weir_oom_report_group {
    uint64_t bytes;  /* the requested bytes of each block of the group */
    uint64_t blocks; /* the number of blocks in the group */
    uint64_t total;  /* the sum of the bytes of all blocks of the group */
    /* The id of the stream for which the engine allocated the memory.  Later blocks in this memory may belong to other
     * streams, which weir does not record.  0 means that the stream is not known (options.cache off). */
    uint64_t stream;
} weir_oom_report_group;

/* A setting that the report advises the user to change.  The setting is --NAME VALUE for the program `weir`,
 * WEIR_NAME=VALUE in the environment, and name and value for weir_options_set. */
typedef struct weir_oom_report_setting {
    const char *name; /* the name, a static text, or NULL if there is no setting */
    char value[48];
} weir_oom_report_setting;

/* Another process: a member of the process group that shares a limit (WEIR_GROUP), or a process in the shared registry,
 * a file of the processes that use the device. */
typedef struct weir_oom_report_member {
    uint64_t pid; /* the process id, in the process's own namespace of process ids */
    /* The bytes of the device that the process uses.  In a process group, these bytes include an estimate for the
     * process's context, because the limit of the group includes this estimate, too. */
    uint64_t bytes;
    /* The part of the group's limit for this process, in bytes, as the weights of all members determine it.  0 if there
     * is no process group. */
    uint64_t share;
    /* The idle memory that the process could release, by its last report. */
    uint64_t idle;
    /* The process's command line, without the folder of the program. */
    char command[WEIR_OOM_REPORT_NAME];
} weir_oom_report_member;

/* An OOM report.  Numbers are bytes, unless a comment says otherwise.  UINT64_MAX means that a value is not known,
 * except in the field `asked`. */
typedef struct weir_oom_report {
    size_t size;        /* the bytes of this struct that the library has filled in */
    weir_status status; /* the status that weir_alloc returned: E_NO_MEMORY or E_LIMIT */
    int cause;          /* the cause of the failure, a WEIR_OOM_REPORT_ constant */
    uint64_t asked;     /* the size of the request */
    uint64_t stream;    /* the id of the request's stream; zero if not known, or under capture */
    uint64_t waited_ns; /* the nanoseconds that the request waited for memory */
    /* The size of the largest request that would now succeed on this stream, as far as weir can be sure of this. */
    uint64_t largest;

    /* The limit of the reserved memory; UINT64_MAX if there is no limit. */
    uint64_t limit;
    uint64_t reserved;           /* the memory that the allocator has reserved: in_use + idle */
    uint64_t in_use;             /* the bytes in live blocks, with the rounding of block sizes */
    uint64_t idle;               /* the reserved memory that is in no live block */
    uint64_t largest_free_block; /* the largest idle piece that the stream may use now */
    /* Idle memory that is not usable until other streams complete work. */
    uint64_t pending;

    uint64_t device_total;
    uint64_t device_free;
    uint64_t graphs;           /* device memory that graphs of this process use or reserve */
    uint64_t graphs_idle;      /* the part of `graphs` that cuDeviceGraphMemTrim would free */
    /* The memory that the process's other allocators have reserved on the device. */
    uint64_t other_allocators;
    /* The device memory of other processes, of contexts, and of driver calls that the program makes itself. */
    uint64_t others;

    uint32_t
        /* The number of entries in `pending_by`, sorted from largest to smallest. */
        pending_streams;
    uint32_t group_count; /* the number of entries in `groups`, sorted from largest to smallest */
    weir_oom_report_stream pending_by[WEIR_OOM_REPORT_STREAMS];
    weir_oom_report_group groups[WEIR_OOM_REPORT_GROUPS];
    /* The bytes of live blocks that are in no group, because the host had no memory for more groups. */
    uint64_t ungrouped;
    /* The advice: one setting to change, followed by settings that must also change for the first one to have an
     * effect.  The list is empty if no setting would help, for example if the device is too small for any sufficient
     * limit.  The values for `limit` and `keep_free` are estimates, because with another value blocks may lie at other
     * addresses.  The report advises `registry` if other processes that use weir have the missing memory, and weir
     * could not ask these processes. */
    weir_oom_report_setting settings[WEIR_OOM_REPORT_SETTINGS];
    uint64_t keep_free; /* the bytes of options.keep_free if they lower `limit`, else 0 */
    /* The id of a process that uses weir, is stopped or does not answer, and has enough memory of the device for this
     * request.  If there are several such processes, this is the process with most memory.  0 means that there is no
     * such process.  weir sets this field only for cause OTHERS, and then advises no setting. */
    uint64_t silent_pid;
    uint64_t silent_reserved; /* the reserved memory of the process silent_pid */
    uint64_t silent_stopped;  /* 1 if the process silent_pid is stopped, else 0 */
    uint64_t default_stream;  /* the id of the default stream (NULL), or 0 if the id is not known */
    /* 1 if `limit` is a share of the device that depends on other processes; else 0 */
    uint64_t is_share;
    /* The weight of this process among the processes that share the device, in millionths, or 0 if `limit` is no
     * share. */
    uint64_t weight;
    /* The id of the process that uses weir, answers, and has most memory of the device.  weir sets this field only for
     * cause OTHERS, if silent_pid is 0.  The process must have more than a 16th of the device.  It must also have more
     * than the other allocators of this process, or be able to release enough.  0 means that there is no such
     * process. */
    uint64_t holder_pid;
    /* The memory that the process holder_pid has reserved, by its last report. */
    uint64_t holder_reserved;
    /* The bytes that the process holder_pid could release, by its last report. */
    uint64_t holder_reclaimable;
    /* 1 if weir_set_limit has set a limit below options.limit, else 0.  `keep_free` may lower the limit further. */
    uint64_t limit_is_set;
    /* The smallest limit to pass to weir_set_limit with which the request would succeed, an estimate.  If the report
     * also advises settings, the program must change both.  The field is 0 if weir_set_limit does not forbid the
     * request, or if the device is too small for such a limit. */
    uint64_t set_limit;
    char device[16]; /* the device, such as "cuda:0" or "model:0"; "" if it is not known */
    /* weir sets driver_result and no_descriptors only for cause DRIVER; for other causes both are 0.  For cause DRIVER,
     * `largest` is the size of the largest piece of idle memory. */
    uint64_t driver_result;  /* the driver's CUresult, or 0 if it is not known */
    uint64_t no_descriptors; /* 1 if the process has no file descriptor left, else 0 */
    /* The name of the group of processes that shares a limit on this device, or "" if there is no group.  In a group,
     * device_free is at most the memory that the group's limit still allows. */
    char process_group[WEIR_OOM_REPORT_NAME];
    uint64_t group_limit;  /* the limit of all processes of the group together */
    uint64_t group_used;   /* the memory that all processes of the group use */
    uint32_t members;      /* the number of processes in the group */
    uint32_t member_count; /* the number of entries in `member`, sorted from largest to smallest */
    weir_oom_report_member member[WEIR_OOM_REPORT_MEMBERS];
    /* The other processes that use memory of the device through weir, as the shared registry lists them.  weir sets
     * these fields only for cause OTHERS. */
    uint32_t processes; /* the number of other processes with memory of the device */
    /* The number of entries in `process`, sorted from largest to smallest. */
    uint32_t process_count;
    weir_oom_report_member process[WEIR_OOM_REPORT_PROCESSES];
} weir_oom_report;

/* The values for the parameter `format` of weir_oom_report_text. */
enum { WEIR_OOM_REPORT_AS_TEXT = 0, WEIR_OOM_REPORT_AS_JSON = 1 };

/* Makes an OOM report about the last request of this thread that failed in this allocator (E_NO_MEMORY or E_LIMIT of
 * weir_alloc).  The fields asked, status and waited_ns are from the time of the failure.  All other figures are from
 * the time of this call.  If the caller frees memory first, the report shows the new state, and has cause NONE if the
 * request would succeed now.  Set out->size to sizeof(*out) before the call.  The call fills *out as far as both sizes
 * allow, and writes the size of this part to out->size.  The caller owns the struct.  Nothing in the struct needs to be
 * freed.
 *
 * The call visits all blocks of the allocator under the allocator's locks, which takes about 10 ns for each block.  It
 * queries two or three numbers of the driver, queries which frees have completed, and reads the shared registry.  If
 * another thread is asking other processes for memory, the call waits for that thread.  It waits for a tenth of
 * options.recovery_timeout_ms, or for the whole timeout while a killed process is ending.  The call waits for no
 * stream, and changes nothing for any stream.  It needs some host memory.  Without host memory, the report contains
 * fewer groups (ungrouped).
 *
 * With the pool engine, the driver places the blocks.  The report then has neither `largest_free_block` nor `pending`,
 * and has no groups if options.cache is off.  The driver provides the memory for a request under capture, so the cause
 * of such a request is never PENDING or FRAGMENTED.  With options.harden, sizes include the gaps, and the live blocks
 * include freed blocks that weir keeps from reuse.
 *
 * Thread-safe.  A program may make this call in options.oom_callback.
 *
 * Returns OK or one of these statuses.
 * E_INVALID: an argument is NULL, out->size is 0, or no request of this thread has failed in this allocator.
 * E_DEVICE_LOST, E_FORKED: see weir_status(3).  Since 0.2. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_last_oom_report(weir_allocator *allocator,
                                                            weir_oom_report *out);

/* Writes an OOM report to `text`, as text or as JSON.  The text has lines of less than 90 characters, and each line
 * ends with a newline.  The JSON is one object without a newline, in which bytes are integers and null means "not
 * known".  The function writes at most `text_bytes` bytes, and the last of these bytes is NUL.  If `text_bytes` is 0,
 * `text` may be NULL.
 *
 * Returns the length of the whole text, without the NUL.  A buffer of 4096 bytes is always large enough.  Returns 0 if
 * `oom_report` is NULL, if its size is less than that of version 1, or if the format does not exist.  Allocates no
 * memory, takes no lock, and never blocks.  Thread-safe.  Since 0.2. */
WEIR_API size_t weir_oom_report_text(const weir_oom_report *oom_report, int format, char *text,
                                     size_t text_bytes);

/* Returns the word for a cause, such as "limit", or "unknown" for any other number.  The text is static.  Thread-safe,
 * never blocks.  Since 0.2. */
WEIR_API const char *weir_oom_report_cause_word(int cause);

#ifdef __cplusplus
}
#endif

#endif
