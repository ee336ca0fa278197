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

/* An amount of device memory: bytes, a part of the device, or as much as there is.
 *   DEFAULT     not set (an amount that is all zero): the option's default
 *   BYTES       `value` bytes; 0 bytes is a real zero, unlike DEFAULT
 *   OF_TOTAL    `value` millionths of the device's memory: 750000 is 75%
 *   OF_FREE     `value` millionths of the device's free memory when the amount is first needed
 *   MAX         no bound, or all there is
 *   OF_IN_USE   `value` millionths of the most bytes that the allocator had in use in this second and
 *               the second before; for cache_limit only
 *   SHARE       this process's part of the device less `keep_free`, divided by weight among all processes in
 *               the device's shared registry (see `registry` below).  `value` is the weight in millionths;
 *               the weight of a process that sets none is 1000000.  For prealloc and limit only.  A share
 *               changes as processes come and go.  A limit is never less than the bytes in use, and no
 *               process preallocates again.  A limit that is a share caps the preallocation, also when the
 *               limit falls. */
enum {
    WEIR_AMOUNT_DEFAULT = 0,
    WEIR_AMOUNT_BYTES = 1,
    WEIR_AMOUNT_OF_TOTAL = 2,
    WEIR_AMOUNT_OF_FREE = 3,
    WEIR_AMOUNT_MAX = 4,
    WEIR_AMOUNT_OF_IN_USE = 5,
    WEIR_AMOUNT_SHARE = 6,
    WEIR_AMOUNT_KIND = 0xff /* the bits of `kind` that hold one of the numbers above */
};

typedef struct weir_amount {
    uint64_t value; /* bytes or millionths, by `kind` */
    /* WEIR_AMOUNT_.  If prealloc comes from a variable of TensorFlow, XLA or JAX, weir_options_from_env also sets bits
     * above WEIR_AMOUNT_KIND.  weir then caps the amount at the limit, with a warning in the log. */
    int kind;
} weir_amount;

/* Engines: X(name, word, value).  DEFAULT is MAPPED if the device can map memory, else POOL. */
#define WEIR_ENGINES(X)                                                                            \
    X(DEFAULT, "default", 0)                                                                       \
    X(POOL, "pool", 1)     /* a private CUDA memory pool that grows by the growth policy */        \
    X(BFC, "bfc", 2)       /* BFC, as in TensorFlow and XLA, over cuMemAlloc */                 \
    X(DIRECT, "direct", 3) /* one cuMemAlloc and cuMemFree per block */                            \
    X(MAPPED, "mapped", 4) /* one range of addresses; maps memory where it is needed */            \
    X(BFC_FIXED, "bfc-fixed", 5) /* BFC in one region of the size of the limit, allocated at once */

enum {
#define WEIR_ENGINE_ENUM(name, word, value) WEIR_ENGINE_##name = (value),
    WEIR_ENGINES(WEIR_ENGINE_ENUM)
#undef WEIR_ENGINE_ENUM
};

/* Log levels: X(name, word, value).  A level includes all levels before it.  Lines go to standard error. */
#define WEIR_LOG_LEVELS(X)                                                                         \
    X(DEFAULT, "default", 0) /* none */                                                            \
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

/* Hardening: X(name, word, bit). */
#define WEIR_HARDENINGS(X)                                                                         \
    X(OFF, "off", 1)                  /* none; the default */                                      \
    X(POISON, "poison", 2)            /* fills freed blocks, keeps them a while, verifies them */  \
    X(GUARD, "guard", 4)              /* fills gaps around each block, and verifies them */        \
    X(ZERO_STREAM, "zero-stream", 8)  /* zeroes memory that its stream did not have before */      \
    X(ZERO_ALWAYS, "zero-always", 16) /* zeroes every block */

enum {
#define WEIR_HARDEN_ENUM(name, word, bit) WEIR_HARDEN_##name = (bit),
    WEIR_HARDENINGS(WEIR_HARDEN_ENUM)
#undef WEIR_HARDEN_ENUM
};

