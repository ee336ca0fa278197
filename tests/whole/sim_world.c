/* SPDX-License-Identifier: MIT */
/* sim_world.c: plays a script: threads that share an allocator on the device model, one operation at a
 * time, in an order and with outcomes that the script alone decides.
 *
 * Every block is used by work that the model's oracle sees, from its allocation to its free, on its own
 * stream and on others, as a program may: a stream that uses a block is behind its allocation; a free's
 * stream is behind every use but those declared with weir_use; a stream that ends hands what it ordered
 * on to another.  So whatever the oracle finds is the allocator's fault.  Beside that no two live blocks
 * overlap, each call answers what it may, the identities of weir/stats.h hold, the model's accounts agree,
 * and in the end everything is back.
 *
 * Threads take turns: exactly one runs, until the script says who is next.
 *
 * Must not know: where scripts come from.
 */
#include "sim.h"

#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weir/weir.h>

#include "driver/driver.h"
#include "driver/model/model.h"

enum { BLOCKS = 192, HOGS = 4, STREAMS = 8, THREADS = 4, LAUNCHES = 3, MOST_BORN = 150 };

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

/* ---- What happens: X(name, weight) ---- */

#define OPERATIONS(X)                                                                              \
    X(ALLOC, 300)                                                                                  \
    X(FREE, 210)                                                                                   \
    X(FREE_MANY, 6)                                                                                \
    X(ALLOC_ANY, 12)                                                                               \
    X(FREE_ANY, 6)                                                                                 \
    X(RANGE, 12)                                                                                   \
    X(WORK, 80)                                                                                    \
    X(CROSS, 50)                                                                                   \
    X(DECLARE, 30)                                                                                 \
    X(KERNEL, 20)                                                                                  \
    X(ADVANCE, 20)                                                                                 \
    X(SYNC_STREAM, 12)                                                                             \
    X(SYNC_DEVICE, 2)                                                                              \
    X(QUERY, 10)                                                                                   \
    X(WAIT, 10)                                                                                    \
    X(SWITCH, 20)                                                                                  \
    X(CREATE, 6)                                                                                   \
    X(DESTROY, 5)                                                                                  \
    X(BIND, 4)                                                                                     \
    X(UNBIND, 4)                                                                                   \
    X(TRIM, 4)                                                                                     \
    X(PREALLOC, 2)                                                                                 \
    X(LIMIT, 3)                                                                                    \
    X(STATS, 12)                                                                                   \
    X(BEGIN, 8)                                                                                    \
    X(END, 14)                                                                                     \
    X(ABORT, 2)                                                                                    \
    X(HOG, 5)                                                                                      \
    X(RETURN, 6)                                                                                   \
    X(WRONG_FREE, 10)                                                                              \
    X(FAULT, 12)                                                                                   \
    X(RENEW, 1)

enum operation {
#define OPERATION(name, weight) OP_##name,
    OPERATIONS(OPERATION)
#undef OPERATION
        OP_COUNT
};

static const char *const operation_names[] = {
#define OPERATION(name, weight) #name,
    OPERATIONS(OPERATION)
#undef OPERATION
};

static const unsigned weights[] = {
#define OPERATION(name, weight) weight,
    OPERATIONS(OPERATION)
#undef OPERATION
};

/* ---- The world ---- */

enum kind { POOL, ARENA_FIXED, ARENA_REGIONS, ARENA_MAPPED, DIRECT, KINDS };

struct settings {
    int kind, front, checks;
    uint64_t capacity, limit; /* limit 0: none */
    int growth, threshold, cache, idle, patience, packing, dependencies;
    unsigned threads, streams;
    int legacy; /* the legacy default stream is one of them, and some streams are blocking */
    int faults;
    int asks;                      /* the program has a callback for want of memory */
    uint64_t harden;               /* where blocks are small: it writes to all of them */
    unsigned sizes;                /* which of them, see draw_size, */
    unsigned few;                  /* and how many different ones; 0: any */
    uint64_t longest_ns;           /* work */
    uint64_t headroom;             /* bytes; 0: none */
    uint64_t prealloc;             /* likewise, */
    int at_first, behind, hurries; /* when, by whom, and with a deadline */
    uint64_t half_life_ms;         /* 0: no decay */
    int learns;                    /* it has a profile */
    int old;                       /* the driver is one that tells no stream's id */
    uint64_t growth_step;          /* bytes; 0: as it is by itself, */
    int growth_size;               /* and so is the factor; else small or large */
    int latency;                   /* it keeps a histogram of it */
    unsigned most_blocks;
    uint8_t chances[1024]; /* operations by weight */
};

struct block {
    char *address; /* NULL: this place is free */
    size_t bytes;
    uint64_t owner;
    unsigned home;         /* the stream that is behind its allocation */
    unsigned users, noted; /* streams, as bits: used it; of these, were declared */
    int of_graph;          /* allocated in the capture that is under way, */
    int was_of_graph;      /* or in one that is over: the graph's memory, not the allocator's */
    int in_graph;          /* used by it */
    int is_any;            /* every stream may have it, without an order */
};

struct stream {
    CUstream handle;
    int lives, is_default, blocks;
    unsigned bound;
};

struct capture {
    int runs;
    unsigned stream, thread;
    CUstreamCaptureMode mode;
};

struct world {
    struct settings set;
    const struct sim_script *script;
    struct sim_report *report;
    FILE *story;
    int told; /* there: something of the word that is played */
    const struct weir_driver *driver;
    CUcontext context;
    weir_allocator *allocator;
    struct block blocks[BLOCKS];
    unsigned block_count;
    unsigned lost; /* allocated in captures that were aborted, or in graphs that found no memory */
    struct stream streams[STREAMS];
    unsigned born; /* streams since the device was waited for */
    struct capture capture;
    CUevent event;
    unsigned asked_on; /* the stream of the request that is under way */
    uint64_t limit,
        most; /* set in the middle, UINT64_MAX: not; and what the reserved memory may be */
    uint64_t owners;
    char *gone;       /* freed last */
    int any_of_graph; /* a graph had memory of a block's */
    CUdeviceptr hogs[HOGS];
    /* Of the next call: */
    enum weir_driver_entry fault_entry;
    uint64_t fault_k; /* 0: none */
    CUresult fault_result;
    int fault_for_good;
    /* Whose turn it is. */
    unsigned thread;
    size_t at;
    int is_over;
    sem_t turns[THREADS];
};

static struct world w;

/* A folder of this process, so that it meets no other's lock or profile. */
static const char *folder(void) {
    static char path[64];

    snprintf(path, sizeof path, "%s/weir-sim-%ld",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (long)getpid());
    return path;
}

/* What the world learns. */
static const char *profile_path(void) {
    static char path[80];

    snprintf(path, sizeof path, "%s/profile", folder());
    return path;
}

static void remove_folder(void) {
    DIR *files = opendir(folder());
    const struct dirent *file;

    while (files && (file = readdir(files)))
        (void)unlinkat(dirfd(files), file->d_name, 0);
    if (files)
        closedir(files);
    (void)rmdir(folder());
}

static __attribute__((format(printf, 1, 2), noreturn)) void fail(const char *format, ...) {
    size_t length = 0;
    va_list arguments;

    va_start(arguments, format);
    length = (size_t)vsnprintf(w.report->failure, sizeof w.report->failure, format, arguments);
    va_end(arguments);
    remove_folder();
    if (length < sizeof w.report->failure)
        snprintf(w.report->failure + length, sizeof w.report->failure - length,
                 " (word %zu of seed %#llx)", w.at, (unsigned long long)w.script->seed);
    if (w.story)
        fprintf(w.story, "\n# %s\n", w.report->failure);
    fflush(NULL);
    _exit(1);
}

