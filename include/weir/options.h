/* SPDX-License-Identifier: MIT */
/* weir/options.h: what an allocator is told when it is made. */
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
 *   OF_FREE     `value` millionths of what is free on the device when the amount is first needed
 *   MAX         no bound, or all there is
 *   OF_IN_USE   `value` millionths of the most bytes that the allocator had in use in this span of
 *               front_idle_ms and the one before; for front_cache alone
 *   SHARE       of all processes that the device's ledger knows (see ledger below) this one's part, by weight:
 *               `value` is its weight in millionths, and others have the weight 1000000 unless they say
 *               something else; of the device less `leave`.  For prealloc and limit alone.  It changes as processes
 *               come and go, but a limit is never less than what is in use, and nobody preallocates
 *               again.  A limit that is one caps what is preallocated, also as it falls. */
enum {
    WEIR_AMOUNT_DEFAULT = 0,
    WEIR_AMOUNT_BYTES = 1,
    WEIR_AMOUNT_OF_TOTAL = 2,
    WEIR_AMOUNT_OF_FREE = 3,
    WEIR_AMOUNT_MAX = 4,
    WEIR_AMOUNT_OF_IN_USE = 5,
    WEIR_AMOUNT_SHARE = 6
};

typedef struct weir_amount {
    uint64_t value; /* by kind, as above */
    int kind;       /* WEIR_AMOUNT_ */
    int reserved; /* zero; of prealloc also what weir_options_from_env has put there, when it took the amount from
                     * a variable of another program's: it is then no more than the limit, with a warning in the log */
} weir_amount;

/* Engines: X(name, word, value).  DEFAULT: MAPPED where the device can map memory; else, and for an exportable pool or
 * with a release threshold, POOL; with an arena kind set, BFC. */
#define WEIR_ENGINES(X)                                                                            \
    X(DEFAULT, "default", 0)                                                                       \
    X(POOL, "pool", 1)     /* a private CUDA memory pool that grows by the growth policy */        \
    X(BFC, "bfc", 2)       /* BFC, as in TensorFlow and XLA, over cuMemAlloc; see arena */         \
    X(DIRECT, "direct", 3) /* one cuMemAlloc and cuMemFree per block */                            \
    X(MAPPED, "mapped", 4) /* one range of addresses; memory is mapped where it is wanted */

enum {
#define WEIR_ENGINE_ENUM(name, word, value) WEIR_ENGINE_##name = (value),
    WEIR_ENGINES(WEIR_ENGINE_ENUM)
#undef WEIR_ENGINE_ENUM
    /* Earlier names. */
    WEIR_ENGINE_ARENA = WEIR_ENGINE_BFC,
    WEIR_ENGINE_PLATFORM = WEIR_ENGINE_DIRECT
};

/* Kinds of the BFC engine's arena: X(name, word, value).  MAPPED makes it the mapped engine. */
#define WEIR_ARENAS(X)                                                                             \
    X(DEFAULT, "default", 0)                                                                       \
    X(FIXED, "fixed", 1)     /* one region of the whole arena size, taken at once */               \
    X(REGIONS, "regions", 2) /* regions are added as the growth policy says; the default */        \
    X(MAPPED, "mapped", 3)   /* one range of addresses; memory is mapped behind its end */

enum {
#define WEIR_ARENA_ENUM(name, word, value) WEIR_ARENA_##name = (value),
    WEIR_ARENAS(WEIR_ARENA_ENUM)
#undef WEIR_ARENA_ENUM
};

/* How engine mapped takes memory: X(name, word, value). */
#define WEIR_PACKINGS(X)                                                                           \
    X(DEFAULT, "default", 0)                                                                       \
    X(COMPACT, "compact", 1)   /* in small handles, which move where memory is wanted */           \
    X(BALANCED, "balanced", 2) /* in larger ones as it grows; the default */                       \
    X(FAST, "fast", 3)         /* in few, and none moves as long as there is more */

enum {
#define WEIR_PACKING_ENUM(name, word, value) WEIR_PACKING_##name = (value),
    WEIR_PACKINGS(WEIR_PACKING_ENUM)
#undef WEIR_PACKING_ENUM
    /* The earlier name. */
    WEIR_PACKING_FIT = WEIR_PACKING_COMPACT
};

/* When to preallocate: X(name, word, value). */
#define WEIR_PREALLOC_TIMES(X)                                                                     \
    X(DEFAULT, "default", 0)                                                                       \
    X(CREATE, "create", 1) /* in weir_allocator_create; the default */                             \
    X(FIRST, "first", 2)   /* at the first request: what the variables of JAX and TensorFlow ask */

