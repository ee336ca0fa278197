/* SPDX-License-Identifier: MIT */
/* weir/options.h: the options of an allocator. */
#ifndef WEIR_OPTIONS_H
#define WEIR_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include <weir/growth.h>
#include <weir/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An amount of device memory: a number of bytes, or a part of some memory.  The kinds of amounts are:
 *   DEFAULT     The amount is not set (all fields are 0), so the option has its default.
 *   BYTES       `value` bytes.  0 bytes is a real zero, unlike DEFAULT.
 *   OF_TOTAL    `value` millionths of the device's memory.  750000 is 75%.
 *   OF_FREE     `value` millionths of the device's free memory at the time when weir first needs the amount.
 *   MAX         No limit, or all memory.
 *   OF_IN_USE   `value` millionths of the bytes that the allocator has in use.  weir uses the largest number of bytes
 *               in use in this second and the second before.  For cache_limit only.
 *   SHARE       A share of the device's memory less `keep_free`, for prealloc and limit only.  weir divides the
 *               memory by weight among all processes in the device's shared registry (see `registry` below).
 *               `value` is the weight of this process in millionths.  A process without a weight has the weight
 *               1000000.  A share changes when processes come or go.  A limit is never less than the bytes in
 *               use, and no process preallocates a second time.  If the limit is a share, the preallocation is
 *               never above the limit, also when the limit falls. */
enum {
    WEIR_AMOUNT_DEFAULT = 0,
    WEIR_AMOUNT_BYTES = 1,
    WEIR_AMOUNT_OF_TOTAL = 2,
    WEIR_AMOUNT_OF_FREE = 3,
    WEIR_AMOUNT_MAX = 4,
    WEIR_AMOUNT_OF_IN_USE = 5,
    WEIR_AMOUNT_SHARE = 6,
    WEIR_AMOUNT_KIND = 0xff /* the bits of weir_amount.kind that contain a WEIR_AMOUNT_ number */
};

typedef struct weir_amount {
    uint64_t value; /* a number of bytes or of millionths, depending on `kind` */
    /* A WEIR_AMOUNT_ constant.  If a variable of TensorFlow, XLA or JAX has set prealloc, weir_options_from_env also
     * sets bits above WEIR_AMOUNT_KIND.  weir then lowers such an amount to the limit, with a warning in the log, and
     * reports no error. */
    int kind;
} weir_amount;

/* The engines, as X(name, word, value).  DEFAULT is MAPPED on a device that can map memory, else POOL. */
#define WEIR_ENGINES(X)                                                                            \
    X(DEFAULT, "default", 0)                                                                       \
    X(POOL, "pool", 1)           /* a private CUDA memory pool that grows by the growth policy */  \
    X(BFC, "bfc", 2)             /* best fit in regions of cuMemAlloc, as in TensorFlow and XLA */ \
    X(DIRECT, "direct", 3)       /* one cuMemAlloc and cuMemFree for each block */                 \
    X(MAPPED, "mapped", 4)       /* one range of addresses, in which weir maps memory as needed */ \
    X(BFC_FIXED, "bfc-fixed", 5) /* BFC in one region of the limit's size, allocated at once */

enum {
#define WEIR_ENGINE_ENUM(name, word, value) WEIR_ENGINE_##name = (value),
    WEIR_ENGINES(WEIR_ENGINE_ENUM)
#undef WEIR_ENGINE_ENUM
};

/* The log levels, as X(name, word, value).  Each level includes all levels before it.  weir writes the lines to
 * standard error. */
#define WEIR_LOG_LEVELS(X)                                                                         \
    X(DEFAULT, "default", 0) /* like NONE */                                                       \
    X(NONE, "none", 1)                                                                             \
    X(ERROR, "error", 2)                                                                           \
    X(WARNING, "warning", 3)                                                                       \
    X(INFO, "info", 4)                                                                             \
    X(DEBUG, "debug", 5)