#define tell(...) (w.story ? (void)(fprintf(w.story, __VA_ARGS__), w.told = 1) : (void)0)

static void add(enum sim_count count, uint64_t more) {
    atomic_fetch_add_explicit(&w.report->counts[count], more, memory_order_relaxed);
}

/* The driver's own calls, which no fault meets, succeed. */
#define CU(call)                                                                                   \
    do {                                                                                           \
        CUresult cu_is = (call);                                                                   \
        if (cu_is != CUDA_SUCCESS)                                                                 \
            fail("%s: %u", #call, cu_is);                                                          \
    } while (0)

/* ---- Settings ---- */

static uint64_t pick(uint64_t *state, uint64_t count) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_mix(*state) % count;
}

static void draw_chances(struct settings *s, uint64_t *state) {
    unsigned sum = 0, at = 0, own[OP_COUNT];

    for (int i = 0; i < OP_COUNT; i++) { /* from a quarter to four times as often */
        own[i] = weights[i] * (1u << pick(state, 5)) / 4;
        sum += own[i];
    }
    for (unsigned i = 0, up_to = own[0]; i < sizeof s->chances; i++) {
        while (at + 1 < OP_COUNT && (uint64_t)i * sum >= (uint64_t)up_to * sizeof s->chances)
            up_to += own[++at];
        s->chances[i] = (uint8_t)at;
    }
}

static void draw_settings(struct settings *s, uint64_t seed) {
    static const int kinds[] = {POOL,         POOL,         POOL,          POOL,
                                POOL,         ARENA_FIXED,  ARENA_FIXED,   ARENA_MAPPED,
                                ARENA_MAPPED, ARENA_MAPPED, ARENA_REGIONS, ARENA_REGIONS,
                                DIRECT};
    uint64_t state = sim_mix(seed ^ UINT64_C(0x77656972));

    memset(s, 0, sizeof *s);
    s->kind = kinds[pick(&state, sizeof kinds / sizeof kinds[0])];
    s->front = pick(&state, 5) > 0;
    s->checks = pick(&state, 6) > 0;
    s->capacity = (uint64_t)(128 * MIB) << pick(&state, 5);
    s->limit = pick(&state, 3) == 0 ? s->capacity / 4 * (1 + pick(&state, 3)) : 0;
    s->growth = (int)pick(&state, 7);
    s->threshold = (int)pick(&state, 4);
    s->cache = (int)pick(&state, 6);
    s->idle = (int)pick(&state, 3);
    s->patience = (int)pick(&state, 3);
    s->packing = (int)pick(&state, 4);
    s->threads = 1 + (unsigned)pick(&state, THREADS);
    s->streams = 1 + (unsigned)pick(&state, STREAMS - 1);
    s->legacy = pick(&state, 4) == 0;
    s->faults = pick(&state, 4) == 0;
    s->sizes = (unsigned)pick(&state, 6);
    s->few = (unsigned[]){0, 0, 3, 12}[pick(&state, 4)];
    if (s->sizes < 2 && pick(&state, 3) == 0)
        s->harden = (uint64_t[]){WEIR_HARDEN_POISON, WEIR_HARDEN_GUARD, WEIR_HARDEN_ZERO_STREAM,
                                 WEIR_HARDEN_POISON | WEIR_HARDEN_GUARD |
                                     WEIR_HARDEN_ZERO_ALWAYS}[pick(&state, 4)];
    s->longest_ns = (uint64_t[]){0, 20000, 1000000, 50000000}[pick(&state, 4)];
    s->most_blocks = 1u << (2 + pick(&state, 6));
    if (s->most_blocks > BLOCKS)
        s->most_blocks = BLOCKS;
    draw_chances(s, &state);
    s->asks = pick(&state, 3) == 0;
    if (pick(&state, 4) == 0)
        s->headroom = (uint64_t)MIB << pick(&state, 8);
    if (pick(&state, 5) == 0 && s->kind != DIRECT)
        s->prealloc = (s->limit ? s->limit : s->capacity) / 64 * (1 + pick(&state, 48));
    s->at_first = (int)pick(&state, 2);
    s->behind = (int)pick(&state, 2);
    s->hurries = pick(&state, 4) == 0;
    if (pick(&state, 3) == 0 && s->kind != DIRECT && s->kind != ARENA_FIXED)
        s->half_life_ms = 1 + pick(&state, 100);
    s->learns = pick(&state, 6) == 0;
    s->dependencies =
        (int[]){WEIR_SWITCH_DEFAULT, WEIR_SWITCH_ON, WEIR_SWITCH_OFF}[pick(&state, 3)];
    s->old = pick(&state, 8) == 0;
    s->growth_step = (uint64_t[]){0, 1 << 20, 48 << 20}[pick(&state, 3)];
    s->growth_size = (int)pick(&state, 3);
    s->latency = pick(&state, 4) == 0;
}

static const char *const kind_words[KINDS] = {"pool", "arena fixed", "arena regions",
                                              "arena mapped", "platform"};

void sim_describe(uint64_t seed, FILE *out) {
    struct settings s;

    draw_settings(&s, seed);
    fprintf(out,
            "%s, front %s, checks %s, %llu MiB, limit %llu MiB, growth %d, threshold %d, cache %d, "
            "%u threads, %u streams%s%s%s, headroom %llu MiB, prealloc %llu MiB%s%s%s, half-life "
            "%llu ms%s%s\n",
            kind_words[s.kind], s.front ? "on" : "off", s.checks ? "on" : "off",
            (unsigned long long)(s.capacity / MIB), (unsigned long long)(s.limit / MIB), s.growth,
            s.threshold, s.cache, s.threads, s.streams, s.legacy ? ", legacy" : "",
            s.faults ? ", faults" : "", s.asks ? ", asks" : "",
            (unsigned long long)(s.headroom / MIB), (unsigned long long)(s.prealloc / MIB),
            s.at_first ? " at first" : "", s.behind ? " behind" : "", s.hurries ? " at once" : "",
            (unsigned long long)s.half_life_ms, s.learns ? ", learns" : "",
            s.old ? ", old driver" : "");
}

static weir_amount bytes_amount(uint64_t bytes) {
    return (weir_amount){.value = bytes, .kind = WEIR_AMOUNT_BYTES};
}

/* A policy of the program's own. */
static size_t grow_by_half(const weir_growth_state *state, void *context) {
    if (context != &w || state->size != sizeof *state || state->request == 0)
        fail("the growth function is told something else");
    return state->request + state->reserve / 2;
}

static void set_growth(const struct settings *s, weir_options *options) {
    static const int growths[] = {WEIR_GROWTH_DEFAULT,   WEIR_GROWTH_EXACT,     WEIR_GROWTH_STEP,
                                  WEIR_GROWTH_GEOMETRIC, WEIR_GROWTH_REMAINING, WEIR_GROWTH_BFC,
                                  WEIR_GROWTH_CALLBACK};

    options->growth = growths[s->growth];
    if (options->growth == WEIR_GROWTH_STEP)
        options->growth_step = s->growth_step;
    if (options->growth == WEIR_GROWTH_GEOMETRIC) {
        options->growth_factor = (double[]){0, 1.1, 3}[s->growth_size];
        options->growth_cap = s->growth_step;
    }
    if (options->growth == WEIR_GROWTH_REMAINING)
        options->growth_factor = (double[]){0, 0.01, 1}[s->growth_size];
    if (options->growth == WEIR_GROWTH_CALLBACK) {
        options->growth_function = grow_by_half;
        options->growth_context = &w;
    }
}