enum {
#define WEIR_PREALLOC_TIME_ENUM(name, word, value) WEIR_PREALLOC_AT_##name = (value),
    WEIR_PREALLOC_TIMES(WEIR_PREALLOC_TIME_ENUM)
#undef WEIR_PREALLOC_TIME_ENUM
};

/* Who preallocates: X(name, word, value). */
#define WEIR_PREALLOC_MODES(X)                                                                     \
    X(DEFAULT, "default", 0)                                                                       \
    X(FOREGROUND, "foreground", 1) /* whoever creates the allocator or asks first; the default */  \
    X(BACKGROUND, "background", 2) /* a thread, in small steps; nobody waits for more than one */

enum {
#define WEIR_PREALLOC_MODE_ENUM(name, word, value) WEIR_PREALLOC_##name = (value),
    WEIR_PREALLOC_MODES(WEIR_PREALLOC_MODE_ENUM)
#undef WEIR_PREALLOC_MODE_ENUM
};

/* Log levels: X(name, word, value).  A level shows itself and those before it, on standard error. */
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
    X(OFF, "off", 1)                 /* none; the default */                                       \
    X(POISON, "poison", 2)           /* freed blocks are filled, kept for a while, and verified */ \
    X(GUARD, "guard", 4)             /* gaps around each block are filled, and verified */         \
    X(ZERO_STREAM, "zero-stream", 8) /* memory that its stream did not have before is zeroed */    \
    X(ZERO_ALWAYS, "zero-always", 16) /* all memory that is handed out is zeroed */

enum {
#define WEIR_HARDEN_ENUM(name, word, bit) WEIR_HARDEN_##name = (bit),
    WEIR_HARDENINGS(WEIR_HARDEN_ENUM)
#undef WEIR_HARDEN_ENUM
};

/* Three-valued switches: zero means the option's default. */
enum { WEIR_SWITCH_DEFAULT = 0, WEIR_SWITCH_OFF = 1, WEIR_SWITCH_ON = 2 };

/* What an out-of-memory callback is told. */
typedef struct weir_oom {
    size_t size; /* sizeof(weir_oom) of the library that fills it */
    struct weir_allocator *allocator;
    struct CUstream_st *stream; /* of the request */
    uint64_t bytes;             /* that were asked for */
    uint64_t attempt;           /* calls for this request, this one included: 1, 2, ... */
    uint64_t largest;           /* bytes: as weir_refusal.largest */
    /* What weir_alloc answers unless it is tried again: E_NO_MEMORY or E_LIMIT. */
    weir_status status;
    int reserved; /* zero */
} weir_oom;

/* A program's own way to find memory: nonzero to try the request again, 0 to let it fail.
 *
 * When.    The last rung of the out-of-memory ladder: when weir has waited for frees, emptied its caches and
 *          given idle reserve back, and still cannot serve a request of weir_alloc.  After each try that is
 *          refused anew, with the next attempt number, as often as it answers nonzero: weir sets no bound.
 * Where.   On the thread of the request, under no lock of weir's, with the context and the capture mode that
 *          the request came with.  Threads may be in it at the same time.  The time counts as that of
 *          weir_alloc in weir_latencies, and as long as it takes weir_alloc blocks.
 * What.    It may call everything of weir but weir_allocator_destroy on the allocator; what it frees on
 *          the stream serves there at once, on others as always (a wait for the device makes it serve
 *          everywhere).  A request inside that is refused fails without another call, whatever its
 *          allocator.  It must return, not jump or throw.
 * Never.   For a request on a stream that is being captured, nor in a child of fork.  Beside a capture of the
 *          same thread elsewhere it may do what the driver then allows.
 * After 0 weir_alloc answers `status`, with the driver's result and the refusal that belong to it, whatever
 * calls inside have left.  A request that is served in the end is no refusal in weir_stats, but the log
 * (warning) has a line for each.
 * `oom` is valid during the call; `data` is options.oom_callback_data, never freed by weir.  Since 0.1. */
typedef int (*weir_oom_function)(const weir_oom *oom, void *data);

/* Settings of one allocator.  Set `size` by weir_options_init; every zero field means "default".
 * New fields are added at the end.  A `size` that no version had, as one that ends within a field, is
 * E_INVALID to whoever takes the struct, and nothing of it is read.  The library copies what it needs: pointers in here
 * need only live until the call returns, but growth_context and oom_callback_data until the allocator is
 * destroyed. */