/* Three-valued switches: zero means the option's default. */
enum { WEIR_SWITCH_DEFAULT = 0, WEIR_SWITCH_OFF = 1, WEIR_SWITCH_ON = 2 };

/* The arguments of an out-of-memory callback. */
typedef struct weir_oom {
    size_t size; /* sizeof(weir_oom) of the library that fills it */
    struct weir_allocator *allocator;
    struct CUstream_st *stream; /* the stream of the request */
    uint64_t bytes;             /* the size of the request */
    uint64_t attempt;           /* the number of this call for the request, from 1 */
    uint64_t largest;           /* the size of a request that would succeed (weir_failure) */
    /* The status that weir_alloc returns unless the request is tried again: E_NO_MEMORY or E_LIMIT. */
    weir_status status;
} weir_oom;

/* The out-of-memory callback of a program, which may free memory.  Returns nonzero to try the request again, or zero to
 * let it fail.
 *
 *   When     The callback is the last step of OOM recovery.  Before it weir has waited for frees, emptied its
 *            caches and given idle memory back, and still cannot serve a request of weir_alloc.  As long as the
 *            callback returns nonzero, weir calls it again after each failed attempt, without a bound.
 *   Where    weir calls it on the thread of the request, under no lock of weir, with the context and the
 *            capture mode of the request.  Several threads may be in it at once.  weir_alloc blocks as long as
 *            the callback takes, and weir_latencies counts that time.
 *   May do   It may call every function of weir but weir_allocator_destroy on the allocator.  Memory that it
 *            frees on the request's stream serves the request at once.  Memory that it frees on other streams
 *            serves the request once its work has completed; a wait for the device in the callback makes sure of
 *            that.  A request inside the callback that fails gets no second callback, whatever its allocator.
 *            The callback must return: it must not jump or throw.
 *   Never    weir does not call it for a request on a stream that is being captured, or in a child of fork.
 *            While its thread captures another stream, it may do only what the driver then allows.
 * If the callback returns zero, weir_alloc returns `status`, with the driver's result and the figures of
 * weir_last_failure that belong to the request, whatever calls inside the callback have left.  A request that succeeds
 * in the end does not count as a failure in weir_stats, but the log (warning) has a line for each attempt.  `oom` is
 * valid during the call.  `data` is options.oom_callback_data; weir never frees it.  Since 0.1. */
typedef int (*weir_oom_function)(const weir_oom *oom, void *data);

/* Settings of one allocator.  Set `size` by weir_options_init; every zero field means "default".  New versions add
 * fields at the end.  A `size` that no version had, such as one that ends within a field, is E_INVALID in every
 * function that takes the struct; the function then reads nothing of it.  The library copies all that it needs:
 * pointers in here need only live until the call returns.  Exceptions are growth_context and oom_callback_data, which
 * must live until the allocator is destroyed. */