static weir_options options_of(const struct settings *s) {
    static const weir_amount thresholds[] = {{0, WEIR_AMOUNT_DEFAULT, 0},
                                             {0, WEIR_AMOUNT_MAX, 0},
                                             {0, WEIR_AMOUNT_BYTES, 0},
                                             {64 << 20, WEIR_AMOUNT_BYTES, 0}};
    static const weir_amount caches[] = {
        {0, WEIR_AMOUNT_DEFAULT, 0},        {0, WEIR_AMOUNT_DEFAULT, 0},
        {0, WEIR_AMOUNT_BYTES, 0},          {1 << 20, WEIR_AMOUNT_BYTES, 0},
        {100000, WEIR_AMOUNT_OF_IN_USE, 0}, {0, WEIR_AMOUNT_MAX, 0}};
    weir_options options;

    weir_options_init(&options);
    options.device = "model";
    options.engine = s->kind == POOL     ? WEIR_ENGINE_POOL
                     : s->kind == DIRECT ? WEIR_ENGINE_PLATFORM
                                         : WEIR_ENGINE_ARENA;
    options.arena = s->kind == ARENA_FIXED    ? WEIR_ARENA_FIXED
                    : s->kind == ARENA_MAPPED ? WEIR_ARENA_MAPPED
                                              : WEIR_ARENA_DEFAULT;
    options.packing = s->packing;
    options.internal_dependencies = s->dependencies;
    if (s->limit)
        options.limit = bytes_amount(s->limit);
    set_growth(s, &options);
    options.latency = s->latency ? WEIR_SWITCH_ON : WEIR_SWITCH_DEFAULT;
    options.release_threshold = thresholds[s->threshold];
    options.front = s->front ? WEIR_SWITCH_ON : WEIR_SWITCH_OFF;
    options.front_cache = caches[s->cache];
    options.front_idle_ms = (uint32_t[]){0, 1, UINT32_MAX}[s->idle];
    options.recovery_timeout_ms = (uint32_t[]){0, 1, UINT32_MAX}[s->patience];
    options.harden = s->harden;
    if (s->headroom)
        options.headroom = bytes_amount(s->headroom);
    if (s->prealloc)
        options.prealloc = bytes_amount(s->prealloc);
    if (s->at_first)
        options.prealloc_at = WEIR_PREALLOC_AT_FIRST;
    if (s->behind)
        options.prealloc_mode = WEIR_PREALLOC_BACKGROUND;
    if (s->hurries)
        options.prealloc_deadline_ms = 2;
    options.decay_ms = s->half_life_ms;
    if (s->learns)
        options.profile = profile_path();
    options.log = WEIR_LOG_NONE;
    options.stream_checks = s->checks ? WEIR_SWITCH_DEFAULT : WEIR_SWITCH_OFF;
    return options;
}

/* ---- Calls into the allocator, which a fault may meet ---- */

static void arm(void) {
    if (w.fault_k)
        weir__model_fail(w.fault_entry, w.fault_k, w.fault_result, w.fault_for_good);
}

/* 1: a fault may have been met, so that any error will do. */
static int disarm(void) {
    int was = w.fault_k != 0;

    if (was)
        weir__model_faults_clear();
    w.fault_k = 0;
    return was;
}

/* Calls, and answers whether a fault was planned. */
#define CALL(status, call) (arm(), (status) = (call), disarm())

static void expect(weir_status is, weir_status wanted, const char *what) {
    if (is != wanted)
        fail("%s: %s, not %s (driver result %d)", what, weir_status_name(is),
             weir_status_name(wanted), weir_last_driver_result());
}

static weir_statistics look(void) {
    weir_statistics s = {.size = sizeof s};
    uint64_t front;

    expect(weir_stats(w.allocator, &s), WEIR_OK, "weir_stats");
    front = s.front_hits + s.front_misses_young + s.front_misses_empty + s.front_misses_capture;
    if (s.attempts != s.allocs + s.refusals || s.allocs != s.hits + s.growth_allocs ||
        s.allocs - s.frees != s.blocks || s.requested > s.in_use ||
        s.in_use + s.front_idle > s.reserve || s.requested > s.requested_peak ||
        s.in_use > s.in_use_peak || s.reserve > s.reserve_peak || (front != 0 && front != s.allocs))
        fail(
            "the identities of the statistics do not hold: attempts %llu allocs %llu refusals %llu "
            "hits %llu growth %llu frees %llu blocks %llu requested %llu in_use %llu idle %llu "
            "reserve %llu front %llu peaks %llu %llu %llu",
            (unsigned long long)s.attempts, (unsigned long long)s.allocs,
            (unsigned long long)s.refusals, (unsigned long long)s.hits,
            (unsigned long long)s.growth_allocs, (unsigned long long)s.frees,
            (unsigned long long)s.blocks, (unsigned long long)s.requested,
            (unsigned long long)s.in_use, (unsigned long long)s.front_idle,
            (unsigned long long)s.reserve, (unsigned long long)front,
            (unsigned long long)s.requested_peak, (unsigned long long)s.in_use_peak,
            (unsigned long long)s.reserve_peak);
    if (s.reserve > w.most && w.set.kind != POOL && !w.set.faults)
        fail("the reserve, %llu bytes, rises above a limit of %llu", (unsigned long long)s.reserve,
             (unsigned long long)w.limit);
    if (s.reserve < w.most)
        w.most = s.reserve > w.limit ? s.reserve : w.limit;
    if (s.blocks != w.block_count + w.lost)
        fail("%llu blocks, but %u live, and %u went with their captures",
             (unsigned long long)s.blocks, w.block_count, w.lost);
    return s;
}

static void check_oracle(void) {
    const char *fault = weir__model_fault();

    if (fault)
        fail("%s", fault);
}

static void check_model(void) {
    const char *wrong = weir__model_pool_check();

    if (wrong)
        fail("the model: %s", wrong);
}

/* ---- Streams ---- */

static int is_captured(unsigned stream) {
    return w.capture.runs && w.capture.stream == stream;
}

/* Lives, and is not being captured. */
static int is_plain(unsigned stream) {
    return w.streams[stream].lives && !is_captured(stream);
}

/* A plain stream, or STREAMS. */
static unsigned plain_from(unsigned from) {
    for (unsigned i = 0; i < STREAMS; i++)
        if (is_plain((from + i) % STREAMS))
            return (from + i) % STREAMS;
    return STREAMS;
}

static CUstream handle(unsigned stream) {
    return w.streams[stream].handle;
}

/* What `stream` is given next comes after all that `other` was given; both are plain.  CUDA itself sees to that where
 * the one is blocking and the other the legacy default stream, which does not end. */
static void follow(unsigned stream, unsigned other) {
    if (stream == other || (w.streams[stream].blocks && w.streams[other].is_default))
        return;
    CU(w.driver->cuEventRecord(w.event, handle(other)));
    CU(w.driver->cuStreamWaitEvent(handle(stream), w.event, 0));
}