enum {
#define WEIR_LOG_ENUM(name, word, value) WEIR_LOG_##name = (value),
    WEIR_LOG_LEVELS(WEIR_LOG_ENUM)
#undef WEIR_LOG_ENUM
};

/* The kinds of hardening, as X(name, word, bit). */
#define WEIR_HARDENINGS(X)                                                                         \
    X(OFF, "off", 1)       /* no hardening; this is the default */                                 \
    X(POISON, "poison", 2) /* fills freed blocks, keeps them for a while, and checks them */       \
    X(GUARD, "guard", 4)   /* fills a gap before and after each block, and checks both */          \
    X(ZERO_STREAM, "zero-stream", 8)  /* zeroes a block if another stream has used its memory */   \
    X(ZERO_ALWAYS, "zero-always", 16) /* zeroes every block */

enum {
#define WEIR_HARDEN_ENUM(name, word, bit) WEIR_HARDEN_##name = (bit),
    WEIR_HARDENINGS(WEIR_HARDEN_ENUM)
#undef WEIR_HARDEN_ENUM
};

/* The values of a switch.  0 means the default of the option. */
enum { WEIR_SWITCH_DEFAULT = 0, WEIR_SWITCH_OFF = 1, WEIR_SWITCH_ON = 2 };

/* The arguments of an out-of-memory callback (weir_oom_function). */
typedef struct weir_oom {
    size_t size; /* the size of this struct in the library, which fills the struct */
    struct weir_allocator *allocator;
    struct CUstream_st *stream; /* the stream of the request */
    uint64_t bytes;             /* the size of the request */
    /* 1 at the first call for this request, 2 at the second, and so on. */
    uint64_t attempt;
    /* The size of the largest request that would now succeed, as far as weir can be sure of this. */
    uint64_t largest;
    /* The status that weir_alloc returns if weir does not retry the request: E_NO_MEMORY or E_LIMIT. */
    weir_status status;
} weir_oom;

/* The type of a program's out-of-memory callback, which may free memory.  The callback returns nonzero if weir shall
 * retry the request, and 0 if the request shall fail.
 *
 *   When     The callback is the last step of OOM recovery.  Before this step, weir has waited for frees, flushed its
 *            caches and released idle memory, and a request of weir_alloc would still fail.  As long as the callback
 *            returns nonzero, weir calls it again after each failed attempt, without a limit.
 *   Where    weir calls the callback in the thread of the request, without a lock of weir, and with the context and the
 *            capture mode of the request.  Several threads may run the callback at one time.  weir_alloc blocks as long
 *            as the callback runs, and weir_latencies includes this time.
 *   May do   The callback may call every function of weir, except weir_allocator_destroy for this allocator.  The
 *            request can use memory that the callback frees on the request's stream at once.  The request can use
 *            memory that the callback frees on other streams once the work of these streams has completed.  To make
 *            sure of this, the callback may wait for the device.  A request inside the callback that fails gets no
 *            second callback, in any allocator.  The callback must return: it must not jump or throw.
 *   Never    weir does not call the callback for a request on a stream that is being captured, or in a child of
 *            fork().  While the thread captures another stream, the callback may only do what the driver allows
 *            during a capture.
 *
 * If the callback returns 0, weir_alloc returns `status`.  The thread then has the driver result and the figures of
 * weir_last_failure for this request, even if calls inside the callback have failed.  A request that succeeds in the
 * end is no failed request in weir_stats, but the log (warning) has a line for each attempt.  `oom` is valid during the
 * call.  `data` is options.oom_callback_data, which weir never frees.  Since 0.1. */
typedef int (*weir_oom_function)(const weir_oom *oom, void *data);