typedef struct weir_options {
    size_t size; /* bytes of this struct as the caller was compiled */

    /* The device: "cuda" or "cuda:N", number N of the GPUs, or "model" or "model:N", of the device model (a GPU in
     * software).  N is 0 if not given.  NULL: "cuda".  The library uses the model only if the program names it. */
    const char *device;

    int engine; /* WEIR_ENGINE_ */

    /* Memory to reserve before the first request; weir_stats reports how much of it the device provided.  Default:
     * none.  weir_allocator_create reserves it.  The first request does so instead if weir_options_from_env took the
     * amount from a variable of TensorFlow, XLA or JAX, or if the process's allocator is used (weir_default_allocator,
     * weir_device_allocator, weir_stream_allocator).  weir caps an amount from such a variable at the limit, with a
     * warning in the log.  More makes first iterations fast and leaves less to other programs. */
    weir_amount prealloc;

    int growth;           /* WEIR_GROWTH_ */
    uint64_t growth_step; /* bytes; STEP: the step (0 means 64 MiB); GEOMETRIC: the largest step (0 means none) */
    double growth_factor; /* GEOMETRIC: > 1 (0 means 2); REMAINING: in (0, 1] (0 means 0.5) */
    weir_growth_function growth_function; /* the function of policy CALLBACK; otherwise NULL */
    void *growth_context;                 /* an argument of this function */

    /* The most memory that the allocator may reserve.  Default: max (the device decides).  For engine
     * bfc-fixed: the size of its region, then 75% by default. */
    weir_amount limit;

    /* Reserved memory in bytes that weir keeps although some of it is idle.  Default: max.  Less gives memory back to
     * others, and weir has to grow again later.
     * Pool engine: the driver's own threshold, which the driver applies at each synchronisation.  Engines mapped and
     * bfc: idle memory above the threshold goes back, without a wait, once the host has observed that its uses are
     * complete: in the next request that goes beyond the per-stream caches, or in weir_decay.  weir does not see the
     * program's synchronisations, so memory above the threshold stays until such a call.  In requests, memory that has
     * just grown stays for at least 16 times the time that the growth took.  Engine bfc gives memory back only while
     * one stream uses the allocator, since cuMemFree waits for the device. */
    weir_amount release_threshold;

    /* The longest wait for frees to complete when memory ran out, in milliseconds.  0 means 1000; UINT32_MAX means no
     * wait at all.  If nothing else helps, engine bfc gives idle regions back, which waits for the device in addition
     * to this time. */
    uint32_t recovery_timeout_ms;

    int latency; /* WEIR_SWITCH_: keep a histogram of the latency of every call; default off */
    int log;     /* WEIR_LOG_; default none, with harden error */

    /* WEIR_SWITCH_: per-stream caches above the engine.  They serve a stream's requests of up to 512 KiB, and larger
     * ones of the size of a block just freed, with memory that the stream freed itself, without the engine.  Default:
     * on; for engine direct off.  Off: the driver allocates every block of engines pool and direct, so that
     * compute-sanitizer sees each. */
    int cache;

    /* The most that all caches of the allocator keep in idle slabs, for requests of up to 512 KiB: BYTES (0 keeps
     * nothing), OF_IN_USE or MAX.  More serves more requests without the engine and leaves less to other streams.
     * Default: 2%, and at least 16 MiB as long as no more than 256 MiB were ever in use; and 1 MiB for each stream,
     * however many there are.  A stream returns memory that it may not keep at its next request.  If this limit is set,
     * the caches of streams that make no request count, too, and the other caches keep less.
     * Larger blocks are not cached: a freed one merges with free memory at the latest when its stream makes a request
     * that its cache does not serve. */
    weir_amount cache_limit;

    /* WEIR_SWITCH_; default on.  Off: the program promises that it allocates on no stream that is being captured,
     * and destroys no stream while the allocator lives.  Weir then asks the driver neither for the capture status
     * nor for the id of streams that the program made.  It still tells default streams apart by id. */
    int stream_checks;

    /* WEIR_SWITCH_; default off: weir adds no wait between streams.  It has no effect with the engines pool and
     * direct.  On, with the engines mapped and bfc: before weir grows for a request, it reuses memory that other
     * streams freed while they are still at work.  weir makes the request's stream wait on the device for that work
     * (cuStreamWaitEvent).  The driver's pool does so under CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES.  weir
     * then reserves less memory, but has two costs:
     *   stalls     the request's stream waits until the other stream has done its work, however long that takes.
     *              Streams that would run side by side may run one after the other.
     *   deadlock   neither stream ever goes on if that work waits for the request's stream, on the device, through the
     *              host or through another device.  Collectives of several NCCL communicators wait for each other like
     *              this.
     * weir never makes a stream wait for a block that other streams use (weir_use).  Such a block is reused once the
     * host has observed that their work has completed. */
    int internal_dependencies;

    /* WEIR_HARDEN_ bits, or OFF alone; default off.  It finds errors of a program, and clears memory.  Every request
     * is much slower, because each verification waits for the stream.
     * POISON: weir fills a freed block with 0xdd on its stream and keeps it from reuse, up to 64 blocks or 64 MiB a
     * stream (one block at least).  It verifies the block before the stream has it again or other requests reuse it.
     * If the program wrote to it after the free, weir reports that and keeps the block out of use until the
     * allocator is destroyed.  Needs stream ids (driver 12.0); off without.
     * GUARD: weir fills a gap of 256 bytes before a block, and one of 256 to 511 from its last byte on, with 0xfd.
     * It verifies them at the free and reports writes to them.
     * ZERO_STREAM: weir zeroes a block on its stream before it returns it, unless that stream freed the memory
     * and weir kept it for that stream since.  ZERO_ALWAYS: without exception.
     * Reports are lines in the log (error) and counters in weir_stats.  A free of a block with noted uses makes its
     * stream wait for the noted streams.  Under stream capture a node of the graph zeroes blocks, and weir does
     * nothing else; a free there verifies nothing. */
    uint64_t harden;

    /* The function that weir calls before a request fails for lack of memory; see weir_oom_function.  NULL: none.  With
     * a callback each weir_alloc takes some nanoseconds more.  Only a program can set it: no text or variable does, and
     * the process's allocators have none. */
    weir_oom_function oom_callback;
    void *oom_callback_data; /* an argument of the callback */
    /* Background growth: a thread takes memory from the device before a request needs it.  weir_allocator_create
     * reserves `grow_ahead`, as far as the device has it.  When less than `grow_ahead` of reserved memory is idle, a
     * thread of the allocator adds more, until twice `grow_ahead` is idle.  Its steps take about a tenth of a
     * millisecond; the pauses between them are shorter the less memory is idle.
     * Memory counts as idle here if it is in no live block and in no per-stream cache.  A request that does not fit into
     * the pieces of idle memory still grows reserved memory itself.
     * The thread leaves a 64th of the device to requests and to other programs.  Where the device or the limit has
     * no more it tries again later, at most every 2.56 s.  On the device model, whose time is virtual, its steps run
     * between the calls.
     * BYTES, OF_TOTAL or OF_FREE; twice a share is at most 100%.  Default: none.  More hides more growth and leaves
     * less to other programs.  For the engines mapped, pool and bfc. */
    weir_amount grow_ahead;

    /* The least that a preallocation must get.  With less weir_allocator_create fails with E_NO_MEMORY.  If
     * preallocation happens at the first request, that request fails, and so does each later request while the memory
     * is still lacking.  The memory that weir got then goes back to the device.  The amount must not exceed prealloc;
     * if prealloc is not set, weir preallocates this amount.  Default: any amount is enough at the first request, more
     * than nothing at create. */
    weir_amount prealloc_min;

    /* A file, or a folder, that records how much memory earlier runs needed; at most 1023 bytes.  A relative name
     * starts at the folder that the process is in when the allocator is made.  NULL or "off": none.
     * weir_allocator_destroy writes to it what this run needed.  For the default allocator the process does so at
     * its end.  weir_profile_save does so at any time.  The next allocator with that device and these settings
     * (engine, growth, limit, cache) preallocates the learned amount, unless `prealloc`
     * is set.  In a folder each combination of device and settings has its own file.  A file that cannot
     * be read, or was learned elsewhere, draws a warning in the log and has no other effect.  Not for engines
     * direct and bfc-fixed. */
    const char *profile;

    /* The half-life of decay, milliseconds.  Memory that nothing needed for that long goes back to the device by
     * halves, one each half-life.  weir never goes below the preallocated memory, nor below a release threshold that
     * is set, nor below the memory that was in use plus twice `grow_ahead`.  A load that reaches its peak at least once
     * in that time keeps its memory.
     * Decay happens in requests that the engine serves, without waiting for anybody, and in weir_decay.  0 or
     * UINT64_MAX: never.  A shorter half-life gives memory to other programs sooner, and grows again if a load comes
     * back later.  For the pool engine and engine mapped; bfc decays in weir_decay alone. */
    uint64_t decay_ms;

    /* WEIR_SWITCH_; default on: the shared registry.  The user's processes that have memory of one GPU find each other
     * through a file of a few pages in the runtime folder.  If the device has no memory for a request, the other
     * processes give back their idle memory.  The request waits for that for a tenth of recovery_timeout_ms at most, or
     * for all of it while a process that was killed is not gone yet.  off: none of this.  On a device model there are
     * no other processes, unless WEIR_MODEL_SHARED says so. */
    int registry;
    /* The process's priority, from 1 to 1000; 0 means 100.  weir first asks the processes of the lowest priority for
     * idle memory. */
    uint32_t priority;
    /* Device memory that growth leaves free for others, such as a display or programs without weir.  weir compares it
     * with the free memory that the device reports.  If another process allocates at that moment, less may stay free.
     * Default: none. */
    weir_amount keep_free;

    /* The place for the OOM report when a request fails, as weir_oom_report_text writes it.  "stderr", or a file that
     * weir appends to (lines of JSON if its name ends with .json); at most 1023 bytes.  A relative name starts at
     * the folder that the process is in at that time.  NULL or "off": none.
     * The failed call itself writes it, which takes as long as weir_last_oom_report.  weir reports the allocator's
     * first failure of each cause, among its first 16 failures.  If the report cannot be written to the file (the
     * file cannot be opened, no space left), the report goes to standard error, after a line with the reason. */
    const char *oom_report;

    /* Other devices whose work may use all blocks.  The text is a list of device numbers separated by commas ("1",
     * "0,2,3"; the allocator's own number has no effect), "all" for all peers of the device (cuDeviceCanAccessPeer), or
     * "none".  NULL: "none".  weir_set_access changes it later.  With a device that does not exist, or is no peer,
     * weir_allocator_create fails.  For the engines pool and mapped; the memory of other engines is cuMemAlloc's, which
     * the program opens with cuCtxEnablePeerAccess.  With engine mapped each device makes growth and moves a little
     * slower. */
    const char *peers;
} weir_options;