static void make_stream(unsigned stream, int blocks) {
    CU(w.driver->cuStreamCreate(&w.streams[stream].handle,
                                blocks ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    w.streams[stream].lives = 1;
    w.streams[stream].blocks = blocks;
    w.born++;
}

/* ---- Blocks ---- */

static uint64_t duration(uint64_t r) {
    return w.set.longest_ns ? sim_mix(r) % w.set.longest_ns : 0;
}

static void use(struct block *b, unsigned stream, uint64_t r) {
    CU(weir__model_use(handle(stream), (uintptr_t)b->address, b->bytes, b->owner, duration(r)));
    b->users |= 1u << stream;
}

static struct block *block_from(unsigned from) {
    for (unsigned i = 0; i < BLOCKS && w.block_count > 0; i++)
        if (w.blocks[(from + i) % BLOCKS].address)
            return &w.blocks[(from + i) % BLOCKS];
    return NULL;
}

static unsigned number(const struct block *b) {
    return (unsigned)(b - w.blocks);
}

static void check_overlap(const struct block *fresh) {
    for (unsigned i = 0; i < BLOCKS; i++) {
        const struct block *b = &w.blocks[i];

        if (b != fresh && b->address && b->address < fresh->address + fresh->bytes &&
            fresh->address < b->address + b->bytes)
            fail("block %u, %zu bytes at %p, overlaps block %u, %zu bytes at %p", number(fresh),
                 fresh->bytes, (void *)fresh->address, i, b->bytes, (void *)b->address);
    }
    if ((uintptr_t)fresh->address % 256)
        fail("a block at %p is not aligned", (void *)fresh->address);
}

static size_t draw_size(uint64_t random) {
    uint64_t r = w.set.few ? sim_mix(w.script->seed + random % w.set.few) : random;
    unsigned from = (unsigned[]){9, 9, 13, 16, 19, 9}[w.set.sizes];
    unsigned octaves = (unsigned[]){6, 11, 7, 8, 7, 17}[w.set.sizes];
    size_t low = (size_t)1 << (from + (r >> 8) % octaves);
    size_t bytes = low + (size_t)(sim_mix(r) % low);

    if ((r & 3) == 0) /* often the same */
        bytes = low;
    return (r & 255) == 1 ? 1 : bytes;
}

static void forget(struct block *b) {
    w.block_count--;
    memset(b, 0, sizeof *b);
}

/* The program's last rung: it gives back what lies idle, and asks for one more try. */
static int give_idle_back(const weir_oom *oom, void *data) {
    weir_statistics s = {.size = sizeof s};

    if (data != &w || oom->allocator != w.allocator || oom->stream != handle(w.asked_on))
        fail("the callback is told of another request");
    if (is_captured(w.asked_on))
        fail("the callback is asked about a captured stream");
    expect(weir_stats(w.allocator, &s), WEIR_OK, "weir_stats in the callback");
    (void)weir_trim(w.allocator, 0, NULL);
    add(SIM_ASKED, 1);
    return oom->attempt == 1;
}

/* Growth in the background so far; UINT64_MAX: not told. */
static uint64_t steps_behind(void) {
    weir_statistics s = {.size = sizeof s};

    return weir_stats(w.allocator, &s) == WEIR_OK ? s.ahead_steps : UINT64_MAX;
}

/* After a failure: what it says could be had is available.  0 if nothing is said, or a fault or a step in the
 * background, which takes of the same, came between; else the block is as if it had been asked for in the first
 * place. */
static int ask_for_largest(unsigned stream, size_t *bytes, void **address) {
    weir_refusal failure = {.size = sizeof failure};
    weir_status status;
    uint64_t steps;
    int faulted;

    /* What the program's callback trims above a lowered limit goes for good, after the failure was written. */
    if (w.set.asks && w.limit != UINT64_MAX)
        return 0;
    /* Beside a capture the driver's own call may break it: see weir_alloc. */
    if (weir_last_refusal(&failure) != WEIR_OK || failure.asked != *bytes || failure.largest == 0 ||
        (w.capture.runs && w.set.kind == POOL && !w.set.front))
        return 0;
    *bytes = (size_t)failure.largest;
    tell("alloc %zu on stream %u, as it said: ", *bytes, stream);
    steps = steps_behind();
    faulted = CALL(status, weir_alloc(w.allocator, *bytes, handle(stream), address));
    tell("%s\n", weir_status_name(status));
    if (status != WEIR_OK && !faulted && steps_behind() == steps && steps != UINT64_MAX)
        fail("%zu bytes were said to be had: %s (driver result %d)", *bytes,
             weir_status_name(status), weir_last_driver_result());
    add(SIM_LARGEST, status == WEIR_OK);
    return status == WEIR_OK;
}

static void do_alloc(uint64_t r) {
    unsigned stream = (unsigned)(r % STREAMS), at = 0;
    int captured, faulted;
    size_t bytes = draw_size(sim_mix(r + 1));
    struct block *b;
    weir_status status;
    void *address = NULL;

    while (!w.streams[stream].lives)
        stream = (stream + 1) % STREAMS;
    captured = is_captured(stream);
    if (w.block_count >= w.set.most_blocks || (captured && w.capture.thread != w.thread))
        return;
    while (w.blocks[at].address)
        at++;
    b = &w.blocks[at];
    tell("alloc %zu on stream %u%s: ", bytes, stream, captured ? " (captured)" : "");
    w.asked_on = stream;
    faulted = CALL(status, weir_alloc(w.allocator, bytes, handle(stream), &address));
    tell("%s, block %u at %p\n", weir_status_name(status), at, address);
    if (status != WEIR_OK) {
        if (captured && w.set.kind == DIRECT) {
            if (!faulted)
                expect(status, WEIR_E_CAPTURE, "weir_alloc under capture");
        } else if (!faulted && status != WEIR_E_NO_MEMORY && status != WEIR_E_LIMIT) {
            fail("weir_alloc: %s (driver result %d)", weir_status_name(status),
                 weir_last_driver_result());
        }
        add(SIM_FAILURES, 1);
        if (captured || faulted || !ask_for_largest(stream, &bytes, &address))
            return;
    }
    *b = (struct block){.address = address,
                        .bytes = bytes,
                        .owner = ++w.owners,
                        .home = stream,
                        .of_graph = captured,
                        .was_of_graph = captured};
    w.any_of_graph |= captured;
    w.block_count++;
    check_overlap(b);
    use(b, stream, r);
    check_oracle();
}

/* A block that any stream may have at once, whoever used the memory before. */
static void do_alloc_any(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS), at = 0;
    size_t bytes = draw_size(sim_mix(r + 1));
    void *address = NULL;
    weir_status status;
    int faulted;

    if (stream == STREAMS || w.block_count >= w.set.most_blocks || w.set.asks)
        return;
    while (w.blocks[at].address)
        at++;
    tell("alloc %zu for any stream: ", bytes);
    faulted = CALL(status, weir_alloc_any(w.allocator, bytes, &address));
    tell("%s, block %u at %p\n", weir_status_name(status), at, address);
    if (status != WEIR_OK) {
        if (!faulted && status != WEIR_E_NO_MEMORY && status != WEIR_E_LIMIT)
            fail("weir_alloc_any: %s (driver result %d)", weir_status_name(status),
                 weir_last_driver_result());
        add(SIM_FAILURES, 1);
        return;
    }
    w.blocks[at] = (struct block){
        .address = address, .bytes = bytes, .owner = ++w.owners, .home = stream, .is_any = 1};
    w.block_count++;
    check_overlap(&w.blocks[at]);
    use(&w.blocks[at], stream, r);
    check_oracle();
    add(SIM_ANY, 1);
}

/* All uses but the declared ones are behind `stream`; 0: they cannot be. */
static int order_behind(const struct block *b, unsigned stream) {
    unsigned users = (b->users | 1u << b->home) & ~b->noted & ~(1u << stream);

    for (unsigned i = 0; i < STREAMS; i++)
        if (users >> i & 1 && (is_captured(stream) || is_captured(i)))
            return 0;
    for (unsigned i = 0; i < STREAMS; i++)
        if (users >> i & 1)
            follow(stream, i);
    return 1;
}

/* Whether a noted stream is being captured. */
static int notes_capture(const struct block *b) {
    return w.capture.runs && b->noted >> w.capture.stream & 1;
}

static void free_on(struct block *b, unsigned stream) {
    int captured = is_captured(stream), faulted;
    weir_status status;

    if (b->in_graph || (captured && w.capture.thread != w.thread) || (b->of_graph && !captured) ||
        !order_behind(b, stream))
        return;
    if (captured && b->was_of_graph && !b->of_graph)
        return; /* another graph's: should this capture be aborted, it would not be freed */
    tell("free block %u on stream %u%s: ", number(b), stream, captured ? " (captured)" : "");
    faulted = CALL(status, weir_free(w.allocator, b->address, handle(stream)));
    tell("%s\n", weir_status_name(status));
    if (status == WEIR_E_CAPTURE && (captured || notes_capture(b)) && !b->of_graph &&
        (b->noted || (w.set.kind == POOL && !w.set.front)))
        return; /* as it says: nothing changed */
    if (status != WEIR_OK && status != WEIR_E_HOST_MEMORY) {
        if (!faulted)
            fail("weir_free of block %u: %s (driver result %d)", number(b),
                 weir_status_name(status), weir_last_driver_result());
        return;
    }
    w.gone = b->address;
    forget(b);
    check_oracle();
}

static void do_free(uint64_t r) {
    struct block *b = block_from((unsigned)(r % BLOCKS));
    unsigned stream;

    if (!b)
        return;
    stream = (r >> 16 & 3) ? b->home : (unsigned)(r >> 20) % STREAMS;
    if (!w.streams[stream].lives)
        stream = b->home;
    free_on(b, stream);
}

static void do_free_many(uint64_t r) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && sim_mix(r + i) & 1)
            free_on(&w.blocks[i], w.blocks[i].home);
}