/* The settings of one allocator.  Initialise the struct by weir_options_init, which also sets `size`.  A field that is
 * 0 has its default.  New versions of the library add fields at the end.  If `size` is not the size of any version, for
 * example because it ends within a field, each function that takes the struct returns E_INVALID and reads no other
 * field.  The library copies all values that it needs, so pointers in the struct need to be valid only during the call.
 * The exceptions are growth_context and oom_callback_data, which must be valid until the allocator is destroyed. */
typedef struct weir_options {
    size_t size; /* sizeof(weir_options) when the caller was compiled */

    /* The device.  "cuda" or "cuda:N" is the GPU with number N.  "model" or "model:N" is the device model, a GPU in
     * software.  Without a number, N is 0.  NULL means "cuda".  The library uses the device model only if the program
     * names it. */
    const char *device;

    int engine; /* the engine, a WEIR_ENGINE_ constant */

    /* The memory that weir reserves before the first request.  weir_stats returns how many bytes the device provided.
     * Default: none.  More preallocated memory makes the first iterations fast, and leaves less memory to other
     * programs.
     * weir_allocator_create preallocates.  In two cases the first request preallocates instead: if the allocator is one
     * of the process's allocators (weir_default_allocator, weir_device_allocator, weir_stream_allocator), or if
     * weir_options_from_env has read the amount from a variable of TensorFlow, XLA or JAX.  weir lowers an amount from
     * such a variable to the limit, with a warning in the log. */
    weir_amount prealloc;

    int growth; /* the growth policy, a WEIR_GROWTH_ constant */
    /* For policy STEP: the step in bytes (0 means 64 MiB).  For policy GEOMETRIC: the largest step in bytes (0 means no
     * maximum). */
    uint64_t growth_step;
    /* For policy GEOMETRIC: the factor, above 1 (0 means 2).  For policy REMAINING: the fraction, above 0 and at most 1
     * (0 means 0.5). */
    double growth_factor;
    weir_growth_function growth_function; /* for policy CALLBACK: the function; otherwise NULL */
    void *growth_context;                 /* weir passes this pointer to growth_function */

    /* The maximum of memory that the allocator may reserve.  Default: max, with which only the device limits the
     * allocator.  For engine bfc-fixed, the limit is the size of its region, and the default is 75%. */
    weir_amount limit;

    /* The release threshold: the bytes of reserved memory that weir keeps, although some of this memory is idle.
     * Default: max.  With a lower threshold, weir releases memory for other programs, and later has to grow again.
     * Pool engine: this is the threshold of the driver's pool, which the driver applies at each synchronisation.
     * Engines mapped and bfc: weir releases idle memory above the threshold, without a wait, once the host has observed
     * that all work on this memory has completed.  weir does so in the next request that the per-stream caches cannot
     * satisfy, or in weir_decay.  weir does not see the program's synchronisations, so memory above the threshold stays
     * until such a call.  Memory that a request has just added stays for at least 16 times the time that the growth
     * took.  Engine bfc releases memory only while one stream uses the allocator, because cuMemFree waits for the
     * device. */
    weir_amount release_threshold;

    /* The maximum time, in milliseconds, that a request waits for frees to complete when there is no memory.  0 means
     * 1000, and UINT32_MAX means no wait.  If nothing else helps, engine bfc releases idle regions, and then waits for
     * the device in addition to this time. */
    uint32_t recovery_timeout_ms;

    int latency; /* WEIR_SWITCH_: whether weir measures the latency of every call; default off */
    int log;     /* the log level, WEIR_LOG_; default none, or error with `harden` */

    /* WEIR_SWITCH_: whether the allocator has per-stream caches above the engine.  A cache returns blocks from memory
     * that its stream has freed, without a call of the engine.  It is used for requests of up to 512 KiB, and for
     * larger requests of the size of a block that was just freed.  Default: on, but off for engine direct.  If the
     * caches are off, the driver allocates every block of the engines pool and direct, so that compute-sanitizer sees
     * each block. */
    int cache;

    /* The maximum of idle memory that all caches of the allocator together keep for requests of up to 512 KiB.  The
     * amount is BYTES (0 keeps nothing), OF_IN_USE or MAX.  With more memory, more requests find a block in a cache,
     * and other streams have less memory.
     * Default: 2% of the bytes in use, and at least 16 MiB as long as never more than 256 MiB were in use.  In
     * addition, the cache of each stream may keep 1 MiB.  A stream returns memory above the limit at its next request.
     * If the program sets this limit, the limit includes the caches of streams that make no more requests, so the other
     * caches keep less.
     * Caches do not keep larger blocks in this way.  A freed larger block merges with free memory when its stream makes
     * a request that its cache cannot satisfy, or earlier. */
    weir_amount cache_limit;

    /* WEIR_SWITCH_: whether weir queries the driver about streams that the program has created.  Default: on.  With
     * off, the program promises to allocate on no stream that is being captured, and to destroy no stream while the
     * allocator lives.  weir then queries neither the capture status nor the id of such streams.  weir still queries
     * the ids of default streams. */
    int stream_checks;

    /* WEIR_SWITCH_: whether weir may make one stream wait for another stream in order to reuse memory.  Default: off.
     * The switch has no effect with the engines pool and direct.
     * With on, before weir grows for a request, weir reuses memory that other streams have freed while their work still
     * runs.  weir makes the request's stream wait on the device for this work (cuStreamWaitEvent).  The driver's pool
     * does this under CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES.  weir then reserves less memory, but there are
     * two costs:
     *   stalls     The request's stream waits until the other stream has completed its work, which may take any time.
     *              Streams that would run in parallel may run one after the other.
     *   deadlock   The work of the other stream may itself wait for the request's stream, on the device, through the
     *              host or through another device.  Then both streams wait for ever.  Collectives of several NCCL
     *              communicators wait for each other in this way.
     * weir never makes a stream wait for a block with declared uses on other streams (weir_use).  weir reuses such a
     * block once the host has observed that the work of these streams has completed. */
    int internal_dependencies;

    /* Hardening: WEIR_HARDEN_ bits, or OFF alone.  Default: off.  Hardening finds errors of a program, and clears
     * memory.  Every request is much slower, because each check waits for the stream.
     * POISON: weir fills a freed block with 0xdd on its stream, and keeps the block from reuse.  For each stream, weir
     * keeps up to 64 blocks or 64 MiB, but at least one block.  weir checks the block before the stream or another
     * request reuses the block.  If the program has written to the block after the free, weir reports the error, and
     * does not reuse the block until the allocator is destroyed.  POISON needs stream ids (driver 12.0), and is off
     * with an older driver.
     * GUARD: weir fills a gap of 256 bytes before each block, and a gap of 256 to 511 bytes after its last byte, with
     * 0xfd.  weir checks both gaps at the free, and reports writes to them.
     * ZERO_STREAM: weir zeroes a block on its stream before weir returns the block.  The exception is memory that this
     * stream has freed and that weir has kept for this stream since then.
     * ZERO_ALWAYS: weir zeroes every block.
     * weir reports errors in the log (level error) and in counters of weir_stats.  The free of a block with declared
     * uses makes its stream wait for the declared streams.  Under stream capture, a node of the graph zeroes a block,
     * and weir does nothing else.  A free under capture checks nothing. */
    uint64_t harden;

    /* The function that weir calls before a request fails for lack of memory (see weir_oom_function), or NULL.  With a
     * callback, each weir_alloc takes some nanoseconds more.  Only a program can set this field, since no text or
     * variable can name a function.  The process's allocators have no callback. */
    weir_oom_function oom_callback;
    void *oom_callback_data; /* weir passes this pointer to oom_callback */
    /* Background growth: a thread of the allocator takes memory from the device before a request needs the memory.
     * weir_allocator_create reserves `grow_ahead` bytes, as far as the device has them.  When less than `grow_ahead`
     * bytes of reserved memory are idle, the thread adds memory until twice `grow_ahead` bytes are idle.  Each step of
     * the thread takes about a tenth of a millisecond.  The less memory is idle, the shorter are the pauses between
     * steps.
     * For this option, memory is idle if it is in no live block and in no per-stream cache.  If a request does not fit
     * into the pieces of idle memory, the request itself still grows the reserved memory.
     * The thread leaves a 64th of the device to requests and to other programs.  If the device or the limit has no more
     * memory, the thread tries again later, at most every 2.56 s.  On the device model, which has virtual time, the
     * steps run between the calls.
     * The amount is BYTES, OF_TOTAL or OF_FREE.  For a fraction, the doubled fraction is at most 100%.  Default: none.
     * With a larger amount, requests wait less for growth, and other programs have less memory.  For the engines
     * mapped, pool and bfc. */
    weir_amount grow_ahead;

    /* The minimum of the preallocation.  If weir gets less memory, weir_allocator_create fails with E_NO_MEMORY.  If
     * the first request preallocates, this request fails, and so does each later request while there is too little
     * memory.  weir then releases the memory that the preallocation got.  The amount must not exceed prealloc.  If
     * prealloc is not set, weir preallocates this amount.  Default: for a preallocation in weir_allocator_create,
     * anything more than nothing; at the first request, even nothing. */
    weir_amount prealloc_min;

    /* A profile: a file that records how much memory earlier runs needed, or a folder of such files.  The path has at
     * most 1023 bytes.  A relative path starts at the process's folder when the allocator is created.  NULL or "off"
     * means no profile.  weir_allocator_destroy writes the memory that this run needed to the profile.  For the default
     * allocator, the process writes the profile when it ends.  weir_profile_save writes the profile at any time.  The
     * next allocator with this device and these settings (engine, growth, limit, cache) preallocates the recorded
     * amount, unless `prealloc` is set.  In a folder, each combination of device and settings has its own file.  If a
     * file cannot be read, or was recorded with another device or other settings, weir logs a warning and ignores the
     * file.  Not for the engines direct and bfc-fixed. */
    const char *profile;

    /* The half-life of decay, in milliseconds.  weir releases memory that nothing has needed for this time to the
     * device, by halves: half of the memory in each half-life.  Three amounts stay reserved: preallocated memory, a
     * release threshold that is set, and the memory that was in use plus twice `grow_ahead`.  A load that reaches its
     * peak at least once in a half-life keeps its memory.  Decay happens in weir_decay, and in requests that the caches
     * cannot satisfy, without a wait.  With engine bfc, decay happens only in weir_decay.  0 or UINT64_MAX means no
     * decay.
     * With a shorter half-life, other programs get memory sooner, and weir grows again if the load comes back later.
     * For the engines pool, mapped and bfc. */
    uint64_t decay_ms;

    /* WEIR_SWITCH_: whether the allocator uses the shared registry.  Default: on.  Through the shared registry, a file
     * of a few pages in the runtime folder, a user's processes with memory of one GPU find each other.  If the device
     * has no memory for a request, the other processes release their idle memory.  The request waits for this release:
     * up to a tenth of recovery_timeout_ms, or up to the whole timeout while a killed process is ending.  With off,
     * processes do not ask each other for memory.  On a device model there are no other processes, unless
     * WEIR_MODEL_SHARED is set. */
    int registry;
    /* The priority of the process, from 1 to 1000; 0 means 100.  If memory is short, weir first asks the processes with
     * the lowest priority to release idle memory. */
    uint32_t priority;
    /* The device memory that weir leaves free for others, such as a display or programs without weir.  Before weir
     * reserves more memory, it compares this amount with the free memory that the device reports.  If another process
     * allocates memory at this moment, less memory may stay free.  Default: none. */
    weir_amount keep_free;

    /* The destination of the OOM report when a request fails, in the format of weir_oom_report_text.  The destination
     * is "stderr", or a file to which weir appends reports.  If the file's name ends with .json, each report is one
     * line of JSON.  The path has at most 1023 bytes.  A relative path starts at the process's folder at the time of
     * the failure.  NULL or "off" means no report.  The failed call itself writes the report, which takes as long as
     * weir_last_oom_report.  Of the allocator's first 16 failures, weir reports the first failure of each cause.  If
     * weir cannot write to the file (it cannot be opened, or the disk is full), weir writes the reason and the report
     * to standard error. */
    const char *oom_report;

    /* The other devices that may use all blocks of the allocator in their work.  The text is a list of device numbers
     * with commas ("1", "0,2,3"), "all" for all peers of the device (cuDeviceCanAccessPeer), or "none".  In a list, the
     * number of the allocator's own device has no effect.  NULL means "none".  weir_set_access changes the access
     * later.  If a device does not exist or is no peer, weir_allocator_create fails.  For the engines pool and mapped.
     * The memory of other engines comes from cuMemAlloc, and the program opens it by cuCtxEnablePeerAccess.  With
     * engine mapped, each peer device makes growth and moves a little slower. */
    const char *peers;
} weir_options;