typedef struct weir_options {
    size_t size; /* bytes of this struct as the caller was compiled */

    /* Which device: "cuda" or "cuda:N", number N of the GPUs, or "model" or "model:N", of the device
     * model's (a GPU in software); N is 0 if not given.  NULL: "cuda".  The library never takes the
     * model unless told to. */
    const char *device;

    int engine; /* WEIR_ENGINE_ */
    int arena;  /* WEIR_ARENA_: engine bfc only */

    /* Reserve taken before the first request, checked against what the device really gave.
     * Default: none.  More makes first iterations fast and starves other programs. */
    weir_amount prealloc;
    int prealloc_at; /* WEIR_PREALLOC_AT_ */

    int growth;                           /* WEIR_GROWTH_ */
    uint64_t growth_step;                 /* bytes; STEP.  0: 64 MiB */
    double growth_factor;                 /* GEOMETRIC: > 1, 0: 2; REMAINING: in (0, 1], 0: 0.5 */
    uint64_t growth_cap;                  /* bytes; GEOMETRIC: the largest step.  0: none */
    weir_growth_function growth_function; /* CALLBACK; else NULL */
    void *growth_context;

    /* The most that the reserve may be.  Default: max (the device decides).  For a fixed arena:
     * its size, then 75% by default. */
    weir_amount limit;

    /* Bytes of idle reserve kept when a synchronisation would let memory go back (pool engine: the
     * driver's own threshold).  Default: max.  Less gives memory back to others and grows again. */
    weir_amount release_threshold;

    /* Longest wait for completed frees when memory ran out, and for pending frees at destroy;
     * milliseconds.  0: 1000.  UINT32_MAX: do not wait at all.  When nothing else helps, the arena
     * gives idle regions back, which waits for the device beside this time; as does a request that
     * would grow while much of the reserve was left by streams that have ended. */
    uint32_t recovery_timeout_ms;

    uint32_t event_ring; /* growth events kept; 0: 1024.  At most 1048576. */

    int latency; /* WEIR_SWITCH_: keep a histogram of the latency of every call; default off */
    int log;     /* WEIR_LOG_; default none, with harden error */

    /* WEIR_SWITCH_: caches per stream above the engine, which serve what a stream freed to the same
     * stream without a driver call.  Default: on; for engine direct off.  Off: every block of
     * engines pool and direct is the driver's own, so that compute-sanitizer sees each. */
    int front;

    /* How long a cache holds what its stream does not use, milliseconds; older is given back to the
     * engine by a later call on the stream.  0: 1000.  UINT32_MAX: for ever.  Less leaves more to
     * other streams and sizes, and calls the driver more often. */
    uint32_t front_idle_ms;

    /* The most that all caches of the allocator keep idle in blocks above 512 KiB and in idle slabs
     * of smaller ones: BYTES (0 keeps nothing), OF_IN_USE or MAX.  Blocks above 512 KiB have three
     * quarters of it at most, and of a fraction three quarters of what it is of the bytes in use now.
     * Default: 2%, and at least 32 MiB as long as no more than 256 MiB were ever in use; and 1 MiB for
     * each stream, however many there are.  A stream gives back what it may not keep at its next
     * request.  Where a limit is set, what silent streams keep counts: others have less then.  More
     * serves more requests without the engine and leaves less to other streams.  Blocks above 512 KiB
     * are kept once the engine has served 1,024 requests without growing or moving anything. */
    weir_amount front_cache;

    /* WEIR_SWITCH_; default on.  Off: the program promises that it allocates on no stream that is
     * being captured, and destroys no stream while the allocator lives.  Weir then asks the driver
     * neither for the capture status nor for the id of streams that the program made (default
     * streams are still told apart by id). */
    int stream_checks;

    /* WEIR_PACKING_: engine mapped only.  Less reserve against faster growth: a handle costs about 35 us
     * to map and 40 us to move, whatever its size. */
    int packing;

    /* WEIR_HARDEN_ bits, or OFF alone; default off.  For finding faults of a program, and for clearing
     * memory; every request is slower by far, since each verification waits for the stream.
     * POISON: a freed block is filled with 0xdd on its stream and kept from reuse, up to 64 blocks or
     *   64 MiB a stream (one block at least); it is verified before the stream has it again or it is
     *   reused in another way.  What was written after the free is reported and its block kept out of
     *   use until the allocator is destroyed.  Needs stream ids (driver 12.0); off without.
     * GUARD: a gap of 256 bytes before a block, and one of 256 to 511 from its last byte on, is filled
     *   with 0xfd and verified at the free; what was written there is reported.
     * ZERO_STREAM: what a request gets is zeroed on its stream before, unless the same stream freed it
     *   and it was kept for the stream all the while.  ZERO_ALWAYS: without exception.
     * Reports are lines in the log (error) and counters in weir_stats.  A free of a block with noted
     * uses makes its stream wait for the noted ones.  Under stream capture blocks are zeroed, by a node
     * of the graph, and nothing else is done; a free there verifies nothing. */
    uint64_t harden;

    /* Asked before a request fails for want of memory; see weir_oom_function.  NULL: nobody is.  With one,
     * each weir_alloc takes some nanoseconds more.  A program alone can set it: no text or variable does,
     * and weir_default_allocator has none. */
    weir_oom_function oom_callback;
    void *oom_callback_data; /* handed to it; NULL without one */
    /* Growth ahead of demand: weir_allocator_create grows the reserve to `headroom`, as far as the device has
     * it, and a thread of the allocator's own grows it on: when less than `headroom` of the
     * reserve is idle, in steps of about a tenth of a millisecond, with pauses between that are the
     * shorter the less there is, until `headroom_high` is.  Idle is what lies in no live block and in no cache of a
     * stream, less what proved useless: as much as was idle when a request of fewer bytes had to grow the reserve all
     * the same.  With engine mapped the last piece of what is idle also grows by up to a quarter of the largest
     * request so far, or of `headroom_high`, if it would hold one of these then, no piece does, and no more than
     * `headroom_high` is idle then.  It leaves a 64th of the device to requests and to other programs, and where the
     * device or the limit has no more it tries again later, at most every 2.5 s.  On the device model, whose time
     * is virtual, its steps are played between the calls.
     * BYTES, OF_TOTAL or OF_FREE.  Default: none; of headroom_high: twice headroom.  More hides more growth
     * and leaves less to others.  For the pool engine and the arenas that grow. */
    weir_amount headroom, headroom_high; /* the setting grow-ahead */

    /* The least that a preallocation must get.  With less weir_allocator_create fails, or, where it is
     * done at the first request, that request and each later one that finds it still lacking;
     * E_NO_MEMORY, and what was got goes back.  In the background mode this much is taken in the
     * foreground.  Not more than prealloc, which
     * is as much if it is not set.  Default: anything will do at the first request, more than
     * nothing at create. */
    weir_amount prealloc_min;

    /* Milliseconds after which a preallocation stops where it is, at most one step later, with what it
     * has; UINT32_MAX or 0: never.  Processes of one user that preallocate on one device do so one after
     * the other: half of this time may be spent on waiting for others, 10 s where there is none. */
    uint32_t prealloc_deadline_ms;

    int prealloc_mode; /* WEIR_PREALLOC_FOREGROUND or _BACKGROUND: in the steps of headroom */

    /* A file, or a folder, that tells how much reserve earlier runs needed; at most 1023 bytes, from the
     * folder that the process is in when the allocator is made.  NULL or "off": none.
     * weir_allocator_destroy writes to it what this run needed, and so does the process at its end for
     * the default allocator; weir_profile_save does at any time.  The next allocator with the same device
     * and settings (engine, arena, packing, growth, limit, front) preallocates what was learned, as
     * prealloc_at says, unless `prealloc` is set.  In a folder each device and settings have a file of
     * their own.  What cannot be read, or was learned elsewhere, is a warning in the log and nothing
     * else.  Not for engine direct and fixed arenas. */
    const char *profile;

    /* Milliseconds.  Reserve that nothing needed for so long goes back to the device by halves, one each
     * time so much goes by; never below what was preallocated, nor below a release threshold that is set, nor
     * below what was in use and headroom_high.
     * A load that reaches its peak at least once in that time keeps its reserve.  Done in requests that
     * the engine serves, without waiting for anybody, and by weir_decay.  0 or UINT64_MAX: never.  Less
     * gives memory to others sooner, and grows again where a load comes back later than that.  For the pool
     * engine and engine mapped; bfc decays in weir_decay alone. */
    uint64_t decay_ms;

    /* WEIR_SWITCH_: what other streams freed serves a request before the reserve grows for it, although they
     * are still at work: the request's stream is made to wait for them on the device (cuStreamWaitEvent), as
     * the driver's pool does under CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES.  On: less reserve, and
     * streams that would run side by side may run one after the other.  Off where kernels of two streams
     * wait for each other, also by way of other devices (collectives on several streams).  Default: on for
     * engine mapped with packing FIT, else off.  Blocks that other streams use with weir_use are
     * waited for by the host as ever. */
    int internal_dependencies;

    /* WEIR_SWITCH_.  Default on: the user's processes that have memory of one GPU know of each other, through a
     * file of a few pages in the runtime folder.  A request for which the device has no memory has the others
     * give back what they hold idle, for a tenth of recovery_timeout_ms at most, or for all of it while one that
     * was killed is not gone yet.  off: none of it.  On a device model nobody else is there, unless
     * WEIR_MODEL_SHARED says so. */
    int ledger;
    /* From 1 to 1000, 100 by default: of processes that could give, those of the lowest are asked first. */
    uint32_t priority;
    /* WEIR_SWITCH_; default off.  On: the pool is made so that other processes may use blocks of it
     * (weir/share.h).  The driver gives nothing of such a pool back but with the pool: a trim and decay find
     * nothing, and a release threshold does nothing.  Pool engine only; else no allocator is made. */
    int exportable;
    /* Room on the device that growth leaves to others: a display, programs without weir.  Measured by what the
     * device says is free, which a step of another process may take in the same moment.  Default: none. */
    weir_amount leave; /* the setting keep-free */

    /* Where to tell why a request was refused, as weir_verdict_text writes it: "stderr", or a file that it is added
     * to (as lines of JSON if its name ends with .json), at most 1023 bytes, from the folder that the process is
     * in then.  NULL or "off": nowhere.  Told in the refused call itself, with what weir_last_verdict takes:
     * the allocator's first refusal of each cause, of its first 16 refusals.  What such a file does not take (it cannot
     * be opened, no space left) goes to standard error, behind a line that says why. */
    const char *verdict;

    /* Other devices whose work may use the blocks, now and whatever the reserve grows by: a list of their
     * numbers with commas between ("1", "0,2,3"; the allocator's own in it says nothing), "all" that are peers
     * of the device (cuDeviceCanAccessPeer), or "none".  NULL: "none".  weir_set_access changes it later.  A
     * device that is not there, or is no peer, makes no allocator.  For the engines pool and mapped:
     * other memory is cuMemAlloc's, which the program opens with cuCtxEnablePeerAccess.  With engine mapped each
     * device makes growth and moves a little slower. */
    const char *peers;
} weir_options;