/* Whoever frees does not know who used it. */
static void do_free_any(uint64_t r) {
    struct block *b = block_from((unsigned)(r % BLOCKS));
    weir_status status;
    int faulted;

    if (!b || b->of_graph || b->was_of_graph || b->in_graph || w.capture.runs)
        return;
    tell("free block %u, whoever used it: ", number(b));
    faulted = CALL(status, weir_free_any(w.allocator, b->address));
    tell("%s\n", weir_status_name(status));
    if (status != WEIR_OK && status != WEIR_E_HOST_MEMORY) {
        if (!faulted && status != WEIR_E_NO_MEMORY)
            fail("weir_free_any of block %u: %s (driver result %d)", number(b),
                 weir_status_name(status), weir_last_driver_result());
        return;
    }
    w.gone = b->address;
    forget(b);
    check_oracle();
}

/* What an address is. */
static void do_range(uint64_t r) {
    const struct block *b = block_from((unsigned)(r % BLOCKS));
    size_t bytes = 0, offset = b ? (size_t)((r >> 16) % b->bytes) : 0;
    void *base = NULL;
    weir_status status;

    if (!b || b->of_graph || b->was_of_graph)
        return;
    status = weir_block_range(w.allocator, b->address + offset, &base, &bytes);
    tell("block %u, %zu bytes behind its beginning: %s\n", number(b), offset,
         weir_status_name(status));
    if (w.set.kind == POOL && (!w.set.front || w.set.old)) {
        expect(status, WEIR_E_NOT_SUPPORTED, "weir_block_range");
        return;
    }
    expect(status, WEIR_OK, "weir_block_range");
    if (base != b->address || bytes != b->bytes)
        fail("block %u is said to be %zu bytes at %p, not %zu at %p", number(b), bytes, base,
             b->bytes, (void *)b->address);
}

static void do_work(uint64_t r) {
    struct block *b = block_from((unsigned)(r % BLOCKS));
    unsigned stream;

    if (!b)
        return;
    stream = b->home;
    if (is_captured(stream) && w.capture.thread != w.thread)
        return;
    if (is_captured(stream) && !b->of_graph)
        b->in_graph = 1;
    tell("use block %u on stream %u\n", number(b), stream);
    use(b, stream, r);
    check_oracle();
}

/* Another stream uses it, behind its home. */
static void do_cross(uint64_t r, int declares) {
    struct block *b = block_from((unsigned)(r % BLOCKS));
    unsigned stream = plain_from((unsigned)(r >> 16) % STREAMS);
    weir_status status;

    if (!b || stream == STREAMS || b->of_graph || !is_plain(b->home) || stream == b->home)
        return;
    if (!b->is_any)
        follow(stream, b->home);
    tell("use block %u on stream %u%s\n", number(b), stream, declares ? ", declared" : "");
    if (declares && !(b->noted >> stream & 1)) {
        if (CALL(status, weir_use(w.allocator, b->address, handle(stream))) && status != WEIR_OK)
            declares = 0;
        else
            expect(status, WEIR_OK, "weir_use");
        if (declares)
            b->noted |= 1u << stream;
    }
    use(b, stream, r);
    check_oracle();
}

/* A pointer that is no live block's. */
static void do_wrong_free(uint64_t r) {
    const struct block *b = block_from((unsigned)(r % BLOCKS));
    unsigned stream = plain_from((unsigned)(r >> 16) % STREAMS);
    char *address = NULL;
    weir_status status;

    if (stream == STREAMS)
        return;
    if (r >> 20 & 1) {
        if (w.set.faults && (w.set.kind == POOL || w.any_of_graph))
            return; /* what the driver did not take back may lie there, and it is who is asked */
        address = w.gone;
        for (unsigned i = 0; i < BLOCKS; i++)
            if (w.blocks[i].address == address)
                return; /* somebody has it again */
        for (unsigned i = 0; i < HOGS; i++)
            if (w.hogs[i] == (uintptr_t)address)
                return; /* the driver takes back any block of its own */
    } else if (b && b->bytes > 1 && !b->of_graph) {
        address = b->address + 1 + (r >> 24) % (b->bytes - 1);
    }
    if (!address)
        return;
    tell("free %p, which is no block\n", (void *)address);
    status = weir_free(w.allocator, address, handle(stream));
    expect(status, WEIR_E_NOT_OWNED, "weir_free of no block");
}

/* ---- Streams that come and go ---- */

static void sync_device(void) {
    if (w.capture.runs)
        return;
    tell("wait for the device\n");
    CU(w.driver->cuCtxSynchronize());
    w.born = 0;
}

static void do_create(uint64_t r) {
    unsigned stream = 0;

    while (stream < w.set.streams && w.streams[stream].lives)
        stream++;
    if (stream == w.set.streams)
        return;
    if (w.born >= MOST_BORN) { /* the oracle tells so many apart */
        sync_device();
        if (w.born)
            return;
    }
    make_stream(stream, w.set.legacy && (r & 1));
    tell("create stream %u\n", stream);
}

static void unbind(unsigned stream) {
    expect(weir_unbind(w.allocator, handle(stream)), WEIR_OK, "weir_unbind");
    w.streams[stream].bound--;
}

static void do_destroy(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS), heir;

    if (stream == STREAMS || w.streams[stream].is_default || !w.set.checks)
        return;
    heir = plain_from(stream + 1);
    if (heir == stream)
        return;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && w.blocks[i].noted >> stream & 1)
            return; /* a noted stream lives until the free */
    while (w.streams[stream].bound)
        unbind(stream);
    follow(heir, stream);
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *b = &w.blocks[i];

        if (b->address && b->home == stream)
            b->home = heir;
        if (b->users >> stream & 1)
            b->users = (b->users & ~(1u << stream)) | 1u << heir;
    }
    tell("destroy stream %u, its heir is %u\n", stream, heir);
    CU(w.driver->cuStreamDestroy(handle(stream)));
    w.streams[stream] = (struct stream){0};
}

static void do_bind(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);
    weir_status status;

    if (stream == STREAMS || w.streams[stream].bound >= 2)
        return;
    tell("bind stream %u\n", stream);
    if (!CALL(status, weir_bind(w.allocator, handle(stream))))
        expect(status, WEIR_OK, "weir_bind");
    w.streams[stream].bound += status == WEIR_OK;
}