/* Sets every field of *options to its default, and `size` to `bytes`.  `bytes` is sizeof(weir_options) in the caller's
 * version.  Call the macro weir_options_init, which passes this size.  Never blocks.
 *
 * Returns OK or this status.
 * E_INVALID: `options` is NULL, or no version of the struct has this size.  The size is less than that of version 1, or
 * ends within a field. */
WEIR_API weir_status weir_options_init_sized(weir_options *options, size_t bytes);
#define weir_options_init(options) weir_options_init_sized((options), sizeof(weir_options))

/* Sets options from the environment.  Fields that are already set stay.  The variables WEIR_<OPTION> come first.  For
 * fields that are still not set, the variables of TensorFlow, XLA and JAX in weir-settings(7) follow, unless
 * WEIR_COMPAT=0.  Texts in the struct live as long as the process.  The call writes one warning to standard error for
 * each unknown WEIR_ variable, and for each variable with a name similar to a known name.  The call reads the
 * environment, so no other thread may call setenv during the call.  Never blocks.  On a failure `message` receives the
 * reason.  `message` may be NULL, and always ends with a NUL if message_bytes is above 0.
 *
 * Returns OK or one of these statuses.  On an error the options are unchanged.
 * E_INVALID: `options` is NULL or has a wrong size.
 * E_PARSE: a variable has a wrong value.  `message` contains the variable, its value, and the values that it
 * accepts. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_options_from_env(weir_options *options, char *message,
                                                             size_t message_bytes);

/* Sets one option from a text, which the call copies.  `name` is the name of the option in `weir help --all`, such as
 * "prealloc" or "growth".  A size has one of the forms 4GiB, 512MB, 1073741824, 75%, 90%free, max.  The units KiB, MiB,
 * GiB, TiB (or K, M, G, T) are powers of 1024, and KB, MB, GB, TB are powers of 1000.  A number without a unit is a
 * number of bytes.  A nonzero number below 2^20 needs a unit, because its writer probably means MiB.  A growth policy
 * has one of the forms exact, step:64MiB, geometric:2[:cap], remaining:0.5, bfc.  A percentage for cache-limit is a
 * part of the bytes in use.
 *
 * `message` works as in weir_options_from_env.  No text restores a default, but weir_options_init restores the defaults
 * of all options.  Thread-safe for different structs; never blocks.
 *
 * Returns OK or one of these statuses.  On an error the options are unchanged.
 * E_INVALID: there is no option with this name, or `options` is NULL or not initialised.
 * E_PARSE: the option does not accept the text. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_options_set(weir_options *options, const char *name,
                                                        const char *text, char *message,
                                                        size_t message_bytes);

#ifdef __cplusplus
}
#endif

#endif