/* Sets every field to default and `size` to sizeof(weir_options) as the caller sees it.  `bytes` is
 * sizeof(weir_options); use the macro.  Never blocks.  E_INVALID: NULL, or a size
 * that no version had: less than version 1, or with an end within a field. */
WEIR_API weir_status weir_options_init_sized(weir_options *options, size_t bytes);
#define weir_options_init(options) weir_options_init_sized((options), sizeof(weir_options))

/* Fills the fields that are still default from the environment: WEIR_<OPTION>, below them (unless
 * WEIR_COMPAT=0) the variables of TensorFlow, XLA and JAX that weir-settings(7) lists.  Fields that
 * are set stay.  Texts it refers to live as long as the process.  An unknown WEIR_ variable and
 * a look-alike of a known name draw one warning on standard error each.
 * Reads the environment: not safe beside setenv in another thread.  Never blocks.
 * E_INVALID: options NULL or of a bad size; E_PARSE: a value does not parse (`message` names the
 * variable, its value and what would parse); options are then unchanged.
 * message: where a text goes, may be NULL; always NUL-terminated if message_bytes > 0. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_options_from_env(weir_options *options, char *message,
                                                             size_t message_bytes);

/* Sets one option from text, by its long name as in `weir --help` ("prealloc", "growth", ...).
 * Sizes read 4GiB, 512MB, 1073741824, 75%, 90%free, max; powers of 1024 with KiB MiB GiB TiB (or
 * K M G T), of 1000 with KB MB GB TB.  A number alone is bytes, and refused below 2^20, 0 aside, as a
 * slip: 64 is 64MiB or 64B.  Growth reads exact, step:64MiB, geometric:2[:cap], remaining:0.5, bfc.
 * A percentage of front-cache is of what is in use.  E_INVALID: no such option; E_PARSE: the text;
 * options are then unchanged, `message` as above. */
WEIR_API WEIR_CHECK_RESULT weir_status weir_options_set(weir_options *options, const char *name,
                                                        const char *text, char *message,
                                                        size_t message_bytes);

#ifdef __cplusplus
}
#endif

#endif