static void do_unbind(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);

    if (stream == STREAMS || w.streams[stream].bound == 0)
        return;
    tell("unbind stream %u\n", stream);
    unbind(stream);
}

/* ---- Time ---- */

/* What the program itself must not ask beside a capture. */
static int may_ask(void) {
    return !w.capture.runs || w.capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

static void do_ask(uint64_t r, int waits) {
    unsigned stream = plain_from((unsigned)r % STREAMS);
    CUresult result;

    if (stream == STREAMS || !may_ask() || (w.capture.runs && w.streams[stream].is_default))
        return;
    tell("%s stream %u\n", waits ? "wait for" : "query", stream);
    result = waits ? w.driver->cuStreamSynchronize(handle(stream))
                   : w.driver->cuStreamQuery(handle(stream));
    if (result != CUDA_SUCCESS && (waits || result != CUDA_ERROR_NOT_READY))
        fail("asking stream %u: %u", stream, result);
}

static void do_wait(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);
    unsigned other = plain_from((unsigned)(r >> 8) % STREAMS);

    if (stream == STREAMS)
        return;
    tell("stream %u waits for stream %u\n", stream, other);
    follow(stream, other);
}

static void do_kernel(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);

    if (stream != STREAMS)
        CU(weir__model_kernel(handle(stream), duration(r) * 4));
}

/* A request after a long pause decays otherwise than those of a program at work. */
static void do_advance(uint64_t r) {
    weir__model_advance(duration(r) * 4);
    if (w.set.half_life_ms)
        weir__model_advance(w.set.half_life_ms * 1000000 / 8 * (r % 12));
}

/* ---- Reserve ---- */

static void do_decay(void) {
    size_t went = 0;
    weir_status status;

    tell("decay: ");
    if (!CALL(status, weir_decay(w.allocator, &went)))
        expect(status, WEIR_OK, "weir_decay");
    tell("%s, %zu bytes went\n", weir_status_name(status), went);
}

static void do_trim(uint64_t r) {
    size_t keep = r & 1 ? 0 : (size_t)(r >> 8) % w.set.capacity;
    weir_status status;

    if (w.set.half_life_ms && r & 6) {
        do_decay();
        return;
    }
    tell("trim to %zu: ", keep);
    if (!CALL(status, weir_trim(w.allocator, keep, NULL)) && status != WEIR_E_NO_MEMORY)
        expect(status, WEIR_OK, "weir_trim");
    tell("%s\n", weir_status_name(status));
}

static void do_preallocate(uint64_t r) {
    size_t bytes = (size_t)(r >> 8) % (w.set.capacity / 2);
    weir_status status;

    tell("preallocate %zu: ", bytes);
    if (!CALL(status, weir_preallocate(w.allocator, bytes, NULL)) && status != WEIR_E_NO_MEMORY &&
        status != WEIR_E_LIMIT && status != (w.set.kind == DIRECT ? WEIR_E_NOT_SUPPORTED : WEIR_OK))
        fail("weir_preallocate: %s", weir_status_name(status));
    tell("%s\n", weir_status_name(status));
}

/* Lower, and up again to what it was. */
static void do_limit(uint64_t r) {
    uint64_t bytes = w.set.capacity / 4 * (1 + r % 5);
    weir_amount all = {0, WEIR_AMOUNT_MAX, 0};
    weir_status status = weir_set_limit(w.allocator, r % 5 == 4 ? all : bytes_amount(bytes));

    tell("limit %llu: %s\n", (unsigned long long)bytes, weir_status_name(status));
    expect(status, w.set.kind == ARENA_FIXED ? WEIR_E_NOT_SUPPORTED : WEIR_OK, "weir_set_limit");
    if (status != WEIR_OK)
        return;
    w.limit = r % 5 == 4 ? UINT64_MAX : bytes;
    w.most = UINT64_MAX;
    (void)look();
    add(SIM_LIMITS, 1);
}

/* Somebody says that so much is wanted, or all. */
static void say_low_memory(size_t bytes) {
    int fixed = w.set.kind == DIRECT || w.set.kind == ARENA_FIXED;
    weir_status status = weir_low_memory(w.allocator, bytes);

    tell("memory is low, %zu bytes are wanted: %s\n", bytes, weir_status_name(status));
    expect(status, fixed ? WEIR_E_NOT_SUPPORTED : WEIR_OK, "weir_low_memory");
}

/* Others take memory of the device, or give it back. */
static void do_hog(uint64_t r, int takes) {
    CUdeviceptr *hog = &w.hogs[r % HOGS];
    size_t bytes = (size_t)(w.set.capacity / 2 >> (r >> 8) % 4);

    if (takes == (*hog != 0) || w.capture.runs)
        return;
    if (takes && (r >> 16 & 1))
        say_low_memory(r >> 17 & 1 ? bytes : 0);
    tell("somebody %s %zu bytes\n", takes ? "takes" : "gives back", bytes);
    if (takes)
        (void)w.driver->cuMemAlloc(hog, bytes); /* if there is as much */
    else
        CU(w.driver->cuMemFree(*hog));
    if (!takes)
        *hog = 0;
}

/* ---- Captures ---- */

static void do_begin(uint64_t r) {
    unsigned stream = plain_from((unsigned)r % STREAMS);
    int quiet = w.set.kind == POOL && !w.set.front; /* it does as the driver does */

    if (stream == STREAMS || w.capture.runs || !w.set.checks || w.set.old ||
        w.streams[stream].bound || w.streams[stream].is_default || w.streams[stream].blocks)
        return;
    w.capture = (struct capture){.runs = 1,
                                 .stream = stream,
                                 .thread = w.thread,
                                 .mode = quiet ? CU_STREAM_CAPTURE_MODE_RELAXED
                                               : (CUstreamCaptureMode)((r >> 8) % 3)};
    tell("capture stream %u, mode %d\n", stream, (int)w.capture.mode);
    CU(w.driver->cuStreamBeginCapture(handle(stream), w.capture.mode));
}

/* Frees what the capture has allocated, or a random part of it. */
static void free_captured(uint64_t r) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && w.blocks[i].of_graph && sim_mix(r + i) % 4)
            free_on(&w.blocks[i], w.capture.stream);
}

/* How often the graph may be launched: once if it leaves something allocated. */
static unsigned launches_left(uint64_t r) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && w.blocks[i].of_graph)
            return 1;
    return 1 + (unsigned)(r >> 4) % LAUNCHES;
}

static void launch(CUgraph graph, uint64_t r) {
    unsigned stream = plain_from((unsigned)(r >> 12) % STREAMS), times = launches_left(r);
    CUgraphExec exec;
    CUresult result = CUDA_SUCCESS;

    CU(w.driver->cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && w.blocks[i].in_graph) {
            if (!order_behind(&w.blocks[i], stream))
                fail("the capture is over");
            w.blocks[i].in_graph = 0;
            w.blocks[i].users |= 1u << stream;
        }
    tell("launch the graph on stream %u, %u times\n", stream, times);
    while (times-- > 0) {
        result = w.driver->cuGraphLaunch(exec, handle(stream));
        if (result == CUDA_ERROR_OUT_OF_MEMORY) { /* then it leaves nothing */
            tell("    no memory for it\n");
            break;
        }
        CU(result);
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        struct block *b = &w.blocks[i];

        if (!b->address || !b->of_graph)
            continue;
        if (result != CUDA_SUCCESS) {
            forget(b);
            w.lost++;
            continue;
        }
        b->of_graph = 0;
        b->home = stream;
        b->users = 1u << stream;
    }
    CU(w.driver->cuGraphExecDestroy(exec));
}