/* Sets every field to default and `size` to sizeof(weir_options) as the caller sees it.  `bytes` is
 * sizeof(weir_options); use the macro.  Never blocks.
 * E_INVALID: `options` is NULL, or no version had that size: it is less than that of version 1, or ends within a
 * field. */
WEIR_API weir_status weir_options_init_sized(weir_options *options, size_t bytes);
#define weir_options_init(options) weir_options_init_sized((options), sizeof(weir_options))

/* Fills the fields that are still default from the environment.  WEIR_<OPTION> counts first.  Below it, unless
 * WEIR_COMPAT=0, count the variables of TensorFlow, XLA and JAX that weir-settings(7) lists.  Fields that are set
 * stay.  Texts that the struct refers to live as long as the process.  An unknown WEIR_ variable and a look-alike of
 * a known name draw one warning on standard error each.  The call reads the environment, so no other thread may call
 * setenv meanwhile.  Never blocks.  `message` receives the reason of a failure.  It may be NULL, and always ends with a
 * NUL if message_bytes > 0.
 * E_INVALID: `options` is NULL or has a bad size.
 * E_PARSE: a value does not parse; `message` names the variable, its value and what would parse.  On an error
 * options are unchanged. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_options_from_env(weir_options *options, char *message,
                                                             size_t message_bytes);

/* Sets one option from a copy of the text.  `name` is the name in `weir help --all` ("prealloc", "growth", ...).  Forms
 * of a size are 4GiB, 512MB, 1073741824, 75%, 90%free, max.  Powers of 1024 are KiB MiB GiB TiB (or K M G T), powers of
 * 1000 are KB MB GB TB.  A number without a unit is bytes; a nonzero number below 2^20 needs a unit, since its writer
 * probably meant MiB.  Forms of growth are exact, step:64MiB, geometric:2[:cap], remaining:0.5, bfc.  A percentage for
 * cache-limit is of the bytes in use.  `message` works as in weir_options_from_env.  No text restores a default;
 * weir_options_init does so for all options.  Thread-safe for different structs; never blocks.
 * E_INVALID: there is no such option, or `options` is NULL or not initialized.
 * E_PARSE: the text does not parse.  On an error options are unchanged. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_options_set(weir_options *options, const char *name,
                                                        const char *text, char *message,
                                                        size_t message_bytes);

#ifdef __cplusplus
}
#endif

#endif