static void do_end(uint64_t r) {
    CUgraph graph = NULL;

    if (!w.capture.runs || w.capture.thread != w.thread)
        return;
    free_captured(r & 1 ? r : 0);
    for (unsigned i = 0; i < BLOCKS; i++) /* a launch may find no memory for what it leaves */
        if (w.blocks[i].address && w.blocks[i].of_graph)
            free_on(&w.blocks[i], w.capture.stream);
    tell("end the capture\n");
    CU(w.driver->cuStreamEndCapture(handle(w.capture.stream), &graph));
    w.capture.runs = 0;
    launch(graph, r);
    CU(w.driver->cuGraphDestroy(graph));
    add(SIM_CAPTURES, 1);
    check_oracle();
}

static void do_abort(void) {
    CUgraph graph = NULL;
    CUresult result;

    if (!w.capture.runs || w.capture.thread != w.thread)
        return;
    free_captured(3);
    tell("abort the capture\n");
    (void)w.driver->cuStreamQuery(handle(w.capture.stream));
    result = w.driver->cuStreamEndCapture(handle(w.capture.stream), &graph);
    if (result != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        fail("the end of an aborted capture: %u", result);
    w.capture.runs = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        w.blocks[i].in_graph = 0;
        if (w.blocks[i].address && w.blocks[i].of_graph) { /* never was there */
            forget(&w.blocks[i]);
            w.lost++;
        }
    }
    add(SIM_CAPTURES, 1);
}

/* ---- Faults ---- */

static void do_fault(uint64_t r) {
    static const enum weir_driver_entry entries[] = {WEIR_ENTRY_cuMemAllocFromPoolAsync,
                                                     WEIR_ENTRY_cuMemFreeAsync,
                                                     WEIR_ENTRY_cuMemAlloc,
                                                     WEIR_ENTRY_cuMemFree,
                                                     WEIR_ENTRY_cuEventCreate,
                                                     WEIR_ENTRY_cuEventRecord,
                                                     WEIR_ENTRY_cuEventQuery,
                                                     WEIR_ENTRY_cuStreamIsCapturing,
                                                     WEIR_ENTRY_cuStreamGetId,
                                                     WEIR_ENTRY_cuMemPoolGetAttribute,
                                                     WEIR_ENTRY_cuMemPoolSetAttribute,
                                                     WEIR_ENTRY_cuStreamWaitEvent,
                                                     WEIR_ENTRY_cuCtxPushCurrent,
                                                     WEIR_ENTRY_cuMemGetInfo,
                                                     WEIR_ENTRY_cuStreamSynchronize,
                                                     WEIR_ENTRY_cuMemPoolTrimTo,
                                                     WEIR_ENTRY_cuStreamCreate,
                                                     WEIR_ENTRY_cuStreamQuery,
                                                     WEIR_ENTRY_cuMemAllocHost,
                                                     WEIR_ENTRY_cuMemFreeHost};
    static const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE,
                                       CUDA_ERROR_NOT_SUPPORTED};

    if (!w.set.faults)
        return;
    w.fault_entry = entries[r % (sizeof entries / sizeof entries[0])];
    w.fault_result = results[(r >> 8) % (sizeof results / sizeof results[0])];
    w.fault_k = 1 + (r >> 12) % 3;
    /* What the driver will not take back at all is lost, and not the allocator's doing; so is a block for any
     * stream that cannot be waited for, if a free has to wait likewise. */
    w.fault_for_good = r >> 16 & 1 && w.fault_entry != WEIR_ENTRY_cuMemFree &&
                       w.fault_entry != WEIR_ENTRY_cuMemFreeHost &&
                       w.fault_entry != WEIR_ENTRY_cuStreamSynchronize;
    tell("call %llu of %s from now fails with %u%s\n", (unsigned long long)w.fault_k,
         weir__driver_entry_name(w.fault_entry), w.fault_result,
         w.fault_for_good ? ", and all after it" : "");
    add(SIM_FAULTS, 1);
}

/* ---- Beginning and end ---- */

static void open_allocator(void) {
    weir_options options = options_of(&w.set);

    if (w.set.asks) {
        options.oom_callback = give_idle_back;
        options.oom_callback_data = &w;
    }
    expect(weir_allocator_create(&options, &w.allocator), WEIR_OK, "weir_allocator_create");
    w.limit = w.most = UINT64_MAX;
}

static int has_own_blocks(void) {
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address && !w.blocks[i].was_of_graph)
            return 1;
    return 0;
}

/* Of those that the ring still has. */
static unsigned count_decays(void) {
    weir_event events[64];
    size_t count;
    unsigned decays = 0;

    expect(weir_events(w.allocator, 0, events, sizeof events[0], 64, &count), WEIR_OK,
           "weir_events");
    for (size_t i = 0; i < count; i++)
        decays += events[i].cause == WEIR_EVENT_DECAY;
    return decays;
}

static void close_allocator(void) {
    weir_statistics s;
    size_t free_bytes, total;

    if (w.capture.runs)
        return;
    tell("free all, and destroy the allocator\n");
    w.fault_k = 0;
    if (has_own_blocks())
        expect(weir_allocator_destroy(w.allocator), WEIR_E_BUSY,
               "weir_allocator_destroy with blocks");
    for (unsigned i = 0; i < BLOCKS; i++)
        if (w.blocks[i].address)
            free_on(&w.blocks[i], w.blocks[i].home);
    if (w.block_count > 0)
        fail("%u blocks could not be freed", w.block_count);
    for (unsigned i = 0; i < STREAMS; i++)
        w.streams[i].bound = 0;
    s = look();
    add(SIM_ALLOCS, s.allocs);
    add(SIM_HITS, s.front_hits);
    add(SIM_STEALS, s.steals);
    add(SIM_RECORDS, s.event_records);
    add(SIM_DEFERRED, s.deferred_frees);
    add(SIM_GROWTHS, s.growths);
    add(SIM_RETRIES, s.retries);
    add(SIM_AHEAD, s.ahead_steps);
    add(SIM_DECAYS, count_decays());
    add(SIM_LEARNT, s.profile_runs > 0);
    if (s.late_writes || s.overruns || (s.kept_out && !w.set.faults))
        fail("%llu late writes, %llu overruns and %llu blocks kept out, though nobody wrote",
             (unsigned long long)s.late_writes, (unsigned long long)s.overruns,
             (unsigned long long)s.kept_out);
    expect(weir_trim(w.allocator, 0, NULL), WEIR_OK, "weir_trim");
    s = look();
    if (s.requested != 0 || (s.in_use != 0 && s.kept_out == 0))
        fail("%llu bytes are requested and %llu in use of no block",
             (unsigned long long)s.requested, (unsigned long long)s.in_use);
    if (w.set.patience != 2) { /* else pending frees are not waited for */
        CU(w.driver->cuCtxSynchronize());
        expect(weir_trim(w.allocator, 0, NULL), WEIR_OK, "weir_trim");
        s = look();
        if (s.reserve != 0 && s.kept_out == 0 && w.set.kind != ARENA_FIXED)
            fail("%llu bytes of reserve are left of nothing", (unsigned long long)s.reserve);
    }
    CU(w.driver->cuCtxSynchronize());
    w.born = 0;
    expect(weir_allocator_destroy(w.allocator), WEIR_OK, "weir_allocator_destroy");
    w.gone = NULL;
    w.any_of_graph = 0;
    w.lost = 0;
    for (unsigned i = 0; i < HOGS; i++)
        if (w.hogs[i]) {
            CU(w.driver->cuMemFree(w.hogs[i]));
            w.hogs[i] = 0;
        }
    CU(w.driver->cuDeviceGraphMemTrim(0));
    CU(w.driver->cuMemGetInfo(&free_bytes, &total));
    if (free_bytes != w.set.capacity)
        fail("%zu bytes of the device are gone", (size_t)w.set.capacity - free_bytes);
    check_oracle();
    check_model();
}

/* A model as the world wants it. */
static void reset_model(void) {
    struct weir_model_setup setup = {.capacity = w.set.capacity};
    char path[80];
    FILE *file;

    if (w.set.old) {
        snprintf(path, sizeof path, "%s/model", folder());
        file = fopen(path, "w");
        if (!file || fputs("driver_version = 11080\n", file) < 0 || fclose(file) != 0)
            fail("no file %s", path);
        setup.profile = path;
    }
    if (weir__model_reset(&setup) != 0)
        fail("the model cannot be reset");
}

static void open_world(void) {
    struct weir_driver_failure failure;

    remove_folder(); /* of a process that had this number */
    if (mkdir(folder(), 0700) != 0 || setenv("WEIR_RUN_FOLDER", folder(), 1) != 0)
        fail("no folder %s", folder());
    w.driver = weir__driver_open("model", &failure);
    if (!w.driver)
        fail("%s", failure.text);
    reset_model();
    if (w.script->is_followed)
        weir__model_sequence_start(w.script->calls);
    CU(w.driver->cuDevicePrimaryCtxRetain(&w.context, 0));
    CU(w.driver->cuCtxPushCurrent(w.context));
    CU(w.driver->cuEventCreate(&w.event, CU_EVENT_DISABLE_TIMING));
    open_allocator();
    for (unsigned i = 0; i < w.set.streams; i++)
        make_stream(i, w.set.legacy && (i & 1));
    if (w.set.legacy)
        w.streams[STREAMS - 1] = (struct stream){.lives = 1, .is_default = 1, .blocks = 1};
}

/* Worlds end in any order. */
static void add_digest(void) {
    struct weir_model_sequence sequence;

    weir__model_sequence(&sequence);
    atomic_fetch_add(&w.report->digest, sim_mix(sequence.digest ^ sim_mix(w.script->seed)));
}

static void close_world(void) {
    CUcontext popped;

    close_allocator();
    add(SIM_USES, weir__model_uses());
    for (unsigned i = 0; i < STREAMS; i++)
        if (w.streams[i].lives && !w.streams[i].is_default)
            CU(w.driver->cuStreamDestroy(handle(i)));
    CU(w.driver->cuEventDestroy(w.event));
    CU(w.driver->cuCtxPopCurrent(&popped));
    CU(w.driver->cuDevicePrimaryCtxRelease(0));
    if (w.script->is_followed)
        add_digest();
    remove_folder();
}

/* ---- Playing ---- */

static void do_word(enum operation operation, uint64_t r) {
    switch (operation) {
    case OP_ALLOC:
        do_alloc(r);
        break;
    case OP_FREE:
        do_free(r);
        break;
    case OP_FREE_MANY:
        do_free_many(r);
        break;
    case OP_ALLOC_ANY:
        do_alloc_any(r);
        break;
    case OP_FREE_ANY:
        do_free_any(r);
        break;
    case OP_RANGE:
        do_range(r);
        break;
    case OP_LIMIT:
        do_limit(r);
        break;
    case OP_WORK:
        do_work(r);
        break;
    case OP_CROSS:
        do_cross(r, 0);
        break;
    case OP_DECLARE:
        do_cross(r, 1);
        break;
    case OP_KERNEL:
        do_kernel(r);
        break;
    case OP_ADVANCE:
        do_advance(r);
        break;
    case OP_SYNC_STREAM:
        do_ask(r, 1);
        break;
    case OP_SYNC_DEVICE:
        sync_device();
        break;
    case OP_QUERY:
        do_ask(r, 0);
        break;
    case OP_WAIT:
        do_wait(r);
        break;
    case OP_CREATE:
        do_create(r);
        break;
    case OP_DESTROY:
        do_destroy(r);
        break;
    case OP_BIND:
        do_bind(r);
        break;
    case OP_UNBIND:
        do_unbind(r);
        break;
    case OP_TRIM:
        do_trim(r);
        break;
    case OP_PREALLOC:
        do_preallocate(r);
        break;
    case OP_STATS:
        (void)look();
        break;
    case OP_BEGIN:
        do_begin(r);
        break;
    case OP_END:
        do_end(r);
        break;
    case OP_ABORT:
        do_abort();
        break;
    case OP_HOG:
        do_hog(r, 1);
        break;
    case OP_RETURN:
        do_hog(r, 0);
        break;
    case OP_WRONG_FREE:
        do_wrong_free(r);
        break;
    case OP_FAULT:
        do_fault(r);
        break;
    case OP_RENEW:
        if (!w.capture.runs) {
            close_allocator();
            open_allocator();
        }
        break;
    case OP_SWITCH:
    case OP_COUNT:
        break;
    }
}

/* Plays words until another thread's turn comes, and waits for its own; to the end. */
static void play(unsigned thread) {
    enum { LOOK_AT_MODEL = 512 };

    while (!w.is_over) {
        uint64_t word = w.script->words[w.at], r = word >> 10;
        enum operation operation = w.set.chances[word % sizeof w.set.chances];
        unsigned next = thread;

        w.told = 0;
        atomic_store_explicit(&w.report->at, w.at, memory_order_relaxed);
        if (w.story)
            fprintf(w.story, "%016llx  # %s, thread %u: ", (unsigned long long)word,
                    operation_names[operation], thread);
        if (operation == OP_SWITCH)
            next = (unsigned)(r % w.set.threads);
        else
            do_word(operation, r);
        if (w.story && !w.told) /* a line each: a script is read back so */
            fputs("\n", w.story);
        if (w.at % LOOK_AT_MODEL == 0)
            check_model();
        if (++w.at == w.script->count)
            w.is_over = 1;
        else if (next != thread) {
            w.thread = next;
            sem_post(&w.turns[next]);
            while (sem_wait(&w.turns[thread]) != 0)
                ;
        }
    }
}

/* When it is over: in its turn too, since one ends the capture that it began while the others ask for it. */
static void leave(unsigned thread) {
    CUcontext popped;

    w.thread = thread;
    do_abort();
    if (thread > 0)
        CU(w.driver->cuCtxPopCurrent(&popped));
    sem_post(&w.turns[(thread + 1) % w.set.threads]);
}

static void *thread_main(void *argument) {
    unsigned thread = (unsigned)(uintptr_t)argument;

    while (sem_wait(&w.turns[thread]) != 0)
        ;
    CU(w.driver->cuCtxPushCurrent(w.context));
    play(thread);
    leave(thread);
    return NULL;
}

void sim_play(const struct sim_script *script, struct sim_report *report, FILE *story) {
    pthread_t ids[THREADS];

    memset(&w, 0, sizeof w);
    w.script = script;
    w.report = report;
    w.story = story;
    draw_settings(&w.set, script->seed);
    open_world();
    for (unsigned i = 0; i < w.set.threads; i++)
        sem_init(&w.turns[i], 0, 0);
    for (unsigned i = 1; i < w.set.threads; i++)
        if (pthread_create(&ids[i], NULL, thread_main, (void *)(uintptr_t)i) != 0)
            fail("a thread cannot be started");
    w.is_over = script->count == 0;
    play(0);
    leave(0);
    for (unsigned i = 1; i < w.set.threads; i++)
        pthread_join(ids[i], NULL);
    w.thread = 0;
    close_world();
    for (unsigned i = 0; i < w.set.threads; i++)
        sem_destroy(&w.turns[i]);
    atomic_fetch_add_explicit(&report->operations, script->count, memory_order_relaxed);
    atomic_fetch_add_explicit(&report->worlds, 1, memory_order_relaxed);
}
